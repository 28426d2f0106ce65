//! Failures that are known of somebody's plugins, with the reason for each.
//!
//! With such a list a run fails on every difference from it: a failure that is not in it is a defect of the plugin or of
//! the check, and a pass of what is in it means that the list is out of date. The list is of one version of the plugins;
//! with another one it only informs.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::host::HostError;
use crate::run::{Outcome, Subject, Verdict};

/// A file of known failures.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnownFailures {
    /// Which plugins these are.
    pub of: Identity,
    /// What they are known to fail.
    pub failures: Vec<KnownFailure>,
}

/// How a version of plugins is recognised.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// The plugin that is looked at.
    pub plugin: String,
    /// The first line that it prints without a command.
    pub prints: String,
    /// The SHA-256 of its executable, where distributions build it without a version to print.
    pub sha256: Option<String>,
}

/// One known failure.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnownFailure {
    /// The check's ID.
    pub check: String,
    /// The plugins that fail it.
    pub plugins: Vec<String>,
    /// Why they do.
    pub reason: String,
    /// Whether chance decides, so that a pass says nothing.
    #[serde(default, rename = "byChance")]
    pub by_chance: bool,
}

/// What a verdict means, given what is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meaning {
    /// A pass, or not applicable.
    Fine,
    /// A failure.
    Failure,
    /// A failure that is known.
    Known,
    /// A pass where a failure is known.
    UnexpectedPass,
}

impl KnownFailures {
    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, or is not of this form.
    pub fn read(path: &Path) -> io::Result<KnownFailures> {
        Ok(serde_json::from_slice(&fs::read(path)?)?)
    }

    /// Whether the list is of these plugins.
    ///
    /// # Errors
    /// The plugin cannot be looked at.
    pub fn is_of(&self, subject: &Subject) -> Result<bool, HostError> {
        if !subject.plugins.contains(&self.of.plugin) || subject.about(&self.of.plugin)? != self.of.prints {
            return Ok(false);
        }
        let Some(expected) = &self.of.sha256 else {
            return Ok(true);
        };
        let path = subject.directory.join(&self.of.plugin);
        let digest = sha256(&path).map_err(|source| HostError {
            operation: path.display().to_string(),
            source,
        })?;
        Ok(digest == *expected)
    }

    /// What an outcome means in the light of this list.
    pub fn meaning(&self, outcome: &Outcome) -> Meaning {
        match (&outcome.verdict, self.known(outcome)) {
            (Verdict::Fail(_), Some(_)) => Meaning::Known,
            (Verdict::Fail(_), None) => Meaning::Failure,
            (Verdict::Pass, Some(known)) if !known.by_chance => Meaning::UnexpectedPass,
            _ => Meaning::Fine,
        }
    }

    /// The reason that is known for an outcome's failure.
    pub fn reason(&self, outcome: &Outcome) -> Option<&str> {
        self.known(outcome).map(|known| known.reason.as_str())
    }

    fn known(&self, outcome: &Outcome) -> Option<&KnownFailure> {
        let is_it = |known: &&KnownFailure| known.check == outcome.check.id && known.plugins.contains(&outcome.plugin);
        self.failures.iter().find(is_it)
    }
}

/// What an outcome means, with or without a list.
pub fn meaning(known: Option<&KnownFailures>, outcome: &Outcome) -> Meaning {
    match (known, &outcome.verdict) {
        (Some(known), _) => known.meaning(outcome),
        (None, Verdict::Fail(_)) => Meaning::Failure,
        (None, _) => Meaning::Fine,
    }
}

fn sha256(path: &Path) -> io::Result<String> {
    let mut digest = Sha256::new();
    io::copy(&mut File::open(path)?, &mut Hasher(&mut digest))?;
    Ok(digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A digest as something to write into.
struct Hasher<'a>(&'a mut Sha256);

impl io::Write for Hasher<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks;

    #[test]
    fn only_what_is_listed_is_known() {
        let check = checks::all()[0];
        let known: KnownFailures = serde_json::from_value(serde_json::json!({
            "of": { "plugin": "bridge", "prints": "v1" },
            "failures": [
                { "check": check.id, "plugins": ["bridge"], "reason": "it is old" },
                { "check": check.id, "plugins": ["tap"], "reason": "it is a race", "byChance": true },
            ],
        }))
        .unwrap();
        let outcome = |plugin: &str, verdict: Verdict| Outcome {
            check,
            plugin: plugin.to_owned(),
            verdict,
        };
        let failed = || Verdict::Fail("it does not".to_owned());
        for (plugin, verdict, with_list, without) in [
            ("bridge", failed(), Meaning::Known, Meaning::Failure),
            ("ptp", failed(), Meaning::Failure, Meaning::Failure),
            ("bridge", Verdict::Pass, Meaning::UnexpectedPass, Meaning::Fine),
            ("ptp", Verdict::Pass, Meaning::Fine, Meaning::Fine),
            ("tap", failed(), Meaning::Known, Meaning::Failure),
            ("tap", Verdict::Pass, Meaning::Fine, Meaning::Fine),
            (
                "bridge",
                Verdict::NotApplicable("no kernel".to_owned()),
                Meaning::Fine,
                Meaning::Fine,
            ),
        ] {
            let outcome = outcome(plugin, verdict);
            assert_eq!(meaning(Some(&known), &outcome), with_list, "{outcome:?}");
            assert_eq!(meaning(None, &outcome), without, "{outcome:?}");
        }
    }
}
