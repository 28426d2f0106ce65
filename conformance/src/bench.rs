//! What plugins cost: the same work with two directories of plugins, round by round in turn.
//!
//! Figures of one run compare with each other, and not with those of another: machines differ, and their load does so
//! from minute to minute. So every round of a scenario is made with the first directory and at once with the second, and
//! what counts is the ratio of each such pair. Each scenario has a private world for each directory; all data is in memory
//! there (tmpfs), which leaves out what a disk costs both alike.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

mod call;
mod connections;
mod report;
mod scenario;
mod site;
mod world;

use call::Observer;
use report::Row;
use scenario::{Scenario, Work};
use site::{Costs, Site};
use world::World;

use crate::host::PLUGINS;

/// What went wrong, in words: a benchmark that cannot go on is for people to repair.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What to measure.
#[derive(Debug, Clone)]
pub struct Options {
    /// One or two directories of plugins.
    pub directories: Vec<PathBuf>,
    /// How often each scenario is made with each directory, besides those that are not counted.
    pub rounds: usize,
    /// Only the scenario of this name, or those whose name contains it.
    pub only: String,
    /// Where to write the figures as JSON.
    pub json: Option<PathBuf>,
}

/// Rounds that are made before measuring: the first ADD makes the bridge and reads the executables from the disk.
const WARM_UP: usize = 2;

/// The benchmark's own processes: it starts itself to measure a plugin from close by, and to make connections.
/// Returns how such a process ended, and `None` for arguments of people.
pub fn own_process(arguments: &[&str]) -> Option<Result<ExitCode, Failure>> {
    match arguments {
        [call::MEASURE, notes, plugin] => Some(call::measure(notes.as_ref(), plugin.as_ref()).map(ExitCode::from)),
        [connections::SERVE] => Some(connections::serve().map(|()| ExitCode::SUCCESS)),
        [connections::CONNECT, address, port] => Some(connections::connect(address, port).map(|()| ExitCode::SUCCESS)),
        _ => None,
    }
}

/// Measures, tells on `progress` what it is at, and returns the table.
///
/// # Errors
/// A scenario that cannot be prepared, as without root. One that fails later on is named below the table, for what does not
/// work has no cost.
pub fn run(options: &Options, progress: &mut dyn Write) -> Result<String, Failure> {
    let names: Vec<String> = options.directories.iter().map(|d| d.display().to_string()).collect();
    let in_all = |plugin: &str| {
        options
            .directories
            .iter()
            .all(|directory| directory.join(plugin).is_file())
    };
    let scenarios: Vec<Scenario> = scenario::all(&options.only, in_all)
        .into_iter()
        .filter(|scenario| !scenario.work.plugins().is_empty())
        .collect();
    let before = surroundings(&names, options.rounds);
    let traces = call::program("strace".as_ref()).arg("-V").output().is_ok();
    if !traces {
        writeln!(progress, "strace is missing: no programs and system calls are counted")?;
    }
    let mut benches = Vec::new();
    for (n, scenario) in scenarios.iter().enumerate() {
        writeln!(progress, "{} of {}: {}", n + 1, scenarios.len(), scenario.name)?;
        benches.push(Bench::measure(scenario, options, traces)?);
    }
    let failed = |(_, failure): &(_, Option<String>)| failure.as_ref().map(|e| format!("\nfailed: {e}\n"));
    let failures: String = benches.iter().filter_map(failed).collect();
    let rows: Vec<Row> = benches.into_iter().flat_map(|(rows, _)| rows).collect();
    if let Some(path) = &options.json {
        let whole = report::json(
            &rows,
            &names,
            json!({"before": before, "after": surroundings(&names, options.rounds)}),
        );
        fs::write(path, format!("{whole:#}\n")).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    Ok(report::table(&rows, &names) + &failures)
}

/// What else decides over figures: the kernel, and how busy the machine is.
fn surroundings(directories: &[String], rounds: usize) -> Value {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    json!({
        "kernel": read("/proc/sys/kernel/osrelease"),
        "load": read("/proc/loadavg"),
        "processors": std::thread::available_parallelism().map_or(0, usize::from),
        "directories": directories,
        "rounds": rounds,
    })
}

/// A scenario with each directory.
struct Bench {
    scenario: Scenario,
    sites: Vec<(World, Arc<Mutex<Site>>)>,
    rows: Vec<Row>,
    /// Why it is not made any more, if it is not.
    failure: Option<String>,
}

impl Bench {
    /// Measures a scenario from its first round to its last. In turn with the others, each round would find the processor's
    /// caches full of what others did, which costs a small program more than a large one.
    fn measure(scenario: &Scenario, options: &Options, traces: bool) -> Result<(Vec<Row>, Option<String>), Failure> {
        let mut bench = Bench::prepare(scenario.clone(), &options.directories)?;
        let warm_up = WARM_UP.div_ceil(scenario.every);
        for round in 0..warm_up + options.rounds.div_ceil(scenario.every) {
            bench.round(round >= warm_up);
        }
        if traces {
            bench.count();
        }
        Ok((bench.rows, bench.failure))
    }

    fn prepare(scenario: Scenario, directories: &[PathBuf]) -> Result<Bench, Failure> {
        let mut sites = Vec::new();
        for directory in directories {
            let world = World::new(directory)?;
            // What iptables holds is the same whoever writes it, and some take a quarter of an hour for it.
            let publisher = match (scenario.before.mappings, directories.first()) {
                (Some(("iptables", _)), Some(first)) => first.clone(),
                _ => directory.clone(),
            };
            let wanted = scenario.clone();
            let site = world.run(move || Site::prepare(Path::new(PLUGINS), &publisher, &wanted))?;
            sites.push((world, Arc::new(Mutex::new(site))));
        }
        Ok(Bench {
            scenario,
            sites,
            rows: Vec::new(),
            failure: None,
        })
    }

    fn round(&mut self, counts: bool) {
        let costs = self.work(Observer::Clock);
        if counts {
            self.note(&costs, |row, directory, cost| {
                if let Some(rounds) = row.rounds.get_mut(directory) {
                    rounds.push(cost);
                }
            });
        }
    }

    /// A storm's calls are those of its chain. A plugin that reads the files of a large pool would be minutes under strace.
    fn count(&mut self) {
        const SMALL_POOL: u32 = 1_000;
        if self.scenario.before.held <= SMALL_POOL && !matches!(self.scenario.work, Work::Storm(_)) {
            let costs = self.work(Observer::Trace);
            self.note(&costs, |row, _, cost| row.counts.push(cost));
        }
    }

    /// One round, with every directory or, once one has failed, with none.
    fn work(&mut self, observer: Observer) -> Vec<Costs> {
        if self.failure.is_some() {
            return Vec::new();
        }
        let mut costs = Vec::new();
        for (directory, (world, site)) in self.sites.iter().enumerate() {
            let (site, work) = (Arc::clone(site), self.scenario.work_of(directory).clone());
            let outcome = world.run(move || {
                let mut site = site.lock().map_err(|_| "a round has panicked")?;
                site.work(&work, observer)
            });
            match outcome {
                Ok(parts) => costs.push(parts),
                Err(e) => {
                    let name = self.scenario.name.as_str();
                    self.failure = Some(format!("{name}, directory {}: {e}", directory + 1));
                    return Vec::new();
                }
            }
        }
        costs
    }

    fn note(&mut self, costs: &[Costs], put: impl Fn(&mut Row, usize, call::Cost)) {
        for (directory, parts) in costs.iter().enumerate() {
            for (part, cost) in parts {
                put(self.row(part), directory, *cost);
            }
        }
    }

    fn row(&mut self, part: &str) -> &mut Row {
        let at = self.rows.iter().position(|row| row.part == part).unwrap_or_else(|| {
            self.rows.push(Row {
                scenario: self.scenario.name.clone(),
                part: part.to_owned(),
                plugins: self.scenario.work.plugins(),
                rounds: vec![Vec::new(); self.sites.len()],
                counts: Vec::new(),
            });
            self.rows.len() - 1
        });
        // The index is that of a row that was found or pushed.
        &mut self.rows[at]
    }
}
