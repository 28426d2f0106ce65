//! From a process's start to a verb and back to its end.

use std::io::{self, IsTerminal, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::ExitCode;

use cni_types::{Attachment, Code, Error, NetConf, Result, Version, wire};
use serde_json::Value as Document;

use crate::context::{Add, Call, Check, Del, Gc, Status};
use crate::delegate::Delegation;
use crate::environment::{Environment, Verb};
use crate::output::Unwritten;
use crate::plugin::{Plugin, Registered};
use crate::undo::{BestEffort, Undo};
use crate::{logger, manual, netns, output, unknown};

/// One call of a plugin: everything that it gets from outside.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) env: Environment,
    /// The configuration as it came: delegates get these bytes.
    pub(crate) stdin: Vec<u8>,
    /// The plugins that this executable holds.
    pub(crate) suite: &'static [Registered],
}

/// The outcome of a verb that succeeded.
pub(crate) struct Reply {
    document: Option<Document>,
    /// What takes it all back, should the result never reach the runtime.
    undo: Undo,
}

impl Reply {
    fn silent() -> Reply {
        Reply {
            document: None,
            undo: Undo::default(),
        }
    }

    pub(crate) fn into_document(self) -> Option<Document> {
        self.document
    }
}

/// The `main` of an executable that is one plugin.
pub fn run<P: Plugin>() -> ExitCode {
    run_plugin(
        &const { [Registered::of::<P>()] }[0],
        const { &[Registered::of::<P>()] },
    )
}

/// The `main` of the suite's executable: the name that it was started under tells the plugin.
///
/// Under any other name it tells what it is.
pub fn run_suite(suite: &'static [Registered]) -> ExitCode {
    let name = std::env::args_os().next().unwrap_or_default();
    let name = Path::new(&name).file_name().unwrap_or_default();
    match suite.iter().find(|plugin| name == plugin.name) {
        Some(plugin) => run_plugin(plugin, suite),
        None => output::explain_suite(suite),
    }
}

fn run_plugin(plugin: &'static Registered, suite: &'static [Registered]) -> ExitCode {
    let env = Environment::read();
    logger::start(plugin.name, &env);
    match env.command.as_str() {
        "" => {
            let arguments: Vec<_> = std::env::args_os().skip(1).collect();
            manual::answer(plugin, &arguments, io::stdin().is_terminal())
        }
        "VERSION" => exit_code(output::print(&output::version_object())),
        _ => answer(plugin, env, suite),
    }
}

fn answer(plugin: &Registered, env: Environment, suite: &'static [Registered]) -> ExitCode {
    let mut request = Request {
        env,
        stdin: Vec::new(),
        suite,
    };
    // Input first: an error of the environment is told in the version of the configuration too.
    let outcome = read_stdin().and_then(|stdin| {
        request.stdin = stdin;
        (plugin.call)(&request)
    });
    match outcome {
        Ok(Reply { document: None, .. }) => ExitCode::SUCCESS,
        Ok(Reply {
            document: Some(document),
            undo,
        }) => match output::print(&document) {
            Ok(()) => ExitCode::SUCCESS,
            Err(Unwritten { error, begun }) => {
                // A runtime that never hears of the attachment will not ask for its DEL.
                undo.unwind();
                let error = Error::io("the result could not be written", &error);
                if begun {
                    log::error!("{error}");
                    return ExitCode::FAILURE;
                }
                refuse(&error, &request.stdin)
            }
        },
        Err(error) => refuse(&error, &request.stdin),
    }
}

/// Tells the runtime of a failure.
fn refuse(error: &Error, stdin: &[u8]) -> ExitCode {
    if let Err(unwritten) = output::print(&output::error_object(error, answer_version(stdin))) {
        log::error!("{error}; and that could not be written: {}", unwritten.error);
    }
    ExitCode::FAILURE
}

fn exit_code(written: Result<(), Unwritten>) -> ExitCode {
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(unwritten) => {
            log::error!("the answer could not be written: {}", unwritten.error);
            ExitCode::FAILURE
        }
    }
}

fn read_stdin() -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if io::stdin().is_terminal() {
        return Ok(bytes);
    }
    let limit = wire::INPUT_LIMIT as u64;
    io::stdin()
        .take(limit)
        .read_to_end(&mut bytes)
        .map_err(|e| Error::io("error reading from stdin", &e))?;
    Ok(bytes)
}

/// The version to write an error in: the configuration's, as far as it can be told.
fn answer_version(stdin: &[u8]) -> Version {
    let value = wire::parse(stdin).ok();
    let told = value
        .as_ref()
        .and_then(|value| value.field("cniVersion")?.as_str()?.parse().ok());
    told.unwrap_or(Version::LATEST)
}

/// A whole call of the plugin `P`, its panics included.
pub(crate) fn call<P: Plugin>(request: &Request) -> Result<Reply> {
    let verb = request.env.verb()?;
    let conf = NetConf::parse(&request.stdin);
    // The order of the reference: the name, then the variables, then the version.
    let conf = match conf {
        Err(e) if e.code == Code::INCOMPATIBLE_VERSION => {
            variables(&request.env, verb)?;
            return Err(e);
        }
        parsed => parsed?,
    };
    let (container_id, ifname) = variables(&request.env, verb)?.unzip();
    allows(conf.cni_version, verb)?;

    let attachment = container_id.zip(ifname).map(|(container_id, ifname)| Attachment {
        network: conf.name.clone(),
        container_id,
        ifname,
    });
    if !matches!(verb, Verb::Add | Verb::Check)
        && let Err(e) = logger::configure(&conf)
    {
        log::warn!("{e}");
    }
    guarded(|| match (verb, attachment) {
        (Verb::Add, Some(attachment)) => add::<P>(request, &conf, attachment),
        (Verb::Check, Some(attachment)) => check::<P>(request, &conf, attachment),
        (Verb::Del, Some(attachment)) => del::<P>(request, &conf, attachment),
        (Verb::Gc, _) => gc::<P>(request, &conf),
        (Verb::Status, _) => P::status(&Status {
            conf: &conf,
            delegation: Delegation(request),
        })
        .map(|()| Reply::silent()),
        (_, None) => Err(Error::internal("a verb of a container without its variables")),
    })
}

pub(crate) type Identity = (cni_types::ContainerId, cni_types::IfName);

/// The variables that name the attachment, for the verbs that have one.
pub(crate) fn variables(env: &Environment, verb: Verb) -> Result<Option<Identity>> {
    if matches!(verb, Verb::Gc | Verb::Status) {
        return Ok(None);
    }
    let invalid = |msg: String| Error::new(Code::INVALID_ENVIRONMENT, msg);
    let id = &env.container_id;
    let id = id
        .parse()
        .map_err(|_| invalid("invalid characters in containerID".into()).with_details(id.as_str()))?;
    let ifname = env.ifname.parse().map_err(|e: cni_types::ParseIfNameError| {
        let limit = format!(
            "CNI_IFNAME is {:?}; an interface name has 1 to {} bytes",
            env.ifname,
            cni_types::IfName::MAX_LEN
        );
        invalid(e.to_string()).with_details(limit)
    })?;
    Ok(Some((id, ifname)))
}

/// Which version has which verb.
pub(crate) fn allows(version: Version, verb: Verb) -> Result<()> {
    let allowed = match verb {
        Verb::Add | Verb::Del => true,
        Verb::Check => version.allows_check(),
        Verb::Gc | Verb::Status => version.allows_gc_and_status(),
    };
    if allowed {
        return Ok(());
    }
    Err(Error::new(
        Code::INCOMPATIBLE_VERSION,
        format!("config version does not allow {}", verb.as_str()),
    ))
}

/// A panic is a bug; the runtime gets an error object all the same.
fn guarded<R>(step: impl FnOnce() -> Result<R>) -> Result<R> {
    catch_unwind(AssertUnwindSafe(step)).unwrap_or_else(|cause| {
        let text = cause
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| cause.downcast_ref::<String>().map(String::as_str));
        Err(
            Error::internal(format!("internal error: {}", text.unwrap_or("unknown")))
                .with_details("please report this"),
        )
    })
}

fn context<'a, P: Plugin>(
    request: &'a Request,
    conf: &'a NetConf,
    attachment: Attachment,
) -> Result<Add<'a, P::Config>> {
    let call = Call::new(attachment, request.env.args.as_str()).with_prev_result(conf.prev_result()?);
    logger::configure(conf)?;
    let config = P::config(conf, &call);
    // Whoever reads that a key is missing shall read too that it is misspelt. Once is enough: not on DEL, GC and STATUS.
    unknown::report(P::TYPE, conf);
    let config = config?;
    log::debug!("configuration read");
    let netns = netns::required(&request.env.netns, P::ENTERS_NETNS, request.env.netns_override)?;
    Ok(Add {
        conf,
        config,
        call,
        netns,
        delegation: Delegation(request),
    })
}

fn add<P: Plugin>(request: &Request, conf: &NetConf, attachment: Attachment) -> Result<Reply> {
    let cx = context::<P>(request, conf, attachment)?;
    let mut undo = Undo::default();
    match guarded(|| P::add(&cx, &mut undo)?.to_document(conf.cni_version)) {
        Ok(document) => Ok(Reply {
            document: Some(document),
            undo,
        }),
        Err(e) => {
            undo.unwind();
            Err(e)
        }
    }
}

fn check<P: Plugin>(request: &Request, conf: &NetConf, attachment: Attachment) -> Result<Reply> {
    P::check(&Check(context::<P>(request, conf, attachment)?)).map(|()| Reply::silent())
}

fn del<P: Plugin>(request: &Request, conf: &NetConf, attachment: Attachment) -> Result<Reply> {
    let mut todo = BestEffort::default();
    let netns = netns::remaining(&request.env.netns, P::ENTERS_NETNS, request.env.netns_override).unwrap_or_else(|e| {
        todo.fail(e);
        None
    });
    let prev_result = conf.prev_result().unwrap_or_else(|e| {
        log::warn!("{e}; going on without it");
        None
    });
    let call = Call::new(attachment, request.env.args.as_str()).with_prev_result(prev_result);
    let cx = Del {
        conf,
        config: P::cleanup(conf),
        call,
        netns,
        delegation: Delegation(request),
    };
    P::del(&cx, &mut todo);
    todo.finish().map(|()| Reply::silent())
}

fn gc<P: Plugin>(request: &Request, conf: &NetConf) -> Result<Reply> {
    let valid = conf.valid_attachments()?;
    let mut todo = BestEffort::default();
    P::gc(
        &Gc {
            conf,
            config: P::cleanup(conf),
            valid,
            delegation: Delegation(request),
        },
        &mut todo,
    );
    todo.finish().map(|()| Reply::silent())
}
