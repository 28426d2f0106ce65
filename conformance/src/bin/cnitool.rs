//! `cnitool`: runs a network's chain of plugins by hand, as a runtime would.

use std::env;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use cni_types::{ContainerId, IfName};
use conformance::cache::Cache;
use conformance::chain::{Container, Runtime};
use conformance::conf::NetworkConf;
use serde_json::{Map, Value};
use sha2::{Digest, Sha512};

const USAGE: &str = "\
cnitool: runs a network's chain of CNI plugins by hand

usage: cnitool add NETWORK NETNS     attaches the namespace at the path NETNS, prints the result
       cnitool check NETWORK NETNS   asks the plugins whether the attachment is as it should be
       cnitool del NETWORK NETNS     detaches it; NETNS need not exist any more

environment:
  NETCONFPATH  directory of network configurations (default /etc/cni/net.d)
  CNI_PATH     directories of plugins, separated by colons (default /opt/cni/bin)
  CNI_IFNAME   name of the interface in the namespace (default eth0)
  CNI_ARGS     additional arguments for the plugins, K=V;K=V
  CAP_ARGS     arguments of capabilities, a JSON object such as
               {\"portMappings\":[{\"hostPort\":8080,\"containerPort\":80,\"protocol\":\"tcp\"}]}
";

/// Where results are kept from `add` to `check` and `del`.
const CACHE: &str = "/var/lib/cni/results";

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments.as_slice() {
        ["-h" | "--help"] => print(USAGE),
        [verb @ ("add" | "check" | "del"), network, netns] => run(verb, network, netns),
        _ => Err(USAGE.into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            // There is nobody left to tell if standard error is closed.
            let _ = writeln!(io::stderr(), "{e}");
            ExitCode::FAILURE
        }
    }
}

fn run(verb: &str, network: &str, netns: &str) -> Result<(), Failure> {
    let conf = NetworkConf::find(Path::new(&variable("NETCONFPATH", "/etc/cni/net.d")), network)?;
    let runtime = Runtime {
        plugin_path: env::split_paths(&variable("CNI_PATH", "/opt/cni/bin")).collect(),
        cache: Cache::new(CACHE),
    };
    let container = container(netns)?;
    match verb {
        "add" => print(&format!("{:#}\n", runtime.add(&conf, &container)?)),
        "check" => Ok(runtime.check(&conf, &container)?),
        _ => Ok(runtime.del(&conf, &container)?),
    }
}

fn container(netns: &str) -> Result<Container, Failure> {
    let netns = std::path::absolute(netns)?.to_string_lossy().into_owned();
    Ok(Container {
        id: container_id(&netns)?,
        netns,
        ifname: variable("CNI_IFNAME", "eth0").parse::<IfName>()?,
        args: variable("CNI_ARGS", ""),
        capability_args: serde_json::from_str::<Map<String, Value>>(&variable("CAP_ARGS", "{}"))
            .map_err(|e| format!("CAP_ARGS must be a JSON object: {e}"))?,
    })
}

/// A namespace's container ID: what the reference's cnitool makes of its path, so that each can detach what the other
/// attached.
fn container_id(netns: &str) -> Result<ContainerId, Failure> {
    let digest = Sha512::digest(netns.as_bytes());
    let hex: String = digest.iter().take(10).map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("cnitool-{hex}").parse()?)
}

/// A variable of the environment; unset and empty are the same.
#[allow(
    clippy::disallowed_methods,
    reason = "the one place where cnitool reads its environment"
)]
fn variable(name: &str, default: &str) -> String {
    env::var(name)
        .ok()
        .filter(|value| !value.is_empty())
        .unwrap_or_else(|| default.to_owned())
}

fn print(text: &str) -> Result<(), Failure> {
    Ok(io::stdout().write_all(text.as_bytes())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_has_the_reference_cnitools_container_id() {
        // The first ten bytes of: printf /run/netns/web | sha512sum
        let id = container_id("/run/netns/web").unwrap();
        assert_eq!(id.as_str(), "cnitool-82e215debf7df4651d36");
    }
}
