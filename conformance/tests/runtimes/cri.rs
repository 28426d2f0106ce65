//! A client of the Container Runtime Interface, for the few calls that a pod's life takes.
//!
//! CRI is gRPC, that is HTTP/2, on a Unix socket, and curl speaks it. So the only thing to write down is the messages:
//! field numbers are those of k8s.io/cri-api, pkg/apis/runtime/v1/api.proto; fields that are not named are skipped.

use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use prost::Message;

/// A client of the runtime behind a socket.
pub(crate) struct Client {
    socket: PathBuf,
}

impl Client {
    pub(crate) fn new(socket: &Path) -> Client {
        Client {
            socket: socket.to_owned(),
        }
    }

    /// Calls a method of `runtime.v1.RuntimeService`. The error is the runtime's own text.
    pub(crate) fn call<Reply: Message + Default>(&self, method: &str, request: &impl Message) -> Result<Reply, String> {
        let mut curl = Command::new("curl")
            .args([
                "--silent",
                "--show-error",
                "--max-time",
                "60",
                "--http2-prior-knowledge",
            ])
            .args(["--header", "content-type: application/grpc", "--header", "te: trailers"])
            .args(["--data-binary", "@-", "--dump-header", "/dev/stderr", "--unix-socket"])
            .arg(&self.socket)
            .arg(format!("http://localhost/runtime.v1.RuntimeService/{method}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("curl");
        let body = request.encode_to_vec();
        let length = u32::try_from(body.len()).unwrap().to_be_bytes();
        // A gRPC frame: not compressed, the length, the message.
        let frame = [&[0], &length[..], &body].concat();
        curl.stdin.take().unwrap().write_all(&frame).expect("curl's input");
        let output = curl.wait_with_output().expect("curl");

        let headers = String::from_utf8_lossy(&output.stderr);
        let header = |name: &str| headers.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        match header("grpc-status:") {
            Some("0") => {}
            Some(_) => return Err(header("grpc-message:").unwrap_or_default().replace("%22", "\"")),
            None => return Err(format!("{method}: no answer: {headers}")),
        }
        let message = output.stdout.get(frame.len() - body.len()..);
        let message = message.ok_or_else(|| format!("{method}: no frame in {} bytes", output.stdout.len()))?;
        Reply::decode(message).map_err(|e| format!("{method}: {e}"))
    }
}

/// What a pod is to be.
pub(crate) struct PodSpec<'a> {
    name: &'a str,
    ports: &'a [Port],
}

/// A published port.
#[derive(Clone, Copy)]
pub(crate) struct Port {
    protocol: i32,
    host: i32,
    container: i32,
}

impl Port {
    pub(crate) const fn tcp(host: i32, container: i32) -> Port {
        Port {
            protocol: 0,
            host,
            container,
        }
    }

    pub(crate) const fn udp(host: i32, container: i32) -> Port {
        Port {
            protocol: 1,
            host,
            container,
        }
    }
}

impl<'a> PodSpec<'a> {
    pub(crate) fn new(name: &'a str, ports: &'a [Port]) -> PodSpec<'a> {
        PodSpec { name, ports }
    }

    /// The request that runs the pod, its processes in this control group.
    pub(crate) fn request(&self, cgroup: &str) -> RunPodSandboxRequest {
        let port = |port: &Port| PortMapping {
            protocol: port.protocol,
            container_port: port.container,
            host_port: port.host,
        };
        RunPodSandboxRequest {
            config: Some(PodSandboxConfig {
                metadata: Some(PodSandboxMetadata {
                    name: self.name.to_owned(),
                    uid: format!("{}-uid", self.name),
                    namespace: "default".to_owned(),
                }),
                hostname: self.name.to_owned(),
                port_mappings: self.ports.iter().map(port).collect(),
                linux: Some(LinuxPodSandboxConfig {
                    cgroup_parent: cgroup.to_owned(),
                }),
            }),
        }
    }
}

#[derive(Message)]
pub(crate) struct RunPodSandboxRequest {
    #[prost(message, tag = "1")]
    config: Option<PodSandboxConfig>,
}

#[derive(Message)]
pub(crate) struct PodSandboxConfig {
    #[prost(message, tag = "1")]
    metadata: Option<PodSandboxMetadata>,
    #[prost(string, tag = "2")]
    hostname: String,
    #[prost(message, repeated, tag = "5")]
    port_mappings: Vec<PortMapping>,
    #[prost(message, tag = "8")]
    linux: Option<LinuxPodSandboxConfig>,
}

#[derive(Message)]
pub(crate) struct PodSandboxMetadata {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    uid: String,
    #[prost(string, tag = "3")]
    namespace: String,
}

#[derive(Message)]
pub(crate) struct PortMapping {
    #[prost(int32, tag = "1")]
    protocol: i32,
    #[prost(int32, tag = "2")]
    container_port: i32,
    #[prost(int32, tag = "3")]
    host_port: i32,
}

#[derive(Message)]
pub(crate) struct LinuxPodSandboxConfig {
    #[prost(string, tag = "1")]
    cgroup_parent: String,
}

/// `RunPodSandboxResponse`, `StopPodSandboxRequest` and `RemovePodSandboxRequest`, which are all the same.
#[derive(Message)]
pub(crate) struct PodSandboxId {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
}

#[derive(Message)]
pub(crate) struct PodSandboxStatusRequest {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(bool, tag = "2")]
    pub(crate) verbose: bool,
}

#[derive(Message)]
pub(crate) struct PodSandboxStatusResponse {
    #[prost(message, tag = "1")]
    pub(crate) status: Option<PodSandboxStatus>,
    /// With `verbose`: `info` is JSON, and has the OCI runtime's specification of the pod under `runtimeSpec`.
    #[prost(map = "string, string", tag = "2")]
    pub(crate) info: HashMap<String, String>,
}

#[derive(Message)]
pub(crate) struct PodSandboxStatus {
    #[prost(message, tag = "5")]
    pub(crate) network: Option<PodSandboxNetworkStatus>,
}

#[derive(Message)]
pub(crate) struct PodSandboxNetworkStatus {
    #[prost(string, tag = "1")]
    pub(crate) ip: String,
}

/// `StatusRequest` and the responses without a field.
#[derive(Message)]
pub(crate) struct Empty {}

#[derive(Message)]
pub(crate) struct StatusResponse {
    #[prost(message, tag = "1")]
    pub(crate) status: Option<RuntimeStatus>,
}

#[derive(Message)]
pub(crate) struct RuntimeStatus {
    #[prost(message, repeated, tag = "1")]
    pub(crate) conditions: Vec<RuntimeCondition>,
}

#[derive(Message)]
pub(crate) struct RuntimeCondition {
    #[prost(string, tag = "1")]
    pub(crate) kind: String,
    #[prost(bool, tag = "2")]
    pub(crate) status: bool,
    #[prost(string, tag = "4")]
    pub(crate) message: String,
}
