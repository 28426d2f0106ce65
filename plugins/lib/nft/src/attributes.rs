//! Netlink attributes: a kind, a length, and bytes or more attributes, padded to four bytes (netlink.h).

use crate::Error;

/// A list of attributes that is being written. Numbers are big endian, as everywhere in netfilter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attributes {
    bytes: Vec<u8>,
    too_long: bool,
}

const HEADER: usize = 4;
/// `NLA_F_NESTED`: the value is a list of attributes itself.
const NESTED: u16 = 0x8000;
/// `NLA_TYPE_MASK`: the kind without its flags.
const KIND: u16 = 0x3fff;

impl Attributes {
    /// No attribute yet.
    pub fn new() -> Attributes {
        Attributes::default()
    }

    /// Adds bytes as they are.
    pub fn bytes(&mut self, kind: u16, value: &[u8]) -> &mut Attributes {
        match u16::try_from(HEADER + value.len()) {
            Ok(len) => {
                self.bytes.extend(len.to_ne_bytes());
                self.bytes.extend(kind.to_ne_bytes());
                self.bytes.extend(value);
                self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
            }
            Err(_) => self.too_long = true,
        }
        self
    }

    /// Adds one byte.
    pub fn u8(&mut self, kind: u16, value: u8) -> &mut Attributes {
        self.bytes(kind, &[value])
    }

    /// Adds a 16-bit number.
    pub fn u16(&mut self, kind: u16, value: u16) -> &mut Attributes {
        self.bytes(kind, &value.to_be_bytes())
    }

    /// Adds a 32-bit number.
    pub fn u32(&mut self, kind: u16, value: u32) -> &mut Attributes {
        self.bytes(kind, &value.to_be_bytes())
    }

    /// Adds a 64-bit number.
    pub fn u64(&mut self, kind: u16, value: u64) -> &mut Attributes {
        self.bytes(kind, &value.to_be_bytes())
    }

    /// Adds a text, terminated by a zero.
    pub fn text(&mut self, kind: u16, value: &str) -> &mut Attributes {
        self.bytes(kind, &[value.as_bytes(), b"\0"].concat())
    }

    /// Adds the list of attributes that `fill` writes.
    pub fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Attributes)) -> &mut Attributes {
        let mut inner = Attributes::new();
        fill(&mut inner);
        self.too_long |= inner.too_long;
        self.nested_bytes(kind, &inner.bytes)
    }

    /// Adds a list of attributes that was read before.
    pub fn nested_bytes(&mut self, kind: u16, list: &[u8]) -> &mut Attributes {
        self.bytes(kind | NESTED, list)
    }

    /// Adds all attributes of another list.
    pub fn append(&mut self, other: &Attributes) -> &mut Attributes {
        self.too_long |= other.too_long;
        self.bytes.extend(&other.bytes);
        self
    }

    /// What was written.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether an attribute was left out because it is longer than its length field can say.
    pub(crate) fn is_too_long(&self) -> bool {
        self.too_long
    }
}

/// A list of attributes as the kernel sent it.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    attributes: Vec<Attribute<'a>>,
}

#[derive(Debug, Clone, Copy)]
struct Attribute<'a> {
    kind: u16,
    nested: bool,
    value: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Splits bytes into attributes.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] when a length does not fit.
    pub fn new(mut bytes: &'a [u8]) -> Result<Reader<'a>, Error> {
        const WRONG: Error = Error::Malformed("an attribute's length");
        let mut attributes = Vec::new();
        while let Some((header, _)) = bytes.split_first_chunk::<HEADER>() {
            let [l0, l1, k0, k1] = *header;
            let (len, kind) = (usize::from(u16::from_ne_bytes([l0, l1])), u16::from_ne_bytes([k0, k1]));
            let value = bytes.get(HEADER..len).ok_or(WRONG)?;
            attributes.push(Attribute {
                kind: kind & KIND,
                nested: kind & NESTED != 0,
                value,
            });
            // The last one may lack its padding.
            bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        }
        match bytes {
            [] => Ok(Reader { attributes }),
            _ => Err(WRONG),
        }
    }

    /// The value of the first attribute of a kind.
    pub fn get(&self, kind: u16) -> Option<&'a [u8]> {
        self.all(kind).next()
    }

    /// The values of all attributes of a kind, in order.
    pub fn all(&self, kind: u16) -> impl Iterator<Item = &'a [u8]> + '_ {
        self.attributes
            .iter()
            .filter(move |attribute| attribute.kind == kind)
            .map(|attribute| attribute.value)
    }

    /// A byte; `None` if absent or of another size.
    pub fn u8(&self, kind: u16) -> Option<u8> {
        self.get(kind)?.try_into().ok().map(u8::from_be_bytes)
    }

    /// A 16-bit number; `None` if absent or of another size.
    pub fn u16(&self, kind: u16) -> Option<u16> {
        self.get(kind)?.try_into().ok().map(u16::from_be_bytes)
    }

    /// A 32-bit number; `None` if absent or of another size.
    pub fn u32(&self, kind: u16) -> Option<u32> {
        self.get(kind)?.try_into().ok().map(u32::from_be_bytes)
    }

    /// A 64-bit number; `None` if absent or of another size.
    pub fn u64(&self, kind: u16) -> Option<u64> {
        self.get(kind)?.try_into().ok().map(u64::from_be_bytes)
    }

    /// A text up to its terminating zero; `None` if absent or not UTF-8.
    pub fn text(&self, kind: u16) -> Option<&'a str> {
        let value = self.get(kind)?;
        std::str::from_utf8(value.split(|&byte| byte == 0).next()?).ok()
    }

    /// The list inside an attribute; an empty list if absent.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] as of [`Reader::new`].
    pub fn nested(&self, kind: u16) -> Result<Reader<'a>, Error> {
        Reader::new(self.get(kind).unwrap_or_default())
    }
}

/// Whether `seen`, as the kernel sent it, says everything that `written` says.
///
/// The kernel adds attributes of its own, such as defaults and handles, so kinds that `written` lacks are ignored; a kind
/// that it has must be there as often, in the same order, with the same values.
pub fn covers(written: &[u8], seen: &[u8]) -> bool {
    let (Ok(written), Ok(seen)) = (Reader::new(written), Reader::new(seen)) else {
        return false;
    };
    written.attributes.iter().all(|attribute| {
        let same_kind = |other: &&Attribute<'_>| other.kind == attribute.kind;
        let wanted: Vec<_> = written.attributes.iter().filter(same_kind).collect();
        let found: Vec<_> = seen.attributes.iter().filter(same_kind).collect();
        wanted.len() == found.len()
            && wanted.iter().zip(found).all(|(wanted, found)| match wanted.nested {
                true => covers(wanted.value, found.value),
                false => wanted.value == found.value,
            })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn attributes_are_padded_and_nested() {
        let mut list = Attributes::new();
        list.text(1, "abc")
            .u8(2, 7)
            .nest(3, |inner| {
                inner.u32(1, 0x0102_0304);
            })
            .u16(4, 5);
        assert_eq!(
            list.as_bytes(),
            [
                8, 0, 1, 0, b'a', b'b', b'c', 0, // text
                5, 0, 2, 0, 7, 0, 0, 0, // byte and padding
                12, 0, 3, 0x80, 8, 0, 1, 0, 1, 2, 3, 4, // nested, marked as such
                6, 0, 4, 0, 0, 5, 0, 0,
            ]
        );
        let read = Reader::new(list.as_bytes()).unwrap();
        assert_eq!(read.text(1), Some("abc"));
        assert_eq!(read.u8(2), Some(7));
        assert_eq!(read.nested(3).unwrap().u32(1), Some(0x0102_0304));
        assert_eq!(read.u32(4), None, "of another size");
        assert_eq!(read.get(9), None);
    }

    #[test]
    fn a_value_that_does_not_fit_is_noticed() {
        let mut list = Attributes::new();
        list.nest(1, |inner| {
            inner.bytes(1, &vec![0; 70_000]);
        });
        assert!(list.is_too_long());
    }

    #[test]
    fn what_the_kernel_adds_does_not_count_as_a_difference() {
        let list = |fill: &dyn Fn(&mut Attributes)| {
            let mut list = Attributes::new();
            list.nest(1, |inner| fill(inner));
            list
        };
        let written = list(&|a| {
            a.u32(1, 5);
        });
        for (seen, same) in [
            (list(&|a| _ = a.u32(1, 5)), true),
            (list(&|a| _ = a.u32(7, 9).u32(1, 5)), true),
            (list(&|a| _ = a.u32(1, 6)), false),
            (list(&|a| _ = a.u32(1, 5).u32(1, 5)), false),
            (list(&|_| ()), false),
        ] {
            assert_eq!(covers(written.as_bytes(), seen.as_bytes()), same, "{seen:?}");
        }
        assert!(!covers(written.as_bytes(), &[1]));
    }

    proptest! {
        #[test]
        fn reading_never_panics(bytes: Vec<u8>) {
            if let Ok(list) = Reader::new(&bytes) {
                let _ = (list.u8(0), list.u16(0), list.u32(1), list.u64(2), list.text(1), list.nested(1).is_ok());
            }
            let _ = covers(&bytes, &bytes);
        }

        #[test]
        fn what_is_written_is_read(kind in 0..=KIND, value in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut list = Attributes::new();
            list.bytes(kind, &value);
            prop_assert_eq!(Reader::new(list.as_bytes()).unwrap().get(kind), Some(value.as_slice()));
            prop_assert!(covers(list.as_bytes(), list.as_bytes()));
        }
    }
}
