//! Whoever is killed at whatever moment leaves nothing that DEL and GC do not find.

use std::collections::BTreeSet;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::topology::*;
use cni_types::Attachment;
use netfilter::masquerade::{self, Masquerade};
use netfilter::portmap::{self, Hints};
use netfilter::{Backend, Protocol};
use testkit::world;

/// Set in the processes that this test starts of itself.
const CHILD: &str = "FERRULE_TEST_CHILD";

/// The two attachments of a child's container.
fn attachments(number: u16) -> [Attachment; 2] {
    let container = format!("c{number}");
    [
        attachment("net", &container, "eth0"),
        attachment("two", &container, "eth1"),
    ]
}

/// Not a test: adds and deletes until it is killed, or its parent is.
#[test]
#[allow(clippy::disallowed_methods, reason = "the parent tells the child by its environment")]
fn child() {
    static ORPHANED: AtomicBool = AtomicBool::new(false);
    let Ok(number) = std::env::var(CHILD) else { return };
    thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        ORPHANED.store(true, Ordering::Relaxed);
    });
    let number: u16 = number.parse().unwrap();
    let [one, two] = attachments(number);
    let last = 2 + number as u8;
    let ports = (100 * number, 100 * number + 9);
    let wanted = published(last, &[tcp(8000 + number, 80), range(ports, ports)]);
    let shared = [tcp(8000 + number, 80), mapping(Protocol::Udp, None, 5300 + number, 53)];
    let masquerade = Masquerade {
        addresses: addresses(last),
        exclude: Vec::new(),
    };
    while !ORPHANED.load(Ordering::Relaxed) {
        portmap::add(Backend::Nftables, &one, &wanted).unwrap();
        portmap::add(Backend::Nftables, &two, &published(100 + last, &shared)).unwrap();
        masquerade::add(Backend::Nftables, &one, &masquerade).unwrap();
        portmap::del(&one, &Hints::default()).unwrap();
        masquerade::del(&one).unwrap();
        portmap::del(&two, &Hints::default()).unwrap();
    }
}

#[allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "the test starts itself")]
fn start_child(number: u16) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "nftables_kill::child", "--quiet"])
        .env(CHILD, number.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn del_and_gc_clean_up_after_whoever_was_killed() {
    world(|w| {
        let mut connection = nft::Connection::open().unwrap();
        for round in 0..6u32 {
            let mut children = [1, 2, 3].map(start_child);
            // The moment differs with the round: after so many changes of the ruleset.
            let begun = connection.generation().unwrap();
            let deadline = Instant::now() + Duration::from_secs(60);
            while connection.generation().unwrap().wrapping_sub(begun) < 5 + 11 * round {
                assert!(Instant::now() < deadline, "the children change nothing");
                thread::yield_now();
            }
            for child in &mut children {
                child.kill().unwrap();
                child.wait().unwrap();
            }
            if round % 2 == 0 {
                for attachment in (1..=3).flat_map(attachments) {
                    portmap::del(&attachment, &Hints::default()).unwrap();
                    masquerade::del(&attachment).unwrap();
                }
            } else {
                for network in ["net", "two"].map(|name| name.parse().unwrap()) {
                    portmap::gc(&network, &BTreeSet::new()).unwrap();
                    masquerade::gc(&network, &BTreeSet::new()).unwrap();
                }
            }
            let listing = w.sh("nft list ruleset");
            for trace in ["elements", "snat4-", "snat6-", "masq4-", "masq6-"] {
                assert!(!listing.contains(trace), "round {round}: {trace} in\n{listing}");
            }
        }
    });
}
