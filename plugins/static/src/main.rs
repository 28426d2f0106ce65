//! The `static` plugin as an executable of its own.

fn main() -> std::process::ExitCode {
    skel::run::<static_ipam::Static>()
}
