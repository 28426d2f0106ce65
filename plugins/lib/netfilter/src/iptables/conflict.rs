//! A host port that another container holds.

use std::collections::BTreeMap;
use std::fmt;

use cni_types::{Attachment, Code, ContainerId, Error, IfName, NetworkName, Result};

use super::names;
use super::owner::Wanted;
use super::reading::Reading;
use super::record::{Feature, Record};
use super::rule::Rule;
use super::saved::Held;
use crate::Family;
use crate::portmap::{OnConflict, Published};

/// What a rule that redirects listens on.
#[derive(PartialEq, Eq)]
pub(super) struct Listens<'a> {
    pub(super) protocol: &'a str,
    /// `None` for every local address, which conflicts with no particular one.
    pub(super) address: Option<&'a str>,
    pub(super) first: u16,
    pub(super) last: u16,
}

impl Listens<'_> {
    /// `None` for a rule that does not redirect.
    pub(super) fn of(rule: &Rule) -> Option<Listens<'_>> {
        if rule.target() != Some("DNAT") {
            return None;
        }
        let (first, last) = Listens::range(rule.value("--dport")?)?;
        Some(Listens {
            protocol: rule.value("-p")?,
            address: rule.value("-d"),
            first,
            last,
        })
    }

    /// A port, or two with a colon in between.
    fn range(ports: &str) -> Option<(u16, u16)> {
        let (first, last) = ports.split_once(':').unwrap_or((ports, ports));
        Some((first.parse().ok()?, last.parse().ok()?))
    }

    fn conflicts_with(&self, other: &Listens<'_>) -> bool {
        let apart = self.last < other.first || other.last < self.first;
        self.protocol == other.protocol && self.address == other.address && !apart
    }
}

impl fmt::Display for Listens<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.first == self.last {
            true => write!(f, "host port {}/{}", self.first, self.protocol),
            false => write!(f, "host port {}:{}/{}", self.first, self.last, self.protocol),
        }
    }
}

/// Whether host ports of `wanted` must be taken over from another container: then the entries go before its. The same
/// container may hold a port through several networks; the first that came gets the connections.
///
/// Read is the chain that leads to the containers' chains, and of those only what an entry with one of the ports leads to.
///
/// # Errors
///
/// Code 11 when the holder is one of ours whose namespace exists.
pub(super) fn resolve(
    reading: &mut Reading,
    attachment: &Attachment,
    published: &Published,
    family: Family,
    wanted: &[Wanted],
) -> Result<bool> {
    let asked: Vec<Listens> = wanted.iter().filter_map(|w| Listens::of(&w.rule)).collect();
    reading.need(&[names::DNAT_CHAIN])?;
    let entries = reading.table().held(names::DNAT_CHAIN).iter();
    let rivals = entries.filter(|held| may_listen(held, &asked));
    let rivals: BTreeMap<_, _> = rivals.filter_map(|held| rival(held, attachment)).collect();
    reading.need(&rivals.keys().collect::<Vec<_>>())?;

    let mut taken_over = false;
    for (chain, holder) in rivals {
        for rule in reading.table().rules(&chain) {
            let Some(held) = Listens::of(rule).filter(|held| asked.iter().any(|port| port.conflicts_with(held))) else {
                continue;
            };
            let what = held.to_string();
            let living = match &holder {
                Some((network, id)) => living_holder(network, id, family, &chain, rule, published.netns_exists)?,
                None => None,
            };
            match living {
                Some(living) if published.on_conflict == OnConflict::Refuse => {
                    return Err(Error::new(Code::TRY_AGAIN_LATER, format!("{what} is held by {living}")));
                }
                Some(living) => log::warn!("{what} is taken over from {living}"),
                None => log::warn!("{what} is taken over from chain {chain}, whose container is gone or unknown"),
            }
            taken_over = true;
        }
    }
    Ok(taken_over)
}

/// Whether the chain behind an entry may redirect one of the ports. Entries of old versions, and such that are not
/// understood, do not say.
fn may_listen(entry: &Held, asked: &[Listens]) -> bool {
    let ports = entry
        .rule
        .value("--dports")
        .filter(|_| !entry.rule.is_negated("--dports"));
    let protocol = entry.rule.value("-p").filter(|_| !entry.rule.is_negated("-p"));
    let overlaps = |listed: &str, port: &Listens| {
        listed.split(',').any(|item| {
            let range = Listens::range(item);
            range.is_none_or(|(first, last)| first <= port.last && port.first <= last)
        })
    };
    asked.iter().any(|port| {
        protocol.is_none_or(|protocol| protocol == port.protocol) && ports.is_none_or(|ports| overlaps(ports, port))
    })
}

/// The chain of another container behind an entry, and whose it is if its comment says so truly.
fn rival(entry: &Held, attachment: &Attachment) -> Option<(String, Option<(NetworkName, ContainerId)>)> {
    let chain = entry.rule.target().filter(|chain| chain.starts_with("CNI-DN-"))?;
    let holder = owner(&entry.rule, chain);
    let is_own = chain == names::dnat_chain(&attachment.network, &attachment.container_id)
        || holder.as_ref().is_some_and(|(_, id)| *id == attachment.container_id);
    (!is_own).then(|| (chain.to_owned(), holder))
}

/// An attachment that holds a host port, by its record.
pub(super) struct Holder {
    pub(super) attachment: Attachment,
    /// Its network namespace, as [`crate::portmap::Published::netns`] had it.
    pub(super) netns: Option<String>,
    /// The port, in words.
    pub(super) what: String,
}

/// The attachments of other containers whose records have one of the host ports of `wanted`.
pub(super) fn recorded_holders(container: &ContainerId, family: Family, wanted: &[Wanted]) -> Result<Vec<Holder>> {
    let asked: Vec<Listens> = wanted.iter().filter_map(|w| Listens::of(&w.rule)).collect();
    let mut holders = Vec::new();
    for record in Record::load_all()? {
        if record.container == *container {
            continue;
        }
        for (ifname, holding) in record.holders(Feature::Portmap) {
            let of_family = holding.rules.iter().filter(|own| own.family == family);
            let mut held = of_family.filter_map(|own| Listens::of(&own.rule));
            let Some(held) = held.find(|held| asked.iter().any(|port| port.conflicts_with(held))) else {
                continue;
            };
            let Ok(ifname) = ifname.parse::<IfName>() else { continue };
            holders.push(Holder {
                attachment: Attachment {
                    network: record.network.clone(),
                    container_id: record.container.clone(),
                    ifname,
                },
                netns: holding.netns.clone(),
                what: held.to_string(),
            });
        }
    }
    Ok(holders)
}

fn owner(jump: &Rule, chain: &str) -> Option<(NetworkName, ContainerId)> {
    let (network, container) = names::owner(jump.value("--comment")?)?;
    (names::dnat_chain(&network, &container) == chain).then_some((network, container))
}

/// The attachment that we wrote the rule for, if its namespace is known and still exists.
fn living_holder(
    network: &NetworkName,
    container: &ContainerId,
    family: Family,
    chain: &str,
    rule: &Rule,
    netns_exists: fn(&str) -> bool,
) -> Result<Option<Attachment>> {
    let record = Record::load(network, container)?;
    let mut holders = record
        .holders(Feature::Portmap)
        .filter(|(_, holding)| holding.contains(family, chain, rule));
    let living = holders.find(|(_, holding)| holding.netns.as_deref().is_some_and(netns_exists));
    Ok(living.and_then(|(ifname, _)| {
        Some(Attachment {
            network: network.clone(),
            container_id: container.clone(),
            ifname: ifname.parse::<IfName>().ok()?,
        })
    }))
}
