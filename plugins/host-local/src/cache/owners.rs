//! Which addresses an owner holds: a hash table in a file.
//!
//! The table has a power of two of buckets. A bucket has room for a few addresses; an owner whose bucket has run out of
//! room has to be looked up in the directory, which is what the bucket's flag says. The table doubles long before that
//! happens by chance.

use std::fs::File;
use std::io::{self, Read};
use std::net::IpAddr;
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, renameat};
use nix::sys::stat::Mode;

use super::bucket::{self, Bucket};
use super::bytes::{Reader, Writer, hash};
use crate::store::{DirectoryStamp, Time};

/// The name of the file.
const NAME: &str = "owners";

/// Changes with every change of a format of the cache's files.
const MAGIC: u64 = u64::from_le_bytes(*b"ferrule1");

/// The number of addresses per bucket on average at which the table doubles.
const FULL: u64 = 4;
const FEWEST_BUCKETS: u64 = 16;

/// The table, open. Its header has the room of a bucket.
pub(super) struct Owners {
    file: File,
    buckets: u64,
    /// The number of entries.
    count: u64,
}

/// The hash of an owner's text; what is found under it is compared with the file before it is believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tag(pub(super) u64);

impl Tag {
    pub(super) fn of(owner: &[u8]) -> Tag {
        Tag(hash(owner))
    }

    /// The bucket of a table of so many, which is a power of two.
    fn bucket(self, buckets: u64) -> u64 {
        (self.0 >> 1) & (buckets - 1)
    }

    /// Some hash that belongs to a bucket.
    fn of_bucket(bucket: u64) -> Tag {
        Tag(bucket << 1 | 1)
    }
}

/// What a table must have been sealed for to be current.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seal {
    /// The directory and its state.
    pub(crate) directory: DirectoryStamp,
    /// The boot: what was not yet on the disk when the power went is not missed, because a new boot begins anew.
    pub(crate) boot: u128,
}

impl Owners {
    /// Opens the table if it was sealed for exactly this.
    pub(super) fn open_current(directory: &File, seal: &Seal) -> io::Result<Option<Owners>> {
        let flags = OFlag::O_RDWR | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
        let file = match openat(directory, NAME, flags, Mode::empty()) {
            Err(Errno::ENOENT) => return Ok(None),
            opened => File::from(opened?),
        };
        let mut header = [0; HEADER];
        match file.read_exact_at(&mut header, 0) {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        }
        let current = decode_header(&header).filter(|(sealed, _, _)| sealed == seal);
        Ok(current.map(|(_, buckets, count)| Owners { file, buckets, count }))
    }

    /// Makes a new table of these entries in place of the old one; it is not sealed yet. The buckets of `flagged` are
    /// said not to have all.
    pub(super) fn create(directory: &File, entries: &[(Tag, IpAddr)], flagged: &[Tag]) -> io::Result<Owners> {
        let count = entries.len() as u64;
        let buckets = buckets_for(count);
        let len = usize::try_from(buckets).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let mut table = vec![Bucket::EMPTY; len];
        let mut at = |tag: Tag, change: &dyn Fn(&mut Bucket)| {
            let bucket = usize::try_from(tag.bucket(buckets))
                .ok()
                .and_then(|at| table.get_mut(at));
            bucket.into_iter().for_each(change);
        };
        flagged.iter().for_each(|tag| at(*tag, &|bucket| bucket.flag()));
        entries
            .iter()
            .for_each(|(tag, ip)| at(*tag, &|bucket| bucket.add(*tag, *ip)));
        let mut bytes = vec![0; bucket::SIZE];
        bytes.extend(table.iter().flat_map(Bucket::bytes));

        let temporary = "owners.new";
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_TRUNC | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
        let file = File::from(openat(directory, temporary, flags, Mode::from_bits_truncate(0o600))?);
        file.write_all_at(&bytes, 0)?;
        renameat(directory, temporary, directory, NAME)?;
        Ok(Owners { file, buckets, count })
    }

    /// The addresses of an owner, or `None` where only the directory knows.
    pub(super) fn find(&self, tag: Tag) -> io::Result<Option<Vec<IpAddr>>> {
        let bucket = self.read(tag)?;
        let found = bucket
            .entries()
            .filter(|(other, _)| *other == tag)
            .map(|(_, ip)| ip)
            .collect();
        Ok((!bucket.is_flagged()).then_some(found))
    }

    /// Adds an address of an owner. The table may be replaced by a larger one, which is not sealed.
    pub(super) fn insert(&mut self, directory: &File, tag: Tag, ip: IpAddr) -> io::Result<()> {
        if self.count >= self.buckets.saturating_mul(FULL) {
            self.grow(directory)?;
        }
        let mut bucket = self.read(tag)?;
        bucket.add(tag, ip);
        self.count += 1;
        self.write(tag, &bucket)
    }

    /// Removes an address of an owner.
    pub(super) fn remove(&mut self, tag: Tag, ip: IpAddr) -> io::Result<()> {
        let mut bucket = self.read(tag)?;
        if !bucket.remove(tag, ip) {
            return Ok(());
        }
        self.count = self.count.saturating_sub(1);
        self.write(tag, &bucket)
    }

    /// Says what the table is right for.
    pub(super) fn seal(&self, seal: &Seal) -> io::Result<()> {
        self.file
            .write_all_at(&encode_header(seal, self.buckets, self.count), 0)
    }

    fn read(&self, tag: Tag) -> io::Result<Bucket> {
        let mut bytes = [0; bucket::SIZE];
        self.file.read_exact_at(&mut bytes, self.offset(tag))?;
        Bucket::from_bytes(bytes)
    }

    fn write(&self, tag: Tag, bucket: &Bucket) -> io::Result<()> {
        self.file.write_all_at(&bucket.bytes(), self.offset(tag))
    }

    fn offset(&self, tag: Tag) -> u64 {
        (tag.bucket(self.buckets) + 1) * bucket::SIZE as u64
    }

    fn grow(&mut self, directory: &File) -> io::Result<()> {
        let mut bytes = Vec::new();
        (&self.file).read_to_end(&mut bytes)?;
        let mut all = Vec::new();
        let mut flagged = Vec::new();
        let (buckets, _) = bytes.as_chunks::<{ bucket::SIZE }>();
        for (at, bytes) in (0..self.buckets).zip(buckets.iter().skip(1)) {
            let bucket = Bucket::from_bytes(*bytes)?;
            all.extend(bucket.entries());
            if bucket.is_flagged() {
                // What had no room would be in one of the buckets that this one becomes.
                let step = usize::try_from(self.buckets).unwrap_or(usize::MAX);
                flagged.extend((at..buckets_for(self.count)).step_by(step).map(Tag::of_bucket));
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

const HEADER: usize = 88;

fn encode_header(seal: &Seal, buckets: u64, count: u64) -> [u8; HEADER] {
    let mut body = [0; HEADER - 8];
    let mut writer = Writer(&mut body);
    writer.u64(MAGIC);
    writer.u128(seal.boot);
    writer.u64(seal.directory.device);
    writer.u64(seal.directory.inode);
    writer.bytes(&seal.directory.modified.seconds.to_le_bytes());
    writer.u64(seal.directory.modified.nanoseconds.into());
    writer.u64(buckets);
    writer.u64(count);
    let mut header = [0; HEADER];
    let mut writer = Writer(&mut header);
    writer.u64(hash(&body));
    writer.bytes(&body);
    header
}

fn decode_header(header: &[u8]) -> Option<(Seal, u64, u64)> {
    let mut reader = Reader(header);
    if reader.u64() != hash(reader.0) || reader.u64() != MAGIC {
        return None;
    }
    let boot = reader.u128();
    let (device, inode) = (reader.u64(), reader.u64());
    let seconds = i64::from_le_bytes(reader.array());
    let modified = Time {
        seconds,
        nanoseconds: u32::try_from(reader.u64()).ok()?,
    };
    let directory = DirectoryStamp {
        device,
        inode,
        modified,
    };
    let (buckets, count) = (reader.u64(), reader.u64());
    buckets
        .is_power_of_two()
        .then_some((Seal { directory, boot }, buckets, count))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::range::Family;

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
        let modified = Time {
            seconds: -3,
            nanoseconds: 4,
        };
        let stamp = DirectoryStamp {
            device: 1,
            inode: 2,
            modified,
        };
        let seal = Seal {
            directory: stamp,
            boot: 7,
        };
        assert!(Owners::open_current(&directory, &seal).unwrap().is_none());
        let owners = Owners::create(&directory, &[(Tag::of(b"a"), ip(1))], &[]).unwrap();
        assert!(Owners::open_current(&directory, &seal).unwrap().is_none(), "not sealed");
        owners.seal(&seal).unwrap();
        let again = Owners::open_current(&directory, &seal).unwrap().unwrap();
        assert_eq!(again.find(Tag::of(b"a")).unwrap(), Some(vec![ip(1)]));
        for other in [
            Seal { boot: 8, ..seal },
            Seal {
                directory: DirectoryStamp { device: 9, ..stamp },
                ..seal
            },
            Seal {
                directory: DirectoryStamp { inode: 9, ..stamp },
                ..seal
            },
            Seal {
                directory: DirectoryStamp {
                    modified: Time {
                        nanoseconds: 5,
                        ..modified
                    },
                    ..stamp
                },
                ..seal
            },
        ] {
            assert!(Owners::open_current(&directory, &other).unwrap().is_none());
        }
        std::fs::write(path.join(NAME), "short").unwrap();
        assert!(Owners::open_current(&directory, &seal).unwrap().is_none());
        std::fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn an_owner_of_more_than_a_bucket_is_looked_up_in_the_directory() {
        let (path, directory) = directory();
        let mut owners = Owners::create(&directory, &[], &[Tag::of(b"odd")]).unwrap();
        for at in 0..15 {
            owners.insert(&directory, Tag::of(b"a"), ip(at)).unwrap();
        }
        assert_eq!(owners.find(Tag::of(b"a")).unwrap().map(|ips| ips.len()), Some(15));
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
