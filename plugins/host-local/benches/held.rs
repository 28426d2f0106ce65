//! ADD and DEL as whole processes, by the number of addresses held, for several executables side by side.
//!
//! `cargo bench -p host-local -- [REPETITIONS] [NAME=DIRECTORY ...]`: each directory holds a `host-local`; ours is always the first.
//! The executables take turns within each repetition, so that they see the same machine. Prints the medians in
//! milliseconds, and as ratios what the number of addresses held costs each of them.
#![allow(clippy::disallowed_methods, reason = "the processes that are measured")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a benchmark that cannot go on must stop"
)]
#![allow(clippy::print_stdout, reason = "its figures")]

use std::fs;
use std::io::Write;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// The state of a pool of 10.0.0.0/16: who is held, and the cursor.
struct Scene {
    name: &'static str,
    held: fn() -> Vec<u16>,
    cursor: u16,
}

const SCENES: [Scene; 4] = [
    Scene {
        name: "10 held",
        held: || (2..12).collect(),
        cursor: 11,
    },
    Scene {
        name: "10,000 held",
        held: || (2..10_002).collect(),
        cursor: 10_001,
    },
    Scene {
        name: "60,000 held",
        held: || (2..60_002).collect(),
        cursor: 60_001,
    },
    Scene {
        name: "all held but one in the middle",
        held: || (2..65_535).filter(|host| *host != 32_000).collect(),
        cursor: 32_000,
    },
];

fn main() {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with("--"))
        .collect();
    let repetitions = arguments
        .iter()
        .find_map(|argument| argument.parse().ok())
        .unwrap_or(41);
    let mut plugins = vec![("ours".to_owned(), PathBuf::from(env!("CARGO_BIN_EXE_host-local")))];
    for (name, directory) in arguments.iter().filter_map(|argument| argument.split_once('=')) {
        plugins.push((name.to_owned(), Path::new(directory).join("host-local")));
    }
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("held-{}", std::process::id()));
    let mut first: Vec<Option<[f64; 2]>> = vec![None; plugins.len()];
    println!(
        "{:32} {:12} {:>9} {:>9} {:>11} {:>11}",
        "pool", "plugin", "ADD ms", "DEL ms", "ADD ratio", "DEL ratio"
    );
    for (at, scene) in SCENES.iter().enumerate() {
        let data: Vec<PathBuf> = plugins
            .iter()
            .map(|(name, _)| root.join(format!("{at}-{name}")))
            .collect();
        data.iter().for_each(|data| fill(data, scene));
        let mut times = vec![[Vec::new(), Vec::new()]; plugins.len()];
        // The first two rounds warm caches, ours included.
        for round in 0..repetitions + 2 {
            for (((_, plugin), data), times) in plugins.iter().zip(&data).zip(&mut times) {
                for (verb, times) in ["ADD", "DEL"].iter().zip(times) {
                    let time = call(plugin, data, verb, &format!("c{round}"));
                    if round >= 2 {
                        times.push(time);
                    }
                }
            }
        }
        for (((name, _), times), first) in plugins.iter().zip(times).zip(&mut first) {
            let [add, del] = times.map(median);
            let [add_first, del_first] = *first.get_or_insert([add, del]);
            let (add_ratio, del_ratio) = (add / add_first, del / del_first);
            println!(
                "{:32} {name:12} {add:9.2} {del:9.2} {add_ratio:11.2} {del_ratio:11.2}",
                scene.name
            );
        }
    }
    fs::remove_dir_all(root).expect("the data directories");
}

fn fill(data: &Path, scene: &Scene) {
    let network = data.join("n");
    fs::create_dir_all(&network).expect("a data directory");
    let ip = |host: u16| Ipv4Addr::from(0x0a00_0000 | u32::from(host)).to_string();
    for host in (scene.held)() {
        fs::write(network.join(ip(host)), format!("{host:064x}\r\neth0")).expect("a reservation");
    }
    fs::write(network.join("last_reserved_ip.0"), ip(scene.cursor)).expect("the cursor");
}

/// Milliseconds from the start of a process to its end.
fn call(plugin: &Path, data: &Path, verb: &str, id: &str) -> f64 {
    let conf = format!(
        r#"{{"cniVersion":"1.0.0","name":"n","type":"bench","ipam":{{"type":"host-local","dataDir":"{}","ranges":[[{{"subnet":"10.0.0.0/16"}}]]}}}}"#,
        data.display()
    );
    let start = Instant::now();
    let mut child = Command::new(plugin)
        .envs([
            ("CNI_COMMAND", verb),
            ("CNI_CONTAINERID", id),
            ("CNI_NETNS", "/nowhere"),
        ])
        .envs([("CNI_IFNAME", "eth0"), ("CNI_PATH", "/nowhere")])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("a plugin");
    child
        .stdin
        .take()
        .expect("its input")
        .write_all(conf.as_bytes())
        .expect("its input");
    assert!(child.wait().expect("its end").success(), "{} {verb}", plugin.display());
    start.elapsed().as_secs_f64() * 1e3
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or_default()
}
