//! Netlink attributes, read leniently: a plugin needs a handful of the hundred attributes of a link, and one that it does
//! not need must never make the link unreadable, whatever a driver or a newer kernel puts into it. So the typed parsers
//! of netlink-packet-route, which decode all of them or fail, are used for sending only.

use std::net::IpAddr;

use netlink_packet_core::NlasIterator;

use crate::error::Failure;

/// One attribute, flags removed from its type.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attribute<'a> {
    pub(crate) kind: u16,
    pub(crate) value: &'a [u8],
}

/// `sizeof(struct nlattr)`.
const HEADER_LEN: usize = 4;

/// The attributes in `bytes`. Ends after the first malformed one.
pub(crate) fn attributes(bytes: &[u8]) -> impl Iterator<Item = Result<Attribute<'_>, Failure>> {
    NlasIterator::new(bytes).map(|attribute| {
        let attribute = attribute.map_err(|_| Failure::malformed("attribute"))?;
        let (kind, length) = (attribute.kind(), usize::from(attribute.length()));
        let value = attribute.into_inner().get(HEADER_LEN..length).unwrap_or_default();
        Ok(Attribute { kind, value })
    })
}

impl Attribute<'_> {
    pub(crate) fn u8(&self) -> Result<u8, Failure> {
        self.array().map(|[byte]| byte)
    }

    pub(crate) fn u16(&self) -> Result<u16, Failure> {
        self.array().map(u16::from_ne_bytes)
    }

    pub(crate) fn u32(&self) -> Result<u32, Failure> {
        self.array().map(u32::from_ne_bytes)
    }

    pub(crate) fn i32(&self) -> Result<i32, Failure> {
        self.array().map(i32::from_ne_bytes)
    }

    pub(crate) fn flag(&self) -> Result<bool, Failure> {
        self.u8().map(|byte| byte != 0)
    }

    pub(crate) fn text(&self) -> String {
        text(self.value)
    }

    pub(crate) fn ip(&self) -> Result<IpAddr, Failure> {
        ip(self.value).ok_or_else(|| self.malformed())
    }

    pub(crate) fn malformed(&self) -> Failure {
        Failure::malformed(format_args!("attribute {}", self.kind))
    }

    fn array<const N: usize>(&self) -> Result<[u8; N], Failure> {
        self.value.try_into().map_err(|_| self.malformed())
    }
}

/// An address of either family, told apart by its length.
pub(crate) fn ip(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
        _ => None,
    }
}

/// A text up to its terminating zero. The kernel takes any bytes in names and aliases, so what is no UTF-8 is replaced.
pub(crate) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(bytes.get(..end).unwrap_or(bytes)).into_owned()
}
