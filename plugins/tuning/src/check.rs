//! CHECK: what the container has, compared with what the configuration says. Pure. The texts are the reference's.

use cni_types::{Error, IfName, Result};
use net::Link;

use crate::config::Attributes;
use crate::sysctl::Found;

/// The first sysctl that has another value. White space does not count: the kernel separates numbers by tabs.
pub(crate) fn sysctls(found: &[Found]) -> Result<()> {
    for Found { path, wanted, now } in found {
        let Some(now) = now else {
            log::debug!("/proc/sys/net/{path} can only be written: there is nothing to compare");
            continue;
        };
        if !wanted.split_whitespace().eq(now.split_whitespace()) {
            return Err(Error::internal(format!(
                "Error: Tuning configured value of /proc/sys/net/{path} is {wanted}, current value is {now}"
            )));
        }
    }
    Ok(())
}

/// The first attribute that differs.
pub(crate) fn attributes(wanted: &Attributes, ifname: &IfName, link: &Link) -> Result<()> {
    let msg = if let Some(mac) = wanted.mac.filter(|&mac| link.mac != Some(mac)) {
        let now = link.mac.map(|mac| mac.to_string()).unwrap_or_default();
        format!("configured Ethernet of {ifname} is {mac}, current value is {now}")
    } else if wanted.promiscuous && !link.promiscuous {
        format!("link {ifname} configured promisc is true, current value is 0")
    } else if let Some(mtu) = wanted.mtu.filter(|&mtu| link.mtu != mtu) {
        format!("configured MTU of {ifname} is {mtu}, current value is {}", link.mtu)
    } else if let Some(on) = wanted.all_multicast.filter(|&on| link.all_multicast != on) {
        format!(
            "configured all-multicast mode of {ifname} is {on}, current value is {}",
            link.all_multicast
        )
    } else if let Some(packets) = wanted.tx_queue_len.filter(|&packets| link.tx_queue_len != packets) {
        format!(
            "configured Transmit Queue Length of {ifname} is {packets}, current value is {}",
            link.tx_queue_len
        )
    } else {
        return Ok(());
    };
    Err(Error::internal(format!("Error: Tuning {msg}")))
}

#[cfg(test)]
mod tests {
    use cni_types::MacAddr;

    use super::*;

    #[test]
    fn sysctls_are_compared_less_white_space() {
        let found = |wanted: &str, now: &str| Found {
            path: "ipv4/tcp_rmem".into(),
            wanted: wanted.into(),
            now: Some(now.into()),
        };
        sysctls(&[
            found("4096 87380 16777216", "4096\t87380\t16777216"),
            found(" 1\n", "1"),
            found("", ""),
            Found {
                now: None,
                ..found("1", "")
            },
        ])
        .unwrap();
        assert_eq!(
            sysctls(&[found("1", "1"), found("1", "0")]).unwrap_err().msg,
            "Error: Tuning configured value of /proc/sys/net/ipv4/tcp_rmem is 1, current value is 0"
        );
    }

    #[test]
    fn each_attribute_is_compared() {
        let wanted = Attributes {
            mac: Some(MacAddr([2, 0, 0, 0, 0, 1])),
            promiscuous: true,
            mtu: Some(1400),
            all_multicast: Some(true),
            tx_queue_len: Some(7),
        };
        let right = Link {
            mac: wanted.mac,
            promiscuous: true,
            mtu: 1400,
            all_multicast: true,
            tx_queue_len: 7,
            ..Link::default()
        };
        let verdict = |link: Link| attributes(&wanted, &"eth0".parse().unwrap(), &link);
        verdict(right.clone()).unwrap();
        for (link, msg) in [
            (
                Link {
                    mac: Some(MacAddr([2, 0, 0, 0, 0, 9])),
                    ..right.clone()
                },
                "Error: Tuning configured Ethernet of eth0 is 02:00:00:00:00:01, current value is 02:00:00:00:00:09",
            ),
            (
                Link {
                    promiscuous: false,
                    ..right.clone()
                },
                "Error: Tuning link eth0 configured promisc is true, current value is 0",
            ),
            (
                Link {
                    mtu: 1500,
                    ..right.clone()
                },
                "Error: Tuning configured MTU of eth0 is 1400, current value is 1500",
            ),
            (
                Link {
                    all_multicast: false,
                    ..right.clone()
                },
                "Error: Tuning configured all-multicast mode of eth0 is true, current value is false",
            ),
            (
                Link {
                    tx_queue_len: 1000,
                    ..right.clone()
                },
                "Error: Tuning configured Transmit Queue Length of eth0 is 7, current value is 1000",
            ),
        ] {
            assert_eq!(verdict(link).unwrap_err().msg, msg);
        }
        attributes(&Attributes::default(), &"eth0".parse().unwrap(), &Link::default()).unwrap();
    }
}
