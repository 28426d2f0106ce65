//! Rules of attachments that are not valid any more.

use std::collections::BTreeSet;

use cni_types::{ContainerId, IfName, NetworkName, Result};

use super::edit::Edit;
use super::evidence;
use super::names;
use super::neighbours::Neighbours;
use super::owner::{Owner, chains};
use super::ownership::entrances;
use super::reading::Reading;
use super::record::{Feature, Holding, Record};
use super::removal::{all, sweep};
use super::rule::Rule;
use super::saved::Saved;
use crate::{Family, lock};

/// Removes what attachments of `network` own that are not in `valid`, and what `also` removes from the chains that it
/// names. Returns the rules.
pub(super) fn gc(
    feature: Feature,
    network: &NetworkName,
    valid: &BTreeSet<(ContainerId, IfName)>,
    shared: &[&str],
    also: impl Fn(&mut Edit),
) -> Result<Vec<(Family, Rule)>> {
    let recorded = Record::load_network(network)?;
    let has_stale = recorded.iter().any(|record| !stale(record, feature, valid).is_empty());
    let entrances = match feature {
        // Of what is accepted, only the record tells whose it is.
        Feature::Firewall if !has_stale => &[],
        _ => entrances(feature),
    };
    let evidence = [entrances, shared].concat();
    let mut tools = Vec::new();
    for family in Family::BOTH {
        tools.extend(evidence::tools(feature.table(), family, &evidence)?);
    }
    if tools.is_empty() && recorded.is_empty() {
        return Ok(Vec::new());
    }
    let _lock = lock::exclusive()?;
    let records = Record::load_network(network)?;
    let neighbours = match feature {
        Feature::Firewall if has_stale => Neighbours::Known(kept(feature, network, valid)?),
        _ => Neighbours::Nobody,
    };
    let dead = Dead {
        feature,
        network,
        valid,
        records: &records,
        neighbours: &neighbours,
    };
    let removed = all(&tools, |tool| {
        let read = |reading: &mut Reading| {
            reading.need(&evidence)?;
            reading.need_own(dead.chains(reading.table()))
        };
        sweep(tool, feature.table(), &dead.recorded_chains(), read, |edit| {
            dead.collect(edit, tool.family)?;
            also(edit);
            Ok(())
        })
    })?;
    for mut record in records {
        let before = record.clone();
        for ifname in stale(&before, feature, valid) {
            record.set(ifname.as_str(), feature, Holding::default());
        }
        if record != before {
            record.store()?;
        }
    }
    Ok(removed)
}

/// What every attachment of the node owns but those of `network` that are not in `valid`.
fn kept(feature: Feature, network: &NetworkName, valid: &BTreeSet<(ContainerId, IfName)>) -> Result<Vec<Holding>> {
    let mut kept = Vec::new();
    for mut record in Record::load_all()? {
        if record.network == *network {
            for ifname in stale(&record, feature, valid) {
                record.set(ifname.as_str(), feature, Holding::default());
            }
        }
        kept.extend(record.held(feature));
    }
    Ok(kept)
}

/// The recorded interfaces of a container that are not valid.
fn stale(record: &Record, feature: Feature, valid: &BTreeSet<(ContainerId, IfName)>) -> Vec<IfName> {
    let names = record.holders(feature).filter_map(|(ifname, _)| ifname.parse().ok());
    names
        .filter(|ifname: &IfName| !valid.contains(&(record.container.clone(), ifname.clone())))
        .collect()
}

/// The attachments of a network that are not valid any more.
struct Dead<'a> {
    feature: Feature,
    network: &'a NetworkName,
    valid: &'a BTreeSet<(ContainerId, IfName)>,
    records: &'a [Record],
    neighbours: &'a Neighbours,
}

impl Dead<'_> {
    /// The chains of containers that have an attachment which is recorded.
    fn recorded_chains(&self) -> Vec<String> {
        let records = self.records.iter();
        let dead = records.filter(|record| !stale(record, self.feature, self.valid).is_empty());
        dead.flat_map(|record| chains(self.feature, self.network, &record.container))
            .collect()
    }

    /// The chains of containers that have nothing valid, by the rules that lead there.
    fn chains(&self, table: &Saved) -> Vec<String> {
        let containers = containers(table, self.feature, self.network);
        let dead = containers
            .iter()
            .filter(|id| !self.valid.iter().any(|(valid, _)| valid == *id));
        dead.flat_map(|id| chains(self.feature, self.network, id)).collect()
    }

    fn collect(&self, edit: &mut Edit, family: Family) -> Result<()> {
        for record in self.records {
            let mut record = record.clone();
            for ifname in stale(&record, self.feature, self.valid) {
                let owner = Owner {
                    record: &record,
                    ifname: &ifname,
                    feature: self.feature,
                    neighbours: self.neighbours,
                };
                owner.release(edit, family)?;
                record.set(ifname.as_str(), self.feature, Holding::default());
            }
        }
        for chain in self.chains(edit.table()) {
            edit.remove_chain(&chain);
        }
        Ok(())
    }
}

/// The containers of a network that have chains for a feature, by the comments of the rules that jump there.
fn containers(table: &Saved, feature: Feature, network: &NetworkName) -> BTreeSet<ContainerId> {
    let mut found = BTreeSet::new();
    for (_, held) in table.all() {
        let Some((named, container)) = held.rule.value("--comment").and_then(names::owner) else {
            continue;
        };
        let target = held.rule.target().unwrap_or_default();
        if named == *network && chains(feature, network, &container).iter().any(|chain| chain == target) {
            found.insert(container);
        }
    }
    found
}
