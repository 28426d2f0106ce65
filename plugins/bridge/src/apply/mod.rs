//! The plan, made so in the kernel.
//!
//! What belongs to the attachment registers its undo as soon as it exists. The bridge, its address, its VLAN port and the
//! node's forwarding are shared: they stay, for a neighbour may rest on them already.

mod bridge;
mod container;
mod gateway;
mod veth;

pub(crate) use bridge::{ensure as ensure_bridge, keep_mac, uplink_mtu};
pub(crate) use container::{configure as configure_container, delete_link};
pub(crate) use gateway::{enable_forwarding, ensure as ensure_gateway, release as release_gateway};
pub(crate) use veth::create as create_veth;
