//! Routes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use cni_types::Cidr;
use libc::{RTM_DELROUTE, RTM_GETROUTE, RTM_NEWROUTE};
use netlink_packet_core::{Emitable, NLM_F_CREATE};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteMetric, RouteProtocol, RouteScope, RouteType,
};
use nix::errno::Errno;
use rtnetlink::RouteMessageBuilder;

use crate::Net;
use crate::attributes::{Attribute, attributes, ip};
use crate::error::{Failure, Result};

// linux/rtnetlink.h
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const RTA_PREFSRC: u16 = 7;
const RTA_METRICS: u16 = 8;
const RTA_MULTIPATH: u16 = 9;
const RTA_TABLE: u16 = 15;
const RTA_VIA: u16 = 18;
const RTAX_MTU: u16 = 2;
const RTAX_ADVMSS: u16 = 8;
/// `sizeof(struct rtnexthop)`.
const NEXT_HOP_LEN: usize = 8;

/// A family of IP addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// A route as the kernel has it. One with several next hops is as many routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// Where it leads: `0.0.0.0/0` or `::/0` for a default route.
    pub dst: Cidr,
    /// The next hop.
    pub gateway: Option<IpAddr>,
    /// The index of the link.
    pub oif: Option<u32>,
    /// The table: 254 is main, 255 local.
    pub table: u32,
    /// The metric: the lowest wins; 0 where the kernel names none.
    pub priority: u32,
    /// The scope: 0 universe, 253 link, 254 host.
    pub scope: u8,
    /// Who made it: 2 kernel, 3 boot (as everything made here), 4 static.
    pub protocol: u8,
    /// Whether it leads to single hosts (`RTN_UNICAST`), not broadcast, local, unreachable and the like.
    pub unicast: bool,
    /// The address that packets get which have none yet.
    pub source: Option<IpAddr>,
    /// The path's MTU, in bytes.
    pub mtu: Option<u32>,
    /// The maximum segment size to advertise, in bytes.
    pub advmss: Option<u32>,
}

/// A unicast route to add or delete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewRoute {
    /// Where it leads. The kernel refuses host bits in IPv4 and clears them in IPv6.
    pub dst: Cidr,
    /// The next hop; `None` where the destination is on the link.
    pub gateway: Option<IpAddr>,
    /// The index of the link.
    pub oif: u32,
    /// The table; `None` for main.
    pub table: Option<u32>,
    /// The metric; `None` for the kernel's choice: 0 in IPv4, 1024 in IPv6. On deletion: any.
    pub priority: Option<u32>,
    /// The scope; `None` for universe. On deletion: any.
    pub scope: Option<u8>,
    /// The address that packets get which have none yet; `None` for the kernel's choice. On deletion: any.
    pub source: Option<IpAddr>,
    /// The path's MTU, in bytes.
    pub mtu: Option<u32>,
    /// The maximum segment size to advertise, in bytes.
    pub advmss: Option<u32>,
}

/// Which routes a list holds. Every given condition must hold.
#[derive(Debug, Clone, Copy, Default)]
pub struct RouteFilter {
    /// Routes of this table.
    pub table: Option<u32>,
    /// Routes through the link of this index.
    pub oif: Option<u32>,
}

impl Family {
    /// The family of an address.
    pub fn of(address: IpAddr) -> Family {
        if address.is_ipv4() { Family::V4 } else { Family::V6 }
    }

    fn any(self) -> Option<Cidr> {
        match self {
            Family::V4 => Cidr::new(Ipv4Addr::UNSPECIFIED.into(), 0),
            Family::V6 => Cidr::new(Ipv6Addr::UNSPECIFIED.into(), 0),
        }
    }
}

impl NewRoute {
    /// A route to `dst` through the link `oif`, with nothing else said.
    pub fn new(dst: Cidr, oif: u32) -> NewRoute {
        NewRoute {
            dst,
            gateway: None,
            oif,
            table: None,
            priority: None,
            scope: None,
            source: None,
            mtu: None,
            advmss: None,
        }
    }
}

impl Net {
    /// Adds a route, with protocol `boot`, as `ip route` and the reference do. Beside another route of this destination and
    /// metric it takes the first place for IPv4, and shares the traffic for IPv6: a container on two networks has a default
    /// route of each.
    ///
    /// # Errors
    /// The kernel refuses it; [`crate::Error::is_exists`] where the table has this very route.
    pub fn add_route(&mut self, route: &NewRoute) -> Result<()> {
        let gateway = |ip: IpAddr| format!(" by {ip}");
        log::debug!(
            "route to {}{} on link {}",
            route.dst,
            route.gateway.map(gateway).unwrap_or_default(),
            route.oif
        );
        let mut request = route
            .message()
            .map_err(|failure| failure.of("add route to", route.dst.to_string()))?;
        request.header.protocol = RouteProtocol::Boot;
        request.header.scope = RouteScope::from(route.scope.unwrap_or(u8::from(RouteScope::Universe)));
        self.socket
            .change(RTM_NEWROUTE, NLM_F_CREATE, &request)
            .map_err(|failure| failure.of("add route to", self.described(route)))
    }

    /// Deletes a route and tells whether it was there. What `route` leaves open matches any.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn delete_route(&mut self, route: &NewRoute) -> Result<bool> {
        let mut request = route
            .message()
            .map_err(|failure| failure.of("delete route to", route.dst.to_string()))?;
        request.header.protocol = RouteProtocol::Unspec;
        request.header.scope = RouteScope::from(route.scope.unwrap_or(u8::from(RouteScope::NoWhere)));
        match self.socket.change(RTM_DELROUTE, 0, &request) {
            Ok(()) => Ok(true),
            Err(failure) if matches!(failure.errno(), Errno::ESRCH | Errno::ENODEV) => Ok(false),
            Err(failure) => Err(failure.of("delete route to", self.described(route))),
        }
    }

    /// The routes of a family that `filter` lets through; none where this kernel lacks the family or the table.
    ///
    /// # Errors
    /// The kernel refuses the request, or the list changed at every one of many attempts.
    pub fn routes(&mut self, family: Family, filter: RouteFilter) -> Result<Vec<Route>> {
        match self.socket.dump(RTM_GETROUTE, &filter.request(family), &decode_paths) {
            Ok(routes) => {
                let mut routes: Vec<Route> = routes.into_iter().flatten().collect();
                // Kernels without strict checking do not filter, and one without the family lists all others.
                routes.retain(|route| Family::of(route.dst.address()) == family && filter.matches(route));
                Ok(routes)
            }
            Err(failure) if matches!(failure.errno(), Errno::ENOENT | Errno::ENODEV) => Ok(Vec::new()),
            Err(failure) => Err(failure.of("list", "routes")),
        }
    }

    /// The default routes of the main table, the one that wins first.
    ///
    /// # Errors
    /// As [`Net::routes`].
    pub fn default_routes(&mut self, family: Family) -> Result<Vec<Route>> {
        let main = RouteFilter {
            table: Some(u32::from(RouteHeader::RT_TABLE_MAIN)),
            oif: None,
        };
        let mut routes = self.routes(family, main)?;
        routes.retain(|route| route.unicast && Some(route.dst) == family.any());
        routes.sort_by_key(|route| route.priority);
        Ok(routes)
    }

    /// The route that a packet of this namespace to `address` would take, by a look-up and not by a list; `None` where there
    /// is no way to it.
    ///
    /// # Errors
    /// The kernel refuses the request.
    pub fn route_to(&mut self, address: IpAddr) -> Result<Option<Route>> {
        let mut request = RouteFilter::default().request(Family::of(address));
        let (destination, length) = match address {
            IpAddr::V4(ipv4) => (RouteAddress::Inet(ipv4), 32),
            IpAddr::V6(ipv6) => (RouteAddress::Inet6(ipv6), 128),
        };
        request.header.destination_prefix_length = length;
        request.attributes.push(RouteAttribute::Destination(destination));
        match self.socket.get(RTM_GETROUTE, &request, &decode) {
            Ok(route) => Ok(route.filter(|route| route.unicast)),
            Err(failure) if is_unreachable(failure.errno()) => Ok(None),
            Err(failure) => Err(failure.of("look up route to", address.to_string())),
        }
    }

    fn described(&mut self, route: &NewRoute) -> String {
        let via = route
            .gateway
            .map(|gateway| format!(" via {gateway}"))
            .unwrap_or_default();
        let table = route.table.map(|table| format!(" table {table}")).unwrap_or_default();
        format!("{}{via}{table} on {}", route.dst, self.named(route.oif))
    }
}

/// How the kernel tells that no route leads there, or one that says so.
fn is_unreachable(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::ENETUNREACH | Errno::EHOSTUNREACH | Errno::EACCES | Errno::EINVAL | Errno::EAFNOSUPPORT
    )
}

impl NewRoute {
    fn message(&self) -> Result<RouteMessage, Failure> {
        let table = self.table.unwrap_or(u32::from(RouteHeader::RT_TABLE_MAIN));
        let mut request = RouteMessageBuilder::<IpAddr>::new()
            .kind(RouteType::Unicast)
            .table_id(table)
            .destination_prefix(self.dst.address(), self.dst.prefix())
            .map_err(|e| Failure::new(Errno::EINVAL, e.to_string()))?
            .output_interface(self.oif);
        if let Some(gateway) = self.gateway {
            request = request.gateway(gateway).map_err(|_| {
                Failure::new(
                    Errno::EINVAL,
                    format!("gateway {gateway} is of another family than the destination"),
                )
            })?;
        }
        if let Some(source) = self.source {
            request = request.pref_source(source).map_err(|_| {
                Failure::new(
                    Errno::EINVAL,
                    format!("source {source} is of another family than the destination"),
                )
            })?;
        }
        if let Some(priority) = self.priority {
            request = request.priority(priority);
        }
        let metrics: Vec<RouteMetric> = [self.mtu.map(RouteMetric::Mtu), self.advmss.map(RouteMetric::Advmss)]
            .into_iter()
            .flatten()
            .collect();
        let mut request = request.build();
        if table > u32::from(u8::MAX) {
            // RTA_TABLE counts only where the header names none.
            request.header.table = RouteHeader::RT_TABLE_UNSPEC;
        }
        if !metrics.is_empty() {
            request.attributes.push(RouteAttribute::Metrics(metrics));
        }
        Ok(request)
    }
}

impl RouteFilter {
    fn request(&self, family: Family) -> RouteMessage {
        let mut request = RouteMessage::default();
        request.header.address_family = match family {
            Family::V4 => AddressFamily::Inet,
            Family::V6 => AddressFamily::Inet6,
        };
        request.attributes.extend(self.table.map(RouteAttribute::Table));
        request.attributes.extend(self.oif.map(RouteAttribute::Oif));
        request
    }

    fn matches(&self, route: &Route) -> bool {
        self.table.is_none_or(|table| route.table == table) && self.oif.is_none_or(|oif| route.oif == Some(oif))
    }
}

/// Decodes `RTM_NEWROUTE`: of a route with several next hops the first.
pub(crate) fn decode(payload: &[u8]) -> Result<Option<Route>, Failure> {
    Ok(decode_paths(payload)?.and_then(|paths| paths.into_iter().next()))
}

/// Decodes `RTM_NEWROUTE` to one route for each next hop. A route that is neither IPv4 nor IPv6 is skipped.
fn decode_paths(payload: &[u8]) -> Result<Option<Vec<Route>>, Failure> {
    let header = RouteHeader::parse(payload).map_err(|_| Failure::malformed("route header"))?;
    let family = match header.address_family {
        AddressFamily::Inet => Family::V4,
        AddressFamily::Inet6 => Family::V6,
        _ => return Ok(None),
    };
    let Some(dst) = family.any() else { return Ok(None) };
    let mut route = Route {
        dst,
        gateway: None,
        oif: None,
        table: u32::from(header.table),
        priority: 0,
        scope: u8::from(header.scope),
        protocol: u8::from(header.protocol),
        unicast: header.kind == RouteType::Unicast,
        source: None,
        mtu: None,
        advmss: None,
    };
    let mut multipath = None;
    for attribute in attributes(payload.get(header.buffer_len()..).unwrap_or_default()) {
        let attribute = attribute?;
        match attribute.kind {
            RTA_DST => {
                route.dst = Cidr::new(attribute.ip()?, header.destination_prefix_length)
                    .ok_or_else(|| attribute.malformed())?;
            }
            RTA_PRIORITY => route.priority = attribute.u32()?,
            RTA_PREFSRC => route.source = Some(attribute.ip()?),
            RTA_TABLE => route.table = attribute.u32()?,
            RTA_METRICS => metrics(attribute.value, &mut route)?,
            RTA_MULTIPATH => multipath = Some(attribute),
            _ => next_hop(&attribute, &mut route)?,
        }
    }
    match multipath {
        Some(hops) => next_hops(&hops, &route).map(Some),
        None => Ok(Some(vec![route])),
    }
}

fn next_hop(attribute: &Attribute<'_>, route: &mut Route) -> Result<(), Failure> {
    match attribute.kind {
        RTA_OIF => route.oif = Some(attribute.u32()?),
        RTA_GATEWAY => route.gateway = Some(attribute.ip()?),
        // A gateway of the other family: two bytes that name it, then the address.
        RTA_VIA => route.gateway = attribute.value.get(2..).and_then(ip),
        _ => {}
    }
    Ok(())
}

/// Takes in every `struct rtnexthop` of a route: length, flags, hops, index, attributes.
fn next_hops(multipath: &Attribute<'_>, route: &Route) -> Result<Vec<Route>, Failure> {
    let malformed = || multipath.malformed();
    let mut paths = Vec::new();
    let mut rest = multipath.value;
    while let Some(head) = rest.first_chunk::<NEXT_HOP_LEN>() {
        let [len_low, len_high, _, _, index @ ..] = *head;
        let mut path = Route {
            oif: Some(u32::from_ne_bytes(index)),
            ..*route
        };
        let length = usize::from(u16::from_ne_bytes([len_low, len_high]));
        for attribute in attributes(rest.get(NEXT_HOP_LEN..length).ok_or_else(malformed)?) {
            next_hop(&attribute?, &mut path)?;
        }
        paths.push(path);
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    if paths.is_empty() { Err(malformed()) } else { Ok(paths) }
}

fn metrics(bytes: &[u8], route: &mut Route) -> Result<(), Failure> {
    for attribute in attributes(bytes) {
        let attribute = attribute?;
        match attribute.kind {
            RTAX_MTU => route.mtu = Some(attribute.u32()?),
            RTAX_ADVMSS => route.advmss = Some(attribute.u32()?),
            _ => {}
        }
    }
    Ok(())
}
