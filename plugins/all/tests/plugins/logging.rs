//! What is written beside the result: hints at slips, and the steps of a verb.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::{Value, json};
use testkit::{Reply, World, call_plugin};

use crate::suite::Suite;

fn bridge(more: Value) -> Value {
    let mut conf = json!({ "cniVersion": "1.1.0", "name": "n", "type": "bridge", "isDefaultGateway": true, "ipMasq": true,
        "ipam": { "type": "host-local", "subnet": "10.1.0.0/24" } });
    for (key, value) in more.as_object().unwrap() {
        conf[key] = value.clone();
    }
    conf
}

fn call(suite: &Suite, verb: &str, log: &str, conf: &Value) -> Reply {
    let bin = suite.bin().to_str().unwrap();
    let variables = [
        ("CNI_COMMAND", verb),
        ("CNI_CONTAINERID", "c"),
        ("CNI_NETNS", "/run/netns/a"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_PATH", bin),
        ("CNI_LOG", log),
    ];
    call_plugin(
        &suite.bin().join(conf["type"].as_str().unwrap()),
        &variables,
        &conf.to_string(),
    )
}

#[test]
fn a_slip_is_told_once_and_changes_nothing() {
    testkit::world(|w| {
        let suite = Suite::install(w);
        w.netns("a");
        let mut conf = bridge(
            json!({ "ipmsaq": true, "capabilities": { "x": true }, "cni.dev/x": 1, "snat": true, "IPMASQ": true }),
        );
        conf["ipam"]["rangestrat"] = json!("10.1.0.9");
        let added = call(&suite, "ADD", "", &conf);
        added.success();
        let told: Vec<&str> = added.stderr.lines().collect();
        assert_eq!(
            told,
            [
                r#"bridge[ADD c eth0]: warning: "ipmsaq" is no key that bridge knows: did you mean ipMasq?"#,
                r#"host-local[ADD c eth0]: warning: ipam."rangestrat" is no key that host-local knows: did you mean rangeStart?"#,
            ]
        );
        for verb in ["STATUS", "DEL"] {
            let reply = call(&suite, verb, "", &conf);
            reply.silent();
            assert_eq!(reply.stderr, "", "{verb}");
        }
    });
}

#[test]
fn no_plugin_takes_a_key_of_another_for_a_slip() {
    testkit::world(|w| {
        let suite = Suite::install(w);
        w.netns("a");
        let plugins = w.sh(&format!("{}/ferrule list", suite.bin().display()));
        let mut conf = json!({});
        for plugin in plugins.lines() {
            let schema: Value =
                serde_json::from_str(&w.sh(&format!("{}/{plugin} --schema", suite.bin().display()))).unwrap();
            for key in schema["properties"].as_object().unwrap().keys() {
                conf[key] = Value::Null;
            }
        }
        conf["cniVersion"] = json!("1.0.0");
        conf["name"] = json!("n");
        for plugin in plugins.lines() {
            conf["type"] = json!(plugin);
            let reply = call(&suite, "CHECK", "", &conf);
            assert!(!reply.stderr.contains("is no key"), "{plugin}: {reply:?}");
        }
    });
}

#[test]
fn every_step_of_an_add_is_written_with_its_time() {
    testkit::world(|w| {
        let suite = Suite::install(w);
        w.netns("a");
        for (variable, more) in [("debug", json!({})), ("", json!({ "log": "debug" }))] {
            let added = call(&suite, "ADD", variable, &bridge(more));
            added.success();
            for step in [
                "bridge[ADD c eth0] +",
                "create bridge cni0",
                "create veth ",
                "delegate host-local ADD: in this process",
                "host-local[ADD c eth0] +",
                "reserved in /var/lib/cni/networks: 10.1.0.",
                "address 10.1.0.",
                "route to 0.0.0.0/0",
                "netlink request: new link",
                "MASQUERADE",
            ] {
                assert!(added.stderr.contains(step), "{step}: {}", added.stderr);
            }
            assert!(
                added
                    .stderr
                    .lines()
                    .all(|line| line.contains("[ADD c eth0] +") && line.contains("ms: ")),
                "{added:?}"
            );
            // So that the next ADD makes the bridge too.
            call(&suite, "DEL", "", &bridge(json!({}))).silent();
            w.sh("ip link delete cni0");
        }
    });
}

#[test]
fn a_file_gets_whole_lines_of_many_processes_and_only_root_reads_it() {
    testkit::world(|w| {
        let suite = Suite::install(w);
        let file = w.tmp().join("log");
        let bin = suite.bin().display();
        let conf = json!({ "cniVersion": "1.0.0", "name": "n", "type": "loopback", "log": { "file": file } });
        fs::write(w.tmp().join("conf"), conf.to_string()).unwrap();
        let run = "env CNI_COMMAND=ADD CNI_CONTAINERID=c$i CNI_NETNS=/run/netns/n$i CNI_IFNAME=lo";
        let conf = w.tmp().join("conf").display().to_string();
        w.sh(&format!(
            "for i in $(seq 20); do ip netns add n$i; done
             for i in $(seq 20); do {run} CNI_PATH={bin} {bin}/loopback < {conf} > /dev/null 2> {conf}.err & done; wait
             [ ! -s {conf}.err ]"
        ));
        let text = fs::read_to_string(&file).unwrap();
        let mut containers = BTreeSet::new();
        for line in text.lines() {
            let (time, rest) = line.split_once(' ').unwrap();
            assert!(
                time.len() == 20 && time.ends_with('Z') && rest.starts_with("loopback[ADD c"),
                "{line}"
            );
            containers.insert(rest.split(' ').nth(1).unwrap().to_owned());
        }
        assert_eq!(containers.len(), 20, "{text}");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    });
}

#[test]
fn a_log_that_cannot_be_written_stops_nothing_and_one_that_is_wrong_stops_add() {
    testkit::world(|w| {
        let suite = Suite::install(w);
        w.netns("a");
        let lo = |log: Value| json!({ "cniVersion": "1.0.0", "name": "n", "type": "loopback", "log": log });
        w.sh(&format!("mkfifo {}/fifo", w.tmp().display()));
        for unusable in [Path::new("/nowhere/log"), w.tmp(), &w.tmp().join("fifo")] {
            for (variable, conf) in [
                (String::new(), lo(json!({ "file": unusable }))),
                (format!("debug:{}", unusable.display()), lo(Value::Null)),
            ] {
                let reply = call(&suite, "ADD", &variable, &conf);
                reply.success();
                assert!(reply.stderr.contains("nothing is written there"), "{reply:?}");
            }
        }
        let wrong = lo(json!({ "level": "loud" }));
        for verb in ["ADD", "CHECK"] {
            let (code, msg) = call(&suite, verb, "", &wrong).error();
            assert!(code == 7 && msg.starts_with(r#"log: "loud" is no level"#), "{msg}");
        }
        let deleted = call(&suite, "DEL", "", &wrong);
        deleted.silent();
        assert!(deleted.stderr.contains("loud"), "{deleted:?}");
        let told = call(&suite, "ADD", "loud", &lo(Value::Null));
        told.success();
        assert!(told.stderr.contains("CNI_LOG"), "{told:?}");
    });
}

/// A delegate that is a program of its own inherits `CNI_LOG`, and reads the key in the same configuration.
#[test]
fn a_delegate_in_a_process_of_its_own_logs_too() {
    testkit::world(|w: &World| {
        let suite = Suite::install(w);
        w.netns("a");
        // A copy is another file, and so is not taken for this very executable.
        w.sh(&format!(
            "cd {}; cp host-local copy; mv -f copy host-local",
            suite.bin().display()
        ));
        for (variable, more) in [("debug", json!({})), ("", json!({ "log": "debug" }))] {
            let added = call(&suite, "ADD", variable, &bridge(more));
            added.success();
            assert!(added.stderr.contains("/host-local ADD: started"), "{added:?}");
            assert!(added.stderr.contains("host-local[ADD c eth0] +"), "{added:?}");
            call(&suite, "DEL", "", &bridge(json!({}))).silent();
        }
    });
}
