//! nf_tables over netlink: tables, chains, rules, sets and maps, written in atomic batches and read back.
//!
//! This is a wire layer and decides nothing: what a rule means and who owns an element is its caller's matter. It talks
//! blocking netlink on the caller's thread, in the network namespace in which the [`Connection`] was opened, and starts
//! no program.
//!
//! ```no_run
//! # fn main() -> Result<(), nft::Error> {
//! use nft::{Batch, Connection, Family, Set, Table, types};
//!
//! let table = Table::new(Family::Inet, "example");
//! let mut connection = Connection::open()?;
//! let generation = connection.generation()?;
//! let mut batch = Batch::new();
//! batch.add_table(&table);
//! batch.add_set(&table, &Set::keys("seen", &[types::IPV4_ADDR]));
//! // All or nothing, and nothing at all if anybody changed the ruleset since.
//! connection.commit(&batch, Some(generation))?;
//! # Ok(())
//! # }
//! ```
//!
//! # Why not netlink-packet-netfilter
//!
//! It is maintained and its licence suits. Of the nine expressions that rules here consist of, 0.4.0 has types for five;
//! fib, ct, nat and masq would be byte strings built by hand, next to attributes built in types. It leaves sequence numbers,
//! batches with a generation, error texts and the comparison of rules to its caller, which is most of this crate, and brings
//! procedural macros (derive_more 0.99) and zerocopy for encoding that is a hundred lines here. The encoding is the small
//! part, so it is our own; netlink-sys carries the bytes.
//!
//! # Sources
//!
//! Numbers and layouts are those of the kernel's include/uapi/linux/netfilter/nf_tables.h, nfnetlink.h and
//! include/uapi/linux/netlink.h. User data follows libnftnl's udata.h, so that `nft` shows comments as such.

mod attributes;
mod batch;
mod connection;
mod error;
mod expression;
mod message;
mod query;
#[cfg(feature = "rehearsal")]
mod rehearsal;
mod ruleset;
mod user_data;

pub use attributes::{Attributes, Reader, covers};
pub use batch::Batch;
pub use connection::{Connection, Request};
pub use error::Error;
pub use expression::{Direction, Expression, Meta, NatKind, PayloadBase, Register, expressions_attribute};
pub use query::{BaseChainState, ChainState, ExpressionState, Extension, RuleState};
#[cfg(feature = "rehearsal")]
pub use rehearsal::rehearse;
pub use ruleset::{Chain, DataType, Element, Family, Hook, Set, SetValue, Table, Value, Verdict, concatenate, types};
pub use user_data::UserData;
