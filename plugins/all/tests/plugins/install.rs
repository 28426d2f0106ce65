//! `scripts/install` and `scripts/uninstall`: what is in the plugin directory before and after, by every shell.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Output;

use testkit::World;

use crate::suite::Suite;

/// The tools that the scripts may use: what busybox has.
const TOOLS: &str = "cat chmod cp cut dirname grep ln mkdir mv rm sed sh sha256sum sort sync tr wc";

/// Shells that the scripts have to run in.
pub(crate) const SHELLS: [&str; 3] = ["bash", "dash", "busybox sh"];

/// A plugin directory, and the release that is installed into it. Everything below a root of its own.
pub(crate) struct Node<'a> {
    pub(crate) w: &'a World,
    pub(crate) shell: &'static str,
    /// The release.
    pub(crate) from: PathBuf,
    /// What the scripts find in PATH.
    pub(crate) path: String,
}

impl<'a> Node<'a> {
    pub(crate) fn new(w: &'a World, shell: &'static str) -> Node<'a> {
        let tmp = w.tmp().display();
        w.sh(&format!(
            "mkdir {tmp}/tools; for tool in {TOOLS}; do ln -s $(which busybox) {tmp}/tools/$tool; done"
        ));
        // A file system of its own: links into the release are impossible, as they are on a real node.
        w.sh(&format!("mkdir {tmp}/root; mount -t tmpfs tmpfs {tmp}/root"));
        Node {
            w,
            shell,
            from: Suite::install(w).bin().to_owned(),
            path: format!("{tmp}/tools"),
        }
    }

    fn root(&self) -> PathBuf {
        self.w.tmp().join("root")
    }

    pub(crate) fn bin(&self) -> PathBuf {
        self.root().join("opt/cni/bin")
    }

    fn settings(&self) -> PathBuf {
        self.root().join("etc/cni/ferrule.json")
    }

    /// Runs a script with arguments.
    pub(crate) fn script(&self, script: &str, arguments: &str) -> Output {
        let shell = match self.shell {
            "busybox sh" => "$(which busybox) sh".to_owned(),
            shell => format!("$(which {shell})"),
        };
        let (path, script, root) = (&self.path, script_path(script), self.root());
        let (script, root) = (script.display(), root.display());
        self.w.try_sh(&format!(
            "exec env -i PATH={path} {shell} {script} {arguments} --root {root}"
        ))
    }

    /// Installs the release, and returns what was said.
    #[track_caller]
    pub(crate) fn install(&self, arguments: &str) -> String {
        succeeded(&self.script("install", &format!("--from {} {arguments}", self.from.display())))
    }

    #[track_caller]
    pub(crate) fn roll_back(&self) {
        succeeded(&self.script("install", "--rollback"));
    }

    /// Everything in a directory: kinds, modes, times, owners, contents, and where links lead.
    pub(crate) fn listing(&self, directory: &Path) -> String {
        let script = "find . ! -path . -printf '%p %y %m %u %T@ %s %l\\n' | sort; find . -type f -exec sha256sum {} + | sort -k 2";
        self.w.sh(&format!("cd {}; {script}", directory.display()))
    }

    /// Fills the plugin directory with another suite: a plugin of ours with a narrow mode, one that is a link, and one that
    /// ferrule does not have.
    pub(crate) fn with_another_suite(&self) -> String {
        let bin = self.bin();
        self.w.sh(&format!(
            "mkdir -p {bin}; cd {bin}
            echo 'their bridge' > bridge; chmod 4750 bridge; touch -d 2020-01-01 bridge
            echo 'their portmap' > portmap.real; ln -s portmap.real portmap
            echo 'their macvlan' > macvlan; chmod 755 macvlan",
            bin = bin.display()
        ));
        self.listing(&bin)
    }

    /// Asserts that every plugin is there and answers.
    #[track_caller]
    pub(crate) fn assert_installed(&self) {
        for plugin in self.plugins() {
            let file = self.bin().join(&plugin);
            let answer = self.w.sh(&format!("CNI_COMMAND=VERSION {} </dev/null", file.display()));
            assert!(answer.contains("1.1.0"), "{plugin}: {answer}");
        }
    }

    pub(crate) fn plugins(&self) -> Vec<String> {
        let list = self.w.sh(&format!("{}/ferrule list", self.from.display()));
        list.lines().map(str::to_owned).collect()
    }
}

pub(crate) fn script_path(script: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts").join(script)
}

/// What was said on standard output by what has to succeed.
#[track_caller]
pub(crate) fn succeeded(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What was said on standard error by what has to fail with this exit code.
#[track_caller]
pub(crate) fn failed(output: &Output, code: i32) -> String {
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_fresh_directory_gets_one_file_under_all_names_and_loses_it_again() {
    for shell in SHELLS {
        testkit::world(|w| {
            let node = Node::new(w, shell);
            let said = node.install("");
            assert!(said.contains("backend nftables: "), "{said}");
            node.assert_installed();
            let inode = |name: &str| fs::metadata(node.bin().join(name)).unwrap().ino();
            for plugin in node.plugins() {
                assert_eq!(inode(&plugin), inode("ferrule"), "{plugin}");
            }
            let settings = fs::read_to_string(node.settings()).unwrap();
            assert_eq!(settings, "{\n  \"backend\": \"nftables\"\n}\n");
            node.roll_back();
            assert_eq!(node.listing(&node.bin()), "", "{shell}");
            assert!(!node.settings().exists());
            let again = failed(&node.script("install", "--rollback"), 1);
            assert!(again.contains("nothing to roll back"), "{again}");
        });
    }
}

#[test]
fn another_suite_comes_back_as_it_was_however_often_ferrule_was_installed() {
    for shell in SHELLS {
        testkit::world(|w| {
            let mut node = Node::new(w, shell);
            let before = node.with_another_suite();
            node.install("");
            node.assert_installed();
            let macvlan = fs::read_to_string(node.bin().join("macvlan")).unwrap();
            assert_eq!(macvlan, "their macvlan\n", "a plugin that ferrule does not have stays");
            let installed = node.listing(&node.bin());
            node.install("");
            assert_eq!(node.listing(&node.bin()), installed, "a second time changes nothing");

            // Another version of ferrule: what it finds is not another suite's.
            let newer = w.tmp().join("newer");
            w.sh(&format!(
                "mkdir {newer}; cp {from}/ferrule {newer}/; echo >> {newer}/ferrule",
                from = node.from.display(),
                newer = newer.display()
            ));
            node.from = newer;
            node.install("");
            node.assert_installed();
            assert_ne!(node.listing(&node.bin()), installed);

            node.roll_back();
            assert_eq!(node.listing(&node.bin()), before, "{shell}");
        });
    }
}

#[test]
fn what_was_put_there_since_is_newer_than_what_is_remembered() {
    testkit::world(|w| {
        let node = Node::new(w, "dash");
        node.with_another_suite();
        node.install("");
        // A package that brings a new release of the other suite, before and after ferrule is installed again.
        let write = |text: &str| {
            let bridge = node.bin().join("bridge");
            w.sh(&format!(
                "rm {bridge}; echo {text} > {bridge}",
                bridge = bridge.display()
            ));
        };
        write("newer");
        node.install("");
        node.assert_installed();
        node.roll_back();
        let bridge = || fs::read_to_string(node.bin().join("bridge")).unwrap();
        assert_eq!(bridge(), "newer\n");

        node.install("");
        write("newest");
        node.roll_back();
        assert_eq!(bridge(), "newest\n");
    });
}

#[test]
fn a_directory_that_cannot_be_written_is_left_alone() {
    for shell in SHELLS {
        testkit::world(|w| {
            let node = Node::new(w, shell);
            let before = node.with_another_suite();
            w.sh(&format!("mount -o remount,ro {}", node.root().display()));
            let from = format!("--from {}", node.from.display());
            let said = failed(&node.script("install", &from), 1);
            assert!(said.contains("cannot be written to"), "{said}");
            assert_eq!(node.listing(&node.bin()), before);
        });
    }
}

#[test]
fn wrong_arguments_are_told_in_one_line() {
    testkit::world(|w| {
        for shell in SHELLS {
            let script = |name: &str, arguments: &str| {
                let shell = shell.replace("busybox", "$(which busybox)");
                w.try_sh(&format!("exec {shell} {} {arguments}", script_path(name).display()))
            };
            for arguments in [
                "--frm x",
                "x",
                "--from",
                "--bin-dir",
                "--bin-dir relative",
                "--backend ipfw",
                "--drain",
                "--verify --rollback",
                "--rollback --from /x",
                "--verify --backend auto",
            ] {
                let said = failed(&script("install", arguments), 2);
                assert_eq!(said.lines().count(), 1, "{shell}: {arguments}: {said}");
            }
            for arguments in ["x", "--bin-dir", "--rollback"] {
                let said = failed(&script("uninstall", arguments), 2);
                assert_eq!(said.lines().count(), 1, "{shell}: {arguments}: {said}");
            }
            for name in ["install", "uninstall"] {
                let help = succeeded(&script(name, "--help"));
                assert!(
                    help.contains(&format!("usage: {name}")) && !help.contains("set -eu"),
                    "{help}"
                );
            }
        }
    });
    testkit::world(|w| {
        let node = Node::new(w, "dash");
        let said = failed(&node.script("install", "--from /nowhere"), 1);
        assert!(said.contains("no ferrule in /nowhere"), "{said}");
        w.sh(&format!(
            "mkdir {0}/other; echo text > {0}/other/ferrule",
            w.tmp().display()
        ));
        let said = failed(
            &node.script("install", &format!("--from {}/other", w.tmp().display())),
            1,
        );
        assert!(said.contains("does not run on this machine"), "{said}");
        assert!(!node.bin().exists());
    });
}

#[test]
fn verify_finds_what_is_wrong() {
    for shell in SHELLS {
        testkit::world(|w| {
            let node = Node::new(w, shell);
            let said = failed(&node.script("install", "--verify"), 1);
            assert!(said.contains("not installed"), "{said}");
            node.install("");
            let verified = succeeded(&node.script("install", "--verify"));
            for plugin in node.plugins() {
                let line = verified.lines().find(|line| line.contains(&format!("/{plugin} ")));
                assert!(line.is_some_and(|line| line.starts_with("ok ")), "{plugin}: {verified}");
            }
            for check in [
                "nf_tables",
                "bridge",
                "veth",
                "br_netfilter",
                "ip_forward",
                "iptables",
                "networks",
                "backend",
            ] {
                assert!(verified.contains(&format!(" {check} ")), "{check}: {verified}");
            }
            w.sh(&format!(
                "cd {}; rm portmap; echo theirs > portmap; rm ptp",
                node.bin().display()
            ));
            let output = node.script("install", "--verify");
            let found = String::from_utf8_lossy(&output.stdout);
            assert_eq!(output.status.code(), Some(1), "{found}");
            for plugin in ["portmap", "ptp"] {
                let not_ours = format!("{plugin} is not ferrule's; remedy: run install again");
                assert!(found.contains(&not_ours), "{found}");
            }
        });
    }
}

#[test]
fn the_backend_suits_the_node_and_other_settings_stay() {
    testkit::world(|w| {
        let mut node = Node::new(w, "dash");
        // Where iptables is.
        node.path.push_str(":/usr/sbin");
        fs::create_dir_all(node.settings().parent().unwrap()).unwrap();
        fs::write(node.settings(), r#"{"other": 1}"#).unwrap();
        w.sh("iptables -t nat -A POSTROUTING -d 10.0.0.0/8 -j ACCEPT");
        let said = node.install("");
        assert!(
            said.contains("backend iptables: nat POSTROUTING has exemptions"),
            "{said}"
        );
        assert!(said.contains("-d 10.0.0.0/8 -j ACCEPT"), "{said}");
        assert_eq!(
            fs::read_to_string(node.settings()).unwrap(),
            "{\n  \"backend\": \"iptables\",\n  \"other\": 1\n}\n"
        );

        w.sh("iptables -t nat -F POSTROUTING");
        let said = node.install("");
        assert!(said.contains("backend as set in"), "{said}");
        let said = node.install("--backend auto");
        assert!(said.contains("backend nftables: "), "{said}");
        w.sh(&format!(
            "printf '#!/bin/sh\\n' > {0}/nerdctl; chmod 755 {0}/nerdctl",
            w.tmp().display()
        ));
        node.path = format!("{}:{}", node.path, w.tmp().display());
        let said = node.install("--backend auto");
        assert!(
            said.contains("backend iptables: ") && said.contains("/nerdctl finds published ports"),
            "{said}"
        );
        let said = node.install("--backend nftables");
        assert!(said.contains("backend nftables: as asked for"), "{said}");

        node.roll_back();
        assert_eq!(fs::read_to_string(node.settings()).unwrap(), r#"{"other": 1}"#);
    });
}

#[test]
fn a_plugin_directory_is_uninstalled_when_nothing_is_attached() {
    for shell in SHELLS {
        testkit::world(|w| {
            let node = Node::new(w, shell);
            let said = failed(&node.script("uninstall", ""), 1);
            assert!(said.contains("nothing was installed"), "{said}");
            let before = node.with_another_suite();
            node.install("");
            let address = "/var/lib/cni/networks/net1/10.1.0.2";
            w.sh(&format!(
                "mkdir -p $(dirname {address}); touch {address} $(dirname {address})/last_reserved_ip.0"
            ));
            let said = failed(&node.script("uninstall", ""), 1);
            assert!(
                said.contains(address) && said.contains("containers are attached"),
                "{said}"
            );
            node.assert_installed();
            w.sh(&format!("rm {address}"));
            succeeded(&node.script("uninstall", ""));
            assert_eq!(node.listing(&node.bin()), before, "{shell}");
        });
    }
}
