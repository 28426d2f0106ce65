//! Diagnostics: one line each, on standard error or in a file, so that a runtime's log tells which container they belong to.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cni_types::wire::{self, Value};
use cni_types::{Error, NetConf, Result};
use log::{Level, LevelFilter, Log, Metadata, Record};
use schemars::{Schema, json_schema};
use serde::Deserialize;

use crate::environment::Environment;
use crate::time;

/// What `CNI_LOG` does, for people.
pub(crate) const VARIABLE: &str = "Which lines are written: error, warn, info, debug or trace. They go to standard error; with a \
                                   file after a colon, as in debug:/var/log/ferrule.log, they are appended to that, and standard \
                                   error keeps warnings and errors. It comes before the key log.";

/// The key `log`, for people and for schemas.
pub(crate) fn key() -> Schema {
    json_schema!({
        "description": "Which lines are written: a level, for standard error; or a level and a file to append them to, while standard \
                        error keeps warnings and errors. The variable CNI_LOG comes before it. The reference has no such key.",
        "oneOf": [
            { "type": "string", "enum": LEVELS },
            {
                "type": "object",
                "properties": {
                    "level": { "description": "The least that is written.", "type": "string", "enum": LEVELS, "default": "debug" },
                    "file": { "description": "The file, by an absolute path. It is made with mode 0600.", "type": "string" },
                },
            },
        ],
    })
}

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// What shall be written, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Wanted {
    level: LevelFilter,
    /// Without it, standard error.
    file: Option<PathBuf>,
}

impl Wanted {
    /// `CNI_LOG`: a level, or a level and a file with a colon between them.
    fn of_variable(text: &str) -> Result<Wanted> {
        let (level, file) = match text.split_once(':') {
            Some((level, file)) => (level, Some(file)),
            None => (text, None),
        };
        Wanted::new("CNI_LOG", level, file)
    }

    /// The key `log`.
    fn of_key(value: &Value) -> Result<Wanted> {
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct Keys {
            level: String,
            file: String,
        }

        if let Some(level) = value.as_str() {
            return Wanted::new("log", level, None);
        }
        let keys: Keys = wire::decode(value).map_err(|e| Error::from(e).context("log"))?;
        let level = if keys.level.is_empty() { "debug" } else { &keys.level };
        Wanted::new("log", level, Some(keys.file.as_str()).filter(|file| !file.is_empty()))
    }

    fn new(said_in: &str, level: &str, file: Option<&str>) -> Result<Wanted> {
        let unusable = |what: String| Error::config(format!("{said_in}: {what}"));
        let named = LEVELS.contains(&level).then(|| level.parse().ok()).flatten();
        let level = named.ok_or_else(|| unusable(format!("{level:?} is no level: one of {} is", LEVELS.join(", "))))?;
        let file = file.map(PathBuf::from);
        if let Some(file) = file.as_ref().filter(|file| !file.is_absolute()) {
            return Err(unusable(format!("{file:?} is no absolute path")));
        }
        Ok(Wanted { level, file })
    }
}

struct Logger {
    began: Instant,
    /// `ADD c1 eth0`
    call: String,
    /// Whether `CNI_LOG` has said what is to be written.
    is_decided: bool,
    state: Mutex<State>,
}

struct State {
    /// The plugin that runs: delegates do so in this very process.
    plugin: &'static str,
    to_stderr: LevelFilter,
    file: Option<(LevelFilter, File)>,
}

static LOGGER: OnceLock<Logger> = OnceLock::new();

/// Starts logging for a program that people start, as `CNI_LOG` says or, without it, with warnings.
pub fn log_as(program: &'static str) {
    let log = Environment::read().log;
    start(
        program,
        &Environment {
            log,
            ..Environment::default()
        },
    );
}

/// Starts logging for a call of `plugin`, as `CNI_LOG` says or, without it, with warnings.
pub(crate) fn start(plugin: &'static str, env: &Environment) {
    let call = [env.command.as_str(), &env.container_id, &env.ifname];
    let call: Vec<&str> = call.into_iter().filter(|part| !part.is_empty()).collect();
    let logger = LOGGER.get_or_init(|| Logger {
        began: Instant::now(),
        call: call.join(" "),
        is_decided: !env.log.is_empty(),
        state: Mutex::new(State {
            plugin,
            to_stderr: LevelFilter::Warn,
            file: None,
        }),
    });
    if log::set_logger(logger).is_ok() {
        log::set_max_level(LevelFilter::Warn);
    }
    std::panic::set_hook(Box::new(|panic| {
        log::error!("internal error, please report it: {panic}")
    }));
    if logger.is_decided {
        match Wanted::of_variable(&env.log) {
            Ok(wanted) => logger.write_as(wanted),
            Err(e) => log::warn!("{e}; only warnings are written"),
        }
    }
}

/// Logs as the key `log` says, unless `CNI_LOG` said otherwise.
///
/// # Errors
///
/// What is no level, and a path that is not absolute. A file that cannot be opened is none: it is warned of.
pub(crate) fn configure(conf: &NetConf) -> Result<()> {
    let Some(value) = conf.value().field("log") else {
        return Ok(());
    };
    let wanted = Wanted::of_key(value)?;
    match LOGGER.get() {
        Some(logger) if !logger.is_decided => logger.write_as(wanted),
        _ => {}
    }
    Ok(())
}

/// Runs a step of another plugin in this process, under its name.
pub(crate) fn speaking_as<R>(plugin: &'static str, step: impl FnOnce() -> R) -> R {
    let swap = |name| {
        LOGGER
            .get()
            .map(|logger| std::mem::replace(&mut logger.state().plugin, name))
    };
    let before = swap(plugin);
    let result = step();
    before.and_then(swap);
    result
}

impl Logger {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_as(&self, wanted: Wanted) {
        // A plugin and its delegate in one process say the same twice.
        if self.state().file.is_some() {
            return;
        }
        let Wanted {
            level,
            file: Some(path),
        } = wanted
        else {
            self.state().to_stderr = wanted.level;
            log::set_max_level(wanted.level);
            return;
        };
        // A pipe that nobody reads must not stop a container.
        let opened = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .custom_flags(nix::fcntl::OFlag::O_NONBLOCK.bits())
            .open(&path);
        match opened {
            Ok(file) => {
                self.state().file = Some((level, file));
                log::set_max_level(level.max(LevelFilter::Warn));
            }
            Err(e) => log::warn!("{}: {e}: nothing is written there", path.display()),
        }
    }

    fn line(&self, plugin: &str, record: &Record<'_>, elapsed: Option<Duration>) -> String {
        let level = match record.level() {
            Level::Error => "error",
            Level::Warn => "warning",
            Level::Info => "info",
            Level::Debug => "debug",
            Level::Trace => "trace",
        };
        let elapsed = elapsed
            .map(|elapsed| format!(" +{:.3}ms", elapsed.as_secs_f64() * 1000.0))
            .unwrap_or_default();
        // One line each, whatever a program has said.
        let text = record.args().to_string().trim_end().replace('\n', " | ");
        format!("{plugin}[{}]{elapsed}: {level}: {text}\n", self.call)
    }
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // The netlink crates' own lines are for their authors.
        metadata.level() <= log::max_level() && !metadata.target().starts_with("netlink")
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let elapsed = self.began.elapsed();
        let mut state = self.state();
        let plugin = state.plugin;
        if record.level() <= state.to_stderr {
            // Times are for whoever asked for steps: a warning is read without them.
            let elapsed = (state.to_stderr > LevelFilter::Warn).then_some(elapsed);
            // Nobody may be reading, and there is nowhere else to say so.
            let _ = std::io::stderr().write_all(self.line(plugin, record, elapsed).as_bytes());
        }
        if let Some((_, file)) = state.file.as_mut().filter(|(level, _)| record.level() <= *level) {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let time = time::utc(now.as_secs().try_into().unwrap_or_default());
            let line = format!("{time} {}", self.line(plugin, record, Some(elapsed)));
            // In one write: the file is open for appending, so that lines of several processes stay whole.
            let _ = file.write_all(line.as_bytes());
        }
    }

    fn flush(&self) {}
}

#[cfg(test)]
mod tests {
    use cni_types::Code;

    use super::*;

    fn of_key(json: &str) -> Result<Wanted> {
        Wanted::of_key(&wire::parse(json.as_bytes()).unwrap())
    }

    #[test]
    fn a_level_or_a_level_and_a_file() {
        let wanted = |level, file: Option<&str>| Wanted {
            level,
            file: file.map(PathBuf::from),
        };
        assert_eq!(of_key(r#""info""#), Ok(wanted(LevelFilter::Info, None)));
        assert_eq!(of_key(r#"{"file":"/l"}"#), Ok(wanted(LevelFilter::Debug, Some("/l"))));
        assert_eq!(
            of_key(r#"{"level":"warn","file":"/l"}"#),
            Ok(wanted(LevelFilter::Warn, Some("/l")))
        );
        assert_eq!(of_key("{}"), Ok(wanted(LevelFilter::Debug, None)));
        assert_eq!(Wanted::of_variable("debug"), Ok(wanted(LevelFilter::Debug, None)));
        assert_eq!(
            Wanted::of_variable("trace:/a:b"),
            Ok(wanted(LevelFilter::Trace, Some("/a:b")))
        );
    }

    #[test]
    fn unusable_values_are_refused() {
        for (json, msg) in [
            (
                r#""loud""#,
                r#"log: "loud" is no level: one of off, error, warn, info, debug, trace is"#,
            ),
            (r#"{"file":"x"}"#, r#"log: "x" is no absolute path"#),
            (
                r#"{"level":5}"#,
                "log: level: invalid type: integer `5`, expected a string",
            ),
            ("5", "log: invalid type: integer `5`, expected an object"),
        ] {
            let error = of_key(json).unwrap_err();
            assert_eq!((error.code, error.msg.as_str()), (Code::INVALID_CONFIG, msg));
        }
        assert!(Wanted::of_variable("yes").unwrap_err().msg.starts_with("CNI_LOG: "));
    }
}
