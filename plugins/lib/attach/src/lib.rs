//! What the plugins that make an interface share: a veth pair into the container, the addresses and routes on its end,
//! forwarding and masquerading on the node; and the comparison of all that with a result.
//!
//! The rules are the reference's for every interface plugin, so they live here once.

mod layer3;
mod masquerade;
mod mtu;
mod veth;

pub mod check;
pub mod routes;

pub use layer3::{Dad, add_routes, bring_up, enable_forwarding, first_address};
pub use masquerade::{Masquerade, MasqueradeKeys};
pub use mtu::{Mtu, MtuKeys};
pub use veth::{Pair, PairRequest, create_pair, delete_host_veth, delete_interface};
