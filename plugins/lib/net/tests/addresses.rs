//! Addresses and waiting, asserted through our own view and through `ip -j`.
#![allow(clippy::unwrap_used, reason = "a test stops where something is missing")]

use std::fs::File;
use std::os::fd::AsFd;
use std::time::Duration;

use cni_types::{Cidr, MacAddr};
use net::{Net, NewAddress, NewVeth, Settled, VethPeer};
use serde_json::Value;
use testkit::{World, world};

const LONG: Duration = Duration::from_secs(30);

fn cidr(text: &str) -> Cidr {
    text.parse().unwrap()
}

fn with_dad(text: &str) -> NewAddress {
    NewAddress {
        cidr: cidr(text),
        no_dad: false,
    }
}

fn no_dad(text: &str) -> NewAddress {
    NewAddress {
        cidr: cidr(text),
        no_dad: true,
    }
}

/// A veth pair, `one` and `two`, both down; returns their indices.
fn pair(host: &mut Net) -> (u32, u32) {
    let (one, two) = ("one".parse().unwrap(), "two".parse().unwrap());
    let made = host
        .create_veth(&NewVeth {
            name: &one,
            mac: MacAddr([2, 0, 0, 0, 0, 1]),
            mtu: None,
            master: None,
            up: false,
            peer: VethPeer {
                name: &two,
                mac: MacAddr([2, 0, 0, 0, 0, 2]),
                netns: None,
            },
        })
        .unwrap();
    (made.index, made.peer_index.unwrap())
}

fn ip(w: &World, link: &str) -> Vec<Value> {
    let all: Value = serde_json::from_str(&w.sh(&format!("ip -j addr show dev {link}"))).unwrap();
    all[0]["addr_info"].as_array().unwrap().clone()
}

#[test]
fn ipv4_gets_the_broadcast_address_that_the_reference_sets() {
    world(|w| {
        let mut host = Net::host().unwrap();
        let (one, two) = pair(&mut host);
        for address in ["10.1.0.5/16", "10.2.0.5/31", "10.3.0.5/32"] {
            host.add_address(one, with_dad(address)).unwrap();
        }
        host.add_address(two, with_dad("10.9.0.1/24")).unwrap();
        let seen = host.addresses(one).unwrap();
        let expected = [
            ("10.1.0.5/16", Some("10.1.255.255")),
            ("10.2.0.5/31", None),
            ("10.3.0.5/32", None),
        ];
        assert_eq!(seen.len(), expected.len());
        for (address, broadcast) in expected {
            let broadcast = broadcast.map(|text| text.parse().unwrap());
            let found = seen.iter().find(|seen| seen.cidr == cidr(address)).unwrap();
            assert_eq!(
                (found.broadcast, found.index, found.flags.permanent),
                (broadcast, one, true),
                "{address}"
            );
        }
        let ip = ip(w, "one");
        assert_eq!(
            (&ip[0]["local"], &ip[0]["broadcast"]),
            (&"10.1.0.5".into(), &"10.1.255.255".into())
        );
        assert_eq!((&ip[0]["scope"], &ip[0]["prefixlen"]), (&"global".into(), &16.into()));
    });
}

#[test]
fn ipv6_is_usable_at_once_without_detection() {
    world(|w| {
        let mut host = Net::host().unwrap();
        let (one, two) = pair(&mut host);
        host.set_up(one).unwrap();
        host.set_up(two).unwrap();
        host.add_address(one, no_dad("fd00::5/64")).unwrap();
        let seen = host.addresses(one).unwrap();
        let found = seen.iter().find(|seen| seen.cidr == cidr("fd00::5/64")).unwrap();
        assert!(found.flags.no_dad && !found.flags.tentative);
        let ip = ip(w, "one");
        let found = ip.iter().find(|seen| seen["local"] == "fd00::5").unwrap();
        assert_eq!((&found["nodad"], found.get("tentative")), (&true.into(), None));
    });
}

#[test]
fn an_address_that_is_there_is_told_and_one_that_is_gone_is_deleted_already() {
    world(|w| {
        let mut host = Net::host().unwrap();
        let (one, _) = pair(&mut host);
        for address in ["10.1.0.5/16", "fd00::5/64"] {
            host.add_address(one, no_dad(address)).unwrap();
            let error = host.add_address(one, no_dad(address)).unwrap_err();
            assert!(error.is_exists());
            let begin = format!("add address {address} to \"one\": File exists (EEXIST)");
            assert!(error.to_string().starts_with(&begin), "{error}");
            assert!(host.delete_address(one, cidr(address)).unwrap());
            assert!(!host.delete_address(one, cidr(address)).unwrap());
            assert!(!host.delete_address(4711, cidr(address)).unwrap());
            assert!(host.add_address(4711, no_dad(address)).unwrap_err().is_not_found());
        }
        assert!(host.addresses(one).unwrap().is_empty());
        assert!(host.addresses(4711).unwrap().is_empty());
        assert!(ip(w, "one").is_empty());
    });
}

#[test]
fn detection_is_waited_for() {
    world(|_| {
        let mut host = Net::host().unwrap();
        let (one, two) = pair(&mut host);
        host.set_up(one).unwrap();
        host.add_address(one, with_dad("fd00::5/64")).unwrap();
        let tentative = |host: &mut Net| host.addresses(one).unwrap().iter().any(|a| a.flags.tentative);
        // Detection does not begin without a carrier.
        assert!(tentative(&mut host));
        std::thread::scope(|scope| {
            // A thread inherits the namespaces of the one that makes it.
            let other = scope.spawn(|| Net::host().unwrap().set_up(two).unwrap());
            assert_eq!(host.wait_settled(one, LONG).unwrap(), Settled::Ready);
            other.join().unwrap();
        });
        assert!(!tentative(&mut host));
    });
}

#[test]
fn a_duplicate_is_found_from_outside_its_namespace() {
    world(|w| {
        let netns = File::open(w.netns("pod")).unwrap();
        let mut host = Net::host().unwrap();
        let mut pod = Net::enter(netns.as_fd()).unwrap();
        w.sh("ip link add one type veth peer name two netns pod; ip link set one up");
        let one = host.link("one").unwrap().unwrap().index;
        let two = pod.link("two").unwrap().unwrap().index;
        pod.set_up(two).unwrap();
        host.add_address(one, no_dad("fd00::5/64")).unwrap();
        pod.add_address(two, with_dad("fd00::5/64")).unwrap();
        assert_eq!(
            pod.wait_settled(two, LONG).unwrap(),
            Settled::Duplicate(vec![cidr("fd00::5/64")])
        );
    });
}

#[test]
fn detection_without_carrier_runs_into_the_deadline() {
    world(|_| {
        let mut host = Net::host().unwrap();
        let (one, _) = pair(&mut host);
        host.add_address(one, with_dad("fd00::5/64")).unwrap();
        host.set_up(one).unwrap();
        let settled = host.wait_settled(one, Duration::from_millis(20)).unwrap();
        assert_eq!(settled, Settled::TimedOut(vec![cidr("fd00::5/64")]));
    });
}

#[test]
fn carrier_is_waited_for() {
    world(|_| {
        let mut host = Net::host().unwrap();
        let (one, two) = pair(&mut host);
        host.set_up(one).unwrap();
        assert!(!host.wait_running(one, Duration::from_millis(20)).unwrap());
        std::thread::scope(|scope| {
            let other = scope.spawn(|| Net::host().unwrap().set_up(two).unwrap());
            assert!(host.wait_running(one, LONG).unwrap());
            other.join().unwrap();
        });
        assert!(host.wait_running(4711, LONG).unwrap_err().is_not_found());
    });
}
