//! The plugin `host-local` as an executable of its own.

use std::process::ExitCode;

fn main() -> ExitCode {
    skel::run::<host_local::HostLocal>()
}
