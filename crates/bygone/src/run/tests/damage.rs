//! Files that do not hold what was written to them.

use super::super::format::{BLOCK_BYTES_TARGET, FOOTER_BYTES};
use super::*;
use crate::error::Error;

const PATH: &str = "dir/0000000000000001.run";

/// A file with everything in it: several blocks and tables, many versions, deletions, and a value outside.
fn model() -> Model {
    let mut model = Model::default();
    let mut random = Random(1);
    for number in 0..40 {
        model.insert(1, format!("key {number}"), number, Some(random.bytes(20)));
    }
    for seq in 0..20 {
        model.insert(2, "many", seq, (seq % 3 > 0).then(|| random.bytes(10)));
    }
    model.insert(3, "outside", 5, Some(random.bytes(33_000)));
    model.insert(3, "second block", 5, Some(random.bytes(BLOCK_BYTES_TARGET)));
    model
}

fn written(model: &Model, id: u64) -> (Vec<u8>, RunMeta) {
    let disk = MemoryDisk::default();
    let meta = model.write(&disk, Path::new(PATH), id);
    (disk.contents(Path::new(PATH)), meta)
}

/// Reads everything in every way. The answers are either the model's or errors; all errors are handed back.
fn read_everything(bytes: Vec<u8>, meta: &RunMeta, model: &Model) -> Vec<Error> {
    let disk = MemoryDisk::default();
    disk.set_contents(Path::new(PATH), bytes);
    let run = match open(&disk, Path::new(PATH), meta) {
        Ok(run) => run,
        Err(error) => return vec![error],
    };
    let mut errors = Vec::new();
    for (table, key, seq, value) in model.iter() {
        match get(&run, table, key, seq) {
            Ok(found) => {
                assert!(found.is_some_and(|found| found.as_deref() == value), "{table} {key:?} {seq}")
            }
            Err(error) => errors.push(error),
        }
    }
    for table in 1..=3 {
        let expected = owned(&model.view(table, 10));
        match scan(&run, table, 10) {
            Ok(found) => assert!(found == expected),
            Err(error) => errors.push(error),
        }
        match scan_back(&run, table, 10) {
            Ok(found) => assert!(found.into_iter().rev().eq(expected)),
            Err(error) => errors.push(error),
        }
    }
    match drain(&mut run.versions()) {
        Ok(found) => assert!(found == all(model)),
        Err(error) => errors.push(error),
    }
    errors.extend(run.verify().err());
    errors
}

fn assert_corruption(errors: &[Error], bytes: u64, what: &str) {
    assert!(!errors.is_empty(), "{what} was not noticed");
    for error in errors {
        match error {
            Error::Corruption { path, offset, .. } => {
                assert_eq!(path, Path::new(PATH));
                assert!(*offset <= bytes, "{what}: {error}");
            }
            _ => panic!("{what}: {error}"),
        }
    }
}

#[test]
fn a_whole_file_is_read_without_error() {
    let model = model();
    let (bytes, meta) = written(&model, 1);
    assert_eq!(meta.bytes, bytes.len() as u64);
    assert!(read_everything(bytes, &meta, &model).is_empty());
}

#[test]
fn every_flipped_byte_is_noticed() {
    let model = model();
    let (bytes, meta) = written(&model, 1);
    // The value outside is many bytes under one checksum: some of them stand for all.
    let outside = 4_000..32_000;
    for at in (0..bytes.len()).filter(|at| !outside.contains(at) || at % 500 == 0) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        let errors = read_everything(damaged, &meta, &model);
        assert_corruption(&errors, meta.bytes, &format!("a flipped bit in byte {at}"));
    }
}

#[test]
fn every_truncation_is_noticed_when_opening() {
    let model = model();
    let (bytes, meta) = written(&model, 1);
    for len in (0..bytes.len()).step_by(97).chain(bytes.len() - 2 * FOOTER_BYTES..bytes.len()) {
        let errors = read_everything(bytes[..len].to_vec(), &meta, &model);
        assert_eq!(errors.len(), 1);
        assert_corruption(&errors, len as u64, &format!("a length of {len}"));
    }
}

#[test]
fn bytes_behind_the_end_are_noticed() {
    let model = model();
    let (mut bytes, meta) = written(&model, 1);
    bytes.push(0);
    assert_corruption(&read_everything(bytes, &meta, &model), meta.bytes, "a longer file");
}

#[test]
fn a_missing_file_is_damage() {
    let (_, meta) = written(&model(), 1);
    let error = open(&MemoryDisk::default(), Path::new(PATH), &meta).unwrap_err();
    assert_corruption(&[error], 0, "a missing file");
}

#[test]
fn another_run_under_this_name_is_noticed() {
    let model = model();
    let (_, meta) = written(&model, 1);
    let (other, other_meta) = written(&model, 2);
    assert_eq!(meta.bytes, other_meta.bytes, "only the ids differ");
    assert_corruption(&read_everything(other, &meta, &model), meta.bytes, "another run");
}

#[test]
fn an_older_file_with_the_same_id_and_length_is_noticed() {
    let model = model();
    let mut older = model.clone();
    older.insert(1, "key 7", 7, Some(vec![1; 20]));
    let (_, meta) = written(&model, 1);
    let (bytes, older_meta) = written(&older, 1);
    assert_eq!(RunMeta { footer_checksum: 0, ..meta }, RunMeta { footer_checksum: 0, ..older_meta });
    assert_corruption(&read_everything(bytes, &meta, &model), meta.bytes, "an older file");
}

#[test]
fn a_run_of_another_database_is_noticed() {
    let (bytes, meta) = written(&model(), 1);
    let disk = MemoryDisk::default();
    disk.set_contents(Path::new(PATH), bytes);
    let error = Run::open(&disk, Path::new(PATH), &meta, SEED + 1, &Cache::new(0)).unwrap_err();
    assert_corruption(&[error], 0, "another hash seed");
}

#[test]
fn a_meta_that_contradicts_the_footer_is_noticed() {
    let model = model();
    let (bytes, meta) = written(&model, 1);
    for wrong in [
        RunMeta { id: 2, ..meta },
        RunMeta { min_seq: meta.min_seq + 1, ..meta },
        RunMeta { max_seq: meta.max_seq + 1, ..meta },
        RunMeta { records: meta.records + 1, ..meta },
        RunMeta { bytes: meta.bytes - 1, ..meta },
        RunMeta { bytes: u64::MAX, ..meta },
        RunMeta { footer_checksum: !meta.footer_checksum, ..meta },
    ] {
        assert_corruption(&read_everything(bytes.clone(), &wrong, &model), meta.bytes, &format!("{wrong:?}"));
    }
}

#[test]
fn a_file_that_shrinks_after_opening_gives_errors() {
    let model = model();
    let (disk, path) = (MemoryDisk::default(), Path::new(PATH));
    let meta = model.write(&disk, path, 1);
    let run = open(&disk, path, &meta).unwrap();
    disk.files.lock().unwrap()[path].lock().unwrap().truncate(40);
    let errors = [
        get(&run, 1, b"key 7", 10).unwrap_err(),
        get(&run, 3, b"outside", 10).unwrap_err(),
        scan(&run, 1, 10).unwrap_err(),
        scan_back(&run, 1, 10).unwrap_err(),
        drain(&mut run.versions()).unwrap_err(),
        run.verify().unwrap_err(),
    ];
    assert_corruption(&errors, meta.bytes, "a file that shrank");
}

#[test]
fn a_cursor_can_go_on_after_an_error() {
    let model = model();
    let (disk, path) = (MemoryDisk::default(), Path::new(PATH));
    let meta = model.write(&disk, path, 1);
    let run = Run::open(&disk, path, &meta, SEED, &Cache::new(0)).unwrap();
    let mut cursor = run.cursor(1, 100);
    cursor.seek(b"key 1").unwrap();
    let whole = disk.contents(path);
    let flip = |bytes: &[u8]| disk.files.lock().unwrap()[path].lock().unwrap().copy_from_slice(bytes);
    let mut damaged = whole.clone();
    damaged[2_000..].fill(0);
    flip(&damaged);
    let mut other = run.cursor(3, 100);
    assert!(other.seek(b"").is_err());
    assert_eq!(other.key(), None, "an error leaves the cursor nowhere");
    flip(&whole);
    other.seek(b"").unwrap();
    assert_eq!(other.key(), Some(&b"outside"[..]));
    assert_eq!(cursor.key(), Some(&b"key 1"[..]));
}

/// Changes bytes of a file and gives all checksums the values that fit: what only a bug in a writer, or an
/// enemy, can do.
mod forged {
    use super::super::super::format::Footer;
    use super::*;

    fn forge(bytes: &mut [u8], meta: &mut RunMeta) {
        let path = Path::new(PATH);
        let footer_start = bytes.len() - FOOTER_BYTES;
        let footer_bytes: [u8; FOOTER_BYTES] = bytes[footer_start..].try_into().unwrap();
        let mut footer = Footer::decode(&footer_bytes, path, meta).unwrap();
        let index_start = footer.index_offset as usize;
        let mut entry = index_start;
        for _ in 0..footer.blocks {
            let number = |at: usize, len: usize| {
                bytes[entry + at..][..len].iter().rev().fold(0, |sum, byte| sum << 8 | usize::from(*byte))
            };
            let (offset, len, key_bytes) = (number(4, 8), number(12, 4), number(28, 2));
            let checksum = crc32c::crc32c(&bytes[offset..offset + len]);
            bytes[entry + 16..entry + 20].copy_from_slice(&checksum.to_le_bytes());
            entry += 30 + key_bytes;
        }
        footer.index_checksum = crc32c::crc32c(&bytes[index_start..entry]);
        let (encoded, checksum) = footer.encode();
        bytes[footer_start..].copy_from_slice(&encoded);
        meta.footer_checksum = checksum;
    }

    #[test]
    fn blocks_with_the_right_checksum_and_any_content_never_panic() {
        let model = model();
        let (bytes, meta) = written(&model, 1);
        let mut random = Random(3);
        let mut noticed = 0;
        for _ in 0..20_000 {
            let (mut damaged, mut meta) = (bytes.clone(), meta);
            // The blocks of the first two tables lie at the beginning.
            let at = 32 + random.below(2_400) as usize;
            damaged[at] = [0, 1, 0x7f, 0x80, 0xff, random.next() as u8][random.below(6) as usize];
            forge(&mut damaged, &mut meta);
            let disk = MemoryDisk::default();
            disk.set_contents(Path::new(PATH), damaged);
            let run = open(&disk, Path::new(PATH), &meta).unwrap();
            for (table, key) in [(1, &b"key 7"[..]), (1, b"key 39"), (2, b"many"), (2, b"man"), (2, b"many ")]
            {
                let _ = get(&run, table, key, 10);
                let mut cursor = run.cursor(table, 10);
                let _ = cursor.seek(key).and_then(|()| item(&mut cursor));
                // Bounded, because keys that are not in order may lead round and round.
                for _ in 0..50 {
                    let _ = cursor.next().and_then(|()| item(&mut cursor));
                }
                let _ = cursor.seek_before(Some(key));
                for _ in 0..50 {
                    let _ = cursor.prev().and_then(|()| item(&mut cursor));
                }
            }
            let drained = drain(&mut run.versions());
            let verified = run.verify();
            assert!(verified.is_ok() <= drained.is_ok());
            noticed += usize::from(verified.is_err());
        }
        assert!(noticed > 5_000, "{noticed}");
    }

    #[test]
    fn values_that_changed_places_are_found_by_verify() {
        let mut model = Model::default();
        model.insert(1, "a", 1, Some(vec![1; 40_000]));
        model.insert(1, "b", 1, Some(vec![2; 40_000]));
        let (mut bytes, mut meta) = written(&model, 1);
        // The block ends where the index begins; its records are 2 + 4 + 1 + 16 bytes long and end with the
        // place of the value.
        let footer: [u8; FOOTER_BYTES] = *bytes.last_chunk().unwrap();
        let end = Footer::decode(&footer, Path::new(PATH), &meta).unwrap().index_offset as usize;
        let (a, b) = bytes[end - 39..end].split_at_mut(23);
        a[..16].swap_with_slice(b);
        forge(&mut bytes, &mut meta);
        let disk = MemoryDisk::default();
        disk.set_contents(Path::new(PATH), bytes);
        let run = open(&disk, Path::new(PATH), &meta).unwrap();
        assert!(get(&run, 1, b"a", 1).unwrap() == Some(Some(vec![2; 40_000])), "they did change places");
        assert_corruption(&[run.verify().unwrap_err()], meta.bytes, "values that changed places");
    }

    #[test]
    fn a_stream_never_hands_out_versions_that_are_not_in_order() {
        let model = model();
        let (bytes, meta) = written(&model, 1);
        let mut random = Random(4);
        for _ in 0..5_000 {
            let (mut damaged, mut meta) = (bytes.clone(), meta);
            damaged[32 + random.below(2_400) as usize] = random.next() as u8;
            forge(&mut damaged, &mut meta);
            let disk = MemoryDisk::default();
            disk.set_contents(Path::new(PATH), damaged);
            let run = open(&disk, Path::new(PATH), &meta).unwrap();
            if let Ok(versions) = drain(&mut run.versions()) {
                assert!(versions.is_sorted_by(|a, b| (a.0, &a.1, !a.2) < (b.0, &b.1, !b.2)));
            }
        }
    }

    #[test]
    fn an_index_with_the_right_checksum_and_any_content_neither_panics_nor_loops() {
        let model = model();
        let (bytes, meta) = written(&model, 1);
        let index = bytes.len() - FOOTER_BYTES - 64 * 3 - 200..bytes.len() - FOOTER_BYTES;
        for at in index {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let (mut damaged, mut meta) = (bytes.clone(), meta);
                damaged[at] = value;
                let path = Path::new(PATH);
                let footer_start = damaged.len() - FOOTER_BYTES;
                let footer: [u8; FOOTER_BYTES] = damaged[footer_start..].try_into().unwrap();
                let mut footer = Footer::decode(&footer, path, &meta).unwrap();
                let filter_start = (footer.index_offset + footer.index_bytes) as usize;
                footer.index_checksum = crc32c::crc32c(&damaged[footer.index_offset as usize..filter_start]);
                footer.filter_checksum = crc32c::crc32c(&damaged[filter_start..footer_start]);
                let (encoded, checksum) = footer.encode();
                damaged[footer_start..].copy_from_slice(&encoded);
                meta.footer_checksum = checksum;
                let disk = MemoryDisk::default();
                disk.set_contents(path, damaged);
                let Ok(run) = open(&disk, path, &meta) else { continue };
                for table in 1..=3 {
                    let _ = get(&run, table, b"many", 10);
                    let _ = scan(&run, table, 10);
                    let _ = scan_back(&run, table, 10);
                }
                let _ = run.verify();
            }
        }
    }
}
