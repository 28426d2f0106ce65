//! The running kernel and our place in it.

use std::fs;
use std::os::unix::fs::MetadataExt;

/// The running kernel and our place in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Here {
    /// `/proc/sys/kernel/random/boot_id`: new at every boot. Clocks are not: boards without one jump years.
    pub boot: Option<u128>,
    /// `/etc/machine-id`. A machine without one is told from no other: see [`Here::same_machine`].
    pub machine: Option<u128>,
    /// The inode of our pid namespace: the processes that we can see.
    pub pid_namespace: Option<u64>,
    /// The inode of our mount namespace: the mounts that we can see.
    pub mount_namespace: Option<u64>,
}

impl Here {
    /// Looks around.
    pub fn look() -> Here {
        let inode = |path: &str| fs::metadata(path).ok().map(|metadata| metadata.ino());
        Here {
            boot: hex_file("/proc/sys/kernel/random/boot_id"),
            machine: hex_file("/etc/machine-id"),
            pid_namespace: inode("/proc/thread-self/ns/pid"),
            mount_namespace: inode("/proc/thread-self/ns/mnt"),
        }
    }

    /// Whether both are the same machine. Two without an ID count as the same: the directory is on a local file system.
    pub fn same_machine(&self, other: &Here) -> bool {
        self.machine == other.machine
    }

    /// Whether both were surely in the same boot.
    pub fn same_boot(&self, other: &Here) -> bool {
        self.boot.is_some() && self.boot == other.boot
    }

    /// Whether both were surely in different boots.
    pub fn another_boot(&self, other: &Here) -> bool {
        self.boot.zip(other.boot).is_some_and(|(one, other)| one != other)
    }

    /// Whether both surely see the same processes and mounts.
    pub fn same_view(&self, other: &Here) -> bool {
        let known = self.pid_namespace.is_some() && self.mount_namespace.is_some();
        known && self.pid_namespace == other.pid_namespace && self.mount_namespace == other.mount_namespace
    }
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
