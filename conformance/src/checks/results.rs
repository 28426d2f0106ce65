//! The result of ADD in every version of the specification.

use std::net::IpAddr;

use cni_types::Cidr;
use serde_json::{Value, json};

use super::{Bench, Check, Done, Kind, Plugins, Source, Specimen, Stop, ensure, same};

const RESULT: Source = Source::Spec("section 5, ADD Success; the older versions of the document");

const fn shape(id: &'static str, rule: &'static str, run: fn(&Bench) -> Done) -> Check {
    Check {
        id,
        source: RESULT,
        rule,
        plugins: Plugins::Configured,
        needs: &[],
        run,
    }
}

pub(super) const CHECKS: &[Check] = &[
    shape(
        "result/unstated-version",
        "without a version the result is that of 0.1.0",
        |bench| written(bench, ""),
    ),
    shape(
        "result/0.1.0",
        "the result has ip4 and ip6 with ip, gateway and routes",
        |bench| written(bench, "0.1.0"),
    ),
    shape(
        "result/0.2.0",
        "the result has ip4 and ip6 with ip, gateway and routes",
        |bench| written(bench, "0.2.0"),
    ),
    shape("result/0.3.0", "every address says its IP version", |bench| {
        written(bench, "0.3.0")
    }),
    shape("result/0.3.1", "every address says its IP version", |bench| {
        written(bench, "0.3.1")
    }),
    shape("result/0.4.0", "every address says its IP version", |bench| {
        written(bench, "0.4.0")
    }),
    shape("result/1.0.0", "addresses have no IP version", |bench| {
        written(bench, "1.0.0")
    }),
    shape("result/1.1.0", "addresses have no IP version", |bench| {
        written(bench, "1.1.0")
    }),
    shape(
        "result/names-the-interface",
        "an interface in the container is named CNI_IFNAME, with its namespace and MAC, and exists",
        names_interface,
    ),
    shape(
        "result/tells-the-truth",
        "the addresses of the result are those of the interface",
        tells_the_truth,
    ),
];

fn written(bench: &Bench, version: &str) -> Done {
    let attached = bench.attach("c1", version)?;
    let result = &attached.result;
    let stated = if version.is_empty() { "0.1.0" } else { version };
    same("cniVersion of the result", &result["cniVersion"], &json!(stated))?;
    let kind = Specimen::of(bench)?.kind;
    if ["0.1.0", "0.2.0"].contains(&stated) {
        old_shape(result, kind)
    } else {
        new_shape(result, stated, kind)
    }
}

fn old_shape(result: &Value, kind: Kind) -> Done {
    for key in ["ips", "interfaces", "routes"] {
        ensure(result.get(key).is_none(), || {
            format!("{key} is newer than this version: {result}")
        })?;
    }
    if let Some(four) = result.get("ip4") {
        address(four, "ip")?;
        routes(four)?;
    }
    ensure(result.get("ip4").is_some() || kind != Kind::Ipam, || {
        format!("no address in {result}")
    })
}

fn new_shape(result: &Value, version: &str, kind: Kind) -> Done {
    for key in ["ip4", "ip6"] {
        ensure(result.get(key).is_none(), || {
            format!("{key} is older than this version: {result}")
        })?;
    }
    let interfaces = list(result, "interfaces")?;
    ensure(kind != Kind::Ipam || interfaces.is_empty(), || {
        "an IPAM plugin knows no interface".to_owned()
    })?;
    for ip in list(result, "ips")? {
        let family = address(ip, "address")?;
        let expected = version.starts_with("0.").then_some(family);
        ensure(ip.get("version").and_then(Value::as_str) == expected, || {
            format!("the version of {ip} should be {expected:?}")
        })?;
        if let Some(index) = ip.get("interface") {
            let known = index.as_u64().is_some_and(|index| index < interfaces.len() as u64);
            ensure(known, || format!("{ip} is of an interface that is not there: {result}"))?;
        }
    }
    ensure(kind != Kind::Ipam || !list(result, "ips")?.is_empty(), || {
        format!("no address in {result}")
    })?;
    routes(result)
}

/// The value's list under `key`; no list is an empty one.
fn list<'a>(value: &'a Value, key: &str) -> Result<&'a [Value], Stop> {
    match value.get(key) {
        None | Some(Value::Null) => Ok(&[]),
        Some(Value::Array(items)) => Ok(items),
        Some(other) => Err(Stop::Fail(format!("{key} is no list: {other}"))),
    }
}

/// Reads an address with its gateway, and returns which IP version it is.
fn address(ip: &Value, key: &str) -> Result<&'static str, Stop> {
    let text = ip.get(key).and_then(Value::as_str).unwrap_or_default();
    let cidr: Cidr = text.parse().map_err(|e| Stop::Fail(format!("{key} of {ip}: {e}")))?;
    if let Some(gateway) = ip.get("gateway") {
        let gateway = gateway.as_str().unwrap_or_default();
        gateway
            .parse::<IpAddr>()
            .map_err(|e| Stop::Fail(format!("gateway of {ip}: {e}")))?;
    }
    Ok(if cidr.address().is_ipv4() { "4" } else { "6" })
}

fn routes(result: &Value) -> Done {
    for route in list(result, "routes")? {
        let destination = route.get("dst").and_then(Value::as_str).unwrap_or_default();
        destination
            .parse::<Cidr>()
            .map_err(|e| Stop::Fail(format!("dst of {route}: {e}")))?;
    }
    Ok(())
}

fn interfaces_only(bench: &Bench) -> Done {
    match Specimen::of(bench)?.kind {
        Kind::Interface => Ok(()),
        _ => Err(Stop::NotApplicable("the plugin makes no interface".to_owned())),
    }
}

fn names_interface(bench: &Bench) -> Done {
    interfaces_only(bench)?;
    let result = bench.attach("c1", "1.0.0")?.result;
    let interface = list(&result, "interfaces")?
        .iter()
        .find(|interface| interface["name"] == "eth0" && interface.get("sandbox").is_some())
        .ok_or_else(|| Stop::Fail(format!("no eth0 with a sandbox in {result}")))?;
    same("sandbox", &interface["sandbox"], &json!("/run/netns/c1"))?;
    let mac = bench
        .host
        .sh_in("c1", "ip -br link show dev eth0 | awk '{ print $3 }'")?;
    if interface.get("mac").is_some() {
        same("mac", &interface["mac"], &json!(mac))?;
    }
    Ok(())
}

fn tells_the_truth(bench: &Bench) -> Done {
    interfaces_only(bench)?;
    let result = bench.attach("c1", "1.0.0")?.result;
    let shown = bench.host.sh_in("c1", "ip -o addr show dev eth0")?;
    for ip in list(&result, "ips")? {
        let address = ip["address"].as_str().unwrap_or_default();
        ensure(shown.contains(&format!(" {address} ")), || {
            format!("{address} is not on eth0: {shown}")
        })?;
    }
    ensure(!list(&result, "ips")?.is_empty() || !bench.has("host-local"), || {
        format!("no address in {result}")
    })
}
