//! Killing a plugin at any moment.

use crate::call::Reply;
use crate::syscall::Syscall;
use crate::trace::{Invocation, Verdict, run};

/// Which system calls count as moments to be killed at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Points {
    /// Each that may change something: files opened for writing, linked, renamed, unlinked, locked, written to; messages
    /// sent; namespaces entered; programs started. Between two of them all moments leave the same behind.
    Changing,
    /// Each.
    All,
}

impl Points {
    /// [`Points::Changing`], or [`Points::All`] where the environment says `FERRULE_KILL=all`.
    pub fn chosen() -> Points {
        match std::env::var_os("FERRULE_KILL") {
            Some(value) if value == "all" => Points::All,
            _ => Points::Changing,
        }
    }

    fn counts(self, syscall: &Syscall) -> bool {
        self == Points::All || syscall.may_change()
    }
}

/// Runs a plugin and kills it, and everything that it has started, before its `number`th system call (from 1 on, counted
/// from the reading of its configuration, all its threads and children together). Returns its reply if it got to its end
/// before, and how many calls it made of those that count.
///
/// # Errors
///
/// It was killed.
pub fn kill_before(number: usize, points: Points, call: &Invocation<'_>) -> Result<(Reply, usize), Killed> {
    let mut seen = 0;
    let mut killed_in = None;
    let reply = run(call, |syscall, _| {
        seen += usize::from(points.counts(syscall));
        if seen < number || !points.counts(syscall) {
            return Verdict::Pass;
        }
        killed_in = Some(syscall.number);
        Verdict::Kill
    });
    match killed_in {
        None => Ok((reply, seen)),
        Some(syscall) => Err(Killed { syscall }),
    }
}

/// A plugin was killed as it was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Killed {
    /// The number of the system call that it was about to make, as in `asm/unistd.h`.
    pub syscall: i64,
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// A shell that makes two files, the second through a child.
    fn script(directory: &Path) -> String {
        let directory = directory.display();
        format!("read line; echo x > {directory}/one; sh -c 'echo y > {directory}/two'; echo done")
    }

    #[test]
    fn it_dies_at_every_call_before_its_end_and_not_after() {
        let directory = std::env::temp_dir().join(format!("ferrule-kill-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let stages = |number: usize| {
            let _ = std::fs::remove_file(directory.join("one"));
            let _ = std::fs::remove_file(directory.join("two"));
            let shell = directory.join("shell");
            std::fs::write(&shell, format!("#!/bin/sh\n{}\n", script(&directory))).unwrap();
            std::process::Command::new("chmod")
                .args(["+x"])
                .arg(&shell)
                .status()
                .unwrap();
            let call = Invocation {
                plugin: Path::new(&shell),
                variables: &[],
                stdin: "line\n",
            };
            let end = kill_before(number, Points::Changing, &call);
            let made = |name: &str| std::fs::read_to_string(directory.join(name)).unwrap_or_default();
            (end, made("one"), made("two"))
        };
        let (mut survived, mut partial) = (None, 0);
        for number in 1..100 {
            let (end, one, two) = stages(number);
            match end {
                Ok((reply, calls)) => {
                    assert_eq!((reply.code, reply.stdout.as_str()), (Some(0), "done\n"));
                    assert_eq!((one.as_str(), two.as_str()), ("x\n", "y\n"));
                    assert_eq!(calls, number - 1);
                    survived = Some(number);
                    break;
                }
                Err(_) => partial += usize::from(one.is_empty() || two.is_empty()),
            }
        }
        std::fs::remove_dir_all(&directory).unwrap();
        assert!(survived.is_some_and(|number| number > 5), "{survived:?}");
        assert!(partial > 3, "{partial}");
    }
}
