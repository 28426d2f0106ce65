//! bridge: its options, and what it refuses.

use std::thread;

use serde_json::{Value, json};

use super::{Bench, Check, Done, Plugins, Source, Stop, ensure, same, with};
use crate::call::Reply;
use crate::feature::Feature;
use crate::state::State;

const fn check(id: &'static str, source: Source, rule: &'static str, run: fn(&Bench) -> Done) -> Check {
    needing(&[], id, source, rule, run)
}

const fn needing(
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
        plugins: Plugins::Named(&["bridge", "host-local"]),
        needs,
        run,
    }
}

pub(super) const CHECKS: &[Check] = &[
    check(
        "bridge/result",
        Source::Documentation("bridge"),
        "the result has the bridge, the host veth and the container's interface, in this order",
        result,
    ),
    check(
        "bridge/gateway-address",
        Source::Documentation("bridge, isGateway"),
        "with isGateway the bridge has the gateway's address, and packets are forwarded",
        |bench| {
            bench.attach_new("c1", &conf(json!({})))?;
            shows(bench, "ip -o addr show dev br1", "inet 10.1.0.1/24")?;
            shows(bench, "cat /proc/sys/net/ipv4/ip_forward", "1")
        },
    ),
    check(
        "bridge/no-gateway",
        Source::Documentation("bridge, isGateway"),
        "without isGateway the bridge has no address",
        |bench| {
            bench.attach_new("c1", &conf(json!({ "isGateway": false })))?;
            let shown = bench.host.sh("ip -o -4 addr show dev br1")?;
            same("addresses", &shown.as_str(), &"")
        },
    ),
    check(
        "bridge/default-gateway",
        Source::Documentation("bridge, isDefaultGateway"),
        "isDefaultGateway makes the bridge the container's default route, and the result says so",
        |bench| {
            let attached = bench.attach_new("c1", &conf(json!({
                "isDefaultGateway": true, "isGateway": false, "ipam": { "type": "host-local", "subnet": "10.1.0.0/24" },
            })))?;
            shows_in(bench, "ip route show default", "default via 10.1.0.1 dev eth0")?;
            let told = attached.result["routes"].to_string().contains("0.0.0.0/0");
            ensure(told, || format!("no default route in {}", attached.result))
        },
    ),
    check(
        "bridge/mtu",
        Source::Documentation("bridge, mtu"),
        "mtu is set on both ends of the pair",
        |bench| {
            let attached = bench.attach_new("c1", &conf(json!({ "mtu": 1450 })))?;
            shows_in(bench, "ip link show dev eth0", "mtu 1450")?;
            shows(
                bench,
                &format!("ip link show dev {}", host_veth(&attached.result)?),
                "mtu 1450",
            )
        },
    ),
    check(
        "bridge/hairpin",
        Source::Documentation("bridge, hairpinMode"),
        "hairpinMode lets a port's packets come back to it",
        |bench| {
            let attached = bench.attach_new("c1", &conf(json!({ "hairpinMode": true })))?;
            shows(
                bench,
                &format!(
                    "cat /sys/class/net/{}/brport/hairpin_mode",
                    host_veth(&attached.result)?
                ),
                "1",
            )
        },
    ),
    check(
        "bridge/promisc",
        Source::Documentation("bridge, promiscMode"),
        "promiscMode makes the bridge promiscuous",
        |bench| {
            bench.attach_new("c1", &conf(json!({ "promiscMode": true })))?;
            shows(bench, "ip link show dev br1", "PROMISC")
        },
    ),
    check(
        "bridge/port-isolation",
        Source::Documentation("bridge, portIsolation"),
        "portIsolation keeps ports from each other",
        |bench| {
            let attached = bench.attach_new("c1", &conf(json!({ "portIsolation": true })))?;
            shows(
                bench,
                &format!("cat /sys/class/net/{}/brport/isolated", host_veth(&attached.result)?),
                "1",
            )
        },
    ),
    check(
        "bridge/mac-capability",
        Source::Conventions("Dynamic Plugin specific fields: mac"),
        "runtimeConfig.mac is the interface's MAC",
        |bench| mac(bench, json!({ "runtimeConfig": { "mac": "02:00:00:00:00:77" } }), ""),
    ),
    check(
        "bridge/mac-cni-args",
        Source::Practice("podman puts the MAC into CNI_ARGS"),
        "MAC in CNI_ARGS is the interface's MAC",
        |bench| mac(bench, json!({}), "IgnoreUnknown=1;MAC=02:00:00:00:00:77"),
    ),
    check(
        "bridge/mac-args",
        Source::Conventions("args in network config"),
        "args.cni.mac is the interface's MAC",
        |bench| mac(bench, json!({ "args": { "cni": { "mac": "02:00:00:00:00:77" } } }), ""),
    ),
    check(
        "bridge/dns",
        Source::Documentation("bridge, dns"),
        "dns of the network is in the result",
        |bench| {
            let dns = json!({ "nameservers": ["192.0.2.53"], "search": ["a.example"] });
            let attached = bench.attach_new("c1", &conf(json!({ "dns": dns })))?;
            same("dns", &attached.result["dns"], &dns)
        },
    ),
    needing(
        &[Feature::Ipv6],
        "bridge/dual-stack",
        Source::Practice("containerd's own configuration"),
        "both addresses are usable as soon as ADD returns",
        dual_stack,
    ),
    check(
        "bridge/as-flannel-delegates",
        Source::Practice("what flannel and k3s write"),
        "routes, MTU and hairpin together; the result's routes are those of IPAM and the default route",
        flannel,
    ),
    check(
        "bridge/layer-2",
        Source::Documentation("bridge, ipam"),
        "without ipam the container has a port and no address",
        |bench| {
            let attached = bench.attach_new("c1", &layer_2())?;
            ensure(attached.result.get("ips").is_none_or(|ips| ips == &json!([])), || {
                format!("{}", attached.result)
            })?;
            bench.detach(&attached)
        },
    ),
    check(
        "bridge/layer-2-check",
        Source::Spec("section 2, CHECK"),
        "without ipam CHECK succeeds after ADD",
        |bench| bench.check(&bench.attach_new("c1", &layer_2())?)?.silent(),
    ),
    check(
        "bridge/left-down",
        Source::Documentation("bridge, disableContainerInterface"),
        "disableContainerInterface leaves the container's interface down",
        |bench| {
            bench.attach_new("c1", &with(&layer_2(), json!({ "disableContainerInterface": true })))?;
            let shown = bench.host.sh_in("c1", "ip link show dev eth0")?;
            ensure(!shown.contains(",UP"), || shown)
        },
    ),
    check(
        "bridge/force-address",
        Source::Documentation("bridge, forceAddress"),
        "another address of the bridge is an error, with forceAddress it is replaced",
        force_address,
    ),
    check(
        "bridge/refuses-contradictions",
        Source::Documentation("bridge"),
        "options that exclude each other are refused, and nothing is made",
        contradictions,
    ),
    check(
        "bridge/not-a-bridge",
        Source::Documentation("bridge, bridge"),
        "another device of the bridge's name is refused, and survives",
        |bench| {
            bench.host.sh("ip link add br1 type veth peer name other")?;
            bench.host.netns("c1")?;
            bench
                .call("ADD", "c1", &conf(json!({})))?
                .refused_with("already exists but is not a bridge")?;
            shows(bench, "ip -d link show dev br1", "veth")
        },
    ),
    check(
        "bridge/failed-add-repeated",
        Source::Practice("containernetworking/plugins issue 29"),
        "an ADD that fails for want of an address leaves nothing, and fails again for the same reason",
        failed_add,
    ),
    check(
        "bridge/wrong-backend",
        Source::Documentation("bridge, ipMasqBackend"),
        "an unknown ipMasqBackend is refused, and the container has no interface",
        |bench| {
            bench.host.netns("c1")?;
            bench
                .call("ADD", "c1", &conf(json!({ "ipMasq": true, "ipMasqBackend": "zzz" })))?
                .error()?;
            let left = bench.host.sh_in("c1", "ip -br link | grep -v '^lo' || true")?;
            same("left in the container", &left.as_str(), &"")
        },
    ),
    check(
        "bridge/second-add-in-another-namespace",
        Source::Practice("nerdctl issue 665"),
        "a second ADD of a living attachment is refused, and the second namespace has no interface",
        second_add,
    ),
    check(
        "bridge/own-namespace-on-del",
        Source::Practice("containernetworking/plugins issue 714"),
        "DEL with the host's own namespace deletes no interface of the host",
        |bench| {
            bench.host.sh("ip link add eth0 type veth peer name other")?;
            let call = bench
                .calling("DEL", "c1", &conf(json!({})))
                .with("CNI_NETNS", "/proc/self/ns/net");
            call.run()?;
            shows(bench, "ip link show dev eth0", "eth0")
        },
    ),
    check(
        "bridge/many-at-once",
        Source::Practice("containerd issue 3507: all pods start when a node boots"),
        "20 ADDs at once on a node without the bridge all succeed",
        many,
    ),
    needing(
        &[Feature::Nft],
        "bridge/mac-spoof-check",
        Source::Documentation("bridge, macspoofchk"),
        "macspoofchk drops frames of other MACs, and DEL without a namespace removes the rules",
        mac_spoof,
    ),
    needing(
        &[Feature::Traffic],
        "bridge/neighbours-reach-each-other",
        Source::Documentation("bridge"),
        "containers on one bridge reach each other and the gateway",
        |bench| {
            bench.attach_new("c1", &conf(json!({})))?;
            bench.attach_new("c2", &conf(json!({})))?;
            let server = bench.host.serve("c1", "TCP", 80)?;
            let seen = bench.host.ask(Some("c2"), "TCP:10.1.0.2:80")?;
            same("the peer that c1 sees", &seen.as_str(), &"10.1.0.3")?;
            let seen = bench.host.ask(None, "TCP:10.1.0.2:80")?;
            drop(server);
            same("the peer that c1 sees", &seen.as_str(), &"10.1.0.1")
        },
    ),
    needing(
        &[Feature::Traffic, Feature::Iptables],
        "bridge/masquerade-iptables",
        Source::Documentation("bridge, ipMasq"),
        "the world outside sees the node's address, not the container's",
        |bench| masquerade(bench, "iptables"),
    ),
    needing(
        &[Feature::Traffic, Feature::Nft],
        "bridge/masquerade-nftables",
        Source::Documentation("bridge, ipMasqBackend"),
        "the world outside sees the node's address, not the container's",
        |bench| masquerade(bench, "nftables"),
    ),
    needing(
        &[Feature::Nft],
        "bridge/masquerade-nftables-del-without-namespace",
        Source::Practice("containernetworking/plugins issue 810"),
        "DEL without a namespace removes the masquerading of nftables",
        |bench| {
            bench.attach_new("c1", &conf(json!({ "ipMasq": true, "ipMasqBackend": "nftables" })))?;
            let conf = conf(json!({ "ipMasq": true, "ipMasqBackend": "nftables" }));
            bench.host.netns("c2")?;
            let before = State::without_links(bench.host)?;
            let attached = bench.attach_with("c2", conf)?;
            bench
                .calling("DEL", "c2", &attached.with_result())
                .with("CNI_NETNS", "")
                .run()?
                .silent()?;
            let changes = State::without_links(bench.host)?.changes(&before);
            ensure(changes.is_empty(), || format!("left behind: {changes}"))
        },
    ),
];

/// A configuration of a bridge with host-local, changed by `keys`.
pub(super) fn conf(keys: Value) -> Value {
    let ipam = json!({ "type": "host-local", "subnet": "10.1.0.0/24", "routes": [{ "dst": "0.0.0.0/0" }] });
    let conf = json!({
        "cniVersion": "1.0.0", "name": "net", "type": "bridge", "bridge": "br1", "isGateway": true, "ipam": ipam,
    });
    with(&conf, keys)
}

fn layer_2() -> Value {
    json!({ "cniVersion": "1.0.0", "name": "net", "type": "bridge", "bridge": "br1" })
}

/// The host's end of the pair.
pub(super) fn host_veth(result: &Value) -> Result<&str, Stop> {
    let name = result["interfaces"][1]["name"].as_str();
    name.ok_or_else(|| Stop::Fail(format!("no second interface in {result}")))
}

fn shows(bench: &Bench, script: &str, part: &str) -> Done {
    let shown = bench.host.sh(script)?;
    ensure(shown.contains(part), || {
        format!("`{script}` does not show {part:?}: {shown}")
    })
}

fn shows_in(bench: &Bench, script: &str, part: &str) -> Done {
    let shown = bench.host.sh_in("c1", script)?;
    ensure(shown.contains(part), || {
        format!("`{script}` does not show {part:?}: {shown}")
    })
}

fn result(bench: &Bench) -> Done {
    let result = bench.attach_new("c1", &conf(json!({})))?.result;
    same("first interface", &result["interfaces"][0]["name"], &json!("br1"))?;
    shows(
        bench,
        &format!("ip -d link show dev {}", host_veth(&result)?),
        "master br1",
    )?;
    same("third interface", &result["interfaces"][2]["name"], &json!("eth0"))?;
    let ips = json!([{ "address": "10.1.0.2/24", "gateway": "10.1.0.1", "interface": 2 }]);
    same("ips", &result["ips"], &ips)?;
    same("routes", &result["routes"], &json!([{ "dst": "0.0.0.0/0" }]))?;
    shows_in(bench, "ip route show default", "via 10.1.0.1")
}

fn mac(bench: &Bench, keys: Value, args: &str) -> Done {
    bench.host.netns("c1")?;
    let call = bench.calling("ADD", "c1", &conf(keys)).with("CNI_ARGS", args);
    let result = call.run()?.result()?;
    same(
        "mac of the result",
        &result["interfaces"][2]["mac"],
        &json!("02:00:00:00:00:77"),
    )?;
    shows_in(bench, "ip link show dev eth0", "02:00:00:00:00:77")
}

fn dual_stack(bench: &Bench) -> Done {
    let ranges = json!([[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "2001:db8:1::/64" }]]);
    let routes = json!([{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }]);
    let ipam = json!({ "type": "host-local", "ranges": ranges, "routes": routes });
    let attached = bench.attach_new("c1", &conf(json!({ "ipam": ipam })))?;
    shows_in(bench, "ip -6 addr show dev eth0", "2001:db8:1::2/64")?;
    let tentative = bench
        .host
        .sh_in("c1", "ip -6 addr show dev eth0 scope global tentative")?;
    same("tentative addresses", &tentative.as_str(), &"")?;
    shows_in(bench, "ip -6 route show default", "via 2001:db8:1::1")?;
    shows(bench, "ip -6 addr show dev br1", "2001:db8:1::1/64")?;
    bench.check(&attached)?.silent()
}

fn flannel(bench: &Bench) -> Done {
    let ipam = json!({ "type": "host-local", "subnet": "10.244.1.0/24", "routes": [{ "dst": "10.244.0.0/16" }] });
    let keys = json!({
        "cniVersion": "0.3.1", "hairpinMode": true, "forceAddress": true, "isDefaultGateway": true, "ipMasq": false,
        "mtu": 1450, "ipam": ipam,
    });
    let attached = bench.attach_new("c1", &conf(keys))?;
    let routes = json!([{ "dst": "10.244.0.0/16" }, { "dst": "0.0.0.0/0", "gw": "10.244.1.1" }]);
    same("routes", &attached.result["routes"], &routes)?;
    shows_in(bench, "ip route show 10.244.0.0/16", "via 10.244.1.1")?;
    shows_in(bench, "ip route show default", "via 10.244.1.1")?;
    bench.check(&attached)?.refused(1)?;
    Ok(())
}

fn force_address(bench: &Bench) -> Done {
    bench.host.sh("ip link add br1 type bridge; ip addr add 10.9.0.1/24 dev br1; ip addr add 10.1.0.7/24 dev br1; ip addr del 10.9.0.1/24 dev br1")?;
    bench.host.netns("c1")?;
    bench
        .call("ADD", "c1", &conf(json!({})))?
        .refused_with("already has an IP address different from")?;
    let kept = bench
        .host
        .sh("find /var/lib/cni -name '10.*'; ip -br link show type veth")?;
    same("left by the failed ADD", &kept.as_str(), &"")?;
    bench.attach_with("c1", conf(json!({ "forceAddress": true })))?;
    let shown = bench
        .host
        .sh("ip -o -4 addr show dev br1 | awk '{ print $4 }' | xargs")?;
    same("addresses of the bridge", &shown.as_str(), &"10.1.0.1/24")
}

fn contradictions(bench: &Bench) -> Done {
    bench.host.netns("c1")?;
    for keys in [
        json!({ "hairpinMode": true, "promiscMode": true }),
        json!({ "vlan": 4095 }),
        json!({ "vlan": -1 }),
        json!({ "disableContainerInterface": true }),
        json!({ "bridge": "a-name-of-22-characters" }),
    ] {
        bench.call("ADD", "c1", &conf(keys))?.error()?;
        let left = bench
            .host
            .sh("ip -br link show type veth; find /var/lib/cni -name '10.*'")?;
        same("left by the refused ADD", &left.as_str(), &"")?;
    }
    Ok(())
}

fn failed_add(bench: &Bench) -> Done {
    let conf = conf(json!({ "ipam": { "type": "host-local", "subnet": "10.1.0.0/30" } }));
    bench.attach_new("c1", &conf)?;
    bench.host.netns("c2")?;
    for _ in 0..2 {
        bench
            .call("ADD", "c2", &conf)?
            .refused_with("no IP addresses available")?;
        let left = bench.host.sh_in("c2", "ip -br link | grep -v '^lo' || true")?;
        same("left in the container", &left.as_str(), &"")?;
    }
    let ports = bench.host.sh("ls /sys/class/net/br1/brif | wc -l")?;
    same("ports of the bridge", &ports.as_str(), &"1")
}

fn second_add(bench: &Bench) -> Done {
    let first = bench.attach_new("c1", &conf(json!({})))?;
    bench.host.netns("other")?;
    let again = bench.calling("ADD", "c1", &conf(json!({})));
    again.with("CNI_NETNS", "/run/netns/other").run()?.error()?;
    let left = bench.host.sh_in("other", "ip -br link | grep -v '^lo' || true")?;
    same("left in the second namespace", &left.as_str(), &"")?;
    bench.check(&first)?.silent()
}

fn many(bench: &Bench) -> Done {
    let conf = conf(json!({ "ipMasq": true }));
    for n in 0..20 {
        bench.host.netns(&format!("c{n}"))?;
    }
    let together = |verb: &'static str| -> Vec<Result<Reply, Stop>> {
        thread::scope(|scope| {
            let call = |n: i32| bench.calling(verb, &format!("c{n}"), &conf);
            let threads: Vec<_> = (0..20).map(call).map(|call| scope.spawn(move || call.run())).collect();
            threads.into_iter().flat_map(thread::ScopedJoinHandle::join).collect()
        })
    };
    for reply in together("ADD") {
        reply?.result()?;
    }
    let shown = bench
        .host
        .sh("ip -o -4 addr show dev br1 | awk '{ print $4 }' | xargs; ls /sys/class/net/br1/brif | wc -l")?;
    same("the bridge's addresses and ports", &shown.as_str(), &"10.1.0.1/24\n20")?;
    for reply in together("DEL") {
        reply?.silent()?;
    }
    let left = bench
        .host
        .sh("ip -br link show type veth; find /var/lib/cni -name '10.*'")?;
    same("left", &left.as_str(), &"")
}

fn mac_spoof(bench: &Bench) -> Done {
    let conf = with(&layer_2(), json!({ "macspoofchk": true }));
    let attached = bench.attach_new("c1", &conf)?;
    let mac = attached.result["interfaces"][2]["mac"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    shows(bench, "nft list ruleset bridge", &mac)?;
    bench
        .calling("DEL", "c1", &attached.with_result())
        .with("CNI_NETNS", "")
        .run()?
        .silent()?;
    let rules = bench.host.sh("nft list ruleset bridge")?;
    ensure(!rules.contains(&mac) && !rules.contains("c1"), || {
        format!("left behind: {rules}")
    })
}

fn masquerade(bench: &Bench, backend: &str) -> Done {
    bench.attach_new("c1", &conf(json!({ "ipMasq": true, "ipMasqBackend": backend })))?;
    outside(bench)?;
    let server = bench.host.serve("ext", "TCP", 80)?;
    let seen = bench.host.ask(Some("c1"), "TCP:198.51.100.2:80")?;
    drop(server);
    same("the peer that the world sees", &seen.as_str(), &"198.51.100.1")
}

/// The namespace `ext` at 198.51.100.2, one hop from the node at 198.51.100.1.
pub(super) fn outside(bench: &Bench) -> Done {
    bench.host.netns("ext")?;
    bench.host.sh("ip link add up0 type veth peer name eth0 netns ext
        ip addr add 198.51.100.1/24 dev up0; ip link set up0 up
        ip -n ext addr add 198.51.100.2/24 dev eth0; ip -n ext link set eth0 up
        ip -n ext route add default via 198.51.100.1")?;
    Ok(())
}
