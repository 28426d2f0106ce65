//! The CNI error object and its codes.

use std::fmt;

use serde::Serialize;

/// A code of the error object: section "Error" of the specification, and those that the reference suite added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct Code(pub u32);

impl Code {
    /// The configuration's `cniVersion` is not supported, or does not allow the verb.
    pub const INCOMPATIBLE_VERSION: Code = Code(1);
    /// A field of the configuration has a value that this plugin does not support.
    pub const UNSUPPORTED_FIELD: Code = Code(2);
    /// The container is unknown: the runtime need not call DEL.
    pub const UNKNOWN_CONTAINER: Code = Code(3);
    /// A `CNI_*` variable is missing or invalid.
    pub const INVALID_ENVIRONMENT: Code = Code(4);
    /// A file could not be read or written.
    pub const IO_FAILURE: Code = Code(5);
    /// Input could not be decoded.
    pub const DECODING_FAILURE: Code = Code(6);
    /// The network configuration is invalid.
    pub const INVALID_CONFIG: Code = Code(7);
    /// The network namespace is missing, is none, or is our own. Not in the specification: the reference's `skel` has it.
    pub const INVALID_NETNS: Code = Code(8);
    /// A condition that should pass by itself: the runtime should try again.
    pub const TRY_AGAIN_LATER: Code = Code(11);
    /// STATUS: the plugin cannot serve ADD requests.
    pub const NOT_AVAILABLE: Code = Code(50);
    /// STATUS: the plugin cannot serve ADD requests, and containers may have limited connectivity.
    pub const LIMITED_CONNECTIVITY: Code = Code(51);
    /// Any other failure. Not in the specification: the reference's code for errors without one.
    pub const INTERNAL: Code = Code(999);
}

/// What a failed call prints, less the version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// The kind of failure.
    pub code: Code,
    /// One line for people; runtimes show it, and some match on its beginning.
    pub msg: String,
    /// More of the story; empty for none.
    pub details: String,
}

/// The result of everything that can end in a CNI error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error with a code and a message.
    pub fn new(code: Code, msg: impl Into<String>) -> Error {
        Error {
            code,
            msg: msg.into(),
            details: String::new(),
        }
    }

    /// An error of the network configuration ([`Code::INVALID_CONFIG`]).
    pub fn config(msg: impl Into<String>) -> Error {
        Error::new(Code::INVALID_CONFIG, msg)
    }

    /// An error without a code of its own ([`Code::INTERNAL`]).
    pub fn internal(msg: impl Into<String>) -> Error {
        Error::new(Code::INTERNAL, msg)
    }

    /// A file that could not be read or written ([`Code::IO_FAILURE`]).
    pub fn io(what: impl fmt::Display, source: &std::io::Error) -> Error {
        Error::new(Code::IO_FAILURE, format!("{what}: {source}"))
    }

    /// The same error with `details`.
    #[must_use]
    pub fn with_details(mut self, details: impl Into<String>) -> Error {
        self.details = details.into();
        self
    }

    /// The same error with `context: ` before its message, as the reference chains its errors.
    #[must_use]
    pub fn context(mut self, context: impl fmt::Display) -> Error {
        self.msg = format!("{context}: {}", self.msg);
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.msg)?;
        if !self.details.is_empty() {
            write!(f, "; {}", self.details)?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}
