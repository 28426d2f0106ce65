//! Whether the kernel holds something of ours, found out without starting a program.

use std::fs;
use std::io::ErrorKind;

use cni_types::{Error, Result};
use nft::Connection;

use super::exec::{Tool, Variant};
use super::reading::{kernel_error, wire_table};
use super::saved::Table;
use crate::{Family, nftables};

/// The implementations of iptables that may hold one of `chains` in a table of a family.
///
/// The nf_tables implementation keeps each chain under its own name in a table of that name, where netlink finds it. Of the
/// legacy one the kernel tells only that the table is in use; reading it any other way would create it.
pub(super) fn tools(table: Table, family: Family, chains: &[&str]) -> Result<Vec<Tool>> {
    let mut tools = Vec::new();
    if nft_has_one_of(table, family, chains)? {
        tools.push(Tool {
            family,
            variant: Variant::Nft,
        });
    }
    if legacy_uses(table, family)? {
        tools.push(Tool {
            family,
            variant: Variant::Legacy,
        });
    }
    Ok(tools)
}

/// The file that lists the tables of the legacy implementation; it is there while the kernel has that.
///
/// `thread-self`: the namespace of this thread counts, and `self` would show that of the process's first thread.
pub(super) fn legacy_tables(family: Family) -> &'static str {
    match family {
        Family::V4 => "/proc/thread-self/net/ip_tables_names",
        Family::V6 => "/proc/thread-self/net/ip6_tables_names",
    }
}

fn legacy_uses(table: Table, family: Family) -> Result<bool> {
    let file = legacy_tables(family);
    match fs::read_to_string(file) {
        Ok(tables) => Ok(tables.lines().any(|name| name == table.name())),
        // The module is not loaded; or we are root in a user namespace alone, and iptables itself could not read it either.
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) => Ok(false),
        Err(e) => Err(Error::io(file, &e)),
    }
}

/// Whether iptables' table in nf_tables has one of `chains`.
fn nft_has_one_of(table: Table, family: Family, chains: &[&str]) -> Result<bool> {
    nftables::where_supported(|| {
        let mut kernel = Connection::open().map_err(kernel_error)?;
        let found = kernel.chains(&wire_table(table, family), chains);
        Ok(found.map_err(kernel_error)?.iter().any(Option::is_some))
    })
}
