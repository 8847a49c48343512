//! Random comparisons of states, histories of keys, and exports.
//!
//! Owns: what the model says of each. Promises: every change of every comparison is checked, from either end. May
//! call: the engine.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use bygone::{Change, Db, Error, Options, Result, Snapshot, Value};

use crate::compare::{WAYS, same};
use crate::driver::Driver;
use crate::model::{Meaning, Rows, State};
use crate::place::Place;
use crate::random::{Random, borrowed, contains};

/// Takes everything from both ends, in turns that the seed decides.
fn take<T>(mut items: impl DoubleEndedIterator<Item = Result<T>>, random: &mut Random) -> Vec<T> {
    let (mut front, mut back) = (Vec::new(), Vec::new());
    let chance = *random.pick(&[0, 30, 100]);
    loop {
        let from_back = random.percent(chance);
        match if from_back { items.next_back() } else { items.next() } {
            None => break,
            Some(item) if from_back => back.push(item.unwrap()),
            Some(item) => front.push(item.unwrap()),
        }
    }
    front.extend(back.into_iter().rev());
    front
}

fn value(rows: Option<&Rows>, key: &[u8]) -> Option<Value> {
    rows.and_then(|rows| rows.get(key)).map(|value| Value::from(&value[..]))
}

impl Driver {
    /// A declared state, mostly, or the present.
    fn any_state(&mut self) -> (Snapshot, State) {
        match self.model.declared.len() {
            0 => (self.db.snapshot(), self.model.now.clone()),
            _ if self.random.percent(20) => (self.db.snapshot(), self.model.now.clone()),
            count => {
                let declared = &self.model.declared[self.random.below(count)];
                (self.db.as_of(declared.id).unwrap(), declared.state.clone())
            }
        }
    }

    pub fn compare_states(&mut self) {
        let ((before, old), (after, new)) = (self.any_state(), self.any_state());
        let index = self.any_handle();
        let (table, handle) = &self.handles[index];
        let whole = self.random.percent(60);
        let bounds = self.random.bounds();
        let diff = match whole {
            true => before.diff(&after, table),
            false => before.diff_range(&after, table, borrowed(&bounds)),
        };
        let (old, new) = match (self.model.meaning(handle, &old), self.model.meaning(handle, &new)) {
            (Meaning::NotFound, Meaning::NotFound) => {
                assert!(matches!(diff, Err(Error::TableNotFound { .. })));
                return;
            }
            (old, new) => (rows(old), rows(new)),
        };
        let all = old.iter().chain(&new).flat_map(|rows| rows.keys());
        let keys: BTreeSet<&Vec<u8>> = all.filter(|key| whole || contains(&bounds, key)).collect();
        let expected: Vec<Change> = keys
            .into_iter()
            .map(|key| Change { key: Value::from(&key[..]), before: value(old, key), after: value(new, key) })
            .filter(|change| change.before != change.after)
            .collect();
        let found = take(diff.unwrap(), &mut self.random);
        assert!(found == expected, "commits {} and {}", before.seq(), after.seq());
    }

    pub fn history_of_a_key(&mut self) {
        let index = self.any_handle();
        let key = self.random.key();
        let (table, handle) = &self.handles[index];
        let mut last = None;
        let mut expected = Vec::new();
        for declared in &self.model.declared {
            let value = value(rows(self.model.meaning(handle, &declared.state)), &key);
            if value != last {
                expected.push((declared.id, value.clone()));
                last = value;
            }
        }
        let found = take(self.db.history(table, &key).unwrap(), &mut self.random);
        assert!(found == expected, "key {:?} of {handle:?}", key.escape_ascii().to_string());
    }

    /// Whatever is said to be unchanged is, as of every declared snapshot up to there; and it is said where the keys
    /// of one snapshot are asked for.
    pub fn how_long_a_key_stays(&mut self) {
        let ((from, old), (last, _)) = (self.any_state(), self.any_state());
        let index = self.any_handle();
        let (table, handle) = &self.handles[index];
        for _ in 0..8 {
            let key = self.random.key();
            let until = from.unchanged_until(&last, table, &key).unwrap();
            let Some(until) = until.map(u64::from) else { continue };
            assert!((u64::from(from.seq())..=u64::from(last.seq())).contains(&until));
            let expected = value(rows(self.model.meaning(handle, &old)), &key);
            for declared in &self.model.declared {
                if (old.seq..=until).contains(&declared.state.seq) {
                    let found = value(rows(self.model.meaning(handle, &declared.state)), &key);
                    assert!(found == expected, "key {key:?} of {handle:?}: {} to {until}", old.seq);
                }
            }
        }
    }

    /// Exports a state and compares the copy in full; a copy of a snapshot also as of that, once it is past.
    pub fn export_a_state(&mut self) {
        let (copy, directory) = match &self.place {
            Place::Real(_) => {
                let directory = tempfile::tempdir().unwrap();
                (directory.path().join("copy"), Some(directory))
            }
            Place::Sim(_) => {
                self.copies += 1;
                (PathBuf::from(format!("/copies/{}", self.copies)), None)
            }
        };
        let index = match self.model.declared.len() {
            0 => None,
            count => Some(self.random.below(count)).filter(|_| self.random.percent(70)),
        };
        let state = match index {
            Some(index) => {
                let declared = &self.model.declared[index];
                self.db.export(declared.id, &copy).unwrap();
                declared.state.clone()
            }
            None => {
                self.db.export_view(&self.db.snapshot(), &copy).unwrap();
                self.model.now.clone()
            }
        };
        let db = self.open_copy(&copy);
        same(&db.snapshot(), &state, *self.random.pick(&WAYS)).unwrap();
        let list = db.snapshots().unwrap();
        assert_eq!(list.len(), usize::from(index.is_some()));
        if let Some(index) = index {
            let declared = &self.model.declared[index];
            assert_eq!((&list[0].name, &list[0].metadata), (&declared.name, &declared.metadata));
            let table = db.table("made in the copy").unwrap();
            db.put(&table, "k", "v").unwrap();
            db.merge().unwrap();
            same(&db.as_of(&list[0]).unwrap(), &state, *self.random.pick(&WAYS)).unwrap();
        }
        db.verify().unwrap();
        drop((db, directory));
    }

    fn open_copy(&self, path: &PathBuf) -> Db {
        let options = Options::new().create(false).background(false).log_segment_bytes(64 << 10);
        match &self.place {
            Place::Real(_) => options.open(path),
            Place::Sim(disk) => options.open_on(Arc::new(disk.clone()), path),
        }
        .unwrap()
    }
}

fn rows(meaning: Meaning<'_>) -> Option<&Rows> {
    match meaning {
        Meaning::Table(table) => Some(&table.rows),
        Meaning::Nothing | Meaning::NotFound => None,
    }
}
