//! Published networks to the letter: the result, the files and the rules that tools and other versions look for.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use super::published::{self, two_ports};
use super::{Bench, Check, Done, Plugins, Source, ensure, same};
use crate::call::Call;
use crate::feature::Feature;

const fn check(
    plugins: &'static [&'static str],
    id: &'static str,
    source: &'static str,
    rule: &'static str,
    run: fn(&Bench) -> Done,
) -> Check {
    Check {
        id,
        source: Source::Practice(source),
        rule,
        plugins: Plugins::Named(plugins),
        needs: &[Feature::Iptables, Feature::Ipv6],
        run,
    }
}

const NOMAD: &[&str] = &["bridge", "loopback", "host-local", "firewall", "portmap"];

pub(super) const CHECKS: &[Check] = &[
    check(
        NOMAD,
        "networks/nomad-result-and-files",
        "Nomad's chain of four plugins, and tools that read host-local's files",
        "result and reservation are those of the reference, CHECK succeeds, DEL does twice, and leaves nothing",
        nomad_result,
    ),
    check(
        NOMAD,
        "networks/nomad-rules",
        "Nomad's chain of four plugins, and what looks for its rules by name",
        "chains and rules of iptables have the reference's names, order and marks",
        nomad_rules,
    ),
    check(
        &["bridge", "host-local", "portmap"],
        "networks/containerd-dual-stack",
        "containerd's install-cni, in both families",
        "addresses, gateways, default routes and sysctls of both families are there when ADD returns",
        containerd,
    ),
    check(
        &["bridge", "host-local", "portmap", "firewall", "tuning"],
        "networks/nerdctl-isolation",
        "nerdctl's default network, whose chains other tools look for",
        "the isolation chains come first in FORWARD and keep other bridges out; CHECK and DEL succeed",
        nerdctl,
    ),
    check(
        &["ptp", "host-local", "firewall"],
        "networks/firecracker",
        "the networks of Firecracker's examples",
        "routes on both sides of the pair, dns of the node's file, CHECK and DEL succeed",
        firecracker,
    ),
];

fn as_it_is(call: Call) -> Call {
    call
}

fn nomad_result(bench: &Bench) -> Done {
    let (network, ports) = (published::nomad(), two_ports(8080));
    bench.host.netns("cid-a")?;
    let result = network.add("cid-a", &ports, &as_it_is)?;
    same("cniVersion", &result["cniVersion"], &json!("0.4.0"))?;
    same("first interface", &result["interfaces"][0]["name"], &json!("nomad"))?;
    same("third interface", &result["interfaces"][2]["name"], &json!("eth0"))?;
    same(
        "its namespace",
        &result["interfaces"][2]["sandbox"],
        &json!("/run/netns/cid-a"),
    )?;
    let ip = json!({ "version": "4", "interface": 2, "address": "172.26.64.2/20", "gateway": "172.26.64.1" });
    same("ips", &result["ips"], &json!([ip]))?;
    same("routes", &result["routes"], &json!([{ "dst": "0.0.0.0/0" }]))?;
    same("dns", &result["dns"], &json!({}))?;

    let directory = "/var/lib/cni/networks/nomad";
    let reservation = format!("{directory}/172.26.64.2");
    let content = fs::read_to_string(&reservation)?;
    ensure(content == "cid-a\r\neth0", || {
        format!("the reservation holds {content:?}")
    })?;
    let mode = fs::metadata(&reservation)?.permissions().mode() & 0o777;
    same("mode of the reservation", &format!("{mode:o}").as_str(), &"600")?;
    let last = fs::read_to_string(format!("{directory}/last_reserved_ip.0"))?;
    same("last_reserved_ip.0", &last.as_str(), &"172.26.64.2")?;
    fs::metadata(format!("{directory}/lock"))?;
    let set = bench
        .host
        .sh("cat /proc/sys/net/ipv4/conf/nomad/route_localnet /proc/sys/net/ipv4/ip_forward | xargs")?;
    same("route_localnet and ip_forward", &set.as_str(), &"1 1")?;

    network.check("cid-a", &ports, &result, &as_it_is)?;
    network.del("cid-a", &ports, &result, &as_it_is)?;
    network.del("cid-a", &ports, &result, &as_it_is)?;
    let left = bench
        .host
        .sh("ip -br link show type veth; find /var/lib/cni -name '172.*'
        iptables-save | grep -e 172.26.64.2 -e 6499ed8b923a7b04f5f4 || true")?;
    same("left", &left.as_str(), &"")
}

/// Expects each of these rules, as iptables-save shows them, with the words of each in this order.
fn has(rules: &str, expected: &[&str]) -> Done {
    expected.iter().try_for_each(|expected| {
        let found = rules.lines().any(|line| {
            let mut words = line.split_whitespace();
            expected.split_whitespace().all(|word| words.any(|other| other == word))
        });
        ensure(found, || format!("no rule {expected:?} in\n{rules}"))
    })
}

/// The first rule of a chain.
fn first<'a>(rules: &'a str, chain: &str) -> &'a str {
    let of_chain = |line: &&str| line.starts_with(&format!("-A {chain} "));
    rules.lines().find(of_chain).unwrap_or_default()
}

fn nomad_rules(bench: &Bench) -> Done {
    bench.host.netns("cid-a")?;
    published::nomad().add("cid-a", &two_ports(8080), &as_it_is)?;
    let nat = bench.host.sh("iptables-save -t nat")?;
    has(
        &nat,
        &[
            "-A CNI-6499ed8b923a7b04f5f4687e -d 172.26.64.0/20 -j ACCEPT",
            "-A CNI-6499ed8b923a7b04f5f4687e ! -d 224.0.0.0/4 -j MASQUERADE",
            "-A CNI-HOSTPORT-DNAT -p tcp -m multiport --dports 8080 -j CNI-DN-6499ed8b923a7b04f5f46",
            "-A CNI-HOSTPORT-DNAT -p udp -m multiport --dports 8080 -j CNI-DN-6499ed8b923a7b04f5f46",
            "-A CNI-DN-6499ed8b923a7b04f5f46 -s 172.26.64.0/20 -p tcp --dport 8080 -j CNI-HOSTPORT-SETMARK",
            "-A CNI-DN-6499ed8b923a7b04f5f46 -s 127.0.0.1/32 -p tcp --dport 8080 -j CNI-HOSTPORT-SETMARK",
            "-A CNI-DN-6499ed8b923a7b04f5f46 -p tcp --dport 8080 -j DNAT --to-destination 172.26.64.2:80",
            "-A CNI-DN-6499ed8b923a7b04f5f46 -p udp --dport 8080 -j DNAT --to-destination 172.26.64.2:80",
            "-A CNI-HOSTPORT-SETMARK -j MARK --set-xmark 0x2000/0x2000",
        ],
    )?;
    let masq = first(&nat, "POSTROUTING");
    ensure(masq.ends_with("-j CNI-HOSTPORT-MASQ"), || {
        format!("first in POSTROUTING: {masq}")
    })?;
    let filter = bench.host.sh("iptables-save -t filter")?;
    has(
        &filter,
        &[
            "-A FORWARD -j CNI-FORWARD",
            "-A CNI-FORWARD -d 172.26.64.2/32 --ctstate RELATED,ESTABLISHED -j ACCEPT",
            "-A CNI-FORWARD -s 172.26.64.2/32 -j ACCEPT",
        ],
    )?;
    let admin = first(&filter, "CNI-FORWARD");
    ensure(admin.ends_with("-j NOMAD-ADMIN"), || {
        format!("first in CNI-FORWARD: {admin}")
    })
}

/// Expects a script to print this, its lines joined by spaces.
fn prints(bench: &Bench, netns: Option<&str>, script: &str, expected: &str) -> Done {
    let script = format!("{{ {script}; }} | xargs");
    let shown = match netns {
        Some(netns) => bench.host.sh_in(netns, &script)?,
        None => bench.host.sh(&script)?,
    };
    same(&script, &shown.as_str(), &expected)
}

fn containerd(bench: &Bench) -> Done {
    let (network, ports) = (
        published::containerd(),
        json!([{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" }]),
    );
    bench.host.netns("k1")?;
    let result = network.add("k1", &ports, &as_it_is)?;
    let given = |n: usize| result["ips"][n]["address"].clone();
    same("the first address", &given(0), &json!("10.88.0.2/16"))?;
    same("the second address", &given(1), &json!("2001:db8:4860::2/64"))?;
    let conf = "/proc/sys/net/ipv6/conf/eth0";
    let inside = |script: &str, expected: &str| prints(bench, Some("k1"), script, expected);
    inside(
        &format!("cat {conf}/accept_dad {conf}/keep_addr_on_down /proc/sys/net/ipv4/conf/eth0/arp_notify"),
        "0 1 1",
    )?;
    inside("ip -6 addr show dev eth0 scope global tentative", "")?;
    inside(
        "ip -4 route show default | cut -d \" \" -f 1-5",
        "default via 10.88.0.1 dev eth0",
    )?;
    inside(
        "ip -6 route show default | cut -d \" \" -f 1-5",
        "default via 2001:db8:4860::1 dev eth0",
    )?;
    let shown = bench.host.sh("ip link show dev cni0; ip addr show dev cni0")?;
    for part in ["PROMISC", "10.88.0.1/16", "2001:db8:4860::1/64"] {
        ensure(shown.contains(part), || format!("no {part} in {shown}"))?;
    }
    prints(
        bench,
        None,
        "cat /proc/sys/net/ipv6/conf/cni0/accept_ra /proc/sys/net/ipv6/conf/all/forwarding",
        "0 1",
    )?;
    let six = bench.host.sh("ip6tables-save -t nat")?;
    has(
        &six,
        &["-p tcp --dport 8080 -j DNAT --to-destination [2001:db8:4860::2]:80"],
    )?;
    ensure(!six.contains("::1/128"), || {
        format!("a rule for the loopback address: {six}")
    })?;
    network.check("k1", &ports, &result, &as_it_is)?;
    network.del("k1", &ports, &result, &as_it_is)?;
    let left = bench
        .host
        .sh("{ iptables-save; ip6tables-save; } | grep -e 10.88.0.2 -e 4860::2 || true")?;
    same("left", &left.as_str(), &"")
}

fn nerdctl(bench: &Bench) -> Done {
    let network = published::nerdctl();
    bench.host.netns("c1")?;
    let result = network.add("c1", &Value::Null, &as_it_is)?;
    let filter = bench.host.sh("iptables-save -t filter")?;
    has(
        &filter,
        &[
            "-A CNI-ISOLATION-STAGE-1 -i nerdctl0 ! -o nerdctl0 -j CNI-ISOLATION-STAGE-2",
            "-A CNI-ISOLATION-STAGE-1 -j RETURN",
            "-A CNI-ISOLATION-STAGE-2 -o nerdctl0 -j DROP",
            "-A CNI-ISOLATION-STAGE-2 -j RETURN",
        ],
    )?;
    let stage = first(&filter, "FORWARD");
    ensure(stage.ends_with("-j CNI-ISOLATION-STAGE-1"), || {
        format!("first in FORWARD: {stage}")
    })?;
    network.check("c1", &Value::Null, &result, &as_it_is)?;
    network.del("c1", &Value::Null, &result, &as_it_is)
}

fn firecracker(bench: &Bench) -> Done {
    let network = published::firecracker();
    bench.host.netns("c1")?;
    let result = network.add("c1", &Value::Null, &as_it_is)?;
    let servers = bench.host.sh("sed -n 's/^nameserver *//p' /etc/resolv.conf | xargs")?;
    let told = result["dns"]["nameservers"].as_array().into_iter().flatten();
    let told: Vec<&str> = told.filter_map(Value::as_str).collect();
    same("name servers", &told.join(" "), &servers)?;
    let inside = bench.host.sh_in("c1", "ip route show")?;
    for part in [
        "192.168.127.1 dev eth0 scope link",
        "192.168.127.0/24 via 192.168.127.1",
    ] {
        ensure(inside.contains(part), || format!("no {part} in {inside}"))?;
    }
    let outside = bench.host.sh("ip route show 192.168.127.2")?;
    ensure(outside.contains("dev veth") && outside.contains("scope host"), || {
        format!("the host's route to the container: {outside:?}")
    })?;
    network.check("c1", &Value::Null, &result, &as_it_is)?;
    network.del("c1", &Value::Null, &result, &as_it_is)
}
