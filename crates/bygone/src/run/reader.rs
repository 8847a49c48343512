//! Opening a run, and looking keys up in it.
//!
//! Owns: the open file with its index and filter in memory, and the way from a block's number to its checked
//! bytes. Promises: what is answered was written, or the answer is `Error::Corruption`. May call: `io`,
//! `cache`, `layer`, `error`, and the formats beside it.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::block::{Block, Stored, VersionPlace};
use super::cursor::RunCursor;
use super::filter::Filter;
use super::format::{FOOTER_BYTES, Footer, HEADER_BYTES, Header, OutsideValue, RunMeta};
use super::index::{BlockPlace, Index};
use super::versions::RunVersions;
use crate::cache::{self, Cache, FrameTable, NewFrame};
use crate::error::{Error, Result};
use crate::io::{Disk, File, OpenMode};
use crate::layer::{HashedKey, Lookup};

/// An open run. Shared by all views that have it in their stack.
pub(crate) struct Run {
    file: File,
    meta: RunMeta,
    pub(super) footer: Footer,
    pub(super) hash_seed: u64,
    pub(super) index: Index,
    pub(super) filter: Filter,
    /// Blocks by their number, tagged with the run's id.
    frames: Arc<FrameTable>,
}

/// What a search in one block came to.
enum Found {
    Version {
        seq: u64,
        deleted: bool,
    },
    Outside {
        seq: u64,
        value: OutsideValue,
    },
    /// Another key stands there: the run does not have it.
    Nothing,
    /// All records stand before: look at the next block.
    Further,
}

impl Run {
    /// Opens the run that `meta` remembers: reads index and filter, and checks everything but blocks and
    /// values.
    ///
    /// A missing file is corruption, like one that holds anything else than this run.
    pub fn open(
        disk: &dyn Disk,
        path: &Path,
        meta: &RunMeta,
        hash_seed: u64,
        cache: &Arc<Cache>,
    ) -> Result<Arc<Run>> {
        let file = match File::open(disk, path, OpenMode::Read) {
            Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                return Err(Error::corruption(path, 0, "this run is missing"));
            }
            opened => opened?,
        };
        let footer = read_fixed_parts(&file, meta, hash_seed)?;
        let (index, filter) = read_index_and_filter(&file, &footer)?;
        let frames = FrameTable::new(cache);
        Ok(Arc::new(Run { file, meta: *meta, footer, hash_seed, index, filter, frames }))
    }

    pub fn path(&self) -> &Path {
        self.file.path()
    }

    pub fn meta(&self) -> &RunMeta {
        &self.meta
    }

    /// What the run takes in memory, without cached blocks.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Run>() + self.index.memory_bytes() + self.filter.len_bytes()
    }

    /// Begins to bring into the processor's cache what looking for this key needs first.
    #[inline]
    pub fn prefetch(&self, key: &HashedKey<'_>, seq: u64) {
        if seq >= self.meta.min_seq {
            self.filter.prefetch(key.hash);
        }
    }

    /// Looks for the newest version of a key that is not newer than `seq`. Hands a value that is found to
    /// `found`, once.
    #[inline]
    pub fn get(&self, key: &HashedKey<'_>, seq: u64, found: &mut dyn FnMut(&[u8])) -> Result<Lookup> {
        if seq < self.meta.min_seq {
            return Ok(Lookup::Absent);
        }
        match self.find(key, VersionPlace::AtMost(seq), found)? {
            Found::Version { deleted: true, .. } => Ok(Lookup::Deleted),
            Found::Version { .. } => Ok(Lookup::Found),
            Found::Outside { value, .. } => {
                let mut bytes = Vec::new();
                self.read_outside(value, &mut bytes)?;
                found(&bytes);
                Ok(Lookup::Found)
            }
            Found::Nothing | Found::Further => Ok(Lookup::Absent),
        }
    }

    /// The sequence number of the newest version of a key, deletions included.
    pub fn newest_seq(&self, key: &HashedKey<'_>) -> Result<Option<u64>> {
        self.version_seq(key, u64::MAX)
    }

    /// The sequence number of the newest version of a key that is not newer than `seq`, deletions included.
    pub fn version_seq(&self, key: &HashedKey<'_>, seq: u64) -> Result<Option<u64>> {
        Ok(match self.find(key, VersionPlace::AtMost(seq), &mut |_| {})? {
            Found::Version { seq, .. } | Found::Outside { seq, .. } => Some(seq),
            Found::Nothing | Found::Further => None,
        })
    }

    /// The sequence number of the oldest version of a key that is newer than `seq`, deletions included.
    pub fn next_seq(&self, key: &HashedKey<'_>, seq: u64) -> Result<Option<u64>> {
        if seq >= self.meta.max_seq || !self.filter.may_contain(key.hash) {
            return Ok(None);
        }
        let (table, bytes) = (key.key.table, key.key.bytes);
        let place = VersionPlace::AtMost(seq);
        let Some(number) = self.index.search(table, bytes, place) else { return Ok(None) };
        // Versions of a key are sorted newest first, so it is the record just before that place.
        let version = |block: Block<'_>, before: usize| {
            let record = block.record(before)?;
            Some(block.is_key(&record, bytes).then_some(record.seq))
        };
        let found =
            self.with_block(number, |block| match block.lower_bound(bytes, place)?.checked_sub(1) {
                Some(before) => version(block, before).map(Some),
                None => Some(None),
            })?;
        match found {
            Some(found) => Ok(found),
            None if self.index.table_blocks(table).start == number => Ok(None),
            None => self.with_block(number - 1, |block| version(block, block.count().checked_sub(1)?)),
        }
    }

    /// A cursor over a table as of a sequence number. Uses the cache.
    pub fn cursor(self: &Arc<Self>, table: u32, seq: u64) -> RunCursor {
        RunCursor::new(self.clone(), table, seq)
    }

    /// All versions in order. Reads ahead and leaves the cache alone.
    pub fn versions(self: &Arc<Self>) -> RunVersions {
        RunVersions::new(self.clone())
    }

    #[inline]
    fn find(&self, key: &HashedKey<'_>, place: VersionPlace, found: &mut dyn FnMut(&[u8])) -> Result<Found> {
        if !self.filter.may_contain(key.hash) {
            return Ok(Found::Nothing);
        }
        let (table, bytes) = (key.key.table, key.key.bytes);
        let Some(number) = self.index.search(table, bytes, place) else { return Ok(Found::Nothing) };
        match self.find_in_block(number, bytes, place, found)? {
            Found::Further if self.index.continues(number + 1, table, bytes) => {
                self.find_in_block(number + 1, bytes, place, found)
            }
            answer => Ok(answer),
        }
    }

    fn find_in_block(
        &self,
        number: usize,
        key: &[u8],
        place: VersionPlace,
        found: &mut dyn FnMut(&[u8]),
    ) -> Result<Found> {
        self.with_block(number, |block| {
            let at = block.lower_bound(key, place)?;
            if at == block.count() {
                return Some(Found::Further);
            }
            let record = block.record(at)?;
            if !block.is_key(&record, key) {
                return Some(Found::Nothing);
            }
            let seq = record.seq;
            Some(match record.stored {
                Stored::Deletion => Found::Version { seq, deleted: true },
                Stored::Inline(value) => {
                    found(value);
                    Found::Version { seq, deleted: false }
                }
                Stored::Outside(value) => Found::Outside { seq, value },
            })
        })
    }

    /// Hands a checked block to `read`, from the cache or from the file; `None` from it means that the block
    /// makes no sense.
    #[inline]
    pub(super) fn with_block<T>(
        &self,
        number: usize,
        read: impl FnOnce(Block<'_>) -> Option<T>,
    ) -> Result<T> {
        let guard = cache::pin();
        let frame = match self.frames.get(number as u64, &guard) {
            Some(frame) if frame.tag() == self.meta.id => frame,
            _ => {
                let place = self.block_place(number)?;
                let mut frame = NewFrame::new(place.bytes as usize, self.meta.id);
                self.file.read_at(&mut frame, place.offset)?;
                self.check_block(place, &frame)?;
                self.frames.insert(number as u64, frame, &guard)
            }
        };
        Block::decode(frame.bytes()).and_then(read).ok_or_else(|| self.damaged_block(number))
    }

    fn block_place(&self, number: usize) -> Result<BlockPlace> {
        self.index.block(number).ok_or_else(|| self.damaged_block(number))
    }

    pub(super) fn check_block(&self, place: BlockPlace, bytes: &[u8]) -> Result<()> {
        if crc32c::crc32c(bytes) == place.checksum {
            return Ok(());
        }
        Err(self.corruption(place.offset, "the checksum of this block does not match"))
    }

    #[cold]
    pub(super) fn damaged_block(&self, number: usize) -> Error {
        let offset = self.index.block(number).map_or(self.footer.index_offset, |place| place.offset);
        self.corruption(offset, "this block makes no sense")
    }

    #[cold]
    pub(super) fn corruption(&self, offset: u64, reason: &str) -> Error {
        Error::corruption(self.file.path(), offset, reason)
    }

    /// Reads blocks that lie side by side; checking them is the caller's.
    pub(super) fn read_blocks(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.file.read_at(buffer, offset)
    }

    /// Reads a value that is stored outside the blocks, in place of what is in `buffer`.
    pub(super) fn read_outside(&self, value: OutsideValue, buffer: &mut Vec<u8>) -> Result<()> {
        let end = value.offset.checked_add(u64::from(value.bytes));
        if value.offset < HEADER_BYTES as u64 || end.is_none_or(|end| end > self.footer.index_offset) {
            return Err(
                self.corruption(value.offset, "a value was expected here, outside of where values lie")
            );
        }
        buffer.clear();
        buffer.resize(value.bytes as usize, 0);
        self.file.read_at(buffer, value.offset)?;
        if crc32c::crc32c(buffer) != value.checksum {
            return Err(self.corruption(value.offset, "the checksum of this value does not match"));
        }
        Ok(())
    }

    /// Checks header, footer, index and filter as they are in the file now.
    pub(super) fn check_fixed_parts(&self) -> Result<()> {
        let footer = read_fixed_parts(&self.file, &self.meta, self.hash_seed)?;
        read_index_and_filter(&self.file, &footer).map(|_| ())
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run").field("path", &self.file.path()).field("meta", &self.meta).finish()
    }
}

fn read_fixed_parts(file: &File, meta: &RunMeta, hash_seed: u64) -> Result<Footer> {
    let path = file.path();
    let bytes = file.len()?;
    if bytes != meta.bytes || bytes < (HEADER_BYTES + FOOTER_BYTES) as u64 {
        let reason = format!("the file has {bytes} bytes instead of {}", meta.bytes);
        return Err(Error::corruption(path, bytes.min(meta.bytes), reason));
    }
    let mut header = [0; HEADER_BYTES];
    file.read_at(&mut header, 0)?;
    let header = Header::decode(&header, path)?;
    if header != (Header { id: meta.id, hash_seed }) {
        return Err(Error::corruption(path, 0, "this is another run, or one of another database"));
    }
    let mut footer = [0; FOOTER_BYTES];
    file.read_at(&mut footer, bytes - FOOTER_BYTES as u64)?;
    Footer::decode(&footer, path, meta)
}

fn read_index_and_filter(file: &File, footer: &Footer) -> Result<(Index, Filter)> {
    let damaged = |offset, reason| Error::corruption(file.path(), offset, reason);
    // The lengths were checked against the file's own: what is allocated here can be read.
    let read = |offset, bytes: u64| {
        let bytes = usize::try_from(bytes).map_err(|_| damaged(offset, "too large for this machine"))?;
        let mut buffer = vec![0; bytes];
        file.read_at(&mut buffer, offset)?;
        Ok(buffer)
    };
    let index = read(footer.index_offset, footer.index_bytes)?;
    if crc32c::crc32c(&index) != footer.index_checksum {
        return Err(damaged(footer.index_offset, "the checksum of the index does not match"));
    }
    let index = Index::decode(&index, footer.blocks, footer.index_offset)
        .ok_or_else(|| damaged(footer.index_offset, "the index makes no sense"))?;
    let filter_offset = footer.index_offset + footer.index_bytes;
    let filter = read(filter_offset, footer.filter_bytes)?;
    if crc32c::crc32c(&filter) != footer.filter_checksum {
        return Err(damaged(filter_offset, "the checksum of the filter does not match"));
    }
    let filter =
        Filter::from_bytes(&filter).ok_or_else(|| damaged(filter_offset, "the filter makes no sense"))?;
    Ok((index, filter))
}
