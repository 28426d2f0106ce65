//! `ptp`: attaches a container to the host, point to point, with a veth pair and routes.

mod apply;
mod check;
mod plan;

use attach::{Masquerade, Mtu, PairRequest};
use cni_types::{CniResult, Error, NetConf, Result};
use net::Net;
use netfilter::masquerade;
use skel::schema::Keys;
use skel::{Add, BestEffort, Call, Check, Del, Gc, Plugin, Status, Undo};

use check::Observed;

/// For `--help` and the manual.
const EXAMPLE: &str = r#"{
    "cniVersion": "1.0.0",
    "name": "pods",
    "plugins": [
        {
            "type": "ptp",
            "ipMasq": true,
            "ipam": {
                "type": "host-local",
                "ranges": [[{ "subnet": "10.89.0.0/16" }]],
                "routes": [{ "dst": "0.0.0.0/0" }]
            }
        }
    ]
}
"#;

/// The plugin.
#[derive(Debug)]
pub struct Ptp;

/// The configuration of a network, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    mtu: Mtu,
    masquerade: Option<Masquerade>,
}

impl Config {
    fn read(conf: &NetConf) -> Result<Config> {
        if conf.ipam_type.is_none() {
            // The text is the reference's.
            return Err(Error::config("no plugin name provided")
                .with_details("ipam.type: without addresses there is nothing to route"));
        }
        Ok(Config {
            mtu: Mtu::read(conf)?,
            masquerade: Masquerade::read(conf)?,
        })
    }
}

impl Plugin for Ptp {
    const TYPE: &'static str = "ptp";
    const ABOUT: &'static str = "attaches a container to the host, point to point, with a veth pair and routes";
    const EXAMPLE: &'static str = EXAMPLE;
    const ENTERS_NETNS: bool = true;
    type Config = Config;
    type Cleanup = ();

    fn keys() -> Keys {
        Keys::of::<attach::MasqueradeKeys>().and::<attach::MtuKeys>()
    }

    fn config(conf: &NetConf, _: &Call) -> Result<Config> {
        Config::read(conf)
    }

    fn cleanup(_: &NetConf) {}

    fn add(cx: &Add<Config>, undo: &mut Undo) -> Result<CniResult> {
        let (config, ifname) = (cx.config(), &cx.attachment().ifname);
        let (mut host, mut pod) = (Net::host()?, Net::enter(cx.netns().fd()?)?);
        let request = PairRequest {
            ifname,
            netns: cx.netns(),
            mac: None,
            mtu: config.mtu.bytes(&mut host)?,
            master: None,
            up: true,
        };
        let pair = attach::create_pair(&mut host, &mut pod, &request, undo)?;

        let plan = plan::addressing(cx.delegate_ipam(undo)?)?;
        apply::container_side(&mut pod, pair.container_index, ifname, &plan)?;
        apply::host_side(&mut host, pair.host.index, &plan)?;
        attach::enable_forwarding(&host, &plan.addresses())?;
        if let Some(masquerade) = &config.masquerade {
            masquerade.add(cx.attachment(), plan.addresses(), undo)?;
        }
        let interfaces = plan::interfaces(&pair, ifname, cx.netns().path());
        Ok(plan::result(interfaces, plan, &cx.conf().dns))
    }

    fn check(cx: &Check<Config>) -> Result<()> {
        let prev = cx
            .prev_result()
            .ok_or_else(|| Error::config("ptp: Required prevResult missing"))?;
        cx.delegate_ipam()?;
        let (mut host, mut pod) = (Net::host()?, Net::enter(cx.netns().fd()?)?);
        let ifname = &cx.attachment().ifname;
        let observed = Observed::read(&mut host, &mut pod, ifname)?;
        check::compare(cx.config(), ifname, prev, &observed)?;
        match &cx.config().masquerade {
            Some(masquerade) => {
                let ours = attach::check::own_addresses(ifname, prev);
                masquerade.check(cx.attachment(), ours.iter().map(|ip| ip.address).collect())
            }
            None => Ok(()),
        }
    }

    fn del(cx: &Del<()>, todo: &mut BestEffort) {
        let attachment = cx.attachment();
        let link_is_gone = match cx.netns() {
            Some(netns) => todo.step("link", || attach::delete_interface(netns, &attachment.ifname)),
            None => todo.step("host veth", || attach::delete_host_veth(cx.prev_result())),
        };
        todo.step("masquerade", || masquerade::del(attachment));
        // While the container can still use its address, nobody else may get it.
        if cx.conf().ipam_type.is_some() && link_is_gone {
            todo.delegate(|| cx.delegate_ipam());
        }
    }

    fn gc(cx: &Gc<()>, todo: &mut BestEffort) {
        todo.step("masquerade", || masquerade::gc(cx.network(), cx.valid()));
        if cx.conf().ipam_type.is_some() {
            todo.delegate(|| cx.delegate_ipam());
        }
    }

    fn status(cx: &Status) -> Result<()> {
        Config::read(cx.conf())?;
        cx.delegate_ipam()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(keys: &str) -> Result<Config> {
        Config::read(&NetConf::parse(format!(r#"{{"cniVersion":"1.0.0","name":"n"{keys}}}"#).as_bytes()).unwrap())
    }

    #[test]
    fn addresses_are_needed() {
        for keys in ["", r#","ipam":{}"#, r#","ipam":{"type":""}"#] {
            assert_eq!(read(keys).unwrap_err().msg, "no plugin name provided", "{keys}");
        }
        let plain = Config {
            mtu: Mtu::Kernel,
            masquerade: None,
        };
        assert_eq!(read(r#","ipam":{"type":"host-local"}"#), Ok(plain));
    }

    #[test]
    fn shared_keys_are_refused_as_everywhere() {
        for (keys, msg) in [
            (
                r#""mtu":5"#,
                "mtu: 5 is not 0 (the kernel's choice) or from 68 to 65535",
            ),
            (r#""ipMasqBackend":"zz""#, r#"ipMasqBackend: unrecognized backend "zz""#),
        ] {
            let error = read(&format!(r#","ipam":{{"type":"host-local"}},{keys}"#)).unwrap_err();
            assert_eq!(error.msg, msg);
        }
    }
}
