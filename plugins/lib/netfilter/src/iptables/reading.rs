//! Reading a table: chain by chain from the kernel where it can be, else whole from `iptables-save`.
//!
//! iptables-nft keeps its tables `nat` and `filter` in nf_tables under their own names (nft.c of iptables), where netlink
//! hands out single chains. So what a call reads does not grow with the rules of others. The program is asked where there is
//! no other way: of the legacy implementation, of one that cannot be told, and where a rule that may be ours is not
//! understood ([`decode`]): its text must be known to compare it.

use std::collections::BTreeMap;

use cni_types::{Error, Result};
use nft::Connection;

use super::decode::decode;
use super::exec::Tool;
use super::names;
use super::saved::{Held, Saved, Table};
use crate::Family;

/// What has been read of a table so far. Nobody else of ours changes it meanwhile: the caller has the lock, or only looks.
pub(super) struct Reading {
    tool: Tool,
    saved: Saved,
    /// The socket, as long as the kernel itself is asked. Afterwards the whole table is known.
    kernel: Option<Connection>,
    /// The chains that belong to whoever reads: every rule that leads there must be understood.
    own: Vec<String>,
    /// How many rules are in a chain and lead to it, in one number.
    used: BTreeMap<String, u32>,
}

/// The name of an iptables table in nf_tables.
pub(super) fn wire_table(table: Table, family: Family) -> nft::Table {
    let family = match family {
        Family::V4 => nft::Family::Ipv4,
        Family::V6 => nft::Family::Ipv6,
    };
    nft::Table::new(family, table.name())
}

impl Reading {
    /// Begins to read, and reads the chains of the caller's own.
    ///
    /// # Errors
    ///
    /// What the kernel or the program said.
    pub(super) fn begin(tool: Tool, table: Table, own: Vec<String>) -> Result<Reading> {
        let mut reading = Reading {
            tool,
            saved: Saved::empty(table),
            // Without netfilter's netlink there is no nf_tables; the program will say so in its own words.
            kernel: Connection::open().ok().filter(|_| tool.is_nft()),
            own: Vec::new(),
            used: BTreeMap::new(),
        };
        if reading.kernel.is_none() {
            reading.saved = tool.save(table)?;
        }
        reading.need_own(own)?;
        Ok(reading)
    }

    /// What is known by now. Of chains that were not asked for, nothing.
    pub(super) fn table(&self) -> &Saved {
        &self.saved
    }

    /// Reads more chains of the caller's own.
    ///
    /// # Errors
    ///
    /// What the kernel or the program said.
    pub(super) fn need_own(&mut self, chains: Vec<String>) -> Result<()> {
        self.own.extend(chains.iter().cloned());
        self.need(&chains)
    }

    /// Reads chains that are not known yet.
    ///
    /// # Errors
    ///
    /// What the kernel or the program said.
    pub(super) fn need<S: AsRef<str>>(&mut self, chains: &[S]) -> Result<()> {
        for (chain, exists) in self.look_for(chains)? {
            if exists && !self.read(&chain)? {
                return self.read_all();
            }
        }
        Ok(())
    }

    /// Finds out whether chains exist, and nothing about their rules.
    ///
    /// # Errors
    ///
    /// What the kernel or the program said.
    pub(super) fn need_names(&mut self, chains: &[&str]) -> Result<()> {
        self.look_for(chains).map(drop)
    }

    /// The chains that were not known, and whether they exist.
    fn look_for<S: AsRef<str>>(&mut self, chains: &[S]) -> Result<Vec<(String, bool)>> {
        let Some(kernel) = &mut self.kernel else {
            return Ok(Vec::new());
        };
        let unknown: Vec<&str> = chains
            .iter()
            .map(AsRef::as_ref)
            .filter(|chain| !self.used.contains_key(*chain))
            .collect();
        let table = wire_table(self.saved.table(), self.tool.family);
        let found = kernel.chains(&table, &unknown).map_err(kernel_error)?;
        let mut news = Vec::new();
        for (chain, state) in unknown.into_iter().zip(found) {
            self.used
                .insert(chain.to_owned(), state.as_ref().map_or(0, |state| state.used));
            if state.is_some() {
                self.saved.chain_mut(chain);
            }
            news.push((chain.to_owned(), state.is_some()));
        }
        Ok(news)
    }

    /// Reads a chain's rules from the kernel; `false` where one of them may be ours and is not understood.
    fn read(&mut self, chain: &str) -> Result<bool> {
        let Some(kernel) = &mut self.kernel else {
            return Ok(true);
        };
        let table = wire_table(self.saved.table(), self.tool.family);
        let rules = kernel.rules(&table, chain).map_err(kernel_error)?;
        let held: Vec<Held> = rules.iter().map(|rule| decode(rule, self.tool.family)).collect();
        let doubtful = held.iter().find(|held| is_doubtful(chain, held, &self.own));
        if let Some(held) = doubtful {
            log::debug!(
                "{table}: not understood, so iptables-save is asked: -A {chain} {}",
                held.rule
            );
            return Ok(false);
        }
        *self.saved.chain_mut(chain) = held;
        Ok(true)
    }

    fn read_all(&mut self) -> Result<()> {
        self.kernel = None;
        self.saved = self.tool.save(self.saved.table())?;
        Ok(())
    }

    /// Ends the reading: the table, and the socket if it was the kernel that showed it.
    ///
    /// # Errors
    ///
    /// What the program said. It is asked where rules of chains that were not read lead to a chain of the caller's own.
    pub(super) fn end(mut self) -> Result<(Saved, Option<Connection>)> {
        let own = std::mem::take(&mut self.own);
        if self.kernel.is_some() && own.iter().any(|chain| self.is_reached_otherwise(chain)) {
            self.read_all()?;
        }
        Ok((self.saved, self.kernel))
    }

    fn is_reached_otherwise(&self, chain: &str) -> bool {
        let known = self.saved.held(chain).len() + self.saved.jumps_to(chain).len();
        let used = self.used.get(chain).copied().unwrap_or_default();
        usize::try_from(used).is_ok_and(|used| used > known)
    }
}

/// Whether a rule that is not understood could be one that the caller looks for.
///
/// In the chains that everybody uses, ours are jumps, and where they lead is always understood; so all others there are
/// somebody else's, among them mappings with a user's conditions. Elsewhere there are only rules of plugins.
fn is_doubtful(chain: &str, held: &Held, own: &[String]) -> bool {
    const HOOKS: [&str; 5] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];
    let leads_to_own = |target: &str| own.iter().any(|chain| chain == target);
    match held.rule.target() {
        _ if held.whole => false,
        Some(target) if HOOKS.contains(&chain) => leads_to_own(target) || target.starts_with("CNI-"),
        None if HOOKS.contains(&chain) => false,
        Some(target) if [names::DNAT_CHAIN, names::SNAT_CHAIN].contains(&chain) => leads_to_own(target),
        _ => true,
    }
}

/// A failure of the wire layer as a CNI error.
pub(super) fn kernel_error(error: nft::Error) -> Error {
    Error::internal(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table with two containers' chains, and rules that only `iptables-save` can show.
    const SCRIPT: &str = "*nat\n:CNI-HOSTPORT-DNAT - [0:0]\n:CNI-DN-1 - [0:0]\n:CNI-DN-2 - [0:0]\n:OTHER - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A POSTROUTING -m statistic --mode random --probability 0.5 -j OTHER
-A POSTROUTING -s 10.9.0.0/16 -j MASQUERADE --random-fully
-A CNI-HOSTPORT-DNAT -p tcp -m multiport --dports 80 -j CNI-DN-1
-A CNI-HOSTPORT-DNAT -p tcp -m multiport --dports 81 -m statistic --mode random --probability 0.5 -j CNI-DN-2
-A CNI-DN-1 -p tcp -m tcp --dport 80 -j ACCEPT
-A CNI-DN-2 -p tcp -m tcp --dport 81 -j ACCEPT
COMMIT\n";

    const ENTRANCES: [&str; 3] = ["PREROUTING", "POSTROUTING", names::DNAT_CHAIN];

    /// Reads for the owner of a chain, in a world with the table and `more`; returns the table, and whether only the kernel
    /// was asked. `None` where no world can be had.
    fn read(own: &str, more: &str) -> Option<(Saved, bool)> {
        testkit::world(|w| {
            let file = w.tmp().join("script");
            std::fs::write(&file, SCRIPT).unwrap();
            w.sh(&format!("iptables-restore < {}; {more}", file.display()));
            let tool = Tool::of(Family::V4);
            let mut reading = Reading::begin(tool, Table::Nat, vec![own.to_owned()]).unwrap();
            reading.need(&ENTRANCES).unwrap();
            let (seen, kernel) = reading.end().unwrap();
            let whole = tool.save(Table::Nat).unwrap();
            match kernel {
                Some(_) => {
                    for chain in [own, "PREROUTING"] {
                        assert!(seen.rules(chain).eq(whole.rules(chain)), "{chain}");
                    }
                    assert!(!seen.has_chain("OTHER"), "nobody asked");
                }
                None => assert_eq!(seen, whole),
            }
            (seen, kernel.is_some())
        })
    }

    #[test]
    fn rules_of_others_need_not_be_understood() {
        let Some((seen, by_kernel)) = read("CNI-DN-1", "") else {
            return;
        };
        assert!(by_kernel);
        assert_eq!(seen.jumps_to("CNI-DN-1").len(), 1);
        assert_eq!(seen.held("POSTROUTING").iter().filter(|held| held.whole).count(), 0);
        assert_eq!(seen.rules("POSTROUTING").count(), 0);
    }

    #[test]
    fn the_program_is_asked_where_a_rule_that_counts_is_not_understood() {
        let strange = "-m statistic --mode random --probability 0.5";
        for (own, more) in [
            ("CNI-DN-2", String::new()),
            ("CNI-DN-1", format!("iptables -t nat -A CNI-DN-1 {strange} -j ACCEPT")),
            (
                "CNI-DN-1",
                format!("iptables -t nat -A PREROUTING {strange} -j CNI-HOSTPORT-DNAT"),
            ),
        ] {
            assert!(read(own, &more).is_none_or(|(_, by_kernel)| !by_kernel), "{own} {more}");
        }
    }

    #[test]
    fn the_program_is_asked_where_somebody_else_leads_to_an_own_chain() {
        let Some((seen, by_kernel)) = read("CNI-DN-1", "iptables -t nat -A OTHER -j CNI-DN-1") else {
            return;
        };
        assert!(!by_kernel);
        assert_eq!(seen.jumps_to("CNI-DN-1").len(), 2);
    }

    #[test]
    fn what_is_not_there_is_read_as_nothing_and_not_made() {
        testkit::world(|w| {
            let tool = Tool::of(Family::V6);
            let mut reading = Reading::begin(tool, Table::Nat, vec!["CNI-DN-1".to_owned()]).unwrap();
            reading.need(&ENTRANCES).unwrap();
            reading.need_names(&["CNI-ADMIN"]).unwrap();
            let (seen, kernel) = reading.end().unwrap();
            assert!(kernel.is_some());
            assert_eq!(seen, Saved::empty(Table::Nat));
            assert_eq!(w.sh("nft list ruleset"), "");
        });
    }

    #[test]
    fn an_implementation_that_cannot_be_told_is_asked_for_all() {
        testkit::world(|w| {
            // A script that chooses between two implementations.
            w.sh(
                "mkdir /run/sbin; cp -a /usr/sbin/ip*tables* /usr/sbin/xtables* /usr/sbin/nft /run/sbin
                rm /run/sbin/iptables-restore
                printf '#!/bin/sh\nexec iptables-nft-restore \"$@\"\n' > /run/sbin/iptables-restore
                chmod +x /run/sbin/iptables-restore; mount --bind /run/sbin /usr/sbin",
            );
            w.sh("iptables-restore -v < /dev/null; iptables -t nat -N OTHER");
            let (seen, kernel) = Reading::begin(Tool::of(Family::V4), Table::Nat, Vec::new())
                .unwrap()
                .end()
                .unwrap();
            assert!(kernel.is_none());
            assert!(seen.has_chain("OTHER"), "{seen:?}");
        });
    }
}
