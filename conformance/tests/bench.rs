//! `cni-conformance bench` measures what works, says what does not, and leaves nothing behind. How long anything takes is not tested. The
//! plugins are those in `FERRULE_BIN` (default: dist/bin, where `scripts/build` puts them).
#![allow(
    clippy::disallowed_methods,
    reason = "tests start programs and read their environment"
)]
#![allow(clippy::unwrap_used, reason = "a test that cannot start the benchmark must stop")]

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

fn plugins() -> PathBuf {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dist/bin");
    let directory = env::var_os("FERRULE_BIN").map_or(built, PathBuf::from);
    let bridge = directory.join("bridge");
    assert!(
        bridge.exists(),
        "no {}: run scripts/build, or set FERRULE_BIN",
        bridge.display()
    );
    directory
}

/// Runs `cni-conformance bench` and returns whether it succeeded, its output and its errors.
fn bench(arguments: &[&str]) -> (bool, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_cni-conformance"))
        .arg("bench")
        .args(arguments)
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

#[test]
fn help_goes_to_standard_output_and_mistakes_do_not() {
    let (success, stdout, stderr) = bench(&["--help"]);
    assert!(
        success && stdout.contains("usage: cni-conformance bench") && stderr.is_empty(),
        "{stdout}{stderr}"
    );
    for (arguments, problem) in [
        (&[][..], "--plugins is missing"),
        (&["--plugins", "a", "b"], "unexpected argument \"b\""),
        (&["--fast", "a"], "invalid option '--fast'"),
        (
            &["--plugins", "a", "--rounds"],
            "missing argument for option '--rounds'",
        ),
        (
            &["--plugins", "a", "--rounds", "many"],
            "cannot parse argument \"many\"",
        ),
    ] {
        let (success, stdout, stderr) = bench(arguments);
        assert!(
            !success && stdout.is_empty() && stderr.contains(problem),
            "{arguments:?}: {stderr}"
        );
    }
}

#[test]
fn both_directories_are_measured_in_every_part() {
    testkit::world(|w| {
        let (plugins, json) = (plugins(), w.tmp().join("figures.json"));
        let (plugins, json) = (plugins.to_str().unwrap(), json.to_str().unwrap());
        let only = ["--only", "bridge+portmap, nftables against"];
        let arguments = [
            &only[..],
            &[
                "--rounds",
                "2",
                "--report",
                json,
                "--plugins",
                plugins,
                "--compare",
                plugins,
            ],
        ]
        .concat();
        let (success, table, progress) = bench(&arguments);
        assert!(success, "{progress}");
        assert!(!table.contains("failed"), "{table}");
        assert!(table.contains("B/A"), "{table}");

        let figures: Value = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
        let rows = figures["rows"].as_array().unwrap();
        let parts: Vec<&str> = rows.iter().filter_map(|row| row["part"].as_str()).collect();
        assert_eq!(parts, ["ADD", "DEL", "ADD of 60", "DEL of 60"], "{figures:#}");
        let add = &rows[0];
        assert_eq!(add["plugins"], json!(["bridge", "portmap"]));
        for side in [0, 1] {
            let medians = &add["medians"][side];
            assert_eq!(medians["rounds"], 2, "{add:#}");
            assert!(medians["peakKib"].as_u64().unwrap() > 0, "{add:#}");
        }
        // nf_tables is written without any program, iptables by its own.
        let programs = |side: usize| add["medians"][side]["programs"].as_u64();
        assert_eq!(programs(0), Some(2), "{add:#}");
        assert!(programs(1) > Some(2), "{add:#}");
        // All happened in worlds of its own.
        assert_eq!(
            w.sh("ls /sys/class/net /run/netns /var/lib/cni | grep -v : | xargs"),
            "lo"
        );
    });
}

#[test]
fn a_scenario_that_fails_is_named_and_has_no_cost() {
    testkit::world(|w| {
        // Not below /run, where the worlds of the benchmark have something else.
        let directory = w.sh(&format!("mktemp -d {}/bench.XXXXXX", env!("CARGO_TARGET_TMPDIR")));
        let answer = r#"echo '{"code":11,"msg":"broken on purpose"}'; exit 1"#;
        fs::write(w.tmp().join("draft"), format!("#!/bin/sh\n{answer}\n")).unwrap();
        // A plugin that is open for writing, here or in a child of another test, could not be executed.
        w.sh(&format!(
            "install -m 755 {}/draft {directory}/loopback",
            w.tmp().display()
        ));
        let (success, table, progress) = bench(&["--rounds", "1", "--only", "loopback", "--plugins", &directory]);
        w.sh(&format!("rm -r {directory}"));
        assert!(success, "{progress}");
        assert!(
            table.contains("failed: loopback, directory 1: ") && table.contains("broken on purpose"),
            "{table}"
        );
        assert!(!table.contains("| loopback "), "{table}");
    });
}
