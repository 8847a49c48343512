//! The engine and the model side by side.
//!
//! Owns: the open database, the model, and all that is held meanwhile. Promises: every answer of the engine
//! is compared with the model's. May call: the engine.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use bygone::io::SimDisk;
use bygone::{Db, Durability, Error, Options, Range, Retention, Snapshot, SnapshotRef, Table, Transaction};

use crate::compare::{WAYS, Way, same, same_record};
use crate::model::{Declared, Handle, Meaning, Model, Pending, State};
use crate::place::{Place, open};
use crate::random::{Random, borrowed, contains};
use crate::window::Window;

/// A transaction of the engine and its image in the model.
pub struct Open {
    pub tx: Transaction,
    pub pending: Pending,
}

/// An iterator that was begun some time ago, and what it has yet to give.
struct HeldRange {
    range: Range,
    rest: VecDeque<(Vec<u8>, Arc<Vec<u8>>)>,
}

pub struct Driver {
    pub random: Random,
    pub place: Place,
    background: bool,
    /// Whether there is a history directory, and how often it was moved.
    split: bool,
    moves: u64,
    /// How many exports there were.
    pub copies: u64,
    pub db: Db,
    pub model: Model,
    pub handles: Vec<(Table, Handle)>,
    pub open: Vec<Open>,
    held: Vec<(Snapshot, State)>,
    ranges: Vec<HeldRange>,
    names: u64,
    pub window: Window,
}

const TABLE_NAMES: [&str; 4] = ["accounts", "a", "zebra", "äußerst"];

impl Driver {
    pub fn new(seed: u64, place: Place, background: bool, split: bool, window: Window) -> Driver {
        if let Place::Sim(disk) = &place {
            bygone::io::Disk::create_dir_all(disk, Path::new("/db")).unwrap();
        }
        Driver {
            random: Random::new(seed),
            db: open(&place, background, split.then_some(0), window.first_length()),
            place,
            background,
            split,
            moves: 0,
            copies: 0,
            model: Model::default(),
            handles: Vec::new(),
            open: Vec::new(),
            held: Vec::new(),
            ranges: Vec::new(),
            names: 0,
            window,
        }
    }

    /// One random operation.
    pub fn step(&mut self) {
        match self.random.below(1000) {
            0..250 => self.write_one(),
            250..500 => self.use_transaction(),
            500..560 => self.begin(),
            560..620 => self.end_transaction(),
            620..650 => self.get_now(),
            650..664 => self.compare_states(),
            664..676 => self.history_of_a_key(),
            676..680 => self.export_a_state(),
            680..698 => self.scan_now(),
            698..705 => self.how_long_a_key_stays(),
            705..765 => self.read_the_past(),
            765..775 => self.read_the_window(),
            775..800 => self.snapshot_now(),
            800..805 => self.forget(),
            805..809 => self.restore(),
            809..830 => self.hold(),
            830..870 => self.reread_held(),
            870..890 => self.hold_range(),
            890..930 => self.go_on_with_range(),
            930..941 => self.open_table(),
            941..946 => self.drop_table(),
            946..958 => self.db.flush().unwrap(),
            958..967 => self.db.merge().unwrap(),
            967..970 => self.db.archive().unwrap(),
            970..978 => self.take_old_handle(),
            978..984 => self.look_at_the_list(),
            984..989 => self.check_figures(),
            989..994 => self.check_now(),
            _ => self.reopen(),
        }
    }

    /// Everything, in full: now, each declared snapshot, each held one.
    pub fn check_all(&mut self) {
        self.check_now();
        for index in 0..self.model.declared.len() {
            self.check_declared(index);
        }
        for (snapshot, state) in &self.held {
            same(snapshot, state, *self.random.pick(&WAYS)).unwrap();
        }
        self.check_window(50);
        let report = self.db.verify().unwrap();
        assert!(report.bases > 0);
    }

    fn check_now(&mut self) {
        let way = *self.random.pick(&WAYS);
        same(&self.db.snapshot(), &self.model.now, way).unwrap();
    }

    fn check_declared(&mut self, index: usize) {
        let way = *self.random.pick(&WAYS);
        let declared = &self.model.declared[index];
        let past = self.db.as_of(declared.id).unwrap();
        if let Err(difference) = same(&past, &declared.state, way) {
            panic!("snapshot {} of {} declared: {difference}", declared.id, self.model.declared.len());
        }
    }

    /// A handle of any age; makes a table if there is none.
    pub fn any_handle(&mut self) -> usize {
        if self.handles.is_empty() {
            self.open_table();
        }
        // Mostly the youngest, which are mostly alive.
        let count = self.handles.len();
        if self.random.percent(70) {
            count - 1 - self.random.below(count.min(3))
        } else {
            self.random.below(count)
        }
    }

    fn open_table(&mut self) {
        let name = *self.random.pick(&TABLE_NAMES);
        let exists = self.model.now.tables.contains_key(name);
        match self.db.open_table(name) {
            Ok(_) => assert!(exists),
            Err(Error::TableNotFound { table }) => assert!(!exists && table == name),
            Err(other) => panic!("{other}"),
        }
        let table = self.db.table(name).unwrap();
        if !exists {
            self.model.create_table(name);
        }
        self.handles.push((table, self.model.handle(name).unwrap()));
    }

    fn drop_table(&mut self) {
        let name = *self.random.pick(&TABLE_NAMES);
        let answer = self.db.drop_table(name);
        if self.model.now.tables.contains_key(name) {
            answer.unwrap();
            self.model.drop_table(name);
        } else {
            assert!(matches!(answer, Err(Error::TableNotFound { .. })), "{answer:?}");
        }
    }

    /// A handle that a declared snapshot gives out, of a table that may be gone.
    fn take_old_handle(&mut self) {
        let Some(index) = self.old_snapshot() else { return };
        let declared = &self.model.declared[index];
        let name = *self.random.pick(&TABLE_NAMES);
        let past = self.db.as_of(declared.id).unwrap();
        match (past.table(name), self.model.handle_as_of(&declared.state, name)) {
            (Ok(table), Some(handle)) => self.handles.push((table, handle)),
            (Err(Error::TableNotFound { .. }), None) => {}
            (answer, expected) => panic!("{answer:?}, not {expected:?}"),
        }
    }

    pub fn durability(&mut self) -> Durability {
        if self.random.percent(5) { Durability::Sync } else { Durability::Buffered }
    }

    fn write_one(&mut self) {
        let index = self.any_handle();
        let (key, value) = (self.random.key(), self.random.value());
        let value = (!self.random.percent(20)).then_some(value);
        let (table, handle) = &self.handles[index];
        let answer = match &value {
            Some(value) => self.db.put(table, &key, &value[..]),
            None => self.db.delete(table, &key),
        };
        if self.model.is_gone(handle) {
            assert!(matches!(answer, Err(Error::TableNotFound { .. })), "{answer:?} through {handle:?}");
            return;
        }
        answer.unwrap();
        let writes = [(key, value)].into_iter().collect();
        self.model.commit(&[(handle.identity, (handle.name.clone(), writes))].into_iter().collect());
        assert_eq!(u64::from(self.db.snapshot().seq()), self.model.now.seq);
    }

    fn get_now(&mut self) {
        let index = self.any_handle();
        self.get(&self.db.snapshot(), &self.model.now.clone(), index);
    }

    /// One key through a snapshot, in one of the ways.
    fn get(&mut self, snapshot: &Snapshot, state: &State, handle: usize) {
        let key = self.random.key();
        let (table, handle) = &self.handles[handle];
        let answer = match self.random.below(3) {
            0 => snapshot.get(table, &key).map(|value| value.map(|value| value.to_vec())),
            1 => snapshot.get_with(table, &key, |value| value.to_vec()),
            _ => match snapshot.contains_key(table, &key) {
                Ok(false) => Ok(None),
                Ok(true) => snapshot.get(table, &key).map(|value| Some(value.unwrap().into_vec())),
                Err(error) => Err(error),
            },
        };
        match self.model.meaning(handle, state) {
            Meaning::NotFound => assert!(matches!(answer, Err(Error::TableNotFound { .. })), "{answer:?}"),
            Meaning::Nothing => assert_eq!(answer.unwrap(), None),
            Meaning::Table(expected) => {
                let found = answer.unwrap();
                let found = found.as_deref().map(|found| (&key[..], found));
                same_record(found, expected.rows.get_key_value(&key)).unwrap();
            }
        }
    }

    fn scan_now(&mut self) {
        let index = self.any_handle();
        self.scan(&self.db.snapshot(), &self.model.now.clone(), index);
    }

    /// A range through a snapshot, in part or whole.
    fn scan(&mut self, snapshot: &Snapshot, state: &State, handle: usize) {
        let Some(mut held) = self.begin_range(snapshot, state, handle) else { return };
        while held.go_on(&mut self.random) {}
    }

    fn begin_range(&mut self, snapshot: &Snapshot, state: &State, handle: usize) -> Option<HeldRange> {
        let bounds = self.random.bounds();
        let (table, handle) = &self.handles[handle];
        let answer = snapshot.range(table, borrowed(&bounds));
        let rest = match self.model.meaning(handle, state) {
            Meaning::NotFound => {
                assert!(matches!(answer, Err(Error::TableNotFound { .. })));
                return None;
            }
            Meaning::Nothing => VecDeque::new(),
            Meaning::Table(table) => table
                .rows
                .iter()
                .filter(|(key, _)| contains(&bounds, key))
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect(),
        };
        Some(HeldRange { range: answer.unwrap(), rest })
    }

    fn begin(&mut self) {
        if self.open.len() >= 5 {
            return self.end_transaction();
        }
        let serializable = self.random.percent(50);
        let tx = if serializable { self.db.begin_serializable() } else { self.db.begin() };
        let pending = Pending { view: self.model.now.clone(), serializable, ..Pending::default() };
        self.open.push(Open { tx: tx.unwrap(), pending });
    }

    fn end_transaction(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let Open { mut tx, pending } = self.open.swap_remove(self.random.below(self.open.len()));
        tx.set_durability(self.durability());
        match self.random.below(100) {
            0..15 => drop(tx),
            15..30 => self.declare(tx, &pending),
            _ if pending.writes.is_empty() => {
                // Nothing to write, so nothing to lose: also when all that was read has changed since.
                assert_eq!(u64::from(tx.commit().unwrap()), pending.view.seq);
            }
            _ => {
                let answer = tx.commit();
                if self.model.verdict(&pending, None).check(&answer) {
                    self.model.commit(&pending.writes);
                    assert_eq!(u64::from(answer.unwrap()), self.model.now.seq);
                }
            }
        }
    }

    fn snapshot_now(&mut self) {
        let tx = self.db.begin().unwrap();
        let pending = Pending { view: self.model.now.clone(), ..Pending::default() };
        self.declare(tx, &pending);
    }

    /// Commits with a snapshot: without a name, with a new one, or with one that may be taken.
    fn declare(&mut self, mut tx: Transaction, pending: &Pending) {
        let name = match self.random.below(10) {
            0..3 => None,
            3 => Some(format!("name-{}", self.random.below(self.names as usize + 1))),
            4 => Some("x".repeat(255)),
            _ => {
                self.names += 1;
                Some(format!("name-{}", self.names))
            }
        };
        let metadata = vec![7; if self.random.percent(30) { self.random.below(3000) } else { 0 }];
        tx.set_snapshot_metadata(metadata.clone());
        let before = SystemTime::now();
        let answer = tx.commit_with_snapshot(name.as_deref());
        if !self.model.verdict(pending, name.as_deref()).check(&answer) {
            return;
        }
        self.model.commit(&pending.writes);
        let id = answer.unwrap();
        self.model.declared_ever += 1;
        assert_eq!(u64::from(id), self.model.declared_ever);
        let info = self.db.snapshot_info(id).unwrap();
        // The engine's times are in microseconds.
        assert!(info.time + std::time::Duration::from_micros(1) >= before);
        let state = self.model.now.clone();
        self.model.declared.push(Declared { id, name, metadata, time: info.time, state });
        self.check_declared(self.model.declared.len() - 1);
    }

    /// Deletes declared snapshots: one, most, or all that a policy does not keep; or tries to delete one that is
    /// held.
    fn forget(&mut self) {
        let Some(index) = self.old_snapshot() else { return };
        let before: Vec<_> = self.model.declared.iter().map(|declared| declared.id).collect();
        let doomed = match self.random.below(5) {
            0 => {
                let id = before[index];
                self.db.hold_snapshot(id, "test").unwrap();
                let held = self.db.delete_snapshots(before.iter().copied());
                assert!(matches!(held, Err(Error::SnapshotHeld { snapshot, .. }) if snapshot == id));
                assert_eq!(
                    u64::from(self.db.snapshot().seq()),
                    self.model.now.seq + 1,
                    "nothing was deleted"
                );
                let policy = Retention::new().keep_last(3);
                let doomed = self.db.apply_retention(&policy).unwrap();
                self.db.release_snapshot(id, "test").unwrap();
                // Two commits, and the policy's if it deleted any.
                for _ in 0..2 + u64::from(!doomed.is_empty()) {
                    self.model.begin_commit();
                }
                let doomed: Vec<_> = doomed.iter().map(|info| info.id).collect();
                assert_eq!(doomed.len(), before.len().saturating_sub(1).saturating_sub(3));
                assert!(!doomed.contains(&id));
                doomed
            }
            1 => before.into_iter().filter(|_| self.random.percent(80)).collect(),
            2 => before[..=index].to_vec(),
            _ => vec![before[index]],
        };
        let alive = |doomed: &&bygone::SnapshotId| self.db.snapshot_info(**doomed).is_ok();
        let rest: Vec<_> = doomed.iter().filter(alive).copied().collect();
        self.db.delete_snapshots(rest.iter().copied()).unwrap();
        if !rest.is_empty() {
            self.model.begin_commit();
        }
        assert_eq!(u64::from(self.db.snapshot().seq()), self.model.now.seq);
        for id in &doomed {
            let answer = self.db.as_of(*id).map(|_| ());
            assert!(matches!(answer, Err(Error::SnapshotNotFound { deleted: Some(_), .. })), "{answer:?}");
        }
        self.model.declared.retain(|declared| !doomed.contains(&declared.id));
    }

    fn restore(&mut self) {
        let Some(index) = self.old_snapshot() else { return };
        let id = self.model.declared[index].id;
        let before = self.model.now.clone();
        let newest = self.model.declared.last().filter(|newest| newest.state.seq == before.seq);
        let declared_already = newest.map(|newest| newest.id);
        let then = self.model.declared[index].state.clone();
        let undeclared = self.undeclared().filter(|_| self.random.percent(50));
        let (restored, state) = match undeclared.map(|(seq, state)| (self.db.restore(seq), state)) {
            // It has left the window meanwhile.
            None | Some((Err(Error::OutsideWindow { .. }), _)) => (self.db.restore(id), then),
            Some(restored) => restored,
        };
        let restored = restored.unwrap();
        self.model.restore(&state);
        assert_eq!(u64::from(restored.seq), self.model.now.seq);
        let info = self.db.snapshot_info(restored.before).unwrap();
        if declared_already.is_none() {
            self.model.declared_ever += 1;
            assert_eq!(u64::from(restored.before), self.model.declared_ever);
            let (name, metadata, time) = (info.name, info.metadata, info.time);
            self.model.declared.push(Declared { id: info.id, name, metadata, time, state: before });
        } else {
            assert_eq!(declared_already, Some(restored.before));
        }
        self.check_now();
        self.check_declared(self.model.declared.len() - 1);
    }

    /// A declared snapshot, the older the likelier to be merged away.
    fn old_snapshot(&mut self) -> Option<usize> {
        let count = self.model.declared.len();
        (count > 0).then(|| self.random.below(count))
    }

    fn read_the_past(&mut self) {
        let Some(mut index) = self.old_snapshot() else { return };
        let declared = &self.model.declared[index];
        let wanted = match (&declared.name, self.random.below(3)) {
            (Some(name), 0) => SnapshotRef::from(name),
            (_, 1) => {
                let time = declared.time;
                // Several may have been declared in one microsecond: the last of them counts.
                // If that one is deleted, this one answers for the time.
                index = self.model.declared.partition_point(|other| other.time <= time) - 1;
                // A time in the window means a commit, declared or not: the list has it otherwise.
                match self.db.window() {
                    None => SnapshotRef::from(time),
                    Some(_) => self.db.snapshot_info(time).unwrap().id.into(),
                }
            }
            _ => SnapshotRef::from(declared.id),
        };
        let past = self.db.as_of(wanted).unwrap();
        let state = self.model.declared[index].state.clone();
        let handle = self.any_handle();
        match self.random.below(10) {
            0 => self.check_declared(index),
            1..4 => self.scan(&past, &state, handle),
            4 => self.hold_this(past, state),
            _ => self.get(&past, &state, handle),
        }
    }

    fn hold(&mut self) {
        self.hold_this(self.db.snapshot(), self.model.now.clone());
    }

    fn hold_this(&mut self, snapshot: Snapshot, state: State) {
        let snapshot = if self.random.percent(20) { snapshot.clone() } else { snapshot };
        if self.held.len() < 12 {
            self.held.push((snapshot, state));
        } else {
            let index = self.random.below(self.held.len());
            self.held[index] = (snapshot, state);
        }
    }

    fn reread_held(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let index = self.random.below(self.held.len());
        if self.random.percent(20) {
            let way = *self.random.pick(&WAYS);
            let (snapshot, state) = &self.held[index];
            same(snapshot, state, way).unwrap();
            return;
        }
        let (snapshot, state) = self.held[index].clone();
        let handle = self.any_handle();
        // Snapshots of an earlier session have no use for handles of this one.
        match snapshot.get(&self.handles[handle].0, b"") {
            Err(Error::InvalidArgument { .. }) => same(&snapshot, &state, Way::ForEach).unwrap(),
            _ => self.scan(&snapshot, &state, handle),
        }
    }

    fn hold_range(&mut self) {
        let handle = self.any_handle();
        let (snapshot, state) = (self.db.snapshot(), self.model.now.clone());
        if let Some(range) = self.begin_range(&snapshot, &state, handle)
            && self.ranges.len() < 8
        {
            self.ranges.push(range);
        }
    }

    fn go_on_with_range(&mut self) {
        if self.ranges.is_empty() {
            return;
        }
        let index = self.random.below(self.ranges.len());
        for _ in 0..self.random.below(20) {
            if !self.ranges[index].go_on(&mut self.random) {
                self.ranges.swap_remove(index);
                return;
            }
        }
    }

    fn look_at_the_list(&mut self) {
        let list = self.db.snapshots().unwrap();
        assert_eq!(list.len(), self.model.declared.len());
        for (info, declared) in list.iter().zip(&self.model.declared) {
            assert_eq!((info.id, &info.name), (declared.id, &declared.name));
            assert_eq!((info.time, &info.metadata), (declared.time, &declared.metadata));
            assert_eq!(u64::from(info.seq), declared.state.seq);
        }
        assert!(list.is_sorted_by_key(|info| (info.time, info.id)));
        assert!(matches!(self.db.as_of("no such name"), Err(Error::SnapshotNotFound { .. })));
        let next = bygone::SnapshotId::from(self.model.declared_ever + 1);
        assert!(matches!(self.db.as_of(next), Err(Error::SnapshotNotFound { .. })));
        let ancient = self.db.as_of(SystemTime::UNIX_EPOCH);
        match self.window.is_on() {
            false => assert!(matches!(ancient, Err(Error::SnapshotNotFound { .. }))),
            true => assert!(matches!(ancient, Err(Error::OutsideWindow { .. }))),
        }
    }

    fn check_figures(&mut self) {
        let stats = self.db.stats().unwrap();
        assert_eq!(u64::from(stats.seq), self.model.now.seq);
        assert_eq!(stats.tables, self.model.now.tables.len() as u64);
        assert_eq!(stats.snapshots, self.model.declared.len() as u64);
        assert!(self.db.tables().unwrap().iter().eq(self.model.now.tables.keys()));
        self.db.verify().unwrap();
    }

    /// Closes and opens again; on the simulated disk sometimes without closing, as after a kill.
    pub fn reopen(&mut self) {
        self.open.clear();
        self.handles.clear();
        if let Place::Sim(disk) = &mut self.place
            && self.random.percent(50)
        {
            // What is held of the old session goes on reading the old disk.
            *disk = disk.killed_image();
            let length = self.window.next_length(&mut self.random);
            self.db = open(&self.place, self.background, None, length);
        } else {
            // Held snapshots keep the database's lock.
            self.held.clear();
            self.ranges.clear();
            let closed = Options::new().open_on(Arc::new(SimDisk::new()), "/none").unwrap();
            self.db = closed;
            let moved = self.split && self.random.percent(50) && self.place.has_history(self.moves);
            if moved {
                self.place.move_history(self.moves);
                self.moves += 1;
            }
            let length = self.window.next_length(&mut self.random);
            self.db = open(&self.place, self.background, moved.then_some(self.moves), length);
        }
        self.check_all();
        self.look_at_the_list();
    }
}

impl HeldRange {
    /// Takes one record from either end; `false` at the end.
    fn go_on(&mut self, random: &mut Random) -> bool {
        let back = random.percent(40);
        let (found, expected) = if back {
            (self.range.next_back(), self.rest.pop_back())
        } else {
            (self.range.next(), self.rest.pop_front())
        };
        let found = found.transpose().unwrap();
        let found = found.as_ref().map(|(key, value)| (&key[..], &value[..]));
        same_record(found, expected.as_ref().map(|(key, value)| (key, value))).unwrap();
        if found.is_none() {
            assert!(self.range.next().is_none() && self.range.next_back().is_none());
        }
        found.is_some()
    }
}
