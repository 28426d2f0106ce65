//! Variables and input that no plugin may accept.

use serde_json::{Value, json};

use super::{Bench, Check, Done, Plugins, Source, ensure};
use crate::call::{Call, Reply};
use crate::state::State;

const PARAMETERS: Source = Source::Spec("section 2, Parameters");
const CODES: Source = Source::Spec("section 5, Error: codes 4, 6 and 7");

const fn check(id: &'static str, source: Source, rule: &'static str, run: fn(&Bench) -> Done) -> Check {
    Check {
        id,
        source,
        rule,
        plugins: Plugins::Each,
        needs: &[],
        run,
    }
}

pub(super) const CHECKS: &[Check] = &[
    check(
        "parameters/container-id-missing",
        CODES,
        "without CNI_CONTAINERID, ADD, CHECK and DEL are refused with code 4",
        |bench| missing(bench, "CNI_CONTAINERID", &["ADD", "CHECK", "DEL"]),
    ),
    check(
        "parameters/netns-missing",
        CODES,
        "without CNI_NETNS, ADD and CHECK are refused with code 4",
        |bench| missing(bench, "CNI_NETNS", &["ADD", "CHECK"]),
    ),
    check(
        "parameters/ifname-missing",
        CODES,
        "without CNI_IFNAME, ADD, CHECK and DEL are refused with code 4",
        |bench| missing(bench, "CNI_IFNAME", &["ADD", "CHECK", "DEL"]),
    ),
    check(
        "parameters/path-missing",
        CODES,
        "without CNI_PATH, ADD, CHECK and DEL are refused with code 4",
        |bench| missing(bench, "CNI_PATH", &["ADD", "CHECK", "DEL"]),
    ),
    check(
        "parameters/command-unknown",
        CODES,
        "a CNI_COMMAND that the specification does not have is refused with code 4",
        |bench| refused(bench, "FOO", &[], 4),
    ),
    check(
        "parameters/container-id-malformed",
        PARAMETERS,
        "a container ID starts with a letter or digit; then may follow letters, digits, _ . and -",
        |bench| {
            ["../x", "-x", "a/b", "a b"]
                .into_iter()
                .try_for_each(|id| refused(bench, "ADD", &[("CNI_CONTAINERID", id)], 4))
        },
    ),
    check(
        "parameters/ifname-malformed",
        PARAMETERS,
        "an interface name has at most 15 bytes, is neither . nor .., and has no /, : or space in it",
        |bench| {
            ["abcdefghijklmnop", ".", "..", "a/b", "a:b", "a b"]
                .into_iter()
                .try_for_each(|ifname| refused(bench, "ADD", &[("CNI_IFNAME", ifname)], 4))
        },
    ),
    check(
        "parameters/input-not-json",
        CODES,
        "input that cannot be decoded is refused with code 6",
        |bench| {
            ["", "rubbish", "{\"cniVersion\":\"1.0.0\"", "[1]", "{}{}"]
                .into_iter()
                .try_for_each(|text| input(bench, text, 6))
        },
    ),
    check(
        "parameters/name-missing",
        CODES,
        "a configuration without a name is invalid: code 7",
        |bench| input(bench, r#"{"cniVersion":"0.4.0"}"#, 7),
    ),
    check(
        "parameters/name-malformed",
        Source::Spec("section 1, name"),
        "a network's name starts with a letter or digit; then may follow letters, digits, _ . and -",
        |bench| {
            ["bad name!", "../x", "-x", "a/b"]
                .into_iter()
                .try_for_each(|name| input(bench, &json!({ "cniVersion": "0.4.0", "name": name }).to_string(), 7))
        },
    ),
    check(
        "parameters/refusals-change-nothing",
        Source::Spec("section 2, ADD"),
        "a refused call leaves the host as it was",
        changes_nothing,
    ),
    check(
        "parameters/own-namespace",
        Source::Practice("containernetworking/plugins issue 714"),
        "a plugin does not attach the host to the host: CNI_NETNS that is its own namespace is refused, once, and nothing changes",
        own_namespace,
    ),
    check(
        "parameters/large-configuration",
        Source::Spec("section 2, Overview: the configuration comes on standard input"),
        "a configuration of 1 MB is no reason to fail or to stop reading",
        large_configuration,
    ),
    check(
        "parameters/too-large-a-configuration",
        Source::Practice("a runtime in a loop; the limit is ours to set, and nobody else has one"),
        "a configuration of 16 MiB ends in a result or in one error object, never in a crash",
        |bench| {
            let text = format!(r#"{{"cniVersion":"1.0.0","name":"net","x":"{}"}}"#, "x".repeat(1 << 24));
            answered(&Call::new(bench.plugin, "ADD").text(text).run()?)
        },
    ),
    check(
        "parameters/broken-utf-8",
        Source::Spec("section 2, Overview: JSON, which is UTF-8"),
        "broken UTF-8 ends in a result or in one error object, never in a crash",
        |bench| {
            let mut text = br#"{"cniVersion":"1.0.0","name":"net","x":""#.to_vec();
            text.extend(b"\xff\xfe\"}");
            answered(&Call::new(bench.plugin, "ADD").text(text).run()?)
        },
    ),
    check(
        "parameters/malformed-values",
        Source::Spec("section 2, Errors"),
        "values of the wrong type end in one error object, never in a crash",
        malformed_values,
    ),
];

/// A configuration that is right as far as all plugins are concerned.
fn good(bench: &Bench) -> Result<Value, super::Stop> {
    let version = bench.versions()?.pop().unwrap_or_default();
    Ok(json!({ "cniVersion": version, "name": "net", "type": bench.plugin }))
}

fn refused(bench: &Bench, verb: &str, variables: &[(&str, &str)], code: u64) -> Done {
    let call = Call::new(bench.plugin, verb).conf(&good(bench)?);
    let call = variables
        .iter()
        .fold(call, |call, (name, value)| call.with(name, value));
    call.run()?.refused(code)?;
    Ok(())
}

fn missing(bench: &Bench, variable: &str, verbs: &[&str]) -> Done {
    for verb in verbs {
        let call = Call::new(bench.plugin, verb).conf(&good(bench)?);
        call.clone().with(variable, "").run()?.refused(4)?;
        call.without(variable).run()?.refused(4)?;
    }
    Ok(())
}

fn input(bench: &Bench, text: &str, code: u64) -> Done {
    for verb in ["ADD", "DEL"] {
        Call::new(bench.plugin, verb).text(text).run()?.refused(code)?;
    }
    Ok(())
}

fn changes_nothing(bench: &Bench) -> Done {
    bench.host.netns("a")?;
    let before = State::read(bench.host)?;
    for variable in ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"] {
        Call::new(bench.plugin, "ADD")
            .conf(&good(bench)?)
            .with(variable, "")
            .run()?
            .error()?;
    }
    for name in ["CNI_CONTAINERID", "CNI_IFNAME"] {
        let call = Call::new(bench.plugin, "ADD").conf(&good(bench)?);
        call.with(name, "a/b").run()?.error()?;
    }
    unchanged(bench, &before)
}

fn unchanged(bench: &Bench, before: &State) -> Done {
    let changes = State::read(bench.host)?.changes(before);
    ensure(changes.is_empty(), || {
        format!("the refused call changed the host: {changes}")
    })
}

fn own_namespace(bench: &Bench) -> Done {
    let conf = bench.prepare("c1", "1.0.0")?;
    bench.host.sh("ip link set lo down")?;
    let before = State::read(bench.host)?;
    let call = bench.calling("ADD", "c1", &conf);
    call.with("CNI_NETNS", "/proc/self/ns/net").run()?.error()?;
    unchanged(bench, &before)
}

fn large_configuration(bench: &Bench) -> Done {
    let mut conf = bench.prepare("c1", "1.0.0")?;
    conf["args"] = json!({ "example.com/labels": "x".repeat(1 << 20) });
    bench.call("ADD", "c1", &conf)?.result()?;
    Ok(())
}

fn malformed_values(bench: &Bench) -> Done {
    let conf = bench.prepare("c1", "1.0.0")?;
    for (key, value) in [
        ("ipam", json!(7)),
        ("dns", json!("10.0.0.1")),
        ("prevResult", json!("none")),
        ("runtimeConfig", json!([1])),
        ("sysctl", json!(["net.ipv4.ip_forward"])),
        ("mtu", json!("1500")),
        ("vlanTrunk", json!([null])),
        ("args", json!({ "cni": 7 })),
        (
            "args",
            json!({ "cni": { "sysctl": { "net.ipv4.conf.IFNAME.log_martians": "1" } } }),
        ),
        ("ipam", json!(null)),
    ] {
        let mut wrong = conf.clone();
        wrong[key] = value;
        let reply = bench.call("ADD", "c1", &wrong)?;
        answered(&reply)?;
        // What a plugin does not know it may leave unread.
        if reply.code == Some(0) {
            bench.call("DEL", "c1", &conf)?.silent()?;
        }
    }
    Ok(())
}

/// Whether an answer is a result or an error, either of them whole and alone.
fn answered(reply: &Reply) -> Done {
    match reply.code {
        Some(0) => reply.result().map(drop),
        _ => reply.error().map(drop),
    }
}
