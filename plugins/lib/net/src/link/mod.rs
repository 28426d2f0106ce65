//! Network interfaces: found, listed, changed, deleted.

mod bridge;
pub(crate) mod decode;
mod veth;

use std::os::fd::{AsRawFd, BorrowedFd};

use cni_types::{IfName, MacAddr};
use libc::{RTM_DELLINK, RTM_GETLINK, RTM_NEWLINK};
use netlink_packet_core::DefaultNla;
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkExtentMask, LinkInfo, LinkMessage};
use nix::errno::Errno;
use rtnetlink::{LinkMessageBuilder, LinkUnspec};

pub use bridge::{BridgePort, NewBridge};
pub use veth::{NewVeth, VethPeer};

use crate::error::{Failure, Result};
use crate::{Error, Net};

/// `NLM_F_CREATE | NLM_F_EXCL | NLM_F_ECHO`: make, refuse what exists, and show what was made.
pub(crate) const CREATE: u16 =
    netlink_packet_core::NLM_F_CREATE | netlink_packet_core::NLM_F_EXCL | netlink_packet_core::NLM_F_ECHO;

/// `IFALIASZ` of linux/if.h, less the terminating zero.
const ALIAS_MAX_LEN: usize = 255;

/// A network interface as the kernel describes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Link {
    /// The interface's number in its namespace.
    pub index: u32,
    /// The name. What is no UTF-8 is replaced: the kernel allows any bytes but `/`, `:` and white space.
    pub name: String,
    /// The Ethernet address; `None` for links that have none or one of another length.
    pub mac: Option<MacAddr>,
    /// The largest packet, in bytes.
    pub mtu: u32,
    /// Switched on (`IFF_UP`), whatever the carrier.
    pub up: bool,
    /// Able to pass packets (`IFF_RUNNING`): the operational state is up, or unknown as for `lo`.
    pub running: bool,
    /// The loopback interface (`IFF_LOOPBACK`).
    pub loopback: bool,
    /// Set to take in all packets (`IFF_PROMISC`). A bridge makes its ports promiscuous without this flag.
    pub promiscuous: bool,
    /// Set to take in all multicast packets (`IFF_ALLMULTI`).
    pub all_multicast: bool,
    /// The kind, `veth` or `bridge`; `None` for hardware and `lo`.
    pub kind: Option<String>,
    /// The index of the bridge, bond or VRF that it belongs to.
    pub master: Option<u32>,
    /// The index of the other end of a veth, or of the parent of a macvlan or vlan (`IFLA_LINK`), in the namespace that
    /// `link_netnsid` names.
    pub peer_index: Option<u32>,
    /// The number by which this namespace knows the namespace of `peer_index`; `None` for this very namespace.
    pub link_netnsid: Option<i32>,
    /// The alias (`IFLA_IFALIAS`), up to 255 bytes of free text.
    pub alias: Option<String>,
    /// The length of the transmit queue, in packets.
    pub tx_queue_len: u32,
    /// Set where the link is a bridge.
    pub bridge: Option<BridgeInfo>,
    /// Set where the link is a port of a bridge.
    pub bridge_port: Option<BridgePortInfo>,
}

/// The settings of a bridge that plugins look at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BridgeInfo {
    /// Whether VLANs are told apart; `None` where the kernel was built without.
    pub vlan_filtering: Option<bool>,
    /// The VLAN that new ports get, usually 1; 0 for none; `None` where the kernel was built without.
    pub default_pvid: Option<u16>,
}

/// The settings of a bridge's port that plugins look at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BridgePortInfo {
    /// Packets may leave through the port they came in at.
    pub hairpin: bool,
    /// No packet passes between isolated ports.
    pub isolated: bool,
    /// Source addresses are learned from packets that come in.
    pub learning: bool,
}

/// Which links a list holds. Every given condition must hold.
#[derive(Debug, Clone, Copy, Default)]
pub struct LinkFilter<'a> {
    /// Members of the bridge, bond or VRF with this index.
    pub master: Option<u32>,
    /// Links of this kind: `veth`.
    pub kind: Option<&'a str>,
}

/// What to change on a link, all in one request; `None` leaves as it is. The kernel makes the changes one by one, in an
/// order of its own, and the first that fails leaves the earlier ones made.
#[derive(Debug, Clone, Copy, Default)]
pub struct LinkChange<'a> {
    /// Switch on or off.
    pub up: Option<bool>,
    /// A new name. Kernels before 6.2 refuse it while the link is up.
    pub name: Option<&'a IfName>,
    /// The Ethernet address.
    pub mac: Option<MacAddr>,
    /// The largest packet, in bytes.
    pub mtu: Option<u32>,
    /// The length of the transmit queue, in packets.
    pub tx_queue_len: Option<u32>,
    /// Take in all packets.
    pub promiscuous: Option<bool>,
    /// Take in all multicast packets.
    pub all_multicast: Option<bool>,
    /// The alias, at most 255 bytes; empty to remove it.
    pub alias: Option<&'a str>,
    /// The index of the bridge, bond or VRF to belong to; 0 for none.
    pub master: Option<u32>,
    /// The namespace to move to. The link gets a new index there if its own is taken.
    pub netns: Option<BorrowedFd<'a>>,
}

impl Net {
    /// The link of this name, or else with this alternative name; `None` where there is none.
    ///
    /// # Errors
    /// The kernel refuses the request.
    pub fn link(&mut self, name: &str) -> Result<Option<Link>> {
        // No link has such a name. The kernel would refuse the longer one, and read the other up to its zero.
        if name.len() > IfName::MAX_LEN || name.contains('\0') {
            return Ok(None);
        }
        self.get_link(LinkUnspec::new_with_name(name), || format!("{name:?}"))
    }

    /// The link of this index; `None` where there is none.
    ///
    /// # Errors
    /// The kernel refuses the request.
    pub fn link_by_index(&mut self, index: u32) -> Result<Option<Link>> {
        // No link has index 0; to the kernel it is a request that names none.
        if index == 0 {
            return Ok(None);
        }
        self.get_link(LinkUnspec::new_with_index(index), || format!("link {index}"))
    }

    fn get_link(
        &mut self,
        request: LinkMessageBuilder<LinkUnspec>,
        object: impl Fn() -> String,
    ) -> Result<Option<Link>> {
        let request = request.append_extra_attribute(without_statistics()).build();
        match self.socket.get(RTM_GETLINK, &request, &decode::link) {
            Ok(link) => Ok(link),
            Err(failure) if failure.errno() == Errno::ENODEV => Ok(None),
            Err(failure) => Err(failure.of("get link", object())),
        }
    }

    /// The links that `filter` lets through.
    ///
    /// # Errors
    /// The kernel refuses the request, or the list changed at every one of many attempts.
    pub fn links(&mut self, filter: LinkFilter<'_>) -> Result<Vec<Link>> {
        let request = filter.request();
        let mut links = self
            .socket
            .dump(RTM_GETLINK, &request, &decode::link)
            .map_err(|f| f.of("list", "links"))?;
        // Kernels without strict checking do not filter, and none filters by a kind whose module is not loaded.
        links.retain(|link| filter.matches(link));
        Ok(links)
    }

    /// Changes settings of a link.
    ///
    /// # Errors
    /// The kernel refuses one of them; [`LinkChange`] tells what happened to the others.
    pub fn change_link(&mut self, index: u32, change: &LinkChange<'_>) -> Result<()> {
        if change.alias.is_some_and(|alias| alias.len() > ALIAS_MAX_LEN) {
            let failure = Failure::new(Errno::EINVAL, format!("alias is longer than {ALIAS_MAX_LEN} bytes"));
            return Err(self.refused(failure, change.operation(), index));
        }
        log::debug!("{} {index}", change.operation());
        let request = change.request(index);
        self.socket
            .change(RTM_NEWLINK, 0, &request)
            .map_err(|failure| self.refused(failure, change.operation(), index))
    }

    /// Switches a link on.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn set_up(&mut self, index: u32) -> Result<()> {
        self.change_link(
            index,
            &LinkChange {
                up: Some(true),
                ..LinkChange::default()
            },
        )
    }

    /// Switches a link off.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn set_down(&mut self, index: u32) -> Result<()> {
        self.change_link(
            index,
            &LinkChange {
                up: Some(false),
                ..LinkChange::default()
            },
        )
    }

    /// Deletes a link and tells whether it was there. The other end of a veth goes with it.
    ///
    /// # Errors
    /// The kernel refuses it: `lo` and hardware cannot be deleted.
    pub fn delete_link(&mut self, index: u32) -> Result<bool> {
        let request = LinkUnspec::new_with_index(index).build();
        match self.socket.change(RTM_DELLINK, 0, &request) {
            Ok(()) => Ok(true),
            Err(failure) if failure.errno() == Errno::ENODEV => Ok(false),
            Err(failure) => Err(self.refused(failure, "delete link", index)),
        }
    }

    /// Deletes the link of this name (or alternative name) and tells whether it was there.
    ///
    /// # Errors
    /// As [`Net::delete_link`].
    pub fn delete_link_named(&mut self, name: &IfName) -> Result<bool> {
        let request = LinkUnspec::new_with_name(name.as_str()).build();
        match self.socket.change(RTM_DELLINK, 0, &request) {
            Ok(()) => Ok(true),
            Err(failure) if failure.errno() == Errno::ENODEV => Ok(false),
            Err(failure) => Err(failure.of("delete link", format!("{:?}", name.as_str()))),
        }
    }

    /// Makes a link and returns it as the kernel made it, before it joined a master.
    fn create_link(&mut self, request: &LinkMessage, operation: &'static str, name: &IfName) -> Result<Link> {
        log::debug!("{operation} {name}");
        let failed = |failure: Failure| failure.of(operation, format!("{:?}", name.as_str()));
        // The link exists by then: an echo that cannot be read must not look like a refusal.
        let echo = |payload: &[u8]| Ok(decode::link(payload).unwrap_or(None));
        let made = self
            .socket
            .change_with_echo(RTM_NEWLINK, CREATE, request, &echo)
            .map_err(failed)?;
        match made {
            Some(link) => Ok(link),
            None => self
                .created(name)
                .ok_or_else(|| failed(Failure::new(Errno::ENODEV, "made, but gone at once"))),
        }
    }

    /// Asks for a link that was just made, where the kernel echoed nothing.
    fn created(&mut self, name: &IfName) -> Option<Link> {
        self.link(name.as_str()).unwrap_or_else(|error| {
            log::warn!("{error}; deleting what was made");
            if let Err(error) = self.delete_link_named(name) {
                log::warn!("{error}");
            }
            None
        })
    }

    fn refused(&mut self, failure: Failure, operation: &'static str, index: u32) -> Error {
        failure.of(operation, self.named(index))
    }
}

impl LinkFilter<'_> {
    fn request(&self) -> LinkMessage {
        let mut request = LinkUnspec::new_with_index(0)
            .append_extra_attribute(without_statistics())
            .build();
        if let Some(master) = self.master {
            request.attributes.push(LinkAttribute::Controller(master));
        }
        if let Some(kind) = self.kind {
            let kind = LinkInfo::Kind(InfoKind::Other(kind.to_owned()));
            request.attributes.push(LinkAttribute::LinkInfo(vec![kind]));
        }
        request
    }

    fn matches(&self, link: &Link) -> bool {
        self.master.is_none_or(|master| link.master == Some(master))
            && self.kind.is_none_or(|kind| link.kind.as_deref() == Some(kind))
    }
}

impl LinkChange<'_> {
    fn request(&self, index: u32) -> LinkMessage {
        let mut request = LinkUnspec::new_with_index(index);
        request = match self.up {
            Some(true) => request.up(),
            Some(false) => request.down(),
            None => request,
        };
        if let Some(on) = self.promiscuous {
            request = request.promiscuous(on);
        }
        if let Some(on) = self.all_multicast {
            request = request.allmulticast(on);
        }
        let mut request = request.build();
        request.attributes.extend(
            [
                self.name.map(|name| LinkAttribute::IfName(name.as_str().to_owned())),
                self.mac.map(|mac| LinkAttribute::Address(mac.0.to_vec())),
                self.mtu.map(LinkAttribute::Mtu),
                self.tx_queue_len.map(LinkAttribute::TxQueueLen),
                self.alias.map(alias),
                self.master.map(LinkAttribute::Controller),
                self.netns.map(|netns| LinkAttribute::NetNsFd(netns.as_raw_fd())),
            ]
            .into_iter()
            .flatten(),
        );
        request
    }

    /// The change in words, for an error text: the only one that was asked for, else a general word.
    fn operation(&self) -> &'static str {
        let asked: Vec<&'static str> = [
            (self.up == Some(true), "set up"),
            (self.up == Some(false), "set down"),
            (self.name.is_some(), "rename"),
            (self.mac.is_some(), "set MAC address of"),
            (self.mtu.is_some(), "set MTU of"),
            (self.tx_queue_len.is_some(), "set transmit queue length of"),
            (self.promiscuous.is_some(), "set promiscuous mode of"),
            (self.all_multicast.is_some(), "set all-multicast mode of"),
            (self.alias.is_some(), "set alias of"),
            (self.master.is_some(), "set master of"),
            (self.netns.is_some(), "move to another network namespace"),
        ]
        .into_iter()
        .filter_map(|(asked, words)| asked.then_some(words))
        .collect();
        match asked.as_slice() {
            [only] => only,
            _ => "change",
        }
    }
}

/// `IFLA_IFALIAS`. The kernel keeps the bytes as they come and takes an attribute without any as a request to remove the
/// alias, so there must be no terminating zero, which netlink-packet-route's own variant would add.
fn alias(text: &str) -> LinkAttribute {
    LinkAttribute::Other(DefaultNla::new(decode::IFLA_IFALIAS, text.as_bytes().to_vec()))
}

/// Leaves out what the kernel lets one leave out, IPv6's statistics: nobody here reads them.
fn without_statistics() -> LinkAttribute {
    LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats])
}
