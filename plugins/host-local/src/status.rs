//! STATUS: could an ADD have an address now?

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use cni_types::{Code, Error, NetworkName, Result};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::{AccessFlags, faccessat};

use crate::config::{Config, Reclaim};
use crate::ledger::{Fate, Ledger};
use crate::plan::{check_requested, next_free};
use crate::range::{Family, RangeSet};
use crate::reservation::Content;
use crate::store::{Found, Network};

/// Tells whether an ADD could be served, without changing anything.
///
/// A runtime that hears of an error takes the whole node out of service: containerd 2 reports NetworkReady false, and
/// kubelet then NotReady, with this message.
///
/// # Errors
/// [`Code::NOT_AVAILABLE`]: every range set of some family is exhausted, or the directory cannot be written.
pub(crate) fn status(config: &Config, name: &NetworkName) -> Result<()> {
    let not_available = |e: Error| Error {
        code: Code::NOT_AVAILABLE,
        ..e
    };
    writable(&config.data_dir.join(name.as_str())).map_err(not_available)?;
    let network = Network::read_only(&config.data_dir, name).map_err(not_available)?;
    let mut ledger = network.map(Ledger::open);

    let mut exhausted = BTreeMap::<Family, Vec<String>>::new();
    let mut available = BTreeSet::new();
    for set in &config.sets {
        match ledger
            .as_mut()
            .map(|ledger| shortage(ledger, config, set))
            .transpose()
            .map_err(not_available)?
            .flatten()
        {
            None if set.size() > 0 => drop(available.insert(set.family())),
            None => exhausted
                .entry(set.family())
                .or_default()
                .push(format!("{set}: no usable address")),
            Some(counts) => exhausted.entry(set.family()).or_default().push(counts),
        }
    }
    exhausted.retain(|family, _| !available.contains(family));
    let Some(counts) = exhausted.into_values().next() else {
        return Ok(());
    };
    let msg = format!("no IP addresses available on network {name}");
    Err(Error::new(Code::NOT_AVAILABLE, msg).with_details(counts.join("; ")))
}

/// The numbers of a range set in which an ADD would find nothing, or `None` if it would.
fn shortage(ledger: &mut Ledger, config: &Config, set: &RangeSet) -> Result<Option<String>> {
    if next_free(set, None, &mut ledger.held())?.is_some() {
        return Ok(None);
    }
    ledger.walk()?;
    if next_free(set, None, &mut ledger.held())?.is_some() {
        return Ok(None);
    }
    let in_set = |found: &Found| {
        let usable = |ip| check_requested(set, ip).is_ok();
        found.content != Content::Blank && found.ip.is_some_and(usable)
    };
    let held: Vec<Found> = ledger.walk()?.iter().filter(|found| in_set(found)).cloned().collect();
    let reclaimable = |found: &Found| config.reclaim != Reclaim::Never && ledger.fate(found) != Fate::MayExist;
    if held.iter().any(reclaimable) {
        return Ok(None);
    }
    Ok(Some(format!(
        "{set}: {} addresses, {} held, 0 that can be taken back",
        set.size(),
        held.len()
    )))
}

/// Whether files could be made in a directory, or the directory itself.
fn writable(path: &Path) -> Result<()> {
    // The nearest directory that exists: ADD makes the rest.
    let mut nearest = path;
    while let (Err(Errno::ENOENT), Some(parent)) = (access(nearest, AccessFlags::F_OK), nearest.parent()) {
        nearest = if parent.as_os_str().is_empty() {
            Path::new(".")
        } else {
            parent
        };
    }
    let unusable = |why: String| Error::new(Code::IO_FAILURE, format!("{} cannot be written: {why}", path.display()));
    if !nearest.is_dir() {
        return Err(unusable(format!("{} is no directory", nearest.display())));
    }
    access(nearest, AccessFlags::W_OK | AccessFlags::X_OK)
        .map_err(|e| unusable(format!("{}: {}", nearest.display(), e.desc())))?;
    let stat = statvfs(nearest).map_err(|e| unusable(e.desc().to_owned()))?;
    if stat.flags().contains(FsFlags::ST_RDONLY) {
        return Err(unusable("its file system is read-only".to_owned()));
    }
    // File systems that count neither blocks nor files say zero of both.
    if stat.blocks() > 0 && stat.blocks_available() == 0 {
        return Err(unusable("its file system is full".to_owned()));
    }
    if stat.files() > 0 && stat.files_available() == 0 {
        return Err(unusable("its file system has no free inode".to_owned()));
    }
    Ok(())
}

fn access(path: &Path, mode: AccessFlags) -> nix::Result<()> {
    faccessat(AT_FDCWD, path, mode, AtFlags::AT_EACCESS)
}
