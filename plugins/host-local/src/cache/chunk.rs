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

use super::record::{self, Record};
use crate::range::{Bits, Family};

/// An address's bits within its chunk.
const INDEX_BITS: u32 = 16;
const BITMAP_BYTES: usize = 1 << (INDEX_BITS - 3);

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
    bitmap: Vec<u8>,
}

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
        let flags = OFlag::O_RDWR | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
        let flags = if create { flags | OFlag::O_CREAT } else { flags };
        let file = match openat(
            directory,
            key.file_name().as_str(),
            flags,
            Mode::from_bits_truncate(0o600),
        ) {
            Err(Errno::ENOENT) => {
                return Ok(Chunk {
                    file: None,
                    bitmap: Vec::new(),
                });
            }
            opened => File::from(opened?),
        };
        let mut bitmap = vec![0; BITMAP_BYTES];
        let mut filled = 0;
        while let Some(rest) = bitmap.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match file.read_at(rest, filled as u64)? {
                0 => break,
                read => filled += read,
            }
        }
        Ok(Chunk {
            file: Some(file),
            bitmap,
        })
    }

    /// Whether it can be written.
    pub(super) fn has_file(&self) -> bool {
        self.file.is_some()
    }

    /// The lowest address between two of this chunk, by number, that is not held.
    pub(super) fn first_free(&self, from: Bits, to: Bits) -> Option<Bits> {
        let mut at = from;
        while at <= to {
            let (byte, bit) = place(at);
            match self.bitmap.get(byte).copied().unwrap_or_default() {
                // A whole byte of neighbours at once.
                u8::MAX => at = (at | 7).checked_add(1)?,
                held if held & bit == 0 => return Some(at),
                _ => at = at.checked_add(1)?,
            }
        }
        None
    }

    /// Notes whether an address is held.
    pub(super) fn set(&mut self, bits: Bits, held: bool) -> io::Result<()> {
        let (byte, bit) = place(bits);
        let Some(place) = self.bitmap.get_mut(byte) else {
            return Ok(());
        };
        let new = if held { *place | bit } else { *place & !bit };
        if *place != new {
            *place = new;
            self.write(&[new], byte as u64)?;
        }
        Ok(())
    }

    /// Notes which addresses are held, and that no other is.
    pub(super) fn set_all(&mut self, held: impl Iterator<Item = Bits>) -> io::Result<()> {
        let mut bitmap = vec![0; BITMAP_BYTES];
        for bits in held {
            let (byte, bit) = place(bits);
            if let Some(place) = bitmap.get_mut(byte) {
                *place |= bit;
            }
        }
        if bitmap != self.bitmap {
            self.write(&bitmap, 0)?;
            self.bitmap = bitmap;
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

    fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let file = self
            .file
            .as_ref()
            .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        file.write_all_at(bytes, offset)
    }
}

/// The byte and bit of an address.
fn place(bits: Bits) -> (usize, u8) {
    let index = index(bits);
    (usize::from(index >> 3), 1 << (index & 7))
}

fn record_offset(bits: Bits) -> u64 {
    BITMAP_BYTES as u64 + u64::from(index(bits)) * record::SIZE as u64
}

/// The number within the chunk: the low bits, which is what the conversion keeps.
fn index(bits: Bits) -> u16 {
    bits as u16
}
