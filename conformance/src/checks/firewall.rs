//! firewall.

use serde_json::{Value, json};

use super::bridge::outside;
use super::specimen::previous;
use super::{Bench, Check, Done, Plugins, Source, ensure, same, with};
use crate::feature::Feature;

const fn check(
    needs: &'static [Feature],
    id: &'static str,
    source: Source,
    rule: &'static str,
    run: fn(&Bench) -> Done,
) -> Check {
    Check {
        id,
        source,
        rule,
        plugins: Plugins::Named(&["firewall"]),
        needs,
        run,
    }
}

const IPTABLES: &[Feature] = &[Feature::Iptables];

pub(super) const CHECKS: &[Check] = &[
    check(
        IPTABLES,
        "firewall/lets-through",
        Source::Documentation("firewall"),
        "what the container sends is accepted, and what is sent to it as an answer",
        lets_through,
    ),
    check(
        IPTABLES,
        "firewall/admin-chain",
        Source::Documentation("firewall, iptablesAdminChainName"),
        "the administrator's chain is asked first, under the name of the configuration",
        |bench| {
            let rules = rules_with(
                bench,
                json!({ "backend": "iptables", "iptablesAdminChainName": "NOMAD-ADMIN" }),
            )?;
            let first = rules.lines().find(|line| line.starts_with("-A CNI-FORWARD"));
            ensure(first.is_some_and(|rule| rule.contains("-j NOMAD-ADMIN")), || {
                rules.clone()
            })
        },
    ),
    check(
        IPTABLES,
        "firewall/empty-backend",
        Source::Practice("podman writes \"backend\": \"\""),
        "an empty backend is none: the plugin looks for one",
        |bench| rules_with(bench, json!({ "backend": "" })).map(drop),
    ),
    check(
        &[],
        "firewall/unknown-backend",
        Source::Practice("a draft of Nomad wrote \"backend\": \"ip6tables\""),
        "a backend that is none is refused",
        |bench| {
            let conf = with(&bench.prepare("c1", "1.0.0")?, json!({ "backend": "ip6tables" }));
            bench.call("ADD", "c1", &conf)?.error()?;
            Ok(())
        },
    ),
    check(
        IPTABLES,
        "firewall/del-without-prev-result",
        Source::Spec("section 2, DEL"),
        "DEL without prevResult removes the rules",
        |bench| {
            let conf = with(&bench.prepare("c1", "1.0.0")?, json!({ "backend": "iptables" }));
            bench.attach_with("c1", conf.clone())?;
            let mut bare = conf;
            if let Some(conf) = bare.as_object_mut() {
                conf.remove("prevResult");
            }
            bench.call("DEL", "c1", &bare)?.silent()?;
            let rules = bench.host.sh("iptables-save")?;
            ensure(!rules.contains("10.2.0.11"), || format!("left behind: {rules}"))
        },
    ),
    check(
        &[Feature::Iptables, Feature::Traffic],
        "firewall/forward-policy-drop",
        Source::Practice("Docker sets the policy of FORWARD to DROP"),
        "a container reaches the world, and answers come back, where forwarding is forbidden by default",
        forward_policy_drop,
    ),
    check(
        IPTABLES,
        "firewall/same-bridge",
        Source::Documentation("firewall, ingressPolicy"),
        "same-bridge keeps what comes from other bridges out, by the chains that tools look for",
        same_bridge,
    ),
];

fn rules_with(bench: &Bench, keys: Value) -> Result<String, super::Stop> {
    let conf = with(&bench.prepare("c1", "1.0.0")?, keys);
    let attached = bench.attach_with("c1", conf)?;
    let rules = bench.host.sh("iptables-save -t filter")?;
    bench.check(&attached)?.silent()?;
    bench.detach(&attached)?;
    Ok(rules)
}

fn lets_through(bench: &Bench) -> Done {
    let rules = rules_with(bench, json!({ "backend": "iptables" }))?;
    for part in [
        "-d 10.2.0.11/32 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
        "-s 10.2.0.11/32 -j ACCEPT",
    ] {
        ensure(rules.contains(part), || format!("no {part} in {rules}"))?;
    }
    let left = bench.host.sh("iptables-save -t filter")?;
    ensure(!left.contains("10.2.0.11"), || format!("left behind: {left}"))
}

fn forward_policy_drop(bench: &Bench) -> Done {
    let conf = with(&bench.prepare("c1", "1.0.0")?, json!({ "backend": "iptables" }));
    outside(bench)?;
    bench
        .host
        .sh("sysctl -qw net.ipv4.ip_forward=1; ip addr add 10.2.0.1/24 dev vhc1
        ip -n c1 route replace default via 10.2.0.1; iptables -P FORWARD DROP")?;
    let server = bench.host.serve("ext", "TCP", 80)?;
    bench.attach_with("c1", conf)?;
    let seen = bench.host.ask(Some("c1"), "TCP:198.51.100.2:80")?;
    drop(server);
    same("the peer that the world sees", &seen.as_str(), &"10.2.0.11")
}

fn same_bridge(bench: &Bench) -> Done {
    bench.host.netns("c1")?;
    bench.host.sh("ip link add br1 type bridge; ip link set br1 up")?;
    let mut prev = previous("c1", "1.0.0");
    prev["interfaces"][0]["name"] = json!("br1");
    let conf = json!({
        "cniVersion": "1.0.0", "name": "net", "type": "firewall", "backend": "iptables", "ingressPolicy": "same-bridge",
        "prevResult": prev,
    });
    let attached = bench.attach_with("c1", conf)?;
    let rules = bench.host.sh("iptables-save -t filter")?;
    for part in [
        "-A CNI-ISOLATION-STAGE-1 -i br1 ! -o br1",
        "-A CNI-ISOLATION-STAGE-2 -o br1",
    ] {
        ensure(rules.contains(part), || format!("no {part} in {rules}"))?;
    }
    bench.check(&attached)?.silent()?;
    bench.detach(&attached)
}
