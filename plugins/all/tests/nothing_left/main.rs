//! Nothing is left behind: whatever moment a plugin is killed at, whatever call fails, however many run at once.
//!
//! By default plugins are killed before the system calls that may change something, each call that may fail does so with one
//! errno, and the chain with iptables is tried at some points only; `FERRULE_KILL=all` tries every call and every errno.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

mod chain;
mod fault;
mod kill;
mod malformed;
mod never_added;
mod storm;
