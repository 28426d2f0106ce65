//! The IPAM plugin `host-local`: addresses from ranges, remembered in files on this node.

mod check;
pub mod config;
mod plan;
pub mod range;
mod reservation;
mod resolv_conf;
mod status;
mod store;
mod time;

use cni_types::{CniResult, Dns, IpConfig, NetConf, Result};
use skel::{Add, BestEffort, Call, Check, Del, Gc, Plugin, Status, Undo};

use config::Config;
use plan::Choice;
use reservation::Claim;
use store::{Found, Network};

/// The plugin.
pub struct HostLocal;

impl Plugin for HostLocal {
    const TYPE: &'static str = "host-local";
    const ABOUT: &'static str = "assigns addresses from ranges and remembers them on this node";
    const ENTERS_NETNS: bool = false;
    type Config = Config;
    type Cleanup = std::path::PathBuf;

    fn config(conf: &NetConf, call: &Call) -> Result<Config> {
        Config::new(conf, call.cni_args())
    }

    fn cleanup(conf: &NetConf) -> std::path::PathBuf {
        config::data_dir(conf)
    }

    fn add(cx: &Add<Config>, undo: &mut Undo) -> Result<CniResult> {
        let (config, attachment) = (cx.config(), cx.attachment());
        let dns = config.resolv_conf.as_deref().map(resolv_conf::read).transpose()?;
        let network = Network::create(&config.data_dir, &attachment.network)?;
        let found = network.walk()?;
        plan::refuse_duplicate(config, attachment, &found)?;
        let chosen = plan::choose(config, |set| network.cursor(set), &mut plan::Taken::of(&found))?;
        let addresses: Vec<_> = chosen.iter().map(|choice| (choice.set, choice.ip)).collect();
        let reserved = network.reserve(attachment, &addresses)?;
        let data_dir = config.data_dir.clone();
        undo.push("reservation", move || reserved.undo(&data_dir));
        Ok(result(config, &chosen, dns.unwrap_or_default()))
    }

    fn check(cx: &Check<Config>) -> Result<()> {
        let attachment = cx.attachment();
        let network = Network::read_only(&cx.config().data_dir, &attachment.network)?;
        let found = network.map(|network| network.walk()).transpose()?.unwrap_or_default();
        check::compare(
            cx.config(),
            attachment,
            &of_attachment(found, attachment),
            cx.prev_result(),
        )
    }

    fn del(cx: &Del<std::path::PathBuf>, todo: &mut BestEffort) {
        let attachment = cx.attachment();
        let mut network = None;
        todo.step("reservations", || {
            network = Network::existing(cx.config(), &attachment.network)?;
            Ok(())
        });
        let Some(network) = network else { return };
        let mut own = Vec::new();
        todo.step("reservations", || {
            own = of_attachment(network.walk()?, attachment);
            Ok(())
        });
        for found in own {
            todo.step("reservation", || network.release(&found.name).map(drop));
        }
    }

    fn gc(cx: &Gc<std::path::PathBuf>, todo: &mut BestEffort) {
        let mut garbage = None;
        todo.step("reservations", || {
            let Some(network) = Network::existing(cx.config(), cx.network())? else {
                return Ok(());
            };
            let mut found = network.walk()?;
            found.retain(|found| !found.content.is_valid(cx.valid()));
            garbage = Some((network, found));
            Ok(())
        });
        let Some((network, found)) = garbage else { return };
        for found in found {
            todo.step("reservation", || network.release(&found.name).map(drop));
        }
    }

    fn status(cx: &Status) -> Result<()> {
        status::status(&Config::of_status(cx.conf())?, &cx.conf().name)
    }
}

/// The files of an attachment: those that name it, or if there is none those that name its container alone.
fn of_attachment(found: Vec<Found>, attachment: &cni_types::Attachment) -> Vec<Found> {
    let (exact, rest): (Vec<Found>, Vec<Found>) = found
        .into_iter()
        .partition(|found| found.content.claim(attachment) == Claim::Exact);
    if !exact.is_empty() {
        return exact;
    }
    rest.into_iter()
        .filter(|found| found.content.claim(attachment) == Claim::IdOnly)
        .collect()
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
