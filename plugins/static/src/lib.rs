//! The IPAM plugin `static`: addresses, routes and DNS as the configuration or the runtime says. It remembers nothing, so
//! there is nothing to release, and nobody is kept from using the same address twice.

mod check;
mod config;

use cni_types::{CniResult, Error, NetConf, Result};
use skel::schema::Keys;
use skel::{Add, BestEffort, Call, Check, Del, Gc, Plugin, Status, Undo};

pub use config::Config;

/// For `--help` and the manual.
const EXAMPLE: &str = r#"{
    "cniVersion": "1.0.0",
    "name": "database",
    "plugins": [
        {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": true,
            "ipam": {
                "type": "static",
                "addresses": [{ "address": "10.90.0.5/24", "gateway": "10.90.0.1" }],
                "routes": [{ "dst": "0.0.0.0/0" }],
                "dns": { "nameservers": ["10.90.0.1"] }
            }
        }
    ]
}
"#;

/// The plugin.
#[derive(Debug)]
pub struct Static;

impl Plugin for Static {
    const TYPE: &'static str = "static";
    const ABOUT: &'static str = "assigns the addresses that the configuration or the runtime names";
    const EXAMPLE: &'static str = EXAMPLE;
    const ENTERS_NETNS: bool = false;
    type Config = Config;
    type Cleanup = ();

    fn keys() -> Keys {
        Keys::of::<config::Written>()
    }

    fn config(conf: &NetConf, call: &Call) -> Result<Config> {
        Config::new(conf, call.cni_args())
    }

    fn cleanup(_: &NetConf) {}

    /// Without any address the result is empty, as the reference's: whether that will do is for the plugin that asked to say.
    fn add(cx: &Add<Config>, _: &mut Undo) -> Result<CniResult> {
        Ok(cx.config().result())
    }

    fn check(cx: &Check<Config>) -> Result<()> {
        let prev = cx
            .prev_result()
            .ok_or_else(|| Error::config("Required prevResult missing"))?;
        check::compare(cx.config(), cx.attachment(), prev)
    }

    fn del(_: &Del<()>, _: &mut BestEffort) {}

    fn gc(_: &Gc<()>, _: &mut BestEffort) {}

    fn status(cx: &Status) -> Result<()> {
        Config::new(cx.conf(), "").map(drop)
    }
}
