//! CHECK: what the configuration assigns against what the chain's result tells. Pure.

use cni_types::{Attachment, CniResult, Error, IpConfig, Result};

use crate::config::Config;

/// Compares the addresses, prefix lengths and gateways of the configuration with those of the interface in `prev`.
///
/// Routes and DNS are left alone: the network's own DNS settings replace those of IPAM, and later plugins of a chain may
/// change routes on purpose. So may the plugin that asked fill in a gateway where the configuration names none.
///
/// # Errors
///
/// The first address that differs. The text begins as the reference's, which compares the gateways only.
pub(crate) fn compare(config: &Config, attachment: &Attachment, prev: &CniResult) -> Result<()> {
    let of_interface = |ip: &&IpConfig| {
        let interface = ip.interface.and_then(|index| prev.interfaces.get(index));
        interface.is_none_or(|interface| interface.name == attachment.ifname.as_str())
    };
    for ip in &config.ips {
        let ours = |other: &&IpConfig| other.address == ip.address;
        let told: Vec<&IpConfig> = prev.ips.iter().filter(of_interface).filter(ours).collect();
        let why = match ip.gateway {
            _ if told.is_empty() => format!("{} is not in prevResult", ip.address),
            Some(gateway) if !told.iter().any(|other| other.gateway == ip.gateway) => {
                format!("{gateway} is not its gateway in prevResult")
            }
            _ => continue,
        };
        let msg = format!(
            "static: Failed to match addr {} on interface {}",
            ip.address.address(),
            attachment.ifname
        );
        return Err(Error::internal(msg).with_details(why));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use cni_types::{Interface, NetConf};

    use super::*;

    fn verdict(addresses: &str, prev: &[(Option<usize>, &str, Option<&str>)]) -> Result<()> {
        let json = format!(r#"{{"cniVersion":"1.0.0","name":"n","ipam":{{"addresses":[{addresses}]}}}}"#);
        let config = Config::new(&NetConf::parse(json.as_bytes()).unwrap(), "").unwrap();
        let attachment = Attachment {
            network: "n".parse().unwrap(),
            container_id: "c".parse().unwrap(),
            ifname: "eth0".parse().unwrap(),
        };
        let ip = |(interface, address, gateway): &(Option<usize>, &str, Option<&str>)| IpConfig {
            interface: *interface,
            address: address.parse().unwrap(),
            gateway: gateway.map(|text| text.parse().unwrap()),
        };
        let interfaces = ["cni0", "eth0"].map(|name| Interface {
            name: name.into(),
            ..Interface::default()
        });
        let prev = CniResult {
            interfaces: interfaces.to_vec(),
            ips: prev.iter().map(ip).collect(),
            ..CniResult::default()
        };
        compare(&config, &attachment, &prev)
    }

    const PLAIN: &str = r#"{"address":"10.1.0.5/24"}"#;
    const WITH_GATEWAY: &str = r#"{"address":"10.1.0.5/24","gateway":"10.1.0.1"}"#;

    #[test]
    fn every_address_is_in_the_result() {
        for interface in [Some(1), None] {
            verdict(PLAIN, &[(interface, "10.1.0.5/24", None)]).unwrap();
            verdict(PLAIN, &[(interface, "10.1.0.5/24", Some("10.1.0.9"))]).unwrap();
            verdict(
                WITH_GATEWAY,
                &[
                    (interface, "10.1.0.5/24", Some("10.1.0.1")),
                    (interface, "10.9.0.5/24", None),
                ],
            )
            .unwrap();
        }
        verdict("", &[]).unwrap();
    }

    #[test]
    fn what_differs_is_told() {
        for (addresses, prev) in [
            (PLAIN, &[][..]),
            (PLAIN, &[(Some(1), "10.1.0.7/24", None)]),
            (PLAIN, &[(Some(1), "10.1.0.5/16", None)]),
            (PLAIN, &[(Some(0), "10.1.0.5/24", None)]),
            (WITH_GATEWAY, &[(Some(1), "10.1.0.5/24", None)]),
            (WITH_GATEWAY, &[(Some(1), "10.1.0.5/24", Some("10.1.0.9"))]),
        ] {
            let error = verdict(addresses, prev).unwrap_err();
            assert_eq!(
                error.msg, "static: Failed to match addr 10.1.0.5 on interface eth0",
                "{prev:?}"
            );
            assert!(error.details.contains("in prevResult"), "{error}");
        }
    }
}
