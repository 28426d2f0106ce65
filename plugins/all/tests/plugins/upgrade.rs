//! A node whose plugins are changed while containers run: from the reference to ours and back.
//!
//! Needs the reference's plugins in the directory that `FERRULE_REFERENCE` names.

use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::{Value, json};
use testkit::World;

use crate::chains::{ASK, Chain, nomad, outside, reaches, serve, web};
use crate::install::{failed, script_path, succeeded};
use crate::reference::reference;
use crate::suite::Suite;

/// A node with the reference's plugins, and with settings of its own.
struct Node<'a> {
    w: &'a World,
    bin: PathBuf,
    from: PathBuf,
}

impl<'a> Node<'a> {
    fn new(w: &'a World, reference: &Path) -> Node<'a> {
        let bin = w.tmp().join("opt/cni/bin");
        // /etc of its own, for /etc/cni/ferrule.json; and nothing of nerdctl, which may be installed here.
        w.sh(&format!(
            "cp -a /etc /run/etc; mount --bind /run/etc /etc; rm -rf /etc/cni
            mkdir -p {0}; cp -a {1}/. {0}",
            bin.display(),
            reference.display()
        ));
        outside(w);
        Node {
            w,
            bin,
            from: Suite::install(w).bin().to_owned(),
        }
    }

    fn script(&self, arguments: &str) -> Output {
        let (script, bin) = (script_path("install"), self.bin.display());
        self.w
            .try_sh(&format!("exec sh {} --bin-dir {bin} {arguments}", script.display()))
    }

    fn install(&self, backend: &str) {
        let from = self.from.display();
        succeeded(&self.script(&format!("--from {from} --backend {backend}")));
    }

    fn chain(&self, conf: Value) -> Chain<'a> {
        Chain {
            w: self.w,
            suite: Suite::at(&self.bin),
            conf,
            path: None,
        }
    }

    /// Asserts that container `a` answers on its published port, and that it reaches the world outside.
    #[track_caller]
    fn assert_traffic(&self, when: &str) {
        let answer = self.w.sh(ASK);
        assert_eq!(answer, "a", "{when}: through the host port");
        assert!(reaches(self.w, "a", "192.0.2.9"), "{when}: to the outside");
    }

    /// Ends the servers and the world outside, which are no plugin's.
    fn stop(&self) {
        self.w.sh("kill $(cat /run/servers); ip link delete out");
    }

    /// Asserts that nothing of ours is left, neither in the kernel nor on disk.
    #[track_caller]
    fn assert_forgotten(&self) {
        let left = self
            .w
            .sh("nft list tables; find /run/cni /etc/cni -name '*ferrule*' 2>/dev/null || true");
        assert!(!left.contains("ferrule"), "{left}");
        assert!(!self.bin.join(".ferrule").exists());
    }
}

/// Networks as the reference's users write them; `backend` is named where it is not the reference's default.
fn networks(backend: Option<&str>) -> Vec<Value> {
    let ipam = |subnet: &str| json!({ "type": "host-local", "ranges": [[{ "subnet": subnet }]], "routes": [{ "dst": "0.0.0.0/0" }] });
    let mut bridge = json!({ "type": "bridge", "bridge": "br1", "isGateway": true, "ipMasq": true, "hairpinMode": true,
        "ipam": ipam("10.88.0.0/16") });
    let mut ptp = json!({ "type": "ptp", "ipMasq": true, "ipam": ipam("10.88.0.0/16") });
    let mut portmap = json!({ "type": "portmap", "capabilities": { "portMappings": true } });
    if let Some(backend) = backend {
        bridge["ipMasqBackend"] = backend.into();
        ptp["ipMasqBackend"] = backend.into();
        portmap["backend"] = backend.into();
    }
    let mut networks = vec![
        json!({ "cniVersion": "1.0.0", "name": "net-bridge", "plugins": [bridge, portmap] }),
        json!({ "cniVersion": "1.0.0", "name": "net-ptp", "plugins": [ptp, portmap] }),
    ];
    if backend.is_none() {
        networks.push(nomad(None));
    }
    networks
}

/// GC of every plugin of a chain, with `valid` as the only containers that are left.
fn collect(chain: &Chain<'_>, valid: &[&str]) {
    let valid: Vec<Value> = valid
        .iter()
        .map(|id| json!({ "containerID": id, "ifname": "eth0" }))
        .collect();
    for index in 0..chain.plugins() {
        let mut conf = chain.plugin_conf(index, &json!({}), None);
        conf["cniVersion"] = "1.1.0".into();
        conf["cni.dev/valid-attachments"] = json!(valid);
        let plugin = conf["type"].as_str().unwrap().to_owned();
        chain.suite.call_bare(&plugin, "GC", &conf.to_string()).silent();
    }
}

#[test]
fn containers_of_the_reference_are_ours_after_the_swap() {
    let Some(reference) = reference() else { return };
    for backend in [None, Some("nftables")] {
        for conf in networks(backend) {
            testkit::world(|w| {
                let node = Node::new(w, &reference);
                let chain = node.chain(conf.clone());
                let result = chain.add("a", &web());
                let other = chain.add("b", &json!({}));
                serve(w, "a");
                node.assert_traffic("before");
                node.install("nftables");
                node.assert_traffic("after");
                chain.check("a", &web(), &result);
                chain.check("b", &json!({}), &other);
                let ours = chain.add("c", &json!({}));
                collect(&chain, &["a", "c"]);
                node.assert_traffic("after GC of another");
                chain.check("a", &web(), &result);
                let reserved = w.sh("grep -lr b /var/lib/cni/networks --include='[0-9]*' || true");
                assert_eq!(reserved, "", "GC releases the address");
                let nat = w.sh("iptables-save -t nat");
                assert!(!nat.contains(r#"id: \"b\""#), "GC removes the rules: {nat}");
                node.stop();
                chain.del("a", &web(), Some(&result));
                chain.del("c", &json!({}), Some(&ours));
                // Its interface, and what accepts its addresses, name no network: GC leaves them to DEL.
                chain.del("b", &json!({}), Some(&other));
                chain.assert_clean();
            });
        }
    }
}

#[test]
fn containers_of_ours_are_the_references_after_a_rollback() {
    let Some(reference) = reference() else { return };
    for conf in networks(None) {
        testkit::world(|w| {
            let node = Node::new(w, &reference);
            node.install("iptables");
            let chain = node.chain(conf.clone());
            let result = chain.add("a", &web());
            serve(w, "a");
            node.assert_traffic("before");
            succeeded(&node.script("--rollback"));
            node.assert_traffic("after");
            chain.check("a", &web(), &result);
            node.stop();
            chain.del("a", &web(), Some(&result));
            chain.assert_clean();
            node.assert_forgotten();
        });
    }
}

#[test]
fn what_is_in_nf_tables_is_drained_before_a_rollback() {
    let Some(reference) = reference() else { return };
    for conf in networks(None) {
        testkit::world(|w| {
            let node = Node::new(w, &reference);
            node.install("nftables");
            let chain = node.chain(conf.clone());
            let result = chain.add("a", &web());
            serve(w, "a");
            node.assert_traffic("before");

            let refusal = failed(&node.script("--rollback"), 1);
            assert!(
                refusal.contains("ports 8080/tcp, 8080/udp") && refusal.contains("--drain"),
                "{refusal}"
            );
            chain.check("a", &web(), &result);
            node.assert_traffic("after the refusal");

            succeeded(&node.script("--rollback --drain"));
            node.assert_forgotten();
            node.assert_traffic("after");
            chain.check("a", &web(), &result);
            node.stop();
            chain.del("a", &web(), Some(&result));
            chain.assert_clean();
        });
    }
}

/// The commands of the page on migration, in their order, with a container that is attached once ferrule is there.
#[test]
fn the_page_on_migration_says_what_works() {
    let Some(reference) = reference() else { return };
    testkit::world(|w| {
        let page = include_str!("../../../../examples/migration/README.md");
        let commands: Vec<&str> = page
            .split("```sh\n")
            .skip(1)
            .filter_map(|rest| rest.split("```").next())
            .collect();
        assert!(commands.len() > 5, "{commands:?}");
        w.sh("mount -t tmpfs tmpfs /opt");
        let node = Node {
            bin: PathBuf::from("/opt/cni/bin"),
            ..Node::new(w, &reference)
        };
        let tree = w.tmp().join("tree");
        w.sh(&format!(
            "mkdir -p {tree}/scripts {tree}/dist /opt/cni; cp -a {reference} /opt/cni/bin
            cp {install} {uninstall} {tree}/scripts; cp -a {from} {tree}/dist/bin",
            tree = tree.display(),
            reference = reference.display(),
            install = script_path("install").display(),
            uninstall = script_path("uninstall").display(),
            from = node.from.display(),
        ));
        let before = w.sh("cd /opt/cni/bin; sha256sum *");
        let chain = node.chain(networks(None).swap_remove(0));
        let mut attached = None;
        for command in commands {
            if command.contains("--rollback") {
                let (result, _) = attached.insert((chain.add("a", &web()), serve(w, "a")));
                chain.check("a", &web(), result);
            }
            w.sh(&format!("cd {}; {command}", tree.display()));
            if let (true, Some((result, ()))) = (command.contains("--rollback"), &attached) {
                node.assert_traffic("after the rollback");
                node.stop();
                chain.del("a", &web(), Some(result));
                chain.assert_clean();
            }
        }
        assert!(attached.is_some());
        assert_eq!(w.sh("cd /opt/cni/bin; sha256sum *"), before);
        node.assert_forgotten();
    });
}
