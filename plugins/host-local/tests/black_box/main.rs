//! The plugin as a runtime sees it: its executable, called with files of its own, also beside the reference's.
#![allow(
    clippy::disallowed_methods,
    reason = "tests start programs and read their environment"
)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on must stop"
)]

mod concurrency;
mod cost;
mod crash;
mod format;
mod model;
mod pool;
mod reclaim;
mod refusals;
mod strace;
mod verbs;
