//! Is a path a network namespace, and is it our own?
#![allow(unsafe_code, reason = "NS_GET_NSTYPE has no safe wrapper")]

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use cni_types::{Code, Error, Result};
use nix::sched::CloneFlags;
use nix::sys::statfs::{NSFS_MAGIC, fstatfs};

/// The network namespace of a container, held open: from here on the path may vanish or be mounted over.
#[derive(Debug)]
pub struct Netns {
    path: PathBuf,
    file: Option<File>,
}

impl Netns {
    /// `CNI_NETNS` as the runtime wrote it: what a result's `sandbox` holds.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open namespace.
    ///
    /// # Errors
    ///
    /// [`Code::INVALID_NETNS`] where the path is no namespace: only plugins that do not enter it get that far.
    pub fn fd(&self) -> Result<BorrowedFd<'_>> {
        self.file
            .as_ref()
            .map(AsFd::as_fd)
            .ok_or_else(|| invalid(&self.path, "not a network namespace"))
    }
}

/// What a path turned out to be.
pub(crate) enum Found {
    /// Nothing is there.
    Missing,
    /// Something that is no network namespace.
    Unusable(String),
    /// Something that may be one, and cannot be opened now.
    Unopened(io::Error),
    /// The namespace that this process is in.
    Own,
    /// Another network namespace.
    Other(File),
}

/// Looks at a path without following it into the namespace. Nothing is created.
pub(crate) fn look(path: &Path) -> Result<Found> {
    // Non-blocking: a FIFO at the path must not hang the runtime.
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(nix::libc::O_NONBLOCK | nix::libc::O_NOCTTY)
        .open(path);
    let file = match opened {
        Ok(file) => file,
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(Found::Missing);
        }
        Err(e) if is_about_the_path(&e) => return Ok(Found::Unusable(e.to_string())),
        Err(e) => return Ok(Found::Unopened(e)),
    };
    if !is_network_namespace(&file) {
        return Ok(Found::Unusable("not a network namespace".to_owned()));
    }
    let theirs = file.metadata().map_err(|e| Error::io(path.display(), &e))?;
    // Of the thread: /proc/self shows the namespace of the process's first one.
    const OWN: &str = "/proc/thread-self/ns/net";
    let ours = fs::metadata(OWN).map_err(|e| Error::io(OWN, &e))?;
    Ok(match (theirs.dev(), theirs.ino()) == (ours.dev(), ours.ino()) {
        true => Found::Own,
        false => Found::Other(file),
    })
}

/// Whether nothing that is opened under this path could be a namespace, rather than that it cannot be opened: a loop of links, a
/// name that is too long, a socket.
fn is_about_the_path(error: &io::Error) -> bool {
    use nix::libc::{ELOOP, ENAMETOOLONG, ENODEV, ENXIO};
    error.kind() == io::ErrorKind::InvalidInput
        || matches!(error.raw_os_error(), Some(ELOOP | ENAMETOOLONG | ENXIO | ENODEV))
}

fn is_network_namespace(file: &File) -> bool {
    const NS_GET_NSTYPE: nix::libc::c_ulong = nix::request_code_none!(0xb7, 0x3) as nix::libc::c_ulong;
    let on_nsfs = fstatfs(file).is_ok_and(|stat| stat.filesystem_type() == NSFS_MAGIC);
    // SAFETY: the request takes no argument, and the descriptor is open for the length of the call.
    on_nsfs && unsafe { nix::libc::ioctl(file.as_raw_fd(), NS_GET_NSTYPE as _) } == CloneFlags::CLONE_NEWNET.bits()
}

/// The namespace for ADD and CHECK, which act on a living container or not at all.
pub(crate) fn required(path: &Path, enters: bool, allow_own: bool) -> Result<Netns> {
    let netns = |file| Netns {
        path: path.to_owned(),
        file,
    };
    match look(path)? {
        Found::Own if !allow_own => Err(own()),
        Found::Own => Ok(netns(File::open(path).ok())),
        Found::Other(file) => Ok(netns(Some(file))),
        Found::Missing if enters => Err(invalid(path, "no such file or directory")),
        Found::Unusable(reason) if enters => Err(invalid(path, &reason)),
        Found::Unopened(e) if enters => Err(invalid(path, &e.to_string())),
        Found::Missing | Found::Unusable(_) | Found::Unopened(_) => Ok(netns(None)),
    }
}

/// The namespace for DEL: `None` where it is gone, and then there is nothing in it to clean up.
///
/// # Errors
///
/// [`Code::INVALID_NETNS`] for our own, and code 5 for one that is there and cannot be opened. The caller cleans the host's
/// side all the same before it answers so.
pub(crate) fn remaining(path: &Path, enters: bool, allow_own: bool) -> Result<Option<Netns>> {
    if path.as_os_str().is_empty() {
        return Ok(None);
    }
    let netns = |file| {
        Some(Netns {
            path: path.to_owned(),
            file: Some(file),
        })
    };
    match look(path)? {
        Found::Own if !allow_own => Err(own()),
        Found::Own => Ok(File::open(path).ok().and_then(netns)),
        Found::Other(file) => Ok(netns(file)),
        Found::Missing => Ok(None),
        Found::Unusable(reason) => {
            log::warn!("{}: {reason}; taken as gone", path.display());
            Ok(None)
        }
        // It may still have what DEL has to remove.
        Found::Unopened(e) if enters => Err(Error::io(path.display(), &e)),
        Found::Unopened(_) => Ok(None),
    }
}

fn own() -> Error {
    Error::new(
        Code::INVALID_NETNS,
        "plugin's netns and netns from CNI_NETNS should not be the same",
    )
}

fn invalid(path: &Path, reason: &str) -> Error {
    Error::new(
        Code::INVALID_NETNS,
        format!("failed to open netns {:?}: {reason}", path.display().to_string()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_network_namespace_is_told_apart() {
        assert!(matches!(look(Path::new("/nowhere/at/all")).unwrap(), Found::Missing));
        assert!(matches!(look(Path::new("/etc/passwd/x")).unwrap(), Found::Missing));
        for path in [
            "/etc/passwd",
            "/proc/thread-self/ns/mnt",
            "/proc/thread-self/ns/uts",
            "/etc",
            "/dev/null",
        ] {
            assert!(matches!(look(Path::new(path)).unwrap(), Found::Unusable(_)), "{path}");
        }
        assert!(matches!(
            look(Path::new("/proc/thread-self/ns/net")).unwrap(),
            Found::Own
        ));
    }

    #[test]
    fn another_namespace_is_told_from_our_own_in_a_thread_too() {
        testkit::world(|w| {
            assert!(matches!(
                look(Path::new("/proc/thread-self/ns/net")).unwrap(),
                Found::Own
            ));
            assert!(matches!(look(&w.netns("a")).unwrap(), Found::Other(_)));
        });
    }

    #[test]
    fn a_fifo_does_not_hang() {
        testkit::world(|w| {
            let fifo = w.tmp().join("fifo");
            w.sh(&format!("mkfifo {}", fifo.display()));
            assert!(matches!(look(&fifo).unwrap(), Found::Unusable(_)));
        });
    }

    #[test]
    fn add_and_check_refuse_what_they_cannot_work_in() {
        let own = Path::new("/proc/thread-self/ns/net");
        for enters in [true, false] {
            assert_eq!(required(own, enters, false).unwrap_err().code, Code::INVALID_NETNS);
            assert!(required(own, enters, true).unwrap().fd().is_ok());
        }
        for path in ["/nowhere", "/etc/passwd"] {
            assert_eq!(
                required(Path::new(path), true, false).unwrap_err().code,
                Code::INVALID_NETNS
            );
            assert!(required(Path::new(path), false, false).unwrap().fd().is_err());
        }
        assert!(!Path::new("/nowhere").exists());
    }

    #[test]
    fn del_takes_what_is_no_namespace_for_gone() {
        for path in ["", "/nowhere", "/etc/passwd"] {
            assert!(remaining(Path::new(path), true, false).unwrap().is_none(), "{path}");
        }
        let own = Path::new("/proc/thread-self/ns/net");
        assert_eq!(remaining(own, true, false).unwrap_err().code, Code::INVALID_NETNS);
        assert!(remaining(own, true, true).unwrap().is_some());
    }
}
