//! The `ptp` plugin as an executable of its own.

fn main() -> std::process::ExitCode {
    skel::run::<ptp::Ptp>()
}
