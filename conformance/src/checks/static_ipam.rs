//! static.

use serde_json::{Value, json};

use super::host_local::addresses;
use super::{Bench, Check, Done, Plugins, Source, ensure, same, with};

const fn check(id: &'static str, source: Source, rule: &'static str, run: fn(&Bench) -> Done) -> Check {
    Check {
        id,
        source,
        rule,
        plugins: Plugins::Named(&["static"]),
        needs: &[],
        run,
    }
}

pub(super) const CHECKS: &[Check] = &[
    check(
        "static/addresses-routes-dns",
        Source::Documentation("static"),
        "addresses, routes and dns are those of the configuration",
        configured,
    ),
    check(
        "static/ips-capability",
        Source::Conventions("Dynamic Plugin specific fields: ips"),
        "runtimeConfig.ips replaces the addresses",
        |bench| asked(bench, json!({ "runtimeConfig": { "ips": ["192.0.2.7/25"] } }), ""),
    ),
    check(
        "static/args-ips",
        Source::Conventions("args in network config: ips"),
        "args.cni.ips replaces the addresses",
        |bench| asked(bench, json!({ "args": { "cni": { "ips": ["192.0.2.7/25"] } } }), ""),
    ),
    check(
        "static/cni-args-ip",
        Source::Documentation("static, CNI_ARGS"),
        "IP in CNI_ARGS gives the address",
        |bench| asked(bench, json!({ "ipam": { "type": "static" } }), "IP=192.0.2.7/25"),
    ),
    check(
        "static/wrong-address",
        Source::Documentation("static"),
        "an address without a prefix length is refused",
        |bench| {
            let conf = with(
                &conf(),
                json!({ "ipam": { "type": "static", "addresses": [{ "address": "10.1.0.9" }] } }),
            );
            bench.call("ADD", "c1", &conf)?.error()?;
            Ok(())
        },
    ),
];

fn conf() -> Value {
    let addresses = json!([{ "address": "10.1.0.9/24", "gateway": "10.1.0.1" }, { "address": "2001:db8::9/64" }]);
    let dns = json!({ "nameservers": ["192.0.2.53"], "domain": "example.com", "search": ["a.example"], "options": ["ndots:3"] });
    let ipam = json!({ "type": "static", "addresses": addresses, "routes": [{ "dst": "0.0.0.0/0", "gw": "10.1.0.1" }], "dns": dns });
    json!({ "cniVersion": "1.0.0", "name": "net", "type": "static", "ipam": ipam })
}

fn configured(bench: &Bench) -> Done {
    let conf = conf();
    let result = bench.call("ADD", "c1", &conf)?.result()?;
    same("ips", &result["ips"], &conf["ipam"]["addresses"])?;
    same("routes", &result["routes"], &conf["ipam"]["routes"])?;
    same("dns", &result["dns"], &conf["ipam"]["dns"])
}

fn asked(bench: &Bench, keys: Value, args: &str) -> Done {
    let call = bench.calling("ADD", "c1", &with(&conf(), keys)).with("CNI_ARGS", args);
    let result = call.run()?.result()?;
    ensure(addresses(&result) == ["192.0.2.7/25"], || format!("got {result}"))
}
