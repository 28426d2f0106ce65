//! Who was there at an ADD, and who of them still is: boot, machine, our own namespaces, and the attachment's network
//! namespace.
//!
//! This is what tells the address or port of a living container from one that was left behind. A part that could not be
//! found out is `None`, and compares with nothing.

mod here;
mod namespaces;
mod netns;

pub use here::Here;
pub use namespaces::{Existence, Namespaces};
pub use netns::{NetnsIdentity, ParseIdentityError};
