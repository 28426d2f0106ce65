//! The codes of errors, each by its number. Codes 1, 4, 6 and 7 are asked for with what causes them, in `versions` and `parameters`.
//! Nothing in a configuration makes a plugin say 2, 3 or 11 by itself: these it has to pass on from its delegate, as the runtime
//! acts on them.

use serde_json::json;

use super::delegation::{GIVES, Ipam};
use super::{Bench, Check, Done, Plugins, Source, ensure};
use crate::call::Call;

const fn passed_on(id: &'static str, rule: &'static str, run: fn(&Bench) -> Done) -> Check {
    Check {
        id,
        source: Source::Spec("section 5, Error, and section 4, Plugin delegation"),
        rule,
        plugins: Plugins::Configured,
        needs: &[],
        run,
    }
}

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "errors/5-input-unreadable",
        source: Source::Spec("section 5, Error: code 5"),
        rule: "a failure to read the configuration from standard input is code 5",
        plugins: Plugins::Each,
        needs: &[],
        run: |bench| {
            Call::new(bench.plugin, "ADD").unreadable().run()?.refused(5)?;
            Ok(())
        },
    },
    Check {
        id: "errors/8-own-namespace",
        source: Source::Practice(
            "the code of the reference's library for a namespace that cannot be used; the specification has none",
        ),
        rule: "a CNI_NETNS that is the plugin's own namespace is code 8",
        plugins: Plugins::Configured,
        needs: &[],
        run: |bench| {
            let conf = bench.prepare("c1", "1.0.0")?;
            let call = bench.calling("ADD", "c1", &conf);
            call.with("CNI_NETNS", "/proc/self/ns/net").run()?.refused(8)?;
            Ok(())
        },
    },
    passed_on(
        "errors/2-passed-on",
        "the delegate's code 2, a field that it does not support, is the caller's",
        |bench| arrives(bench, 2),
    ),
    passed_on(
        "errors/3-passed-on",
        "the delegate's code 3, by which the runtime need not call DEL, is the caller's",
        |bench| arrives(bench, 3),
    ),
    passed_on(
        "errors/5-passed-on",
        "the delegate's code 5, a failure to read or write, is the caller's",
        |bench| arrives(bench, 5),
    ),
    passed_on(
        "errors/7-passed-on",
        "the delegate's code 7, an invalid configuration, is the caller's",
        |bench| arrives(bench, 7),
    ),
    passed_on(
        "errors/11-passed-on",
        "the delegate's code 11, by which the runtime tries again later, is the caller's",
        |bench| arrives(bench, 11),
    ),
    passed_on(
        "errors/51-passed-on",
        "the delegate's answer to STATUS that even existing containers may be cut off, code 51, is the caller's",
        |bench| {
            let answer =
                r#"[ $CNI_COMMAND != STATUS ] || { echo '{"cniVersion":"1.1.0","code":51,"msg":"cut off"}'; exit 1; }"#;
            let ipam = Ipam::new(bench, "1.1.0", answer)?;
            ipam.call("STATUS")?.refused(51)?;
            Ok(())
        },
    ),
];

/// Lets the delegate refuse ADD with a code and details, and expects both from its caller.
fn arrives(bench: &Bench, code: u64) -> Done {
    let error = json!({ "cniVersion": "1.0.0", "code": code, "msg": "told by the delegate", "details": "and why" });
    let answer = format!("[ $CNI_COMMAND != ADD ] || {{ echo '{error}'; exit 1; }}\n{GIVES}");
    let refusal = Ipam::new(bench, "1.0.0", &answer)?.call("ADD")?.refused(code)?;
    for part in ["told by the delegate", "and why"] {
        ensure(refusal.text.contains(part), || {
            format!("the error says {}", refusal.text)
        })?;
    }
    Ok(())
}
