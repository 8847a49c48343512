//! Several sorted streams of versions as one.
//!
//! Owns: the tournament between the streams. Promises: versions in order, each once, also if several streams
//! have it; one comparison for each level of the tournament for each version. May call: `layer`, `error`, and
//! key heads.
//!
//! A tree of losers (Knuth, The Art of Computer Programming, volume 3, 5.4.1): each inner node keeps the
//! stream that lost there, so that replacing the winner takes one comparison on each level of its path.

use std::cmp::Ordering;

use super::key_head::head_u64;
use crate::error::Result;
use crate::layer::{Key, Versions};

/// The versions of several streams, merged. After an error it must not be used any more.
pub(crate) struct MergedVersions {
    streams: Vec<Box<dyn Versions>>,
    fronts: Vec<Front>,
    /// `tree[0]` is the stream with the first version; behind it the losers: those of node n's players come
    /// from 2n and 2n + 1, and stream s plays first at node (s + streams) / 2.
    tree: Vec<usize>,
    started: bool,
}

/// What most comparisons need of a stream's current version.
#[derive(Clone, Copy)]
struct Front {
    /// The table, then the head of the key; above all tables at the end of the stream.
    order: u128,
    seq: u64,
    /// It lost against the same version in another stream, which is therefore handed out before it.
    duplicate: bool,
}

const END: u128 = u128::MAX;
const NOBODY: usize = usize::MAX;

impl MergedVersions {
    pub fn new(streams: Vec<Box<dyn Versions>>) -> MergedVersions {
        let fronts = vec![Front { order: END, seq: 0, duplicate: false }; streams.len()];
        let tree = vec![NOBODY; streams.len()];
        MergedVersions { streams, fronts, tree, started: false }
    }

    fn start(&mut self) -> Result<()> {
        self.started = true;
        for stream in 0..self.streams.len() {
            self.advance_stream(stream)?;
            self.play(stream);
        }
        Ok(())
    }

    #[inline]
    fn advance_stream(&mut self, at: usize) -> Result<()> {
        let stream = &mut self.streams[at];
        self.fronts[at] = if stream.advance()? {
            let key = stream.key();
            let order = u128::from(key.table) << 64 | u128::from(head_u64(key.bytes));
            Front { order, seq: stream.seq(), duplicate: false }
        } else {
            Front { order: END, seq: 0, duplicate: false }
        };
        Ok(())
    }

    /// Lets a stream play its way up.
    #[inline]
    fn play(&mut self, stream: usize) {
        let mut winner = stream;
        let mut node = (stream + self.streams.len()) / 2;
        while node > 0 {
            let other = self.tree[node];
            if other == NOBODY {
                // Only at the start: the one who comes second plays on.
                self.tree[node] = winner;
                return;
            }
            if self.beats(other, winner) {
                self.tree[node] = winner;
                winner = other;
            }
            node /= 2;
        }
        self.tree[0] = winner;
    }

    #[inline]
    fn beats(&mut self, a: usize, b: usize) -> bool {
        let (order_a, order_b) = (self.fronts[a].order, self.fronts[b].order);
        if order_a != order_b {
            return order_a < order_b;
        }
        self.beats_with_equal_head(a, b)
    }

    fn beats_with_equal_head(&mut self, a: usize, b: usize) -> bool {
        if self.fronts[a].order == END {
            return a < b;
        }
        let keys = self.streams[a].key().bytes.cmp(self.streams[b].key().bytes);
        match keys.then(self.fronts[b].seq.cmp(&self.fronts[a].seq)) {
            Ordering::Less => true,
            Ordering::Greater => false,
            Ordering::Equal => {
                self.fronts[a.max(b)].duplicate = true;
                a < b
            }
        }
    }
}

impl Versions for MergedVersions {
    #[inline]
    fn advance(&mut self) -> Result<bool> {
        if self.streams.is_empty() {
            return Ok(false);
        }
        if !self.started {
            self.start()?;
            return Ok(self.fronts[self.tree[0]].order != END);
        }
        loop {
            let winner = self.tree[0];
            if self.fronts[winner].order == END {
                return Ok(false);
            }
            self.advance_stream(winner)?;
            self.play(winner);
            let front = self.fronts[self.tree[0]];
            if !front.duplicate {
                return Ok(front.order != END);
            }
        }
    }

    #[inline]
    fn key(&self) -> Key<'_> {
        self.streams[self.tree[0]].key()
    }

    #[inline]
    fn seq(&self) -> u64 {
        self.fronts[self.tree[0]].seq
    }

    #[inline]
    fn load(&mut self) -> Result<()> {
        self.streams[self.tree[0]].load()
    }

    fn loaded(&self) -> Result<Option<&[u8]>> {
        self.streams[self.tree[0]].loaded()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Version = (u32, Vec<u8>, u64, Option<Vec<u8>>);

    struct List {
        versions: std::vec::IntoIter<Version>,
        current: Version,
    }

    impl Versions for List {
        fn advance(&mut self) -> Result<bool> {
            let next = self.versions.next();
            Ok(next.map(|next| self.current = next).is_some())
        }

        fn key(&self) -> Key<'_> {
            Key { table: self.current.0, bytes: &self.current.1 }
        }

        fn seq(&self) -> u64 {
            self.current.2
        }

        fn loaded(&self) -> Result<Option<&[u8]>> {
            Ok(self.current.3.as_deref())
        }
    }

    fn merged(lists: &[Vec<Version>]) -> Vec<Version> {
        let stream = |list: &Vec<Version>| -> Box<dyn Versions> {
            Box::new(List { versions: list.clone().into_iter(), current: (0, Vec::new(), 0, None) })
        };
        let mut merged = MergedVersions::new(lists.iter().map(stream).collect());
        let mut out = Vec::new();
        while merged.advance().unwrap() {
            let value = merged.value().unwrap().map(<[u8]>::to_vec);
            out.push((merged.key().table, merged.key().bytes.to_vec(), merged.seq(), value));
        }
        assert!(!merged.advance().unwrap(), "the end is the end");
        out
    }

    fn version(table: u32, key: &str, seq: u64) -> Version {
        (table, key.into(), seq, (!seq.is_multiple_of(3)).then(|| seq.to_le_bytes().to_vec()))
    }

    #[test]
    fn nothing_merges_to_nothing() {
        assert!(merged(&[]).is_empty());
        assert!(merged(&[vec![]]).is_empty());
        assert!(merged(&[vec![], vec![], vec![]]).is_empty());
    }

    #[test]
    fn one_stream_stays_as_it_is() {
        let list = vec![version(1, "a", 2), version(1, "a", 1), version(2, "", 9)];
        assert_eq!(merged(std::slice::from_ref(&list)), list);
    }

    #[test]
    fn keys_that_differ_behind_their_heads_are_told_apart() {
        let (a, b) = (version(1, "same head, a", 5), version(1, "same head, b", 5));
        assert_eq!(merged(&[vec![b.clone()], vec![a.clone()]]), [a, b]);
        let (short, long) = (version(1, "x", 5), version(1, "x\0", 5));
        assert_eq!(merged(&[vec![long.clone()], vec![short.clone()]]), [short, long]);
    }

    #[test]
    fn the_highest_table_and_head_are_not_taken_for_the_end() {
        let last = (u32::MAX, vec![0xff; 9], 0, None);
        assert_eq!(merged(&[vec![last.clone()], vec![]]), [last]);
    }

    #[test]
    fn a_version_in_every_stream_comes_once() {
        let list = vec![version(1, "a", 2), version(1, "a", 1), version(1, "b", 2)];
        for count in 1..10 {
            assert_eq!(merged(&vec![list.clone(); count]), list);
        }
    }

    #[test]
    fn random_streams_merge_as_sorting_does() {
        let mut state = 0x5eed_u64;
        let mut random = move |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for round in 0..300 {
            let mut lists = vec![Vec::new(); random(12) as usize];
            for list in &mut lists {
                for _ in 0..random(60) {
                    let key = ["", "k", "long key 1", "long key 2", "long ke"][random(5) as usize];
                    list.push(version(random(3) as u32, key, random(40)));
                }
                sort(list);
            }
            let mut expected = lists.concat();
            sort(&mut expected);
            assert_eq!(merged(&lists), expected, "round {round}");
        }
    }

    fn sort(list: &mut Vec<Version>) {
        list.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)).then(b.2.cmp(&a.2)));
        list.dedup();
    }
}
