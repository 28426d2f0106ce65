//! firewall: who reaches whom, and what it works without.

use serde_json::{Value, json};

use super::bridge::outside;
use super::{Bench, Check, Done, Plugins, Source, Stop, ensure, same, with};
use crate::call::Call;
use crate::feature::Feature;
use crate::host::FILES;

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
        plugins: Plugins::Named(&["firewall", "bridge", "host-local"]),
        needs,
        run,
    }
}

const POLICY: Source = Source::Documentation("firewall, ingressPolicy");

pub(super) const CHECKS: &[Check] = &[
    check(
        &[Feature::Iptables, Feature::Traffic],
        "firewall/same-bridge-traffic",
        POLICY,
        "with same-bridge a container is reached from its own bridge, and not from another one",
        |bench| {
            attach(bench, "br1", "c1", "same-bridge")?;
            attach(bench, "br1", "c2", "same-bridge")?;
            attach(bench, "br2", "c3", "same-bridge")?;
            reached(bench, "c2", true)?;
            reached(bench, "c3", false)
        },
    ),
    check(
        &[Feature::Iptables, Feature::Traffic],
        "firewall/open-traffic",
        POLICY,
        "with open, which is the default, a container is reached from another bridge",
        |bench| {
            attach(bench, "br1", "c1", "open")?;
            attach(bench, "br2", "c3", "open")?;
            reached(bench, "c3", true)
        },
    ),
    check(
        &[Feature::Iptables, Feature::Traffic, Feature::BridgeNetfilter],
        "firewall/isolated-traffic",
        POLICY,
        "with isolated a container is not even reached from its own bridge",
        |bench| {
            bench.host.sh("echo 1 > /proc/sys/net/bridge/bridge-nf-call-iptables")?;
            attach(bench, "br1", "c1", "isolated")?;
            attach(bench, "br1", "c2", "isolated")?;
            reached(bench, "c2", false)
        },
    ),
    check(
        &[Feature::Iptables, Feature::Traffic],
        "firewall/podman-behind-drop",
        Source::Practice("a host with Docker, which drops what is forwarded, and podman's network"),
        "a container on a bridge reaches the world, which sees the node's address, and answers come back",
        behind_drop,
    ),
    check(
        &[Feature::Iptables],
        "firewall/without-ip6tables",
        Source::Practice("hosts without IPv6 have no ip6tables"),
        "a container that has IPv4 alone needs no ip6tables",
        |bench| with_programs(bench, &["iptables", "iptables-save", "iptables-restore"]),
    ),
    check(
        &[Feature::Nft],
        "firewall/without-iptables",
        Source::Practice("hosts that have nft and no iptables any more"),
        "where there is no iptables, the firewall works without it",
        |bench| with_programs(bench, &["nft"]),
    ),
];

/// Attaches a container to a bridge of its subnet, 10.1.0.0/24 for br1, and then to the firewall.
fn attach(bench: &Bench, bridge: &str, id: &str, policy: &str) -> Done {
    let n = bridge.trim_start_matches("br");
    let ipam = json!({
        "type": "host-local", "subnet": format!("10.{n}.0.0/24"), "routes": [{ "dst": "0.0.0.0/0" }],
    });
    let base = json!({ "cniVersion": "1.0.0", "name": format!("net{n}") });
    let first = with(
        &base,
        json!({ "type": "bridge", "bridge": bridge, "isGateway": true, "ipam": ipam }),
    );
    bench.host.netns(id)?;
    let result = Call::new("bridge", "ADD").container(id).conf(&first).run()?.result()?;
    let keys = json!({ "type": "firewall", "backend": "iptables", "ingressPolicy": policy, "prevResult": result });
    bench.attach_with(id, with(&base, keys))?;
    Ok(())
}

/// Whether the first container is reached from another one.
fn reached(bench: &Bench, from: &str, expected: bool) -> Done {
    let server = bench.host.serve("c1", "TCP", 80)?;
    // What is dropped answers nothing: the client gives up by itself.
    let client = "socat -T2 - TCP:10.1.0.2:80,connect-timeout=2 < /dev/null || true";
    let seen = bench.host.sh_in(from, client)?;
    drop(server);
    ensure(seen.is_empty() != expected, || match expected {
        true => format!("{from} does not reach 10.1.0.2:80"),
        false => format!("{from} reaches 10.1.0.2:80 as {seen}"),
    })
}

fn behind_drop(bench: &Bench) -> Done {
    outside(bench)?;
    bench.host.sh("iptables -P FORWARD DROP")?;
    let ipam = json!({ "type": "host-local", "subnet": "10.88.0.0/16", "routes": [{ "dst": "0.0.0.0/0" }] });
    let base = json!({ "cniVersion": "0.4.0", "name": "podman" });
    let keys = json!({ "type": "bridge", "bridge": "cni-podman0", "isGateway": true, "ipMasq": true, "ipam": ipam });
    bench.host.netns("c1")?;
    let bridge = Call::new("bridge", "ADD").container("c1").conf(&with(&base, keys));
    let result = bridge.run()?.result()?;
    let firewall = json!({ "type": "firewall", "backend": "iptables", "prevResult": result });
    bench.attach_with("c1", with(&base, firewall))?;
    let server = bench.host.serve("ext", "TCP", 80)?;
    let seen = bench.host.ask(Some("c1"), "TCP:198.51.100.2:80")?;
    drop(server);
    same("the peer that the world sees", &seen.as_str(), &"198.51.100.1")
}

/// From ADD to DEL with a PATH of these programs alone.
fn with_programs(bench: &Bench, programs: &[&str]) -> Done {
    let path = format!("{FILES}/bin");
    bench.host.sh(&format!(
        "mkdir {path}; for program in {}; do ln -s \"$(command -v $program)\" {path}; done",
        programs.join(" ")
    ))?;
    let conf = bench.prepare("c1", "1.0.0")?;
    let call = |verb: &str, conf: &Value| bench.calling(verb, "c1", conf).with("PATH", &path).run();
    let result = call("ADD", &conf)?.result()?;
    let conf = with(&conf, json!({ "prevResult": result }));
    call("CHECK", &conf)?.silent()?;
    call("DEL", &conf)?.silent()?;
    let left = rules(bench)?;
    ensure(!left.contains("10.2.0.11"), || format!("left behind: {left}"))
}

fn rules(bench: &Bench) -> Result<String, Stop> {
    Ok(bench
        .host
        .sh("iptables-save 2>/dev/null || true; nft list ruleset 2>/dev/null || true")?)
}
