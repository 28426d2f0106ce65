//! The networks that runtimes find on the node: whose are they, and are their plugins there?

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Finding, Level};

const CHECK: &str = "networks";

/// One configuration file.
struct Network {
    file: PathBuf,
    name: String,
    /// The plugins that it names, IPAM included.
    plugins: BTreeSet<String>,
}

pub(super) fn examine(conf_dir: &Path, bin_dir: &Path) -> Vec<Finding> {
    let files = match files(conf_dir) {
        Ok(files) => files,
        Err(e) => {
            return vec![Finding::new(
                CHECK,
                Level::Warn,
                format!("{}: {e}", conf_dir.display()),
                "run it as root",
            )];
        }
    };
    let mut findings = Vec::new();
    let mut networks = Vec::new();
    for file in files {
        match read(&file) {
            Ok(network) => networks.push(network),
            Err(e) => findings.push(Finding::new(
                CHECK,
                Level::Warn,
                format!("{}: {e}", file.display()),
                "mend it, or move it out of the directory",
            )),
        }
    }
    findings.push(overview(conf_dir, &networks));
    findings.extend(networks.iter().filter_map(|network| missing(network, bin_dir)));
    findings
}

/// In the order in which runtimes look at them.
fn files(conf_dir: &Path) -> std::io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(conf_dir) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut files = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<std::io::Result<Vec<_>>>()?;
    files.retain(|file| {
        file.extension()
            .is_some_and(|e| ["conf", "conflist", "json"].iter().any(|known| e == *known))
    });
    files.sort();
    Ok(files)
}

fn read(file: &Path) -> std::result::Result<Network, String> {
    let bytes = fs::read(file).map_err(|e| e.to_string())?;
    let value: Value = serde_json::from_slice(&bytes).map_err(|e| format!("no JSON: {e}"))?;
    let single = vec![value.clone()];
    let plugins = value["plugins"].as_array().unwrap_or(&single);
    let types = plugins
        .iter()
        .flat_map(|plugin| [&plugin["type"], &plugin["ipam"]["type"]]);
    Ok(Network {
        file: file.to_owned(),
        name: value["name"].as_str().unwrap_or_default().to_owned(),
        plugins: types.filter_map(|name| name.as_str().map(str::to_owned)).collect(),
    })
}

/// Runtimes with one network, such as containerd's CRI, take the first file; another suite's may come before ours.
fn overview(conf_dir: &Path, networks: &[Network]) -> Finding {
    let listed = |network: &Network| {
        let file = network.file.file_name().unwrap_or_default().to_string_lossy();
        let plugins: Vec<&str> = network.plugins.iter().map(String::as_str).collect();
        format!("{file} ({:?}: {})", network.name, plugins.join(", "))
    };
    let all: Vec<String> = networks.iter().map(listed).collect();
    match all.as_slice() {
        [] => Finding::ok(CHECK, format!("none in {}", conf_dir.display())),
        [one] => Finding::ok(CHECK, one),
        [first, rest @ ..] => Finding::new(
            CHECK,
            Level::Warn,
            format!("runtimes that take one network take {first}, not {}", rest.join(", ")),
            format!("if another is meant, move the first out of {}", conf_dir.display()),
        ),
    }
}

fn missing(network: &Network, bin_dir: &Path) -> Option<Finding> {
    let absent = network.plugins.iter().filter(|plugin| !bin_dir.join(plugin).is_file());
    let absent: Vec<&str> = absent.map(String::as_str).collect();
    if absent.is_empty() {
        return None;
    }
    let found = format!(
        "{} names {}, not in {}",
        network.file.display(),
        absent.join(", "),
        bin_dir.display()
    );
    let remedy =
        "install the suite that has them into the same directory, if no other of the runtime's directories does";
    Some(Finding::new(CHECK, Level::Warn, found, remedy))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_the_way_is_told() {
        let directory = std::env::temp_dir().join(format!("ferrule-networks-{}", std::process::id()));
        let (conf_dir, bin_dir) = (directory.join("net.d"), directory.join("bin"));
        let levels = || {
            examine(&conf_dir, &bin_dir)
                .iter()
                .map(|finding| finding.level)
                .collect::<Vec<_>>()
        };
        assert_eq!(levels(), [Level::Ok], "no directory");

        fs::create_dir_all(&conf_dir).unwrap();
        fs::create_dir_all(&bin_dir).unwrap();
        fs::write(bin_dir.join("bridge"), "").unwrap();
        fs::write(
            conf_dir.join("20-b.conf"),
            r#"{"name": "b", "type": "bridge", "ipam": {}}"#,
        )
        .unwrap();
        fs::write(conf_dir.join("README"), "no network").unwrap();
        assert_eq!(levels(), [Level::Ok], "one network, and its plugin is there");

        fs::write(
            conf_dir.join("10-a.conflist"),
            r#"{"name": "a", "plugins": [{"type": "calico", "ipam": {"type": "calico-ipam"}}]}"#,
        )
        .unwrap();
        let findings = examine(&conf_dir, &bin_dir);
        assert!(
            findings[0]
                .found
                .contains("take 10-a.conflist (\"a\": calico, calico-ipam), not 20-b.conf")
        );
        assert!(
            findings[1].found.contains("names calico, calico-ipam, not in"),
            "{findings:?}"
        );

        fs::write(conf_dir.join("00-broken.conf"), "{").unwrap();
        assert!(examine(&conf_dir, &bin_dir)[0].found.contains("no JSON"));
        fs::remove_dir_all(&directory).unwrap();
    }
}
