//! Published configurations, run as chains from the first plugin to the last and back.

use std::path::PathBuf;

use serde_json::{Value, json};
use testkit::{Reply, World, call_plugin};

use crate::portmap::counting_path;
use crate::suite::Suite;

/// A network of several plugins, run as libcni runs it.
pub(crate) struct Chain<'a> {
    pub(crate) w: &'a World,
    pub(crate) suite: Suite,
    pub(crate) conf: Value,
    /// The PATH that the plugins see; `None` for the test's.
    pub(crate) path: Option<PathBuf>,
}

impl<'a> Chain<'a> {
    pub(crate) fn new(w: &'a World, conf: Value) -> Chain<'a> {
        Chain {
            w,
            suite: Suite::install(w),
            conf,
            path: None,
        }
    }

    /// What plugin `index` reads: name and version of the network, the capabilities that it declares, and the result so far.
    pub(crate) fn plugin_conf(&self, index: usize, capabilities: &Value, prev: Option<&Value>) -> Value {
        let mut conf = self.conf["plugins"][index].clone();
        conf["name"] = self.conf["name"].clone();
        conf["cniVersion"] = self.conf["cniVersion"].clone();
        if let Some(declared) = conf["capabilities"].as_object() {
            let given = declared.keys().filter(|key| capabilities.get(key).is_some());
            conf["runtimeConfig"] = given
                .map(|key| (key.clone(), capabilities[key].clone()))
                .collect::<serde_json::Map<_, _>>()
                .into();
        }
        if let Some(prev) = prev {
            conf["prevResult"] = prev.clone();
        }
        conf
    }

    fn call(&self, index: usize, verb: &str, container: &str, conf: &Value) -> Reply {
        let plugin = self.conf["plugins"][index]["type"].as_str().unwrap();
        let ifname = if plugin == "loopback" { "lo" } else { "eth0" };
        let netns = format!("/run/netns/{container}");
        let mut variables = vec![
            ("CNI_COMMAND", verb),
            ("CNI_CONTAINERID", container),
            ("CNI_NETNS", &netns),
            ("CNI_IFNAME", ifname),
            ("CNI_PATH", self.suite.bin().to_str().unwrap()),
        ];
        variables.extend(self.path.as_ref().map(|path| ("PATH", path.to_str().unwrap())));
        call_plugin(&self.suite.bin().join(plugin), &variables, &conf.to_string())
    }

    /// What GC of the whole chain with nothing valid says.
    fn gc(&self) {
        for index in 0..self.plugins() {
            let mut conf = self.plugin_conf(index, &json!({}), None);
            conf["cniVersion"] = "1.1.0".into();
            conf["cni.dev/valid-attachments"] = json!([]);
            self.call(index, "GC", "", &conf).silent();
        }
    }

    /// The programs that were started since this was asked last, if [`counting_path`] is the PATH.
    fn started(&self) -> Vec<String> {
        let file = self.w.tmp().join("started");
        let started = std::fs::read_to_string(&file).unwrap_or_default();
        let _ = std::fs::remove_file(&file);
        started.lines().map(str::to_owned).collect()
    }

    pub(crate) fn plugins(&self) -> usize {
        self.conf["plugins"].as_array().unwrap().len()
    }

    pub(crate) fn add(&self, container: &str, capabilities: &Value) -> Value {
        self.w.netns(container);
        let mut result: Option<Value> = None;
        for index in 0..self.plugins() {
            let conf = self.plugin_conf(index, capabilities, result.as_ref());
            let next = self.call(index, "ADD", container, &conf).success();
            // libcni attaches loopback by itself: its result is of no concern to the network's plugins.
            if self.plugins() == 1 || self.conf["plugins"][index]["type"] != "loopback" {
                result = Some(next);
            }
        }
        result.unwrap()
    }

    pub(crate) fn check(&self, container: &str, capabilities: &Value, result: &Value) {
        for index in 0..self.plugins() {
            self.call(
                index,
                "CHECK",
                container,
                &self.plugin_conf(index, capabilities, Some(result)),
            )
            .silent();
        }
    }

    pub(crate) fn del(&self, container: &str, capabilities: &Value, result: Option<&Value>) {
        for index in (0..self.plugins()).rev() {
            self.call(index, "DEL", container, &self.plugin_conf(index, capabilities, result))
                .silent();
        }
    }

    /// Asserts that nothing of any container is left, whatever backend could hold it.
    #[track_caller]
    pub(crate) fn assert_clean(&self) {
        assert_eq!(self.w.sh_until_silent("ip -o link show type veth"), "");
        let held = self
            .w
            .sh("find /var/lib/cni -type f ! -path '*/.ferrule/*' ! -name lock ! -name 'last_reserved_ip.*'");
        assert_eq!(held, "");
        let rules = self.w.sh("iptables-save; ip6tables-save; nft -s list ruleset");
        for trace in [
            "CNI-DN",
            "CNI-6",
            "\"net",
            "172.26.64.",
            "10.88.0.",
            "192.168.127.",
            "dport 8080",
            "id:",
        ] {
            assert!(!rules.contains(trace), "{trace}: {rules}");
        }
    }
}

pub(crate) fn web() -> Value {
    json!({ "portMappings": [
        { "hostPort": 8080, "containerPort": 80, "protocol": "tcp" },
        { "hostPort": 8080, "containerPort": 80, "protocol": "udp" },
    ] })
}

pub(crate) fn nomad(backend: Option<&str>) -> Value {
    let mut bridge = json!({
        "type": "bridge", "bridge": "nomad", "ipMasq": true, "isGateway": true, "forceAddress": true, "hairpinMode": false,
        "ipam": { "type": "host-local", "ranges": [[{ "subnet": "172.26.64.0/20" }]], "routes": [{ "dst": "0.0.0.0/0" }] },
    });
    let mut firewall = json!({ "type": "firewall", "backend": "iptables", "iptablesAdminChainName": "NOMAD-ADMIN" });
    let mut portmap = json!({ "type": "portmap", "capabilities": { "portMappings": true }, "snat": true });
    if let Some(backend) = backend {
        bridge["ipMasqBackend"] = backend.into();
        firewall["backend"] = backend.into();
        portmap["backend"] = backend.into();
    }
    json!({ "cniVersion": "0.4.0", "name": "nomad", "plugins": [{ "type": "loopback" }, bridge, firewall, portmap] })
}

#[test]
fn nomads_network_as_the_reference_writes_it() {
    testkit::world(|w| {
        let chain = Chain::new(w, nomad(None));
        let result = chain.add("cid-a", &web());
        assert_eq!(result["cniVersion"], "0.4.0");
        let names: Vec<&str> = result["interfaces"]
            .as_array()
            .unwrap()
            .iter()
            .map(|link| link["name"].as_str().unwrap())
            .collect();
        assert!(
            names[0] == "nomad" && names[1].starts_with("veth") && names[2] == "eth0",
            "{names:?}"
        );
        assert_eq!(
            result["ips"],
            json!([{ "version": "4", "interface": 2, "address": "172.26.64.2/20", "gateway": "172.26.64.1" }])
        );
        assert_eq!(result["routes"], json!([{ "dst": "0.0.0.0/0" }]));
        assert_eq!(result["dns"], json!({}));

        let data = "/var/lib/cni/networks/nomad";
        assert_eq!(
            std::fs::read(PathBuf::from(data).join("172.26.64.2")).unwrap(),
            b"cid-a\r\neth0"
        );
        assert_eq!(
            w.sh(&format!(
                "stat -c %a {data}/172.26.64.2; cat {data}/last_reserved_ip.0; ls {data}/lock"
            )),
            format!("600\n172.26.64.2{data}/lock")
        );

        let nat = w.sh("iptables-save -t nat");
        for rule in [
            r#"-A CNI-6499ed8b923a7b04f5f4687e -d 172.26.64.0/20 -m comment --comment "name: \"nomad\" id: \"cid-a\"" -j ACCEPT"#,
            r#"-A CNI-6499ed8b923a7b04f5f4687e ! -d 224.0.0.0/4 -m comment --comment "name: \"nomad\" id: \"cid-a\"" -j MASQUERADE"#,
            r#"-A CNI-DN-6499ed8b923a7b04f5f46 -s 172.26.64.0/20 -p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK"#,
            r#"-A CNI-DN-6499ed8b923a7b04f5f46 -s 127.0.0.1/32 -p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK"#,
            r#"-A CNI-DN-6499ed8b923a7b04f5f46 -p tcp -m tcp --dport 8080 -j DNAT --to-destination 172.26.64.2:80"#,
            r#"-A CNI-HOSTPORT-SETMARK -m comment --comment "CNI portfwd masquerade mark" -j MARK --set-xmark 0x2000/0x2000"#,
            r#"-m multiport --dports 8080 -j CNI-DN-6499ed8b923a7b04f5f46"#,
        ] {
            assert!(nat.contains(rule), "{rule}\n{nat}");
        }
        let first = nat.lines().find(|line| line.starts_with("-A POSTROUTING")).unwrap();
        assert!(first.ends_with("-j CNI-HOSTPORT-MASQ"), "{first}");
        let filter = w.sh("iptables-save -t filter | grep ^-A");
        let rules = r#"-A FORWARD -m comment --comment "CNI firewall plugin rules" -j CNI-FORWARD
-A CNI-FORWARD -m comment --comment "CNI firewall plugin admin overrides" -j NOMAD-ADMIN
-A CNI-FORWARD -d 172.26.64.2/32 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A CNI-FORWARD -s 172.26.64.2/32 -j ACCEPT"#;
        assert_eq!(filter, rules);
        assert_eq!(
            w.sh("cat /proc/sys/net/ipv4/conf/nomad/route_localnet /proc/sys/net/ipv4/ip_forward"),
            "1\n1"
        );

        chain.check("cid-a", &web(), &result);
        chain.del("cid-a", &web(), Some(&result));
        chain.assert_clean();
        chain.del("cid-a", &web(), None);
        chain.assert_clean();
    });
}

#[test]
fn nomads_network_with_nftables() {
    testkit::world(|w| {
        let chain = Chain::new(w, nomad(Some("nftables")));
        let result = chain.add("cid-a", &web());
        chain.check("cid-a", &web(), &result);
        assert_eq!(w.sh("iptables-save"), "", "nothing of iptables is touched");
        chain.del("cid-a", &web(), None);
        chain.assert_clean();
    });
}

#[test]
fn a_chain_starts_one_program_for_each_plugin_that_adds_rules_of_iptables() {
    testkit::world(|w| {
        let mut chain = Chain::new(w, nomad(Some("iptables")));
        chain.path = Some(counting_path(w));
        let restore = "iptables-restore --noflush -w 5";
        for container in ["cid-a", "cid-b"] {
            let published = if container == "cid-a" {
                web()
            } else {
                json!({ "portMappings": [] })
            };
            let result = chain.add(container, &published);
            let rules = if container == "cid-a" { 3 } else { 2 };
            assert_eq!(chain.started(), vec![restore; rules], "masquerade, firewall, portmap");
            chain.check(container, &published, &result);
            assert_eq!(chain.started(), [""; 0]);
        }
        chain.del("cid-a", &web(), None);
        chain.gc();
        assert_eq!(chain.started(), [""; 0], "what is only removed needs no program");
        let left = w.sh("iptables-save");
        assert!(!left.contains("cid-") && !left.contains("-s 172.26.64."), "{left}");
    });
}

#[test]
fn rules_of_others_start_no_program() {
    testkit::world(|w| {
        // As docker and kube-proxy have them, with matches that only iptables knows.
        w.sh("for p in iptables ip6tables; do
                $p -t nat -N DOCKER; $p -t nat -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
                $p -t nat -A POSTROUTING ! -o docker0 -j MASQUERADE --random-fully
                $p -t nat -A POSTROUTING -m statistic --mode random --probability 0.5 -j DOCKER
                $p -t nat -A DOCKER -p tcp -m tcp --tcp-flags SYN SYN -j RETURN
                $p -N DOCKER-USER; $p -A FORWARD -j DOCKER-USER; $p -A DOCKER-USER -p esp -j REJECT
            done");
        let before = w.sh("iptables-save -t nat | grep -v '^#'; ip6tables-save -t nat | grep -v '^#'");
        let mut chain = Chain::new(w, nomad(Some("nftables")));
        chain.path = Some(counting_path(w));
        let result = chain.add("cid-a", &web());
        chain.check("cid-a", &web(), &result);
        chain.del("cid-a", &web(), Some(&result));
        chain.add("cid-b", &web());
        chain.gc();
        assert_eq!(chain.started(), [""; 0]);
        let after = w.sh("iptables-save -t nat | grep -v '^#'; ip6tables-save -t nat | grep -v '^#'");
        assert_eq!(after, before);
    });
}

/// A host outside the node, at 192.0.2.9, that knows no way to the containers.
pub(crate) fn outside(w: &World) {
    w.netns("ext");
    w.sh("ip link add out type veth peer name eth0 netns ext; ip addr add 192.0.2.1/24 dev out; ip link set out up");
    w.sh_in("ext", "ip addr add 192.0.2.9/24 dev eth0; ip link set eth0 up");
}

pub(crate) fn reaches(w: &World, from: &str, address: &str) -> bool {
    let ping = format!("ping -q -c 1 -W 2 {address}");
    w.try_sh_in(from, &ping).status.success()
}

/// The name that a server in `container` gives when its port 80 is asked for through the node's port 8080.
pub(crate) fn serve(w: &World, container: &str) {
    w.sh_in(
        container,
        &format!(
            "socat TCP-LISTEN:80,fork,reuseaddr SYSTEM:'echo {container}' >/dev/null 2>&1 & echo $! >> /run/servers
            until ss -Hltn sport = :80 | grep -q .; do :; done"
        ),
    );
}

pub(crate) const ASK: &str = "socat -T5 - TCP:192.0.2.1:8080,connect-timeout=5 </dev/null";

/// A node that forwards nothing by itself (as Docker leaves it), where the policy allows to say otherwise.
#[test]
fn nomads_network_carries_traffic_on_a_node_that_forwards_nothing() {
    for (backend, policy) in [("iptables", "DROP"), ("nftables", "ACCEPT")] {
        testkit::world(|w| {
            outside(w);
            let chain = Chain::new(w, nomad(Some(backend)));
            w.sh(&format!("iptables -P FORWARD {policy}"));
            let result = chain.add("cid-a", &web());
            let second = chain.add("cid-b", &json!({}));
            chain.check("cid-a", &web(), &result);
            serve(w, "cid-a");
            assert!(reaches(w, "cid-a", "192.0.2.9"), "{backend}: to the outside, and back");
            assert!(reaches(w, "cid-b", "172.26.64.2"), "{backend}: between containers");
            w.sh("ping -q -c 1 -W 2 172.26.64.2");
            assert_eq!(w.sh(ASK), "cid-a", "{backend}: from the node");
            // The reference accepts what containers send and answers to it; what is let in is for the node to say.
            if policy == "ACCEPT" {
                assert_eq!(w.sh_in("ext", ASK), "cid-a", "{backend}: from outside");
            }
            w.sh("kill $(cat /run/servers); ip link delete out");
            chain.del("cid-a", &web(), None);
            chain.del("cid-b", &json!({}), Some(&second));
            chain.assert_clean();
        });
    }
}

#[test]
fn podmans_default_network_carries_traffic_on_a_node_that_forwards_nothing() {
    let conf = json!({ "cniVersion": "0.4.0", "name": "podman", "plugins": [
        { "type": "bridge", "bridge": "cni-podman0", "isGateway": true, "ipMasq": true,
          "ipam": { "type": "host-local", "subnet": "10.88.0.0/16", "routes": [{ "dst": "0.0.0.0/0" }] } },
        { "type": "portmap", "capabilities": { "portMappings": true } },
        { "type": "firewall", "backend": "iptables" },
    ] });
    testkit::world(|w| {
        outside(w);
        w.sh("iptables -P FORWARD DROP");
        let chain = Chain::new(w, conf);
        let result = chain.add("a", &web());
        let second = chain.add("b", &json!({}));
        assert_eq!(result["ips"][0]["address"], "10.88.0.2/16");
        chain.check("a", &web(), &result);
        chain.check("b", &json!({}), &second);
        serve(w, "a");
        for (from, to) in [
            ("a", "192.0.2.9"),
            ("b", "192.0.2.9"),
            ("b", "10.88.0.2"),
            ("a", "10.88.0.1"),
        ] {
            assert!(reaches(w, from, to), "{from} to {to}");
        }
        assert_eq!(w.sh(ASK), "a", "from the node");
        // What is let in from outside is for the node to say, not for the plugins.
        w.sh("iptables -P FORWARD ACCEPT");
        assert_eq!(w.sh_in("ext", ASK), "a");
        w.sh("kill $(cat /run/servers); ip link delete out");
        chain.del("a", &web(), Some(&result));
        chain.del("b", &json!({}), None);
        chain.assert_clean();
    });
}

#[test]
fn firecrackers_network_carries_traffic_on_a_node_that_forwards_nothing() {
    for version in ["0.4.0", "1.0.0"] {
        testkit::world(|w| {
            outside(w);
            w.sh("iptables -P FORWARD DROP
                echo nameserver 192.0.2.53 > /run/resolv.conf; mount --bind /run/resolv.conf /etc/resolv.conf");
            let chain = Chain::new(
                w,
                json!({ "cniVersion": version, "name": "fcnet", "plugins": [
                { "type": "ptp", "ipMasq": true,
                  "ipam": { "type": "host-local", "subnet": "192.168.127.0/24", "resolvConf": "/etc/resolv.conf" } },
                { "type": "firewall" },
            ] }),
            );
            let result = chain.add("f", &json!({}));
            chain.add("g", &json!({}));
            chain.check("f", &json!({}), &result);
            assert_eq!(result["dns"]["nameservers"], json!(["192.0.2.53"]));
            let veth = result["interfaces"][0]["name"].as_str().unwrap();
            assert_eq!(result["interfaces"][1]["name"], "eth0");
            let routes = w.sh_in("f", "ip route");
            for route in [
                "192.168.127.0/24 via 192.168.127.1 dev eth0",
                "192.168.127.1 dev eth0 scope link",
            ] {
                assert!(routes.contains(route), "{routes}");
            }
            let route = format!("192.168.127.2 dev {veth} scope host");
            assert!(w.sh("ip route").contains(&route), "{}", w.sh("ip route"));

            // The network gives no way to the outside: the virtual machine has its own.
            w.sh_in("f", "ip route add 192.0.2.0/24 via 192.168.127.1");
            for to in ["192.168.127.1", "192.168.127.3", "192.0.2.9"] {
                assert!(reaches(w, "f", to), "{to}");
            }
            w.sh("ping -q -c 1 -W 2 192.168.127.2; ip link delete out");
            chain.del("f", &json!({}), Some(&result));
            chain.del("g", &json!({}), None);
            chain.assert_clean();
        });
    }
}

/// As nerdctl and podman write them: the firewall after portmap, containers of a network among themselves.
fn isolated_network(name: &str, bridge: &str, subnet: &str, backend: &str) -> Value {
    json!({ "cniVersion": "1.0.0", "name": name, "plugins": [
        { "type": "bridge", "bridge": bridge, "isGateway": true, "ipMasq": true, "hairpinMode": true, "ipMasqBackend": backend,
          "ipam": { "type": "host-local", "ranges": [[{ "subnet": subnet }]], "routes": [{ "dst": "0.0.0.0/0" }] } },
        { "type": "portmap", "capabilities": { "portMappings": true }, "backend": backend },
        { "type": "firewall", "ingressPolicy": "same-bridge", "backend": backend },
        { "type": "tuning" },
    ] })
}

#[test]
fn nerdctls_and_podmans_networks_keep_to_themselves() {
    for (backend, policy) in [("iptables", "DROP"), ("nftables", "ACCEPT")] {
        testkit::world(|w| {
            outside(w);
            w.sh(&format!("iptables -P FORWARD {policy}"));
            let nerdctl = Chain::new(w, isolated_network("nerd", "nerdctl0", "10.4.0.0/24", backend));
            let podman = Chain {
                w,
                suite: nerdctl.suite.clone(),
                conf: isolated_network("podman", "cni-podman0", "10.88.0.0/16", backend),
                path: None,
            };
            let result = nerdctl.add("a", &web());
            nerdctl.add("b", &json!({}));
            let other = podman.add("c", &json!({}));
            nerdctl.check("a", &web(), &result);
            podman.check("c", &json!({}), &other);
            serve(w, "a");
            assert_eq!(w.sh(ASK), "a", "{backend}: from the node");
            for container in ["a", "b", "c"] {
                assert!(
                    reaches(w, container, "192.0.2.9"),
                    "{backend}: {container} to the outside"
                );
            }
            assert!(reaches(w, "b", "10.4.0.2"), "{backend}: same bridge");
            assert!(!reaches(w, "c", "10.4.0.2"), "{backend}: another bridge");
            assert!(!reaches(w, "a", "10.88.0.2"), "{backend}: another bridge");
            if backend == "iptables" {
                let rules = w.sh("iptables-save -t filter | grep -- -A.*nerdctl0");
                let expected = r#"-A CNI-ISOLATION-STAGE-1 -i nerdctl0 ! -o nerdctl0 -m comment --comment "CNI firewall plugin rules (ingressPolicy: same-bridge)" -j CNI-ISOLATION-STAGE-2
-A CNI-ISOLATION-STAGE-2 -o nerdctl0 -m comment --comment "CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)" -j DROP"#;
                assert_eq!(rules, expected);
                let first = w.sh("iptables -S FORWARD | sed -n 2p");
                assert!(first.ends_with("-j CNI-ISOLATION-STAGE-1"), "{first}");
            }
            w.sh("kill $(cat /run/servers); ip link delete out");
            nerdctl.del("a", &web(), None);
            nerdctl.del("b", &json!({}), None);
            podman.del("c", &json!({}), None);
            nerdctl.assert_clean();
            let gc =
                json!({ "cniVersion": "1.1.0", "name": "nerd", "type": "firewall", "cni.dev/valid-attachments": [] });
            nerdctl.suite.call_bare("firewall", "GC", &gc.to_string()).silent();
            let left = w.sh("iptables-save; nft list ruleset");
            assert!(!left.contains("nerdctl0") && !left.contains("cni-podman0"), "{left}");
        });
    }
}

#[test]
fn containerds_dual_stack_network() {
    for backend in ["iptables", "nftables"] {
        testkit::world(|w| {
            let chain = Chain::new(
                w,
                json!({ "cniVersion": "0.4.0", "name": "containerd-net", "plugins": [
                { "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "promiscMode": true, "ipMasqBackend": backend, "ipam": {
                    "type": "host-local",
                    "ranges": [[{ "subnet": "10.88.0.0/16" }], [{ "subnet": "2001:db8:4860::/64" }]],
                    "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }],
                } },
                { "type": "portmap", "capabilities": { "portMappings": true }, "backend": backend },
            ] }),
            );
            // As containerd writes them.
            let ports =
                json!({ "portMappings": [{ "HostPort": 8080, "ContainerPort": 80, "Protocol": "TCP", "HostIP": "" }] });
            let result = chain.add("k1", &ports);
            assert_eq!(
                result["ips"][1],
                json!({ "version": "6", "interface": 2, "address": "2001:db8:4860::2/64", "gateway": "2001:db8:4860::1" })
            );
            if backend == "iptables" {
                let nat = w.sh("ip6tables-save -t nat");
                let rules: Vec<&str> = nat.lines().filter(|line| line.starts_with("-A CNI-DN-")).collect();
                assert_eq!(
                    rules.len(),
                    2,
                    "the hairpin's mark and the DNAT, and none for ::1: {nat}"
                );
            }
            chain.check("k1", &ports, &result);
            chain.del("k1", &ports, Some(&result));
            chain.assert_clean();
        });
    }
}

#[test]
fn a_single_network_of_1_0_0() {
    testkit::world(|w| {
        let chain = Chain::new(
            w,
            json!({ "cniVersion": "1.0.0", "name": "net", "plugins": [
            { "type": "bridge", "isGateway": true, "ipMasq": true, "ipam": {
                "type": "host-local", "ranges": [[{ "subnet": "10.200.0.0/24" }]], "routes": [{ "dst": "0.0.0.0/0" }],
            } },
        ] }),
        );
        let result = chain.add("p", &json!({}));
        assert_eq!(result["dns"], Value::Null);
        assert_eq!(
            result["ips"],
            json!([{ "interface": 2, "address": "10.200.0.2/24", "gateway": "10.200.0.1" }])
        );
        chain.check("p", &json!({}), &result);
        chain.del("p", &json!({}), Some(&result));
        chain.assert_clean();
    });
}

#[test]
fn portmap_after_a_foreign_plugin() {
    testkit::world(|w| {
        let suite = Suite::install(w);
        let netns = w.netns("eks");
        let prev = json!({
            "cniVersion": "0.3.1",
            "interfaces": [{ "name": "eni0" }, { "name": "eth0", "sandbox": "/run/netns/eks" }],
            "ips": [{ "version": "4", "address": "192.0.2.10/32" }],
            "dns": {},
        });
        let conf = json!({
            "cniVersion": "0.3.1", "name": "aws-cni", "type": "portmap", "snat": true, "capabilities": { "portMappings": true },
            "runtimeConfig": { "portMappings": [{ "hostIP": "0.0.0.0", "hostPort": 8443, "containerPort": 443, "protocol": "tcp" }] },
            "prevResult": prev,
        });
        w.sh("ip link add eni0 type veth peer name other; ip link set eni0 up");
        let result = suite
            .call("portmap", "ADD", "c", &netns, "eth0", &conf.to_string())
            .success();
        assert_eq!(result, prev);
        let nat = w.sh("iptables-save -t nat | grep CNI-DN-");
        assert!(
            nat.contains("-s 192.0.2.10/32 -p tcp -m tcp --dport 8443 -j CNI-HOSTPORT-SETMARK"),
            "{nat}"
        );
        assert!(
            nat.contains("-p tcp -m tcp --dport 8443 -j DNAT --to-destination 192.0.2.10:443"),
            "{nat}"
        );
        assert!(!nat.contains("-d 0.0.0.0"), "{nat}");
        suite
            .call("portmap", "DEL", "c", &netns, "eth0", &conf.to_string())
            .silent();
        assert!(!w.sh("iptables-save -t nat").contains("192.0.2.10"));
    });
}
