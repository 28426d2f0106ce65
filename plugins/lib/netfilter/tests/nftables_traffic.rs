//! The nftables backend, judged by who is reached and who is seen.

mod topology;

use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};

use cni_types::Attachment;
use netfilter::masquerade::{self, Masquerade};
use netfilter::portmap::{self, Hints, Published};
use netfilter::{Backend, Protocol};
use testkit::world;
use topology::*;

#[track_caller]
fn publish(attachment: &Attachment, published: &Published) {
    assert_eq!(portmap::add(Backend::Nftables, attachment, published), Ok(()));
    assert_eq!(portmap::check(Backend::Nftables, attachment, published), Ok(()));
}

#[test]
fn a_port_is_reached_from_everywhere_and_sources_are_kept_where_they_can() {
    world(|w| {
        build(w);
        serve("a", 80);
        let c1 = attachment("net", "c1", "eth0");
        publish(&c1, &published(2, &[tcp(8080, 80)]));
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

        portmap::del(&c1, &Hints::default()).unwrap();
        assert!(is_deaf(Some("outside"), NODE, 8080));
        assert!(is_deaf(None, "127.0.0.1", 8080));
    });
}

#[test]
fn the_nodes_own_connections_to_the_ipv6_loopback_stay_there() {
    world(|w| {
        build(w);
        let ports = [tcp(8080, 80), tcp(8081, 80)];
        publish(&attachment("net", "c1", "eth0"), &published(2, &ports));
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
    world(|w| {
        build(w);
        serve("a", 53);
        let c1 = attachment("net", "c1", "eth0");
        publish(&c1, &published(2, &[mapping(Protocol::Udp, None, 5353, 53)]));
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
    world(|w| {
        build(w);
        serve("a", 53);
        serve("b", 5353);
        for host_ip in [None, Some(NODE)] {
            let c1 = attachment("net", "c1", "eth0");
            publish(&c1, &published(2, &[mapping(Protocol::Tcp, host_ip, 5353, 53)]));
            assert_eq!(
                ask(Some("outside"), B, 5353),
                Some(format!("b {OUTSIDE}")),
                "{host_ip:?}"
            );
            assert_eq!(
                ask(Some("outside"), NODE, 5353),
                Some(format!("a {OUTSIDE}")),
                "{host_ip:?}"
            );
        }
    });
}

#[test]
fn a_given_host_address_comes_before_any() {
    world(|w| {
        build(w);
        serve("a", 80);
        serve("b", 80);
        publish(&attachment("net", "c1", "eth0"), &published(2, &[tcp(8080, 80)]));
        let exact = published(3, &[mapping(Protocol::Tcp, Some(NODE), 8080, 80)]);
        publish(&attachment("net", "c2", "eth0"), &exact);
        assert_eq!(ask(Some("outside"), NODE, 8080), Some(format!("b {OUTSIDE}")));
        assert_eq!(ask(None, "127.0.0.1", 8080), Some(format!("a {GATEWAY}")));
        assert_eq!(ask(Some("outside"), NODE6, 8080), Some(format!("a {OUTSIDE6}")));
    });
}

#[test]
fn an_unspecified_address_is_every_address_of_its_family() {
    world(|w| {
        build(w);
        serve("a", 80);
        let mappings = [mapping(Protocol::Tcp, Some("0.0.0.0"), 8080, 80)];
        publish(&attachment("net", "c1", "eth0"), &published(2, &mappings));
        assert_eq!(ask(Some("outside"), NODE, 8080), Some(format!("a {OUTSIDE}")));
        assert!(is_deaf(Some("outside"), NODE6, 8080));
    });
}

#[test]
fn ranges_lead_to_the_same_or_to_shifted_ports() {
    world(|w| {
        build(w);
        serve("a", 3005);
        serve("a", 4102);
        let mappings = [range((3000, 3010), (3000, 3010)), range((9100, 9110), (4100, 4110))];
        publish(&attachment("net", "c1", "eth0"), &published(2, &mappings));
        assert_eq!(ask(Some("outside"), NODE, 3005), Some(format!("a {OUTSIDE}")));
        assert_eq!(ask(Some("outside"), NODE, 9102), Some(format!("a {OUTSIDE}")));
        assert_eq!(ask(None, "127.0.0.1", 3005), Some(format!("a {GATEWAY}")));
        assert_eq!(ask(Some("outside"), NODE6, 3005), Some(format!("a {OUTSIDE6}")));
        assert!(is_deaf(Some("outside"), NODE, 3011));
    });
}

#[test]
fn snat_can_be_switched_off_or_be_for_all() {
    world(|w| {
        build(w);
        serve("a", 80);
        let c1 = attachment("net", "c1", "eth0");
        let plain = Published {
            snat: false,
            ..published(2, &[tcp(8080, 80)])
        };
        publish(&c1, &plain);
        assert_eq!(ask(Some("outside"), NODE, 8080), Some(format!("a {OUTSIDE}")));
        assert!(is_deaf(Some("a"), NODE, 8080), "hairpin needs it");

        let all = Published {
            masq_all: true,
            ..published(2, &[tcp(8080, 80)])
        };
        publish(&c1, &all);
        assert_eq!(ask(Some("outside"), NODE, 8080), Some(format!("a {GATEWAY}")));
        assert_eq!(ask(Some("outside"), NODE6, 8080), Some("a fd00:1::1".to_owned()));
    });
}

#[test]
fn while_route_localnet_is_on_nothing_from_outside_reaches_127_0_0_1() {
    world(|w| {
        build(w);
        w.sh("sysctl -qw net.ipv4.conf.up0.route_localnet=1");
        w.sh_in(
            "outside",
            "ip addr flush dev lo; sysctl -qw net.ipv4.conf.all.route_localnet=1 net.ipv4.conf.eth0.route_localnet=1
            ip route add 127.0.0.0/8 via 198.51.100.1 dev eth0 src 198.51.100.2",
        );
        let listener = std::net::UdpSocket::bind("127.0.0.1:7777").unwrap();
        let client = udp_client(Some("outside"), "127.0.0.1", 7777);
        let arrives = || {
            client.send(b"?").unwrap();
            listener
                .set_read_timeout(Some(std::time::Duration::from_millis(300)))
                .unwrap();
            listener.recv_from(&mut [0; 8]).is_ok()
        };
        assert!(arrives(), "the test's own attack works");
        publish(&attachment("net", "c1", "eth0"), &published(2, &[tcp(8080, 80)]));
        assert!(!arrives());
    });
}

#[test]
fn containers_leave_with_the_nodes_address_but_for_what_is_excluded() {
    world(|w| {
        build(w);
        serve("outside", 80);
        serve("b", 80);
        let c1 = attachment("net", "c1", "eth0");
        assert_eq!(
            ask(Some("a"), OUTSIDE, 80),
            Some(format!("outside {A}")),
            "the route back exists"
        );
        let mut masquerade = Masquerade {
            addresses: addresses(2),
            exclude: Vec::new(),
        };
        masquerade::add(Backend::Nftables, &c1, &masquerade).unwrap();
        masquerade::check(Backend::Nftables, &c1, &masquerade).unwrap();
        assert_eq!(ask(Some("a"), OUTSIDE, 80), Some(format!("outside {NODE}")));
        assert_eq!(ask(Some("a"), OUTSIDE6, 80), Some(format!("outside {NODE6}")));
        assert_eq!(
            ask(Some("b"), OUTSIDE, 80),
            Some(format!("outside {B}")),
            "not asked for"
        );
        assert_eq!(ask(Some("a"), B, 80), Some(format!("b {A}")));

        masquerade.exclude = vec!["198.51.100.0/24".parse().unwrap()];
        masquerade::add(Backend::Nftables, &c1, &masquerade).unwrap();
        assert_eq!(ask(Some("a"), OUTSIDE, 80), Some(format!("outside {A}")));
        assert_eq!(ask(Some("a"), OUTSIDE6, 80), Some(format!("outside {NODE6}")));

        masquerade::del(&c1).unwrap();
        assert_eq!(ask(Some("a"), OUTSIDE6, 80), Some(format!("outside {A6}")));
    });
}

#[test]
fn a_udp_client_that_goes_on_sending_finds_the_next_container() {
    world(|w| {
        build(w);
        serve("a", 53);
        serve("b", 53);
        // Connection tracking begins with the first rule that needs it; here it is somebody else's.
        w.sh("nft add table ip x; nft add chain ip x c '{ type filter hook prerouting priority 0; }'; nft add rule ip x c ct state new");
        let early = udp_client(Some("outside"), NODE, 5353);
        assert_eq!(ask_udp(&early, false), None);
        let passing = udp_client(Some("outside"), B, 53);
        assert_eq!(ask_udp(&passing, true), Some(format!("b {OUTSIDE}")));

        let (c1, c2) = (attachment("net", "c1", "eth0"), attachment("net", "c2", "eth0"));
        let port = [
            mapping(Protocol::Udp, None, 5353, 53),
            mapping(Protocol::Udp, None, 53, 9),
        ];
        publish(&c1, &published(2, &port));
        assert_eq!(ask_udp(&early, true), Some(format!("a {OUTSIDE}")));
        let entries = w.sh("conntrack -L -p udp --dport 53 -d 10.1.0.3 2>/dev/null");
        assert!(
            entries.contains("dport=53"),
            "what only passes through is remembered: {entries}"
        );

        portmap::del(&c1, &Hints::default()).unwrap();
        publish(&c2, &published(3, &port));
        assert_eq!(ask_udp(&early, true), Some(format!("b {OUTSIDE}")));
    });
}

#[test]
fn conditions_are_for_their_own_mappings() {
    world(|w| {
        build(w);
        serve("a", 80);
        serve("b", 80);
        let conditions_v4 = vec![format!("ip saddr != {OUTSIDE}")];
        let guarded = Published {
            conditions_v4,
            ..published(2, &[tcp(8080, 80)])
        };
        publish(&attachment("net", "c1", "eth0"), &guarded);
        publish(&attachment("other", "c2", "eth0"), &published(3, &[tcp(9090, 80)]));
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
