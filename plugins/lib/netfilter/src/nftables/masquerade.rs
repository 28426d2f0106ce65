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

use cni_types::{Attachment, Cidr, ContainerId, IfName, NetworkName, Result};
use nft::{Chain, Expression, Hook, Register, Set, Table, Verdict};

use super::draft::SharedChain;
use super::layout::{BaseChain, Layout, Map, address_type, nat_hook};
use super::ledger::{Claim, Entry, Ledger};
use super::record::Holding;
use super::{reference, rules};
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
