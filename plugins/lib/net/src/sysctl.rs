//! Sysctls of a network namespace.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::Mode;

use crate::error::{Failure, Result};

const ROOT: &str = "/proc/sys/net";

/// The sysctls below `/proc/sys/net`. Keys are paths below it, `ipv4/conf/eth0.5/arp_notify`: with slashes, so that a dot
/// in an interface's name means nothing.
///
/// A key that is not there is no error but a value of its own: IPv6 may be compiled out, or absent from an interface whose
/// MTU is below 1280.
#[derive(Debug)]
pub struct Sysctl(Tree);

#[derive(Debug)]
enum Tree {
    /// The kernel resolves `/proc/sys/net` for the thread that opens it.
    OfThread,
    /// Directories that were opened inside another namespace stay in it.
    Held { ipv4: OwnedFd, ipv6: Option<OwnedFd> },
}

/// What became of a value to set.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Outcome {
    /// The value was there already, and nothing was written.
    Unchanged,
    /// The value was written. Holds the one before, for undo.
    Changed(String),
    /// There is no such key.
    Absent,
}

impl Sysctl {
    /// The sysctls of the thread's namespace.
    pub(crate) fn of_thread() -> Sysctl {
        Sysctl(Tree::OfThread)
    }

    /// Takes handles on the sysctls of the namespace where the thread is for the moment: `ipv4` and `ipv6`.
    pub(crate) fn hold() -> Result<Sysctl> {
        let directory = |path: &'static str| {
            open(
                path,
                OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
                Mode::empty(),
            )
        };
        let ipv4 = directory("/proc/sys/net/ipv4").map_err(|e| Failure::from(e).of("open", "/proc/sys/net/ipv4"))?;
        let ipv6 = match directory("/proc/sys/net/ipv6") {
            Ok(ipv6) => Some(ipv6),
            Err(Errno::ENOENT) => None,
            Err(errno) => return Err(Failure::from(errno).of("open", "/proc/sys/net/ipv6")),
        };
        Ok(Sysctl(Tree::Held { ipv4, ipv6 }))
    }

    /// The value of `key` without its final newline; `None` where there is no such key.
    ///
    /// # Errors
    /// The key is no relative path, or lies outside of `ipv4` and `ipv6` in another namespace than the thread's; or it
    /// cannot be read.
    pub fn get(&self, key: &str) -> Result<Option<String>> {
        let failed = |failure: Failure| failure.of("read sysctl", format!("net/{key}"));
        match self.open(key, OFlag::O_RDONLY) {
            Ok(file) => read(file).map(|(value, _)| Some(value)).map_err(failed),
            Err(failure) if failure.errno() == Errno::ENOENT => Ok(None),
            Err(failure) => Err(failed(failure)),
        }
    }

    /// Gives `key` a value, unless it has it already: a /proc/sys that is read-only and right is no error.
    ///
    /// # Errors
    /// As [`Sysctl::get`]; or the value cannot be written, or the kernel refuses it.
    pub fn set(&self, key: &str, value: &str) -> Result<Outcome> {
        let failed = |failure: Failure| failure.of("write sysctl", format!("net/{key}={value}"));
        let file = match self.open(key, OFlag::O_RDWR) {
            Ok(file) => file,
            Err(failure) if failure.errno() == Errno::ENOENT => return Ok(Outcome::Absent),
            Err(failure) if matches!(failure.errno(), Errno::EROFS | Errno::EACCES | Errno::EPERM) => {
                return match self.get(key)? {
                    None => Ok(Outcome::Absent),
                    Some(now) if same(&now, value) => Ok(Outcome::Unchanged),
                    Some(_) => Err(failed(failure)),
                };
            }
            Err(failure) => return Err(failed(failure)),
        };
        let (before, file) = read(file).map_err(failed)?;
        if same(&before, value) {
            return Ok(Outcome::Unchanged);
        }
        log::debug!("sysctl net/{key}: {value}, was {}", before.trim());
        // The kernel takes a value in one write at offset 0 and ignores what comes later.
        file.write_all_at(value.as_bytes(), 0)
            .map_err(|e| failed(Failure::io(&e)))?;
        Ok(Outcome::Changed(before))
    }

    /// Whether `key` can be written and never be read: it holds no value, but does something, as `ipv4/route/flush` does.
    ///
    /// # Errors
    /// As [`Sysctl::get`].
    pub fn is_write_only(&self, key: &str) -> Result<bool> {
        let failed = |failure: Failure| failure.of("look at sysctl", format!("net/{key}"));
        match self.open(key, OFlag::O_PATH) {
            // The kernel refuses what the mode does not allow to root as well (`sysctl_perm`).
            Ok(file) => {
                let metadata = file.metadata().map_err(|e| failed(Failure::io(&e)))?;
                Ok(metadata.mode() & 0o666 == 0o200)
            }
            Err(failure) if failure.errno() == Errno::ENOENT => Ok(false),
            Err(failure) => Err(failed(failure)),
        }
    }

    /// Writes to a `key` that cannot be read.
    ///
    /// # Errors
    /// There is no such key, it cannot be written, or the kernel refuses the value.
    pub fn trigger(&self, key: &str, value: &str) -> Result<()> {
        let failed = |failure: Failure| failure.of("write sysctl", format!("net/{key}={value}"));
        let file = self.open(key, OFlag::O_WRONLY).map_err(failed)?;
        file.write_all_at(value.as_bytes(), 0)
            .map_err(|e| failed(Failure::io(&e)))
    }

    fn open(&self, key: &str, access: OFlag) -> Result<File, Failure> {
        let parts = || key.split('/');
        if parts().any(|part| matches!(part, "" | "." | "..")) || key.contains('\0') {
            return Err(Failure::new(Errno::EINVAL, "not a path below /proc/sys/net"));
        }
        let flags = access | OFlag::O_CLOEXEC;
        let opened = match (&self.0, key.split_once('/')) {
            (Tree::OfThread, _) => open(format!("{ROOT}/{key}").as_str(), flags, Mode::empty()),
            (Tree::Held { ipv4, .. }, Some(("ipv4", rest))) => openat(ipv4, rest, flags, Mode::empty()),
            (Tree::Held { ipv6: Some(ipv6), .. }, Some(("ipv6", rest))) => openat(ipv6, rest, flags, Mode::empty()),
            (Tree::Held { ipv6: None, .. }, Some(("ipv6", _))) => Err(Errno::ENOENT),
            (Tree::Held { .. }, _) => {
                return Err(Failure::new(
                    Errno::EINVAL,
                    "only ipv4 and ipv6 are held open in another namespace",
                ));
            }
        };
        opened.map(File::from).map_err(Failure::from)
    }
}

/// Reads a value whole. The kernel hands it out with the first read; asking for its length first, as `read_to_string`
/// does, would cost two more system calls and say 0.
fn read(mut file: File) -> Result<(String, File), Failure> {
    let mut buffer = [0; 4096];
    let length = crate::socket::retry(|| file.read(&mut buffer)).map_err(|e| Failure::io(&e))?;
    let value = String::from_utf8_lossy(buffer.get(..length).unwrap_or_default())
        .trim_end()
        .to_owned();
    Ok((value, file))
}

/// Whether two values are the same to the kernel, which separates numbers by tabs and takes any white space.
fn same(one: &str, other: &str) -> bool {
    one.split_whitespace().eq(other.split_whitespace())
}
