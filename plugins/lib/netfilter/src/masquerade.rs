//! Masquerading (`ipMasq`): a container's connections that leave its subnet get the node's address as their source.

use std::collections::BTreeSet;

use cni_types::{Attachment, Cidr, ContainerId, IfName, NetworkName, Result};

use crate::sweep::{first_of, together};
use crate::{Backend, iptables, nftables};

/// The connections of one attachment that are masqueraded.
#[derive(Debug, Clone)]
pub struct Masquerade {
    /// The container's addresses with the prefix lengths of their subnets. Traffic within the subnet keeps its source,
    /// and so does multicast.
    pub addresses: Vec<Cidr>,
    /// More destinations that see the container's real address (`ipMasqExclude`), such as the cluster's other nodes.
    pub exclude: Vec<Cidr>,
}

/// Makes the kernel masquerade exactly `masquerade` for the attachment.
///
/// # Errors
///
/// Code 11 when others kept changing the ruleset; otherwise what the kernel said.
pub fn add(backend: Backend, attachment: &Attachment, masquerade: &Masquerade) -> Result<()> {
    match backend {
        Backend::Iptables => {
            iptables::masquerade::add(attachment, masquerade)?;
            nftables::where_supported(|| nftables::masquerade::del(attachment))
        }
        Backend::Nftables => {
            nftables::masquerade::add(attachment, masquerade)?;
            iptables::masquerade::del(attachment)
        }
    }
}

/// Compares what the kernel holds for the attachment with what [`add`] would write. What another backend or the reference
/// wrote is as good: neither the node's backend nor its suite of plugins stays what it was while containers run.
///
/// # Errors
///
/// The first difference from what `backend` would have written, in words.
pub fn check(backend: Backend, attachment: &Attachment, masquerade: &Masquerade) -> Result<()> {
    let in_iptables = || iptables::masquerade::check(attachment, masquerade);
    let in_nftables = || nftables::masquerade::check(attachment, masquerade);
    let by_reference = || nftables::masquerade::check_of_reference(attachment, masquerade);
    match backend {
        Backend::Iptables => first_of(&[&in_iptables, &in_nftables, &by_reference]),
        Backend::Nftables => first_of(&[&in_nftables, &in_iptables, &by_reference]),
    }
}

/// Removes the attachment's masquerading, whatever backend and whichever suite wrote it.
///
/// # Errors
///
/// All backends are tried; the failures are reported together.
pub fn del(attachment: &Attachment) -> Result<()> {
    together([
        nftables::where_supported(|| nftables::masquerade::del(attachment)),
        iptables::masquerade::del(attachment),
    ])
}

/// Removes the masquerading of every attachment of `network` that is not in `valid`.
///
/// # Errors
///
/// All backends are tried; the failures are reported together.
pub fn gc(network: &NetworkName, valid: &BTreeSet<(ContainerId, IfName)>) -> Result<()> {
    together([
        nftables::where_supported(|| nftables::masquerade::gc(network, valid)),
        iptables::masquerade::gc(network, valid),
    ])
}
