//! The plugins in the plugin directory.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cni_types::{Error, Result};
use serde_json::Value;
use skel::Registered;

use super::{Finding, Level};

/// Where this executable is.
pub(super) fn own_directory() -> Result<PathBuf> {
    let own = env::current_exe().map_err(|e| Error::io("this executable", &e))?;
    own.parent()
        .map(Path::to_owned)
        .ok_or_else(|| Error::internal(format!("{} is in no directory", own.display())))
}

pub(super) fn examine(bin_dir: &Path, suite: &[Registered]) -> Vec<Finding> {
    suite
        .iter()
        .map(|plugin| examine_one(&bin_dir.join(plugin.name), plugin.name))
        .collect()
}

fn examine_one(file: &Path, name: &str) -> Finding {
    let outcome = ask(file);
    let newest = outcome
        .as_ref()
        .ok()
        .and_then(|answer| answer["cniVersion"].as_str().map(str::to_owned));
    match (newest, outcome) {
        (Some(version), _) => Finding::ok(name, format!("{} speaks CNI {version}", file.display())),
        (None, outcome) => {
            let why = outcome.map_or_else(|e| e, |_| "its answer to VERSION names no version".to_owned());
            let directory = file.parent().unwrap_or(file).display();
            let remedy = format!("scripts/install --bin-dir {directory}");
            Finding::new(name, Level::Fail, format!("{}: {why}", file.display()), remedy)
        }
    }
}

/// What a plugin answers to VERSION.
#[allow(
    clippy::disallowed_methods,
    reason = "whether a plugin works is found out by starting it as a runtime does"
)]
fn ask(plugin: &Path) -> std::result::Result<Value, String> {
    let mut command = Command::new(plugin);
    command.env_clear().env("CNI_COMMAND", "VERSION").stdin(Stdio::null());
    let output = command.output().map_err(|e| e.to_string())?;
    if !output.status.success() {
        return Err(format!("VERSION ended with {}", output.status));
    }
    serde_json::from_slice(&output.stdout).map_err(|e| format!("its answer to VERSION is no JSON: {e}"))
}
