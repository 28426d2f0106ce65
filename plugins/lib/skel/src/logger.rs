//! Diagnostics on standard error: one line each, so that a runtime's log tells which container they belong to.

use std::io::Write;
use std::sync::OnceLock;

use log::{Level, LevelFilter, Log, Metadata, Record};

use crate::environment::Environment;

struct Stderr {
    /// `bridge[ADD c1 eth0]`
    origin: String,
    level: LevelFilter,
}

/// What `CNI_LOG` does, for people.
pub(crate) const VARIABLE: &str = "Which lines go to standard error: error, warn, info, debug or trace.";

static LOGGER: OnceLock<Stderr> = OnceLock::new();

/// Starts logging for a call of `plugin`. `CNI_LOG` is `error`, `warn` (the default), `info`, `debug` or `trace`.
pub(crate) fn start(plugin: &str, env: &Environment) {
    let origin = [env.command.as_str(), &env.container_id, &env.ifname];
    let origin = origin
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join(" ");
    let level = env.log.parse().unwrap_or(LevelFilter::Warn);
    let logger = LOGGER.get_or_init(|| Stderr {
        origin: format!("{plugin}[{origin}]"),
        level,
    });
    if log::set_logger(logger).is_ok() {
        log::set_max_level(logger.level);
    }
    std::panic::set_hook(Box::new(|panic| {
        log::error!("internal error, please report it: {panic}")
    }));
}

impl Log for Stderr {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // The netlink crates' own lines are for their authors.
        metadata.level() <= self.level && !metadata.target().starts_with("netlink")
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let level = match record.level() {
            Level::Error => "error",
            Level::Warn => "warning",
            Level::Info => "info",
            Level::Debug => "debug",
            Level::Trace => "trace",
        };
        let line = format!("{}: {level}: {}\n", self.origin, record.args());
        // Nobody may be reading, and there is nowhere else to say so.
        let _ = std::io::stderr().write_all(line.as_bytes());
    }

    fn flush(&self) {}
}
