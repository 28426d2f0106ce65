//! What our nf_tables hold, written as iptables rules.

use cni_types::Cidr;
use netfilter::firewall::{self, Ingress, Policy};
use netfilter::handover::{held, to_iptables};
use netfilter::masquerade::{self, Masquerade};
use netfilter::portmap::{self, Hints, Published};
use netfilter::{Backend, Protocol};
use testkit::world;

use crate::topology::*;

fn accepts(addresses: &[Cidr], ingress: Ingress) -> Policy {
    Policy {
        addresses: addresses.iter().map(|cidr| cidr.address()).collect(),
        accepts: true,
        ingress,
        admin_chain: Policy::DEFAULT_ADMIN_CHAIN.to_owned(),
    }
}

fn web() -> Published {
    // In the order in which they are read back: what is for one address before what is for all.
    let mappings = [
        mapping(Protocol::Udp, Some("198.51.100.1"), 53, 53),
        tcp(8080, 80),
        range((3000, 3100), (3000, 3100)),
    ];
    published(2, &mappings)
}

#[test]
fn everything_is_there_in_the_other_backend_and_our_tables_are_gone() {
    world(|w| {
        let (c1, c2) = (attachment("net", "c1", "eth0"), attachment("net", "c2", "eth0"));
        let masquerade = Masquerade {
            addresses: addresses(2),
            exclude: vec!["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()],
        };
        let policy = accepts(&addresses(2), Ingress::SameBridge("cni0".parse().unwrap()));
        let other = published(3, &[tcp(8081, 80)]);
        portmap::add(Backend::Nftables, &c1, &web()).unwrap();
        portmap::add(Backend::Nftables, &c2, &other).unwrap();
        masquerade::add(Backend::Nftables, &c1, &masquerade).unwrap();
        firewall::add(Backend::Nftables, &c1, &policy).unwrap();
        assert_eq!(held().unwrap().len(), 4);
        assert!(held().unwrap().iter().all(|held| held.backend == Backend::Nftables));

        assert_eq!(to_iptables().unwrap().len(), 4);

        portmap::check(Backend::Iptables, &c1, &web()).unwrap();
        portmap::check(Backend::Iptables, &c2, &other).unwrap();
        masquerade::check(Backend::Iptables, &c1, &masquerade).unwrap();
        firewall::check(Backend::Iptables, &c1, &policy).unwrap();
        let tables = w.sh("nft list tables");
        assert!(!tables.contains("ferrule"), "{tables}");
        assert!(held().unwrap().iter().all(|held| held.backend == Backend::Iptables));
        assert_eq!(to_iptables().unwrap(), []);

        for attachment in [&c1, &c2] {
            portmap::del(attachment, &Hints::default()).unwrap();
            masquerade::del(attachment).unwrap();
            firewall::del(attachment, &[]).unwrap();
        }
        assert_eq!(held().unwrap(), []);
    });
}

#[test]
fn a_published_port_answers_before_and_after() {
    world(|w| {
        build(w);
        let c1 = attachment("net", "c1", "eth0");
        portmap::add(Backend::Nftables, &c1, &published(2, &[tcp(8080, 80)])).unwrap();
        serve("a", 80);
        let from_everywhere = || {
            let sources = [None, Some("outside"), Some("a"), Some("b")];
            sources.map(|from| ask(from, NODE, 8080))
        };
        let before = from_everywhere();
        assert!(before.iter().all(Option::is_some), "{before:?}");
        to_iptables().unwrap();
        assert_eq!(from_everywhere(), before);
        portmap::del(&c1, &Hints::default()).unwrap();
    });
}

#[test]
fn what_iptables_cannot_say_changes_nothing() {
    world(|w| {
        let (c1, c2) = (attachment("net", "c1", "eth0"), attachment("net", "c2", "eth0"));
        let mut conditional = published(2, &[tcp(8080, 80)]);
        conditional.conditions_v4 = vec!["ip saddr 192.0.2.0/24".to_owned()];
        portmap::add(Backend::Nftables, &c1, &conditional).unwrap();
        portmap::add(Backend::Nftables, &c2, &published(3, &[tcp(8081, 80)])).unwrap();
        let before = w.sh("nft list ruleset");
        let refusal = to_iptables().unwrap_err();
        assert!(
            refusal.msg.contains("c1") && refusal.msg.contains("conditions"),
            "{refusal}"
        );
        assert_eq!(w.sh("nft list ruleset"), before);
        portmap::del(&c1, &Hints::default()).unwrap();

        firewall::add(Backend::Nftables, &c2, &accepts(&addresses(3), Ingress::Open)).unwrap();
        w.sh("nft add rule inet ferrule_firewall admin ip saddr 192.0.2.1 drop");
        let refusal = to_iptables().unwrap_err();
        assert!(refusal.msg.contains("CNI-ADMIN"), "{refusal}");
        w.sh("nft flush chain inet ferrule_firewall admin");
        assert_eq!(to_iptables().unwrap().len(), 2);
    });
}
