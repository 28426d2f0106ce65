//! A containerd of its own, and pods on it.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cri::{
    Client, Empty, PodSandboxId, PodSandboxStatusRequest, PodSandboxStatusResponse, PodSpec, StatusResponse,
};
use crate::image;
use crate::lab::Lab;

/// A running containerd with nothing in it but an image for pods.
pub(crate) struct Daemon<'lab> {
    lab: &'lab Lab,
    client: Client,
    directory: PathBuf,
}

/// A running pod.
pub(crate) struct Pod {
    pub(crate) id: String,
    pub(crate) address: String,
    /// The path of its network namespace.
    pub(crate) netns: String,
}

impl<'lab> Daemon<'lab> {
    /// Starts the containerd in the directory `programs` on a network, with `plugins` as its only plugin directory, and
    /// waits until it says that the network is ready.
    pub(crate) fn start(lab: &'lab Lab, programs: &Path, plugins: &Path, network: &Value) -> Daemon<'lab> {
        let directory = lab.directory().join("containerd");
        fs::create_dir_all(directory.join("net.d")).unwrap();
        fs::write(directory.join("net.d/10-network.conflist"), network.to_string()).unwrap();
        let version = lab.sh(&format!("{}/containerd --version", programs.display()));
        let config = if version.contains("/v2 ") {
            config_2(&directory, plugins)
        } else {
            config_1(&directory, plugins)
        };
        fs::write(directory.join("config.toml"), config).unwrap();

        // containerd starts the shim that it finds first: it must be of its own release.
        let path = format!("{}:{}", programs.display(), env::var("PATH").unwrap_or_default());
        let log = fs::File::create(directory.join("log")).unwrap();
        lab.start(
            Command::new(programs.join("containerd"))
                .arg("--config")
                .arg(directory.join("config.toml"))
                .env("PATH", path)
                .env("TMPDIR", lab.directory().join("tmp"))
                .stdout(log.try_clone().unwrap())
                .stderr(log),
        );
        let daemon = Daemon {
            lab,
            client: Client::new(&directory.join("socket")),
            directory,
        };
        daemon.wait_until_ready();
        lab.sh(&format!(
            "{}/ctr --address {}/socket --namespace k8s.io images import {}",
            programs.display(),
            daemon.directory.display(),
            image::archive(lab).display()
        ));
        daemon
    }

    fn wait_until_ready(&self) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while let Err(reason) = self.status() {
            assert!(
                Instant::now() < deadline,
                "containerd is not ready: {reason}\n{}",
                self.log()
            );
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn status(&self) -> Result<(), String> {
        let status: StatusResponse = self.client.call("Status", &Empty {})?;
        let conditions = status.status.ok_or("no status")?.conditions;
        match conditions.iter().find(|condition| !condition.status) {
            Some(unmet) => Err(format!("{}: {}", unmet.kind, unmet.message)),
            None => Ok(()),
        }
    }

    /// The end of containerd's complaints, for whoever reads a failure.
    fn log(&self) -> String {
        let log = self.directory.join("log");
        self.lab
            .sh(&format!("sed '/level=info/d' {} | tail -n 10", log.display()))
    }

    fn call<Reply: prost::Message + Default>(&self, method: &str, request: &impl prost::Message) -> Reply {
        let reply = self.client.call(method, request);
        reply.unwrap_or_else(|e| panic!("{method}: {e}\n{}", self.log()))
    }

    pub(crate) fn run_pod(&self, spec: &PodSpec) -> Pod {
        let pod: PodSandboxId = self.call("RunPodSandbox", &spec.request(&self.lab.cgroup()));
        let status = self.pod_status(&pod.id);
        let info: Value = serde_json::from_str(&status.info["info"]).expect("the pod's info");
        let namespaces = info["runtimeSpec"]["linux"]["namespaces"]
            .as_array()
            .expect("namespaces");
        let network = namespaces.iter().find(|namespace| namespace["type"] == "network");
        Pod {
            address: self.pod_address(&pod.id),
            netns: network.expect("a network namespace")["path"]
                .as_str()
                .unwrap()
                .to_owned(),
            id: pod.id,
        }
    }

    /// The address that the runtime tells; empty for none.
    pub(crate) fn pod_address(&self, id: &str) -> String {
        let network = self.pod_status(id).status.and_then(|status| status.network);
        network.unwrap_or_default().ip
    }

    fn pod_status(&self, id: &str) -> PodSandboxStatusResponse {
        let request = PodSandboxStatusRequest {
            id: id.to_owned(),
            verbose: true,
        };
        self.call("PodSandboxStatus", &request)
    }

    pub(crate) fn stop_pod(&self, pod: &Pod) {
        let _: Empty = self.call("StopPodSandbox", &PodSandboxId { id: pod.id.clone() });
    }

    pub(crate) fn remove_pod(&self, pod: &Pod) {
        let _: Empty = self.call("RemovePodSandbox", &PodSandboxId { id: pod.id.clone() });
    }
}

/// The part that all releases share: everything below one directory.
fn config_head(directory: &Path) -> String {
    let directory = directory.display();
    format!(
        r#"
root = "{directory}/root"
state = "{directory}/state"
[grpc]
address = "{directory}/socket"
[ttrpc]
address = "{directory}/socket.ttrpc"
"#
    )
}

/// What all releases say of pods. Without CAP_SYS_RESOURCE, which root in a container may lack, the kernel refuses the
/// score that a pod's process would get.
const CONFIG_PODS: &str = "
restrict_oom_score_adj = true
disable_apparmor = true
netns_mounts_under_state_dir = true
";

fn config_runc(directory: &Path) -> String {
    format!(
        r#"
runtime_type = "io.containerd.runc.v2"
options.Root = "{}/runc"
options.SystemdCgroup = false
"#,
        directory.display()
    )
}

fn config_1(directory: &Path, plugins: &Path) -> String {
    let (head, runc) = (config_head(directory), config_runc(directory));
    let (net_d, plugins) = (directory.join("net.d"), plugins.display());
    format!(
        r#"
version = 2
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.nri.v1.nri"]
{head}
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{image}"
{CONFIG_PODS}
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{plugins}"
conf_dir = "{net_d}"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
{runc}
"#,
        image = image::NAME,
        net_d = net_d.display(),
    )
}

fn config_2(directory: &Path, plugins: &Path) -> String {
    let (head, runc) = (config_head(directory), config_runc(directory));
    let (net_d, plugins) = (directory.join("net.d"), plugins.display());
    format!(
        r#"
version = 3
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.nri.v1.nri"]
{head}
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{image}"
[plugins."io.containerd.cri.v1.runtime"]
enable_cdi = false
{CONFIG_PODS}
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{plugins}"]
conf_dir = "{net_d}"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
{runc}
"#,
        image = image::NAME,
        net_d = net_d.display(),
    )
}
