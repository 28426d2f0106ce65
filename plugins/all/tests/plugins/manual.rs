//! What the plugins say of themselves, and whether it is true: `--help`, `--schema`, and the files made of them.
//!
//! With FERRULE_UPDATE in the environment the files are written anew instead of compared.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    reason = "it starts plugins as people do, and stops at what it does not find"
)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use jsonschema::Validator;
use serde_json::{Value, json};
use skel::schema::{Row, rows};
use testkit::call_plugin;

use crate::chains::Chain;
use crate::suite::Suite;

/// What `plugin` answers to `argument`, started from a directory of its own.
fn told(suite: &Suite, plugin: &str, argument: &str) -> String {
    let output = Command::new(suite.bin().join(plugin))
        .arg(argument)
        .env_remove("CNI_COMMAND")
        .output()
        .unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{plugin} {argument}: {output:?}"
    );
    String::from_utf8(output.stdout).unwrap()
}

fn plugins() -> Vec<String> {
    let list = Command::new(env!("CARGO_BIN_EXE_ferrule"))
        .arg("list")
        .output()
        .unwrap()
        .stdout;
    String::from_utf8(list).unwrap().lines().map(str::to_owned).collect()
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn is_update() -> bool {
    std::env::var_os("FERRULE_UPDATE").is_some()
}

/// Compares a file that is made of what plugins say, or writes it.
#[track_caller]
fn assert_current(file: &Path, text: &str) {
    if is_update() {
        fs::write(file, text).unwrap();
    }
    let found = fs::read_to_string(file).unwrap_or_default();
    assert!(
        found == text,
        "{} is not what the plugin says: FERRULE_UPDATE=1 cargo test -p all --test plugins manual",
        file.display()
    );
}

/// The example in a plugin's `--help`.
fn example(help: &str) -> &str {
    let (_, rest) = help.split_once("\n\n{").expect("an example in --help");
    let end = rest.find("\n\n").expect("its end");
    &help[help.len() - rest.len() - 1..help.len() - rest.len() + end]
}

fn validators(suite: &Suite) -> BTreeMap<String, Validator> {
    let of = |plugin: String| {
        let schema: Value = serde_json::from_str(&told(suite, &plugin, "--schema")).unwrap();
        (plugin, jsonschema::draft202012::new(&schema).unwrap())
    };
    plugins().into_iter().map(of).collect()
}

#[test]
fn schemas_and_tables_are_those_of_the_plugins() {
    testkit::world(|w| {
        let suite = Suite::install(w);
        for plugin in plugins() {
            let directory = repository().join("plugins").join(&plugin);
            let schema = told(&suite, &plugin, "--schema");
            assert_current(&directory.join("schema.json"), &schema);
            let manual = directory.join("README.md");
            let text = fs::read_to_string(&manual).unwrap();
            assert_current(
                &manual,
                &with_table(&text, &rows(&serde_json::from_str(&schema).unwrap())),
            );
            let example = example(&told(&suite, &plugin, "--help")).to_owned();
            let shown = format!("```json\n{example}\n```");
            assert!(
                text.contains(&shown),
                "{} does not show the example of --help",
                manual.display()
            );
        }
    });
}

const BEGIN: &str = "<!-- the table of --schema: FERRULE_UPDATE=1 cargo test -p all --test plugins manual -->\n";
const END: &str = "<!-- end of the table -->\n";

/// The manual with the table of options brought up to date.
fn with_table(text: &str, rows: &[Row]) -> String {
    let (before, rest) = text.split_once(BEGIN).expect("the table's begin");
    let (_, after) = rest.split_once(END).expect("the table's end");
    let mut table = "| key | type | default | meaning |\n| --- | --- | --- | --- |\n".to_owned();
    for Row {
        key,
        kind,
        default,
        meaning,
    } in rows
    {
        let default = if default.is_empty() {
            String::new()
        } else {
            format!("`{default}`")
        };
        table += &format!("| `{key}` | {kind} | {default} | {meaning} |\n");
    }
    format!("{before}{BEGIN}{table}{END}{after}")
}

#[test]
fn help_names_verbs_and_every_key_with_its_default() {
    testkit::world(|w| {
        let suite = Suite::install(w);
        for plugin in plugins() {
            let help = told(&suite, &plugin, "--help");
            for verb in ["ADD", "CHECK", "DEL", "GC", "STATUS", "VERSION"] {
                assert!(help.contains(&format!("\n  {verb} ")), "{plugin}: {verb}");
            }
            let rows = rows(&serde_json::from_str(&told(&suite, &plugin, "--schema")).unwrap());
            assert!(rows.len() > 10, "{plugin}: {rows:?}");
            for row in rows {
                let default = if row.default.is_empty() {
                    ")".to_owned()
                } else {
                    format!(", default {})", row.default)
                };
                let line = format!("\n  {} ({}{default}\n", row.key, row.kind);
                assert!(help.contains(&line) && !row.meaning.is_empty(), "{plugin}: {line}");
            }
            assert!(
                told(&suite, &plugin, "--version").starts_with(&format!("{plugin} of ferrule 0.")),
                "{plugin}"
            );
        }
    });
}

#[test]
fn every_example_works() {
    for plugin in plugins() {
        let Some(help) = testkit::world(|w| told(&Suite::install(w), &plugin, "--help")) else {
            return;
        };
        testkit::world(|w| {
            let conf: Value = serde_json::from_str(example(&help)).unwrap();
            let used = conf.to_string();
            assert!(
                used.contains(&format!(r#""type":"{plugin}""#)),
                "{plugin} is not in its own example"
            );
            let chain = Chain::new(w, conf);
            let ports = json!({ "portMappings": [{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" }] });
            let result = chain.add("one", &ports);
            chain.check("one", &ports, &result);
            chain.del("one", &ports, Some(&result));
            chain.assert_clean();
        });
    }
}

#[test]
fn arguments_mean_nothing_to_a_runtime_and_wrong_ones_are_told() {
    testkit::world(|w| {
        let suite = Suite::install(w);
        let bridge = suite.bin().join("bridge").display().to_string();
        let version = w.sh(&format!("CNI_COMMAND=VERSION {bridge} --help < /dev/null"));
        assert!(
            version.starts_with('{') && version.contains("supportedVersions"),
            "{version}"
        );
        let wrong = w.try_sh(&format!("{bridge} --hepl"));
        let told = String::from_utf8_lossy(&wrong.stderr).into_owned();
        assert_eq!((wrong.status.code(), wrong.stdout.len()), (Some(2), 0), "{told}");
        assert!(
            told.contains("--hepl") && told.contains("usage: bridge [--help"),
            "{told}"
        );
    });
}

#[test]
fn on_a_terminal_a_plugin_points_to_its_help() {
    testkit::world(|w| {
        let suite = Suite::install(w);
        for plugin in plugins() {
            // script(1) gives it a terminal, on which nobody types.
            let on_terminal = w.sh(&format!(
                "script -qec {}/{plugin} /dev/null < /dev/null",
                suite.bin().display()
            ));
            assert!(on_terminal.contains(&format!("'{plugin} --help'")), "{on_terminal}");
            let by_itself = call_plugin(&suite.bin().join(&plugin), &[], "");
            assert!(!by_itself.stderr.contains("--help"), "{by_itself:?}");
        }
    });
}

/// Every configuration of a plugin that is written down in the repository, with its place.
fn configurations() -> Vec<(String, Value)> {
    let mut all = Vec::new();
    let mut directories = vec![
        repository().join("examples"),
        repository().join("plugins"),
        repository().join("conformance/data"),
    ];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let place = path.display().to_string();
            let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
            let text = || fs::read_to_string(&path).unwrap();
            match extension {
                _ if path.is_dir() => directories.push(path.clone()),
                "conf" | "conflist" | "json" if extension != "json" || place.contains("/examples/") => {
                    all.push((place, serde_json::from_str(&text()).unwrap()));
                }
                "json" if place.contains("/transcripts/") => all.extend(of_transcript(&place, &text())),
                "md" => all.extend(of_manual(&place, &text())),
                _ => {}
            }
        }
    }
    all
}

/// What real runtimes gave to plugins.
fn of_transcript(place: &str, text: &str) -> Vec<(String, Value)> {
    let transcript: Value = serde_json::from_str(text).unwrap();
    let calls = transcript["calls"].as_array().unwrap().iter();
    let confs = calls.filter_map(|call| serde_json::from_str(call["stdin"].as_str()?).ok());
    confs.map(|conf| (place.to_owned(), conf)).collect()
}

fn of_manual(place: &str, text: &str) -> Vec<(String, Value)> {
    let blocks = text.split("```json\n").skip(1);
    let read = |block: &str| {
        let block = block.split("```").next().unwrap();
        let conf = serde_json::from_str(block).unwrap_or_else(|e| panic!("{place}: {e}: {block}"));
        (place.to_owned(), conf)
    };
    blocks.map(read).collect()
}

#[test]
fn every_configuration_of_the_repository_fits_the_schemas() {
    testkit::world(|w| {
        let suite = Suite::install(w);
        let validators = validators(&suite);
        let of_help = plugins().into_iter().map(|plugin| {
            let help = told(&suite, &plugin, "--help");
            (plugin, serde_json::from_str(example(&help)).unwrap())
        });
        let mut judged = BTreeMap::<&str, usize>::new();
        for (place, conf) in configurations().into_iter().chain(of_help) {
            let plugins = match conf["plugins"].as_array() {
                Some(plugins) => plugins.clone(),
                None => vec![conf],
            };
            for conf in &plugins {
                for kind in [&conf["type"], &conf["ipam"]["type"]] {
                    let Some((plugin, validator)) = kind.as_str().and_then(|kind| validators.get_key_value(kind))
                    else {
                        continue;
                    };
                    let errors: Vec<String> = validator
                        .iter_errors(conf)
                        .map(|e| format!("{}: {e}", e.instance_path()))
                        .collect();
                    assert!(errors.is_empty(), "{place}: {plugin}: {errors:?}");
                    *judged.entry(plugin).or_default() += 1;
                }
            }
        }
        assert_eq!(
            judged.len(),
            validators.len(),
            "a plugin without any configuration: {judged:?}"
        );
    });
}

#[test]
fn schemas_refuse_what_the_plugins_refuse_and_accept_what_they_accept() {
    testkit::world(|w| {
        let validators = validators(&Suite::install(w));
        for (plugin, conf, fits) in [
            ("bridge", json!({ "mtu": "1500" }), false),
            ("bridge", json!({ "vlan": 4095 }), false),
            ("bridge", json!({ "ipMasqBackend": "zzz" }), false),
            ("bridge", json!({ "vlanTrunk": [null] }), false),
            ("bridge", json!({ "ipMasqExclude": ["10.0.0.0"] }), false),
            ("bridge", json!({ "isGateway": "yes" }), false),
            (
                "bridge",
                json!({ "isGateway": null, "vlanTrunk": null, "ipam": {}, "dns": null, "MTU": 9, "later": 1 }),
                true,
            ),
            ("ptp", json!({ "ipMasq": 1 }), false),
            ("firewall", json!({ "ingressPolicy": "bogus" }), false),
            ("firewall", json!({ "backend": "" }), true),
            ("portmap", json!({ "backend": "" }), false),
            ("portmap", json!({ "markMasqBit": 32 }), false),
            (
                "portmap",
                json!({ "runtimeConfig": { "portMappings": [{ "hostPort": 0 }] } }),
                false,
            ),
            (
                "portmap",
                json!({ "runtimeConfig": { "portMappings": [{ "protocol": "icmp" }] } }),
                false,
            ),
            (
                "portmap",
                json!({ "runtimeConfig": { "portMappings": [{ "HostPort": 80, "protocol": "TCP" }] } }),
                true,
            ),
            (
                "host-local",
                json!({ "ipam": { "ranges": [{ "subnet": "10.0.0.0/8" }] } }),
                false,
            ),
            ("host-local", json!({ "ipam": { "reclaim": "sometimes" } }), false),
            (
                "host-local",
                json!({ "ipam": { "routes": [{ "gw": "10.0.0.1" }] } }),
                false,
            ),
            (
                "host-local",
                json!({ "ipam": { "routes": [{ "dst": "0.0.0.0/0", "gw": "" }] } }),
                true,
            ),
            (
                "static",
                json!({ "ipam": { "addresses": { "address": "10.0.0.1/8" } } }),
                false,
            ),
            ("tuning", json!({ "sysctl": { "net.core.somaxconn": 5 } }), false),
            ("tuning", json!({ "sysctl": { "net.core.somaxconn": null } }), true),
            ("tuning", json!({ "mtu": -5 }), false),
            ("loopback", json!({ "cniVersion": "9.9.9" }), false),
            (
                "loopback",
                json!({ "cniVersion": "1.1.0", "cni.dev/valid-attachments": null }),
                true,
            ),
        ] {
            assert_eq!(validators[plugin].is_valid(&conf), fits, "{plugin} {conf}");
        }
    });
}
