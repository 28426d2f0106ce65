//! What the node has for rules.

use std::fs;

use netfilter::{Backend, firewall, node};

use super::{Finding, Level};

/// `backend` is what plugins use by default; what they need is a failure if it is missing, the rest is not.
pub(super) fn examine(backend: Option<Backend>) -> Vec<Finding> {
    let severity = |needs: Backend| match backend == Some(needs) {
        true => Level::Fail,
        false => Level::Warn,
    };
    vec![
        nf_tables(severity(Backend::Nftables)),
        iptables(severity(Backend::Iptables)),
        nft(),
        exemptions(backend),
    ]
}

fn nf_tables(severity: Level) -> Finding {
    let probed = Backend::Nftables
        .probe()
        .and_then(|()| firewall::probe(Backend::Nftables));
    match probed {
        Ok(()) => Finding::ok("nf_tables", "the kernel takes the plugins' tables"),
        Err(e) => Finding::new(
            "nf_tables",
            severity,
            e.msg,
            "modprobe nf_tables, nft_chain_nat, nft_fib_inet, nft_ct and nft_masq; as root; else ferrule backend iptables --write",
        ),
    }
}

fn iptables(severity: Level) -> Finding {
    const CHECK: &str = "iptables";
    match node::iptables_version() {
        Ok(Some(version)) if version.contains("nf_tables") && legacy_is_used() => Finding::new(
            CHECK,
            Level::Warn,
            format!(
                "{version}, but the kernel holds legacy tables too: both apply, and each program shows only its own"
            ),
            "move the rules that iptables-legacy-save shows, then unload iptable_nat and iptable_filter",
        ),
        Ok(Some(version)) => Finding::ok(CHECK, version),
        Ok(None) => Finding::new(
            CHECK,
            severity,
            "not installed: rules that were written with it cannot be removed",
            "apt-get install iptables, or ferrule backend nftables --write",
        ),
        Err(e) => Finding::new(CHECK, severity, e.msg, "reinstall iptables"),
    }
}

/// `/proc/net` is that of the reader's namespace.
fn legacy_is_used() -> bool {
    let names = ["/proc/net/ip_tables_names", "/proc/net/ip6_tables_names"];
    let mut tables = names.iter().filter_map(|file| fs::read_to_string(file).ok());
    tables.any(|names| !names.trim().is_empty())
}

fn nft() -> Finding {
    match node::nft_version() {
        Ok(Some(version)) => Finding::ok("nft", version),
        Ok(None) => Finding::new(
            "nft",
            Level::Warn,
            "not installed: port mappings with conditionsV4 or conditionsV6 need it with the backend nftables",
            "apt-get install nftables, if a network has conditions",
        ),
        Err(e) => Finding::new("nft", Level::Warn, e.msg, "reinstall nftables"),
    }
}

fn exemptions(backend: Option<Backend>) -> Finding {
    const CHECK: &str = "masquerading";
    match node::masquerade_exemptions() {
        Ok(rules) if rules.is_empty() => Finding::ok(CHECK, "nat POSTROUTING has no exemptions"),
        Ok(rules) if backend == Some(Backend::Nftables) => Finding::new(
            CHECK,
            Level::Warn,
            format!(
                "exemptions that the backend nftables does not see: {}",
                rules.join("; ")
            ),
            "ferrule backend iptables --write, or ipMasqExclude in the networks",
        ),
        Ok(rules) => Finding::ok(CHECK, format!("exemptions that are respected: {}", rules.join("; "))),
        Err(e) => Finding::new(CHECK, Level::Warn, e.msg, "run it as root"),
    }
}
