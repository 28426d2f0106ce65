//! Making one system call of a plugin fail.

use nix::errno::Errno;

use crate::call::Reply;
use crate::trace::{Invocation, Program, Verdict, run};

/// A failure that was injected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Injected {
    /// The number of the system call that failed, as in `asm/unistd.h`.
    pub syscall: i64,
}

/// Runs a plugin and lets the `number`th (from 1 on) of its system calls that may fail do so with `errno`, without being
/// made. `None` instead of the failure: it made fewer.
///
/// The calls are those on files, sockets, pipes and namespaces, from the reading of the configuration on, those of all
/// threads counted together. The programs that a plugin starts are spared: some of them, iptables-restore for one, end with
/// success after a failed read of their input.
pub fn fail_at(number: usize, errno: Errno, call: &Invocation<'_>) -> (Reply, Option<Injected>) {
    let (mut seen, mut injected) = (0, None);
    let reply = run(call, |syscall, program| {
        if program == Program::Other || !syscall.may_fail() {
            return Verdict::Pass;
        }
        seen += 1;
        if seen != number {
            return Verdict::Pass;
        }
        injected = Some(Injected {
            syscall: syscall.number,
        });
        Verdict::Fail(errno)
    });
    (reply, injected)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn one_call_fails_and_the_others_do_not() {
        let cat = Invocation {
            plugin: Path::new("/bin/cat"),
            variables: &[],
            stdin: "text",
        };
        // The first is the reading of standard input, the second the writing of it.
        for (number, stdout) in [(1, ""), (2, ""), (4, "text")] {
            let (reply, injected) = fail_at(number, Errno::EIO, &cat);
            assert_eq!(reply.stdout, stdout, "{number}");
            let failed = injected.is_some();
            assert_eq!(reply.code, Some(i32::from(failed)), "{number}: {reply:?}");
            assert_eq!(
                reply.stderr.contains("Input/output error"),
                failed,
                "{number}: {reply:?}"
            );
            assert_eq!(failed, number < 4);
        }
    }
}
