//! A node with two containers on a bridge and a machine outside, with servers that tell whom they see.
#![allow(clippy::disallowed_methods, reason = "tests enter the namespaces that they made")]

use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use cni_types::{Attachment, Cidr, IfName};
use netfilter::Protocol;
use netfilter::portmap::{Mapping, OnConflict, Published};
use nix::sched::{CloneFlags, setns};
use testkit::World;

/// Long enough for a loaded machine, short enough to wait for what must not happen.
const PATIENCE: Duration = Duration::from_secs(5);
pub(crate) const NEVER: Duration = Duration::from_millis(300);

/// The node's address on the bridge, and outside.
pub(crate) const GATEWAY: &str = "10.1.0.1";
pub(crate) const NODE: &str = "198.51.100.1";
pub(crate) const OUTSIDE: &str = "198.51.100.2";
pub(crate) const A: &str = "10.1.0.2";
pub(crate) const B: &str = "10.1.0.3";
pub(crate) const NODE6: &str = "2001:db8:100::1";
pub(crate) const OUTSIDE6: &str = "2001:db8:100::2";
pub(crate) const A6: &str = "fd00:1::2";

/// Builds it: namespaces `a`, `b` and `outside`, which knows a route to the containers.
pub(crate) fn build(w: &World) {
    w.sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
        ip link add cni0 type bridge
        ip addr add 10.1.0.1/24 dev cni0
        ip addr add fd00:1::1/64 dev cni0 nodad
        ip link set cni0 up
        sysctl -qw net.ipv4.conf.cni0.route_localnet=1");
    for (name, last) in [("a", 2), ("b", 3)] {
        w.netns(name);
        w.sh(&format!(
            "ip link add veth{name} type veth peer name eth0 netns {name}
            ip link set veth{name} master cni0 up
            ip link set veth{name} type bridge_slave hairpin on"
        ));
        w.sh_in(
            name,
            &format!(
                "ip link set lo up; ip link set eth0 up
                ip addr add 10.1.0.{last}/24 dev eth0
                ip addr add fd00:1::{last}/64 dev eth0 nodad
                ip route add default via 10.1.0.1
                ip route add default via fd00:1::1"
            ),
        );
    }
    w.netns("outside");
    w.sh("ip link add up0 type veth peer name eth0 netns outside
        ip addr add 198.51.100.1/24 dev up0
        ip addr add 2001:db8:100::1/64 dev up0 nodad
        ip link set up0 up");
    w.sh_in(
        "outside",
        "ip link set lo up; ip link set eth0 up
        ip addr add 198.51.100.2/24 dev eth0
        ip addr add 2001:db8:100::2/64 dev eth0 nodad
        ip route add 10.1.0.0/24 via 198.51.100.1
        ip route add fd00:1::/64 via 2001:db8:100::1",
    );
}

/// Runs `f` in a namespace of the world; `None` is the node's own.
pub(crate) fn inside<R: Send>(netns: Option<&str>, f: impl FnOnce() -> R + Send) -> R {
    thread::scope(|scope| {
        scope
            .spawn(|| {
                if let Some(name) = netns {
                    let file = File::open(format!("/run/netns/{name}")).unwrap();
                    setns(file, CloneFlags::CLONE_NEWNET).unwrap();
                }
                f()
            })
            .join()
            .unwrap()
    })
}

/// Serves a port of a namespace over TCP and UDP: the answer is the namespace's name and the peer's address.
pub(crate) fn serve(netns: &str, port: u16) {
    let (tcp, udp) = inside(Some(netns), || {
        let any: SocketAddr = format!("[::]:{port}").parse().unwrap();
        (TcpListener::bind(any).unwrap(), UdpSocket::bind(any).unwrap())
    });
    let name = netns.to_owned();
    let answer = move |peer: SocketAddr| format!("{name} {}", peer.ip().to_canonical());
    let answer_udp = answer.clone();
    // They end with the test's process.
    thread::spawn(move || {
        for stream in tcp.incoming() {
            let mut stream = stream.unwrap();
            let text = stream.peer_addr().map(&answer).unwrap_or_default();
            let _ = stream.write_all(text.as_bytes());
        }
    });
    thread::spawn(move || {
        let mut buffer = [0; 16];
        while let Ok((_, peer)) = udp.recv_from(&mut buffer) {
            let _ = udp.send_to(answer_udp(peer).as_bytes(), peer);
        }
    });
}

/// What the server at an address says over TCP when asked from a namespace.
pub(crate) fn ask(netns: Option<&str>, server: &str, port: u16) -> Option<String> {
    ask_within(PATIENCE, netns, server, port)
}

/// As [`ask`], where no answer is expected.
pub(crate) fn is_deaf(netns: Option<&str>, server: &str, port: u16) -> bool {
    ask_within(NEVER, netns, server, port).is_none()
}

fn ask_within(patience: Duration, netns: Option<&str>, server: &str, port: u16) -> Option<String> {
    let address = SocketAddr::new(server.parse().unwrap(), port);
    inside(netns, || {
        let mut stream = TcpStream::connect_timeout(&address, patience).ok()?;
        stream.set_read_timeout(Some(patience)).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        Some(text)
    })
}

/// A UDP socket in a namespace that talks to one server.
pub(crate) fn udp_client(netns: Option<&str>, server: &str, port: u16) -> UdpSocket {
    let server = SocketAddr::new(server.parse().unwrap(), port);
    inside(netns, || {
        let any: IpAddr = if server.is_ipv4() {
            [0; 4].into()
        } else {
            [0; 16].into()
        };
        let socket = UdpSocket::bind((any, 0)).unwrap();
        socket.connect(server).unwrap();
        socket
    })
}

/// What the server says over UDP, if anything.
pub(crate) fn ask_udp(socket: &UdpSocket, expect_answer: bool) -> Option<String> {
    socket
        .set_read_timeout(Some(if expect_answer { PATIENCE } else { NEVER }))
        .unwrap();
    socket.send(b"?").ok()?;
    let mut buffer = [0; 64];
    let len = socket.recv(&mut buffer).ok()?;
    Some(String::from_utf8_lossy(&buffer[..len]).into_owned())
}

pub(crate) fn ifname(text: &str) -> IfName {
    text.parse().unwrap()
}

pub(crate) fn attachment(network: &str, container: &str, ifname: &str) -> Attachment {
    Attachment {
        network: network.parse().unwrap(),
        container_id: container.parse().unwrap(),
        ifname: ifname.parse().unwrap(),
    }
}

/// A mapping of one port.
pub(crate) fn mapping(protocol: Protocol, host_ip: Option<&str>, host_port: u16, container_port: u16) -> Mapping {
    Mapping {
        protocol,
        host_ip: host_ip.map(|ip| ip.parse().unwrap()),
        host_port,
        host_port_end: host_port,
        container_port,
        container_port_end: container_port,
    }
}

/// A mapping of a range of ports.
pub(crate) fn range(host: (u16, u16), container: (u16, u16)) -> Mapping {
    Mapping {
        host_port_end: host.1,
        container_port_end: container.1,
        ..mapping(Protocol::Tcp, None, host.0, container.0)
    }
}

pub(crate) fn tcp(host_port: u16, container_port: u16) -> Mapping {
    mapping(Protocol::Tcp, None, host_port, container_port)
}

/// What publishes `mappings` for the container with the given last number of its addresses.
pub(crate) fn published(last: u8, mappings: &[Mapping]) -> Published {
    Published {
        mappings: mappings.to_vec(),
        addresses: addresses(last),
        snat: true,
        masq_all: false,
        mark_masq_bit: Published::DEFAULT_MARK_MASQ_BIT,
        external_set_mark_chain: None,
        conditions_v4: Vec::new(),
        conditions_v6: Vec::new(),
        on_conflict: OnConflict::Refuse,
        netns: None,
        netns_exists: |_| true,
    }
}

pub(crate) fn addresses(last: u8) -> Vec<Cidr> {
    [format!("10.1.0.{last}/24"), format!("fd00:1::{last}/64")]
        .map(|text| text.parse().unwrap())
        .to_vec()
}
