//! CHECK: what the kernel holds, compared with what ADD made.
//!
//! Later plugins of the chain may have changed the container's interface on purpose, as tuning does its MTU: MTU and the like
//! are compared on the host's side, and only where this configuration sets them.

use attach::Mtu;
use attach::check::{compare_addresses, compare_mac, compare_routes, own_addresses, routes_through};
use cni_types::{Attachment, Cidr, CniResult, Error, IfName, IpConfig, Result};
use net::{Address, Link, Net, PortVlans};

use crate::config::Config;

/// What there is.
#[derive(Debug, Default)]
pub(crate) struct Observed {
    pub(crate) bridge: Option<Link>,
    /// Of the bridge, or of the port of the container's VLAN.
    pub(crate) gateway_addresses: Vec<Address>,
    /// The other end of the container's interface.
    pub(crate) host_veth: Option<Link>,
    pub(crate) vlans: Vec<PortVlans>,
    pub(crate) container: Option<Link>,
    pub(crate) addresses: Vec<Address>,
    pub(crate) routes: Vec<net::Route>,
}

impl Observed {
    pub(crate) fn read(host: &mut Net, pod: &mut Net, config: &Config, attachment: &Attachment) -> Result<Observed> {
        let mut observed = Observed {
            bridge: host.link(config.bridge.as_str())?,
            container: pod.link(attachment.ifname.as_str())?,
            ..Observed::default()
        };
        let holder = match config.vlans.access {
            Some(vid) if config.is_gateway => {
                host.link(crate::config::vlan_port_name(&config.bridge, vid)?.as_str())?
            }
            _ => observed.bridge.clone(),
        };
        if let Some(holder) = holder.filter(|_| config.is_gateway) {
            observed.gateway_addresses = host.addresses(holder.index)?;
        }
        if let Some(bridge) = observed.bridge.as_ref().filter(|_| config.vlans.any()) {
            observed.vlans = host.bridge_vlans(bridge.index)?;
        }
        if let Some(container) = &observed.container {
            observed.host_veth = container
                .peer_index
                .map(|index| host.link_by_index(index))
                .transpose()?
                .flatten();
            observed.addresses = pod.addresses(container.index)?;
            observed.routes = routes_through(pod, container.index)?;
        }
        Ok(observed)
    }
}

/// The first difference, in words. The texts begin as the reference's do where it has them.
pub(crate) fn compare(config: &Config, attachment: &Attachment, prev: &CniResult, observed: &Observed) -> Result<()> {
    let differs = |text: String| Err(Error::internal(text));
    let (name, ifname) = (config.bridge.as_str(), &attachment.ifname);
    let Some(bridge) = observed
        .bridge
        .as_ref()
        .filter(|link| link.kind.as_deref() == Some("bridge"))
    else {
        return differs(format!("Bridge {name} was not found"));
    };
    let Some(container) = &observed.container else {
        return differs(format!("Interface {ifname} was not found in the container"));
    };
    compare_mac(&attachment.ifname, prev, container)?;
    if !container.up && !config.leave_interface_down {
        return differs(format!("Interface {ifname} is down"));
    }
    compare_host_side(config, bridge, container, prev, observed)?;
    compare_layer_3(config, ifname, prev, observed)
}

fn compare_host_side(
    config: &Config,
    bridge: &Link,
    container: &Link,
    prev: &CniResult,
    observed: &Observed,
) -> Result<()> {
    let differs = |text: String| Err(Error::internal(text));
    let (bridge_name, told) = (&bridge.name, |name: &str| {
        prev.interfaces
            .iter()
            .any(|link| link.sandbox.is_empty() && link.name == name)
    });
    let is_the_other_end = |veth: &&Link| {
        veth.kind.as_deref() == Some("veth")
            && veth.peer_index == Some(container.index)
            && veth.master == Some(bridge.index)
            && told(&veth.name)
    };
    let Some(veth) = observed.host_veth.as_ref().filter(is_the_other_end) else {
        return differs(format!("CNI veth created for bridge {bridge_name} was not found"));
    };
    if !veth.up || !bridge.up {
        return differs(format!("{} is down", if bridge.up { &veth.name } else { bridge_name }));
    }
    if let Mtu::Bytes(mtu) = config.mtu
        && veth.mtu != mtu
    {
        return differs(format!("MTU of {} is {}, not {mtu}", veth.name, veth.mtu));
    }
    if config.promiscuous && !bridge.promiscuous {
        return differs(format!("Bridge {bridge_name} is not promiscuous"));
    }
    let port = veth.bridge_port.as_ref();
    for (wanted, has, what) in [
        (config.hairpin, port.is_some_and(|port| port.hairpin), "hairpin mode"),
        (
            config.isolated,
            port.is_some_and(|port| port.isolated),
            "port isolation",
        ),
    ] {
        if wanted && !has {
            return differs(format!("{what} of {} is off", veth.name));
        }
    }
    compare_vlans(config, veth, &observed.vlans)
}

fn compare_vlans(config: &Config, veth: &Link, ports: &[PortVlans]) -> Result<()> {
    let present = || {
        let port = ports.iter().find(|port| port.index == veth.index);
        port.into_iter().flat_map(|port| &port.vlans)
    };
    let vlans = &config.vlans;
    let trunk = vlans.trunk.iter().flat_map(|range| range.first..=range.last);
    if let Some(vid) = trunk
        .chain(vlans.access)
        .find(|&vid| !present().any(|range| range.contains(vid)))
    {
        return Err(Error::internal(format!("{} does not carry VLAN {vid}", veth.name)));
    }
    let is_access = |vid: u16| present().any(|range| range.contains(vid) && range.pvid && range.untagged);
    match vlans.access.filter(|&vid| !is_access(vid)) {
        Some(vid) => Err(Error::internal(format!(
            "VLAN {vid} is not the untagged one of {}",
            veth.name
        ))),
        None => Ok(()),
    }
}

fn compare_layer_3(config: &Config, ifname: &IfName, prev: &CniResult, observed: &Observed) -> Result<()> {
    compare_addresses(ifname, prev, &observed.addresses)?;
    let ours: Vec<IpConfig> = own_addresses(ifname, prev).into_iter().cloned().collect();
    let gateways = ours
        .iter()
        .filter(|_| config.is_gateway)
        .filter_map(|ip| Cidr::new(ip.gateway?, ip.address.prefix()));
    for gateway in gateways {
        if !observed.gateway_addresses.iter().any(|address| address.cidr == gateway) {
            let msg = format!("Bridge {} does not have the gateway address {gateway}", config.bridge);
            return Err(Error::internal(msg));
        }
    }
    compare_routes(&attach::routes::effective(&ours, &prev.routes), &observed.routes)
}
