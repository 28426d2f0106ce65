//! Interface names.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A name that the kernel takes for an interface: `dev_valid_name` of net/core/dev.c, and the reference's stricter rules
/// for `CNI_IFNAME`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IfName(String);

/// Why a text is no [`IfName`]. The texts are the reference's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ParseIfNameError {
    /// No character at all.
    #[error("interface name is empty")]
    Empty,
    /// More than 15 bytes.
    #[error("interface name is too long")]
    TooLong,
    /// A dot or two, which the kernel keeps for directories under /proc and /sys.
    #[error("interface name is . or ..")]
    Dots,
    /// A character that the kernel refuses or that would break a path.
    #[error("interface name contains / or : or whitespace characters")]
    BadCharacter,
}

impl IfName {
    /// The kernel's IFNAMSIZ, less the terminating zero.
    pub const MAX_LEN: usize = 15;

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for IfName {
    type Err = ParseIfNameError;

    fn from_str(text: &str) -> Result<IfName, ParseIfNameError> {
        match text {
            "" => Err(ParseIfNameError::Empty),
            _ if text.len() > IfName::MAX_LEN => Err(ParseIfNameError::TooLong),
            "." | ".." => Err(ParseIfNameError::Dots),
            _ if text.contains(|c: char| c == '/' || c == ':' || c == '\0' || c.is_whitespace()) => {
                Err(ParseIfNameError::BadCharacter)
            }
            _ => Ok(IfName(text.to_owned())),
        }
    }
}

impl fmt::Display for IfName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for IfName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl AsRef<str> for IfName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl Serialize for IfName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for IfName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<IfName, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_what_the_kernel_takes() {
        for text in ["eth0", "eth0.100", "veth01234567abc", "ü", "a-b_c@d"] {
            assert_eq!(text.parse::<IfName>().unwrap().as_str(), text);
        }
    }

    #[test]
    fn refuses_with_the_reason() {
        for (text, why) in [
            ("", ParseIfNameError::Empty),
            ("abcdefghijklmnop", ParseIfNameError::TooLong),
            (".", ParseIfNameError::Dots),
            ("..", ParseIfNameError::Dots),
            ("a/b", ParseIfNameError::BadCharacter),
            ("a:b", ParseIfNameError::BadCharacter),
            ("a b", ParseIfNameError::BadCharacter),
            ("a\0b", ParseIfNameError::BadCharacter),
        ] {
            assert_eq!(text.parse::<IfName>(), Err(why), "{text:?}");
        }
    }
}
