//! `portmap`: publishes ports of a container on the host. Runs after the plugin that gave the container its addresses.

mod config;
mod netns;

use std::net::IpAddr;

use cni_types::{CniResult, Code, Error, NetConf, Result};
use net::{Net, Outcome};
use netfilter::Family;
use netfilter::portmap::{self, Hints, Published};
use skel::schema::Keys;
use skel::{Add, BestEffort, Call, Check, Del, Gc, Plugin, Status, Undo};

pub use config::{Cleanup, Config};

/// For `--help` and the manual.
const EXAMPLE: &str = r#"{
    "cniVersion": "1.0.0",
    "name": "pods",
    "plugins": [
        {
            "type": "bridge",
            "bridge": "cni0",
            "isDefaultGateway": true,
            "ipMasq": true,
            "hairpinMode": true,
            "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.88.0.0/16" }]] }
        },
        { "type": "portmap", "capabilities": { "portMappings": true } }
    ]
}
"#;

/// The plugin.
pub struct Portmap;

impl Plugin for Portmap {
    const TYPE: &'static str = "portmap";
    const ABOUT: &'static str = "publishes a container's ports on the host";
    const EXAMPLE: &'static str = EXAMPLE;
    const ENTERS_NETNS: bool = false;
    type Config = Config;
    type Cleanup = Cleanup;

    fn keys() -> Keys {
        Keys::of::<config::Keys>()
    }

    fn config(conf: &NetConf, call: &Call) -> Result<Config> {
        config::read(conf, call.prev_result())
    }

    fn cleanup(conf: &NetConf) -> Cleanup {
        config::cleanup(conf)
    }

    fn add(cx: &Add<Config>, undo: &mut Undo) -> Result<CniResult> {
        let config = cx.config();
        if !config.published.mappings.is_empty() {
            let published = Published {
                netns: netns::identity(cx.netns()),
                ..config.published.clone()
            };
            let attachment = cx.attachment().clone();
            // What the first ADD of a living container did is not for a second one to take back. Else before it begins:
            // whatever goes wrong, a panic even, some rules may be there by then.
            if !portmap::is_published(&attachment)? {
                undo.push("published ports", move || portmap::del(&attachment, &Hints::default()));
            }
            portmap::add(config.backend, cx.attachment(), &published)?;
            route_localnet(&published)?;
        }
        Ok(cx.prev_result().cloned().unwrap_or_default())
    }

    fn check(cx: &Check<Config>) -> Result<()> {
        let published = &cx.config().published;
        if published.mappings.is_empty() {
            return Ok(());
        }
        portmap::check(cx.config().backend, cx.attachment(), published)?;
        check_localnet(published)
    }

    fn del(cx: &Del<Cleanup>, todo: &mut BestEffort) {
        let addresses = cx.prev_result().map(config::container_addresses).unwrap_or_default();
        let hints = Hints {
            addresses: addresses.iter().map(|cidr| cidr.address()).collect(),
            host_ports: cx.config().clone(),
        };
        todo.step("published ports", || portmap::del(cx.attachment(), &hints));
    }

    fn gc(cx: &Gc<Cleanup>, todo: &mut BestEffort) {
        todo.step("published ports", || portmap::gc(cx.network(), cx.valid()));
    }

    fn status(cx: &Status) -> Result<()> {
        let backend = config::backend_of(cx.conf())?;
        let unusable = |e: Error| Error::new(Code::NOT_AVAILABLE, e.msg);
        backend.probe().map_err(unusable)
    }
}

/// Lets connections from 127.0.0.1 leave for the container: without this, the kernel takes them for martians.
fn route_localnet(published: &Published) -> Result<()> {
    let mut host = Net::host()?;
    let Some(key) = localnet_key(&mut host, published)? else {
        return Ok(());
    };
    match host.sysctl().set(&key, "1")? {
        Outcome::Changed(_) | Outcome::Unchanged => Ok(()),
        Outcome::Absent => Err(Error::internal(format!("there is no sysctl net/{key}"))),
    }
}

fn check_localnet(published: &Published) -> Result<()> {
    let mut host = Net::host()?;
    let Some(key) = localnet_key(&mut host, published)? else {
        return Ok(());
    };
    match host.sysctl().get(&key)?.as_deref() {
        Some("1") => Ok(()),
        other => Err(Error::internal(format!("sysctl net/{key} is {other:?}, not 1"))),
    }
}

/// The sysctl of the host's interface towards the container, where connections from 127.0.0.1 are to be redirected. IPv6
/// knows nothing like it.
fn localnet_key(host: &mut Net, published: &Published) -> Result<Option<String>> {
    let redirects = published.mappings.iter().any(|mapping| mapping.applies_to(Family::V4));
    match published.address(Family::V4) {
        Some(address) if published.snat && redirects => {
            let interface = interface_towards(host, address.address())?;
            Ok(interface.map(|name| format!("ipv4/conf/{name}/route_localnet")))
        }
        _ => Ok(None),
    }
}

/// The interface through which the host reaches an address; `None` where it does not.
fn interface_towards(host: &mut Net, address: IpAddr) -> Result<Option<String>> {
    let Some(index) = host.route_to(address)?.and_then(|route| route.oif) else {
        return Ok(None);
    };
    Ok(host.link_by_index(index)?.map(|link| link.name))
}
