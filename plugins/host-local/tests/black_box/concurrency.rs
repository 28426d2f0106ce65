//! Many processes on one directory.

use std::collections::BTreeSet;
use std::path::Path;
use std::thread;

use serde_json::Value;

use crate::pool::{Pool, addresses, ours, reference};

/// A hundred ADDs at once, the plugin of each chosen by its number, then a hundred DELs.
fn storm(plugin: impl Fn(usize) -> &'static Path + Sync) {
    let pool = Pool::subnet("10.1.0.0/24");
    let call = |verb: &'static str| {
        thread::scope(|scope| {
            let call = |at: usize| pool.call_of(plugin(at), verb, &format!("c{at}"), &[], &Value::Null);
            let started: Vec<_> = (0..100).map(|at| scope.spawn(move || call(at))).collect();
            started.into_iter().map(|call| call.join().unwrap()).collect::<Vec<_>>()
        })
    };
    let given: BTreeSet<String> = call("ADD").iter().flat_map(addresses).collect();
    assert_eq!(given.len(), 100, "all addresses are distinct");
    let reserved = pool.reserved();
    assert_eq!(reserved.keys().cloned().collect::<BTreeSet<_>>(), given, "none is lost");
    let owners: BTreeSet<&String> = reserved.values().collect();
    assert_eq!(owners.len(), 100);
    call("DEL").iter().for_each(|reply| reply.silent());
    assert_eq!(pool.reserved().len(), 0);
}

#[test]
fn a_hundred_processes() {
    storm(|_| ours());
}

#[test]
fn a_hundred_processes_half_of_them_the_reference_s() {
    let Some(theirs) = reference() else { return };
    let theirs: &'static Path = Box::leak(theirs.into_boxed_path());
    storm(|at| if at % 2 == 0 { ours() } else { theirs });
}
