//! A failed ADD takes back what it made; a DEL does all it can.

use std::panic::{AssertUnwindSafe, catch_unwind};

use cni_types::{Error, Result};

type Step = Box<dyn FnOnce() -> Result<()>>;

/// What to do, last first, to take back what an ADD has made so far.
#[derive(Default)]
pub struct Undo(Vec<(&'static str, Step)>);

impl Undo {
    /// Registers the undo of a step. `what` is the thing made: it names the undo in a log.
    pub fn push(&mut self, what: &'static str, step: impl FnOnce() -> Result<()> + 'static) {
        self.0.push((what, Box::new(step)));
    }

    /// Takes everything back. Failures are logged: what the runtime must see is why ADD failed.
    pub(crate) fn unwind(self) {
        for (what, step) in self.0.into_iter().rev() {
            log::debug!("undo: {what}");
            match catch_unwind(AssertUnwindSafe(step)) {
                Ok(Ok(())) => {}
                Ok(Err(e)) => log::error!("could not undo: {what}: {e}"),
                // The panic hook has told what happened.
                Err(_) => log::error!("could not undo: {what}"),
            }
        }
    }
}

/// The steps of a DEL or GC: each runs whatever became of those before it, and all failures are reported together.
#[derive(Default)]
pub struct BestEffort(Vec<Error>);

impl BestEffort {
    /// Runs a step and tells whether it succeeded. `what` is the thing to remove: it begins the message of a failure.
    ///
    /// What is already gone is success; the step's own code knows that by type.
    pub fn step(&mut self, what: &str, step: impl FnOnce() -> Result<()>) -> bool {
        log::debug!("remove: {what}");
        let result = step();
        if let Err(e) = result {
            self.0.push(e.context(what));
            return false;
        }
        true
    }

    /// Runs a delegate's verb and tells whether it succeeded. Its error stays as it is: runtimes know it.
    pub fn delegate(&mut self, call: impl FnOnce() -> Result<()>) -> bool {
        log::debug!("call the IPAM plugin");
        call().map_err(|e| self.0.push(e)).is_ok()
    }

    /// Reports a failure that belongs to no step.
    pub(crate) fn fail(&mut self, error: Error) {
        self.0.push(error);
    }

    /// All failures as one error, with the code of the first.
    pub(crate) fn finish(mut self) -> Result<()> {
        // A delegate meets the same obstacle, such as our own namespace, and says the same.
        self.0.dedup();
        let mut failures = self.0.into_iter();
        let Some(first) = failures.next() else { return Ok(()) };
        Err(failures.fold(first, |mut all, next| {
            all.msg = format!("{}; {}", all.msg, next.msg);
            let details = [all.details, next.details]
                .into_iter()
                .filter(|details| !details.is_empty());
            all.details = details.collect::<Vec<_>>().join("; ");
            all
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use cni_types::Code;

    use super::*;

    #[test]
    fn undo_runs_last_first_and_past_failures() {
        let seen = Rc::new(RefCell::new(Vec::new()));
        let mut undo = Undo::default();
        for (name, outcome) in [("a", Ok(())), ("b", Err(Error::internal("no"))), ("c", Ok(()))] {
            let seen = seen.clone();
            undo.push(name, move || {
                seen.borrow_mut().push(name);
                outcome
            });
        }
        undo.push("d", || panic!("a bug in an undo step"));
        undo.unwind();
        assert_eq!(*seen.borrow(), ["c", "b", "a"]);
    }

    #[test]
    fn the_same_failure_of_a_delegate_is_told_once() {
        let mut todo = BestEffort::default();
        todo.fail(Error::internal("same"));
        todo.delegate(|| Err(Error::internal("same")));
        assert_eq!(todo.finish(), Err(Error::internal("same")));
    }

    #[test]
    fn every_step_runs_and_all_failures_are_told() {
        let mut todo = BestEffort::default();
        assert!(!todo.step("link", || Err(Error::new(Code::IO_FAILURE, "busy"))));
        assert!(todo.step("rules", || Ok(())));
        assert!(!todo.step("ipam", || Err(Error::internal("gone").with_details("d"))));
        let error = todo.finish().unwrap_err();
        assert_eq!(
            (error.code, error.msg.as_str(), error.details.as_str()),
            (Code::IO_FAILURE, "link: busy; ipam: gone", "d")
        );
        assert_eq!(BestEffort::default().finish(), Ok(()));
    }
}
