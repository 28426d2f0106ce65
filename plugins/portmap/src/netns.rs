//! Whether the network namespace of a mapping's holder still exists.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A namespace as text: inode number on nsfs, and the path by which the runtime called it. `None` for a path that cannot
/// be looked at.
///
/// nsfs is one file system for the whole kernel, so its inode numbers are enough to tell living namespaces apart. A number
/// comes back some time after its namespace is gone; then the holder seems to exist, and ADD is told to try again later
/// rather than to take a port from a living container.
pub(crate) fn identity(path: &Path) -> Option<String> {
    let inode = fs::metadata(path).ok()?.ino();
    Some(format!("{inode} {}", path.display()))
}

/// Whether the namespace exists: under its path, mounted elsewhere, or as the namespace of a process. In doubt it does not
/// count: then the last ADD gets the port, as with the reference.
pub(crate) fn exists(identity: &str) -> bool {
    let Some((inode, path)) = identity.split_once(' ') else {
        return false;
    };
    let Ok(inode) = inode.parse::<u64>() else { return false };
    fs::metadata(path).is_ok_and(|found| found.ino() == inode) || is_mounted(inode) || has_process(inode)
}

/// The root field of an nsfs mount is `net:[inode]` (proc_pid_mountinfo(5)).
fn is_mounted(inode: u64) -> bool {
    let root = format!(" net:[{inode}] ");
    fs::read_to_string("/proc/thread-self/mountinfo").is_ok_and(|mounts| mounts.contains(&root))
}

fn has_process(inode: u64) -> bool {
    let link = format!("net:[{inode}]");
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    // What is no process has no such link, and where it cannot be read the namespace is in doubt.
    let mut links = processes.filter_map(|process| fs::read_link(process.path().join("ns/net")).ok());
    links.any(|found| found.as_os_str() == link.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_exists_until_it_is_deleted() {
        testkit::world(|w| {
            let identity = identity(&w.netns("a")).unwrap();
            assert!(exists(&identity));
            w.sh("touch /run/elsewhere; mount --bind /run/netns/a /run/elsewhere; ip netns del a");
            assert!(exists(&identity), "mounted elsewhere");
            w.sh("umount /run/elsewhere");
            assert!(!exists(&identity));
        });
    }

    #[test]
    fn a_namespace_of_a_process_exists_without_a_path() {
        testkit::world(|w| {
            let identity = identity(&w.netns("a")).unwrap();
            w.sh("ip netns exec a sleep 60 >/dev/null 2>&1 & echo $! > /run/pid; while ! ip netns pids a | grep -q .; do :; done; ip netns del a");
            assert!(exists(&identity));
            w.sh("kill $(cat /run/pid); while kill -0 $(cat /run/pid) 2>/dev/null; do :; done");
        });
    }

    #[test]
    fn what_cannot_be_read_is_in_doubt() {
        assert!(!exists(""));
        assert!(!exists("x /proc/thread-self/ns/net"));
        assert_eq!(identity(Path::new("/nowhere")), None);
    }
}
