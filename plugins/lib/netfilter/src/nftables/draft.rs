//! A change of one attachment's elements while it is being worked out.

use std::collections::BTreeMap;

use cni_types::{Code, Error, Result};
use nft::{Batch, Chain, Connection, Element, Expression, UserData, Value, Verdict, expressions_attribute};
use sha2::{Digest, Sha512};

use super::kernel_error;
use super::layout::{Layout, verify_chain};
use super::ledger::{self, Claim, Entry};
use super::owner::{Owner, hex};
use super::record::{Holding, Record};
use crate::portmap::OnConflict;

/// How many attachments can wait for an element that another of the same container has: as many as its user data holds.
const MAX_WAITING: usize = 6;

/// A chain to which elements of verdict maps lead. Its name is a hash of its rules, so that whoever needs the same rules
/// shares it; it goes with the last element that leads to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SharedChain {
    /// Its name.
    pub(super) name: String,
    /// Its rules.
    pub(super) rules: Vec<Vec<Expression>>,
}

impl SharedChain {
    pub(super) fn new(prefix: &str, rules: Vec<Vec<Expression>>) -> SharedChain {
        let mut hash = Sha512::new();
        for rule in &rules {
            hash.update(expressions_attribute(rule).as_bytes());
        }
        let name = format!("{prefix}-{}", hex(hash.finalize().get(..8).unwrap_or_default()));
        SharedChain { name, rules }
    }
}

/// An element before and after the change.
#[derive(Default)]
struct Slot {
    before: Option<Element>,
    after: Option<Element>,
}

/// The change. Elements that it touches are read first, by their keys.
pub(super) struct Draft<'a> {
    layout: &'a Layout,
    connection: &'a mut Connection,
    slots: BTreeMap<Holding, Slot>,
    needed: Vec<SharedChain>,
}

/// The name of a slot: a holding without its value.
fn place(holding: &Holding) -> Holding {
    Holding {
        data: None,
        ..holding.clone()
    }
}

impl<'a> Draft<'a> {
    /// Reads the elements in the places of `holdings`.
    pub(super) fn read(
        layout: &'a Layout,
        connection: &'a mut Connection,
        holdings: impl Iterator<Item = Holding>,
    ) -> Result<Draft<'a>> {
        let mut slots: BTreeMap<Holding, Slot> = holdings.map(|h| (place(&h), Slot::default())).collect();
        let known = |h: &Holding| layout.map(h.map).map(|map| map.set.name.as_str());
        slots.retain(|place, _| known(place).is_some());
        let wanted: Vec<(&str, &[u8])> = slots
            .keys()
            .filter_map(|place| Some((known(place)?, place.key.as_slice())))
            .collect();
        let found = connection.elements(&layout.table, &wanted).map_err(kernel_error)?;
        for ((place, slot), element) in slots.iter_mut().zip(found) {
            // A range that only overlaps is not the one that was asked for.
            slot.before = element.filter(|e| e.key == place.key && e.key_end == place.key_end);
            slot.after.clone_from(&slot.before);
        }
        Ok(Draft {
            layout,
            connection,
            slots,
            needed: Vec::new(),
        })
    }

    /// Gives an element back: to the next attachment of the container that waits for it, if there is one.
    pub(super) fn release(&mut self, owner: Owner, holding: &Holding) -> Result<()> {
        let Some(element) = self.slots.get(&place(holding)).and_then(|slot| slot.after.clone()) else {
            return Ok(());
        };
        let mut waiting = waiting(&element);
        waiting.retain(|other| *other != owner);
        let after = match owner_of(&element) {
            Some(holder) if holder == owner => self.promote(holding, waiting)?,
            _ => Some(with_waiting(element, &waiting)),
        };
        if let Some(slot) = self.slots.get_mut(&place(holding)) {
            slot.after = after;
        }
        Ok(())
    }

    /// The element for the first of `waiting` that still has a claim to it.
    fn promote(&mut self, holding: &Holding, mut waiting: Vec<Owner>) -> Result<Option<Element>> {
        while !waiting.is_empty() {
            let next = waiting.remove(0);
            let Some(record) = ledger::read_record(self.connection, self.layout, next)?.map(|(record, _)| record)
            else {
                continue;
            };
            if let Some(theirs) = record.holdings.iter().find(|theirs| place(theirs) == place(holding)) {
                let value = theirs.data.clone().map(Value::Data);
                let element = element(theirs, value, Owner::comment(&record.attachment));
                return Ok(Some(with_waiting(element, &waiting)));
            }
        }
        Ok(None)
    }

    /// Takes an element for an attachment, or lets it wait where another attachment of its container has it.
    pub(super) fn claim(&mut self, entry: &Entry<'_>, claim: &Claim) -> Result<()> {
        let owner = Owner::of(entry.attachment);
        self.contest_overlapping(entry, claim)?;
        let current = self
            .slots
            .get(&place(&claim.holding))
            .and_then(|slot| slot.after.clone());
        let mine = element(&claim.holding, claim.value(), Owner::comment(entry.attachment));
        let after = match current.as_ref().map(|element| (element, owner_of(element))) {
            None => mine,
            Some((current, Some(holder))) if holder == owner => with_waiting(mine, &waiting(current)),
            Some((current, Some(holder))) if self.may_wait(claim, &owner, &holder) => {
                let mut waiting = waiting(current);
                if !waiting.contains(&owner) {
                    waiting.push(owner);
                }
                if waiting.len() > MAX_WAITING {
                    log::warn!("{}: too many attachments of the container wait for it", claim.what);
                    waiting.truncate(MAX_WAITING);
                }
                with_waiting(current.clone(), &waiting)
            }
            Some((_, holder)) => {
                self.contest(entry, claim, holder)?;
                mine
            }
        };
        self.needed.extend(claim.chain.clone());
        self.slots.entry(place(&claim.holding)).or_default().after = Some(after);
        Ok(())
    }

    fn may_wait(&self, claim: &Claim, owner: &Owner, holder: &Owner) -> bool {
        self.is_exclusive(claim) && owner.is_of_same_container(holder)
    }

    fn is_exclusive(&self, claim: &Claim) -> bool {
        self.layout.map(claim.holding.map).is_some_and(|map| map.exclusive)
    }

    /// Decides whether an element may be taken from its holder.
    fn contest(&mut self, entry: &Entry<'_>, claim: &Claim, holder: Option<Owner>) -> Result<()> {
        if !self.is_exclusive(claim) {
            // An address: whoever had it before is gone, or its plugin would not have given it away.
            return Ok(());
        }
        let record = match holder {
            Some(holder) => ledger::read_record(self.connection, self.layout, holder)?.map(|(record, _)| record),
            None => None,
        };
        let what = &claim.what;
        match record {
            Some(record) if record.netns.as_deref().is_some_and(entry.netns_exists) => match entry.on_conflict {
                OnConflict::Refuse => {
                    let message = format!("{what} is held by {}", record.attachment);
                    return Err(Error::new(Code::TRY_AGAIN_LATER, message));
                }
                OnConflict::Replace => log::warn!("{what} is taken over from {}", record.attachment),
            },
            Some(record) => log::warn!(
                "{what} is taken over from {}, which is gone or unknown",
                record.attachment
            ),
            None => log::warn!("{what} is taken over from an unknown holder"),
        }
        Ok(())
    }

    /// A range conflicts with every range and single port in it, and a port with the range that it is in. Elements that
    /// a range overlaps go, whole: the kernel takes no overlapping ranges, and a single port would come before it.
    fn contest_overlapping(&mut self, entry: &Entry<'_>, claim: &Claim) -> Result<()> {
        let Some(map) = self.layout.map(claim.holding.map) else {
            return Ok(());
        };
        let Some(other) = map.overlaps else { return Ok(()) };
        let layout = self.layout;
        let Some(other_map) = layout.map(other) else {
            return Ok(());
        };
        if !map.set.interval {
            let wanted = [(other_map.set.name.as_str(), claim.holding.key.as_slice())];
            let found = self.connection.elements(&layout.table, &wanted).map_err(kernel_error)?;
            for range in found.into_iter().flatten() {
                self.contest_other(entry, claim, &range)?;
            }
            return Ok(());
        }
        for (number, name) in [(claim.holding.map, &map.set.name), (other, &other_map.set.name)] {
            let elements = self
                .connection
                .all_elements(&layout.table, name)
                .map_err(kernel_error)?;
            for element in elements {
                let holding = holding_of(number, &element);
                let released = self.slots.get(&holding).is_some_and(|slot| slot.after.is_none());
                if released || holding == place(&claim.holding) || !overlap(&claim.holding, &holding) {
                    continue;
                }
                let same_container = self.contest_other(entry, claim, &element)?;
                // A single port of the same container comes before the range and leads where it is meant to.
                if !same_container || number == claim.holding.map {
                    let slot = Slot {
                        before: Some(element),
                        after: None,
                    };
                    self.slots.insert(holding, slot);
                }
            }
        }
        Ok(())
    }

    /// Whether an overlapping element is of the same container; if not, it is contested.
    fn contest_other(&mut self, entry: &Entry<'_>, claim: &Claim, element: &Element) -> Result<bool> {
        let holder = owner_of(element);
        let owner = Owner::of(entry.attachment);
        if holder.is_some_and(|holder| holder.is_of_same_container(&owner)) {
            return Ok(true);
        }
        self.contest(entry, claim, holder)?;
        Ok(false)
    }

    /// Writes the change to `batch`: chains before the elements that lead to them, deletions before additions.
    pub(super) fn write(self, batch: &mut Batch) -> Result<()> {
        let Draft {
            layout,
            connection,
            slots,
            needed,
        } = self;
        let changed: Vec<(&str, &Slot)> = slots
            .iter()
            .filter(|(_, slot)| slot.before != slot.after)
            .filter_map(|(place, slot)| Some((layout.map(place.map)?.set.name.as_str(), slot)))
            .collect();
        for chain in &needed {
            ensure_chain(layout, connection, chain, batch)?;
        }
        for (map, element) in changed
            .iter()
            .filter_map(|(map, slot)| Some((map, slot.before.as_ref()?)))
        {
            batch.delete_element(&layout.table, map, element);
        }
        for (map, element) in changed
            .iter()
            .filter_map(|(map, slot)| Some((map, slot.after.as_ref()?)))
        {
            batch.add_element(&layout.table, map, element);
        }
        let mut references: BTreeMap<&str, i64> = BTreeMap::new();
        for (_, slot) in &changed {
            for (element, change) in [(&slot.before, -1), (&slot.after, 1)] {
                if let Some(chain) = element.as_ref().and_then(chain_of) {
                    *references.entry(chain).or_default() += change;
                }
            }
        }
        for (chain, change) in references {
            if change < 0 && is_last_reference(layout, connection, chain, change)? {
                batch.delete_chain(&layout.table, chain);
            }
        }
        Ok(())
    }
}

/// Makes a shared chain, or makes it right.
fn ensure_chain(layout: &Layout, connection: &mut Connection, chain: &SharedChain, batch: &mut Batch) -> Result<()> {
    if verify_chain(connection, &layout.table, &chain.name, &chain.rules).is_ok() {
        return Ok(());
    }
    let base = Chain {
        name: chain.name.clone(),
        hook: None,
    };
    batch.add_chain(&layout.table, &base);
    batch.flush_chain(&layout.table, &chain.name);
    for rule in &chain.rules {
        batch.append_rule(&layout.table, &chain.name, rule, &UserData::default());
    }
    Ok(())
}

/// Whether nothing leads to a chain any more once `change` is made. The kernel counts its rules too.
fn is_last_reference(layout: &Layout, connection: &mut Connection, chain: &str, change: i64) -> Result<bool> {
    let found = connection.chains(&layout.table, &[chain]).map_err(kernel_error)?;
    let Some(state) = found.into_iter().flatten().next() else {
        return Ok(false);
    };
    let rules = connection.rules(&layout.table, chain).map_err(kernel_error)?.len();
    Ok(i64::from(state.used) - rules as i64 + change <= 0)
}

fn element(holding: &Holding, value: Option<Value>, comment: String) -> Element {
    Element {
        key: holding.key.clone(),
        key_end: holding.key_end.clone(),
        value,
        user_data: UserData::comment(clip(comment)),
    }
}

/// What nft shows of a comment; the same is compared with what the kernel kept.
fn clip(comment: String) -> String {
    // Names are ASCII but for interfaces', and UserData keeps characters whole.
    UserData::from_bytes(&UserData::comment(comment).to_bytes())
        .comment
        .unwrap_or_default()
}

fn holding_of(map: u8, element: &Element) -> Holding {
    Holding {
        map,
        key: element.key.clone(),
        key_end: element.key_end.clone(),
        data: None,
    }
}

/// Whether two ranges or single keys meet. All fields but the port are the same at both ends of a range, so bytes compare
/// as numbers.
fn overlap(a: &Holding, b: &Holding) -> bool {
    let end = |holding: &Holding| holding.key_end.clone().unwrap_or_else(|| holding.key.clone());
    a.key <= end(b) && b.key <= end(a)
}

/// Whose an element is; `None` if it is not ours.
pub(super) fn owner_of(element: &Element) -> Option<Owner> {
    Owner::from_comment(element.user_data.comment.as_deref()?)
}

/// The attachments of the same container that wait for an element, the next first.
pub(super) fn waiting(element: &Element) -> Vec<Owner> {
    let owners = element.user_data.private.chunks(Owner::LEN);
    owners.filter_map(Owner::from_bytes).collect()
}

fn with_waiting(mut element: Element, waiting: &[Owner]) -> Element {
    element.user_data.private = waiting.iter().flat_map(|owner| owner.as_bytes().to_vec()).collect();
    element
}

fn chain_of(element: &Element) -> Option<&str> {
    match element.value.as_ref()? {
        Value::Verdict(Verdict::Jump(chain) | Verdict::Goto(chain)) => Some(chain),
        _ => None,
    }
}

/// The change of a record's elements.
pub(super) fn write_record(layout: &Layout, before: &[Element], after: Option<&Record>, batch: &mut Batch) {
    let after = after.map(Record::elements).unwrap_or_default();
    for (number, element) in before.iter().enumerate() {
        if after.get(number) != Some(element) {
            batch.delete_element(&layout.table, super::record::OWNERS, element);
        }
    }
    for (number, element) in after.iter().enumerate() {
        if before.get(number) != Some(element) {
            batch.add_element(&layout.table, super::record::OWNERS, element);
        }
    }
}
