//! Configurations by which any plugin can be tried out.

use serde_json::{Value, json};

use super::{Bench, Stop, with};
use crate::feature::Feature;
use crate::host::{Host, HostError};

/// How a plugin is called, and with what.
#[derive(Debug)]
pub struct Specimen {
    /// What sort of plugin it is.
    pub kind: Kind,
    /// What the kernel must have for it.
    pub needs: Option<Feature>,
    keys: Value,
    static_ipam: bool,
    master: bool,
}

/// What a plugin does for a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It makes `CNI_IFNAME` and returns it.
    Interface,
    /// It brings `lo` up.
    Loopback,
    /// It gives out addresses, and is called by others.
    Ipam,
    /// It comes after another plugin and changes what that one made.
    Chained,
}

impl Specimen {
    /// The plugin's configuration: its author's, or one that is known here.
    ///
    /// # Errors
    /// Not applicable where there is none.
    pub fn of(bench: &Bench) -> Result<Specimen, Stop> {
        let plugin = bench.plugin;
        let (kind, keys) = known(plugin)
            .or_else(|| bench.given.get(plugin).map(|_| (Kind::Interface, json!({}))))
            .ok_or_else(|| Stop::NotApplicable(format!("no configuration of {plugin} is known (see --conf)")))?;
        let mut specimen = Specimen {
            kind,
            needs: needs(plugin),
            keys,
            static_ipam: false,
            master: ["macvlan", "ipvlan", "vlan"].contains(&plugin),
        };
        if let Some(given) = bench.given.get(plugin) {
            specimen.keys = given.clone();
            if given.get("prevResult").is_some() {
                specimen.kind = Kind::Chained;
            }
        } else if kind == Kind::Interface {
            if bench.has("host-local") {
                specimen.keys["ipam"] = json!({ "type": "host-local", "subnet": "10.1.0.0/24" });
            } else if bench.has("static") {
                specimen.static_ipam = true;
            } else {
                specimen.keys["ipMasq"] = json!(false);
            }
        }
        specimen.keys["type"] = json!(plugin);
        Ok(specimen)
    }

    /// Makes the container's namespace, and what has to be in it.
    ///
    /// # Errors
    /// The host's programs fail.
    pub fn prepare(&self, host: &Host, id: &str) -> Result<(), HostError> {
        host.netns(id)?;
        if self.master {
            host.sh("if ! [ -e /sys/class/net/up0 ]; then
                    ip link add up0 type veth peer name up1; ip link set up0 up; ip link set up1 up; fi")?;
        }
        if self.kind == Kind::Chained {
            let n = number(id);
            host.sh(&format!(
                "ip link add vh{id} type veth peer name eth0 netns {id}
                ip link set vh{id} up; ip -n {id} link set eth0 up
                ip -n {id} addr add 10.2.0.{n}/24 dev eth0; ip -n {id} route add default via 10.2.0.1"
            ))?;
        }
        Ok(())
    }

    /// The configuration for a container.
    ///
    /// # Errors
    /// Not applicable for a chained plugin at versions that have no chains.
    pub fn conf(&self, id: &str, version: &str) -> Result<Value, Stop> {
        let mut conf = with(&self.keys, json!({ "cniVersion": version, "name": "net" }));
        let n = number(id);
        if self.static_ipam {
            let address = json!({ "address": format!("10.1.0.{n}/24"), "gateway": "10.1.0.1" });
            conf["ipam"] = json!({ "type": "static", "addresses": [address] });
        }
        if self.kind == Kind::Chained && conf.get("prevResult").is_none() {
            if ["", "0.1.0", "0.2.0"].contains(&version) {
                return Err(Stop::NotApplicable(
                    "before 0.3.0 there are no chains of plugins".to_owned(),
                ));
            }
            conf["prevResult"] = previous(id, version);
        }
        if let Some(port) = conf.pointer_mut("/runtimeConfig/portMappings/0/hostPort") {
            *port = json!(18000 + n);
        }
        Ok(conf)
    }
}

/// The keys of a plugin's configuration besides those that all have.
fn known(plugin: &str) -> Option<(Kind, Value)> {
    Some(match plugin {
        "loopback" => (Kind::Loopback, json!({})),
        "bridge" => (
            Kind::Interface,
            json!({ "bridge": "br-cni", "isGateway": true, "ipMasq": true }),
        ),
        "ptp" => (Kind::Interface, json!({ "ipMasq": true })),
        "macvlan" | "ipvlan" => (Kind::Interface, json!({ "master": "up0" })),
        "vlan" => (Kind::Interface, json!({ "master": "up0", "vlanId": 5 })),
        "dummy" => (Kind::Interface, json!({})),
        "host-local" => (
            Kind::Ipam,
            json!({ "ipam": { "type": "host-local", "subnet": "10.1.0.0/24" } }),
        ),
        "static" => {
            let address = json!({ "address": "10.1.0.9/24", "gateway": "10.1.0.1" });
            (
                Kind::Ipam,
                json!({ "ipam": { "type": "static", "addresses": [address] } }),
            )
        }
        "portmap" => {
            let mapping = json!({ "hostPort": 18000, "containerPort": 80, "protocol": "tcp" });
            let keys = json!({
                "capabilities": { "portMappings": true }, "runtimeConfig": { "portMappings": [mapping] },
            });
            (Kind::Chained, keys)
        }
        "firewall" => (Kind::Chained, json!({})),
        "tuning" => (
            Kind::Chained,
            json!({ "sysctl": { "net.ipv4.conf.IFNAME.log_martians": "1" } }),
        ),
        "bandwidth" => {
            let rates = json!({ "ingressRate": 1_000_000, "ingressBurst": 1_000_000, "egressRate": 1_000_000,
                "egressBurst": 1_000_000 });
            (Kind::Chained, rates)
        }
        "sbr" => (Kind::Chained, json!({})),
        _ => return None,
    })
}

fn needs(plugin: &str) -> Option<Feature> {
    match plugin {
        "dummy" => Some(Feature::Dummy),
        "ipvlan" => Some(Feature::Ipvlan),
        "macvlan" => Some(Feature::Macvlan),
        "vlan" => Some(Feature::Vlan),
        _ => None,
    }
}

/// The result that a chained plugin finds, of an interface made by [`Specimen::prepare`].
pub(super) fn previous(id: &str, version: &str) -> Value {
    let mut ip = json!({
        "address": format!("10.2.0.{}/24", number(id)), "gateway": "10.2.0.1", "interface": 1,
    });
    if version.starts_with("0.") {
        ip["version"] = json!("4");
    }
    json!({
        "cniVersion": version,
        "interfaces": [{ "name": format!("vh{id}") }, { "name": "eth0", "sandbox": format!("/run/netns/{id}") }],
        "ips": [ip],
        "routes": [{ "dst": "0.0.0.0/0" }],
    })
}

/// A number for a container, so that no two of a check have the same address: that at the end of its ID, and 10.
pub(super) fn number(id: &str) -> u16 {
    let digits: String = id.chars().filter(char::is_ascii_digit).collect();
    digits.parse::<u16>().unwrap_or(0).saturating_add(10)
}
