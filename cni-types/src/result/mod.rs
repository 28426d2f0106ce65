//! Results: what ADD prints, what a chain hands on as `prevResult`, what a delegate answers.
//!
//! There is one result in memory, that of the newest version, and one conversion each way for the two older shapes. What a
//! shape has no place for is left out. Fields that came with 1.1.0 (`mtu` of an interface or route, and the like) are
//! written for every version since 0.3.0, as the reference does: a bridge must see the route metrics that host-local gives,
//! and no reader of an older version minds a key that it does not know.

mod legacy;
mod modern;

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value as Document;

use crate::wire::{self, Value};
use crate::{Cidr, Error, Result, Version};

/// The result of an attachment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CniResult {
    /// The interfaces that the chain made, those on the host included. Addresses and later plugins name them by index.
    pub interfaces: Vec<Interface>,
    /// The addresses assigned.
    pub ips: Vec<IpConfig>,
    /// The routes set.
    pub routes: Vec<Route>,
    /// The DNS configuration that the runtime may write for the container.
    pub dns: Dns,
}

/// An interface of a result.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Interface {
    /// Its Ethernet address; empty where it has none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mac: String,
    /// Its MTU in bytes; 0 where it is not told.
    #[serde(skip_serializing_if = "is_default")]
    pub mtu: u32,
    /// Its name.
    pub name: String,
    /// Its PCI address, where it is a device of its own.
    #[serde(rename = "pciID", skip_serializing_if = "String::is_empty")]
    pub pci_id: String,
    /// The path of its network namespace; empty for an interface on the host.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub sandbox: String,
    /// The path of its socket, where it is a vhost-user device.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub socket_path: String,
}

/// An address of a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IpConfig {
    /// The index of its interface in [`CniResult::interfaces`], where it has one.
    pub interface: Option<usize>,
    /// The address with the prefix length of its subnet.
    pub address: Cidr,
    /// The subnet's gateway.
    pub gateway: Option<IpAddr>,
}

/// A route of a result or a configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Route {
    /// The largest segment to announce to these destinations, in bytes; 0 leaves it to the kernel.
    #[serde(default, skip_serializing_if = "is_default")]
    pub advmss: u32,
    /// The destination.
    pub dst: Cidr,
    /// The next hop. Where it is missing, the gateway of the subnet is meant, if there is one.
    #[serde(default, deserialize_with = "ip_or_empty", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub gw: Option<IpAddr>,
    /// The MTU towards these destinations, in bytes; 0 leaves it to the interface.
    #[serde(default, skip_serializing_if = "is_default")]
    pub mtu: u32,
    /// The metric: less is preferred; 0 leaves it to the kernel.
    #[serde(default, skip_serializing_if = "is_default")]
    pub priority: u32,
    /// The scope, as in rtnetlink: 0 universe, 253 link, 254 host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<u8>,
    /// The routing table; the main one where it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<u32>,
}

/// A DNS configuration.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Dns {
    /// The local domain.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub domain: String,
    /// Name servers, in order of preference.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nameservers: Vec<String>,
    /// Options for the resolver.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
    /// Domains to search for short names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub search: Vec<String>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// An address, or the empty text that Go's `net.IP` writes and reads for none.
fn ip_or_empty<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<IpAddr>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?.unwrap_or_default();
    if text.is_empty() {
        return Ok(None);
    }
    text.parse()
        .map(Some)
        .map_err(|_| serde::de::Error::custom(format!("invalid IP address: {text}")))
}

impl Route {
    /// A route to `dst` by `gw`, all else left to the kernel.
    pub fn new(dst: Cidr, gw: Option<IpAddr>) -> Route {
        Route {
            advmss: 0,
            dst,
            gw,
            mtu: 0,
            priority: 0,
            scope: None,
            table: None,
        }
    }
}

impl Dns {
    /// Whether nothing is set.
    pub fn is_empty(&self) -> bool {
        is_default(self)
    }
}

impl CniResult {
    /// The result as `version` writes it.
    ///
    /// # Errors
    ///
    /// The versions before 0.3.0 hold one address of each family and at least one in all: a result without any has no
    /// such form.
    pub fn to_document(&self, version: Version) -> Result<Document> {
        let document = if version.has_interfaces() {
            modern::document(self, version)
        } else {
            legacy::document(self, version)?
        };
        document.map_err(|e| Error::internal(format!("cannot write the result: {e}")))
    }

    /// Reads a result that names its own version; `assumed` is that of one which does not.
    ///
    /// # Errors
    ///
    /// A version that does not exist, and values of the wrong type, with the path of the key.
    pub fn from_value(value: &Value, assumed: Version) -> Result<CniResult> {
        let version = match value.field("cniVersion") {
            Some(named) => wire::decode::<String>(named)?.parse()?,
            None => assumed,
        };
        if version.has_interfaces() {
            modern::read(value)
        } else {
            legacy::read(value)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::parse;

    fn sample() -> CniResult {
        let interface = |name: &str, sandbox: &str| Interface {
            name: name.into(),
            mac: "0a:58:0a:01:00:05".into(),
            sandbox: sandbox.into(),
            ..Interface::default()
        };
        CniResult {
            interfaces: vec![interface("cni0", ""), interface("eth0", "/run/netns/a")],
            ips: vec![
                IpConfig {
                    interface: Some(1),
                    address: "10.1.0.5/24".parse().unwrap(),
                    gateway: Some("10.1.0.1".parse().unwrap()),
                },
                IpConfig {
                    interface: None,
                    address: "fd00::5/64".parse().unwrap(),
                    gateway: None,
                },
            ],
            routes: vec![
                Route {
                    mtu: 1400,
                    scope: Some(0),
                    table: Some(7),
                    ..Route::new("0.0.0.0/0".parse().unwrap(), None)
                },
                Route::new("fd01::/64".parse().unwrap(), Some("fd00::1".parse().unwrap())),
            ],
            dns: Dns {
                nameservers: vec!["10.1.0.53".into()],
                ..Dns::default()
            },
        }
    }

    fn text(version: Version) -> String {
        sample().to_document(version).unwrap().to_string()
    }

    fn read(text: &str, assumed: Version) -> Result<CniResult> {
        CniResult::from_value(&parse(text.as_bytes()).unwrap(), assumed)
    }

    #[test]
    fn versions_without_interfaces_have_one_address_of_each_family() {
        assert_eq!(
            text(Version::V0_2_0),
            r#"{"cniVersion":"0.2.0","dns":{"nameservers":["10.1.0.53"]},"ip4":{"gateway":"10.1.0.1","ip":"10.1.0.5/24","routes":[{"dst":"0.0.0.0/0"}]},"ip6":{"ip":"fd00::5/64","routes":[{"dst":"fd01::/64","gw":"fd00::1"}]}}"#
        );
        let none = CniResult::default().to_document(Version::V0_1_0).unwrap_err();
        assert_eq!(none.msg, "cannot convert: no valid IP addresses");
    }

    #[test]
    fn versions_before_1_tell_the_family_and_always_have_dns() {
        let bare = CniResult {
            interfaces: vec![],
            routes: vec![],
            dns: Dns::default(),
            ..sample()
        };
        assert_eq!(
            bare.to_document(Version::V0_4_0).unwrap().to_string(),
            r#"{"cniVersion":"0.4.0","dns":{},"ips":[{"address":"10.1.0.5/24","gateway":"10.1.0.1","interface":1,"version":"4"},{"address":"fd00::5/64","version":"6"}]}"#
        );
        assert_eq!(
            bare.to_document(Version::V1_0_0).unwrap().to_string(),
            r#"{"cniVersion":"1.0.0","ips":[{"address":"10.1.0.5/24","gateway":"10.1.0.1","interface":1},{"address":"fd00::5/64"}]}"#
        );
    }

    #[test]
    fn every_version_with_interfaces_reads_back_whole() {
        for version in Version::ALL.into_iter().filter(|version| version.has_interfaces()) {
            assert_eq!(read(&text(version), Version::V0_1_0).unwrap(), sample(), "{version}");
        }
    }

    #[test]
    fn versions_without_interfaces_read_back_what_they_can_hold() {
        for version in [Version::V0_1_0, Version::V0_2_0] {
            let mut held = sample();
            held.interfaces.clear();
            held.ips.iter_mut().for_each(|ip| ip.interface = None);
            held.routes = held
                .routes
                .iter()
                .map(|route| Route::new(route.dst, route.gw))
                .collect();
            assert_eq!(read(&text(version), Version::LATEST).unwrap(), held, "{version}");
        }
    }

    #[test]
    fn go_spellings_are_read() {
        let result = read(
            r#"{"IPs":[{"Address":"10.0.0.5/24","gateway":"","interface":null}],"routes":null,"dns":null}"#,
            Version::V1_0_0,
        )
        .unwrap();
        assert_eq!(
            result.ips,
            [IpConfig {
                interface: None,
                address: "10.0.0.5/24".parse().unwrap(),
                gateway: None
            }]
        );
    }

    #[test]
    fn a_bad_result_names_the_key() {
        for (text, msg) in [
            (
                r#"{"ips":[{"address":"10.0.0.5"}]}"#,
                "ips[0].address: invalid CIDR address: 10.0.0.5",
            ),
            (r#"{"ips":[{}]}"#, "ips[0]: missing field `address`"),
            (r#"{"routes":[{"dst":"x"}]}"#, "routes[0].dst: invalid CIDR address: x"),
            (
                r#"{"ips":[{"address":"10.0.0.5/24","gateway":"x"}]}"#,
                "ips[0].gateway: invalid IP address: x",
            ),
            (r#"{"cniVersion":"9"}"#, "incompatible CNI versions"),
            ("5", "invalid type: integer `5`, expected an object"),
        ] {
            assert_eq!(read(text, Version::V1_0_0).unwrap_err().msg, msg);
        }
    }

    proptest! {
        #[test]
        fn any_result_survives_any_version_with_interfaces(
            ips in prop::collection::vec((any::<u128>(), 0u8..=128, prop::option::of(0usize..9), prop::option::of(any::<u32>())), 0..4),
            metrics in any::<(u32, u32, u32, Option<u32>, Option<u8>)>(),
            pick in 2usize..7,
        ) {
            let ips = ips.into_iter().map(|(bits, prefix, interface, gateway)| IpConfig {
                interface,
                address: Cidr::new(std::net::Ipv6Addr::from(bits).into(), prefix).unwrap(),
                gateway: gateway.map(|bits| std::net::Ipv4Addr::from(bits).into()),
            }).collect();
            let (mtu, advmss, priority, table, scope) = metrics;
            let route = Route { mtu, advmss, priority, table, scope, ..Route::new("10.0.0.0/8".parse().unwrap(), None) };
            let result = CniResult { ips, routes: vec![route], ..sample() };
            let written = result.to_document(Version::ALL[pick]).unwrap().to_string();
            prop_assert_eq!(read(&written, Version::V0_1_0).unwrap(), result);
        }
    }
}
