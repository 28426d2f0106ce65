//! Port mappings with conditions in nft's own syntax.
//!
//! Only `nft` can read them, so here, and nowhere else in this backend, a program is started. An attachment's mappings with
//! conditions are rules in a chain of its own. The chain, the jump to it and the attachment's record come first, in one
//! batch; the rules follow in one of nft's. Whoever dies in between leaves a chain without rules, which DEL finds.

use std::io::{ErrorKind, Write};
use std::net::IpAddr;
use std::process::{Command, Stdio};

use cni_types::{Attachment, Error, Result};
use nft::{Batch, Chain, Connection, Expression, RuleState, Table, UserData, Verdict, covers, expressions_attribute};

use sha2::{Digest, Sha512};

use super::kernel_error;
use super::owner::{Owner, hex};
use super::rules::address_bytes;
use crate::Family;
use crate::portmap::{Mapping, Published};

/// The chain from which the attachments' chains are reached.
pub(super) const CHAIN: &str = "conditions";

/// The chain of one attachment.
fn chain_of(attachment: &Attachment) -> String {
    format!("conditions-{}", hex(Owner::of(attachment).as_bytes()))
}

fn jump(attachment: &Attachment) -> Vec<Expression> {
    vec![Expression::Verdict(Verdict::Jump(chain_of(attachment)))]
}

/// Refuses conditions that are more than conditions of one rule.
///
/// # Errors
///
/// Code 7 with the condition.
pub(super) fn validate(published: &Published) -> Result<()> {
    for family in Family::BOTH {
        let text = published.conditions(family).join(" ");
        let depth = text.bytes().try_fold(0u32, |depth, byte| match byte {
            b'{' => Some(depth + 1),
            b'}' => depth.checked_sub(1),
            b'\n' | b'\r' | b';' | b'#' | b'"' | b'\\' | b'\0' => None,
            _ => Some(depth),
        });
        if depth != Some(0) {
            return Err(Error::config(format!(
                "{family} condition {text:?} is not part of one nft rule"
            )));
        }
    }
    Ok(())
}

/// Adds the attachment's chain, and what leads to it, to `batch`.
pub(super) fn prepare(
    connection: &mut Connection,
    table: &Table,
    attachment: &Attachment,
    batch: &mut Batch,
) -> Result<()> {
    let chain = Chain {
        name: chain_of(attachment),
        hook: None,
    };
    batch.add_chain(table, &chain);
    if jumps(connection, table, attachment)?.is_empty() {
        let comment = UserData::comment(Owner::comment(attachment));
        batch.append_rule(table, CHAIN, &jump(attachment), &comment);
    }
    Ok(())
}

/// Adds their removal to `batch`.
pub(super) fn remove(
    connection: &mut Connection,
    table: &Table,
    attachment: &Attachment,
    batch: &mut Batch,
) -> Result<()> {
    for rule in jumps(connection, table, attachment)? {
        batch.delete_rule(table, CHAIN, rule.handle);
    }
    let chain = chain_of(attachment);
    let found = connection.chains(table, &[&chain]).map_err(kernel_error)?;
    if found.iter().any(Option::is_some) {
        batch.delete_chain(table, &chain);
    }
    Ok(())
}

fn jumps(connection: &mut Connection, table: &Table, attachment: &Attachment) -> Result<Vec<RuleState>> {
    let jump = expressions_attribute(&jump(attachment));
    let mut found = connection.rules(table, CHAIN).map_err(kernel_error)?;
    found.retain(|rule| covers(jump.as_bytes(), &rule.attributes));
    Ok(found)
}

/// Has the kernel judge the rules, in a table that is never made: before anything of the attachment changes.
pub(super) fn try_out(published: &Published) -> Result<()> {
    let rules = Family::BOTH.into_iter().flat_map(|family| rules(published, family));
    let rules: String = rules.map(|rule| format!("{}\n", rule.text)).collect();
    let script = format!("table inet ferrule_conditions_probe {{\nchain probe {{\n{rules}}}\n}}\n");
    run_nft(&["--check"], &script)
}

/// Writes the rules into the chain that [`prepare`] made, in place of what was in it.
pub(super) fn write(table: &Table, attachment: &Attachment, published: &Published) -> Result<()> {
    let chain = format!("{} {} {}", table.family, table.name, chain_of(attachment));
    let mut script = format!("flush chain {chain}\n");
    for family in Family::BOTH {
        for rule in rules(published, family) {
            script.push_str(&format!("add rule {chain} {} comment \"{}\"\n", rule.text, rule.mark()));
        }
    }
    run_nft(&[], &script)
}

/// What `nft --version` says; `None` where there is no nft.
#[allow(
    clippy::disallowed_methods,
    reason = "which nft would read conditions is what it says itself"
)]
pub(crate) fn nft_version() -> Result<Option<String>> {
    match Command::new("nft").arg("--version").output() {
        Ok(output) => Ok(Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Error::internal(format!("nft: {e}"))),
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "conditions in nft's syntax are read by nft alone"
)]
fn run_nft(options: &[&str], script: &str) -> Result<()> {
    let failed = |e: std::io::Error| Error::internal(format!("nft, which conditions need: {e}"));
    let mut child = Command::new("nft")
        .args(options)
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    // Dropped at the end of the statement: nft reads to the end of its input.
    let written = child
        .stdin
        .take()
        .map_or(Ok(()), |mut stdin| stdin.write_all(script.as_bytes()));
    let output = child.wait_with_output().map_err(failed)?;
    match output.status.success() {
        true => written.map_err(failed),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            let message = format!("nft refuses conditions: {}", said.lines().next().unwrap_or_default());
            Err(Error::internal(message).with_details(said))
        }
    }
}

/// Compares the attachment's rules in the kernel with what [`write`] would write: where they lead, from which ports, and
/// by their marks from what text. Only nft could tell what conditions have become in the kernel, so a rule that somebody
/// rewrote under its old mark, with other conditions, is not noticed.
pub(super) fn verify(table: &Table, attachment: &Attachment, published: &Published) -> Result<()> {
    let mut connection = Connection::open().map_err(kernel_error)?;
    let chain = chain_of(attachment);
    let wrong = || {
        Err(Error::internal(format!(
            "chain {chain} of {table} does not hold the rules it should"
        )))
    };
    let wanted: Vec<Rule> = Family::BOTH
        .into_iter()
        .flat_map(|family| rules(published, family))
        .collect();
    let found = connection.rules(table, &chain).map_err(kernel_error)?;
    if found.len() != wanted.len() || jumps(&mut connection, table, attachment)?.len() != 1 {
        return wrong();
    }
    let same = wanted.iter().zip(&found).all(|(wanted, found)| wanted.is(found));
    if same { Ok(()) } else { wrong() }
}

/// A rule with conditions.
struct Rule {
    text: String,
    host_ip: Option<IpAddr>,
    /// The first and the last.
    host_ports: [u16; 2],
    target: IpAddr,
    target_port: Option<u16>,
}

impl Rule {
    /// The comment by which the text is told from another one.
    fn mark(&self) -> String {
        hex(Sha512::digest(&self.text).get(..8).unwrap_or_default())
    }

    fn is(&self, found: &RuleState) -> bool {
        let (loaded, compared) = (found.loaded_constants(), found.compared_constants());
        let port = self.target_port.map(|port| port.to_be_bytes().to_vec());
        let host_ip = self.host_ip.map(address_bytes);
        found.user_data.comment == Some(self.mark())
            && loaded.contains(&address_bytes(self.target))
            && self
                .host_ports
                .iter()
                .all(|port| compared.contains(&port.to_be_bytes().to_vec()))
            && port.is_none_or(|port| loaded.contains(&port))
            && host_ip.is_none_or(|ip| compared.contains(&ip))
    }
}

/// The rules of a family; none where it has no conditions.
fn rules(published: &Published, family: Family) -> Vec<Rule> {
    let conditions = published.conditions(family).join(" ");
    let Some(container) = published.address(family).filter(|_| !conditions.is_empty()) else {
        return Vec::new();
    };
    let mappings = published.mappings.iter().filter(|mapping| mapping.applies_to(family));
    mappings
        .flat_map(|mapping| mapping_rules(mapping, family, &conditions, container.address()))
        .collect()
}

fn mapping_rules(mapping: &Mapping, family: Family, conditions: &str, container: IpAddr) -> Vec<Rule> {
    let (word, nfproto) = match family {
        Family::V4 => ("ip", "ipv4"),
        Family::V6 => ("ip6", "ipv6"),
    };
    let host_ip = mapping.exact_ip();
    let destination = host_ip.map_or_else(String::new, |ip| format!("{word} daddr {ip} "));
    let protocol = mapping.protocol;
    let rule = |first: u16, last: u16, target_port: Option<u16>| {
        let ports = match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        };
        let target = match (target_port, container) {
            (None, ip) => ip.to_string(),
            (Some(port), IpAddr::V4(ip)) => format!("{ip}:{port}"),
            (Some(port), IpAddr::V6(ip)) => format!("[{ip}]:{port}"),
        };
        Rule {
            text: format!(
                "meta nfproto {nfproto} {conditions} {destination}meta l4proto {protocol} th dport {ports} dnat {word} to {target}"
            ),
            host_ip,
            host_ports: [first, last],
            target: container,
            target_port,
        }
    };
    let (first, last) = (mapping.host_port, mapping.host_port_end);
    if first < last && first == mapping.container_port {
        return vec![rule(first, last, None)];
    }
    (first..=last)
        .zip(mapping.container_port..=mapping.container_port_end)
        .map(|(host, container)| rule(host, host, Some(container)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::portmap::OnConflict;

    fn published(conditions: &[&str]) -> Published {
        Published {
            mappings: Vec::new(),
            addresses: Vec::new(),
            snat: true,
            masq_all: false,
            mark_masq_bit: Published::DEFAULT_MARK_MASQ_BIT,
            external_set_mark_chain: None,
            conditions_v4: conditions.iter().map(ToString::to_string).collect(),
            conditions_v6: Vec::new(),
            on_conflict: OnConflict::Refuse,
            netns: None,
            netns_exists: |_| true,
        }
    }

    #[test]
    fn conditions_are_part_of_one_rule() {
        for good in [
            &["ip", "saddr", "!=", "10.0.0.0/8"][..],
            &["ip daddr { 192.0.2.1, 192.0.2.2 }"],
            &[],
        ] {
            assert_eq!(validate(&published(good)), Ok(()), "{good:?}");
        }
        for bad in [
            "accept; flush ruleset",
            "accept\nflush ruleset",
            "} table x {",
            "{ 1",
            "accept # all",
            "comment \"x\"",
        ] {
            assert!(validate(&published(&[bad])).is_err(), "{bad:?}");
        }
    }
}
