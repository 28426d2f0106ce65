//! `dns` from a resolv.conf, as the reference reads it.

use std::fs;
use std::path::Path;

use cni_types::{Code, Dns, Error, Result};

/// Reads a resolv.conf: `nameserver`, `domain`, and the words of all `search` and `options` lines together.
///
/// # Errors
/// [`Code::IO_FAILURE`] with the reference's text where the file cannot be read.
pub(crate) fn read(path: &Path) -> Result<Dns> {
    let text = fs::read_to_string(path).map_err(|e| {
        let why = nix::errno::Errno::from_raw(e.raw_os_error().unwrap_or_default()).desc();
        let why = if e.raw_os_error().is_some() {
            lower_first(why)
        } else {
            e.to_string()
        };
        Error::new(Code::IO_FAILURE, format!("open {}: {why}", path.display())).with_details("ipam.resolvConf")
    })?;
    Ok(parse(&text))
}

fn parse(text: &str) -> Dns {
    let mut dns = Dns::default();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let keyword = words.next().unwrap_or_default();
        let mut words = words.map(str::to_owned);
        match keyword {
            "nameserver" => dns.nameservers.extend(words.next()),
            "domain" => dns.domain = words.next().unwrap_or(dns.domain),
            "search" => dns.search.extend(words),
            "options" => dns.options.extend(words),
            _ => {}
        }
    }
    dns
}

/// Go writes an error number's text in lower case.
fn lower_first(text: &str) -> String {
    let mut chars = text.chars();
    chars
        .next()
        .map(|first| first.to_ascii_lowercase())
        .into_iter()
        .chain(chars)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_add_up_and_comments_are_none() {
        let dns = parse(
            "nameserver 9.9.9.9\n# x\n;y\nsearch a.b c.d\ndomain ex.org\noptions ndots:2 rotate\noptions edns0\n\
             nameserver ::1 trailing\nsortlist 1.2.3.4\nsearch z.z\nnameserver\n",
        );
        assert_eq!(dns.nameservers, ["9.9.9.9", "::1"]);
        assert_eq!(dns.search, ["a.b", "c.d", "z.z"]);
        assert_eq!(dns.options, ["ndots:2", "rotate", "edns0"]);
        assert_eq!(dns.domain, "ex.org");
    }

    #[test]
    fn a_missing_file_has_the_text_of_the_reference() {
        let error = read(Path::new("/nowhere/resolv.conf")).unwrap_err();
        assert_eq!(error.msg, "open /nowhere/resolv.conf: no such file or directory");
    }
}
