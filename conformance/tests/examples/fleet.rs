//! What installs the plugins on all nodes: the commands in a DaemonSet and in a Nomad job, on a node in a directory.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde::Deserialize;
use testkit::World;

use crate::directory;
use crate::site::plugins;

/// A DaemonSet, as far as its first container's commands go.
#[derive(Deserialize)]
struct DaemonSet {
    kind: String,
    spec: Spec,
}

#[derive(Deserialize)]
struct Spec {
    template: Template,
}

#[derive(Deserialize)]
struct Template {
    spec: Pod,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Pod {
    init_containers: Vec<InitContainer>,
}

#[derive(Deserialize)]
struct InitContainer {
    command: Vec<String>,
    args: Vec<String>,
}

/// The script that a DaemonSet's first container runs.
fn script_of(manifest: &str) -> String {
    let text = fs::read_to_string(directory().join("kubernetes-daemonset").join(manifest)).unwrap();
    let set: DaemonSet = serde_saphyr::from_str(&text).unwrap();
    assert_eq!(set.kind, "DaemonSet");
    let container = set.spec.template.spec.init_containers.into_iter().next().unwrap();
    assert_eq!(container.command, ["/bin/sh", "-euc"]);
    container.args.into_iter().next().unwrap()
}

/// The script that the Nomad job's first task runs.
fn script_of_job() -> String {
    let job = fs::read_to_string(directory().join("nomad-system-job/ferrule.nomad.hcl")).unwrap();
    let (_, after) = job.split_once("args = [\"-euc\", <<-EOT\n").unwrap();
    after.split_once("EOT\n").unwrap().0.to_owned()
}

/// A node in a directory, whose plugin directory holds a bridge of somebody else's, and what the image or archive holds.
fn node(w: &World) {
    let plugins = plugins();
    let scripts = directory().join("../scripts");
    w.sh(&format!(
        "cd {}
        mkdir -p image host/opt/cni/bin host/etc/cni
        cp -a {} image/bin
        cp {}/install image/install
        echo 'of somebody else' > host/opt/cni/bin/bridge",
        w.tmp().display(),
        plugins.display(),
        scripts.display()
    ));
}

fn run(w: &World, script: &str) {
    let tmp = w.tmp().display();
    w.sh(&format!("export FERRULE={tmp}/image HOST={tmp}/host\n{script}"));
}

#[track_caller]
fn assert_installed(bin: &Path) {
    let inode = |name: &str| fs::metadata(bin.join(name)).unwrap().ino();
    assert_eq!(inode("bridge"), inode("ferrule"), "bridge is not ferrule's");
}

#[test]
fn a_daemonset_installs_and_another_puts_back() {
    testkit::world(|w| {
        node(w);
        let bin = w.tmp().join("host/opt/cni/bin");
        run(w, &script_of("install.yaml"));
        assert_installed(&bin);
        // Pods start again.
        run(w, &script_of("install.yaml"));
        assert_installed(&bin);

        for _ in 0..2 {
            run(w, &script_of("uninstall.yaml"));
            let left = w.sh(&format!("cd {}/host; find . -type f", w.tmp().display()));
            assert_eq!(left, "./opt/cni/bin/bridge");
            assert_eq!(fs::read_to_string(bin.join("bridge")).unwrap(), "of somebody else\n");
        }
    });
}

#[test]
fn a_nomad_job_installs() {
    testkit::world(|w| {
        node(w);
        run(w, &script_of_job());
        assert_installed(&w.tmp().join("host/opt/cni/bin"));
    });
}
