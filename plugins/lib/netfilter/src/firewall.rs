//! The firewall: a container's addresses may pass the node's FORWARD chain, and bridges are kept apart.

use std::collections::BTreeSet;
use std::net::IpAddr;

use cni_types::{Attachment, ContainerId, IfName, NetworkName, Result};

use crate::sweep::{first_of, together};
use crate::{Backend, Family, iptables, nftables};

/// Whether a text can name a chain of iptables.
pub use crate::iptables::is_chain_name;

/// Who may open connections to the containers on a bridge (`ingressPolicy`). The bridges that are named here keep to
/// themselves; any other interface of the node may send to them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Ingress {
    /// Everybody.
    #[default]
    Open,
    /// Nobody on another isolated bridge.
    SameBridge(IfName),
    /// Nobody on another isolated bridge, and nobody on the same one. The kernel shows frames that stay on a bridge to
    /// netfilter only with `br_netfilter`.
    Isolated(IfName),
}

impl Ingress {
    /// The bridge that is isolated.
    pub fn bridge(&self) -> Option<&IfName> {
        match self {
            Ingress::Open => None,
            Ingress::SameBridge(bridge) | Ingress::Isolated(bridge) => Some(bridge),
        }
    }
}

/// What an attachment needs.
#[derive(Debug, Clone)]
pub struct Policy {
    /// The container's addresses.
    pub addresses: Vec<IpAddr>,
    /// Whether rules of ours let them send, and get answers. Not so where firewalld does.
    pub accepts: bool,
    /// Who may open connections to them from other containers.
    pub ingress: Ingress,
    /// iptables only: the administrator's chain, which comes before what is accepted here and is never emptied. With
    /// nftables it is always the chain `admin` in our table.
    pub admin_chain: String,
}

impl Policy {
    /// The reference's default for [`admin_chain`](Policy::admin_chain).
    pub const DEFAULT_ADMIN_CHAIN: &str = "CNI-ADMIN";

    /// Whether there is no rule to write.
    fn is_nothing(&self) -> bool {
        !self.accepts && self.ingress == Ingress::Open
    }
}

/// Whether an [`add`] for the attachment, with any backend, is in effect. Who repeats it and fails must not take back what
/// the first one did: the container lives on with it.
///
/// # Errors
///
/// What the kernel said, or why a record cannot be read.
pub fn is_added(attachment: &Attachment) -> Result<bool> {
    Ok(nftables::where_supported(|| nftables::firewall::holds(attachment))? || iptables::firewall::holds(attachment)?)
}

/// Makes the kernel hold exactly `policy` for the attachment. Isolation is of the whole bridge, and stricter policies of
/// others stay.
///
/// # Errors
///
/// Code 11 when others kept changing the ruleset; otherwise what the kernel said. What an earlier `add` did stays, or
/// what this one wrote in place of it.
pub fn add(backend: Backend, attachment: &Attachment, policy: &Policy) -> Result<()> {
    let repeated = is_added(attachment)?;
    let added = match backend {
        _ if policy.is_nothing() => return del(attachment, &[]),
        // Nothing of an earlier `add` with the other backend may stay.
        Backend::Iptables => iptables::firewall::add(attachment, policy)
            .and_then(|()| nftables::where_supported(|| nftables::firewall::del(attachment))),
        Backend::Nftables => {
            nftables::firewall::add(attachment, policy).and_then(|()| iptables::firewall::del(attachment, &[]))
        }
    };
    added.inspect_err(|_| {
        if repeated {
            return;
        }
        if let Err(e) = del(attachment, &[]) {
            log::warn!("addresses of {attachment} stay accepted: {e}");
        }
    })
}

/// Compares what the kernel holds for the attachment with what [`add`] would write. What the other backend wrote is as
/// good: the node's backend does not stay what it was while containers run.
///
/// # Errors
///
/// The first difference from what `backend` would have written, in words.
pub fn check(backend: Backend, attachment: &Attachment, policy: &Policy) -> Result<()> {
    let in_iptables = || iptables::firewall::check(attachment, policy);
    let in_nftables = || nftables::firewall::check(attachment, policy);
    match backend {
        _ if policy.is_nothing() => Ok(()),
        Backend::Iptables => first_of(&[&in_iptables, &in_nftables]),
        Backend::Nftables => first_of(&[&in_nftables, &in_iptables]),
    }
}

/// Removes what accepts the attachment's addresses, whatever backend and whichever suite wrote it. Isolation stays: it is
/// of the bridge, and others are on it.
///
/// `addresses` are the attachment's as prevResult has them. They count only where nothing is recorded, which is so for
/// the reference's rules: those name nobody.
///
/// # Errors
///
/// All backends are tried; the failures are reported together.
pub fn del(attachment: &Attachment, addresses: &[IpAddr]) -> Result<()> {
    together([
        nftables::where_supported(|| nftables::firewall::del(attachment)),
        iptables::firewall::del(attachment, addresses),
    ])
}

/// Removes what accepts the addresses of attachments of `network` that are not in `valid`, and the isolation of
/// interfaces of which `in_use` says no. Rules that the reference wrote for addresses name nobody and stay.
///
/// # Errors
///
/// All backends are tried; the failures are reported together.
pub fn gc(network: &NetworkName, valid: &BTreeSet<(ContainerId, IfName)>, in_use: &dyn Fn(&str) -> bool) -> Result<()> {
    together([
        nftables::where_supported(|| nftables::firewall::gc(network, valid, in_use)),
        iptables::firewall::gc(network, valid, in_use),
    ])
}

/// Tells whether [`add`] could work with a backend; for STATUS.
///
/// # Errors
///
/// What is missing.
pub fn probe(backend: Backend) -> Result<()> {
    match backend {
        Backend::Iptables => backend.probe(),
        Backend::Nftables => nftables::firewall::probe(),
    }
}

/// The chains that drop what is forwarded unless a rule of their own accepts it, in words: `chain FORWARD of table ip
/// filter`. To pass our table with nftables is not to pass theirs; with iptables, our rules are in the one that counts
/// most. A drop by a rule is not found, nor what iptables of old kernels (legacy) does.
///
/// # Errors
///
/// What the kernel said.
pub fn foreign_drops(families: &[Family]) -> Result<Vec<String>> {
    nftables::where_supported(|| nftables::firewall::foreign_drops(families))
}
