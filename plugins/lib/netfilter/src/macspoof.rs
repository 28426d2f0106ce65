//! The MAC spoofing guard (`macspoofchk`): a bridge forwards from a host veth only what carries the container's address.
//!
//! Held in nf_tables' `bridge` family whatever the backend, under the reference suite's names: what either suite wrote,
//! the other removes.

use std::collections::BTreeSet;

use cni_types::{Attachment, ContainerId, Error, IfName, MacAddr, NetworkName, Result};

/// Makes the bridge drop what arrives from `host_veth` with another source address than `mac`.
///
/// # Errors
///
/// Code 11 when others kept changing the ruleset; otherwise what the kernel said.
pub fn add(attachment: &Attachment, host_veth: &IfName, mac: MacAddr) -> Result<()> {
    let _ = (attachment, host_veth, mac);
    Err(not_built())
}

/// Compares what the kernel holds for the attachment with what [`add`] would write.
///
/// # Errors
///
/// The first difference, in words.
pub fn check(attachment: &Attachment, host_veth: &IfName, mac: MacAddr) -> Result<()> {
    let _ = (attachment, host_veth, mac);
    Err(not_built())
}

/// Removes the attachment's guard, whichever suite wrote it.
///
/// # Errors
///
/// What the kernel said.
pub fn del(attachment: &Attachment) -> Result<()> {
    let _ = attachment;
    Err(not_built())
}

/// Removes the guards of every attachment of `network` that is not in `valid`. The reference's name no network and stay.
///
/// # Errors
///
/// What the kernel said.
pub fn gc(network: &NetworkName, valid: &BTreeSet<(ContainerId, IfName)>) -> Result<()> {
    let _ = (network, valid);
    Err(not_built())
}

fn not_built() -> Error {
    Error::internal("macspoofchk is not built yet")
}
