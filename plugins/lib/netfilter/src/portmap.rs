//! Published ports: connections to a port of the host that go to a container.

use std::collections::BTreeSet;
use std::net::IpAddr;

use cni_types::{Attachment, Cidr, ContainerId, IfName, NetworkName, Result};

use crate::conntrack::{self, HostPorts};
use crate::sweep::{first_of, together};
use crate::{Backend, Family, Protocol, iptables, nftables};

/// One published port, or a range of ports with as many ports on either side.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mapping {
    /// The transport protocol.
    pub protocol: Protocol,
    /// The host's address that is listened on. `None` is every local address of both families; `0.0.0.0` and `::` are
    /// every local address of their family (see [`Mapping::applies_to`] and [`Mapping::exact_ip`]).
    pub host_ip: Option<IpAddr>,
    /// The first port on the host.
    pub host_port: u16,
    /// The last port on the host; equal to [`host_port`](Mapping::host_port) for a single port.
    pub host_port_end: u16,
    /// The first port in the container.
    pub container_port: u16,
    /// The last port in the container.
    pub container_port_end: u16,
}

impl Mapping {
    /// Whether connections of a family are redirected by this mapping.
    pub fn applies_to(&self, family: Family) -> bool {
        self.host_ip.is_none_or(|ip| Family::of(ip) == family)
    }

    /// The one address that is listened on, or `None` for every local address.
    pub fn exact_ip(&self) -> Option<IpAddr> {
        self.host_ip.filter(|ip| !ip.is_unspecified())
    }
}

/// What to do when another container holds a host port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnConflict {
    /// Refuse with code 11 while the holder's network namespace exists; take the port over, with a warning, when it is
    /// gone or nobody can tell.
    #[default]
    Refuse,
    /// Take the port over in any case.
    Replace,
}

/// Everything that one attachment publishes.
#[derive(Debug, Clone)]
pub struct Published {
    /// The ports.
    pub mappings: Vec<Mapping>,
    /// The container's addresses with their prefix lengths. As in the reference, ports lead to the first of each family.
    pub addresses: Vec<Cidr>,
    /// Whether connections from the container's own subnet and from the node's 127.0.0.0/8 get the node's address as
    /// their source, without which the container's answers would not find their way back.
    pub snat: bool,
    /// Whether every redirected connection gets the node's address as its source; needs [`snat`](Published::snat).
    pub masq_all: bool,
    /// iptables only: the bit of the packet mark that means "masquerade", 0 to 31.
    pub mark_masq_bit: u8,
    /// iptables only: a chain of somebody else's that sets the mark, in place of ours.
    pub external_set_mark_chain: Option<String>,
    /// Conditions on IPv4 connections, in the syntax of the backend's tool, one word or several an item.
    pub conditions_v4: Vec<String>,
    /// Conditions on IPv6 connections.
    pub conditions_v6: Vec<String>,
    /// What to do about a host port that another container holds.
    pub on_conflict: OnConflict,
    /// The container's network namespace in the text form that [`netns_exists`](Published::netns_exists) reads; kept
    /// beside the mappings, so that a later ADD can tell whether their holder still exists.
    pub netns: Option<String>,
    /// Whether the namespace of a text form exists; `false` when in doubt, and then the last writer gets the port.
    pub netns_exists: fn(&str) -> bool,
}

impl Published {
    /// The reference's default for [`mark_masq_bit`](Published::mark_masq_bit).
    pub const DEFAULT_MARK_MASQ_BIT: u8 = 13;

    /// The address of a family that ports lead to.
    pub fn address(&self, family: Family) -> Option<Cidr> {
        self.addresses
            .iter()
            .copied()
            .find(|cidr| Family::of(cidr.address()) == family)
    }

    /// The UDP ports that lead to the container.
    fn udp_ports(&self) -> Vec<HostPorts> {
        let udp = self.mappings.iter().filter(|mapping| mapping.protocol == Protocol::Udp);
        udp.flat_map(|mapping| {
            let families = Family::BOTH.into_iter();
            let families = families.filter(|&family| mapping.applies_to(family) && self.address(family).is_some());
            families.map(|family| HostPorts {
                family,
                address: mapping.exact_ip(),
                first: mapping.host_port,
                last: mapping.host_port_end,
            })
        })
        .collect()
    }

    /// The conditions on connections of a family.
    pub fn conditions(&self, family: Family) -> &[String] {
        match family {
            Family::V4 => &self.conditions_v4,
            Family::V6 => &self.conditions_v6,
        }
    }
}

/// What DEL may know of an attachment beyond its name. Only rules of the reference suite that name no network need it:
/// they are removed where one of these matches.
#[derive(Debug, Clone, Default)]
pub struct Hints {
    /// The container's addresses, from prevResult.
    pub addresses: Vec<IpAddr>,
    /// The published host ports, from the configuration; used where there is no address.
    pub host_ports: Vec<(Protocol, u16)>,
}

/// Whether an [`add`] for the attachment, with any backend, is in effect. Who repeats it and fails must not take back what
/// the first one did: the container lives on with it.
///
/// # Errors
///
/// What the kernel said, or why a record cannot be read.
pub fn is_published(attachment: &Attachment) -> Result<bool> {
    Ok(nftables::where_supported(|| nftables::portmap::holds(attachment))? || iptables::portmap::holds(attachment)?)
}

/// Makes the kernel redirect exactly `published` for the attachment.
///
/// # Errors
///
/// Code 11 when another container holds one of the ports, or when others kept changing the ruleset; otherwise what the
/// kernel said. After a refusal there is what there was before: nothing, or what an earlier `add` published. Only when all
/// is written and connections cannot be looked through, or the other backend cannot be swept, a repeated `add` leaves
/// what it wrote in place of that.
pub fn add(backend: Backend, attachment: &Attachment, published: &Published) -> Result<()> {
    let repeated = is_published(attachment)?;
    match backend {
        Backend::Iptables => iptables::portmap::add(attachment, published),
        Backend::Nftables => nftables::portmap::add(attachment, published),
    }?;
    complete(backend, attachment, published).inspect_err(|_| {
        if repeated {
            return;
        }
        if let Err(e) = del(attachment, &Hints::default()) {
            log::warn!("ports of {attachment} stay published: {e}");
        }
    })
}

/// What is left to do once the ports are published: nothing of an earlier `add` with the other backend may stay, and no
/// connection may go on as if nothing had happened.
fn complete(backend: Backend, attachment: &Attachment, published: &Published) -> Result<()> {
    match backend {
        Backend::Iptables => nftables::where_supported(|| nftables::portmap::del(attachment, &Hints::default())),
        Backend::Nftables => iptables::portmap::del(attachment),
    }?;
    conntrack::flush_udp(&published.udp_ports())
}

/// Compares what the kernel holds for the attachment with what [`add`] would write. What another backend or the reference
/// wrote is as good: neither the node's backend nor its suite of plugins stays what it was while containers run.
///
/// # Errors
///
/// The first difference from what `backend` would have written, in words.
pub fn check(backend: Backend, attachment: &Attachment, published: &Published) -> Result<()> {
    let in_iptables = || iptables::portmap::check(attachment, published);
    let in_nftables = || nftables::portmap::check(attachment, published);
    let by_reference = || nftables::portmap::check_of_reference(attachment, published);
    match backend {
        Backend::Iptables => first_of(&[&in_iptables, &in_nftables, &by_reference]),
        Backend::Nftables => first_of(&[&in_nftables, &in_iptables, &by_reference]),
    }
}

/// Removes every published port of the attachment, whatever backend and whichever suite wrote it.
///
/// # Errors
///
/// All backends are tried; the failures are reported together.
pub fn del(attachment: &Attachment, hints: &Hints) -> Result<()> {
    together([
        nftables::where_supported(|| nftables::portmap::del(attachment, hints)),
        iptables::portmap::del(attachment),
    ])
}

/// Removes the published ports of every attachment of `network` that is not in `valid`.
///
/// # Errors
///
/// All backends are tried; the failures are reported together.
pub fn gc(network: &NetworkName, valid: &BTreeSet<(ContainerId, IfName)>) -> Result<()> {
    together([
        nftables::where_supported(|| nftables::portmap::gc(network, valid)),
        iptables::portmap::gc(network, valid),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(host_ip: Option<&str>) -> Mapping {
        Mapping {
            protocol: Protocol::Tcp,
            host_ip: host_ip.map(|ip| ip.parse().unwrap()),
            host_port: 8080,
            host_port_end: 8080,
            container_port: 80,
            container_port_end: 80,
        }
    }

    #[test]
    fn an_unspecified_host_ip_is_every_address_of_its_family_only() {
        assert!(Family::BOTH.iter().all(|&family| mapping(None).applies_to(family)));
        assert!(mapping(Some("0.0.0.0")).applies_to(Family::V4));
        assert!(!mapping(Some("0.0.0.0")).applies_to(Family::V6));
        assert!(mapping(Some("::")).applies_to(Family::V6));
        assert_eq!(mapping(Some("::")).exact_ip(), None);
        assert_eq!(
            mapping(Some("192.0.2.1")).exact_ip(),
            Some("192.0.2.1".parse().unwrap())
        );
    }
}
