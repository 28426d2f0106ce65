//! A private node for each directory of plugins, so that the rules and links of one cost the other nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use super::Failure;
use super::call::shell;

/// A network and a mount namespace of their own, in which /run, /var/lib/cni and /sys are new. They belong to a thread
/// that does what it is sent, and vanish with it; nothing of the machine changes.
pub(super) struct World {
    jobs: mpsc::Sender<Job>,
}

type Job = Box<dyn FnOnce() + Send>;

impl World {
    /// # Errors
    /// Namespaces cannot be made, or not be filled: without root, for example.
    pub(super) fn new() -> Result<World, Failure> {
        let (jobs, todo) = mpsc::channel::<Job>();
        let (entered, outcome) = mpsc::channel();
        thread::Builder::new().name("world".to_owned()).spawn(move || {
            let entry = enter();
            let is_in = entry.is_ok();
            if entered.send(entry).is_ok() && is_in {
                todo.into_iter().for_each(|job| job());
            }
        })?;
        outcome.recv()??;
        Ok(World { jobs })
    }

    /// Does something in this world, and waits for it.
    ///
    /// # Errors
    /// Those of `job`; and if the world has ended because an earlier one panicked.
    pub(super) fn run<R: Send + 'static>(
        &self,
        job: impl FnOnce() -> Result<R, Failure> + Send + 'static,
    ) -> Result<R, Failure> {
        let (done, outcome) = mpsc::channel();
        self.jobs
            .send(Box::new(move || {
                // Whoever waits for the outcome cannot have gone away.
                let _ = done.send(job());
            }))
            .map_err(|_| "a private world has ended")?;
        outcome.recv().map_err(|_| "a private world has ended")?
    }
}

fn enter() -> Result<(), Failure> {
    let before = own_namespaces()?;
    unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET)
        .map_err(|e| format!("no private network and mount namespace ({e}): benchmarks need root"))?;
    // Nothing below may ever happen to the machine itself.
    if before.iter().zip(&own_namespaces()?).any(|(was, is)| was == is) {
        return Err("still in the machine's namespaces, nothing was done".into());
    }
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(None::<&str>, "/", None::<&str>, private, None::<&str>)?;
    mount_new("tmpfs", "/run")?;
    mount_new("sysfs", "/sys")?;
    // Where there is no /var/lib/cni it must not be made on the machine, but in an empty /var/lib of our own.
    let state = Path::new("/var/lib/cni");
    mount_new("tmpfs", if state.is_dir() { "/var/lib/cni" } else { "/var/lib" })?;
    fs::create_dir_all(state)?;
    shell("ip link set lo up")
}

fn mount_new(kind: &str, target: &str) -> Result<(), Failure> {
    mount(Some(kind), target, Some(kind), MsFlags::empty(), None::<&str>)
        .map_err(|e| format!("mount {kind} on {target}: {e}").into())
}

/// Those of this thread: /proc/self would show the first thread's.
fn own_namespaces() -> Result<[PathBuf; 2], Failure> {
    let own = |kind| fs::read_link(format!("/proc/thread-self/ns/{kind}"));
    Ok([own("net")?, own("mnt")?])
}
