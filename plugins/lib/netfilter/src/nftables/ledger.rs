//! Who holds what: the one place where elements of our tables change hands.

use std::collections::BTreeSet;

use cni_types::{Attachment, ContainerId, Error, IfName, NetworkName, Result};
use nft::{Connection, Element, Value, Verdict};

use super::draft::{Draft, SharedChain, owner_of, waiting, write_record};
use super::layout::{Layout, verify_chain};
use super::owner::Owner;
use super::record::{FIRST_CHUNKS, Holding, OWNERS, Record, count, key};
use super::transaction::transact;
use super::{conditions, kernel_error};
use crate::portmap::OnConflict;
use crate::sweep::together;

/// An element that an attachment is to hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Claim {
    /// The element.
    pub(super) holding: Holding,
    /// In a map of verdicts, where it leads.
    pub(super) chain: Option<SharedChain>,
    /// What it is, for people: `host port 8080/tcp`.
    pub(super) what: String,
}

impl Claim {
    /// What the element leads to. Chains are jumped to: what follows the map still has its say.
    pub(super) fn value(&self) -> Option<Value> {
        let jump = || Some(Value::Verdict(Verdict::Jump(self.chain.as_ref()?.name.clone())));
        self.holding.data.clone().map(Value::Data).or_else(jump)
    }
}

/// Everything that an attachment is to hold.
pub(super) struct Entry<'a> {
    pub(super) attachment: &'a Attachment,
    pub(super) claims: Vec<Claim>,
    /// Mappings that rules with conditions stand for, and no elements: noted in the record alone.
    pub(super) conditional: Vec<Holding>,
    pub(super) netns: Option<String>,
    pub(super) netns_exists: fn(&str) -> bool,
    pub(super) on_conflict: OnConflict,
}

impl Entry<'_> {
    fn holdings(&self) -> impl Iterator<Item = &Holding> {
        self.claims.iter().map(|claim| &claim.holding).chain(&self.conditional)
    }

    fn record(&self) -> Record {
        Record {
            attachment: self.attachment.clone(),
            netns: self.netns.clone(),
            has_conditions: !self.conditional.is_empty(),
            holdings: self.holdings().cloned().collect(),
        }
    }
}

/// The ledger of one table.
pub(super) struct Ledger<'a> {
    layout: &'a Layout,
    connection: Connection,
}

impl<'a> Ledger<'a> {
    pub(super) fn open(layout: &'a Layout) -> Result<Ledger<'a>> {
        Ok(Ledger {
            layout,
            connection: Connection::open().map_err(kernel_error)?,
        })
    }

    /// Whether an attachment has a record.
    pub(super) fn holds(&mut self, attachment: &Attachment) -> Result<bool> {
        let (layout, connection) = (self.layout, &mut self.connection);
        Ok(layout.exists(connection)? && own_record(connection, layout, attachment)?.is_some())
    }

    /// Refuses claims to what a living container holds, on behalf of somebody who will not write them here.
    pub(super) fn contest(&mut self, entry: &Entry<'_>) -> Result<()> {
        let (layout, connection) = (self.layout, &mut self.connection);
        if !layout.exists(connection)? {
            return Ok(());
        }
        let mut draft = Draft::read(layout, connection, entry.holdings().cloned())?;
        entry.claims.iter().try_for_each(|claim| draft.claim(entry, claim))
    }

    /// Makes an attachment hold exactly what `entry` says, and returns what it held before.
    pub(super) fn put(&mut self, entry: &Entry<'_>) -> Result<Option<Record>> {
        self.put_if(entry, || Ok(()))
    }

    /// As [`Ledger::put`], unless `permit` refuses, which is asked while nobody else changes anything.
    pub(super) fn put_if(&mut self, entry: &Entry<'_>, permit: impl Fn() -> Result<()>) -> Result<Option<Record>> {
        let owner = Owner::of(entry.attachment);
        let layout = self.layout;
        transact(&mut self.connection, &layout.table, |connection, batch| {
            permit()?;
            layout.ensure(connection, batch)?;
            let (earlier, chunks) = own_record(connection, layout, entry.attachment)?.unzip();
            let record = entry.record();
            let had_conditions = earlier.as_ref().is_some_and(|record| record.has_conditions);
            let old = earlier
                .as_ref()
                .map(|record| record.holdings.clone())
                .unwrap_or_default();
            let touched = old.iter().chain(&record.holdings).cloned();
            let mut draft = Draft::read(layout, connection, touched)?;
            for holding in old.iter().filter(|old| {
                !record
                    .holdings
                    .iter()
                    .any(|new| new.key == old.key && new.map == old.map && new.key_end == old.key_end)
            }) {
                draft.release(owner, holding)?;
            }
            for claim in &entry.claims {
                draft.claim(entry, claim)?;
            }
            draft.write(batch)?;
            match record.has_conditions {
                true => conditions::prepare(connection, &layout.table, entry.attachment, batch)?,
                false if had_conditions => conditions::remove(connection, &layout.table, entry.attachment, batch)?,
                false => {}
            }
            write_record(layout, &chunks.unwrap_or_default(), Some(&record), batch);
            Ok(earlier)
        })
    }

    /// Takes from an attachment what it holds, and returns what that was.
    pub(super) fn release(&mut self, attachment: &Attachment) -> Result<Option<Record>> {
        if !self.layout.exists(&mut self.connection)? {
            return Ok(None);
        }
        let layout = self.layout;
        transact(&mut self.connection, &layout.table, |connection, batch| {
            let Some((record, chunks)) = own_record(connection, layout, attachment)? else {
                return Ok(None);
            };
            let mut draft = Draft::read(layout, connection, record.holdings.iter().cloned())?;
            for holding in &record.holdings {
                draft.release(Owner::of(attachment), holding)?;
            }
            draft.write(batch)?;
            if record.has_conditions {
                conditions::remove(connection, &layout.table, attachment, batch)?;
            }
            write_record(layout, &chunks, None, batch);
            Ok(Some(record))
        })
    }

    /// Takes what they hold from the attachments of a network that are not in `valid`, and returns what that was.
    pub(super) fn collect(
        &mut self,
        network: &NetworkName,
        valid: &BTreeSet<(ContainerId, IfName)>,
    ) -> Result<Vec<Record>> {
        let (mut released, mut failures) = (Vec::new(), Vec::new());
        for attachment in self.stale(network, valid)? {
            match self.release(&attachment) {
                Ok(record) => released.extend(record),
                Err(error) => failures.push(Err(error)),
            }
        }
        together(failures).map(|()| released)
    }

    /// The record of every attachment that holds something, on any network.
    ///
    /// # Errors
    ///
    /// A record that is not understood: who asks for all must not miss one.
    pub(super) fn all(&mut self) -> Result<Vec<Record>> {
        let table = &self.layout.table;
        let elements = self.connection.all_elements(table, OWNERS).map_err(kernel_error)?;
        let owners: BTreeSet<Option<Vec<u8>>> = elements
            .iter()
            .map(|element| element.key.get(..Owner::LEN).map(<[u8]>::to_vec))
            .collect();
        let records = Record::all(elements);
        match records.len() == owners.len() {
            true => Ok(records),
            false => Err(Error::internal(format!("{OWNERS} of {table} is not understood"))),
        }
    }

    /// The chains that what an attachment holds leads to, holding by holding; `None` where it leads to none.
    pub(super) fn chains_of(&mut self, record: &Record) -> Result<Vec<Option<String>>> {
        let layout = self.layout;
        let mut chain_of = |holding: &Holding| {
            let Some(map) = layout.map(holding.map) else {
                return Ok(None);
            };
            let wanted = [(map.set.name.as_str(), holding.key.as_slice())];
            let found = self.connection.elements(&layout.table, &wanted).map_err(kernel_error)?;
            let value = found.into_iter().flatten().find_map(|element| element.value);
            Ok(match value {
                Some(Value::Verdict(verdict)) => verdict.chain().map(str::to_owned),
                _ => None,
            })
        };
        record.holdings.iter().map(&mut chain_of).collect()
    }

    /// Deletes the table, unless an attachment holds something in it; tells whether it is gone.
    pub(super) fn remove_table(&mut self) -> Result<bool> {
        let table = &self.layout.table;
        transact(&mut self.connection, table, |connection, batch| {
            if !connection.has_table(table).map_err(kernel_error)? {
                return Ok(true);
            }
            let is_empty = connection.all_elements(table, OWNERS).map_err(kernel_error)?.is_empty();
            if is_empty {
                batch.delete_table(table);
            }
            Ok(is_empty)
        })
    }

    /// The attachments of a network that hold something and are not in `valid`.
    fn stale(&mut self, network: &NetworkName, valid: &BTreeSet<(ContainerId, IfName)>) -> Result<Vec<Attachment>> {
        if !self.layout.exists(&mut self.connection)? {
            return Ok(Vec::new());
        }
        let mut elements = self
            .connection
            .all_elements(&self.layout.table, OWNERS)
            .map_err(kernel_error)?;
        elements.retain(|element| {
            let owner = element.key.get(..Owner::LEN).and_then(Owner::from_bytes);
            owner.is_some_and(|owner| owner.is_on(network))
        });
        let attachments = Record::all(elements).into_iter().map(|record| record.attachment);
        Ok(attachments
            .filter(|a| a.network == *network && !valid.contains(&(a.container_id.clone(), a.ifname.clone())))
            .collect())
    }

    /// Compares what the kernel has with what [`Ledger::put`] would write.
    pub(super) fn verify(&mut self, entry: &Entry<'_>) -> Result<()> {
        let (layout, connection) = (self.layout, &mut self.connection);
        layout.verify(connection)?;
        let wanted = entry.record();
        let found = own_record(connection, layout, entry.attachment)?;
        let found = found.map(|(record, _)| record.holdings).unwrap_or_default();
        if BTreeSet::from_iter(&found) != BTreeSet::from_iter(&wanted.holdings) {
            let message = format!(
                "{} of {} is not what {} should have",
                OWNERS, layout.table, entry.attachment
            );
            return Err(Error::internal(message));
        }
        let keys: Vec<(&str, &[u8])> = entry
            .claims
            .iter()
            .filter_map(|claim| {
                Some((
                    layout.map(claim.holding.map)?.set.name.as_str(),
                    claim.holding.key.as_slice(),
                ))
            })
            .collect();
        let elements = connection.elements(&layout.table, &keys).map_err(kernel_error)?;
        for (claim, element) in entry.claims.iter().zip(elements) {
            verify_element(entry.attachment, claim, element.as_ref())?;
            if let Some(chain) = &claim.chain {
                verify_chain(connection, &layout.table, &chain.name, &chain.rules)?;
            }
        }
        Ok(())
    }
}

fn verify_element(attachment: &Attachment, claim: &Claim, element: Option<&Element>) -> Result<()> {
    let wrong = |how: String| Err(Error::internal(format!("{}: {how}", claim.what)));
    let Some(element) = element else {
        return wrong(format!("missing for {attachment}"));
    };
    let owner = Owner::of(attachment);
    if waiting(element).contains(&owner) {
        // Another attachment of the container has it for now.
        return Ok(());
    }
    if owner_of(element) != Some(owner) {
        let holder = element.user_data.comment.as_deref().unwrap_or("somebody unknown");
        return wrong(format!("held by {holder} and not by {attachment}"));
    }
    if element.value != claim.value() || element.key_end != claim.holding.key_end {
        return wrong(format!("leads elsewhere than to {attachment}"));
    }
    Ok(())
}

/// The record of an attachment, and its elements as the kernel has them.
fn own_record(
    connection: &mut Connection,
    layout: &Layout,
    attachment: &Attachment,
) -> Result<Option<(Record, Vec<Element>)>> {
    match read_record(connection, layout, Owner::of(attachment))? {
        Some((record, _)) if record.attachment != *attachment => Err(Error::internal(format!(
            "{attachment} and {} have the same hash",
            record.attachment
        ))),
        found => Ok(found),
    }
}

/// The record of an owner, and its elements as the kernel has them.
pub(super) fn read_record(
    connection: &mut Connection,
    layout: &Layout,
    owner: Owner,
) -> Result<Option<(Record, Vec<Element>)>> {
    let mut read = |numbers: std::ops::Range<u32>| -> Result<Vec<Element>> {
        let keys: Vec<_> = numbers.map(|number| key(owner, number)).collect();
        let wanted: Vec<_> = keys.iter().map(|key| (OWNERS, key.as_slice())).collect();
        let found = connection.elements(&layout.table, &wanted).map_err(kernel_error)?;
        Ok(found.into_iter().map_while(|element| element).collect())
    };
    let mut elements = read(0..FIRST_CHUNKS)?;
    let Some(first) = elements.first() else { return Ok(None) };
    // A record is as long as its owner's ports are many; a count beyond that is no count of ours.
    let count = count(first).unwrap_or_default().min(u32::from(u16::MAX));
    elements.extend(read(FIRST_CHUNKS..count.max(FIRST_CHUNKS))?);
    match Record::from_elements(&elements) {
        Some(record) => Ok(Some((record, elements))),
        None => Err(Error::internal(format!(
            "the record of owner {owner:?} in {} is not understood",
            layout.table
        ))),
    }
}
