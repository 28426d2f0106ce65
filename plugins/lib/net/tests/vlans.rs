//! VLANs of bridge ports, on a kernel that has them. The messages themselves are compared byte by byte beside the code.
#![allow(clippy::unwrap_used, reason = "a test stops where something is missing")]

use cni_types::MacAddr;
use net::{Link, Net, NewBridge, NewVeth, PortVlans, VethPeer, VlanRange, VlanSide};
use testkit::{skip, world};

/// A bridge `br0` and a port of it.
fn bridge_with_port(host: &mut Net, vlan_filtering: Option<bool>) -> net::Result<(Link, Link)> {
    let (br0, port, other) = (
        "br0".parse().unwrap(),
        "port".parse().unwrap(),
        "other".parse().unwrap(),
    );
    let bridge = host.create_bridge(&NewBridge {
        name: &br0,
        mac: MacAddr([2; 6]),
        mtu: None,
        vlan_filtering,
        up: true,
    })?;
    let port = host.create_veth(&NewVeth {
        name: &port,
        mac: MacAddr([6; 6]),
        mtu: None,
        master: Some(bridge.index),
        up: true,
        peer: VethPeer {
            name: &other,
            mac: MacAddr([10; 6]),
            netns: None,
        },
    })?;
    Ok((bridge, port))
}

fn of(ports: &[PortVlans], index: u32) -> &[VlanRange] {
    &ports.iter().find(|port| port.index == index).unwrap().vlans
}

#[test]
fn vlans_are_added_listed_and_removed() {
    world(|w| {
        let mut host = Net::host().unwrap();
        let (bridge, port) = match bridge_with_port(&mut host, Some(true)) {
            Err(error) if error.is_unsupported() => return skip("this kernel has no bridge VLAN filtering"),
            made => made.unwrap(),
        };
        assert_eq!(
            host.link("br0").unwrap().unwrap().bridge.unwrap().vlan_filtering,
            Some(true)
        );
        let trunk = VlanRange {
            last: 20,
            ..VlanRange::tagged(10)
        };
        host.add_vlans(port.index, VlanSide::Port, &[VlanRange::access(100), trunk])
            .unwrap();
        host.add_vlans(bridge.index, VlanSide::Bridge, &[VlanRange::tagged(100)])
            .unwrap();
        host.delete_vlans(port.index, VlanSide::Port, &[VlanRange::tagged(1)])
            .unwrap();
        let seen = host.bridge_vlans(bridge.index).unwrap();
        assert_eq!(of(&seen, port.index), [trunk, VlanRange::access(100)]);
        assert!(of(&seen, bridge.index).contains(&VlanRange::tagged(100)));
        assert!(w.sh("bridge vlan show dev port").contains("100 PVID Egress Untagged"));
        host.set_vlan_filtering(bridge.index, false).unwrap();
        assert_eq!(
            host.link("br0").unwrap().unwrap().bridge.unwrap().vlan_filtering,
            Some(false)
        );
    });
}

#[test]
fn without_vlan_filtering_there_are_no_vlans_and_asking_for_some_is_unsupported() {
    world(|_| {
        let mut host = Net::host().unwrap();
        let (bridge, port) = bridge_with_port(&mut host, None).unwrap();
        // The kernel tells of the setting in either case.
        if host.set_vlan_filtering(bridge.index, true).is_ok() {
            return skip("this kernel has bridge VLAN filtering");
        }
        let seen = host.bridge_vlans(bridge.index).unwrap();
        assert!(
            seen.iter()
                .any(|seen| seen.index == port.index && seen.bridge == Some(bridge.index))
        );
        assert!(seen.iter().all(|seen| seen.vlans.is_empty()));
        let error = host
            .add_vlans(port.index, VlanSide::Port, &[VlanRange::access(100)])
            .unwrap_err();
        assert!(error.is_unsupported());
        assert_eq!(
            error.to_string(),
            "add VLANs to \"port\": Operation not supported on transport endpoint (EOPNOTSUPP)"
        );
        // More than one attribute can hold.
        let many: Vec<VlanRange> = (0..10_000).map(|i| VlanRange::tagged(i % 4094 + 1)).collect();
        assert!(
            host.add_vlans(port.index, VlanSide::Port, &many)
                .unwrap_err()
                .is_unsupported()
        );
        assert!(
            host.set_vlan_filtering(bridge.index, true)
                .unwrap_err()
                .is_unsupported()
        );
    });
}
