//! The commit: SQLite's second phase.
//!
//! Owns: making one commit of the engine out of what a connection has written in one directory. Promises: it is all
//! or nothing, over all SQL databases of the directory, with the snapshot that it declares; a failure leaves nothing,
//! and has a code after which SQLite drops its cache. May call: `file`, `directory`, `pages`, `repage`, `session`.
//!
//! With journals in memory SQLite goes through the first phase on all databases of a transaction, which hands us their
//! pages, then through the second on each. So at the first second phase everything is known, and is committed; the
//! others find that it was done.

use std::sync::atomic::Ordering;

use bygone::{Durability, Table, Transaction};

use crate::btree::{Pages, Stored};
use crate::directory::{Ready, locked};
use crate::failure::{Failure, Result};
use crate::ffi::*;
use crate::file::MainFile;
use crate::frames::Frames;
use crate::pages::{HEADER_BYTES, Shape, copy_part, is_page_size, key, trimmed};
use crate::repage::repaged;
use crate::session::Session;

/// SQLite's first phase on this file is done: its pages are all here.
pub(crate) fn phase_one(file: &mut MainFile) {
    let connection = file.connection() as usize;
    let this: *mut MainFile = file;
    let Some(write) = &mut file.write else { return };
    if write.ready {
        return;
    }
    write.ready = true;
    let mut ready = locked(&file.directory.ready);
    ready.retain(|other| other.file != this);
    ready.push(Ready { connection, file: this });
}

/// SQLite is about to write the whole database anew.
pub(crate) fn made_anew(file: &mut MainFile) {
    if let Some(write) = &mut file.write {
        write.is_made_anew = true;
    }
}

/// SQLite's second phase on this file.
pub(crate) fn phase_two(file: &mut MainFile) -> Result<()> {
    if file.write.is_none() {
        return Ok(());
    }
    let this: *mut MainFile = file;
    let connection = file.connection() as usize;
    let mut others = Vec::new();
    locked(&file.directory.ready).retain(|other| {
        let ours = other.file == this || other.connection == connection;
        if ours && other.file != this {
            others.push(other.file);
        }
        !ours
    });
    let mut files = vec![file];
    // SAFETY: these are other files of the connection that this call is of, so nobody else is in a call of them, and a
    // file that is closed has left the list.
    files.extend(others.into_iter().map(|other| unsafe { &mut *other }));
    commit(&mut files).map_err(|failure| match failure.code & 0xff {
        SQLITE_IOERR | SQLITE_FULL => failure,
        SQLITE_TOOBIG => Failure { code: SQLITE_FULL, ..failure },
        _ => Failure { code: SQLITE_IOERR_COMMIT_ATOMIC, ..failure },
    })
}

fn commit(files: &mut [&mut MainFile]) -> Result<()> {
    let declarations = files.iter_mut().filter_map(|file| file.write.as_mut()?.declaration.take());
    // One transaction declares at most one.
    let declaration = declarations.last();
    files.sort_by(|a, b| a.database.table.cmp(&b.database.table));
    let dirty = |file: &MainFile| file.write.as_ref().is_some_and(|write| write.is_dirty());
    let Some(first) = files.iter().find(|file| dirty(file) || declaration.is_some()) else { return Ok(()) };
    let mut transaction = first.directory.db.begin()?;
    let state = u64::from(transaction.seq());
    let mut shapes = Vec::new();
    let mut sync = false;
    for file in files.iter_mut() {
        let shape = if dirty(file) { Some(put(&mut transaction, file, state)?) } else { None };
        let synced = file.write.as_ref().is_some_and(|write| write.synced) || shape.is_none();
        sync |= synced && file.sync_commits;
        shapes.push(shape);
    }
    transaction.set_durability(if sync { Durability::Sync } else { Durability::Buffered });
    match declaration {
        None => {
            transaction.commit()?;
        }
        Some(name) => {
            let id = transaction.commit_with_snapshot(name.as_deref())?;
            files.iter_mut().for_each(|file| file.declared = Some(id.into()));
        }
    }
    for (file, left) in files.iter_mut().zip(shapes) {
        if let Some(Left { shape, corrected, repaged }) = left {
            file.database.committed(shape.state, shape.schema_cookie(), corrected);
            file.committed(shape, corrected || repaged);
        }
    }
    Ok(())
}

/// What a commit leaves behind.
struct Left {
    shape: Shape,
    /// Whether the header is not the one that SQLite wrote.
    corrected: bool,
    /// Whether the pages are not those that SQLite wrote.
    repaged: bool,
}

/// The pages that a transaction leaves, before they are committed.
struct Written<'w> {
    transaction: &'w Transaction,
    table: &'w Table,
    pages: &'w Frames,
    kept_pages: u32,
}

impl Stored for Written<'_> {
    fn name(&self) -> &str {
        self.table.name()
    }

    fn copy(&self, page: u32, out: &mut [u8]) -> Result<()> {
        out.fill(0);
        match self.pages.get(page) {
            Some(written) => copy_part(written, 0, out),
            None if page <= self.kept_pages => {
                self.transaction.get_with(self.table, key(page), |stored| copy_part(stored, 0, out))?;
            }
            None => {}
        }
        Ok(())
    }
}

/// After `VACUUM`: gives the database pages of the size that was asked for, if it has others. Answers whether it did.
fn repage(transaction: &Transaction, file: &mut MainFile, state: u64) -> Result<bool> {
    let page_bytes = match Session::of(file.connection()) {
        // Relaxed: nobody else uses the connection, which is in this call.
        Some(session) => session.page_bytes.load(Ordering::Relaxed),
        // The host has kept our functions from this connection.
        None => file.page_bytes_asked,
    };
    let Some((write, table, _)) = file.written() else { return Ok(false) };
    if !write.is_made_anew || !is_page_size(page_bytes) || page_bytes == write.shape.page_bytes {
        return Ok(false);
    }
    let mut shape = Shape { state, ..write.shape };
    if let Some(first) = write.pages.get(1) {
        copy_part(first, 0, &mut shape.header);
    }
    let written = Written { transaction, table, pages: &write.pages, kept_pages: write.kept_pages };
    let repaged = repaged(&Pages { source: written, shape }, page_bytes)?;
    write.shape.page_bytes = repaged.page_bytes;
    write.shape.pages = u32::try_from(repaged.pages.len()).map_err(|_| Failure::code(SQLITE_FULL))?;
    write.kept_pages = 0;
    // The page that is never used has no record.
    write.pages.begin(repaged.page_bytes);
    let pages = (1..).zip(&repaged.pages).filter(|(_, page)| !page.is_empty());
    pages.for_each(|(number, page)| write.pages.put(number, page));
    Ok(true)
}

/// Puts what a file has written into the engine's transaction.
fn put(transaction: &mut Transaction, file: &mut MainFile, state: u64) -> Result<Left> {
    let none = || Failure::new(SQLITE_MISUSE, "a commit of a file that has no transaction");
    let repaged = repage(transaction, file, state)?;
    let (write, table, database) = file.written().ok_or_else(none)?;
    // The writer's lock keeps other connections away, but not who restores another state, or writes to the table.
    if Shape::load_in(transaction, table)? != write.begun {
        let text =
            format!("table {:?} was changed past SQLite while a transaction wrote to it", table.name());
        return Err(Failure::new(SQLITE_IOERR_COMMIT_ATOMIC, text));
    }
    let mut shape = Shape { state, ..write.shape };
    if write.kept_pages == 0 {
        shape.header.fill(0);
    }
    // Written again since they were cut off, or gone.
    for page in write.kept_pages..write.begun.pages {
        if !write.pages.contains(page + 1) {
            transaction.delete(table, key(page + 1))?;
        }
    }
    if let Some(first) = write.pages.get(1) {
        copy_part(first, 0, &mut shape.header);
        // Every commit writes page 1, and most change nothing but its header.
        let rest = first.get(HEADER_BYTES..).unwrap_or_default();
        let is_same = |stored: &[u8]| stored.get(HEADER_BYTES..).unwrap_or_default() == rest;
        if transaction.get_with(table, key(1), is_same)? != Some(true) {
            let mut first = first.to_vec();
            let header_bytes = first.len().min(HEADER_BYTES);
            first[..header_bytes].fill(0);
            transaction.put(table, key(1), trimmed(&first))?;
        }
    }
    // In the order of their keys they are put in fastest.
    for (page, bytes) in write.pages.values().filter(|(page, _)| *page > 1) {
        transaction.put_owned(table, key(page), bytes)?;
    }
    // They are not needed any more: without the commit they are forgotten.
    write.pages.clear();
    let cookie = database.corrected_cookie(write.begun.state, shape.schema_cookie());
    if let Some(cookie) = cookie {
        shape.set_schema_cookie(cookie);
    }
    transaction.put(table, key(0), shape.encode())?;
    Ok(Left { shape, corrected: cookie.is_some(), repaged })
}
