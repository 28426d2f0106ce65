//! The veth pair: one end on the host, the other the container's interface.

use cni_types::{CniResult, Code, Error, IfName, MacAddr, Result};
use net::{Link, Net, NewVeth, VethPeer};
use skel::{Netns, Undo};

/// How often to draw another name for the host's end. Names have 32 random bits.
const NAME_TRIES: usize = 10;

/// A veth pair to make.
#[derive(Debug, Clone, Copy)]
pub struct PairRequest<'a> {
    /// The name of the container's end: `CNI_IFNAME`.
    pub ifname: &'a IfName,
    /// The container's namespace.
    pub netns: &'a Netns,
    /// The MAC of the container's end; `None` for a random one.
    pub mac: Option<MacAddr>,
    /// The MTU of both ends in bytes; `None` for the kernel's choice.
    pub mtu: Option<u32>,
    /// The index of the bridge that the host's end joins.
    pub master: Option<u32>,
    /// Whether the host's end is up from the start.
    pub up: bool,
}

/// A veth pair.
#[derive(Debug)]
pub struct Pair {
    /// The host's end.
    pub host: Link,
    /// The index of the container's end, in its namespace.
    pub container_index: u32,
    /// The MAC of the container's end.
    pub container_mac: MacAddr,
}

/// Makes the pair with one request, each end where it lives and under its final name, the container's down; and registers
/// its undo.
///
/// MACs are set explicitly at birth: udev leaves such links alone. The host's end takes no router advertisements.
///
/// # Errors
///
/// [`Code::INVALID_ENVIRONMENT`] where the container has an interface of that name already; else what the kernel says.
pub fn create_pair(host: &mut Net, pod: &mut Net, request: &PairRequest<'_>, undo: &mut Undo) -> Result<Pair> {
    let container_mac = request.mac.map_or_else(net::random_mac, Ok)?;
    let peer = VethPeer {
        name: request.ifname,
        mac: container_mac,
        netns: Some(request.netns.fd()?),
    };
    let link = create_named(host, pod, request, peer)?;
    let index = link.index;
    undo.push("veth pair", move || {
        Net::host()?.delete_link(index).map(drop).map_err(Error::from)
    });

    let container_index = match link.peer_index {
        Some(index) => index,
        None => find_peer(pod, request.ifname)?,
    };
    let _ = host.sysctl().set(&format!("ipv6/conf/{}/accept_ra", link.name), "0")?;
    Ok(Pair {
        host: link,
        container_index,
        container_mac,
    })
}

fn create_named(host: &mut Net, pod: &mut Net, request: &PairRequest<'_>, peer: VethPeer<'_>) -> Result<Link> {
    for _ in 0..NAME_TRIES {
        let name = net::host_veth_name()?;
        let mac = net::random_mac()?;
        let PairRequest { mtu, master, up, .. } = *request;
        match host.create_veth(&NewVeth {
            name: &name,
            mac,
            mtu,
            master,
            up,
            peer,
        }) {
            Ok(link) => return Ok(link),
            // One of the two names is taken: the kernel does not say which.
            Err(e) if e.is_exists() => {
                if pod.link(peer.name.as_str())?.is_some() {
                    return Err(taken(peer.name, &name));
                }
            }
            Err(e) => return Err(Error::from(e).context("failed to make veth pair")),
        }
    }
    let msg = format!("failed to make veth pair: {NAME_TRIES} random names were all taken");
    Err(Error::new(Code::TRY_AGAIN_LATER, msg))
}

/// Begins as the reference's message does.
fn taken(ifname: &IfName, host_name: &IfName) -> Error {
    let (ifname, host_name) = (ifname.as_str(), host_name.as_str());
    let msg = format!("container veth name ({ifname:?}) peer provided ({host_name:?}) already exists");
    Error::new(Code::INVALID_ENVIRONMENT, msg).with_details(
        "CNI_IFNAME names an interface that the container has already: choose another, or delete that one first",
    )
}

fn find_peer(pod: &mut Net, ifname: &IfName) -> Result<u32> {
    let gone = || Error::internal(format!("{ifname} was deleted as soon as it was made"));
    Ok(pod.link(ifname.as_str())?.ok_or_else(gone)?.index)
}

/// Deletes the container's interface; of a veth pair the host's end goes with it. One that is gone is what was wanted.
///
/// # Errors
///
/// What the kernel says.
pub fn delete_interface(netns: &Netns, ifname: &IfName) -> Result<()> {
    Net::enter(netns.fd()?)?.delete_link_named(ifname)?;
    Ok(())
}

/// Deletes the host's end where the container's namespace is not known. The name alone could be another container's by now,
/// so the MAC must be the one that ADD reported; and the other end must be in another namespace, for a result may name a
/// veth that all share: the gateway port of a bridge's VLAN, whose other end is on the node too.
///
/// # Errors
///
/// What the kernel says.
pub fn delete_host_veth(prev: Option<&CniResult>) -> Result<()> {
    let on_host = prev
        .into_iter()
        .flat_map(|prev| &prev.interfaces)
        .filter(|link| link.sandbox.is_empty());
    for told in on_host {
        let mut host = Net::host()?;
        let veth = host
            .link(&told.name)?
            .filter(|link| link.kind.as_deref() == Some("veth") && link.link_netnsid.is_some());
        let same = veth.filter(|link| link.mac.is_some_and(|mac| mac.to_string() == told.mac));
        if let Some(link) = same {
            host.delete_link(link.index)?;
        }
    }
    Ok(())
}
