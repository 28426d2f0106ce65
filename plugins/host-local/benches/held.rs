//! ADD and DEL as whole processes, by the number of addresses held, for several executables side by side.
//!
//! `cargo bench -p host-local --bench held -- [ROUNDS] [NAME=DIRECTORY ...]`: each directory holds a `host-local`; ours is always
//! the first. Every round calls all of them on all pools, so that all see the same machine; the others take part in the
//! first rounds only, because they need seconds. Prints medians in milliseconds, and what each pool costs as a ratio to
//! the smallest one of the same round.
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

/// The rounds that a foreign executable takes part in.
const FOREIGN_ROUNDS: usize = 5;

/// A plugin on a pool, and its times of ADD and DEL by round.
struct Series {
    plugin: usize,
    scene: &'static Scene,
    data: PathBuf,
    times: [Vec<f64>; 2],
}

fn main() {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with("--"))
        .collect();
    let rounds = arguments
        .iter()
        .find_map(|argument| argument.parse().ok())
        .unwrap_or(101);
    let mut plugins = vec![("ours".to_owned(), PathBuf::from(env!("CARGO_BIN_EXE_host-local")))];
    for (name, directory) in arguments.iter().filter_map(|argument| argument.split_once('=')) {
        plugins.push((name.to_owned(), Path::new(directory).join("host-local")));
    }
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("held-{}", std::process::id()));
    let mut all = Vec::new();
    for (plugin, (name, executable)) in plugins.iter().enumerate() {
        for (at, scene) in SCENES.iter().enumerate() {
            let data = root.join(format!("{at}-{name}"));
            fill(&data, scene);
            // To warm caches, ours included.
            for verb in ["ADD", "DEL"] {
                call(executable, &data, verb, "first");
            }
            all.push(Series {
                plugin,
                scene,
                data,
                times: [Vec::new(), Vec::new()],
            });
        }
    }
    for round in 0..rounds {
        for series in all
            .iter_mut()
            .filter(|series| series.plugin == 0 || round < FOREIGN_ROUNDS)
        {
            let Some((_, executable)) = plugins.get(series.plugin) else {
                continue;
            };
            for (verb, times) in ["ADD", "DEL"].iter().zip(&mut series.times) {
                times.push(call(executable, &series.data, verb, &format!("c{round}")));
            }
        }
    }
    println!(
        "{:32} {:12} {:>9} {:>9} {:>11} {:>11}",
        "pool", "plugin", "ADD ms", "DEL ms", "ADD ratio", "DEL ratio"
    );
    for series in &all {
        let Some(smallest) = all.iter().find(|other| other.plugin == series.plugin) else {
            continue;
        };
        let name = plugins.get(series.plugin).map_or("", |(name, _)| name);
        let [add, del] = [0, 1].map(|verb: usize| -> [f64; 2] {
            let (Some(times), Some(base)) = (series.times.get(verb), smallest.times.get(verb)) else {
                return [f64::NAN; 2];
            };
            [
                median(times.clone()),
                median(times.iter().zip(base).map(|(time, base)| time / base).collect()),
            ]
        });
        let ([add, add_ratio], [del, del_ratio]) = (add, del);
        println!(
            "{:32} {name:12} {add:9.2} {del:9.2} {add_ratio:11.2} {del_ratio:11.2}",
            series.scene.name
        );
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
