//! The bridge plugin's VLANs, on a kernel whose bridges have them: `scripts/vm` boots one.

use std::path::Path;
use std::thread;

use serde_json::{Value, json};
use testkit::{World, call_plugin, has_bridge_vlan_filtering, skip};

use crate::bridge::{Node, conf, layer_2};
use crate::reference::reference;

/// How many containers come and go at once.
const CROWD: usize = 6;

/// A world with the suite, where the kernel is fit.
fn on_vlan_kernel(test: impl FnOnce(&Node<'_>) + Send) {
    testkit::world(|w| {
        if has_bridge_vlan_filtering(w) {
            test(&Node::new(w));
        } else {
            skip("this kernel has no bridge VLAN filtering");
        }
    });
}

/// A port's VLANs as `bridge vlan show` has them: `1 PVID Egress Untagged`, `10`.
fn vlans(w: &World, port: &str) -> Vec<String> {
    let shown: Value = serde_json::from_str(&w.sh(&format!("bridge -j vlan show dev {port}"))).unwrap();
    let ranges = shown[0]["vlans"].as_array().cloned().unwrap_or_default();
    ranges.iter().map(range).collect()
}

fn range(vlan: &Value) -> String {
    let mut text = vlan["vlan"].to_string();
    for flag in vlan["flags"].as_array().into_iter().flatten() {
        text += &format!(" {}", flag.as_str().unwrap());
    }
    text
}

fn exists(w: &World, link: &str) -> bool {
    Path::new("/sys/class/net").join(link).exists() && w.try_sh(&format!("ip link show {link}")).status.success()
}

/// The port of the bridge at the other end of a gateway port.
fn gateway_peer(w: &World, port: &str) -> String {
    let links: Value = serde_json::from_str(&w.sh(&format!("ip -j link show {port}"))).unwrap();
    links[0]["link"].as_str().unwrap().to_owned()
}

/// A network whose containers are in `vlan` and whose node is their gateway.
fn gateway_conf(vlan: u16, keys: Value) -> Value {
    let mut conf = conf(keys);
    conf["vlan"] = json!(vlan);
    conf
}

#[test]
fn an_access_vlan_is_untagged_and_instead_of_the_default_one_unless_told() {
    on_vlan_kernel(|node| {
        let kept = node.add("a", &layer_2(json!({ "vlan": 100, "preserveDefaultVlan": true })));
        assert_eq!(
            vlans(node.w, Node::host_veth(&kept)),
            ["1 Egress Untagged", "100 PVID Egress Untagged"]
        );
        let alone = node.add("b", &layer_2(json!({ "vlan": 100 })));
        assert_eq!(vlans(node.w, Node::host_veth(&alone)), ["100 PVID Egress Untagged"]);
        let none = node.add("c", &layer_2(json!({})));
        assert_eq!(vlans(node.w, Node::host_veth(&none)), ["1 PVID Egress Untagged"]);
        assert_eq!(node.w.sh("cat /sys/class/net/cni0/bridge/vlan_filtering"), "1");
        // The bridge itself takes no part.
        assert_eq!(vlans(node.w, "cni0"), ["1 PVID Egress Untagged"]);
    });
}

#[test]
fn the_default_vlan_is_the_one_that_the_bridge_names() {
    on_vlan_kernel(|node| {
        node.w
            .sh("ip link add cni0 type bridge vlan_filtering 1 vlan_default_pvid 7");
        let alone = node.add("a", &layer_2(json!({ "vlan": 100, "preserveDefaultVlan": false })));
        assert_eq!(vlans(node.w, Node::host_veth(&alone)), ["100 PVID Egress Untagged"]);
        node.w.sh("ip link set cni0 type bridge vlan_default_pvid 0");
        let none = node.add("b", &layer_2(json!({ "vlan": 100, "preserveDefaultVlan": false })));
        assert_eq!(vlans(node.w, Node::host_veth(&none)), ["100 PVID Egress Untagged"]);
    });
}

#[test]
fn a_trunk_is_tagged_and_leaves_the_access_vlan_untagged() {
    on_vlan_kernel(|node| {
        let trunk = json!([{ "minID": 10, "maxID": 12, "id": 20 }, { "id": 30 }]);
        let conf = layer_2(json!({ "vlanTrunk": trunk }));
        let result = node.add("a", &conf);
        assert_eq!(
            vlans(node.w, Node::host_veth(&result)),
            ["1 PVID Egress Untagged", "10", "11", "12", "20", "30"]
        );
        node.check("a", &conf, &result).silent();

        let both = layer_2(json!({ "vlan": 11, "vlanTrunk": trunk }));
        let result = node.add("b", &both);
        assert_eq!(
            vlans(node.w, Node::host_veth(&result)),
            ["10", "11 PVID Egress Untagged", "12", "20", "30"]
        );
        node.check("b", &both, &result).silent();
        for container in ["a", "b"] {
            node.call("DEL", container, &conf).silent();
        }
        node.assert_clean("a");
    });
}

#[test]
fn containers_reach_those_of_their_vlan_only() {
    on_vlan_kernel(|node| {
        for (container, vlan) in [("a", 100), ("b", 100), ("c", 200)] {
            node.add(container, &gateway_conf(vlan, json!({ "isGateway": false })));
        }
        node.w.sh_in("a", "ping -c1 -W5 10.1.0.3");
        assert!(!node.w.try_sh_in("a", "ping -c1 -W1 10.1.0.4").status.success());
        assert!(!node.w.try_sh_in("c", "ping -c1 -W1 10.1.0.3").status.success());
    });
}

#[test]
fn a_trunk_reaches_the_vlans_that_it_carries() {
    on_vlan_kernel(|node| {
        node.add("access", &gateway_conf(100, json!({ "isGateway": false })));
        node.add(
            "trunk",
            &layer_2(json!({ "vlanTrunk": [{ "minID": 100, "maxID": 101 }] })),
        );
        node.w.sh_in(
            "trunk",
            "for vid in 100 101; do ip link add link eth0 name v$vid up type vlan id $vid; done
             ip addr add 10.1.0.100/24 dev v100",
        );
        node.w.sh_in("trunk", "ping -c1 -W5 10.1.0.2");
        node.w.sh_in(
            "trunk",
            "ip addr del 10.1.0.100/24 dev v100; ip addr add 10.1.0.100/24 dev v101",
        );
        assert!(!node.w.try_sh_in("trunk", "ping -c1 -W1 10.1.0.2").status.success());
    });
}

#[test]
fn the_gateway_of_a_vlan_is_a_port_of_its_own() {
    on_vlan_kernel(|node| {
        let w = node.w;
        let conf = gateway_conf(100, json!({}));
        let first = node.add("a", &conf);
        assert_eq!(
            first["interfaces"][3],
            json!({ "name": "cni0.100", "mac": w.sh("cat /sys/class/net/cni0.100/address") })
        );
        assert_eq!(first["ips"][0]["interface"], 2);
        assert!(w.sh("ip -br -4 addr show cni0.100").contains("10.1.0.1/24"));
        assert_eq!(w.sh("ip -4 -o addr show cni0"), "");
        let peer = gateway_peer(w, "cni0.100");
        assert_eq!(
            w.sh(&format!("basename $(readlink /sys/class/net/{peer}/master)")),
            "cni0"
        );
        assert_eq!(vlans(w, &peer), ["100 PVID Egress Untagged"]);
        w.sh_in("a", "ping -c1 -W5 10.1.0.1");
        node.check("a", &conf, &first).silent();

        node.add("b", &conf);
        node.call("DEL", "a", &conf).silent();
        w.sh_in("b", "ping -c1 -W5 10.1.0.1");
        node.call("DEL", "b", &conf).silent();
        assert!(!exists(w, "cni0.100") && exists(w, "cni0"));
        node.assert_clean("b");
        node.call("DEL", "b", &conf).silent();
    });
}

#[test]
fn another_vlans_containers_do_not_keep_a_gateway_port() {
    on_vlan_kernel(|node| {
        let other = gateway_conf(
            200,
            json!({ "ipam": { "type": "host-local", "subnet": "10.2.0.0/24" } }),
        );
        node.add("a", &gateway_conf(100, json!({})));
        node.add("b", &other);
        node.call("DEL", "a", &gateway_conf(100, json!({}))).silent();
        assert!(!exists(node.w, "cni0.100") && exists(node.w, "cni0.200"));
        node.w.sh_in("b", "ping -c1 -W5 10.2.0.1");
    });
}

#[test]
fn a_trunk_with_the_vlan_keeps_its_gateway_port() {
    on_vlan_kernel(|node| {
        let access = gateway_conf(100, json!({}));
        node.add("a", &access);
        node.add("b", &layer_2(json!({ "vlanTrunk": [{ "minID": 90, "maxID": 110 }] })));
        node.call("DEL", "a", &access).silent();
        assert!(exists(node.w, "cni0.100"));
    });
}

#[test]
fn a_gateway_port_of_others_stays() {
    on_vlan_kernel(|node| {
        let w = node.w;
        w.sh("ip link add cni0 type bridge vlan_filtering 1
              ip link add cni0.100 type veth peer name theirs
              ip link set theirs master cni0 up
              bridge vlan add dev theirs vid 100 pvid untagged");
        let conf = gateway_conf(100, json!({}));
        node.add("a", &conf);
        w.sh_in("a", "ping -c1 -W5 10.1.0.1");
        node.call("DEL", "a", &conf).silent();
        assert!(exists(w, "cni0.100") && exists(w, "theirs"));
        assert!(w.sh("ip -br -4 addr show cni0.100").contains("10.1.0.1/24"));
    });
}

#[test]
fn a_failed_add_leaves_no_gateway_port() {
    on_vlan_kernel(|node| {
        node.w.netns("a");
        // After the gateway comes masquerading, which cannot make its lock file where a directory is.
        node.w.sh("mkdir -p /run/cni/ferrule-netfilter.lock");
        let conf = gateway_conf(100, json!({ "ipMasq": true, "ipMasqBackend": "iptables" }));
        node.call("ADD", "a", &conf).error();
        node.assert_clean("a");
    });
}

#[test]
fn filtering_is_switched_on_for_a_bridge_without_ports() {
    on_vlan_kernel(|node| {
        node.w.sh("ip link add cni0 type bridge");
        let result = node.add("a", &layer_2(json!({ "vlan": 100 })));
        assert_eq!(node.w.sh("cat /sys/class/net/cni0/bridge/vlan_filtering"), "1");
        assert!(vlans(node.w, Node::host_veth(&result)).contains(&"100 PVID Egress Untagged".to_owned()));
    });
}

#[test]
fn the_command_that_the_refusal_names_helps() {
    on_vlan_kernel(|node| {
        let w = node.w;
        w.sh("ip link add cni0 type bridge; ip link add p0 type veth peer name p1; ip link set p0 master cni0");
        w.netns("a");
        let vlan = layer_2(json!({ "vlan": 100 }));
        let (code, msg) = node.call("ADD", "a", &vlan).error();
        let command = msg.split('\'').nth(1).unwrap();
        assert_eq!((code, command), (7, "ip link set cni0 type bridge vlan_filtering 1"));
        assert_eq!(w.sh("cat /sys/class/net/cni0/bridge/vlan_filtering"), "0");
        w.sh(command);
        node.call("ADD", "a", &vlan).success();
    });
}

#[test]
fn check_finds_what_happened_to_a_vlan() {
    on_vlan_kernel(|node| {
        let conf = layer_2(json!({ "vlan": 100, "vlanTrunk": [{ "minID": 10, "maxID": 12 }] }));
        let result = node.add("a", &conf);
        let veth = Node::host_veth(&result);
        for (damage, repair, msg) in [
            (
                "bridge vlan del vid 100",
                "bridge vlan add vid 100 pvid untagged",
                format!("{veth} does not carry VLAN 100"),
            ),
            (
                "bridge vlan add vid 100",
                "bridge vlan add vid 100 pvid untagged",
                format!("VLAN 100 is not the untagged one of {veth}"),
            ),
            (
                "bridge vlan del vid 11",
                "bridge vlan add vid 11",
                format!("{veth} does not carry VLAN 11"),
            ),
        ] {
            node.check("a", &conf, &result).silent();
            node.w.sh(&format!("{damage} dev {veth}"));
            assert!(node.check("a", &conf, &result).error().1.contains(&msg), "{damage}");
            node.w.sh(&format!("{repair} dev {veth}"));
        }
        node.check("a", &conf, &result).silent();
    });
}

#[test]
fn check_finds_a_gateway_address_that_is_gone() {
    on_vlan_kernel(|node| {
        let conf = gateway_conf(100, json!({}));
        let result = node.add("a", &conf);
        node.check("a", &conf, &result).silent();
        node.w.sh("ip addr flush dev cni0.100");
        let (_, msg) = node.check("a", &conf, &result).error();
        assert!(msg.contains("does not have the gateway address 10.1.0.1/24"), "{msg}");
    });
}

#[test]
fn a_namespace_that_is_gone_gives_up_its_gateway_port() {
    on_vlan_kernel(|node| {
        let mut conf = gateway_conf(100, json!({ "cniVersion": "0.4.0" }));
        conf["prevResult"] = node.add("a", &conf);
        // Held open by somebody, it stays: the name alone goes.
        let _held = std::fs::File::open("/run/netns/a").unwrap();
        node.w.sh("ip netns delete a");
        node.suite
            .call("bridge", "DEL", "a", Path::new(""), "eth0", &conf.to_string())
            .silent();
        assert_eq!(node.w.sh("ip -o link show type veth"), "");
    });
}

#[test]
fn the_gateway_port_in_a_result_is_not_the_containers_to_delete() {
    on_vlan_kernel(|node| {
        let mut conf = gateway_conf(100, json!({}));
        node.add("b", &conf);
        conf["prevResult"] = node.add("a", &conf);
        node.suite
            .call("bridge", "DEL", "a", Path::new(""), "eth0", &conf.to_string())
            .silent();
        node.w.sh_in("b", "ping -c1 -W5 10.1.0.1");
        assert!(!exists(node.w, Node::host_veth(&conf["prevResult"])));
    });
}

#[test]
fn a_crowd_of_one_vlan_shares_one_gateway_port_to_the_end() {
    on_vlan_kernel(|node| {
        let conf = gateway_conf(100, json!({}));
        let names: Vec<String> = (0..CROWD).map(|n| format!("c{n}")).collect();
        for name in &names {
            node.w.netns(name);
        }
        let (early, late) = names.split_at(CROWD / 2);
        let at_once = |calls: &[(&str, &[String])]| {
            thread::scope(|scope| {
                for (verb, names) in calls {
                    for name in *names {
                        let conf = &conf;
                        scope.spawn(move || assert_eq!(node.call(verb, name, conf).code, Some(0), "{verb} {name}"));
                    }
                }
            });
        };
        let reaches_the_gateway = |names: &[String]| {
            for name in names {
                node.w.sh_in(name, "ping -c1 -W5 10.1.0.1");
            }
        };
        at_once(&[("ADD", early)]);
        reaches_the_gateway(early);
        for _ in 0..2 {
            at_once(&[("DEL", early), ("ADD", late)]);
            reaches_the_gateway(late);
            at_once(&[("ADD", early), ("DEL", late)]);
            reaches_the_gateway(early);
        }
        at_once(&[("DEL", early)]);
        node.assert_clean("c0");
    });
}

/// `bridge vlan show` of everything, less the random names.
fn all_vlans(w: &World) -> Vec<String> {
    let shown: Value = serde_json::from_str(&w.sh("bridge -j vlan show")).unwrap();
    let mut ports: Vec<String> = shown
        .as_array()
        .unwrap()
        .iter()
        .map(|port| {
            let name = port["ifname"].as_str().unwrap();
            let name = if name.starts_with("veth") { "veth" } else { name };
            let ranges: Vec<String> = port["vlans"].as_array().unwrap().iter().map(range).collect();
            format!("{name}: {}", ranges.join(", "))
        })
        .collect();
    ports.sort();
    ports
}

#[test]
fn the_reference_makes_the_same_vlans() {
    let Some(reference) = reference() else { return };
    let trunk = json!([{ "minID": 10, "maxID": 12 }, { "id": 20 }]);
    on_vlan_kernel(|node| {
        for conf in [
            layer_2(json!({})),
            layer_2(json!({ "vlan": 100 })),
            layer_2(json!({ "vlan": 100, "preserveDefaultVlan": true })),
            layer_2(json!({ "vlan": 1 })),
            layer_2(json!({ "vlanTrunk": trunk, "preserveDefaultVlan": false })),
            layer_2(json!({ "vlan": 100, "vlanTrunk": trunk, "preserveDefaultVlan": true })),
            gateway_conf(100, json!({})),
            gateway_conf(100, json!({ "preserveDefaultVlan": true })),
            gateway_conf(100, json!({ "vlanTrunk": trunk })),
        ] {
            let ours = vlans_made_by(node, node.suite.bin(), &conf);
            assert_ne!(ours, [""; 0]);
            assert_eq!(ours, vlans_made_by(node, &reference, &conf), "{conf}");
        }
    });
}

/// What a suite's ADD makes of a new container and a bridge that filters, as one configuration does not say so itself.
fn vlans_made_by(node: &Node<'_>, bin: &Path, conf: &Value) -> Vec<String> {
    node.w.sh("ip link add cni0 type bridge vlan_filtering 1");
    node.w.netns("a");
    let call = |verb| {
        let variables = [
            ("CNI_COMMAND", verb),
            ("CNI_CONTAINERID", "a"),
            ("CNI_NETNS", "/run/netns/a"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_PATH", bin.to_str().unwrap()),
        ];
        let reply = call_plugin(&bin.join("bridge"), &variables, &conf.to_string());
        assert_eq!(reply.code, Some(0), "{verb} {conf} {reply:?}");
    };
    call("ADD");
    let made = all_vlans(node.w);
    call("DEL");
    node.w
        .sh("ip netns delete a; ip link delete cni0.100 2>/dev/null || true; ip link delete cni0");
    made
}
