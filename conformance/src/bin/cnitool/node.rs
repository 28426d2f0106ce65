//! What exists on a node: read from data directories, links and rules, and put together.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use conformance::cache::{Cache, Entry};
use conformance::conf::NetworkConf;
use serde_json::Value;

use super::Failure;
use super::holdings::{self, Holding};
use super::rules::{Port, Rules};

/// Where host-local keeps reservations unless a network says otherwise (`ipam.dataDir`).
const RESERVATIONS: &str = "/var/lib/cni/networks";

/// Everything.
#[derive(Debug, Default)]
pub(super) struct Node {
    /// Each network's name, and the plugins of its configuration: none for a network that is only found in data.
    pub(super) networks: BTreeMap<String, Vec<String>>,
    /// All attachments that a runtime remembers or that hold an address.
    pub(super) attachments: Vec<Attached>,
    /// Ports whose rules name no attachment of these.
    pub(super) stray_ports: Vec<Port>,
    /// Host ends of veth pairs that no attachment has, but which are named as CNI plugins name theirs.
    pub(super) stray_links: Vec<String>,
    /// What is kept for attachments that are none of these.
    pub(super) stray_holdings: Vec<Holding>,
}

/// A container on a network.
#[derive(Debug, Clone, Default)]
pub(super) struct Attached {
    pub(super) network: String,
    pub(super) container: String,
    pub(super) ifname: String,
    /// Its namespace; empty where nothing says so.
    pub(super) netns: String,
    /// Without prefix lengths.
    pub(super) addresses: Vec<IpAddr>,
    /// The interfaces on the node that ADD reported.
    pub(super) host_interfaces: Vec<String>,
    pub(super) ports: Vec<Port>,
    /// What else is kept for it.
    pub(super) holdings: Vec<Holding>,
    /// Why it is left over; `None` for one that a runtime remembers and whose namespace exists.
    pub(super) stray: Option<&'static str>,
}

impl Node {
    /// Reads everything there is. Rules can be seen by root alone.
    ///
    /// # Errors
    /// Files that cannot be read.
    pub(super) fn read(networks: &Path, cache: &Cache) -> Result<Node, Failure> {
        // A node without configurations may still have attachments.
        let confs = if networks.is_dir() {
            NetworkConf::all(networks)?
        } else {
            Vec::new()
        };
        let mut directories = vec![PathBuf::from(RESERVATIONS)];
        directories.extend(confs.iter().flat_map(data_directories));
        directories.sort();
        directories.dedup();

        let mut node = Node::default();
        for conf in &confs {
            let plugins = conf.plugins.iter().map(|plugin| plugin.plugin_type.clone());
            node.networks.insert(conf.name.to_string(), plugins.collect());
        }
        let entries = cache.entries()?;
        node.attachments = entries.iter().map(Attached::of).collect();
        for directory in &directories {
            node.add_reservations(directory)?;
        }
        for attached in &node.attachments {
            node.networks.entry(attached.network.clone()).or_default();
        }
        let rules = Rules::read();
        node.add_ports(rules.ports());
        node.add_holdings(holdings::all(&rules));
        node.add_links(&interfaces()?);
        Ok(node)
    }

    fn add_reservations(&mut self, directory: &Path) -> Result<(), Failure> {
        for network in names(directory)? {
            for file in names(&directory.join(&network))? {
                let Ok(address) = file.parse::<IpAddr>() else { continue };
                // Released at this moment, if it is not there any more.
                let Ok(text) = fs::read_to_string(directory.join(&network).join(&file)) else {
                    continue;
                };
                let mut lines = text.lines().map(str::trim);
                let container = lines.next().unwrap_or_default();
                self.add_reservation(&network, container, lines.next(), address);
            }
        }
        Ok(())
    }

    /// Files of old versions of host-local do not name the interface.
    fn add_reservation(&mut self, network: &str, container: &str, ifname: Option<&str>, address: IpAddr) {
        let is_owner = |attached: &&mut Attached| {
            attached.network == network
                && attached.container == container
                && ifname.is_none_or(|ifname| ifname == attached.ifname)
        };
        match self.attachments.iter_mut().find(is_owner) {
            Some(attached) if attached.addresses.contains(&address) => {}
            Some(attached) => attached.addresses.push(address),
            None => self.attachments.push(Attached {
                network: network.to_owned(),
                container: container.to_owned(),
                ifname: ifname.unwrap_or_default().to_owned(),
                addresses: vec![address],
                stray: Some("no runtime remembers it here"),
                ..Attached::default()
            }),
        }
    }

    fn add_ports(&mut self, ports: Vec<Port>) {
        for port in ports {
            let owner = self.attachments.iter_mut().find(|attached| {
                (attached.network == port.network || port.network.is_empty() && attached.has_address_of(&port.target))
                    && (attached.container == port.container
                        // nft cuts long comments off.
                        || (port.container.len() > 40 && attached.container.starts_with(&port.container)))
            });
            match owner {
                Some(attached) => attached.ports.push(port),
                None => self.stray_ports.push(port),
            }
        }
    }

    fn add_holdings(&mut self, holdings: Vec<Holding>) {
        for holding in holdings {
            let owner = self.attachments.iter_mut().find(|attached| {
                let (network, container, ifname) = (&attached.network, &attached.container, &attached.ifname);
                holding.owner.is(network, container, ifname, &attached.addresses)
            });
            match owner {
                Some(attached) => attached.holdings.push(holding),
                None => self.stray_holdings.push(holding),
            }
        }
    }

    fn add_links(&mut self, interfaces: &[String]) {
        let is_named_alike = |name: &&String| {
            name.strip_prefix("veth")
                .is_some_and(|rest| rest.len() == 8 && rest.chars().all(|c| c.is_ascii_hexdigit()))
        };
        let attachments = &self.attachments;
        let is_known = |name: &&String| {
            attachments
                .iter()
                .any(|attached| attached.host_interfaces.contains(name))
        };
        let strays = interfaces.iter().filter(is_named_alike).filter(|name| !is_known(name));
        self.stray_links = strays.cloned().collect();
        for attached in &mut self.attachments {
            attached.host_interfaces.retain(|name| interfaces.contains(name));
        }
    }
}

impl Attached {
    /// Whether a port's target, an address and a port, is one of its own.
    fn has_address_of(&self, target: &str) -> bool {
        let address = target.rsplit_once(':').map_or(target, |(address, _)| address);
        let address = address.trim_start_matches('[').trim_end_matches(']').parse();
        address.is_ok_and(|address: IpAddr| self.addresses.contains(&address))
    }

    fn of(entry: &Entry) -> Attached {
        let list = |key: &str| entry.result.get(key).and_then(Value::as_array).into_iter().flatten();
        let on_node = |interface: &&Value| {
            interface
                .get("sandbox")
                .and_then(Value::as_str)
                .unwrap_or_default()
                .is_empty()
        };
        let name = |interface: &Value| Some(interface.get("name")?.as_str()?.to_owned());
        let address = |ip: &Value| ip.get("address")?.as_str()?.split('/').next()?.parse().ok();
        Attached {
            network: entry.network.clone(),
            container: entry.id.to_string(),
            ifname: entry.ifname.to_string(),
            netns: entry.netns.clone(),
            addresses: list("ips").filter_map(address).collect(),
            host_interfaces: list("interfaces").filter(on_node).filter_map(name).collect(),
            ports: Vec::new(),
            holdings: Vec::new(),
            stray: entry.is_stale().then_some("its namespace has gone"),
        }
    }
}

fn data_directories(conf: &NetworkConf) -> Vec<PathBuf> {
    let of_plugin = |object: &serde_json::Map<String, Value>| {
        let directory = object.get("ipam")?.get("dataDir")?.as_str()?;
        (!directory.is_empty()).then(|| PathBuf::from(directory))
    };
    conf.plugins
        .iter()
        .filter_map(|plugin| of_plugin(&plugin.object))
        .collect()
}

fn interfaces() -> Result<Vec<String>, Failure> {
    names(Path::new("/sys/class/net"))
}

/// What is in a directory, sorted; nothing if there is no such directory, or it is none.
fn names(directory: &Path) -> Result<Vec<String>, Failure> {
    if !directory.is_dir() {
        return Ok(Vec::new());
    }
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).map_err(|e| format!("{}: {e}", directory.display()))? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attached(container: &str) -> Attached {
        Attached {
            network: "net".to_owned(),
            container: container.to_owned(),
            ifname: "eth0".to_owned(),
            addresses: vec!["10.88.0.2".parse().unwrap()],
            host_interfaces: vec!["veth00000001".to_owned()],
            ..Attached::default()
        }
    }

    fn node() -> Node {
        Node {
            attachments: vec![attached("c1")],
            ..Node::default()
        }
    }

    #[test]
    fn a_reservation_finds_its_owner_or_is_a_stray() {
        let mut node = node();
        node.add_reservation("net", "c1", Some("eth0"), "10.88.0.2".parse().unwrap());
        node.add_reservation("net", "c1", None, "fd00::2".parse().unwrap());
        assert_eq!((node.attachments.len(), node.attachments[0].addresses.len()), (1, 2));
        node.add_reservation("net", "c2", Some("eth0"), "10.88.0.3".parse().unwrap());
        assert!(node.attachments[1].stray.is_some());
    }

    #[test]
    fn links_of_nobody_are_those_named_as_plugins_do() {
        let mut node = node();
        node.add_links(&["lo", "veth00000001", "veth0000000f", "veth1", "vethernet0"].map(str::to_owned));
        assert_eq!(node.stray_links, ["veth0000000f"]);
        assert_eq!(node.attachments[0].host_interfaces, ["veth00000001"]);
    }

    #[test]
    fn ports_of_nobody_are_kept_apart() {
        let port = |container: &str| Port {
            protocol: "tcp".to_owned(),
            host_ip: None,
            number: 80,
            target: "10.88.0.2:80".to_owned(),
            network: "net".to_owned(),
            container: container.to_owned(),
        };
        let mut node = node();
        // The reference's rules of nf_tables name no network, but lead to the container's address.
        let nameless = |target: &str| Port {
            network: String::new(),
            target: target.to_owned(),
            ..port("c1")
        };
        let ports = vec![
            port("c1"),
            port("gone"),
            nameless("10.88.0.2:80"),
            nameless("10.99.0.2:80"),
        ];
        node.add_ports(ports);
        assert_eq!((node.attachments[0].ports.len(), node.stray_ports.len()), (2, 2));
    }
}
