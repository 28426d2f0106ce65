//! Trying everything before reporting anything.

use cni_types::{Error, Result};

/// All failures in one, under the first one's code; success if there is none.
pub(crate) fn together(results: impl IntoIterator<Item = Result<()>>) -> Result<()> {
    let failures = results.into_iter().filter_map(Result::err);
    let joined = failures.reduce(|first, next| Error {
        msg: format!("{}; {}", first.msg, next.msg),
        ..first
    });
    joined.map_or(Ok(()), Err)
}

/// Success if one of the checks passes; otherwise the failure of the first, which is the one that was to be expected.
pub(crate) fn first_of(checks: &[&dyn Fn() -> Result<()>]) -> Result<()> {
    let mut first = Ok(());
    for check in checks {
        match check() {
            Ok(()) => return Ok(()),
            failed if first.is_ok() => first = failed,
            Err(e) => log::debug!("nor elsewhere: {e}"),
        }
    }
    first
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_failure_is_lost() {
        assert_eq!(together([Ok(()), Ok(())]), Ok(()));
        let error = together([Err(Error::internal("a")), Ok(()), Err(Error::config("b"))]).unwrap_err();
        assert_eq!(error, Error::internal("a; b"));
    }

    #[test]
    fn one_success_is_enough_and_the_first_failure_is_told() {
        let (a, b) = (|| Err(Error::internal("a")), || Err(Error::internal("b")));
        assert_eq!(first_of(&[&a, &b]), Err(Error::internal("a")));
        assert_eq!(first_of(&[&a, &b, &|| Ok(())]), Ok(()));
        assert_eq!(first_of(&[&|| Ok(()), &|| panic!("asked without need")]), Ok(()));
    }
}
