//! Plugins with a defect each, made of ours: the suite is worth what it finds.
//!
//! The plugins are those in `FERRULE_BIN` (default: dist/bin, where `scripts/build` puts them).
#![allow(clippy::unwrap_used, reason = "a test that cannot set up its plugins must stop")]
#![allow(
    clippy::disallowed_methods,
    reason = "tests start programs and read their environment"
)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use conformance::run::{Subject, Verdict};

/// A plugin that answers as ours does but for one thing, in the words of the shell: `real` calls ours.
struct Defect {
    plugin: &'static str,
    script: &'static str,
    /// The checks that have to find it.
    found_by: &'static [&'static str],
}

const DEFECTS: &[Defect] = &[
    Defect {
        plugin: "loopback",
        script: "real > $out; code=$?; cat $out; [ $CNI_COMMAND != ADD ] || cat $out; exit $code",
        found_by: &["add/prints-one-document"],
    },
    Defect {
        plugin: "portmap",
        script: "[ $CNI_COMMAND != ADD ] || { real > $out || { cat $out; exit 1; }; echo '{\"cniVersion\":\"1.0.0\"}'; exit 0; }; real",
        found_by: &["chain/prev-result-1.0.0"],
    },
    Defect {
        plugin: "bridge",
        script: "if [ $CNI_COMMAND = DEL ] && ! [ -e \"$CNI_NETNS\" ]; then
            echo '{\"cniVersion\":\"1.0.0\",\"code\":100,\"msg\":\"no such namespace\"}'; exit 1; fi; real",
        found_by: &[
            "del/never-added-missing-namespace",
            "del/leaves-nothing-after-the-namespace",
        ],
    },
    Defect {
        plugin: "portmap",
        script: "[ $CNI_COMMAND != ADD ] || nft \"add table inet leak; add chain inet leak $CNI_CONTAINERID\"; real",
        found_by: &["del/leaves-nothing"],
    },
    Defect {
        plugin: "host-local",
        script: "real > $out; code=$?; sed 's/\"cniVersion\": \"1.0.0\"/\"cniVersion\": \"0.4.0\"/' $out; exit $code",
        found_by: &["result/1.0.0"],
    },
    Defect {
        plugin: "host-local",
        script: "[ $CNI_COMMAND != GC ] || exit 0; real",
        found_by: &["gc/removes-what-is-not", "host-local/gc-of-files"],
    },
    Defect {
        plugin: "bridge",
        script: "[ $CNI_COMMAND != CHECK ] || exit 0; real",
        found_by: &[
            "check/interface-gone",
            "bridge/check-mac-changed",
            "delegation/add-check-del",
        ],
    },
    Defect {
        plugin: "bridge",
        script: "[ $CNI_COMMAND != DEL ] || [ -e \"$CNI_NETNS\" ] || [ -z \"$CNI_NETNS\" ] || : > \"$CNI_NETNS\"; real",
        found_by: &["del/never-added-missing-namespace"],
    },
    Defect {
        plugin: "loopback",
        script: "[ -n \"${CNI_IFNAME:-}\" ] || CNI_IFNAME=lo; export CNI_IFNAME; real",
        found_by: &["parameters/ifname-missing"],
    },
    Defect {
        plugin: "bridge",
        script: "real > $out; code=$?; sed 's/\"code\": 111/\"code\": 999/' $out; exit $code",
        found_by: &["delegation/error-is-passed-on"],
    },
];

fn suite() -> Option<PathBuf> {
    if !nix::unistd::geteuid().is_root() {
        assert!(env::var_os("CI").is_none(), "checks need root");
        testkit::skip("checks need root");
        return None;
    }
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dist/bin");
    let directory = env::var_os("FERRULE_BIN").map_or(built, PathBuf::from);
    assert!(
        directory.join("ferrule").exists(),
        "scripts/build puts the plugins into dist/bin"
    );
    Some(directory)
}

/// A plugin directory like ours, with one defect.
fn with_defect(suite: &Path, number: usize, defect: &Defect) -> Subject {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("defect-{number}"));
    let script = format!(
        "#!/bin/sh\nout=$(mktemp /run/conformance/files/out.XXXXXX)\nreal() {{ \"$(dirname \"$0\")/real/$(basename \"$0\")\"; }}\n{}\n",
        defect.script
    );
    // Files are made by another process: one that is open for writing in this one would be so in every plugin that
    // another test starts meanwhile, and cannot be executed.
    let made = Command::new("sh")
        .args([
            "-euc",
            "rm -rf \"$2\"; mkdir -p \"$2\"; cp -rl \"$1\" \"$2/real\" 2>/dev/null || cp -r \"$1\" \"$2/real\"
            cp -r \"$2/real/.\" \"$2\"; rm \"$2/$3\"; printf %s \"$4\" > \"$2/$3\"; chmod 755 \"$2/$3\"",
            "sh",
        ])
        .arg(suite)
        .arg(&directory)
        .args([defect.plugin, &script])
        .status();
    assert!(made.unwrap().success());
    Subject::find(&directory).unwrap()
}

fn verdicts(subject: &Subject, plugin: &str, checks: &[&str]) -> Vec<(String, Verdict)> {
    let work: Vec<_> = subject
        .work(|check| checks.contains(&check.id))
        .into_iter()
        .filter(|(_, of)| of == plugin)
        .collect();
    assert_eq!(work.len(), checks.len(), "{checks:?} are checks of {plugin}");
    let outcomes = subject.run(&work, |_| ());
    outcomes
        .into_iter()
        .map(|outcome| (outcome.check.id.to_owned(), outcome.verdict))
        .collect()
}

#[test]
fn every_defect_is_found_by_the_check_that_names_it() {
    let Some(suite) = suite() else { return };
    let sound = Subject::find(&suite).unwrap();
    for (number, defect) in DEFECTS.iter().enumerate() {
        let defective = with_defect(&suite, number, defect);
        assert_eq!(
            defective.plugins, sound.plugins,
            "a defect is not that a plugin is missing"
        );
        for (id, verdict) in verdicts(&defective, defect.plugin, defect.found_by) {
            assert!(
                matches!(verdict, Verdict::Fail(_)),
                "{id} did not find: {}",
                defect.script
            );
        }
        for (id, verdict) in verdicts(&sound, defect.plugin, defect.found_by) {
            assert_eq!(verdict, Verdict::Pass, "{id} of {} without the defect", defect.plugin);
        }
        fs::remove_dir_all(&defective.directory).unwrap();
    }
}

#[test]
fn checks_have_names_of_their_own_and_say_what_they_rest_on() {
    let checks = conformance::checks::all();
    let ids: BTreeSet<&str> = checks.iter().map(|check| check.id).collect();
    assert_eq!(ids.len(), checks.len());
    for check in checks {
        let (subject, name) = check.id.split_once('/').unwrap();
        assert!(!subject.is_empty() && !name.is_empty(), "{}", check.id);
        assert!(check.rule.len() > 10, "{}: {}", check.id, check.rule);
    }
}

#[test]
fn every_case_has_a_check() {
    let ids: Vec<&str> = conformance::checks::all().iter().map(|check| check.id).collect();
    let mut last = "";
    for case in conformance::checks::CASES {
        assert!(case.number > last, "{} comes after {last}", case.number);
        last = case.number;
        assert!(!case.checks.is_empty(), "{}: {}", case.number, case.title);
        for name in case.checks {
            assert!(
                ids.iter().any(|id| conformance::checks::covers(name, id)),
                "{} names the check {name}, which does not exist",
                case.number
            );
        }
    }
}

#[test]
fn known_failures_name_checks_that_exist() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("known-failures");
    let ids: BTreeSet<&str> = conformance::checks::all().iter().map(|check| check.id).collect();
    for entry in fs::read_dir(directory).unwrap() {
        let known = conformance::known::KnownFailures::read(&entry.unwrap().path()).unwrap();
        for failure in &known.failures {
            assert!(ids.contains(failure.check.as_str()), "{}", failure.check);
            assert!(failure.reason.len() > 20, "{}: {}", failure.check, failure.reason);
        }
    }
}
