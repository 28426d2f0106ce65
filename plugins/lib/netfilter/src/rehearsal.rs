//! Reading rules and records that anybody might have written, for fuzzers and for tests with what they found.

use crate::{iptables, nftables};

/// Reads a netlink datagram with elements of our sets or rules of iptables' tables, as DEL, GC and CHECK do.
pub fn rehearse_reply(datagram: &[u8]) {
    let (elements, rules) = nft::rehearse(datagram);
    nftables::rehearse(elements);
    iptables::rehearse(&rules);
}

/// Reads the output of `iptables-save`.
pub fn rehearse_saved(text: &str) {
    iptables::rehearse_saved(text);
}
