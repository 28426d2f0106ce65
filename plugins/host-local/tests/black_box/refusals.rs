//! Configurations and requests that are refused, with the reference's texts, and nothing written.

use serde_json::{Value, json};

use crate::pool::{Pool, ours, reference};

/// `ipam` keys, other keys, `CNI_ARGS`, and the beginning of the message.
fn refused() -> Vec<(Value, Value, &'static str, u64, &'static str)> {
    let none = Value::Null;
    let pool = json!({ "subnet": "10.1.0.0/24" });
    vec![
        (
            json!({"subnet": "10.1.0.5/24"}),
            none.clone(),
            "",
            7,
            "invalid range set 0: Network has host bits set. For a subnet mask of length 24 the network address is 10.1.0.0",
        ),
        (
            json!({"subnet": "10.1.0.0/33"}),
            none.clone(),
            "",
            7,
            "invalid CIDR address: 10.1.0.0/33",
        ),
        (
            json!({"ranges": [[{"subnet": "10.1.0.0/24", "rangeStart": "10.1.1.1"}]]}),
            none.clone(),
            "",
            7,
            "invalid range set 0: RangeStart 10.1.1.1 not in network 10.1.0.0/24",
        ),
        (
            json!({"ranges": [[{"subnet": "10.1.0.0/24", "rangeEnd": "10.1.1.1"}]]}),
            none.clone(),
            "",
            7,
            "invalid range set 0: RangeEnd 10.1.1.1 not in network 10.1.0.0/24",
        ),
        (
            json!({"ranges": [[{"subnet": "10.1.0.0/24", "gateway": "foo"}]]}),
            none.clone(),
            "",
            7,
            "invalid IP address: foo",
        ),
        (
            json!({"ranges": [[]]}),
            none.clone(),
            "",
            7,
            "invalid range set 0: empty range set",
        ),
        (json!({"ranges": []}), none.clone(), "", 7, "no IP ranges specified"),
        (json!({}), none.clone(), "", 7, "no IP ranges specified"),
        (
            json!({"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "10.1.0.0/16"}]]}),
            none.clone(),
            "",
            7,
            "range set 0 overlaps with 1",
        ),
        (
            json!({"ranges": [[{"subnet": "10.1.0.0/24"}, {"subnet": "10.1.0.0/16"}]]}),
            none.clone(),
            "",
            7,
            "invalid range set 0: subnets 10.1.0.1-10.1.0.254 and 10.1.0.1-10.1.255.254 overlap",
        ),
        (
            json!({"ranges": [[{"subnet": "10.1.0.0/24"}, {"subnet": "fd00::/64"}]]}),
            none.clone(),
            "",
            7,
            "invalid range set 0: mixed address families",
        ),
        (
            json!({"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "10.2.0.0/24"}]]}),
            json!({"cniVersion": "0.2.0"}),
            "",
            7,
            "CNI version 0.2.0 does not support more than 1 address per family",
        ),
        (
            pool.clone(),
            none.clone(),
            "IP=foo",
            7,
            r#"ARGS: error parsing value of pair "IP=foo": invalid IP address foo"#,
        ),
        (
            pool.clone(),
            none.clone(),
            "FOO=1",
            4,
            r#"ARGS: unknown args ["FOO=1"]"#,
        ),
        (
            pool.clone(),
            json!({"args": {"cni": {"ips": ["x"]}}}),
            "",
            7,
            "invalid IP address x",
        ),
        (
            pool.clone(),
            none.clone(),
            "IP=10.1.0.1",
            999,
            "failed to allocate for range 0: requested ip 10.1.0.1 is subnet's gateway",
        ),
        (
            pool.clone(),
            none.clone(),
            "IP=10.2.0.1",
            999,
            "failed to allocate all requested IPs: 10.2.0.1",
        ),
        (
            pool.clone(),
            none.clone(),
            "IP=10.1.0.255",
            999,
            "failed to allocate all requested IPs: 10.1.0.255",
        ),
        (
            pool.clone(),
            // Of two that the pool has, the reference gives either: its requests are in no order.
            json!({"runtimeConfig": {"ips": ["10.1.0.10", "10.9.0.11"]}}),
            "",
            999,
            "failed to allocate all requested IPs: 10.9.0.11",
        ),
        (
            json!({"subnet": "10.1.0.0/24", "resolvConf": "/nowhere"}),
            none.clone(),
            "",
            5,
            "open /nowhere: no such file or directory",
        ),
    ]
}

#[test]
fn refusals_are_those_of_the_reference_and_nothing_is_written() {
    let theirs = reference();
    for (ipam, more, args, code, msg) in refused() {
        let pool = Pool::new(ipam.clone());
        let reply = pool.call_of(ours(), "ADD", "c", &[("CNI_ARGS", args)], &more);
        assert_eq!(reply.error(), (code, msg.to_owned()), "{ipam} {more} {args}");
        assert!(pool.reserved().is_empty() && pool.cursor(0).is_none(), "{ipam}");
        assert!(code == 999 || !pool.directory().exists(), "{ipam}");
        if let Some(theirs) = &theirs {
            let reply = pool.call_of(theirs, "ADD", "c", &[("CNI_ARGS", args)], &more);
            let error: Value = serde_json::from_str(&reply.stdout).unwrap();
            assert_eq!(error["msg"], msg, "the reference on {ipam}");
        }
    }
}

#[test]
fn errors_name_the_key() {
    for (ipam, more, key) in [
        (json!({"subnet": "10.1.0.5/24"}), Value::Null, "ipam.subnet"),
        (
            json!({"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "10.2.0.0/24", "rangeEnd": "x"}]]}),
            Value::Null,
            "ipam.ranges[1][0].rangeEnd",
        ),
        (
            json!({"subnet": "10.1.0.0/24"}),
            json!({"runtimeConfig": {"ipRanges": [[{"subnet": "10.2.0.1/24"}]]}}),
            "runtimeConfig.ipRanges[0][0].subnet",
        ),
        (
            json!({"subnet": "10.1.0.0/24"}),
            json!({"runtimeConfig": {"ips": ["y"]}}),
            "runtimeConfig.ips[0]",
        ),
        (json!({"subnet": 5}), Value::Null, "ipam.subnet"),
    ] {
        let pool = Pool::new(ipam);
        let reply = pool.call("ADD", "c", &more);
        assert_eq!(reply.code, Some(1));
        assert!(reply.stdout.contains(key), "{key}: {}", reply.stdout);
    }
}

#[test]
fn input_that_is_no_configuration_gets_one_error_object() {
    let variables = [
        ("CNI_COMMAND", "ADD"),
        ("CNI_CONTAINERID", "c"),
        ("CNI_NETNS", "/nowhere"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_PATH", "/nowhere"),
    ];
    for (stdin, code) in [
        ("{", 6),
        ("", 6),
        (r#"{"cniVersion":"1.0.0"}"#, 7),
        (r#"{"cniVersion":"1.0.0","name":"n"}"#, 7),
    ] {
        assert_eq!(
            testkit::call_plugin(ours(), &variables, stdin).error().0,
            code,
            "{stdin}"
        );
    }
}

#[test]
fn who_holds_the_address_since_when_is_in_the_details() {
    let pool = Pool::subnet("10.1.0.0/29");
    pool.add("a").success();
    let taken = pool.call_of(ours(), "ADD", "b", &[("CNI_ARGS", "IP=10.1.0.2")], &Value::Null);
    assert_eq!(
        taken.error().1,
        "failed to allocate for range 0: requested IP address 10.1.0.2 is not available in range set 10.1.0.1-10.1.0.6"
    );
    for reply in [taken, pool.add("a")] {
        let error: Value = serde_json::from_str(&reply.stdout).unwrap();
        let details = error["details"].as_str().unwrap();
        assert!(
            details.starts_with("10.1.0.2 is held by container a interface eth0 since 20"),
            "{details}"
        );
    }
}
