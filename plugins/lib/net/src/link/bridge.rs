//! Bridges and their ports.

use cni_types::{IfName, MacAddr};
use libc::RTM_NEWLINK;
use netlink_packet_route::link::LinkMessage;
use rtnetlink::{LinkBridge, LinkBridgePort};

use super::Link;
use crate::Net;
use crate::error::Result;

/// A bridge to make.
#[derive(Debug, Clone, Copy)]
pub struct NewBridge<'a> {
    /// Its name.
    pub name: &'a IfName,
    /// Its Ethernet address. One that is set at birth stays; else a bridge takes the lowest of its ports' addresses, and
    /// changes it as ports come and go.
    pub mac: MacAddr,
    /// The largest packet, in bytes; `None` for the kernel's choice, 1500 and then the least of the ports'.
    pub mtu: Option<u32>,
    /// Tell VLANs apart. `None` leaves it out of the request, for kernels that were built without.
    pub vlan_filtering: Option<bool>,
    /// Switch on at once.
    pub up: bool,
}

/// What to set on a port of a bridge; `None` leaves as it is.
#[derive(Debug, Clone, Copy, Default)]
pub struct BridgePort {
    /// Packets may leave through the port they came in at.
    pub hairpin: Option<bool>,
    /// No packet passes between isolated ports.
    pub isolated: Option<bool>,
    /// Source addresses are learned from packets that come in.
    pub learning: Option<bool>,
}

impl Net {
    /// Makes a bridge.
    ///
    /// # Errors
    /// The kernel refuses it; [`crate::Error::is_exists`] where a link of this name is there already, of whatever kind.
    pub fn create_bridge(&mut self, bridge: &NewBridge<'_>) -> Result<Link> {
        self.create_link(&bridge.request(), "create bridge", bridge.name)
    }

    /// Switches the telling apart of VLANs on or off for a bridge.
    ///
    /// # Errors
    /// The kernel refuses it, or was built without (`EOPNOTSUPP`).
    pub fn set_vlan_filtering(&mut self, bridge: u32, on: bool) -> Result<()> {
        self.socket
            .change(RTM_NEWLINK, 0, &vlan_filtering(bridge, on))
            .map_err(|failure| self.refused(failure, "set VLAN filtering of bridge", bridge))
    }

    /// Sets options of a bridge's port. The link must belong to a bridge already.
    ///
    /// # Errors
    /// The kernel refuses it, or the link is no port of a bridge.
    pub fn set_bridge_port(&mut self, port: u32, options: &BridgePort) -> Result<()> {
        // With RTM_SETLINK the kernel answers success and sets nothing.
        self.socket
            .change(RTM_NEWLINK, 0, &options.request(port))
            .map_err(|failure| self.refused(failure, "set bridge port options of", port))
    }
}

impl NewBridge<'_> {
    fn request(&self) -> LinkMessage {
        let mut request = LinkBridge::new(self.name.as_str()).address(self.mac.0.to_vec());
        if !self.up {
            request = request.down();
        }
        if let Some(mtu) = self.mtu {
            request = request.mtu(mtu);
        }
        if let Some(on) = self.vlan_filtering {
            request = request.vlan_filtering(on);
        }
        request.build()
    }
}

impl BridgePort {
    fn request(&self, port: u32) -> LinkMessage {
        let mut request = LinkBridgePort::new(port);
        if let Some(on) = self.hairpin {
            request = request.hairpin(on);
        }
        if let Some(on) = self.isolated {
            request = request.isolated(on);
        }
        if let Some(on) = self.learning {
            request = request.learning(on);
        }
        request.build()
    }
}

fn vlan_filtering(bridge: u32, on: bool) -> LinkMessage {
    rtnetlink::LinkMessageBuilder::<LinkBridge>::new_with_info_kind(netlink_packet_route::link::InfoKind::Bridge)
        .index(bridge)
        .vlan_filtering(on)
        .build()
}

/// This machine's kernel has no VLAN filtering, so the bytes are compared with those that iproute2 6.1 was seen to send, but
/// for a terminating zero behind `bridge`, which the kernel takes either way.
#[cfg(test)]
mod tests {
    use netlink_packet_core::Emitable;

    use super::*;

    #[test]
    fn vlan_filtering_is_asked_for_as_iproute2_does() {
        // ip link set br0 type bridge vlan_filtering 1
        let message = vlan_filtering(2, true);
        let mut bytes = vec![0; message.buffer_len()];
        message.emit(&mut bytes);
        let kind_len = usize::from(bytes[20]);
        assert!(matches!(kind_len, 10 | 11));
        bytes[20] = 10;
        #[rustfmt::skip]
        let expected = [
            0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
            0x1c, 0, 0x12, 0,
            10, 0, 1, 0, b'b', b'r', b'i', b'd', b'g', b'e', 0, 0,
            12, 0, 2, 0, 5, 0, 7, 0, 1, 0, 0, 0,
        ];
        assert_eq!(bytes, expected);
    }

    #[test]
    fn a_bridge_is_born_with_vlan_filtering_where_wanted() {
        let name = "br0".parse().unwrap();
        let mut bridge = NewBridge {
            name: &name,
            mac: MacAddr([2; 6]),
            mtu: None,
            vlan_filtering: Some(true),
            up: true,
        };
        let bytes = |bridge: &NewBridge<'_>| {
            let message = bridge.request();
            let mut bytes = vec![0; message.buffer_len()];
            message.emit(&mut bytes);
            bytes
        };
        let option = [5, 0, 7, 0, 1, 0, 0, 0];
        assert!(bytes(&bridge).ends_with(&option));
        bridge.vlan_filtering = None;
        assert!(!bytes(&bridge).ends_with(&option));
    }
}
