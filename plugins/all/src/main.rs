//! The suite in one executable: the name that it is started under tells the plugin.

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
    skel::run_suite(SUITE)
}
