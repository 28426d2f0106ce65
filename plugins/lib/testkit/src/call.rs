//! Calling a plugin as a runtime does.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

/// How a plugin's process ended.
#[derive(Debug)]
pub struct Reply {
    /// The exit code; `None` after a signal.
    pub code: Option<i32>,
    /// Standard output, exactly.
    pub stdout: String,
    /// Standard error, exactly.
    pub stderr: String,
}

impl Reply {
    /// The one document on standard output. Panics if there is none, more than one, or the exit code is not zero.
    #[track_caller]
    pub fn success(&self) -> Value {
        assert_eq!(self.code, Some(0), "{self:?}");
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// Asserts success without any output, as of DEL, CHECK, GC and STATUS.
    #[track_caller]
    pub fn silent(&self) {
        assert_eq!((self.code, self.stdout.as_str()), (Some(0), ""), "{self:?}");
    }

    /// The code and message of the one error object. Panics if there is none or the exit code is not one.
    #[track_caller]
    pub fn error(&self) -> (u64, String) {
        assert_eq!(self.code, Some(1), "{self:?}");
        let object: Value = serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {self:?}"));
        let (code, msg) = (object["code"].as_u64(), object["msg"].as_str());
        assert!(
            object["cniVersion"].is_string(),
            "an error object names its version: {self:?}"
        );
        (
            code.unwrap_or_else(|| panic!("no code: {self:?}")),
            msg.unwrap_or_else(|| panic!("no msg: {self:?}")).to_owned(),
        )
    }
}

/// Runs the executable `plugin` with exactly the given CNI variables (and PATH) and `stdin`.
pub fn call_plugin(plugin: &Path, variables: &[(&str, &str)], stdin: &str) -> Reply {
    let mut child = start_plugin(plugin, variables);
    match child.stdin.take().expect("stdin").write_all(stdin.as_bytes()) {
        // A plugin that refuses its environment need not read its input.
        Err(e) if e.kind() == ErrorKind::BrokenPipe => {}
        written => written.expect("the plugin's stdin"),
    }
    let output = child.wait_with_output().expect("the plugin's end");
    Reply {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Starts `plugin`, its three streams piped, with exactly the given variables and PATH.
pub(crate) fn start_plugin(plugin: &Path, variables: &[(&str, &str)]) -> Child {
    let mut command = Command::new(plugin);
    command.env_clear();
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.envs(variables.iter().copied());
    command.stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap_or_else(|e| panic!("{}: {e}", plugin.display()))
}

/// A plugin directory as it is installed: `executable` linked into `directory` under each of `names`.
pub fn plugin_directory(directory: &Path, executable: &Path, names: &[&str]) -> PathBuf {
    let bin = directory.join("bin");
    fs::create_dir_all(&bin).expect("a plugin directory");
    // One copy, as a hard link cannot cross file systems; and made by another process: a file that is open for writing in
    // this one is so in every child that another test starts meanwhile, and cannot be executed.
    let ferrule = bin.join("ferrule");
    let copied = Command::new("cp").arg(executable).arg(&ferrule).status().expect("cp");
    assert!(copied.success(), "a copy of the executable");
    for name in names {
        fs::hard_link(&ferrule, bin.join(name)).expect("a link under the plugin's name");
    }
    bin
}
