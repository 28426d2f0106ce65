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

/// A range takes up to 16 bytes of an attribute that holds 64 KiB; most ports need a single request.
const RANGES_PER_REQUEST: usize = 1024;

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
    /// Adds VLANs to a port or to a bridge itself. What is there already takes the new flags.
    ///
    /// # Errors
    /// The kernel refuses it: a VID out of range, a port of no bridge, no VLAN filtering in this kernel (`EOPNOTSUPP`).
    pub fn add_vlans(&mut self, index: u32, side: VlanSide, vlans: &[VlanRange]) -> Result<()> {
        self.change_vlans(RTM_SETLINK, index, side, vlans)
            .map_err(|failure| failure.of("add VLANs to", self.named(index)))
    }

    /// Removes VLANs from a port or from a bridge itself. The kernel takes no offence at what is not
    /// there, nor at any of it where it was built without VLAN filtering.
    ///
    /// # Errors
    /// The kernel refuses it: a VID out of range.
    pub fn delete_vlans(&mut self, index: u32, side: VlanSide, vlans: &[VlanRange]) -> Result<()> {
        self.change_vlans(RTM_DELLINK, index, side, vlans)
            .map_err(|failure| failure.of("remove VLANs from", self.named(index)))
    }

    fn change_vlans(&mut self, kind: u16, index: u32, side: VlanSide, vlans: &[VlanRange]) -> Result<(), Failure> {
        vlans
            .chunks(RANGES_PER_REQUEST)
            .try_for_each(|chunk| self.socket.change(kind, 0, &request(index, side, chunk)))
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

/// This machine's kernel has no VLAN filtering, so the bytes are compared with those that iproute2 6.1 was seen to send for
/// the same purpose, and the replies are made by hand after br_fill_ifvlaninfo_compressed of net/bridge/br_netlink.c.
#[cfg(test)]
mod tests {
    use netlink_packet_core::Emitable;

    use super::*;

    fn bytes(message: &LinkMessage) -> Vec<u8> {
        let mut bytes = vec![0; message.buffer_len()];
        message.emit(&mut bytes);
        bytes
    }

    #[test]
    fn an_access_port_is_asked_for_as_iproute2_does() {
        // bridge vlan add dev v0 vid 100 pvid untagged master
        #[rustfmt::skip]
        let expected = [
            7, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
            0x14, 0, 0x1a, 0,
            6, 0, 0, 0, 1, 0, 0, 0,
            8, 0, 2, 0, 6, 0, 100, 0,
        ];
        assert_eq!(bytes(&request(4, VlanSide::Port, &[VlanRange::access(100)])), expected);
    }

    #[test]
    fn a_bridges_own_vlan_is_asked_for_as_iproute2_does() {
        // bridge vlan add dev br0 vid 100 self
        #[rustfmt::skip]
        let expected = [
            7, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
            0x14, 0, 0x1a, 0,
            6, 0, 0, 0, 2, 0, 0, 0,
            8, 0, 2, 0, 0, 0, 100, 0,
        ];
        assert_eq!(
            bytes(&request(2, VlanSide::Bridge, &[VlanRange::tagged(100)])),
            expected
        );
    }

    #[test]
    fn a_trunk_is_asked_for_with_begin_and_end() {
        // bridge vlan add dev v0 vid 10-20 master, and VID 30 with it
        let trunk = VlanRange {
            last: 20,
            ..VlanRange::tagged(10)
        };
        #[rustfmt::skip]
        let expected = [
            7, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
            0x24, 0, 0x1a, 0,
            6, 0, 0, 0, 1, 0, 0, 0,
            8, 0, 2, 0, 8, 0, 10, 0,
            8, 0, 2, 0, 16, 0, 20, 0,
            8, 0, 2, 0, 0, 0, 30, 0,
        ];
        assert_eq!(
            bytes(&request(4, VlanSide::Port, &[trunk, VlanRange::tagged(30)])),
            expected
        );
    }

    #[test]
    fn a_port_is_read_with_its_bridge_and_ranges() {
        #[rustfmt::skip]
        let reply = [
            7, 0, 1, 0, 4, 0, 0, 0, 3, 16, 0, 0, 0, 0, 0, 0,
            8, 0, 10, 0, 2, 0, 0, 0,
            0x24, 0, 0x1a, 0x80,
            8, 0, 2, 0, 6, 0, 1, 0,
            8, 0, 2, 0, 8, 0, 10, 0,
            8, 0, 2, 0, 16, 0, 20, 0,
            8, 0, 2, 0, 0, 0, 30, 0,
        ];
        let port = decode(&reply).unwrap().unwrap();
        assert_eq!((port.index, port.bridge), (4, Some(2)));
        let trunk = VlanRange {
            last: 20,
            ..VlanRange::tagged(10)
        };
        assert_eq!(port.vlans, [VlanRange::access(1), trunk, VlanRange::tagged(30)]);
        assert!(port.carries(15) && port.carries(30) && !port.carries(21));
    }

    #[test]
    fn an_end_without_a_begin_is_malformed() {
        assert!(ranges(&[8, 0, 2, 0, 16, 0, 20, 0]).is_err());
        assert!(ranges(&[6, 0, 2, 0, 16, 0, 0, 0]).is_err());
    }
}
