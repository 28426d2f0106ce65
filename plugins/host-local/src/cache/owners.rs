//! Which addresses an owner holds: a hash table in a file.
//!
//! The table has a power of two of buckets. A bucket has room for a few addresses; an owner whose bucket has run out of
//! room has to be looked up in the directory, which is what the bucket's flag says. The table doubles long before that
//! happens by chance.

use std::fs::File;
use std::io::{self, Read};
use std::net::IpAddr;
use std::os::unix::fs::FileExt;

use nix::fcntl::{OFlag, openat, renameat};
use nix::sys::stat::Mode;

use super::bytes::{Reader, Writer, hash};
use crate::range::{Family, bits};
use crate::store::{DirectoryStamp, Time};

/// The name of the file.
const NAME: &str = "owners";

/// Changes with every change of a format of the cache's files.
const MAGIC: u64 = u64::from_le_bytes(*b"ferrule1");

/// The size of a bucket, and of the header before the first, in bytes.
const BUCKET: usize = 512;
const ENTRY: usize = 32;
const ENTRIES: usize = BUCKET / ENTRY - 1;

/// The number of addresses per bucket on average at which the table doubles.
const FULL: u64 = 4;
const FEWEST_BUCKETS: u64 = 16;

/// The table, open.
pub(super) struct Owners {
    file: File,
    buckets: u64,
    /// The number of entries.
    count: u64,
}

/// The hash of an owner's text; what is found under it is compared with the file before it is believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tag(u64);

impl Tag {
    pub(super) fn of(owner: &[u8]) -> Tag {
        Tag(hash(owner))
    }

    /// Some hash that belongs to a bucket.
    fn of_bucket(bucket: u64) -> Tag {
        Tag(bucket << 1 | 1)
    }
}

impl Owners {
    /// Opens the table if it was sealed for exactly this state of the directory.
    pub(super) fn open_current(directory: &File, stamp: &DirectoryStamp) -> io::Result<Option<Owners>> {
        let flags = OFlag::O_RDWR | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
        let file = match openat(directory, NAME, flags, Mode::empty()) {
            Err(nix::errno::Errno::ENOENT) => return Ok(None),
            opened => File::from(opened?),
        };
        let mut header = [0; HEADER];
        match file.read_exact_at(&mut header, 0) {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        }
        let decoded = decode_header(&header);
        let current = decoded.filter(|(sealed, _, _)| sealed == stamp);
        Ok(current.map(|(_, buckets, count)| Owners { file, buckets, count }))
    }

    /// Makes a new table of these entries in place of the old one; it is not sealed yet.
    pub(super) fn create(directory: &File, entries: &[(Tag, IpAddr)], flagged: &[Tag]) -> io::Result<Owners> {
        let count = entries.len() as u64;
        let buckets = buckets_for(count);
        let size = usize::try_from(buckets + 1)
            .ok()
            .and_then(|buckets| buckets.checked_mul(BUCKET));
        let mut bytes = vec![0; size.ok_or(io::ErrorKind::OutOfMemory)?];
        for tag in flagged {
            if let Some(flag) = bytes.get_mut(bucket_start(*tag, buckets)) {
                *flag = 1;
            }
        }
        for (tag, ip) in entries {
            let start = bucket_start(*tag, buckets);
            if let Some(bucket) = bytes.get_mut(start..start + BUCKET) {
                add(bucket, *tag, *ip);
            }
        }
        let temporary = "owners.new";
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_TRUNC | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
        let file = File::from(openat(directory, temporary, flags, Mode::from_bits_truncate(0o600))?);
        file.write_all_at(&bytes, 0)?;
        renameat(directory, temporary, directory, NAME)?;
        Ok(Owners { file, buckets, count })
    }

    /// The addresses of an owner, or `None` where only the directory knows.
    pub(super) fn find(&self, tag: Tag) -> io::Result<Option<Vec<IpAddr>>> {
        let bucket = self.bucket(tag)?;
        let flagged = bucket.first() != Some(&0);
        let found = entries(&bucket)
            .filter(|(_, other, _)| *other == tag)
            .map(|(_, _, ip)| ip);
        Ok((!flagged).then(|| found.collect()))
    }

    /// Adds an address of an owner. The table may be replaced by a larger one, which is not sealed.
    pub(super) fn insert(&mut self, directory: &File, tag: Tag, ip: IpAddr) -> io::Result<()> {
        if self.count >= self.buckets.saturating_mul(FULL) {
            self.grow(directory)?;
        }
        let mut bucket = self.bucket(tag)?;
        add(&mut bucket, tag, ip);
        self.count += 1;
        self.file.write_all_at(&bucket, bucket_start(tag, self.buckets) as u64)
    }

    /// Removes an address of an owner.
    pub(super) fn remove(&mut self, tag: Tag, ip: IpAddr) -> io::Result<()> {
        let bucket = self.bucket(tag)?;
        let Some((at, ..)) = entries(&bucket).find(|(_, other, other_ip)| (*other, *other_ip) == (tag, ip)) else {
            return Ok(());
        };
        self.count = self.count.saturating_sub(1);
        let offset = bucket_start(tag, self.buckets) + (at + 1) * ENTRY;
        self.file.write_all_at(&[0; ENTRY], offset as u64)
    }

    /// Says that the table is right for this state of the directory.
    pub(super) fn seal(&self, stamp: &DirectoryStamp) -> io::Result<()> {
        self.file
            .write_all_at(&encode_header(stamp, self.buckets, self.count), 0)
    }

    fn bucket(&self, tag: Tag) -> io::Result<[u8; BUCKET]> {
        let mut bucket = [0; BUCKET];
        self.file
            .read_exact_at(&mut bucket, bucket_start(tag, self.buckets) as u64)?;
        Ok(bucket)
    }

    fn grow(&mut self, directory: &File) -> io::Result<()> {
        let mut bytes = Vec::new();
        (&self.file).read_to_end(&mut bytes)?;
        let mut all = Vec::new();
        let mut flagged = Vec::new();
        for (at, bucket) in (0..self.buckets).zip(bytes.chunks_exact(BUCKET).skip(1)) {
            all.extend(entries(bucket).map(|(_, tag, ip)| (tag, ip)));
            if bucket.first() != Some(&0) {
                // What had no room would be in one of the buckets that this one becomes.
                let becomes =
                    (at..buckets_for(self.count)).step_by(usize::try_from(self.buckets).unwrap_or(usize::MAX));
                flagged.extend(becomes.map(Tag::of_bucket));
            }
        }
        *self = Owners::create(directory, &all, &flagged)?;
        Ok(())
    }
}

/// The size of a new table: half as full on average as one that has to grow.
fn buckets_for(count: u64) -> u64 {
    (count / FULL * 2).next_power_of_two().max(FEWEST_BUCKETS)
}

/// Adds an entry to a bucket, or flags it where there is no room.
fn add(bucket: &mut [u8], tag: Tag, ip: IpAddr) {
    let free = bucket
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
        None => {
            if let Some(flag) = bucket.first_mut() {
                *flag = 1;
            }
        }
    }
}

/// The entries of a bucket with their places.
fn entries(bucket: &[u8]) -> impl Iterator<Item = (usize, Tag, IpAddr)> + Clone + '_ {
    bucket
        .chunks_exact(ENTRY)
        .skip(1)
        .take(ENTRIES)
        .enumerate()
        .filter_map(|(at, entry)| {
            let mut reader = Reader(entry);
            let tag = Tag(reader.u64());
            let family = match reader.u64() {
                4 => Family::V4,
                6 => Family::V6,
                _ => return None,
            };
            Some((at, tag, family.address(reader.u128())))
        })
}

/// Where the bucket of a tag begins. The number of buckets is a power of two, and the table fits into memory.
fn bucket_start(tag: Tag, buckets: u64) -> usize {
    let bucket = (tag.0 >> 1) & (buckets - 1);
    (bucket as usize + 1) * BUCKET
}

const HEADER: usize = 72;

fn encode_header(stamp: &DirectoryStamp, buckets: u64, count: u64) -> [u8; HEADER] {
    let mut body = [0; HEADER - 8];
    let mut writer = Writer(&mut body);
    writer.u64(MAGIC);
    writer.u64(stamp.device);
    writer.u64(stamp.inode);
    writer.bytes(&stamp.modified.seconds.to_le_bytes());
    writer.u64(stamp.modified.nanoseconds.into());
    writer.u64(buckets);
    writer.u64(count);
    let mut header = [0; HEADER];
    let mut writer = Writer(&mut header);
    writer.u64(hash(&body));
    writer.bytes(&body);
    header
}

fn decode_header(header: &[u8]) -> Option<(DirectoryStamp, u64, u64)> {
    let mut reader = Reader(header);
    if reader.u64() != hash(reader.0) || reader.u64() != MAGIC {
        return None;
    }
    let (device, inode) = (reader.u64(), reader.u64());
    let seconds = i64::from_le_bytes(reader.array());
    let modified = Time {
        seconds,
        nanoseconds: u32::try_from(reader.u64()).ok()?,
    };
    let (buckets, count) = (reader.u64(), reader.u64());
    buckets.is_power_of_two().then_some((
        DirectoryStamp {
            device,
            inode,
            modified,
        },
        buckets,
        count,
    ))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn directory() -> (std::path::PathBuf, File) {
        static SERIAL: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let serial = SERIAL.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("owners-{}-{serial}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        let directory = File::open(&path).unwrap();
        (path, directory)
    }

    fn ip(at: u32) -> IpAddr {
        Family::V4.address(at.into())
    }

    #[test]
    fn it_is_current_for_one_state_of_one_directory() {
        let (path, directory) = directory();
        let stamp = DirectoryStamp {
            device: 1,
            inode: 2,
            modified: Time {
                seconds: -3,
                nanoseconds: 4,
            },
        };
        assert!(Owners::open_current(&directory, &stamp).unwrap().is_none());
        let owners = Owners::create(&directory, &[(Tag::of(b"a"), ip(1))], &[]).unwrap();
        assert!(
            Owners::open_current(&directory, &stamp).unwrap().is_none(),
            "not sealed"
        );
        owners.seal(&stamp).unwrap();
        let again = Owners::open_current(&directory, &stamp).unwrap().unwrap();
        assert_eq!(again.find(Tag::of(b"a")).unwrap(), Some(vec![ip(1)]));
        for other in [
            DirectoryStamp { device: 9, ..stamp },
            DirectoryStamp { inode: 9, ..stamp },
            DirectoryStamp {
                modified: Time {
                    nanoseconds: 5,
                    ..stamp.modified
                },
                ..stamp
            },
        ] {
            assert!(Owners::open_current(&directory, &other).unwrap().is_none());
        }
        std::fs::write(path.join(NAME), "short").unwrap();
        assert!(Owners::open_current(&directory, &stamp).unwrap().is_none());
        std::fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn an_owner_of_more_than_a_bucket_is_looked_up_in_the_directory() {
        let (path, directory) = directory();
        let mut owners = Owners::create(&directory, &[], &[Tag::of(b"odd")]).unwrap();
        for at in 0..ENTRIES as u32 {
            owners.insert(&directory, Tag::of(b"a"), ip(at)).unwrap();
        }
        assert_eq!(owners.find(Tag::of(b"a")).unwrap().map(|ips| ips.len()), Some(ENTRIES));
        owners.insert(&directory, Tag::of(b"a"), ip(99)).unwrap();
        assert_eq!(owners.find(Tag::of(b"a")).unwrap(), None);
        assert_eq!(owners.find(Tag::of(b"odd")).unwrap(), None);
        owners.grow(&directory).unwrap();
        assert_eq!(owners.find(Tag::of(b"a")).unwrap(), None);
        assert_eq!(owners.find(Tag::of(b"odd")).unwrap(), None);
        std::fs::remove_dir_all(path).unwrap();
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        #[test]
        fn it_is_a_map(steps in prop::collection::vec((any::<bool>(), 0u32..300), 0..900)) {
            let (path, directory) = directory();
            let mut owners = Owners::create(&directory, &[], &[]).unwrap();
            let mut model = BTreeMap::new();
            let tag = |at: u32| Tag::of(format!("c{at}\r\neth0").as_bytes());
            for (insert, at) in steps {
                if insert && !model.contains_key(&at) {
                    owners.insert(&directory, tag(at), ip(at)).unwrap();
                    model.insert(at, ip(at));
                } else if !insert {
                    owners.remove(tag(at), ip(at)).unwrap();
                    model.remove(&at);
                }
            }
            prop_assert_eq!(owners.count, model.len() as u64);
            for at in 0..300 {
                let expected: Vec<IpAddr> = model.get(&at).copied().into_iter().collect();
                // A full bucket knows nothing, which is rare and never wrong.
                prop_assert!(owners.find(tag(at)).unwrap().is_none_or(|found| found == expected));
            }
            std::fs::remove_dir_all(path).unwrap();
        }
    }
}
