//! What differs between two views of a table.
//!
//! Owns: the choice of what to read, and the two ends. Promises: each key whose values differ once, in key
//! order, whichever end it is taken from; after an error the iterator ends. May call: `layers`, `cursor`, base.
//!
//! Where both views lie above one base, only versions with a number between theirs can make a difference. They lie
//! in the memtables and runs of the later view, and runs that cover none of these numbers are not looked at.
//! Otherwise the trees are compared, skipping what they share, together with all that lies above them in either
//! view: these are the records written between each view's base and the view.

use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use super::layers::{is_before, is_past};
use super::range::{OwnedBounds, borrowed, narrow, owned_bounds};
use super::{Layers, MergeCursor, Snapshot, Table, is_empty};
use crate::base::BaseDiff;
use crate::error::{Error, Result};
use crate::layer::Direction;
use crate::value::Value;

/// A key whose value differs between two snapshots. Never both `None`, never both the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Change {
    /// The key.
    pub key: Value,
    /// Its value as of the first snapshot; `None` where it had none.
    pub before: Option<Value>,
    /// Its value as of the second snapshot; `None` where it had none.
    pub after: Option<Value>,
}

/// The differences between two snapshots in key order: `Result<Change>`. Lazy and double-ended; holds all that it
/// reads from, so it may outlive the snapshots and the [`Db`](crate::Db).
pub struct Diff {
    /// `None`: there is nothing (more) to read.
    views: Option<Views>,
    /// What is left, narrowed from both ends as changes are taken.
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
    front: Option<Walk>,
    back: Option<Walk>,
}

/// A table as of a number.
struct View {
    /// A pin of its own, so that the comparison counts among those who read.
    snapshot: Snapshot,
    layers: Arc<Layers>,
    seq: u64,
    /// `None`: it has no such table.
    table: Option<u32>,
}

struct Views {
    before: View,
    after: View,
}

impl Snapshot {
    /// What differs in a table between this snapshot and another, as [`Change`]s from this one (`before`) to the
    /// other (`after`). Either may be the older one, either may be of the present.
    ///
    /// The cost is proportional to the pages that differ and the records written around the two snapshots, not
    /// to the size of the table. A snapshot that does not have the table counts as having it empty. Of a table
    /// that was dropped and made again in between, the contents are compared.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let db = bygone::Db::open(directory.path().join("bank"))?;
    /// let accounts = db.table("accounts")?;
    /// db.put(&accounts, "alice", "100")?;
    /// let morning = db.snapshot();
    /// db.put(&accounts, "alice", "90")?;
    /// db.put(&accounts, "bob", "10")?;
    ///
    /// for change in morning.diff(&db.snapshot(), &accounts)? {
    ///     let change = change?;
    ///     println!("{:?}: {:?} -> {:?}", change.key, change.before, change.after);
    /// }
    /// # assert_eq!(morning.diff(&db.snapshot(), &accounts)?.count(), 2);
    /// # bygone::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// `TableNotFound` if the table was dropped as of both; `InvalidArgument` if table and snapshots are not of
    /// one database; `Corruption` or `Io`. Errors that come up on the way are items, and the last ones.
    pub fn diff(&self, other: &Snapshot, table: &Table) -> Result<Diff> {
        self.diff_range(other, table, ..)
    }

    /// What differs in a table between this snapshot and another, among the keys in a range.
    ///
    /// # Errors
    /// As [`diff`](Snapshot::diff).
    pub fn diff_range<'k>(
        &self,
        other: &Snapshot,
        table: &Table,
        range: impl RangeBounds<&'k [u8]>,
    ) -> Result<Diff> {
        let (before, after) = match (self.resolve(table), other.resolve(table)) {
            (Err(Error::TableNotFound { .. }), Err(error)) => return Err(error),
            (before, after) => (unless_dropped(before)?, unless_dropped(after)?),
        };
        let views = Views { before: View::new(self, before)?, after: View::new(other, after)? };
        Ok(Diff::new(views, owned_bounds(&range)))
    }

    /// What differs between a table as of this snapshot and another one, or the same, as of another; one that is
    /// not there is empty.
    pub(crate) fn diff_tables(
        &self,
        table: Option<u32>,
        other: &Snapshot,
        other_table: Option<u32>,
    ) -> Result<Diff> {
        let views = Views { before: View::new(self, table)?, after: View::new(other, other_table)? };
        Ok(Diff::new(views, (Bound::Unbounded, Bound::Unbounded)))
    }
}

fn unless_dropped(resolved: Result<Option<u32>>) -> Result<Option<u32>> {
    match resolved {
        Err(Error::TableNotFound { .. }) => Ok(None),
        other => other,
    }
}

impl View {
    fn new(snapshot: &Snapshot, table: Option<u32>) -> Result<View> {
        let layers = snapshot.layers()?.clone();
        Ok(View { snapshot: snapshot.clone(), layers, seq: snapshot.seq().0, table })
    }

    fn get(&self, table: u32, key: &[u8]) -> Result<Option<Value>> {
        let mut found = None;
        self.layers.get(table, key, self.seq, &mut |value| found = Some(value.into()))?;
        Ok(found)
    }

    /// A cursor over all that lies above the base.
    fn overlay(&self) -> MergeCursor {
        MergeCursor::new(self.table.map_or(Vec::new(), |table| self.layers.overlay(table, self.seq)))
    }
}

impl Views {
    /// The table, if both views have it, and lie above one base. (The same tree in two bases is not enough: what
    /// the earlier view sees above its own may have been undone again before the later one was made.)
    fn on_one_base(&self) -> Option<u32> {
        let table = self.before.table.filter(|table| self.after.table == Some(*table))?;
        let generation = |view: &View| view.layers.base.generation();
        (generation(&self.before) == generation(&self.after)).then_some(table)
    }

    fn is_same_state(&self) -> bool {
        let (before, after) = (&self.before, &self.after);
        before.table == after.table && (before.table.is_none() || before.seq == after.seq)
    }

    fn walk(&self, direction: Direction, start: Bound<&[u8]>) -> Result<Walk> {
        Ok(match self.on_one_base() {
            Some(table) => Walk::Recent(Recent::new(self, table, direction, start)?),
            None => Walk::Apart(Box::new(Apart::new(self, direction, start)?)),
        })
    }
}

impl Diff {
    fn new(views: Views, (lower, upper): OwnedBounds) -> Diff {
        let empty = views.is_same_state() || is_empty((borrowed(&lower), borrowed(&upper)));
        Diff { views: (!empty).then_some(views), lower, upper, front: None, back: None }
    }

    fn step(&mut self, direction: Direction) -> Option<Result<Change>> {
        let change = self.next_change(direction).transpose();
        if !matches!(change, Some(Ok(_))) {
            *self = Diff {
                views: None,
                lower: Bound::Unbounded,
                upper: Bound::Unbounded,
                front: None,
                back: None,
            };
        }
        change
    }

    fn next_change(&mut self, direction: Direction) -> Result<Option<Change>> {
        let Some(views) = &self.views else { return Ok(None) };
        views.before.snapshot.check_alive()?;
        views.after.snapshot.check_alive()?;
        let (walk, start, end) = match direction {
            Direction::Forward => (&mut self.front, &mut self.lower, &self.upper),
            Direction::Backward => (&mut self.back, &mut self.upper, &self.lower),
        };
        let walk = match walk {
            Some(walk) => walk,
            None => walk.insert(views.walk(direction, borrowed(start))?),
        };
        let end = borrowed(end);
        let ends_before = |key: &[u8]| match direction {
            Direction::Forward => is_past(key, end),
            Direction::Backward => is_before(key, end),
        };
        let change = match walk {
            Walk::Recent(walk) => walk.next(views, &ends_before)?,
            Walk::Apart(walk) => walk.next(views, &ends_before)?,
        };
        if let Some(change) = &change {
            narrow(start, &change.key);
        }
        Ok(change)
    }
}

impl Iterator for Diff {
    type Item = Result<Change>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step(Direction::Forward)
    }
}

impl DoubleEndedIterator for Diff {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step(Direction::Backward)
    }
}

impl std::iter::FusedIterator for Diff {}

enum Walk {
    Recent(Recent),
    Apart(Box<Apart>),
}

/// Moves a cursor to the first key of a walk.
fn start(cursor: &mut MergeCursor, direction: Direction, start: Bound<&[u8]>) -> Result<()> {
    match direction {
        Direction::Forward => cursor.seek_bound(start),
        Direction::Backward => cursor.seek_back_bound(start),
    }
}

fn step(cursor: &mut MergeCursor, direction: Direction) -> Result<()> {
    match direction {
        Direction::Forward => cursor.next(),
        Direction::Backward => cursor.prev(),
    }
}

/// The value at a cursor; `None` where the key is deleted.
fn value_at(cursor: &mut MergeCursor) -> Result<Option<Value>> {
    Ok(cursor.record()?.map(|(_, value)| value.into()))
}

/// A walk through two views that lie above one base.
struct Recent {
    direction: Direction,
    table: u32,
    /// Whether the first view is the earlier one.
    ascending: bool,
    /// What the later view sees of the commits behind the earlier one.
    written: MergeCursor,
    /// Whether the cursor has yet to leave the last key.
    taken: bool,
}

impl Recent {
    fn new(views: &Views, table: u32, direction: Direction, from: Bound<&[u8]>) -> Result<Recent> {
        let ascending = views.before.seq < views.after.seq;
        let (earlier, later) =
            if ascending { (&views.before, &views.after) } else { (&views.after, &views.before) };
        let mut written = MergeCursor::new(later.layers.overlay_since(earlier.seq, table, later.seq));
        start(&mut written, direction, from)?;
        Ok(Recent { direction, table, ascending, written, taken: false })
    }

    fn next(&mut self, views: &Views, ends_before: &dyn Fn(&[u8]) -> bool) -> Result<Option<Change>> {
        let earlier = if self.ascending { &views.before } else { &views.after };
        loop {
            if self.taken {
                step(&mut self.written, self.direction)?;
                self.taken = false;
            }
            let Some(key) = self.written.key().filter(|key| !ends_before(key)) else { return Ok(None) };
            let key = Value::from(key);
            self.taken = true;
            let (old, new) = (earlier.get(self.table, &key)?, value_at(&mut self.written)?);
            if old != new {
                let (before, after) = if self.ascending { (old, new) } else { (new, old) };
                return Ok(Some(Change { key, before, after }));
            }
        }
    }
}

/// A walk through two views that lie above different bases.
struct Apart {
    direction: Direction,
    /// What lies above the bases.
    before: MergeCursor,
    after: MergeCursor,
    bases: BaseDiff,
    /// The last key, if any, that the cursors have yet to leave.
    taken: Option<Value>,
}

impl Apart {
    fn new(views: &Views, direction: Direction, from: Bound<&[u8]>) -> Result<Apart> {
        let side = |view: &View| (view.layers.base.clone(), view.table);
        let (before, after) = (side(&views.before), side(&views.after));
        let mut walk = Apart {
            direction,
            before: views.before.overlay(),
            after: views.after.overlay(),
            bases: BaseDiff::new((&before.0, before.1), (&after.0, after.1), direction, from),
            taken: None,
        };
        start(&mut walk.before, direction, from)?;
        start(&mut walk.after, direction, from)?;
        walk.bases.advance()?;
        Ok(walk)
    }

    fn next(&mut self, views: &Views, ends_before: &dyn Fn(&[u8]) -> bool) -> Result<Option<Change>> {
        loop {
            self.leave()?;
            let Some(key) = self.next_key().filter(|key| !ends_before(key)) else { return Ok(None) };
            let key = Value::from(key);
            self.taken = Some(key.clone());
            let (before, after) = self.values(views, &key)?;
            if before != after {
                return Ok(Some(Change { key, before, after }));
            }
        }
    }

    /// Moves on whatever stands on the key that was taken.
    fn leave(&mut self) -> Result<()> {
        let Some(key) = self.taken.take() else { return Ok(()) };
        for cursor in [&mut self.before, &mut self.after] {
            if cursor.key() == Some(&key) {
                step(cursor, self.direction)?;
            }
        }
        if self.bases.key() == Some(&key) {
            self.bases.advance()?;
        }
        Ok(())
    }

    fn next_key(&self) -> Option<&[u8]> {
        let keys = [self.before.key(), self.after.key(), self.bases.key()].into_iter().flatten();
        match self.direction {
            Direction::Forward => keys.min(),
            Direction::Backward => keys.max(),
        }
    }

    /// The values of the key that is next.
    fn values(&mut self, views: &Views, key: &[u8]) -> Result<(Option<Value>, Option<Value>)> {
        let differs_below = self.bases.key() == Some(key);
        // Where the bases agree on the key, at least one view has something else above.
        let before = if self.before.key() == Some(key) {
            value_at(&mut self.before)?
        } else if differs_below {
            self.bases.before()?
        } else {
            in_base(&views.before, key)?
        };
        let after = if self.after.key() == Some(key) {
            value_at(&mut self.after)?
        } else if differs_below {
            self.bases.after()?
        } else {
            in_base(&views.after, key)?
        };
        Ok((before, after))
    }
}

fn in_base(view: &View, key: &[u8]) -> Result<Option<Value>> {
    let mut found = None;
    if let Some(table) = view.table {
        view.layers.base.get(table, key, &mut |value| found = Some(value.into()))?;
    }
    Ok(found)
}
