//! A call read to its end and not made: all that judges foreign input, without the deeds that follow.
//!
//! For fuzzers, and for tests with what they found. Nothing is changed on the machine and nothing is printed.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use cni_types::{Attachment, NetConf, Result};

use crate::context::Call;
use crate::dispatch::{allows, variables};
use crate::environment::Environment;
use crate::plugin::Plugin;

/// Reads a call of `P`, for DEL and GC and then as its own verb does.
///
/// `input` is a line for each variable, such as `CNI_COMMAND=ADD`, an empty line, and what the runtime writes to standard
/// input. Where there is no empty line there are no variables.
///
/// # Errors
///
/// What the runtime would be told.
pub fn rehearse<P: Plugin>(input: &[u8]) -> Result<()> {
    let (head, stdin) = split(input);
    let env = environment(head);
    let verb = env.verb()?;
    let conf = NetConf::parse(stdin)?;
    let identity = variables(&env, verb)?;
    allows(conf.cni_version, verb)?;
    conf.valid_attachments()?;
    P::cleanup(&conf);
    let Some((container_id, ifname)) = identity else {
        return Ok(());
    };
    let attachment = Attachment {
        network: conf.name.clone(),
        container_id,
        ifname,
    };
    let call = Call::new(attachment, env.args).with_prev_result(conf.prev_result()?);
    P::config(&conf, &call).map(|_| ())
}

fn split(input: &[u8]) -> (&[u8], &[u8]) {
    let end = input.windows(2).position(|pair| pair == b"\n\n");
    end.and_then(|end| Some((input.get(..end)?, input.get(end + 2..)?)))
        .unwrap_or((&[], input))
}

fn environment(head: &[u8]) -> Environment {
    let lines = head.split(|byte| *byte == b'\n');
    let pairs = lines.filter_map(|line| {
        let equals = line.iter().position(|byte| *byte == b'=')?;
        Some((line.get(..equals)?, line.get(equals + 1..)?))
    });
    let variables: Vec<_> = pairs.collect();
    Environment::of(|name| {
        let told = variables.iter().find(|(key, _)| *key == name.as_bytes());
        told.map(|(_, value)| OsStr::from_bytes(value).to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_end_where_the_empty_line_is() {
        assert_eq!(split(b"A=1\nB=2\n\n{}\n\n"), (&b"A=1\nB=2"[..], &b"{}\n\n"[..]));
        assert_eq!(split(b"{}"), (&b""[..], &b"{}"[..]));
        let env = environment(b"CNI_COMMAND=ADD\nCNI_ARGS=A=1;B=2\nrubbish");
        assert_eq!((env.command.as_str(), env.args.as_str()), ("ADD", "A=1;B=2"));
    }
}
