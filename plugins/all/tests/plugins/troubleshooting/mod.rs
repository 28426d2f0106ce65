//! The page on troubleshooting has the texts that the plugins have: many are provoked here, the others are in the sources.

mod cases;

use std::fs;
use std::path::{Path, PathBuf};

use crate::suite::Suite;
use cases::Case;

/// Sections whose texts are not ours: other programs', and the kernel's.
const OF_OTHERS: [&str; 3] = [
    "What runtimes say",
    "What the kernel says",
    "What only the reference plugins say",
];

/// Stands for what varies in a text of the page.
const ANYTHING: &str = "...";

/// A text of the page.
#[derive(Debug)]
struct Entry {
    section: String,
    text: String,
    /// The second column, if that is a code.
    code: Option<u64>,
}

/// The texts between backquotes in the first column of every table.
fn page() -> Vec<Entry> {
    let text = fs::read_to_string(root().join("plugins/TROUBLESHOOTING.md")).unwrap();
    let (mut section, mut entries) = (String::new(), Vec::new());
    for line in text.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            section = heading.to_owned();
        }
        let Some(row) = line.strip_prefix("| ").filter(|row| row.starts_with('`')) else {
            continue;
        };
        let cells: Vec<&str> = row.split(" | ").collect();
        entries.extend(cells[0].split('`').skip(1).step_by(2).map(|text| Entry {
            section: section.clone(),
            text: text.to_owned(),
            code: cells[1].parse().ok(),
        }));
    }
    entries
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Whether the pieces of a text of the page come one after the other in what was said.
fn is_said(text: &str, said: &str) -> bool {
    let mut rest = Some(said);
    for piece in text.split(ANYTHING) {
        rest = rest.and_then(|rest| Some(rest.split_once(piece)?.1));
    }
    rest.is_some()
}

/// Makes each call in turn, all in one world, and looks for its text in the answer and on the page.
fn provoke(cases: &[Case]) {
    let page = page();
    testkit::world(|w| {
        let suite = Suite::install(w);
        w.netns("a");
        for case in cases {
            w.sh(&format!("BIN={}; {}", suite.bin().display(), case.before));
            let reply = case.call(&suite);
            let said = match case.code {
                Some(code) => {
                    let (told, msg) = reply.error();
                    assert_eq!(told, code, "{}: {reply:?}", case.text);
                    msg
                }
                None => {
                    assert_eq!(reply.code, Some(0), "{}: {reply:?}", case.text);
                    reply.stderr.clone()
                }
            };
            assert!(is_said(case.text, &said), "{}: {reply:?}", case.text);
            let entry = page.iter().find(|entry| entry.text == case.text);
            let entry = entry.unwrap_or_else(|| panic!("{:?} is not on the page", case.text));
            // What others say as well comes with any code.
            let is_told = entry.code.is_none_or(|code| Some(code) == case.code);
            assert!(is_told, "the code of {:?} is another on the page", case.text);
        }
    });
}

fn all() -> Vec<Case> {
    [
        cases::of_the_call(),
        cases::of_addresses(),
        cases::of_interfaces(),
        cases::of_ports_and_rules(),
        cases::of_the_rest(),
        cases::of_warnings(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[test]
fn refusals_of_the_call_are_those_of_the_page() {
    provoke(&cases::of_the_call());
}

#[test]
fn refusals_of_addresses_are_those_of_the_page() {
    provoke(&cases::of_addresses());
}

#[test]
fn refusals_of_interfaces_are_those_of_the_page() {
    provoke(&cases::of_interfaces());
}

#[test]
fn refusals_of_ports_and_rules_are_those_of_the_page() {
    provoke(&cases::of_ports_and_rules());
}

#[test]
fn refusals_of_firewall_tuning_and_gc_are_those_of_the_page() {
    provoke(&cases::of_the_rest());
}

#[test]
fn warnings_are_those_of_the_page() {
    provoke(&cases::of_warnings());
}

/// Contexts are joined by colons where messages are made, so each part is looked for by itself.
#[test]
fn what_is_not_provoked_is_in_the_sources() {
    const LONG_ENOUGH_TO_SAY_SOMETHING: usize = 8;
    let (provoked, sources) = (all(), sources());
    let ours = page()
        .into_iter()
        .filter(|entry| !OF_OTHERS.contains(&entry.section.as_str()));
    for entry in ours.filter(|entry| provoked.iter().all(|case| case.text != entry.text)) {
        let parts = entry.text.split(ANYTHING).flat_map(|piece| piece.split(": "));
        let parts = parts.map(|part| part.trim_matches([' ', '"', ':', ',']));
        let telling: Vec<&str> = parts
            .filter(|part| part.len() >= LONG_ENOUGH_TO_SAY_SOMETHING)
            .collect();
        assert!(!telling.is_empty(), "{entry:?} has to be provoked: it says too little");
        for part in telling {
            assert!(sources.contains(part), "{part:?} of {entry:?} is in no source");
        }
    }
}

/// The plugins' sources without their tests, quotes as they are printed.
fn sources() -> String {
    let mut files = Vec::new();
    for directory in ["cni-types", "plugins"] {
        collect(&root().join(directory), &mut files);
    }
    let without_tests = |file: &PathBuf| {
        let text = fs::read_to_string(file).unwrap();
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        code.replace("\\\"", "\"")
    };
    files.iter().map(without_tests).collect()
}

fn collect(path: &Path, files: &mut Vec<PathBuf>) {
    let name = path.file_name().unwrap_or_default();
    if path.is_dir() && name != "tests" && name != "testkit" && name != "fuzz" {
        for entry in fs::read_dir(path).unwrap() {
            collect(&entry.unwrap().path(), files);
        }
    } else if path.extension().is_some_and(|extension| extension == "rs") {
        files.push(path.to_owned());
    }
}

#[test]
fn a_text_is_found_by_its_pieces_in_their_order() {
    assert!(is_said("a \"...\" is ...", "x: a \"b\" is c"));
    assert!(!is_said("is ... a", "a is b"));
    assert!(!is_said("a ... d", "a b c"));
}
