//! Memory for the pages that a transaction writes.
//!
//! Owns: [`Frames`]. Promises: what was put is got; the commit gets pages where they lie, in the order of their
//! numbers; memory is used again by the next transaction, so that neither the allocator nor the system has to give it
//! each time. May call: nothing.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use bygone::Value;

/// Frames come in chunks of so many bytes.
const CHUNK_BYTES: usize = 256 << 10;

/// So much is kept for the next transaction: twice what SQLite's own cache holds unless told otherwise.
const KEPT_BYTES_MAX: usize = 4 << 20;

/// Pages by their numbers.
#[derive(Default)]
pub(crate) struct Frames {
    /// The size of a frame.
    page_bytes: usize,
    index: HashMap<u32, Frame, BuildHasherDefault<PageHasher>>,
    chunks: Vec<Arc<Vec<u8>>>,
    /// How many frames were given out.
    used: usize,
}

/// Where a page lies.
#[derive(Clone, Copy)]
struct Frame {
    number: u32,
    length: u32,
}

impl Frames {
    /// Pages to come have this size at most. There are none yet.
    pub fn begin(&mut self, page_bytes: u32) {
        self.clear();
        self.page_bytes = page_bytes as usize;
        for chunk in &mut self.chunks {
            // Somebody may have pages of the transaction before still.
            if Arc::get_mut(chunk).is_none() {
                *chunk = Arc::default();
            }
        }
    }

    /// Forgets all pages.
    pub fn clear(&mut self) {
        self.index.clear();
        self.index.shrink_to(KEPT_BYTES_MAX / 4096);
        self.chunks.truncate(KEPT_BYTES_MAX / CHUNK_BYTES);
        self.used = 0;
    }

    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    pub fn contains(&self, page: u32) -> bool {
        self.index.contains_key(&page)
    }

    pub fn get(&self, page: u32) -> Option<&[u8]> {
        let frame = self.index.get(&page)?;
        let (chunk, at) = self.place(frame.number);
        Some(&self.chunks[chunk][at..at + frame.length as usize])
    }

    /// Puts a page, or another in its place.
    pub fn put(&mut self, page: u32, bytes: &[u8]) {
        assert!(bytes.len() <= self.page_bytes, "a page fits its frame");
        let length = bytes.len() as u32;
        let number = match self.index.get_mut(&page) {
            Some(frame) => {
                frame.length = length;
                frame.number
            }
            None => {
                let number = self.used as u32;
                self.used += 1;
                self.index.insert(page, Frame { number, length });
                number
            }
        };
        let (chunk, at) = self.place(number);
        if chunk == self.chunks.len() {
            self.chunks.push(Arc::default());
        }
        let chunk = &mut self.chunks[chunk];
        if chunk.is_empty() {
            *chunk = Arc::new(vec![0; CHUNK_BYTES]);
        }
        // A copy only if this very transaction's pages were given out before it was done.
        Arc::make_mut(chunk)[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Forgets the pages behind this one.
    pub fn cut(&mut self, pages: u32) {
        self.index.retain(|page, _| *page <= pages);
    }

    /// The pages, in the order of their numbers. Until the last of these values is gone, their memory is not used
    /// again.
    pub fn values(&self) -> impl Iterator<Item = (u32, Value)> {
        let mut pages: Vec<_> = self.index.iter().map(|(page, frame)| (*page, *frame)).collect();
        pages.sort_unstable_by_key(|(page, _)| *page);
        pages.into_iter().map(|(page, frame)| {
            let (chunk, at) = self.place(frame.number);
            (page, Value::part_of(&self.chunks[chunk], at..at + frame.length as usize))
        })
    }

    /// The chunk of a frame, and where in it.
    fn place(&self, number: u32) -> (usize, usize) {
        let in_chunk = CHUNK_BYTES / self.page_bytes;
        (number as usize / in_chunk, number as usize % in_chunk * self.page_bytes)
    }
}

/// Numbers of pages are dense, and nobody chooses them to collide: a multiplication spreads them well enough.
#[derive(Default)]
struct PageHasher(u64);

impl Hasher for PageHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(u32::from(*byte)));
    }

    fn write_u32(&mut self, number: u32) {
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn addresses(frames: &Frames) -> Vec<*const u8> {
        frames.chunks.iter().map(|chunk| chunk.as_ptr()).collect()
    }

    #[test]
    fn pages_are_what_was_put_last_and_come_in_their_order() {
        let mut frames = Frames::default();
        let mut random = Random(7);
        for page_bytes in [512, 4096, 65_536, 4096] {
            frames.begin(page_bytes);
            assert!(frames.is_empty());
            let mut model = std::collections::BTreeMap::new();
            for step in 0..3000u64 {
                let page = 1 + random.below(400) as u32;
                if step % 1000 == 999 {
                    frames.cut(page);
                    model.retain(|other, _| *other <= page);
                }
                let bytes = vec![step as u8; random.below(u64::from(page_bytes) + 1) as usize];
                frames.put(page, &bytes);
                model.insert(page, bytes);
                let page = 1 + random.below(400) as u32;
                assert_eq!(frames.get(page), model.get(&page).map(Vec::as_slice));
                assert_eq!(frames.contains(page), model.contains_key(&page));
            }
            let found: Vec<_> = frames.values().map(|(page, value)| (page, value.into_vec())).collect();
            assert!(found.into_iter().eq(model));
        }
    }

    #[test]
    fn memory_is_used_again_but_not_under_who_has_pages_still() {
        let mut frames = Frames::default();
        let fill = |frames: &mut Frames, byte: u8| {
            frames.begin(4096);
            (1..=200).for_each(|page| frames.put(page, &[byte; 4000]));
            let values: Vec<_> = frames.values().collect();
            frames.clear();
            assert!(frames.get(1).is_none() && frames.values().next().is_none());
            values
        };
        let values = fill(&mut frames, 1);
        let first = addresses(&frames);
        assert_eq!(first.len(), 4);
        drop(values);
        let values = fill(&mut frames, 2);
        assert_eq!(addresses(&frames), first, "the memory that it had");
        drop(fill(&mut frames, 3));
        assert!(addresses(&frames).iter().all(|address| !first.contains(address)));
        assert!(values.iter().all(|(_, value)| value[..] == [2; 4000]));
    }

    #[test]
    fn pages_that_were_given_out_stay_as_they_are() {
        let mut frames = Frames::default();
        frames.begin(512);
        frames.put(1, &[1; 512]);
        frames.put(2, &[2; 512]);
        let values: Vec<_> = frames.values().collect();
        frames.put(1, &[3; 512]);
        assert_eq!(values[0].1[..], [1; 512]);
        assert_eq!((frames.get(1), frames.get(2)), (Some(&[3; 512][..]), Some(&[2; 512][..])));
    }

    #[test]
    fn no_more_is_kept_than_said() {
        let mut frames = Frames::default();
        frames.begin(65_536);
        (1..=200).for_each(|page| frames.put(page, &[7; 65_536]));
        frames.clear();
        assert_eq!(frames.chunks.len() * CHUNK_BYTES, KEPT_BYTES_MAX);
    }
}
