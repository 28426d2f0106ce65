//! CHECK of layer 3: the kernel's addresses and routes, compared with a result.
//!
//! Later plugins of the chain may have moved routes on purpose (sbr and vrf do): a route is looked for in the table that the
//! result names, then in the main one, then in any, always through the container's interface.

use cni_types::{CniResult, Error, IfName, IpConfig, Result, Route};
use net::{Address, Family, Net, RouteFilter};

/// The addresses of a result that are on the container's interface. One that names no interface is.
pub fn own_addresses<'a>(ifname: &IfName, prev: &'a CniResult) -> Vec<&'a IpConfig> {
    let is_container = |index: usize| {
        let interface = prev.interfaces.get(index);
        interface.is_some_and(|link| link.name == ifname.as_str() && !link.sandbox.is_empty())
    };
    prev.ips
        .iter()
        .filter(|ip| ip.interface.is_none_or(is_container))
        .collect()
}

/// Whether the MAC that the result tells of the container's interface is the one it has.
///
/// # Errors
///
/// Another one. The text begins as the reference's.
pub fn compare_mac(ifname: &IfName, prev: &CniResult, link: &net::Link) -> Result<()> {
    let mac = link.mac.map(|mac| mac.to_string()).unwrap_or_default();
    let told = prev
        .interfaces
        .iter()
        .find(|link| link.name == ifname.as_str() && !link.sandbox.is_empty());
    match told {
        Some(told) if told.mac != mac => {
            let msg = format!("Interface {ifname} Mac {} doesn't match container Mac: {mac}", told.mac);
            Err(Error::internal(msg))
        }
        _ => Ok(()),
    }
}

/// Whether the interface has the addresses that the result tells of it.
///
/// # Errors
///
/// The first that it has not, or that another has too. The text begins as the reference's.
pub fn compare_addresses(ifname: &IfName, prev: &CniResult, present: &[Address]) -> Result<()> {
    for ip in own_addresses(ifname, prev) {
        let why = match present.iter().find(|address| address.cidr == ip.address) {
            None => format!("Failed to match addr {} on interface {ifname}", ip.address),
            Some(address) if address.flags.dad_failed => {
                format!(
                    "{} on interface {ifname} is a duplicate: somebody else has it",
                    ip.address
                )
            }
            Some(_) => continue,
        };
        return Err(Error::internal(why));
    }
    Ok(())
}

/// All routes through the interface, of both families and every table.
///
/// # Errors
///
/// What the kernel says.
pub fn routes_through(pod: &mut Net, index: u32) -> Result<Vec<net::Route>> {
    let through = RouteFilter {
        oif: Some(index),
        table: None,
    };
    let mut routes = pod.routes(Family::V4, through)?;
    routes.extend(pod.routes(Family::V6, through)?);
    Ok(routes)
}

/// Whether each of `expected` (see [`crate::routes::effective`]) is there.
///
/// # Errors
///
/// The first that is not. The text begins as the reference's.
pub fn compare_routes(expected: &[Route], present: &[net::Route]) -> Result<()> {
    match expected
        .iter()
        .find(|route| !present.iter().any(|other| is_same(route, other)))
    {
        None => Ok(()),
        Some(missing) => {
            let via = missing.gw.map(|gw| format!(" via {gw}")).unwrap_or_default();
            Err(Error::internal(format!(
                "Expected Route {}{via} not found in routing table",
                missing.dst
            )))
        }
    }
}

/// Whether two routes are the same, in whatever table; what a result leaves open is the kernel's choice.
fn is_same(route: &Route, other: &net::Route) -> bool {
    other.dst == route.dst
        && other.gateway == route.gw
        && (route.priority == 0 || other.priority == route.priority)
        && (route.mtu == 0 || other.mtu == Some(route.mtu))
        && (route.advmss == 0 || other.advmss == Some(route.advmss))
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
        let wanted = [route("10.0.0.0/8 10.1.0.1")];
        for table in [254, 100] {
            compare_routes(&wanted, &[kernel("10.0.0.0/8 10.1.0.1", table)]).unwrap();
        }
        for other in ["10.0.0.0/8 10.1.0.9", "10.0.0.0/16 10.1.0.1", "10.0.0.0/8 -"] {
            let error = compare_routes(&wanted, &[kernel(other, 254)]).unwrap_err();
            assert_eq!(
                error.msg,
                "Expected Route 10.0.0.0/8 via 10.1.0.1 not found in routing table"
            );
        }
        compare_routes(&[], &[]).unwrap();
    }

    #[test]
    fn metrics_count_where_the_route_has_them() {
        let wanted = [Route {
            mtu: 1400,
            ..route("10.0.0.0/8 10.1.0.1")
        }];
        let plain = kernel("10.0.0.0/8 10.1.0.1", 254);
        assert!(compare_routes(&wanted, std::slice::from_ref(&plain)).is_err());
        compare_routes(
            &wanted,
            &[net::Route {
                mtu: Some(1400),
                ..plain
            }],
        )
        .unwrap();
    }
}
