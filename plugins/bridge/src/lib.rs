//! `bridge`: attaches a container to a bridge on the host, with a veth pair.

mod apply;
mod check;
mod config;
mod plan;

use cni_types::{Attachment, CniResult, Error, IfName, MacAddr, NetConf, Result};
use net::Net;
use netfilter::{macspoof, masquerade};
use skel::schema::Keys;
use skel::{Add, BestEffort, Call, Check, Del, Gc, Plugin, Status, Undo};

use check::Observed;
use config::{Cleanup, Config};

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
            "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.88.0.0/16" }], [{ "subnet": "fd00:88::/64" }]] }
        }
    ]
}
"#;

/// The plugin.
#[derive(Debug)]
pub struct Bridge;

impl Plugin for Bridge {
    const TYPE: &'static str = "bridge";
    const ABOUT: &'static str = "attaches a container to a bridge on the host, with a veth pair";
    const EXAMPLE: &'static str = EXAMPLE;
    const ENTERS_NETNS: bool = true;
    type Config = Config;
    type Cleanup = Cleanup;

    fn keys() -> Keys {
        Keys::of::<config::Written>()
            .and::<attach::MasqueradeKeys>()
            .and::<attach::MtuKeys>()
    }

    fn config(conf: &NetConf, call: &Call) -> Result<Config> {
        Config::read(conf, call)
    }

    fn cleanup(conf: &NetConf) -> Cleanup {
        Cleanup::read(conf)
    }

    fn add(cx: &Add<Config>, undo: &mut Undo) -> Result<CniResult> {
        let (config, ifname) = (cx.config(), &cx.attachment().ifname);
        let (mut host, mut pod) = (Net::host()?, Net::enter(cx.netns().fd()?)?);
        let mtu = config.mtu.bytes(&mut host)?;
        let bridge = apply::ensure_bridge(&mut host, config, mtu)?;
        if let Some(vid) = config.gateway_vlan() {
            let bridge = config.bridge.clone();
            // Registered before the veth pair, so that it comes after: our own port must not be what keeps the gateway's.
            undo.push("gateway port", move || apply::release_gateway(&bridge, vid));
        }
        let veth = apply::create_port((&mut host, &mut pod), cx, &bridge, mtu, undo)?;
        let bridge = apply::keep_mac(&mut host, bridge)?;
        if config.mac_spoof_check {
            guard_mac(cx.attachment(), &veth.host.name, veth.container_mac, undo)?;
        }

        let mut addressing = plan::Addressing::default();
        let mut gateway_port = None;
        if config.has_ipam {
            addressing = plan::addressing(config, cx.delegate_ipam(undo)?)?;
            let addresses = addressing.addresses();
            attach::bring_up(&mut pod, veth.container_index, ifname, &addresses, config.dad())?;
            attach::add_routes(&mut pod, veth.container_index, &addressing.effective)?;
            gateway_port = apply::ensure_gateway(&mut host, &bridge, config, &addressing)?;
            if config.is_gateway {
                attach::enable_forwarding(&host, &addresses)?;
            }
            if let Some(masquerade) = &config.masquerade {
                masquerade.add(cx.attachment(), addresses, undo)?;
            }
        } else if !config.leave_interface_down {
            pod.set_up(veth.container_index)?;
        }

        let interfaces = plan::interfaces((&bridge, gateway_port.as_ref()), &veth, ifname, cx.netns().path());
        Ok(plan::result(interfaces, addressing, &cx.conf().dns))
    }

    fn check(cx: &Check<Config>) -> Result<()> {
        let config = cx.config();
        let prev = cx
            .prev_result()
            .ok_or_else(|| Error::config("Required prevResult missing"))?;
        if config.has_ipam {
            cx.delegate_ipam()?;
        }
        let (mut host, mut pod) = (Net::host()?, Net::enter(cx.netns().fd()?)?);
        let observed = Observed::read(&mut host, &mut pod, config, cx.attachment())?;
        check::compare(config, cx.attachment(), prev, &observed)?;
        if let (true, Some(veth), Some(mac)) = (
            config.mac_spoof_check,
            &observed.host_veth,
            observed.container.and_then(|link| link.mac),
        ) {
            macspoof::check(cx.attachment(), &veth_name(&veth.name)?, mac)?;
        }
        match &config.masquerade {
            Some(masquerade) if config.has_ipam => {
                masquerade.check(cx.attachment(), prev.ips.iter().map(|ip| ip.address).collect())
            }
            _ => Ok(()),
        }
    }

    fn del(cx: &Del<Cleanup>, todo: &mut BestEffort) {
        let attachment = cx.attachment();
        let link_is_gone = match cx.netns() {
            Some(netns) => todo.step("link", || attach::delete_interface(netns, &attachment.ifname)),
            None => todo.step("host veth", || attach::delete_host_veth(cx.prev_result())),
        };
        if let (Some(bridge), Some(vid)) = (&cx.config().bridge, cx.config().vlan) {
            todo.step("gateway port", || apply::release_gateway(bridge, vid));
        }
        todo.step("masquerade", || masquerade::del(attachment));
        todo.step("MAC spoofing guard", || macspoof::del(attachment));
        // While the container can still use its address, nobody else may get it.
        if cx.config().has_ipam && link_is_gone {
            todo.delegate(|| cx.delegate_ipam());
        }
    }

    fn gc(cx: &Gc<Cleanup>, todo: &mut BestEffort) {
        todo.step("masquerade", || masquerade::gc(cx.network(), cx.valid()));
        todo.step("MAC spoofing guard", || macspoof::gc(cx.network(), cx.valid()));
        if cx.config().has_ipam {
            todo.delegate(|| cx.delegate_ipam());
        }
    }

    fn status(cx: &Status) -> Result<()> {
        match cx.conf().ipam_type {
            Some(_) => cx.delegate_ipam(),
            None => Ok(()),
        }
    }
}

fn veth_name(name: &str) -> Result<IfName> {
    name.parse().map_err(|e| Error::internal(format!("{name:?}: {e}")))
}

fn guard_mac(attachment: &Attachment, host_veth: &str, mac: MacAddr, undo: &mut Undo) -> Result<()> {
    let owner = attachment.clone();
    undo.push("MAC spoofing guard", move || macspoof::del(&owner));
    macspoof::add(attachment, &veth_name(host_veth)?, mac)
}
