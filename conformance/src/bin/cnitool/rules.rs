//! The node's rules, and published ports as they have them: those of iptables, whoever wrote them in the reference's layout,
//! and in nf_tables those of ferrule's own table and of the reference's.

use std::process::Command;

use serde_json::Value;

/// A host port that leads to a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Port {
    /// "tcp", "udp" or "sctp".
    pub(super) protocol: String,
    /// The only address of the node that it is published on; `None` for all of them.
    pub(super) host_ip: Option<String>,
    /// The host port.
    pub(super) number: u16,
    /// The container's address and port.
    pub(super) target: String,
    /// The network that the rule names; empty for the reference's rules of nf_tables, which name none.
    pub(super) network: String,
    /// The container's ID. A long one may be cut off.
    pub(super) container: String,
}

/// All rules of this network namespace. Those of a rule system whose program is missing cannot be seen.
#[derive(Debug, Default)]
pub(super) struct Rules {
    /// What iptables-save and ip6tables-save print.
    pub(super) iptables: Vec<String>,
    /// The document of nft.
    pub(super) nftables: Option<Value>,
}

impl Rules {
    /// Reads them. Only root sees rules.
    pub(super) fn read() -> Rules {
        let saved = ["iptables-save", "ip6tables-save"].map(|program| output(program, &[]));
        let listed = output("nft", &["-j", "list", "ruleset"]);
        Rules {
            iptables: saved.into_iter().flatten().collect(),
            nftables: listed.and_then(|text| serde_json::from_str(&text).ok()),
        }
    }

    /// All published ports.
    pub(super) fn ports(&self) -> Vec<Port> {
        let mut ports: Vec<Port> = self.iptables.iter().flat_map(|text| of_iptables(text)).collect();
        if let Some(document) = &self.nftables {
            ports.extend(of_nftables(document));
            ports.extend(of_reference(document));
        }
        ports
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "the one place where cnitool reads rules, by the rule systems' programs"
)]
fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The chain CNI-HOSTPORT-DNAT says whose each chain is, and each chain where its ports lead to.
fn of_iptables(text: &str) -> Vec<Port> {
    let owners: Vec<(&str, String, String)> = text
        .lines()
        .filter(|line| line.starts_with("-A CNI-HOSTPORT-DNAT "))
        .filter_map(|line| {
            let (_, comment) = line.split_once(r#"--comment "dnat name: \""#)?;
            let (network, rest) = comment.split_once(r#"\" id: \""#)?;
            let (container, _) = rest.split_once('\\')?;
            let (_, chain) = line.rsplit_once(" -j ")?;
            Some((chain, network.to_owned(), container.to_owned()))
        })
        .collect();
    text.lines()
        .filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let after = |option: &str| {
                let at = words.iter().position(|word| *word == option)?;
                words.get(at + 1).copied()
            };
            let target = after("--to-destination")?;
            let (_, network, container) = owners.iter().find(|(chain, ..)| Some(*chain) == after("-A"))?;
            Some(Port {
                protocol: after("-p")?.to_owned(),
                host_ip: after("-d").map(|ip| ip.split('/').next().unwrap_or(ip).to_owned()),
                number: after("--dport")?.parse().ok()?,
                target: target.to_owned(),
                network: network.clone(),
                container: container.clone(),
            })
        })
        .collect()
}

/// The objects of one kind in a document of nft.
pub(super) fn objects<'a>(document: &'a Value, kind: &'static str) -> impl Iterator<Item = &'a Value> {
    let objects = document.get("nftables").and_then(Value::as_array).into_iter().flatten();
    objects.filter_map(move |object| object.get(kind))
}

/// The keys of all maps and sets of a table.
pub(super) fn elements<'a>(document: &'a Value, table: &'static str) -> impl Iterator<Item = &'a Value> {
    pairs(document, table)
        .map(|pair| pair.get(0).unwrap_or(pair))
        .filter_map(|key| key.get("elem"))
}

/// The pairs of the maps of a table, and the keys of its sets.
fn pairs<'a>(document: &'a Value, table: &'static str) -> impl Iterator<Item = &'a Value> {
    let groups = objects(document, "map").chain(objects(document, "set"));
    let of_table = groups.filter(move |group| group.get("table").and_then(Value::as_str) == Some(table));
    of_table.filter_map(|group| group.get("elem")?.as_array()).flatten()
}

/// Network, container and interface in the comment of an element of ours, behind a hash: "82e2... network/container/ifname".
pub(super) fn owner_of(element: &Value) -> Option<(String, String, String)> {
    let (_, owner) = element.get("comment")?.as_str()?.split_once(' ')?;
    let mut names = owner.split('/').map(str::to_owned);
    Some((names.next()?, names.next()?, names.next().unwrap_or_default()))
}

fn of_nftables(document: &Value) -> Vec<Port> {
    pairs(document, "ferrule_portmap").filter_map(of_element).collect()
}

fn of_element(pair: &Value) -> Option<Port> {
    let element = pair.get(0)?.get("elem")?;
    let (network, container, _) = owner_of(element)?;
    let key = element.get("val")?.get("concat")?.as_array()?;
    let target: Vec<String> = match pair.get(1)?.get("concat")? {
        Value::Array(parts) => parts.iter().map(word).collect(),
        _ => return None,
    };
    let is_protocol = |part: &&Value| part.as_str().is_some_and(|word| ["tcp", "udp", "sctp"].contains(&word));
    let is_address = |part: &&Value| {
        part.as_str()
            .is_some_and(|word| word.parse::<std::net::IpAddr>().is_ok())
    };
    Some(Port {
        protocol: key.iter().find(is_protocol)?.as_str()?.to_owned(),
        host_ip: key.iter().find(is_address).map(word),
        number: key.iter().find_map(Value::as_u64)?.try_into().ok()?,
        target: target.join(":"),
        network,
        container,
    })
}

/// The reference's rules of nf_tables, one for a port, whose comment is the container.
fn of_reference(document: &Value) -> Vec<Port> {
    let rules = objects(document, "rule").filter(|rule| rule.get("table").is_some_and(|table| table == "cni_hostport"));
    rules.filter_map(of_rule).collect()
}

fn of_rule(rule: &Value) -> Option<Port> {
    let expressions = rule.get("expr")?.as_array()?;
    let target = expressions.iter().find_map(|expression| expression.get("dnat"))?;
    let matched = |field: &str| {
        expressions.iter().find_map(|expression| {
            let left = expression.pointer("/match/left/payload")?;
            let is_it = left.get("field")?.as_str()? == field;
            is_it.then(|| (left.get("protocol"), expression.pointer("/match/right")))
        })
    };
    let (protocol, number) = matched("dport")?;
    let host_ip = matched("daddr").and_then(|(_, address)| Some(address?.as_str()?.to_owned()));
    Some(Port {
        protocol: protocol?.as_str()?.to_owned(),
        host_ip,
        number: number?.as_u64()?.try_into().ok()?,
        target: format!("{}:{}", target.get("addr")?.as_str()?, target.get("port")?),
        network: String::new(),
        container: rule.get("comment")?.as_str()?.to_owned(),
    })
}

fn word(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reads_the_chains_of_iptables() {
        let text = r#"
-A POSTROUTING -s 10.88.0.2/32 -m comment --comment "name: \"net\" id: \"c1\"" -j CNI-379a
-A CNI-DN-1 -s 10.88.0.0/24 -p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK
-A CNI-DN-1 -d 127.0.0.1/32 -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.88.0.2:80
-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"net\" id: \"c1\"" -m multiport --dports 8080 -j CNI-DN-1
"#;
        let port = Port {
            protocol: "tcp".to_owned(),
            host_ip: Some("127.0.0.1".to_owned()),
            number: 8080,
            target: "10.88.0.2:80".to_owned(),
            network: "net".to_owned(),
            container: "c1".to_owned(),
        };
        assert_eq!(of_iptables(text), [port]);
    }

    #[test]
    fn reads_the_elements_of_nf_tables() {
        let element = json!([
            {"elem": {"val": {"concat": ["udp", 53]}, "comment": "00ff net/c2/eth0"}},
            {"concat": ["10.88.0.3", 5353]},
        ]);
        let document = json!({"nftables": [{"metainfo": {}}, {"map": {"table": "ferrule_portmap", "name": "any4", "elem": [element]}}]});
        let ports = of_nftables(&document);
        assert_eq!(ports.len(), 1);
        assert_eq!((ports[0].number, ports[0].target.as_str()), (53, "10.88.0.3:5353"));
        assert_eq!((ports[0].network.as_str(), ports[0].container.as_str()), ("net", "c2"));
    }

    #[test]
    fn reads_the_rules_of_the_reference_in_nf_tables() {
        let host = json!({"match": {"op": "==", "left": {"payload": {"protocol": "ip", "field": "daddr"}}, "right": "192.0.2.1"}});
        let port =
            json!({"match": {"op": "==", "left": {"payload": {"protocol": "udp", "field": "dport"}}, "right": 8164}});
        let rule = |expressions: Value| json!({"rule": {"table": "cni_hostport", "chain": "hostports", "comment": "c1", "expr": expressions}});
        let document = json!({"nftables": [
            rule(json!([host, port, {"dnat": {"addr": "10.1.0.2", "port": 53}}])),
            rule(json!([host, {"masquerade": null}])),
        ]});
        let ports = of_reference(&document);
        assert_eq!(ports.len(), 1, "{ports:?}");
        let port = &ports[0];
        assert_eq!(
            (port.number, port.protocol.as_str(), port.target.as_str()),
            (8164, "udp", "10.1.0.2:53")
        );
        assert_eq!(
            (port.host_ip.as_deref(), port.container.as_str()),
            (Some("192.0.2.1"), "c1")
        );
    }
}
