//! The iptables backend against the kernel.

use std::collections::BTreeSet;
use std::thread;

use cni_types::{Attachment, Code, ContainerId, IfName};
use netfilter::masquerade::{self, Masquerade};
use netfilter::portmap::{self, Hints, Mapping, OnConflict, Published};
use netfilter::{Backend, Protocol};
use testkit::World;

use crate::topology::attachment;

fn published(address: &str, ports: &[u16]) -> Published {
    let mapping = |port: &u16| Mapping {
        protocol: Protocol::Tcp,
        host_ip: None,
        host_port: *port,
        host_port_end: *port,
        container_port: 80,
        container_port_end: 80,
    };
    Published {
        mappings: ports.iter().map(mapping).collect(),
        addresses: vec![address.parse().unwrap()],
        snat: true,
        masq_all: false,
        mark_masq_bit: Published::DEFAULT_MARK_MASQ_BIT,
        external_set_mark_chain: None,
        conditions_v4: Vec::new(),
        conditions_v6: Vec::new(),
        on_conflict: OnConflict::Refuse,
        netns: Some("here".to_owned()),
        netns_exists: |netns| netns == "here",
    }
}

fn publish(attachment: &Attachment, published: &Published) -> cni_types::Result<()> {
    portmap::add(Backend::Iptables, attachment, published)
}

fn unpublish(attachment: &Attachment) {
    portmap::del(attachment, &Hints::default()).unwrap();
}

fn masquerade_of(address: &str) -> Masquerade {
    Masquerade {
        addresses: vec![address.parse().unwrap()],
        exclude: vec!["192.0.2.0/24".parse().unwrap()],
    }
}

/// The nat table without counters and comments.
fn nat(w: &World) -> String {
    let text = w.sh("iptables-save -t nat; ip6tables-save -t nat");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| line.strip_suffix(" [0:0]").unwrap_or(line).to_owned() + "\n")
        .collect()
}

fn records(w: &World) -> String {
    w.sh("find /run/cni -name '*.json'")
}

fn valid(attachments: &[&Attachment]) -> BTreeSet<(ContainerId, IfName)> {
    attachments
        .iter()
        .map(|a| (a.container_id.clone(), a.ifname.clone()))
        .collect()
}

#[test]
fn two_interfaces_of_a_container_on_one_network_keep_their_own() {
    testkit::world(|w| {
        let (eth0, eth1) = (attachment("net1", "c1", "eth0"), attachment("net1", "c1", "eth1"));
        publish(&eth0, &published("10.1.0.2/24", &[8001])).unwrap();
        masquerade::add(Backend::Iptables, &eth0, &masquerade_of("10.1.0.2/24")).unwrap();
        let with_eth0 = nat(w);
        publish(&eth1, &published("10.1.0.3/24", &[8002])).unwrap();
        masquerade::add(Backend::Iptables, &eth1, &masquerade_of("10.1.0.3/24")).unwrap();
        assert_ne!(nat(w), with_eth0);

        unpublish(&eth1);
        masquerade::del(&eth1).unwrap();
        assert_eq!(nat(w), with_eth0);
        portmap::check(Backend::Iptables, &eth0, &published("10.1.0.2/24", &[8001])).unwrap();
        masquerade::check(Backend::Iptables, &eth0, &masquerade_of("10.1.0.2/24")).unwrap();

        for _ in 0..2 {
            unpublish(&eth0);
            masquerade::del(&eth0).unwrap();
        }
        assert!(!nat(w).contains("c1"), "{}", nat(w));
        assert!(!nat(w).contains("CNI-DN-"), "{}", nat(w));
        assert_eq!(records(w), "");
    });
}

/// The masquerading of a container's interfaces on one network is one chain, to which a rule for each address leads.
#[test]
fn masquerading_of_an_interface_that_the_reference_attached_outlives_our_own_of_another() {
    testkit::world(|w| {
        let [eth0, eth1] = ["eth0", "eth1"].map(|ifname| attachment("net1", "c1", ifname));
        masquerade::add(Backend::Iptables, &eth0, &masquerade_of("10.1.0.2/24")).unwrap();
        let alone = nat(w);
        // As the reference leaves it: the same rules, and no record.
        w.sh("rm -r /run/cni/ferrule-iptables");
        masquerade::add(Backend::Iptables, &eth1, &masquerade_of("10.1.0.3/24")).unwrap();
        masquerade::del(&eth1).unwrap();
        assert_eq!(nat(w), alone);

        masquerade::add(Backend::Iptables, &eth1, &masquerade_of("10.1.0.3/24")).unwrap();
        masquerade::del(&eth0).unwrap();
        assert!(!nat(w).contains("10.1.0.2"), "{}", nat(w));
        masquerade::check(Backend::Iptables, &eth1, &masquerade_of("10.1.0.3/24")).unwrap();
        masquerade::del(&eth1).unwrap();
        assert!(!nat(w).contains("10.1.0."), "{}", nat(w));
    });
}

#[test]
fn adding_again_replaces_what_was_there() {
    testkit::world(|w| {
        let eth0 = attachment("net1", "c1", "eth0");
        publish(&eth0, &published("10.1.0.2/24", &[8001, 8002])).unwrap();
        let first = nat(w);
        publish(&eth0, &published("10.1.0.2/24", &[8001, 8002])).unwrap();
        assert_eq!(nat(w), first);
        // Another port, another address, and then another family.
        publish(&eth0, &published("10.1.0.9/24", &[8002])).unwrap();
        assert!(!nat(w).contains("8001") && !nat(w).contains("10.1.0.2"), "{}", nat(w));
        publish(&eth0, &published("fd00::2/64", &[8002])).unwrap();
        assert!(
            !nat(w).contains("10.1.0.9") && nat(w).contains("[fd00::2]:80"),
            "{}",
            nat(w)
        );
        unpublish(&eth0);
        assert!(!nat(w).contains("CNI-DN-"), "{}", nat(w));
    });
}

#[test]
fn adding_with_the_other_backend_moves_everything_there() {
    testkit::world(|w| {
        let eth0 = attachment("net1", "c1", "eth0");
        let asked = published("10.1.0.2/24", &[8001]);
        for backend in [Backend::Iptables, Backend::Nftables, Backend::Iptables] {
            portmap::add(backend, &eth0, &asked).unwrap();
            masquerade::add(backend, &eth0, &masquerade_of("10.1.0.2/24")).unwrap();
            let is_here = backend == Backend::Iptables;
            assert_eq!(nat(w).contains("10.1.0.2"), is_here, "{backend:?}: {}", nat(w));
            let natively = w.sh("nft list ruleset inet");
            assert_eq!(natively.contains("10.1.0.2"), !is_here, "{backend:?}: {natively}");
        }
    });
}

#[test]
fn conditions_are_found_again_in_iptables_own_words() {
    testkit::world(|w| {
        let eth0 = attachment("net1", "c1", "eth0");
        let asked = Published {
            conditions_v4: ["-s", "192.0.2.7", "-m", "comment", "--comment", "a \"b\" c"]
                .map(str::to_owned)
                .to_vec(),
            ..published("10.1.0.2/24", &[8001])
        };
        publish(&eth0, &asked).unwrap();
        assert!(
            nat(w).contains("-A CNI-HOSTPORT-DNAT -s 192.0.2.7/32 -p tcp"),
            "{}",
            nat(w)
        );
        publish(&eth0, &asked).unwrap();
        assert_eq!(nat(w).matches("-A CNI-HOSTPORT-DNAT").count(), 1, "{}", nat(w));
        portmap::check(Backend::Iptables, &eth0, &asked).unwrap();
        let sibling = attachment("net1", "c1", "eth1");
        publish(&sibling, &published("10.1.0.3/24", &[8009])).unwrap();
        unpublish(&eth0);
        assert!(!nat(w).contains("8001") && nat(w).contains("8009"), "{}", nat(w));
    });
}

#[test]
fn rules_that_somebody_flushed_come_back_with_add_and_are_not_missed_by_del() {
    testkit::world(|w| {
        let eth0 = attachment("net1", "c1", "eth0");
        let asked = published("10.1.0.2/24", &[8001]);
        publish(&eth0, &asked).unwrap();
        let full = nat(w);
        for _ in 0..2 {
            w.sh("iptables -t nat -F; iptables -t nat -X");
            assert!(portmap::check(Backend::Iptables, &eth0, &asked).is_err());
            publish(&eth0, &asked).unwrap();
            assert_eq!(nat(w), full);
        }
        w.sh("iptables -t nat -F; iptables -t nat -X");
        unpublish(&eth0);
        assert_eq!(records(w), "");
    });
}

#[test]
fn a_failed_add_leaves_nothing() {
    testkit::world(|w| {
        let eth0 = attachment("net1", "c1", "eth0");
        let mut asked = published("10.1.0.2/24", &[8001]);
        asked.addresses.push("fd00::2/64".parse().unwrap());
        asked.external_set_mark_chain = Some("NOT-HERE".to_owned());
        // IPv4 succeeds, IPv6 does not.
        w.sh("iptables -t nat -N NOT-HERE");
        let error = publish(&eth0, &asked).unwrap_err();
        assert!(error.msg.contains("ip6tables-restore"), "{error}");
        assert!(!nat(w).contains("CNI-DN-"), "{}", nat(w));
        assert_eq!(records(w), "");
    });
}

#[test]
fn a_failed_second_add_leaves_what_the_first_one_did() {
    testkit::world(|w| {
        let eth0 = attachment("net1", "c1", "eth0");
        let mut first = published("10.1.0.2/24", &[8001]);
        first.addresses.push("fd00::2/64".parse().unwrap());
        publish(&eth0, &first).unwrap();
        let rules = || {
            w.sh("iptables-save -t nat; ip6tables-save -t nat")
                .lines()
                .filter(|line| line.starts_with("-A"))
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let (before, recorded) = (rules(), records(w));

        let mut second = published("10.1.0.2/24", &[8001, 8002]);
        second.addresses.clone_from(&first.addresses);
        second.external_set_mark_chain = Some("NOT-HERE".to_owned());
        w.sh("iptables -t nat -N NOT-HERE");
        assert!(publish(&eth0, &second).unwrap_err().msg.contains("ip6tables-restore"));
        assert_eq!(rules(), before);
        assert_eq!(records(w), recorded);

        // The IPv4 rules go at first, and come back.
        second.addresses.remove(0);
        second.external_set_mark_chain = Some("NOR-THERE".to_owned());
        assert!(publish(&eth0, &second).unwrap_err().msg.contains("ip6tables-restore"));
        assert_eq!(rules(), before);
        portmap::check(Backend::Iptables, &eth0, &first).unwrap();
        unpublish(&eth0);
        assert_eq!(records(w), "");
        assert!(!nat(w).contains("CNI-DN-"), "{}", nat(w));
    });
}

#[test]
fn check_sees_a_changed_target() {
    testkit::world(|w| {
        let eth0 = attachment("net1", "c1", "eth0");
        let asked = published("10.1.0.2/24", &[8001]);
        publish(&eth0, &asked).unwrap();
        portmap::check(Backend::Iptables, &eth0, &asked).unwrap();
        w.sh("iptables-save -t nat | sed s/10.1.0.2:80/10.1.0.2:81/ | iptables-restore");
        let error = portmap::check(Backend::Iptables, &eth0, &asked).unwrap_err();
        assert!(error.msg.contains("10.1.0.2:80"), "{error}");
        let other = published("10.1.0.2/24", &[8002]);
        assert!(portmap::check(Backend::Iptables, &eth0, &other).is_err());
    });
}

#[test]
fn a_living_holder_keeps_its_port() {
    testkit::world(|w| {
        let (x, y) = (attachment("net1", "x", "eth0"), attachment("net2", "y", "eth0"));
        publish(&x, &published("10.1.0.2/24", &[8000])).unwrap();
        let before = nat(w);
        let error = publish(&y, &published("10.2.0.2/24", &[8000])).unwrap_err();
        assert_eq!(error.code, Code::TRY_AGAIN_LATER);
        assert_eq!(
            error.msg,
            "host port 8000/tcp is held by container x interface eth0 on network net1"
        );
        assert_eq!(nat(w), before);

        // A particular address and another protocol are other ports.
        let mut apart = published("10.2.0.2/24", &[8000, 8000]);
        apart.mappings[0].host_ip = Some("192.0.2.1".parse().unwrap());
        apart.mappings[1].protocol = Protocol::Udp;
        publish(&y, &apart).unwrap();
        unpublish(&y);

        let replace = Published {
            on_conflict: OnConflict::Replace,
            ..published("10.2.0.2/24", &[8000])
        };
        publish(&y, &replace).unwrap();
        let first = w.sh("iptables -t nat -S CNI-HOSTPORT-DNAT 1");
        assert!(first.contains("id: \\\"y\\\""), "{first}");
        unpublish(&y);
        assert_eq!(nat(w), before);
    });
}

#[test]
fn a_port_of_the_dead_or_unknown_goes_to_the_last_writer() {
    testkit::world(|w| {
        let y = attachment("net1", "y", "eth0");
        for netns in [Some("gone".to_owned()), None] {
            let x = attachment("net1", "x", "eth0");
            publish(
                &x,
                &Published {
                    netns,
                    ..published("10.1.0.2/24", &[8000])
                },
            )
            .unwrap();
            publish(&y, &published("10.1.0.3/24", &[8000])).unwrap();
            assert!(w.sh("iptables -t nat -S CNI-HOSTPORT-DNAT 1").contains("id: \\\"y\\\""));
            // The late DEL of the dead one leaves the living one alone.
            unpublish(&x);
            portmap::check(Backend::Iptables, &y, &published("10.1.0.3/24", &[8000])).unwrap();
            unpublish(&y);
        }
    });
}

#[test]
fn one_container_may_publish_a_port_through_several_networks() {
    testkit::world(|w| {
        let (one, two) = (attachment("net1", "c1", "eth0"), attachment("net2", "c1", "eth1"));
        publish(&one, &published("10.1.0.2/24", &[8000])).unwrap();
        publish(&two, &published("10.2.0.2/24", &[8000])).unwrap();
        unpublish(&one);
        assert!(nat(w).contains("--to-destination 10.2.0.2:80"), "{}", nat(w));
        portmap::check(Backend::Iptables, &two, &published("10.2.0.2/24", &[8000])).unwrap();
    });
}

#[test]
fn gc_takes_what_is_not_valid_on_its_network_only() {
    testkit::world(|w| {
        let living = attachment("net1", "c1", "eth0");
        let stale = attachment("net1", "c1", "eth1");
        let dead = attachment("net1", "c2", "eth0");
        let foreign = attachment("net2", "c3", "eth0");
        let all = [
            (&living, "10.1.0.2/24"),
            (&stale, "10.1.0.3/24"),
            (&dead, "10.1.0.4/24"),
            (&foreign, "10.2.0.2/24"),
        ];
        for (port, (a, address)) in (8000..).zip(all) {
            publish(a, &published(address, &[port])).unwrap();
            masquerade::add(Backend::Iptables, a, &masquerade_of(address)).unwrap();
        }
        // What the reference wrote has no record: the container alone decides.
        w.sh("rm -r /run/cni/ferrule-iptables/net2");

        for _ in 0..2 {
            portmap::gc(&living.network, &valid(&[&living])).unwrap();
            masquerade::gc(&living.network, &valid(&[&living])).unwrap();
        }
        let left = nat(w);
        for gone in ["10.1.0.3", "10.1.0.4", "8001", "8002"] {
            assert!(!left.contains(gone), "{gone}: {left}");
        }
        for kept in ["10.1.0.2", "10.2.0.2", "8000", "8003"] {
            assert!(left.contains(kept), "{kept}: {left}");
        }
        portmap::gc(&foreign.network, &valid(&[&foreign])).unwrap();
        assert_eq!(nat(w), left);
        portmap::gc(&foreign.network, &valid(&[])).unwrap();
        masquerade::gc(&foreign.network, &valid(&[])).unwrap();
        assert!(!nat(w).contains("c3"), "{}", nat(w));
    });
}

#[test]
fn cleaning_where_nothing_is_makes_nothing() {
    testkit::world(|w| {
        let nobody = attachment("net1", "c1", "eth0");
        unpublish(&nobody);
        masquerade::del(&nobody).unwrap();
        portmap::gc(&nobody.network, &valid(&[])).unwrap();
        masquerade::gc(&nobody.network, &valid(&[])).unwrap();
        assert_eq!(w.sh("nft list ruleset; ls -A /run | grep -v -e netns -e test || :"), "");
    });
}

#[test]
fn parallel_first_adds_make_each_shared_rule_once() {
    testkit::world(|w| {
        thread::scope(|scope| {
            for n in 0..8u16 {
                scope.spawn(move || {
                    let address = format!("10.1.0.{}/24", n + 2);
                    publish(
                        &attachment("net1", &format!("c{n}"), "eth0"),
                        &published(&address, &[8000 + n]),
                    )
                    .unwrap();
                });
            }
        });
        let nat = nat(w);
        for once in [
            "-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT",
            "-A OUTPUT -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT",
            "-j CNI-HOSTPORT-MASQ",
            "-A CNI-HOSTPORT-SETMARK",
            "-A CNI-HOSTPORT-MASQ",
        ] {
            assert_eq!(nat.matches(once).count(), 1, "{once}: {nat}");
        }
        assert_eq!(nat.matches("-j DNAT").count(), 8, "{nat}");
    });
}

#[test]
fn the_other_implementation_and_older_chains_are_swept_too() {
    testkit::world(|w| {
        // As versions before 0.8 of the reference wrote them, with the legacy programs.
        let old = "*nat\n:CNI-DN-c2d892b58e87e28a12fe6 - [0:0]\n:CNI-SN-c2d892b58e87e28a12fe6 - [0:0]\n\
            :CNI-HOSTPORT-DNAT - [0:0]\n:CNI-HOSTPORT-SNAT - [0:0]\n\
            -A CNI-HOSTPORT-DNAT -m comment --comment \"dnat name: \\\"net1\\\" id: \\\"c1\\\"\" -j CNI-DN-c2d892b58e87e28a12fe6\n\
            -A CNI-HOSTPORT-SNAT -m comment --comment \"snat name: \\\"net1\\\" id: \\\"c1\\\"\" -j CNI-SN-c2d892b58e87e28a12fe6\n\
            -A CNI-DN-c2d892b58e87e28a12fe6 -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.1.0.2:80\n\
            -A CNI-SN-c2d892b58e87e28a12fe6 -s 127.0.0.1/32 -d 10.1.0.2/32 -j MASQUERADE\nCOMMIT\n";
        std::fs::write(w.tmp().join("old"), old).unwrap();
        w.sh(&format!("iptables-legacy-restore < {}", w.tmp().join("old").display()));
        unpublish(&attachment("net1", "c1", "eth0"));
        let left = w.sh("iptables-legacy-save -t nat");
        assert!(!left.contains("c2d892b58e87e28a12fe6"), "{left}");
        assert!(left.contains(":CNI-HOSTPORT-SNAT"), "shared chains stay: {left}");
    });
}

#[test]
fn ip6tables_is_needed_for_ipv6_only() {
    testkit::world(|w| {
        w.sh("mkdir /run/sbin; cp -a /usr/sbin/iptables* /usr/sbin/xtables* /usr/sbin/nft /run/sbin");
        w.sh("mount --bind /run/sbin /usr/sbin");
        let eth0 = attachment("net1", "c1", "eth0");
        publish(&eth0, &published("10.1.0.2/24", &[8000])).unwrap();
        unpublish(&eth0);
        let error = publish(&eth0, &published("fd00::2/64", &[8000])).unwrap_err();
        assert!(
            error.msg.starts_with("ip6tables-save is needed for IPv6 rules"),
            "{error}"
        );
    });
}
