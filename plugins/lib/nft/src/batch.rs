//! Changes of the ruleset that happen together or not at all.

use std::fmt;

use crate::attributes::Attributes;
use crate::connection::Request;
use crate::expression::{Expression, expressions_attribute};
use crate::message::NFTABLES;
use crate::ruleset::{Chain, DataType, Element, Set, SetValue, Table, types};
use crate::user_data::UserData;

/// `enum nf_tables_msg_types`.
#[derive(Clone, Copy)]
#[repr(u8)]
enum Operation {
    NewTable = 0,
    DeleteTable = 2,
    NewChain = 3,
    DeleteChain = 5,
    NewRule = 6,
    DeleteRule = 8,
    NewSet = 9,
    NewElement = 12,
    DeleteElement = 14,
}

const CREATE: u16 = libc::NLM_F_CREATE as u16;
const EXCLUSIVE: u16 = libc::NLM_F_EXCL as u16;
const APPEND: u16 = libc::NLM_F_APPEND as u16;

const NFTA_TABLE_NAME: u16 = 1;
const NFTA_CHAIN_TABLE: u16 = 1;
const NFTA_CHAIN_NAME: u16 = 3;
const NFTA_RULE_TABLE: u16 = 1;
const NFTA_RULE_CHAIN: u16 = 2;
const NFTA_RULE_HANDLE: u16 = 3;
const NFTA_RULE_USERDATA: u16 = 7;
const NFTA_SET_TABLE: u16 = 1;
const NFTA_SET_NAME: u16 = 2;

/// A list of changes, carried out by [`crate::Connection::commit`] in the order in which they were added.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    operations: Vec<Request>,
}

impl Batch {
    /// No change yet.
    pub fn new() -> Batch {
        Batch::default()
    }

    /// Whether there is no change in it.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    pub(crate) fn operations(&self) -> &[Request] {
        &self.operations
    }

    /// Makes a table, if there is none of its name.
    pub fn add_table(&mut self, table: &Table) {
        self.push(table, Operation::NewTable, CREATE, format!("add {table}"), |a| {
            a.text(NFTA_TABLE_NAME, &table.name);
        });
    }

    /// Deletes a table with everything in it.
    pub fn delete_table(&mut self, table: &Table) {
        self.push(table, Operation::DeleteTable, 0, format!("delete {table}"), |a| {
            a.text(NFTA_TABLE_NAME, &table.name);
        });
    }

    /// Makes a chain, if there is none of its name.
    pub fn add_chain(&mut self, table: &Table, chain: &Chain) {
        let what = format!("add chain {} to {table}", chain.name);
        self.push(table, Operation::NewChain, CREATE, what, |a| {
            a.text(NFTA_CHAIN_TABLE, &table.name).text(NFTA_CHAIN_NAME, &chain.name);
            if let Some(hook) = chain.hook {
                // NFTA_CHAIN_HOOK (NFTA_HOOK_HOOKNUM, NFTA_HOOK_PRIORITY), _POLICY: NF_ACCEPT, _TYPE
                a.nest(4, |inner| {
                    inner.u32(1, hook.number).u32(2, hook.priority.cast_unsigned());
                })
                .u32(5, 1)
                .text(7, hook.kind);
            }
        });
    }

    /// Deletes a chain and its rules. The kernel refuses while anything leads to it.
    pub fn delete_chain(&mut self, table: &Table, chain: &str) {
        let what = format!("delete chain {chain} of {table}");
        self.push(table, Operation::DeleteChain, 0, what, |a| {
            a.text(NFTA_CHAIN_TABLE, &table.name).text(NFTA_CHAIN_NAME, chain);
        });
    }

    /// Adds a rule at the end of a chain.
    pub fn append_rule(&mut self, table: &Table, chain: &str, rule: &[Expression], user_data: &UserData) {
        self.add_rule(table, chain, rule, user_data, APPEND);
    }

    /// Adds a rule at the beginning of a chain.
    pub fn prepend_rule(&mut self, table: &Table, chain: &str, rule: &[Expression], user_data: &UserData) {
        self.add_rule(table, chain, rule, user_data, 0);
    }

    fn add_rule(&mut self, table: &Table, chain: &str, rule: &[Expression], user_data: &UserData, position: u16) {
        let what = format!("add a rule to chain {chain} of {table}");
        self.push(table, Operation::NewRule, CREATE | position, what, |a| {
            a.text(NFTA_RULE_TABLE, &table.name)
                .text(NFTA_RULE_CHAIN, chain)
                .append(&expressions_attribute(rule));
            if !user_data.is_empty() {
                a.bytes(NFTA_RULE_USERDATA, &user_data.to_bytes());
            }
        });
    }

    /// Deletes a rule by the handle that the kernel gave it.
    pub fn delete_rule(&mut self, table: &Table, chain: &str, handle: u64) {
        let what = format!("delete rule {handle} of chain {chain} of {table}");
        self.push(table, Operation::DeleteRule, 0, what, |a| {
            a.text(NFTA_RULE_TABLE, &table.name)
                .text(NFTA_RULE_CHAIN, chain)
                .u64(NFTA_RULE_HANDLE, handle);
        });
    }

    /// Deletes every rule of a chain.
    pub fn flush_chain(&mut self, table: &Table, chain: &str) {
        let what = format!("flush chain {chain} of {table}");
        self.push(table, Operation::DeleteRule, 0, what, |a| {
            a.text(NFTA_RULE_TABLE, &table.name).text(NFTA_RULE_CHAIN, chain);
        });
    }

    /// Makes a set or map, if there is none of its name.
    pub fn add_set(&mut self, table: &Table, set: &Set) {
        // The identifier within the batch, which the kernel demands: elements name the set itself.
        let id = self.operations.len() as u32;
        let what = format!("add set {} to {table}", set.name);
        self.push(table, Operation::NewSet, CREATE, what, |a| {
            a.text(NFTA_SET_TABLE, &table.name).text(NFTA_SET_NAME, &set.name);
            write_set(a, set, id);
        });
    }

    /// Adds an element. The kernel refuses if its key is in the set, or a range overlaps another.
    pub fn add_element(&mut self, table: &Table, set: &str, element: &Element) {
        let what = format!("add an element to {set} of {table}");
        self.push_element(table, set, element, Operation::NewElement, CREATE | EXCLUSIVE, what);
    }

    /// Deletes the element with the key, or range, of `element`.
    pub fn delete_element(&mut self, table: &Table, set: &str, element: &Element) {
        let what = format!("delete an element of {set} of {table}");
        let named = Element {
            key_end: element.key_end.clone(),
            ..Element::key(element.key.clone())
        };
        self.push_element(table, set, &named, Operation::DeleteElement, 0, what);
    }

    fn push_element(
        &mut self,
        table: &Table,
        set: &str,
        element: &Element,
        operation: Operation,
        flags: u16,
        what: String,
    ) {
        self.push(table, operation, flags, what, |a| {
            write_elements(a, table, set, element)
        });
    }

    fn push(
        &mut self,
        table: &Table,
        operation: Operation,
        flags: u16,
        what: String,
        fill: impl FnOnce(&mut Attributes),
    ) {
        let mut attributes = Attributes::new();
        fill(&mut attributes);
        self.operations.push(Request {
            subsystem: NFTABLES,
            operation: operation as u8,
            flags,
            family: table.family as u8,
            attributes,
            what,
        });
    }
}

impl fmt::Display for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = self
            .operations
            .first()
            .map_or("nothing", |operation| operation.what.as_str());
        write!(f, "the ruleset by {} operations ({first} ...)", self.operations.len())
    }
}

/// `NFTA_SET_ELEM_LIST_TABLE`, `_SET` and a list of one under `_ELEMENTS`.
pub(crate) fn write_elements(attributes: &mut Attributes, table: &Table, set: &str, element: &Element) {
    attributes.text(1, &table.name).text(2, set).nest(3, |list| {
        list.nest(1, |inner| element.write(inner));
    });
}

fn write_set(attributes: &mut Attributes, set: &Set, id: u32) {
    const MAP: u32 = 0x8;
    const INTERVAL: u32 = 0x4;
    const CONCATENATION: u32 = 0x80;
    /// `NFT_DATA_VERDICT`.
    const VERDICT_TYPE: u32 = 0xffff_ff00;

    let map = if set.value == SetValue::None { 0 } else { MAP };
    let interval = if set.interval { INTERVAL | CONCATENATION } else { 0 };
    // NFTA_SET_FLAGS, _KEY_TYPE, _KEY_LEN, _DATA_TYPE, _DATA_LEN, _DESC, _ID
    attributes
        .u32(3, map | interval)
        .u32(4, concatenated_number(&set.key))
        .u32(5, concatenated_size(&set.key));
    match &set.value {
        SetValue::None => {}
        SetValue::Data(fields) => {
            attributes
                .u32(6, concatenated_number(fields))
                .u32(7, concatenated_size(fields));
        }
        SetValue::Verdict => _ = attributes.u32(6, VERDICT_TYPE).u32(7, 0),
    }
    if set.interval {
        attributes.nest(9, |description| {
            // NFTA_SET_DESC_CONCAT, a list of NFTA_SET_FIELD_LEN
            description.nest(2, |list| {
                for field in &set.key {
                    list.nest(1, |inner| _ = inner.u32(1, field.size));
                }
            });
        });
    }
    attributes.u32(10, id);
    if set.key == [types::IFNAME] {
        // NFTA_SET_USERDATA: NFTNL_UDATA_SET_KEYBYTEORDER, four bytes, BYTEORDER_HOST_ENDIAN of nft's datatype.h. nft shows
        // a name backwards, which is nothing, where it is not told in which order it was written.
        let byte_order = [&[0, 4][..], &1u32.to_ne_bytes()].concat();
        attributes.bytes(13, &byte_order);
    }
}

/// nft's number of a concatenation: six bits a field.
fn concatenated_number(fields: &[DataType]) -> u32 {
    fields.iter().fold(0, |number, field| number << 6 | field.number)
}

fn concatenated_size(fields: &[DataType]) -> u32 {
    match fields {
        [single] => single.size,
        _ => fields.iter().map(|field| field.size.next_multiple_of(4)).sum(),
    }
}
