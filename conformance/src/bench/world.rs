//! A private node for each directory of plugins, so that the rules and links of one cost the other nothing.

use std::path::Path;
use std::sync::mpsc;
use std::thread;

use super::Failure;
use crate::host::with_host;

/// A private host that does what it is sent, and vanishes with this value; nothing of the machine changes.
pub(super) struct World {
    jobs: mpsc::Sender<Job>,
}

type Job = Box<dyn FnOnce() + Send>;

impl World {
    /// A new host that has the plugins of this directory.
    ///
    /// # Errors
    /// It cannot be made: without root, for example.
    pub(super) fn new(plugins: &Path) -> Result<World, Failure> {
        let (jobs, todo) = mpsc::channel::<Job>();
        let (entered, outcome) = mpsc::channel();
        let plugins = plugins.to_owned();
        thread::Builder::new().name("world".to_owned()).spawn(move || {
            let is_in = entered.clone();
            let host = with_host(&plugins, |_| {
                // Whoever waits for it cannot have gone away, here and below.
                let _ = is_in.send(Ok(()));
                todo.into_iter().for_each(|job| job());
            });
            if let Err(e) = host {
                let _ = entered.send(Err(e));
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
