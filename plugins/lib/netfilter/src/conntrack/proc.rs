//! Connection tracking's list in /proc.

use std::fs::{self, File};
use std::io::Read;
use std::net::{IpAddr, SocketAddr};

use super::{Flow, netlink};

/// How many connections there are in the network namespace of the thread that asks, of all protocols.
const COUNT: &str = "/proc/sys/net/netfilter/nf_conntrack_count";
/// `thread-self`: the namespace of this thread counts, and `self` would show that of the process's first thread.
const LIST: &str = "/proc/thread-self/net/nf_conntrack";
/// The most connections that are read as text. A line takes about as long to write as an answer of netlink, but each page
/// of them takes a system call; with two thousand the gain is half of what it is with none.
pub(super) const MOST: usize = 1024;

/// The UDP connections; `None` where this is not the way to list them: there are too many, the kernel has no such list or
/// may leave some out, or it says something that is not understood.
pub(super) fn udp_flows() -> Option<Vec<Flow>> {
    let count: usize = fs::read_to_string(COUNT).ok()?.trim().parse().ok()?;
    match count {
        0 => Some(Vec::new()),
        1..=MOST => parse(&read()?),
        _ => None,
    }
}

/// Reads the list, of which the kernel writes a page at a time. While it writes one, nothing is lost that was there
/// before. Between two pages older kernels remember only how many entries they have written: when one of these goes
/// meanwhile, another one is left out.
fn read() -> Option<String> {
    let mut list = File::open(LIST).ok()?;
    let (mut text, mut buffer) = (Vec::new(), vec![0; 64 * 1024]);
    for page in 0usize.. {
        match list.read(&mut buffer).ok()? {
            0 => break,
            _ if page == 1 && !keeps_its_place() => return None,
            len => text.extend(buffer.iter().take(len)),
        }
    }
    String::from_utf8(text).ok()
}

/// Whether the kernel goes on with the bucket that it stopped in: since 6.18 (`ct_get_next` of
/// nf_conntrack_standalone.c). Nothing but the release tells; where the change was taken over into an older one, netlink
/// is asked without need.
fn keeps_its_place() -> bool {
    fs::read_to_string("/proc/sys/kernel/osrelease").is_ok_and(|release| is_since_6_18(&release))
}

fn is_since_6_18(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= (6, 18),
        _ => false,
    }
}

/// One line a connection, for instance (`ct_seq_show`):
///
/// ```text
/// ipv4     2 udp      17 29 src=192.0.2.2 dst=192.0.2.1 sport=4000 dport=53 [UNREPLIED] src=192.0.2.1 ...
/// ```
///
/// The first of each name is of the first packet, and the rest of the answers.
fn parse(list: &str) -> Option<Vec<Flow>> {
    let lines = list.lines();
    let udp = lines.filter(|line| line.split_whitespace().nth(2) == Some("udp"));
    udp.map(flow).collect()
}

/// `None` as well for a connection in a zone, which needs more than its ends to be named.
fn flow(line: &str) -> Option<Flow> {
    let mut zones = line.split_whitespace().filter(|word| word.starts_with("zone"));
    if zones.any(|zone| zone != "zone=0") {
        return None;
    }
    let value = |name: &str| {
        let mut words = line.split_whitespace();
        words.find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    };
    let end = |address: &str, port: &str| {
        let address: IpAddr = value(address)?.parse().ok()?;
        Some(SocketAddr::new(address, value(port)?.parse().ok()?))
    };
    let (source, destination) = (end("src", "sport")?, end("dst", "dport")?);
    (source.is_ipv4() == destination.is_ipv4()).then(|| netlink::flow_between(source, destination))
}

#[cfg(test)]
mod tests {
    use super::*;

    const UDP: &str = "ipv4     2 udp      17 29 src=192.0.2.2 dst=192.0.2.1 sport=4000 dport=53 [UNREPLIED] src=10.1.0.2 dst=192.0.2.2 sport=5353 dport=4000 mark=0 zone=0 use=2";

    #[test]
    fn lines_are_read_as_the_kernel_writes_them() {
        let list = format!(
            "{UDP}\nipv4     2 tcp      6 117 SYN_SENT src=192.0.2.2 dst=192.0.2.1 sport=1 dport=53 [UNREPLIED] src=192.0.2.1 dst=192.0.2.2 sport=53 dport=1 mark=0 use=2
ipv6     10 udp      17 src=2001:0db8:0000:0000:0000:0000:0000:0002 dst=2001:0db8:0000:0000:0000:0000:0000:0001 sport=7 dport=9 packets=1 bytes=2 src=2001:0db8:0000:0000:0000:0000:0000:0001 dst=2001:0db8:0000:0000:0000:0000:0000:0002 sport=9 dport=7 [OFFLOAD] mark=0 use=2
ipv4     2 unknown  2 599 src=192.0.2.2 dst=224.0.0.22 [UNREPLIED] src=224.0.0.22 dst=192.0.2.2 mark=0 use=2\n"
        );
        let flows = parse(&list).unwrap();
        let expected = [
            ("192.0.2.2:4000", "192.0.2.1:53"),
            ("[2001:db8::2]:7", "[2001:db8::1]:9"),
        ];
        let expected = expected
            .map(|(source, destination)| netlink::flow_between(source.parse().unwrap(), destination.parse().unwrap()));
        assert_eq!(flows, expected);
    }

    #[test]
    fn what_is_not_understood_is_left_to_netlink() {
        for bad in [
            UDP.replace("zone=0", "zone=3"),
            UDP.replace("sport=4000", "zone-orig=3 sport=4000"),
            UDP.replace("dst=", "to="),
            UDP.replace("dst=192.0.2.1", "dst=2001:db8::1"),
            UDP.replace("dport=53", "dport=70000"),
        ] {
            assert_eq!(parse(&bad), None, "{bad}");
        }
        assert_eq!(parse(""), Some(Vec::new()));
    }

    #[test]
    fn releases_are_compared_by_their_numbers() {
        for (release, since) in [
            ("6.18.44-fc-v782", true),
            ("7.0-rc1", true),
            ("6.18.0", true),
            ("6.9.3", false),
            ("5.10.0-28-amd64", false),
            ("6", false),
            ("", false),
        ] {
            assert_eq!(is_since_6_18(release), since, "{release}");
        }
    }
}
