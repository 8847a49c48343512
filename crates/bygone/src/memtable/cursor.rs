//! Reading in key order: cursors as of a sequence number, and the stream of all versions for the flush.
//!
//! Owns: the merge of a view's vectors. Promises: what is read stays as of the cursor's sequence number while
//! writers go on; a step in a view of one vector is a plain walk. May call: `vectors`, `entry`.

use std::cmp::Ordering;

use super::entry::{NodeRef, VersionRef};
use super::vectors::View;
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

/// A cut through all vectors of a view: what is left of it in each is less than what is right of it in any.
struct Merge {
    view: Arc<View>,
    cuts: Vec<usize>,
    leader: Option<Leader>,
}

/// The vector that led when all were last compared, and the second one. As long as the leader's
/// nodes come before the second's, the others need not be looked at.
#[derive(Clone, Copy)]
struct Leader {
    direction: Direction,
    vector: usize,
    second: Option<usize>,
}

impl Merge {
    fn new(view: Arc<View>) -> Merge {
        let cuts = vec![0; view.vectors().len()];
        Merge { view, cuts, leader: None }
    }

    /// Cuts before the first key that is at least `target`.
    fn seek(&mut self, target: Key<'_>) {
        self.leader = None;
        for (cut, vector) in self.cuts.iter_mut().zip(self.view.vectors()) {
            *cut = vector.lower_bound(target);
        }
    }

    fn seek_end(&mut self) {
        self.leader = None;
        for (cut, vector) in self.cuts.iter_mut().zip(self.view.vectors()) {
            *cut = vector.len();
        }
    }

    /// The node of a vector next to the cut.
    #[inline]
    fn neighbour(&self, vector: usize, direction: Direction) -> Option<NodeRef<'_>> {
        let index = match direction {
            Direction::Forward => self.cuts[vector],
            Direction::Backward => self.cuts[vector].checked_sub(1)?,
        };
        self.view.vectors()[vector].node(index)
    }

    /// Moves the cut over the neighbour that [`Merge::closest`] named.
    #[inline]
    fn pass(&mut self, vector: usize, direction: Direction) {
        let nodes = &self.view.vectors()[vector];
        let cut = &mut self.cuts[vector];
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

    /// The vector whose neighbour is the closest to the cut in that direction.
    #[inline]
    fn closest(&mut self, direction: Direction) -> Option<usize> {
        if let Some(leader) = self.leader.filter(|leader| leader.direction == direction)
            && let Some(node) = self.neighbour(leader.vector, direction)
            && leader.second.is_none_or(|second| {
                let second = self.neighbour(second, direction);
                second.is_none_or(|second| !comes_before(second, node, direction))
            })
        {
            return Some(leader.vector);
        }
        self.compare_all(direction)
    }

    fn compare_all(&mut self, direction: Direction) -> Option<usize> {
        self.leader = None;
        let mut first: Option<(usize, NodeRef<'_>)> = None;
        let mut second: Option<(usize, NodeRef<'_>)> = None;
        for vector in 0..self.cuts.len() {
            let Some(node) = self.neighbour(vector, direction) else { continue };
            if first.is_none_or(|(_, best)| comes_before(node, best, direction)) {
                second = first.replace((vector, node));
            } else if second.is_none_or(|(_, best)| comes_before(node, best, direction)) {
                second = Some((vector, node));
            }
        }
        let (vector, second) = (first?.0, second.map(|(vector, _)| vector));
        self.leader = Some(Leader { direction, vector, second });
        Some(vector)
    }
}

#[inline]
fn comes_before(a: NodeRef<'_>, b: NodeRef<'_>, direction: Direction) -> bool {
    let order = match direction {
        Direction::Forward => Ordering::Less,
        Direction::Backward => Ordering::Greater,
    };
    a.key().cmp(&b.key()) == order
}

/// A cursor over one table as of a sequence number. Owned: it keeps what it reads alive.
pub(crate) struct MemtableCursor {
    merge: Merge,
    table: u32,
    seq: u64,
    /// The vector whose neighbour, forward of the cut, is the record at the cursor; `None` off the end.
    at: Option<usize>,
}

impl MemtableCursor {
    pub(super) fn new(view: Arc<View>, table: u32, seq: u64) -> MemtableCursor {
        MemtableCursor { merge: Merge::new(view), table, seq, at: None }
    }

    /// Lands on the first visible record forward of the cut.
    #[inline]
    fn land_forward(&mut self) {
        self.at = None;
        while let Some(vector) = self.merge.closest(Direction::Forward)
            && let Some(node) = self.merge.neighbour(vector, Direction::Forward)
            && node.key().table == self.table
        {
            if node.version_at(self.seq).is_some() {
                self.at = Some(vector);
                return;
            }
            self.merge.pass(vector, Direction::Forward);
        }
    }

    /// Lands on the last visible record backward of the cut.
    #[inline]
    fn land_backward(&mut self) {
        self.at = None;
        while let Some(vector) = self.merge.closest(Direction::Backward)
            && let Some(node) = self.merge.neighbour(vector, Direction::Backward)
            && node.key().table == self.table
        {
            let visible = node.version_at(self.seq).is_some();
            self.merge.pass(vector, Direction::Backward);
            if visible {
                self.at = Some(vector);
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
        self.merge.seek(Key { table: self.table, bytes: key });
        self.land_forward();
        Ok(())
    }

    fn seek_before(&mut self, key: Option<&[u8]>) -> Result<()> {
        match (key, self.table.checked_add(1)) {
            (Some(bytes), _) => self.merge.seek(Key { table: self.table, bytes }),
            (None, Some(table)) => self.merge.seek(Key { table, bytes: &[] }),
            (None, None) => self.merge.seek_end(),
        }
        self.land_backward();
        Ok(())
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        if let Some(vector) = self.at {
            self.merge.pass(vector, Direction::Forward);
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
    merge: Merge,
    /// The vector whose neighbour holds the version at hand, and that version's sequence number.
    at: Option<(usize, u64)>,
}

impl MemtableVersions {
    pub(super) fn new(view: Arc<View>) -> MemtableVersions {
        MemtableVersions { merge: Merge::new(view), at: None }
    }

    fn node(&self) -> Option<NodeRef<'_>> {
        self.merge.neighbour(self.at?.0, Direction::Forward)
    }
}

impl Versions for MemtableVersions {
    fn advance(&mut self) -> Result<bool> {
        if let Some((vector, seq)) = self.at {
            let older = self.node().zip(seq.checked_sub(1)).and_then(|(node, seq)| node.version_at(seq));
            if let Some(older) = older {
                self.at = Some((vector, older.seq()));
                return Ok(true);
            }
            self.merge.pass(vector, Direction::Forward);
            self.at = None;
        }
        while let Some(vector) = self.merge.closest(Direction::Forward) {
            let node = self.merge.neighbour(vector, Direction::Forward);
            if let Some(newest) = node.and_then(NodeRef::newest) {
                self.at = Some((vector, newest.seq()));
                return Ok(true);
            }
            self.merge.pass(vector, Direction::Forward);
        }
        Ok(false)
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
