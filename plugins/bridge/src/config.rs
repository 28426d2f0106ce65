//! What the configuration says, and what it means.

use attach::{Dad, Masquerade, Mtu};
use cni_types::{CniArgs, Code, Error, IfName, MacAddr, NetConf, Result};
use net::VlanRange;
use schemars::JsonSchema;
use serde::Deserialize;
use skel::Call;

/// The bridge of a configuration that names none.
const DEFAULT_BRIDGE: &str = "cni0";

/// The keys as they are written, less those of [`attach::MasqueradeKeys`] and [`attach::MtuKeys`]. What is said of them is what
/// users read.
#[derive(Deserialize, Default, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Written {
    /// The bridge to attach to. It is made if it does not exist, and stays.
    #[schemars(extend("default" = DEFAULT_BRIDGE))]
    bridge: String,
    /// Gives the bridge the gateway's address of each subnet, and switches the node's forwarding on.
    is_gateway: bool,
    /// Makes that address the container's default route; isGateway is implied.
    is_default_gateway: bool,
    /// Lets another address of the bridge give way to the gateway's. Without it, that is an error.
    force_address: bool,
    /// Lets the bridge send packets back to the port that they came from: a container can reach its own published port.
    hairpin_mode: bool,
    /// Makes the bridge promiscuous. It excludes hairpinMode.
    promisc_mode: bool,
    /// The VLAN of the container, untagged on its port; 0 for none. With a gateway, the bridge gets a port such as cni0.100, which
    /// has the gateway's address.
    #[schemars(range(min = 0, max = 4094))]
    vlan: i64,
    /// VLANs that the container sees tagged.
    vlan_trunk: Vec<Trunk>,
    /// Leaves a port with a VLAN of its own in the bridge's default VLAN too.
    preserve_default_vlan: bool,
    /// Drops what the container sends from another MAC address than its own. The rules are nf_tables'.
    macspoofchk: bool,
    /// Lets the kernel look for duplicates of the container's IPv6 addresses, and waits for it.
    enabledad: bool,
    /// Leaves the container's interface down, for something in the container that takes it over. It excludes ipam.
    disable_container_interface: bool,
    /// Keeps this port from reaching others of the bridge that are isolated too.
    port_isolation: bool,
    args: Args,
    runtime_config: Mac,
}

#[derive(Deserialize, Default, JsonSchema)]
#[serde(default)]
struct Args {
    cni: Mac,
}

#[derive(Deserialize, Default, JsonSchema)]
#[serde(default)]
struct Mac {
    /// The MAC address of the container's interface. That of runtimeConfig wins over that of args.cni, and both over MAC in
    /// CNI_ARGS.
    mac: String,
}

#[derive(Deserialize, Default, JsonSchema)]
#[serde(default)]
struct Trunk {
    /// The first VLAN of a range; maxID is needed with it.
    #[serde(rename = "minID")]
    #[schemars(range(min = 1, max = 4094))]
    min_id: Option<i64>,
    /// The last VLAN of a range.
    #[serde(rename = "maxID")]
    #[schemars(range(min = 1, max = 4094))]
    max_id: Option<i64>,
    /// One VLAN.
    #[schemars(range(min = 1, max = 4094))]
    id: Option<i64>,
}

/// The configuration of a network, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    pub(crate) bridge: IfName,
    /// Addresses come from an IPAM plugin; without one the network is layer 2 only.
    pub(crate) has_ipam: bool,
    /// The bridge, or its VLAN port, gets the subnet's gateway address.
    pub(crate) is_gateway: bool,
    /// The container gets a default route by that gateway.
    pub(crate) is_default_gateway: bool,
    /// Another address of the bridge gives way.
    pub(crate) force_address: bool,
    pub(crate) masquerade: Option<Masquerade>,
    pub(crate) mtu: Mtu,
    pub(crate) hairpin: bool,
    pub(crate) promiscuous: bool,
    pub(crate) isolated: bool,
    pub(crate) vlans: Vlans,
    pub(crate) mac: Option<MacAddr>,
    pub(crate) mac_spoof_check: bool,
    /// The container's IPv6 addresses undergo duplicate address detection.
    pub(crate) enable_dad: bool,
    /// The container's interface is left down, without addresses: something in the container will take it over.
    pub(crate) leave_interface_down: bool,
}

/// The VLANs of the container's port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Vlans {
    /// Untagged on the port.
    pub(crate) access: Option<u16>,
    /// Tagged on the port.
    pub(crate) trunk: Vec<VlanRange>,
    /// A port with an access VLAN stays in the bridge's default one too. Off unless asked for, as in the reference, though its
    /// manual says otherwise.
    pub(crate) preserve_default: bool,
}

impl Vlans {
    /// Whether the bridge has to tell VLANs apart.
    pub(crate) fn any(&self) -> bool {
        self.access.is_some() || !self.trunk.is_empty()
    }
}

/// What DEL needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cleanup {
    /// `None` where the configuration names none that could exist.
    pub(crate) bridge: Option<IfName>,
    pub(crate) has_ipam: bool,
    pub(crate) vlan: Option<u16>,
}

impl Config {
    pub(crate) fn read(conf: &NetConf, call: &Call) -> Result<Config> {
        let written: Written = conf.decode()?;
        let has_ipam = conf.ipam_type.is_some();
        written.refuse_contradictions(has_ipam)?;
        if !conf.cni_version.has_interfaces() && !has_ipam {
            return Err(Error::config(format!(
                "a result of cniVersion {} must hold an address: set ipam, or a cniVersion since 0.3.0",
                conf.cni_version
            )));
        }
        let bridge = bridge_name(&written.bridge)?;
        let vlans = written.vlans()?;
        let is_gateway = written.is_gateway || written.is_default_gateway;
        if let Some(vid) = vlans.access.filter(|_| is_gateway) {
            vlan_port_name(&bridge, vid)?;
        }
        Ok(Config {
            bridge,
            has_ipam,
            is_gateway,
            is_default_gateway: written.is_default_gateway,
            force_address: written.force_address,
            masquerade: Masquerade::read(conf)?,
            mtu: Mtu::read(conf)?,
            hairpin: written.hairpin_mode,
            promiscuous: written.promisc_mode,
            isolated: written.port_isolation,
            vlans,
            mac: written.mac(call.cni_args())?,
            mac_spoof_check: written.macspoofchk,
            enable_dad: written.enabledad,
            leave_interface_down: written.disable_container_interface,
        })
    }
}

impl Config {
    /// Whether ADD has to wait for duplicate address detection.
    pub(crate) fn dad(&self) -> Dad {
        if self.enable_dad { Dad::Wait } else { Dad::Skip }
    }

    /// The VLAN that has a gateway port of its own.
    pub(crate) fn gateway_vlan(&self) -> Option<u16> {
        self.vlans.access.filter(|_| self.is_gateway && self.has_ipam)
    }
}

impl Written {
    /// The texts are the reference's.
    fn refuse_contradictions(&self, has_ipam: bool) -> Result<()> {
        if self.hairpin_mode && self.promisc_mode {
            return Err(
                Error::config("cannot set hairpin mode and promiscuous mode at the same time")
                    .with_details("set one of hairpinMode and promiscMode"),
            );
        }
        if self.disable_container_interface && has_ipam {
            return Err(
                Error::config("cannot use IPAM when DisableContainerInterface flag is set")
                    .with_details("remove ipam or disableContainerInterface"),
            );
        }
        Ok(())
    }

    /// The address for the container's interface: the reference lets `runtimeConfig` win over `args`, and both over CNI_ARGS.
    fn mac(&self, cni_args: &str) -> Result<Option<MacAddr>> {
        let cni_args = CniArgs::parse(cni_args, &["MAC"])?;
        let given = [
            (
                Code::INVALID_CONFIG,
                "runtimeConfig.mac",
                self.runtime_config.mac.as_str(),
            ),
            (Code::INVALID_CONFIG, "args.cni.mac", self.args.cni.mac.as_str()),
            (
                Code::INVALID_ENVIRONMENT,
                "MAC in CNI_ARGS",
                cni_args.get("MAC").unwrap_or_default(),
            ),
        ];
        let Some((code, key, text)) = given.into_iter().find(|(.., text)| !text.is_empty()) else {
            return Ok(None);
        };
        let mac: MacAddr = text.parse().map_err(|e| Error::new(code, format!("{key}: {e}")))?;
        if mac.0[0] & 1 == 1 || mac.0 == [0; 6] {
            return Err(Error::new(
                code,
                format!("{key}: {mac} is a multicast or zero address: no interface can have it"),
            ));
        }
        Ok(Some(mac))
    }

    fn vlans(&self) -> Result<Vlans> {
        let access = vlan_id(self.vlan)?;
        let mut trunk = Vec::new();
        for (index, entry) in self.vlan_trunk.iter().enumerate() {
            let ranges = entry
                .ranges()
                .map_err(|msg| Error::config(msg).with_details(format!("vlanTrunk[{index}]")))?;
            trunk.extend(ranges);
        }
        Ok(Vlans {
            access,
            trunk,
            preserve_default: self.preserve_default_vlan,
        })
    }
}

impl Trunk {
    /// The texts are the reference's.
    fn ranges(&self) -> Result<Vec<VlanRange>, &'static str> {
        let vid = |id: i64| u16::try_from(id).ok().filter(|id| (1..=4094).contains(id));
        let mut ranges = Vec::new();
        match (self.min_id, self.max_id) {
            (None, None) => {}
            (Some(_), None) => return Err("minID and maxID should be configured simultaneously, maxID is missing"),
            (None, Some(_)) => return Err("minID and maxID should be configured simultaneously, minID is missing"),
            (Some(min), Some(max)) => {
                let first = vid(min).ok_or("incorrect trunk minID parameter")?;
                let last = vid(max).ok_or("incorrect trunk maxID parameter")?;
                if first > last {
                    return Err("minID is greater than maxID in trunk parameter");
                }
                ranges.push(VlanRange {
                    last,
                    ..VlanRange::tagged(first)
                });
            }
        }
        if let Some(id) = self.id {
            ranges.push(VlanRange::tagged(vid(id).ok_or("incorrect trunk id parameter")?));
        }
        Ok(ranges)
    }
}

impl Cleanup {
    /// Reads what it can; the rest was refused by ADD and made nothing.
    pub(crate) fn read(conf: &NetConf) -> Cleanup {
        let key = |name: &str| conf.value().field(name);
        let text = key("bridge").and_then(|value| value.as_str()).unwrap_or_default();
        let bridge = warn_about(bridge_name(text));
        let vlan = key("vlan")
            .map(|value| cni_types::wire::decode::<i64>(value).map_err(|e| Error::config(format!("vlan: {e}"))));
        let vlan = vlan
            .and_then(warn_about)
            .and_then(|id| warn_about(vlan_id(id)).flatten());
        Cleanup {
            bridge,
            has_ipam: conf.ipam_type.is_some(),
            vlan,
        }
    }
}

fn warn_about<T>(read: Result<T>) -> Option<T> {
    read.inspect_err(|e| log::warn!("{e}; cleaning up without it")).ok()
}

fn bridge_name(text: &str) -> Result<IfName> {
    let name = if text.is_empty() { DEFAULT_BRIDGE } else { text };
    name.parse()
        .map_err(|e| Error::config(format!("bridge: {name:?}: {e}")))
}

fn vlan_id(id: i64) -> Result<Option<u16>> {
    match u16::try_from(id) {
        Ok(0) => Ok(None),
        Ok(vid @ 1..=4094) => Ok(Some(vid)),
        _ => Err(Error::config(format!("invalid VLAN ID {id} (must be between 0 and 4094)")).with_details("vlan")),
    }
}

/// The port that holds the gateway address of a VLAN: `cni0.100`, as in the reference.
pub(crate) fn vlan_port_name(bridge: &IfName, vid: u16) -> Result<IfName> {
    let name = format!("{bridge}.{vid}");
    name.parse().map_err(|e| {
        Error::config(format!(
            "bridge and vlan: the gateway's port would be named {name:?}: {e}"
        ))
    })
}

#[cfg(test)]
mod tests {
    use cni_types::Version;

    use super::*;

    fn conf(keys: &str) -> NetConf {
        NetConf::parse(format!(r#"{{"cniVersion":"1.0.0","name":"n","type":"bridge"{keys}}}"#).as_bytes()).unwrap()
    }

    fn read(keys: &str) -> Result<Config> {
        read_with(keys, "")
    }

    fn read_with(keys: &str, cni_args: &str) -> Result<Config> {
        let attachment = cni_types::Attachment {
            network: "n".parse().unwrap(),
            container_id: "c".parse().unwrap(),
            ifname: "eth0".parse().unwrap(),
        };
        Config::read(&conf(keys), &Call::new(attachment, cni_args))
    }

    const IPAM: &str = r#","ipam":{"type":"host-local"}"#;

    #[test]
    fn nothing_said_is_a_plain_layer_2_bridge() {
        let config = read("").unwrap();
        assert_eq!(config.bridge.as_str(), "cni0");
        assert!(!config.has_ipam && !config.is_gateway && config.masquerade.is_none());
        assert_eq!((config.mtu, config.mac), (Mtu::Kernel, None));
        assert!(!config.vlans.preserve_default && !config.vlans.any());
    }

    #[test]
    fn a_default_gateway_is_a_gateway() {
        assert!(read(r#","isDefaultGateway":true"#).unwrap().is_gateway);
    }

    #[test]
    fn refusals() {
        for (keys, msg) in [
            (
                r#","hairpinMode":true,"promiscMode":true"#.into(),
                "cannot set hairpin mode and promiscuous mode at the same time",
            ),
            (
                r#","vlan":4095"#.into(),
                "invalid VLAN ID 4095 (must be between 0 and 4094)",
            ),
            (
                r#","vlan":-1"#.into(),
                "invalid VLAN ID -1 (must be between 0 and 4094)",
            ),
            (
                format!(r#"{IPAM},"disableContainerInterface":true"#),
                "cannot use IPAM when DisableContainerInterface flag is set",
            ),
            (
                r#","bridge":"abcdefghijklmnopqrstuv""#.into(),
                r#"bridge: "abcdefghijklmnopqrstuv": interface name is too long"#,
            ),
            (
                r#","bridge":"a/b""#.into(),
                r#"bridge: "a/b": interface name contains / or : or whitespace characters"#,
            ),
            (
                r#","isGateway":true,"bridge":"abcdefghijkl","vlan":1000"#.into(),
                r#"bridge and vlan: the gateway's port would be named "abcdefghijkl.1000": interface name is too long"#,
            ),
            (
                r#","vlanTrunk":[{"minID":10,"maxID":5}]"#.into(),
                "minID is greater than maxID in trunk parameter",
            ),
            (
                r#","vlanTrunk":[{"minID":10}]"#.into(),
                "minID and maxID should be configured simultaneously, maxID is missing",
            ),
            (
                r#","vlanTrunk":[{"maxID":10}]"#.into(),
                "minID and maxID should be configured simultaneously, minID is missing",
            ),
            (
                r#","vlanTrunk":[{"minID":0,"maxID":5}]"#.into(),
                "incorrect trunk minID parameter",
            ),
            (
                r#","vlanTrunk":[{"minID":1,"maxID":5000}]"#.into(),
                "incorrect trunk maxID parameter",
            ),
            (r#","vlanTrunk":[{"id":5000}]"#.into(), "incorrect trunk id parameter"),
            (
                r#","vlanTrunk":[null]"#.into(),
                "vlanTrunk[0]: invalid type: unit value, expected an object",
            ),
            (
                r#","mtu":"1500""#.into(),
                r#"mtu: invalid type: string "1500", expected i64"#,
            ),
            (
                r#","ipMasqBackend":"zzz""#.into(),
                r#"ipMasqBackend: unrecognized backend "zzz""#,
            ),
            (
                r#","runtimeConfig":{"mac":"zz"}"#.into(),
                "runtimeConfig.mac: address zz: invalid MAC address",
            ),
            (
                r#","args":{"cni":{"mac":"01:00:00:00:00:01"}}"#.into(),
                "args.cni.mac: 01:00:00:00:00:01 is a multicast or zero address: no interface can have it",
            ),
        ] {
            let keys: String = keys;
            let error = read(&keys).unwrap_err();
            assert_eq!((error.code, error.msg.as_str()), (Code::INVALID_CONFIG, msg), "{keys}");
        }
    }

    #[test]
    fn the_runtimes_mac_wins() {
        let three = r#","runtimeConfig":{"mac":"02:00:00:00:00:01"},"args":{"cni":{"mac":"02:00:00:00:00:02"}}"#;
        let two = r#","args":{"cni":{"mac":"02:00:00:00:00:02"}}"#;
        for (keys, last) in [(three, 1), (two, 2), ("", 3)] {
            let mac = read_with(keys, "IgnoreUnknown=1;MAC=02:00:00:00:00:03").unwrap().mac;
            assert_eq!(mac, Some(MacAddr([2, 0, 0, 0, 0, last])));
        }
        let error = read_with("", "MAC=zz").unwrap_err();
        assert_eq!(
            (error.code, error.msg.as_str()),
            (
                Code::INVALID_ENVIRONMENT,
                "MAC in CNI_ARGS: address zz: invalid MAC address"
            )
        );
        assert_eq!(
            read_with("", "FOO=1").unwrap_err().msg,
            r#"ARGS: unknown args ["FOO=1"]"#
        );
    }

    #[test]
    fn trunks_are_ranges_and_single_vlans() {
        let vlans = read(r#","vlan":7,"vlanTrunk":[{"minID":10,"maxID":12,"id":20},{}],"preserveDefaultVlan":true"#)
            .unwrap()
            .vlans;
        assert_eq!(vlans.access, Some(7));
        assert_eq!(
            vlans.trunk,
            [
                VlanRange {
                    last: 12,
                    ..VlanRange::tagged(10)
                },
                VlanRange::tagged(20)
            ]
        );
        assert!(vlans.preserve_default);
    }

    #[test]
    fn what_a_version_cannot_express_is_refused_before_anything_is_made() {
        for version in Version::ALL {
            let conf = NetConf::parse(format!(r#"{{"cniVersion":"{version}","name":"n"}}"#).as_bytes()).unwrap();
            let attachment = cni_types::Attachment {
                network: "n".parse().unwrap(),
                container_id: "c".parse().unwrap(),
                ifname: "eth0".parse().unwrap(),
            };
            assert_eq!(
                Config::read(&conf, &Call::new(attachment, "")).is_ok(),
                version.has_interfaces(),
                "{version}"
            );
        }
    }

    #[test]
    fn cleaning_up_takes_what_it_can_read() {
        let all = Cleanup::read(&conf(&format!(r#","bridge":"br0","vlan":5{IPAM}"#)));
        assert_eq!(
            all,
            Cleanup {
                bridge: Some("br0".parse().unwrap()),
                has_ipam: true,
                vlan: Some(5)
            }
        );
        let bad = Cleanup::read(&conf(&format!(r#","bridge":"a/b","vlan":"x","mtu":"y"{IPAM}"#)));
        assert_eq!(
            bad,
            Cleanup {
                bridge: None,
                has_ipam: true,
                vlan: None
            }
        );
    }
}
