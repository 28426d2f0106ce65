//! What the reference suite's nftables backend left behind.
//!
//! Its masquerading says in a comment whose it is: a hash of the network, then one of interface and container. Its port
//! mappings bear the container's ID and nothing else, though another network's may bear the same; of those, only what
//! leads to the attachment's addresses is its own.
//!
//! CHECK looks for what makes the traffic flow: a container that the reference attached is as it should be.

use std::collections::BTreeSet;
use std::net::IpAddr;

use cni_types::{Attachment, ContainerId, Error, IfName, NetworkName, Result};
use nft::{Connection, Family as WireFamily, RuleState, Table};
use sha2::{Digest, Sha512};

use super::kernel_error;
use super::owner::hex;
use super::rules::{address_bytes, address_size, wire_family};
use super::transaction::transact;
use crate::Family;
use crate::masquerade::Masquerade;
use crate::portmap::{Hints, Published};

/// The first sixteen hexadecimal digits of a text's SHA-512.
fn hash(text: &str) -> String {
    hex(Sha512::digest(text).get(..8).unwrap_or_default())
}

fn interface_hash(container_id: &ContainerId, ifname: &IfName) -> String {
    hash(&format!("{ifname}:{container_id}"))
}

/// Removes the rules of a table that `is_ours` picks from all of its rules. A table that is not there is not made.
fn remove(table: &Table, is_ours: impl Fn(&[RuleState], &RuleState) -> bool) -> Result<()> {
    let mut connection = Connection::open().map_err(kernel_error)?;
    if !connection.has_table(table).map_err(kernel_error)? {
        return Ok(());
    }
    transact(&mut connection, table, |connection, batch| {
        let rules = connection.all_rules(table).map_err(kernel_error)?;
        for rule in rules.iter().filter(|rule| is_ours(&rules, rule)) {
            batch.delete_rule(table, &rule.chain, rule.handle);
        }
        Ok(())
    })
}

fn masquerade_table() -> Table {
    Table::new(WireFamily::Inet, "cni_plugins_masquerade")
}

fn comment(rule: &RuleState) -> &str {
    rule.user_data.comment.as_deref().unwrap_or_default()
}

/// Removes an attachment's masquerading.
pub(super) fn del_masquerade(attachment: &Attachment) -> Result<()> {
    let prefix = masquerade_prefix(attachment);
    remove(&masquerade_table(), |_, rule| comment(rule).starts_with(&prefix))
}

/// What the comments of an attachment's masquerading begin with.
fn masquerade_prefix(attachment: &Attachment) -> String {
    let interface = interface_hash(&attachment.container_id, &attachment.ifname);
    format!("{}-{interface}", hash(attachment.network.as_str()))
}

/// Removes the masquerading of every attachment of a network that is not valid.
pub(super) fn gc_masquerade(network: &NetworkName, valid: &BTreeSet<(ContainerId, IfName)>) -> Result<()> {
    let prefix = format!("{}-", hash(network.as_str()));
    let valid: BTreeSet<String> = valid.iter().map(|(id, ifname)| interface_hash(id, ifname)).collect();
    remove(&masquerade_table(), |_, rule| {
        let rest = comment(rule).strip_prefix(&prefix);
        rest.and_then(|rest| rest.get(..16))
            .is_some_and(|interface| !valid.contains(interface))
    })
}

/// Looks for the reference's rule for each mapping and family.
///
/// # Errors
///
/// The first mapping without one.
pub(super) fn check_portmap(attachment: &Attachment, published: &Published) -> Result<()> {
    let mut connection = Connection::open().map_err(kernel_error)?;
    for family in Family::BOTH {
        let Some(container) = published.address(family) else {
            continue;
        };
        let table = Table::new(wire_family(family), "cni_hostport");
        let rules = connection.all_rules(&table).map_err(kernel_error)?;
        for mapping in published.mappings.iter().filter(|mapping| mapping.applies_to(family)) {
            let address = address_bytes(container.address());
            let leads_there = |rule: &&RuleState| {
                is_of(attachment, rule)
                    && compares(rule, &[mapping.protocol.number()])
                    && compares(rule, &mapping.host_port.to_be_bytes())
                    && mapping.exact_ip().is_none_or(|ip| compares(rule, &address_bytes(ip)))
                    && rule.loaded_constants().contains(&address)
                    && rule
                        .loaded_constants()
                        .contains(&mapping.container_port.to_be_bytes().to_vec())
            };
            if mapping.host_port != mapping.host_port_end || !rules.iter().any(|rule| leads_there(&rule)) {
                let port = mapping.host_port;
                return Err(Error::internal(format!(
                    "{table} has no rule of {attachment} for port {port}"
                )));
            }
        }
    }
    Ok(())
}

/// Looks for the reference's rule for each address.
///
/// # Errors
///
/// The first address without one.
pub(super) fn check_masquerade(attachment: &Attachment, masquerade: &Masquerade) -> Result<()> {
    let mut connection = Connection::open().map_err(kernel_error)?;
    let table = masquerade_table();
    let rules = connection.all_rules(&table).map_err(kernel_error)?;
    let prefix = masquerade_prefix(attachment);
    let is_masqueraded = |ip: IpAddr| {
        let mut own = rules.iter().filter(|rule| comment(rule).starts_with(&prefix));
        own.any(|rule| compares(rule, &address_bytes(ip)))
    };
    let mut addresses = masquerade.addresses.iter().map(|cidr| cidr.address());
    match addresses.find(|ip| !is_masqueraded(*ip)) {
        None => Ok(()),
        Some(ip) => Err(Error::internal(format!("{table} has no rule of {attachment} for {ip}"))),
    }
}

/// Removes an attachment's port mappings. GC has no such thing: they name no network.
pub(super) fn del_portmap(attachment: &Attachment, hints: &Hints) -> Result<()> {
    crate::sweep::together(Family::BOTH.map(|family| {
        let table = Table::new(wire_family(family), "cni_hostport");
        remove(&table, |rules, rule| {
            is_of(attachment, rule)
                && addresses(attachment, hints, family, rules)
                    .iter()
                    .any(|a| holds(rule, a))
        })
    }))
}

fn is_of(attachment: &Attachment, rule: &RuleState) -> bool {
    comment(rule) == attachment.container_id.as_str()
}

/// The attachment's addresses: as hinted, else where the container's rules for its host ports lead to.
fn addresses(attachment: &Attachment, hints: &Hints, family: Family, rules: &[RuleState]) -> Vec<Vec<u8>> {
    if !hints.addresses.is_empty() {
        let of_family = hints.addresses.iter().filter(|ip| Family::of(**ip) == family);
        return of_family.map(|ip| address_bytes(*ip)).collect();
    }
    let for_ports = rules.iter().filter(|rule| is_of(attachment, rule)).filter(|rule| {
        hints
            .host_ports
            .iter()
            .any(|(protocol, port)| holds(rule, &[protocol.number()]) && compares(rule, &port.to_be_bytes()))
    });
    for_ports
        .flat_map(|rule| rule.loaded_constants())
        .filter(|value| value.len() == usize::from(address_size(family)))
        .collect()
}

fn holds(rule: &RuleState, value: &[u8]) -> bool {
    compares(rule, value) || rule.loaded_constants().iter().any(|constant| constant == value)
}

fn compares(rule: &RuleState, value: &[u8]) -> bool {
    rule.compared_constants().iter().any(|constant| constant == value)
}
