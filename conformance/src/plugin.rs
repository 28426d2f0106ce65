//! Executing one plugin: the specification's section 2, "Execution protocol".

use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use serde_json::Value;

/// A CNI verb, the value of `CNI_COMMAND`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// Attach a container.
    Add,
    /// Compare an attachment with what ADD made.
    Check,
    /// Detach a container.
    Del,
    /// Remove what is held for attachments that do not exist any more.
    Gc,
    /// Say whether ADD would work.
    Status,
}

impl Verb {
    /// The word that goes into `CNI_COMMAND`.
    pub fn as_str(self) -> &'static str {
        match self {
            Verb::Add => "ADD",
            Verb::Check => "CHECK",
            Verb::Del => "DEL",
            Verb::Gc => "GC",
            Verb::Status => "STATUS",
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a plugin did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    /// None of the directories holds an executable of this name.
    #[error("no plugin {plugin_type:?} in {directories}", directories = display_all(directories))]
    NotFound {
        /// The plugin's `type`.
        plugin_type: String,
        /// Where it was looked for.
        directories: Vec<PathBuf>,
    },
    /// The plugin could not be started, or its streams broke.
    #[error("plugin {plugin_type:?}: {source}")]
    Io {
        /// The plugin's `type`.
        plugin_type: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The plugin failed and said why, in an error object.
    #[error("plugin {plugin_type:?} failed ({verb}): {msg}{details}", details = display_details(details))]
    Failed {
        /// The plugin's `type`.
        plugin_type: String,
        /// What it was asked for.
        verb: Verb,
        /// The object's `code`.
        code: u64,
        /// The object's `msg`.
        msg: String,
        /// The object's `details`; empty for none.
        details: String,
    },
    /// The plugin broke the protocol: no error object when it failed, or no result when it succeeded.
    #[error("plugin {plugin_type:?} ({verb}): {problem}")]
    Protocol {
        /// The plugin's `type`.
        plugin_type: String,
        /// What it was asked for.
        verb: Verb,
        /// What is wrong with its answer.
        problem: String,
    },
}

fn display_all(directories: &[PathBuf]) -> String {
    let all: Vec<_> = directories.iter().map(|d| d.to_string_lossy()).collect();
    all.join(", ")
}

fn display_details(details: &str) -> String {
    if details.is_empty() {
        String::new()
    } else {
        format!("; {details}")
    }
}

/// Finds the executable of a plugin in the first directory that has it.
///
/// # Errors
/// [`PluginError::NotFound`].
pub fn find(plugin_type: &str, directories: &[PathBuf]) -> Result<PathBuf, PluginError> {
    let candidates = directories.iter().map(|directory| directory.join(plugin_type));
    candidates
        .into_iter()
        .find(|path| path.is_file())
        .ok_or_else(|| PluginError::NotFound {
            plugin_type: plugin_type.to_owned(),
            directories: directories.to_vec(),
        })
}

/// Runs a plugin with the `CNI_*` variables besides CNI_COMMAND, and its configuration on standard input. What it
/// writes to standard error goes to ours. Returns what an ADD printed, and `None` for the other verbs.
///
/// # Errors
/// All but [`PluginError::NotFound`].
pub fn execute(
    plugin: &Path,
    verb: Verb,
    variables: &[(&str, String)],
    conf: &Value,
) -> Result<Option<Value>, PluginError> {
    let plugin_type = plugin.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let io = |source| PluginError::Io {
        plugin_type: plugin_type.clone(),
        source,
    };
    let (succeeded, stdout) = run(plugin, verb, variables, &conf.to_string()).map_err(io)?;
    interpret(&plugin_type, verb, succeeded, &stdout)
}

#[allow(clippy::disallowed_methods, reason = "the one place where a runtime starts plugins")]
fn run(plugin: &Path, verb: Verb, variables: &[(&str, String)], stdin: &str) -> io::Result<(bool, Vec<u8>)> {
    let mut child = Command::new(plugin)
        .env("CNI_COMMAND", verb.as_str())
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let pipe = child.stdin.take();
    // A plugin may print before it has read everything: both pipes have to be served at once.
    let (output, written) = thread::scope(|scope| {
        let writer = scope.spawn(move || pipe.map_or(Ok(()), |mut pipe| pipe.write_all(stdin.as_bytes())));
        (child.wait_with_output(), writer.join())
    });
    let output = output?;
    match written {
        // A plugin that refuses its environment need not read its input.
        Ok(Err(e)) if e.kind() != io::ErrorKind::BrokenPipe => Err(e),
        _ => Ok((output.status.success(), output.stdout)),
    }
}

fn interpret(plugin_type: &str, verb: Verb, succeeded: bool, stdout: &[u8]) -> Result<Option<Value>, PluginError> {
    let protocol = |problem: String| PluginError::Protocol {
        plugin_type: plugin_type.to_owned(),
        verb,
        problem,
    };
    if succeeded && verb != Verb::Add {
        return Ok(None);
    }
    let document: Value = serde_json::from_slice(stdout).map_err(|e| {
        let printed = String::from_utf8_lossy(stdout);
        protocol(format!("printed no single JSON document ({e}): {:?}", printed.trim()))
    })?;
    if succeeded {
        return match document {
            Value::Object(_) => Ok(Some(document)),
            _ => Err(protocol("printed a result that is no object".to_owned())),
        };
    }
    let text = |key: &str| document.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    match document.get("code").and_then(Value::as_u64) {
        Some(code) => Err(PluginError::Failed {
            plugin_type: plugin_type.to_owned(),
            verb,
            code,
            msg: text("msg"),
            details: text("details"),
        }),
        None => Err(protocol(format!(
            "failed with a document that is no error object: {document}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(verb: Verb, succeeded: bool, stdout: &str) -> Result<Option<Value>, String> {
        interpret("p", verb, succeeded, stdout.as_bytes()).map_err(|e| e.to_string())
    }

    #[test]
    fn only_add_has_a_result() {
        let result = answer(Verb::Add, true, r#"{"cniVersion":"1.0.0"}"#);
        assert_eq!(result, Ok(Some(serde_json::json!({"cniVersion":"1.0.0"}))));
        assert_eq!(answer(Verb::Del, true, ""), Ok(None));
        assert_eq!(answer(Verb::Check, true, "noise"), Ok(None));
    }

    #[test]
    fn an_error_object_is_passed_on() {
        let failed = answer(Verb::Del, false, r#"{"code":11,"msg":"busy","details":"try later"}"#);
        assert_eq!(failed, Err(r#"plugin "p" failed (DEL): busy; try later"#.to_owned()));
    }

    #[test]
    fn a_broken_protocol_is_an_error() {
        for (succeeded, stdout, problem) in [
            (true, "", "no single JSON document"),
            (true, "{} {}", "no single JSON document"),
            (true, "[]", "no object"),
            (false, "oops", "no single JSON document"),
            (false, r#"{"msg":"no code"}"#, "no error object"),
        ] {
            let refused = answer(Verb::Add, succeeded, stdout).unwrap_err();
            assert!(refused.contains(problem), "{stdout:?}: {refused}");
        }
    }

    #[test]
    fn a_missing_plugin_names_the_directories() {
        let missing = find("no-such-plugin", &["/a".into(), "/b".into()]).unwrap_err();
        assert_eq!(missing.to_string(), r#"no plugin "no-such-plugin" in /a, /b"#);
    }
}
