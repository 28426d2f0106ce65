//! Chained plugins: what they make of prevResult.

use serde_json::{Value, json};

use super::specimen::previous;
use super::{Bench, Check, Done, Kind, Plugins, Source, Specimen, Stop, ensure, same, with};

const PREV_RESULT: Source = Source::Spec("section 2, ADD, and section 5, ADD Success: prevResult");

const fn check(id: &'static str, rule: &'static str, run: fn(&Bench) -> Done) -> Check {
    Check {
        id,
        source: PREV_RESULT,
        rule,
        plugins: Plugins::Configured,
        needs: &[],
        run,
    }
}

pub(super) const CHECKS: &[Check] = &[
    check(
        "chain/prev-result-0.3.1",
        "a plugin that is given prevResult passes on what is in it, in the version of the configuration",
        |bench| passed_on(bench, "0.3.1"),
    ),
    check(
        "chain/prev-result-0.4.0",
        "a plugin that is given prevResult passes on what is in it, in the version of the configuration",
        |bench| passed_on(bench, "0.4.0"),
    ),
    check(
        "chain/prev-result-1.0.0",
        "a plugin that is given prevResult passes on what is in it, in the version of the configuration",
        |bench| passed_on(bench, "1.0.0"),
    ),
    check(
        "chain/prev-result-1.1.0",
        "a plugin that is given prevResult passes on what is in it, in the version of the configuration",
        |bench| passed_on(bench, "1.1.0"),
    ),
    check(
        "chain/needs-prev-result",
        "a plugin that only works after another one refuses to be the first",
        needs_prev_result,
    ),
];

fn passed_on(bench: &Bench, version: &str) -> Done {
    let kind = Specimen::of(bench)?.kind;
    if kind != Kind::Chained && kind != Kind::Loopback {
        return Err(Stop::NotApplicable("the plugin is the first of a chain".to_owned()));
    }
    let conf = bench.prepare("c1", version)?;
    let dns = json!({ "nameservers": ["192.0.2.53"], "domain": "example.com", "search": ["example.com"], "options": ["ndots:5"] });
    let given = with(
        &previous(if kind == Kind::Loopback { "c7" } else { "c1" }, version),
        json!({ "dns": dns }),
    );
    let result = bench
        .call("ADD", "c1", &with(&conf, json!({ "prevResult": given })))?
        .result()?;
    same("cniVersion", &result["cniVersion"], &json!(version))?;
    for key in ["interfaces", "ips", "routes", "dns"] {
        contains(&result[key], &given[key]).map_err(|part| {
            Stop::Fail(format!(
                "{key} of prevResult is not in the result: {part} of {} is missing in {}",
                given[key], result[key]
            ))
        })?;
    }
    Ok(())
}

/// Whether everything of `part` is in `whole`, which may have more; or what is not.
fn contains(whole: &Value, part: &Value) -> Result<(), Value> {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => part
            .iter()
            .try_for_each(|(key, value)| contains(whole.get(key).unwrap_or(&Value::Null), value)),
        (Value::Array(whole), Value::Array(part)) => part.iter().try_for_each(|value| {
            let found = whole.iter().any(|other| contains(other, value).is_ok());
            if found { Ok(()) } else { Err(value.clone()) }
        }),
        _ if whole == part => Ok(()),
        _ => Err(part.clone()),
    }
}

fn needs_prev_result(bench: &Bench) -> Done {
    if Specimen::of(bench)?.kind != Kind::Chained {
        return Err(Stop::NotApplicable("the plugin may be the first of a chain".to_owned()));
    }
    let mut conf = bench.prepare("c1", "1.0.0")?;
    if let Some(conf) = conf.as_object_mut() {
        conf.remove("prevResult");
    }
    let refusal = bench.call("ADD", "c1", &conf)?.error()?;
    ensure(!refusal.text.is_empty(), || "the error says nothing".to_owned())
}
