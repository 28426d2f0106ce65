//! Which addresses an ADD gets: pure, from the configuration, the cursors and what is held.
//!
//! The rules are the reference's. The search starts one past the cursor, goes to the end of that range, then through
//! the other ranges of the set in their order and wraps, the cursor's own address last. Without a cursor, or with one
//! that lies in no range of the set, it starts at the first address of the first range.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use cni_types::{Attachment, Error, Result};

use crate::config::Config;
use crate::range::{Bits, Family, Range, RangeSet, bits};
use crate::reservation::{Claim, Content};
use crate::store::Found;

/// The addresses that are taken.
pub(crate) trait Held {
    /// The lowest address that is not taken, of a family and between two bounds.
    ///
    /// # Errors
    /// What prevents an answer.
    fn first_free(&mut self, family: Family, within: RangeInclusive<Bits>) -> Result<Option<Bits>>;

    /// Who holds an address, for people.
    fn holder(&self, ip: IpAddr) -> String;
}

/// An address chosen for an attachment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Choice<'a> {
    /// The address.
    pub(crate) ip: IpAddr,
    /// The range it lies in.
    pub(crate) range: &'a Range,
    /// The index of the range set, which is the number of its cursor.
    pub(crate) set: usize,
}

/// The next free address of a set, or `None` where all are taken.
///
/// # Errors
/// Those of `held`.
pub(crate) fn next_free<'a>(
    set: &'a RangeSet,
    cursor: Option<IpAddr>,
    held: &mut impl Held,
) -> Result<Option<(IpAddr, &'a Range)>> {
    let family = set.family();
    for (range, within) in search_order(set, cursor) {
        for part in range.usable() {
            let (from, to) = (*part.start().max(within.start()), *part.end().min(within.end()));
            if from > to {
                continue;
            }
            if let Some(free) = held.first_free(family, from..=to)? {
                return Ok(Some((family.address(free), range)));
            }
        }
    }
    Ok(None)
}

fn search_order(set: &RangeSet, cursor: Option<IpAddr>) -> Vec<(&Range, RangeInclusive<Bits>)> {
    let ranges = set.ranges();
    let whole = |range: &'_ Range| range.bounds();
    let at_cursor = cursor.and_then(|ip| Some((bits(ip), ranges.iter().position(|range| range.contains(ip))?)));
    let Some((last, current)) = at_cursor else {
        return ranges.iter().map(|range| (range, whole(range))).collect();
    };
    let (before, from_current) = ranges.split_at(current);
    let mut order = Vec::with_capacity(ranges.len() + 1);
    let Some((range, after)) = from_current.split_first() else {
        return order;
    };
    if let Some(next) = last.checked_add(1) {
        order.push((range, next..=*range.bounds().end()));
    }
    order.extend(after.iter().chain(before).map(|range| (range, whole(range))));
    order.push((range, *range.bounds().start()..=last));
    order
}

/// Checks that a requested address may be handed out at all.
///
/// # Errors
/// The set's range does not have it, or never hands it out.
pub(crate) fn check_requested(set: &RangeSet, ip: IpAddr) -> Result<&Range> {
    let gateway = |range: &Range| range.gateway() == Some(ip);
    if set.ranges().iter().any(gateway) {
        return Err(Error::internal(format!("requested ip {ip} is subnet's gateway")));
    }
    let range = set
        .range_of(ip)
        .filter(|range| range.usable().iter().any(|part| part.contains(&bits(ip))));
    range.ok_or_else(|| {
        Error::internal(format!("requested ip {ip} is never handed out"))
            .with_details("it is a network or broadcast address, another range's gateway, or named by ipam.exclude")
    })
}

/// Why an address could not be chosen, though it might be after a closer look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// A range set, by its number, has no free address.
    Exhausted { set: usize },
    /// The address asked for is held.
    Taken { set: usize, ip: IpAddr },
}

/// One address from each range set: a requested one that lies in the set, else a preferred one, else the next free one.
///
/// # Errors
/// A requested address that is never handed out, and requested addresses that no set has, with the reference's texts.
pub(crate) fn choose<'a>(
    config: &'a Config,
    preferred: &[IpAddr],
    cursors: &[Option<IpAddr>],
    held: &mut impl Held,
) -> Result<Result<Vec<Choice<'a>>, Obstacle>> {
    let mut requested = config.requested.clone();
    let mut chosen = Vec::with_capacity(config.sets.len());
    for (number, set) in config.sets.iter().enumerate() {
        let wanted = requested
            .iter()
            .position(|ip| set.range_of(*ip).is_some())
            .map(|at| requested.remove(at));
        let found = match wanted {
            Some(ip) => {
                let range = check_requested(set, ip).map_err(|e| of_set(number, e))?;
                match is_free(held, ip)? {
                    true => (ip, range),
                    false => return Ok(Err(Obstacle::Taken { set: number, ip })),
                }
            }
            None => match preferred_of(set, preferred, held)? {
                Some(found) => found,
                None => match next_free(set, cursors.get(number).copied().flatten(), held)? {
                    Some(found) => found,
                    None => return Ok(Err(Obstacle::Exhausted { set: number })),
                },
            },
        };
        let (ip, range) = found;
        chosen.push(Choice { ip, range, set: number });
    }
    if !requested.is_empty() {
        let rest: String = requested.iter().map(|ip| format!(" {ip}")).collect();
        return Err(Error::internal(format!("failed to allocate all requested IPs:{rest}")));
    }
    Ok(Ok(chosen))
}

/// The error of an obstacle that stays one, with the reference's text.
pub(crate) fn refusal(config: &Config, obstacle: &Obstacle, held: &impl Held) -> Error {
    let text = |set: &usize| config.sets.get(*set).map(RangeSet::to_string).unwrap_or_default();
    match obstacle {
        Obstacle::Exhausted { set } => of_set(
            *set,
            Error::internal(format!("no IP addresses available in range set: {}", text(set))),
        ),
        Obstacle::Taken { set, ip } => {
            let msg = format!("requested IP address {ip} is not available in range set {}", text(set));
            of_set(*set, Error::internal(msg).with_details(held.holder(*ip)))
        }
    }
}

/// The first of the addresses that the set has and may give.
fn preferred_of<'a>(
    set: &'a RangeSet,
    preferred: &[IpAddr],
    held: &mut impl Held,
) -> Result<Option<(IpAddr, &'a Range)>> {
    for ip in preferred {
        if let Ok(range) = check_requested(set, *ip)
            && is_free(held, *ip)?
        {
            return Ok(Some((*ip, range)));
        }
    }
    Ok(None)
}

fn is_free(held: &mut impl Held, ip: IpAddr) -> Result<bool> {
    Ok(held.first_free(Family::of(ip), bits(ip)..=bits(ip))?.is_some())
}

/// Refuses a second allocation for an attachment that holds an address of a set already, unless it asks for another.
///
/// # Errors
/// The reference's text, and in `details` who holds it since when.
pub(crate) fn refuse_duplicate(config: &Config, attachment: &Attachment, own: &[Found]) -> Result<()> {
    for (number, set) in config.sets.iter().enumerate() {
        if config.requested.iter().any(|ip| set.range_of(*ip).is_some()) {
            continue;
        }
        let held = |found: &&Found| {
            found.content.claim(attachment) != Claim::None && found.ip.is_some_and(|ip| set.range_of(ip).is_some())
        };
        // The lowest, so that the answer is always the same.
        if let Some((ip, found)) = own
            .iter()
            .filter(held)
            .filter_map(|found| Some((found.ip?, found)))
            .min_by_key(|(ip, _)| *ip)
        {
            let id = &attachment.container_id;
            let msg = format!("{ip} has been allocated to {id}, duplicate allocation is not allowed");
            return Err(of_set(number, Error::internal(msg).with_details(found.describe())));
        }
    }
    Ok(())
}

fn of_set(number: usize, error: Error) -> Error {
    error.context(format!("failed to allocate for range {number}"))
}

/// What a walk through the directory found to be taken.
pub(crate) struct Taken<'a>(BTreeMap<(Family, Bits), &'a Found>);

impl<'a> Taken<'a> {
    /// All but the files that hold no owner.
    pub(crate) fn of(found: &'a [Found]) -> Taken<'a> {
        let taken = found.iter().filter(|found| found.content != Content::Blank);
        Taken(
            taken
                .filter_map(|found| found.ip.map(|ip| ((Family::of(ip), bits(ip)), found)))
                .collect(),
        )
    }
}

impl Held for Taken<'_> {
    fn first_free(&mut self, family: Family, within: RangeInclusive<Bits>) -> Result<Option<Bits>> {
        let (from, to) = within.into_inner();
        let mut free = from;
        for ((_, taken), _) in self.0.range((family, from)..=(family, to)) {
            if *taken != free {
                break;
            }
            if free == to {
                return Ok(None);
            }
            free += 1;
        }
        Ok(Some(free))
    }

    fn holder(&self, ip: IpAddr) -> String {
        self.0
            .get(&(Family::of(ip), bits(ip)))
            .map(|found| found.describe())
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::range::Entry;

    fn found(taken: impl IntoIterator<Item = IpAddr>) -> Vec<Found> {
        let found = |ip: IpAddr| Found {
            name: ip.to_string(),
            ip: Some(ip),
            content: Content::Owner(b"c".to_vec()),
            stamp: None,
        };
        taken.into_iter().map(found).collect()
    }

    fn set(subnets: &[&str]) -> RangeSet {
        let range = |subnet: &&str| {
            let entry = Entry {
                subnet: subnet.parse().unwrap(),
                start: None,
                end: None,
                gateway: None,
            };
            let mut range = Range::new(&entry).unwrap();
            if let Some(gateway) = range.gateway() {
                range.exclude(Family::of(gateway), bits(gateway)..=bits(gateway));
            }
            range
        };
        RangeSet::new(subnets.iter().map(range).collect()).unwrap()
    }

    fn next(set: &RangeSet, cursor: &str, taken: &[&str]) -> Option<String> {
        let found = found(taken.iter().map(|ip| ip.parse().unwrap()));
        next_free(set, cursor.parse().ok(), &mut Taken::of(&found))
            .unwrap()
            .map(|(ip, _)| ip.to_string())
    }

    #[test]
    fn the_search_starts_past_the_cursor_and_wraps() {
        let one = set(&["10.1.0.0/29"]);
        for (cursor, taken, expected) in [
            ("", &[][..], Some("10.1.0.2")),
            ("junk", &[], Some("10.1.0.2")),
            ("10.9.9.9", &[], Some("10.1.0.2")),
            ("fd00::1", &[], Some("10.1.0.2")),
            ("10.1.0.2", &[], Some("10.1.0.3")),
            ("10.1.0.6", &[], Some("10.1.0.2")),
            ("10.1.0.4", &["10.1.0.5", "10.1.0.6"], Some("10.1.0.2")),
            (
                "10.1.0.4",
                &["10.1.0.5", "10.1.0.6", "10.1.0.2", "10.1.0.3"],
                Some("10.1.0.4"),
            ),
            (
                "10.1.0.4",
                &["10.1.0.5", "10.1.0.6", "10.1.0.2", "10.1.0.3", "10.1.0.4"],
                None,
            ),
        ] {
            assert_eq!(next(&one, cursor, taken).as_deref(), expected, "{cursor} {taken:?}");
        }
    }

    #[test]
    fn the_ranges_of_a_set_are_visited_in_turn() {
        let two = set(&["10.2.0.0/30", "10.1.0.0/30"]);
        assert_eq!(next(&two, "", &[]).as_deref(), Some("10.2.0.2"));
        assert_eq!(next(&two, "10.2.0.2", &[]).as_deref(), Some("10.1.0.2"));
        assert_eq!(next(&two, "10.1.0.2", &[]).as_deref(), Some("10.2.0.2"));
        assert_eq!(next(&two, "10.1.0.2", &["10.2.0.2"]).as_deref(), Some("10.1.0.2"));
        assert_eq!(next(&two, "10.1.0.2", &["10.2.0.2", "10.1.0.2"]), None);
    }

    #[test]
    fn the_ends_of_the_numbers_are_no_trap() {
        let all = set(&["::/0"]);
        assert_eq!(
            next(&all, "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", &[]).as_deref(),
            Some("::2")
        );
        let all = set(&["0.0.0.0/0"]);
        assert_eq!(next(&all, "255.255.255.255", &[]).as_deref(), Some("0.0.0.2"));
        assert_eq!(next(&set(&["10.0.0.9/32"]), "", &[]).as_deref(), Some("10.0.0.9"));
        assert_eq!(next(&set(&["10.0.0.0/31"]), "", &[]).as_deref(), Some("10.0.0.0"));
        assert_eq!(next(&set(&["10.0.0.0/31"]), "10.0.0.0", &["10.0.0.0"]), None);
    }

    #[test]
    fn requested_addresses_are_checked() {
        let set = set(&["10.1.0.0/29"]);
        let check = |ip: &str| {
            check_requested(&set, ip.parse().unwrap())
                .map(|_| ())
                .map_err(|e| e.msg)
        };
        assert_eq!(check("10.1.0.2"), Ok(()));
        assert_eq!(
            check("10.1.0.1"),
            Err("requested ip 10.1.0.1 is subnet's gateway".to_owned())
        );
        assert_eq!(
            check("10.1.0.7"),
            Err("requested ip 10.1.0.7 is never handed out".to_owned())
        );
    }

    /// Every address of the set in the order of the reference's iterator, one by one.
    fn naive(set: &RangeSet, cursor: Option<IpAddr>, taken: &BTreeSet<IpAddr>) -> Option<IpAddr> {
        let family = set.family();
        let all: Vec<IpAddr> = set
            .ranges()
            .iter()
            .flat_map(|range| range.bounds())
            .map(|bits| family.address(bits))
            .collect();
        let start = cursor
            .and_then(|ip| all.iter().position(|other| *other == ip))
            .map_or(0, |at| at + 1);
        let usable = |ip: &IpAddr| {
            set.ranges()
                .iter()
                .any(|range| range.usable().iter().any(|part| part.contains(&bits(*ip))))
        };
        let mut order = all.iter().cycle().skip(start).take(all.len());
        order.find(|ip| usable(ip) && !taken.contains(ip)).copied()
    }

    proptest! {
        #[test]
        fn the_choice_is_that_of_a_naive_search(
            prefixes in prop::collection::vec(26u8..=32, 1..4),
            taken in prop::collection::btree_set(0u32..1024, 0..200),
            excluded in prop::collection::vec((0u32..1024, 1u32..9), 0..4),
            cursor in prop::option::of(0u32..1024),
        ) {
            let ip = |at: u32| Family::V4.address(Bits::from(0x0a00_0000 + at));
            let subnets: Vec<String> =
                prefixes.iter().enumerate().map(|(at, prefix)| format!("{}/{prefix}", ip(at as u32 * 256))).collect();
            let mut set = set(&subnets.iter().map(String::as_str).collect::<Vec<_>>());
            for range in set.ranges_mut() {
                for (at, len) in &excluded {
                    range.exclude(Family::V4, bits(ip(*at))..=bits(ip(at + len)));
                }
            }
            let taken: BTreeSet<IpAddr> = taken.into_iter().map(ip).collect();
            let expected = naive(&set, cursor.map(ip), &taken);
            let chosen = next_free(&set, cursor.map(ip), &mut Taken::of(&found(taken))).unwrap();
            prop_assert_eq!(chosen.map(|(ip, _)| ip), expected);
        }
    }
}
