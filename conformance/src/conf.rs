//! Network configurations: the specification's section 1, "Network configuration format".

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use cni_types::NetworkName;
use serde_json::{Map, Value};

/// The specification's versions that [`NetworkConf`] can ask for, oldest first.
pub const VERSIONS: [&str; 7] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// What a configuration without `cniVersion` is taken for: it was optional when this was the only version.
const UNSTATED_VERSION: &str = "0.1.0";

/// A network and the chain of plugins that attaches containers to it.
#[derive(Debug, Clone, PartialEq)]
pub struct NetworkConf {
    /// The network's `name`.
    pub name: NetworkName,
    /// The version that is asked of the plugins: one of [`VERSIONS`].
    pub version: &'static str,
    /// `disableCheck`: the administrator knows that CHECK reports errors on this network that are none.
    pub disable_check: bool,
    /// `disableGC`: others attach to this network too, whose attachments this runtime does not know.
    pub disable_gc: bool,
    /// Each plugin's own configuration, in the order of ADD. There is at least one.
    pub plugins: Vec<PluginConf>,
}

/// One plugin's part of a network configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct PluginConf {
    /// The plugin's `type`, which is the name of its executable.
    pub plugin_type: String,
    /// The object as it was written.
    pub object: Map<String, Value>,
}

/// Why a network configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfError {
    /// The file or directory cannot be read.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// What could not be read.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The text is no JSON, or more than one document.
    #[error("network configuration: {0}")]
    Json(#[from] serde_json::Error),
    /// A key is missing or holds something else than the specification says.
    #[error("network configuration: {0}")]
    Invalid(String),
    /// No configuration in the directory has the name that was asked for.
    #[error("no network named {name:?} in {path}", path = path.display())]
    NotFound {
        /// The name that was asked for.
        name: String,
        /// Where it was looked for.
        path: PathBuf,
    },
}

impl NetworkConf {
    /// Reads a configuration list (`.conflist`), or the configuration of a single plugin (`.conf`), which is a list of one.
    ///
    /// # Errors
    /// [`ConfError::Json`] and [`ConfError::Invalid`].
    pub fn parse(text: &[u8]) -> Result<NetworkConf, ConfError> {
        let Value::Object(mut object) = serde_json::from_slice(text)? else {
            return Err(ConfError::Invalid("must be an object".to_owned()));
        };
        let name = string(&object, "name")?.ok_or_else(|| ConfError::Invalid("name is missing".to_owned()))?;
        let name = name.parse().map_err(|e| ConfError::Invalid(format!("name: {e}")))?;
        let version = choose_version(&object)?;
        let disable_check = boolean(&object, "disableCheck")?;
        let disable_gc = boolean(&object, "disableGC")?;
        let plugins = match object.remove("plugins") {
            None => vec![PluginConf::new(Value::Object(object))?],
            Some(Value::Array(list)) if !list.is_empty() => {
                list.into_iter().map(PluginConf::new).collect::<Result<_, _>>()?
            }
            Some(_) => {
                let problem = "plugins must be an array of at least one object";
                return Err(ConfError::Invalid(problem.to_owned()));
            }
        };
        Ok(NetworkConf {
            name,
            version,
            disable_check,
            disable_gc,
            plugins,
        })
    }

    /// Reads the configuration in a file.
    ///
    /// # Errors
    /// Those of [`NetworkConf::parse`], and [`ConfError::Io`].
    pub fn load(path: &Path) -> Result<NetworkConf, ConfError> {
        let text = fs::read(path).map_err(|source| ConfError::Io {
            path: path.to_owned(),
            source,
        })?;
        NetworkConf::parse(&text)
    }

    /// Finds the network `name` among the `.conflist`, `.conf` and `.json` files of a directory. The first file in the
    /// order of names wins; a file that cannot be used is an error only if it comes before the one that is looked for.
    ///
    /// # Errors
    /// Those of [`NetworkConf::load`], and [`ConfError::NotFound`].
    pub fn find(directory: &Path, name: &str) -> Result<NetworkConf, ConfError> {
        for path in configuration_files(directory)? {
            let conf = NetworkConf::load(&path).map_err(|e| match e {
                ConfError::Json(_) | ConfError::Invalid(_) => ConfError::Invalid(format!("{}: {e}", path.display())),
                other => other,
            })?;
            if conf.name.as_str() == name {
                return Ok(conf);
            }
        }
        Err(ConfError::NotFound {
            name: name.to_owned(),
            path: directory.to_owned(),
        })
    }

    /// The first network in a directory, in the order of the files' names: the one that a kubelet would take.
    ///
    /// # Errors
    /// Those of [`NetworkConf::load`]; and [`ConfError::Invalid`] if there is none.
    pub fn first(directory: &Path) -> Result<NetworkConf, ConfError> {
        match configuration_files(directory)?.first() {
            Some(path) => NetworkConf::load(path),
            None => Err(ConfError::Invalid(format!("there is none in {}", directory.display()))),
        }
    }

    /// All networks in a directory, in the order of the files' names. Files that cannot be used are left out.
    ///
    /// # Errors
    /// [`ConfError::Io`]: the directory cannot be read.
    pub fn all(directory: &Path) -> Result<Vec<NetworkConf>, ConfError> {
        let files = configuration_files(directory)?;
        Ok(files.iter().filter_map(|path| NetworkConf::load(path).ok()).collect())
    }

    /// Whether the version asked of the plugins is `version`, one of [`VERSIONS`], or a later one.
    pub fn is_at_least(&self, version: &str) -> bool {
        rank(self.version) >= rank(version)
    }
}

impl PluginConf {
    fn new(value: Value) -> Result<PluginConf, ConfError> {
        let Value::Object(object) = value else {
            return Err(ConfError::Invalid("a plugin must be an object".to_owned()));
        };
        match string(&object, "type")? {
            // The type becomes a file name in the plugins' directories and must not lead out of them.
            Some(plugin_type) if !plugin_type.is_empty() && !plugin_type.contains('/') => Ok(PluginConf {
                plugin_type: plugin_type.to_owned(),
                object,
            }),
            Some(other) => Err(ConfError::Invalid(format!(
                "type {other:?} is no name of an executable"
            ))),
            None => Err(ConfError::Invalid("a plugin has no type".to_owned())),
        }
    }
}

fn rank(version: &str) -> Option<usize> {
    VERSIONS.iter().position(|known| *known == version)
}

/// `cniVersions`, where it is given, offers a choice: the latest one that this runtime knows is taken. Otherwise
/// `cniVersion` must be one that it knows.
fn choose_version(object: &Map<String, Value>) -> Result<&'static str, ConfError> {
    let stated = match string(object, "cniVersion")? {
        None | Some("") => None,
        Some(version) => Some(version),
    };
    let offered = match object.get("cniVersions") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(list)) if list.iter().all(Value::is_string) => {
            list.iter().filter_map(Value::as_str).collect()
        }
        Some(_) => return Err(ConfError::Invalid("cniVersions must be an array of strings".to_owned())),
    };
    if stated.is_none() && offered.is_empty() {
        return Ok(UNSTATED_VERSION);
    }
    let best = stated.iter().chain(&offered).filter_map(|version| rank(version)).max();
    best.and_then(|rank| VERSIONS.get(rank).copied()).ok_or_else(|| {
        let asked: Vec<&str> = stated.into_iter().chain(offered).collect();
        ConfError::Invalid(format!("cniVersion {} is not supported", asked.join(", ")))
    })
}

fn string<'a>(object: &'a Map<String, Value>, key: &str) -> Result<Option<&'a str>, ConfError> {
    match object.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(ConfError::Invalid(format!("{key} must be a string"))),
    }
}

/// A boolean; the specification lets `disableCheck` be a string too.
fn boolean(object: &Map<String, Value>, key: &str) -> Result<bool, ConfError> {
    match object.get(key) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(value)) => Ok(*value),
        Some(Value::String(text)) if text == "true" => Ok(true),
        Some(Value::String(text)) if text == "false" => Ok(false),
        Some(_) => Err(ConfError::Invalid(format!("{key} must be true or false"))),
    }
}

fn configuration_files(directory: &Path) -> Result<Vec<PathBuf>, ConfError> {
    let io = |source| ConfError::Io {
        path: directory.to_owned(),
        source,
    };
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).map_err(io)? {
        let path = entry.map_err(io)?.path();
        let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
        if ["conflist", "conf", "json"].contains(&extension) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<NetworkConf, String> {
        NetworkConf::parse(text.as_bytes()).map_err(|e| e.to_string())
    }

    #[test]
    fn a_list_keeps_its_order() {
        let conf = parse(
            r#"{"cniVersion":"1.0.0","name":"n","disableCheck":true,"plugins":[{"type":"bridge"},{"type":"portmap"}]}"#,
        )
        .unwrap();
        assert_eq!(
            (conf.name.as_str(), conf.version, conf.disable_check),
            ("n", "1.0.0", true)
        );
        let types: Vec<_> = conf.plugins.iter().map(|p| p.plugin_type.as_str()).collect();
        assert_eq!(types, ["bridge", "portmap"]);
    }

    #[test]
    fn a_single_plugin_is_a_list_of_one() {
        let conf = parse(r#"{"cniVersion":"0.4.0","name":"n","type":"bridge","mtu":1400}"#).unwrap();
        assert_eq!(conf.plugins.len(), 1);
        assert_eq!(conf.plugins[0].object["mtu"], 1400);
    }

    #[test]
    fn the_latest_version_that_is_offered_and_known_is_taken() {
        let version = |keys: &str| parse(&format!(r#"{{{keys} "name":"n","type":"t"}}"#)).map(|conf| conf.version);
        assert_eq!(version(r#""cniVersion":"0.4.0","#), Ok("0.4.0"));
        assert_eq!(
            version(r#""cniVersion":"0.4.0","cniVersions":["1.1.0","9.0.0"],"#),
            Ok("1.1.0")
        );
        assert_eq!(version(r#""cniVersions":["0.3.1","0.4.0"],"#), Ok("0.4.0"));
        assert_eq!(version(""), Ok("0.1.0"));
        assert_eq!(version(r#""cniVersion":"","#), Ok("0.1.0"));
        let refused = version(r#""cniVersion":"9.0.0","#).unwrap_err();
        assert!(refused.ends_with("cniVersion 9.0.0 is not supported"), "{refused}");
    }

    #[test]
    fn versions_compare_by_age() {
        let conf = parse(r#"{"cniVersion":"0.4.0","name":"n","type":"t"}"#).unwrap();
        assert!(conf.is_at_least("0.3.1") && conf.is_at_least("0.4.0") && !conf.is_at_least("1.0.0"));
    }

    #[test]
    fn refuses_what_is_no_configuration() {
        for (text, problem) in [
            ("[]", "must be an object"),
            ("{} {}", "trailing characters"),
            (r#"{"type":"t"}"#, "name is missing"),
            (r#"{"name":"../n","type":"t"}"#, "must begin with a letter or digit"),
            (r#"{"name":1,"type":"t"}"#, "name must be a string"),
            (r#"{"name":"n"}"#, "a plugin has no type"),
            (r#"{"name":"n","plugins":[]}"#, "plugins must be an array"),
            (r#"{"name":"n","plugins":{}}"#, "plugins must be an array"),
            (r#"{"name":"n","plugins":["bridge"]}"#, "a plugin must be an object"),
            (r#"{"name":"n","type":"../../bin/sh"}"#, "no name of an executable"),
            (r#"{"name":"n","type":""}"#, "no name of an executable"),
            (
                r#"{"name":"n","type":"t","disableCheck":"maybe"}"#,
                "disableCheck must be",
            ),
            (
                r#"{"name":"n","type":"t","cniVersions":"1.0.0"}"#,
                "cniVersions must be",
            ),
        ] {
            let refused = parse(text).unwrap_err();
            assert!(refused.contains(problem), "{text}: {refused}");
        }
    }
}
