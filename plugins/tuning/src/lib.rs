//! The chained plugin `tuning`: sysctls of the container's network namespace, and attributes of its interface. What was there
//! before is kept in a file, and DEL puts it back.

mod allow_list;
mod apply;
mod backup;
mod check;
mod config;
mod sysctl;

use std::path::PathBuf;

use cni_types::{Attachment, CniResult, Error, NetConf, Result};
use skel::schema::Keys;
use skel::{Add, BestEffort, Call, Check, Del, Gc, Plugin, Status, Undo};

use apply::Container;
use backup::{Backup, Store};
use config::Config;

/// For `--help` and the manual.
const EXAMPLE: &str = r#"{
    "cniVersion": "1.0.0",
    "name": "pods",
    "plugins": [
        {
            "type": "bridge",
            "bridge": "cni0",
            "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.88.0.0/16" }]] }
        },
        {
            "type": "tuning",
            "mtu": 1400,
            "sysctl": { "net.core.somaxconn": "1024", "net/ipv4/conf/IFNAME/arp_ignore": "1" }
        }
    ]
}
"#;

/// The plugin.
#[derive(Debug)]
pub struct Tuning;

impl Plugin for Tuning {
    const TYPE: &'static str = "tuning";
    const ABOUT: &'static str = "sets sysctls of the container and attributes of its interface";
    const EXAMPLE: &'static str = EXAMPLE;
    const ENTERS_NETNS: bool = true;
    type Config = Config;
    /// The directory of backups.
    type Cleanup = PathBuf;

    fn keys() -> Keys {
        Keys::of::<config::Written>()
    }

    fn config(conf: &NetConf, call: &Call) -> Result<Config> {
        Config::read(conf, call.cni_args())
    }

    fn cleanup(conf: &NetConf) -> PathBuf {
        config::data_dir(conf)
    }

    fn add(cx: &Add<Config>, undo: &mut Undo) -> Result<CniResult> {
        let (config, attachment) = (cx.config(), cx.attachment());
        let prev = cx.prev_result().ok_or_else(prev_result_missing)?;
        allow_list::permit(&config.sysctls)?;

        let mut container = Container::enter(cx.netns().fd()?)?;
        let sysctls = container.find_sysctls(&config.sysctls, &attachment.ifname)?;
        let link = match config.attributes.any() {
            true => Some(container.link(&attachment.ifname)?),
            false => None,
        };
        if link.is_some() || !sysctls.is_empty() {
            keep(cx, Backup::of(attachment, config, link.as_ref(), &sysctls), undo)?;
        }
        container.set_sysctls(&sysctls)?;
        if let Some(link) = link {
            container.change(link.index, &config.attributes)?;
        }
        Ok(result(prev.clone(), attachment, config))
    }

    fn check(cx: &Check<Config>) -> Result<()> {
        let (config, ifname) = (cx.config(), &cx.attachment().ifname);
        cx.prev_result().ok_or_else(prev_result_missing)?;
        let mut container = Container::enter(cx.netns().fd()?)?;
        check::sysctls(&container.find_sysctls(&config.sysctls, ifname)?)?;
        match config.attributes.any() {
            true => check::attributes(&config.attributes, ifname, &container.link(ifname)?),
            false => Ok(()),
        }
    }

    fn del(cx: &Del<PathBuf>, todo: &mut BestEffort) {
        let attachment = cx.attachment();
        let store = Store::new(cx.config());
        let mut found = None;
        todo.step("backup", || {
            found = store.read(attachment)?;
            Ok(())
        });
        let Some(before) = found else {
            todo.step("unfinished backup", || store.remove_unfinished(attachment));
            return;
        };
        let restored = cx.netns().is_none_or(|netns| {
            todo.step("settings", || {
                Container::enter(netns.fd()?)?.restore(&attachment.ifname, &before)
            })
        });
        // Kept for the next DEL otherwise: it is all that is known of what there was.
        if restored {
            todo.step("backup", || store.remove(attachment));
        }
    }

    fn gc(cx: &Gc<PathBuf>, todo: &mut BestEffort) {
        todo.step("backups", || Store::new(cx.config()).collect(cx.network(), cx.valid()));
    }

    fn status(cx: &Status) -> Result<()> {
        allow_list::permit(&Config::read(cx.conf(), "")?.sysctls)
    }
}

fn prev_result_missing() -> Error {
    Error::config("Required prevResult missing")
}

/// Keeps what there was in a file, and registers that it is put back.
fn keep(cx: &Add<Config>, before: Backup, undo: &mut Undo) -> Result<()> {
    let (attachment, store) = (cx.attachment().clone(), Store::new(&cx.config().data_dir));
    let earlier = store.read(&attachment)?.filter(|earlier| earlier.is_of(&attachment));
    let all = match &earlier {
        Some(earlier) => earlier.clone().or(&before),
        None => before.clone(),
    };
    let mut container = Container::enter(cx.netns().fd()?)?;
    let (owner, undo_in) = (attachment.clone(), store.clone());
    undo.push("settings", move || {
        container.restore(&owner.ifname, &before)?;
        match earlier {
            Some(earlier) => undo_in.write(&owner, &earlier),
            None => undo_in.remove(&owner),
        }
    });
    store.write(&attachment, &all)
}

/// The result of the chain so far, with the attributes that are new.
fn result(mut result: CniResult, attachment: &Attachment, config: &Config) -> CniResult {
    let ours = |name: &str, sandbox: &str| name == attachment.ifname.as_str() && !sandbox.is_empty();
    for interface in result
        .interfaces
        .iter_mut()
        .filter(|link| ours(&link.name, &link.sandbox))
    {
        if let Some(mac) = config.attributes.mac {
            interface.mac = mac.to_string();
        }
        if let Some(mtu) = config.attributes.mtu.filter(|_| interface.mtu != 0) {
            interface.mtu = mtu;
        }
    }
    result
}
