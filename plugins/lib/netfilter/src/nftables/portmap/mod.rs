//! Published ports in nf_tables.
//!
//! ```text
//! table inet ferrule_portmap {
//!   chain prerouting, output    fib daddr type local goto ports; from the node itself not for ::1
//!   chain ports                 conditions, then one look-up per map: a given hostIP before any, a single port before a range
//!   chain snat                  ct status dnat: what was redirected to a container in snat4 or snat6 goes to its chain
//!   chain snat4-<hash> ...      from 127.0.0.0/8 or the container's own subnet: masquerade
//!   chain martians              nothing from outside claims to come from, or wants to go to, 127.0.0.0/8
//! }
//! ```
//!
//! Only connections to the node's own addresses are ever looked up, so that a port of the same number on another
//! container, or on a machine behind the node, is out of reach of a mapping.

mod claims;
mod readback;
mod table;

use std::collections::BTreeSet;

use cni_types::{Attachment, ContainerId, IfName, NetworkName, Result};

pub(crate) use self::readback::{ports, published};
pub(super) use self::table::layout;
use super::ledger::{Entry, Ledger};
use super::{conditions, reference};
use crate::portmap::{Hints, Published};
use crate::sweep::together;
use crate::{Family, conntrack, iptables};

fn entry<'a>(attachment: &'a Attachment, published: &Published) -> Result<Entry<'a>> {
    conditions::validate(published)?;
    Ok(Entry {
        attachment,
        claims: claims::claims(published)?,
        conditional: claims::conditional(published),
        netns: published.netns.clone(),
        netns_exists: published.netns_exists,
        on_conflict: published.on_conflict,
    })
}

/// Whether the attachment holds anything.
pub(crate) fn holds(attachment: &Attachment) -> Result<bool> {
    Ledger::open(&layout())?.holds(attachment)
}

/// See [`crate::portmap::add`].
pub(crate) fn add(attachment: &Attachment, published: &Published) -> Result<()> {
    let (layout, entry) = (layout(), entry(attachment, published)?);
    if !entry.conditional.is_empty() {
        conditions::try_out(published)?;
    }
    iptables::portmap::remove_dead_holders(attachment, published)?;
    let mut ledger = Ledger::open(&layout)?;
    let earlier = ledger.put_if(&entry, || {
        iptables::portmap::refuse_living_holders(attachment, published)
    })?;
    if entry.conditional.is_empty() {
        return Ok(());
    }
    conditions::write(&layout.table, attachment, published).inspect_err(|_| {
        if earlier.is_some() {
            return;
        }
        if let Err(error) = ledger.release(attachment) {
            log::warn!("{attachment}: {error}");
        }
    })
}

/// Refuses host ports of a family that a living container holds by this backend, for a mapping of the other one. What is
/// left here of a container that is gone is not in its way: iptables decides first ([`super::layout::nat_hook`]).
///
/// The caller holds the lock.
pub(crate) fn refuse_living_holders(attachment: &Attachment, published: &Published, family: Family) -> Result<()> {
    let entry = Entry {
        attachment,
        claims: claims::family_claims(published, family),
        conditional: Vec::new(),
        netns: None,
        netns_exists: published.netns_exists,
        on_conflict: published.on_conflict,
    };
    Ledger::open(&layout())?.contest(&entry)
}

/// See [`crate::portmap::check`].
pub(crate) fn check(attachment: &Attachment, published: &Published) -> Result<()> {
    let (layout, entry) = (layout(), entry(attachment, published)?);
    Ledger::open(&layout)?.verify(&entry)?;
    match entry.conditional.is_empty() {
        true => Ok(()),
        false => conditions::verify(&layout.table, attachment, published),
    }
}

/// As [`check`], for what the reference's nftables backend wrote.
pub(crate) fn check_of_reference(attachment: &Attachment, published: &Published) -> Result<()> {
    reference::check_portmap(attachment, published)
}

/// See [`crate::portmap::del`].
pub(crate) fn del(attachment: &Attachment, hints: &Hints) -> Result<()> {
    let layout = layout();
    let ours = Ledger::open(&layout).and_then(|mut ledger| ledger.release(attachment));
    let ours = ours.and_then(|record| conntrack::flush_udp(&claims::udp_ports(record.as_slice())));
    together([ours, reference::del_portmap(attachment, hints)])
}

/// Takes from an attachment what it holds here, and nothing of the reference's; tells whether it held anything.
pub(crate) fn release(attachment: &Attachment) -> Result<bool> {
    let layout = layout();
    Ledger::open(&layout)?
        .release(attachment)
        .map(|record| record.is_some())
}

/// See [`crate::portmap::gc`].
pub(crate) fn gc(network: &NetworkName, valid: &BTreeSet<(ContainerId, IfName)>) -> Result<()> {
    let layout = layout();
    let released = Ledger::open(&layout)?.collect(network, valid)?;
    conntrack::flush_udp(&claims::udp_ports(&released))
}
