//! The expressions that rules consist of.

use crate::attributes::Attributes;
use crate::ruleset::{Family, Verdict};

/// One of the sixteen 32-bit registers in which a rule keeps what it loads. A longer value, or the next field of a
/// concatenation, continues in the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Register(u8);

impl Register {
    /// The first register.
    pub const FIRST: Register = Register(0);

    /// The register behind a field of `size` bytes that begins here.
    #[must_use]
    pub const fn after(self, size: u8) -> Register {
        Register(self.0 + size.div_ceil(4))
    }

    /// The number on the wire. The kernel answers with the old name of every fourth (`nft_dump_register`), so the same is
    /// written, that both compare.
    fn number(self) -> u32 {
        const NFT_REG_1: u32 = 1;
        const NFT_REG32_00: u32 = 8;
        match self.0 % 4 {
            0 => NFT_REG_1 + u32::from(self.0 / 4),
            _ => NFT_REG32_00 + u32::from(self.0),
        }
    }
}

/// A fact about a packet that is not in it (`enum nft_meta_keys`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Meta {
    /// The name of the interface it came from: 16 bytes, zero filled.
    InputInterface = 6,
    /// The name of the interface it leaves by: 16 bytes, zero filled.
    OutputInterface = 7,
    /// The family in an inet table: one byte, [`Family::Ipv4`] or [`Family::Ipv6`].
    NetworkProtocol = 15,
    /// The transport protocol: one byte.
    TransportProtocol = 16,
}

/// Where an offset counts from (`enum nft_payload_bases`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum PayloadBase {
    /// The Ethernet header.
    Link = 0,
    /// The IP header.
    Network = 1,
    /// The TCP, UDP or SCTP header.
    Transport = 2,
}

/// Which side of a connection is translated (`enum nft_nat_types`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum NatKind {
    /// Its source.
    Source = 0,
    /// Its destination.
    Destination = 1,
}

/// A direction of a connection (`enum ip_conntrack_dir`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Direction {
    /// As it was opened.
    Original = 0,
    /// As it is answered.
    Reply = 1,
}

/// An expression. A rule's are carried out in order, until one that compares does not match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expression {
    /// Loads a fact about the packet.
    Meta(Meta, Register),
    /// Loads bytes of the packet.
    Payload {
        /// Where the offset counts from.
        base: PayloadBase,
        /// The first byte.
        offset: u32,
        /// How many bytes.
        len: u32,
        /// Where to.
        to: Register,
    },
    /// Loads what the packet is to its connection, one of the `NF_CT_STATE_*` bits (nf_conntrack_common.h): four bytes in
    /// the machine's order.
    ConnectionState(Register),
    /// Loads the connection's `IPS_*` bits (nf_conntrack_common.h): four bytes in the machine's order.
    ConnectionStatus(Register),
    /// Loads the `RTN_*` type that the routing tables give the destination: four bytes in the machine's order.
    DestinationType(Register),
    /// Keeps only the bits of a mask.
    Mask(Register, Vec<u8>),
    /// Goes on if the register holds the value.
    Equal(Register, Vec<u8>),
    /// Goes on if the register does not hold the value.
    NotEqual(Register, Vec<u8>),
    /// Looks up a key and goes on if it is there.
    InSet(String, Register),
    /// Looks up a key and loads what it leads to.
    MapTo(String, Register, Register),
    /// Looks up a key and takes the verdict that it leads to.
    VerdictMap(String, Register),
    /// Takes a verdict.
    Verdict(Verdict),
    /// Translates to an address, and a port where one is given.
    Nat {
        /// Which side.
        kind: NatKind,
        /// The family of the address: [`Family::Ipv4`] or [`Family::Ipv6`].
        family: Family,
        /// The register of the address.
        address: Register,
        /// The register of the port.
        port: Option<Register>,
    },
    /// Translates the source to the address of the interface that the packet leaves by.
    Masquerade,
}

/// The verdict register.
const NFT_REG_VERDICT: u32 = 0;

const NFTA_RULE_EXPRESSIONS: u16 = 4;
const NFTA_LIST_ELEM: u16 = 1;
const NFTA_EXPR_NAME: u16 = 1;
const NFTA_EXPR_DATA: u16 = 2;
const NFTA_DATA_VALUE: u16 = 1;

/// A rule's expressions as its attribute, for a batch or to compare with what the kernel has (see [`crate::covers`]).
pub fn expressions_attribute(expressions: &[Expression]) -> Attributes {
    let mut rule = Attributes::new();
    rule.nest(NFTA_RULE_EXPRESSIONS, |list| {
        for expression in expressions {
            list.nest(NFTA_LIST_ELEM, |element| {
                element
                    .text(NFTA_EXPR_NAME, expression.name())
                    .nest(NFTA_EXPR_DATA, |data| expression.write(data));
            });
        }
    });
    rule
}

impl Expression {
    /// The name under which the kernel registers it.
    fn name(&self) -> &'static str {
        match self {
            Expression::Meta(..) => "meta",
            Expression::Payload { .. } => "payload",
            Expression::ConnectionState(_) | Expression::ConnectionStatus(_) => "ct",
            Expression::DestinationType(_) => "fib",
            Expression::Mask(..) => "bitwise",
            Expression::Equal(..) | Expression::NotEqual(..) => "cmp",
            Expression::InSet(..) | Expression::MapTo(..) | Expression::VerdictMap(..) => "lookup",
            Expression::Verdict(_) => "immediate",
            Expression::Nat { .. } => "nat",
            Expression::Masquerade => "masq",
        }
    }

    fn write(&self, data: &mut Attributes) {
        match self {
            // NFTA_META_DREG, NFTA_META_KEY
            Expression::Meta(key, to) => _ = data.u32(1, to.number()).u32(2, *key as u32),
            // NFTA_PAYLOAD_DREG, _BASE, _OFFSET, _LEN
            Expression::Payload { base, offset, len, to } => {
                data.u32(1, to.number())
                    .u32(2, *base as u32)
                    .u32(3, *offset)
                    .u32(4, *len);
            }
            // NFTA_CT_DREG, NFTA_CT_KEY: NFT_CT_STATE or NFT_CT_STATUS
            Expression::ConnectionState(to) => _ = data.u32(1, to.number()).u32(2, 0),
            Expression::ConnectionStatus(to) => _ = data.u32(1, to.number()).u32(2, 2),
            // NFTA_FIB_DREG, _RESULT: NFT_FIB_RESULT_ADDRTYPE, _FLAGS: NFTA_FIB_F_DADDR
            Expression::DestinationType(to) => _ = data.u32(1, to.number()).u32(2, 3).u32(3, 2),
            Expression::Mask(register, mask) => write_mask(data, register.number(), mask),
            Expression::Equal(register, value) => write_comparison(data, register.number(), 0, value),
            Expression::NotEqual(register, value) => write_comparison(data, register.number(), 1, value),
            Expression::InSet(set, key) => write_lookup(data, set, *key, None),
            Expression::MapTo(map, key, to) => write_lookup(data, map, *key, Some(to.number())),
            Expression::VerdictMap(map, key) => write_lookup(data, map, *key, Some(NFT_REG_VERDICT)),
            // NFTA_IMMEDIATE_DREG, NFTA_IMMEDIATE_DATA
            Expression::Verdict(verdict) => _ = data.u32(1, NFT_REG_VERDICT).nest(2, |value| verdict.write(value)),
            Expression::Nat {
                kind,
                family,
                address,
                port,
            } => write_nat(data, *kind, *family, *address, *port),
            Expression::Masquerade => {}
        }
    }
}

fn write_mask(data: &mut Attributes, register: u32, mask: &[u8]) {
    // NFTA_BITWISE_SREG, _DREG, _LEN, _MASK, _XOR. A mask is an address's at most.
    data.u32(1, register)
        .u32(2, register)
        .u32(3, mask.len() as u32)
        .nest(4, |value| _ = value.bytes(NFTA_DATA_VALUE, mask))
        .nest(5, |value| _ = value.bytes(NFTA_DATA_VALUE, &vec![0; mask.len()]));
}

fn write_comparison(data: &mut Attributes, register: u32, operator: u32, value: &[u8]) {
    // NFTA_CMP_SREG, _OP: NFT_CMP_EQ or NFT_CMP_NEQ, _DATA
    data.u32(1, register)
        .u32(2, operator)
        .nest(3, |data| _ = data.bytes(NFTA_DATA_VALUE, value));
}

fn write_lookup(data: &mut Attributes, set: &str, key: Register, to: Option<u32>) {
    // NFTA_LOOKUP_SET, _SREG, _DREG
    data.text(1, set).u32(2, key.number());
    if let Some(to) = to {
        data.u32(3, to);
    }
}

fn write_nat(data: &mut Attributes, kind: NatKind, family: Family, address: Register, port: Option<Register>) {
    // NFTA_NAT_TYPE, _FAMILY, _REG_ADDR_MIN, _REG_PROTO_MIN
    data.u32(1, kind as u32)
        .u32(2, u32::from(family as u8))
        .u32(3, address.number());
    if let Some(port) = port {
        data.u32(5, port.number());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of an attribute, as nf_tables.h and netlink.h of a little-endian machine have them.
    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = ((4 + value.len()) as u16).to_le_bytes().to_vec();
        bytes.extend(kind.to_le_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn expression(name: &str, data: &[Vec<u8>]) -> Vec<u8> {
        let name = attribute(1, format!("{name}\0").as_bytes());
        let data = attribute(0x8002, &data.concat());
        attribute(0x8001, &[name, data].concat())
    }

    #[test]
    fn registers_have_the_names_that_the_kernel_answers_with() {
        let numbers: Vec<u32> = (0..6).map(|register| Register(register).number()).collect();
        assert_eq!(numbers, [1, 9, 10, 11, 2, 13]);
        assert_eq!(Register::FIRST.after(1).after(16), Register(5));
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn expressions_are_encoded_as_the_kernels_header_says() {
        let number = |kind: u16, value: u32| attribute(kind, &value.to_be_bytes());
        let port = Register::FIRST.after(1);
        let rule = [
            Expression::Meta(Meta::TransportProtocol, Register::FIRST),
            Expression::Payload {
                base: PayloadBase::Transport,
                offset: 2,
                len: 2,
                to: port,
            },
            Expression::MapTo("m".to_owned(), Register::FIRST, Register::FIRST),
            Expression::Nat {
                kind: NatKind::Destination,
                family: Family::Ipv4,
                address: Register::FIRST,
                port: Some(port),
            },
            Expression::Masquerade,
            Expression::Verdict(Verdict::Goto("c".to_owned())),
        ];
        let verdict = [attribute(1, &(-4i32).to_be_bytes()), attribute(2, b"c\0")].concat();
        let list = [
            expression("meta", &[number(1, 1), number(2, 16)]),
            expression("payload", &[number(1, 9), number(2, 2), number(3, 2), number(4, 2)]),
            expression("lookup", &[attribute(1, b"m\0"), number(2, 1), number(3, 1)]),
            expression("nat", &[number(1, 1), number(2, 2), number(3, 1), number(5, 9)]),
            expression("masq", &[]),
            expression(
                "immediate",
                &[number(1, 0), attribute(0x8002, &attribute(0x8002, &verdict))],
            ),
        ];
        assert_eq!(
            expressions_attribute(&rule).as_bytes(),
            attribute(0x8004, &list.concat())
        );
    }
}
