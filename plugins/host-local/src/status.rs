//! STATUS: could an ADD have an address now?

use std::collections::BTreeSet;
use std::path::Path;

use cni_types::{Code, Error, NetworkName, Result};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::{AccessFlags, faccessat};

use crate::config::Config;
use crate::plan::{Taken, next_free};
use crate::range::{Family, RangeSet};
use crate::store::Network;

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
    let found = network
        .map(|network| network.walk())
        .transpose()
        .map_err(not_available)?
        .unwrap_or_default();
    let mut taken = Taken::of(&found);

    let mut exhausted = BTreeSet::new();
    let mut alive = BTreeSet::new();
    for set in &config.sets {
        let free = next_free(set, None, &mut taken)?;
        if free.is_some() { &mut alive } else { &mut exhausted }.insert(set.family());
    }
    let Some(family) = exhausted.difference(&alive).next() else {
        return Ok(());
    };
    Err(Error::new(
        Code::NOT_AVAILABLE,
        format!("no IP addresses available on network {name}"),
    )
    .with_details(counts(&config.sets, *family)))
}

fn counts(sets: &[RangeSet], family: Family) -> String {
    let of_family = sets.iter().filter(|set| set.family() == family);
    let count = |set: &RangeSet| format!("{set}: all {} in use", set.size());
    of_family.map(count).collect::<Vec<_>>().join("; ")
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
