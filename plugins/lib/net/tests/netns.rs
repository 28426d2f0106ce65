//! Namespaces: entered, left, and kept apart.
#![allow(clippy::unwrap_used, reason = "a test stops where something is missing")]

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Barrier;

use net::{Net, netns};
use testkit::world;

fn here() -> PathBuf {
    fs::read_link("/proc/thread-self/ns/net").unwrap()
}

fn identity(namespace: &PathBuf) -> (PathBuf, File) {
    let file = File::open(namespace).unwrap();
    let there = netns::run_in(file.as_fd(), here).unwrap();
    (there, file)
}

#[test]
fn entering_comes_back() {
    world(|w| {
        let own = here();
        let (there, file) = identity(&w.netns("pod"));
        assert_ne!(there, own);
        let mut pod = Net::enter(file.as_fd()).unwrap();
        assert_eq!(here(), own);
        w.sh_in("pod", "ip link add inside type veth peer name other");
        assert!(pod.link("inside").unwrap().is_some());
        assert!(Net::host().unwrap().link("inside").unwrap().is_none());
    });
}

#[test]
fn what_is_no_namespace_is_refused_and_nothing_moves() {
    world(|_| {
        let own = here();
        let error = Net::enter(File::open("/dev/null").unwrap().as_fd()).unwrap_err();
        assert_eq!(error.to_string(), "enter network namespace: Invalid argument (EINVAL)");
        assert_eq!(here(), own);
    });
}

#[test]
fn a_failure_or_panic_inside_comes_back_too() {
    world(|w| {
        let own = here();
        let (_, file) = identity(&w.netns("pod"));
        let failed = netns::run_in(file.as_fd(), || File::open("/nonexistent").map(drop));
        assert!(failed.unwrap().is_err());
        assert_eq!(here(), own);
        let panicked = catch_unwind(AssertUnwindSafe(|| netns::run_in(file.as_fd(), || panic!("inside"))));
        assert!(panicked.is_err());
        assert_eq!(here(), own);
        // Without /proc/sys/net there are no sysctls to hold: the failure happens inside.
        w.sh("mount -t tmpfs none /proc/sys");
        let error = Net::enter(file.as_fd()).unwrap_err();
        assert!(error.is_not_found(), "{error}");
        assert_eq!(here(), own);
    });
}

#[test]
fn threads_in_different_namespaces_do_not_disturb_each_other() {
    const ROUNDS: usize = 200;
    world(|w| {
        let own = here();
        let pods = ["a", "b"].map(|name| identity(&w.netns(name)));
        let start = Barrier::new(pods.len());
        std::thread::scope(|scope| {
            for (there, file) in &pods {
                let (own, start) = (&own, &start);
                scope.spawn(move || {
                    start.wait();
                    for _ in 0..ROUNDS {
                        let inside = netns::run_in(file.as_fd(), || {
                            std::thread::yield_now();
                            here()
                        });
                        assert_eq!(inside.unwrap(), *there);
                        assert_eq!(here(), *own);
                        assert!(Net::enter(file.as_fd()).unwrap().link("lo").unwrap().is_some());
                    }
                });
            }
        });
        assert_eq!(here(), own);
    });
}

#[test]
fn the_handle_that_was_entered_is_not_consumed() {
    world(|w| {
        let (_, mut file) = identity(&w.netns("pod"));
        drop(Net::enter(file.as_fd()).unwrap());
        // Still open: reading a namespace file is refused, a closed one would be a bad descriptor.
        let error = file.read(&mut [0]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(nix::errno::Errno::EINVAL as i32));
    });
}
