//! Processes of their own on the real disk: one that writes, declares, deletes and applies retention, and two that read
//! all the while; each is killed by SIGKILL at random moments.
//!
//! A snapshot is declared by every commit, and its name is the commit's number among those of the writer. From that
//! number alone follows all that it holds, so whoever reads it knows what must be there.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use bygone::{Db, Durability, Error, Options, Retention, Snapshot};

use crate::support::{Random, limit, within};

const DIRECTORY: &str = "BYGONE_BESIDE_DIRECTORY";
const ROLE: &str = "BYGONE_BESIDE_ROLE";

const KEYS: u64 = 211;
const KEYS_OF_A_COMMIT: u64 = 9;

/// How many snapshots the writer keeps, about.
const KEPT: u64 = 150;

/// The keys that commit `n` changes, and whether it writes them.
fn changes(n: u64) -> impl Iterator<Item = (u64, bool)> {
    (0..KEYS_OF_A_COMMIT).map(move |i| ((n * 7 + i) % KEYS, !(n + i).is_multiple_of(5)))
}

fn value(key: u64, n: u64) -> Vec<u8> {
    let mut value = format!("{key}/{n}/").into_bytes();
    value.resize(value.len() + (n * 31 + key) as usize % 300, key as u8);
    value
}

/// All records as of commit `n`.
fn state(n: u64) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut writers = vec![None; KEYS as usize];
    // Every key is among the changes of one of so many commits in a row.
    for n in n.saturating_sub(KEYS).max(1)..=n {
        for (key, written) in changes(n) {
            writers[key as usize] = written.then_some(n);
        }
    }
    let records = (0..KEYS).zip(writers).filter_map(|(key, n)| Some((key, n?)));
    records.map(|(key, n)| (key.to_be_bytes().to_vec(), value(key, n))).collect()
}

fn check(past: &Snapshot, n: u64, context: &str) {
    let table = past.table("t").unwrap_or_else(|error| panic!("{context}: {error}"));
    let found: Vec<_> = past
        .range(&table, ..)
        .unwrap()
        .map(|record| record.map(|(key, value)| (key.into_vec(), value.into_vec())))
        .collect::<bygone::Result<_>>()
        .unwrap_or_else(|error| panic!("{context}: {error}"));
    assert!(found == state(n), "{context}: something else");
}

fn options() -> Options {
    Options::new().memtable_bytes(64 << 10).log_segment_bytes(128 << 10).cache_bytes(1 << 20)
}

fn say(line: &str) {
    // One write, so that no line is cut by the kill.
    std::io::stdout().write_all(format!("{line}\n").as_bytes()).unwrap();
}

/// The child's side. Returns at once when this is no child.
#[test]
fn child() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let directory = Path::new(&directory);
    match std::env::var(ROLE).as_deref() {
        Ok("writer") => write_for_ever(directory),
        _ => read_for_ever(directory),
    }
}

fn last(db: &Db) -> u64 {
    let names = db.snapshots().unwrap().into_iter().filter_map(|info| info.name?.parse().ok());
    names.max().unwrap_or(0)
}

fn write_for_ever(directory: &Path) {
    let db = options().open(directory).unwrap_or_else(|error| panic!("the writer opens: {error}"));
    let table = db.table("t").unwrap();
    let mut n = last(&db);
    let mut random = Random(n);
    say("\nopen");
    loop {
        n += 1;
        let mut tx = db.begin().unwrap();
        tx.set_durability(if random.below(20) == 0 { Durability::Sync } else { Durability::Buffered });
        for (key, written) in changes(n) {
            let key = key.to_be_bytes();
            match written {
                true => tx.put(&table, key, value(u64::from_be_bytes(key), n)).unwrap(),
                false => tx.delete(&table, key).unwrap(),
            }
        }
        let _id = tx.commit_with_snapshot(n.to_string().as_str()).unwrap();
        say(&format!("ack {n}"));
        match random.below(200) {
            0 => {
                // Those that somebody reads stay.
                let doomed = db.apply_retention(&Retention::new().keep_last(KEPT)).unwrap();
                say(&format!("gone {}", doomed.len()));
            }
            // Never the last, which tells where to go on.
            1..6 => match db.delete_snapshot((n - 1 - random.below((n - 1).min(KEPT))).to_string()) {
                Ok(()) | Err(Error::SnapshotNotFound { .. }) => {}
                Err(Error::SnapshotHeld { holders, .. }) => say(&format!("held {}", holders.len())),
                Err(error) => panic!("{error}"),
            },
            6 => db.merge().unwrap(),
            7 => db.prune().unwrap(),
            _ => {}
        }
    }
}

fn read_for_ever(directory: &Path) {
    let open = || options().read_only(true).open(directory);
    let mut db = open().unwrap_or_else(|error| panic!("a reader opens: {error}"));
    let mut random = Random(u64::from(std::process::id()));
    say("\nopen");
    for round in 0.. {
        match random.below(10) {
            0 => db = open().unwrap_or_else(|error| panic!("a reader opens: {error}")),
            1..4 => drop(db.refresh().unwrap_or_else(|error| panic!("a reader refreshes: {error}"))),
            _ => {}
        }
        let newest = last(&db);
        check(&db.snapshot(), newest, &format!("round {round}: now, commit {newest}"));
        let infos = db.snapshots().unwrap();
        for _ in 0..5 {
            let info = &infos[random.below(infos.len() as u64) as usize];
            let n: u64 = info.name.as_deref().unwrap().parse().unwrap();
            let context = format!("round {round}: snapshot {n} of {newest}");
            let past = db.as_of(info.id).unwrap_or_else(|error| panic!("{context}: {error}"));
            check(&past, n, &context);
        }
        if random.below(20) == 0 {
            db.verify().unwrap_or_else(|error| panic!("round {round}: verify: {error}"));
        }
        say(&format!("read {}", infos.len()));
    }
}

/// A running child, and what it says.
struct Process {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Process {
    fn start(role: &str, directory: &Path) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "killed::child", "--nocapture", "--test-threads=1"])
            .env(DIRECTORY, directory)
            .env(ROLE, role)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (said, lines) = mpsc::channel();
        // Ends with the child.
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if said.send(line).is_err() {
                    return;
                }
            }
        });
        let process = Process { child, lines };
        loop {
            match process.lines.recv_timeout(Duration::from_secs(60)) {
                Ok(line) if line == "open" => return process,
                Ok(_) => {}
                Err(error) => panic!("the {role} does not open: {error}"),
            }
        }
    }

    /// Kills it; answers what it said.
    fn kill(mut self, role: &str) -> Vec<String> {
        if let Some(status) = self.child.try_wait().unwrap() {
            panic!("the {role} has ended by itself: {status}");
        }
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.lines.iter().collect()
    }
}

#[derive(Default)]
struct Tally {
    /// The last commit that the writer was told of.
    last: u64,
    reads: usize,
    held: usize,
    kills: usize,
}

impl Tally {
    fn count(&mut self, lines: &[String]) {
        self.kills += 1;
        for line in lines {
            match line.split_once(' ') {
                Some(("ack", n)) => self.last = self.last.max(n.parse().unwrap()),
                Some(("read", _)) => self.reads += 1,
                Some(("held", _)) => self.held += 1,
                _ => {}
            }
        }
    }
}

#[test]
fn processes_that_read_beside_one_that_writes_are_killed_at_any_time() {
    within(limit(), || {
        let seconds = std::env::var("BYGONE_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(5);
        let deadline = Instant::now() + Duration::from_secs(seconds);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("db");
        let mut random = Random(31);
        let mut tally = Tally::default();
        // So that there is something to read.
        first_commit(&path);
        let mut writer = Process::start("writer", &path);
        let mut readers = [0, 1].map(|_| Some(Process::start("reader", &path)));
        while Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20 + random.below(200)));
            match random.below(4) {
                0 | 1 => {
                    tally.count(&writer.kill("writer"));
                    if random.below(2) == 0 {
                        check_all(&path, &tally);
                    }
                    writer = Process::start("writer", &path);
                }
                which => {
                    let reader = &mut readers[which as usize - 2];
                    if let Some(reader) = reader.take() {
                        tally.count(&reader.kill("reader"));
                    }
                    *reader = Some(Process::start("reader", &path));
                }
            }
        }
        tally.count(&writer.kill("writer"));
        // Readers of the dead writer's database, which nobody writes.
        std::thread::sleep(Duration::from_millis(50));
        check_all(&path, &tally);
        for reader in readers.into_iter().flatten() {
            tally.count(&reader.kill("reader"));
        }
        check_all(&path, &tally);
        all_leases_have_ended(&path);
        println!(
            "{} commits, {} rounds of reading, {} kills; {} deletions were refused",
            tally.last, tally.reads, tally.kills, tally.held
        );
        assert!(tally.last > 100 && tally.reads > 10, "{} commits, {} rounds", tally.last, tally.reads);
    });
}

fn first_commit(path: &Path) {
    let db = options().open(path).unwrap();
    let table = db.table("t").unwrap();
    let mut tx = db.begin().unwrap();
    for (key, written) in changes(1) {
        if written {
            tx.put(&table, key.to_be_bytes(), value(key, 1)).unwrap();
        }
    }
    let _id = tx.commit_with_snapshot("1").unwrap();
}

/// As an owner, beside whoever reads: everything that was promised is there, and every snapshot is what it was.
fn check_all(path: &Path, tally: &Tally) {
    let db = options().open(path).unwrap();
    let newest = last(&db);
    assert!(newest >= tally.last, "commit {} was acknowledged, found {newest}", tally.last);
    check(&db.snapshot(), newest, "now");
    for info in db.snapshots().unwrap() {
        let n: u64 = info.name.as_deref().unwrap().parse().unwrap();
        check(&db.as_of(info.id).unwrap(), n, &format!("snapshot {n} of {newest}"));
    }
    db.verify().unwrap();
}

fn all_leases_have_ended(path: &Path) {
    let db = options().open(path).unwrap();
    for info in db.snapshots().unwrap() {
        db.delete_snapshot(info.id).unwrap();
    }
    db.merge().unwrap();
    db.prune().unwrap();
    assert_eq!(std::fs::read_dir(path.join("leases")).unwrap().count(), 0, "leases");
    assert_eq!(std::fs::read_dir(path.join("history")).unwrap().count(), 0, "history runs");
    let stats = db.stats().unwrap();
    assert_eq!((stats.snapshots, stats.retained_bases, stats.history_runs), (0, 0, 0));
}
