//! The names and comments of the reference suite's iptables backend, which a rollback to it must find.

use cni_types::{ContainerId, NetworkName};
use sha2::{Digest, Sha512};

/// Where PREROUTING and OUTPUT send what is addressed to the node itself.
pub(super) const DNAT_CHAIN: &str = "CNI-HOSTPORT-DNAT";
/// Where POSTROUTING sent everything, up to version 0.8 of the reference.
pub(super) const SNAT_CHAIN: &str = "CNI-HOSTPORT-SNAT";
/// Where the containers' chains mark what must be masqueraded.
pub(super) const SETMARK_CHAIN: &str = "CNI-HOSTPORT-SETMARK";
/// First in POSTROUTING: masquerades what is marked.
pub(super) const MASQ_CHAIN: &str = "CNI-HOSTPORT-MASQ";
/// The jump to [`MASQ_CHAIN`].
pub(super) const MASQ_COMMENT: &str = "CNI portfwd requiring masquerade";
/// The rule in [`SETMARK_CHAIN`].
pub(super) const SETMARK_COMMENT: &str = "CNI portfwd masquerade mark";

/// Where FORWARD sends everything that the firewall may accept.
pub(super) const FORWARD_CHAIN: &str = "CNI-FORWARD";
/// First in FORWARD: where bridges are told apart.
pub(super) const ISOLATION_STAGE_1: &str = "CNI-ISOLATION-STAGE-1";
/// What left one of the bridges, on its way to another.
pub(super) const ISOLATION_STAGE_2: &str = "CNI-ISOLATION-STAGE-2";
/// The jump to [`FORWARD_CHAIN`].
pub(super) const FORWARD_COMMENT: &str = "CNI firewall plugin rules";
/// The jump to the administrator's chain.
pub(super) const ADMIN_COMMENT: &str = "CNI firewall plugin admin overrides";
/// A rule of the chains of isolation, whatever the policy.
pub(super) const ISOLATION_COMMENT: &str = "CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)";
/// What the comments of all rules of isolation begin with.
pub(super) const ISOLATION_COMMENTS: &str = "CNI firewall plugin rules (ingressPolicy: ";

/// XT_EXTENSION_MAXNAMELEN, less the terminating zero: what the reference cuts its chain names to.
const MAX_CHAIN_LEN: usize = 28;
/// What the reference cuts the comment of an entry rule to; the kernel's limit is 255 as well (xt_comment.h).
const MAX_COMMENT_LEN: usize = 255;

/// Whether iptables takes a text as the name of a chain (`parse_chain` of its xshared.c).
pub fn is_chain_name(text: &str) -> bool {
    let bad = text.starts_with(['-', '!']) || text.contains(|c: char| c.is_whitespace() || c.is_control());
    !bad && !text.is_empty() && text.len() <= MAX_CHAIN_LEN
}

/// A container's chain: `prefix` and the SHA-512 of network and container ID in hexadecimal, cut to 28 characters. It
/// leaves the interface out, so the attachments of one container to one network share it.
fn chain(prefix: &str, network: &NetworkName, container: &ContainerId) -> String {
    let digest = Sha512::digest(format!("{network}{container}"));
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut name = format!("{prefix}{hex}");
    name.truncate(MAX_CHAIN_LEN);
    name
}

/// The chain of a container's port mappings.
pub(super) fn dnat_chain(network: &NetworkName, container: &ContainerId) -> String {
    chain("CNI-DN-", network, container)
}

/// The chain of a container's port mappings' masquerading, up to version 0.8 of the reference.
pub(super) fn snat_chain(network: &NetworkName, container: &ContainerId) -> String {
    chain("CNI-SN-", network, container)
}

/// The chain of a container's masquerading (`ipMasq`).
pub(super) fn masquerade_chain(network: &NetworkName, container: &ContainerId) -> String {
    chain("CNI-", network, container)
}

/// The comment of every rule of `ipMasq`. Go's `%q` changes nothing in characters that names and IDs can have.
pub(super) fn masquerade_comment(network: &NetworkName, container: &ContainerId) -> String {
    format!("name: \"{network}\" id: \"{container}\"")
}

/// The comment of a rule in [`DNAT_CHAIN`].
pub(super) fn dnat_comment(network: &NetworkName, container: &ContainerId) -> String {
    let mut comment = format!("dnat {}", masquerade_comment(network, container));
    comment.truncate(MAX_COMMENT_LEN);
    comment
}

/// Whom a comment names, or `None` where it is no comment of a plugin or was cut so that the ID is not whole: then it is
/// in doubt whose the rule is.
pub(super) fn owner(comment: &str) -> Option<(NetworkName, ContainerId)> {
    let (_, names) = comment.split_once("name: \"")?;
    let (network, id) = names.split_once("\" id: \"")?;
    let container = id.strip_suffix('"')?;
    Some((network.parse().ok()?, container.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(network: &str, container: &str) -> (NetworkName, ContainerId) {
        (network.parse().unwrap(), container.parse().unwrap())
    }

    /// As the reference's binaries named them for these.
    #[test]
    fn chains_are_the_references() {
        let (network, container) = ids("net1", "c1");
        assert_eq!(dnat_chain(&network, &container), "CNI-DN-c2d892b58e87e28a12fe6");
        assert_eq!(snat_chain(&network, &container), "CNI-SN-c2d892b58e87e28a12fe6");
        assert_eq!(masquerade_chain(&network, &container), "CNI-c2d892b58e87e28a12fe6479");
        let (network, container) = ids("nomad", "cid-a");
        assert_eq!(masquerade_chain(&network, &container), "CNI-6499ed8b923a7b04f5f4687e");
    }

    #[test]
    fn owners_are_read_back() {
        let (network, container) = ids("k8s-net", "0123abc");
        let comment = dnat_comment(&network, &container);
        assert_eq!(comment, "dnat name: \"k8s-net\" id: \"0123abc\"");
        assert_eq!(owner(&comment), Some((network.clone(), container.clone())));
        assert_eq!(
            owner(&masquerade_comment(&network, &container)),
            Some((network, container))
        );
        for foreign in ["", "name: \"a\"", "name: \"a b\" id: \"c\"", "name: \"a\" id: \"c"] {
            assert_eq!(owner(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn a_long_comment_is_cut_and_then_names_nobody() {
        let (network, container) = ids("n", &"c".repeat(300));
        let comment = dnat_comment(&network, &container);
        assert_eq!(comment.len(), 255);
        assert_eq!(owner(&comment), None);
    }
}
