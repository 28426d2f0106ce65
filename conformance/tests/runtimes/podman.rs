//! podman with its CNI back end runs containers on the networks in examples/podman.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::lab::{self, Lab, NODE};
use crate::node::Node;
use crate::traffic::{self, POD_PAGE};
use crate::{image, runtimes};

/// The names of the two networks.
const NETWORKS: [&str; 2] = ["podman", "backend"];

/// A podman with storage and configuration of its own, and one image.
struct Podman<'lab> {
    lab: &'lab Lab,
    directory: PathBuf,
}

impl<'lab> Podman<'lab> {
    fn new(lab: &'lab Lab, plugins: &Path) -> Podman<'lab> {
        let directory = lab.directory().join("podman");
        fs::create_dir_all(directory.join("net.d")).unwrap();
        fs::create_dir_all(directory.join("tmp")).unwrap();
        fs::create_dir_all(directory.join(".config/containers")).unwrap();
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/podman");
        for network in ["87-podman-bridge.conflist", "88-backend.conflist"] {
            fs::copy(examples.join(network), directory.join("net.d").join(network)).expect("the example");
        }
        let shown = directory.display();
        fs::write(
            directory.join("containers.conf"),
            configuration(&directory, plugins, lab),
        )
        .unwrap();
        let storage =
            format!("[storage]\ndriver = \"overlay\"\ngraphroot = \"{shown}/store\"\nrunroot = \"{shown}/run\"\n");
        fs::write(directory.join("storage.conf"), storage).unwrap();
        fs::write(
            directory.join("registries.conf"),
            "unqualified-search-registries = []\n",
        )
        .unwrap();
        let policy = r#"{"default":[{"type":"insecureAcceptAnything"}]}"#;
        fs::write(directory.join(".config/containers/policy.json"), policy).unwrap();
        let podman = Podman { lab, directory };
        podman.run(&format!("load --quiet --input {}", image::archive(lab).display()));
        podman
    }

    /// Runs a command of podman's, and returns what it printed.
    #[track_caller]
    fn run(&self, command: &str) -> String {
        let (directory, fetched) = (self.directory.display(), fetched());
        let libraries = ["usr/lib", "lib"].map(|lib| format!("{}/{lib}/$(uname -m)-linux-gnu", fetched.display()));
        self.lab.sh(&format!(
            "export HOME={directory} TMPDIR={directory}/tmp LD_LIBRARY_PATH={}
            export CONTAINERS_CONF={directory}/containers.conf CONTAINERS_STORAGE_CONF={directory}/storage.conf
            export CONTAINERS_REGISTRIES_CONF={directory}/registries.conf
            exec {}/usr/bin/podman {command}",
            libraries.join(":"),
            fetched.display()
        ))
    }

    /// Starts a container on some networks, which publishes a TCP and a UDP port.
    fn start(&self, name: &str, networks: &[&str], tcp: u16, udp: u16) {
        self.run(&format!(
            "run --detach --name {name} --cgroup-parent {} --network {} --publish {tcp}:8080 \
             --publish {udp}:5353/udp {}",
            self.lab.cgroup(),
            networks.join(","),
            image::NAME
        ));
    }

    fn settings(&self, name: &str) -> Value {
        let told = self.run(&format!("inspect --format '{{{{json .NetworkSettings}}}}' {name}"));
        serde_json::from_str(&told).expect("the container's network settings")
    }
}

/// Without CAP_SYS_RESOURCE, which root in a container may lack, the kernel refuses the limits that podman would set.
fn configuration(directory: &Path, plugins: &Path, lab: &Lab) -> String {
    format!(
        r#"
[containers]
apparmor_profile = "unconfined"
default_sysctls = []
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
log_driver = "k8s-file"
pids_limit = 0
[network]
network_backend = "cni"
cni_plugin_dirs = ["{plugins}"]
network_config_dir = "{directory}/net.d"
[engine]
cgroup_manager = "cgroupfs"
conmon_path = ["{fetched}/usr/bin/conmon"]
events_logger = "file"
runtime = "runc"
tmp_dir = "{directory}/tmp"
[engine.runtimes]
runc = ["{runc}"]
"#,
        plugins = plugins.display(),
        directory = directory.display(),
        fetched = fetched().display(),
        runc = lab.sh("command -v runc"),
    )
}

fn fetched() -> PathBuf {
    runtimes().join("podman")
}

#[test]
fn podman_on_two_networks() {
    lab::run(
        "podman::podman_on_two_networks",
        &fetched().join("usr/bin/podman"),
        |lab| {
            two_networks(lab, &Podman::new(lab, &lab.plugins()));
        },
    );
}

fn two_networks(lab: &Lab, podman: &Podman) {
    let page = format!("nsenter --net=/run/netns/client curl -sS --max-time 3 http://{NODE}:18080/");
    let settled = first_container(podman);

    // podman publishes on every network: leaving one must not take the other's rules away.
    podman.start("moves", &["podman"], 18080, 15353);
    let netns = namespace(podman, "moves");
    traffic::check(lab, &netns, &address(&podman.settings("moves"), "podman"));
    podman.run("network connect backend moves");
    lab.eventually(&page, POD_PAGE);
    podman.run("network disconnect podman moves");
    lab.eventually(&page, POD_PAGE);
    podman.run("rm --force --time 0 moves");
    assert_clean(&settled, &netns);

    podman.start("both", &NETWORKS, 18080, 15353);
    let netns = namespace(podman, "both");
    traffic::serve_pod_page(lab, &netns);
    lab.eventually(&page, POD_PAGE);
    for network in NETWORKS {
        let direct = format!(
            "curl -sS --max-time 3 http://{}:8080/",
            address(&podman.settings("both"), network)
        );
        lab.eventually(&direct, POD_PAGE);
    }
    podman.run("network disconnect backend both");
    lab.eventually(&page, POD_PAGE);
    podman.run("rm --force --time 0 both");
    assert_clean(&settled, &netns);
}

/// The first container makes what stays for all: the bridges, base chains, the networks' directories.
fn first_container(podman: &Podman) -> Node {
    podman.start("first", &NETWORKS, 18081, 15354);
    let first = podman.settings("first");
    podman.run("rm --force --time 0 first");
    let settled = Node::look();
    let reservations = NETWORKS.map(|network| format!("{network}/{}", address(&first, network)));
    let traces = settled.lines_with(&[&reservations[0], &reservations[1], "18081", "15354"]);
    assert!(traces.is_empty(), "the first container left: {traces:#?}");
    settled
}

#[track_caller]
fn assert_clean(settled: &Node, netns: &str) {
    let left = Node::look().beyond(settled);
    assert!(left.is_empty(), "left after podman rm: {left:#?}");
    assert!(!Path::new(netns).exists(), "the container's namespace is left");
}

fn namespace(podman: &Podman, name: &str) -> String {
    let settings = podman.settings(name);
    settings["SandboxKey"]
        .as_str()
        .expect("the container's namespace")
        .to_owned()
}

fn address(settings: &Value, network: &str) -> String {
    let address = settings["Networks"][network]["IPAddress"].as_str();
    address
        .unwrap_or_else(|| panic!("no address on {network}: {settings}"))
        .to_owned()
}
