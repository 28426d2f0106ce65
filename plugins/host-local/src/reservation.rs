//! What a reservation file says.
//!
//! The format is the reference's: the container's ID, carriage return, line feed, the interface's name; from before its
//! release 0.8 the ID alone. Blanks around it do not count.

use cni_types::{Attachment, ContainerId, IfName, ValidAttachments};

/// The content of a reservation file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Content {
    /// Nothing, or nothing but NUL bytes and blanks: a write that a crash cut off. The address is free.
    Blank,
    /// The text, blanks around it removed.
    Owner(Vec<u8>),
    /// It could not be read: the address is taken, by whom is not known.
    Unreadable,
}

/// How a reservation relates to an attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claim {
    /// It names container and interface.
    Exact,
    /// It names the container alone.
    IdOnly,
    /// It is another's, or nobody's.
    None,
}

impl Content {
    /// What bytes read from a file mean.
    pub(crate) fn of(bytes: &[u8]) -> Content {
        if bytes.iter().all(|b| *b == 0 || b.is_ascii_whitespace()) {
            return Content::Blank;
        }
        Content::Owner(bytes.trim_ascii().to_vec())
    }

    /// Whether it is the attachment's.
    pub(crate) fn claim(&self, attachment: &Attachment) -> Claim {
        let Content::Owner(text) = self else { return Claim::None };
        if *text == owner_text(&attachment.container_id, &attachment.ifname).as_bytes() {
            Claim::Exact
        } else if *text == attachment.container_id.as_str().as_bytes() {
            Claim::IdOnly
        } else {
            Claim::None
        }
    }

    /// Whether a GC leaves it: its owner is valid, or it cannot be told. A file that names a container alone stays
    /// while any attachment of that container is valid.
    pub(crate) fn is_valid(&self, valid: &ValidAttachments) -> bool {
        let Content::Owner(text) = self else {
            return *self == Content::Unreadable;
        };
        valid
            .iter()
            .any(|(id, ifname)| *text == id.as_str().as_bytes() || *text == owner_text(id, ifname).as_bytes())
    }

    /// The owner for people.
    pub(crate) fn describe(&self) -> String {
        match self {
            Content::Blank => "nobody".to_owned(),
            Content::Unreadable => "an owner that cannot be read".to_owned(),
            Content::Owner(text) => {
                let text = String::from_utf8_lossy(text);
                match text.split_once("\r\n") {
                    Some((id, ifname)) => format!("container {id} interface {ifname}"),
                    None => format!("container {text}"),
                }
            }
        }
    }
}

/// The text of a reservation file.
pub(crate) fn owner_text(id: &ContainerId, ifname: &IfName) -> String {
    format!("{id}\r\n{ifname}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attachment(id: &str, ifname: &str) -> Attachment {
        Attachment {
            network: "n".parse().unwrap(),
            container_id: id.parse().unwrap(),
            ifname: ifname.parse().unwrap(),
        }
    }

    #[test]
    fn nothing_but_nuls_and_blanks_is_blank() {
        for bytes in [&b""[..], b"\0\0\0", b" \r\n\t", b"\0 \n\0"] {
            assert_eq!(Content::of(bytes), Content::Blank);
        }
        assert_ne!(Content::of(b"\0c1"), Content::Blank);
    }

    #[test]
    fn claims_compare_container_and_interface() {
        let c1 = attachment("c1", "eth0");
        for (bytes, claim) in [
            (&b"c1\r\neth0"[..], Claim::Exact),
            (b" c1\r\neth0\n", Claim::Exact),
            (b"c1", Claim::IdOnly),
            (b"c1\n", Claim::IdOnly),
            (b"c1\neth0", Claim::None),
            (b"c1\r\neth1", Claim::None),
            (b"c11\r\neth0", Claim::None),
            (b"", Claim::None),
        ] {
            assert_eq!(Content::of(bytes).claim(&c1), claim, "{bytes:?}");
        }
        assert_eq!(Content::Unreadable.claim(&c1), Claim::None);
    }

    #[test]
    fn gc_keeps_what_is_valid_or_unreadable() {
        let valid: ValidAttachments = [("c1", "eth0"), ("old", "net1")]
            .map(|(id, name)| (id.parse().unwrap(), name.parse().unwrap()))
            .into();
        for (content, stays) in [
            (Content::of(b"c1\r\neth0"), true),
            (Content::of(b"c1\r\neth1"), false),
            (Content::of(b"c2\r\neth0"), false),
            (Content::of(b"old"), true),
            (Content::of(b"older"), false),
            (Content::Blank, false),
            (Content::Unreadable, true),
        ] {
            assert_eq!(content.is_valid(&valid), stays, "{content:?}");
        }
    }
}
