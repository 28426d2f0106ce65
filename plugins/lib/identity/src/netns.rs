//! A network namespace, by identity.

use std::fmt;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, getsockopt, socket};
use nix::{getsockopt_impl, sockopt_impl};

/// A network namespace, by identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetnsIdentity {
    /// The device of nsfs.
    pub device: u64,
    /// Its inode. The kernel gives the number of a namespace that is gone to a new one within a few containers.
    pub inode: u64,
    /// `SO_NETNS_COOKIE`: never given twice in a boot. Kernels before 5.14 have none.
    pub cookie: Option<u64>,
    /// Where the runtime had it; empty if that is too long to keep.
    pub path: PathBuf,
}

impl NetnsIdentity {
    /// The identity of an open namespace.
    pub fn of(netns: BorrowedFd<'_>, path: &Path) -> Option<NetnsIdentity> {
        let stat = nix::sys::stat::fstat(netns).ok()?;
        Some(NetnsIdentity {
            device: stat.st_dev,
            inode: stat.st_ino,
            cookie: cookie(netns),
            path: path.to_owned(),
        })
    }

    /// Whether the file at `path` is this namespace. `None` where it cannot be told.
    pub fn is_at(&self, path: &Path) -> Option<bool> {
        match fs::metadata(path) {
            Ok(there) if (there.dev(), there.ino()) != (self.device, self.inode) => return Some(false),
            Ok(_) => {}
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Some(false),
            Err(_) => return None,
        }
        let Some(ours) = self.cookie else { return Some(true) };
        let theirs = File::open(path).ok().and_then(|file| cookie(file.as_fd()))?;
        Some(theirs == ours)
    }
}

/// One line: device, inode, cookie or `-`, and the path, to be kept beside what the namespace holds.
impl fmt::Display for NetnsIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cookie = self.cookie.map_or("-".to_owned(), |cookie| cookie.to_string());
        let path = self.path.as_os_str().as_bytes();
        write!(
            f,
            "{} {} {cookie} {}",
            self.device,
            self.inode,
            String::from_utf8_lossy(path)
        )
    }
}

/// A text that is no [`NetnsIdentity`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParseIdentityError;

impl FromStr for NetnsIdentity {
    type Err = ParseIdentityError;

    fn from_str(text: &str) -> Result<NetnsIdentity, ParseIdentityError> {
        let mut parts = text.splitn(4, ' ');
        let mut part = || parts.next().ok_or(ParseIdentityError);
        let number = |text: &str| text.parse::<u64>().map_err(|_| ParseIdentityError);
        Ok(NetnsIdentity {
            device: number(part()?)?,
            inode: number(part()?)?,
            cookie: match part()? {
                "-" => None,
                cookie => Some(number(cookie)?),
            },
            path: part()?.into(),
        })
    }
}

sockopt_impl!(
    // The cookie of a socket's network namespace, of Linux 5.14 and later.
    NetnsCookie,
    GetOnly,
    libc::SOL_SOCKET,
    SO_NETNS_COOKIE,
    u64
);

/// `asm-generic/socket.h`.
const SO_NETNS_COOKIE: libc::c_int = 71;

/// The cookie can be asked of a socket only, so one is made inside; it takes some ten microseconds.
fn cookie(netns: BorrowedFd<'_>) -> Option<u64> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = net::netns::run_in(netns, || socket(AddressFamily::Unix, SockType::Datagram, flags, None));
    getsockopt(&socket.ok()?.ok()?, NetnsCookie).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_reads_back_from_its_text() {
        let full = NetnsIdentity {
            device: 4,
            inode: 4026532247,
            cookie: Some(77),
            path: "/run/netns/with blank".into(),
        };
        let bare = NetnsIdentity {
            cookie: None,
            path: PathBuf::new(),
            ..full.clone()
        };
        for identity in [full, bare] {
            assert_eq!(identity.to_string().parse(), Ok(identity));
        }
        for text in ["", "4 5", "4 5 6", "x 5 6 /run", "4 5 x /run"] {
            assert_eq!(text.parse::<NetnsIdentity>(), Err(ParseIdentityError), "{text}");
        }
    }
}
