//! `scripts/install`, killed before it replaces a file: before the first, before the second, and so on.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::Output;

use crate::install::{Node, succeeded};

/// Runs `install` with a `mv` in its PATH that kills it instead of doing what it is asked for the `number`-th time.
fn killed_at(node: &Node<'_>, number: usize, arguments: &str) -> Output {
    let tmp = node.w.tmp();
    let count = tmp.join("count");
    fs::write(&count, number.to_string()).unwrap();
    let killing = format!(
        "#!/bin/sh\ncount=$(cat {count})\n[ \"$count\" -gt 0 ] || {{ kill -9 $PPID; exit 1; }}\n\
         echo $((count - 1)) > {count}\nexec mv \"$@\"\n",
        count = count.display()
    );
    let directory = tmp.join("killing");
    fs::create_dir_all(&directory).unwrap();
    // Written by another process: one that this process has open for writing could not be executed.
    let script = format!(
        "cat > {0}/mv <<'END'\n{killing}END\nchmod 755 {0}/mv",
        directory.display()
    );
    node.w
        .sh(&script.replace("exec mv", &format!("exec {}/tools/mv", tmp.display())));
    let killed = Node {
        path: format!("{}:{}", directory.display(), node.path),
        from: node.from.clone(),
        ..*node
    };
    killed.script("install", arguments)
}

fn was_killed(output: &Output) -> bool {
    output.status.signal() == Some(9)
}

/// In every name there is a whole file, the old one or the new one.
#[track_caller]
fn assert_whole(node: &Node<'_>, old: &str) {
    let ferrule = node.w.sh(&format!("sha256sum < {}/ferrule", node.from.display()));
    for plugin in node.plugins() {
        let file = node.bin().join(&plugin);
        if !file.exists() {
            assert!(!old.contains(&format!("./{plugin} ")), "{plugin} is missing");
            continue;
        }
        let sum = node.w.sh(&format!("sha256sum < {}", file.display()));
        let is_old = sum.split(' ').next().is_some_and(|sum| old.contains(sum));
        assert!(
            sum == ferrule || is_old,
            "{plugin} is neither the old one nor the new one"
        );
    }
}

#[test]
fn an_installation_that_was_killed_anywhere_is_completed_by_the_next() {
    testkit::world(|w| {
        let node = Node::new(w, "dash");
        let before = node.with_another_suite();
        let from = format!("--from {}", node.from.display());
        let mut kills = 0;
        loop {
            let output = killed_at(&node, kills, &from);
            assert_whole(&node, &before);
            if !was_killed(&output) {
                succeeded(&output);
                break;
            }
            kills += 1;
            node.install("");
            node.assert_installed();
            node.roll_back();
            assert_eq!(node.listing(&node.bin()), before, "killed before replacement {kills}");
        }
        assert!(kills > node.plugins().len(), "killed {kills} times");
    });
}

#[test]
fn a_rollback_that_was_killed_anywhere_is_completed_by_the_next() {
    testkit::world(|w| {
        let node = Node::new(w, "dash");
        let before = node.with_another_suite();
        let mut kills = 0;
        loop {
            node.install("");
            let output = killed_at(&node, kills, "--rollback");
            assert_whole(&node, &before);
            if !was_killed(&output) {
                succeeded(&output);
                break;
            }
            kills += 1;
            // Before its last step everything is as it was, but for what is remembered.
            if node.bin().join(".ferrule").exists() {
                node.roll_back();
            }
            assert_eq!(node.listing(&node.bin()), before, "killed before replacement {kills}");
        }
        assert!(kills > 2, "killed {kills} times");
    });
}
