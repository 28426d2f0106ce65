//! Traffic to and from a pod that publishes TCP port 18080 as 8080, and UDP port 15353 as 5353.

use std::fs;
use std::process::Command;

use crate::lab::{CLIENT, Lab, NODE};

/// What a pod serves.
pub(crate) const POD_PAGE: &str = "hello from the pod";
const OUTSIDE_PAGE: &str = "hello from outside";

/// Checks that the pod with this namespace and address is reached directly and through its published ports, from the node, from outside and from the
/// pod itself, and that it reaches the outside. The servers run in the pod's network namespace, from the node's files.
pub(crate) fn check(lab: &Lab, netns: &str, address: &str) {
    serve_pod_page(lab, netns);
    serve_page(lab, "/run/netns/client", "7001", OUTSIDE_PAGE);
    // -T: the processes that it forks for each client end by themselves.
    lab.start(in_netns(netns).args(["socat", "-T2", "UDP-LISTEN:5353,fork", "PIPE"]));

    let page = |from: &str, url: &str| format!("nsenter --net={from} curl -sS --max-time 3 http://{url}/");
    let node = "/proc/self/ns/net";
    let client = "/run/netns/client";
    lab.eventually(&page(node, &format!("{}:8080", address)), POD_PAGE);
    lab.eventually(&page(client, &format!("{CLIENT}:7001")), OUTSIDE_PAGE);

    for (way, from, url) in [
        ("node to 127.0.0.1", node, "127.0.0.1:18080"),
        ("node to its own address", node, "192.0.2.1:18080"),
        ("outside to the node", client, "192.0.2.1:18080"),
        ("pod to itself through the node", netns, "192.0.2.1:18080"),
    ] {
        assert_eq!(lab.try_sh(&page(from, url)).as_deref(), Ok(POD_PAGE), "{way}");
    }
    // The client knows no way to the pod's address: the answer comes back only if the node masquerades.
    let outside = lab.try_sh(&page(netns, &format!("{CLIENT}:7001")));
    assert_eq!(outside.as_deref(), Ok(OUTSIDE_PAGE), "pod to outside");

    for (from, address) in [(client, NODE), (node, "127.0.0.1"), (netns, NODE)] {
        let datagram = format!("echo ping | nsenter --net={from} socat -t1 - UDP:{address}:15353");
        lab.eventually(&datagram, "ping");
    }
    assert_eq!(
        lab.sh("cat /proc/sys/net/ipv4/ip_forward"),
        "1",
        "the plugins make the node forward"
    );
}

/// Serves [`POD_PAGE`] in a namespace at the port that pods publish.
pub(crate) fn serve_pod_page(lab: &Lab, netns: &str) {
    serve_page(lab, netns, "8080", POD_PAGE);
}

fn in_netns(netns: &str) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={netns}"));
    command
}

fn serve_page(lab: &Lab, netns: &str, port: &str, page: &str) {
    let directory = lab.directory().join(format!("www-{port}"));
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join("index.html"), page).unwrap();
    lab.start(
        in_netns(netns)
            .args(["busybox", "httpd", "-f", "-p", port, "-h"])
            .arg(directory),
    );
}
