//! The commands of `ferrule` itself.

use serde_json::{Value, json};
use testkit::World;

use crate::install::{failed, succeeded};
use crate::portmap::{Node, conf};

fn ferrule(node: &Node<'_>, arguments: &str) -> std::process::Output {
    node.w
        .try_sh(&format!("exec {}/ferrule {arguments}", node.suite.bin().display()))
}

fn tables(w: &World) -> String {
    w.sh("nft list tables; iptables-save; ip6tables-save")
}

#[test]
fn every_command_is_listed_and_refuses_what_it_does_not_know() {
    testkit::world(|w| {
        let node = Node::new(w);
        let help = succeeded(&ferrule(&node, "--help"));
        for command in ["backend", "doctor", "drain", "held"] {
            assert!(help.contains(&format!("ferrule {command}")), "{help}");
            let own = succeeded(&ferrule(&node, &format!("{command} --help")));
            assert!(own.starts_with(&format!("usage: ferrule {command}")), "{own}");
            let said = failed(&ferrule(&node, &format!("{command} --unknown")), 2);
            assert_eq!(said.lines().count(), 2, "what is wrong, and the usage: {said}");
        }
        assert_eq!(
            succeeded(&ferrule(&node, "--version")),
            concat!("ferrule ", env!("CARGO_PKG_VERSION"), "\n")
        );
        failed(&ferrule(&node, "backend ipfw"), 2);
        failed(&ferrule(&node, "backend --write"), 2);
        failed(&ferrule(&node, "held ipfw"), 2);
    });
}

#[test]
fn the_doctor_leaves_no_trace() {
    testkit::world(|w| {
        let node = Node::new(w);
        let everything = || {
            w.sh(
                "ls /sys/class/net; nft list ruleset; cat /proc/net/ip_tables_names 2>/dev/null; find /run/cni || true",
            )
        };
        let before = everything();
        succeeded(&ferrule(&node, "doctor"));
        succeeded(&ferrule(&node, "backend auto"));
        assert_eq!(everything(), before);
    });
}

#[test]
fn the_doctor_tells_programs_what_it_tells_people() {
    testkit::world(|w| {
        let node = Node::new(w);
        w.sh(&format!("rm {}/tuning", node.suite.bin().display()));
        let output = ferrule(&node, "doctor --json");
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let findings: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
        let tuning = findings.iter().find(|finding| finding["check"] == "tuning").unwrap();
        assert_eq!(tuning["level"], "fail");
        assert!(
            tuning["remedy"].as_str().unwrap().contains("scripts/install --bin-dir"),
            "{tuning}"
        );
        let lines = String::from_utf8_lossy(&ferrule(&node, "doctor").stdout).into_owned();
        assert_eq!(lines.lines().count(), findings.len());
        for (line, finding) in lines.lines().zip(&findings) {
            assert!(line.starts_with(finding["level"].as_str().unwrap()), "{line} {finding}");
            assert_eq!(line.contains("; remedy: "), finding["remedy"] != "", "{line}");
        }
    });
}

#[test]
fn what_is_held_is_listed_and_drained() {
    testkit::world(|w| {
        let node = Node::new(w);
        assert_eq!(succeeded(&ferrule(&node, "held")), "");
        let ports = json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]);
        let conf = conf(ports, json!({"backend": "nftables"}));
        node.call("ADD", "c1", &conf).success();
        let held = succeeded(&ferrule(&node, "held"));
        assert_eq!(
            held,
            "nftables container c1 interface eth0 on network net1: ports 8080/tcp\n"
        );
        assert_eq!(succeeded(&ferrule(&node, "held iptables")), "");

        let drained = succeeded(&ferrule(&node, "drain"));
        assert_eq!(
            drained,
            "container c1 interface eth0 on network net1: in iptables now\n"
        );
        assert!(!tables(w).contains("ferrule"), "{}", tables(w));
        assert_eq!(succeeded(&ferrule(&node, "held nftables")), "");
        let held = succeeded(&ferrule(&node, "held"));
        assert_eq!(
            held,
            "iptables container c1 interface eth0 on network net1: published ports\n"
        );
        node.call("DEL", "c1", &conf).silent();
        assert_eq!(succeeded(&ferrule(&node, "held")), "");
        assert!(!tables(w).contains("8080"), "{}", tables(w));
    });
}
