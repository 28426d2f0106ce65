//! What we know about a reservation beyond its owner.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use super::bytes::{Reader, Writer, hash};
use crate::store::{Stamp, Time};
use identity::{Here, NetnsIdentity};

/// The room of a record in a file, in bytes. A checksum goes first.
pub(super) const SIZE: usize = 256;

/// The longest path of a namespace that is kept: what the other fields leave.
const PATH_LIMIT: usize = SIZE - 136;

/// What we know about a reservation: who was there when it was made, or at least when we first saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    file: FileKey,
    /// Boot, machine and our own namespaces then.
    pub(crate) here: Here,
    /// The attachment's namespace, where it was one.
    pub(crate) netns: Option<NetnsIdentity>,
}

/// Which file a record is about. One that has been replaced or touched since has another key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FileKey {
    /// Ours: known before the file has a name, which is why it is not the time of the inode's change.
    Made { inode: u64, modified: Time },
    /// Found, made by somebody else.
    Seen { inode: u64, changed: Time },
}

impl Record {
    /// Of a reservation that we make.
    pub(crate) fn made(file: &Stamp, here: Here, netns: Option<NetnsIdentity>) -> Record {
        Record {
            file: FileKey::Made {
                inode: file.inode,
                modified: file.modified,
            },
            here,
            netns,
        }
    }

    /// Of a reservation that we found.
    pub(crate) fn seen(file: &Stamp, here: Here) -> Record {
        Record {
            file: FileKey::Seen {
                inode: file.inode,
                changed: file.changed,
            },
            here,
            netns: None,
        }
    }

    /// Whether it is about this file.
    pub(crate) fn is_about(&self, file: &Stamp) -> bool {
        match self.file {
            FileKey::Made { inode, modified } => (inode, modified) == (file.inode, file.modified),
            FileKey::Seen { inode, changed } => (inode, changed) == (file.inode, file.changed),
        }
    }

    /// Whether we made the reservation.
    pub(crate) fn is_made(&self) -> bool {
        matches!(self.file, FileKey::Made { .. })
    }

    pub(super) fn encode(&self) -> [u8; SIZE] {
        let mut body = [0; SIZE - 8];
        let mut writer = Writer(&mut body);
        let (kind, inode, time) = match self.file {
            FileKey::Made { inode, modified } => (1, inode, modified),
            FileKey::Seen { inode, changed } => (2, inode, changed),
        };
        let netns = self.netns.as_ref();
        let path = netns
            .map(|netns| netns.path.as_os_str().as_bytes())
            .filter(|path| path.len() <= PATH_LIMIT);
        let path = path.unwrap_or_default();
        writer.u64(kind);
        writer.u64(inode);
        writer.bytes(&time.seconds.to_le_bytes());
        writer.u64(time.nanoseconds.into());
        writer.u128(self.here.boot.unwrap_or_default());
        writer.u128(self.here.machine.unwrap_or_default());
        writer.u64(self.here.pid_namespace.unwrap_or_default());
        writer.u64(self.here.mount_namespace.unwrap_or_default());
        writer.u64(netns.map_or(0, |netns| netns.device));
        writer.u64(netns.map_or(0, |netns| netns.inode));
        writer.u64(netns.and_then(|netns| netns.cookie).unwrap_or_default());
        writer.u64(path.len() as u64);
        writer.bytes(path);
        let mut record = [0; SIZE];
        let mut writer = Writer(&mut record);
        writer.u64(hash(&body));
        writer.bytes(&body);
        record
    }

    /// `None` for what is no record: never written, or cut off by a crash.
    pub(super) fn decode(record: &[u8]) -> Option<Record> {
        let mut reader = Reader(record);
        let checksum = reader.u64();
        if checksum == 0 || checksum != hash(reader.0) {
            return None;
        }
        let known = |value: u64| (value != 0).then_some(value);
        let known_id = |value: u128| (value != 0).then_some(value);
        let (kind, inode) = (reader.u64(), reader.u64());
        let time = Time {
            seconds: i64::from_le_bytes(reader.array()),
            nanoseconds: u32::try_from(reader.u64()).ok()?,
        };
        let file = match kind {
            1 => FileKey::Made { inode, modified: time },
            2 => FileKey::Seen { inode, changed: time },
            _ => return None,
        };
        let here = Here {
            boot: known_id(reader.u128()),
            machine: known_id(reader.u128()),
            pid_namespace: known(reader.u64()),
            mount_namespace: known(reader.u64()),
        };
        let (device, inode, cookie) = (reader.u64(), known(reader.u64()), known(reader.u64()));
        let path = usize::try_from(reader.u64()).ok().and_then(|len| reader.0.get(..len))?;
        let path = OsString::from_vec(path.to_vec()).into();
        Some(Record {
            file,
            here,
            netns: inode.map(|inode| NetnsIdentity {
                device,
                inode,
                cookie,
                path,
            }),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_record() -> impl Strategy<Value = Record> {
        let id = || prop::option::of(1u128..);
        let inode = || prop::option::of(1u64..);
        let netns =
            (any::<u64>(), 1u64.., inode(), "[a-z/]{0,120}").prop_map(|(device, inode, cookie, path)| NetnsIdentity {
                device,
                inode,
                cookie,
                path: path.into(),
            });
        let stamp = (any::<u64>(), any::<i64>(), any::<u32>());
        (
            any::<bool>(),
            stamp,
            id(),
            id(),
            inode(),
            inode(),
            prop::option::of(netns),
        )
            .prop_map(
                |(made, (inode, seconds, nanoseconds), boot, machine, pid_namespace, mount_namespace, netns)| {
                    let time = Time { seconds, nanoseconds };
                    let stamp = Stamp {
                        inode,
                        modified: time,
                        changed: time,
                    };
                    let here = Here {
                        boot,
                        machine,
                        pid_namespace,
                        mount_namespace,
                    };
                    if made {
                        Record::made(&stamp, here, netns)
                    } else {
                        Record {
                            netns,
                            ..Record::seen(&stamp, here)
                        }
                    }
                },
            )
    }

    proptest! {
        #[test]
        fn records_survive_the_file(record in any_record(), bit in 0usize..SIZE * 8) {
            let mut bytes = record.encode();
            prop_assert_eq!(Record::decode(&bytes), Some(record));
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(Record::decode(&bytes), None);
        }

        #[test]
        fn anything_can_be_read(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            Record::decode(&bytes);
        }
    }

    #[test]
    fn a_path_that_is_too_long_is_left_out() {
        let stamp = Stamp {
            inode: 1,
            modified: Time::default(),
            changed: Time::default(),
        };
        let here = Here {
            boot: None,
            machine: None,
            pid_namespace: None,
            mount_namespace: None,
        };
        let netns = |path: String| NetnsIdentity {
            device: 4,
            inode: 5,
            cookie: None,
            path: path.into(),
        };
        let long = Record::made(&stamp, here, Some(netns("x".repeat(PATH_LIMIT + 1))));
        let read = Record::decode(&long.encode()).unwrap();
        assert_eq!(read.netns, Some(netns(String::new())));
        assert_eq!(Record::decode(&[0; SIZE]), None);
    }
}
