//! Netlink replies, from bytes: no socket here, so that any byte can be tried.

use netlink_packet_core::{
    NLM_F_ACK_TLVS, NLM_F_CAPPED, NLM_F_DUMP_INTR, NLMSG_DONE, NLMSG_ERROR, NLMSG_NOOP, NLMSG_OVERRUN, NetlinkBuffer,
};
use nix::errno::Errno;

use crate::attributes::{attributes, text};
use crate::error::Failure;

/// `NLMSGERR_ATTR_MSG` of linux/netlink.h: the text of an extended acknowledgement.
const NLMSGERR_ATTR_MSG: u16 = 1;
/// `sizeof(struct nlmsghdr)`: what a capped error repeats of the request.
const HEADER_LEN: usize = 16;
/// How often an interrupted dump is tried. A dump takes well under a millisecond for hundreds of links, so this many
/// interruptions in a row mean that something is badly wrong on the node.
const DUMP_ATTEMPTS: usize = 32;

/// One message of a datagram.
#[derive(Debug)]
pub(crate) struct Frame<'a> {
    pub(crate) kind: u16,
    flags: u16,
    sequence: u32,
    pub(crate) payload: &'a [u8],
}

/// The messages of a datagram. Ends after the first malformed one.
pub(crate) fn frames(datagram: &[u8]) -> impl Iterator<Item = Result<Frame<'_>, Failure>> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let Ok(message) = NetlinkBuffer::new_checked(rest) else {
            rest = &[];
            return Some(Err(Failure::malformed("message header")));
        };
        let length = message.length() as usize;
        let frame = Frame {
            kind: message.message_type(),
            flags: message.flags(),
            sequence: message.sequence_number(),
            payload: rest.get(HEADER_LEN..length).unwrap_or_default(),
        };
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(Ok(frame))
    })
}

/// How a message is decoded; `None` skips it.
pub(crate) type Decode<'a, T> = &'a dyn Fn(&[u8]) -> Result<Option<T>, Failure>;

/// What ends the reply to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expect {
    /// An acknowledgement; messages before it are echoes of what was made.
    Ack,
    /// One message, without an acknowledgement.
    Message,
    /// A dump, ended by `NLMSG_DONE`.
    Dump,
}

/// The reply to one request, as far as it was read.
#[derive(Debug)]
pub(crate) struct Reply<T> {
    sequence: u32,
    pub(crate) expect: Expect,
    /// The decoded messages.
    pub(crate) items: Vec<T>,
    /// The dumped objects changed while they were dumped (`NLM_F_DUMP_INTR`).
    pub(crate) interrupted: bool,
}

impl<T> Reply<T> {
    pub(crate) fn new(sequence: u32, expect: Expect) -> Reply<T> {
        Reply {
            sequence,
            expect,
            items: Vec::new(),
            interrupted: false,
        }
    }

    /// Takes in a datagram and tells whether the reply is complete.
    pub(crate) fn feed(&mut self, datagram: &[u8], decode: Decode<'_, T>) -> Result<bool, Failure> {
        for frame in frames(datagram) {
            let frame = frame?;
            // What is left of the reply to a request that was given up.
            if frame.sequence != self.sequence {
                continue;
            }
            self.interrupted |= frame.flags & NLM_F_DUMP_INTR != 0;
            match frame.kind {
                NLMSG_NOOP => {}
                NLMSG_OVERRUN => return Err(Failure::malformed("NLMSG_OVERRUN")),
                NLMSG_ERROR | NLMSG_DONE => return status(&frame).map(|()| true),
                _ => {
                    self.items.extend(decode(frame.payload)?);
                    if self.expect == Expect::Message {
                        return Ok(true);
                    }
                }
            }
        }
        Ok(false)
    }
}

/// Repeats a dump until nothing changed under it.
pub(crate) fn until_consistent<T>(mut dump: impl FnMut() -> Result<Reply<T>, Failure>) -> Result<Vec<T>, Failure> {
    for _ in 0..DUMP_ATTEMPTS {
        let reply = dump()?;
        if !reply.interrupted {
            return Ok(reply.items);
        }
    }
    Err(Failure::new(
        Errno::EAGAIN,
        format!("the dump was interrupted {DUMP_ATTEMPTS} times in a row"),
    ))
}

/// The status in an `NLMSG_ERROR` or `NLMSG_DONE`: a negated error number, then (in errors) the request or its header,
/// then the attributes of the extended acknowledgement.
fn status(frame: &Frame<'_>) -> Result<(), Failure> {
    let Some((code, rest)) = frame.payload.split_first_chunk::<4>() else {
        // Old kernels end a dump with an empty NLMSG_DONE.
        return if frame.kind == NLMSG_DONE {
            Ok(())
        } else {
            Err(Failure::malformed("NLMSG_ERROR"))
        };
    };
    let code = i32::from_ne_bytes(*code);
    let text = if frame.flags & NLM_F_ACK_TLVS == 0 {
        None
    } else {
        extended_text(frame, rest)
    };
    if code == 0 || (frame.kind == NLMSG_DONE && code > 0) {
        if let Some(text) = text {
            log::warn!("kernel: {text}");
        }
        return Ok(());
    }
    Err(Failure::new(
        Errno::from_raw(code.saturating_neg()),
        text.unwrap_or_default(),
    ))
}

fn extended_text(frame: &Frame<'_>, after_code: &[u8]) -> Option<String> {
    let skipped = match frame.kind {
        NLMSG_DONE => 0,
        _ if frame.flags & NLM_F_CAPPED != 0 => HEADER_LEN,
        _ => {
            let length = u32::from_ne_bytes(*after_code.first_chunk::<4>()?);
            usize::try_from(length).ok()?.checked_next_multiple_of(4)?
        }
    };
    attributes(after_code.get(skipped..)?)
        .filter_map(Result::ok)
        .find(|attribute| attribute.kind == NLMSGERR_ATTR_MSG)
        .map(|attribute| text(attribute.value))
}

#[cfg(test)]
mod tests;
