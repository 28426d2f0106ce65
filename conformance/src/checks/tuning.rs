//! tuning.

use serde_json::{Map, Value, json};

use super::{Bench, Check, Done, Plugins, Source, ensure, same, with};

const fn check(id: &'static str, source: Source, rule: &'static str, run: fn(&Bench) -> Done) -> Check {
    Check {
        id,
        source,
        rule,
        plugins: Plugins::Named(&["tuning"]),
        needs: &[],
        run,
    }
}

pub(super) const CHECKS: &[Check] = &[
    check(
        "tuning/sysctl",
        Source::Documentation("tuning, sysctl"),
        "sysctls are set in the container, with IFNAME for the interface",
        |bench| {
            bench.attach("c1", "1.0.0")?;
            let value = bench
                .host
                .sh_in("c1", "cat /proc/sys/net/ipv4/conf/eth0/log_martians")?;
            same("log_martians", &value.as_str(), &"1")
        },
    ),
    check(
        "tuning/not-the-nodes",
        Source::Documentation("tuning, sysctl"),
        "a sysctl outside of net is refused",
        |bench| {
            let conf = with(
                &bench.prepare("c1", "1.0.0")?,
                json!({ "sysctl": { "kernel.hostname": "x" } }),
            );
            bench.call("ADD", "c1", &conf)?.refused_with("invalid net sysctl key")?;
            Ok(())
        },
    ),
    check(
        "tuning/all-or-nothing",
        Source::Spec("section 2, ADD: a failed ADD"),
        "if one sysctl is refused, no other is set",
        all_or_nothing,
    ),
    check(
        "tuning/mtu-mac-promisc",
        Source::Documentation("tuning, interface attributes"),
        "mtu, mac and promisc are set, told in the result, and put back by DEL",
        attributes,
    ),
    check(
        "tuning/mac-capability",
        Source::Conventions("Dynamic Plugin specific fields: mac"),
        "runtimeConfig.mac sets the MAC",
        |bench| {
            let conf = with(
                &bench.prepare("c1", "1.0.0")?,
                json!({ "runtimeConfig": { "mac": "02:00:00:00:00:77" } }),
            );
            bench.attach_with("c1", conf)?;
            let shown = bench.host.sh_in("c1", "ip link show dev eth0")?;
            ensure(shown.contains("02:00:00:00:00:77"), || shown)
        },
    ),
    check(
        "tuning/check-finds-changes",
        Source::Spec("section 2, CHECK"),
        "CHECK fails when a sysctl was changed",
        |bench| {
            let attached = bench.attach("c1", "1.0.0")?;
            bench.check(&attached)?.silent()?;
            bench
                .host
                .sh_in("c1", "echo 0 > /proc/sys/net/ipv4/conf/eth0/log_martians")?;
            bench.check(&attached)?.error()?;
            Ok(())
        },
    ),
];

fn all_or_nothing(bench: &Bench) -> Done {
    let valid = [
        "log_martians",
        "accept_local",
        "proxy_arp",
        "send_redirects",
        "accept_redirects",
    ];
    let mut sysctls: Map<String, Value> = valid
        .iter()
        .map(|key| (format!("net.ipv4.conf.IFNAME.{key}"), json!("1")))
        .collect();
    sysctls.insert("kernel.hostname".to_owned(), json!("x"));
    let conf = with(&bench.prepare("c1", "1.0.0")?, json!({ "sysctl": sysctls }));
    let directory = "/proc/sys/net/ipv4/conf/eth0";
    bench.host.sh_in(
        "c1",
        &format!("cd {directory}; for key in {}; do echo 0 > $key; done", valid.join(" ")),
    )?;
    // Go's maps have another order each time: a plugin that happens to begin with the wrong key proves nothing.
    for _ in 0..8 {
        bench.call("ADD", "c1", &conf)?.error()?;
        let values = bench
            .host
            .sh_in("c1", &format!("cd {directory}; cat {} | xargs", valid.join(" ")))?;
        same("the sysctls after the refused ADD", &values.as_str(), &"0 0 0 0 0")?;
    }
    Ok(())
}

fn attributes(bench: &Bench) -> Done {
    let keys = json!({ "mtu": 1400, "mac": "02:00:00:00:00:77", "promisc": true });
    let conf = with(&bench.prepare("c1", "1.0.0")?, keys);
    let look = || {
        bench.host.sh_in(
            "c1",
            "ip -d link show dev eth0 | grep -o -e ' mtu [0-9]*' -e 'ether [0-9a-f:]*' -e 'promiscuity [0-9]' | xargs",
        )
    };
    let before = look()?;
    let attached = bench.attach_with("c1", conf)?;
    same(
        "eth0",
        &look()?.as_str(),
        &"mtu 1400 ether 02:00:00:00:00:77 promiscuity 1",
    )?;
    let interfaces = attached.result["interfaces"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let told = interfaces
        .iter()
        .any(|interface| interface["mac"] == "02:00:00:00:00:77");
    ensure(told, || {
        format!("the result does not tell the MAC: {}", attached.result)
    })?;
    bench.detach(&attached)?;
    same("eth0 after DEL", &look()?, &before)
}
