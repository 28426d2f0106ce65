//! Networks as projects publish them, and their plugins called one after the other, as a runtime does.

use serde_json::{Value, json};

use super::{Done, Stop, with};
use crate::call::Call;

/// A chain of plugins under one name.
pub(super) struct Network {
    /// The name of the network.
    pub(super) name: &'static str,
    /// The version of the specification that the publisher chose.
    pub(super) version: &'static str,
    /// The configurations, in the order of ADD, without what a runtime puts in.
    pub(super) plugins: Vec<Value>,
}

/// What is changed in each call, such as the directory of its plugin.
pub(super) type Change = dyn Fn(Call) -> Call + Sync;

/// TCP and UDP port 8080 of the node for port 80 of the container.
pub(super) fn two_ports(port: u16) -> Value {
    json!([
        { "hostPort": port, "containerPort": 80, "protocol": "tcp" },
        { "hostPort": port, "containerPort": 80, "protocol": "udp" },
    ])
}

/// The bridge network of Nomad's clients.
pub(super) fn nomad() -> Network {
    let bridge = json!({
        "type": "bridge", "bridge": "nomad", "ipMasq": true, "isGateway": true, "forceAddress": true, "hairpinMode": false,
        "ipam": { "type": "host-local", "ranges": [[{ "subnet": "172.26.64.0/20" }]], "routes": [{ "dst": "0.0.0.0/0" }] },
    });
    Network {
        name: "nomad",
        version: "0.4.0",
        plugins: vec![
            json!({ "type": "loopback" }),
            bridge,
            json!({ "type": "firewall", "backend": "iptables", "iptablesAdminChainName": "NOMAD-ADMIN" }),
            portmap(json!({ "snat": true })),
        ],
    }
}

/// What containerd's install-cni writes.
pub(super) fn containerd() -> Network {
    let ranges = json!([[{ "subnet": "10.88.0.0/16" }], [{ "subnet": "2001:db8:4860::/64" }]]);
    let bridge = json!({
        "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "promiscMode": true,
        "ipam": { "type": "host-local", "ranges": ranges, "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }] },
    });
    Network {
        name: "containerd-net",
        version: "0.4.0",
        plugins: vec![bridge, portmap(json!({}))],
    }
}

/// The default network of nerdctl.
pub(super) fn nerdctl() -> Network {
    let ranges = json!([[{ "subnet": "10.4.0.0/24", "gateway": "10.4.0.1" }]]);
    let bridge = json!({
        "type": "bridge", "bridge": "nerdctl0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
        "ipam": { "type": "host-local", "ranges": ranges, "routes": [{ "dst": "0.0.0.0/0" }] },
    });
    Network {
        name: "bridge",
        version: "1.0.0",
        plugins: vec![
            bridge,
            portmap(json!({})),
            json!({ "type": "firewall", "ingressPolicy": "same-bridge" }),
            json!({ "type": "tuning" }),
        ],
    }
}

/// The network of Firecracker's examples, without the plugin that is theirs.
pub(super) fn firecracker() -> Network {
    let ipam = json!({ "type": "host-local", "subnet": "192.168.127.0/24", "resolvConf": "/etc/resolv.conf" });
    Network {
        name: "fcnet",
        version: "1.0.0",
        plugins: vec![
            json!({ "type": "ptp", "ipMasq": true, "ipam": ipam }),
            json!({ "type": "firewall" }),
        ],
    }
}

fn portmap(keys: Value) -> Value {
    with(
        &json!({ "type": "portmap", "capabilities": { "portMappings": true } }),
        keys,
    )
}

impl Network {
    /// Attaches a container, whose namespace exists, and returns the result of the chain.
    pub(super) fn add(&self, id: &str, ports: &Value, change: &Change) -> Result<Value, Stop> {
        let mut result = Value::Null;
        for plugin in &self.plugins {
            result = change(self.call("ADD", plugin, id, ports, &result)).run()?.result()?;
        }
        Ok(result)
    }

    /// Checks an attachment.
    pub(super) fn check(&self, id: &str, ports: &Value, result: &Value, change: &Change) -> Done {
        let mut plugins = self.plugins.iter();
        plugins.try_for_each(|plugin| change(self.call("CHECK", plugin, id, ports, result)).run()?.silent())
    }

    /// Detaches a container. It may have no result, if its ADD was not finished.
    pub(super) fn del(&self, id: &str, ports: &Value, result: &Value, change: &Change) -> Done {
        let mut plugins = self.plugins.iter().rev();
        plugins.try_for_each(|plugin| change(self.call("DEL", plugin, id, ports, result)).run()?.silent())
    }

    fn call(&self, verb: &str, plugin: &Value, id: &str, ports: &Value, result: &Value) -> Call {
        let mut conf = with(plugin, json!({ "name": self.name, "cniVersion": self.version }));
        if conf.get("capabilities").is_some() && !ports.is_null() {
            conf["runtimeConfig"] = json!({ "portMappings": ports });
        }
        if !result.is_null() {
            conf["prevResult"] = result.clone();
        }
        let name = plugin["type"].as_str().unwrap_or_default();
        Call::new(name, verb).container(id).conf(&conf)
    }
}
