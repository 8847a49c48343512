//! Randomised tests against a plain model. A failure names its seed.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::tests::{at, get, hashed, put};
use super::*;
use crate::layer::{Key, LayerCursor, Versions};
use crate::random::Random;

/// Keys that are alike in awkward ways: shared prefixes, trailing zeros, all lengths.
fn random_key(random: &mut Random) -> Vec<u8> {
    let letters: &[u8] = &[0, 0, 1, b'a', b'b', 0xff];
    let length = [0, 1, 2, 3, 7, 8, 9, 12, 16, 17][random.below(10) as usize];
    let mut key = vec![letters[random.below(6) as usize]; length];
    for _ in 0..2 {
        if !key.is_empty() {
            let place = random.below(key.len() as u64) as usize;
            key[place] = letters[random.below(6) as usize];
        }
    }
    key
}

type TableKey = (u32, Vec<u8>);
type VersionsOfKey = BTreeMap<u64, Option<Vec<u8>>>;

#[derive(Default)]
struct Model {
    keys: BTreeMap<TableKey, VersionsOfKey>,
}

impl Model {
    fn get(&self, seq: u64, table: u32, key: &[u8]) -> Option<Option<Vec<u8>>> {
        Some(self.keys.get(&(table, key.to_vec()))?.range(..=seq).next_back()?.1.clone())
    }

    fn visible(
        &self,
        seq: u64,
        range: (Bound<TableKey>, Bound<TableKey>),
        table: u32,
        last: bool,
    ) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
        let mut found = self.keys.range(range).filter_map(|((of, key), versions)| {
            let (_, value) = versions.range(..=seq).next_back()?;
            (*of == table).then(|| (key.clone(), value.clone()))
        });
        if last { found.next_back() } else { found.next() }
    }

    fn at_least(&self, seq: u64, table: u32, key: &[u8]) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
        self.visible(seq, (Bound::Included((table, key.to_vec())), Bound::Unbounded), table, false)
    }

    fn after(&self, seq: u64, table: u32, key: &[u8]) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
        self.visible(seq, (Bound::Excluded((table, key.to_vec())), Bound::Unbounded), table, false)
    }

    fn before(&self, seq: u64, table: u32, key: Option<&[u8]>) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
        let end = match key {
            Some(key) => Bound::Excluded((table, key.to_vec())),
            None => Bound::Included((table, vec![0xff; 2000])),
        };
        self.visible(seq, (Bound::Unbounded, end), table, true)
    }
}

#[test]
fn random_operations_match_the_model() {
    for seed in 0..60 {
        let mut random = Random(seed);
        let memtable = Memtable::new(1 << 16);
        let mut model = Model::default();
        let tables = [0, 1, 7, u32::MAX];
        for seq in 1..=300u64 {
            let mut batch = BTreeMap::new();
            for _ in 0..=random.below(4) {
                let value = vec![seq as u8; random.below(20) as usize];
                let key = (tables[random.below(4) as usize], random_key(&mut random));
                batch.insert(key, (random.below(5) != 0).then_some(value));
            }
            memtable.insert_batch(
                seq,
                batch.iter().map(|((table, key), value)| (hashed(*table, key), value.as_deref())),
            );
            for (key, value) in batch {
                model.keys.entry(key).or_default().insert(seq, value);
            }
            if random.below(8) == 0 {
                check_reads(&memtable, &model, &mut random, seq, &tables, seed);
            }
        }
        check_versions(&memtable, &model, seed);
    }
}

fn check_reads(
    memtable: &Memtable,
    model: &Model,
    random: &mut Random,
    newest: u64,
    tables: &[u32],
    seed: u64,
) {
    for _ in 0..20 {
        let (table, key, seq) =
            (tables[random.below(4) as usize], random_key(random), random.below(newest + 1));
        assert_eq!(
            get(memtable, seq, table, &key),
            model.get(seq, table, &key),
            "seed {seed}, get {key:?} at {seq}"
        );
    }
    let (table, seq) = (tables[random.below(4) as usize], random.below(newest + 1));
    let mut cursor = memtable.cursor(table, seq);
    let mut expected: Option<(Vec<u8>, Option<Vec<u8>>)> = None;
    for step in 0..60 {
        let key = random_key(random);
        match random.below(10) {
            0 => {
                cursor.seek(&key).unwrap();
                expected = model.at_least(seq, table, &key);
            }
            1 => {
                cursor.seek_before(Some(&key)).unwrap();
                expected = model.before(seq, table, Some(&key));
            }
            2 => {
                cursor.seek_before(None).unwrap();
                expected = model.before(seq, table, None);
            }
            3..=6 => {
                cursor.next().unwrap();
                expected = expected.and_then(|(key, _)| model.after(seq, table, &key));
            }
            _ => {
                cursor.prev().unwrap();
                expected = expected.and_then(|(key, _)| model.before(seq, table, Some(&key)));
            }
        }
        assert_eq!(at(&mut cursor), expected, "seed {seed}, step {step} at {seq}");
    }
}

fn check_versions(memtable: &Memtable, model: &Model, seed: u64) {
    let mut versions = memtable.versions();
    for ((table, key), of_key) in &model.keys {
        for (seq, value) in of_key.iter().rev() {
            assert!(versions.advance().unwrap(), "seed {seed}: ends before {key:?} at {seq}");
            assert_eq!(
                (versions.key(), versions.seq()),
                (Key { table: *table, bytes: key }, *seq),
                "seed {seed}"
            );
            assert_eq!(versions.value().unwrap(), value.as_deref(), "seed {seed}");
        }
    }
    assert!(!versions.advance().unwrap());
    assert!(!versions.advance().unwrap());
}

#[test]
fn versions_in_any_order_of_arrival_are_found() {
    for seed in 0..20 {
        let mut random = Random(seed);
        let mut seqs: Vec<u64> = (1..=200).map(|n| n * 2).collect();
        for i in (1..seqs.len()).rev() {
            // Some seeds mix wholly, some only a little, as groups of commits do.
            let reach = if seed % 2 == 0 { i as u64 + 1 } else { 4.min(i as u64 + 1) };
            seqs.swap(i, i - random.below(reach) as usize);
        }
        let memtable = Memtable::new(1 << 20);
        for seq in &seqs {
            put(&memtable, *seq, 1, b"k", &seq.to_le_bytes());
        }
        for seq in 2..=401 {
            let expected = seq & !1;
            assert_eq!(
                get(&memtable, seq, 1, b"k"),
                Some(Some(expected.min(400).to_le_bytes().to_vec())),
                "seed {seed}"
            );
            let next = Some(expected + 2).filter(|next| *next <= 400);
            assert_eq!(memtable.next_seq(&hashed(1, b"k"), seq), next, "seed {seed}");
        }
    }
}
