//! Sorted vectors: the order of the nodes, made when a reader first needs it.
//!
//! Owns: sorting, merging, searching. Promises: a vector never changes; a view has O(log n) vectors however
//! reads and writes alternate; a vector keeps the arena of its nodes alive, and its bytes are counted there
//! until it is dropped. May call: `arena`, `entry`.
//!
//! Here a key counts as one string of bytes: its table's id, big-endian, then the application's bytes. A
//! vector knows the prefix that all its keys share, and keeps the eight bytes after it beside each node, so
//! that nearly all comparisons touch no node.

use std::cmp::Ordering;

use super::arena::Arena;
use super::entry::NodeRef;
use crate::layer::Key;
use crate::sync::Arc;

const TABLE_BYTES: usize = 4;
const HEAD_BYTES: usize = 8;
/// Groups of equal heads up to this size are sorted by their keys, larger ones by further heads.
const SMALL_GROUP: usize = 16;
/// Each vector of a view is at least this many times as long as the next.
const GROWTH: usize = 2;

/// The vectors that together hold all nodes in order, longest first.
#[derive(Clone)]
pub(super) struct View {
    vectors: Vec<Arc<Vector>>,
}

pub(super) struct Vector {
    /// Bytes that all keys begin with.
    prefix: Box<[u8]>,
    /// Not really `'static`: the nodes live as long as `arena`. Never given out but for the life of a
    /// borrow.
    elements: Vec<Element<'static>>,
    arena: Arc<Arena>,
}

/// A node in a vector, with the part of its key that decides most comparisons: the bytes after the prefix,
/// filled up with zeros.
#[derive(Clone, Copy)]
struct Element<'m> {
    head: u64,
    node: NodeRef<'m>,
}

impl View {
    pub fn empty() -> View {
        View { vectors: Vec::new() }
    }

    pub fn vectors(&self) -> &[Arc<Vector>] {
        &self.vectors
    }

    /// This view with one vector more, and small neighbours merged.
    pub fn with(&self, mut added: Vector) -> View {
        let mut vectors = self.vectors.clone();
        while let Some(last) = vectors.pop_if(|last| last.len() < GROWTH * added.len()) {
            added = Vector::merge(&last, &added);
        }
        vectors.push(Arc::new(added));
        View { vectors }
    }
}

impl Vector {
    /// Sorts nodes of the arena; `None` if there are none.
    pub fn sort<'m>(arena: &'m Arc<Arena>, nodes: impl Iterator<Item = NodeRef<'m>>) -> Option<Vector> {
        let mut elements: Vec<_> = nodes.map(|node| Element { head: 0, node }).collect();
        let first = elements.first()?.node.key();
        let shared_bytes = elements.iter().fold(usize::MAX, |shared, element| {
            let key = element.node.key();
            if key.table == first.table {
                shared.min(TABLE_BYTES + shared_length(key.bytes, first.bytes))
            } else {
                shared.min(shared_length(&key.table.to_be_bytes(), &first.table.to_be_bytes()))
            }
        });
        let prefix =
            first.table.to_be_bytes().iter().chain(first.bytes).take(shared_bytes).copied().collect();
        sort_from(&mut elements, shared_bytes);
        // SAFETY: `arena` goes into the same vector, which gives nodes out only for the life of a borrow.
        let extend = |element: Element<'m>| unsafe {
            Element { head: element.head, node: element.node.assume_static() }
        };
        Some(Vector::new(prefix, elements.into_iter().map(extend).collect(), arena))
    }

    /// One vector of two of the same arena.
    fn merge(a: &Vector, b: &Vector) -> Vector {
        let shared_bytes = shared_length(&a.prefix, &b.prefix);
        let mut elements = Vec::with_capacity(a.len() + b.len());
        let mut from_a = a.elements_after(shared_bytes).peekable();
        let mut from_b = b.elements_after(shared_bytes).peekable();
        while let (Some(x), Some(y)) = (from_a.peek(), from_b.peek()) {
            let next = if x.compare(y).is_le() { from_a.next() } else { from_b.next() };
            elements.extend(next);
        }
        elements.extend(from_a);
        elements.extend(from_b);
        Vector::new(a.prefix[..shared_bytes].into(), elements, &a.arena)
    }

    fn new(prefix: Box<[u8]>, mut elements: Vec<Element<'static>>, arena: &Arc<Arena>) -> Vector {
        elements.shrink_to_fit();
        let vector = Vector { prefix, elements, arena: arena.clone() };
        arena.add_bytes(vector.bytes());
        vector
    }

    fn bytes(&self) -> usize {
        size_of::<Vector>() + self.prefix.len() + self.elements.capacity() * size_of::<Element<'_>>()
    }

    pub fn len(&self) -> usize {
        self.elements.len()
    }

    #[inline]
    pub fn node(&self, index: usize) -> Option<NodeRef<'_>> {
        self.elements.get(index).map(|element| element.node)
    }

    /// How many keys are less than `target`.
    pub fn lower_bound(&self, target: Key<'_>) -> usize {
        match self.compare_prefix(target) {
            Ordering::Less => return 0,
            Ordering::Greater => return self.len(),
            Ordering::Equal => {}
        }
        let head = head(target, self.prefix.len());
        let start = self.elements.partition_point(|element| element.head < head);
        let rest = &self.elements[start..];
        // Most often no other key has this head.
        let equal = match rest.iter().take(SMALL_GROUP).take_while(|element| element.head == head).count() {
            SMALL_GROUP => rest.partition_point(|element| element.head == head),
            few => few,
        };
        start + rest[..equal].partition_point(|element| element.node.key() < target)
    }

    /// How `target` compares with all keys, as far as the prefix decides it.
    fn compare_prefix(&self, target: Key<'_>) -> Ordering {
        let table = target.table.to_be_bytes();
        let (in_table, in_key) = self.prefix.split_at(self.prefix.len().min(TABLE_BYTES));
        let begin = &target.bytes[..target.bytes.len().min(in_key.len())];
        // A target that ends within the prefix is less than what goes on.
        table[..in_table.len()].cmp(in_table).then_with(|| begin.cmp(in_key))
    }

    /// The elements as they would be in a vector whose prefix is cut to `prefix_bytes`.
    fn elements_after(&self, prefix_bytes: usize) -> impl Iterator<Item = Element<'static>> {
        let uncovered = &self.prefix[prefix_bytes..];
        let begin = head_of(uncovered);
        let shift = 8 * uncovered.len() as u32;
        self.elements.iter().map(move |element| Element {
            // Where eight bytes or more are uncovered, they are the whole head.
            head: begin | element.head.checked_shr(shift).unwrap_or(0),
            node: element.node,
        })
    }
}

impl Drop for Vector {
    fn drop(&mut self) {
        self.arena.subtract_bytes(self.bytes());
    }
}

impl Element<'_> {
    #[inline]
    fn compare(&self, other: &Self) -> Ordering {
        self.head.cmp(&other.head).then_with(|| self.node.key().cmp(&other.node.key()))
    }

    /// The length of the key with its table.
    fn full_bytes(&self) -> usize {
        TABLE_BYTES + self.node.key().bytes.len()
    }
}

/// Sorts elements whose keys agree in the first `depth` bytes, and leaves in each the head at `depth`. Where
/// heads agree, goes on with the heads behind them (the idea of W. Ng and K. Kakehi, "Cache Efficient Radix
/// Sort for String Sorting", 2007): keys are fetched once for eight bytes of order, not once for each
/// comparison.
fn sort_from(elements: &mut [Element<'_>], depth: usize) {
    for element in &mut *elements {
        element.head = head(element.node.key(), depth);
    }
    elements.sort_unstable_by_key(|element| element.head);
    for group in elements.chunk_by_mut(|a, b| a.head == b.head) {
        if group.len() <= SMALL_GROUP {
            group.sort_unstable_by_key(|element| element.node.key());
            continue;
        }
        let head = group[0].head;
        let deeper = depth + HEAD_BYTES;
        // Heads are filled up with zeros. Keys that end within equal heads differ in their trailing zeros
        // only, and are prefixes of those that go on.
        group.sort_unstable_by_key(|element| element.full_bytes().min(deeper + 1));
        let ended = group.partition_point(|element| element.full_bytes() <= deeper);
        if ended < group.len() {
            sort_from(&mut group[ended..], deeper);
        }
        for element in group {
            element.head = head;
        }
    }
}

/// Eight bytes of the key with its table, from `depth` on, filled up with zeros.
#[inline]
fn head(key: Key<'_>, depth: usize) -> u64 {
    match depth.checked_sub(TABLE_BYTES) {
        Some(skipped) => head_of(key.bytes.get(skipped..).unwrap_or_default()),
        None => {
            let begin = u128::from(key.table) << 96 | u128::from(head_of(key.bytes)) << 32;
            (begin << (8 * depth) >> 64) as u64
        }
    }
}

#[inline]
fn head_of(bytes: &[u8]) -> u64 {
    match bytes.first_chunk::<HEAD_BYTES>() {
        Some(head) => u64::from_be_bytes(*head),
        None => {
            let mut head = [0; HEAD_BYTES];
            head[..bytes.len()].copy_from_slice(bytes);
            u64::from_be_bytes(head)
        }
    }
}

fn shared_length(a: &[u8], b: &[u8]) -> usize {
    std::iter::zip(a, b).take_while(|(x, y)| x == y).count()
}
