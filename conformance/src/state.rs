//! What can be seen of a host: the traces by which a forgotten attachment is found.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::host::{Host, HostError};

/// Lines of text, each a thing that exists on a host.
#[derive(Debug, Clone, PartialEq)]
pub struct State(BTreeSet<String>);

/// Files that tell where the next search begins, or that only serve to be locked: not those of an attachment.
fn is_bookkeeping(name: &str) -> bool {
    name.starts_with("last_reserved_ip.") || name == "lock" || name.ends_with(".lock")
}

/// What the suite itself and the system's programs put below /run.
const NOT_OF_PLUGINS: [&str; 3] = ["/run/conformance", "/run/netns", "/run/xtables.lock"];

impl State {
    /// Interfaces, addresses, routes, rules and files of the host, but nothing of other namespaces. IPv6's link-local
    /// addresses come and settle by themselves, and are left out.
    ///
    /// # Errors
    /// One of the programs that show them is missing.
    pub fn read(host: &Host) -> Result<State, HostError> {
        let mut lines = State::without_links(host)?.0;
        let shown = host.sh("ip -o link | sed 's/^[0-9]*: \\([^:@]*\\).*/link \\1/'
            ip -o addr | grep -v 'fe80::' | sed 's/^[0-9]*: *//; s/valid_lft.*//; s/tentative//; s/^/address /'
            (ip route; ip -6 route) | grep -v 'fe80::' | sed 's/^/route /; s/linkdown//' || true")?;
        lines.extend(numbered(&shown));
        Ok(State(lines))
    }

    /// The same without what the kernel removes together with a namespace: rules and files alone.
    ///
    /// # Errors
    /// One of the programs that show them is missing.
    pub fn without_links(host: &Host) -> Result<State, HostError> {
        let rules = host.sh(
            "for save in iptables-save ip6tables-save; do ! command -v $save >/dev/null || $save 2>/dev/null; done |
                sed '/^#/d; s/ \\[[0-9:]*\\]$//'
            ! command -v nft >/dev/null || nft -s list ruleset 2>/dev/null",
        )?;
        let mut lines = numbered(&rules);
        for directory in ["/run", "/var/lib/cni"] {
            read_files(Path::new(directory), &mut lines);
        }
        Ok(State(lines))
    }

    /// What has come (`+`) and gone (`-`) since `before`, one a line.
    pub fn changes(&self, before: &State) -> String {
        let told = |sign: char, from: &State, to: &State| -> String {
            from.0
                .difference(&to.0)
                .map(|line| format!("{sign} {line}\n"))
                .collect()
        };
        told('+', self, before) + &told('-', before, self)
    }
}

/// Lines as a set in which the same line twice is two.
fn numbered(text: &str) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    for line in text.lines().map(words).filter(|line| line.len() > 1) {
        let copies = (1..).find(|copy| lines.insert(format!("{line} #{copy}")));
        debug_assert!(copies.is_some());
    }
    lines
}

fn read_files(directory: &Path, lines: &mut BTreeSet<String>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        if NOT_OF_PLUGINS.iter().any(|known| path.starts_with(known)) {
            continue;
        }
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => read_files(&path, lines),
            Ok(_) if is_bookkeeping(&name) => {}
            _ => {
                let content = fs::read(&path).unwrap_or_default();
                // A plugin's own index tells nothing to others, and is written anew with every call.
                let shown = if content.contains(&0) {
                    &[][..]
                } else {
                    content.get(..200).unwrap_or(&content)
                };
                lines.insert(format!("file {} = {}", path.display(), shown.escape_ascii()));
            }
        }
    }
}
