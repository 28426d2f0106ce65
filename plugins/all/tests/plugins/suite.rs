//! The suite as it is installed.

use std::path::{Path, PathBuf};

use testkit::{Reply, World, call_plugin, plugin_directory};

/// A plugin directory in a test's world.
#[derive(Clone)]
pub(crate) struct Suite {
    bin: PathBuf,
}

impl Suite {
    /// Installs the executable under test under every plugin's name.
    pub(crate) fn install(w: &World) -> Suite {
        let ferrule = Path::new(env!("CARGO_BIN_EXE_ferrule"));
        let list = w.sh(&format!("{} list", ferrule.display()));
        Suite {
            bin: plugin_directory(w.tmp(), ferrule, &list.lines().collect::<Vec<_>>()),
        }
    }

    /// The plugins in a directory, whoever put them there.
    pub(crate) fn at(bin: &Path) -> Suite {
        Suite { bin: bin.to_owned() }
    }

    /// Calls a plugin for a container, as a runtime does.
    pub(crate) fn call(
        &self,
        plugin: &str,
        verb: &str,
        container_id: &str,
        netns: &Path,
        ifname: &str,
        conf: &str,
    ) -> Reply {
        let variables = [
            ("CNI_COMMAND", verb),
            ("CNI_CONTAINERID", container_id),
            ("CNI_NETNS", netns.to_str().unwrap()),
            ("CNI_IFNAME", ifname),
            ("CNI_PATH", self.bin.to_str().unwrap()),
        ];
        call_plugin(&self.bin.join(plugin), &variables, conf)
    }

    /// Calls a plugin for a network as a whole: GC or STATUS.
    pub(crate) fn call_bare(&self, plugin: &str, verb: &str, conf: &str) -> Reply {
        let variables = [("CNI_COMMAND", verb), ("CNI_PATH", self.bin.to_str().unwrap())];
        call_plugin(&self.bin.join(plugin), &variables, conf)
    }

    /// The plugin directory.
    pub(crate) fn bin(&self) -> &Path {
        &self.bin
    }
}
