//! Routes: from a result to what the kernel gets.

use cni_types::{IpConfig, Route};

/// Scopes from here on are of the link or narrower and take no gateway (RT_SCOPE_LINK of linux/rtnetlink.h).
const SCOPE_LINK: u8 = 253;

/// The routes as the kernel gets them, less duplicates: one without gateway takes the first of its family among `ips`, unless
/// its scope says that the destination is on the link.
pub fn effective(ips: &[IpConfig], routes: &[Route]) -> Vec<Route> {
    let gateway_of = |ipv4: bool| {
        ips.iter()
            .filter_map(|ip| ip.gateway)
            .find(|gateway| gateway.is_ipv4() == ipv4)
    };
    let mut effective: Vec<Route> = Vec::new();
    for route in routes {
        let on_link = route.scope.is_some_and(|scope| scope >= SCOPE_LINK);
        let gw = route
            .gw
            .or_else(|| gateway_of(route.dst.is_ipv4()).filter(|_| !on_link));
        let route = Route {
            gw,
            dst: route.dst.network(),
            ..route.clone()
        };
        if !effective.contains(&route) {
            effective.push(route);
        }
    }
    effective
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(dst: &str, gw: Option<&str>) -> Route {
        Route::new(dst.parse().unwrap(), gw.map(|text| text.parse().unwrap()))
    }

    #[test]
    fn routes_without_gateway_take_the_first_of_their_family() {
        let ips = [IpConfig {
            interface: None,
            address: "10.1.0.5/24".parse().unwrap(),
            gateway: Some("10.1.0.1".parse().unwrap()),
        }];
        let given = [
            route("10.5.3.1/16", None),
            route("10.5.0.0/16", None),
            route("10.6.0.0/16", Some("10.1.0.9")),
            route("2001:db8::/32", None),
            Route {
                scope: Some(SCOPE_LINK),
                ..route("10.7.0.0/16", None)
            },
        ];
        let expected = [
            route("10.5.0.0/16", Some("10.1.0.1")),
            route("10.6.0.0/16", Some("10.1.0.9")),
            route("2001:db8::/32", None),
            Route {
                scope: Some(SCOPE_LINK),
                ..route("10.7.0.0/16", None)
            },
        ];
        assert_eq!(effective(&ips, &given), expected);
    }
}
