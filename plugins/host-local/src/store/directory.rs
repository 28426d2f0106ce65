//! Reservations and cursors of a network.

use std::fs::{DirBuilder, File, Metadata};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Read};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use cni_types::{Attachment, NetworkName, Result};
use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, futimens};
use nix::sys::statfs::{
    BTRFS_SUPER_MAGIC, EXT4_SUPER_MAGIC, F2FS_SUPER_MAGIC, FsType, OVERLAYFS_SUPER_MAGIC, TMPFS_MAGIC, fstatfs,
};
use nix::sys::time::TimeSpec;
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::failed;
use super::file::{Prepared, Replacement, prepare};
use super::lock::{Access, Locked, lock, open_directory};
use crate::reservation::{Content, owner_text};
use crate::time;

/// More is no owner: what follows is not read.
const OWNER_LIMIT: u64 = 64 << 10;

/// File systems of one machine alone, whose directories change their time with their entries.
const LOCAL: [FsType; 7] = [
    EXT4_SUPER_MAGIC,
    XFS_SUPER_MAGIC,
    BTRFS_SUPER_MAGIC,
    TMPFS_MAGIC,
    OVERLAYFS_SUPER_MAGIC,
    F2FS_SUPER_MAGIC,
    ZFS_SUPER_MAGIC,
];

/// `XFS_SB_MAGIC` of the kernel's fs/xfs.
const XFS_SUPER_MAGIC: FsType = FsType(0x5846_5342);

/// `ZFS_SUPER_MAGIC` of OpenZFS.
const ZFS_SUPER_MAGIC: FsType = FsType(0x2fc1_2fc1);

/// A network's directory, locked until it is dropped.
pub(crate) struct Network {
    path: PathBuf,
    locked: Locked,
    /// Our own directory beside it, on the same file system.
    scratch: Option<File>,
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

/// A point in time as the file system has it, since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Time {
    pub(crate) seconds: i64,
    pub(crate) nanoseconds: u32,
}

/// A file, and its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) inode: u64,
    /// When its content was written.
    pub(crate) modified: Time,
    /// When anything about it changed; nobody can set this at will.
    pub(crate) changed: Time,
}

/// A directory, and which state of it: see [`Network::stamp`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DirectoryStamp {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) modified: Time,
}

impl Stamp {
    pub(super) fn of(metadata: &Metadata) -> Stamp {
        let time = |seconds, nanoseconds| Time {
            seconds,
            nanoseconds: u32::try_from(nanoseconds).unwrap_or_default(),
        };
        Stamp {
            inode: metadata.ino(),
            modified: time(metadata.mtime(), metadata.mtime_nsec()),
            changed: time(metadata.ctime(), metadata.ctime_nsec()),
        }
    }
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

/// What an ADD wrote, to take it back.
#[derive(Debug)]
pub(crate) struct Reserved {
    attachment: Attachment,
    addresses: Vec<IpAddr>,
    /// The cursors' names, what they were, and what they are now.
    cursors: Vec<(String, Option<String>, String)>,
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
                let scratch = scratch(data_dir, name, &locked.dir, true)?;
                return Ok(Network {
                    path,
                    locked,
                    scratch,
                    writable: true,
                });
            }
        }
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
            found.extend(self.read(name)?);
        }
        Ok(found)
    }

    /// Reads one file, or `None` where there is none.
    ///
    /// # Errors
    /// None today; a file that cannot be read is [`Content::Unreadable`].
    pub(crate) fn read(&self, name: &str) -> Result<Option<Found>> {
        let (content, stamp) = match self.read_file(name) {
            Ok((bytes, stamp)) => (Content::of(&bytes), Some(stamp)),
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
            ip: address_of(name),
            content,
            stamp,
        }))
    }

    fn read_file(&self, name: &str) -> io::Result<(Vec<u8>, Stamp)> {
        // Non-blocking: a FIFO must not hang the runtime.
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let file = File::from(openat(&self.locked.dir, name, flags, Mode::empty())?);
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::other("not a regular file"));
        }
        let mut bytes = Vec::new();
        file.take(OWNER_LIMIT).read_to_end(&mut bytes)?;
        Ok((bytes, Stamp::of(&metadata)))
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
    /// `before` hears of each file before anybody can see it.
    ///
    /// # Errors
    /// Nothing was reserved then, and the cursors are as they were.
    pub(crate) fn reserve(
        &self,
        attachment: &Attachment,
        chosen: &[(usize, IpAddr)],
        mut before: impl FnMut(IpAddr, &Stamp),
    ) -> Result<Reserved> {
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
            before(*ip, &file.stamp().map_err(|e| failed(in_("reserve", &name), e))?);
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
                log::warn!("{}: replaced: no owner in it", self.path.join(name).display());
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

    /// The directory's present state, if that can tell whether anything changed since it was [sealed](Network::seal).
    ///
    /// Every file that appears in or disappears from a directory gives it a new time of modification. Both of its times
    /// are then the same, while after `seal` they differ; so no change can look like a seal, however coarse the
    /// clock or whatever it was set to meanwhile.
    pub(crate) fn stamp(&self) -> Option<DirectoryStamp> {
        if !self.is_local() {
            return None;
        }
        let metadata = self.locked.dir.metadata().ok()?;
        let Stamp {
            inode,
            modified,
            changed,
        } = Stamp::of(&metadata);
        (modified != changed).then_some(DirectoryStamp {
            device: metadata.dev(),
            inode,
            modified,
        })
    }

    /// Gives the directory a time of modification that it can have from nowhere else: the present second and a random
    /// fraction. `None` where the file system does not keep that.
    pub(crate) fn seal(&self) -> Option<DirectoryStamp> {
        if !self.is_local() {
            return None;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let seconds = i64::try_from(now.as_secs()).ok()?;
        let random = RandomState::new().build_hasher().finish();
        let nanoseconds = u32::try_from(random % 1_000_000_000).ok()?;
        let wanted = Time { seconds, nanoseconds };
        let omit = TimeSpec::UTIME_OMIT;
        futimens(&self.locked.dir, &omit, &TimeSpec::new(seconds, nanoseconds.into())).ok()?;
        self.stamp().filter(|stamp| stamp.modified == wanted)
    }

    /// Whether the directory is on a file system of this machine alone, of a kind known to keep times exactly.
    pub(crate) fn is_local(&self) -> bool {
        fstatfs(&self.locked.dir).is_ok_and(|stat| LOCAL.contains(&stat.filesystem_type()))
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

/// The address that a file name spells in exactly the form in which both suites write it.
fn address_of(name: &str) -> Option<IpAddr> {
    name.parse().ok().filter(|ip: &IpAddr| ip.to_string() == name)
}

fn cursor_name(set: usize) -> String {
    format!("{CURSOR}{set}")
}

/// Our own directory, which is made if need be. One on another file system than the network's is none: files are renamed
/// from here to there.
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
