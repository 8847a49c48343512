//! One promise a test.

use super::super::MergedVersions;
use super::super::verify::RunSummary;
use super::*;
use crate::error::Error;
use crate::limits::KEY_BYTES_MAX;

fn value(len: usize) -> Option<Vec<u8>> {
    Some(Random(len as u64).bytes(len))
}

/// Keys `key 000000`, ... each with one version.
fn numbered(count: u64) -> Model {
    let mut model = Model::default();
    for number in 0..count {
        model.insert(1, format!("key {number:06}"), number + 1, value(100));
    }
    model
}

#[test]
fn an_empty_run_answers_nothing() {
    let run = Model::default().run();
    assert_eq!(get(&run, 1, b"a", u64::MAX).unwrap(), None);
    assert_eq!(run.newest_seq(&HashedKey::new(1, b"a", SEED)).unwrap(), None);
    assert!(scan(&run, 1, u64::MAX).unwrap().is_empty());
    assert!(scan_back(&run, 1, u64::MAX).unwrap().is_empty());
    assert!(drain(&mut run.versions()).unwrap().is_empty());
    assert_eq!(run.verify().unwrap().records, 0);
    assert_eq!((run.meta().min_seq, run.meta().max_seq), (0, 0));
}

#[test]
fn every_version_is_seen_from_its_own_time_on() {
    let mut model = Model::default();
    model.insert(1, "a", 10, value(3));
    model.insert(1, "a", 20, None);
    model.insert(1, "a", 30, value(4));
    let run = model.run();
    for (seq, expected) in [
        (9, None),
        (10, Some(value(3))),
        (19, Some(value(3))),
        (20, Some(None)),
        (29, Some(None)),
        (30, Some(value(4))),
    ] {
        assert_eq!(get(&run, 1, b"a", seq).unwrap(), expected, "as of {seq}");
    }
    assert_eq!(run.newest_seq(&HashedKey::new(1, b"a", SEED)).unwrap(), Some(30));
}

#[test]
fn a_deletion_is_the_newest_version_too() {
    let mut model = Model::default();
    model.insert(1, "a", 20, None);
    assert_eq!(model.run().newest_seq(&HashedKey::new(1, b"a", SEED)).unwrap(), Some(20));
}

#[test]
fn an_empty_value_is_no_deletion_and_an_empty_key_is_a_key() {
    let mut model = Model::default();
    model.insert(1, "", 1, Some(Vec::new()));
    model.insert(1, "\0", 2, None);
    let run = model.run();
    assert_eq!(get(&run, 1, b"", 5).unwrap(), Some(Some(Vec::new())));
    assert_eq!(get(&run, 1, b"\0", 5).unwrap(), Some(None));
    assert_eq!(scan(&run, 1, 5).unwrap(), owned(&model.view(1, 5)));
}

#[test]
fn tables_do_not_see_each_other() {
    let mut model = Model::default();
    for table in [0, 3, 4, u32::MAX] {
        model.insert(table, "same", 7, Some(table.to_le_bytes().to_vec()));
    }
    let run = model.run();
    for table in [0, 1, 3, 4, 5, u32::MAX] {
        let expected = model.get(table, b"same", 9).map(|(_, value)| value.map(<[u8]>::to_vec));
        assert_eq!(get(&run, table, b"same", 9).unwrap(), expected);
        assert_eq!(scan(&run, table, 9).unwrap(), owned(&model.view(table, 9)));
        assert_eq!(scan_back(&run, table, 9).unwrap(), owned(&model.view(table, 9)));
    }
}

#[test]
fn a_table_may_begin_with_the_long_key_that_the_one_before_began_with() {
    let mut model = Model::default();
    for table in [1, 2] {
        model.insert(table, "a".repeat(1000), 1, None);
        for short in ["b", "c", "d", "e", "f"] {
            model.insert(table, short, 1, None);
        }
    }
    let run = model.run();
    assert_eq!(scan(&run, 1, u64::MAX).unwrap().len(), 6);
    assert_eq!(scan(&run, 2, u64::MAX).unwrap().len(), 6);
}

#[test]
fn extreme_sequence_numbers_come_back() {
    let mut model = Model::default();
    for seq in [0, 1, u64::MAX - 1, u64::MAX] {
        model.insert(1, "a", seq, value(seq as usize % 10));
    }
    let run = model.run();
    assert_eq!(drain(&mut run.versions()).unwrap(), all(&model));
    for seq in [0, 1, 2, u64::MAX - 1, u64::MAX] {
        let expected = model.get(1, b"a", seq).map(|(_, value)| value.map(<[u8]>::to_vec));
        assert_eq!(get(&run, 1, b"a", seq).unwrap(), expected);
    }
}

#[test]
fn values_of_all_sizes_come_back() {
    let sizes = [0, 1, 4096, 16 << 10, 32 << 10, (32 << 10) + 1, 65_536, 1 << 20, 5 << 20];
    let mut model = Model::default();
    for (number, size) in sizes.into_iter().enumerate() {
        model.insert(1, format!("{number}"), 1, value(size));
    }
    let run = model.run();
    for (number, size) in sizes.into_iter().enumerate() {
        let found = get(&run, 1, format!("{number}").as_bytes(), 1).unwrap();
        assert!(found == Some(value(size)), "{size} bytes");
    }
    assert!(scan(&run, 1, 1).unwrap() == owned(&model.view(1, 1)));
    assert!(scan_back(&run, 1, 1).unwrap() == owned(&model.view(1, 1)).into_iter().rev().collect::<Vec<_>>());
    assert!(drain(&mut run.versions()).unwrap() == all(&model));
    let summary = run.verify().unwrap();
    assert_eq!((summary.records, summary.outside_values), (sizes.len() as u64, 4));
}

#[test]
fn a_value_outside_is_read_once_for_each_visit_and_again_after_moving() {
    let mut model = Model::default();
    model.insert(1, "a", 1, value(100_000));
    model.insert(1, "b", 1, value(200_000));
    let run = model.run();
    let mut cursor = run.cursor(1, 1);
    cursor.seek(b"a").unwrap();
    for (key, len) in [("a", 100_000), ("b", 200_000)] {
        assert_eq!(cursor.key(), Some(key.as_bytes()));
        for _ in 0..2 {
            assert!(cursor.value().unwrap() == value(len).as_deref());
        }
        cursor.next().unwrap();
    }
    assert_eq!(cursor.key(), None);
}

#[test]
fn the_longest_keys_fit() {
    let mut model = Model::default();
    for number in 0..100u8 {
        let mut key = vec![b'k'; KEY_BYTES_MAX];
        key[KEY_BYTES_MAX - 1] = number;
        model.insert(1, key, 1, value(1000));
        model.insert(1, vec![number; KEY_BYTES_MAX], 1, value(1000));
    }
    let run = model.run();
    assert_eq!(scan(&run, 1, 1).unwrap(), owned(&model.view(1, 1)));
    for (key, expected) in model.view(1, 1) {
        assert_eq!(get(&run, 1, key, 1).unwrap(), Some(expected.map(<[u8]>::to_vec)));
    }
    run.verify().unwrap();
}

/// Three keys, the middle one with so many versions that they fill several blocks.
fn many_versions() -> Model {
    let mut model = Model::default();
    model.insert(1, "before", 500, value(5));
    for seq in 0..5_000 {
        model.insert(1, "many", 10 + 2 * seq, (seq % 7 != 0).then(|| seq.to_le_bytes().to_vec()));
    }
    model.insert(1, "that", 500, value(6));
    model
}

#[test]
fn versions_of_one_key_may_fill_many_blocks() {
    let model = many_versions();
    let run = model.run();
    assert!(run.verify().unwrap().blocks > 3);
    for seq in 0..10_020 {
        let expected = model.get(1, b"many", seq).map(|(_, value)| value.map(<[u8]>::to_vec));
        assert_eq!(get(&run, 1, b"many", seq).unwrap(), expected, "as of {seq}");
    }
    assert_eq!(run.newest_seq(&HashedKey::new(1, b"many", SEED)).unwrap(), Some(10_008));
    assert_eq!(drain(&mut run.versions()).unwrap(), all(&model));
}

#[test]
fn however_many_versions_there_are_few_blocks_are_read() {
    let (disk, path) = (MemoryDisk::default(), Path::new("1.run"));
    let mut model = many_versions();
    for seq in 0..50_000 {
        model.insert(1, "many", 20_000 + seq, None);
    }
    let meta = model.write(&disk, path, 1);
    let run = Run::open(&disk, path, &meta, SEED, &Cache::new(0)).unwrap();
    assert!(run.footer.blocks > 40);
    let reads = |what: &str, limit: usize, act: &mut dyn FnMut()| {
        let before = disk.reads.load(Ordering::Relaxed);
        act();
        let reads = disk.reads.load(Ordering::Relaxed) - before;
        assert!(reads <= limit, "{what}: {reads} blocks were read");
    };
    for seq in (0..80_000).step_by(101).chain([u64::MAX]) {
        reads("get", 2, &mut || drop(get(&run, 1, b"many", seq).unwrap()));
        let mut cursor = run.cursor(1, seq);
        reads("seek", 4, &mut || cursor.seek(b"many").unwrap());
        reads("next", 4, &mut || cursor.next().unwrap());
        reads("seek_before", 4, &mut || cursor.seek_before(Some(b"that")).unwrap());
        reads("prev", 4, &mut || cursor.prev().unwrap());
    }
}

#[test]
fn cursors_pass_many_versions_both_ways() {
    let model = many_versions();
    let run = model.run();
    for seq in (0..10_020).step_by(97).chain([9, 10, 11, 499, 500, 10_008, u64::MAX]) {
        let expected = owned(&model.view(1, seq));
        assert_eq!(scan(&run, 1, seq).unwrap(), expected, "as of {seq}");
        assert_eq!(scan_back(&run, 1, seq).unwrap(), expected.into_iter().rev().collect::<Vec<_>>());
    }
}

#[test]
fn keys_that_are_too_new_are_passed_both_ways() {
    let mut model = Model::default();
    for number in 0..3_000u64 {
        let seqs = if number % 1_000 == 500 { 1..2 } else { 100..103 };
        for seq in seqs {
            model.insert(1, format!("{number:05}"), seq, value(20));
        }
    }
    let run = model.run();
    assert_eq!(scan(&run, 1, 50).unwrap().len(), 3);
    assert_eq!(scan(&run, 1, 50).unwrap(), owned(&model.view(1, 50)));
    assert_eq!(scan_back(&run, 1, 50).unwrap().len(), 3);
    assert!(scan(&run, 1, 0).unwrap().is_empty() && scan_back(&run, 1, 0).unwrap().is_empty());
}

#[test]
fn seeks_find_the_neighbours_of_absent_keys() {
    let run = numbered(2_000).run();
    let mut cursor = run.cursor(1, u64::MAX);
    for number in 0..2_000u64 {
        let between = format!("key {number:06}+");
        cursor.seek(between.as_bytes()).unwrap();
        let next = (number < 1_999).then(|| format!("key {:06}", number + 1));
        assert_eq!(cursor.key(), next.as_ref().map(|key| key.as_bytes()));
        cursor.seek_before(Some(between.as_bytes())).unwrap();
        assert_eq!(cursor.key(), Some(format!("key {number:06}").as_bytes()));
    }
    cursor.seek(b"a").unwrap();
    assert_eq!(cursor.key(), Some(&b"key 000000"[..]));
    cursor.seek_before(Some(b"a")).unwrap();
    assert_eq!(cursor.key(), None);
    cursor.seek_before(Some(b"z")).unwrap();
    assert_eq!(cursor.key(), Some(&b"key 001999"[..]));
    cursor.seek(b"z").unwrap();
    assert_eq!(cursor.key(), None);
}

#[test]
fn a_key_itself_is_found_by_seek_and_not_by_seek_before() {
    let run = numbered(300).run();
    let mut cursor = run.cursor(1, u64::MAX);
    cursor.seek(b"key 000150").unwrap();
    assert_eq!(cursor.key(), Some(&b"key 000150"[..]));
    cursor.seek_before(Some(b"key 000150")).unwrap();
    assert_eq!(cursor.key(), Some(&b"key 000149"[..]));
}

#[test]
fn off_an_end_a_cursor_stays_until_it_seeks() {
    let run = numbered(3).run();
    let mut cursor = run.cursor(1, u64::MAX);
    assert_eq!(cursor.key(), None, "a new cursor is nowhere");
    cursor.next().unwrap();
    cursor.prev().unwrap();
    assert_eq!(cursor.key(), None);
    cursor.seek(b"key 000002").unwrap();
    cursor.next().unwrap();
    assert_eq!(cursor.key(), None);
    cursor.prev().unwrap();
    assert_eq!(cursor.key(), None);
    cursor.seek(b"").unwrap();
    cursor.prev().unwrap();
    cursor.next().unwrap();
    assert_eq!(cursor.key(), None);
    cursor.seek_before(None).unwrap();
    assert_eq!(cursor.key(), Some(&b"key 000002"[..]));
}

#[test]
fn a_cursor_outlives_the_handle_and_moves_between_threads() {
    let mut cursor = numbered(1_000).run().cursor(1, u64::MAX);
    let count = std::thread::spawn(move || {
        cursor.seek(b"").unwrap();
        let mut count = 0;
        while cursor.key().is_some() {
            count += 1;
            cursor.next().unwrap();
        }
        count
    });
    assert_eq!(count.join().unwrap(), 1_000);
}

#[test]
fn a_cache_of_nothing_changes_nothing() {
    let (disk, path) = (MemoryDisk::default(), Path::new("1.run"));
    let model = numbered(1_000);
    let meta = model.write(&disk, path, 1);
    let cache = Cache::new(0);
    let run = Run::open(&disk, path, &meta, SEED, &cache).unwrap();
    assert_eq!(scan(&run, 1, 2_000).unwrap(), owned(&model.view(1, 2_000)));
    assert_eq!(get(&run, 1, b"key 000777", 2_000).unwrap(), Some(value(100)));
    assert_eq!(cache.used_bytes(), 0);
}

#[test]
fn look_ups_use_the_cache_and_streams_do_not() {
    let (disk, path) = (MemoryDisk::default(), Path::new("1.run"));
    let meta = numbered(1_000).write(&disk, path, 1);
    let cache = Cache::new(1 << 20);
    let run = Run::open(&disk, path, &meta, SEED, &cache).unwrap();
    drain(&mut run.versions()).unwrap();
    run.verify().unwrap();
    assert_eq!(cache.used_bytes(), 0);
    get(&run, 1, b"key 000777", 2_000).unwrap();
    let used = cache.used_bytes();
    assert!(used > 0);
    // The file's bytes are gone, the block is still known.
    let damaged = vec![0; disk.contents(path).len()];
    disk.files.lock().unwrap()[path].lock().unwrap().copy_from_slice(&damaged);
    assert_eq!(get(&run, 1, b"key 000777", 2_000).unwrap(), Some(value(100)));
    drop(run);
    assert_eq!(cache.used_bytes(), 0, "a closed run leaves nothing in the cache");
}

#[test]
fn the_summary_counts() {
    let mut model = many_versions();
    model.insert(2, "large", 1, value(40_000));
    let run = model.run();
    let blocks = run.footer.blocks;
    let expected =
        RunSummary { records: 5_003, keys: 4, deletions: 5_000u64.div_ceil(7), blocks, outside_values: 1 };
    assert_eq!(run.verify().unwrap(), expected);
    assert_eq!(run.meta().records, 5_003);
}

#[test]
fn a_run_covers_the_range_it_is_given() {
    let (disk, path) = (MemoryDisk::default(), Path::new("1.run"));
    let mut writer = RunWriter::create(&disk, path, 1, SEED).unwrap();
    writer.add(Key { table: 1, bytes: b"a" }, 50, None).unwrap();
    let meta = writer.finish(Some(40..=60)).unwrap();
    assert_eq!((meta.min_seq, meta.max_seq), (40, 60));
    assert_eq!(*open(&disk, path, &meta).unwrap().meta(), meta);
}

#[test]
fn without_a_range_a_run_covers_its_records() {
    let mut model = Model::default();
    model.insert(1, "a", 50, None);
    model.insert(2, "a", 20, None);
    assert_eq!((model.run().meta().min_seq, model.run().meta().max_seq), (20, 50));
}

#[test]
#[should_panic(expected = "the run covers 40 to 49")]
fn a_range_that_does_not_cover_the_records_is_a_bug() {
    let mut writer = RunWriter::create(&MemoryDisk::default(), Path::new("x"), 1, SEED).unwrap();
    writer.add(Key { table: 1, bytes: b"a" }, 50, None).unwrap();
    let _ = writer.finish(Some(40..=49));
}

fn add_two(first: (u32, &[u8], u64), second: (u32, &[u8], u64)) {
    let mut writer = RunWriter::create(&MemoryDisk::default(), Path::new("x"), 1, SEED).unwrap();
    for (table, bytes, seq) in [first, second] {
        writer.add(Key { table, bytes }, seq, None).unwrap();
    }
}

#[test]
#[should_panic(expected = "in their order")]
fn keys_that_descend_are_a_bug() {
    add_two((1, b"long key b", 5), (1, b"long key a", 5));
}

#[test]
#[should_panic(expected = "in their order")]
fn sequence_numbers_that_ascend_are_a_bug() {
    add_two((1, b"a", 5), (1, b"a", 6));
}

#[test]
#[should_panic(expected = "in their order")]
fn the_same_version_twice_is_a_bug() {
    add_two((1, b"a", 5), (1, b"a", 5));
}

#[test]
#[should_panic(expected = "in their order")]
fn tables_that_descend_are_a_bug() {
    add_two((2, b"a", 5), (1, b"b", 5));
}

#[test]
fn a_finished_run_is_durable_and_an_unfinished_one_need_not_be() {
    let (disk, path) = (MemoryDisk::default(), Path::new("1.run"));
    let meta = numbered(10_000).write(&disk, path, 1);
    assert_eq!(*disk.syncs.lock().unwrap(), [meta.bytes as usize]);
    assert_eq!(meta.bytes, disk.contents(path).len() as u64);
}

#[test]
fn a_refusal_of_the_system_is_no_damage() {
    let (disk, path) = (MemoryDisk::default(), Path::new("1.run"));
    let meta = numbered(100).write(&disk, path, 1);
    let run = open(&disk, path, &meta).unwrap();
    disk.refuses.store(true, Ordering::Relaxed);
    let errors = [
        open(&disk, path, &meta).unwrap_err(),
        get(&run, 1, b"key 000007", 100).unwrap_err(),
        scan(&run, 1, 100).unwrap_err(),
        drain(&mut run.versions()).unwrap_err(),
        run.verify().unwrap_err(),
        RunWriter::create(&disk, Path::new("2.run"), 2, SEED).unwrap().finish(None).unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(error, Error::Io { .. }), "{error}");
    }
    disk.refuses.store(false, Ordering::Relaxed);
    assert_eq!(get(&run, 1, b"key 000007", 100).unwrap(), Some(value(100)));
}

#[test]
fn an_existing_file_is_not_overwritten() {
    let disk = MemoryDisk::default();
    RunWriter::create(&disk, Path::new("x"), 1, SEED).unwrap();
    assert!(RunWriter::create(&disk, Path::new("x"), 1, SEED).is_err());
}

#[test]
fn keys_that_share_much_take_little() {
    let mut model = Model::default();
    for number in 0..5_000u32 {
        let mut key = vec![b'p'; 500];
        key.extend_from_slice(&number.to_be_bytes());
        model.insert(1, key, 1, None);
    }
    let run = model.run();
    assert!(run.meta().bytes < 5_000 * 30, "{} bytes", run.meta().bytes);
    assert_eq!(scan(&run, 1, 1).unwrap(), owned(&model.view(1, 1)));
}

#[test]
fn runs_merge_into_one_that_has_each_version_once() {
    let mut whole = Model::default();
    let mut parts = vec![Model::default(); 5];
    let mut random = Random(7);
    for seq in 0..20_000u64 {
        let key = format!("key {:04}", random.below(3_000));
        let value = (!seq.is_multiple_of(5)).then(|| random.bytes(30));
        whole.insert(1, key.clone(), seq, value.clone());
        let part = random.below(5) as usize;
        if seq % 100 == 0 {
            // As after a crash between the flush of a run and the removal of what it was made from.
            parts[(part + 1) % 5].insert(1, key.clone(), seq, value.clone());
        }
        parts[part].insert(1, key, seq, value);
    }
    let (disk, path) = (MemoryDisk::default(), Path::new("merged.run"));
    let mut writer = RunWriter::create(&disk, path, 9, SEED).unwrap();
    let streams = parts.iter().map(|part| Box::new(part.run().versions()) as Box<dyn Versions>);
    let mut merged = MergedVersions::new(streams.collect());
    while merged.advance().unwrap() {
        let (seq, table, bytes) = (merged.seq(), merged.key().table, merged.key().bytes.to_vec());
        writer.add(Key { table, bytes: &bytes }, seq, merged.value().unwrap()).unwrap();
    }
    let meta = writer.finish(None).unwrap();
    let run = open(&disk, path, &meta).unwrap();
    assert_eq!(drain(&mut run.versions()).unwrap(), all(&whole));
    run.verify().unwrap();
}
