//! Whether the network namespace of a mapping's holder still exists.

use identity::{Existence, Namespaces, NetnsIdentity};
use skel::Netns;

/// The namespace as text, to be kept with the mapping. `None` for a path that is none.
pub(crate) fn identity(netns: &Netns) -> Option<String> {
    let identity = NetnsIdentity::of(netns.fd().ok()?, netns.path())?;
    Some(identity.to_string())
}

/// Whether the namespace exists. In doubt it does not count: then the last ADD gets the port, as with the reference.
pub(crate) fn exists(identity: &str) -> bool {
    let identity = identity.parse::<NetnsIdentity>();
    identity.is_ok_and(|identity| Namespaces::default().look_for(&identity) == Existence::Exists)
}
