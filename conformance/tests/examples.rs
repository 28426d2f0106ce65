//! Every network under examples/ is one that a runtime can load.
#![allow(clippy::unwrap_used, reason = "a test that cannot read the examples must stop")]

use std::fs;
use std::path::{Path, PathBuf};

use conformance::conf::NetworkConf;

fn conflists() -> Vec<PathBuf> {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    let directories = fs::read_dir(examples).unwrap().map(|entry| entry.unwrap().path());
    let files = directories
        .filter(|path| path.is_dir())
        .flat_map(|directory| fs::read_dir(directory).unwrap());
    let paths = files.map(|entry| entry.unwrap().path());
    paths
        .filter(|path| path.extension().is_some_and(|e| e == "conflist"))
        .collect()
}

#[test]
fn every_example_loads_and_is_explained() {
    let conflists = conflists();
    assert!(!conflists.is_empty());
    for path in conflists {
        let conf = NetworkConf::load(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        // Older runtimes refuse results of later versions.
        assert_eq!(conf.version, "1.0.0", "{}", path.display());
        assert!(
            path.with_file_name("README.md").exists(),
            "{} has no README.md",
            path.display()
        );
    }
}
