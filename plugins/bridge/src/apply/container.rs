//! The container's interface: its settings, addresses and routes.

use std::time::Duration;

use cni_types::{Error, IfName, Result, Route};
use net::{Net, NewAddress, NewRoute, Settled, Sysctl};
use skel::Netns;

use crate::config::Config;
use crate::plan::Addressing;

/// How long duplicate address detection may take where it is asked for: the reference's limit.
const DAD_LIMIT: Duration = Duration::from_secs(10);

/// Gives the interface what the plan says and switches it on.
pub(crate) fn configure(pod: &mut Net, index: u32, ifname: &IfName, config: &Config, plan: &Addressing) -> Result<()> {
    set_sysctls(pod.sysctl(), ifname, config, plan)?;
    let (ipv4, ipv6): (Vec<_>, Vec<_>) = plan.addresses().partition(|cidr| cidr.is_ipv4());
    // IPv4 before the interface is up: coming up, it announces them (arp_notify), so that neighbours forget who had them.
    for cidr in ipv4 {
        pod.add_address(index, NewAddress { cidr, no_dad: true })
            .map_err(|e| Error::from(e).context(format!("failed to add IP addr {cidr}")))?;
    }
    pod.set_up(index)?;
    for &cidr in &ipv6 {
        // Both ends of the wire are ours: there is nobody to ask.
        let no_dad = !config.enable_dad;
        pod.add_address(index, NewAddress { cidr, no_dad })
            .map_err(|e| Error::from(e).context(format!("failed to add IP addr {cidr}")))?;
    }
    if config.enable_dad && !ipv6.is_empty() {
        wait_for_dad(pod, index)?;
    }
    plan.effective.iter().try_for_each(|route| add_route(pod, index, route))
}

/// The settings of the reference, for the same reasons: see each.
fn set_sysctls(sysctl: &Sysctl, ifname: &IfName, config: &Config, plan: &Addressing) -> Result<()> {
    let set = |key: &str, value: &str| sysctl.set(key, value).map(drop).map_err(Error::from);
    // Duplicate address detection leaves even a link-local address unusable for a second or two.
    set(
        &format!("ipv6/conf/{ifname}/accept_dad"),
        if config.enable_dad { "1" } else { "0" },
    )?;
    // Neighbours still have the MAC of the address's last owner.
    set(&format!("ipv4/conf/{ifname}/arp_notify"), "1")?;
    if plan.has(false) {
        // Runtimes start containers with IPv6 switched off.
        set("ipv6/conf/lo/disable_ipv6", "0")?;
        set(&format!("ipv6/conf/{ifname}/disable_ipv6"), "0")?;
        // The kernel drops IPv6 addresses when a link goes down: a container that cycles its interface would lose them.
        set(&format!("ipv6/conf/{ifname}/keep_addr_on_down"), "1")?;
    }
    Ok(())
}

fn wait_for_dad(pod: &mut Net, index: u32) -> Result<()> {
    let list = |cidrs: Vec<cni_types::Cidr>| cidrs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    match pod.wait_settled(index, DAD_LIMIT)? {
        Settled::Ready => Ok(()),
        Settled::Duplicate(cidrs) => Err(Error::internal(format!(
            "{} failed duplicate address detection: somebody else has it",
            list(cidrs)
        ))),
        Settled::TimedOut(cidrs) => Err(Error::internal(format!(
            "{} still tentative after {} seconds",
            list(cidrs),
            DAD_LIMIT.as_secs()
        ))),
    }
}

fn add_route(pod: &mut Net, index: u32, route: &Route) -> Result<()> {
    let request = NewRoute {
        gateway: route.gw,
        table: route.table.filter(|&table| table != 0),
        priority: (route.priority != 0).then_some(route.priority),
        scope: route.scope,
        mtu: (route.mtu != 0).then_some(route.mtu),
        advmss: (route.advmss != 0).then_some(route.advmss),
        ..NewRoute::new(route.dst, index)
    };
    pod.add_route(&request)
        .map_err(|e| Error::from(e).context("failed to add route"))
}

/// Deletes the container's interface, and with it the host's end. One that is gone is what was wanted.
pub(crate) fn delete_link(netns: &Netns, ifname: &IfName) -> Result<()> {
    Net::enter(netns.fd()?)?.delete_link_named(ifname)?;
    Ok(())
}
