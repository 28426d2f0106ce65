//! Which of 65,536 neighbouring addresses are held, and what we know about each.
//!
//! A file begins with one bit per address; behind them each address has the room of a [`Record`]. The files are
//! sparse: where nothing was written they take no space.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;

use super::bytes::Reader;
use super::record::{self, Record};
use crate::range::{Bits, Family};
use crate::store::Stamp;
use identity::Here;

/// An address's bits within its chunk.
const INDEX_BITS: u32 = 16;

/// The chunk that an address is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ChunkKey {
    family: Family,
    prefix: Bits,
}

/// A chunk, its bits in memory.
pub(super) struct Chunk {
    /// `None` where there is no file: nothing is held.
    file: Option<File>,
    /// One for each address, by its number within the chunk; as many as [`WORDS`] unless there is no file.
    words: Vec<u64>,
    /// Of the words: the sum of [`mixed`] over all of them.
    checksum: u64,
}

/// The number of words of 64 bits.
const WORDS: usize = 1 << (INDEX_BITS - 6);
/// Behind the words lies the checksum, and behind that the first record.
const CHECKSUM: u64 = WORDS as u64 * 8;
const RECORDS: u64 = CHECKSUM + 64;

/// Records are read in one go as long as no more addresses than this lie from one to the next, and at most so many at
/// once.
const NEIGHBOURS: Bits = 8;
const SPAN: usize = 512;

impl ChunkKey {
    pub(super) fn of(family: Family, bits: Bits) -> ChunkKey {
        ChunkKey {
            family,
            prefix: bits >> INDEX_BITS,
        }
    }

    /// The name of its file.
    pub(super) fn file_name(&self) -> String {
        let family = match self.family {
            Family::V4 => 4,
            Family::V6 => 6,
        };
        format!("{}{family}.{:x}", PREFIX, self.prefix)
    }

    /// The number of its last address.
    pub(super) fn last(&self) -> Bits {
        (self.prefix << INDEX_BITS) | Bits::from(u16::MAX)
    }
}

/// How the names of chunks begin.
pub(super) const PREFIX: &str = "held.";

impl Chunk {
    /// Reads a chunk; `create` makes its file if need be.
    pub(super) fn open(directory: &File, key: ChunkKey, create: bool) -> io::Result<Chunk> {
        let Some(file) = open_file(directory, key, create)? else {
            return Ok(Chunk {
                file: None,
                words: Vec::new(),
                checksum: 0,
            });
        };
        let mut bytes = vec![0; RECORDS as usize];
        read_as_far_as_written(&file, &mut bytes, 0)?;
        let mut reader = Reader(&bytes);
        let words: Vec<u64> = (0..WORDS).map(|_| reader.u64()).collect();
        let checksum = words
            .iter()
            .enumerate()
            .fold(0_u64, |sum, (at, word)| sum.wrapping_add(mixed(at, *word)));
        if checksum != reader.u64() {
            return Err(io::Error::from(io::ErrorKind::InvalidData));
        }
        Ok(Chunk {
            file: Some(file),
            words,
            checksum,
        })
    }

    /// Makes a chunk in which these addresses are held and no other; records that are there stay.
    pub(super) fn replace(directory: &File, key: ChunkKey, held: impl Iterator<Item = Bits>) -> io::Result<Chunk> {
        let mut words = vec![0; WORDS];
        for (word, bit) in held.map(place) {
            if let Some(word) = words.get_mut(word) {
                *word |= bit;
            }
        }
        let checksum = words
            .iter()
            .enumerate()
            .fold(0_u64, |sum, (at, word)| sum.wrapping_add(mixed(at, *word)));
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.extend(checksum.to_le_bytes());
        let chunk = Chunk {
            file: open_file(directory, key, true)?,
            words,
            checksum,
        };
        chunk.write(&bytes, 0)?;
        Ok(chunk)
    }

    /// Whether it can be written.
    pub(super) fn has_file(&self) -> bool {
        self.file.is_some()
    }

    /// The lowest address between two of this chunk, by number, that is not held.
    pub(super) fn first_free(&self, from: Bits, to: Bits) -> Option<Bits> {
        let mut at = from;
        while at <= to {
            let (word, bit) = place(at);
            let held = self.words.get(word).copied().unwrap_or_default();
            // The bits below the first are of no interest.
            let free = !held & !(bit - 1);
            if free != 0 {
                let found = (at & !63) | Bits::from(free.trailing_zeros());
                return (found <= to).then_some(found);
            }
            at = (at | 63).checked_add(1)?;
        }
        None
    }

    /// Notes whether an address is held.
    pub(super) fn set(&mut self, bits: Bits, held: bool) -> io::Result<()> {
        let (at, bit) = place(bits);
        let Some(word) = self.words.get_mut(at) else {
            return Ok(());
        };
        let old = *word;
        *word = if held { old | bit } else { old & !bit };
        let new = *word;
        if old != new {
            self.checksum = self.checksum.wrapping_sub(mixed(at, old)).wrapping_add(mixed(at, new));
            self.write(&new.to_le_bytes(), at as u64 * 8)?;
            self.write(&self.checksum.to_le_bytes(), CHECKSUM)?;
        }
        Ok(())
    }

    /// What is known about an address; a record of another file may still be there.
    pub(super) fn record(&self, bits: Bits) -> io::Result<Option<Record>> {
        let Some(file) = &self.file else { return Ok(None) };
        let mut record = [0; record::SIZE];
        match file.read_exact_at(&mut record, record_offset(bits)) {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            read => read.map(|()| Record::decode(&record)),
        }
    }

    /// Writes down what is known about an address.
    pub(super) fn set_record(&mut self, bits: Bits, record: &Record) -> io::Result<()> {
        self.write(&record.encode(), record_offset(bits))
    }

    /// Writes down that reservations have been seen, each with the file that it is, unless more is known about them.
    ///
    /// Neighbours are read and written at once: there may be tens of thousands.
    pub(super) fn note_seen(&mut self, mut files: Vec<(Bits, Stamp)>, here: &Here) -> io::Result<()> {
        files.sort_unstable_by_key(|(bits, _)| *bits);
        for span in files.chunk_by(|(one, _), (next, _)| next - one <= NEIGHBOURS) {
            for span in span.chunks(SPAN) {
                self.note_seen_in_span(span, here)?;
            }
        }
        Ok(())
    }

    fn note_seen_in_span(&self, span: &[(Bits, Stamp)], here: &Here) -> io::Result<()> {
        let (Some(file), Some((first, _)), Some((last, _))) = (&self.file, span.first(), span.last()) else {
            return Ok(());
        };
        let mut records = vec![[0; record::SIZE]; usize::from(index(*last) - index(*first)) + 1];
        read_as_far_as_written(file, records.as_flattened_mut(), record_offset(*first))?;
        let mut changed = false;
        for (bits, stamp) in span {
            let Some(record) = records.get_mut(usize::from(index(*bits) - index(*first))) else {
                continue;
            };
            if !Record::decode(record.as_slice()).is_some_and(|record| record.is_about(stamp)) {
                *record = Record::seen(stamp, *here).encode();
                changed = true;
            }
        }
        if changed {
            self.write(records.as_flattened(), record_offset(*first))
        } else {
            Ok(())
        }
    }

    fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let file = self
            .file
            .as_ref()
            .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        file.write_all_at(bytes, offset)
    }
}

/// Reads a part of a file; what lies behind its end stays as it is.
fn read_as_far_as_written(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, offset + filled as u64)? {
            0 => break,
            read => filled += read,
        }
    }
    Ok(())
}

fn open_file(directory: &File, key: ChunkKey, create: bool) -> io::Result<Option<File>> {
    let flags = OFlag::O_RDWR | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
    let flags = if create { flags | OFlag::O_CREAT } else { flags };
    match openat(
        directory,
        key.file_name().as_str(),
        flags,
        Mode::from_bits_truncate(0o600),
    ) {
        Err(Errno::ENOENT) if !create => Ok(None),
        opened => Ok(Some(File::from(opened?))),
    }
}

/// What a word adds to the checksum; nothing for one without bits, so that a part never written is right.
fn mixed(at: usize, word: u64) -> u64 {
    let position = (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (word ^ (word >> 31)).wrapping_mul(position | 1);
    mixed ^ (mixed >> 33)
}

/// The word and bit of an address.
fn place(bits: Bits) -> (usize, u64) {
    let index = index(bits);
    (usize::from(index >> 6), 1 << (index & 63))
}

fn record_offset(bits: Bits) -> u64 {
    RECORDS + u64::from(index(bits)) * record::SIZE as u64
}

/// The number within the chunk: the low bits, which is what the conversion keeps.
fn index(bits: Bits) -> u16 {
    bits as u16
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn directory() -> (std::path::PathBuf, File) {
        static SERIAL: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let serial = SERIAL.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("chunk-{}-{serial}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        let directory = File::open(&path).unwrap();
        (path, directory)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn it_is_a_set(
            first in prop::collection::btree_set(0u32..400, 0..300),
            steps in prop::collection::vec((0u32..400, any::<bool>()), 0..60),
            from in 0u32..400,
            len in 0u32..400,
        ) {
            let (path, directory) = directory();
            let base = 0x0a01_0000;
            let key = ChunkKey::of(Family::V4, base);
            let number = |at: u32| base + Bits::from(at);
            let mut model: BTreeSet<u32> = first.clone();
            let mut chunk = Chunk::replace(&directory, key, first.into_iter().map(number)).unwrap();
            for (at, held) in steps {
                chunk.set(number(at), held).unwrap();
                if held { model.insert(at); } else { model.remove(&at); }
            }
            let again = Chunk::open(&directory, key, false).unwrap();
            let expected = (from..=from + len).find(|at| !model.contains(at)).map(number);
            prop_assert_eq!(chunk.first_free(number(from), number(from + len)), expected);
            prop_assert_eq!(again.first_free(number(from), number(from + len)), expected);
            std::fs::remove_dir_all(path).unwrap();
        }
    }

    #[test]
    fn a_chunk_that_was_written_over_is_refused() {
        let (path, directory) = directory();
        let key = ChunkKey::of(Family::V6, 0);
        Chunk::replace(&directory, key, [5, 6, 7].into_iter()).unwrap();
        let file = path.join(key.file_name());
        let good = std::fs::read(&file).unwrap();
        for byte in [0, 100, 8191, 8192] {
            let mut spoilt = good.clone();
            spoilt[byte] ^= 0x10;
            std::fs::write(&file, spoilt).unwrap();
            assert!(Chunk::open(&directory, key, false).is_err(), "{byte}");
        }
        std::fs::write(&file, "").unwrap();
        assert_eq!(Chunk::open(&directory, key, false).unwrap().first_free(5, 5), Some(5));
        std::fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn the_last_addresses_of_all_are_no_trap() {
        let (path, directory) = directory();
        let key = ChunkKey::of(Family::V6, Bits::MAX);
        assert_eq!(key.last(), Bits::MAX);
        let chunk = Chunk::replace(&directory, key, (0..64).map(|at| Bits::MAX - at)).unwrap();
        assert_eq!(chunk.first_free(Bits::MAX - 3, Bits::MAX), None);
        assert_eq!(chunk.first_free(Bits::MAX - 64, Bits::MAX), Some(Bits::MAX - 64));
        std::fs::remove_dir_all(path).unwrap();
    }
}
