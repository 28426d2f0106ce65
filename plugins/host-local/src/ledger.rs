//! A network's reservations: answered from the cache as long as that is current, else from the directory itself.
//!
//! Every change goes to the files first and then to the cache. A cache that fails or turns out wrong is put aside,
//! which costs time and nothing else.

use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use cni_types::{Attachment, Result};

use crate::cache::{Cache, Record, Seal};
use crate::plan::{Held, Taken};
use crate::range::{Bits, Family};
use crate::reservation::{Claim, Content, owner_text};
use crate::store::{Found, Network, Reserved};
use identity::{Existence, Here, Namespaces, NetnsIdentity};

/// A network, locked, and what is reserved in it.
pub(crate) struct Ledger {
    network: Network,
    cache: Option<Cache>,
    /// The cache has been told of changes since it was sealed, or is new.
    unsealed: bool,
    /// All reservations, once the directory has been read.
    walked: Option<Vec<Found>>,
    here: Here,
    namespaces: Namespaces,
}

/// Who is known to stand behind a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The attachment may exist.
    MayExist,
    /// It was made, or seen, before this boot: its container is gone.
    EarlierBoot,
    /// Its network namespace is gone.
    NamespaceGone,
}

impl Fate {
    /// Why an address can be taken back, for people.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Fate::MayExist => "its attachment may exist",
            Fate::EarlierBoot => "it is from before the last boot",
            Fate::NamespaceGone => "its network namespace is gone",
        }
    }
}

impl Ledger {
    /// Takes up the reservations of a network.
    pub(crate) fn open(network: Network) -> Ledger {
        let here = Here::look();
        let seal = |directory| here.boot.map(|boot| Seal { directory, boot });
        let cache = match (network.scratch(), network.stamp().and_then(seal)) {
            (Some(directory), Some(seal)) => usable("opened", Cache::open_current(directory, &seal)).flatten(),
            _ => None,
        };
        Ledger {
            network,
            cache,
            unsealed: false,
            walked: None,
            here,
            namespaces: Namespaces::default(),
        }
    }

    /// Reads the directory, unless that was done already, and makes the cache anew if there is no current one.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub(crate) fn walk(&mut self) -> Result<&mut Vec<Found>> {
        let found = match self.walked.take() {
            Some(found) => found,
            None => self.read_directory()?,
        };
        Ok(self.walked.insert(found))
    }

    fn read_directory(&mut self) -> Result<Vec<Found>> {
        let found = self.network.walk()?;
        if self.network.is_writable() && self.network.is_local() {
            let here = self.here;
            if self.cache.is_some() {
                with(&mut self.cache, |cache| cache.note_seen(&found, &here));
            } else if let Some(directory) = self.network.scratch() {
                self.cache = usable("made", Cache::rebuild(directory, &found, &here));
                self.unsealed = self.cache.is_some();
            }
        }
        Ok(found)
    }

    /// Puts a cache aside that has turned out wrong; the next question reads the directory.
    pub(crate) fn distrust_cache(&mut self) {
        if self.walked.is_none() {
            self.cache = None;
        }
    }

    /// Whether answers come from the directory itself.
    pub(crate) fn is_walked(&self) -> bool {
        self.walked.is_some()
    }

    /// The files of an attachment: those that name it, or if there is none those that name its container alone.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub(crate) fn of_attachment(&mut self, attachment: &Attachment) -> Result<Vec<Found>> {
        if self.walked.is_none()
            && let Some(found) = self.cached_of_attachment(attachment)?
        {
            return Ok(found);
        }
        let found = self.walk()?;
        let of = |wanted: Claim| -> Vec<Found> {
            found
                .iter()
                .filter(|found| found.content.claim(attachment) == wanted)
                .cloned()
                .collect()
        };
        let exact = of(Claim::Exact);
        Ok(if exact.is_empty() { of(Claim::IdOnly) } else { exact })
    }

    /// What the cache says, each file read; `None` if the cache knows nothing or is wrong.
    fn cached_of_attachment(&mut self, attachment: &Attachment) -> Result<Option<Vec<Found>>> {
        let exact = owner_text(&attachment.container_id, &attachment.ifname);
        for (owner, claim) in [
            (exact.as_str(), Claim::Exact),
            (attachment.container_id.as_str(), Claim::IdOnly),
        ] {
            let Some(cache) = &self.cache else { return Ok(None) };
            let Some(addresses) = usable("read", cache.addresses_of(owner.as_bytes())).flatten() else {
                return Ok(None);
            };
            let mut found = Vec::with_capacity(addresses.len());
            for ip in &addresses {
                match self.network.read(&ip.to_string()) {
                    Some(file) if file.content.claim(attachment) == claim => found.push(file),
                    _ => {
                        self.distrust_cache();
                        return Ok(None);
                    }
                }
            }
            if !found.is_empty() {
                return Ok(Some(found));
            }
        }
        Ok(Some(Vec::new()))
    }

    /// What is held, for the search of free addresses.
    pub(crate) fn held(&mut self) -> View<'_> {
        match (&self.walked, &mut self.cache) {
            (None, Some(cache)) => View::Cached {
                network: &self.network,
                cache,
            },
            (found, _) => View::Walked(Taken::of(found.as_deref().unwrap_or_default())),
        }
    }

    /// The address that a range set gave last.
    pub(crate) fn cursor(&self, set: usize) -> Option<IpAddr> {
        self.network.cursor(set)
    }

    /// Reserves addresses, each with the number of its range set: all or nothing.
    ///
    /// # Errors
    /// Those of [`Network::reserve`]; nothing is reserved then.
    pub(crate) fn reserve(
        &mut self,
        attachment: &Attachment,
        netns: Option<NetnsIdentity>,
        chosen: &[(usize, IpAddr)],
    ) -> Result<Reserved> {
        let here = self.here;
        let cache = &mut self.cache;
        let reserved = self.network.reserve(attachment, chosen, |ip, stamp| {
            let record = Record::made(stamp, here, netns.clone());
            with(cache, |cache| cache.set_record(ip, &record));
        });
        let owner = owner_text(&attachment.container_id, &attachment.ifname);
        match &reserved {
            Ok(_) => chosen
                .iter()
                .for_each(|(_, ip)| self.tell(|cache| cache.insert(*ip, owner.as_bytes()))),
            // Something may have been there for a moment.
            Err(_) => self.cache = None,
        }
        reserved
    }

    /// Removes a reservation.
    ///
    /// # Errors
    /// It is still there.
    pub(crate) fn release(&mut self, found: &Found) -> Result<()> {
        self.network.release(&found.name)?;
        if let (Some(ip), Content::Owner(owner)) = (found.ip, &found.content) {
            self.tell(|cache| cache.remove(ip, owner));
        }
        if let Some(walked) = &mut self.walked {
            walked.retain(|other| other.name != found.name);
        }
        Ok(())
    }

    /// Whether somebody may still stand behind a reservation.
    ///
    /// When in doubt, he does: nothing is known about the file, or it is another now; the directory may be shared with
    /// other machines; our own namespaces are others than then, so that other processes and mounts are seen.
    pub(crate) fn fate(&mut self, found: &Found) -> Fate {
        let here = self.here;
        let Some(record) = self.record(found).filter(|_| self.network.is_local()) else {
            return Fate::MayExist;
        };
        if !record.here.same_machine(&here) {
            return Fate::MayExist;
        }
        if record.here.another_boot(&here) {
            return Fate::EarlierBoot;
        }
        match record.netns {
            Some(netns) if record.is_made() && record.here.same_boot(&here) && record.here.same_view(&here) => {
                if self.namespaces.look_for(&netns) != Existence::Gone {
                    Fate::MayExist
                } else {
                    Fate::NamespaceGone
                }
            }
            _ => Fate::MayExist,
        }
    }

    fn record(&mut self, found: &Found) -> Option<Record> {
        let (ip, stamp) = found.ip.zip(found.stamp)?;
        let record = match &mut self.cache {
            Some(cache) => cache.record(ip),
            // Records are right without the rest.
            None => Cache::record_in(self.network.scratch()?, ip),
        };
        usable("read", record)
            .flatten()
            .filter(|record| record.is_about(&stamp))
    }

    /// Tells the cache of a change.
    fn tell(&mut self, change: impl FnOnce(&mut Cache) -> io::Result<()>) {
        self.unsealed = true;
        with(&mut self.cache, change);
    }
}

impl Drop for Ledger {
    /// Seals the cache: the last thing before the lock goes.
    fn drop(&mut self) {
        if let Some(cache) = self.cache.take_if(|_| self.unsealed)
            && let Some(boot) = self.here.boot
            && let Some(directory) = self.network.seal()
        {
            usable("sealed", cache.seal(&Seal { directory, boot }));
        }
    }
}

/// What is held, from one of two sources.
pub(crate) enum View<'a> {
    /// The cache, which is current.
    Cached { network: &'a Network, cache: &'a mut Cache },
    /// The directory as it was read.
    Walked(Taken<'a>),
}

impl Held for View<'_> {
    fn first_free(&mut self, family: Family, within: RangeInclusive<Bits>) -> Result<Option<Bits>> {
        match self {
            // A cache that fails knows no free address: then the directory is read.
            View::Cached { cache, .. } => Ok(usable("read", cache.first_free(family, within)).flatten()),
            View::Walked(taken) => taken.first_free(family, within),
        }
    }

    fn holder(&self, ip: IpAddr) -> String {
        match self {
            View::Cached { network, .. } => network
                .read(&ip.to_string())
                .map(|found| found.describe())
                .unwrap_or_default(),
            View::Walked(taken) => taken.holder(ip),
        }
    }
}

/// Changes the cache, which is put aside if that fails.
fn with(cache: &mut Option<Cache>, change: impl FnOnce(&mut Cache) -> io::Result<()>) {
    if let Some(open) = cache
        && usable("written", change(open)).is_none()
    {
        *cache = None;
    }
}

/// The cache may fail: whatever it would have saved is done the long way.
fn usable<T>(what: &str, outcome: io::Result<T>) -> Option<T> {
    outcome
        .inspect_err(|e| log::debug!("the cache could not be {what}: {e}"))
        .ok()
}
