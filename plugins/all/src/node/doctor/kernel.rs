//! What the kernel can do, by having it done in a network namespace that goes at once.

use std::fs;

use cni_types::MacAddr;
use net::netns::run_in_new;
use net::{Net, NewBridge, NewVeth, VethPeer};

use super::{Finding, Level};

pub(super) fn examine() -> Vec<Finding> {
    let net = match Net::host() {
        Ok(net) => net,
        Err(e) => {
            return vec![Finding::new(
                "netlink",
                Level::Fail,
                e.to_string(),
                "run it as root on Linux",
            )];
        }
    };
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    vec![
        Finding::ok("kernel", release.trim()),
        tried("bridge", make_bridge),
        tried("veth", make_veth),
        br_netfilter(&net),
        forwarding(&net, "ip_forward", "ipv4/ip_forward"),
        forwarding(&net, "forward IPv6", "ipv6/conf/all/forwarding"),
    ]
}

fn tried(kind: &str, make: fn(&mut Net) -> net::Result<()>) -> Finding {
    let outcome = run_in_new(|| make(&mut Net::host()?));
    match outcome.and_then(|made| made) {
        Ok(()) => Finding::ok(kind, "the kernel makes them"),
        Err(e) => Finding::new(
            kind,
            Level::Fail,
            e.to_string(),
            format!("modprobe {kind}, and {kind} into /etc/modules-load.d/; as root"),
        ),
    }
}

fn make_bridge(net: &mut Net) -> net::Result<()> {
    let name = net::host_veth_name()?;
    net.create_bridge(&NewBridge {
        name: &name,
        mac: net::random_mac()?,
        mtu: None,
        vlan_filtering: None,
        up: false,
    })
    .map(drop)
}

fn make_veth(net: &mut Net) -> net::Result<()> {
    let (name, peer) = (net::host_veth_name()?, net::host_veth_name()?);
    let [mac, peer_mac]: [MacAddr; 2] = [net::random_mac()?, net::random_mac()?];
    net.create_veth(&NewVeth {
        name: &name,
        mac,
        mtu: None,
        master: None,
        up: false,
        peer: VethPeer {
            name: &peer,
            mac: peer_mac,
            netns: None,
        },
    })
    .map(drop)
}

/// Without it, what stays on a bridge is not seen by rules for IP.
fn br_netfilter(net: &Net) -> Finding {
    const CHECK: &str = "br_netfilter";
    const NEEDED_BY: &str =
        "kube-proxy's services and ingressPolicy isolated do not see traffic that stays on a bridge";
    match net.sysctl().get("bridge/bridge-nf-call-iptables") {
        Ok(Some(value)) if value.trim() != "0" => Finding::ok(CHECK, "loaded, and bridge-nf-call-iptables is on"),
        Ok(Some(_)) => Finding::new(
            CHECK,
            Level::Warn,
            format!("bridge-nf-call-iptables is off: {NEEDED_BY}"),
            "sysctl -w net.bridge.bridge-nf-call-iptables=1 net.bridge.bridge-nf-call-ip6tables=1",
        ),
        Ok(None) => Finding::new(
            CHECK,
            Level::Warn,
            format!("not loaded: {NEEDED_BY}"),
            "modprobe br_netfilter, and br_netfilter into /etc/modules-load.d/",
        ),
        Err(e) => Finding::new(CHECK, Level::Warn, e.to_string(), "run it as root"),
    }
}

/// Plugins that route switch it on, but the first container should not decide when a node begins to route.
fn forwarding(net: &Net, check: &str, key: &str) -> Finding {
    let name = format!("net.{}", key.replace('/', "."));
    match net.sysctl().get(key) {
        Ok(Some(value)) if value.trim() == "1" => Finding::ok(check, "on"),
        Ok(Some(_)) => Finding::new(
            check,
            Level::Warn,
            "off until a network with a gateway switches it on",
            format!("sysctl -w {name}=1, and the same line into /etc/sysctl.d/"),
        ),
        Ok(None) => Finding::new(
            check,
            Level::Warn,
            "the kernel has no such protocol",
            "none, if it is not used",
        ),
        Err(e) => Finding::new(check, Level::Warn, e.to_string(), "run it as root"),
    }
}
