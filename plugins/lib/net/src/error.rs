//! What the kernel refused.

use std::{fmt, io};

use nix::errno::Errno;

/// The result of everything here that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An operation that the kernel refused, or whose answer made no sense.
///
/// Displayed as `create veth "veth1234": File exists (EEXIST): <the kernel's own text>`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{operation} {object}: {failure}")]
pub struct Error {
    operation: &'static str,
    object: String,
    failure: Failure,
}

/// The kernel's half of an [`Error`]: an error number, and a text where it gave one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    errno: Errno,
    text: String,
}

impl Error {
    /// What was tried: `create bridge`.
    pub fn operation(&self) -> &'static str {
        self.operation
    }

    /// What it was tried on, names quoted: `"cni0"`.
    pub fn object(&self) -> &str {
        &self.object
    }

    /// The kernel's error number. `EBADMSG` stands for an answer that could not be decoded.
    pub fn errno(&self) -> Errno {
        self.failure.errno
    }

    /// The kernel's own text (netlink's extended acknowledgement), or what was wrong with its answer; often empty.
    pub fn text(&self) -> &str {
        &self.failure.text
    }

    /// Whether the thing was there already.
    pub fn is_exists(&self) -> bool {
        self.errno() == Errno::EEXIST
    }

    /// Whether the thing was not there: no such link (`ENODEV`), file, table or VLAN (`ENOENT`), route (`ESRCH`), or
    /// address (`EADDRNOTAVAIL`).
    pub fn is_not_found(&self) -> bool {
        matches!(
            self.errno(),
            Errno::ENODEV | Errno::ENOENT | Errno::ESRCH | Errno::EADDRNOTAVAIL
        )
    }

    /// Whether this kernel was built without the feature.
    pub fn is_unsupported(&self) -> bool {
        matches!(
            self.errno(),
            Errno::EOPNOTSUPP | Errno::EAFNOSUPPORT | Errno::EPROTONOSUPPORT
        )
    }
}

impl Failure {
    pub(crate) fn new(errno: Errno, text: impl Into<String>) -> Failure {
        Failure {
            errno,
            text: text.into(),
        }
    }

    pub(crate) fn io(error: &io::Error) -> Failure {
        match error.raw_os_error() {
            Some(number) => Failure::from(Errno::from_raw(number)),
            None => Failure::new(Errno::EIO, error.to_string()),
        }
    }

    /// An answer from the kernel that cannot be decoded.
    pub(crate) fn malformed(what: impl fmt::Display) -> Failure {
        Failure::new(Errno::EBADMSG, format!("malformed {what} in netlink reply"))
    }

    pub(crate) fn errno(&self) -> Errno {
        self.errno
    }

    /// Completes the error with what was tried on what.
    pub(crate) fn of(self, operation: &'static str, object: impl Into<String>) -> Error {
        Error {
            operation,
            object: object.into(),
            failure: self,
        }
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Failure {
        Failure::new(errno, "")
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:?})", self.errno.desc(), self.errno)?;
        if !self.text.is_empty() {
            write!(f, ": {}", self.text)?;
        }
        Ok(())
    }
}

impl From<Error> for cni_types::Error {
    /// No code of the specification fits a refusal by the kernel: 999, as the reference's.
    fn from(error: Error) -> cni_types::Error {
        cni_types::Error::internal(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_operation_object_error_and_the_kernels_text() {
        let error = Failure::new(Errno::EEXIST, "name taken").of("create bridge", "\"cni0\"");
        assert_eq!(
            error.to_string(),
            "create bridge \"cni0\": File exists (EEXIST): name taken"
        );
        assert_eq!(
            Failure::from(Errno::ENODEV).of("get", "link 7").to_string(),
            "get link 7: No such device (ENODEV)"
        );
    }

    #[test]
    fn becomes_a_cni_error() {
        let error = cni_types::Error::from(Failure::from(Errno::EPERM).of("delete link", "\"eth0\""));
        assert_eq!(error.code, cni_types::Code::INTERNAL);
        assert_eq!(error.msg, "delete link \"eth0\": Operation not permitted (EPERM)");
    }

    #[test]
    fn knows_what_is_there_and_what_is_gone() {
        let error = |errno| Failure::from(errno).of("do", "it");
        for gone in [Errno::ENODEV, Errno::ENOENT, Errno::ESRCH, Errno::EADDRNOTAVAIL] {
            assert!(error(gone).is_not_found() && !error(gone).is_exists(), "{gone}");
        }
        assert!(error(Errno::EEXIST).is_exists() && !error(Errno::EEXIST).is_not_found());
        assert!(!error(Errno::EPERM).is_exists() && !error(Errno::EPERM).is_not_found());
        assert!(error(Errno::EOPNOTSUPP).is_unsupported() && !error(Errno::EPERM).is_unsupported());
    }
}
