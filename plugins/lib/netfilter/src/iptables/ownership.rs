//! Rules in and out of a table, attachment by attachment.

use std::collections::BTreeSet;

use cni_types::{Attachment, ContainerId, Error, IfName, NetworkName, Result};

use super::edit::Edit;
use super::evidence;
use super::exec::Tool;
use super::names;
use super::record::{Feature, Holding, OwnedRule, Record};
use super::rule::Rule;
use super::saved::Saved;
use crate::{Family, lock};

/// How often a removal is planned anew when the table changed between its read and its write.
const ATTEMPTS: usize = 3;

/// A rule that an attachment is to own.
pub(super) struct Wanted {
    pub(super) chain: String,
    pub(super) rule: Rule,
    /// Before the chain's other rules rather than after them.
    pub(super) first: bool,
    /// For a rule with a user's conditions, which iptables rewrites in its own words: the rule without them, by which it
    /// is found again.
    pub(super) base: Option<Rule>,
}

impl Wanted {
    /// A rule at the end of a chain, free of a user's text.
    pub(super) fn last(chain: &str, rule: Rule) -> Wanted {
        Wanted {
            chain: chain.to_owned(),
            rule,
            first: false,
            base: None,
        }
    }
}

/// The chains of a container that a feature fills; the first is the current one, others are of older versions.
pub(super) fn chains(feature: Feature, network: &NetworkName, container: &ContainerId) -> Vec<String> {
    match feature {
        Feature::Portmap => vec![
            names::dnat_chain(network, container),
            names::snat_chain(network, container),
        ],
        Feature::Masquerade => vec![names::masquerade_chain(network, container)],
        Feature::Firewall => Vec::new(),
    }
}

/// Reads a container's record, for the holder of the lock. Where rules name nobody, with what others own.
fn load(attachment: &Attachment, feature: Feature) -> Result<Record> {
    let (network, container) = (&attachment.network, &attachment.container_id);
    let mut record = Record::load(network, container)?;
    if feature == Feature::Firewall {
        let others = Record::load_all()?.into_iter();
        let others = others.filter(|other| (&other.network, &other.container) != (network, container));
        let held: Vec<Holding> = others.flat_map(|other| held(&other, feature)).collect();
        record.set_neighbours(held);
    }
    Ok(record)
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

fn held(record: &Record, feature: Feature) -> Vec<Holding> {
    record.holders(feature).map(|(_, holding)| holding.clone()).collect()
}

/// What an ADD is about to write in one family.
struct Change {
    tool: Tool,
    edit: Edit,
    wanted: Vec<Wanted>,
}

/// Whether an attachment's rules are recorded.
pub(super) fn holds(attachment: &Attachment, feature: Feature) -> Result<bool> {
    let record = Record::load(&attachment.network, &attachment.container_id)?;
    Ok(record.holding(&attachment.ifname, feature).is_some())
}

/// Makes an attachment own exactly the rules that `plan` names for each of `families`, and none in the others.
///
/// Every refusal comes before the first write. A failure after it leaves the attachment with the rules that it had.
pub(super) fn add(
    attachment: &Attachment,
    feature: Feature,
    netns: Option<&str>,
    families: &[Family],
    plan: impl Fn(&mut Edit, Family) -> Result<Vec<Wanted>>,
) -> Result<()> {
    let _lock = lock::exclusive()?;
    let mut record = load(attachment, feature)?;
    let earlier = record.holding(&attachment.ifname, feature).cloned();
    let old = earlier.clone().unwrap_or_default();
    let mut changes = Vec::new();
    for family in Family::BOTH {
        let had = old.rules.iter().any(|own| own.family == family);
        let wants = families.contains(&family);
        if !had && !wants {
            continue;
        }
        let tool = Tool::of(family);
        let mut edit = Edit::new(tool.save(feature.table())?);
        let mut wanted = Vec::new();
        if wants {
            wanted = plan(&mut edit, family)?;
            replace(&mut edit, family, &record, &attachment.ifname, feature, &wanted);
        } else {
            release(&mut edit, family, &record, &attachment.ifname, feature);
        }
        changes.push(Change { tool, edit, wanted });
    }
    let mut claim = old;
    claim.netns = netns.map(str::to_owned);
    claim.rules.extend(changes.iter().flat_map(planned));
    record.set(attachment.ifname.as_str(), feature, claim.clone());
    record.store()?;

    match changes.iter().map(write).collect::<Result<Vec<_>>>() {
        Ok(owned) => {
            claim.rules = owned.into_iter().flatten().collect();
            record.set(attachment.ifname.as_str(), feature, claim);
            record.store()
        }
        Err(cause) => {
            let tools: Vec<Tool> = changes.iter().map(|change| change.tool).collect();
            if let Err(e) = put_back(&tools, &mut record, &attachment.ifname, feature, earlier) {
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
fn write(change: &Change) -> Result<Vec<OwnedRule>> {
    if let Some(script) = change.edit.script() {
        change.tool.restore(&script)?;
    }
    if change.wanted.iter().all(|wanted| wanted.base.is_none()) {
        return Ok(planned(change).collect());
    }
    let shown = change.tool.save(change.edit.table().table())?;
    let mut owned = Vec::new();
    for (mut own, wanted) in planned(change).zip(&change.wanted) {
        if let Some(base) = &wanted.base {
            let rules = shown.rules(&wanted.chain).iter();
            let found = rules.rev().find(|rule| rule.covers(base)).cloned();
            own.rule = found.ok_or_else(|| Error::internal(format!("{} lost the rule {}", own.chain, own.rule)))?;
        }
        owned.push(own);
    }
    Ok(owned)
}

/// Replaces what an attachment owns in one family. Where all of it is there already, nothing is touched; else all of it
/// is written anew, for the order of the rules counts.
fn replace(edit: &mut Edit, family: Family, record: &Record, ifname: &IfName, feature: Feature, wanted: &[Wanted]) {
    let old: Vec<OwnedRule> = record.holding(ifname, feature).cloned().unwrap_or_default().rules;
    let old: Vec<&OwnedRule> = old.iter().filter(|own| own.family == family).collect();
    let is_wanted = |own: &OwnedRule| wanted.iter().any(|w| w.chain == own.chain && w.rule == own.rule);
    let is_there = |w: &Wanted| w.base.is_none() && !w.first && edit.table().has_rule(&w.chain, &w.rule);
    if old.iter().all(|own| is_wanted(own)) && wanted.iter().all(is_there) {
        return;
    }
    for own in old {
        if !is_shared(record, ifname, feature, family, &own.chain, &own.rule) {
            edit.remove_rule(&own.chain, &own.rule);
        }
    }
    for w in wanted {
        // Also what nobody has recorded: the reference's, or our own of a call that was killed.
        let is_alike = |rule: &&Rule| w.base.as_ref().map_or(**rule == w.rule, |base| rule.covers(base));
        let alike: Vec<Rule> = edit.table().rules(&w.chain).iter().filter(is_alike).cloned().collect();
        for rule in alike {
            if !is_shared(record, ifname, feature, family, &w.chain, &rule) {
                edit.remove_rule(&w.chain, &rule);
            }
        }
    }
    for w in wanted.iter().filter(|w| w.first).rev() {
        edit.ensure_first(&w.chain, w.rule.clone());
    }
    for w in wanted.iter().filter(|w| !w.first) {
        edit.ensure_rule(&w.chain, w.rule.clone());
    }
}

/// Whether another attachment owns the same rule: identical rules are one rule.
fn is_shared(record: &Record, ifname: &IfName, feature: Feature, family: Family, chain: &str, rule: &Rule) -> bool {
    let mut others = siblings(record, ifname, feature).chain(record.neighbours());
    others.any(|holding| holding.contains(family, chain, rule))
}

fn siblings<'a>(record: &'a Record, ifname: &IfName, feature: Feature) -> impl Iterator<Item = &'a Holding> {
    let holders = record.holders(feature);
    holders
        .filter(move |(name, _)| *name != ifname.as_str())
        .map(|(_, holding)| holding)
}

/// Removes what an attachment owns, whichever suite and whichever implementation of iptables wrote it. Returns the rules.
///
/// `unrecorded` are the rules that it owns where nothing is recorded and the rules themselves do not tell.
pub(super) fn del(
    attachment: &Attachment,
    feature: Feature,
    unrecorded: Vec<OwnedRule>,
) -> Result<Vec<(Family, Rule)>> {
    let recorded = Record::load(&attachment.network, &attachment.container_id)?;
    let is_recorded = recorded.holding(&attachment.ifname, feature).is_some();
    let mut chains = chains(feature, &attachment.network, &attachment.container_id);
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
    let mut record = load(attachment, feature)?;
    if record.holding(&attachment.ifname, feature).is_none() {
        let holding = Holding {
            rules: unrecorded,
            netns: None,
        };
        record.set(attachment.ifname.as_str(), feature, holding);
    }
    remove(&tools, &mut record, &attachment.ifname, feature)
}

fn remove(tools: &[Tool], record: &mut Record, ifname: &IfName, feature: Feature) -> Result<Vec<(Family, Rule)>> {
    let removed = all(tools, |tool| {
        sweep(tool, feature, |edit| {
            release(edit, tool.family, record, ifname, feature)
        })
    })?;
    record.set(ifname.as_str(), feature, Holding::default());
    record.store()?;
    Ok(removed)
}

/// Gives an attachment back what it owned before a change that was not carried out in every family.
fn put_back(
    tools: &[Tool],
    record: &mut Record,
    ifname: &IfName,
    feature: Feature,
    earlier: Option<Holding>,
) -> Result<()> {
    let Some(earlier) = earlier else {
        return remove(tools, record, ifname, feature).map(drop);
    };
    all(tools, |tool| {
        let of_family = earlier.rules.iter().filter(|own| own.family == tool.family);
        let wanted: Vec<Wanted> = of_family
            .map(|own| Wanted::last(&own.chain, own.rule.clone()))
            .collect();
        sweep(tool, feature, |edit| {
            if wanted.is_empty() {
                return release(edit, tool.family, record, ifname, feature);
            }
            for chain in wanted.iter().map(|wanted| &wanted.chain) {
                edit.ensure_chain(chain);
            }
            replace(edit, tool.family, record, ifname, feature, &wanted);
        })
    })?;
    record.set(ifname.as_str(), feature, earlier);
    record.store()
}

/// Takes an attachment's rules out of one family, and the container's chains when nothing is left in them.
fn release(edit: &mut Edit, family: Family, record: &Record, ifname: &IfName, feature: Feature) {
    let chains = chains(feature, &record.network, &record.container);
    let own: Vec<(String, Rule)> = match record.holding(ifname, feature) {
        Some(holding) => {
            let of_family = holding.rules.iter().filter(|own| own.family == family);
            of_family.map(|own| (own.chain.clone(), own.rule.clone())).collect()
        }
        // Written by the reference, which says only whose container it is.
        None => chains.iter().flat_map(|chain| content(edit.table(), chain)).collect(),
    };
    let (inside, outside): (Vec<_>, Vec<_>) = own.into_iter().partition(|(chain, _)| chains.contains(chain));
    // What leads to the container's chains first: what is in them may serve another interface, which the reference
    // attached. Nothing is recorded of that, but that something else still leads there.
    for (chain, rule) in outside.into_iter().chain(inside) {
        let is_foreign = || feature == Feature::Masquerade && is_reached_unrecorded(edit.table(), record, &chain);
        if !is_shared(record, ifname, feature, family, &chain, &rule) && !is_foreign() {
            edit.remove_rule(&chain, &rule);
        }
    }
    for chain in chains {
        let holds = |holding: &Holding| {
            holding
                .rules
                .iter()
                .any(|own| own.family == family && own.chain == chain)
        };
        if edit.table().rules(&chain).is_empty() && !siblings(record, ifname, feature).any(holds) {
            edit.remove_chain(&chain);
        }
    }
}

/// Whether rules that nobody has recorded lead to a chain.
fn is_reached_unrecorded(table: &Saved, record: &Record, chain: &str) -> bool {
    let holdings = held(record, Feature::Masquerade);
    let is_recorded = |from: &str, rule: &Rule| {
        let mut rules = holdings.iter().flat_map(|holding| &holding.rules);
        rules.any(|own| own.chain == from && own.rule == *rule)
    };
    table
        .jumps_to(chain)
        .iter()
        .any(|(from, rule)| !is_recorded(from, rule))
}

/// The rules in a chain and those that jump to it.
fn content(table: &Saved, chain: &str) -> Vec<(String, Rule)> {
    let inside = table.rules(chain).iter().map(|rule| (chain.to_owned(), rule.clone()));
    table.jumps_to(chain).into_iter().chain(inside).collect()
}

/// Removes what attachments of `network` own that are not in `valid`, and what `also` removes. Returns the rules.
pub(super) fn gc(
    feature: Feature,
    network: &NetworkName,
    valid: &BTreeSet<(ContainerId, IfName)>,
    also: impl Fn(&mut Edit),
) -> Result<Vec<(Family, Rule)>> {
    let is_stale = |record: &Record| !stale(record, feature, valid).is_empty();
    let recorded = Record::load_network(network)?;
    // The chains of masquerading have no name in common, and nothing leads to them but rules in POSTROUTING.
    let entrances: &[&str] = match feature {
        Feature::Portmap => &[names::DNAT_CHAIN, names::SNAT_CHAIN],
        Feature::Masquerade => &[],
        Feature::Firewall if recorded.iter().any(is_stale) => &[names::FORWARD_CHAIN, names::ISOLATION_STAGE_1],
        // Of what is accepted, only the record tells whose it is.
        Feature::Firewall => &[names::ISOLATION_STAGE_1],
    };
    let mut tools = Vec::new();
    for family in Family::BOTH {
        tools.extend(evidence::tools(feature.table(), family, entrances)?);
    }
    if tools.is_empty() && recorded.is_empty() {
        return Ok(Vec::new());
    }
    let _lock = lock::exclusive()?;
    let mut records = Record::load_network(network)?;
    if feature == Feature::Firewall {
        let kept = kept(feature, network, valid)?;
        records
            .iter_mut()
            .for_each(|record| record.set_neighbours(kept.clone()));
    }
    let removed = all(&tools, |tool| {
        sweep(tool, feature, |edit| {
            collect(edit, tool.family, feature, network, &records, valid);
            also(edit);
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
        kept.extend(held(&record, feature));
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

fn collect(
    edit: &mut Edit,
    family: Family,
    feature: Feature,
    network: &NetworkName,
    records: &[Record],
    valid: &BTreeSet<(ContainerId, IfName)>,
) {
    for record in records {
        let mut record = record.clone();
        for ifname in stale(&record, feature, valid) {
            release(edit, family, &record, &ifname, feature);
            record.set(ifname.as_str(), feature, Holding::default());
        }
    }
    for container in containers(edit.table(), feature, network) {
        if !valid.iter().any(|(id, _)| *id == container) {
            for chain in chains(feature, network, &container) {
                edit.remove_chain(&chain);
            }
        }
    }
}

/// The containers of a network that have chains for a feature, by the comments of the rules that jump there.
fn containers(table: &Saved, feature: Feature, network: &NetworkName) -> BTreeSet<ContainerId> {
    let mut found = BTreeSet::new();
    for rule in table.all_rules() {
        let Some((named, container)) = rule.value("--comment").and_then(names::owner) else {
            continue;
        };
        let target = rule.target().unwrap_or_default();
        if named == *network && chains(feature, network, &container).iter().any(|chain| chain == target) {
            found.insert(container);
        }
    }
    found
}

/// Plans against the table and writes, again when the table changed in between. Returns the rules that went.
fn sweep(tool: &Tool, feature: Feature, plan: impl Fn(&mut Edit)) -> Result<Vec<Rule>> {
    let mut tried: Option<(String, Error)> = None;
    for _ in 0..ATTEMPTS {
        let mut edit = Edit::new(tool.save(feature.table())?);
        plan(&mut edit);
        let Some(script) = edit.script() else {
            return Ok(Vec::new());
        };
        match tried {
            Some((before, e)) if before == script => return Err(e),
            _ => {}
        }
        match tool.restore(&script) {
            Ok(()) => return Ok(edit.removed().to_vec()),
            Err(e) => tried = Some((script, e)),
        }
    }
    tried.map_or(Ok(Vec::new()), |(_, e)| Err(e))
}

/// Runs every step; the failures are reported together, under the code of the first.
fn all(tools: &[Tool], step: impl Fn(&Tool) -> Result<Vec<Rule>>) -> Result<Vec<(Family, Rule)>> {
    let (mut removed, mut failures) = (Vec::new(), Vec::new());
    for tool in tools {
        match step(tool) {
            Ok(rules) => removed.extend(rules.into_iter().map(|rule| (tool.family, rule))),
            Err(e) => failures.push(e),
        }
    }
    let Some(first) = failures.first() else {
        return Ok(removed);
    };
    let texts: Vec<&str> = failures.iter().map(|e| e.msg.as_str()).collect();
    Err(Error::new(first.code, texts.join("; ")))
}
