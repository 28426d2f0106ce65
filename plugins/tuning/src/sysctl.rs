//! The sysctls of a configuration: which, and where they are.

use cni_types::wire::{self, Value};
use cni_types::{Error, IfName, Result};

/// Stands for the name of the container's interface.
const IFNAME: &str = "IFNAME";

/// A sysctl as the configuration names it, and the value that it shall have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Setting {
    /// As written.
    pub(crate) key: String,
    pub(crate) value: String,
    /// The paths below /proc/sys that the key may mean, the likeliest first.
    paths: Vec<String>,
}

/// A sysctl found in the container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    /// Below /proc/sys/net.
    pub(crate) path: String,
    pub(crate) wanted: String,
    /// The value that it has; `None` where it can only be written.
    pub(crate) now: Option<String>,
}

/// Reads `sysctl` and `args.cni.sysctl`, whose values win.
///
/// # Errors
///
/// Keys outside of `net`, keys said twice in one of the two, and values that are no strings. The texts are the reference's.
pub(crate) fn read(conf: &Value) -> Result<Vec<Setting>> {
    let mut settings = settings("sysctl", conf.field("sysctl"))?;
    let of_args = conf.field("args").and_then(|args| args.field("cni")?.field("sysctl"));
    for winner in self::settings("args.cni.sysctl", of_args)? {
        match settings.iter_mut().find(|setting| setting.paths == winner.paths) {
            Some(setting) => *setting = winner,
            None => settings.push(winner),
        }
    }
    Ok(settings)
}

fn settings(name: &str, value: Option<&Value>) -> Result<Vec<Setting>> {
    let Some(value) = value else { return Ok(Vec::new()) };
    let Some(object) = value.as_object() else {
        return Err(Error::config(format!(
            "{name}: invalid type, expected an object of strings"
        )));
    };
    let mut settings: Vec<Setting> = Vec::new();
    // To Go, null is an empty text, and writing that does nothing.
    for (key, value) in object.entries().filter(|(_, value)| **value != Value::Null) {
        let value = wire::decode::<String>(value).map_err(|e| Error::config(format!("{name}: {key}: {e}")))?;
        let setting = Setting::new(key, value).map_err(|e| e.with_details(name))?;
        if settings.iter().any(|other| other.paths == setting.paths) {
            return Err(duplicated(key));
        }
        settings.push(setting);
    }
    Ok(settings)
}

/// The refusal of a sysctl that is set twice, be it by two spellings.
pub(crate) fn duplicated(key: &str) -> Error {
    Error::config("duplicated sysctl keys are not allowed").with_details(key)
}

impl Setting {
    fn new(key: &str, value: String) -> Result<Setting> {
        let paths: Vec<String> = readings(key).into_iter().filter(|path| is_below_net(path)).collect();
        if paths.is_empty() {
            return Err(Error::config(format!(
                "invalid net sysctl key: {:?}",
                key.replace('.', "/")
            )));
        }
        Ok(Setting {
            key: key.to_owned(),
            value,
            paths,
        })
    }

    /// The paths below /proc/sys/net to look at, the likeliest first.
    pub(crate) fn paths(&self, ifname: &IfName) -> Vec<String> {
        let below_net = |path: &String| {
            let parts = path.split('/').skip(1);
            let named = parts.map(|part| if part == IFNAME { ifname.as_str() } else { part });
            named.collect::<Vec<_>>().join("/")
        };
        self.paths.iter().map(below_net).collect()
    }
}

/// What a key may mean as a path. With dots alone, or with slashes alone, that is clear. Where it has both, the separator is
/// whichever comes first and the other one a dot in a name, as in sysctl(8); or else both are, as in the reference.
fn readings(key: &str) -> Vec<String> {
    let key = key.strip_prefix('/').unwrap_or(key);
    let reference = key.replace('.', "/");
    let first = key.find(['.', '/']).and_then(|at| key.get(at..)?.chars().next());
    let sysctl8 = match first {
        Some('.') => key.chars().map(swapped).collect(),
        _ => key.to_owned(),
    };
    let mut readings = vec![sysctl8];
    if !readings.contains(&reference) {
        readings.push(reference);
    }
    readings
}

fn swapped(c: char) -> char {
    match c {
        '.' => '/',
        '/' => '.',
        other => other,
    }
}

fn is_below_net(path: &str) -> bool {
    let is_name = |part: &str| !matches!(part, "" | "." | "..") && !part.contains('\0');
    path.strip_prefix("net/")
        .is_some_and(|rest| rest.split('/').all(is_name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Vec<Setting>> {
        read(&wire::parse(text.as_bytes()).unwrap())
    }

    fn paths(key: &str, ifname: &str) -> Vec<String> {
        Setting::new(key, String::new())
            .unwrap()
            .paths(&ifname.parse().unwrap())
    }

    #[test]
    fn keys_are_read_with_dots_and_with_slashes() {
        for (key, expected) in [
            ("net.ipv4.ip_forward", &["ipv4/ip_forward"][..]),
            ("net/ipv4/ip_forward", &["ipv4/ip_forward"]),
            ("/net/ipv4/ip_forward", &["ipv4/ip_forward"]),
            ("net.core.somaxconn", &["core/somaxconn"]),
            ("net.ipv4.conf.IFNAME.arp_filter", &["ipv4/conf/eth0.5/arp_filter"]),
            ("net/ipv4/conf/IFNAME/arp_filter", &["ipv4/conf/eth0.5/arp_filter"]),
            (
                "net/ipv4/conf/eth0.5/arp_filter",
                &["ipv4/conf/eth0.5/arp_filter", "ipv4/conf/eth0/5/arp_filter"],
            ),
            (
                "net.ipv4.conf.eth0/5.arp_filter",
                &["ipv4/conf/eth0.5/arp_filter", "ipv4/conf/eth0/5/arp_filter"],
            ),
            (
                "net.ipv4.conf.eth0/arp_filter",
                &["ipv4/conf/eth0.arp_filter", "ipv4/conf/eth0/arp_filter"],
            ),
            ("net.ipv4.conf.xIFNAME.y", &["ipv4/conf/xIFNAME/y"]),
        ] {
            assert_eq!(paths(key, "eth0.5"), expected, "{key}");
        }
    }

    #[test]
    fn only_the_network_is_tuned() {
        for (key, shown) in [
            ("kernel.hostname", "kernel/hostname"),
            ("net", "net"),
            ("", ""),
            ("netfoo.x", "netfoo/x"),
            ("NET.ipv4.ip_forward", "NET/ipv4/ip_forward"),
            (" net.ipv4.ip_forward", " net/ipv4/ip_forward"),
            ("net/../kernel/hostname", "net////kernel/hostname"),
            ("net/ipv4/../../kernel/hostname", "net/ipv4///////kernel/hostname"),
            ("net..ipv4", "net//ipv4"),
            ("net.ipv4.", "net/ipv4/"),
            ("net./../kernel/hostname", "net/////kernel/hostname"),
            ("/../net/ipv4/ip_forward", "////net/ipv4/ip_forward"),
        ] {
            let error = Setting::new(key, String::new()).unwrap_err();
            assert_eq!(error.msg, format!("invalid net sysctl key: {shown:?}"));
        }
    }

    #[test]
    fn a_key_is_said_once() {
        for same in [
            r#""net.ipv4.ip_forward":"1","net.ipv4.ip_forward":"1""#,
            r#""net.ipv4.ip_forward":"1","net/ipv4/ip_forward":"0""#,
            r#""net/ipv4/conf/eth0.5/x":"1","net.ipv4.conf.eth0/5.x":"1""#,
        ] {
            for text in [
                format!(r#"{{"sysctl":{{{same}}}}}"#),
                format!(r#"{{"args":{{"cni":{{"sysctl":{{{same}}}}}}}}}"#),
            ] {
                assert_eq!(
                    parsed(&text).unwrap_err().msg,
                    "duplicated sysctl keys are not allowed",
                    "{text}"
                );
            }
        }
    }

    #[test]
    fn values_of_args_win_and_are_enough() {
        let shown = |text: &str| -> Vec<String> {
            let settings = parsed(text).unwrap();
            settings
                .iter()
                .map(|setting| format!("{}={}", setting.key, setting.value))
                .collect()
        };
        let args = r#""args":{"cni":{"sysctl":{"net/ipv4/ip_forward":"1"}}}"#;
        assert_eq!(shown(&format!("{{{args}}}")), ["net/ipv4/ip_forward=1"]);
        assert_eq!(
            shown(&format!(
                r#"{{"sysctl":{{"net.ipv4.ip_forward":"0","net.core.somaxconn":"9","net.a":null}},{args}}}"#
            )),
            ["net/ipv4/ip_forward=1", "net.core.somaxconn=9"]
        );
        assert_eq!(shown(r#"{"sysctl":null,"args":{"cni":null}}"#), [""; 0]);
    }

    #[test]
    fn wrong_types_are_refused() {
        for (text, msg) in [
            (
                r#"{"sysctl":[]}"#,
                "sysctl: invalid type, expected an object of strings",
            ),
            (
                r#"{"args":{"cni":{"sysctl":"x"}}}"#,
                "args.cni.sysctl: invalid type, expected an object of strings",
            ),
            (
                r#"{"sysctl":{"net.ipv4.ip_forward":1}}"#,
                "sysctl: net.ipv4.ip_forward: invalid type: integer `1`, expected a string",
            ),
        ] {
            assert_eq!(parsed(text).unwrap_err().msg, msg);
        }
    }
}
