//! What attachments publish, read back from what the table holds: the opposite of [`super::claims`].

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use cni_types::{Attachment, Cidr, Error, Result};

use super::claims::{port_of, redirected};
use super::layout;
use super::table::{Kind, snat_chain};
use crate::conntrack::HostPorts;
use crate::nftables::ledger::Ledger;
use crate::nftables::record::{Holding, Record};
use crate::nftables::rules;
use crate::portmap::{Mapping, OnConflict, Published};
use crate::{Family, Protocol};

/// The ports that each attachment holds here, for people: `8080/tcp`.
pub(crate) fn ports() -> Result<Vec<(Attachment, Vec<String>)>> {
    let layout = layout();
    let records = Ledger::open(&layout)?.all()?.into_iter();
    Ok(records
        .map(|record| {
            let mut ports: Vec<String> = record.holdings.iter().filter_map(redirected).map(in_words).collect();
            ports.sort();
            ports.dedup();
            (record.attachment, ports)
        })
        .collect())
}

fn in_words((protocol, ports): (Protocol, HostPorts)) -> String {
    match ports.first == ports.last {
        true => format!("{}/{protocol}", ports.first),
        false => format!("{}-{}/{protocol}", ports.first, ports.last),
    }
}

/// What each attachment publishes.
///
/// # Errors
///
/// Ports with conditions, which are in nft's syntax; what the kernel said.
pub(crate) fn published() -> Result<Vec<(Attachment, Published)>> {
    let layout = layout();
    let mut ledger = Ledger::open(&layout)?;
    let records = ledger.all()?.into_iter();
    records
        .map(|record| {
            let chains = ledger.chains_of(&record)?;
            let published = read(&record, &chains).map_err(|e| e.context(format!("ports of {}", record.attachment)))?;
            Ok((record.attachment, published))
        })
        .collect()
}

/// Reads a record. `chains` are what its holdings lead to, in their order.
fn read(record: &Record, chains: &[Option<String>]) -> Result<Published> {
    let unclear = |what: &str| Error::internal(what.to_owned());
    if record.has_conditions {
        return Err(unclear("their conditions are in nft's syntax, which only nft reads"));
    }
    let mut redirects = Vec::new();
    let mut addresses = BTreeMap::new();
    let (mut snat, mut masq_all) = (false, false);
    for (holding, chain) in record.holdings.iter().zip(chains) {
        match Kind::of_number(holding.map) {
            Some((family, Kind::Snat)) => {
                let sources = chain.as_deref().and_then(|chain| sources(holding, chain));
                let (container, all) = sources.ok_or_else(|| unclear("their source translation is not understood"))?;
                addresses.insert(family, container);
                (snat, masq_all) = (true, masq_all || all);
            }
            Some((family, _)) => {
                let redirect = Redirect::of(holding).ok_or_else(|| unclear("one is not understood"))?;
                addresses.entry(family).or_insert(Cidr::host(redirect.container));
                redirects.push(redirect);
            }
            None => return Err(unclear("another version of ferrule wrote them")),
        }
    }
    Ok(Published {
        mappings: mappings(&redirects),
        addresses: addresses.into_values().collect(),
        snat,
        masq_all,
        mark_masq_bit: Published::DEFAULT_MARK_MASQ_BIT,
        external_set_mark_chain: None,
        conditions_v4: Vec::new(),
        conditions_v6: Vec::new(),
        on_conflict: OnConflict::Refuse,
        netns: record.netns.clone(),
        netns_exists: |_| true,
    })
}

/// The container's address with the length of its subnet, and whether every connection is masqueraded. The name of a
/// chain is a hash of its rules, so whatever gives the same name is what was asked for.
fn sources(holding: &Holding, chain: &str) -> Option<(Cidr, bool)> {
    let container = Cidr::host(rules::address_of(&holding.key)?);
    if snat_chain(container, true).name == chain {
        return Some((container, true));
    }
    let mut subnets = (0..=container.prefix()).filter_map(|prefix| Cidr::new(container.address(), prefix));
    let subnet = subnets.find(|subnet| snat_chain(*subnet, false).name == chain)?;
    Some((subnet, false))
}

/// One element that redirects.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Redirect {
    protocol: Protocol,
    ports: HostPorts,
    container: IpAddr,
    container_port: u16,
}

impl Redirect {
    fn of(holding: &Holding) -> Option<Redirect> {
        let (protocol, ports) = redirected(holding)?;
        let size = usize::from(rules::address_size(ports.family));
        let (container, port) = holding.data.as_ref()?.split_at_checked(size)?;
        Some(Redirect {
            protocol,
            ports,
            container: rules::address_of(container)?,
            // Ranges are of equal numbers: their elements name none.
            container_port: if port.is_empty() { ports.first } else { port_of(port)? },
        })
    }

    /// Whether this is the same mapping in the other family.
    fn is_twin_of(&self, other: &Redirect) -> bool {
        self.ports.family != other.ports.family
            && (self.protocol, self.container_port) == (other.protocol, other.container_port)
            && (self.ports.address, self.ports.first, self.ports.last)
                == (other.ports.address, other.ports.first, other.ports.last)
    }

    fn mapping(&self, host_ip: Option<IpAddr>) -> Mapping {
        Mapping {
            protocol: self.protocol,
            host_ip,
            host_port: self.ports.first,
            host_port_end: self.ports.last,
            container_port: self.container_port,
            container_port_end: self
                .container_port
                .saturating_add(self.ports.last.saturating_sub(self.ports.first)),
        }
    }
}

fn mappings(redirects: &[Redirect]) -> Vec<Mapping> {
    let with_twin = |redirect: &Redirect| redirects.iter().any(|other| other.is_twin_of(redirect));
    let mapping = |redirect: &Redirect| match (redirect.ports.address, redirect.ports.family) {
        (Some(ip), _) => Some(redirect.mapping(Some(ip))),
        (None, Family::V4) if with_twin(redirect) => Some(redirect.mapping(None)),
        // Its twin stands for both.
        (None, Family::V6) if with_twin(redirect) => None,
        (None, Family::V4) => Some(redirect.mapping(Some(Ipv4Addr::UNSPECIFIED.into()))),
        (None, Family::V6) => Some(redirect.mapping(Some(Ipv6Addr::UNSPECIFIED.into()))),
    };
    redirects.iter().filter_map(mapping).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nftables::portmap::claims::{claims, conditional};

    fn mapping(protocol: Protocol, host_ip: Option<&str>, host: (u16, u16), container: u16) -> Mapping {
        Mapping {
            protocol,
            host_ip: host_ip.map(|ip| ip.parse().unwrap()),
            host_port: host.0,
            host_port_end: host.1,
            container_port: container,
            container_port_end: container + (host.1 - host.0),
        }
    }

    fn published(addresses: &[&str], snat: bool, masq_all: bool) -> Published {
        Published {
            mappings: vec![
                mapping(Protocol::Tcp, None, (8080, 8080), 80),
                mapping(Protocol::Udp, Some("192.0.2.1"), (53, 53), 5353),
                mapping(Protocol::Sctp, Some("2001:db8::1"), (99, 99), 98),
                mapping(Protocol::Tcp, Some("0.0.0.0"), (97, 97), 96),
                mapping(Protocol::Tcp, None, (9000, 9100), 9000),
                mapping(Protocol::Udp, Some("192.0.2.1"), (9000, 9001), 9000),
            ],
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
            snat,
            masq_all,
            mark_masq_bit: Published::DEFAULT_MARK_MASQ_BIT,
            external_set_mark_chain: None,
            conditions_v4: Vec::new(),
            conditions_v6: Vec::new(),
            on_conflict: OnConflict::Refuse,
            netns: Some("4026532247".to_owned()),
            netns_exists: |_| true,
        }
    }

    /// A record as ADD writes it, and what its elements lead to.
    fn written(published: &Published) -> (Record, Vec<Option<String>>) {
        let claims = claims(published).unwrap();
        let chains = claims.iter().map(|claim| Some(claim.chain.as_ref()?.name.clone()));
        let chains = chains.collect();
        let conditional = conditional(published);
        let record = Record {
            attachment: Attachment {
                network: "net1".parse().unwrap(),
                container_id: "c1".parse().unwrap(),
                ifname: "eth0".parse().unwrap(),
            },
            netns: published.netns.clone(),
            has_conditions: !conditional.is_empty(),
            holdings: claims
                .into_iter()
                .map(|claim| claim.holding)
                .chain(conditional)
                .collect(),
        };
        (record, chains)
    }

    #[test]
    fn what_was_published_is_read_back() {
        for addresses in [&["10.1.0.2/24", "fd00::2/64"][..], &["10.1.0.2/32"], &["fd00::2/48"]] {
            for (snat, masq_all) in [(true, false), (true, true), (false, false)] {
                let asked = published(addresses, snat, masq_all);
                let (record, chains) = written(&asked);
                let read = read(&record, &chains).unwrap();
                // The same elements, the same record: nothing is lost and nothing new.
                assert_eq!(written(&read), (record, chains), "{addresses:?} {snat} {masq_all}");
                assert_eq!((read.snat, read.masq_all), (snat, masq_all));
                if snat && !masq_all {
                    assert_eq!(read.addresses, asked.addresses);
                }
            }
        }
    }

    #[test]
    fn a_mapping_of_both_families_is_one() {
        let (record, chains) = written(&published(&["10.1.0.2/24", "fd00::2/64"], true, false));
        let mappings = read(&record, &chains).unwrap().mappings;
        assert!(
            mappings.contains(&mapping(Protocol::Tcp, None, (8080, 8080), 80)),
            "{mappings:?}"
        );
        assert!(
            mappings.contains(&mapping(Protocol::Tcp, Some("0.0.0.0"), (97, 97), 96)),
            "{mappings:?}"
        );
        assert_eq!(mappings.len(), 6, "{mappings:?}");
    }

    #[test]
    fn conditions_are_refused() {
        let mut asked = published(&["10.1.0.2/24"], true, false);
        asked.conditions_v4 = vec!["ip saddr 192.0.2.0/24".to_owned()];
        let (record, chains) = written(&asked);
        let error = read(&record, &chains).unwrap_err();
        assert!(error.msg.contains("conditions"), "{error}");
    }

    #[test]
    fn a_chain_that_is_not_ours_is_not_guessed() {
        let (record, mut chains) = written(&published(&["10.1.0.2/24"], true, false));
        for chain in chains.iter_mut().flatten() {
            chain.push('x');
        }
        assert!(read(&record, &chains).is_err());
    }
}
