//! GC and STATUS, the verbs of 1.1.0.

use serde_json::{Value, json};

use super::{Bench, Check, Done, Kind, Plugins, Source, Specimen, Stop, ensure, with};
use crate::call::Call;
use crate::host::PLUGINS;
use crate::state::State;

const GC: Source = Source::Spec("section 2, GC");
const STATUS: Source = Source::Spec("section 2, STATUS");

const fn check(id: &'static str, source: Source, rule: &'static str, run: fn(&Bench) -> Done) -> Check {
    Check {
        id,
        source,
        rule,
        plugins: Plugins::Configured,
        needs: &[],
        run,
    }
}

pub(super) const CHECKS: &[Check] = &[
    check(
        "gc/keeps-what-is-valid",
        GC,
        "GC leaves every attachment alone that it is told of",
        keeps_valid,
    ),
    check(
        "gc/removes-what-is-not",
        GC,
        "GC removes what belongs to attachments that it is not told of",
        removes_stale,
    ),
    check(
        "gc/removes-all",
        GC,
        "an empty list of attachments means that none is valid",
        removes_all,
    ),
    check(
        "gc/needs-a-list",
        GC,
        "GC without cni.dev/valid-attachments is refused with code 7 and changes nothing",
        needs_list,
    ),
    check(
        "status/ready",
        STATUS,
        "a plugin that can take ADD says so by silence",
        |bench| {
            let conf = bare(bench, "c1")?;
            network_call(bench, "STATUS", &conf).run()?.silent()
        },
    ),
];

fn network_call(bench: &Bench, verb: &str, conf: &Value) -> Call {
    let call = Call::new(bench.plugin, verb).with("CNI_PATH", PLUGINS).conf(conf);
    ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"]
        .into_iter()
        .fold(call, Call::without)
}

/// The configuration as GC and STATUS have it: of the network, not of a container.
fn bare(bench: &Bench, id: &str) -> Result<Value, Stop> {
    let mut conf = bench.prepare(id, "1.1.0")?;
    if let Some(conf) = conf.as_object_mut() {
        conf.remove("prevResult");
        conf.remove("runtimeConfig");
    }
    Ok(conf)
}

fn collect(bench: &Bench, conf: &Value, valid: &[&str]) -> Done {
    let ifname = if bench.plugin == "loopback" { "lo" } else { "eth0" };
    let valid: Vec<Value> = valid
        .iter()
        .map(|id| json!({ "containerID": id, "ifname": ifname }))
        .collect();
    // libcni 1.3 writes the list under the name that the specification first had as well.
    let conf = with(
        conf,
        json!({ "cni.dev/valid-attachments": valid, "cni.dev/attachments": valid }),
    );
    network_call(bench, "GC", &conf).run()?.silent()
}

fn keeps_valid(bench: &Bench) -> Done {
    let first = bench.attach("c1", "1.1.0")?;
    let second = bench.attach("c2", "1.1.0")?;
    let before = State::read(bench.host)?;
    collect(bench, &bare(bench, "c3")?, &["c1", "c2"])?;
    let changes = State::without_links(bench.host)?.changes(&before);
    let lost: Vec<_> = changes.lines().filter(|line| line.starts_with('+')).collect();
    ensure(lost.is_empty(), || format!("GC changed: {changes}"))?;
    bench.check(&first)?.silent()?;
    bench.check(&second)?.silent()
}

fn removes_stale(bench: &Bench) -> Done {
    let first = bench.attach("c1", "1.1.0")?;
    let conf = bench.prepare("c2", "1.1.0")?;
    let before = State::without_links(bench.host)?;
    bench.attach_with("c2", conf)?;
    collect(bench, &bare(bench, "c3")?, &["c1"])?;
    let changes = State::without_links(bench.host)?.changes(&before);
    ensure(changes.is_empty(), || format!("left behind: {changes}"))?;
    bench.check(&first)?.silent()
}

fn removes_all(bench: &Bench) -> Done {
    // Shared chains and files are there after one DEL, and may stay.
    let first = bench.attach("c1", "1.1.0")?;
    bench.detach(&first)?;
    let conf = bench.prepare("c2", "1.1.0")?;
    let network = bare(bench, "c3")?;
    bench.attach_with("c2", conf.clone())?;
    collect(bench, &network, &[])?;
    if Specimen::of(bench)?.kind == Kind::Ipam && bench.plugin == "static" {
        return Ok(());
    }
    let left = State::without_links(bench.host)?;
    bench.call("DEL", "c2", &conf)?.silent()?;
    let changes = left.changes(&State::without_links(bench.host)?);
    ensure(changes.is_empty(), || {
        format!("GC left what DEL then removed: {changes}")
    })
}

fn needs_list(bench: &Bench) -> Done {
    let attached = bench.attach("c1", "1.1.0")?;
    network_call(bench, "GC", &bare(bench, "c2")?).run()?.refused(7)?;
    bench.check(&attached)?.silent()
}
