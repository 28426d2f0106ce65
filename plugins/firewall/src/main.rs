//! The plugin `firewall` as an executable of its own.

use std::process::ExitCode;

fn main() -> ExitCode {
    skel::run::<firewall::Firewall>()
}
