//! Everything under examples/ works as it stands there: each network is run by a runtime's library in a private world, and so
//! are the commands of each README that are marked for it.
//!
//! [`networks`] names every file and says what must be seen; a file or directory that nobody names fails the tests. The
//! plugins are those in `FERRULE_BIN` (default: dist/bin, where `scripts/build` puts them).
#![allow(
    clippy::disallowed_methods,
    reason = "tests start programs and read their environment"
)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot set up its node must stop"
)]

mod cluster;
mod commands;
mod fleet;
mod meta;
mod networks;
#[path = "../runtimes/node.rs"]
mod node;
mod site;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use networks::{Example, NETWORKS};
use node::Node;
use site::Site;

/// Directories without a network: [`fleet`] runs what is in them, and the tests of the plugins the commands of migration.
const RUN_ELSEWHERE: [&str; 3] = ["kubernetes-daemonset", "migration", "nomad-system-job"];

/// The repository's examples.
pub(crate) fn directory() -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    fs::canonicalize(path).unwrap()
}

fn names_in(directory: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(directory).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[test]
fn every_example_is_run_and_explained() {
    let mut networks = BTreeSet::new();
    for example in names_in(&directory()) {
        let path = directory().join(&example);
        assert!(path.join("README.md").is_file(), "examples/{example} has no README.md");
        let is_network = |name: &&String| [".conf", ".conflist"].iter().any(|end| name.ends_with(end));
        let names = names_in(&path);
        let before = networks.len();
        networks.extend(names.iter().filter(is_network).map(|name| format!("{example}/{name}")));
        assert!(
            networks.len() > before || RUN_ELSEWHERE.contains(&example.as_str()),
            "no test runs examples/{example}"
        );
    }
    let named = NETWORKS.iter().map(|example| example.file.to_owned());
    assert_eq!(networks, named.collect(), "examples, and those that the tests run");
}

#[test]
fn every_network_works_and_leaves_nothing() {
    // Waiting for packets that must not arrive is most of what a run takes.
    for together in NETWORKS.chunks(5) {
        thread::scope(|scope| {
            for example in together {
                let named = thread::Builder::new().name(example.file.to_owned());
                let run = || testkit::world(|world| run(&Site::new(world), example));
                named.spawn_scoped(scope, run).unwrap();
            }
        });
    }
}

/// A container comes and goes, which makes what stays for all; then another does, is asked after, reached, and must leave the
/// node as it was.
fn run(site: &Site, example: &Example) {
    let path = directory().join(example.file);
    let conf = (example.load)(&path).unwrap_or_else(|e| panic!("{}: {e}", example.file));
    for (name, script) in example.foreign {
        site.stand_in(
            name,
            &script.replace("$EXAMPLE", &path.parent().unwrap().to_string_lossy()),
        );
    }
    (example.node)(site);

    let first = site.attach(&conf, "first");
    assert_eq!(first.addresses(), example.addresses, "{}", example.file);
    site.detach(&first);
    let settled = Node::look();
    let traces = settled.lines_with(&["first"]);
    assert!(traces.is_empty(), "{}: the first left {traces:#?}", example.file);

    let second = site.attach(&conf, "second");
    site.check(&second);
    (example.probe)(site, &second);
    site.check(&second);
    site.detach(&second);
    let left = Node::look().beyond(&settled);
    assert!(left.is_empty(), "{}: left {left:#?}", example.file);
}
