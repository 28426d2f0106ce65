//! Links, addresses, routes and sysctls of one network namespace.
//!
//! [`Net`] is the only way to them, and this crate the only one that speaks rtnetlink or changes a thread's namespace.
//! `Net::host()` is the namespace of the calling thread; `Net::enter(netns)` goes into another one, takes handles, and
//! comes back at once. From then on code says `host.` or `pod.` and the thread stays where it is.
//!
//! Everything blocks and runs on the calling thread. Questions about one link are requests, not dumps; dumps that the
//! kernel marks as interrupted are repeated until consistent.

mod address;
mod attributes;
mod error;
mod link;
pub mod netns;
mod random;
mod reply;
mod route;
mod socket;
mod sysctl;
mod vlan;
mod wait;

use std::os::fd::{BorrowedFd, OwnedFd};

pub use nix::errno::Errno;

pub use address::{Address, AddressFlags, NewAddress};
pub use error::{Error, Result};
pub use link::{BridgeInfo, BridgePort, BridgePortInfo, Link, LinkChange, LinkFilter, NewBridge, NewVeth, VethPeer};
pub use random::{host_veth_name, random_bytes, random_mac};
pub use route::{Family, NewRoute, Route, RouteFilter};
pub use sysctl::{Outcome, Sysctl};
pub use vlan::{PortVlans, VlanRange, VlanSide};
pub use wait::Settled;

use error::Failure;
use socket::RouteSocket;

/// One network namespace: a route socket in it, and its sysctls.
///
/// ```no_run
/// # use std::os::fd::AsFd;
/// let file = std::fs::File::open("/run/netns/pod")?;
/// let mut host = net::Net::host()?;
/// let mut pod = net::Net::enter(file.as_fd())?;
/// if let Some(lo) = pod.link("lo")? {
///     pod.set_up(lo.index)?;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Net {
    socket: RouteSocket,
    sysctl: Sysctl,
    /// `None` for the namespace of the thread. Kept for the sockets that waiting opens.
    netns: Option<OwnedFd>,
}

impl Net {
    /// The namespace of the calling thread.
    ///
    /// # Errors
    /// The socket cannot be opened.
    pub fn host() -> Result<Net> {
        let socket = RouteSocket::open().map_err(|f| f.of("open route socket", "this network namespace"))?;
        Ok(Net {
            socket,
            sysctl: Sysctl::of_thread(),
            netns: None,
        })
    }

    /// Goes into `netns`, opens what is needed there, and comes back.
    ///
    /// # Errors
    /// `netns` is no network namespace, or the socket or `/proc/sys/net/ipv4` cannot be opened; the thread is back in its
    /// namespace then too. A thread that cannot get back aborts the process: going on would change the wrong namespace.
    pub fn enter(netns: BorrowedFd<'_>) -> Result<Net> {
        let kept = netns
            .try_clone_to_owned()
            .map_err(|e| Failure::io(&e).of("keep", "network namespace"))?;
        let (socket, sysctl) = netns::run_in(netns, || {
            let socket = RouteSocket::open().map_err(|f| f.of("open route socket", "network namespace"))?;
            Ok::<_, Error>((socket, Sysctl::hold()?))
        })??;
        Ok(Net {
            socket,
            sysctl,
            netns: Some(kept),
        })
    }

    /// The sysctls below `/proc/sys/net` of this namespace.
    pub fn sysctl(&self) -> &Sysctl {
        &self.sysctl
    }

    /// How many netlink requests were sent so far, repeated ones included. For tests that keep the number small.
    pub fn requests(&self) -> usize {
        self.socket.requests()
    }

    /// The name of a link for an error text. Asked for only after a failure, so that callers need not carry names.
    fn named(&mut self, index: u32) -> String {
        match self.link_by_index(index) {
            Ok(Some(link)) => format!("{:?}", link.name),
            _ => format!("link {index}"),
        }
    }
}
