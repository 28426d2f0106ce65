//! Files that appear complete or not at all.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, openat, renameat};
use nix::sys::stat::{Mode, fstatat};
use nix::unistd::{UnlinkatFlags, linkat, unlinkat};

use super::stamp::Stamp;

/// A file with its content, ready to be linked into place. What is not linked disappears, at the latest with the next
/// one prepared under the same number.
pub(super) enum Prepared<'a> {
    /// It has no name yet, and vanishes with the descriptor.
    Unnamed(File),
    /// The file system knows no unnamed files: a temporary name in the directory for them.
    Named { scratch: &'a File, name: String },
}

/// Writes `content` to a file that nobody can see. `number` tells the files of one caller apart; the caller holds a
/// lock.
pub(super) fn prepare<'a>(dir: &File, scratch: &'a File, number: usize, content: &str) -> io::Result<Prepared<'a>> {
    match write_unnamed(dir, content) {
        Ok(file) => Ok(Prepared::Unnamed(file)),
        // What file systems without it answer, and kernels before 3.11.
        Err(Errno::EOPNOTSUPP | Errno::EISDIR | Errno::ENOENT | Errno::EINVAL) => {
            let name = format!("reservation.{number}");
            write_named(scratch, &name, content)?;
            Ok(Prepared::Named { scratch, name })
        }
        Err(e) => Err(e.into()),
    }
}

fn write_unnamed(dir: &File, content: &str) -> nix::Result<File> {
    let flags = OFlag::O_TMPFILE | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
    let mut file = File::from(openat(dir, ".", flags, Mode::from_bits_truncate(0o600))?);
    file.write_all(content.as_bytes()).map_err(|e| errno(&e))?;
    Ok(file)
}

/// Writes a file under a temporary name; whatever a killed process left there is overwritten.
fn write_named(scratch: &File, name: &str, content: &str) -> io::Result<()> {
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_TRUNC | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
    let file: OwnedFd = openat(scratch, name, flags, Mode::from_bits_truncate(0o600))?;
    File::from(file).write_all(content.as_bytes()).inspect_err(|_| {
        // Best effort: the next writer truncates it.
        let _ = unlinkat(scratch, name, UnlinkatFlags::NoRemoveDir);
    })
}

impl Prepared<'_> {
    /// Which file it is.
    pub(super) fn stamp(&self) -> io::Result<Stamp> {
        match self {
            Prepared::Unnamed(file) => file.metadata(),
            Prepared::Named { scratch, name } => {
                let flags = OFlag::O_PATH | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
                File::from(openat(*scratch, name.as_str(), flags, Mode::empty())?).metadata()
            }
        }
        .map(|metadata| Stamp::of(&metadata))
    }

    /// Gives the file its name in `dir`.
    ///
    /// # Errors
    /// `EEXIST` where the name is taken, and whatever the file system says.
    pub(super) fn link(&self, dir: &File, name: &str) -> nix::Result<()> {
        match self {
            Prepared::Unnamed(file) => link_unnamed(file, dir, name),
            Prepared::Named {
                scratch,
                name: temporary,
            } => {
                match linkat(*scratch, temporary.as_str(), dir, name, AtFlags::empty()) {
                    // No hard links here. The lock keeps everybody else from taking the name meanwhile.
                    Err(Errno::EPERM | Errno::EOPNOTSUPP | Errno::EMLINK | Errno::ENOSYS) => {
                        match fstatat(dir, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
                            Ok(_) => Err(Errno::EEXIST),
                            Err(_) => renameat(*scratch, temporary.as_str(), dir, name),
                        }
                    }
                    linked => linked,
                }
            }
        }
    }
}

impl Drop for Prepared<'_> {
    fn drop(&mut self) {
        if let Prepared::Named { scratch, name } = self {
            // It may have been renamed; and the next writer of this name truncates it.
            let _ = unlinkat(*scratch, name.as_str(), UnlinkatFlags::NoRemoveDir);
        }
    }
}

fn link_unnamed(file: &File, dir: &File, name: &str) -> nix::Result<()> {
    // By descriptor alone it would need CAP_DAC_READ_SEARCH (linkat(2)).
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    match linkat(AT_FDCWD, path.as_str(), dir, name, AtFlags::AT_SYMLINK_FOLLOW) {
        // No /proc here.
        Err(Errno::ENOENT) => linkat(file, "", dir, name, AtFlags::AT_EMPTY_PATH),
        linked => linked,
    }
}

/// A new content for a file, to take the place of the old one in a single step.
pub(super) struct Replacement<'a> {
    scratch: &'a File,
    temporary: String,
    name: String,
}

impl<'a> Replacement<'a> {
    /// Writes the content under a temporary name.
    pub(super) fn prepare(scratch: &'a File, name: String, content: &str) -> io::Result<Replacement<'a>> {
        let temporary = format!("{name}.new");
        write_named(scratch, &temporary, content)?;
        Ok(Replacement {
            scratch,
            temporary,
            name,
        })
    }

    /// Puts it in place.
    pub(super) fn commit(&self, dir: &File) -> nix::Result<()> {
        renameat(self.scratch, self.temporary.as_str(), dir, self.name.as_str())
    }
}

impl Drop for Replacement<'_> {
    fn drop(&mut self) {
        // Gone if it was committed.
        let _ = unlinkat(self.scratch, self.temporary.as_str(), UnlinkatFlags::NoRemoveDir);
    }
}

/// The error number of a failed write; those without one are none of the system's.
fn errno(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}
