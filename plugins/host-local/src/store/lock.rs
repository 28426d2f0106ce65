//! Opening and locking a network's directory.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

use cni_types::Result;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::{Mode, fstatat};

use super::failed;

const LOCK: &str = "lock";

/// A directory, and the lock in it; the lock ends with the process or the value.
pub(super) struct Locked {
    pub(super) dir: File,
    /// `None` where a reader found no lock file: nobody has written there.
    _lock: Option<File>,
}

/// How to lock.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// Make what is missing; nobody else may work there.
    Create,
    /// Make nothing but the lock; nobody else may work there.
    Existing,
    /// Make nothing; nobody may write there.
    Read,
}

/// Opens the directory and waits for its lock. `None` where it does not exist and is not to be made.
///
/// People remove such directories by hand while others wait for the lock in them; a lock counts only if it is still the
/// one that the path leads to.
pub(super) fn lock(path: &Path, access: Access) -> Result<Option<Locked>> {
    loop {
        if access == Access::Create {
            DirBuilder::new()
                .recursive(true)
                .mode(0o755)
                .create(path)
                .map_err(|e| failed(format_args!("create {}", path.display()), e))?;
        }
        let dir = match open_directory(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound && access == Access::Create => continue,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(|e| failed(format_args!("open {}", path.display()), e))?,
        };
        let in_lock = |e: io::Error| failed(format_args!("lock {}", path.join(LOCK).display()), e);
        let file = match open_lock(&dir, access) {
            // A directory that was removed takes no new file.
            Err(Errno::ENOENT) if access != Access::Read => {
                if is_at(&dir, path) {
                    return Err(in_lock(Errno::ENOENT.into()));
                }
                continue;
            }
            Err(Errno::ENOENT) => return Ok(Some(Locked { dir, _lock: None })),
            // Nobody else can make the lock either, and what is to be released must not wait for room.
            Err(Errno::ENOSPC | Errno::EDQUOT) if access == Access::Existing => {
                return Ok(Some(Locked { dir, _lock: None }));
            }
            opened => File::from(opened.map_err(|e| in_lock(e.into()))?),
        };
        if access == Access::Read {
            file.lock_shared()
        } else {
            file.lock()
        }
        .map_err(in_lock)?;
        let current = fstatat(&dir, LOCK, AtFlags::AT_SYMLINK_NOFOLLOW).ok();
        let ours = file.metadata().map_err(in_lock)?;
        if current.is_some_and(|current| current.st_ino == ours.ino()) && is_at(&dir, path) {
            return Ok(Some(Locked { dir, _lock: Some(file) }));
        }
    }
}

fn open_lock(dir: &File, access: Access) -> nix::Result<std::os::fd::OwnedFd> {
    // The reference opens it for reading only; over NFS an exclusive lock needs the right to write.
    let flags = match access {
        Access::Read => OFlag::O_RDONLY,
        Access::Create | Access::Existing => OFlag::O_RDWR | OFlag::O_CREAT,
    };
    let flags = flags | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    openat(dir.as_fd(), LOCK, flags, Mode::from_bits_truncate(0o750))
}

pub(super) fn open_directory(path: &Path) -> io::Result<File> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    Ok(File::from(nix::fcntl::open(path, flags, Mode::empty())?))
}

fn is_at(dir: &File, path: &Path) -> bool {
    let identity = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    match (dir.metadata(), std::fs::metadata(path)) {
        (Ok(ours), Ok(there)) => identity(ours) == identity(there),
        _ => false,
    }
}
