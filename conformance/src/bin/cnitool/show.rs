//! Telling what exists on a node: as a tree for people, as JSON for programs.

use std::net::IpAddr;

use serde_json::{Value, json};

use super::Failure;
use super::holdings::Holding;
use super::node::{Attached, Node};
use super::rules::Port;

/// Networks, their attachments, and what belongs to nobody.
pub(super) fn everything(node: &Node, as_json: bool) -> String {
    if as_json {
        return format!("{:#}\n", document(node));
    }
    let mut text = String::new();
    for (network, plugins) in &node.networks {
        let plugins = if plugins.is_empty() {
            "no configuration".to_owned()
        } else {
            plugins.join(", ")
        };
        text.push_str(&format!("{network} ({plugins})\n"));
        let own = node
            .attachments
            .iter()
            .filter(|a| &a.network == network && a.stray.is_none());
        own.for_each(|attached| text.push_str(&tree(attached)));
    }
    let strays: Vec<_> = node
        .attachments
        .iter()
        .filter(|attached| attached.stray.is_some())
        .collect();
    let nothing_else = node.stray_ports.is_empty() && node.stray_links.is_empty() && node.stray_holdings.is_empty();
    if !strays.is_empty() || !nothing_else {
        text.push_str("belongs to nobody\n");
    }
    for attached in strays {
        text.push_str(&tree(attached));
    }
    for port in &node.stray_ports {
        let network = if port.network.is_empty() {
            "a network"
        } else {
            &port.network
        };
        text.push_str(&format!("  {} for {} on {network}\n", describe(port), port.container));
    }
    for link in &node.stray_links {
        text.push_str(&format!("  interface {link}\n"));
    }
    for holding in &node.stray_holdings {
        let Holding { kind, place, owner } = holding;
        text.push_str(&format!("  {kind} for {owner} ({place})\n"));
    }
    if text.is_empty() {
        text.push_str("no network, no attachment\n");
    }
    text
}

/// Who holds an address.
///
/// # Errors
/// Nobody does.
pub(super) fn address(node: &Node, address: IpAddr, as_json: bool) -> Result<String, Failure> {
    let holders: Vec<_> = node
        .attachments
        .iter()
        .filter(|a| a.addresses.contains(&address))
        .collect();
    answer(&holders, &[], as_json).ok_or_else(|| format!("nobody holds {address}").into())
}

/// Who publishes a host port.
///
/// # Errors
/// Nobody does.
pub(super) fn port(node: &Node, number: u16, as_json: bool) -> Result<String, Failure> {
    let has = |port: &Port| port.number == number;
    let holders: Vec<_> = node.attachments.iter().filter(|a| a.ports.iter().any(has)).collect();
    let strays: Vec<_> = node.stray_ports.iter().filter(|port| has(port)).collect();
    answer(&holders, &strays, as_json).ok_or_else(|| format!("nobody publishes port {number}").into())
}

fn answer(holders: &[&Attached], strays: &[&Port], as_json: bool) -> Option<String> {
    if holders.is_empty() && strays.is_empty() {
        return None;
    }
    if as_json {
        let attachments: Vec<_> = holders.iter().map(|attached| of_attachment(attached)).collect();
        let ports: Vec<_> = strays.iter().map(|port| of_port(port)).collect();
        return Some(format!(
            "{:#}\n",
            json!({"attachments": attachments, "strayPorts": ports})
        ));
    }
    let mut text = String::new();
    for attached in holders {
        text.push_str(&format!("{}\n{}", attached.network, tree(attached)));
    }
    for port in strays {
        text.push_str(&format!("nobody any more: {} for {}\n", describe(port), port.container));
    }
    Some(text)
}

fn tree(attached: &Attached) -> String {
    let mut text = format!("  {} {}", attached.container, attached.ifname);
    if let Some(reason) = attached.stray {
        text.push_str(&format!(" of {}: {reason}", attached.network));
    }
    text.push('\n');
    let mut line = |what: &str, value: &str| text.push_str(&format!("    {what:<10}{value}\n"));
    if !attached.netns.is_empty() {
        line("namespace", &attached.netns);
    }
    for address in &attached.addresses {
        line("address", &address.to_string());
    }
    for interface in &attached.host_interfaces {
        // Named as plugins name the node's end of a container's pair of interfaces; others are bridges and the like.
        let is_veth = interface.starts_with("veth");
        line(if is_veth { "host veth" } else { "interface" }, interface);
    }
    for port in &attached.ports {
        line("port", describe(port).trim_start_matches("port "));
    }
    for holding in &attached.holdings {
        line("holds", &format!("{} ({})", holding.kind, holding.place));
    }
    text
}

fn describe(port: &Port) -> String {
    let host_ip = port.host_ip.as_ref().map(|ip| format!("{ip}:")).unwrap_or_default();
    format!("port {host_ip}{}/{} to {}", port.number, port.protocol, port.target)
}

fn document(node: &Node) -> Value {
    let networks = node
        .networks
        .iter()
        .map(|(name, plugins)| json!({"name": name, "plugins": plugins}));
    json!({
        "networks": networks.collect::<Vec<_>>(),
        "attachments": node.attachments.iter().map(of_attachment).collect::<Vec<_>>(),
        "strayPorts": node.stray_ports.iter().map(of_port).collect::<Vec<_>>(),
        "strayInterfaces": node.stray_links,
        "strayHoldings": node.stray_holdings.iter().map(of_holding).collect::<Vec<_>>(),
    })
}

fn of_attachment(attached: &Attached) -> Value {
    json!({
        "network": attached.network,
        "container": attached.container,
        "ifname": attached.ifname,
        "netns": attached.netns,
        "addresses": attached.addresses,
        "hostInterfaces": attached.host_interfaces,
        "ports": attached.ports.iter().map(of_port).collect::<Vec<_>>(),
        "holdings": attached.holdings.iter().map(of_holding).collect::<Vec<_>>(),
        "stray": attached.stray,
    })
}

fn of_holding(holding: &Holding) -> Value {
    json!({ "kind": holding.kind, "place": holding.place, "owner": holding.owner.to_string() })
}

fn of_port(port: &Port) -> Value {
    json!({
        "protocol": port.protocol,
        "hostIP": port.host_ip,
        "hostPort": port.number,
        "target": port.target,
        "network": port.network,
        "container": port.container,
    })
}
