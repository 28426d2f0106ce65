//! DEL of what is not there, by every plugin.

use std::path::Path;

use serde_json::{Value, json};

use crate::chain::{Container, Node};

/// A configuration that names nothing that exists, with what each plugin needs.
fn conf(plugin: &str) -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "net", "type": plugin,
        "bridge": "cni0", "master": "nothing0", "device": "nothing0", "vlanId": 5, "vrfname": "nothing0",
        "ipMasq": true, "ipam": { "type": "host-local", "subnet": "10.1.0.0/24" },
    })
}

#[test]
fn is_done_already() {
    testkit::world(|w| {
        let node = Node::new(w);
        node.make_namespace();
        let before = node.state();
        for plugin in node.plugins() {
            for netns in ["", "/run/netns/missing", "/run/netns/a"] {
                for time in ["first", "second"] {
                    let reply = node.del_alone(&conf(&plugin), Container { id: "a", netns });
                    let answer = (reply.code, reply.stdout.as_str());
                    assert_eq!(
                        answer,
                        (Some(0), ""),
                        "{plugin} in {netns:?}, the {time} time: {reply:?}"
                    );
                    node.state()
                        .assert_same(&before, &format!("DEL of {plugin} in {netns:?}"));
                }
            }
        }
        assert!(!Path::new("/run/netns/missing").exists());
    });
}

/// A process ID that was used again makes a container's namespace the node's: whatever bears the names there is not the
/// container's.
#[test]
fn nothing_of_the_node_is_touched_for_it() {
    testkit::world(|w| {
        let node = Node::new(w);
        node.make_namespace();
        w.sh("ip link add eth0 type veth peer name other; ip link set eth0 up; ip addr add 192.0.2.1/24 dev eth0");
        let before = node.state();
        let own = Container {
            id: "a",
            netns: "/proc/self/ns/net",
        };
        for plugin in node.plugins() {
            let reply = node.del_alone(&conf(&plugin), own);
            match reply.code {
                Some(0) => reply.silent(),
                _ => assert_eq!(reply.error().0, 8, "{plugin}: {reply:?}"),
            }
            node.state()
                .assert_same(&before, &format!("DEL of {plugin} in the node's namespace"));
        }
    });
}
