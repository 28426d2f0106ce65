use netlink_packet_core::{NLM_F_ACK_TLVS, NLM_F_CAPPED, NLM_F_DUMP_INTR, NLM_F_MULTIPART};
use proptest::prelude::*;

use super::*;

const SEQUENCE: u32 = 7;
const MESSAGE: u16 = 16;

fn message(kind: u16, flags: u16, sequence: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend((16 + payload.len() as u32).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend(0u32.to_ne_bytes());
    bytes.extend(payload);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend((4 + value.len() as u16).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// An error that repeats `request` of the request, with a text.
fn error(code: i32, flags: u16, request: &[u8], text: &str) -> Vec<u8> {
    let text = attribute(NLMSGERR_ATTR_MSG, format!("{text}\0").as_bytes());
    let payload = [&code.to_ne_bytes()[..], request, &text].concat();
    message(NLMSG_ERROR, flags | NLM_F_ACK_TLVS, SEQUENCE, &payload)
}

fn byte(payload: &[u8]) -> Result<Option<u8>, Failure> {
    payload
        .first()
        .copied()
        .map(Some)
        .ok_or_else(|| Failure::malformed("byte"))
}

fn reply(expect: Expect, datagrams: &[Vec<u8>]) -> Result<(Reply<u8>, bool), Failure> {
    let mut reply = Reply::new(SEQUENCE, expect);
    let mut complete = false;
    for datagram in datagrams {
        assert!(!complete, "a datagram after the end");
        complete = reply.feed(datagram, &byte)?;
    }
    Ok((reply, complete))
}

#[test]
fn a_dump_ends_with_done() {
    let one = message(MESSAGE, NLM_F_MULTIPART, SEQUENCE, &[1]);
    let two = message(MESSAGE, NLM_F_MULTIPART, SEQUENCE, &[2]);
    let done = message(NLMSG_DONE, NLM_F_MULTIPART, SEQUENCE, &0i32.to_ne_bytes());
    let (reply, complete) = reply(Expect::Dump, &[[one, two].concat(), done]).unwrap();
    assert!(complete && !reply.interrupted);
    assert_eq!(reply.items, [1, 2]);
}

#[test]
fn an_empty_done_of_an_old_kernel_ends_a_dump_too() {
    assert!(reply(Expect::Dump, &[message(NLMSG_DONE, 0, SEQUENCE, &[])]).unwrap().1);
}

#[test]
fn a_dump_can_fail_at_its_end_with_a_text() {
    let text = attribute(NLMSGERR_ATTR_MSG, b"no such table\0");
    let payload = [&(-2i32).to_ne_bytes()[..], &text].concat();
    let done = message(NLMSG_DONE, NLM_F_ACK_TLVS, SEQUENCE, &payload);
    let failure = reply(Expect::Dump, &[done]).unwrap_err();
    assert_eq!(failure, Failure::new(Errno::ENOENT, "no such table"));
}

#[test]
fn errors_carry_the_kernels_text_behind_a_header_or_a_whole_request() {
    let request = message(MESSAGE, 0, SEQUENCE, &[9; 21]);
    for (flags, repeated) in [(NLM_F_CAPPED, &request[..16]), (0, &request[..])] {
        let failure = reply(Expect::Ack, &[error(-17, flags, repeated, "name taken")]).unwrap_err();
        assert_eq!(failure, Failure::new(Errno::EEXIST, "name taken"));
    }
}

#[test]
fn an_echo_comes_before_its_acknowledgement() {
    let echo = message(MESSAGE, 0, SEQUENCE, &[5]);
    let ack = message(NLMSG_ERROR, NLM_F_CAPPED, SEQUENCE, &[0; 20]);
    let (reply, complete) = reply(Expect::Ack, &[echo, ack]).unwrap();
    assert!(complete);
    assert_eq!(reply.items, [5]);
}

#[test]
fn replies_to_other_requests_are_passed_over() {
    let late = [
        message(NLMSG_ERROR, 0, SEQUENCE - 1, &(-1i32).to_ne_bytes()),
        message(MESSAGE, NLM_F_DUMP_INTR, SEQUENCE - 1, &[1]),
    ];
    let (reply, complete) = reply(Expect::Message, &late).unwrap();
    assert!(!complete && !reply.interrupted && reply.items.is_empty());
}

#[test]
fn an_interrupted_dump_is_repeated_and_its_items_are_forgotten() {
    let changed = message(MESSAGE, NLM_F_DUMP_INTR, SEQUENCE, &[1]);
    let done = message(NLMSG_DONE, 0, SEQUENCE, &0i32.to_ne_bytes());
    let whole = message(MESSAGE, 0, SEQUENCE, &[2]);
    let interrupted_done = message(NLMSG_DONE, NLM_F_DUMP_INTR, SEQUENCE, &0i32.to_ne_bytes());
    let mut attempts = [
        [changed.clone(), done.clone()].concat(),
        [whole.clone(), interrupted_done].concat(),
        [whole, done].concat(),
    ]
    .into_iter();
    let items = until_consistent(|| {
        let (reply, complete) = reply(Expect::Dump, &[attempts.next().unwrap()])?;
        assert!(complete);
        Ok(reply)
    });
    assert_eq!(items.unwrap(), [2]);
    assert_eq!(attempts.next(), None);
}

#[test]
fn a_dump_that_is_always_interrupted_is_given_up() {
    let mut attempts = 0;
    let failure = until_consistent(|| {
        attempts += 1;
        let mut reply = Reply::<u8>::new(SEQUENCE, Expect::Dump);
        reply.interrupted = true;
        Ok(reply)
    });
    assert_eq!(failure.unwrap_err().errno(), Errno::EAGAIN);
    assert_eq!(attempts, DUMP_ATTEMPTS);
}

#[test]
fn malformed_replies_are_errors() {
    let short_error = message(NLMSG_ERROR, 0, SEQUENCE, &[0; 3]);
    let overrun = message(NLMSG_OVERRUN, 0, SEQUENCE, &[]);
    let undecodable = message(MESSAGE, 0, SEQUENCE, &[]);
    let mut too_long = message(MESSAGE, 0, SEQUENCE, &[1]);
    too_long[0] += 40;
    for datagram in [short_error, overrun, undecodable, too_long, vec![1, 2, 3]] {
        let failure = reply(Expect::Dump, std::slice::from_ref(&datagram)).unwrap_err();
        assert_eq!(failure.errno(), Errno::EBADMSG, "{datagram:?}");
    }
}

#[test]
fn a_text_that_lies_outside_the_message_is_no_text() {
    for repeated in [&[0xff; 16][..], &[0; 4], &[]] {
        let payload = [&(-1i32).to_ne_bytes()[..], repeated].concat();
        let datagram = message(NLMSG_ERROR, NLM_F_ACK_TLVS, SEQUENCE, &payload);
        assert_eq!(
            reply(Expect::Ack, &[datagram]).unwrap_err(),
            Failure::from(Errno::EPERM)
        );
    }
}

/// Bytes that get further than random ones: messages of our sequence number around random payloads.
fn datagrams() -> impl Strategy<Value = Vec<u8>> {
    let payload = prop::collection::vec(any::<u8>(), 0..80);
    let kind = prop_oneof![Just(NLMSG_ERROR), Just(NLMSG_DONE), Just(NLMSG_NOOP), Just(MESSAGE)];
    let framed = (kind, any::<u16>(), payload).prop_map(|(k, f, p)| message(k, f, SEQUENCE, &p));
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..200),
        prop::collection::vec(framed, 0..4).prop_map(|messages| messages.concat()),
    ]
}

proptest! {
    #[test]
    fn no_datagram_panics(datagram in datagrams()) {
        for expect in [Expect::Ack, Expect::Message, Expect::Dump] {
            let _ = Reply::new(SEQUENCE, expect).feed(&datagram, &byte);
            let _ = Reply::new(SEQUENCE, expect).feed(&datagram, &crate::link::decode::link);
            let _ = Reply::new(SEQUENCE, expect).feed(&datagram, &crate::address::decode);
            let _ = Reply::new(SEQUENCE, expect).feed(&datagram, &crate::route::decode);
            let _ = Reply::new(SEQUENCE, expect).feed(&datagram, &crate::vlan::decode);
        }
    }

    /// Attributes of the right form with any number and value, nested ones too.
    #[test]
    fn no_attribute_panics(
        family in prop_oneof![Just(0), Just(2), Just(7), Just(10), any::<u8>()],
        header in prop::collection::vec(any::<u8>(), 15),
        values in prop::collection::vec((0u16..70, prop::collection::vec(any::<u8>(), 0..24)), 0..8),
        nest in prop::option::of(0u16..40),
    ) {
        let mut body: Vec<u8> = values.iter().flat_map(|(kind, value)| attribute(*kind, value)).collect();
        if let Some(kind) = nest {
            body = attribute(kind, &body);
        }
        let bytes = |length: usize| [&[family], &header[..length - 1], &body].concat();
        let _ = crate::link::decode::link(&bytes(16));
        let _ = crate::vlan::decode(&bytes(16));
        let _ = crate::address::decode(&bytes(8));
        let _ = crate::route::decode(&bytes(12));
    }
}
