//! `cni-conformance bench`: what plugins cost, side by side with another directory of plugins.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

use conformance::bench::{self, Options};

use super::{Failure, print};

const USAGE: &str = "\
cni-conformance bench: what CNI plugins cost, side by side with those of another directory

usage: cni-conformance bench --plugins DIR [OPTION]...

  --plugins DIR  the plugins to measure, A in the table
  --compare DIR  measures another directory as well, B in the table: round by round in turn, A, B, A, B
  --rounds N     how often each scenario is made with each directory (default 15); storms a quarter of that
  --only TEXT    only the scenario of this name, or those whose name contains TEXT
  --report FILE  writes all figures as JSON
  -h, --help     prints this

Prints a table of medians: wall-clock and CPU time in milliseconds, peak memory, and with strace the number of started
programs and system calls. B/A is how many times more the second directory needs, the median over pairs of rounds made
one right after the other. Plugins that one directory lacks are left out of chains. Needs root; everything happens in network
and mount namespaces of its own. Memory below some 2 MiB is that of the measuring process.
";

/// Measures what the arguments after `bench` ask for, and prints the table.
///
/// # Errors
/// The arguments make no sense, or the measurement cannot be made.
pub(super) fn run(arguments: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    let text = match options(arguments).map_err(|e| format!("{e}\n\n{USAGE}"))? {
        None => USAGE.to_owned(),
        Some(options) => bench::run(&options, &mut io::stderr())?,
    };
    print(&text)
}

/// What the arguments ask for, and `None` for help.
fn options(arguments: impl IntoIterator<Item = OsString>) -> Result<Option<Options>, lexopt::Error> {
    use lexopt::prelude::{Long, Short, ValueExt};
    let (mut plugins, mut compare): (Option<PathBuf>, Option<PathBuf>) = (None, None);
    let mut options = Options {
        directories: Vec::new(),
        rounds: 15,
        only: String::new(),
        json: None,
    };
    let mut parser = lexopt::Parser::from_args(arguments);
    while let Some(argument) = parser.next()? {
        match argument {
            Long("plugins") => plugins = Some(path(&mut parser)?),
            Long("compare") => compare = Some(path(&mut parser)?),
            Long("rounds") => options.rounds = parser.value()?.parse()?,
            Long("only") => options.only = parser.value()?.string()?,
            Long("report") => options.json = Some(path(&mut parser)?),
            Short('h') | Long("help") => return Ok(None),
            other => return Err(other.unexpected()),
        }
    }
    options.directories.push(plugins.ok_or("--plugins is missing")?);
    options.directories.extend(compare);
    Ok(Some(options))
}

/// A path that stays right in another working directory.
fn path(parser: &mut lexopt::Parser) -> Result<PathBuf, lexopt::Error> {
    let path = PathBuf::from(parser.value()?);
    std::path::absolute(&path).map_err(|e| format!("{}: {e}", path.display()).into())
}
