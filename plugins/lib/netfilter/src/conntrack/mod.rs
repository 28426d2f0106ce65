//! Connections that the kernel remembers.
//!
//! The destination of a connection is translated once, for its first packet; what follows goes the same way whatever the
//! rules say now. A UDP client that goes on sending never makes a new connection, so one that began before a port was
//! published, or that led to a container that is gone, would stay lost until it pauses for half a minute or more.
//!
//! The kernel finds a connection by its whole tuple only, and of those to be forgotten nobody knows the clients: all have
//! to be looked through. There are two ways to list them:
//!
//! * [`netlink`] takes the lock of each bucket of the kernel's table (`ctnetlink_dump_table`), of which there are 262,144
//!   on most machines, however few connections: 20 ms, twice what publishing a port costs otherwise.
//! * [`proc`] takes no lock, but writes text: 1 ms where there are few connections, 10 ms where there are a thousand, as long
//!   as netlink where there are some thousands.
//!
//! So how many there are decides, and where there are none, as on a node that has just started, nothing is listed.

mod netlink;
mod proc;

use std::collections::HashMap;
use std::net::{IpAddr, UdpSocket};

use cni_types::{Error, Result};
use nft::Connection;

use crate::Family;

/// Host ports whose connections are to be forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HostPorts {
    /// The family of the host's addresses.
    pub(crate) family: Family,
    /// The one address; `None` for every local address.
    pub(crate) address: Option<IpAddr>,
    /// The first port.
    pub(crate) first: u16,
    /// The last port.
    pub(crate) last: u16,
}

/// A UDP connection as its first packet was.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Flow {
    family: Family,
    /// Where it was opened to.
    destination: (IpAddr, u16),
    /// What netlink names it by: the content of `CTA_TUPLE_ORIG`.
    tuple: Vec<u8>,
    /// The kernel's number for it, where that is known.
    number: Option<Vec<u8>>,
}

/// Forgets the UDP connections that were opened to one of these ports, wherever they were led. Connections that merely
/// pass through the node to such a port elsewhere are left alone.
///
/// # Errors
///
/// What the kernel said.
pub(crate) fn flush_udp(ports: &[HostPorts]) -> Result<()> {
    if ports.is_empty() {
        return Ok(());
    }
    let failed = |e: nft::Error| Error::internal(e.to_string());
    let flows = match proc::udp_flows() {
        Some(flows) => flows,
        None => dumped(ports).map_err(failed)?,
    };
    let mut local = LocalAddresses::default();
    let concerned: Vec<Flow> = flows
        .into_iter()
        .filter(|flow| leads_to(flow, ports, &mut local))
        .collect();
    if concerned.is_empty() {
        return Ok(());
    }
    let mut connection = Connection::open().map_err(failed)?;
    netlink::forget(&mut connection, &concerned).map_err(failed)
}

/// The UDP connections of the families that `ports` are of.
fn dumped(ports: &[HostPorts]) -> Result<Vec<Flow>, nft::Error> {
    let mut connection = Connection::open()?;
    let mut flows = Vec::new();
    for family in Family::BOTH {
        if ports.iter().any(|ports| ports.family == family) {
            flows.extend(netlink::udp_flows(&mut connection, family)?);
        }
    }
    Ok(flows)
}

fn leads_to(flow: &Flow, ports: &[HostPorts], local: &mut LocalAddresses) -> bool {
    let (address, port) = flow.destination;
    let mut listed = ports
        .iter()
        .filter(|ports| ports.family == flow.family && (ports.first..=ports.last).contains(&port));
    listed.any(|ports| {
        ports
            .address
            .map_or_else(|| local.contains(address), |listened| listened == address)
    })
}

/// Which addresses are the node's own.
#[derive(Default)]
struct LocalAddresses(HashMap<IpAddr, bool>);

impl LocalAddresses {
    /// A socket can be bound to local addresses only, which is a way to ask that needs no list of them.
    fn contains(&mut self, address: IpAddr) -> bool {
        *self
            .0
            .entry(address)
            .or_insert_with(|| UdpSocket::bind((address, 0)).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many clients of each family, each with a port of its own, send a datagram to port 4000.
    fn clients(number: usize) {
        for source in (20_000..).take(number) {
            for server in ["127.0.0.1:4000", "[::1]:4000"] {
                let server: std::net::SocketAddr = server.parse().unwrap();
                let client = UdpSocket::bind((server.ip(), source)).unwrap();
                client.send_to(b"?", server).unwrap();
            }
        }
    }

    fn port(family: Family) -> HostPorts {
        HostPorts {
            family,
            address: None,
            first: 3999,
            last: 4001,
        }
    }

    fn names(flows: &[Flow]) -> Vec<(IpAddr, u16, Vec<u8>)> {
        let name = |flow: &Flow| {
            let (address, port) = flow.destination;
            (address, port, flow.tuple.clone())
        };
        let mut names: Vec<_> = flows.iter().map(name).collect();
        names.sort();
        names
    }

    #[test]
    fn whichever_way_they_are_listed_the_same_connections_are_found_and_forgotten() {
        testkit::world(|w| {
            w.sh("ip link set lo up; nft add table inet x
                nft add chain inet x c '{ type filter hook output priority 0; }'; nft add rule inet x c ct state new");
            assert_eq!(proc::udp_flows(), Some(Vec::new()));
            let both = Family::BOTH.map(port);
            // One page of text; several; and more than are read as text.
            for number in [3, 200, proc::MOST] {
                clients(number);
                let through_netlink = dumped(&both).unwrap();
                assert_eq!(through_netlink.len(), 2 * number);
                match proc::udp_flows() {
                    Some(flows) => assert_eq!(names(&flows), names(&through_netlink)),
                    None => assert_eq!(number, proc::MOST),
                }
                flush_udp(&both[..1]).unwrap();
                let left = dumped(&both).unwrap();
                assert_eq!(left.len(), number);
                assert!(left.iter().all(|flow| flow.family == Family::V6));
                flush_udp(&both).unwrap();
                assert_eq!(dumped(&both).unwrap(), []);
            }
        });
    }
}
