//! The ptp plugin: what it makes, in the kernel and in its result.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use testkit::{Reply, World, call_plugin};

use crate::reference::reference;
use crate::suite::Suite;

/// A network of ptp with host-local, changed by `keys`.
fn conf(keys: Value) -> Value {
    let mut conf = json!({
        "cniVersion": "1.0.0", "name": "net", "type": "ptp",
        "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.1.0.0/24" }]], "routes": [{ "dst": "0.0.0.0/0" }] },
    });
    for (key, value) in keys.as_object().unwrap() {
        conf[key] = value.clone();
    }
    conf
}

/// The same with the addresses named.
fn fixed(addresses: Value) -> Value {
    conf(json!({ "ipam": { "type": "static", "addresses": addresses } }))
}

/// The same for both families.
fn dual_stack(keys: Value) -> Value {
    let mut conf = conf(keys);
    conf["ipam"] = json!({
        "type": "host-local",
        "ranges": [[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "fd00:1::/64" }]],
        "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }],
    });
    conf
}

fn with_prev(conf: &Value, result: &Value) -> Value {
    let mut conf = conf.clone();
    conf["prevResult"] = result.clone();
    conf
}

/// A world with a plugin directory.
struct Node<'a> {
    w: &'a World,
    bin: PathBuf,
}

impl<'a> Node<'a> {
    fn new(w: &'a World) -> Node<'a> {
        let bin = Suite::install(w).bin().to_owned();
        Node { w, bin }
    }

    fn call(&self, verb: &str, container: &str, conf: &Value) -> Reply {
        self.call_at(verb, container, &format!("/run/netns/{container}"), conf)
    }

    fn call_at(&self, verb: &str, container: &str, netns: &str, conf: &Value) -> Reply {
        let variables = [
            ("CNI_COMMAND", verb),
            ("CNI_CONTAINERID", container),
            ("CNI_NETNS", netns),
            ("CNI_IFNAME", "eth0"),
            ("CNI_PATH", self.bin.to_str().unwrap()),
        ];
        call_plugin(&self.bin.join("ptp"), &variables, &conf.to_string())
    }

    /// Makes a namespace and attaches it.
    fn add(&self, container: &str, conf: &Value) -> Value {
        self.w.netns(container);
        self.call("ADD", container, conf).success()
    }

    /// Asserts that nothing of any container is left: no veth, no rule, no route, no address held.
    #[track_caller]
    fn assert_clean(&self) {
        let left = "ip -o link show type veth | grep -v ' up' || true; ip route | grep 10.1. || true
                    (iptables-save; ip6tables-save; nft list ruleset) 2>/dev/null | grep -e CNI- -e 10.1.0 -e fd00:1: || true
                    ls /var/lib/cni/networks/net 2>/dev/null | grep -v -e lock -e last_reserved_ip || true";
        assert_eq!(self.w.sh_until_silent(left), "");
    }
}

fn host_veth(result: &Value) -> &str {
    result["interfaces"][0]["name"].as_str().unwrap()
}

#[test]
fn a_container_is_attached_reached_and_detached() {
    testkit::world(|w| {
        let node = Node::new(w);
        let conf = conf(json!({ "mtu": 1400 }));
        let result = node.add("a", &conf);
        let veth = host_veth(&result);
        assert_eq!(
            result,
            json!({
                "cniVersion": "1.0.0",
                "interfaces": [
                    { "mac": w.sh(&format!("cat /sys/class/net/{veth}/address")), "name": veth },
                    { "mac": result["interfaces"][1]["mac"], "name": "eth0", "sandbox": "/run/netns/a" },
                ],
                "ips": [{ "address": "10.1.0.2/24", "gateway": "10.1.0.1", "interface": 1 }],
                "routes": [{ "dst": "0.0.0.0/0" }],
            })
        );
        assert_eq!(
            w.sh_in("a", "ip route | sed 's/ *$//'"),
            "default via 10.1.0.1 dev eth0\n10.1.0.0/24 via 10.1.0.1 dev eth0 src 10.1.0.2\n10.1.0.1 dev eth0 scope link src 10.1.0.2"
        );
        assert_eq!(w.sh("ip route"), format!("10.1.0.2 dev {veth} scope host"));
        assert_eq!(
            w.sh(&format!("ip -br -4 addr show {veth}")).split_whitespace().nth(2),
            Some("10.1.0.1/32")
        );
        for sysctl in ["ipv4/ip_forward 1".to_owned(), format!("ipv6/conf/{veth}/accept_ra 0")] {
            let (key, value) = sysctl.split_once(' ').unwrap();
            assert_eq!(w.sh(&format!("cat /proc/sys/net/{key}")), value, "{key}");
        }
        for link in [
            format!("cat /sys/class/net/{veth}/mtu"),
            "ip netns exec a cat /sys/class/net/eth0/mtu".into(),
        ] {
            assert_eq!(w.sh(&link), "1400");
        }
        w.sh("ping -c1 -W2 10.1.0.2");
        w.sh_in("a", "ping -c1 -W2 10.1.0.1");

        node.call("CHECK", "a", &with_prev(&conf, &result)).silent();
        node.call("DEL", "a", &conf).silent();
        node.assert_clean();
        node.call("DEL", "a", &conf).silent();
    });
}

#[test]
fn containers_reach_each_other_through_the_host() {
    testkit::world(|w| {
        let node = Node::new(w);
        for container in ["a", "b"] {
            node.add(container, &conf(json!({})));
        }
        w.sh_in("a", "ping -c1 -W2 10.1.0.3");
        node.call("DEL", "a", &conf(json!({}))).silent();
        w.sh("ping -c1 -W2 10.1.0.3");
    });
}

#[test]
fn dual_stack_is_usable_at_once() {
    testkit::world(|w| {
        let node = Node::new(w);
        // As runtimes start containers: with IPv6 switched off.
        w.netns("a");
        w.sh_in(
            "a",
            "echo 1 | tee /proc/sys/net/ipv6/conf/all/disable_ipv6 /proc/sys/net/ipv6/conf/default/disable_ipv6",
        );
        let conf = dual_stack(json!({}));
        let result = node.call("ADD", "a", &conf).success();
        let veth = host_veth(&result);
        for (ends, script) in [
            ("a", "ip -6 -o addr show eth0 tentative".to_owned()),
            ("", format!("ip -6 -o addr show {veth} scope global tentative")),
        ] {
            let tentative = if ends.is_empty() {
                w.sh(&script)
            } else {
                w.sh_in(ends, &script)
            };
            assert_eq!(tentative, "");
        }
        w.sh("ping -6 -c1 -W2 fd00:1::2");
        w.sh_in("a", "ping -6 -c1 -W2 fd00:1::1");
        let routes = w.sh_in("a", "ip -6 route | grep -v fe80");
        for route in [
            "fd00:1::1 dev eth0 src fd00:1::2",
            "fd00:1::/64 via fd00:1::1 dev eth0",
            "default via fd00:1::1 dev eth0",
        ] {
            assert!(routes.contains(route), "{routes}");
        }
        assert!(w.sh("ip -6 route").contains(&format!("fd00:1::2 dev {veth}")));
        assert_eq!(w.sh("cat /proc/sys/net/ipv6/conf/all/forwarding"), "1");
        node.call("CHECK", "a", &with_prev(&conf, &result)).silent();
        node.call("DEL", "a", &conf).silent();
        node.assert_clean();
    });
}

/// A namespace beyond the node that knows the node's own address, and no way to the containers.
fn outside(w: &World) {
    w.netns("outside");
    w.sh("ip link add up0 type veth peer name up1 netns outside
          ip addr add 192.0.2.1/24 dev up0; ip addr add 2001:db8::1/64 dev up0 nodad; ip link set up0 up");
    w.sh_in(
        "outside",
        "ip addr add 192.0.2.2/24 dev up1; ip addr add 2001:db8::2/64 dev up1 nodad; ip link set up1 up",
    );
}

#[test]
fn the_world_outside_is_reached_by_masquerading() {
    for backend in ["iptables", "nftables"] {
        testkit::world(|w| {
            let node = Node::new(w);
            outside(w);
            let plain = node.add("plain", &dual_stack(json!({})));
            let conf = dual_stack(json!({ "ipMasq": true, "ipMasqBackend": backend }));
            let result = node.add("a", &conf);
            w.sh_in("a", "ping -c1 -W2 192.0.2.2; ping -6 -c1 -W2 2001:db8::2");
            assert!(!w.try_sh_in("plain", "ping -c1 -W1 192.0.2.2").status.success());
            // Within the subnet the source stays.
            w.sh_in("a", "ping -c1 -W2 10.1.0.2");

            node.call("CHECK", "a", &with_prev(&conf, &result)).silent();
            w.sh("iptables -t nat -F; ip6tables -t nat -F; nft flush ruleset");
            node.call("CHECK", "a", &with_prev(&conf, &result)).error();
            assert_eq!(
                node.call("ADD", "a", &conf).error().0,
                4,
                "the interface is there already"
            );
            w.sh("ip netns exec a ip link del eth0");
            node.call("DEL", "a", &conf).silent();
            node.call("ADD", "a", &conf).success();

            let mut gc = conf.clone();
            gc["cniVersion"] = json!("1.1.0");
            gc["cni.dev/valid-attachments"] = json!([{ "containerID": "a", "ifname": "eth0" }]);
            let rules = || w.sh("(iptables-save -t nat; nft list ruleset) 2>/dev/null | grep -c masquerade -i || true");
            let before = rules();
            let collect = |conf: &Value| {
                let variables = [("CNI_COMMAND", "GC"), ("CNI_PATH", node.bin.to_str().unwrap())];
                call_plugin(&node.bin.join("ptp"), &variables, &conf.to_string()).silent();
            };
            collect(&gc);
            assert_eq!(rules(), before);
            w.sh_in("a", "ping -c1 -W2 192.0.2.2");
            gc["cni.dev/valid-attachments"] = json!([]);
            collect(&gc);
            assert!(
                !w.sh("(iptables-save; nft list ruleset) 2>/dev/null")
                    .contains("10.1.0.")
            );
            assert_eq!(plain["ips"][0]["address"], "10.1.0.2/24");
            for container in ["a", "plain"] {
                node.call("DEL", container, &conf).silent();
            }
            assert!(!w.sh("ip -o link").contains("veth"));
        });
    }
}

#[test]
fn dns_is_that_of_ipam_unless_the_network_has_its_own() {
    testkit::world(|w| {
        let node = Node::new(w);
        let resolv_conf = w.tmp().join("resolv.conf");
        fs::write(&resolv_conf, "nameserver 192.0.2.53\n").unwrap();
        let ipam = json!({ "type": "host-local", "subnet": "10.1.0.0/24", "resolvConf": resolv_conf });
        let result = node.add("a", &conf(json!({ "ipam": ipam })));
        assert_eq!(result["dns"], json!({ "nameservers": ["192.0.2.53"] }));
        let result = node.add("b", &conf(json!({ "ipam": ipam, "dns": { "domain": "example.net" } })));
        assert_eq!(result["dns"], json!({ "domain": "example.net" }));
    });
}

#[test]
fn a_gateway_outside_of_the_subnet() {
    testkit::world(|w| {
        let node = Node::new(w);
        let conf = fixed(json!([
            { "address": "10.1.0.5/32", "gateway": "169.254.1.1" },
            { "address": "fd00:1::5/128", "gateway": "fe80::1" },
        ]));
        let result = node.add("a", &conf);
        w.sh("ping -c1 -W2 10.1.0.5; ping -6 -c1 -W2 fd00:1::5");
        node.call("CHECK", "a", &with_prev(&conf, &result)).silent();
        node.call("DEL", "a", &conf).silent();
        node.assert_clean();
    });
}

#[test]
fn what_cannot_be_made_is_undone() {
    testkit::world(|w| {
        let node = Node::new(w);
        w.netns("a");
        let unreachable = json!({ "type": "host-local", "subnet": "10.1.0.0/24", "routes": [{ "dst": "10.9.0.0/16", "gw": "10.8.0.1" }] });
        let nowhere = json!({ "type": "nope" });
        for (conf, code, beginning) in [
            (conf(json!({ "ipam": {} })), 7, "no plugin name provided"),
            (
                conf(json!({ "ipam": nowhere })),
                7,
                "failed to find plugin \"nope\" in path",
            ),
            (
                conf(json!({ "ipam": unreachable, "ipMasq": true })),
                999,
                "failed to add route: add route to 10.9.0.0/16",
            ),
            (conf(json!({ "mtu": "1500" })), 7, "mtu: invalid type"),
            (
                conf(json!({ "mtuAuto": true })),
                7,
                "mtuAuto: the node has no default route",
            ),
            (fixed(json!([])), 999, "IPAM plugin returned missing IP config"),
            (
                fixed(json!([{ "address": "10.1.0.5/24" }])),
                999,
                "IPAM plugin returned no gateway for 10.1.0.5/24",
            ),
        ] {
            let (got, msg) = node.call("ADD", "a", &conf).error();
            assert!(got == code && msg.starts_with(beginning), "{got} {msg}");
            node.assert_clean();
        }
        w.sh("ip -n a link add eth0 type veth peer name up0");
        let (code, msg) = node.call("ADD", "a", &conf(json!({}))).error();
        assert!(code == 4 && msg.starts_with("container veth name (\"eth0\")"), "{msg}");
        node.assert_clean();
    });
}

#[test]
fn check_tells_each_difference() {
    for (script, expected) in [
        (
            "ip -n a link set eth0 name eth9",
            "Interface eth0 was not found in the container",
        ),
        ("ip -n a link set eth0 address 02:00:00:00:00:09", "Interface eth0 Mac "),
        ("ip -n a link set eth0 down", "Interface eth0 is down"),
        ("ip link set $veth mtu 1300", "MTU of "),
        ("ip link set $veth name other", "The host's end of eth0 was not found"),
        ("ip link set $veth down", ""),
        (
            "ip addr del 10.1.0.1/32 dev $veth",
            "does not have the gateway address 10.1.0.1/32",
        ),
        (
            "ip route del 10.1.0.2 dev $veth",
            "The host has no route to 10.1.0.2 through veth",
        ),
        (
            "ip route add 10.1.0.2 via 10.1.0.2 dev $veth onlink metric 5; ip route del 10.1.0.2 dev $veth metric 0",
            "",
        ),
        (
            "ip -n a addr del 10.1.0.2/24 dev eth0",
            "Failed to match addr 10.1.0.2/24 on interface eth0",
        ),
        (
            "ip -n a route del 10.1.0.1 dev eth0",
            "Failed to find Gateway 10.1.0.1 for interface eth0",
        ),
        (
            "ip -n a route del 10.1.0.0/24",
            "Failed to find Gateway 10.1.0.1 for interface eth0",
        ),
        (
            "ip -n a route del default",
            "Expected Route 0.0.0.0/0 via 10.1.0.1 not found in routing table",
        ),
        (
            "rm /var/lib/cni/networks/net/10.1.0.2",
            "host-local: Failed to find address added by container a",
        ),
    ] {
        testkit::world(|w| {
            let node = Node::new(w);
            let conf = conf(json!({ "mtu": 1400 }));
            let result = node.add("a", &conf);
            node.call("CHECK", "a", &with_prev(&conf, &result)).silent();
            w.sh(&format!("veth={}; {script}", host_veth(&result)));
            let (code, msg) = node.call("CHECK", "a", &with_prev(&conf, &result)).error();
            assert!(code == 999 && msg.contains(expected), "{script}: {msg}");
        });
    }
    testkit::world(|w| {
        let node = Node::new(w);
        w.netns("a");
        let missing = node.call("CHECK", "a", &conf(json!({}))).error();
        assert_eq!(missing, (7, "ptp: Required prevResult missing".into()));
    });
}

#[test]
fn a_container_whose_namespace_is_gone_is_cleaned_up_after() {
    testkit::world(|w| {
        let node = Node::new(w);
        let conf = conf(json!({ "ipMasq": true, "ipMasqBackend": "nftables" }));
        // The namespace lives on, held by a process; only the runtime's path to it is gone.
        for netns in ["", "/run/netns/gone"] {
            let result = node.add("a", &conf);
            node.call_at("DEL", "a", netns, &with_prev(&conf, &result)).silent();
            node.assert_clean();
            w.sh("ip netns del a");
        }
        node.add("a", &conf);
        w.sh("ip netns del a");
        node.call("DEL", "a", &conf).silent();
        node.assert_clean();
    });
}

#[test]
fn status_is_that_of_ipam() {
    testkit::world(|w| {
        let node = Node::new(w);
        let status = |conf: Value| {
            let mut conf = conf;
            conf["cniVersion"] = json!("1.1.0");
            let variables = [("CNI_COMMAND", "STATUS"), ("CNI_PATH", node.bin.to_str().unwrap())];
            call_plugin(&node.bin.join("ptp"), &variables, &conf.to_string())
        };
        status(conf(json!({}))).silent();
        assert_eq!(status(conf(json!({ "ipam": {} }))).error().1, "no plugin name provided");
        let missing = status(conf(json!({ "ipam": { "type": "nope" } }))).error().1;
        assert!(missing.starts_with("failed to find plugin \"nope\""), "{missing}");
    });
}

/// Everything that shows of an attachment, without what is random.
fn shown(w: &World, result: &Value) -> String {
    let links = w.sh("ip addr; ip route; ip -6 route; ip -n a addr; ip -n a route; ip -n a -6 route; iptables-save -t nat; ip6tables-save -t nat");
    let mut shown = links.replace(host_veth(result), "VETH");
    for interface in result["interfaces"].as_array().unwrap() {
        shown = shown.replace(interface["mac"].as_str().unwrap(), "MAC");
    }
    let kept = |line: &&str| !line.starts_with('#') && !line.contains("fe80::") && !line.contains("valid_lft");
    // Counters of rules and numbers of interfaces are not ours to choose; the state of duplicate address detection is what
    // differs on purpose.
    let plain = |line: &str| {
        let line = line.split(['[', '@']).next().unwrap_or_default().trim_end();
        line.trim_end_matches(" nodad")
            .trim_end_matches(" tentative")
            .to_owned()
    };
    shown.lines().filter(kept).map(plain).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_reference_makes_the_same_and_each_removes_what_the_other_made() {
    let Some(theirs) = reference() else { return };
    let mut seen = Vec::new();
    for made_by_reference in [false, true] {
        for removed_by_reference in [false, true] {
            testkit::world(|w| {
                let mut node = Node::new(w);
                let ours = node.bin.clone();
                let of = |reference: bool| if reference { theirs.clone() } else { ours.clone() };
                let conf = dual_stack(json!({ "ipMasq": true, "ipMasqBackend": "iptables" }));
                node.bin = of(made_by_reference);
                let result = node.add("a", &conf);
                seen.push(shown(w, &result));
                for checked_by_reference in [true, false] {
                    node.bin = of(checked_by_reference);
                    node.call("CHECK", "a", &with_prev(&conf, &result)).silent();
                }
                node.bin = of(removed_by_reference);
                node.call("DEL", "a", &with_prev(&conf, &result)).silent();
                let left = w.sh("ip -o link show type veth; ip route; (iptables-save; ip6tables-save) | grep -e c1 -e 10.1.0 || true");
                assert_eq!(
                    left, "",
                    "made by the reference: {made_by_reference}, removed: {removed_by_reference}"
                );
            });
        }
    }
    assert!(seen.windows(2).all(|pair| pair[0] == pair[1]), "{seen:#?}");
    assert!(
        seen.first().is_some_and(|first| first.contains("MASQUERADE")),
        "{seen:#?}"
    );
}

#[test]
fn masquerading_that_the_reference_wrote_with_nftables_goes_by_name_alone() {
    let Some(theirs) = reference() else { return };
    // With the namespace, without its name, and after its end.
    for netns in [Some("/run/netns/a"), Some(""), None] {
        testkit::world(|w| {
            let mut node = Node::new(w);
            let conf = dual_stack(json!({ "ipMasq": true, "ipMasqBackend": "nftables" }));
            let ours = std::mem::replace(&mut node.bin, theirs.clone());
            node.add("a", &conf);
            node.add("b", &conf);
            let rules = || w.sh("nft list table inet cni_plugins_masquerade | grep -o 'saddr [^ ]*' | sort");
            assert_eq!(
                rules(),
                "saddr 10.1.0.2\nsaddr 10.1.0.3\nsaddr fd00:1::2\nsaddr fd00:1::3"
            );
            node.bin = ours;
            if netns.is_none() {
                w.sh("ip netns del a");
            }
            for _ in 0..2 {
                node.call_at("DEL", "a", netns.unwrap_or("/run/netns/a"), &conf)
                    .silent();
                assert_eq!(rules(), "saddr 10.1.0.3\nsaddr fd00:1::3", "{netns:?}");
            }
            node.call("DEL", "b", &conf).silent();
            assert!(!w.sh("nft list ruleset").contains("saddr"), "{netns:?}");
        });
    }
}

#[test]
fn every_result_version_has_its_shape() {
    testkit::world(|w| {
        let node = Node::new(w);
        w.netns("a");
        for version in ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
            let conf = conf(json!({ "cniVersion": version }));
            let result = node.call("ADD", "a", &conf).success();
            assert_eq!(result["cniVersion"], version);
            let legacy = matches!(version, "0.1.0" | "0.2.0");
            assert_eq!(result["ip4"]["gateway"] == "10.1.0.1", legacy, "{result}");
            assert_eq!(result["interfaces"].is_array(), !legacy, "{result}");
            node.call("DEL", "a", &conf).silent();
        }
        assert!(Path::new("/run/netns/a").exists());
    });
}
