//! The socket, and the three kinds of exchange over it: requests, dumps and batches.

use std::os::fd::AsFd;

use netlink_sys::protocols::NETLINK_NETFILTER;
use netlink_sys::{Socket, SocketAddr};
use nix::sys::socket::{setsockopt, sockopt};

use crate::attributes::Attributes;
use crate::batch::Batch;
use crate::error::Error;
use crate::message::{self, Acknowledgement, Head, Message};
use crate::ruleset::{Family, Table};

const REQUEST: u16 = libc::NLM_F_REQUEST as u16;
const ACK: u16 = Request::ACK;
const DUMP: u16 = libc::NLM_F_DUMP as u16;
const DUMP_INTERRUPTED: u16 = libc::NLM_F_DUMP_INTR as u16;

/// The kernel writes at most 32 KiB into one datagram of a dump (`NLMSG_GOODSIZE` and af_netlink.c), less elsewhere.
const RECEIVE_BUFFER: usize = 64 * 1024;
/// How many requests are sent before their answers are read. Answers wait in a socket buffer of 208 KiB by default, in
/// which each counts with a page or two.
const WINDOW: usize = 16;
/// Below this the default send buffer suffices; af_netlink.c refuses larger datagrams.
const SMALL_BATCH: usize = 128 * 1024;
/// A dump that others keep interrupting is given up after so many tries.
const DUMP_TRIES: usize = 10;

/// One request to a netfilter subsystem.
#[derive(Debug, Clone)]
pub struct Request {
    /// The subsystem: `NFNL_SUBSYS_*` of nfnetlink.h.
    pub subsystem: u8,
    /// The operation, one of the subsystem's.
    pub operation: u8,
    /// More `NLM_F_*` flags than the exchange sets by itself: [`Request::ACK`] where the operation has no answer but that it
    /// was done.
    pub flags: u16,
    /// The protocol family: `NFPROTO_*` or `AF_*`.
    pub family: u8,
    /// What it is about.
    pub attributes: Attributes,
    /// What is asked and of what, in words; errors begin with it.
    pub what: String,
}

impl Request {
    /// `NLM_F_ACK`.
    pub const ACK: u16 = libc::NLM_F_ACK as u16;

    fn write(&self, datagram: &mut Vec<u8>, flags: u16, sequence: u32) -> Result<(), Error> {
        if self.attributes.is_too_long() {
            return Err(Error::TooLong {
                operation: self.what.clone(),
            });
        }
        let head = Head {
            kind: u16::from_be_bytes([self.subsystem, self.operation]),
            flags: REQUEST | self.flags | flags,
            sequence,
            family: self.family,
            resource: 0,
        };
        message::write(datagram, head, self.attributes.as_bytes());
        Ok(())
    }

    fn refused(&self, acknowledgement: Acknowledgement) -> Error {
        Error::Refused {
            operation: self.what.clone(),
            errno: acknowledgement.errno,
            text: acknowledgement.text,
        }
    }
}

/// A netlink socket to netfilter, in the network namespace in which it was opened.
pub struct Connection {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Connection {
    /// Opens a socket in the calling thread's network namespace.
    ///
    /// # Errors
    ///
    /// [`Error::Socket`], for instance where the kernel has no netfilter netlink.
    pub fn open() -> Result<Connection, Error> {
        let mut socket = Socket::new(NETLINK_NETFILTER).map_err(Error::socket("socket"))?;
        socket.bind_auto().map_err(Error::socket("bind"))?;
        // Connected to the kernel, the socket receives from nobody else.
        socket
            .connect(&SocketAddr::new(0, 0))
            .map_err(Error::socket("connect"))?;
        socket.set_ext_ack(true).map_err(Error::socket("setsockopt"))?;
        socket.set_cap_ack(true).map_err(Error::socket("setsockopt"))?;
        Ok(Connection {
            socket,
            sequence: 0,
            buffer: Vec::with_capacity(RECEIVE_BUFFER),
        })
    }

    /// Asks each request and returns, in their order, the attributes of the answers (empty where the answer is only that
    /// it was done) or the kernel's refusal.
    ///
    /// # Errors
    ///
    /// The exchange as a whole failed.
    pub fn request(&mut self, requests: &[Request]) -> Result<Vec<Result<Vec<u8>, Error>>, Error> {
        let mut answers = Vec::with_capacity(requests.len());
        for window in requests.chunks(WINDOW) {
            self.request_window(window, &mut answers)?;
        }
        Ok(answers)
    }

    fn request_window(&mut self, requests: &[Request], answers: &mut Vec<Result<Vec<u8>, Error>>) -> Result<(), Error> {
        let mut datagram = Vec::new();
        let first = self.sequence.wrapping_add(1);
        for request in requests {
            request.write(&mut datagram, 0, self.next_sequence())?;
        }
        self.send(&datagram)?;

        let mut open = requests.iter();
        let mut expected = first;
        while !open.as_slice().is_empty() {
            self.receive()?;
            let mut rest = self.buffer.as_slice();
            while let Some(message) = Message::next(&mut rest)? {
                if message.sequence != expected {
                    continue;
                }
                let Some(request) = open.next() else { break };
                expected = expected.wrapping_add(1);
                answers.push(match message.kind {
                    message::OVERRUN => return Err(Error::Malformed("messages were lost")),
                    message::ERROR => match message.acknowledgement()? {
                        done if done.errno == 0 => Ok(Vec::new()),
                        refusal => Err(request.refused(refusal)),
                    },
                    _ => Ok(message.attributes()?.to_vec()),
                });
            }
        }
        Ok(())
    }

    /// Asks for a list and returns the attributes of each of its entries.
    ///
    /// # Errors
    ///
    /// The kernel's refusal, or [`Error::Changed`] when the list changed under every one of ten readings.
    pub fn dump(&mut self, request: &Request) -> Result<Vec<Vec<u8>>, Error> {
        for _ in 0..DUMP_TRIES {
            if let Some(entries) = self.dump_once(request)? {
                return Ok(entries);
            }
        }
        Err(Error::Changed {
            operation: request.what.clone(),
        })
    }

    /// `None` if the list changed while it was read.
    fn dump_once(&mut self, request: &Request) -> Result<Option<Vec<Vec<u8>>>, Error> {
        let sequence = self.next_sequence();
        let mut datagram = Vec::new();
        request.write(&mut datagram, DUMP, sequence)?;
        self.send(&datagram)?;

        let mut entries = Vec::new();
        let mut interrupted = false;
        loop {
            self.receive()?;
            let mut rest = self.buffer.as_slice();
            while let Some(message) = Message::next(&mut rest)? {
                if message.sequence != sequence {
                    continue;
                }
                interrupted |= message.flags & DUMP_INTERRUPTED != 0;
                match message.kind {
                    message::OVERRUN => return Err(Error::Malformed("messages were lost")),
                    message::DONE | message::ERROR => {
                        let end = message.acknowledgement()?;
                        return match end.errno {
                            0 => Ok((!interrupted).then_some(entries)),
                            // nf_tables says so when its generation changed between two parts of a dump.
                            libc::EINTR => Ok(None),
                            _ => Err(request.refused(end)),
                        };
                    }
                    _ => entries.push(message.attributes()?.to_vec()),
                }
            }
        }
    }

    /// Carries out a batch: all of it, or nothing. With a `generation` (see [`Connection::generation`]), only if the
    /// ruleset of the network namespace is still the one that had it.
    ///
    /// # Errors
    ///
    /// [`Error::Changed`] when the generation is another; [`Error::Refused`] for the first operation that the kernel
    /// refused. Nothing was written then.
    pub fn commit(&mut self, batch: &Batch, generation: Option<u32>) -> Result<(), Error> {
        let Some(last) = batch.operations().len().checked_sub(1) else {
            return Ok(());
        };
        let mut datagram = Vec::new();
        let begin = self.next_sequence();
        batch_mark(&mut datagram, message::BATCH_BEGIN, begin, generation);
        for (index, operation) in batch.operations().iter().enumerate() {
            // One acknowledgement says that all went well: a hundred would not fit into the receive buffer. Errors come anyway.
            operation.write(&mut datagram, if index == last { ACK } else { 0 }, self.next_sequence())?;
        }
        batch_mark(&mut datagram, message::BATCH_END, self.next_sequence(), None);
        if datagram.len() > SMALL_BATCH {
            // The kernel counts its own overhead too.
            setsockopt(&self.socket.as_fd(), sockopt::SndBufForce, &(datagram.len() * 2))
                .map_err(|errno| Error::socket("setsockopt")(errno.into()))?;
        }
        self.send(&datagram)?;
        self.await_commit(batch, begin)
    }

    /// Asks whether the kernel would carry out a batch, without carrying it out: which is the only way to learn what a
    /// kernel supports. What it would take is undone with the last operation, which no kernel can carry out.
    ///
    /// # Errors
    ///
    /// What the kernel says to the first operation that it would refuse.
    pub fn try_out(&mut self, batch: &Batch) -> Result<(), Error> {
        let mut doomed = batch.clone();
        doomed.delete_table(&Table::new(Family::Inet, "ferrule_never_made"));
        let last = doomed.operations().last().map(|operation| operation.what.clone());
        match self.commit(&doomed, None) {
            Err(Error::Refused {
                operation,
                errno: libc::ENOENT,
                ..
            }) if Some(&operation) == last.as_ref() => Ok(()),
            Err(error) => Err(error),
            Ok(()) => Err(Error::Malformed("a table was deleted that is not there")),
        }
    }

    fn await_commit(&mut self, batch: &Batch, begin: u32) -> Result<(), Error> {
        let count = batch.operations().len();
        let mut failure = None;
        loop {
            self.receive()?;
            let mut rest = self.buffer.as_slice();
            while let Some(message) = Message::next(&mut rest)? {
                // Operations are numbered from one past the beginning of the batch.
                let index = message.sequence.wrapping_sub(begin) as usize;
                if message.kind != message::ERROR || index > count {
                    continue;
                }
                let acknowledgement = message.acknowledgement()?;
                let is_last = index == 0 || index == count;
                match index.checked_sub(1).and_then(|index| batch.operations().get(index)) {
                    _ if acknowledgement.errno == 0 => {}
                    Some(operation) => failure = failure.or(Some(operation.refused(acknowledgement))),
                    None => failure = failure.or(Some(batch_refused(batch, acknowledgement))),
                }
                if is_last {
                    return failure.map_or(Ok(()), Err);
                }
            }
        }
    }

    fn next_sequence(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1);
        self.sequence
    }

    fn send(&self, datagram: &[u8]) -> Result<(), Error> {
        self.socket.send(datagram, 0).map_err(Error::socket("send"))?;
        Ok(())
    }

    /// Fills the buffer with the next datagram. Where that fails, the caller would not know whether a transaction was
    /// committed, and could not take it back: so a second try is worth while. The kernel answers before it returns from
    /// `send`; what is not there is lost.
    fn receive(&mut self) -> Result<(), Error> {
        let first = self.receive_once(0);
        let length = first.or_else(|first| self.receive_once(libc::MSG_DONTWAIT).map_err(|_| first));
        if length.map_err(Error::socket("recv"))? > self.buffer.len() {
            return Err(Error::Malformed("longer than any that the kernel sends"));
        }
        Ok(())
    }

    fn receive_once(&mut self, flags: libc::c_int) -> std::io::Result<usize> {
        loop {
            self.buffer.clear();
            match self.socket.recv(&mut self.buffer, libc::MSG_TRUNC | flags) {
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                received => return received,
            }
        }
    }
}

fn batch_mark(datagram: &mut Vec<u8>, kind: u16, sequence: u32, generation: Option<u32>) {
    const NFNL_BATCH_GENID: u16 = 1;
    let mut attributes = Attributes::new();
    if let Some(generation) = generation {
        attributes.u32(NFNL_BATCH_GENID, generation);
    }
    let head = Head {
        kind,
        flags: REQUEST,
        sequence,
        family: 0,
        resource: u16::from(message::NFTABLES),
    };
    message::write(datagram, head, attributes.as_bytes());
}

/// The kernel refused a batch as a whole: its acknowledgement bears the number of the beginning.
fn batch_refused(batch: &Batch, acknowledgement: Acknowledgement) -> Error {
    let operation = format!("change {batch}");
    match acknowledgement.errno {
        libc::ERESTART => Error::Changed { operation },
        errno => Error::Refused {
            operation,
            errno,
            text: acknowledgement.text,
        },
    }
}
