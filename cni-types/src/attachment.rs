//! Who owns what a plugin makes.

use std::fmt;

use crate::{ContainerId, IfName, NetworkName};

/// An attachment: a container's interface on a network. Everything that a plugin makes belongs to one, and the
/// specification's GC names them so (section "GC"), within the network that is being collected.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Attachment {
    /// The network's `name`.
    pub network: NetworkName,
    /// `CNI_CONTAINERID`.
    pub container_id: ContainerId,
    /// `CNI_IFNAME`.
    pub ifname: IfName,
}

impl fmt::Display for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "container {} interface {} on network {}",
            self.container_id, self.ifname, self.network
        )
    }
}

impl fmt::Debug for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.network, self.container_id, self.ifname)
    }
}
