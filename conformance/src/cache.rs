//! Results of ADD, kept until DEL: CHECK and DEL are given the last result again (section 3, "Execution of network
//! configurations").

use std::fs;
use std::io;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::chain::Container;
use crate::conf::NetworkConf;

/// A directory with one file for each attachment.
#[derive(Debug, Clone)]
pub struct Cache {
    directory: PathBuf,
}

/// A result that could not be kept, found again, or removed.
#[derive(Debug, thiserror::Error)]
#[error("cached result {path}: {source}", path = path.display())]
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

    /// Keeps the result of an ADD.
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
            "result": result,
        });
        // Whoever finds a file finds all of it: it is written aside and renamed.
        let draft = path.with_extension("new");
        fs::create_dir_all(&self.directory)
            .and_then(|()| fs::write(&draft, record.to_string()))
            .and_then(|()| fs::rename(&draft, &path))
            .map_err(|source| CacheError { path, source })
    }

    /// The result that an ADD left, if there was one.
    ///
    /// # Errors
    /// The file cannot be read, or is not what [`Cache::store`] wrote.
    pub fn load(&self, conf: &NetworkConf, container: &Container) -> Result<Option<Value>, CacheError> {
        let path = self.path(conf, container);
        let text = match fs::read(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(CacheError { path, source }),
            Ok(text) => text,
        };
        match serde_json::from_slice::<Value>(&text).map(|mut record| record["result"].take()) {
            Ok(result @ Value::Object(_)) => Ok(Some(result)),
            Ok(_) => Err(CacheError {
                path,
                source: io::Error::new(io::ErrorKind::InvalidData, "it holds no result"),
            }),
            Err(e) => Err(CacheError { path, source: e.into() }),
        }
    }

    /// Forgets a result. One that is not there is forgotten already.
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
