//! A link from the kernel's description of it.

use cni_types::MacAddr;
use netlink_packet_core::Emitable;
use netlink_packet_route::link::{LinkFlags, LinkHeader};

use super::{BridgeInfo, BridgePortInfo, Link};
use crate::attributes::attributes;
use crate::error::Failure;

// linux/if_link.h
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINK: u16 = 5;
pub(crate) const IFLA_MASTER: u16 = 10;
const IFLA_TXQLEN: u16 = 13;
const IFLA_LINKINFO: u16 = 18;
pub(super) const IFLA_IFALIAS: u16 = 20;
pub(crate) const IFLA_AF_SPEC: u16 = 26;
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_INFO_SLAVE_KIND: u16 = 4;
const IFLA_INFO_SLAVE_DATA: u16 = 5;
const IFLA_BR_VLAN_FILTERING: u16 = 7;
const IFLA_BR_VLAN_DEFAULT_PVID: u16 = 39;
const IFLA_BRPORT_MODE: u16 = 4;
const IFLA_BRPORT_LEARNING: u16 = 8;
const IFLA_BRPORT_ISOLATED: u16 = 33;

/// The fixed header and the attributes of a link message.
pub(crate) fn split(payload: &[u8]) -> Result<(LinkHeader, &[u8]), Failure> {
    let header = LinkHeader::parse(payload).map_err(|_| Failure::malformed("link header"))?;
    let rest = payload.get(header.buffer_len()..).unwrap_or_default();
    Ok((header, rest))
}

/// Decodes `RTM_NEWLINK`.
pub(crate) fn link(payload: &[u8]) -> Result<Option<Link>, Failure> {
    let (header, rest) = split(payload)?;
    let mut link = Link {
        index: header.index,
        up: header.flags.contains(LinkFlags::Up),
        running: header.flags.contains(LinkFlags::Running),
        loopback: header.flags.contains(LinkFlags::Loopback),
        promiscuous: header.flags.contains(LinkFlags::Promisc),
        all_multicast: header.flags.contains(LinkFlags::Allmulti),
        ..Link::default()
    };
    for attribute in attributes(rest) {
        let attribute = attribute?;
        match attribute.kind {
            IFLA_ADDRESS => link.mac = attribute.value.try_into().ok().map(MacAddr),
            IFLA_IFNAME => link.name = attribute.text(),
            IFLA_MTU => link.mtu = attribute.u32()?,
            IFLA_LINK => link.peer_index = Some(attribute.u32()?),
            IFLA_MASTER => link.master = Some(attribute.u32()?),
            IFLA_TXQLEN => link.tx_queue_len = attribute.u32()?,
            IFLA_LINKINFO => info(attribute.value, &mut link)?,
            IFLA_IFALIAS => link.alias = Some(attribute.text()),
            IFLA_LINK_NETNSID => link.link_netnsid = Some(attribute.i32()?),
            _ => {}
        }
    }
    Ok(Some(link))
}

/// The kind always precedes its data: rtnl_link_fill of net/core/rtnetlink.c.
fn info(bytes: &[u8], link: &mut Link) -> Result<(), Failure> {
    let mut master_kind = String::new();
    for attribute in attributes(bytes) {
        let attribute = attribute?;
        match attribute.kind {
            IFLA_INFO_KIND => link.kind = Some(attribute.text()),
            IFLA_INFO_DATA if link.kind.as_deref() == Some("bridge") => link.bridge = Some(bridge(attribute.value)?),
            IFLA_INFO_SLAVE_KIND => master_kind = attribute.text(),
            IFLA_INFO_SLAVE_DATA if master_kind == "bridge" => link.bridge_port = Some(port(attribute.value)?),
            _ => {}
        }
    }
    Ok(())
}

fn bridge(bytes: &[u8]) -> Result<BridgeInfo, Failure> {
    let mut bridge = BridgeInfo::default();
    for attribute in attributes(bytes) {
        let attribute = attribute?;
        match attribute.kind {
            IFLA_BR_VLAN_FILTERING => bridge.vlan_filtering = Some(attribute.flag()?),
            IFLA_BR_VLAN_DEFAULT_PVID => bridge.default_pvid = Some(attribute.u16()?),
            _ => {}
        }
    }
    Ok(bridge)
}

fn port(bytes: &[u8]) -> Result<BridgePortInfo, Failure> {
    let mut port = BridgePortInfo::default();
    for attribute in attributes(bytes) {
        let attribute = attribute?;
        match attribute.kind {
            IFLA_BRPORT_MODE => port.hairpin = attribute.flag()?,
            IFLA_BRPORT_LEARNING => port.learning = attribute.flag()?,
            IFLA_BRPORT_ISOLATED => port.isolated = attribute.flag()?,
            _ => {}
        }
    }
    Ok(port)
}
