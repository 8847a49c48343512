//! The plain model: what a database that keeps everything in memory, for ever, would answer.
//!
//! Owns: every declared state, the log of all writes, and the rules of handles and conflicts. Promises:
//! nothing here is clever; where the engine may decide either way (see [`Verdict::possible`]) the model says
//! so. May call: nothing of the engine but its public types.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::SystemTime;

use bygone::{Error, Result, SnapshotId};

use crate::random::{Bounds, contains};

pub type Rows = BTreeMap<Vec<u8>, Arc<Vec<u8>>>;

/// Writes by table: `None` is a deletion.
pub type Writes = BTreeMap<u64, (String, BTreeMap<Vec<u8>, Option<Arc<Vec<u8>>>>)>;

#[derive(Clone)]
pub struct TableState {
    /// Tells tables of one name apart.
    pub incarnation: u64,
    /// What writes and restoring go by: a table that was dropped and is restored is a new incarnation of the old
    /// one.
    pub identity: u64,
    pub rows: Rows,
}

/// All the tables as of one commit. Cloning it copies nothing.
#[derive(Clone, Default)]
pub struct State {
    pub seq: u64,
    pub tables: BTreeMap<String, Arc<TableState>>,
}

/// What the model knows of a handle of a table.
#[derive(Clone, Debug)]
pub struct Handle {
    pub name: String,
    pub incarnation: u64,
    pub identity: u64,
    /// Of a handle that a snapshot gave out when the table was gone already: the snapshot's number. Else
    /// `u64::MAX`.
    pub known_until: u64,
}

/// What a handle means as of a state.
pub enum Meaning<'s> {
    Table(&'s TableState),
    /// There is no such table yet.
    Nothing,
    NotFound,
}

pub struct Declared {
    pub id: SnapshotId,
    pub name: Option<String>,
    pub metadata: Vec<u8>,
    pub time: SystemTime,
    pub state: State,
}

/// A range that a serializable transaction has read, as far as it got.
pub struct RangeRead {
    pub identity: u64,
    pub bounds: Bounds,
    pub front: Option<Vec<u8>>,
    pub back: Option<Vec<u8>>,
    pub exhausted: bool,
}

impl RangeRead {
    fn covers(&self, identity: u64, key: &[u8]) -> bool {
        let reached = self.exhausted
            || self.front.as_deref().is_some_and(|front| key <= front)
            || self.back.as_deref().is_some_and(|back| key >= back);
        identity == self.identity && contains(&self.bounds, key) && reached
    }
}

/// A transaction as the model sees it.
#[derive(Default)]
pub struct Pending {
    pub view: State,
    pub serializable: bool,
    pub writes: Writes,
    /// The tables written to.
    pub handles: Vec<Handle>,
    /// Keys (with their tables' numbers and names) and ranges that were read; left empty under snapshot
    /// isolation.
    pub keys: Vec<(u64, String, Vec<u8>)>,
    pub ranges: Vec<(String, RangeRead)>,
}

/// What a commit may answer.
#[derive(Debug, Default)]
pub struct Verdict {
    /// Tables that are gone: the answer is `TableNotFound` for one of them.
    gone: Vec<String>,
    /// Changed since: the answer is `Conflict`, over one of these or of `possible`.
    certain: Vec<(String, Vec<u8>)>,
    /// Written since, but with the value that was there: a conflict as long as the engine remembers the
    /// write.
    possible: Vec<(String, Vec<u8>)>,
    name_taken: Option<SnapshotId>,
}

impl Verdict {
    /// Panics unless the answer is right; answers whether it was a success.
    pub fn check<T: std::fmt::Debug>(&self, answer: &Result<T>) -> bool {
        let right = match answer {
            Err(Error::TableNotFound { table }) => self.gone.contains(table),
            _ if !self.gone.is_empty() => false,
            Err(Error::Conflict { table, key }) => {
                let mut all = self.certain.iter().chain(&self.possible);
                all.any(|(other, other_key)| (other, other_key) == (table, key))
            }
            _ if !self.certain.is_empty() => false,
            Err(Error::NameTaken { snapshot, .. }) => self.name_taken == Some(*snapshot),
            Ok(_) => self.name_taken.is_none(),
            Err(_) => false,
        };
        assert!(right, "a commit answered {answer:?}; the model says {self:?}");
        answer.is_ok()
    }
}

#[derive(Default)]
pub struct Model {
    pub now: State,
    /// Every state before that, by its number.
    pub states: Vec<State>,
    /// Those that live, by id.
    pub declared: Vec<Declared>,
    pub declared_ever: u64,
    /// The keys that commit number index + 1 wrote.
    commits: Vec<Vec<(u64, Vec<u8>)>>,
    last_writes: HashMap<(u64, Vec<u8>), u64>,
    /// The commits that dropped tables, by incarnation, and the last that did by identity.
    dropped: HashMap<u64, u64>,
    last_dropped: HashMap<u64, u64>,
    incarnations: u64,
    /// The last commit that restored a state: transactions that began before it lose.
    restored: u64,
}

impl Model {
    pub fn handle(&self, name: &str) -> Option<Handle> {
        let table = self.now.tables.get(name)?;
        let name = name.to_owned();
        let TableState { incarnation, identity, .. } = **table;
        Some(Handle { name, incarnation, identity, known_until: u64::MAX })
    }

    /// The handle that a snapshot with this state gives out.
    pub fn handle_as_of(&self, state: &State, name: &str) -> Option<Handle> {
        let table = state.tables.get(name)?;
        let lives = self.now.tables.get(name).is_some_and(|now| now.incarnation == table.incarnation);
        Some(Handle {
            name: name.to_owned(),
            incarnation: table.incarnation,
            identity: table.identity,
            known_until: if lives { u64::MAX } else { state.seq },
        })
    }

    pub fn meaning<'s>(&self, handle: &Handle, state: &'s State) -> Meaning<'s> {
        if self.is_dropped(handle, state.seq) {
            return Meaning::NotFound;
        }
        match state.tables.get(&handle.name) {
            Some(table) => Meaning::Table(table),
            None if state.seq > handle.known_until => Meaning::NotFound,
            None => Meaning::Nothing,
        }
    }

    /// Whether a living handle's table was dropped by commit `seq` or before.
    pub fn is_dropped(&self, handle: &Handle, seq: u64) -> bool {
        let dropped = self.dropped.get(&handle.incarnation);
        handle.known_until == u64::MAX && dropped.is_some_and(|dropped| *dropped <= seq)
    }

    /// Whether nobody can write through the handle any more.
    pub fn is_gone(&self, handle: &Handle) -> bool {
        self.dropped.contains_key(&handle.incarnation)
    }

    pub fn create_table(&mut self, name: &str) {
        self.incarnations += 1;
        self.begin_commit();
        let (incarnation, identity) = (self.incarnations, self.incarnations);
        let table = TableState { incarnation, identity, rows: Rows::new() };
        self.now.tables.insert(name.to_owned(), Arc::new(table));
    }

    pub fn drop_table(&mut self, name: &str) {
        let seq = self.begin_commit();
        let table = self.now.tables.remove(name).expect("the test drops tables that exist");
        self.dropped.insert(table.incarnation, seq);
        self.last_dropped.insert(table.identity, seq);
    }

    /// A commit that changes no record.
    pub fn begin_commit(&mut self) -> u64 {
        self.keep_state();
        self.commits.push(Vec::new());
        self.now.seq += 1;
        self.now.seq
    }

    /// Once for each state, before it changes.
    fn keep_state(&mut self) {
        if self.states.len() as u64 == self.now.seq {
            self.states.push(self.now.clone());
        }
    }

    /// The state behind a commit.
    pub fn state(&self, seq: u64) -> &State {
        self.states.get(seq as usize).unwrap_or(&self.now)
    }

    pub fn commit(&mut self, writes: &Writes) {
        let seq = self.begin_commit();
        for (identity, (name, writes)) in writes {
            let table = self.now.tables.get_mut(name).filter(|table| table.identity == *identity);
            let table = Arc::make_mut(table.expect("a commit into a table that is gone is refused"));
            for (key, value) in writes {
                match value {
                    Some(value) => table.rows.insert(key.clone(), value.clone()),
                    None => table.rows.remove(key),
                };
                self.commits[seq as usize - 1].push((*identity, key.clone()));
                self.last_writes.insert((*identity, key.clone()), seq);
            }
        }
    }

    /// The present becomes an earlier state.
    pub fn restore(&mut self, to: &State) {
        self.keep_state();
        let then = to.tables.clone();
        let now = std::mem::take(&mut self.now.tables);
        let seq = self.begin_commit();
        self.restored = seq;
        for (name, table) in &now {
            if then.get(name).is_none_or(|then| then.identity != table.identity) {
                self.dropped.insert(table.incarnation, seq);
                self.last_dropped.insert(table.identity, seq);
            }
        }
        for (name, table) in then {
            let same = now.get(&name).filter(|now| now.identity == table.identity);
            let incarnation = same.map(|table| table.incarnation).unwrap_or_else(|| {
                self.incarnations += 1;
                self.incarnations
            });
            self.now.tables.insert(name, Arc::new(TableState { incarnation, ..(*table).clone() }));
        }
    }

    pub fn named(&self, name: &str) -> Option<SnapshotId> {
        self.declared.iter().find(|declared| declared.name.as_deref() == Some(name)).map(|found| found.id)
    }

    /// What a commit of this transaction may answer now, declaring a snapshot of this name.
    pub fn verdict(&self, pending: &Pending, name: Option<&str>) -> Verdict {
        let mut verdict = Verdict::default();
        for handle in &pending.handles {
            if self.is_gone(handle) {
                verdict.gone.push(handle.name.clone());
            }
        }
        let overtaken = pending.view.seq < self.restored;
        let dropped_since =
            |identity: u64| self.last_dropped.get(&identity).is_some_and(|seq| *seq > pending.view.seq);
        for (identity, (name, writes)) in &pending.writes {
            for key in writes.keys() {
                if overtaken {
                    verdict.certain.push((name.clone(), key.clone()));
                }
                self.judge_key(&mut verdict, &pending.view, *identity, name, key);
            }
        }
        if overtaken {
            verdict.certain.extend(pending.keys.iter().map(|(_, name, key)| (name.clone(), key.clone())));
            verdict.certain.extend(pending.ranges.iter().map(|(name, _)| (name.clone(), Vec::new())));
        }
        for (identity, name, key) in &pending.keys {
            self.judge_key(&mut verdict, &pending.view, *identity, name, key);
            if dropped_since(*identity) {
                verdict.certain.push((name.clone(), key.clone()));
            }
        }
        for (name, range) in &pending.ranges {
            if dropped_since(range.identity) {
                verdict.certain.push((name.clone(), Vec::new()));
            }
        }
        for written in &self.commits[pending.view.seq as usize..] {
            for (identity, key) in written {
                let mut ranges = pending.ranges.iter();
                if let Some((name, _)) = ranges.find(|(_, range)| range.covers(*identity, key)) {
                    verdict.certain.push((name.clone(), key.clone()));
                }
            }
        }
        verdict.name_taken = name.and_then(|name| self.named(name));
        verdict
    }

    fn judge_key(&self, verdict: &mut Verdict, view: &State, identity: u64, name: &str, key: &[u8]) {
        let written = self.last_writes.get(&(identity, key.to_vec()));
        if written.is_none_or(|seq| *seq <= view.seq) {
            return;
        }
        let value_in = |state: &State| {
            let table = state.tables.get(name).filter(|table| table.identity == identity);
            table.and_then(|table| table.rows.get(key).cloned())
        };
        let conflict = (name.to_owned(), key.to_vec());
        if value_in(view) == value_in(&self.now) {
            verdict.possible.push(conflict);
        } else {
            verdict.certain.push(conflict);
        }
    }
}
