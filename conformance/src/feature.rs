//! What a check needs of the machine: asked of the kernel by trying it out, never of version numbers.

use std::sync::OnceLock;

use crate::host::Host;

/// Something that a kernel or a system may lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feature {
    /// The program iptables, on a kernel that has its tables.
    Iptables,
    /// The program nft, on a kernel with nf_tables.
    Nft,
    /// socat, for servers and clients.
    Traffic,
    /// VLAN filtering of bridges.
    BridgeVlanFiltering,
    /// IPv6.
    Ipv6,
    /// Interfaces of the type dummy.
    Dummy,
    /// Interfaces of the type ipvlan.
    Ipvlan,
    /// Interfaces of the type macvlan.
    Macvlan,
    /// Interfaces of the type vlan.
    Vlan,
    /// Interfaces of the type vrf.
    Vrf,
    /// Packets that stay on a bridge pass the rules of iptables, as the module br_netfilter makes them.
    BridgeNetfilter,
}

impl Feature {
    /// All of them, in the order of their declaration.
    pub const ALL: [Feature; 11] = [
        Feature::Iptables,
        Feature::Nft,
        Feature::Traffic,
        Feature::BridgeVlanFiltering,
        Feature::Ipv6,
        Feature::Dummy,
        Feature::Ipvlan,
        Feature::Macvlan,
        Feature::Vlan,
        Feature::Vrf,
        Feature::BridgeNetfilter,
    ];

    /// What is missing where the feature is.
    pub fn describe(self) -> &'static str {
        match self {
            Feature::Iptables => "iptables does not work on this machine",
            Feature::Nft => "nft does not work on this machine",
            Feature::Traffic => "socat is not installed",
            Feature::BridgeVlanFiltering => "this kernel has no bridge VLAN filtering",
            Feature::Ipv6 => "this kernel has no IPv6",
            Feature::Dummy => "this kernel has no dummy interfaces",
            Feature::Ipvlan => "this kernel has no ipvlan interfaces",
            Feature::Macvlan => "this kernel has no macvlan interfaces",
            Feature::Vlan => "this kernel has no VLAN interfaces",
            Feature::Vrf => "this kernel has no vrf interfaces",
            Feature::BridgeNetfilter => "this kernel has no br_netfilter",
        }
    }

    /// Whether the feature is there. It is tried out on `host`, which has nothing of it afterwards, and once only.
    pub fn is_there(self, host: &Host) -> bool {
        static KNOWN: [OnceLock<bool>; Feature::ALL.len()] = [const { OnceLock::new() }; Feature::ALL.len()];
        let try_out = || host.try_sh(self.script()).is_ok_and(|output| output.status.success());
        match KNOWN.get(self as usize) {
            Some(known) => *known.get_or_init(try_out),
            None => try_out(),
        }
    }

    fn script(self) -> &'static str {
        match self {
            Feature::Iptables => "unshare -n iptables -t nat -L -n",
            Feature::Nft => "unshare -n nft list ruleset",
            Feature::Traffic => "command -v socat ss nsenter",
            Feature::BridgeVlanFiltering => "unshare -n ip link add name b type bridge vlan_filtering 1",
            Feature::Ipv6 => "unshare -n sh -c 'ip link set lo up; ip -6 addr show dev lo | grep ::1'",
            Feature::Dummy => "unshare -n ip link add name d type dummy",
            Feature::Ipvlan => "unshare -n sh -ec 'ip link add v type veth; ip link add link v name i type ipvlan'",
            Feature::Macvlan => "unshare -n sh -ec 'ip link add v type veth; ip link add link v name m type macvlan'",
            Feature::Vlan => "unshare -n sh -ec 'ip link add v type veth; ip link add link v name l type vlan id 5'",
            Feature::Vrf => "unshare -n ip link add name v type vrf table 10",
            Feature::BridgeNetfilter => "test -e /proc/sys/net/bridge/bridge-nf-call-iptables",
        }
    }
}
