//! The container's port: the host's end of its veth pair.

use attach::{Pair, PairRequest, create_pair};
use cni_types::Result;
use net::{BridgePort, Link, Net, VlanRange, VlanSide};
use skel::{Add, Undo};

use crate::config::{Config, Vlans};

/// The VLAN that a bridge puts every port in unless told otherwise (net/bridge/br_vlan.c).
const DEFAULT_VLAN: u16 = 1;

/// Makes the veth pair, and the host's end a port of the bridge as the configuration wants it.
pub(crate) fn create(
    (host, pod): (&mut Net, &mut Net),
    cx: &Add<Config>,
    bridge: &Link,
    mtu: Option<u32>,
    undo: &mut Undo,
) -> Result<Pair> {
    let config = cx.config();
    let request = PairRequest {
        ifname: &cx.attachment().ifname,
        netns: cx.netns(),
        mac: config.mac,
        mtu,
        master: Some(bridge.index),
        // A port is not let in before its VLANs are set: until then it is in the bridge's default one.
        up: !config.vlans.any(),
    };
    let pair = create_pair(host, pod, &request, undo)?;
    if config.hairpin || config.isolated {
        let on = |wanted: bool| wanted.then_some(true);
        let options = BridgePort {
            hairpin: on(config.hairpin),
            isolated: on(config.isolated),
            learning: None,
        };
        host.set_bridge_port(pair.host.index, &options)?;
    }
    if !request.up {
        set_vlans(host, pair.host.index, &config.vlans)?;
        host.set_up(pair.host.index)?;
    }
    Ok(pair)
}

/// Sets a port's VLANs: the container's, or the gateway's.
pub(super) fn set_vlans(host: &mut Net, port: u32, vlans: &Vlans) -> Result<()> {
    if !vlans.preserve_default {
        host.delete_vlans(port, VlanSide::Port, &[VlanRange::access(DEFAULT_VLAN)])?;
    }
    let ranges: Vec<VlanRange> = vlans
        .access
        .map(VlanRange::access)
        .into_iter()
        .chain(vlans.trunk.iter().copied())
        .collect();
    // One request each: the kernel takes a list of ranges, but tells nothing of which one it refused.
    for range in ranges {
        host.add_vlans(port, VlanSide::Port, &[range])?;
    }
    Ok(())
}
