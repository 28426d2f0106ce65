//! The backend that writes iptables rules: the chains, names, comments and order of the reference suite, so that either
//! suite finds what the other wrote.
//!
//! A table is read with one `iptables-save` and changed with one `iptables-restore --noflush`, which applies a script
//! whole or not at all. Both run under [`crate::lock`], so that what the read showed is still true at the write.
//!
//! * `rule`, `saved`, `edit`: rules, the table that was read, and changes to it; pure.
//! * `names`: the reference's names.
//! * `record`, `ownership`: which attachment owns which rule, and the verbs for any set of rules.
//! * `conflict`: host ports that another container holds.
//! * `portmap`, `masquerade`, `firewall`: what the rules are.
//! * `exec`, `evidence`: the programs, and when there is no need for them.
//! * `exemptions`: what an administrator keeps from being masqueraded.

mod conflict;
mod edit;
mod evidence;
mod exec;
mod exemptions;
mod names;
mod ownership;
mod record;
mod rule;
mod saved;

pub(crate) mod firewall;
pub(crate) mod masquerade;
pub(crate) mod portmap;

pub(crate) use exec::{is_installed, version};
pub(crate) use exemptions::exemptions;
pub use names::is_chain_name;
pub(crate) use ownership::holders;
