//! A data directory with one network, and calls of the plugin for it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};
use testkit::{Reply, call_plugin};

/// Our executable.
pub(crate) fn ours() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_host-local"))
}

/// The reference's executable, from the directory in `FERRULE_REFERENCE`; without it the test is skipped.
pub(crate) fn reference() -> Option<PathBuf> {
    let found = std::env::var_os("FERRULE_REFERENCE").map(|dir| Path::new(&dir).join("host-local"));
    let found = found.filter(|path| path.exists());
    if found.is_none() {
        testkit::skip("FERRULE_REFERENCE names no directory with the reference's host-local");
    }
    found
}

/// The network `n` in a data directory that disappears with the value.
pub(crate) struct Pool {
    data: PathBuf,
    ipam: Value,
    owns_files: bool,
}

impl Pool {
    /// A network whose `ipam` has these keys.
    pub(crate) fn new(ipam: Value) -> Pool {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let data = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("pool-{}-{serial}", std::process::id()));
        let _ = fs::remove_dir_all(&data);
        Pool::at(data, ipam)
    }

    /// The same in a directory of the caller's.
    pub(crate) fn at(data: PathBuf, ipam: Value) -> Pool {
        Pool {
            data,
            ipam,
            owns_files: true,
        }
    }

    /// One old-style range.
    pub(crate) fn subnet(subnet: &str) -> Pool {
        Pool::new(json!({ "subnet": subnet }))
    }

    /// The same directory with other keys in `ipam`.
    pub(crate) fn with(&self, ipam: Value) -> Pool {
        // Its drop must not remove the files: only the first one owns them.
        Pool {
            data: self.data.clone(),
            ipam,
            owns_files: false,
        }
    }

    pub(crate) fn data(&self) -> &Path {
        &self.data
    }

    pub(crate) fn directory(&self) -> PathBuf {
        self.data.join("n")
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory().join(name)
    }

    pub(crate) fn cache(&self) -> PathBuf {
        self.data.join(".ferrule")
    }

    /// The configuration on standard input, with more keys of the top level.
    pub(crate) fn conf(&self, more: &Value) -> String {
        let mut conf = json!({ "cniVersion": "1.1.0", "name": "n", "type": "bridge", "ipam": self.ipam });
        conf["ipam"]["type"] = "host-local".into();
        conf["ipam"]["dataDir"] = self.data.to_str().unwrap().into();
        for (key, value) in more.as_object().into_iter().flatten() {
            conf[key] = value.clone();
        }
        conf.to_string()
    }

    /// A call of an executable with variables beside the usual ones, and more keys of the configuration.
    pub(crate) fn call_of(
        &self,
        plugin: &Path,
        verb: &str,
        id: &str,
        variables: &[(&str, &str)],
        more: &Value,
    ) -> Reply {
        let mut all = vec![
            ("CNI_COMMAND", verb),
            ("CNI_CONTAINERID", id),
            ("CNI_NETNS", "/nowhere"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_PATH", "/nowhere"),
        ];
        all.retain(|(name, _)| !variables.iter().any(|(other, _)| other == name));
        all.extend(variables);
        call_plugin(plugin, &all, &self.conf(more))
    }

    pub(crate) fn call(&self, verb: &str, id: &str, more: &Value) -> Reply {
        self.call_of(ours(), verb, id, &[], more)
    }

    pub(crate) fn add(&self, id: &str) -> Reply {
        self.call("ADD", id, &Value::Null)
    }

    /// An ADD for a namespace.
    pub(crate) fn add_in(&self, id: &str, netns: &Path) -> Reply {
        self.call_of(
            ours(),
            "ADD",
            id,
            &[("CNI_NETNS", netns.to_str().unwrap())],
            &Value::Null,
        )
    }

    pub(crate) fn del(&self, id: &str) -> Reply {
        self.call("DEL", id, &Value::Null)
    }

    pub(crate) fn gc(&self, valid: &Value) -> Reply {
        self.call("GC", "", &json!({ "cni.dev/valid-attachments": valid }))
    }

    pub(crate) fn status(&self) -> Reply {
        self.call("STATUS", "", &Value::Null)
    }

    /// The addresses that an ADD gets.
    #[track_caller]
    pub(crate) fn addresses(&self, id: &str) -> Vec<String> {
        addresses(&self.add(id))
    }

    /// Writes a reservation as a foreign suite would.
    pub(crate) fn write(&self, ip: &str, content: &str) {
        fs::create_dir_all(self.directory()).unwrap();
        fs::write(self.file(ip), content).unwrap();
    }

    /// What is reserved: the content of each file whose name is an address.
    pub(crate) fn reserved(&self) -> BTreeMap<String, String> {
        let Ok(entries) = fs::read_dir(self.directory()) else {
            return BTreeMap::new();
        };
        let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
        let names = entries
            .map(name)
            .filter(|name| name.parse::<std::net::IpAddr>().is_ok());
        names
            .map(|name| (name.clone(), fs::read_to_string(self.file(&name)).unwrap()))
            .collect()
    }

    pub(crate) fn cursor(&self, set: usize) -> Option<String> {
        fs::read_to_string(self.file(&format!("last_reserved_ip.{set}"))).ok()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if self.owns_files {
            let _ = fs::remove_dir_all(&self.data);
        }
    }
}

/// The addresses of a result, without their prefix lengths.
#[track_caller]
pub(crate) fn addresses(reply: &Reply) -> Vec<String> {
    let result = reply.success();
    let ips = result["ips"].as_array().unwrap().clone();
    ips.iter()
        .map(|ip| ip["address"].as_str().unwrap().split('/').next().unwrap().to_owned())
        .collect()
}
