//! Making reservations, all of an ADD's or none, and taking them back.

use std::io;
use std::net::IpAddr;
use std::path::Path;

use cni_types::{Attachment, Result};
use nix::errno::Errno;
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::directory::CURSOR;
use super::file::{Prepared, Replacement, prepare};
use super::stamp::Stamp;
use super::{Network, failed};
use crate::reservation::{Claim, Content, owner_text};

/// What an ADD wrote, to take it back.
#[derive(Debug)]
pub(crate) struct Reserved {
    attachment: Attachment,
    addresses: Vec<IpAddr>,
    cursors: Vec<MovedCursor>,
}

/// A cursor that was moved.
#[derive(Debug)]
struct MovedCursor {
    name: String,
    before: Option<String>,
    now: String,
}

/// A reservation and its cursor, written but not yet to be seen.
struct Pending<'a> {
    ip: IpAddr,
    file: Prepared<'a>,
    cursor: Replacement<'a>,
    cursor_name: String,
}

impl Network {
    /// The address that a range set gave last. What cannot be read is none: the search then starts at the beginning.
    pub(crate) fn cursor(&self, set: usize) -> Option<IpAddr> {
        self.cursor_text(&cursor_name(set))?.trim().parse().ok()
    }

    fn cursor_text(&self, name: &str) -> Option<String> {
        let (bytes, _) = self.read_file(name).ok()?;
        String::from_utf8(bytes).ok()
    }

    /// Reserves the addresses, each with the number of its range set, and moves the cursors there: all or nothing.
    ///
    /// `before` hears of each file before anybody can see it.
    ///
    /// # Errors
    /// Nothing was reserved then, and the cursors are as they were.
    pub(crate) fn reserve(
        &self,
        attachment: &Attachment,
        chosen: &[(usize, IpAddr)],
        mut before: impl FnMut(IpAddr, &Stamp),
    ) -> Result<Reserved> {
        // First all that needs room on the disk, so that a full one is noticed before anything can be seen.
        let owner = owner_text(&attachment.container_id, &attachment.ifname);
        let mut pending = Vec::with_capacity(chosen.len());
        for (at, (set, ip)) in chosen.iter().enumerate() {
            let one = self.prepare(at, *set, *ip, &owner)?;
            before(
                *ip,
                &one.file
                    .stamp()
                    .map_err(|e| self.failed("reserve", &ip.to_string(), e))?,
            );
            pending.push(one);
        }
        let mut reserved = Reserved {
            attachment: attachment.clone(),
            addresses: Vec::new(),
            cursors: Vec::new(),
        };
        let files = pending.iter().try_for_each(|one| self.link(one, &mut reserved));
        let all = files.and_then(|()| pending.iter().try_for_each(|one| self.move_cursor(one, &mut reserved)));
        if let Err(e) = all {
            self.take_back(&reserved);
            return Err(e);
        }
        Ok(reserved)
    }

    fn prepare(&self, number: usize, set: usize, ip: IpAddr, owner: &str) -> Result<Pending<'_>> {
        let scratch = self.scratch_or_directory();
        let file = prepare(&self.locked.dir, scratch, number, owner)
            .map_err(|e| self.failed("reserve", &ip.to_string(), e))?;
        let cursor_name = cursor_name(set);
        let cursor = Replacement::prepare(scratch, cursor_name.clone(), &ip.to_string())
            .map_err(|e| self.failed("write", &cursor_name, e))?;
        Ok(Pending {
            ip,
            file,
            cursor,
            cursor_name,
        })
    }

    /// Links a reservation into place; a file without an owner gives way.
    fn link(&self, pending: &Pending<'_>, reserved: &mut Reserved) -> Result<()> {
        let name = pending.ip.to_string();
        let mut linked = pending.file.link(&self.locked.dir, &name);
        if linked == Err(Errno::EEXIST) && self.content(&name) == Some(Content::Blank) {
            log::warn!("{}: replaced: no owner in it", self.path.join(&name).display());
            self.release(&name)?;
            linked = pending.file.link(&self.locked.dir, &name);
        }
        linked.map_err(|e| self.failed("reserve", &name, e))?;
        reserved.addresses.push(pending.ip);
        Ok(())
    }

    fn move_cursor(&self, pending: &Pending<'_>, reserved: &mut Reserved) -> Result<()> {
        let name = &pending.cursor_name;
        let before = self.cursor_text(name);
        pending
            .cursor
            .commit(&self.locked.dir)
            .map_err(|e| self.failed("write", name, e))?;
        reserved.cursors.push(MovedCursor {
            name: name.clone(),
            before,
            now: pending.ip.to_string(),
        });
        Ok(())
    }

    /// Takes back what an ADD wrote, as far as it is still there and the attachment's. Best effort; failures are
    /// logged.
    fn take_back(&self, reserved: &Reserved) {
        for name in reserved.addresses.iter().map(IpAddr::to_string) {
            let ours = self
                .content(&name)
                .is_some_and(|content| content.claim(&reserved.attachment) == Claim::Exact);
            if let Some(Err(e)) = ours.then(|| self.release(&name)) {
                log::error!("{e}");
            }
        }
        for cursor in &reserved.cursors {
            // Another ADD may have moved it since.
            let ours = self.cursor_text(&cursor.name).as_ref() == Some(&cursor.now);
            if let Some(Err(e)) = ours.then(|| self.restore_cursor(cursor)) {
                log::error!("restore {}: {e}", self.path.join(&cursor.name).display());
            }
        }
    }

    fn restore_cursor(&self, cursor: &MovedCursor) -> io::Result<()> {
        match &cursor.before {
            None => unlinkat(&self.locked.dir, cursor.name.as_str(), UnlinkatFlags::NoRemoveDir)?,
            Some(text) => Replacement::prepare(self.scratch_or_directory(), cursor.name.clone(), text)?
                .commit(&self.locked.dir)?,
        }
        Ok(())
    }

    fn content(&self, name: &str) -> Option<Content> {
        self.read_file(name).ok().map(|(bytes, _)| Content::of(&bytes))
    }

    fn failed(&self, what: &str, name: &str, error: impl Into<io::Error>) -> cni_types::Error {
        failed(format_args!("{what} {}", self.path.join(name).display()), error)
    }

    fn scratch_or_directory(&self) -> &std::fs::File {
        self.scratch.as_ref().unwrap_or(&self.locked.dir)
    }
}

impl Reserved {
    /// Takes the reservations back and puts the cursors where they were.
    ///
    /// # Errors
    /// The directory cannot be locked.
    pub(crate) fn undo(&self, data_dir: &Path) -> Result<()> {
        if let Some(network) = Network::existing(data_dir, &self.attachment.network)? {
            network.take_back(self);
        }
        Ok(())
    }
}

fn cursor_name(set: usize) -> String {
    format!("{CURSOR}{set}")
}
