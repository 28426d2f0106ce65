//! A container image without a registry.

use std::fs;
use std::path::PathBuf;

use crate::lab::Lab;

/// The image's name. Without a tag of a registry's, containerd finds it by this name alone.
pub(crate) const NAME: &str = "localhost/pause:test";

/// Makes the archive of an image that holds busybox, a static program, and sleeps: the process of a pod only has to be
/// there. It is the smallest archive that `ctr images import` takes, of the kind that `docker save` writes.
pub(crate) fn archive(lab: &Lab) -> PathBuf {
    let directory = lab.directory().join("image");
    let root = directory.join("root");
    fs::create_dir_all(root.join("bin")).unwrap();
    fs::copy(lab.sh("command -v busybox"), root.join("bin/busybox")).expect("busybox");
    lab.sh(&format!("cd {}; tar -cf layer.tar -C root .", directory.display()));
    let digest = lab.sh(&format!(
        "sha256sum {}/layer.tar | cut -d ' ' -f 1",
        directory.display()
    ));
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let config = serde_json::json!({
        "architecture": architecture,
        "os": "linux",
        "config": {"Entrypoint": ["/bin/busybox", "sleep", "2147483647"]},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{digest}")]},
    });
    let manifest = serde_json::json!([{"Config": "config.json", "RepoTags": [NAME], "Layers": ["layer.tar"]}]);
    fs::write(directory.join("config.json"), config.to_string()).unwrap();
    fs::write(directory.join("manifest.json"), manifest.to_string()).unwrap();
    lab.sh(&format!(
        "cd {}; tar -cf image.tar manifest.json config.json layer.tar",
        directory.display()
    ));
    directory.join("image.tar")
}
