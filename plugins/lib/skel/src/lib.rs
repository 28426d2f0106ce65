//! What every plugin has in common: from the environment and standard input to a verb's typed context, and back to one
//! JSON document and an exit code.
//!
//! A plugin implements [`Plugin`] and its `main` is [`run`]. Everything else happens here, once: the rules for variables,
//! versions and namespaces with their messages, delegation to IPAM plugins, undo of a failed ADD, a DEL that does all it
//! can, and the promise that standard output carries at most one document.

mod context;
mod delegate;
mod dispatch;
mod environment;
mod logger;
mod manual;
mod netns;
mod output;
mod plugin;
#[cfg(any(test, feature = "rehearsal"))]
mod rehearsal;
pub mod schema;
pub mod time;
mod undo;
mod unknown;

pub use context::{Add, Call, Check, Del, Gc, Status};
pub use dispatch::{run, run_suite};
pub use logger::log_as;
pub use netns::Netns;
pub use plugin::{Plugin, Registered};
#[cfg(any(test, feature = "rehearsal"))]
pub use rehearsal::rehearse;
pub use undo::{BestEffort, Undo};
