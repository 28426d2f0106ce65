//! The shape of 0.3.0 to 1.1.0: interfaces, and a list of addresses.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::Value as Document;

use super::{CniResult, Dns, Interface, IpConfig, Route, ip_or_empty};
use crate::wire::{self, Value};
use crate::{Cidr, Result, Version};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Written<'a> {
    cni_version: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    dns: Option<&'a Dns>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    interfaces: &'a [Interface],
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ips: Vec<WrittenIp>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    routes: &'a [Route],
}

#[derive(Serialize)]
struct WrittenIp {
    address: Cidr,
    #[serde(skip_serializing_if = "Option::is_none")]
    gateway: Option<IpAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    interface: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<&'static str>,
}

pub(super) fn document(result: &CniResult, version: Version) -> serde_json::Result<Document> {
    // Until 0.4.0 each address tells its family and `dns` is always there; since 1.0.0 neither.
    let before_1 = version < Version::V1_0_0;
    let ip = |ip: &IpConfig| {
        let family = if ip.address.is_ipv4() { "4" } else { "6" };
        WrittenIp {
            address: ip.address,
            gateway: ip.gateway,
            interface: ip.interface,
            version: before_1.then_some(family),
        }
    };
    serde_json::to_value(Written {
        cni_version: version.as_str(),
        dns: (before_1 || !result.dns.is_empty()).then_some(&result.dns),
        interfaces: &result.interfaces,
        ips: result.ips.iter().map(ip).collect(),
        routes: &result.routes,
    })
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Read {
    interfaces: Vec<Interface>,
    ips: Vec<ReadIp>,
    routes: Vec<Route>,
    dns: Dns,
}

#[derive(Deserialize)]
struct ReadIp {
    #[serde(default)]
    interface: Option<i64>,
    address: Cidr,
    #[serde(default, deserialize_with = "ip_or_empty")]
    gateway: Option<IpAddr>,
}

pub(super) fn read(value: &Value) -> Result<CniResult> {
    let Read {
        interfaces,
        ips,
        routes,
        dns,
    } = wire::decode(value)?;
    let ips = ips.into_iter().map(|ip| IpConfig {
        // Some plugins write -1 for "no interface".
        interface: ip.interface.and_then(|index| usize::try_from(index).ok()),
        address: ip.address,
        gateway: ip.gateway,
    });
    Ok(CniResult {
        interfaces,
        ips: ips.collect(),
        routes,
        dns,
    })
}
