//! Plugins that are killed at work: what the next DEL finds.

use std::time::Duration;

use serde_json::json;

use super::bridge::conf;
use super::{Bench, Check, Done, Plugins, Source, ensure, same};
use crate::feature::Feature;
use crate::state::State;

/// How long ADD may work, in milliseconds, before it is killed: from before it has begun to after its end.
const MOMENTS: [u64; 16] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256];

pub(super) const CHECKS: &[Check] = &[Check {
    id: "crash/killed-add",
    source: Source::Practice("nodes that run out of memory, and runtimes that kill a plugin when its time is over"),
    rule: "whenever an ADD is killed, the next DEL succeeds and leaves nothing, and the next ADD works",
    plugins: Plugins::Named(&["bridge", "host-local"]),
    needs: &[Feature::Iptables],
    run: killed_add,
}];

fn killed_add(bench: &Bench) -> Done {
    let conf = conf(json!({ "ipMasq": true }));
    let neighbour = bench.attach_new("c1", &conf)?;
    bench.host.netns("c2")?;
    let before = State::read(bench.host)?;
    for moment in MOMENTS {
        let add = bench.calling("ADD", "c2", &conf);
        add.kill_after(Duration::from_millis(moment))?;
        let told = |what: &str| format!("{what} after {moment} ms");
        let empty = bench.host.sh("find /var/lib/cni -name '10.*' -size 0")?;
        same(&told("empty reservations"), &empty.as_str(), &"")?;
        bench.call("DEL", "c2", &conf)?.silent()?;
        let left = bench.host.sh_in("c2", "ip -br link | grep -v '^lo ' || true")?;
        same(&told("left in the container by an ADD killed"), &left.as_str(), &"")?;
        let changes = State::read(bench.host)?.changes(&before);
        ensure(changes.is_empty(), || {
            told(&format!("left behind by an ADD killed ({changes})"))
        })?;
    }
    let attached = bench.attach_with("c2", conf)?;
    bench.check(&attached)?.silent()?;
    bench.check(&neighbour)?.silent()
}
