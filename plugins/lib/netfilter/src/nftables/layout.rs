//! A table of ours: what is in it whether or not any container is there.

use cni_types::{Error, Result};
use nft::{
    Batch, Chain, Connection, DataType, Expression, Hook, Set, Table, UserData, covers, expressions_attribute, types,
};

use super::kernel_error;
use super::record::OWNERS;

/// A map of a table.
#[derive(Debug, Clone)]
pub(super) struct Map {
    /// Its name and types.
    pub(super) set: Set,
    /// Whether a key must not be taken from a living container, as a host port must not.
    pub(super) exclusive: bool,
    /// The map that holds the other kind of element for the same packets: ranges of ports, or single ones.
    pub(super) overlaps: Option<u8>,
}

/// A chain of a table.
#[derive(Debug, Clone)]
pub(super) struct BaseChain {
    /// Its name and hook.
    pub(super) chain: Chain,
    /// Its rules; `None` where they are not fixed.
    pub(super) rules: Option<Vec<Vec<Expression>>>,
}

/// A table of ours.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    /// Its name.
    pub(super) table: Table,
    /// Its maps. Records name them by their position, so new ones go to the end.
    pub(super) maps: Vec<Map>,
    /// Its chains, each before those that lead to it.
    pub(super) chains: Vec<BaseChain>,
}

impl Layout {
    /// A map of the layout; `None` for a number out of a record that another version wrote.
    pub(super) fn map(&self, number: u8) -> Option<&Map> {
        self.maps.get(usize::from(number))
    }

    /// Whether the table exists.
    pub(super) fn exists(&self, connection: &mut Connection) -> Result<bool> {
        connection.has_table(&self.table).map_err(kernel_error)
    }

    /// Adds to `batch` what is missing of the layout. Costs one exchange where nothing is: a chain's use count tells whether
    /// its rules, and those that lead to it, are as many as they should be.
    pub(super) fn ensure(&self, connection: &mut Connection, batch: &mut Batch) -> Result<()> {
        let names: Vec<&str> = self.chains.iter().map(|c| c.chain.name.as_str()).collect();
        let found = connection.chains(&self.table, &names).map_err(kernel_error)?;
        let complete = self.chains.iter().zip(&found).all(|(base, found)| {
            let used = found.as_ref().map(|chain| chain.used);
            match &base.rules {
                Some(rules) => used == Some(rules.len() as u32 + self.jumps_to(&base.chain.name)),
                None => used.is_some(),
            }
        });
        if !complete {
            self.write(batch);
        }
        Ok(())
    }

    /// Everything; what is there already stays, except for rules, which are written anew.
    pub(super) fn write(&self, batch: &mut Batch) {
        batch.add_table(&self.table);
        batch.add_set(&self.table, &Set::keys(OWNERS, &[types::IPV6_ADDR, types::MARK]));
        for map in &self.maps {
            batch.add_set(&self.table, &map.set);
        }
        for base in &self.chains {
            batch.add_chain(&self.table, &base.chain);
        }
        for base in &self.chains {
            let Some(rules) = &base.rules else { continue };
            batch.flush_chain(&self.table, &base.chain.name);
            for rule in rules {
                batch.append_rule(&self.table, &base.chain.name, rule, &UserData::default());
            }
        }
    }

    /// Compares the rules in the kernel with the layout's.
    pub(super) fn verify(&self, connection: &mut Connection) -> Result<()> {
        for base in &self.chains {
            if let Some(rules) = &base.rules {
                verify_chain(connection, &self.table, &base.chain.name, rules)?;
            }
        }
        Ok(())
    }

    fn jumps_to(&self, chain: &str) -> u32 {
        let rules = self
            .chains
            .iter()
            .filter_map(|base| base.rules.as_ref())
            .flatten()
            .flatten();
        let leads_there = |expression: &&Expression| match expression {
            Expression::Verdict(verdict) => verdict.chain() == Some(chain),
            _ => false,
        };
        rules.filter(leads_there).count() as u32
    }
}

/// Compares a chain's rules in the kernel with what they should be.
pub(super) fn verify_chain(
    connection: &mut Connection,
    table: &Table,
    chain: &str,
    rules: &[Vec<Expression>],
) -> Result<()> {
    let found = connection.rules(table, chain).map_err(kernel_error)?;
    let same = found.len() == rules.len()
        && rules
            .iter()
            .zip(&found)
            .all(|(rule, found)| covers(expressions_attribute(rule).as_bytes(), &found.attributes));
    match same {
        true => Ok(()),
        false => Err(Error::internal(format!(
            "chain {chain} of {table} does not hold the rules it should"
        ))),
    }
}

/// A base chain for address translation. At equal priority, chains come in the order of their registration; behind the
/// well-known priority (`nf_ip_hook_priorities`), rules of administrators and of iptables always decide first.
pub(super) fn nat_hook(number: u32) -> Option<Hook> {
    const BEHIND: i32 = 5;
    let well_known = if number == Hook::POSTROUTING { 100 } else { -100 };
    Some(Hook {
        kind: "nat",
        number,
        priority: well_known + BEHIND,
    })
}

/// The data type of a family's addresses.
pub(super) fn address_type(family: crate::Family) -> DataType {
    match family {
        crate::Family::V4 => types::IPV4_ADDR,
        crate::Family::V6 => types::IPV6_ADDR,
    }
}
