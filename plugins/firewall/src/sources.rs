//! Which attachment made which address a source of which of firewalld's zones.
//!
//! firewalld keeps no owners, so they are kept beside it: in a file per attachment under /run, which a reboot empties as it
//! does firewalld's state. A record says more than firewalld holds, never less: it is written before and removed after.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use cni_types::{Attachment, ContainerId, Error, IfName, NetworkName, Result};

use crate::daemon;

/// Holds `<network>/<containerID>/<ifname>`: a zone and an address a line.
const DIRECTORY: &str = "/run/cni/ferrule-firewalld";

type Source = (String, IpAddr);

/// Whether sources of the attachment are recorded.
pub(crate) fn are_recorded(attachment: &Attachment) -> bool {
    file_of(attachment).exists()
}

/// Makes the attachment's sources exactly these. If that fails, they are what they were before.
pub(crate) fn add(attachment: &Attachment, zone: &str, addresses: &[IpAddr]) -> Result<()> {
    let _lock = netfilter::lock()?;
    let wanted: Vec<Source> = addresses.iter().map(|ip| (zone.to_owned(), *ip)).collect();
    let earlier = read(&file_of(attachment))?;
    let mut held = earlier.clone().unwrap_or_default();
    held.retain(|source| !wanted.contains(source));
    let all: Vec<Source> = held.iter().chain(&wanted).cloned().collect();
    write(attachment, &all)?;
    let added = release(attachment, &held).and_then(|()| daemon::add(zone, addresses));
    match added {
        Ok(()) => write(attachment, &wanted),
        Err(cause) => {
            if let Err(e) = put_back(attachment, &wanted, earlier) {
                log::warn!("firewalld's sources of {attachment} are not what they were: {e}");
            }
            Err(cause)
        }
    }
}

fn put_back(attachment: &Attachment, wanted: &[Source], earlier: Option<Vec<Source>>) -> Result<()> {
    let Some(earlier) = earlier else {
        return release(attachment, wanted).and_then(|()| forget(attachment));
    };
    let mut new = wanted.to_vec();
    new.retain(|source| !earlier.contains(source));
    release(attachment, &new)?;
    for (zone, address) in &earlier {
        daemon::add(zone, &[*address])?;
    }
    write(attachment, &earlier)
}

/// Compares firewalld's sources with what [`add`] would make.
pub(crate) fn check(zone: &str, addresses: &[IpAddr]) -> Result<()> {
    daemon::check(zone, addresses)
}

/// Removes the attachment's sources. Where none are recorded, those are `unrecorded`: the zone and the addresses that the
/// reference suite would have used.
pub(crate) fn del(attachment: &Attachment, unrecorded: Option<(&str, &[IpAddr])>) -> Result<()> {
    let (zone, addresses) = unrecorded.unwrap_or_default();
    if !file_of(attachment).exists() && addresses.is_empty() {
        return Ok(());
    }
    let _lock = netfilter::lock()?;
    let unrecorded = || addresses.iter().map(|ip| (zone.to_owned(), *ip)).collect();
    let sources = read(&file_of(attachment))?.unwrap_or_else(unrecorded);
    release(attachment, &sources)?;
    forget(attachment)
}

/// Removes the sources of every attachment of `network` that is not in `valid`.
pub(crate) fn gc(network: &NetworkName, valid: &BTreeSet<(ContainerId, IfName)>) -> Result<()> {
    let stale = attachments()?.into_iter().filter(|attachment| {
        let name = (attachment.container_id.clone(), attachment.ifname.clone());
        attachment.network == *network && !valid.contains(&name)
    });
    let mut failed = Ok(());
    for attachment in stale {
        // The first failure is reported; the others are its like.
        failed = failed.and(del(&attachment, None));
    }
    failed
}

/// Takes sources from firewalld that no other attachment has.
fn release(attachment: &Attachment, sources: &[Source]) -> Result<()> {
    if sources.is_empty() {
        return Ok(());
    }
    let mut kept = Vec::new();
    for other in attachments()?.into_iter().filter(|other| other != attachment) {
        kept.extend(read(&file_of(&other))?.unwrap_or_default());
    }
    let mut gone = sources.to_vec();
    gone.retain(|source| !kept.contains(source));
    daemon::remove(&gone)
}

fn file_of(attachment: &Attachment) -> PathBuf {
    let network = Path::new(DIRECTORY).join(attachment.network.as_str());
    network
        .join(attachment.container_id.as_str())
        .join(attachment.ifname.as_str())
}

/// The sources that a record names; `None` without a record. Lines that are none are passed over.
fn read(file: &Path) -> Result<Option<Vec<Source>>> {
    let text = match fs::read_to_string(file) {
        Ok(text) => text,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Error::io(file.display(), &e)),
    };
    let sources = text.lines().filter_map(|line| {
        let (zone, address) = line.rsplit_once(' ')?;
        Some((zone.to_owned(), address.parse().ok()?))
    });
    Ok(Some(sources.collect()))
}

fn write(attachment: &Attachment, sources: &[Source]) -> Result<()> {
    let file = file_of(attachment);
    let failed = |e: std::io::Error| Error::io(file.display(), &e);
    let text: String = sources.iter().map(|(zone, ip)| format!("{zone} {ip}\n")).collect();
    if let Some(directory) = file.parent() {
        fs::create_dir_all(directory).map_err(failed)?;
    }
    // A name that is too long for an interface, so that nobody takes it for a record.
    let draft = file.with_file_name(format!("{}.is-being-written", attachment.ifname));
    fs::write(&draft, text).map_err(failed)?;
    fs::rename(&draft, &file).map_err(failed)
}

fn forget(attachment: &Attachment) -> Result<()> {
    let file = file_of(attachment);
    match fs::remove_file(&file) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(Error::io(file.display(), &e)),
        _ => {}
    }
    // Fails as long as others have records there, and then it should.
    let above = file.ancestors().skip(1).take_while(|path| path.starts_with(DIRECTORY));
    let _ = above.map(fs::remove_dir).find(std::io::Result::is_err);
    Ok(())
}

/// The attachments that have a record.
fn attachments() -> Result<Vec<Attachment>> {
    let mut found = Vec::new();
    for (network, path) in entries::<NetworkName>(Path::new(DIRECTORY))? {
        for (container_id, path) in entries::<ContainerId>(&path)? {
            for (ifname, _) in entries::<IfName>(&path)? {
                found.push(Attachment {
                    network: network.clone(),
                    container_id: container_id.clone(),
                    ifname,
                });
            }
        }
    }
    Ok(found)
}

/// The entries of a directory whose names are names; none where there is no directory.
fn entries<T: std::str::FromStr>(directory: &Path) -> Result<Vec<(T, PathBuf)>> {
    let failed = |e: std::io::Error| Error::io(directory.display(), &e);
    let listed = match fs::read_dir(directory) {
        Ok(listed) => listed,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(failed(e)),
    };
    let mut found = Vec::new();
    for entry in listed {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_str().and_then(|name| name.parse().ok());
        found.extend(name.map(|name| (name, entry.path())));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attachment(container: &str, ifname: &str) -> Attachment {
        Attachment {
            network: "net1".parse().unwrap(),
            container_id: container.parse().unwrap(),
            ifname: ifname.parse().unwrap(),
        }
    }

    fn source(zone: &str, ip: &str) -> Source {
        (zone.to_owned(), ip.parse().unwrap())
    }

    #[test]
    fn a_record_is_read_back_and_goes_without_a_trace() {
        testkit::world(|_| {
            let (one, two) = (attachment("c1", "eth0"), attachment("c1", "eth1"));
            let sources = [source("a zone", "10.1.0.2"), source("trusted", "fd00::2")];
            write(&one, &sources).unwrap();
            write(&two, &sources).unwrap();
            fs::write(file_of(&one).with_file_name("eth0.is-being-written"), "draft").unwrap();
            assert_eq!(read(&file_of(&one)).unwrap().unwrap(), sources);
            let mut found = attachments().unwrap();
            found.sort_by(|a, b| a.ifname.cmp(&b.ifname));
            assert_eq!(found, [one.clone(), two.clone()]);
            fs::remove_file(file_of(&one).with_file_name("eth0.is-being-written")).unwrap();
            forget(&one).unwrap();
            assert_eq!(attachments().unwrap(), std::slice::from_ref(&two));
            forget(&two).unwrap();
            forget(&two).unwrap();
            assert!(!Path::new(DIRECTORY).exists());
        });
    }

    #[test]
    fn what_is_no_source_is_passed_over() {
        testkit::world(|_| {
            let one = attachment("c1", "eth0");
            assert_eq!(read(&file_of(&one)).unwrap(), None);
            write(&one, &[source("trusted", "10.1.0.2")]).unwrap();
            let text = "x\n\ntrusted 10.1.0.2\ntrusted ten\n";
            fs::write(file_of(&one), text).unwrap();
            assert_eq!(read(&file_of(&one)).unwrap().unwrap(), [source("trusted", "10.1.0.2")]);
        });
    }
}
