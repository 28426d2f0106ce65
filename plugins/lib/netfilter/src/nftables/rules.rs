//! The phrases that our rules are made of.

use std::net::IpAddr;

use cni_types::Cidr;
use nft::{Expression, Meta, PayloadBase, Register};

use crate::Family;

const FIRST: Register = Register::FIRST;

/// nf_tables' number of a family.
pub(super) fn wire_family(family: Family) -> nft::Family {
    match family {
        Family::V4 => nft::Family::Ipv4,
        Family::V6 => nft::Family::Ipv6,
    }
}

/// The bytes of an address.
pub(super) fn address_bytes(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

/// The address that bytes are; `None` where there are none.
pub(super) fn address_of(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

/// The size of an address in bytes.
pub(super) fn address_size(family: Family) -> u8 {
    match family {
        Family::V4 => 4,
        Family::V6 => 16,
    }
}

/// `meta nfproto ...`: packets of the family.
pub(super) fn of_family(family: Family) -> Vec<Expression> {
    vec![
        Expression::Meta(Meta::NetworkProtocol, FIRST),
        Expression::Equal(FIRST, vec![wire_family(family) as u8]),
    ]
}

/// Loads `ip saddr` or `ip6 saddr`.
pub(super) fn load_source(family: Family, to: Register) -> Expression {
    let offset = match family {
        Family::V4 => 12,
        Family::V6 => 8,
    };
    load_address(family, offset, to)
}

/// Loads `ip daddr` or `ip6 daddr`.
pub(super) fn load_destination(family: Family, to: Register) -> Expression {
    let offset = match family {
        Family::V4 => 16,
        Family::V6 => 24,
    };
    load_address(family, offset, to)
}

fn load_address(family: Family, offset: u32, to: Register) -> Expression {
    Expression::Payload {
        base: PayloadBase::Network,
        offset,
        len: u32::from(address_size(family)),
        to,
    }
}

/// Loads the destination port, which TCP, UDP and SCTP have in the same place.
pub(super) fn load_port(to: Register) -> Expression {
    Expression::Payload {
        base: PayloadBase::Transport,
        offset: 2,
        len: 2,
        to,
    }
}

/// `ip saddr <network>`, guarded by the family.
pub(super) fn source_in(network: Cidr) -> Vec<Expression> {
    in_network(network, load_source)
}

/// `ip daddr <network>`, guarded by the family.
pub(super) fn destination_in(network: Cidr) -> Vec<Expression> {
    in_network(network, load_destination)
}

fn in_network(network: Cidr, load: fn(Family, Register) -> Expression) -> Vec<Expression> {
    let family = Family::of(network.address());
    let mut rule = of_family(family);
    if network.prefix() == 0 {
        return rule;
    }
    rule.push(load(family, FIRST));
    let mask = mask(network);
    if mask.iter().any(|&byte| byte != 0xff) {
        rule.push(Expression::Mask(FIRST, mask));
    }
    rule.push(Expression::Equal(FIRST, address_bytes(network.network().address())));
    rule
}

fn mask(network: Cidr) -> Vec<u8> {
    let size = usize::from(address_size(Family::of(network.address())));
    (0..size)
        .map(|byte| {
            let bits = usize::from(network.prefix()).saturating_sub(8 * byte).min(8);
            // The upper `bits` bits of a byte.
            !(0xff_u16 >> bits) as u8
        })
        .collect()
}

/// `fib daddr type local`: packets to the node itself.
pub(super) fn to_local_address() -> Vec<Expression> {
    /// rtnetlink.h, `RTN_LOCAL`.
    const RTN_LOCAL: u32 = 2;
    vec![
        Expression::DestinationType(FIRST),
        Expression::Equal(FIRST, RTN_LOCAL.to_ne_bytes().to_vec()),
    ]
}

/// `ct status dnat`: connections whose destination was translated.
pub(super) fn destination_translated() -> Vec<Expression> {
    /// nf_conntrack_common.h, `IPS_DST_NAT`.
    const IPS_DST_NAT: u32 = 1 << 5;
    vec![
        Expression::ConnectionStatus(FIRST),
        Expression::Mask(FIRST, IPS_DST_NAT.to_ne_bytes().to_vec()),
        Expression::NotEqual(FIRST, 0u32.to_ne_bytes().to_vec()),
    ]
}

/// `iifname != <name>`.
pub(super) fn not_from(interface: &str) -> Vec<Expression> {
    vec![
        Expression::Meta(Meta::InputInterface, FIRST),
        Expression::NotEqual(FIRST, interface_bytes(interface)),
    ]
}

/// `iifname <name>`.
pub(super) fn from(interface: &str) -> Vec<Expression> {
    vec![
        Expression::Meta(Meta::InputInterface, FIRST),
        Expression::Equal(FIRST, interface_bytes(interface)),
    ]
}

/// An interface's name in a register: zeros to its full sixteen bytes, so that no longer name is taken for it.
pub(super) fn interface_bytes(interface: &str) -> Vec<u8> {
    let mut bytes = interface.as_bytes().to_vec();
    bytes.resize(16, 0);
    bytes
}

/// The name in a register or an element.
pub(super) fn interface_name(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    let name = bytes.split(|byte| *byte == 0).next();
    String::from_utf8_lossy(name.unwrap_or_default())
}

/// `ct state established,related`.
pub(super) fn answers() -> Vec<Expression> {
    /// nf_conntrack_common.h, `NF_CT_STATE_BIT` of `IP_CT_ESTABLISHED` and `IP_CT_RELATED`.
    const ESTABLISHED_OR_RELATED: u32 = 1 << 1 | 1 << 2;
    vec![
        Expression::ConnectionState(FIRST),
        Expression::Mask(FIRST, ESTABLISHED_OR_RELATED.to_ne_bytes().to_vec()),
        Expression::NotEqual(FIRST, 0u32.to_ne_bytes().to_vec()),
    ]
}

/// Joins phrases into a rule.
pub(super) fn rule(phrases: &[&[Expression]]) -> Vec<Expression> {
    phrases.concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_has_as_many_bits_as_the_prefix() {
        for (text, expected) in [
            ("10.0.0.0/8", "255.0.0.0"),
            ("10.0.0.0/20", "255.255.240.0"),
            ("10.0.0.1/32", "255.255.255.255"),
            ("0.0.0.0/0", "0.0.0.0"),
            ("2001:db8::/33", "ffff:ffff:8000::"),
        ] {
            assert_eq!(
                mask(text.parse().unwrap()),
                address_bytes(expected.parse().unwrap()),
                "{text}"
            );
        }
    }
}
