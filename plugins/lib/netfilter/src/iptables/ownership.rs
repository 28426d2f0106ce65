//! Rules in and out of a table, attachment by attachment.

use cni_types::{Attachment, Error, IfName, Result};

use super::edit::Edit;
use super::evidence;
use super::exec::Tool;
use super::names;
use super::neighbours::Neighbours;
use super::owner::{Owner, Wanted, chains};
use super::reading::Reading;
use super::record::{Feature, Holding, OwnedRule, Record};
use super::removal::{all, sweep};
use super::rule::Rule;
use crate::{Family, lock};

/// What an ADD is about to write in one family.
struct Change {
    tool: Tool,
    edit: Edit,
    wanted: Vec<Wanted>,
}

/// The attachments that own rules, and what for.
pub(crate) fn holders() -> Result<Vec<(Attachment, &'static str)>> {
    let _lock = lock::exclusive()?;
    let features = [
        (Feature::Portmap, "published ports"),
        (Feature::Masquerade, "masquerading"),
        (Feature::Firewall, "accepted addresses"),
    ];
    let mut all = Vec::new();
    for record in Record::load_all()? {
        for (feature, what) in features {
            for (ifname, _) in record.holders(feature) {
                let ifname = ifname
                    .parse()
                    .map_err(|e| Error::internal(format!("{ifname:?}: {e}")))?;
                let attachment = Attachment {
                    network: record.network.clone(),
                    container_id: record.container.clone(),
                    ifname,
                };
                all.push((attachment, what));
            }
        }
    }
    Ok(all)
}

/// Whether an attachment's rules are recorded.
pub(super) fn holds(attachment: &Attachment, feature: Feature) -> Result<bool> {
    let record = Record::load(&attachment.network, &attachment.container_id)?;
    Ok(record.holding(&attachment.ifname, feature).is_some())
}

/// Makes an attachment own exactly the rules that `plan` names for each of `families`, and none in the others.
///
/// `plan` gets a reading that knows the container's own chains, reads what else it needs and ends it.
///
/// Every refusal comes before the first write. A failure after it leaves the attachment with the rules that it had.
pub(super) fn add(
    attachment: &Attachment,
    feature: Feature,
    netns: Option<&str>,
    families: &[Family],
    plan: impl Fn(Reading, Family) -> Result<(Edit, Vec<Wanted>)>,
) -> Result<()> {
    let _lock = lock::exclusive()?;
    let (network, container) = (&attachment.network, &attachment.container_id);
    let mut record = Record::load(network, container)?;
    let neighbours = Neighbours::of(network, container, feature);
    let own = chains(feature, network, container);
    let earlier = record.holding(&attachment.ifname, feature).cloned();
    let old = earlier.clone().unwrap_or_default();
    let owner = Owner {
        record: &record,
        ifname: &attachment.ifname,
        feature,
        neighbours: &neighbours,
    };
    let mut changes = Vec::new();
    for family in Family::BOTH {
        let had = old.rules.iter().any(|own| own.family == family);
        let wants = families.contains(&family);
        if !had && !wants {
            continue;
        }
        let tool = Tool::of(family);
        let mut reading = Reading::begin(tool, feature.table(), own.clone())?;
        reading.need(&old.chains(family))?;
        changes.push(match wants {
            true => {
                let (mut edit, wanted) = plan(reading, family)?;
                owner.replace(&mut edit, family, &wanted)?;
                Change { tool, edit, wanted }
            }
            false => {
                reading.need(entrances(feature))?;
                let mut edit = Edit::new(reading.end()?.0);
                owner.release(&mut edit, family)?;
                let wanted = Vec::new();
                Change { tool, edit, wanted }
            }
        });
    }
    let mut claim = old;
    claim.netns = netns.map(str::to_owned);
    claim.rules.extend(changes.iter().flat_map(planned));
    record.set(attachment.ifname.as_str(), feature, claim.clone());
    record.store()?;

    match changes
        .iter()
        .map(|change| write(change, &own))
        .collect::<Result<Vec<_>>>()
    {
        Ok(owned) => {
            claim.rules = owned.into_iter().flatten().collect();
            record.set(attachment.ifname.as_str(), feature, claim);
            record.store()
        }
        Err(cause) => {
            let tools: Vec<Tool> = changes.iter().map(|change| change.tool).collect();
            let earlier = earlier.unwrap_or_default();
            if let Err(e) = reset(&tools, &mut record, &attachment.ifname, feature, earlier) {
                log::warn!("rules of {attachment} are not what they were: {e}");
            }
            Err(cause)
        }
    }
}

fn planned(change: &Change) -> impl Iterator<Item = OwnedRule> {
    change.wanted.iter().map(|wanted| OwnedRule {
        family: change.tool.family,
        chain: wanted.chain.clone(),
        rule: wanted.rule.clone(),
    })
}

/// Writes one family's rules; returns them as the kernel now shows them.
fn write(change: &Change, own: &[String]) -> Result<Vec<OwnedRule>> {
    if let Some(script) = change.edit.script() {
        change.tool.restore(&script)?;
    }
    let conditional: Vec<&str> = change
        .wanted
        .iter()
        .filter(|wanted| wanted.base.is_some())
        .map(|wanted| wanted.chain.as_str())
        .collect();
    if conditional.is_empty() {
        return Ok(planned(change).collect());
    }
    let mut reading = Reading::begin(change.tool, change.edit.table().table(), own.to_vec())?;
    reading.need(&conditional)?;
    let mut owned = Vec::new();
    for (mut own, wanted) in planned(change).zip(&change.wanted) {
        if let Some(base) = &wanted.base {
            let found = reading
                .table()
                .rules(&wanted.chain)
                .rev()
                .find(|rule| rule.covers(base));
            own.rule = found
                .cloned()
                .ok_or_else(|| Error::internal(format!("{} lost the rule {}", own.chain, own.rule)))?;
        }
        owned.push(own);
    }
    Ok(owned)
}

/// The chains from which a container's rules, or its chains, are reached.
pub(super) fn entrances(feature: Feature) -> &'static [&'static str] {
    match feature {
        Feature::Portmap => &[names::DNAT_CHAIN, names::SNAT_CHAIN],
        Feature::Masquerade => &["POSTROUTING"],
        Feature::Firewall => &[names::FORWARD_CHAIN],
    }
}

/// Removes what an attachment owns, whichever suite and whichever implementation of iptables wrote it. Returns the rules.
///
/// `unrecorded` are the rules that it owns where nothing is recorded and the rules themselves do not tell.
pub(super) fn del(
    attachment: &Attachment,
    feature: Feature,
    unrecorded: Vec<OwnedRule>,
) -> Result<Vec<(Family, Rule)>> {
    let (network, container) = (&attachment.network, &attachment.container_id);
    let recorded = Record::load(network, container)?;
    let is_recorded = recorded.holding(&attachment.ifname, feature).is_some();
    let mut chains = chains(feature, network, container);
    if feature == Feature::Firewall {
        if !is_recorded && unrecorded.is_empty() {
            return Ok(Vec::new());
        }
        chains.push(names::FORWARD_CHAIN.to_owned());
    }
    let chains: Vec<&str> = chains.iter().map(String::as_str).collect();
    let mut tools = Vec::new();
    for family in Family::BOTH {
        tools.extend(evidence::tools(feature.table(), family, &chains)?);
    }
    if tools.is_empty() && !is_recorded {
        return Ok(Vec::new());
    }
    let _lock = lock::exclusive()?;
    let mut record = Record::load(network, container)?;
    if record.holding(&attachment.ifname, feature).is_none() {
        let holding = Holding {
            rules: unrecorded,
            netns: None,
        };
        record.set(attachment.ifname.as_str(), feature, holding);
    }
    reset(&tools, &mut record, &attachment.ifname, feature, Holding::default())
}

/// Makes an attachment own what it owned before a change that was not carried out in every family, or nothing. Returns the
/// rules that went.
fn reset(
    tools: &[Tool],
    record: &mut Record,
    ifname: &IfName,
    feature: Feature,
    earlier: Holding,
) -> Result<Vec<(Family, Rule)>> {
    let own = chains(feature, &record.network, &record.container);
    let holding = record.holding(ifname, feature).cloned().unwrap_or_default();
    let neighbours = Neighbours::of(&record.network, &record.container, feature);
    let owner = Owner {
        record,
        ifname,
        feature,
        neighbours: &neighbours,
    };
    let removed = all(tools, |tool| {
        let of_family = earlier.rules.iter().filter(|own| own.family == tool.family);
        let wanted: Vec<Wanted> = of_family
            .map(|own| Wanted::last(&own.chain, own.rule.clone()))
            .collect();
        let read = |reading: &mut Reading| {
            reading.need(entrances(feature))?;
            reading.need(&holding.chains(tool.family))?;
            reading.need(&earlier.chains(tool.family))
        };
        sweep(tool, feature.table(), &own, read, |edit| {
            if wanted.is_empty() {
                return owner.release(edit, tool.family);
            }
            for chain in wanted.iter().map(|wanted| &wanted.chain) {
                edit.ensure_chain(chain);
            }
            owner.replace(edit, tool.family, &wanted)
        })
    })?;
    record.set(ifname.as_str(), feature, earlier);
    record.store()?;
    Ok(removed)
}
