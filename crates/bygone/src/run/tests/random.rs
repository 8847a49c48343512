//! Random runs against the model.

use super::*;

/// A key from a small world, so that keys meet, share prefixes and have many versions.
fn key(random: &mut Random) -> Vec<u8> {
    let number = random.below(400);
    match random.below(12) {
        0 => Vec::new(),
        1 => vec![0; random.below(12) as usize],
        2 => vec![0xff; random.below(12) as usize],
        3 => [&[b'x'; 1000][..], &number.to_be_bytes()].concat(),
        4..6 => format!("user/{number:05}/name").into_bytes(),
        6..8 => number.to_be_bytes().to_vec(),
        8 => b"hot".to_vec(),
        _ => format!("{number}").into_bytes(),
    }
}

fn model(random: &mut Random) -> Model {
    let mut model = Model::default();
    let tables = 1 + random.below(4);
    let records = random.below(6_000);
    let value_bytes = [1, 30, 300, 5_000][random.below(4) as usize];
    let records = records.min(4_000_000 / value_bytes);
    let seqs = [20u64, 1_000, 1 << 40][random.below(3) as usize];
    for _ in 0..records {
        let len = match random.below(1_000) {
            0 => 30_000 + random.below(60_000),
            _ => random.below(value_bytes),
        };
        let value = (random.below(5) > 0).then(|| random.bytes(len as usize));
        // Sequence numbers crowd at the beginning, so that a small limit sees something.
        let bits = random.below(seqs.ilog2().into()) + 1;
        model.insert(random.below(tables) as u32 * 3, key(random), random.below(1 << bits), value);
    }
    model
}

fn probe(random: &mut Random, model: &Model) -> Vec<u8> {
    let mut probe = key(random);
    if random.below(3) == 0 {
        let at = random.below(model.versions.len().max(1) as u64) as usize;
        probe = model.versions.keys().nth(at).map_or(probe, |(_, key, _)| key.clone());
    }
    match random.below(4) {
        0 => probe.push(random.below(256) as u8),
        1 => drop(probe.pop()),
        _ => {}
    }
    probe
}

fn limit(random: &mut Random) -> u64 {
    match random.below(4) {
        0 => u64::MAX,
        1 => random.below(20),
        2 => random.below(1_000),
        _ => random.below(1 << 40),
    }
}

fn rounds(count: u64, mut round: impl FnMut(&mut Random, &Model, &Arc<Run>)) {
    for seed in 0..count {
        println!("seed {seed}"); // Shown if the test fails.
        let mut random = Random(seed);
        let model = model(&mut random);
        round(&mut random, &model, &model.run());
    }
}

#[test]
fn look_ups_equal_the_model() {
    rounds(60, |random, model, run| {
        for _ in 0..500 {
            let (table, key, seq) = (random.below(12) as u32, probe(random, model), limit(random));
            let expected = model.get(table, &key, seq).map(|(_, value)| value.map(<[u8]>::to_vec));
            assert_eq!(get(run, table, &key, seq).unwrap(), expected, "{table} {key:?} as of {seq}");
            let newest = model.get(table, &key, u64::MAX).map(|(seq, _)| seq);
            assert_eq!(run.newest_seq(&HashedKey::new(table, &key, SEED)).unwrap(), newest);
            let next = model.iter().filter(|version| (version.0, version.1) == (table, &key[..]));
            let next = next.map(|version| version.2).filter(|version| *version > seq).min();
            assert_eq!(run.next_seq(&HashedKey::new(table, &key, SEED), seq).unwrap(), next);
        }
    });
}

#[test]
fn streams_equal_the_model() {
    rounds(60, |_, model, run| {
        assert!(drain(&mut run.versions()).unwrap() == all(model));
        assert_eq!(run.verify().unwrap().records, model.versions.len() as u64);
    });
}

#[test]
fn scans_equal_the_model() {
    rounds(40, |random, model, run| {
        for table in [0, 3, 4, 6, 9] {
            let seq = limit(random);
            let expected = owned(&model.view(table, seq));
            assert!(scan(run, table, seq).unwrap() == expected, "{table} as of {seq}");
            let backward: Vec<_> = expected.into_iter().rev().collect();
            assert!(scan_back(run, table, seq).unwrap() == backward, "{table} as of {seq}");
        }
    });
}

#[test]
fn cursors_that_wander_equal_the_model() {
    rounds(60, |random, model, run| {
        for _ in 0..4 {
            let (table, seq) = (random.below(4) as u32 * 3, limit(random));
            let view = model.view(table, seq);
            let keys: Vec<_> = view.keys().copied().collect();
            let mut cursor = run.cursor(table, seq);
            // Where the model's cursor stands; off both ends is `None`.
            let mut at: Option<usize> = None;
            for _ in 0..300 {
                match random.below(12) {
                    0 => {
                        let key = probe(random, model);
                        cursor.seek(&key).unwrap();
                        at = Some(keys.partition_point(|other| *other < &key[..]));
                    }
                    1 => {
                        let key = probe(random, model);
                        cursor.seek_before(Some(&key)).unwrap();
                        at = keys.partition_point(|other| *other < &key[..]).checked_sub(1);
                    }
                    2 => {
                        cursor.seek_before(None).unwrap();
                        at = keys.len().checked_sub(1);
                    }
                    3..8 => {
                        cursor.next().unwrap();
                        at = at.map(|at| at + 1);
                    }
                    _ => {
                        cursor.prev().unwrap();
                        at = at.and_then(|at| at.checked_sub(1));
                    }
                }
                at = at.filter(|at| *at < keys.len());
                let expected = at.map(|at| keys[at]);
                assert_eq!(cursor.key(), expected, "table {table} as of {seq}");
                if let Some(key) = expected {
                    let expected = view[key];
                    assert_eq!(cursor.is_deletion(), expected.is_none());
                    assert!(cursor.value().unwrap() == expected, "the value of {key:?}");
                }
            }
        }
    });
}
