//! The plan, made so in the kernel.
//!
//! What belongs to the attachment registers its undo as soon as it exists. The bridge, its address, its VLAN port and the
//! node's forwarding are shared: they stay, for a neighbour may rest on them already.

mod bridge;
mod gateway;
mod port;

pub(crate) use bridge::{ensure as ensure_bridge, keep_mac};
pub(crate) use gateway::{ensure as ensure_gateway, release as release_gateway};
pub(crate) use port::create as create_port;
