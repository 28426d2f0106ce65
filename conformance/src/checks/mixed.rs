//! A node whose plugins are replaced while containers run: what one directory attached, the other checks and detaches.

use std::collections::BTreeSet;
use std::thread;

use serde_json::json;

use super::host_local::{addresses, subnet};
use super::published::{self, Network, two_ports};
use super::{Bench, Check, Done, Plugins, Source, Stop, ensure, same, with};
use crate::call::Call;
use crate::feature::Feature;
use crate::host::{BESIDE, PLUGINS};
use crate::state::State;

const fn check(
    plugins: &'static [&'static str],
    id: &'static str,
    rule: &'static str,
    run: fn(&Bench) -> Done,
) -> Check {
    Check {
        id,
        source: Source::Practice("nodes are upgraded, and downgraded, while containers run"),
        rule,
        plugins: Plugins::Named(plugins),
        needs: &[Feature::Iptables, Feature::Ipv6],
        run,
    }
}

const BOTH_WAYS: &str = "what either directory attached, the other one checks and detaches, and nothing is left";

pub(super) const CHECKS: &[Check] = &[
    check(
        &["bridge", "loopback", "host-local", "firewall", "portmap"],
        "mixed/nomad",
        BOTH_WAYS,
        |bench| both_ways(bench, &published::nomad()),
    ),
    check(
        &["bridge", "host-local", "portmap"],
        "mixed/containerd",
        BOTH_WAYS,
        |bench| both_ways(bench, &published::containerd()),
    ),
    check(
        &["bridge", "host-local", "firewall", "portmap", "tuning"],
        "mixed/nerdctl",
        BOTH_WAYS,
        |bench| both_ways(bench, &published::nerdctl()),
    ),
    check(
        &["ptp", "host-local", "firewall"],
        "mixed/firecracker",
        BOTH_WAYS,
        |bench| both_ways(bench, &published::firecracker()),
    ),
    check(
        &["host-local"],
        "mixed/gc",
        "GC releases the addresses that the other directory's host-local gave out, and keeps those that are valid",
        gc,
    ),
    check(
        &["host-local"],
        "mixed/parallel-addresses",
        "100 ADDs at once, every other one by the other directory's host-local, get 100 addresses",
        parallel,
    ),
];

/// The plugins of the first directory.
fn ours(call: Call) -> Call {
    call.from(PLUGINS)
}

/// Those of the second.
fn theirs(call: Call) -> Call {
    call.from(BESIDE)
}

fn needs_beside(bench: &Bench, plugins: &[&str]) -> Done {
    let Some(beside) = bench.beside else {
        return Err(Stop::NotApplicable(
            "there is no second directory (see --compare)".to_owned(),
        ));
    };
    match plugins.iter().find(|plugin| !beside.contains(**plugin)) {
        Some(missing) => Err(Stop::NotApplicable(format!(
            "the second directory has no plugin {missing}"
        ))),
        None => Ok(()),
    }
}

fn both_ways(bench: &Bench, network: &Network) -> Done {
    let plugins: Vec<&str> = network
        .plugins
        .iter()
        .filter_map(|plugin| plugin["type"].as_str())
        .collect();
    needs_beside(bench, &plugins)?;
    needs_beside(bench, &["host-local"])?;
    let way = |names: &str, adds: fn(Call) -> Call, deletes: fn(Call) -> Call, n: u16| {
        let id = format!("c{n}");
        bench.host.netns(&id)?;
        // What each of them keeps for all its containers is there before.
        for (k, suite) in [(0, adds), (1, deletes)] {
            let neighbour = format!("n{n}{k}");
            bench.host.netns(&neighbour)?;
            network.add(&neighbour, &two_ports(9000 + 10 * n + k), &suite)?;
        }
        let before = State::read(bench.host)?;
        let result = network.add(&id, &two_ports(8000 + n), &adds)?;
        network.check(&id, &two_ports(8000 + n), &result, &deletes)?;
        network.del(&id, &two_ports(8000 + n), &result, &deletes)?;
        // What a suite notes for itself in /run the other cannot know of, and the next boot takes it away.
        let changes = State::read(bench.host)?.changes(&before);
        let changes: Vec<_> = changes
            .lines()
            .filter(|line| !line.starts_with("+ file /run/"))
            .collect();
        ensure(changes.is_empty(), || {
            format!("{names}: left behind: {}", changes.join("\n"))
        })
    };
    way("attached by the second, detached by the first", theirs, ours, 1)?;
    way("attached by the first, detached by the second", ours, theirs, 2)
}

fn gc(bench: &Bench) -> Done {
    needs_beside(bench, &["host-local"])?;
    bench.speaks("1.1.0")?;
    let conf = with(&subnet("10.1.0.0/24"), json!({ "cniVersion": "1.1.0" }));
    for id in ["c1", "c2", "c3"] {
        theirs(bench.calling("ADD", id, &conf)).run()?.result()?;
    }
    let valid = json!([{ "containerID": "c1", "ifname": "eth0" }]);
    let keys = json!({ "cni.dev/valid-attachments": valid, "cni.dev/attachments": valid });
    bench.call("GC", "c1", &with(&conf, keys))?.silent()?;
    let left = bench.host.sh("cd /var/lib/cni/networks/net; ls -d 10.* | xargs")?;
    same("reserved", &left.as_str(), &"10.1.0.2")
}

fn parallel(bench: &Bench) -> Done {
    needs_beside(bench, &["host-local"])?;
    let conf = subnet("10.1.0.0/24");
    let replies: Vec<_> = thread::scope(|scope| {
        let start = |n: u16| {
            let call = bench.calling("ADD", &format!("c{n}"), &conf);
            let call = if n.is_multiple_of(2) { call } else { theirs(call) };
            scope.spawn(move || call.run())
        };
        let threads: Vec<_> = (0..100).map(start).collect();
        threads.into_iter().flat_map(thread::ScopedJoinHandle::join).collect()
    });
    let mut given = BTreeSet::new();
    for reply in replies {
        let result = reply?.result()?;
        given.extend(addresses(&result).into_iter().map(str::to_owned));
    }
    same("different addresses", &given.len(), &100)
}
