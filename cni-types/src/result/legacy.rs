//! The shape of 0.1.0 and 0.2.0: one address of each family, with the routes of that family.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::Value as Document;

use super::{CniResult, Dns, IpConfig, Route, ip_or_empty};
use crate::wire::{self, Value};
use crate::{Cidr, Error, Result, Version};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Written<'a> {
    cni_version: &'static str,
    dns: &'a Dns,
    #[serde(skip_serializing_if = "Option::is_none")]
    ip4: Option<Family>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ip6: Option<Family>,
}

#[derive(Serialize, Deserialize)]
struct Family {
    #[serde(default, deserialize_with = "ip_or_empty", skip_serializing_if = "Option::is_none")]
    gateway: Option<IpAddr>,
    ip: Cidr,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    routes: Vec<Route>,
}

pub(super) fn document(result: &CniResult, version: Version) -> Result<serde_json::Result<Document>> {
    let family = |ipv4: bool| {
        let first = result.ips.iter().find(|ip| ip.address.is_ipv4() == ipv4)?;
        let routes = result.routes.iter().filter(|route| route.dst.is_ipv4() == ipv4);
        let routes = routes.map(|route| Route::new(route.dst, route.gw)).collect();
        Some(Family {
            gateway: first.gateway,
            ip: first.address,
            routes,
        })
    };
    let written = Written {
        cni_version: version.as_str(),
        dns: &result.dns,
        ip4: family(true),
        ip6: family(false),
    };
    if written.ip4.is_none() && written.ip6.is_none() {
        return Err(Error::config("cannot convert: no valid IP addresses"));
    }
    Ok(serde_json::to_value(written))
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Read {
    ip4: Option<Family>,
    ip6: Option<Family>,
    dns: Dns,
}

pub(super) fn read(value: &Value) -> Result<CniResult> {
    let Read { ip4, ip6, dns } = wire::decode(value)?;
    let mut result = CniResult {
        dns,
        ..CniResult::default()
    };
    for family in [ip4, ip6].into_iter().flatten() {
        result.ips.push(IpConfig {
            interface: None,
            address: family.ip,
            gateway: family.gateway,
        });
        result.routes.extend(family.routes);
    }
    Ok(result)
}
