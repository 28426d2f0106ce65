//! Replaying what real runtimes were seen to send to plugins.
//!
//! A transcript holds the calls of one scenario, with the answers of the plugins that were there then. It is replayed call
//! by call on one host: the exit codes have to be the same, and the results, up to what a run makes up: names of veths,
//! MACs. Later calls are given the names and MACs that were really answered, as the runtime would have done. Calls of plugins
//! that the directory lacks are skipped and counted.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use cni_types::Cidr;
use serde::Deserialize;
use serde_json::Value;

use crate::call::{Call, Reply};
use crate::checks::Stop;
use crate::host::{Host, HostError, PLUGINS, with_host};
use crate::run::Subject;

/// A recorded scenario.
#[derive(Debug, Deserialize)]
pub struct Transcript {
    /// What it shows.
    pub note: String,
    /// The runtime's calls, in the order in which they began; not what plugins called in turn.
    pub calls: Vec<Recorded>,
}

/// A recorded call.
#[derive(Debug, Deserialize)]
pub struct Recorded {
    /// The plugin.
    pub plugin: String,
    /// The CNI variables.
    pub env: BTreeMap<String, String>,
    /// What it read.
    pub stdin: String,
    /// What it printed.
    pub stdout: String,
    /// Its exit code.
    pub exit: i32,
}

impl Recorded {
    fn needs_dhcp(&self) -> bool {
        self.plugin == "dhcp" || self.conf()["ipam"]["type"] == "dhcp"
    }

    fn conf(&self) -> Value {
        // VERSION may have no input at all.
        serde_json::from_str(&self.stdin).unwrap_or_default()
    }
}

/// Where plugins rightly answer otherwise than those of a transcript.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Deviation {
    /// The transcript, without `.json`; without it, all.
    pub transcript: Option<String>,
    /// The calls of the transcript, counted from 0; without them, all.
    pub calls: Option<Vec<usize>>,
    /// The plugin.
    pub plugin: String,
    /// The verb.
    pub command: String,
    /// Why.
    pub reason: String,
}

impl Deviation {
    fn explains(&self, name: &str, index: usize, call: &Recorded) -> bool {
        self.transcript.as_ref().is_none_or(|transcript| transcript == name)
            && self.calls.as_ref().is_none_or(|calls| calls.contains(&index))
            && self.plugin == call.plugin
            && call.env.get("CNI_COMMAND") == Some(&self.command)
    }
}

/// What a replay found.
#[derive(Debug, Default)]
pub struct Replayed {
    /// Calls that were made.
    pub made: usize,
    /// Calls of plugins that are not there, and those that need a DHCP server.
    pub skipped: usize,
    /// The calls that were answered otherwise, and how.
    pub differences: BTreeMap<usize, String>,
}

/// The transcripts of a directory, by name.
///
/// # Errors
/// A file cannot be read, or is none.
pub fn transcripts(directory: &Path) -> io::Result<BTreeMap<String, Transcript>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let transcript = serde_json::from_slice(&fs::read(&path)?)
                .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {e}", path.display())))?;
            all.insert(name, transcript);
        }
    }
    Ok(all)
}

/// Replays a transcript on a host of its own.
///
/// # Errors
/// The host cannot be made, or a plugin not be called.
pub fn replay(subject: &Subject, transcript: &Transcript) -> Result<Replayed, Stop> {
    with_host(&subject.directory, |host| {
        let mut replay = Replay {
            host,
            seen: BTreeMap::new(),
            spaces: BTreeMap::new(),
        };
        let mut replayed = Replayed::default();
        for (index, recorded) in transcript.calls.iter().enumerate() {
            if !subject.plugins.contains(&recorded.plugin) || recorded.needs_dhcp() {
                replayed.skipped = replayed.skipped.saturating_add(1);
                continue;
            }
            replayed.made = replayed.made.saturating_add(1);
            if let Some(difference) = replay.call(transcript, index, recorded)? {
                replayed.differences.insert(index, difference);
            }
        }
        Ok(replayed)
    })?
}

struct Replay<'a> {
    host: &'a Host,
    /// What stands in the transcript, and what stands for it here.
    seen: BTreeMap<String, String>,
    /// The namespaces of the transcript, and ours.
    spaces: BTreeMap<String, String>,
}

impl Replay<'_> {
    /// Makes one call; tells how its answer differs, if it does.
    fn call(&mut self, transcript: &Transcript, index: usize, recorded: &Recorded) -> Result<Option<String>, Stop> {
        let recorded_space = recorded.env.get("CNI_NETNS").map(String::as_str).unwrap_or_default();
        self.space(recorded_space, transcript, index)?;
        let mut call = Call::new(&recorded.plugin, "").without("CNI_CONTAINERID");
        call = call.without("CNI_NETNS").without("CNI_IFNAME").without("CNI_PATH");
        for (name, value) in &recorded.env {
            let value = if name == "CNI_PATH" && value != "dummy" {
                PLUGINS.to_owned()
            } else {
                self.ours(value)
            };
            call = call.with(name, &value);
        }
        if let Some(master) = recorded.conf()["master"].as_str() {
            self.host.sh(&format!(
                "[ -e /sys/class/net/{master} ] || ip link add {master} type veth peer name of-{master}; ip link set {master} up"
            ))?;
        }
        seed(recorded)?;
        let reply = call.text(self.ours(&recorded.stdin)).run()?;
        Ok(self.compare(recorded, &reply))
    }

    /// Makes the namespace that a call names, if it was there in the transcript.
    fn space(&mut self, recorded: &str, transcript: &Transcript, index: usize) -> Result<(), HostError> {
        if !recorded.starts_with('/') || self.spaces.contains_key(recorded) {
            return Ok(());
        }
        let name = format!("space{}", self.spaces.len());
        // A namespace that no ADD of the transcript succeeds in was not there.
        let later = transcript.calls.iter().skip(index);
        let existed = later
            .into_iter()
            .any(|call| call.exit == 0 && call.env.get("CNI_NETNS").is_some_and(|n| n == recorded));
        if existed {
            self.host.sh(&format!("ip netns add {name}"))?;
        }
        self.spaces.insert(recorded.to_owned(), format!("/run/netns/{name}"));
        Ok(())
    }

    /// A text of the transcript with the names that are valid here.
    fn ours(&self, text: &str) -> String {
        let replace = |text: String, (recorded, ours): (&String, &String)| text.replace(recorded, ours);
        self.spaces.iter().chain(&self.seen).fold(text.to_owned(), replace)
    }

    fn compare(&mut self, recorded: &Recorded, reply: &Reply) -> Option<String> {
        if reply.code != Some(recorded.exit) {
            let shown: String = reply.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
            return Some(format!(
                "exit code {:?} instead of {}: {shown}",
                reply.code, recorded.exit
            ));
        }
        if recorded.exit != 0 {
            // The texts of errors are each author's own; the code is not, as far as the specification has one.
            return code(&recorded.stdout)
                .filter(|expected| *expected < 100 && code(&reply.stdout) != Some(*expected))
                .map(|expected| format!("not error code {expected}: {}", reply.stdout));
        }
        if recorded.stdout.trim().is_empty() || reply.stdout.trim().is_empty() {
            let same = recorded.stdout.trim() == reply.stdout.trim();
            return (!same).then(|| format!("printed {:?} instead of {:?}", reply.stdout, recorded.stdout));
        }
        let (Ok(theirs), Ok(ours)) = (
            serde_json::from_str(&recorded.stdout),
            serde_json::from_str(&reply.stdout),
        ) else {
            return Some(format!("printed no single document: {}", reply.stdout));
        };
        self.learn(&theirs, &ours);
        let theirs: Value = serde_json::from_str(&self.ours(&theirs.to_string())).unwrap_or_default();
        (theirs != ours).then(|| format!("answered {ours} instead of {theirs}"))
    }

    /// Notes what is made up anew in each run: MACs, and names of veths.
    fn learn(&mut self, theirs: &Value, ours: &Value) {
        match (theirs, ours) {
            (Value::Object(theirs), Value::Object(ours)) => {
                for (key, value) in theirs {
                    match (value, ours.get(key)) {
                        (Value::String(old), Some(Value::String(new))) if is_made_up(key, old) => {
                            self.seen.insert(old.clone(), new.clone());
                        }
                        (value, Some(other)) => self.learn(value, other),
                        _ => {}
                    }
                }
            }
            (Value::Array(theirs), Value::Array(ours)) => {
                theirs
                    .iter()
                    .zip(ours)
                    .for_each(|(theirs, ours)| self.learn(theirs, ours));
            }
            _ => {}
        }
    }
}

/// Lets host-local go on where it did in the transcript, whose machine had given out addresses before: in a network that
/// is new here, the next address after the last is the one that was answered.
fn seed(recorded: &Recorded) -> Result<(), Stop> {
    let result: Value = serde_json::from_str(&recorded.stdout).unwrap_or_default();
    let conf = recorded.conf();
    let adds = recorded.exit == 0 && recorded.env.get("CNI_COMMAND").is_some_and(|verb| verb == "ADD");
    if !adds || conf["ipam"]["type"] != "host-local" {
        return Ok(());
    }
    let directory = conf["ipam"]["dataDir"].as_str().unwrap_or("/var/lib/cni/networks");
    let directory = Path::new(directory).join(conf["name"].as_str().unwrap_or_default());
    if directory.exists() {
        return Ok(());
    }
    fs::create_dir_all(&directory)?;
    let ips = result["ips"].as_array().map(Vec::as_slice).unwrap_or_default();
    let newer = ips.iter().map(|ip| &ip["address"]);
    let addresses = newer
        .chain([&result["ip4"]["ip"], &result["ip6"]["ip"]])
        .filter_map(Value::as_str);
    for (set, address) in addresses.enumerate() {
        if let Some(before) = before(address) {
            fs::write(directory.join(format!("last_reserved_ip.{set}")), before.to_string())?;
        }
    }
    Ok(())
}

/// The address before the one of a CIDR.
fn before(cidr: &str) -> Option<IpAddr> {
    let cidr: Cidr = cidr.parse().ok()?;
    Some(match cidr.address() {
        IpAddr::V4(address) => Ipv4Addr::from_bits(address.to_bits().checked_sub(1)?).into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits().checked_sub(1)?).into(),
    })
}

fn is_made_up(key: &str, text: &str) -> bool {
    key == "mac" && text != "00:00:00:00:00:00" || key == "name" && text.starts_with("veth")
}

fn code(stdout: &str) -> Option<u64> {
    let document: Value = serde_json::from_str(stdout).ok()?;
    document.get("code")?.as_u64()
}

/// The differences of one transcript that no deviation explains. Those that explain one are noted in `used`, by index.
pub fn unexplained(
    (name, transcript): (&str, &Transcript),
    replayed: &Replayed,
    deviations: &[Deviation],
    used: &mut BTreeSet<usize>,
) -> Vec<String> {
    let mut unexplained = Vec::new();
    for (index, difference) in &replayed.differences {
        let Some(call) = transcript.calls.get(*index) else {
            continue;
        };
        match deviations
            .iter()
            .position(|deviation| deviation.explains(name, *index, call))
        {
            Some(deviation) => drop(used.insert(deviation)),
            None => unexplained.push(format!("{name}, call {index} of {}: {difference}", call.plugin)),
        }
    }
    unexplained
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_before() {
        for (cidr, expected) in [
            ("10.1.0.2/24", Some("10.1.0.1")),
            ("10.1.1.0/16", Some("10.1.0.255")),
            ("fd00::2/64", Some("fd00::1")),
            ("0.0.0.0/0", None),
            ("rubbish", None),
        ] {
            assert_eq!(
                before(cidr).map(|address| address.to_string()).as_deref(),
                expected,
                "{cidr}"
            );
        }
    }

    fn transcript() -> Transcript {
        let call = |plugin: &str| serde_json::json!({ "plugin": plugin, "env": { "CNI_COMMAND": "ADD" }, "stdin": "{}", "stdout": "", "exit": 0 });
        let calls = [call("bridge"), call("loopback"), call("bridge")];
        serde_json::from_value(serde_json::json!({ "note": "", "calls": calls })).unwrap()
    }

    #[test]
    fn a_deviation_explains_what_it_names_and_nothing_else() {
        let transcript = transcript();
        let replayed = Replayed {
            differences: (0..3).map(|index| (index, "otherwise".to_owned())).collect(),
            ..Replayed::default()
        };
        let deviations: Vec<Deviation> = serde_json::from_value(serde_json::json!([
            { "plugin": "loopback", "command": "ADD", "reason": "all of them" },
            { "transcript": "t", "calls": [2], "plugin": "bridge", "command": "ADD", "reason": "this one" },
            { "transcript": "t", "calls": [0], "plugin": "bridge", "command": "DEL", "reason": "not this one" },
        ]))
        .unwrap();
        let mut used = BTreeSet::new();
        let unexplained = unexplained(("t", &transcript), &replayed, &deviations, &mut used);
        assert_eq!(unexplained, ["t, call 0 of bridge: otherwise"]);
        assert_eq!(used, BTreeSet::from([0, 1]));
    }

    #[test]
    fn every_transcript_of_the_project_can_be_read() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/transcripts");
        let all = transcripts(&directory).unwrap();
        assert!(all.len() > 50, "{}", all.len());
        assert!(
            all.values()
                .all(|transcript| !transcript.calls.is_empty() && !transcript.note.is_empty())
        );
    }
}
