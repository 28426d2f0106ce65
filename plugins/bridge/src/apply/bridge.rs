//! The bridge: made if need be, and never taken away.

use cni_types::{Error, Result};
use net::{Link, LinkChange, LinkFilter, Net, NewBridge};

use crate::config::Config;

/// Finds or makes the bridge, and sees to what every ADD relies on: it is up, promiscuous and tells VLANs apart where that
/// is wanted.
pub(crate) fn ensure(host: &mut Net, config: &Config, mtu: Option<u32>) -> Result<Link> {
    let name = config.bridge.as_str();
    let failed = |e: Error| e.context(format!("failed to create bridge {name:?}"));
    let bridge = match host.link(name)? {
        Some(link) => link,
        None => create(host, config, mtu).map_err(failed)?,
    };
    if bridge.kind.as_deref() != Some("bridge") {
        return Err(failed(Error::internal(format!(
            "{name:?} already exists but is not a bridge"
        ))));
    }
    if config.vlans.any() {
        ensure_vlan_filtering(host, &bridge)?;
    }
    let promiscuous = (config.promiscuous && !bridge.promiscuous).then_some(true);
    let up = (!bridge.up).then_some(true);
    if promiscuous.is_some() || up.is_some() {
        host.change_link(
            bridge.index,
            &LinkChange {
                up,
                promiscuous,
                ..LinkChange::default()
            },
        )?;
    }
    Ok(bridge)
}

/// Makes the bridge with a random MAC. One that the kernel derives from the ports changes with them, and containers would
/// go on sending to the old one; one derived from the name would be the same on every node of a LAN.
fn create(host: &mut Net, config: &Config, mtu: Option<u32>) -> Result<Link> {
    let request = NewBridge {
        name: &config.bridge,
        mac: net::random_mac()?,
        mtu,
        vlan_filtering: config.vlans.any().then_some(true),
        // Up only once router advertisements are off.
        up: false,
    };
    match host.create_bridge(&request) {
        Ok(bridge) => {
            let _ = host
                .sysctl()
                .set(&format!("ipv6/conf/{}/accept_ra", config.bridge), "0")?;
            Ok(bridge)
        }
        // Another ADD was faster.
        Err(e) if e.is_exists() => {
            let theirs = host.link(config.bridge.as_str())?;
            theirs.ok_or_else(|| {
                Error::new(
                    cni_types::Code::TRY_AGAIN_LATER,
                    "it was made and deleted by others meanwhile",
                )
            })
        }
        Err(e) => Err(e.into()),
    }
}

/// Switching filtering on under ports that rely on its absence would cut them off: that is for the administrator to do.
fn ensure_vlan_filtering(host: &mut Net, bridge: &Link) -> Result<()> {
    if filters_vlans(bridge) {
        return Ok(());
    }
    let ports = host.links(LinkFilter {
        master: Some(bridge.index),
        ..LinkFilter::default()
    })?;
    if let Some(port) = ports.first() {
        // Another ADD may have switched it on, and attached its container, since we looked.
        if host.link_by_index(bridge.index)?.is_some_and(|now| filters_vlans(&now)) {
            return Ok(());
        }
        return Err(Error::config(format!(
            "vlan: bridge {:?} does not tell VLANs apart and has ports already ({:?}): run 'ip link set {} type bridge vlan_filtering 1'",
            bridge.name, port.name, bridge.name
        )));
    }
    Ok(host.set_vlan_filtering(bridge.index, true)?)
}

fn filters_vlans(bridge: &Link) -> bool {
    bridge.bridge.is_some_and(|bridge| bridge.vlan_filtering == Some(true))
}

/// Keeps the MAC that the bridge had before the container's port came: containers know it. The reference's bridges, and many
/// an administrator's, take the lowest of their ports' until it is set explicitly; one without ports may have none.
pub(crate) fn keep_mac(host: &mut Net, before: Link) -> Result<Link> {
    let now = host
        .link_by_index(before.index)?
        .ok_or_else(|| Error::internal(format!("bridge {:?} is gone", before.name)))?;
    let had = before.mac.filter(|mac| mac.0 != [0; 6]);
    if now.mac == before.mac {
        return Ok(now);
    }
    let mac = had.or(now.mac);
    host.change_link(
        now.index,
        &LinkChange {
            mac,
            ..LinkChange::default()
        },
    )?;
    Ok(Link { mac, ..now })
}
