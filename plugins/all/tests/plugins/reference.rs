//! The rules of the reference suite and ours, side by side.
//!
//! Needs the reference's plugins in the directory that `FERRULE_REFERENCE` names.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use testkit::{World, call_plugin, skip};

use crate::firewall;
use crate::portmap::{Node, conf};
use crate::suite::Suite;

/// The reference's plugins, or `None` with a line that says so.
#[allow(
    clippy::disallowed_methods,
    reason = "where the reference is, the test's caller knows"
)]
pub(crate) fn reference() -> Option<PathBuf> {
    let directory = std::env::var_os("FERRULE_REFERENCE").map(PathBuf::from);
    if directory.is_none() {
        skip("the reference plugins are not there");
    }
    directory
}

fn call(bin: &Path, plugin: &str, verb: &str, ifname: &str, conf: &Value) -> (Option<i32>, Value) {
    let variables = [
        ("CNI_COMMAND", verb),
        ("CNI_CONTAINERID", "c1"),
        ("CNI_NETNS", "/run/netns/a"),
        ("CNI_IFNAME", ifname),
        ("CNI_PATH", bin.to_str().unwrap()),
    ];
    let reply = call_plugin(&bin.join(plugin), &variables, &conf.to_string());
    (reply.code, serde_json::from_str(&reply.stdout).unwrap_or_default())
}

/// The nat tables as they print, without counters and times.
fn nat(w: &World) -> String {
    w.sh("(iptables-save -t nat; ip6tables-save -t nat) | sed -e /^#/d -e 's/ \\[[0-9:]*\\]$//'")
}

/// What both suites are asked for: everything that changes rules.
fn portmap_confs() -> Vec<Value> {
    let mixed = json!([
        {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
        {"hostPort": 53, "containerPort": 5353, "protocol": "udp", "hostIP": "192.0.2.1"},
        {"hostPort": 99, "containerPort": 98, "protocol": "sctp", "hostIP": "::"},
        {"hostPort": 97, "containerPort": 96, "protocol": "tcp", "hostIP": "0.0.0.0"},
        {"hostPort": 95, "containerPort": 94, "protocol": "tcp", "hostIP": "fd00::1"},
    ]);
    let twenty: Vec<Value> = (1..=20)
        .map(|n| json!({"hostPort": 9000 + n, "containerPort": n, "protocol": "tcp"}))
        .collect();
    let keys = [
        json!({}),
        json!({"snat": false}),
        json!({"markMasqBit": 0}),
        json!({"markMasqBit": 31}),
        json!({"masqAll": true}),
        json!({"masqAll": true, "snat": false}),
        json!({"externalSetMarkChain": "KUBE-MARK-MASQ"}),
        json!({"conditionsV4": ["-s", "192.0.2.4", "!", "-d", "192.0.2.5"], "conditionsV6": ["!", "-d", "fc00::/7"]}),
        json!({"conditionsV4": ["-m", "comment", "--comment", "a b \"q\" c"]}),
    ];
    let mut confs: Vec<Value> = keys.into_iter().map(|keys| conf(mixed.clone(), keys)).collect();
    confs.push(conf(json!(twenty), json!({"backend": "iptables"})));
    for conf in &mut confs {
        let ips = conf["prevResult"]["ips"].as_array_mut().unwrap();
        ips.push(json!({"address": "fd00::2/64", "gateway": "fd00::1", "interface": 2}));
    }
    confs
}

/// Runs `steps` of portmap, each with the suite that it names, and shows the tables after each.
fn portmap_history(conf: &Value, steps: &[(&str, bool)], reference: &Path) -> Option<Vec<String>> {
    testkit::world(|w| {
        let node = Node::new(w);
        w.sh("iptables -t nat -N KUBE-MARK-MASQ; ip6tables -t nat -N KUBE-MARK-MASQ");
        let step = |(verb, by_reference): &(&str, bool)| {
            let bin = if *by_reference { reference } else { node.suite.bin() };
            let (code, answer) = call(bin, "portmap", verb, "eth0", conf);
            assert_eq!(code, Some(0), "{verb} by the reference: {by_reference}: {answer}");
            format!("{verb}\n{}", nat(w))
        };
        steps.iter().map(step).collect()
    })
}

#[test]
fn portmap_writes_the_same_rules() {
    let Some(reference) = reference() else { return };
    for conf in portmap_confs() {
        let steps = |by_reference| ["ADD", "ADD", "CHECK", "DEL"].map(|verb| (verb, by_reference));
        let ours = portmap_history(&conf, &steps(false), &reference);
        let theirs = portmap_history(&conf, &steps(true), &reference);
        assert_eq!(ours, theirs, "{conf}");
    }
}

#[test]
fn portmap_understands_the_reference_and_is_understood() {
    let Some(reference) = reference() else { return };
    for conf in portmap_confs() {
        for ours_first in [true, false] {
            let steps = [
                ("ADD", !ours_first),
                ("CHECK", ours_first),
                ("ADD", ours_first),
                ("DEL", ours_first),
            ];
            let history = portmap_history(&conf, &steps, &reference);
            let Some([added, _, again, deleted]) = history.as_deref() else {
                return;
            };
            assert_eq!(added, again, "{conf}");
            assert!(!deleted.contains("CNI-DN-"), "ours first: {ours_first}: {deleted}");
        }
    }
}

/// The bridge's masquerading, for one attachment and two, and after their DEL; each by the suite that is named.
fn masquerade_history(added_by_reference: bool, deleted_by_reference: bool, reference: &Path) -> Option<Vec<String>> {
    testkit::world(|w| {
        let suite = Suite::install(w);
        w.netns("a");
        let conf = json!({
            "cniVersion": "1.0.0", "name": "net1", "type": "bridge", "bridge": "br1", "isGateway": true, "ipMasq": true,
            "ipMasqBackend": "iptables",
            "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/64"}]]},
        });
        // The reference cannot remove the first of two attachments to one network: their rules are in one chain.
        let ifnames: &[&str] = if deleted_by_reference {
            &["eth0"]
        } else {
            &["eth0", "eth1"]
        };
        let mut history = Vec::new();
        for (verb, by_reference) in [("ADD", added_by_reference), ("DEL", deleted_by_reference)] {
            let bin = if by_reference { reference } else { suite.bin() };
            for ifname in ifnames {
                let (code, answer) = call(bin, "bridge", verb, ifname, &conf);
                assert_eq!(code, Some(0), "{verb} by the reference: {by_reference}: {answer}");
                history.push(nat(w));
            }
        }
        history
    })
}

#[test]
fn masquerading_is_written_alike_and_removed_by_either() {
    let Some(reference) = reference() else { return };
    let history = |added, deleted| masquerade_history(added, deleted, &reference).unwrap_or_default();
    let clean = |history: &[String]| assert!(history.last().is_none_or(|rules| !rules.contains("c1")), "{history:?}");
    let (ours, theirs) = (history(false, false), history(true, false));
    let added = |history: &[String]| history.iter().take(2).cloned().collect::<Vec<_>>();
    assert_eq!(added(&ours), added(&theirs));
    assert!(ours.iter().any(|rules| rules.contains("-j MASQUERADE")), "{ours:?}");
    clean(&ours);
    clean(&theirs);
    clean(&history(false, true));
}

/// The filter tables as they print, without counters and times.
fn filter(w: &World) -> String {
    w.sh("(iptables-save -t filter; ip6tables-save -t filter) | sed -e /^#/d -e 's/ \\[[0-9:]*\\]$//'")
}

/// What both suites are asked for, one after another on the same node. Each address is in one only: the reference, which
/// knows no owners, takes it from all.
fn firewall_confs() -> Vec<Value> {
    let mut number = 0;
    let mut of_bridge = |bridge: &str, address: &str, keys: Value| {
        number += 1;
        let mut conf = firewall::conf(keys);
        conf["prevResult"]["interfaces"][0]["name"] = bridge.into();
        let gateway = format!("10.9.0.{number}/24");
        conf["prevResult"]["ips"] = json!([{"address": address, "interface": 2}, {"address": gateway, "interface": 0}]);
        conf
    };
    vec![
        firewall::conf(json!({"backend": "iptables"})),
        of_bridge(
            "br0",
            "10.1.0.3/24",
            json!({"iptablesAdminChainName": "NOMAD-ADMIN", "ingressPolicy": "open"}),
        ),
        of_bridge("br0", "fd00::3/64", json!({"ingressPolicy": "same-bridge"})),
        of_bridge("br0", "10.1.0.4/24", json!({"ingressPolicy": "isolated"})),
        of_bridge("br1", "10.2.0.2/24", json!({"ingressPolicy": "isolated"})),
        of_bridge("br1", "10.2.0.3/24", json!({"ingressPolicy": "same-bridge"})),
    ]
}

/// Runs `steps` on every configuration, each with the suite that it names, and shows the tables after each. What an
/// administrator had in FORWARD is there from the start.
fn firewall_history(steps: &[(&str, bool)], reference: &Path) -> Option<Vec<String>> {
    testkit::world(|w| {
        let suite = Suite::install(w);
        w.netns("a");
        w.sh("iptables -A FORWARD -i lo -j DROP; ip6tables -P FORWARD DROP");
        let mut history = Vec::new();
        for (verb, by_reference) in steps {
            for (number, conf) in firewall_confs().iter().enumerate() {
                let bin = if *by_reference { reference } else { suite.bin() };
                let (code, answer) = call(bin, "firewall", verb, &format!("eth{number}"), conf);
                assert_eq!(code, Some(0), "{verb} by the reference: {by_reference}: {answer}");
                history.push(format!("{verb} {answer}\n{}", filter(w)));
            }
        }
        history
    })
}

#[test]
fn firewall_writes_the_same_rules() {
    let Some(reference) = reference() else { return };
    let history = |by_reference| {
        let verbs = ["ADD", "ADD", "CHECK", "DEL", "DEL"];
        firewall_history(&verbs.map(|verb| (verb, by_reference)), &reference).unwrap_or_default()
    };
    for (ours, theirs) in history(false).iter().zip(history(true)) {
        assert_eq!(*ours, theirs);
    }
}

#[test]
fn firewall_understands_the_reference_and_is_understood() {
    let Some(reference) = reference() else { return };
    for ours_first in [true, false] {
        let steps = [
            ("ADD", !ours_first),
            ("CHECK", ours_first),
            ("ADD", ours_first),
            ("DEL", ours_first),
        ];
        let history = firewall_history(&steps, &reference).unwrap_or_default();
        let of_step = |step: usize| history.chunks(firewall_confs().len()).nth(step)?.last();
        assert_eq!(of_step(0), of_step(2), "an ADD by the other changes nothing");
        assert!(
            of_step(3).is_none_or(|left| !left.contains("ACCEPT\n-A CNI-FORWARD -s")),
            "{:?}",
            of_step(3)
        );
        assert!(
            of_step(3).is_none_or(|left| !left.contains("10.1.0.")),
            "{:?}",
            of_step(3)
        );
    }
}
