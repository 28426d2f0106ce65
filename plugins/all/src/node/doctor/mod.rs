//! What the plugins need of a node. Each finding is one line with what to do about it; looking changes nothing.

mod installed;
mod kernel;
mod networks;
mod rules;

use std::path::PathBuf;

use lexopt::prelude::*;
use netfilter::{Backend, NODE_SETTINGS};
use serde_json::json;
use skel::Registered;

use super::{Failure, Outcome};

/// How serious a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    /// As it should be.
    Ok,
    /// Some networks will not work as they could.
    Warn,
    /// Containers cannot be attached.
    Fail,
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Warn => "warn",
            Level::Fail => "fail",
        }
    }
}

/// The outcome of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Finding {
    /// What was looked at.
    check: String,
    level: Level,
    /// What was found.
    found: String,
    /// What to do; empty where there is nothing to do.
    remedy: String,
}

impl Finding {
    fn new(check: &str, level: Level, found: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Finding {
            check: check.to_owned(),
            level,
            found: found.into(),
            remedy: remedy.into(),
        }
    }

    fn ok(check: &str, found: impl Into<String>) -> Finding {
        Finding::new(check, Level::Ok, found, "")
    }

    fn line(&self) -> String {
        let remedy = match self.remedy.as_str() {
            "" => String::new(),
            remedy => format!("; remedy: {remedy}"),
        };
        format!("{:<5} {:<14} {}{remedy}\n", self.level.name(), self.check, self.found)
    }
}

/// `ferrule doctor`.
pub(super) fn run(mut arguments: lexopt::Parser, suite: &[Registered]) -> Result<Outcome, Failure> {
    let mut as_json = false;
    let mut bin_dir = None;
    let mut conf_dir = PathBuf::from("/etc/cni/net.d");
    while let Some(argument) = arguments.next()? {
        match argument {
            Long("json") => as_json = true,
            Long("bin-dir") => bin_dir = Some(PathBuf::from(arguments.value()?)),
            Long("conf-dir") => conf_dir = arguments.value()?.into(),
            _ => return Err(argument.unexpected().into()),
        }
    }
    let bin_dir = bin_dir.map_or_else(installed::own_directory, Ok)?;
    let (setting, backend) = node_backend();
    let mut findings = kernel::examine();
    findings.push(setting);
    findings.extend(rules::examine(backend));
    findings.extend(installed::examine(&bin_dir, suite));
    findings.extend(networks::examine(&conf_dir, &bin_dir));
    let text = match as_json {
        true => json(&findings),
        false => findings.iter().map(Finding::line).collect(),
    };
    Ok(Outcome {
        text,
        success: findings.iter().all(|finding| finding.level != Level::Fail),
    })
}

fn json(findings: &[Finding]) -> String {
    let findings = findings.iter().map(|finding| {
        json!({
            "check": finding.check, "level": finding.level.name(), "found": finding.found, "remedy": finding.remedy,
        })
    });
    format!("{:#}\n", serde_json::Value::from_iter(findings))
}

/// The node's setting, and what it comes to. What cannot be read is examined as if nothing were set.
fn node_backend() -> (Finding, Option<Backend>) {
    match Backend::of_node() {
        Ok(backend) => {
            let is_set = std::path::Path::new(NODE_SETTINGS).exists();
            let source = if is_set {
                NODE_SETTINGS
            } else {
                "no settings, so as the node has it"
            };
            (Finding::ok("backend", format!("{backend} ({source})")), Some(backend))
        }
        Err(e) => {
            let remedy = "ferrule backend auto --write, after the file was mended or removed";
            (Finding::new("backend", Level::Fail, e.to_string(), remedy), None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_one_line() {
        let finding = Finding::new("bridge", Level::Fail, "the kernel makes none", "modprobe bridge");
        assert_eq!(
            finding.line(),
            "fail  bridge         the kernel makes none; remedy: modprobe bridge\n"
        );
        assert_eq!(Finding::ok("veth", "works").line(), "ok    veth           works\n");
    }

    #[test]
    fn programs_read_the_same() {
        let text = json(&[Finding::new("bridge", Level::Warn, "a \"b\"", "c")]);
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            value,
            json!([{ "check": "bridge", "level": "warn", "found": "a \"b\"", "remedy": "c" }])
        );
    }
}
