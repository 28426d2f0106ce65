//! The suite in one executable: the name that it is started under tells the plugin.

mod node;

use std::path::Path;
use std::process::ExitCode;

use skel::Registered;

/// Every plugin of the suite, and the one place that lists them.
static SUITE: &[Registered] = &[
    Registered::of::<bridge::Bridge>(),
    Registered::of::<firewall::Firewall>(),
    Registered::of::<host_local::HostLocal>(),
    Registered::of::<loopback::Loopback>(),
    Registered::of::<portmap::Portmap>(),
    Registered::of::<ptp::Ptp>(),
    Registered::of::<static_ipam::Static>(),
    Registered::of::<tuning::Tuning>(),
];

fn main() -> ExitCode {
    let mut arguments = std::env::args_os();
    let started_as = arguments.next().unwrap_or_default();
    let name = Path::new(&started_as).file_name().unwrap_or_default();
    let is_plugin = SUITE.iter().any(|plugin| name == plugin.name);
    let command = arguments.next().filter(|_| !is_plugin);
    match command.and_then(|command| node::command(&command)) {
        Some(command) => node::run(command, SUITE, arguments),
        None => skel::run_suite(SUITE),
    }
}
