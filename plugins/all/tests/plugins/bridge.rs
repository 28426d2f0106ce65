//! The bridge plugin: what it makes, in the kernel and in its result.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use testkit::{Reply, World};

use crate::suite::Suite;

/// A bridge network with host-local, changed by `keys`.
pub(crate) fn conf(keys: Value) -> Value {
    let mut conf = json!({
        "cniVersion": "1.0.0", "name": "net", "type": "bridge", "bridge": "cni0", "isGateway": true,
        "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.1.0.0/24" }]], "routes": [{ "dst": "0.0.0.0/0" }] },
    });
    merge(&mut conf, keys);
    conf
}

/// The same without IPAM.
pub(crate) fn layer_2(keys: Value) -> Value {
    let mut conf = json!({ "cniVersion": "1.0.0", "name": "net", "type": "bridge", "bridge": "cni0" });
    merge(&mut conf, keys);
    conf
}

fn merge(conf: &mut Value, keys: Value) {
    for (key, value) in keys.as_object().unwrap() {
        conf[key] = value.clone();
    }
}

/// A world with the suite and a container.
pub(crate) struct Node<'a> {
    pub(crate) w: &'a World,
    pub(crate) suite: Suite,
}

impl<'a> Node<'a> {
    pub(crate) fn new(w: &'a World) -> Node<'a> {
        Node {
            w,
            suite: Suite::install(w),
        }
    }

    pub(crate) fn call(&self, verb: &str, container: &str, conf: &Value) -> Reply {
        let netns = Path::new("/run/netns").join(container);
        self.suite
            .call("bridge", verb, container, &netns, "eth0", &conf.to_string())
    }

    /// Makes a namespace and attaches it.
    pub(crate) fn add(&self, container: &str, conf: &Value) -> Value {
        self.w.netns(container);
        self.call("ADD", container, conf).success()
    }

    pub(crate) fn check(&self, container: &str, conf: &Value, result: &Value) -> Reply {
        let mut conf = conf.clone();
        conf["prevResult"] = result.clone();
        self.call("CHECK", container, &conf)
    }

    /// The name of the host veth in a result.
    pub(crate) fn host_veth(result: &Value) -> &str {
        result["interfaces"][1]["name"].as_str().unwrap()
    }

    /// Asserts that nothing of any container is left: no veth, no address held, no interface in `container`.
    #[track_caller]
    pub(crate) fn assert_clean(&self, container: &str) {
        assert_eq!(self.w.sh_until_silent("ip -o link show type veth"), "");
        assert_eq!(self.reservations(), "");
        assert_eq!(
            self.w.sh_in(
                container,
                "ls /sys/class/net >/dev/null; ip -o link show | grep -v ' lo:' || true"
            ),
            ""
        );
    }

    fn reservations(&self) -> String {
        self.w
            .sh("ls /var/lib/cni/networks/net 2>/dev/null | grep -v -e lock -e last_reserved_ip || true")
    }
}

fn sysctl(w: &World, container: Option<&str>, key: &str) -> String {
    match container {
        Some(container) => w.sh_in(container, &format!("cat /proc/sys/net/{key}")),
        None => w.sh(&format!("cat /proc/sys/net/{key}")),
    }
}

#[test]
fn a_container_is_attached_reached_and_detached() {
    testkit::world(|w| {
        let node = Node::new(w);
        let conf = conf(json!({}));
        let result = node.add("a", &conf);
        let mac = |index: usize| result["interfaces"][index]["mac"].as_str().unwrap();
        assert_eq!(
            result,
            json!({
                "cniVersion": "1.0.0",
                "interfaces": [
                    { "mac": mac(0), "name": "cni0" },
                    { "mac": mac(1), "name": Node::host_veth(&result) },
                    { "mac": mac(2), "name": "eth0", "sandbox": "/run/netns/a" },
                ],
                "ips": [{ "address": "10.1.0.2/24", "gateway": "10.1.0.1", "interface": 2 }],
                "routes": [{ "dst": "0.0.0.0/0" }],
            })
        );
        for (link, index) in [("cni0", 0), (Node::host_veth(&result), 1)] {
            assert_eq!(w.sh(&format!("cat /sys/class/net/{link}/address")), mac(index));
            // Set explicitly (NET_ADDR_SET): neither udev nor the kernel will choose another.
            assert_eq!(w.sh(&format!("cat /sys/class/net/{link}/addr_assign_type")), "3");
            assert_eq!(sysctl(w, None, &format!("ipv6/conf/{link}/accept_ra")), "0");
        }
        let host_veth = Node::host_veth(&result);
        assert!(host_veth.starts_with("veth") && host_veth.len() == 12, "{host_veth}");
        assert_eq!(
            w.sh("ip -br -4 addr show cni0").split_whitespace().nth(2),
            Some("10.1.0.1/24")
        );
        assert_eq!(
            w.sh_in("a", "ip -4 route"),
            "default via 10.1.0.1 dev eth0 \n10.1.0.0/24 dev eth0 proto kernel scope link src 10.1.0.2"
        );
        assert_eq!(sysctl(w, None, "ipv4/ip_forward"), "1");
        assert_eq!(sysctl(w, Some("a"), "ipv4/conf/eth0/arp_notify"), "1");
        w.sh("ping -c1 -W2 10.1.0.2");
        w.sh_in("a", "ping -c1 -W2 10.1.0.1");

        node.check("a", &conf, &result).silent();
        node.call("DEL", "a", &conf).silent();
        node.assert_clean("a");
        node.call("DEL", "a", &conf).silent();
    });
}

#[test]
fn two_containers_reach_each_other_and_the_bridge_keeps_its_mac() {
    testkit::world(|w| {
        let node = Node::new(w);
        let first = node.add("a", &conf(json!({})));
        let second = node.add("b", &conf(json!({})));
        w.sh_in("a", "ping -c1 -W2 10.1.0.3");
        assert_eq!(first["interfaces"][0], second["interfaces"][0]);
        for container in ["a", "b"] {
            node.call("DEL", container, &conf(json!({}))).silent();
        }
        assert_eq!(first["interfaces"][0]["mac"], w.sh("cat /sys/class/net/cni0/address"));
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
        let conf = conf(json!({ "ipam": {
            "type": "host-local",
            "ranges": [[{ "subnet": "10.88.0.0/16" }], [{ "subnet": "2001:db8:4860::/64" }]],
            "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }],
        }, "promiscMode": true }));
        let result = node.call("ADD", "a", &conf).success();
        assert_eq!(result["ips"][1]["address"], "2001:db8:4860::2/64");
        assert_eq!(w.sh_in("a", "ip -6 -o addr show eth0 scope global tentative"), "");
        assert_eq!(w.sh("ip -6 -o addr show cni0 scope global tentative"), "");
        assert!(
            w.sh_in("a", "ip -6 route")
                .contains("default via 2001:db8:4860::1 dev eth0")
        );
        for (key, value) in [("accept_dad", "0"), ("keep_addr_on_down", "1"), ("disable_ipv6", "0")] {
            assert_eq!(sysctl(w, Some("a"), &format!("ipv6/conf/eth0/{key}")), value, "{key}");
        }
        assert_eq!(sysctl(w, None, "ipv6/conf/all/forwarding"), "1");
        assert!(w.sh("ip -d link show cni0").contains("promiscuity 1"));
        w.sh_in("a", "ping -6 -c1 -W2 2001:db8:4860::1");
        node.check("a", &conf, &result).silent();
        node.call("DEL", "a", &conf).silent();
        node.assert_clean("a");
    });
}

#[test]
fn ipv6_alone_with_duplicate_address_detection() {
    testkit::world(|w| {
        let node = Node::new(w);
        let conf = conf(json!({ "enabledad": true, "ipam": { "type": "host-local", "subnet": "fd00:1::/64" } }));
        let result = node.add("a", &conf);
        assert_eq!(result["ips"][0]["address"], "fd00:1::2/64");
        assert_eq!(sysctl(w, Some("a"), "ipv6/conf/eth0/accept_dad"), "1");
        // ADD has waited: the address is there to be used.
        assert_eq!(w.sh_in("a", "ip -6 -o addr show eth0 scope global tentative"), "");
        assert_eq!(sysctl(w, None, "ipv4/ip_forward"), "0");
    });
}

#[test]
fn every_result_version_has_its_shape() {
    testkit::world(|w| {
        let node = Node::new(w);
        w.netns("a");
        for version in ["", "0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
            let conf = conf(json!({ "cniVersion": version }));
            let result = node.call("ADD", "a", &conf).success();
            assert_eq!(result["cniVersion"], if version.is_empty() { "0.1.0" } else { version });
            let legacy = matches!(version, "" | "0.1.0" | "0.2.0");
            assert_eq!(result["ip4"]["gateway"] == "10.1.0.1", legacy, "{result}");
            assert_eq!(result["interfaces"].is_array(), !legacy, "{result}");
            assert_eq!(
                result["ips"][0]["version"] == "4",
                version.starts_with("0.3") || version == "0.4.0",
                "{result}"
            );
            assert_eq!(
                result["dns"].is_object(),
                version.is_empty() || version.starts_with('0'),
                "{result}"
            );
            node.call("DEL", "a", &conf).silent();
        }
    });
}

#[test]
fn as_flannel_delegates() {
    testkit::world(|w| {
        let node = Node::new(w);
        let conf = json!({
            "cniVersion": "0.3.1", "name": "net", "type": "bridge", "bridge": "cni0", "hairpinMode": true, "forceAddress": true,
            "isDefaultGateway": true, "isGateway": true, "ipMasq": false, "mtu": 1450,
            "ipam": { "type": "host-local", "subnet": "10.244.1.0/24", "routes": [{ "dst": "10.244.0.0/16" }] },
        });
        let result = node.add("a", &conf);
        assert_eq!(
            result["routes"],
            json!([{ "dst": "10.244.0.0/16" }, { "dst": "0.0.0.0/0", "gw": "10.244.1.1" }])
        );
        assert_eq!(
            w.sh_in("a", "ip route show via 10.244.1.1 | sort"),
            "10.244.0.0/16 dev eth0 \ndefault dev eth0"
        );
        let veth = Node::host_veth(&result);
        for link in ["cni0", veth] {
            assert_eq!(w.sh(&format!("cat /sys/class/net/{link}/mtu")), "1450");
        }
        assert!(w.sh_in("a", "ip link show eth0").contains("mtu 1450"));
        assert!(w.sh(&format!("ip -d link show {veth}")).contains("hairpin on"));
        assert_eq!(
            node.check("a", &conf, &result).error(),
            (1, "config version does not allow CHECK".into())
        );
    });
}

#[test]
fn layer_2_alone() {
    testkit::world(|w| {
        let node = Node::new(w);
        let conf = layer_2(json!({ "portIsolation": true, "ipam": {} }));
        let result = node.add("a", &conf);
        assert_eq!(result["ips"], Value::Null);
        assert!(
            w.sh(&format!("ip -d link show {}", Node::host_veth(&result)))
                .contains("isolated on")
        );
        assert!(w.sh_in("a", "ip link show eth0").contains("state UP"));
        node.check("a", &conf, &result).silent();
        node.call("DEL", "a", &conf).silent();
        node.assert_clean("a");
    });
}

#[test]
fn the_containers_interface_can_be_left_down() {
    testkit::world(|w| {
        let node = Node::new(w);
        let conf = layer_2(json!({ "disableContainerInterface": true }));
        let result = node.add("a", &conf);
        assert!(w.sh_in("a", "ip link show eth0").contains("state DOWN"));
        node.check("a", &conf, &result).silent();
    });
}

#[test]
fn the_mac_can_be_chosen() {
    testkit::world(|w| {
        let node = Node::new(w);
        let result = node.add(
            "a",
            &layer_2(json!({ "runtimeConfig": { "mac": "02:11:22:33:44:55" } })),
        );
        assert_eq!(result["interfaces"][2]["mac"], "02:11:22:33:44:55");
        assert!(w.sh_in("a", "ip link show eth0").contains("02:11:22:33:44:55"));
    });
}

#[test]
fn the_mtu_can_follow_the_uplink() {
    testkit::world(|w| {
        let node = Node::new(w);
        let conf = layer_2(json!({ "mtuAuto": true }));
        w.netns("a");
        let (code, msg) = node.call("ADD", "a", &conf).error();
        assert!(code == 7 && msg.starts_with("mtuAuto"), "{msg}");
        w.sh(
            "ip link add up0 mtu 1400 type veth peer name up1; ip link add up2 mtu 1300 type veth peer name up3
              ip addr add 192.0.2.1/24 dev up0; ip addr add 198.51.100.1/24 dev up2
              ip link set up0 up; ip link set up1 up; ip link set up2 up; ip link set up3 up
              ip route add default via 198.51.100.9 metric 200; ip route add default via 192.0.2.9 metric 100",
        );
        let result = node.call("ADD", "a", &conf).success();
        assert_eq!(
            w.sh(&format!("cat /sys/class/net/{}/mtu", Node::host_veth(&result))),
            "1400"
        );
    });
}

#[test]
fn fields_of_routes_are_honoured() {
    testkit::world(|w| {
        let node = Node::new(w);
        let conf = conf(
            json!({ "ipam": { "type": "host-local", "subnet": "10.1.0.0/24", "routes": [
            { "dst": "10.6.0.0/16", "mtu": 1300, "advmss": 900, "priority": 7, "table": 9 },
            { "dst": "10.7.0.0/16", "gw": "10.1.0.9" },
            { "dst": "10.8.0.0/16", "scope": 253 },
        ] } }),
        );
        let result = node.add("a", &conf);
        assert_eq!(
            w.sh_in("a", "ip route show table 9"),
            "10.6.0.0/16 via 10.1.0.1 dev eth0 metric 7 mtu 1300 advmss 900"
        );
        let main = w.sh_in("a", "ip route");
        assert!(main.contains("10.7.0.0/16 via 10.1.0.9 dev eth0"), "{main}");
        assert!(main.contains("10.8.0.0/16 dev eth0 scope link"), "{main}");
        node.check("a", &conf, &result).silent();
    });
}

#[test]
fn a_default_route_given_twice_is_set_once() {
    testkit::world(|w| {
        let node = Node::new(w);
        let conf = conf(json!({ "isDefaultGateway": true }));
        let result = node.add("a", &conf);
        assert_eq!(w.sh_in("a", "ip route show default"), "default via 10.1.0.1 dev eth0");
        node.check("a", &conf, &result).silent();
    });
}

#[test]
fn dns_comes_from_the_network_or_from_ipam() {
    testkit::world(|w| {
        let node = Node::new(w);
        fs::write(w.tmp().join("resolv.conf"), "nameserver 192.0.2.53\nsearch a.example\n").unwrap();
        let ipam = json!({ "type": "host-local", "subnet": "10.1.0.0/24", "resolvConf": w.tmp().join("resolv.conf") });
        let result = node.add("a", &conf(json!({ "ipam": ipam })));
        assert_eq!(
            result["dns"],
            json!({ "nameservers": ["192.0.2.53"], "search": ["a.example"] })
        );
        let result = node.add(
            "b",
            &conf(json!({ "ipam": ipam, "dns": { "nameservers": ["192.0.2.1"] } })),
        );
        assert_eq!(result["dns"], json!({ "nameservers": ["192.0.2.1"] }));
    });
}

#[test]
fn another_address_of_the_bridge_is_refused_or_replaced() {
    testkit::world(|w| {
        let node = Node::new(w);
        w.sh("ip link add cni0 type bridge; ip addr add 10.244.0.1/24 dev cni0");
        w.netns("a");
        let given = json!({ "type": "host-local", "subnet": "10.244.1.0/24" });
        let (_, msg) = node.call("ADD", "a", &conf(json!({ "ipam": given }))).error();
        assert_eq!(
            msg,
            r#"failed to set bridge addr: "cni0" already has an IP address different from 10.244.1.1/24"#
        );
        node.assert_clean("a");
        node.call("ADD", "a", &conf(json!({ "ipam": given, "forceAddress": true })))
            .success();
        assert_eq!(w.sh("ip -o -4 addr show cni0 | awk '{print $4}'"), "10.244.1.1/24");
    });
}

#[test]
fn an_existing_bridge_keeps_its_own_mac() {
    testkit::world(|w| {
        let node = Node::new(w);
        // Derived from its ports, as the reference's bridges have it: a lower one would replace it.
        w.sh("ip link add p0 address fe:ff:ff:ff:ff:fe type veth peer name p1; ip link add cni0 type bridge; ip link set p0 master cni0");
        let before = w.sh("cat /sys/class/net/cni0/address");
        for container in ["a", "b", "c"] {
            let result = node.add(container, &conf(json!({})));
            assert_eq!(result["interfaces"][0]["mac"].as_str(), Some(before.as_str()));
        }
        assert_eq!(w.sh("cat /sys/class/net/cni0/address"), before);
    });
}

#[test]
fn vlan_filtering_is_not_switched_on_under_the_ports_of_others() {
    testkit::world(|w| {
        let node = Node::new(w);
        w.sh("ip link add cni0 type bridge; ip link add p0 type veth peer name p1; ip link set p0 master cni0");
        w.netns("a");
        let (code, msg) = node.call("ADD", "a", &layer_2(json!({ "vlan": 100 }))).error();
        assert!(
            code == 7 && msg.contains("ip link set cni0 type bridge vlan_filtering 1"),
            "{msg}"
        );
        assert_eq!(w.sh_in("a", "ip -o link | wc -l"), "1");
    });
}

#[test]
fn refusals_change_nothing() {
    testkit::world(|w| {
        let node = Node::new(w);
        w.netns("a");
        w.sh("ip link add dum0 type veth peer name dum1");
        let before = w.sh("ip link; ip addr; find /var/lib/cni");
        for (keys, code, start) in [
            (
                json!({ "hairpinMode": true, "promiscMode": true }),
                7,
                "cannot set hairpin mode and promiscuous mode at the same time",
            ),
            (
                json!({ "vlan": 4095 }),
                7,
                "invalid VLAN ID 4095 (must be between 0 and 4094)",
            ),
            (
                json!({ "disableContainerInterface": true }),
                7,
                "cannot use IPAM when DisableContainerInterface flag is set",
            ),
            (
                json!({ "bridge": "dum0" }),
                999,
                r#"failed to create bridge "dum0": "dum0" already exists but is not a bridge"#,
            ),
            (json!({ "bridge": "abcdefghijklmnopqrstuv" }), 7, "bridge: "),
            (
                json!({ "ipMasq": true, "ipMasqBackend": "zzz" }),
                7,
                r#"ipMasqBackend: unrecognized backend "zzz""#,
            ),
            (json!({ "mtu": "1500" }), 7, "mtu: "),
            (
                json!({ "cniVersion": "0.2.0", "ipam": {} }),
                7,
                "a result of cniVersion 0.2.0",
            ),
            (json!({ "prevResult": 5 }), 7, "could not parse prevResult"),
        ] {
            let (got, msg) = node.call("ADD", "a", &conf(keys)).error();
            assert!(got == code && msg.starts_with(start), "{got} {msg}");
            assert_eq!(w.sh("ip link; ip addr; find /var/lib/cni"), before);
        }
    });
}

#[test]
fn a_failed_add_is_undone_and_fails_again_for_the_same_reason() {
    testkit::world(|w| {
        let node = Node::new(w);
        let conf = conf(json!({ "ipam": { "type": "host-local", "subnet": "10.6.0.0/30" } }));
        node.add("g", &conf);
        w.netns("h");
        for _ in 0..2 {
            let (_, msg) = node.call("ADD", "h", &conf).error();
            assert!(
                msg.ends_with("no IP addresses available in range set: 10.6.0.1-10.6.0.2"),
                "{msg}"
            );
            assert_eq!(w.sh_in("h", "ip -o link | wc -l"), "1");
            assert_eq!(w.sh("ls /sys/class/net/cni0/brif | wc -l"), "1");
        }
    });
}

#[test]
fn a_taken_interface_name_is_told_and_survives() {
    testkit::world(|w| {
        let node = Node::new(w);
        let conf = conf(json!({}));
        node.add("a", &conf);
        let (code, msg) = node
            .suite
            .call(
                "bridge",
                "ADD",
                "other",
                Path::new("/run/netns/a"),
                "eth0",
                &conf.to_string(),
            )
            .error();
        assert!(
            code == 4 && msg.starts_with(r#"container veth name ("eth0")"#),
            "{code} {msg}"
        );
        w.sh("ping -c1 -W2 10.1.0.2");
        assert_eq!(node.reservations(), "10.1.0.2");
    });
}

#[test]
fn a_second_add_of_a_living_attachment_is_refused_and_the_first_survives() {
    testkit::world(|w| {
        let node = Node::new(w);
        let conf = conf(json!({}));
        node.add("a", &conf);
        let elsewhere = w.netns("b");
        let (code, msg) = node
            .suite
            .call("bridge", "ADD", "a", &elsewhere, "eth0", &conf.to_string())
            .error();
        assert_eq!(
            (code, msg.as_str()),
            (
                999,
                "failed to allocate for range 0: 10.1.0.2 has been allocated to a, duplicate allocation is not allowed"
            )
        );
        assert_eq!(w.sh_in("b", "ip -o link | wc -l"), "1");
        assert_eq!(node.reservations(), "10.1.0.2");
        w.sh("ping -c1 -W2 10.1.0.2");
        node.suite
            .call("bridge", "ADD", "a", &elsewhere, "eth1", &conf.to_string())
            .success();
    });
}

#[test]
fn check_finds_each_difference() {
    testkit::world(|w| {
        let node = Node::new(w);
        let conf = conf(json!({ "isDefaultGateway": true, "hairpinMode": true, "ipam": {
            "type": "host-local", "subnet": "10.244.1.0/24", "routes": [{ "dst": "10.244.0.0/16" }],
        } }));
        w.netns("a");
        for (spoil, msg) in [
            ("", ""),
            // sbr and vrf move routes to tables of their own.
            (
                "ip -n a route del 10.244.0.0/16; ip -n a route add 10.244.0.0/16 via 10.244.1.1 dev eth0 table 100",
                "",
            ),
            ("ip -n a link set eth0 mtu 1400", ""),
            (
                "ip -n a route del 10.244.0.0/16",
                "Expected Route 10.244.0.0/16 via 10.244.1.1 not found in routing table",
            ),
            (
                "ip -n a route del default",
                "Expected Route 0.0.0.0/0 via 10.244.1.1 not found in routing table",
            ),
            (
                "ip -n a route replace default via 10.244.1.77",
                "Expected Route 0.0.0.0/0 via 10.244.1.1 not found in routing table",
            ),
            (
                "ip -n a addr flush dev eth0; ip -n a addr add 10.244.1.99/24 dev eth0",
                "Failed to match addr",
            ),
            (
                "ip link set VETH nomaster",
                "CNI veth created for bridge cni0 was not found",
            ),
            ("ip link set VETH down", "VETH is down"),
            (
                "ip link set VETH type bridge_slave hairpin off",
                "hairpin mode of VETH is off",
            ),
            ("ip -n a link set eth0 address 02:00:00:00:00:01", "Interface eth0 Mac"),
            ("ip -n a link set eth0 down", "Interface eth0 is down"),
            (
                "ip addr flush dev cni0",
                "Bridge cni0 does not have the gateway address 10.244.1.1/24",
            ),
            (
                "rm /var/lib/cni/networks/net/10.*",
                "host-local: Failed to find address added by container a",
            ),
            ("ip -n a link del eth0", "Interface eth0 was not found in the container"),
            ("ip link del cni0", "Bridge cni0 was not found"),
        ] {
            let result = node.call("ADD", "a", &conf).success();
            let veth = Node::host_veth(&result);
            w.sh(&spoil.replace("VETH", veth));
            let reply = node.check("a", &conf, &result);
            match msg {
                "" => reply.silent(),
                _ => assert!(
                    reply.error().1.starts_with(&msg.replace("VETH", veth)),
                    "{spoil}: {reply:?}"
                ),
            }
            node.call("DEL", "a", &conf).silent();
            node.assert_clean("a");
        }
        assert_eq!(
            node.call("CHECK", "a", &conf).error(),
            (7, "Required prevResult missing".into())
        );
    });
}

#[test]
fn del_cleans_up_whatever_is_left_to_go_by() {
    testkit::world(|w| {
        let node = Node::new(w);
        let conf = conf(json!({ "ipMasq": true }));
        let del = |netns: &str, conf: &Value| {
            node.suite
                .call("bridge", "DEL", "a", Path::new(netns), "eth0", &conf.to_string())
                .silent();
        };
        w.netns("a");
        for way in [
            "path",
            "no path",
            "no path but prevResult",
            "namespace gone",
            "no namespace",
            "interface gone",
            "bridge gone",
            "data gone",
        ] {
            let result = node.call("ADD", "a", &conf).success();
            match way {
                "path" => del("/run/netns/a", &conf),
                "no path" => del("", &conf),
                "no path but prevResult" => {
                    let mut conf = conf.clone();
                    conf["prevResult"] = result.clone();
                    del("", &conf);
                    assert_eq!(
                        w.sh("ip -o link show type veth"),
                        "",
                        "the host veth is known by name and MAC"
                    );
                }
                "namespace gone" => {
                    w.sh("ip netns del a");
                    del("/run/netns/a", &conf);
                    assert!(!Path::new("/run/netns/a").exists());
                    w.netns("a");
                }
                "no namespace" => del("/etc/passwd", &conf),
                "interface gone" => {
                    w.sh("ip -n a link del eth0");
                    del("/run/netns/a", &conf);
                }
                "bridge gone" => {
                    w.sh("ip link del cni0");
                    del("/run/netns/a", &conf);
                }
                _ => {
                    w.sh("rm -rf /var/lib/cni/networks");
                    del("/run/netns/a", &conf);
                }
            }
            assert_eq!(node.reservations(), "", "{way}");
            let rules = w.sh("iptables-save -t nat; nft list ruleset");
            assert!(!rules.contains("10.1.0."), "{way}: {rules}");
            // What only the namespace can tell goes with it, or with a DEL that names it.
            del("/run/netns/a", &conf);
            node.assert_clean("a");
        }
        del("/run/netns/never-added", &conf);
    });
}

#[test]
fn del_goes_on_where_the_configuration_is_wrong_today() {
    testkit::world(|w| {
        let node = Node::new(w);
        node.add("a", &conf(json!({})));
        let wrong = conf(
            json!({ "mtu": "x", "vlan": 9999, "ipMasqBackend": "zzz", "hairpinMode": true, "promiscMode": true, "prevResult": 7 }),
        );
        let reply = node.call("DEL", "a", &wrong);
        reply.silent();
        assert!(reply.stderr.contains("invalid VLAN ID 9999"), "{reply:?}");
        node.assert_clean("a");
    });
}

#[test]
fn the_plugins_own_namespace_is_never_touched() {
    testkit::world(|w| {
        let node = Node::new(w);
        let conf = conf(json!({}));
        let own = Path::new("/proc/self/ns/net");
        let call = |verb: &str, ifname: &str| node.suite.call("bridge", verb, "a", own, ifname, &conf.to_string());
        w.sh("ip link add victim type veth peer name other");
        let before = w.sh("ip link; ip addr; find /var/lib/cni -type f");
        assert_eq!(call("ADD", "eth0").error().0, 8);
        assert_eq!(call("CHECK", "victim").error().0, 8);
        assert_eq!(
            call("DEL", "victim").error(),
            (
                8,
                "plugin's netns and netns from CNI_NETNS should not be the same".into()
            )
        );
        assert_eq!(
            w.sh("ip link; ip addr; find /var/lib/cni -type f | grep -v lock || true"),
            before
        );

        // The host's side is cleaned all the same: what a reused process ID points at must not keep an address.
        node.add("a", &conf);
        assert_eq!(call("DEL", "eth0").error().0, 8);
        assert_eq!(node.reservations(), "");
    });
}

#[test]
fn a_missing_namespace_is_refused_before_anything_is_made() {
    testkit::world(|w| {
        let node = Node::new(w);
        for netns in ["/run/netns/none", "/etc/passwd", "/proc/self/ns/mnt"] {
            for verb in ["ADD", "CHECK"] {
                let (code, _) = node
                    .suite
                    .call(
                        "bridge",
                        verb,
                        "a",
                        Path::new(netns),
                        "eth0",
                        &conf(json!({})).to_string(),
                    )
                    .error();
                assert_eq!(code, 8, "{verb} {netns}");
            }
        }
        assert_eq!(w.sh("ls /sys/class/net"), "lo");
        assert!(!Path::new("/run/netns/none").exists());
    });
}

#[test]
fn many_cold_starts_at_once_end_as_one_after_the_other() {
    testkit::world(|w| {
        let node = Node::new(w);
        const COUNT: usize = 24;
        for n in 0..COUNT {
            w.netns(&format!("c{n}"));
        }
        let bin = node.suite.bin().display().to_string();
        let conf = conf(json!({ "ipMasq": true })).to_string();
        fs::write(w.tmp().join("conf"), conf).unwrap();
        let each = |verb: &str| {
            w.sh(&format!(
                "one() {{ env CNI_COMMAND={verb} CNI_CONTAINERID=$1 CNI_NETNS=/run/netns/$1 CNI_IFNAME=eth0 CNI_PATH={bin} {bin}/bridge < {}/conf > {}/$1.out; }}
                 pids=; for n in $(seq 0 {}); do one c$n & pids=\"$pids $!\"; done; for pid in $pids; do wait $pid; done",
                w.tmp().display(), w.tmp().display(), COUNT - 1
            ));
        };
        each("ADD");
        assert_eq!(w.sh("ls /sys/class/net/cni0/brif | wc -l"), COUNT.to_string());
        assert_eq!(node.reservations().lines().count(), COUNT);
        assert_eq!(w.sh("ip -o -4 addr show cni0 | wc -l"), "1");
        w.sh(&(0..COUNT)
            .map(|n| format!("ip netns exec c{n} ping -c1 -W5 10.1.0.1 >/dev/null;"))
            .collect::<String>());
        each("DEL");
        node.assert_clean("c0");
    });
}

#[test]
fn sysctls_that_cannot_be_written_but_are_right_are_no_error() {
    testkit::world(|w| {
        let node = Node::new(w);
        let conf = conf(json!({}));
        node.add("a", &conf);
        // The host's own, as in a container with a read-only /proc/sys: forwarding is on already.
        w.sh("mount --bind /proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv4/ip_forward; mount -o remount,ro,bind /proc/sys/net/ipv4/ip_forward");
        assert!(!w.try_sh("echo 1 > /proc/sys/net/ipv4/ip_forward").status.success());
        node.add("b", &conf);
    });
}

#[test]
fn gc_reaches_ipam_and_the_rules() {
    testkit::world(|w| {
        let node = Node::new(w);
        let conf = conf(json!({ "cniVersion": "1.1.0", "ipMasq": true }));
        node.add("a", &conf);
        node.add("b", &conf);
        let mut gc = conf.clone();
        gc["cni.dev/valid-attachments"] = json!([{ "containerID": "a", "ifname": "eth0" }]);
        node.suite.call_bare("bridge", "GC", &gc.to_string()).silent();
        assert_eq!(node.reservations(), "10.1.0.2");
        let rules = w.sh("iptables-save -t nat; nft list ruleset");
        assert!(rules.contains("10.1.0.2") && !rules.contains("10.1.0.3"), "{rules}");
        // Without the list nothing can be told from garbage.
        assert_eq!(node.suite.call_bare("bridge", "GC", &conf.to_string()).error().0, 7);
        assert_eq!(node.reservations(), "10.1.0.2");
        w.sh("ping -c1 -W2 10.1.0.2; ping -c1 -W2 10.1.0.3");
    });
}

#[test]
fn status_asks_ipam() {
    testkit::world(|w| {
        let node = Node::new(w);
        let conf = conf(json!({ "cniVersion": "1.1.0", "ipam": { "type": "host-local", "subnet": "10.6.0.0/30" } }));
        let status = || node.suite.call_bare("bridge", "STATUS", &conf.to_string());
        status().silent();
        node.add("a", &conf);
        assert_eq!(status().error().0, 50);
        node.call("DEL", "a", &conf).silent();
        status().silent();
        node.suite
            .call_bare(
                "bridge",
                "STATUS",
                &layer_2(json!({ "cniVersion": "1.1.0" })).to_string(),
            )
            .silent();
    });
}

#[test]
fn ipv4_works_where_ipv6_is_compiled_out() {
    testkit::world(|w| {
        let node = Node::new(w);
        // What such a kernel shows: no tree of IPv6 settings.
        w.sh("mount -t tmpfs none /proc/sys/net/ipv6");
        let conf = conf(json!({}));
        let result = node.add("a", &conf);
        w.sh("ping -c1 -W2 10.1.0.2");
        node.check("a", &conf, &result).silent();
        node.call("DEL", "a", &conf).silent();
        node.assert_clean("a");
    });
}

#[test]
fn an_add_asks_little_of_the_kernel() {
    testkit::world(|w| {
        let node = Node::new(w);
        let conf = conf(json!({}));
        if !w.try_sh("command -v strace").status.success() {
            return testkit::skip("strace is not installed");
        }
        node.add("first", &conf);
        w.netns("a");
        fs::write(w.tmp().join("conf"), conf.to_string()).unwrap();
        let (bin, tmp) = (node.suite.bin().display(), w.tmp().display());
        let traced = |verb: &str| {
            w.sh(&format!(
                "env CNI_COMMAND={verb} CNI_CONTAINERID=a CNI_NETNS=/run/netns/a CNI_IFNAME=eth0 CNI_PATH={bin} \
                     strace -f -o {tmp}/trace {bin}/bridge < {tmp}/conf > /dev/null"
            ));
            let calls = w.sh(&format!("cat {tmp}/trace"));
            let count = |name: &str| calls.lines().filter(|line| line.contains(&format!(" {name}("))).count();
            (
                count("sendto") + count("sendmsg"),
                count("execve") - 1,
                count("clone") + count("clone3") + count("vfork"),
            )
        };
        // The bridge before and after its new port, the veth pair, address, link up, route, and the bridge's addresses.
        let veth_pair = if testkit::echoes_new_links() { 1 } else { 2 };
        assert_eq!(
            traced("ADD"),
            (6 + veth_pair, 0, 0),
            "(netlink requests, programs started, processes and threads made)"
        );
        // One to delete the link; the others look whether any rules of ours are there.
        let (requests, programs, _) = traced("DEL");
        assert!(requests <= 8 && programs == 0, "{requests} {programs}");
    });
}

#[test]
fn two_networks_with_a_default_route_each() {
    testkit::world(|w| {
        let node = Node::new(w);
        let netns = w.netns("a");
        let network = |n: u8| {
            let ranges = json!([[{ "subnet": format!("10.{n}.0.0/24") }], [{ "subnet": format!("fd0{n}::/64") }]]);
            let ipam = json!({ "type": "host-local", "ranges": ranges, "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }] });
            conf(json!({ "name": format!("net{n}"), "bridge": format!("cni{n}"), "ipam": ipam }))
        };
        let call = |verb: &str, n: u8, conf: &Value| {
            node.suite
                .call("bridge", verb, "a", &netns, &format!("eth{n}"), &conf.to_string())
        };
        let results: Vec<Value> = (1..=2).map(|n| call("ADD", n, &network(n)).success()).collect();
        for (n, result) in (1..=2).zip(&results) {
            let mut conf = network(n);
            conf["prevResult"] = result.clone();
            call("CHECK", n, &conf).silent();
        }
        call("DEL", 1, &network(1)).silent();
        let mut conf = network(2);
        conf["prevResult"] = results[1].clone();
        call("CHECK", 2, &conf).silent();
        w.sh_in("a", "ping -c1 -W2 10.2.0.1; ping -6 -c1 -W2 fd02::1");
    });
}
