//! Which system calls matter.

use libc::c_long;

/// A system call that a process is about to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Syscall {
    pub(crate) number: c_long,
    /// The first three.
    pub(crate) arguments: [u64; 3],
}

/// Calls that change what others can see: files, namespaces, the kernel's tables, a pipe to another program.
const CHANGING: &[c_long] = &[
    libc::SYS_execve,
    libc::SYS_fchmodat,
    libc::SYS_flock,
    libc::SYS_ftruncate,
    libc::SYS_ioctl,
    libc::SYS_linkat,
    libc::SYS_mkdirat,
    libc::SYS_mount,
    libc::SYS_pwrite64,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_setns,
    libc::SYS_symlinkat,
    libc::SYS_unlinkat,
    libc::SYS_unshare,
    libc::SYS_write,
    libc::SYS_writev,
];

/// Further calls that fail in life: memory, descriptors and disks end, security modules forbid.
const FAILING: &[c_long] = &[
    libc::SYS_bind,
    libc::SYS_fdatasync,
    libc::SYS_fsync,
    libc::SYS_getdents64,
    libc::SYS_openat,
    libc::SYS_pipe2,
    libc::SYS_read,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_setsockopt,
    libc::SYS_socket,
    libc::SYS_statx,
];

/// The older forms of some of the above, which not every processor's kernel has.
#[cfg(target_arch = "x86_64")]
const CHANGING_OLD: &[c_long] = &[
    libc::SYS_chmod,
    libc::SYS_link,
    libc::SYS_mkdir,
    libc::SYS_rename,
    libc::SYS_rmdir,
    libc::SYS_symlink,
    libc::SYS_unlink,
];
#[cfg(not(target_arch = "x86_64"))]
const CHANGING_OLD: &[c_long] = &[];

impl Syscall {
    /// Whether this is the reading of standard input, before which a plugin only loads itself.
    pub(crate) fn reads_stdin(&self) -> bool {
        self.number == libc::SYS_read && self.arguments[0] == 0
    }

    /// Whether the call may change what others can see.
    pub(crate) fn may_change(&self) -> bool {
        CHANGING.contains(&self.number) || CHANGING_OLD.contains(&self.number) || self.opens_for_change()
    }

    /// Whether the call is one that may fail in a sound program on a sound machine.
    pub(crate) fn may_fail(&self) -> bool {
        // An ioctl and an execve fail for reasons of their own kind; nobody survives the latter's.
        let special = [libc::SYS_execve, libc::SYS_ioctl].contains(&self.number);
        !special && (self.may_change() || FAILING.contains(&self.number))
    }

    fn opens_for_change(&self) -> bool {
        let changing =
            libc::O_WRONLY | libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC | libc::O_TMPFILE & !libc::O_DIRECTORY;
        self.number == libc::SYS_openat && self.arguments[2] & u64::from(changing.cast_unsigned()) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn openat(flags: i32) -> Syscall {
        Syscall {
            number: libc::SYS_openat,
            arguments: [0, 0, flags.cast_unsigned().into()],
        }
    }

    #[test]
    fn opening_changes_something_only_with_its_flags() {
        for flags in [
            libc::O_RDONLY,
            libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC,
            libc::O_PATH,
        ] {
            assert!(!openat(flags).may_change() && openat(flags).may_fail(), "{flags:o}");
        }
        for flags in [
            libc::O_WRONLY,
            libc::O_RDWR,
            libc::O_RDONLY | libc::O_CREAT,
            libc::O_TMPFILE | libc::O_WRONLY,
        ] {
            assert!(openat(flags).may_change(), "{flags:o}");
        }
    }
}
