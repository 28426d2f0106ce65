//! Any interleaving of calls, crashes and foreign writes, against a model that knows nothing of caches.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs;
use std::net::Ipv4Addr;

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

use crate::pool::{Pool, addresses};
use crate::strace::killed;

/// What may happen. Containers and addresses are numbers.
#[derive(Debug, Clone)]
enum Step {
    Add(u8),
    Del(u8),
    Gc(Vec<u8>),
    /// An ADD or DEL killed at a system call.
    Killed(&'static str, u8, &'static str, usize),
    /// Another suite reserves an address for a container.
    ForeignAdd(u8, u8),
    /// Somebody removes a file.
    ForeignRemove(u8),
    /// Somebody empties a file.
    Blank(u8),
    /// The cache is removed, or overwritten with rubbish.
    LoseCache,
    SpoilCache(u16),
}

/// The system calls that change something, and some that do not.
const CALLS: [&str; 8] = [
    "linkat",
    "renameat",
    "unlinkat",
    "pwrite64",
    "utimensat",
    "flock",
    "write",
    "exit_group",
];

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let container = || 0u8..6;
    let address = || 0u8..16;
    let step = prop_oneof![
        6 => container().prop_map(Step::Add),
        4 => container().prop_map(Step::Del),
        1 => prop::collection::vec(container(), 0..4).prop_map(Step::Gc),
        1 => (select(["ADD", "DEL"].as_slice()), container(), select(CALLS.as_slice()), 1usize..4)
            .prop_map(|(verb, c, call, at)| Step::Killed(verb, c, call, at)),
        2 => (container(), address()).prop_map(|(c, ip)| Step::ForeignAdd(c, ip)),
        1 => address().prop_map(Step::ForeignRemove),
        1 => address().prop_map(Step::Blank),
        1 => Just(Step::LoseCache),
        1 => any::<u16>().prop_map(Step::SpoilCache),
    ];
    prop::collection::vec(step, 1..30)
}

/// A /28 with its gateway on .1: 13 usable addresses, .2 to .14.
struct Model {
    held: BTreeMap<Ipv4Addr, String>,
    cursor: Option<Ipv4Addr>,
}

fn ip(host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 1, 0, host)
}

fn owner(container: u8) -> String {
    format!("c{container}\r\neth0")
}

impl Model {
    /// The address that an ADD must give, or `None` if it must be refused.
    fn next(&self, container: u8) -> Option<Ipv4Addr> {
        if self
            .held
            .iter()
            .any(|(ip, held)| (1..=14).contains(&ip.octets()[3]) && *held == owner(container))
        {
            return None;
        }
        let last = self.cursor.map_or(0, |ip| ip.octets()[3]);
        let order = (last + 1..=14).chain(1..=last);
        order
            .filter(|host| (2..=14).contains(host))
            .map(ip)
            .find(|ip| !self.held.contains_key(ip))
    }
}

fn run(steps: Vec<Step>) -> Result<(), TestCaseError> {
    let pool = Pool::subnet("10.1.0.0/28");
    let mut model = Model {
        held: BTreeMap::new(),
        cursor: None,
    };
    for step in steps {
        match &step {
            Step::Add(container) => {
                let expected = model.next(*container);
                let reply = pool.add(&format!("c{container}"));
                let given = (reply.code == Some(0)).then(|| addresses(&reply)[0].parse().unwrap());
                prop_assert_eq!(given, expected, "{:?}: {:?}", step, reply);
                if let Some(ip) = given {
                    model.held.insert(ip, owner(*container));
                    model.cursor = Some(ip);
                }
            }
            Step::Del(container) => {
                pool.del(&format!("c{container}")).silent();
                model.held.retain(|_, held| *held != owner(*container));
            }
            Step::Gc(valid) => {
                let list: Vec<Value> = valid
                    .iter()
                    .map(|c| json!({ "containerID": format!("c{c}"), "ifname": "eth0" }))
                    .collect();
                pool.gc(&list.into()).silent();
                model.held.retain(|_, held| valid.iter().any(|c| *held == owner(*c)));
            }
            Step::Killed(verb, container, call, at) => {
                killed(
                    &pool,
                    verb,
                    &format!("c{container}"),
                    &Value::Null,
                    &((*call).to_owned(), *at),
                );
                follow(&pool, &mut model, *container)?;
            }
            Step::ForeignAdd(container, host) => {
                if let Entry::Vacant(free) = model.held.entry(ip(*host)) {
                    // No suite writes into a file that is there.
                    let _ = fs::remove_file(pool.file(&free.key().to_string()));
                    pool.write(&free.key().to_string(), &owner(*container));
                    free.insert(owner(*container));
                }
            }
            Step::ForeignRemove(host) => {
                let _ = fs::remove_file(pool.file(&ip(*host).to_string()));
                model.held.remove(&ip(*host));
            }
            Step::Blank(host) => {
                if !model.held.contains_key(&ip(*host)) {
                    pool.write(&ip(*host).to_string(), "");
                }
            }
            Step::LoseCache => drop(fs::remove_dir_all(pool.cache())),
            Step::SpoilCache(seed) => spoil(&pool, *seed),
        }
        let found: BTreeMap<Ipv4Addr, String> = pool
            .reserved()
            .into_iter()
            .filter(|(_, owner)| !owner.is_empty())
            .map(|(ip, owner)| (ip.parse().unwrap(), owner))
            .collect();
        prop_assert_eq!(&found, &model.held, "after {:?}", step);
    }
    Ok(())
}

/// After a kill the container's reservation is there or not, complete in either case; the cursor may have moved with
/// it.
fn follow(pool: &Pool, model: &mut Model, container: u8) -> Result<(), TestCaseError> {
    let before = model.held.clone();
    model.held.retain(|_, held| *held != owner(container));
    for (ip, held) in pool
        .reserved()
        .into_iter()
        .filter(|(_, held)| *held == owner(container))
    {
        model.held.insert(ip.parse().unwrap(), held);
    }
    let appeared = model.held.keys().filter(|ip| !before.contains_key(ip)).count();
    prop_assert!(appeared <= 1);
    model.cursor = pool.cursor(0).and_then(|text| text.parse().ok());
    Ok(())
}

/// Writes rubbish over one file of the cache.
fn spoil(pool: &Pool, seed: u16) {
    let Ok(entries) = fs::read_dir(pool.cache().join("n")) else {
        return;
    };
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    if let Some(file) = files.get(usize::from(seed) % files.len().max(1)) {
        let len = usize::from(seed >> 4);
        fs::write(file, vec![seed as u8; len]).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 200, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_history_ends_as_in_the_model(steps in steps()) {
        run(steps)?;
    }
}
