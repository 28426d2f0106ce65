//! What a node has of both rule systems, for whoever chooses one or looks for faults.

use std::path::PathBuf;

use cni_types::Result;

use crate::{iptables, nftables};

/// Where a program is: in PATH, or in the directories of the system, which a service's PATH need not list.
pub fn find_program(name: &str) -> Option<PathBuf> {
    iptables::find(name)
}

/// What `iptables --version` says, such as `iptables v1.8.9 (nf_tables)`, where the variant is in brackets; `None` where
/// iptables is not installed.
///
/// # Errors
///
/// It cannot be started.
pub fn iptables_version() -> Result<Option<String>> {
    iptables::version()
}

/// What `nft --version` says; `None` where nft is not installed. Only conditions of mappings need it.
///
/// # Errors
///
/// It cannot be started.
pub fn nft_version() -> Result<Option<String>> {
    nftables::nft_version()
}

/// The rules of the administrator that end the walk through iptables' nat POSTROUTING: with [`crate::Backend::Iptables`]
/// containers' connections meet them before their masquerading, with [`crate::Backend::Nftables`] they are masqueraded
/// all the same. Rules of the CNI plugins, kube-proxy, Docker and libvirt are not counted.
///
/// # Errors
///
/// The table cannot be read.
pub fn masquerade_exemptions() -> Result<Vec<String>> {
    iptables::exemptions()
}
