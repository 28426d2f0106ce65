//! The firewall in nf_tables.
//!
//! ```text
//! table inet ferrule_firewall {
//!   chain admin       the administrator's; empty until they fill it, and never emptied
//!   chain isolation   within a bridge, as the map `within` says; from one of `bridges` to another: drop
//!   chain forward     isolation, admin, answers to accept4 and accept6: accept, from accept4 and accept6: accept
//! }
//! ```
//!
//! What another table drops stays dropped: a verdict `accept` ends only the walk through its own table. Interfaces in
//! `within` and `bridges` belong to no attachment and go with the last port of their bridge.

use std::collections::BTreeSet;

use cni_types::{Attachment, ContainerId, Error, IfName, NetworkName, Result};
use nft::{
    Chain, Connection, Element, Expression, Hook, Meta, Register, Set, Table, Value, Verdict, concatenate, types,
};

use super::layout::{BaseChain, Layout, Map, address_type};
use super::ledger::{Claim, Entry, Ledger};
use super::record::Holding;
use super::transaction::transact;
use super::{kernel_error, rules};
use crate::Family;
use crate::firewall::{Ingress, Policy};
use crate::portmap::OnConflict;
use crate::sweep::together;

/// The table's name.
const TABLE: &str = "ferrule_firewall";
const ADMIN: &str = "admin";
const ISOLATION: &str = "isolation";
/// Which interfaces are isolated.
const BRIDGES: &str = "bridges";
/// What becomes of packets that leave by the interface they came from.
const WITHIN: &str = "within";

const FIRST: Register = Register::FIRST;

fn set_name(family: Family) -> &'static str {
    match family {
        Family::V4 => "accept4",
        Family::V6 => "accept6",
    }
}

pub(super) fn layout() -> Layout {
    let map = |set| Map {
        set,
        exclusive: false,
        overlaps: None,
    };
    let accept = |family| map(Set::keys(set_name(family), &[address_type(family)]));
    let [accept4, accept6] = Family::BOTH.map(accept);
    let chain = |name: &str, hook, rules| BaseChain {
        chain: Chain {
            name: name.to_owned(),
            hook,
        },
        rules,
    };
    let hook = Hook {
        kind: "filter",
        number: Hook::FORWARD,
        priority: 0,
    };
    Layout {
        table: Table::new(nft::Family::Inet, TABLE),
        maps: vec![
            accept4,
            accept6,
            map(Set::keys(BRIDGES, &[types::IFNAME])),
            map(Set::verdict_map(WITHIN, &[types::IFNAME, types::IFNAME])),
        ],
        chains: vec![
            chain(ADMIN, None, None),
            chain(ISOLATION, None, Some(isolation())),
            chain("forward", Some(hook), Some(forward())),
        ],
    }
}

fn isolation() -> Vec<Vec<Expression>> {
    let second = FIRST.after(16);
    let within = vec![
        Expression::Meta(Meta::InputInterface, FIRST),
        Expression::Meta(Meta::OutputInterface, second),
        Expression::VerdictMap(WITHIN.to_owned(), FIRST),
    ];
    let is_bridge = |meta| {
        [
            Expression::Meta(meta, FIRST),
            Expression::InSet(BRIDGES.to_owned(), FIRST),
        ]
    };
    let drop = [Expression::Verdict(Verdict::Drop)];
    let between = rules::rule(&[
        &is_bridge(Meta::InputInterface),
        &is_bridge(Meta::OutputInterface),
        &drop,
    ]);
    vec![within, between]
}

fn forward() -> Vec<Vec<Expression>> {
    let jump = |chain: &str| vec![Expression::Verdict(Verdict::Jump(chain.to_owned()))];
    let accept = [Expression::Verdict(Verdict::Accept)];
    let listed = |family: Family, load: fn(Family, Register) -> Expression| {
        [
            load(family, FIRST),
            Expression::InSet(set_name(family).to_owned(), FIRST),
        ]
    };
    let mut all = vec![jump(ISOLATION), jump(ADMIN)];
    for family in Family::BOTH {
        let of_family = rules::of_family(family);
        let answers = [
            &of_family[..],
            &rules::answers(),
            &listed(family, rules::load_destination),
            &accept,
        ];
        all.push(rules::rule(&answers));
        all.push(rules::rule(&[&of_family, &listed(family, rules::load_source), &accept]));
    }
    all
}

fn entry<'a>(attachment: &'a Attachment, policy: &Policy) -> Entry<'a> {
    let addresses: BTreeSet<_> = policy.addresses.iter().filter(|_| policy.accepts).collect();
    let claim = |ip: &std::net::IpAddr| Claim {
        holding: Holding {
            map: match Family::of(*ip) {
                Family::V4 => 0,
                Family::V6 => 1,
            },
            key: rules::address_bytes(*ip),
            key_end: None,
            data: None,
        },
        chain: None,
        what: format!("acceptance of {ip}"),
    };
    Entry {
        attachment,
        claims: addresses.into_iter().map(claim).collect(),
        conditional: Vec::new(),
        netns: None,
        netns_exists: |_| true,
        on_conflict: OnConflict::Refuse,
    }
}

/// Whether the attachment holds anything.
pub(crate) fn holds(attachment: &Attachment) -> Result<bool> {
    Ledger::open(&layout())?.holds(attachment)
}

/// See [`crate::firewall::add`].
pub(crate) fn add(attachment: &Attachment, policy: &Policy) -> Result<()> {
    let layout = layout();
    isolate(&layout, &policy.ingress)?;
    Ledger::open(&layout)?.put(&entry(attachment, policy)).map(drop)
}

/// The elements of a bridge in `bridges` and `within`.
fn bridge_elements(ingress: &Ingress) -> Option<(Element, Element)> {
    let within = match ingress {
        Ingress::Open => return None,
        Ingress::SameBridge(_) => Verdict::Return,
        Ingress::Isolated(_) => Verdict::Drop,
    };
    let name = rules::interface_bytes(ingress.bridge()?.as_str());
    let pair = Element {
        value: Some(Value::Verdict(within)),
        ..Element::key(concatenate(&[&name, &name]))
    };
    Some((Element::key(name), pair))
}

/// What the kernel has of a bridge in `bridges` and `within`.
fn read_bridge(
    connection: &mut Connection,
    table: &Table,
    bridge: &Element,
    pair: &Element,
) -> Result<(Option<Element>, Option<Element>)> {
    let wanted = [(BRIDGES, bridge.key.as_slice()), (WITHIN, pair.key.as_slice())];
    let mut found = connection.elements(table, &wanted).map_err(kernel_error)?.into_iter();
    Ok((found.next().flatten(), found.next().flatten()))
}

fn isolate(layout: &Layout, ingress: &Ingress) -> Result<()> {
    let Some((bridge, pair)) = bridge_elements(ingress) else {
        return Ok(());
    };
    let mut connection = Connection::open().map_err(kernel_error)?;
    let table = &layout.table;
    transact(&mut connection, table, |connection, batch| {
        layout.ensure(connection, batch)?;
        let (has_bridge, has_pair) = read_bridge(connection, table, &bridge, &pair)?;
        if has_bridge.is_none() {
            batch.add_element(table, BRIDGES, &bridge);
        }
        match has_pair {
            Some(held) if suffices(&held, &pair) => {}
            held => {
                if let Some(held) = held {
                    batch.delete_element(table, WITHIN, &held);
                }
                batch.add_element(table, WITHIN, &pair);
            }
        }
        Ok(())
    })
}

/// Whether what is there is as strict as what is wanted: another network on the bridge may want more.
fn suffices(held: &Element, wanted: &Element) -> bool {
    held.value == wanted.value || held.value == Some(Value::Verdict(Verdict::Drop))
}

/// See [`crate::firewall::check`].
pub(crate) fn check(attachment: &Attachment, policy: &Policy) -> Result<()> {
    let layout = layout();
    Ledger::open(&layout)?.verify(&entry(attachment, policy))?;
    let Some((bridge, pair)) = bridge_elements(&policy.ingress) else {
        return Ok(());
    };
    let mut connection = Connection::open().map_err(kernel_error)?;
    match read_bridge(&mut connection, &layout.table, &bridge, &pair)? {
        (Some(_), Some(held)) if suffices(&held, &pair) => Ok(()),
        _ => {
            let name = policy.ingress.bridge().map(IfName::as_str).unwrap_or_default();
            let table = &layout.table;
            Err(Error::internal(format!(
                "{name} is not isolated as it should be in {table}"
            )))
        }
    }
}

/// See [`crate::firewall::del`].
pub(crate) fn del(attachment: &Attachment) -> Result<()> {
    let layout = layout();
    Ledger::open(&layout)?.release(attachment).map(drop)
}

/// See [`crate::firewall::gc`].
pub(crate) fn gc(
    network: &NetworkName,
    valid: &BTreeSet<(ContainerId, IfName)>,
    in_use: &dyn Fn(&str) -> bool,
) -> Result<()> {
    let layout = layout();
    let addresses = Ledger::open(&layout).and_then(|mut ledger| ledger.collect(network, valid));
    together([addresses.map(drop), release_bridges(&layout, in_use)])
}

fn release_bridges(layout: &Layout, in_use: &dyn Fn(&str) -> bool) -> Result<()> {
    let mut connection = Connection::open().map_err(kernel_error)?;
    let table = &layout.table;
    if connection
        .all_elements(table, BRIDGES)
        .map_err(kernel_error)?
        .is_empty()
    {
        return Ok(());
    }
    transact(&mut connection, table, |connection, batch| {
        for bridge in connection.all_elements(table, BRIDGES).map_err(kernel_error)? {
            if in_use(rules::interface_name(&bridge.key).as_ref()) {
                continue;
            }
            let pair = Element::key(concatenate(&[&bridge.key, &bridge.key]));
            let (_, has_pair) = read_bridge(connection, table, &bridge, &pair)?;
            batch.delete_element(table, BRIDGES, &bridge);
            if let Some(pair) = has_pair {
                batch.delete_element(table, WITHIN, &pair);
            }
        }
        Ok(())
    })
}

/// What is accepted for each attachment, read back.
pub(crate) fn accepted() -> Result<Vec<(Attachment, Policy)>> {
    let layout = layout();
    let records = Ledger::open(&layout)?.all()?.into_iter();
    let policy = |holdings: &[Holding]| Policy {
        addresses: holdings
            .iter()
            .filter_map(|holding| rules::address_of(&holding.key))
            .collect(),
        accepts: true,
        ingress: Ingress::Open,
        admin_chain: Policy::DEFAULT_ADMIN_CHAIN.to_owned(),
    };
    Ok(records
        .map(|record| (record.attachment, policy(&record.holdings)))
        .collect())
}

/// The bridges that are isolated, read back.
pub(crate) fn isolated() -> Result<Vec<Ingress>> {
    let mut connection = Connection::open().map_err(kernel_error)?;
    let table = layout().table;
    let mut found = Vec::new();
    for bridge in connection.all_elements(&table, BRIDGES).map_err(kernel_error)? {
        let pair = Element::key(concatenate(&[&bridge.key, &bridge.key]));
        let (_, within) = read_bridge(&mut connection, &table, &bridge, &pair)?;
        let name: IfName = rules::interface_name(&bridge.key)
            .parse()
            .map_err(|e| Error::internal(format!("{BRIDGES} of {table}: {e}")))?;
        found.push(match within.and_then(|pair| pair.value) {
            Some(Value::Verdict(Verdict::Drop)) => Ingress::Isolated(name),
            _ => Ingress::SameBridge(name),
        });
    }
    Ok(found)
}

/// Whether the administrator has put rules into our table.
pub(crate) fn has_admin_rules() -> Result<bool> {
    let mut connection = Connection::open().map_err(kernel_error)?;
    let table = layout().table;
    if !connection.has_table(&table).map_err(kernel_error)? {
        return Ok(false);
    }
    Ok(!connection.rules(&table, ADMIN).map_err(kernel_error)?.is_empty())
}

/// Takes from an attachment what it holds; tells whether it held anything.
pub(crate) fn release(attachment: &Attachment) -> Result<bool> {
    let layout = layout();
    Ledger::open(&layout)?
        .release(attachment)
        .map(|record| record.is_some())
}

/// See [`crate::firewall::probe`].
pub(crate) fn probe() -> Result<()> {
    super::try_out([layout()])
}

/// See [`crate::firewall::foreign_drops`].
pub(crate) fn foreign_drops(families: &[Family]) -> Result<Vec<String>> {
    let mut connection = Connection::open().map_err(kernel_error)?;
    let wire = families.iter().map(|family| rules::wire_family(*family));
    let mut found = Vec::new();
    for family in wire.chain([nft::Family::Inet]) {
        let chains = connection.base_chains(family).map_err(kernel_error)?;
        let dropping = chains
            .into_iter()
            .filter(|chain| chain.drops && chain.hook == Hook::FORWARD);
        found.extend(dropping.map(|chain| format!("chain {} of {}", chain.name, chain.table)));
    }
    Ok(found)
}
