//! The bytes of a simulated file.
//!
//! Owns: chunks that copies share until one of them is written to. Promises: a copy costs a pointer per
//! chunk, and zeros that were never overwritten cost nothing. May call: nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

const CHUNK_BYTES: usize = 4096;

/// What one write brought. Preallocation writes long stretches of zeros; they are not kept as bytes.
#[derive(Clone, Debug)]
pub(super) enum Data {
    Zeros(usize),
    Bytes(Arc<[u8]>),
}

impl Data {
    pub fn new(bytes: &[u8]) -> Data {
        if bytes.iter().all(|b| *b == 0) { Data::Zeros(bytes.len()) } else { Data::Bytes(bytes.into()) }
    }

    pub fn len(&self) -> usize {
        match self {
            Data::Zeros(len) => *len,
            Data::Bytes(bytes) => bytes.len(),
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    len: u64,
    /// By the index of the chunk; what is missing is zeros. Bytes of a chunk past the end of the file are
    /// zeros too.
    chunks: BTreeMap<u64, Arc<[u8; CHUNK_BYTES]>>,
}

impl Content {
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether all of `buffer` could be filled.
    pub fn read(&self, buffer: &mut [u8], offset: u64) -> bool {
        if offset.checked_add(buffer.len() as u64).is_none_or(|end| end > self.len) {
            return false;
        }
        for (chunk, at, range) in pieces(offset, buffer.len()) {
            let into = &mut buffer[range];
            match self.chunks.get(&chunk) {
                Some(bytes) => into.copy_from_slice(&bytes[at..at + into.len()]),
                None => into.fill(0),
            }
        }
        true
    }

    /// Writes the part `from..to` of `data`, all of which would stand at `offset`.
    pub fn write_part(&mut self, data: &Data, offset: u64, from: usize, to: usize) {
        let start = offset + from as u64;
        self.len = self.len.max(start + (to - from) as u64);
        for (chunk, at, range) in pieces(start, to - from) {
            match data {
                Data::Zeros(_) if range.len() == CHUNK_BYTES => {
                    self.chunks.remove(&chunk);
                }
                Data::Zeros(_) => {
                    if let Some(bytes) = self.chunks.get_mut(&chunk) {
                        Arc::make_mut(bytes)[at..at + range.len()].fill(0);
                    }
                }
                Data::Bytes(source) => {
                    let source = &source[from + range.start..from + range.end];
                    let bytes = self.chunks.entry(chunk).or_insert_with(|| Arc::new([0; CHUNK_BYTES]));
                    Arc::make_mut(bytes)[at..at + source.len()].copy_from_slice(source);
                }
            }
        }
    }

    pub fn write(&mut self, data: &Data, offset: u64) {
        self.write_part(data, offset, 0, data.len());
    }

    pub fn set_len(&mut self, len: u64) {
        if len < self.len {
            let (last, at) = (len / CHUNK_BYTES as u64, (len % CHUNK_BYTES as u64) as usize);
            let _cut = self.chunks.split_off(&(last + u64::from(at > 0)));
            if at > 0
                && let Some(bytes) = self.chunks.get_mut(&last)
            {
                Arc::make_mut(bytes)[at..].fill(0);
            }
        }
        self.len = len;
    }
}

/// Splits `len` bytes at `offset` by chunks: index of the chunk, offset in it, range within the `len` bytes.
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let position = offset + done as u64;
        let at = (position % CHUNK_BYTES as u64) as usize;
        let count = (CHUNK_BYTES - at).min(len - done);
        let range = done..done + count;
        done += count;
        Some((position / CHUNK_BYTES as u64, at, range))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_does_what_a_plain_vector_does() {
        let mut random = 1u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % below
        };
        let (mut content, mut model) = (Content::default(), Vec::<u8>::new());
        for round in 0..2000 {
            let offset = next(20_000);
            let len = next(10_000) as usize;
            match next(4) {
                0 => {
                    content.set_len(offset);
                    model.resize(offset as usize, 0);
                }
                kind => {
                    let bytes = vec![if kind == 1 { 0 } else { round as u8 | 1 }; len];
                    content.write(&Data::new(&bytes), offset);
                    if len > 0 {
                        model.resize(model.len().max(offset as usize + len), 0);
                        model[offset as usize..offset as usize + len].copy_from_slice(&bytes);
                    } else {
                        model.resize(model.len().max(offset as usize), 0);
                    }
                }
            }
            assert_eq!(content.len(), model.len() as u64);
            let mut all = vec![7; model.len()];
            assert!(content.read(&mut all, 0));
            assert!(all == model, "round {round}");
            assert!(!content.read(&mut [0], content.len()));
        }
    }

    #[test]
    fn zeros_cost_nothing_and_copies_are_independent() {
        let mut content = Content::default();
        content.write(&Data::new(&vec![0; 64 << 20]), 0);
        assert_eq!(content.chunks.len(), 0);
        content.write(&Data::new(b"x"), 5000);
        let copy = content.clone();
        content.write(&Data::new(b"y"), 5000);
        let mut byte = [0];
        assert!(copy.read(&mut byte, 5000));
        assert_eq!(&byte, b"x");
    }
}
