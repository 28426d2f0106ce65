//! CNI_ARGS, args and runtimeConfig: what a runtime says besides the configuration.

use serde_json::json;

use super::{Bench, Check, Done, Plugins, Source, with};

const fn check(id: &'static str, source: Source, rule: &'static str, run: fn(&Bench) -> Done) -> Check {
    Check {
        id,
        source,
        rule,
        plugins: Plugins::Configured,
        needs: &[],
        run,
    }
}

pub(super) const CHECKS: &[Check] = &[
    check(
        "arguments/kubernetes",
        Source::Conventions("CNI_ARGS: IgnoreUnknown"),
        "with IgnoreUnknown=1 anywhere in CNI_ARGS, keys that a plugin does not know are ignored",
        |bench| {
            let args = "K8S_POD_NAME=web;IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_UID=1-2";
            add_with_args(bench, args)
        },
    ),
    check(
        "arguments/empty",
        Source::Practice("ctr sets CNI_ARGS to nothing"),
        "an empty CNI_ARGS is none",
        |bench| add_with_args(bench, ""),
    ),
    check(
        "arguments/unknown-args-in-configuration",
        Source::Spec("section 1, Plugin configuration objects: args"),
        "what a plugin does not understand below args is ignored",
        |bench| {
            let keys = json!({ "args": { "example.com/labels": { "a": "b" }, "cni": { "example": [1] } } });
            add_with_keys(bench, keys)
        },
    ),
    check(
        "arguments/unknown-runtime-config",
        Source::Spec("section 1, runtimeConfig"),
        "a capability's argument that a plugin does not know is ignored",
        |bench| {
            let mut conf = bench.prepare("c1", "1.0.0")?;
            conf["runtimeConfig"]["example.com/other"] = json!({ "a": 1 });
            bench.attach_with("c1", conf)?;
            Ok(())
        },
    ),
    check(
        "arguments/capabilities-are-no-configuration",
        Source::Spec("section 1, capabilities"),
        "capabilities that only concern the runtime do not disturb the plugin",
        |bench| {
            add_with_keys(
                bench,
                json!({ "capabilities": { "bandwidth": true, "ips": true, "aliases": true } }),
            )
        },
    ),
];

fn add_with_args(bench: &Bench, args: &str) -> Done {
    let conf = bench.prepare("c1", "1.0.0")?;
    let add = bench.calling("ADD", "c1", &conf).with("CNI_ARGS", args);
    add.run()?.result()?;
    let del = bench.calling("DEL", "c1", &conf).with("CNI_ARGS", args);
    del.run()?.silent()
}

fn add_with_keys(bench: &Bench, keys: serde_json::Value) -> Done {
    let conf = with(&bench.prepare("c1", "1.0.0")?, keys);
    bench.attach_with("c1", conf)?;
    Ok(())
}
