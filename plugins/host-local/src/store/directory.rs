//! Reservations and cursors of a network.

use std::fs::File;
use std::io::{self, Read};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use cni_types::{Attachment, NetworkName, Result};
use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::failed;
use super::file::{Prepared, Replacement, prepare};
use super::lock::{Access, Locked, lock, open_directory};
use crate::reservation::{Content, owner_text};
use crate::time;

/// More is no owner: what follows is not read.
const OWNER_LIMIT: u64 = 64 << 10;

/// A network's directory, locked until it is dropped.
pub(crate) struct Network {
    path: PathBuf,
    locked: Locked,
    /// For temporary files. On the same file system as the directory.
    scratch: Option<File>,
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
    /// When it was written.
    pub(crate) since: Option<SystemTime>,
}

impl Found {
    /// Who holds it since when, for people.
    pub(crate) fn describe(&self) -> String {
        let since = self.since.map(|since| format!(" since {}", time::utc(since)));
        format!(
            "{} is held by {}{}",
            self.name,
            self.content.describe(),
            since.unwrap_or_default()
        )
    }
}

/// What an ADD wrote, to take it back.
#[derive(Debug)]
pub(crate) struct Reserved {
    attachment: Attachment,
    addresses: Vec<IpAddr>,
    /// The cursors' names, what they were, and what they are now.
    cursors: Vec<(String, Option<String>, String)>,
}

/// What became of a file that was to be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Released {
    /// It is gone now.
    Removed,
    /// It was not there.
    Absent,
}

impl Network {
    /// Opens and locks the directory, which is made if need be.
    ///
    /// # Errors
    /// It can be neither found nor made, or not be locked.
    pub(crate) fn create(data_dir: &Path, name: &NetworkName) -> Result<Network> {
        let path = data_dir.join(name.as_str());
        loop {
            if let Some(locked) = lock(&path, Access::Create)? {
                let scratch = Some(scratch(data_dir, name, &locked.dir)?);
                return Ok(Network { path, locked, scratch });
            }
        }
    }

    /// Opens and locks the directory, or `None` where there is none: then nothing is reserved.
    ///
    /// # Errors
    /// It cannot be opened or locked.
    pub(crate) fn existing(data_dir: &Path, name: &NetworkName) -> Result<Option<Network>> {
        let path = data_dir.join(name.as_str());
        let locked = lock(&path, Access::Existing)?;
        Ok(locked.map(|locked| Network {
            path,
            locked,
            scratch: None,
        }))
    }

    /// Like [`Network::existing`], to read only: not even a lock file is made.
    ///
    /// # Errors
    /// It cannot be opened or locked.
    pub(crate) fn read_only(data_dir: &Path, name: &NetworkName) -> Result<Option<Network>> {
        let path = data_dir.join(name.as_str());
        let locked = lock(&path, Access::Read)?;
        Ok(locked.map(|locked| Network {
            path,
            locked,
            scratch: None,
        }))
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
            let ip: Option<IpAddr> = name.parse().ok();
            let is_ours = name == "lock" || name.starts_with(CURSOR) || name == "." || name == "..";
            if is_ours || (ip.is_none() && entry.file_type() == Some(Type::Directory)) {
                continue;
            }
            found.extend(self.read(name)?);
        }
        Ok(found)
    }

    /// Reads one file, or `None` where there is none.
    ///
    /// # Errors
    /// None today; a file that cannot be read is [`Content::Unreadable`].
    pub(crate) fn read(&self, name: &str) -> Result<Option<Found>> {
        let (content, since) = match self.read_file(name) {
            Ok((bytes, since)) => (Content::of(&bytes), since),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
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
        Ok(Some(Found {
            name: name.to_owned(),
            ip: name.parse().ok(),
            content,
            since,
        }))
    }

    fn read_file(&self, name: &str) -> io::Result<(Vec<u8>, Option<SystemTime>)> {
        // Non-blocking: a FIFO must not hang the runtime.
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let file = File::from(openat(&self.locked.dir, name, flags, Mode::empty())?);
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::other("not a regular file"));
        }
        let mut bytes = Vec::new();
        file.take(OWNER_LIMIT).read_to_end(&mut bytes)?;
        Ok((bytes, metadata.modified().ok()))
    }

    /// The address that a range set gave last. What cannot be read is none: the search then starts at the beginning.
    pub(crate) fn cursor(&self, set: usize) -> Option<IpAddr> {
        self.cursor_text(&cursor_name(set))?.trim().parse().ok()
    }

    fn cursor_text(&self, name: &str) -> Option<String> {
        let (bytes, _) = self.read_file(name).ok()?;
        String::from_utf8(bytes).ok()
    }

    /// Reserves the addresses, each with the number of its range set, and moves the cursors there: all or nothing.
    ///
    /// # Errors
    /// Nothing was reserved then, and the cursors are as they were.
    pub(crate) fn reserve(&self, attachment: &Attachment, chosen: &[(usize, IpAddr)]) -> Result<Reserved> {
        let scratch = self.scratch.as_ref().unwrap_or(&self.locked.dir);
        let text = owner_text(&attachment.container_id, &attachment.ifname);
        let in_ = |what: &str, name: &str| format!("{what} {}", self.path.join(name).display());

        // First all that needs room on the disk, so that a full one is noticed before anything can be seen.
        let mut files: Vec<(String, Prepared<'_>)> = Vec::with_capacity(chosen.len());
        let mut cursors: Vec<(Replacement<'_>, Option<String>)> = Vec::with_capacity(chosen.len());
        let mut reserved = Reserved {
            attachment: attachment.clone(),
            addresses: Vec::new(),
            cursors: Vec::new(),
        };
        for (at, (set, ip)) in chosen.iter().enumerate() {
            let name = ip.to_string();
            let file = prepare(&self.locked.dir, scratch, at, &text).map_err(|e| failed(in_("reserve", &name), e))?;
            files.push((name, file));
            let name = cursor_name(*set);
            let before = self.cursor_text(&name);
            let cursor = Replacement::prepare(scratch, name.clone(), &ip.to_string())
                .map_err(|e| failed(in_("write", &name), e))?;
            cursors.push((cursor, before));
        }
        let outcome = files.iter().zip(chosen).try_for_each(|((name, file), (_, ip))| {
            self.link(file, name).map_err(|e| failed(in_("reserve", name), e))?;
            reserved.addresses.push(*ip);
            Ok(())
        });
        let outcome = outcome.and_then(|()| {
            cursors
                .iter()
                .zip(chosen)
                .try_for_each(|((cursor, before), (set, ip))| {
                    let name = cursor_name(*set);
                    cursor
                        .commit(&self.locked.dir)
                        .map_err(|e| failed(in_("write", &name), e))?;
                    reserved.cursors.push((name, before.clone(), ip.to_string()));
                    Ok(())
                })
        });
        match outcome {
            Ok(()) => Ok(reserved),
            Err(e) => {
                self.take_back(&reserved);
                Err(e)
            }
        }
    }

    /// Links a reservation into place; a file without an owner gives way.
    fn link(&self, file: &Prepared<'_>, name: &str) -> nix::Result<()> {
        match file.link(&self.locked.dir, name) {
            Err(Errno::EEXIST)
                if self
                    .read_file(name)
                    .is_ok_and(|(bytes, _)| Content::of(&bytes) == Content::Blank) =>
            {
                unlinkat(&self.locked.dir, name, UnlinkatFlags::NoRemoveDir)?;
                file.link(&self.locked.dir, name)
            }
            linked => linked,
        }
    }

    /// Takes back what an ADD wrote, as far as it is still there. Best effort; failures are logged.
    fn take_back(&self, reserved: &Reserved) {
        for ip in &reserved.addresses {
            if let Err(e) = self.release(&ip.to_string()) {
                log::error!("{e}");
            }
        }
        for (name, before, now) in &reserved.cursors {
            if self.cursor_text(name).as_ref() != Some(now) {
                // Another ADD has moved it since.
                continue;
            }
            let restored = match before {
                None => unlinkat(&self.locked.dir, name.as_str(), UnlinkatFlags::NoRemoveDir).map_err(io::Error::from),
                Some(text) => {
                    let scratch = self.scratch.as_ref().unwrap_or(&self.locked.dir);
                    Replacement::prepare(scratch, name.clone(), text)
                        .and_then(|cursor| Ok(cursor.commit(&self.locked.dir)?))
                }
            };
            if let Err(e) = restored {
                log::error!("restore {}: {e}", self.path.join(name).display());
            }
        }
    }

    /// Removes a reservation's file.
    ///
    /// # Errors
    /// It is still there.
    pub(crate) fn release(&self, name: &str) -> Result<Released> {
        match unlinkat(&self.locked.dir, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) => Ok(Released::Removed),
            Err(Errno::ENOENT) => Ok(Released::Absent),
            Err(e) => Err(failed(format_args!("release {}", self.path.join(name).display()), e)),
        }
    }
}

impl Reserved {
    /// Takes the reservations back and puts the cursors where they were.
    ///
    /// # Errors
    /// The directory cannot be locked.
    pub(crate) fn undo(&self, data_dir: &Path) -> Result<()> {
        if let Some(network) = Network::existing(data_dir, &self.attachment.network)? {
            network.take_back(self);
        }
        Ok(())
    }
}

const CURSOR: &str = "last_reserved_ip.";

fn cursor_name(set: usize) -> String {
    format!("{CURSOR}{set}")
}

/// The directory for temporary files, on the file system of the network's: renaming works within one only.
fn scratch(data_dir: &Path, name: &NetworkName, dir: &File) -> Result<File> {
    use std::os::unix::fs::{DirBuilderExt, MetadataExt};
    let path = data_dir.join(".ferrule").join(name.as_str());
    let in_create = |e: io::Error| failed(format_args!("create {}", path.display()), e);
    let scratch = match open_directory(&path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            std::fs::DirBuilder::new()
                .recursive(true)
                .mode(0o755)
                .create(&path)
                .map_err(in_create)?;
            open_directory(&path)
        }
        opened => opened,
    };
    let scratch = scratch.map_err(in_create)?;
    let device = |dir: &File| dir.metadata().map(|metadata| metadata.dev()).map_err(in_create);
    if device(&scratch)? == device(dir)? {
        Ok(scratch)
    } else {
        dir.try_clone().map_err(in_create)
    }
}
