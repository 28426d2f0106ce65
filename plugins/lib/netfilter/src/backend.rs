//! Which of the kernel's two rule systems holds our rules.

use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::str::FromStr;

use cni_types::{Error, Result};
use serde::Deserialize;

use crate::{iptables, nftables};

/// Settings of the whole node, which the installer writes and which need not exist.
pub const NODE_SETTINGS: &str = "/etc/cni/ferrule.json";

/// A rule system of the kernel, and the way we write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Backend {
    /// xtables, written with `iptables-restore` in exactly the chains of the reference suite.
    Iptables,
    /// nf_tables, written over netlink into tables of our own; starts no program.
    Nftables,
}

/// A text that names no [`Backend`]. The text of the message is the reference's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unrecognized backend {0:?}")]
pub struct ParseBackendError(String);

impl Backend {
    /// Its name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Backend::Iptables => "iptables",
            Backend::Nftables => "nftables",
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Backend {
    type Err = ParseBackendError;

    fn from_str(text: &str) -> Result<Backend, ParseBackendError> {
        match text {
            "iptables" => Ok(Backend::Iptables),
            "nftables" => Ok(Backend::Nftables),
            _ => Err(ParseBackendError(text.to_owned())),
        }
    }
}

#[derive(Deserialize)]
struct NodeSettings {
    backend: Option<String>,
}

impl Backend {
    /// The backend where a network's configuration names none: what the node's settings say, else iptables where it is
    /// usable, as in the reference, else nftables.
    ///
    /// # Errors
    ///
    /// Code 7 when /etc/cni/ferrule.json names an unknown backend or is no JSON, code 5 when it cannot be read.
    pub fn of_node() -> Result<Backend> {
        match read_settings(Path::new(NODE_SETTINGS))? {
            Some(backend) => Ok(backend),
            None => Ok(match iptables::probe() {
                Ok(()) => Backend::Iptables,
                Err(e) => {
                    log::debug!("nftables it is: {e}");
                    Backend::Nftables
                }
            }),
        }
    }

    /// Tells whether `add` could work with this backend; for STATUS.
    ///
    /// # Errors
    ///
    /// What is missing.
    pub fn probe(self) -> Result<()> {
        match self {
            Backend::Iptables => iptables::probe(),
            Backend::Nftables => nftables::probe(),
        }
    }
}

fn read_settings(file: &Path) -> Result<Option<Backend>> {
    let bytes = match fs::read(file) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Error::io(file.display(), &e)),
    };
    let invalid = |e: &dyn std::fmt::Display| Error::config(format!("{}: {e}", file.display()));
    let settings: NodeSettings = serde_json::from_slice(&bytes).map_err(|e| invalid(&e))?;
    settings
        .backend
        .map(|name| name.parse())
        .transpose()
        .map_err(|e| invalid(&e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cni_types::Code;

    #[test]
    fn backends_have_the_references_names() {
        assert_eq!("iptables".parse(), Ok(Backend::Iptables));
        assert_eq!("nftables".parse(), Ok(Backend::Nftables));
        for text in ["foo", "", "ip6tables", "Iptables"] {
            let error = text.parse::<Backend>().unwrap_err();
            assert_eq!(error.to_string(), format!("unrecognized backend \"{text}\""));
        }
    }

    #[test]
    fn the_nodes_settings_are_read_strictly() {
        let file = std::env::temp_dir().join(format!("ferrule-settings-{}.json", std::process::id()));
        assert_eq!(read_settings(&file), Ok(None));
        for (text, expected) in [
            (r#"{"backend": "nftables"}"#, Some(Backend::Nftables)),
            (r#"{"backend": null, "other": 1}"#, None),
            ("{}", None),
        ] {
            fs::write(&file, text).unwrap();
            assert_eq!(read_settings(&file), Ok(expected), "{text}");
        }
        for text in [r#"{"backend": "foo"}"#, r#"{"backend": 1}"#, "", "nftables"] {
            fs::write(&file, text).unwrap();
            let error = read_settings(&file).unwrap_err();
            assert_eq!(error.code, Code::INVALID_CONFIG, "{text}");
            assert!(error.msg.contains("ferrule-settings"), "{error}");
        }
        fs::remove_file(&file).unwrap();
    }
}
