//! Taking rules out of a table, by whichever way it was read.

use cni_types::{Error, Result};

use super::edit::Edit;
use super::exec::Tool;
use super::reading::{Reading, kernel_error, wire_table};
use super::rule::Rule;
use super::saved::Table;
use crate::Family;

/// How often a removal is planned anew when the table changed between its read and its write.
const ATTEMPTS: usize = 3;

/// Plans against the table and writes, again when the table changed in between. Returns the rules that went.
///
/// `own` are the chains that may go, `read` names more that `plan` looks at.
pub(super) fn sweep(
    tool: Tool,
    table: Table,
    own: &[String],
    read: impl Fn(&mut Reading) -> Result<()>,
    plan: impl Fn(&mut Edit) -> Result<()>,
) -> Result<Vec<Rule>> {
    let mut tried: Option<(String, Error)> = None;
    for _ in 0..ATTEMPTS {
        let mut reading = Reading::begin(tool, table, own.to_vec())?;
        read(&mut reading)?;
        let (seen, kernel) = reading.end()?;
        let mut edit = Edit::new(seen);
        plan(&mut edit)?;
        let Some(script) = edit.script() else {
            return Ok(Vec::new());
        };
        match tried {
            Some((before, e)) if before == script => return Err(e),
            _ => {}
        }
        let wire = wire_table(table, tool.family);
        let written = match (kernel, edit.batch(&wire)) {
            // Handles are never given out twice, so no other rule can go by mistake, whatever others do meanwhile.
            (Some(mut kernel), Some(batch)) => kernel.commit(&batch, None).map_err(kernel_error),
            _ => tool.restore(&script),
        };
        match written {
            Ok(()) => return Ok(edit.removed().to_vec()),
            Err(e) => tried = Some((script, e)),
        }
    }
    tried.map_or(Ok(Vec::new()), |(_, e)| Err(e))
}

/// Runs every step; the failures are reported together, under the code of the first.
pub(super) fn all(tools: &[Tool], step: impl Fn(Tool) -> Result<Vec<Rule>>) -> Result<Vec<(Family, Rule)>> {
    let (mut removed, mut failures) = (Vec::new(), Vec::new());
    for &tool in tools {
        match step(tool) {
            Ok(rules) => removed.extend(rules.into_iter().map(|rule| (tool.family, rule))),
            Err(e) => failures.push(e),
        }
    }
    let Some(first) = failures.first() else {
        return Ok(removed);
    };
    let texts: Vec<&str> = failures.iter().map(|e| e.msg.as_str()).collect();
    Err(Error::new(first.code, texts.join("; ")))
}
