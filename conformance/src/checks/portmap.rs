//! portmap: what it accepts, keeps apart, and removes.

use serde_json::{Value, json};

use super::{Bench, Check, Done, Plugins, Source, ensure, same, with};
use crate::feature::Feature;
use crate::state::State;

const fn check(
    needs: &'static [Feature],
    id: &'static str,
    source: Source,
    rule: &'static str,
    run: fn(&Bench) -> Done,
) -> Check {
    Check {
        id,
        source,
        rule,
        plugins: Plugins::Named(&["portmap"]),
        needs,
        run,
    }
}

const IPTABLES: &[Feature] = &[Feature::Iptables];
const NFT: &[Feature] = &[Feature::Nft];
const PORT_MAPPINGS: Source = Source::Conventions("Dynamic Plugin specific fields: portMappings");

pub(super) const CHECKS: &[Check] = &[
    check(
        &[],
        "portmap/nothing-to-do",
        PORT_MAPPINGS,
        "without portMappings the result is passed on and there is no rule",
        |bench| {
            bench.host.netns("c1")?;
            let before = State::read(bench.host)?;
            let conf = conf("c1", json!([]), json!({}));
            let result = bench.call("ADD", "c1", &conf)?.result()?;
            same("ips", &result["ips"], &conf["prevResult"]["ips"])?;
            let changes = State::read(bench.host)?.changes(&before);
            ensure(changes.is_empty(), || format!("ADD changed the host: {changes}"))
        },
    ),
    check(
        &[],
        "portmap/refuses-host-port-0",
        PORT_MAPPINGS,
        "hostPort 0 is refused, before there is a rule",
        |bench| {
            refused(
                bench,
                json!({ "hostPort": 0, "containerPort": 80, "protocol": "tcp" }),
                json!({}),
            )
        },
    ),
    check(
        &[],
        "portmap/refuses-large-port",
        PORT_MAPPINGS,
        "a port above 65535 is refused, before there is a rule",
        |bench| {
            refused(
                bench,
                json!({ "hostPort": 70000, "containerPort": 80, "protocol": "tcp" }),
                json!({}),
            )
        },
    ),
    check(
        &[],
        "portmap/refuses-unknown-protocol",
        PORT_MAPPINGS,
        "a protocol that is none is refused, before there is a rule",
        |bench| {
            refused(
                bench,
                json!({ "hostPort": 8080, "containerPort": 80, "protocol": "xyz" }),
                json!({}),
            )
        },
    ),
    check(
        &[],
        "portmap/refuses-wrong-host-ip",
        PORT_MAPPINGS,
        "a hostIP that is no address is refused, before there is a rule",
        |bench| {
            refused(
                bench,
                json!({ "hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": "foo" }),
                json!({}),
            )
        },
    ),
    check(
        &[],
        "portmap/refuses-unknown-backend",
        Source::Documentation("portmap, backend"),
        "an unknown backend is refused",
        |bench| refused(bench, web(8080), json!({ "backend": "foo" })),
    ),
    check(
        NFT,
        "portmap/upper-case-protocol",
        Source::Practice("runtimes write the protocol as their users do"),
        "the protocol TCP is tcp, with nftables too",
        |bench| {
            let mapping = json!([{ "hostPort": 8080, "containerPort": 80, "protocol": "TCP" }]);
            bench.host.netns("c1")?;
            bench.attach_with("c1", conf("c1", mapping, json!({ "backend": "nftables" })))?;
            Ok(())
        },
    ),
    check(
        IPTABLES,
        "portmap/capitalised-keys",
        Source::Practice("containerd writes HostPort, ContainerPort, Protocol and HostIP"),
        "keys are read whatever their case",
        |bench| {
            let mapping = json!([{ "HostPort": 8080, "ContainerPort": 80, "Protocol": "tcp", "HostIP": "" }]);
            bench.host.netns("c1")?;
            bench.attach_with("c1", conf("c1", mapping, json!({ "backend": "iptables" })))?;
            let rules = bench.host.sh("iptables-save -t nat")?;
            ensure(rules.contains("--to-destination 10.1.0.2:80"), || rules)
        },
    ),
    check(
        IPTABLES,
        "portmap/twenty-ports",
        Source::Documentation("portmap"),
        "20 ports are published, and DEL without prevResult removes all",
        twenty_ports,
    ),
    check(
        IPTABLES,
        "portmap/two-networks-iptables",
        Source::Practice("podman network connect"),
        "one container on two networks: DEL of one leaves the other's ports",
        |bench| two_networks(bench, "iptables"),
    ),
    check(
        NFT,
        "portmap/two-networks-nftables",
        Source::Practice("podman network connect"),
        "one container on two networks: DEL of one leaves the other's ports",
        |bench| two_networks(bench, "nftables"),
    ),
    check(
        IPTABLES,
        "portmap/two-interfaces-iptables",
        Source::Spec("section 2, Parameters: an attachment is a container and an interface"),
        "one network on two interfaces: DEL of one leaves the other's ports",
        |bench| two_interfaces(bench, "iptables"),
    ),
    check(
        NFT,
        "portmap/two-interfaces-nftables",
        Source::Spec("section 2, Parameters: an attachment is a container and an interface"),
        "one network on two interfaces: DEL of one leaves the other's ports",
        |bench| two_interfaces(bench, "nftables"),
    ),
    check(
        &[Feature::Iptables, Feature::Nft],
        "portmap/del-with-another-backend",
        Source::Practice("a configuration is changed while containers run"),
        "DEL removes the rules whatever backend the configuration names by now",
        |bench| {
            removes(bench, json!({ "backend": "iptables" }), |conf| {
                conf["backend"] = json!("nftables")
            })
        },
    ),
    check(
        IPTABLES,
        "portmap/del-without-mappings",
        Source::Spec("section 2, DEL"),
        "DEL removes the rules without runtimeConfig",
        |bench| {
            removes(bench, json!({ "backend": "iptables" }), |conf| {
                if let Some(conf) = conf.as_object_mut() {
                    conf.remove("runtimeConfig");
                }
            })
        },
    ),
    check(
        IPTABLES,
        "portmap/check-finds-lost-rules-iptables",
        Source::Spec("section 2, CHECK"),
        "CHECK fails when the rules are gone",
        |bench| check_finds(bench, "iptables", "iptables -t nat -F"),
    ),
    check(
        NFT,
        "portmap/check-finds-lost-rules-nftables",
        Source::Spec("section 2, CHECK"),
        "CHECK fails when the rules are gone",
        |bench| check_finds(bench, "nftables", "nft flush ruleset"),
    ),
    check(
        NFT,
        "portmap/check-compares-nftables",
        Source::Spec("section 2, CHECK"),
        "CHECK fails when the rules lead elsewhere than the result says",
        |bench| {
            bench.host.netns("c1")?;
            let attached = bench.attach_with("c1", conf("c1", web(8080), json!({ "backend": "nftables" })))?;
            bench.check(&attached)?.silent()?;
            let mut other = attached.with_result();
            other["prevResult"]["ips"][0]["address"] = json!("10.1.0.99/24");
            bench.call("CHECK", "c1", &other)?.error()?;
            Ok(())
        },
    ),
    check(
        IPTABLES,
        "portmap/foreign-result",
        Source::Practice("amazon-vpc-cni-k8s: portmap after a plugin of another author"),
        "a prevResult without interface indexes and with a /32 is passed on and published",
        foreign_result,
    ),
];

/// Mappings of one TCP port to port 80.
pub(super) fn web(port: u16) -> Value {
    json!([{ "hostPort": port, "containerPort": 80, "protocol": "tcp" }])
}

/// A configuration after a plugin that gave the container an address; the containers are numbered from c1 at 10.1.0.2.
pub(super) fn conf(id: &str, mappings: Value, keys: Value) -> Value {
    let n = super::specimen::number(id).saturating_sub(10);
    let prev = json!({
        "cniVersion": "1.0.0",
        "interfaces": [{ "name": "br1" }, { "name": "veth1" }, { "name": "eth0", "sandbox": format!("/run/netns/{id}") }],
        "ips": [{ "address": format!("10.1.0.{}/24", n.saturating_add(1)), "gateway": "10.1.0.1", "interface": 2 }],
        "routes": [{ "dst": "0.0.0.0/0" }],
    });
    let conf = json!({
        "cniVersion": "1.0.0", "name": "net", "type": "portmap", "capabilities": { "portMappings": true },
        "runtimeConfig": { "portMappings": mappings }, "prevResult": prev,
    });
    with(&conf, keys)
}

/// Expects a configuration to be refused without a trace.
fn refused(bench: &Bench, mapping: Value, keys: Value) -> Done {
    bench.host.netns("c1")?;
    let before = State::read(bench.host)?;
    let mappings = if mapping.is_array() { mapping } else { json!([mapping]) };
    bench.call("ADD", "c1", &conf("c1", mappings, keys))?.error()?;
    let changes = State::read(bench.host)?.changes(&before);
    ensure(changes.is_empty(), || format!("the refused ADD left: {changes}"))
}

fn rules(bench: &Bench) -> Result<String, super::Stop> {
    Ok(bench
        .host
        .sh("iptables-save; ip6tables-save; nft -s list ruleset 2>/dev/null")?)
}

fn twenty_ports(bench: &Bench) -> Done {
    let mapping = |n: u16| json!({ "hostPort": 9000 + n, "containerPort": n, "protocol": "tcp" });
    let mappings: Vec<Value> = (1..=20).map(mapping).collect();
    bench.host.netns("c1")?;
    let attached = bench.attach_with("c1", conf("c1", json!(mappings), json!({ "backend": "iptables" })))?;
    for port in 9001..=9020 {
        let found = rules(bench)?.contains(&port.to_string());
        ensure(found, || format!("port {port} is not published"))?;
    }
    bench.check(&attached)?.silent()?;
    let mut bare = attached.conf;
    if let Some(conf) = bare.as_object_mut() {
        conf.remove("prevResult");
    }
    bench.call("DEL", "c1", &bare)?.silent()?;
    let left = rules(bench)?;
    ensure(!left.contains("90"), || format!("left behind: {left}"))
}

/// Attaches twice, each with an address of its own, detaches the second, and expects the first to be as it was.
fn survives(bench: &Bench, first: &Value, second: &Value, second_ifname: &str) -> Done {
    bench.host.netns("c1")?;
    let attached = bench.attach_with("c1", first.clone())?;
    let other = |verb: &str| {
        bench
            .calling(verb, "c1", second)
            .with("CNI_IFNAME", second_ifname)
            .run()
    };
    other("ADD")?.result()?;
    other("DEL")?.silent()?;
    let left = rules(bench)?;
    ensure(left.contains("8001"), || {
        format!("the first attachment's port is gone: {left}")
    })?;
    ensure(!left.contains("8002"), || {
        format!("the second attachment's port is left: {left}")
    })?;
    bench.check(&attached)?.silent()
}

fn two_networks(bench: &Bench, backend: &str) -> Done {
    let first = conf("c1", web(8001), json!({ "backend": backend, "name": "net1" }));
    let second = conf("c50", web(8002), json!({ "backend": backend, "name": "net2" }));
    survives(bench, &first, &second, "eth1")
}

fn two_interfaces(bench: &Bench, backend: &str) -> Done {
    let first = conf("c1", web(8001), json!({ "backend": backend }));
    let second = conf("c50", web(8002), json!({ "backend": backend }));
    survives(bench, &first, &second, "eth1")
}

fn removes(bench: &Bench, keys: Value, change: impl Fn(&mut Value)) -> Done {
    bench.host.netns("c1")?;
    let attached = bench.attach_with("c1", conf("c1", web(8080), keys))?;
    let mut changed = attached.with_result();
    change(&mut changed);
    bench.call("DEL", "c1", &changed)?.silent()?;
    let left = rules(bench)?;
    ensure(!left.contains("8080"), || format!("left behind: {left}"))
}

fn check_finds(bench: &Bench, backend: &str, change: &str) -> Done {
    bench.host.netns("c1")?;
    let attached = bench.attach_with("c1", conf("c1", web(8080), json!({ "backend": backend })))?;
    bench.check(&attached)?.silent()?;
    bench.host.sh(change)?;
    bench.check(&attached)?.error()?;
    Ok(())
}

fn foreign_result(bench: &Bench) -> Done {
    let prev = json!({
        "cniVersion": "0.3.1", "interfaces": [{ "name": "eni0" }, { "name": "eth0", "sandbox": "/run/netns/c1" }],
        "ips": [{ "version": "4", "address": "192.0.2.10/32" }], "dns": {},
    });
    let mapping = json!([{ "hostPort": 8443, "containerPort": 443, "protocol": "tcp", "hostIP": "0.0.0.0" }]);
    let keys = json!({ "cniVersion": "0.3.1", "prevResult": prev, "snat": true, "backend": "iptables" });
    bench.host.netns("c1")?;
    let attached = bench.attach_with("c1", conf("c1", mapping, keys))?;
    for key in ["interfaces", "ips"] {
        same(key, &attached.result[key], &prev[key])?;
    }
    let rules = rules(bench)?;
    ensure(rules.contains("--to-destination 192.0.2.10:443"), || rules)
}
