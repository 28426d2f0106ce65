//! Accepted addresses and isolated bridges as the reference writes them.

use std::collections::BTreeSet;
use std::net::IpAddr;

use cni_types::{Attachment, Cidr, ContainerId, Error, IfName, NetworkName, Result};

use super::collection;
use super::edit::Edit;
use super::exec::Tool;
use super::names::{
    ADMIN_COMMENT, FORWARD_CHAIN, FORWARD_COMMENT, ISOLATION_COMMENT, ISOLATION_COMMENTS, ISOLATION_STAGE_1,
    ISOLATION_STAGE_2,
};
use super::owner::Wanted;
use super::ownership;
use super::reading::Reading;
use super::record::{Feature, OwnedRule};
use super::rule::Rule;
use super::saved::{Saved, Table};
use crate::Family;
use crate::firewall::{Ingress, Policy};
use crate::lock;

/// The chains that have rules of plugins. The administrator's is not among them.
const CHAINS: [&str; 4] = ["FORWARD", FORWARD_CHAIN, ISOLATION_STAGE_1, ISOLATION_STAGE_2];

/// Whether rules of the attachment are recorded.
pub(crate) fn holds(attachment: &Attachment) -> Result<bool> {
    ownership::holds(attachment, Feature::Firewall)
}

/// See [`crate::firewall::add`].
pub(crate) fn add(attachment: &Attachment, policy: &Policy) -> Result<()> {
    if let Some(bridge) = policy.ingress.bridge().filter(|bridge| bridge.as_str().ends_with('+')) {
        let message = format!("ingressPolicy: to iptables, {bridge} is every interface whose name begins so");
        return Err(Error::config(message));
    }
    ownership::add(
        attachment,
        Feature::Firewall,
        None,
        &families(policy),
        |mut reading, family| {
            reading.need(&CHAINS)?;
            reading.need_names(&[&policy.admin_chain])?;
            let mut edit = Edit::new(reading.end()?.0);
            if policy.accepts {
                forward(&mut edit, &policy.admin_chain);
            }
            isolate(&mut edit, &policy.ingress);
            let rules = accepted(policy, family).into_iter();
            Ok((edit, rules.map(|rule| Wanted::last(FORWARD_CHAIN, rule)).collect()))
        },
    )
}

/// The rule systems of families without an address are left alone: the node may lack their programs.
fn families(policy: &Policy) -> Vec<Family> {
    let has_address = |family: &Family| policy.addresses.iter().any(|ip| Family::of(*ip) == *family);
    Family::BOTH.into_iter().filter(has_address).collect()
}

/// What all containers share.
fn forward(edit: &mut Edit, admin_chain: &str) {
    edit.ensure_chain(FORWARD_CHAIN);
    edit.ensure_foreign_chain(admin_chain);
    edit.ensure_first("FORWARD", to_forward());
    edit.ensure_first(FORWARD_CHAIN, to_admin(admin_chain));
}

fn to_forward() -> Rule {
    Rule::new().comment(FORWARD_COMMENT).jump(FORWARD_CHAIN)
}

fn to_admin(admin_chain: &str) -> Rule {
    Rule::new().comment(ADMIN_COMMENT).jump(admin_chain)
}

/// What makes a container's traffic pass: what it sends, and answers to that.
fn accepted(policy: &Policy, family: Family) -> Vec<Rule> {
    let addresses = policy.addresses.iter().filter(|_| policy.accepts);
    let addresses = addresses.filter(|ip| Family::of(**ip) == family);
    addresses.flat_map(|ip| accept(*ip)).collect()
}

fn accept(ip: IpAddr) -> [Rule; 2] {
    let answers = Rule::new().network("-d", Cidr::host(ip));
    let answers = answers.args(["-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED"]);
    let sent = Rule::new().network("-s", Cidr::host(ip));
    [answers.jump("ACCEPT"), sent.jump("ACCEPT")]
}

/// The rules of a bridge: those in the first chain of isolation in their order, and the one in the second.
fn bridge_rules(bridge: &IfName, name: &str, within: bool) -> (Vec<Rule>, Rule) {
    let bridge = bridge.as_str();
    let comment = format!("{ISOLATION_COMMENTS}{name})");
    let mut first = Vec::new();
    if !within {
        let inside = Rule::new().args(["-i", bridge, "-o", bridge]);
        first.push(inside.comment(&comment).jump("DROP"));
    }
    let leaving = Rule::new().args(["-i", bridge, "!", "-o", bridge]);
    first.push(leaving.comment(&comment).jump(ISOLATION_STAGE_2));
    let arriving = Rule::new().args(["-o", bridge]);
    (first, arriving.comment(ISOLATION_COMMENT).jump("DROP"))
}

fn rules_of(ingress: &Ingress) -> Option<(Vec<Rule>, Rule)> {
    match ingress {
        Ingress::Open => None,
        Ingress::SameBridge(bridge) => Some(bridge_rules(bridge, "same-bridge", true)),
        Ingress::Isolated(bridge) => Some(bridge_rules(bridge, "isolated", false)),
    }
}

fn to_isolation() -> Rule {
    Rule::new().comment(ISOLATION_COMMENT).jump(ISOLATION_STAGE_1)
}

fn end_of_isolation() -> Rule {
    Rule::new().comment(ISOLATION_COMMENT).jump("RETURN")
}

fn isolate(edit: &mut Edit, ingress: &Ingress) {
    let Some((first, second)) = rules_of(ingress) else {
        return;
    };
    for chain in [ISOLATION_STAGE_1, ISOLATION_STAGE_2] {
        edit.ensure_chain(chain);
    }
    edit.ensure_first("FORWARD", to_isolation());
    for rule in first.into_iter().rev() {
        edit.ensure_first(ISOLATION_STAGE_1, rule);
    }
    edit.ensure_first(ISOLATION_STAGE_2, second);
    for chain in [ISOLATION_STAGE_1, ISOLATION_STAGE_2] {
        edit.ensure_rule(chain, end_of_isolation());
    }
}

/// Isolates a bridge for the containers of a family that are on it already.
pub(crate) fn isolate_bridge(ingress: &Ingress, family: Family) -> Result<()> {
    let _lock = lock::exclusive()?;
    let tool = Tool::of(family);
    let mut reading = Reading::begin(tool, Table::Filter, Vec::new())?;
    reading.need(&CHAINS)?;
    let mut edit = Edit::new(reading.end()?.0);
    isolate(&mut edit, ingress);
    edit.script().map_or(Ok(()), |script| tool.restore(&script))
}

/// See [`crate::firewall::check`].
pub(crate) fn check(attachment: &Attachment, policy: &Policy) -> Result<()> {
    for family in families(policy) {
        let mut reading = Reading::begin(Tool::of(family), Table::Filter, Vec::new())?;
        reading.need(&CHAINS)?;
        if let Some((chain, rule)) = missing(reading.table(), policy, family) {
            return Err(Error::internal(format!(
                "firewall of {attachment}: chain {chain} lacks the {family} rule {rule}, or has it in the wrong place"
            )));
        }
    }
    Ok(())
}

/// The first rule that ADD would write and that is not there. What is isolated or decided by the administrator comes
/// before what is accepted.
fn missing(seen: &Saved, policy: &Policy, family: Family) -> Option<(&'static str, Rule)> {
    let mut orders: Vec<(&'static str, Vec<Rule>)> = Vec::new();
    let forward: Vec<Rule> = policy.accepts.then(to_forward).into_iter().collect();
    if let Some((mut first, second)) = rules_of(&policy.ingress) {
        orders.push(("FORWARD", [vec![to_isolation()], forward.clone()].concat()));
        first.push(end_of_isolation());
        orders.push((ISOLATION_STAGE_1, first));
        orders.push((ISOLATION_STAGE_2, vec![second, end_of_isolation()]));
    }
    orders.push(("FORWARD", forward));
    for rule in accepted(policy, family) {
        orders.push((FORWARD_CHAIN, vec![to_admin(&policy.admin_chain), rule]));
    }
    orders.into_iter().find_map(|(chain, order)| {
        let mut rest = seen.rules(chain);
        let lost = order.into_iter().find(|wanted| !rest.any(|held| held == wanted))?;
        Some((chain, lost))
    })
}

/// See [`crate::firewall::del`].
pub(crate) fn del(attachment: &Attachment, addresses: &[IpAddr]) -> Result<()> {
    let rules = addresses.iter().flat_map(|ip| {
        accept(*ip).map(|rule| OwnedRule {
            family: Family::of(*ip),
            chain: FORWARD_CHAIN.to_owned(),
            rule,
        })
    });
    ownership::del(attachment, Feature::Firewall, rules.collect()).map(drop)
}

/// See [`crate::firewall::gc`].
pub(crate) fn gc(
    network: &NetworkName,
    valid: &BTreeSet<(ContainerId, IfName)>,
    in_use: &dyn Fn(&str) -> bool,
) -> Result<()> {
    let also = |edit: &mut Edit| release_bridges(edit, in_use);
    let shared = [ISOLATION_STAGE_1, ISOLATION_STAGE_2];
    collection::gc(Feature::Firewall, network, valid, &shared, also).map(drop)
}

fn release_bridges(edit: &mut Edit, in_use: &dyn Fn(&str) -> bool) {
    let mut verdicts = std::collections::BTreeMap::new();
    for chain in [ISOLATION_STAGE_1, ISOLATION_STAGE_2] {
        let rules: Vec<Rule> = edit.table().rules(chain).cloned().collect();
        for rule in rules {
            if let Some(bridge) = bridge_of(&rule) {
                let stays = *verdicts.entry(bridge.to_owned()).or_insert_with(|| in_use(bridge));
                if !stays {
                    edit.remove_rule(chain, &rule);
                }
            }
        }
    }
}

/// The bridge that a rule isolates, if a plugin wrote it.
fn bridge_of(rule: &Rule) -> Option<&str> {
    let is_ours = rule.value("--comment")?.starts_with(ISOLATION_COMMENTS);
    rule.value("-i").or_else(|| rule.value("-o")).filter(|_| is_ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(ingress: Ingress) -> Policy {
        Policy {
            addresses: vec!["10.1.0.2".parse().unwrap(), "fd00::2".parse().unwrap()],
            accepts: true,
            ingress,
            admin_chain: Policy::DEFAULT_ADMIN_CHAIN.to_owned(),
        }
    }

    fn edit(seen: &str, policy: &Policy, family: Family) -> Edit {
        let mut edit = Edit::new(Saved::parse(Table::Filter, seen));
        forward(&mut edit, &policy.admin_chain);
        isolate(&mut edit, &policy.ingress);
        for rule in accepted(policy, family) {
            edit.ensure_rule(FORWARD_CHAIN, rule);
        }
        edit
    }

    fn isolated(bridge: &str) -> Ingress {
        Ingress::Isolated(bridge.parse().unwrap())
    }

    fn same_bridge(bridge: &str) -> Ingress {
        Ingress::SameBridge(bridge.parse().unwrap())
    }

    #[test]
    fn the_first_container_makes_what_all_share() {
        let script = edit("", &policy(Ingress::Open), Family::V4).script().unwrap();
        let expected = r#"*filter
:CNI-FORWARD - [0:0]
-N CNI-ADMIN
-I FORWARD -m comment --comment "CNI firewall plugin rules" -j CNI-FORWARD
-I CNI-FORWARD -m comment --comment "CNI firewall plugin admin overrides" -j CNI-ADMIN
-A CNI-FORWARD -d 10.1.0.2/32 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A CNI-FORWARD -s 10.1.0.2/32 -j ACCEPT
COMMIT
"#;
        assert_eq!(script, expected);
    }

    #[test]
    fn what_an_add_writes_passes_its_check_and_no_less_does() {
        for ingress in [Ingress::Open, same_bridge("br0"), isolated("br0")] {
            let policy = policy(ingress);
            for family in Family::BOTH {
                let edit = edit("", &policy, family);
                let complete = edit.table();
                assert_eq!(missing(complete, &policy, family), None);
                for (chain, held) in complete.all() {
                    let mut less = Edit::new(complete.clone());
                    less.remove_rule(chain, &held.rule);
                    assert!(
                        missing(less.table(), &policy, family).is_some(),
                        "{chain} {}",
                        held.rule
                    );
                }
            }
        }
    }

    #[test]
    fn only_bridges_that_nothing_uses_lose_their_isolation() {
        let mut edit = edit("", &policy(isolated("br0")), Family::V4);
        isolate(&mut edit, &same_bridge("br1"));
        isolate(&mut edit, &same_bridge("br2"));
        edit.ensure_rule(ISOLATION_STAGE_1, Rule::parse("-i br0 -j LOG"));
        release_bridges(&mut edit, &|bridge| bridge == "br1");
        let mut left = edit
            .table()
            .all()
            .filter(|(chain, _)| chain.starts_with("CNI-ISOLATION"));
        assert!(left.all(|(_, held)| bridge_of(&held.rule).is_none_or(|bridge| bridge == "br1")));
        assert_eq!(missing(edit.table(), &policy(same_bridge("br1")), Family::V4), None);
        assert!(edit.table().has_rule(ISOLATION_STAGE_1, &Rule::parse("-i br0 -j LOG")));
    }

    #[test]
    fn a_bridge_that_is_a_pattern_is_refused() {
        let attachment = Attachment {
            network: "net1".parse().unwrap(),
            container_id: "c1".parse().unwrap(),
            ifname: "eth0".parse().unwrap(),
        };
        let error = add(&attachment, &policy(same_bridge("br+"))).unwrap_err();
        assert!(error.msg.contains("br+"), "{error}");
    }
}
