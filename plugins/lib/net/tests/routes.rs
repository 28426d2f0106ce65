//! Routes, asserted through our own view and through `ip -j`.
#![allow(clippy::unwrap_used, reason = "a test stops where something is missing")]

use cni_types::Cidr;
use net::{Family, Net, NewRoute, Route, RouteFilter};
use serde_json::Value;
use testkit::{World, world};

fn cidr(text: &str) -> Cidr {
    text.parse().unwrap()
}

/// A link that is up, with an address of both families, and its index.
fn link(w: &World, host: &mut Net, name: &str, net: u8) -> u32 {
    w.sh(&format!(
        "ip link add {name} type bridge; ip addr add 10.{net}.0.5/24 dev {name}; ip link set {name} up
         ip addr add fd0{net}::5/64 dev {name} nodad"
    ));
    host.link(name).unwrap().unwrap().index
}

fn ip(w: &World, arguments: &str) -> Vec<Value> {
    let routes: Value = serde_json::from_str(&w.sh(&format!("ip -d -j {arguments}"))).unwrap();
    routes.as_array().unwrap().clone()
}

fn through(host: &mut Net, family: Family, oif: u32, dst: &str) -> Option<Route> {
    let filter = RouteFilter {
        oif: Some(oif),
        table: None,
    };
    let found = host.routes(family, filter).unwrap();
    assert!(found.iter().all(|route| route.oif == Some(oif)));
    found.into_iter().find(|route| route.dst == cidr(dst))
}

#[test]
fn a_route_takes_every_field() {
    world(|w| {
        let mut host = Net::host().unwrap();
        let oif = link(w, &mut host, "br1", 1);
        for (family, dst, gateway, ip_option) in [
            (Family::V4, "10.9.0.0/16", "10.1.0.1", "-4"),
            (Family::V6, "fd09::/32", "fd01::1", "-6"),
        ] {
            let gateway = gateway.parse().unwrap();
            let wanted = NewRoute {
                gateway: Some(gateway),
                table: Some(1000),
                priority: Some(7),
                mtu: Some(1300),
                advmss: Some(1200),
                ..NewRoute::new(cidr(dst), oif)
            };
            host.add_route(&wanted).unwrap();
            let seen = through(&mut host, family, oif, dst).unwrap();
            assert_eq!((seen.gateway, seen.table, seen.priority), (Some(gateway), 1000, 7));
            assert_eq!((seen.mtu, seen.advmss, seen.scope), (Some(1300), Some(1200), 0));
            assert!(seen.unicast);

            let seen = &ip(w, &format!("{ip_option} route show table 1000"))[0];
            assert_eq!(
                (&seen["dst"], &seen["gateway"]),
                (&dst.into(), &gateway.to_string().into())
            );
            assert_eq!((&seen["protocol"], &seen["metric"]), (&"boot".into(), &7.into()));
            assert_eq!(
                (&seen["metrics"][0]["mtu"], &seen["metrics"][0]["advmss"]),
                (&1300.into(), &1200.into())
            );

            assert!(host.add_route(&wanted).unwrap_err().is_exists());
            assert!(host.delete_route(&wanted).unwrap());
            assert!(!host.delete_route(&wanted).unwrap());
            assert_eq!(through(&mut host, family, oif, dst), None);
        }
    });
}

#[test]
fn a_scope_is_set_and_a_deletion_that_names_none_finds_it() {
    world(|w| {
        let mut host = Net::host().unwrap();
        let oif = link(w, &mut host, "br1", 1);
        let wanted = NewRoute {
            scope: Some(253),
            ..NewRoute::new(cidr("10.9.0.0/16"), oif)
        };
        host.add_route(&wanted).unwrap();
        assert_eq!(through(&mut host, Family::V4, oif, "10.9.0.0/16").unwrap().scope, 253);
        assert_eq!(ip(w, "route show 10.9.0.0/16")[0]["scope"], "link");
        assert!(host.delete_route(&NewRoute::new(cidr("10.9.0.0/16"), oif)).unwrap());
        assert!(ip(w, "route show 10.9.0.0/16").is_empty());
    });
}

#[test]
fn default_routes_come_in_the_order_in_which_they_win() {
    world(|w| {
        let mut host = Net::host().unwrap();
        let (one, two) = (link(w, &mut host, "br1", 1), link(w, &mut host, "br2", 2));
        for family in [Family::V4, Family::V6] {
            assert!(host.default_routes(family).unwrap().is_empty());
        }
        let any = NewRoute {
            gateway: Some("10.1.0.1".parse().unwrap()),
            ..NewRoute::new(cidr("0.0.0.0/0"), one)
        };
        host.add_route(&NewRoute {
            priority: Some(200),
            ..any
        })
        .unwrap();
        let other = NewRoute {
            gateway: Some("10.2.0.1".parse().unwrap()),
            oif: two,
            ..any
        };
        host.add_route(&NewRoute {
            priority: Some(100),
            ..other
        })
        .unwrap();
        host.add_route(&NewRoute { table: Some(99), ..any }).unwrap();
        w.sh("ip route add unreachable default metric 1");
        let found: Vec<_> = host
            .default_routes(Family::V4)
            .unwrap()
            .iter()
            .map(|r| (r.oif, r.priority))
            .collect();
        assert_eq!(found, [(Some(two), 100), (Some(one), 200)]);

        host.add_route(&NewRoute {
            gateway: Some("fd01::1".parse().unwrap()),
            ..NewRoute::new(cidr("::/0"), one)
        })
        .unwrap();
        let found = host.default_routes(Family::V6).unwrap();
        assert_eq!((found.len(), found[0].oif, found[0].priority), (1, Some(one), 1024));
    });
}

#[test]
fn of_several_next_hops_the_first_is_told() {
    world(|w| {
        let mut host = Net::host().unwrap();
        let (one, two) = (link(w, &mut host, "br1", 1), link(w, &mut host, "br2", 2));
        w.sh(
            "ip route add default nexthop via 10.1.0.1 dev br1 nexthop via 10.2.0.1 dev br2
              ip route add default nexthop via fd02::1 dev br2 nexthop via fd01::1 dev br1
              ip route add 10.8.0.0/16 via inet6 fd02::7 dev br2",
        );
        let seen = host.default_routes(Family::V4).unwrap()[0];
        assert_eq!((seen.oif, seen.gateway), (Some(one), Some("10.1.0.1".parse().unwrap())));
        assert!(host.default_routes(Family::V6).unwrap()[0].oif.is_some());
        let seen = through(&mut host, Family::V4, two, "10.8.0.0/16").unwrap();
        assert_eq!(seen.gateway, Some("fd02::7".parse().unwrap()));
    });
}

#[test]
fn lists_are_filtered_by_table() {
    world(|w| {
        let mut host = Net::host().unwrap();
        let oif = link(w, &mut host, "br1", 1);
        let wanted = NewRoute {
            table: Some(5),
            ..NewRoute::new(cidr("10.9.0.0/16"), oif)
        };
        host.add_route(&wanted).unwrap();
        let of = |table| RouteFilter {
            table: Some(table),
            oif: None,
        };
        let found = host.routes(Family::V4, of(5)).unwrap();
        assert_eq!((found.len(), found[0].dst, found[0].table), (1, cidr("10.9.0.0/16"), 5));
        assert!(host.routes(Family::V4, of(777)).unwrap().is_empty());
        assert!(host.routes(Family::V6, of(777)).unwrap().is_empty());
        assert!(
            host.routes(Family::V4, RouteFilter::default())
                .unwrap()
                .iter()
                .any(|route| route.table == 255)
        );
    });
}

#[test]
fn a_refusal_describes_the_route() {
    world(|w| {
        let mut host = Net::host().unwrap();
        let oif = link(w, &mut host, "br1", 1);
        let route = NewRoute::new(cidr("10.9.0.0/16"), oif);
        let error = host
            .add_route(&NewRoute {
                gateway: Some("10.77.0.1".parse().unwrap()),
                ..route
            })
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "add route to 10.9.0.0/16 via 10.77.0.1 on \"br1\": Network is unreachable (ENETUNREACH): Nexthop has \
             invalid gateway"
        );
        let mixed = NewRoute {
            gateway: Some("10.1.0.1".parse().unwrap()),
            ..NewRoute::new(cidr("fd09::/16"), oif)
        };
        assert!(
            host.add_route(&mixed)
                .unwrap_err()
                .to_string()
                .contains("another family")
        );
    });
}

#[test]
fn the_route_of_a_packet_is_looked_up() {
    world(|w| {
        let mut host = Net::host().unwrap();
        let near = link(w, &mut host, "br1", 1);
        let far = link(w, &mut host, "br2", 2);
        w.sh("ip route add 10.9.0.0/16 via 10.2.0.1; ip route add unreachable 10.8.0.0/16; ip route add prohibit 10.7.0.0/16
              ip route add blackhole 10.6.0.0/16; ip -6 route add fd09::/32 via fd02::1");
        let mut to = |address: &str| host.route_to(address.parse().unwrap()).unwrap();
        for (address, oif) in [
            ("10.1.0.77", Some(near)),
            ("10.9.0.1", Some(far)),
            ("fd01::77", Some(near)),
            ("fd09::1", Some(far)),
            // Our own, and what leads nowhere.
            ("10.1.0.5", None),
            ("10.8.0.1", None),
            ("10.7.0.1", None),
            ("10.6.0.1", None),
            ("192.0.2.1", None),
            ("2001:db8::1", None),
        ] {
            assert_eq!(to(address).and_then(|route| route.oif), oif, "{address}");
        }
    });
}
