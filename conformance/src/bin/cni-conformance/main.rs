//! `cni-conformance`: judges a directory of CNI plugins, and measures it.

mod bench;

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};

use conformance::checks::{self, Check, Stop};
use conformance::known::KnownFailures;
use conformance::replay::{self, Deviation};
use conformance::report::{self, Report};
use conformance::run::{Outcome, Subject};
use serde_json::Value;

const USAGE: &str = "\
cni-conformance: judges the CNI plugins of a directory by the specification, and by what users rely on

usage: cni-conformance --plugins DIR [OPTION]...
       cni-conformance bench --plugins DIR [OPTION]...    measures them: cni-conformance bench --help

  --plugins DIR          the plugins to judge
  --only PATTERN         only checks whose ID, plugin or case (C12) matches; * stands for any text
  --lacked-in FILE       only what a report of another machine calls not applicable because that machine lacked something
  --compare DIR          runs the same checks on another directory, and shows its results beside
  --conf FILE            a plugin configuration (with its type) to try that plugin with; can be repeated
  --known-failures FILE  failures that are expected, with reasons: everything else than these fails the run
  --transcripts DIR      also replays recorded calls of real runtimes, and compares the answers
  --deviations FILE      where answers rightly differ from the recorded ones, with reasons
  --report FILE          writes all results as JSON
  --list                 prints the checks, with what they rest on, and runs none
  -h, --help             prints this

Every check runs in network and mount namespaces of its own: nothing on this machine changes. It needs root; without it:
unshare -Urnm cni-conformance ...
The exit code is 0 if nothing failed, 1 if something did, and 2 if the checks could not be run.
";

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[derive(Debug, Default)]
struct Options {
    plugins: Option<PathBuf>,
    only: Option<String>,
    lacked_in: Option<PathBuf>,
    compare: Option<PathBuf>,
    confs: Vec<PathBuf>,
    known_failures: Option<PathBuf>,
    transcripts: Option<PathBuf>,
    deviations: Option<PathBuf>,
    report: Option<PathBuf>,
    list: bool,
    help: bool,
}

fn main() -> ExitCode {
    match begin() {
        Ok(code) => code,
        Err(e) => {
            // There is nobody left to tell if standard error is closed.
            let _ = writeln!(io::stderr(), "cni-conformance: {e}");
            ExitCode::from(2)
        }
    }
}

fn begin() -> Result<ExitCode, Failure> {
    let arguments: Vec<_> = env::args_os().skip(1).collect();
    let texts: Vec<&str> = arguments.iter().filter_map(|argument| argument.to_str()).collect();
    if let Some(ended) = conformance::bench::own_process(&texts) {
        return ended;
    }
    if texts.first() == Some(&"bench") {
        return bench::run(arguments.into_iter().skip(1)).map(|()| ExitCode::SUCCESS);
    }
    let options = Options::parse().map_err(|e| format!("{e}\n\n{USAGE}"))?;
    let good = run(options)?;
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Options {
    fn parse() -> Result<Options, lexopt::Error> {
        use lexopt::prelude::{Long, Short};
        let mut options = Options::default();
        let mut parser = lexopt::Parser::from_env();
        while let Some(argument) = parser.next()? {
            match argument {
                Long("plugins") => options.plugins = Some(parser.value()?.into()),
                Long("only") => options.only = Some(parser.value()?.string()?),
                Long("lacked-in") => options.lacked_in = Some(parser.value()?.into()),
                Long("compare") => options.compare = Some(parser.value()?.into()),
                Long("conf") => options.confs.push(parser.value()?.into()),
                Long("known-failures") => options.known_failures = Some(parser.value()?.into()),
                Long("transcripts") => options.transcripts = Some(parser.value()?.into()),
                Long("deviations") => options.deviations = Some(parser.value()?.into()),
                Long("report") => options.report = Some(parser.value()?.into()),
                Long("list") => options.list = true,
                Short('h') | Long("help") => options.help = true,
                other => return Err(other.unexpected()),
            }
        }
        Ok(options)
    }

    /// Whether a check is asked for, for a plugin.
    fn selects(&self, check: &Check, plugin: &str) -> bool {
        self.only.as_deref().is_none_or(|pattern| {
            matches(pattern, check.id) || matches(pattern, plugin) || check.cases().any(|case| matches(pattern, case))
        })
    }
}

use lexopt::ValueExt;

fn run(options: Options) -> Result<bool, Failure> {
    if options.help {
        return print(USAGE).map(|()| true);
    }
    if options.list {
        return list(&options).map(|()| true);
    }
    let plugins = options.plugins.as_deref().ok_or("--plugins is missing; see --help")?;
    let mut subject = subject(plugins, &options)?;
    let mut other = match &options.compare {
        Some(directory) => Some(subject_of(directory, &options)?),
        None => None,
    };
    if let Some(other) = &mut other {
        other.beside = Some((subject.directory.clone(), subject.plugins.clone()));
        subject.beside = Some((other.directory.clone(), other.plugins.clone()));
    }
    let known = known_failures(&subject, &options)?;
    let work = work(&subject, &options)?;
    if work.is_empty() && options.lacked_in.is_some() {
        return print("that machine lacked nothing that these checks need\n").map(|()| true);
    }
    let outcomes = run_with_progress(&subject, &work)?;
    let compared = other.map(|other| run_with_progress(&other, &work)).transpose()?;
    let report = Report {
        outcomes: &outcomes,
        compared: compared.as_deref(),
        known: known.as_ref(),
    };
    if let Some(path) = &options.report {
        fs::write(path, format!("{:#}\n", report.json())).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    print(&format!(
        "{}{}\n{}\n",
        report.table(),
        report.details(),
        report.summary()
    ))?;
    let replayed_well = match &options.transcripts {
        Some(directory) => replay_all(&subject, directory, options.deviations.as_deref())?,
        None => true,
    };
    // A list of another version's failures says nothing about this one's.
    let informs_only = options.known_failures.is_some() && known.is_none();
    Ok((report.is_good() && replayed_well) || informs_only)
}

/// What is to be run. It is nothing only if that is what another machine lacked.
fn work(subject: &Subject, options: &Options) -> Result<Vec<(&'static Check, String)>, Failure> {
    let lacked = match &options.lacked_in {
        Some(path) => {
            let told = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
            let text = fs::read(path).map_err(|e| told(&e))?;
            let report = serde_json::from_slice(&text).map_err(|e| told(&e))?;
            Some(report::lacking(&report).map_err(|e| told(&e))?)
        }
        None => None,
    };
    let is_wanted = |(check, plugin): &(&Check, String)| {
        let pair = (check.id.to_owned(), plugin.clone());
        options.selects(check, plugin) && lacked.as_ref().is_none_or(|lacked| lacked.contains(&pair))
    };
    let work: Vec<_> = subject.work(|_| true).into_iter().filter(is_wanted).collect();
    if work.is_empty() && lacked.is_none() {
        return Err("no check matches --only; see --list".into());
    }
    Ok(work)
}

/// Replays all transcripts of a directory and tells the differences; whether each is explained.
fn replay_all(subject: &Subject, directory: &Path, deviations: Option<&Path>) -> Result<bool, Failure> {
    let deviations: Vec<Deviation> = match deviations {
        Some(path) => {
            let text = fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
            serde_json::from_slice(&text).map_err(|e| format!("{}: {e}", path.display()))?
        }
        None => Vec::new(),
    };
    let transcripts = replay::transcripts(directory).map_err(|e| format!("{}: {e}", directory.display()))?;
    let (mut made, mut skipped, mut differences, mut used) = (0_usize, 0_usize, Vec::new(), BTreeSet::new());
    for (name, transcript) in &transcripts {
        match replay::replay(subject, transcript) {
            Ok(replayed) => {
                made = made.saturating_add(replayed.made);
                skipped = skipped.saturating_add(replayed.skipped);
                differences.extend(replay::unexplained(
                    (name, transcript),
                    &replayed,
                    &deviations,
                    &mut used,
                ));
            }
            Err(Stop::Fail(reason) | Stop::NotApplicable(reason)) => differences.push(format!("{name}: {reason}")),
        }
    }
    for (_, idle) in deviations.iter().enumerate().filter(|(index, _)| !used.contains(index)) {
        differences.push(format!(
            "a deviation of {} {} explains nothing: {}",
            idle.plugin, idle.command, idle.reason
        ));
    }
    print(&format!(
        "\n{} transcripts: {made} calls replayed, {skipped} skipped for want of the plugin or of DHCP, {} unexplained differences\n",
        transcripts.len(),
        differences.len()
    ))?;
    differences
        .iter()
        .try_for_each(|difference| print(&format!("{difference}\n")))?;
    Ok(differences.is_empty())
}

fn list(options: &Options) -> Result<(), Failure> {
    let chosen = checks::all().into_iter().filter(|check| options.selects(check, ""));
    let lines = chosen.map(|check| {
        let cases: Vec<_> = check.cases().collect();
        let cases = if cases.is_empty() {
            String::new()
        } else {
            format!(" ({})", cases.join(", "))
        };
        format!("{}{cases}\n    {}\n    {}\n", check.id, check.rule, check.source)
    });
    print(&lines.collect::<String>())
}

fn subject(directory: &Path, options: &Options) -> Result<Subject, Failure> {
    let subject = subject_of(directory, options)?;
    let names: Vec<&str> = subject.plugins.iter().map(String::as_str).collect();
    note(&format!("{}: {}", directory.display(), names.join(", ")))?;
    if !subject.others.is_empty() {
        note(&format!(
            "no plugins, by their answer to VERSION: {}",
            subject.others.join(", ")
        ))?;
    }
    Ok(subject)
}

fn subject_of(directory: &Path, options: &Options) -> Result<Subject, Failure> {
    let mut subject = Subject::find(directory)?;
    if subject.plugins.is_empty() {
        return Err(format!("{} has no plugin in it", directory.display()).into());
    }
    for path in &options.confs {
        let told = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
        let text = fs::read(path).map_err(|e| told(&e))?;
        let conf: Value = serde_json::from_slice(&text).map_err(|e| told(&e))?;
        let plugin = conf
            .get("type")
            .and_then(Value::as_str)
            .ok_or_else(|| told(&"it has no type"))?;
        subject.given.insert(plugin.to_owned(), conf.clone());
    }
    Ok(subject)
}

/// The list of known failures, if it is of these plugins.
fn known_failures(subject: &Subject, options: &Options) -> Result<Option<KnownFailures>, Failure> {
    let Some(path) = &options.known_failures else {
        return Ok(None);
    };
    let known = KnownFailures::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
    if known.is_of(subject)? {
        return Ok(Some(known));
    }
    let prints = &known.of.prints;
    note(&format!(
        "{} is about other plugins ({prints}): failures are reported, and do not count",
        path.display()
    ))?;
    Ok(None)
}

fn run_with_progress(subject: &Subject, work: &[(&'static Check, String)]) -> Result<Vec<Outcome>, Failure> {
    let shown = io::stderr().is_terminal();
    let finished = AtomicUsize::new(0);
    let progress = |outcome: &Outcome| {
        let count = finished.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        if shown {
            let line = format!("\r\x1b[K{count}/{} {} {}", work.len(), outcome.plugin, outcome.check.id);
            // Progress that nobody sees is no loss.
            let _ = io::stderr().write_all(line.as_bytes());
        }
    };
    let outcomes = subject.run(work, progress);
    if shown {
        io::stderr().write_all(b"\r\x1b[K")?;
    }
    Ok(outcomes)
}

/// Whether `text` is of the form `pattern`, in which `*` stands for any text.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let Some(text) = text.strip_prefix(start) else {
        return false;
    };
    text.char_indices()
        .any(|(at, _)| text.get(at..).is_some_and(|tail| matches(rest, tail)))
        || matches(rest, "")
}

fn note(text: &str) -> Result<(), Failure> {
    Ok(writeln!(io::stderr(), "{text}")?)
}

fn print(text: &str) -> Result<(), Failure> {
    Ok(io::stdout().write_all(text.as_bytes())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, text, expected) in [
            ("bridge/mtu", "bridge/mtu", true),
            ("bridge/*", "bridge/mtu", true),
            ("*/mtu", "bridge/mtu", true),
            ("*t*u", "bridge/mtu", true),
            ("bridge", "bridge/mtu", false),
            ("b*x", "bridge/mtu", false),
            ("*", "", true),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }
}
