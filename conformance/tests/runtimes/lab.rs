//! The private world that a container runtime runs in.
//!
//! A test runs itself again, in namespaces of its own: mounts, network, processes, host name and IPC. There it has a new
//! /run, /var/lib and /sys, and a second machine, `client`, on a wire. When the test's process ends, so does every
//! other in its process namespace, daemons and shims included, and with them mounts and network.

use std::cell::RefCell;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::guard;
use crate::machine::{Machine, remove_cgroups};

/// Carries the parent's namespaces to the child, which thereby knows that it is one.
const OUTSIDE: &str = "FERRULE_LAB_OUTSIDE";
/// Carries the name of the pods' control group to the child.
const CGROUP: &str = "FERRULE_LAB_CGROUP";
/// Seconds; a test that takes longer hangs.
const TIME_LIMIT: &str = "300";

/// The node's and the client's address on the wire between them.
pub(crate) const NODE: &str = "192.0.2.1";
pub(crate) const CLIENT: &str = "192.0.2.2";

/// Where a test keeps its files. It is a tmpfs: containerd's overlay snapshots cannot lie on another overlay.
const DIRECTORY: &str = "/run/lab";

/// Makes the world, for `sh -euc`. A copied mount of a network namespace would keep it alive, so those go first. A new
/// network namespace may inherit the machine's ip_forward, which would hide that a plugin does not set it.
const SET_UP: &str = "
    awk '$3 == \"nsfs\" { print $2 }' /proc/self/mounts | xargs -r umount -l
    mount -t tmpfs tmpfs /run
    mkdir -p /run/netns /run/lock /run/lab/tmp /run/lab/sys
    mount -t tmpfs tmpfs /var/lib
    mkdir -p /var/lib/cni
    mount -t sysfs sysfs /run/lab/sys
    mount --rbind /sys/fs/cgroup /run/lab/sys/fs/cgroup
    mount --rbind /run/lab/sys /sys
    ip link set lo up
    echo 0 > /proc/sys/net/ipv4/ip_forward
    ip netns add client
    ip link add wire type veth peer name eth0 netns client
    ip address add $NODE/24 dev wire
    ip link set wire up
    ip -n client address add $CLIENT/24 dev eth0
    ip -n client link set eth0 up
    ip -n client link set lo up
";

/// A private world. See the module.
pub(crate) struct Lab {
    plugins: PathBuf,
    cgroup: String,
    started: RefCell<Vec<Child>>,
}

/// Runs `scenario` in a [`Lab`], for the test of this name. It needs the runtime's program `runtime`.
pub(crate) fn run(test: &str, runtime: &Path, scenario: impl FnOnce(&Lab)) {
    if let Ok(outside) = env::var(OUTSIDE) {
        return scenario(&Lab::set_up(&outside));
    }
    if let Some(reason) = obstacle(runtime) {
        return testkit::skip(&reason);
    }
    let cgroup = format!("ferrule-{}-{}", test.replace("::", "-"), std::process::id());
    let before = Machine::look(&cgroup);
    let output = Command::new("timeout")
        .args(["--kill-after=5", TIME_LIMIT, "unshare"])
        .args(["--mount", "--net", "--uts", "--ipc", "--pid", "--fork", "--kill-child"])
        .args(["--mount-proc", "--propagation", "private", "--"])
        .arg(env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env(OUTSIDE, guard::namespaces())
        .env(CGROUP, &cgroup)
        .stdin(Stdio::null())
        .output()
        .expect("timeout and unshare");
    remove_cgroups(&cgroup);
    let (stdout, stderr) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(
        output.status.success(),
        "in the private world: {}\n{stdout}{stderr}",
        output.status
    );
    assert!(
        stdout.contains("1 passed"),
        "the private world ran another test than {test}:\n{stdout}"
    );
    assert_eq!(Machine::look(&cgroup), before, "the machine is not as it was");
}

/// Why the scenario cannot run here; in continuous integration only the runtime may be missing.
fn obstacle(needed: &Path) -> Option<String> {
    let plugins = directory_from("FERRULE_BIN", "dist/bin");
    if !needed.exists() {
        return Some(format!("{} is not there", needed.display()));
    }
    let reason = if !nix::unistd::geteuid().is_root() {
        "needs root".to_owned()
    } else if !plugins.join("bridge").exists() {
        format!("no plugins in {}: run scripts/build", plugins.display())
    } else {
        return None;
    };
    assert!(env::var_os("CI").is_none(), "{reason}");
    Some(reason)
}

/// A directory that a variable names, or one in the repository.
pub(crate) fn directory_from(variable: &str, default: &str) -> PathBuf {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    env::var_os(variable).map_or_else(|| repository.join(default), PathBuf::from)
}

impl Lab {
    fn set_up(outside: &str) -> Lab {
        guard::check(outside, &guard::namespaces()).expect("namespaces of our own");
        let lab = Lab {
            plugins: fs::canonicalize(directory_from("FERRULE_BIN", "dist/bin")).expect("the plugins"),
            cgroup: env::var(CGROUP).expect("a name for the pods' control group"),
            started: RefCell::default(),
        };
        lab.sh(&format!("NODE={NODE} CLIENT={CLIENT}\n{SET_UP}"));
        lab
    }

    /// A new directory, for everything that the test makes.
    pub(crate) fn directory(&self) -> &Path {
        Path::new(DIRECTORY)
    }

    /// The directory of the plugins under test.
    pub(crate) fn plugins(&self) -> PathBuf {
        self.plugins.clone()
    }

    /// The pods' control group, from the root of the hierarchies.
    pub(crate) fn cgroup(&self) -> String {
        format!("/{}", self.cgroup)
    }

    /// Runs a shell script in this world and returns what it printed, trimmed. Panics with its output if it fails.
    #[track_caller]
    pub(crate) fn sh(&self, script: &str) -> String {
        self.try_sh(script).unwrap_or_else(|failure| panic!("{failure}"))
    }

    /// Runs a shell script in this world and returns what it printed, trimmed, or how it failed.
    pub(crate) fn try_sh(&self, script: &str) -> Result<String, String> {
        let output = Command::new("sh")
            .args(["-euc", script])
            .stdin(Stdio::null())
            .output()
            .expect("sh");
        let stdout = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if output.status.success() {
            return Ok(stdout);
        }
        let stderr = String::from_utf8_lossy(&output.stderr);
        Err(format!("`{script}` {}\n{stdout}\n{}", output.status, stderr.trim()))
    }

    /// Starts a program that runs until the test is over.
    pub(crate) fn start(&self, command: &mut Command) {
        let started = command.stdin(Stdio::null()).spawn();
        let child = started.unwrap_or_else(|e| panic!("{command:?}: {e}"));
        self.started.borrow_mut().push(child);
    }

    /// Waits until a script prints `expected`, for what needs a moment to come up.
    #[track_caller]
    pub(crate) fn eventually(&self, script: &str, expected: &str) {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let printed = self.try_sh(script);
            if printed.as_deref() == Ok(expected) {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "`{script}` does not print {expected:?}: {printed:?}"
            );
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for child in self.started.get_mut() {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
