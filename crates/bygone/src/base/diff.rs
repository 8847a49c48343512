//! What differs between two trees.
//!
//! Owns: the walk through both at once. Promises: a page that both trees have is read by neither walk, nor is
//! anything below it, so the cost is that of the pages that differ; keys come in order; what is called
//! different differs in its bytes, except that large values on different pages may yet be equal. May call: the
//! page store.
//!
//! Trees that were made from one another by copy-on-write share the pages that no update touched, and a pointer
//! names content (slot, birth and checksum), so equal pointers are equal subtrees. Each walk stands before a
//! subtree or at a record, and knows the bound of the subtree: no key of it lies before. The one that stands
//! first goes on; a subtree is entered only when what stands in the other tree might lie within it.

use std::cmp::Ordering;
use std::ops::Bound;
use std::sync::Arc;

use crate::error::Result;
use crate::layer::Direction;
use crate::limits::PAGE_BYTES;
use crate::value::Value;

use super::inner::Inner;
use super::leaf::{Leaf, Stored};
use super::page::{self, Kind, Page};
use super::pointer::PagePointer;
use super::version::{BaseVersion, copy_leaf, unexpected_level};

/// A walk over the keys whose records differ in two trees of one page file, in one direction. After an error it
/// must not be used any more.
pub(crate) struct BaseDiff {
    before: Walk,
    after: Walk,
    at: At,
}

/// Which trees have the key that the walk is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Nowhere,
    Before,
    After,
    Both,
}

impl BaseDiff {
    /// Compares a table of one base with a table of another; a table that is not there is empty. Begins at the
    /// bound `start`: the lower one forward, the upper one backward.
    pub fn new(
        before: (&Arc<BaseVersion>, Option<u32>),
        after: (&Arc<BaseVersion>, Option<u32>),
        direction: Direction,
        start: Bound<&[u8]>,
    ) -> BaseDiff {
        BaseDiff {
            before: Walk::new(before, direction, start),
            after: Walk::new(after, direction, start),
            at: At::Nowhere,
        }
    }

    /// Moves to the next key whose records differ; `false` at the end.
    pub fn advance(&mut self) -> Result<bool> {
        self.leave();
        let (before, after) = (&mut self.before, &mut self.after);
        self.at = loop {
            match (before.head, after.head) {
                (Head::End, Head::End) => break At::Nowhere,
                (Head::Record(_), Head::End) => break At::Before,
                (Head::End, Head::Record(_)) => break At::After,
                (Head::Subtree { .. }, Head::End) => before.enter()?,
                (Head::End, Head::Subtree { .. }) => after.enter()?,
                (Head::Record(_), Head::Subtree { .. }) if before.key_lies_before(after) => break At::Before,
                (Head::Subtree { .. }, Head::Record(_)) if after.key_lies_before(before) => break At::After,
                (Head::Record(_), Head::Subtree { .. }) => after.enter()?,
                (Head::Subtree { .. }, Head::Record(_)) => before.enter()?,
                (Head::Subtree { pointer: a, .. }, Head::Subtree { pointer: b, .. }) if a == b => {
                    before.pass_subtree();
                    after.pass_subtree();
                }
                (Head::Subtree { level: a, .. }, Head::Subtree { level: b, .. }) => {
                    // Of two that begin together the higher one, in which the other may be found again.
                    let order = before.compare_bounds(after).then(b.cmp(&a));
                    if order.is_le() {
                        before.enter()?;
                    }
                    if order.is_ge() {
                        after.enter()?;
                    }
                }
                (Head::Record(a), Head::Record(b)) => {
                    match in_order(before.direction, before.key.cmp(&after.key)) {
                        Ordering::Less => break At::Before,
                        Ordering::Greater => break At::After,
                        Ordering::Equal if before.stored(a) == after.stored(b) => {
                            before.pass_record();
                            after.pass_record();
                        }
                        Ordering::Equal => break At::Both,
                    }
                }
            }
        };
        Ok(self.at != At::Nowhere)
    }

    /// Moves both walks off the key at hand.
    fn leave(&mut self) {
        if matches!(self.at, At::Before | At::Both) {
            self.before.pass_record();
        }
        if matches!(self.at, At::After | At::Both) {
            self.after.pass_record();
        }
        self.at = At::Nowhere;
    }

    /// The key that the walk is at; `None` before the first and behind the last.
    pub fn key(&self) -> Option<&[u8]> {
        match self.at {
            At::Nowhere => None,
            At::Before | At::Both => Some(&self.before.key),
            At::After => Some(&self.after.key),
        }
    }

    /// The value of the key in the first tree.
    pub fn before(&self) -> Result<Option<Value>> {
        if self.at == At::After { Ok(None) } else { self.before.value() }
    }

    /// The value of the key in the second tree.
    pub fn after(&self) -> Result<Option<Value>> {
        if self.at == At::Before { Ok(None) } else { self.after.value() }
    }
}

/// Orders as a walk goes.
fn in_order(direction: Direction, order: Ordering) -> Ordering {
    match direction {
        Direction::Forward => order,
        Direction::Backward => order.reverse(),
    }
}

#[derive(Clone, Copy)]
enum Head {
    /// Before everything in a page and below it.
    Subtree {
        pointer: PagePointer,
        level: u8,
    },
    /// At this record of the leaf.
    Record(usize),
    End,
}

/// An inner page on the way down, and the child that the walk is in or before.
struct Step {
    page: Box<Page>,
    level: u8,
    child: usize,
}

/// A walk through one tree.
struct Walk {
    base: Arc<BaseVersion>,
    direction: Direction,
    start: Bound<Vec<u8>>,
    /// From the root down.
    steps: Vec<Step>,
    leaf: Box<Page>,
    head: Head,
    /// Before a subtree, where its keys begin: none is less, or, backward, none is greater or equal. `None`
    /// where there is no such bound.
    bound: Option<Vec<u8>>,
    /// The separator in the last step's page that is the bound by now. Copied only when it is asked for: most
    /// subtrees are passed without.
    separator: Option<usize>,
    /// At a record, its key.
    key: Vec<u8>,
}

impl Walk {
    fn new(
        (base, table): (&Arc<BaseVersion>, Option<u32>),
        direction: Direction,
        start: Bound<&[u8]>,
    ) -> Walk {
        let root = table.and_then(|table| base.table(table));
        Walk {
            base: base.clone(),
            direction,
            start: start.map(<[u8]>::to_vec),
            steps: Vec::new(),
            leaf: Box::new([0; PAGE_BYTES]),
            head: root.map_or(Head::End, |root| Head::Subtree { pointer: root.root, level: root.level }),
            bound: None,
            separator: None,
            key: Vec::new(),
        }
    }

    fn bound(&mut self) -> Option<&[u8]> {
        if let (Some(separator), Some(step)) = (self.separator.take(), self.steps.last()) {
            Inner::new(&step.page).separator(separator, self.bound.get_or_insert_default());
        }
        self.bound.as_deref()
    }

    /// Whether the record at hand lies before all of the subtree that the other walk stands before.
    fn key_lies_before(&self, other: &mut Walk) -> bool {
        other.bound().is_some_and(|bound| match self.direction {
            Direction::Forward => &self.key[..] < bound,
            Direction::Backward => &self.key[..] >= bound,
        })
    }

    /// Which subtree may begin first. One without a bound may begin anywhere.
    fn compare_bounds(&mut self, other: &mut Walk) -> Ordering {
        let direction = self.direction;
        match (self.bound(), other.bound()) {
            (Some(bound), Some(other)) => in_order(direction, bound.cmp(other)),
            (bound, other) => bound.is_some().cmp(&other.is_some()),
        }
    }

    /// Goes from before a subtree to before its first part.
    fn enter(&mut self) -> Result<()> {
        let Head::Subtree { pointer, level } = self.head else { return Ok(()) };
        // The first part begins where the whole does: the separator is out of sight once there is a further step.
        self.bound();
        let store = self.base.store();
        if level == 0 {
            copy_leaf(store, &pointer, &mut self.leaf)?;
            self.enter_leaf();
            return Ok(());
        }
        let mut page = Box::new([0; PAGE_BYTES]);
        store.copy_page(&pointer, &mut page)?;
        if !page::is(&page, Kind::Inner, level) {
            return Err(unexpected_level(store, &pointer));
        }
        let inner = Inner::new(&page);
        // Behind the start this is the first child, because all separators lie behind it.
        let child = match (&self.start, self.direction) {
            (Bound::Included(key) | Bound::Excluded(key), _) => inner.child_of(key),
            (Bound::Unbounded, Direction::Forward) => 0,
            (Bound::Unbounded, Direction::Backward) => inner.children() - 1,
        };
        self.steps.push(Step { page, level, child });
        self.stand_before_child();
        Ok(())
    }

    fn enter_leaf(&mut self) {
        let leaf = Leaf::new(&self.leaf);
        let len = leaf.len();
        let found = match &self.start {
            Bound::Unbounded => None,
            Bound::Included(key) => Some((leaf.search(key), true)),
            Bound::Excluded(key) => Some((leaf.search(key), false)),
        };
        let first = match (self.direction, found) {
            (Direction::Forward, None) => Some(0),
            (Direction::Forward, Some((Ok(i), false))) => Some(i + 1),
            (Direction::Forward, Some((Ok(i) | Err(i), _))) => Some(i),
            (Direction::Backward, None) => len.checked_sub(1),
            (Direction::Backward, Some((Ok(i), true))) => Some(i),
            (Direction::Backward, Some((Ok(i) | Err(i), _))) => i.checked_sub(1),
        };
        match first.filter(|i| *i < len) {
            Some(i) => self.stand_at(i),
            None => self.pass_subtree(),
        }
    }

    /// Stands before the child that the last step names.
    fn stand_before_child(&mut self) {
        let Some(step) = self.steps.last() else { return };
        let inner = Inner::new(&step.page);
        // The outermost child begins where the page does.
        let separator = match self.direction {
            Direction::Forward => step.child.checked_sub(1),
            Direction::Backward => Some(step.child).filter(|child| child + 1 < inner.children()),
        };
        if separator.is_some() {
            self.separator = separator;
        }
        self.head = Head::Subtree { pointer: inner.child(step.child), level: step.level - 1 };
    }

    fn stand_at(&mut self, i: usize) {
        let leaf = Leaf::new(&self.leaf);
        self.key.clear();
        self.key.extend_from_slice(leaf.prefix());
        self.key.extend_from_slice(leaf.raw(i).0);
        self.head = Head::Record(i);
    }

    /// Goes behind the record at which the walk stands.
    fn pass_record(&mut self) {
        let Head::Record(i) = self.head else { return };
        let next = match self.direction {
            Direction::Forward => Some(i + 1).filter(|i| *i < Leaf::new(&self.leaf).len()),
            Direction::Backward => i.checked_sub(1),
        };
        match next {
            Some(i) => self.stand_at(i),
            None => self.pass_subtree(),
        }
    }

    /// Goes behind the subtree that the walk stands before, or behind the leaf that it is in.
    fn pass_subtree(&mut self) {
        while let Some(step) = self.steps.last_mut() {
            let next = match self.direction {
                Direction::Forward => {
                    Some(step.child + 1).filter(|child| *child < Inner::new(&step.page).children())
                }
                Direction::Backward => step.child.checked_sub(1),
            };
            if let Some(child) = next {
                step.child = child;
                return self.stand_before_child();
            }
            self.steps.pop();
        }
        self.head = Head::End;
    }

    /// A record's value as the leaf has it, and whether that refers to overflow pages. Equal references are
    /// equal values, because they name the pages with their checksums.
    fn stored(&self, i: usize) -> (&[u8], bool) {
        let (_, bytes, large) = Leaf::new(&self.leaf).raw(i);
        (bytes, large)
    }

    fn value(&self) -> Result<Option<Value>> {
        let Head::Record(i) = self.head else { return Ok(None) };
        Ok(Some(match Leaf::new(&self.leaf).record(i).1 {
            Stored::Inline(value) => value.into(),
            Stored::Large(large) => {
                let mut value = Vec::new();
                large.read(self.base.store(), &mut value)?;
                value.into()
            }
        }))
    }
}
