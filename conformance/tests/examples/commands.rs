//! The commands in the examples' READMEs.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::site::Site;
use crate::{directory, names_in};

/// Stands before a block of commands that the tests run, from the example's directory.
const MARK: &str = "<!-- run by the tests -->\n";

/// A README's blocks of commands that are to be run, one after the other.
fn marked(readme: &str) -> String {
    let mut script = String::new();
    for after in readme.split(MARK).skip(1) {
        let block = after
            .strip_prefix("```sh\n")
            .and_then(|block| block.split_once("```\n"));
        script += block.expect("a block of shell commands after the mark").0;
    }
    script
}

#[test]
fn marked_commands_work() {
    let mut run = 0;
    for example in names_in(&directory()) {
        let path = directory().join(&example);
        let script = marked(&fs::read_to_string(path.join("README.md")).unwrap());
        if !script.is_empty() {
            testkit::world(|world| run_commands(&Site::new(world), &path, &script));
            run += 1;
        }
    }
    assert!(run > 0, "no README has a marked block");
}

fn run_commands(site: &Site, example: &Path, script: &str) {
    let cnitool = Path::new(env!("CARGO_BIN_EXE_cnitool")).parent().unwrap();
    let path = format!("{}:{}", cnitool.display(), std::env::var("PATH").unwrap());
    let output = Command::new("bash")
        .args(["-euxo", "pipefail", "-c", script])
        .current_dir(example)
        .env("PATH", path)
        .output()
        .expect("bash");
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success(), "{}:\n{said}", example.display());
    let left = site.sh("ls /run/netns | grep -v client || true; ip -o link show type veth | grep -v ' wire@' || true");
    assert_eq!(left, "", "{}: the commands leave something:\n{said}", example.display());
}

#[test]
fn marked_blocks_are_found() {
    let readme = format!("x\n{MARK}```sh\na\nb\n```\ny\n```sh\nc\n```\n{MARK}```sh\nd\n```\n");
    assert_eq!(marked(&readme), "a\nb\nd\n");
}
