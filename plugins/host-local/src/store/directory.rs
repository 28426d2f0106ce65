//! A network's directory and the reservations in it.

use std::fs::{DirBuilder, File};
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use cni_types::{NetworkName, Result};
use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::failed;
use super::lock::{Access, Locked, lock, open_directory};
use super::stamp::Stamp;
use crate::reservation::Content;
use skel::time;

/// More is no owner: what follows is not read. In bytes.
const OWNER_LIMIT: usize = 4 << 10;

/// A network's directory, locked until it is dropped.
pub(crate) struct Network {
    pub(super) path: PathBuf,
    pub(super) locked: Locked,
    /// Our own directory beside it, on the same file system.
    pub(super) scratch: Option<File>,
    writable: bool,
}

/// A file of the directory that may be a reservation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    /// The file's name.
    pub(crate) name: String,
    /// The address that its name spells, if any.
    pub(crate) ip: Option<IpAddr>,
    /// What it says.
    pub(crate) content: Content,
    /// Which file it is, unless it could not be looked at.
    pub(crate) stamp: Option<Stamp>,
}

impl Found {
    /// Who holds it since when, for people.
    pub(crate) fn describe(&self) -> String {
        let since = self
            .stamp
            .map(|stamp| format!(" since {}", time::utc(stamp.modified.seconds)));
        format!(
            "{} is held by {}{}",
            self.name,
            self.content.describe(),
            since.unwrap_or_default()
        )
    }
}

impl Network {
    /// Opens and locks the directory, which is made if need be.
    ///
    /// # Errors
    /// It can be neither found nor made, or not be locked.
    pub(crate) fn create(data_dir: &Path, name: &NetworkName) -> Result<Network> {
        let path = data_dir.join(name.as_str());
        let locked = loop {
            // `None` for what somebody removed at this very moment.
            if let Some(locked) = lock(&path, Access::Create)? {
                break locked;
            }
        };
        let scratch = scratch(data_dir, name, &locked.dir, true)?;
        Ok(Network {
            path,
            locked,
            scratch,
            writable: true,
        })
    }

    /// Opens and locks the directory, or `None` where there is none: then nothing is reserved.
    ///
    /// # Errors
    /// It cannot be opened or locked.
    pub(crate) fn existing(data_dir: &Path, name: &NetworkName) -> Result<Option<Network>> {
        Network::open(data_dir, name, Access::Existing)
    }

    /// Like [`Network::existing`], to read only: not even a lock file is made.
    ///
    /// # Errors
    /// It cannot be opened or locked.
    pub(crate) fn read_only(data_dir: &Path, name: &NetworkName) -> Result<Option<Network>> {
        Network::open(data_dir, name, Access::Read)
    }

    fn open(data_dir: &Path, name: &NetworkName, access: Access) -> Result<Option<Network>> {
        let path = data_dir.join(name.as_str());
        let Some(locked) = lock(&path, access)? else {
            return Ok(None);
        };
        let writable = access != Access::Read;
        // Without it there is no cache, which a release can do without, on a full disk above all.
        let scratch = scratch(data_dir, name, &locked.dir, writable).unwrap_or_else(|e| {
            log::debug!("{e}");
            None
        });
        Ok(Some(Network {
            path,
            locked,
            scratch,
            writable,
        }))
    }

    /// Whether it was opened to write.
    pub(crate) fn is_writable(&self) -> bool {
        self.writable
    }

    /// Reads the whole directory. Files that hold no owner are reported on the way.
    ///
    /// # Errors
    /// The directory cannot be read; a file that cannot be is [`Content::Unreadable`].
    pub(crate) fn walk(&self) -> Result<Vec<Found>> {
        let in_walk = |e: Errno| failed(format_args!("read {}", self.path.display()), e);
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let mut dir = Dir::openat(&self.locked.dir, ".", flags, Mode::empty()).map_err(in_walk)?;
        let mut found = Vec::new();
        for entry in dir.iter() {
            let entry = entry.map_err(in_walk)?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            let is_no_reservation = name == "lock" || name.starts_with(CURSOR) || name == "." || name == "..";
            if is_no_reservation || (address_of(name).is_none() && entry.file_type() == Some(Type::Directory)) {
                continue;
            }
            found.extend(self.read(name));
        }
        Ok(found)
    }

    /// Reads one file, or `None` where there is none; one that cannot be read is [`Content::Unreadable`].
    pub(crate) fn read(&self, name: &str) -> Option<Found> {
        let (content, stamp) = match self.read_file(name) {
            Ok((bytes, stamp)) => (Content::of(&bytes), Some(stamp)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return None,
            Err(e) => {
                log::warn!("{}: {e}: the address counts as taken", self.path.join(name).display());
                (Content::Unreadable, None)
            }
        };
        if content == Content::Blank {
            log::warn!(
                "{}: no owner in it: the address counts as free",
                self.path.join(name).display()
            );
        }
        Some(Found {
            name: name.to_owned(),
            ip: address_of(name),
            content,
            stamp,
        })
    }

    pub(super) fn read_file(&self, name: &str) -> io::Result<(Vec<u8>, Stamp)> {
        // Non-blocking: a FIFO must not hang the runtime.
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let file = File::from(openat(&self.locked.dir, name, flags, Mode::empty())?);
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::other("not a regular file"));
        }
        // One read is enough for any owner: asking a regular file again for its end would cost as much.
        let mut bytes = vec![0; OWNER_LIMIT];
        let read = file.read_at(&mut bytes, 0)?;
        bytes.truncate(read);
        Ok((bytes, Stamp::of(&metadata)))
    }

    /// The directory of ours beside it, where it could be made.
    pub(crate) fn scratch(&self) -> Option<&File> {
        self.scratch.as_ref()
    }

    /// Removes a reservation's file.
    ///
    /// # Errors
    /// It is still there.
    pub(crate) fn release(&self, name: &str) -> Result<()> {
        match unlinkat(&self.locked.dir, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(e) => Err(failed(format_args!("release {}", self.path.join(name).display()), e)),
        }
    }
}

/// How the names of cursors begin.
pub(super) const CURSOR: &str = "last_reserved_ip.";

/// The address that a file name spells in exactly the form in which both suites write it.
fn address_of(name: &str) -> Option<IpAddr> {
    name.parse().ok().filter(|ip: &IpAddr| ip.to_string() == name)
}

/// Our own directory, which is made if need be. One on another file system than the network's is none: files are
/// renamed from here to there.
fn scratch(data_dir: &Path, name: &NetworkName, dir: &File, create: bool) -> Result<Option<File>> {
    let path = data_dir.join(".ferrule").join(name.as_str());
    let in_create = |e: io::Error| failed(format_args!("create {}", path.display()), e);
    let scratch = match open_directory(&path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound && create => {
            DirBuilder::new()
                .recursive(true)
                .mode(0o755)
                .create(&path)
                .map_err(in_create)?;
            open_directory(&path)
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened,
    };
    let scratch = scratch.map_err(in_create)?;
    let device = |dir: &File| dir.metadata().map(|metadata| metadata.dev()).map_err(in_create);
    Ok((device(&scratch)? == device(dir)?).then_some(scratch))
}
