//! Ranges of addresses, and the sets of them that an address is allocated from.
//!
//! An address is a number here ([`Bits`]), so that a /64 costs no more than a /30. The rules and texts are those of the
//! reference, except where it refuses pools that are too small to have network and broadcast addresses (RFC 3021).

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use cni_types::Cidr;

/// An address as a number, within its family.
pub type Bits = u128;

/// The two families.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4: numbers below 2^32.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// The family of an address.
    pub fn of(ip: IpAddr) -> Family {
        if ip.is_ipv4() { Family::V4 } else { Family::V6 }
    }

    /// The address with this number. IPv4 ignores what is above its 32 bits.
    pub fn address(self, bits: Bits) -> IpAddr {
        match self {
            Family::V4 => Ipv4Addr::from(bits as u32).into(),
            Family::V6 => Ipv6Addr::from(bits).into(),
        }
    }

    /// The number of bits of an address.
    pub fn width(self) -> u32 {
        match self {
            Family::V4 => 32,
            Family::V6 => 128,
        }
    }
}

/// The number of an address.
pub fn bits(ip: IpAddr) -> Bits {
    match ip {
        IpAddr::V4(v4) => u32::from(v4).into(),
        IpAddr::V6(v6) => v6.into(),
    }
}

/// What one entry of a range set says, its texts read but not yet compared with each other.
#[derive(Debug, Clone)]
pub struct Entry {
    /// `subnet`; its prefix length is that of the addresses handed out.
    pub subnet: Cidr,
    /// `rangeStart`, the first address.
    pub start: Option<IpAddr>,
    /// `rangeEnd`, the last address.
    pub end: Option<IpAddr>,
    /// `gateway`.
    pub gateway: Option<IpAddr>,
}

/// A key of an [`Entry`] and what is wrong with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invalid {
    /// The key within the entry.
    pub key: &'static str,
    /// The text of the reference where it has one.
    pub why: String,
}

/// The addresses of a subnet from a first to a last one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Range {
    subnet: Cidr,
    start: Bits,
    end: Bits,
    gateway: Option<IpAddr>,
    usable: Vec<RangeInclusive<Bits>>,
}

impl Range {
    /// Checks an entry and fills in its defaults: from the address after the network's to the one before broadcast
    /// (IPv4) or the last (IPv6), and the gateway on the first. A subnet of two addresses starts at its first, and one
    /// of a single address has no gateway unless `gateway` names one.
    ///
    /// # Errors
    /// The first value that contradicts the subnet.
    pub fn new(entry: &Entry) -> Result<Range, Invalid> {
        let subnet = entry.subnet;
        let invalid = |key, why| Err(Invalid { key, why });
        if matches!(subnet.address(), IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some()) {
            return invalid("subnet", "IPNet IP and Mask version mismatch".to_owned());
        }
        if !subnet.is_network() {
            let (prefix, network) = (subnet.prefix(), subnet.network().address());
            let why = format!(
                "Network has host bits set. For a subnet mask of length {prefix} the network address is {network}"
            );
            return invalid("subnet", why);
        }
        let family = Family::of(subnet.address());
        let first = bits(subnet.address());
        let last = first | host_mask(subnet);
        let small = last - first < 2;
        // The reference looks at the end when it checks the start: a start behind the end is said to be outside the
        // network.
        let below_end = |ip: IpAddr| entry.end.is_none_or(|end| !subnet.contains(end) || ip <= end);
        if let Some(start) = entry
            .start
            .filter(|&start| !subnet.contains(start) || !below_end(start))
        {
            return invalid("rangeStart", format!("RangeStart {start} not in network {subnet}"));
        }
        if let Some(end) = entry.end.filter(|&end| !subnet.contains(end)) {
            return invalid("rangeEnd", format!("RangeEnd {end} not in network {subnet}"));
        }
        if let Some(gateway) = entry.gateway.filter(|&gateway| Family::of(gateway) != family) {
            return invalid("gateway", format!("gateway {gateway} is not of the family of {subnet}"));
        }
        let default_start = if small { first } else { first + 1 };
        let default_end = if small || family == Family::V6 { last } else { last - 1 };
        let default_gateway = (first < last).then(|| family.address(first + 1));
        let start = entry.start.map_or(default_start, bits);
        let end = entry.end.map_or(default_end, bits);
        if start > end {
            return invalid(
                "rangeEnd",
                format!("RangeEnd {} not in network {subnet}", family.address(end)),
            );
        }
        let whole = start..=end;
        let mut range = Range {
            subnet,
            start,
            end,
            gateway: entry.gateway.or(default_gateway),
            usable: vec![whole],
        };
        if !small {
            range.exclude(family, first..=first);
            if family == Family::V4 {
                range.exclude(family, last..=last);
            }
        }
        Ok(range)
    }

    /// Never hands out these addresses.
    pub fn exclude(&mut self, family: Family, addresses: RangeInclusive<Bits>) {
        if family != self.family() {
            return;
        }
        let (from, to) = addresses.into_inner();
        let without = |part: &RangeInclusive<Bits>| {
            let (start, end) = (*part.start(), *part.end());
            if to < start || end < from {
                return [Some(part.clone()), None];
            }
            // Within the conditions neither subtraction nor addition can leave the numbers of the family.
            [
                (start < from).then(|| start..=from - 1),
                (to < end).then(|| to + 1..=end),
            ]
        };
        self.usable = self.usable.iter().flat_map(without).flatten().collect();
    }

    /// The subnet.
    pub fn subnet(&self) -> Cidr {
        self.subnet
    }

    /// The gateway of what is handed out; `None` for the default of a single address.
    pub fn gateway(&self) -> Option<IpAddr> {
        self.gateway
    }

    /// The family of its addresses.
    pub fn family(&self) -> Family {
        Family::of(self.subnet.address())
    }

    /// Whether the address lies between first and last, usable or not.
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.family() == Family::of(ip) && (self.start..=self.end).contains(&bits(ip))
    }

    /// First and last address.
    pub fn bounds(&self) -> RangeInclusive<Bits> {
        self.start..=self.end
    }

    /// What may be handed out, in ascending order: the range without network, broadcast, gateways and excluded
    /// addresses.
    pub fn usable(&self) -> &[RangeInclusive<Bits>] {
        &self.usable
    }

    fn overlaps(&self, other: &Range) -> bool {
        self.family() == other.family() && self.start <= other.end && other.start <= self.end
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = self.family();
        write!(f, "{}-{}", family.address(self.start), family.address(self.end))
    }
}

/// The ranges that one address of a result comes from, all of one family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeSet {
    ranges: Vec<Range>,
}

impl RangeSet {
    /// A set of the ranges in this order.
    ///
    /// # Errors
    /// No range, ranges of two families, or two that overlap.
    pub fn new(ranges: Vec<Range>) -> Result<RangeSet, String> {
        let Some(family) = ranges.first().map(Range::family) else {
            return Err("empty range set".to_owned());
        };
        if ranges.iter().any(|range| range.family() != family) {
            return Err("mixed address families".to_owned());
        }
        let later = |at: usize| ranges.iter().skip(at + 1);
        for (at, range) in ranges.iter().enumerate() {
            if let Some(other) = later(at).find(|other| range.overlaps(other)) {
                return Err(format!("subnets {range} and {other} overlap"));
            }
        }
        Ok(RangeSet { ranges })
    }

    /// The ranges in the order of the configuration.
    pub fn ranges(&self) -> &[Range] {
        &self.ranges
    }

    /// The same, to exclude addresses.
    pub fn ranges_mut(&mut self) -> &mut [Range] {
        &mut self.ranges
    }

    /// The family of its addresses.
    pub fn family(&self) -> Family {
        // `new` refuses an empty set.
        self.ranges.first().map_or(Family::V4, Range::family)
    }

    /// The range that an address lies in.
    pub fn range_of(&self, ip: IpAddr) -> Option<&Range> {
        self.ranges.iter().find(|range| range.contains(ip))
    }

    /// Whether an address lies in both.
    pub fn overlaps(&self, other: &RangeSet) -> bool {
        self.ranges
            .iter()
            .any(|mine| other.ranges.iter().any(|theirs| mine.overlaps(theirs)))
    }

    /// The number of addresses that may be handed out. Only `::/0` could exceed the type, by what is excluded anyway.
    pub fn size(&self) -> u128 {
        let parts = self.ranges.iter().flat_map(Range::usable);
        parts.fold(0, |sum, part| {
            sum.saturating_add((part.end() - part.start()).saturating_add(1))
        })
    }
}

impl fmt::Display for RangeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, range) in self.ranges.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(f, "{comma}{range}")?;
        }
        Ok(())
    }
}

/// All addresses of a network.
pub fn addresses(network: Cidr) -> (Family, RangeInclusive<Bits>) {
    let first = bits(network.network().address());
    (Family::of(network.address()), first..=first | host_mask(network))
}

fn host_mask(network: Cidr) -> Bits {
    let width = Family::of(network.address()).width();
    let host_bits = width - u32::from(network.prefix());
    1_u128.checked_shl(host_bits).map_or(Bits::MAX, |above| above - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(subnet: &str, start: &str, end: &str, gateway: &str) -> Result<Range, Invalid> {
        let ip = |text: &str| (!text.is_empty()).then(|| text.parse().unwrap());
        Range::new(&Entry {
            subnet: subnet.parse().unwrap(),
            start: ip(start),
            end: ip(end),
            gateway: ip(gateway),
        })
    }

    fn plain(subnet: &str) -> Range {
        range(subnet, "", "", "").unwrap()
    }

    #[test]
    fn defaults_leave_out_network_and_broadcast() {
        for (subnet, text, gateway) in [
            ("10.1.0.0/29", "10.1.0.1-10.1.0.6", "10.1.0.1"),
            ("10.1.0.0/30", "10.1.0.1-10.1.0.2", "10.1.0.1"),
            ("0.0.0.0/0", "0.0.0.1-255.255.255.254", "0.0.0.1"),
            ("fd00::/126", "fd00::1-fd00::3", "fd00::1"),
            ("::/0", "::1-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "::1"),
        ] {
            let range = plain(subnet);
            assert_eq!(range.to_string(), text);
            assert_eq!(range.gateway(), Some(gateway.parse().unwrap()));
        }
    }

    #[test]
    fn the_smallest_pools_have_no_network_or_broadcast() {
        for (subnet, text, gateway) in [
            ("10.1.0.0/31", "10.1.0.0-10.1.0.1", Some("10.1.0.1")),
            ("fd00::/127", "fd00::-fd00::1", Some("fd00::1")),
            ("10.1.0.7/32", "10.1.0.7-10.1.0.7", None),
            ("fd00::7/128", "fd00::7-fd00::7", None),
        ] {
            let range = plain(subnet);
            assert_eq!(range.to_string(), text);
            assert_eq!(range.gateway(), gateway.map(|ip| ip.parse().unwrap()));
            assert_eq!(range.usable(), [range.bounds()]);
        }
    }

    #[test]
    fn refusals_have_the_texts_of_the_reference() {
        for (entry, key, why) in [
            (
                ("10.1.0.5/24", "", "", ""),
                "subnet",
                "Network has host bits set. For a subnet mask of length 24 the network address is 10.1.0.0",
            ),
            (
                ("fd00::5/64", "", "", ""),
                "subnet",
                "Network has host bits set. For a subnet mask of length 64 the network address is fd00::",
            ),
            (
                ("::ffff:10.1.0.0/120", "", "", ""),
                "subnet",
                "IPNet IP and Mask version mismatch",
            ),
            (
                ("10.1.0.0/24", "10.1.1.1", "", ""),
                "rangeStart",
                "RangeStart 10.1.1.1 not in network 10.1.0.0/24",
            ),
            (
                ("10.1.0.0/24", "", "10.1.1.1", ""),
                "rangeEnd",
                "RangeEnd 10.1.1.1 not in network 10.1.0.0/24",
            ),
            (
                ("10.1.0.0/24", "10.1.0.9", "10.1.0.8", ""),
                "rangeStart",
                "RangeStart 10.1.0.9 not in network 10.1.0.0/24",
            ),
            (
                ("10.1.0.0/24", "", "10.1.0.0", ""),
                "rangeEnd",
                "RangeEnd 10.1.0.0 not in network 10.1.0.0/24",
            ),
            (
                ("10.1.0.0/24", "fd00::1", "", ""),
                "rangeStart",
                "RangeStart fd00::1 not in network 10.1.0.0/24",
            ),
            (
                ("10.1.0.0/24", "", "", "fd00::1"),
                "gateway",
                "gateway fd00::1 is not of the family of 10.1.0.0/24",
            ),
        ] {
            let (subnet, start, end, gateway) = entry;
            let expected = Invalid {
                key,
                why: why.to_owned(),
            };
            assert_eq!(range(subnet, start, end, gateway), Err(expected), "{entry:?}");
        }
    }

    #[test]
    fn explicit_bounds_do_not_bring_network_and_broadcast_back() {
        let range = range("10.1.0.0/24", "10.1.0.0", "10.1.0.255", "").unwrap();
        assert_eq!(range.to_string(), "10.1.0.0-10.1.0.255");
        let first = bits("10.1.0.0".parse().unwrap());
        assert_eq!(range.usable(), [first + 1..=first + 254]);
        let v6 = super::tests::range("fd00::/64", "fd00::", "", "").unwrap();
        assert_eq!(
            v6.usable().first().map(|part| *part.start()),
            Some(bits("fd00::1".parse().unwrap()))
        );
    }

    #[test]
    fn excluding_splits_and_trims() {
        let mut range = plain("10.1.0.0/28");
        let first = bits("10.1.0.0".parse().unwrap());
        range.exclude(Family::V4, first + 4..=first + 5);
        range.exclude(Family::V4, first..=first + 1);
        range.exclude(Family::V4, first + 14..=first + 99);
        range.exclude(Family::V6, 0..=Bits::MAX);
        assert_eq!(range.usable(), [first + 2..=first + 3, first + 6..=first + 13]);
        range.exclude(Family::V4, 0..=u32::MAX.into());
        assert_eq!(range.usable(), []);
    }

    #[test]
    fn sets_are_of_one_family_and_do_not_overlap() {
        let refused = |subnets: &[&str]| RangeSet::new(subnets.iter().map(|s| plain(s)).collect()).unwrap_err();
        assert_eq!(refused(&[]), "empty range set");
        assert_eq!(refused(&["10.1.0.0/24", "fd00::/64"]), "mixed address families");
        assert_eq!(
            refused(&["10.1.0.0/24", "10.1.0.0/16"]),
            "subnets 10.1.0.1-10.1.0.254 and 10.1.0.1-10.1.255.254 overlap"
        );
        let set = RangeSet::new(vec![plain("10.1.0.0/30"), plain("10.2.0.0/30")]).unwrap();
        assert_eq!(set.to_string(), "10.1.0.1-10.1.0.2,10.2.0.1-10.2.0.2");
        assert_eq!(set.size(), 4);
        assert!(set.overlaps(&RangeSet::new(vec![plain("10.2.0.0/16")]).unwrap()));
        assert!(!set.overlaps(&RangeSet::new(vec![plain("10.3.0.0/16")]).unwrap()));
    }
}
