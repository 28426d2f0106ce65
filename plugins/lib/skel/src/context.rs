//! What a verb gets to see: exactly what it may rely on.

use cni_types::{Attachment, CniResult, NetConf, NetworkName, Result, ValidAttachments};

use crate::delegate::Delegation;
use crate::environment::Verb;
use crate::netns::Netns;
use crate::undo::Undo;

/// Who is calling for what: known before the configuration is read.
#[derive(Debug)]
pub struct Call {
    pub(crate) attachment: Attachment,
    pub(crate) cni_args: String,
    pub(crate) prev_result: Option<CniResult>,
}

impl Call {
    /// The call of a runtime for `attachment`, first in its chain. For tests of a plugin's configuration.
    pub fn new(attachment: Attachment, cni_args: impl Into<String>) -> Call {
        Call {
            attachment,
            cni_args: cni_args.into(),
            prev_result: None,
        }
    }

    /// The same with the result of the chain so far.
    #[must_use]
    pub fn with_prev_result(self, prev_result: Option<CniResult>) -> Call {
        Call { prev_result, ..self }
    }

    /// The attachment that the call is about.
    pub fn attachment(&self) -> &Attachment {
        &self.attachment
    }

    /// `CNI_ARGS`, unread: only plugins with keys of their own parse it.
    pub fn cni_args(&self) -> &str {
        &self.cni_args
    }

    /// The result of the chain so far; on CHECK and DEL that of the whole ADD.
    pub fn prev_result(&self) -> Option<&CniResult> {
        self.prev_result.as_ref()
    }
}

/// The context of ADD.
pub struct Add<'a, C> {
    pub(crate) conf: &'a NetConf,
    pub(crate) config: C,
    pub(crate) call: Call,
    pub(crate) netns: Netns,
    pub(crate) delegation: Delegation<'a>,
}

/// The context of CHECK: the same as of ADD, less the right to change anything.
pub struct Check<'a, C>(pub(crate) Add<'a, C>);

/// The context of DEL.
pub struct Del<'a, C> {
    pub(crate) conf: &'a NetConf,
    pub(crate) config: C,
    pub(crate) call: Call,
    pub(crate) netns: Option<Netns>,
    pub(crate) delegation: Delegation<'a>,
}

/// The context of GC.
pub struct Gc<'a, C> {
    pub(crate) conf: &'a NetConf,
    pub(crate) config: C,
    pub(crate) valid: ValidAttachments,
    pub(crate) delegation: Delegation<'a>,
}

/// The context of STATUS.
pub struct Status<'a> {
    pub(crate) conf: &'a NetConf,
    pub(crate) delegation: Delegation<'a>,
}

impl<C> Add<'_, C> {
    /// The configuration as read by [`crate::Plugin::config`].
    pub fn config(&self) -> &C {
        &self.config
    }

    /// The generic part of the configuration.
    pub fn conf(&self) -> &NetConf {
        self.conf
    }

    /// The attachment to make.
    pub fn attachment(&self) -> &Attachment {
        &self.call.attachment
    }

    /// The container's network namespace.
    pub fn netns(&self) -> &Netns {
        &self.netns
    }

    /// The result of the plugins before this one in the chain.
    pub fn prev_result(&self) -> Option<&CniResult> {
        self.call.prev_result()
    }

    /// `CNI_ARGS`, unread.
    pub fn cni_args(&self) -> &str {
        &self.call.cni_args
    }

    /// Has the IPAM plugin assign addresses, and registers their release.
    ///
    /// # Errors
    ///
    /// The delegate's own error, unchanged; and those of finding, starting and understanding it.
    pub fn delegate_ipam(&self, undo: &mut Undo) -> Result<CniResult> {
        self.delegation.add(self.conf, undo)
    }
}

impl<C> Check<'_, C> {
    /// The configuration as read by [`crate::Plugin::config`].
    pub fn config(&self) -> &C {
        &self.0.config
    }

    /// The generic part of the configuration.
    pub fn conf(&self) -> &NetConf {
        self.0.conf
    }

    /// The attachment to look at.
    pub fn attachment(&self) -> &Attachment {
        self.0.attachment()
    }

    /// The container's network namespace.
    pub fn netns(&self) -> &Netns {
        &self.0.netns
    }

    /// The result of the whole ADD.
    pub fn prev_result(&self) -> Option<&CniResult> {
        self.0.prev_result()
    }

    /// Has the IPAM plugin check its side.
    ///
    /// # Errors
    ///
    /// The delegate's own error, unchanged; and those of finding and starting it.
    pub fn delegate_ipam(&self) -> Result<()> {
        self.0.delegation.call(self.0.conf, Verb::Check).map(drop)
    }
}

impl<C> Del<'_, C> {
    /// The configuration as read by [`crate::Plugin::cleanup`].
    pub fn config(&self) -> &C {
        &self.config
    }

    /// The generic part of the configuration.
    pub fn conf(&self) -> &NetConf {
        self.conf
    }

    /// The attachment to remove.
    pub fn attachment(&self) -> &Attachment {
        &self.call.attachment
    }

    /// The container's network namespace, if it still exists and is not our own.
    pub fn netns(&self) -> Option<&Netns> {
        self.netns.as_ref()
    }

    /// The result of the whole ADD. Runtimes often have none to give: a DEL must do without.
    pub fn prev_result(&self) -> Option<&CniResult> {
        self.call.prev_result()
    }

    /// Has the IPAM plugin release what it holds for the attachment.
    ///
    /// # Errors
    ///
    /// The delegate's own error, unchanged; and those of finding and starting it.
    pub fn delegate_ipam(&self) -> Result<()> {
        self.delegation.call(self.conf, Verb::Del).map(drop)
    }
}

impl<C> Gc<'_, C> {
    /// The configuration as read by [`crate::Plugin::cleanup`].
    pub fn config(&self) -> &C {
        &self.config
    }

    /// The generic part of the configuration.
    pub fn conf(&self) -> &NetConf {
        self.conf
    }

    /// The network to collect: nothing of another may be touched.
    pub fn network(&self) -> &NetworkName {
        &self.conf.name
    }

    /// The attachments that must stay.
    pub fn valid(&self) -> &ValidAttachments {
        &self.valid
    }

    /// Has the IPAM plugin collect too (section "GC": a plugin with a delegate must pass it on).
    ///
    /// # Errors
    ///
    /// The delegate's own error, unchanged; and those of finding and starting it.
    pub fn delegate_ipam(&self) -> Result<()> {
        self.delegation.call(self.conf, Verb::Gc).map(drop)
    }
}

impl Status<'_> {
    /// The configuration.
    pub fn conf(&self) -> &NetConf {
        self.conf
    }

    /// Asks the IPAM plugin for its status.
    ///
    /// # Errors
    ///
    /// The delegate's own error, unchanged; and those of finding and starting it.
    pub fn delegate_ipam(&self) -> Result<()> {
        self.delegation.call(self.conf, Verb::Status).map(drop)
    }
}
