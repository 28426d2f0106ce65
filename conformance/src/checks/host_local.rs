//! host-local: which address is given out, and that none is lost or given twice.

use std::collections::BTreeSet;
use std::fs;
use std::net::Ipv4Addr;
use std::thread;

use serde_json::{Value, json};

use super::{Bench, Check, Done, Plugins, Source, Stop, ensure, same, with};
use crate::call::Reply;

const DOCUMENTED: Source = Source::Documentation("host-local");

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
        "host-local/first-address",
        DOCUMENTED,
        "the first address of a subnet is its gateway's, the second is the first that is given out",
        |bench| gives(bench, "c1", &subnet("10.1.0.0/24"), "10.1.0.2/24", Some("10.1.0.1")),
    ),
    check(
        "host-local/ipv6",
        DOCUMENTED,
        "IPv6 ranges work like those of IPv4",
        |bench| {
            gives(
                bench,
                "c1",
                &subnet("2001:db8:1::/64"),
                "2001:db8:1::2/64",
                Some("2001:db8:1::1"),
            )
        },
    ),
    check(
        "host-local/range-and-gateway",
        DOCUMENTED,
        "rangeStart, rangeEnd and gateway bound what is given out",
        range_and_gateway,
    ),
    check(
        "host-local/two-sets",
        DOCUMENTED,
        "one address is given from each range set",
        two_sets,
    ),
    check(
        "host-local/second-range-of-a-set",
        DOCUMENTED,
        "the second range of a set serves when the first is used up",
        second_range,
    ),
    check(
        "host-local/round-robin",
        DOCUMENTED,
        "addresses are given out in turn, and a released one only after the others",
        round_robin,
    ),
    check(
        "host-local/used-up",
        DOCUMENTED,
        "ADD fails when no address is left, and works again after a DEL",
        used_up,
    ),
    check(
        "host-local/reservation-file",
        Source::Practice("tools and other versions of the plugin read the files: cases of nerdctl and Kubernetes"),
        "the file of an address holds the container's ID and the interface",
        reservation_file,
    ),
    check(
        "host-local/data-dir",
        DOCUMENTED,
        "dataDir says where addresses are remembered",
        |bench| {
            let conf = ipam(json!({ "subnet": "10.1.0.0/24", "dataDir": "/run/elsewhere" }));
            bench.attach_new("c1", &conf)?;
            fs::metadata("/run/elsewhere/net/10.1.0.2")?;
            Ok(())
        },
    ),
    check(
        "host-local/routes",
        DOCUMENTED,
        "routes of the configuration are in the result",
        |bench| {
            let conf = ipam(
                json!({ "subnet": "10.1.0.0/24", "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "192.0.2.0/24", "gw": "10.1.0.9" }] }),
            );
            let result = bench.attach_new("c1", &conf)?.result;
            same("routes", &result["routes"], &conf["ipam"]["routes"])
        },
    ),
    check(
        "host-local/resolv-conf",
        DOCUMENTED,
        "the dns of the result is read from resolvConf",
        resolv_conf,
    ),
    check(
        "host-local/one-add-twice",
        Source::Practice("nerdctl issue 665, Nomad issue 11272"),
        "a second ADD of a living attachment is refused, and the first address stays its own",
        add_twice,
    ),
    check(
        "host-local/empty-file",
        Source::Practice("containernetworking/plugins issue 498"),
        "an empty file, as a crash leaves it, does not block an address for ever",
        empty_file,
    ),
    check(
        "host-local/old-file",
        Source::Practice("upgrades: old versions wrote the container's ID alone"),
        "an address that is reserved by ID alone passes CHECK and is released by DEL",
        old_file,
    ),
    check(
        "host-local/parallel",
        Source::Practice("many pods start at once when a node boots"),
        "100 ADDs at once get 100 addresses",
        parallel,
    ),
    check(
        "host-local/large-pool",
        Source::Practice("nodes that have given out thousands of addresses, also to containers that are long gone"),
        "among 4048 reservations ADD finds a free address, and DEL its own",
        large_pool,
    ),
    check(
        "host-local/refuses-wrong-ranges",
        DOCUMENTED,
        "a range that cannot be is refused",
        wrong_ranges,
    ),
    check(
        "host-local/disk-full",
        Source::Practice("nodes whose disk is full"),
        "an ADD that cannot write its reservation fails, and leaves none",
        disk_full,
    ),
    check(
        "host-local/gc-of-files",
        Source::Spec("section 2, GC"),
        "GC releases the addresses of attachments that are gone, and nothing else",
        gc,
    ),
    check(
        "host-local/status-used-up",
        Source::Spec("section 2, STATUS: code 50"),
        "STATUS fails with code 50 while no address is left",
        status,
    ),
    check(
        "host-local/check-lost",
        Source::Spec("section 2, CHECK"),
        "CHECK fails when the reservation is lost",
        |bench| {
            let attached = bench.attach_new("c1", &subnet("10.1.0.0/24"))?;
            bench.host.sh("rm /var/lib/cni/networks/net/10.1.0.2")?;
            bench.check(&attached)?.error()?;
            Ok(())
        },
    ),
];

/// A configuration with these keys of `ipam`.
pub(super) fn ipam(keys: Value) -> Value {
    let ipam = with(&json!({ "type": "host-local" }), keys);
    json!({ "cniVersion": "1.0.0", "name": "net", "type": "host-local", "ipam": ipam })
}

pub(super) fn subnet(subnet: &str) -> Value {
    ipam(json!({ "subnet": subnet }))
}

/// The addresses of a result.
pub(super) fn addresses(result: &Value) -> Vec<&str> {
    let ips = result["ips"].as_array().map(Vec::as_slice).unwrap_or_default();
    ips.iter().filter_map(|ip| ip["address"].as_str()).collect()
}

pub(super) fn add(bench: &Bench, id: &str, conf: &Value) -> Result<Reply, Stop> {
    // host-local does not look into the namespace.
    bench.call("ADD", id, conf)
}

pub(super) fn expect(reply: &Reply, expected: &[&str]) -> Done {
    let result = reply.result()?;
    ensure(addresses(&result) == expected, || {
        format!("expected {expected:?}, got {result}")
    })
}

fn gives(bench: &Bench, id: &str, conf: &Value, address: &str, gateway: Option<&str>) -> Done {
    let result = add(bench, id, conf)?.result()?;
    same("address", &result["ips"][0]["address"], &json!(address))?;
    same("gateway", &result["ips"][0]["gateway"], &json!(gateway))
}

fn range_and_gateway(bench: &Bench) -> Done {
    let conf = ipam(json!({ "ranges": [[{
        "subnet": "10.1.0.0/24", "rangeStart": "10.1.0.20", "rangeEnd": "10.1.0.22", "gateway": "10.1.0.21",
    }]] }));
    gives(bench, "c1", &conf, "10.1.0.20/24", Some("10.1.0.21"))?;
    gives(bench, "c2", &conf, "10.1.0.22/24", Some("10.1.0.21"))?;
    add(bench, "c3", &conf)?.error()?;
    Ok(())
}

fn two_sets(bench: &Bench) -> Done {
    let conf = ipam(json!({ "ranges": [[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "2001:db8::/64" }]] }));
    expect(&add(bench, "c1", &conf)?, &["10.1.0.2/24", "2001:db8::2/64"])
}

fn second_range(bench: &Bench) -> Done {
    let conf = ipam(json!({ "ranges": [[{ "subnet": "10.1.0.0/30" }, { "subnet": "10.9.0.0/24" }]] }));
    expect(&add(bench, "c1", &conf)?, &["10.1.0.2/30"])?;
    expect(&add(bench, "c2", &conf)?, &["10.9.0.2/24"])
}

fn round_robin(bench: &Bench) -> Done {
    let conf = subnet("10.1.0.0/29");
    for n in 2..=6 {
        expect(&add(bench, &format!("c{n}"), &conf)?, &[&format!("10.1.0.{n}/29")])?;
    }
    add(bench, "c7", &conf)?.refused_with("no IP addresses available")?;
    for id in ["c2", "c4"] {
        bench.call("DEL", id, &conf)?.silent()?;
    }
    expect(&add(bench, "c8", &conf)?, &["10.1.0.2/29"])?;
    expect(&add(bench, "c9", &conf)?, &["10.1.0.4/29"])?;
    add(bench, "c10", &conf)?.error()?;
    Ok(())
}

fn used_up(bench: &Bench) -> Done {
    let conf = subnet("10.1.0.0/30");
    expect(&add(bench, "c1", &conf)?, &["10.1.0.2/30"])?;
    add(bench, "c2", &conf)?.error()?;
    bench.call("DEL", "c1", &conf)?.silent()?;
    expect(&add(bench, "c2", &conf)?, &["10.1.0.2/30"])
}

fn reservation_file(bench: &Bench) -> Done {
    add(bench, "c1", &subnet("10.1.0.0/24"))?.result()?;
    let content = fs::read_to_string("/var/lib/cni/networks/net/10.1.0.2")?;
    ensure(content == "c1\r\neth0", || format!("the file holds {content:?}"))?;
    let last = fs::read_to_string("/var/lib/cni/networks/net/last_reserved_ip.0")?;
    same("last_reserved_ip.0", &last.as_str(), &"10.1.0.2")
}

fn resolv_conf(bench: &Bench) -> Done {
    let path = "/run/conformance/files/resolv.conf";
    fs::write(
        path,
        "nameserver 192.0.2.53\nsearch a.example b.example\ndomain c.example\noptions ndots:3\n",
    )?;
    let conf = ipam(json!({ "subnet": "10.1.0.0/24", "resolvConf": path }));
    let dns = add(bench, "c1", &conf)?.result()?["dns"].take();
    same("nameservers", &dns["nameservers"], &json!(["192.0.2.53"]))?;
    same("options", &dns["options"], &json!(["ndots:3"]))
}

fn add_twice(bench: &Bench) -> Done {
    let conf = subnet("10.1.0.0/24");
    bench.host.netns("c1")?;
    add(bench, "c1", &conf)?.result()?;
    add(bench, "c1", &conf)?.refused_with("duplicate allocation is not allowed")?;
    let other = bench.calling("ADD", "c1", &conf).with("CNI_IFNAME", "eth1");
    expect(&other.run()?, &["10.1.0.3/24"])?;
    fs::metadata("/var/lib/cni/networks/net/10.1.0.2")?;
    Ok(())
}

fn empty_file(bench: &Bench) -> Done {
    bench
        .host
        .sh("d=/var/lib/cni/networks/net; mkdir -p $d; for n in 2 3 4 5 6; do : > $d/10.1.0.$n; done")?;
    expect(&add(bench, "c1", &subnet("10.1.0.0/29"))?, &["10.1.0.2/29"])
}

fn old_file(bench: &Bench) -> Done {
    bench
        .host
        .sh("d=/var/lib/cni/networks/net; mkdir -p $d; printf oldid > $d/10.1.0.2")?;
    let prev = json!({ "cniVersion": "1.0.0", "ips": [{ "address": "10.1.0.2/24", "gateway": "10.1.0.1" }] });
    let conf = with(&subnet("10.1.0.0/24"), json!({ "prevResult": prev }));
    bench.call("CHECK", "oldid", &conf)?.silent()?;
    bench.call("DEL", "oldid", &conf)?.silent()?;
    let kept = fs::exists("/var/lib/cni/networks/net/10.1.0.2")?;
    ensure(!kept, || "the address is still reserved".to_owned())
}

fn parallel(bench: &Bench) -> Done {
    let conf = subnet("10.1.0.0/24");
    let replies: Vec<Result<Reply, Stop>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..100)
            .map(|n| {
                let call = bench.calling("ADD", &format!("c{n}"), &conf);
                scope.spawn(move || call.run())
            })
            .collect();
        threads.into_iter().flat_map(thread::ScopedJoinHandle::join).collect()
    });
    let mut given = BTreeSet::new();
    for reply in replies {
        let result = reply?.result()?;
        given.extend(addresses(&result).into_iter().map(str::to_owned));
    }
    same("different addresses", &given.len(), &100)
}

fn large_pool(bench: &Bench) -> Done {
    let directory = "/var/lib/cni/networks/net";
    fs::create_dir_all(directory)?;
    for n in 2_u32..4050 {
        let address = Ipv4Addr::from_bits(0x0a00_0000 | n);
        fs::write(format!("{directory}/{address}"), format!("other{n}\r\neth0"))?;
    }
    let conf = subnet("10.0.0.0/16");
    expect(&add(bench, "c1", &conf)?, &["10.0.15.210/16"])?;
    bench.call("DEL", "c1", &conf)?.silent()?;
    let left = bench.host.sh(&format!(
        "ls {directory} | grep -c '^10[.]'; ls {directory}/10.0.15.210 2>/dev/null || true"
    ))?;
    same("reservations", &left.as_str(), &"4048")
}

fn wrong_ranges(bench: &Bench) -> Done {
    let long = json!([[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "10.1.0.0/16" }]]);
    for (keys, text) in [
        (json!({ "subnet": "10.1.0.5/24" }), "host bits set"),
        (json!({ "subnet": "10.1.0.0/33" }), ""),
        (
            json!({ "subnet": "10.1.0.0/24", "rangeStart": "10.1.1.1" }),
            "not in network",
        ),
        (
            json!({ "subnet": "10.1.0.0/24", "rangeEnd": "10.1.1.1" }),
            "not in network",
        ),
        (json!({ "subnet": "10.1.0.0/24", "gateway": "rubbish" }), ""),
        (json!({ "ranges": [[]] }), "empty range set"),
        (json!({ "ranges": [] }), "no IP ranges specified"),
        (json!({ "ranges": long }), "overlaps"),
        (
            json!({ "ranges": [[{ "subnet": "10.1.0.0/24" }, { "subnet": "2001:db8::/64" }]] }),
            "mixed address families",
        ),
    ] {
        add(bench, "c1", &ipam(keys))?.refused_with(text)?;
    }
    let two = with(
        &ipam(json!({ "ranges": [[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "10.2.0.0/24" }]] })),
        json!({ "cniVersion": "0.2.0" }),
    );
    add(bench, "c1", &two)?.error()?;
    let kept = bench.host.sh("find /var/lib/cni -name '10.*'")?;
    ensure(kept.is_empty(), || format!("a refused ADD reserved {kept}"))
}

fn gc(bench: &Bench) -> Done {
    bench.speaks("1.1.0")?;
    let conf = with(&subnet("10.1.0.0/24"), json!({ "cniVersion": "1.1.0" }));
    for id in ["c1", "c2", "c3"] {
        add(bench, id, &conf)?.result()?;
    }
    bench.host.sh("printf old1 > /var/lib/cni/networks/net/10.1.0.50")?;
    let valid = json!([{ "containerID": "c1", "ifname": "eth0" }, { "containerID": "old1", "ifname": "eth0" }]);
    let collect = with(
        &conf,
        json!({ "cni.dev/valid-attachments": valid, "cni.dev/attachments": valid }),
    );
    bench.call("GC", "c1", &collect)?.silent()?;
    let left = bench.host.sh("cd /var/lib/cni/networks/net; ls -d 10.* | xargs")?;
    same("reserved", &left.as_str(), &"10.1.0.2 10.1.0.50")
}

fn status(bench: &Bench) -> Done {
    bench.speaks("1.1.0")?;
    let conf = with(&subnet("10.1.0.0/30"), json!({ "cniVersion": "1.1.0" }));
    bench.call("STATUS", "c1", &conf)?.silent()?;
    add(bench, "c1", &conf)?.result()?;
    bench.call("STATUS", "c1", &conf)?.refused(50)?;
    bench.call("DEL", "c1", &conf)?.silent()?;
    bench.call("STATUS", "c1", &conf)?.silent()
}

fn disk_full(bench: &Bench) -> Done {
    bench.host.sh(
        "mkdir /run/full; mount -t tmpfs -o size=64k tmpfs /run/full; mkdir /run/full/net
        dd if=/dev/zero of=/run/full/ballast bs=4k count=64 2>/dev/null || true",
    )?;
    let conf = ipam(json!({ "subnet": "10.1.0.0/24", "dataDir": "/run/full" }));
    add(bench, "c1", &conf)?.error()?;
    let kept = bench.host.sh("cd /run/full/net; ls -d 10.* 2>/dev/null || true")?;
    same("reserved by the failed ADD", &kept.as_str(), &"")?;
    bench.host.sh("rm /run/full/ballast")?;
    expect(&add(bench, "c1", &conf)?, &["10.1.0.2/24"])
}
