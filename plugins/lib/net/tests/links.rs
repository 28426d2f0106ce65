//! Links, asserted through our own view and through `ip -j`.
#![allow(clippy::unwrap_used, reason = "a test stops where something is missing")]

use std::fs::File;
use std::os::fd::AsFd;

use cni_types::{IfName, MacAddr};
use net::{BridgePort, LinkChange, LinkFilter, Net, NewBridge, NewVeth, VethPeer};
use serde_json::Value;
use testkit::{World, world};

const BRIDGE_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const HOST_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
const POD_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 3]);

fn name(text: &str) -> IfName {
    text.parse().unwrap()
}

fn bridge<'a>(name: &'a IfName) -> NewBridge<'a> {
    NewBridge {
        name,
        mac: BRIDGE_MAC,
        mtu: None,
        vlan_filtering: None,
        up: true,
    }
}

fn pair<'a>(host: &'a IfName, peer: &'a IfName) -> NewVeth<'a> {
    NewVeth {
        name: host,
        mac: HOST_MAC,
        mtu: None,
        master: None,
        up: false,
        peer: VethPeer {
            name: peer,
            mac: POD_MAC,
            netns: None,
        },
    }
}

/// One, where the kernel is of today.
fn requests_for_a_link() -> usize {
    if testkit::echoes_new_links() { 1 } else { 2 }
}

fn ip(w: &World, link: &str) -> Value {
    let all: Value = serde_json::from_str(&w.sh(&format!("ip -d -j link show dev {link}"))).unwrap();
    all[0].clone()
}

#[test]
fn a_bridge_is_made_with_its_mac_and_mtu_at_once() {
    world(|w| {
        let mut host = Net::host().unwrap();
        let cni0 = name("cni0");
        let made = host
            .create_bridge(&NewBridge {
                mtu: Some(1400),
                ..bridge(&cni0)
            })
            .unwrap();
        assert_eq!(host.requests(), requests_for_a_link());

        let seen = host.link("cni0").unwrap().unwrap();
        assert_eq!((made.index, &made.name, made.mac), (seen.index, &seen.name, seen.mac));
        assert_eq!((seen.mac, seen.mtu, seen.up), (Some(BRIDGE_MAC), 1400, true));
        assert_eq!(seen.kind.as_deref(), Some("bridge"));
        assert!(seen.bridge.is_some());

        let ip = ip(w, "cni0");
        assert_eq!(ip["address"], "02:00:00:00:00:01");
        assert_eq!(ip["mtu"], 1400);
        assert_eq!(ip["linkinfo"]["info_kind"], "bridge");
        assert!(ip["flags"].as_array().unwrap().contains(&"UP".into()));
    });
}

#[test]
fn a_bridge_can_be_born_down() {
    world(|_| {
        let mut host = Net::host().unwrap();
        assert!(
            !host
                .create_bridge(&NewBridge {
                    up: false,
                    ..bridge(&name("cni0"))
                })
                .unwrap()
                .up
        );
        assert!(!host.link("cni0").unwrap().unwrap().up);
    });
}

#[test]
fn a_veth_is_born_in_both_namespaces_at_once() {
    world(|w| {
        let netns = File::open(w.netns("pod")).unwrap();
        let mut host = Net::host().unwrap();
        let mut pod = Net::enter(netns.as_fd()).unwrap();
        let (cni0, veth, eth0) = (name("cni0"), name("veth0"), name("eth0"));
        let master = host.create_bridge(&bridge(&cni0)).unwrap().index;
        let before = host.requests();

        let mut wanted = pair(&veth, &eth0);
        (wanted.master, wanted.mtu, wanted.up) = (Some(master), Some(1300), true);
        wanted.peer.netns = Some(netns.as_fd());
        let made = host.create_veth(&wanted).unwrap();
        assert_eq!(host.requests(), before + requests_for_a_link());

        let peer = pod.link("eth0").unwrap().unwrap();
        assert_eq!(made.peer_index, Some(peer.index));
        assert_eq!(
            (peer.mac, peer.mtu, peer.up, peer.peer_index),
            (Some(POD_MAC), 1300, false, Some(made.index))
        );
        assert!(peer.link_netnsid.is_some());
        let end = host.link_by_index(made.index).unwrap().unwrap();
        assert_eq!(
            (end.mac, end.mtu, end.up, end.master),
            (Some(HOST_MAC), 1300, true, Some(master))
        );

        pod.set_up(peer.index).unwrap();
        assert!(pod.link("eth0").unwrap().unwrap().running);
        let ip = ip(w, "veth0");
        assert_eq!(ip["address"], "02:00:00:00:00:02");
        assert_eq!(
            (&ip["mtu"], &ip["master"], &ip["operstate"]),
            (&1300.into(), &"cni0".into(), &"UP".into())
        );
        assert_eq!(w.sh_in("pod", "cat /proc/net/dev | grep -c eth0"), "1");
    });
}

#[test]
fn a_veth_can_have_both_ends_here() {
    world(|_| {
        let mut host = Net::host().unwrap();
        let made = host.create_veth(&pair(&name("port"), &name("cni0.100"))).unwrap();
        let peer = host.link("cni0.100").unwrap().unwrap();
        assert_eq!((made.peer_index, made.link_netnsid), (Some(peer.index), None));
    });
}

#[test]
fn a_name_that_is_taken_is_told() {
    world(|_| {
        let mut host = Net::host().unwrap();
        let (one, two) = (name("one"), name("two"));
        host.create_veth(&pair(&one, &two)).unwrap();
        let error = host.create_bridge(&bridge(&one)).unwrap_err();
        assert!(error.is_exists());
        assert_eq!(error.to_string(), "create bridge \"one\": File exists (EEXIST)");
        let error = host.create_veth(&pair(&name("three"), &two)).unwrap_err();
        assert!(error.is_exists());
        assert_eq!(host.link("three").unwrap(), None);
    });
}

#[test]
fn what_is_not_there_is_none_and_deleted_already() {
    world(|_| {
        let mut host = Net::host().unwrap();
        assert_eq!(host.link("nothing").unwrap(), None);
        assert_eq!(host.link("a name of more than fifteen bytes").unwrap(), None);
        assert_eq!(host.link("lo\0").unwrap(), None);
        assert_eq!(host.link("").unwrap(), None);
        assert_eq!(host.link_by_index(4711).unwrap(), None);
        assert_eq!(host.link_by_index(0).unwrap(), None);
        assert!(!host.delete_link(4711).unwrap());
        assert!(!host.delete_link_named(&name("nothing")).unwrap());
    });
}

#[test]
fn deleting_one_end_of_a_veth_deletes_the_other() {
    world(|w| {
        let mut host = Net::host().unwrap();
        host.create_veth(&pair(&name("one"), &name("two"))).unwrap();
        assert!(host.delete_link_named(&name("two")).unwrap());
        let index = host.create_veth(&pair(&name("one"), &name("two"))).unwrap().index;
        assert!(host.delete_link(index).unwrap());
        assert_eq!(w.sh("ls /sys/class/net"), "lo");
        let error = host.delete_link(1).unwrap_err();
        assert!(error.is_unsupported());
        assert!(error.to_string().starts_with("delete link \"lo\": "), "{error}");
    });
}

#[test]
fn settings_change_together() {
    world(|w| {
        let mut host = Net::host().unwrap();
        let index = host.create_veth(&pair(&name("one"), &name("two"))).unwrap().index;
        let change = LinkChange {
            up: Some(true),
            mac: Some(BRIDGE_MAC),
            mtu: Some(1280),
            tx_queue_len: Some(77),
            promiscuous: Some(true),
            all_multicast: Some(true),
            alias: Some("made by a test"),
            ..LinkChange::default()
        };
        host.change_link(index, &change).unwrap();
        let link = host.link_by_index(index).unwrap().unwrap();
        assert!(link.up && link.promiscuous && link.all_multicast);
        assert_eq!((link.mac, link.mtu, link.tx_queue_len), (Some(BRIDGE_MAC), 1280, 77));
        assert_eq!(link.alias.as_deref(), Some("made by a test"));
        let seen = ip(w, "one");
        assert_eq!(
            (&seen["ifalias"], &seen["txqlen"]),
            (&"made by a test".into(), &77.into())
        );
        assert_eq!((&seen["promiscuity"], &seen["allmulti"]), (&1.into(), &1.into()));

        let change = LinkChange {
            up: Some(false),
            promiscuous: Some(false),
            all_multicast: Some(false),
            alias: Some(""),
            ..LinkChange::default()
        };
        host.change_link(index, &change).unwrap();
        let link = host.link_by_index(index).unwrap().unwrap();
        assert!(!link.up && !link.promiscuous && !link.all_multicast);
        assert_eq!((link.alias, link.mtu), (None, 1280));
        assert_eq!(ip(w, "one").get("ifalias"), None);
    });
}

#[test]
fn a_link_is_renamed_and_moved() {
    world(|w| {
        let netns = File::open(w.netns("pod")).unwrap();
        let mut host = Net::host().unwrap();
        let index = host.create_veth(&pair(&name("one"), &name("two"))).unwrap().index;
        let eth0 = name("eth0");
        let change = LinkChange {
            name: Some(&eth0),
            netns: Some(netns.as_fd()),
            ..LinkChange::default()
        };
        host.change_link(index, &change).unwrap();
        assert_eq!(host.link_by_index(index).unwrap(), None);
        let mut pod = Net::enter(netns.as_fd()).unwrap();
        assert_eq!(pod.link("eth0").unwrap().unwrap().mac, Some(HOST_MAC));
        assert_eq!(w.sh_in("pod", "ip -br link show dev eth0 | cut -d@ -f1"), "eth0");
    });
}

#[test]
fn a_refused_change_names_change_link_and_reason() {
    world(|_| {
        let mut host = Net::host().unwrap();
        let index = host.create_veth(&pair(&name("one"), &name("two"))).unwrap().index;
        let error = host
            .change_link(
                index,
                &LinkChange {
                    mtu: Some(1),
                    ..LinkChange::default()
                },
            )
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "set MTU of \"one\": Invalid argument (EINVAL): mtu less than device minimum"
        );
        let error = host.set_up(4711).unwrap_err();
        assert!(error.is_not_found());
        assert_eq!(error.to_string(), "set up link 4711: No such device (ENODEV)");
        for (length, fits) in [(255, true), (256, false), (70_000, false)] {
            let text = "x".repeat(length);
            let change = LinkChange {
                alias: Some(&text),
                ..LinkChange::default()
            };
            assert_eq!(host.change_link(index, &change).is_ok(), fits, "{length}");
        }
    });
}

#[test]
fn lists_are_filtered_by_master_and_kind() {
    world(|_| {
        let mut host = Net::host().unwrap();
        let master = host.create_bridge(&bridge(&name("cni0"))).unwrap().index;
        let (one, two) = (name("one"), name("two"));
        host.create_veth(&NewVeth {
            master: Some(master),
            ..pair(&one, &two)
        })
        .unwrap();
        let names = |links: Vec<net::Link>| -> Vec<String> {
            let mut names: Vec<String> = links.into_iter().map(|link| link.name).collect();
            names.sort();
            names
        };
        assert_eq!(
            names(host.links(LinkFilter::default()).unwrap()),
            ["cni0", "lo", "one", "two"]
        );
        let ports = LinkFilter {
            master: Some(master),
            kind: None,
        };
        assert_eq!(names(host.links(ports).unwrap()), ["one"]);
        let veths = LinkFilter {
            master: None,
            kind: Some("veth"),
        };
        assert_eq!(names(host.links(veths).unwrap()), ["one", "two"]);
        let unknown = LinkFilter {
            master: None,
            kind: Some("no-such-kind"),
        };
        assert!(host.links(unknown).unwrap().is_empty());

        let one = host_index(&mut host, "one");
        host.change_link(
            one,
            &LinkChange {
                master: Some(0),
                ..LinkChange::default()
            },
        )
        .unwrap();
        assert!(host.links(ports).unwrap().is_empty());
    });
}

fn host_index(host: &mut Net, name: &str) -> u32 {
    host.link(name).unwrap().unwrap().index
}

#[test]
fn port_options_are_set_and_read() {
    world(|w| {
        let mut host = Net::host().unwrap();
        let master = host.create_bridge(&bridge(&name("cni0"))).unwrap().index;
        let (one, two) = (name("one"), name("two"));
        let port = host
            .create_veth(&NewVeth {
                master: Some(master),
                ..pair(&one, &two)
            })
            .unwrap()
            .index;
        let options = |host: &mut Net| host.link_by_index(port).unwrap().unwrap().bridge_port.unwrap();
        let before = options(&mut host);
        assert!(!before.hairpin && !before.isolated && before.learning);

        let wanted = BridgePort {
            hairpin: Some(true),
            isolated: Some(true),
            learning: Some(false),
        };
        host.set_bridge_port(port, &wanted).unwrap();
        let after = options(&mut host);
        assert!(after.hairpin && after.isolated && !after.learning);
        let seen = &ip(w, "one")["linkinfo"]["info_slave_data"];
        assert_eq!(
            (&seen["hairpin"], &seen["isolated"], &seen["learning"]),
            (&true.into(), &true.into(), &false.into())
        );

        host.set_bridge_port(
            port,
            &BridgePort {
                hairpin: Some(false),
                ..BridgePort::default()
            },
        )
        .unwrap();
        let after = options(&mut host);
        assert!(!after.hairpin && after.isolated);
        let stranger = host_index(&mut host, "two");
        assert!(host.set_bridge_port(stranger, &wanted).is_err());
    });
}

#[test]
fn a_list_of_many_links_is_whole() {
    world(|w| {
        w.sh("for i in $(seq 300); do echo link add v$i type veth peer name w$i; done | ip -batch -");
        let mut host = Net::host().unwrap();
        assert_eq!(host.links(LinkFilter::default()).unwrap().len(), 601);
    });
}
