//! The node as plugins leave it: everything that they make outside of a container.

use std::process::Command;

/// A node's links, routes, rules, and the files under /var/lib/cni, a line each.
#[derive(Debug, PartialEq)]
pub(crate) struct Node {
    lines: Vec<String>,
}

impl Node {
    /// Looks at the node. What changes by itself is left out: counters, times, whether a link carries, and
    /// link-local addresses, which appear when the kernel has made sure that nobody else has them.
    pub(crate) fn look() -> Node {
        let mut lines = Vec::new();
        for command in [
            "ip -oneline link | cut -d ' ' -f 2",
            "ip -oneline address | sed '/ fe80::/d; s/ *valid_lft.*//'",
            "ip route show table all | sed '/ fe80::/d; /^fe80::/d; /^multicast ff00::/d; s/ linkdown//'",
            "nft --stateless list ruleset",
            "iptables-save 2>/dev/null | sed -e '/^#/d' -e 's/\\[[0-9:]*\\]//'",
            "ip6tables-save 2>/dev/null | sed -e '/^#/d' -e 's/\\[[0-9:]*\\]//'",
            "find /var/lib/cni",
        ] {
            let output = Command::new("sh").args(["-euc", command]).output().expect("sh");
            assert!(output.status.success(), "{command}: {output:?}");
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            lines.extend(text.lines().map(|line| line.trim().to_owned()));
        }
        Node { lines }
    }

    /// What there is more of than on an earlier look.
    pub(crate) fn beyond(&self, earlier: &Node) -> Vec<String> {
        let mut known = earlier.lines.clone();
        let is_new = |line: &&String| match known.iter().position(|old| old == *line) {
            Some(position) => {
                known.swap_remove(position);
                false
            }
            None => true,
        };
        self.lines.iter().filter(is_new).cloned().collect()
    }

    /// The lines that contain any of these texts.
    pub(crate) fn lines_with(&self, texts: &[&str]) -> Vec<&String> {
        let mentions = |line: &&String| texts.iter().any(|text| line.contains(text));
        self.lines.iter().filter(mentions).collect()
    }
}
