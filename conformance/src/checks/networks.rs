//! Networks as they are published, run from the first plugin to the last and back, as a runtime does.

use std::path::PathBuf;

use serde_json::{Map, Value, json};

use super::{Bench, Check, Done, Plugins, Source, Stop, ensure, same};
use crate::cache::Cache;
use crate::chain::{ChainError, Container, Runtime};
use crate::conf::NetworkConf;
use crate::feature::Feature;
use crate::host::{FILES, PLUGINS};
use crate::state::State;

const fn check(id: &'static str, source: &'static str, rule: &'static str, run: fn(&Bench) -> Done) -> Check {
    Check {
        id,
        source: Source::Practice(source),
        rule,
        plugins: Plugins::Named(&["bridge", "host-local", "portmap"]),
        needs: &[Feature::Traffic, Feature::Iptables, Feature::Ipv6],
        run,
    }
}

pub(super) const CHECKS: &[Check] = &[
    check(
        "networks/nomad",
        "the network of Nomad's bridge mode",
        "ADD, CHECK and DEL of the chain succeed, the published port is reached, and nothing is left",
        |bench| {
            let bridge = json!({
                "type": "bridge", "bridge": "nomad", "ipMasq": true, "isGateway": true, "forceAddress": true,
                "ipam": { "type": "host-local", "ranges": [[{ "subnet": "172.26.64.0/20" }]], "routes": [{ "dst": "0.0.0.0/0" }] },
            });
            runs(bench, "0.4.0", &bridge, "172.26.64.3")
        },
    ),
    check(
        "networks/containerd",
        "the network that containerd's install-cni writes",
        "ADD, CHECK and DEL of the chain succeed, the published port is reached, and nothing is left",
        |bench| {
            let ranges = json!([[{ "subnet": "10.88.0.0/16" }], [{ "subnet": "2001:db8:4860::/64" }]]);
            let bridge = json!({
                "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "promiscMode": true,
                "ipam": { "type": "host-local", "ranges": ranges, "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }] },
            });
            runs(bench, "1.0.0", &bridge, "10.88.0.3")
        },
    ),
    check(
        "networks/cri-o",
        "the network that CRI-O brings, of a version without CHECK",
        "ADD and DEL of the chain succeed, the published port is reached, and nothing is left",
        |bench| {
            let bridge = json!({
                "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
                "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.85.0.0/16" }]], "routes": [{ "dst": "0.0.0.0/0" }] },
            });
            runs(bench, "0.3.1", &bridge, "10.85.0.3")
        },
    ),
    check(
        "networks/two-with-default-routes",
        "podman network connect: a container on two networks, each with a default route",
        "a second network whose default route is there already can be joined and left",
        two_default_routes,
    ),
];

fn told(e: impl std::fmt::Display) -> Stop {
    Stop::Fail(e.to_string())
}

fn runtime() -> Runtime {
    Runtime {
        plugin_path: vec![PathBuf::from(PLUGINS)],
        cache: Cache::new(format!("{FILES}/results")),
        watcher: None,
    }
}

fn container(id: &str, ifname: &str, port: u16) -> Result<Container, Stop> {
    let mapping = json!([{ "hostPort": port, "containerPort": 80, "protocol": "tcp" }]);
    Ok(Container {
        id: id.parse().map_err(told)?,
        netns: format!("/run/netns/{id}"),
        ifname: ifname.parse().map_err(told)?,
        args: "IgnoreUnknown=1;K8S_POD_NAME=web".to_owned(),
        capability_args: Map::from_iter([("portMappings".to_owned(), mapping)]),
    })
}

fn network(name: &str, version: &str, bridge: &Value) -> Result<NetworkConf, Stop> {
    let portmap = json!({ "type": "portmap", "capabilities": { "portMappings": true }, "snat": true });
    let text = json!({ "cniVersion": version, "name": name, "plugins": [bridge, portmap] }).to_string();
    NetworkConf::parse(text.as_bytes()).map_err(told)
}

/// Attaches a neighbour and then a second container, which is asked from the host, and then goes without a trace.
fn runs(bench: &Bench, version: &str, bridge: &Value, address: &str) -> Done {
    let (runtime, network) = (runtime(), network("net", version, bridge)?);
    bench.host.netns("c1")?;
    bench.host.netns("c2")?;
    let chain = |e: ChainError| told(e);
    runtime.add(&network, &container("c1", "eth0", 8001)?).map_err(chain)?;
    let before = State::read(bench.host)?;

    let second = container("c2", "eth0", 8002)?;
    let result = runtime.add(&network, &second).map_err(chain)?;
    let given = result["ips"][0]["address"].as_str().unwrap_or_default();
    ensure(given.starts_with(&format!("{address}/")), || {
        format!("expected {address}, got {result}")
    })?;
    if version != "0.3.1" {
        runtime.check(&network, &second).map_err(chain)?;
    }
    let server = bench.host.serve("c2", "TCP", 80)?;
    let answer = bench.host.ask(None, "TCP:127.0.0.1:8002")?;
    drop(server);
    ensure(!answer.is_empty(), || "nobody answers on the published port".to_owned())?;

    runtime.del(&network, &second).map_err(chain)?;
    let changes = State::read(bench.host)?.changes(&before);
    ensure(changes.is_empty(), || format!("left behind: {changes}"))?;
    runtime.del(&network, &second).map_err(chain)
}

fn two_default_routes(bench: &Bench) -> Done {
    let bridge = |n: u8| {
        json!({
            "type": "bridge", "bridge": format!("br{n}"), "isGateway": true, "ipMasq": true,
            "ipam": { "type": "host-local", "subnet": format!("10.{n}.0.0/24"), "routes": [{ "dst": "0.0.0.0/0" }] },
        })
    };
    let runtime = runtime();
    let (first, second) = (
        network("net1", "0.4.0", &bridge(1))?,
        network("net2", "0.4.0", &bridge(2))?,
    );
    bench.host.netns("c1")?;
    runtime.add(&first, &container("c1", "eth0", 8001)?).map_err(told)?;
    runtime.add(&second, &container("c1", "eth1", 8001)?).map_err(told)?;
    runtime.del(&second, &container("c1", "eth1", 8001)?).map_err(told)?;
    let routes = bench.host.sh_in("c1", "ip -4 route show default | wc -l")?;
    same("default routes that are left", &routes.as_str(), &"1")
}
