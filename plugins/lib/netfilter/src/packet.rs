//! The words in which rules speak of packets.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// An IP version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both, in the order in which everything here handles them.
    pub const BOTH: [Family; 2] = [Family::V4, Family::V6];

    /// The family of an address.
    pub fn of(ip: IpAddr) -> Family {
        match ip {
            IpAddr::V4(_) => Family::V4,
            IpAddr::V6(_) => Family::V6,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        })
    }
}

/// A transport protocol whose ports can be published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

/// A text that names no [`Protocol`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a protocol: tcp, udp or sctp")]
pub struct ParseProtocolError(String);

impl Protocol {
    /// The number in the IP header (IANA "Protocol Numbers").
    pub fn number(self) -> u8 {
        match self {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
            Protocol::Sctp => 132,
        }
    }

    /// The protocol with a number, or `None` where its ports cannot be published.
    pub fn from_number(number: u8) -> Option<Protocol> {
        [Protocol::Tcp, Protocol::Udp, Protocol::Sctp]
            .into_iter()
            .find(|protocol| protocol.number() == number)
    }

    /// The lower-case name, as iptables and nft write it.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
            Protocol::Sctp => "sctp",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Protocol {
    type Err = ParseProtocolError;

    /// Reads the name in any case: runtimes send `TCP` as well as `tcp`.
    fn from_str(text: &str) -> Result<Protocol, ParseProtocolError> {
        [Protocol::Tcp, Protocol::Udp, Protocol::Sctp]
            .into_iter()
            .find(|protocol| text.eq_ignore_ascii_case(protocol.name()))
            .ok_or_else(|| ParseProtocolError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocols_are_read_in_any_case_and_nothing_else_is() {
        for (text, protocol) in [("tcp", Protocol::Tcp), ("UDP", Protocol::Udp), ("Sctp", Protocol::Sctp)] {
            assert_eq!(text.parse(), Ok(protocol));
            assert_eq!(Protocol::from_number(protocol.number()), Some(protocol));
        }
        for text in ["", "icmp", "tcp ", "6"] {
            assert!(text.parse::<Protocol>().is_err(), "{text:?}");
        }
        assert_eq!(Protocol::from_number(1), None);
    }
}
