//! Damaged bytes: the data or an error that says where, never a panic.

use super::*;
use crate::Error;

fn small_file() -> (Vec<u8>, Model) {
    let mut fixture = Fixture::new();
    let records: BTreeMap<_, _> =
        (0..120).map(|i| (key(i), value(i, if i == 60 { 9000 } else { 30 }))).collect();
    fixture.update(1, records.iter().map(|(key, value)| (key.clone(), Some(value.clone()))), 0);
    fixture.update(2, [(b"k".to_vec(), Some(value(1, 40_000)))], 0);
    fixture.update(1, [(key(3), Some(value(3, 30)))], 0);
    let bytes = fixture.disk.file(PATH).bytes.lock().unwrap().clone();
    (bytes, Model::from([(1, records), (2, BTreeMap::from([(b"k".to_vec(), value(1, 40_000))]))]))
}

/// Reads everything there is; the data must be right if there is no error.
fn read_all(bytes: Vec<u8>, model: &Model) -> Result<()> {
    let fixture = Fixture::open(&MemoryDisk::with(PATH, bytes))?;
    for (table, records) in model {
        for (key, value) in records.iter().step_by(7) {
            let mut found = None;
            fixture.base.get(*table, key, &mut |value| found = Some(value.to_vec()))?;
            assert_eq!(found.as_ref(), Some(value));
        }
        assert!(contents(&fixture.base, *table)? == *records);
    }
    fixture.store.verify(&fixture.base.root())?;
    Ok(())
}

fn assert_names_the_file(error: &Error, offset_max: usize) {
    match error {
        Error::Corruption { path, offset, .. } => {
            assert!(path == Path::new(PATH) && *offset as usize <= offset_max, "{error}");
        }
        other => panic!("{other}"),
    }
}

#[test]
fn flipping_any_byte_gives_the_data_or_names_the_place() {
    let (bytes, model) = small_file();
    read_all(bytes.clone(), &model).unwrap();
    let mut noticed = 0;
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        if let Err(error) = read_all(damaged, &model) {
            assert_names_the_file(&error, bytes.len());
            let Error::Corruption { offset, .. } = error else { unreachable!() };
            assert_eq!(offset as usize / 4096, at / 4096, "the damage is at {at}");
            noticed += 1;
        }
    }
    // All but the superblocks, whose twins stand in, and what is free.
    assert!(noticed > bytes.len() / 2, "{noticed} of {}", bytes.len());
}

#[test]
fn a_file_cut_anywhere_is_noticed() {
    let (bytes, model) = small_file();
    for len in (0..bytes.len()).step_by(777) {
        let error = read_all(bytes[..len].to_vec(), &model).unwrap_err();
        assert_names_the_file(&error, bytes.len());
    }
}

#[test]
fn pages_that_were_swapped_are_noticed() {
    let (bytes, model) = small_file();
    let mut random = Random(2);
    for _ in 0..200 {
        let pages = bytes.len() as u64 / 4096;
        let (a, b) = (random.below(pages) as usize * 4096, random.below(pages) as usize * 4096);
        let mut damaged = bytes.clone();
        damaged[a..a + 4096].copy_from_slice(&bytes[b..b + 4096]);
        if let Err(error) = read_all(damaged, &model) {
            assert_names_the_file(&error, bytes.len());
        }
    }
}

#[test]
fn one_damaged_superblock_copy_does_no_harm() {
    let (bytes, model) = small_file();
    for slot in 0..4 {
        let mut damaged = bytes.clone();
        damaged[slot * 4096..][..4096].fill(0xff);
        read_all(damaged, &model).unwrap();
    }
}

#[test]
fn two_torn_copies_lead_to_the_previous_superblock() {
    let mut fixture = Fixture::new();
    fixture.update(1, [(key(1), Some(b"old".to_vec()))], 0);
    let (old, number) = (fixture.base.root(), fixture.store.superblock_number());
    fixture.update(1, [(key(1), Some(b"new".to_vec()))], 0);
    let mut bytes = fixture.disk.file(PATH).bytes.lock().unwrap().clone();
    let pair = ((number + 1) % 2 * 8192) as usize;
    bytes[pair + 512..pair + 8192 - 512].fill(0);
    let fixture = Fixture::open(&MemoryDisk::with(PATH, bytes)).unwrap();
    assert_eq!(fixture.base.root(), old);
    assert_eq!(fixture.store.superblock_number(), number);
    assert_eq!(fixture.get(1, &key(1)), Some(b"old".to_vec()));
}

#[test]
fn without_a_superblock_the_file_is_damaged() {
    let (mut bytes, _) = small_file();
    bytes[..4 * 4096].fill(0);
    assert_names_the_file(&Fixture::open(&MemoryDisk::with(PATH, bytes)).err().unwrap(), 0);
}

#[test]
fn a_newer_format_is_told_apart_from_damage() {
    let (mut bytes, _) = small_file();
    for slot in 0..4 {
        bytes[slot * 4096 + 8] = 9;
    }
    let error = Fixture::open(&MemoryDisk::with(PATH, bytes)).err().unwrap();
    assert!(matches!(error, Error::Incompatible { found: 9, supported: 1, .. }), "{error}");
}

#[test]
fn a_rebuild_over_damage_fails_and_harms_nothing() {
    let (bytes, model) = small_file();
    for page in 4..bytes.len() / 4096 {
        let mut damaged = bytes.clone();
        damaged[page * 4096 + 100] ^= 1;
        let Ok(fixture) = Fixture::open(&MemoryDisk::with(PATH, damaged)) else { continue };
        let Ok(mut rebuild) = fixture.store.rebuild(&fixture.base) else { continue };
        let updates = model[&1].keys().map(|key| (key.clone(), Some(b"x".to_vec())));
        let result = rebuild
            .apply(1, &mut MapUpdates::new(updates), usize::MAX)
            .and_then(|_| rebuild.drop_table(2))
            .and_then(|()| rebuild.finish(9, 0, || (b"").to_vec()));
        match result {
            Ok(base) => {
                assert_eq!(get(&base, 1, &key(5)), Some(b"x".to_vec()));
                fixture.store.verify(&base.root()).unwrap();
            }
            Err(error) => {
                assert_names_the_file(&error, bytes.len());
                assert_eq!(fixture.store.superblock_number(), 4);
            }
        }
    }
}
