//! `cni-bench`: what plugins cost, side by side with another directory of plugins.

use std::env;
use std::io::{self, Write};
use std::process::ExitCode;

use conformance::bench::{self, Failure, Options};

const USAGE: &str = "\
cni-bench: what CNI plugins cost, side by side with those of another directory

usage: cni-bench [OPTION]... DIRECTORY [DIRECTORY]

  --rounds N   how often each scenario is made with each directory (default 15); storms a quarter of that
  --only TEXT  only scenarios whose name contains TEXT
  --json FILE  writes all figures to FILE as well
  --help       prints this

Prints a table of medians: wall-clock and CPU time in milliseconds, peak memory, and with strace the number of started
programs and system calls. B/A is how many times more the second directory needs, the median over pairs of rounds made
one right after the other. Plugins that one directory lacks are left out of chains. Needs root; everything happens in network
and mount namespaces of its own. Memory below some 2 MiB is that of the measuring process.
";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = bench::own_process(&arguments).unwrap_or_else(|| for_people(&arguments));
    outcome.unwrap_or_else(|e| {
        // There is nobody left to tell if standard error is closed.
        let _ = writeln!(io::stderr(), "{e}");
        ExitCode::FAILURE
    })
}

fn for_people(arguments: &[&str]) -> Result<ExitCode, Failure> {
    let text = match options(arguments)? {
        None => USAGE.to_owned(),
        Some(options) => bench::run(&options, &mut io::stderr())?,
    };
    io::stdout().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// What the arguments ask for, and `None` for help.
fn options(arguments: &[&str]) -> Result<Option<Options>, Failure> {
    let mut options = Options {
        directories: Vec::new(),
        rounds: 15,
        only: String::new(),
        json: None,
    };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
        match *argument {
            "-h" | "--help" => return Ok(None),
            "--rounds" => options.rounds = value()?.parse().map_err(|e| format!("--rounds: {e}"))?,
            "--only" => options.only = (*value()?).to_owned(),
            "--json" => options.json = Some(std::path::absolute(value()?)?),
            unknown if unknown.starts_with('-') => return Err(format!("unknown option {unknown}\n\n{USAGE}").into()),
            directory => options.directories.push(std::path::absolute(directory)?),
        }
    }
    match options.directories.len() {
        1 | 2 => Ok(Some(options)),
        _ => Err(USAGE.into()),
    }
}
