//! One call of a plugin under test, and its answer to the byte. Unlike [`crate::plugin`], which is what a runtime needs,
//! this can also call a plugin wrongly, and sees everything that it does.

use std::fmt;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::Value;

use crate::checks::Stop;
use crate::host::PLUGINS;

/// A plugin that has not closed its standard output after this time has hung.
const PATIENCE: Duration = Duration::from_secs(90);

/// A call that is being put together.
#[derive(Debug, Clone)]
pub struct Call {
    plugin: String,
    directory: String,
    variables: Vec<(String, String)>,
    stdin: Input,
}

/// What a plugin finds on its standard input.
#[derive(Debug, Clone)]
enum Input {
    Bytes(Vec<u8>),
    /// Something that cannot be read.
    Directory,
}

impl Call {
    /// `verb` of `plugin` for the container `c1` with the namespace `a` and the interface `eth0`.
    pub fn new(plugin: &str, verb: &str) -> Call {
        let call = Call {
            plugin: plugin.to_owned(),
            directory: PLUGINS.to_owned(),
            variables: Vec::new(),
            stdin: Input::Bytes(Vec::new()),
        };
        call.with("CNI_COMMAND", verb)
            .with("CNI_CONTAINERID", "c1")
            .with("CNI_NETNS", "/run/netns/a")
            .with("CNI_IFNAME", "eth0")
            .with("CNI_PATH", PLUGINS)
    }

    /// Sets a variable of the environment.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Call {
        self = self.without(name);
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Takes a variable of the environment away.
    #[must_use]
    pub fn without(mut self, name: &str) -> Call {
        self.variables.retain(|(other, _)| other != name);
        self
    }

    /// For the container `id`, whose namespace has the same name.
    #[must_use]
    pub fn container(self, id: &str) -> Call {
        self.with("CNI_CONTAINERID", id)
            .with("CNI_NETNS", &format!("/run/netns/{id}"))
    }

    /// What the plugin reads.
    #[must_use]
    pub fn conf(self, conf: &Value) -> Call {
        self.text(conf.to_string())
    }

    /// What the plugin reads, which need not be JSON.
    #[must_use]
    pub fn text(mut self, stdin: impl Into<Vec<u8>>) -> Call {
        self.stdin = Input::Bytes(stdin.into());
        self
    }

    /// With a standard input that cannot be read.
    #[must_use]
    pub fn unreadable(mut self) -> Call {
        self.stdin = Input::Directory;
        self
    }

    /// The plugin of this name in another directory, where it finds its delegates as well.
    #[must_use]
    pub fn from(mut self, directory: &str) -> Call {
        self.directory = directory.to_owned();
        self.with("CNI_PATH", directory)
    }

    /// Calls the plugin.
    ///
    /// # Errors
    /// It cannot be started, or does not end.
    pub fn run(&self) -> Result<Reply, Stop> {
        let started = self.command()?.spawn();
        let mut child = started.map_err(|e| Stop::Fail(format!("{}: {e}", self.plugin)))?;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        self.write_to(stdin);
        let (stdout, stderr) = (read(stdout), read(stderr));
        let (stdout, stderr) = match (stdout.recv_timeout(PATIENCE), stderr.recv_timeout(PATIENCE)) {
            (Ok(stdout), Ok(stderr)) => (stdout, stderr),
            _ => {
                // It may end just now; what it holds open is what is told.
                let _ = child.kill();
                let _ = child.wait();
                let seconds = PATIENCE.as_secs();
                return Err(Stop::Fail(format!(
                    "{self} still held its output open after {seconds} s"
                )));
            }
        };
        let status = child.wait().map_err(|e| Stop::Fail(format!("{self}: {e}")))?;
        Ok(Reply {
            call: self.to_string(),
            code: status.code(),
            stdout,
            stderr,
        })
    }

    /// Calls the plugin and kills it, with all programs that it has started, after a time, unless it has ended by then.
    ///
    /// # Errors
    /// It cannot be started or killed.
    pub fn kill_after(&self, time: Duration) -> Result<(), Stop> {
        let started = self.command()?.process_group(0).spawn();
        let mut child = started.map_err(|e| Stop::Fail(format!("{}: {e}", self.plugin)))?;
        self.write_to(child.stdin.take());
        thread::sleep(time);
        let group = i32::try_from(child.id()).map(Pid::from_raw);
        // The child is not waited for yet, so the group is still its own.
        let killed = group.map(|group| killpg(group, Signal::SIGKILL));
        child.wait()?;
        match killed {
            Ok(Ok(())) => Ok(()),
            other => Err(Stop::Fail(format!("{self} could not be killed: {other:?}"))),
        }
    }

    #[allow(
        clippy::disallowed_methods,
        reason = "the one place where the suite starts what it judges, with the caller's PATH"
    )]
    fn command(&self) -> Result<Command, Stop> {
        let mut command = Command::new(Path::new(&self.directory).join(&self.plugin));
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
            .stdin(match &self.stdin {
                Input::Bytes(_) => Stdio::piped(),
                Input::Directory => File::open("/")?.into(),
            })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Ok(command)
    }

    fn write_to(&self, stdin: Option<ChildStdin>) {
        if let (Some(mut pipe), Input::Bytes(input)) = (stdin, self.stdin.clone()) {
            // A plugin that refuses its environment need not read its input.
            thread::spawn(move || pipe.write_all(&input));
        }
    }
}

fn read(pipe: Option<impl Read + Send + 'static>) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let complete = pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
        if let Some(Ok(_)) = complete {
            // Nobody listens any more after the plugin was given up.
            let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
        }
    });
    receiver
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |name: &str| self.variables.iter().find(|(other, _)| other == name);
        let verb = of("CNI_COMMAND").map_or("?", |(_, value)| value);
        let id = of("CNI_CONTAINERID").map_or("?", |(_, value)| value);
        write!(f, "{} {verb} of {id}", self.plugin)
    }
}

/// How a plugin's process ended.
#[derive(Debug, Clone)]
pub struct Reply {
    call: String,
    /// The exit code; `None` after a signal.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// An error object.
#[derive(Debug, Clone, PartialEq)]
pub struct Refusal {
    /// `code`.
    pub code: u64,
    /// `msg`, and `details` after it.
    pub text: String,
    /// `cniVersion`.
    pub version: Value,
}

impl Reply {
    /// The object that a successful ADD or VERSION prints.
    ///
    /// # Errors
    /// The plugin failed, or its output is not exactly one object.
    pub fn result(&self) -> Result<Value, Stop> {
        match (self.code, serde_json::from_str(&self.stdout)) {
            (Some(0), Ok(value @ Value::Object(_))) => Ok(value),
            (Some(0), _) => Err(self.wrong("one JSON object on standard output")),
            _ => Err(self.wrong("success")),
        }
    }

    /// Success with nothing on standard output, as of CHECK, DEL, GC and STATUS.
    ///
    /// # Errors
    /// The plugin failed or said something.
    pub fn silent(&self) -> Result<(), Stop> {
        match (self.code, self.stdout.trim()) {
            (Some(0), "") => Ok(()),
            (Some(0), _) => Err(self.wrong("nothing on standard output")),
            _ => Err(self.wrong("success")),
        }
    }

    /// The error object of a plugin that failed.
    ///
    /// # Errors
    /// The plugin succeeded, died, or its output is not exactly one error object.
    pub fn error(&self) -> Result<Refusal, Stop> {
        let object: Value = match self.code {
            Some(0) => return Err(self.wrong("an error")),
            None => return Err(self.wrong("an error object, and it was killed by a signal")),
            Some(_) => serde_json::from_str(&self.stdout)
                .map_err(|_| self.wrong("exactly one error object on standard output"))?,
        };
        let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let code = object.get("code").and_then(Value::as_u64);
        let msg = text("msg");
        match (code, msg.is_empty()) {
            (Some(code), false) => Ok(Refusal {
                code,
                text: format!("{msg} {}", text("details")).trim().to_owned(),
                version: object.get("cniVersion").cloned().unwrap_or_default(),
            }),
            _ => Err(self.wrong("an error object with code and msg")),
        }
    }

    /// An error object of this code.
    ///
    /// # Errors
    /// Everything else.
    pub fn refused(&self, code: u64) -> Result<Refusal, Stop> {
        let refusal = self.error()?;
        if refusal.code == code {
            return Ok(refusal);
        }
        Err(self.wrong(&format!("error code {code}")))
    }

    /// An error object whose text has `part` in it.
    ///
    /// # Errors
    /// Everything else.
    pub fn refused_with(&self, part: &str) -> Result<Refusal, Stop> {
        let refusal = self.error()?;
        if refusal.text.contains(part) {
            return Ok(refusal);
        }
        Err(self.wrong(&format!("an error that says {part:?}")))
    }

    fn wrong(&self, expected: &str) -> Stop {
        let end = self
            .code
            .map_or("a signal".to_owned(), |code| format!("exit code {code}"));
        let stdout: String = self.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        let shown: String = stdout.chars().take(400).collect();
        Stop::Fail(format!("{}: expected {expected}, got {end} and {shown:?}", self.call))
    }
}
