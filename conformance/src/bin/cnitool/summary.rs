//! What the plugins did, for people and for programs.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::mpsc::Receiver;

use conformance::chain::{ChainError, Step};
use serde_json::{Value, json};

use super::{Failure, print};

const GREEN: &str = "\x1b[32m";
const RED: &str = "\x1b[31m";
const PLAIN: &str = "\x1b[0m";

/// The calls of a command, and the way to tell of them.
#[derive(Debug)]
pub(super) struct Summary {
    steps: Receiver<Step>,
    json: bool,
    colours: bool,
}

impl Summary {
    pub(super) fn new(steps: Receiver<Step>, json: bool, no_colour: bool) -> Summary {
        Summary {
            steps,
            json,
            colours: !no_colour && io::stderr().is_terminal(),
        }
    }

    pub(super) fn is_for_people(&self) -> bool {
        !self.json
    }

    /// Tells how a command ended: for people the calls on standard error and the result on standard output, where the
    /// reference's cnitool prints it; otherwise one document.
    pub(super) fn tell(
        &self,
        command: &str,
        network: &str,
        outcome: Result<Value, ChainError>,
    ) -> Result<ExitCode, Failure> {
        if self.json {
            let steps: Vec<Value> = self.steps.try_iter().map(|step| document(&step)).collect();
            let error = outcome.as_ref().err().map(ToString::to_string);
            let code = if error.is_some() {
                ExitCode::FAILURE
            } else {
                ExitCode::SUCCESS
            };
            let whole =
                json!({"command": command, "on": network, "calls": steps, "result": outcome.ok(), "error": error});
            print(&format!("{whole:#}\n"))?;
            return Ok(code);
        }
        self.calls();
        match outcome? {
            Value::Null => {}
            result => print(&format!("{result:#}\n"))?,
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Tells people the calls so far.
    pub(super) fn calls(&self) {
        for step in self.steps.try_iter() {
            // There is nobody left to tell if standard error is closed.
            let _ = writeln!(io::stderr(), "{}", line(&step, self.colours));
        }
    }
}

fn line(step: &Step, colours: bool) -> String {
    let (word, colour) = match step.failure {
        None => ("ok", GREEN),
        Some(_) => ("failed", RED),
    };
    let (colour, plain) = if colours { (colour, PLAIN) } else { ("", "") };
    let milliseconds = step.took.as_secs_f64() * 1e3;
    let verb = step.verb.as_str();
    format!(
        "{colour}{word:<6}{plain} {verb:<6} {:<12} {milliseconds:8.1} ms",
        step.plugin_type
    )
}

fn document(step: &Step) -> Value {
    json!({
        "plugin": step.plugin_type,
        "verb": step.verb.as_str(),
        "milliseconds": step.took.as_secs_f64() * 1e3,
        "error": step.failure,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use conformance::plugin::Verb;

    use super::*;

    fn step(failure: Option<&str>) -> Step {
        Step {
            plugin_type: "bridge".to_owned(),
            verb: Verb::Add,
            took: Duration::from_micros(2_345),
            failure: failure.map(str::to_owned),
        }
    }

    #[test]
    fn a_line_has_a_colour_where_it_is_wanted() {
        assert_eq!(line(&step(None), false), "ok     ADD    bridge            2.3 ms");
        assert!(line(&step(None), true).starts_with("\x1b[32mok"));
        assert!(line(&step(Some("no room")), true).starts_with("\x1b[31mfailed"));
    }

    #[test]
    fn a_document_has_the_failure() {
        assert_eq!(document(&step(Some("no room")))["error"], "no room");
        assert!(document(&step(None))["error"].is_null());
    }
}
