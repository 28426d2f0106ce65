//! The veth pair between the bridge and the container.

use cni_types::{Attachment, Code, Error, MacAddr, Result};
use net::{BridgePort, Link, Net, NewVeth, VethPeer, VlanRange, VlanSide};
use skel::{Netns, Undo};

use crate::config::{Config, Vlans};

/// The VLAN that a bridge puts every port in unless told otherwise (net/bridge/br_vlan.c).
const DEFAULT_VLAN: u16 = 1;

/// How often to draw another name for the host's end. Names have 32 random bits.
const NAME_TRIES: usize = 10;

/// A veth pair: the host's end, and the container's by index and MAC.
pub(crate) struct Veth {
    pub(crate) host: Link,
    pub(crate) container_index: u32,
    pub(crate) container_mac: MacAddr,
}

/// Makes the pair, both ends under their final names: the host's in the bridge, the container's in its namespace, down.
pub(crate) fn create(
    (host, pod): (&mut Net, &mut Net),
    config: &Config,
    bridge: &Link,
    (attachment, netns, mtu): (&Attachment, &Netns, Option<u32>),
    undo: &mut Undo,
) -> Result<Veth> {
    let container_mac = config.mac.map_or_else(net::random_mac, Ok)?;
    let peer = VethPeer {
        name: &attachment.ifname,
        mac: container_mac,
        netns: Some(netns.fd()?),
    };
    // A port is not let in before its VLANs are set: until then it is in the bridge's default one.
    let up = !config.vlans.any();
    let link = create_named(host, pod, bridge, mtu, up, peer)?;
    let index = link.index;
    undo.push("veth pair", move || {
        Net::host()?.delete_link(index).map(drop).map_err(Error::from)
    });

    let container_index = match link.peer_index {
        Some(index) => index,
        None => find_peer(pod, attachment)?,
    };
    let _ = host.sysctl().set(&format!("ipv6/conf/{}/accept_ra", link.name), "0")?;
    let options = BridgePort {
        hairpin: config.hairpin.then_some(true),
        isolated: config.isolated.then_some(true),
        learning: None,
    };
    if config.hairpin || config.isolated {
        host.set_bridge_port(index, &options)?;
    }
    if !up {
        set_vlans(host, index, &config.vlans)?;
        host.set_up(index)?;
    }
    Ok(Veth {
        host: link,
        container_index,
        container_mac,
    })
}

fn create_named(
    host: &mut Net,
    pod: &mut Net,
    bridge: &Link,
    mtu: Option<u32>,
    up: bool,
    peer: VethPeer<'_>,
) -> Result<Link> {
    for _ in 0..NAME_TRIES {
        let name = net::host_veth_name()?;
        let request = NewVeth {
            name: &name,
            mac: net::random_mac()?,
            mtu,
            master: Some(bridge.index),
            up,
            peer,
        };
        match host.create_veth(&request) {
            Ok(link) => return Ok(link),
            Err(e) if e.is_exists() => {
                if pod.link(peer.name.as_str())?.is_some() {
                    return Err(taken(peer.name, &name));
                }
            }
            Err(e) => return Err(Error::from(e).context("failed to make veth pair")),
        }
    }
    Err(Error::new(
        Code::TRY_AGAIN_LATER,
        format!("failed to make veth pair: {NAME_TRIES} random names were all taken"),
    ))
}

/// Begins as the reference's message does.
fn taken(ifname: &cni_types::IfName, host_name: &cni_types::IfName) -> Error {
    let msg = format!(
        "container veth name ({:?}) peer provided ({:?}) already exists",
        ifname.as_str(),
        host_name.as_str()
    );
    Error::new(Code::INVALID_ENVIRONMENT, msg).with_details(
        "CNI_IFNAME names an interface that the container has already: choose another, or delete that one first",
    )
}

fn find_peer(pod: &mut Net, attachment: &Attachment) -> Result<u32> {
    let gone = || Error::internal(format!("{} was deleted as soon as it was made", attachment.ifname));
    Ok(pod.link(attachment.ifname.as_str())?.ok_or_else(gone)?.index)
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
