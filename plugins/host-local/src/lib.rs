//! The IPAM plugin `host-local`: addresses from ranges, remembered in files on this node.
//!
//! An ADD reads the configuration (`config`), chooses addresses (`plan`), and reserves them (`apply`) in the network's
//! directory (`store`) under its lock. What is held is asked of the `ledger`, which answers from a `cache` where that is
//! current and reads the directory where it is not. Who stands behind a reservation, and whether they still live, is a
//! question of the crate `identity`.

mod apply;
mod cache;
mod check;
pub mod config;
mod ledger;
mod plan;
pub mod range;
mod reservation;
mod resolv_conf;
mod status;
mod store;

use std::path::PathBuf;

use cni_types::{CniResult, Dns, IpConfig, NetConf, Result};
use skel::schema::Keys;
use skel::{Add, BestEffort, Call, Check, Del, Gc, Plugin, Status, Undo};

use config::Config;
use identity::NetnsIdentity;
use ledger::Ledger;
use plan::Choice;
use store::Network;

/// For `--help` and the manual.
const EXAMPLE: &str = r#"{
    "cniVersion": "1.0.0",
    "name": "pods",
    "plugins": [
        {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": true,
            "ipam": {
                "type": "host-local",
                "ranges": [
                    [{ "subnet": "10.88.0.0/16", "rangeStart": "10.88.1.0", "gateway": "10.88.0.1" }],
                    [{ "subnet": "fd00:88::/64" }]
                ],
                "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }],
                "exclude": ["10.88.7.0/24"]
            }
        }
    ]
}
"#;

/// The plugin.
pub struct HostLocal;

impl Plugin for HostLocal {
    const TYPE: &'static str = "host-local";
    const ABOUT: &'static str = "assigns addresses from ranges and remembers them on this node";
    const EXAMPLE: &'static str = EXAMPLE;
    const ENTERS_NETNS: bool = false;
    type Config = Config;
    type Cleanup = PathBuf;

    fn keys() -> Keys {
        Keys::of::<config::Conf>()
    }

    fn config(conf: &NetConf, call: &Call) -> Result<Config> {
        Config::new(conf, call.cni_args())
    }

    fn cleanup(conf: &NetConf) -> PathBuf {
        config::data_dir(conf)
    }

    fn add(cx: &Add<Config>, undo: &mut Undo) -> Result<CniResult> {
        let (config, attachment) = (cx.config(), cx.attachment());
        let dns = config.resolv_conf.as_deref().map(resolv_conf::read).transpose()?;
        let netns = cx
            .netns()
            .fd()
            .ok()
            .and_then(|fd| NetnsIdentity::of(fd, cx.netns().path()));
        let mut ledger = Ledger::open(Network::create(&config.data_dir, &attachment.network)?);
        let (chosen, reserved) = apply::reserve(&mut ledger, config, attachment, netns.as_ref())?;
        let data_dir = config.data_dir.clone();
        undo.push("reservation", move || reserved.undo(&data_dir));
        Ok(result(config, &chosen, dns.unwrap_or_default()))
    }

    fn check(cx: &Check<Config>) -> Result<()> {
        let (config, attachment) = (cx.config(), cx.attachment());
        let network = Network::read_only(&config.data_dir, &attachment.network)?;
        let own = network
            .map(|network| Ledger::open(network).of_attachment(attachment))
            .transpose()?;
        check::compare(config, attachment, &own.unwrap_or_default(), cx.prev_result())
    }

    fn del(cx: &Del<PathBuf>, todo: &mut BestEffort) {
        let attachment = cx.attachment();
        let mut held = None;
        todo.step("reservations", || {
            let Some(network) = Network::existing(cx.config(), &attachment.network)? else {
                return Ok(());
            };
            let mut ledger = Ledger::open(network);
            let mut own = ledger.of_attachment(attachment)?;
            if own.is_empty() {
                // The cache may be trusted to know whom it has, not whom it has not: an address would be lost for ever.
                ledger.walk()?;
                own = ledger.of_attachment(attachment)?;
            }
            held = Some((ledger, own));
            Ok(())
        });
        let Some((mut ledger, own)) = held else { return };
        for found in own {
            todo.step("reservation", || ledger.release(&found));
        }
    }

    fn gc(cx: &Gc<PathBuf>, todo: &mut BestEffort) {
        let mut held = None;
        todo.step("reservations", || {
            let Some(network) = Network::existing(cx.config(), cx.network())? else {
                return Ok(());
            };
            let mut ledger = Ledger::open(network);
            let mut garbage = ledger.walk()?.clone();
            garbage.retain(|found| !found.content.is_valid(cx.valid()));
            held = Some((ledger, garbage));
            Ok(())
        });
        let Some((mut ledger, garbage)) = held else { return };
        for found in garbage {
            todo.step("reservation", || ledger.release(&found));
        }
    }

    fn status(cx: &Status) -> Result<()> {
        status::status(&Config::of_status(cx.conf())?, &cx.conf().name)
    }
}

fn result(config: &Config, chosen: &[Choice], dns: Dns) -> CniResult {
    let ip = |choice: &Choice| {
        let prefix = choice.range.subnet().prefix();
        cni_types::Cidr::new(choice.ip, prefix).map(|address| IpConfig {
            interface: None,
            address,
            gateway: choice.range.gateway(),
        })
    };
    CniResult {
        interfaces: Vec::new(),
        ips: chosen.iter().filter_map(ip).collect(),
        routes: config.routes.clone(),
        dns,
    }
}
