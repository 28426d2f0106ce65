//! A private node with the plugins in /opt/cni/bin, another machine on a wire, and containers that come and go.

use std::cell::RefCell;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use conformance::cache::Cache;
use conformance::chain::{ChainError, Container, Runtime};
use conformance::conf::NetworkConf;
use serde_json::{Map, Value, json};
use testkit::World;

/// The other machine, which has no way to a container's address: it answers only what comes from the node's.
pub(crate) const OUTSIDE: [&str; 2] = ["192.0.2.2", "2001:db8:ffff::2"];
/// The node's own addresses on the wire to it.
pub(crate) const NODE: [&str; 2] = ["192.0.2.1", "2001:db8:ffff::1"];
/// Published on the node, and where it leads to in the container.
pub(crate) const HOST_PORT: u16 = 8080;
const CONTAINER_PORT: u16 = 80;

/// Makes the node, for `sh -euc`. What an example puts below /etc and /opt must not meet the machine's own files.
const SET_UP: &str = "
    mkdir -p $TMP/etc $TMP/etc-work $TMP/bin
    mount -t overlay overlay -o lowerdir=/etc,upperdir=$TMP/etc,workdir=$TMP/etc-work /etc
    rm -rf /etc/cni /etc/resolv.conf
    mkdir -p /etc/cni/net.d
    echo nameserver 192.0.2.53 > /etc/resolv.conf
    mount -t tmpfs tmpfs /opt
    mkdir -p /opt/cni/bin
    mount --bind $PLUGINS /opt/cni/bin
    ip netns add client
    ip link add wire type veth peer name eth0 netns client
    ip address add 192.0.2.1/24 dev wire
    ip address add 2001:db8:ffff::1/64 dev wire nodad
    ip link set wire up
    ip -n client address add 192.0.2.2/24 dev eth0
    ip -n client address add 2001:db8:ffff::2/64 dev eth0 nodad
    ip -n client link set eth0 up
    ip -n client link set lo up
";

/// See the module.
pub(crate) struct Site<'w> {
    world: &'w World,
    runtime: Runtime,
    servers: RefCell<Vec<Child>>,
}

/// A container on a network.
pub(crate) struct Attached {
    /// Its network namespace, and its ID.
    pub(crate) name: String,
    /// The network.
    pub(crate) conf: NetworkConf,
    /// What the last plugin printed.
    pub(crate) result: Value,
    container: Container,
}

impl Attached {
    /// Its addresses, with the prefix's length.
    pub(crate) fn addresses(&self) -> Vec<String> {
        self.each_ip("address")
    }

    /// The gateways of its addresses, where there are any.
    pub(crate) fn gateways(&self) -> Vec<String> {
        self.each_ip("gateway")
    }

    fn each_ip(&self, key: &str) -> Vec<String> {
        let ips = self.result["ips"].as_array().into_iter().flatten();
        ips.filter_map(|ip| Some(ip[key].as_str()?.to_owned())).collect()
    }
}

impl<'w> Site<'w> {
    pub(crate) fn new(world: &'w World) -> Site<'w> {
        let (tmp, plugins) = (world.tmp().display(), plugins());
        world.sh(&format!("TMP={tmp} PLUGINS={}\n{SET_UP}", plugins.display()));
        Site {
            world,
            runtime: Runtime {
                plugin_path: vec!["/opt/cni/bin".into(), world.tmp().join("bin")],
                cache: Cache::new("/var/lib/cni"),
                watcher: None,
            },
            servers: RefCell::default(),
        }
    }

    /// Installs a plugin that is not ours: a shell script that plays its part.
    pub(crate) fn stand_in(&self, name: &str, script: &str) {
        let path = self.world.tmp().join("bin").join(name);
        let draft = path.with_extension("draft");
        fs::write(&draft, format!("#!/bin/sh\nset -eu\n{script}\n")).unwrap();
        // By another program: a file that this process has open for writing cannot be executed while a child has it too.
        self.sh(&format!("install -m 755 {} {}", draft.display(), path.display()));
    }

    /// Attaches the namespace `name`, made if need be, as `ifname`, with [`HOST_PORT`] published where the network can.
    pub(crate) fn attach_as(&self, conf: &NetworkConf, name: &str, ifname: &str) -> Result<Attached, ChainError> {
        if !Path::new("/run/netns").join(name).exists() {
            self.world.netns(name);
            // Runtimes run the plugin loopback for that, in a network of its own.
            self.sh(&format!("ip -n {name} link set lo up"));
        }
        let ports = json!([{"hostPort": HOST_PORT, "containerPort": CONTAINER_PORT, "protocol": "tcp"}]);
        let container = Container {
            id: name.parse().unwrap(),
            netns: format!("/run/netns/{name}"),
            ifname: ifname.parse().unwrap(),
            args: String::new(),
            capability_args: Map::from_iter([("portMappings".to_owned(), ports)]),
        };
        let result = self.runtime.add(conf, &container)?;
        Ok(Attached {
            name: name.to_owned(),
            conf: conf.clone(),
            result,
            container,
        })
    }

    /// Attaches the namespace `name` as eth0.
    #[track_caller]
    pub(crate) fn attach(&self, conf: &NetworkConf, name: &str) -> Attached {
        self.attach_as(conf, name, "eth0")
            .unwrap_or_else(|e| panic!("{}: {e}", conf.name))
    }

    /// Asks the plugins whether the attachment is as it should be, if the network's version has that verb.
    #[track_caller]
    pub(crate) fn check(&self, attached: &Attached) {
        let (conf, container) = (&attached.conf, &attached.container);
        if conf.is_at_least("0.4.0") {
            self.runtime
                .check(conf, container)
                .unwrap_or_else(|e| panic!("{}: {e}", conf.name));
        }
    }

    /// What a plugin has to object when it is asked whether the attachment is as it should be.
    #[track_caller]
    pub(crate) fn refused_check(&self, attached: &Attached) -> String {
        let checked = self.runtime.check(&attached.conf, &attached.container);
        checked.expect_err("a refusal").to_string()
    }

    /// Detaches the container, twice, since runtimes repeat a DEL; its interface must be gone.
    #[track_caller]
    pub(crate) fn detach(&self, attached: &Attached) {
        for time in ["first", "second"] {
            let gone = self.runtime.del(&attached.conf, &attached.container);
            gone.unwrap_or_else(|e| panic!("{}, {time} DEL: {e}", attached.conf.name));
        }
        let links = self.sh_in(&attached.name, "ls /sys/class/net 2>/dev/null; ip -o link");
        let ifname = attached.container.ifname.as_str();
        assert!(!links.contains(&format!("{ifname}@")), "{ifname} is left: {links}");
    }

    pub(crate) fn sh(&self, script: &str) -> String {
        self.world.sh(script)
    }

    pub(crate) fn sh_in(&self, netns: &str, script: &str) -> String {
        self.world.sh_in(netns, script)
    }

    /// Whether one echo request from the namespace is answered.
    pub(crate) fn pings(&self, from: &str, to: &str) -> bool {
        let script = format!("ping -c 1 -W 1 {to}");
        self.world.try_sh_in(from, &script).status.success()
    }

    /// Like [`Site::pings`], with patience: neighbours are found, and bridges' ports begin to forward, in their own time.
    #[track_caller]
    pub(crate) fn reaches(&self, from: &str, to: &str) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !self.pings(from, to) {
            assert!(Instant::now() < deadline, "{from} does not reach {to}");
        }
    }

    /// Serves a page at the container's published port, for as long as the site exists.
    pub(crate) fn serve(&self, netns: &str, page: &str) {
        let directory = self.world.tmp().join(format!("www-{netns}"));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("index.html"), page).unwrap();
        let mut server = Command::new("nsenter");
        server.arg(format!("--net=/run/netns/{netns}"));
        server.args(["busybox", "httpd", "-f", "-p", &CONTAINER_PORT.to_string(), "-h"]);
        let server = server
            .arg(directory)
            .stdin(Stdio::null())
            .spawn()
            .expect("busybox httpd");
        self.servers.borrow_mut().push(server);
        self.fetches(Some(netns), "127.0.0.1", page);
    }

    /// The page at an address, with its port if that is not 80, as seen from a namespace or from the node.
    pub(crate) fn fetch(&self, from: Option<&str>, address: &str) -> Option<String> {
        let script = format!("curl --silent --show-error --noproxy '*' --max-time 2 'http://{address}/'");
        let output = match from {
            Some(netns) => self.world.try_sh_in(netns, &script),
            None => self.world.try_sh(&script),
        };
        let page = String::from_utf8_lossy(&output.stdout).into_owned();
        output.status.success().then_some(page)
    }

    /// Waits until the page at an address is this one.
    #[track_caller]
    pub(crate) fn fetches(&self, from: Option<&str>, address: &str, page: &str) {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let got = self.fetch(from, address);
            if got.as_deref() == Some(page) {
                return;
            }
            assert!(Instant::now() < deadline, "{address} from {from:?}: {got:?}");
            thread::yield_now();
        }
    }
}

impl Drop for Site<'_> {
    fn drop(&mut self) {
        for server in self.servers.get_mut() {
            // It may have ended by itself.
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

/// The plugins under test: those in `FERRULE_BIN`, or where `scripts/build` puts them.
pub(crate) fn plugins() -> PathBuf {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dist/bin");
    let directory = env::var_os("FERRULE_BIN").map_or(built, PathBuf::from);
    assert!(
        directory.join("bridge").exists(),
        "no plugins in {}: run scripts/build, or set FERRULE_BIN",
        directory.display()
    );
    directory
}
