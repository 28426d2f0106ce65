//! What a configuration says, and what it means.

use std::net::IpAddr;

use cni_types::{CniResult, Error, IfName, NetConf, Result};
use netfilter::Backend;
use netfilter::firewall::{Ingress, Policy, is_chain_name};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::daemon;

/// Who keeps the list of accepted addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keeper {
    /// Rules of ours.
    Rules,
    /// firewalld, which writes rules of its own for the sources of a zone.
    Firewalld,
}

/// What ADD and CHECK work with.
#[derive(Debug)]
pub struct Config {
    /// Who accepts the addresses.
    pub keeper: Keeper,
    /// The rule system that holds our rules: all of them, or with firewalld those of isolation.
    pub backend: Backend,
    /// The rules.
    pub policy: Policy,
    /// firewalld's zone.
    pub zone: String,
}

/// What DEL works with: the zone, if firewalld may hold what nobody has recorded.
pub type Cleanup = Option<String>;

/// firewalld's zone of a configuration that names none.
const DEFAULT_ZONE: &str = "trusted";

/// The keys as they are written. What is said of them is what users read.
#[derive(Deserialize, Default, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Keys {
    /// Who accepts the container's traffic. Without it: firewalld if its name on the system bus has an owner; else what
    /// /etc/cni/ferrule.json says; else iptables where it is installed, else nftables.
    #[schemars(extend("enum" = ["", "iptables", "nftables", "firewalld"]))]
    backend: String,
    /// The administrator's chain, which iptables looks at before anything is accepted. With nftables it is the chain admin of the
    /// table inet ferrule_firewall.
    #[schemars(extend("default" = Policy::DEFAULT_ADMIN_CHAIN))]
    iptables_admin_chain_name: String,
    /// The zone of firewalld that gets the container's addresses as sources.
    #[schemars(extend("default" = DEFAULT_ZONE))]
    firewalld_zone: String,
    /// Who may open connections to the container. With open everybody; with same-bridge, nobody on another bridge with such a
    /// policy; with isolated, nobody on the same bridge either.
    #[schemars(extend("enum" = ["", "open", "same-bridge", "isolated"], "default" = "open"))]
    ingress_policy: String,
}

impl Keys {
    fn zone(&self) -> String {
        match self.firewalld_zone.as_str() {
            "" => DEFAULT_ZONE.to_owned(),
            zone => zone.to_owned(),
        }
    }
}

/// Reads and checks everything; nothing is written before this has succeeded.
pub(crate) fn read(conf: &NetConf, prev_result: Option<&CniResult>) -> Result<Config> {
    let keys: Keys = conf.decode()?;
    let prev_result = prev_result.ok_or_else(|| Error::config("missing prevResult from earlier plugin"))?;
    let ingress = ingress(&keys, prev_result)?;
    let admin_chain = admin_chain(&keys)?;
    let (keeper, backend) = backend(&keys)?;
    if backend == Backend::Nftables && !keys.iptables_admin_chain_name.is_empty() {
        log::warn!(
            "iptablesAdminChainName is of no use with nftables: the chain is admin in table inet ferrule_firewall"
        );
    }
    Ok(Config {
        keeper,
        backend,
        policy: Policy {
            addresses: addresses(prev_result),
            accepts: keeper == Keeper::Rules,
            ingress,
            admin_chain,
        },
        zone: keys.zone(),
    })
}

/// Who keeps the list: whom the configuration names, else firewalld where it runs, else the node's rule system.
fn backend(keys: &Keys) -> Result<(Keeper, Backend)> {
    match keys.backend.as_str() {
        "" if daemon::is_running() => Ok((Keeper::Firewalld, Backend::of_node()?)),
        "" => Ok((Keeper::Rules, Backend::of_node()?)),
        "firewalld" => Ok((Keeper::Firewalld, Backend::of_node()?)),
        name => {
            let backend = name.parse().map_err(|e| Error::config(format!("{e}")))?;
            Ok((Keeper::Rules, backend))
        }
    }
}

/// The backend for STATUS, which needs no result.
pub(crate) fn backend_of(conf: &NetConf) -> Result<(Keeper, Backend)> {
    backend(&conf.decode()?)
}

fn admin_chain(keys: &Keys) -> Result<String> {
    match keys.iptables_admin_chain_name.as_str() {
        "" => Ok(Policy::DEFAULT_ADMIN_CHAIN.to_owned()),
        chain if is_chain_name(chain) => Ok(chain.to_owned()),
        chain => Err(Error::config(format!(
            "iptablesAdminChainName: {chain:?} is no name of a chain"
        ))),
    }
}

fn ingress(keys: &Keys, result: &CniResult) -> Result<Ingress> {
    match keys.ingress_policy.as_str() {
        "" | "open" => Ok(Ingress::Open),
        "same-bridge" => Ok(Ingress::SameBridge(bridge(result)?)),
        "isolated" => Ok(Ingress::Isolated(bridge(result)?)),
        other => Err(Error::config(format!("unknown ingress policy: {other:?}"))),
    }
}

/// The bridge comes first in the results of the bridge plugin, and of every other that makes one.
fn bridge(result: &CniResult) -> Result<IfName> {
    let on_host = result.interfaces.iter().find(|interface| interface.sandbox.is_empty());
    let bridge = on_host.ok_or_else(|| Error::config("ingressPolicy: prevResult names no interface on the host"))?;
    let parsed = bridge.name.parse();
    parsed.map_err(|e| Error::config(format!("ingressPolicy: prevResult's interface: {e}")))
}

/// As in the reference: those of all interfaces.
pub(crate) fn addresses(result: &CniResult) -> Vec<IpAddr> {
    result.ips.iter().map(|ip| ip.address.address()).collect()
}

pub(crate) fn cleanup(conf: &NetConf) -> Cleanup {
    let keys: Keys = conf.decode().unwrap_or_else(|e| {
        log::warn!("{e}; every backend is searched in any case");
        Keys::default()
    });
    matches!(keys.backend.as_str(), "" | "firewalld").then(|| keys.zone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// Reads a configuration with `keys` beside what every one has.
    fn read_keys(keys: Value) -> Result<Config> {
        let mut conf = json!({"cniVersion": "1.0.0", "name": "net1", "type": "firewall", "backend": "nftables",
        "prevResult": {
            "cniVersion": "1.0.0",
            "interfaces": [{"name": "br0"}, {"name": "veth0"}, {"name": "eth0", "sandbox": "/run/netns/a"}],
            "ips": [
                {"address": "10.1.0.2/24", "interface": 2},
                {"address": "fd00::2/64"},
                {"address": "10.1.0.1/24", "interface": 0},
            ],
        }});
        for (key, value) in keys.as_object().unwrap() {
            conf[key] = value.clone();
        }
        let conf = NetConf::parse(conf.to_string().as_bytes()).unwrap();
        let prev_result = conf.prev_result().unwrap();
        read(&conf, prev_result.as_ref())
    }

    fn refusal(keys: Value) -> String {
        let error = read_keys(keys).unwrap_err();
        assert_eq!(error.code, cni_types::Code::INVALID_CONFIG, "{error}");
        error.msg
    }

    #[test]
    fn the_defaults_are_the_references() {
        let config = read_keys(json!({})).unwrap();
        assert_eq!((config.keeper, config.zone.as_str()), (Keeper::Rules, "trusted"));
        assert_eq!(config.policy.ingress, Ingress::Open);
        assert_eq!(config.policy.admin_chain, "CNI-ADMIN");
        let texts: Vec<String> = config.policy.addresses.iter().map(IpAddr::to_string).collect();
        assert_eq!(texts, ["10.1.0.2", "fd00::2", "10.1.0.1"]);
    }

    #[test]
    fn every_option_is_read() {
        let keys = json!({"backend": "firewalld", "firewalldZone": "home", "iptablesAdminChainName": "NOMAD-ADMIN"});
        let config = read_keys(keys).unwrap();
        assert_eq!((config.keeper, config.zone.as_str()), (Keeper::Firewalld, "home"));
        assert!(!config.policy.accepts);
        assert_eq!(config.policy.admin_chain, "NOMAD-ADMIN");
        let config = read_keys(json!({"backend": "iptables", "ingressPolicy": "same-bridge"})).unwrap();
        assert_eq!(config.backend, Backend::Iptables);
        assert_eq!(config.policy.ingress, Ingress::SameBridge("br0".parse().unwrap()));
        let config = read_keys(json!({"ingressPolicy": "isolated"})).unwrap();
        assert_eq!(config.policy.ingress, Ingress::Isolated("br0".parse().unwrap()));
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for backend in ["ip6tables", "Iptables", "none"] {
            let expected = format!("unrecognized backend \"{backend}\"");
            assert_eq!(refusal(json!({"backend": backend})), expected);
        }
        assert_eq!(
            refusal(json!({"ingressPolicy": "bogus"})),
            "unknown ingress policy: \"bogus\""
        );
        for chain in ["-A", "two words", "!x", &"x".repeat(29)] {
            let message = refusal(json!({"iptablesAdminChainName": chain}));
            assert!(message.starts_with("iptablesAdminChainName: "), "{message}");
        }
        let no_bridge = json!({"cniVersion": "1.0.0", "interfaces": [{"name": "eth0", "sandbox": "/x"}], "ips": []});
        let message = refusal(json!({"ingressPolicy": "isolated", "prevResult": no_bridge}));
        assert!(message.contains("no interface on the host"), "{message}");
        assert_eq!(
            refusal(json!({"prevResult": null})),
            "missing prevResult from earlier plugin"
        );
    }

    #[test]
    fn del_refuses_nothing() {
        let of = |keys: &str| {
            let text = format!(r#"{{"cniVersion": "1.0.0", "name": "net1", "type": "firewall"{keys}}}"#);
            cleanup(&NetConf::parse(text.as_bytes()).unwrap())
        };
        assert_eq!(of("").as_deref(), Some("trusted"));
        assert_eq!(of(r#", "firewalldZone": "home""#).as_deref(), Some("home"));
        assert_eq!(of(r#", "backend": "bogus", "ingressPolicy": "bogus""#), None);
        assert_eq!(of(r#", "backend": 5"#).as_deref(), Some("trusted"));
    }
}
