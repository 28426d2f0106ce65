//! `loopback`: brings up the container's loopback interface.

use cni_types::{CniResult, Error, Interface, IpConfig, NetConf, Result};
use net::{Link, Net};
use skel::schema::Keys;
use skel::{Add, BestEffort, Call, Check, Del, Gc, Netns, Plugin, Status, Undo};

/// Whatever interface the runtime names, the reference works on this one, and so must we.
const NAME: &str = "lo";

/// For `--help` and the manual.
const EXAMPLE: &str = r#"{
    "cniVersion": "1.0.0",
    "name": "lo",
    "plugins": [
        { "type": "loopback" }
    ]
}
"#;

/// The plugin.
#[derive(Debug)]
pub struct Loopback;

impl Plugin for Loopback {
    const TYPE: &'static str = "loopback";
    const ABOUT: &'static str = "brings up the container's loopback interface";
    const EXAMPLE: &'static str = EXAMPLE;
    const ENTERS_NETNS: bool = true;
    type Config = ();
    type Cleanup = ();

    fn keys() -> Keys {
        Keys::common()
    }

    fn config(_: &NetConf, _: &Call) -> Result<()> {
        Ok(())
    }

    fn cleanup(_: &NetConf) {}

    fn add(cx: &Add<()>, undo: &mut Undo) -> Result<CniResult> {
        let mut pod = Net::enter(cx.netns().fd()?)?;
        let lo = find(&mut pod)?;
        if !lo.up {
            let mut again = Net::enter(cx.netns().fd()?)?;
            undo.push("loopback interface up", move || Ok(again.set_down(lo.index)?));
            pod.set_up(lo.index)?;
        }
        match cx.prev_result() {
            Some(result) => Ok(result.clone()),
            None => describe(&mut pod, &lo, cx.netns()),
        }
    }

    fn check(cx: &Check<()>) -> Result<()> {
        let lo = find(&mut Net::enter(cx.netns().fd()?)?)?;
        if lo.up {
            Ok(())
        } else {
            Err(Error::internal("loopback interface is down"))
        }
    }

    fn del(cx: &Del<()>, todo: &mut BestEffort) {
        let Some(netns) = cx.netns() else { return };
        todo.step("loopback interface", || {
            let mut pod = Net::enter(netns.fd()?)?;
            match pod.link(NAME)? {
                Some(lo) => Ok(pod.set_down(lo.index)?),
                None => Ok(()),
            }
        });
    }

    fn gc(_: &Gc<()>, _: &mut BestEffort) {}

    fn status(_: &Status) -> Result<()> {
        Ok(())
    }
}

fn find(pod: &mut Net) -> Result<Link> {
    pod.link(NAME)?
        .ok_or_else(|| Error::internal("the container has no loopback interface"))
}

fn describe(pod: &mut Net, lo: &Link, netns: &Netns) -> Result<CniResult> {
    let ip = |address: net::Address| IpConfig {
        interface: Some(0),
        address: address.cidr,
        gateway: None,
    };
    Ok(CniResult {
        interfaces: vec![Interface {
            name: NAME.to_owned(),
            mac: lo.mac.map(|mac| mac.to_string()).unwrap_or_default(),
            sandbox: netns.path().display().to_string(),
            ..Interface::default()
        }],
        ips: pod.addresses(lo.index)?.into_iter().map(ip).collect(),
        ..CniResult::default()
    })
}
