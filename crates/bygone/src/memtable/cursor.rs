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
    leader: Option<Leader>,
}

/// A table's part of one vector.
struct Lane {
    vector: usize,
    range: TableRange,
    cut: usize,
}

/// The lane that led when all were last compared, and the second one. As long as the leader's nodes come
/// before the second's, the others need not be looked at.
#[derive(Clone, Copy)]
struct Leader {
    direction: Direction,
    lane: usize,
    second: Option<usize>,
}

impl Merge {
    fn new(view: Arc<View>, table: u32) -> Merge {
        let mut lanes = Vec::with_capacity(view.vectors().len());
        for (vector, nodes) in view.vectors().iter().enumerate() {
            if let Some(range) = nodes.range(table) {
                lanes.push(Lane { vector, range, cut: range.start });
            }
        }
        let heads_compare =
            lanes.iter().all(|lane: &Lane| lane.range.prefix_bytes == lanes[0].range.prefix_bytes);
        let merge = Merge { view, lanes, heads_compare, leader: None };
        merge.view.arena().add_vector_bytes(merge.bytes());
        merge
    }

    fn bytes(&self) -> usize {
        size_of::<MemtableCursor>() + self.lanes.capacity() * size_of::<Lane>()
    }

    /// Cuts before the first key that is at least `target`.
    fn seek(&mut self, target: &[u8]) {
        self.leader = None;
        for lane in &mut self.lanes {
            lane.cut = self.view.vectors()[lane.vector].lower_bound(lane.range, target);
        }
    }

    fn seek_end(&mut self) {
        self.leader = None;
        for lane in &mut self.lanes {
            lane.cut = lane.range.end;
        }
    }

    /// The index of the node of a lane next to the cut.
    #[inline]
    fn neighbour_index(&self, lane: usize, direction: Direction) -> Option<usize> {
        let Lane { cut, range, .. } = &self.lanes[lane];
        match direction {
            Direction::Forward => (*cut < range.end).then_some(*cut),
            Direction::Backward => (*cut > range.start).then(|| *cut - 1),
        }
    }

    /// The node of a lane next to the cut.
    #[inline]
    fn neighbour(&self, lane: usize, direction: Direction) -> Option<NodeRef<'_>> {
        let index = self.neighbour_index(lane, direction)?;
        self.view.vectors()[self.lanes[lane].vector].node(index)
    }

    /// Moves the cut over the neighbour that [`Merge::closest`] named.
    #[inline]
    fn pass(&mut self, lane: usize, direction: Direction) {
        let Lane { vector, cut, .. } = &mut self.lanes[lane];
        let nodes = &self.view.vectors()[*vector];
        let ahead = match direction {
            Direction::Forward => {
                *cut += 1;
                nodes.node(*cut + PREFETCH_NODES)
            }
            Direction::Backward => {
                *cut -= 1;
                cut.checked_sub(PREFETCH_NODES).and_then(|index| nodes.node(index))
            }
        };
        if let Some(node) = ahead {
            node.prefetch();
        }
    }

    /// The lane whose neighbour is the closest to the cut in that direction.
    #[inline]
    fn closest(&mut self, direction: Direction) -> Option<usize> {
        if let Some(leader) = self.leader.filter(|leader| leader.direction == direction)
            && let Some(index) = self.neighbour_index(leader.lane, direction)
            && leader.second.is_none_or(|second| {
                let other = self.neighbour_index(second, direction);
                other.is_none_or(|other| !self.comes_before((second, other), (leader.lane, index), direction))
            })
        {
            return Some(leader.lane);
        }
        self.compare_all(direction)
    }

    fn compare_all(&mut self, direction: Direction) -> Option<usize> {
        self.leader = None;
        let mut first: Option<(usize, usize)> = None;
        let mut second: Option<(usize, usize)> = None;
        for lane in 0..self.lanes.len() {
            let Some(index) = self.neighbour_index(lane, direction) else { continue };
            let it = (lane, index);
            if first.is_none_or(|best| self.comes_before(it, best, direction)) {
                second = first.replace(it);
            } else if second.is_none_or(|best| self.comes_before(it, best, direction)) {
                second = Some(it);
            }
        }
        let (lane, second) = (first?.0, second.map(|(lane, _)| lane));
        self.leader = Some(Leader { direction, lane, second });
        Some(lane)
    }

    /// Compares two elements, each given by its lane and index.
    #[inline]
    fn comes_before(&self, a: (usize, usize), b: (usize, usize), direction: Direction) -> bool {
        let vector = |lane: usize| &*self.view.vectors()[self.lanes[lane].vector];
        let (in_a, in_b) = (vector(a.0), vector(b.0));
        let mut order = Ordering::Equal;
        if self.heads_compare {
            order = in_a.head(a.1).cmp(&in_b.head(b.1));
        }
        if order == Ordering::Equal {
            order =
                in_a.node(a.1).map(|node| node.key().bytes).cmp(&in_b.node(b.1).map(|node| node.key().bytes));
        }
        match direction {
            Direction::Forward => order == Ordering::Less,
            Direction::Backward => order == Ordering::Greater,
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
    /// The lane whose neighbour, forward of the cut, is the record at the cursor; `None` off the end.
    at: Option<usize>,
}

impl MemtableCursor {
    pub(super) fn new(view: Arc<View>, table: u32, seq: u64) -> MemtableCursor {
        MemtableCursor { merge: Merge::new(view, table), seq, at: None }
    }

    /// Lands on the first visible record forward of the cut.
    #[inline]
    fn land_forward(&mut self) {
        self.at = None;
        while let Some(lane) = self.merge.closest(Direction::Forward)
            && let Some(node) = self.merge.neighbour(lane, Direction::Forward)
        {
            if node.version_at(self.seq).is_some() {
                self.at = Some(lane);
                return;
            }
            self.merge.pass(lane, Direction::Forward);
        }
    }

    /// Lands on the last visible record backward of the cut.
    #[inline]
    fn land_backward(&mut self) {
        self.at = None;
        while let Some(lane) = self.merge.closest(Direction::Backward)
            && let Some(node) = self.merge.neighbour(lane, Direction::Backward)
        {
            let visible = node.version_at(self.seq).is_some();
            self.merge.pass(lane, Direction::Backward);
            if visible {
                self.at = Some(lane);
                return;
            }
        }
    }

    #[inline]
    fn node(&self) -> Option<NodeRef<'_>> {
        self.merge.neighbour(self.at?, Direction::Forward)
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
        self.land_forward();
        Ok(())
    }

    fn seek_before(&mut self, key: Option<&[u8]>) -> Result<()> {
        match key {
            Some(key) => self.merge.seek(key),
            None => self.merge.seek_end(),
        }
        self.land_backward();
        Ok(())
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        if let Some(lane) = self.at {
            self.merge.pass(lane, Direction::Forward);
            self.land_forward();
        }
        Ok(())
    }

    #[inline]
    fn prev(&mut self) -> Result<()> {
        if self.at.is_some() {
            self.land_backward();
        }
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
    /// The lane whose neighbour holds the version at hand, and that version's sequence number.
    at: Option<(usize, u64)>,
}

impl MemtableVersions {
    pub(super) fn new(view: Arc<View>) -> MemtableVersions {
        MemtableVersions { merge: Merge::new(view, 0), table: 0, at: None }
    }

    fn node(&self) -> Option<NodeRef<'_>> {
        self.merge.neighbour(self.at?.0, Direction::Forward)
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
        if let Some((lane, seq)) = self.at {
            let older = self.node().zip(seq.checked_sub(1)).and_then(|(node, seq)| node.version_at(seq));
            if let Some(older) = older {
                self.at = Some((lane, older.seq()));
                return Ok(true);
            }
            self.merge.pass(lane, Direction::Forward);
            self.at = None;
        }
        loop {
            while let Some(lane) = self.merge.closest(Direction::Forward) {
                let node = self.merge.neighbour(lane, Direction::Forward);
                if let Some(newest) = node.and_then(NodeRef::newest) {
                    self.at = Some((lane, newest.seq()));
                    return Ok(true);
                }
                self.merge.pass(lane, Direction::Forward);
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
        self.at.map_or(0, |(_, seq)| seq)
    }

    fn loaded(&self) -> Result<Option<&[u8]>> {
        let Some((_, seq)) = self.at else { return Ok(None) };
        Ok(self.node().and_then(|node| node.version_at(seq)).and_then(VersionRef::value))
    }
}
