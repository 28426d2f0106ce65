//! CHECK: what the kernel holds, compared with what ADD made.
//!
//! Later plugins of the chain may have changed the container's interface on purpose: sbr moves its routes to another table,
//! tuning sets its MTU. So a route is looked for where the result says, then in the main table, then in any table through
//! the interface, and MTU and the like are compared on the host's side, and only where this configuration sets them.

use cni_types::{Attachment, Cidr, CniResult, Error, IpConfig, Result, Route};
use net::{Address, Family, Link, Net, PortVlans, RouteFilter};

use crate::config::{Config, Mtu};
use crate::plan;

/// The main routing table (RT_TABLE_MAIN of linux/rtnetlink.h).
const MAIN_TABLE: u32 = 254;

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
            let through = RouteFilter {
                oif: Some(container.index),
                table: None,
            };
            for family in [Family::V4, Family::V6] {
                observed.routes.extend(pod.routes(family, through)?);
            }
        }
        Ok(observed)
    }
}

/// The first difference, in words. The texts begin as the reference's do where it has them.
pub(crate) fn compare(config: &Config, attachment: &Attachment, prev: &CniResult, observed: &Observed) -> Result<()> {
    let differs = |text: String| Err(Error::internal(text));
    let (name, ifname) = (config.bridge.as_str(), attachment.ifname.as_str());
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
    let mac = container.mac.map(|mac| mac.to_string()).unwrap_or_default();
    if let Some(told) = prev
        .interfaces
        .iter()
        .find(|link| link.name == ifname && !link.sandbox.is_empty())
        && told.mac != mac
    {
        return differs(format!(
            "Interface {ifname} Mac {} doesn't match container Mac: {mac}",
            told.mac
        ));
    }
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
    let carried = |vid: u16| {
        observed
            .vlans
            .iter()
            .any(|port| port.index == veth.index && port.carries(vid))
    };
    let wanted = config
        .vlans
        .access
        .into_iter()
        .chain(config.vlans.trunk.iter().flat_map(|range| range.first..=range.last));
    match wanted.into_iter().find(|&vid| !carried(vid)) {
        Some(vid) => differs(format!("{} does not carry VLAN {vid}", veth.name)),
        None => Ok(()),
    }
}

fn compare_layer_3(config: &Config, ifname: &str, prev: &CniResult, observed: &Observed) -> Result<()> {
    let differs = |text: String| Err(Error::internal(text));
    let ours: Vec<&IpConfig> = prev.ips.iter().filter(|ip| belongs_to(ip, ifname, prev)).collect();
    for ip in &ours {
        match observed.addresses.iter().find(|address| address.cidr == ip.address) {
            None => return differs(format!("Failed to match addr {} on interface {ifname}", ip.address)),
            Some(address) if address.flags.dad_failed => {
                return differs(format!(
                    "{} on interface {ifname} is a duplicate: somebody else has it",
                    ip.address
                ));
            }
            Some(_) => {}
        }
        let Some(gateway) = ip
            .gateway
            .filter(|_| config.is_gateway)
            .and_then(|gateway| Cidr::new(gateway, ip.address.prefix()))
        else {
            continue;
        };
        if !observed.gateway_addresses.iter().any(|address| address.cidr == gateway) {
            return differs(format!(
                "Bridge {} does not have the gateway address {gateway}",
                config.bridge
            ));
        }
    }
    let routes = plan::effective(&ours.into_iter().cloned().collect::<Vec<_>>(), &prev.routes);
    match routes.iter().find(|route| !is_present(route, &observed.routes)) {
        Some(missing) => {
            let via = missing.gw.map(|gw| format!(" via {gw}")).unwrap_or_default();
            differs(format!(
                "Expected Route {}{via} not found in routing table",
                missing.dst
            ))
        }
        None => Ok(()),
    }
}

/// Whether an address of the result is on the container's interface. One that names no interface is.
fn belongs_to(ip: &IpConfig, ifname: &str, prev: &CniResult) -> bool {
    let Some(index) = ip.interface else { return true };
    prev.interfaces
        .get(index)
        .is_some_and(|link| link.name == ifname && !link.sandbox.is_empty())
}

/// Whether a route is in the table that it names, else in the main one, else in any.
fn is_present(route: &Route, present: &[net::Route]) -> bool {
    let same = |other: &&net::Route| {
        other.dst == route.dst
            && other.gateway == route.gw
            && (route.priority == 0 || other.priority == route.priority)
            && (route.mtu == 0 || other.mtu == Some(route.mtu))
            && (route.advmss == 0 || other.advmss == Some(route.advmss))
    };
    let named = route.table.filter(|&table| table != 0).unwrap_or(MAIN_TABLE);
    let mut candidates = present.iter().filter(same);
    candidates.clone().any(|other| other.table == named) || candidates.next().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(text: &str) -> Route {
        let (dst, gw) = text.split_once(' ').unwrap();
        Route::new(dst.parse().unwrap(), gw.parse().ok())
    }

    fn kernel(text: &str, table: u32) -> net::Route {
        let Route { dst, gw, .. } = route(text);
        net::Route {
            dst,
            gateway: gw,
            oif: Some(2),
            table,
            priority: 0,
            scope: 0,
            protocol: 3,
            unicast: true,
            source: None,
            mtu: None,
            advmss: None,
        }
    }

    #[test]
    fn a_route_counts_in_any_table_through_the_interface() {
        let wanted = route("10.0.0.0/8 10.1.0.1");
        assert!(is_present(&wanted, &[kernel("10.0.0.0/8 10.1.0.1", MAIN_TABLE)]));
        assert!(is_present(&wanted, &[kernel("10.0.0.0/8 10.1.0.1", 100)]));
        assert!(!is_present(&wanted, &[kernel("10.0.0.0/8 10.1.0.9", MAIN_TABLE)]));
        assert!(!is_present(&wanted, &[kernel("10.0.0.0/16 10.1.0.1", MAIN_TABLE)]));
        assert!(!is_present(&wanted, &[]));
    }

    #[test]
    fn metrics_count_where_the_route_has_them() {
        let wanted = Route {
            mtu: 1400,
            ..route("10.0.0.0/8 10.1.0.1")
        };
        let plain = kernel("10.0.0.0/8 10.1.0.1", MAIN_TABLE);
        assert!(!is_present(&wanted, std::slice::from_ref(&plain)));
        assert!(is_present(
            &wanted,
            &[net::Route {
                mtu: Some(1400),
                ..plain
            }]
        ));
    }
}
