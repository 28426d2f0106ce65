//! The objects of a ruleset, less rules: tables, chains, sets and maps, elements.

use std::fmt;

use crate::attributes::{Attributes, Reader};
use crate::error::Error;
use crate::user_data::UserData;

/// A table's family (`NFPROTO_*` of netfilter.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Family {
    /// IPv4 and IPv6 together.
    Inet = 1,
    /// IPv4.
    Ipv4 = 2,
    /// Frames that pass a bridge.
    Bridge = 7,
    /// IPv6.
    Ipv6 = 10,
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::Inet => "inet",
            Family::Ipv4 => "ip",
            Family::Bridge => "bridge",
            Family::Ipv6 => "ip6",
        })
    }
}

/// A table's full name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Table {
    /// Its family.
    pub family: Family,
    /// Its name within the family.
    pub name: String,
}

impl Table {
    /// A table's full name.
    pub fn new(family: Family, name: impl Into<String>) -> Table {
        Table {
            family,
            name: name.into(),
        }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "table {} {}", self.family, self.name)
    }
}

/// Where packets enter a base chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hook {
    /// The type: `filter`, `nat` or `route`.
    pub kind: &'static str,
    /// `NF_INET_*` of netfilter.h, or `NF_BR_*`, which have the same numbers.
    pub number: u32,
    /// Lower numbers come first.
    pub priority: i32,
}

impl Hook {
    /// `NF_INET_PRE_ROUTING`.
    pub const PREROUTING: u32 = 0;
    /// `NF_INET_FORWARD`.
    pub const FORWARD: u32 = 2;
    /// `NF_INET_LOCAL_OUT`.
    pub const OUTPUT: u32 = 3;
    /// `NF_INET_POST_ROUTING`.
    pub const POSTROUTING: u32 = 4;
}

/// A chain as it is to be made. A base chain's policy is to accept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// Its name within the table.
    pub name: String,
    /// `None` for a chain that only rules and verdict maps lead to.
    pub hook: Option<Hook>,
}

/// A data type as nft knows it: its number there (libnftables' datatype.h) and its size in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataType {
    /// The number; the kernel keeps it for nft and does not look at it.
    pub number: u32,
    /// The size in bytes.
    pub size: u32,
}

/// The data types of keys and values here.
pub mod types {
    use super::DataType;

    /// An IPv4 address.
    pub const IPV4_ADDR: DataType = DataType { number: 7, size: 4 };
    /// An IPv6 address.
    pub const IPV6_ADDR: DataType = DataType { number: 8, size: 16 };
    /// A transport protocol.
    pub const INET_PROTO: DataType = DataType { number: 12, size: 1 };
    /// A port.
    pub const INET_SERVICE: DataType = DataType { number: 13, size: 2 };
    /// An interface's name, zero filled.
    pub const IFNAME: DataType = DataType { number: 41, size: 16 };
    /// A packet mark: 32 bits in the machine's byte order.
    pub const MARK: DataType = DataType { number: 19, size: 4 };
}

/// What a set's elements lead to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SetValue {
    /// Nothing: a plain set.
    None,
    /// A value of these types, concatenated.
    Data(Vec<DataType>),
    /// A verdict.
    Verdict,
}

/// A set or map as it is to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Set {
    /// Its name within the table.
    pub name: String,
    /// The types that its keys are concatenated of.
    pub key: Vec<DataType>,
    /// What its elements lead to.
    pub value: SetValue,
    /// Whether elements are ranges, from [`Element::key`] to [`Element::key_end`] in every field. Such a key needs two
    /// fields or more: the kernel stores single ones in another way, which is not written here.
    pub interval: bool,
}

impl Set {
    /// A set of keys.
    pub fn keys(name: impl Into<String>, key: &[DataType]) -> Set {
        Set {
            name: name.into(),
            key: key.to_vec(),
            value: SetValue::None,
            interval: false,
        }
    }

    /// A map from keys to values.
    pub fn map(name: impl Into<String>, key: &[DataType], value: &[DataType]) -> Set {
        Set {
            value: SetValue::Data(value.to_vec()),
            ..Set::keys(name, key)
        }
    }

    /// A map from keys to verdicts.
    pub fn verdict_map(name: impl Into<String>, key: &[DataType]) -> Set {
        Set {
            value: SetValue::Verdict,
            ..Set::keys(name, key)
        }
    }

    /// The same set with ranges as its elements.
    #[must_use]
    pub fn with_intervals(self) -> Set {
        Set { interval: true, ..self }
    }
}

/// What becomes of a packet.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// The hook lets it pass.
    Accept,
    /// It is gone.
    Drop,
    /// Back to the chain that jumped here; a base chain's policy where none did.
    Return,
    /// On in a chain, and back here at its end.
    Jump(String),
    /// On in a chain, and at its end to where this chain would return.
    Goto(String),
}

const NFTA_DATA_VALUE: u16 = 1;
const NFTA_DATA_VERDICT: u16 = 2;
const NFTA_VERDICT_CODE: u16 = 1;
const NFTA_VERDICT_CHAIN: u16 = 2;

impl Verdict {
    /// The chain that it leads to.
    pub fn chain(&self) -> Option<&str> {
        match self {
            Verdict::Jump(chain) | Verdict::Goto(chain) => Some(chain),
            Verdict::Accept | Verdict::Drop | Verdict::Return => None,
        }
    }

    /// `NF_*` of netfilter.h and `NFT_*` of enum nft_verdicts.
    fn code(&self) -> i32 {
        match self {
            Verdict::Drop => 0,
            Verdict::Accept => 1,
            Verdict::Jump(_) => -3,
            Verdict::Goto(_) => -4,
            Verdict::Return => -5,
        }
    }

    pub(crate) fn write(&self, data: &mut Attributes) {
        data.nest(NFTA_DATA_VERDICT, |verdict| {
            verdict.bytes(NFTA_VERDICT_CODE, &self.code().to_be_bytes());
            if let Some(chain) = self.chain() {
                verdict.text(NFTA_VERDICT_CHAIN, chain);
            }
        });
    }

    /// Reads the attributes of a verdict (`NFTA_VERDICT_*`).
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`], also for verdicts that are none of these, such as a queue.
    pub fn read(verdict: &Reader<'_>) -> Result<Verdict, Error> {
        const WRONG: Error = Error::Malformed("a verdict");
        let chain = || verdict.text(NFTA_VERDICT_CHAIN).map(str::to_owned).ok_or(WRONG);
        match verdict.u32(NFTA_VERDICT_CODE).ok_or(WRONG)?.cast_signed() {
            0 => Ok(Verdict::Drop),
            1 => Ok(Verdict::Accept),
            -3 => Ok(Verdict::Jump(chain()?)),
            -4 => Ok(Verdict::Goto(chain()?)),
            -5 => Ok(Verdict::Return),
            _ => Err(WRONG),
        }
    }
}

/// What one element of a map leads to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Value {
    /// A value, laid out as [`concatenate`] does.
    Data(Vec<u8>),
    /// A verdict.
    Verdict(Verdict),
}

/// An element of a set or map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Element {
    /// The key, or the lower end of a range, laid out as [`concatenate`] does.
    pub key: Vec<u8>,
    /// The upper end of a range, itself included.
    pub key_end: Option<Vec<u8>>,
    /// What it leads to, in a map.
    pub value: Option<Value>,
    /// What is remembered with it.
    pub user_data: UserData,
}

const NFTA_SET_ELEM_KEY: u16 = 1;
const NFTA_SET_ELEM_DATA: u16 = 2;
const NFTA_SET_ELEM_USERDATA: u16 = 6;
const NFTA_SET_ELEM_KEY_END: u16 = 10;

impl Element {
    /// An element that is only named: to look it up, or to delete it.
    pub fn key(key: Vec<u8>) -> Element {
        Element {
            key,
            key_end: None,
            value: None,
            user_data: UserData::default(),
        }
    }

    pub(crate) fn write(&self, element: &mut Attributes) {
        element.nest(NFTA_SET_ELEM_KEY, |key| _ = key.bytes(NFTA_DATA_VALUE, &self.key));
        if let Some(end) = &self.key_end {
            element.nest(NFTA_SET_ELEM_KEY_END, |key| _ = key.bytes(NFTA_DATA_VALUE, end));
        }
        if let Some(value) = &self.value {
            element.nest(NFTA_SET_ELEM_DATA, |data| match value {
                Value::Data(bytes) => _ = data.bytes(NFTA_DATA_VALUE, bytes),
                Value::Verdict(verdict) => verdict.write(data),
            });
        }
        if !self.user_data.is_empty() {
            element.bytes(NFTA_SET_ELEM_USERDATA, &self.user_data.to_bytes());
        }
    }

    pub(crate) fn read(element: &Reader<'_>) -> Result<Element, Error> {
        let key = element.nested(NFTA_SET_ELEM_KEY)?;
        let data = element.nested(NFTA_SET_ELEM_DATA)?;
        let value = match (data.get(NFTA_DATA_VALUE), data.get(NFTA_DATA_VERDICT)) {
            (Some(bytes), _) => Some(Value::Data(bytes.to_vec())),
            (None, Some(verdict)) => Some(Value::Verdict(Verdict::read(&Reader::new(verdict)?)?)),
            (None, None) => None,
        };
        let key_end = element.nested(NFTA_SET_ELEM_KEY_END)?;
        Ok(Element {
            key: key.get(NFTA_DATA_VALUE).unwrap_or_default().to_vec(),
            key_end: key_end.get(NFTA_DATA_VALUE).map(<[u8]>::to_vec),
            value,
            user_data: UserData::from_bytes(element.get(NFTA_SET_ELEM_USERDATA).unwrap_or_default()),
        })
    }
}

/// Lays out the fields of a key or value: each begins at a multiple of four bytes, as registers do. A single field is not
/// padded at its end.
pub fn concatenate(fields: &[&[u8]]) -> Vec<u8> {
    match fields {
        [single] => single.to_vec(),
        _ => fields.iter().fold(Vec::new(), |mut bytes, field| {
            bytes.extend(*field);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            bytes
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fields_begin_at_multiples_of_four() {
        assert_eq!(concatenate(&[&[6], &[0x1f, 0x90]]), [6, 0, 0, 0, 0x1f, 0x90, 0, 0]);
        assert_eq!(concatenate(&[&[0, 80]]), [0, 80]);
    }

    #[test]
    fn elements_are_read_as_they_are_written() {
        for element in [
            Element::key(vec![1, 2, 3, 4]),
            Element {
                key: vec![1; 8],
                key_end: Some(vec![2; 8]),
                value: Some(Value::Data(vec![10, 0, 0, 2])),
                user_data: UserData::comment("mine"),
            },
            Element {
                value: Some(Value::Verdict(Verdict::Goto("there".to_owned()))),
                ..Element::key(vec![1, 2, 3, 4])
            },
        ] {
            let mut written = Attributes::new();
            element.write(&mut written);
            assert_eq!(
                Element::read(&Reader::new(written.as_bytes()).unwrap()).unwrap(),
                element
            );
        }
    }

    #[test]
    fn every_verdict_is_read_as_it_is_written() {
        for verdict in [
            Verdict::Accept,
            Verdict::Drop,
            Verdict::Return,
            Verdict::Jump("a".to_owned()),
            Verdict::Goto("b".to_owned()),
        ] {
            let mut data = Attributes::new();
            verdict.write(&mut data);
            let data = Reader::new(data.as_bytes()).unwrap();
            assert_eq!(
                Verdict::read(&data.nested(NFTA_DATA_VERDICT).unwrap()).unwrap(),
                verdict
            );
        }
    }

    proptest! {
        #[test]
        fn reading_never_panics(bytes: Vec<u8>) {
            if let Ok(reader) = Reader::new(&bytes) {
                let _ = Element::read(&reader).is_ok();
                let _ = Verdict::read(&reader).is_ok();
            }
        }
    }
}
