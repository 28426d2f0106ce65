//! From a configuration to reservations: choose, and where nothing is free look closer.

use std::net::IpAddr;

use cni_types::{Attachment, Result};

use crate::config::{Config, Reclaim};
use crate::ledger::{Fate, Ledger};
use crate::plan::{self, Choice, Obstacle};
use crate::reservation::Content;
use crate::store::{Found, Reserved};
use identity::NetnsIdentity;

/// Reserves an address of each range set for an attachment.
///
/// # Errors
/// The texts are the reference's; nothing is reserved then.
pub(crate) fn reserve<'a>(
    ledger: &mut Ledger,
    config: &'a Config,
    attachment: &Attachment,
    netns: Option<&NetnsIdentity>,
) -> Result<(Vec<Choice<'a>>, Reserved)> {
    let replaced = replace_own(ledger, config, attachment)?;
    if config.reclaim == Reclaim::Always {
        reclaim(ledger, |_| true)?;
    }
    loop {
        let chosen = choose(ledger, config, &replaced)?;
        let addresses: Vec<(usize, IpAddr)> = chosen.iter().map(|choice| (choice.set, choice.ip)).collect();
        match ledger.reserve(attachment, netns.cloned(), &addresses) {
            Ok(reserved) => {
                let ips: Vec<String> = chosen.iter().map(|choice| choice.ip.to_string()).collect();
                log::debug!("reserved in {}: {}", config.data_dir.display(), ips.join(", "));
                return Ok((chosen, reserved));
            }
            // Somebody wrote where he lay, or without the lock.
            Err(e) if ledger.is_walked() => return Err(e),
            Err(e) => {
                log::debug!("{e}: reading the directory");
                ledger.walk()?;
            }
        }
    }
}

/// Chooses from the cache, then from the directory, then from what can be taken back.
fn choose<'a>(ledger: &mut Ledger, config: &'a Config, preferred: &[IpAddr]) -> Result<Vec<Choice<'a>>> {
    loop {
        let cursors: Vec<Option<IpAddr>> = (0..config.sets.len()).map(|set| ledger.cursor(set)).collect();
        let obstacle = match plan::choose(config, preferred, &cursors, &mut ledger.held())? {
            Ok(chosen) => return Ok(chosen),
            Err(obstacle) => obstacle,
        };
        if !ledger.is_walked() {
            ledger.walk()?;
            continue;
        }
        let in_the_way = |found: &Found| match &obstacle {
            Obstacle::Exhausted { set } => found
                .ip
                .is_some_and(|ip| config.sets.get(*set).is_some_and(|set| set.range_of(ip).is_some())),
            Obstacle::Taken { ip, .. } => found.ip == Some(*ip),
        };
        if config.reclaim == Reclaim::Never || reclaim(ledger, in_the_way)? == 0 {
            return Err(plan::refusal(config, &obstacle, &ledger.held()));
        }
    }
}

/// Releases what the attachment holds from an earlier boot or for a namespace that is gone, and returns its addresses.
///
/// # Errors
/// It holds an address for a namespace that may exist.
fn replace_own(ledger: &mut Ledger, config: &Config, attachment: &Attachment) -> Result<Vec<IpAddr>> {
    let mut alive = Vec::new();
    let mut replaced = Vec::new();
    for found in ledger.of_attachment(attachment)? {
        match ledger.fate(&found) {
            Fate::MayExist => alive.push(found),
            fate => {
                log::warn!("{}: replaced: {}", found.describe(), fate.reason());
                replaced.push(found);
            }
        }
    }
    plan::refuse_duplicate(config, attachment, &alive)?;
    for found in &replaced {
        ledger.release(found)?;
    }
    Ok(replaced.iter().filter_map(|found| found.ip).collect())
}

/// Takes back the reservations among those wanted that nobody stands behind, and returns their number.
fn reclaim(ledger: &mut Ledger, wanted: impl Fn(&Found) -> bool) -> Result<usize> {
    let candidates: Vec<Found> = ledger.walk()?.iter().filter(|found| wanted(found)).cloned().collect();
    let mut taken_back = 0;
    for found in candidates
        .iter()
        .filter(|found| matches!(found.content, Content::Owner(_)))
    {
        let fate = ledger.fate(found);
        if fate != Fate::MayExist {
            log::warn!("{}: taken back: {}", found.describe(), fate.reason());
            ledger.release(found)?;
            taken_back += 1;
        }
    }
    Ok(taken_back)
}
