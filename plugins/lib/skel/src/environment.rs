//! The `CNI_*` variables: the one place where the environment is read.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use cni_types::{Code, Error, Result};

/// What a plugin is asked to do (section "CNI operations").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Add,
    Check,
    Del,
    Gc,
    Status,
}

impl Verb {
    fn parse(command: &str) -> Option<Verb> {
        Some(match command {
            "ADD" => Verb::Add,
            "CHECK" => Verb::Check,
            "DEL" => Verb::Del,
            "GC" => Verb::Gc,
            "STATUS" => Verb::Status,
            _ => return None,
        })
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Verb::Add => "ADD",
            Verb::Check => "CHECK",
            Verb::Del => "DEL",
            Verb::Gc => "GC",
            Verb::Status => "STATUS",
        }
    }
}

/// The variables of one call, as the runtime gave them. An empty value is the same as none.
#[derive(Debug, Clone, Default)]
pub(crate) struct Environment {
    pub(crate) command: String,
    pub(crate) container_id: String,
    pub(crate) netns: PathBuf,
    pub(crate) ifname: String,
    pub(crate) path: OsString,
    pub(crate) args: String,
    /// `CNI_NETNS_OVERRIDE`: the caller means it when it names the plugin's own namespace.
    pub(crate) netns_override: bool,
    /// `CNI_LOG`: what is worth a line on standard error.
    pub(crate) log: String,
}

impl Environment {
    #[allow(clippy::disallowed_methods, reason = "this is the one place")]
    pub(crate) fn read() -> Environment {
        Environment::of(|name| std::env::var_os(name))
    }

    /// The same from any source of variables.
    pub(crate) fn of(variable: impl Fn(&str) -> Option<OsString>) -> Environment {
        let raw = |name| variable(name).unwrap_or_default();
        // Text with broken UTF-8 cannot be a valid identifier; the replacement character makes the check say so.
        let text = |name| String::from_utf8_lossy(&raw(name).into_vec()).into_owned();
        Environment {
            command: text("CNI_COMMAND"),
            container_id: text("CNI_CONTAINERID"),
            netns: raw("CNI_NETNS").into(),
            ifname: text("CNI_IFNAME"),
            path: raw("CNI_PATH"),
            args: text("CNI_ARGS"),
            netns_override: matches!(text("CNI_NETNS_OVERRIDE").to_ascii_lowercase().as_str(), "1" | "true"),
            log: text("CNI_LOG"),
        }
    }

    /// The verb, once all variables that it needs are there.
    ///
    /// The specification has CNI_PATH optional for STATUS, and it alone; the reference asks for it there too.
    pub(crate) fn verb(&self) -> Result<Verb> {
        let invalid = |msg| Error::new(Code::INVALID_ENVIRONMENT, msg);
        let verb =
            Verb::parse(&self.command).ok_or_else(|| invalid(format!("unknown CNI_COMMAND: {}", self.command)))?;
        let of_container = matches!(verb, Verb::Add | Verb::Check | Verb::Del);
        let in_netns = matches!(verb, Verb::Add | Verb::Check);
        let missing: Vec<&str> = [
            ("CNI_CONTAINERID", of_container && self.container_id.is_empty()),
            ("CNI_NETNS", in_netns && self.netns.as_os_str().is_empty()),
            ("CNI_IFNAME", of_container && self.ifname.is_empty()),
            ("CNI_PATH", verb != Verb::Status && self.path.is_empty()),
        ]
        .into_iter()
        .filter_map(|(name, is_missing)| is_missing.then_some(name))
        .collect();
        match missing.as_slice() {
            [] => Ok(verb),
            names => Err(invalid(format!("required env variables [{}] missing", names.join(",")))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complete(command: &str) -> Environment {
        Environment {
            command: command.into(),
            container_id: "c".into(),
            netns: "/run/netns/c".into(),
            ifname: "eth0".into(),
            path: "/opt/cni/bin".into(),
            ..Environment::default()
        }
    }

    #[test]
    fn each_verb_asks_for_what_it_needs() {
        let empty = |command: &str| Environment {
            command: command.into(),
            ..Environment::default()
        };
        for (command, missing) in [
            ("ADD", "CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME,CNI_PATH"),
            ("CHECK", "CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME,CNI_PATH"),
            ("DEL", "CNI_CONTAINERID,CNI_IFNAME,CNI_PATH"),
            ("GC", "CNI_PATH"),
        ] {
            let error = empty(command).verb().unwrap_err();
            assert_eq!(
                error.msg,
                format!("required env variables [{missing}] missing"),
                "{command}"
            );
            assert_eq!(error.code, Code::INVALID_ENVIRONMENT);
            assert_eq!(complete(command).verb().unwrap().as_str(), command);
        }
        assert_eq!(empty("STATUS").verb(), Ok(Verb::Status));
    }

    #[test]
    fn an_unknown_command_is_named() {
        let error = complete("FOO").verb().unwrap_err();
        assert_eq!(
            (error.code, error.msg.as_str()),
            (Code::INVALID_ENVIRONMENT, "unknown CNI_COMMAND: FOO")
        );
    }
}
