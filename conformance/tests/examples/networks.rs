//! The networks under examples/, and what each of them is for: the traffic that must pass, and the traffic that must not.

use std::path::Path;

use conformance::conf::{ConfError, NetworkConf};

use crate::cluster;
use crate::directory;
use crate::meta;
use crate::site::{Attached, HOST_PORT, NODE, OUTSIDE, Site};

/// A file under examples/ and how it is run.
pub(crate) struct Example {
    /// Its path from there.
    pub(crate) file: &'static str,
    /// Gets from the file to the network.
    pub(crate) load: fn(&Path) -> Result<NetworkConf, ConfError>,
    /// What the node has that the example rests on.
    pub(crate) node: fn(&Site),
    /// Plugins that are not ours, and shell scripts that play their part; `$EXAMPLE` is the example's directory.
    pub(crate) foreign: &'static [(&'static str, &'static str)],
    /// The addresses of the first container.
    pub(crate) addresses: &'static [&'static str],
    /// Looks at an attached container, whose published port is [`HOST_PORT`] where the network has portmap.
    pub(crate) probe: fn(&Site, &Attached),
}

const PLAIN: Example = Example {
    file: "",
    load: NetworkConf::load,
    node: |_| {},
    foreign: &[],
    addresses: &[],
    probe: gateway_outside_and_port,
};

pub(crate) const NETWORKS: &[Example] = &[
    Example {
        file: "cluster-addressing/10-node-subnet.conflist",
        node: cluster::other_node,
        addresses: &["10.96.7.2/24"],
        probe: cluster::masquerades_only_what_leaves_the_cluster,
        ..PLAIN
    },
    Example {
        file: "cluster-addressing/20-lan-whereabouts.conflist",
        node: cluster::lan,
        foreign: &[("whereabouts", cluster::WHEREABOUTS)],
        addresses: &["192.168.60.33/24"],
        probe: cluster::is_a_station_of_the_lan,
        ..PLAIN
    },
    Example {
        file: "containerd/10-ferrule.conflist",
        addresses: &["10.88.0.2/16"],
        ..PLAIN
    },
    Example {
        file: "cri-o/11-crio-ipv4-bridge.conflist",
        addresses: &["10.85.0.2/16"],
        probe: gateway_and_outside,
        ..PLAIN
    },
    Example {
        file: "dual-stack/10-dual-stack.conflist",
        addresses: &["10.91.0.2/24", "fd00:91::2/64"],
        ..PLAIN
    },
    Example {
        file: "ecs-agent/10-task-credentials.conflist",
        node: agent_with_credentials,
        addresses: &["169.254.172.2/22"],
        probe: reaches_credentials_and_nothing_else,
        ..PLAIN
    },
    Example {
        file: "firecracker/fcnet.conflist",
        foreign: &[(
            "tc-redirect-tap",
            "[ $CNI_COMMAND = ADD ] || exec cat > /dev/null; exec jq .prevResult",
        )],
        addresses: &["192.168.127.2/24"],
        probe: routed_with_the_nodes_resolver,
        ..PLAIN
    },
    Example {
        file: "flannel/10-flannel.conflist",
        // What flannel adds to its delegate comes from /run/flannel/subnet.env; the outcome is in the file.
        foreign: &[(
            "flannel",
            "cat > /dev/null; exec /opt/cni/bin/bridge < $EXAMPLE/delegate.conf",
        )],
        addresses: &["10.244.1.2/24"],
        probe: meta::published_and_routed_by_flannel,
        ..PLAIN
    },
    Example {
        file: "flannel/delegate.conf",
        addresses: &["10.244.1.2/24"],
        probe: meta::routed_by_flannel,
        ..PLAIN
    },
    Example {
        file: "host-port/10-host-port.conflist",
        addresses: &["10.93.0.2/24"],
        probe: published_on_every_way,
        ..PLAIN
    },
    Example {
        file: "ipv6-only/10-ipv6-only.conflist",
        addresses: &["fd00:92::2/64"],
        ..PLAIN
    },
    Example {
        file: "isolated-bridges/tenant-a.conflist",
        node: |site| come_and_go(site, "isolated-bridges/tenant-b.conflist"),
        addresses: &["10.94.0.2/24"],
        probe: apart_from_the_other_tenant,
        ..PLAIN
    },
    Example {
        file: "isolated-bridges/tenant-b.conflist",
        addresses: &["10.95.0.2/24"],
        ..PLAIN
    },
    Example {
        file: "multus/00-multus.conf",
        load: meta::first_delegate,
        node: meta::storage_has_been_used,
        addresses: &["10.90.0.2/24"],
        probe: meta::with_a_second_interface,
        ..PLAIN
    },
    Example {
        file: "nerdctl/nerdctl-bridge.conflist",
        addresses: &["10.4.0.2/24"],
        ..PLAIN
    },
    Example {
        file: "nomad/10-nomad.conflist",
        addresses: &["172.26.64.2/20"],
        probe: administered_through_a_chain,
        ..PLAIN
    },
    Example {
        file: "podman/87-podman-bridge.conflist",
        addresses: &["10.88.0.2/16"],
        ..PLAIN
    },
    Example {
        file: "podman/88-backend.conflist",
        addresses: &["10.89.0.2/24"],
        ..PLAIN
    },
    Example {
        file: "quickstart/10-quickstart.conflist",
        addresses: &["10.88.0.2/24"],
        ..PLAIN
    },
];

/// Loads another network of the examples.
pub(crate) fn network(file: &str) -> NetworkConf {
    NetworkConf::load(&directory().join(file)).unwrap()
}

/// Makes what a network leaves for all that use it.
fn come_and_go(site: &Site, file: &str) {
    site.detach(&site.attach(&network(file), "neighbour"));
}

/// Of both machines' addresses, those of the families that the container has.
fn of_its_families(attached: &Attached, addresses: [&'static str; 2]) -> Vec<&'static str> {
    let own = attached.addresses().concat();
    let has = |address: &&str| own.contains(if address.contains(':') { ':' } else { '.' });
    addresses.into_iter().filter(has).collect()
}

fn gateway_outside_and_port(site: &Site, attached: &Attached) {
    gateway_and_outside(site, attached);
    published(site, attached);
}

/// Every gateway answers, and the other machine does although it knows no way back.
fn gateway_and_outside(site: &Site, attached: &Attached) {
    for gateway in attached.gateways() {
        site.reaches(&attached.name, &gateway);
    }
    for outside in of_its_families(attached, OUTSIDE) {
        site.reaches(&attached.name, outside);
    }
}

/// The other machine gets the container's page from the node's published port.
pub(crate) fn published(site: &Site, attached: &Attached) {
    let page = format!("page of {}", attached.name);
    site.serve(&attached.name, &page);
    for node in of_its_families(attached, NODE) {
        let url = if node.contains(':') {
            format!("[{node}]:{HOST_PORT}")
        } else {
            format!("{node}:{HOST_PORT}")
        };
        site.fetches(Some("client"), &url, &page);
    }
}

fn published_on_every_way(site: &Site, attached: &Attached) {
    gateway_outside_and_port(site, attached);
    let (page, port) = (format!("page of {}", attached.name), HOST_PORT);
    let node = NODE[0];
    site.fetches(None, &format!("127.0.0.1:{port}"), &page);
    site.fetches(None, &format!("{node}:{port}"), &page);
    site.fetches(Some(&attached.name), &format!("{node}:{port}"), &page);
    let other = site.attach(&without_portmap(&attached.conf), "neighbour");
    site.fetches(Some(&other.name), &format!("{node}:{port}"), &page);
    site.detach(&other);
}

/// The network for another container at the same time: it cannot publish the same port.
fn without_portmap(conf: &NetworkConf) -> NetworkConf {
    let mut conf = conf.clone();
    conf.plugins.retain(|plugin| plugin.plugin_type != "portmap");
    conf
}

fn agent_with_credentials(site: &Site) {
    site.sh("ip address add 169.254.170.2/32 dev lo");
}

fn reaches_credentials_and_nothing_else(site: &Site, attached: &Attached) {
    site.reaches(&attached.name, "169.254.170.2");
    assert!(
        !site.pings(&attached.name, OUTSIDE[0]),
        "the task has its own interface for that"
    );
    let routes = site.sh_in(&attached.name, "ip route");
    assert!(!routes.contains("default"), "{routes}");
}

fn routed_with_the_nodes_resolver(site: &Site, attached: &Attached) {
    assert_eq!(
        attached.result["dns"]["nameservers"][0], "192.0.2.53",
        "{}",
        attached.result
    );
    gateway_and_outside(site, attached);
    let bridges = site.sh("ip -brief link show type bridge");
    assert_eq!(bridges, "", "ptp needs no bridge");
}

fn apart_from_the_other_tenant(site: &Site, attached: &Attached) {
    site.reaches(&attached.name, OUTSIDE[0]);
    let address = |of: &Attached| of.addresses()[0].split('/').next().unwrap().to_owned();
    let same = site.attach(&without_portmap(&attached.conf), "same-tenant");
    site.reaches(&attached.name, &address(&same));
    site.detach(&same);

    let tenant_b = without_portmap(&network("isolated-bridges/tenant-b.conflist"));
    let other = site.attach(&tenant_b, "other-tenant");
    // That it could be reached is what the test would miss otherwise.
    site.serve(&other.name, "page of the other tenant");
    site.reaches(&other.name, OUTSIDE[0]);
    assert!(
        !site.pings(&attached.name, &address(&other)),
        "a way to the other tenant"
    );
    assert_eq!(
        site.fetch(Some(&attached.name), &address(&other)),
        None,
        "a way to the other tenant"
    );
    published(site, attached);
    let port = format!("{}:{HOST_PORT}", NODE[0]);
    assert_eq!(
        site.fetch(Some(&other.name), &port),
        None,
        "a way by the published port"
    );
    site.detach(&other);
}

/// Nomad's chain stands before everything that the firewall accepts.
fn administered_through_a_chain(site: &Site, attached: &Attached) {
    gateway_outside_and_port(site, attached);
    site.sh("iptables -I NOMAD-ADMIN -d 192.0.2.2 -j DROP");
    assert!(!site.pings(&attached.name, OUTSIDE[0]), "NOMAD-ADMIN is not asked");
    site.sh("iptables -F NOMAD-ADMIN");
    site.reaches(&attached.name, OUTSIDE[0]);
}
