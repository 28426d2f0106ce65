//! What plugins keep for an attachment besides addresses and ports, as the node's rules and files have it: masquerading, the
//! firewall's permission, the guard of its MAC, and what tuning will put back. Ours and the reference's, on both rule systems.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use serde_json::Value;

use super::rules::{Rules, elements, objects, owner_of};

/// Where tuning keeps the settings from before ADD, unless its configuration says otherwise (`dataDir`).
const SETTINGS: &str = "/run/cni/tuning";

/// Something that is kept for an attachment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Holding {
    pub(super) kind: &'static str,
    /// "iptables", "nftables", or the file.
    pub(super) place: String,
    pub(super) owner: Owner,
}

/// As much as a holding says about whose it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Owner {
    /// Network and container, and the interface where it is told.
    Attachment {
        network: String,
        container: String,
        ifname: Option<String>,
    },
    /// Container and interface with a sign between them, which container IDs may have as well.
    Label { text: String, sign: char },
    /// The address alone.
    Address(IpAddr),
}

impl Owner {
    /// Whether this is an attachment with these names and addresses.
    pub(super) fn is(&self, network: &str, container: &str, ifname: &str, addresses: &[IpAddr]) -> bool {
        match self {
            Owner::Attachment {
                network: of,
                container: id,
                ifname: interface,
            } => of == network && id == container && interface.as_ref().is_none_or(|interface| interface == ifname),
            Owner::Label { text, sign } => *text == format!("{container}{sign}{ifname}"),
            Owner::Address(address) => addresses.contains(address),
        }
    }
}

impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Owner::Attachment {
                network,
                container,
                ifname,
            } => {
                write!(f, "{container}")?;
                ifname.as_ref().map_or(Ok(()), |ifname| write!(f, " {ifname}"))?;
                write!(f, " on {network}")
            }
            Owner::Label { text, .. } => write!(f, "{text}"),
            Owner::Address(address) => write!(f, "{address}"),
        }
    }
}

/// Everything that is kept on this node, each thing once. Rules are not seen without the program of their system.
pub(super) fn all(rules: &Rules) -> Vec<Holding> {
    let mut all: Vec<Holding> = rules.iptables.iter().flat_map(|text| of_iptables(text)).collect();
    all.extend(rules.nftables.iter().flat_map(of_nftables));
    all.extend(settings(Path::new(SETTINGS)));
    let mut once = Vec::new();
    for holding in all {
        if !once.contains(&holding) {
            once.push(holding);
        }
    }
    once
}

fn of_iptables(text: &str) -> impl Iterator<Item = Holding> {
    text.lines().filter_map(|line| {
        let (kind, owner) = masqueraded(line)
            .map(|owner| ("masquerade", owner))
            .or_else(|| Some(("firewall", let_through(line)?)))?;
        Some(Holding {
            kind,
            place: "iptables".to_owned(),
            owner,
        })
    })
}

/// The rule that leads from POSTROUTING to the chain of a container names it in its comment.
fn masqueraded(line: &str) -> Option<Owner> {
    let rest = line.strip_prefix("-A POSTROUTING ")?;
    let (_, comment) = rest.split_once(r#"--comment "name: \""#)?;
    let (network, rest) = comment.split_once(r#"\" id: \""#)?;
    let (container, _) = rest.split_once('\\')?;
    Some(Owner::Attachment {
        network: network.to_owned(),
        container: container.to_owned(),
        ifname: None,
    })
}

/// The firewall's rules have the address alone, as a whole prefix.
fn let_through(line: &str) -> Option<Owner> {
    let rest = line.strip_prefix("-A CNI-FORWARD ")?;
    let address = rest.strip_prefix("-s ").or_else(|| rest.strip_prefix("-d "))?;
    let address = address.split_whitespace().next()?.split('/').next()?;
    address.parse().ok().map(Owner::Address)
}

fn of_nftables(document: &Value) -> Vec<Holding> {
    let commented = |kind: &'static str, owner: Owner| Holding {
        kind,
        place: "nftables".to_owned(),
        owner,
    };
    let mut found = Vec::new();
    for rule in objects(document, "rule") {
        let word = |key: &str| rule.get(key).and_then(Value::as_str).unwrap_or_default();
        let owner = match (word("table"), word("chain")) {
            ("cni_plugins_masquerade", _) => of_reference(word("comment")).map(|owner| ("masquerade", owner)),
            ("nat", "PREROUTING") if word("family") == "bridge" => {
                let label = word("comment").strip_prefix("macspoofchk-");
                label.map(|text| {
                    (
                        "MAC guard",
                        Owner::Label {
                            text: text.to_owned(),
                            sign: '-',
                        },
                    )
                })
            }
            _ => None,
        };
        found.extend(owner.map(|(kind, owner)| commented(kind, owner)));
    }
    for (table, kind) in [("ferrule_masquerade", "masquerade"), ("ferrule_firewall", "firewall")] {
        let of_addresses = elements(document, table).filter(|element| is_address(element));
        let owners = of_addresses.filter_map(owner_of);
        found.extend(owners.map(|(network, container, ifname)| {
            let ifname = Some(ifname);
            commented(
                kind,
                Owner::Attachment {
                    network,
                    container,
                    ifname,
                },
            )
        }));
    }
    found
}

/// The names in a comment of the reference's masquerading: "hash-hash, net: NETWORK, if: eth0, id: CONTAINER".
fn of_reference(comment: &str) -> Option<Owner> {
    let (_, rest) = comment.split_once(", net: ")?;
    let (network, rest) = rest.split_once(", if: ")?;
    let (ifname, container) = rest.split_once(", id: ")?;
    Some(Owner::Attachment {
        network: network.to_owned(),
        container: container.to_owned(),
        ifname: Some(ifname.to_owned()),
    })
}

/// Whether an element is one of addresses, and not of what a table keeps about owners.
fn is_address(element: &Value) -> bool {
    let value = element.get("val").and_then(Value::as_str);
    value.is_some_and(|value| value.parse::<IpAddr>().is_ok())
}

fn settings(directory: &Path) -> Vec<Holding> {
    let files = fs::read_dir(directory).into_iter().flatten().flatten();
    let of_file = |entry: fs::DirEntry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        let text = name.strip_suffix(".json")?.to_owned();
        Some(Holding {
            kind: "settings to put back",
            place: entry.path().display().to_string(),
            owner: Owner::Label { text, sign: '_' },
        })
    };
    files.filter_map(of_file).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn owner(network: &str, container: &str, ifname: Option<&str>) -> Owner {
        Owner::Attachment {
            network: network.to_owned(),
            container: container.to_owned(),
            ifname: ifname.map(str::to_owned),
        }
    }

    #[test]
    fn reads_rules_of_iptables() {
        let text = r#"
-A POSTROUTING -m comment --comment "CNI portfwd requiring masquerade" -j CNI-HOSTPORT-MASQ
-A POSTROUTING -s 10.1.0.2/32 -m comment --comment "name: \"net\" id: \"c1\"" -j CNI-875cf500de1afda725b73063
-A CNI-FORWARD -m comment --comment "CNI firewall plugin admin overrides" -j CNI-ADMIN
-A CNI-FORWARD -d 10.1.0.2/32 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A CNI-FORWARD -s 2001:db8::2/128 -j ACCEPT
"#;
        let found: Vec<_> = of_iptables(text).map(|holding| (holding.kind, holding.owner)).collect();
        let expected = [
            ("masquerade", owner("net", "c1", None)),
            ("firewall", Owner::Address("10.1.0.2".parse().unwrap())),
            ("firewall", Owner::Address("2001:db8::2".parse().unwrap())),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn reads_rules_and_elements_of_nf_tables() {
        let rule = |family: &str, table: &str, chain: &str, comment: &str| json!({ "rule": { "family": family, "table": table, "chain": chain, "comment": comment } });
        let element = |value: Value| json!([{ "elem": { "val": value, "comment": "07ca net/c-2/eth0" } }, { "jump": { "target": "m" } }]);
        let document = json!({ "nftables": [
            rule("bridge", "nat", "PREROUTING", "macspoofchk-c-1-eth0"),
            rule("bridge", "nat", "cni-br-iface-c-1-eth0", "macspoofchk-c-1-eth0"),
            rule("inet", "cni_plugins_masquerade", "masq_checks", "d9cd-09dc, net: net, if: eth0, id: c-1"),
            { "map": { "table": "ferrule_masquerade", "name": "masq4", "elem": [element(json!("10.1.0.2"))] } },
            { "set": { "table": "ferrule_masquerade", "name": "owners", "elem": [{ "elem": { "val": { "concat": ["::1", 0] }, "comment": "07ca net/c-2/eth0" } }] } },
            { "set": { "table": "ferrule_firewall", "name": "accept4", "elem": [{ "elem": { "val": "10.1.0.2", "comment": "07ca net/c-2/eth0" } }] } },
        ] });
        let found: Vec<_> = of_nftables(&document)
            .into_iter()
            .map(|holding| (holding.kind, holding.owner))
            .collect();
        let guard = Owner::Label {
            text: "c-1-eth0".to_owned(),
            sign: '-',
        };
        let expected = [
            ("MAC guard", guard.clone()),
            ("masquerade", owner("net", "c-1", Some("eth0"))),
            ("masquerade", owner("net", "c-2", Some("eth0"))),
            ("firewall", owner("net", "c-2", Some("eth0"))),
        ];
        assert_eq!(found, expected);
        assert!(guard.is("any", "c-1", "eth0", &[]) && !guard.is("any", "c", "1-eth1", &[]));
    }

    #[test]
    fn an_owner_is_found_by_as_much_as_is_told() {
        let address: IpAddr = "10.1.0.2".parse().unwrap();
        for (owner, expected) in [
            (owner("net", "c1", None), true),
            (owner("net", "c1", Some("eth1")), false),
            (owner("other", "c1", None), false),
            (Owner::Address(address), true),
            (Owner::Address("10.1.0.3".parse().unwrap()), false),
        ] {
            assert_eq!(owner.is("net", "c1", "eth0", &[address]), expected, "{owner}");
        }
    }
}
