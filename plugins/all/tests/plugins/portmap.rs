//! The portmap plugin, as a runtime sees it.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use testkit::{Reply, World, call_plugin};

use crate::suite::Suite;

/// A container on a bridge, made by hand: portmap comes after whatever plugin gave the addresses.
pub(crate) struct Node<'a> {
    pub(crate) w: &'a World,
    pub(crate) suite: Suite,
}

impl<'a> Node<'a> {
    pub(crate) fn new(w: &'a World) -> Node<'a> {
        w.netns("a");
        w.sh("sysctl -qw net.ipv4.ip_forward=1
            ip link add br0 type bridge
            ip addr add 10.1.0.1/24 dev br0
            ip link set br0 up
            ip link add veth0 type veth peer name eth0 netns a
            ip link set veth0 master br0 up
            ip link set veth0 type bridge_slave hairpin on");
        w.sh_in(
            "a",
            "ip link set lo up; ip link set eth0 up; ip addr add 10.1.0.2/24 dev eth0; ip route add default via 10.1.0.1",
        );
        Node {
            w,
            suite: Suite::install(w),
        }
    }

    pub(crate) fn call(&self, verb: &str, container: &str, conf: &Value) -> Reply {
        let netns = Path::new("/run/netns/a");
        let conf = conf.to_string();
        self.suite.call("portmap", verb, container, netns, "eth0", &conf)
    }

    /// The same with a PATH of the test's own.
    fn call_in_path(&self, path: &Path, verb: &str, conf: &Value) -> Reply {
        let bin = self.suite.bin();
        let variables = [
            ("CNI_COMMAND", verb),
            ("CNI_CONTAINERID", "c1"),
            ("CNI_NETNS", "/run/netns/a"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_PATH", bin.to_str().unwrap()),
            ("PATH", path.to_str().unwrap()),
        ];
        call_plugin(&bin.join("portmap"), &variables, &conf.to_string())
    }

    /// Everything that netfilter holds, of either backend, without counters.
    fn rules(&self) -> String {
        self.w
            .sh("iptables-save; ip6tables-save; nft -s list ruleset 2>/dev/null")
    }

    /// What a server in the container on port 80 sees as its peer when asked from the node.
    fn ask(&self, address: &str) -> String {
        let script = format!("socat -T5 - TCP:{address}:8080,connect-timeout=5 </dev/null");
        self.w.sh(&script)
    }

    fn serve(&self) {
        self.w.sh_in(
            "a",
            "socat TCP-LISTEN:80,fork,reuseaddr SYSTEM:'echo $SOCAT_PEERADDR' >/dev/null 2>&1 & echo $! > /run/server
            until ss -Hltn sport = :80 | grep -q .; do :; done",
        );
    }

    fn stop_serving(&self) {
        self.w.sh("kill $(cat /run/server)");
    }
}

fn web() -> Value {
    json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}])
}

/// A configuration with the result of an ADD before it, changed by `keys`.
pub(crate) fn conf(mappings: Value, keys: Value) -> Value {
    let mut conf = json!({
        "cniVersion": "1.0.0", "name": "net1", "type": "portmap", "capabilities": {"portMappings": true},
        "runtimeConfig": {"portMappings": mappings},
        "prevResult": {
            "cniVersion": "1.0.0",
            "interfaces": [{"name": "br0"}, {"name": "veth0"}, {"name": "eth0", "sandbox": "/run/netns/a"}],
            "ips": [{"address": "10.1.0.2/24", "gateway": "10.1.0.1", "interface": 2}],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    });
    for (key, value) in keys.as_object().unwrap() {
        conf[key] = value.clone();
    }
    conf
}

fn backend(name: &str) -> Value {
    json!({"backend": name})
}

#[test]
fn a_port_is_published_and_taken_back_with_either_backend() {
    for name in ["iptables", "nftables"] {
        testkit::world(|w| {
            let node = Node::new(w);
            node.serve();
            let conf = conf(web(), backend(name));
            let result = node.call("ADD", "c1", &conf).success();
            assert_eq!(result, conf["prevResult"], "{name}: the result passes through");
            // Needs the plugin's route_localnet.
            assert_eq!(node.ask("127.0.0.1"), "10.1.0.1", "{name}");
            assert_eq!(node.ask("10.1.0.1"), "10.1.0.1", "{name}");
            node.call("CHECK", "c1", &conf).silent();
            w.sh("echo 0 > /proc/sys/net/ipv4/conf/br0/route_localnet");
            assert!(
                node.call("CHECK", "c1", &conf).error().1.contains("route_localnet"),
                "{name}"
            );
            node.call("DEL", "c1", &conf).silent();
            node.call("DEL", "c1", &conf).silent();
            assert!(
                w.try_sh("socat -T1 - TCP:10.1.0.1:8080,connect-timeout=1")
                    .stdout
                    .is_empty()
            );
            assert!(node.call("CHECK", "c1", &conf).error().1.contains("c1"), "{name}");
            node.stop_serving();
        });
    }
}

#[test]
fn without_mappings_nothing_is_done() {
    testkit::world(|w| {
        let node = Node::new(w);
        let before = w.sh("nft list ruleset");
        for mappings in [json!([]), Value::Null] {
            let conf = conf(mappings, json!({}));
            assert_eq!(node.call("ADD", "c1", &conf).success(), conf["prevResult"]);
            node.call("CHECK", "c1", &conf).silent();
            node.call("DEL", "c1", &conf).silent();
        }
        assert_eq!(w.sh("nft list ruleset"), before);
        assert_eq!(w.sh("cat /proc/sys/net/ipv4/conf/br0/route_localnet"), "0");
    });
}

#[test]
fn bad_input_is_refused_before_any_rule_exists() {
    testkit::world(|w| {
        let node = Node::new(w);
        let entry = |key: &str, value: Value| {
            let mut entry = json!({"hostPort": 8080, "containerPort": 80, "protocol": "tcp"});
            entry[key] = value;
            json!([entry])
        };
        for (conf, begin) in [
            (
                conf(entry("hostPort", json!(0)), json!({})),
                "failed to parse config: Invalid host port number: 0",
            ),
            (
                conf(entry("hostPort", json!(70000)), json!({})),
                "failed to parse config: Invalid host port number: 70000",
            ),
            (
                conf(entry("protocol", json!("")), json!({})),
                "failed to parse config: protocol",
            ),
            (
                conf(entry("hostIP", json!("foo")), json!({})),
                "failed to parse config: hostIP",
            ),
            (
                conf(web(), backend("foo")),
                "failed to parse config: unrecognized backend \"foo\"",
            ),
            (
                conf(web(), json!({"prevResult": null})),
                "must be called as chained plugin",
            ),
            (
                conf(
                    web(),
                    json!({"backend": "iptables", "conditionsV4": ["ip saddr 192.0.2.1"]}),
                ),
                "failed to parse config: iptables backend was requested but configuration contains nftables-specific \
                 options [conditionsV4]",
            ),
        ] {
            for verb in ["ADD", "CHECK"] {
                let (code, message) = node.call(verb, "c1", &conf).error();
                assert_eq!(code, 7, "{verb}: {message}");
                assert!(message.starts_with(begin), "{verb}: {message}");
            }
            // What ADD refuses, DEL only remarks upon.
            node.call("DEL", "c1", &conf).silent();
        }
        assert_eq!(w.sh("nft list ruleset"), "");
    });
}

#[test]
fn del_needs_neither_the_backend_nor_the_mappings_nor_the_result() {
    testkit::world(|w| {
        let node = Node::new(w);
        let twenty: Vec<Value> = (1..=20)
            .map(|n| json!({"hostPort": 9000 + n, "containerPort": n, "protocol": "TCP"}))
            .collect();
        for (added, deleted) in [("iptables", "nftables"), ("nftables", "iptables"), ("iptables", "foo")] {
            let asked = conf(json!(twenty), backend(added));
            node.call("ADD", "c1", &asked).success();
            assert!(node.rules().contains("9020"), "{added}");
            let bare = json!({"cniVersion": "1.0.0", "name": "net1", "type": "portmap", "backend": deleted});
            let reply = node
                .suite
                .call("portmap", "DEL", "c1", Path::new(""), "eth0", &bare.to_string());
            reply.silent();
            let left = node.rules();
            assert!(
                !left.contains("9020") && !left.contains("CNI-DN-"),
                "{added} {deleted}: {left}"
            );
        }
        assert_eq!(w.sh("find /run/cni -name '*.json'"), "");
    });
}

#[test]
fn networks_of_one_container_are_apart() {
    for name in ["iptables", "nftables"] {
        testkit::world(|w| {
            let node = Node::new(w);
            let port = |port: u16| json!([{"hostPort": port, "containerPort": 80, "protocol": "tcp"}]);
            let one = conf(port(8001), backend(name));
            let mut two = conf(port(8002), json!({"backend": name, "name": "net2"}));
            two["prevResult"]["ips"][0]["address"] = json!("10.1.0.3/24");
            node.call("ADD", "c1", &one).success();
            node.call("ADD", "c1", &two).success();
            node.call("DEL", "c1", &two).silent();
            node.call("CHECK", "c1", &one).silent();
            assert!(!node.rules().contains("8002"), "{name}");
        });
    }
}

#[test]
fn a_dead_holder_gives_way_and_a_living_one_does_not() {
    for name in ["iptables", "nftables"] {
        testkit::world(|w| {
            let node = Node::new(w);
            let asked = conf(web(), backend(name));
            let netns = w.netns("x");
            let of_x = |verb| {
                node.suite
                    .call("portmap", verb, "x", &netns, "eth0", &asked.to_string())
            };
            of_x("ADD").success();
            let (code, message) = node.call("ADD", "y", &asked).error();
            assert_eq!(code, 11, "{name}: {message}");
            assert!(message.contains("container x"), "{name}: {message}");

            w.sh("ip netns del x");
            let reply = node.call("ADD", "y", &asked);
            assert!(reply.stderr.contains("taken over"), "{name}: {reply:?}");
            reply.success();
            of_x("DEL").silent();
            node.call("CHECK", "y", &asked).silent();
        });
    }
}

#[test]
fn gc_keeps_the_valid_and_other_networks() {
    for name in ["iptables", "nftables"] {
        testkit::world(|w| {
            let node = Node::new(w);
            let asked = |port: u16, network: &str| {
                let mappings = json!([{"hostPort": port, "containerPort": 80, "protocol": "tcp"}]);
                conf(
                    mappings,
                    json!({"backend": name, "name": network, "cniVersion": "1.1.0"}),
                )
            };
            node.call("ADD", "living", &asked(8001, "net1")).success();
            node.call("ADD", "dead", &asked(8002, "net1")).success();
            node.call("ADD", "foreign", &asked(8003, "net2")).success();
            let mut gc = asked(8001, "net1");
            gc["cni.dev/valid-attachments"] = json!([{"containerID": "living", "ifname": "eth0"}]);
            node.suite.call_bare("portmap", "GC", &gc.to_string()).silent();
            let left = node.rules();
            assert!(!left.contains("8002"), "{name}: {left}");
            assert!(left.contains("8001") && left.contains("8003"), "{name}: {left}");
        });
    }
}

/// A PATH whose iptables and nft programs write down that they were started. What they are linked to has the name that tells
/// the implementation.
pub(crate) fn counting_path(w: &World) -> std::path::PathBuf {
    let path = w.tmp().join("path");
    fs::create_dir(&path).unwrap();
    fs::write(
        path.join("xtables-nft-multi"),
        format!(
            "#!/bin/sh\necho \"${{0##*/}} $*\" >> {}/started\nexec \"/usr/sbin/${{0##*/}}\" \"$@\"\n",
            w.tmp().display()
        ),
    )
    .unwrap();
    w.sh(&format!(
        "cd {}; chmod +x xtables-nft-multi; for p in iptables ip6tables; do for v in '' -nft -legacy; do
            for s in '' -save -restore; do ln -s xtables-nft-multi $p$v$s; done; done; done; ln -s xtables-nft-multi nft",
        path.display()
    ));
    path
}

#[test]
fn few_programs_are_started_and_none_with_nftables() {
    testkit::world(|w| {
        let node = Node::new(w);
        let path = counting_path(w);
        let started = |verb: &str, conf: &Value| {
            let file = w.tmp().join("started");
            let _ = fs::remove_file(&file);
            assert_eq!(node.call_in_path(&path, verb, conf).code, Some(0));
            fs::read_to_string(&file).unwrap_or_default()
        };
        let iptables = conf(web(), json!({}));
        let added = started("ADD", &iptables);
        assert_eq!(added, "iptables-restore --noflush -w 5\n");
        assert_eq!(started("ADD", &iptables), "", "all is there");
        for verb in ["CHECK", "DEL", "DEL"] {
            assert_eq!(started(verb, &iptables), "", "{verb}");
        }
        for verb in ["ADD", "CHECK", "DEL"] {
            assert_eq!(started(verb, &conf(json!([]), json!({}))), "", "{verb}");
            assert_eq!(started(verb, &conf(web(), backend("nftables"))), "", "{verb}");
        }
    });
}

/// A PATH of these executable scripts and links to the system's programs.
fn path_of(w: &World, scripts: &[(&str, &str)], links: &[&str]) -> std::path::PathBuf {
    let path = w.tmp().join(format!("path-of-{}-{}", scripts.len(), links.join("-")));
    fs::create_dir(&path).unwrap();
    for (name, script) in scripts {
        fs::write(path.join(name), format!("#!/bin/sh\n{script}\n")).unwrap();
        w.sh(&format!("chmod +x {}/{name}", path.display()));
    }
    for name in links {
        w.sh(&format!("ln -s /usr/sbin/{name} {}", path.display()));
    }
    path
}

#[test]
fn where_iptables_is_of_no_use_nftables_is() {
    testkit::world(|w| {
        let node = Node::new(w);
        // As iptables ends on a kernel without its tables.
        let broken = "echo \"can't initialize iptables table: Table does not exist\" >&2; exit 3";
        for path in [
            path_of(w, &[("iptables", broken), ("iptables-restore", broken)], &["nft"]),
            path_of(w, &[], &["nft"]),
        ] {
            let asked = conf(web(), json!({}));
            assert_eq!(node.call_in_path(&path, "ADD", &asked).code, Some(0));
            let rules = node.rules();
            assert!(!rules.contains("CNI-DN-") && rules.contains("table inet"), "{rules}");
            assert_eq!(node.call_in_path(&path, "CHECK", &asked).code, Some(0));
            assert_eq!(node.call_in_path(&path, "DEL", &asked).code, Some(0));

            let named = json!({"cniVersion": "1.1.0", "name": "net1", "type": "portmap", "backend": "iptables"});
            let (code, message) = node.call_in_path(&path, "STATUS", &named).error();
            assert_eq!(code, 50, "{message}");
            assert!(message.starts_with("iptables "), "{message}");
        }
    });
}

#[test]
fn where_ip6tables_is_missing_iptables_serves_ipv4() {
    testkit::world(|w| {
        let node = Node::new(w);
        let path = path_of(w, &[], &["iptables", "iptables-save", "iptables-restore"]);
        // The plugins look beyond PATH.
        w.sh(
            "mkdir /run/sbin; cp -a /usr/sbin/iptables* /usr/sbin/xtables* /usr/sbin/nft /usr/sbin/sysctl /run/sbin
            mount --bind /run/sbin /usr/sbin",
        );
        let asked = conf(web(), json!({}));
        for verb in ["ADD", "CHECK", "DEL"] {
            assert_eq!(node.call_in_path(&path, verb, &asked).code, Some(0), "{verb}");
            let is_there = w.sh("iptables-save").contains("CNI-DN-");
            assert_eq!(is_there, verb != "DEL", "{verb}");
        }
    });
}

#[test]
fn whoever_is_killed_leaves_nothing_that_the_next_del_does_not_find() {
    testkit::world(|w| {
        let node = Node::new(w);
        let path = w.tmp().join("deadly");
        fs::create_dir(&path).unwrap();
        w.sh(&format!("ln -s /usr/sbin/iptables-save {}", path.display()));
        // The plugin dies just before its rules are written, and just after.
        for script in ["kill -9 $PPID", "/usr/sbin/iptables-restore \"$@\"; kill -9 $PPID"] {
            let program = path.join("iptables-restore");
            fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
            w.sh(&format!(
                "cd {}; chmod +x iptables-restore; ln -sf iptables-restore iptables-nft-restore",
                path.display()
            ));
            let asked = conf(web(), backend("iptables"));
            // A DEL starts no program that could kill it; see the tests that stop it at any of its system calls.
            assert_eq!(node.call_in_path(&path, "ADD", &asked).code, None, "{script}");
            node.call("DEL", "c1", &asked).silent();
            let left = node.rules();
            assert!(!left.contains("CNI-DN-"), "{script}: {left}");
            assert_eq!(w.sh("find /run/cni -name '*.json'"), "", "{script}");
        }
    });
}

#[test]
fn status_tells_whether_the_backend_is_there() {
    testkit::world(|w| {
        let node = Node::new(w);
        let empty = w.tmp().join("empty");
        fs::create_dir(&empty).unwrap();
        let status = |name: &str| {
            let conf = json!({"cniVersion": "1.1.0", "name": "net1", "type": "portmap", "backend": name});
            node.call_in_path(&empty, "STATUS", &conf)
        };
        assert_eq!(status("iptables").error(), (50, "iptables is not installed".to_owned()));
        status("nftables").silent();
        let conf = json!({"cniVersion": "1.1.0", "name": "net1", "type": "portmap", "backend": "iptables"});
        node.suite.call_bare("portmap", "STATUS", &conf.to_string()).silent();
        assert_eq!(w.sh("nft list ruleset"), "");
    });
}

#[test]
fn a_second_add_that_fails_leaves_what_the_first_one_did_and_a_first_one_nothing() {
    for name in ["iptables", "nftables"] {
        testkit::world(|w| {
            let node = Node::new(w);
            let conf = conf(web(), backend(name));
            // The last step of an ADD is a sysctl, which cannot be set here.
            let forbid =
                || w.sh("echo 0 > /proc/sys/net/ipv4/conf/br0/route_localnet; mount --bind -o ro /proc/sys /proc/sys");
            let permit = || w.sh("umount /proc/sys");

            forbid();
            let (_, message) = node.call("ADD", "c1", &conf).error();
            assert!(message.contains("route_localnet"), "{message}");
            assert!(!node.rules().contains("10.1.0.2"), "{name}: {}", node.rules());
            permit();

            node.call("ADD", "c1", &conf).success();
            let before = node.rules();
            forbid();
            node.call("ADD", "c1", &conf).error();
            assert_eq!(node.rules(), before, "{name}");
            permit();
            node.call("DEL", "c1", &conf).silent();
            assert!(!node.rules().contains("10.1.0.2"), "{name}: {}", node.rules());
        });
    }
}
