//! The firewall plugin, as a runtime sees it.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use testkit::{Reply, World, call_plugin};

use crate::portmap::counting_path;
use crate::suite::Suite;

/// Two bridges with containers `a`, `b` and `c`, and a host `ext` outside, made by hand: the firewall comes after whatever
/// plugin gave the addresses.
struct Node<'a> {
    w: &'a World,
    suite: Suite,
}

/// Container, bridge, address.
const CONTAINERS: [(&str, &str, &str); 3] = [
    ("a", "br0", "10.1.0.2"),
    ("b", "br0", "10.1.0.3"),
    ("c", "br1", "10.2.0.2"),
];
const EXT: &str = "192.0.2.9";

impl<'a> Node<'a> {
    fn new(w: &'a World) -> Node<'a> {
        w.netns("ext");
        w.sh("sysctl -qw net.ipv4.ip_forward=1
            for n in 0 1; do ip link add br$n type bridge; ip addr add 10.$((n + 1)).0.1/24 dev br$n; ip link set br$n up; done
            ip link add out type veth peer name eth0 netns ext; ip addr add 192.0.2.1/24 dev out; ip link set out up");
        w.sh_in(
            "ext",
            &format!("ip addr add {EXT}/24 dev eth0; ip link set eth0 up; ip route add 10.0.0.0/8 via 192.0.2.1"),
        );
        for (name, bridge, address) in CONTAINERS {
            w.netns(name);
            let gateway = address.rsplit_once('.').unwrap().0;
            w.sh(&format!(
                "ip link add v{name} type veth peer name eth0 netns {name}; ip link set v{name} master {bridge} up"
            ));
            w.sh_in(
                name,
                &format!(
                    "ip link set eth0 up; ip addr add {address}/24 dev eth0; ip route add default via {gateway}.1"
                ),
            );
        }
        Node {
            w,
            suite: Suite::install(w),
        }
    }

    fn call(&self, verb: &str, container: &str, conf: &Value) -> Reply {
        let netns = Path::new("/run/netns/a");
        self.suite
            .call("firewall", verb, container, netns, "eth0", &conf.to_string())
    }

    fn gc(&self, valid: &[&str], backend: &str) {
        let valid: Vec<Value> = valid
            .iter()
            .map(|id| json!({"containerID": id, "ifname": "eth0"}))
            .collect();
        let conf = json!({"cniVersion": "1.1.0", "name": "net1", "type": "firewall", "backend": backend,
            "cni.dev/valid-attachments": valid});
        self.suite.call_bare("firewall", "GC", &conf.to_string()).silent();
    }

    /// Everything that netfilter holds, of either backend, without counters.
    fn rules(&self) -> String {
        let script =
            "(iptables-save; ip6tables-save; nft -s list ruleset 2>/dev/null) | sed -e /^#/d -e 's/ \\[[0-9:]*\\]$//'";
        self.w.sh(script)
    }

    fn reaches(&self, from: &str, address: &str) -> bool {
        let ping = format!("ping -q -c 1 -W 2 {address}");
        self.w.try_sh_in(from, &ping).status.success()
    }

    /// Adds all three containers, each with the result of its bridge.
    fn add_all(&self, keys: &Value) {
        for (name, ..) in CONTAINERS {
            self.call("ADD", name, &conf_of(name, keys)).success();
        }
    }
}

/// A configuration with the result of an ADD of one of the containers before it, changed by `keys`.
fn conf_of(container: &str, keys: &Value) -> Value {
    let (_, bridge, address) = CONTAINERS.into_iter().find(|(name, ..)| *name == container).unwrap();
    let mut conf = conf(keys.clone());
    conf["prevResult"]["interfaces"][0]["name"] = bridge.into();
    conf["prevResult"]["ips"] = json!([{"address": format!("{address}/24"), "interface": 2}]);
    conf
}

/// A configuration with the result of an ADD before it, changed by `keys`.
pub(crate) fn conf(keys: Value) -> Value {
    let mut conf = json!({
        "cniVersion": "1.0.0", "name": "net1", "type": "firewall",
        "prevResult": {
            "cniVersion": "1.0.0",
            "interfaces": [{"name": "br0"}, {"name": "veth0"}, {"name": "eth0", "sandbox": "/run/netns/a"}],
            "ips": [{"address": "10.1.0.2/24", "gateway": "10.1.0.1", "interface": 2}, {"address": "fd00::2/64", "interface": 2}],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    });
    for (key, value) in keys.as_object().unwrap() {
        conf[key] = value.clone();
    }
    conf
}

fn without_result(mut conf: Value) -> Value {
    conf.as_object_mut().unwrap().remove("prevResult");
    conf
}

const BACKENDS: [&str; 2] = ["iptables", "nftables"];

#[test]
fn addresses_are_accepted_compared_and_forgotten() {
    for backend in BACKENDS {
        testkit::world(|w| {
            let node = Node::new(w);
            let conf = conf(json!({"backend": backend}));
            assert_eq!(node.call("ADD", "c1", &conf).success(), conf["prevResult"]);
            let added = node.rules();
            assert!(added.contains("10.1.0.2") && added.contains("fd00::2"), "{added}");
            node.call("ADD", "c1", &conf).success();
            assert_eq!(node.rules(), added, "an ADD more changes nothing");
            node.call("CHECK", "c1", &conf).silent();
            match backend {
                "iptables" => w.sh("iptables -D CNI-FORWARD -s 10.1.0.2 -j ACCEPT"),
                _ => w.sh("nft delete element inet ferrule_firewall accept4 '{ 10.1.0.2 }'"),
            };
            let (_, message) = node.call("CHECK", "c1", &conf).error();
            assert!(message.contains("10.1.0.2"), "{message}");
            node.call("ADD", "c1", &conf).success();
            node.call("CHECK", "c1", &conf).silent();
            // No runtime need remember the result: the owner is known.
            for _ in 0..2 {
                node.call("DEL", "c1", &without_result(conf.clone())).silent();
                let left = node.rules();
                assert!(!left.contains("10.1.0.2") && !left.contains("fd00::2"), "{left}");
            }
            assert!(node.call("CHECK", "c1", &conf).code == Some(1));
            assert_eq!(w.sh("find /run/cni -name '*.json'"), "");
        });
    }
}

#[test]
fn a_node_that_forwards_nothing_forwards_for_containers() {
    testkit::world(|w| {
        let node = Node::new(w);
        w.sh("iptables -P FORWARD DROP");
        assert!(!node.reaches("a", EXT));
        let conf = conf_of("a", &json!({"backend": "iptables"}));
        node.call("ADD", "a", &conf).success();
        assert!(node.reaches("a", EXT), "and answers return");
        assert!(!node.reaches("b", EXT));
        assert!(!node.reaches("ext", "10.1.0.2"), "only answers are let in");
        node.call("DEL", "a", &without_result(conf)).silent();
        assert!(!node.reaches("a", EXT));
    });
}

#[test]
fn what_another_table_drops_is_told_and_no_error() {
    testkit::world(|w| {
        let node = Node::new(w);
        let conf = conf_of("a", &json!({"backend": "nftables", "cniVersion": "1.1.0"}));
        let status = || {
            node.suite
                .call_bare("firewall", "STATUS", &without_result(conf.clone()).to_string())
        };
        assert_eq!(node.call("ADD", "a", &conf).stderr, "");
        assert_eq!(status().stderr, "");
        w.sh("iptables -P FORWARD DROP; ip6tables -P FORWARD DROP");
        assert!(!node.reaches("a", EXT), "which no other table can change");
        let reply = node.call("ADD", "a", &conf);
        reply.success();
        let told = "chain FORWARD of table ip filter drops";
        assert!(
            reply.stderr.contains(told) && !reply.stderr.contains("ip6"),
            "{reply:?}"
        );
        assert!(status().stderr.contains(told), "{:?}", status());
        status().silent();
        node.call("CHECK", "a", &conf).silent();
    });
}

#[test]
fn bridges_are_kept_apart() {
    for backend in BACKENDS {
        testkit::world(|w| {
            let node = Node::new(w);
            let keys = json!({"backend": backend, "ingressPolicy": "same-bridge"});
            node.add_all(&keys);
            assert!(node.reaches("b", "10.1.0.2"), "{backend}: on the same bridge");
            assert!(node.reaches("ext", "10.1.0.2"), "{backend}: from outside");
            assert!(node.reaches("a", EXT), "{backend}: to the outside");
            assert!(!node.reaches("c", "10.1.0.2"), "{backend}: from another bridge");
            assert!(!node.reaches("a", "10.2.0.2"), "{backend}: to another bridge");
            let conf = conf_of("a", &keys);
            node.call("CHECK", "a", &conf).silent();
            match backend {
                "iptables" => w.sh("iptables -D CNI-ISOLATION-STAGE-2 2"),
                _ => w.sh("nft delete element inet ferrule_firewall bridges '{ \"br0\" }'"),
            };
            assert_eq!(node.call("CHECK", "a", &conf).code, Some(1), "{backend}");
            node.call("ADD", "a", &conf).success();
            node.call("CHECK", "a", &conf).silent();
        });
    }
}

#[test]
fn containers_of_one_bridge_are_kept_apart_where_the_kernel_shows_them() {
    for backend in BACKENDS {
        testkit::world(|w| {
            let node = Node::new(w);
            let keys = json!({"backend": backend, "ingressPolicy": "isolated"});
            let conf = conf_of("a", &keys);
            let has_netfilter = w.sh("cat /proc/sys/net/bridge/bridge-nf-call-iptables 2>/dev/null || true") == "1";
            let reply = node.call("ADD", "a", &conf);
            reply.success();
            assert_eq!(reply.stderr.contains("br_netfilter"), !has_netfilter, "{reply:?}");
            node.call("CHECK", "a", &conf).silent();
            // A weaker policy of another network on the bridge takes nothing away.
            node.call(
                "ADD",
                "b",
                &conf_of("b", &json!({"backend": backend, "ingressPolicy": "same-bridge"})),
            )
            .success();
            node.call("CHECK", "a", &conf).silent();
            if has_netfilter {
                assert!(!node.reaches("b", "10.1.0.2"), "{backend}");
                assert!(node.reaches("a", EXT), "{backend}");
            }
        });
    }
}

#[test]
fn isolation_goes_by_gc_with_the_last_port_of_the_bridge() {
    for backend in BACKENDS {
        testkit::world(|w| {
            let node = Node::new(w);
            node.add_all(&json!({"backend": backend, "ingressPolicy": "same-bridge"}));
            let isolated = || {
                let rules = node.rules();
                ["br0", "br1"].map(|bridge| rules.contains(bridge))
            };
            for (name, ..) in CONTAINERS {
                node.call("DEL", name, &conf_of(name, &json!({"backend": backend})))
                    .silent();
            }
            assert_eq!(isolated(), [true, true], "{backend}: DEL leaves it");
            node.gc(&[], backend);
            assert_eq!(isolated(), [true, true], "{backend}: the bridges have ports");
            w.sh("ip link delete vc");
            node.gc(&[], backend);
            assert_eq!(isolated(), [true, false], "{backend}: no port");
            w.sh("ip link delete br0");
            node.gc(&[], backend);
            assert_eq!(isolated(), [false, false], "{backend}: no bridge");
        });
    }
}

#[test]
fn gc_spares_valid_attachments_and_other_networks() {
    for backend in BACKENDS {
        testkit::world(|w| {
            let node = Node::new(w);
            node.add_all(&json!({"backend": backend}));
            let other = json!({"backend": backend, "name": "net2", "prevResult": {"cniVersion": "1.0.0",
                "ips": [{"address": "10.3.0.2/24"}]}});
            node.call("ADD", "d", &conf(other)).success();
            if backend == "iptables" {
                // Somebody else's; nothing says whose.
                w.sh("iptables -A CNI-FORWARD -s 10.9.0.9 -j ACCEPT");
            }
            node.gc(&["b"], backend);
            let left = node.rules();
            for (address, stays) in [
                ("10.1.0.2", false),
                ("10.1.0.3", true),
                ("10.2.0.2", false),
                ("10.3.0.2", true),
            ] {
                assert_eq!(left.contains(address), stays, "{backend} {address}: {left}");
            }
            assert!(backend != "iptables" || left.contains("10.9.0.9"), "{left}");
        });
    }
}

#[test]
fn an_address_that_was_given_away_again_stays_accepted() {
    for backend in BACKENDS {
        testkit::world(|w| {
            let node = Node::new(w);
            let conf = conf(json!({"backend": backend}));
            // c1 died unseen; its address went to c2, on whatever network.
            let mut second = conf.clone();
            second["name"] = "net2".into();
            node.call("ADD", "c1", &conf).success();
            node.call("ADD", "c2", &second).success();
            node.call("DEL", "c1", &conf).silent();
            node.call("CHECK", "c2", &second).silent();
            node.call("ADD", "c1", &conf).success();
            node.call("ADD", "c2", &second).success();
            node.gc(&[], backend);
            node.call("CHECK", "c2", &second).silent();
            node.call("DEL", "c2", &second).silent();
            let left = node.rules();
            assert!(!left.contains("10.1.0.2"), "{backend}: {left}");
        });
    }
}

#[test]
fn the_administrators_chain_comes_first_and_is_theirs() {
    for backend in BACKENDS {
        testkit::world(|w| {
            let node = Node::new(w);
            let keys = json!({"backend": backend, "iptablesAdminChainName": "NOMAD-ADMIN"});
            let rule = match backend {
                "iptables" => {
                    w.sh("iptables -N NOMAD-ADMIN; iptables -A NOMAD-ADMIN -d 192.0.2.9 -j DROP");
                    node.add_all(&keys);
                    "-A NOMAD-ADMIN -d 192.0.2.9/32 -j DROP"
                }
                _ => {
                    node.add_all(&keys);
                    w.sh("nft add rule inet ferrule_firewall admin ip daddr 192.0.2.9 drop");
                    "ip daddr 192.0.2.9 drop"
                }
            };
            assert!(!node.reaches("a", EXT), "{backend}");
            let conf = conf_of("a", &keys);
            node.call("CHECK", "a", &conf).silent();
            // All of ours is written anew.
            match backend {
                "iptables" => w.sh("iptables -F CNI-FORWARD"),
                _ => w.sh("nft flush chain inet ferrule_firewall forward"),
            };
            assert_eq!(node.call("CHECK", "a", &conf).code, Some(1), "{backend}");
            node.call("ADD", "a", &conf).success();
            node.call("CHECK", "a", &conf).silent();
            node.call("DEL", "a", &conf).silent();
            node.gc(&[], backend);
            assert!(node.rules().contains(rule), "{backend}: {}", node.rules());
        });
    }
}

#[test]
fn an_add_with_another_backend_moves_the_rules() {
    testkit::world(|w| {
        let node = Node::new(w);
        for (backend, is_there, is_gone) in [
            ("iptables", "-s 10.1.0.2/32 -j ACCEPT", "10.1.0.2 comment"),
            ("nftables", "10.1.0.2 comment", "-s 10.1.0.2/32 -j ACCEPT"),
            ("iptables", "-s 10.1.0.2/32 -j ACCEPT", "10.1.0.2 comment"),
        ] {
            let conf = conf(json!({"backend": backend}));
            node.call("ADD", "c1", &conf).success();
            node.call("CHECK", "c1", &conf).silent();
            let rules = node.rules();
            assert!(
                rules.contains(is_there) && !rules.contains(is_gone),
                "{backend}: {rules}"
            );
        }
    });
}

#[test]
fn few_programs_are_started_and_none_with_nftables() {
    testkit::world(|w| {
        let node = Node::new(w);
        let path = counting_path(w);
        let bin = node.suite.bin();
        let variables = |verb: &'static str| {
            [
                ("CNI_COMMAND", verb),
                ("CNI_CONTAINERID", "a"),
                ("CNI_NETNS", "/run/netns/a"),
                ("CNI_IFNAME", "eth0"),
                ("CNI_PATH", bin.to_str().unwrap()),
                ("PATH", path.to_str().unwrap()),
            ]
        };
        let started = |verb: &'static str, conf: &Value| {
            let file = w.tmp().join("started");
            let _ = fs::remove_file(&file);
            let reply = call_plugin(&bin.join("firewall"), &variables(verb), &conf.to_string());
            assert_eq!(reply.code, Some(0), "{reply:?}");
            fs::read_to_string(&file).unwrap_or_default()
        };
        let keys = |backend: &str| json!({"backend": backend, "ingressPolicy": "same-bridge"});
        for verb in ["ADD", "CHECK", "DEL"] {
            assert_eq!(started(verb, &conf_of("a", &keys("nftables"))), "", "{verb}");
        }
        let v4 = conf_of("a", &keys("iptables"));
        let write = "iptables-restore --noflush -w 5\n";
        assert_eq!(started("ADD", &v4), write, "and nothing of IPv6");
        assert_eq!(started("ADD", &v4), "", "all is there");
        for verb in ["CHECK", "DEL"] {
            assert_eq!(started(verb, &v4), "", "{verb}");
        }
        assert_eq!(started("DEL", &without_result(v4)), "");
        let both = conf(keys("iptables"));
        assert_eq!(started("ADD", &both), format!("{write}{}", write.replace("ip", "ip6")));
        assert_eq!(started("DEL", &both), "");
    });
}

#[test]
fn every_version_is_spoken_and_the_result_passes_through() {
    testkit::world(|w| {
        let node = Node::new(w);
        for (version, result) in [
            ("0.1.0", json!({"ip4": {"ip": "10.1.0.2/24"}, "dns": {}})),
            ("0.2.0", json!({"ip4": {"ip": "10.1.0.2/24"}, "dns": {}})),
            (
                "0.3.1",
                json!({"ips": [{"version": "4", "address": "10.1.0.2/24"}], "dns": {}}),
            ),
            (
                "0.4.0",
                json!({"ips": [{"version": "4", "address": "10.1.0.2/24"}], "dns": {}}),
            ),
            (
                "1.1.0",
                json!({"ips": [{"address": "10.1.0.2/24"}], "routes": [{"dst": "0.0.0.0/0", "mtu": 1400}]}),
            ),
        ] {
            let mut result = result;
            result["cniVersion"] = version.into();
            let conf = conf(json!({"cniVersion": version, "backend": "nftables", "prevResult": result}));
            assert_eq!(node.call("ADD", "c1", &conf).success(), result);
            assert!(node.rules().contains("10.1.0.2"), "{version}");
            node.call("DEL", "c1", &conf).silent();
            assert!(!node.rules().contains("10.1.0.2"), "{version}");
        }
    });
}

#[test]
fn refusals_change_nothing() {
    testkit::world(|w| {
        let node = Node::new(w);
        let before = node.rules();
        for (keys, text) in [
            (json!({"backend": "ip6tables"}), "unrecognized backend \"ip6tables\""),
            (
                json!({"backend": "iptables", "ingressPolicy": "bogus"}),
                "unknown ingress policy: \"bogus\"",
            ),
        ] {
            for verb in ["ADD", "CHECK"] {
                assert_eq!(node.call(verb, "c1", &conf(keys.clone())).error(), (7, text.to_owned()));
            }
        }
        let bare = without_result(conf(json!({"backend": "iptables"})));
        let missing = (7, "missing prevResult from earlier plugin".to_owned());
        assert_eq!(node.call("ADD", "c1", &bare).error(), missing);
        assert_eq!(node.call("CHECK", "c1", &bare).error(), missing);
        node.call(
            "DEL",
            "c1",
            &conf(json!({"backend": "ip6tables", "ingressPolicy": "bogus"})),
        )
        .silent();
        assert_eq!(node.rules(), before);
    });
}
