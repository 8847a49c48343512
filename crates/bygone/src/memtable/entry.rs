//! Entries in the arena: one node for each key, one version for each write to it.
//!
//! Owns: their layout and the list of a node's versions, newest first. Promises: what a [`NodeRef`] or a
//! [`VersionRef`] shows never changes, except that versions join the list; joining is lock-free in any order
//! of arrival; finding the version as of a sequence number takes O(log n) steps when versions arrived in
//! order. May call: `arena`.
//!
//! A node holds its key and its first version in one piece, so that a hit touches one place in memory.
//! Later versions carry a jump pointer each, as in E. Myers, "An applicative random-access stack" (1983): a
//! long reader does not walk all that was written to a hot key since.

use std::marker::PhantomData;
use std::ptr::{self, NonNull};

use super::arena::Claim;
use crate::hint::prefetch;
use crate::layer::{HashedKey, Key};
use crate::limits::VALUE_BYTES_MAX;
use crate::sync::atomic::{AtomicPtr, Ordering};

/// Marks a version that stands alone instead of inside its node.
const LATER: u32 = 1 << 31;
/// The length of a deletion.
const DELETION: u32 = LATER - 1;
const _: () = assert!(VALUE_BYTES_MAX < DELETION as usize);
/// Up to here walking is cheaper than the cache miss of looking where a jump leads.
const WALK_RANK: u32 = 8;

/// Pointers to nodes carry tags in bits that are otherwise zero (see `directory`): the high ones, or where an
/// address needs them all, those below a node's alignment.
#[cfg(target_pointer_width = "64")]
mod tag_bits {
    pub const FIRST: u32 = 48;
    pub const COUNT: u32 = 16;
}
#[cfg(not(target_pointer_width = "64"))]
mod tag_bits {
    pub const FIRST: u32 = 0;
    pub const COUNT: u32 = align_of::<super::Node>().ilog2();
}
pub(super) const FIRST_TAG_BIT: u32 = tag_bits::FIRST;
pub(super) const TAG_BITS: u32 = tag_bits::COUNT;

/// Operating systems give programs addresses below 2^47 unless asked for others; this makes sure.
pub(super) fn assert_taggable(end_address: usize) {
    assert!(FIRST_TAG_BIT == 0 || end_address >> FIRST_TAG_BIT == 0, "memory above the 48-bit address space");
}

#[repr(C)]
pub(super) struct Version {
    /// The next older version of the key.
    older: AtomicPtr<Version>,
    seq: u64,
    /// The value's length in bytes or `DELETION`, and `LATER`.
    length_and_kind: u32,
    /// How many versions a walk from here passes, as far as was known when this one joined.
    rank: u32,
}

/// A key with its first version. The key's bytes follow, then the first version's value.
#[repr(C)]
pub(super) struct Node {
    first: Version,
    /// The rest of the bucket's chain, with tags. Atomic because it is set while a sorter may hold the node.
    pub(super) next: AtomicPtr<Node>,
    /// `first` to begin with; null in a node that lost the race for its key and belongs to nobody.
    newest: AtomicPtr<Version>,
    /// The node created before this one in the same shard.
    pub(super) previous: *const Node,
    table: u32,
    fingerprint: u16,
    key_bytes: u16,
}

/// A version written after the node. The value's bytes follow.
#[repr(C)]
struct Later {
    version: Version,
    /// An older version some way down the list; null where `rank` is zero.
    jump: *const Version,
}

/// A node of an arena that lives for `'m`.
#[derive(Clone, Copy)]
pub(super) struct NodeRef<'m> {
    node: NonNull<Node>,
    arena: PhantomData<&'m ()>,
}

/// A version of a node of an arena that lives for `'m`.
#[derive(Clone, Copy)]
pub(super) struct VersionRef<'m> {
    version: NonNull<Version>,
    arena: PhantomData<&'m ()>,
}

// SAFETY: it shows immutable memory and atomics.
unsafe impl Send for NodeRef<'_> {}
// SAFETY: as above.
unsafe impl Sync for NodeRef<'_> {}

impl<'m> NodeRef<'m> {
    /// Writes a node with its first version and appends it to the claim's list. Nobody finds it by its key
    /// yet.
    #[inline]
    pub fn create(claim: &mut Claim<'m>, seq: u64, key: &HashedKey<'_>, value: Option<&[u8]>) -> NodeRef<'m> {
        let key_bytes =
            u16::try_from(key.key.bytes.len()).expect("keys are checked against their limit before");
        let value_bytes = value.unwrap_or_default();
        let node = claim.allocate(size_of::<Node>() + key.key.bytes.len() + value_bytes.len()).cast::<Node>();
        let at = node.as_ptr();
        // SAFETY: fresh memory of that size, aligned for a node, that nobody else knows. Raw pointers all the
        // way, so that every pointer kept keeps the right to the bytes behind the node.
        unsafe {
            let first = &raw mut (*at).first;
            at.write(Node {
                first: Version::new(seq, value, 0, 0),
                next: AtomicPtr::new(ptr::null_mut()),
                newest: AtomicPtr::new(first),
                previous: ptr::null(),
                table: key.key.table,
                fingerprint: fingerprint(key.hash),
                key_bytes,
            });
            let tail = at.add(1).cast::<u8>();
            tail.copy_from_nonoverlapping(key.key.bytes.as_ptr(), key.key.bytes.len());
            tail.add(key.key.bytes.len()).copy_from_nonoverlapping(value_bytes.as_ptr(), value_bytes.len());
            claim.append(node);
        }
        NodeRef { node, arena: PhantomData }
    }

    /// # Safety
    /// The node must be whole, seen with acquire ordering, and live in an arena that outlives `'m`.
    #[inline]
    pub unsafe fn from_raw(node: NonNull<Node>) -> NodeRef<'m> {
        NodeRef { node, arena: PhantomData }
    }

    /// # Safety
    /// The caller keeps the arena alive, and lets nobody have the node for longer than that.
    #[inline]
    pub unsafe fn assume_static(self) -> NodeRef<'static> {
        NodeRef { node: self.node, arena: PhantomData }
    }

    #[inline]
    pub fn as_ptr(self) -> *mut Node {
        self.node.as_ptr()
    }

    #[inline]
    pub fn node(self) -> &'m Node {
        // SAFETY: live for `'m`, and only atomics change in it.
        unsafe { self.node.as_ref() }
    }

    #[inline]
    pub fn previous(self) -> *const Node {
        self.node().previous
    }

    #[inline]
    pub fn key(self) -> Key<'m> {
        let node = self.node();
        // SAFETY: `create` wrote that many bytes behind the node, through the pointer this one came from.
        let bytes = unsafe {
            std::slice::from_raw_parts(self.node.as_ptr().add(1).cast::<u8>(), usize::from(node.key_bytes))
        };
        Key { table: node.table, bytes }
    }

    /// Whether this is the key's node; the fingerprint turns nearly all others away.
    #[inline]
    pub fn matches(self, key: &HashedKey<'_>) -> bool {
        self.node().fingerprint == fingerprint(key.hash) && self.key() == key.key
    }

    /// `None` only in a node that lost the race for its key.
    #[inline]
    pub fn newest(self) -> Option<VersionRef<'m>> {
        // Acquire: pairs with the release in `add_version`.
        VersionRef::from_list(self.node().newest.load(Ordering::Acquire))
    }

    /// The newest version that is not newer than `seq`.
    #[inline]
    pub fn version_at(self, seq: u64) -> Option<VersionRef<'m>> {
        let mut at = self.newest()?;
        while at.seq() > seq {
            at = at.step_towards(seq)?;
        }
        Some(at)
    }

    /// The oldest version that is newer than `seq`.
    #[inline]
    pub fn version_after(self, seq: u64) -> Option<VersionRef<'m>> {
        let mut at = self.newest().filter(|newest| newest.seq() > seq)?;
        // Who stands just above what is not newer has no jump that is, so the last step is to a neighbour.
        while let Some(next) = at.step_towards(seq).filter(|next| next.seq() > seq) {
            at = next;
        }
        Some(at)
    }

    /// Writes a further version and lets it join the list.
    pub fn add_version(self, claim: &mut Claim<'m>, seq: u64, value: Option<&[u8]>) {
        let value_bytes = value.unwrap_or_default();
        let later = claim.allocate(size_of::<Later>() + value_bytes.len()).cast::<Later>().as_ptr();
        // SAFETY: fresh memory of that size, aligned, that nobody else knows; raw for the reason given in
        // `create`.
        let version = unsafe {
            later.write(Later { version: Version::new(seq, value, LATER, 0), jump: ptr::null() });
            let tail = later.add(1).cast::<u8>();
            tail.copy_from_nonoverlapping(value_bytes.as_ptr(), value_bytes.len());
            &raw mut (*later).version
        };
        let mut link = &self.node().newest;
        // Acquire, here and on failure below: the versions on the way are read.
        let mut at = link.load(Ordering::Acquire);
        loop {
            while let Some(newer) = VersionRef::from_list(at).filter(|version| version.seq() > seq) {
                let hop = newer.jump().filter(|far| far.seq() > seq).unwrap_or(newer);
                link = &hop.version().older;
                at = link.load(Ordering::Acquire);
            }
            // SAFETY: nobody else knows the version before the exchange below succeeds.
            unsafe {
                let (rank, jump) = VersionRef::from_list(at).map_or((0, ptr::null()), VersionRef::rank_above);
                (&raw mut (*version).rank).write(rank);
                (&raw mut (*later).jump).write(jump);
                (*version).older.store(at, Ordering::Relaxed);
            }
            // Release: who finds the version sees it whole. Nothing ever leaves the list, so if the link is
            // unchanged, the version comes to stand between its neighbours in order.
            match link.compare_exchange(at, version, Ordering::Release, Ordering::Acquire) {
                Ok(_) => return,
                Err(changed) => at = changed,
            }
        }
    }

    /// Ends a node that lost the race for its key: sorters may hold it, but no reader finds a version in it.
    pub fn abandon(self) {
        // Relaxed: only readers as of this node's own commit or a later one would look, and those begin after
        // its commit was published, which comes after this.
        self.node().newest.store(ptr::null_mut(), Ordering::Relaxed);
    }

    /// Asks the processor to fetch the node.
    #[inline]
    pub fn prefetch(self) {
        let at = self.node.as_ptr().cast_const();
        prefetch(at);
        prefetch(at.wrapping_byte_add(64));
    }
}

impl Version {
    fn new(seq: u64, value: Option<&[u8]>, kind: u32, rank: u32) -> Version {
        let length = match value {
            // Cannot cut: checked against the limit here, and the limit fits.
            Some(value) => {
                assert!(value.len() <= VALUE_BYTES_MAX, "values are checked against their limit before");
                value.len() as u32
            }
            None => DELETION,
        };
        Version { older: AtomicPtr::new(ptr::null_mut()), seq, length_and_kind: length | kind, rank }
    }
}

impl<'m> VersionRef<'m> {
    #[inline]
    fn from_list(version: *mut Version) -> Option<VersionRef<'m>> {
        Some(VersionRef { version: NonNull::new(version)?, arena: PhantomData })
    }

    #[inline]
    fn version(self) -> &'m Version {
        // SAFETY: it came off a list, so it is whole and lives for `'m`; only its atomic changes.
        unsafe { self.version.as_ref() }
    }

    #[inline]
    pub fn seq(self) -> u64 {
        self.version().seq
    }

    #[inline]
    pub fn is_deletion(self) -> bool {
        self.version().length_and_kind & !LATER == DELETION
    }

    /// `None` is a deletion.
    #[inline]
    pub fn value(self) -> Option<&'m [u8]> {
        if self.is_deletion() {
            return None;
        }
        let length = (self.version().length_and_kind & !LATER) as usize;
        // SAFETY: `add_version` and `create` wrote that many bytes there: behind a later version, or behind
        // the key of the node that a first version begins. The pointer came from the allocation, so
        // it reaches them.
        unsafe {
            let start = match self.as_later() {
                Some(later) => later.add(1).cast::<u8>(),
                None => {
                    let node = self.version.as_ptr().cast::<Node>();
                    node.add(1).cast::<u8>().add(usize::from((*node).key_bytes))
                }
            };
            Some(std::slice::from_raw_parts(start, length))
        }
    }

    #[inline]
    fn older(self) -> Option<VersionRef<'m>> {
        // Acquire: pairs with the release in `add_version`.
        VersionRef::from_list(self.version().older.load(Ordering::Acquire))
    }

    /// The next stop on the way down to the newest version that is not newer than `seq`.
    #[inline]
    fn step_towards(self, seq: u64) -> Option<VersionRef<'m>> {
        match self.jump() {
            Some(far) if far.seq() > seq => Some(far),
            _ => self.older(),
        }
    }

    /// A far older version, where it pays to look.
    #[inline]
    fn jump(self) -> Option<VersionRef<'m>> {
        if self.version().rank < WALK_RANK {
            return None;
        }
        self.jump_target()
    }

    fn jump_target(self) -> Option<VersionRef<'m>> {
        // SAFETY: a later version is a whole `Later`; its fields other than the atomic do not change once it
        // is on the list.
        let jump = unsafe { (*self.as_later()?).jump };
        VersionRef::from_list(jump.cast_mut())
    }

    /// Rank and jump of a version that is about to stand just before this one.
    fn rank_above(self) -> (u32, *const Version) {
        let rank = |version: VersionRef<'_>| version.version().rank;
        let near = self.version.as_ptr().cast_const();
        // Two jumps of equal length make one of twice the length: Myers' rule. Ranks repeat where versions
        // came out of order, so distances may be wrong there, which costs steps and nothing else: a
        // jump always leads to an older version.
        let far = self.jump_target().and_then(|one| {
            let two = one.jump_target()?;
            (rank(self).wrapping_sub(rank(one)) == rank(one).wrapping_sub(rank(two))).then_some(two)
        });
        (rank(self).saturating_add(1), far.map_or(near, |two| two.version.as_ptr().cast_const()))
    }

    #[inline]
    fn as_later(self) -> Option<*mut Later> {
        (self.version().length_and_kind & LATER != 0).then(|| self.version.as_ptr().cast::<Later>())
    }
}

/// Bits that neither the bucket's index nor its tag uses.
#[inline]
fn fingerprint(hash: u64) -> u16 {
    (hash >> 8) as u16
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::arena::Arena;
    use super::*;

    #[test]
    fn an_old_version_of_a_hot_key_is_a_few_steps_away() {
        const VERSIONS: u64 = 10_000;
        let arena = Arena::new(1 << 20);
        let mut claim = arena.claim();
        let key = HashedKey::new(1, b"hot", 0);
        let node = NodeRef::create(&mut claim, 0, &key, None);
        for seq in 1..VERSIONS {
            node.add_version(&mut claim, seq, None);
        }
        for seq in 0..VERSIONS {
            let mut at = node.newest().unwrap();
            let mut steps = 0;
            while at.seq() > seq {
                at = at.step_towards(seq).unwrap();
                steps += 1;
            }
            assert_eq!(at.seq(), seq);
            assert_eq!(
                node.version_after(seq).map(|next| next.seq()),
                (seq + 1 < VERSIONS).then_some(seq + 1)
            );
            assert!(steps <= 2 * VERSIONS.ilog2() + WALK_RANK, "{steps} steps to {seq}");
        }
    }
}
