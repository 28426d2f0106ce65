//! Plugins that call an IPAM plugin: what they hand down, and what they make of the answer.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::{Value, json};

use super::{Bench, Check, Done, Kind, Plugins, Source, Specimen, Stop, ensure, same, with};
use crate::call::{Call, Reply};
use crate::host::{FILES, PLUGINS};
use crate::state::State;

const DELEGATION: Source = Source::Spec("section 4, Plugin delegation");

const fn check(id: &'static str, rule: &'static str, run: fn(&Bench) -> Done) -> Check {
    Check {
        id,
        source: DELEGATION,
        rule,
        plugins: Plugins::Configured,
        needs: &[],
        run,
    }
}

pub(super) const CHECKS: &[Check] = &[
    check(
        "delegation/same-variables",
        "the delegate gets the CNI variables of its caller",
        same_variables,
    ),
    check(
        "delegation/same-configuration",
        "the delegate gets the whole configuration of its caller",
        same_configuration,
    ),
    check(
        "delegation/add-check-del",
        "ADD, CHECK and DEL reach the delegate",
        |bench| reaches(bench, "1.0.0", &["ADD", "CHECK", "DEL"]),
    ),
    check(
        "delegation/dns-is-passed-on",
        "the dns of the delegate is in the result, unless the network has its own",
        dns_passed_on,
    ),
    check("delegation/gc", "GC reaches the delegate", |bench| {
        reaches(bench, "1.1.0", &["GC"])
    }),
    check(
        "delegation/status",
        "STATUS reaches the delegate, and its failure is the caller's",
        status,
    ),
    check(
        "delegation/missing-plugin",
        "a delegate that is not on CNI_PATH is an error, and nothing is left",
        missing_plugin,
    ),
    check(
        "delegation/error-is-passed-on",
        "the delegate's error is the caller's: with its code and text, and nothing is left",
        error_passed_on,
    ),
    check(
        "delegation/failed-add-is-undone",
        "if ADD fails after the delegate's ADD, the delegate is asked for DEL",
        undone,
    ),
    check(
        "delegation/del-despite-missing-namespace",
        "DEL reaches the delegate even if the namespace is gone",
        del_without_namespace,
    ),
];

/// An IPAM plugin that notes how it is called, and answers as the check wants.
pub(super) struct Ipam<'a> {
    bench: &'a Bench<'a>,
    conf: Value,
}

const DIRECTORY: &str = "/run/conformance/files/ipam";

impl<'a> Ipam<'a> {
    /// Prepares the caller's container, with a delegate that answers by this script.
    pub(super) fn new(bench: &'a Bench, version: &str, answer: &str) -> Result<Ipam<'a>, Stop> {
        let known = ["bridge", "ptp", "macvlan", "ipvlan", "vlan", "dummy"].contains(&bench.plugin);
        let told = bench
            .given
            .get(bench.plugin)
            .is_some_and(|conf| conf.get("ipam").is_some());
        if !known && (!told || Specimen::of(bench)?.kind != Kind::Interface) {
            return Err(Stop::NotApplicable("not a plugin that is known to delegate".to_owned()));
        }
        let mut conf = bench.prepare("c1", version)?;
        conf["ipam"] = json!({ "type": "noting-ipam", "own": { "key": [1, "two"] } });
        fs::create_dir_all(DIRECTORY)?;
        let script = format!(
            "#!/bin/sh\nexec 2>/dev/null\necho $CNI_COMMAND >> {FILES}/calls\nenv | grep ^CNI_ > {FILES}/env.$CNI_COMMAND\n\
             cat > {FILES}/stdin.$CNI_COMMAND\n{answer}\n"
        );
        let path = Path::new(DIRECTORY).join("noting-ipam");
        // A file that is open for writing in this process may be so in a child that another check starts meanwhile,
        // and could then not be executed: the shell writes it.
        let draft = Path::new(FILES).join("draft");
        fs::write(&draft, script)?;
        fs::set_permissions(&draft, fs::Permissions::from_mode(0o755))?;
        bench
            .host
            .sh(&format!("cp -p {} {}", draft.display(), path.display()))?;
        Ok(Ipam { bench, conf })
    }

    fn calling(&self, verb: &str, conf: &Value) -> Call {
        let call = self.bench.calling(verb, "c1", conf);
        call.with("CNI_PATH", &format!("{DIRECTORY}:{PLUGINS}"))
    }

    /// Calls the delegate's caller.
    pub(super) fn call(&self, verb: &str) -> Result<Reply, Stop> {
        self.calling(verb, &self.conf).run()
    }

    fn noted(&self, file: &str) -> Result<String, Stop> {
        let path = Path::new(FILES).join(file);
        fs::read_to_string(&path).map_err(|_| Stop::Fail(format!("the delegate was not called for {file}")))
    }
}

/// An answer to ADD that gives an address, as an IPAM plugin does; other verbs succeed.
pub(super) const GIVES: &str = r#"[ $CNI_COMMAND != ADD ] || echo '{"cniVersion":"1.0.0","ips":[{"address":"10.1.0.77/24","gateway":"10.1.0.1"}]}'"#;

fn same_variables(bench: &Bench) -> Done {
    let ipam = Ipam::new(bench, "1.0.0", GIVES)?;
    ipam.calling("ADD", &ipam.conf)
        .with("CNI_ARGS", "K=V;IgnoreUnknown=1")
        .run()?
        .result()?;
    let noted = ipam.noted("env.ADD")?;
    for expected in [
        "CNI_COMMAND=ADD",
        "CNI_CONTAINERID=c1",
        "CNI_NETNS=/run/netns/c1",
        "CNI_IFNAME=eth0",
        "CNI_ARGS=K=V;IgnoreUnknown=1",
        &format!("CNI_PATH={DIRECTORY}:{PLUGINS}"),
    ] {
        ensure(noted.lines().any(|line| line == expected), || {
            format!("no {expected} in {noted}")
        })?;
    }
    Ok(())
}

fn same_configuration(bench: &Bench) -> Done {
    let ipam = Ipam::new(bench, "1.0.0", GIVES)?;
    ipam.call("ADD")?.result()?;
    let read: Value = serde_json::from_str(&ipam.noted("stdin.ADD")?).map_err(|e| Stop::Fail(e.to_string()))?;
    same("what the delegate reads", &read, &ipam.conf)
}

fn reaches(bench: &Bench, version: &str, verbs: &[&str]) -> Done {
    let ipam = Ipam::new(bench, version, &GIVES.replace("1.0.0", version))?;
    let result = ipam.call("ADD")?.result()?;
    for verb in verbs.iter().filter(|verb| **verb != "ADD") {
        let keys = if *verb == "GC" {
            json!({ "cni.dev/valid-attachments": [], "cni.dev/attachments": [] })
        } else {
            json!({ "prevResult": result })
        };
        ipam.calling(verb, &with(&ipam.conf, keys)).run()?.silent()?;
    }
    let calls = ipam.noted("calls")?;
    for verb in verbs {
        ensure(calls.lines().any(|call| call == *verb), || {
            format!("the delegate was only called for {calls}")
        })?;
    }
    Ok(())
}

fn status(bench: &Bench) -> Done {
    let busy =
        r#"[ $CNI_COMMAND != STATUS ] || { echo '{"cniVersion":"1.1.0","code":50,"msg":"no address left"}'; exit 1; }"#;
    let ipam = Ipam::new(bench, "1.1.0", busy)?;
    let refusal = ipam.call("STATUS")?.refused(50)?;
    ensure(refusal.text.contains("no address left"), || {
        format!("the error says {}", refusal.text)
    })
}

fn missing_plugin(bench: &Bench) -> Done {
    let mut ipam = Ipam::new(bench, "1.0.0", GIVES)?;
    ipam.conf["ipam"]["type"] = json!("no-such-plugin");
    fails_and_leaves_nothing(&ipam)
}

fn fails_and_leaves_nothing(ipam: &Ipam) -> Done {
    let inside = "ls /sys/class/net >/dev/null; ip -br link | grep -v '^lo ' || true";
    ipam.call("ADD")?.error()?;
    let left = ipam.bench.host.sh_in("c1", inside)?;
    ensure(left.is_empty(), || format!("left in the container's namespace: {left}"))?;
    let left = ipam
        .bench
        .host
        .sh("ip -br link show type veth | grep -v '^up[01]@' || true")?;
    ensure(left.is_empty(), || format!("left on the host: {left}"))
}

fn error_passed_on(bench: &Bench) -> Done {
    let fails = r#"[ $CNI_COMMAND != ADD ] || { echo '{"cniVersion":"1.0.0","code":111,"msg":"all taken by others"}'; exit 1; }"#;
    let ipam = Ipam::new(bench, "1.0.0", fails)?;
    let refusal = ipam.call("ADD")?.refused(111)?;
    ensure(refusal.text.contains("all taken by others"), || {
        format!("the error says {}", refusal.text)
    })?;
    ipam.bench.host.sh("ip netns del c1; ip netns add c1")?;
    fails_and_leaves_nothing(&ipam)
}

fn undone(bench: &Bench) -> Done {
    // A result that these plugins cannot use: it has no address.
    let ipam = Ipam::new(
        bench,
        "1.0.0",
        r#"[ $CNI_COMMAND != ADD ] || echo '{"cniVersion":"1.0.0"}'"#,
    )?;
    let before = State::without_links(bench.host)?;
    ipam.call("ADD")?.error()?;
    let calls = ipam.noted("calls")?;
    ensure(calls.lines().any(|call| call == "DEL"), || {
        format!("the delegate was only called for {calls}")
    })?;
    let changes = State::without_links(bench.host)?.changes(&before);
    ensure(changes.is_empty(), || format!("left behind: {changes}"))
}

fn del_without_namespace(bench: &Bench) -> Done {
    let ipam = Ipam::new(bench, "1.0.0", GIVES)?;
    let result = ipam.call("ADD")?.result()?;
    bench.host.sh("ip netns del c1")?;
    let conf = with(&ipam.conf, json!({ "prevResult": result }));
    ipam.calling("DEL", &conf).run()?.silent()?;
    ipam.noted("env.DEL")?;
    Ok(())
}

fn dns_passed_on(bench: &Bench) -> Done {
    let dns = json!({ "nameservers": ["192.0.2.53"], "search": ["a.example"] });
    let answer = GIVES.replace("\"ips\"", &format!("\"dns\":{dns},\"ips\""));
    let ipam = Ipam::new(bench, "1.0.0", &answer)?;
    let result = ipam.call("ADD")?.result()?;
    same("dns", &result["dns"], &dns)
}
