//! The one place that starts iptables' programs.

use std::env;
use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use cni_types::{Code, Error, Result};

use super::saved::{Saved, Table};
use crate::Family;

/// Where administrators' programs live. A service's PATH need not list them, and rules that are there must be removable.
const SYSTEM_DIRECTORIES: &str = "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin";

/// Seconds that the legacy programs wait for the xtables lock, which every user of them on the node shares. Without a
/// limit they wait for ever.
const XTABLES_LOCK_SECONDS: &str = "5";

/// The implementation that translates to nf_tables (Makefile.am of iptables).
pub(super) const NFT_EXECUTABLE: &str = "xtables-nft-multi";
/// The one of old kernels.
pub(super) const LEGACY_EXECUTABLE: &str = "xtables-legacy-multi";

/// Which of the two implementations of iptables: they keep separate tables in the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Variant {
    /// The one that the node uses by default.
    Default,
    /// The one that translates to nf_tables.
    Nft,
    /// The one of old kernels.
    Legacy,
}

/// One implementation's programs for one address family.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Tool {
    pub(super) family: Family,
    pub(super) variant: Variant,
}

/// What `iptables --version` says, such as `iptables v1.8.9 (nf_tables)`; `None` where there is no iptables.
pub(crate) fn version() -> Result<Option<String>> {
    let Some(program) = find("iptables") else {
        return Ok(None);
    };
    let output = run(&program, &["--version"], "")?;
    Ok(Some(String::from_utf8_lossy(&output.stdout).trim().to_owned()))
}

impl Tool {
    /// The default implementation for a family.
    pub(super) fn of(family: Family) -> Tool {
        Tool {
            family,
            variant: Variant::Default,
        }
    }

    /// Whether its tables are those of nf_tables. Where the name of the executable does not tell, as of a script that
    /// chooses between two, the answer is no.
    pub(super) fn is_nft(self) -> bool {
        match self.variant {
            Variant::Nft => true,
            Variant::Legacy => false,
            Variant::Default => self.executable().is_ok_and(|name| name == NFT_EXECUTABLE),
        }
    }

    /// The name of the executable behind the program that writes rules: both implementations are one each, that is linked
    /// under the names of its programs.
    ///
    /// # Errors
    ///
    /// That there is no such program.
    pub(super) fn executable(self) -> Result<OsString> {
        let program = self.program("restore")?;
        let file = program.canonicalize().unwrap_or(program);
        Ok(file.file_name().unwrap_or_default().to_owned())
    }

    /// Reads a table.
    pub(super) fn save(self, table: Table) -> Result<Saved> {
        let program = self.program("save")?;
        log::debug!("{} -t {}", program.display(), table.name());
        let output = run(&program, &["-t", table.name()], "")?;
        Ok(Saved::parse(table, &String::from_utf8_lossy(&output.stdout)))
    }

    /// Applies a script to its table, all of it or nothing.
    ///
    /// # Errors
    ///
    /// Code 11 when another program keeps the xtables lock.
    pub(super) fn restore(self, script: &str) -> Result<()> {
        let program = self.program("restore")?;
        log::debug!("{} --noflush:\n{script}", program.display());
        run(&program, &["--noflush", "-w", XTABLES_LOCK_SECONDS], script).map(drop)
    }

    /// The program for `verb`. An implementation may be installed under its own name, or be the only one.
    fn program(self, verb: &str) -> Result<PathBuf> {
        let base = match self.family {
            Family::V4 => "iptables",
            Family::V6 => "ip6tables",
        };
        let default = format!("{base}-{verb}");
        let own = match self.variant {
            Variant::Default => None,
            Variant::Nft => Some(format!("{base}-nft-{verb}")),
            Variant::Legacy => Some(format!("{base}-legacy-{verb}")),
        };
        let found = own.and_then(|own| find(&own)).or_else(|| find(&default));
        found.ok_or_else(|| {
            Error::internal(format!(
                "{default} is needed for {} rules and was found neither in PATH nor in {SYSTEM_DIRECTORIES}",
                self.family
            ))
        })
    }
}

/// The program of a name, as the reference finds it: in PATH alone.
pub(super) fn find_in_path(program: &str) -> Option<PathBuf> {
    find_in(&search_path().unwrap_or_else(|| SYSTEM_DIRECTORIES.into()), program)
}

/// The program of a name, in PATH or where administrators' programs live.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let in_path = search_path().and_then(|path| find_in(&path, program));
    in_path.or_else(|| find_in(&SYSTEM_DIRECTORIES.into(), program))
}

#[allow(
    clippy::disallowed_methods,
    reason = "which iptables a node uses is what PATH says, as for the reference suite"
)]
fn search_path() -> Option<OsString> {
    env::var_os("PATH").filter(|path| !path.is_empty())
}

/// The first executable file of a name. Relative directories in the path are passed over, as Go's `exec.LookPath` does.
fn find_in(path: &OsString, program: &str) -> Option<PathBuf> {
    env::split_paths(path)
        .filter(|directory| directory.is_absolute())
        .map(|directory| directory.join(program))
        .find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    file.metadata()
        .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// Runs a program to its end.
///
/// # Errors
///
/// What it said, where it fails.
#[allow(
    clippy::disallowed_methods,
    reason = "iptables has no other stable interface than its programs"
)]
pub(super) fn run(program: &Path, args: &[&str], input: &str) -> Result<Output> {
    let failed = |e: std::io::Error| Error::internal(format!("{}: {e}", program.display()));
    let mut command = Command::new(program);
    command.args(args);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        match stdin.write_all(input.as_bytes()) {
            // A program that refuses its arguments need not read its input: its exit code tells.
            Err(e) if e.kind() == ErrorKind::BrokenPipe => {}
            written => written.map_err(failed)?,
        }
    }
    let output = child.wait_with_output().map_err(failed)?;
    if output.status.success() {
        return Ok(output);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let code = match output.status.code() {
        // RESOURCE_PROBLEM of xtables.h, which legacy programs end with when the lock is taken.
        Some(4) if said.contains("xtables lock") => Code::TRY_AGAIN_LATER,
        _ => Code::INTERNAL,
    };
    let command = format!("{} {}", program.display(), args.join(" "));
    Err(Error::new(code, format!("{command}: {}: {}", output.status, said.trim())).with_details(input))
}
