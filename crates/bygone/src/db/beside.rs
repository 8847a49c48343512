//! Reading beside the process that writes: opening for reading only, and moving on to what is newer.
//!
//! Owns: the order of a reader's steps. Promises: what is opened is what recovery would find at that moment, whoever
//! writes, flushes, merges and prunes meanwhile; it stays readable until the lease ends, which the last view of it
//! takes with it. The argument is told in `docs/other-processes.md`. May call: everything below db.
//!
//! 1. A lease on the newest base is stated, and that base is still the newest (`base/leased.rs`). 2. The runs that its
//!    superblock names are opened, and the log behind it is read into memtables. 3. If any of that was not there or
//!    not whole, and there is another superblock by now, all begins anew; if not, it is damage.

use std::collections::HashSet;
use std::ops::{Bound, ControlFlow};
use std::path::Path;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use super::Db;
use super::engine::{Engine, lock};
use super::open::{
    BASE_FILE, Found, LOCK_FILE, Parts, Replay, Side, archive_settings, check_superblock_number,
    decode_manifest, expectation, history_place, open_runs, take_lock, wal_dir,
};
use super::options::Options;
use super::window;
use crate::archive::Archive;
use crate::base::{Leased, PageStore, Superblock};
use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::history::SnapshotRef;
use crate::ids::SnapshotId;
use crate::io::Disk;
use crate::lease::Lease;
use crate::snapshot::rows::{self, TableRow};
use crate::snapshot::{HeldSnapshot, Layers, Snapshot};
use crate::wal;

/// For how long opening is tried again while others change what is being opened. One attempt is enough, mostly: a
/// second is needed if a flush has overtaken the reading of the log, or a merge the opening of its runs.
const PATIENCE: Duration = Duration::from_secs(30);

/// What only a database has that is open for reading only.
pub(crate) struct Reader {
    /// `None` where this process may not write one: then it holds the directory's lock, together with others that
    /// only read, and nobody writes.
    lease: Mutex<Option<Arc<Lease>>>,
    /// That and earlier ones, of which views are still held.
    all: Mutex<Vec<Weak<Lease>>>,
}

impl Reader {
    fn new(lease: Option<Arc<Lease>>) -> Reader {
        let all = lease.iter().map(Arc::downgrade).collect();
        Reader { lease: Mutex::new(lease), all: Mutex::new(all) }
    }

    fn lease(&self) -> Option<Arc<Lease>> {
        lock(&self.lease).clone()
    }

    fn replace(&self, lease: Arc<Lease>) {
        let mut all = lock(&self.all);
        all.retain(|lease| lease.strong_count() > 0);
        all.push(Arc::downgrade(&lease));
        *lock(&self.lease) = Some(lease);
    }

    fn living(&self) -> Vec<Arc<Lease>> {
        lock(&self.all).iter().filter_map(Weak::upgrade).collect()
    }
}

impl Db {
    /// Brings a database that is open for reading only up to date with what its owner, in another process, has
    /// committed and declared since it was opened or last refreshed. Answers whether there was anything.
    ///
    /// Views that are held stay as they are; so does what they keep in the owner's files. Costs what opening costs: in
    /// proportion to the log that the owner has not flushed yet, not to the database. What an owner has not refreshed
    /// or closed for long keeps pages that the owner could use again. A database that is open for writing is always
    /// up to date.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("bank");
    /// let db = bygone::Db::open(&path)?;
    /// let reader = bygone::Options::new().read_only(true).open(&path)?; // mostly in another process
    /// db.put(&db.table("accounts")?, "alice", "100")?;
    /// db.snapshot_now("before-fees")?;
    ///
    /// assert!(reader.as_of("before-fees").is_err());
    /// assert!(reader.refresh()?);
    /// assert_eq!(reader.as_of("before-fees")?.tables()?, ["accounts"]);
    /// # bygone::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// As [`Options::open`]; the database is then as it was.
    pub fn refresh(&self) -> Result<bool> {
        self.engine().refresh()
    }
}

impl Engine {
    /// Opens a database that is there for reading only, whether anybody writes it or not.
    pub fn open_beside(disk: Arc<dyn Disk>, path: &Path, options: Options) -> Result<Arc<Engine>> {
        let (lease, lock): (_, Box<dyn Send + Sync>) = match Lease::take(&disk, path) {
            Ok(lease) => (Some(Arc::new(lease)), Box::new(())),
            Err(refused) if refused.forbids_writing() => {
                match take_lock(&*disk, &path.join(LOCK_FILE), false) {
                    Ok(lock) => (None, lock),
                    // Only with a lease could both be inside.
                    Err(Error::Locked { .. }) => return Err(refused),
                    Err(error) => return Err(error),
                }
            }
            Err(error) => return Err(error),
        };
        let cache = Cache::new(options.cache_bytes);
        let store = PageStore::open_beside(&disk, &path.join(BASE_FILE), &cache)?;
        let (leased, found) = open_newest(&disk, path, &store, &cache, &options, lease.as_ref())?;
        store.adopt(leased, lease.clone());
        let parts = Parts { disk, path, cache, options, store, lock };
        parts.assemble(found, Side::Reader(Reader::new(lease)))
    }

    fn refresh(&self) -> Result<bool> {
        let Some(reader) = &self.reader else { return Ok(false) };
        if reader.lease().is_none() {
            // This process has the lock: nobody writes.
            return Ok(false);
        }
        // Nobody else refreshes, and nobody collects what is kept, as `verify` does.
        let _merging = lock(&self.merging);
        let lease = Arc::new(Lease::take(&self.disk, &self.path)?);
        let (leased, found) =
            open_newest(&self.disk, &self.path, &self.store, &self.cache, &self.options, Some(&lease))?;
        let (before, seq) = (self.present.visible_seq(), found.replay.last_seq);
        if seq < before {
            let reason = format!("commit {seq} is the last now, but {before} was there before");
            return Err(Error::corruption(&wal_dir(&self.path), 0, reason));
        }
        let layers = found.layers(self.present.layers().context.clone());
        let tables = tables(&layers, seq)?;
        // From here on nothing fails. Who opens something of the past meanwhile notices that the store is ahead of his
        // view, and tries again.
        self.present.context().tables.renew(before, tables);
        self.store.adopt(leased, Some(lease.clone()));
        *lock(&self.manifest) = found.manifest;
        self.past.forget_all();
        self.present.publish_at(seq, |_| layers);
        reader.replace(lease);
        Ok(seq > before)
    }

    /// A view as of a declared snapshot, or of a commit in the window. While one of a declared snapshot is held, its
    /// owner in another process does not delete it.
    pub fn as_of(&self, wanted: &SnapshotRef) -> Result<Snapshot> {
        let Some(lease) = self.reader.as_ref().and_then(Reader::lease) else {
            return self.past.view(&self.present, wanted);
        };
        let now = self.present.snapshot();
        if self.past.in_window(&now, wanted)?.is_some() {
            // Nothing that the leased base leads to goes, and that is all of its window.
            return self.past.view(&self.present, wanted);
        }
        let (id, seq) = self.past.find_to_read(&now, wanted)?;
        let _opening = lease.hold(id, seq)?;
        self.past.view(&self.present, &SnapshotRef::Id(SnapshotId(id)))
    }

    /// Looks who holds views, and does what the limits ask for. Leases no longer name what nobody reads.
    pub fn look(&self) -> Vec<HeldSnapshot> {
        let leases = self.reader.as_ref().map(Reader::living).unwrap_or_default();
        // Before the look: what is opened in between is not for this one to judge.
        let leases: Vec<_> = leases.into_iter().map(|lease| (lease.clock(), lease)).collect();
        let held = self.present.look();
        let seqs: HashSet<u64> = held.iter().map(|held| held.seq.0).collect();
        for (clock, lease) in leases {
            // If that cannot be written, the owner keeps a snapshot for longer.
            let _ = lease.let_go(clock, |seq| seqs.contains(&seq));
        }
        held
    }
}

/// Leases the newest base and opens all that belongs to it.
fn open_newest(
    disk: &Arc<dyn Disk>,
    path: &Path,
    store: &Arc<PageStore>,
    cache: &Arc<Cache>,
    options: &Options,
    lease: Option<&Arc<Lease>>,
) -> Result<(Leased, Found)> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let leased = store.lease_newest(&mut |root| match lease {
            Some(lease) => lease.pin(store.database_id(), root.generation, root.encode()),
            None => Ok(()),
        })?;
        let superblock = &leased.superblock;
        let opened = open_all(disk, path, store, cache, options, superblock, lease);
        let now = store.read_superblock()?;
        match opened {
            // If a segment of the log was made into a later one while it was read, the log seemed to end there. But
            // all its commits were flushed then: so one that ends behind what is flushed by now was read to its end.
            Ok(found) if found.replay.last_seq >= decode_manifest(&now, store)?.flushed_seq => {
                return Ok((leased, found));
            }
            // Files and pages that were let go meanwhile look like damage.
            Err(error) if now.number == superblock.number || Instant::now() > deadline => return Err(error),
            Ok(_) if Instant::now() > deadline => {
                let busy = std::io::Error::from(std::io::ErrorKind::TimedOut);
                return Err(Error::io(&wal_dir(path), "keep up with the writer of", busy));
            }
            _ => {}
        }
    }
}

fn open_all(
    disk: &Arc<dyn Disk>,
    path: &Path,
    store: &Arc<PageStore>,
    cache: &Arc<Cache>,
    options: &Options,
    superblock: &Superblock,
    lease: Option<&Arc<Lease>>,
) -> Result<Found> {
    let mut manifest = decode_manifest(superblock, store)?;
    if let Some(place) = history_place(&**disk, options, &manifest)? {
        // By the page map of this superblock; what it lacks is in its slot.
        let state = manifest.archive.clone();
        match store.archive() {
            Some(archive) => archive.renew(state),
            None => {
                let settings = archive_settings(&place, options, store, &manifest);
                store.set_archive(Archive::open(disk.clone(), settings, cache, state));
            }
        }
    }
    let base = store.open_leased(&superblock.root, lease.cloned())?;
    let runs = open_runs(&**disk, path, &manifest, cache)?;
    let mut replay = Replay::new(&manifest, options);
    let expected = expectation(&manifest, store.database_id());
    let recovered = wal::read(&**disk, &wal_dir(path), expected, &mut |seq, segment, bytes| {
        replay.apply(seq, segment, bytes, path)
    })?;
    check_superblock_number(recovered.superblock_number, superblock, store)?;
    window::limit(&mut manifest, replay.last());
    Ok(Found { manifest, base, runs, replay, commits: recovered.commits })
}

/// The tables that exist as of a commit: id and commit of creation, by name.
fn tables(layers: &Layers, seq: u64) -> Result<Vec<(String, (u32, u64))>> {
    let mut tables = Vec::new();
    let mut damaged = None;
    layers.for_each(rows::TABLES, seq, (Bound::Unbounded, Bound::Unbounded), &mut |name, row| {
        match std::str::from_utf8(name).ok().zip(TableRow::decode(row)) {
            Some((name, row)) => {
                tables.push((name.to_owned(), (row.id, row.created_seq)));
                ControlFlow::Continue(())
            }
            None => {
                damaged = Some(name.escape_ascii().to_string());
                ControlFlow::Break(())
            }
        }
    })?;
    damaged.map_or(Ok(tables), |name| Err(layers.bad_row("table", &name)))
}
