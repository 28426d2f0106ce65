//! What an administrator keeps from being masqueraded.

use std::collections::BTreeSet;

use cni_types::Result;

use super::evidence;
use super::names;
use super::rule::Rule;
use super::saved::{Saved, Table};
use crate::Family;

/// Chains of programs that look after themselves: the CNI plugins, kube-proxy, Docker, libvirt.
const FOREIGN_PREFIXES: [&str; 4] = ["CNI-", "KUBE-", "DOCKER", "LIBVIRT_"];

/// The rules of nat POSTROUTING, and of the chains that it leads to, that end the walk before a container's masquerading
/// would, in iptables' words. A table of our own knows nothing of them: there the connection is masqueraded all the same.
pub(crate) fn exemptions() -> Result<Vec<String>> {
    let mut found = Vec::new();
    for family in Family::BOTH {
        for tool in evidence::tools(Table::Nat, family, &["POSTROUTING"])? {
            found.extend(
                of_table(&tool.save(Table::Nat)?)
                    .into_iter()
                    .map(|rule| format!("{family}: {rule}")),
            );
        }
    }
    Ok(found)
}

fn of_table(saved: &Saved) -> Vec<String> {
    let mut found = Vec::new();
    let mut seen = BTreeSet::new();
    let mut chains = vec!["POSTROUTING".to_owned()];
    while let Some(chain) = chains.pop() {
        for rule in saved.rules(&chain) {
            let Some(target) = rule.target() else { continue };
            if ends_the_walk(&chain, rule) {
                found.push(format!("-A {chain} {rule}"));
            } else if saved.has_chain(target)
                && !FOREIGN_PREFIXES.iter().any(|prefix| target.starts_with(prefix))
                && seen.insert(target.to_owned())
            {
                chains.push(target.to_owned());
            }
        }
    }
    found
}

/// RETURN ends it in POSTROUTING alone: elsewhere it goes back to where the chain was called.
fn ends_the_walk(chain: &str, rule: &Rule) -> bool {
    let ends = match rule.target() {
        Some("ACCEPT") => true,
        Some("RETURN") => chain == "POSTROUTING",
        _ => false,
    };
    ends && rule.value("--comment").and_then(names::owner).is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(rules: &str) -> Vec<String> {
        let text =
            format!("*nat\n:POSTROUTING ACCEPT [0:0]\n:MINE - [0:0]\n:KUBE-POSTROUTING - [0:0]\n{rules}\nCOMMIT\n");
        of_table(&Saved::parse(Table::Nat, &text))
    }

    #[test]
    fn an_administrators_exemptions_are_found() {
        for rule in [
            "-A POSTROUTING -d 10.0.0.0/8 -j ACCEPT",
            "-A POSTROUTING -d 10.0.0.0/8 -j RETURN",
            "-A POSTROUTING -j MINE\n-A MINE -j MINE\n-A MINE -d 10.0.0.0/8 -j ACCEPT",
        ] {
            assert_eq!(found(rule).len(), 1, "{rule}");
        }
    }

    #[test]
    fn what_programs_write_is_none() {
        for rule in [
            "",
            "-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE",
            "-A POSTROUTING -j KUBE-POSTROUTING\n-A KUBE-POSTROUTING -j RETURN\n-A KUBE-POSTROUTING -j ACCEPT",
            "-A POSTROUTING -j MINE\n-A MINE -d 10.0.0.0/8 -j RETURN",
            r#"-A POSTROUTING -m comment --comment "name: \"n\" id: \"c\"" -j ACCEPT"#,
            "-A POSTROUTING -m comment --comment nothing",
        ] {
            assert_eq!(found(rule), Vec::<String>::new(), "{rule}");
        }
    }
}
