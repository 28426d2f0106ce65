//! Killed before each system call, then deleted.

use std::time::Instant;

use serde_json::Value;
use testkit::{Points, kill_before};

use crate::chain::{A, Chain, End, Node, plainly, stride_of_iptables, tell};

/// What a runtime still knows when it deletes: bit by bit of a number, so that all are tried in turn.
struct Memory {
    /// The namespace is gone.
    namespace_is_gone: bool,
    /// It says where the namespace was all the same.
    tells_namespace: bool,
    /// It has a result: that of an ADD that succeeded, maybe an earlier one.
    has_result: bool,
}

impl Memory {
    fn variant(number: usize) -> Memory {
        Memory {
            namespace_is_gone: number.is_multiple_of(2),
            tells_namespace: (number / 4).is_multiple_of(2),
            has_result: (number / 2).is_multiple_of(2),
        }
    }

    /// DEL as this runtime makes it. It must succeed; the namespace is there again after it.
    fn delete(&self, node: &Node<'_>, chain: &Chain, result: &Value) {
        let prev = if self.has_result { result } else { &Value::Null };
        let mut of = A;
        if self.namespace_is_gone {
            node.lose_namespace();
            of.netns = if self.tells_namespace { A.netns } else { "" };
        }
        node.del(chain, prev, of, &mut plainly).done();
        if self.namespace_is_gone {
            node.make_namespace();
        }
    }
}

/// A caller that kills at the `number`th of the calls that count, of all plugins of the chain together.
fn killing(number: usize) -> impl FnMut(&testkit::Invocation<'_>) -> Option<testkit::Reply> {
    let mut left = number;
    move |call| {
        let (reply, made) = kill_before(left, Points::chosen(), call).ok()?;
        left -= made;
        Some(reply)
    }
}

/// Kills ADD everywhere on a node without its first container, then DEL everywhere on one that has had some.
fn everywhere(chain: &Chain, step: usize) {
    testkit::world(|w| {
        let node = Node::new(w);
        node.make_namespace();
        let before = node.state();
        let result = node.add(chain, A, &mut plainly).done();
        node.del(chain, &result, A, &mut plainly).done();
        node.state().assert_same(&before, "ADD and DEL undisturbed");

        let begin = Instant::now();
        let adds = until_survived(step, |number| {
            node.cool_down();
            let end = node.add(chain, A, &mut killing(number));
            Memory::variant(number / step).delete(&node, chain, &result);
            node.state().assert_same(
                &before,
                &format!("{}: ADD killed before call {number}, and DEL", chain.name),
            );
            // What stays must be whole: the next one rests on it.
            let again = node.add(chain, A, &mut plainly).done();
            node.check(chain, &again, A).done();
            node.del(chain, &again, A, &mut plainly).done();
            end
        });
        let dels = until_survived(step, |number| {
            let result = node.add(chain, A, &mut plainly).done();
            let end = node.del(chain, &result, A, &mut killing(number));
            Memory::variant(number / step).delete(&node, chain, &result);
            node.state().assert_same(
                &before,
                &format!("{}: DEL killed before call {number}, and DEL", chain.name),
            );
            end
        });
        let seconds = begin.elapsed().as_secs();
        tell(&format!(
            "{}: killed at {adds} points of ADD and {dels} of DEL in {seconds} s",
            chain.name
        ));
    });
}

/// Tries the numbers 1, 1 + step, ... until the plugins survive, and returns how often they did not.
fn until_survived(step: usize, mut attempt: impl FnMut(usize) -> End) -> usize {
    for tried in 0.. {
        match attempt(1 + tried * step) {
            End::Killed => {}
            survived => {
                survived.done();
                assert!(tried > 2, "too few points to be true");
                return tried;
            }
        }
    }
    unreachable!()
}

#[test]
fn loopback() {
    everywhere(&Chain::loopback(), 1);
}

#[test]
fn host_local() {
    everywhere(&Chain::host_local(), 1);
}

#[test]
fn bridge() {
    everywhere(&Chain::bridge_alone(), 1);
}

#[test]
fn ptp() {
    everywhere(&Chain::ptp(), 1);
}

#[test]
fn published_ports_with_nftables() {
    everywhere(&Chain::published("nftables", 8080), 1);
}

#[test]
fn published_ports_with_iptables() {
    everywhere(&Chain::published("iptables", 8080), stride_of_iptables(5));
}
