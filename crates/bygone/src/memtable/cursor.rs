//! Reading in key order: cursors as of a sequence number, and the stream of all versions for the flush.
//!
//! Owns: the merge of a view's vectors. Promises: what is read stays as of the cursor's sequence number while
//! writers go on; a step in a view of one vector is a plain walk. May call: `vectors`, `entry`.

use std::cmp::Ordering;

use super::entry::{NodeRef, VersionRef};
use super::vectors::{TableRange, View};
use crate::error::Result;
use crate::layer::{Key, LayerCursor, VersionCursor, Versions};
use crate::sync::Arc;

/// How many nodes ahead of the cursor are asked for: memory answers many requests at once.
const PREFETCH_NODES: usize = 8;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Forward,
    Backward,
}

/// A cut through a table in all vectors of a view: what is left of it in each is less than what is right of it
/// in any.
struct Merge {
    view: Arc<View>,
    lanes: Vec<Lane>,
    /// Whether the heads of all lanes can be compared with each other.
    heads_compare: bool,
    /// The direction for which the lanes that have a neighbour are in front, in the order of their
    /// neighbours.
    sorted: Option<Direction>,
    /// How many lanes are in front.
    front: usize,
}

/// A table's part of one vector.
struct Lane {
    vector: usize,
    range: TableRange,
    cut: usize,
    /// The neighbour's head, while the lanes are sorted.
    head: u64,
}

impl Merge {
    fn new(view: Arc<View>, table: u32) -> Merge {
        let mut lanes = Vec::with_capacity(view.vectors().len());
        for (vector, nodes) in view.vectors().iter().enumerate() {
            if let Some(range) = nodes.range(table) {
                lanes.push(Lane { vector, range, cut: range.start, head: 0 });
            }
        }
        let heads_compare =
            lanes.iter().all(|lane: &Lane| lane.range.prefix_bytes == lanes[0].range.prefix_bytes);
        let merge = Merge { view, lanes, heads_compare, sorted: None, front: 0 };
        merge.view.arena().add_vector_bytes(merge.bytes());
        merge
    }

    fn bytes(&self) -> usize {
        size_of::<MemtableCursor>() + self.lanes.capacity() * size_of::<Lane>()
    }

    /// Cuts before the first key that is at least `target`.
    fn seek(&mut self, target: &[u8]) {
        self.sorted = None;
        for lane in &mut self.lanes {
            lane.cut = self.view.vectors()[lane.vector].lower_bound(lane.range, target);
        }
    }

    fn seek_end(&mut self) {
        self.sorted = None;
        for lane in &mut self.lanes {
            lane.cut = lane.range.end;
        }
    }

    /// The node of the first lane next to the cut.
    #[inline]
    fn neighbour(&self, direction: Direction) -> Option<NodeRef<'_>> {
        let lane = self.lanes.first()?;
        self.view.vectors()[lane.vector].node(lane.neighbour(direction)?)
    }

    /// Brings the lane to the front whose neighbour is the closest to the cut in that direction; answers that
    /// neighbour.
    #[inline]
    fn closest(&mut self, direction: Direction) -> Option<NodeRef<'_>> {
        if self.sorted != Some(direction) {
            self.sort(direction);
        }
        if self.front == 0 { None } else { self.neighbour(direction) }
    }

    /// Moves the cut over the neighbour of the first lane.
    #[inline]
    fn pass(&mut self, direction: Direction) {
        let Some(lane) = self.lanes.first_mut() else { return };
        let nodes = &self.view.vectors()[lane.vector];
        let ahead = match direction {
            Direction::Forward => {
                lane.cut += 1;
                nodes.node(lane.cut + PREFETCH_NODES)
            }
            Direction::Backward => {
                lane.cut -= 1;
                lane.cut.checked_sub(PREFETCH_NODES).and_then(|index| nodes.node(index))
            }
        };
        if let Some(node) = ahead {
            node.prefetch();
        }
        if self.sorted != Some(direction) {
            self.sorted = None;
            return;
        }
        match lane.neighbour(direction) {
            Some(index) => lane.head = nodes.head(index),
            None => {
                // Off the front, behind all that stay there.
                self.lanes[..self.front].rotate_left(1);
                self.front -= 1;
                return;
            }
        }
        // Long vectors lead often and fall back little: this takes one comparison or two.
        let mut at = 0;
        while at + 1 < self.front && self.comes_before(at + 1, at, direction) {
            self.lanes.swap(at, at + 1);
            at += 1;
        }
    }

    fn sort(&mut self, direction: Direction) {
        self.front = 0;
        for lane in 0..self.lanes.len() {
            let Some(index) = self.lanes[lane].neighbour(direction) else { continue };
            self.lanes[lane].head = self.view.vectors()[self.lanes[lane].vector].head(index);
            let mut at = self.front;
            self.lanes.swap(lane, at);
            self.front += 1;
            while at > 0 && self.comes_before(at, at - 1, direction) {
                self.lanes.swap(at - 1, at);
                at -= 1;
            }
        }
        self.sorted = Some(direction);
    }

    /// Compares the neighbours of two lanes.
    #[inline]
    fn comes_before(&self, a: usize, b: usize, direction: Direction) -> bool {
        let (a, b) = (&self.lanes[a], &self.lanes[b]);
        let order = if self.heads_compare { a.head.cmp(&b.head) } else { Ordering::Equal };
        let order = order.then_with(|| self.key(a, direction).cmp(&self.key(b, direction)));
        match direction {
            Direction::Forward => order == Ordering::Less,
            Direction::Backward => order == Ordering::Greater,
        }
    }

    fn key(&self, lane: &Lane, direction: Direction) -> Option<&[u8]> {
        Some(self.view.vectors()[lane.vector].node(lane.neighbour(direction)?)?.key().bytes)
    }
}

impl Lane {
    /// The index of the element next to the cut.
    #[inline]
    fn neighbour(&self, direction: Direction) -> Option<usize> {
        match direction {
            Direction::Forward => (self.cut < self.range.end).then_some(self.cut),
            Direction::Backward => (self.cut > self.range.start).then(|| self.cut - 1),
        }
    }
}

impl Drop for Merge {
    fn drop(&mut self) {
        self.view.arena().subtract_vector_bytes(self.bytes());
    }
}

/// A cursor over one table as of a sequence number. Owned: it keeps what it reads alive.
pub(crate) struct MemtableCursor {
    merge: Merge,
    seq: u64,
    /// The record at the cursor is the first lane's neighbour in this direction; `None` off the end.
    at: Option<Direction>,
}

impl MemtableCursor {
    pub(super) fn new(view: Arc<View>, table: u32, seq: u64) -> MemtableCursor {
        MemtableCursor { merge: Merge::new(view, table), seq, at: None }
    }

    /// Lands on the visible record closest to the cut in that direction.
    #[inline]
    fn land(&mut self, direction: Direction) {
        self.at = None;
        while let Some(node) = self.merge.closest(direction) {
            if node.version_at(self.seq).is_some() {
                self.at = Some(direction);
                return;
            }
            self.merge.pass(direction);
        }
    }

    #[inline]
    fn step(&mut self, direction: Direction) {
        match self.at {
            None => return,
            Some(at) if at == direction => self.merge.pass(direction),
            // The cut is behind the record already, in this direction.
            Some(_) => {}
        }
        self.land(direction);
    }

    #[inline]
    fn node(&self) -> Option<NodeRef<'_>> {
        self.merge.neighbour(self.at?)
    }

    /// Looked up anew each time: what a node holds as of a published sequence number does not change.
    #[inline]
    fn version(&self) -> Option<VersionRef<'_>> {
        self.node()?.version_at(self.seq)
    }
}

impl LayerCursor for MemtableCursor {
    fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.merge.seek(key);
        self.land(Direction::Forward);
        Ok(())
    }

    fn seek_before(&mut self, key: Option<&[u8]>) -> Result<()> {
        match key {
            Some(key) => self.merge.seek(key),
            None => self.merge.seek_end(),
        }
        self.land(Direction::Backward);
        Ok(())
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        self.step(Direction::Forward);
        Ok(())
    }

    #[inline]
    fn prev(&mut self) -> Result<()> {
        self.step(Direction::Backward);
        Ok(())
    }

    #[inline]
    fn key(&self) -> Option<&[u8]> {
        Some(self.node()?.key().bytes)
    }

    #[inline]
    fn loaded(&self) -> Result<Option<&[u8]>> {
        Ok(self.version().and_then(VersionRef::value))
    }

    #[inline]
    fn is_deletion(&self) -> bool {
        self.version().is_some_and(VersionRef::is_deletion)
    }
}

impl VersionCursor for MemtableCursor {
    fn seq(&self) -> Result<u64> {
        Ok(self.version().map_or(0, VersionRef::seq))
    }
}

/// All versions of all keys. See [`super::Memtable::versions`].
pub(crate) struct MemtableVersions {
    /// Over the table at hand.
    merge: Merge,
    table: u32,
    /// The sequence number of the version at hand, which the first lane's neighbour has.
    at: Option<u64>,
}

impl MemtableVersions {
    pub(super) fn new(view: Arc<View>) -> MemtableVersions {
        MemtableVersions { merge: Merge::new(view, 0), table: 0, at: None }
    }

    fn node(&self) -> Option<NodeRef<'_>> {
        self.at?;
        self.merge.neighbour(Direction::Forward)
    }

    /// Goes on to the next table that has nodes; `false` if there is none.
    fn next_table(&mut self) -> bool {
        let vectors = self.merge.view.vectors().iter();
        let next = self.table.checked_add(1);
        let Some(table) = next.and_then(|next| vectors.filter_map(|vector| vector.table_from(next)).min())
        else {
            return false;
        };
        (self.merge, self.table) = (Merge::new(self.merge.view.clone(), table), table);
        true
    }
}

impl Versions for MemtableVersions {
    fn advance(&mut self) -> Result<bool> {
        if let Some(seq) = self.at {
            let older = self.node().zip(seq.checked_sub(1)).and_then(|(node, seq)| node.version_at(seq));
            self.at = older.map(VersionRef::seq);
            if self.at.is_some() {
                return Ok(true);
            }
            self.merge.pass(Direction::Forward);
        }
        loop {
            while let Some(node) = self.merge.closest(Direction::Forward) {
                self.at = node.newest().map(VersionRef::seq);
                if self.at.is_some() {
                    return Ok(true);
                }
                self.merge.pass(Direction::Forward);
            }
            if !self.next_table() {
                return Ok(false);
            }
        }
    }

    fn key(&self) -> Key<'_> {
        self.node().map(NodeRef::key).unwrap_or(Key { table: 0, bytes: &[] })
    }

    fn seq(&self) -> u64 {
        self.at.unwrap_or(0)
    }

    fn loaded(&self) -> Result<Option<&[u8]>> {
        let Some(seq) = self.at else { return Ok(None) };
        Ok(self.node().and_then(|node| node.version_at(seq)).and_then(VersionRef::value))
    }
}
