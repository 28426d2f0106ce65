//! The MAC spoofing guard, in the reference suite's table and under its names.
//!
//! ```text
//! table bridge nat {
//!   chain PREROUTING                              iifname <host veth> jump to the next; comment macspoofchk-<container>-<ifname>
//!   chain cni-br-iface-<container>-<ifname>       jump to the next; then a rule that says whose it is and does nothing
//!   chain cni-br-iface-<container>-<ifname>-mac   ether saddr <mac> return; drop
//! }
//! ```
//!
//! The reference's names leave the network out, so GC could not tell whose a guard is: our comment in the second chain
//! can. It goes with the chain, whoever deletes that.

use std::collections::BTreeSet;

use cni_types::{Attachment, ContainerId, Error, IfName, MacAddr, NetworkName, Result};
use nft::{
    Batch, Chain, Connection, Expression, Family, Hook, PayloadBase, Register, RuleState, Table, UserData, Verdict,
    covers, expressions_attribute,
};

use super::kernel_error;
use super::layout::verify_chain;
use super::owner::Owner;
use super::rules;
use super::transaction::transact;

/// The base chain.
const PREROUTING: &str = "PREROUTING";
/// What the other chains' names begin with.
const CHAIN: &str = "cni-br-iface-";

fn table() -> Table {
    Table::new(Family::Bridge, "nat")
}

/// The guard of one container's interface, by what the reference calls it: `<container>-<ifname>`.
struct Guard(String);

impl Guard {
    fn of(attachment: &Attachment) -> Guard {
        Guard(format!("{}-{}", attachment.container_id, attachment.ifname))
    }

    fn chain(&self) -> String {
        format!("{CHAIN}{}", self.0)
    }

    fn mac_chain(&self) -> String {
        format!("{CHAIN}{}-mac", self.0)
    }

    fn comment(&self) -> UserData {
        // As nft would keep it.
        UserData::from_bytes(&UserData::comment(format!("macspoofchk-{}", self.0)).to_bytes())
    }

    fn entry(&self, host_veth: &IfName) -> Vec<Expression> {
        let jump = [Expression::Verdict(Verdict::Jump(self.chain()))];
        rules::rule(&[&rules::from(host_veth.as_str()), &jump])
    }

    /// The rules of the second chain; the last has no effect and bears our comment.
    fn chain_rules(&self) -> [Vec<Expression>; 2] {
        [Verdict::Jump(self.mac_chain()), Verdict::Return].map(|verdict| vec![Expression::Verdict(verdict)])
    }

    fn mac_rules(mac: MacAddr) -> [Vec<Expression>; 2] {
        let load = Expression::Payload {
            base: PayloadBase::Link,
            offset: 6,
            len: 6,
            to: Register::FIRST,
        };
        let same = Expression::Equal(Register::FIRST, mac.0.to_vec());
        [
            vec![load, same, Expression::Verdict(Verdict::Return)],
            vec![Expression::Verdict(Verdict::Drop)],
        ]
    }

    /// Adds its removal to `batch`, as far as it is there.
    fn remove(&self, connection: &mut Connection, batch: &mut Batch) -> Result<()> {
        let (table, names) = (table(), [self.chain(), self.mac_chain()]);
        let names = names.each_ref().map(String::as_str);
        let found = connection.chains(&table, &names).map_err(kernel_error)?;
        if found.iter().all(Option::is_none) {
            // Where there is no chain, no rule leads to it.
            return Ok(());
        }
        let comment = self.comment();
        for rule in connection.rules(&table, PREROUTING).map_err(kernel_error)? {
            if rule.user_data == comment {
                batch.delete_rule(&table, PREROUTING, rule.handle);
            }
        }
        for chain in found.into_iter().flatten() {
            batch.delete_chain(&table, &chain.name);
        }
        Ok(())
    }

    /// Whose it is, if we made it.
    fn owner(&self, connection: &mut Connection) -> Result<Option<Owner>> {
        let rules = connection.rules(&table(), &self.chain()).map_err(kernel_error)?;
        Ok(rules.iter().find_map(owner_of))
    }
}

fn owner_of(rule: &RuleState) -> Option<Owner> {
    Owner::from_comment(rule.user_data.comment.as_deref()?)
}

/// See [`crate::macspoof::add`].
pub(crate) fn add(attachment: &Attachment, host_veth: &IfName, mac: MacAddr) -> Result<()> {
    let (guard, table) = (Guard::of(attachment), table());
    let mut connection = Connection::open().map_err(kernel_error)?;
    transact(&mut connection, &table, |connection, batch| {
        batch.add_table(&table);
        batch.add_chain(&table, &base_chain());
        guard.remove(connection, batch)?;
        for name in [guard.chain(), guard.mac_chain()] {
            batch.add_chain(&table, &Chain { name, hook: None });
        }
        let marker = UserData::comment(Owner::comment(attachment));
        let comment = guard.comment();
        for (rule, comment) in guard.chain_rules().iter().zip([&comment, &marker]) {
            batch.append_rule(&table, &guard.chain(), rule, comment);
        }
        for rule in &Guard::mac_rules(mac) {
            batch.append_rule(&table, &guard.mac_chain(), rule, &comment);
        }
        batch.append_rule(&table, PREROUTING, &guard.entry(host_veth), &comment);
        Ok(())
    })
}

fn base_chain() -> Chain {
    Chain {
        name: PREROUTING.to_owned(),
        hook: Some(Hook {
            kind: "filter",
            number: Hook::PREROUTING,
            priority: -300,
        }),
    }
}

/// See [`crate::macspoof::check`].
pub(crate) fn check(attachment: &Attachment, host_veth: &IfName, mac: MacAddr) -> Result<()> {
    let (guard, table) = (Guard::of(attachment), table());
    let mut connection = Connection::open().map_err(kernel_error)?;
    let entries = connection.rules(&table, PREROUTING).map_err(kernel_error)?;
    let wanted = expressions_attribute(&guard.entry(host_veth));
    if !entries.iter().any(|rule| covers(wanted.as_bytes(), &rule.attributes)) {
        return Err(Error::internal(format!("no rule of {table} guards {host_veth}")));
    }
    verify_chain(&mut connection, &table, &guard.mac_chain(), &Guard::mac_rules(mac))?;
    let jump = expressions_attribute(&guard.chain_rules()[0]);
    let chain = connection.rules(&table, &guard.chain()).map_err(kernel_error)?;
    match chain
        .first()
        .is_some_and(|rule| covers(jump.as_bytes(), &rule.attributes))
    {
        true => Ok(()),
        false => Err(Error::internal(format!(
            "chain {} of {table} does not check addresses",
            guard.chain()
        ))),
    }
}

/// See [`crate::macspoof::del`].
pub(crate) fn del(attachment: &Attachment) -> Result<()> {
    let mut connection = Connection::open().map_err(kernel_error)?;
    if !connection.has_table(&table()).map_err(kernel_error)? {
        return Ok(());
    }
    let guard = Guard::of(attachment);
    transact(&mut connection, &table(), |connection, batch| {
        match guard.owner(connection)? {
            // Another network's interface of the same name: not ours to remove.
            Some(owner) if owner != Owner::of(attachment) => Ok(()),
            _ => guard.remove(connection, batch),
        }
    })
}

/// See [`crate::macspoof::gc`].
pub(crate) fn gc(network: &NetworkName, valid: &BTreeSet<(ContainerId, IfName)>) -> Result<()> {
    let mut connection = Connection::open().map_err(kernel_error)?;
    if !connection.has_table(&table()).map_err(kernel_error)? {
        return Ok(());
    }
    let valid: BTreeSet<Owner> = valid
        .iter()
        .map(|(container_id, ifname)| {
            Owner::of(&Attachment {
                network: network.clone(),
                container_id: container_id.clone(),
                ifname: ifname.clone(),
            })
        })
        .collect();
    transact(&mut connection, &table(), |connection, batch| {
        for rule in connection.all_rules(&table()).map_err(kernel_error)? {
            let stale = owner_of(&rule).is_some_and(|owner| owner.is_on(network) && !valid.contains(&owner));
            if let Some(name) = rule.chain.strip_prefix(CHAIN).filter(|_| stale) {
                Guard(name.to_owned()).remove(connection, batch)?;
            }
        }
        Ok(())
    })
}
