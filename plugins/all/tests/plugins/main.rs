//! The plugins as a runtime sees them: the installed executables, called in a private world.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

mod bridge;
mod chains;
mod firewall;
mod firewalld;
mod install;
mod kill_install;
mod logging;
mod loopback;
mod manual;
mod node;
mod portmap;
mod protocol;
mod ptp;
mod reference;
mod static_ipam;
mod suite;
mod troubleshooting;
mod tuning;
mod upgrade;
mod vlan;
