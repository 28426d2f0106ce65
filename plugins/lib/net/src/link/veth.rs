//! Veth pairs.

use std::os::fd::{AsRawFd, BorrowedFd};

use cni_types::{IfName, MacAddr};
use netlink_packet_route::link::{InfoData, InfoVeth, LinkMessage};
use rtnetlink::{LinkUnspec, LinkVeth};

use super::Link;
use crate::Net;
use crate::error::Result;

/// A veth pair to make with one request.
#[derive(Debug, Clone, Copy)]
pub struct NewVeth<'a> {
    /// The name of the end in this namespace.
    pub name: &'a IfName,
    /// Its Ethernet address. Given at birth, so that udev leaves it alone.
    pub mac: MacAddr,
    /// The largest packet of both ends, in bytes; `None` for the kernel's choice of 1500.
    pub mtu: Option<u32>,
    /// The index of the bridge that this end belongs to.
    pub master: Option<u32>,
    /// Switch this end on at once. The other cannot be born up: its own end is not complete then.
    pub up: bool,
    /// The other end.
    pub peer: VethPeer<'a>,
}

/// The other end of a [`NewVeth`], born where it is to live and under its final name.
#[derive(Debug, Clone, Copy)]
pub struct VethPeer<'a> {
    /// Its name.
    pub name: &'a IfName,
    /// Its Ethernet address.
    pub mac: MacAddr,
    /// Its namespace; `None` for the same as the first end's.
    pub netns: Option<BorrowedFd<'a>>,
}

impl Net {
    /// Makes a veth pair and returns the end in this namespace; the other end's index is its `peer_index`.
    ///
    /// # Errors
    /// The kernel refuses it, and nothing was made. [`crate::Error::is_exists`] tells that one of the two names is taken,
    /// but not which.
    pub fn create_veth(&mut self, veth: &NewVeth<'_>) -> Result<Link> {
        self.create_link(&veth.request(), "create veth", veth.name)
    }
}

impl NewVeth<'_> {
    fn request(&self) -> LinkMessage {
        let mut peer = LinkUnspec::new_with_name(self.peer.name.as_str()).address(self.peer.mac.0.to_vec());
        if let Some(netns) = self.peer.netns {
            peer = peer.setns_by_fd(netns.as_raw_fd());
        }
        if let Some(mtu) = self.mtu {
            peer = peer.mtu(mtu);
        }
        let mut request = LinkVeth::new(self.name.as_str(), self.peer.name.as_str())
            .set_info_data(InfoData::Veth(InfoVeth::Peer(peer.build())))
            .address(self.mac.0.to_vec());
        if let Some(mtu) = self.mtu {
            request = request.mtu(mtu);
        }
        if let Some(master) = self.master {
            request = request.controller(master);
        }
        if self.up {
            request = request.up();
        }
        request.build()
    }
}
