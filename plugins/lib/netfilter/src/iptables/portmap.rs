//! Published ports as the reference writes them.

use std::collections::BTreeSet;

use cni_types::{Attachment, Cidr, Code, ContainerId, Error, IfName, NetworkName, Result};

use super::collection;
use super::conflict::{self, Listens};
use super::edit::Edit;
use super::exec::Tool;
use super::names::{self, DNAT_CHAIN, MASQ_CHAIN, MASQ_COMMENT, SETMARK_CHAIN, SETMARK_COMMENT};
use super::owner::{self, Wanted};
use super::ownership;
use super::reading::Reading;
use super::record::Feature;
use super::rule::Rule;
use super::saved::{Saved, Table};
use crate::conntrack::{self, HostPorts};
use crate::portmap::{Mapping, OnConflict, Published};
use crate::{Family, Protocol, nftables};

/// XT_MULTI_PORTS of xt_multiport.h: how many ports one multiport match holds; a range counts as two.
const MULTIPORT_LIMIT: usize = 15;

/// Whether rules of the attachment are recorded.
pub(crate) fn holds(attachment: &Attachment) -> Result<bool> {
    ownership::holds(attachment, Feature::Portmap)
}

/// See [`crate::portmap::add`].
pub(crate) fn add(attachment: &Attachment, published: &Published) -> Result<()> {
    let families = families(published);
    for family in &families {
        refuse_unprintable(published.conditions(*family))?;
    }
    refuse_unprintable(published.external_set_mark_chain.as_slice())?;
    let netns = published.netns.as_deref();
    ownership::add(attachment, Feature::Portmap, netns, &families, |reading, family| {
        nftables::where_supported(|| nftables::portmap::refuse_living_holders(attachment, published, family))?;
        plan(reading, attachment, published, family)
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

fn plan(
    mut reading: Reading,
    attachment: &Attachment,
    published: &Published,
    family: Family,
) -> Result<(Edit, Vec<Wanted>)> {
    let rules = rules(attachment, published, family);
    let taken_over = conflict::resolve(&mut reading, attachment, published, family, &rules)?;
    reading.need(&chains_of(&hooks(published)))?;
    let mut edit = Edit::new(reading.end()?.0);
    let wanted = changes(&mut edit, attachment, published, family, rules, taken_over);
    Ok((edit, wanted))
}

/// Makes what all containers share, and names what this one is to have.
fn changes(
    edit: &mut Edit,
    attachment: &Attachment,
    published: &Published,
    family: Family,
    rules: Vec<Wanted>,
    taken_over: bool,
) -> Vec<Wanted> {
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
    wanted
}

/// Chains that all containers share, and the rules that make them work.
struct Hook {
    chains: &'static [&'static str],
    rules: Vec<(&'static str, Rule)>,
}

/// The chains that the hooks have rules in.
fn chains_of(hooks: &[Hook]) -> Vec<&'static str> {
    let rules = hooks.iter().flat_map(|hook| &hook.rules);
    let made = hooks.iter().flat_map(|hook| hook.chains).copied();
    made.chain(rules.map(|(chain, _)| *chain)).collect()
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

/// Removes the ports of containers that are gone, where `published` asks for one of them with the other backend: iptables
/// decides first, and would lead the connections to nobody.
///
/// Only what is recorded is looked at, which takes no program. So mappings of the reference are not found.
pub(crate) fn remove_dead_holders(attachment: &Attachment, published: &Published) -> Result<()> {
    let is_gone = |netns: Option<&str>| netns.is_some_and(|netns| !(published.netns_exists)(netns));
    for holder in recorded_holders(attachment, published)? {
        if is_gone(holder.netns.as_deref()) {
            log::warn!(
                "{} is taken over from {}, which is gone",
                holder.what,
                holder.attachment
            );
            del(&holder.attachment)?;
        }
    }
    Ok(())
}

/// Refuses host ports that a living container holds by this backend, for mappings of the other one.
///
/// The caller holds the lock.
pub(crate) fn refuse_living_holders(attachment: &Attachment, published: &Published) -> Result<()> {
    for conflict::Holder {
        attachment,
        netns,
        what,
    } in recorded_holders(attachment, published)?
    {
        let is_living = netns.as_deref().is_some_and(published.netns_exists);
        if is_living && published.on_conflict == OnConflict::Refuse {
            let message = format!("{what} is held by {attachment}");
            return Err(Error::new(Code::TRY_AGAIN_LATER, message));
        }
        log::warn!("{what} stays with {attachment} while it exists: iptables decides before nftables");
    }
    Ok(())
}

fn recorded_holders(attachment: &Attachment, published: &Published) -> Result<Vec<conflict::Holder>> {
    let mut holders = Vec::new();
    for family in families(published) {
        let wanted = rules(attachment, published, family);
        holders.extend(conflict::recorded_holders(&attachment.container_id, family, &wanted)?);
    }
    Ok(holders)
}

/// See [`crate::portmap::check`].
pub(crate) fn check(attachment: &Attachment, published: &Published) -> Result<()> {
    for family in families(published) {
        let own = owner::chains(Feature::Portmap, &attachment.network, &attachment.container_id);
        let mut reading = Reading::begin(Tool::of(family), Table::Nat, own)?;
        reading.need(&chains_of(&hooks(published)))?;
        let missing = missing(reading.table(), attachment, published, family);
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
    let shared = shared.map(|(chain, rule)| Wanted::last(chain, rule));
    let mut expected = shared.chain(entries(attachment, published, family));
    let is_there = |wanted: &Wanted| match &wanted.base {
        None => seen.has_rule(&wanted.chain, &wanted.rule),
        Some(base) => seen.rules(&wanted.chain).any(|held| held.covers(base)),
    };
    if let Some(wanted) = expected.find(|wanted| !is_there(wanted)) {
        return Some((wanted.chain, wanted.rule));
    }
    // In the container's chain the order counts: what is sent to the container is marked before.
    let chain = names::dnat_chain(&attachment.network, &attachment.container_id);
    let mut rest = seen.rules(&chain);
    let mut in_order = rules(attachment, published, family).into_iter();
    let lost = in_order.find(|wanted| !rest.any(|held| *held == wanted.rule))?;
    Some((lost.chain, lost.rule))
}

/// See [`crate::portmap::del`].
pub(crate) fn del(attachment: &Attachment) -> Result<()> {
    forget_connections(&ownership::del(attachment, Feature::Portmap, Vec::new())?)
}

/// See [`crate::portmap::gc`].
pub(crate) fn gc(network: &NetworkName, valid: &BTreeSet<(ContainerId, IfName)>) -> Result<()> {
    forget_connections(&collection::gc(Feature::Portmap, network, valid, &[], |_| ())?)
}

/// Ends the UDP connections that rules which are gone had redirected.
fn forget_connections(removed: &[(Family, Rule)]) -> Result<()> {
    let ports = removed.iter().filter_map(|(family, rule)| {
        let listens = Listens::of(rule).filter(|listens| listens.protocol == Protocol::Udp.name())?;
        Some(HostPorts {
            family: *family,
            address: listens
                .address
                .and_then(|text| text.parse::<Cidr>().ok())
                .map(|cidr| cidr.address()),
            first: listens.first,
            last: listens.last,
        })
    });
    conntrack::flush_udp(&ports.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attachment() -> Attachment {
        Attachment {
            network: "net1".parse().unwrap(),
            container_id: "c1".parse().unwrap(),
            ifname: "eth0".parse().unwrap(),
        }
    }

    fn mapping(protocol: Protocol, host_ip: &str, host: (u16, u16), container: (u16, u16)) -> Mapping {
        Mapping {
            protocol,
            host_ip: host_ip.parse().ok(),
            host_port: host.0,
            host_port_end: host.1,
            container_port: container.0,
            container_port_end: container.1,
        }
    }

    fn published(mappings: Vec<Mapping>) -> Published {
        Published {
            mappings,
            addresses: vec!["10.1.0.2/24".parse().unwrap(), "fd00::2/64".parse().unwrap()],
            snat: true,
            masq_all: false,
            mark_masq_bit: Published::DEFAULT_MARK_MASQ_BIT,
            external_set_mark_chain: None,
            conditions_v4: Vec::new(),
            conditions_v6: Vec::new(),
            on_conflict: OnConflict::Refuse,
            netns: None,
            netns_exists: |_| false,
        }
    }

    /// The script for a container's ADD on a table that shows `seen`.
    fn script(seen: &str, published: &Published, family: Family) -> String {
        let mut edit = Edit::new(Saved::parse(Table::Nat, seen));
        let rules = rules(&attachment(), published, family);
        for wanted in changes(&mut edit, &attachment(), published, family, rules, false) {
            match wanted.first {
                true => edit.ensure_first(&wanted.chain, wanted.rule),
                false => edit.ensure_rule(&wanted.chain, wanted.rule),
            }
        }
        edit.script().unwrap_or_default()
    }

    const WEB_V4: &str = r#"*nat
:CNI-HOSTPORT-SETMARK - [0:0]
:CNI-HOSTPORT-MASQ - [0:0]
:CNI-HOSTPORT-DNAT - [0:0]
:CNI-DN-c2d892b58e87e28a12fe6 - [0:0]
-A CNI-HOSTPORT-SETMARK -m comment --comment "CNI portfwd masquerade mark" -j MARK --set-xmark 0x2000/0x2000
-A CNI-HOSTPORT-MASQ -m mark --mark 0x2000/0x2000 -j MASQUERADE
-I POSTROUTING -m comment --comment "CNI portfwd requiring masquerade" -j CNI-HOSTPORT-MASQ
-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A OUTPUT -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A CNI-DN-c2d892b58e87e28a12fe6 -s 10.1.0.0/24 -p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK
-A CNI-DN-c2d892b58e87e28a12fe6 -s 127.0.0.1/32 -p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK
-A CNI-DN-c2d892b58e87e28a12fe6 -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.1.0.2:80
-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"net1\" id: \"c1\"" -m multiport --dports 8080 -j CNI-DN-c2d892b58e87e28a12fe6
COMMIT
"#;

    #[test]
    fn the_first_container_makes_what_all_share() {
        let web = published(vec![mapping(Protocol::Tcp, "", (8080, 8080), (80, 80))]);
        assert_eq!(script("", &web, Family::V4), WEB_V4);
        let of_v6 = script("", &web, Family::V6);
        assert!(of_v6.contains("-s fd00::/64 -p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK\n"));
        assert!(of_v6.contains("--to-destination [fd00::2]:80\n"));
        assert!(!of_v6.contains("127.0.0.1") && !of_v6.contains("::1/128"), "{of_v6}");
    }

    #[test]
    fn the_next_one_declares_only_its_own_chain() {
        let seen = "*nat\n:CNI-HOSTPORT-SETMARK - [0:0]\n:CNI-HOSTPORT-MASQ - [0:0]\n:CNI-HOSTPORT-DNAT - [0:0]\n\
            -A CNI-HOSTPORT-SETMARK -m comment --comment \"CNI portfwd masquerade mark\" -j MARK --set-xmark 0x2000/0x2000\n\
            -A CNI-HOSTPORT-MASQ -m mark --mark 0x2000/0x2000 -j MASQUERADE\n\
            -A POSTROUTING -j SOMEBODY-ELSES\n\
            -A POSTROUTING -m comment --comment \"CNI portfwd requiring masquerade\" -j CNI-HOSTPORT-MASQ\n\
            -A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT\n\
            -A OUTPUT -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT\nCOMMIT\n";
        let web = published(vec![mapping(Protocol::Tcp, "", (8080, 8080), (80, 80))]);
        let script = script(seen, &web, Family::V4);
        assert!(
            script.starts_with("*nat\n:CNI-DN-c2d892b58e87e28a12fe6 - [0:0]\n-A CNI-DN-"),
            "{script}"
        );
        assert_eq!(script.lines().filter(|line| line.starts_with(':')).count(), 1);
    }

    #[test]
    fn options_change_the_marks() {
        let mappings = vec![mapping(Protocol::Udp, "192.0.2.1", (53, 53), (5353, 5353))];
        let plain = Published {
            snat: false,
            ..published(mappings.clone())
        };
        let all = Published {
            masq_all: true,
            mark_masq_bit: 31,
            ..published(mappings.clone())
        };
        let external = Published {
            external_set_mark_chain: Some("KUBE-MARK-MASQ".to_owned()),
            ..published(mappings)
        };
        let of = |published: &Published| script("", published, Family::V4);
        assert!(!of(&plain).contains("MARK") && !of(&plain).contains("POSTROUTING"));
        assert!(
            of(&plain).contains(" -d 192.0.2.1/32 -p udp -m udp --dport 53 -j DNAT --to-destination 10.1.0.2:5353\n")
        );
        assert!(of(&all).contains("--set-xmark 0x80000000/0x80000000\n"));
        assert!(of(&all).contains(
            "-A CNI-DN-c2d892b58e87e28a12fe6 -d 192.0.2.1/32 -p udp -m udp --dport 53 -j CNI-HOSTPORT-SETMARK\n"
        ));
        assert!(!of(&all).contains("127.0.0.1"));
        assert!(of(&external).contains("-s 127.0.0.1/32 -d 192.0.2.1/32 -p udp -m udp --dport 53 -j KUBE-MARK-MASQ\n"));
        assert!(!of(&external).contains("CNI-HOSTPORT-SETMARK"));
    }

    #[test]
    fn twenty_ports_need_two_entries() {
        let mappings: Vec<Mapping> = (1..=20).map(|n| mapping(Protocol::Tcp, "", (n, n), (n, n))).collect();
        assert_eq!(
            multiports(mappings.iter()),
            ["1,2,3,4,5,6,7,8,9,10,11,12,13,14,15", "16,17,18,19,20"]
        );
        let ranges: Vec<Mapping> = (1..=8)
            .map(|n| mapping(Protocol::Tcp, "", (n * 10, n * 10 + 1), (1, 2)))
            .collect();
        assert_eq!(
            multiports(ranges.iter()),
            ["10:11,20:21,30:31,40:41,50:51,60:61,70:71", "80:81"]
        );
    }

    #[test]
    fn ranges_are_kept_or_shifted() {
        let address = "10.1.0.2/24".parse().unwrap();
        let same = mapping(Protocol::Tcp, "", (8000, 8010), (8000, 8010));
        let shifted = mapping(Protocol::Tcp, "", (8000, 8010), (9000, 9010));
        assert_eq!(destination(&same, address), "10.1.0.2");
        assert_eq!(destination(&shifted, address), "10.1.0.2:9000-9010/8000");
        assert_eq!(
            destination(&shifted, "fd00::2/64".parse().unwrap()),
            "[fd00::2]:9000-9010/8000"
        );
    }

    #[test]
    fn conditions_stay_arguments() {
        let conditions = vec![
            "-m".to_owned(),
            "comment".to_owned(),
            "--comment".to_owned(),
            "x\" -j ACCEPT".to_owned(),
        ];
        let asked = Published {
            conditions_v4: conditions,
            ..published(vec![mapping(Protocol::Tcp, "", (1, 1), (1, 1))])
        };
        let script = script("", &asked, Family::V4);
        assert!(
            script.contains(r#" --dports 1 -m comment --comment "x\" -j ACCEPT" -j CNI-DN-c2d892b58e87e28a12fe6"#),
            "{script}"
        );
        let newline = Published {
            conditions_v4: vec!["a\n-A INPUT".to_owned()],
            ..asked
        };
        assert_eq!(
            add(&attachment(), &newline).unwrap_err().code,
            cni_types::Code::INVALID_CONFIG
        );
    }

    #[test]
    fn check_misses_each_rule_and_its_order() {
        let web = published(vec![mapping(Protocol::Tcp, "", (8080, 8080), (80, 80))]);
        let full = WEB_V4.replace("-I ", "-A ");
        let missing_in = |text: &str| missing(&Saved::parse(Table::Nat, text), &attachment(), &web, Family::V4);
        assert_eq!(missing_in(&full), None);
        for line in full.lines().filter(|line| line.starts_with("-A")) {
            assert!(missing_in(&full.replace(line, "")).is_some(), "{line}");
        }
        assert!(missing_in(&full.replace("10.1.0.2:80", "10.1.0.3:80")).is_some());
        assert!(missing_in(&full.replace("--dports 8080", "--dports 8081")).is_some());
        let mark =
            "-A CNI-DN-c2d892b58e87e28a12fe6 -s 127.0.0.1/32 -p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK\n";
        let late = full.replace(mark, "").replace("COMMIT", &format!("{mark}COMMIT"));
        assert!(missing_in(&late).is_some(), "a mark after the redirection is never set");
    }
}
