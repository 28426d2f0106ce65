//! What other containers own.
//!
//! Rules that bear no name, as the firewall's, can be the same for two containers: those of an address that both networks
//! give out. Such a rule stays until the last of them goes. To learn of it, every record on the node has to be looked at; so
//! nobody looks before there is a rule to take away, and whoever looks does so once for all rules.

use std::cell::OnceCell;

use cni_types::{ContainerId, NetworkName, Result};

use super::record::{Feature, Holding, Record};
use super::rule::Rule;
use crate::Family;

/// The holdings of other containers.
pub(super) enum Neighbours {
    /// The rules name their container, so nobody else's are the same.
    Nobody,
    /// Whoever is on the node but this container; read when asked for.
    Others {
        network: NetworkName,
        container: ContainerId,
        feature: Feature,
        held: OnceCell<Vec<Holding>>,
    },
    /// These.
    Known(Vec<Holding>),
}

impl Neighbours {
    /// The neighbours of a container.
    pub(super) fn of(network: &NetworkName, container: &ContainerId, feature: Feature) -> Neighbours {
        match feature {
            Feature::Portmap | Feature::Masquerade => Neighbours::Nobody,
            Feature::Firewall => Neighbours::Others {
                network: network.clone(),
                container: container.clone(),
                feature,
                held: OnceCell::new(),
            },
        }
    }

    /// Whether one of them owns a rule.
    ///
    /// # Errors
    ///
    /// Code 5 when a record cannot be read.
    pub(super) fn own(&self, family: Family, chain: &str, rule: &Rule) -> Result<bool> {
        let held = match self {
            Neighbours::Nobody => return Ok(false),
            Neighbours::Known(held) => held,
            Neighbours::Others {
                network,
                container,
                feature,
                held,
            } => match held.get() {
                Some(held) => held,
                None => {
                    let found = held_by_others(network, container, *feature)?;
                    held.get_or_init(|| found)
                }
            },
        };
        Ok(held.iter().any(|held| held.contains(family, chain, rule)))
    }
}

fn held_by_others(network: &NetworkName, container: &ContainerId, feature: Feature) -> Result<Vec<Holding>> {
    let mut records = Record::load_all()?;
    records.retain(|other| (&other.network, &other.container) != (network, container));
    Ok(records.iter().flat_map(|other| other.held(feature)).collect())
}
