//! VERSION, and what a plugin does with versions.

use serde_json::{Value, json};

use super::{Bench, Check, Done, Plugins, Source, ensure, same};
use crate::call::Call;

const VERSION: Source = Source::Spec("section 2, VERSION");
const ERRORS: Source = Source::Spec("section 5, Error");

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "version/lists-versions",
        source: VERSION,
        rule: "VERSION prints cniVersion and the list supportedVersions",
        plugins: Plugins::Each,
        needs: &[],
        run: lists_versions,
    },
    Check {
        id: "version/needs-nothing",
        source: Source::Practice("podman asks for VERSION with an empty input and made-up variables"),
        rule: "VERSION is answered whatever else is set, and whatever standard input holds",
        plugins: Plugins::Each,
        needs: &[],
        run: needs_nothing,
    },
    Check {
        id: "version/unknown-is-refused",
        source: ERRORS,
        rule: "a configuration of a version that the plugin does not speak is refused with code 1",
        plugins: Plugins::Each,
        needs: &[],
        run: unknown_is_refused,
    },
    Check {
        id: "version/no-check-before-0.4.0",
        source: Source::Spec("section 2, CHECK"),
        rule: "CHECK exists since 0.4.0: with an older configuration it is refused with code 1",
        plugins: Plugins::Each,
        needs: &[],
        run: |bench| too_old(bench, "CHECK", "0.3.1"),
    },
    Check {
        id: "version/no-gc-before-1.1.0",
        source: Source::Spec("section 2, GC"),
        rule: "GC exists since 1.1.0: with an older configuration it is refused with code 1",
        plugins: Plugins::Each,
        needs: &[],
        run: |bench| too_old(bench, "GC", "1.0.0"),
    },
    Check {
        id: "version/no-status-before-1.1.0",
        source: Source::Spec("section 2, STATUS"),
        rule: "STATUS exists since 1.1.0: with an older configuration it is refused with code 1",
        plugins: Plugins::Each,
        needs: &[],
        run: |bench| too_old(bench, "STATUS", "1.0.0"),
    },
    Check {
        id: "version/errors-speak-the-configurations",
        source: ERRORS,
        rule: "an error object names the version of the configuration",
        plugins: Plugins::Each,
        needs: &[],
        run: errors_speak,
    },
];

fn lists_versions(bench: &Bench) -> Done {
    let answer = Call::new(bench.plugin, "VERSION")
        .conf(&json!({ "cniVersion": "1.0.0" }))
        .run()?
        .result()?;
    ensure(answer.get("cniVersion").is_some_and(Value::is_string), || {
        format!("no cniVersion in {answer}")
    })?;
    ensure(!bench.versions()?.is_empty(), || format!("no version in {answer}"))
}

fn needs_nothing(bench: &Bench) -> Done {
    let made_up = Call::new(bench.plugin, "VERSION")
        .with("CNI_NETNS", "dummy")
        .with("CNI_IFNAME", "dummy")
        .with("CNI_PATH", "dummy");
    let expected = made_up
        .clone()
        .conf(&json!({ "cniVersion": "1.0.0" }))
        .run()?
        .result()?;
    let bare = Call::new(bench.plugin, "VERSION")
        .without("CNI_CONTAINERID")
        .without("CNI_NETNS")
        .without("CNI_IFNAME")
        .without("CNI_PATH");
    same("VERSION of an empty input", &made_up.run()?.result()?, &expected)?;
    same("VERSION of nothing at all", &bare.run()?.result()?, &expected)
}

fn unknown_is_refused(bench: &Bench) -> Done {
    for verb in ["ADD", "DEL", "CHECK"] {
        let conf = json!({ "cniVersion": "9.9.9", "name": "net", "type": bench.plugin });
        Call::new(bench.plugin, verb).conf(&conf).run()?.refused(1)?;
    }
    Ok(())
}

fn too_old(bench: &Bench, verb: &str, version: &str) -> Done {
    bench.speaks(version)?;
    bench.speaks(if verb == "CHECK" { "0.4.0" } else { "1.1.0" })?;
    let conf = json!({ "cniVersion": version, "name": "net", "type": bench.plugin });
    Call::new(bench.plugin, verb).conf(&conf).run()?.refused(1)?;
    Ok(())
}

fn errors_speak(bench: &Bench) -> Done {
    for version in bench.versions()? {
        // A bad name is refused by every plugin.
        let conf = json!({ "cniVersion": version, "name": "bad name", "type": bench.plugin });
        let refusal = Call::new(bench.plugin, "ADD").conf(&conf).run()?.error()?;
        same("cniVersion of the error", &refusal.version, &json!(version))?;
    }
    Ok(())
}
