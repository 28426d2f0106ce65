//! portmap: who reaches whom, and whom the server sees.

use serde_json::{Value, json};

use super::bridge::outside;
use super::portmap::{conf, web};
use super::{Bench, Check, Done, Plugins, Source, Stop, ensure, same};
use crate::feature::Feature;

const MAPPED: Source = Source::Documentation("portmap, snat and hairpin");

const fn check(id: &'static str, source: Source, rule: &'static str, run: fn(&Bench) -> Done) -> Check {
    Check {
        id,
        source,
        rule,
        plugins: Plugins::Named(&["portmap"]),
        needs: &[Feature::Traffic, Feature::Iptables, Feature::Nft],
        run,
    }
}

pub(super) const CHECKS: &[Check] = &[
    check(
        "portmap/reached-iptables",
        MAPPED,
        "the port is reached from the host, its loopback, outside, itself and a neighbour",
        |bench| reached(bench, "iptables"),
    ),
    check(
        "portmap/reached-nftables",
        MAPPED,
        "the port is reached from the host, its loopback, outside, itself and a neighbour",
        |bench| reached(bench, "nftables"),
    ),
    check(
        "portmap/udp-iptables",
        MAPPED,
        "a UDP port is reached from outside and from the host",
        |bench| udp(bench, "iptables"),
    ),
    check(
        "portmap/udp-nftables",
        MAPPED,
        "a UDP port is reached from outside and from the host",
        |bench| udp(bench, "nftables"),
    ),
    check(
        "portmap/host-ip-iptables",
        MAPPED,
        "a mapping with hostIP is not reached at another address",
        |bench| host_ip(bench, "iptables"),
    ),
    check(
        "portmap/host-ip-nftables",
        MAPPED,
        "a mapping with hostIP is not reached at another address",
        |bench| host_ip(bench, "nftables"),
    ),
    check(
        "portmap/unpublished-iptables",
        MAPPED,
        "after DEL the port is not reached",
        |bench| unpublished(bench, "iptables"),
    ),
    check(
        "portmap/unpublished-nftables",
        MAPPED,
        "after DEL the port is not reached",
        |bench| unpublished(bench, "nftables"),
    ),
    check(
        "portmap/not-a-neighbours-iptables",
        Source::Practice("GHSA-jv3w-x3r3-g6rm"),
        "a published port catches nothing that goes to another container",
        |bench| not_neighbours(bench, "iptables"),
    ),
    check(
        "portmap/not-a-neighbours-nftables",
        Source::Practice("GHSA-jv3w-x3r3-g6rm"),
        "a published port catches nothing that goes to another container",
        |bench| not_neighbours(bench, "nftables"),
    ),
    check(
        "portmap/stale-mapping-iptables",
        Source::Practice("Calico issue 3412, containernetworking/plugins issue 752"),
        "a mapping whose container is gone without DEL does not shadow a new one",
        |bench| stale(bench, "iptables"),
    ),
    check(
        "portmap/stale-mapping-nftables",
        Source::Practice("Calico issue 3412, containernetworking/plugins issue 752"),
        "a mapping whose container is gone without DEL does not shadow a new one",
        |bench| stale(bench, "nftables"),
    ),
];

/// Containers on a bridge, made by hand: portmap comes after whatever plugin gave the addresses. And the world outside.
fn containers(bench: &Bench, ids: &[&str]) -> Done {
    bench.host.sh(
        "sysctl -qw net.ipv4.ip_forward=1; ip link add br1 type bridge; ip addr add 10.1.0.1/24 dev br1; ip link set br1 up",
    )?;
    for id in ids {
        let address = conf(id, json!([]), json!({}))["prevResult"]["ips"][0]["address"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        bench.host.netns(id)?;
        bench.host.sh(&format!(
            "ip link add p{id} type veth peer name eth0 netns {id}; ip link set p{id} master br1 up
            ip link set p{id} type bridge_slave hairpin on
            ip -n {id} link set eth0 up; ip -n {id} addr add {address} dev eth0; ip -n {id} route add default via 10.1.0.1"
        ))?;
    }
    outside(bench)
}

fn publish(bench: &Bench, id: &str, mappings: Value, backend: &str) -> Result<super::Attached, Stop> {
    bench.attach_with(id, conf(id, mappings, json!({ "backend": backend })))
}

fn reached(bench: &Bench, backend: &str) -> Done {
    containers(bench, &["c1", "c2"])?;
    let _attached = publish(bench, "c1", web(8080), backend)?;
    let server = bench.host.serve("c1", "TCP", 80)?;
    for (from, to, seen) in [
        (None, "198.51.100.1", "198.51.100.1"),
        (None, "127.0.0.1", "10.1.0.1"),
        (Some("ext"), "198.51.100.1", "198.51.100.2"),
        (Some("c1"), "198.51.100.1", "10.1.0.1"),
        (Some("c2"), "198.51.100.1", ""),
    ] {
        let peer = bench.host.ask(from, &format!("TCP:{to}:8080"))?;
        let place = from.unwrap_or("the host");
        ensure(!peer.is_empty(), || format!("{place} does not reach {to}:8080"))?;
        // A neighbour's address may be kept or not: only that it works is promised.
        if !seen.is_empty() {
            same(&format!("the peer of {place} by way of {to}"), &peer.as_str(), &seen)?;
        }
    }
    drop(server);
    Ok(())
}

fn udp(bench: &Bench, backend: &str) -> Done {
    containers(bench, &["c1"])?;
    let mapping = json!([{ "hostPort": 5353, "containerPort": 53, "protocol": "udp" }]);
    let _attached = publish(bench, "c1", mapping, backend)?;
    let server = bench.host.serve("c1", "UDP", 53)?;
    for from in [Some("ext"), None] {
        let answer = bench.host.ask(from, "UDP:198.51.100.1:5353")?;
        same("the echo", &answer.as_str(), &"heard")?;
    }
    drop(server);
    Ok(())
}

fn host_ip(bench: &Bench, backend: &str) -> Done {
    containers(bench, &["c1"])?;
    bench.host.sh("ip addr add 198.51.100.9/24 dev up0")?;
    let mapping = json!([{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": "198.51.100.9" }]);
    let _attached = publish(bench, "c1", mapping, backend)?;
    let server = bench.host.serve("c1", "TCP", 80)?;
    let there = bench.host.ask(Some("ext"), "TCP:198.51.100.9:8080")?;
    let elsewhere = bench.host.ask(Some("ext"), "TCP:198.51.100.1:8080")?;
    drop(server);
    same("the peer at hostIP", &there.as_str(), &"198.51.100.2")?;
    same("the answer of another address", &elsewhere.as_str(), &"")
}

fn unpublished(bench: &Bench, backend: &str) -> Done {
    containers(bench, &["c1"])?;
    let attached = publish(bench, "c1", web(8080), backend)?;
    let server = bench.host.serve("c1", "TCP", 80)?;
    bench.detach(&attached)?;
    let answer = bench.host.ask(Some("ext"), "TCP:198.51.100.1:8080")?;
    drop(server);
    same("the answer after DEL", &answer.as_str(), &"")
}

fn not_neighbours(bench: &Bench, backend: &str) -> Done {
    containers(bench, &["c1", "c2"])?;
    let _attached = publish(bench, "c1", web(8080), backend)?;
    let server = bench.host.serve("c2", "TCP", 8080)?;
    let seen = bench.host.ask(Some("ext"), "TCP:10.1.0.3:8080")?;
    drop(server);
    same(
        "the peer that c2 sees on its own port 8080",
        &seen.as_str(),
        &"198.51.100.2",
    )
}

fn stale(bench: &Bench, backend: &str) -> Done {
    containers(bench, &["c1", "c2"])?;
    let gone = publish(bench, "c1", web(8080), backend)?;
    bench.host.sh("ip netns del c1")?;
    let _attached = publish(bench, "c2", web(8080), backend)?;
    let server = bench.host.serve("c2", "TCP", 80)?;
    let before = bench.host.ask(Some("ext"), "TCP:198.51.100.1:8080")?;
    bench
        .calling("DEL", "c1", &gone.with_result())
        .with("CNI_NETNS", "")
        .run()?
        .silent()?;
    let after = bench.host.ask(Some("ext"), "TCP:198.51.100.1:8080")?;
    drop(server);
    same(
        "the peer that the new container sees",
        &before.as_str(),
        &"198.51.100.2",
    )?;
    same("the peer after the late DEL", &after.as_str(), &"198.51.100.2")
}
