//! The settings, made so in the container; and those before, put back.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use cni_types::{Error, IfName, MacAddr, Result};
use net::{Link, LinkChange, Net};

use crate::backup::{Backup, OldValue};
use crate::config::Attributes;
use crate::sysctl::{Found, Setting, duplicated};

/// The container's namespace.
#[derive(Debug)]
pub(crate) struct Container {
    netns: OwnedFd,
    net: Net,
}

impl Container {
    pub(crate) fn enter(netns: BorrowedFd<'_>) -> Result<Container> {
        let kept = netns
            .try_clone_to_owned()
            .map_err(|e| Error::io("cannot keep the network namespace open", &e))?;
        Ok(Container {
            net: Net::enter(netns)?,
            netns: kept,
        })
    }

    /// Looks up what the settings mean here, and the values that there are.
    ///
    /// # Errors
    ///
    /// A sysctl that does not exist, or that two settings mean; what the kernel says.
    pub(crate) fn find_sysctls(&self, settings: &[Setting], ifname: &IfName) -> Result<Vec<Found>> {
        let mut all: Vec<Found> = Vec::new();
        if settings.is_empty() {
            return Ok(all);
        }
        self.with_sysctls(|sysctl| {
            for setting in settings {
                let found = find(sysctl, setting, ifname)?;
                if all.iter().any(|other| other.path == found.path) {
                    return Err(duplicated(&setting.key));
                }
                all.push(found);
            }
            Ok(all)
        })
    }

    pub(crate) fn set_sysctls(&self, sysctls: &[Found]) -> Result<()> {
        if sysctls.is_empty() {
            return Ok(());
        }
        self.with_sysctls(|sysctl| {
            for Found { path, wanted, now } in sysctls {
                match now {
                    Some(_) => _ = sysctl.set(path, wanted)?,
                    None => sysctl.trigger(path, wanted)?,
                }
            }
            Ok(())
        })
    }

    /// The interface. The text of the refusal is the reference's.
    pub(crate) fn link(&mut self, ifname: &IfName) -> Result<Link> {
        self.net
            .link(ifname.as_str())?
            .ok_or_else(|| Error::internal(format!("failed to get {:?}: Link not found", ifname.as_str())))
    }

    /// Changes the interface's attributes, all in one request.
    pub(crate) fn change(&mut self, index: u32, wanted: &Attributes) -> Result<()> {
        let change = LinkChange {
            mac: wanted.mac,
            promiscuous: wanted.promiscuous.then_some(true),
            mtu: wanted.mtu,
            all_multicast: wanted.all_multicast,
            tx_queue_len: wanted.tx_queue_len,
            ..LinkChange::default()
        };
        Ok(self.net.change_link(index, &change)?)
    }

    /// Puts everything back as it was, as far as it is still there.
    ///
    /// # Errors
    ///
    /// All that could not be put back; the rest is.
    pub(crate) fn restore(&mut self, ifname: &IfName, before: &Backup) -> Result<()> {
        let mut failures = Vec::new();
        if let Some(link) = self.net.link(ifname.as_str())? {
            for change in changes_back(before) {
                failures.extend(self.net.change_link(link.index, &change).err().map(Error::from));
            }
        }
        if !before.sysctls().is_empty() {
            failures.extend(self.with_sysctls(|sysctl| Ok(restore_sysctls(sysctl, before.sysctls())))?);
        }
        let mut failures = failures.into_iter();
        let Some(first) = failures.next() else { return Ok(()) };
        Err(failures.fold(first, |all, next| Error {
            msg: format!("{}; {}", all.msg, next.msg),
            ..all
        }))
    }

    /// Runs `f` on all the sysctls of the container. Those outside of ipv4 and ipv6 are only to be had from inside.
    fn with_sysctls<T>(&self, f: impl FnOnce(&net::Sysctl) -> Result<T>) -> Result<T> {
        net::netns::run_in(self.netns.as_fd(), || f(Net::host()?.sysctl()))?
    }
}

fn find(sysctl: &net::Sysctl, setting: &Setting, ifname: &IfName) -> Result<Found> {
    let paths = setting.paths(ifname);
    let found = |path: &str, now: Option<String>| Found {
        path: path.to_owned(),
        wanted: setting.value.clone(),
        now,
    };
    for path in &paths {
        if sysctl.is_write_only(path)? {
            return Ok(found(path, None));
        }
        if let Some(now) = sysctl.get(path)? {
            return Ok(found(path, Some(now)));
        }
    }
    let path = paths.first().map_or("", |path| path);
    Err(Error::config(format!("open /proc/sys/net/{path}: no such file or directory")).with_details(&*setting.key))
}

/// Last first: some sysctls set others too. Those of an interface are gone with it.
fn restore_sysctls(sysctl: &net::Sysctl, before: &[OldValue]) -> Vec<Error> {
    let restore = |OldValue { path, value }: &OldValue| sysctl.set(path, value).err().map(Error::from);
    before.iter().rev().filter_map(restore).collect()
}

/// One change each, so that a driver which refuses one gets the others.
fn changes_back(before: &Backup) -> Vec<LinkChange<'static>> {
    let nothing = LinkChange::default;
    let mac = before.mac.as_deref().and_then(|text| {
        let read = text.parse::<MacAddr>();
        read.inspect_err(|e| log::warn!("{e}; the interface keeps the one it has"))
            .ok()
    });
    [
        mac.map(|mac| LinkChange {
            mac: Some(mac),
            ..nothing()
        }),
        before.promisc.map(|on| LinkChange {
            promiscuous: Some(on),
            ..nothing()
        }),
        before.mtu.map(|mtu| LinkChange {
            mtu: Some(mtu),
            ..nothing()
        }),
        before.allmulti.map(|on| LinkChange {
            all_multicast: Some(on),
            ..nothing()
        }),
        before.tx_q_len.map(|packets| LinkChange {
            tx_queue_len: Some(packets),
            ..nothing()
        }),
    ]
    .into_iter()
    .flatten()
    .collect()
}
