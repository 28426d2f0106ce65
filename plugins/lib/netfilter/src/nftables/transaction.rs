//! Read, plan, write: without anybody in between.

use cni_types::{Code, Error, Result};
use nft::{Batch, Connection, Table};

use super::kernel_error;
use crate::lock;

/// Our own processes wait for each other, so the ruleset changes under us only when others write theirs.
const TRIES: usize = 10;

/// Carries out the batch that `plan` makes of what it reads, if nobody changed the ruleset since it began to read; plans
/// again if somebody did.
///
/// # Errors
///
/// Code 11 when others changed the ruleset every time; what `plan` or the kernel said.
pub(super) fn transact<T>(
    connection: &mut Connection,
    table: &Table,
    mut plan: impl FnMut(&mut Connection, &mut Batch) -> Result<T>,
) -> Result<T> {
    let _lock = lock::exclusive()?;
    for _ in 0..TRIES {
        let generation = connection.generation().map_err(kernel_error)?;
        let mut batch = Batch::new();
        let result = plan(connection, &mut batch)?;
        log::debug!("nftables, {table}: one transaction");
        match connection.commit(&batch, Some(generation)) {
            Err(nft::Error::Changed { .. }) => {}
            committed => return committed.map(|()| result).map_err(kernel_error),
        }
    }
    let message = format!("{table}: others changed the ruleset {TRIES} times while it was read");
    Err(Error::new(Code::TRY_AGAIN_LATER, message))
}
