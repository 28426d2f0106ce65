//! The `tuning` plugin as an executable of its own.

fn main() -> std::process::ExitCode {
    skel::run::<tuning::Tuning>()
}
