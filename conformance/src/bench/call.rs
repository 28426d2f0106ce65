//! Calling a plugin, and what the call cost.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use serde_json::{Value, json};

use super::Failure;

/// What something cost.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Cost {
    /// From start to end.
    pub(super) wall: Duration,
    /// User and system time of the plugin and the programs that it waited for; zero where it is not measured.
    pub(super) cpu: Duration,
    /// The largest resident set of any of these processes, in KiB; 0 where it is not measured.
    pub(super) peak_kib: u64,
    /// Programs started, the plugin itself included; 0 where they are not counted.
    pub(super) programs: u64,
    /// System calls of all these processes; 0 where they are not counted.
    pub(super) system_calls: u64,
}

impl Cost {
    /// Both, one after the other.
    pub(super) fn and(self, later: Cost) -> Cost {
        Cost {
            wall: self.wall + later.wall,
            cpu: self.cpu + later.cpu,
            peak_kib: self.peak_kib.max(later.peak_kib),
            programs: self.programs + later.programs,
            system_calls: self.system_calls + later.system_calls,
        }
    }
}

/// How a call is observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Observer {
    /// Not at all: it runs beside others, or prepares something.
    None,
    /// Time and memory, by a process of its own that starts the plugin and does nothing else ([`measure`]).
    Clock,
    /// System calls and programs, under strace, which makes all times meaningless.
    Trace,
}

/// Calls a plugin with exactly these variables and PATH. Returns what it printed, if anything.
///
/// # Errors
/// The plugin cannot be started, fails, or prints something else than one JSON document.
pub(super) fn call(
    plugin: &Path,
    variables: &[(&str, String)],
    input: &Value,
    observer: Observer,
) -> Result<(Value, Cost), Failure> {
    let notes = format!("/run/conformance/cost.{:?}", std::thread::current().id());
    let mut command = match observer {
        Observer::None => program(plugin),
        Observer::Clock => {
            let mut command = program(&std::env::current_exe()?);
            command.args([MEASURE, &notes]).arg(plugin);
            command
        }
        Observer::Trace => {
            let mut command = program(Path::new("strace"));
            command.args(["-f", "-qq", "-o", &notes, "--"]).arg(plugin);
            command
        }
    };
    command.env_clear();
    command.env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    let stdout = answer(&mut command, plugin, &input.to_string())?;
    let document = if stdout.is_empty() {
        Value::Null
    } else {
        serde_json::from_slice(&stdout).map_err(|e| format!("{}: no JSON ({e})", plugin.display()))?
    };
    let cost = match observer {
        Observer::None => Cost::default(),
        Observer::Clock => measured(&serde_json::from_slice(&fs::read(&notes)?)?).ok_or("unreadable measurement")?,
        Observer::Trace => count(&fs::read_to_string(&notes)?),
    };
    Ok((document, cost))
}

fn answer(command: &mut Command, plugin: &Path, input: &str) -> Result<Vec<u8>, Failure> {
    let pipes = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = pipes.spawn().map_err(|e| format!("{:?}: {e}", command.get_program()))?;
    if let Some(mut pipe) = child.stdin.take() {
        match pipe.write_all(input.as_bytes()) {
            // A plugin that refuses its environment need not read its input.
            Err(e) if e.kind() != io::ErrorKind::BrokenPipe => return Err(e.into()),
            _ => {}
        }
    }
    let output = child.wait_with_output()?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    let (answer, complaints) = (said(&output.stdout), said(&output.stderr));
    Err(format!("{} {}: {answer} {complaints}", plugin.display(), output.status).into())
}

/// The first argument that makes the program a measuring process.
pub(super) const MEASURE: &str = "--measure";

/// Runs a program, writes what it cost to the file `notes`, and returns its exit code.
///
/// This is a process of its own, as Linux reports the memory and the time of all children together, and counts to a
/// child's memory what its parent had when it was started: the parent has to be small and new.
///
/// # Errors
/// The program cannot be started, or the file not be written.
pub(super) fn measure(notes: &Path, plugin: &Path) -> Result<u8, Failure> {
    let began = Instant::now();
    let status = program(plugin).status()?;
    let wall = began.elapsed();
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let cpu = usage.user_time() + usage.system_time();
    let figures = json!({
        "wallNs": u64::try_from(wall.as_nanos())?,
        "cpuUs": cpu.num_microseconds(),
        "peakKib": usage.max_rss(),
    });
    fs::write(notes, figures.to_string())?;
    Ok(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1))
}

fn measured(figures: &Value) -> Option<Cost> {
    let figure = |key: &str| figures.get(key).and_then(Value::as_u64);
    Some(Cost {
        wall: Duration::from_nanos(figure("wallNs")?),
        cpu: Duration::from_micros(figure("cpuUs")?),
        peak_kib: figure("peakKib")?,
        ..Cost::default()
    })
}

/// The CPU time of all processes that this one has waited for, and of those that they waited for.
///
/// # Errors
/// The system's.
pub(super) fn cpu_of_children() -> Result<Duration, Failure> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let spent = usage.user_time() + usage.system_time();
    Ok(Duration::from_micros(spent.num_microseconds().try_into()?))
}

/// Reads strace's notes. A call that another process interrupted takes two lines, the second of them `resumed`.
fn count(notes: &str) -> Cost {
    let is_call = |line: &&str| {
        let call = line.split_once(' ').map_or("", |(_, rest)| rest.trim_start());
        call.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
    };
    let has_started = |line: &&str| line.contains("execve") && line.ends_with(" = 0");
    Cost {
        system_calls: count_of(notes.lines().filter(is_call)),
        programs: count_of(notes.lines().filter(has_started)),
        ..Cost::default()
    }
}

fn count_of<'a>(lines: impl Iterator<Item = &'a str>) -> u64 {
    u64::try_from(lines.count()).unwrap_or(u64::MAX)
}

/// Runs a script that prepares something.
///
/// # Errors
/// It fails; its complaints are in the error.
pub(super) fn shell(script: &str) -> Result<(), Failure> {
    let output = program(Path::new("sh")).args(["-euc", script]).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("`{script}`: {}", String::from_utf8_lossy(&output.stderr).trim()).into())
}

#[allow(
    clippy::disallowed_methods,
    reason = "the one place where the benchmark starts programs"
)]
pub(super) fn program(path: &Path) -> Command {
    Command::new(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_calls_and_programs_in_the_notes_of_strace() {
        let notes = "\
7 execve(\"/bin/bridge\", [\"bridge\"], 0x7ffc /* 6 vars */) = 0
7 brk(NULL) = 0x1
7 clone(child_stack=NULL <unfinished ...>
8 execve(\"/usr/sbin/iptables\", [\"iptables\"], 0x1 <unfinished ...>
7 <... clone resumed>) = 8
8 <... execve resumed>) = 0
8 execve(\"/none\", [\"none\"], 0x1) = -1 ENOENT (No such file or directory)
8 exit_group(0) = ?
7 --- SIGCHLD {si_signo=SIGCHLD} ---
7 _exit(0) = ?
";
        let cost = count(notes);
        assert_eq!((cost.system_calls, cost.programs), (7, 2));
    }

    #[test]
    fn a_measurement_survives_its_way_through_the_file() {
        let cost = measured(&json!({"wallNs": 1500, "cpuUs": 2, "peakKib": 900})).unwrap();
        assert_eq!(
            (cost.wall.as_nanos(), cost.cpu.as_micros(), cost.peak_kib),
            (1500, 2, 900)
        );
        assert_eq!(measured(&json!({"wallNs": 1500})), None);
    }

    #[test]
    fn costs_add_up_and_memory_does_not() {
        let one = Cost {
            wall: Duration::from_millis(3),
            peak_kib: 700,
            programs: 2,
            ..Cost::default()
        };
        let both = one.and(one);
        assert_eq!((both.wall.as_millis(), both.peak_kib, both.programs), (6, 700, 4));
    }
}
