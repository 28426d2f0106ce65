//! Random bytes, and the names and addresses made of them.
#![allow(unsafe_code)]

use cni_types::{IfName, MacAddr};
use nix::errno::Errno;

use crate::error::{Failure, Result};

/// `N` bytes from the kernel's random number generator. At most 256, which getrandom(2) always fills whole.
///
/// # Errors
/// getrandom(2) fails: forbidden by a seccomp filter, or not there.
pub fn random_bytes<const N: usize>() -> Result<[u8; N]> {
    const { assert!(N <= 256) };
    let mut bytes = [0; N];
    loop {
        // SAFETY: the pointer and the length describe `bytes`, which outlives the call.
        let filled = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), N, 0) };
        if usize::try_from(filled) == Ok(N) {
            return Ok(bytes);
        }
        let errno = Errno::last();
        if errno != Errno::EINTR {
            return Err(Failure::from(errno).of("read", "random bytes"));
        }
    }
}

/// A new random Ethernet address: unicast, locally administered.
///
/// # Errors
/// As [`random_bytes`].
pub fn random_mac() -> Result<MacAddr> {
    random_bytes().map(MacAddr::local)
}

/// A new random name for the host's end of a veth pair: `veth` and eight hexadecimal digits, as the reference makes.
///
/// # Errors
/// As [`random_bytes`].
pub fn host_veth_name() -> Result<IfName> {
    let name = format!("veth{:08x}", u32::from_ne_bytes(random_bytes()?));
    name.parse()
        .map_err(|_| Failure::from(Errno::EINVAL).of("make", format!("{name:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differs_from_call_to_call() {
        assert_ne!(random_bytes::<16>().unwrap(), random_bytes::<16>().unwrap());
        assert_ne!(random_mac().unwrap(), random_mac().unwrap());
    }

    #[test]
    fn names_are_veth_and_eight_digits() {
        let name = host_veth_name().unwrap();
        let digits = name.as_str().strip_prefix("veth").unwrap();
        assert_eq!(digits.len(), 8);
        assert!(u32::from_str_radix(digits, 16).is_ok());
    }
}
