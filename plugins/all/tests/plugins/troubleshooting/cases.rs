//! Calls that fail, or warn, with texts of the page.

use serde_json::{Value, json};
use testkit::{Reply, call_plugin};

use crate::suite::Suite;

/// A call that fails, or warns, with a text of the page.
pub(super) struct Case {
    pub(super) text: &'static str,
    /// `None` for a warning of a call that succeeds.
    pub(super) code: Option<u64>,
    /// The executable that is called.
    plugin: String,
    verb: &'static str,
    stdin: String,
    /// Beside, or in place of, those of a call that is in order.
    variables: Vec<(&'static str, &'static str)>,
    /// What is done before, in the world's own network; `$BIN` is the plugin directory.
    pub(super) before: &'static str,
}

impl Case {
    fn refused(code: u64, text: &'static str, verb: &'static str, conf: Value) -> Case {
        Case {
            code: Some(code),
            ..Case::warned(text, verb, conf)
        }
    }

    fn warned(text: &'static str, verb: &'static str, conf: Value) -> Case {
        Case {
            text,
            code: None,
            plugin: conf["type"].as_str().unwrap().to_owned(),
            verb,
            stdin: conf.to_string(),
            variables: Vec::new(),
            before: "",
        }
    }

    fn of(self, variable: &'static str, value: &'static str) -> Case {
        let mut variables = self.variables;
        variables.push((variable, value));
        Case { variables, ..self }
    }

    fn after(self, before: &'static str) -> Case {
        Case { before, ..self }
    }

    fn saying(self, stdin: &str) -> Case {
        Case {
            stdin: stdin.to_owned(),
            ..self
        }
    }

    pub(super) fn call(&self, suite: &Suite) -> Reply {
        let mut variables = vec![
            ("CNI_COMMAND", self.verb),
            ("CNI_CONTAINERID", "c"),
            ("CNI_NETNS", "/run/netns/a"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_PATH", suite.bin().to_str().unwrap()),
        ];
        variables.extend(&self.variables);
        call_plugin(&suite.bin().join(&self.plugin), &variables, &self.stdin)
    }
}

fn conf(plugin: &str, keys: Value) -> Value {
    let mut conf = json!({ "cniVersion": "1.1.0", "name": "n", "type": plugin });
    for (key, value) in keys.as_object().unwrap() {
        conf[key] = value.clone();
    }
    conf
}

fn host_local(ipam: Value) -> Value {
    let mut conf = conf("host-local", json!({ "ipam": { "type": "host-local" } }));
    for (key, value) in ipam.as_object().unwrap() {
        conf["ipam"][key] = value.clone();
    }
    conf
}

/// A plugin that makes an interface, with addresses of its own.
fn attaching(plugin: &str, keys: Value) -> Value {
    let mut conf = conf(plugin, keys);
    if conf.get("ipam").is_none() {
        conf["ipam"] = json!({ "type": "static", "addresses": [{ "address": "10.1.0.2/24", "gateway": "10.1.0.1" }] });
    }
    conf
}

/// A plugin that comes after the one that made the interface.
fn chained(plugin: &str, keys: Value) -> Value {
    let mut conf = conf(plugin, keys);
    conf["prevResult"] = json!({
        "cniVersion": "1.1.0",
        "interfaces": [{ "name": "eth0", "sandbox": "/run/netns/a" }],
        "ips": [{ "address": "10.1.0.2/24", "interface": 0 }],
    });
    conf
}

fn published(keys: Value) -> Value {
    let mut conf = chained("portmap", keys);
    conf["runtimeConfig"] = json!({ "portMappings": [{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" }] });
    conf
}

pub(super) fn of_the_call() -> Vec<Case> {
    let lo = |keys: Value| conf("loopback", keys);
    let refused = Case::refused;
    vec![
        refused(4, "required env variables [...] missing", "ADD", lo(json!({}))).of("CNI_IFNAME", ""),
        refused(4, "unknown CNI_COMMAND: ...", "add", lo(json!({}))),
        refused(4, "invalid characters in containerID", "ADD", lo(json!({}))).of("CNI_CONTAINERID", "a/b"),
        refused(4, "interface name is too long", "ADD", lo(json!({}))).of("CNI_IFNAME", "sixteen-bytes-ok"),
        refused(
            4,
            "ARGS: unknown args [...]",
            "ADD",
            host_local(json!({ "subnet": "10.1.0.0/24" })),
        )
        .of("CNI_ARGS", "COLOR=red"),
        refused(
            6,
            "error unmarshall network config: unexpected end of JSON input",
            "ADD",
            lo(json!({})),
        )
        .saying(""),
        refused(
            6,
            "error unmarshall network config: ...: invalid type: ..., expected ...",
            "ADD",
            lo(json!({ "name": 5 })),
        ),
        refused(7, "missing network name", "ADD", lo(json!({ "name": "" }))),
        refused(
            7,
            "invalid characters found in network name",
            "ADD",
            lo(json!({ "name": "a/b" })),
        ),
        refused(
            1,
            "incompatible CNI versions",
            "ADD",
            lo(json!({ "cniVersion": "9.9.9" })),
        ),
        refused(
            1,
            "config version does not allow ...",
            "CHECK",
            lo(json!({ "cniVersion": "0.3.1" })),
        ),
        refused(
            7,
            "could not parse prevResult: ...",
            "ADD",
            lo(json!({ "prevResult": { "cniVersion": "7" } })),
        ),
        refused(
            8,
            "plugin's netns and netns from CNI_NETNS should not be the same",
            "ADD",
            lo(json!({})),
        )
        .of("CNI_NETNS", "/proc/thread-self/ns/net"),
        refused(
            8,
            "failed to open netns \"...\": no such file or directory",
            "ADD",
            lo(json!({})),
        )
        .of("CNI_NETNS", "/nowhere"),
        refused(
            8,
            "failed to open netns \"...\": not a network namespace",
            "ADD",
            lo(json!({})),
        )
        .of("CNI_NETNS", "/etc/passwd"),
        refused(
            7,
            "failed to find plugin \"...\" in path [...]",
            "ADD",
            attaching("bridge", json!({ "ipam": { "type": "nobodys" } })),
        ),
        refused(
            999,
            "...: netplugin failed with no error message: exit code ...",
            "ADD",
            attaching("bridge", json!({ "ipam": { "type": "mute" } })),
        )
        .after("printf '#!/bin/sh\\nexit 3\\n' > $BIN/mute; chmod +x $BIN/mute"),
        refused(
            6,
            "the result of ...: ...",
            "ADD",
            attaching("bridge", json!({ "ipam": { "type": "babbler" } })),
        )
        .after("printf '#!/bin/sh\\necho no result\\n' > $BIN/babbler; chmod +x $BIN/babbler"),
        refused(7, "log: ...", "ADD", lo(json!({ "log": "loud" }))),
    ]
}

pub(super) fn of_addresses() -> Vec<Case> {
    let small = || host_local(json!({ "ranges": [[{ "subnet": "10.1.0.0/30", "gateway": "10.1.0.1" }]] }));
    let refused = Case::refused;
    let other = |case: Case| case.of("CNI_CONTAINERID", "other");
    vec![
        refused(
            999,
            "failed to allocate for range ...: no IP addresses available in range set: ...",
            "ADD",
            small(),
        )
        .after("mkdir -p /var/lib/cni/networks/n; printf 'else\\r\\neth0' > /var/lib/cni/networks/n/10.1.0.2"),
        other(refused(
            999,
            "failed to allocate for range ...: requested IP address ... is not available in range set ...",
            "ADD",
            small(),
        ))
        .of("CNI_ARGS", "IP=10.1.0.2"),
        refused(50, "no IP addresses available on network ...", "STATUS", small()),
        refused(
            999,
            "failed to allocate for range ...: requested ip ... is subnet's gateway",
            "ADD",
            small(),
        )
        .of("CNI_ARGS", "IP=10.1.0.1"),
        refused(999, "failed to allocate all requested IPs: ...", "ADD", small())
            .of("CNI_ARGS", "IP=10.9.0.1")
            .after("rm /var/lib/cni/networks/n/10.1.0.2"),
        refused(
            999,
            "host-local: Failed to find address added by container ...",
            "CHECK",
            small(),
        ),
        refused(
            999,
            "... has been allocated to ..., duplicate allocation is not allowed",
            "ADD",
            small(),
        )
        .after("printf 'c\\r\\neth0' > /var/lib/cni/networks/n/10.1.0.2"),
        refused(7, "IPAM config missing 'ipam' key", "ADD", conf("static", json!({}))),
        refused(7, "no IP ranges specified", "ADD", host_local(json!({}))),
        refused(
            7,
            "invalid range set ...: Network has host bits set. ...",
            "ADD",
            host_local(json!({ "subnet": "10.1.0.5/24" })),
        ),
        refused(
            7,
            "range set ... overlaps with ...",
            "ADD",
            host_local(json!({ "ranges": [[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "10.1.0.0/16" }]] })),
        ),
        refused(
            5,
            "open ...: no such file or directory",
            "ADD",
            host_local(json!({ "subnet": "10.2.0.0/24", "resolvConf": "/nowhere" })),
        ),
        refused(
            5,
            "create ...: ...",
            "ADD",
            host_local(json!({ "subnet": "10.1.0.0/24", "dataDir": "/etc/passwd" })),
        ),
        refused(
            50,
            "... cannot be written: ...",
            "STATUS",
            host_local(json!({ "subnet": "10.1.0.0/24", "dataDir": "/etc/passwd" })),
        ),
        refused(
            999,
            "IPAM plugin returned missing IP config",
            "ADD",
            attaching("ptp", json!({ "ipam": { "type": "static" } })),
        ),
        refused(
            999,
            "IPAM plugin returned no gateway for ...",
            "ADD",
            attaching(
                "ptp",
                json!({ "ipam": { "type": "static", "addresses": [{ "address": "10.1.0.2/24" }] } }),
            ),
        ),
    ]
}

pub(super) fn of_interfaces() -> Vec<Case> {
    let bridge = |keys: Value| attaching("bridge", keys);
    let refused = Case::refused;
    vec![
        refused(
            999,
            "failed to create bridge \"...\": \"...\" already exists but is not a bridge",
            "ADD",
            bridge(json!({ "bridge": "pair" })),
        )
        .after("ip link add pair type veth peer name other"),
        refused(
            999,
            "failed to set bridge addr: \"...\" already has an IP address different from ...",
            "ADD",
            bridge(json!({ "bridge": "old", "isGateway": true })),
        )
        .after("ip link add old type bridge; ip address add 10.9.0.1/24 dev old"),
        refused(
            7,
            "cannot set hairpin mode and promiscuous mode at the same time",
            "ADD",
            bridge(json!({ "hairpinMode": true, "promiscMode": true })),
        ),
        refused(
            7,
            "mtu: ... is not 0 (the kernel's choice) or from 68 to 65535",
            "ADD",
            bridge(json!({ "mtu": 67 })),
        ),
        refused(
            7,
            "mtuAuto: the node has no default route to take the MTU from: set mtu",
            "ADD",
            bridge(json!({ "mtuAuto": true })),
        ),
        refused(
            999,
            "failed to add route: ...",
            "ADD",
            bridge(
                json!({ "ipam": { "type": "static", "addresses": [{ "address": "10.1.0.2/24" }],
                "routes": [{ "dst": "10.5.0.0/16", "gw": "10.9.9.9" }] } }),
            ),
        ),
        // The bridge has been made by the call before.
        refused(999, "Interface ... was not found in the container", "CHECK", {
            let mut conf = chained(
                "bridge",
                json!({ "ipam": { "type": "static", "addresses": [{ "address": "10.1.0.2/24" }] } }),
            );
            conf["prevResult"]["interfaces"] = json!([{ "name": "cni0" },
                    { "name": "eth0", "sandbox": "/run/netns/a" }]);
            conf["prevResult"]["ips"][0]["interface"] = json!(1);
            conf
        }),
        refused(
            4,
            "container veth name (\"...\") peer provided (\"...\") already exists",
            "ADD",
            bridge(json!({})),
        )
        .after("ip -n a link add eth0 type veth peer name other"),
        refused(
            999,
            "Operation not permitted (EPERM)",
            "ADD",
            attaching("low", json!({})),
        )
        .after("printf '#!/bin/sh\\nexec setpriv --bounding-set -all %s/ptp\\n' $BIN > $BIN/low; chmod +x $BIN/low"),
        refused(999, "loopback interface is down", "CHECK", conf("loopback", json!({}))),
    ]
}

pub(super) fn of_ports_and_rules() -> Vec<Case> {
    let refused = Case::refused;
    let ports = |ports: Value| {
        let mut conf = published(json!({}));
        conf["runtimeConfig"]["portMappings"] = ports;
        conf
    };
    let nftables = || published(json!({ "backend": "nftables" }));
    vec![
        refused(7, "must be called as chained plugin", "ADD", conf("portmap", json!({}))),
        refused(
            7,
            "failed to parse config: Invalid host port number: ...",
            "ADD",
            ports(json!([{ "hostPort": 0, "containerPort": 80, "protocol": "tcp" }])),
        ),
        refused(
            7,
            "failed to parse config: host port ... is mapped by entry ... already ...",
            "ADD",
            ports(json!([{ "hostPort": 80, "containerPort": 80, "protocol": "tcp" },
                { "hostPort": 80, "containerPort": 81, "protocol": "tcp" }])),
        ),
        refused(
            7,
            "failed to parse config: unrecognized backend \"...\"",
            "ADD",
            published(json!({ "backend": "pf" })),
        ),
        refused(
            7,
            "failed to parse config: nftables backend was requested but configuration contains iptables-specific options [...]",
            "ADD",
            published(json!({ "backend": "nftables", "conditionsV4": ["-d", "10.0.0.0/8"] })),
        ),
        refused(
            7,
            "... condition \"...\" is not part of one nft rule",
            "ADD",
            published(json!({ "backend": "nftables", "conditionsV4": ["ip daddr 10.0.0.0/8; drop"] })),
        ),
        refused(
            999,
            "nft refuses conditions: ...",
            "ADD",
            published(json!({ "backend": "nftables", "conditionsV4": ["ip nonsense 1"] })),
        ),
        refused(
            999,
            "nft, which conditions need: ...",
            "ADD",
            published(json!({ "backend": "nftables", "conditionsV4": ["ip daddr 10.0.0.0/8"] })),
        )
        .of("PATH", "/nowhere"),
        refused(
            999,
            ".../iptables-restore --noflush -w 5: exit status: ...: ...",
            "ADD",
            published(json!({ "backend": "iptables", "externalSetMarkChain": "NO-SUCH-CHAIN" })),
        ),
        refused(
            50,
            "the kernel's nf_tables do not suffice: ...",
            "STATUS",
            conf("low", json!({ "backend": "nftables" })),
        )
        .after(
            "printf '#!/bin/sh\\nexec setpriv --bounding-set -all %s/portmap\\n' $BIN > $BIN/low; chmod +x $BIN/low",
        ),
        refused(50, "iptables is not installed", "STATUS", published(json!({ "backend": "iptables" }))).of("PATH", "/nowhere"),
        refused(
            11,
            "host port ... is held by container ... interface ... on network ...",
            "ADD",
            nftables(),
        )
        .of("CNI_CONTAINERID", "late")
        .after(
            "export CNI_COMMAND=ADD CNI_CONTAINERID=c CNI_NETNS=/run/netns/a CNI_IFNAME=eth0 CNI_PATH=$BIN
            echo '{\"cniVersion\": \"1.1.0\", \"name\": \"n\", \"backend\": \"nftables\",
                \"prevResult\": { \"cniVersion\": \"1.1.0\", \"ips\": [{ \"address\": \"10.1.0.2/24\" }] },
                \"runtimeConfig\": { \"portMappings\": [{ \"hostPort\": 8080, \"containerPort\": 80, \"protocol\": \"tcp\" }] } }' |
                $BIN/portmap > /dev/null",
        ),
        refused(999, "...: missing for ...", "CHECK", nftables())
            .after("nft flush map inet ferrule_portmap any4"),
        refused(
            999,
            "port mappings of ...: chain ... lacks the ... rule ..., or has it in the wrong place",
            "CHECK",
            published(json!({ "backend": "iptables" })),
        ),
    ]
}

pub(super) fn of_the_rest() -> Vec<Case> {
    let refused = Case::refused;
    let tuning = |keys: Value| chained("tuning", keys);
    vec![
        refused(
            7,
            "missing prevResult from earlier plugin",
            "ADD",
            conf("firewall", json!({})),
        ),
        refused(
            7,
            "unrecognized backend \"...\"",
            "ADD",
            chained("firewall", json!({ "backend": "pf" })),
        ),
        refused(
            7,
            "unknown ingress policy: \"...\"",
            "ADD",
            chained("firewall", json!({ "backend": "nftables", "ingressPolicy": "closed" })),
        ),
        refused(
            7,
            "ingressPolicy: prevResult names no interface on the host",
            "ADD",
            chained(
                "firewall",
                json!({ "backend": "nftables", "ingressPolicy": "same-bridge" }),
            ),
        ),
        refused(
            999,
            "system bus: ...",
            "ADD",
            chained("firewall", json!({ "backend": "firewalld" })),
        ),
        refused(7, "Required prevResult missing", "ADD", conf("tuning", json!({}))),
        refused(
            7,
            "invalid net sysctl key: \"...\"",
            "ADD",
            tuning(json!({ "sysctl": { "kernel.panic": "1" } })),
        ),
        refused(
            7,
            "open /proc/sys/net/...: no such file or directory",
            "ADD",
            tuning(json!({ "sysctl": { "net.ipv4.nonsense": "1" } })),
        ),
        refused(
            7,
            "duplicated sysctl keys are not allowed",
            "ADD",
            tuning(json!({ "sysctl": { "net.core.somaxconn": "1", "net/core/somaxconn": "2" } })),
        ),
        refused(
            999,
            "write sysctl net/...: Invalid argument (EINVAL)",
            "ADD",
            tuning(json!({ "sysctl": { "net.ipv4.ip_forward": "maybe" } })),
        ),
        refused(
            999,
            "failed to get \"...\": Link not found",
            "ADD",
            tuning(json!({ "mtu": 1400 })),
        ),
        refused(
            7,
            "invalid args ... for MAC addr: ...",
            "ADD",
            tuning(json!({ "mac": "nonsense" })),
        ),
        refused(
            7,
            "cni.dev/valid-attachments is missing: without it nothing can be told from garbage",
            "GC",
            conf("portmap", json!({})),
        ),
    ]
}

pub(super) fn of_warnings() -> Vec<Case> {
    let addresses = || host_local(json!({ "subnet": "10.1.0.0/24" }));
    vec![
        Case::warned(
            "\"...\" is no key that ... knows: did you mean ...?",
            "ADD",
            chained("tuning", json!({ "sysctls": {} })),
        ),
        Case::warned(
            "...: nothing is written there",
            "ADD",
            conf("loopback", json!({ "log": { "file": "/nowhere/log" } })),
        ),
        Case::warned(
            "...: not a network namespace; taken as gone",
            "DEL",
            conf("loopback", json!({})),
        )
        .of("CNI_NETNS", "/etc/passwd"),
        Case::warned("...: no owner in it: the address counts as free", "ADD", addresses())
            .after("mkdir -p /var/lib/cni/networks/n; : > /var/lib/cni/networks/n/10.1.0.2"),
        Case::warned("...: the address counts as taken", "ADD", addresses())
            .of("CNI_CONTAINERID", "second")
            .after("rm -rf /var/lib/cni/networks/.ferrule; mkfifo /var/lib/cni/networks/n/10.1.0.7"),
        Case::warned(
            "host port ... is not published: the container has no address of its family",
            "ADD",
            {
                let mut conf = published(json!({ "backend": "nftables" }));
                conf["runtimeConfig"]["portMappings"][0]["hostIP"] = json!("::1");
                conf
            },
        ),
        Case::warned(
            "... drops what it does not accept itself, whatever is accepted here",
            "ADD",
            chained("firewall", json!({ "backend": "nftables" })),
        )
        .after("iptables -P FORWARD DROP"),
    ]
}
