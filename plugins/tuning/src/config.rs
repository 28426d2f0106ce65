//! What the configuration says, and what it means. All of it is judged here, before anything is set.

use std::collections::BTreeMap;
use std::path::PathBuf;

use cni_types::{CniArgs, Code, Error, MacAddr, NetConf, Result};
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::sysctl::{self, Setting};

/// Where backups are kept unless `dataDir` says otherwise: a file system that a reboot empties, as it does namespaces.
const DEFAULT_DATA_DIR: &str = "/run/cni/tuning";

/// The configuration, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// In the order in which they are set.
    pub(crate) sysctls: Vec<Setting>,
    pub(crate) attributes: Attributes,
    /// The directory of backups.
    pub(crate) data_dir: PathBuf,
}

/// What the container's interface shall be like; `None` leaves as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Attributes {
    pub(crate) mac: Option<MacAddr>,
    /// Never switched off: `false` is the reference's word for nothing said.
    pub(crate) promiscuous: bool,
    /// In bytes.
    pub(crate) mtu: Option<u32>,
    pub(crate) all_multicast: Option<bool>,
    /// In packets.
    pub(crate) tx_queue_len: Option<u32>,
}

/// The keys as they are written. What is said of them is what users read. Sysctls are only passed over here: they are read by
/// [`sysctl::read`], which has to see what is said twice.
#[derive(Deserialize, Default, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Written {
    /// The MAC address of the interface. That of args.cni wins over that of runtimeConfig, that over MAC in CNI_ARGS, and that
    /// over this.
    mac: String,
    /// Makes the interface promiscuous; false leaves it as it is.
    promisc: bool,
    /// The MTU of the interface in bytes; 0 leaves it as it is.
    #[schemars(range(min = 0, max = 2147483647))]
    mtu: i64,
    /// Has the interface take all multicast packets, or not; without it, it is left as it is.
    allmulti: Option<bool>,
    /// The length of the interface's transmit queue in packets; without it, it is left as it is.
    #[schemars(range(min = 0, max = 2147483647))]
    tx_q_len: Option<i64>,
    /// Sysctls of the container by their names, below net: net.core.somaxconn or net/ipv4/conf/IFNAME/arp_ignore, where IFNAME
    /// stands for the interface. /etc/cni/tuning/allowlist.conf can say which are allowed.
    #[serde(rename = "sysctl")]
    #[schemars(with = "BTreeMap<String, Option<String>>")]
    _sysctl: IgnoredAny,
    /// Where it is kept what there was before, for DEL to put back.
    #[schemars(extend("default" = DEFAULT_DATA_DIR))]
    data_dir: String,
    runtime_config: RuntimeConfig,
    args: Args,
}

#[derive(Deserialize, Default, JsonSchema)]
#[serde(default)]
struct RuntimeConfig {
    /// The MAC address of the interface.
    mac: String,
}

#[derive(Deserialize, Default, JsonSchema)]
#[serde(default)]
struct Args {
    cni: ArgsCni,
}

/// The same keys again, each of which wins where it is set.
#[derive(Deserialize, Default, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
struct ArgsCni {
    /// As the key mac.
    mac: String,
    /// As the key promisc.
    promisc: Option<bool>,
    /// As the key mtu.
    #[schemars(range(min = 0, max = 2147483647))]
    mtu: Option<i64>,
    /// As the key allmulti.
    allmulti: Option<bool>,
    /// As the key txQLen.
    #[schemars(range(min = 0, max = 2147483647))]
    tx_q_len: Option<i64>,
    /// As the key sysctl.
    #[serde(rename = "sysctl")]
    #[schemars(with = "BTreeMap<String, Option<String>>")]
    _sysctl: IgnoredAny,
}

impl Config {
    pub(crate) fn read(conf: &NetConf, cni_args: &str) -> Result<Config> {
        let written: Written = conf.decode()?;
        let args = &written.args.cni;
        let attributes = Attributes {
            mac: written.mac(cni_args)?,
            promiscuous: args.promisc.unwrap_or(written.promisc),
            mtu: match args.mtu.unwrap_or(written.mtu) {
                0 => None,
                bytes => Some(number("mtu", bytes)?),
            },
            all_multicast: args.allmulti.or(written.allmulti),
            tx_queue_len: args
                .tx_q_len
                .or(written.tx_q_len)
                .map(|packets| number("txQLen", packets))
                .transpose()?,
        };
        Ok(Config {
            sysctls: sysctl::read(conf.value())?,
            attributes,
            data_dir: data_dir_or_default(&written.data_dir),
        })
    }
}

impl Attributes {
    /// Whether there is anything to set.
    pub(crate) fn any(&self) -> bool {
        *self != Attributes::default()
    }
}

impl Written {
    /// The reference's order: `args` wins over `runtimeConfig`, that over CNI_ARGS, and that over the network's own.
    fn mac(&self, cni_args: &str) -> Result<Option<MacAddr>> {
        let cni_args = CniArgs::parse(cni_args, &["MAC"])?;
        let given = [
            (Code::INVALID_CONFIG, "args.cni.mac", self.args.cni.mac.as_str()),
            (
                Code::INVALID_CONFIG,
                "runtimeConfig.mac",
                self.runtime_config.mac.as_str(),
            ),
            (
                Code::INVALID_ENVIRONMENT,
                "CNI_ARGS",
                cni_args.get("MAC").unwrap_or_default(),
            ),
            (Code::INVALID_CONFIG, "mac", self.mac.as_str()),
        ];
        let Some((code, key, text)) = given.into_iter().find(|(.., text)| !text.is_empty()) else {
            return Ok(None);
        };
        let invalid =
            |why: String| Error::new(code, format!("invalid args {text} for MAC addr: {why}")).with_details(key);
        let mac: MacAddr = text.parse().map_err(|e| invalid(format!("{e}")))?;
        if mac.0[0] & 1 == 1 || mac.0 == [0; 6] {
            return Err(invalid("no interface can have a multicast or zero address".to_owned()));
        }
        Ok(Some(mac))
    }
}

/// A number that the kernel has room for. What the interface can do is for its driver to say.
fn number(key: &str, given: i64) -> Result<u32> {
    i32::try_from(given)
        .ok()
        .and_then(|given| u32::try_from(given).ok())
        .ok_or_else(|| Error::config(format!("{key}: {given} is not from 0 to {}", i32::MAX)))
}

/// The directory of backups, for DEL and GC.
pub(crate) fn data_dir(conf: &NetConf) -> PathBuf {
    let text = conf.value().field("dataDir").and_then(|value| value.as_str());
    data_dir_or_default(text.unwrap_or_default())
}

fn data_dir_or_default(text: &str) -> PathBuf {
    if text.is_empty() { DEFAULT_DATA_DIR } else { text }.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conf(keys: &str) -> NetConf {
        NetConf::parse(format!(r#"{{"cniVersion":"1.0.0","name":"n","type":"tuning"{keys}}}"#).as_bytes()).unwrap()
    }

    fn attributes(keys: &str) -> Attributes {
        Config::read(&conf(keys), "").unwrap().attributes
    }

    fn refused(keys: &str, args: &str) -> (Code, String) {
        let error = Config::read(&conf(keys), args).unwrap_err();
        (error.code, error.msg)
    }

    #[test]
    fn nothing_said_is_nothing_to_do() {
        for keys in [
            "",
            r#","mac":"","promisc":false,"mtu":0,"sysctl":{}"#,
            r#","promisc":null,"allmulti":null,"txQLen":null,"args":{"cni":{}},"sysctl":null"#,
            r#","runtimeConfig":{"mtu":1322}"#,
        ] {
            let config = Config::read(&conf(keys), "").unwrap();
            assert!(!config.attributes.any() && config.sysctls.is_empty(), "{keys}");
            assert_eq!(config.data_dir, PathBuf::from("/run/cni/tuning"));
        }
    }

    #[test]
    fn every_attribute_is_read_and_args_win() {
        let own = r#","mac":"c2:11:22:33:44:55","promisc":true,"mtu":1400,"allmulti":false,"txQLen":0"#;
        let expected = Attributes {
            mac: Some(MacAddr([0xc2, 0x11, 0x22, 0x33, 0x44, 0x55])),
            promiscuous: true,
            mtu: Some(1400),
            all_multicast: Some(false),
            tx_queue_len: Some(0),
        };
        assert_eq!(attributes(own), expected);
        let args = r#","args":{"cni":{"promisc":false,"mtu":1300,"allmulti":true,"txQLen":55}}"#;
        assert_eq!(
            attributes(&format!("{own}{args}")),
            Attributes {
                promiscuous: false,
                mtu: Some(1300),
                all_multicast: Some(true),
                tx_queue_len: Some(55),
                ..expected
            }
        );
    }

    #[test]
    fn macs_come_from_four_places() {
        let of = |keys: &[&str], args: &str| {
            Config::read(&conf(&keys.concat()), args)
                .unwrap()
                .attributes
                .mac
                .map(|mac| mac.0[5])
        };
        let own = r#","mac":"c2:00:00:00:00:01""#;
        let runtime = r#","runtimeConfig":{"mac":"c2:00:00:00:00:02"}"#;
        let args = r#","args":{"cni":{"mac":"c2:00:00:00:00:03"}}"#;
        let cni_args = "IgnoreUnknown=1;MAC=c2:00:00:00:00:04";
        assert_eq!(of(&[own, runtime, args], cni_args), Some(3));
        assert_eq!(of(&[own, runtime], cni_args), Some(2));
        assert_eq!(of(&[own], cni_args), Some(4));
        assert_eq!(of(&[], cni_args), Some(4));
        assert_eq!(of(&[own], ""), Some(1));
    }

    #[test]
    fn refusals() {
        let mac = |text: &str, why: &str| format!("invalid args {text} for MAC addr: {why}");
        let no_mac = "address zz: invalid MAC address";
        let group = "no interface can have a multicast or zero address";
        for (keys, msg) in [
            (r#","mac":"zz""#, mac("zz", no_mac)),
            (r#","runtimeConfig":{"mac":"zz"}"#, mac("zz", no_mac)),
            (r#","args":{"cni":{"mac":"zz"}}"#, mac("zz", no_mac)),
            (r#","mac":"01:00:00:00:00:01""#, mac("01:00:00:00:00:01", group)),
            (r#","mac":"00:00:00:00:00:00""#, mac("00:00:00:00:00:00", group)),
            (
                r#","mac":"c2:11:22:33:44:55:66:77""#,
                mac(
                    "c2:11:22:33:44:55:66:77",
                    "address c2:11:22:33:44:55:66:77: invalid MAC address",
                ),
            ),
            (r#","mtu":-5"#, "mtu: -5 is not from 0 to 2147483647".to_owned()),
            (
                r#","mtu":3000000000"#,
                "mtu: 3000000000 is not from 0 to 2147483647".to_owned(),
            ),
            (r#","txQLen":-1"#, "txQLen: -1 is not from 0 to 2147483647".to_owned()),
            (
                r#","args":{"cni":{"mtu":-5}}"#,
                "mtu: -5 is not from 0 to 2147483647".to_owned(),
            ),
            (
                r#","mtu":"1400""#,
                r#"mtu: invalid type: string "1400", expected i64"#.to_owned(),
            ),
            (
                r#","promisc":"x""#,
                r#"promisc: invalid type: string "x", expected a boolean"#.to_owned(),
            ),
            (
                r#","mac":5"#,
                "mac: invalid type: integer `5`, expected a string".to_owned(),
            ),
        ] {
            assert_eq!(refused(keys, ""), (Code::INVALID_CONFIG, msg), "{keys}");
        }
        assert_eq!(refused("", "MAC=zz"), (Code::INVALID_ENVIRONMENT, mac("zz", no_mac)));
        assert_eq!(refused("", "FOO=1").1, r#"ARGS: unknown args ["FOO=1"]"#);
        assert_eq!(refused("", "rubbish").1, r#"ARGS: invalid pair "rubbish""#);
    }

    #[test]
    fn the_directory_can_be_chosen_and_cleanup_refuses_nothing() {
        assert_eq!(data_dir(&conf(r#","dataDir":"/d","mtu":"x""#)), PathBuf::from("/d"));
        assert_eq!(data_dir(&conf(r#","dataDir":5"#)), PathBuf::from(DEFAULT_DATA_DIR));
    }
}
