//! The chains of plugins that are tried, and how a runtime drives them.

use std::io::{Write, stderr};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use testkit::{Invocation, Points, Reply, State, World, call_plugin, plugin_directory};

/// The plugins of a network, in order.
pub(crate) struct Chain {
    pub(crate) name: &'static str,
    plugins: Vec<Value>,
}

impl Chain {
    fn new(name: &'static str, plugins: Vec<Value>) -> Chain {
        let complete = |mut conf: Value| {
            conf["cniVersion"] = json!("1.1.0");
            conf["name"] = json!("net");
            conf
        };
        Chain {
            name,
            plugins: plugins.into_iter().map(complete).collect(),
        }
    }

    /// What most nodes run: a bridge with addresses of both families, masquerade, firewall, and published ports.
    pub(crate) fn published(backend: &'static str, port: u16) -> Chain {
        let mappings = json!([
            { "hostPort": port, "containerPort": 80, "protocol": "tcp" },
            { "hostPort": port, "containerPort": 80, "protocol": "udp" },
        ]);
        let portmap = json!({
            "type": "portmap", "backend": backend, "capabilities": { "portMappings": true },
            "runtimeConfig": { "portMappings": mappings },
        });
        let mut bridge = bridge();
        bridge["ipMasq"] = json!(true);
        bridge["ipMasqBackend"] = json!(backend);
        let firewall = json!({ "type": "firewall", "backend": backend });
        Chain::new(backend, vec![bridge, firewall, portmap])
    }

    pub(crate) fn bridge_alone() -> Chain {
        Chain::new("bridge", vec![bridge()])
    }

    pub(crate) fn ptp() -> Chain {
        let ptp = json!({ "type": "ptp", "ipMasq": true, "ipMasqBackend": "nftables", "ipam": ipam() });
        Chain::new("ptp", vec![ptp])
    }

    pub(crate) fn loopback() -> Chain {
        Chain::new("loopback", vec![json!({ "type": "loopback" })])
    }

    pub(crate) fn host_local() -> Chain {
        Chain::new("host-local", vec![json!({ "type": "host-local", "ipam": ipam() })])
    }

    pub(crate) fn len(&self) -> usize {
        self.plugins.len()
    }
}

fn bridge() -> Value {
    json!({ "type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true, "ipam": ipam() })
}

fn ipam() -> Value {
    json!({
        "type": "host-local",
        "ranges": [[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "fd00:1::/64" }]],
        "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }],
    })
}

/// How a call of a plugin is made: plainly, or so that it ends early. `None`: it was killed.
pub(crate) type Caller<'a> = &'a mut dyn FnMut(&Invocation<'_>) -> Option<Reply>;

/// A call as it is.
pub(crate) fn plainly(call: &Invocation<'_>) -> Option<Reply> {
    Some(call_plugin(call.plugin, call.variables, call.stdin))
}

/// How a verb of the whole chain ended.
#[derive(Debug)]
pub(crate) enum End {
    /// With this result; of DEL and CHECK, with none.
    Done(Value),
    Failed(Reply),
    Killed,
}

impl End {
    #[track_caller]
    pub(crate) fn done(self) -> Value {
        match self {
            End::Done(result) => result,
            other => panic!("{other:?}"),
        }
    }
}

/// A world with the suite installed.
pub(crate) struct Node<'a> {
    pub(crate) w: &'a World,
    bin: PathBuf,
}

/// A container as a runtime names it in a call.
#[derive(Clone, Copy)]
pub(crate) struct Container<'a> {
    pub(crate) id: &'a str,
    /// Empty for none.
    pub(crate) netns: &'a str,
}

/// The one container of the tests that kill and break.
pub(crate) const A: Container<'static> = Container {
    id: "a",
    netns: "/run/netns/a",
};

impl<'a> Node<'a> {
    pub(crate) fn new(w: &'a World) -> Node<'a> {
        let ferrule = Path::new(env!("CARGO_BIN_EXE_ferrule"));
        let list = w.sh(&format!("{} list", ferrule.display()));
        // A link-local address comes to a link of itself, some time after it was made.
        w.sh("echo 1 > /proc/sys/net/ipv6/conf/default/addr_gen_mode");
        Node {
            w,
            bin: plugin_directory(w.tmp(), ferrule, &list.lines().collect::<Vec<_>>()),
        }
    }

    /// ADD of the plugins from `first` on, `prev` being the result of those before.
    pub(crate) fn add_from(
        &self,
        chain: &Chain,
        first: usize,
        prev: Value,
        of: Container<'_>,
        call: Caller<'_>,
    ) -> End {
        let mut result = prev;
        for conf in chain.plugins.iter().skip(first) {
            match self.call("ADD", conf, &result, of, call) {
                None => return End::Killed,
                Some(reply) if reply.code == Some(0) => result = reply.success(),
                Some(reply) => return End::Failed(reply),
            }
        }
        End::Done(result)
    }

    pub(crate) fn add(&self, chain: &Chain, of: Container<'_>, call: Caller<'_>) -> End {
        self.add_from(chain, 0, Value::Null, of, call)
    }

    /// ADD of the first `count` plugins.
    pub(crate) fn add_first(&self, chain: &Chain, count: usize, of: Container<'_>) -> Value {
        let first = Chain {
            name: chain.name,
            plugins: chain.plugins.iter().take(count).cloned().collect(),
        };
        self.add(&first, of, &mut plainly).done()
    }

    pub(crate) fn check(&self, chain: &Chain, result: &Value, of: Container<'_>) -> End {
        let confs: Vec<&Value> = chain.plugins.iter().collect();
        self.each("CHECK", &confs, result, of, &mut plainly)
    }

    /// DEL of all plugins, last first; `prev` may be null.
    pub(crate) fn del(&self, chain: &Chain, prev: &Value, of: Container<'_>, call: Caller<'_>) -> End {
        let confs: Vec<&Value> = chain.plugins.iter().rev().collect();
        self.each("DEL", &confs, prev, of, call)
    }

    fn each(&self, verb: &str, confs: &[&Value], prev: &Value, of: Container<'_>, call: Caller<'_>) -> End {
        for conf in confs {
            match self.call(verb, conf, prev, of, call) {
                None => return End::Killed,
                Some(reply) if (reply.code, reply.stdout.as_str()) == (Some(0), "") => {}
                Some(reply) => return End::Failed(reply),
            }
        }
        End::Done(Value::Null)
    }

    /// The names of all plugins.
    pub(crate) fn plugins(&self) -> Vec<String> {
        let list = self.w.sh(&format!("{} list", self.bin.join("ferrule").display()));
        list.lines().map(str::to_owned).collect()
    }

    /// DEL of one plugin.
    pub(crate) fn del_alone(&self, conf: &Value, of: Container<'_>) -> Reply {
        let reply = self.call("DEL", conf, &Value::Null, of, &mut plainly);
        reply.unwrap()
    }

    fn call(&self, verb: &str, conf: &Value, prev: &Value, of: Container<'_>, call: Caller<'_>) -> Option<Reply> {
        let mut conf = conf.clone();
        if !prev.is_null() {
            conf["prevResult"] = prev.clone();
        }
        let variables = [
            ("CNI_COMMAND", verb),
            ("CNI_CONTAINERID", of.id),
            ("CNI_NETNS", of.netns),
            ("CNI_IFNAME", if conf["type"] == "loopback" { "lo" } else { "eth0" }),
            ("CNI_PATH", self.bin.to_str().unwrap()),
        ];
        call(&Invocation {
            plugin: &self.bin.join(conf["type"].as_str().unwrap()),
            variables: &variables,
            stdin: &conf.to_string(),
        })
    }

    /// Makes the namespace of `A`. Its loopback interface was up once: the kernel gave it addresses then, which stay.
    pub(crate) fn make_namespace(&self) {
        self.w.netns("a");
        self.w.sh_in("a", "ip link set lo up; ip link set lo down");
    }

    /// Makes the node as it is before its first container: also what may stay is gone.
    pub(crate) fn cool_down(&self) {
        self.w.sh("ip link del cni0 2>/dev/null || true
            nft flush ruleset
            rm -rf /run/cni /var/lib/cni/networks
            cd /proc/sys/net; echo 0 > ipv4/ip_forward; echo 0 > ipv6/conf/all/forwarding");
    }

    /// Whether the interface of `A` still has an address that the next container may get.
    pub(crate) fn has_given_away_an_address_in_use(&self) -> bool {
        let holds = |script: &str| self.w.try_sh(script).status.success();
        holds("ip netns exec a ip -o address show dev eth0 2>/dev/null | grep -q 'inet 10.1.0'")
            && !holds("ls /var/lib/cni/networks/net | grep -q '^10.1.0'")
    }

    pub(crate) fn state(&self) -> State {
        State::read(self.w, &["a"])
    }

    /// Deletes the namespace of `A` and waits until the kernel has deleted what was in it.
    pub(crate) fn lose_namespace(&self) {
        self.w
            .sh("ip netns del a; while ls /sys/class/net | grep -q veth; do :; done");
    }
}

/// How far apart the points are at which the chain with iptables is tried: its programs make thousands of calls, most of them
/// to load themselves, and start slowly. A prime, so that the points are not always the same call of a program.
pub(crate) fn stride_of_iptables(prime: usize) -> usize {
    match Points::chosen() {
        Points::All => 1,
        Points::Changing => prime,
    }
}

/// Says how much was tried, where the runner does not hide it.
pub(crate) fn tell(what: &str) {
    stderr().write_all(format!("{what}\n").as_bytes()).unwrap();
}
