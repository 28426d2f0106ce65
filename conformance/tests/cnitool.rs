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
        success && stdout.contains("usage: cnitool add NETWORK NETNS"),
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
