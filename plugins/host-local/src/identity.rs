//! Who was there at an ADD: boot, machine, our own namespaces, and the attachment's network namespace.
//!
//! This is what tells a reservation of a living container from one that was left behind. It is compared, never parsed
//! or shown; a part that could not be found out is `None`, and compares with nothing.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, getsockopt, socket};
use nix::{getsockopt_impl, sockopt_impl};

/// The running kernel and our place in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Here {
    /// `/proc/sys/kernel/random/boot_id`: new at every boot. Clocks are not: boards without one jump years.
    pub(crate) boot: Option<u128>,
    /// `/etc/machine-id`. A machine without one is told from no other: see [`Here::same_machine`].
    pub(crate) machine: Option<u128>,
    /// The inode of our pid namespace: the processes that we can see.
    pub(crate) pid_namespace: Option<u64>,
    /// The inode of our mount namespace: the mounts that we can see.
    pub(crate) mount_namespace: Option<u64>,
}

/// A network namespace, by identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NetnsIdentity {
    /// The device of nsfs.
    pub(crate) device: u64,
    /// Its inode. The kernel gives the number of a namespace that is gone to a new one within a few containers.
    pub(crate) inode: u64,
    /// `SO_NETNS_COOKIE`: never given twice in a boot. Kernels before 5.14 have none.
    pub(crate) cookie: Option<u64>,
    /// Where the runtime had it; empty if that is too long to keep.
    pub(crate) path: PathBuf,
}

impl Here {
    /// Looks around.
    pub(crate) fn look() -> Here {
        let inode = |path: &str| fs::metadata(path).ok().map(|metadata| metadata.ino());
        Here {
            boot: hex_file("/proc/sys/kernel/random/boot_id"),
            machine: hex_file("/etc/machine-id"),
            pid_namespace: inode("/proc/thread-self/ns/pid"),
            mount_namespace: inode("/proc/thread-self/ns/mnt"),
        }
    }

    /// Whether both are the same machine. Two without an ID count as the same: the directory is on a local file system.
    pub(crate) fn same_machine(&self, other: &Here) -> bool {
        self.machine == other.machine
    }

    /// Whether both were surely in the same boot.
    pub(crate) fn same_boot(&self, other: &Here) -> bool {
        self.boot.is_some() && self.boot == other.boot
    }

    /// Whether both were surely in different boots.
    pub(crate) fn another_boot(&self, other: &Here) -> bool {
        self.boot.zip(other.boot).is_some_and(|(one, other)| one != other)
    }

    /// Whether both surely see the same processes and mounts.
    pub(crate) fn same_view(&self, other: &Here) -> bool {
        let known = self.pid_namespace.is_some() && self.mount_namespace.is_some();
        known && self.pid_namespace == other.pid_namespace && self.mount_namespace == other.mount_namespace
    }
}

impl NetnsIdentity {
    /// The identity of an open namespace.
    pub(crate) fn of(netns: BorrowedFd<'_>, path: &Path) -> Option<NetnsIdentity> {
        let stat = nix::sys::stat::fstat(netns).ok()?;
        Some(NetnsIdentity {
            device: stat.st_dev,
            inode: stat.st_ino,
            cookie: cookie(netns),
            path: path.to_owned(),
        })
    }

    /// Whether the file at `path` is this namespace. `None` where it cannot be told.
    pub(crate) fn is_at(&self, path: &Path) -> Option<bool> {
        match fs::metadata(path) {
            Ok(there) if (there.dev(), there.ino()) != (self.device, self.inode) => return Some(false),
            Ok(_) => {}
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Some(false),
            Err(_) => return None,
        }
        let Some(ours) = self.cookie else { return Some(true) };
        let theirs = File::open(path).ok().and_then(|file| cookie(file.as_fd()))?;
        Some(theirs == ours)
    }
}

sockopt_impl!(
    // The cookie of a socket's network namespace, of Linux 5.14 and later.
    NetnsCookie,
    GetOnly,
    libc::SOL_SOCKET,
    SO_NETNS_COOKIE,
    u64
);

/// `asm-generic/socket.h`.
const SO_NETNS_COOKIE: libc::c_int = 71;

/// The cookie can be asked of a socket only, so one is made inside; it takes some ten microseconds.
fn cookie(netns: BorrowedFd<'_>) -> Option<u64> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = net::netns::run_in(netns, || socket(AddressFamily::Unix, SockType::Datagram, flags, None));
    getsockopt(&socket.ok()?.ok()?, NetnsCookie).ok()
}

/// A file of 32 hexadecimal digits, dashes or not.
fn hex_file(path: &str) -> Option<u128> {
    let text = fs::read_to_string(path).ok()?;
    let digits: String = text.trim().chars().filter(|c| *c != '-').collect();
    // Zero stands for an unknown one in a record; no system has it.
    u128::from_str_radix(&digits, 16)
        .ok()
        .filter(|id| digits.len() == 32 && *id != 0)
}
