//! Which network namespaces exist.
//!
//! A container's namespace lives as long as a process is in it or a mount of nsfs keeps it. Both are looked for, over
//! all processes and the mounts that any of them sees. (An open file or a socket would keep it too, but no container
//! runs in a namespace that nothing else keeps.) The answer is used to take an address away, so whatever could not be
//! looked at means that the namespace may exist.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::NetnsIdentity;

/// Answers whether namespaces exist, looking at all processes at most twice for all questions together.
#[derive(Default)]
pub struct Namespaces {
    scans: Vec<Scan>,
}

/// What one look at /proc found.
struct Scan {
    /// Paths that lead to a namespace, by its inode.
    holders: BTreeMap<u64, Vec<PathBuf>>,
    /// Something could not be looked at.
    incomplete: Option<String>,
}

impl Namespaces {
    /// Looks for a namespace where it was last, and then everywhere.
    pub fn look_for(&mut self, netns: &NetnsIdentity) -> Existence {
        let recorded = Some(netns.path.as_path()).filter(|path| path.is_absolute());
        let mut answer = recorded.map_or(Existence::Gone, |path| Existence::told_by(netns.is_at(path)));
        // Twice, because processes and mounts come and go during the first look: one that hands the namespace on while it is
        // looked for would have to do so twice at the right moments.
        for at in 0..2 {
            if answer != Existence::Gone {
                break;
            }
            if self.scans.len() <= at {
                self.scans.push(Scan::new());
            }
            answer = self
                .scans
                .get(at)
                .map_or(Existence::Unknown, |scan| scan.look_for(netns));
        }
        answer
    }
}

/// What is known of a namespace's existence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Existence {
    /// It was looked for everywhere and is not there.
    Gone,
    /// Not everything could be looked at.
    Unknown,
    /// It was found.
    Exists,
}

impl Existence {
    fn told_by(is_there: Option<bool>) -> Existence {
        match is_there {
            Some(true) => Existence::Exists,
            Some(false) => Existence::Gone,
            None => Existence::Unknown,
        }
    }
}

impl Scan {
    fn new() -> Scan {
        let mut scan = Scan {
            holders: BTreeMap::new(),
            incomplete: None,
        };
        if let Err(why) = scan.look() {
            log::debug!("not all processes and mounts can be seen: {why}");
            scan.incomplete = Some(why);
        }
        scan
    }

    fn look_for(&self, netns: &NetnsIdentity) -> Existence {
        // A holder that has vanished since cannot be told from one that never was: the second look decides.
        let holders = self.holders.get(&netns.inode).into_iter().flatten();
        let found = holders.map(|path| Existence::told_by(netns.is_at(path))).max();
        let unseen = if self.incomplete.is_some() {
            Existence::Unknown
        } else {
            Existence::Gone
        };
        found.unwrap_or(Existence::Gone).max(unseen)
    }

    fn look(&mut self) -> Result<(), String> {
        // A /proc of another pid namespace shows other processes than ours.
        let own = fs::read_link("/proc/self").map_err(|e| format!("/proc/self: {e}"))?;
        if own.as_os_str() != std::process::id().to_string().as_str() {
            return Err("/proc is of another pid namespace".to_owned());
        }
        let mounts = read_mounts("/proc/self/mountinfo")?;
        if mounts
            .iter()
            .any(|mount| mount.point == Path::new("/proc") && mount.hides_processes())
        {
            return Err("/proc hides processes".to_owned());
        }
        let (mut seen_mounts, mut unreadable) = (BTreeSet::new(), Vec::new());
        for process in numbered("/proc")? {
            self.look_at_process(&process, &mut seen_mounts, &mut unreadable)?;
        }
        match unreadable.into_iter().find(|(task, _)| !self.has_network_of(task)) {
            Some((_, why)) => Err(why),
            None => Ok(()),
        }
    }

    fn look_at_process(
        &mut self,
        process: &Path,
        seen_mounts: &mut BTreeSet<OsString>,
        unreadable: &mut Vec<(PathBuf, String)>,
    ) -> Result<(), String> {
        // Threads may be in namespaces of their own.
        for task in numbered(process.join("task"))? {
            if let Err(why) = self.note(task.join("ns/net")) {
                unreadable.push((task.clone(), why));
            }
            // Every mount namespace once; one that must not be named is read all the same.
            let mounts = read_link(&task.join("ns/mnt"));
            if !mounts.is_ok_and(|name| name.is_none_or(|name| !seen_mounts.insert(name))) {
                self.note_mounts(&task)?;
            }
        }
        Ok(())
    }

    /// Notes the namespaces that are mounted where a task can see them.
    fn note_mounts(&mut self, task: &Path) -> Result<(), String> {
        let root = task.join("root");
        for mount in read_mounts(task.join("mountinfo"))?
            .iter()
            .filter(|mount| mount.kind == "nsfs")
        {
            if let Some(inode) = inode_of(&mount.root) {
                let point = mount.point.strip_prefix("/").unwrap_or(&mount.point);
                self.holders.entry(inode).or_default().push(root.join(point));
            }
        }
        Ok(())
    }

    /// Whether a task is in a namespace that has been noted. Its own link may not be read without the right to trace it
    /// (namespaces(7)), but every network namespace has inodes of its own for the files below `net`, for all to see.
    fn has_network_of(&self, task: &Path) -> bool {
        let network = |task: &Path| {
            fs::metadata(task.join("net/dev"))
                .ok()
                .map(|file| (file.dev(), file.ino()))
        };
        let Some(wanted) = network(task) else {
            return !task.exists();
        };
        let tasks = self
            .holders
            .values()
            .filter_map(|paths| paths.iter().find(|path| path.ends_with("ns/net")));
        tasks
            .filter_map(|link| link.ancestors().nth(2))
            .any(|noted| network(noted) == Some(wanted))
    }

    /// Notes a link of the form `net:[4026531840]`; others are none of ours.
    fn note(&mut self, link: PathBuf) -> Result<(), String> {
        if let Some(inode) = read_link(&link)?.as_deref().and_then(inode_of) {
            self.holders.entry(inode).or_default().push(link);
        }
        Ok(())
    }
}

/// The inode in `net:[4026531840]`, the name of a network namespace.
fn inode_of(name: impl AsRef<std::ffi::OsStr>) -> Option<u64> {
    name.as_ref()
        .to_str()?
        .strip_prefix("net:[")?
        .strip_suffix(']')?
        .parse()
        .ok()
}

/// What has ended meanwhile is nothing; everything else that cannot be read is a reason for doubt.
fn unless_gone<T>(path: &Path, read: io::Result<T>) -> Result<Option<T>, String> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(e) if e.kind() == io::ErrorKind::NotFound || e.raw_os_error() == Some(libc::ESRCH) => Ok(None),
        Err(e) => Err(format!("{}: {e}", path.display())),
    }
}

fn read_link(path: &Path) -> Result<Option<OsString>, String> {
    Ok(unless_gone(path, fs::read_link(path))?.map(PathBuf::into_os_string))
}

/// The entries of a directory whose names are numbers.
fn numbered(path: impl AsRef<Path>) -> Result<Vec<PathBuf>, String> {
    let path = path.as_ref();
    let Some(entries) = unless_gone(path, fs::read_dir(path))? else {
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    for entry in entries {
        let Some(entry) = unless_gone(path, entry)? else {
            continue;
        };
        if entry.file_name().as_bytes().iter().all(u8::is_ascii_digit) {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// A line of mountinfo (proc_pid_mountinfo(5)).
struct Mount {
    /// The root within its file system: for nsfs the namespace's name.
    root: OsString,
    point: PathBuf,
    kind: String,
    super_options: String,
}

impl Mount {
    /// `hidepid` of any kind but the one that hides nothing (proc(5)).
    fn hides_processes(&self) -> bool {
        let hides = |option: &str| {
            option
                .strip_prefix("hidepid=")
                .is_some_and(|how| how != "0" && how != "off")
        };
        self.kind == "proc" && self.super_options.split(',').any(hides)
    }
}

fn read_mounts(path: impl AsRef<Path>) -> Result<Vec<Mount>, String> {
    let path = path.as_ref();
    let text = match fs::read(path) {
        // A process that has ended, but whose entry is still there, has no mounts to show.
        Err(e) if e.kind() == io::ErrorKind::InvalidInput => None,
        read => unless_gone(path, read)?,
    };
    let text = String::from_utf8_lossy(text.as_deref().unwrap_or_default()).into_owned();
    Ok(text.lines().filter_map(parse_mount).collect())
}

fn parse_mount(line: &str) -> Option<Mount> {
    let (mount, filesystem) = line.split_once(" - ")?;
    let mut mount = mount.split(' ').skip(3);
    let (root, point) = (mount.next()?, mount.next()?);
    let mut filesystem = filesystem.split(' ');
    let kind = filesystem.next()?.to_owned();
    let super_options = filesystem.nth(1).unwrap_or_default().to_owned();
    Some(Mount {
        root: unescape(root),
        point: unescape(point).into(),
        kind,
        super_options,
    })
}

/// Blanks and backslashes are written as three octal digits.
fn unescape(text: &str) -> OsString {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let octal = after
            .get(..3)
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match octal.filter(|_| *first == b'\\') {
            Some(byte) => {
                bytes.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn mountinfo_is_read() {
        let line = r"36 35 0:4 net:[4026532008] /run/netns/a\040b\134 rw shared:1 - nsfs nsfs rw";
        let mount = parse_mount(line).unwrap();
        assert_eq!((inode_of(&mount.root), mount.kind.as_str()), (Some(4026532008), "nsfs"));
        assert_eq!(mount.point, Path::new("/run/netns/a b\\"));
        assert!(!mount.hides_processes());
        for (options, hides) in [
            ("rw", false),
            ("rw,hidepid=0", false),
            ("rw,hidepid=2", true),
            ("hidepid=invisible", true),
        ] {
            let line = format!("22 1 0:20 / /proc rw - proc proc {options}");
            assert_eq!(parse_mount(&line).unwrap().hides_processes(), hides, "{options}");
        }
    }

    #[test]
    fn names_of_namespaces() {
        assert_eq!(inode_of("net:[7]"), Some(7));
        for other in ["mnt:[7]", "net:[x]", "socket:[7]", "/dev/null"] {
            assert_eq!(inode_of(other), None);
        }
    }

    fn identity(path: &Path) -> NetnsIdentity {
        NetnsIdentity::of(File::open(path).unwrap().as_fd(), path).unwrap()
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "a process inside the namespace")]
    fn a_namespace_exists_as_long_as_anything_holds_it() {
        testkit::world(|w| {
            let path = w.netns("a");
            let netns = identity(&path);
            assert_eq!(Namespaces::default().look_for(&netns), Existence::Exists);

            w.sh("touch /run/elsewhere; mount --bind /run/netns/a /run/elsewhere; ip netns del a");
            assert_eq!(
                Namespaces::default().look_for(&netns),
                Existence::Exists,
                "a mount at another place"
            );

            let mut process = std::process::Command::new("nsenter")
                .args(["--net=/run/elsewhere", "sh", "-c", "echo; read _"])
                .stdin(std::process::Stdio::piped())
                .stdout(std::process::Stdio::piped())
                .spawn()
                .unwrap();
            // Its first line tells that it is inside.
            process.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
            w.sh("umount /run/elsewhere");
            assert_eq!(Namespaces::default().look_for(&netns), Existence::Exists, "a process");
            drop(process.stdin.take());
            process.wait().unwrap();
        });
    }

    #[test]
    fn a_namespace_that_nothing_holds_is_gone_though_its_inode_is_back() {
        testkit::world(|w| {
            let netns = identity(&w.netns("a"));
            w.sh("ip netns del a");
            // Namespaces of other tests may take the number meanwhile: the cookie tells them apart.
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
            while Namespaces::default().look_for(&netns) != Existence::Gone {
                assert!(
                    std::time::Instant::now() < deadline,
                    "{netns:?} never disappeared: {:?} {:?}",
                    Scan::new().incomplete,
                    Scan::new().holders.get(&netns.inode)
                );
                std::thread::yield_now();
            }
            let recycled = NetnsIdentity {
                cookie: netns.cookie.map(|cookie| cookie + 1_000_000),
                ..identity(&w.netns("b"))
            };
            let expected = if recycled.cookie.is_some() {
                Existence::Gone
            } else {
                Existence::Exists
            };
            assert_eq!(Namespaces::default().look_for(&recycled), expected);
        });
    }
}
