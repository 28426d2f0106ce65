//! Which of the kernel's two rule systems holds our rules.

/// A rule system of the kernel, and the way we write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Backend {
    /// xtables, written with `iptables-restore` in exactly the chains of the reference suite.
    Iptables,
    /// nf_tables, written over netlink into tables of our own; starts no program.
    Nftables,
}
