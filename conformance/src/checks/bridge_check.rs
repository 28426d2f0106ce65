//! bridge: what CHECK finds.

use serde_json::json;

use super::bridge::{conf, host_veth};
use super::{Bench, Check, Done, Plugins, Source, ensure};

const fn check(id: &'static str, rule: &'static str, run: fn(&Bench) -> Done) -> Check {
    Check {
        id,
        source: Source::Spec("section 2, CHECK"),
        rule,
        plugins: Plugins::Named(&["bridge", "host-local"]),
        needs: &[],
        run,
    }
}

pub(super) const CHECKS: &[Check] = &[
    check(
        "bridge/check-route-gone",
        "CHECK fails when a route of the result is gone",
        |bench| finds(bench, "ip -n c1 route del 10.244.0.0/16"),
    ),
    check(
        "bridge/check-default-route-gone",
        "CHECK fails when the default route is gone",
        |bench| finds(bench, "ip -n c1 route del default"),
    ),
    check(
        "bridge/check-default-route-elsewhere",
        "CHECK fails when the default route has another gateway",
        |bench| finds(bench, "ip -n c1 route replace default via 10.1.0.9"),
    ),
    check(
        "bridge/check-address-replaced",
        "CHECK fails when the interface has another address",
        |bench| {
            finds(
                bench,
                "ip -n c1 addr flush dev eth0; ip -n c1 addr add 10.1.0.9/24 dev eth0
            ip -n c1 route add default via 10.1.0.1; ip -n c1 route add 10.244.0.0/16 via 10.1.0.1",
            )
        },
    ),
    check(
        "bridge/check-detached",
        "CHECK fails when the host veth is no port of the bridge",
        |bench| finds(bench, "ip link set VETH nomaster"),
    ),
    check(
        "bridge/check-mac-changed",
        "CHECK fails when the container's interface has another MAC",
        |bench| finds(bench, "ip -n c1 link set dev eth0 address 02:00:00:00:00:99"),
    ),
    check(
        "bridge/check-bridge-gone",
        "CHECK fails when the bridge is gone",
        |bench| finds(bench, "ip link del br1"),
    ),
    check(
        "bridge/check-reservation-gone",
        "CHECK fails when IPAM does not know the address",
        |bench| finds(bench, "rm /var/lib/cni/networks/net/10.1.0.2"),
    ),
    check("bridge/check-needs-result", "CHECK without prevResult fails", |bench| {
        let attached = bench.attach_new("c1", &conf(json!({})))?;
        bench.call("CHECK", "c1", &attached.conf)?.error()?;
        Ok(())
    }),
];

/// Attaches, lets `change` happen, and expects CHECK to notice.
fn finds(bench: &Bench, change: &str) -> Done {
    let ipam = json!({ "type": "host-local", "subnet": "10.1.0.0/24", "routes": [{ "dst": "10.244.0.0/16" }] });
    let attached = bench.attach_new("c1", &conf(json!({ "isDefaultGateway": true, "ipam": ipam })))?;
    bench.check(&attached)?.silent()?;
    bench.host.sh(&change.replace("VETH", host_veth(&attached.result)?))?;
    let refusal = bench.check(&attached)?.error()?;
    ensure(!refusal.text.is_empty(), || "the error says nothing".to_owned())
}
