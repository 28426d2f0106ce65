//! Processes that die, disks that are full, and files that hold nothing.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::pool::{Pool, ours};
use crate::strace::{Nth, killed, strace, system_calls};

fn dual() -> Pool {
    let pool = Pool::new(json!({ "ranges": [[{ "subnet": "10.1.0.0/29" }], [{ "subnet": "fd00::/125" }]] }));
    for id in ["a", "b"] {
        pool.add(id).success();
    }
    pool
}

/// The pool holds exactly the two addresses of a and b, and gives away and takes back all others.
fn assert_whole(pool: &Pool, at: &Nth) {
    let held = pool.reserved();
    assert_eq!(held.len(), 4, "at {at:?}: {held:?}");
    let foreign = held
        .values()
        .find(|owner| *owner != "a\r\neth0" && *owner != "b\r\neth0");
    assert_eq!(foreign, None, "at {at:?}");
    for id in ["x1", "x2", "x3"] {
        assert_eq!(pool.add(id).code, Some(0), "at {at:?}, {id}");
    }
    assert!(
        pool.add("x4").error().1.contains("no IP addresses available"),
        "at {at:?}"
    );
    for id in ["x1", "x2", "x3"] {
        pool.del(id).silent();
    }
    assert_eq!(pool.reserved(), held, "at {at:?}");
}

#[test]
fn an_add_killed_at_any_system_call_loses_nothing() {
    let pool = dual();
    let calls = system_calls(&pool, "ADD", "victim", &Value::Null);
    assert!(
        calls.iter().filter(|(name, _)| name == "linkat").count() == 2,
        "{calls:?}"
    );
    pool.del("victim").silent();
    for at in calls {
        assert!(
            !killed(&pool, "ADD", "victim", &Value::Null, &at),
            "{at:?} was not reached"
        );
        for (name, owner) in pool.reserved() {
            assert!(
                ["a\r\neth0", "b\r\neth0", "victim\r\neth0"].contains(&owner.as_str()),
                "{name} at {at:?}: {owner:?}"
            );
        }
        pool.del("victim").silent();
        assert_whole(&pool, &at);
    }
}

#[test]
fn a_del_killed_at_any_system_call_loses_nothing() {
    let pool = dual();
    pool.add("victim").success();
    let calls = system_calls(&pool, "DEL", "victim", &Value::Null);
    assert!(
        calls.iter().filter(|(name, _)| name == "unlinkat").count() == 2,
        "{calls:?}"
    );
    for at in calls {
        pool.add("victim").success();
        assert!(
            !killed(&pool, "DEL", "victim", &Value::Null, &at),
            "{at:?} was not reached"
        );
        pool.del("victim").silent();
        assert_whole(&pool, &at);
    }
}

#[test]
fn a_gc_killed_at_any_system_call_is_finished_by_the_next() {
    let pool = dual();
    let gc = pool.with(json!({}));
    let valid = json!([{ "containerID": "a", "ifname": "eth0" }, { "containerID": "b", "ifname": "eth0" }]);
    let more = json!({ "cni.dev/valid-attachments": valid });
    let litter = || {
        pool.write("10.1.0.6", "gone\r\neth0");
        pool.write("fd00::6", "gone\r\neth0");
    };
    litter();
    for at in system_calls(&gc, "GC", "", &more) {
        litter();
        killed(&gc, "GC", "", &more, &at);
        gc.gc(&valid).silent();
        assert_eq!(pool.reserved().len(), 4, "at {at:?}");
    }
    assert_whole(&pool, &("the end".to_owned(), 1));
}

#[test]
fn files_that_hold_nothing_are_free() {
    for junk in ["", "\0\0\0\0", " \r\n", "\0\n"] {
        let pool = Pool::subnet("10.1.0.0/29");
        for at in 2..=6 {
            pool.write(&format!("10.1.0.{at}"), junk);
        }
        let reply = pool.add("e1");
        assert_eq!(crate::pool::addresses(&reply), ["10.1.0.2"], "{junk:?}");
        assert!(reply.stderr.contains("10.1.0.2: no owner in it"), "{}", reply.stderr);
        assert_eq!(pool.reserved()["10.1.0.2"], "e1\r\neth0");
        for (id, ip) in [("e2", "10.1.0.3"), ("e3", "10.1.0.4")] {
            assert_eq!(pool.addresses(id), [ip], "from the cache");
        }
        pool.call_of(ours(), "ADD", "e5", &[("CNI_ARGS", "IP=10.1.0.6")], &Value::Null)
            .success();
    }
}

#[test]
fn a_file_that_cannot_be_read_is_taken() {
    let pool = Pool::subnet("10.1.0.0/29");
    fs::create_dir_all(pool.file("10.1.0.2")).unwrap();
    let reply = pool.add("a");
    assert_eq!(crate::pool::addresses(&reply), ["10.1.0.3"]);
    assert!(reply.stderr.contains("10.1.0.2"), "{}", reply.stderr);
    pool.gc(&json!([])).silent();
    assert!(pool.file("10.1.0.2").exists());
}

#[test]
fn a_full_disk_leaves_nothing_behind() {
    testkit::world(|w| {
        w.sh("mkdir /run/data; mount -t tmpfs -o size=64k,nr_inodes=1k tmpfs /run/data");
        let pool = Pool::at(
            "/run/data".into(),
            json!({ "ranges": [[{ "subnet": "10.1.0.0/29" }], [{ "subnet": "fd00::/125" }]] }),
        );
        pool.add("a").success();
        let before = (pool.reserved(), pool.cursor(0), pool.cursor(1));
        w.try_sh("head -c 10M /dev/zero > /run/data/fill");
        let full = pool.add("b");
        assert_eq!(full.error().0, 5, "{full:?}");
        assert!(full.stdout.contains("No space left on device"), "{}", full.stdout);
        assert_eq!((pool.reserved(), pool.cursor(0), pool.cursor(1)), before);
        assert_eq!(pool.status().error().0, 50);
        pool.del("a").silent();
        assert_eq!(pool.reserved().len(), 0, "a full disk does not keep a DEL from freeing");
        w.sh("rm /run/data/fill");
        assert_eq!(pool.addresses("b"), ["10.1.0.3", "fd00::3"]);
    });
}

#[test]
fn a_full_inode_table_leaves_nothing_behind() {
    testkit::world(|w| {
        // The number at which an ADD begins to fail moves through all of its files.
        for inodes in 2..24 {
            w.sh(&format!(
                "mkdir -p /run/data; mount -t tmpfs -o nr_inodes={inodes} tmpfs /run/data"
            ));
            let pool = Pool::at(
                "/run/data".into(),
                json!({ "ranges": [[{ "subnet": "10.1.0.0/29" }], [{ "subnet": "fd00::/125" }]] }),
            );
            let mut cursors = (None, None);
            for id in ["a", "b", "c"] {
                let before = pool.reserved();
                let reply = pool.add(id);
                if reply.code == Some(0) {
                    cursors = (pool.cursor(0), pool.cursor(1));
                    assert_eq!(pool.reserved().len(), before.len() + 2);
                } else {
                    assert_eq!(reply.error().0, 5, "{reply:?}");
                    assert_eq!(pool.reserved(), before, "{inodes} inodes");
                    assert_eq!((pool.cursor(0), pool.cursor(1)), cursors, "{inodes} inodes");
                }
            }
            for id in ["a", "b", "c"] {
                pool.del(id).silent();
            }
            assert_eq!(pool.reserved().len(), 0);
            w.sh("umount /run/data");
        }
    });
}

#[test]
fn file_systems_without_unnamed_files_or_links_do() {
    for no_links in [false, true] {
        let pool = Pool::subnet("10.1.0.0/29");
        pool.add("a").success();
        let no_unnamed = format!("inject=openat:error=EOPNOTSUPP:when={}", nth_tmpfile(&pool));
        let mut inject = vec!["-e", &no_unnamed];
        if no_links {
            inject.extend(["-e", "inject=linkat:error=EPERM"]);
        }
        assert!(
            strace(&pool, "ADD", "b", &Value::Null, &inject).succeeded,
            "without links: {no_links}"
        );
        assert_eq!(
            pool.reserved().into_values().collect::<Vec<_>>(),
            ["a\r\neth0", "b\r\neth0"]
        );
        assert_eq!(
            fs::read_dir(pool.cache().join("n")).unwrap().count(),
            2,
            "no temporary file is left"
        );
        for id in ["a", "b"] {
            pool.del(id).silent();
        }
        assert_eq!(pool.reserved().len(), 0);
    }
}

#[test]
fn a_result_that_cannot_be_written_leaves_nothing_behind() {
    let pool = dual();
    let before = (pool.reserved(), pool.cursor(0), pool.cursor(1));
    let mut child = Command::new(ours())
        .envs([
            ("CNI_COMMAND", "ADD"),
            ("CNI_CONTAINERID", "c"),
            ("CNI_NETNS", "/nowhere"),
        ])
        .envs([("CNI_IFNAME", "eth0"), ("CNI_PATH", "/nowhere")])
        .stdin(Stdio::piped())
        .stdout(fs::File::options().write(true).open("/dev/full").unwrap())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), pool.conf(&Value::Null).as_bytes()).unwrap();
    assert!(!child.wait().unwrap().success());
    assert_eq!((pool.reserved(), pool.cursor(0), pool.cursor(1)), before);
    assert_whole(&pool, &("its output".to_owned(), 1));
}

/// The number of the `openat` with which an ADD asks for an unnamed file.
fn nth_tmpfile(pool: &Pool) -> usize {
    let traced = strace(pool, "ADD", "b", &Value::Null, &["-e", "trace=openat"]);
    pool.del("b").silent();
    let at = traced.calls.iter().position(|call| call.contains("O_TMPFILE"));
    at.expect("an unnamed file") + 1
}
