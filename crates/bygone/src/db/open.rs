//! Opening: making a database, or recovering one.
//!
//! Owns: the directory's layout and the order in which things come into being. Promises: a crash while a
//! database is being made leaves none; a crash while one is being recovered leaves what was there; recovery
//! takes time in proportion to the log that is left. May call: everything below db.
//!
//! A database exists once `base.pages` does: it is written under another name and renamed last. Recovery
//! reads the superblock, replays the log behind it into memtables, and goes on in a new log segment.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::beside::Reader;
use super::engine::{Counters, Engine, Writer, lock as guard, runs_dir};
use super::manifest::Manifest;
use super::options::Options;
use super::relief::Relief;
use super::window;
use crate::archive::{self, Archive, PLACE_BYTES_MAX};
use crate::base::{BaseRoot, BaseVersion, PageStore, Superblock};
use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::health::Health;
use crate::history::past::Past;
use crate::ids::random;
use crate::io::{Disk, LockOutcome, exists, list, make_dir, remove, sync_dir, sync_parent};
use crate::layer::HashedKey;
use crate::lease::{self, Leases};
use crate::memtable::Memtable;
use crate::mutation::{self, Mutation};
use crate::run::{self, Run, RunMeta, file_name};
use crate::signal::Signal;
use crate::snapshot::present::Present;
use crate::snapshot::rows::{self, FIRST_TABLE, SnapshotRow};
use crate::snapshot::scans::Scans;
use crate::snapshot::{Context, Layers, Table, TableDirectory, WindowStart};
use crate::txn::backlog::{Backlog, Frozen};
use crate::txn::commit::{Committer, Start};
use crate::txn::record::{self, TableChange};
use crate::wal::{self, Wal};

pub(super) const BASE_FILE: &str = "base.pages";
const NEW_BASE_FILE: &str = "base.pages.new";
/// The base of an export until that is whole.
pub(super) const UNFINISHED_BASE_FILE: &str = "base.pages.unfinished";
pub(super) const LOCK_FILE: &str = "lock";
pub(super) const HISTORY_DIR: &str = "history";

/// Segments that are kept to be used again: some more than a memtable's log takes.
const SPARE_SEGMENTS: usize = 8;

/// Tells handles of one open database from those of another.
static NEXT_DATABASE: AtomicU64 = AtomicU64::new(1);

impl Engine {
    pub fn open(disk: Arc<dyn Disk>, path: &Path, options: Options) -> Result<Arc<Engine>> {
        let base_path = path.join(BASE_FILE);
        if (options.read_only || !options.create) && !exists(&*disk, &base_path)? {
            return Err(Error::NotFound { path: path.to_owned() });
        }
        if options.read_only {
            return Engine::open_beside(disk, path, options);
        }
        for directory in [path, &wal_dir(path), &runs_dir(path), &path.join(HISTORY_DIR)] {
            make_dir(&*disk, directory)?;
        }
        let lock = take_lock(&*disk, &path.join(LOCK_FILE), true)?;
        let cache = Cache::new(options.cache_bytes);
        // Looked for under the lock: another process may have made the database since.
        if !exists(&*disk, &base_path)? {
            create(&disk, path, &cache, &options)?;
        }
        // Also of a database that was there: whoever made it may have been stopped right before this.
        sync_dir(&*disk, path)?;
        recover(disk, path, cache, options, lock)
    }
}

pub(super) fn wal_dir(path: &Path) -> PathBuf {
    path.join("wal")
}

/// Where the history directory is, if the past is split from the present: as the application says, or as it said
/// before.
pub(super) fn history_place(
    disk: &dyn Disk,
    options: &Options,
    manifest: &Manifest,
) -> Result<Option<PathBuf>> {
    let Some(directory) = &options.history_dir else {
        let remembered = &manifest.archive.place;
        return Ok((!remembered.is_empty()).then(|| PathBuf::from(remembered)));
    };
    let place = disk.absolute(directory).map_err(|e| Error::io(directory, "find", e))?;
    let fits = place.to_str().is_some_and(|text| (1..=PLACE_BYTES_MAX).contains(&text.len()));
    if fits {
        return Ok(Some(place));
    }
    let reason = format!("the path of a history directory is UTF-8 of 1 to {PLACE_BYTES_MAX} bytes");
    Err(Error::InvalidArgument { reason })
}

/// What the archive in a history directory is opened with. In the directory each database has one of its own, so that
/// none takes another's files for litter.
pub(super) fn archive_settings(
    place: &Path,
    options: &Options,
    store: &PageStore,
    manifest: &Manifest,
) -> archive::Settings {
    archive::Settings {
        directory: place.join(format!("{:016x}", store.database_id())),
        database_id: store.database_id(),
        hash_seed: manifest.hash_seed,
        segment_bytes: options.archive_segment_bytes,
        read_only: options.read_only,
    }
}

/// Opens the archive for writing, and makes its directory if nothing was ever put there. Answers also why it cannot be
/// used, if that is so: the present can do without.
fn open_archive(
    archive: &Archive,
    place: &Path,
    others_read: bool,
    manifest: &mut Manifest,
) -> Option<Error> {
    archive.note_readers(others_read);
    let was_used = manifest.archive.used;
    let failure = archive.prepare().err();
    if failure.is_none() || !was_used {
        archive.remember(&place.to_string_lossy());
    }
    manifest.archive = archive.state();
    failure
}

pub(super) fn log_settings(path: &Path, database_id: u64, options: &Options) -> wal::Settings {
    wal::Settings {
        dir: wal_dir(path),
        database_id,
        segment_bytes: options.log_segment_bytes.next_multiple_of(4096),
        spares_max: SPARE_SEGMENTS,
        mapped: options.mapped_log,
    }
}

pub(super) fn take_lock(disk: &dyn Disk, path: &Path, exclusive: bool) -> Result<Box<dyn Send + Sync>> {
    match disk.lock(path, exclusive).map_err(|e| Error::io(path, "lock", e))? {
        LockOutcome::Held(guard) => Ok(guard),
        LockOutcome::Taken(owner) => Err(Error::Locked { path: path.to_owned(), owner }),
    }
}

/// Makes a database: the log first, then the base under another name, which is renamed last. The caller makes
/// the new name durable.
fn create(disk: &Arc<dyn Disk>, path: &Path, cache: &Arc<Cache>, options: &Options) -> Result<()> {
    let base_path = path.join(BASE_FILE);
    let unfinished = path.join(UNFINISHED_BASE_FILE);
    if exists(&**disk, &unfinished)? {
        let reason = "an export into this directory was interrupted: remove the directory and export again";
        return Err(Error::corruption(&unfinished, 0, reason));
    }
    // A crash while a database is made leaves nothing but a log without a record. More than that is a
    // database whose base is lost.
    for directory in [runs_dir(path), path.join(HISTORY_DIR)] {
        if !list(&**disk, &directory)?.is_empty() {
            let reason = format!("the file is missing, but {} is not empty", directory.display());
            return Err(Error::corruption(&base_path, 0, reason));
        }
    }
    let new_path = path.join(NEW_BASE_FILE);
    if exists(&**disk, &new_path)? {
        remove(&**disk, &new_path)?;
    }
    let database_id = random();
    let log = Wal::create(disk.clone(), log_settings(path, database_id, options), 1)?;
    let wal_floor = log.active_segment();
    drop(log);
    let manifest = Manifest {
        hash_seed: random(),
        wal_floor,
        next_run_id: 1,
        next_table_id: FIRST_TABLE,
        next_snapshot_id: 1,
        ..Manifest::default()
    };
    PageStore::create(disk, &new_path, cache, database_id, &manifest.encode())?;
    // Again, for directories that a crash while they were made left behind.
    sync_parent(&**disk, path)?;
    disk.rename(&new_path, &base_path).map_err(|e| Error::io(&new_path, "rename", e))
}

fn recover(
    disk: Arc<dyn Disk>,
    path: &Path,
    cache: Arc<Cache>,
    options: Options,
    lock: Box<dyn Send + Sync>,
) -> Result<Arc<Engine>> {
    let (store, superblock) = PageStore::open(&disk, &path.join(BASE_FILE), &cache)?;
    let mut manifest = decode_manifest(&superblock, &store)?;
    let base = store.open_base(&superblock.root)?;
    let runs = open_runs(&*disk, path, &manifest, &cache)?;
    let mut replay = Replay::new(&manifest, &options);
    let expected = expectation(&manifest, store.database_id());
    let recovered = wal::recover(&*disk, &wal_dir(path), expected, &mut |seq, segment, bytes| {
        replay.apply(seq, segment, bytes, path)
    })?;
    check_superblock_number(recovered.superblock_number, &superblock, &store)?;
    let local_history = path.join(HISTORY_DIR);
    let mut archive_failure = None;
    let remembered = manifest.archive.place.clone();
    // Only now: under a superblock that is not the newest, what the newest names would be taken for litter.
    if let Some(place) = history_place(&*disk, &options, &manifest)? {
        let others_read = Leases::new(disk.clone(), path, store.database_id()).look()?.is_any();
        let settings = archive_settings(&place, &options, &store, &manifest);
        let archive = Archive::open(disk.clone(), settings, &cache, manifest.archive.clone());
        archive_failure = open_archive(&archive, &place, others_read, &mut manifest);
        store.set_archive(archive);
    }
    make_dir(&*disk, &local_history)?;
    // Again, for one that a crash while it was made left behind.
    sync_parent(&*disk, &local_history)?;
    remove_litter(&*disk, path, &manifest)?;
    remove_run_litter(&*disk, &local_history, &manifest)?;
    if let (Some(archive), None) = (store.archive(), &archive_failure) {
        archive_failure = remove_run_litter(&*disk, archive.directory(), &manifest).err();
    }
    let place_is_new = remembered != manifest.archive.place;
    let window_is_new = window::settle(&mut manifest, options.window, replay.last());
    let commits = recovered.commits;
    let found = Found { manifest, base, runs, replay, commits };
    let parts = Parts { disk, path, cache, options, store, lock };
    let engine = parts.assemble(found, Side::Owner(recovered))?;
    *guard(&engine.archive_failure) = archive_failure.map(|error| (error, Instant::now()));
    // Before anybody commits: what is committed from here on is kept, and can be found by its time, or not.
    if place_is_new || window_is_new {
        engine.publish_manifest(|_| ())?;
    }
    if mutation::is_on(Mutation::ForgetReplayed) {
        engine.forget_replayed()?;
    }
    Ok(engine)
}

pub(super) fn decode_manifest(superblock: &Superblock, store: &PageStore) -> Result<Manifest> {
    Manifest::decode(&superblock.manifest)
        .ok_or_else(|| Error::corruption(store.path(), 0, "the superblock's manifest cannot be read"))
}

pub(super) fn open_runs(
    disk: &dyn Disk,
    path: &Path,
    manifest: &Manifest,
    cache: &Arc<Cache>,
) -> Result<Vec<Arc<Run>>> {
    let open_run = |meta: &RunMeta| {
        let path = runs_dir(path).join(file_name(meta.id));
        Run::open(disk, &path, meta, manifest.hash_seed, cache)
    };
    manifest.runs.iter().map(open_run).collect()
}

pub(super) fn expectation(manifest: &Manifest, database_id: u64) -> wal::Expectation {
    wal::Expectation {
        database_id,
        floor_segment: manifest.wal_floor,
        next_seq: manifest.flushed_seq + 1,
        durable_end: manifest.durable_end,
    }
}

/// Whether this superblock is as new as that which the log names.
pub(super) fn check_superblock_number(named: u64, newest: &Superblock, store: &PageStore) -> Result<()> {
    if named <= newest.number {
        return Ok(());
    }
    let reason =
        format!("the log was begun under superblock {named}, but the newest here is {}", newest.number);
    Err(Error::corruption(store.path(), 0, reason))
}

/// What the files of a database say.
pub(super) struct Found {
    pub manifest: Manifest,
    pub base: Arc<BaseVersion>,
    pub runs: Vec<Arc<Run>>,
    pub replay: Replay,
    /// How many commits the log had.
    pub commits: u64,
}

impl Found {
    pub fn layers(&self, context: Arc<Context>) -> Layers {
        let frozen = self.replay.frozen.iter().rev().map(|frozen| &frozen.memtable);
        Layers {
            context,
            memtables: std::iter::once(&self.replay.active).chain(frozen).cloned().collect(),
            runs: self.runs.clone(),
            base: self.base.clone(),
            exact_from: self.manifest.flushed_seq,
            window: self.manifest.window,
        }
    }
}

/// What an engine is made of before anything is read.
pub(super) struct Parts<'a> {
    pub disk: Arc<dyn Disk>,
    pub path: &'a Path,
    pub cache: Arc<Cache>,
    pub options: Options,
    pub store: Arc<PageStore>,
    pub lock: Box<dyn Send + Sync>,
}

/// Who opens a database.
pub(super) enum Side {
    /// Who writes it, with the log that is to be continued.
    Owner(wal::Recovered),
    Reader(Reader),
}

impl Parts<'_> {
    pub fn assemble(self, found: Found, side: Side) -> Result<Arc<Engine>> {
        let Parts { disk, path, cache, options, store, lock } = self;
        let local_history = path.join(HISTORY_DIR);
        let history_dir =
            store.archive().map_or(local_history.clone(), |archive| archive.directory().to_owned());
        let past = Past::new(disk.clone(), (history_dir, local_history), store.clone(), cache.clone());
        // Relaxed: only uniqueness matters.
        let database = NEXT_DATABASE.fetch_add(1, Ordering::Relaxed);
        let context = Arc::new(Context {
            hash_seed: found.manifest.hash_seed,
            tables: TableDirectory::new(database),
            scans: Scans::default(),
            _lock: lock,
        });
        let layers = found.layers(context);
        let Found { manifest, base, replay, commits: recovered_commits, .. } = found;
        let present = Arc::new(Present::new(layers, replay.last_seq, options.limits.clone()));
        let next_table_id = load_tables(&present)?.max(replay.next_table_id);
        let health = Arc::new(Health::default());
        let backlog = Arc::new(Backlog::new(health.clone(), options.memtable_bytes));
        for frozen in replay.frozen {
            backlog.push(frozen);
        }
        let standby_signal = Arc::new(Signal::default());
        let (writer, reader) = match side {
            Side::Reader(reader) => (None, Some(reader)),
            Side::Owner(recovered) => {
                let leases = respect_leases(&disk, path, &store, &past, &base)?;
                let settings = log_settings(path, store.database_id(), &options);
                let wal = Arc::new(Wal::open(disk.clone(), settings, recovered, store.superblock_number())?);
                let start = Start {
                    next_seq: replay.last_seq + 1,
                    next_snapshot_id: replay.next_snapshot_id,
                    last_time_micros: replay.last_time_micros,
                    active: replay.active,
                    declared: unmerged_snapshots(&present)?,
                    notes_times: manifest.window.is_some(),
                };
                let committer = Arc::new(Committer::new(
                    health.clone(),
                    present.clone(),
                    backlog.clone(),
                    wal.clone(),
                    standby_signal.clone(),
                    start,
                ));
                (Some(Writer { wal, committer, leases }), None)
            }
        };
        let prune_wanted =
            past.last_deletion(&present.snapshot())? > manifest.pruned_seq || manifest.window_left;
        let engine = Engine {
            disk,
            path: path.to_owned(),
            options,
            health,
            cache,
            present,
            backlog,
            writer,
            reader,
            store,
            past,
            manifest: Mutex::new(manifest),
            next_table_id: next_table_id.into(),
            archiving: Mutex::default(),
            flushing: Mutex::default(),
            bulk: Mutex::default(),
            merging: Mutex::default(),
            merge_signal: Signal::default(),
            prune_wanted: prune_wanted.into(),
            litter_wanted: true.into(),
            prune_failure: Mutex::default(),
            given_up: Mutex::default(),
            pending: Mutex::default(),
            archive_failure: Mutex::default(),
            archive_signal: Signal::default(),
            relief: Relief::default(),
            standby_signal,
            watch_signal: Signal::default(),
            counters: Counters::default(),
            closing: Arc::default(),
            recovered_commits,
        };
        engine.tell_runs();
        Ok(Arc::new(engine))
    }
}

/// What other processes read stays, from before anything is written. They may have leased bases that an owner before
/// this one superseded.
fn respect_leases(
    disk: &Arc<dyn Disk>,
    path: &Path,
    store: &Arc<PageStore>,
    past: &Past,
    base: &Arc<BaseVersion>,
) -> Result<Arc<Leases>> {
    let directory = path.join(lease::DIRECTORY);
    if !exists(&**disk, &directory)? {
        disk.create_dir_all(&directory).map_err(|e| Error::io(&directory, "create", e))?;
    }
    let leases = Arc::new(Leases::new(disk.clone(), path, store.database_id()));
    store.respect(leases.clone());
    let look = leases.look()?;
    if let Some(path) = look.unread {
        // Nobody can say which base it is that must stay.
        return Err(Error::Locked { path, owner: None });
    }
    let mut roots = Vec::new();
    for terms in look.terms.iter().filter(|terms| terms.generation < base.generation()) {
        let Some(root) = BaseRoot::decode(&terms.root).filter(|root| root.generation == terms.generation)
        else {
            continue;
        };
        let leased = store.open_leased(&root, None).and_then(|leased| past.intervals(&leased));
        match leased {
            Ok(intervals) => roots.extend(intervals.iter().filter_map(|(_, interval)| interval.key_frame)),
            // Its reader will meet the same damage.
            Err(Error::Corruption { .. }) => {}
            Err(error) => return Err(error),
        }
        roots.push(root);
    }
    store.keep_superseded(&roots, base)?;
    Ok(leases)
}

/// The log's commits on their way back into memtables.
pub(super) struct Replay {
    memtable_bytes: usize,
    hash_seed: u64,
    active: Arc<Memtable>,
    /// Oldest first.
    frozen: Vec<Frozen>,
    pub last_seq: u64,
    /// Counts dropped tables too: their records are still there, and an id that was given again would show
    /// them.
    next_table_id: u32,
    next_snapshot_id: u64,
    last_time_micros: u64,
}

impl Replay {
    pub fn new(manifest: &Manifest, options: &Options) -> Replay {
        Replay {
            memtable_bytes: options.memtable_bytes,
            hash_seed: manifest.hash_seed,
            active: Arc::new(Memtable::new(options.memtable_bytes)),
            frozen: Vec::new(),
            last_seq: manifest.flushed_seq,
            next_table_id: manifest.next_table_id,
            next_snapshot_id: manifest.next_snapshot_id,
            last_time_micros: manifest.last_time_micros,
        }
    }

    /// The last commit that there is.
    pub fn last(&self) -> WindowStart {
        WindowStart { seq: self.last_seq, time_micros: self.last_time_micros }
    }

    pub fn apply(&mut self, seq: u64, segment: u64, bytes: &[u8], path: &Path) -> Result<()> {
        let Some(commit) = record::decode(seq, bytes) else {
            let path = wal::segment_path(&wal_dir(path), segment);
            return Err(Error::corruption(&path, 0, format!("the record of commit {seq} cannot be read")));
        };
        if self.active.is_full() {
            let full = std::mem::replace(&mut self.active, Arc::new(Memtable::new(self.memtable_bytes)));
            self.frozen.push(Frozen {
                memtable: full,
                last_seq: self.last_seq,
                // What this segment holds of the frozen memtable is passed over by its numbers.
                next_segment: segment,
                next_snapshot_id: self.next_snapshot_id,
                last_time_micros: self.last_time_micros,
            });
        }
        let seed = self.hash_seed;
        let records =
            commit.writes.iter().map(|(key, value)| (HashedKey::new(key.table, key.bytes, seed), *value));
        self.active.insert_batch(seq, records);
        record::insert_system_records(&self.active, &commit.marks, commit.place, seed);
        self.last_seq = seq;
        self.last_time_micros = commit.place.time_micros;
        if let Some(TableChange::Create { id, .. }) = commit.marks.table_change {
            // Also of a table that was dropped again: its records are still in the log, and must not become
            // another table's.
            self.next_table_id = self.next_table_id.max(id.saturating_add(1));
        }
        if commit.place.snapshot_id != 0 {
            self.next_snapshot_id = commit.place.snapshot_id + 1;
        }
        Ok(())
    }
}

/// Removes files that a crash left behind before a superblock named them, or after it no longer did.
fn remove_litter(disk: &dyn Disk, path: &Path, manifest: &Manifest) -> Result<()> {
    let runs_dir = runs_dir(path);
    for name in list(disk, &runs_dir)? {
        if !manifest.runs.iter().any(|run| file_name(run.id) == name) {
            remove(disk, &runs_dir.join(name))?;
        }
    }
    Ok(())
}

/// The same with history runs: of those a superblock names only the one in the making.
fn remove_run_litter(disk: &dyn Disk, history_dir: &Path, manifest: &Manifest) -> Result<()> {
    for name in list(disk, history_dir)? {
        let unfinished = |id| id >= manifest.next_run_id || id == manifest.unfinished_history_run;
        if run::file_id(&name).is_some_and(unfinished) {
            remove(disk, &history_dir.join(name))?;
        }
    }
    Ok(())
}

/// Fills the directory of tables from the newest view; answers the first id that no table has.
fn load_tables(present: &Present) -> Result<u32> {
    let now = present.snapshot();
    let directory = &present.context().tables;
    let mut next_id = FIRST_TABLE;
    for (name, row) in now.table_rows()? {
        next_id = next_id.max(row.id.saturating_add(1));
        let table = Table::new(directory.database(), row.id, &name, row.created_seq);
        directory.lock().insert(name, table);
    }
    Ok(next_id)
}

/// The sequence numbers of the declared snapshots that are not merged yet, ascending. There are as many as
/// the log and the runs hold, not as many as were ever declared.
fn unmerged_snapshots(present: &Present) -> Result<Vec<u64>> {
    let now = present.snapshot();
    let layers = now.layers()?;
    let mut cursor = layers.cursor_under(None, rows::SNAPSHOTS, now.seq().0);
    cursor.seek_before(None)?;
    let mut seqs = Vec::new();
    loop {
        cursor.skip_deleted()?;
        let Some((key, row)) = cursor.record()? else { break };
        let Some(row) = SnapshotRow::decode(row) else {
            return Err(now.bad_row("snapshot", &key.escape_ascii().to_string()));
        };
        if row.seq < layers.base.seq() {
            break;
        }
        seqs.push(row.seq);
        cursor.prev()?;
    }
    seqs.reverse();
    Ok(seqs)
}
