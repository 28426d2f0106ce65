//! Real runtimes, containerd and podman, run containers on our plugins: address, traffic, and nothing left.
//!
//! Each test starts a runtime with directories, sockets and configuration of its own in a private world ([`lab`]), which
//! ends with the test and leaves the machine as it was. The plugins are those in `FERRULE_BIN` (default: dist/bin, where
//! `scripts/build` puts them), the networks are those in examples/containerd and examples/podman. The installed containerd is
//! tested; other releases and podman where `scripts/fetch-runtimes` has put them into `FERRULE_RUNTIMES` (default:
//! target/runtimes).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on must stop"
)]
#![allow(
    clippy::disallowed_methods,
    reason = "tests start programs and read their environment"
)]

mod cri;
mod daemon;
mod guard;
mod image;
mod lab;
mod machine;
mod node;
mod podman;
mod traffic;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use cri::{PodSpec, Port};
use daemon::Daemon;
use lab::Lab;
use node::Node;
use serde_json::Value;

/// Where Debian's package has containerd.
const INSTALLED: &str = "/usr/bin";

/// Published by the pod whose traffic is tested.
const PORTS: [Port; 2] = [Port::tcp(18080, 8080), Port::udp(15353, 5353)];
/// Published by a pod that comes and goes before.
const OTHER_PORTS: [Port; 2] = [Port::tcp(18081, 8080), Port::udp(15354, 5353)];

#[test]
fn containerd_installed() {
    pod_life_on("containerd_installed", Path::new(INSTALLED), example);
}

#[test]
fn containerd_with_rules_in_nftables() {
    let network = || with_backend(example(), "nftables");
    pod_life_on("containerd_with_rules_in_nftables", Path::new(INSTALLED), network);
}

#[test]
fn containerd_with_rules_in_iptables() {
    let network = || with_backend(example(), "iptables");
    pod_life_on("containerd_with_rules_in_iptables", Path::new(INSTALLED), network);
}

#[test]
fn containerd_1_7() {
    pod_life_on("containerd_1_7", &fetched("containerd-1.7"), example);
}

#[test]
fn containerd_2() {
    pod_life_on("containerd_2", &fetched("containerd-2"), example);
}

/// The negative control: what these tests say about leftovers is worth something only if they see them.
#[test]
fn containerd_with_a_portmap_that_forgets_is_caught() {
    let name = "containerd_with_a_portmap_that_forgets_is_caught";
    lab::run(name, &Path::new(INSTALLED).join("containerd"), |lab| {
        let daemon = Daemon::start(lab, Path::new(INSTALLED), &forgetful_plugins(lab), &example());
        let clean = Node::look();
        let pod = daemon.run_pod(&PodSpec::new("forgotten", &PORTS));
        daemon.stop_pod(&pod);
        daemon.remove_pod(&pod);
        let left = Node::look().beyond(&clean);
        assert!(
            left.iter().any(|line| line.contains("18080")),
            "the rules that portmap left were not seen: {left:#?}"
        );
    });
}

fn pod_life_on(test: &str, containerd: &Path, network: impl FnOnce() -> Value) {
    lab::run(test, &containerd.join("containerd"), |lab| {
        pod_life(lab, containerd, &network());
    });
}

fn pod_life(lab: &Lab, containerd: &Path, network: &Value) {
    let daemon = Daemon::start(lab, containerd, &lab.plugins(), network);

    // The first pod makes what stays for all: the bridge, base chains, the network's directory.
    let first = daemon.run_pod(&PodSpec::new("first", &OTHER_PORTS));
    let address = first.address.clone();
    daemon.stop_pod(&first);
    daemon.remove_pod(&first);
    let settled = Node::look();
    let traces = settled.lines_with(&[&address, "18081", "15354", &first.id]);
    assert!(traces.is_empty(), "the first pod left: {traces:#?}");

    let pod = daemon.run_pod(&PodSpec::new("second", &PORTS));
    assert_eq!(
        pod.address,
        address_in(lab, &pod.netns),
        "the address that containerd tells"
    );
    assert_ne!(Node::look(), settled, "a pod can be seen on the node");
    traffic::check(lab, &pod.netns, &pod.address);

    daemon.stop_pod(&pod);
    assert_eq!(daemon.pod_address(&pod.id), "", "a stopped pod has no address");
    let left = Node::look().beyond(&settled);
    assert!(left.is_empty(), "left after StopPodSandbox: {left:#?}");
    daemon.remove_pod(&pod);
    let left = Node::look().beyond(&settled);
    assert!(left.is_empty(), "left after RemovePodSandbox: {left:#?}");
    assert!(!Path::new(&pod.netns).exists(), "the pod's namespace is left");
}

fn address_in(lab: &Lab, netns: &str) -> String {
    let address = lab.sh(&format!("nsenter --net={netns} ip -4 -json address show dev eth0"));
    let address: Value = serde_json::from_str(&address).unwrap();
    address[0]["addr_info"][0]["local"].as_str().unwrap().to_owned()
}

/// The network in examples/containerd.
fn example() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/containerd/10-ferrule.conflist");
    let text = fs::read(path).expect("the example's conflist");
    serde_json::from_slice(&text).expect("the example's conflist")
}

/// The same network, with its rules in nftables or iptables, wherever its plugins would put them.
fn with_backend(mut network: Value, backend: &str) -> Value {
    for plugin in network["plugins"].as_array_mut().expect("plugins") {
        match plugin["type"].as_str() {
            Some("bridge") => plugin["ipMasqBackend"] = backend.into(),
            Some("portmap") => plugin["backend"] = backend.into(),
            other => panic!("{other:?} has no rules"),
        }
    }
    network
}

/// The plugins, but for a portmap whose DEL does nothing.
fn forgetful_plugins(lab: &Lab) -> PathBuf {
    let ours = lab.plugins();
    let directory = lab.directory().join("forgetful");
    fs::create_dir(&directory).unwrap();
    for plugin in ["bridge", "host-local", "loopback"] {
        fs::copy(ours.join(plugin), directory.join(plugin)).unwrap();
    }
    let script = format!(
        "#!/bin/sh\n[ \"$CNI_COMMAND\" = DEL ] || exec {}\n",
        ours.join("portmap").display()
    );
    fs::write(directory.join("portmap"), script).unwrap();
    fs::set_permissions(directory.join("portmap"), fs::Permissions::from_mode(0o755)).unwrap();
    directory
}

fn fetched(release: &str) -> PathBuf {
    runtimes().join(release).join("usr/bin")
}

/// Where `scripts/fetch-runtimes` puts what it fetches.
fn runtimes() -> PathBuf {
    lab::directory_from("FERRULE_RUNTIMES", "target/runtimes")
}
