//! Damage: one byte flipped anywhere, files cut, emptied, deleted, replaced by garbage, or put in each
//! other's place.
//!
//! Owns: what a damaged database may say. Promises: `Corruption` naming a file of the database and an offset,
//! or exactly the right data; never wrong data, a panic, a hang, or a huge allocation; and nothing is changed
//! by an opening that fails. May call: the engine's public face only.
//!
//! Two things cannot be told from a crash: damage to the last record of a log behind which nothing was
//! written (an orderly close writes a mark behind it, and damage to the mark alone loses nothing); and that
//! everything at the end of a log is gone at once, the mark included. Both give an earlier commit's state,
//! whole.

#[path = "support/mod.rs"]
mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bygone::io::{Disk, OpenMode, SimDisk};
use bygone::{Error, Result};
use support::workload::work;
use support::{
    Model, PATH, Random, compare, contents, full, inside, limit, open, open_read_only, options, within,
};

/// More than any honest opening of these small databases asks for at once.
const ALLOCATION_BYTES_MAX: usize = 16 << 20;

/// Notes the largest allocation.
struct Largest;

static LARGEST_BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: hands everything on to the system's allocator.
unsafe impl GlobalAlloc for Largest {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST_BYTES.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        LARGEST_BYTES.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promised.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        LARGEST_BYTES.fetch_max(size, Ordering::Relaxed);
        // SAFETY: as the caller promised.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Largest = Largest;

/// A small database with everything in it, closed in order: a log with records, runs, a base with overflow
/// pages, history runs, retained bases.
fn build() -> (SimDisk, Model) {
    let has_everything = |(disk, _): &(SimDisk, Model)| {
        let stats = open_read_only(disk).unwrap().stats().unwrap();
        stats.runs > 0 && stats.history_runs > 0 && stats.retained_bases > 0
    };
    (99..).map(|seed| build_with(seed, 4)).find(has_everything).expect("one of so many")
}

/// One that did `tail` steps after its last superblock, which begin other log segments if they are many.
fn build_with(seed: u64, tail: u64) -> (SimDisk, Model) {
    let disk = SimDisk::new();
    let mut model = Model::new();
    let db = open(&disk).unwrap();
    let mut random = Random(seed);
    work(&db, &mut model, &mut random, 60).unwrap();
    db.merge().unwrap();
    work(&db, &mut model, &mut random, 4).unwrap();
    db.flush().unwrap();
    work(&db, &mut model, &mut random, tail).unwrap();
    drop(db);
    model.all_durable();
    // A copy in which everything is durable, so that further copies cost nothing.
    (disk.crash_image(1), model)
}

/// Opens, reads everything, verifies. Wrong data panics; no commit may be missing.
fn read_all(disk: &SimDisk, model: &Model, read_only: bool, context: &str) -> Result<()> {
    let seq = read_prefix(disk, model, read_only, context)?;
    assert_eq!(seq, model.last_seq(), "{context}: commits are missing");
    Ok(())
}

/// As [`read_all`], but the last commits may be missing; answers which is the last.
fn read_prefix(disk: &SimDisk, model: &Model, read_only: bool, context: &str) -> Result<u64> {
    let db = if read_only { open_read_only(disk)? } else { open(disk)? };
    let seq = compare(&db, model, context)?;
    db.verify()?;
    Ok(seq)
}

/// What damage to some files led to: whether it was noticed. Only `Corruption` that names one of them will
/// do.
fn judge<T>(result: Result<T>, damaged: &[&Path], context: &str) -> bool {
    match result {
        Ok(_) => false,
        Err(Error::Corruption { path: named, offset, reason }) => {
            assert!(damaged.contains(&&*named), "{context}: {} at {offset}: {reason}", named.display());
            assert!(!reason.is_empty(), "{context}: no reason");
            true
        }
        Err(error) => panic!("{context}: {error:?}"),
    }
}

/// The kind of a file, and how often offsets in the middle of it are tried in a sample.
fn kind(path: &Path) -> &'static str {
    match inside(path).iter().next().and_then(|part| part.to_str()) {
        Some("wal") => "wal",
        Some("runs") => "runs",
        Some("history") => "history",
        _ => "base",
    }
}

/// The offsets to flip: all headers, the ends, and a sample of the rest. A stretch of zeros behind all
/// records of a log says the same everywhere.
fn offsets(path: &Path, bytes: &[u8], random: &mut Random) -> Vec<u64> {
    let len = bytes.len() as u64;
    let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u64 + 1);
    let stride = if full() {
        1
    } else {
        match kind(path) {
            "wal" => 23,
            "base" => 89,
            _ => 41,
        }
    };
    let mut offsets: Vec<u64> = (0..used.min(200)).chain(used.saturating_sub(100)..used).collect();
    if kind(path) == "base" {
        // The second superblock, and the first bytes of all pages.
        offsets.extend((4096..4296).filter(|offset| *offset < len));
        offsets.extend((0..len).step_by(4096).flat_map(|page| page..page + 4));
    }
    if kind(path) == "wal" {
        offsets.extend(4096..(4096 + 200).min(len));
    }
    let mut offset = random.below(stride);
    while offset < used {
        offsets.push(offset);
        offset += 1 + random.below(2 * stride - 1);
    }
    offsets.extend((used..len).step_by(4093));
    offsets.sort_unstable();
    offsets.dedup();
    offsets
}

#[test]
fn a_flipped_byte_is_noticed_or_harmless() {
    within(limit(), || {
        let (disk, model) = build();
        let mut random = Random(7);
        let mut counts: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        for (path, bytes) in contents(&disk) {
            for offset in offsets(&path, &bytes, &mut random) {
                let mask = 1 << random.below(8);
                let mask = if random.below(4) == 0 { 0xff } else { mask };
                let context = format!("{} flipped at {offset} with {mask:#x}", path.display());
                disk.flip(&path, offset, mask).unwrap();
                let noticed = judge(read_all(&disk, &model, true, &context), &[&path], &context);
                disk.flip(&path, offset, mask).unwrap();
                let count = counts.entry(kind(&path)).or_default();
                count.0 += 1;
                count.1 += u64::from(noticed);
            }
        }
        println!("flipped, and noticed: {counts:?}");
        for kind in ["wal", "runs", "history", "base"] {
            assert!(counts[kind].1 > 50, "{kind}: {counts:?}");
        }
        read_all(&disk, &model, true, "as it was").unwrap();
        let largest = LARGEST_BYTES.load(Ordering::Relaxed);
        assert!(largest <= ALLOCATION_BYTES_MAX, "{largest} bytes were asked for at once");
    });
}

/// As for reading, but opened for writing; and a database that could not be opened is whole again when the
/// damage is undone.
#[test]
fn a_flipped_byte_does_not_make_an_opening_destroy_anything() {
    within(limit(), || {
        let mut random = Random(8);
        for seed in 0..6 {
            let (disk, model) = build_with(seed, seed * 3);
            for (path, bytes) in contents(&disk) {
                let all = offsets(&path, &bytes, &mut random);
                for offset in all.into_iter().filter(|offset| full() || offset % 17 == 0) {
                    let context = format!("build {seed}: {} flipped at {offset}", path.display());
                    open_damaged(&disk, &model, &path, offset, &context);
                }
            }
        }
    });
}

fn open_damaged(disk: &SimDisk, model: &Model, path: &Path, offset: u64, context: &str) {
    let context = format!("{context}, opened for writing");
    let copy = disk.crash_image(1);
    copy.flip(path, offset, 0xff).unwrap();
    let cannot_open = judge(open(&copy), &[path], &context);
    judge(read_all(&copy, model, false, &context), &[path], &context);
    if cannot_open {
        copy.flip(path, offset, 0xff).unwrap();
        let context = format!("{context}, then as it was");
        read_all(&copy, model, false, &context).unwrap_or_else(|error| panic!("{context}: {error}"));
    }
}

/// The program was killed: no mark stands behind the last commit. Each `Sync` commit proves the one before.
#[test]
fn a_flipped_byte_in_a_log_without_an_end_costs_no_more_than_the_last_commit() {
    within(limit(), || {
        let disk = SimDisk::new();
        let mut model = Model::new();
        let db = open(&disk).unwrap();
        let mut random = Random(3);
        work(&db, &mut model, &mut random, 30).unwrap();
        let table = db.table("table-0").unwrap();
        db.put(&table, "key-0000", "the last but one").unwrap();
        db.put(&table, "key-0000", "the last").unwrap();
        let killed = disk.crash_image(0);
        let last_seq = u64::from(db.snapshot().seq());
        drop(db);
        let mut lost = 0;
        for (path, bytes) in contents(&killed).into_iter().filter(|(path, _)| kind(path) == "wal") {
            for offset in offsets(&path, &bytes, &mut random) {
                let context = format!("{} flipped at {offset}", path.display());
                killed.flip(&path, offset, 0x10).unwrap();
                let result = open_read_only(&killed).map(|db| u64::from(db.snapshot().seq()));
                if let Ok(seq) = result {
                    assert!(seq + 1 >= last_seq, "{context}: {seq} of {last_seq} commits");
                    lost += u64::from(seq < last_seq);
                }
                judge(result, &[&path], &context);
                killed.flip(&path, offset, 0x10).unwrap();
            }
        }
        assert!(lost > 0, "the last record was met");
    });
}

/// The newest superblock is damaged, and the log behind it was recycled: nothing that only it names may be
/// taken for litter.
#[test]
fn a_damaged_superblock_does_not_cost_the_files_that_it_names() {
    let large_memtable = || options().memtable_bytes(4 << 20);
    let disk = SimDisk::new();
    // Killed: an orderly end writes a superblock that says little more than the one before.
    let disk = {
        let db = large_memtable().open_on(Arc::new(disk.clone()), PATH).unwrap();
        let table = db.table("t").unwrap();
        for key in 0..300u32 {
            db.put(&table, key.to_be_bytes(), [1; 1000]).unwrap();
        }
        db.flush().unwrap();
        for key in 0..300u32 {
            db.put(&table, key.to_be_bytes(), [2; 500]).unwrap();
        }
        disk.killed_image()
    };
    let mut refused = 0;
    for superblock in [0, 2 * 4096] {
        let copy = disk.crash_image(1);
        let flip_both_copies = || {
            for offset in [superblock, superblock + 4096] {
                copy.flip(&Path::new(PATH).join("base.pages"), offset + 20, 1).unwrap();
            }
        };
        flip_both_copies();
        match large_memtable().open_on(Arc::new(copy.clone()), PATH) {
            Ok(_) => continue,
            Err(Error::Corruption { .. }) => refused += 1,
            Err(error) => panic!("{error}"),
        }
        flip_both_copies();
        let db = large_memtable().open_on(Arc::new(copy.clone()), PATH).unwrap();
        let table = db.open_table("t").unwrap();
        assert_eq!(db.snapshot().range(&table, ..).unwrap().count(), 300);
    }
    assert_eq!(refused, 1, "the newest superblock was needed");
}

fn write(disk: &SimDisk, path: &Path, bytes: &[u8]) {
    let file = disk.open(path, OpenMode::Write).unwrap();
    file.set_len(bytes.len() as u64).unwrap();
    file.write_at(bytes, 0).unwrap();
}

fn garbage(len: usize, random: &mut Random) -> Vec<u8> {
    (0..len.div_ceil(8)).flat_map(|_| random.next().to_le_bytes()).take(len).collect()
}

/// A log segment keeps its header, and none of its records.
const RECORDS_GONE: &str = "garbage after 4096";

/// What is done to a whole file.
fn mutilations(bytes: &[u8], random: &mut Random) -> Vec<(String, Option<Vec<u8>>)> {
    let len = bytes.len();
    let mut all = vec![
        ("deleted".to_owned(), None),
        ("emptied".to_owned(), Some(Vec::new())),
        ("zeroed".to_owned(), Some(vec![0; len])),
        ("replaced by garbage".to_owned(), Some(garbage(len, random))),
        ("replaced by little garbage".to_owned(), Some(garbage(50, random))),
        ("lengthened".to_owned(), Some([bytes, &garbage(5000, random)[..]].concat())),
        (RECORDS_GONE.to_owned(), Some([&bytes[..len.min(4096)], &garbage(len, random)[..]].concat())),
    ];
    let cuts = [1, 7, 39, 511, 512, 4095, 4096, 4097, 8192, len / 3, len / 2, len.saturating_sub(4096)];
    for cut in cuts.into_iter().chain([len.saturating_sub(8), len.saturating_sub(1)]).filter(|cut| *cut < len)
    {
        all.push((format!("cut at {cut}"), Some(bytes[..cut].to_vec())));
    }
    for _ in 0..4 {
        // A page or a block that stands where another should.
        let unit = 4096.min(len);
        let (from, to) = (random.below((len / unit) as u64), random.below((len / unit) as u64));
        let (from, to) = (from as usize * unit, to as usize * unit);
        let mut bytes = bytes.to_vec();
        bytes.copy_within(from..from + unit, to);
        all.push((format!("{unit} bytes copied from {from} to {to}"), Some(bytes)));
    }
    all
}

#[test]
fn a_mutilated_file_is_noticed_or_harmless() {
    within(limit(), || {
        let (disk, model) = build();
        let mut random = Random(9);
        for (path, bytes) in contents(&disk) {
            for (what, content) in mutilations(&bytes, &mut random) {
                let context = format!("{} {what}", path.display());
                for read_only in [true, false] {
                    let copy = disk.crash_image(1);
                    match &content {
                        None => copy.remove(&path).unwrap(),
                        Some(content) => write(&copy, &path, content),
                    }
                    let result = if kind(&path) == "wal" && what == RECORDS_GONE {
                        read_prefix(&copy, &model, read_only, &context).map(drop)
                    } else {
                        read_all(&copy, &model, read_only, &context)
                    };
                    if read_only && content.is_none() && path == Path::new(PATH).join("base.pages") {
                        assert!(
                            matches!(result, Err(Error::NotFound { .. } | Error::Corruption { .. })),
                            "{result:?}"
                        );
                        continue;
                    }
                    let noticed = judge(result, &[&path], &context);
                    if cannot_do_without(&path, &what) {
                        assert!(noticed, "{context}: not noticed, read only: {read_only}");
                    }
                }
            }
        }
        let largest = LARGEST_BYTES.load(Ordering::Relaxed);
        assert!(largest <= ALLOCATION_BYTES_MAX, "{largest} bytes were asked for at once");
    });
}

/// Whether all is lost without the content of the file: not so for spare segments of the log.
fn cannot_do_without(path: &Path, what: &str) -> bool {
    kind(path) != "wal" && ["deleted", "emptied", "zeroed", "replaced by garbage"].contains(&what)
}

#[test]
fn files_in_each_others_place_are_noticed() {
    within(limit(), || {
        let (disk, model) = build();
        let files: Vec<(PathBuf, Vec<u8>)> = contents(&disk).into_iter().collect();
        let mut random = Random(10);
        for (i, (first, first_bytes)) in files.iter().enumerate() {
            for (second, second_bytes) in &files[i + 1..] {
                if kind(first) != kind(second) && random.below(4) > 0 {
                    continue;
                }
                let context = format!("{} and {} swapped", first.display(), second.display());
                let copy = disk.crash_image(1);
                write(&copy, first, second_bytes);
                write(&copy, second, first_bytes);
                for read_only in [true, false] {
                    let noticed =
                        judge(read_all(&copy, &model, read_only, &context), &[first, second], &context);
                    assert!(noticed || kind(first) == "wal", "{context}: not noticed");
                }
            }
        }
    });
}

/// Files of an older or a strange database in place of this one's.
#[test]
fn files_of_another_database_are_noticed() {
    within(limit(), || {
        let (disk, model) = build();
        let (other, _) = build();
        let theirs: BTreeMap<PathBuf, Vec<u8>> = contents(&other);
        let paths: Vec<&Path> = theirs.keys().map(PathBuf::as_path).collect();
        for (path, _) in contents(&disk) {
            let Some(bytes) = theirs.get(&path) else { continue };
            let context = format!("{} from another database", path.display());
            for read_only in [true, false] {
                let copy = disk.crash_image(1);
                write(&copy, &path, bytes);
                let noticed = judge(read_all(&copy, &model, read_only, &context), &paths, &context);
                assert!(noticed || kind(&path) == "wal", "{context}: not noticed");
            }
        }
    });
}
