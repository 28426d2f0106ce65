//! Whether iptables can be used, as far as possible without starting it.

use std::fs;

use cni_types::{Error, Result};
use nft::{Connection, Extension};

use super::evidence::legacy_tables;
use super::exec::{LEGACY_EXECUTABLE, NFT_EXECUTABLE, Tool, find_in_path, run};
use crate::Family;

/// Tells whether rules can be written with iptables: `iptables` is in PATH, and the kernel has what it needs.
///
/// The reference lists a chain to find out. Here the kernel is asked for what the implementation rests on. Only where that
/// says nothing, because the implementation cannot be told or the module of the legacy one is not loaded (yet), `iptables`
/// is started. As with the reference, IPv4 speaks for both families.
///
/// # Errors
///
/// What is missing.
pub(crate) fn probe() -> Result<()> {
    let Some(program) = find_in_path("iptables") else {
        return Err(Error::internal("iptables is not installed"));
    };
    let executable = Tool::of(Family::V4).executable()?;
    if executable == NFT_EXECUTABLE {
        return probe_nft();
    }
    if executable == LEGACY_EXECUTABLE && fs::metadata(legacy_tables(Family::V4)).is_ok() {
        return Ok(());
    }
    let listed = run(&program, &["-w", "5", "-t", "filter", "-S", "INPUT", "1"], "");
    listed.map(drop).map_err(|e| e.context("iptables does not work"))
}

/// Every chain of the reference has a rule with a match of xtables; comments are what most have.
fn probe_nft() -> Result<()> {
    let failed = |e: nft::Error| Error::internal(format!("iptables does not work: {e}"));
    let mut kernel = Connection::open().map_err(failed)?;
    match kernel.has_extension(nft::Family::Ipv4, Extension::Match("comment"), 0) {
        Ok(true) => Ok(()),
        Ok(false) => Err(Error::internal(
            "iptables does not work: the kernel's nf_tables cannot use xtables' matches (nft_compat, xt_comment)",
        )),
        Err(e) => Err(failed(e)),
    }
}
