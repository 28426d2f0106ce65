//! From the IPAM plugin's result to what the kernel shall hold. Nothing here touches it.

use std::net::IpAddr;
use std::path::Path;

use attach::Pair;
use cni_types::{Cidr, CniResult, Dns, Error, IfName, Interface, IpConfig, Result, Route};

/// The index of the container's interface in [`interfaces`].
const CONTAINER: usize = 1;

/// `RT_SCOPE_LINK` of linux/rtnetlink.h. IPv6 has no scopes, and ignores them.
const SCOPE_LINK: u8 = 253;

/// What both ends of the pair get on layer 3.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Addressing {
    /// As the result reports them; each with its gateway.
    pub(crate) ips: Vec<IpConfig>,
    /// As the result reports them.
    routes: Vec<Route>,
    /// The same routes with the gateway that each one takes, less duplicates.
    pub(crate) effective: Vec<Route>,
    dns: Dns,
}

/// A route of the container that stands for its subnet: see [`gateway_routes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GatewayRoute {
    pub(crate) dst: Cidr,
    pub(crate) gateway: Option<IpAddr>,
    /// The address that the container's packets get, of several in one subnet.
    pub(crate) source: IpAddr,
    pub(crate) scope: Option<u8>,
}

impl Addressing {
    pub(crate) fn addresses(&self) -> Vec<Cidr> {
        self.ips.iter().map(|ip| ip.address).collect()
    }
}

/// Completes the IPAM plugin's result: each address belongs to the container's interface.
pub(crate) fn addressing(ipam: CniResult) -> Result<Addressing> {
    if ipam.ips.is_empty() {
        return Err(Error::internal("IPAM plugin returned missing IP config"));
    }
    if let Some(ip) = ipam.ips.iter().find(|ip| !has_gateway(ip)) {
        let told = ip
            .gateway
            .map_or("no gateway".to_owned(), |gateway| format!("{gateway} as gateway"));
        return Err(
            Error::internal(format!("IPAM plugin returned {told} for {}", ip.address)).with_details(
                "the host's end of the pair has the gateway's address: name one of the same family in ipam",
            ),
        );
    }
    let complete = |ip: IpConfig| IpConfig {
        interface: Some(CONTAINER),
        ..ip
    };
    let ips: Vec<IpConfig> = ipam.ips.into_iter().map(complete).collect();
    Ok(Addressing {
        effective: attach::routes::effective(&ips, &ipam.routes),
        ips,
        routes: ipam.routes,
        dns: ipam.dns,
    })
}

fn has_gateway(ip: &IpConfig) -> bool {
    ip.gateway
        .is_some_and(|gateway| gateway.is_ipv4() == ip.address.is_ipv4())
}

/// The routes of the container that take the place of the kernel's to the subnet: the gateway is on the wire, and all else of
/// the subnet behind it, for nobody but the host is there to answer for its addresses.
pub(crate) fn gateway_routes<'a>(ips: impl IntoIterator<Item = &'a IpConfig>) -> Vec<GatewayRoute> {
    let mut routes: Vec<GatewayRoute> = Vec::new();
    for ip in ips {
        let Some(gateway) = ip.gateway else { continue };
        let source = ip.address.address();
        let on_wire = GatewayRoute {
            dst: Cidr::host(gateway),
            gateway: None,
            source,
            scope: Some(SCOPE_LINK),
        };
        let behind = GatewayRoute {
            dst: ip.address.network(),
            gateway: Some(gateway),
            source,
            scope: None,
        };
        for route in [on_wire, behind] {
            if !routes.iter().any(|other| other.dst == route.dst) {
                routes.push(route);
            }
        }
    }
    routes
}

/// The addresses of the host's end: each gateway, and it alone. Other containers' pairs have the same.
pub(crate) fn gateways<'a>(ips: impl IntoIterator<Item = &'a IpConfig>) -> Vec<Cidr> {
    let mut gateways = Vec::new();
    for gateway in ips.into_iter().filter_map(|ip| ip.gateway).map(Cidr::host) {
        if !gateways.contains(&gateway) {
            gateways.push(gateway);
        }
    }
    gateways
}

/// The interfaces of the result, in the reference's order: host veth, container's interface.
pub(crate) fn interfaces(pair: &Pair, ifname: &IfName, netns: &Path) -> Vec<Interface> {
    let on_host = Interface {
        name: pair.host.name.clone(),
        mac: pair.host.mac.map(|mac| mac.to_string()).unwrap_or_default(),
        ..Interface::default()
    };
    let in_container = Interface {
        name: ifname.to_string(),
        mac: pair.container_mac.to_string(),
        sandbox: netns.display().to_string(),
        ..Interface::default()
    };
    vec![on_host, in_container]
}

/// The result. The network's own DNS settings, if any, replace those of IPAM.
pub(crate) fn result(interfaces: Vec<Interface>, addressing: Addressing, dns: &Dns) -> CniResult {
    let dns = if dns.is_empty() { addressing.dns } else { dns.clone() };
    CniResult {
        interfaces,
        ips: addressing.ips,
        routes: addressing.routes,
        dns,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ipam(addresses: &[(&str, Option<&str>)]) -> CniResult {
        let ip = |(address, gateway): &(&str, Option<&str>)| IpConfig {
            interface: None,
            address: address.parse().unwrap(),
            gateway: gateway.map(|text| text.parse().unwrap()),
        };
        CniResult {
            ips: addresses.iter().map(ip).collect(),
            ..CniResult::default()
        }
    }

    fn shown(addresses: &[(&str, Option<&str>)]) -> Vec<String> {
        let shown = |route: GatewayRoute| {
            let via = route
                .gateway
                .map(|gateway| format!(" via {gateway}"))
                .unwrap_or_default();
            format!("{}{via} src {}", route.dst, route.source)
        };
        let plan = addressing(ipam(addresses)).unwrap();
        gateway_routes(&plan.ips).into_iter().map(shown).collect()
    }

    #[test]
    fn the_subnet_is_behind_the_gateway_and_the_gateway_on_the_wire() {
        assert_eq!(
            shown(&[("10.1.0.5/24", Some("10.1.0.1")), ("fd00::5/64", Some("fd00::1"))]),
            [
                "10.1.0.1/32 src 10.1.0.5",
                "10.1.0.0/24 via 10.1.0.1 src 10.1.0.5",
                "fd00::1/128 src fd00::5",
                "fd00::/64 via fd00::1 src fd00::5",
            ]
        );
        assert_eq!(
            shown(&[("10.1.0.5/32", Some("169.254.1.1"))]),
            [
                "169.254.1.1/32 src 10.1.0.5",
                "10.1.0.5/32 via 169.254.1.1 src 10.1.0.5"
            ]
        );
    }

    #[test]
    fn addresses_of_one_subnet_share_its_routes() {
        let two = [("10.1.0.5/24", Some("10.1.0.1")), ("10.1.0.6/24", Some("10.1.0.1"))];
        assert_eq!(
            shown(&two),
            ["10.1.0.1/32 src 10.1.0.5", "10.1.0.0/24 via 10.1.0.1 src 10.1.0.5"]
        );
        assert_eq!(
            gateways(&addressing(ipam(&two)).unwrap().ips),
            ["10.1.0.1/32".parse().unwrap()]
        );
    }

    #[test]
    fn an_address_without_gateway_of_its_family_is_refused() {
        for (addresses, msg) in [
            (&[][..], "IPAM plugin returned missing IP config"),
            (
                &[("10.1.0.5/24", None)],
                "IPAM plugin returned no gateway for 10.1.0.5/24",
            ),
            (
                &[("10.1.0.5/24", Some("10.1.0.1")), ("fd00::5/64", Some("10.1.0.1"))],
                "IPAM plugin returned 10.1.0.1 as gateway for fd00::5/64",
            ),
        ] {
            assert_eq!(addressing(ipam(addresses)).unwrap_err().msg, msg);
        }
    }

    #[test]
    fn the_networks_dns_replaces_that_of_ipam() {
        let dns = |domain: &str| Dns {
            domain: domain.into(),
            ..Dns::default()
        };
        let plan = addressing(CniResult {
            dns: dns("ipam"),
            ..ipam(&[("10.1.0.5/24", Some("10.1.0.1"))])
        })
        .unwrap();
        assert_eq!(result(vec![], plan.clone(), &Dns::default()).dns, dns("ipam"));
        assert_eq!(result(vec![], plan, &dns("network")).dns, dns("network"));
    }
}
