//! Leaving a node to another suite of plugins.

use lexopt::prelude::*;
use netfilter::{Backend, handover};
use skel::Registered;

use super::{Failure, Outcome, no_arguments};

/// `ferrule held`.
pub(super) fn held(mut arguments: lexopt::Parser, _: &[Registered]) -> Result<Outcome, Failure> {
    let mut only: Option<Backend> = None;
    while let Some(argument) = arguments.next()? {
        match argument {
            Value(name) if only.is_none() => only = Some(name.parse()?),
            _ => return Err(argument.unexpected().into()),
        }
    }
    let held = handover::held()?.into_iter();
    let lines = held.filter(|held| only.is_none_or(|only| held.backend == only));
    let lines = lines.map(|held| format!("{} {}: {}\n", held.backend, held.attachment, held.what));
    Ok(Outcome::success(lines.collect()))
}

/// `ferrule drain`.
pub(super) fn drain(arguments: lexopt::Parser, _: &[Registered]) -> Result<Outcome, Failure> {
    no_arguments(arguments)?;
    let moved = handover::to_iptables()?;
    let lines = moved
        .iter()
        .map(|attachment| format!("{attachment}: in iptables now\n"));
    Ok(Outcome::success(lines.collect()))
}
