//! The one place where a thread changes its network namespace.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};

use nix::sched::CloneFlags;

use crate::error::{Failure, Result};

/// The calling thread's own namespace. `/proc/self` would be that of the main thread.
const OWN: &str = "/proc/thread-self/ns/net";

/// A kernel short of memory may have some again; and there is no other way to end well.
const TRIES_TO_RETURN: usize = 10;

/// Runs `f` inside `netns` and comes back, also when `f` panics. For opening sockets and handles, which stay in the
/// namespace where they were opened; nothing else should run there.
///
/// # Errors
/// `netns` is no network namespace, or may not be entered; `f` was not called then. A thread that cannot get back, however
/// often it tries, aborts the process: going on would change the wrong namespace.
pub fn run_in<T>(netns: BorrowedFd<'_>, f: impl FnOnce() -> T) -> Result<T> {
    let own = File::open(OWN).map_err(|e| Failure::io(&e).of("open", OWN))?;
    set(netns).map_err(|f| f.of("enter", "network namespace"))?;
    let _back = Back(own);
    Ok(f())
}

/// Goes back when dropped.
struct Back(File);

impl Drop for Back {
    fn drop(&mut self) {
        for _ in 0..TRIES_TO_RETURN {
            match set(self.0.as_fd()) {
                Ok(()) => return,
                Err(failure) => log::error!("cannot return to the own network namespace: {failure}"),
            }
        }
        std::process::abort();
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "the one place where a thread changes its namespace"
)]
fn set(netns: BorrowedFd<'_>) -> std::result::Result<(), Failure> {
    nix::sched::setns(netns, CloneFlags::CLONE_NEWNET).map_err(Failure::from)
}

/// Runs `f` in a new namespace that ends with it, in a thread of its own. For trying out what the kernel can do.
///
/// # Errors
/// The kernel or the caller's rights allow no new namespace; `f` was not called then.
pub fn run_in_new<T: Send>(f: impl FnOnce() -> T + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            nix::sched::unshare(CloneFlags::CLONE_NEWNET)
                .map_err(|e| Failure::from(e).of("make", "a network namespace"))?;
            Ok(f())
        });
        thread.join().unwrap_or_else(|cause| std::panic::resume_unwind(cause))
    })
}
