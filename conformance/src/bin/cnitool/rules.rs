//! Published ports, as the node's rules have them: those of iptables, whoever wrote them in the reference's layout, and
//! those of ferrule's own table in nf_tables.

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
    /// The network and the container that the rule names.
    pub(super) network: String,
    /// The container's ID. A long one may be cut off.
    pub(super) container: String,
}

/// All published ports of this network namespace. Without a rule system's program, its rules cannot be seen.
pub(super) fn published() -> Vec<Port> {
    let mut ports = Vec::new();
    for program in ["iptables-save", "ip6tables-save"] {
        ports.extend(
            output(program, &["-t", "nat"])
                .iter()
                .flat_map(|text| of_iptables(text)),
        );
    }
    let table = output("nft", &["-j", "list", "table", "inet", "ferrule_portmap"]);
    let table = table.and_then(|text| serde_json::from_str::<Value>(&text).ok());
    ports.extend(table.iter().flat_map(of_nftables));
    ports
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

/// The elements of the maps, whose comments name the owner behind a hash: "82e2… network/container/ifname".
fn of_nftables(document: &Value) -> Vec<Port> {
    let objects = document.get("nftables").and_then(Value::as_array).into_iter().flatten();
    let maps = objects.filter_map(|object| object.get("map"));
    let elements = maps.filter_map(|map| map.get("elem")?.as_array()).flatten();
    elements.filter_map(of_element).collect()
}

fn of_element(pair: &Value) -> Option<Port> {
    let element = pair.get(0)?.get("elem")?;
    let (_, owner) = element.get("comment")?.as_str()?.split_once(' ')?;
    let mut names = owner.split('/');
    let (network, container) = (names.next()?.to_owned(), names.next()?.to_owned());
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
        let document = json!({"nftables": [{"metainfo": {}}, {"map": {"name": "dnat4", "elem": [element]}}]});
        let ports = of_nftables(&document);
        assert_eq!(ports.len(), 1);
        assert_eq!((ports[0].number, ports[0].target.as_str()), (53, "10.88.0.3:5353"));
        assert_eq!((ports[0].network.as_str(), ports[0].container.as_str()), ("net", "c2"));
    }
}
