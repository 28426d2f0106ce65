//! Masquerading in nf_tables.
//!
//! ```text
//! table inet ferrule_masquerade {
//!   chain postrouting       the source is looked up in masq4 or masq6
//!   chain masq4-<hash> ...  to the container's own subnet, multicast and excluded networks: return; else masquerade
//! }
//! ```

use std::collections::BTreeSet;
use std::net::IpAddr;

use cni_types::{Attachment, Cidr, ContainerId, Error, IfName, NetworkName, Result};
use nft::{
    Chain, Connection, Expression, Hook, Register, RuleState, Set, Table, Verdict, covers, expressions_attribute,
};

use super::draft::SharedChain;
use super::layout::{BaseChain, Layout, Map, address_type, nat_hook};
use super::ledger::{Claim, Entry, Ledger};
use super::record::Holding;
use super::{kernel_error, reference, rules};
use crate::Family;
use crate::masquerade::Masquerade;
use crate::portmap::OnConflict;
use crate::sweep::together;

/// The table's name.
const TABLE: &str = "ferrule_masquerade";

fn map_name(family: Family) -> &'static str {
    match family {
        Family::V4 => "masq4",
        Family::V6 => "masq6",
    }
}

pub(super) fn layout() -> Layout {
    let map = |family| Map {
        set: Set::verdict_map(map_name(family), &[address_type(family)]),
        exclusive: false,
        overlaps: None,
    };
    let chain = Chain {
        name: "postrouting".to_owned(),
        hook: nat_hook(Hook::POSTROUTING),
    };
    Layout {
        table: Table::new(nft::Family::Inet, TABLE),
        maps: Family::BOTH.map(map).to_vec(),
        chains: vec![BaseChain {
            chain,
            rules: Some(Family::BOTH.map(sources).to_vec()),
        }],
    }
}

fn sources(family: Family) -> Vec<Expression> {
    let look_up = [
        rules::load_source(family, Register::FIRST),
        Expression::VerdictMap(map_name(family).to_owned(), Register::FIRST),
    ];
    rules::rule(&[&rules::of_family(family), &look_up])
}

fn claim(container: Cidr, exclude: &[Cidr]) -> Claim {
    let family = Family::of(container.address());
    let returns = [Expression::Verdict(Verdict::Return)];
    let kept = [Some(container.network()), multicast(family)].into_iter().flatten();
    let kept = kept.chain(
        exclude
            .iter()
            .copied()
            .filter(|network| network.is_ipv4() == container.is_ipv4()),
    );
    let mut rules: Vec<_> = kept
        .map(|network| rules::rule(&[&rules::destination_in(network), &returns]))
        .collect();
    rules.push(vec![Expression::Masquerade]);
    Claim {
        holding: Holding {
            map: match family {
                Family::V4 => 0,
                Family::V6 => 1,
            },
            key: rules::address_bytes(container.address()),
            key_end: None,
            data: None,
        },
        chain: Some(SharedChain::new(map_name(family), rules)),
        what: format!("masquerading of {}", container.address()),
    }
}

/// As in the reference: groups are not reached through an address that stands for many.
fn multicast(family: Family) -> Option<Cidr> {
    match family {
        Family::V4 => Cidr::new(IpAddr::from([224, 0, 0, 0]), 4),
        Family::V6 => Cidr::new(IpAddr::from([0xff00, 0, 0, 0, 0, 0, 0, 0]), 8),
    }
}

fn entry<'a>(attachment: &'a Attachment, masquerade: &Masquerade) -> Entry<'a> {
    let addresses = BTreeSet::from_iter(&masquerade.addresses);
    Entry {
        attachment,
        claims: addresses
            .into_iter()
            .map(|address| claim(*address, &masquerade.exclude))
            .collect(),
        conditional: Vec::new(),
        netns: None,
        netns_exists: |_| true,
        on_conflict: OnConflict::Refuse,
    }
}

/// See [`crate::masquerade::add`].
pub(crate) fn add(attachment: &Attachment, masquerade: &Masquerade) -> Result<()> {
    let layout = layout();
    Ledger::open(&layout)?.put(&entry(attachment, masquerade)).map(drop)
}

/// See [`crate::masquerade::check`].
pub(crate) fn check(attachment: &Attachment, masquerade: &Masquerade) -> Result<()> {
    let layout = layout();
    Ledger::open(&layout)?.verify(&entry(attachment, masquerade))
}

/// As [`check`], for what the reference's nftables backend wrote.
pub(crate) fn check_of_reference(attachment: &Attachment, masquerade: &Masquerade) -> Result<()> {
    reference::check_masquerade(attachment, masquerade)
}

/// See [`crate::masquerade::del`].
pub(crate) fn del(attachment: &Attachment) -> Result<()> {
    let layout = layout();
    let ours = Ledger::open(&layout).and_then(|mut ledger| ledger.release(attachment));
    together([ours.map(drop), reference::del_masquerade(attachment)])
}

/// See [`crate::masquerade::gc`].
pub(crate) fn gc(network: &NetworkName, valid: &BTreeSet<(ContainerId, IfName)>) -> Result<()> {
    let layout = layout();
    let ours = Ledger::open(&layout).and_then(|mut ledger| ledger.collect(network, valid));
    together([ours.map(drop), reference::gc_masquerade(network, valid)])
}

/// Takes from an attachment what it holds here, and nothing of the reference's; tells whether it held anything.
pub(crate) fn release(attachment: &Attachment) -> Result<bool> {
    let layout = layout();
    Ledger::open(&layout)?
        .release(attachment)
        .map(|record| record.is_some())
}

/// The masquerading of each attachment, read back.
///
/// # Errors
///
/// Rules that are not understood; what the kernel said.
pub(crate) fn masqueraded() -> Result<Vec<(Attachment, Masquerade)>> {
    let layout = layout();
    let mut ledger = Ledger::open(&layout)?;
    let mut connection = Connection::open().map_err(kernel_error)?;
    let mut all = Vec::new();
    for record in ledger.all()? {
        let mut masquerade = Masquerade {
            addresses: Vec::new(),
            exclude: Vec::new(),
        };
        for (holding, chain) in record.holdings.iter().zip(ledger.chains_of(&record)?) {
            let address = rules::address_of(&holding.key);
            let found = match address.zip(chain) {
                Some((address, chain)) => read_chain(&mut connection, &layout.table, address, &chain)?,
                None => None,
            };
            let Some((container, exclude)) = found else {
                let message = format!("masquerading of {}: its rules are not understood", record.attachment);
                return Err(Error::internal(message));
            };
            masquerade.addresses.push(container);
            masquerade.exclude.extend(exclude);
        }
        all.push((record.attachment, masquerade));
    }
    Ok(all)
}

/// The container's address with the length of its subnet, and the excluded networks, from the chain that it leads to.
fn read_chain(
    connection: &mut Connection,
    table: &Table,
    address: IpAddr,
    chain: &str,
) -> Result<Option<(Cidr, Vec<Cidr>)>> {
    let rules = connection.rules(table, chain).map_err(kernel_error)?;
    let mut kept = rules.iter().filter_map(|rule| network_of(rule, Family::of(address)));
    let container = kept.next().and_then(|subnet| Cidr::new(address, subnet.prefix()));
    let exclude: Vec<Cidr> = kept.skip(1).collect();
    // The name is a hash of the rules: with the same name, nothing was lost.
    let found = container.filter(|container| claim(*container, &exclude).chain.is_some_and(|own| own.name == chain));
    Ok(found.map(|container| (container, exclude)))
}

/// The network that a rule returns for.
fn network_of(rule: &RuleState, family: Family) -> Option<Cidr> {
    let returns = [Expression::Verdict(Verdict::Return)];
    let everything = match family {
        Family::V4 => IpAddr::from([0; 4]),
        Family::V6 => IpAddr::from([0u16; 8]),
    };
    let compared = rule.compared_constants();
    let addresses = compared
        .iter()
        .filter_map(|bytes| rules::address_of(bytes))
        .chain([everything]);
    let mut networks = addresses.flat_map(|address| (0..=128).filter_map(move |prefix| Cidr::new(address, prefix)));
    networks.find(|network| {
        let written = expressions_attribute(&rules::rule(&[&rules::destination_in(*network), &returns]));
        Family::of(network.address()) == family && covers(written.as_bytes(), &rule.attributes)
    })
}
