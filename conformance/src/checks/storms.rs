//! Many containers at once, and how many programs one of them costs.

use std::collections::BTreeSet;
use std::thread;

use serde_json::Value;

use super::published::{Network, nomad, two_ports};
use super::{Bench, Check, Done, Plugins, Source, Stop, ensure, same};
use crate::call::Call;
use crate::feature::Feature;
use crate::host::FILES;

const fn check(id: &'static str, source: &'static str, rule: &'static str, run: fn(&Bench) -> Done) -> Check {
    Check {
        id,
        source: Source::Practice(source),
        rule,
        plugins: Plugins::Named(&["bridge", "loopback", "host-local", "firewall", "portmap"]),
        needs: &[Feature::Iptables],
        run,
    }
}

pub(super) const CHECKS: &[Check] = &[
    check(
        "storms/nomad-at-boot",
        "containerd issue 3507: all containers start when a node boots",
        "100 ADDs of Nomad's chain at once on a node without the bridge succeed, each shared rule is there once, and 100 DELs \
         leave nothing",
        at_boot,
    ),
    check(
        "storms/programs-of-one-container",
        "containernetworking/plugins issue 510: a pod cost dozens of iptables",
        "ADD and DEL of Nomad's chain start at most four programs each",
        few_programs,
    ),
];

const CONTAINERS: u16 = 100;

/// Programs for rules: one for each of bridge, firewall and portmap, and one more.
const BUDGET: usize = 4;

/// Does something for all containers at once.
fn all_at_once<R: Send>(work: impl Fn(&str, &Value) -> Result<R, Stop> + Sync) -> Result<Vec<R>, Stop> {
    let work = &work;
    let outcomes: Vec<_> = thread::scope(|scope| {
        let start = |n: u16| scope.spawn(move || work(&format!("c{n}"), &two_ports(20_000 + n)));
        let threads: Vec<_> = (0..CONTAINERS).map(start).collect();
        threads.into_iter().flat_map(thread::ScopedJoinHandle::join).collect()
    });
    outcomes.into_iter().collect()
}

fn at_boot(bench: &Bench) -> Done {
    let (network, as_it_is) = (nomad(), |call: Call| call);
    bench.host.sh(&format!(
        "for n in $(seq 0 {}); do ip netns add c$n; done",
        CONTAINERS - 1
    ))?;
    let results = all_at_once(|id, ports| network.add(id, ports, &as_it_is))?;
    let given: BTreeSet<String> = results
        .iter()
        .map(|result| result["ips"][0]["address"].to_string())
        .collect();
    same("different addresses", &given.len(), &usize::from(CONTAINERS))?;
    let gateway = bench
        .host
        .sh("ip -o -4 addr show dev nomad | awk '{ print $4 }' | xargs")?;
    same("the bridge's addresses", &gateway.as_str(), &"172.26.64.1/20")?;
    let rules = bench.host.sh("iptables-save")?;
    for (chain, target) in [
        ("PREROUTING", "CNI-HOSTPORT-DNAT"),
        ("OUTPUT", "CNI-HOSTPORT-DNAT"),
        ("POSTROUTING", "CNI-HOSTPORT-MASQ"),
        ("FORWARD", "CNI-FORWARD"),
    ] {
        let leads = |line: &&str| line.starts_with(&format!("-A {chain} ")) && line.ends_with(&format!("-j {target}"));
        same(
            &format!("rules from {chain} to {target}"),
            &rules.lines().filter(leads).count(),
            &1,
        )?;
    }
    let result = |id: &str| {
        id.trim_start_matches('c')
            .parse()
            .ok()
            .and_then(|n: usize| results.get(n))
    };
    all_at_once(|id, ports| network.del(id, ports, result(id).unwrap_or(&Value::Null), &as_it_is))?;
    let left = bench.host.sh(
        "ip -br link show type veth; find /var/lib/cni -name '172.*'; iptables-save | grep -e 172.26.64 -e CNI-DN- || true",
    )?;
    same("left", &left.as_str(), &"")
}

/// Programs in front of the real ones that note that they were started. The files have the names of the real ones, by which
/// a plugin may tell one implementation of iptables from the other.
fn counted(bench: &Bench) -> Result<impl Fn(Call) -> Call + Sync + use<>, Stop> {
    bench.host.sh(&format!(
        "mkdir {FILES}/bin; : > {FILES}/started
        for real in $(IFS=:; find $PATH -name '*tables*' -o -name nft); do
            mkdir -p {FILES}/counted
            counted={FILES}/counted/$(basename $(readlink -f $real))
            printf '#!/bin/sh\\necho ${{0##*/}} >> {FILES}/started\\nexec %s/${{0##*/}} \"$@\"\\n' $(dirname $real) > $counted
            chmod 755 $counted
            ln -sf $counted {FILES}/bin/$(basename $real)
        done"
    ))?;
    let path = format!("{FILES}/bin:{}", bench.host.sh("echo $PATH")?);
    Ok(move |call: Call| call.with("PATH", &path))
}

fn few_programs(bench: &Bench) -> Done {
    let (network, change): (Network, _) = (nomad(), counted(bench)?);
    bench.host.netns("c1")?;
    let started = || {
        bench
            .host
            .sh(&format!("sort {FILES}/started | uniq -c | xargs; : > {FILES}/started"))
    };
    let budget = |verb: &str, started: &str| {
        let counts = started.split_whitespace().filter_map(|word| word.parse::<usize>().ok());
        ensure(counts.sum::<usize>() <= BUDGET, || format!("{verb} started {started}"))
    };
    let result = network.add("c1", &two_ports(8080), &change)?;
    let by_add = started()?;
    network.del("c1", &two_ports(8080), &result, &change)?;
    let by_del = started()?;
    budget("ADD", &by_add)?;
    budget("DEL", &by_del)
}
