//! Addresses and routes of the container's interface, and forwarding on the node.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use cni_types::{Cidr, Error, IfName, Result, Route};
use net::{Net, NewAddress, NewRoute, Settled, Sysctl};

/// How long duplicate address detection may take where it is asked for: the reference's limit.
const DAD_LIMIT: Duration = Duration::from_secs(10);

/// Whether the container's IPv6 addresses undergo duplicate address detection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dad {
    /// No: both ends of the wire are ours, and there is nobody to ask. The addresses are usable at once.
    Skip,
    /// Yes, and ADD waits for its outcome.
    Wait,
}

/// The first address of a subnet: the gateway where none is named. A subnet of one address has none to spare.
pub fn first_address(address: Cidr) -> Option<IpAddr> {
    match address.network().address() {
        IpAddr::V4(base) if address.prefix() < 32 => {
            u32::from(base).checked_add(1).map(|bits| Ipv4Addr::from(bits).into())
        }
        IpAddr::V6(base) if address.prefix() < 128 => {
            u128::from(base).checked_add(1).map(|bits| Ipv6Addr::from(bits).into())
        }
        _ => None,
    }
}

/// Gives the interface its settings and addresses, and switches it on.
///
/// # Errors
///
/// What the kernel says; or an address that is another's, or is still being checked after ten seconds.
pub fn bring_up(pod: &mut Net, index: u32, ifname: &IfName, addresses: &[Cidr], dad: Dad) -> Result<()> {
    let (ipv4, ipv6): (Vec<Cidr>, Vec<Cidr>) = addresses.iter().partition(|cidr| cidr.is_ipv4());
    set_sysctls(pod.sysctl(), ifname, !ipv6.is_empty(), dad)?;
    // IPv4 before the interface is up: coming up, it announces them (arp_notify), so that neighbours forget who had them.
    ipv4.iter().try_for_each(|&cidr| add_address(pod, index, cidr, dad))?;
    pod.set_up(index)?;
    ipv6.iter().try_for_each(|&cidr| add_address(pod, index, cidr, dad))?;
    if dad == Dad::Wait && !ipv6.is_empty() {
        wait_for_dad(pod, index)?;
    }
    Ok(())
}

/// The settings of the reference, for the same reasons: see each.
fn set_sysctls(sysctl: &Sysctl, ifname: &IfName, has_ipv6: bool, dad: Dad) -> Result<()> {
    let set = |key: &str, value: &str| sysctl.set(key, value).map(drop).map_err(Error::from);
    // Duplicate address detection leaves even a link-local address unusable for a second or two.
    set(
        &format!("ipv6/conf/{ifname}/accept_dad"),
        if dad == Dad::Wait { "1" } else { "0" },
    )?;
    // Neighbours still have the MAC of the address's last owner.
    set(&format!("ipv4/conf/{ifname}/arp_notify"), "1")?;
    if has_ipv6 {
        // Runtimes start containers with IPv6 switched off.
        set("ipv6/conf/lo/disable_ipv6", "0")?;
        set(&format!("ipv6/conf/{ifname}/disable_ipv6"), "0")?;
        // The kernel drops IPv6 addresses when a link goes down: a container that cycles its interface would lose them.
        set(&format!("ipv6/conf/{ifname}/keep_addr_on_down"), "1")?;
    }
    Ok(())
}

fn add_address(pod: &mut Net, index: u32, cidr: Cidr, dad: Dad) -> Result<()> {
    let request = NewAddress {
        cidr,
        no_dad: dad == Dad::Skip,
    };
    pod.add_address(index, request)
        .map_err(|e| Error::from(e).context(format!("failed to add IP addr {cidr}")))
}

fn wait_for_dad(pod: &mut Net, index: u32) -> Result<()> {
    let list = |cidrs: Vec<Cidr>| cidrs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let why = match pod.wait_settled(index, DAD_LIMIT)? {
        Settled::Ready => return Ok(()),
        Settled::Duplicate(cidrs) => format!(
            "{} failed duplicate address detection: somebody else has it",
            list(cidrs)
        ),
        Settled::TimedOut(cidrs) => format!("{} still tentative after {} seconds", list(cidrs), DAD_LIMIT.as_secs()),
    };
    Err(Error::internal(why))
}

/// Adds routes through the interface, as [`crate::routes::effective`] gives them.
///
/// # Errors
///
/// What the kernel says of the first that it refuses.
pub fn add_routes(pod: &mut Net, index: u32, routes: &[Route]) -> Result<()> {
    routes.iter().try_for_each(|route| {
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
    })
}

/// Lets the node pass packets between its interfaces, for each family among `addresses`.
///
/// # Errors
///
/// The setting is off and cannot be written.
pub fn enable_forwarding(host: &Net, addresses: &[Cidr]) -> Result<()> {
    for (ipv4, key) in [(true, "ipv4/ip_forward"), (false, "ipv6/conf/all/forwarding")] {
        if addresses.iter().any(|cidr| cidr.is_ipv4() == ipv4) {
            let set = host.sysctl().set(key, "1");
            let _ = set.map_err(|e| Error::from(e).context("failed to enable forwarding"))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_address_of_subnets_of_any_size() {
        for (cidr, first) in [
            ("10.1.0.77/24", Some("10.1.0.1")),
            ("10.1.0.4/31", Some("10.1.0.5")),
            ("10.1.0.4/32", None),
            ("255.255.255.255/0", Some("0.0.0.1")),
            ("fd00::77/64", Some("fd00::1")),
            ("fd00::4/128", None),
        ] {
            assert_eq!(
                first_address(cidr.parse().unwrap()),
                first.map(|text| text.parse().unwrap()),
                "{cidr}"
            );
        }
    }
}
