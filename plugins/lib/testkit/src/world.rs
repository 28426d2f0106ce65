//! The private world of a namespace test.

use std::fs;
use std::panic;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

/// A test's own network and mounts. See the crate's documentation.
pub struct World {
    tmp: PathBuf,
}

/// Runs `test` in a new [`World`], in a thread of its own; a panic in it is passed on.
///
/// Without root the test is skipped, unless `CI` is set: there it fails, so that nothing is skipped in silence.
pub fn world<R: Send>(test: impl FnOnce(&World) -> R + Send) -> Option<R> {
    if !nix::unistd::geteuid().is_root() {
        assert!(std::env::var_os("CI").is_none(), "namespace tests need root");
        skip("namespace tests need root");
        return None;
    }
    let mut own = thread::Builder::new();
    // What it says, a panic or a skip, shall name the test.
    if let Some(name) = thread::current().name() {
        own = own.name(name.to_owned());
    }
    let ran = thread::scope(|scope| {
        own.spawn_scoped(scope, || test(&World::enter()))
            .expect("a thread")
            .join()
    });
    Some(ran.unwrap_or_else(|cause| panic::resume_unwind(cause)))
}

/// Reports a test that does not run here, in the form that `scripts/test` counts.
pub fn skip(reason: &str) {
    let test = thread::current().name().unwrap_or("unnamed").to_owned();
    eprintln!("SKIP {test}: {reason}");
}

impl World {
    fn enter() -> World {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let before = own_namespaces();
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET).expect("a new network and mount namespace");
        let after = own_namespaces();
        // Nothing below may ever happen to the machine itself.
        assert!(
            before.iter().zip(&after).all(|(was, is)| was != is),
            "still in the machine's namespaces"
        );

        mount(
            None::<&str>,
            "/",
            None::<&str>,
            MsFlags::MS_REC | MsFlags::MS_PRIVATE,
            None::<&str>,
        )
        .expect("private mounts");
        mount_new("tmpfs", "/run");
        mount_new("sysfs", "/sys");
        fs::create_dir_all("/var/lib/cni").expect("/var/lib/cni");
        mount_new("tmpfs", "/var/lib/cni");
        fs::create_dir_all("/run/netns").expect("/run/netns");
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let tmp = PathBuf::from(format!("/run/test-{}-{serial}", std::process::id()));
        fs::create_dir_all(&tmp).expect("a temporary directory");

        let world = World { tmp };
        // A new namespace inherits the machine's forwarding in some configurations, which would hide a missing write.
        world.sh("ip link set lo up; echo 0 > /proc/sys/net/ipv4/ip_forward");
        world
    }

    /// A directory that disappears with the world.
    pub fn tmp(&self) -> &Path {
        &self.tmp
    }

    /// Makes a network namespace of this name, its loopback interface still down, and returns its path.
    pub fn netns(&self, name: &str) -> PathBuf {
        self.sh(&format!("ip netns add {name}"));
        Path::new("/run/netns").join(name)
    }

    /// Runs a shell script in this world and returns what it printed, trimmed. Panics with its output if it fails.
    pub fn sh(&self, script: &str) -> String {
        let output = self.try_sh(script);
        let stdout = String::from_utf8_lossy(&output.stdout);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "`{script}` {}\n{stdout}{stderr}",
            output.status
        );
        stdout.trim().to_owned()
    }

    /// Like [`World::sh`], again and again until it prints nothing, and for twenty seconds at most. For what the kernel does in
    /// its own time, such as taking away the links of a namespace that was deleted.
    pub fn sh_until_silent(&self, script: &str) -> String {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let said = self.sh(script);
            if said.is_empty() || Instant::now() > deadline {
                return said;
            }
            thread::yield_now();
        }
    }

    /// Runs a shell script in this world and returns how it ended.
    pub fn try_sh(&self, script: &str) -> Output {
        Command::new("sh").args(["-euc", script]).output().expect("sh")
    }

    /// Like [`World::sh`], in the namespace `netns` made by [`World::netns`].
    pub fn sh_in(&self, netns: &str, script: &str) -> String {
        let output = self.try_sh_in(netns, script);
        let stdout = String::from_utf8_lossy(&output.stdout);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "`{script}` in {netns} {}\n{stdout}{stderr}",
            output.status
        );
        stdout.trim().to_owned()
    }

    /// Like [`World::try_sh`], in the namespace `netns` made by [`World::netns`].
    pub fn try_sh_in(&self, netns: &str, script: &str) -> Output {
        Command::new("nsenter")
            .arg(format!("--net=/run/netns/{netns}"))
            .args(["sh", "-euc", script])
            .output()
            .expect("nsenter")
    }
}

fn mount_new(kind: &str, target: &str) {
    mount(Some(kind), target, Some(kind), MsFlags::empty(), None::<&str>)
        .unwrap_or_else(|e| panic!("mount {kind} on {target}: {e}"));
}

fn own_namespaces() -> [PathBuf; 2] {
    // /proc/self would show the namespaces of the process's first thread.
    ["net", "mnt"].map(|kind| fs::read_link(format!("/proc/thread-self/ns/{kind}")).expect("/proc/thread-self/ns"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_world_is_new_and_leaves_nothing() {
        let machine = own_namespaces();
        world(|w| {
            assert_ne!(own_namespaces(), machine);
            w.netns("a");
            w.sh("ip link add v0 type veth peer name v1 netns a");
            assert_eq!(w.sh("ls /sys/class/net | sort | xargs"), "lo v0");
            assert_eq!(w.sh_in("a", "ip -br link show dev v1 | cut -d@ -f1"), "v1");
            fs::write(w.tmp().join("file"), "").unwrap();
        });
        assert_eq!(own_namespaces(), machine);
    }

    #[test]
    #[should_panic(expected = "from inside")]
    fn a_panic_inside_is_passed_on() {
        if world(|_| panic!("from inside")).is_none() {
            panic!("from inside: skipped without root");
        }
    }
}
