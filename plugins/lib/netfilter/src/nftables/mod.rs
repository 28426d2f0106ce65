//! The nftables backend: tables of our own, written over netlink.
//!
//! Each feature has a table in the `inet` family ([`layout`]). What belongs to a container are elements of maps there, so
//! that a packet meets the same few rules however many containers there are. Each element bears its [`owner`] in its
//! comment; what an attachment holds in all is written down in a [`record`] beside it. The [`ledger`] changes both
//! together, in one batch that the kernel takes only if nobody changed the ruleset since it was read.
//!
//! Looking up, and with it DEL, costs the same however many containers there are. ADD grows by some sixty nanoseconds for each
//! that has an element in a map of verdicts: when one is added, the kernel walks through all of them to find loops
//! (`nft_lookup_validate`). Maps of data, as those of ports are, it leaves alone. A DEL takes at least an RCU grace period,
//! some ten milliseconds: the kernel destroys what a batch deleted in the background, and closing the socket, or ending
//! the process, waits for that (`nft_rcv_nl_event`).
//!
//! What the reference suite's nftables backend left is removed, never written ([`reference`]).

mod conditions;
mod draft;
pub(crate) mod firewall;
mod layout;
mod ledger;
pub(crate) mod macspoof;
pub(crate) mod masquerade;
mod owner;
pub(crate) mod portmap;
mod record;
mod reference;
mod rules;
mod transaction;

use std::sync::atomic::{AtomicBool, Ordering};

use cni_types::{Code, Error, Result};
pub(crate) use conditions::nft_version;
use layout::Layout;
use nft::{Batch, Chain, Connection, Expression, UserData};

/// Tells whether the kernel has all that our tables need, by asking it to make them and not to: what a kernel's version
/// says is not what its configuration has.
///
/// # Errors
///
/// What it lacks, in the kernel's words.
pub(crate) fn probe() -> Result<()> {
    try_out([portmap::layout(), masquerade::layout()])
}

/// Deletes our tables, unless an attachment holds something in them; tells whether all are gone.
pub(crate) fn remove_tables() -> Result<bool> {
    let mut gone = true;
    for layout in [portmap::layout(), masquerade::layout(), firewall::layout()] {
        gone &= ledger::Ledger::open(&layout)?.remove_table()?;
    }
    Ok(gone)
}

fn try_out(layouts: impl IntoIterator<Item = Layout>) -> Result<()> {
    let mut connection = Connection::open().map_err(kernel_error)?;
    let mut batch = Batch::new();
    for mut layout in layouts {
        // Under another name: what is there already would prove nothing.
        layout.table.name.push_str("_probe");
        layout.write(&mut batch);
        let chain = Chain {
            name: "source".to_owned(),
            hook: None,
        };
        batch.add_chain(&layout.table, &chain);
        batch.append_rule(
            &layout.table,
            &chain.name,
            &[Expression::Masquerade],
            &UserData::default(),
        );
    }
    let lacks = |e| kernel_error(e).context("the kernel's nf_tables do not suffice");
    connection.try_out(&batch).map_err(lacks)
}

/// Does a step that looks for something in nf_tables. In a kernel without them nothing is, and looking would fail.
pub(crate) fn where_supported<T: Default>(step: impl FnOnce() -> Result<T>) -> Result<T> {
    match is_supported() {
        Ok(true) => step(),
        Ok(false) => Ok(T::default()),
        Err(e) => Err(kernel_error(e)),
    }
}

fn is_supported() -> Result<bool, nft::Error> {
    // What a verb looks through is several tables and families, and none of them makes the answer another.
    static KNOWN: AtomicBool = AtomicBool::new(false);
    if KNOWN.load(Ordering::Relaxed) {
        return Ok(true);
    }
    match Connection::open().and_then(|mut connection| connection.generation()) {
        Ok(_) => KNOWN.store(true, Ordering::Relaxed),
        Err(e) if e.is_unsupported() => return Ok(false),
        Err(e) => return Err(e),
    }
    Ok(true)
}

/// A failure of the wire layer as a CNI error. A ruleset that others keep changing is worth another try.
fn kernel_error(error: nft::Error) -> Error {
    let code = match error {
        nft::Error::Changed { .. } => Code::TRY_AGAIN_LATER,
        _ => Code::INTERNAL,
    };
    Error::new(code, error.to_string())
}

/// Reads elements as those of the sets of owners. What is read is written again and is the same.
#[cfg(feature = "rehearsal")]
pub(crate) fn rehearse(elements: Vec<nft::Element>) {
    for comment in elements.iter().filter_map(|element| element.user_data.comment.as_ref()) {
        let _ = owner::Owner::from_comment(comment);
    }
    for record in record::Record::all(elements) {
        assert_eq!(record::Record::from_elements(&record.elements()), Some(record));
    }
}
