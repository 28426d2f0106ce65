//! The versions of the specification and what each allows.

use std::fmt;
use std::str::FromStr;

use crate::{Code, Error};

/// A version of the CNI specification. Later versions are greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the name is the version")]
pub enum Version {
    V0_1_0,
    V0_2_0,
    V0_3_0,
    V0_3_1,
    V0_4_0,
    V1_0_0,
    V1_1_0,
}

impl Version {
    /// Every version, oldest first: what VERSION reports.
    pub const ALL: [Version; 7] = [
        Version::V0_1_0,
        Version::V0_2_0,
        Version::V0_3_0,
        Version::V0_3_1,
        Version::V0_4_0,
        Version::V1_0_0,
        Version::V1_1_0,
    ];

    /// The newest version: the one that VERSION and errors about the version itself are given in.
    pub const LATEST: Version = Version::V1_1_0;

    /// The version as a configuration writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Version::V0_1_0 => "0.1.0",
            Version::V0_2_0 => "0.2.0",
            Version::V0_3_0 => "0.3.0",
            Version::V0_3_1 => "0.3.1",
            Version::V0_4_0 => "0.4.0",
            Version::V1_0_0 => "1.0.0",
            Version::V1_1_0 => "1.1.0",
        }
    }

    /// Whether a result of this version lists interfaces and any number of addresses (since 0.3.0).
    pub fn has_interfaces(self) -> bool {
        self >= Version::V0_3_0
    }

    /// Whether CHECK exists (since 0.4.0).
    pub fn allows_check(self) -> bool {
        self >= Version::V0_4_0
    }

    /// Whether GC and STATUS exist (since 1.1.0).
    pub fn allows_gc_and_status(self) -> bool {
        self >= Version::V1_1_0
    }
}

impl FromStr for Version {
    type Err = Error;

    /// Reads a configuration's `cniVersion`. The empty text means 0.1.0, as it does to every runtime.
    fn from_str(text: &str) -> Result<Version, Error> {
        let wanted = if text.is_empty() { "0.1.0" } else { text };
        Version::ALL
            .into_iter()
            .find(|version| version.as_str() == wanted)
            .ok_or_else(|| {
                let supported: Vec<String> = Version::ALL
                    .iter()
                    .map(|version| format!("{:?}", version.as_str()))
                    .collect();
                Error::new(Code::INCOMPATIBLE_VERSION, "incompatible CNI versions")
                    .with_details(format!("config is {text:?}, plugin supports [{}]", supported.join(" ")))
            })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_version_reads_back() {
        for version in Version::ALL {
            assert_eq!(version.as_str().parse(), Ok(version));
        }
        assert_eq!("".parse(), Ok(Version::V0_1_0));
    }

    #[test]
    fn an_unknown_version_is_told_what_there_is() {
        let error = "9.9.9".parse::<Version>().unwrap_err();
        assert_eq!(error.code, Code::INCOMPATIBLE_VERSION);
        assert_eq!(error.msg, "incompatible CNI versions");
        assert_eq!(
            error.details,
            r#"config is "9.9.9", plugin supports ["0.1.0" "0.2.0" "0.3.0" "0.3.1" "0.4.0" "1.0.0" "1.1.0"]"#
        );
    }
}
