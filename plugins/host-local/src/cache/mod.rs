//! What we remember beside the files: it makes an ADD or DEL cost the same whatever the number of addresses held.
//!
//! Everything here can be lost at any time. It lies in `<dataDir>/.ferrule/<network>/`:
//!
//! - [`owners`](owners): which addresses an owner holds;
//! - `held.<family>.<prefix>`, see [`chunk`]: which of 65,536 neighbouring addresses are held, and for each who was there
//!   when its reservation was made ([`Record`]).
//!
//! # How it knows that it is current
//!
//! When we are done with a change, still under the lock, the directory gets a time of modification that it can have
//! from nowhere else, and the header of `owners` the same ([`Network::seal`](crate::store::Network::seal) says why no
//! change by others can go unseen). The cache is used only where both agree, for the same directory by device and
//! inode. Another suite that made or removed a file, a removed and remade directory, a restored backup, and a process
//! of ours that was killed after its first change and before its last: all leave another time, and the next call reads
//! the directory and makes the cache anew. So does the first call after a boot, because a power cut may have kept one
//! file and lost another. Every part has a checksum.
//!
//! A file that was overwritten where it lay is not seen this way. So what the cache says is still compared: an owner is
//! read before his address is released, an address is given by making a file that must not exist, a range is
//! exhausted only if the directory says so, and an owner whom a DEL does not find is looked for in the directory.
//!
//! A [`Record`] says itself which file it is about, so it outlives the rest of the cache.

mod bucket;
mod bytes;
mod chunk;
mod owners;
mod record;

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use nix::dir::Dir;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};

use crate::range::{Bits, Family, bits};
use crate::reservation::Content;
use crate::store::Found;
use chunk::{Chunk, ChunkKey};
use identity::Here;
pub(crate) use owners::Seal;
use owners::{Owners, Tag};
pub(crate) use record::Record;

/// The cache of a network, right for the present state of its directory as long as every change is told to it.
pub(crate) struct Cache {
    directory: File,
    owners: Owners,
    chunks: BTreeMap<ChunkKey, Chunk>,
}

impl Cache {
    /// Opens the cache if it is current. An error is as good as none.
    pub(crate) fn open_current(directory: &File, seal: &Seal) -> io::Result<Option<Cache>> {
        let Some(owners) = Owners::open_current(directory, seal)? else {
            return Ok(None);
        };
        Ok(Some(Cache {
            directory: directory.try_clone()?,
            owners,
            chunks: BTreeMap::new(),
        }))
    }

    /// Makes the cache anew from what the directory holds. Records of files that are still the same stay; reservations
    /// that we know nothing about are noted as seen in this boot.
    pub(crate) fn rebuild(directory: &File, found: &[Found], here: &Here) -> io::Result<Cache> {
        let mut entries = Vec::with_capacity(found.len());
        let mut flagged = Vec::new();
        for reservation in found {
            match (&reservation.content, reservation.ip) {
                (Content::Owner(owner), Some(ip)) => entries.push((Tag::of(owner), ip)),
                (Content::Owner(owner), None) => flagged.push(Tag::of(owner)),
                _ => {}
            }
        }
        let chunks = by_chunk(found);
        remove_other_chunks(directory, &chunks)?;
        for (key, reservations) in &chunks {
            let held = reservations.iter().filter_map(|found| found.ip).map(bits);
            Chunk::replace(directory, *key, held)?;
        }
        let owners = Owners::create(directory, &entries, &flagged)?;
        let mut cache = Cache {
            directory: directory.try_clone()?,
            owners,
            chunks: BTreeMap::new(),
        };
        cache.note_seen(found, here)?;
        Ok(cache)
    }

    /// Notes the reservations that we know nothing about as seen in this boot.
    pub(crate) fn note_seen(&mut self, found: &[Found], here: &Here) -> io::Result<()> {
        for (key, reservations) in by_chunk(found) {
            let file = |found: &&Found| Some((bits(found.ip?), found.stamp?));
            let files = reservations.iter().filter_map(file).collect();
            self.chunk(key, true)?.note_seen(files, here)?;
            // Few chunks are needed again, but there may be many.
            self.chunks.remove(&key);
        }
        Ok(())
    }

    /// The addresses of an owner by the text in their files, or `None` where only the directory knows.
    pub(crate) fn addresses_of(&self, owner: &[u8]) -> io::Result<Option<Vec<IpAddr>>> {
        self.owners.find(Tag::of(owner))
    }

    /// The lowest address between two that is not held.
    pub(crate) fn first_free(&mut self, family: Family, within: RangeInclusive<Bits>) -> io::Result<Option<Bits>> {
        let (mut from, to) = within.into_inner();
        loop {
            let key = ChunkKey::of(family, from);
            let last = key.last().min(to);
            if let Some(free) = self.chunk(key, false)?.first_free(from, last) {
                return Ok(Some(free));
            }
            if last == to {
                return Ok(None);
            }
            from = last + 1;
        }
    }

    /// What is known about an address, if anything; it may be about another file.
    pub(crate) fn record(&mut self, ip: IpAddr) -> io::Result<Option<Record>> {
        self.chunk(key(ip), false)?.record(bits(ip))
    }

    /// The same without a cache that is current.
    pub(crate) fn record_in(directory: &File, ip: IpAddr) -> io::Result<Option<Record>> {
        Chunk::open(directory, key(ip), false)?.record(bits(ip))
    }

    /// Writes down what is known about an address.
    pub(crate) fn set_record(&mut self, ip: IpAddr, record: &Record) -> io::Result<()> {
        self.chunk(key(ip), true)?.set_record(bits(ip), record)
    }

    /// Notes that an address is held now.
    pub(crate) fn insert(&mut self, ip: IpAddr, owner: &[u8]) -> io::Result<()> {
        self.chunk(key(ip), true)?.set(bits(ip), true)?;
        self.owners.insert(&self.directory, Tag::of(owner), ip)
    }

    /// Notes that an address is free now.
    pub(crate) fn remove(&mut self, ip: IpAddr, owner: &[u8]) -> io::Result<()> {
        self.chunk(key(ip), false)?.set(bits(ip), false)?;
        self.owners.remove(Tag::of(owner), ip)
    }

    /// Says that all changes up to this state of the directory have been told.
    pub(crate) fn seal(&self, seal: &Seal) -> io::Result<()> {
        self.owners.seal(seal)
    }

    fn chunk(&mut self, key: ChunkKey, create: bool) -> io::Result<&mut Chunk> {
        use std::collections::btree_map::Entry;
        match self.chunks.entry(key) {
            Entry::Occupied(mut open) => {
                if create && !open.get().has_file() {
                    open.insert(Chunk::open(&self.directory, key, true)?);
                }
                Ok(open.into_mut())
            }
            Entry::Vacant(place) => Ok(place.insert(Chunk::open(&self.directory, key, create)?)),
        }
    }
}

fn key(ip: IpAddr) -> ChunkKey {
    ChunkKey::of(Family::of(ip), bits(ip))
}

/// The reservations of addresses by chunk.
fn by_chunk(found: &[Found]) -> BTreeMap<ChunkKey, Vec<&Found>> {
    let mut chunks = BTreeMap::<ChunkKey, Vec<&Found>>::new();
    for reservation in found.iter().filter(|found| found.content != Content::Blank) {
        if let Some(ip) = reservation.ip {
            chunks.entry(key(ip)).or_default().push(reservation);
        }
    }
    chunks
}

/// Removes the files of chunks in which nothing is held any more.
fn remove_other_chunks(directory: &File, chunks: &BTreeMap<ChunkKey, Vec<&Found>>) -> io::Result<()> {
    let keep: std::collections::BTreeSet<String> = chunks.keys().map(ChunkKey::file_name).collect();
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    for entry in Dir::openat(directory, ".", flags, Mode::empty())?.iter() {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy();
        if name.starts_with(chunk::PREFIX) && !keep.contains(name.as_ref()) {
            unlinkat(directory, name.as_ref(), UnlinkatFlags::NoRemoveDir)?;
        }
    }
    Ok(())
}
