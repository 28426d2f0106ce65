//! CHECK: what is reserved against what ADD reported. Pure.

use std::net::IpAddr;

use cni_types::{Attachment, CniResult, Error, Result};

use crate::config::Config;
use crate::store::Found;

/// Compares the attachment's reservations with the result of its ADD.
///
/// Addresses of other interfaces, and those outside of our ranges, are other plugins' business. Without a result to
/// compare with, it is enough that something is reserved, as it is for the reference.
///
/// # Errors
/// An address that is in one and not in the other.
pub(crate) fn compare(config: &Config, attachment: &Attachment, own: &[Found], prev: Option<&CniResult>) -> Result<()> {
    let id = &attachment.container_id;
    let missing = || Error::internal(format!("host-local: Failed to find address added by container {id}"));
    let reserved: Vec<IpAddr> = own.iter().filter_map(|found| found.ip).collect();
    if reserved.is_empty() {
        return Err(missing());
    }
    let Some(prev) = prev else { return Ok(()) };
    let of_interface: Vec<IpAddr> = addresses_of(prev, attachment).collect();
    let ours = |ip: &&IpAddr| config.sets.iter().any(|set| set.range_of(**ip).is_some());
    if let Some(ip) = of_interface.iter().filter(ours).find(|ip| !reserved.contains(ip)) {
        return Err(missing().with_details(format!("{ip} of prevResult is not reserved for {attachment}")));
    }
    if let Some(ip) = reserved
        .iter()
        .find(|ip| !prev.ips.iter().any(|of_prev| of_prev.address.address() == **ip))
    {
        let msg = format!("host-local: {ip} is reserved for container {id} but is not in prevResult");
        return Err(Error::internal(msg).with_details(attachment.to_string()));
    }
    Ok(())
}

/// The addresses of prevResult that belong to this interface, or to none.
fn addresses_of<'a>(prev: &'a CniResult, attachment: &'a Attachment) -> impl Iterator<Item = IpAddr> + 'a {
    let ours = |index: usize| {
        prev.interfaces
            .get(index)
            .is_none_or(|interface| interface.name == attachment.ifname.as_str())
    };
    prev.ips
        .iter()
        .filter(move |ip| ip.interface.is_none_or(ours))
        .map(|ip| ip.address.address())
}

#[cfg(test)]
mod tests {
    use cni_types::{Interface, IpConfig, NetConf};

    use super::*;
    use crate::reservation::Content;

    fn verdict(reserved: &[&str], prev: Option<&[(Option<usize>, &str)]>) -> Result<(), String> {
        let json = br#"{"cniVersion":"1.0.0","name":"n","ipam":{"subnet":"10.1.0.0/24"}}"#;
        let config = Config::new(&NetConf::parse(json).unwrap(), "").unwrap();
        let attachment = Attachment {
            network: "n".parse().unwrap(),
            container_id: "c1".parse().unwrap(),
            ifname: "eth0".parse().unwrap(),
        };
        let found = |ip: &&str| Found {
            name: (*ip).to_owned(),
            ip: ip.parse().ok(),
            content: Content::Owner(b"c1\r\neth0".to_vec()),
            stamp: None,
        };
        let own: Vec<Found> = reserved.iter().map(found).collect();
        let prev = prev.map(|ips| CniResult {
            interfaces: ["br0", "eth0", "eth1"]
                .map(|name| Interface {
                    name: name.to_owned(),
                    ..Interface::default()
                })
                .into(),
            ips: ips
                .iter()
                .map(|(interface, address)| IpConfig {
                    interface: *interface,
                    address: address.parse().unwrap(),
                    gateway: None,
                })
                .collect(),
            ..CniResult::default()
        });
        compare(&config, &attachment, &own, prev.as_ref()).map_err(|e| e.msg)
    }

    #[test]
    fn what_is_reserved_is_what_was_reported() {
        let missing = Err("host-local: Failed to find address added by container c1".to_owned());
        assert_eq!(verdict(&["10.1.0.2"], None), Ok(()));
        assert_eq!(verdict(&[], None), missing);
        assert_eq!(verdict(&["10.1.0.2"], Some(&[(Some(1), "10.1.0.2/24")])), Ok(()));
        assert_eq!(verdict(&["10.1.0.2"], Some(&[(None, "10.1.0.2/24")])), Ok(()));
        assert_eq!(
            verdict(&["10.1.0.2"], Some(&[(None, "10.1.0.2/24"), (Some(1), "10.1.0.3/24")])),
            missing
        );
        assert_eq!(
            verdict(&["10.1.0.2"], Some(&[(None, "10.1.0.2/24"), (None, "10.1.0.3/24")])),
            missing
        );
        assert_eq!(
            verdict(&["10.1.0.2", "10.1.0.9"], Some(&[(Some(1), "10.1.0.2/24")])),
            Err("host-local: 10.1.0.9 is reserved for container c1 but is not in prevResult".to_owned())
        );
    }

    #[test]
    fn the_addresses_of_others_are_none_of_its_business() {
        let prev = [
            (Some(1), "10.1.0.2/24"),
            (Some(2), "10.1.0.3/24"),
            (Some(1), "192.0.2.7/32"),
            (None, "fd00::9/64"),
        ];
        assert_eq!(verdict(&["10.1.0.2"], Some(&prev)), Ok(()));
    }
}
