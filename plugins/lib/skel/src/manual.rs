//! What a plugin tells a person: `--help`, `--schema`, `--version`, and who starts it by hand.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::process::ExitCode;

use cni_types::Version;
use serde_json::Value;

use crate::output;
use crate::plugin::Registered;
use crate::schema::{self, Row};

/// Columns of a line, so that it fits a terminal.
const WIDTH: usize = 96;

/// The verbs, in the order in which an attachment meets them.
const VERBS: [(&str, &str); 6] = [
    (
        "ADD",
        "attaches the container and prints the result; one that fails leaves nothing behind",
    ),
    (
        "CHECK",
        "compares what there is with what ADD made (CNI 0.4.0 and later)",
    ),
    ("DEL", "removes all that ADD made; what is gone already is no failure"),
    (
        "GC",
        "removes what belongs to attachments that the runtime no longer has (CNI 1.1.0)",
    ),
    ("STATUS", "tells whether ADD could work now (CNI 1.1.0)"),
    ("VERSION", "prints the versions of the specification"),
];

/// Answers a person. `arguments` are those after the program's name.
pub(crate) fn answer(plugin: &Registered, arguments: &[OsString], on_terminal: bool) -> ExitCode {
    let arguments: Vec<&str> = arguments
        .iter()
        .map(|argument| argument.to_str().unwrap_or("?"))
        .collect();
    match arguments.as_slice() {
        [] => {
            let more = format!(
                "'{} --help' describes its configuration, with an example.\n",
                plugin.name
            );
            output::to_stderr(&(output::about_plugin(plugin) + if on_terminal { &more } else { "" }))
        }
        ["--help" | "-h"] => output::to_stdout(&help(plugin)),
        ["--version" | "-V"] => output::to_stdout(&version(plugin)),
        ["--schema"] => output::to_stdout(&(format!("{:#}", plugin.schema()) + "\n")),
        _ => {
            let name = plugin.name;
            output::to_stderr(&format!(
                "{name}: unknown arguments: {}\nusage: {name} [--help | --schema | --version]\n",
                arguments.join(" ")
            ));
            // As other programs say that they were called wrongly.
            ExitCode::from(2)
        }
    }
}

fn version(plugin: &Registered) -> String {
    format!(
        "{} of ferrule {}\nCNI {}\n",
        plugin.name,
        env!("CARGO_PKG_VERSION"),
        Version::ALL.map(Version::as_str).join(", ")
    )
}

fn help(plugin: &Registered) -> String {
    let name = plugin.name;
    let mut text = wrapped(&format!("{name} {}.", plugin.about), 0);
    text += "\n";
    text += &wrapped(
        "It is a CNI plugin: a container runtime starts it, with CNI_COMMAND and other variables in its environment and the \
         configuration on its standard input. With CNI_COMMAND set, arguments mean nothing.",
        0,
    );
    text += "\nCNI_COMMAND\n";
    for (verb, meaning) in VERBS {
        let _ = writeln!(text, "  {verb:<8} {meaning}");
    }
    text += "\nConfiguration\n";
    for row in schema::rows(&plugin.schema()) {
        text += &entry(&row);
    }
    let _ = write!(
        text,
        "\nEnvironment\n{}\nExample, for a file such as /etc/cni/net.d/10-{name}.conflist\n\n{}\n\nArguments\n  \
         --help     this text\n  --schema   the JSON Schema of the configuration\n  --version  the versions of ferrule and of CNI\n",
        entry(&Row {
            key: "CNI_LOG".to_owned(),
            kind: "string".to_owned(),
            default: "\"warn\"".to_owned(),
            meaning: crate::logger::VARIABLE.to_owned(),
        }),
        plugin.example.trim_end(),
    );
    text
}

fn entry(row: &Row) -> String {
    let default = match row.default.as_str() {
        "" => String::new(),
        default => format!(", default {default}"),
    };
    format!("  {} ({}{default})\n{}", row.key, row.kind, wrapped(&row.meaning, 6))
}

/// The text in lines of at most [`WIDTH`] columns, indented.
fn wrapped(text: &str, indent: usize) -> String {
    let mut lines = String::new();
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() && indent + line.len() + word.len() >= WIDTH {
            let _ = writeln!(lines, "{:indent$}{line}", "");
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    if !line.is_empty() {
        let _ = writeln!(lines, "{:indent$}{line}", "");
    }
    lines
}

impl Registered {
    /// The JSON Schema of the plugin's configuration.
    pub(crate) fn schema(&self) -> Value {
        (self.keys)().into_document(self.name, self.about)
    }
}
