//! A hundred containers, sixteen at a time, on a node that has had none.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;

use serde_json::Value;
use testkit::State;

use crate::chain::{Chain, Container, Node, plainly};

const CONTAINERS: u16 = 100;
const AT_A_TIME: usize = 16;

/// Runs `work` for each container's number.
fn storm(work: impl Fn(u16) + Sync) {
    let next = AtomicU16::new(0);
    thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                while let Some(number) =
                    Some(next.fetch_add(1, Ordering::Relaxed)).filter(|number| *number < CONTAINERS)
                {
                    work(number);
                }
            });
        }
    });
}

/// Every container comes and is checked; two of three go again meanwhile. Then each rule that they share is there once,
/// and after the others have gone too, nothing of anyone.
fn cold_start(backend: &'static str) {
    testkit::world(|w| {
        let node = Node::new(w);
        node.make_namespace();
        for number in 0..CONTAINERS {
            w.netns(&format!("c{number}"));
        }
        let before = node.state();
        let name = |number: u16| (format!("c{number}"), format!("/run/netns/c{number}"));
        let remaining = Mutex::new(Vec::<(u16, Value)>::new());
        storm(|number| {
            let (id, netns) = name(number);
            let of = Container { id: &id, netns: &netns };
            let chain = Chain::published(backend, 8000 + number);
            let result = node.add(&chain, of, &mut plainly).done();
            node.check(&chain, &result, of).done();
            if number % 3 == 0 {
                remaining.lock().unwrap().push((number, result));
            } else {
                node.del(&chain, &result, of, &mut plainly).done();
            }
        });

        let remaining = remaining.into_inner().unwrap();
        let addresses: BTreeSet<String> = remaining
            .iter()
            .map(|(_, result)| result["ips"][0]["address"].to_string())
            .collect();
        assert_eq!(addresses.len(), usize::from(CONTAINERS.div_ceil(3)), "{addresses:?}");
        assert_shared_once(&node);
        for (number, result) in &remaining {
            let (id, netns) = name(*number);
            let chain = Chain::published(backend, 8000 + number);
            node.check(&chain, result, Container { id: &id, netns: &netns }).done();
        }
        let remaining = Mutex::new(remaining);
        storm(|_| {
            let Some((number, result)) = remaining.lock().unwrap().pop() else {
                return;
            };
            let (id, netns) = name(number);
            let of = Container { id: &id, netns: &netns };
            node.del(&Chain::published(backend, 8000 + number), &result, of, &mut plainly)
                .done();
        });
        node.state().assert_same(&before, backend);
    });
}

/// No rule is there twice, whatever backend made it, and the bridge has one address of each family.
fn assert_shared_once(node: &Node<'_>) {
    let state = State::read(node.w, &[]);
    assert_eq!(state.matching("nft rule * #2"), Vec::<&str>::new());
    assert_eq!(
        node.w
            .sh("for s in iptables-save ip6tables-save; do $s | grep ^-A | sort | uniq -d; done"),
        ""
    );
    assert_eq!(state.matching("node address cni0 inet 10.1.0.1/24 *").len(), 1);
    assert_eq!(state.matching("node address cni0 inet6 fd00:1::1/64 *").len(), 1);
    assert_eq!(state.matching("node address cni0 inet *").len(), 1);
}

#[test]
fn nftables() {
    cold_start("nftables");
}

#[test]
fn iptables() {
    cold_start("iptables");
}
