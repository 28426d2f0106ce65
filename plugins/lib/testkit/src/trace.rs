//! Running a plugin one system call at a time, as its debugger (ptrace(2)).

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::path::Path;

use libc::user_regs_struct;
use nix::errno::Errno;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::call::{Reply, start_plugin};
use crate::registers;
use crate::syscall::Syscall;

/// A call of a plugin: see [`crate::call_plugin`].
#[derive(Debug, Clone, Copy)]
pub struct Invocation<'a> {
    /// The executable.
    pub plugin: &'a Path,
    /// The CNI variables.
    pub variables: &'a [(&'a str, &'a str)],
    /// The configuration: less than a pipe holds, as nobody writes while the plugin runs.
    pub stdin: &'a str,
}

/// What becomes of a system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is made.
    Pass,
    /// It fails in this way, and is not made.
    Fail(Errno),
    /// It is not made, and the plugin and all that it has started die.
    Kill,
}

/// Who makes a system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Program {
    /// The plugin, whichever of its threads.
    Plugin,
    /// One that it has started.
    Other,
}

/// What a pipe holds by default on Linux, in bytes (pipe(7)).
const PIPE_CAPACITY: usize = 64 << 10;

/// Runs a plugin, and what it starts, and asks `judge` before each system call from the reading of standard input on.
///
/// Before it has read its configuration a plugin can do nothing to anything, and it is cheaper to let it load unwatched: that
/// is also what makes it possible to become its debugger after it was started.
#[allow(clippy::zombie_processes, reason = "the tracer waits for all there are")]
pub(crate) fn run(call: &Invocation<'_>, judge: impl FnMut(&Syscall, Program) -> Verdict) -> Reply {
    assert!(call.stdin.len() < PIPE_CAPACITY, "longer than a pipe holds");
    let mut child = start_plugin(call.plugin, call.variables);
    let pid = Pid::from_raw(child.id().cast_signed());
    let options = Options::PTRACE_O_EXITKILL
        | Options::PTRACE_O_TRACESYSGOOD
        | Options::PTRACE_O_TRACECLONE
        | Options::PTRACE_O_TRACEFORK
        | Options::PTRACE_O_TRACEVFORK
        | Options::PTRACE_O_TRACEEXEC;
    ptrace::seize(pid, options).expect("ptrace: the plugin waits for its input");
    ptrace::interrupt(pid).expect("ptrace: the plugin waits for its input");
    // If its input came before it has stopped, it could have read it unseen.
    let stop = waitpid(pid, Some(WaitPidFlag::__WALL)).expect("the plugin's stop");
    child
        .stdin
        .take()
        .expect("stdin")
        .write_all(call.stdin.as_bytes())
        .expect("the plugin's stdin");

    let mut tracer = Tracer {
        judge,
        main: pid,
        code: None,
        alive: BTreeSet::from([pid]),
        others: BTreeSet::new(),
        failing: BTreeMap::new(),
        started: false,
        killed: false,
    };
    tracer.attend(stop);
    tracer.watch();
    let mut reply = Reply {
        code: tracer.code,
        stdout: String::new(),
        stderr: String::new(),
    };
    let streams = (child.stdout.take(), child.stderr.take());
    streams
        .0
        .expect("stdout")
        .read_to_string(&mut reply.stdout)
        .expect("UTF-8");
    streams
        .1
        .expect("stderr")
        .read_to_string(&mut reply.stderr)
        .expect("UTF-8");
    reply
}

struct Tracer<J> {
    judge: J,
    main: Pid,
    /// How the plugin's own process ended.
    code: Option<i32>,
    /// Processes and threads.
    alive: BTreeSet<Pid>,
    /// Those of other programs.
    others: BTreeSet<Pid>,
    /// Those inside a system call that shall fail: how, and with which registers they came.
    failing: BTreeMap<Pid, (Errno, user_regs_struct)>,
    /// Whether standard input was read.
    started: bool,
    killed: bool,
}

impl<J: FnMut(&Syscall, Program) -> Verdict> Tracer<J> {
    /// Sees the plugin and all that it starts to their ends.
    fn watch(&mut self) {
        // Other threads of this test program have children too, which are theirs to wait for.
        let ours = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
        loop {
            match waitpid(None, Some(ours)) {
                Err(Errno::ECHILD) => return,
                Err(Errno::EINTR) => {}
                Err(e) => panic!("waitpid: {e}"),
                Ok(status) => self.attend(status),
            }
        }
    }

    fn attend(&mut self, status: WaitStatus) {
        match status {
            WaitStatus::Exited(pid, code) => self.ended(pid, Some(code)),
            WaitStatus::Signaled(pid, ..) => self.ended(pid, None),
            WaitStatus::PtraceSyscall(pid) => self.at_syscall(pid),
            WaitStatus::PtraceEvent(pid, _, event) => {
                if event == libc::PTRACE_EVENT_EXEC && pid != self.main {
                    self.others.insert(pid);
                }
                self.go_on(pid, None);
            }
            WaitStatus::Stopped(pid, signal) => self.go_on(pid, Some(signal)),
            other => panic!("waitpid: {other:?}"),
        }
    }

    fn ended(&mut self, pid: Pid, code: Option<i32>) {
        self.alive.remove(&pid);
        self.others.remove(&pid);
        self.failing.remove(&pid);
        if pid == self.main {
            self.code = code;
        }
    }

    fn go_on(&mut self, pid: Pid, signal: Option<Signal>) {
        self.alive.insert(pid);
        if self.killed {
            // Started at the last moment.
            end(kill(pid, Signal::SIGKILL));
        } else {
            end(ptrace::syscall(pid, signal));
        }
    }

    /// A stop at the entry of a system call or at its exit: nothing but the kernel can tell which, once calls were interrupted.
    fn at_syscall(&mut self, pid: Pid) {
        if ptrace::syscall_info(pid).is_ok_and(|info| info.op == libc::PTRACE_SYSCALL_INFO_ENTRY) {
            self.before_syscall(pid);
        } else if let Some((errno, before)) = self.failing.remove(&pid) {
            end(ptrace::setregs(pid, registers::failed(&before, errno)));
        }
        self.go_on(pid, None);
    }

    fn before_syscall(&mut self, pid: Pid) {
        let Ok(before) = ptrace::getregs(pid) else { return };
        let syscall = registers::syscall(&before);
        self.started |= syscall.reads_stdin();
        let verdict = if self.started && !self.killed {
            let program = match self.others.contains(&pid) {
                true => Program::Other,
                false => Program::Plugin,
            };
            (self.judge)(&syscall, program)
        } else {
            Verdict::Pass
        };
        match verdict {
            Verdict::Pass => {}
            Verdict::Fail(errno) => {
                end(ptrace::setregs(pid, registers::refused(&before)));
                self.failing.insert(pid, (errno, before));
            }
            Verdict::Kill => {
                self.killed = true;
                for &pid in &self.alive {
                    end(kill(pid, Signal::SIGKILL));
                }
            }
        }
    }
}

/// The end of a request to a process that may have died meanwhile.
fn end(outcome: nix::Result<()>) {
    match outcome {
        Ok(()) | Err(Errno::ESRCH) => {}
        Err(e) => panic!("ptrace: {e}"),
    }
}
