//! What one attachment may change in a table: its own rules, less what others own as well.

use cni_types::{ContainerId, IfName, NetworkName, Result};

use super::edit::Edit;
use super::names;
use super::neighbours::Neighbours;
use super::record::{Feature, Holding, OwnedRule, Record};
use super::rule::Rule;
use super::saved::{Held, Saved};
use crate::Family;

/// A rule that an attachment is to own.
pub(super) struct Wanted {
    pub(super) chain: String,
    pub(super) rule: Rule,
    /// Before the chain's other rules rather than after them.
    pub(super) first: bool,
    /// For a rule with a user's conditions, which iptables rewrites in its own words: the rule without them, by which it
    /// is found again.
    pub(super) base: Option<Rule>,
}

impl Wanted {
    /// A rule at the end of a chain, free of a user's text.
    pub(super) fn last(chain: &str, rule: Rule) -> Wanted {
        Wanted {
            chain: chain.to_owned(),
            rule,
            first: false,
            base: None,
        }
    }
}

/// The chains of a container that a feature fills; the first is the current one, others are of older versions.
pub(super) fn chains(feature: Feature, network: &NetworkName, container: &ContainerId) -> Vec<String> {
    match feature {
        Feature::Portmap => vec![
            names::dnat_chain(network, container),
            names::snat_chain(network, container),
        ],
        Feature::Masquerade => vec![names::masquerade_chain(network, container)],
        Feature::Firewall => Vec::new(),
    }
}

/// An attachment, for one feature.
pub(super) struct Owner<'a> {
    /// What the container's attachments to the network own.
    pub(super) record: &'a Record,
    pub(super) ifname: &'a IfName,
    pub(super) feature: Feature,
    pub(super) neighbours: &'a Neighbours,
}

impl Owner<'_> {
    /// Replaces what the attachment owns in one family. Where all of it is there already, nothing is touched; else all of
    /// it is written anew, for the order of the rules counts.
    pub(super) fn replace(&self, edit: &mut Edit, family: Family, wanted: &[Wanted]) -> Result<()> {
        let old = self.owned(family);
        let is_wanted = |own: &OwnedRule| wanted.iter().any(|w| w.chain == own.chain && w.rule == own.rule);
        let is_there = |w: &Wanted| w.base.is_none() && !w.first && edit.table().has_rule(&w.chain, &w.rule);
        if old.iter().all(is_wanted) && wanted.iter().all(is_there) {
            return Ok(());
        }
        for own in old {
            self.remove(edit, family, &own.chain, &own.rule)?;
        }
        for w in wanted {
            // Also what nobody has recorded: the reference's, or our own of a call that was killed.
            let is_alike = |rule: &&Rule| w.base.as_ref().map_or(**rule == w.rule, |base| rule.covers(base));
            let alike: Vec<Rule> = edit.table().rules(&w.chain).filter(is_alike).cloned().collect();
            for rule in alike {
                self.remove(edit, family, &w.chain, &rule)?;
            }
        }
        for w in wanted.iter().filter(|w| w.first).rev() {
            edit.ensure_first(&w.chain, w.rule.clone());
        }
        for w in wanted.iter().filter(|w| !w.first) {
            edit.ensure_rule(&w.chain, w.rule.clone());
        }
        Ok(())
    }

    /// Takes the attachment's rules out of one family, and the container's chains when nothing is left in them.
    pub(super) fn release(&self, edit: &mut Edit, family: Family) -> Result<()> {
        let chains = chains(self.feature, &self.record.network, &self.record.container);
        let own: Vec<(String, Rule)> = match self.record.holding(self.ifname, self.feature) {
            Some(_) => self
                .owned(family)
                .into_iter()
                .map(|own| (own.chain, own.rule))
                .collect(),
            // Written by the reference, which says only whose container it is.
            None => chains.iter().flat_map(|chain| content(edit.table(), chain)).collect(),
        };
        let (inside, outside): (Vec<_>, Vec<_>) = own.into_iter().partition(|(chain, _)| chains.contains(chain));
        // What leads to the container's chains first: what is in them may serve another interface, which the reference
        // attached. Nothing is recorded of that, but that something else still leads there.
        for (chain, rule) in outside.into_iter().chain(inside) {
            if self.feature != Feature::Masquerade || !self.is_reached_unrecorded(edit.table(), &chain) {
                self.remove(edit, family, &chain, &rule)?;
            }
        }
        for chain in chains {
            let holds = |holding: &Holding| {
                holding
                    .rules
                    .iter()
                    .any(|own| own.family == family && own.chain == chain)
            };
            if edit.table().held(&chain).is_empty() && !self.siblings().any(holds) {
                edit.remove_chain(&chain);
            }
        }
        Ok(())
    }

    /// Whether rules that nobody has recorded lead to a chain.
    fn is_reached_unrecorded(&self, table: &Saved, chain: &str) -> bool {
        let holdings = self.record.held(self.feature);
        let is_recorded = |from: &str, held: &Held| {
            let mut rules = holdings.iter().flat_map(|holding| &holding.rules);
            rules.any(|own| own.chain == from && held.is(&own.rule))
        };
        let jumps = table.jumps_to(chain);
        jumps.iter().any(|(from, held)| !is_recorded(from, held))
    }

    fn owned(&self, family: Family) -> Vec<OwnedRule> {
        let holding = self.record.holding(self.ifname, self.feature).cloned();
        let mut rules = holding.unwrap_or_default().rules;
        rules.retain(|own| own.family == family);
        rules
    }

    /// Removes a rule that is there and that nobody else owns: identical rules are one rule.
    fn remove(&self, edit: &mut Edit, family: Family, chain: &str, rule: &Rule) -> Result<()> {
        let is_shared = || match self.siblings().any(|holding| holding.contains(family, chain, rule)) {
            true => Ok(true),
            false => self.neighbours.own(family, chain, rule),
        };
        if edit.table().has_rule(chain, rule) && !is_shared()? {
            edit.remove_rule(chain, rule);
        }
        Ok(())
    }

    fn siblings(&self) -> impl Iterator<Item = &Holding> {
        let holders = self.record.holders(self.feature);
        holders
            .filter(|(name, _)| *name != self.ifname.as_str())
            .map(|(_, holding)| holding)
    }
}

/// The rules in a chain and those that jump to it.
fn content(table: &Saved, chain: &str) -> Vec<(String, Rule)> {
    let inside = table.rules(chain).map(|rule| (chain.to_owned(), rule.clone()));
    let jumps = table.jumps_to(chain).into_iter().map(|(from, held)| (from, held.rule));
    jumps.chain(inside).collect()
}
