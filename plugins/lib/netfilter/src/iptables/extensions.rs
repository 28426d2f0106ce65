//! xtables' matches and targets in the words of `iptables-save`.
//!
//! The layouts are those of the kernel's include/uapi/linux/netfilter/xt_*.h and nf_nat.h, numbers in the machine's byte
//! order but for ports of address translation. Only the revisions are read that iptables takes on kernels since 5.10, and of
//! each only what rules of container networks say: `None` is anything else.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::Family;

/// The words of a match.
pub(super) fn matching(name: &str, revision: u32, info: &[u8]) -> Option<Vec<String>> {
    match (name, revision) {
        ("comment", 0) => comment(info),
        ("multiport", 1) => multiport(info),
        ("tcp", 0) => tcp(info),
        ("udp", 0) => udp(info),
        ("sctp", 0) => sctp(info),
        // struct xt_mark_mtinfo1: mark, mask, invert.
        ("mark", 1) => Some(mark(u32_at(info, 0)?, u32_at(info, 4)?, flag(u8_at(info, 8)?)?)),
        ("addrtype", 1) => addrtype(info),
        ("conntrack", 3) => conntrack(info),
        _ => None,
    }
}

/// The words of a target behind `-j NAME`.
pub(super) fn target(name: &str, revision: u32, info: &[u8], family: Family) -> Option<Vec<String>> {
    match (name, revision) {
        ("DNAT", 2) => dnat(info, family),
        // struct xt_mark_tginfo2: mark, mask.
        ("MARK", 2) => {
            let mark = format!("{:#x}/{:#x}", u32_at(info, 0)?, u32_at(info, 4)?);
            Some(words(&["--set-xmark", &mark]))
        }
        ("MASQUERADE", 0) => masquerade(info, family),
        _ => None,
    }
}

/// The words of a comparison of the packet's mark.
pub(super) fn mark(mark: u32, mask: u32, not: bool) -> Vec<String> {
    let value = match mask {
        u32::MAX => format!("{mark:#x}"),
        _ => format!("{mark:#x}/{mask:#x}"),
    };
    option("mark", not, "--mark", &value)
}

/// The words of a comparison of the destination port.
pub(super) fn destination_port(protocol: &str, not: bool, first: u16, last: u16) -> Vec<String> {
    option(protocol, not, "--dport", &range(first, last))
}

/// struct xt_comment_info.
fn comment(info: &[u8]) -> Option<Vec<String>> {
    let text = info.split(|&byte| byte == 0).next()?;
    Some(option("comment", false, "--comment", std::str::from_utf8(text).ok()?))
}

/// struct xt_multiport_v1: flags, count, fifteen ports, for each whether the next is the end of a range, invert.
fn multiport(info: &[u8]) -> Option<Vec<String>> {
    const XT_MULTIPORT_DESTINATION: u8 = 1;
    const PORTS: usize = 2;
    const FLAGS: usize = 32;
    const INVERT: usize = 47;
    if u8_at(info, 0)? != XT_MULTIPORT_DESTINATION {
        return None;
    }
    let mut ports = Vec::new();
    let mut at = 0..usize::from(u8_at(info, 1)?).min(FLAGS - PORTS);
    while let Some(n) = at.next() {
        let first = u16_at(info, PORTS + 2 * n)?;
        ports.push(match flag(u8_at(info, FLAGS + n)?)? {
            false => first.to_string(),
            true => format!("{first}:{}", u16_at(info, PORTS + 2 * at.next()?)?),
        });
    }
    let not = flag(u8_at(info, INVERT)?)?;
    Some(option("multiport", not, "--dports", &ports.join(",")))
}

/// struct xt_tcp: source ports, destination ports, option, two bytes for TCP's flags, what is inverted.
fn tcp(info: &[u8]) -> Option<Vec<String>> {
    let looks_at_more = info.get(8..11)?.iter().any(|&byte| byte != 0);
    (!looks_at_more).then(|| ports("tcp", info, 0, 4, u8_at(info, 11)?.into()))?
}

/// struct xt_udp: source ports, destination ports, what is inverted.
fn udp(info: &[u8]) -> Option<Vec<String>> {
    ports("udp", info, 0, 4, u8_at(info, 8)?.into())
}

/// struct xt_sctp_info: destination ports, source ports, 276 bytes for chunks, what is looked at, what is inverted.
fn sctp(info: &[u8]) -> Option<Vec<String>> {
    const XT_SCTP_DEST_PORTS: u32 = 2;
    if u32_at(info, 284)? != XT_SCTP_DEST_PORTS {
        return None;
    }
    let not = inversion(u32_at(info, 288)?)?;
    Some(destination_port("sctp", not, u16_at(info, 0)?, u16_at(info, 2)?))
}

fn ports(protocol: &str, info: &[u8], sources: usize, destinations: usize, inverted: u32) -> Option<Vec<String>> {
    let pair = |at: usize| Some((u16_at(info, at)?, u16_at(info, at + 2)?));
    let not = inversion(inverted)?;
    match (pair(sources)?, pair(destinations)?) {
        ((0, u16::MAX), (0, u16::MAX)) if !not => Some(words(&["-m", protocol])),
        ((0, u16::MAX), (first, last)) => Some(destination_port(protocol, not, first, last)),
        _ => None,
    }
}

/// XT_TCP_INV_DSTPT, XT_UDP_INV_DSTPT and XT_SCTP_DEST_PORTS alike: the destination port.
fn inversion(inverted: u32) -> Option<bool> {
    match inverted {
        0 => Some(false),
        2 => Some(true),
        _ => None,
    }
}

/// struct xt_addrtype_info_v1: types of the source, types of the destination, flags.
fn addrtype(info: &[u8]) -> Option<Vec<String>> {
    /// 1 << RTN_LOCAL of rtnetlink.h.
    const LOCAL: u16 = 4;
    match (u16_at(info, 0)?, u16_at(info, 2)?, u32_at(info, 4)?) {
        (0, LOCAL, 0) => Some(option("addrtype", false, "--dst-type", "LOCAL")),
        _ => None,
    }
}

/// struct xt_conntrack_mtinfo3, of which only the states matter that the reference's rules have.
fn conntrack(info: &[u8]) -> Option<Vec<String>> {
    const XT_CONNTRACK_STATE: u16 = 1;
    /// XT_CONNTRACK_STATE_BIT of IP_CT_ESTABLISHED and of IP_CT_RELATED.
    const RELATED_ESTABLISHED: u16 = 2 | 4;
    match (u16_at(info, 146)?, u16_at(info, 148)?, u16_at(info, 150)?) {
        (XT_CONNTRACK_STATE, 0, RELATED_ESTABLISHED) => {
            Some(option("conntrack", false, "--ctstate", "RELATED,ESTABLISHED"))
        }
        _ => None,
    }
}

/// struct nf_nat_range2: flags, first and last address, first and last port, the port that the range began with.
fn dnat(info: &[u8], family: Family) -> Option<Vec<String>> {
    const MAP_IPS: u32 = 1;
    const PROTO_SPECIFIED: u32 = 2;
    const PROTO_OFFSET: u32 = 32;
    let flags = u32_at(info, 0)?;
    if flags & MAP_IPS == 0 || flags & !(MAP_IPS | PROTO_SPECIFIED | PROTO_OFFSET) != 0 {
        return None;
    }
    let (first, last) = (address_at(info, 4, family)?, address_at(info, 20, family)?);
    let port = |at: usize| u16_at(info, at).map(u16::from_be);
    let (low, high, base) = (port(36)?, port(38)?, port(40)?);
    if first != last {
        return None;
    }
    let destination = match (family, flags & PROTO_SPECIFIED != 0) {
        (_, false) => first,
        (Family::V4, true) => format!("{first}:{}", ports_of(low, high, base, flags & PROTO_OFFSET != 0)),
        (Family::V6, true) => format!("[{first}]:{}", ports_of(low, high, base, flags & PROTO_OFFSET != 0)),
    };
    Some(words(&["--to-destination", &destination]))
}

fn ports_of(low: u16, high: u16, base: u16, shifted: bool) -> String {
    match (low == high, shifted) {
        (true, false) => low.to_string(),
        (true, true) => format!("{low}/{base}"),
        (false, false) => format!("{low}-{high}"),
        (false, true) => format!("{low}-{high}/{base}"),
    }
}

/// struct nf_nat_ipv4_multi_range_compat with its one range, or struct nf_nat_range: without flags, all else is unused.
fn masquerade(info: &[u8], family: Family) -> Option<Vec<String>> {
    let flags = match family {
        Family::V4 => u32_at(info, 4)?,
        Family::V6 => u32_at(info, 0)?,
    };
    (flags == 0).then(Vec::new)
}

/// union nf_inet_addr.
fn address_at(info: &[u8], at: usize, family: Family) -> Option<String> {
    Some(match family {
        Family::V4 => Ipv4Addr::from(bytes_at::<4>(info, at)?).to_string(),
        Family::V6 => Ipv6Addr::from(bytes_at::<16>(info, at)?).to_string(),
    })
}

fn option(module: &str, not: bool, option: &str, value: &str) -> Vec<String> {
    match not {
        false => words(&["-m", module, option, value]),
        true => words(&["-m", module, "!", option, value]),
    }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

fn range(first: u16, last: u16) -> String {
    match first == last {
        true => first.to_string(),
        false => format!("{first}:{last}"),
    }
}

fn flag(byte: u8) -> Option<bool> {
    match byte {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

fn bytes_at<const N: usize>(info: &[u8], at: usize) -> Option<[u8; N]> {
    info.get(at..)?.first_chunk().copied()
}

fn u8_at(info: &[u8], at: usize) -> Option<u8> {
    info.get(at).copied()
}

fn u16_at(info: &[u8], at: usize) -> Option<u16> {
    bytes_at(info, at).map(u16::from_ne_bytes)
}

fn u32_at(info: &[u8], at: usize) -> Option<u32> {
    bytes_at(info, at).map(u32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The numbers one after the other, in the machine's byte order.
    fn info(numbers: &[(u32, usize)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for &(number, size) in numbers {
            match size {
                1 => bytes.push(u8::try_from(number).unwrap()),
                2 => bytes.extend(u16::try_from(number).unwrap().to_ne_bytes()),
                _ => bytes.extend(number.to_ne_bytes()),
            }
        }
        bytes
    }

    fn words_of(found: Option<Vec<String>>) -> String {
        found.map_or("?".to_owned(), |words| words.join(" "))
    }

    /// As 1.8.7 writes ports and marks, which later versions say in nf_tables' own expressions.
    #[test]
    fn ports_and_marks_of_older_versions_are_read() {
        let tcp = |ports: [u32; 4], more: [u32; 4]| {
            let bytes = [ports.map(|port| (port, 2)), more.map(|byte| (byte, 1))].concat();
            words_of(matching("tcp", 0, &info(&bytes)))
        };
        assert_eq!(tcp([0, 65535, 80, 80], [0; 4]), "-m tcp --dport 80");
        assert_eq!(tcp([0, 65535, 80, 90], [0; 4]), "-m tcp --dport 80:90");
        assert_eq!(tcp([0, 65535, 80, 80], [0, 0, 0, 2]), "-m tcp ! --dport 80");
        assert_eq!(tcp([0, 65535, 0, 65535], [0; 4]), "-m tcp");
        assert_eq!(tcp([1, 2, 80, 80], [0; 4]), "?", "source ports");
        assert_eq!(tcp([0, 65535, 80, 80], [0, 2, 2, 0]), "?", "TCP's flags");
        let udp = info(&[(0, 2), (65535, 2), (53, 2), (53, 2), (0, 1)]);
        assert_eq!(words_of(matching("udp", 0, &udp)), "-m udp --dport 53");
        let marked = |mark, mask, not| words_of(matching("mark", 1, &info(&[(mark, 4), (mask, 4), (not, 1)])));
        assert_eq!(marked(0x2000, 0x2000, 0), "-m mark --mark 0x2000/0x2000");
        assert_eq!(marked(0x2000, u32::MAX, 1), "-m mark ! --mark 0x2000");
    }

    #[test]
    fn a_list_of_ports_may_have_ranges() {
        let list = |kind: u8, count: u8, flags: &[usize], invert: u8| {
            let mut bytes = vec![0; 48];
            bytes[..2].copy_from_slice(&[kind, count]);
            for (at, port) in [8080u16, 90, 95].into_iter().enumerate() {
                bytes[2 + 2 * at..4 + 2 * at].copy_from_slice(&port.to_ne_bytes());
            }
            flags.iter().for_each(|at| bytes[32 + at] = 1);
            bytes[47] = invert;
            words_of(matching("multiport", 1, &bytes))
        };
        assert_eq!(list(1, 3, &[1], 0), "-m multiport --dports 8080,90:95");
        assert_eq!(list(1, 1, &[], 1), "-m multiport ! --dports 8080");
        assert_eq!(list(0, 1, &[], 0), "?", "source ports");
        assert_eq!(list(1, 2, &[1], 0), "?", "a range without an end");
    }

    #[test]
    fn other_revisions_and_flags_are_not_guessed() {
        assert_eq!(matching("multiport", 2, &[1; 64]), None);
        assert_eq!(matching("owner", 1, &[0; 64]), None);
        assert_eq!(target("DNAT", 1, &[1; 64], Family::V4), None);
        for flags in [0, 1 | 4, 1 | 8, 2] {
            let mut bytes = vec![0; 44];
            bytes[..4].copy_from_slice(&u32::to_ne_bytes(flags));
            assert_eq!(target("DNAT", 2, &bytes, Family::V4), None, "{flags}");
        }
        let random_ports = info(&[(1, 4), (4, 4), (0, 4), (0, 4), (0, 4)]);
        assert_eq!(target("MASQUERADE", 0, &random_ports, Family::V4), None);
    }

    proptest! {
        #[test]
        fn reading_never_panics(bytes: Vec<u8>, revision in 0u32..4) {
            for name in ["comment", "multiport", "tcp", "udp", "sctp", "mark", "addrtype", "conntrack"] {
                let _ = matching(name, revision, &bytes);
            }
            for name in ["DNAT", "MARK", "MASQUERADE"] {
                let _ = (target(name, revision, &bytes, Family::V4), target(name, revision, &bytes, Family::V6));
            }
        }
    }
}
