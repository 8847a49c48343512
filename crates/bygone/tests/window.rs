//! The continuous window: every commit of the last while can be read, although nobody declared a snapshot of it.
//!
//! Promises: what `Db::window` tells reads as it was, by number and by time; what has left it is refused in words that
//! say where it is, and its space comes back. May call: the engine's public face.

#[path = "support/mod.rs"]
mod support;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bygone::io::SimDisk;
use bygone::{Db, Error, Options, Seq, SnapshotRef, Table};
use support::workload::work;
use support::{
    HISTORY, Model, PATH, Random, check, check_open, open, open_read_only, options, split_options,
    windowed_options,
};

const LONG: Duration = Duration::from_secs(100_000);

/// Short enough to be waited for.
const SHORT: Duration = Duration::from_millis(50);

fn open_with(disk: &SimDisk, options: Options) -> Db {
    options.open_on(Arc::new(disk.clone()), PATH).unwrap()
}

/// Puts a value under a key and answers the commit, and a time at which it was the latest.
fn put(db: &Db, table: &Table, value: impl AsRef<[u8]>) -> (Seq, SystemTime) {
    db.put(table, "k", value).unwrap();
    let now = SystemTime::now();
    // Times count by the microsecond.
    std::thread::sleep(Duration::from_micros(2));
    (db.snapshot().seq(), now)
}

fn value_at(db: &Db, table: &Table, at: impl Into<SnapshotRef>) -> Option<Vec<u8>> {
    let past = db.as_of(at).unwrap();
    past.get(table, "k").unwrap().map(|value| value.to_vec())
}

fn is_outside<T>(answer: bygone::Result<T>) -> String {
    match answer {
        Err(error @ Error::OutsideWindow { .. }) => error.to_string(),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it can be read"),
    }
}

#[test]
fn every_commit_reads_by_number_and_by_time_through_flushes_merges_and_openings() {
    let disk = SimDisk::new();
    let mut db = open_with(&disk, windowed_options());
    let mut table = db.table("t").unwrap();
    let mut commits = Vec::new();
    for round in 0..60u32 {
        let value = vec![round as u8; 1 + round as usize * 50];
        let (seq, time) = put(&db, &table, &value);
        commits.push((seq, time, value));
        match round % 12 {
            3 => db.flush().unwrap(),
            7 => db.merge().unwrap(),
            11 => {
                drop((db, table));
                db = open(&disk).unwrap();
                table = db.open_table("t").unwrap();
            }
            _ => {}
        }
        for (seq, time, value) in &commits {
            assert_eq!(value_at(&db, &table, *seq).as_ref(), Some(value), "commit {seq} in round {round}");
            assert_eq!(db.as_of(*time).unwrap().seq(), *seq, "round {round}");
        }
    }
    assert!(db.snapshots().unwrap().is_empty());
    let window = db.window().unwrap();
    assert_eq!((window.length, window.first, window.last), (LONG, Seq::from(0), db.snapshot().seq()));
    assert_eq!(value_at(&db, &table, Seq::from(1)), None, "the commit that made the table");
    assert!(db.as_of(Seq::from(0)).unwrap().tables().unwrap().is_empty());
    db.verify().unwrap();
}

#[test]
fn a_time_means_the_latest_commit_at_or_before_it() {
    let disk = SimDisk::new();
    let db = open_with(&disk, windowed_options());
    assert!(db.as_of(SystemTime::now()).is_err(), "there is no commit yet");
    let table = db.table("t").unwrap();
    let (first, at_first) = put(&db, &table, "1");
    std::thread::sleep(Duration::from_millis(2));
    let between = SystemTime::now();
    db.snapshot_now("declared").unwrap();
    let (second, at_second) = put(&db, &table, "2");
    let seq = |time: SystemTime| db.as_of(time).unwrap().seq();
    assert_eq!(seq(at_first), first);
    assert_eq!(seq(between), first, "and not the snapshot that was declared later");
    assert_eq!(seq(at_second), second);
    assert_eq!(seq(SystemTime::now() + Duration::from_secs(1000)), second);
    // What asks for a declared snapshot goes on meaning one.
    assert_eq!(db.snapshot_info(SystemTime::now()).unwrap().name.as_deref(), Some("declared"));
    assert!(matches!(db.as_of(SystemTime::UNIX_EPOCH), Err(Error::OutsideWindow { .. })));
}

#[test]
fn without_a_window_commits_of_declared_snapshots_are_found_by_their_numbers() {
    let disk = SimDisk::new();
    let db = open(&disk).unwrap();
    let table = db.table("t").unwrap();
    let mut declared = Vec::new();
    for round in 0..20 {
        put(&db, &table, [round]);
        if round % 3 == 0 {
            let id = db.snapshot_now(None).unwrap();
            declared.push((db.snapshot_info(id).unwrap().seq, round));
        }
        if round % 7 == 0 {
            db.merge().unwrap();
        }
    }
    for (seq, round) in &declared {
        assert_eq!(value_at(&db, &table, *seq), Some(vec![*round]));
        let undeclared = Seq::from(u64::from(*seq) - 1);
        let told = is_outside(db.as_of(undeclared));
        assert!(
            told.contains(&format!("of commit {undeclared}")) && told.contains("has no window"),
            "{told}"
        );
    }
    assert!(matches!(db.snapshot_info(Seq::from(1)), Err(Error::SnapshotNotFound { .. })));
    assert!(matches!(db.as_of(SystemTime::UNIX_EPOCH), Err(Error::SnapshotNotFound { .. })));
    assert_eq!(db.window(), None);
    is_outside(db.as_of(Seq::from(u64::MAX)));
    db.delete_snapshot(declared[1].0).unwrap();
    is_outside(db.as_of(declared[1].0));
}

#[test]
fn what_leaves_the_window_is_refused_in_words_and_given_back() {
    let disk = SimDisk::new();
    let db = open_with(&disk, options().window(SHORT));
    let table = db.table("t").unwrap();
    let rounds = |db: &Db| {
        let mut last = put(db, &table, "");
        for round in 0..40u32 {
            let mut tx = db.begin().unwrap();
            for key in 0..100u32 {
                tx.put(&table, key.to_be_bytes(), [round as u8; 100]).unwrap();
            }
            tx.commit().unwrap();
            last = put(db, &table, [round as u8]);
            if round % 10 == 0 {
                db.flush().unwrap();
                db.merge().unwrap();
            }
        }
        last
    };
    let (old, at_old) = put(&db, &table, "old");
    let (last, _) = rounds(&db);
    std::thread::sleep(SHORT);
    let view = db.as_of(last).unwrap();
    db.merge().unwrap();
    db.prune().unwrap();
    let window = db.window().unwrap();
    assert_eq!((window.first, window.last), (last, last), "the state of then is what the window begins with");
    let told = is_outside(db.as_of(old));
    assert!(told.contains(&format!("from commit {last} of")), "{told}");
    is_outside(db.as_of(at_old));
    is_outside(db.diff(old, last, &table).map(|_| ()));
    is_outside(db.restore(old));
    is_outside(db.export(old, "/copy"));
    let stats = db.stats().unwrap();
    assert_eq!((stats.history_runs, stats.history_bytes, stats.retained_bases), (0, 0, 0), "{stats:?}");
    assert_eq!(value_at(&db, &table, last), Some(vec![39]));

    rounds(&db);
    std::thread::sleep(SHORT);
    put(&db, &table, "new");
    db.merge().unwrap();
    is_outside(db.as_of(last));
    assert_eq!(view.get(&table, "k").unwrap().unwrap(), b"\x27", "an open view reads on");
    db.verify().unwrap();
}

/// The window is at least as long as it says, however it moves.
#[test]
fn what_is_younger_than_the_window_is_long_can_be_read() {
    let disk = SimDisk::new();
    let db = open_with(&disk, options().window(SHORT));
    let table = db.table("t").unwrap();
    let mut commits = Vec::new();
    for round in 0..200u32 {
        commits.push(put(&db, &table, round.to_be_bytes()));
        if round % 5 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        match round % 10 {
            4 => db.flush().unwrap(),
            6 => db.merge().unwrap(),
            8 => db.prune().unwrap(),
            _ => {}
        }
        let asked = SystemTime::now();
        for (seq, time) in commits.iter().rev().take_while(|(_, time)| asked < *time + SHORT / 2) {
            // Unless this thread was held up for longer.
            match db.as_of(*time) {
                Ok(past) => assert_eq!(past.seq(), *seq),
                Err(error) => assert!(asked.elapsed().unwrap() > SHORT / 2, "{error}"),
            }
        }
    }
}

#[test]
fn a_window_is_remembered_shortened_and_given_up() {
    let disk = SimDisk::new();
    let mut model = Model::new();
    let mut random = Random(1);
    let mut go_on = |db: &Db, what: &str| {
        work(db, &mut model, &mut random, 60).unwrap();
        check_open(db, &model, what);
        db.merge().unwrap();
        check_open(db, &model, what);
        model.last_seq()
    };
    let db = open(&disk).unwrap();
    let before = go_on(&db, "without a window");
    assert_eq!(db.window(), None);
    drop(db);

    let db = open_with(&disk, windowed_options());
    let begun = db.window().unwrap();
    assert_eq!(u64::from(begun.first), before, "it begins with what is there");
    assert_eq!(db.as_of(begun.since).unwrap().seq(), begun.first);
    go_on(&db, "with a window");
    drop(db);

    let db = open(&disk).unwrap();
    assert_eq!(db.window().unwrap().first, begun.first, "nobody named it, and it goes on");
    go_on(&db, "remembered");
    drop(db);

    let longer = LONG * 2;
    let db = open_with(&disk, options().window(longer));
    assert_eq!((db.window().unwrap().first, db.window().unwrap().length), (begun.first, longer));
    go_on(&db, "lengthened");
    let reader = open_read_only(&disk).unwrap();
    assert_eq!(reader.window(), db.window());
    drop((db, reader));

    let db = open_with(&disk, options().window(Duration::from_micros(1)));
    assert_eq!(db.window().unwrap().first, begun.first, "nothing has moved it yet");
    db.prune().unwrap();
    let window = db.window().unwrap();
    assert_eq!(window.first, window.last);
    go_on(&db, "shortened");
    drop(db);

    let db = open_with(&disk, options().window(Duration::ZERO));
    assert_eq!(db.window(), None);
    go_on(&db, "given up");
    let doomed: Vec<_> = db.snapshots().unwrap();
    let seq = db.snapshot().seq();
    db.delete_snapshots(&doomed).unwrap();
    db.prune().unwrap();
    let stats = db.stats().unwrap();
    assert_eq!((stats.history_runs, stats.retained_bases), (0, 0), "{stats:?}");
    drop(db);
    let db = open(&disk).unwrap();
    assert_eq!(db.window(), None);
    is_outside(db.as_of(seq));
}

/// Also if nobody had the time to give it back.
#[test]
fn what_a_window_kept_that_was_given_up_comes_back_at_a_later_opening() {
    let disk = SimDisk::new();
    let db = open_with(&disk, windowed_options());
    let table = db.table("t").unwrap();
    for round in 0..30 {
        put(&db, &table, [round; 1000]);
        if round % 5 == 0 {
            db.merge().unwrap();
        }
    }
    assert!(db.stats().unwrap().retained_bases > 0);
    drop(db);
    drop(open_with(&disk, options().window(Duration::ZERO)));
    let db = open(&disk).unwrap();
    assert!(db.stats().unwrap().retained_bases > 0, "nothing was done yet");
    db.prune().unwrap();
    let stats = db.stats().unwrap();
    assert_eq!((stats.history_runs, stats.retained_bases), (0, 0), "{stats:?}");
    db.verify().unwrap();
}

#[test]
fn what_nobody_declared_is_compared_exported_and_restored() {
    let disk = SimDisk::new();
    let db = open_with(&disk, windowed_options());
    let table = db.table("t").unwrap();
    let (good, at_good) = put(&db, &table, "good");
    let gone = db.table("gone").unwrap();
    db.put(&gone, "a", "b").unwrap();
    db.merge().unwrap();
    let full = db.snapshot().seq();
    db.drop_table("gone").unwrap();
    db.delete(&table, "k").unwrap();
    let bad = db.snapshot().seq();
    db.flush().unwrap();

    let changes: Vec<_> = db.diff(good, bad, &table).unwrap().map(Result::unwrap).collect();
    assert_eq!(changes.len(), 1);
    assert_eq!((changes[0].before.as_deref(), changes[0].after.as_deref()), (Some(&b"good"[..]), None));

    db.export(full, "/copy").unwrap();
    let copy = options().open_on(Arc::new(disk.clone()), "/copy").unwrap();
    assert_eq!(copy.get(&copy.open_table("gone").unwrap(), "a").unwrap().unwrap(), b"b");
    assert!(copy.snapshots().unwrap().is_empty() && copy.window().is_none());

    let restored = db.restore(full).unwrap();
    assert_eq!(db.get(&db.open_table("gone").unwrap(), "a").unwrap().unwrap(), b"b");
    let before = db.snapshot_info(restored.before).unwrap();
    assert_eq!(
        (before.seq, &before.metadata[..]),
        (bad, format!("before restoring commit {full}").as_bytes())
    );
    assert_eq!(value_at(&db, &table, bad), None, "the window goes on across what was restored");
    db.restore(at_good).unwrap();
    assert!(db.open_table("gone").is_err());
    for seq in 0..=u64::from(db.snapshot().seq()) {
        db.as_of(Seq::from(seq)).unwrap().tables().unwrap();
    }
    // By the number of a declared snapshot's commit it is that snapshot.
    assert_eq!(db.restore(bad).unwrap().seq, db.snapshot().seq());
    let metadata = db.snapshots().unwrap().pop().unwrap().metadata;
    assert_eq!(metadata, format!("before restoring snapshot {}", restored.before).as_bytes());
}

#[test]
fn what_is_received_lies_in_the_window_too() {
    let source = open(&SimDisk::new()).unwrap();
    let table = source.table("t").unwrap();
    source.put(&table, "k", "1").unwrap();
    let one = source.snapshot_now("one").unwrap();
    source.put(&table, "k", "2").unwrap();
    source.snapshot_now("two").unwrap();
    let (mut first, mut second) = (Vec::new(), Vec::new());
    source.send(None, one, &mut first).unwrap();
    source.send(Some(one.into()), "two", &mut second).unwrap();

    let disk = SimDisk::new();
    let db = open_with(&disk, windowed_options());
    let mut times = Vec::new();
    for stream in [&first, &second] {
        db.receive(&stream[..]).unwrap();
        times.push((db.snapshot().seq(), SystemTime::now()));
        std::thread::sleep(Duration::from_micros(2));
    }
    let table = db.open_table("t").unwrap();
    for ((seq, time), value) in times.iter().zip([b"1", b"2"]) {
        assert_eq!(value_at(&db, &table, *seq).unwrap(), value);
        assert_eq!(db.as_of(*time).unwrap().seq(), *seq);
    }
}

/// The past of a moment is kept for who reads it in another process, whatever leaves the owner's window.
#[test]
fn a_reader_in_another_process_has_the_window_of_its_moment() {
    for options in [options(), split_options()] {
        let disk = SimDisk::new();
        let db = open_with(&disk, options.window(Duration::from_micros(1)));
        // Nothing moves the window but `prune` and `merge`.
        let mut model = Model::new();
        let mut random = Random(7);
        work(&db, &mut model, &mut random, 40).unwrap();
        let table = db.table("held").unwrap();
        model.push({
            let mut state = model.now().clone();
            state.insert("held".into(), Arc::default());
            state
        });
        let from = u64::from(db.window().unwrap().first);
        let (first, at_first) = put(&db, &table, "1");
        let reader = open_read_only(&disk).unwrap();
        let before = reader.window().unwrap();
        assert!(u64::from(before.first) >= from && before.last == first);
        for round in 0..20 {
            put(&db, &table, [round; 500]);
            db.flush().unwrap();
            db.merge().unwrap();
            db.prune().unwrap();
            db.archive().unwrap();
        }
        assert!(db.window().unwrap().first > first);
        is_outside(db.as_of(first));
        assert_eq!(reader.window(), Some(before));
        let held = reader.open_table("held").unwrap();
        assert_eq!(value_at(&reader, &held, first).unwrap(), b"1");
        assert_eq!(value_at(&reader, &held, at_first).unwrap(), b"1");
        check_open(&reader, &model_with(&model, "1"), "the reader of then");
        assert!(reader.refresh().unwrap());
        assert_eq!(reader.window(), db.window());
        is_outside(reader.as_of(first));
    }
}

/// The model with one more commit, of a value under the key `k` of the table `held`.
fn model_with(model: &Model, value: &str) -> Model {
    let mut model = model.clone();
    let mut state = model.now().clone();
    let records = Arc::make_mut(state.get_mut("held").unwrap());
    records.insert(b"k".to_vec(), value.as_bytes().into());
    model.push(state);
    model
}

#[test]
fn the_whole_past_of_a_window_may_lie_elsewhere() {
    let disk = SimDisk::new();
    let db = open_with(&disk, windowed_options().history_dir(HISTORY).archive_segment_bytes(64 << 10));
    let mut model = Model::new();
    let mut random = Random(3);
    for round in 0..6 {
        work(&db, &mut model, &mut random, 60).unwrap();
        db.merge().unwrap();
        db.archive().unwrap();
        check_open(&db, &model, &format!("round {round}"));
    }
    assert!(db.stats().unwrap().archived_pages > 0);
    drop(db);
    model.all_durable();
    let (db, _) = check(&disk, &model, "opened again");
    drop(db);
    // As short as can be, all of it is given back.
    let db = open_with(&disk, options().window(Duration::from_micros(1)));
    db.delete_snapshots(&db.snapshots().unwrap()).unwrap();
    db.prune().unwrap();
    let stats = db.stats().unwrap();
    assert_eq!((stats.archived_pages, stats.history_runs, stats.retained_bases), (0, 0, 0), "{stats:?}");
    assert!(stats.archive_failure.is_none());
}

#[test]
fn the_background_moves_the_window_and_gives_back_what_it_left() {
    let disk = SimDisk::new();
    let db = open_with(&disk, options().window(SHORT).background(true));
    let table = db.table("t").unwrap();
    let (first, _) = put(&db, &table, "first");
    let deadline = SystemTime::now() + Duration::from_secs(30);
    let mut round = 0u32;
    while db.window().unwrap().first <= first {
        assert!(SystemTime::now() < deadline, "nobody moves it");
        put(&db, &table, vec![round as u8; 2000]);
        round += 1;
        if round.is_multiple_of(500) {
            db.flush().unwrap();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    is_outside(db.as_of(first));
    db.merge().unwrap();
    // Nobody commits, so in the end there is but the present.
    while db.stats().unwrap().retained_bases + db.stats().unwrap().history_runs > 0 {
        assert!(SystemTime::now() < deadline, "nobody gives it back: {:?}", db.stats().unwrap());
        std::thread::sleep(Duration::from_millis(20));
    }
    let window = db.window().unwrap();
    assert_eq!(window.first, window.last);
}

/// For those who never have the database open for long.
#[test]
fn closing_moves_the_window() {
    let disk = SimDisk::new();
    let db = open_with(&disk, options().window(SHORT));
    let table = db.table("t").unwrap();
    put(&db, &table, "older");
    let (old, _) = put(&db, &table, "old");
    std::thread::sleep(Duration::from_millis(1100));
    let (new, _) = put(&db, &table, "new");
    assert_eq!(db.window().unwrap().first, Seq::from(0), "nobody has moved it yet");
    drop((db, table));
    let reader = open_read_only(&disk).unwrap();
    let window = reader.window().unwrap();
    assert!(window.first >= old && window.last == new, "{window:?}");
    let table = reader.open_table("t").unwrap();
    assert_eq!(value_at(&reader, &table, new).unwrap(), b"new");
}

/// What a window holds is not a snapshot's own, and no byte budget can be kept by deleting what the window reaches.
#[test]
fn sizes_and_budgets_know_of_the_window() {
    let disk = SimDisk::new();
    let filled = |options: Options| {
        let db = open_with(&disk, options);
        let table = db.table("t").unwrap();
        for round in 0..12u8 {
            for key in 0..200u32 {
                db.put(&table, key.to_be_bytes(), [round; 200]).unwrap();
            }
            if round % 4 == 1 {
                db.snapshot_now(None).unwrap();
            }
            db.merge().unwrap();
        }
        db
    };
    let db = filled(windowed_options());
    let sizes = db.snapshot_sizes().unwrap();
    assert_eq!(sizes.len(), 3);
    assert!(sizes.iter().all(|size| size.own_bytes == 0), "{sizes:?}");
    assert!(sizes.iter().any(|size| size.shared_bytes > 0), "{sizes:?}");
    let budget = bygone::Retention::new().max_bytes(1);
    assert_eq!(db.plan_retention(&budget).unwrap(), []);
    drop(db);
    let db = open_with(&disk, options().window(Duration::ZERO));
    db.prune().unwrap();
    let sizes = db.snapshot_sizes().unwrap();
    assert!(sizes.iter().any(|size| size.own_bytes > 0), "{sizes:?}");
    assert!(!db.plan_retention(&budget).unwrap().is_empty());
}
