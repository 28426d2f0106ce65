//! Reservations that were left behind, and those that were not.

use std::path::Path;

use serde_json::{Value, json};
use testkit::World;

use crate::pool::{Pool, addresses, ours};

/// A pool with one usable address, in a directory of the world's.
fn single(w: &World) -> Pool {
    Pool::at(w.tmp().join("data"), json!({ "subnet": "10.1.0.0/30" }))
}

/// From now on the world has another boot ID. Its mounts cover those that a reboot would change.
fn reboot(w: &World, boot: u8) {
    let file = w.tmp().join("boot_id");
    std::fs::write(&file, format!("{boot:08x}-0000-4000-8000-000000000000\n")).unwrap();
    w.try_sh("umount /proc/sys/kernel/random/boot_id");
    w.sh(&format!(
        "mount --bind {} /proc/sys/kernel/random/boot_id",
        file.display()
    ));
}

const FULL: &str = "failed to allocate for range 0: no IP addresses available in range set: 10.1.0.1-10.1.0.2";

#[test]
fn a_container_restarted_after_a_reboot_gets_its_address_again() {
    testkit::world(|w| {
        let pool = Pool::at(
            w.tmp().join("data"),
            json!({ "subnet": "10.1.0.0/29", "reclaim": "never" }),
        );
        let netns = w.netns("a");
        assert_eq!(addresses(&pool.add_in("c1", &netns)), ["10.1.0.2"]);
        pool.add("c2").success();
        assert_eq!(pool.add_in("c1", &netns).error().0, 999);
        reboot(w, 1);
        let reply = pool.add_in("c1", &netns);
        assert_eq!(addresses(&reply), ["10.1.0.2"]);
        assert!(reply.stderr.contains("from before the last boot"), "{}", reply.stderr);
        assert_eq!(pool.add_in("c1", &netns).error().0, 999, "it lives in this boot now");
        assert_eq!(pool.reserved().len(), 2);
    });
}

#[test]
fn a_second_add_replaces_the_first_if_its_namespace_is_gone() {
    testkit::world(|w| {
        let pool = single(w);
        let (a, b) = (w.netns("a"), w.netns("b"));
        assert_eq!(addresses(&pool.add_in("c1", &a)), ["10.1.0.2"]);
        let (code, msg) = pool.add_in("c1", &b).error();
        assert_eq!(
            (code, msg.as_str()),
            (
                999,
                "failed to allocate for range 0: 10.1.0.2 has been allocated to c1, duplicate allocation is not allowed"
            )
        );
        w.sh("ip netns del a");
        let reply = pool.add_in("c1", &b);
        assert_eq!(addresses(&reply), ["10.1.0.2"]);
        assert!(
            reply.stderr.contains("its network namespace is gone"),
            "{}",
            reply.stderr
        );
    });
}

#[test]
fn an_exhausted_pool_takes_back_what_nobody_stands_behind() {
    testkit::world(|w| {
        let pool = single(w);
        let (a, b) = (w.netns("a"), w.netns("b"));
        pool.add_in("c1", &a).success();
        assert_eq!(pool.add_in("c2", &b).error(), (999, FULL.to_owned()));
        assert_eq!(pool.status().error().0, 50);
        w.sh("ip netns del a");
        pool.status().silent();
        assert_eq!(pool.reserved()["10.1.0.2"], "c1\r\neth0", "STATUS changes nothing");
        assert_eq!(
            pool.with(json!({ "subnet": "10.1.0.0/30", "reclaim": "never" }))
                .add_in("c2", &b)
                .error()
                .0,
            999
        );
        let reply = pool.add_in("c2", &b);
        assert_eq!(addresses(&reply), ["10.1.0.2"]);
        assert!(
            reply.stderr.contains("10.1.0.2 is held by container c1 interface eth0"),
            "{}",
            reply.stderr
        );
        assert!(reply.stderr.contains("taken back"), "{}", reply.stderr);
        assert_eq!(pool.reserved().into_values().collect::<Vec<_>>(), ["c2\r\neth0"]);
    });
}

#[test]
fn only_an_exhausted_pool_does_unless_told_always() {
    testkit::world(|w| {
        let conf = |reclaim: &str| json!({ "subnet": "10.1.0.0/29", "reclaim": reclaim });
        let pool = Pool::at(w.tmp().join("data"), json!({ "subnet": "10.1.0.0/29" }));
        pool.add_in("c1", &w.netns("a")).success();
        w.sh("ip netns del a");
        pool.add_in("c2", &w.netns("b")).success();
        assert_eq!(pool.reserved().len(), 2);
        pool.with(conf("always")).add_in("c3", &w.netns("c")).success();
        assert_eq!(
            pool.reserved().into_values().collect::<Vec<_>>(),
            ["c2\r\neth0", "c3\r\neth0"]
        );
    });
}

#[test]
fn a_requested_address_is_taken_back_alone() {
    testkit::world(|w| {
        let pool = Pool::at(w.tmp().join("data"), json!({ "subnet": "10.1.0.0/29" }));
        for id in ["a", "b"] {
            pool.add_in(id, &w.netns(id)).success();
        }
        w.sh("ip netns del a; ip netns del b");
        let more = Value::Null;
        let reply = pool.call_of(ours(), "ADD", "c", &[("CNI_ARGS", "IP=10.1.0.2")], &more);
        assert_eq!(addresses(&reply), ["10.1.0.2"]);
        assert_eq!(
            pool.reserved().into_values().collect::<Vec<_>>(),
            ["c\r\neth0", "b\r\neth0"]
        );
    });
}

/// Whether an ADD for another container finds the pool's only address still held.
fn is_kept(pool: &Pool, w: &World) -> bool {
    w.try_sh("ip netns add other");
    pool.add_in("other", Path::new("/run/netns/other")).code == Some(1)
}

#[test]
fn a_namespace_that_exists_keeps_its_address() {
    testkit::world(|w| {
        let pool = single(w);
        pool.add_in("c1", &w.netns("a")).success();
        w.sh("touch /run/elsewhere; mount --bind /run/netns/a /run/elsewhere; ip netns del a");
        assert!(is_kept(&pool, w), "mounted at another place");
        let mut process = std::process::Command::new("nsenter")
            .args(["--net=/run/elsewhere", "sh", "-c", "echo; read _"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        // Its first line tells that it is inside.
        std::io::Read::read_exact(&mut process.stdout.take().unwrap(), &mut [0]).unwrap();
        w.sh("umount /run/elsewhere");
        assert!(is_kept(&pool, w), "a process is in it");
        drop(process.stdin.take());
        process.wait().unwrap();
        assert!(!is_kept(&pool, w), "nothing keeps it");
    });
}

#[test]
fn a_path_that_leads_to_another_namespace_now_does_not_keep_the_address() {
    testkit::world(|w| {
        let pool = single(w);
        pool.add_in("c1", &w.netns("a")).success();
        // With luck the new one even has the old one's inode: the cookie tells them apart.
        w.sh("ip netns del a; ip netns add a");
        assert!(!is_kept(&pool, w));
    });
}

/// A pool whose only address is held for a namespace that is gone.
fn left_behind(w: &World) -> Pool {
    let pool = single(w);
    pool.add_in("c1", &w.netns("a")).success();
    w.sh("ip netns del a");
    pool
}

#[test]
fn other_namespaces_of_our_own_than_at_the_add_are_doubt() {
    testkit::world(|w| {
        let pool = left_behind(w);
        for unshare in ["unshare -m", "unshare -p -f"] {
            let reply = w.try_sh(&in_namespaces(unshare, &pool));
            assert!(
                String::from_utf8_lossy(&reply.stdout).contains(FULL),
                "{unshare}: {reply:?}"
            );
        }
        assert!(!is_kept(&pool, w), "but for them it would be taken back");
    });
}

#[test]
fn another_machine_is_doubt_even_after_a_boot() {
    testkit::world(|w| {
        let pool = left_behind(w);
        w.sh("tr 0-9a-f 1-9a-f0 < /etc/machine-id > /run/id; mount --bind /run/id /etc/machine-id");
        assert!(is_kept(&pool, w));
        reboot(w, 2);
        assert!(is_kept(&pool, w), "another machine boots when it likes");
        w.sh("umount /etc/machine-id");
        assert!(!is_kept(&pool, w), "but for that it would be taken back");
    });
}

#[test]
fn a_file_system_that_others_may_share_is_doubt() {
    testkit::world(|w| {
        // Not one of those that are known to be of one machine alone.
        w.sh("mkdir /run/shared; mount -t ramfs ramfs /run/shared");
        let pool = Pool::at("/run/shared/data".into(), json!({ "subnet": "10.1.0.0/30" }));
        pool.add_in("c1", &w.netns("a")).success();
        w.sh("ip netns del a");
        assert!(is_kept(&pool, w));
        reboot(w, 1);
        assert!(is_kept(&pool, w));
        assert_eq!(
            std::fs::read_dir(pool.cache().join("n")).unwrap().count(),
            0,
            "no cache is kept there"
        );
        pool.del("c1").silent();
        assert_eq!(pool.addresses("c2"), ["10.1.0.2"]);
    });
}

#[test]
fn a_lost_cache_is_doubt() {
    testkit::world(|w| {
        let pool = left_behind(w);
        std::fs::remove_dir_all(pool.cache()).unwrap();
        assert!(is_kept(&pool, w));
    });
}

#[test]
fn a_hidden_proc_is_doubt() {
    testkit::world(|w| {
        let pool = left_behind(w);
        w.sh("mount -t proc -o hidepid=2 proc /proc");
        assert!(is_kept(&pool, w));
        w.sh("umount /proc");
        assert!(!is_kept(&pool, w), "but for that it would be taken back");
    });
}

fn in_namespaces(unshare: &str, pool: &Pool) -> String {
    format!(
        "ip netns add other 2>/dev/null || true; printf '%s' '{}' | CNI_COMMAND=ADD CNI_CONTAINERID=other CNI_NETNS=/run/netns/other \
         CNI_IFNAME=eth0 CNI_PATH=/x {unshare} {}",
        pool.conf(&Value::Null),
        ours().display()
    )
}

#[test]
fn a_foreign_reservation_is_taken_back_if_it_was_seen_before_this_boot() {
    testkit::world(|w| {
        let pool = single(w);
        pool.write("10.1.0.2", "foreign\r\neth0");
        assert!(is_kept(&pool, w), "not seen before");
        assert!(is_kept(&pool, w), "seen in this boot");
        reboot(w, 1);
        assert!(!is_kept(&pool, w), "seen before this boot");
        assert_eq!(pool.reserved().into_values().collect::<Vec<_>>(), ["other\r\neth0"]);
    });
}

#[test]
fn a_foreign_reservation_that_changed_since_it_was_seen_is_not_taken_back() {
    testkit::world(|w| {
        let pool = single(w);
        pool.write("10.1.0.2", "foreign\r\neth0");
        assert!(is_kept(&pool, w));
        reboot(w, 1);
        w.sh(&format!(
            "rm {0}; printf 'again\\r\\neth0' > {0}",
            pool.file("10.1.0.2").display()
        ));
        assert!(is_kept(&pool, w), "another file than the one that was seen");
        w.sh(&format!("chmod 640 {}", pool.file("10.1.0.2").display()));
        reboot(w, 2);
        assert!(is_kept(&pool, w), "touched since it was seen");
        reboot(w, 3);
        assert!(!is_kept(&pool, w));
    });
}

#[test]
fn a_reservation_without_a_namespace_is_taken_back_after_a_reboot_only() {
    testkit::world(|w| {
        let pool = single(w);
        pool.add("c1").success();
        assert!(is_kept(&pool, w));
        reboot(w, 1);
        assert!(!is_kept(&pool, w));
    });
}
