//! Addresses that are the whole cluster's: subnets per node, and IPAM plugins that are not ours.

use conformance::conf::NetworkConf;
use testkit::World;

use crate::networks::network;
use crate::node::Node;
use crate::site::{Attached, OUTSIDE, Site};

/// Plays whereabouts: one address of the range that it is configured with, remembered in a file until DEL.
pub(crate) const WHEREABOUTS: &str = r#"
conf=$(cat)
held=/run/whereabouts-$CNI_CONTAINERID
case $CNI_COMMAND in
ADD)
    if [ -e /run/whereabouts-is-full ]; then
        echo '{"cniVersion":"1.0.0","code":11,"msg":"Could not allocate IP in range"}'
        exit 1
    fi
    : > "$held"
    echo "$conf" | jq '{cniVersion, ips: [{address: "192.168.60.33/24", gateway: .ipam.gateway}], routes: .ipam.routes}'
    ;;
CHECK) [ -e "$held" ] ;;
DEL) rm -f "$held" ;;
esac"#;

/// The other machine is a node too, with containers in 10.96.8.0/24.
pub(crate) fn other_node(site: &Site) {
    site.sh("
        ip route add 10.96.8.0/24 via 192.0.2.2
        ip -n client address add 10.96.8.2/32 dev lo
        ip -n client route add 10.96.7.0/24 via 192.0.2.1
    ");
}

/// Containers of other nodes see the container's own address, everybody else sees the node's.
pub(crate) fn masquerades_only_what_leaves_the_cluster(site: &Site, attached: &Attached) {
    // Answers are refused to the wrong source, not counted by it.
    site.sh_in(
        "client",
        "nft add table ip seen
         nft add chain ip seen input '{ type filter hook input priority 0; }'
         nft add rule ip seen input ip daddr 10.96.8.2 ip saddr != 10.96.7.0/24 drop
         nft add rule ip seen input ip daddr 192.0.2.2 ip saddr != 192.0.2.1 drop",
    );
    site.reaches(&attached.name, "10.96.8.2");
    site.reaches(&attached.name, OUTSIDE[0]);
    site.sh_in("client", "nft delete table ip seen");
}

/// The wire is a port of a bridge that the administrator made, and the other machine is the LAN's router.
pub(crate) fn lan(site: &Site) {
    site.sh("
        ip link add lan0 type bridge
        ip link set lan0 up
        ip link set wire master lan0
        ip -n client address add 192.168.60.1/24 dev eth0
    ");
}

pub(crate) fn is_a_station_of_the_lan(site: &Site, attached: &Attached) {
    site.reaches(&attached.name, "192.168.60.1");
    let routes = site.sh_in(&attached.name, "ip route");
    assert!(routes.contains("default via 192.168.60.1"), "{routes}");
    assert!(held(site).contains(&attached.name), "{}", held(site));
    let addresses = site.sh("ip -4 -o address show dev lan0");
    assert_eq!(addresses, "", "the node is no gateway here");
}

fn held(site: &Site) -> String {
    site.sh("ls /run | grep ^whereabouts- || true")
}

fn with_foreign_ipam(test: impl FnOnce(&Site, &NetworkConf) + Send) {
    testkit::world(|world: &World| {
        let site = Site::new(world);
        lan(&site);
        site.stand_in("whereabouts", WHEREABOUTS);
        test(&site, &network("cluster-addressing/20-lan-whereabouts.conflist"));
    });
}

#[test]
fn del_reaches_a_foreign_ipam() {
    with_foreign_ipam(|site, conf| {
        let attached = site.attach(conf, "pod");
        assert_eq!(held(site), "whereabouts-pod");
        site.detach(&attached);
        assert_eq!(held(site), "");
    });
}

#[test]
fn check_asks_a_foreign_ipam() {
    with_foreign_ipam(|site, conf| {
        let attached = site.attach(conf, "pod");
        site.check(&attached);
        site.sh("rm /run/whereabouts-pod");
        let refused = site.refused_check(&attached);
        assert!(refused.contains("bridge"), "{refused}");
        site.detach(&attached);
    });
}

#[test]
fn a_foreign_ipam_that_refuses_is_quoted_and_nothing_stays() {
    with_foreign_ipam(|site, conf| {
        site.detach(&site.attach(conf, "earlier"));
        let before = Node::look();
        site.sh("touch /run/whereabouts-is-full");
        let refused = site
            .attach_as(conf, "pod", "eth0")
            .err()
            .expect("a refusal")
            .to_string();
        assert!(refused.contains("Could not allocate IP in range"), "{refused}");
        let left = Node::look().beyond(&before);
        assert!(left.is_empty(), "{left:#?}");
        assert_eq!(site.sh_in("pod", "ip -brief link | cut -d ' ' -f 1"), "lo");
        assert_eq!(held(site), "whereabouts-is-full");
    });
}
