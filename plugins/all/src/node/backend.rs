//! Which rule system suits a node.

use std::path::PathBuf;

use cni_types::{Error, Result};
use lexopt::prelude::*;
use netfilter::{Backend, NODE_SETTINGS, firewall, node};
use skel::Registered;

use super::settings::write_backend;
use super::{Failure, Outcome};

/// `ferrule backend`.
pub(super) fn run(mut arguments: lexopt::Parser, _: &[Registered]) -> Result<Outcome, Failure> {
    let mut asked = None;
    let mut write = false;
    let mut settings = PathBuf::from(NODE_SETTINGS);
    while let Some(argument) = arguments.next()? {
        match argument {
            Long("write") => write = true,
            Long("settings") => settings = arguments.value()?.into(),
            Value(value) if asked.is_none() => asked = Some(value.string()?),
            _ => return Err(argument.unexpected().into()),
        }
    }
    let choice = match asked.as_deref() {
        None if write => return Err(lexopt::Error::from("--write needs to know what").into()),
        None => Choice {
            backend: Backend::of_node()?,
            why: "what plugins use here where a network's configuration names none".to_owned(),
        },
        Some("auto") => choose(&Facts::of_this_node()?)?,
        Some(name) => Choice {
            backend: name.parse().map_err(|e| lexopt::Error::Custom(Box::new(e)))?,
            why: "as asked for".to_owned(),
        },
    };
    if write {
        write_backend(&settings, choice.backend)?;
    }
    Ok(Outcome::success(format!("{}: {}\n", choice.backend, choice.why)))
}

/// A backend and the reason for it.
#[derive(Debug, PartialEq)]
struct Choice {
    backend: Backend,
    why: String,
}

/// What the choice rests on.
struct Facts {
    /// Where nerdctl is installed. It finds a container's ports in iptables rules.
    nerdctl: Option<PathBuf>,
    /// Rules of the administrator that keep connections from being masqueraded.
    exemptions: Vec<String>,
    iptables: Result<()>,
    nftables: Result<()>,
}

impl Facts {
    fn of_this_node() -> Result<Facts> {
        Ok(Facts {
            nerdctl: node::find_program("nerdctl"),
            exemptions: node::masquerade_exemptions()?,
            iptables: Backend::Iptables.probe(),
            nftables: Backend::Nftables
                .probe()
                .and_then(|()| firewall::probe(Backend::Nftables)),
        })
    }

    /// Why not nftables, if there is a reason.
    fn against_nftables(&self) -> Option<String> {
        if let Err(e) = &self.nftables {
            return Some(e.msg.clone());
        }
        if let Some(path) = &self.nerdctl {
            let path = path.display();
            return Some(format!("{path} finds published ports in iptables rules only"));
        }
        let first = self.exemptions.first()?;
        Some(format!(
            "nat POSTROUTING has exemptions from masquerading, which a table of our own would not see ({first})"
        ))
    }
}

/// nftables, unless something speaks against it and iptables is there.
fn choose(facts: &Facts) -> Result<Choice> {
    match (facts.against_nftables(), &facts.iptables, &facts.nftables) {
        (None, ..) => Ok(Choice {
            backend: Backend::Nftables,
            why: "the kernel has what it needs, and nothing on this node depends on iptables rules".to_owned(),
        }),
        (Some(why), Ok(()), _) => Ok(Choice {
            backend: Backend::Iptables,
            why,
        }),
        (Some(why), Err(e), Ok(())) => Ok(Choice {
            backend: Backend::Nftables,
            why: format!("although {why}: {}", e.msg),
        }),
        (Some(why), Err(e), Err(_)) => Err(Error::internal(format!("neither backend works: {why}; {}", e.msg))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        Facts {
            nerdctl: None,
            exemptions: Vec::new(),
            iptables: Ok(()),
            nftables: Ok(()),
        }
    }

    fn missing(what: &str) -> Result<()> {
        Err(Error::internal(what))
    }

    #[test]
    fn nftables_unless_something_speaks_against_it() {
        assert_eq!(choose(&facts()).unwrap().backend, Backend::Nftables);
        let reasons = [
            (
                Facts {
                    nerdctl: Some("/usr/bin/nerdctl".into()),
                    ..facts()
                },
                "/usr/bin/nerdctl",
            ),
            (
                Facts {
                    exemptions: vec!["IPv4: -A POSTROUTING -d 10.0.0.0/8 -j ACCEPT".to_owned()],
                    ..facts()
                },
                "-d 10.0.0.0/8 -j ACCEPT",
            ),
            (
                Facts {
                    nftables: missing("no fib"),
                    ..facts()
                },
                "no fib",
            ),
        ];
        for (against, reason) in reasons {
            let choice = choose(&against).unwrap();
            assert_eq!(choice.backend, Backend::Iptables);
            assert!(choice.why.contains(reason), "{choice:?}");
        }
    }

    #[test]
    fn what_is_not_there_is_not_chosen() {
        let iptables = || missing("iptables is not installed");
        let only_nftables = Facts {
            nerdctl: Some("/bin/nerdctl".into()),
            iptables: iptables(),
            ..facts()
        };
        let choice = choose(&only_nftables).unwrap();
        assert_eq!(choice.backend, Backend::Nftables);
        assert!(choice.why.contains("iptables is not installed"), "{choice:?}");
        let neither = Facts {
            iptables: iptables(),
            nftables: missing("no fib"),
            ..facts()
        };
        let error = choose(&neither).unwrap_err();
        assert!(
            error.msg.contains("no fib") && error.msg.contains("iptables"),
            "{error}"
        );
    }
}
