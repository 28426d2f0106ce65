//! What there was before ADD, kept in a file of the reference's name and form for DEL to put back.
//!
//! The reference keeps the attributes of the interface. The values of sysctls, and whose file it is, are kept beside them
//! under a key that the reference does not look at, so that either suite's DEL reads either suite's file.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use cni_types::{Attachment, Error, NetworkName, Result, ValidAttachments, wire};
use net::Link;
use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::sysctl::Found;

/// The values before ADD of what it was to set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Backup {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mac: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) promisc: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mtu: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) allmulti: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tx_q_len: Option<u32>,
    /// Missing from the reference's files.
    #[serde(skip_serializing_if = "Option::is_none")]
    ferrule: Option<Ours>,
}

/// What only we keep.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Ours {
    network: String,
    #[serde(rename = "containerID")]
    container_id: String,
    ifname: String,
    /// In the order in which they were set.
    sysctl: Vec<OldValue>,
}

/// The value of a sysctl.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OldValue {
    /// Below /proc/sys/net.
    pub(crate) path: String,
    pub(crate) value: String,
}

impl Backup {
    /// What `config` is about to change; `link` is the container's interface where it changes that.
    pub(crate) fn of(attachment: &Attachment, config: &Config, link: Option<&Link>, sysctls: &[Found]) -> Backup {
        let wanted = &config.attributes;
        // What can only be written has no value to put back.
        let old = |Found { path, now, .. }: &Found| {
            Some(OldValue {
                path: path.clone(),
                value: now.clone()?,
            })
        };
        let mut backup = Backup {
            ferrule: Some(Ours {
                network: attachment.network.to_string(),
                container_id: attachment.container_id.to_string(),
                ifname: attachment.ifname.to_string(),
                sysctl: sysctls.iter().filter_map(old).collect(),
            }),
            ..Backup::default()
        };
        if let Some(link) = link {
            backup.mac = wanted.mac.and(link.mac).map(|mac| mac.to_string());
            backup.promisc = wanted.promiscuous.then_some(link.promiscuous);
            backup.mtu = wanted.mtu.map(|_| link.mtu);
            backup.allmulti = wanted.all_multicast.map(|_| link.all_multicast);
            backup.tx_q_len = wanted.tx_queue_len.map(|_| link.tx_queue_len);
        }
        backup
    }

    /// Whether this is known to be the attachment's own: the reference's file names leave the network out, and join the other
    /// two with a character that both may contain.
    pub(crate) fn is_of(&self, attachment: &Attachment) -> bool {
        self.ferrule.as_ref().is_some_and(|ours| {
            ours.network == attachment.network.as_str()
                && ours.container_id == attachment.container_id.as_str()
                && ours.ifname == attachment.ifname.as_str()
        })
    }

    /// Whether nobody else may be meant: see [`Backup::is_of`].
    fn may_be_of(&self, attachment: &Attachment) -> bool {
        self.ferrule.is_none() || self.is_of(attachment)
    }

    /// The values of sysctls, in the order in which they were set.
    pub(crate) fn sysctls(&self) -> &[OldValue] {
        self.ferrule.as_ref().map_or(&[], |ours| &ours.sysctl)
    }

    /// Adds what `later` knows and this does not: of a chain with two tunings, the first saw what there was.
    #[must_use]
    pub(crate) fn or(mut self, later: &Backup) -> Backup {
        if let Some(ours) = &mut self.ferrule {
            let is_new = |old: &&OldValue| !ours.sysctl.iter().any(|known| known.path == old.path);
            let new: Vec<OldValue> = later.sysctls().iter().filter(is_new).cloned().collect();
            ours.sysctl.extend(new);
        }
        Backup {
            mac: self.mac.or_else(|| later.mac.clone()),
            promisc: self.promisc.or(later.promisc),
            mtu: self.mtu.or(later.mtu),
            allmulti: self.allmulti.or(later.allmulti),
            tx_q_len: self.tx_q_len.or(later.tx_q_len),
            ferrule: self.ferrule,
        }
    }
}

/// The directory of backups.
#[derive(Debug, Clone)]
pub(crate) struct Store(PathBuf);

impl Store {
    pub(crate) fn new(directory: &Path) -> Store {
        Store(directory.to_owned())
    }

    fn file(&self, attachment: &Attachment) -> PathBuf {
        self.0
            .join(format!("{}_{}.json", attachment.container_id, attachment.ifname))
    }

    /// The attachment's backup, if there is one. One that cannot be read as such holds nothing.
    pub(crate) fn read(&self, attachment: &Attachment) -> Result<Option<Backup>> {
        let file = self.file(attachment);
        let Some(backup) = read(&file)? else { return Ok(None) };
        let backup = backup.unwrap_or_else(|e| {
            log::warn!("{} holds no settings to restore: {e}", file.display());
            Backup::default()
        });
        Ok(Some(backup).filter(|backup| backup.may_be_of(attachment)))
    }

    /// Keeps a backup: all of it or, should we die, none.
    pub(crate) fn write(&self, attachment: &Attachment, backup: &Backup) -> Result<()> {
        let file = self.file(attachment);
        let text = serde_json::to_vec_pretty(backup).map_err(|e| Error::internal(format!("backup: {e}")))?;
        let new = unfinished(&file);
        let written = DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(&self.0)
            .and_then(|()| create(&new)?.write_all(&text))
            .and_then(|()| fs::rename(&new, &file));
        written.map_err(|e| {
            // What of it may be there is no use to anybody, and the failure to tell of is the first.
            let _ = fs::remove_file(&new);
            Error::io(format!("cannot keep the settings before ADD in {}", file.display()), &e)
        })
    }

    /// Removes the attachment's backup.
    pub(crate) fn remove(&self, attachment: &Attachment) -> Result<()> {
        self.remove_unfinished(attachment)?;
        remove(&self.file(attachment))
    }

    /// Removes what an ADD left that died while it wrote the backup. It had set nothing yet.
    pub(crate) fn remove_unfinished(&self, attachment: &Attachment) -> Result<()> {
        remove(&unfinished(&self.file(attachment)))
    }

    /// Removes the backups of the network's attachments that are not valid. What names no network stays.
    pub(crate) fn collect(&self, network: &NetworkName, valid: &ValidAttachments) -> Result<()> {
        let failed = |e: io::Error| Error::io(self.0.display(), &e);
        let entries = match fs::read_dir(&self.0) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            entries => entries.map_err(failed)?,
        };
        for entry in entries {
            let entry = entry.map_err(failed)?;
            let is_garbage = |backup: Backup| backup.ferrule.is_some_and(|ours| ours.is_garbage(network, valid));
            if entry.file_type().map_err(failed)?.is_file()
                && let Some(Ok(backup)) = read(&entry.path())?
                && is_garbage(backup)
            {
                remove(&entry.path())?;
            }
        }
        Ok(())
    }
}

impl Ours {
    fn is_garbage(&self, network: &NetworkName, valid: &ValidAttachments) -> bool {
        let is_own = |(id, ifname): &(cni_types::ContainerId, cni_types::IfName)| {
            id.as_str() == self.container_id && ifname.as_str() == self.ifname
        };
        self.network == network.as_str() && !valid.iter().any(is_own)
    }
}

/// The name under which a file is written, before it gets its own.
fn unfinished(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

fn create(file: &Path) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(file)
}

/// The outer failure is of reading the file, the inner one of understanding it.
fn read(file: &Path) -> Result<Option<Result<Backup>>> {
    match fs::read(file) {
        Ok(bytes) => Ok(Some(wire::parse(&bytes).and_then(|value| Ok(wire::decode(&value)?)))),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Error::io(file.display(), &e)),
    }
}

fn remove(file: &Path) -> Result<()> {
    match fs::remove_file(file) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(Error::io(file.display(), &e)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attachment(container: &str, ifname: &str) -> Attachment {
        Attachment {
            network: "n".parse().unwrap(),
            container_id: container.parse().unwrap(),
            ifname: ifname.parse().unwrap(),
        }
    }

    fn backup(attachment: &Attachment, mtu: Option<u32>, sysctls: &[(&str, &str)]) -> Backup {
        let old = |&(path, value): &(&str, &str)| Found {
            path: path.into(),
            wanted: "9".into(),
            now: Some(value.into()),
        };
        let config = Config {
            sysctls: vec![],
            attributes: Default::default(),
            data_dir: "/".into(),
        };
        let sysctls: Vec<Found> = sysctls.iter().map(old).collect();
        Backup {
            mtu,
            ..Backup::of(attachment, &config, None, &sysctls)
        }
    }

    /// A store in a directory of its own, which does not exist yet.
    fn in_store(test: impl FnOnce(&Store)) {
        static SERIAL: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let serial = SERIAL.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("ferrule-tuning-{}-{serial}", std::process::id()));
        test(&Store::new(&directory));
        fs::remove_dir_all(directory).unwrap();
    }

    fn names(store: &Store) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(&store.0)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn what_is_kept_is_read_back() {
        in_store(|store| {
            let owner = attachment("c", "eth0");
            let kept = backup(&owner, Some(1500), &[("ipv4/ip_forward", "0")]);
            assert_eq!(store.read(&owner), Ok(None));
            store.write(&owner, &kept).unwrap();
            assert_eq!(store.read(&owner), Ok(Some(kept)));
            assert_eq!(names(store), ["c_eth0.json"]);
            store.remove(&owner).unwrap();
            store.remove(&owner).unwrap();
            assert_eq!(names(store), [""; 0]);
        });
    }

    #[test]
    fn files_of_the_reference_are_read_and_rubbish_holds_nothing() {
        in_store(|store| {
            fs::create_dir_all(&store.0).unwrap();
            let owner = attachment("c", "eth0");
            let write = |text: &str| fs::write(store.file(&owner), text).unwrap();
            write(
                "{\n \"mac\": \"4e:90:c1:c9:e6:b1\",\n \"promisc\": false,\n \"mtu\": 1500,\n \"allmulti\": false,\n \"txQLen\": 1000\n}",
            );
            let expected = Backup {
                mac: Some("4e:90:c1:c9:e6:b1".into()),
                promisc: Some(false),
                mtu: Some(1500),
                allmulti: Some(false),
                tx_q_len: Some(1000),
                ferrule: None,
            };
            assert_eq!(store.read(&owner), Ok(Some(expected)));
            for rubbish in ["rubbish", "", r#"{"mtu":"x"}"#, "[]"] {
                write(rubbish);
                assert_eq!(store.read(&owner), Ok(Some(Backup::default())), "{rubbish}");
            }
        });
    }

    #[test]
    fn a_name_that_two_attachments_share_is_one_ones() {
        in_store(|store| {
            let (one, other) = (attachment("a_b", "c"), attachment("a", "b_c"));
            store.write(&one, &backup(&one, None, &[])).unwrap();
            assert!(store.read(&one).unwrap().is_some());
            assert_eq!(store.read(&other), Ok(None));
        });
    }

    #[test]
    fn gc_takes_only_what_is_the_networks_and_not_valid() {
        in_store(|store| {
            let (valid, gone) = (attachment("c", "eth0"), attachment("c", "eth1"));
            let foreign = Attachment {
                network: "other".parse().unwrap(),
                ..attachment("d", "eth0")
            };
            for owner in [&valid, &gone, &foreign] {
                store.write(owner, &backup(owner, None, &[])).unwrap();
            }
            fs::write(store.0.join("e_eth0.json"), r#"{"mtu":1500}"#).unwrap();
            fs::write(store.0.join("f_eth0.json"), "rubbish").unwrap();
            fs::create_dir(store.0.join("directory")).unwrap();
            let keep = ValidAttachments::from([(valid.container_id.clone(), valid.ifname.clone())]);
            store.collect(&valid.network, &keep).unwrap();
            let left = ["c_eth0.json", "d_eth0.json", "directory", "e_eth0.json", "f_eth0.json"];
            assert_eq!(names(store), left);
            Store::new(Path::new("/nonexistent"))
                .collect(&valid.network, &keep)
                .unwrap();
        });
    }

    #[test]
    fn the_first_of_two_saw_what_there_was() {
        let owner = attachment("c", "eth0");
        let first = backup(&owner, Some(1500), &[("a", "0")]);
        let second = Backup {
            promisc: Some(false),
            ..backup(&owner, Some(1400), &[("a", "1"), ("b", "2")])
        };
        let expected = Backup {
            promisc: Some(false),
            ..backup(&owner, Some(1500), &[("a", "0"), ("b", "2")])
        };
        assert_eq!(first.or(&second), expected);
    }
}
