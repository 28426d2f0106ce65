//! The backend that writes iptables rules: the chains, names, comments and order of the reference suite, so that either
//! suite finds what the other wrote.
//!
//! Rules are added with one `iptables-restore --noflush`, which applies a script whole or not at all. Where iptables is the
//! implementation on nf_tables, that is the only program: the chains that matter are read over netlink, and what is only
//! removed is removed over netlink too. Elsewhere a table is read with one `iptables-save`, and removing is a script as well.
//! Read and write happen under [`crate::lock`], so that what the read showed is still true at the write.
//!
//! * `rule`, `saved`, `edit`: rules, the table that was read, and changes to it; pure.
//! * `reading`, `decode`, `extensions`: what the kernel holds, in the words of `iptables-save`.
//! * `names`: the reference's names.
//! * `record`, `neighbours`: which attachment owns which rule.
//! * `owner`, `ownership`, `collection`, `removal`: what an attachment may change, and the verbs for any set of rules.
//! * `conflict`: host ports that another container holds.
//! * `portmap`, `masquerade`, `firewall`: what the rules are.
//! * `exec`, `evidence`, `usable`: the programs, and when there is no need for them.
//! * `exemptions`: what an administrator keeps from being masqueraded.

mod collection;
mod conflict;
mod decode;
mod edit;
mod evidence;
mod exec;
mod exemptions;
mod extensions;
mod names;
mod neighbours;
mod owner;
mod ownership;
mod reading;
mod record;
mod removal;
mod rule;
mod saved;
mod usable;

pub(crate) mod firewall;
pub(crate) mod masquerade;
pub(crate) mod portmap;

pub(crate) use exec::{find, version};
pub(crate) use exemptions::exemptions;
pub use names::is_chain_name;
pub(crate) use ownership::holders;
pub(crate) use usable::probe;

/// Reads rules as those of iptables' tables.
#[cfg(feature = "rehearsal")]
pub(crate) fn rehearse(rules: &[nft::RuleState]) {
    for family in crate::Family::BOTH {
        for rule in rules {
            let _ = decode::decode(rule, family);
        }
    }
}

/// Reads the output of `iptables-save`.
#[cfg(feature = "rehearsal")]
pub(crate) fn rehearse_saved(text: &str) {
    for table in [saved::Table::Nat, saved::Table::Filter] {
        let _ = saved::Saved::parse(table, text);
    }
}
