//! What the tests of crashes, faults and damage share: a plain model that keeps every state, a deterministic
//! workload, and comparing a database with the model.
//!
//! Owns: [`Model`], [`check`], [`within`]. Promises: the same seed makes the same calls; whatever is found
//! wrong is told with the given context. May call: the engine's public face only.
// Each test file is a crate of its own and uses a part of this.
#![allow(dead_code)]

pub mod hooked;
mod random;
pub mod workload;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use bygone::io::SimDisk;
use bygone::{Db, Durability, Error, Options, Result, Seq, Snapshot};
pub use random::Random;

/// Where the simulated databases live.
pub const PATH: &str = "db";

/// Where the history directory of those is that have one.
pub const HISTORY: &str = "elsewhere/past";

/// The records of one table.
pub type Records = BTreeMap<Vec<u8>, Arc<[u8]>>;

/// All tables, by name. Those that a commit does not change are shared with the state before it.
pub type State = BTreeMap<String, Arc<Records>>;

/// A snapshot that was declared, or was about to be when the disk failed.
#[derive(Clone, Debug)]
pub struct Declared {
    pub id: u64,
    pub name: Option<String>,
    pub metadata: Vec<u8>,
    pub seq: u64,
    /// The commit that declared it: mostly its own, else a later one that restored another state.
    pub since: u64,
    /// The commit that deleted it, or was about to when the disk failed.
    pub deleted: Option<u64>,
}

impl Declared {
    /// Whether it is there as of a commit.
    pub fn lives_at(&self, seq: u64) -> bool {
        self.since <= seq && self.deleted.is_none_or(|deleted| deleted > seq)
    }
}

/// Every state that the database has had. A commit is put in before it is tried.
#[derive(Clone)]
pub struct Model {
    /// By sequence number; the first is the empty database.
    pub states: Vec<Arc<State>>,
    pub declared: Vec<Declared>,
    /// The last commit that returned.
    pub acknowledged: u64,
    /// The last commit that a power cut must not undo.
    pub durable: u64,
}

impl Model {
    pub fn new() -> Model {
        Model { states: vec![Arc::default()], declared: Vec::new(), acknowledged: 0, durable: 0 }
    }

    /// The snapshots that are there now, if everything that was tried has come about.
    pub fn living(&self) -> Vec<&Declared> {
        self.declared.iter().filter(|declared| declared.lives_at(self.last_seq())).collect()
    }

    /// The number of the last commit that was tried.
    pub fn last_seq(&self) -> u64 {
        self.states.len() as u64 - 1
    }

    pub fn now(&self) -> &State {
        self.states.last().expect("there is always the empty state")
    }

    /// A commit is about to be tried.
    pub fn push(&mut self, state: State) {
        self.states.push(Arc::new(state));
    }

    /// The last commit will declare a snapshot.
    pub fn declare(&mut self, name: Option<String>, metadata: Vec<u8>) {
        self.declare_at(self.last_seq(), name, metadata);
    }

    fn declare_at(&mut self, seq: u64, name: Option<String>, metadata: Vec<u8>) {
        let (id, since) = (self.declared.len() as u64 + 1, self.last_seq());
        self.declared.push(Declared { id, name, metadata, seq, since, deleted: None });
    }

    /// A declared snapshot is about to be restored. Answers the id of the one of the state before.
    pub fn restore(&mut self, index: usize) -> u64 {
        let before = self.last_seq();
        let Declared { id, seq, .. } = self.declared[index];
        self.states.push(self.states[seq as usize].clone());
        let declared = self.declared.iter().find(|other| other.seq == before && other.deleted.is_none());
        if let Some(declared) = declared {
            return declared.id;
        }
        self.declare_at(before, None, format!("before restoring snapshot {id}").into_bytes());
        self.declared.len() as u64
    }

    /// The last commit returned.
    pub fn acknowledge(&mut self, durability: Durability) {
        self.acknowledged = self.last_seq();
        if durability == Durability::Sync {
            self.durable = self.acknowledged;
        }
    }

    /// Everything that was committed is durable now.
    pub fn all_durable(&mut self) {
        self.durable = self.acknowledged;
    }

    /// What was tried behind this commit failed and left no trace.
    pub fn forget_after(&mut self, seq: u64) {
        self.states.truncate(seq as usize + 1);
        self.declared.retain(|declared| declared.since <= seq);
        for declared in &mut self.declared {
            declared.deleted = declared.deleted.filter(|deleted| *deleted <= seq);
        }
    }

    /// The database was opened again and found at this commit: what came behind never was, and what is there
    /// is there for good.
    pub fn cut_at(&mut self, seq: u64) {
        self.forget_after(seq);
        (self.acknowledged, self.durable) = (seq, seq);
    }
}

/// Small enough for flushes, merges and recycled log segments to happen all the time.
pub fn options() -> Options {
    Options::new().memtable_bytes(64 << 10).log_segment_bytes(64 << 10).cache_bytes(1 << 20).background(false)
}

/// The same with a window that nothing leaves while a test runs.
pub fn windowed_options() -> Options {
    options().window(Duration::from_secs(100_000))
}

/// The same with the past split from the present.
pub fn split_options() -> Options {
    options().history_dir(HISTORY).archive_segment_bytes(64 << 10)
}

/// Opens as it was left: a history directory is remembered.
pub fn open(disk: &SimDisk) -> Result<Db> {
    options().open_on(Arc::new(disk.clone()), PATH)
}

pub fn open_read_only(disk: &SimDisk) -> Result<Db> {
    options().read_only(true).open_on(Arc::new(disk.clone()), PATH)
}

/// All of a snapshot, table by table.
pub fn read_state(snapshot: &Snapshot) -> Result<State> {
    let mut state = State::new();
    for name in snapshot.tables()? {
        let table = snapshot.table(&name)?;
        let mut records = Records::new();
        snapshot.for_each(&table, .., |key, value| {
            records.insert(key.to_vec(), value.into());
            ControlFlow::Continue(())
        })?;
        state.insert(name, Arc::new(records));
    }
    Ok(state)
}

/// The same, of one that can be read.
pub fn state_of(snapshot: &Snapshot) -> State {
    read_state(snapshot).unwrap()
}

/// Compares everything that can be read of the database with the model, as of the commit that it stands at.
///
/// # Errors
/// What the database gave in place of data. Wrong data panics.
pub fn compare(db: &Db, model: &Model, context: &str) -> Result<u64> {
    let now = db.snapshot();
    let seq = u64::from(now.seq());
    assert!(seq <= model.last_seq(), "{context}: commit {seq} was never tried");
    compare_state(&now, &model.states[seq as usize], &format!("{context}: now, commit {seq}"))?;
    let expected: Vec<&Declared> = model.declared.iter().filter(|declared| declared.lives_at(seq)).collect();
    let found = db.snapshots()?;
    assert_eq!(found.len(), expected.len(), "{context}: declared snapshots at commit {seq}");
    for (info, declared) in found.iter().zip(expected) {
        let Declared { id, name, metadata, seq, .. } = declared;
        let place = format!("{context}: snapshot {id} of commit {seq}");
        assert_eq!(u64::from(info.id), *id, "{place}");
        assert_eq!((&info.name, &info.metadata, u64::from(info.seq)), (name, metadata, *seq), "{place}");
        let past = db.as_of(info.id)?;
        assert_eq!(u64::from(past.seq()), *seq, "{place}");
        compare_state(&past, &model.states[*seq as usize], &place)?;
        if let Some(name) = name {
            assert_eq!(u64::from(db.as_of(name.as_str())?.seq()), *seq, "{place} by its name {name:?}");
        }
    }
    compare_window(db, model, context)?;
    for later in model.declared.iter().filter(|declared| !declared.lives_at(seq)) {
        let by_name = later.name.as_deref().map(|name| db.as_of(name));
        let by_id = db.as_of(bygone::SnapshotId::from(later.id));
        for found in [Some(by_id), by_name].into_iter().flatten() {
            match found {
                Err(Error::SnapshotNotFound { .. }) => {}
                Err(error) => return Err(error),
                Ok(_) => {
                    panic!(
                        "{context}: snapshot {} of commit {} is there at commit {seq}",
                        later.id, later.seq
                    )
                }
            }
        }
    }
    Ok(seq)
}

/// Every commit of the window, if there is one, and the one before it.
fn compare_window(db: &Db, model: &Model, context: &str) -> Result<()> {
    let Some(window) = db.window() else { return Ok(()) };
    let (first, last) = (u64::from(window.first), u64::from(window.last));
    for seq in first..=last {
        let place = format!("{context}: commit {seq} of the window {first} to {last}");
        let past = match db.as_of(Seq::from(seq)) {
            // It was moved since; so it is on the way to the present.
            Err(Error::OutsideWindow { .. })
                if db.window().is_some_and(|window| u64::from(window.first) > seq) =>
            {
                continue;
            }
            past => past?,
        };
        assert_eq!(u64::from(past.seq()), seq, "{place}");
        compare_state(&past, &model.states[seq as usize], &place)?;
    }
    let before = first.checked_sub(1).filter(|seq| !model.declared.iter().any(|other| other.seq == *seq));
    match before.map(|seq| db.as_of(Seq::from(seq))) {
        None | Some(Err(Error::OutsideWindow { .. })) => Ok(()),
        Some(Err(error)) => Err(error),
        Some(Ok(_)) => panic!("{context}: the commit before the window {first} to {last} can be read"),
    }
}

fn compare_state(snapshot: &Snapshot, expected: &State, place: &str) -> Result<()> {
    let found = read_state(snapshot)?;
    assert!(found.keys().eq(expected.keys()), "{place}: {:?}, not {:?}", found.keys(), expected.keys());
    for (name, records) in expected {
        let difference = difference(&found[name], records);
        assert!(difference.is_none(), "{place}: table {name:?}: {}", difference.unwrap_or_default());
        // A scan goes another way than a look-up does.
        let table = snapshot.table(name)?;
        for (key, value) in records.iter().step_by(7) {
            let found = snapshot.get(&table, key)?;
            assert!(found.is_some_and(|found| found[..] == value[..]), "{place}: get {key:?} of {name:?}");
        }
    }
    Ok(())
}

/// The first record in which two tables differ.
fn difference(found: &Records, expected: &Records) -> Option<String> {
    if found == expected {
        return None;
    }
    let keys = found.keys().chain(expected.keys());
    let key = keys.filter(|key| found.get(*key) != expected.get(*key)).min()?;
    let tell = |records: &Records| {
        records.get(key).map_or("nothing".to_owned(), |value| {
            format!("{} bytes {:?}", value.len(), &value[..value.len().min(16)])
        })
    };
    let key_text = key.escape_ascii();
    Some(format!("key {key_text}: {}, expected {}", tell(found), tell(expected)))
}

/// Opens what a crash left, and checks that it holds a prefix of the commits with at least the durable ones.
/// Answers the database, and its commit.
pub fn check(disk: &SimDisk, model: &Model, context: &str) -> (Db, u64) {
    let db = open(disk).unwrap_or_else(|error| panic!("{context}: open: {error}"));
    let seq = check_open(&db, model, context);
    (db, seq)
}

/// As [`check`], of a database that is open.
pub fn check_open(db: &Db, model: &Model, context: &str) -> u64 {
    let seq = compare(db, model, context).unwrap_or_else(|error| panic!("{context}: {error}"));
    assert!(seq >= model.durable, "{context}: commit {} was durable, found {seq}", model.durable);
    db.verify().unwrap_or_else(|error| panic!("{context}: verify: {error}"));
    seq
}

/// Runs a test on a thread of its own and panics if it takes too long: nothing may hang.
pub fn within<T: Send + 'static>(limit: Duration, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, waiting) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let result = work();
        // The receiver is gone if it took too long.
        let _ = done.send(());
        result
    });
    match waiting.recv_timeout(limit) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("it hangs: not done within {limit:?}"),
        // Done, or panicked.
        _ => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
    }
}

/// Whether every point is to be tried, and not a sample.
pub fn full() -> bool {
    std::env::var_os("BYGONE_FULL").is_some_and(|value| value == "1")
}

/// How long a test that may hang is waited for.
pub fn limit() -> Duration {
    Duration::from_secs(if full() { 3600 } else { 200 })
}

/// Of `1..=last` all, or `count` that are spread evenly, each at a random place of its share.
pub fn points(last: u64, count: u64, random: &mut Random) -> Vec<u64> {
    if full() || last <= count {
        return (1..=last).collect();
    }
    (0..count)
        .map(|i| {
            let (from, to) = (1 + i * last / count, 1 + (i + 1) * last / count);
            from + random.below(to - from)
        })
        .collect()
}

/// Every file of the simulated disk with its contents.
pub fn contents(disk: &SimDisk) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = disk.snapshot_files();
    files.into_iter().map(|(path, _)| (path.clone(), disk.read_file(&path).unwrap())).collect()
}

/// The path of a file of the database, from its directory.
pub fn inside(path: &Path) -> &Path {
    path.strip_prefix(PATH).unwrap_or(path)
}
