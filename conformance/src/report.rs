//! What a run found, for people and for programs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use serde_json::{Value, json};

use crate::feature::Feature;
use crate::known::{self, KnownFailures, Meaning};
use crate::run::{Outcome, Verdict};

/// The results of a run, and those of a second directory to compare with.
#[derive(Debug)]
pub struct Report<'a> {
    /// What was judged.
    pub outcomes: &'a [Outcome],
    /// The same checks of the directory that is compared with.
    pub compared: Option<&'a [Outcome]>,
    /// What is known of the plugins that were judged.
    pub known: Option<&'a KnownFailures>,
}

impl Report<'_> {
    /// How many outcomes mean what.
    pub fn count(&self, meaning: Meaning) -> usize {
        let of = |outcome: &&Outcome| known::meaning(self.known, outcome) == meaning;
        self.outcomes.iter().filter(of).count()
    }

    /// Whether everything is as it should be.
    pub fn is_good(&self) -> bool {
        self.count(Meaning::Failure) == 0 && self.count(Meaning::UnexpectedPass) == 0
    }

    /// A table: a row for each check, a column for each plugin.
    pub fn table(&self) -> String {
        let plugins: BTreeSet<&str> = self.outcomes.iter().map(|outcome| outcome.plugin.as_str()).collect();
        let mut rows: Vec<(&str, BTreeMap<&str, String>)> = Vec::new();
        for (index, outcome) in self.outcomes.iter().enumerate() {
            if rows.last().is_none_or(|(id, _)| *id != outcome.check.id) {
                rows.push((outcome.check.id, BTreeMap::new()));
            }
            if let Some((_, cells)) = rows.last_mut() {
                cells.insert(&outcome.plugin, self.cell(index, outcome));
            }
        }
        let first = rows.iter().map(|(id, _)| id.len()).max().unwrap_or_default();
        let widths: Vec<(&str, usize)> = plugins
            .into_iter()
            .map(|plugin| {
                let cells = rows.iter().filter_map(|(_, cells)| cells.get(plugin));
                (
                    plugin,
                    cells.map(String::len).max().unwrap_or_default().max(plugin.len()),
                )
            })
            .collect();
        let line = |id: &str, cell: &dyn Fn(&str) -> String| -> String {
            let cells = widths
                .iter()
                .map(|(plugin, width)| format!("  {:width$}", cell(plugin)));
            format!("{id:first$}{}", cells.collect::<String>())
                .trim_end()
                .to_owned()
                + "\n"
        };
        let head = line("check", &|plugin| plugin.to_owned());
        let body = rows
            .iter()
            .map(|(id, cells)| line(id, &|plugin| cells.get(plugin).cloned().unwrap_or_default()));
        body.fold(head, |table, row| table + &row)
    }

    fn cell(&self, index: usize, outcome: &Outcome) -> String {
        let own = match (known::meaning(self.known, outcome), &outcome.verdict) {
            (Meaning::Known, _) => "known",
            (Meaning::UnexpectedPass, _) => "PASSES",
            (_, verdict) => word(verdict),
        };
        match self.other(index) {
            Some(other) => format!("{own}|{}", word(&other.verdict)),
            None => own.to_owned(),
        }
    }

    fn other(&self, index: usize) -> Option<&Outcome> {
        let own = self.outcomes.get(index)?;
        let same = |other: &&Outcome| other.check.id == own.check.id && other.plugin == own.plugin;
        self.compared?.iter().find(same)
    }

    /// What is not as it should be, with the rule and where it comes from; then why checks did not apply.
    pub fn details(&self) -> String {
        let mut text = String::new();
        for outcome in self.outcomes {
            let how = match (known::meaning(self.known, outcome), &outcome.verdict) {
                (Meaning::Failure, Verdict::Fail(reason)) => format!("fails: {reason}"),
                (Meaning::UnexpectedPass, _) => "passes, and is in the list of known failures".to_owned(),
                _ => continue,
            };
            let (check, plugin) = (outcome.check, &outcome.plugin);
            // Writing into a text does not fail.
            let _ = writeln!(
                text,
                "\n{} ({plugin}) {how}\n    rule: {}\n    from: {}",
                check.id, check.rule, check.source
            );
        }
        let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
        for outcome in self.outcomes {
            if let Verdict::NotApplicable(reason) = &outcome.verdict {
                let count = reasons.entry(reason).or_default();
                *count = count.saturating_add(1);
            }
        }
        for (reason, count) in reasons {
            let _ = writeln!(text, "\nnot applicable, {count} times: {reason}");
        }
        text
    }

    /// One line that counts.
    pub fn summary(&self) -> String {
        let applied = |verdict: &Verdict| matches!(verdict, Verdict::NotApplicable(_));
        let not_applicable = self.outcomes.iter().filter(|outcome| applied(&outcome.verdict)).count();
        let passed = self
            .outcomes
            .iter()
            .filter(|outcome| outcome.verdict == Verdict::Pass)
            .count();
        let mut line = format!(
            "{passed} passed, {} failed, {not_applicable} not applicable",
            self.count(Meaning::Failure)
        );
        if self.known.is_some() {
            let _ = write!(
                line,
                "; {} failed as known, {} passed against expectation",
                self.count(Meaning::Known),
                self.count(Meaning::UnexpectedPass)
            );
        }
        line
    }

    /// Everything, for programs.
    pub fn json(&self) -> Value {
        let results = self.outcomes.iter().enumerate().map(|(index, outcome)| {
            let mut result = json!({
                "check": outcome.check.id,
                "plugin": outcome.plugin,
                "rule": outcome.check.rule,
                "source": outcome.check.source.to_string(),
                "cases": outcome.check.cases().collect::<Vec<_>>(),
                "result": name(&outcome.verdict),
                "reason": reason(&outcome.verdict),
                "lacks": lacks(&outcome.verdict),
                "known": self.known.and_then(|known| known.reason(outcome)),
            });
            if let Some(other) = self.other(index) {
                result["compared"] = json!({ "result": name(&other.verdict), "reason": reason(&other.verdict) });
            }
            result
        });
        json!({ "good": self.is_good(), "results": results.collect::<Vec<_>>() })
    }
}

fn word(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Pass => "ok",
        Verdict::Fail(_) => "FAIL",
        Verdict::NotApplicable(_) => "-",
    }
}

fn name(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Pass => "pass",
        Verdict::Fail(_) => "fail",
        Verdict::NotApplicable(_) => "not applicable",
    }
}

/// What the machine lacked, if that is why a check did not apply.
fn lacks(verdict: &Verdict) -> Option<&str> {
    let Verdict::NotApplicable(reason) = verdict else {
        return None;
    };
    let missing = Feature::ALL.iter().find(|feature| feature.describe() == reason);
    missing.map(|_| reason.as_str())
}

/// The pairs of check and plugin that did not apply because the machine lacked something, from a report as JSON.
///
/// # Errors
/// What is not such a report, in words.
pub fn lacking(report: &Value) -> Result<BTreeSet<(String, String)>, String> {
    let results = report
        .get("results")
        .and_then(Value::as_array)
        .ok_or("no report: it has no results")?;
    let lacking = results
        .iter()
        .filter(|result| result.get("lacks").is_some_and(Value::is_string));
    let pair = |result: &Value| {
        Some((
            result["check"].as_str()?.to_owned(),
            result["plugin"].as_str()?.to_owned(),
        ))
    };
    Ok(lacking.filter_map(pair).collect())
}

fn reason(verdict: &Verdict) -> Option<&str> {
    match verdict {
        Verdict::Pass => None,
        Verdict::Fail(reason) | Verdict::NotApplicable(reason) => Some(reason),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks;

    fn outcome(check: usize, plugin: &str, verdict: Verdict) -> Outcome {
        Outcome {
            check: checks::all()[check],
            plugin: plugin.to_owned(),
            verdict,
        }
    }

    #[test]
    fn a_table_of_checks_by_plugins_with_another_directory_beside() {
        let failed = Verdict::Fail("it does not".to_owned());
        let own = [
            outcome(0, "bridge", Verdict::Pass),
            outcome(0, "ptp", failed.clone()),
            outcome(1, "ptp", Verdict::NotApplicable("no kernel".to_owned())),
        ];
        let other = [outcome(0, "bridge", failed), outcome(0, "ptp", Verdict::Pass)];
        let mut report = Report {
            outcomes: &own,
            compared: None,
            known: None,
        };
        let rows = |report: &Report| -> Vec<Vec<String>> {
            let table = report.table();
            table
                .lines()
                .map(|line| line.split_whitespace().map(str::to_owned).collect())
                .collect()
        };
        let ids = [checks::all()[0].id, checks::all()[1].id];
        assert_eq!(
            rows(&report),
            [
                vec!["check", "bridge", "ptp"],
                vec![ids[0], "ok", "FAIL"],
                vec![ids[1], "-"]
            ]
        );
        assert!(!report.is_good());
        assert_eq!(report.summary(), "1 passed, 1 failed, 1 not applicable");
        assert!(report.details().contains("it does not") && report.details().contains("no kernel"));

        report.compared = Some(&other);
        assert_eq!(rows(&report)[1], [ids[0], "ok|FAIL", "FAIL|ok"]);
        assert_eq!(report.json()["results"][1]["compared"]["result"], "pass");
        assert_eq!(report.json()["results"][1]["reason"], "it does not");
    }

    #[test]
    fn what_a_machine_lacks_is_found_again_in_its_report() {
        let lacks = |feature: Feature| Verdict::NotApplicable(feature.describe().to_owned());
        let outcomes = [
            outcome(0, "vlan", lacks(Feature::Vlan)),
            outcome(
                0,
                "ptp",
                Verdict::NotApplicable("the plugin makes no interface".to_owned()),
            ),
            outcome(1, "vlan", Verdict::Pass),
        ];
        let report = Report {
            outcomes: &outcomes,
            compared: None,
            known: None,
        };
        let pairs = lacking(&report.json()).unwrap();
        assert_eq!(
            pairs,
            BTreeSet::from([(checks::all()[0].id.to_owned(), "vlan".to_owned())])
        );
        assert!(lacking(&json!({})).is_err());
    }
}
