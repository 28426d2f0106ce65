//! Netlink messages with netfilter's header (netlink.h, nfnetlink.h).

use crate::attributes::Reader;
use crate::error::Error;

/// `sizeof(struct nlmsghdr)`.
const HEADER: usize = 16;
/// `sizeof(struct nfgenmsg)`: family, version, resource.
const NETFILTER_HEADER: usize = 4;

/// `NLMSG_ERROR`: an acknowledgement, or why there is none.
pub(crate) const ERROR: u16 = 2;
/// `NLMSG_DONE`: the end of a dump.
pub(crate) const DONE: u16 = 3;
/// `NLMSG_OVERRUN`: messages were lost.
pub(crate) const OVERRUN: u16 = 4;
/// `NFNL_MSG_BATCH_BEGIN`.
pub(crate) const BATCH_BEGIN: u16 = 16;
/// `NFNL_MSG_BATCH_END`.
pub(crate) const BATCH_END: u16 = 17;
/// `NFNL_SUBSYS_NFTABLES`.
pub(crate) const NFTABLES: u8 = 10;

/// A message's head, as it is to be written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Head {
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    pub(crate) sequence: u32,
    pub(crate) family: u8,
    pub(crate) resource: u16,
}

/// Appends a message to a datagram.
pub(crate) fn write(datagram: &mut Vec<u8>, head: Head, attributes: &[u8]) {
    // Attributes are bounded by what a batch may hold, far below 4 GiB.
    let len = (HEADER + NETFILTER_HEADER + attributes.len()) as u32;
    datagram.extend(len.to_ne_bytes());
    datagram.extend(head.kind.to_ne_bytes());
    datagram.extend(head.flags.to_ne_bytes());
    datagram.extend(head.sequence.to_ne_bytes());
    datagram.extend(0u32.to_ne_bytes()); // the port: the kernel knows ours
    datagram.extend([head.family, 0]);
    datagram.extend(head.resource.to_be_bytes());
    datagram.extend(attributes);
    datagram.resize(datagram.len().next_multiple_of(4), 0);
}

/// A message as the kernel sent it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Message<'a> {
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    pub(crate) sequence: u32,
    payload: &'a [u8],
}

/// An acknowledgement: zero, or a positive error number with the kernel's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Acknowledgement {
    pub(crate) errno: i32,
    pub(crate) text: Option<String>,
}

impl<'a> Message<'a> {
    /// Takes the first message off a datagram; `None` at its end.
    pub(crate) fn next(datagram: &mut &'a [u8]) -> Result<Option<Message<'a>>, Error> {
        if datagram.is_empty() {
            return Ok(None);
        }
        const WRONG: Error = Error::Malformed("a message's length");
        let [l0, l1, l2, l3, k0, k1, f0, f1, s0, s1, s2, s3, ..] = *datagram.first_chunk::<HEADER>().ok_or(WRONG)?;
        let len = u32::from_ne_bytes([l0, l1, l2, l3]) as usize;
        let payload = datagram.get(HEADER..len).ok_or(WRONG)?;
        *datagram = datagram.get(len.next_multiple_of(4)..).unwrap_or_default();
        Ok(Some(Message {
            kind: u16::from_ne_bytes([k0, k1]),
            flags: u16::from_ne_bytes([f0, f1]),
            sequence: u32::from_ne_bytes([s0, s1, s2, s3]),
            payload,
        }))
    }

    /// The attributes behind netfilter's header.
    pub(crate) fn attributes(&self) -> Result<&'a [u8], Error> {
        self.payload
            .get(NETFILTER_HEADER..)
            .ok_or(Error::Malformed("a netfilter header"))
    }

    /// The result in a message of kind [`ERROR`] or [`DONE`].
    pub(crate) fn acknowledgement(&self) -> Result<Acknowledgement, Error> {
        const WRONG: Error = Error::Malformed("an acknowledgement");
        let (errno, rest) = self.payload.split_first_chunk::<4>().ok_or(WRONG)?;
        let errno = i32::from_ne_bytes(*errno).checked_neg().ok_or(WRONG)?;
        Ok(Acknowledgement {
            errno,
            text: self.extended_text(rest),
        })
    }

    /// `NLMSGERR_ATTR_MSG` of an extended acknowledgement, where there is a readable one.
    fn extended_text(&self, rest: &[u8]) -> Option<String> {
        const NLMSGERR_ATTR_MSG: u16 = 1;
        if self.flags & libc::NLM_F_ACK_TLVS as u16 == 0 {
            return None;
        }
        let attributes = match self.kind {
            // The message that failed comes first: its header only, if the socket asked for caps.
            ERROR if self.flags & libc::NLM_F_CAPPED as u16 != 0 => rest.get(HEADER..)?,
            ERROR => {
                let (len, _) = rest.split_first_chunk::<4>()?;
                rest.get((u32::from_ne_bytes(*len) as usize).next_multiple_of(4)..)?
            }
            _ => rest,
        };
        Reader::new(attributes).ok()?.text(NLMSGERR_ATTR_MSG).map(str::to_owned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HEAD: Head = Head {
        kind: 0x0a07,
        flags: 5,
        sequence: 9,
        family: 1,
        resource: 10,
    };

    #[test]
    fn a_message_has_netlinks_and_netfilters_header() {
        let mut datagram = Vec::new();
        write(&mut datagram, HEAD, &[1, 2, 3, 4]);
        assert_eq!(
            datagram,
            [
                24, 0, 0, 0, 7, 10, 5, 0, 9, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 10, 1, 2, 3, 4
            ]
        );
        let mut rest = datagram.as_slice();
        let message = Message::next(&mut rest).unwrap().unwrap();
        assert_eq!((message.kind, message.flags, message.sequence), (0x0a07, 5, 9));
        assert_eq!(message.attributes().unwrap(), [1, 2, 3, 4]);
        assert!(Message::next(&mut rest).unwrap().is_none());
    }

    #[test]
    fn an_extended_acknowledgement_gives_errno_and_text() {
        let mut payload = (-17i32).to_ne_bytes().to_vec();
        payload.extend([0; HEADER]);
        payload.extend([7, 0, 1, 0, b'n', b'o', 0, 0]);
        let message = Message {
            kind: ERROR,
            flags: (libc::NLM_F_ACK_TLVS | libc::NLM_F_CAPPED) as u16,
            sequence: 1,
            payload: &payload,
        };
        let expected = Acknowledgement {
            errno: 17,
            text: Some("no".to_owned()),
        };
        assert_eq!(message.acknowledgement().unwrap(), expected);
    }

    proptest! {
        #[test]
        fn reading_never_panics(bytes: Vec<u8>, kind: u16, flags: u16) {
            let mut rest = bytes.as_slice();
            while let Ok(Some(message)) = Message::next(&mut rest) {
                let _ = (message.attributes().is_ok(), message.acknowledgement().is_ok());
            }
            let message = Message { kind, flags, sequence: 0, payload: &bytes };
            let _ = (message.attributes().is_ok(), message.acknowledgement().is_ok());
            let message = Message { kind: ERROR, flags: 0x200, sequence: 0, payload: &bytes };
            let _ = message.acknowledgement().is_ok();
        }
    }
}
