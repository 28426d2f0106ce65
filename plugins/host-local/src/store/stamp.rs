//! Which file it is, and in which state; and how a directory is marked so that every change shows.

use std::fs::Metadata;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::unix::fs::MetadataExt;
use std::time::{SystemTime, UNIX_EPOCH};

use nix::sys::stat::futimens;
use nix::sys::statfs::{
    BTRFS_SUPER_MAGIC, EXT4_SUPER_MAGIC, F2FS_SUPER_MAGIC, FsType, OVERLAYFS_SUPER_MAGIC, TMPFS_MAGIC, fstatfs,
};
use nix::sys::time::TimeSpec;

use super::Network;

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

impl Network {
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
}
