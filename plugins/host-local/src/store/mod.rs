//! A network's directory: the format that is shared with the reference, under its lock.
//!
//! `<dataDir>/<network>/` holds one file per reservation, named by the address, with [its owner](crate::reservation);
//! `last_reserved_ip.<range set>` with the address given last, the cursor; and `lock`, on which both suites hold an exclusive
//! `flock(2)` while they allocate or release. Both may work on one directory at the same moment.
//!
//! Beside it lies a directory of ours, `<dataDir>/.ferrule/<network>/`: temporary files until they are renamed into
//! place, and [the cache](crate::cache). No network can be called so, and the reference does not look there.
//!
//! Nothing is synced to disk. After a power cut no container is left, and what the file system then shows as an empty
//! file, or one of NUL bytes, is no reservation.

mod directory;
mod file;
mod lock;
mod reserve;
mod stamp;

use std::io;

use cni_types::{Code, Error};

pub(crate) use directory::{Found, Network};
pub(crate) use reserve::Reserved;
pub(crate) use stamp::{DirectoryStamp, Stamp, Time};

/// An operation on a file of the network's that failed.
fn failed(what: impl std::fmt::Display, error: impl Into<io::Error>) -> Error {
    let error = error.into();
    Error::new(Code::IO_FAILURE, format!("{what}: {error}"))
}
