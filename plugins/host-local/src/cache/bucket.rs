//! A few addresses with the hashes of their owners, and a checksum.

use std::io;
use std::net::IpAddr;

use super::bytes::{Reader, Writer, hash};
use super::owners::Tag;
use crate::range::{Family, bits};

/// The size in bytes.
pub(super) const SIZE: usize = 512;
const ENTRY: usize = 32;

/// A bucket: a checksum, the flag, and behind these 32 bytes as many entries as fit.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Bucket([u8; SIZE]);

/// Where the flag is: an entry had no room.
const FLAG: usize = 8;

impl Bucket {
    /// One without entries.
    pub(super) const EMPTY: Bucket = Bucket([0; SIZE]);

    /// Reads what [`Bucket::bytes`] gave; a part of a file that was never written is an empty one.
    pub(super) fn from_bytes(bytes: [u8; SIZE]) -> io::Result<Bucket> {
        let bucket = Bucket(bytes);
        if bucket == Bucket::EMPTY || Reader(&bucket.0).u64() == bucket.checksum() {
            Ok(bucket)
        } else {
            Err(io::Error::from(io::ErrorKind::InvalidData))
        }
    }

    /// What to write.
    pub(super) fn bytes(&self) -> [u8; SIZE] {
        let mut bytes = self.0;
        if *self != Bucket::EMPTY {
            Writer(&mut bytes).u64(self.checksum());
        }
        bytes
    }

    /// Whether some entry had no room, so that only the directory knows all addresses of the owners here.
    pub(super) fn is_flagged(&self) -> bool {
        self.0.get(FLAG) != Some(&0)
    }

    /// Notes that an entry had no room.
    pub(super) fn flag(&mut self) {
        if let Some(flag) = self.0.get_mut(FLAG) {
            *flag = 1;
        }
    }

    /// Adds an entry, or flags the bucket where there is no room.
    pub(super) fn add(&mut self, tag: Tag, ip: IpAddr) {
        let free = self
            .0
            .chunks_exact_mut(ENTRY)
            .skip(1)
            .find(|entry| entry.iter().all(|byte| *byte == 0));
        match free {
            Some(entry) => {
                let mut writer = Writer(entry);
                writer.u64(tag.0);
                writer.u64(if ip.is_ipv4() { 4 } else { 6 });
                writer.u128(bits(ip));
            }
            None => self.flag(),
        }
    }

    /// Removes an entry; whether there was one.
    pub(super) fn remove(&mut self, tag: Tag, ip: IpAddr) -> bool {
        let found = self
            .0
            .chunks_exact_mut(ENTRY)
            .skip(1)
            .find(|entry| read_entry(entry) == Some((tag, ip)));
        found.map(|entry| entry.fill(0)).is_some()
    }

    /// The entries.
    pub(super) fn entries(&self) -> impl Iterator<Item = (Tag, IpAddr)> + '_ {
        self.0.chunks_exact(ENTRY).skip(1).filter_map(read_entry)
    }

    fn checksum(&self) -> u64 {
        hash(self.0.get(FLAG..).unwrap_or_default())
    }
}

fn read_entry(entry: &[u8]) -> Option<(Tag, IpAddr)> {
    let mut reader = Reader(entry);
    let tag = Tag(reader.u64());
    let family = match reader.u64() {
        4 => Family::V4,
        6 => Family::V6,
        _ => return None,
    };
    Some((tag, family.address(reader.u128())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_counts() {
        let mut bucket = Bucket::EMPTY;
        assert!(Bucket::from_bytes(bucket.bytes()).is_ok_and(|read| read == Bucket::EMPTY));
        bucket.add(Tag(3), "10.1.0.2".parse().unwrap());
        let bytes = bucket.bytes();
        assert_eq!(
            Bucket::from_bytes(bytes).unwrap().entries().collect::<Vec<_>>(),
            [(Tag(3), "10.1.0.2".parse().unwrap())]
        );
        for bit in 0..SIZE * 8 {
            let mut spoilt = bytes;
            spoilt[bit / 8] ^= 1 << (bit % 8);
            assert!(Bucket::from_bytes(spoilt).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn what_was_added_can_be_removed() {
        let mut bucket = Bucket::EMPTY;
        let ip: IpAddr = "fd00::2".parse().unwrap();
        bucket.add(Tag(3), ip);
        bucket.add(Tag(5), ip);
        assert!(!bucket.remove(Tag(7), ip));
        assert!(bucket.remove(Tag(3), ip));
        assert!(!bucket.remove(Tag(3), ip));
        assert_eq!(bucket.entries().collect::<Vec<_>>(), [(Tag(5), ip)]);
        assert!(!bucket.is_flagged());
        for _ in 0..SIZE / ENTRY {
            bucket.add(Tag(9), ip);
        }
        assert!(bucket.is_flagged());
    }
}
