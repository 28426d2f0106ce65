//! The machine that the tests run on, and whether they left it as it was.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// What a test could have changed on the machine.
#[derive(Debug, PartialEq)]
pub(crate) struct Machine {
    mounts: String,
    links: String,
    routes: String,
    rules: String,
    forwarding: String,
    directories: Vec<(&'static str, Vec<PathBuf>)>,
    cgroups: Vec<PathBuf>,
}

/// Where runtimes and plugins keep their things by default.
const DIRECTORIES: [&str; 7] = [
    "/etc/cni",
    "/opt/cni",
    "/run/containerd",
    "/run/netns",
    "/var/lib/cni",
    "/var/lib/containerd",
    "/var/lib/containers",
];

impl Machine {
    /// Looks at the machine; of the control groups only at those named `cgroup`, since others come and go.
    pub(crate) fn look(cgroup: &str) -> Machine {
        Machine {
            mounts: fs::read_to_string("/proc/self/mountinfo").expect("the mounts"),
            links: output("ip", &["-oneline", "link"]),
            routes: output("ip", &["route", "show", "table", "all"]),
            rules: output("nft", &["--stateless", "list", "ruleset"]),
            forwarding: fs::read_to_string("/proc/sys/net/ipv4/ip_forward").expect("ip_forward"),
            directories: DIRECTORIES.map(|path| (path, entries(Path::new(path)))).to_vec(),
            cgroups: cgroups(cgroup),
        }
    }
}

/// Removes the control groups of pods: they belong to no namespace, so they outlive their processes.
pub(crate) fn remove_cgroups(name: &str) {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        for cgroup in cgroups(name) {
            // Fails while the last process in it is ending; then there is another round.
            let _ = Command::new("find")
                .arg(cgroup)
                .args(["-depth", "-type", "d", "-exec", "rmdir", "{}", "+"])
                .output();
        }
        if cgroups(name).is_empty() {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "control groups cannot be removed: {:?}",
            cgroups(name)
        );
        thread::sleep(Duration::from_millis(20));
    }
}

/// The directories of a control group: one in a unified hierarchy, one for each controller in separate ones.
fn cgroups(name: &str) -> Vec<PathBuf> {
    let root = Path::new("/sys/fs/cgroup");
    let hierarchies = entries(root).into_iter().chain([root.to_owned()]);
    hierarchies
        .map(|hierarchy| hierarchy.join(name))
        .filter(|path| path.is_dir())
        .collect()
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else {
        return Vec::new();
    };
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("a directory entry").path()).collect();
    paths.sort();
    paths
}

fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().expect(program);
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
