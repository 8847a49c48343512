//! Building the pages of one level of a tree from entries in key order.
//!
//! Owns: the entries that are not in a page yet, and where pages are cut. Promises: entries are held until
//! two pages are full, so that the last two pages of a stretch are balanced and none is tiny unless the
//! stretch is; all others come out nearly full. May call: nothing but the formats of pages.

use crate::error::Result;
use crate::limits::PAGE_BYTES;

use super::keyed::{self, head_of};
use super::leaf::LARGE_FLAG;
use super::page::{HEADER_BYTES, Head, Kind, Page, common_prefix};
use super::pointer::PagePointer;
use super::writer::PageWriter;

/// How full pages are made in a long stretch: with room for one more small record, so that the next one does
/// not split the page.
const FILL_BYTES: usize = PAGE_BYTES * 97 / 100;

/// Below this a stretch takes in its right neighbour.
const UNDERFULL_BYTES: usize = PAGE_BYTES / 3;

/// A page that is made, and has no place in the file yet.
pub(super) struct Made {
    /// Where its keys begin.
    pub lower: Vec<u8>,
    head: Head,
    page: Box<Page>,
    cached: bool,
}

impl Made {
    pub fn write(&self, writer: &mut PageWriter) -> Result<PagePointer> {
        writer.write(self.head, self.cached, |page| {
            page[HEADER_BYTES..].copy_from_slice(&self.page[HEADER_BYTES..]);
        })
    }
}

#[derive(Clone, Copy)]
struct Entry {
    /// Where key and data begin in the arena.
    at: usize,
    key_len: usize,
    data_len: usize,
    large: bool,
}

/// Builds leaves (level 0: an entry is a key and its value as stored) or inner pages (an entry is a separator
/// and the pointer to the child that begins there).
pub(super) struct Builder {
    level: u8,
    arena: Vec<u8>,
    entries: Vec<Entry>,
    /// The lower bound of the page that begins with the first entry.
    lower: Vec<u8>,
    has_lower: bool,
    /// Sums over all entries that are stored with their keys, and the prefix these share.
    key_bytes: usize,
    data_bytes: usize,
    prefix_len: usize,
    /// Whether the next page goes into the cache.
    pub cached: bool,
}

impl Builder {
    pub fn new(level: u8) -> Builder {
        Builder {
            level,
            arena: Vec::new(),
            entries: Vec::new(),
            lower: Vec::new(),
            has_lower: false,
            key_bytes: 0,
            data_bytes: 0,
            prefix_len: 0,
            cached: level > 0,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// The pointer of the first entry of an inner page.
    pub fn first_pointer(&self) -> Option<PagePointer> {
        self.entries.first().and_then(|entry| self.data(entry).first_chunk()).map(PagePointer::decode)
    }

    /// Says where the keys of the next stretch begin, if none is under way.
    pub fn begin(&mut self, lower: &[u8]) {
        if !self.has_lower {
            self.lower.clear();
            self.lower.extend_from_slice(lower);
            self.has_lower = true;
        }
    }

    /// Ends a stretch of which nothing is left.
    pub fn end(&mut self) {
        debug_assert!(self.is_empty());
        self.has_lower = false;
        self.cached = self.level > 0;
    }

    /// Appends an entry whose key is `prefix` and `suffix` in a row.
    #[inline]
    pub fn push(&mut self, prefix: &[u8], suffix: &[u8], data: &[u8], large: bool) {
        self.push_key(prefix, suffix);
        self.arena.extend_from_slice(data);
        self.finish_entry(large);
    }

    /// The first half of [`Builder::push`]: data is then appended to [`Builder::data_mut`], and
    /// `finish_entry` called.
    #[inline]
    pub fn push_key(&mut self, prefix: &[u8], suffix: &[u8]) {
        let at = self.arena.len();
        self.arena.extend_from_slice(prefix);
        self.arena.extend_from_slice(suffix);
        self.entries.push(Entry { at, key_len: prefix.len() + suffix.len(), data_len: 0, large: false });
    }

    pub fn data_mut(&mut self) -> &mut Vec<u8> {
        &mut self.arena
    }

    #[inline]
    pub fn finish_entry(&mut self, large: bool) {
        let end = self.arena.len();
        let last = self.entries.len() - 1;
        let entry = &mut self.entries[last];
        entry.large = large;
        entry.data_len = end - entry.at - entry.key_len;
        let (key_len, data_len) = (entry.key_len, entry.data_len);
        self.data_bytes += data_len;
        let first = self.first_key();
        if last >= first {
            self.key_bytes += key_len;
            self.prefix_len = if last == first {
                key_len
            } else {
                // Among sorted keys, what the first and the last share, all share.
                common_prefix(
                    &self.key(&self.entries[first])[..self.prefix_len],
                    self.key(&self.entries[last]),
                )
            };
        }
    }

    /// Whether two pages are full, so that the first of them can be written.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.pending_bytes() > 2 * FILL_BYTES
    }

    /// Whether what is pending would make a page that is hardly worth one.
    pub fn is_underfull(&self) -> bool {
        !self.is_empty() && self.pending_bytes() < UNDERFULL_BYTES
    }

    #[inline]
    fn pending_bytes(&self) -> usize {
        self.page_bytes(self.entries.len(), self.key_bytes, self.data_bytes, self.prefix_len)
    }

    /// Which entry is the first whose key is stored: an inner page stores no separator before its first
    /// child.
    #[inline]
    fn first_key(&self) -> usize {
        usize::from(self.level > 0)
    }

    /// The size of a page of so many entries, whose stored keys have these sums.
    #[inline]
    fn page_bytes(&self, entries: usize, key_bytes: usize, data_bytes: usize, prefix_len: usize) -> usize {
        let keys = entries - self.first_key().min(entries);
        let lengths = if self.level == 0 { 2 * keys } else { 0 };
        let prefix_len = if keys == 0 { 0 } else { prefix_len };
        keyed::index_bytes(prefix_len, keys) + lengths + key_bytes - keys * prefix_len + data_bytes
    }

    fn key(&self, entry: &Entry) -> &[u8] {
        &self.arena[entry.at..entry.at + entry.key_len]
    }

    fn data(&self, entry: &Entry) -> &[u8] {
        &self.arena[entry.at + entry.key_len..][..entry.data_len]
    }

    /// The size of a page of these entries.
    fn range_bytes(&self, from: usize, to: usize) -> usize {
        let entries = &self.entries[from..to];
        let keyed = &entries[self.first_key().min(entries.len())..];
        let key_bytes = keyed.iter().map(|entry| entry.key_len).sum();
        let data_bytes = entries.iter().map(|entry| entry.data_len).sum();
        self.page_bytes(entries.len(), key_bytes, data_bytes, self.shared_prefix(keyed))
    }

    fn shared_prefix(&self, keyed: &[Entry]) -> usize {
        match keyed {
            [] => 0,
            [only] => only.key_len,
            [first, .., last] => common_prefix(self.key(first), self.key(last)),
        }
    }

    /// How many entries make a page of at most `limit_bytes`; at least as many as make sense of a page at
    /// all, which always fit one.
    fn fitting(&self, limit_bytes: usize) -> usize {
        let first = self.first_key();
        let (mut key_bytes, mut data_bytes, mut prefix_len) = (0, 0, 0);
        for (i, entry) in self.entries.iter().enumerate() {
            data_bytes += entry.data_len;
            if i == first {
                prefix_len = entry.key_len;
            }
            if i >= first {
                key_bytes += entry.key_len;
                prefix_len = common_prefix(&self.key(&self.entries[first])[..prefix_len], self.key(entry));
            }
            if i > first && self.page_bytes(i + 1, key_bytes, data_bytes, prefix_len) > limit_bytes {
                return i;
            }
        }
        self.entries.len()
    }

    /// How many entries make the next page, when no more follow: all, or the half, or as many as fit.
    fn final_cut(&self) -> usize {
        let count = self.entries.len();
        if self.pending_bytes() <= PAGE_BYTES {
            return count;
        }
        let half = self.arena.len() / 2;
        let cut = self.entries.partition_point(|entry| entry.at < half).clamp(1, count - 1);
        let balanced = self.range_bytes(0, cut) <= PAGE_BYTES
            && self.range_bytes(cut, count) <= PAGE_BYTES
            && cut.min(count - cut) > self.first_key();
        if balanced { cut } else { self.fitting(PAGE_BYTES) }
    }

    /// The first of two full pages.
    pub fn make_full(&mut self) -> Made {
        self.make(self.fitting(FILL_BYTES))
    }

    /// The next page, when no more entries follow.
    pub fn make_final(&mut self) -> Made {
        self.make(self.final_cut())
    }

    fn make(&mut self, count: usize) -> Made {
        let (head, page) = self.make_page(count);
        let next_lower = self.entries.get(count).map(|next| {
            let next = self.key(next);
            match (self.level, self.entries[..count].last()) {
                // The shortest that is greater than the last key here and not greater than the next.
                (0, Some(last)) => next[..common_prefix(self.key(last), next) + 1].to_vec(),
                _ => next.to_vec(),
            }
        });
        let lower = std::mem::replace(&mut self.lower, next_lower.unwrap_or_default());
        self.remove_first(count);
        Made { lower, head, page, cached: self.cached }
    }

    fn remove_first(&mut self, count: usize) {
        let cut = self.entries.get(count).map_or(self.arena.len(), |entry| entry.at);
        self.arena.drain(..cut);
        self.entries.drain(..count);
        self.entries.iter_mut().for_each(|entry| entry.at -= cut);
        let keyed = &self.entries[self.first_key().min(self.entries.len())..];
        self.key_bytes = keyed.iter().map(|entry| entry.key_len).sum();
        self.prefix_len = self.shared_prefix(keyed);
        self.data_bytes = self.entries.iter().map(|entry| entry.data_len).sum();
    }

    /// A page of the first entries, all but its header.
    fn make_page(&self, count: usize) -> (Head, Box<Page>) {
        let entries = &self.entries[..count];
        let keyed = &entries[self.first_key()..];
        let prefix_len = self.shared_prefix(keyed);
        let kind = if self.level == 0 { Kind::Leaf } else { Kind::Inner };
        let head = Head { kind, level: self.level, count: keyed.len(), prefix_len };
        let mut page = Box::new([0; PAGE_BYTES]);
        if let Some(first) = keyed.first() {
            page[HEADER_BYTES..][..prefix_len].copy_from_slice(&self.key(first)[..prefix_len]);
        }
        let mut head_at = keyed::heads_at(prefix_len);
        let mut offset_at = head_at + 4 * keyed.len();
        let mut at = keyed::index_bytes(prefix_len, keyed.len());
        if self.level > 0 {
            for entry in entries {
                page[at..at + PagePointer::BYTES].copy_from_slice(self.data(entry));
                at += PagePointer::BYTES;
            }
        }
        for entry in keyed {
            let suffix = &self.key(entry)[prefix_len..];
            page[head_at..head_at + 4].copy_from_slice(&head_of(suffix).to_le_bytes());
            page[offset_at..offset_at + 2].copy_from_slice(&(at as u16).to_le_bytes());
            (head_at, offset_at) = (head_at + 4, offset_at + 2);
            if self.level == 0 {
                let flag = if entry.large { LARGE_FLAG } else { 0 };
                page[at..at + 2].copy_from_slice(&(suffix.len() as u16 | flag).to_le_bytes());
                at += 2;
            }
            page[at..at + suffix.len()].copy_from_slice(suffix);
            at += suffix.len();
            if self.level == 0 {
                page[at..at + entry.data_len].copy_from_slice(self.data(entry));
                at += entry.data_len;
            }
        }
        page[offset_at..offset_at + 2].copy_from_slice(&(at as u16).to_le_bytes());
        (head, page)
    }
}
