//! Sorted vectors: the order of the nodes, made when a reader first needs it.
//!
//! Owns: sorting, merging, searching. Promises: a vector never changes; a view has O(log n) vectors however
//! reads and writes alternate, and making them so costs O(log n) moves for each node in the long run; a vector
//! keeps the arena of its nodes alive, and its bytes are counted there until it is dropped.
//! May call: `arena`, `entry`.
//!
//! A vector has a part for each table. A part knows the prefix that all its keys share, and keeps the eight
//! bytes after it beside each node, so that nearly all comparisons touch no node.

use std::cmp::Ordering;

use super::arena::Arena;
use super::entry::NodeRef;
use crate::sync::Arc;

const HEAD_BYTES: usize = 8;
/// Groups of equal heads up to this size are sorted by their keys, larger ones by further heads.
const SMALL_GROUP: usize = 16;
/// Each vector of a view is at least this many times as long as the next.
const GROWTH: usize = 2;
/// The head of every element whose index is a multiple of this is kept apart too, close to the others, where
/// the processor's caches hold them. Four cache lines of elements remain to be looked through.
const SAMPLE: usize = 16;

/// The vectors that together hold all nodes in order, longest first.
pub(super) struct View {
    vectors: Vec<Arc<Vector>>,
    arena: Arc<Arena>,
}

pub(super) struct Vector {
    /// Ascending by table; none is empty.
    parts: Vec<Part>,
    /// Not really `'static`: the nodes live as long as `arena`. Never given out but for the life of a
    /// borrow.
    elements: Vec<Element<'static>>,
    /// Heads of every [`SAMPLE`]-th element.
    samples: Vec<u64>,
    arena: Arc<Arena>,
}

/// A table's elements: from `start` up to the next part.
#[derive(Clone, Copy)]
struct Part {
    table: u32,
    /// How many bytes all keys begin with alike.
    prefix_bytes: u32,
    start: usize,
}

/// A node in a vector, with the part of its key that decides most comparisons: the bytes after the prefix,
/// filled up with zeros.
#[derive(Clone, Copy)]
struct Element<'m> {
    head: u64,
    node: NodeRef<'m>,
}

/// Where a table's elements are in a vector.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct TableRange {
    pub start: usize,
    pub end: usize,
    /// Heads of ranges with an equal number compare as their keys do, as far as they go.
    pub prefix_bytes: usize,
}

/// What making views took, in nodes moved.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Work {
    pub sorted: usize,
    pub merged: usize,
}

impl Work {
    pub fn add(&mut self, more: Work) {
        self.sorted += more.sorted;
        self.merged += more.merged;
    }
}

impl View {
    pub fn new(vectors: Vec<Arc<Vector>>, arena: Arc<Arena>) -> View {
        let view = View { vectors, arena };
        view.arena.add_vector_bytes(view.bytes());
        view
    }

    pub fn vectors(&self) -> &[Arc<Vector>] {
        &self.vectors
    }

    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// This view with more nodes, and small neighbours merged; `None` if there are no more nodes.
    pub fn with<'m>(&'m self, nodes: impl Iterator<Item = NodeRef<'m>>) -> Option<(View, Work)> {
        let mut added = self.sort(nodes)?;
        let mut work = Work { sorted: added.len(), merged: 0 };
        let mut kept = self.vectors.len();
        while kept > 0 && self.vectors[kept - 1].len() < GROWTH * added.len() {
            kept -= 1;
            added = Vector::merge(&self.vectors[kept], &added);
            work.merged += added.len();
        }
        let mut vectors = Vec::with_capacity(kept + 1);
        vectors.extend_from_slice(&self.vectors[..kept]);
        vectors.push(Arc::new(added));
        Some((View::new(vectors, self.arena.clone()), work))
    }

    /// A vector of nodes of this view's arena; `None` if there are none.
    fn sort<'m>(&'m self, nodes: impl Iterator<Item = NodeRef<'m>>) -> Option<Vector> {
        let of_table = |node: NodeRef<'m>| Element { head: u64::from(node.key().table), node };
        let mut elements: Vec<_> = nodes.map(of_table).collect();
        let first = elements.first()?.head;
        if elements.iter().any(|element| element.head != first) {
            elements.sort_unstable_by_key(|element| element.head);
        }
        let mut parts = Vec::new();
        let mut start = 0;
        for part in elements.chunk_by_mut(|a, b| a.head == b.head) {
            let Element { head: table, node: first } = part[0];
            let first = first.key().bytes;
            let mut prefix_bytes = first.len();
            // No longer than where the longest vector has this table: then their heads can be compared.
            if let Some(known) = self.vectors.iter().find_map(|vector| vector.prefix(table as u32)) {
                prefix_bytes = shared_length(first, known);
            }
            for element in &*part {
                prefix_bytes = shared_length(element.node.key().bytes, &first[..prefix_bytes]);
            }
            sort_from(part, prefix_bytes);
            parts.push(Part { table: table as u32, prefix_bytes: prefix_bytes as u32, start });
            start += part.len();
        }
        // SAFETY: the arena goes into the same vector, which gives nodes out only for the life of a borrow.
        let extend = |element: Element<'m>| unsafe {
            Element { head: element.head, node: element.node.assume_static() }
        };
        Some(Vector::new(parts, elements.into_iter().map(extend).collect(), &self.arena))
    }

    fn bytes(&self) -> usize {
        size_of::<View>() + self.vectors.capacity() * size_of::<Arc<Vector>>()
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.arena.subtract_vector_bytes(self.bytes());
    }
}

impl Vector {
    /// One vector of two of the same arena.
    fn merge(a: &Vector, b: &Vector) -> Vector {
        let mut elements = Vec::with_capacity(a.len() + b.len());
        let mut parts = Vec::with_capacity(a.parts.len().max(b.parts.len()));
        let (mut of_a, mut of_b) = (0, 0);
        loop {
            let start = elements.len();
            let (x, y) = (a.parts.get(of_a), b.parts.get(of_b));
            let Some(table) = x.into_iter().chain(y).map(|part| part.table).min() else { break };
            let x = x.filter(|part| part.table == table).map(|_| a.part(of_a));
            let y = y.filter(|part| part.table == table).map(|_| b.part(of_b));
            of_a += usize::from(x.is_some());
            of_b += usize::from(y.is_some());
            let prefix_bytes = match (x, y) {
                (Some(x), Some(y)) => merge_parts(x, y, &mut elements),
                (one, other) => one.or(other).map_or(0, |(prefix, only)| {
                    elements.extend_from_slice(only);
                    prefix.len()
                }),
            };
            parts.push(Part { table, prefix_bytes: prefix_bytes as u32, start });
        }
        Vector::new(parts, elements, &a.arena)
    }

    fn new(mut parts: Vec<Part>, mut elements: Vec<Element<'static>>, arena: &Arc<Arena>) -> Vector {
        parts.shrink_to_fit();
        elements.shrink_to_fit();
        let samples = elements.iter().step_by(SAMPLE).map(|element| element.head).collect();
        let vector = Vector { parts, elements, samples, arena: arena.clone() };
        arena.add_vector_bytes(vector.bytes());
        vector
    }

    fn bytes(&self) -> usize {
        size_of::<Vector>()
            + self.parts.capacity() * size_of::<Part>()
            + self.elements.capacity() * size_of::<Element<'_>>()
            + self.samples.capacity() * size_of::<u64>()
    }

    pub fn len(&self) -> usize {
        self.elements.len()
    }

    #[inline]
    pub fn node(&self, index: usize) -> Option<NodeRef<'_>> {
        self.elements.get(index).map(|element| element.node)
    }

    #[inline]
    pub fn head(&self, index: usize) -> u64 {
        self.elements[index].head
    }

    /// Where a table's elements are; `None` if there are none.
    pub fn range(&self, table: u32) -> Option<TableRange> {
        let index = self.parts.binary_search_by_key(&table, |part| part.table).ok()?;
        let Part { start, prefix_bytes, .. } = self.parts[index];
        let end = self.parts.get(index + 1).map_or(self.len(), |next| next.start);
        Some(TableRange { start, end, prefix_bytes: prefix_bytes as usize })
    }

    /// The first table from this one on.
    pub fn table_from(&self, table: u32) -> Option<u32> {
        let index = self.parts.partition_point(|part| part.table < table);
        self.parts.get(index).map(|part| part.table)
    }

    /// The index in the range of the first key that is at least `target`, or the range's end.
    pub fn lower_bound(&self, range: TableRange, target: &[u8]) -> usize {
        let TableRange { start, end, prefix_bytes } = range;
        let prefix = self.prefix_of(start, prefix_bytes);
        // A target that ends within the prefix is less than what goes on.
        match target[..target.len().min(prefix_bytes)].cmp(prefix) {
            Ordering::Less => return start,
            Ordering::Greater => return end,
            Ordering::Equal => {}
        }
        let head = head_of(&target[prefix_bytes..]);
        let (first, last) = (start.div_ceil(SAMPLE), end.div_ceil(SAMPLE));
        let sample = first + self.samples[first..last].partition_point(|sample| *sample < head);
        // The sample before is less, this one is not: it is between the two.
        let low = if sample == first { start } else { (sample - 1) * SAMPLE + 1 };
        let high = (sample * SAMPLE).min(end);
        // All of them, rather than a search: then their cache lines are asked for at the same time.
        let low = low + self.elements[low..high].iter().filter(|element| element.head < head).count();
        let rest = &self.elements[low..end];
        // Most often no other key has this head.
        let equal = match rest.iter().take(SMALL_GROUP).take_while(|element| element.head == head).count() {
            SMALL_GROUP => rest.partition_point(|element| element.head == head),
            few => few,
        };
        low + rest[..equal].partition_point(|element| element.node.key().bytes < target)
    }

    fn prefix(&self, table: u32) -> Option<&[u8]> {
        self.range(table).map(|range| self.prefix_of(range.start, range.prefix_bytes))
    }

    /// What the keys of a part that starts there begin with.
    #[inline]
    fn prefix_of(&self, start: usize, prefix_bytes: usize) -> &[u8] {
        &self.elements[start].node.key().bytes[..prefix_bytes]
    }

    /// A part's prefix and its elements.
    fn part(&self, part: usize) -> (&[u8], &[Element<'static>]) {
        let Part { start, prefix_bytes, .. } = self.parts[part];
        let end = self.parts.get(part + 1).map_or(self.len(), |next| next.start);
        (self.prefix_of(start, prefix_bytes as usize), &self.elements[start..end])
    }
}

impl Drop for Vector {
    fn drop(&mut self) {
        self.arena.subtract_vector_bytes(self.bytes());
    }
}

impl Element<'_> {
    #[inline]
    fn compare(&self, other: &Self) -> Ordering {
        self.head.cmp(&other.head).then_with(|| self.node.key().bytes.cmp(other.node.key().bytes))
    }

    fn key_bytes(&self) -> usize {
        self.node.key().bytes.len()
    }
}

/// Merges two parts of one table; answers how many bytes the prefix of all has.
fn merge_parts(
    (prefix_a, a): (&[u8], &[Element<'static>]),
    (prefix_b, b): (&[u8], &[Element<'static>]),
    merged: &mut Vec<Element<'static>>,
) -> usize {
    let prefix_bytes = shared_length(prefix_a, prefix_b);
    // The heads as they are behind the shorter prefix: first what that no longer covers. Where it is eight
    // bytes or more, they are the whole head.
    let (begin_a, shift_a) = (head_of(&prefix_a[prefix_bytes..]), 8 * (prefix_a.len() - prefix_bytes) as u32);
    let (begin_b, shift_b) = (head_of(&prefix_b[prefix_bytes..]), 8 * (prefix_b.len() - prefix_bytes) as u32);
    let lengthen = |element: &Element<'static>, begin: u64, shift: u32| Element {
        head: begin | element.head.checked_shr(shift).unwrap_or(0),
        node: element.node,
    };
    let (mut of_a, mut of_b) = (0, 0);
    while of_a < a.len() && of_b < b.len() {
        let x = lengthen(&a[of_a], begin_a, shift_a);
        let y = lengthen(&b[of_b], begin_b, shift_b);
        // No branch on which is first: nobody can predict it.
        let take_x = if x.head == y.head { x.compare(&y).is_le() } else { x.head < y.head };
        merged.push(if take_x { x } else { y });
        of_a += usize::from(take_x);
        of_b += usize::from(!take_x);
    }
    merged.extend(a[of_a..].iter().map(|element| lengthen(element, begin_a, shift_a)));
    merged.extend(b[of_b..].iter().map(|element| lengthen(element, begin_b, shift_b)));
    prefix_bytes
}

/// Sorts elements of one table whose keys agree in the first `depth` bytes, and leaves in each the head at
/// `depth`. Where heads agree, goes on with the heads behind them (the idea of W. Ng and K. Kakehi, "Cache
/// Efficient Radix Sort for String Sorting", 2007): keys are fetched once for eight bytes of order, not once
/// for each comparison.
fn sort_from(elements: &mut [Element<'_>], depth: usize) {
    for element in &mut *elements {
        element.head = head_of(element.node.key().bytes.get(depth..).unwrap_or_default());
    }
    elements.sort_unstable_by_key(|element| element.head);
    for group in elements.chunk_by_mut(|a, b| a.head == b.head) {
        if group.len() <= SMALL_GROUP {
            group.sort_unstable_by_key(|element| element.node.key().bytes);
            continue;
        }
        let head = group[0].head;
        let deeper = depth + HEAD_BYTES;
        // Heads are filled up with zeros. Keys that end within equal heads differ in their trailing zeros
        // only, and are prefixes of those that go on.
        group.sort_unstable_by_key(|element| element.key_bytes().min(deeper + 1));
        let ended = group.partition_point(|element| element.key_bytes() <= deeper);
        if ended < group.len() {
            sort_from(&mut group[ended..], deeper);
        }
        for element in group {
            element.head = head;
        }
    }
}

/// The first eight bytes, filled up with zeros.
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
