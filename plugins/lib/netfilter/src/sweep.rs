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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_failure_is_lost() {
        assert_eq!(together([Ok(()), Ok(())]), Ok(()));
        let error = together([Err(Error::internal("a")), Ok(()), Err(Error::config("b"))]).unwrap_err();
        assert_eq!(error, Error::internal("a; b"));
    }
}
