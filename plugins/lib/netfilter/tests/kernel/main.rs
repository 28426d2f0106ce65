//! Netfilter as the kernel does it: each module in private worlds of its own.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

mod backends;
mod handover;
mod iptables;
mod macspoof;
mod nftables;
mod nftables_kill;
mod sctp;
mod topology;
mod traffic;
