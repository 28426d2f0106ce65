//! All that can be seen of a world, as text.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::world::World;

/// What stays once it was made, because a neighbour may rest on it already; and what it is. Everything else that an
/// attachment brings must go with it. `*` stands for any text.
pub const MAY_STAY: &[(&str, &str)] = &[
    ("node link cni0: *", "the bridge"),
    ("node address cni0 *", "its address"),
    ("node route * dev cni0 *", "what the kernel adds for that"),
    ("node vlan cni0 *", "its own default VLAN"),
    ("node sysctl net/ipv4/ip_forward = *", "forwarding is of the whole node"),
    (
        "node sysctl net/ipv6/conf/all/forwarding = *",
        "forwarding is of the whole node",
    ),
    ("node sysctl net/*/conf/cni0/*", "settings of the bridge"),
    ("nft table *", "tables"),
    ("nft set *", "sets and maps as such; not their elements"),
    ("nft chain inet ferrule_masquerade postrouting *", "a base chain"),
    (
        "nft rule inet ferrule_masquerade postrouting *",
        "looks the source up in maps",
    ),
    ("nft chain inet ferrule_portmap prerouting *", "a base chain"),
    (
        "nft rule inet ferrule_portmap prerouting *",
        "leads what is for the node to ports",
    ),
    ("nft chain inet ferrule_portmap output *", "a base chain"),
    (
        "nft rule inet ferrule_portmap output *",
        "leads what is for the node to ports",
    ),
    ("nft chain inet ferrule_portmap ports *", "shared by the two"),
    ("nft rule inet ferrule_portmap ports *", "looks the port up in maps"),
    ("nft chain inet ferrule_portmap conditions *", "shared; not its rules"),
    ("nft chain inet ferrule_portmap snat *", "a base chain"),
    (
        "nft rule inet ferrule_portmap snat *",
        "looks the destination up in maps",
    ),
    ("nft chain inet ferrule_portmap martians *", "a base chain"),
    (
        "nft rule inet ferrule_portmap martians *",
        "keeps others from the node's loopback",
    ),
    ("nft chain ip* nat *", "iptables' own, listed by iptables-save too"),
    ("nft rule ip* nat *", "the same"),
    ("iptables ip* *nat", "a table"),
    ("iptables ip* COMMIT", "a table"),
    ("iptables ip* :PREROUTING *", "a base chain"),
    ("iptables ip* :INPUT *", "the same"),
    ("iptables ip* :OUTPUT *", "the same"),
    ("iptables ip* :POSTROUTING *", "the same"),
    ("iptables ip* :CNI-HOSTPORT-DNAT *", "the chain that leads to all ports"),
    ("iptables ip* -A PREROUTING * -j CNI-HOSTPORT-DNAT", "the way there"),
    ("iptables ip* -A OUTPUT * -j CNI-HOSTPORT-DNAT", "the way there"),
    ("iptables ip* :CNI-HOSTPORT-MASQ *", "masquerades what is marked"),
    (
        "iptables ip* -A CNI-HOSTPORT-MASQ -m mark --mark 0x2000/0x2000 -j MASQUERADE",
        "its one rule",
    ),
    ("iptables ip* -A POSTROUTING * -j CNI-HOSTPORT-MASQ", "the way there"),
    ("iptables ip* :CNI-HOSTPORT-SETMARK *", "marks"),
    (
        "iptables ip* -A CNI-HOSTPORT-SETMARK * -j MARK --set-xmark 0x2000/0x2000",
        "its one rule",
    ),
    ("nft chain inet ferrule_firewall forward *", "a base chain"),
    (
        "nft rule inet ferrule_firewall forward *",
        "looks both addresses up in sets",
    ),
    ("nft chain inet ferrule_firewall isolation *", "shared by all bridges"),
    (
        "nft rule inet ferrule_firewall isolation *",
        "looks both interfaces up in sets",
    ),
    ("nft chain inet ferrule_firewall admin *", "the administrator's"),
    ("nft chain ip* filter INPUT *", "iptables' own base chain"),
    ("nft chain ip* filter FORWARD *", "the same"),
    ("nft chain ip* filter OUTPUT *", "the same"),
    ("nft chain ip* filter CNI-FORWARD *", "the firewall's, as nft shows it"),
    ("nft chain ip* filter CNI-ADMIN *", "the same"),
    (
        "nft rule ip* filter FORWARD *\"jump\":{\"target\":\"CNI-FORWARD\"}*",
        "the same",
    ),
    (
        "nft rule ip* filter CNI-FORWARD *\"jump\":{\"target\":\"CNI-ADMIN\"}*",
        "the same",
    ),
    ("iptables ip* *filter", "a table"),
    ("iptables ip* :FORWARD *", "a base chain"),
    ("iptables ip* :CNI-FORWARD *", "the chain that accepts"),
    ("iptables ip* -A FORWARD * -j CNI-FORWARD", "the way there"),
    ("iptables ip* :CNI-ADMIN *", "the administrator's chain"),
    ("iptables ip* -A CNI-FORWARD * -j CNI-ADMIN", "the way there"),
    (
        "file /var/lib/cni/networks/.ferrule/*",
        "what is known of the reservations, to save reading them",
    ),
    ("file /run/cni/*.lock = ", "locks"),
    (
        "file /run/cni/ferrule-iptables/.draft = *",
        "a record that was not finished, written over by the next",
    ),
    (
        "file /var/lib/cni/networks/*/lock = *",
        "the lock of a network's reservations",
    ),
    (
        "file /var/lib/cni/networks/*/last_reserved_ip.* = *",
        "where the search goes on",
    ),
];

/// Settings of the node that plugins write or rely on, without those of single interfaces.
const NODE_SYSCTLS: &[&str] = &[
    "net/ipv4/ip_forward",
    "net/ipv6/conf/all/forwarding",
    "net/ipv4/conf/all/route_localnet",
    "net/ipv4/conf/default/route_localnet",
    "net/ipv6/conf/all/accept_ra",
    "net/ipv6/conf/default/accept_ra",
];

/// Settings of each of the node's interfaces.
const LINK_SYSCTLS: &[&str] = &["net/ipv4/conf/LINK/route_localnet", "net/ipv6/conf/LINK/accept_ra"];

/// Settings of a container that stay when its interface is gone.
const CONTAINER_SYSCTLS: &str = "net/ipv4/conf/all/arp_notify net/ipv4/conf/default/arp_notify \
     net/ipv6/conf/all/disable_ipv6 net/ipv6/conf/default/disable_ipv6 net/ipv6/conf/lo/disable_ipv6 \
     net/ipv6/conf/all/accept_dad net/ipv6/conf/default/accept_dad";

/// Where plugins keep files, and where the names of namespaces are: no plugin may make one.
const DIRECTORIES: &[&str] = &["/var/lib/cni", "/run/cni", "/run/netns"];

/// For `ip -batch`.
const IP: &str = "printf 'link show\\naddress show\\nroute show table all\\nrule show\\n' | ip -o -batch -; ip -6 rule";

/// Links, addresses, routes and rules of routing, rules of netfilter in both systems, files and settings, one a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State(BTreeSet<String>);

impl State {
    /// Reads the state of a world and of some of its namespaces, by their names.
    pub fn read(w: &World, containers: &[&str]) -> State {
        let mut lines = BTreeSet::new();
        let node = w.sh(&format!(
            "{IP}; bridge vlan show | sed 's/^/vlan /'; echo; nft -j list ruleset"
        ));
        let (network, ruleset) = node.rsplit_once('\n').expect("the ruleset is the last line");
        read_network("node", network, &mut lines);
        read_ruleset(ruleset, &mut lines);
        for container in containers {
            let files = CONTAINER_SYSCTLS.replace("net/", "/proc/sys/net/");
            let script = format!("{IP}; grep -H . {files} | sed 's/^.proc.sys./sysctl /; s/:/ = /'");
            read_network(container, &w.sh_in(container, &script), &mut lines);
        }
        read_sysctls(&mut lines);
        for directory in DIRECTORIES {
            read_files(Path::new(directory), &mut lines);
        }
        // nft shows iptables' rules, but not the arguments of its extensions.
        if ruleset.contains(r#""family": "ip""#) || !read("/proc/net/ip_tables_names").is_empty() {
            let saved = w.sh("iptables-save | sed 's/^/iptables ip /'; ip6tables-save | sed 's/^/iptables ip6 /'");
            let lasting = saved.lines().filter(|line| !line.contains(" # "));
            lines.extend(lasting.map(without_counters));
        }
        State(lines)
    }

    /// The lines that match a pattern, in which `*` stands for any text.
    pub fn matching(&self, pattern: &str) -> Vec<&str> {
        self.0
            .iter()
            .map(String::as_str)
            .filter(|line| matches(pattern, line))
            .collect()
    }

    /// What has come since `before`, and what has gone, apart from [`MAY_STAY`]; empty if nothing.
    pub fn difference(&self, before: &State) -> String {
        let told = |sign: char, from: &State, to: &State| -> String {
            let missing = from.0.difference(&to.0);
            missing
                .filter(|line| !MAY_STAY.iter().any(|(pattern, _)| matches(pattern, line)))
                .map(|line| format!("{sign} {line}\n"))
                .collect()
        };
        told('-', before, self) + &told('+', self, before)
    }

    /// Asserts that nothing has changed since `before` apart from [`MAY_STAY`]. `after` says what happened meanwhile.
    #[track_caller]
    pub fn assert_same(&self, before: &State, after: &str) {
        let difference = self.difference(before);
        assert!(difference.is_empty(), "after {after}:\n{difference}");
    }
}

/// The output of `ip -o`, less the numbers of interfaces, which are never used twice, and less what the kernel does to a link
/// in its own time: it finds that there is a carrier, and gives it link-local addresses and the routes for those. A link
/// that is left is seen by its own line.
fn read_network(place: &str, text: &str, lines: &mut BTreeSet<String>) {
    let in_its_own_time = |line: &str| line.contains(" fe80:") || line.contains(" ff00::/8 ");
    for line in text.lines().filter(|line| !line.is_empty() && !in_its_own_time(line)) {
        let (first, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let line = match first.ends_with(':') {
            _ if ["vlan", "sysctl"].contains(&first) => line.to_owned(),
            true if rest.contains(": <") => format!("link {}", without_carrier(rest)),
            true if rest.trim_start().starts_with("from ") => format!("rule {line}"),
            true => format!("address {rest}"),
            false => format!("route {line}"),
        };
        lines.insert(format!(
            "{place} {}",
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        ));
    }
}

fn without_carrier(link: &str) -> String {
    let link = link.replace("<NO-CARRIER,", "<").replace(",LOWER_UP", "");
    let (start, state) = link.split_once(" state ").unwrap_or((&link, ""));
    let after = state.split_once(' ').map_or("", |(_, after)| after);
    format!("{start} {after}")
}

fn read_ruleset(json: &str, lines: &mut BTreeSet<String>) {
    let ruleset: Value = serde_json::from_str(json).unwrap_or_else(|e| panic!("{e}: {json}"));
    for object in ruleset["nftables"].as_array().expect("nft's list of objects") {
        let (kind, object) = object
            .as_object()
            .and_then(|object| object.iter().next())
            .expect("an object");
        let text = |key: &str| object[key].as_str().unwrap_or_default();
        let place = format!("{} {}", text("family"), text("table"));
        match kind.as_str() {
            "metainfo" => {}
            "table" => drop(lines.insert(format!("nft table {} {}", text("family"), text("name")))),
            "chain" => {
                let base = ["type", "hook", "prio", "policy"].map(|key| object[key].to_string());
                lines.insert(format!("nft chain {place} {} {}", text("name"), base.join(" ")));
            }
            "rule" => {
                let comment = text("comment");
                let expression = lasting(&object["expr"]);
                // Twice the same rule is two rules.
                let rule = format!("nft rule {place} {} {expression} {comment}", text("chain"));
                let copies = (1..).find(|copy| lines.insert(format!("{rule} #{copy}")));
                assert!(copies.is_some());
            }
            _ => {
                lines.insert(format!("nft set {place} {}", text("name")));
                for element in object["elem"].as_array().into_iter().flatten() {
                    lines.insert(format!("nft element {place} {} {}", text("name"), lasting(element)));
                }
            }
        }
    }
}

/// A value less what differs from one look to the next.
fn lasting(value: &Value) -> Value {
    match value {
        Value::Array(items) => items.iter().map(lasting).collect(),
        Value::Object(fields) => fields
            .iter()
            .filter(|(key, _)| !["handle", "packets", "bytes"].contains(&key.as_str()))
            .map(|(key, value)| (key.clone(), lasting(value)))
            .collect(),
        other => other.clone(),
    }
}

/// A line of iptables-save, which shows the counters of chains.
fn without_counters(line: &str) -> String {
    line.split_once(" [").map_or(line, |(before, _)| before).to_owned()
}

fn read_sysctls(lines: &mut BTreeSet<String>) {
    let mut add = |key: &str| {
        let value = read(&format!("/proc/sys/{key}"));
        lines.insert(format!("node sysctl {key} = {}", value.trim()));
    };
    NODE_SYSCTLS.iter().for_each(|key| add(key));
    for link in fs::read_dir("/sys/class/net").expect("/sys/class/net") {
        let link = link.expect("a link").file_name().to_string_lossy().into_owned();
        LINK_SYSCTLS.iter().for_each(|key| add(&key.replace("LINK", &link)));
    }
}

/// The content of a file, empty where there is none.
fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Files, with their content, and directories without any file. A namespace's name is a file too.
fn read_files(directory: &Path, lines: &mut BTreeSet<String>) {
    for entry in fs::read_dir(directory).into_iter().flatten() {
        let entry = entry.expect("an entry of a directory");
        if entry.file_type().expect("the type of a file").is_dir() {
            read_files(&entry.path(), lines);
        } else {
            let content = fs::read(entry.path()).unwrap_or_default();
            // What is longer is not for reading.
            let shown = content.get(..200).unwrap_or(&content).escape_ascii();
            lines.insert(format!("file {} = {shown}", entry.path().display()));
        }
    }
}

fn matches(pattern: &str, text: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let Some(text) = text.strip_prefix(start) else {
        return false;
    };
    (0..=text.len()).any(|at| text.is_char_boundary(at) && matches(rest, &text[at..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::world;

    #[test]
    fn patterns() {
        for (pattern, text, expected) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("a*", "ab", true),
            ("a*c", "abc", true),
            ("a*c", "abcd", false),
            ("*b*", "abc", true),
            ("a*", "b", false),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn every_kind_of_leftover_is_seen() {
        world(|w| {
            w.netns("a");
            w.sh_in("a", "ip link set lo up");
            w.sh(
                "nft add table inet t; nft add map inet t m '{ type inet_service : verdict; }'; nft add chain inet t c",
            );
            let before = State::read(w, &["a"]);
            assert_eq!(State::read(w, &["a"]).difference(&before), "");
            for (make, unmake, expected) in [
                (
                    "ip link add v0 type veth peer name v1",
                    "ip link del v0",
                    "+ node link v0@v1: ",
                ),
                (
                    "ip addr add 192.0.2.1/24 dev lo",
                    "ip addr del 192.0.2.1/24 dev lo",
                    "+ node address lo inet 192.0.2.1/24",
                ),
                (
                    "ip route add 192.0.2.0/24 dev lo table 7",
                    "ip route flush table 7",
                    "+ node route 192.0.2.0/24 dev lo table 7",
                ),
                (
                    "ip rule add from 192.0.2.1 table 7",
                    "ip rule del from 192.0.2.1",
                    "+ node rule ",
                ),
                (
                    "nft add element inet t m '{ 1 : drop }'",
                    "nft flush map inet t m",
                    "+ nft element inet t m ",
                ),
                (
                    "nft add chain inet t own",
                    "nft delete chain inet t own",
                    "+ nft chain inet t own ",
                ),
                (
                    "nft add rule inet t c counter drop",
                    "nft flush chain inet t c",
                    "+ nft rule inet t c ",
                ),
                (
                    "mkdir -p /run/cni; echo x > /run/cni/f",
                    "rm /run/cni/f",
                    r"+ file /run/cni/f = x\n",
                ),
                ("touch /run/netns/b", "rm /run/netns/b", "+ file /run/netns/b = "),
                (
                    "echo 1 > /proc/sys/net/ipv4/conf/lo/route_localnet",
                    "echo 0 > /proc/sys/net/ipv4/conf/lo/route_localnet",
                    "+ node sysctl net/ipv4/conf/lo/route_localnet = 1",
                ),
                (
                    "ip -n a link set lo down",
                    "ip -n a link set lo up",
                    "+ a link lo: <LOOPBACK> ",
                ),
                (
                    "iptables -t nat -A POSTROUTING -m comment --comment mine -j ACCEPT",
                    "nft delete table ip nat",
                    "+ iptables ip -A POSTROUTING -m comment --comment mine -j ACCEPT",
                ),
            ] {
                w.sh(make);
                let difference = State::read(w, &["a"]).difference(&before);
                assert!(difference.contains(expected), "{make}: {difference}");
                w.sh(unmake);
                State::read(w, &["a"]).assert_same(&before, unmake);
            }
        });
    }
}
