//! One change of netfilter at a time, among our own processes.

use std::fs::{self, File, TryLockError};
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use cni_types::{Code, Error, Result};

/// The file whose `flock(2)` is held around every read-and-write of rules, by both backends.
const LOCK_FILE: &str = "/run/cni/ferrule-netfilter.lock";

/// Longer than any honest queue: a hundred containers that start at once take a few seconds in all. Runtimes give up
/// after minutes, and a call that hangs until then says nothing about why.
const PATIENCE: Duration = Duration::from_secs(30);

/// One change of netfilter at a time, among our own processes: holds the lock until it is dropped; the kernel releases it with the process as well.
pub struct Lock {
    _file: File,
}

/// Waits for the lock around a change of netfilter by other means than this crate, whose verbs take it themselves.
///
/// # Errors
///
/// Code 11 when another process keeps it; code 5 when the file cannot be made.
pub fn exclusive() -> Result<Lock> {
    acquire(Path::new(LOCK_FILE), PATIENCE)
}

fn acquire(path: &Path, patience: Duration) -> Result<Lock> {
    let failed = |e: &std::io::Error| Error::io(path.display(), e);
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory).map_err(|e| failed(&e))?;
    }
    let mut options = File::options();
    let file = options.create(true).write(true).truncate(false).open(path);
    let file = file.map_err(|e| failed(&e))?;
    match file.try_lock() {
        Ok(()) => return Ok(Lock { _file: file }),
        Err(TryLockError::WouldBlock) => {}
        Err(TryLockError::Error(e)) => return Err(failed(&e)),
    }
    // flock(2) knows no time limit, and polling it would let luck decide who is next. A thread that waits too long ends
    // with the process; should it get the lock after all, the failed send drops it again.
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(file.lock().map(|()| file)));
    match receiver.recv_timeout(patience) {
        Ok(Ok(file)) => Ok(Lock { _file: file }),
        Ok(Err(e)) => Err(failed(&e)),
        Err(_) => Err(Error::new(
            Code::TRY_AGAIN_LATER,
            format!("{} is held by another process for {patience:?}", path.display()),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> std::path::PathBuf {
        std::env::temp_dir().join(format!("ferrule-lock-{}-{name}/lock", std::process::id()))
    }

    #[test]
    fn a_lock_that_is_kept_ends_in_try_again_later() {
        let path = scratch("kept");
        let held = acquire(&path, PATIENCE).unwrap();
        let error = acquire(&path, Duration::from_millis(1)).map(drop).unwrap_err();
        assert_eq!(error.code, Code::TRY_AGAIN_LATER);
        assert!(error.msg.contains("lock"), "{error}");
        drop(held);
        acquire(&path, PATIENCE).unwrap();
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn a_waiter_gets_the_lock_when_it_is_released() {
        let path = scratch("waiter");
        let held = acquire(&path, PATIENCE).unwrap();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| acquire(&path, PATIENCE).map(drop));
            drop(held);
            waiter.join().unwrap().unwrap();
        });
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }
}
