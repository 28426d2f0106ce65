//! The MAC spoofing guard (`macspoofchk`): a bridge forwards from a host veth only what carries the container's address.
//!
//! Held in nf_tables' `bridge` family whatever the backend, under the reference suite's names: what either suite wrote,
//! the other removes.

use std::collections::BTreeSet;

use cni_types::{Attachment, ContainerId, IfName, MacAddr, NetworkName, Result};

use crate::nftables;

/// Makes the bridge drop what arrives from `host_veth` with another source address than `mac`.
///
/// # Errors
///
/// Code 11 when others kept changing the ruleset; otherwise what the kernel said.
pub fn add(attachment: &Attachment, host_veth: &IfName, mac: MacAddr) -> Result<()> {
    nftables::macspoof::add(attachment, host_veth, mac)
}

/// Compares what the kernel holds for the attachment with what [`add`] would write.
///
/// # Errors
///
/// The first difference, in words.
pub fn check(attachment: &Attachment, host_veth: &IfName, mac: MacAddr) -> Result<()> {
    nftables::macspoof::check(attachment, host_veth, mac)
}

/// Removes the attachment's guard, whichever suite wrote it.
///
/// # Errors
///
/// What the kernel said.
pub fn del(attachment: &Attachment) -> Result<()> {
    nftables::where_supported(|| nftables::macspoof::del(attachment))
}

/// Removes the guards of every attachment of `network` that is not in `valid`. The reference's name no network and stay.
///
/// # Errors
///
/// What the kernel said.
pub fn gc(network: &NetworkName, valid: &BTreeSet<(ContainerId, IfName)>) -> Result<()> {
    nftables::where_supported(|| nftables::macspoof::gc(network, valid))
}
