//! cnitool on a private node, with the plugins in `FERRULE_BIN` (default: dist/bin, where `scripts/build` puts them).
#![allow(
    clippy::disallowed_methods,
    reason = "tests start programs and read their environment"
)]
#![allow(clippy::unwrap_used, reason = "a test that cannot set up its node must stop")]

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use testkit::World;

const PORTS: &str = r#"{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]}"#;

/// The network `net`, whose ports are published by `backend`. Returns the directory of configurations.
fn network(world: &World, backend: &str) -> PathBuf {
    let conf = json!({"cniVersion": "1.1.0", "name": "net", "plugins": [
        {"type": "bridge", "bridge": "br0", "isGateway": true,
         "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/24"}]]}},
        {"type": "portmap", "backend": backend, "capabilities": {"portMappings": true}},
    ]});
    let directory = world.tmp().join("net.d");
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join("10-net.conflist"), conf.to_string()).unwrap();
    directory
}

fn plugins() -> PathBuf {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dist/bin");
    let directory = env::var_os("FERRULE_BIN").map_or(built, PathBuf::from);
    assert!(
        directory.join("bridge").exists(),
        "no plugins in {}: run scripts/build, or set FERRULE_BIN",
        directory.display()
    );
    directory
}

/// Runs cnitool and returns whether it succeeded, its output and its errors.
fn cnitool(world: &World, arguments: &[&str]) -> (bool, String, String) {
    cnitool_with(&plugins(), world, arguments)
}

fn cnitool_with(plugins: &Path, world: &World, arguments: &[&str]) -> (bool, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_cnitool"))
        .args(arguments)
        .env("NETCONFPATH", world.tmp().join("net.d"))
        .env("CNI_PATH", plugins)
        .env("CAP_ARGS", PORTS)
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

#[track_caller]
fn succeeds(world: &World, arguments: &[&str]) -> String {
    let (success, stdout, stderr) = cnitool(world, arguments);
    assert!(success, "{arguments:?}: {stdout}{stderr}");
    stdout
}

#[track_caller]
fn document(world: &World, arguments: &[&str]) -> Value {
    serde_json::from_str(&succeeds(world, arguments)).unwrap()
}

fn shows_what_is_up(backend: &str) {
    testkit::world(|w| {
        network(w, backend);
        let told = succeeds(w, &["up", "web"]);
        for part in [
            "web is on the network net",
            "ping 10.88.0.2",
            "8080/tcp of this node leads to 80",
        ] {
            assert!(told.contains(part), "{part}: {told}");
        }
        assert!(w.sh_in("web", "ip -o addr show dev eth0").contains("10.88.0.2/24"));

        let shown = document(w, &["--json", "show"]);
        assert_eq!(
            shown["networks"],
            json!([{"name": "net", "plugins": ["bridge", "portmap"]}])
        );
        let attached = &shown["attachments"][0];
        assert_eq!(
            (
                &attached["network"],
                &attached["ifname"],
                &attached["netns"],
                &attached["addresses"]
            ),
            (
                &json!("net"),
                &json!("eth0"),
                &json!("/run/netns/web"),
                &json!(["10.88.0.2"])
            )
        );
        assert_eq!(attached["ports"][0]["hostPort"], 8080, "{shown}");
        assert_eq!(attached["ports"][0]["protocol"], "tcp", "{shown}");
        assert!(
            attached["ports"][0]["target"]
                .as_str()
                .unwrap()
                .starts_with("10.88.0.2"),
            "{shown}"
        );
        let veth = w.sh("ls /sys/class/net | grep ^veth");
        assert!(
            attached["hostInterfaces"].as_array().unwrap().contains(&json!(veth)),
            "{shown}"
        );
        assert!(attached["stray"].is_null());
        assert_eq!(
            (&shown["strayPorts"], &shown["strayInterfaces"]),
            (&json!([]), &json!([]))
        );

        for question in [&["show", "10.88.0.2"][..], &["show", "port", "8080"]] {
            let answer = succeeds(w, question);
            assert!(
                answer.contains("/run/netns/web") && answer.contains("8080/tcp"),
                "{question:?}: {answer}"
            );
        }
        for question in [&["show", "10.88.0.77"][..], &["show", "port", "8081"]] {
            let (success, stdout, stderr) = cnitool(w, question);
            assert!(
                !success && stdout.is_empty() && stderr.starts_with("nobody "),
                "{question:?}: {stderr}"
            );
        }

        succeeds(w, &["down", "web"]);
        assert!(!Path::new("/run/netns/web").exists());
        let shown = document(w, &["--json", "show"]);
        assert_eq!(
            (&shown["attachments"], &shown["strayPorts"], &shown["strayInterfaces"]),
            (&json!([]), &json!([]), &json!([]))
        );
    });
}

#[test]
fn shows_what_is_up_with_nf_tables() {
    shows_what_is_up("nftables");
}

#[test]
fn shows_what_is_up_with_iptables() {
    shows_what_is_up("iptables");
}

#[test]
fn up_leaves_no_namespace_when_it_fails() {
    testkit::world(|w| {
        network(w, "no-such-backend");
        let (success, stdout, stderr) = cnitool(w, &["up", "web"]);
        assert!(!success && stdout.is_empty(), "{stdout}");
        assert!(stderr.contains("failed ADD    portmap"), "{stderr}");
        assert!(!Path::new("/run/netns/web").exists());
        assert_eq!(w.sh("ls /sys/class/net | grep ^veth || true"), "");
    });
}

#[test]
fn down_of_what_is_not_there_is_an_error() {
    testkit::world(|w| {
        network(w, "nftables");
        let (success, _, stderr) = cnitool(w, &["down", "web"]);
        assert!(!success && stderr.starts_with("there is no namespace web"), "{stderr}");
    });
}

#[test]
fn gc_collects_what_show_says_belongs_to_nobody() {
    testkit::world(|w| {
        network(w, "nftables");
        succeeds(w, &["up", "web"]);
        w.sh("ip netns delete web");
        let shown = succeeds(w, &["show"]);
        assert!(
            shown.contains("belongs to nobody\n") && shown.contains("its namespace has gone"),
            "{shown}"
        );
        fs::write("/var/lib/cni/networks/net/10.88.0.9", "ghost\r\neth0").unwrap();
        let shown = document(w, &["--json", "show", "10.88.0.9"]);
        assert_eq!(shown["attachments"][0]["stray"], "no runtime remembers it here");

        succeeds(w, &["gc", "net"]);
        assert_eq!(document(w, &["--json", "show"])["attachments"], json!([]));
        assert_eq!(w.sh("ls /var/lib/cni/networks/net | grep ^10 || true"), "");
    });
}

/// What `show` finds of an attachment that these plugins made: first as its own, then, once nothing remembers it, as nobody's.
fn shows_what_is_held(plugins: &Path, backend: &str, firewall: bool) {
    testkit::world(|w| {
        let directory = network(w, backend);
        let mut chain = json!([
            {"type": "bridge", "bridge": "br0", "isGateway": true, "ipMasq": true, "ipMasqBackend": backend, "macspoofchk": true,
             "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/24"}]]}},
            {"type": "portmap", "backend": backend, "capabilities": {"portMappings": true}},
            {"type": "tuning", "mtu": 1400},
        ]);
        if firewall {
            let last = json!({"type": "firewall", "backend": backend});
            chain.as_array_mut().unwrap().push(last);
        }
        let conf = json!({"cniVersion": "1.0.0", "name": "net", "plugins": chain});
        fs::write(directory.join("10-net.conflist"), conf.to_string()).unwrap();
        let (success, stdout, stderr) = cnitool_with(plugins, w, &["up", "web"]);
        assert!(success, "{stdout}{stderr}");

        let kinds = |holdings: &Value| -> BTreeSet<String> {
            let holdings = holdings.as_array().unwrap();
            holdings
                .iter()
                .map(|holding| holding["kind"].as_str().unwrap().to_owned())
                .collect()
        };
        let mut expected = BTreeSet::from(["MAC guard", "masquerade", "settings to put back"].map(str::to_owned));
        expected.extend(firewall.then(|| "firewall".to_owned()));
        let shown = document(w, &["--json", "show"]);
        let attached = &shown["attachments"][0];
        assert_eq!(kinds(&attached["holdings"]), expected, "{shown:#}");
        assert_eq!(attached["ports"][0]["hostPort"], 8080, "{shown:#}");
        assert_eq!(
            (&shown["strayHoldings"], &shown["strayPorts"]),
            (&json!([]), &json!([])),
            "{shown:#}"
        );
        let tree = succeeds(w, &["show"]);
        assert!(tree.contains(&format!("holds     masquerade ({backend})")), "{tree}");

        w.sh("rm -r /var/lib/cni/results /var/lib/cni/networks/net/10.88.0.2");
        let shown = document(w, &["--json", "show"]);
        assert_eq!(shown["attachments"], json!([]), "{shown:#}");
        assert_eq!(kinds(&shown["strayHoldings"]), expected, "{shown:#}");
        assert_eq!(shown["strayPorts"][0]["hostPort"], 8080, "{shown:#}");
        let tree = succeeds(w, &["show"]);
        let (_, strays) = tree.split_once("belongs to nobody\n").unwrap();
        for kind in &expected {
            assert!(strays.contains(kind.as_str()), "{kind}: {tree}");
        }
    });
}

#[test]
fn shows_what_is_held_on_iptables() {
    shows_what_is_held(&plugins(), "iptables", true);
}

#[test]
fn shows_what_is_held_on_nf_tables() {
    shows_what_is_held(&plugins(), "nftables", true);
}

/// The reference's firewall has no nf_tables. Its bridge takes its masquerading there away by a program that may be too old, but
/// adds it with any.
#[test]
fn shows_what_the_reference_holds() {
    let Some(reference) = env::var_os("FERRULE_REFERENCE") else {
        testkit::skip("the reference plugins are not there");
        return;
    };
    shows_what_is_held(Path::new(&reference), "iptables", true);
    shows_what_is_held(Path::new(&reference), "nftables", false);
}

#[test]
fn status_tells_each_plugin_and_its_time() {
    testkit::world(|w| {
        network(w, "nftables");
        let told = document(w, &["--json", "status", "net"]);
        let calls: Vec<_> = told["calls"]
            .as_array()
            .unwrap()
            .iter()
            .map(|call| &call["plugin"])
            .collect();
        assert_eq!(calls, ["bridge", "portmap"]);
        assert!(told["calls"][0]["milliseconds"].as_f64().unwrap() > 0.0, "{told}");
        let (success, stdout, stderr) = cnitool(w, &["status", "net"]);
        assert!(success && stdout.is_empty(), "{stdout}");
        assert!(
            stderr.starts_with("ok     STATUS bridge") && stderr.contains(" ms\n"),
            "{stderr}"
        );
    });
}
