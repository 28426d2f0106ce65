//! What can go wrong between us and the kernel.

use std::io;

/// A failure of an exchange with the kernel.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The socket itself failed.
    #[error("{operation} on the netfilter netlink socket: {source}")]
    Socket {
        /// The system call.
        operation: &'static str,
        /// Its error.
        source: io::Error,
    },
    /// The kernel refused an operation.
    #[error("{operation}: {}{}", io::Error::from_raw_os_error(*errno), text.as_ref().map(|t| format!(": {t}")).unwrap_or_default())]
    Refused {
        /// The operation and its object, in words.
        operation: String,
        /// The kernel's error number, positive.
        errno: i32,
        /// The kernel's own words, where it has some.
        text: Option<String>,
    },
    /// The ruleset changed between reading and writing, or all the time while reading. Nothing was written.
    #[error("{operation}: the ruleset was changed by others meanwhile")]
    Changed {
        /// The operation, in words.
        operation: String,
    },
    /// A reply is not what the kernel's headers say, or did not fit the buffer.
    #[error("unusable reply from the kernel: {0}")]
    Malformed(&'static str),
    /// A value is longer than the 65535 bytes that a netlink attribute holds.
    #[error("{operation}: longer than a netlink attribute can be")]
    TooLong {
        /// The operation and its object, in words.
        operation: String,
    },
}

impl Error {
    /// The kernel's error number, if it refused an operation.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Error::Refused { errno, .. } => Some(*errno),
            _ => None,
        }
    }

    /// Whether the kernel said that there is no such thing.
    pub fn is_absent(&self) -> bool {
        self.errno() == Some(libc::ENOENT)
    }

    /// Whether the kernel has no netlink of netfilter, or nobody there who answers for nf_tables: what
    /// [`crate::Connection::open`] and [`crate::Connection::generation`] say then (`netlink_create`, `nfnetlink_rcv_msg`).
    pub fn is_unsupported(&self) -> bool {
        match self {
            Error::Socket { source, .. } => source.raw_os_error() == Some(libc::EPROTONOSUPPORT),
            error => error.errno() == Some(libc::EINVAL),
        }
    }

    pub(crate) fn socket(operation: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::Socket { operation, source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_operation_errno_and_the_kernels_words() {
        let refused = Error::Refused {
            operation: "add chain a to table inet b".to_owned(),
            errno: libc::EBUSY,
            text: Some("in use".to_owned()),
        };
        assert_eq!(
            refused.to_string(),
            "add chain a to table inet b: Device or resource busy (os error 16): in use"
        );
        assert!(!refused.is_absent() && !refused.is_unsupported());
        let without_netfilter = Error::socket("socket")(io::Error::from_raw_os_error(libc::EPROTONOSUPPORT));
        assert!(without_netfilter.is_unsupported());
        let in_need = Error::socket("socket")(io::Error::from_raw_os_error(libc::ENOMEM));
        assert!(!in_need.is_unsupported());
    }
}
