//! What the kernel keeps with an object for us and never looks at (libnftnl's udata.h).

/// The user data of a table, chain, rule or element: a comment that `nft list` shows, and bytes of our own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UserData {
    /// The comment; `nft` reads up to [`UserData::MAX_COMMENT`] bytes.
    pub comment: Option<String>,
    /// Bytes that `nft` passes over; up to [`UserData::MAX_PRIVATE`] less the comment.
    pub private: Vec<u8>,
}

/// `NFTNL_UDATA_*_COMMENT`: zero for tables, chains, rules and elements alike.
const COMMENT: u8 = 0;
/// A kind that libnftnl does not use and nft therefore skips.
const PRIVATE: u8 = 0xf1;

impl UserData {
    /// The kernel's `NFT_USERDATA_MAXLEN`.
    pub const MAX: usize = 256;
    /// What nft accepts as a comment (`NFTNL_UDATA_COMMENT_MAXLEN`), in bytes.
    pub const MAX_COMMENT: usize = 128;
    /// The longest private part beside an empty comment: its length is written in one byte, and both have a head of two.
    pub const MAX_PRIVATE: usize = 252;

    /// A comment alone.
    pub fn comment(text: impl Into<String>) -> UserData {
        UserData {
            comment: Some(text.into()),
            private: Vec::new(),
        }
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.comment.is_none() && self.private.is_empty()
    }

    /// The bytes for the kernel. A comment is clipped to what nft reads, and everything to what the kernel keeps.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        if let Some(comment) = &self.comment {
            // nft wants the terminating zero, within its limit.
            let text = clip(comment, UserData::MAX_COMMENT - 1);
            push(&mut bytes, COMMENT, &[text.as_bytes(), b"\0"].concat());
        }
        if !self.private.is_empty() {
            let room = (UserData::MAX - bytes.len() - 2).min(255);
            push(&mut bytes, PRIVATE, self.private.get(..room).unwrap_or(&self.private));
        }
        bytes
    }

    /// Reads what [`UserData::to_bytes`] or nft wrote; what is neither is passed over.
    pub fn from_bytes(mut bytes: &[u8]) -> UserData {
        let mut data = UserData::default();
        while let [kind, len, rest @ ..] = bytes {
            let Some((value, rest)) = rest.split_at_checked(usize::from(*len)) else {
                break;
            };
            match *kind {
                COMMENT => {
                    let text = value.split(|&byte| byte == 0).next().unwrap_or_default();
                    data.comment = Some(String::from_utf8_lossy(text).into_owned());
                }
                PRIVATE => data.private = value.to_vec(),
                _ => {}
            }
            bytes = rest;
        }
        data
    }
}

fn push(bytes: &mut Vec<u8>, kind: u8, value: &[u8]) {
    bytes.push(kind);
    bytes.push(value.len() as u8); // clipped by the caller
    bytes.extend(value);
}

fn clip(text: &str, max: usize) -> &str {
    let mut end = text.len().min(max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_comment_is_a_type_a_length_and_a_terminated_text() {
        assert_eq!(UserData::comment("ab").to_bytes(), [0, 3, b'a', b'b', 0]);
        assert!(UserData::default().to_bytes().is_empty());
    }

    #[test]
    fn what_is_too_long_is_clipped_at_a_character() {
        let long = UserData {
            comment: Some("ü".repeat(100)),
            private: vec![7; 300],
        };
        let bytes = long.to_bytes();
        assert_eq!(bytes.len(), UserData::MAX);
        let read = UserData::from_bytes(&bytes);
        assert_eq!(read.comment, Some("ü".repeat(63)));
    }

    proptest! {
        #[test]
        fn reading_never_panics(bytes: Vec<u8>) {
            let _ = UserData::from_bytes(&bytes);
        }

        #[test]
        fn what_is_written_is_read(comment in "[a-z]{0,100}", private in proptest::collection::vec(any::<u8>(), 0..140)) {
            let data = UserData { comment: Some(comment), private };
            prop_assert_eq!(UserData::from_bytes(&data.to_bytes()), data);
        }
    }
}
