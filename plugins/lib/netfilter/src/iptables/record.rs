//! Which attachment owns which rule.
//!
//! The reference's chains and comments name the network and the container but not the interface, and they must stay as
//! they are: a rollback deletes them by their exact text. So ownership is kept beside the rules, in one file per
//! container and network under /run, which a reboot empties as it does the kernel's tables. A chain of our own in the
//! nat table would do too, but a rollback to the reference would leave it there for ever, and every reader of the table
//! (nerdctl, kube-proxy, people) would meet chains that mean nothing.
//!
//! A record says more than the kernel holds, never less: it is written before the rules and shortened after them. Only
//! the holder of the netfilter lock reads or writes one.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use cni_types::{ContainerId, Error, IfName, NetworkName, Result};
use serde::{Deserialize, Serialize};

use super::names;
use super::rule::Rule;
use super::saved::Table;
use crate::Family;

const DIRECTORY: &str = "/run/cni/ferrule-iptables";
/// A record before it takes its place. No network has such a name.
const DRAFT: &str = ".draft";

/// What rules are for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Feature {
    Portmap,
    Masquerade,
    Firewall,
}

impl Feature {
    /// The table that holds the rules.
    pub(super) fn table(self) -> Table {
        match self {
            Feature::Portmap | Feature::Masquerade => Table::Nat,
            Feature::Firewall => Table::Filter,
        }
    }
}

/// One rule of one attachment, as the kernel shows it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct OwnedRule {
    pub(super) family: Family,
    pub(super) chain: String,
    pub(super) rule: Rule,
}

/// What one attachment owns for one feature.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Holding {
    pub(super) rules: Vec<OwnedRule>,
    /// The container's network namespace, as [`crate::portmap::Published::netns`] had it.
    pub(super) netns: Option<String>,
}

impl Holding {
    /// The chains that the rules of a family are in.
    pub(super) fn chains(&self, family: Family) -> Vec<String> {
        let of_family = self.rules.iter().filter(|own| own.family == family);
        let mut chains: Vec<String> = of_family.map(|own| own.chain.clone()).collect();
        chains.sort();
        chains.dedup();
        chains
    }

    /// Whether the rule is among these.
    pub(super) fn contains(&self, family: Family, chain: &str, rule: &Rule) -> bool {
        self.rules
            .iter()
            .any(|own| own.family == family && own.chain == chain && own.rule == *rule)
    }
}

/// What the attachments of one container to one network own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Record {
    pub(super) network: NetworkName,
    pub(super) container: ContainerId,
    holdings: BTreeMap<(String, Feature), Holding>,
}

impl Record {
    /// Reads the record of a container on a network; without one, nothing is owned.
    ///
    /// A record that cannot be understood counts as none, with a warning: then everything in the container's chains
    /// belongs to whichever attachment asks first, as with the reference.
    pub(super) fn load(network: &NetworkName, container: &ContainerId) -> Result<Record> {
        let file = path_of(network, container);
        let record = match fs::read(&file) {
            Ok(bytes) => Record::decode(&bytes, network).filter(|record| record.container == *container),
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Record::empty(network, container)),
            Err(e) => return Err(Error::io(file.display(), &e)),
        };
        Ok(record.unwrap_or_else(|| {
            log::warn!("{}: not understood and left out", file.display());
            Record::empty(network, container)
        }))
    }

    /// The records of every container on a network.
    pub(super) fn load_network(network: &NetworkName) -> Result<Vec<Record>> {
        let mut records = Vec::new();
        for file in entries(&directory_of(network))? {
            if file.extension().is_none_or(|extension| extension != "json") {
                // The draft of a process that was killed.
                continue;
            }
            let bytes = match fs::read(&file) {
                Ok(bytes) => bytes,
                // Whoever only looks may come between.
                Err(e) if e.kind() == ErrorKind::NotFound => continue,
                Err(e) => return Err(Error::io(file.display(), &e)),
            };
            records.extend(Record::decode(&bytes, network));
        }
        Ok(records)
    }

    fn empty(network: &NetworkName, container: &ContainerId) -> Record {
        Record {
            network: network.clone(),
            container: container.clone(),
            holdings: BTreeMap::new(),
        }
    }

    /// The records of all containers on all networks.
    pub(super) fn load_all() -> Result<Vec<Record>> {
        let mut records = Vec::new();
        for entry in entries(Path::new(DIRECTORY))? {
            // No other than a network has a directory here.
            let name = entry.file_name().and_then(|name| name.to_str()?.parse().ok());
            if let Some(network) = name {
                records.extend(Record::load_network(&network)?);
            }
        }
        Ok(records)
    }

    /// Writes the record, or removes its file where nothing is owned any more.
    pub(super) fn store(&self) -> Result<()> {
        let file = path_of(&self.network, &self.container);
        let failed = |e: std::io::Error| Error::io(file.display(), &e);
        if self.holdings.is_empty() {
            return match fs::remove_file(&file) {
                Err(e) if e.kind() != ErrorKind::NotFound => Err(failed(e)),
                _ => {
                    // Fails as long as other containers have records there, and then it should.
                    let _ = fs::remove_dir(directory_of(&self.network));
                    Ok(())
                }
            };
        }
        fs::create_dir_all(directory_of(&self.network)).map_err(failed)?;
        // Always the same one: what a killed process left there is written over. The lock keeps others away.
        let draft = Path::new(DIRECTORY).join(DRAFT);
        fs::write(&draft, self.encode()?).map_err(failed)?;
        fs::rename(&draft, &file).map_err(failed)
    }

    /// What an attachment owns for a feature.
    pub(super) fn holding(&self, ifname: &IfName, feature: Feature) -> Option<&Holding> {
        self.holdings.get(&(ifname.to_string(), feature))
    }

    /// Sets what an attachment owns for a feature; nothing takes its entry away.
    pub(super) fn set(&mut self, ifname: &str, feature: Feature, holding: Holding) {
        let key = (ifname.to_owned(), feature);
        match holding.rules.is_empty() {
            true => self.holdings.remove(&key),
            false => self.holdings.insert(key, holding),
        };
    }

    /// What the interfaces own for a feature.
    pub(super) fn held(&self, feature: Feature) -> Vec<Holding> {
        self.holders(feature).map(|(_, holding)| holding.clone()).collect()
    }

    /// The interfaces that own something for a feature, with what they own.
    pub(super) fn holders(&self, feature: Feature) -> impl Iterator<Item = (&str, &Holding)> {
        let of_feature = self.holdings.iter().filter(move |((_, f), _)| *f == feature);
        of_feature.map(|((ifname, _), holding)| (ifname.as_str(), holding))
    }
}

/// The file's form.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    #[serde(rename = "containerID")]
    container: String,
    holdings: Vec<FileHolding>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct FileHolding {
    ifname: String,
    feature: Feature,
    netns: Option<String>,
    /// Program (`iptables` or `ip6tables`), chain, arguments.
    rules: Vec<(String, String, String)>,
}

fn program(family: Family) -> &'static str {
    match family {
        Family::V4 => "iptables",
        Family::V6 => "ip6tables",
    }
}

impl Record {
    fn encode(&self) -> Result<Vec<u8>> {
        let holdings = self.holdings.iter().map(|((ifname, feature), holding)| FileHolding {
            ifname: ifname.clone(),
            feature: *feature,
            netns: holding.netns.clone(),
            rules: holding
                .rules
                .iter()
                .map(|own| (program(own.family).to_owned(), own.chain.clone(), own.rule.to_string()))
                .collect(),
        });
        let file = File {
            container: self.container.to_string(),
            holdings: holdings.collect(),
        };
        serde_json::to_vec(&file).map_err(|e| Error::internal(format!("record of {}: {e}", self.container)))
    }

    fn decode(bytes: &[u8], network: &NetworkName) -> Option<Record> {
        let file: File = serde_json::from_slice(bytes).ok()?;
        let mut record = Record::empty(network, &file.container.parse().ok()?);
        for held in file.holdings {
            let rules = held.rules.iter().filter_map(|(name, chain, rule)| {
                Some(OwnedRule {
                    family: Family::BOTH.into_iter().find(|&family| program(family) == name)?,
                    chain: chain.clone(),
                    rule: Rule::parse(rule),
                })
            });
            let holding = Holding {
                rules: rules.collect(),
                netns: held.netns,
            };
            record.set(&held.ifname, held.feature, holding);
        }
        Some(record)
    }
}

/// The paths in a directory; none where there is no such directory.
fn entries(directory: &Path) -> Result<Vec<PathBuf>> {
    let failed = |e: std::io::Error| Error::io(directory.display(), &e);
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(failed(e)),
    };
    entries.map(|entry| Ok(entry.map_err(failed)?.path())).collect()
}

fn directory_of(network: &NetworkName) -> PathBuf {
    Path::new(DIRECTORY).join(network.as_str())
}

/// The file is named like the chain: of bounded length, whatever the container's ID is.
fn path_of(network: &NetworkName, container: &ContainerId) -> PathBuf {
    directory_of(network).join(format!("{}.json", names::masquerade_chain(network, container)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids() -> (NetworkName, ContainerId) {
        ("net1".parse().unwrap(), "c1".parse().unwrap())
    }

    fn holding(rule: &str) -> Holding {
        Holding {
            rules: vec![OwnedRule {
                family: Family::V6,
                chain: "CNI-DN-1".to_owned(),
                rule: Rule::parse(rule),
            }],
            netns: Some("4026532247 /run/netns/a".to_owned()),
        }
    }

    #[test]
    fn a_record_is_read_back_and_goes_with_its_last_holding() {
        testkit::world(|_| {
            let (network, container) = ids();
            let mut record = Record::load(&network, &container).unwrap();
            record.set(
                "eth0",
                Feature::Portmap,
                holding(r#"-p tcp -m comment --comment "a \"b\"" -j X"#),
            );
            record.set("eth1", Feature::Masquerade, holding("-j Y"));
            record.store().unwrap();
            assert_eq!(Record::load(&network, &container).unwrap(), record);
            assert_eq!(Record::load_network(&network).unwrap(), [record.clone()]);
            assert_eq!(record.holders(Feature::Portmap).count(), 1);

            for feature in [Feature::Portmap, Feature::Masquerade] {
                record.set("eth0", feature, Holding::default());
                record.set("eth1", feature, Holding::default());
            }
            record.store().unwrap();
            assert!(!directory_of(&network).exists());
        });
    }

    #[test]
    fn what_is_no_record_counts_as_none() {
        testkit::world(|_| {
            let (network, container) = ids();
            let file = path_of(&network, &container);
            fs::create_dir_all(directory_of(&network)).unwrap();
            for text in ["", "{", "[]", r#"{"containerID":"c2","holdings":[]}"#] {
                fs::write(&file, text).unwrap();
                let record = Record::load(&network, &container).unwrap();
                assert_eq!(record, Record::empty(&network, &container), "{text}");
            }
            fs::write(file.with_extension("new"), "{").unwrap();
            fs::write(&file, "{").unwrap();
            assert_eq!(Record::load_network(&network).unwrap(), []);
        });
    }
}
