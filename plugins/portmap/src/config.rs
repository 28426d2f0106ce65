//! What a configuration says, and what it means.

use std::net::IpAddr;

use cni_types::{Cidr, CniResult, Error, NetConf, Result};
use netfilter::portmap::{Mapping, OnConflict, Published};
use netfilter::{Backend, Family};
use schemars::JsonSchema;
use serde::Deserialize;

/// What ADD and CHECK work with.
#[derive(Debug)]
pub struct Config {
    /// The rule system to write.
    pub backend: Backend,
    /// The ports to publish; without mappings, nothing is to be done.
    pub published: Published,
}

/// What DEL works with: host ports, to recognize rules of the reference suite that name only the container.
pub type Cleanup = Vec<(netfilter::Protocol, u16)>;

/// The keys as they are written. What is said of them is what users read.
#[derive(Deserialize, Default, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Keys {
    /// Gives connections that the container could not answer otherwise the node's address as their source: those from the node
    /// itself and from the container. Without it, ports are not published on 127.0.0.1.
    #[schemars(extend("default" = true))]
    snat: Option<bool>,
    /// What holds the rules. Without it: iptables if an option that only iptables has is given; else what /etc/cni/ferrule.json
    /// says; else iptables where it is installed, else nftables.
    #[schemars(extend("enum" = ["iptables", "nftables"]))]
    backend: Option<String>,
    /// The bit of the packet mark that says that a connection is to be masqueraded.
    #[schemars(range(min = 0, max = 31), extend("default" = Published::DEFAULT_MARK_MASQ_BIT))]
    mark_masq_bit: Option<i64>,
    /// Masquerades every connection to a published port.
    masq_all: bool,
    /// A chain of iptables that sets a mark of its own for connections to be masqueraded, such as KUBE-MARK-MASQ. It excludes
    /// markMasqBit and nftables.
    external_set_mark_chain: Option<String>,
    /// What connections to IPv4 addresses must fulfil besides, in the syntax of iptables, word by word, or of nft.
    conditions_v4: Vec<String>,
    /// The same for IPv6.
    conditions_v6: Vec<String>,
    /// What becomes of a host port that another container holds whose network namespace still exists: refuse fails, replace takes
    /// it over. The reference has no such key.
    #[schemars(extend("enum" = ["refuse", "replace"], "default" = "refuse"))]
    on_conflict: Option<String>,
    runtime_config: RuntimeConfig,
}

#[derive(Deserialize, Default, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
struct RuntimeConfig {
    /// The ports to publish. The runtime writes them where capabilities has portMappings.
    port_mappings: Vec<Entry>,
}

#[derive(Deserialize, Default, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
struct Entry {
    /// The port on the node; the first of several.
    #[schemars(range(min = 1, max = 65535))]
    host_port: i64,
    /// The port in the container; the first of several.
    #[schemars(range(min = 1, max = 65535))]
    container_port: i64,
    /// tcp, udp or sctp, in any case.
    #[schemars(regex(pattern = r"^([Tt][Cc][Pp]|[Uu][Dd][Pp]|[Ss][Cc][Tt][Pp])$"))]
    protocol: String,
    /// The node's address to publish on; all if it is missing or empty.
    #[serde(rename = "hostIP")]
    host_ip: String,
    /// The last port on the node. The reference has no such key.
    #[schemars(range(min = 1, max = 65535))]
    host_port_end: Option<i64>,
    /// The last port in the container. The reference has no such key.
    #[schemars(range(min = 1, max = 65535))]
    container_port_end: Option<i64>,
}

/// Reads and checks everything; nothing is written before this has succeeded.
pub(crate) fn read(conf: &NetConf, prev_result: Option<&CniResult>) -> Result<Config> {
    let prev_result = prev_result.ok_or_else(|| Error::config("must be called as chained plugin"))?;
    let keys: Keys = conf.decode()?;
    meaning(keys, prev_result).map_err(|e| e.context("failed to parse config"))
}

fn meaning(keys: Keys, prev_result: &CniResult) -> Result<Config> {
    let backend = backend(&keys)?;
    let mark_masq_bit = match keys.mark_masq_bit {
        None => Published::DEFAULT_MARK_MASQ_BIT,
        Some(_) if keys.external_set_mark_chain.is_some() => {
            return Err(Error::config("Cannot specify externalSetMarkChain and markMasqBit"));
        }
        Some(bit) => u8::try_from(bit)
            .ok()
            .filter(|bit| *bit <= 31)
            .ok_or_else(|| Error::config("MasqMarkBit must be between 0 and 31"))?,
    };
    if let Some(chain) = &keys.external_set_mark_chain {
        check_chain(chain)?;
    }
    let on_conflict = match keys.on_conflict.as_deref() {
        None | Some("refuse") => OnConflict::Refuse,
        Some("replace") => OnConflict::Replace,
        Some(other) => {
            return Err(Error::config(format!(
                "onConflict: {other:?} is neither \"refuse\" nor \"replace\""
            )));
        }
    };
    let published = Published {
        mappings: mappings(&keys.runtime_config.port_mappings)?,
        addresses: container_addresses(prev_result),
        snat: keys.snat.unwrap_or(true),
        masq_all: keys.masq_all,
        mark_masq_bit,
        external_set_mark_chain: keys.external_set_mark_chain,
        conditions_v4: keys.conditions_v4,
        conditions_v6: keys.conditions_v6,
        on_conflict,
        netns: None,
        netns_exists: crate::netns::exists,
    };
    report_unused(&published);
    Ok(Config { backend, published })
}

/// The backend: what the configuration names, else what its options are made for, else the node's.
fn backend(keys: &Keys) -> Result<Backend> {
    let options = |syntax: Backend| -> Vec<&'static str> {
        let of_syntax = |conditions: &[String]| syntax_of(conditions) == Some(syntax);
        let all = [
            (
                "externalSetMarkChain",
                syntax == Backend::Iptables && keys.external_set_mark_chain.is_some(),
            ),
            ("conditionsV4", of_syntax(&keys.conditions_v4)),
            ("conditionsV6", of_syntax(&keys.conditions_v6)),
        ];
        all.into_iter()
            .filter_map(|(option, is_given)| is_given.then_some(option))
            .collect()
    };
    let backend = match &keys.backend {
        Some(name) => name.parse().map_err(|e| Error::config(format!("{e}")))?,
        None if !options(Backend::Iptables).is_empty() => Backend::Iptables,
        None => Backend::of_node()?,
    };
    let (name, other, foreign) = match backend {
        Backend::Iptables => ("iptables", "nftables", options(Backend::Nftables)),
        Backend::Nftables => ("nftables", "iptables", options(Backend::Iptables)),
    };
    match foreign.is_empty() {
        true => Ok(backend),
        false => Err(Error::config(format!(
            "{name} backend was requested but configuration contains {other}-specific options [{}]",
            foreign.join(" ")
        ))),
    }
}

/// Which tool conditions are written for: those of iptables begin with an option or a negation.
fn syntax_of(conditions: &[String]) -> Option<Backend> {
    let first = conditions.first()?.trim_start();
    match first.starts_with(['-', '!']) {
        true => Some(Backend::Iptables),
        false => Some(Backend::Nftables),
    }
}

/// What iptables takes as the name of a chain (`parse_chain` of its xshared.c).
fn check_chain(chain: &str) -> Result<()> {
    const MAX_LEN: usize = 28;
    let bad = chain.starts_with(['-', '!'])
        || chain.contains(|c: char| c.is_whitespace() || c.is_control())
        || chain.is_empty()
        || chain.len() > MAX_LEN;
    match bad {
        true => Err(Error::config(format!(
            "externalSetMarkChain: {chain:?} is no name of a chain"
        ))),
        false => Ok(()),
    }
}

/// The mappings of all entries. An entry that says the same as an earlier one is left out.
fn mappings(entries: &[Entry]) -> Result<Vec<Mapping>> {
    let mut mappings: Vec<(usize, Mapping)> = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        let in_entry = |e: Error| Error {
            msg: format!("{} (runtimeConfig.portMappings[{index}])", e.msg),
            ..e
        };
        let mapping = mapping(entry).map_err(in_entry)?;
        match mappings.iter().find(|(_, earlier)| listen_alike(earlier, &mapping)) {
            None => mappings.push((index, mapping)),
            Some((_, earlier)) if *earlier == mapping => {}
            Some((earlier, _)) => {
                let taken = format!("host port {} is mapped by entry {earlier} already", mapping.host_port);
                return Err(in_entry(Error::config(taken)));
            }
        }
    }
    Ok(mappings.into_iter().map(|(_, mapping)| mapping).collect())
}

fn mapping(entry: &Entry) -> Result<Mapping> {
    let port = |what: &str, number: i64| {
        let port = u16::try_from(number).ok().filter(|port| *port != 0);
        port.ok_or_else(|| Error::config(format!("Invalid {what} port number: {number}")))
    };
    let host_port = port("host", entry.host_port)?;
    let container_port = port("container", entry.container_port)?;
    let host_port_end = entry.host_port_end.map_or(Ok(host_port), |end| port("host", end))?;
    let container_port_end = entry
        .container_port_end
        .map_or(Ok(container_port), |end| port("container", end))?;
    let size = |first: u16, last: u16| last.checked_sub(first);
    match (size(host_port, host_port_end), size(container_port, container_port_end)) {
        (Some(host), Some(container)) if host == container => {}
        (Some(_), Some(_)) => {
            return Err(Error::config(format!(
                "host ports {host_port}-{host_port_end} and container ports {container_port}-{container_port_end} differ in number"
            )));
        }
        _ => return Err(Error::config("a port range ends before it begins")),
    }
    Ok(Mapping {
        protocol: entry
            .protocol
            .parse()
            .map_err(|e| Error::config(format!("protocol: {e}")))?,
        host_ip: host_ip(&entry.host_ip)?,
        host_port,
        host_port_end,
        container_port,
        container_port_end,
    })
}

/// Reads an address as Go does, to which an IPv4-mapped IPv6 address is the IPv4 address.
fn host_ip(text: &str) -> Result<Option<IpAddr>> {
    if text.is_empty() {
        return Ok(None);
    }
    let ip: IpAddr = text
        .parse()
        .map_err(|_| Error::config(format!("hostIP: {text:?} is no IP address")))?;
    Ok(Some(ip.to_canonical()))
}

/// Whether some connection would be for both.
fn listen_alike(one: &Mapping, other: &Mapping) -> bool {
    let apart = one.host_port_end < other.host_port || other.host_port_end < one.host_port;
    let meet = |family: &Family| one.applies_to(*family) && other.applies_to(*family);
    one.protocol == other.protocol && !apart && one.exact_ip() == other.exact_ip() && Family::BOTH.iter().any(meet)
}

/// The container's addresses: those of an interface with a sandbox, and those whose interface is not told.
pub(crate) fn container_addresses(result: &CniResult) -> Vec<Cidr> {
    let is_on_host = |index: Option<usize>| {
        let interface = index.and_then(|index| result.interfaces.get(index));
        interface.is_some_and(|interface| interface.sandbox.is_empty())
    };
    let of_container = result.ips.iter().filter(|ip| !is_on_host(ip.interface));
    of_container.map(|ip| ip.address).collect()
}

/// No error: runtimes ask for 0.0.0.0 and :: whatever addresses the container has.
fn report_unused(published: &Published) {
    let has = |family: &Family| published.address(*family).is_some();
    for mapping in &published.mappings {
        if !Family::BOTH
            .iter()
            .any(|family| has(family) && mapping.applies_to(*family))
        {
            let host_ip = mapping.host_ip.map(|ip| format!(" of {ip}")).unwrap_or_default();
            log::warn!(
                "host port {}/{}{host_ip} is not published: the container has no address of its family",
                mapping.host_port,
                mapping.protocol
            );
        }
    }
}

/// The host ports that can be read; the others are reported and left out.
pub(crate) fn cleanup(conf: &NetConf) -> Cleanup {
    let keys: Keys = conf.decode().unwrap_or_else(|e| {
        log::warn!("{e}; ports of the configuration are left out");
        Keys::default()
    });
    if let Some(Err(e)) = keys.backend.as_deref().map(str::parse::<Backend>) {
        log::warn!("{e}; every backend is searched in any case");
    }
    let mut ports = Cleanup::new();
    for (index, entry) in keys.runtime_config.port_mappings.iter().enumerate() {
        match mapping(entry) {
            Ok(mapping) => {
                ports.extend((mapping.host_port..=mapping.host_port_end).map(|port| (mapping.protocol, port)))
            }
            Err(e) => log::warn!("runtimeConfig.portMappings[{index}]: {e}; left out"),
        }
    }
    ports
}

/// The backend for STATUS, which needs no result.
pub(crate) fn backend_of(conf: &NetConf) -> Result<Backend> {
    backend(&conf.decode()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use netfilter::Protocol;
    use serde_json::{Value, json};

    /// Reads a configuration with `keys` beside what every one has, for a container with one address of each family.
    fn read_keys(keys: Value) -> Result<Config> {
        let mut conf = json!({"cniVersion": "1.0.0", "name": "net1", "type": "portmap", "backend": "iptables", "prevResult": {
            "cniVersion": "1.0.0",
            "interfaces": [{"name": "br0"}, {"name": "eth0", "sandbox": "/run/netns/a"}],
            "ips": [
                {"address": "10.1.0.1/24", "interface": 0},
                {"address": "10.1.0.2/24", "interface": 1},
                {"address": "fd00::2/64"},
            ],
        }});
        for (key, value) in keys.as_object().unwrap() {
            conf[key] = value.clone();
        }
        let conf = NetConf::parse(conf.to_string().as_bytes()).unwrap();
        read(&conf, conf.prev_result().unwrap().as_ref())
    }

    fn read_entries(entries: Value) -> Result<Config> {
        read_keys(json!({"runtimeConfig": {"portMappings": entries}}))
    }

    fn refused(keys: Value) -> String {
        let error = read_keys(keys.clone()).map(drop).unwrap_err();
        assert_eq!(error.code, cni_types::Code::INVALID_CONFIG, "{keys}");
        error.msg
    }

    #[test]
    fn entries_are_read_as_runtimes_send_them() {
        let config = read_entries(json!([
            {"HostPort": 18080, "ContainerPort": 8080, "Protocol": "tcp", "HostIP": ""},
            {"hostPort": 53, "containerPort": 53, "protocol": "UDP", "hostIP": "::ffff:192.0.2.1"},
            {"hostPort": 7000, "hostPortEnd": 7009, "containerPort": 80, "containerPortEnd": 89, "protocol": "sctp"},
        ]))
        .unwrap();
        let [web, dns, range] = &config.published.mappings[..] else {
            panic!("{config:?}")
        };
        assert_eq!(
            (web.protocol, web.host_ip, web.host_port, web.container_port),
            (Protocol::Tcp, None, 18080, 8080)
        );
        assert_eq!(
            (dns.protocol, dns.host_ip),
            (Protocol::Udp, Some("192.0.2.1".parse().unwrap()))
        );
        assert_eq!((range.host_port_end, range.container_port_end), (7009, 89));
        let addresses: Vec<String> = config.published.addresses.iter().map(Cidr::to_string).collect();
        assert_eq!(
            addresses,
            ["10.1.0.2/24", "fd00::2/64"],
            "the host's own address is not the container's"
        );
    }

    #[test]
    fn the_defaults_are_the_references() {
        let config = read_keys(json!({"snat": null, "runtimeConfig": null})).unwrap();
        let published = &config.published;
        assert!(published.snat && !published.masq_all && published.mappings.is_empty());
        assert_eq!(
            (published.mark_masq_bit, published.on_conflict),
            (13, OnConflict::Refuse)
        );
    }

    #[test]
    fn without_a_previous_result_there_is_nothing_to_publish_for() {
        let conf = NetConf::parse(br#"{"cniVersion":"1.0.0","name":"n","type":"portmap"}"#).unwrap();
        assert_eq!(read(&conf, None).unwrap_err().msg, "must be called as chained plugin");
    }

    #[test]
    fn bad_entries_are_refused_by_index() {
        let good = json!({"hostPort": 1, "containerPort": 1, "protocol": "tcp"});
        for (key, value, message) in [
            ("hostPort", json!(0), "Invalid host port number: 0"),
            ("hostPort", json!(70000), "Invalid host port number: 70000"),
            ("hostPort", json!(-1), "Invalid host port number: -1"),
            ("containerPort", json!(0), "Invalid container port number: 0"),
            ("containerPort", json!(65536), "Invalid container port number: 65536"),
            (
                "protocol",
                json!(""),
                "protocol: \"\" is not a protocol: tcp, udp or sctp",
            ),
            (
                "protocol",
                json!("icmp"),
                "protocol: \"icmp\" is not a protocol: tcp, udp or sctp",
            ),
            ("hostIP", json!("foo"), "hostIP: \"foo\" is no IP address"),
            (
                "hostIP",
                json!("10.0.0.1/24"),
                "hostIP: \"10.0.0.1/24\" is no IP address",
            ),
            ("hostPortEnd", json!(70000), "Invalid host port number: 70000"),
            ("containerPortEnd", json!(0), "Invalid container port number: 0"),
            (
                "hostPortEnd",
                json!(3),
                "host ports 2-3 and container ports 2-2 differ in number",
            ),
            ("hostPortEnd", json!(1), "a port range ends before it begins"),
        ] {
            let mut bad = json!({"hostPort": 2, "containerPort": 2, "protocol": "tcp"});
            bad[key] = value;
            let keys = json!({"runtimeConfig": {"portMappings": [good, bad]}});
            let expected = format!("failed to parse config: {message} (runtimeConfig.portMappings[1])");
            assert_eq!(refused(keys), expected);
        }
    }

    #[test]
    fn wrong_types_are_refused_by_path() {
        let message = refused(json!({"runtimeConfig": {"portMappings": [{"hostPort": "80"}]}}));
        assert!(message.contains("portMappings"), "{message}");
        refused(json!({"snat": "yes"}));
    }

    #[test]
    fn one_port_leads_to_one_place() {
        let entry = |container_port: u16, host_ip: &str| json!({"hostPort": 80, "containerPort": container_port, "protocol": "tcp", "hostIP": host_ip});
        let twice = read_entries(json!([entry(80, ""), entry(80, "")])).unwrap();
        assert_eq!(twice.published.mappings.len(), 1);
        for apart in [("0.0.0.0", "::"), ("", "192.0.2.1"), ("192.0.2.2", "192.0.2.1")] {
            let both = read_entries(json!([entry(80, apart.0), entry(81, apart.1)])).unwrap();
            assert_eq!(both.published.mappings.len(), 2, "{apart:?}");
        }
        for together in [("", ""), ("", "0.0.0.0"), ("192.0.2.1", "192.0.2.1")] {
            let error = read_entries(json!([entry(80, together.0), entry(81, together.1)])).unwrap_err();
            assert!(
                error.msg.contains("host port 80 is mapped by entry 0 already"),
                "{error}"
            );
        }
    }

    #[test]
    fn contradictions_are_refused() {
        for (keys, message) in [
            (json!({"backend": "foo"}), "unrecognized backend \"foo\""),
            (json!({"backend": ""}), "unrecognized backend \"\""),
            (json!({"markMasqBit": 32}), "MasqMarkBit must be between 0 and 31"),
            (json!({"markMasqBit": -1}), "MasqMarkBit must be between 0 and 31"),
            (
                json!({"markMasqBit": 4, "externalSetMarkChain": "KUBE-MARK-MASQ"}),
                "Cannot specify externalSetMarkChain and markMasqBit",
            ),
            (
                json!({"conditionsV4": ["ip saddr 192.0.2.1"]}),
                "iptables backend was requested but configuration contains nftables-specific options [conditionsV4]",
            ),
            (
                json!({"backend": "nftables", "externalSetMarkChain": "X", "conditionsV4": ["-d", "192.0.2.1"],
                    "conditionsV6": ["!", "-d", "fc00::/7"]}),
                "nftables backend was requested but configuration contains iptables-specific options \
                 [externalSetMarkChain conditionsV4 conditionsV6]",
            ),
            (
                json!({"onConflict": "x"}),
                "onConflict: \"x\" is neither \"refuse\" nor \"replace\"",
            ),
            (
                json!({"externalSetMarkChain": ""}),
                "externalSetMarkChain: \"\" is no name of a chain",
            ),
            (
                json!({"externalSetMarkChain": "-j"}),
                "externalSetMarkChain: \"-j\" is no name of a chain",
            ),
            (
                json!({"externalSetMarkChain": "a b"}),
                "externalSetMarkChain: \"a b\" is no name of a chain",
            ),
        ] {
            assert_eq!(refused(keys), format!("failed to parse config: {message}"));
        }
    }

    #[test]
    fn options_for_one_tool_choose_it() {
        let config = read_keys(json!({"backend": null, "conditionsV6": ["!", "-d", "fc00::/7"]})).unwrap();
        assert_eq!(config.backend, Backend::Iptables);
    }

    #[test]
    fn cleanup_leaves_out_what_it_cannot_use() {
        let cleanup_of = |keys: Value| {
            let mut conf = json!({"cniVersion": "1.0.0", "name": "n", "type": "portmap"});
            for (key, value) in keys.as_object().unwrap() {
                conf[key] = value.clone();
            }
            cleanup(&NetConf::parse(conf.to_string().as_bytes()).unwrap())
        };
        let entries = json!({"backend": "foo", "runtimeConfig": {"portMappings": [
            {"hostPort": 0, "containerPort": 1, "protocol": "tcp"},
            {"hostPort": 8, "hostPortEnd": 9, "containerPort": 1, "containerPortEnd": 2, "protocol": "tcp"},
        ]}});
        assert_eq!(cleanup_of(entries), [(Protocol::Tcp, 8), (Protocol::Tcp, 9)]);
        assert_eq!(cleanup_of(json!({"runtimeConfig": {"portMappings": 7}})), []);
    }
}
