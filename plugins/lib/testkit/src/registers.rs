//! Where the processor keeps a system call's number, arguments and result.

use libc::user_regs_struct;
use nix::errno::Errno;

use crate::syscall::Syscall;

/// The system call that a process with these registers is about to make (syscall(2), "Architecture calling conventions").
#[cfg(target_arch = "x86_64")]
pub(crate) fn syscall(registers: &user_regs_struct) -> Syscall {
    let user_regs_struct { rdi, rsi, rdx, .. } = *registers;
    Syscall {
        number: registers.orig_rax.cast_signed(),
        arguments: [rdi, rsi, rdx],
    }
}

/// The registers with which the kernel refuses the call.
#[cfg(target_arch = "x86_64")]
pub(crate) fn refused(registers: &user_regs_struct) -> user_regs_struct {
    // No call has this number.
    user_regs_struct {
        orig_rax: u64::MAX,
        ..*registers
    }
}

/// The registers that the process shall find after the call.
#[cfg(target_arch = "x86_64")]
pub(crate) fn failed(before: &user_regs_struct, errno: Errno) -> user_regs_struct {
    user_regs_struct {
        rax: i64::from(-(errno as i32)).cast_unsigned(),
        ..*before
    }
}

/// The system call that a process with these registers is about to make (syscall(2), "Architecture calling conventions").
#[cfg(target_arch = "aarch64")]
pub(crate) fn syscall(registers: &user_regs_struct) -> Syscall {
    let [first, second, third, _, _, _, _, _, number, ..] = registers.regs;
    Syscall {
        number: number.cast_signed(),
        arguments: [first, second, third],
    }
}

/// The registers with which the kernel refuses the call.
#[cfg(target_arch = "aarch64")]
pub(crate) fn refused(registers: &user_regs_struct) -> user_regs_struct {
    // The number is not among the general registers here. No descriptor and no address has this value.
    let mut refused = *registers;
    refused.regs[..6].fill(u64::MAX);
    refused
}

/// The registers that the process shall find after the call: it relies on its arguments being untouched.
#[cfg(target_arch = "aarch64")]
pub(crate) fn failed(before: &user_regs_struct, errno: Errno) -> user_regs_struct {
    let mut failed = *before;
    failed.regs[0] = i64::from(-(errno as i32)).cast_unsigned();
    failed
}
