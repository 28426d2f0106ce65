//! The VLANs of bridge ports.

use libc::{RTM_DELLINK, RTM_GETLINK, RTM_SETLINK};
use netlink_packet_route::link::{
    AfSpecBridge, BridgeFlag, BridgeVlanInfo, BridgeVlanInfoFlags, LinkAttribute, LinkExtentMask, LinkMessage,
};
use rtnetlink::LinkBridgeVlan;

use crate::Net;
use crate::attributes::attributes;
use crate::error::{Failure, Result};
use crate::link::decode::{IFLA_AF_SPEC, IFLA_MASTER, split};

/// `IFLA_BRIDGE_VLAN_INFO` of linux/if_bridge.h.
const IFLA_BRIDGE_VLAN_INFO: u16 = 2;

/// VLANs of one port, first and last included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VlanRange {
    /// The first VID, 1 to 4094.
    pub first: u16,
    /// The last VID, not below the first.
    pub last: u16,
    /// Packets that come in without a tag belong to it. Only for a single VLAN.
    pub pvid: bool,
    /// Packets leave without a tag.
    pub untagged: bool,
}

/// On which side of a link its VLANs are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VlanSide {
    /// The link is a port: its VLANs in the bridge that it belongs to.
    Port,
    /// The link is a bridge: the VLANs that its own interface takes part in.
    Bridge,
}

/// The VLANs of a port, or of a bridge itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortVlans {
    /// The index of the port or bridge.
    pub index: u32,
    /// The index of the bridge that it belongs to; its own for the bridge itself.
    pub bridge: Option<u32>,
    /// The VLANs in ascending order, neighbours of the same kind in one range.
    pub vlans: Vec<VlanRange>,
}

impl VlanRange {
    /// One VLAN that is tagged both ways.
    pub fn tagged(vid: u16) -> VlanRange {
        VlanRange {
            first: vid,
            last: vid,
            pvid: false,
            untagged: false,
        }
    }

    /// One VLAN whose packets come in and leave without a tag: an access port's.
    pub fn access(vid: u16) -> VlanRange {
        VlanRange {
            first: vid,
            last: vid,
            pvid: true,
            untagged: true,
        }
    }

    /// Whether the range holds `vid`.
    pub fn contains(&self, vid: u16) -> bool {
        (self.first..=self.last).contains(&vid)
    }

    fn flags(&self) -> BridgeVlanInfoFlags {
        let mut flags = BridgeVlanInfoFlags::empty();
        flags.set(BridgeVlanInfoFlags::Pvid, self.pvid);
        flags.set(BridgeVlanInfoFlags::Untagged, self.untagged);
        flags
    }
}

impl PortVlans {
    /// Whether the port carries `vid`.
    pub fn carries(&self, vid: u16) -> bool {
        self.vlans.iter().any(|range| range.contains(vid))
    }
}

impl Net {
    /// Adds VLANs to a port or to a bridge itself, with one request. What is there already takes the new flags.
    ///
    /// # Errors
    /// The kernel refuses it: a VID out of range, a port of no bridge, no VLAN filtering in this kernel (`EOPNOTSUPP`).
    pub fn add_vlans(&mut self, index: u32, side: VlanSide, vlans: &[VlanRange]) -> Result<()> {
        self.socket
            .change(RTM_SETLINK, 0, &request(index, side, vlans))
            .map_err(|failure| failure.of("add VLANs to", self.named(index)))
    }

    /// Removes VLANs from a port or from a bridge itself, with one request. What is not there is no error to the kernel.
    ///
    /// # Errors
    /// As [`Net::add_vlans`].
    pub fn delete_vlans(&mut self, index: u32, side: VlanSide, vlans: &[VlanRange]) -> Result<()> {
        self.socket
            .change(RTM_DELLINK, 0, &request(index, side, vlans))
            .map_err(|failure| failure.of("remove VLANs from", self.named(index)))
    }

    /// The VLANs of every port of `bridge` and of the bridge itself. Empty lists where this kernel has no VLAN filtering.
    ///
    /// # Errors
    /// The kernel refuses the request, or the list changed at every one of many attempts.
    pub fn bridge_vlans(&mut self, bridge: u32) -> Result<Vec<PortVlans>> {
        let request = LinkBridgeVlan::new(0)
            .append_extra_attribute(LinkAttribute::ExtMask(vec![LinkExtentMask::BrvlanCompressed]))
            .build();
        let mut ports = self
            .socket
            .dump(RTM_GETLINK, &request, &decode)
            .map_err(|failure| failure.of("list", "bridge VLANs"))?;
        ports.retain(|port| port.index == bridge || port.bridge == Some(bridge));
        Ok(ports)
    }
}

fn request(index: u32, side: VlanSide, vlans: &[VlanRange]) -> LinkMessage {
    let mut request = LinkBridgeVlan::new(index).append_af_spec(AfSpecBridge::Flags(match side {
        VlanSide::Port => BridgeFlag::Controller,
        VlanSide::Bridge => BridgeFlag::LowerDev,
    }));
    for range in vlans {
        request = if range.first == range.last {
            request.vlan(range.first, range.flags())
        } else {
            request
                .vlan_range_start(range.first, range.flags())
                .vlan_range_end(range.last, range.flags())
        };
    }
    request.build()
}

pub(crate) fn decode(payload: &[u8]) -> Result<Option<PortVlans>, Failure> {
    let (header, rest) = split(payload)?;
    let mut port = PortVlans {
        index: header.index,
        bridge: None,
        vlans: Vec::new(),
    };
    for attribute in attributes(rest) {
        let attribute = attribute?;
        match attribute.kind {
            IFLA_MASTER => port.bridge = Some(attribute.u32()?),
            IFLA_AF_SPEC => port.vlans = ranges(attribute.value)?,
            _ => {}
        }
    }
    Ok(Some(port))
}

/// The ranges of an `IFLA_AF_SPEC`: a VLAN stands alone, or as a begin followed by its end.
fn ranges(bytes: &[u8]) -> Result<Vec<VlanRange>, Failure> {
    let mut ranges = Vec::new();
    let mut begun = None;
    for attribute in attributes(bytes) {
        let attribute = attribute?;
        if attribute.kind != IFLA_BRIDGE_VLAN_INFO {
            continue;
        }
        let info = BridgeVlanInfo::try_from(attribute.value).map_err(|_| attribute.malformed())?;
        if info.flags.contains(BridgeVlanInfoFlags::RangeBegin) {
            begun = Some(info.vid);
            continue;
        }
        let ends = info.flags.contains(BridgeVlanInfoFlags::RangeEnd);
        let first = if ends {
            begun.take().ok_or_else(|| attribute.malformed())?
        } else {
            info.vid
        };
        ranges.push(VlanRange {
            first,
            last: info.vid,
            pvid: info.flags.contains(BridgeVlanInfoFlags::Pvid),
            untagged: info.flags.contains(BridgeVlanInfoFlags::Untagged),
        });
    }
    Ok(ranges)
}
