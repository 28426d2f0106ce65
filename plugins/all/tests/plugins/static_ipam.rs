//! The static plugin: alone, and as bridge's IPAM.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use testkit::{Reply, World, call_plugin};

use crate::reference::reference;
use crate::suite::Suite;

/// A network of the plugin `plugin` whose IPAM is static with `keys`.
fn conf(plugin: &str, keys: Value) -> Value {
    let mut conf = json!({
        "cniVersion": "1.0.0", "name": "net", "type": plugin, "bridge": "cni0", "isGateway": true,
        "ipam": { "type": "static" },
    });
    for (key, value) in keys.as_object().unwrap() {
        conf["ipam"][key] = value.clone();
    }
    conf
}

fn call(suite: &Suite, plugin: &str, verb: &str, args: &str, conf: &Value) -> Reply {
    call_of(suite.bin(), plugin, verb, args, conf)
}

fn call_of(bin: &Path, plugin: &str, verb: &str, args: &str, conf: &Value) -> Reply {
    let variables = [
        ("CNI_COMMAND", verb),
        ("CNI_CONTAINERID", "c"),
        ("CNI_NETNS", "/run/netns/a"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_PATH", bin.to_str().unwrap()),
        ("CNI_ARGS", args),
    ];
    call_plugin(&bin.join(plugin), &variables, &conf.to_string())
}

fn with_prev(conf: &Value, result: &Value) -> Value {
    let mut conf = conf.clone();
    conf["prevResult"] = result.clone();
    conf
}

#[test]
fn a_container_gets_the_addresses_of_the_configuration() {
    testkit::world(|w: &World| {
        let suite = Suite::install(w);
        w.netns("a");
        let conf = conf(
            "bridge",
            json!({
                "addresses": [{ "address": "10.1.0.5/24", "gateway": "10.1.0.1" }, { "address": "fd00::5/64" }],
                "routes": [{ "dst": "0.0.0.0/0" }],
                "dns": { "nameservers": ["10.1.0.53"] },
            }),
        );
        let result = call(&suite, "bridge", "ADD", "", &conf).success();
        assert_eq!(
            result["ips"],
            json!([
                { "address": "10.1.0.5/24", "gateway": "10.1.0.1", "interface": 2 },
                { "address": "fd00::5/64", "gateway": "fd00::1", "interface": 2 },
            ])
        );
        assert_eq!(result["dns"], json!({ "nameservers": ["10.1.0.53"] }));
        w.sh("ping -c1 -W2 10.1.0.5");
        call(&suite, "bridge", "CHECK", "", &with_prev(&conf, &result)).silent();

        let mut moved = conf.clone();
        moved["ipam"]["addresses"][0]["address"] = json!("10.1.0.6/24");
        assert_eq!(
            call(&suite, "bridge", "CHECK", "", &with_prev(&moved, &result)).error(),
            (999, "static: Failed to match addr 10.1.0.6 on interface eth0".into())
        );
        call(&suite, "bridge", "DEL", "", &conf).silent();
        assert_eq!(w.sh("ip -o link show type veth"), "");
    });
}

#[test]
fn the_runtime_may_name_the_addresses() {
    testkit::world(|w: &World| {
        let suite = Suite::install(w);
        w.netns("a");
        let mut conf = conf("bridge", json!({ "addresses": [{ "address": "10.1.0.5/24" }] }));
        let ips = |conf: &Value, args: &str| {
            let result = call(&suite, "static", "ADD", args, conf).success();
            result["ips"].clone()
        };
        assert_eq!(
            ips(&conf, "IgnoreUnknown=1;K8S_POD_NAME=p;IP=10.3.0.5/24;GATEWAY=10.3.0.1"),
            json!([{ "address": "10.1.0.5/24" }, { "address": "10.3.0.5/24", "gateway": "10.3.0.1" }])
        );
        conf["runtimeConfig"] = json!({ "ips": ["10.7.0.5/24"] });
        assert_eq!(ips(&conf, "IP=10.3.0.5/24"), json!([{ "address": "10.7.0.5/24" }]));
    });
}

#[test]
fn without_addresses_the_plugin_that_asked_refuses() {
    testkit::world(|w: &World| {
        let suite = Suite::install(w);
        w.netns("a");
        let conf = conf("bridge", json!({}));
        assert_eq!(
            call(&suite, "static", "ADD", "", &conf).success(),
            json!({ "cniVersion": "1.0.0" })
        );
        assert_eq!(
            call(&suite, "bridge", "ADD", "", &conf).error(),
            (999, "IPAM plugin returned missing IP config".into())
        );
        assert_eq!(w.sh("ip -o link show type veth"), "");
    });
}

#[test]
fn nothing_is_kept_and_nothing_refused_on_the_way_out() {
    testkit::world(|w: &World| {
        let suite = Suite::install(w);
        let netns = Path::new("");
        for ipam in [json!({ "type": "static", "addresses": "zz" }), Value::Null] {
            let conf = json!({ "cniVersion": "1.1.0", "name": "net", "ipam": ipam, "cni.dev/valid-attachments": [] });
            suite
                .call("static", "DEL", "c", netns, "eth0", &conf.to_string())
                .silent();
            suite.call_bare("static", "GC", &conf.to_string()).silent();
            suite.call_bare("static", "STATUS", &conf.to_string()).error();
        }
        let good = json!({ "cniVersion": "1.1.0", "name": "net", "ipam": { "type": "static" } });
        suite.call_bare("static", "STATUS", &good.to_string()).silent();
        assert_eq!(w.sh("find /var/lib/cni /run/cni -type f 2>/dev/null || true"), "");
        assert_eq!(
            call(&suite, "static", "CHECK", "", &conf("bridge", json!({}))).error(),
            (7, "Required prevResult missing".into())
        );
    });
}

#[test]
fn the_reference_answers_the_same() {
    let Some(theirs) = reference() else { return };
    let two = json!([{ "address": "10.1.0.5/24", "gateway": "10.1.0.1" }, { "address": "fd00::5/64" }]);
    let bad = |address: &str| json!([{ "address": address }]);
    let runtime = json!({ "runtimeConfig": { "ips": ["10.7.0.5/24", "fd07::5/64"] } });
    let network = json!({ "args": { "cni": { "ips": ["10.8.0.5/24"] } } });
    let both = json!({ "runtimeConfig": { "ips": ["10.7.0.5/24"] }, "args": { "cni": { "ips": ["zz"] } } });
    testkit::world(|w: &World| {
        let ours = PathBuf::from(Suite::install(w).bin());
        w.netns("a");
        for addresses in [json!([]), two, bad("10.1.0.5"), bad("10.1.0.5/33"), bad("zz"), bad("")] {
            for rest in [&json!({}), &runtime, &network, &both] {
                for args in [
                    "",
                    "IP=10.3.0.5/24",
                    "IP= 10.3.0.5/24 , 10.3.0.6/24,fd03::5/64;GATEWAY=10.3.0.1, 10.3.0.2 ",
                    "GATEWAY=10.1.0.9",
                    "GATEWAY=zz",
                    "GATEWAY=10.1.0.9,",
                    "IP=10.3.0.5",
                    "IP=10.3.0.5/24,",
                    "IP=;GATEWAY=",
                    "FOO=1",
                    "IgnoreUnknown=1;FOO=1;IP=10.3.0.5/24",
                ] {
                    for version in ["0.2.0", "1.0.0"] {
                        let more = json!({ "addresses": addresses, "routes": [{ "dst": "0.0.0.0/0" }], "dns": { "domain": "d" } });
                        let mut conf = conf("bridge", more);
                        conf["cniVersion"] = json!(version);
                        for (key, value) in rest.as_object().unwrap() {
                            conf[key] = value.clone();
                        }
                        let answers = [&ours, &theirs].map(|bin| answer(&call_of(bin, "static", "ADD", args, &conf)));
                        assert_eq!(answers[0], answers[1], "{args} {conf}");
                    }
                }
            }
        }
    });
}

/// The result, or the message of the error: its code is the specification's where the reference has none.
fn answer(reply: &Reply) -> Value {
    let document: Value = serde_json::from_str(&reply.stdout).unwrap();
    match reply.code {
        Some(0) => document,
        _ => document["msg"].clone(),
    }
}
