//! What every plugin owes the specification, whatever it does: variables, versions, errors, delegation.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::{Value, json};
use testkit::{Reply, World, call_plugin};

use crate::suite::Suite;

const PLUGINS: [&str; 8] = [
    "bridge",
    "firewall",
    "host-local",
    "loopback",
    "portmap",
    "ptp",
    "static",
    "tuning",
];

const COMPLETE: [(&str, &str); 4] = [
    ("CNI_CONTAINERID", "c"),
    ("CNI_NETNS", "/run/netns/a"),
    ("CNI_IFNAME", "eth0"),
    ("CNI_PATH", "/opt/cni/bin"),
];

fn call(suite: &Suite, plugin: &str, verb: &str, changes: &[(&str, &str)], stdin: &str) -> Reply {
    let mut variables = vec![("CNI_COMMAND", verb)];
    let changed = |name: &str| changes.iter().any(|(other, _)| *other == name);
    variables.extend(COMPLETE.into_iter().filter(|(name, _)| !changed(name)));
    variables.extend(changes);
    call_plugin(&suite.bin().join(plugin), &variables, stdin)
}

/// What a refused call must not have changed.
fn state(w: &World) -> String {
    w.sh("ip link; ip addr; ip route; find /var/lib/cni /run/cni -type f 2>/dev/null || true; iptables-save; nft list ruleset; ls /run/netns")
}

#[test]
fn wrong_calls_get_one_error_object_and_change_nothing() {
    testkit::world(|w| {
        let suite = Suite::install(w);
        w.netns("a");
        let good = r#"{"cniVersion":"1.0.0","name":"n"}"#;
        let before = state(w);
        for plugin in PLUGINS {
            for (verb, changes, stdin, code, msg) in [
                (
                    "ADD",
                    &[("CNI_CONTAINERID", "")][..],
                    good,
                    4,
                    "required env variables [CNI_CONTAINERID] missing",
                ),
                (
                    "ADD",
                    &[
                        ("CNI_CONTAINERID", ""),
                        ("CNI_NETNS", ""),
                        ("CNI_IFNAME", ""),
                        ("CNI_PATH", ""),
                    ],
                    good,
                    4,
                    "required env variables [CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME,CNI_PATH] missing",
                ),
                (
                    "CHECK",
                    &[("CNI_NETNS", "")],
                    good,
                    4,
                    "required env variables [CNI_NETNS] missing",
                ),
                (
                    "DEL",
                    &[("CNI_IFNAME", "")],
                    good,
                    4,
                    "required env variables [CNI_IFNAME] missing",
                ),
                (
                    "GC",
                    &[("CNI_PATH", "")],
                    good,
                    4,
                    "required env variables [CNI_PATH] missing",
                ),
                ("FOO", &[], good, 4, "unknown CNI_COMMAND: FOO"),
                (
                    "ADD",
                    &[("CNI_CONTAINERID", "../x")],
                    good,
                    4,
                    "invalid characters in containerID",
                ),
                (
                    "ADD",
                    &[("CNI_IFNAME", "abcdefghijklmnop")],
                    good,
                    4,
                    "interface name is too long",
                ),
                (
                    "DEL",
                    &[("CNI_IFNAME", "a/b")],
                    good,
                    4,
                    "interface name contains / or : or whitespace characters",
                ),
                (
                    "ADD",
                    &[],
                    r#"{"cniVersion":"1.0.0""#,
                    6,
                    "error unmarshall network config: unexpected end of JSON input",
                ),
                (
                    "ADD",
                    &[],
                    "",
                    6,
                    "error unmarshall network config: unexpected end of JSON input",
                ),
                ("DEL", &[], "{}{}", 6, "error unmarshall network config: invalid JSON"),
                ("ADD", &[], "[1]", 6, "error unmarshall network config: "),
                ("ADD", &[], r#"{"cniVersion":"1.0.0"}"#, 7, "missing network name"),
                (
                    "DEL",
                    &[],
                    r#"{"name":"bad name!"}"#,
                    7,
                    "invalid characters found in network name",
                ),
                (
                    "DEL",
                    &[],
                    r#"{"name":"../x"}"#,
                    7,
                    "invalid characters found in network name",
                ),
                (
                    "ADD",
                    &[],
                    r#"{"cniVersion":"9.9.9","name":"n"}"#,
                    1,
                    "incompatible CNI versions",
                ),
                (
                    "DEL",
                    &[],
                    r#"{"cniVersion":"9.9.9","name":"n"}"#,
                    1,
                    "incompatible CNI versions",
                ),
                (
                    "CHECK",
                    &[],
                    r#"{"cniVersion":"0.3.1","name":"n"}"#,
                    1,
                    "config version does not allow CHECK",
                ),
                (
                    "GC",
                    &[],
                    r#"{"cniVersion":"1.0.0","name":"n"}"#,
                    1,
                    "config version does not allow GC",
                ),
                (
                    "STATUS",
                    &[],
                    r#"{"cniVersion":"1.0.0","name":"n"}"#,
                    1,
                    "config version does not allow STATUS",
                ),
                (
                    "GC",
                    &[],
                    r#"{"cniVersion":"1.1.0","name":"n"}"#,
                    7,
                    "cni.dev/valid-attachments is missing",
                ),
            ] {
                let reply = call(&suite, plugin, verb, changes, stdin);
                let (got, text) = reply.error();
                assert!(
                    got == code && text.starts_with(msg),
                    "{plugin} {verb} {stdin}: {got} {text}"
                );
            }
        }
        assert_eq!(state(w), before);
    });
}

#[test]
fn an_error_names_the_version_of_the_configuration() {
    testkit::world(|w| {
        let suite = Suite::install(w);
        for (stdin, version) in [
            (r#"{"cniVersion":"0.4.0"}"#, "0.4.0"),
            (r#"{"cniVersion":""}"#, "0.1.0"),
            (r#"{"cniVersion":"9.9.9","name":"n"}"#, "1.1.0"),
            ("rubbish", "1.1.0"),
        ] {
            let reply = call(&suite, "loopback", "ADD", &[], stdin);
            let object: Value = serde_json::from_str(&reply.stdout).unwrap();
            assert_eq!(object["cniVersion"], version, "{stdin}");
        }
        let reply = call(
            &suite,
            "loopback",
            "ADD",
            &[("CNI_PATH", "")],
            r#"{"cniVersion":"0.3.1","name":"n"}"#,
        );
        let object: Value = serde_json::from_str(&reply.stdout).unwrap();
        assert_eq!(object["cniVersion"], "0.3.1", "{reply:?}");
        let reply = call(&suite, "loopback", "ADD", &[], r#"{"cniVersion":"9.9.9","name":"n"}"#);
        let object: Value = serde_json::from_str(&reply.stdout).unwrap();
        let details = r#"config is "9.9.9", plugin supports ["0.1.0" "0.2.0" "0.3.0" "0.3.1" "0.4.0" "1.0.0" "1.1.0"]"#;
        assert_eq!(object["details"], details);
    });
}

#[test]
fn version_answers_whatever_it_is_given() {
    testkit::world(|w| {
        let suite = Suite::install(w);
        let supported = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];
        for plugin in PLUGINS {
            for stdin in [r#"{"cniVersion":"1.0.0"}"#, "", "rubbish"] {
                let reply = call(
                    &suite,
                    plugin,
                    "VERSION",
                    &[("CNI_NETNS", "dummy"), ("CNI_IFNAME", "dummy"), ("CNI_PATH", "dummy")],
                    stdin,
                );
                assert_eq!(
                    reply.success(),
                    json!({ "cniVersion": "1.1.0", "supportedVersions": supported })
                );
            }
        }
    });
}

#[test]
fn without_a_command_a_plugin_says_what_it_is() {
    testkit::world(|w| {
        let suite = Suite::install(w);
        for plugin in PLUGINS {
            let reply = call_plugin(&suite.bin().join(plugin), &[], "");
            reply.silent();
            // nerdctl wants a semantic version of 1.1.0 or later behind these words, or does not isolate its bridges.
            let line = reply.stderr.lines().next().unwrap_or_default();
            let version = line.strip_prefix(&format!("CNI {plugin} plugin v1.9.1+ferrule."));
            assert_eq!(version, Some(env!("CARGO_PKG_VERSION")), "{reply:?}");
        }
        let reply = call_plugin(&suite.bin().join("ferrule"), &[("CNI_COMMAND", "ADD")], "");
        assert!(
            reply.stdout.is_empty() && reply.stderr.contains("host-local"),
            "{reply:?}"
        );
    });
}

#[test]
fn status_does_not_need_cni_path() {
    testkit::world(|w| {
        let suite = Suite::install(w);
        for plugin in ["loopback", "bridge"] {
            call_plugin(
                &suite.bin().join(plugin),
                &[("CNI_COMMAND", "STATUS")],
                r#"{"cniVersion":"1.1.0","name":"n"}"#,
            )
            .silent();
        }
    });
}

#[test]
fn every_plugin_refuses_its_own_namespace_on_add_and_check() {
    testkit::world(|w| {
        let suite = Suite::install(w);
        w.sh("ip link set lo down");
        let conf = |plugin: &str| {
            let prev = json!({ "cniVersion": "1.0.0", "ips": [{ "address": "10.1.0.5/24" }] });
            let ipam = json!({ "type": "host-local", "subnet": "10.1.0.0/24" });
            json!({ "cniVersion": "1.0.0", "name": "n", "type": plugin, "prevResult": prev, "ipam": ipam }).to_string()
        };
        let before = state(w);
        for plugin in PLUGINS {
            for verb in ["ADD", "CHECK"] {
                let reply = call(
                    &suite,
                    plugin,
                    verb,
                    &[("CNI_NETNS", "/proc/self/ns/net")],
                    &conf(plugin),
                );
                let expected = "plugin's netns and netns from CNI_NETNS should not be the same";
                assert_eq!(reply.error(), (8, expected.into()), "{plugin} {verb}");
            }
        }
        assert_eq!(state(w), before);
        call(
            &suite,
            "loopback",
            "DEL",
            &[("CNI_NETNS", "/proc/self/ns/net")],
            &conf("loopback"),
        )
        .error();
        for value in ["1", "true", "TRUE", "True"] {
            let reply = call(
                &suite,
                "loopback",
                "ADD",
                &[("CNI_NETNS", "/proc/self/ns/net"), ("CNI_NETNS_OVERRIDE", value)],
                &conf("loopback"),
            );
            reply.success();
            w.sh("ip link show up dev lo | grep -q lo; ip link set lo down");
        }
        let refused = [("CNI_NETNS", "/proc/self/ns/net"), ("CNI_NETNS_OVERRIDE", "yes")];
        assert_eq!(
            call(&suite, "loopback", "ADD", &refused, &conf("loopback")).error().0,
            8
        );
    });
}

#[test]
fn input_of_16_mib_is_refused_and_of_1_mib_is_not() {
    testkit::world(|w| {
        let suite = Suite::install(w);
        w.netns("a");
        let conf = |bytes: usize| format!(r#"{{"cniVersion":"1.0.0","name":"n","x":"{}"}}"#, "x".repeat(bytes));
        call(&suite, "loopback", "ADD", &[], &conf(1 << 20)).success();
        let (code, msg) = call(&suite, "loopback", "ADD", &[], &conf(16 << 20)).error();
        assert!(code == 6 && msg.contains("16 MiB"), "{msg}");
    });
}

#[test]
fn invalid_utf8_is_refused() {
    testkit::world(|w| {
        let suite = Suite::install(w);
        w.netns("a");
        let plugin = suite.bin().join("loopback");
        let output = w.try_sh(&format!(
            r#"printf '{{"cniVersion":"1.0.0","name":"n","x":"\377"}}' | env CNI_COMMAND=ADD CNI_CONTAINERID=c CNI_NETNS=/run/netns/a CNI_IFNAME=lo CNI_PATH=/x {}"#,
            plugin.display()
        ));
        assert_eq!(output.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&output.stdout).contains("\"code\": 6"));
    });
}

#[test]
fn a_result_that_nobody_takes_is_undone() {
    testkit::world(|w| {
        let suite = Suite::install(w);
        w.netns("a");
        fs::write(w.tmp().join("conf"), bridge("host-local").to_string()).unwrap();
        // /dev/full refuses every byte, as a runtime that has died does.
        let output = w.try_sh(&format!(
            "env CNI_COMMAND=ADD CNI_CONTAINERID=c CNI_NETNS=/run/netns/a CNI_IFNAME=eth0 CNI_PATH={bin} {bin}/bridge < {conf} > /dev/full",
            bin = suite.bin().display(),
            conf = w.tmp().join("conf").display()
        ));
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(
            w.sh("ip -o link show type veth; ls /var/lib/cni/networks/n | grep 10. || true"),
            ""
        );
    });
}

fn bridge(ipam: &str) -> Value {
    json!({ "cniVersion": "1.0.0", "name": "n", "type": "bridge", "ipam": { "type": ipam, "subnet": "10.1.0.0/24" } })
}

/// Puts a shell script into the plugin directory, as an IPAM plugin of somebody else.
fn foreign(w: &World, suite: &Suite, script: &str) {
    let file = suite.bin().join("foreign");
    // Written by another process: see `testkit::plugin_directory`.
    w.sh(&format!(
        "cat > {} <<'END'\n#!/bin/sh\necho $CNI_COMMAND $TRACEPARENT >> {}/calls\n{script}\nEND",
        file.display(),
        w.tmp().display()
    ));
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
}

fn calls(w: &World) -> String {
    w.sh(&format!("cat {0}/calls | xargs; rm -f {0}/calls", w.tmp().display()))
}

#[test]
fn a_foreign_delegate_gets_the_bytes_and_the_environment() {
    testkit::world(|w| {
        let suite = Suite::install(w);
        w.netns("a");
        let copy = w.tmp().join("stdin");
        let answer = r#"{"cniVersion":"1.0.0","ips":[{"address":"10.9.0.5/24"}],"dns":{"domain":"d"}}"#;
        foreign(
            w,
            &suite,
            &format!("cat > {}\n[ $CNI_COMMAND != ADD ] || echo '{answer}'", copy.display()),
        );
        // Odd spacing and an unknown key: nothing may be re-written on the way.
        let conf = bridge("foreign").to_string().replacen("{", "{  \"later\" : 1.50 ,", 1);
        let with_path = [
            ("CNI_PATH", suite.bin().to_str().unwrap()),
            ("TRACEPARENT", "00-1-2-03"),
        ];
        let result = call(&suite, "bridge", "ADD", &with_path, &conf).success();
        assert_eq!(result["ips"][0]["address"], "10.9.0.5/24");
        assert_eq!(fs::read_to_string(&copy).unwrap(), conf);
        assert_eq!(calls(w), "ADD 00-1-2-03");
        call(&suite, "bridge", "DEL", &with_path, &conf).silent();
        assert_eq!(fs::read_to_string(&copy).unwrap(), conf);
        assert_eq!(calls(w), "DEL 00-1-2-03");
    });
}

#[test]
fn a_foreign_delegate_that_fails_is_told_of_and_cleaned_up_after() {
    testkit::world(|w| {
        let suite = Suite::install(w);
        w.netns("a");
        let path = [("CNI_PATH", suite.bin().to_str().unwrap())];
        for (script, code, msg, seen) in [
            (
                r#"[ $CNI_COMMAND = DEL ] || { echo '{"code":11,"msg":"busy","details":"d"}'; exit 1; }"#,
                11,
                "busy",
                "ADD DEL",
            ),
            (
                "[ $CNI_COMMAND = DEL ] || echo rubbish",
                6,
                "the result of foreign: ",
                "ADD DEL",
            ),
            ("[ $CNI_COMMAND = DEL ] || exit 3", 999, "/", "ADD DEL"),
            ("[ $CNI_COMMAND = DEL ] || kill -9 $$", 999, "/", "ADD DEL"),
            (
                r#"[ $CNI_COMMAND = DEL ] || echo '{"cniVersion":"1.0.0"}'"#,
                999,
                "IPAM plugin returned missing IP config",
                "ADD DEL",
            ),
            (
                r#"echo '{"code":999,"msg":"10.1.0.2 has been allocated to c, duplicate allocation is not allowed"}'; exit 1"#,
                999,
                "10.1.0.2 has been allocated",
                // A DEL would free the living one's address.
                "ADD",
            ),
        ] {
            foreign(w, &suite, script);
            let (got, text) = call(&suite, "bridge", "ADD", &path, &bridge("foreign").to_string()).error();
            assert!(got == code && text.starts_with(msg), "{script}: {got} {text}");
            assert_eq!(calls(w), seen, "{script}");
            assert_eq!(w.sh("ip -o link show type veth"), "", "{script}");
        }
    });
}

#[test]
fn a_delegate_that_does_not_exist_is_named() {
    testkit::world(|w| {
        let suite = Suite::install(w);
        w.netns("a");
        let bin = suite.bin().to_str().unwrap();
        let (code, msg) = call(
            &suite,
            "bridge",
            "ADD",
            &[("CNI_PATH", bin)],
            &bridge("nope").to_string(),
        )
        .error();
        assert_eq!(
            (code, msg),
            (7, format!(r#"failed to find plugin "nope" in path [{bin}]"#))
        );
        assert_eq!(w.sh("ip -o link show type veth"), "");
        let (code, msg) = call(
            &suite,
            "bridge",
            "ADD",
            &[("CNI_PATH", bin)],
            &bridge("../bin/foreign").to_string(),
        )
        .error();
        assert!(code == 7 && msg.contains("invalid plugin name"), "{msg}");
    });
}

#[test]
fn cni_args_are_read_by_those_with_keys_of_their_own() {
    testkit::world(|w| {
        let suite = Suite::install(w);
        w.netns("a");
        let lo = r#"{"cniVersion":"1.0.0","name":"n"}"#;
        call(&suite, "loopback", "ADD", &[("CNI_ARGS", "FOO=1")], lo).success();
        call(&suite, "loopback", "ADD", &[("CNI_ARGS", "rubbish")], lo).success();
        let path = suite.bin().to_str().unwrap();
        let add = |args: &str| {
            call(
                &suite,
                "bridge",
                "ADD",
                &[("CNI_PATH", path), ("CNI_ARGS", args)],
                &bridge("host-local").to_string(),
            )
        };
        assert_eq!(add("FOO=1").error(), (4, r#"ARGS: unknown args ["FOO=1"]"#.into()));
        assert_eq!(add("rubbish").error(), (4, r#"ARGS: invalid pair "rubbish""#.into()));
        let result = add("K8S_POD_NAME=e2e;IgnoreUnknown=1;MAC=02:00:00:00:00:09").success();
        assert_eq!(result["interfaces"][2]["mac"], "02:00:00:00:00:09");
        assert!(Path::new("/run/netns/a").exists());
    });
}
