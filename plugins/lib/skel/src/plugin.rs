//! What a plugin is.

use cni_types::{CniResult, NetConf, Result};

use crate::context::{Add, Call, Check, Del, Gc, Status};
use crate::dispatch::{self, Reply, Request};
use crate::schema::Keys;
use crate::undo::{BestEffort, Undo};

/// A CNI plugin: its verbs, each on a typed context.
///
/// The verbs have different needs, so a configuration is read in two ways. [`Plugin::config`] serves ADD and CHECK and
/// refuses every contradiction before anything is changed. [`Plugin::cleanup`] serves DEL and GC and refuses nothing: what a
/// container was added with may have been edited since, and its address and rules must go all the same.
pub trait Plugin {
    /// The plugin's name: `type` in a configuration, and the name of its executable.
    const TYPE: &'static str;
    /// What it does: a sentence without its subject, the plugin, and without its full stop.
    const ABOUT: &'static str;
    /// A network configuration list that works, with this plugin in it.
    const EXAMPLE: &'static str;
    /// Whether ADD and CHECK work inside the container's network namespace, so that a path which is none is refused.
    const ENTERS_NETNS: bool;
    /// What ADD and CHECK need from the configuration.
    type Config;
    /// What DEL and GC need from the configuration.
    type Cleanup;

    /// The types that [`Plugin::config`] decodes. What they say of their fields is what users read.
    fn keys() -> Keys;

    /// Reads the configuration for ADD and CHECK.
    ///
    /// # Errors
    ///
    /// Every value that the plugin cannot work with, by its key.
    fn config(conf: &NetConf, call: &Call) -> Result<Self::Config>;

    /// Reads the configuration for DEL and GC. Unusable values are logged and left out.
    fn cleanup(conf: &NetConf) -> Self::Cleanup;

    /// Makes the attachment. Every effect registers its undo before the next one is tried.
    ///
    /// # Errors
    ///
    /// The first failure; the caller undoes what was made.
    fn add(cx: &Add<Self::Config>, undo: &mut Undo) -> Result<CniResult>;

    /// Compares the attachment with what ADD made.
    ///
    /// # Errors
    ///
    /// The first difference.
    fn check(cx: &Check<Self::Config>) -> Result<()>;

    /// Removes all of the attachment that can still be found.
    fn del(cx: &Del<Self::Cleanup>, todo: &mut BestEffort);

    /// Removes what belongs to attachments of the network that are no longer valid.
    fn gc(cx: &Gc<Self::Cleanup>, todo: &mut BestEffort);

    /// Tells whether ADD could work now.
    ///
    /// # Errors
    ///
    /// [`cni_types::Code::NOT_AVAILABLE`] or [`cni_types::Code::LIMITED_CONNECTIVITY`] with the reason.
    fn status(cx: &Status) -> Result<()>;
}

/// A plugin as an entry of a table: the suite's executable has one of several, a plugin's own has one.
pub struct Registered {
    /// [`Plugin::TYPE`].
    pub name: &'static str,
    /// [`Plugin::ABOUT`].
    pub about: &'static str,
    /// [`Plugin::EXAMPLE`].
    pub example: &'static str,
    pub(crate) keys: fn() -> Keys,
    pub(crate) call: fn(&Request) -> Result<Reply>,
}

impl Registered {
    /// The entry of `P`.
    pub const fn of<P: Plugin>() -> Registered {
        Registered {
            name: P::TYPE,
            about: P::ABOUT,
            example: P::EXAMPLE,
            keys: P::keys,
            call: dispatch::call::<P>,
        }
    }
}
