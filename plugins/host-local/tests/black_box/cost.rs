//! What an ADD and a DEL cost, counted in system calls.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use crate::pool::{Pool, ours};

/// Runs a call under strace and counts its system calls by name.
fn system_calls(pool: &Pool, verb: &str, id: &str) -> BTreeMap<String, usize> {
    let trace = pool.data().join("trace");
    let mut child = Command::new("strace")
        .args(["-f", "-qq", "-o", trace.to_str().unwrap()])
        .arg(ours())
        .envs([
            ("CNI_COMMAND", verb),
            ("CNI_CONTAINERID", id),
            ("CNI_NETNS", "/nowhere"),
        ])
        .envs([("CNI_IFNAME", "eth0"), ("CNI_PATH", "/nowhere")])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("strace: scripts/test installs it");
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), pool.conf(&().into()).as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
    let mut counts = BTreeMap::new();
    for line in std::fs::read_to_string(trace).unwrap().lines() {
        let call = line.split_whitespace().nth(1).unwrap_or_default();
        if let Some((name, _)) = call.split_once('(') {
            *counts.entry(name.to_owned()).or_default() += 1;
        }
    }
    counts
}

/// The calls of an ADD and a DEL in a pool of so many addresses held.
fn at(held: u32) -> [BTreeMap<String, usize>; 2] {
    let pool = Pool::subnet("10.0.0.0/16");
    for at in 0..held {
        let ip = std::net::Ipv4Addr::from(0x0a00_1000 + at).to_string();
        pool.write(&ip, &format!("{at:064x}\r\neth0"));
    }
    // The first call finds files of somebody else and reads them all.
    pool.add("first").success();
    let calls = [
        system_calls(&pool, "ADD", "second"),
        system_calls(&pool, "DEL", "first"),
    ];
    assert_eq!(pool.reserved().len(), held as usize + 1);
    calls
}

#[test]
fn add_and_del_do_the_same_whatever_is_held() {
    let [few, many] = [at(10), at(10_000)];
    assert_eq!(few, many);
    for calls in few {
        assert_eq!(calls.get("getdents64"), None, "no directory is read");
    }
}

#[test]
fn the_one_free_address_is_found_without_trying_the_others() {
    let pool = Pool::subnet("10.0.0.0/20");
    for at in (2..4095).filter(|at| ![100, 2000].contains(at)) {
        let ip = std::net::Ipv4Addr::from(0x0a00_0000 + at).to_string();
        pool.write(&ip, &format!("{at:064x}\r\neth0"));
    }
    assert_eq!(pool.addresses("first"), ["10.0.0.100"]);
    assert_eq!(system_calls(&pool, "ADD", "second").get("linkat"), Some(&1));
    assert!(pool.file("10.0.7.208").exists());
}
