//! Each system call fails in turn: ADD works all the same or takes everything back.

use std::time::Instant;

use serde_json::Value;
use testkit::{Errno, Injected, Points, Reply, State, fail_at};

use crate::chain::{A, Chain, End, Node, plainly, stride_of_iptables, tell};

/// A disk that breaks, memory that ends, a security module that forbids.
const ERRNOS: [Errno; 3] = [Errno::EIO, Errno::ENOMEM, Errno::EPERM];

/// The errors to try at a point: by default one of them in turn.
fn errnos(number: usize) -> Vec<Errno> {
    match Points::chosen() {
        Points::All => ERRNOS.to_vec(),
        Points::Changing => vec![ERRNOS[number % ERRNOS.len()]],
    }
}

/// Lets every call of every plugin's ADD fail on a node without its first container.
fn everywhere(chain: &Chain, step: usize) {
    testkit::world(|w| {
        let node = Node::new(w);
        node.make_namespace();
        let before = node.state();
        let begin = Instant::now();
        let (mut failed, mut unharmed, mut wrong) = (0, 0, Vec::new());
        for plugin in 0..chain.len() {
            'points: for number in (1..).step_by(step) {
                for errno in errnos(number) {
                    let fault = Fault { plugin, number, errno };
                    match fault.attempt(&node, chain, &before) {
                        None => break 'points,
                        Some(Ok(Outcome::Failed)) => failed += 1,
                        Some(Ok(Outcome::Unharmed)) => unharmed += 1,
                        Some(Err(problem)) => {
                            wrong.push(format!("{}: {fault:?}: {problem}", chain.name));
                            // For the next one, whatever is left.
                            node.lose_namespace();
                            node.make_namespace();
                        }
                    }
                }
            }
        }
        let seconds = begin.elapsed().as_secs();
        tell(&format!(
            "{}: ADD failed cleanly at {failed} points and worked in spite of {unharmed} in {seconds} s",
            chain.name
        ));
        assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
        assert!(failed > 2, "too few points to be true");
    });
}

enum Outcome {
    Failed,
    Unharmed,
}

/// A call that fails.
#[derive(Debug, Clone, Copy)]
struct Fault {
    /// The plugin's place in the chain.
    plugin: usize,
    /// The call's, among those of its ADD.
    number: usize,
    errno: Errno,
}

impl Fault {
    /// Lets it happen, and tells what is wrong then. `None`: the plugin makes fewer calls.
    fn attempt(self, node: &Node<'_>, chain: &Chain, before: &State) -> Option<Result<Outcome, String>> {
        node.cool_down();
        let prev = match self.plugin {
            0 => Value::Null,
            count => node.add_first(chain, count, A),
        };
        let before_plugin = if self.plugin == 0 { before.clone() } else { node.state() };
        let mut injected: Option<Injected> = None;
        let mut reached = false;
        let end = node.add_from(chain, self.plugin, prev, A, &mut |call| {
            if reached {
                return plainly(call);
            }
            reached = true;
            let (reply, failure) = fail_at(self.number, self.errno, call);
            injected = failure;
            Some(reply)
        });
        let Some(Injected { syscall }) = injected else {
            node.del(chain, &Value::Null, A, &mut plainly).done();
            return None;
        };
        let outcome = match end {
            End::Failed(reply) => {
                judge_failure(&reply, node.state().difference(&before_plugin)).map(|()| (Outcome::Failed, Value::Null))
            }
            End::Done(result) => match node.check(chain, &result, A) {
                End::Done(_) => Ok((Outcome::Unharmed, result)),
                other => Err(format!("ADD succeeded, but not CHECK: {other:?}")),
            },
            End::Killed => unreachable!("nobody killed it"),
        };
        let cleaned = outcome.and_then(|(outcome, result)| {
            node.del(chain, &result, A, &mut plainly).done();
            match node.state().difference(before) {
                left if left.is_empty() => Ok(outcome),
                left => Err(format!("after DEL: {left}")),
            }
        });
        Some(cleaned.map_err(|problem| format!("system call {syscall}: {problem}")))
    }
}

/// A failed ADD has put exactly one error object out, and taken everything back.
fn judge_failure(reply: &Reply, left: String) -> Result<(), String> {
    let objects: Vec<_> = serde_json::Deserializer::from_str(&reply.stdout)
        .into_iter::<Value>()
        .collect();
    let told = matches!(&objects[..], [Ok(object)] if object["code"].is_u64() && object["msg"].is_string());
    if told && reply.code == Some(1) && left.is_empty() {
        return Ok(());
    }
    Err(format!("{left}{reply:?}"))
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
    everywhere(&Chain::published("iptables", 8080), stride_of_iptables(3));
}
