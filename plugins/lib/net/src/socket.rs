//! A blocking route socket.

use std::io;

use netlink_packet_core::{Emitable, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

use crate::error::Failure;
use crate::reply::{Decode, Expect, Reply, until_consistent};

/// What netlink_dump of the kernel fills at most unless one object alone is larger.
const RECEIVE_LEN: usize = 32 * 1024;

/// What a request asks for, by the numbers of linux/rtnetlink.h.
fn name_of(kind: u16) -> String {
    let object = match kind / 4 {
        4 => "link",
        5 => "address",
        6 => "route",
        other => return format!("object {other}, message {kind}"),
    };
    let verb = ["new", "delete", "get", "set"].into_iter().nth(usize::from(kind % 4));
    format!("{} {object}", verb.unwrap_or_default())
}

/// A netlink socket of the route family, in the namespace where it was opened.
#[derive(Debug)]
pub(crate) struct RouteSocket {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
    requests: usize,
}

impl RouteSocket {
    /// Opens a socket in the thread's namespace.
    pub(crate) fn open() -> Result<RouteSocket, Failure> {
        let socket = Socket::new(NETLINK_ROUTE).map_err(|e| Failure::io(&e))?;
        // Each only improves on what older kernels (before 4.12 and 4.20) do: error texts, short acknowledgements, and
        // dumps that the kernel filters. Readers filter again.
        let _ = socket.set_ext_ack(true);
        let _ = socket.set_cap_ack(true);
        let _ = socket.set_netlink_get_strict_chk(true);
        Ok(RouteSocket {
            socket,
            sequence: 0,
            buffer: Vec::with_capacity(RECEIVE_LEN),
            requests: 0,
        })
    }

    /// Opens a socket that hears notifications of a group (`RTNLGRP_*`) and never blocks.
    pub(crate) fn listen(group: u32) -> Result<Socket, Failure> {
        let open = || -> io::Result<Socket> {
            let mut socket = Socket::new(NETLINK_ROUTE)?;
            // A socket without a port of its own hears nothing that the kernel says on its own account: both have port 0,
            // and nobody hears themselves (do_one_broadcast of net/netlink/af_netlink.c).
            socket.bind(&SocketAddr::new(0, 0))?;
            socket.add_membership(group)?;
            socket.set_non_blocking(true)?;
            Ok(socket)
        };
        open().map_err(|e| Failure::io(&e))
    }

    pub(crate) fn requests(&self) -> usize {
        self.requests
    }

    /// Sends a change and waits for its acknowledgement.
    pub(crate) fn change(&mut self, kind: u16, flags: u16, message: &dyn Emitable) -> Result<(), Failure> {
        self.exchange::<()>(kind, flags | NLM_F_ACK, message, Expect::Ack, &|_| Ok(None))
            .map(drop)
    }

    /// Sends a change and returns the last message before its acknowledgement: the echo of what was made. Kernels before
    /// 6.2 ignore NLM_F_ECHO for links and send none.
    pub(crate) fn change_with_echo<T>(
        &mut self,
        kind: u16,
        flags: u16,
        message: &dyn Emitable,
        decode: Decode<'_, T>,
    ) -> Result<Option<T>, Failure> {
        let reply = self.exchange(kind, flags | NLM_F_ACK, message, Expect::Ack, decode)?;
        Ok(reply.items.into_iter().next_back())
    }

    /// Asks for one object.
    pub(crate) fn get<T>(
        &mut self,
        kind: u16,
        message: &dyn Emitable,
        decode: Decode<'_, T>,
    ) -> Result<Option<T>, Failure> {
        let reply = self.exchange(kind, 0, message, Expect::Message, decode)?;
        Ok(reply.items.into_iter().next_back())
    }

    /// Asks for all objects that match, until the answer is consistent.
    pub(crate) fn dump<T>(
        &mut self,
        kind: u16,
        message: &dyn Emitable,
        decode: Decode<'_, T>,
    ) -> Result<Vec<T>, Failure> {
        until_consistent(|| self.exchange(kind, NLM_F_DUMP, message, Expect::Dump, decode))
    }

    /// Sends a request and reads its reply. A reply that did not fit is lost, so the buffer grows and a question is asked
    /// again. A change is not: its acknowledgement always fits, and an echo can be done without.
    fn exchange<T>(
        &mut self,
        kind: u16,
        flags: u16,
        message: &dyn Emitable,
        expect: Expect,
        decode: Decode<'_, T>,
    ) -> Result<Reply<T>, Failure> {
        loop {
            self.sequence = self.sequence.wrapping_add(1);
            self.requests += 1;
            log::debug!("netlink request: {}", name_of(kind));
            let request = encode(kind, flags | NLM_F_REQUEST, self.sequence, message);
            retry(|| self.socket.send(&request, 0)).map_err(|e| Failure::io(&e))?;
            match self.read(Reply::new(self.sequence, expect), decode)? {
                Read::Whole(reply) => return Ok(reply),
                Read::Truncated(length) => {
                    self.buffer.clear();
                    self.buffer.reserve(length);
                }
            }
        }
    }

    fn read<T>(&mut self, mut reply: Reply<T>, decode: Decode<'_, T>) -> Result<Read<T>, Failure> {
        loop {
            let (length, sender) = self.receive().map_err(|e| Failure::io(&e))?;
            // Privileged processes can send to each other's sockets; only the kernel has port 0.
            if sender.port_number() != 0 {
                continue;
            }
            if length > self.buffer.len() {
                if reply.expect == Expect::Ack {
                    continue;
                }
                return Ok(Read::Truncated(length));
            }
            if reply.feed(&self.buffer, decode)? {
                return Ok(Read::Whole(reply));
            }
        }
    }

    /// Receives a datagram. Where that fails, the caller would not know whether the change was made, and could not take it
    /// back: so a second try is worth while. The kernel answers before it returns from `send`; what is not there is lost.
    fn receive(&mut self) -> io::Result<(usize, SocketAddr)> {
        let mut receive = |flags| {
            retry(|| {
                self.buffer.clear();
                self.socket.recv_from(&mut self.buffer, libc::MSG_TRUNC | flags)
            })
        };
        receive(0).or_else(|first| receive(libc::MSG_DONTWAIT).map_err(|_| first))
    }
}

enum Read<T> {
    Whole(Reply<T>),
    /// The length of the datagram that did not fit.
    Truncated(usize),
}

/// A message with its header.
pub(crate) fn encode(kind: u16, flags: u16, sequence: u32, message: &dyn Emitable) -> Vec<u8> {
    let mut header = NetlinkHeader::default();
    let mut bytes = vec![0; header.buffer_len() + message.buffer_len()];
    header.length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    header.message_type = kind;
    header.flags = flags;
    header.sequence_number = sequence;
    let (head, body) = bytes.split_at_mut(header.buffer_len());
    header.emit(head);
    message.emit(body);
    bytes
}

/// Repeats a system call that a signal interrupted.
pub(crate) fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use libc::RTM_GETLINK;
    use netlink_packet_route::link::LinkMessage;
    use rtnetlink::LinkUnspec;

    use super::*;
    use crate::link::decode::link;

    #[test]
    fn a_reply_that_does_not_fit_is_asked_for_again() {
        let mut socket = RouteSocket::open().unwrap();
        socket.buffer = Vec::with_capacity(64);
        let lo = socket
            .get(RTM_GETLINK, &LinkUnspec::new_with_name("lo").build(), &link)
            .unwrap()
            .unwrap();
        assert!(lo.loopback);
        assert_eq!(socket.requests(), 2);

        socket.buffer = Vec::with_capacity(64);
        let links = socket.dump(RTM_GETLINK, &LinkMessage::default(), &link).unwrap();
        assert!(links.contains(&lo));
    }

    #[test]
    fn what_is_left_of_an_abandoned_reply_does_not_disturb_the_next() {
        let mut socket = RouteSocket::open().unwrap();
        let refuse = |_: &[u8]| Err::<Option<()>, _>(Failure::malformed("anything"));
        assert!(socket.dump(RTM_GETLINK, &LinkMessage::default(), &refuse).is_err());
        let lo = socket
            .get(RTM_GETLINK, &LinkUnspec::new_with_name("lo").build(), &link)
            .unwrap();
        assert!(lo.unwrap().loopback);
    }
}
