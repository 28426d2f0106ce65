//! `ipMasq`, `ipMasqBackend` and `ipMasqExclude`: the keys that every plugin with addresses of its own has.

use cni_types::{Attachment, Cidr, Error, NetConf, Result};
use netfilter::{Backend, masquerade};
use schemars::JsonSchema;
use serde::Deserialize;
use skel::Undo;

/// Masquerading, as far as the configuration decides: the addresses come from the IPAM plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Masquerade {
    backend: Backend,
    exclude: Vec<Cidr>,
}

/// The keys as they are written. What is said of them is what users read.
#[derive(Deserialize, Default, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct MasqueradeKeys {
    /// Masquerades the container's connections that leave its subnet: they get the node's address as their source.
    ip_masq: bool,
    /// What holds the rules. Without it, the node decides: /etc/cni/ferrule.json, else iptables where it is installed, else nftables.
    #[schemars(extend("enum" = ["", "iptables", "nftables"]))]
    ip_masq_backend: Option<String>,
    /// More destinations that see the container's own address, as networks such as 10.0.0.0/8.
    ip_masq_exclude: Vec<Cidr>,
}

impl Masquerade {
    /// Reads the three keys; `None` where masquerading is not asked for.
    ///
    /// # Errors
    ///
    /// A backend that does not exist, whether or not masquerading is asked for; excluded ranges with host bits; and those of
    /// [`Backend::of_node`].
    pub fn read(conf: &NetConf) -> Result<Option<Masquerade>> {
        let written: MasqueradeKeys = conf.decode()?;
        let named = written.ip_masq_backend.as_deref().filter(|name| !name.is_empty());
        let named = named.map(str::parse::<Backend>).transpose();
        let named = named
            .map_err(|e| Error::config(format!("ipMasqBackend: {e}")).with_details("it is iptables or nftables"))?;
        if !written.ip_masq {
            return Ok(None);
        }
        if let Some(host) = written.ip_masq_exclude.iter().find(|range| !range.is_network()) {
            return Err(Error::config(format!(
                "ipMasqExclude: {host} has host bits set: {} is meant?",
                host.network()
            )));
        }
        Ok(Some(Masquerade {
            backend: named.map_or_else(Backend::of_node, Ok)?,
            exclude: written.ip_masq_exclude,
        }))
    }

    /// Masquerades the attachment's `addresses`, and registers the undo.
    ///
    /// # Errors
    ///
    /// Those of [`masquerade::add`].
    pub fn add(&self, attachment: &Attachment, addresses: Vec<Cidr>, undo: &mut Undo) -> Result<()> {
        let owner = attachment.clone();
        undo.push("masquerade", move || masquerade::del(&owner));
        masquerade::add(self.backend, attachment, &self.of(addresses))
    }

    /// Compares the kernel's rules with what [`Masquerade::add`] makes.
    ///
    /// # Errors
    ///
    /// The first difference.
    pub fn check(&self, attachment: &Attachment, addresses: Vec<Cidr>) -> Result<()> {
        masquerade::check(self.backend, attachment, &self.of(addresses))
    }

    fn of(&self, addresses: Vec<Cidr>) -> masquerade::Masquerade {
        masquerade::Masquerade {
            addresses,
            exclude: self.exclude.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use cni_types::Code;

    use super::*;

    fn read(keys: &str) -> Result<Option<Masquerade>> {
        Masquerade::read(&NetConf::parse(format!(r#"{{"cniVersion":"1.0.0","name":"n"{keys}}}"#).as_bytes()).unwrap())
    }

    #[test]
    fn only_what_is_asked_for() {
        assert_eq!(read(""), Ok(None));
        assert_eq!(
            read(r#","ipMasqBackend":"nftables","ipMasqExclude":["10.0.0.0/8"]"#),
            Ok(None)
        );
        for (name, backend) in [("iptables", Backend::Iptables), ("nftables", Backend::Nftables)] {
            let keys = format!(r#","ipMasq":true,"ipMasqBackend":"{name}","ipMasqExclude":["10.0.0.0/8"]"#);
            let exclude = vec!["10.0.0.0/8".parse().unwrap()];
            assert_eq!(read(&keys), Ok(Some(Masquerade { backend, exclude })));
        }
        assert!(read(r#","ipMasq":true,"ipMasqBackend":"""#).unwrap().is_some());
    }

    #[test]
    fn refusals() {
        for (keys, msg) in [
            (
                r#","ipMasqBackend":"zzz""#,
                r#"ipMasqBackend: unrecognized backend "zzz""#,
            ),
            (
                r#","ipMasq":true,"ipMasqExclude":["10.0.0.1/8"]"#,
                "ipMasqExclude: 10.0.0.1/8 has host bits set: 10.0.0.0/8 is meant?",
            ),
            (
                r#","ipMasq":true,"ipMasqExclude":["10.0.0.0"]"#,
                "ipMasqExclude[0]: invalid CIDR address: 10.0.0.0",
            ),
            (
                r#","ipMasq":"yes""#,
                r#"ipMasq: invalid type: string "yes", expected a boolean"#,
            ),
        ] {
            let error = read(keys).unwrap_err();
            assert_eq!((error.code, error.msg.as_str()), (Code::INVALID_CONFIG, msg));
        }
    }
}
