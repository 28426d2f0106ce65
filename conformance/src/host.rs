//! A private machine for one check: network and mounts of its own, seen by nobody else and gone with its last process.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

/// Where the plugins under test are found in every host, wherever they are on the machine.
pub const PLUGINS: &str = "/run/conformance/plugins";

/// Where the plugins of a second directory are found, if there is one to compare with.
pub const BESIDE: &str = "/run/conformance/beside";

/// Where a check keeps its own files.
pub const FILES: &str = "/run/conformance/files";

/// The machine that plugins are called on. It exists as long as the closure given to [`with_host`] runs.
#[derive(Debug)]
pub struct Host(());

/// A host that could not be made, or a program that could not be run on it.
#[derive(Debug, thiserror::Error)]
#[error("{operation}: {source}")]
pub struct HostError {
    /// What was tried.
    pub operation: String,
    /// The system's reason.
    pub source: io::Error,
}

fn failed<E: Into<io::Error>>(operation: impl Into<String>) -> impl FnOnce(E) -> HostError {
    let operation = operation.into();
    |source| HostError {
        operation,
        source: source.into(),
    }
}

/// Runs `work` on a new host that has the plugins of `directory`, in a thread of its own.
///
/// # Errors
/// The host cannot be made, for example without root.
pub fn with_host<R: Send>(directory: &Path, work: impl FnOnce(&Host) -> R + Send) -> Result<R, HostError> {
    with_both(directory, None, work)
}

/// The same on a host that has the plugins of a second directory as well, in [`BESIDE`].
///
/// # Errors
/// The host cannot be made, for example without root.
pub fn with_both<R: Send>(
    directory: &Path,
    beside: Option<&Path>,
    work: impl FnOnce(&Host) -> R + Send,
) -> Result<R, HostError> {
    let ran = thread::scope(|scope| {
        let own = thread::Builder::new().name("host".to_owned());
        let thread = own.spawn_scoped(scope, || Host::enter(directory, beside).map(|host| work(&host)));
        thread.map(thread::ScopedJoinHandle::join)
    });
    match ran.map_err(failed("a thread for a host"))? {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

impl Host {
    fn enter(plugins: &Path, beside: Option<&Path>) -> Result<Host, HostError> {
        let before = own_namespaces()?;
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET)
            .map_err(failed("a new network and mount namespace (needs root)"))?;
        let after = own_namespaces()?;
        // Nothing below may ever happen to the machine itself.
        if before.iter().zip(&after).any(|(was, is)| was == is) {
            return Err(failed("new namespaces")(io::Error::other(
                "these are still the machine's",
            )));
        }
        mount(
            None::<&str>,
            "/",
            None::<&str>,
            MsFlags::MS_REC | MsFlags::MS_PRIVATE,
            None::<&str>,
        )
        .map_err(failed("private mounts"))?;
        // Opened before /run is covered, for the plugins may be below it.
        let open = |directory: &Path| File::open(directory).map_err(failed(directory.display().to_string()));
        let plugins = open(plugins)?;
        let beside = beside.map(open).transpose()?;
        for (kind, target) in [("tmpfs", "/run"), ("tmpfs", "/var/lib"), ("sysfs", "/sys")] {
            mount(Some(kind), target, Some(kind), MsFlags::empty(), None::<&str>)
                .map_err(failed(format!("mount {kind} on {target}")))?;
        }
        for new in ["/var/lib/cni", "/run/netns", FILES] {
            fs::create_dir_all(new).map_err(failed(new))?;
        }
        bind(&plugins, PLUGINS)?;
        if let Some(beside) = beside {
            bind(&beside, BESIDE)?;
        }

        let host = Host(());
        // A new namespace inherits the machine's forwarding in some configurations, which would hide a missing write.
        let begin = host.try_sh("ip link set lo up; echo 0 > /proc/sys/net/ipv4/ip_forward")?;
        if begin.status.success() {
            Ok(host)
        } else {
            let reason = String::from_utf8_lossy(&begin.stderr).into_owned();
            Err(failed("the loopback interface")(io::Error::other(reason)))
        }
    }

    /// Runs a shell script on this host.
    ///
    /// # Errors
    /// There is no shell.
    #[allow(
        clippy::disallowed_methods,
        reason = "checks look at a host with the system's own programs"
    )]
    pub fn try_sh(&self, script: &str) -> Result<Output, HostError> {
        let shell = Command::new("sh").args(["-euc", script]).output();
        shell.map_err(failed(format!("sh: {script}")))
    }

    /// Runs a shell script in the namespace `netns` and returns what it printed, trimmed.
    ///
    /// # Errors
    /// The script fails; its output is the reason.
    pub fn sh_in(&self, netns: &str, script: &str) -> Result<String, HostError> {
        self.sh(&format!(
            "nsenter --net=/run/netns/{netns} sh -euc '{}'",
            script.replace('\'', r"'\''")
        ))
    }

    /// Runs a shell script on this host and returns what it printed, trimmed.
    ///
    /// # Errors
    /// The script fails; its output is the reason.
    pub fn sh(&self, script: &str) -> Result<String, HostError> {
        let output = self.try_sh(script)?;
        let stdout = String::from_utf8_lossy(&output.stdout);
        if output.status.success() {
            return Ok(stdout.trim().to_owned());
        }
        let told = format!("{} {stdout}{}", output.status, String::from_utf8_lossy(&output.stderr));
        Err(failed(format!("`{script}`"))(io::Error::other(told.trim().to_owned())))
    }

    /// Makes a network namespace and returns its path.
    ///
    /// # Errors
    /// There is one of that name.
    pub fn netns(&self, name: &str) -> Result<PathBuf, HostError> {
        self.sh(&format!("ip netns add {name}; ip -n {name} link set lo up"))?;
        Ok(Path::new("/run/netns").join(name))
    }

    /// Starts a server in the namespace `netns` that answers everyone on a port of `protocol` ("TCP", "TCP6" or "UDP",
    /// as socat calls them) with the address that it sees.
    ///
    /// # Errors
    /// It does not listen.
    pub fn serve(&self, netns: &str, protocol: &str, port: u16) -> Result<Server, HostError> {
        let answer = if protocol == "UDP" {
            "PIPE"
        } else {
            "SYSTEM:echo $SOCAT_PEERADDR"
        };
        let listen = format!("{protocol}-LISTEN:{port},fork,reuseaddr");
        let flag = if protocol == "UDP" { "-T2" } else { "-T5" };
        let server = Server(self.start(netns, &["socat", flag, &listen, answer])?);
        let family = if protocol == "UDP" { "u" } else { "t" };
        self.sh_in(
            netns,
            &format!("n=0; until ss -Hln{family} sport = :{port} | grep -q .; do n=$((n + 1)); [ $n -lt 2000 ]; done"),
        )?;
        Ok(server)
    }

    #[allow(
        clippy::disallowed_methods,
        reason = "the servers of checks are the system's own programs"
    )]
    fn start(&self, netns: &str, command: &[&str]) -> Result<Child, HostError> {
        Command::new("nsenter")
            .arg(format!("--net=/run/netns/{netns}"))
            .args(command)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(failed("nsenter"))
    }

    /// What the server behind `target` ("TCP:192.0.2.1:80") answers to the namespace `netns`, or to the host itself.
    /// Empty if nobody answers.
    ///
    /// # Errors
    /// There is no shell.
    pub fn ask(&self, netns: Option<&str>, target: &str) -> Result<String, HostError> {
        // A datagram may be lost where a connection would only be slow.
        let client = match target.starts_with("UDP") {
            true => format!("for n in 1 2 3; do echo heard | socat -t2 -T2 - {target} | grep . && break; done"),
            false => format!("socat -T10 - {target},connect-timeout=10 < /dev/null"),
        };
        let script = match netns {
            Some(netns) => format!("nsenter --net=/run/netns/{netns} sh -c '{client}'"),
            None => client,
        };
        let output = self.try_sh(&script)?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }
}

/// Shows an open directory at another place.
fn bind(directory: &File, place: &str) -> Result<(), HostError> {
    fs::create_dir_all(place).map_err(failed(place))?;
    let source = format!("/proc/thread-self/fd/{}", directory.as_raw_fd());
    mount(
        Some(source.as_str()),
        place,
        None::<&str>,
        MsFlags::MS_BIND,
        None::<&str>,
    )
    .map_err(failed(format!("mount plugins on {place}")))
}

/// A server, which ends with this value.
#[derive(Debug)]
pub struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself, and then there is nothing to do.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn own_namespaces() -> Result<[PathBuf; 2], HostError> {
    // /proc/self would show the namespaces of the process's first thread.
    let id = |kind: &str| {
        let path = format!("/proc/thread-self/ns/{kind}");
        fs::read_link(&path).map_err(failed(path))
    };
    Ok([id("net")?, id("mnt")?])
}
