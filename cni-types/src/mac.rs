//! Ethernet addresses.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A 48-bit Ethernet address, written `0a:58:0a:01:00:05`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MacAddr(pub [u8; 6]);

/// A text that is no [`MacAddr`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("address {0}: invalid MAC address")]
pub struct ParseMacError(String);

impl MacAddr {
    /// A locally administered unicast address made of six random bytes.
    pub fn local(mut random: [u8; 6]) -> MacAddr {
        random[0] = random[0] & 0xfe | 0x02;
        MacAddr(random)
    }
}

impl FromStr for MacAddr {
    type Err = ParseMacError;

    /// Reads the forms that Go's `net.ParseMAC` reads for six bytes: separated by `:` or `-`, or `0a58.0a01.0005`.
    fn from_str(text: &str) -> Result<MacAddr, ParseMacError> {
        let invalid = || ParseMacError(text.to_owned());
        let (separator, width) = match text.as_bytes().get(2) {
            Some(b':') => (':', 2),
            Some(b'-') => ('-', 2),
            _ => ('.', 4),
        };
        let groups: Vec<&str> = text.split(separator).collect();
        let digits: String = groups.concat();
        let well_formed =
            groups.iter().all(|group| group.len() == width) && digits.bytes().all(|b| b.is_ascii_hexdigit());
        if !well_formed || digits.len() != 12 {
            return Err(invalid());
        }
        let bits = u64::from_str_radix(&digits, 16).map_err(|_| invalid())?;
        let [_, _, bytes @ ..] = bits.to_be_bytes();
        Ok(MacAddr(bytes))
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for MacAddr {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for MacAddr {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<MacAddr, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_forms_of_go() {
        for text in ["0a:58:0a:01:00:05", "0A-58-0A-01-00-05", "0a58.0a01.0005"] {
            assert_eq!(text.parse::<MacAddr>().unwrap().to_string(), "0a:58:0a:01:00:05");
        }
    }

    #[test]
    fn refuses_the_rest() {
        for text in [
            "",
            "0a:58:0a:01:00",
            "0a:58:0a:01:00:05:06:07",
            "0a:58-0a:01:00:05",
            "0g:58:0a:01:00:05",
            "0a580a010005",
            "é:58:0a:01:00:05",
        ] {
            assert!(text.parse::<MacAddr>().is_err(), "{text}");
        }
    }

    #[test]
    fn local_addresses_are_unicast_and_locally_administered() {
        assert_eq!(MacAddr::local([0xff; 6]).0[0] & 0x03, 0x02);
        assert_eq!(MacAddr::local([0x00; 6]).0[0] & 0x03, 0x02);
    }
}
