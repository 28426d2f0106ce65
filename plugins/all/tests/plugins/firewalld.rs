//! The firewall plugin with firewalld: a real bus, and on it a service that answers as firewalld.dbus(5) says.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};
use testkit::{Reply, World, skip};
use zbus::export::futures_core::Stream;
use zbus::{Connection, MessageStream};

use crate::firewall::conf;
use crate::suite::Suite;

const BUS_CONF: &str = r#"<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>system</type>
  <listen>unix:path=/run/dbus/system_bus_socket</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow send_destination="*" eavesdrop="true"/>
    <allow eavesdrop="true"/>
    <allow own="*"/>
  </policy>
</busconfig>
"#;

/// The system bus of a world.
struct Bus<'a>(&'a World);

impl<'a> Bus<'a> {
    /// `None`, with a line that says so, where there is no dbus-daemon.
    fn start(w: &'a World) -> Option<Bus<'a>> {
        if !w.try_sh("command -v dbus-daemon").status.success() {
            skip("dbus-daemon is not installed");
            return None;
        }
        let file = w.tmp().join("bus.conf");
        std::fs::write(&file, BUS_CONF).unwrap();
        w.sh(&format!(
            "mkdir -p /run/dbus; dbus-daemon --config-file={} --nofork --nopidfile --nosyslog >/dev/null 2>&1 & echo $! > /run/bus
            until [ -S /run/dbus/system_bus_socket ]; do :; done",
            file.display()
        ));
        Some(Bus(w))
    }
}

impl Drop for Bus<'_> {
    fn drop(&mut self) {
        self.0.sh("kill $(cat /run/bus)");
    }
}

/// The sources of all zones: what a firewalld would turn into rules.
type Zones = Arc<Mutex<BTreeSet<(String, String)>>>;

/// Takes firewalld's name and serves the three methods that concern sources, until the bus goes.
fn serve(zones: &Zones) {
    let zones = Arc::clone(zones);
    let (ready, is_ready) = std::sync::mpsc::channel();
    thread::spawn(move || {
        zbus::block_on(async {
            let bus = Connection::system().await.unwrap();
            let mut calls = MessageStream::from(&bus);
            bus.request_name("org.fedoraproject.FirewallD1").await.unwrap();
            ready.send(()).unwrap();
            while let Some(Ok(call)) = poll_fn(|cx| Pin::new(&mut calls).poll_next(cx)).await {
                if call.message_type() == zbus::message::Type::MethodCall {
                    answer(&bus, &call, &zones).await;
                }
            }
        });
    });
    is_ready.recv().unwrap();
}

async fn answer(bus: &Connection, call: &zbus::Message, zones: &Zones) {
    let header = call.header();
    assert_eq!(header.path().unwrap().as_str(), "/org/fedoraproject/FirewallD1");
    assert_eq!(
        header.interface().unwrap().as_str(),
        "org.fedoraproject.FirewallD1.zone"
    );
    let (zone, source): (String, String) = call.body().deserialize().unwrap();
    let entry = (zone.clone(), source.clone());
    let failure = match header.member().unwrap().as_str() {
        "querySource" => {
            let held = zones.lock().unwrap().contains(&entry);
            return bus.reply(&header, &held).await.unwrap();
        }
        "addSource" if zone == "no-zone" => Some(format!("INVALID_ZONE: '{zone}'")),
        "addSource" => {
            let is_new = zones.lock().unwrap().insert(entry);
            (!is_new).then(|| format!("ZONE_ALREADY_SET: '{source}' already bound to '{zone}'"))
        }
        "removeSource" => {
            let was_there = zones.lock().unwrap().remove(&entry);
            (!was_there).then(|| format!("UNKNOWN_SOURCE: '{source}' is not in any zone"))
        }
        other => Some(format!("unexpected call of {other}")),
    };
    match failure {
        None => bus.reply(&header, &zone).await.unwrap(),
        Some(text) => {
            let name = "org.fedoraproject.FirewallD1.Exception";
            bus.reply_error(&header, name, &text).await.unwrap();
        }
    }
}

struct Node {
    suite: Suite,
    zones: Zones,
}

impl Node {
    fn call(&self, verb: &str, container: &str, conf: &Value) -> Reply {
        let netns = Path::new("/run/netns/a");
        self.suite
            .call("firewall", verb, container, netns, "eth0", &conf.to_string())
    }

    fn sources(&self) -> Vec<String> {
        let zones = self.zones.lock().unwrap();
        zones.iter().map(|(zone, source)| format!("{zone} {source}")).collect()
    }
}

/// Runs a test on a node with firewalld.
fn with_firewalld(test: impl FnOnce(&World, &Node) + Send) {
    testkit::world(|w| {
        let Some(_bus) = Bus::start(w) else { return };
        w.netns("a");
        let node = Node {
            suite: Suite::install(w),
            zones: Zones::default(),
        };
        serve(&node.zones);
        test(w, &node);
    });
}

fn without_result(mut conf: Value) -> Value {
    conf.as_object_mut().unwrap().remove("prevResult");
    conf
}

#[test]
fn addresses_become_sources_of_the_zone() {
    with_firewalld(|w, node| {
        // Found by its name on the bus, or named.
        for (keys, zone) in [
            (json!({}), "trusted"),
            (json!({"backend": "", "firewalldZone": "home"}), "home"),
            (json!({"backend": "firewalld"}), "trusted"),
        ] {
            let conf = conf(keys);
            assert_eq!(node.call("ADD", "c1", &conf).success(), conf["prevResult"]);
            let expected = ["10.1.0.2/32", "fd00::2/128"].map(|source| format!("{zone} {source}"));
            assert_eq!(node.sources(), expected);
            node.call("ADD", "c1", &conf).success();
            node.call("CHECK", "c1", &conf).silent();
            let lost = (zone.to_owned(), "fd00::2/128".to_owned());
            node.zones.lock().unwrap().remove(&lost);
            let (_, message) = node.call("CHECK", "c1", &conf).error();
            assert!(message.contains("fd00::2/128") && message.contains(zone), "{message}");
            node.call("DEL", "c1", &without_result(conf.clone())).silent();
            assert!(node.sources().is_empty());
            node.call("DEL", "c1", &conf).silent();
        }
        assert_eq!(
            w.sh("iptables-save; ip6tables-save; nft list ruleset"),
            "",
            "firewalld writes the rules"
        );
        assert_eq!(w.sh("find /run/cni -path '*firewalld*'"), "");
    });
}

#[test]
fn a_zone_that_does_not_exist_leaves_nothing() {
    with_firewalld(|w, node| {
        let (_, message) = node
            .call(
                "ADD",
                "c1",
                &conf(json!({"backend": "firewalld", "firewalldZone": "no-zone"})),
            )
            .error();
        assert!(message.contains("INVALID_ZONE"), "{message}");
        assert!(node.sources().is_empty());
        assert_eq!(w.sh("find /run/cni -path '*firewalld*'"), "");
    });
}

#[test]
fn a_zone_that_changed_and_a_backend_that_changed_leave_nothing_behind() {
    with_firewalld(|_, node| {
        node.call("ADD", "c1", &conf(json!({"firewalldZone": "home"})))
            .success();
        node.call("ADD", "c1", &conf(json!({}))).success();
        assert_eq!(node.sources(), ["trusted 10.1.0.2/32", "trusted fd00::2/128"]);
        node.call("ADD", "c1", &conf(json!({"backend": "nftables"}))).success();
        assert!(node.sources().is_empty());
    });
}

#[test]
fn gc_and_del_spare_the_sources_of_others() {
    with_firewalld(|_, node| {
        let all = conf(json!({}));
        for container in ["c1", "c2"] {
            node.call("ADD", container, &all).success();
        }
        node.call("DEL", "c1", &all).silent();
        assert_eq!(node.sources().len(), 2, "c2 has the same addresses");
        let gc = |valid: Value| {
            let conf =
                json!({"cniVersion": "1.1.0", "name": "net1", "type": "firewall", "cni.dev/valid-attachments": valid});
            node.suite.call_bare("firewall", "GC", &conf.to_string()).silent();
        };
        gc(json!([{"containerID": "c2", "ifname": "eth0"}]));
        assert_eq!(node.sources().len(), 2);
        gc(json!([]));
        assert!(node.sources().is_empty());
        // What the reference made is known only from the result.
        node.zones
            .lock()
            .unwrap()
            .insert(("trusted".to_owned(), "10.1.0.2/32".to_owned()));
        node.call("DEL", "c1", &without_result(all.clone())).silent();
        assert_eq!(node.sources().len(), 1);
        node.call("DEL", "c1", &all).silent();
        assert!(node.sources().is_empty());
    });
}

#[test]
fn isolation_is_ours_whoever_accepts() {
    with_firewalld(|w, node| {
        let conf = conf(json!({"ingressPolicy": "same-bridge"}));
        node.call("ADD", "c1", &conf).success();
        node.call("CHECK", "c1", &conf).silent();
        let rules = w.sh("iptables-save -t filter");
        assert!(
            rules.contains("-i br0 ! -o br0") && !rules.contains("CNI-FORWARD"),
            "{rules}"
        );
        assert_eq!(node.sources().len(), 2);
    });
}

#[test]
fn without_firewalld_the_node_has_its_rules_and_firewalld_is_an_error() {
    testkit::world(|w| {
        w.netns("a");
        let suite = Suite::install(w);
        let call = |verb: &str, conf: &Value| {
            suite.call(
                "firewall",
                verb,
                "c1",
                Path::new("/run/netns/a"),
                "eth0",
                &conf.to_string(),
            )
        };
        let automatic = conf(json!({}));
        call("ADD", &automatic).success();
        assert!(w.sh("iptables-save -t filter").contains("-s 10.1.0.2/32 -j ACCEPT"));
        call("DEL", &automatic).silent();
        let named = conf(json!({"backend": "firewalld", "cniVersion": "1.1.0"}));
        assert!(call("ADD", &named).error().1.contains("system bus"));
        call("DEL", &named).silent();
        let status = suite.call_bare("firewall", "STATUS", &without_result(named).to_string());
        assert_eq!(status.error().0, 50);
        assert_eq!(w.sh("find /run/cni -path '*firewalld*'"), "");
    });
}

/// Debian's firewalld with what it needs of Python, unpacked by `scripts/fetch-runtimes`.
#[allow(
    clippy::disallowed_methods,
    reason = "where firewalld was unpacked, the test's caller knows"
)]
fn unpacked() -> Option<PathBuf> {
    let directory = std::env::var_os("FERRULE_FIREWALLD").map(PathBuf::from);
    if directory.is_none() {
        skip("firewalld is not there");
    }
    directory
}

#[test]
fn firewalld_itself_understands() {
    let Some(unpacked) = unpacked() else { return };
    testkit::world(|w| {
        let Some(_bus) = Bus::start(w) else { return };
        // It knows no other place for its files than the system's.
        let (root, layer) = (unpacked.display(), w.tmp().join("layer"));
        let layer = layer.display();
        w.sh(&format!(
            "mkdir -p {layer}/upper {layer}/work /run/firewalld
            mount -t overlay overlay -o lowerdir={root}/usr:/usr /usr
            mount -t overlay overlay -o lowerdir={root}/etc:/etc,upperdir={layer}/upper,workdir={layer}/work /etc
            mount -t tmpfs tmpfs /var/log
            /usr/bin/python3 -s /usr/sbin/firewalld --nofork --nopid >{layer}/said 2>&1 & echo $! >/run/firewalld.pid
            tries=0; until firewall-cmd --state 2>/dev/null; do
                tries=$((tries + 1)); [ $tries -lt 100 ] || {{ cat {layer}/said; exit 1; }}
            done"
        ));
        w.netns("a");
        let suite = Suite::install(w);
        let call = |verb: &str, conf: &Value| {
            suite.call(
                "firewall",
                verb,
                "c1",
                Path::new("/run/netns/a"),
                "eth0",
                &conf.to_string(),
            )
        };
        let sources = || w.sh("firewall-cmd --zone=trusted --list-sources");
        let conf = conf(json!({}));
        call("ADD", &conf).success();
        call("ADD", &conf).success();
        assert_eq!(sources(), "10.1.0.2/32 fd00::2/128");
        assert!(w.sh("nft list table inet firewalld").contains("ip saddr 10.1.0.2"));
        call("CHECK", &conf).silent();
        // Sources are no permanent settings.
        w.sh("firewall-cmd --complete-reload");
        assert!(call("CHECK", &conf).error().1.contains("10.1.0.2/32"));
        call("ADD", &conf).success();
        call("CHECK", &conf).silent();
        for _ in 0..2 {
            call("DEL", &without_result(conf.clone())).silent();
            assert_eq!(sources(), "");
        }
        let (_, message) = call("ADD", &crate::firewall::conf(json!({"firewalldZone": "no-zone"}))).error();
        assert!(message.contains("INVALID_ZONE"), "{message}");
        w.sh("kill $(cat /run/firewalld.pid)");
    });
}
