//! Keys that nobody reads: a slip in a configuration takes effect as if nothing was said, so it is worth a line.

use cni_types::{NetConf, UnknownKey};

/// Keys of the reference suite's eighteen plugins and of ours, at the top of a configuration. A key of another plugin is no
/// slip: orchestrators write one set of keys for plugins of several types.
const OF_THE_SUITE: &[&str] = &[
    // Every plugin.
    "args",
    "capabilities",
    "cniVersion",
    "dns",
    "ipam",
    "log",
    "name",
    "prevResult",
    "runtimeConfig",
    "type",
    // bridge and ptp.
    "bridge",
    "disableContainerInterface",
    "enabledad",
    "forceAddress",
    "hairpinMode",
    "ipMasq",
    "ipMasqBackend",
    "ipMasqExclude",
    "isDefaultGateway",
    "isGateway",
    "macspoofchk",
    "mtu",
    "mtuAuto",
    "portIsolation",
    "preserveDefaultVlan",
    "promiscMode",
    "vlan",
    "vlanTrunk",
    // bandwidth.
    "egressBurst",
    "egressRate",
    "ingressBurst",
    "ingressRate",
    "shapedSubnets",
    "unshapedSubnets",
    // firewall.
    "backend",
    "firewalldZone",
    "ingressPolicy",
    "iptablesAdminChainName",
    // host-device.
    "device",
    "hwaddr",
    "kernelpath",
    "pciBusID",
    // ipvlan, macvlan and vlan.
    "bcqueuelen",
    "linkInContainer",
    "mac",
    "master",
    "mode",
    "vlanId",
    // portmap.
    "conditionsV4",
    "conditionsV6",
    "externalSetMarkChain",
    "markMasqBit",
    "masqAll",
    "onConflict",
    "snat",
    // sbr and vrf.
    "addSourceHints",
    "table",
    "vrfname",
    // tap.
    "group",
    "multiQueue",
    "owner",
    "selinuxContext",
    // tuning.
    "allmulti",
    "dataDir",
    "promisc",
    "sysctl",
    "txQLen",
];

/// The same below `ipam`: dhcp, host-local and static.
const OF_IPAM: &[&str] = &[
    "type",
    "daemonSocketPath",
    "priority",
    "provide",
    "request",
    "skipDefault",
    "addresses",
    "dns",
    "routes",
    "dataDir",
    "exclude",
    "gateway",
    "rangeEnd",
    "rangeStart",
    "ranges",
    "reclaim",
    "resolvConf",
    "subnet",
];

/// Reports what `plugin` has not understood of the configuration. Each object is one plugin's to judge: `ipam` that of the
/// plugin which its `type` names, all else that of the plugin which the configuration's does.
pub(crate) fn report(plugin: &str, conf: &NetConf) {
    for unknown in conf.unknown_keys() {
        if let Some(line) = line(plugin, conf, &unknown) {
            log::warn!("{line}");
        }
    }
}

fn line(plugin: &str, conf: &NetConf, unknown: &UnknownKey) -> Option<String> {
    let (first, is_at_top) = match unknown.path.split(['.', '[']).next() {
        Some("") | None => (unknown.key.as_str(), true),
        Some(first) => (first, false),
    };
    let of_ipam = !is_at_top && first.eq_ignore_ascii_case("ipam");
    let owner = if of_ipam {
        conf.ipam_type.as_deref()
    } else {
        Some(conf.plugin_type.as_str())
    };
    let by_others: &[&str] = match unknown.path.as_str() {
        "" => OF_THE_SUITE,
        path if path.eq_ignore_ascii_case("ipam") => OF_IPAM,
        _ => &[],
    };
    let key = unknown.key.as_str();
    let free = ["runtimeConfig", "args", "prevResult", "capabilities"];
    let is_no_slip = owner != Some(plugin)
        || first.starts_with("cni.dev/")
        || free.iter().any(|name| first.eq_ignore_ascii_case(name))
        || by_others.iter().any(|name| key.eq_ignore_ascii_case(name));
    if is_no_slip {
        return None;
    }
    let dot = if is_at_top { "" } else { "." };
    let advice = match nearest(key, &unknown.known) {
        Some(known) => format!("did you mean {known}?"),
        None => format!("'{plugin} --help' lists what it knows"),
    };
    Some(format!(
        "{}{dot}{key:?} is no key that {plugin} knows: {advice}",
        unknown.path
    ))
}

/// The name that is nearest, if it is near enough to have been meant: a third of its letters may differ.
fn nearest<'a>(key: &str, known: &[&'a str]) -> Option<&'a str> {
    let key = key.to_ascii_lowercase();
    let distance = |name: &&'a str| strsim::osa_distance(&key, &name.to_ascii_lowercase());
    let found = known.iter().copied().min_by_key(distance)?;
    (distance(&found) <= found.len().div_ceil(3)).then_some(found)
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    use super::*;

    #[derive(Serialize, Deserialize, Default)]
    #[serde(default, rename_all = "camelCase")]
    struct Written {
        ip_masq: bool,
        vlan_trunk: Vec<Trunk>,
        ipam: Option<Trunk>,
        runtime_config: Trunk,
    }

    #[derive(Serialize, Deserialize, Default)]
    #[serde(default, rename_all = "camelCase")]
    struct Trunk {
        subnet: String,
    }

    fn lines(plugin: &str, keys: &str) -> Vec<String> {
        let text = format!(r#"{{"cniVersion":"1.0.0","name":"n","type":"bridge",{keys}}}"#);
        let conf = NetConf::parse(text.as_bytes()).unwrap();
        conf.decode::<Written>().unwrap();
        conf.unknown_keys()
            .iter()
            .filter_map(|unknown| line(plugin, &conf, unknown))
            .collect()
    }

    #[test]
    fn a_slip_is_told_with_the_nearest_name() {
        assert_eq!(
            lines("bridge", r#""ipmsaq":true"#),
            [r#""ipmsaq" is no key that bridge knows: did you mean ipMasq?"#]
        );
        assert_eq!(
            lines("bridge", r#""vlanTrunk":[{},{"subnett":1}]"#),
            [r#"vlanTrunk[1]."subnett" is no key that bridge knows: did you mean subnet?"#]
        );
        assert_eq!(
            lines("bridge", r#""dns":{"nameserver":[]}"#),
            [r#"dns."nameserver" is no key that bridge knows: did you mean nameservers?"#]
        );
        assert_eq!(
            lines("bridge", r#""calicoPolicy":1"#),
            [r#""calicoPolicy" is no key that bridge knows: 'bridge --help' lists what it knows"#]
        );
    }

    #[test]
    fn what_others_write_is_no_slip() {
        for keys in [
            r#""ipmasq":true,"IPMASQ":true"#,
            r#""snat":true,"vrfname":"x","master":"eth0""#,
            r#""capabilities":{"portMapping":true},"runtimeConfig":{"mc":1},"args":{"x":1},"prevResult":{"x":1}"#,
            r#""cni.dev/valid-attachments":[],"cni.dev/later":1"#,
        ] {
            assert_eq!(lines("bridge", keys), [""; 0], "{keys}");
        }
    }

    #[test]
    fn each_object_is_judged_by_its_own_plugin() {
        let keys = r#""ipmsaq":1,"ipam":{"type":"host-local","subnett":1,"daemonSocketPath":""}"#;
        assert_eq!(
            lines("host-local", keys),
            [r#"ipam."subnett" is no key that host-local knows: did you mean subnet?"#]
        );
        assert_eq!(lines("bridge", keys).len(), 1);
        assert_eq!(lines("ptp", keys), [""; 0]);
    }
}
