//! What cnitool says to people: `scripts/quickstart` shows it at work.
#![allow(clippy::disallowed_methods, reason = "tests start programs")]
#![allow(clippy::unwrap_used, reason = "a test that cannot start cnitool must stop")]

use std::path::Path;
use std::process::{Command, Output};

/// Runs cnitool on the networks of examples/quickstart, and returns how it ended, its output and its errors.
fn cnitool(arguments: &[&str], variables: &[(&str, &str)]) -> (bool, String, String) {
    let networks = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/quickstart");
    let Output { status, stdout, stderr } = Command::new(env!("CARGO_BIN_EXE_cnitool"))
        .args(arguments)
        .env_clear()
        .env("NETCONFPATH", networks)
        .env("CNI_PATH", "/nonexistent")
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.success(), text(stdout), text(stderr))
}

#[test]
fn help_goes_to_standard_output() {
    let (success, stdout, stderr) = cnitool(&["--help"], &[]);
    assert!(
        success && stdout.contains("usage: cnitool [--json] add NETWORK NETNS"),
        "{stdout}"
    );
    assert_eq!(stderr, "");
}

#[test]
fn what_is_no_command_is_answered_with_the_usage() {
    for arguments in [
        &[][..],
        &["add"],
        &["add", "net"],
        &["remove", "net", "ns"],
        &["add", "net", "ns", "more"],
        &["gc"],
        &["up"],
        &["show", "port"],
    ] {
        let (success, stdout, stderr) = cnitool(arguments, &[]);
        assert!(!success && stderr.contains("usage:"), "{arguments:?}: {stderr}");
        assert_eq!(stdout, "", "{arguments:?}");
    }
}

#[test]
fn what_cannot_be_done_is_told_in_a_line() {
    let namespace = "/run/netns/none";
    for (network, variables, problem) in [
        ("no-such", &[][..], "no network named \"no-such\" in "),
        ("quickstart", &[("CAP_ARGS", "[]")], "CAP_ARGS must be a JSON object"),
        ("quickstart", &[("CNI_IFNAME", "a/b")], "interface name contains /"),
        (
            "quickstart",
            &[("NETCONFPATH", "/nonexistent/net.d")],
            "/nonexistent/net.d: No such file",
        ),
        ("quickstart", &[], "no plugin \"portmap\" in /nonexistent"),
    ] {
        let (success, stdout, stderr) = cnitool(&["del", network, namespace], variables);
        assert!(
            !success && stderr.starts_with(problem),
            "{network} {variables:?}: {stderr}"
        );
        assert_eq!((stdout.as_str(), stderr.lines().count()), ("", 1), "{stderr}");
    }
}

#[test]
fn json_is_one_document_even_for_a_failure() {
    let (success, stdout, stderr) = cnitool(&["--json", "status", "quickstart"], &[]);
    assert!(!success);
    assert_eq!(stderr, "");
    let document: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(
        (&document["command"], &document["on"]),
        (&"status".into(), &"quickstart".into())
    );
    let error = document["error"].as_str().unwrap();
    assert!(error.starts_with("STATUS needs cniVersion 1.1.0"), "{error}");
    assert_eq!(document["calls"], serde_json::json!([]));
}
