//! The space map: which slots of the file are used.
//!
//! Owns: the bitmap, in memory and on disk, and the choice of slots. Promises: no slot is handed out that the
//! published state, a retained base or a live base version can reach; a plan that is never committed leaves
//! no trace but the slots it took. May call: the page store, to load chunks.
//!
//! Two bits per slot. *Used*: reachable from the published superblock or from a retained base; this is what
//! is on disk. *Taken*: may not be handed out; besides the used slots, those that a rebuild has written and
//! those that only live base versions still see. After an open the two are equal. Chunks of the map are
//! loaded when a slot of theirs is first asked for, so that opening a large file reads only the directory.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::{Error, Result};
use crate::limits::PAGE_BYTES;

use super::page::{self, Kind};
use super::pointer::{PagePointer, SUPERBLOCK_SLOTS};
use super::space_pages::{
    self, Bits, CHUNK_SLOTS, CHUNK_WORDS, DIRECTORY_CHUNKS, INDEX_DIRECTORIES, encode_directory_entry,
};
use super::store::PageStore;
use super::superblock::Superblock;

/// How many slots a file may have: what the space map's index page leads to. About 6.8 TB.
pub(crate) const SLOTS_MAX: u64 = (INDEX_DIRECTORIES * DIRECTORY_CHUNKS * CHUNK_SLOTS) as u64;

#[derive(Debug)]
struct Chunk {
    /// None if no slot of the chunk is used.
    pointer: Option<PagePointer>,
    used: u32,
    taken: u32,
    bits: Option<Box<ChunkBits>>,
}

#[derive(Debug)]
struct ChunkBits {
    used: Bits,
    taken: Bits,
}

impl Chunk {
    fn empty() -> Chunk {
        let bits = ChunkBits { used: [0; CHUNK_WORDS], taken: [0; CHUNK_WORDS] };
        Chunk { pointer: None, used: 0, taken: 0, bits: Some(Box::new(bits)) }
    }
}

#[derive(Debug)]
pub(super) struct SpaceMap {
    index: Option<PagePointer>,
    directories: Vec<PagePointer>,
    chunks: Vec<Chunk>,
    /// No slot from here on is taken.
    end: u64,
    /// No slot below is free.
    lowest_free: u64,
}

/// What the next superblock will say of the space map, and the pages that say it.
#[derive(Debug)]
pub(super) struct Plan {
    /// The used slots of each chunk that changes.
    dirty: BTreeMap<usize, Box<Bits>>,
    chunk_pointers: BTreeMap<usize, PagePointer>,
    directories: Vec<PagePointer>,
    pub index: PagePointer,
    /// How many slots the file has as of the plan.
    pub slots: u64,
    /// Slots of the old map's pages, and slots taken for the plan and then not needed: free once the plan is
    /// published.
    freed: Vec<u64>,
}

/// Stores a page of this kind, count and payload at a slot.
type WritePage<'a> = dyn FnMut(u64, Kind, usize, &[u8]) -> Result<PagePointer> + 'a;

fn place(slot: u64) -> (usize, usize, u64) {
    let within = (slot % CHUNK_SLOTS as u64) as usize;
    ((slot / CHUNK_SLOTS as u64) as usize, within / 64, 1 << (within % 64))
}

fn used_count(bits: &Bits) -> u32 {
    bits.iter().map(|word| word.count_ones()).sum()
}

/// The slot within its chunk behind the highest that is set.
fn bits_end(bits: &Bits) -> u64 {
    bits.iter()
        .rposition(|word| *word != 0)
        .map_or(0, |i| (i as u64 + 1) * 64 - u64::from(bits[i].leading_zeros()))
}

impl SpaceMap {
    /// The map of a file that has only superblocks.
    pub fn new() -> SpaceMap {
        let mut chunk = Chunk::empty();
        if let Some(bits) = &mut chunk.bits {
            bits.used[0] = (1 << SUPERBLOCK_SLOTS) - 1;
            bits.taken[0] = bits.used[0];
        }
        (chunk.used, chunk.taken) = (SUPERBLOCK_SLOTS as u32, SUPERBLOCK_SLOTS as u32);
        SpaceMap {
            index: None,
            directories: Vec::new(),
            chunks: vec![chunk],
            end: SUPERBLOCK_SLOTS,
            lowest_free: SUPERBLOCK_SLOTS,
        }
    }

    /// Loads the directory that a superblock leads to.
    pub fn load(store: &PageStore, superblock: &Superblock) -> Result<SpaceMap> {
        let Some(index) = superblock.space else { return Ok(SpaceMap::new()) };
        let mut map = SpaceMap {
            index: Some(index),
            directories: Vec::new(),
            chunks: Vec::new(),
            end: superblock.slots,
            lowest_free: SUPERBLOCK_SLOTS,
        };
        let mut page = [0; PAGE_BYTES];
        read(store, &index, Kind::SpaceIndex, &mut page)?;
        map.directories = (0..page::count(&page)).map(|i| space_pages::index_entry(&page, i)).collect();
        for (i, pointer) in map.directories.iter().enumerate() {
            read(store, pointer, Kind::SpaceDirectory, &mut page)?;
            let count = page::count(&page);
            if count != DIRECTORY_CHUNKS && i + 1 != map.directories.len() {
                return Err(store.corruption(pointer, "a directory page of the space map is cut short"));
            }
            for i in 0..count {
                let (pointer, used) = space_pages::directory_entry(&page, i);
                map.chunks.push(match pointer {
                    Some(_) => Chunk { pointer, used, taken: used, bits: None },
                    None => Chunk::empty(),
                });
            }
        }
        if superblock.slots > (map.chunks.len() * CHUNK_SLOTS) as u64 {
            return Err(store.corruption(&index, "the space map does not reach the file's end"));
        }
        Ok(map)
    }

    fn bits(&mut self, store: &PageStore, chunk: usize) -> Result<&mut ChunkBits> {
        let Chunk { pointer, used, bits, .. } = &mut self.chunks[chunk];
        let loaded = match bits.take() {
            Some(loaded) => loaded,
            None => {
                let mut loaded = ChunkBits { used: [0; CHUNK_WORDS], taken: [0; CHUNK_WORDS] };
                if let Some(pointer) = pointer {
                    let mut page = [0; PAGE_BYTES];
                    read(store, pointer, Kind::SpaceChunk, &mut page)?;
                    loaded.used = *space_pages::chunk_bits(&page);
                    loaded.taken = loaded.used;
                    if used_count(&loaded.used) != *used {
                        let reason = "a chunk of the space map contradicts its directory";
                        return Err(store.corruption(pointer, reason));
                    }
                }
                Box::new(loaded)
            }
        };
        Ok(bits.insert(loaded))
    }

    /// Takes the lowest free slot: so the file's tail empties, and neighbours are taken one after the other.
    pub fn take(&mut self, store: &PageStore) -> Result<u64> {
        loop {
            let (chunk, first_word, _) = place(self.lowest_free);
            if chunk == self.chunks.len() {
                if self.lowest_free >= SLOTS_MAX {
                    let (size, limit) = (SLOTS_MAX * PAGE_BYTES as u64, (SLOTS_MAX - 1) * PAGE_BYTES as u64);
                    return Err(Error::TooLarge { what: "the base file", size, limit });
                }
                self.chunks.push(Chunk::empty());
            }
            if (self.chunks[chunk].taken as usize) < CHUNK_SLOTS {
                let taken = &mut self.bits(store, chunk)?.taken;
                if let Some(word) = (first_word..CHUNK_WORDS).find(|word| taken[*word] != u64::MAX) {
                    let bit = taken[word].trailing_ones();
                    taken[word] |= 1 << bit;
                    self.chunks[chunk].taken += 1;
                    let slot = (chunk * CHUNK_SLOTS + word * 64) as u64 + u64::from(bit);
                    self.lowest_free = slot + 1;
                    self.end = self.end.max(slot + 1);
                    return Ok(slot);
                }
            }
            self.lowest_free = ((chunk + 1) * CHUNK_SLOTS) as u64;
        }
    }

    /// Makes slots free that were taken in this process, or whose freeing was planned.
    pub fn release(&mut self, slots: impl IntoIterator<Item = u64>) {
        for slot in slots {
            let (chunk, word, bit) = place(slot);
            let Some(Chunk { taken, bits: Some(bits), .. }) = self.chunks.get_mut(chunk) else { continue };
            assert!(
                bits.taken[word] & bit != 0 && bits.used[word] & bit == 0,
                "slot {slot} released while used"
            );
            bits.taken[word] &= !bit;
            *taken -= 1;
            self.lowest_free = self.lowest_free.min(slot);
        }
    }

    /// Takes this very slot; `false` if it is taken already.
    pub fn take_free(&mut self, store: &PageStore, slot: u64) -> Result<bool> {
        let (chunk, word, bit) = place(slot);
        while self.chunks.len() <= chunk {
            self.chunks.push(Chunk::empty());
        }
        let taken = &mut self.bits(store, chunk)?.taken[word];
        if *taken & bit != 0 {
            return Ok(false);
        }
        *taken |= bit;
        self.chunks[chunk].taken += 1;
        self.end = self.end.max(slot + 1);
        Ok(true)
    }

    /// Makes slots free that are still used: a breach, for `mutation`.
    #[cfg(feature = "mutations")]
    pub fn release_too_early(&mut self, store: &PageStore, slots: impl Iterator<Item = u64>) -> Result<()> {
        for slot in slots {
            let (chunk, word, bit) = place(slot);
            self.bits(store, chunk)?.taken[word] &= !bit;
            self.chunks[chunk].taken -= 1;
            self.lowest_free = self.lowest_free.min(slot);
        }
        Ok(())
    }

    pub fn is_taken(&mut self, store: &PageStore, slot: u64) -> Result<bool> {
        let (chunk, word, bit) = place(slot);
        Ok(chunk < self.chunks.len() && self.bits(store, chunk)?.taken[word] & bit != 0)
    }

    /// Plans the map after `born` have come into use and `died` have gone out of it. The plan's own pages are
    /// part of what it says: their slots are taken first, and as long as that touches chunks that were
    /// not touched before, more are taken. Every slot taken is put on `taken`. `write` stores a page of
    /// this kind, count and payload at a slot.
    pub fn plan(
        &mut self,
        store: &PageStore,
        born: impl Iterator<Item = u64>,
        died: impl Iterator<Item = u64>,
        taken: &mut Vec<u64>,
        write: &mut WritePage<'_>,
    ) -> Result<Plan> {
        let mut dirty = BTreeMap::new();
        for slot in born {
            self.mark(store, &mut dirty, slot, true)?;
        }
        for slot in died {
            self.mark(store, &mut dirty, slot, false)?;
        }
        let mut slots = Vec::new();
        let mut freed = BTreeSet::new();
        let dirty_directories = loop {
            let directories: BTreeSet<usize> = dirty.keys().map(|chunk| chunk / DIRECTORY_CHUNKS).collect();
            let replaced: Vec<u64> = dirty
                .keys()
                .filter_map(|chunk| self.chunks[*chunk].pointer)
                .chain(directories.iter().filter_map(|i| self.directories.get(*i).copied()))
                .chain(self.index)
                .map(|pointer| pointer.slot)
                .filter(|slot| !freed.contains(slot))
                .collect();
            let needed = dirty.len() + directories.len() + 1;
            if slots.len() == needed && replaced.is_empty() {
                break directories;
            }
            for slot in replaced {
                self.mark(store, &mut dirty, slot, false)?;
                freed.insert(slot);
            }
            while slots.len() < needed {
                let slot = self.take(store)?;
                taken.push(slot);
                slots.push(slot);
                self.mark(store, &mut dirty, slot, true)?;
            }
        };

        let mut used: Vec<u32> = self.chunks.iter().map(|chunk| chunk.used).collect();
        dirty.iter().for_each(|(chunk, bits)| used[*chunk] = used_count(bits));
        // A directory page that does not change stays, whatever it says: so nothing more needs to be freed.
        let unchanged =
            (0..self.directories.len()).rfind(|i| !dirty_directories.contains(i)).map_or(0, |i| i + 1);
        let last_used = used.iter().rposition(|used| *used > 0).unwrap_or(0);
        let chunk_count = (last_used + 1).max(unchanged * DIRECTORY_CHUNKS).min(used.len());
        let last_bits = match dirty.get(&last_used) {
            Some(bits) => bits_end(bits),
            None => bits_end(&self.bits(store, last_used)?.used),
        };
        // From here on the plan's slots are handed to its pages in ascending order; chunks that became empty
        // need none.
        slots.sort_unstable();
        let (needed_chunks, empty): (Vec<usize>, Vec<usize>) =
            dirty.keys().partition(|chunk| used[**chunk] > 0);
        let written_directories: Vec<usize> =
            dirty_directories.into_iter().filter(|i| i * DIRECTORY_CHUNKS < chunk_count).collect();
        let needed = needed_chunks.len() + written_directories.len() + 1;
        debug_assert!(needed <= slots.len() && slots.len() - needed >= empty.len());
        for slot in slots.split_off(needed) {
            // Clearing the spare ones may at worst empty a chunk whose page is then written all the same.
            self.mark(store, &mut dirty, slot, false)?;
            used[place(slot).0] -= 1;
            freed.insert(slot);
        }
        let mut slots = slots.into_iter();
        let mut next =
            || slots.next().ok_or_else(|| Error::Poisoned { cause: "space plan too small".into() });
        let mut chunk_pointers = BTreeMap::new();
        for chunk in needed_chunks {
            let payload = space_pages::encode_chunk(&dirty[&chunk]);
            chunk_pointers.insert(chunk, write(next()?, Kind::SpaceChunk, 0, &payload)?);
        }
        let mut directories = self.directories.clone();
        directories.truncate(chunk_count.div_ceil(DIRECTORY_CHUNKS));
        for i in written_directories {
            let chunks = i * DIRECTORY_CHUNKS..((i + 1) * DIRECTORY_CHUNKS).min(chunk_count);
            let mut payload = Vec::with_capacity(page::PAYLOAD_BYTES);
            for chunk in chunks.clone() {
                let unchanged = if dirty.contains_key(&chunk) { None } else { self.chunks[chunk].pointer };
                let pointer = chunk_pointers.get(&chunk).copied().or(unchanged);
                payload.extend_from_slice(&encode_directory_entry(pointer, used[chunk]));
            }
            let pointer = write(next()?, Kind::SpaceDirectory, chunks.len(), &payload)?;
            match directories.get_mut(i) {
                Some(old) => *old = pointer,
                None => directories.push(pointer),
            }
        }
        let payload: Vec<u8> = directories.iter().flat_map(|pointer| pointer.encode()).collect();
        let index = write(next()?, Kind::SpaceIndex, directories.len(), &payload)?;
        let slots = (last_used * CHUNK_SLOTS) as u64 + last_bits;
        let freed = freed.into_iter().collect();
        Ok(Plan { dirty, chunk_pointers, directories, index, slots, freed })
    }

    fn mark(
        &mut self,
        store: &PageStore,
        dirty: &mut BTreeMap<usize, Box<Bits>>,
        slot: u64,
        used: bool,
    ) -> Result<()> {
        let (chunk, word, bit) = place(slot);
        if chunk >= self.chunks.len() {
            return Err(store.corruption_at(slot, "a page lies beyond the space map"));
        }
        let bits = match dirty.entry(chunk) {
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::btree_map::Entry::Vacant(entry) => {
                entry.insert(Box::new(self.bits(store, chunk)?.used))
            }
        };
        if (bits[word] & bit != 0) == used {
            return Err(store.corruption_at(slot, "the space map contradicts the use of a page"));
        }
        bits[word] ^= bit;
        Ok(())
    }

    /// Takes over a plan whose superblock is durable. The slots it freed of the map's own pages are free at
    /// once: nothing but the superseded superblock led to them.
    pub fn commit(&mut self, plan: Plan) {
        for (chunk, bits) in plan.dirty {
            let entry = &mut self.chunks[chunk];
            entry.used = used_count(&bits);
            entry.pointer = plan.chunk_pointers.get(&chunk).copied();
            if let Some(loaded) = &mut entry.bits {
                loaded.used = *bits;
            }
        }
        self.directories = plan.directories;
        self.index = Some(plan.index);
        self.release(plan.freed);
    }

    /// Gives up the free slots at the file's end; how many slots the file needs to have then.
    pub fn trim(&mut self, store: &PageStore) -> Result<u64> {
        while self.chunks.len() > 1
            && self.chunks.last().is_some_and(|last| last.taken == 0 && last.pointer.is_none())
            && self.chunks.len() > self.directories.len().saturating_sub(1) * DIRECTORY_CHUNKS
        {
            self.chunks.pop();
        }
        let last = self.chunks.len() - 1;
        self.end = (last * CHUNK_SLOTS) as u64 + bits_end(&self.bits(store, last)?.taken);
        self.end = self.end.max(SUPERBLOCK_SLOTS);
        self.lowest_free = self.lowest_free.min(self.end);
        Ok(self.end)
    }

    pub fn end(&self) -> u64 {
        self.end
    }

    /// How many slots may not be handed out, and how many of them are used.
    pub fn taken_and_used(&self) -> (u64, u64) {
        self.chunks.iter().fold((0, 0), |(taken, used), chunk| {
            (taken + u64::from(chunk.taken), used + u64::from(chunk.used))
        })
    }

    /// The pages of the map itself, as published.
    pub fn own_pages(&self) -> impl Iterator<Item = PagePointer> + '_ {
        let chunks = self.chunks.iter().filter_map(|chunk| chunk.pointer);
        self.index.into_iter().chain(self.directories.iter().copied()).chain(chunks)
    }
}

fn read(store: &PageStore, pointer: &PagePointer, kind: Kind, page: &mut page::Page) -> Result<()> {
    store.read_uncached(pointer, page)?;
    if !page::is(page, kind, 0) {
        return Err(store.corruption(pointer, "not the page of the space map that belongs here"));
    }
    Ok(())
}
