//! Calls of the plugin under strace, which counts its system calls, fails them, or kills it at one of them.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::pool::{Pool, ours};

/// How a call under strace ended.
pub(crate) struct Traced {
    /// It exited with success.
    pub(crate) succeeded: bool,
    /// Its system calls, one a line.
    pub(crate) calls: Vec<String>,
}

/// Calls the plugin under strace with these options.
pub(crate) fn strace(pool: &Pool, verb: &str, id: &str, more: &Value, options: &[&str]) -> Traced {
    // Not in the pool's directory, which may be the one that is full or not there.
    let serial = pool.data().file_name().unwrap().to_str().unwrap();
    let log = std::env::temp_dir().join(format!("strace-{serial}"));
    let mut child = Command::new("strace")
        .args(["-qq", "-o", log.to_str().unwrap()])
        .args(options)
        .arg(ours())
        .envs([
            ("CNI_COMMAND", verb),
            ("CNI_CONTAINERID", id),
            ("CNI_NETNS", "/nowhere"),
        ])
        .envs([("CNI_IFNAME", "eth0"), ("CNI_PATH", "/nowhere")])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("strace: scripts/test installs it");
    // It may be gone before it reads.
    let _ = std::io::Write::write_all(&mut child.stdin.take().unwrap(), pool.conf(more).as_bytes());
    let succeeded = child.wait().unwrap().success();
    let calls = fs::read_to_string(&log)
        .unwrap_or_default()
        .lines()
        .map(str::to_owned)
        .collect();
    let _ = fs::remove_file(log);
    Traced { succeeded, calls }
}

/// One of a call's system calls: its name, and how many of that name there are up to it.
pub(crate) type Nth = (String, usize);

/// A call that is killed at the entry of one of its system calls; whether it got to its end before.
pub(crate) fn killed(pool: &Pool, verb: &str, id: &str, more: &Value, (name, number): &Nth) -> bool {
    // strace counts each name for itself.
    strace(
        pool,
        verb,
        id,
        more,
        &["-e", &format!("inject={name}:signal=KILL:when={number}")],
    )
    .succeeded
}

/// The system calls of a call that succeeds, from reading the configuration on: before that the plugin can do nothing
/// to anybody.
pub(crate) fn system_calls(pool: &Pool, verb: &str, id: &str, more: &Value) -> Vec<Nth> {
    let traced = strace(pool, verb, id, more, &[]);
    assert!(traced.succeeded);
    let first = traced
        .calls
        .iter()
        .position(|call| call.starts_with("read(0,"))
        .expect("standard input is read");
    let mut counts = BTreeMap::<String, usize>::new();
    let names = traced
        .calls
        .iter()
        .filter_map(|call| call.split_once('('))
        .map(|(name, _)| name.to_owned());
    let all = names.map(|name| {
        let count = counts.entry(name.clone()).or_default();
        *count += 1;
        (name, *count)
    });
    all.skip(first).collect()
}
