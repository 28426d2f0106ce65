//! Connections that the kernel remembers.
//!
//! The destination of a connection is translated once, for its first packet; what follows goes the same way whatever the
//! rules say now. A UDP client that goes on sending never makes a new connection, so one that began before a port was
//! published, or that led to a container that is gone, would stay lost until it pauses for half a minute or more.

use std::collections::HashMap;
use std::net::{IpAddr, UdpSocket};

use cni_types::{Error, Result};
use nft::{Attributes, Connection, Reader, Request};

use crate::{Family, Protocol};

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

/// Forgets the UDP connections that were opened to one of these ports, wherever they were led. Connections that merely
/// pass through the node to such a port elsewhere are left alone.
///
/// # Errors
///
/// What the kernel said.
pub(crate) fn flush_udp(ports: &[HostPorts]) -> Result<()> {
    for family in Family::BOTH {
        let ports: Vec<HostPorts> = ports.iter().copied().filter(|ports| ports.family == family).collect();
        if !ports.is_empty() {
            flush_family(family, &ports).map_err(|e| Error::internal(e.to_string()))?;
        }
    }
    Ok(())
}

/// nfnetlink.h, `NFNL_SUBSYS_CTNETLINK`.
const CTNETLINK: u8 = 1;
/// nfnetlink_conntrack.h, `IPCTNL_MSG_CT_*`.
const GET: u8 = 1;
const DELETE: u8 = 2;

const CTA_TUPLE_ORIG: u16 = 1;
const CTA_ID: u16 = 12;
const CTA_FILTER: u16 = 25;
const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_DST_PORT: u16 = 3;

fn flush_family(family: Family, ports: &[HostPorts]) -> Result<(), nft::Error> {
    let mut connection = Connection::open()?;
    let mut local = LocalAddresses::default();
    let mut deletions = Vec::new();
    for entry in udp_entries(&mut connection, family)? {
        let Some((address, port)) = original_destination(family, &entry)? else {
            continue;
        };
        let concerned = ports
            .iter()
            .filter(|ports| (ports.first..=ports.last).contains(&port))
            .any(|ports| {
                ports
                    .address
                    .map_or_else(|| local.contains(address), |listened| listened == address)
            });
        if concerned {
            deletions.push(deletion(family, &entry)?);
        }
    }
    for answer in connection.request(&deletions)? {
        match answer {
            // It ended by itself.
            Err(error) if error.is_absent() => {}
            answer => _ = answer?,
        }
    }
    Ok(())
}

/// The UDP connections, unread. Kernels before 5.8 do not know the filter and send all.
fn udp_entries(connection: &mut Connection, family: Family) -> Result<Vec<Vec<u8>>, nft::Error> {
    /// nf_internals.h, `CTA_FILTER_FLAG(CTA_PROTO_NUM)`; in the machine's byte order, unlike the rest.
    const BY_PROTOCOL: u32 = 1 << 3;
    const CTA_FILTER_ORIG_FLAGS: u16 = 1;
    let what = "list UDP connections";
    let filtered = request(family, GET, what, |list| {
        list.nest(CTA_FILTER, |filter| {
            filter.bytes(CTA_FILTER_ORIG_FLAGS, &BY_PROTOCOL.to_ne_bytes());
        });
        list.nest(CTA_TUPLE_ORIG, |tuple| {
            tuple.nest(CTA_TUPLE_PROTO, |protocol| {
                protocol.u8(CTA_PROTO_NUM, Protocol::Udp.number());
            });
        });
    });
    connection.dump(&filtered)
}

fn request(family: Family, operation: u8, what: &str, fill: impl FnOnce(&mut Attributes)) -> Request {
    /// socket.h, `AF_INET` and `AF_INET6`, the same on every architecture.
    const AF_INET: u8 = 2;
    const AF_INET6: u8 = 10;
    let mut attributes = Attributes::new();
    fill(&mut attributes);
    Request {
        subsystem: CTNETLINK,
        operation,
        flags: 0,
        family: match family {
            Family::V4 => AF_INET,
            Family::V6 => AF_INET6,
        },
        attributes,
        what: what.to_owned(),
    }
}

/// Where a UDP connection was opened to. `None` for another protocol's.
fn original_destination(family: Family, entry: &[u8]) -> Result<Option<(IpAddr, u16)>, nft::Error> {
    const CTA_IP_V4_DST: u16 = 2;
    const CTA_IP_V6_DST: u16 = 4;
    let tuple = Reader::new(entry)?.nested(CTA_TUPLE_ORIG)?;
    let (ip, protocol) = (tuple.nested(CTA_TUPLE_IP)?, tuple.nested(CTA_TUPLE_PROTO)?);
    if protocol.u8(CTA_PROTO_NUM) != Some(Protocol::Udp.number()) {
        return Ok(None);
    }
    let address = match family {
        Family::V4 => ip.u32(CTA_IP_V4_DST).map(|bits| IpAddr::V4(bits.into())),
        Family::V6 => ip.get(CTA_IP_V6_DST).and_then(|bytes| {
            let octets: [u8; 16] = bytes.try_into().ok()?;
            Some(IpAddr::V6(octets.into()))
        }),
    };
    Ok(address.zip(protocol.u16(CTA_PROTO_DST_PORT)))
}

/// The request that forgets an entry: named by its tuple, and by its number so that no newer one is meant.
fn deletion(family: Family, entry: &[u8]) -> Result<Request, nft::Error> {
    let entry = Reader::new(entry)?;
    let tuple = entry.get(CTA_TUPLE_ORIG).unwrap_or_default();
    let number = entry.get(CTA_ID);
    let deletion = request(family, DELETE, "forget a UDP connection", |attributes| {
        attributes.nested_bytes(CTA_TUPLE_ORIG, tuple);
        if let Some(number) = number {
            attributes.bytes(CTA_ID, number);
        }
    });
    Ok(Request {
        flags: Request::ACK,
        ..deletion
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
