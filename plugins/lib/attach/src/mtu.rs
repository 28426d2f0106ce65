//! `mtu` and `mtuAuto`: the MTU of the interfaces that a plugin makes.

use cni_types::{Error, NetConf, Result};
use net::{Family, Net};
use schemars::JsonSchema;
use serde::Deserialize;

/// What the kernel allows a veth (drivers/net/veth.c, include/uapi/linux/if_ether.h).
const RANGE: std::ops::RangeInclusive<i64> = 68..=65535;

/// An MTU as the configuration says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mtu {
    /// Whatever the kernel gives.
    Kernel,
    /// This many bytes.
    Bytes(u32),
    /// That of the node's uplink: the interface of its default route.
    Uplink,
}

/// The keys as they are written. What is said of them is what users read.
#[derive(Deserialize, Default, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct MtuKeys {
    /// The MTU of the interfaces in bytes, at least 68; 0 leaves it to the kernel.
    #[schemars(range(min = 0, max = 65535))]
    mtu: i64,
    /// Takes the MTU of the node's uplink, the interface of its default route. It excludes mtu.
    mtu_auto: bool,
}

impl Mtu {
    /// Reads the two keys.
    ///
    /// # Errors
    ///
    /// An MTU that no veth can have; both keys at once.
    pub fn read(conf: &NetConf) -> Result<Mtu> {
        let written: MtuKeys = conf.decode()?;
        match written.mtu {
            0 if written.mtu_auto => Ok(Mtu::Uplink),
            0 => Ok(Mtu::Kernel),
            _ if written.mtu_auto => Err(Error::config("mtu and mtuAuto exclude each other: set one of them")),
            bytes if RANGE.contains(&bytes) => Ok(Mtu::Bytes(bytes as u32)),
            bytes => Err(Error::config(format!(
                "mtu: {bytes} is not 0 (the kernel's choice) or from 68 to 65535"
            ))),
        }
    }

    /// The MTU in bytes; `None` leaves it to the kernel.
    ///
    /// # Errors
    ///
    /// The uplink's is asked for, and the node has no default route; or what the kernel says.
    pub fn bytes(self, host: &mut Net) -> Result<Option<u32>> {
        match self {
            Mtu::Kernel => Ok(None),
            Mtu::Bytes(bytes) => Ok(Some(bytes)),
            Mtu::Uplink => of_uplink(host).map(Some),
        }
    }
}

fn of_uplink(host: &mut Net) -> Result<u32> {
    for family in [Family::V4, Family::V6] {
        let uplink = host.default_routes(family)?.into_iter().find_map(|route| route.oif);
        if let Some(link) = uplink.map(|index| host.link_by_index(index)).transpose()?.flatten() {
            return Ok(link.mtu);
        }
    }
    Err(Error::config(
        "mtuAuto: the node has no default route to take the MTU from: set mtu",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(keys: &str) -> Result<Mtu> {
        Mtu::read(&NetConf::parse(format!(r#"{{"cniVersion":"1.0.0","name":"n"{keys}}}"#).as_bytes()).unwrap())
    }

    #[test]
    fn a_number_the_uplinks_or_the_kernels() {
        for (keys, mtu) in [
            ("", Mtu::Kernel),
            (r#","mtu":0"#, Mtu::Kernel),
            (r#","mtu":68"#, Mtu::Bytes(68)),
            (r#","mtu":65535"#, Mtu::Bytes(65535)),
            (r#","mtu":0,"mtuAuto":true"#, Mtu::Uplink),
        ] {
            assert_eq!(read(keys), Ok(mtu), "{keys}");
        }
    }

    #[test]
    fn refusals() {
        for (keys, msg) in [
            (r#","mtu":"1500""#, r#"mtu: invalid type: string "1500", expected i64"#),
            (
                r#","mtu":67"#,
                "mtu: 67 is not 0 (the kernel's choice) or from 68 to 65535",
            ),
            (
                r#","mtu":-5"#,
                "mtu: -5 is not 0 (the kernel's choice) or from 68 to 65535",
            ),
            (
                r#","mtu":100000"#,
                "mtu: 100000 is not 0 (the kernel's choice) or from 68 to 65535",
            ),
            (
                r#","mtu":1400,"mtuAuto":true"#,
                "mtu and mtuAuto exclude each other: set one of them",
            ),
        ] {
            assert_eq!(read(keys).unwrap_err(), Error::config(msg), "{keys}");
        }
    }
}
