//! Connection tracking's netlink, `NFNL_SUBSYS_CTNETLINK`.

use std::net::{IpAddr, SocketAddr};

use nft::{Attributes, Connection, Error, Reader, Request};

use super::Flow;
use crate::{Family, Protocol};

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
const CTA_IP_V4_SRC: u16 = 1;
const CTA_IP_V4_DST: u16 = 2;
const CTA_IP_V6_SRC: u16 = 3;
const CTA_IP_V6_DST: u16 = 4;
const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_SRC_PORT: u16 = 2;
const CTA_PROTO_DST_PORT: u16 = 3;

/// The UDP connections of a family.
pub(super) fn udp_flows(connection: &mut Connection, family: Family) -> Result<Vec<Flow>, Error> {
    let entries = connection.dump(&listing(family))?;
    entries
        .iter()
        .filter_map(|entry| flow(family, entry).transpose())
        .collect()
}

/// Kernels before 5.8 do not know the filter and send all connections.
fn listing(family: Family) -> Request {
    /// nf_internals.h, `CTA_FILTER_FLAG(CTA_PROTO_NUM)`; in the machine's byte order, unlike the rest.
    const BY_PROTOCOL: u32 = 1 << 3;
    const CTA_FILTER_ORIG_FLAGS: u16 = 1;
    request(family, GET, "list UDP connections", |list| {
        list.nest(CTA_FILTER, |filter| {
            filter.bytes(CTA_FILTER_ORIG_FLAGS, &BY_PROTOCOL.to_ne_bytes());
        });
        list.nest(CTA_TUPLE_ORIG, |tuple| {
            tuple.nest(CTA_TUPLE_PROTO, |protocol| {
                protocol.u8(CTA_PROTO_NUM, Protocol::Udp.number());
            });
        });
    })
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

/// Reads an entry. `None` for another protocol's.
fn flow(family: Family, entry: &[u8]) -> Result<Option<Flow>, Error> {
    let entry = Reader::new(entry)?;
    let tuple = entry.nested(CTA_TUPLE_ORIG)?;
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
    let destination = address.zip(protocol.u16(CTA_PROTO_DST_PORT));
    Ok(destination.map(|destination| Flow {
        family,
        destination,
        tuple: entry.get(CTA_TUPLE_ORIG).unwrap_or_default().to_vec(),
        number: entry.get(CTA_ID).map(<[u8]>::to_vec),
    }))
}

/// A connection that is known by its ends alone, both of one family.
pub(super) fn flow_between(source: SocketAddr, destination: SocketAddr) -> Flow {
    let mut tuple = Attributes::new();
    tuple.nest(CTA_TUPLE_IP, |ip| {
        for (end, v4, v6) in [
            (source, CTA_IP_V4_SRC, CTA_IP_V6_SRC),
            (destination, CTA_IP_V4_DST, CTA_IP_V6_DST),
        ] {
            match end.ip() {
                IpAddr::V4(address) => ip.bytes(v4, &address.octets()),
                IpAddr::V6(address) => ip.bytes(v6, &address.octets()),
            };
        }
    });
    tuple.nest(CTA_TUPLE_PROTO, |protocol| {
        protocol.u8(CTA_PROTO_NUM, Protocol::Udp.number());
        protocol.u16(CTA_PROTO_SRC_PORT, source.port());
        protocol.u16(CTA_PROTO_DST_PORT, destination.port());
    });
    Flow {
        family: Family::of(destination.ip()),
        destination: (destination.ip(), destination.port()),
        tuple: tuple.as_bytes().to_vec(),
        number: None,
    }
}

/// Forgets connections.
pub(super) fn forget(connection: &mut Connection, flows: &[Flow]) -> Result<(), Error> {
    let deletions: Vec<Request> = flows.iter().map(deletion).collect();
    for answer in connection.request(&deletions)? {
        match answer {
            // It ended by itself.
            Err(error) if error.is_absent() => {}
            answer => _ = answer?,
        }
    }
    Ok(())
}

/// Names an entry by its tuple, and by its number so that no newer one is meant. Where the number is not known, a newer
/// one has met the rules as they are now, and will meet them again with its next packet.
fn deletion(flow: &Flow) -> Request {
    let deletion = request(flow.family, DELETE, "forget a UDP connection", |attributes| {
        attributes.nested_bytes(CTA_TUPLE_ORIG, &flow.tuple);
        if let Some(number) = &flow.number {
            attributes.bytes(CTA_ID, number);
        }
    });
    Request {
        flags: Request::ACK,
        ..deletion
    }
}
