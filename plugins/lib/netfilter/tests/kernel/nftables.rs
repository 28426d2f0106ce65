//! What the nftables backend keeps in the kernel: who holds a port, what is left when attachments go.

use std::collections::BTreeSet;
use std::thread;

use crate::topology::*;
use cni_types::{Attachment, Code, ContainerId, IfName};
use netfilter::masquerade::{self, Masquerade};
use netfilter::portmap::{self, Hints, Mapping, OnConflict, Published};
use netfilter::{Backend, Protocol};
use testkit::{World, world};

fn add(attachment: &Attachment, published: &Published) -> cni_types::Result<()> {
    portmap::add(Backend::Nftables, attachment, published)
}

fn check(attachment: &Attachment, published: &Published) -> cni_types::Result<()> {
    portmap::check(Backend::Nftables, attachment, published)
}

#[track_caller]
fn del(attachment: &Attachment) {
    assert_eq!(portmap::del(attachment, &Hints::default()), Ok(()));
}

fn listing(w: &World) -> String {
    w.sh("nft list ruleset")
}

/// Asserts that no element and no chain is left in our tables that is there for a container.
#[track_caller]
fn assert_nothing_is_left(w: &World) {
    let listing = listing(w);
    for trace in ["elements", "conditions-", "snat4-", "snat6-", "masq4-", "masq6-"] {
        assert!(!listing.contains(trace), "{trace} in\n{listing}");
    }
}

/// Where a port leads, as the listing says; empty if nowhere.
fn target(w: &World, key: &str) -> String {
    w.sh(&format!(
        "nft list ruleset | grep -o '{key} comment [^:]*: [0-9a-f.:]* . [0-9]*' | sed 's/.* : //' || true"
    ))
}

fn valid(attachments: &[&Attachment]) -> BTreeSet<(ContainerId, IfName)> {
    attachments
        .iter()
        .map(|a| (a.container_id.clone(), a.ifname.clone()))
        .collect()
}

#[test]
fn del_needs_nothing_but_the_name_and_leaves_nothing() {
    world(|w| {
        let c1 = attachment("net", "c1", "eth0");
        let mappings: Vec<Mapping> = (0..20)
            .map(|i| tcp(8000 + i, 80))
            .chain([
                mapping(Protocol::Udp, Some("198.51.100.1"), 53, 53),
                mapping(Protocol::Sctp, Some("2001:db8::1"), 99, 99),
                range((3000, 3100), (3000, 3100)),
                range((4000, 4100), (5000, 5100)),
            ])
            .collect();
        let all = published(2, &mappings);
        add(&c1, &all).unwrap();
        check(&c1, &all).unwrap();
        let masquerade = Masquerade {
            addresses: addresses(2),
            exclude: Vec::new(),
        };
        masquerade::add(Backend::Nftables, &c1, &masquerade).unwrap();
        let listing = listing(w);
        for line in [
            "sctp . 2001:db8::1 . 99",
            "udp . 198.51.100.1 . 53",
            "tcp . 3000-3100",
            "tcp . 4100",
        ] {
            assert!(listing.contains(line), "{line} is not in\n{listing}");
        }
        del(&c1);
        del(&c1);
        masquerade::del(&c1).unwrap();
        masquerade::del(&c1).unwrap();
        assert_nothing_is_left(w);
    });
}

#[test]
fn del_and_gc_make_nothing() {
    world(|w| {
        let c1 = attachment("net", "c1", "eth0");
        del(&c1);
        masquerade::del(&c1).unwrap();
        portmap::gc(&c1.network, &BTreeSet::new()).unwrap();
        masquerade::gc(&c1.network, &BTreeSet::new()).unwrap();
        assert_eq!(listing(w), "");
    });
}

#[test]
fn probing_makes_nothing() {
    world(|w| {
        Backend::Nftables.probe().unwrap();
        assert_eq!(listing(w), "");
    });
}

#[test]
fn adding_again_replaces_what_was() {
    world(|w| {
        let c1 = attachment("net", "c1", "eth0");
        add(
            &c1,
            &published(2, &[tcp(8080, 80), tcp(8081, 81), range((100, 200), (100, 200))]),
        )
        .unwrap();
        let second = published(3, &[tcp(8080, 8000), range((100, 150), (100, 150))]);
        add(&c1, &second).unwrap();
        check(&c1, &second).unwrap();
        assert_eq!(target(w, "tcp . 8080"), "10.1.0.3 . 8000\nfd00:1::3 . 8000");
        assert_eq!(target(w, "tcp . 8081"), "");
        let before = listing(w);
        add(&c1, &second).unwrap();
        assert_eq!(listing(w), before, "and the same again changes nothing");
        del(&c1);
        assert_nothing_is_left(w);
    });
}

#[test]
fn attachments_are_told_apart_by_network_container_and_interface() {
    world(|w| {
        let all = [
            ("net", "c1", "eth0"),
            ("net", "c1", "eth1"),
            ("other", "c1", "eth0"),
            ("net", "c2", "eth0"),
        ];
        let all = all.map(|(network, container, ifname)| attachment(network, container, ifname));
        for (port, attachment) in (8000u16..).zip(&all) {
            let mine = published(2 + (port - 8000) as u8, &[tcp(port, 80)]);
            add(attachment, &mine).unwrap();
        }
        del(&all[0]);
        assert_eq!(target(w, "tcp . 8000"), "");
        for port in 8001..8004 {
            assert_ne!(target(w, &format!("tcp . {port}")), "", "{port}");
        }
    });
}

#[test]
fn one_container_may_publish_a_port_through_several_networks() {
    world(|w| {
        let networks = ["one", "two", "three"].map(|network| attachment(network, "c1", "eth0"));
        let wanted = [2u8, 3, 4].map(|last| published(last, &[tcp(8080, 80)]));
        for (attachment, wanted) in networks.iter().zip(&wanted) {
            add(attachment, wanted).unwrap();
            check(attachment, wanted).unwrap();
        }
        let leads_to = |last: u8| format!("10.1.0.{last} . 80\nfd00:1::{last} . 80");
        assert_eq!(target(w, "tcp . 8080"), leads_to(2));
        add(&networks[0], &wanted[0]).unwrap();
        assert_eq!(target(w, "tcp . 8080"), leads_to(2), "ADD again keeps its turn");
        del(&networks[0]);
        assert_eq!(target(w, "tcp . 8080"), leads_to(3));
        check(&networks[1], &wanted[1]).unwrap();
        assert!(check(&networks[0], &wanted[0]).is_err());
        del(&networks[2]);
        assert_eq!(target(w, "tcp . 8080"), leads_to(3));
        del(&networks[1]);
        assert_nothing_is_left(w);
    });
}

#[test]
fn who_waited_and_went_is_not_promoted() {
    world(|w| {
        let networks = ["one", "two", "three"].map(|network| attachment(network, "c1", "eth0"));
        for (attachment, last) in networks.iter().zip(2..) {
            add(attachment, &published(last, &[tcp(8080, 80)])).unwrap();
        }
        // The second does not want the port any more.
        add(&networks[1], &published(3, &[tcp(9090, 80)])).unwrap();
        del(&networks[0]);
        assert_eq!(target(w, "tcp . 8080"), "10.1.0.4 . 80\nfd00:1::4 . 80");
        assert_eq!(target(w, "tcp . 9090"), "10.1.0.3 . 80\nfd00:1::3 . 80");
    });
}

fn living(last: u8, mappings: &[Mapping]) -> Published {
    Published {
        netns: Some("living".to_owned()),
        netns_exists: |text| text == "living",
        ..published(last, mappings)
    }
}

#[test]
fn a_port_of_a_living_container_is_not_taken() {
    world(|w| {
        let (c1, c2) = (attachment("net", "c1", "eth0"), attachment("other", "c2", "eth0"));
        add(&c1, &living(2, &[tcp(8080, 80), range((3000, 3100), (3000, 3100))])).unwrap();
        let before = listing(w);
        for mappings in [
            vec![tcp(9999, 80), tcp(8080, 80)],
            vec![tcp(3050, 80)],
            vec![range((3100, 3200), (3100, 3200))],
            vec![range((2900, 3500), (2900, 3500))],
            vec![range((8000, 9000), (8000, 9000))],
        ] {
            let error = add(&c2, &living(3, &mappings)).unwrap_err();
            assert_eq!(error.code, Code::TRY_AGAIN_LATER);
            assert!(
                error
                    .msg
                    .contains("is held by container c1 interface eth0 on network net"),
                "{error}"
            );
        }
        assert_eq!(listing(w), before);
        // Another protocol, a given address, another port: no conflict.
        let others = [
            mapping(Protocol::Udp, None, 8080, 80),
            mapping(Protocol::Tcp, Some("198.51.100.1"), 8080, 80),
            tcp(2999, 80),
        ];
        add(&c2, &living(3, &others)).unwrap();
    });
}

#[test]
fn a_port_of_a_container_that_is_gone_or_may_be_replaced_is_taken() {
    world(|w| {
        let (c1, c2, c3) = (
            attachment("net", "c1", "eth0"),
            attachment("net", "c2", "eth0"),
            attachment("net", "c3", "eth0"),
        );
        let gone = Published {
            netns: Some("gone".to_owned()),
            ..living(2, &[tcp(8080, 80), range((10, 20), (10, 20))])
        };
        add(&c1, &gone).unwrap();
        let second = living(3, &[tcp(8080, 80), range((15, 25), (15, 25))]);
        add(&c2, &second).unwrap();
        assert_eq!(target(w, "tcp . 8080"), "10.1.0.3 . 80\nfd00:1::3 . 80");
        // A late DEL does no harm.
        del(&c1);
        check(&c2, &second).unwrap();

        let replace = Published {
            on_conflict: OnConflict::Replace,
            ..living(4, &[tcp(8080, 80)])
        };
        add(&c3, &replace).unwrap();
        check(&c3, &replace).unwrap();
        assert!(
            check(&c2, &second)
                .unwrap_err()
                .msg
                .contains("host port 8080/tcp: held by")
        );
        del(&c3);
        del(&c2);
        assert_nothing_is_left(w);
    });
}

#[test]
fn check_notices_every_difference() {
    world(|w| {
        let c1 = attachment("net", "c1", "eth0");
        let wanted = published(2, &[tcp(8080, 80)]);
        let others = [
            published(2, &[tcp(8081, 80)]),
            published(2, &[tcp(8080, 81)]),
            published(3, &[tcp(8080, 80)]),
            published(2, &[mapping(Protocol::Udp, None, 8080, 80)]),
            published(2, &[mapping(Protocol::Tcp, Some("198.51.100.1"), 8080, 80)]),
            published(2, &[tcp(8080, 80), tcp(8081, 81)]),
            published(2, &[]),
            Published {
                snat: false,
                ..wanted.clone()
            },
            Published {
                masq_all: true,
                ..wanted.clone()
            },
        ];
        for other in &others {
            add(&c1, other).unwrap();
            assert!(check(&c1, &wanted).is_err(), "{other:?}");
        }
        add(&c1, &wanted).unwrap();
        check(&c1, &wanted).unwrap();
        for damage in [
            "nft delete element inet ferrule_portmap any4 '{ tcp . 8080 }'",
            "nft delete element inet ferrule_portmap any4 '{ tcp . 8080 }'; nft add element inet ferrule_portmap any4 '{ tcp . 8080 : 10.1.0.9 . 80 }'",
            "nft flush chain inet ferrule_portmap ports",
            "nft flush chain inet ferrule_portmap prerouting",
            "nft insert rule inet ferrule_portmap output accept",
            "nft flush chain inet ferrule_portmap $(nft list chains | grep -o 'snat4-[0-9a-f]*')",
            "nft delete table inet ferrule_portmap",
        ] {
            w.sh(damage);
            assert!(check(&c1, &wanted).is_err(), "{damage}");
            add(&c1, &wanted).unwrap();
            check(&c1, &wanted).unwrap_or_else(|e| panic!("ADD repairs: {damage}: {e}"));
        }
    });
}

#[test]
fn gc_removes_what_is_not_valid_on_its_network_and_nothing_else() {
    world(|w| {
        let (c1, c2, other) = (
            attachment("net", "c1", "eth0"),
            attachment("net", "c2", "eth0"),
            attachment("other", "c1", "eth1"),
        );
        for (attachment, last) in [(&c1, 2), (&c2, 3), (&other, 4)] {
            add(attachment, &published(last, &[tcp(8000 + u16::from(last), 80)])).unwrap();
            let masquerade = Masquerade {
                addresses: addresses(last),
                exclude: Vec::new(),
            };
            masquerade::add(Backend::Nftables, attachment, &masquerade).unwrap();
        }
        portmap::gc(&c1.network, &valid(&[&c2])).unwrap();
        masquerade::gc(&c1.network, &valid(&[&c2])).unwrap();
        let listing = listing(w);
        assert!(!listing.contains("net/c1/eth0"), "{listing}");
        assert_eq!(listing.matches("net/c2/eth0").count(), 8, "{listing}");
        assert_eq!(listing.matches("other/c1/eth1").count(), 8, "{listing}");
    });
}

#[test]
fn chains_of_subnets_are_shared_and_go_with_the_last() {
    world(|w| {
        let count = |w: &World| w.sh("nft list ruleset | grep -c 'chain \\(snat\\|masq\\)[46]-' || true");
        let all = ["c1", "c2"].map(|container| attachment("net", container, "eth0"));
        for (attachment, last) in all.iter().zip(2..) {
            let masquerade = Masquerade {
                addresses: addresses(last),
                exclude: Vec::new(),
            };
            masquerade::add(Backend::Nftables, attachment, &masquerade).unwrap();
            add(attachment, &published(last, &[tcp(8000 + u16::from(last), 80)])).unwrap();
        }
        assert_eq!(count(w), "4");
        masquerade::del(&all[0]).unwrap();
        del(&all[0]);
        assert_eq!(count(w), "4");
        masquerade::del(&all[1]).unwrap();
        del(&all[1]);
        assert_eq!(count(w), "0");
    });
}

#[test]
fn a_hundred_at_once_are_as_one_after_the_other() {
    world(|w| {
        thread::scope(|scope| {
            for number in 0..100u16 {
                scope.spawn(move || {
                    let mine = attachment("net", &format!("c{number}"), "eth0");
                    let wanted = published(2 + number as u8, &[tcp(8000 + number, 80)]);
                    add(&mine, &wanted).unwrap();
                    check(&mine, &wanted).unwrap();
                });
            }
        });
        let listing = listing(w);
        assert_eq!(listing.matches("goto ports").count(), 2, "{listing}");
        assert_eq!(listing.matches("jump conditions").count(), 1, "{listing}");
        thread::scope(|scope| {
            for number in 0..100u16 {
                scope.spawn(move || del(&attachment("net", &format!("c{number}"), "eth0")));
            }
        });
        assert_nothing_is_left(w);
    });
}

#[test]
fn others_who_change_the_ruleset_all_the_time_do_not_get_in_between() {
    world(|w| {
        w.sh("nft add table inet somebody; nft add set inet somebody s '{ type inet_service; }'
            sh -c 'while nft add element inet somebody s \"{ 1 }\" && nft delete element inet somebody s \"{ 1 }\"; do :; done' >/dev/null 2>&1 &");
        for number in 0..50u16 {
            let mine = attachment("net", &format!("c{number}"), "eth0");
            add(&mine, &published(2, &[tcp(8000 + number, 80)])).unwrap();
        }
        for number in 0..50u16 {
            del(&attachment("net", &format!("c{number}"), "eth0"));
        }
        w.sh("nft delete table inet somebody");
        assert_nothing_is_left(w);
    });
}

#[test]
fn overlapping_ranges_of_one_attachment_are_refused_before_anything_is_written() {
    world(|w| {
        let overlapping = published(2, &[range((100, 200), (100, 200)), range((150, 250), (150, 250))]);
        let error = add(&attachment("net", "c1", "eth0"), &overlapping).unwrap_err();
        assert_eq!(error.code, Code::INVALID_CONFIG);
        assert!(error.msg.contains("100-200/tcp"), "{error}");
        assert_eq!(listing(w), "");
    });
}

fn conditional(last: u8, mappings: &[Mapping], conditions: &[&str]) -> Published {
    Published {
        conditions_v4: conditions.iter().map(ToString::to_string).collect(),
        ..published(last, mappings)
    }
}

#[test]
fn conditions_that_nft_refuses_leave_nothing() {
    world(|w| {
        let c1 = attachment("net", "c1", "eth0");
        let error = add(&c1, &conditional(2, &[tcp(8080, 80)], &["no", "such", "thing"])).unwrap_err();
        assert!(error.msg.contains("nft refuses conditions"), "{error}");
        assert_nothing_is_left(w);
        let error = add(&c1, &conditional(2, &[tcp(8080, 80)], &["accept;", "flush ruleset"])).unwrap_err();
        assert_eq!(error.code, Code::INVALID_CONFIG);
    });
}

#[test]
fn a_failed_second_add_leaves_what_the_first_one_did() {
    world(|w| {
        let (c1, c2) = (attachment("net", "c1", "eth0"), attachment("net", "c2", "eth0"));
        add(&c2, &living(3, &[tcp(9999, 80)])).unwrap();
        for first in [
            living(2, &[tcp(8080, 80)]),
            conditional(2, &[tcp(8080, 80)], &["ip saddr != 192.0.2.1"]),
        ] {
            add(&c1, &first).unwrap();
            let before = listing(w);
            let taken = add(&c1, &living(2, &[tcp(8081, 80), tcp(9999, 80)])).unwrap_err();
            assert_eq!(taken.code, Code::TRY_AGAIN_LATER);
            let nonsense = conditional(2, &[tcp(8081, 80)], &["no", "such", "thing"]);
            let refused = add(&c1, &nonsense).unwrap_err();
            assert!(refused.msg.contains("nft refuses conditions"), "{refused}");
            assert_eq!(listing(w), before);
            check(&c1, &first).unwrap();
        }
        del(&c1);
        del(&c2);
        assert_nothing_is_left(w);
    });
}

#[test]
fn rules_with_conditions_are_replaced_compared_and_removed() {
    world(|w| {
        let c1 = attachment("net", "c1", "eth0");
        let mappings = [
            tcp(8080, 80),
            range((100, 110), (100, 110)),
            mapping(Protocol::Udp, Some("198.51.100.1"), 53, 53),
        ];
        let wanted = conditional(2, &mappings, &["ip saddr != { 192.0.2.1, 192.0.2.2 }"]);
        add(&c1, &wanted).unwrap();
        add(&c1, &wanted).unwrap();
        check(&c1, &wanted).unwrap();
        let listing = listing(w);
        for line in [
            "ip saddr != { 192.0.2.1, 192.0.2.2 } tcp dport 8080 dnat ip to 10.1.0.2:80",
            "tcp dport 100-110 dnat ip to 10.1.0.2",
            "ip daddr 198.51.100.1 udp dport 53 dnat ip to 10.1.0.2:53",
            "tcp . 8080 comment",
        ] {
            assert_eq!(listing.matches(line).count(), 1, "{line} in\n{listing}");
        }
        assert_eq!(listing.matches("jump conditions-").count(), 1, "{listing}");
        for other in [
            conditional(2, &[tcp(8080, 81)], &["ip saddr 192.0.2.1"]),
            conditional(3, &mappings, &["ip saddr 192.0.2.1"]),
            conditional(2, &mappings, &["ip saddr != { 192.0.2.1, 192.0.2.3 }"]),
            published(2, &mappings),
        ] {
            assert!(check(&c1, &other).is_err(), "{other:?}");
        }
        // What somebody changed in the kernel is noticed too.
        let chain = w.sh("nft list chains | grep -o 'conditions-[0-9a-f]*'");
        for (right, wrong) in [
            ("tcp dport 8080", "tcp dport 8081"),
            ("tcp dport 100-110", "tcp dport 100-111"),
            ("ip daddr 198.51.100.1 ", ""),
            ("10.1.0.2:53", "10.1.0.2:54"),
            ("comment \"", "comment \"another "),
        ] {
            let chain = format!("inet ferrule_portmap {chain}");
            let rules = w.sh(&format!("nft -a list chain {chain}"));
            let rule = rules.lines().find(|line| line.contains(right)).unwrap();
            let (rule, handle) = rule.trim().split_once(" # handle ").unwrap();
            for (text, is_right) in [(rule.replace(right, wrong), false), (rule.to_owned(), true)] {
                w.sh(&format!("nft 'replace rule {chain} handle {handle} {text}'"));
                assert_eq!(check(&c1, &wanted).is_ok(), is_right, "{text}");
            }
        }
        w.sh("nft flush chain inet ferrule_portmap $(nft list chains | grep -o 'conditions-[0-9a-f]*')");
        assert!(check(&c1, &wanted).is_err(), "as if ADD had died before nft was done");
        del(&c1);
        assert_nothing_is_left(w);

        add(&c1, &wanted).unwrap();
        let plain = published(2, &mappings);
        add(&c1, &plain).unwrap();
        check(&c1, &plain).unwrap();
        assert!(!w.sh("nft list ruleset").contains("conditions-"));
    });
}

/// As `nft` lists what the reference suite 1.9.1 writes for container c1.
const REFERENCE: &str = r#"
table inet cni_plugins_masquerade {
    chain masq_checks {
        ip saddr 10.1.0.2 ip daddr != 10.1.0.0/24 masquerade comment "a4861f4ae9f7d238-f4d01f2ef4b92245, net: net, if: eth0, id: c1"
        ip saddr 10.1.0.3 ip daddr != 10.1.0.0/24 masquerade comment "a4861f4ae9f7d238-0000000000000000, net: net, if: eth0, id: c2"
        ip saddr 10.2.0.2 ip daddr != 10.2.0.0/24 masquerade comment "0000000000000000-f4d01f2ef4b92245, net: other, if: eth0, id: c1"
    }
}
table ip cni_hostport {
    chain hostports {
        tcp dport 8080 dnat to 10.1.0.2:80 comment "c1"
        tcp dport 8081 dnat to 10.2.0.2:80 comment "c1"
        tcp dport 8082 dnat to 10.1.0.2:80 comment "c2"
    }
    chain hostip_hostports { ip daddr 198.51.100.1 udp dport 53 dnat to 10.1.0.2:53 comment "c1"; }
    chain masquerading {
        type nat hook postrouting priority srcnat; policy accept;
        ip saddr 10.1.0.2 ip daddr 10.1.0.2 masquerade comment "c1"
        ip saddr 127.0.0.1 ip daddr 10.1.0.2 masquerade comment "c1"
        ip saddr 127.0.0.1 ip daddr 10.2.0.2 masquerade comment "c1"
    }
}
table ip6 cni_hostport {
    chain hostports { tcp dport 8080 dnat to [fd00:1::2]:80 comment "c1"; }
}
"#;

fn load_reference(w: &World) {
    let file = w.tmp().join("reference.nft");
    assert!(std::fs::write(&file, REFERENCE).is_ok());
    w.sh(&format!("nft -f {}", file.display()));
}

#[test]
fn del_removes_the_references_rules_of_its_own_addresses() {
    world(|w| {
        load_reference(w);
        let c1 = attachment("net", "c1", "eth0");
        masquerade::del(&c1).unwrap();
        let hints = Hints {
            addresses: vec!["10.1.0.2".parse().unwrap(), "fd00:1::2".parse().unwrap()],
            host_ports: Vec::new(),
        };
        portmap::del(&c1, &hints).unwrap();
        let listing = listing(w);
        assert!(!listing.contains("a4861f4ae9f7d238-f4d01f2ef4b92245"), "{listing}");
        for stays in [
            "a4861f4ae9f7d238-0000",
            "0000-f4d01f2ef4b92245",
            "dport 8081",
            "dport 8082",
            "ip daddr 10.2.0.2 masq",
        ] {
            assert!(listing.contains(stays), "{stays} is gone from\n{listing}");
        }
        for goes in ["dport 8080", "dport 53", "ip daddr 10.1.0.2", "fd00:1::2"] {
            assert!(!listing.contains(goes), "{goes} is still in\n{listing}");
        }
    });
}

#[test]
fn without_addresses_the_references_rules_are_found_by_host_port() {
    world(|w| {
        load_reference(w);
        let c1 = attachment("net", "c1", "eth0");
        portmap::del(&c1, &Hints::default()).unwrap();
        assert!(
            listing(w).contains("dport 8080"),
            "nothing is known, nothing is touched"
        );
        let hints = Hints {
            addresses: Vec::new(),
            host_ports: vec![(Protocol::Tcp, 8080)],
        };
        portmap::del(&c1, &hints).unwrap();
        let listing = listing(w);
        for goes in ["dport 8080", "dport 53", "ip daddr 10.1.0.2", "fd00:1::2"] {
            assert!(!listing.contains(goes), "{goes} is still in\n{listing}");
        }
        assert!(
            listing.contains("dport 8081") && listing.contains("dport 8082"),
            "{listing}"
        );
    });
}

#[test]
fn gc_removes_the_references_masquerading_but_not_its_ports() {
    world(|w| {
        load_reference(w);
        let c1 = attachment("net", "c1", "eth0");
        masquerade::gc(&c1.network, &valid(&[&c1])).unwrap();
        portmap::gc(&c1.network, &BTreeSet::new()).unwrap();
        let listing = listing(w);
        assert!(!listing.contains("a4861f4ae9f7d238-0000"), "{listing}");
        for stays in [
            "a4861f4ae9f7d238-f4d01f2ef4b92245",
            "0000-f4d01f2ef4b92245",
            "dport 8080",
            "dport 8082",
        ] {
            assert!(listing.contains(stays), "{stays} is gone from\n{listing}");
        }
    });
}
