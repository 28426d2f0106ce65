//! What the configuration says, and what it means.
//!
//! The message of a refusal begins as the reference's does, because runtimes match on it; the key is in `details`.

use std::net::IpAddr;
use std::path::PathBuf;

use cni_types::{Cidr, CniArgs, Error, NetConf, Result, Route, Version};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::range::{self, Bits, Entry, Family, Invalid, Range, RangeSet};

/// Where networks have their directories unless `ipam.dataDir` says otherwise.
pub const DEFAULT_DATA_DIR: &str = "/var/lib/cni/networks";

/// What ADD and CHECK need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The directory of directories of networks.
    pub data_dir: PathBuf,
    /// The range sets, each of which gives one address. Their order numbers the cursors.
    pub sets: Vec<RangeSet>,
    /// The addresses asked for, each once.
    pub requested: Vec<IpAddr>,
    /// The routes of the result.
    pub routes: Vec<Route>,
    /// A resolv.conf to take `dns` from.
    pub resolv_conf: Option<PathBuf>,
    /// When addresses of attachments that are gone are taken back.
    pub reclaim: Reclaim,
}

/// `ipam.reclaim`: when reservations whose attachment is gone without a DEL are taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reclaim {
    /// When a range set has no free address left, or the address asked for is taken.
    WhenExhausted,
    /// On every ADD.
    Always,
    /// Never.
    Never,
}

/// The keys as they are written. What is said of them is what users read.
#[derive(Deserialize, Default, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Conf {
    ipam: Option<Ipam>,
    runtime_config: RuntimeConfig,
    args: Args,
}

/// The plugin that assigns addresses, by its type, and its keys.
#[derive(Deserialize, Default, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
struct Ipam {
    /// Where networks have their directories of addresses in use.
    #[schemars(extend("default" = DEFAULT_DATA_DIR))]
    data_dir: String,
    /// The one range, as a network such as 10.1.0.0/24; short for a list in ranges.
    subnet: Option<String>,
    /// Its first address to assign, if that is not the subnet's first.
    range_start: String,
    /// Its last address to assign, if that is not the subnet's last.
    range_end: String,
    /// Its gateway, which is never assigned, if that is not the subnet's first address.
    gateway: String,
    /// Range sets, each of which gives one address. A set is a list of ranges of one family; one or the other of subnet and ranges
    /// is needed, unless runtimeConfig has ranges.
    ranges: Vec<Vec<RangeConf>>,
    /// The routes of the result.
    routes: Vec<Route>,
    /// A file like resolv.conf to take the dns of the result from.
    resolv_conf: String,
    /// Addresses and networks that are never assigned. The reference has no such key.
    exclude: Vec<String>,
    /// When addresses are taken back whose container is gone without a DEL: always at every ADD, or never; without it, when a range
    /// set has no address left or the one that is asked for is taken. The reference has no such key.
    #[schemars(extend("enum" = ["", "always", "never"]))]
    reclaim: String,
}

#[derive(Deserialize, Default, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
struct RangeConf {
    /// The network that addresses are from, such as 10.1.0.0/24. It has to be given.
    subnet: Option<String>,
    /// The first address to assign, if that is not the subnet's first.
    range_start: String,
    /// The last address to assign, if that is not the subnet's last.
    range_end: String,
    /// The gateway, which is never assigned, if that is not the subnet's first address.
    gateway: String,
}

#[derive(Deserialize, Default, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
struct RuntimeConfig {
    /// Addresses to assign, with or without a prefix length.
    ips: Vec<String>,
    /// Range sets that come before those of ipam.
    ip_ranges: Vec<Vec<RangeConf>>,
}

#[derive(Deserialize, Default, JsonSchema)]
#[serde(default)]
struct Args {
    cni: ArgsCni,
}

#[derive(Deserialize, Default, JsonSchema)]
#[serde(default)]
struct ArgsCni {
    /// Addresses to assign, on top of those of runtimeConfig and of IP in CNI_ARGS.
    ips: Vec<String>,
}

impl Config {
    /// Reads what ADD and CHECK need.
    ///
    /// # Errors
    /// Wrong types, contradictions, no range at all, and unknown keys of `CNI_ARGS` unless `IgnoreUnknown` is set.
    pub fn new(conf: &NetConf, cni_args: &str) -> Result<Config> {
        let mut read: Conf = conf.decode()?;
        let Some(ipam) = read.ipam.take() else {
            return Err(Error::config("IPAM config missing 'ipam' key"));
        };
        let config = Config {
            requested: requested(cni_args, &read)?,
            sets: range_sets(&ipam, &read.runtime_config.ip_ranges)?,
            data_dir: data_dir_or_default(&ipam.data_dir),
            resolv_conf: (!ipam.resolv_conf.is_empty()).then(|| ipam.resolv_conf.into()),
            reclaim: reclaim(&ipam.reclaim)?,
            routes: ipam.routes,
        };
        if config.sets.is_empty() {
            return Err(Error::config("no IP ranges specified").with_details("ipam.ranges"));
        }
        one_per_family_before_0_3(conf.cni_version, &config.sets)?;
        Ok(config)
    }

    /// Reads what STATUS needs: the runtime sends no `runtimeConfig`, so there may be no range at all.
    ///
    /// # Errors
    /// As [`Config::new`], except for missing ranges.
    pub fn of_status(conf: &NetConf) -> Result<Config> {
        let read: Conf = conf.decode()?;
        let ipam = read.ipam.unwrap_or_default();
        Ok(Config {
            requested: Vec::new(),
            sets: range_sets(&ipam, &read.runtime_config.ip_ranges)?,
            data_dir: data_dir_or_default(&ipam.data_dir),
            resolv_conf: None,
            reclaim: reclaim(&ipam.reclaim)?,
            routes: Vec::new(),
        })
    }
}

/// What DEL and GC need: the directory. A value that cannot be one is reported, and the default taken.
pub fn data_dir(conf: &NetConf) -> PathBuf {
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Conf {
        ipam: Ipam,
    }
    #[derive(Deserialize, Default)]
    #[serde(default, rename_all = "camelCase")]
    struct Ipam {
        data_dir: String,
    }
    let read: Conf = conf.decode().unwrap_or_else(|e| {
        log::warn!("{}: using {DEFAULT_DATA_DIR}", e.msg);
        Conf::default()
    });
    data_dir_or_default(&read.ipam.data_dir)
}

fn data_dir_or_default(text: &str) -> PathBuf {
    if text.is_empty() { DEFAULT_DATA_DIR } else { text }.into()
}

fn reclaim(text: &str) -> Result<Reclaim> {
    match text {
        "" => Ok(Reclaim::WhenExhausted),
        "always" => Ok(Reclaim::Always),
        "never" => Ok(Reclaim::Never),
        _ => Err(Error::config(format!(
            "ipam.reclaim must be \"always\" or \"never\", not {text:?}"
        ))),
    }
}

fn one_per_family_before_0_3(version: Version, sets: &[RangeSet]) -> Result<()> {
    let count = |family| sets.iter().filter(|set| set.family() == family).count();
    if version < Version::V0_3_0 && (count(Family::V4) > 1 || count(Family::V6) > 1) {
        let msg = format!("CNI version {version} does not support more than 1 address per family");
        return Err(Error::config(msg).with_details("ipam.ranges"));
    }
    Ok(())
}

/// The addresses asked for in all three places together, as the reference collects them.
fn requested(cni_args: &str, conf: &Conf) -> Result<Vec<IpAddr>> {
    let args = CniArgs::parse(cni_args, &["IP"])?;
    let mut found = Vec::new();
    if let Some(text) = args.get("IP") {
        let ip = requested_ip(text).map_err(|e| {
            let pair = format!("IP={text}");
            e.context(format!("ARGS: error parsing value of pair {pair:?}"))
                .with_details("CNI_ARGS")
        })?;
        found.push(ip);
    }
    for (key, texts) in [
        ("args.cni.ips", &conf.args.cni.ips),
        ("runtimeConfig.ips", &conf.runtime_config.ips),
    ] {
        for (at, text) in texts.iter().enumerate() {
            found.push(requested_ip(text).map_err(|e| e.with_details(format!("{key}[{at}]")))?);
        }
    }
    let mut each_once = Vec::with_capacity(found.len());
    for ip in found {
        if !each_once.contains(&ip) {
            each_once.push(ip);
        }
    }
    Ok(each_once)
}

/// An address, with or without a prefix length: runtimes write both.
fn requested_ip(text: &str) -> Result<IpAddr> {
    let ip = text.parse().ok().or_else(|| Some(text.parse::<Cidr>().ok()?.address()));
    ip.map(|ip: IpAddr| ip.to_canonical())
        .ok_or_else(|| Error::config(format!("invalid IP address {text}")))
}

/// The range sets in the order that numbers their cursors: the runtime's, the old-style range, the list.
fn range_sets(ipam: &Ipam, of_runtime: &[Vec<RangeConf>]) -> Result<Vec<RangeSet>> {
    let mut said = SaidRanges::default();
    said.push_list("runtimeConfig.ipRanges", of_runtime)?;
    if let Some(subnet) = &ipam.subnet {
        let entry = entry(Some(subnet), &ipam.range_start, &ipam.range_end, &ipam.gateway);
        said.0.push((
            "ipam.subnet".to_owned(),
            vec![("ipam".to_owned(), entry.map_err(|e| invalid("ipam", e))?)],
        ));
    }
    said.push_list("ipam.ranges", &ipam.ranges)?;

    let mut sets = said.check()?;
    exclude_gateways(&mut sets);
    for (family, addresses) in excluded(&ipam.exclude)? {
        for range in sets.iter_mut().flat_map(RangeSet::ranges_mut) {
            range.exclude(family, addresses.clone());
        }
    }
    Ok(sets)
}

/// Range sets with the keys that they, and each of their ranges, were said under.
#[derive(Default)]
struct SaidRanges(Vec<(String, Vec<(String, Entry)>)>);

impl SaidRanges {
    fn push_list(&mut self, key: &str, sets: &[Vec<RangeConf>]) -> Result<()> {
        for (at, ranges) in sets.iter().enumerate() {
            let key = format!("{key}[{at}]");
            let read = ranges.iter().enumerate().map(|(at, conf)| {
                let key = format!("{key}[{at}]");
                let entry = entry(conf.subnet.as_ref(), &conf.range_start, &conf.range_end, &conf.gateway);
                entry.map_err(|e| invalid(&key, e)).map(|entry| (key, entry))
            });
            let read = read.collect::<Result<_>>()?;
            self.0.push((key, read));
        }
        Ok(())
    }

    fn check(&self) -> Result<Vec<RangeSet>> {
        let mut sets = Vec::<RangeSet>::with_capacity(self.0.len());
        for (number, (key, ranges)) in self.0.iter().enumerate() {
            let context = |e: Error| e.context(format!("invalid range set {number}"));
            let range = |(key, entry): &(String, Entry)| Range::new(entry).map_err(|e| context(invalid(key, e)));
            let ranges = ranges.iter().map(range).collect::<Result<_>>()?;
            sets.push(RangeSet::new(ranges).map_err(|why| context(Error::config(why).with_details(key)))?);
        }
        for (at, set) in sets.iter().enumerate() {
            if let Some(other) = sets.iter().skip(at + 1).position(|other| set.overlaps(other)) {
                let other = at + 1 + other;
                let key = |at: usize| self.0.get(at).map_or("", |(key, _)| key);
                return Err(
                    Error::config(format!("range set {at} overlaps with {other}")).with_details(format!(
                        "{} and {}",
                        key(at),
                        key(other)
                    )),
                );
            }
        }
        Ok(sets)
    }
}

fn invalid(key: &str, invalid: Invalid) -> Error {
    Error::config(invalid.why).with_details(format!("{key}.{}", invalid.key))
}

fn entry(subnet: Option<&String>, start: &str, end: &str, gateway: &str) -> Result<Entry, Invalid> {
    let ip = |key, text: &str| match text {
        "" => Ok(None),
        _ => text
            .parse()
            .map(|ip: IpAddr| Some(ip.to_canonical()))
            .map_err(|_| Invalid {
                key,
                why: format!("invalid IP address: {text}"),
            }),
    };
    let subnet = subnet.ok_or(Invalid {
        key: "subnet",
        why: "IP <nil> not v4 nor v6: subnet is missing".to_owned(),
    })?;
    Ok(Entry {
        subnet: subnet.parse().map_err(|e| Invalid {
            key: "subnet",
            why: format!("{e}"),
        })?,
        start: ip("rangeStart", start)?,
        end: ip("rangeEnd", end)?,
        gateway: ip("gateway", gateway)?,
    })
}

/// No range hands out a gateway, be it another's.
fn exclude_gateways(sets: &mut [RangeSet]) {
    let gateways: Vec<IpAddr> = sets
        .iter()
        .flat_map(RangeSet::ranges)
        .filter_map(Range::gateway)
        .collect();
    for range in sets.iter_mut().flat_map(RangeSet::ranges_mut) {
        for gateway in &gateways {
            let bits = range::bits(*gateway);
            range.exclude(Family::of(*gateway), bits..=bits);
        }
    }
}

fn excluded(texts: &[String]) -> Result<Vec<(Family, std::ops::RangeInclusive<Bits>)>> {
    let read = |(at, text): (usize, &String)| {
        let address = || text.parse().ok().map(|ip: IpAddr| Cidr::host(ip.to_canonical()));
        let network = text.parse::<Cidr>().ok().or_else(address);
        network.map(range::addresses).ok_or_else(|| {
            Error::config(format!(
                "ipam.exclude[{at}]: {text:?} is neither an address nor a network like 10.1.0.0/28"
            ))
        })
    };
    texts.iter().enumerate().map(read).collect()
}

#[cfg(test)]
mod tests {
    use cni_types::Code;

    use super::*;

    fn read(ipam: &str, rest: &str, args: &str) -> Result<Config> {
        let json = format!(r#"{{"cniVersion":"1.0.0","name":"n","type":"host-local",{rest}"ipam":{{{ipam}}}}}"#);
        Config::new(&NetConf::parse(json.as_bytes()).unwrap(), args)
    }

    fn sets(ipam: &str, rest: &str) -> Vec<String> {
        read(ipam, rest, "")
            .unwrap()
            .sets
            .iter()
            .map(RangeSet::to_string)
            .collect()
    }

    fn refused(ipam: &str, rest: &str) -> (String, String) {
        let error = read(ipam, rest, "").unwrap_err();
        assert_eq!(error.code, Code::INVALID_CONFIG, "{error}");
        (error.msg, error.details)
    }

    #[test]
    fn range_sets_are_numbered_runtime_then_old_style_then_list() {
        let found = sets(
            r#""subnet":"10.1.0.0/30","ranges":[[{"subnet":"10.3.0.0/30"}],[{"subnet":"fd00::/126"}]]"#,
            r#""runtimeConfig":{"ipRanges":[[{"subnet":"10.1.7.0/30"}]]},"#,
        );
        assert_eq!(
            found,
            [
                "10.1.7.1-10.1.7.2",
                "10.1.0.1-10.1.0.2",
                "10.3.0.1-10.3.0.2",
                "fd00::1-fd00::3"
            ]
        );
    }

    #[test]
    fn refusals_begin_as_the_reference_and_name_the_key() {
        for (ipam, msg, key) in [
            (
                r#""subnet":"10.1.0.5/24""#,
                "invalid range set 0: Network has host bits set. For a subnet mask of length 24 the network address is 10.1.0.0",
                "ipam.subnet",
            ),
            (
                r#""subnet":"10.1.0.0/33""#,
                "invalid CIDR address: 10.1.0.0/33",
                "ipam.subnet",
            ),
            (r#""subnet":"""#, "invalid CIDR address: ", "ipam.subnet"),
            (
                r#""ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"10.2.0.0/24","rangeStart":"10.1.1.1"}]]"#,
                "invalid range set 1: RangeStart 10.1.1.1 not in network 10.2.0.0/24",
                "ipam.ranges[1][0].rangeStart",
            ),
            (
                r#""ranges":[[{"subnet":"10.1.0.0/24","rangeStart":"foo"}]]"#,
                "invalid IP address: foo",
                "ipam.ranges[0][0].rangeStart",
            ),
            (
                r#""ranges":[[]]"#,
                "invalid range set 0: empty range set",
                "ipam.ranges[0]",
            ),
            (
                r#""ranges":[[{}]]"#,
                "IP <nil> not v4 nor v6: subnet is missing",
                "ipam.ranges[0][0].subnet",
            ),
            (r#""ranges":[]"#, "no IP ranges specified", "ipam.ranges"),
            (r#""rangeStart":"10.1.0.1""#, "no IP ranges specified", "ipam.ranges"),
            (
                r#""ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"10.1.0.0/16"}]]"#,
                "range set 0 overlaps with 1",
                "ipam.ranges[0] and ipam.ranges[1]",
            ),
            (
                r#""ranges":[[{"subnet":"10.1.0.0/24"},{"subnet":"10.1.0.0/16"}]]"#,
                "invalid range set 0: subnets 10.1.0.1-10.1.0.254 and 10.1.0.1-10.1.255.254 overlap",
                "ipam.ranges[0]",
            ),
            (
                r#""ranges":[[{"subnet":"10.1.0.0/24"},{"subnet":"fd00::/64"}]]"#,
                "invalid range set 0: mixed address families",
                "ipam.ranges[0]",
            ),
        ] {
            assert_eq!(refused(ipam, ""), (msg.to_owned(), key.to_owned()), "{ipam}");
        }
    }

    #[test]
    fn values_that_nothing_can_be_made_of_are_refused() {
        let pool = r#""subnet":"10.1.0.0/24","#;
        for (more, beginning) in [
            (r#""exclude":["10.1.0.0/33"]"#, "ipam.exclude[0]: "),
            (r#""exclude":["10.1.0.2","x"]"#, "ipam.exclude[1]: "),
            (r#""reclaim":"sometimes""#, "ipam.reclaim must be"),
            (
                r#""routes":[{"dst":"foo"}]"#,
                "ipam.routes[0].dst: invalid CIDR address: foo",
            ),
            (r#""ranges":"x""#, "ipam.ranges: invalid type"),
            (r#""ranges":[[{"subnet":5}]]"#, "ipam.ranges[0][0].subnet: invalid type"),
        ] {
            let (msg, _) = refused(&format!("{pool}{more}"), "");
            assert!(msg.starts_with(beginning), "{msg}");
        }
        let json = br#"{"cniVersion":"1.0.0","name":"n"}"#;
        let error = Config::new(&NetConf::parse(json).unwrap(), "").unwrap_err();
        assert_eq!(error.msg, "IPAM config missing 'ipam' key");
    }

    #[test]
    fn old_versions_have_one_address_per_family() {
        let at = |ranges: &str| {
            let json = format!(r#"{{"cniVersion":"0.2.0","name":"n","ipam":{{"ranges":[{ranges}]}}}}"#);
            Config::new(&NetConf::parse(json.as_bytes()).unwrap(), "")
        };
        assert!(at(r#"[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00::/64"}]"#).is_ok());
        let error = at(r#"[{"subnet":"10.1.0.0/24"}],[{"subnet":"10.2.0.0/24"}]"#).unwrap_err();
        assert_eq!(
            error.msg,
            "CNI version 0.2.0 does not support more than 1 address per family"
        );
    }

    #[test]
    fn requested_addresses_come_from_three_places_each_once() {
        let pool = r#""subnet":"10.1.0.0/24""#;
        let rest = r#""args":{"cni":{"ips":["10.1.0.9"]}},"runtimeConfig":{"ips":["10.1.0.10/24","10.1.0.9/24"]},"#;
        let config = read(pool, rest, "IgnoreUnknown=1;FOO=2;IP=10.1.0.8/24").unwrap();
        let found: Vec<String> = config.requested.iter().map(IpAddr::to_string).collect();
        assert_eq!(found, ["10.1.0.8", "10.1.0.9", "10.1.0.10"]);

        let of_args = |args| read(pool, "", args).unwrap_err().msg;
        assert_eq!(
            of_args("IP=foo"),
            r#"ARGS: error parsing value of pair "IP=foo": invalid IP address foo"#
        );
        assert_eq!(of_args("FOO=1"), r#"ARGS: unknown args ["FOO=1"]"#);
        let (msg, key) = refused(pool, r#""args":{"cni":{"ips":["x"]}},"#);
        assert_eq!(
            (msg.as_str(), key.as_str()),
            ("invalid IP address x", "args.cni.ips[0]")
        );
    }

    #[test]
    fn no_gateway_and_nothing_excluded_is_usable() {
        let ranges = r#""exclude":["10.1.0.4","10.1.0.6/31","fd00::/64"],"ranges":[[{"subnet":"10.1.0.0/28","gateway":"10.1.0.2","rangeEnd":"10.1.0.8"}],[{"subnet":"10.2.0.0/30","gateway":"10.1.0.3"}]]"#;
        let config = read(ranges, "", "").unwrap();
        let usable: Vec<String> = config.sets[0].ranges()[0]
            .usable()
            .iter()
            .flat_map(|part| part.clone())
            .map(|bits| Family::V4.address(bits).to_string())
            .collect();
        assert_eq!(usable, ["10.1.0.1", "10.1.0.5", "10.1.0.8"]);
        assert_eq!(config.sets[1].size(), 2);
    }

    #[test]
    fn status_and_cleanup_need_no_ranges() {
        let conf = |json: &str| NetConf::parse(json.as_bytes()).unwrap();
        let bare = conf(r#"{"name":"n","ipam":{"dataDir":"/d"}}"#);
        assert_eq!(Config::of_status(&bare).unwrap().sets, []);
        assert_eq!(data_dir(&bare), PathBuf::from("/d"));
        for json in [r#"{"name":"n"}"#, r#"{"name":"n","ipam":{"dataDir":5}}"#] {
            assert_eq!(data_dir(&conf(json)), PathBuf::from(DEFAULT_DATA_DIR), "{json}");
        }
        assert_eq!(
            data_dir(&conf(r#"{"name":"n","ipam":{"dataDir":"/d","ranges":"x"}}"#)),
            PathBuf::from("/d")
        );
    }
}
