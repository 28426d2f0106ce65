//! Published ports in nf_tables.
//!
//! ```text
//! table inet ferrule_portmap {
//!   chain prerouting, output    fib daddr type local goto ports
//!   chain ports                 conditions, then one look-up per map: a given hostIP before any, a single port before a range
//!   chain snat                  ct status dnat: what was redirected to a container in snat4 or snat6 goes to its chain
//!   chain snat4-<hash> ...      from 127.0.0.0/8 or the container's own subnet: masquerade
//!   chain martians              nothing from outside claims to come from, or wants to go to, 127.0.0.0/8
//! }
//! ```
//!
//! Only connections to the node's own addresses are ever looked up, so that a port of the same number on another
//! container, or on a machine behind the node, is out of reach of a mapping.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use cni_types::{Attachment, Cidr, ContainerId, Error, IfName, NetworkName, Result};
use nft::{Chain, Expression, Hook, NatKind, Register, Set, Table, Verdict, concatenate, types};

use super::draft::SharedChain;
use super::layout::{BaseChain, Layout, Map, address_type, nat_hook};
use super::ledger::{Claim, Entry, Ledger};
use super::record::{Holding, Record};
use super::{reference, rules};
use crate::conntrack::{self, HostPorts};
use crate::portmap::{Hints, Mapping, Published};
use crate::sweep::together;
use crate::{Family, Protocol};

/// The table's name.
const TABLE: &str = "ferrule_portmap";
/// The chain for rules with conditions.
const CONDITIONS: &str = "conditions";

/// The maps of a family, by their order in the layout.
#[derive(Debug, Clone, Copy)]
enum Kind {
    /// Protocol, hostIP, port.
    Exact,
    /// Protocol, hostIP, range of ports.
    ExactRange,
    /// Protocol, port.
    Any,
    /// Protocol, range of ports.
    AnyRange,
    /// Container addresses whose redirected connections may need the node's address as their source.
    Snat,
}

const KINDS: [Kind; 5] = [Kind::Exact, Kind::ExactRange, Kind::Any, Kind::AnyRange, Kind::Snat];

impl Kind {
    fn number(self, family: Family) -> u8 {
        let of_v6 = match family {
            Family::V4 => 0,
            Family::V6 => KINDS.len() as u8,
        };
        self as u8 + of_v6
    }

    fn name(self, family: Family) -> String {
        let name = match self {
            Kind::Exact => "exact",
            Kind::ExactRange => "exact_range",
            Kind::Any => "any",
            Kind::AnyRange => "any_range",
            Kind::Snat => "snat",
        };
        format!("{name}{}", digit(family))
    }

    fn map(self, family: Family) -> Map {
        let (name, address) = (self.name(family), address_type(family));
        let (protocol, port) = (types::INET_PROTO, types::INET_SERVICE);
        let set = match self {
            Kind::Exact => Set::map(name, &[protocol, address, port], &[address, port]),
            Kind::ExactRange => Set::map(name, &[protocol, address, port], &[address]).with_intervals(),
            Kind::Any => Set::map(name, &[protocol, port], &[address, port]),
            Kind::AnyRange => Set::map(name, &[protocol, port], &[address]).with_intervals(),
            Kind::Snat => Set::verdict_map(name, &[address]),
        };
        let other = match self {
            Kind::Exact => Some(Kind::ExactRange),
            Kind::ExactRange => Some(Kind::Exact),
            Kind::Any => Some(Kind::AnyRange),
            Kind::AnyRange => Some(Kind::Any),
            Kind::Snat => None,
        };
        Map {
            set,
            exclusive: !matches!(self, Kind::Snat),
            overlaps: other.map(|kind| kind.number(family)),
        }
    }

    /// The rule of chain `ports` that looks a connection up.
    fn redirect(self, family: Family) -> Vec<Expression> {
        let first = Register::FIRST;
        let mut rule = rules::of_family(family);
        rule.push(Expression::Meta(nft::Meta::TransportProtocol, first));
        let mut next = first.after(1);
        if matches!(self, Kind::Exact | Kind::ExactRange) {
            rule.push(rules::load_destination(family, next));
            next = next.after(rules::address_size(family));
        }
        rule.push(rules::load_port(next));
        rule.push(Expression::MapTo(self.name(family), first, first));
        let port = matches!(self, Kind::Exact | Kind::Any).then(|| first.after(rules::address_size(family)));
        rule.push(Expression::Nat {
            kind: NatKind::Destination,
            family: rules::wire_family(family),
            address: first,
            port,
        });
        rule
    }
}

fn digit(family: Family) -> char {
    match family {
        Family::V4 => '4',
        Family::V6 => '6',
    }
}

fn layout() -> Layout {
    let families_and_kinds = || {
        Family::BOTH
            .into_iter()
            .flat_map(|family| KINDS.map(|kind| (family, kind)))
    };
    Layout {
        table: Table::new(nft::Family::Inet, TABLE),
        maps: families_and_kinds().map(|(family, kind)| kind.map(family)).collect(),
        chains: vec![
            regular(CONDITIONS, None),
            regular("ports", Some(ports())),
            base("prerouting", nat_hook(Hook::PREROUTING), to_ports()),
            base("output", nat_hook(Hook::OUTPUT), to_ports()),
            base("snat", nat_hook(Hook::POSTROUTING), Family::BOTH.map(sources).to_vec()),
            base("martians", Some(RAW), martians()),
        ],
    }
}

/// Before connection tracking turns the answers to 127.0.0.1 back into such.
const RAW: Hook = Hook {
    kind: "filter",
    number: Hook::PREROUTING,
    priority: -300,
};

fn regular(name: &str, rules: Option<Vec<Vec<Expression>>>) -> BaseChain {
    let chain = Chain {
        name: name.to_owned(),
        hook: None,
    };
    BaseChain { chain, rules }
}

fn base(name: &str, hook: Option<Hook>, rules: Vec<Vec<Expression>>) -> BaseChain {
    let chain = Chain {
        name: name.to_owned(),
        hook,
    };
    BaseChain {
        chain,
        rules: Some(rules),
    }
}

fn to_ports() -> Vec<Vec<Expression>> {
    let goto = Expression::Verdict(Verdict::Goto("ports".to_owned()));
    vec![rules::rule(&[&rules::to_local_address(), &[goto]])]
}

fn ports() -> Vec<Vec<Expression>> {
    let conditions = vec![Expression::Verdict(Verdict::Jump(CONDITIONS.to_owned()))];
    let redirects = Family::BOTH.into_iter().flat_map(|family| {
        KINDS
            .into_iter()
            .filter(|kind| !matches!(kind, Kind::Snat))
            .map(move |kind| kind.redirect(family))
    });
    [conditions].into_iter().chain(redirects).collect()
}

/// Redirected connections to a container with `snat`.
fn sources(family: Family) -> Vec<Expression> {
    let look_up = [
        rules::load_destination(family, Register::FIRST),
        Expression::VerdictMap(Kind::Snat.name(family), Register::FIRST),
    ];
    rules::rule(&[&rules::of_family(family), &rules::destination_translated(), &look_up])
}

/// What the kernel refuses by itself until `route_localnet` lets the node's own connections to 127.0.0.1 out.
fn martians() -> Vec<Vec<Expression>> {
    let Some(loopback) = loopback() else { return Vec::new() };
    let drop = [Expression::Verdict(Verdict::Drop)];
    [rules::source_in(loopback), rules::destination_in(loopback)]
        .into_iter()
        .map(|phrase| rules::rule(&[&rules::not_from("lo"), &phrase, &drop]))
        .collect()
}

fn loopback() -> Option<Cidr> {
    Cidr::new(IpAddr::from([127, 0, 0, 0]), 8)
}

/// The chain for redirected connections to a container: which of them get the node's address.
fn snat_chain(container: Cidr, masq_all: bool) -> SharedChain {
    let family = Family::of(container.address());
    let masquerade = [Expression::Masquerade];
    let rules = if masq_all {
        vec![masquerade.to_vec()]
    } else {
        // From the node itself as 127.0.0.1, which no container can answer; IPv6 has no route_localnet.
        let node = loopback().filter(|_| family == Family::V4);
        // From the container itself, and from its neighbours, whom it would answer past the node.
        let sources = node.into_iter().chain([container.network()]);
        sources
            .map(|source| rules::rule(&[&rules::source_in(source), &masquerade]))
            .collect()
    };
    SharedChain::new(&format!("snat{}", digit(family)), rules)
}

/// What an attachment is to hold for its mappings.
fn claims(published: &Published) -> Result<Vec<Claim>> {
    let mut claims: BTreeMap<(u8, Vec<u8>), Claim> = BTreeMap::new();
    for family in Family::BOTH {
        let Some(container) = published.address(family) else {
            continue;
        };
        if !published.conditions(family).is_empty() {
            continue;
        }
        let mappings = published.mappings.iter().filter(|mapping| mapping.applies_to(family));
        for claim in mappings.flat_map(|mapping| mapping_claims(mapping, family, container.address())) {
            claims.insert((claim.holding.map, claim.holding.key.clone()), claim);
        }
    }
    for family in Family::BOTH {
        let redirects = published.mappings.iter().any(|mapping| mapping.applies_to(family));
        if let Some(container) = published.address(family).filter(|_| redirects && published.snat) {
            let claim = snat_claim(container, published.masq_all);
            claims.insert((claim.holding.map, claim.holding.key.clone()), claim);
        }
    }
    let claims: Vec<Claim> = claims.into_values().collect();
    refuse_overlaps(&claims)?;
    Ok(claims)
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

fn entry<'a>(attachment: &'a Attachment, published: &Published) -> Result<Entry<'a>> {
    Ok(Entry {
        attachment,
        claims: claims(published)?,
        has_conditions: false,
        netns: published.netns.clone(),
        netns_exists: published.netns_exists,
        on_conflict: published.on_conflict,
    })
}

/// See [`crate::portmap::add`].
pub(crate) fn add(attachment: &Attachment, published: &Published) -> Result<()> {
    let layout = layout();
    Ledger::open(&layout)?.put(&entry(attachment, published)?)
}

/// See [`crate::portmap::check`].
pub(crate) fn check(attachment: &Attachment, published: &Published) -> Result<()> {
    let layout = layout();
    Ledger::open(&layout)?.verify(&entry(attachment, published)?)
}

/// See [`crate::portmap::del`].
pub(crate) fn del(attachment: &Attachment, hints: &Hints) -> Result<()> {
    let layout = layout();
    let ours = Ledger::open(&layout).and_then(|mut ledger| ledger.release(attachment));
    let ours = ours.and_then(|record| conntrack::flush_udp(&udp_ports(record.as_slice())));
    together([ours, reference::del_portmap(attachment, hints)])
}

/// See [`crate::portmap::gc`].
pub(crate) fn gc(network: &NetworkName, valid: &BTreeSet<(ContainerId, IfName)>) -> Result<()> {
    let layout = layout();
    let released = Ledger::open(&layout)?.collect(network, valid)?;
    conntrack::flush_udp(&udp_ports(&released))
}

/// The UDP ports among what was released.
fn udp_ports(records: &[Record]) -> Vec<HostPorts> {
    let holdings = records.iter().flat_map(|record| &record.holdings);
    holdings.filter_map(udp_port).collect()
}

fn udp_port(holding: &Holding) -> Option<HostPorts> {
    let places = Family::BOTH
        .into_iter()
        .flat_map(|family| KINDS.map(|kind| (family, kind)));
    let (family, kind) = places
        .into_iter()
        .find(|(family, kind)| kind.number(*family) == holding.map)?;
    let (protocol, rest) = holding.key.split_at_checked(4)?;
    if matches!(kind, Kind::Snat) || protocol.first() != Some(&Protocol::Udp.number()) {
        return None;
    }
    let (address, _) = rest.split_at_checked(rest.len().checked_sub(4)?)?;
    let first = port_of(&holding.key)?;
    Some(HostPorts {
        family,
        address: rules::address_of(address),
        first,
        last: holding.key_end.as_deref().map_or(Some(first), port_of)?,
    })
}

/// The port, which is the last field of every key.
fn port_of(key: &[u8]) -> Option<u16> {
    let [.., high, low, _, _] = key else { return None };
    Some(u16::from_be_bytes([*high, *low]))
}
