//! A host port that is asked for with one backend and held with the other.

use cni_types::Code;
use netfilter::Backend;
use netfilter::portmap::{self, Hints, OnConflict, Published};
use testkit::world;

use crate::topology::*;

const BOTH_WAYS: [(Backend, Backend); 2] = [
    (Backend::Iptables, Backend::Nftables),
    (Backend::Nftables, Backend::Iptables),
];

fn in_netns(netns: &str, last: u8) -> Published {
    Published {
        netns: Some(netns.to_owned()),
        netns_exists: |netns| netns == "living",
        ..published(last, &[tcp(9000, 90), range((8080, 8090), (80, 90))])
    }
}

#[test]
fn a_living_holder_keeps_its_port_whatever_the_backend() {
    for (held, asked) in BOTH_WAYS {
        world(|w| {
            let (x, y) = (attachment("net", "x", "eth0"), attachment("two", "y", "eth1"));
            portmap::add(held, &x, &in_netns("living", 2)).unwrap();
            let rules = || w.sh("iptables-save; ip6tables-save; nft list ruleset");
            let before = rules();
            let wanted = Published {
                mappings: vec![tcp(7000, 70), tcp(8085, 85)],
                ..in_netns("living", 3)
            };
            let error = portmap::add(asked, &y, &wanted).unwrap_err();
            assert_eq!(error.code, Code::TRY_AGAIN_LATER);
            assert!(error.msg.starts_with("host port 80"), "{error}");
            assert!(
                error
                    .msg
                    .ends_with("is held by container x interface eth0 on network net"),
                "{error}"
            );
            assert_eq!(rules(), before, "{asked:?}");

            // The same container, and another port.
            portmap::add(asked, &attachment("two", "x", "eth1"), &wanted).unwrap();
            let apart = Published {
                mappings: vec![tcp(7001, 70)],
                ..wanted
            };
            portmap::add(asked, &y, &apart).unwrap();
        });
    }
}

#[test]
fn the_last_writer_is_reached_when_the_holder_on_the_other_backend_is_gone() {
    for (held, asked) in BOTH_WAYS {
        world(|w| {
            build(w);
            serve("a", 90);
            serve("b", 90);
            let (x, y) = (attachment("net", "x", "eth0"), attachment("net", "y", "eth0"));
            portmap::add(held, &x, &in_netns("gone", 2)).unwrap();
            assert_eq!(ask(Some("outside"), NODE, 9000), Some(format!("a {OUTSIDE}")));
            let wanted = in_netns("living", 3);
            portmap::add(asked, &y, &wanted).unwrap();
            assert_eq!(ask(Some("outside"), NODE, 9000), Some(format!("b {OUTSIDE}")));
            portmap::del(&x, &Hints::default()).unwrap();
            portmap::check(asked, &y, &wanted).unwrap();
            assert_eq!(ask(Some("outside"), NODE, 9000), Some(format!("b {OUTSIDE}")));
        });
    }
}

#[test]
fn a_port_is_asked_for_in_spite_of_a_living_holder_if_that_is_said() {
    for (held, asked) in BOTH_WAYS {
        world(|w| {
            build(w);
            serve("a", 90);
            serve("b", 90);
            let (x, y) = (attachment("net", "x", "eth0"), attachment("net", "y", "eth0"));
            portmap::add(held, &x, &in_netns("living", 2)).unwrap();
            let wanted = Published {
                on_conflict: OnConflict::Replace,
                ..in_netns("living", 3)
            };
            portmap::add(asked, &y, &wanted).unwrap();
            // Of two backends, iptables decides: with nftables the port is had when the holder goes.
            let first = if asked == Backend::Iptables { "b" } else { "a" };
            assert_eq!(ask(Some("outside"), NODE, 9000), Some(format!("{first} {OUTSIDE}")));
            portmap::del(&x, &Hints::default()).unwrap();
            assert_eq!(ask(Some("outside"), NODE, 9000), Some(format!("b {OUTSIDE}")));
        });
    }
}
