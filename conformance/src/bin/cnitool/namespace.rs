//! Named network namespaces, as `ip netns` keeps them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Map, Value};

use super::Failure;

/// Where `ip netns` keeps them.
const DIRECTORY: &str = "/run/netns";

/// The path of the namespace of this name.
///
/// # Errors
/// The name leads out of the directory of namespaces, or could be taken for an option.
pub(super) fn path(name: &str) -> Result<PathBuf, Failure> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if !name.starts_with(|c: char| c.is_ascii_alphanumeric()) || !name.chars().all(is_plain) {
        return Err(
            format!("{name:?} is no name of a namespace: letters, digits, dots, hyphens and underscores are").into(),
        );
    }
    Ok(Path::new(DIRECTORY).join(name))
}

/// Makes a namespace whose loopback interface is up.
pub(super) fn make(name: &str) -> Result<PathBuf, Failure> {
    let path = path(name)?;
    ip(&["netns", "add", name])?;
    if let Err(e) = ip(&["-n", name, "link", "set", "lo", "up"]) {
        remove(name)?;
        return Err(e);
    }
    Ok(path)
}

/// Removes a namespace. It lives on as long as processes are in it.
pub(super) fn remove(name: &str) -> Result<(), Failure> {
    ip(&["netns", "delete", name])
}

/// Namespaces have to be mounted so that all of the machine sees them, in the way that `ip` does it for everyone.
#[allow(
    clippy::disallowed_methods,
    reason = "the one place where cnitool starts a program that is no plugin"
)]
fn ip(arguments: &[&str]) -> Result<(), Failure> {
    let output: Output = Command::new("ip")
        .args(arguments)
        .output()
        .map_err(|e| format!("ip (of iproute2): {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    let complaint = String::from_utf8_lossy(&output.stderr);
    Err(format!("ip {}: {}", arguments.join(" "), complaint.trim()).into())
}

/// What people want to know of a namespace that has just been attached.
pub(super) fn how_to_reach(name: &str, network: &str, result: &Value, capability_args: &Map<String, Value>) -> String {
    let mut text = format!("{name} is on the network {network}.\n");
    for address in list(result, "ips").filter_map(|ip| ip.get("address")?.as_str()) {
        let bare = address.split('/').next().unwrap_or(address);
        text.push_str(&format!("  address   {address}      ping {bare}\n"));
    }
    let arguments = Value::Object(capability_args.clone());
    for mapping in list(&arguments, "portMappings") {
        let figure = |key: &str| mapping.get(key).and_then(Value::as_u64).unwrap_or_default();
        let word = |key: &str| mapping.get(key).and_then(Value::as_str).filter(|word| !word.is_empty());
        let address = word("hostIP").map(|ip| format!("{ip} port ")).unwrap_or_default();
        let (host, container) = (figure("hostPort"), figure("containerPort"));
        let protocol = word("protocol").unwrap_or("tcp");
        text.push_str(&format!(
            "  port      {address}{host}/{protocol} of this node leads to {container}\n"
        ));
    }
    text.push_str(&format!("  inside    nsenter --net={DIRECTORY}/{name} COMMAND\n"));
    text + &format!("  remove    cnitool down {name}\n")
}

fn list<'a>(object: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    object.get(key).and_then(Value::as_array).into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_stay_in_their_directory() {
        assert_eq!(path("web-1").unwrap(), Path::new("/run/netns/web-1"));
        for name in ["", ".", "../web", "a/b", "-n", "a b"] {
            assert!(path(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn tells_addresses_and_ports() {
        let result = json!({"ips": [{"address": "10.88.0.2/16"}, {"address": "fd00::2/64"}]});
        let arguments = json!({"portMappings": [
            {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
            {"hostPort": 53, "containerPort": 5353, "protocol": "udp", "hostIP": "127.0.0.1"},
        ]});
        let text = how_to_reach("web", "net", &result, arguments.as_object().unwrap());
        for part in [
            "web is on the network net",
            "ping 10.88.0.2\n",
            "ping fd00::2\n",
            "  8080/tcp of this node leads to 80\n",
            "127.0.0.1 port 53/udp of this node leads to 5353\n",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
