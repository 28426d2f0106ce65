//! The one place that writes to standard output.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::process::ExitCode;

use cni_types::{Error, Version};
use serde::Serialize;
use serde_json::ser::{PrettyFormatter, Serializer};
use serde_json::{Value as Document, json};

use crate::plugin::Registered;

/// Prints a document as the reference does, indented by four spaces, in one write: a reader gets all of it or none.
pub(crate) fn print(document: &Document) -> Result<(), Unwritten> {
    let mut text = Vec::new();
    document
        .serialize(&mut Serializer::with_formatter(
            &mut text,
            PrettyFormatter::with_indent(b"    "),
        ))
        .map_err(|e| unwritten(e.into(), 0))?;
    text.push(b'\n');
    // Without a buffer, so as to know what has gone out.
    let own = io::stdout().as_fd().try_clone_to_owned().map_err(|e| unwritten(e, 0))?;
    write_whole(&mut File::from(own), &text)
}

/// A document that did not get out.
#[derive(Debug)]
pub(crate) struct Unwritten {
    pub(crate) error: io::Error,
    /// Whether its beginning did: another one must not follow then.
    pub(crate) begun: bool,
}

fn write_whole(to: &mut impl Write, text: &[u8]) -> Result<(), Unwritten> {
    let mut written = 0;
    while let Some(rest) = text.get(written..).filter(|rest| !rest.is_empty()) {
        match to.write(rest) {
            Ok(0) => return Err(unwritten(io::ErrorKind::WriteZero.into(), written)),
            Ok(more) => written = written.saturating_add(more),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(unwritten(e, written)),
        }
    }
    Ok(())
}

fn unwritten(error: io::Error, written: usize) -> Unwritten {
    Unwritten {
        error,
        begun: written > 0,
    }
}

/// The error object (section "Error").
pub(crate) fn error_object(error: &Error, version: Version) -> Document {
    let mut object = json!({ "cniVersion": version.as_str(), "code": error.code, "msg": error.msg });
    if let (Some(object), false) = (object.as_object_mut(), error.details.is_empty()) {
        object.insert("details".to_owned(), Document::from(error.details.as_str()));
    }
    object
}

/// The answer to VERSION (section "VERSION").
pub(crate) fn version_object() -> Document {
    let supported: Vec<&str> = Version::ALL.iter().map(|version| version.as_str()).collect();
    json!({ "cniVersion": Version::LATEST.as_str(), "supportedVersions": supported })
}

/// The release of the reference suite whose behaviour the plugins have.
const REFERENCE: &str = "1.9.1";

/// What a plugin is, for a person who started it by hand.
///
/// And for programs: nerdctl takes what follows "CNI firewall plugin " in a line for a semantic version and leaves
/// `ingressPolicy` out if that is below 1.1.0 or none; Nomad takes the first text that looks like a version. So the line is
/// the reference's with its version, and ours as build metadata.
pub(crate) fn about_plugin(plugin: &Registered) -> String {
    let versions: Vec<&str> = Version::ALL.iter().map(|version| version.as_str()).collect();
    format!(
        "CNI {} plugin v{REFERENCE}+ferrule.{}\nIt {}.\nIt is started by a container runtime, with CNI_COMMAND in its environment and a \
         network configuration on its standard input.\nCNI protocol versions supported: {}\n",
        plugin.name,
        env!("CARGO_PKG_VERSION"),
        plugin.about,
        versions.join(", ")
    )
}

/// Tells a person who started the suite's executable by hand what it is.
pub(crate) fn explain_suite(suite: &[Registered]) -> ExitCode {
    let plugins: String = suite
        .iter()
        .map(|plugin| format!("  {:<12}{}\n", plugin.name, plugin.about))
        .collect();
    let text = format!(
        "ferrule {}: CNI plugins in one executable. Started under the name of a plugin it is that plugin.\n\n{plugins}\n\
         'list' as its argument prints the names.\n",
        env!("CARGO_PKG_VERSION")
    );
    to_stderr(&text)
}

/// Prints to a person. Nothing of the protocol goes this way: see [`print`].
pub(crate) fn to_stdout(text: &str) -> ExitCode {
    exit_code(io::stdout().write_all(text.as_bytes()))
}

/// Prints to a person where standard output is the runtime's.
pub(crate) fn to_stderr(text: &str) -> ExitCode {
    exit_code(io::stderr().write_all(text.as_bytes()))
}

fn exit_code(written: io::Result<()>) -> ExitCode {
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes `room` bytes, three at a time, and fails then.
    struct Full {
        room: usize,
        taken: Vec<u8>,
    }

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let part = bytes.len().min(3).min(self.room);
            if part == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.room -= part;
            self.taken.extend(&bytes[..part]);
            Ok(part)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_document_that_was_begun_is_told_from_one_that_was_not() {
        for (room, outcome) in [(9, None), (8, Some(true)), (1, Some(true)), (0, Some(false))] {
            let mut full = Full { room, taken: vec![] };
            let written = write_whole(&mut full, b"a result!");
            assert_eq!(written.err().map(|unwritten| unwritten.begun), outcome, "{room}");
            assert_eq!(full.taken, &b"a result!"[..room]);
        }
    }
}
