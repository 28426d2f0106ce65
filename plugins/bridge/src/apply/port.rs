//! The container's port: the host's end of its veth pair.

use attach::{Pair, PairRequest, create_pair};
use cni_types::Result;
use net::{BridgePort, Link, Net, VlanRange, VlanSide};
use skel::{Add, Undo};

use crate::config::{Config, Vlans};

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
        set_vlans(host, bridge, pair.host.index, &config.vlans)?;
        host.set_up(pair.host.index)?;
    }
    Ok(pair)
}

/// Sets a port's VLANs: the container's, or the gateway's.
pub(super) fn set_vlans(host: &mut Net, bridge: &Link, port: u32, vlans: &Vlans) -> Result<()> {
    // A trunk alone says nothing of packets without tag: they stay where they are, in the reference too.
    let leaves_default = vlans.access.is_some() && !vlans.preserve_default;
    let default = bridge.bridge.and_then(|bridge| bridge.default_pvid);
    if let Some(vid) = default.filter(|&vid| vid != 0 && leaves_default) {
        host.delete_vlans(port, VlanSide::Port, &[VlanRange::access(vid)])?;
    }
    // The access VLAN last: where the trunk holds it too, it is still the one without tag. One request each: the kernel
    // takes a list of ranges, but tells nothing of which one it refused.
    for range in vlans.trunk.iter().copied().chain(vlans.access.map(VlanRange::access)) {
        host.add_vlans(port, VlanSide::Port, &[range])?;
    }
    Ok(())
}
