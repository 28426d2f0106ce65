//! For tests only: a private world to run plugins in, and a way to call them.
//!
//! A [`World`] is a thread with a network and a mount namespace of its own, in which /run, /var/lib/cni and the
//! temporary directory are new and /sys shows the new network. Programs started from it inherit it; nothing done in it
//! is seen outside, and it disappears with its last process. Many run in parallel.
//!
//! What a plugin leaves behind is found with [`kill_before`] and [`fail_at`], which stop it or make it fail at any of its
//! system calls, and with [`State`], which is all that can be seen of a world.
#![allow(
    clippy::disallowed_methods,
    reason = "tests start programs and read their environment"
)]
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test that cannot set up its world must stop"
)]
#![allow(
    clippy::print_stderr,
    reason = "a skipped test says so where the runner's reader looks"
)]

mod call;
mod fault;
mod kernel;
mod kill;
mod registers;
mod state;
mod syscall;
mod trace;
mod world;

pub use call::{Reply, call_plugin, plugin_directory};
pub use fault::{Injected, fail_at};
pub use kernel::{echoes_new_links, has_bridge_vlan_filtering};
pub use kill::{Killed, Points, kill_before};
pub use nix::errno::Errno;
pub use state::{MAY_STAY, State};
pub use trace::Invocation;
pub use world::{World, skip, world};
