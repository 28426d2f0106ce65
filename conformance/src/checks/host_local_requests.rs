//! host-local: addresses that are asked for.

use serde_json::{Value, json};

use super::host_local::{add, expect, ipam, subnet};
use super::{Bench, Check, Done, Plugins, Source, ensure, with};

const fn check(id: &'static str, source: Source, rule: &'static str, run: fn(&Bench) -> Done) -> Check {
    Check {
        id,
        source,
        rule,
        plugins: Plugins::Named(&["host-local"]),
        needs: &[],
        run,
    }
}

pub(super) const CHECKS: &[Check] = &[
    check(
        "host-local/ips-capability",
        Source::Conventions("Dynamic Plugin specific fields: ips"),
        "runtimeConfig.ips asks for addresses",
        |bench| asked(bench, json!({ "runtimeConfig": { "ips": ["10.1.0.77"] } }), ""),
    ),
    check(
        "host-local/ips-capability-with-prefix",
        Source::Conventions("Dynamic Plugin specific fields: ips"),
        "an address that is asked for may have a prefix length",
        |bench| asked(bench, json!({ "runtimeConfig": { "ips": ["10.1.0.77/24"] } }), ""),
    ),
    check(
        "host-local/args-ips",
        Source::Conventions("args in network config: ips"),
        "args.cni.ips asks for addresses",
        |bench| asked(bench, json!({ "args": { "cni": { "ips": ["10.1.0.77"] } } }), ""),
    ),
    check(
        "host-local/cni-args-ip",
        Source::Conventions("CNI_ARGS: IP"),
        "IP in CNI_ARGS asks for an address",
        |bench| asked(bench, json!({}), "IP=10.1.0.77"),
    ),
    check(
        "host-local/ip-ranges-capability",
        Source::Conventions("Dynamic Plugin specific fields: ipRanges"),
        "runtimeConfig.ipRanges adds ranges",
        |bench| {
            let ranges = json!([[{ "subnet": "10.7.0.0/24" }]]);
            let conf = with(&ipam(json!({})), json!({ "runtimeConfig": { "ipRanges": ranges } }));
            expect(&add(bench, "c1", &conf)?, &["10.7.0.2/24"])
        },
    ),
    check(
        "host-local/requested-of-each-set",
        Source::Documentation("host-local"),
        "one address can be asked for in each set",
        |bench| {
            let conf = ipam(json!({ "ranges": [[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "2001:db8::/64" }]] }));
            let conf = with(
                &conf,
                json!({ "runtimeConfig": { "ips": ["2001:db8::77", "10.1.0.77"] } }),
            );
            expect(&add(bench, "c1", &conf)?, &["10.1.0.77/24", "2001:db8::77/64"])
        },
    ),
    check(
        "host-local/requested-is-the-gateway",
        Source::Documentation("host-local"),
        "the gateway's address is refused",
        |bench| refused(bench, "10.1.0.1", "gateway"),
    ),
    check(
        "host-local/requested-is-outside",
        Source::Documentation("host-local"),
        "an address outside of the ranges is refused, and nothing is reserved",
        |bench| refused(bench, "10.2.0.1", "failed to allocate all requested IPs"),
    ),
    check(
        "host-local/requested-is-taken",
        Source::Documentation("host-local"),
        "an address that another container has is refused",
        |bench| {
            let conf = with(
                &subnet("10.1.0.0/24"),
                json!({ "runtimeConfig": { "ips": ["10.1.0.77"] } }),
            );
            add(bench, "c1", &conf)?.result()?;
            add(bench, "c2", &conf)?.error()?;
            Ok(())
        },
    ),
    check(
        "host-local/unknown-cni-args",
        Source::Conventions("CNI_ARGS: IgnoreUnknown"),
        "an unknown key in CNI_ARGS without IgnoreUnknown is refused",
        |bench| {
            let call = bench.calling("ADD", "c1", &subnet("10.1.0.0/24"));
            call.with("CNI_ARGS", "FOO=1").run()?.refused_with("FOO")?;
            Ok(())
        },
    ),
];

fn asked(bench: &Bench, keys: Value, args: &str) -> Done {
    let conf = with(&subnet("10.1.0.0/24"), keys);
    let call = bench.calling("ADD", "c1", &conf).with("CNI_ARGS", args);
    expect(&call.run()?, &["10.1.0.77/24"])
}

fn refused(bench: &Bench, address: &str, text: &str) -> Done {
    let conf = with(&subnet("10.1.0.0/24"), json!({ "runtimeConfig": { "ips": [address] } }));
    add(bench, "c1", &conf)?.refused_with(text)?;
    let kept = bench.host.sh("find /var/lib/cni -name '10.*'")?;
    ensure(kept.is_empty(), || format!("a refused ADD reserved {kept}"))
}
