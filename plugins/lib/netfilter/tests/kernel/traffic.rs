//! Published ports and masquerading, judged by who is reached and who is seen: the same with either backend.

use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream, UdpSocket};

use cni_types::Attachment;
use netfilter::masquerade::{self, Masquerade};
use netfilter::portmap::{self, Hints, Published};
use netfilter::{Backend, Protocol};
use testkit::{World, world};

use crate::topology::*;

/// A node whose ports are published with one of the backends.
pub(crate) struct Node<'a> {
    pub(crate) w: &'a World,
    pub(crate) backend: Backend,
}

impl Node<'_> {
    #[track_caller]
    pub(crate) fn publish(&self, attachment: &Attachment, published: &Published) {
        assert_eq!(portmap::add(self.backend, attachment, published), Ok(()));
        assert_eq!(portmap::check(self.backend, attachment, published), Ok(()));
    }

    #[track_caller]
    fn masquerade(&self, attachment: &Attachment, wanted: &Masquerade) {
        assert_eq!(masquerade::add(self.backend, attachment, wanted), Ok(()));
        assert_eq!(masquerade::check(self.backend, attachment, wanted), Ok(()));
    }
}

/// Runs a test once for each backend, on nodes of their own.
pub(crate) fn with_each_backend(test: impl Fn(&Node) + Sync) {
    for backend in [Backend::Iptables, Backend::Nftables] {
        with(backend, &test);
    }
}

fn with(backend: Backend, test: impl Fn(&Node) + Sync) {
    world(|w| {
        build(w);
        test(&Node { w, backend });
    });
}

fn container(name: &str) -> Attachment {
    attachment("net", name, "eth0")
}

#[track_caller]
fn unpublish(attachment: &Attachment) {
    assert_eq!(portmap::del(attachment, &Hints::default()), Ok(()));
}

#[test]
fn a_port_is_reached_from_everywhere_and_sources_are_kept_where_they_can() {
    with_each_backend(|node| {
        serve("a", 80);
        let c1 = container("c1");
        node.publish(&c1, &published(2, &[tcp(8080, 80)]));
        let says = |from, to| ask(from, to, 8080);
        assert_eq!(says(None, "127.0.0.1"), Some(format!("a {GATEWAY}")));
        assert_eq!(says(None, NODE), Some(format!("a {NODE}")));
        assert_eq!(says(Some("outside"), NODE), Some(format!("a {OUTSIDE}")));
        assert_eq!(says(Some("a"), NODE), Some(format!("a {GATEWAY}")), "hairpin");
        assert_eq!(says(Some("b"), NODE), Some(format!("a {GATEWAY}")), "neighbour");
        assert_eq!(says(None, NODE6), Some(format!("a {NODE6}")));
        assert_eq!(says(Some("outside"), NODE6), Some(format!("a {OUTSIDE6}")));
        assert_eq!(says(Some("a"), NODE6), Some("a fd00:1::1".to_owned()), "hairpin");
        assert_eq!(says(Some("b"), NODE6), Some("a fd00:1::1".to_owned()), "neighbour");

        unpublish(&c1);
        assert!(is_deaf(Some("outside"), NODE, 8080));
        assert!(is_deaf(None, "127.0.0.1", 8080));
    });
}

/// With iptables they are lost on the way to the container, as with the reference.
#[test]
fn the_nodes_own_connections_to_the_ipv6_loopback_stay_there_with_nftables() {
    with(Backend::Nftables, |node| {
        node.publish(&container("c1"), &published(2, &[tcp(8080, 80), tcp(8081, 80)]));
        let own = TcpListener::bind("[::1]:8080").unwrap();
        TcpStream::connect("[::1]:8080").unwrap();
        own.accept().unwrap();
        // At once, so that a client of `localhost` goes on to 127.0.0.1.
        let refused = TcpStream::connect("[::1]:8081").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    });
}

#[test]
fn udp_is_redirected_too() {
    with_each_backend(|node| {
        serve("a", 53);
        node.publish(
            &container("c1"),
            &published(2, &[mapping(Protocol::Udp, None, 5353, 53)]),
        );
        for (from, to, seen) in [
            (None, NODE, NODE),
            (None, "127.0.0.1", GATEWAY),
            (Some("outside"), NODE, OUTSIDE),
            (Some("outside"), NODE6, OUTSIDE6),
        ] {
            let client = udp_client(from, to, 5353);
            assert_eq!(ask_udp(&client, true), Some(format!("a {seen}")), "{from:?} to {to}");
        }
        assert!(is_deaf(Some("outside"), NODE, 5353), "TCP was not asked for");
    });
}

#[test]
fn only_connections_to_the_node_itself_are_redirected() {
    with_each_backend(|node| {
        serve("a", 53);
        serve("b", 5353);
        for host_ip in [None, Some(NODE)] {
            let asked = published(2, &[mapping(Protocol::Tcp, host_ip, 5353, 53)]);
            node.publish(&container("c1"), &asked);
            let says = |to| ask(Some("outside"), to, 5353);
            assert_eq!(says(B), Some(format!("b {OUTSIDE}")), "{host_ip:?}");
            assert_eq!(says(NODE), Some(format!("a {OUTSIDE}")), "{host_ip:?}");
        }
    });
}

/// With iptables the first that came gets the connections, as with the reference.
#[test]
fn a_given_host_address_comes_before_any_with_nftables() {
    with(Backend::Nftables, |node| {
        serve("a", 80);
        serve("b", 80);
        node.publish(&container("c1"), &published(2, &[tcp(8080, 80)]));
        let exact = published(3, &[mapping(Protocol::Tcp, Some(NODE), 8080, 80)]);
        node.publish(&container("c2"), &exact);
        assert_eq!(ask(Some("outside"), NODE, 8080), Some(format!("b {OUTSIDE}")));
        assert_eq!(ask(None, "127.0.0.1", 8080), Some(format!("a {GATEWAY}")));
        assert_eq!(ask(Some("outside"), NODE6, 8080), Some(format!("a {OUTSIDE6}")));
    });
}

#[test]
fn an_unspecified_address_is_every_address_of_its_family() {
    with_each_backend(|node| {
        serve("a", 80);
        let mappings = [mapping(Protocol::Tcp, Some("0.0.0.0"), 8080, 80)];
        node.publish(&container("c1"), &published(2, &mappings));
        assert_eq!(ask(Some("outside"), NODE, 8080), Some(format!("a {OUTSIDE}")));
        assert!(is_deaf(Some("outside"), NODE6, 8080));
    });
}

#[test]
fn ranges_lead_to_the_same_or_to_shifted_ports() {
    with_each_backend(|node| {
        serve("a", 3005);
        serve("a", 4102);
        let mappings = [range((3000, 3010), (3000, 3010)), range((9100, 9110), (4100, 4110))];
        node.publish(&container("c1"), &published(2, &mappings));
        assert_eq!(ask(Some("outside"), NODE, 3005), Some(format!("a {OUTSIDE}")));
        assert_eq!(ask(Some("outside"), NODE, 9102), Some(format!("a {OUTSIDE}")));
        assert_eq!(ask(None, "127.0.0.1", 3005), Some(format!("a {GATEWAY}")));
        assert_eq!(ask(Some("outside"), NODE6, 3005), Some(format!("a {OUTSIDE6}")));
        assert_eq!(ask(Some("outside"), NODE6, 9102), Some(format!("a {OUTSIDE6}")));
        assert!(is_deaf(Some("outside"), NODE, 3011));
    });
}

#[test]
fn snat_can_be_switched_off_or_be_for_all() {
    with_each_backend(|node| {
        serve("a", 80);
        let c1 = container("c1");
        let plain = Published {
            snat: false,
            ..published(2, &[tcp(8080, 80)])
        };
        node.publish(&c1, &plain);
        assert_eq!(ask(Some("outside"), NODE, 8080), Some(format!("a {OUTSIDE}")));
        assert!(is_deaf(Some("a"), NODE, 8080), "hairpin needs it");

        let all = Published {
            masq_all: true,
            ..published(2, &[tcp(8080, 80)])
        };
        node.publish(&c1, &all);
        assert_eq!(ask(Some("outside"), NODE, 8080), Some(format!("a {GATEWAY}")));
        assert_eq!(ask(Some("outside"), NODE6, 8080), Some("a fd00:1::1".to_owned()));
    });
}

/// With iptables all stays open, as with the reference.
#[test]
fn while_route_localnet_is_on_nothing_from_outside_reaches_127_0_0_1_with_nftables() {
    with(Backend::Nftables, |node| {
        node.w.sh("sysctl -qw net.ipv4.conf.up0.route_localnet=1");
        node.w.sh_in(
            "outside",
            "ip addr flush dev lo; sysctl -qw net.ipv4.conf.all.route_localnet=1 net.ipv4.conf.eth0.route_localnet=1
            ip route add 127.0.0.0/8 via 198.51.100.1 dev eth0 src 198.51.100.2",
        );
        let listener = UdpSocket::bind("127.0.0.1:7777").unwrap();
        let client = udp_client(Some("outside"), "127.0.0.1", 7777);
        let arrives = || {
            client.send(b"?").unwrap();
            listener.set_read_timeout(Some(NEVER)).unwrap();
            listener.recv_from(&mut [0; 8]).is_ok()
        };
        assert!(arrives(), "the test's own attack works");
        node.publish(&container("c1"), &published(2, &[tcp(8080, 80)]));
        assert!(!arrives());
    });
}

#[test]
fn containers_leave_with_the_nodes_address_but_for_what_is_excluded() {
    with_each_backend(|node| {
        serve("outside", 80);
        serve("b", 80);
        let c1 = container("c1");
        let says = |from, to| ask(Some(from), to, 80);
        let plain = Some(format!("outside {A}"));
        assert_eq!(says("a", OUTSIDE), plain, "the route back exists");
        let mut wanted = Masquerade {
            addresses: addresses(2),
            exclude: Vec::new(),
        };
        node.masquerade(&c1, &wanted);
        assert_eq!(says("a", OUTSIDE), Some(format!("outside {NODE}")));
        assert_eq!(says("a", OUTSIDE6), Some(format!("outside {NODE6}")));
        assert_eq!(says("b", OUTSIDE), Some(format!("outside {B}")), "not asked for");
        assert_eq!(says("a", B), Some(format!("b {A}")), "its own subnet");

        wanted.exclude = vec!["198.51.100.0/24".parse().unwrap()];
        node.masquerade(&c1, &wanted);
        assert_eq!(says("a", OUTSIDE), plain);
        assert_eq!(says("a", OUTSIDE6), Some(format!("outside {NODE6}")));

        masquerade::del(&c1).unwrap();
        assert_eq!(says("a", OUTSIDE6), Some(format!("outside {A6}")));
    });
}

#[test]
fn the_last_writer_is_reached_when_the_holder_is_gone() {
    with_each_backend(|node| {
        serve("a", 80);
        serve("b", 80);
        let dead = Published {
            netns: Some("gone".to_owned()),
            ..published(2, &[tcp(8080, 80)])
        };
        node.publish(&container("x"), &dead);
        let living = Published {
            netns_exists: |_| false,
            ..published(3, &[tcp(8080, 80)])
        };
        node.publish(&container("y"), &living);
        assert_eq!(ask(Some("outside"), NODE, 8080), Some(format!("b {OUTSIDE}")));
        unpublish(&container("x"));
        assert_eq!(ask(Some("outside"), NODE, 8080), Some(format!("b {OUTSIDE}")));
    });
}

/// Has the kernel remember so many connections more, and connections at all: that begins with the first rule that needs it.
fn track(w: &World, connections: u16) {
    w.sh("ip link set lo up; nft add table inet x
        nft add chain inet x c '{ type filter hook prerouting priority 0; }'; nft add rule inet x c ct state new");
    for port in (20_000..).take(connections.into()) {
        let client = UdpSocket::bind(("127.0.0.1", port)).unwrap();
        client.send_to(b"?", ("127.0.0.1", 9)).unwrap();
    }
}

#[test]
fn a_udp_client_that_goes_on_sending_finds_the_next_container() {
    with_each_backend(|node| {
        serve("a", 53);
        serve("b", 53);
        let ports = [
            mapping(Protocol::Udp, None, 5353, 53),
            mapping(Protocol::Udp, None, 53, 9),
        ];
        // With few connections and with many, which are looked through in different ways.
        for connections in [0, 1500] {
            track(node.w, connections);
            // The same sockets throughout: for the kernel, connections that never end.
            let clients = [NODE, NODE6].map(|address| udp_client(Some("outside"), address, 5353));
            let say = |answer: Option<&str>| {
                for (client, seen) in clients.iter().zip([OUTSIDE, OUTSIDE6]) {
                    let expected = answer.map(|name| format!("{name} {seen}"));
                    assert_eq!(ask_udp(client, answer.is_some()), expected, "{connections}");
                }
            };
            say(None);
            let passing = udp_client(Some("outside"), B, 53);
            assert_eq!(ask_udp(&passing, true), Some(format!("b {OUTSIDE}")));

            node.publish(&container("c1"), &published(2, &ports));
            say(Some("a"));
            let entries = node.w.sh("conntrack -L -p udp --dport 53 -d 10.1.0.3 2>/dev/null");
            assert!(
                entries.contains("dport=53"),
                "what only passes through is remembered: {entries}"
            );
            unpublish(&container("c1"));
            say(None);
            node.publish(&container("c2"), &published(3, &ports));
            say(Some("b"));
            unpublish(&container("c2"));
        }
    });
}

#[test]
fn conditions_are_for_their_own_mappings() {
    with_each_backend(|node| {
        serve("a", 80);
        serve("b", 80);
        let condition = match node.backend {
            Backend::Iptables => format!("! -s {OUTSIDE}"),
            Backend::Nftables => format!("ip saddr != {OUTSIDE}"),
        };
        let guarded = Published {
            conditions_v4: condition.split(' ').map(str::to_owned).collect(),
            ..published(2, &[tcp(8080, 80)])
        };
        node.publish(&container("c1"), &guarded);
        node.publish(&attachment("other", "c2", "eth0"), &published(3, &[tcp(9090, 80)]));
        assert!(is_deaf(Some("outside"), NODE, 8080));
        assert_eq!(
            ask(Some("outside"), NODE6, 8080),
            Some(format!("a {OUTSIDE6}")),
            "IPv6 has none"
        );
        assert_eq!(ask(None, NODE, 8080), Some(format!("a {NODE}")));
        assert_eq!(ask(None, "127.0.0.1", 8080), Some(format!("a {GATEWAY}")));
        assert_eq!(ask(Some("outside"), NODE, 9090), Some(format!("b {OUTSIDE}")));
    });
}
