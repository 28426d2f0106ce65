//! What lies on disk, and that both suites understand each other.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use crate::pool::{Pool, addresses, ours, reference};

fn mode(path: std::path::PathBuf) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn reservations_cursors_and_lock_are_those_of_the_reference() {
    let pool = Pool::new(json!({ "ranges": [[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "fd00:1::/64" }]] }));
    assert_eq!(pool.addresses("c1"), ["10.1.0.2", "fd00:1::2"]);
    assert_eq!(fs::read(pool.file("10.1.0.2")).unwrap(), b"c1\r\neth0");
    assert_eq!(fs::read(pool.file("fd00:1::2")).unwrap(), b"c1\r\neth0");
    assert_eq!(pool.cursor(0).as_deref(), Some("10.1.0.2"));
    assert_eq!(pool.cursor(1).as_deref(), Some("fd00:1::2"));
    let names = fs::read_dir(pool.directory()).unwrap().count();
    assert_eq!(names, 5, "two reservations, two cursors, the lock");
    assert_eq!(mode(pool.directory()), 0o755);
    assert_eq!(mode(pool.file("lock")) & !0o027, 0o750 & !0o027);
    assert_eq!(mode(pool.file("10.1.0.2")), 0o600);
    assert_eq!(mode(pool.file("last_reserved_ip.0")), 0o600);
}

#[test]
fn the_suites_share_a_directory() {
    let Some(theirs) = reference() else { return };
    let pool = Pool::subnet("10.1.0.0/28");
    let add = |plugin, id| addresses(&pool.call_of(plugin, "ADD", id, &[], &Value::Null));
    assert_eq!(add(&theirs, "r1"), ["10.1.0.2"]);
    assert_eq!(add(ours(), "o1"), ["10.1.0.3"]);
    assert_eq!(add(&theirs, "r2"), ["10.1.0.4"]);
    assert_eq!(add(ours(), "o2"), ["10.1.0.5"]);
    for (plugin, id) in [
        (theirs.as_path(), "o1"),
        (ours(), "r1"),
        (ours(), "o2"),
        (&theirs, "r2"),
    ] {
        let prev = json!({ "cniVersion": "1.0.0", "prevResult": null });
        assert_eq!(
            pool.call_of(plugin, "CHECK", id, &[], &prev).code,
            Some(0),
            "CHECK {id}"
        );
        let (code, msg) = {
            let reply = pool.call_of(plugin, "ADD", id, &[], &Value::Null);
            let error: Value = serde_json::from_str(&reply.stdout).unwrap();
            (error["code"].as_u64(), error["msg"].as_str().unwrap().to_owned())
        };
        assert_eq!(code, Some(999));
        assert!(
            msg.ends_with(&format!(
                "has been allocated to {id}, duplicate allocation is not allowed"
            )),
            "{msg}"
        );
        pool.call_of(plugin, "DEL", id, &[], &Value::Null).silent();
    }
    assert_eq!(pool.reserved().len(), 0);
    assert_eq!(add(ours(), "o3"), ["10.1.0.6"], "the cursor goes on");
}

#[test]
fn names_of_files_with_the_container_alone_are_understood() {
    let pool = Pool::subnet("10.1.0.0/29");
    pool.write("10.1.0.2", "oldid");
    let (code, msg) = pool.add("oldid").error();
    assert_eq!(
        (code, msg.as_str()),
        (
            999,
            "failed to allocate for range 0: 10.1.0.2 has been allocated to oldid, duplicate allocation is not allowed"
        )
    );
    pool.call("CHECK", "oldid", &Value::Null).silent();
    assert_eq!(
        pool.call("CHECK", "other", &Value::Null).error().1,
        "host-local: Failed to find address added by container other"
    );
    pool.del("old").silent();
    assert_eq!(pool.reserved().len(), 1);
    pool.del("oldid").silent();
    assert_eq!(pool.reserved().len(), 0);
}

#[test]
fn a_file_of_the_container_alone_stays_while_one_names_the_interface() {
    let pool = Pool::subnet("10.1.0.0/29");
    pool.write("10.1.0.2", "c1");
    pool.write("10.1.0.3", "c1\r\neth0");
    for _ in 0..2 {
        pool.del("c1").silent();
    }
    assert_eq!(pool.reserved().len(), 0);
    pool.write("10.1.0.2", "c1");
    pool.write("10.1.0.3", "c1\r\neth0");
    pool.del("c1").silent();
    assert_eq!(pool.reserved().into_keys().collect::<Vec<_>>(), ["10.1.0.2"]);
}

#[test]
fn a_cursor_that_is_no_address_starts_over() {
    let pool = Pool::subnet("10.1.0.0/29");
    for cursor in ["junk", "", "10.9.9.9", "fd00::1"] {
        pool.write("last_reserved_ip.0", cursor);
        assert_eq!(pool.addresses("c"), ["10.1.0.2"], "{cursor:?}");
        pool.del("c").silent();
    }
    pool.write("last_reserved_ip.0", "10.1.0.4\n");
    assert_eq!(pool.addresses("c"), ["10.1.0.5"]);
}

#[test]
fn removing_the_network_s_directory_starts_over() {
    let pool = Pool::subnet("10.1.0.0/29");
    for id in ["a", "b"] {
        pool.add(id).success();
    }
    fs::remove_dir_all(pool.directory()).unwrap();
    assert_eq!(pool.addresses("a"), ["10.1.0.2"]);
    fs::remove_dir_all(pool.cache()).unwrap();
    assert_eq!(pool.addresses("b"), ["10.1.0.3"]);
    assert_eq!(pool.add("b").error().0, 999);
}

#[test]
fn an_owner_of_many_files_loses_all_of_them() {
    let pool = Pool::subnet("10.1.0.0/24");
    pool.add("a").success();
    for at in 100..150 {
        pool.write(&format!("10.1.0.{at}"), "many\r\neth0");
    }
    pool.add("b").success();
    pool.del("many").silent();
    assert_eq!(pool.reserved().len(), 2);
}
