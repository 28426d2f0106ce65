//! Published ports as the reference writes them.

use std::collections::BTreeSet;

use cni_types::{Attachment, Cidr, ContainerId, Error, IfName, NetworkName, Result};

use super::conflict;
use super::edit::Edit;
use super::exec::Tool;
use super::names::{self, DNAT_CHAIN, MASQ_CHAIN, MASQ_COMMENT, SETMARK_CHAIN, SETMARK_COMMENT};
use super::ownership::{self, Wanted};
use super::record::Feature;
use super::rule::Rule;
use super::saved::Saved;
use crate::portmap::{Mapping, Published};
use crate::{Family, Protocol};

/// XT_MULTI_PORTS of xt_multiport.h: how many ports one multiport match holds; a range counts as two.
const MULTIPORT_LIMIT: usize = 15;

/// See [`crate::portmap::add`].
pub(crate) fn add(attachment: &Attachment, published: &Published) -> Result<()> {
    let families = families(published);
    for family in &families {
        refuse_unprintable(published.conditions(*family))?;
    }
    refuse_unprintable(published.external_set_mark_chain.as_slice())?;
    let netns = published.netns.as_deref();
    ownership::add(attachment, Feature::Portmap, netns, &families, |edit, family| {
        plan(edit, attachment, published, family)
    })
}

/// A rule is a line of text for `iptables-restore`: nothing but its end may end it.
fn refuse_unprintable(words: &[String]) -> Result<()> {
    match words.iter().find(|word| word.contains(char::is_control)) {
        Some(word) => Err(Error::config(format!(
            "{word:?} has a control character, which no rule can hold"
        ))),
        None => Ok(()),
    }
}

fn families(published: &Published) -> Vec<Family> {
    let has_address = |family: &Family| published.address(*family).is_some();
    Family::BOTH.into_iter().filter(has_address).collect()
}

fn plan(edit: &mut Edit, attachment: &Attachment, published: &Published, family: Family) -> Result<Vec<Wanted>> {
    let rules = rules(attachment, published, family);
    let taken_over = conflict::resolve(
        edit.table(),
        attachment,
        published.on_conflict,
        published.netns_exists,
        family,
        &rules,
    )?;
    for hook in hooks(published) {
        for chain in hook.chains {
            edit.ensure_chain(chain);
        }
        for (chain, rule) in hook.rules {
            match chain {
                "POSTROUTING" => edit.ensure_first(chain, rule),
                _ => edit.ensure_rule(chain, rule),
            }
        }
    }
    edit.ensure_chain(&names::dnat_chain(&attachment.network, &attachment.container_id));
    let mut wanted: Vec<Wanted> = rules;
    wanted.extend(entries(attachment, published, family).into_iter().map(|entry| Wanted {
        first: taken_over,
        ..entry
    }));
    Ok(wanted)
}

/// Chains that all containers share, and the rules that make them work.
struct Hook {
    chains: &'static [&'static str],
    rules: Vec<(&'static str, Rule)>,
}

fn hooks(published: &Published) -> Vec<Hook> {
    let mut hooks = Vec::new();
    if published.snat && published.external_set_mark_chain.is_none() {
        // A bit above 31 cannot be asked for; see `Published::mark_masq_bit`.
        let bit = 1u32.checked_shl(published.mark_masq_bit.into()).unwrap_or_default();
        let mark = format!("{bit:#x}/{bit:#x}");
        let set = Rule::new()
            .comment(SETMARK_COMMENT)
            .jump("MARK")
            .args(["--set-xmark", &mark]);
        let masquerade = Rule::new().args(["-m", "mark", "--mark", &mark]).jump("MASQUERADE");
        hooks.push(Hook {
            chains: &[SETMARK_CHAIN, MASQ_CHAIN],
            rules: vec![
                (SETMARK_CHAIN, set),
                (MASQ_CHAIN, masquerade),
                ("POSTROUTING", Rule::new().comment(MASQ_COMMENT).jump(MASQ_CHAIN)),
            ],
        });
    }
    let local = Rule::new()
        .args(["-m", "addrtype", "--dst-type", "LOCAL"])
        .jump(DNAT_CHAIN);
    hooks.push(Hook {
        chains: &[DNAT_CHAIN],
        rules: vec![("PREROUTING", local.clone()), ("OUTPUT", local)],
    });
    hooks
}

/// The rules in the container's own chain.
fn rules(attachment: &Attachment, published: &Published, family: Family) -> Vec<Wanted> {
    let chain = names::dnat_chain(&attachment.network, &attachment.container_id);
    let Some(address) = published.address(family) else {
        return Vec::new();
    };
    let mappings = published.mappings.iter().filter(|mapping| mapping.applies_to(family));
    let rules = mappings.flat_map(|mapping| mapping_rules(published, mapping, address));
    rules.map(|rule| Wanted::last(&chain, rule)).collect()
}

/// Mark what must be masqueraded, then send to the container.
fn mapping_rules(published: &Published, mapping: &Mapping, address: Cidr) -> Vec<Rule> {
    let set_mark = published.external_set_mark_chain.as_deref().unwrap_or(SETMARK_CHAIN);
    let mut sources = Vec::new();
    if published.snat && published.masq_all {
        sources.push(Rule::new());
    } else if published.snat {
        sources.push(Rule::new().network("-s", address));
        if address.is_ipv4() {
            // The kernel routes no connection from ::1 to another host, so there is nothing to do for IPv6.
            sources.push(Rule::new().args(["-s", "127.0.0.1/32"]));
        }
    }
    let mut rules: Vec<Rule> = sources
        .into_iter()
        .map(|source| to_host_port(source, mapping).jump(set_mark))
        .collect();
    let target = to_host_port(Rule::new(), mapping).jump("DNAT");
    rules.push(target.args(["--to-destination".to_owned(), destination(mapping, address)]));
    rules
}

fn to_host_port(source: Rule, mapping: &Mapping) -> Rule {
    let rule = match mapping.exact_ip() {
        Some(ip) => source.network("-d", Cidr::host(ip)),
        None => source,
    };
    let protocol = mapping.protocol.name();
    rule.args(["-p", protocol, "-m", protocol, "--dport", &host_ports(mapping)])
}

fn host_ports(mapping: &Mapping) -> String {
    match mapping.host_port == mapping.host_port_end {
        true => mapping.host_port.to_string(),
        false => format!("{}:{}", mapping.host_port, mapping.host_port_end),
    }
}

/// The address, and the port where it is another than the host's. A range with other numbers is shifted port by port:
/// the last number says which host port the range begins with.
fn destination(mapping: &Mapping, address: Cidr) -> String {
    let ip = match address.is_ipv4() {
        true => address.address().to_string(),
        false => format!("[{}]", address.address()),
    };
    let Mapping {
        host_port,
        container_port,
        container_port_end,
        ..
    } = mapping;
    if mapping.host_port == mapping.host_port_end {
        format!("{ip}:{container_port}")
    } else if host_port == container_port {
        address.address().to_string()
    } else {
        format!("{ip}:{container_port}-{container_port_end}/{host_port}")
    }
}

/// The rules in [`DNAT_CHAIN`] that lead to the container's chain. They list every host port, whatever family it is for:
/// the reference does, and the rules behind them decide.
fn entries(attachment: &Attachment, published: &Published, family: Family) -> Vec<Wanted> {
    let (network, container) = (&attachment.network, &attachment.container_id);
    let conditions = published.conditions(family);
    let mut entries = Vec::new();
    // The reference sorts by the protocol's name.
    for protocol in [Protocol::Sctp, Protocol::Tcp, Protocol::Udp] {
        let mappings = published.mappings.iter().filter(|mapping| mapping.protocol == protocol);
        for ports in multiports(mappings) {
            let matches = Rule::new()
                .args(["-p", protocol.name()])
                .comment(&names::dnat_comment(network, container))
                .args(["-m", "multiport", "--dports", &ports]);
            let target = names::dnat_chain(network, container);
            let base = matches.clone().jump(&target);
            entries.push(match conditions.is_empty() {
                true => Wanted::last(DNAT_CHAIN, base),
                false => Wanted {
                    base: Some(base),
                    ..Wanted::last(DNAT_CHAIN, matches.args(conditions).jump(&target))
                },
            });
        }
    }
    entries
}

/// Host ports as the arguments of as many multiport matches as they need.
fn multiports<'a>(mappings: impl Iterator<Item = &'a Mapping>) -> Vec<String> {
    let mut groups: Vec<(usize, Vec<String>)> = Vec::new();
    for mapping in mappings {
        let (ports, size) = (
            host_ports(mapping),
            if mapping.host_port == mapping.host_port_end {
                1
            } else {
                2
            },
        );
        match groups.last_mut() {
            Some((used, group)) if *used + size <= MULTIPORT_LIMIT => {
                *used += size;
                group.push(ports);
            }
            _ => groups.push((size, vec![ports])),
        }
    }
    groups.into_iter().map(|(_, ports)| ports.join(",")).collect()
}

/// See [`crate::portmap::check`].
pub(crate) fn check(attachment: &Attachment, published: &Published) -> Result<()> {
    for family in families(published) {
        let seen = Tool::of(family).save()?;
        let missing = missing(&seen, attachment, published, family);
        if let Some((chain, rule)) = missing {
            return Err(Error::internal(format!(
                "port mappings of {attachment}: chain {chain} lacks the {family} rule {rule}, or has it in the wrong place"
            )));
        }
    }
    Ok(())
}

/// The first rule that ADD would write and that is not there.
fn missing(seen: &Saved, attachment: &Attachment, published: &Published, family: Family) -> Option<(String, Rule)> {
    let shared = hooks(published).into_iter().flat_map(|hook| hook.rules);
    let entries = entries(attachment, published, family).into_iter();
    let present = |chain: &str, rule: &Rule| seen.rules(chain).iter().any(|held| held.covers(rule));
    let mut loose = shared
        .map(|(chain, rule)| (chain.to_owned(), rule))
        .chain(entries.map(|entry| (entry.chain, entry.base.unwrap_or(entry.rule))));
    loose.find(|(chain, rule)| !present(chain, rule)).or_else(|| {
        // In the container's chain the order counts: what is sent to the container is marked before.
        let chain = names::dnat_chain(&attachment.network, &attachment.container_id);
        let mut rest = seen.rules(&chain).iter();
        let expected = rules(attachment, published, family).into_iter();
        let mut in_order = expected.map(|wanted| wanted.rule);
        in_order
            .find(|rule| !rest.any(|held| held == rule))
            .map(|rule| (chain, rule))
    })
}

/// See [`crate::portmap::del`].
pub(crate) fn del(attachment: &Attachment) -> Result<()> {
    ownership::del(attachment, Feature::Portmap)
}

/// See [`crate::portmap::gc`].
pub(crate) fn gc(network: &NetworkName, valid: &BTreeSet<(ContainerId, IfName)>) -> Result<()> {
    ownership::gc(Feature::Portmap, network, valid)
}
