//! The table and what is in it without any container.

use std::net::{IpAddr, Ipv6Addr};

use cni_types::Cidr;
use nft::{Chain, Expression, Hook, NatKind, Register, Set, Table, Verdict, types};

use crate::Family;
use crate::nftables::draft::SharedChain;
use crate::nftables::layout::{BaseChain, Layout, Map, address_type, nat_hook};
use crate::nftables::{conditions, rules};

/// The table's name.
const TABLE: &str = "ferrule_portmap";
/// The maps of a family, by their order in the layout.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    /// Protocol, hostIP, port.
    Exact,
    /// Protocol, hostIP, range of ports.
    ExactRange,
    /// Protocol, port.
    Any,
    /// Protocol, range of ports.
    AnyRange,
    /// Container addresses whose redirected connections may need the node's address as their source.
    Snat,
}

/// All of them, in their order.
pub(super) const KINDS: [Kind; 5] = [Kind::Exact, Kind::ExactRange, Kind::Any, Kind::AnyRange, Kind::Snat];

impl Kind {
    /// Its number in the layout.
    pub(super) fn number(self, family: Family) -> u8 {
        let of_v6 = match family {
            Family::V4 => 0,
            Family::V6 => KINDS.len() as u8,
        };
        self as u8 + of_v6
    }

    /// The family and kind of the map with a number in the layout.
    pub(super) fn of_number(number: u8) -> Option<(Family, Kind)> {
        let all = Family::BOTH.into_iter();
        let mut all = all.flat_map(|family| KINDS.map(|kind| (family, kind)));
        all.find(|(family, kind)| kind.number(*family) == number)
    }

    fn name(self, family: Family) -> String {
        let name = match self {
            Kind::Exact => "exact",
            Kind::ExactRange => "exact_range",
            Kind::Any => "any",
            Kind::AnyRange => "any_range",
            Kind::Snat => "snat",
        };
        format!("{name}{}", digit(family))
    }

    fn map(self, family: Family) -> Map {
        let (name, address) = (self.name(family), address_type(family));
        let (protocol, port) = (types::INET_PROTO, types::INET_SERVICE);
        let set = match self {
            Kind::Exact => Set::map(name, &[protocol, address, port], &[address, port]),
            Kind::ExactRange => Set::map(name, &[protocol, address, port], &[address]).with_intervals(),
            Kind::Any => Set::map(name, &[protocol, port], &[address, port]),
            Kind::AnyRange => Set::map(name, &[protocol, port], &[address]).with_intervals(),
            Kind::Snat => Set::verdict_map(name, &[address]),
        };
        let other = match self {
            Kind::Exact => Some(Kind::ExactRange),
            Kind::ExactRange => Some(Kind::Exact),
            Kind::Any => Some(Kind::AnyRange),
            Kind::AnyRange => Some(Kind::Any),
            Kind::Snat => None,
        };
        Map {
            set,
            exclusive: !matches!(self, Kind::Snat),
            overlaps: other.map(|kind| kind.number(family)),
        }
    }

    /// The rule of chain `ports` that looks a connection up.
    fn redirect(self, family: Family) -> Vec<Expression> {
        let first = Register::FIRST;
        let mut rule = rules::of_family(family);
        rule.push(Expression::Meta(nft::Meta::TransportProtocol, first));
        let mut next = first.after(1);
        if matches!(self, Kind::Exact | Kind::ExactRange) {
            rule.push(rules::load_destination(family, next));
            next = next.after(rules::address_size(family));
        }
        rule.push(rules::load_port(next));
        rule.push(Expression::MapTo(self.name(family), first, first));
        let port = matches!(self, Kind::Exact | Kind::Any).then(|| first.after(rules::address_size(family)));
        rule.push(Expression::Nat {
            kind: NatKind::Destination,
            family: rules::wire_family(family),
            address: first,
            port,
        });
        rule
    }
}

fn digit(family: Family) -> char {
    match family {
        Family::V4 => '4',
        Family::V6 => '6',
    }
}

/// The table.
pub(in crate::nftables) fn layout() -> Layout {
    let families_and_kinds = || {
        Family::BOTH
            .into_iter()
            .flat_map(|family| KINDS.map(|kind| (family, kind)))
    };
    Layout {
        table: Table::new(nft::Family::Inet, TABLE),
        maps: families_and_kinds().map(|(family, kind)| kind.map(family)).collect(),
        chains: vec![
            regular(conditions::CHAIN, None),
            regular("ports", Some(ports())),
            base("prerouting", nat_hook(Hook::PREROUTING), to_ports()),
            base("output", nat_hook(Hook::OUTPUT), from_node()),
            base("snat", nat_hook(Hook::POSTROUTING), Family::BOTH.map(sources).to_vec()),
            base("martians", Some(RAW), martians()),
        ],
    }
}

/// Before connection tracking turns the answers to 127.0.0.1 back into such.
const RAW: Hook = Hook {
    kind: "filter",
    number: Hook::PREROUTING,
    priority: -300,
};

fn regular(name: &str, rules: Option<Vec<Vec<Expression>>>) -> BaseChain {
    let chain = Chain {
        name: name.to_owned(),
        hook: None,
    };
    BaseChain { chain, rules }
}

fn base(name: &str, hook: Option<Hook>, rules: Vec<Vec<Expression>>) -> BaseChain {
    let chain = Chain {
        name: name.to_owned(),
        hook,
    };
    BaseChain {
        chain,
        rules: Some(rules),
    }
}

fn to_ports() -> Vec<Vec<Expression>> {
    let goto = Expression::Verdict(Verdict::Goto("ports".to_owned()));
    vec![rules::rule(&[&rules::to_local_address(), &[goto]])]
}

/// As `to_ports`, but for `::1`: IPv6 has no route_localnet, so such a connection could not leave the node. Refused at
/// once it lets a client that asked for `localhost` go on to 127.0.0.1.
fn from_node() -> Vec<Vec<Expression>> {
    let loopback = rules::destination_in(Cidr::host(Ipv6Addr::LOCALHOST.into()));
    let stays = rules::rule(&[&loopback, &[Expression::Verdict(Verdict::Return)]]);
    [stays].into_iter().chain(to_ports()).collect()
}

fn ports() -> Vec<Vec<Expression>> {
    let conditions = vec![Expression::Verdict(Verdict::Jump(conditions::CHAIN.to_owned()))];
    let redirects = Family::BOTH.into_iter().flat_map(|family| {
        KINDS
            .into_iter()
            .filter(|kind| !matches!(kind, Kind::Snat))
            .map(move |kind| kind.redirect(family))
    });
    [conditions].into_iter().chain(redirects).collect()
}

/// Redirected connections to a container with `snat`.
fn sources(family: Family) -> Vec<Expression> {
    let look_up = [
        rules::load_destination(family, Register::FIRST),
        Expression::VerdictMap(Kind::Snat.name(family), Register::FIRST),
    ];
    rules::rule(&[&rules::of_family(family), &rules::destination_translated(), &look_up])
}

/// What the kernel refuses by itself until `route_localnet` lets the node's own connections to 127.0.0.1 out.
fn martians() -> Vec<Vec<Expression>> {
    let Some(loopback) = loopback() else {
        return Vec::new();
    };
    let drop = [Expression::Verdict(Verdict::Drop)];
    [rules::source_in(loopback), rules::destination_in(loopback)]
        .into_iter()
        .map(|phrase| rules::rule(&[&rules::not_from("lo"), &phrase, &drop]))
        .collect()
}

/// 127.0.0.0/8.
fn loopback() -> Option<Cidr> {
    Cidr::new(IpAddr::from([127, 0, 0, 0]), 8)
}

/// The chain for redirected connections to a container: which of them get the node's address.
pub(super) fn snat_chain(container: Cidr, masq_all: bool) -> SharedChain {
    let family = Family::of(container.address());
    let masquerade = [Expression::Masquerade];
    let rules = if masq_all {
        vec![masquerade.to_vec()]
    } else {
        // From the node itself as 127.0.0.1, which no container can answer.
        let node = loopback().filter(|_| family == Family::V4);
        // From the container itself, and from its neighbours, whom it would answer past the node.
        let sources = node.into_iter().chain([container.network()]);
        sources
            .map(|source| rules::rule(&[&rules::source_in(source), &masquerade]))
            .collect()
    };
    SharedChain::new(&format!("snat{}", digit(family)), rules)
}
