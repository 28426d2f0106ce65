//! A rule of iptables as nf_tables holds it, back in the words of `iptables-save`.
//!
//! iptables-nft writes what nf_tables can say itself as expressions (nft-ipv4.c, nft-ipv6.c and nft.c of iptables) and leaves
//! the rest to xtables' own matches and targets ([`extensions`]). Its versions differ in what they put where: 1.8.7 leaves
//! ports and marks to xtables, 1.8.9 does not. Both are read. Read is what rules of container networks consist of; anything
//! else makes a rule that is not [`Held::whole`]: what was understood of it is there, but it is no text to compare or write.

use std::collections::BTreeMap;

use nft::{ExpressionState, Reader, RuleState, Verdict};

use super::extensions;
use super::rule::Rule;
use super::saved::Held;
use crate::{Family, Protocol};

const NFTA_DATA_VALUE: u16 = 1;
const NFTA_DATA_VERDICT: u16 = 2;

/// Reads a rule of a table of `family`.
pub(super) fn decode(state: &RuleState, family: Family) -> Held {
    let mut decoder = Decoder {
        family,
        registers: BTreeMap::new(),
        head: Default::default(),
        protocol: None,
        rest: Vec::new(),
    };
    let mut whole = true;
    match state.expressions() {
        // All of them, also behind one that is not understood: where the rule leads comes last.
        Ok(list) => list.iter().for_each(|next| whole &= decoder.step(next).is_some()),
        Err(_) => whole = false,
    }
    Held {
        rule: Rule::new()
            .args(decoder.head.into_iter().flatten().flatten())
            .args(decoder.rest),
        handle: Some(state.handle),
        whole,
    }
}

/// What a register holds.
#[derive(Clone)]
struct Loaded {
    source: Source,
    /// The bits that were kept, where not all.
    mask: Option<Vec<u8>>,
}

#[derive(Clone, Copy)]
enum Source {
    /// `enum nft_meta_keys`.
    Meta(u32),
    /// `enum nft_payload_bases`, offset, length.
    Payload(u32, u32, u32),
}

struct Decoder {
    family: Family,
    registers: BTreeMap<u32, Loaded>,
    /// What `iptables-save` prints first, whatever the order in the kernel: see [`Slot`].
    head: [Option<Vec<String>>; 5],
    protocol: Option<Protocol>,
    /// Matches and target, in the kernel's order.
    rest: Vec<String>,
}

/// The places in which `iptables-save` prints what every rule can match.
#[derive(Clone, Copy)]
enum Slot {
    Source,
    Destination,
    Input,
    Output,
    Protocol,
}

impl Decoder {
    /// `None` where the expression is not understood.
    fn step(&mut self, expression: &ExpressionState<'_>) -> Option<()> {
        let data = &expression.data;
        match expression.name {
            "counter" => Some(()),
            "meta" => self.load(data.u32(1)?, Source::Meta(data.u32(2)?)),
            "payload" => self.load(data.u32(1)?, Source::Payload(data.u32(2)?, data.u32(3)?, data.u32(4)?)),
            "bitwise" => self.mask(data),
            "cmp" => self.compare(data),
            "range" => self.range(data),
            "immediate" => self.verdict(data),
            // NFTA_MATCH_NAME, _REV, _INFO of nf_tables_compat.h; a target's have the same numbers.
            "match" => {
                let words = extensions::matching(data.text(1)?, data.u32(2)?, data.get(3)?)?;
                self.rest.extend(words);
                Some(())
            }
            "target" => {
                let name = data.text(1)?;
                self.rest.extend(["-j".to_owned(), name.to_owned()]);
                let words = extensions::target(name, data.u32(2)?, data.get(3)?, self.family)?;
                self.rest.extend(words);
                Some(())
            }
            _ => {
                // It may have loaded anything.
                self.registers.clear();
                None
            }
        }
    }

    fn load(&mut self, register: u32, source: Source) -> Option<()> {
        self.registers.insert(register, Loaded { source, mask: None });
        Some(())
    }

    /// NFTA_BITWISE_SREG, _DREG, _MASK, _XOR, _OP.
    fn mask(&mut self, data: &Reader<'_>) -> Option<()> {
        const NFT_BITWISE_MASK_XOR: u32 = 0;
        let loaded = self.registers.get(&data.u32(1)?)?.clone();
        let (to, mask, xor) = (data.u32(2)?, value(data, 4)?, value(data, 5)?);
        let only_masks = data.u32(6).is_none_or(|operation| operation == NFT_BITWISE_MASK_XOR);
        if !only_masks || loaded.mask.is_some() || xor.iter().any(|&byte| byte != 0) {
            self.registers.remove(&to);
            return None;
        }
        let mask = Some(mask.to_vec());
        self.registers.insert(to, Loaded { mask, ..loaded });
        Some(())
    }

    /// NFTA_CMP_SREG, _OP, _DATA.
    fn compare(&mut self, data: &Reader<'_>) -> Option<()> {
        let loaded = self.registers.get(&data.u32(1)?)?.clone();
        let (not, constant) = (negation(data.u32(2)?)?, value(data, 3)?);
        match (loaded.source, loaded.mask.as_deref()) {
            (Source::Meta(key), mask) => self.compare_meta(key, mask, not, constant),
            // NFT_PAYLOAD_NETWORK_HEADER
            (Source::Payload(1, offset, len), mask) => self.compare_address(offset, len, mask, not, constant),
            // NFT_PAYLOAD_TRANSPORT_HEADER, the destination port
            (Source::Payload(2, 2, 2), None) => {
                let port = port(constant)?;
                self.destination_port(not, port, port)
            }
            _ => None,
        }
    }

    fn compare_meta(&mut self, key: u32, mask: Option<&[u8]>, not: bool, constant: &[u8]) -> Option<()> {
        const NFT_META_MARK: u32 = 3;
        const NFT_META_IIFNAME: u32 = 6;
        const NFT_META_OIFNAME: u32 = 7;
        const NFT_META_L4PROTO: u32 = 16;
        match (key, mask) {
            (NFT_META_L4PROTO, None) => {
                let [number] = *constant else { return None };
                let protocol = Protocol::from_number(number)?;
                self.protocol = Some(protocol);
                self.put(Slot::Protocol, not, "-p", protocol.name().to_owned())
            }
            (NFT_META_IIFNAME, None) => self.put(Slot::Input, not, "-i", interface(constant)?),
            (NFT_META_OIFNAME, None) => self.put(Slot::Output, not, "-o", interface(constant)?),
            (NFT_META_MARK, mask) => {
                let number = |bytes: &[u8]| Some(u32::from_ne_bytes(bytes.try_into().ok()?));
                let mask = mask.map_or(Some(u32::MAX), number)?;
                self.rest.extend(extensions::mark(number(constant)?, mask, not));
                Some(())
            }
            _ => None,
        }
    }

    /// Offsets and lengths of `struct iphdr` and `struct ipv6hdr`. Of an address whose prefix ends with a byte, only those
    /// bytes are loaded.
    fn compare_address(
        &mut self,
        offset: u32,
        len: u32,
        mask: Option<&[u8]>,
        not: bool,
        constant: &[u8],
    ) -> Option<()> {
        let (source, destination) = match self.family {
            Family::V4 => (12, 16),
            Family::V6 => (8, 24),
        };
        let prefix = match mask {
            None => len.checked_mul(8)?,
            Some(mask) => prefix_of(mask)?,
        };
        if usize::try_from(len).ok()? != constant.len() {
            return None;
        }
        let network = match self.family {
            Family::V4 => format!("{}/{prefix}", std::net::Ipv4Addr::from(padded::<4>(constant)?)),
            Family::V6 => format!("{}/{prefix}", std::net::Ipv6Addr::from(padded::<16>(constant)?)),
        };
        match offset {
            _ if offset == source => self.put(Slot::Source, not, "-s", network),
            _ if offset == destination => self.put(Slot::Destination, not, "-d", network),
            _ => None,
        }
    }

    /// NFTA_RANGE_SREG, _OP, _FROM_DATA, _TO_DATA: ports.
    fn range(&mut self, data: &Reader<'_>) -> Option<()> {
        let loaded = self.registers.get(&data.u32(1)?)?;
        let not = negation(data.u32(2)?)?;
        let (first, last) = (port(value(data, 3)?)?, port(value(data, 4)?)?);
        match (loaded.source, &loaded.mask) {
            (Source::Payload(2, 2, 2), None) => self.destination_port(not, first, last),
            _ => None,
        }
    }

    fn destination_port(&mut self, not: bool, first: u16, last: u16) -> Option<()> {
        let protocol = self.protocol?.name();
        self.rest
            .extend(extensions::destination_port(protocol, not, first, last));
        Some(())
    }

    /// NFTA_IMMEDIATE_DREG, _DATA.
    fn verdict(&mut self, data: &Reader<'_>) -> Option<()> {
        const NFT_REG_VERDICT: u32 = 0;
        if data.u32(1)? != NFT_REG_VERDICT {
            return None;
        }
        let verdict = data.nested(2).ok()?.nested(NFTA_DATA_VERDICT).ok()?;
        let (option, target) = match Verdict::read(&verdict).ok()? {
            Verdict::Accept => ("-j", "ACCEPT".to_owned()),
            Verdict::Drop => ("-j", "DROP".to_owned()),
            Verdict::Return => ("-j", "RETURN".to_owned()),
            Verdict::Jump(chain) => ("-j", chain),
            Verdict::Goto(chain) => ("-g", chain),
        };
        self.rest.extend([option.to_owned(), target]);
        Some(())
    }

    /// Fills a place of the head; twice is more than iptables can say.
    fn put(&mut self, slot: Slot, not: bool, option: &str, word: String) -> Option<()> {
        let place = self.head.get_mut(slot as usize).filter(|place| place.is_none())?;
        let negation = not.then(|| "!".to_owned());
        *place = Some(negation.into_iter().chain([option.to_owned(), word]).collect());
        Some(())
    }
}

fn value<'a>(data: &Reader<'a>, kind: u16) -> Option<&'a [u8]> {
    data.nested(kind).ok()?.get(NFTA_DATA_VALUE)
}

/// NFT_CMP_EQ and NFT_CMP_NEQ, which have the numbers of NFT_RANGE_EQ and NFT_RANGE_NEQ.
fn negation(operator: u32) -> Option<bool> {
    match operator {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

fn port(bytes: &[u8]) -> Option<u16> {
    bytes.try_into().ok().map(u16::from_be_bytes)
}

/// A name is compared with its terminating zero; without it, it is the beginning of names, which iptables writes `NAME+`.
fn interface(constant: &[u8]) -> Option<String> {
    let mut parts = constant.split(|&byte| byte == 0);
    let name = std::str::from_utf8(parts.next()?).ok()?;
    match parts.next() {
        Some(_) => Some(name.to_owned()),
        None => Some(format!("{name}+")),
    }
}

/// `None` where the bits of a mask are not all at its beginning.
fn prefix_of(mask: &[u8]) -> Option<u32> {
    let mut beginning = 0;
    for byte in mask {
        beginning += byte.leading_ones();
        if *byte != u8::MAX {
            break;
        }
    }
    let set: u32 = mask.iter().map(|byte| byte.count_ones()).sum();
    (beginning == set).then_some(beginning)
}

fn padded<const N: usize>(bytes: &[u8]) -> Option<[u8; N]> {
    let mut whole = [0; N];
    whole.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(whole)
}

#[cfg(test)]
mod tests {
    use super::super::exec::Tool;
    use super::super::reading::wire_table;
    use super::super::saved::{Saved, Table};
    use super::*;
    use nft::Connection;
    use testkit::World;

    /// What the plugins write, and its neighbourhood: each must come out as `iptables-save` prints it.
    const UNDERSTOOD: &str = r#"
nat PREROUTING -m addrtype --dst-type LOCAL -j C2
nat POSTROUTING -m comment --comment "CNI portfwd requiring masquerade" -j C2
nat POSTROUTING -s HOST -m comment --comment "name: \"net1\" id: \"c1\"" -j C2
nat C -s NETWORK -p tcp -m tcp --dport 8080 -j C2
nat C -s NETWORK -d HOST -i br0 ! -o br0 -p udp -m udp --dport 8080:8090 -j C2
nat C -p sctp -m sctp --dport 132 -j DNAT --to-destination TO
nat C -p tcp -m tcp --dport 80 -j DNAT --to-destination ONLY
nat C -p tcp -m tcp --dport 80:90 -j DNAT --to-destination TO-90/70
nat C ! -d ODD -m comment --comment x -j MASQUERADE
nat C -p tcp -m comment --comment "dnat name: \"net1\" id: \"c1\"" -m multiport --dports 80,90:95,1000 -j C2
nat C -p udp -m multiport ! --dports 80 -j RETURN
nat C -m comment --comment "CNI portfwd masquerade mark" -j MARK --set-xmark 0x2000/0x2000
nat C -m mark --mark 0x80000000/0x80000000 -j MASQUERADE
nat C -m mark ! --mark 0x1 -g C2
nat C -j ACCEPT
nat C -p tcp
filter C -d HOST -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
filter C -i br0 -o br+ -m comment --comment "" -j DROP
filter C ! -i fifteen-letters ! -s ODD
"#;

    /// What others write.
    const OTHERS: &str = r#"
nat POSTROUTING -s NETWORK -j MASQUERADE --random-fully
nat C -m statistic --mode random --probability 0.5 -j C2
nat C -p tcp -m tcp --sport 80 -j C2
nat C -p tcp -m tcp --tcp-flags SYN SYN -j C2
nat C -p tcp -m tcp --dport 80: -j DNAT --to-destination TO --persistent
filter C -m conntrack --ctstate NEW -j C2
filter C -p esp -j REJECT
"#;

    fn lines(rules: &str, family: Family) -> Vec<(Table, String)> {
        let words = match family {
            Family::V4 => [
                ("HOST", "10.1.0.2/32"),
                ("NETWORK", "10.1.0.0/24"),
                ("TO", "10.1.0.2:80"),
                ("ONLY", "10.1.0.2"),
                ("ODD", "224.0.0.0/3"),
            ],
            Family::V6 => [
                ("HOST", "fd00::2/128"),
                ("NETWORK", "fd00::/64"),
                ("TO", "[fd00::2]:80"),
                ("ONLY", "fd00::2"),
                ("ODD", "fe80::/10"),
            ],
        };
        let mut lines = Vec::new();
        for line in rules.trim().lines() {
            let (table, rule) = line.split_once(' ').unwrap();
            let rule = rule.split(' ').map(|word| {
                let known = words.iter().find(|(name, _)| {
                    word.strip_prefix(name)
                        .is_some_and(|rest| !rest.starts_with(char::is_alphanumeric))
                });
                known.map_or(word.to_owned(), |(name, value)| word.replacen(name, value, 1))
            });
            let table = if table == "nat" { Table::Nat } else { Table::Filter };
            lines.push((table, rule.collect::<Vec<_>>().join(" ")));
        }
        lines
    }

    /// Writes the rules with iptables.
    fn write(w: &World, rules: &[(Table, String)], family: Family) {
        let mut script = String::new();
        for table in [Table::Nat, Table::Filter] {
            script.push_str(&format!("*{}\n:C - [0:0]\n:C2 - [0:0]\n", table.name()));
            for (_, rule) in rules.iter().filter(|(of, _)| *of == table) {
                script.push_str(&format!("-A {rule}\n"));
            }
            script.push_str("COMMIT\n");
        }
        let file = w.tmp().join("script");
        std::fs::write(&file, script).unwrap();
        let program = if family == Family::V4 { "iptables" } else { "ip6tables" };
        w.sh(&format!("{program}-restore < {}", file.display()));
    }

    /// The rules of a chain as the kernel and as the program shows them.
    fn both(table: Table, chain: &str, family: Family) -> (Vec<Held>, Vec<Rule>) {
        let mut kernel = Connection::open().unwrap();
        let rules = kernel.rules(&wire_table(table, family), chain).unwrap();
        let shown: Saved = Tool::of(family).save(table).unwrap();
        let decoded = rules.iter().map(|rule| decode(rule, family)).collect();
        (decoded, shown.rules(chain).cloned().collect())
    }

    #[test]
    fn rules_of_plugins_read_as_iptables_save_prints_them() {
        testkit::world(|w| {
            for family in Family::BOTH {
                let rules = lines(UNDERSTOOD, family);
                write(w, &rules, family);
                let mut count = 0;
                for (table, chain) in [
                    (Table::Nat, "PREROUTING"),
                    (Table::Nat, "POSTROUTING"),
                    (Table::Nat, "C"),
                    (Table::Filter, "C"),
                ] {
                    let (decoded, shown) = both(table, chain, family);
                    assert_eq!(decoded.len(), shown.len());
                    count += shown.len();
                    for (decoded, shown) in decoded.iter().zip(shown) {
                        assert_eq!((&decoded.rule, decoded.whole), (&shown, true));
                        assert!(decoded.handle.is_some());
                    }
                }
                assert_eq!(count, rules.len());
            }
        });
    }

    #[test]
    fn what_is_not_understood_is_never_taken_for_whole() {
        testkit::world(|w| {
            for family in Family::BOTH {
                write(w, &lines(OTHERS, family), family);
                for (table, chain) in [(Table::Nat, "POSTROUTING"), (Table::Nat, "C"), (Table::Filter, "C")] {
                    let (decoded, shown) = both(table, chain, family);
                    assert!(!shown.is_empty());
                    for (decoded, shown) in decoded.iter().zip(shown) {
                        assert!(!decoded.whole, "{shown}");
                        assert_eq!(decoded.rule.target(), shown.target());
                        assert!(shown.covers(&decoded.rule), "{shown}: {}", decoded.rule);
                    }
                }
            }
        });
    }

    #[test]
    fn only_masks_that_are_prefixes_are_networks() {
        assert_eq!(prefix_of(&[255, 255, 128, 0]), Some(17));
        assert_eq!(prefix_of(&[0; 4]), Some(0));
        assert_eq!(prefix_of(&[255; 16]), Some(128));
        assert_eq!(prefix_of(&[255, 0, 255, 0]), None);
        assert_eq!(prefix_of(&[0, 255, 0, 0]), None);
        assert_eq!(prefix_of(&[254, 128]), None);
    }

    #[test]
    fn a_name_without_its_end_is_a_beginning() {
        assert_eq!(interface(b"br0\0").as_deref(), Some("br0"));
        assert_eq!(interface(b"br0\0\0\0\0").as_deref(), Some("br0"));
        assert_eq!(interface(b"br").as_deref(), Some("br+"));
        assert_eq!(interface(b"\xff\0"), None);
    }
}
