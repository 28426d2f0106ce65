//! The network configuration that a plugin reads on its standard input.

use std::borrow::Cow;
use std::collections::BTreeSet;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::result::{CniResult, Dns};
use crate::wire::{self, Seen, Value};
use crate::{Code, ContainerId, Error, IfName, NetworkName, Result, Version};

/// A plugin's configuration: what every plugin has, and the rest to decode from (section "Plugin configuration objects").
#[derive(Debug, Clone)]
pub struct NetConf {
    /// `cniVersion`: the version to answer in.
    pub cni_version: Version,
    /// `name`: the network.
    pub name: NetworkName,
    /// `type`: the plugin's own name; empty where the runtime leaves it out.
    pub plugin_type: String,
    /// `ipam.type`: the delegate for addresses. `None` where it is missing or empty (podman writes an empty one).
    pub ipam_type: Option<String>,
    /// `dns`: what the network's author wants in the result.
    pub dns: Dns,
    value: Value,
    seen: Seen,
}

/// A key that no type has which was decoded from its object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownKey {
    /// Where: `ipam.ranges[0][1]`; empty for the configuration itself.
    pub path: String,
    /// As written.
    pub key: String,
    /// What is known there.
    pub known: Vec<&'static str>,
}

/// The valid attachments of a GC request.
pub type ValidAttachments = BTreeSet<(ContainerId, IfName)>;

/// The keys that [`NetConf::parse`] decodes. What is said of them is what users read.
#[derive(Deserialize, Default, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
struct Generic {
    /// The version of the CNI specification to speak. In a list of plugins, that of the list counts.
    #[schemars(extend("enum" = versions(), "default" = "0.1.0"))]
    cni_version: String,
    /// The network's name, which has to be given: letters, digits, `_`, `.` and `-`. In a list of plugins, that of the list counts.
    name: String,
    /// The plugin: the name of its executable.
    r#type: String,
    /// What the result shall tell the runtime about DNS.
    dns: Dns,
}

/// Every version, and the empty text that stands for the oldest.
fn versions() -> Vec<&'static str> {
    let all = Version::ALL.into_iter().map(Version::as_str);
    std::iter::once("").chain(all).collect()
}

impl JsonSchema for NetConf {
    fn schema_name() -> Cow<'static, str> {
        "NetConf".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        Generic::json_schema(generator)
    }
}

impl NetConf {
    /// Reads the bytes of standard input.
    ///
    /// # Errors
    ///
    /// In this order: [`Code::DECODING_FAILURE`] for what is no JSON object or has a wrong type at one of the generic keys,
    /// [`Code::INVALID_CONFIG`] for the name, [`Code::INCOMPATIBLE_VERSION`]. The texts are the reference's.
    pub fn parse(stdin: &[u8]) -> Result<NetConf> {
        let unreadable =
            |e: Error| Error::new(Code::DECODING_FAILURE, e.msg).context("error unmarshall network config");
        let value = wire::parse(stdin).map_err(unreadable)?;
        let seen = Seen::default();
        let generic: Generic = wire::decode_noting(&value, &seen).map_err(|e| unreadable(e.into()))?;
        let ipam_type = match value.field("ipam").and_then(|ipam| ipam.field("type")) {
            Some(named) => Some(wire::decode::<String>(named).map_err(|e| Error::from(e).context("ipam.type"))?),
            None => None,
        };
        Ok(NetConf {
            name: network_name(&generic.name)?,
            cni_version: generic.cni_version.parse()?,
            plugin_type: generic.r#type,
            ipam_type: ipam_type.filter(|name| !name.is_empty()),
            dns: generic.dns,
            value,
            seen,
        })
    }

    /// The whole configuration, for the keys that are a plugin's own.
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// Decodes the keys of a plugin's own.
    ///
    /// # Errors
    ///
    /// [`Code::INVALID_CONFIG`] with the path of the key whose type is wrong.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T> {
        Ok(wire::decode_noting(&self.value, &self.seen)?)
    }

    /// The keys that nothing has been decoded from so far, in objects that something was. Go ignores the case of keys, and so
    /// does this.
    pub fn unknown_keys(&self) -> Vec<UnknownKey> {
        let mut unknown = Vec::new();
        self.collect_unknown("", &self.value, &mut unknown);
        unknown
    }

    fn collect_unknown(&self, path: &str, value: &Value, unknown: &mut Vec<UnknownKey>) {
        match value {
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    self.collect_unknown(&format!("{path}[{index}]"), item, unknown);
                }
            }
            Value::Object(object) => {
                let known = self.seen.keys_of(object);
                // Without any, nobody has looked into it.
                for (key, value) in object.entries().filter(|_| !known.is_empty()) {
                    if known.iter().any(|name| name.eq_ignore_ascii_case(key)) {
                        let dot = if path.is_empty() { "" } else { "." };
                        self.collect_unknown(&format!("{path}{dot}{key}"), value, unknown);
                    } else {
                        unknown.push(UnknownKey {
                            path: path.to_owned(),
                            key: key.to_owned(),
                            known: known.clone(),
                        });
                    }
                }
            }
            _ => {}
        }
    }

    /// `prevResult`: the result of the plugin before in the chain; on DEL and CHECK that of the whole ADD.
    ///
    /// # Errors
    ///
    /// [`Code::INVALID_CONFIG`] for one that cannot be read.
    pub fn prev_result(&self) -> Result<Option<CniResult>> {
        let Some(value) = self.value.field("prevResult") else {
            return Ok(None);
        };
        let result = CniResult::from_value(value, self.cni_version);
        result.map(Some).map_err(|e| Error {
            code: Code::INVALID_CONFIG,
            ..e.context("could not parse prevResult")
        })
    }

    /// `cni.dev/valid-attachments` of a GC request (section "GC").
    ///
    /// libcni writes `null` for an empty list. Its release 1.2 wrote the list under `cni.dev/attachments` alone.
    ///
    /// # Errors
    ///
    /// [`Code::INVALID_CONFIG`] where the key is absent or holds anything but attachments: nothing may be collected then.
    pub fn valid_attachments(&self) -> Result<ValidAttachments> {
        const KEY: &str = "cni.dev/valid-attachments";
        let entries = || self.value.as_object().into_iter().flat_map(|object| object.entries());
        let last = |name| entries().filter(|(key, _)| *key == name).last().map(|(_, value)| value);
        match last(KEY).or_else(|| last("cni.dev/attachments")) {
            None => Err(Error::config(format!(
                "{KEY} is missing: without it nothing can be told from garbage"
            ))),
            Some(Value::Null) => Ok(ValidAttachments::new()),
            Some(list) => read_attachments(list).map_err(|e| e.context(KEY)),
        }
    }
}

fn network_name(text: &str) -> Result<NetworkName> {
    if text.is_empty() {
        return Err(Error::config("missing network name"));
    }
    text.parse()
        .map_err(|_| Error::config("invalid characters found in network name").with_details(text))
}

fn read_attachments(list: &Value) -> Result<ValidAttachments> {
    #[derive(Deserialize)]
    struct Attachment {
        #[serde(rename = "containerID")]
        container_id: String,
        ifname: IfName,
    }

    let list: Vec<Attachment> = wire::decode(list)?;
    let read = |attachment: Attachment| {
        let id = attachment
            .container_id
            .parse()
            .map_err(|e| Error::config(format!("containerID: {e}")))?;
        Ok((id, attachment.ifname))
    };
    list.into_iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<NetConf> {
        NetConf::parse(text.as_bytes())
    }

    #[test]
    fn the_generic_keys_are_read() {
        let conf = parse(
            r#"{"cniVersion":"1.0.0","name":"net","type":"bridge","ipam":{"type":"host-local"},"dns":{"domain":"a"}}"#,
        )
        .unwrap();
        assert_eq!(
            (conf.cni_version, conf.name.as_str(), conf.plugin_type.as_str()),
            (Version::V1_0_0, "net", "bridge")
        );
        assert_eq!(
            (conf.ipam_type.as_deref(), conf.dns.domain.as_str()),
            (Some("host-local"), "a")
        );
    }

    #[test]
    fn an_ipam_without_type_is_none() {
        for ipam in ["{}", "null", r#"{"type":""}"#, r#"{"type":null}"#] {
            assert_eq!(
                parse(&format!(r#"{{"name":"n","ipam":{ipam}}}"#)).unwrap().ipam_type,
                None,
                "{ipam}"
            );
        }
    }

    #[test]
    fn refusals_have_code_and_text_of_the_reference() {
        for (text, code, msg) in [
            (
                "",
                Code::DECODING_FAILURE,
                "error unmarshall network config: unexpected end of JSON input",
            ),
            (
                "[1]",
                Code::DECODING_FAILURE,
                "error unmarshall network config: invalid type: sequence, expected an object",
            ),
            (
                r#"{"name":5}"#,
                Code::DECODING_FAILURE,
                "error unmarshall network config: name: invalid type: integer `5`, expected a string",
            ),
            ("{}", Code::INVALID_CONFIG, "missing network name"),
            (
                r#"{"name":"bad name!"}"#,
                Code::INVALID_CONFIG,
                "invalid characters found in network name",
            ),
            (
                r#"{"name":"../x"}"#,
                Code::INVALID_CONFIG,
                "invalid characters found in network name",
            ),
            (
                r#"{"name":"n","cniVersion":"9.9.9"}"#,
                Code::INCOMPATIBLE_VERSION,
                "incompatible CNI versions",
            ),
        ] {
            let error = parse(text).unwrap_err();
            assert_eq!((error.code, error.msg.as_str()), (code, msg), "{text}");
        }
    }

    #[test]
    fn a_bad_prev_result_is_an_error_of_the_configuration() {
        let conf = parse(r#"{"name":"n","cniVersion":"1.0.0","prevResult":{"cniVersion":"7"}}"#).unwrap();
        let error = conf.prev_result().unwrap_err();
        assert_eq!(
            (error.code, error.msg.as_str()),
            (
                Code::INVALID_CONFIG,
                "could not parse prevResult: incompatible CNI versions"
            )
        );
        assert_eq!(
            parse(r#"{"name":"n","prevResult":null}"#).unwrap().prev_result(),
            Ok(None)
        );
    }

    #[test]
    fn valid_attachments_are_a_list_or_null_but_never_absent() {
        let valid = |keys: &str| {
            parse(&format!(r#"{{"name":"n","cniVersion":"1.1.0"{keys}}}"#))
                .unwrap()
                .valid_attachments()
        };
        assert_eq!(
            valid(r#","cni.dev/valid-attachments":null"#),
            Ok(ValidAttachments::new())
        );
        assert_eq!(valid(r#","cni.dev/valid-attachments":[]"#), Ok(ValidAttachments::new()));
        let one =
            valid(r#","cni.dev/valid-attachments":[{"containerID":"c","ifname":"eth0"}],"cni.dev/attachments":[]"#)
                .unwrap();
        assert_eq!(
            one,
            ValidAttachments::from([("c".parse().unwrap(), "eth0".parse().unwrap())])
        );
        assert_eq!(
            valid(r#","cni.dev/attachments":[{"containerID":"c","ifname":"eth0"}]"#).unwrap(),
            one
        );
        for bad in [
            "",
            r#","cni.dev/valid-attachments":{}"#,
            r#","cni.dev/valid-attachments":[{"containerID":"c"}]"#,
            r#","cni.dev/valid-attachments":[{"containerID":"../c","ifname":"eth0"}]"#,
        ] {
            assert_eq!(valid(bad).unwrap_err().code, Code::INVALID_CONFIG, "{bad}");
        }
    }
}
