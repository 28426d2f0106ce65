//! The node's side of layer 3: the gateway address and forwarding.

use std::fs::{self, File};
use std::path::Path;

use cni_types::{Cidr, Error, IfName, Result};
use net::{Link, LinkChange, Net, NewAddress, NewVeth, VethPeer};

use super::port::set_vlans;
use crate::config::{Config, Vlans, vlan_port_name};
use crate::plan::Addressing;

/// Marks a VLAN port as made by us: only such a one is taken away again.
const PORT_ALIAS: &str = "ferrule gateway port";

/// Where the locks of bridges lie: like the ports they guard, they last as long as the node is up.
const LOCK_DIRECTORY: &str = "/run/cni/ferrule";

/// Gives the bridge, or the port of the container's VLAN, the gateway addresses of the plan. Returns that port.
pub(crate) fn ensure(host: &mut Net, bridge: &Link, config: &Config, plan: &Addressing) -> Result<Option<Link>> {
    if plan.gateways.is_empty() {
        return Ok(None);
    }
    let port = match config.gateway_vlan() {
        None => None,
        Some(vid) => Some(ensure_port(host, bridge, config, vid)?),
    };
    let holder = port.as_ref().unwrap_or(bridge);
    for &gateway in &plan.gateways {
        ensure_address(host, holder, gateway, config).map_err(|e| e.context("failed to set bridge addr"))?;
    }
    Ok(port)
}

/// An IPv4 address of the bridge, or an IPv6 one of the same subnet, is in the way of another; the reference's message says so.
fn ensure_address(host: &mut Net, link: &Link, gateway: Cidr, config: &Config) -> Result<()> {
    let present: Vec<Cidr> = host
        .addresses(link.index)?
        .into_iter()
        .map(|address| address.cidr)
        .collect();
    if present.contains(&gateway) {
        return Ok(());
    }
    let overlaps = |other: &Cidr| other.contains(gateway.address()) || gateway.contains(other.address());
    let in_the_way = |other: &&Cidr| other.is_ipv4() == gateway.is_ipv4() && (gateway.is_ipv4() || overlaps(other));
    for &other in present.iter().filter(in_the_way) {
        if !config.force_address {
            return Err(Error::internal(format!(
                "{:?} already has an IP address different from {gateway}",
                link.name
            ))
            .with_details(format!("it has {other}; forceAddress replaces it")));
        }
        host.delete_address(link.index, other)?;
    }
    match host.add_address(
        link.index,
        NewAddress {
            cidr: gateway,
            no_dad: !config.enable_dad,
        },
    ) {
        // Another ADD was faster.
        Err(e) if e.is_exists() => Ok(()),
        added => Ok(added?),
    }
}

/// The port that holds the gateway addresses of a VLAN: the host's end of a veth pair whose other end is in the bridge.
fn ensure_port(host: &mut Net, bridge: &Link, config: &Config, vid: u16) -> Result<Link> {
    let name = vlan_port_name(&config.bridge, vid)?;
    let _lock = lock(&config.bridge)?;
    if let Some(port) = host.link(name.as_str())? {
        if !port.up {
            host.set_up(port.index)?;
        }
        return Ok(port);
    }
    let peer = net::host_veth_name()?;
    let request = NewVeth {
        name: &name,
        mac: net::random_mac()?,
        mtu: Some(bridge.mtu),
        master: None,
        up: false,
        peer: VethPeer {
            name: &peer,
            mac: net::random_mac()?,
            netns: None,
        },
    };
    let port = host
        .create_veth(&request)
        .map_err(|e| Error::from(e).context("failed to create the gateway's VLAN port"))?;
    // A port that is not complete must not be found by the next ADD.
    let vlans = Vlans {
        trunk: Vec::new(),
        ..config.vlans.clone()
    };
    complete_port(host, bridge, &port, &peer, &vlans).inspect_err(|_| {
        if let Err(e) = host.delete_link(port.index) {
            log::error!("could not undo: {name}: {e}");
        }
    })?;
    Ok(port)
}

fn complete_port(host: &mut Net, bridge: &Link, port: &Link, peer: &IfName, vlans: &Vlans) -> Result<()> {
    let in_bridge = host
        .link(peer.as_str())?
        .ok_or_else(|| Error::internal(format!("{peer} is gone")))?;
    let join = LinkChange {
        master: Some(bridge.index),
        ..LinkChange::default()
    };
    host.change_link(in_bridge.index, &join)?;
    set_vlans(host, bridge, in_bridge.index, vlans)?;
    host.set_up(in_bridge.index)?;
    let _ = host.sysctl().set(&format!("ipv6/conf/{}/accept_ra", port.name), "0")?;
    // The alias last but one: until it is up, nothing rests on it.
    Ok(host.change_link(
        port.index,
        &LinkChange {
            alias: Some(PORT_ALIAS),
            up: Some(true),
            ..LinkChange::default()
        },
    )?)
}

/// Takes the VLAN's port away if we made it and no container's port carries the VLAN any more.
pub(crate) fn release(bridge: &IfName, vid: u16) -> Result<()> {
    let name = vlan_port_name(bridge, vid)?;
    let mut host = Net::host()?;
    if host.link(name.as_str())?.is_none() {
        return Ok(());
    }
    let _lock = lock(bridge)?;
    // Again, under the lock.
    let Some(port) = host
        .link(name.as_str())?
        .filter(|port| port.alias.as_deref() == Some(PORT_ALIAS))
    else {
        return Ok(());
    };
    let Some(bridge) = host.link(bridge.as_str())? else {
        host.delete_link(port.index)?;
        return Ok(());
    };
    let carries = |ports: Vec<net::PortVlans>| {
        ports
            .into_iter()
            .any(|other| other.index != bridge.index && Some(other.index) != port.peer_index && other.carries(vid))
    };
    if !carries(host.bridge_vlans(bridge.index)?) {
        host.delete_link(port.index)?;
    }
    Ok(())
}

/// The lock of a bridge's VLAN ports. It ends with the process, however that ends.
fn lock(bridge: &IfName) -> Result<File> {
    let directory = Path::new(LOCK_DIRECTORY);
    let file = directory.join(format!("bridge-{bridge}.lock"));
    fs::create_dir_all(directory).map_err(|e| Error::io(directory.display(), &e))?;
    let open = File::options().create(true).write(true).truncate(false).open(&file);
    let locked = open.and_then(|file| file.lock().map(|()| file));
    locked.map_err(|e| Error::io(file.display(), &e))
}
