//! A directory of plugins at work in a scenario's world.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::Failure;
use super::call::{Cost, Observer, call, cpu_of_children, shell};
use super::connections;
use super::scenario::{AT_ONCE, Before, Chain, HOST_PORT, NETWORK, STORM, Scenario, Work};

/// One directory of plugins, and what they are applied to. All of it is in one private world.
#[derive(Debug)]
pub(super) struct Site {
    plugins: PathBuf,
    /// How many containers there have been: each has a name of its own.
    containers: usize,
    server: Option<Child>,
}

/// What a scenario consists of, in the words of the table, and what each part cost.
pub(super) type Costs = Vec<(&'static str, Cost)>;

/// The namespace that a single container has, one after the other: DEL takes everything out of it again.
const POD: &str = "/run/netns/pod";
/// Where connections through the published port come from, and where they go to.
const CLIENT: &str = "/run/netns/client";
const NODE: &str = "192.0.2.1";

impl Site {
    /// Makes in the present world what a scenario needs. Published ports are written by `publisher`'s portmap.
    ///
    /// # Errors
    /// Programs and plugins that fail.
    pub(super) fn prepare(plugins: &Path, publisher: &Path, scenario: &Scenario) -> Result<Site, Failure> {
        let mut site = Site {
            plugins: plugins.to_owned(),
            containers: 0,
            server: None,
        };
        shell("ip netns add pod")?;
        hold_addresses(&scenario.before)?;
        match &scenario.work {
            Work::Storm(_) => shell(&format!("for i in $(seq {STORM}); do ip netns add s$((i-1)); done"))?,
            Work::Connections(chain) => {
                site.keep_one_container(chain)?;
                if let Some((_, mappings)) = scenario.before.mappings {
                    publish(publisher, chain, mappings)?;
                }
                shell(
                    "ip netns add client
                     ip link add client type veth peer name eth0 netns client
                     ip addr add 192.0.2.1/24 dev client; ip link set client up
                     ip -n client addr add 192.0.2.2/24 dev eth0; ip -n client link set eth0 up",
                )?;
                site.server = Some(connections::start_server(Path::new(POD))?);
            }
            Work::Version | Work::Chain(_) => {}
        }
        Ok(site)
    }

    /// Does the scenario's work once.
    ///
    /// # Errors
    /// Plugins that fail.
    pub(super) fn work(&mut self, work: &Work, observer: Observer) -> Result<Costs, Failure> {
        self.containers += 1;
        let container = Attachment {
            plugins: &self.plugins,
            id: format!("container-{}", self.containers),
            netns: POD.to_owned(),
        };
        match work {
            Work::Version => {
                let variables = [("CNI_COMMAND", "VERSION".to_owned())];
                let (_, cost) = call(&self.plugins.join("bridge"), &variables, &json!({}), observer)?;
                Ok(vec![("VERSION", cost)])
            }
            Work::Chain(chain) => {
                let (result, add) = container.add(chain, observer)?;
                let del = container.del(chain, &result, observer)?;
                Ok(vec![("ADD", add), ("DEL", del)])
            }
            Work::Connections(chain) => {
                let (result, add) = container.add(chain, observer)?;
                let each = match observer {
                    Observer::Clock => connections::time(Path::new(CLIENT), NODE, HOST_PORT)?,
                    _ => Duration::ZERO,
                };
                let del = container.del(chain, &result, observer)?;
                let connection = Cost {
                    wall: each,
                    ..Cost::default()
                };
                Ok(vec![("ADD", add), ("connection", connection), ("DEL", del)])
            }
            Work::Storm(chain) => self.storm(chain),
        }
    }

    /// Keeps the bridge alive, as the last container's plugins may remove it.
    fn keep_one_container(&self, chain: &Chain) -> Result<(), Failure> {
        shell("ip netns add keeper")?;
        let keeper = Attachment {
            plugins: &self.plugins,
            id: "keeper".to_owned(),
            netns: "/run/netns/keeper".to_owned(),
        };
        keeper.add(&chain.only(|plugin| plugin != "portmap"), Observer::None)?;
        Ok(())
    }

    fn storm(&self, chain: &Chain) -> Result<Costs, Failure> {
        let containers: Vec<(Attachment<'_>, Chain)> = (0..STORM)
            .map(|i| {
                let mapping = json!([{"hostPort": 20_000 + i, "containerPort": 80, "protocol": "tcp"}]);
                let container = Attachment {
                    plugins: &self.plugins,
                    id: format!("container-{}-{i}", self.containers),
                    netns: format!("/run/netns/s{i}"),
                };
                (container, chain.publishing(&mapping))
            })
            .collect();
        let (results, add) = all_at_once(&containers, |(container, chain)| {
            Ok(container.add(chain, Observer::None)?.0)
        })?;
        let attached: Vec<_> = containers.iter().zip(results).collect();
        let (_, del) = all_at_once(&attached, |((container, chain), result)| {
            container.del(chain, result, Observer::None)
        })?;
        Ok(vec![("ADD of 60", add), ("DEL of 60", del)])
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if let Some(server) = &mut self.server {
            // It may have ended by itself, which the measurement has told.
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

/// A container on its network.
#[derive(Debug)]
struct Attachment<'a> {
    plugins: &'a Path,
    id: String,
    netns: String,
}

impl Attachment<'_> {
    fn add(&self, chain: &Chain, observer: Observer) -> Result<(Value, Cost), Failure> {
        let mut result = Value::Null;
        let mut total = Cost::default();
        for step in &chain.steps {
            let (answer, cost) = self.call("ADD", step.plugin, Value::Object(step.conf.clone()), &result, observer)?;
            total = total.and(cost);
            // Loopback is a network of its own.
            if step.plugin != "loopback" {
                result = answer;
            }
        }
        Ok((result, total))
    }

    fn del(&self, chain: &Chain, result: &Value, observer: Observer) -> Result<Cost, Failure> {
        let mut total = Cost::default();
        for step in chain.steps.iter().rev() {
            let (_, cost) = self.call("DEL", step.plugin, Value::Object(step.conf.clone()), result, observer)?;
            total = total.and(cost);
        }
        Ok(total)
    }

    fn call(
        &self,
        verb: &str,
        plugin: &str,
        mut conf: Value,
        result: &Value,
        observer: Observer,
    ) -> Result<(Value, Cost), Failure> {
        let is_loopback = plugin == "loopback";
        if let (Some(conf), false, false) = (conf.as_object_mut(), is_loopback, result.is_null()) {
            conf.insert("prevResult".to_owned(), result.clone());
        }
        let variables = [
            ("CNI_COMMAND", verb.to_owned()),
            ("CNI_CONTAINERID", self.id.clone()),
            ("CNI_NETNS", self.netns.clone()),
            ("CNI_IFNAME", if is_loopback { "lo" } else { "eth0" }.to_owned()),
            ("CNI_PATH", self.plugins.to_string_lossy().into_owned()),
        ];
        call(&self.plugins.join(plugin), &variables, &conf, observer)
    }
}

/// Reservations as host-local writes them, of containers that do not exist.
fn hold_addresses(before: &Before) -> Result<(), Failure> {
    const FIRST: u32 = 0x0a58_0002;
    let pool = Path::new("/var/lib/cni/networks").join(NETWORK);
    fs::create_dir_all(&pool)?;
    for address in (FIRST..).take(before.held.try_into()?).map(std::net::Ipv4Addr::from) {
        if before.free != Some(address) {
            fs::write(pool.join(address.to_string()), format!("other-{address}\r\neth0"))?;
        }
    }
    if before.held > 0 {
        // A search begins behind it. In the pool that is nearly full, the free address is half a pool away.
        let last = std::net::Ipv4Addr::from(FIRST + before.held - 1);
        fs::write(pool.join("last_reserved_ip.0"), last.to_string())?;
    }
    Ok(())
}

/// Ports of other containers, at most a hundred of each.
fn publish(publisher: &Path, chain: &Chain, mappings: u16) -> Result<(), Failure> {
    let portmap = chain.only(|plugin| plugin == "portmap");
    let ports: Vec<u16> = (20_000..).take(mappings.into()).collect();
    for (i, ports) in ports.chunks(100).enumerate() {
        let mappings = ports
            .iter()
            .map(|port| json!({"hostPort": port, "containerPort": 80, "protocol": "tcp"}));
        let other = Attachment {
            plugins: publisher,
            id: format!("other-{i}"),
            netns: "/run/netns/keeper".to_owned(),
        };
        let address = format!("10.88.200.{}/16", i + 1);
        let result = json!({"cniVersion": "1.0.0", "interfaces": [{"name": "eth0", "sandbox": other.netns}],
            "ips": [{"address": address, "gateway": "10.88.0.1", "interface": 0}]});
        for step in &portmap.publishing(&mappings.collect()).steps {
            other.call(
                "ADD",
                step.plugin,
                Value::Object(step.conf.clone()),
                &result,
                Observer::None,
            )?;
        }
    }
    Ok(())
}

/// Does something for each of `all`, [`AT_ONCE`] at a time. Returns what it returned, in order, and what it cost together.
fn all_at_once<T: Sync, R: Send>(
    all: &[T],
    work: impl Fn(&T) -> Result<R, Failure> + Sync,
) -> Result<(Vec<R>, Cost), Failure> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    let cpu = cpu_of_children()?;
    let began = Instant::now();
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let Some(one) = all.get(i) else { break };
                    let outcome = work(one);
                    if let Ok(mut done) = done.lock() {
                        done.push((i, outcome));
                    }
                }
            });
        }
    });
    let cost = Cost {
        wall: began.elapsed(),
        cpu: cpu_of_children()?.saturating_sub(cpu),
        ..Cost::default()
    };
    let mut done = done.into_inner().map_err(|_| "a storm's thread panicked")?;
    done.sort_by_key(|(i, _)| *i);
    let results = done.into_iter().map(|(_, outcome)| outcome).collect::<Result<_, _>>()?;
    Ok((results, cost))
}
