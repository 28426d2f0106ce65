//! What an attachment holds, kept in the kernel beside it.
//!
//! DEL knows nothing but an attachment's name, and looking through all elements for its own would cost the more the more
//! containers there are. So each table has a set `owners`, which no rule refers to. Its keys are an [`Owner`] and a
//! number; the user data of an owner's elements, in the order of their numbers, are its record. A record changes in the
//! same batch as the elements that it names, so that neither can be without the other, whoever dies when.

use std::collections::BTreeMap;

use cni_types::Attachment;
use nft::{Element, UserData};

use super::owner::Owner;

/// The set's name.
pub(super) const OWNERS: &str = "owners";
/// The format of what follows; a record of another one is left alone.
const VERSION: u8 = 1;
/// How much of a record one element holds: what its user data has room for beside a comment.
const CHUNK: usize = 120;
/// How many elements are asked for before the record's length is known: enough for a few ports.
pub(super) const FIRST_CHUNKS: u32 = 3;

/// One element of a map that belongs to an attachment.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Holding {
    /// The map, by its position in the layout of the table.
    pub(super) map: u8,
    /// The key, or the lower end of a range.
    pub(super) key: Vec<u8>,
    /// The upper end of a range.
    pub(super) key_end: Option<Vec<u8>>,
    /// The value, where it is data. Kept so that it can take its turn when another attachment of the container goes.
    pub(super) data: Option<Vec<u8>>,
}

/// What an attachment holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    /// Whose it is.
    pub(super) attachment: Attachment,
    /// The container's network namespace, as the plugin described it.
    pub(super) netns: Option<String>,
    /// Whether rules of its own exist in a chain of its own, for conditions.
    pub(super) has_conditions: bool,
    /// The elements.
    pub(super) holdings: Vec<Holding>,
}

impl Record {
    /// The elements of the set.
    pub(super) fn elements(&self) -> Vec<Element> {
        let owner = Owner::of(&self.attachment);
        let mut bytes = Writer::default();
        bytes.0.push(VERSION);
        for text in [
            self.attachment.network.as_str(),
            self.attachment.container_id.as_str(),
            self.attachment.ifname.as_str(),
            self.netns.as_deref().unwrap_or_default(),
        ] {
            bytes.field(text.as_bytes());
        }
        bytes.0.push(u8::from(self.has_conditions));
        for holding in &self.holdings {
            bytes.0.push(holding.map);
            bytes.field(&holding.key);
            bytes.field(holding.key_end.as_deref().unwrap_or_default());
            bytes.field(holding.data.as_deref().unwrap_or_default());
        }
        let chunks = bytes.0.chunks(CHUNK);
        let count = chunks.len() as u32;
        (0u32..)
            .zip(chunks)
            .map(|(number, chunk)| Element {
                user_data: UserData {
                    comment: (number == 0).then(|| Owner::comment(&self.attachment)),
                    // The first says how many there are.
                    private: [&count.to_be_bytes(), chunk].concat(),
                },
                ..Element::key(key(owner, number))
            })
            .collect()
    }

    /// Reads the elements of one owner, in the order of their numbers. `None` if one is missing or it is not readable.
    pub(super) fn from_elements(elements: &[Element]) -> Option<Record> {
        let mut bytes = Vec::new();
        for element in elements.iter().take(count(elements.first()?)? as usize) {
            bytes.extend(element.user_data.private.get(4..)?);
        }
        if elements.len() < count(elements.first()?)? as usize {
            return None;
        }
        let mut reader = Reader(&bytes);
        if reader.byte()? != VERSION {
            return None;
        }
        let attachment = Attachment {
            network: reader.text()?.parse().ok()?,
            container_id: reader.text()?.parse().ok()?,
            ifname: reader.text()?.parse().ok()?,
        };
        let netns = Some(reader.text()?).filter(|text| !text.is_empty());
        let has_conditions = reader.byte()? != 0;
        let mut holdings = Vec::new();
        while !reader.0.is_empty() {
            holdings.push(Holding {
                map: reader.byte()?,
                key: reader.field()?.to_vec(),
                key_end: Some(reader.field()?.to_vec()).filter(|bytes| !bytes.is_empty()),
                data: Some(reader.field()?.to_vec()).filter(|bytes| !bytes.is_empty()),
            });
        }
        Some(Record {
            attachment,
            netns,
            has_conditions,
            holdings,
        })
    }

    /// Sorts the elements of the whole set into records.
    pub(super) fn all(elements: Vec<Element>) -> Vec<Record> {
        let mut by_owner: BTreeMap<Owner, BTreeMap<u32, Element>> = BTreeMap::new();
        for element in elements {
            if let Some((owner, number)) = read_key(&element.key) {
                by_owner.entry(owner).or_default().insert(number, element);
            }
        }
        by_owner
            .into_iter()
            .filter_map(|(owner, chunks)| {
                let record = Record::from_elements(&chunks.into_values().collect::<Vec<_>>());
                if record.is_none() {
                    log::warn!("the record of owner {owner:?} is not understood and left alone");
                }
                record
            })
            .collect()
    }
}

/// How many elements a record has, by its first.
pub(super) fn count(first: &Element) -> Option<u32> {
    let bytes = first.user_data.private.first_chunk::<4>()?;
    Some(u32::from_be_bytes(*bytes))
}

/// The key of an owner's element.
pub(super) fn key(owner: Owner, number: u32) -> Vec<u8> {
    nft::concatenate(&[owner.as_bytes(), &number.to_ne_bytes()])
}

fn read_key(key: &[u8]) -> Option<(Owner, u32)> {
    let (owner, number) = key.split_at_checked(Owner::LEN)?;
    Some((Owner::from_bytes(owner)?, u32::from_ne_bytes(number.try_into().ok()?)))
}

#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    /// A field and its length in two bytes; what is longer is cut, which no name that a file system or the kernel takes is.
    fn field(&mut self, field: &[u8]) {
        let len = u16::try_from(field.len()).unwrap_or(u16::MAX);
        self.0.extend(len.to_be_bytes());
        self.0.extend(field.iter().take(usize::from(len)));
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    fn field(&mut self) -> Option<&'a [u8]> {
        let (len, rest) = self.0.split_first_chunk::<2>()?;
        let (field, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*len)))?;
        self.0 = rest;
        Some(field)
    }

    fn text(&mut self) -> Option<String> {
        String::from_utf8(self.field()?.to_vec()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(holdings: usize, container: &str) -> Record {
        Record {
            attachment: Attachment {
                network: "n".parse().unwrap(),
                container_id: container.parse().unwrap(),
                ifname: "eth0".parse().unwrap(),
            },
            netns: Some("4026531840 /run/netns/a".to_owned()),
            has_conditions: false,
            holdings: (0..holdings)
                .map(|i| Holding {
                    map: 1,
                    key: vec![i as u8; 8],
                    key_end: None,
                    data: Some(vec![2; 8]),
                })
                .collect(),
        }
    }

    #[test]
    fn a_record_fits_into_user_data_whatever_its_length() {
        for wanted in [record(0, "c"), record(1, "c"), record(500, &"c".repeat(250))] {
            let elements = wanted.elements();
            assert!(elements.iter().all(|e| e.user_data.to_bytes().len() <= UserData::MAX));
            assert!(
                elements
                    .iter()
                    .all(|e| UserData::from_bytes(&e.user_data.to_bytes()).private == e.user_data.private)
            );
            assert_eq!(Record::from_elements(&elements), Some(wanted.clone()));
            assert_eq!(count(&elements[0]), Some(elements.len() as u32));
        }
    }

    #[test]
    fn records_are_found_in_the_whole_set_in_any_order() {
        let (a, b) = (record(30, "a"), record(2, "b"));
        let mut elements: Vec<_> = a.elements().into_iter().chain(b.elements()).collect();
        elements.reverse();
        let found = Record::all(elements);
        assert_eq!(found.len(), 2);
        assert!(found.contains(&a) && found.contains(&b));
    }

    #[test]
    fn an_incomplete_record_is_none() {
        let mut elements = record(30, "a").elements();
        elements.pop();
        assert_eq!(Record::from_elements(&elements), None);
        assert_eq!(Record::from_elements(&[]), None);
    }

    proptest! {
        #[test]
        fn reading_never_panics(key: Vec<u8>, private: Vec<u8>) {
            let user_data = UserData { comment: None, private };
            let element = Element { user_data, ..Element::key(key) };
            let _ = Record::from_elements(std::slice::from_ref(&element));
            let _ = Record::all(vec![element]);
        }
    }
}
