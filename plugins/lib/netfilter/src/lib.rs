//! Published ports, masquerading and the MAC spoofing guard, as the kernel's netfilter holds them.
//!
//! A plugin says what an attachment needs ([`portmap::Published`], [`masquerade::Masquerade`]) and which [`Backend`] is
//! to hold it; how the backend arranges that is hidden here. Four verbs per feature:
//!
//! * `add` makes the kernel hold exactly what was asked for this attachment: nothing is left of an earlier `add`.
//! * `check` compares what the kernel holds with what `add` would write.
//! * `del` removes what the attachment has, in *every* backend and from the reference suite's rules too, because
//!   configurations and backends change between ADD and DEL. It needs nothing but the attachment's name.
//! * `gc` does the same for every attachment of a network that is not valid any more.
//!
//! `del` and `gc` look for evidence first: where nothing of ours can be, they start no program, and they never create a
//! table or a chain.

mod backend;
mod conntrack;
mod iptables;
mod lock;
mod nftables;
mod packet;
#[cfg(feature = "rehearsal")]
mod rehearsal;
mod sweep;

pub mod firewall;
pub mod handover;
pub mod macspoof;
pub mod masquerade;
pub mod node;
pub mod portmap;

pub use backend::{Backend, NODE_SETTINGS, ParseBackendError};
pub use lock::{Lock, exclusive as lock};
pub use packet::{Family, ParseProtocolError, Protocol};
#[cfg(feature = "rehearsal")]
pub use rehearsal::{rehearse_reply, rehearse_saved};
