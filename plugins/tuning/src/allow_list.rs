//! The administrator's list of allowed sysctls.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use cni_types::{Error, Result};
use regex_lite::Regex;

use crate::sysctl::Setting;

/// One regular expression a line. Where there is no such file, everything is allowed.
const FILE: &str = "/etc/cni/tuning/allowlist.conf";

/// Refuses what the list does not allow.
///
/// # Errors
///
/// The first sysctl that no line matches, and lines that are no regular expressions; the list cannot be read.
pub(crate) fn permit(settings: &[Setting]) -> Result<()> {
    if settings.is_empty() {
        return Ok(());
    }
    match read(Path::new(FILE))? {
        Some(list) => permit_by(&list, settings).map_err(|e| e.with_details(FILE)),
        None => Ok(()),
    }
}

fn read(file: &Path) -> Result<Option<String>> {
    match fs::read(file) {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Error::io(file.display(), &e)),
    }
}

/// As the reference: a key is matched as it is written in the configuration, anywhere in it unless the line is anchored; lines
/// are tried in order, and those after the first match are not looked at; no line is a comment. The texts are the reference's.
fn permit_by(list: &str, settings: &[Setting]) -> Result<()> {
    let lines: Vec<&str> = list.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    for Setting { key, .. } in settings {
        if !is_allowed(&lines, key)? {
            return Err(Error::config(format!(
                "Sysctl {key} is not allowed. Only the following sysctls are allowed: [{}]",
                lines.join(" ")
            )));
        }
    }
    Ok(())
}

fn is_allowed(lines: &[&str], key: &str) -> Result<bool> {
    for line in lines {
        let pattern = Regex::new(line).map_err(|e| Error::config(format!("error parsing regexp: {e}: `{line}`")))?;
        if pattern.is_match(key) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use cni_types::wire;

    use super::*;

    fn verdict(list: &str, keys: &[&str]) -> Result<()> {
        let entries: Vec<String> = keys.iter().map(|key| format!("{key:?}:\"1\"")).collect();
        let conf = wire::parse(format!(r#"{{"sysctl":{{{}}}}}"#, entries.join(",")).as_bytes()).unwrap();
        permit_by(list, &crate::sysctl::read(&conf).unwrap())
    }

    #[test]
    fn a_key_is_matched_as_it_is_written() {
        let list = "^net\\.ipv4\\.conf\\.IFNAME\\.[a-z_]*$\n\n";
        verdict(list, &["net.ipv4.conf.IFNAME.arp_filter"]).unwrap();
        for key in [
            "net/ipv4/conf/IFNAME/arp_filter",
            "net.ipv4.conf.eth0.arp_filter",
            "net.ipv4.ip_forward",
        ] {
            let msg = format!(
                "Sysctl {key} is not allowed. Only the following sysctls are allowed: [^net\\.ipv4\\.conf\\.IFNAME\\.[a-z_]*$]"
            );
            assert_eq!(
                verdict(list, &["net.ipv4.conf.IFNAME.arp_ignore", key]),
                Err(Error::config(msg))
            );
        }
    }

    #[test]
    fn lines_are_trimmed_and_need_not_match_all_of_a_key() {
        for list in ["forw", "  forw  ", "nomatch\r\nforw\r\n", "forw\n(broken"] {
            verdict(list, &["net.ipv4.ip_forward"]).unwrap();
        }
        for (list, shown) in [("# forw", "# forw"), ("", ""), ("nomatch\nfoo bar", "nomatch foo bar")] {
            let msg =
                format!("Sysctl net.ipv4.ip_forward is not allowed. Only the following sysctls are allowed: [{shown}]");
            assert_eq!(verdict(list, &["net.ipv4.ip_forward"]), Err(Error::config(msg)));
        }
    }

    #[test]
    fn a_broken_line_is_told() {
        let error = verdict("nomatch\n(forw", &["net.ipv4.ip_forward"]).unwrap_err();
        assert!(
            error.msg.starts_with("error parsing regexp: ") && error.msg.ends_with("`(forw`"),
            "{error}"
        );
    }
}
