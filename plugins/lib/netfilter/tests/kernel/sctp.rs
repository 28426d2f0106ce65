//! SCTP through a published port.
//!
//! Packets are made by hand: few kernels are built with SCTP's sockets, and netfilter needs none of them. What it does need
//! are right checksums, on both ways.

use netfilter::Protocol;
use testkit::World;

use crate::topology::*;
use crate::traffic::{Node, with_each_backend};

/// `sctp.py serve PORT` answers the first INIT that comes to the port; `sctp.py ask ADDRESS PORT` sends one and tells
/// what the answer comes from.
const SCTP: &str = r#"
import socket, struct, sys

def crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82f63b78 if crc & 1 else 0)
    return crc ^ 0xffffffff

def packet(source, destination, tag, chunk):
    head = struct.pack('!HHI', source, destination, tag)
    return head + struct.pack('<I', crc32c(head + bytes(4) + chunk)) + chunk

def chunk(kind, tag, more=b''):
    body = struct.pack('!IIHHI', tag, 65535, 1, 1, 1) + more
    return struct.pack('!BBH', kind, 0, 4 + len(body)) + body

INIT, INIT_ACK, COOKIE = 1, 2, struct.pack('!HHI', 7, 8, 0)
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_SCTP)
raw.settimeout(10)

def receive(kind, port):
    while True:
        datagram, (address, _) = raw.recvfrom(2048)
        sctp = datagram[4 * (datagram[0] & 15):]
        source, destination, tag, checksum = struct.unpack('!HHI', sctp[:8]) + struct.unpack('<I', sctp[8:12])
        if sctp[12] == kind and destination == port:
            assert checksum == crc32c(sctp[:8] + bytes(4) + sctp[12:]), 'the checksum is wrong'
            return address, source, struct.unpack('!I', sctp[16:20])[0]

if sys.argv[1] == 'serve':
    open('/run/sctp-serves', 'w').close()
    port = int(sys.argv[2])
    address, source, tag = receive(INIT, port)
    raw.sendto(packet(port, source, tag, chunk(INIT_ACK, 77, COOKIE)), (address, 0))
    print(address)
else:
    address, port = sys.argv[2], int(sys.argv[3])
    raw.sendto(packet(4000, port, 0, chunk(INIT, 66)), (address, 0))
    print(*receive(INIT_ACK, 4000)[:2])
"#;

/// Who the server in `a` saw, and whom a client outside had its answer from.
fn init_and_answer(w: &World) -> (String, String) {
    w.sh_in(
        "a",
        "rm -f /run/sctp-serves; python3 /run/sctp.py serve 81 > /run/sctp-saw 2>&1 & echo $! > /run/sctp-server
        until [ -e /run/sctp-serves ]; do :; done",
    );
    let answer = w.sh_in("outside", &format!("python3 /run/sctp.py ask {NODE} 8081"));
    w.sh("while kill -0 $(cat /run/sctp-server) 2>/dev/null; do :; done");
    (w.sh("cat /run/sctp-saw"), answer)
}

#[test]
fn an_association_begins_through_a_published_port() {
    with_each_backend(|&Node { w, backend }| {
        w.sh_in("a", &format!("cat > /run/sctp.py <<'END'\n{SCTP}\nEND\n"));
        let node = Node { w, backend };
        let port = [mapping(Protocol::Sctp, None, 8081, 81)];
        node.publish(&attachment("net", "c1", "eth0"), &published(2, &port));
        assert_eq!(init_and_answer(w), (OUTSIDE.to_owned(), format!("{NODE} 8081")));
    });
}
