//! The commands of `ferrule` itself, for whoever looks after a node: what it lacks, which backend suits it, and how it is
//! handed over to another suite.

mod backend;
mod doctor;
mod handover;
mod settings;

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::process::ExitCode;

use skel::Registered;

/// A command of `ferrule`.
pub(crate) struct Command {
    name: &'static str,
    usage: &'static str,
    about: &'static str,
    run: fn(lexopt::Parser, &[Registered]) -> Result<Outcome, Failure>,
}

impl Command {
    fn explain(&self) -> Outcome {
        Outcome::success(format!("usage: ferrule {}\n{}\n", self.usage, self.about))
    }
}

/// In the order in which `--help` lists them.
static COMMANDS: &[Command] = &[
    Command {
        name: "backend",
        usage: "backend [auto|nftables|iptables] [--write] [--settings FILE]",
        about: "chooses the node's rule system and says why; --write keeps it in the node's settings",
        run: backend::run,
    },
    Command {
        name: "doctor",
        usage: "doctor [--json] [--bin-dir DIR] [--conf-dir DIR]",
        about: "tells what the plugins need and this node lacks, with a remedy; fails if something must be done",
        run: doctor::run,
    },
    Command {
        name: "drain",
        usage: "drain",
        about: "writes what ferrule's nf_tables hold as iptables rules of the reference plugins, and deletes the tables",
        run: handover::drain,
    },
    Command {
        name: "held",
        usage: "held [nftables|iptables]",
        about: "lists what attachments hold of ferrule's in the kernel, one a line",
        run: handover::held,
    },
    Command {
        name: "--version",
        usage: "--version",
        about: "prints the version",
        run: version,
    },
    Command {
        name: "list",
        usage: "list",
        about: "prints the plugins' names",
        run: list,
    },
    Command {
        name: "--help",
        usage: "--help",
        about: "prints this",
        run: help,
    },
];

/// What a command prints on standard output, and whether that is a success.
pub(crate) struct Outcome {
    text: String,
    success: bool,
}

impl Outcome {
    fn success(text: String) -> Outcome {
        Outcome { text, success: true }
    }
}

/// Why a command could not do what it was asked for.
pub(crate) enum Failure {
    /// It was asked in a wrong way; exit code 2.
    Usage(lexopt::Error),
    /// It did not work; exit code 1.
    Failed(cni_types::Error),
}

impl From<lexopt::Error> for Failure {
    fn from(error: lexopt::Error) -> Failure {
        Failure::Usage(error)
    }
}

impl From<cni_types::Error> for Failure {
    fn from(error: cni_types::Error) -> Failure {
        Failure::Failed(error)
    }
}

/// The command of a name; `None` where `ferrule` has none.
pub(crate) fn command(name: &OsStr) -> Option<&'static Command> {
    COMMANDS.iter().find(|command| name == command.name)
}

/// Runs a command with the arguments that follow its name.
pub(crate) fn run(command: &Command, suite: &[Registered], arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    skel::log_as("ferrule");
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let outcome = match arguments.as_slice() {
        [asked] if asked == "--help" || asked == "-h" => Ok(command.explain()),
        _ => (command.run)(lexopt::Parser::from_args(arguments), suite),
    };
    let (mut to, text, code): (Box<dyn Write>, String, u8) = match outcome {
        Ok(outcome) => (Box::new(io::stdout()), outcome.text, u8::from(!outcome.success)),
        Err(Failure::Failed(e)) => (Box::new(io::stderr()), format!("ferrule {}: {e}\n", command.name), 1),
        Err(Failure::Usage(e)) => {
            let text = format!("ferrule {}: {e}\nusage: ferrule {}\n", command.name, command.usage);
            (Box::new(io::stderr()), text, 2)
        }
    };
    match to.write_all(text.as_bytes()) {
        Ok(()) => ExitCode::from(code),
        Err(_) => ExitCode::FAILURE,
    }
}

/// Takes no argument.
fn no_arguments(mut arguments: lexopt::Parser) -> Result<(), lexopt::Error> {
    match arguments.next()? {
        None => Ok(()),
        Some(argument) => Err(argument.unexpected()),
    }
}

fn list(_: lexopt::Parser, suite: &[Registered]) -> Result<Outcome, Failure> {
    let names = suite.iter().map(|plugin| format!("{}\n", plugin.name));
    Ok(Outcome::success(names.collect()))
}

fn version(arguments: lexopt::Parser, _: &[Registered]) -> Result<Outcome, Failure> {
    no_arguments(arguments)?;
    Ok(Outcome::success(format!("ferrule {}\n", env!("CARGO_PKG_VERSION"))))
}

fn help(arguments: lexopt::Parser, suite: &[Registered]) -> Result<Outcome, Failure> {
    no_arguments(arguments)?;
    let plugins: Vec<&str> = suite.iter().map(|plugin| plugin.name).collect();
    let commands: String = COMMANDS
        .iter()
        .map(|command| format!("  ferrule {}\n      {}\n", command.usage, command.about))
        .collect();
    Ok(Outcome::success(format!(
        "ferrule {}: CNI plugins in one executable. Started under the name of a plugin it is that plugin:\n  {}\n\n\
         Under its own name:\n{commands}",
        env!("CARGO_PKG_VERSION"),
        plugins.join(" ")
    )))
}
