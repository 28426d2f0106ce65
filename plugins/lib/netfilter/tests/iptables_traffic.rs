//! The iptables backend, judged by who is reached and who is seen.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

mod topology;

use cni_types::Attachment;
use netfilter::masquerade::{self, Masquerade};
use netfilter::portmap::{self, Hints, Published};
use netfilter::{Backend, Protocol};
use testkit::world;
use topology::*;

fn publish(attachment: &Attachment, published: &Published) {
    portmap::add(Backend::Iptables, attachment, published).unwrap();
    portmap::check(Backend::Iptables, attachment, published).unwrap();
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
fn only_connections_to_the_node_itself_are_redirected() {
    world(|w| {
        build(w);
        serve("a", 53);
        serve("b", 5353);
        for host_ip in [None, Some(NODE)] {
            let asked = published(2, &[mapping(Protocol::Tcp, host_ip, 5353, 53)]);
            publish(&attachment("net", "c1", "eth0"), &asked);
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
        assert_eq!(ask(Some("outside"), NODE6, 9102), Some(format!("a {OUTSIDE6}")));
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
fn the_last_writer_is_reached_when_the_holder_is_gone() {
    world(|w| {
        build(w);
        serve("a", 80);
        serve("b", 80);
        let (x, y) = (attachment("net", "x", "eth0"), attachment("net", "y", "eth0"));
        let dead = Published {
            netns: Some("gone".to_owned()),
            ..published(2, &[tcp(8080, 80)])
        };
        publish(&x, &dead);
        let living = Published {
            netns_exists: |_| false,
            ..published(3, &[tcp(8080, 80)])
        };
        publish(&y, &living);
        assert_eq!(ask(Some("outside"), NODE, 8080), Some(format!("b {OUTSIDE}")));
        portmap::del(&x, &Hints::default()).unwrap();
        assert_eq!(ask(Some("outside"), NODE, 8080), Some(format!("b {OUTSIDE}")));
    });
}

#[test]
fn udp_follows_the_port_from_one_container_to_the_next() {
    world(|w| {
        build(w);
        serve("a", 53);
        serve("b", 53);
        let (x, y) = (attachment("net", "x", "eth0"), attachment("net", "y", "eth0"));
        let asked = |last| published(last, &[mapping(Protocol::Udp, None, 5353, 53)]);
        // The same socket throughout: for the kernel, one connection that never ends.
        let client = udp_client(Some("outside"), NODE, 5353);
        assert_eq!(ask_udp(&client, false), None);
        publish(&x, &asked(2));
        assert_eq!(ask_udp(&client, true), Some(format!("a {OUTSIDE}")));
        portmap::del(&x, &Hints::default()).unwrap();
        assert_eq!(ask_udp(&client, false), None);
        publish(&y, &asked(3));
        assert_eq!(ask_udp(&client, true), Some(format!("b {OUTSIDE}")));
    });
}

#[test]
fn containers_leave_with_the_nodes_address_but_for_what_is_excluded() {
    world(|w| {
        build(w);
        serve("outside", 80);
        serve("b", 80);
        let c1 = attachment("net", "c1", "eth0");
        let mut masquerade = Masquerade {
            addresses: addresses(2),
            exclude: Vec::new(),
        };
        masquerade::add(Backend::Iptables, &c1, &masquerade).unwrap();
        assert_eq!(ask(Some("a"), OUTSIDE, 80), Some(format!("outside {NODE}")));
        assert_eq!(ask(Some("a"), OUTSIDE6, 80), Some(format!("outside {NODE6}")));
        assert_eq!(
            ask(Some("b"), OUTSIDE, 80),
            Some(format!("outside {B}")),
            "not asked for"
        );
        assert_eq!(ask(Some("a"), B, 80), Some(format!("b {A}")), "its own subnet");

        masquerade.exclude = vec!["198.51.100.0/24".parse().unwrap()];
        masquerade::add(Backend::Iptables, &c1, &masquerade).unwrap();
        masquerade::check(Backend::Iptables, &c1, &masquerade).unwrap();
        assert_eq!(ask(Some("a"), OUTSIDE, 80), Some(format!("outside {A}")));
        assert_eq!(ask(Some("a"), OUTSIDE6, 80), Some(format!("outside {NODE6}")));

        masquerade::del(&c1).unwrap();
        assert_eq!(ask(Some("a"), OUTSIDE6, 80), Some(format!("outside {A6}")));
    });
}
