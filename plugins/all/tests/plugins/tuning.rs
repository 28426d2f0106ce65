//! The tuning plugin: what it sets in a container, keeps, and puts back.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};
use testkit::{Reply, World, call_plugin};

use crate::reference::reference;
use crate::suite::Suite;

const MAC: &str = "c2:11:22:33:44:55";

/// A tuning of the container's interface `ifname`, with the result of a chain before it.
fn conf(ifname: &str, keys: Value) -> Value {
    let mut conf = json!({
        "cniVersion": "1.1.0", "name": "net", "type": "tuning",
        "prevResult": {
            "cniVersion": "1.1.0",
            "interfaces": [
                { "name": ifname, "mac": "02:00:00:00:00:01" },
                { "name": ifname, "mac": "02:00:00:00:00:02", "sandbox": "/run/netns/a" },
            ],
            "ips": [{ "address": "10.1.0.5/24", "interface": 1 }],
        },
    });
    for (key, value) in keys.as_object().unwrap() {
        conf[key] = value.clone();
    }
    conf
}

/// A world with a plugin directory, and a container `a` with an interface.
struct Node<'a> {
    w: &'a World,
    bin: PathBuf,
    ifname: &'static str,
}

impl<'a> Node<'a> {
    fn new(w: &'a World) -> Node<'a> {
        Node::with_interface(w, "eth0")
    }

    fn with_interface(w: &'a World, ifname: &'static str) -> Node<'a> {
        w.netns("a");
        w.sh(&format!(
            "ip link add host0 up type veth peer name {ifname} netns a; ip -n a link set {ifname} up"
        ));
        let bin = Suite::install(w).bin().to_owned();
        Node { w, bin, ifname }
    }

    fn call(&self, verb: &str, keys: Value) -> Reply {
        self.call_at(verb, "/run/netns/a", keys)
    }

    fn call_at(&self, verb: &str, netns: &str, keys: Value) -> Reply {
        let variables = [
            ("CNI_COMMAND", verb),
            ("CNI_CONTAINERID", "c"),
            ("CNI_NETNS", netns),
            ("CNI_IFNAME", self.ifname),
            ("CNI_PATH", self.bin.to_str().unwrap()),
        ];
        call_plugin(
            &self.bin.join("tuning"),
            &variables,
            &conf(self.ifname, keys).to_string(),
        )
    }

    fn gc(&self, keys: Value, valid: Value) {
        let mut conf = conf(self.ifname, keys);
        conf["cni.dev/valid-attachments"] = valid;
        let variables = [("CNI_COMMAND", "GC"), ("CNI_PATH", self.bin.to_str().unwrap())];
        call_plugin(&self.bin.join("tuning"), &variables, &conf.to_string()).silent();
    }

    /// The value of a sysctl in the container.
    fn sysctl(&self, path: &str) -> String {
        self.w.sh_in("a", &format!("cat /proc/sys/net/{path}"))
    }

    /// All attributes of the container's interface.
    fn link(&self) -> Value {
        let links = self.w.sh_in("a", &format!("ip -j -d link show {}", self.ifname));
        let links: Value = serde_json::from_str(&links).unwrap();
        let link = &links[0];
        json!({
            "mac": link["address"], "mtu": link["mtu"], "txQLen": link["txqlen"],
            "promisc": link["promiscuity"], "allmulti": link["flags"].as_array().unwrap().contains(&json!("ALLMULTI")),
        })
    }

    fn backups(&self) -> String {
        self.w.sh("find /run/cni -type f 2>/dev/null | sort | xargs")
    }
}

fn all_attributes() -> Value {
    json!({ "mac": MAC, "promisc": true, "mtu": 1400, "allmulti": true, "txQLen": 77 })
}

#[test]
fn attributes_are_set_told_checked_and_put_back() {
    testkit::world(|w| {
        let node = Node::new(w);
        let before = node.link();
        let result = node.call("ADD", all_attributes()).success();
        assert_eq!(
            result["interfaces"][0]["mac"], "02:00:00:00:00:01",
            "the host's of the same name"
        );
        assert_eq!(result["interfaces"][1]["mac"], MAC);
        assert_eq!(result["ips"], json!([{ "address": "10.1.0.5/24", "interface": 1 }]));
        let tuned = json!({ "mac": MAC, "mtu": 1400, "txQLen": 77, "promisc": 1, "allmulti": true });
        assert_eq!(node.link(), tuned);
        assert_eq!(node.backups(), "/run/cni/tuning/c_eth0.json");
        node.call("CHECK", all_attributes()).silent();
        for (key, value) in [
            ("mac", json!("c2:11:22:33:44:66")),
            ("mtu", json!(1300)),
            ("txQLen", json!(7)),
            ("allmulti", json!(false)),
        ] {
            let (code, msg) = node.call("CHECK", json!({ key: value })).error();
            assert!(code == 999 && msg.starts_with("Error: Tuning configured "), "{msg}");
        }
        node.call("DEL", json!({})).silent();
        assert_eq!(node.link(), before);
        assert_eq!(node.backups(), "");
        node.call("DEL", json!({})).silent();
    });
}

#[test]
fn sysctls_are_set_checked_and_put_back() {
    testkit::world(|w| {
        // With a dot in its name, as VLANs have it.
        let node = Node::with_interface(w, "eth0.5");
        let sysctls = [
            ("net.ipv4.conf.IFNAME.arp_filter", "ipv4/conf/eth0.5/arp_filter", "1"),
            ("net/ipv4/conf/IFNAME/arp_ignore", "ipv4/conf/eth0.5/arp_ignore", "2"),
            ("net/ipv4/conf/eth0.5/arp_notify", "ipv4/conf/eth0.5/arp_notify", "1"),
            ("net.ipv4.conf.eth0/5.arp_accept", "ipv4/conf/eth0.5/arp_accept", "1"),
            ("net/ipv4.ip_forward", "ipv4/ip_forward", "1"),
            ("net.ipv6.conf.all.forwarding", "ipv6/conf/all/forwarding", "1"),
            ("net.core.somaxconn", "core/somaxconn", "99"),
            ("net.ipv4.tcp_rmem", "ipv4/tcp_rmem", "4096 87380 1000000"),
            // The kernel's other name for ip_forward: what is put back must not depend on which was first.
            ("net.ipv4.conf.all.forwarding", "ipv4/conf/all/forwarding", "0"),
        ];
        let values = || sysctls.map(|(_, path, _)| node.sysctl(path));
        let before = values();
        let keys: serde_json::Map<String, Value> = sysctls
            .map(|(key, _, value)| (key.to_owned(), json!(value)))
            .into_iter()
            .collect();
        let conf = json!({ "sysctl": keys });
        let host = w.sh("cat /proc/sys/net/core/somaxconn /proc/sys/net/ipv4/ip_forward");
        node.call("ADD", conf.clone()).success();
        for (key, path, value) in sysctls
            .iter()
            .filter(|(key, ..)| !key.ends_with("forward") && !key.contains("all.forwarding"))
        {
            assert_eq!(node.sysctl(path).replace('\t', " "), *value, "{key}");
        }
        assert_eq!(
            w.sh("cat /proc/sys/net/core/somaxconn /proc/sys/net/ipv4/ip_forward"),
            host
        );
        let (code, msg) = node
            .call("CHECK", json!({ "sysctl": { "net.core.somaxconn": "98" } }))
            .error();
        assert_eq!(
            (code, msg.as_str()),
            (
                999,
                "Error: Tuning configured value of /proc/sys/net/core/somaxconn is 98, current value is 99"
            )
        );
        node.call(
            "CHECK",
            json!({ "sysctl": { "net.ipv4.tcp_rmem": "4096 87380 1000000" } }),
        )
        .silent();
        // What DEL needs is in the backup, not in the configuration.
        node.call("DEL", json!({})).silent();
        assert_eq!(values(), before);
        assert_eq!(node.backups(), "");
    });
}

#[test]
fn nothing_is_set_before_all_is_judged() {
    testkit::world(|w| {
        let node = Node::new(w);
        let good = ("net.ipv4.ip_forward", "1");
        let before = (
            node.link(),
            node.sysctl("ipv4/ip_forward"),
            node.sysctl("ipv4/conf/eth0/arp_filter"),
        );
        let with = |key: &str, value: Value| json!({ "sysctl": { good.0: good.1, key: value }, "mtu": 1400 });
        for (keys, code, beginning) in [
            (
                with("kernel.hostname", json!("x")),
                7,
                r#"invalid net sysctl key: "kernel/hostname""#,
            ),
            (
                with("net/../kernel/hostname", json!("x")),
                7,
                "invalid net sysctl key: ",
            ),
            (
                with("net.ipv4.nosuch", json!("1")),
                7,
                "open /proc/sys/net/ipv4/nosuch: no such file or directory",
            ),
            (with("net.ipv4.conf", json!("1")), 999, "read sysctl net/ipv4/conf: "),
            (
                with("net.ipv4.conf.all.arp_filter", json!(1)),
                7,
                "sysctl: net.ipv4.conf.all.arp_filter: invalid type",
            ),
            (
                with("net/ipv4/ip_forward", json!("1")),
                7,
                "duplicated sysctl keys are not allowed",
            ),
            // These are found out by trying, and undone.
            (
                with("net.ipv4.conf.eth0.arp_filter", json!("zz")),
                999,
                "write sysctl net/ipv4/conf/eth0/arp_filter=zz: ",
            ),
            (
                json!({ "sysctl": { good.0: good.1 }, "mac": MAC, "mtu": 5 }),
                999,
                "change \"eth0\": ",
            ),
            (
                json!({ "sysctl": { good.0: good.1 }, "mtu": -5 }),
                7,
                "mtu: -5 is not from 0 to ",
            ),
            (
                json!({ "sysctl": { good.0: good.1 }, "mac": "01:00:00:00:00:01" }),
                7,
                "invalid args 01:00:00:00:00:01 for MAC addr: ",
            ),
            (
                json!({ "args": { "cni": { "sysctl": { "kernel.hostname": "x" } } } }),
                7,
                "invalid net sysctl key: ",
            ),
            (
                json!({ "mtu": 1400, "prevResult": null }),
                7,
                "Required prevResult missing",
            ),
        ] {
            let (got, msg) = node.call("ADD", keys.clone()).error();
            assert!(got == code && msg.starts_with(beginning), "{keys}: {got} {msg}");
            let after = (
                node.link(),
                node.sysctl("ipv4/ip_forward"),
                node.sysctl("ipv4/conf/eth0/arp_filter"),
            );
            assert_eq!(after, before, "{keys}");
            assert_eq!(node.backups(), "", "{keys}");
        }
        let twice =
            r#"{"cniVersion":"1.0.0","name":"net","sysctl":{"net.ipv4.ip_forward":"1","net.ipv4.ip_forward":"1"}}"#;
        let variables = [
            ("CNI_COMMAND", "ADD"),
            ("CNI_CONTAINERID", "c"),
            ("CNI_NETNS", "/run/netns/a"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_PATH", "/opt/cni/bin"),
        ];
        let twice = call_plugin(&node.bin.join("tuning"), &variables, twice);
        assert_eq!(twice.error(), (7, "duplicated sysctl keys are not allowed".into()));
        w.sh("ip -n a link set eth0 name eth9");
        let (_, msg) = node.call("ADD", all_attributes()).error();
        assert_eq!(msg, "failed to get \"eth0\": Link not found");
        assert_eq!(
            node.call("CHECK", json!({ "prevResult": null })).error().1,
            "Required prevResult missing"
        );
    });
}

#[test]
fn args_and_runtime_config_win() {
    testkit::world(|w| {
        let node = Node::new(w);
        // The reference dies of args without a sysctl of the network's own.
        let args = json!({ "cni": { "sysctl": { "net.ipv4.ip_forward": "1" }, "mtu": 1300 } });
        let result = node
            .call(
                "ADD",
                json!({ "args": args, "mtu": 1400, "runtimeConfig": { "mac": MAC } }),
            )
            .success();
        assert_eq!(result["interfaces"][1]["mac"], MAC);
        assert_eq!(
            (node.sysctl("ipv4/ip_forward"), node.link()["mtu"].clone()),
            ("1".into(), json!(1300))
        );
        let args = json!({ "cni": { "sysctl": { "net.ipv4.ip_forward": "0" } } });
        node.call("CHECK", json!({ "args": args })).error();
    });
}

#[test]
fn only_what_the_administrator_allows() {
    testkit::world(|w| {
        let node = Node::new(w);
        w.sh("mount -t tmpfs tmpfs /etc; mkdir -p /etc/cni/tuning");
        fs::write(
            "/etc/cni/tuning/allowlist.conf",
            "^net\\.ipv4\\.conf\\.IFNAME\\.[a-z_]*$\n",
        )
        .unwrap();
        node.call(
            "ADD",
            json!({ "sysctl": { "net.ipv4.conf.IFNAME.arp_filter": "1" }, "mtu": 1400 }),
        )
        .success();
        node.call("DEL", json!({})).silent();
        let refused = json!({ "sysctl": { "net.ipv4.ip_forward": "1" } });
        let msg = "Sysctl net.ipv4.ip_forward is not allowed. Only the following sysctls are allowed: [^net\\.ipv4\\.conf\\.IFNAME\\.[a-z_]*$]";
        assert_eq!(node.call("ADD", refused.clone()).error(), (7, msg.into()));
        assert_eq!(
            node.call("ADD", json!({ "args": { "cni": refused } })).error(),
            (7, msg.into())
        );
        let variables = [("CNI_COMMAND", "STATUS"), ("CNI_PATH", "/opt/cni/bin")];
        let status = |keys: Value| call_plugin(&node.bin.join("tuning"), &variables, &conf("eth0", keys).to_string());
        assert_eq!(status(refused).error(), (7, msg.into()));
        status(json!({ "mtu": 1400 })).silent();
        assert_eq!(node.sysctl("ipv4/ip_forward"), "0");
    });
}

#[test]
fn del_does_what_can_be_done() {
    testkit::world(|w| {
        let node = Node::new(w);
        let conf = json!({ "mtu": 1400, "sysctl": { "net.ipv4.ip_forward": "1" }, "dataDir": "/run/elsewhere" });
        let data_dir = json!({ "dataDir": "/run/elsewhere" });
        let left = || w.sh("ls -A /run/elsewhere");
        for netns in ["", "/run/netns/gone"] {
            node.call("ADD", conf.clone()).success();
            assert_eq!(left(), "c_eth0.json");
            node.call_at("DEL", netns, data_dir.clone()).silent();
            assert_eq!(left(), "");
        }
        w.sh("ip -n a link set eth0 mtu 1500; ip netns exec a sh -c 'echo 0 > /proc/sys/net/ipv4/ip_forward'");
        // The interface went, the namespace is still there.
        node.call("ADD", conf.clone()).success();
        w.sh("ip -n a link del eth0");
        node.call("DEL", data_dir.clone()).silent();
        assert_eq!((node.sysctl("ipv4/ip_forward"), left()), ("0".into(), String::new()));
        for (file, text) in [("c_eth0.json", "rubbish"), ("c_eth0.json.new", "{\"mt")] {
            fs::write(format!("/run/elsewhere/{file}"), text).unwrap();
            node.call("DEL", data_dir.clone()).silent();
            assert_eq!(left(), "", "{file}");
        }
        node.call("DEL", json!({ "prevResult": null, "mtu": "x", "dataDir": 5 }))
            .silent();
    });
}

#[test]
fn two_tunings_in_one_chain_are_put_back_as_one() {
    testkit::world(|w| {
        let node = Node::new(w);
        let before = (node.link(), node.sysctl("ipv4/ip_forward"));
        node.call("ADD", json!({ "mtu": 1400 })).success();
        node.call("ADD", json!({ "mtu": 1300, "sysctl": { "net.ipv4.ip_forward": "1" } }))
            .success();
        // A third that fails leaves the other two as they are.
        node.call("ADD", json!({ "mtu": 1200, "sysctl": { "net.ipv4.ip_forward": "zz" } }))
            .error();
        assert_eq!(
            (node.link()["mtu"].clone(), node.sysctl("ipv4/ip_forward")),
            (json!(1300), "1".into())
        );
        for _ in 0..2 {
            node.call("DEL", json!({})).silent();
            assert_eq!((node.link(), node.sysctl("ipv4/ip_forward")), before);
        }
        assert_eq!(node.backups(), "");
    });
}

#[test]
fn gc_collects_what_names_the_network() {
    testkit::world(|w| {
        let node = Node::new(w);
        node.call("ADD", json!({ "mtu": 1400 })).success();
        fs::write("/run/cni/tuning/d_eth0.json", "{\n \"mtu\": 1500\n}").unwrap();
        let both = "/run/cni/tuning/c_eth0.json /run/cni/tuning/d_eth0.json";
        node.gc(json!({ "name": "other" }), json!([]));
        node.gc(json!({}), json!([{ "containerID": "c", "ifname": "eth0" }]));
        assert_eq!(node.backups(), both);
        node.gc(json!({}), json!([]));
        assert_eq!(node.backups(), "/run/cni/tuning/d_eth0.json");
        let _ = w;
    });
}

#[test]
fn either_suite_puts_back_what_the_other_kept() {
    let Some(theirs) = reference() else { return };
    for ours_first in [true, false] {
        testkit::world(|w| {
            let mut node = Node::new(w);
            let ours = node.bin.clone();
            let of = |us: bool| if us { ours.clone() } else { theirs.clone() };
            let before = node.link();
            node.bin = of(ours_first);
            let mut conf = all_attributes();
            conf["sysctl"] = json!({ "net.ipv4.conf.IFNAME.arp_filter": "1" });
            let added = node.call("ADD", conf.clone()).success();
            assert_eq!(added["interfaces"][1]["mac"], MAC);
            node.bin = of(!ours_first);
            // The reference's CHECK of the last two attributes compares with a pointer.
            node.call(
                "CHECK",
                json!({ "mac": MAC, "mtu": 1400, "promisc": true, "sysctl": conf["sysctl"] }),
            )
            .silent();
            node.call("DEL", conf).silent();
            assert_eq!(node.link(), before, "ours first: {ours_first}");
            assert_eq!(node.backups(), "", "ours first: {ours_first}");
        });
    }
}

#[test]
fn a_chain_with_bridge_is_tuned() {
    testkit::world(|w| {
        let suite = Suite::install(w);
        let netns = w.netns("b");
        let bridge = json!({
            "cniVersion": "1.0.0", "name": "net", "type": "bridge", "bridge": "cni0", "isGateway": true,
            "ipam": { "type": "host-local", "subnet": "10.1.0.0/24" },
        });
        let mut result = suite
            .call("bridge", "ADD", "b", &netns, "eth0", &bridge.to_string())
            .success();
        let mut tuning = json!({ "cniVersion": "1.0.0", "name": "net", "type": "tuning", "mac": MAC, "mtu": 1400, "prevResult": result });
        result = suite
            .call("tuning", "ADD", "b", &netns, "eth0", &tuning.to_string())
            .success();
        assert_eq!(result["interfaces"][2]["mac"], MAC);
        w.sh("ping -c1 -W2 10.1.0.2");
        for (plugin, conf) in [("bridge", &bridge), ("tuning", &tuning)] {
            let mut conf = conf.clone();
            conf["prevResult"] = result.clone();
            suite
                .call(plugin, "CHECK", "b", &netns, "eth0", &conf.to_string())
                .silent();
        }
        tuning["prevResult"] = result;
        suite
            .call("tuning", "DEL", "b", &netns, "eth0", &tuning.to_string())
            .silent();
        suite
            .call("bridge", "DEL", "b", &netns, "eth0", &bridge.to_string())
            .silent();
        assert_eq!(w.sh("find /run/cni -type f 2>/dev/null; ip -o link show type veth"), "");
    });
}

#[test]
fn sysctls_that_can_only_be_written_are_written() {
    testkit::world(|w| {
        let node = Node::new(w);
        // What the kernel has learned of paths is remembered until somebody writes to `flush`.
        w.sh("ip addr add 10.1.0.1/24 dev host0; sysctl -qw net.ipv4.ip_forward=1; ip link add far type veth peer name unused
            ip link set far mtu 1300 up; ip link set unused up; ip addr add 10.2.0.1/24 dev far");
        w.sh_in(
            "a",
            "ip addr add 10.1.0.5/24 dev eth0; ip route add default via 10.1.0.1",
        );
        let learned = || w.sh_in("a", "ip route get 10.2.0.9");
        w.sh_in("a", "ping -q -c 1 -W 1 -M do -s 1400 10.2.0.9 || true");
        assert!(learned().contains("mtu 1300"), "{}", learned());

        let keys = json!({ "sysctl": { "net.ipv4.route.flush": "1", "net.ipv4.conf.IFNAME.arp_filter": "1" } });
        node.call("ADD", keys.clone()).success();
        assert!(!learned().contains("mtu"), "{}", learned());
        assert_eq!(node.sysctl("ipv4/conf/eth0/arp_filter"), "1");
        node.call("CHECK", keys.clone()).silent();
        let backup = fs::read_to_string("/run/cni/tuning/c_eth0.json").unwrap();
        assert!(backup.contains("arp_filter") && !backup.contains("flush"), "{backup}");
        node.call("DEL", keys).silent();
        assert_eq!(node.sysctl("ipv4/conf/eth0/arp_filter"), "0");
        assert_eq!(node.backups(), "");
        let nowhere = json!({ "sysctl": { "net.ipv4.route.no_such": "1" } });
        assert!(node.call("ADD", nowhere).error().1.contains("no such file"));
    });
}
