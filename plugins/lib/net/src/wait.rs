//! Waiting for the kernel, by its notifications.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use cni_types::Cidr;
use libc::{RTNLGRP_IPV6_IFADDR, RTNLGRP_LINK};
use netlink_sys::Socket;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::Net;
use crate::error::{Failure, Result};
use crate::netns;
use crate::socket::{RouteSocket, retry};

/// For ever, to a plugin; and short enough to be added to any time.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// How waiting for duplicate address detection ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Settled {
    /// Every address can be used.
    Ready,
    /// These addresses have another owner.
    Duplicate(Vec<Cidr>),
    /// These addresses were still being checked at the deadline.
    TimedOut(Vec<Cidr>),
}

impl Net {
    /// Waits until a link is able to pass packets ([`crate::Link::running`]), and tells whether it is at the deadline.
    ///
    /// # Errors
    /// The link is gone ([`crate::Error::is_not_found`]), or the kernel refuses a request.
    pub fn wait_running(&mut self, index: u32, timeout: Duration) -> Result<bool> {
        let running = |net: &mut Net| -> Result<Option<bool>> {
            let link = net
                .link_by_index(index)?
                .ok_or_else(|| Failure::from(Errno::ENODEV).of("wait for carrier of", format!("link {index}")))?;
            Ok(link.running.then_some(true))
        };
        Ok(self.wait(RTNLGRP_LINK, timeout, running)?.unwrap_or(false))
    }

    /// Waits until no IPv6 address of a link is tentative any more.
    ///
    /// # Errors
    /// The kernel refuses a request.
    pub fn wait_settled(&mut self, index: u32, timeout: Duration) -> Result<Settled> {
        let settled = |net: &mut Net| -> Result<Option<Settled>> {
            let addresses = net.addresses(index)?;
            let duplicate: Vec<Cidr> = addresses
                .iter()
                .filter(|a| a.flags.dad_failed)
                .map(|a| a.cidr)
                .collect();
            if !duplicate.is_empty() {
                return Ok(Some(Settled::Duplicate(duplicate)));
            }
            Ok((!addresses.iter().any(|a| a.flags.tentative)).then_some(Settled::Ready))
        };
        if let Some(settled) = self.wait(RTNLGRP_IPV6_IFADDR, timeout, settled)? {
            return Ok(settled);
        }
        let addresses = self.addresses(index)?;
        Ok(Settled::TimedOut(
            addresses.iter().filter(|a| a.flags.tentative).map(|a| a.cidr).collect(),
        ))
    }

    /// Asks `state` until it has an answer or the time is over: first at once, without listening, for most often nothing
    /// has to be waited for; then after it listens, so that no change falls between; then after every notification.
    fn wait<T>(
        &mut self,
        group: u32,
        timeout: Duration,
        state: impl Fn(&mut Net) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        if let Some(answer) = state(self)? {
            return Ok(Some(answer));
        }
        let deadline = Instant::now() + timeout.min(LONGEST);
        let listener = self.listen(group)?;
        loop {
            if let Some(answer) = state(self)? {
                return Ok(Some(answer));
            }
            if !notified(&listener, deadline).map_err(|f| f.of("wait for", "a notification"))? {
                return Ok(None);
            }
        }
    }

    fn listen(&self, group: u32) -> Result<Socket> {
        let listener = match &self.netns {
            Some(netns) => netns::run_in(netns.as_fd(), || RouteSocket::listen(group))?,
            None => RouteSocket::listen(group),
        };
        listener.map_err(|f| f.of("subscribe to", format!("notification group {group}")))
    }
}

/// Waits until the socket has heard something, forgets it, and tells whether there was anything before the deadline.
/// What was said does not matter: the state is asked for anew, which is also right after lost notifications.
fn notified(listener: &Socket, deadline: Instant) -> Result<bool, Failure> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        // Rounded up: a poll that ends a millisecond early would spin.
        let left = PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
        let mut sockets = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
        match poll(&mut sockets, left) {
            Ok(0) => return Ok(false),
            Ok(_) => break,
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(Failure::from(errno)),
        }
    }
    let mut heard = Vec::with_capacity(1);
    loop {
        heard.clear();
        // Without MSG_TRUNC the rest of a datagram is dropped, which is what is wanted of all of it.
        match retry(|| listener.recv(&mut heard, 0)) {
            Ok(_) => {}
            Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => {}
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return Ok(true),
            Err(e) => return Err(Failure::io(&e)),
        }
    }
}
