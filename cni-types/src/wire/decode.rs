//! Types from a [`Value`], by Go's rules; a failure names the key.

use std::cell::RefCell;
use std::fmt;

use serde::de::value::StrDeserializer;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, MapAccess, SeqAccess, Unexpected, VariantAccess,
    Visitor,
};
use serde::forward_to_deserialize_any;

use super::value::{Object, Value};
use crate::Error;

/// A value that does not fit the type, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodeError {
    /// The innermost key first.
    path: Vec<String>,
    message: String,
}

impl DecodeError {
    fn within(mut self, key: impl Into<String>) -> DecodeError {
        self.path.push(key.into());
        self
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (depth, key) in self.path.iter().rev().enumerate() {
            let dot = if depth == 0 || key.starts_with('[') { "" } else { "." };
            write!(f, "{dot}{key}")?;
        }
        let colon = if self.path.is_empty() { "" } else { ": " };
        write!(f, "{colon}{}", self.message)
    }
}

impl std::error::Error for DecodeError {}

impl serde::de::Error for DecodeError {
    fn custom<T: fmt::Display>(message: T) -> DecodeError {
        DecodeError {
            path: Vec::new(),
            message: message.to_string(),
        }
    }
}

impl From<DecodeError> for Error {
    fn from(error: DecodeError) -> Error {
        Error::config(error.to_string())
    }
}

/// Decodes `value` as Go would into a struct of the same shape: see the module's documentation.
///
/// # Errors
///
/// Names the path of the key (`ipam.ranges[0][1].subnet`) and what would be right.
pub fn decode<T: DeserializeOwned>(value: &Value) -> Result<T, DecodeError> {
    T::deserialize(Source(value, None))
}

/// [`decode`], and notes in `seen` which keys the types have for each object.
pub(crate) fn decode_noting<T: DeserializeOwned>(value: &Value, seen: &Seen) -> Result<T, DecodeError> {
    T::deserialize(Source(value, Some(seen)))
}

/// Which keys were asked for, object by object. An object is known by the place of its entries, which stays while it is not
/// changed, wherever the object itself is moved to.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen(RefCell<Vec<(usize, &'static [&'static str])>>);

impl Seen {
    fn note(&self, object: &Object, fields: &'static [&'static str]) {
        self.0.borrow_mut().push((object.0.as_ptr().addr(), fields));
    }

    /// All keys that were asked for in `object`; none where no type was decoded from it.
    pub(crate) fn keys_of(&self, object: &Object) -> Vec<&'static str> {
        let place = object.0.as_ptr().addr();
        let seen = self.0.borrow();
        let of_object = seen.iter().filter(|(at, _)| *at == place);
        of_object.flat_map(|(_, fields)| fields.iter().copied()).collect()
    }
}

#[derive(Clone, Copy)]
struct Source<'a>(&'a Value, Option<&'a Seen>);

impl<'a> Source<'a> {
    fn unexpected(self) -> Unexpected<'a> {
        match self.0 {
            Value::Null => Unexpected::Unit,
            Value::Bool(value) => Unexpected::Bool(*value),
            Value::Number(number) => match (number.as_u64(), number.as_i64(), number.as_f64()) {
                (Some(value), ..) => Unexpected::Unsigned(value),
                (_, Some(value), _) => Unexpected::Signed(value),
                (.., value) => Unexpected::Float(value.unwrap_or(f64::NAN)),
            },
            Value::String(text) => Unexpected::Str(text),
            Value::Array(_) => Unexpected::Seq,
            Value::Object(_) => Unexpected::Map,
        }
    }
}

impl<'de> Deserializer<'de> for Source<'_> {
    type Error = DecodeError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.0 {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::Number(number) => match (number.as_u64(), number.as_i64(), number.as_f64()) {
                (Some(value), ..) => visitor.visit_u64(value),
                (_, Some(value), _) => visitor.visit_i64(value),
                (.., value) => visitor.visit_f64(value.unwrap_or(f64::NAN)),
            },
            Value::String(text) => visitor.visit_str(text),
            Value::Array(items) => visitor.visit_seq(Items {
                items: items.iter(),
                index: 0,
                seen: self.1,
            }),
            Value::Object(object) => visitor.visit_map(Entries::of_map(object, self.1)),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.0 {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        match self.0 {
            Value::Object(object) => {
                if let Some(seen) = self.1 {
                    seen.note(object, fields);
                }
                visitor.visit_map(Entries::of_struct(object, fields, self.1))
            }
            _ => Err(serde::de::Error::invalid_type(self.unexpected(), &"an object")),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        match self.0 {
            Value::String(text) => visitor.visit_enum(UnitVariant(text)),
            _ => Err(serde::de::Error::invalid_type(self.unexpected(), &"a string")),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map identifier ignored_any
    }
}

struct Items<'a> {
    items: std::slice::Iter<'a, Value>,
    index: usize,
    seen: Option<&'a Seen>,
}

impl<'de> SeqAccess<'de> for Items<'_> {
    type Error = DecodeError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, DecodeError> {
        let Some(item) = self.items.next() else { return Ok(None) };
        let index = self.index;
        self.index += 1;
        seed.deserialize(Source(item, self.seen))
            .map(Some)
            .map_err(|e| e.within(format!("[{index}]")))
    }
}

/// The entries of an object as the target sees them: at most one for each key.
struct Entries<'a> {
    entries: std::vec::IntoIter<(&'a str, &'a Value)>,
    value: Option<(&'a str, &'a Value)>,
    seen: Option<&'a Seen>,
}

impl<'a> Entries<'a> {
    fn new(entries: Vec<(&'a str, &'a Value)>, seen: Option<&'a Seen>) -> Entries<'a> {
        Entries {
            entries: entries.into_iter(),
            value: None,
            seen,
        }
    }

    fn of_struct(object: &'a Object, fields: &'static [&'static str], seen: Option<&'a Seen>) -> Entries<'a> {
        Entries::new(
            fields
                .iter()
                .filter_map(|&name| Some((name, object.field(name)?)))
                .collect(),
            seen,
        )
    }

    fn of_map(object: &'a Object, seen: Option<&'a Seen>) -> Entries<'a> {
        let mut last: Vec<(&str, &Value)> = Vec::new();
        for (key, value) in object.entries() {
            last.retain(|(seen, _)| *seen != key);
            last.push((key, value));
        }
        Entries::new(last, seen)
    }
}

impl<'de> MapAccess<'de> for Entries<'_> {
    type Error = DecodeError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, DecodeError> {
        self.value = self.entries.next();
        self.value
            .map(|(key, _)| seed.deserialize(StrDeserializer::new(key)))
            .transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, DecodeError> {
        let (key, value) = self
            .value
            .take()
            .ok_or_else(|| serde::de::Error::custom("a value without its key"))?;
        seed.deserialize(Source(value, self.seen))
            .map_err(|e: DecodeError| e.within(key))
    }
}

struct UnitVariant<'a>(&'a str);

impl<'de> EnumAccess<'de> for UnitVariant<'_> {
    type Error = DecodeError;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), DecodeError> {
        Ok((seed.deserialize(StrDeserializer::new(self.0))?, self))
    }
}

impl<'de> VariantAccess<'de> for UnitVariant<'_> {
    type Error = DecodeError;

    fn unit_variant(self) -> Result<(), DecodeError> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, _seed: T) -> Result<T::Value, DecodeError> {
        Err(serde::de::Error::custom("a name without data"))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _len: usize, _visitor: V) -> Result<V::Value, DecodeError> {
        Err(serde::de::Error::custom("a name without data"))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _fields: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, DecodeError> {
        Err(serde::de::Error::custom("a name without data"))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;
    use crate::wire::parse;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Bridge {
        mtu: u16,
        is_gateway: bool,
        host_port: Option<u16>,
        ranges: Vec<Vec<Range>>,
        labels: BTreeMap<String, String>,
    }

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default)]
    struct Range {
        subnet: String,
    }

    fn read(text: &str) -> Result<Bridge, String> {
        decode(&parse(text.as_bytes()).unwrap()).map_err(|e| e.to_string())
    }

    #[test]
    fn keys_match_whatever_their_case() {
        assert_eq!(
            read(r#"{"HostPort": 80, "ISGATEWAY": true}"#).unwrap(),
            Bridge {
                host_port: Some(80),
                is_gateway: true,
                ..Bridge::default()
            }
        );
    }

    #[test]
    fn null_is_absent_and_the_last_duplicate_wins() {
        assert_eq!(read(r#"{"mtu": null, "hostPort": null}"#).unwrap(), Bridge::default());
        assert_eq!(read(r#"{"mtu": 1, "MTU": 2, "mtu": 3, "Mtu": 4}"#).unwrap().mtu, 4);
        assert_eq!(read(r#"{"mtu": 1, "mtu": null}"#).unwrap().mtu, 1);
    }

    #[test]
    fn keys_of_a_map_are_exact() {
        let labels = read(r#"{"labels": {"a": "1", "A": "2", "a": "3"}}"#).unwrap().labels;
        assert_eq!(
            labels,
            BTreeMap::from([("a".into(), "3".into()), ("A".into(), "2".into())])
        );
    }

    #[test]
    fn a_failure_names_the_key() {
        assert_eq!(
            read(r#"{"mtu": "1500"}"#).unwrap_err(),
            r#"mtu: invalid type: string "1500", expected u16"#
        );
        assert_eq!(
            read(r#"{"mtu": 70000}"#).unwrap_err(),
            "mtu: invalid value: integer `70000`, expected u16"
        );
        assert_eq!(
            read(r#"{"ranges": [[{}], [{}, {"subnet": 5}]]}"#).unwrap_err(),
            "ranges[1][1].subnet: invalid type: integer `5`, expected a string"
        );
        assert_eq!(
            read(r#"{"ranges": [[null]]}"#).unwrap_err(),
            "ranges[0][0]: invalid type: unit value, expected an object"
        );
        assert_eq!(read("[1]").unwrap_err(), "invalid type: sequence, expected an object");
    }

    #[test]
    fn what_is_no_json_is_told_where() {
        assert_eq!(parse(b"{\"a\": 1").unwrap_err().msg, "unexpected end of JSON input");
        assert_eq!(parse(b"").unwrap_err().msg, "unexpected end of JSON input");
        assert!(
            parse(b"{} {}")
                .unwrap_err()
                .msg
                .contains("trailing characters at line 1 column 4")
        );
        assert!(parse(b"{\"a\": \"\xff\"}").unwrap_err().msg.contains("invalid unicode"));
        assert!(
            parse(&vec![b' '; super::super::INPUT_LIMIT])
                .unwrap_err()
                .msg
                .contains("16 MiB")
        );
        assert_eq!(parse(b"{}").unwrap(), Value::Object(Object::default()));
        // Deep nesting is refused before the stack is at risk.
        assert!(parse(&[b'['; 100_000]).unwrap_err().msg.contains("recursion limit"));
    }
}
