//! Attachments, remembered from ADD to DEL: CHECK and DEL are given the same arguments and the last result again
//! (section 3, "Execution of network configurations").

use std::fs;
use std::io;
use std::path::PathBuf;

use serde_json::{Map, Value, json};

use crate::chain::Container;
use crate::conf::NetworkConf;

/// A directory with one file for each attachment.
#[derive(Debug, Clone)]
pub struct Cache {
    directory: PathBuf,
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

impl Record {
    fn read(text: &[u8]) -> Option<Record> {
        let record: Value = serde_json::from_slice(text).ok()?;
        Some(Record {
            result: record.get("result")?.as_object()?.clone(),
            args: record.get("cniArgs")?.as_str()?.to_owned(),
            capability_args: record.get("capabilityArgs")?.as_object()?.clone(),
        })
    }
}
