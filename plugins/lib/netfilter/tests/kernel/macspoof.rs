//! The MAC spoofing guard, judged by `nft` and by who gets through.

use std::collections::BTreeSet;

use crate::topology::*;
use cni_types::MacAddr;
use netfilter::macspoof;
use testkit::{World, world};

/// The listing of the bridge tables.
fn listing(w: &World) -> String {
    w.sh("nft list ruleset bridge")
}

#[test]
fn only_the_containers_own_address_gets_through() {
    world(|w| {
        build(w);
        serve("b", 80);
        let c1 = attachment("net", "c1", "eth0");
        let mac: MacAddr = w
            .sh_in("a", "ip -j link show eth0 | jq -r '.[0].address'")
            .parse()
            .unwrap();
        macspoof::add(&c1, &ifname("vetha"), mac).unwrap();
        macspoof::check(&c1, &ifname("vetha"), mac).unwrap();
        assert_eq!(ask(Some("a"), B, 80), Some(format!("b {A}")));
        w.sh_in("a", "ip link set eth0 address 02:00:00:00:00:99");
        assert!(is_deaf(Some("a"), B, 80));

        macspoof::del(&c1).unwrap();
        assert_eq!(ask(Some("a"), B, 80), Some(format!("b {A}")));
        assert!(!listing(w).contains("c1"));
        assert!(macspoof::check(&c1, &ifname("vetha"), mac).is_err());
    });
}

#[test]
fn it_is_written_once_and_as_the_reference_writes_it() {
    world(|w| {
        let c1 = attachment("net", "c1", "eth0");
        let mac = MacAddr([0xce, 0x9a, 0x4e, 0xbd, 0x8d, 0x96]);
        macspoof::add(&c1, &ifname("veth0"), mac).unwrap();
        macspoof::add(&c1, &ifname("vetha"), mac).unwrap();
        let listing = listing(w);
        for line in [
            "type filter hook prerouting priority dstnat; policy accept;\n\t\tiifname \"vetha\" jump cni-br-iface-c1-eth0 comment \"macspoofchk-c1-eth0\"\n\t}",
            "chain cni-br-iface-c1-eth0 {\n\t\tjump cni-br-iface-c1-eth0-mac comment \"macspoofchk-c1-eth0\"\n",
            "ether saddr ce:9a:4e:bd:8d:96 return comment \"macspoofchk-c1-eth0\"\n\t\tdrop comment \"macspoofchk-c1-eth0\"",
        ] {
            assert!(listing.contains(line), "{line} is not in\n{listing}");
        }
        macspoof::check(&c1, &ifname("vetha"), mac).unwrap();
        assert!(macspoof::check(&c1, &ifname("veth0"), mac).is_err());
        assert!(macspoof::check(&c1, &ifname("vetha"), MacAddr([2; 6])).is_err());
    });
}

#[test]
fn what_the_reference_wrote_is_removed_by_del_and_spared_by_gc() {
    world(|w| {
        w.sh("nft -f - <<'END'
table bridge nat {
    chain cni-br-iface-c1-eth0-mac { ether saddr 02:00:00:00:00:01 return comment \"macspoofchk-c1-eth0\"; drop; }
    chain cni-br-iface-c1-eth0 { jump cni-br-iface-c1-eth0-mac comment \"macspoofchk-c1-eth0\"; }
    chain PREROUTING { type filter hook prerouting priority -300;
        iifname \"vetha\" jump cni-br-iface-c1-eth0 comment \"macspoofchk-c1-eth0\"
        iifname \"vethx\" accept comment \"the administrator's\"; }
}
END");
        let before = listing(w);
        macspoof::gc(&"net".parse().unwrap(), &BTreeSet::new()).unwrap();
        assert_eq!(listing(w), before);
        macspoof::del(&attachment("net", "c1", "eth0")).unwrap();
        let after = listing(w);
        assert!(!after.contains("c1"), "{after}");
        assert!(after.contains("vethx"), "{after}");
    });
}

#[test]
fn gc_and_del_remove_their_own_networks_guards_only() {
    world(|w| {
        let mac = MacAddr([2; 6]);
        for (network, container) in [("net", "c1"), ("net", "c2"), ("other", "c3")] {
            macspoof::add(&attachment(network, container, "eth0"), &ifname("vetha"), mac).unwrap();
        }
        let valid = BTreeSet::from([("c2".parse().unwrap(), "eth0".parse().unwrap())]);
        macspoof::gc(&"net".parse().unwrap(), &valid).unwrap();
        macspoof::del(&attachment("net", "c3", "eth0")).unwrap();
        let listing = listing(w);
        assert!(!listing.contains("c1-"), "{listing}");
        assert!(listing.contains("c2-") && listing.contains("c3-"), "{listing}");
    });
}

#[test]
fn del_and_gc_make_nothing() {
    world(|w| {
        macspoof::del(&attachment("net", "c1", "eth0")).unwrap();
        macspoof::gc(&"net".parse().unwrap(), &BTreeSet::new()).unwrap();
        assert_eq!(w.sh("nft list ruleset"), "");
        assert_eq!(w.sh("ls /run/cni 2>/dev/null || true"), "");
    });
}
