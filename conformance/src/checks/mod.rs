//! What is checked. A check is data: what it rests on, what it needs, and a function that judges.
//!
//! Every check runs for one plugin at a time, on a [`Host`] of its own. It sees a plugin from outside only: what goes in,
//! what comes out, and what then exists on the host. So it holds for anybody's plugins, not for ours alone.

mod arguments;
mod bridge;
mod bridge_check;
mod bridge_vlan;
mod cases;
mod chain;
mod crash;
mod delegation;
mod devices;
mod errors;
mod firewall;
mod firewall_traffic;
mod gc_and_status;
mod host_local;
mod host_local_requests;
mod lifecycle;
mod loopback;
mod mixed;
mod networks;
mod networks_exact;
mod parameters;
mod portmap;
mod portmap_traffic;
mod ptp;
mod published;
mod results;
mod specimen;
mod static_ipam;
mod storms;
mod tuning;
mod versions;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::call::{Call, Reply};
use crate::feature::Feature;
use crate::host::{Host, HostError};
pub use cases::{CASES, Case};
pub use specimen::{Kind, Specimen};

/// One rule that plugins are held to.
#[derive(Debug)]
pub struct Check {
    /// `subject/what-is-right`, which `--only` selects by.
    pub id: &'static str,
    /// The document and section that demand it.
    pub source: Source,
    /// What is demanded, in our words.
    pub rule: &'static str,
    /// The plugins that it is about.
    pub plugins: Plugins,
    /// What the machine must have for it.
    pub needs: &'static [Feature],
    /// The judgement.
    pub run: fn(&Bench) -> Done,
}

/// What a check rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// A section of the CNI specification 1.1.0 (SPEC.md of containernetworking/cni).
    Spec(&'static str),
    /// A section of the conventions (CONVENTIONS.md of containernetworking/cni).
    Conventions(&'static str),
    /// How the reference plugins' documentation describes an option of the plugin.
    Documentation(&'static str),
    /// What users were bitten by: a public report.
    Practice(&'static str),
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Source::Spec(section) => write!(f, "SPEC.md 1.1.0, {section}"),
            Source::Conventions(section) => write!(f, "CONVENTIONS.md, {section}"),
            Source::Documentation(option) => write!(f, "the plugin's documentation, {option}"),
            Source::Practice(report) => write!(f, "practice: {report}"),
        }
    }
}

/// The plugins that a check is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plugins {
    /// Every plugin of the directory, one after the other.
    Each,
    /// Every plugin of the directory for which a configuration is known, see [`Specimen`].
    Configured,
    /// The first one, with the help of the others.
    Named(&'static [&'static str]),
}

/// How a check ends when it does not pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    /// The plugin does not do what it should; and how that shows.
    Fail(String),
    /// The rule does not concern this plugin, or cannot be judged on this machine; and why.
    NotApplicable(String),
}

/// The result of a check: `Ok` is a pass.
pub type Done = Result<(), Stop>;

impl From<HostError> for Stop {
    fn from(e: HostError) -> Stop {
        Stop::Fail(e.to_string())
    }
}

impl From<std::io::Error> for Stop {
    fn from(e: std::io::Error) -> Stop {
        Stop::Fail(e.to_string())
    }
}

/// Fails the check with a reason unless `condition` holds.
pub(crate) fn ensure(condition: bool, reason: impl FnOnce() -> String) -> Done {
    if condition { Ok(()) } else { Err(Stop::Fail(reason())) }
}

/// Fails the check unless two values are equal. `what` names them.
pub(crate) fn same<T: PartialEq + std::fmt::Display>(what: &str, got: &T, expected: &T) -> Done {
    ensure(got == expected, || format!("{what}: expected {expected}, got {got}"))
}

/// Whether a name of checks, as cases have them, is that of this one. One that ends in * names all that begin so.
pub fn covers(name: &str, id: &str) -> bool {
    match name.strip_suffix('*') {
        Some(beginning) => id.starts_with(beginning),
        None => name == id,
    }
}

/// Every check there is.
pub fn all() -> Vec<&'static Check> {
    let subjects: [&'static [Check]; 28] = [
        versions::CHECKS,
        parameters::CHECKS,
        errors::CHECKS,
        results::CHECKS,
        lifecycle::CHECKS,
        gc_and_status::CHECKS,
        chain::CHECKS,
        delegation::CHECKS,
        arguments::CHECKS,
        loopback::CHECKS,
        host_local::CHECKS,
        host_local_requests::CHECKS,
        static_ipam::CHECKS,
        bridge::CHECKS,
        bridge_check::CHECKS,
        bridge_vlan::CHECKS,
        ptp::CHECKS,
        devices::CHECKS,
        portmap::CHECKS,
        portmap_traffic::CHECKS,
        tuning::CHECKS,
        firewall::CHECKS,
        firewall_traffic::CHECKS,
        networks::CHECKS,
        networks_exact::CHECKS,
        crash::CHECKS,
        storms::CHECKS,
        mixed::CHECKS,
    ];
    subjects.into_iter().flatten().collect()
}

impl Check {
    /// The numbers of the cases that the check is about.
    pub fn cases(&self) -> impl Iterator<Item = &'static str> {
        let id = self.id;
        CASES
            .iter()
            .filter(move |case| case.checks.iter().any(|check| covers(check, id)))
            .map(|case| case.number)
    }
}

/// What a check has to work with: a host, and a plugin to judge.
#[derive(Debug)]
pub struct Bench<'a> {
    /// The host. A check may do with it what it likes.
    pub host: &'a Host,
    /// The plugin that is judged.
    pub plugin: &'a str,
    /// The plugins of the directory.
    pub available: &'a BTreeSet<String>,
    /// Configurations that the plugins' author gave, by plugin.
    pub given: &'a BTreeMap<String, Value>,
    /// The plugins of a second directory, in [`crate::host::BESIDE`], if there is one.
    pub beside: Option<&'a BTreeSet<String>>,
}

/// An attachment that an ADD made.
#[derive(Debug)]
pub struct Attached {
    /// The container's ID, which is also the name of its namespace.
    pub id: String,
    /// What the plugin read.
    pub conf: Value,
    /// What it printed.
    pub result: Value,
}

impl Attached {
    /// The configuration with the result, as CHECK and DEL are given it.
    pub fn with_result(&self) -> Value {
        with(&self.conf, json!({ "prevResult": self.result }))
    }
}

/// A configuration with keys added or replaced.
pub(crate) fn with(conf: &Value, keys: Value) -> Value {
    let mut conf = conf.clone();
    if let (Some(conf), Value::Object(keys)) = (conf.as_object_mut(), keys) {
        conf.extend(keys);
    }
    conf
}

impl Bench<'_> {
    /// Whether the directory has a plugin.
    pub fn has(&self, plugin: &str) -> bool {
        self.available.contains(plugin)
    }

    /// The plugin's configuration for a container, at a version of the specification; and what has to exist for it.
    ///
    /// # Errors
    /// Not applicable where none is known, or the plugin does not speak the version.
    pub fn prepare(&self, id: &str, version: &str) -> Result<Value, Stop> {
        self.speaks(version)?;
        let specimen = Specimen::of(self)?;
        if let Some(missing) = specimen.needs.filter(|feature| !feature.is_there(self.host)) {
            return Err(Stop::NotApplicable(missing.describe().to_owned()));
        }
        specimen.prepare(self.host, id)?;
        specimen.conf(id, version)
    }

    /// Calls the plugin for a container.
    ///
    /// # Errors
    /// It cannot be called at all.
    pub fn call(&self, verb: &str, id: &str, conf: &Value) -> Result<Reply, Stop> {
        self.calling(verb, id, conf).run()
    }

    /// The same call, to be changed before it is made.
    pub fn calling(&self, verb: &str, id: &str, conf: &Value) -> Call {
        let ifname = if self.plugin == "loopback" { "lo" } else { "eth0" };
        let call = Call::new(self.plugin, verb).container(id).conf(conf);
        call.with("CNI_IFNAME", ifname)
    }

    /// Prepares and attaches a container.
    ///
    /// # Errors
    /// The plugin fails.
    pub fn attach(&self, id: &str, version: &str) -> Result<Attached, Stop> {
        let conf = self.prepare(id, version)?;
        self.attach_with(id, conf)
    }

    /// Attaches a container with a configuration of the check's own. Its namespace exists already.
    ///
    /// # Errors
    /// The plugin fails.
    pub fn attach_with(&self, id: &str, conf: Value) -> Result<Attached, Stop> {
        let result = self.call("ADD", id, &conf)?.result()?;
        Ok(Attached {
            id: id.to_owned(),
            conf,
            result,
        })
    }

    /// Makes a namespace for the container and attaches it.
    ///
    /// # Errors
    /// The plugin fails.
    pub fn attach_new(&self, id: &str, conf: &Value) -> Result<Attached, Stop> {
        self.host.netns(id)?;
        self.attach_with(id, conf.clone())
    }

    /// Calls CHECK for an attachment.
    ///
    /// # Errors
    /// It cannot be called at all.
    pub fn check(&self, attached: &Attached) -> Result<Reply, Stop> {
        self.call("CHECK", &attached.id, &attached.with_result())
    }

    /// Calls DEL for an attachment, and expects success.
    ///
    /// # Errors
    /// The plugin fails.
    pub fn detach(&self, attached: &Attached) -> Done {
        self.call("DEL", &attached.id, &attached.with_result())?.silent()
    }

    /// The versions that the plugin says it speaks.
    ///
    /// # Errors
    /// It does not say.
    pub fn versions(&self) -> Result<Vec<String>, Stop> {
        let answer = Call::new(self.plugin, "VERSION")
            .conf(&json!({ "cniVersion": "1.1.0" }))
            .run()?
            .result()?;
        let list = answer.get("supportedVersions").and_then(Value::as_array);
        let texts = |list: &Vec<Value>| list.iter().filter_map(Value::as_str).map(str::to_owned).collect();
        list.map(texts)
            .ok_or_else(|| Stop::Fail("VERSION does not list supportedVersions".to_owned()))
    }

    /// Not applicable unless the plugin speaks a version. "" stands for 0.1.0, as in configurations.
    ///
    /// # Errors
    /// As said.
    pub fn speaks(&self, version: &str) -> Done {
        let version = if version.is_empty() { "0.1.0" } else { version };
        if self.versions()?.iter().any(|other| other == version) {
            return Ok(());
        }
        Err(Stop::NotApplicable(format!("the plugin does not speak {version}")))
    }
}
