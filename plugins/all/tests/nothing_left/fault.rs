//! Each system call fails in turn: ADD works all the same or takes everything back; DEL does all it still can, tells when that
//! was not all, and can be repeated.

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

/// Lets every call of every plugin's ADD fail on a node without its first container, then every one of its DEL.
fn everywhere(chain: &Chain, step: usize) {
    testkit::world(|w| {
        let node = Node::new(w);
        node.make_namespace();
        let before = node.state();
        let add = tried(&node, chain, step, |fault| fault.attempt(&node, chain, &before));
        tell(&format!("{}: ADD failed cleanly {add}", chain.name));
        let del = tried(&node, chain, step, |fault| fault.attempt_del(&node, chain, &before));
        tell(&format!("{}: DEL failed and could be repeated {del}", chain.name));
    });
}

/// How many faults ended how, where none was answered wrongly.
fn tried(
    node: &Node<'_>,
    chain: &Chain,
    step: usize,
    attempt: impl Fn(Fault) -> Option<Result<Outcome, String>>,
) -> String {
    let begin = Instant::now();
    let (mut failed, mut unharmed, mut wrong) = (0, 0, Vec::new());
    for plugin in 0..chain.len() {
        'points: for number in (1..).step_by(step) {
            for errno in errnos(number) {
                let fault = Fault { plugin, number, errno };
                match attempt(fault) {
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
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(failed > 2, "too few points to be true");
    let seconds = begin.elapsed().as_secs();
    format!("at {failed} points and worked in spite of {unharmed} in {seconds} s")
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
    /// The call's, among those of its verb.
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

    /// The same in DEL. A DEL that succeeds has left nothing, and one that does not can be repeated; in between, no address
    /// is free while a link still has it.
    fn attempt_del(self, node: &Node<'_>, chain: &Chain, before: &State) -> Option<Result<Outcome, String>> {
        node.cool_down();
        let result = node.add(chain, A, &mut plainly).done();
        let mut injected: Option<Injected> = None;
        let mut left = self.plugin;
        let end = node.del(chain, &result, A, &mut |call| {
            if left > 0 {
                left -= 1;
                return plainly(call);
            }
            left = usize::MAX;
            let (reply, failure) = fail_at(self.number, self.errno, call);
            injected = failure;
            Some(reply)
        });
        let half_done = node.state();
        let is_given_away = node.has_given_away_an_address_in_use();
        node.del(chain, &result, A, &mut plainly).done();
        let Injected { syscall } = injected?;
        let outcome = match end {
            End::Failed(reply) => {
                let outcome = judge_failure(&reply, String::new()).map(|()| Outcome::Failed);
                outcome.and_then(|failed| match is_given_away {
                    true => Err(format!("its address is free while its interface is there: {reply:?}")),
                    false => Ok(failed),
                })
            }
            End::Done(_) => match half_done.difference(before) {
                left if left.is_empty() => Ok(Outcome::Unharmed),
                left => Err(format!("DEL succeeded and left: {left}")),
            },
            End::Killed => unreachable!("nobody killed it"),
        };
        let cleaned = outcome.and_then(|outcome| match node.state().difference(before) {
            left if left.is_empty() => Ok(outcome),
            left => Err(format!("after another DEL: {left}")),
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
