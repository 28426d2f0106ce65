//! `firewall`: lets a container's traffic pass the node's firewall, and keeps bridges apart. Runs after the plugin that
//! gave the container its addresses.

mod config;
mod daemon;
mod sources;

use cni_types::{Attachment, CniResult, Code, Error, NetConf, Result};
use net::{LinkFilter, Net};
use netfilter::firewall::{self, Ingress};
use netfilter::{Backend, Family};
use skel::schema::Keys;
use skel::{Add, BestEffort, Call, Check, Del, Gc, Plugin, Status, Undo};

pub use config::{Cleanup, Config, Keeper};

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
            "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.88.0.0/16" }]] }
        },
        { "type": "firewall", "ingressPolicy": "same-bridge" }
    ]
}
"#;

/// The plugin.
pub struct Firewall;

impl Plugin for Firewall {
    const TYPE: &'static str = "firewall";
    const ABOUT: &'static str = "lets a container's traffic pass the node's firewall";
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
        let (config, attachment) = (cx.config(), cx.attachment());
        // What the first ADD of a living container did is not for a second one to take back. Else before they begin:
        // whatever goes wrong, a panic even, some rules may be there by then.
        let repeated = firewall::is_added(attachment)? || sources::are_recorded(attachment);
        let mut take_back = |what: &'static str, undone: fn(&Attachment) -> Result<()>| {
            let owner = attachment.clone();
            if !repeated {
                undo.push(what, move || undone(&owner));
            }
        };
        take_back("firewall rules", |owner| firewall::del(owner, &[]));
        firewall::add(config.backend, attachment, &config.policy)?;
        match config.keeper {
            Keeper::Firewalld => {
                take_back("firewalld's sources", |owner| sources::del(owner, None));
                sources::add(attachment, &config.zone, &config.policy.addresses)?;
            }
            Keeper::Rules => sources::del(attachment, None)?,
        }
        warn_of_limits(config);
        Ok(cx.prev_result().cloned().unwrap_or_default())
    }

    fn check(cx: &Check<Config>) -> Result<()> {
        let config = cx.config();
        firewall::check(config.backend, cx.attachment(), &config.policy)?;
        match config.keeper {
            Keeper::Firewalld => sources::check(&config.zone, &config.policy.addresses),
            Keeper::Rules => Ok(()),
        }
    }

    fn del(cx: &Del<Cleanup>, todo: &mut BestEffort) {
        let addresses = cx.prev_result().map(config::addresses).unwrap_or_default();
        todo.step("firewall rules", || firewall::del(cx.attachment(), &addresses));
        let unrecorded = cx.config().as_ref().map(|zone| (zone.as_str(), addresses.as_slice()));
        todo.step("firewalld's sources", || sources::del(cx.attachment(), unrecorded));
    }

    fn gc(cx: &Gc<Cleanup>, todo: &mut BestEffort) {
        todo.step("firewall rules", || firewall::gc(cx.network(), cx.valid(), &is_in_use));
        todo.step("firewalld's sources", || sources::gc(cx.network(), cx.valid()));
    }

    fn status(cx: &Status) -> Result<()> {
        let unusable = |e: Error| Error::new(Code::NOT_AVAILABLE, e.msg);
        let (keeper, backend) = config::backend_of(cx.conf())?;
        match keeper {
            Keeper::Firewalld => daemon::probe().map_err(unusable),
            Keeper::Rules => {
                firewall::probe(backend).map_err(unusable)?;
                if backend == Backend::Nftables {
                    warn_of_drops(&Family::BOTH);
                }
                Ok(())
            }
        }
    }
}

/// What the configuration asks for and this node does not give. No error: what is missing is not the plugin's to make.
fn warn_of_limits(config: &Config) {
    if config.keeper == Keeper::Rules && config.backend == Backend::Nftables {
        let has_address = |family: &Family| config.policy.addresses.iter().any(|ip| Family::of(*ip) == *family);
        let families: Vec<Family> = Family::BOTH.into_iter().filter(has_address).collect();
        warn_of_drops(&families);
    }
    if let Ingress::Isolated(bridge) = &config.policy.ingress {
        let seen = Net::host().and_then(|host| host.sysctl().get("bridge/bridge-nf-call-iptables"));
        if !seen.is_ok_and(|value| value.as_deref() == Some("1")) {
            log::warn!(
                "containers on {bridge} reach each other: without br_netfilter, no rule sees what stays on a bridge"
            );
        }
    }
}

fn warn_of_drops(families: &[Family]) {
    match firewall::foreign_drops(families) {
        Ok(chains) => {
            for chain in chains {
                log::warn!("{chain} drops what it does not accept itself, whatever is accepted here");
            }
        }
        Err(e) => log::warn!("other tables could not be read: {e}"),
    }
}

/// Whether an isolated interface still serves a container: a bridge does while it has a port, any other while it exists.
fn is_in_use(name: &str) -> bool {
    let look = || -> net::Result<bool> {
        let mut host = Net::host()?;
        let Some(link) = host.link(name)? else {
            return Ok(false);
        };
        if link.kind.as_deref() != Some("bridge") {
            return Ok(true);
        }
        let ports = LinkFilter {
            master: Some(link.index),
            ..LinkFilter::default()
        };
        Ok(!host.links(ports)?.is_empty())
    };
    look().unwrap_or_else(|e| {
        log::warn!("{name} stays isolated: {e}");
        true
    })
}
