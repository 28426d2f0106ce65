//! What is measured.

use std::net::Ipv4Addr;

use serde_json::{Map, Value, json};

/// Something that is done the same way with each directory, each in a world of its own.
#[derive(Debug, Clone)]
pub(super) struct Scenario {
    /// What the table calls it.
    pub(super) name: String,
    /// What is done.
    pub(super) work: Work,
    /// What is done with the second directory instead, where the two differ.
    pub(super) second: Option<Work>,
    /// What exists before.
    pub(super) before: Before,
    /// It is done in one of so many rounds.
    pub(super) every: usize,
}

/// What is done in a scenario.
#[derive(Debug, Clone)]
pub(super) enum Work {
    /// The plugin `bridge` says which versions it knows.
    Version,
    /// One container is attached, and detached.
    Chain(Chain),
    /// One container is attached, connected to through its first published port, and detached.
    Connections(Chain),
    /// [`STORM`] containers are attached, [`AT_ONCE`] at a time, and then detached.
    Storm(Chain),
}

/// Containers in a storm.
pub(super) const STORM: usize = 60;
/// How many of them are attached at the same time.
pub(super) const AT_ONCE: usize = 8;

/// What exists when a scenario begins.
#[derive(Debug, Clone, Default)]
pub(super) struct Before {
    /// How many addresses of 10.88.0.0/16 other containers hold, from 10.88.0.2 on.
    pub(super) held: u32,
    /// The one of these that is free all the same.
    pub(super) free: Option<Ipv4Addr>,
    /// How many host ports other containers publish, and by which backend.
    pub(super) mappings: Option<(&'static str, u16)>,
}

/// Plugins that are called one after the other.
#[derive(Debug, Clone, Default)]
pub(super) struct Chain {
    /// In the order of ADD.
    pub(super) steps: Vec<Step>,
}

/// One plugin's part in a chain.
#[derive(Debug, Clone)]
pub(super) struct Step {
    /// The `type`.
    pub(super) plugin: &'static str,
    /// All but `prevResult`.
    pub(super) conf: Map<String, Value>,
}

/// The network that all chains attach to, so that one scenario's pool may be prepared for it.
pub(super) const NETWORK: &str = "bench";
/// The first host port that a chain publishes, TCP.
pub(super) const HOST_PORT: u16 = 18080;

/// The scenario called `only`, or else all whose name contains it, with the plugins that each directory has: `exists` says which.
pub(super) fn all(only: &str, exists: impl Fn(&str) -> bool) -> Vec<Scenario> {
    let mut all = vec![
        quiet("VERSION", Work::Version),
        quiet("loopback", Work::Chain(Chain::default().with("loopback", json!({})))),
    ];
    all.extend([0, 10, 1_000, 10_000, 60_000].map(address_pool));
    all.push(nearly_full_pool());
    all.push(quiet("bridge", Work::Chain(bridge(json!({})))));
    let masquerading = |backend| Work::Chain(bridge(json!({"ipMasq": true, "ipMasqBackend": backend})));
    let publishing = |backend| bridge(json!({})).with("portmap", portmap(backend));
    let chain = |chain: fn(&'static str) -> Chain| move |backend| Work::Chain(chain(backend));
    all.extend(on_iptables("bridge, ipMasq", masquerading));
    all.extend(on_iptables("bridge+portmap", |backend| {
        Work::Chain(publishing(backend))
    }));
    all.push(quiet("bridge+portmap, nftables", Work::Chain(publishing("nftables"))));
    // After a UDP port is published, the kernel's whole table of connections is searched, which takes its time.
    let tcp = json!([{"hostPort": HOST_PORT, "containerPort": 80, "protocol": "tcp"}]);
    all.extend(on_iptables("bridge+portmap, TCP alone", |backend| {
        Work::Chain(publishing(backend).publishing(&tcp))
    }));
    all.extend(on_iptables("Nomad's chain", chain(nomad)));
    all.extend(on_iptables("nerdctl's chain", chain(nerdctl)));
    for backend in ["iptables", "nftables"] {
        all.extend([10, 5_000].map(|mappings| among_mappings(backend, mappings)));
    }
    all.push(rare(quiet("storm, bridge", Work::Storm(bridge(json!({}))))));
    let storms = on_iptables("storm, bridge+portmap", |backend| Work::Storm(publishing(backend)));
    all.extend(storms.map(rare));
    for scenario in &mut all {
        scenario.work.keep(&exists);
        if let Some(work) = &mut scenario.second {
            work.keep(&exists);
        }
    }
    let is_a_name = all.iter().any(|scenario| scenario.name == only);
    all.retain(|scenario| scenario.name == only || !is_a_name && scenario.name.contains(only));
    all
}

fn quiet(name: &str, work: Work) -> Scenario {
    Scenario {
        name: name.to_owned(),
        work,
        second: None,
        before: Before::default(),
        every: 1,
    }
}

/// A scenario with both directories on iptables, which is what the reference takes where nobody says otherwise; and with
/// the second left there, and the first on nftables.
fn on_iptables(name: &str, work: impl Fn(&'static str) -> Work) -> [Scenario; 2] {
    let against = Scenario {
        second: Some(work("iptables")),
        ..quiet(&format!("{name}, nftables against iptables"), work("nftables"))
    };
    [quiet(&format!("{name}, iptables"), work("iptables")), against]
}

/// A storm takes seconds where the others take milliseconds, so there are fewer.
fn rare(storm: Scenario) -> Scenario {
    Scenario { every: 4, ..storm }
}

fn address_pool(held: u32) -> Scenario {
    let chain = Chain::default().with("host-local", json!({"ipam": ipam()}));
    Scenario {
        before: Before {
            held,
            ..Before::default()
        },
        ..quiet(&format!("host-local, {held} held"), Work::Chain(chain))
    }
}

fn nearly_full_pool() -> Scenario {
    let chain = Chain::default().with("host-local", json!({"ipam": ipam()}));
    Scenario {
        before: Before {
            held: 65_533,
            free: Some(Ipv4Addr::new(10, 88, 128, 1)),
            mappings: None,
        },
        ..quiet("host-local, a /16 with one free", Work::Chain(chain))
    }
}

fn among_mappings(backend: &'static str, mappings: u16) -> Scenario {
    let chain = bridge(json!({})).with("portmap", portmap(backend));
    Scenario {
        before: Before {
            mappings: Some((backend, mappings)),
            ..Before::default()
        },
        ..quiet(
            &format!("{mappings} ports published, {backend}"),
            Work::Connections(chain),
        )
    }
}

/// The group network of Nomad's documentation for bridge mode: what its clients generate.
fn nomad(backend: &str) -> Chain {
    let own = json!({"bridge": "nomad", "ipMasq": true, "ipMasqBackend": backend, "forceAddress": true});
    let mut published = portmap(backend);
    published["snat"] = json!(true);
    Chain::default()
        .with("loopback", json!({}))
        .followed_by(bridge(own))
        .with(
            "firewall",
            json!({"backend": "iptables", "iptablesAdminChainName": "NOMAD-ADMIN"}),
        )
        .with("portmap", published)
}

/// The default network that `nerdctl run` writes on its first use.
fn nerdctl(backend: &str) -> Chain {
    let own = json!({"bridge": "nerdctl0", "ipMasq": true, "ipMasqBackend": backend, "hairpinMode": true});
    bridge(own)
        .with("portmap", portmap(backend))
        .with("firewall", json!({"ingressPolicy": "same-bridge"}))
        .with("tuning", json!({}))
}

fn ipam() -> Value {
    json!({"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/16"}]], "routes": [{"dst": "0.0.0.0/0"}]})
}

fn bridge(own: Value) -> Chain {
    let mut conf = json!({"bridge": "bench0", "isGateway": true, "ipam": ipam()});
    if let (Some(conf), Value::Object(own)) = (conf.as_object_mut(), own) {
        conf.extend(own);
    }
    Chain::default().with("bridge", conf)
}

fn portmap(backend: &str) -> Value {
    json!({"backend": backend, "runtimeConfig": {"portMappings": [
        {"hostPort": HOST_PORT, "containerPort": 80, "protocol": "tcp"},
        {"hostPort": 18053, "containerPort": 53, "protocol": "udp"},
    ]}})
}

impl Chain {
    fn with(mut self, plugin: &'static str, conf: Value) -> Chain {
        let mut whole = Map::new();
        whole.insert("cniVersion".to_owned(), json!("1.0.0"));
        whole.insert("name".to_owned(), json!(NETWORK));
        whole.insert("type".to_owned(), json!(plugin));
        if let Value::Object(conf) = conf {
            whole.extend(conf);
        }
        self.steps.push(Step { plugin, conf: whole });
        self
    }

    fn followed_by(mut self, more: Chain) -> Chain {
        self.steps.extend(more.steps);
        self
    }

    /// The same chain with these ports published instead.
    pub(super) fn publishing(&self, mappings: &Value) -> Chain {
        let mut chain = self.clone();
        for step in chain
            .steps
            .iter_mut()
            .filter(|step| step.conf.contains_key("runtimeConfig"))
        {
            let argument = json!({"portMappings": mappings});
            step.conf.insert("runtimeConfig".to_owned(), argument);
        }
        chain
    }

    /// The part of the chain whose plugins are all that `plugin` says.
    pub(super) fn only(&self, plugin: impl Fn(&str) -> bool) -> Chain {
        let steps = self.steps.iter().filter(|step| plugin(step.plugin)).cloned().collect();
        Chain { steps }
    }
}

impl Scenario {
    /// What is done with the first directory, or with the second.
    pub(super) fn work_of(&self, directory: usize) -> &Work {
        match &self.second {
            Some(second) if directory > 0 => second,
            _ => &self.work,
        }
    }
}

impl Work {
    fn keep(&mut self, exists: impl Fn(&str) -> bool) {
        match self {
            Work::Version => {}
            Work::Chain(chain) | Work::Connections(chain) | Work::Storm(chain) => *chain = chain.only(exists),
        }
    }

    /// The plugins that are called, in order.
    pub(super) fn plugins(&self) -> Vec<&'static str> {
        match self {
            Work::Version => vec!["bridge"],
            Work::Chain(chain) | Work::Connections(chain) | Work::Storm(chain) => {
                chain.steps.iter().map(|step| step.plugin).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugins_that_one_directory_lacks_are_left_out_of_chains() {
        let has_no_firewall = |plugin: &str| plugin != "firewall";
        let nomad = all("Nomad", has_no_firewall);
        assert_eq!(nomad.len(), 2);
        assert_eq!(nomad[0].work.plugins(), ["loopback", "bridge", "portmap"]);
    }

    #[test]
    fn names_are_distinct_and_can_be_chosen_by() {
        let mut names: Vec<String> = all("", |_| true).into_iter().map(|s| s.name).collect();
        let total = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), total);
        assert!(all("host-local", |_| true).len() >= 5);
        assert_eq!(all("bridge", |_| true).len(), 1);
        assert!(all("no such thing", |_| true).is_empty());
    }
}
