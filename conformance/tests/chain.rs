//! Chains of plugins that are shell scripts: each notes how it was called, and answers as the test wants.
#![allow(clippy::unwrap_used, reason = "a test that cannot set up its plugins must stop")]
#![allow(clippy::disallowed_methods, reason = "tests start programs")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use conformance::cache::Cache;
use conformance::chain::{Container, Runtime};
use conformance::conf::NetworkConf;
use serde_json::{Map, Value, json};

/// A plugin directory in which every plugin writes `COMMAND type` to a log, and its input beside it.
struct Plugins {
    directory: PathBuf,
}

impl Plugins {
    fn new(test: &str) -> Plugins {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).unwrap();
        Plugins { directory }
    }

    /// Adds a plugin that runs `answer` as its last lines.
    fn add(&self, plugin_type: &str, answer: &str) -> &Plugins {
        let note = format!("echo \"$CNI_COMMAND {plugin_type}\" >> log; cat > {plugin_type}.$CNI_COMMAND");
        self.add_script(plugin_type, &format!("{note}\n{answer}"))
    }

    fn add_script(&self, plugin_type: &str, script: &str) -> &Plugins {
        let draft = self.directory.join("draft");
        fs::write(
            &draft,
            format!("#!/bin/sh\ncd {}\n{script}\n", self.directory.display()),
        )
        .unwrap();
        // Not written in place: a plugin that another test starts at this moment would inherit the open file, and
        // the kernel executes no file that is open for writing.
        let installed = Command::new("install")
            .args(["-m", "755"])
            .arg(&draft)
            .arg(self.directory.join(plugin_type))
            .status();
        assert!(installed.unwrap().success());
        self
    }

    fn runtime(&self) -> Runtime {
        Runtime {
            plugin_path: vec!["/nonexistent".into(), self.directory.clone()],
            cache: Cache::new(self.directory.join("results")),
            watcher: None,
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.join("log"))
            .unwrap()
            .replace('\n', ";")
    }

    fn input(&self, plugin_type: &str, verb: &str) -> Value {
        let text = fs::read(self.directory.join(format!("{plugin_type}.{verb}"))).unwrap();
        serde_json::from_slice(&text).unwrap()
    }

    fn cached_results(&self) -> usize {
        fs::read_dir(self.directory.join("results")).map_or(0, Iterator::count)
    }
}

const RESULT: &str = r#"[ "$CNI_COMMAND" != ADD ] || echo '{"cniVersion":"1.0.0","by":"'$(basename "$0")'"}'"#;

fn network(version: &str) -> NetworkConf {
    let text = json!({"cniVersion": version, "name": "net", "plugins": [{"type": "first"}, {"type": "second"}]});
    NetworkConf::parse(text.to_string().as_bytes()).unwrap()
}

fn container() -> Container {
    Container {
        id: "c1".parse().unwrap(),
        netns: "/run/netns/c1".to_owned(),
        ifname: "eth0".parse().unwrap(),
        args: "K=V".to_owned(),
        capability_args: Map::new(),
    }
}

#[test]
fn results_go_down_the_chain_and_come_back_for_check_and_del() {
    let plugins = Plugins::new("results");
    plugins.add("first", RESULT).add("second", RESULT);
    let (runtime, network, container) = (plugins.runtime(), network("1.0.0"), container());

    let result = runtime.add(&network, &container).unwrap();
    assert_eq!(result["by"], "second");
    assert_eq!(plugins.input("first", "ADD").get("prevResult"), None);
    assert_eq!(plugins.input("second", "ADD")["prevResult"]["by"], "first");

    runtime.check(&network, &container).unwrap();
    assert_eq!(plugins.input("first", "CHECK")["prevResult"], result);

    runtime.del(&network, &container).unwrap();
    assert_eq!(plugins.input("first", "DEL")["prevResult"], result);
    assert_eq!(
        plugins.log(),
        "ADD first;ADD second;CHECK first;CHECK second;DEL second;DEL first;"
    );
    assert_eq!(plugins.cached_results(), 0);
}

#[test]
fn plugins_get_the_variables_of_the_specification() {
    let plugins = Plugins::new("variables");
    let note = "env | grep ^CNI_ | sort | tr '\\n' ' ' > environment";
    plugins.add("first", RESULT).add("second", &format!("{note}\n{RESULT}"));
    plugins.runtime().add(&network("1.0.0"), &container()).unwrap();
    let directory = plugins.directory.display();
    assert_eq!(
        fs::read_to_string(plugins.directory.join("environment"))
            .unwrap()
            .trim(),
        format!(
            "CNI_ARGS=K=V CNI_COMMAND=ADD CNI_CONTAINERID=c1 CNI_IFNAME=eth0 CNI_NETNS=/run/netns/c1 \
             CNI_PATH=/nonexistent:{directory}"
        )
    );
}

#[test]
fn a_failed_add_is_undone_by_the_whole_chain() {
    let plugins = Plugins::new("undone");
    let fails = r#"[ "$CNI_COMMAND" != ADD ] || { echo '{"code":11,"msg":"no room"}'; exit 1; }"#;
    plugins.add("first", RESULT).add("second", fails);
    let failure = plugins.runtime().add(&network("1.0.0"), &container()).unwrap_err();
    assert_eq!(failure.to_string(), r#"plugin "second" failed (ADD): no room"#);
    assert_eq!(plugins.log(), "ADD first;ADD second;DEL second;DEL first;");
    assert_eq!(plugins.cached_results(), 0);
}

#[test]
fn both_failures_are_told_when_the_undo_fails_too() {
    let plugins = Plugins::new("both");
    plugins
        .add("first", RESULT)
        .add("second", r#"echo '{"code":5,"msg":"broken"}'; exit 1"#);
    let failure = plugins.runtime().add(&network("1.0.0"), &container()).unwrap_err();
    assert_eq!(
        failure.to_string(),
        r#"plugin "second" failed (ADD): broken; then DEL failed too: plugin "second" failed (DEL): broken"#
    );
}

#[test]
fn a_failed_del_can_be_repeated_with_the_same_result() {
    let plugins = Plugins::new("repeated");
    let (runtime, network, container) = (plugins.runtime(), network("1.0.0"), container());
    plugins.add("first", RESULT).add("second", RESULT);
    let result = runtime.add(&network, &container).unwrap();

    plugins.add("second", r#"echo '{"code":11,"msg":"busy"}'; exit 1"#);
    runtime.del(&network, &container).unwrap_err();
    assert_eq!(plugins.cached_results(), 1);

    plugins.add("second", RESULT);
    runtime.del(&network, &container).unwrap();
    assert_eq!(plugins.input("second", "DEL")["prevResult"], result);
}

#[test]
fn check_and_del_get_the_arguments_of_add() {
    let plugins = Plugins::new("arguments");
    plugins
        .add("first", RESULT)
        .add("second", &format!("echo \"$CNI_ARGS\" > args\n{RESULT}"));
    let text = json!({"cniVersion": "1.0.0", "name": "net", "plugins": [
        {"type": "first", "capabilities": {"portMappings": true}},
        {"type": "second"},
    ]});
    let network = NetworkConf::parse(text.to_string().as_bytes()).unwrap();
    let mappings = json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]);
    let mut container = container();
    container
        .capability_args
        .insert("portMappings".to_owned(), mappings.clone());
    let runtime = plugins.runtime();
    runtime.add(&network, &container).unwrap();

    container.capability_args.clear();
    container.args.clear();
    runtime.check(&network, &container).unwrap();
    runtime.del(&network, &container).unwrap();
    for verb in ["CHECK", "DEL"] {
        assert_eq!(
            plugins.input("first", verb)["runtimeConfig"]["portMappings"],
            mappings,
            "{verb}"
        );
    }
    assert_eq!(fs::read_to_string(plugins.directory.join("args")).unwrap(), "K=V\n");
}

#[test]
fn an_old_network_has_no_check_and_its_del_no_result() {
    let plugins = Plugins::new("old");
    plugins.add("first", RESULT).add("second", RESULT);
    let (runtime, network, container) = (plugins.runtime(), network("0.3.1"), container());
    runtime.add(&network, &container).unwrap();
    let refused = runtime.check(&network, &container).unwrap_err();
    assert!(
        refused.to_string().starts_with("CHECK needs cniVersion 0.4.0"),
        "{refused}"
    );
    runtime.del(&network, &container).unwrap();
    assert_eq!(plugins.input("second", "DEL").get("prevResult"), None);
}

#[test]
fn check_without_a_result_is_refused() {
    let plugins = Plugins::new("unchecked");
    plugins.add("first", RESULT).add("second", RESULT);
    let refused = plugins.runtime().check(&network("1.0.0"), &container()).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "CHECK needs the result of an ADD, and there is none in the cache"
    );
}

#[test]
fn a_plugin_may_print_before_it_reads() {
    let plugins = Plugins::new("pipes");
    let more_than_a_pipe_holds = 300_000;
    let spaces = format!("head -c {more_than_a_pipe_holds} /dev/zero | tr '\\0' ' '");
    plugins
        .add("first", RESULT)
        .add_script("second", &format!("{spaces}; cat > /dev/null; echo '{{}}'"));
    let text = json!({"cniVersion": "1.0.0", "name": "net", "plugins": [
        {"type": "first"},
        {"type": "second", "padding": "x".repeat(more_than_a_pipe_holds)},
    ]});
    let network = NetworkConf::parse(text.to_string().as_bytes()).unwrap();
    plugins.runtime().add(&network, &container()).unwrap();
}

#[test]
fn every_call_is_told_with_its_failure() {
    let plugins = Plugins::new("watched");
    plugins
        .add("first", RESULT)
        .add("second", r#"echo '{"code":11,"msg":"no room"}'; exit 1"#);
    let (watcher, steps) = std::sync::mpsc::channel();
    let mut runtime = plugins.runtime();
    runtime.watcher = Some(watcher);
    runtime.add(&network("1.0.0"), &container()).unwrap_err();
    let told: Vec<String> = steps
        .try_iter()
        .map(|step| format!("{} {} {}", step.verb, step.plugin_type, step.failure.is_none()))
        .collect();
    // The DEL that undoes the ADD stops at the second plugin, too.
    assert_eq!(told, ["ADD first true", "ADD second false", "DEL second false"]);
}

#[test]
fn gc_detaches_what_lost_its_namespace_and_names_what_remains() {
    let plugins = Plugins::new("collected");
    plugins.add("first", RESULT).add("second", RESULT);
    let (runtime, network) = (plugins.runtime(), network("1.1.0"));
    let attach = |id: &str, netns: &str| {
        let container = Container {
            id: id.parse().unwrap(),
            netns: netns.to_owned(),
            ..container()
        };
        runtime.add(&network, &container).unwrap();
    };
    attach("alive", "/proc/self/ns/net");
    attach("gone", "/nonexistent/netns");
    fs::remove_file(plugins.directory.join("log")).unwrap();

    runtime.gc(&network).unwrap();
    assert_eq!(plugins.log(), "DEL second;DEL first;GC first;GC second;");
    let valid = json!([{"containerID": "alive", "ifname": "eth0"}]);
    assert_eq!(plugins.input("first", "GC")["cni.dev/valid-attachments"], valid);
    assert_eq!(plugins.cached_results(), 1);
}

#[test]
fn gc_calls_every_plugin_and_tells_all_failures() {
    let plugins = Plugins::new("uncollected");
    let fails = r#"echo '{"code":11,"msg":"busy"}'; exit 1"#;
    plugins.add("first", fails).add("second", fails);
    let failure = plugins.runtime().gc(&network("1.1.0")).unwrap_err();
    assert_eq!(
        failure.to_string(),
        r#"plugin "first" failed (GC): busy; plugin "second" failed (GC): busy"#
    );
}

#[test]
fn a_network_that_others_use_too_is_not_collected() {
    let plugins = Plugins::new("shared");
    plugins.add("first", RESULT);
    let text = r#"{"cniVersion":"1.1.0","name":"net","disableGC":true,"plugins":[{"type":"first"}]}"#;
    plugins
        .runtime()
        .gc(&NetworkConf::parse(text.as_bytes()).unwrap())
        .unwrap();
    assert!(!plugins.directory.join("log").exists());
}

#[test]
fn status_asks_one_after_the_other_and_only_from_its_version_on() {
    let plugins = Plugins::new("status");
    plugins
        .add("first", r#"echo '{"code":50,"msg":"the pool is exhausted"}'; exit 1"#)
        .add("second", RESULT);
    let failure = plugins.runtime().status(&network("1.1.0")).unwrap_err();
    assert_eq!(
        failure.to_string(),
        r#"plugin "first" failed (STATUS): the pool is exhausted"#
    );
    assert_eq!(plugins.log(), "STATUS first;");
    let refused = plugins.runtime().status(&network("1.0.0")).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "STATUS needs cniVersion 1.1.0 or later, the network says 1.0.0"
    );
}
