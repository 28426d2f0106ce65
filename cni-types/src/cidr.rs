//! An IP address with a prefix length.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ipnetwork::IpNetwork;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An address and its prefix length, host bits kept: `10.1.0.5/24`.
///
/// Reads what Go's `net.ParseCIDR` reads, which is stricter than [`IpNetwork`]: the slash is required and the prefix is
/// decimal (no netmask form). An IPv4-mapped IPv6 address is IPv6, written in its canonical text form.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cidr(IpNetwork);

/// A text that is no [`Cidr`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid CIDR address: {0}")]
pub struct ParseCidrError(String);

impl JsonSchema for Cidr {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Cidr".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^[0-9A-Fa-f:.]+/[0-9]+$" })
    }
}

impl Cidr {
    /// An address with a prefix length in bits, or `None` where the prefix is longer than the address.
    pub fn new(address: IpAddr, prefix: u8) -> Option<Cidr> {
        IpNetwork::new(address, prefix).ok().map(Cidr)
    }

    /// A single address: prefix length 32 or 128.
    pub fn host(address: IpAddr) -> Cidr {
        Cidr(IpNetwork::from(address))
    }

    /// The address, host bits included.
    pub fn address(&self) -> IpAddr {
        self.0.ip()
    }

    /// The prefix length in bits.
    pub fn prefix(&self) -> u8 {
        self.0.prefix()
    }

    /// The network: the same prefix with the host bits cleared.
    pub fn network(&self) -> Cidr {
        let base = u128_of(self.address()) & self.mask();
        match self.address() {
            // The mask keeps a 32-bit value within 32 bits.
            IpAddr::V4(_) => Cidr::new(IpAddr::V4(Ipv4Addr::from(base as u32)), self.prefix()),
            IpAddr::V6(_) => Cidr::new(IpAddr::V6(Ipv6Addr::from(base)), self.prefix()),
        }
        .unwrap_or(*self)
    }

    /// Whether the address has no host bits.
    pub fn is_network(&self) -> bool {
        self.network() == *self
    }

    /// Whether `ip` lies in the network. An address of the other family never does.
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.is_ipv4() == ip.is_ipv4() && u128_of(ip) & self.mask() == u128_of(self.address()) & self.mask()
    }

    /// Whether the address is IPv4.
    pub fn is_ipv4(&self) -> bool {
        self.0.is_ipv4()
    }

    /// Whether the address is IPv6.
    pub fn is_ipv6(&self) -> bool {
        self.0.is_ipv6()
    }

    fn mask(&self) -> u128 {
        let bits: u32 = if self.is_ipv4() { 32 } else { 128 };
        let host_bits = bits - u32::from(self.prefix());
        u128::MAX.checked_shl(host_bits).unwrap_or(0) & (u128::MAX >> (128 - bits))
    }
}

fn u128_of(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(v4) => u128::from(u32::from(v4)),
        IpAddr::V6(v6) => u128::from(v6),
    }
}

impl FromStr for Cidr {
    type Err = ParseCidrError;

    fn from_str(text: &str) -> Result<Cidr, ParseCidrError> {
        let invalid = || ParseCidrError(text.to_owned());
        let (address, prefix) = text.split_once('/').ok_or_else(invalid)?;
        if prefix.is_empty() || !prefix.bytes().all(|b| b.is_ascii_digit()) {
            return Err(invalid());
        }
        let address = address.parse().map_err(|_| invalid())?;
        Cidr::new(address, prefix.parse().map_err(|_| invalid())?).ok_or_else(invalid)
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address(), self.prefix())
    }
}

impl fmt::Debug for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Cidr {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Cidr {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Cidr, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn refuses_what_go_refuses() {
        for text in [
            "10.0.0.5",
            "10.0.0.5/255.255.255.0",
            "010.0.0.1/24",
            "10.0.0.0/33",
            "10.0.0.0/",
            "::/129",
            "10.0.0.0/+8",
            "/8",
            "",
        ] {
            assert!(text.parse::<Cidr>().is_err(), "{text}");
        }
    }

    #[test]
    fn keeps_host_bits_and_finds_the_network() {
        let cidr: Cidr = "10.1.0.5/24".parse().unwrap();
        assert_eq!(cidr.to_string(), "10.1.0.5/24");
        assert_eq!(cidr.network().to_string(), "10.1.0.0/24");
        assert!(!cidr.is_network());
        assert_eq!(
            "2001:DB8:0::1/64".parse::<Cidr>().unwrap().network().to_string(),
            "2001:db8::/64"
        );
    }

    #[test]
    fn the_widest_and_narrowest_prefixes_work() {
        for (text, inside) in [
            ("0.0.0.0/0", "255.255.255.255"),
            ("::/0", "ffff::1"),
            ("10.0.0.1/32", "10.0.0.1"),
            ("::1/128", "::1"),
        ] {
            let cidr: Cidr = text.parse().unwrap();
            assert!(cidr.contains(inside.parse().unwrap()), "{text}");
            assert!(cidr.is_network(), "{text}");
        }
        assert!(!"0.0.0.0/0".parse::<Cidr>().unwrap().contains("::1".parse().unwrap()));
        assert!(
            !"10.0.0.1/32"
                .parse::<Cidr>()
                .unwrap()
                .contains("10.0.0.2".parse().unwrap())
        );
    }

    proptest! {
        #[test]
        fn text_round_trips(bits: u128, prefix in 0u8..=128) {
            let cidr = Cidr::new(Ipv6Addr::from(bits).into(), prefix).unwrap();
            prop_assert_eq!(cidr.to_string().parse::<Cidr>().unwrap(), cidr);
            prop_assert!(cidr.contains(cidr.address()));
            prop_assert!(cidr.network().is_network());
        }
    }
}
