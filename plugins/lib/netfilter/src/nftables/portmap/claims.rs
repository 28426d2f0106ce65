//! Mappings as elements, and back.

use std::collections::BTreeMap;
use std::net::IpAddr;

use cni_types::{Cidr, Error, Result};
use nft::concatenate;

use super::table::{Kind, snat_chain};
use crate::conntrack::HostPorts;
use crate::nftables::ledger::Claim;
use crate::nftables::record::{Holding, Record};
use crate::nftables::rules;
use crate::portmap::{Mapping, Published};
use crate::{Family, Protocol};

/// Set in the map's number of a mapping that rules with conditions stand for.
const CONDITIONAL: u8 = 0x80;

/// What an attachment is to hold for its mappings.
pub(super) fn claims(published: &Published) -> Result<Vec<Claim>> {
    let mut claims: BTreeMap<(u8, Vec<u8>), Claim> = BTreeMap::new();
    let mut insert = |claim: Claim| claims.insert((claim.holding.map, claim.holding.key.clone()), claim);
    for family in Family::BOTH {
        if published.conditions(family).is_empty() {
            for claim in family_claims(published, family) {
                insert(claim);
            }
        }
        let redirects = published.mappings.iter().any(|mapping| mapping.applies_to(family));
        if let Some(container) = published.address(family).filter(|_| redirects && published.snat) {
            insert(snat_claim(container, published.masq_all));
        }
    }
    let claims: Vec<Claim> = claims.into_values().collect();
    refuse_overlaps(&claims)?;
    Ok(claims)
}

/// What stands in the record for mappings with conditions: as if they were elements, of a map that is none.
pub(super) fn conditional(published: &Published) -> Vec<Holding> {
    let families = Family::BOTH.into_iter();
    let families = families.filter(|&family| !published.conditions(family).is_empty());
    let claims = families.flat_map(|family| family_claims(published, family));
    claims
        .map(|claim| Holding {
            map: claim.holding.map | CONDITIONAL,
            ..claim.holding
        })
        .collect()
}

/// The mappings of a family, whether or not there are conditions.
pub(super) fn family_claims(published: &Published, family: Family) -> Vec<Claim> {
    let Some(container) = published.address(family) else {
        return Vec::new();
    };
    let mappings = published.mappings.iter().filter(|mapping| mapping.applies_to(family));
    mappings
        .flat_map(|mapping| mapping_claims(mapping, family, container.address()))
        .collect()
}

/// The UDP ports among what attachments held.
pub(super) fn udp_ports(records: &[Record]) -> Vec<HostPorts> {
    let holdings = records.iter().flat_map(|record| &record.holdings);
    let redirects = holdings.filter_map(redirected);
    let udp = redirects.filter(|(protocol, _)| *protocol == Protocol::Udp);
    udp.map(|(_, ports)| ports).collect()
}

/// The host ports that a holding redirects, with conditions or without; `None` for one that redirects nothing.
pub(super) fn redirected(holding: &Holding) -> Option<(Protocol, HostPorts)> {
    let (family, kind) = Kind::of_number(holding.map & !CONDITIONAL)?;
    if matches!(kind, Kind::Snat) {
        return None;
    }
    let (protocol, rest) = holding.key.split_at_checked(4)?;
    let (address, _) = rest.split_at_checked(rest.len().checked_sub(4)?)?;
    let first = port_of(&holding.key)?;
    let ports = HostPorts {
        family,
        address: rules::address_of(address),
        first,
        last: holding.key_end.as_deref().map_or(Some(first), port_of)?,
    };
    Some((Protocol::from_number(*protocol.first()?)?, ports))
}

/// The port, which is the last field of every key.
pub(super) fn port_of(key: &[u8]) -> Option<u16> {
    let [.., high, low, _, _] = key else { return None };
    Some(u16::from_be_bytes([*high, *low]))
}

/// Ranges of one attachment that overlap: the kernel would refuse them with less to read.
fn refuse_overlaps(claims: &[Claim]) -> Result<()> {
    let ranges: Vec<_> = claims
        .iter()
        .filter_map(|claim| Some((claim, claim.holding.key_end.as_ref()?)))
        .collect();
    for pair in ranges.windows(2) {
        // Ordered by map and key: only neighbours can be the first to overlap.
        if let [(first, end), (second, _)] = pair
            && first.holding.map == second.holding.map
            && second.holding.key <= **end
        {
            return Err(Error::config(format!("{} and {} overlap", first.what, second.what)));
        }
    }
    Ok(())
}

fn snat_claim(container: Cidr, masq_all: bool) -> Claim {
    let family = Family::of(container.address());
    Claim {
        holding: Holding {
            map: Kind::Snat.number(family),
            key: rules::address_bytes(container.address()),
            key_end: None,
            data: None,
        },
        chain: Some(snat_chain(container, masq_all)),
        what: format!("source translation of connections to {}", container.address()),
    }
}

fn mapping_claims(mapping: &Mapping, family: Family, container: IpAddr) -> Vec<Claim> {
    let exact = mapping.exact_ip();
    let address = rules::address_bytes(container);
    let key = |port: u16| {
        let (protocol, port) = ([mapping.protocol.number()], port.to_be_bytes());
        match exact {
            Some(ip) => concatenate(&[&protocol, &rules::address_bytes(ip), &port]),
            None => concatenate(&[&protocol, &port]),
        }
    };
    let claim = |kind: Kind, first: u16, last: Option<u16>, data: Vec<u8>| Claim {
        holding: Holding {
            map: kind.number(family),
            key: key(first),
            key_end: last.map(key),
            data: Some(data),
        },
        chain: None,
        what: what(mapping.protocol, exact, first, last.unwrap_or(first)),
    };
    if mapping.host_port < mapping.host_port_end && mapping.host_port == mapping.container_port {
        let kind = if exact.is_some() {
            Kind::ExactRange
        } else {
            Kind::AnyRange
        };
        return vec![claim(kind, mapping.host_port, Some(mapping.host_port_end), address)];
    }
    let kind = if exact.is_some() { Kind::Exact } else { Kind::Any };
    (mapping.host_port..=mapping.host_port_end)
        .zip(mapping.container_port..=mapping.container_port_end)
        .map(|(host, container)| claim(kind, host, None, concatenate(&[&address, &container.to_be_bytes()])))
        .collect()
}

fn what(protocol: Protocol, address: Option<IpAddr>, first: u16, last: u16) -> String {
    let ports = if first == last {
        first.to_string()
    } else {
        format!("{first}-{last}")
    };
    match address {
        Some(ip) => format!("host port {ports}/{protocol} on {ip}"),
        None => format!("host port {ports}/{protocol}"),
    }
}
