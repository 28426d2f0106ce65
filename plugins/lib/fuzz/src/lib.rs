//! What anybody may send to a plugin, given to the code that reads it.
//!
//! A target must survive every input: no panic, no overflow, no endless loop, and what it can read it can also write.
//! `scripts/fuzz` looks for inputs that break one; those that led somewhere new are kept in `corpus/`, a directory for each
//! target, and `tests/corpus.rs` gives them to the same functions on every run of the tests.

use cni_types::{CniResult, Version, wire};

/// Something that reads foreign input.
pub struct Target {
    /// The fuzzer's executable, and the directory of its corpus.
    pub name: &'static str,
    run: fn(&[u8]),
}

/// All of them. Those that are called like a plugin read a whole call of it, as [`skel::rehearse`] describes.
pub const TARGETS: &[Target] = &[
    target("bridge", call::<bridge::Bridge>),
    target("environment", environment),
    target("firewall", call::<firewall::Firewall>),
    target("host-local", call::<host_local::HostLocal>),
    target("loopback", call::<loopback::Loopback>),
    target("netlink-reply", netfilter::rehearse_reply),
    target("portmap", call::<portmap::Portmap>),
    target("ptp", call::<ptp::Ptp>),
    target("result", result),
    target("saved-rules", saved_rules),
    target("static", call::<static_ipam::Static>),
    target("tuning", call::<tuning::Tuning>),
];

const fn target(name: &'static str, run: fn(&[u8])) -> Target {
    Target { name, run }
}

/// Gives one input to the target of that name.
///
/// # Panics
///
/// If the target does not survive it, or there is none of that name.
pub fn try_out(name: &str, input: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name);
    let Some(target) = target else {
        panic!("there is no target {name}");
    };
    (target.run)(input);
}

fn call<P: skel::Plugin>(input: &[u8]) {
    // Refusing is an answer too.
    let _ = skel::rehearse::<P>(input);
}

/// Any variables, with a configuration that is in order.
fn environment(input: &[u8]) {
    let stdin =
        b"\n\n{\"cniVersion\": \"1.1.0\", \"name\": \"net\", \"type\": \"static\", \"ipam\": {\"type\": \"static\"}}";
    call::<static_ipam::Static>(&[input, stdin].concat());
}

/// A result of any version, written in every version that can express it, and read again.
fn result(input: &[u8]) {
    let Ok(value) = wire::parse(input) else { return };
    for assumed in Version::ALL {
        let Ok(read) = CniResult::from_value(&value, assumed) else {
            continue;
        };
        for version in Version::ALL {
            let Ok(document) = read.to_document(version) else {
                continue;
            };
            assert_eq!(again(&document, version), Some(document), "in {version}");
        }
    }
}

fn again(document: &serde_json::Value, version: Version) -> Option<serde_json::Value> {
    let text = serde_json::to_vec(document).ok()?;
    let read = CniResult::from_value(&wire::parse(&text).ok()?, version).ok()?;
    read.to_document(version).ok()
}

fn saved_rules(input: &[u8]) {
    netfilter::rehearse_saved(&String::from_utf8_lossy(input));
}
