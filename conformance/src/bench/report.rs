//! From many costs to a table and to JSON.

use std::fmt::Write;

use serde_json::{Value, json};

use super::call::Cost;

/// One part of a scenario, for example its ADD, with both directories.
#[derive(Debug, Default)]
pub(super) struct Row {
    /// The scenario, and the part of it.
    pub(super) scenario: String,
    /// The part of it, for example "ADD".
    pub(super) part: String,
    /// The plugins that were called.
    pub(super) plugins: Vec<&'static str>,
    /// For each directory what each round cost. Rounds of the same index were made one right after the other.
    pub(super) rounds: Vec<Vec<Cost>>,
    /// For each directory the programs and system calls of a round under strace; empty without strace.
    pub(super) counts: Vec<Cost>,
}

/// The middle one, or the mean of the two in the middle.
fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    let upper = *values.get(half)?;
    if values.len() % 2 == 1 {
        return Some(upper);
    }
    Some((values.get(half.checked_sub(1)?)? + upper) / 2.0)
}

fn wall(cost: &Cost) -> f64 {
    cost.wall.as_secs_f64() * 1e3
}

fn cpu(cost: &Cost) -> f64 {
    cost.cpu.as_secs_f64() * 1e3
}

impl Row {
    fn median_of(&self, directory: usize, figure: fn(&Cost) -> f64) -> Option<f64> {
        median(self.rounds.get(directory)?.iter().map(figure))
    }

    /// How many times more the second directory needs: the median over pairs of rounds, as load comes and goes and
    /// meets both rounds of a pair alike.
    fn ratio(&self, figure: fn(&Cost) -> f64) -> Option<f64> {
        let [first, second] = self.rounds.as_slice() else {
            return None;
        };
        let ratios = first.iter().zip(second).map(|(a, b)| figure(b) / figure(a));
        median(ratios).filter(|ratio| ratio.is_finite())
    }

    fn peak_kib(&self, directory: usize) -> Option<u64> {
        let rounds = self.rounds.get(directory)?;
        rounds.iter().map(|cost| cost.peak_kib).max().filter(|peak| *peak > 0)
    }

    fn counted(&self, directory: usize) -> Option<&Cost> {
        self.counts.get(directory).filter(|cost| cost.programs > 0)
    }

    fn json(&self, directories: &[String]) -> Value {
        let of = |(i, directory): (usize, &String)| {
            json!({
                "directory": directory,
                "rounds": self.rounds.get(i).map(Vec::len),
                "wallMs": self.median_of(i, wall),
                "cpuMs": self.median_of(i, cpu).filter(|ms| *ms > 0.0),
                "peakKib": self.peak_kib(i),
                "programs": self.counted(i).map(|cost| cost.programs),
                "systemCalls": self.counted(i).map(|cost| cost.system_calls),
            })
        };
        json!({
            "scenario": self.scenario,
            "part": self.part,
            "plugins": self.plugins,
            "medians": directories.iter().enumerate().map(of).collect::<Vec<_>>(),
            "wallRatio": self.ratio(wall),
            "cpuRatio": self.ratio(cpu),
        })
    }
}

/// All rows as JSON.
pub(super) fn json(rows: &[Row], directories: &[String], surroundings: Value) -> Value {
    json!({
        "surroundings": surroundings,
        "directories": directories,
        "rows": rows.iter().map(|row| row.json(directories)).collect::<Vec<_>>(),
    })
}

/// All rows as a table in Markdown, which is readable as it is. Directories are called A and B.
pub(super) fn table(rows: &[Row], directories: &[String]) -> String {
    let names: Vec<String> = ('A'..='Z').take(directories.len()).map(String::from).collect();
    let each = |what: &str| names.iter().map(|name| format!("{what} {name}")).collect::<Vec<_>>();
    let mut header = vec!["scenario".to_owned(), String::new()];
    let compared = directories.len() == 2;
    header.extend(each("ms"));
    header.extend(compared.then(|| "B/A".to_owned()));
    header.extend(each("CPU ms"));
    header.extend(compared.then(|| "B/A".to_owned()));
    header.extend(each("KiB"));
    header.extend(each("programs"));
    header.extend(each("system calls"));

    let mut lines = vec![header];
    for row in rows {
        let all = |figure: &dyn Fn(usize) -> Option<String>| -> Vec<String> {
            (0..directories.len()).map(|i| figure(i).unwrap_or_default()).collect()
        };
        let milliseconds = |ms: f64| format!("{ms:.2}");
        let times = |ratio: f64| format!("{ratio:.1}");
        let mut line = vec![row.scenario.clone(), row.part.clone()];
        line.extend(all(&|i| row.median_of(i, wall).map(milliseconds)));
        line.extend(compared.then(|| row.ratio(wall).map(times).unwrap_or_default()));
        line.extend(all(&|i| row.median_of(i, cpu).filter(|ms| *ms > 0.0).map(milliseconds)));
        line.extend(compared.then(|| row.ratio(cpu).map(times).unwrap_or_default()));
        line.extend(all(&|i| row.peak_kib(i).map(|peak| peak.to_string())));
        line.extend(all(&|i| row.counted(i).map(|cost| cost.programs.to_string())));
        line.extend(all(&|i| row.counted(i).map(|cost| cost.system_calls.to_string())));
        lines.push(line);
    }
    let mut text = String::new();
    for (name, directory) in names.iter().zip(directories) {
        text.push_str(&format!("{name} = {directory}\n"));
    }
    text.push('\n');
    text + &aligned(&lines)
}

/// The first two columns are words, the others numbers.
fn aligned(lines: &[Vec<String>]) -> String {
    const WORDS: usize = 2;
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        lines
            .iter()
            .filter_map(|line| line.get(column))
            .map(|c| c.chars().count())
            .max()
    };
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0).max(3)).collect();
    let mut text = String::new();
    for (number, line) in lines.iter().enumerate() {
        for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
            // Writing to a String cannot fail.
            let _ = match column < WORDS {
                true => write!(text, "| {cell:<width$} "),
                false => write!(text, "| {cell:>width$} "),
            };
        }
        text.push_str("|\n");
        if number == 0 {
            for (column, width) in widths.iter().enumerate() {
                let dashes = "-".repeat(width.saturating_sub(1));
                text.push_str(&match column < WORDS {
                    true => format!("| -{dashes} "),
                    false => format!("| {dashes}: "),
                });
            }
            text.push_str("|\n");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn row(rounds: &[&[u64]]) -> Row {
        let cost = |ms: &u64| Cost {
            wall: Duration::from_millis(*ms),
            ..Cost::default()
        };
        Row {
            scenario: "bridge".to_owned(),
            part: "ADD".to_owned(),
            rounds: rounds.iter().map(|all| all.iter().map(cost).collect()).collect(),
            ..Row::default()
        }
    }

    #[test]
    fn a_median_is_the_middle() {
        assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median([]), None);
    }

    #[test]
    fn ratios_compare_round_by_round() {
        // A slow minute meets the second round of both: by medians of all rounds the ratio would be 30 / 10.
        let row = row(&[&[10, 100, 10], &[20, 200, 30]]);
        assert_eq!(row.ratio(wall), Some(2.0));
        assert_eq!(row.ratio(cpu), None);
    }

    #[test]
    fn one_directory_alone_has_no_ratio() {
        let text = table(&[row(&[&[10]])], &["/a".to_owned()]);
        assert!(!text.contains("B/A"), "{text}");
        assert!(text.contains("| bridge   | ADD | 10.00 |"), "{text}");
    }

    #[test]
    fn what_was_not_measured_is_null() {
        let report = json(
            &[row(&[&[10], &[30]])],
            &["/a".to_owned(), "/b".to_owned()],
            Value::Null,
        );
        let row = &report["rows"][0];
        assert_eq!(row["wallRatio"], 3.0);
        assert_eq!(row["medians"][1]["wallMs"], 30.0);
        assert!(row["medians"][0]["cpuMs"].is_null() && row["medians"][0]["systemCalls"].is_null());
    }
}
