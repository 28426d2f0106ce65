//! Names of networks and containers.

use std::fmt;
use std::str::FromStr;

/// The name of a network: letters, digits, `_`, `.` and `-`, beginning with a letter or digit (section
/// "Configuration format"). It goes into file names and rules, so nothing else gets through.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NetworkName(String);

/// The ID of a container: the same characters (section "Parameters").
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContainerId(String);

/// A text with a character that the specification does not allow, or none at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} must begin with a letter or digit and hold only letters, digits, '_', '.' and '-'")]
pub struct ParseIdError(String);

fn is_valid(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b))
}

macro_rules! id {
    ($name:ident) => {
        impl $name {
            /// The text itself.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;

            fn from_str(text: &str) -> Result<$name, ParseIdError> {
                if is_valid(text) {
                    Ok($name(text.to_owned()))
                } else {
                    Err(ParseIdError(text.to_owned()))
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

id!(NetworkName);
id!(ContainerId);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_characters_of_the_specification() {
        for good in ["a", "k8s.io-c1", "0", "cni-loopback", "a_b"] {
            assert!(good.parse::<NetworkName>().is_ok(), "{good}");
            assert!(good.parse::<ContainerId>().is_ok(), "{good}");
        }
        for bad in ["", "../x", ".a", "-a", "a/b", "a b", "a\nb", "é"] {
            assert!(bad.parse::<NetworkName>().is_err(), "{bad:?}");
            assert!(bad.parse::<ContainerId>().is_err(), "{bad:?}");
        }
    }
}
