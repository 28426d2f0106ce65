//! ADD, CHECK, DEL, GC and STATUS.

use std::fs;

use serde_json::{Value, json};

use crate::pool::{Pool, addresses, ours};

#[test]
fn addresses_are_given_in_turn() {
    let pool = Pool::subnet("10.1.0.0/29");
    let full = "failed to allocate for range 0: no IP addresses available in range set: 10.1.0.1-10.1.0.6";
    for (id, ip) in [("a", "2"), ("b", "3"), ("c", "4"), ("d", "5"), ("e", "6")] {
        assert_eq!(pool.addresses(id), [format!("10.1.0.{ip}")]);
    }
    assert_eq!(pool.add("f").error(), (999, full.to_owned()));
    pool.del("a").silent();
    pool.del("c").silent();
    assert_eq!(pool.addresses("f"), ["10.1.0.2"]);
    assert_eq!(pool.addresses("g"), ["10.1.0.4"]);
    assert_eq!(pool.add("h").error().1, full);
}

#[test]
fn one_container_has_an_address_for_each_interface() {
    let pool = Pool::subnet("10.1.0.0/29");
    pool.add("c1").success();
    let second = |verb| pool.call_of(ours(), verb, "c1", &[("CNI_IFNAME", "eth1")], &Value::Null);
    assert_eq!(addresses(&second("ADD")), ["10.1.0.3"]);
    second("DEL").silent();
    assert_eq!(pool.reserved().into_values().collect::<Vec<_>>(), ["c1\r\neth0"]);
}

#[test]
fn the_smallest_pools_work() {
    for (subnet, addresses, gateway) in [
        ("10.1.0.0/31", &["10.1.0.0"][..], Some("10.1.0.1")),
        ("10.1.0.4/32", &["10.1.0.4"], None),
        ("fd00::/127", &["fd00::"], Some("fd00::1")),
        ("fd00::4/128", &["fd00::4"], None),
        ("fd00::/126", &["fd00::2", "fd00::3"], Some("fd00::1")),
    ] {
        let pool = Pool::subnet(subnet);
        for (at, address) in addresses.iter().enumerate() {
            let result = pool.add(&format!("c{at}")).success();
            let prefix = subnet.split('/').nth(1).unwrap();
            assert_eq!(result["ips"][0]["address"], format!("{address}/{prefix}"));
            assert_eq!(
                result["ips"][0].get("gateway").and_then(Value::as_str),
                gateway,
                "{subnet}"
            );
        }
        assert!(
            pool.add("last").error().1.contains("no IP addresses available"),
            "{subnet}"
        );
    }
    let pool = Pool::new(json!({ "subnet": "10.1.0.0/31", "gateway": "169.254.1.1" }));
    assert_eq!(
        (pool.addresses("a"), pool.addresses("b")),
        (vec!["10.1.0.0".into()], vec!["10.1.0.1".into()])
    );
}

#[test]
fn a_large_ipv6_range_is_no_list() {
    let pool = Pool::new(
        json!({ "ranges": [[{ "subnet": "fd00::/8", "rangeStart": "fd00::ffff:ffff:ffff:fffe" }]], "exclude": ["fd00:0:0:1::/64"] }),
    );
    assert_eq!(pool.addresses("a"), ["fd00::ffff:ffff:ffff:fffe"]);
    assert_eq!(pool.addresses("b"), ["fd00::ffff:ffff:ffff:ffff"]);
    assert_eq!(pool.addresses("c"), ["fd00:0:0:2::"]);
    pool.del("a").silent();
    assert_eq!(pool.addresses("d"), ["fd00:0:0:2::1"]);
}

#[test]
fn gateway_network_broadcast_and_excluded_addresses_are_never_given() {
    let pool = Pool::new(json!({
        "subnet": "10.1.0.0/29", "rangeStart": "10.1.0.0", "rangeEnd": "10.1.0.7", "gateway": "10.1.0.3", "exclude": ["10.1.0.4/31"],
    }));
    let given: Vec<String> = ["a", "b", "c"].iter().flat_map(|id| pool.addresses(id)).collect();
    assert_eq!(given, ["10.1.0.1", "10.1.0.2", "10.1.0.6"]);
    assert!(pool.add("d").error().1.contains("no IP addresses available"));
    for ip in ["10.1.0.0", "10.1.0.5", "10.1.0.7"] {
        let reply = pool.call_of(ours(), "ADD", "e", &[("CNI_ARGS", &format!("IP={ip}"))], &Value::Null);
        assert!(
            reply
                .error()
                .1
                .starts_with(&format!("failed to allocate for range 0: requested ip {ip} ")),
            "{ip}"
        );
    }
}

#[test]
fn requested_addresses_come_from_all_three_places() {
    let pool = Pool::new(
        json!({ "ranges": [[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "10.2.0.0/24" }], [{ "subnet": "fd00::/64" }]] }),
    );
    let more = json!({ "args": { "cni": { "ips": ["10.2.0.9"] } }, "runtimeConfig": { "ips": ["fd00::10/64"] } });
    let reply = pool.call_of(
        ours(),
        "ADD",
        "c",
        &[("CNI_ARGS", "IgnoreUnknown=1;K=v;IP=10.1.0.8")],
        &more,
    );
    assert_eq!(addresses(&reply), ["10.1.0.8", "10.2.0.9", "fd00::10"]);
    assert_eq!(pool.cursor(1).as_deref(), Some("10.2.0.9"));
}

#[test]
fn routes_and_dns_are_in_the_result() {
    let pool = Pool::subnet("10.1.0.0/24");
    fs::create_dir_all(pool.data()).unwrap();
    let resolv = pool.data().join("resolv.conf");
    fs::write(&resolv, "nameserver 9.9.9.9\nsearch a.b\noptions ndots:2\n").unwrap();
    let pool = pool.with(json!({
        "subnet": "10.1.0.0/24", "resolvConf": resolv,
        "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "10.9.0.0/16", "gw": "10.1.0.77", "mtu": 1400, "priority": 7, "table": 9 }],
    }));
    let result = pool.add("c").success();
    assert_eq!(
        result["dns"],
        json!({ "nameservers": ["9.9.9.9"], "search": ["a.b"], "options": ["ndots:2"] })
    );
    assert_eq!(
        result["routes"],
        json!([{ "dst": "0.0.0.0/0" }, { "dst": "10.9.0.0/16", "gw": "10.1.0.77", "mtu": 1400, "priority": 7, "table": 9 }])
    );
}

#[test]
fn check_compares_with_prev_result() {
    let pool = Pool::subnet("10.1.0.0/24");
    let mut prev = pool.add("c").success();
    prev["interfaces"] = json!([{ "name": "br0" }, { "name": "eth0", "sandbox": "/nowhere" }]);
    let check = |prev: &Value| pool.call("CHECK", "c", &json!({ "prevResult": prev }));
    check(&prev).silent();
    let mut foreign = prev.clone();
    foreign["ips"]
        .as_array_mut()
        .unwrap()
        .push(json!({ "address": "192.0.2.1/24", "interface": 1 }));
    check(&foreign).silent();
    let mut other = prev.clone();
    other["ips"][0]["address"] = "10.1.0.9/24".into();
    let missing = "host-local: Failed to find address added by container c";
    assert_eq!(check(&other).error().1, missing);
    fs::remove_file(pool.file("10.1.0.2")).unwrap();
    assert_eq!(check(&prev).error().1, missing);
}

#[test]
fn del_is_silent_about_what_is_not_there() {
    let pool = Pool::subnet("10.1.0.0/24");
    pool.del("never").silent();
    assert!(!pool.data().exists(), "a DEL makes nothing");
    pool.add("c").success();
    for _ in 0..2 {
        pool.del("c").silent();
    }
    let without_ipam =
        json!({ "ipam": { "type": "host-local", "dataDir": pool.data(), "ranges": "bad", "subnet": "10.1.0.5/24" } });
    pool.add("d").success();
    pool.call("DEL", "d", &without_ipam).silent();
    assert_eq!(pool.reserved().len(), 0);
}

#[test]
fn gc_removes_what_is_not_valid() {
    let pool = Pool::new(json!({ "ranges": [[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "fd00::/64" }]] }));
    for id in ["c1", "c2", "c3"] {
        pool.add(id).success();
    }
    pool.write("10.1.0.77", "old1");
    pool.write("10.1.0.78", "old2");
    let absent = pool.call("GC", "", &Value::Null);
    assert_eq!(absent.error().0, 7);
    assert_eq!(pool.reserved().len(), 8, "an absent key removes nothing");

    let bare = pool.with(json!({}));
    bare.gc(&json!([{ "containerID": "c1", "ifname": "eth0" }, { "containerID": "old1", "ifname": "net1" }, { "containerID": "c2", "ifname": "eth9" }])).silent();
    assert_eq!(
        pool.reserved().into_keys().collect::<Vec<_>>(),
        ["10.1.0.2", "10.1.0.77", "fd00::2"]
    );
    assert!(pool.file("lock").exists() && pool.cursor(0).is_some() && pool.cursor(1).is_some());
    assert_eq!(pool.addresses("c4"), ["10.1.0.5", "fd00::5"]);

    for nothing in [json!([]), Value::Null] {
        pool.write("10.1.0.99", "x\r\neth0");
        bare.gc(&nothing).silent();
        assert_eq!(pool.reserved().len(), 0, "{nothing}");
    }
    assert_eq!(
        pool.call(
            "GC",
            "",
            &json!({ "cniVersion": "1.0.0", "cni.dev/valid-attachments": [] })
        )
        .error()
        .0,
        1
    );
}

#[test]
fn status_tells_of_exhaustion() {
    let pool = Pool::subnet("10.1.0.0/30");
    pool.status().silent();
    assert!(!pool.data().exists(), "STATUS changes nothing");
    pool.add("a").success();
    let reply = pool.status();
    assert_eq!(reply.error(), (50, "no IP addresses available on network n".to_owned()));
    assert!(reply.stdout.contains("1 addresses, 1 held"), "{}", reply.stdout);
    pool.del("a").silent();
    pool.status().silent();
    pool.with(json!({})).status().silent();
    assert_eq!(
        pool.call("STATUS", "", &json!({ "cniVersion": "1.0.0" })).error(),
        (1, "config version does not allow STATUS".to_owned())
    );
}

#[test]
fn one_family_exhausted_is_exhausted() {
    let two = Pool::new(json!({ "ranges": [[{ "subnet": "10.1.0.0/30" }], [{ "subnet": "fd00::/64" }]] }));
    two.add("a").success();
    assert_eq!(two.status().error().0, 50);
    let spare = two.with(json!({ "ranges": [[{ "subnet": "10.1.0.0/30" }], [{ "subnet": "10.2.0.0/24" }]] }));
    spare.status().silent();
}

#[test]
fn status_tells_of_a_directory_that_cannot_be_made() {
    let pool = Pool::subnet("10.1.0.0/30");
    fs::create_dir_all(pool.data()).unwrap();
    fs::write(pool.data().join("file"), "").unwrap();
    let below = Pool::at(pool.data().join("file/below"), json!({ "subnet": "10.1.0.0/30" }));
    assert_eq!(below.status().error().0, 50);
    testkit::world(|w| {
        w.sh("mkdir /run/ro; mount -t tmpfs -o ro tmpfs /run/ro");
        let pool = Pool::at("/run/ro".into(), json!({ "subnet": "10.1.0.0/30" }));
        assert_eq!(pool.status().error().0, 50);
        assert_eq!(pool.add("a").error().0, 5);
    });
}
