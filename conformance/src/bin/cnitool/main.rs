//! `cnitool`: runs a network's chain of plugins by hand, as a runtime would, and shows what exists on a node.

use std::env;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc;

use cni_types::{ContainerId, IfName};
use conformance::cache::Cache;
use conformance::chain::{ChainError, Container, Runtime};
use conformance::conf::NetworkConf;
use serde_json::{Map, Value};
use sha2::{Digest, Sha512};

mod holdings;
mod namespace;
mod node;
mod rules;
mod show;
mod summary;

use summary::Summary;

const USAGE: &str = "\
cnitool: runs a network's chain of CNI plugins by hand

usage: cnitool [--json] add NETWORK NETNS     attaches the namespace at the path NETNS, prints the result
       cnitool [--json] check NETWORK NETNS   asks the plugins whether the attachment is as it should be
       cnitool [--json] del NETWORK NETNS     detaches it; NETNS need not exist any more
       cnitool [--json] gc NETWORK            removes what the network holds for attachments that are remembered no
                                              more, or whose namespace has gone
       cnitool [--json] status NETWORK        asks the plugins whether they could attach a container now
       cnitool [--json] up NAME [NETWORK]     makes the network namespace NAME and attaches it, by default to the
                                              first network in NETCONFPATH; tells how to reach it
       cnitool [--json] down NAME             detaches the namespace NAME from all networks and removes it
       cnitool [--json] show [ADDRESS]        what exists on this node, or who holds an address
       cnitool [--json] show port PORT        who publishes a host port

  --json       prints one JSON document with every plugin's call and how long it took; otherwise the calls are told
               on standard error

environment:
  NETCONFPATH  directory of network configurations (default /etc/cni/net.d)
  CNI_PATH     directories of plugins, separated by colons (default /opt/cni/bin)
  CNI_IFNAME   name of the interface in the namespace (default eth0)
  CNI_ARGS     additional arguments for the plugins, K=V;K=V
  CAP_ARGS     arguments of capabilities, a JSON object such as
               {\"portMappings\":[{\"hostPort\":8080,\"containerPort\":80,\"protocol\":\"tcp\"}]}
  NO_COLOR     no colours, even on a terminal
";

/// Where results are kept from `add` to `check` and `del`.
const CACHE: &str = "/var/lib/cni/results";

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let mut arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let before = arguments.len();
    arguments.retain(|argument| *argument != "--json");
    match run(&arguments, arguments.len() < before) {
        Ok(code) => code,
        Err(e) => {
            // There is nobody left to tell if standard error is closed.
            let _ = writeln!(io::stderr(), "{e}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[&str], json: bool) -> Result<ExitCode, Failure> {
    let (runtime, steps) = runtime();
    let summary = Summary::new(steps, json, !variable("NO_COLOR", "").is_empty());
    match arguments {
        ["-h" | "--help"] => print(USAGE)?,
        ["add", network, netns] => {
            let (conf, container) = (network_conf(network)?, container(Path::new(netns))?);
            return summary.tell("add", network, runtime.add(&conf, &container));
        }
        ["check", network, netns] => {
            let (conf, container) = (network_conf(network)?, container(Path::new(netns))?);
            return summary.tell("check", network, nothing(runtime.check(&conf, &container)));
        }
        ["del", network, netns] => {
            let (conf, container) = (network_conf(network)?, container(Path::new(netns))?);
            return summary.tell("del", network, nothing(runtime.del(&conf, &container)));
        }
        // The reference's cnitool wants a namespace here too, and does nothing with it.
        ["gc", network] | ["gc", network, _] => {
            return summary.tell("gc", network, nothing(runtime.gc(&network_conf(network)?)));
        }
        ["status", network] | ["status", network, _] => {
            return summary.tell("status", network, nothing(runtime.status(&network_conf(network)?)));
        }
        ["up", name] => return up(&runtime, summary, name, NetworkConf::first(&networks_directory())?),
        ["up", name, network] => return up(&runtime, summary, name, network_conf(network)?),
        ["down", name] => return down(&runtime, summary, name),
        ["show"] => print(&show::everything(&node()?, json))?,
        ["show", "port", port] => {
            let number = port.parse().map_err(|_| format!("{port} is no number of a port"))?;
            print(&show::port(&node()?, number, json)?)?;
        }
        ["show", address] => {
            let address = address
                .parse()
                .map_err(|_| format!("{address} is no IP address\n\n{USAGE}"))?;
            print(&show::address(&node()?, address, json)?)?;
        }
        _ => return Err(USAGE.into()),
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes a namespace and attaches it. If it cannot be attached, it does not stay.
fn up(runtime: &Runtime, summary: Summary, name: &str, conf: NetworkConf) -> Result<ExitCode, Failure> {
    let path = namespace::make(name)?;
    let attached =
        container(&path).and_then(|container| Ok(runtime.add(&conf, &container).map(|result| (container, result))?));
    match attached {
        Ok((container, result)) if summary.is_for_people() => {
            summary.calls();
            print(&namespace::how_to_reach(
                name,
                conf.name.as_str(),
                &result,
                &container.capability_args,
            ))?;
            Ok(ExitCode::SUCCESS)
        }
        Ok((_, result)) => summary.tell("up", conf.name.as_str(), Ok(result)),
        Err(e) => {
            namespace::remove(name)?;
            summary.calls();
            Err(e)
        }
    }
}

/// Detaches a namespace from every network that it is remembered to be on, and removes it. One that cannot be detached
/// stays, so that the command can be repeated.
fn down(runtime: &Runtime, summary: Summary, name: &str) -> Result<ExitCode, Failure> {
    let path = namespace::path(name)?;
    let entries = runtime.cache.entries()?;
    let own: Vec<_> = entries.iter().filter(|entry| Path::new(&entry.netns) == path).collect();
    if own.is_empty() && !path.exists() {
        return Err(format!("there is no namespace {name}, and none of that name is attached").into());
    }
    let mut outcome = Ok(Value::Null);
    for entry in own {
        let conf = network_conf(&entry.network)?;
        outcome = outcome.and(nothing(runtime.del(&conf, &Container::of(entry))));
    }
    if outcome.is_ok() && path.exists() {
        namespace::remove(name)?;
    }
    summary.tell("down", name, outcome)
}

/// DEL, CHECK, GC and STATUS have no result.
fn nothing(outcome: Result<(), ChainError>) -> Result<Value, ChainError> {
    outcome.map(|()| Value::Null)
}

fn runtime() -> (Runtime, mpsc::Receiver<conformance::chain::Step>) {
    let (watcher, steps) = mpsc::channel();
    let runtime = Runtime {
        plugin_path: env::split_paths(&variable("CNI_PATH", "/opt/cni/bin")).collect(),
        cache: Cache::new(CACHE),
        watcher: Some(watcher),
    };
    (runtime, steps)
}

fn networks_directory() -> PathBuf {
    PathBuf::from(variable("NETCONFPATH", "/etc/cni/net.d"))
}

fn network_conf(name: &str) -> Result<NetworkConf, Failure> {
    Ok(NetworkConf::find(&networks_directory(), name)?)
}

fn node() -> Result<node::Node, Failure> {
    node::Node::read(&networks_directory(), &Cache::new(CACHE))
}

fn container(netns: &Path) -> Result<Container, Failure> {
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
