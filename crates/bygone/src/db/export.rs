//! A compact copy of one state as a database of its own.
//!
//! Owns: the order in which a copy comes into being. Promises: what opens is whole and durable; one that was
//! interrupted does not open; nothing of the source is changed or waits. May call: everything below db.
//!
//! 1. The copy's base is begun as `base.pages.unfinished`, and that name made durable before there is anything
//!    else: as long as it is there, nobody takes the directory for a database or makes one of it.
//! 2. The tables stream into it, in key order, as a merge would write them: no log, no memtable, no run.
//! 3. An empty log is made, the base published in its superblock, and then renamed: now it is a database.

use std::path::Path;

use super::Db;
use super::engine::{Engine, runs_dir};
use super::manifest::Manifest;
use super::open::{
    BASE_FILE, HISTORY_DIR, LOCK_FILE, UNFINISHED_BASE_FILE, log_settings, take_lock, wal_dir,
};
use crate::base::{PageStore, Rebuild, Updates};
use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::history::{SnapshotInfo, SnapshotRef};
use crate::ids::random;
use crate::io::{exists, list, make_dir, remove, sync_dir, sync_parent};
use crate::snapshot::rows::{self, FIRST_TABLE};
use crate::snapshot::{MergeCursor, Snapshot};
use crate::txn::record::{Declaration, Marks, Place, system_records};
use crate::wal::Wal;

/// For the copy's inner pages, which are read again when the levels above them are built.
const CACHE_BYTES: usize = 8 << 20;

/// The id that the one snapshot of a copy has: the first.
const SNAPSHOT_ID: u64 = 1;

impl Db {
    /// Makes a compact database in another directory that holds just one declared snapshot: all its tables, each
    /// record once, nothing of the past before it. It is durable when this returns, and opens with
    /// [`Db::open`]. There the snapshot is the present, and is also declared, as number 1, with its name, time
    /// and metadata; commits go on with the next sequence number. Of a commit in the [window](super::Options::window)
    /// that nobody declared there is no snapshot in the copy.
    ///
    /// The directory is made if it is missing. Memory does not grow with the data, beyond the largest value and
    /// some bytes a page. Others may read and write meanwhile. What a crash leaves does not open as a database.
    /// What an error leaves holds nothing, but may have to be removed before the next attempt.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let db = bygone::Db::open(directory.path().join("bank"))?;
    /// # db.put(&db.table("accounts")?, "alice", "100")?;
    /// # db.snapshot_now("before-fees")?;
    /// # let path = directory.path().join("copy");
    /// db.export("before-fees", &path)?;
    ///
    /// let copy = bygone::Db::open(&path)?;
    /// assert_eq!(copy.get(&copy.open_table("accounts")?, "alice")?.unwrap(), b"100");
    /// assert!(copy.as_of("before-fees").is_ok());
    /// # bygone::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// `SnapshotNotFound`, `OutsideWindow`; `NotEmpty` if the directory is there and holds anything; `Locked` if
    /// another export into it is under way; `Corruption` or `Io`.
    pub fn export(&self, snapshot: impl Into<SnapshotRef>, path: impl AsRef<Path>) -> Result<()> {
        let (view, info) = self.engine().as_of_with_info(&snapshot.into())?;
        self.engine().export(&view, info.as_ref(), path.as_ref())
    }

    /// Makes a compact database of what any snapshot sees, one of the present for instance: as
    /// [`export`](Db::export) does, but without a declared snapshot in it.
    ///
    /// # Errors
    /// As [`export`](Db::export); `InvalidArgument` for a snapshot of another database.
    pub fn export_view(&self, view: &Snapshot, path: impl AsRef<Path>) -> Result<()> {
        self.engine().export(view, None, path.as_ref())
    }
}

impl Engine {
    fn export(&self, view: &Snapshot, info: Option<&SnapshotInfo>, path: &Path) -> Result<()> {
        if view.layers()?.context.tables.database() != self.present.context().tables.database() {
            let reason = "the snapshot belongs to another database".to_owned();
            return Err(Error::InvalidArgument { reason });
        }
        let disk = &*self.disk;
        let not_empty = || Error::NotEmpty { path: path.to_owned() };
        if exists(disk, path)? && !disk.is_vacant(path).map_err(|e| Error::io(path, "list", e))? {
            return Err(not_empty());
        }
        make_dir(disk, path)?;
        let lock = take_lock(disk, &path.join(LOCK_FILE), true)?;
        // Looked for under the lock: another export may have come first.
        if exists(disk, &path.join(BASE_FILE))? || exists(disk, &path.join(UNFINISHED_BASE_FILE))? {
            return Err(not_empty());
        }
        let copied = self.copy(view, info, path);
        drop(lock);
        if copied.is_err() {
            self.clear_away(path);
        }
        copied
    }

    fn copy(&self, view: &Snapshot, info: Option<&SnapshotInfo>, path: &Path) -> Result<()> {
        let disk = &self.disk;
        let unfinished = path.join(UNFINISHED_BASE_FILE);
        let database_id = random();
        let mut manifest = Manifest {
            hash_seed: random(),
            flushed_seq: view.seq().0,
            next_run_id: 1,
            next_table_id: FIRST_TABLE,
            next_snapshot_id: SNAPSHOT_ID,
            ..Manifest::default()
        };
        let cache = Cache::new(CACHE_BYTES);
        let (store, empty) = PageStore::create(disk, &unfinished, &cache, database_id, &manifest.encode())?;
        sync_dir(&**disk, path)?;

        let mut rebuild = store.rebuild(&empty)?;
        copy_table(&mut rebuild, view, rows::TABLES)?;
        for (_, row) in view.table_rows()? {
            copy_table(&mut rebuild, view, row.id)?;
            manifest.next_table_id = manifest.next_table_id.max(row.id.saturating_add(1));
        }
        if let Some(info) = info {
            let place =
                Place { seq: view.seq().0, time_micros: rows::micros(info.time), snapshot_id: SNAPSHOT_ID };
            declare(&mut rebuild, info, place)?;
            manifest.next_snapshot_id = SNAPSHOT_ID + 1;
            manifest.last_time_micros = place.time_micros;
        }

        for directory in [wal_dir(path), runs_dir(path), path.join(HISTORY_DIR)] {
            make_dir(&**disk, &directory)?;
        }
        let settings = log_settings(path, database_id, &self.options);
        let log = Wal::create(disk.clone(), settings, view.seq().0 + 1)?;
        manifest.wal_floor = log.active_segment();
        drop(log);
        rebuild.finish(view.seq().0, 0, || manifest.encode())?;
        drop((store, empty));
        let base_path = path.join(BASE_FILE);
        disk.rename(&unfinished, &base_path).map_err(|e| Error::io(&unfinished, "rename", e))?;
        sync_dir(&**disk, path)?;
        sync_parent(&**disk, path)
    }

    /// Removes what a failed export made, as far as the disk lets it. The base goes last: without it the rest might
    /// be taken for an empty database.
    fn clear_away(&self, path: &Path) {
        let disk = &*self.disk;
        let in_log = list(disk, &wal_dir(path)).unwrap_or_default();
        let files = in_log.iter().map(|name| wal_dir(path).join(name));
        // The failure that is told is the first one.
        files.for_each(|file| drop(remove(disk, &file)));
        for name in [BASE_FILE, UNFINISHED_BASE_FILE, LOCK_FILE] {
            let _ = remove(disk, &path.join(name));
        }
    }
}

/// Writes the rows that declare the one snapshot of a copy.
fn declare(rebuild: &mut Rebuild, info: &SnapshotInfo, place: Place) -> Result<()> {
    let declaration = Declaration { name: info.name.clone(), metadata: info.metadata.clone() };
    let marks = Marks { declaration: Some(declaration), ..Marks::default() };
    for (table, key, value) in system_records(&marks, place) {
        rebuild.set(table, &key, value.as_deref())?;
    }
    Ok(())
}

fn copy_table(rebuild: &mut Rebuild, view: &Snapshot, table: u32) -> Result<()> {
    let mut cursor = view.layers()?.cursor_under(None, table, view.seq().0);
    cursor.seek(&[])?;
    cursor.skip_deleted()?;
    rebuild.apply(table, &mut Records { cursor }, usize::MAX)?;
    Ok(())
}

/// A table's records as updates of an empty one.
struct Records {
    cursor: MergeCursor,
}

impl Updates for Records {
    fn peek(&mut self) -> Result<Option<&[u8]>> {
        Ok(self.cursor.key())
    }

    fn value(&mut self) -> Result<Option<&[u8]>> {
        Ok(self.cursor.record()?.map(|(_, value)| value))
    }

    fn advance(&mut self) -> Result<()> {
        self.cursor.next()?;
        self.cursor.skip_deleted()
    }
}
