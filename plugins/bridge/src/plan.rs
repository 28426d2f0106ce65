//! From the configuration and the IPAM plugin's result to what the kernel shall hold. Nothing here touches it.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;

use attach::Pair;
use cni_types::{Cidr, CniResult, Dns, Error, IfName, Interface, IpConfig, Result, Route};
use net::Link;

use crate::config::Config;

/// The index of the container's interface in [`interfaces`].
const CONTAINER: usize = 2;

/// What the container's interface and the bridge get on layer 3.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Addressing {
    /// As the result reports them.
    pub(crate) ips: Vec<IpConfig>,
    /// As the result reports them.
    pub(crate) routes: Vec<Route>,
    /// The same routes with the gateway that each one takes, less duplicates.
    pub(crate) effective: Vec<Route>,
    /// The addresses for the bridge or its VLAN port.
    pub(crate) gateways: Vec<Cidr>,
    pub(crate) dns: Dns,
}

impl Addressing {
    pub(crate) fn addresses(&self) -> Vec<Cidr> {
        self.ips.iter().map(|ip| ip.address).collect()
    }
}

/// Completes the IPAM plugin's result by the rules of the reference: each address belongs to the container's interface; a
/// bridge that is the gateway has the subnet's first address where IPAM names none.
pub(crate) fn addressing(config: &Config, ipam: CniResult) -> Result<Addressing> {
    if ipam.ips.is_empty() {
        return Err(Error::internal("IPAM plugin returned missing IP config"));
    }
    let complete = |ip: IpConfig| IpConfig {
        interface: Some(CONTAINER),
        address: ip.address,
        gateway: ip
            .gateway
            .or_else(|| attach::first_address(ip.address).filter(|_| config.is_gateway)),
    };
    let ips: Vec<IpConfig> = ipam.ips.into_iter().map(complete).collect();
    let mut routes = ipam.routes;
    if config.is_default_gateway {
        add_default_routes(&ips, &mut routes);
    }
    let gateways = ips
        .iter()
        .filter(|_| config.is_gateway)
        .filter_map(|ip| Cidr::new(ip.gateway?, ip.address.prefix()));
    Ok(Addressing {
        gateways: gateways.collect(),
        effective: attach::routes::effective(&ips, &routes),
        ips,
        routes,
        dns: ipam.dns,
    })
}

/// One default route for each family that has a gateway, unless IPAM gave one. The reference adds a second one where IPAM's
/// names no gateway, and then fails over it.
fn add_default_routes(ips: &[IpConfig], routes: &mut Vec<Route>) {
    for ip in ips {
        let Some(gateway) = ip.gateway else { continue };
        let everything = if gateway.is_ipv4() {
            Ipv4Addr::UNSPECIFIED.into()
        } else {
            Ipv6Addr::UNSPECIFIED.into()
        };
        let Some(everything) = Cidr::new(everything, 0) else {
            continue;
        };
        let in_main = |route: &Route| route.table.is_none_or(|table| table == 0 || table == 254);
        if !routes.iter().any(|route| route.dst == everything && in_main(route)) {
            routes.push(Route::new(everything, Some(gateway)));
        }
    }
}

/// The interfaces of the result, in the reference's order: bridge, host veth, container's interface, gateway port.
pub(crate) fn interfaces(
    (bridge, gateway_port): (&Link, Option<&Link>),
    veth: &Pair,
    ifname: &IfName,
    netns: &Path,
) -> Vec<Interface> {
    let on_host = |link: &Link| Interface {
        name: link.name.clone(),
        mac: link.mac.map(|mac| mac.to_string()).unwrap_or_default(),
        ..Interface::default()
    };
    let in_container = Interface {
        name: ifname.to_string(),
        mac: veth.container_mac.to_string(),
        sandbox: netns.display().to_string(),
        ..Interface::default()
    };
    let mut interfaces = vec![on_host(bridge), on_host(&veth.host), in_container];
    interfaces.extend(gateway_port.map(on_host));
    interfaces
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
    use attach::Mtu;

    use super::*;
    use crate::config::Vlans;

    fn config(is_gateway: bool, is_default_gateway: bool) -> Config {
        Config {
            bridge: "cni0".parse().unwrap(),
            has_ipam: true,
            is_gateway,
            is_default_gateway,
            force_address: false,
            masquerade: None,
            mtu: Mtu::Kernel,
            hairpin: false,
            promiscuous: false,
            isolated: false,
            vlans: Vlans {
                access: None,
                trunk: vec![],
                preserve_default: true,
            },
            mac: None,
            mac_spoof_check: false,
            enable_dad: false,
            leave_interface_down: false,
        }
    }

    fn ipam(addresses: &[(&str, Option<&str>)], routes: &[(&str, Option<&str>)]) -> CniResult {
        let gateway = |text: &Option<&str>| text.map(|text| text.parse().unwrap());
        let ip = |(address, gw): &(&str, Option<&str>)| IpConfig {
            interface: None,
            address: address.parse().unwrap(),
            gateway: gateway(gw),
        };
        let route = |(dst, gw): &(&str, Option<&str>)| Route::new(dst.parse().unwrap(), gateway(gw));
        CniResult {
            ips: addresses.iter().map(ip).collect(),
            routes: routes.iter().map(route).collect(),
            ..CniResult::default()
        }
    }

    fn shown(routes: &[Route]) -> Vec<String> {
        routes
            .iter()
            .map(|route| format!("{} {}", route.dst, route.gw.map_or("-".into(), |gw| gw.to_string())))
            .collect()
    }

    #[test]
    fn no_address_is_an_error() {
        assert_eq!(
            addressing(&config(true, true), CniResult::default()).unwrap_err().msg,
            "IPAM plugin returned missing IP config"
        );
    }

    #[test]
    fn a_gateway_bridge_has_the_first_address_of_the_subnet_unless_told() {
        let given = ipam(
            &[
                ("10.1.0.5/24", None),
                ("10.2.0.5/24", Some("10.2.0.9")),
                ("fd00::5/64", None),
            ],
            &[],
        );
        let plan = addressing(&config(true, false), given.clone()).unwrap();
        let gateways: Vec<String> = plan.gateways.iter().map(Cidr::to_string).collect();
        assert_eq!(gateways, ["10.1.0.1/24", "10.2.0.9/24", "fd00::1/64"]);
        assert!(plan.ips.iter().all(|ip| ip.interface == Some(CONTAINER)));

        let plan = addressing(&config(false, false), given).unwrap();
        assert_eq!(plan.gateways, []);
        assert_eq!(plan.ips[0].gateway, None);
    }

    #[test]
    fn a_subnet_of_one_or_two_addresses() {
        let plan = addressing(
            &config(true, true),
            ipam(&[("10.1.0.5/32", None), ("fd00::5/128", None)], &[]),
        )
        .unwrap();
        assert_eq!((plan.gateways, plan.routes), (vec![], vec![]));
        let plan = addressing(&config(true, false), ipam(&[("10.1.0.4/31", None)], &[])).unwrap();
        assert_eq!(plan.gateways, ["10.1.0.5/31".parse().unwrap()]);
    }

    #[test]
    fn default_routes_are_added_once_for_each_family() {
        let two = [
            ("10.1.0.5/24", Some("10.1.0.1")),
            ("10.2.0.5/24", Some("10.2.0.1")),
            ("fd00::5/64", None),
        ];
        let plan = addressing(&config(true, true), ipam(&two, &[("10.244.0.0/16", None)])).unwrap();
        assert_eq!(
            shown(&plan.routes),
            ["10.244.0.0/16 -", "0.0.0.0/0 10.1.0.1", "::/0 fd00::1"]
        );
        for given in [None, Some("10.1.0.9")] {
            let plan = addressing(&config(true, true), ipam(&two[..1], &[("0.0.0.0/0", given)])).unwrap();
            assert_eq!(plan.routes.len(), 1, "{given:?}");
        }
    }

    #[test]
    fn the_networks_dns_replaces_that_of_ipam() {
        let dns = |domain: &str| Dns {
            domain: domain.into(),
            ..Dns::default()
        };
        let addressing = Addressing {
            dns: dns("ipam"),
            ..Addressing::default()
        };
        assert_eq!(result(vec![], addressing.clone(), &Dns::default()).dns, dns("ipam"));
        assert_eq!(result(vec![], addressing, &dns("network")).dns, dns("network"));
    }
}
