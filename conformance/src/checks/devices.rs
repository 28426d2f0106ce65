//! Plugins that need a device: what becomes of their attachment when it is gone, and that a failed ADD leaves none.

use serde_json::{Value, json};

use super::{Bench, Check, Done, Plugins, Source, ensure, same, with};
use crate::call::Call;
use crate::feature::Feature;

const fn check(
    plugins: &'static [&'static str],
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
        plugins: Plugins::Named(plugins),
        needs,
        run,
    }
}

const HOST_DEVICE: &[&str] = &["host-device", "host-local"];

pub(super) const CHECKS: &[Check] = &[
    check(
        &["vlan", "host-local"],
        &[Feature::Vlan],
        "vlan/del-without-master",
        Source::Spec("section 2, DEL"),
        "DEL succeeds after the master is gone, and releases the address",
        |bench| {
            let conf = network("vlan", json!({ "master": "v0", "vlanId": 5 }));
            bench
                .host
                .sh("ip link add v0 type veth peer name v1; ip link set v0 up; ip link set v1 up")?;
            let attached = bench.attach_new("c1", &conf)?;
            bench.host.sh("ip link del v0")?;
            bench.detach(&attached)?;
            nothing_reserved(bench)
        },
    ),
    check(
        HOST_DEVICE,
        &[],
        "host-device/del-without-namespace",
        Source::Practice("containernetworking/plugins issue 1196: after a reboot there is no namespace"),
        "DEL without CNI_NETNS releases the address",
        |bench| host_device_del(bench, ""),
    ),
    check(
        HOST_DEVICE,
        &[],
        "host-device/del-after-the-namespace",
        Source::Practice("containernetworking/plugins issue 1196: after a reboot there is no namespace"),
        "DEL with a namespace that is missing succeeds and releases the address",
        |bench| host_device_del(bench, "/run/netns/missing"),
    ),
    check(
        HOST_DEVICE,
        &[],
        "host-device/given-back",
        Source::Documentation("host-device"),
        "DEL gives the device back to the host, down and under its old name, and releases the address",
        |bench| {
            let attached = host_device(bench)?;
            bench.detach(&attached)?;
            let shown = bench.host.sh("ip link show dev hd0")?;
            ensure(!shown.contains(",UP"), || shown)?;
            nothing_reserved(bench)
        },
    ),
    check(
        &["macvlan", "host-local"],
        &[Feature::Macvlan],
        "macvlan/failed-ipam",
        Source::Practice("containernetworking/plugins issue 29"),
        "an ADD that fails in IPAM leaves no interface in the container",
        |bench| {
            bench
                .host
                .sh("ip link add m0 type veth peer name m1; ip link set m0 up")?;
            let mut conf = network("macvlan", json!({ "master": "m0" }));
            conf["ipam"]["subnet"] = json!("10.1.0.0/33");
            bench.host.netns("c1")?;
            bench.call("ADD", "c1", &conf)?.error()?;
            let left = bench.host.sh_in("c1", "ip -br link | grep -v '^lo ' || true")?;
            same("left in the container", &left.as_str(), &"")
        },
    ),
    check(
        &["vrf", "bridge", "host-local"],
        &[Feature::Vrf],
        "vrf/del-without-interface",
        Source::Practice("containernetworking/plugins pull request 1282"),
        "DEL of the chain succeeds after the interface is gone from the container, and releases the address",
        |bench| vrf_del(bench, "ip -n c1 link del eth0"),
    ),
    check(
        &["vrf", "bridge", "host-local"],
        &[Feature::Vrf],
        "vrf/del-without-vrf",
        Source::Practice("containernetworking/plugins pull request 1282"),
        "DEL of the chain succeeds after the vrf is gone from the container, and releases the address",
        |bench| vrf_del(bench, "ip -n c1 link del red"),
    ),
    check(
        &["dhcp"],
        &[],
        "dhcp/del-without-daemon",
        Source::Spec("section 2, DEL: a plugin should complete it even if resources are missing"),
        "DEL succeeds where no daemon runs, for then nothing is leased",
        |bench| {
            let conf = json!({ "cniVersion": "1.0.0", "name": "net", "type": "dhcp", "ipam": { "type": "dhcp" } });
            bench.host.netns("c1")?;
            bench.call("DEL", "c1", &conf)?.silent()
        },
    ),
];

fn network(plugin: &str, keys: Value) -> Value {
    let ipam = json!({ "type": "host-local", "subnet": "10.9.0.0/24" });
    with(
        &json!({ "cniVersion": "1.0.0", "name": "net", "type": plugin, "ipam": ipam }),
        keys,
    )
}

fn nothing_reserved(bench: &Bench) -> Done {
    let kept = bench.host.sh("find /var/lib/cni/networks -name '10.*'")?;
    same("still reserved", &kept.as_str(), &"")
}

fn host_device(bench: &Bench) -> Result<super::Attached, super::Stop> {
    bench
        .host
        .sh("ip link add hd0 type veth peer name hd1; ip link set hd1 up")?;
    bench.attach_new("c1", &network("host-device", json!({ "device": "hd0" })))
}

fn host_device_del(bench: &Bench, netns: &str) -> Done {
    let attached = host_device(bench)?;
    let del = bench.calling("DEL", "c1", &attached.with_result());
    del.with("CNI_NETNS", netns).run()?.silent()?;
    nothing_reserved(bench)
}

fn vrf_del(bench: &Bench, change: &str) -> Done {
    let bridge = network("bridge", json!({ "bridge": "br1" }));
    let vrf = json!({ "cniVersion": "1.0.0", "name": "net", "type": "vrf", "vrfname": "red" });
    bench.host.netns("c1")?;
    let call = |verb: &str, conf: &Value, result: &Value| {
        let plugin = conf["type"].as_str().unwrap_or_default();
        let conf = with(conf, json!({ "prevResult": result }));
        Call::new(plugin, verb).container("c1").conf(&conf).run()
    };
    let first = Call::new("bridge", "ADD")
        .container("c1")
        .conf(&bridge)
        .run()?
        .result()?;
    let result = call("ADD", &vrf, &first)?.result()?;
    bench.host.sh(change)?;
    call("DEL", &vrf, &result)?.silent()?;
    call("DEL", &bridge, &result)?.silent()?;
    nothing_reserved(bench)
}
