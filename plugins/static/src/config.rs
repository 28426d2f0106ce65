//! What the configuration says, and what it means.
//!
//! The message of a refusal begins as the reference's does, because runtimes match on it; the key is in `details`.

use std::net::IpAddr;

use cni_types::{Cidr, CniArgs, CniResult, Code, Dns, Error, IpConfig, NetConf, Result, Route, Version};
use schemars::JsonSchema;
use serde::Deserialize;

/// What ADD assigns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The addresses, with the gateways of their subnets.
    pub(crate) ips: Vec<IpConfig>,
    routes: Vec<Route>,
    dns: Dns,
}

/// The keys as they are written. What is said of them is what users read.
#[derive(Deserialize, Default, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Written {
    ipam: Option<Ipam>,
    runtime_config: OfRuntime,
    args: Args,
}

/// The plugin that assigns addresses, by its type, and its keys.
#[derive(Deserialize, Default, JsonSchema)]
#[serde(default)]
struct Ipam {
    /// The addresses to assign.
    addresses: Vec<Address>,
    /// The routes of the result.
    routes: Vec<Route>,
    /// The dns of the result.
    dns: Dns,
}

#[derive(Deserialize, Default, JsonSchema)]
#[serde(default)]
struct Address {
    /// The address with the prefix length of its subnet, such as 10.1.0.5/24. It has to be given.
    address: String,
    /// The subnet's gateway.
    gateway: String,
}

#[derive(Deserialize, Default, JsonSchema)]
#[serde(default)]
struct Args {
    cni: OfNetwork,
}

#[derive(Deserialize, Default, JsonSchema)]
#[serde(default)]
struct OfRuntime {
    /// Addresses with prefix lengths that replace those of ipam, of args.cni and of CNI_ARGS. They have no gateway.
    ips: Vec<String>,
}

#[derive(Deserialize, Default, JsonSchema)]
#[serde(default)]
struct OfNetwork {
    /// Addresses with prefix lengths that replace those of ipam and of CNI_ARGS. They have no gateway.
    ips: Vec<String>,
}

impl Config {
    /// Reads what ADD, CHECK and STATUS need.
    ///
    /// Addresses of `CNI_ARGS` come on top of those of the configuration. Those of `runtimeConfig.ips`, or else of
    /// `args.cni.ips`, replace them all, and have no gateway.
    ///
    /// # Errors
    ///
    /// No `ipam` at all, what is no address with a prefix length, and unknown keys of `CNI_ARGS` unless `IgnoreUnknown` is
    /// set. Addresses of the configuration that are replaced are not looked at, as in the reference.
    pub fn new(conf: &NetConf, cni_args: &str) -> Result<Config> {
        let written: Written = conf.decode()?;
        let Some(ipam) = written.ipam else {
            return Err(Error::config("IPAM config missing 'ipam' key"));
        };
        let of_args = of_cni_args(cni_args)?;
        let of_network = of_list("args.cni.ips", &written.args.cni.ips)?;
        let of_runtime = of_list("runtimeConfig.ips", &written.runtime_config.ips)?;
        let replacing = [of_runtime, of_network].into_iter().find(|ips| !ips.is_empty());
        let ips = match replacing {
            Some(ips) => ips,
            None => {
                let of_conf = ipam.addresses.iter().enumerate().map(|(at, address)| address.read(at));
                let mut ips = of_conf.collect::<Result<Vec<IpConfig>>>()?;
                ips.extend(of_args);
                ips
            }
        };
        one_per_family_before_0_3(conf.cni_version, &ips)?;
        Ok(Config {
            ips,
            routes: ipam.routes,
            dns: ipam.dns,
        })
    }

    /// What ADD answers.
    pub(crate) fn result(&self) -> CniResult {
        CniResult {
            interfaces: Vec::new(),
            ips: self.ips.clone(),
            routes: self.routes.clone(),
            dns: self.dns.clone(),
        }
    }
}

impl Address {
    /// The entry `at` of `ipam.addresses`.
    fn read(&self, at: usize) -> Result<IpConfig> {
        let key = |name: &str| format!("ipam.addresses[{at}].{name}");
        let text = &self.address;
        let address = text.parse().map_err(|_| {
            let msg = format!("the 'address' field is expected to be in CIDR notation, got: '{text}'");
            Error::config(msg).with_details(key("address"))
        })?;
        let gateway = match self.gateway.as_str() {
            "" => None,
            text => Some(
                text.parse()
                    .map_err(|_| Error::config(format!("invalid IP address: {text}")).with_details(key("gateway")))?,
            ),
        };
        Ok(IpConfig {
            gateway,
            ..without_gateway(address)
        })
    }
}

/// `IP` and `GATEWAY` of `CNI_ARGS`, both lists with commas. A gateway counts for the addresses in whose subnet it lies, the
/// last one if there are several; one in no subnet is ignored.
fn of_cni_args(text: &str) -> Result<Vec<IpConfig>> {
    let args = CniArgs::parse(text, &["IP", "GATEWAY"])?;
    let items = |key: &str| {
        args.get(key)
            .into_iter()
            .flat_map(|list| list.split(','))
            .map(str::trim)
    };
    let invalid = |msg: String| Error::new(Code::INVALID_ENVIRONMENT, msg).with_details("CNI_ARGS");

    let mut ips = Vec::new();
    for text in items("IP") {
        let address = text.parse().map_err(|_| {
            invalid(format!(
                "the 'ip' field is expected to be in CIDR notation, got: '{text}'"
            ))
        })?;
        ips.push(without_gateway(address));
    }
    for text in items("GATEWAY") {
        let gateway: IpAddr = text
            .parse()
            .map_err(|_| invalid(format!("invalid gateway address: {text}")))?;
        for ip in ips.iter_mut().filter(|ip| ip.address.contains(gateway)) {
            ip.gateway = Some(gateway);
        }
    }
    Ok(ips)
}

fn of_list(key: &str, texts: &[String]) -> Result<Vec<IpConfig>> {
    let read = |(at, text): (usize, &String)| {
        let address = text.parse().map_err(|_| {
            let msg = format!("an entry in the 'ips' field is NOT in CIDR notation, got: '{text}'");
            Error::config(msg).with_details(format!("{key}[{at}]"))
        })?;
        Ok(without_gateway(address))
    };
    texts.iter().enumerate().map(read).collect()
}

fn without_gateway(address: Cidr) -> IpConfig {
    IpConfig {
        interface: None,
        address,
        gateway: None,
    }
}

fn one_per_family_before_0_3(version: Version, ips: &[IpConfig]) -> Result<()> {
    let ipv4 = ips.iter().filter(|ip| ip.address.is_ipv4()).count();
    if version < Version::V0_3_0 && (ipv4 > 1 || ips.len() - ipv4 > 1) {
        let msg = format!("CNI version {version} does not support more than 1 address per family");
        return Err(Error::config(msg).with_details("ipam.addresses"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESSES: &str = r#""addresses":[{"address":"10.1.0.5/24","gateway":"10.1.0.1"},{"address":"fd00::5/64"}]"#;
    const RUNTIME: &str = r#","runtimeConfig":{"ips":["10.7.0.5/24","fd07::5/64"]}"#;
    const NETWORK: &str = r#","args":{"cni":{"ips":["10.8.0.5/24"]}}"#;

    fn read(version: &str, ipam: &str, rest: &str, args: &str) -> Result<Config> {
        let json = format!(r#"{{"cniVersion":"{version}","name":"n","ipam":{{{ipam}}}{rest}}}"#);
        Config::new(&NetConf::parse(json.as_bytes()).unwrap(), args)
    }

    /// The addresses, each with its gateway or `-`.
    fn ips(ipam: &str, rest: &str, args: &str) -> Vec<String> {
        let shown = |ip: &IpConfig| {
            let gateway = ip.gateway.map_or("-".to_owned(), |gateway| gateway.to_string());
            format!("{} {gateway}", ip.address)
        };
        let config = read("1.0.0", ipam, rest, args).unwrap();
        config.ips.iter().map(shown).collect()
    }

    fn refused(ipam: &str, rest: &str, args: &str) -> (Code, String, String) {
        let error = read("1.0.0", ipam, rest, args).unwrap_err();
        (error.code, error.msg, error.details)
    }

    #[test]
    fn the_configuration_is_the_result() {
        let more =
            r#","routes":[{"dst":"0.0.0.0/0"},{"dst":"10.2.3.4/16","gw":"10.1.0.9","mtu":1400}],"dns":{"domain":"d"}"#;
        let result = read("1.0.0", &format!("{ADDRESSES}{more}"), "", "").unwrap().result();
        assert_eq!(
            result.to_document(Version::V1_0_0).unwrap().to_string(),
            r#"{"cniVersion":"1.0.0","dns":{"domain":"d"},"ips":[{"address":"10.1.0.5/24","gateway":"10.1.0.1"},{"address":"fd00::5/64"}],"routes":[{"dst":"0.0.0.0/0"},{"dst":"10.2.3.4/16","gw":"10.1.0.9","mtu":1400}]}"#
        );
        assert_eq!(read("1.0.0", "", "", "").unwrap().result(), CniResult::default());
        assert_eq!(
            ips(r#""addresses":[{"address":"10.1.0.5/24","gateway":""}]"#, "", ""),
            ["10.1.0.5/24 -"]
        );
    }

    #[test]
    fn addresses_of_cni_args_are_added() {
        let configured = ["10.1.0.5/24 10.1.0.1", "fd00::5/64 -"];
        for (args, added) in [
            ("IP=10.3.0.5/24", &["10.3.0.5/24 -"][..]),
            (
                "IP= 10.3.0.5/24 , fd01::4/64;GATEWAY=10.3.0.1",
                &["10.3.0.5/24 10.3.0.1", "fd01::4/64 -"],
            ),
            (
                "IP=10.3.0.5/24,10.3.0.6/24;GATEWAY=10.3.0.1, 10.3.0.2",
                &["10.3.0.5/24 10.3.0.2", "10.3.0.6/24 10.3.0.2"],
            ),
            // A gateway is not for the configuration's own addresses.
            ("GATEWAY=10.1.0.9", &[]),
            ("GATEWAY=fd00::1;IP=", &[]),
        ] {
            assert_eq!(ips(ADDRESSES, "", args), [&configured[..], added].concat(), "{args}");
        }
        assert_eq!(ips("", "", "IgnoreUnknown=1;FOO=1;IP=10.3.0.5/24"), ["10.3.0.5/24 -"]);
    }

    #[test]
    fn addresses_of_the_runtime_replace_all_others() {
        let (of_runtime, of_network) = (["10.7.0.5/24 -", "fd07::5/64 -"], ["10.8.0.5/24 -"]);
        let args = "IP=10.3.0.5/24;GATEWAY=10.7.0.1";
        for ipam in [ADDRESSES, "", r#""addresses":[{"address":"zz"}]"#] {
            assert_eq!(ips(ipam, RUNTIME, args), of_runtime, "{ipam}");
            assert_eq!(ips(ipam, NETWORK, args), of_network, "{ipam}");
            assert_eq!(ips(ipam, &format!("{RUNTIME}{NETWORK}"), args), of_runtime, "{ipam}");
        }
        let empty = r#","runtimeConfig":{"ips":[]},"args":{"cni":{}}"#;
        assert_eq!(ips(ADDRESSES, empty, ""), ips(ADDRESSES, "", ""));
    }

    #[test]
    fn refusals_begin_as_the_reference_and_name_the_key() {
        for text in ["10.1.0.5", "10.1.0.5/33", "zz", "", " 10.1.0.5/24"] {
            let address = format!(r#""addresses":[{{"address":"10.1.0.5/24"}},{{"address":"{text}"}}]"#);
            let msg = format!("the 'address' field is expected to be in CIDR notation, got: '{text}'");
            let expected = (Code::INVALID_CONFIG, msg, "ipam.addresses[1].address".to_owned());
            assert_eq!(refused(&address, "", ""), expected);

            let msg = format!("an entry in the 'ips' field is NOT in CIDR notation, got: '{text}'");
            for (rest, key) in [
                (
                    format!(r#","runtimeConfig":{{"ips":["{text}"]}}"#),
                    "runtimeConfig.ips[0]",
                ),
                (
                    format!(r#","args":{{"cni":{{"ips":["{text}"]}}}}{RUNTIME}"#),
                    "args.cni.ips[0]",
                ),
            ] {
                let expected = (Code::INVALID_CONFIG, msg.clone(), key.to_owned());
                assert_eq!(refused(ADDRESSES, &rest, ""), expected);
            }
        }
        let gateway = r#""addresses":[{"address":"10.1.0.5/24","gateway":"zz"}]"#;
        let expected = (
            Code::INVALID_CONFIG,
            "invalid IP address: zz".to_owned(),
            "ipam.addresses[0].gateway".to_owned(),
        );
        assert_eq!(refused(gateway, "", ""), expected);
    }

    #[test]
    fn wrong_types_are_refused() {
        for (ipam, beginning) in [
            (r#""addresses":["10.1.0.5/24"]"#, "ipam.addresses[0]: invalid type"),
            (r#""addresses":[null]"#, "ipam.addresses[0]: invalid type"),
            (
                r#""addresses":[{"address":5}]"#,
                "ipam.addresses[0].address: invalid type",
            ),
            (
                r#""routes":[{"dst":"foo"}]"#,
                "ipam.routes[0].dst: invalid CIDR address: foo",
            ),
            (r#""routes":[{}]"#, "ipam.routes[0]: missing field `dst`"),
            (r#""dns":{"nameservers":"x"}"#, "ipam.dns.nameservers: invalid type"),
        ] {
            let (code, msg, _) = refused(ipam, "", "");
            assert!(code == Code::INVALID_CONFIG && msg.starts_with(beginning), "{msg}");
        }
        for ipam in ["", r#","ipam":null"#] {
            let json = format!(r#"{{"cniVersion":"1.0.0","name":"n"{ipam}}}"#);
            let error = Config::new(&NetConf::parse(json.as_bytes()).unwrap(), "").unwrap_err();
            assert_eq!(error.msg, "IPAM config missing 'ipam' key");
        }
    }

    #[test]
    fn bad_cni_args_are_refused_even_where_they_are_replaced() {
        for (args, msg) in [
            (
                "IP=10.3.0.5",
                "the 'ip' field is expected to be in CIDR notation, got: '10.3.0.5'",
            ),
            (
                "IP=10.3.0.5/24,",
                "the 'ip' field is expected to be in CIDR notation, got: ''",
            ),
            ("GATEWAY=zz", "invalid gateway address: zz"),
            ("GATEWAY=10.3.0.1,", "invalid gateway address: "),
            ("FOO=1", r#"ARGS: unknown args ["FOO=1"]"#),
            ("rubbish", r#"ARGS: invalid pair "rubbish""#),
        ] {
            for rest in ["", RUNTIME] {
                let (code, got, _) = refused(ADDRESSES, rest, args);
                assert_eq!((code, got.as_str()), (Code::INVALID_ENVIRONMENT, msg));
            }
        }
    }

    #[test]
    fn old_versions_have_one_address_per_family() {
        let two = r#""addresses":[{"address":"10.1.0.5/24"},{"address":"10.1.0.6/24"}]"#;
        for version in ["0.1.0", "0.2.0"] {
            assert!(read(version, ADDRESSES, "", "").is_ok());
            assert_eq!(
                read(version, two, "", "").unwrap_err().msg,
                format!("CNI version {version} does not support more than 1 address per family")
            );
        }
        assert!(read("0.3.0", two, "", "").is_ok());
    }
}
