//! Plugins that let others do the work: flannel and multus. They are not ours; what they hand on to our plugins is.

use std::fs;
use std::path::Path;

use conformance::conf::{ConfError, NetworkConf};
use serde::Deserialize;
use serde_json::Value;

use crate::directory;
use crate::networks::published;
use crate::site::{Attached, Site};

/// What a container has that flannel's delegate attached: the way to all nodes' containers, and room for encapsulation.
pub(crate) fn routed_by_flannel(site: &Site, attached: &Attached) {
    for gateway in attached.gateways() {
        site.reaches(&attached.name, &gateway);
    }
    let routes = site.sh_in(&attached.name, "ip route");
    assert!(routes.contains("10.244.0.0/16 via 10.244.1.1"), "{routes}");
    let link = site.sh_in(&attached.name, "ip -o link show dev eth0");
    assert!(link.contains("mtu 1450"), "{link}");
    let rules = site.sh("nft list ruleset");
    assert!(!rules.contains("masquerade"), "flannel's daemon masquerades: {rules}");
}

/// The same in its chain, whose portmap gets the delegate's result.
pub(crate) fn published_and_routed_by_flannel(site: &Site, attached: &Attached) {
    published(site, attached);
    for gateway in attached.gateways() {
        site.reaches(&attached.name, &gateway);
    }
}

/// The first of the delegates in multus' configuration: the cluster's network, which every pod gets as eth0.
pub(crate) fn first_delegate(path: &Path) -> Result<NetworkConf, ConfError> {
    let conf: Value = serde_json::from_slice(&fs::read(path).unwrap())?;
    NetworkConf::parse(conf["delegates"][0].to_string().as_bytes())
}

/// A NetworkAttachmentDefinition, as far as multus reads it.
#[derive(Deserialize)]
struct Definition {
    kind: String,
    spec: Spec,
}

#[derive(Deserialize)]
struct Spec {
    config: String,
}

fn storage() -> NetworkConf {
    let text = fs::read_to_string(directory().join("multus/storage-net.yaml")).unwrap();
    let definition: Definition = serde_saphyr::from_str(&text).unwrap();
    assert_eq!(definition.kind, "NetworkAttachmentDefinition");
    NetworkConf::parse(definition.spec.config.as_bytes()).unwrap()
}

pub(crate) fn storage_has_been_used(site: &Site) {
    site.detach(&site.attach(&storage(), "neighbour"));
}

/// multus attaches the same container again, as net1, to the network that a pod's annotation names.
pub(crate) fn with_a_second_interface(site: &Site, attached: &Attached) {
    let attach = |name: &str| site.attach_as(&storage(), name, "net1").unwrap();
    let (own, other) = (attach(&attached.name), attach("other-pod"));
    site.check(&own);
    let other_address = other.addresses()[0].split('/').next().unwrap().to_owned();
    site.reaches(&attached.name, &other_address);
    let way = site.sh_in(&attached.name, &format!("ip route get {other_address}"));
    assert!(way.contains("dev net1"), "{way}");
    for gateway in attached.gateways() {
        site.reaches(&attached.name, &gateway);
    }
    site.detach(&other);
    site.detach(&own);
    published(site, attached);
}
