//! Configurations in which any value is another one: an answer every time, and never a panic.

use std::path::Path;

use serde_json::{Value, json};
use testkit::{Reply, call_plugin, plugin_directory};

/// Every key that the plugins have in common, and many that one of them has.
fn whole() -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "net", "args": { "cni": { "ips": ["10.1.0.5"], "mac": "02:00:00:00:00:01" } },
        "bridge": "cni0", "isGateway": true, "isDefaultGateway": true, "forceAddress": true, "ipMasq": true,
        "ipMasqBackend": "nftables", "mtu": 1500, "hairpinMode": true, "vlan": 5, "macspoofchk": true, "enabledad": true,
        "vlanTrunk": [{ "id": 6 }, { "minID": 10, "maxID": 20 }], "mac": "02:00:00:00:00:01",
        "sysctl": { "net.ipv4.conf.IFNAME.arp_notify": "1" }, "promisc": true, "txQLen": 100,
        "snat": true, "markMasqBit": 13, "externalSetMarkChain": "X", "conditionsV4": ["-s", "192.0.2.1"], "backend": "nftables",
        "ipam": {
            "type": "host-local", "dataDir": "/run/data", "resolvConf": "/etc/resolv.conf",
            "ranges": [[{ "subnet": "10.1.0.0/24", "rangeStart": "10.1.0.2", "rangeEnd": "10.1.0.9", "gateway": "10.1.0.1" }]],
            "routes": [{ "dst": "0.0.0.0/0", "gw": "10.1.0.1", "mtu": 1400, "table": 7, "scope": 0 }],
            "addresses": [{ "address": "10.1.0.5/24", "gateway": "10.1.0.1" }],
        },
        "dns": { "nameservers": ["192.0.2.53"], "search": ["example.net"] },
        "runtimeConfig": {
            "portMappings": [{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": "127.0.0.1" }],
            "ips": ["10.1.0.5/24"], "mac": "02:00:00:00:00:01", "aliases": ["a"], "bandwidth": { "ingressRate": 1 },
        },
        "prevResult": {
            "cniVersion": "1.1.0", "interfaces": [{ "name": "eth0", "mac": "02:00:00:00:00:01", "sandbox": "/run/netns/a" }],
            "ips": [{ "address": "10.1.0.5/24", "gateway": "10.1.0.1", "interface": 0 }],
            "routes": [{ "dst": "0.0.0.0/0", "gw": "10.1.0.1", "priority": 5 }], "dns": { "domain": "example.net" },
        },
        "cni.dev/valid-attachments": [{ "containerID": "a", "ifname": "eth0" }],
    })
}

/// What takes each value's place.
fn others() -> Vec<Value> {
    let deep = (0..200).fold(json!(1), |inner, _| json!([inner]));
    vec![
        Value::Null,
        json!(true),
        json!(-1),
        json!(u64::MAX),
        json!(1.5e300),
        json!(""),
        json!("../../x"),
        json!("\u{0}\n"),
        json!("255.255.255.255/0"),
        json!("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/0"),
        json!("ä".repeat(300)),
        json!([]),
        json!([null]),
        json!({}),
        json!({ "": null }),
        deep,
    ]
}

/// The places of all values, as JSON pointers.
fn places(value: &Value, here: &str, all: &mut Vec<String>) {
    all.push(here.to_owned());
    match value {
        Value::Object(fields) => fields
            .iter()
            .for_each(|(key, inner)| places(inner, &format!("{here}/{}", key.replace('/', "~1")), all)),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .for_each(|(index, inner)| places(inner, &format!("{here}/{index}"), all)),
        _ => {}
    }
}

#[test]
fn any_value_in_any_place_gets_an_answer() {
    testkit::world(|w| {
        let ferrule = Path::new(env!("CARGO_BIN_EXE_ferrule"));
        let list = w.sh(&format!("{} list", ferrule.display()));
        let bin = plugin_directory(w.tmp(), ferrule, &list.lines().collect::<Vec<_>>());
        let call = |plugin: &str, verb: &str, conf: &Value| {
            // A namespace that does not exist: nothing is made, but all is read before that is found out.
            let variables = [
                ("CNI_COMMAND", verb),
                ("CNI_CONTAINERID", "a"),
                ("CNI_NETNS", "/run/netns/a"),
                ("CNI_IFNAME", "eth0"),
                ("CNI_PATH", bin.to_str().unwrap()),
            ];
            call_plugin(&bin.join(plugin), &variables, &conf.to_string())
        };
        let mut all = Vec::new();
        places(&whole(), "", &mut all);
        let (all, others) = (all, others());
        for (number, plugin) in list.lines().enumerate() {
            for (place, other) in all
                .iter()
                .zip((0..).map(|turn| &others[(turn * 7 + number) % others.len()]))
            {
                for other in [other, &others[(place.len() + number) % others.len()]] {
                    let mut conf = whole();
                    conf["type"] = json!(plugin);
                    *conf.pointer_mut(place).unwrap() = other.clone();
                    for verb in ["ADD", "DEL", "GC"] {
                        assert_answer(
                            &call(plugin, verb, &conf),
                            &format!("{verb} of {plugin}: {place} = {other}"),
                        );
                    }
                }
            }
        }
    });
}

/// Success or one error object, and not one about a panic.
fn assert_answer(reply: &Reply, label: &str) {
    if reply.code == Some(0) {
        return;
    }
    let objects: Vec<_> = serde_json::Deserializer::from_str(&reply.stdout)
        .into_iter::<Value>()
        .collect();
    let [Ok(object)] = &objects[..] else {
        panic!("{label}: {reply:?}")
    };
    let msg = object["msg"].as_str().unwrap_or_default();
    assert!(
        reply.code == Some(1) && !msg.is_empty() && !msg.contains("internal error"),
        "{label}: {reply:?}"
    );
}
