//! Whose an element is.

use cni_types::{Attachment, ContainerId, NetworkName};
use sha2::{Digest, Sha512};

/// An attachment's name in the kernel: parts of the SHA-512 hashes of its network, its container and the whole. Two of a
/// node's attachments get the same one with a probability of about one in 2^60; a record tells them apart all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Owner([u8; Owner::LEN]);

const NETWORK: usize = 5;
const CONTAINER: usize = 6;
const WHOLE: usize = 5;

impl Owner {
    /// In bytes: an IPv6 address's, which nft can show and load again.
    pub(super) const LEN: usize = NETWORK + CONTAINER + WHOLE;

    pub(super) fn of(attachment: &Attachment) -> Owner {
        let whole = hash::<WHOLE>(&[
            attachment.network.as_str(),
            attachment.container_id.as_str(),
            attachment.ifname.as_str(),
        ]);
        let mut bytes = [0; Owner::LEN];
        let parts = network_part(&attachment.network)
            .into_iter()
            .chain(container_part(&attachment.container_id))
            .chain(whole);
        for (byte, part) in bytes.iter_mut().zip(parts) {
            *byte = part;
        }
        Owner(bytes)
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Owner> {
        bytes.try_into().ok().map(Owner)
    }

    /// Whether it belongs to the network.
    pub(super) fn is_on(&self, network: &NetworkName) -> bool {
        self.0.starts_with(&network_part(network))
    }

    /// Whether both are attachments of one container.
    pub(super) fn is_of_same_container(&self, other: &Owner) -> bool {
        let container = |owner: &Owner| owner.0.get(NETWORK..NETWORK + CONTAINER).map(<[u8]>::to_vec);
        container(self) == container(other)
    }

    /// The comment of an element: this in hexadecimal, and for people as much of the names as nft shows.
    pub(super) fn comment(attachment: &Attachment) -> String {
        format!("{} {attachment:?}", hex(&Owner::of(attachment).0))
    }

    /// Reads a comment back.
    pub(super) fn from_comment(comment: &str) -> Option<Owner> {
        let text = comment.split(' ').next()?;
        let digits = text.as_bytes().chunks_exact(2);
        let bytes: Option<Vec<u8>> = digits
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
            .collect();
        (text.len() == 2 * Owner::LEN)
            .then_some(bytes)?
            .and_then(|bytes| Owner::from_bytes(&bytes))
    }
}

fn network_part(network: &NetworkName) -> [u8; NETWORK] {
    hash(&[network.as_str()])
}

fn container_part(container: &ContainerId) -> [u8; CONTAINER] {
    hash(&[container.as_str()])
}

/// The first bytes of the hash of texts that cannot contain the separator.
fn hash<const N: usize>(texts: &[&str]) -> [u8; N] {
    let digest = Sha512::digest(texts.join("/"));
    let mut first = [0; N];
    for (to, from) in first.iter_mut().zip(digest) {
        *to = from;
    }
    first
}

/// Bytes in lower-case hexadecimal.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attachment(network: &str, container: &str, ifname: &str) -> Attachment {
        Attachment {
            network: network.parse().unwrap(),
            container_id: container.parse().unwrap(),
            ifname: ifname.parse().unwrap(),
        }
    }

    #[test]
    fn every_part_of_the_name_counts() {
        let owner = Owner::of(&attachment("n", "c", "eth0"));
        for other in [("m", "c", "eth0"), ("n", "d", "eth0"), ("n", "c", "eth1")] {
            assert_ne!(owner, Owner::of(&attachment(other.0, other.1, other.2)));
        }
        assert!(owner.is_on(&"n".parse().unwrap()));
        assert!(!owner.is_on(&"m".parse().unwrap()));
        assert!(owner.is_of_same_container(&Owner::of(&attachment("m", "c", "eth9"))));
        assert!(!owner.is_of_same_container(&Owner::of(&attachment("n", "d", "eth0"))));
    }

    #[test]
    fn a_comment_is_read_however_long_the_names_are() {
        let long = attachment("network", &"c".repeat(200), "eth0");
        let comment = Owner::comment(&long);
        let shown = comment.get(..127).unwrap();
        assert_eq!(Owner::from_comment(shown), Some(Owner::of(&long)));
        for text in ["", "abc", "not ours", &"z".repeat(32), &"ü".repeat(16)] {
            assert_eq!(Owner::from_comment(text), None, "{text}");
        }
    }
}
