//! CHECK: what the kernel holds, compared with what ADD made.
//!
//! Later plugins of the chain may have changed the container's interface on purpose, as tuning does its MTU: the MTU is
//! compared on the host's side, and only where this configuration sets it.

use attach::Mtu;
use attach::check::{compare_addresses, compare_mac, compare_routes, own_addresses, routes_through};
use cni_types::{Cidr, CniResult, Error, IfName, IpConfig, Result, Route};
use net::{Address, Link, Net};

use crate::Config;
use crate::plan::{gateway_routes, gateways};

/// What there is.
#[derive(Debug, Default)]
pub(crate) struct Observed {
    pub(crate) container: Option<End>,
    /// The other end of the container's interface.
    pub(crate) host: Option<End>,
}

/// One end of the pair.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) link: Link,
    pub(crate) addresses: Vec<Address>,
    /// The routes through it.
    pub(crate) routes: Vec<net::Route>,
}

impl Observed {
    pub(crate) fn read(host: &mut Net, pod: &mut Net, ifname: &IfName) -> Result<Observed> {
        let Some(container) = pod.link(ifname.as_str())? else {
            return Ok(Observed::default());
        };
        let peer = match container.peer_index {
            Some(index) => host.link_by_index(index)?,
            None => None,
        };
        Ok(Observed {
            container: Some(End::read(pod, container)?),
            host: peer.map(|link| End::read(host, link)).transpose()?,
        })
    }
}

impl End {
    fn read(net: &mut Net, link: Link) -> Result<End> {
        Ok(End {
            addresses: net.addresses(link.index)?,
            routes: routes_through(net, link.index)?,
            link,
        })
    }
}

/// The first difference, in words. The texts begin as the reference's do where it has them.
pub(crate) fn compare(config: &Config, ifname: &IfName, prev: &CniResult, observed: &Observed) -> Result<()> {
    let Some(container) = &observed.container else {
        return Err(Error::internal(format!(
            "Interface {ifname} was not found in the container"
        )));
    };
    compare_mac(ifname, prev, &container.link)?;
    if !container.link.up {
        return Err(Error::internal(format!("Interface {ifname} is down")));
    }
    let is_the_other_end = |end: &&End| {
        let told = |link: &cni_types::Interface| link.sandbox.is_empty() && link.name == end.link.name;
        end.link.peer_index == Some(container.link.index)
            && end.link.kind.as_deref() == Some("veth")
            && prev.interfaces.iter().any(told)
    };
    let Some(host) = observed.host.as_ref().filter(is_the_other_end) else {
        return Err(Error::internal(format!("The host's end of {ifname} was not found")));
    };
    let ours = own_addresses(ifname, prev);
    compare_host_side(config, host, &ours)?;

    compare_addresses(ifname, prev, &container.addresses)?;
    for route in gateway_routes(ours.iter().copied()) {
        let wanted = Route::new(route.dst, route.gateway);
        compare_routes(&[wanted], &container.routes).map_err(|e| {
            let gateway = route.gateway.unwrap_or(route.dst.address());
            Error::internal(format!("Failed to find Gateway {gateway} for interface {ifname}")).with_details(e.msg)
        })?;
    }
    let ours: Vec<IpConfig> = ours.into_iter().cloned().collect();
    compare_routes(&attach::routes::effective(&ours, &prev.routes), &container.routes)
}

fn compare_host_side(config: &Config, host: &End, ours: &[&IpConfig]) -> Result<()> {
    let name = &host.link.name;
    let differs = |text: String| Err(Error::internal(text));
    if !host.link.up {
        return differs(format!("{name} is down"));
    }
    if let Mtu::Bytes(mtu) = config.mtu
        && host.link.mtu != mtu
    {
        return differs(format!("MTU of {name} is {}, not {mtu}", host.link.mtu));
    }
    let has = |cidr: &Cidr| host.addresses.iter().any(|address| address.cidr == *cidr);
    if let Some(gateway) = gateways(ours.iter().copied()).into_iter().find(|cidr| !has(cidr)) {
        return differs(format!("{name} does not have the gateway address {gateway}"));
    }
    let leads_to = |cidr: &Cidr| {
        host.routes
            .iter()
            .any(|route| route.dst == *cidr && route.gateway.is_none())
    };
    let addresses = ours.iter().map(|ip| Cidr::host(ip.address.address()));
    match addresses.into_iter().find(|cidr| !leads_to(cidr)) {
        Some(cidr) => differs(format!("The host has no route to {} through {name}", cidr.address())),
        None => Ok(()),
    }
}
