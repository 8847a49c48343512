//! Child processes killed by SIGKILL at random moments, on the real disk.
//!
//! Owns: the child, which is this test binary run again, and the parent that kills it. Promises: what the
//! child was told was committed is there, `Buffered` or not, because the operating system lives on; no half
//! commit; every snapshot that was declared reads as it was. May call: the support.
//!
//! Each thread of the child has a table of its own, in which commit `n` does what a function of thread and
//! `n` says, so the parent's model needs nothing but numbers.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use bygone::{Db, Durability, Options, Snapshot};

use crate::support::{Random, full};

const DIRECTORY: &str = "BYGONE_KILLED_DIRECTORY";
const THREADS: usize = 3;
const KEYS: usize = 120;
const SNAPSHOT_EVERY: u64 = 20;

/// In the table of a thread: the number of its last commit, written by each.
const LAST: &str = "last";

/// For each key of a thread the commit that wrote it; 0 for none.
type Writers = [u64; KEYS];

/// What commit `n` of a thread does: the keys, and whether it writes them.
fn changes(thread: usize, n: u64) -> Vec<(usize, bool)> {
    let mut random = Random((thread as u64) << 40 | n);
    let count = 1 + random.below(8);
    (0..count).map(|_| (random.below(KEYS as u64) as usize, random.below(6) > 0)).collect()
}

fn apply(writers: &mut Writers, thread: usize, n: u64) {
    for (key, written) in changes(thread, n) {
        writers[key] = if written { n } else { 0 };
    }
}

fn value(thread: usize, key: usize, n: u64) -> Vec<u8> {
    let mut value = n.to_be_bytes().to_vec();
    let len = Random(n * 1000 + key as u64).below(400) as usize;
    value.resize(8 + len, (thread * 31 + key) as u8);
    value
}

fn table_name(thread: usize) -> String {
    format!("thread-{thread}")
}

fn snapshot_name(thread: usize, n: u64) -> String {
    format!("{thread}-{n}")
}

fn open(directory: &Path) -> Db {
    let options = Options::new().memtable_bytes(64 << 10).log_segment_bytes(128 << 10).cache_bytes(1 << 20);
    options.open(directory).unwrap()
}

/// The number of a thread's last commit, as of a snapshot.
fn last(snapshot: &Snapshot, thread: usize) -> u64 {
    let Ok(table) = snapshot.table(&table_name(thread)) else { return 0 };
    let number = snapshot.get(&table, LAST).unwrap();
    number.map_or(0, |number| u64::from_be_bytes(number[..].try_into().unwrap()))
}

/// The child's side: commits for ever, and says so. Returns at once when this is no child.
#[test]
fn child() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let db = open(Path::new(&directory));
    println!("\nopen");
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let db = db.clone();
            scope.spawn(move || commit_for_ever(&db, thread));
        }
    });
}

fn commit_for_ever(db: &Db, thread: usize) {
    let table = db.table(&table_name(thread)).unwrap();
    let mut n = last(&db.snapshot(), thread);
    loop {
        n += 1;
        let mut tx = db.begin().unwrap();
        tx.set_durability(if n.is_multiple_of(5) { Durability::Sync } else { Durability::Buffered });
        for (key, written) in changes(thread, n) {
            match written {
                true => tx.put(&table, [key as u8], value(thread, key, n)).unwrap(),
                false => tx.delete(&table, [key as u8]).unwrap(),
            }
        }
        tx.put(&table, LAST, n.to_be_bytes()).unwrap();
        let id = if n.is_multiple_of(SNAPSHOT_EVERY) {
            u64::from(tx.commit_with_snapshot(snapshot_name(thread, n).as_str()).unwrap())
        } else {
            tx.commit().unwrap();
            0
        };
        // One write, so that no line is cut by the kill or mixed with another's.
        std::io::stdout().write_all(format!("ack {thread} {n} {id}\n").as_bytes()).unwrap();
    }
}

/// What the parent knows.
struct Model {
    /// The last commit of each thread that was found or acknowledged.
    last: [u64; THREADS],
    now: [Writers; THREADS],
    /// By thread and commit: the snapshot's id once acknowledged, and the thread's state.
    snapshots: Vec<(usize, u64, u64, Writers)>,
}

#[test]
fn everything_acknowledged_is_there_after_each_of_many_kills() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let mut random = Random(4242);
    let mut model = Model { last: [0; THREADS], now: [[0; KEYS]; THREADS], snapshots: Vec::new() };
    let rounds = if full() { 200 } else { 25 };
    for round in 0..rounds {
        let delay = Duration::from_millis(random.below(120));
        let acknowledged = run_child(&path, delay);
        let context = format!("round {round}, killed after {delay:?}");
        let started = Instant::now();
        let db = open(&path);
        assert!(
            started.elapsed() < Duration::from_secs(10),
            "{context}: recovery took {:?}",
            started.elapsed()
        );
        check(&db, &mut model, &acknowledged, &context, &mut random);
    }
    println!("{:?} commits, {} snapshots", model.last, model.snapshots.len());
    assert!(model.last.iter().all(|last| *last > 0));
}

/// Lets a child commit until it is killed; answers what it was told: thread, number, id of the snapshot or 0.
fn run_child(path: &Path, delay: Duration) -> Vec<(usize, u64, u64)> {
    let mut child: Child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "killed::child", "--nocapture", "--test-threads=1"])
        .env(DIRECTORY, path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let (opened, is_open) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut acknowledged = Vec::new();
        for line in output.lines().map_while(Result::ok) {
            if line == "open" {
                // Nobody listens if opening took too long; then the wait below tells.
                let _ = opened.send(());
            }
            let numbers = line.strip_prefix("ack ").map(|rest| rest.split(' ').map(|n| n.parse().unwrap()));
            if let Some(numbers) = numbers {
                let numbers: Vec<u64> = numbers.collect();
                acknowledged.push((numbers[0] as usize, numbers[1], numbers[2]));
            }
        }
        acknowledged
    });
    is_open.recv_timeout(Duration::from_secs(30)).expect("the child opens the database");
    std::thread::sleep(delay);
    child.kill().unwrap();
    let status = child.wait().unwrap();
    assert!(!status.success());
    reader.join().unwrap()
}

fn check(db: &Db, model: &mut Model, acknowledged: &[(usize, u64, u64)], context: &str, random: &mut Random) {
    let now = db.snapshot();
    for thread in 0..THREADS {
        let found = last(&now, thread);
        let promised = acknowledged.iter().filter(|ack| ack.0 == thread).map(|ack| ack.1).max();
        let promised = promised.unwrap_or(0).max(model.last[thread]);
        assert!(found >= promised, "{context}: thread {thread} was told of {promised}, found {found}");
        for n in model.last[thread] + 1..=found {
            apply(&mut model.now[thread], thread, n);
            if n.is_multiple_of(SNAPSHOT_EVERY) {
                let told = acknowledged.iter().find(|ack| ack.0 == thread && ack.1 == n);
                model.snapshots.push((thread, n, told.map_or(0, |ack| ack.2), model.now[thread]));
            }
        }
        model.last[thread] = found;
        compare(&now, thread, found, &model.now[thread], context);
    }
    let infos = db.snapshots().unwrap();
    assert_eq!(infos.len(), model.snapshots.len(), "{context}: declared snapshots");
    assert!((1..).zip(&infos).all(|(id, info)| u64::from(info.id) == id), "{context}");
    // The new ones, and some of those that have lived through many kills.
    let count = model.snapshots.len();
    let old = (0..count).filter(|_| random.below(10) == 0);
    for index in old.chain(count.saturating_sub(20)..count) {
        let (thread, n, id, writers) = &model.snapshots[index];
        let context = format!("{context}, snapshot {thread}-{n}");
        let past = db.as_of(snapshot_name(*thread, *n)).unwrap_or_else(|error| panic!("{context}: {error}"));
        compare(&past, *thread, *n, writers, &context);
        if *id != 0 {
            assert_eq!(db.as_of(bygone::SnapshotId::from(*id)).unwrap().seq(), past.seq(), "{context}");
        }
    }
    db.verify().unwrap_or_else(|error| panic!("{context}: {error}"));
}

fn compare(snapshot: &Snapshot, thread: usize, n: u64, writers: &Writers, context: &str) {
    if n == 0 {
        return;
    }
    let table = snapshot.table(&table_name(thread)).unwrap_or_else(|error| panic!("{context}: {error}"));
    let mut expected: Vec<_> = (0..KEYS)
        .filter(|key| writers[*key] > 0)
        .map(|key| (vec![key as u8], value(thread, key, writers[key])))
        .collect();
    expected.push((LAST.into(), n.to_be_bytes().to_vec()));
    expected.sort();
    let found: Vec<_> = snapshot
        .range(&table, ..)
        .unwrap()
        .map(|record| record.map(|(key, value)| (key.into_vec(), value.into_vec())))
        .collect::<bygone::Result<_>>()
        .unwrap_or_else(|error| panic!("{context}: {error}"));
    assert!(found == expected, "{context}: table of thread {thread} at its commit {n} is not as it was");
}
