//! Running checks against a directory of plugins.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serde_json::Value;

use crate::call::Call;
use crate::checks::{self, Bench, Check, Plugins, Stop};
use crate::host::{Host, HostError, with_both, with_host};

/// What is to be judged.
#[derive(Debug, Clone)]
pub struct Subject {
    /// The directory.
    pub directory: PathBuf,
    /// Its plugins.
    pub plugins: BTreeSet<String>,
    /// Executables in it that do not answer VERSION as a plugin does.
    pub others: Vec<String>,
    /// Configurations by plugin, for those that the suite knows none for.
    pub given: BTreeMap<String, Value>,
    /// A second directory, and its plugins: what one of them attached the other has to detach.
    pub beside: Option<(PathBuf, BTreeSet<String>)>,
}

/// A check's result for one plugin.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The check.
    pub check: &'static Check,
    /// The plugin.
    pub plugin: String,
    /// How it ended.
    pub verdict: Verdict,
}

/// How a check ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The plugin does what it should.
    Pass,
    /// It does not; and how that shows.
    Fail(String),
    /// The rule does not concern the plugin, or cannot be judged on this machine; and why.
    NotApplicable(String),
}

impl Subject {
    /// Finds the plugins of a directory: the executables that answer VERSION, whatever they are called.
    ///
    /// # Errors
    /// The directory cannot be read, or no host can be made.
    pub fn find(directory: &Path) -> Result<Subject, HostError> {
        let directory = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
        let (plugins, others) = with_host(&directory, |_| {
            let executables = executables()?;
            let (plugins, others): (Vec<_>, Vec<_>) = executables.into_iter().partition(|name| answers_version(name));
            Ok::<_, HostError>((plugins.into_iter().collect(), others))
        })??;
        Ok(Subject {
            directory,
            plugins,
            others,
            given: BTreeMap::new(),
            beside: None,
        })
    }

    /// The pairs of check and plugin that `selected` picks, in the order of [`checks::all`].
    pub fn work(&self, selected: impl Fn(&Check) -> bool) -> Vec<(&'static Check, String)> {
        let mut work = Vec::new();
        for check in checks::all().into_iter().filter(|check| selected(check)) {
            match check.plugins {
                Plugins::Named(names) => work.extend(names.first().map(|name| (check, (*name).to_owned()))),
                Plugins::Each | Plugins::Configured => {
                    work.extend(self.plugins.iter().map(|name| (check, name.clone())));
                }
            }
        }
        work
    }

    /// Runs checks, several at once; `progress` is told after each. The results are in the order of `work`.
    pub fn run(&self, work: &[(&'static Check, String)], progress: impl Fn(&Outcome) + Sync) -> Vec<Outcome> {
        let next = AtomicUsize::new(0);
        let finished = Mutex::new(BTreeMap::new());
        // Most of a check is waiting for the kernel to make and remove namespaces.
        let workers = thread::available_parallelism().map_or(2, |cpus| cpus.get().saturating_mul(2));
        thread::scope(|scope| {
            for _ in 0..workers {
                scope.spawn(|| {
                    loop {
                        let index = next.fetch_add(1, Ordering::Relaxed);
                        let Some((check, plugin)) = work.get(index) else { return };
                        let outcome = self.judge(check, plugin);
                        progress(&outcome);
                        if let Ok(mut finished) = finished.lock() {
                            finished.insert(index, outcome);
                        }
                    }
                });
            }
        });
        finished.into_inner().unwrap_or_default().into_values().collect()
    }

    fn judge(&self, check: &'static Check, plugin: &str) -> Outcome {
        let verdict = match self.obstacle(check) {
            Some(reason) => Verdict::NotApplicable(reason),
            None => match self.on_a_host(|host| self.judge_on(host, check, plugin)) {
                Ok(Ok(())) => Verdict::Pass,
                Ok(Err(Stop::Fail(reason))) => Verdict::Fail(reason),
                Ok(Err(Stop::NotApplicable(reason))) => Verdict::NotApplicable(reason),
                Err(e) => Verdict::Fail(e.to_string()),
            },
        };
        Outcome {
            check,
            plugin: plugin.to_owned(),
            verdict,
        }
    }

    fn on_a_host<R: Send>(&self, work: impl FnOnce(&Host) -> R + Send) -> Result<R, HostError> {
        let beside = self.beside.as_ref().map(|(directory, _)| directory.as_path());
        with_both(&self.directory, beside, work)
    }

    fn obstacle(&self, check: &Check) -> Option<String> {
        let Plugins::Named(names) = check.plugins else {
            return None;
        };
        let missing = names.iter().find(|name| !self.plugins.contains(**name))?;
        Some(format!("there is no plugin {missing}"))
    }

    fn judge_on(&self, host: &Host, check: &Check, plugin: &str) -> checks::Done {
        if let Some(missing) = check.needs.iter().find(|feature| !feature.is_there(host)) {
            return Err(Stop::NotApplicable(missing.describe().to_owned()));
        }
        let bench = Bench {
            host,
            plugin,
            available: &self.plugins,
            given: &self.given,
            beside: self.beside.as_ref().map(|(_, plugins)| plugins),
        };
        (check.run)(&bench)
    }

    /// What a plugin says it is, when it is started without a command: its name and version, on the first line.
    ///
    /// # Errors
    /// No host can be made.
    pub fn about(&self, plugin: &str) -> Result<String, HostError> {
        with_host(&self.directory, |_| {
            let reply = Call::new(plugin, "").without("CNI_COMMAND").run();
            let text = reply
                .map(|reply| format!("{}{}", reply.stderr, reply.stdout))
                .unwrap_or_default();
            text.lines().next().unwrap_or_default().to_owned()
        })
    }
}

/// The names of the executables that the present host has as plugins.
fn executables() -> Result<Vec<String>, HostError> {
    let entries = fs::read_dir(crate::host::PLUGINS).map_err(|source| HostError {
        operation: "the plugin directory".to_owned(),
        source,
    })?;
    let mut names: Vec<String> = entries
        .flatten()
        .filter(|entry| {
            fs::metadata(entry.path()).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
        })
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    Ok(names)
}

fn answers_version(name: &str) -> bool {
    let answer = Call::new(name, "VERSION").text(r#"{"cniVersion":"1.0.0"}"#).run();
    answer.is_ok_and(|reply| reply.stdout.contains("supportedVersions"))
}
