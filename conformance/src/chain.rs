//! Running the plugins of a network one after the other: the specification's section 3, "Execution of network
//! configurations".

use std::path::PathBuf;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use cni_types::{ContainerId, IfName};
use serde_json::{Map, Value, json};

use crate::cache::{Cache, CacheError, Entry, Record};
use crate::conf::{NetworkConf, PluginConf};
use crate::plugin::{self, PluginError, Verb};

/// What is attached to a network, and how.
#[derive(Debug, Clone)]
pub struct Container {
    /// `CNI_CONTAINERID`.
    pub id: ContainerId,
    /// `CNI_NETNS`; empty on a DEL for a namespace that is gone.
    pub netns: String,
    /// `CNI_IFNAME`.
    pub ifname: IfName,
    /// `CNI_ARGS`, as it is passed on.
    pub args: String,
    /// What each capability is given, for example `portMappings`: plugins that declare the capability find it in
    /// `runtimeConfig`.
    pub capability_args: Map<String, Value>,
}

/// Runs chains of plugins.
#[derive(Debug, Clone)]
pub struct Runtime {
    /// The directories that plugins are looked for in, `CNI_PATH`.
    pub plugin_path: Vec<PathBuf>,
    /// Where attachments are remembered from ADD to DEL.
    pub cache: Cache,
    /// Who is told of every call of a plugin, if anyone is.
    pub watcher: Option<mpsc::Sender<Step>>,
}

/// One call of a plugin, which has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The plugin's `type`.
    pub plugin_type: String,
    /// What it was asked for.
    pub verb: Verb,
    /// From its start to its end.
    pub took: Duration,
    /// Why it failed; `None` if it did not.
    pub failure: Option<String>,
}

/// Why a chain did not run to its end.
#[derive(Debug, thiserror::Error)]
pub enum ChainError {
    /// A plugin failed; those after it were not called.
    #[error(transparent)]
    Plugin(#[from] PluginError),
    /// The attachment could not be remembered, found again, or forgotten.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// ADD failed, and so did the DEL that has to follow it.
    #[error("{add}; then DEL failed too: {del}")]
    Undo {
        /// Why ADD failed.
        add: Box<ChainError>,
        /// Why DEL failed.
        del: Box<ChainError>,
    },
    /// The configuration's version has no such verb.
    #[error("{verb} needs cniVersion {since} or later, the network says {version}")]
    TooOld {
        /// What was to be asked.
        verb: Verb,
        /// The version that has it first.
        since: &'static str,
        /// The network's version.
        version: &'static str,
    },
    /// Several plugins failed, or the same one for several attachments.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Several(Vec<ChainError>),
    /// There is nothing to compare with.
    #[error("CHECK needs the result of an ADD, and there is none in the cache")]
    NoResult,
}

impl Runtime {
    /// Attaches a container: each plugin gets the result of the one before, and the last one's is returned and kept.
    /// If a plugin fails, the whole chain is asked to undo what it may have done.
    ///
    /// # Errors
    /// The first plugin's that failed, with that of the DEL if it failed as well.
    pub fn add(&self, conf: &NetworkConf, container: &Container) -> Result<Value, ChainError> {
        self.try_add(conf, container)
            .map_err(|add| match self.del(conf, container) {
                Ok(()) => add,
                Err(del) => ChainError::Undo {
                    add: Box::new(add),
                    del: Box::new(del),
                },
            })
    }

    fn try_add(&self, conf: &NetworkConf, container: &Container) -> Result<Value, ChainError> {
        let mut result = None;
        for plugin in &conf.plugins {
            result = self.call(Verb::Add, conf, plugin, container, result.as_ref())?;
        }
        let result = result.unwrap_or_default();
        self.cache.store(conf, container, &result)?;
        Ok(result)
    }

    /// Asks every plugin whether the attachment is as ADD left it. A network with `disableCheck` is not asked.
    ///
    /// # Errors
    /// The first plugin's; and without a version or a result to check by.
    pub fn check(&self, conf: &NetworkConf, container: &Container) -> Result<(), ChainError> {
        since(Verb::Check, "0.4.0", conf)?;
        if conf.disable_check {
            return Ok(());
        }
        let record = self.cache.load(conf, container)?.ok_or(ChainError::NoResult)?;
        let result = Value::Object(record.result.clone());
        let container = &remembered(container, record);
        for plugin in &conf.plugins {
            self.call(Verb::Check, conf, plugin, container, Some(&result))?;
        }
        Ok(())
    }

    /// Detaches a container, last plugin first. The attachment is remembered until all have succeeded, so that DEL can
    /// be repeated.
    ///
    /// # Errors
    /// The first plugin's that failed.
    pub fn del(&self, conf: &NetworkConf, container: &Container) -> Result<(), ChainError> {
        let mut container = container.clone();
        let mut result = None;
        if let Some(record) = self.cache.load(conf, &container)? {
            // Before 0.4.0 the specification gave DEL no prevResult.
            result = conf.is_at_least("0.4.0").then(|| Value::Object(record.result.clone()));
            container = remembered(&container, record);
        }
        for plugin in conf.plugins.iter().rev() {
            self.call(Verb::Del, conf, plugin, &container, result.as_ref())?;
        }
        Ok(self.cache.remove(conf, &container)?)
    }

    /// Removes what the network holds for attachments that exist no more: those in the cache whose namespace has gone
    /// are detached, and then, from version 1.1.0 on, the plugins are told which remain. A network with `disableGC` is
    /// left alone. Every plugin is called, whatever happens to those before it.
    ///
    /// # Errors
    /// All that failed.
    pub fn gc(&self, conf: &NetworkConf) -> Result<(), ChainError> {
        if conf.disable_gc {
            return Ok(());
        }
        let entries = self.cache.entries()?;
        let of_network = entries.into_iter().filter(|entry| entry.network == conf.name.as_str());
        let (stale, valid): (Vec<_>, Vec<_>) = of_network.partition(Entry::is_stale);
        let mut failures = Vec::new();
        for entry in stale {
            failures.extend(self.del(conf, &Container::of(&entry)).err());
        }
        if conf.is_at_least("1.1.0") {
            let attachments = valid
                .iter()
                .map(|entry| json!({"containerID": entry.id.as_str(), "ifname": entry.ifname.as_str()}));
            let valid = ("cni.dev/valid-attachments", Value::Array(attachments.collect()));
            for plugin in &conf.plugins {
                let input = plugin_input(conf, plugin, &Map::new(), None, Some(valid.clone()));
                let outcome = self.execute(Verb::Gc, plugin, &[("CNI_PATH", self.path())], &input);
                failures.extend(outcome.err().map(ChainError::from));
            }
        }
        match failures.pop() {
            None => Ok(()),
            Some(only) if failures.is_empty() => Err(only),
            Some(last) => {
                failures.push(last);
                Err(ChainError::Several(failures))
            }
        }
    }

    /// Asks every plugin whether it could attach a container now.
    ///
    /// # Errors
    /// The first plugin's that could not; and if the network's version has no STATUS.
    pub fn status(&self, conf: &NetworkConf) -> Result<(), ChainError> {
        since(Verb::Status, "1.1.0", conf)?;
        for plugin in &conf.plugins {
            let input = plugin_input(conf, plugin, &Map::new(), None, None);
            self.execute(Verb::Status, plugin, &[("CNI_PATH", self.path())], &input)?;
        }
        Ok(())
    }

    fn call(
        &self,
        verb: Verb,
        conf: &NetworkConf,
        plugin: &PluginConf,
        container: &Container,
        prev_result: Option<&Value>,
    ) -> Result<Option<Value>, PluginError> {
        let variables = [
            ("CNI_CONTAINERID", container.id.to_string()),
            ("CNI_NETNS", container.netns.clone()),
            ("CNI_IFNAME", container.ifname.to_string()),
            ("CNI_ARGS", container.args.clone()),
            ("CNI_PATH", self.path()),
        ];
        let input = plugin_input(conf, plugin, &container.capability_args, prev_result, None);
        self.execute(verb, plugin, &variables, &input)
    }

    fn execute(
        &self,
        verb: Verb,
        plugin: &PluginConf,
        variables: &[(&str, String)],
        input: &Value,
    ) -> Result<Option<Value>, PluginError> {
        let executable = plugin::find(&plugin.plugin_type, &self.plugin_path)?;
        let began = Instant::now();
        let outcome = plugin::execute(&executable, verb, variables, input);
        if let Some(watcher) = &self.watcher {
            // One who does not listen any more has chosen so.
            let _ = watcher.send(Step {
                plugin_type: plugin.plugin_type.clone(),
                verb,
                took: began.elapsed(),
                failure: outcome.as_ref().err().map(ToString::to_string),
            });
        }
        outcome
    }

    fn path(&self) -> String {
        let path: Vec<_> = self.plugin_path.iter().map(|d| d.to_string_lossy()).collect();
        path.join(":")
    }
}

impl Container {
    /// The container of a remembered attachment. What it was given at ADD is remembered there.
    pub fn of(entry: &Entry) -> Container {
        Container {
            id: entry.id.clone(),
            netns: entry.netns.clone(),
            ifname: entry.ifname.clone(),
            args: String::new(),
            capability_args: Map::new(),
        }
    }
}

fn since(verb: Verb, since: &'static str, conf: &NetworkConf) -> Result<(), ChainError> {
    if conf.is_at_least(since) {
        return Ok(());
    }
    Err(ChainError::TooOld {
        verb,
        since,
        version: conf.version,
    })
}

/// A container with the arguments of its ADD, which the specification wants CHECK and DEL to be given again. A plugin
/// such as portmap takes from them what there is to undo.
fn remembered(container: &Container, record: Record) -> Container {
    Container {
        args: record.args,
        capability_args: record.capability_args,
        ..container.clone()
    }
}

/// What a plugin reads: its own configuration with the network's name and version, the arguments of the capabilities
/// that it declares, and the result so far (section 3, "Deriving request configuration from network configuration").
fn plugin_input(
    conf: &NetworkConf,
    plugin: &PluginConf,
    capability_args: &Map<String, Value>,
    prev_result: Option<&Value>,
    more: Option<(&str, Value)>,
) -> Value {
    let mut input = plugin.object.clone();
    input.insert("name".to_owned(), json!(conf.name.as_str()));
    input.insert("cniVersion".to_owned(), json!(conf.version));
    let declared = plugin.object.get("capabilities").and_then(Value::as_object);
    let granted: Map<String, Value> = capability_args
        .iter()
        .filter(|(capability, _)| declared.is_some_and(|d| d.get(*capability) == Some(&Value::Bool(true))))
        .map(|(capability, argument)| (capability.clone(), argument.clone()))
        .collect();
    if !granted.is_empty() {
        input.insert("runtimeConfig".to_owned(), Value::Object(granted));
    }
    if let Some(result) = prev_result {
        input.insert("prevResult".to_owned(), result.clone());
    }
    input.extend(more.map(|(key, value)| (key.to_owned(), value)));
    Value::Object(input)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conf(text: &str) -> NetworkConf {
        NetworkConf::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn a_plugin_gets_only_the_capabilities_that_it_declares() {
        let conf = conf(
            r#"{"cniVersion":"1.0.0","name":"n","plugins":[
                {"type":"a","capabilities":{"portMappings":true,"mac":false}},
                {"type":"b"}]}"#,
        );
        let arguments = json!({"portMappings":[{"hostPort":80}],"mac":"02:00:00:00:00:01","ips":[]});
        let arguments = arguments.as_object().unwrap();
        let input = |plugin| plugin_input(&conf, plugin, arguments, None, None);
        assert_eq!(
            input(&conf.plugins[0])["runtimeConfig"],
            json!({"portMappings":[{"hostPort":80}]})
        );
        assert_eq!(input(&conf.plugins[1]).get("runtimeConfig"), None);
    }

    #[test]
    fn name_version_and_the_last_result_are_put_in() {
        let conf = conf(r#"{"cniVersion":"0.4.0","name":"n","plugins":[{"type":"a","mtu":1400,"name":"other"}]}"#);
        let result = json!({"cniVersion":"0.4.0"});
        assert_eq!(
            plugin_input(&conf, &conf.plugins[0], &Map::new(), Some(&result), None),
            json!({"type":"a","mtu":1400,"name":"n","cniVersion":"0.4.0","prevResult":{"cniVersion":"0.4.0"}})
        );
    }
}
