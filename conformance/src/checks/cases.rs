//! Situations that users were in, numbered, and the checks that put plugins into them.
//!
//! A case is what somebody reported or published; a check is a rule. A report often touches several rules, and a rule many reports.

/// A situation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Case {
    /// `C` and a number, for `--only`.
    pub number: &'static str,
    /// What it is about.
    pub title: &'static str,
    /// The checks by ID; one that ends in `*` stands for all that begin so.
    pub checks: &'static [&'static str],
    /// What of it no check asks for, and why; empty where all of it is.
    pub left_out: &'static str,
}

const fn case(number: &'static str, title: &'static str, checks: &'static [&'static str]) -> Case {
    Case {
        number,
        title,
        checks,
        left_out: "",
    }
}

impl Case {
    const fn without(mut self, left_out: &'static str) -> Case {
        self.left_out = left_out;
        self
    }
}

/// All of them.
pub const CASES: &[Case] = &[
    case(
        "C01",
        "Nomad's chain of four plugins",
        &["networks/nomad", "networks/nomad-result-and-files", "networks/nomad-rules"],
    ),
    case("C02", "containerd's network in both families", &[
        "networks/containerd",
        "networks/containerd-dual-stack",
        "bridge/dual-stack",
    ])
    .without("how long ADD takes is measured by `bench`"),
    case("C04", "what flannel and k3s delegate", &["bridge/as-flannel-delegates"]),
    case("C05", "a single configuration at 1.0.0", &["bridge/result", "result/1.0.0"]),
    case("C06", "the result at each version", &["result/*"]),
    case("C07", "portmap after a plugin of another author", &["portmap/foreign-result"]),
    case("C09", "nerdctl's chain with isolation", &["networks/nerdctl-isolation", "firewall/same-bridge"]),
    case("C10", "Firecracker's ptp", &["networks/firecracker", "ptp/*"]),
    case("C12", "DEL without a namespace cleans masquerading", &[
        "del/leaves-nothing-without-namespace",
        "del/leaves-nothing-with-neither",
        "bridge/masquerade-nftables-del-without-namespace",
    ]),
    case("C13", "DEL after the namespace's path has vanished", &["del/leaves-nothing-after-the-namespace"]),
    case("C15", "DEL of what never was, by every plugin", &["del/never-added-*", "del/twice"]),
    case("C16", "vlan's DEL after the master was removed", &["vlan/del-without-master"]),
    case("C17", "host-device after a reboot", &["host-device/*"]),
    case("C20", "a failed ADD undoes itself", &[
        "bridge/failed-add-repeated",
        "bridge/wrong-backend",
        "add/missing-namespace",
        "delegation/failed-add-is-undone",
    ]),
    case("C21", "macvlan with an IPAM that fails", &["macvlan/failed-ipam", "delegation/error-is-passed-on"]),
    case("C22", "empty reservation files", &["host-local/empty-file"]),
    case("C23", "ADD killed at any moment", &["crash/killed-add"]),
    case("C24", "a full disk", &["host-local/disk-full"]),
    case("C25", "the same ADD twice", &["bridge/second-add-in-another-namespace", "host-local/one-add-twice"]),
    case("C27", "reservations by ID alone", &["host-local/old-file"]),
    case("C28", "GC", &["gc/*", "host-local/gc-of-files", "delegation/gc", "version/no-gc-before-1.1.0"]),
    case("C29", "STATUS", &[
        "status/ready",
        "host-local/status-used-up",
        "delegation/status",
        "version/no-status-before-1.1.0",
    ]),
    case("C30", "a vrf or an interface that goes before DEL", &["vrf/*"]),
    case("C31", "what macspoofchk leaves", &["bridge/mac-spoof-check"]),
    case("C33", "the plugin's own namespace", &[
        "parameters/own-namespace",
        "errors/8-own-namespace",
        "loopback/own-namespace-on-del",
        "bridge/own-namespace-on-del",
    ]),
    case("C34", "addresses in turn", &["host-local/round-robin"]),
    case("C35", "ranges that cannot be", &["host-local/refuses-wrong-ranges"]),
    case("C36", "addresses that are asked for", &[
        "host-local/requested-*",
        "host-local/unknown-cni-args",
        "host-local/ips-capability",
        "host-local/args-ips",
        "host-local/cni-args-ip",
    ]),
    case("C39", "100 allocations at once, by one suite and by two", &[
        "host-local/parallel",
        "mixed/parallel-addresses",
    ]),
    case("C40", "thousands of reservations", &["host-local/large-pool"])
        .without("how long ADD and DEL take is measured by `bench`"),
    case("C42", "another address on the bridge", &["bridge/force-address"]),
    case("C43", "100 containers when a node boots", &["storms/nomad-at-boot", "bridge/many-at-once"])
        .without("how long that takes is measured by `bench`"),
    case("C44", "how many programs a container costs", &[
        "storms/programs-of-one-container",
        "portmap/nothing-to-do",
    ]),
    case("C45", "CHECK of a bridge without IPAM", &["bridge/layer-2-check"]),
    case("C46", "what CHECK finds", &["bridge/check-*", "check/interface-gone"]),
    case("C48", "options that exclude each other", &["bridge/refuses-contradictions", "bridge/not-a-bridge"]),
    case("C49", "malformed configurations", &[
        "parameters/malformed-values",
        "parameters/too-large-a-configuration",
        "parameters/broken-utf-8",
        "parameters/large-configuration",
    ]),
    case("C52", "who reaches a published port", &["portmap/reached-*", "portmap/udp-*"]),
    case("C53", "a published port and a neighbour's own", &["portmap/not-a-neighbours-*", "portmap/host-ip-*"]),
    case("C54", "a mapping whose container is gone", &["portmap/stale-mapping-*"]),
    case("C56", "one container on two networks", &["portmap/two-networks-*", "portmap/two-interfaces-*"]),
    case("C58", "port mappings that cannot be", &[
        "portmap/refuses-*",
        "portmap/upper-case-protocol",
        "chain/needs-prev-result",
    ]),
    case("C59", "twenty ports", &["portmap/twenty-ports"]),
    case("C60", "DEL with a configuration that was changed", &[
        "portmap/del-with-another-backend",
        "portmap/del-without-mappings",
    ]),
    case("C63", "portmap's CHECK", &["portmap/check-*"]),
    case("C64", "firewall's backends", &[
        "firewall/unknown-backend",
        "firewall/empty-backend",
        "firewall/without-ip6tables",
        "firewall/without-iptables",
    ])
    .without("that 0.3.1 is refused is the reference's choice, and not asked of others"),
    case("C65", "firewall's DEL without prevResult", &["firewall/del-without-prev-result"]),
    case("C66", "forwarding forbidden by default, and isolation", &[
        "firewall/forward-policy-drop",
        "firewall/podman-behind-drop",
        "firewall/open-traffic",
        "firewall/same-bridge-traffic",
        "firewall/isolated-traffic",
    ]),
    case("C69", "tuning", &["tuning/*"]),
    case("C71", "dns of IPAM", &["delegation/dns-is-passed-on", "host-local/resolv-conf"]),
    case("C74", "the dhcp daemon", &["dhcp/del-without-daemon"])
        .without("renewal after a restart needs a DHCP server and minutes of waiting, and no suite but the reference has the plugin"),
    case("C75", "protocol errors", &["parameters/*", "version/*"]),
    case("C76", "a node that is upgraded", &["mixed/*"]),
];
