//! From ADD to DEL: what may fail, what must not, and that nothing is left.

use serde_json::{Value, json};

use super::{Attached, Bench, Check, Done, Kind, Plugins, Source, Specimen, Stop, ensure};
use crate::host::{Host, HostError};
use crate::state::State;

const ADD: Source = Source::Spec("section 2, ADD");
const DEL: Source = Source::Spec("section 2, DEL");
const CHECK: Source = Source::Spec("section 2, CHECK");

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
        "add/prints-one-document",
        Source::Spec("section 5, Result types"),
        "what ADD prints on standard output is one JSON object and nothing else",
        |bench| bench.attach("c1", "1.0.0").map(drop),
    ),
    check(
        "add/missing-namespace",
        ADD,
        "ADD for a namespace that is not there fails, and leaves nothing",
        missing_namespace,
    ),
    check(
        "add/interface-name-taken",
        ADD,
        "if CNI_IFNAME exists already, ADD fails, and what exists survives",
        name_taken,
    ),
    check(
        "add/one-container-two-interfaces",
        ADD,
        "a container may be attached twice under different interface names",
        two_interfaces,
    ),
    check(
        "check/after-add",
        CHECK,
        "CHECK right after ADD succeeds and prints nothing",
        |bench| bench.check(&bench.attach("c1", "1.0.0")?)?.silent(),
    ),
    check(
        "check/after-add-0.4.0",
        CHECK,
        "CHECK right after ADD succeeds and prints nothing",
        |bench| bench.check(&bench.attach("c1", "0.4.0")?)?.silent(),
    ),
    check(
        "check/interface-gone",
        CHECK,
        "CHECK fails when the interface of the result is gone",
        interface_gone,
    ),
    check("del/after-add", DEL, "DEL succeeds and prints nothing", |bench| {
        bench.detach(&bench.attach("c1", "1.0.0")?)
    }),
    check("del/twice", DEL, "a DEL of what is gone already succeeds", twice),
    check(
        "del/never-added-without-namespace",
        DEL,
        "DEL of what never was succeeds without CNI_NETNS",
        |bench| never_added(bench, ""),
    ),
    check(
        "del/never-added-missing-namespace",
        DEL,
        "DEL of what never was succeeds if the namespace does not exist, and does not create its path",
        |bench| never_added(bench, "/run/netns/missing"),
    ),
    check(
        "del/never-added-empty-namespace",
        DEL,
        "DEL of what never was succeeds if the namespace is there but the interface is not",
        |bench| never_added(bench, "/run/netns/empty"),
    ),
    Check {
        id: "del/never-added-and-nothing-there",
        source: DEL,
        rule: "DEL of what never was succeeds without CNI_NETNS, with a missing and with an empty namespace, on a host that lacks all that the configuration names; and creates no path",
        plugins: Plugins::Each,
        needs: &[],
        run: nothing_there,
    },
    check(
        "del/leaves-nothing",
        DEL,
        "after DEL with prevResult the host is as before ADD, up to what a neighbour shares",
        |bench| leaves_nothing(bench, State::read, |c| bench.detach(c)),
    ),
    check(
        "del/leaves-nothing-without-prev-result",
        DEL,
        "after DEL without prevResult the host is as before ADD",
        |bench| {
            leaves_nothing(bench, State::read, |c| {
                bench.call("DEL", &c.id, &without_result(c))?.silent()
            })
        },
    ),
    check(
        "del/leaves-nothing-without-namespace",
        DEL,
        "DEL without CNI_NETNS but with prevResult removes rules and reservations",
        |bench| {
            leaves_nothing(bench, State::without_links, |c| {
                bench
                    .calling("DEL", &c.id, &c.with_result())
                    .with("CNI_NETNS", "")
                    .run()?
                    .silent()
            })
        },
    ),
    check(
        "del/leaves-nothing-with-neither",
        DEL,
        "DEL with neither CNI_NETNS nor prevResult removes rules and reservations",
        |bench| {
            leaves_nothing(bench, State::without_links, |c| {
                bench
                    .calling("DEL", &c.id, &without_result(c))
                    .with("CNI_NETNS", "")
                    .run()?
                    .silent()
            })
        },
    ),
    check(
        "del/leaves-nothing-after-the-namespace",
        DEL,
        "DEL after the namespace has vanished removes rules and reservations",
        |bench| {
            leaves_nothing(bench, State::without_links, |c| {
                bench.host.sh(&format!("ip netns del {}", c.id))?;
                bench.call("DEL", &c.id, &c.with_result())?.silent()
            })
        },
    ),
    check(
        "add/again-after-del",
        DEL,
        "after a DEL, ADD of the same container works again",
        again,
    ),
];

fn kind(bench: &Bench) -> Result<Kind, Stop> {
    Ok(Specimen::of(bench)?.kind)
}

fn not_for_ipam(bench: &Bench) -> Done {
    match kind(bench)? {
        Kind::Ipam => Err(Stop::NotApplicable(
            "an IPAM plugin need not look into the namespace".to_owned(),
        )),
        _ => Ok(()),
    }
}

fn missing_namespace(bench: &Bench) -> Done {
    not_for_ipam(bench)?;
    if kind(bench)? == Kind::Chained {
        return Err(Stop::NotApplicable(
            "a chained plugin need not look into the namespace".to_owned(),
        ));
    }
    let conf = bench.prepare("c1", "1.0.0")?;
    bench.host.sh("ip netns del c1")?;
    let before = State::read(bench.host)?;
    bench.call("ADD", "c1", &conf)?.error()?;
    let changes = State::read(bench.host)?.changes(&before);
    ensure(changes.is_empty(), || format!("the failed ADD left: {changes}"))
}

fn name_taken(bench: &Bench) -> Done {
    if kind(bench)? != Kind::Interface {
        return Err(Stop::NotApplicable("the plugin makes no interface".to_owned()));
    }
    let conf = bench.prepare("c1", "1.0.0")?;
    bench.host.sh("ip link add other type veth peer name eth0 netns c1")?;
    let before = bench.host.sh_in("c1", "ip -br link show dev eth0")?;
    let files = State::without_links(bench.host)?;
    bench.call("ADD", "c1", &conf)?.error()?;
    let after = bench.host.sh_in("c1", "ip -br link show dev eth0")?;
    super::same("eth0", &after, &before)?;
    let changes = State::without_links(bench.host)?.changes(&files);
    ensure(changes.is_empty(), || format!("the failed ADD left: {changes}"))
}

fn two_interfaces(bench: &Bench) -> Done {
    if kind(bench)? != Kind::Interface {
        return Err(Stop::NotApplicable("the plugin makes no interface".to_owned()));
    }
    let first = bench.attach("c1", "1.0.0")?;
    let mut conf = first.conf.clone();
    conf["name"] = json!("net2");
    let second = bench.calling("ADD", "c1", &conf).with("CNI_IFNAME", "eth1");
    // Another network on the same host has another subnet; the same address twice is its administrator's mistake.
    if let Some(subnet) = conf.pointer_mut("/ipam/subnet") {
        *subnet = json!("10.3.0.0/24");
    }
    if conf.get("bridge").is_some() {
        conf["bridge"] = json!("br-cni2");
    }
    second.conf(&conf).run()?.result()?;
    let del = bench.calling("DEL", "c1", &conf).with("CNI_IFNAME", "eth1");
    del.run()?.silent()?;
    bench.host.sh_in("c1", "ip link show dev eth0")?;
    bench.check(&first)?.silent()
}

fn interface_gone(bench: &Bench) -> Done {
    if kind(bench)? != Kind::Interface {
        return Err(Stop::NotApplicable("the plugin makes no interface".to_owned()));
    }
    let attached = bench.attach("c1", "1.0.0")?;
    bench.host.sh_in("c1", "ip link del eth0")?;
    bench.check(&attached)?.error()?;
    Ok(())
}

fn twice(bench: &Bench) -> Done {
    let attached = bench.attach("c1", "1.0.0")?;
    bench.detach(&attached)?;
    bench.detach(&attached)?;
    bench.call("DEL", "c1", &without_result(&attached))?.silent()
}

fn never_added(bench: &Bench, netns: &str) -> Done {
    let conf = bench.prepare("c1", "1.0.0")?;
    bench.host.netns("empty")?;
    bench
        .calling("DEL", "c1", &conf)
        .with("CNI_NETNS", netns)
        .run()?
        .silent()?;
    let created = netns.ends_with("missing") && std::fs::exists(netns)?;
    ensure(!created, || format!("DEL created {netns}"))
}

/// Nothing is prepared: neither a master nor a device, nor the kernel's modules for them.
fn nothing_there(bench: &Bench) -> Done {
    let version = bench.versions()?.into_iter().rfind(|version| version == "1.0.0");
    let version = version.ok_or_else(|| Stop::NotApplicable("the plugin does not speak 1.0.0".to_owned()))?;
    let mut conf = match Specimen::of(bench) {
        Ok(specimen) => specimen.conf("c1", &version)?,
        Err(_) => json!({ "cniVersion": version, "name": "net", "type": bench.plugin }),
    };
    for (plugin, keys) in [
        ("host-device", json!({ "device": "gone0" })),
        ("vrf", json!({ "vrfname": "gone0" })),
        ("dhcp", json!({ "ipam": { "type": "dhcp" } })),
        ("tap", json!({})),
    ] {
        if bench.plugin == plugin {
            conf = super::with(&conf, keys);
        }
    }
    if let Some(conf) = conf.as_object_mut() {
        conf.remove("prevResult");
    }
    bench.host.netns("empty")?;
    for netns in ["", "/run/netns/missing", "/run/netns/empty"] {
        let reply = bench.calling("DEL", "c1", &conf).with("CNI_NETNS", netns).run()?;
        reply.silent().map_err(|stop| match stop {
            Stop::Fail(reason) => Stop::Fail(format!("CNI_NETNS={netns}: {reason}")),
            other => other,
        })?;
    }
    ensure(!std::fs::exists("/run/netns/missing")?, || {
        "DEL created /run/netns/missing".to_owned()
    })
}

/// A configuration as DEL has it when the runtime knows of no result. A chained plugin's, too, then has none.
fn without_result(attached: &Attached) -> Value {
    let mut conf = attached.conf.clone();
    if let Some(conf) = conf.as_object_mut() {
        conf.remove("prevResult");
    }
    conf
}

/// A neighbour is attached first: what both share, such as a bridge or a chain of rules, exists before and may stay.
fn leaves_nothing(bench: &Bench, look: Look, detach: impl Fn(&Attached) -> Done) -> Done {
    bench.attach("c1", "1.0.0")?;
    let conf = bench.prepare("c2", "1.0.0")?;
    let before = look(bench.host)?;
    let attached = bench.attach_with("c2", conf)?;
    detach(&attached)?;
    let changes = look(bench.host)?.changes(&before);
    ensure(changes.is_empty(), || format!("left behind: {changes}"))
}

/// What is compared: all, or only what does not vanish with the container's namespace.
type Look = fn(&Host) -> Result<State, HostError>;

fn again(bench: &Bench) -> Done {
    let attached = bench.attach("c1", "1.0.0")?;
    bench.detach(&attached)?;
    if kind(bench)? == Kind::Chained {
        // The interface belongs to another plugin, whose DEL follows.
        bench.host.sh("ip link del vhc1; ip netns del c1")?;
        return bench.attach("c1", "1.0.0").map(drop);
    }
    let repeated = bench.attach_with("c1", attached.conf)?;
    bench.check(&repeated)?.silent()
}
