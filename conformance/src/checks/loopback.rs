//! loopback.

use serde_json::{Value, json};

use super::{Bench, Check, Done, Plugins, Source, ensure};

const fn check(id: &'static str, rule: &'static str, run: fn(&Bench) -> Done) -> Check {
    Check {
        id,
        source: Source::Documentation("loopback"),
        rule,
        plugins: Plugins::Named(&["loopback"]),
        needs: &[],
        run,
    }
}

pub(super) const CHECKS: &[Check] = &[
    check(
        "loopback/up",
        "lo is up after ADD, and its addresses are in the result",
        up,
    ),
    check("loopback/check-finds-it-down", "CHECK fails when lo is down", |bench| {
        let attached = bench.attach("c1", "1.0.0")?;
        bench.host.sh("ip -n c1 link set lo down")?;
        bench.check(&attached)?.error()?;
        Ok(())
    }),
    check("loopback/del-takes-it-down", "lo is down after DEL", |bench| {
        bench.detach(&bench.attach("c1", "1.0.0")?)?;
        let shown = bench.host.sh("ip -n c1 link show dev lo")?;
        ensure(!shown.contains(",UP"), || shown)
    }),
    check(
        "loopback/own-namespace-on-del",
        "a DEL for the host's own namespace leaves the host's lo up",
        |bench| {
            let conf = json!({ "cniVersion": "1.0.0", "name": "net", "type": "loopback" });
            let call = bench.calling("DEL", "c1", &conf).with("CNI_NETNS", "/proc/self/ns/net");
            call.run()?;
            let shown = bench.host.sh("ip link show dev lo")?;
            ensure(shown.contains(",UP"), || shown)
        },
    ),
];

fn up(bench: &Bench) -> Done {
    let conf = json!({ "cniVersion": "1.0.0", "name": "net", "type": "loopback" });
    bench.host.netns("c1")?;
    bench.host.sh("ip -n c1 link set lo down")?;
    let result = bench.attach_with("c1", conf)?.result;
    let shown = bench.host.sh("ip -n c1 link show dev lo")?;
    ensure(shown.contains(",UP"), || shown)?;
    let ips = result.get("ips").and_then(Value::as_array).cloned().unwrap_or_default();
    let found = ips.iter().any(|ip| ip["address"] == "127.0.0.1/8");
    ensure(found, || format!("no 127.0.0.1/8 in {result}"))
}
