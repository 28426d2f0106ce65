//! Reading the ruleset back.

use crate::attributes::{Attributes, Reader};
use crate::batch::write_elements;
use crate::connection::{Connection, Request};
use crate::error::Error;
use crate::message::NFTABLES;
use crate::ruleset::{Element, Family, Table};
use crate::user_data::UserData;

/// `enum nf_tables_msg_types`.
const GET_TABLE: u8 = 1;
const GET_CHAIN: u8 = 4;
const GET_RULE: u8 = 7;
const GET_ELEMENT: u8 = 13;
const GET_GENERATION: u8 = 16;

/// A match or target of xtables, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extension<'a> {
    /// A match.
    Match(&'a str),
    /// A target.
    Target(&'a str),
}

/// A chain as the kernel has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainState {
    /// Its name.
    pub name: String,
    /// How many rules it has, and how many rules and elements lead to it, in one number.
    pub used: u32,
}

/// A base chain as the kernel has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaseChainState {
    /// The table that it is in.
    pub table: Table,
    /// Its name.
    pub name: String,
    /// Where packets enter it, as [`crate::Hook::number`].
    pub hook: u32,
    /// Whether it drops what none of its rules decides.
    pub drops: bool,
}

/// A rule as the kernel has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleState {
    /// The chain that it is in.
    pub chain: String,
    /// The number by which it is deleted.
    pub handle: u64,
    /// What is remembered with it.
    pub user_data: UserData,
    /// The rule's attributes, to compare by [`crate::covers`] with [`crate::expressions_attribute`].
    pub attributes: Vec<u8>,
}

/// One of a rule's expressions, as the kernel has it.
#[derive(Debug, Clone)]
pub struct ExpressionState<'a> {
    /// The name under which the kernel registers it, such as `cmp`.
    pub name: &'a str,
    /// Its attributes: what they mean is its own matter (nf_tables.h).
    pub data: Reader<'a>,
}

impl RuleState {
    /// The rule's expressions in order, whoever wrote them.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] where an attribute's length does not fit.
    pub fn expressions(&self) -> Result<Vec<ExpressionState<'_>>, Error> {
        const NFTA_RULE_EXPRESSIONS: u16 = 4;
        const NFTA_LIST_ELEM: u16 = 1;
        const NFTA_EXPR_NAME: u16 = 1;
        const NFTA_EXPR_DATA: u16 = 2;
        let list = Reader::new(&self.attributes)?.nested(NFTA_RULE_EXPRESSIONS)?;
        let read = |element| {
            let element = Reader::new(element)?;
            Ok(ExpressionState {
                name: element.text(NFTA_EXPR_NAME).ok_or(Error::Malformed("an expression"))?,
                data: element.nested(NFTA_EXPR_DATA)?,
            })
        };
        list.all(NFTA_LIST_ELEM).map(read).collect()
    }

    /// The values that the rule compares the packet with, both ends of ranges among them: whether a range is one
    /// expression or two depends on the version of nft.
    pub fn compared_constants(&self) -> Vec<Vec<u8>> {
        const NFTA_CMP_DATA: u16 = 3;
        const NFTA_RANGE_FROM_DATA: u16 = 3;
        const NFTA_RANGE_TO_DATA: u16 = 4;
        let places = [
            ("cmp", NFTA_CMP_DATA),
            ("range", NFTA_RANGE_FROM_DATA),
            ("range", NFTA_RANGE_TO_DATA),
        ];
        let constants = places.map(|(expression, data)| self.constants(expression, data).unwrap_or_default());
        constants.concat()
    }

    /// The values that the rule loads into registers, such as the address that it translates to.
    pub fn loaded_constants(&self) -> Vec<Vec<u8>> {
        const NFTA_IMMEDIATE_DATA: u16 = 2;
        self.constants("immediate", NFTA_IMMEDIATE_DATA).unwrap_or_default()
    }

    fn constants(&self, expression: &str, data: u16) -> Result<Vec<Vec<u8>>, Error> {
        const NFTA_DATA_VALUE: u16 = 1;
        let mut constants = Vec::new();
        for found in self.expressions()?.iter().filter(|found| found.name == expression) {
            let value = found.data.nested(data)?;
            constants.extend(value.get(NFTA_DATA_VALUE).map(<[u8]>::to_vec));
        }
        Ok(constants)
    }
}

impl Connection {
    /// The ruleset's generation: a number that changes with every commit by anybody in the network namespace.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub fn generation(&mut self) -> Result<u32, Error> {
        const NFTA_GEN_ID: u16 = 1;
        let answer = self.one(nftables(
            0,
            GET_GENERATION,
            "read the ruleset's generation".to_owned(),
            |_| (),
        ))?;
        Reader::new(&answer)?
            .u32(NFTA_GEN_ID)
            .ok_or(Error::Malformed("a generation"))
    }

    /// Whether a table exists.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub fn has_table(&mut self, table: &Table) -> Result<bool, Error> {
        let request = about(table, GET_TABLE, format!("read {table}"), |a| {
            _ = a.text(1, &table.name)
        });
        Ok(absent_as_none(self.one(request))?.is_some())
    }

    /// The chains of these names, in their order; `None` for one that does not exist.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub fn chains(&mut self, table: &Table, names: &[&str]) -> Result<Vec<Option<ChainState>>, Error> {
        let requests: Vec<_> = names
            .iter()
            .map(|name| {
                about(table, GET_CHAIN, format!("read chain {name} of {table}"), |a| {
                    a.text(1, &table.name).text(3, name);
                })
            })
            .collect();
        let answers = self.request(&requests)?;
        answers
            .into_iter()
            .map(|answer| absent_as_none(answer)?.as_deref().map(read_chain).transpose())
            .collect()
    }

    /// The base chains of all tables of a family, whoever made them.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub fn base_chains(&mut self, family: Family) -> Result<Vec<BaseChainState>, Error> {
        let request = nftables(family as u8, GET_CHAIN, format!("list the chains of {family}"), |_| ());
        let chains = absent_as_none(self.dump(&request))?.unwrap_or_default();
        let read = chains.iter().map(|chain| read_base_chain(family, chain));
        read.filter_map(Result::transpose).collect()
    }

    /// The rules of a chain, in order; none if the chain or the table does not exist.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub fn rules(&mut self, table: &Table, chain: &str) -> Result<Vec<RuleState>, Error> {
        let what = format!("list chain {chain} of {table}");
        self.list_rules(about(table, GET_RULE, what, |a| {
            a.text(1, &table.name).text(2, chain);
        }))
    }

    /// The rules of all chains of a table; none if the table does not exist.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub fn all_rules(&mut self, table: &Table) -> Result<Vec<RuleState>, Error> {
        self.list_rules(about(table, GET_RULE, format!("list {table}"), |a| {
            _ = a.text(1, &table.name)
        }))
    }

    fn list_rules(&mut self, request: Request) -> Result<Vec<RuleState>, Error> {
        let entries = absent_as_none(self.dump(&request))?.unwrap_or_default();
        entries.into_iter().map(read_rule).collect()
    }

    /// The elements with the keys (or lower ends) of `wanted`, in their order; `None` for one that does not exist, also where
    /// the set or the table does not. In a set with ranges, the range that holds the key.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub fn elements(&mut self, table: &Table, wanted: &[(&str, &[u8])]) -> Result<Vec<Option<Element>>, Error> {
        let requests: Vec<_> = wanted
            .iter()
            .map(|(set, key)| {
                let named = Element::key(key.to_vec());
                about(
                    table,
                    GET_ELEMENT,
                    format!("read an element of {set} of {table}"),
                    |a| {
                        write_elements(a, table, set, &named);
                    },
                )
            })
            .collect();
        let answers = self.request(&requests)?;
        let first = |answer: Vec<u8>| Ok(read_elements(&answer)?.into_iter().next());
        answers
            .into_iter()
            .map(|answer| absent_as_none(answer)?.map_or(Ok(None), first))
            .collect()
    }

    /// All elements of a set; none if the set or the table does not exist.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub fn all_elements(&mut self, table: &Table, set: &str) -> Result<Vec<Element>, Error> {
        let what = format!("list {set} of {table}");
        let request = about(table, GET_ELEMENT, what, |a| _ = a.text(1, &table.name).text(2, set));
        let parts = absent_as_none(self.dump(&request))?.unwrap_or_default();
        let lists: Result<Vec<_>, Error> = parts.iter().map(|part| read_elements(part)).collect();
        Ok(lists?.into_iter().flatten().collect())
    }

    /// Whether the kernel has one of xtables' matches or targets in a revision, for the rules that iptables keeps in
    /// nf_tables (nft_compat.c). May load its module; changes nothing else.
    ///
    /// # Errors
    ///
    /// What the kernel said, if it is more than that there is none.
    pub fn has_extension(&mut self, family: Family, extension: Extension, revision: u32) -> Result<bool, Error> {
        /// `NFNL_SUBSYS_NFT_COMPAT` of nfnetlink.h, `NFNL_MSG_COMPAT_GET` of nf_tables_compat.h.
        const COMPAT: u8 = 11;
        const GET: u8 = 0;
        let (name, kind) = match extension {
            Extension::Match(name) => (name, 0),
            Extension::Target(name) => (name, 1),
        };
        let mut attributes = Attributes::new();
        // NFTA_COMPAT_NAME, _REV, _TYPE
        attributes.text(1, name).u32(2, revision).u32(3, kind);
        let answer = self.one(Request {
            subsystem: COMPAT,
            operation: GET,
            flags: 0,
            family: family as u8,
            attributes,
            what: format!("ask for xtables' {name}"),
        });
        match answer {
            Ok(_) => Ok(true),
            // No such extension; or no such subsystem, which nfnetlink_rcv_msg calls an invalid argument.
            Err(e) if matches!(e.errno(), Some(libc::ENOENT | libc::EINVAL | libc::EOPNOTSUPP)) => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn one(&mut self, request: Request) -> Result<Vec<u8>, Error> {
        self.request(&[request])?
            .pop()
            .unwrap_or(Err(Error::Malformed("no answer")))
    }
}

fn absent_as_none<T>(answer: Result<T, Error>) -> Result<Option<T>, Error> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if error.is_absent() => Ok(None),
        Err(error) => Err(error),
    }
}

fn about(table: &Table, operation: u8, what: String, fill: impl FnOnce(&mut Attributes)) -> Request {
    nftables(table.family as u8, operation, what, fill)
}

fn nftables(family: u8, operation: u8, what: String, fill: impl FnOnce(&mut Attributes)) -> Request {
    let mut attributes = Attributes::new();
    fill(&mut attributes);
    Request {
        subsystem: NFTABLES,
        operation,
        flags: 0,
        family,
        attributes,
        what,
    }
}

pub(crate) fn read_chain(attributes: &[u8]) -> Result<ChainState, Error> {
    const NFTA_CHAIN_NAME: u16 = 3;
    const NFTA_CHAIN_USE: u16 = 6;
    let chain = Reader::new(attributes)?;
    Ok(ChainState {
        name: chain
            .text(NFTA_CHAIN_NAME)
            .ok_or(Error::Malformed("a chain"))?
            .to_owned(),
        used: chain.u32(NFTA_CHAIN_USE).ok_or(Error::Malformed("a chain"))?,
    })
}

/// `None` for a chain that only rules lead to.
pub(crate) fn read_base_chain(family: Family, attributes: &[u8]) -> Result<Option<BaseChainState>, Error> {
    const NFTA_CHAIN_TABLE: u16 = 1;
    const NFTA_CHAIN_NAME: u16 = 3;
    const NFTA_CHAIN_HOOK: u16 = 4;
    const NFTA_HOOK_HOOKNUM: u16 = 1;
    const NFTA_CHAIN_POLICY: u16 = 5;
    const NF_DROP: u32 = 0;
    let chain = Reader::new(attributes)?;
    let text = |kind: u16| chain.text(kind).ok_or(Error::Malformed("a chain"));
    let Some(hook) = chain.nested(NFTA_CHAIN_HOOK)?.u32(NFTA_HOOK_HOOKNUM) else {
        return Ok(None);
    };
    Ok(Some(BaseChainState {
        table: Table::new(family, text(NFTA_CHAIN_TABLE)?),
        name: text(NFTA_CHAIN_NAME)?.to_owned(),
        hook,
        drops: chain.u32(NFTA_CHAIN_POLICY) == Some(NF_DROP),
    }))
}

pub(crate) fn read_rule(attributes: Vec<u8>) -> Result<RuleState, Error> {
    const NFTA_RULE_CHAIN: u16 = 2;
    const NFTA_RULE_HANDLE: u16 = 3;
    const NFTA_RULE_USERDATA: u16 = 7;
    let rule = Reader::new(&attributes)?;
    Ok(RuleState {
        chain: rule.text(NFTA_RULE_CHAIN).ok_or(Error::Malformed("a rule"))?.to_owned(),
        handle: rule.u64(NFTA_RULE_HANDLE).ok_or(Error::Malformed("a rule"))?,
        user_data: UserData::from_bytes(rule.get(NFTA_RULE_USERDATA).unwrap_or_default()),
        attributes,
    })
}

pub(crate) fn read_elements(attributes: &[u8]) -> Result<Vec<Element>, Error> {
    const NFTA_SET_ELEM_LIST_ELEMENTS: u16 = 3;
    const NFTA_LIST_ELEM: u16 = 1;
    let list = Reader::new(attributes)?.nested(NFTA_SET_ELEM_LIST_ELEMENTS)?;
    list.all(NFTA_LIST_ELEM)
        .map(|element| Element::read(&Reader::new(element)?))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn reading_never_panics(bytes: Vec<u8>) {
            let _ = read_base_chain(Family::Inet, &bytes).is_ok();
            let _ = (read_chain(&bytes).is_ok(), read_elements(&bytes).is_ok(), read_rule(bytes.clone()).is_ok());
            let rule = RuleState {
                chain: String::new(),
                handle: 0,
                user_data: UserData::default(),
                attributes: bytes,
            };
            let _ = (rule.compared_constants(), rule.loaded_constants());
        }
    }
}
