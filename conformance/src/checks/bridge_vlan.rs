//! bridge: VLANs of its ports, and the search for duplicate addresses.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::bridge::{conf, host_veth};
use super::{Bench, Check, Done, Plugins, Source, Stop, ensure, same};
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
        plugins: Plugins::Named(&["bridge", "host-local"]),
        needs,
        run,
    }
}

const VLANS: &[Feature] = &[Feature::BridgeVlanFiltering];

pub(super) const CHECKS: &[Check] = &[
    check(
        VLANS,
        "bridge/vlan",
        Source::Documentation("bridge, vlan"),
        "vlan tags the container's port",
        |bench| {
            let vlans = vlans(bench, json!({ "vlan": 100 }))?;
            same(
                "VLAN 100 of the port",
                &vlans.get("100").map(String::as_str).unwrap_or("none"),
                &"PVID Egress Untagged",
            )
        },
    ),
    check(
        VLANS,
        "bridge/vlan-keeps-the-default",
        Source::Documentation("bridge, preserveDefaultVlan"),
        "with preserveDefaultVlan the port stays in the bridge's default VLAN 1 as well",
        |bench| {
            let vlans = vlans(bench, json!({ "vlan": 100, "preserveDefaultVlan": true }))?;
            ensure(vlans.contains_key("1") && vlans.contains_key("100"), || {
                format!("{vlans:?}")
            })
        },
    ),
    check(
        VLANS,
        "bridge/vlan-leaves-the-default",
        Source::Documentation("bridge, preserveDefaultVlan"),
        "without preserveDefaultVlan the port is in no VLAN but its own",
        |bench| {
            let vlans = vlans(bench, json!({ "vlan": 100, "preserveDefaultVlan": false }))?;
            same("the port's VLANs", &keys(&vlans).as_str(), &"100")
        },
    ),
    check(
        VLANS,
        "bridge/vlan-trunk",
        Source::Documentation("bridge, vlanTrunk"),
        "the port passes the VLANs of vlanTrunk with their tags: single ones and ranges",
        |bench| {
            let trunk = json!([{ "id": 42 }, { "minID": 200, "maxID": 202 }]);
            let mut vlans = vlans(bench, json!({ "vlanTrunk": trunk }))?;
            // The bridge's default VLAN, which only `vlan` replaces.
            vlans.remove("1");
            same("the port's VLANs", &keys(&vlans).as_str(), &"42 200 201 202")?;
            ensure(vlans.values().all(String::is_empty), || format!("untagged: {vlans:?}"))
        },
    ),
    check(
        &[],
        "bridge/vlan-trunk-refused",
        Source::Documentation("bridge, vlanTrunk"),
        "a trunk of VLANs that cannot be is refused, and nothing is made",
        |bench| {
            bench.host.netns("c1")?;
            for trunk in [
                json!([{ "id": 5000 }]),
                json!([{ "minID": 10 }]),
                json!([{ "minID": 10, "maxID": 5 }]),
            ] {
                bench
                    .call("ADD", "c1", &conf(json!({ "isGateway": false, "vlanTrunk": trunk })))?
                    .error()?;
            }
            let left = bench
                .host
                .sh("ip -br link show type veth; find /var/lib/cni -name '10.*'")?;
            same("left by the refused ADD", &left.as_str(), &"")
        },
    ),
    check(
        &[Feature::Ipv6],
        "bridge/duplicate-addresses-not-searched",
        Source::Documentation("bridge, enabledad"),
        "without enabledad the kernel does not look for duplicates of the container's addresses",
        |bench| accept_dad(bench, json!({}), "0"),
    ),
    check(
        &[Feature::Ipv6],
        "bridge/duplicate-addresses-searched",
        Source::Documentation("bridge, enabledad"),
        "with enabledad the kernel looks for duplicates, and has done so when ADD returns",
        |bench| accept_dad(bench, json!({ "enabledad": true }), "1"),
    ),
];

/// Attaches a container and returns the VLANs of its port with their flags. CHECK has to agree.
fn vlans(bench: &Bench, keys: Value) -> Result<BTreeMap<String, String>, Stop> {
    let attached = bench.attach_new("c1", &super::with(&conf(json!({ "isGateway": false })), keys))?;
    let port = host_veth(&attached.result)?;
    let shown = bench
        .host
        .sh(&format!("bridge vlan show dev {port} | sed \"1d; s/^{port}//\""))?;
    bench.check(&attached)?.silent()?;
    let vlan = |line: &str| {
        let mut words = line.split_whitespace();
        Some((words.next()?.to_owned(), words.collect::<Vec<_>>().join(" ")))
    };
    Ok(shown.lines().filter_map(vlan).collect())
}

/// The numbers of VLANs in their order.
fn keys(vlans: &BTreeMap<String, String>) -> String {
    let mut numbers: Vec<u16> = vlans.keys().filter_map(|vlan| vlan.parse().ok()).collect();
    numbers.sort_unstable();
    numbers.iter().map(u16::to_string).collect::<Vec<_>>().join(" ")
}

fn accept_dad(bench: &Bench, keys: Value, expected: &str) -> Done {
    let ipam = json!({ "type": "host-local", "subnet": "2001:db8:1::/64" });
    bench.attach_new("c1", &super::with(&conf(json!({ "ipam": ipam })), keys))?;
    let set = bench.host.sh_in("c1", "cat /proc/sys/net/ipv6/conf/eth0/accept_dad")?;
    same("accept_dad", &set.as_str(), &expected)?;
    let tentative = bench
        .host
        .sh_in("c1", "ip -6 addr show dev eth0 scope global tentative")?;
    same("tentative addresses", &tentative.as_str(), &"")
}
