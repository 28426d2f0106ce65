//! Changing a node over to another suite of plugins while containers run.
//!
//! What the iptables backend writes, the reference suite understands. What is in our nf_tables it does not, so before its
//! plugins take the place of ours, [`to_iptables`] writes the same as iptables rules. No connection is interrupted: the
//! new rules are there before the old ones go, and connections that exist are translated by what connection tracking
//! remembers of them.

use cni_types::{Attachment, Error, Result};

use crate::firewall::{Ingress, Policy};
use crate::masquerade::Masquerade;
use crate::portmap::Published;
use crate::sweep::together;
use crate::{Backend, Family, iptables, nftables};

/// Something of an attachment that the kernel holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// Whose it is.
    pub attachment: Attachment,
    /// Where it is.
    pub backend: Backend,
    /// What it is, for people: `ports 53/udp, 8080/tcp`.
    pub what: String,
}

/// What attachments hold of ours, in both backends. Rules that the reference wrote are not ours.
///
/// # Errors
///
/// What the kernel said, or that something in our tables is not understood.
pub fn held() -> Result<Vec<Held>> {
    let mut all = Vec::new();
    let mut note = |backend, attachment, what: String| {
        all.push(Held {
            attachment,
            backend,
            what,
        });
    };
    for (attachment, ports) in nftables::where_supported(nftables::portmap::ports)? {
        note(Backend::Nftables, attachment, format!("ports {}", ports.join(", ")));
    }
    for (attachment, masquerade) in nftables::where_supported(nftables::masquerade::masqueraded)? {
        let addresses = masquerade.addresses.iter().map(|cidr| cidr.address().to_string());
        let addresses: Vec<String> = addresses.collect();
        note(
            Backend::Nftables,
            attachment,
            format!("masquerading of {}", addresses.join(", ")),
        );
    }
    for (attachment, policy) in nftables::where_supported(nftables::firewall::accepted)? {
        let addresses: Vec<String> = policy.addresses.iter().map(ToString::to_string).collect();
        note(
            Backend::Nftables,
            attachment,
            format!("acceptance of {}", addresses.join(", ")),
        );
    }
    for (attachment, what) in iptables::holders()? {
        note(Backend::Iptables, attachment, what.to_owned());
    }
    Ok(all)
}

/// Everything in our nf_tables, as it was asked for.
struct Contents {
    published: Vec<(Attachment, Published)>,
    masqueraded: Vec<(Attachment, Masquerade)>,
    accepted: Vec<(Attachment, Policy)>,
    isolated: Vec<Ingress>,
}

impl Contents {
    /// Reads it, and refuses what iptables cannot say.
    fn read() -> Result<Contents> {
        if nftables::firewall::has_admin_rules()? {
            return Err(Error::internal(
                "chain admin of table inet ferrule_firewall has rules of the administrator: write them into CNI-ADMIN with \
                 iptables, then empty it: nft flush chain inet ferrule_firewall admin",
            ));
        }
        Ok(Contents {
            published: nftables::portmap::published()?,
            masqueraded: nftables::masquerade::masqueraded()?,
            accepted: nftables::firewall::accepted()?,
            isolated: nftables::firewall::isolated()?,
        })
    }

    fn families(&self) -> Vec<Family> {
        let has_v6 = |policy: &Policy| policy.addresses.iter().any(|ip| ip.is_ipv6());
        match self.accepted.iter().any(|(_, policy)| has_v6(policy)) {
            true => Family::BOTH.to_vec(),
            false => vec![Family::V4],
        }
    }
}

/// Writes everything in our nf_tables as the iptables rules of the reference suite, and deletes our tables. Returns the
/// attachments, once for each thing that they held.
///
/// Attachments that come or go meanwhile are dealt with: what a DEL removed is not written after all, and what an ADD
/// brought stays, with the table that it is in, for the next call.
///
/// # Errors
///
/// What iptables cannot say (conditions in nft's syntax, rules of the administrator in our tables): nothing is changed
/// then. Otherwise everything is tried, and the failures are reported together; what could not be moved is where it was.
pub fn to_iptables() -> Result<Vec<Attachment>> {
    nftables::where_supported(move_to_iptables)
}

fn move_to_iptables() -> Result<Vec<Attachment>> {
    let contents = Contents::read()?;
    let mut moved = Vec::new();
    let mut outcomes = Vec::new();
    let mut note = |attachment: &Attachment, outcome: Result<bool>| match outcome {
        Ok(true) => moved.push(attachment.clone()),
        Ok(false) => {}
        Err(e) => outcomes.push(Err(e.context(attachment.to_string()))),
    };
    for (attachment, policy) in &contents.accepted {
        let outcome = move_one(
            || iptables::firewall::add(attachment, policy),
            || nftables::firewall::release(attachment),
            || iptables::firewall::del(attachment, &[]),
        );
        note(attachment, outcome);
    }
    for (attachment, masquerade) in &contents.masqueraded {
        let outcome = move_one(
            || iptables::masquerade::add(attachment, masquerade),
            || nftables::masquerade::release(attachment),
            || iptables::masquerade::del(attachment),
        );
        note(attachment, outcome);
    }
    for (attachment, published) in &contents.published {
        let outcome = move_one(
            || iptables::portmap::add(attachment, published),
            || nftables::portmap::release(attachment),
            || iptables::portmap::del(attachment),
        );
        note(attachment, outcome);
    }
    // After what is accepted: FORWARD has to meet isolation first, and each goes to its top.
    for ingress in &contents.isolated {
        for family in contents.families() {
            outcomes.push(iptables::firewall::isolate_bridge(ingress, family));
        }
    }
    if outcomes.iter().all(Result::is_ok) {
        // With the tables go the bridges that are isolated in them, so not before all of those are written.
        nftables::remove_tables()?;
    }
    together(outcomes).map(|()| moved)
}

/// Adds to iptables and takes out of nf_tables. Where nothing was there to take any more, a DEL has come in between, and
/// what was added goes too.
fn move_one(
    add: impl FnOnce() -> Result<()>,
    release: impl FnOnce() -> Result<bool>,
    del: impl FnOnce() -> Result<()>,
) -> Result<bool> {
    add()?;
    let was_held = release()?;
    if !was_held {
        del()?;
    }
    Ok(was_held)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn what_a_del_removed_meanwhile_is_not_left_in_iptables() {
        for (held, expected) in [(Ok(true), "add release"), (Ok(false), "add release del")] {
            let steps = RefCell::new(Vec::new());
            let step = |name| steps.borrow_mut().push(name);
            let outcome = move_one(
                || {
                    step("add");
                    Ok(())
                },
                || {
                    step("release");
                    held.clone()
                },
                || {
                    step("del");
                    Ok(())
                },
            );
            assert_eq!(outcome, held);
            assert_eq!(steps.into_inner().join(" "), expected);
        }
    }

    #[test]
    fn nothing_is_taken_out_before_it_is_written() {
        let outcome = move_one(
            || Err(Error::internal("refused")),
            || panic!("released"),
            || panic!("deleted"),
        );
        assert_eq!(outcome, Err(Error::internal("refused")));
    }
}
