//! `ipMasq` as the reference writes it.

use std::collections::BTreeSet;

use cni_types::{Attachment, Cidr, ContainerId, Error, IfName, NetworkName, Result};

use super::collection;
use super::edit::Edit;
use super::exec::Tool;
use super::names;
use super::owner::{self, Wanted};
use super::ownership;
use super::reading::Reading;
use super::record::Feature;
use super::rule::Rule;
use super::saved::Table;
use crate::Family;
use crate::masquerade::Masquerade;

/// See [`crate::masquerade::add`].
pub(crate) fn add(attachment: &Attachment, masquerade: &Masquerade) -> Result<()> {
    ownership::add(
        attachment,
        Feature::Masquerade,
        None,
        &families(masquerade),
        |mut reading, family| {
            reading.need(&["POSTROUTING"])?;
            let mut edit = Edit::new(reading.end()?.0);
            edit.ensure_chain(&names::masquerade_chain(&attachment.network, &attachment.container_id));
            Ok((edit, wanted(attachment, masquerade, family)))
        },
    )
}

/// See [`crate::masquerade::check`].
pub(crate) fn check(attachment: &Attachment, masquerade: &Masquerade) -> Result<()> {
    for family in families(masquerade) {
        let own = owner::chains(Feature::Masquerade, &attachment.network, &attachment.container_id);
        let mut reading = Reading::begin(Tool::of(family), Table::Nat, own)?;
        reading.need(&["POSTROUTING"])?;
        for w in wanted(attachment, masquerade, family) {
            if !reading.table().has_rule(&w.chain, &w.rule) {
                return Err(Error::internal(format!(
                    "masquerading of {attachment}: chain {} lacks the {family} rule {}",
                    w.chain, w.rule
                )));
            }
        }
    }
    Ok(())
}

/// See [`crate::masquerade::del`].
pub(crate) fn del(attachment: &Attachment) -> Result<()> {
    ownership::del(attachment, Feature::Masquerade, Vec::new()).map(drop)
}

/// See [`crate::masquerade::gc`].
pub(crate) fn gc(network: &NetworkName, valid: &BTreeSet<(ContainerId, IfName)>) -> Result<()> {
    collection::gc(Feature::Masquerade, network, valid, &[], |_| ()).map(drop)
}

fn families(masquerade: &Masquerade) -> Vec<Family> {
    let has = |family: &Family| addresses(masquerade, *family).next().is_some();
    Family::BOTH.into_iter().filter(has).collect()
}

fn addresses(masquerade: &Masquerade, family: Family) -> impl Iterator<Item = Cidr> {
    let all = masquerade.addresses.iter().copied();
    all.filter(move |cidr| Family::of(cidr.address()) == family)
}

/// The rules in the reference's order; what the reference does not know, the exclusions, before all others.
fn wanted(attachment: &Attachment, masquerade: &Masquerade, family: Family) -> Vec<Wanted> {
    let (network, container) = (&attachment.network, &attachment.container_id);
    let chain = names::masquerade_chain(network, container);
    let comment = names::masquerade_comment(network, container);
    let multicast = match family {
        Family::V4 => "224.0.0.0/4",
        Family::V6 => "ff00::/8",
    };
    let accept = |network: Cidr| Rule::new().network("-d", network).comment(&comment).jump("ACCEPT");
    let mut rules: Vec<Wanted> = Vec::new();
    for excluded in masquerade
        .exclude
        .iter()
        .filter(|cidr| Family::of(cidr.address()) == family)
    {
        rules.push(Wanted {
            first: true,
            ..Wanted::last(&chain, accept(*excluded))
        });
    }
    for address in addresses(masquerade, family) {
        let masq = Rule::new()
            .args(["!", "-d", multicast])
            .comment(&comment)
            .jump("MASQUERADE");
        let source = Rule::new().network("-s", Cidr::host(address.address()));
        let jump = source.comment(&comment).jump(&chain);
        rules.push(Wanted::last(&chain, accept(address)));
        rules.push(Wanted::last(&chain, masq));
        rules.push(Wanted::last("POSTROUTING", jump));
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(addresses: &[&str], exclude: &[&str], family: Family) -> Vec<String> {
        let attachment = Attachment {
            network: "net1".parse().unwrap(),
            container_id: "c1".parse().unwrap(),
            ifname: "eth0".parse().unwrap(),
        };
        let parse = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        let masquerade = Masquerade {
            addresses: parse(addresses),
            exclude: parse(exclude),
        };
        let wanted = wanted(&attachment, &masquerade, family).into_iter();
        wanted
            .map(|w| format!("{} {} {}", if w.first { "-I" } else { "-A" }, w.chain, w.rule))
            .collect()
    }

    #[test]
    fn the_rules_are_the_references() {
        let both = ["10.1.0.2/24", "fd00::2/64"];
        assert_eq!(
            lines(&both, &[], Family::V4),
            [
                r#"-A CNI-c2d892b58e87e28a12fe6479 -d 10.1.0.0/24 -m comment --comment "name: \"net1\" id: \"c1\"" -j ACCEPT"#,
                r#"-A CNI-c2d892b58e87e28a12fe6479 ! -d 224.0.0.0/4 -m comment --comment "name: \"net1\" id: \"c1\"" -j MASQUERADE"#,
                r#"-A POSTROUTING -s 10.1.0.2/32 -m comment --comment "name: \"net1\" id: \"c1\"" -j CNI-c2d892b58e87e28a12fe6479"#,
            ]
        );
        let of_v6 = lines(&both, &[], Family::V6).join("\n");
        assert!(of_v6.contains("-d fd00::/64") && of_v6.contains("! -d ff00::/8") && of_v6.contains("-s fd00::2/128"));
        assert!(lines(&["10.1.0.2/24"], &[], Family::V6).is_empty());
    }

    #[test]
    fn exclusions_come_first() {
        let lines = lines(&["10.1.0.2/24"], &["10.0.0.0/8", "fd00::/8"], Family::V4);
        assert!(
            lines[0].starts_with("-I CNI-c2d892b58e87e28a12fe6479 -d 10.0.0.0/8 "),
            "{lines:?}"
        );
        assert_eq!(lines.len(), 4);
    }
}
