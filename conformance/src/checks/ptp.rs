//! ptp.

use serde_json::{Value, json};

use super::{Bench, Check, Done, Plugins, Source, ensure, same};
use crate::feature::Feature;

const fn check(id: &'static str, source: Source, rule: &'static str, run: fn(&Bench) -> Done) -> Check {
    Check {
        id,
        source,
        rule,
        plugins: Plugins::Named(&["ptp", "host-local"]),
        needs: &[Feature::Traffic],
        run,
    }
}

pub(super) const CHECKS: &[Check] = &[
    check(
        "ptp/routes",
        Source::Documentation("ptp"),
        "the container has a route to its gateway and by it to its subnet; the host has one to the container",
        routes,
    ),
    check(
        "ptp/reaches-host-and-neighbour",
        Source::Documentation("ptp"),
        "containers reach the host and each other",
        |bench| {
            bench.attach_new("c1", &conf())?;
            bench.attach_new("c2", &conf())?;
            bench.host.sh("sysctl -qw net.ipv4.ip_forward=1")?;
            let server = bench.host.serve("c1", "TCP", 80)?;
            let seen = bench.host.ask(Some("c2"), "TCP:10.1.0.2:80")?;
            same("the peer that c1 sees", &seen.as_str(), &"10.1.0.3")?;
            let seen = bench.host.ask(None, "TCP:10.1.0.2:80")?;
            drop(server);
            same("the peer that c1 sees", &seen.as_str(), &"10.1.0.1")
        },
    ),
    check(
        "ptp/mtu",
        Source::Documentation("ptp, mtu"),
        "both ends of the pair have the MTU",
        |bench| {
            let mut conf = conf();
            conf["mtu"] = json!(1400);
            bench.attach_new("c1", &conf)?;
            let inside = bench
                .host
                .sh_in("c1", "cat /proc/net/dev >/dev/null; ip -o link show dev eth0")?;
            let outside = bench.host.sh("ip -o link show type veth")?;
            ensure(inside.contains("mtu 1400") && outside.contains("mtu 1400"), || {
                format!("{inside} {outside}")
            })
        },
    ),
    check(
        "ptp/dns",
        Source::Documentation("ptp, dns"),
        "dns of the network is in the result",
        |bench| {
            let mut conf = conf();
            conf["dns"] = json!({ "nameservers": ["192.0.2.53"] });
            let result = bench.attach_new("c1", &conf)?.result;
            same("dns", &result["dns"], &conf["dns"])
        },
    ),
];

fn conf() -> Value {
    let ipam = json!({ "type": "host-local", "subnet": "10.1.0.0/24" });
    json!({ "cniVersion": "1.0.0", "name": "net", "type": "ptp", "ipam": ipam })
}

fn routes(bench: &Bench) -> Done {
    bench.attach_new("c1", &conf())?;
    let inside = bench.host.sh_in("c1", "ip route show")?;
    for part in ["10.1.0.0/24 via 10.1.0.1 dev eth0", "10.1.0.1 dev eth0 scope link"] {
        ensure(inside.contains(part), || format!("no {part} in {inside}"))?;
    }
    let outside = bench.host.sh("ip route show 10.1.0.2")?;
    ensure(outside.contains("dev veth"), || {
        format!("the host's route to the container: {outside:?}")
    })
}
