//! Delegation: an interface plugin has an IPAM plugin assign its addresses (section 4, "Plugin delegation").

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;

use cni_types::{CniResult, Code, Error, NetConf, Result, wire};

use crate::dispatch::Request;
use crate::environment::Verb;
use crate::logger;
use crate::plugin::Registered;
use crate::undo::Undo;

/// The means to call a delegate: the request as it came, to be passed on verbatim.
#[derive(Clone, Copy)]
pub(crate) struct Delegation<'a>(pub(crate) &'a Request);

/// A delegate that was found.
enum Delegate {
    /// One of this very executable: called without starting a process, which is most of the time of an ADD.
    Own(&'static Registered),
    Foreign(PathBuf),
}

/// How the reference's host-local refuses an attachment that holds an address already. A DEL in answer would free the
/// address of the one that lives.
const DUPLICATE: &str = "duplicate allocation is not allowed";

impl Delegation<'_> {
    /// ADD, with its DEL registered for undo.
    pub(crate) fn add(self, conf: &NetConf, undo: &mut Undo) -> Result<CniResult> {
        let delegate = self.find(conf)?;
        let outcome = self.run(&delegate, Verb::Add).and_then(|stdout| {
            let result = wire::parse(&stdout).and_then(|value| CniResult::from_value(&value, conf.cni_version));
            result.map_err(|e| Error {
                code: Code::DECODING_FAILURE,
                ..e.context(format!("the result of {}", name_of(conf)))
            })
        });
        match outcome {
            Ok(result) => {
                let request = self.0.clone();
                undo.push("addresses of the IPAM plugin", move || {
                    Delegation(&request).run(&delegate, Verb::Del).map(drop)
                });
                Ok(result)
            }
            Err(e) => {
                // Ours leave nothing behind when they fail; of others that is not known.
                let may_hold_something = matches!(delegate, Delegate::Foreign(_)) && !e.msg.contains(DUPLICATE);
                if may_hold_something && let Err(undo_error) = self.run(&delegate, Verb::Del) {
                    log::warn!("after the failed ADD of {}: {undo_error}", name_of(conf));
                }
                Err(e)
            }
        }
    }

    /// Any verb whose output does not matter.
    pub(crate) fn call(self, conf: &NetConf, verb: Verb) -> Result<Vec<u8>> {
        self.run(&self.find(conf)?, verb)
    }

    fn find(self, conf: &NetConf) -> Result<Delegate> {
        let name = name_of(conf);
        let file = find_in(&self.0.env.path, name)?;
        let own = self
            .0
            .suite
            .iter()
            .find(|plugin| plugin.name == name)
            .filter(|_| is_this_executable(&file));
        Ok(own.map_or(Delegate::Foreign(file), Delegate::Own))
    }

    fn run(self, delegate: &Delegate, verb: Verb) -> Result<Vec<u8>> {
        match delegate {
            Delegate::Own(plugin) => {
                let mut request = self.0.clone();
                request.env.command = verb.as_str().to_owned();
                log::debug!("delegate {} {}: in this process", plugin.name, verb.as_str());
                let reply = logger::speaking_as(plugin.name, || (plugin.call)(&request));
                log::debug!("delegate {} {}: done", plugin.name, verb.as_str());
                let document = reply?.into_document();
                Ok(document
                    .map(|document| document.to_string().into_bytes())
                    .unwrap_or_default())
            }
            Delegate::Foreign(file) => {
                log::debug!("delegate {} {}: started", file.display(), verb.as_str());
                let output = start(file, verb, &self.0.stdin).map_err(|e| Error::io(file.display(), &e))?;
                log::debug!("delegate {} {}: {}", file.display(), verb.as_str(), output.status);
                if output.status.success() {
                    Ok(output.stdout)
                } else {
                    Err(failure(file, &output))
                }
            }
        }
    }
}

fn name_of(conf: &NetConf) -> &str {
    conf.ipam_type.as_deref().unwrap_or_default()
}

/// The executable of a plugin: the first regular file of that name in the directories of `CNI_PATH`.
fn find_in(path: &OsStr, name: &str) -> Result<PathBuf> {
    if name.is_empty() {
        return Err(Error::config("ipam.type: no plugin name provided"));
    }
    if name.contains('/') {
        return Err(Error::config(format!("ipam.type: invalid plugin name: {name}")));
    }
    let directories: Vec<PathBuf> = std::env::split_paths(path)
        .filter(|directory| !directory.as_os_str().is_empty())
        .collect();
    let candidates = directories.iter().map(|directory| directory.join(name));
    candidates.into_iter().find(|file| file.is_file()).ok_or_else(|| {
        let directories: Vec<String> = directories
            .iter()
            .map(|directory| directory.display().to_string())
            .collect();
        Error::config(format!(
            "failed to find plugin {name:?} in path [{}]",
            directories.join(" ")
        ))
        .with_details("ipam.type must name an executable in one of the directories of CNI_PATH")
    })
}

fn is_this_executable(file: &Path) -> bool {
    let identity = |path: &Path| fs::metadata(path).map(|meta| (meta.dev(), meta.ino()));
    matches!((identity(file), identity(Path::new("/proc/self/exe"))), (Ok(theirs), Ok(ours)) if theirs == ours)
}

/// Runs the executable with our own environment (so that TRACEPARENT and the like reach it) and another command.
#[allow(clippy::disallowed_methods, reason = "the one place that starts a plugin")]
fn start(file: &Path, verb: Verb, stdin: &[u8]) -> io::Result<Output> {
    let mut command = Command::new(file);
    command
        .env("CNI_COMMAND", verb.as_str())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit());
    let mut child = command.spawn()?;
    let pipe = child.stdin.take();
    thread::scope(|scope| {
        // Beside the reading, so that neither side can wait for the other. A delegate need not read its input.
        scope.spawn(move || pipe.map(|mut pipe| pipe.write_all(stdin)));
        child.wait_with_output()
    })
}

/// The delegate's error object, or an account of what it did instead.
fn failure(file: &Path, output: &Output) -> Error {
    let object = wire::parse(&output.stdout).ok();
    let told = object.as_ref().and_then(|object| {
        let code = wire::decode::<u32>(object.field("code")?).ok()?;
        Some((
            code,
            object.field("msg")?.as_str()?,
            object.field("details").and_then(|details| details.as_str()),
        ))
    });
    if let Some((code, msg, details)) = told {
        return Error::new(Code(code), msg).with_details(details.unwrap_or_default());
    }
    let end = match (output.status.code(), output.status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, signal) => format!("signal {}", signal.unwrap_or_default()),
    };
    let text = String::from_utf8_lossy(&output.stdout);
    Error::internal(format!(
        "{}: netplugin failed with no error message: {end}",
        file.display()
    ))
    .with_details(text.chars().take(1000).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(stdout: &str, status: i32) -> Error {
        let output = Output {
            status: std::process::ExitStatus::from_raw(status),
            stdout: stdout.into(),
            stderr: vec![],
        };
        failure(Path::new("/opt/cni/bin/ipam"), &output)
    }

    #[test]
    fn a_delegates_error_is_passed_on() {
        let error = failed(
            r#"{"cniVersion":"1.0.0","code":11,"msg":"later","details":"why"}"#,
            1 << 8,
        );
        assert_eq!(error, Error::new(Code::TRY_AGAIN_LATER, "later").with_details("why"));
    }

    #[test]
    fn an_end_without_error_object_is_told() {
        assert_eq!(
            failed("rubbish", 3 << 8).msg,
            "/opt/cni/bin/ipam: netplugin failed with no error message: exit code 3"
        );
        assert_eq!(failed("rubbish", 3 << 8).details, "rubbish");
        assert!(failed("", 9).msg.ends_with("signal 9"));
        assert!(
            failed(r#"{"code":-1,"msg":"x"}"#, 1 << 8)
                .msg
                .contains("no error message")
        );
    }

    #[test]
    fn a_plugin_is_found_by_its_bare_name_alone() {
        assert_eq!(
            find_in(OsStr::new("/nowhere:/bin"), "sh").unwrap(),
            Path::new("/bin/sh")
        );
        for (path, name, msg) in [
            ("/bin", "", "ipam.type: no plugin name provided"),
            ("/bin", "../bin/sh", "ipam.type: invalid plugin name: ../bin/sh"),
            ("/x:/y", "sh", r#"failed to find plugin "sh" in path [/x /y]"#),
            ("/", "bin", r#"failed to find plugin "bin" in path [/]"#),
        ] {
            let error = find_in(OsStr::new(path), name).unwrap_err();
            assert_eq!((error.code, error.msg.as_str()), (Code::INVALID_CONFIG, msg));
        }
    }
}
