//! Attachments, remembered from ADD to DEL: CHECK and DEL are given the same arguments and the last result again
//! (section 3, "Execution of network configurations").

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use cni_types::{ContainerId, IfName};
use serde_json::{Map, Value, json};

use crate::chain::Container;
use crate::conf::NetworkConf;

/// A directory with one file for each attachment.
#[derive(Debug, Clone)]
pub struct Cache {
    directory: PathBuf,
}

/// Which attachment a file in the cache is about. libcni, and with it containerd, keeps its own in the same directory in
/// a file of the same kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The network's name.
    pub network: String,
    /// `CNI_CONTAINERID`.
    pub id: ContainerId,
    /// `CNI_IFNAME`.
    pub ifname: IfName,
    /// `CNI_NETNS`; empty where it was not written down.
    pub netns: String,
    /// The result of ADD, as it was printed.
    pub result: Value,
    /// The arguments of capabilities at ADD.
    pub capability_args: Value,
}

/// What is remembered of an attachment.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// The result of ADD.
    pub result: Map<String, Value>,
    /// The `CNI_ARGS` of ADD.
    pub args: String,
    /// The arguments of capabilities at ADD.
    pub capability_args: Map<String, Value>,
}

/// An attachment that could not be remembered, found again, or forgotten.
#[derive(Debug, thiserror::Error)]
#[error("cached attachment {path}: {source}", path = path.display())]
pub struct CacheError {
    /// The file.
    pub path: PathBuf,
    /// The system's reason, or what is wrong with the text in it.
    pub source: io::Error,
}

impl Cache {
    /// A cache in `directory`, which need not exist yet.
    pub fn new(directory: impl Into<PathBuf>) -> Cache {
        Cache {
            directory: directory.into(),
        }
    }

    fn path(&self, conf: &NetworkConf, container: &Container) -> PathBuf {
        let file = format!("{}-{}-{}", conf.name, container.id, container.ifname);
        self.directory.join(file)
    }

    /// Remembers a container's attachment, and its result.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn store(&self, conf: &NetworkConf, container: &Container, result: &Value) -> Result<(), CacheError> {
        let path = self.path(conf, container);
        let record = json!({
            "networkName": conf.name.as_str(),
            "containerId": container.id.as_str(),
            "ifName": container.ifname.as_str(),
            "netns": container.netns,
            "cniArgs": container.args,
            "capabilityArgs": container.capability_args,
            "result": result,
        });
        // Whoever finds a file finds all of it: it is written aside and renamed.
        let draft = path.with_extension("new");
        fs::create_dir_all(&self.directory)
            .and_then(|()| fs::write(&draft, record.to_string()))
            .and_then(|()| fs::rename(&draft, &path))
            .map_err(|source| CacheError { path, source })
    }

    /// What is remembered of an attachment, if anything is.
    ///
    /// # Errors
    /// The file cannot be read, or is not what [`Cache::store`] wrote.
    pub fn load(&self, conf: &NetworkConf, container: &Container) -> Result<Option<Record>, CacheError> {
        let path = self.path(conf, container);
        match fs::read(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(CacheError { path, source }),
            Ok(text) => match Record::read(&text) {
                Some(record) => Ok(Some(record)),
                None => Err(CacheError {
                    path,
                    source: io::Error::new(io::ErrorKind::InvalidData, "the file is not what was written"),
                }),
            },
        }
    }

    /// All attachments that are remembered here, by whichever runtime, in the order of their files' names. A file that
    /// tells of none is passed over.
    ///
    /// # Errors
    /// A file or the directory cannot be read. A directory that does not exist remembers nothing.
    pub fn entries(&self) -> Result<Vec<Entry>, CacheError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| CacheError { path, source }
        };
        let files = match fs::read_dir(&self.directory) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            files => files.map_err(failed(&self.directory))?,
        };
        let mut paths = files
            .map(|file| file.map(|file| file.path()))
            .collect::<Result<Vec<_>, _>>()
            .map_err(failed(&self.directory))?;
        paths.sort();
        let mut entries = Vec::new();
        for path in paths {
            match fs::read(&path) {
                // Whoever it belonged to has been detached meanwhile.
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                text => entries.extend(Entry::read(&text.map_err(failed(&path))?)),
            }
        }
        Ok(entries)
    }

    /// Forgets an attachment. One that is not there is forgotten already.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub fn remove(&self, conf: &NetworkConf, container: &Container) -> Result<(), CacheError> {
        let path = self.path(conf, container);
        match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(CacheError { path, source: e }),
            _ => Ok(()),
        }
    }
}

impl Entry {
    fn read(text: &[u8]) -> Option<Entry> {
        let entry: Value = serde_json::from_slice(text).ok()?;
        let text = |key: &str| entry.get(key).and_then(Value::as_str);
        Some(Entry {
            network: text("networkName")?.to_owned(),
            id: text("containerId")?.parse().ok()?,
            ifname: text("ifName")?.parse().ok()?,
            netns: text("netns").unwrap_or_default().to_owned(),
            result: entry.get("result").cloned().unwrap_or_default(),
            capability_args: entry.get("capabilityArgs").cloned().unwrap_or_default(),
        })
    }

    /// Whether the namespace has certainly gone: a runtime that wrote no path down may know it all the same.
    pub fn is_stale(&self) -> bool {
        !self.netns.is_empty() && !Path::new(&self.netns).exists()
    }
}

impl Record {
    /// Reads what [`Cache::store`] wrote, or libcni: there arguments are pairs, and what is empty is left out.
    fn read(text: &[u8]) -> Option<Record> {
        let record: Value = serde_json::from_slice(text).ok()?;
        let args = match record.get("cniArgs") {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(args)) => args.clone(),
            Some(Value::Array(pairs)) => {
                let pair = |pair: &Value| Some(format!("{}={}", pair.get(0)?.as_str()?, pair.get(1)?.as_str()?));
                pairs.iter().map(pair).collect::<Option<Vec<_>>>()?.join(";")
            }
            Some(_) => return None,
        };
        let capability_args = match record.get("capabilityArgs") {
            None | Some(Value::Null) => Map::new(),
            Some(arguments) => arguments.as_object()?.clone(),
        };
        Some(Record {
            result: record.get("result")?.as_object()?.clone(),
            args,
            capability_args,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libcnis_records_are_read_too() {
        let text = r#"{"kind":"cniCacheV1","containerId":"c1","config":"e30=","ifName":"eth0","networkName":"net",
            "netns":"/nonexistent/netns","cniArgs":[["IgnoreUnknown","1"],["K8S_POD_NAME","web"]],
            "result":{"cniVersion":"1.0.0","ips":[]}}"#;
        let record = Record::read(text.as_bytes()).unwrap();
        assert_eq!(record.args, "IgnoreUnknown=1;K8S_POD_NAME=web");
        assert!(record.capability_args.is_empty());
        let entry = Entry::read(text.as_bytes()).unwrap();
        assert_eq!((entry.network.as_str(), entry.id.as_str()), ("net", "c1"));
        assert!(entry.is_stale());
    }

    #[test]
    fn a_record_without_a_result_is_none() {
        for text in [
            "",
            "[]",
            "{}",
            r#"{"result":{},"cniArgs":1}"#,
            r#"{"result":{},"cniArgs":[["K"]]}"#,
        ] {
            assert_eq!(Record::read(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn whoever_wrote_no_namespace_down_may_know_it() {
        let text = r#"{"containerId":"c1","ifName":"eth0","networkName":"net","result":{}}"#;
        assert!(!Entry::read(text.as_bytes()).unwrap().is_stale());
    }
}
