//! What an ADD and a DEL cost, counted in system calls.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::pool::Pool;
use crate::strace::system_calls;

/// How often a call makes each system call.
fn counts(pool: &Pool, verb: &str, id: &str) -> BTreeMap<String, usize> {
    // The last of each name has the highest number.
    system_calls(pool, verb, id, &Value::Null).into_iter().collect()
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
    let calls = [counts(&pool, "ADD", "second"), counts(&pool, "DEL", "first")];
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
    assert_eq!(counts(&pool, "ADD", "second").get("linkat"), Some(&1));
    assert!(pool.file("10.0.7.208").exists());
}
