//! Tests of leases on the real disk and the simulated one.

use super::*;
use crate::io::tests::TempDir;
use crate::io::{RealDisk, SimDisk};

const ROOT: [u8; ROOT_BYTES] = [3; ROOT_BYTES];

/// Runs a test on both disks, in a directory that is there.
fn on_both(test: impl Fn(Arc<dyn Disk>, &Path)) {
    let directory = TempDir::new("leases");
    test(Arc::new(RealDisk), directory.path());
    let disk = SimDisk::new();
    disk.create_dir_all(Path::new("db")).unwrap();
    test(Arc::new(disk), Path::new("db"));
}

fn look(leases: &Leases) -> Vec<Terms> {
    let look = leases.look().unwrap();
    assert_eq!(look.unread, None);
    look.terms
}

fn files(disk: &dyn Disk, database: &Path) -> usize {
    disk.list(&database.join(DIRECTORY)).unwrap().len()
}

#[test]
fn a_lease_is_seen_while_its_reader_lives() {
    on_both(|disk, database| {
        let leases = Leases::new(disk.clone(), database, 7);
        assert_eq!(look(&leases), [], "there is no directory yet");
        let lease = Lease::take(&disk, database).unwrap();
        assert_eq!(look(&leases), [], "without terms it keeps nothing");
        lease.pin(7, 41, [0; ROOT_BYTES]).unwrap();
        lease.pin(7, 42, ROOT).unwrap();
        let process = std::process::id();
        let terms = Terms { database_id: 7, process, generation: 42, root: ROOT, snapshots: Vec::new() };
        assert_eq!(look(&leases), [terms]);
        let other = Lease::take(&disk, database).unwrap();
        other.pin(7, 40, ROOT).unwrap();
        assert_eq!(look(&leases).len(), 2);
        drop(lease);
        assert_eq!(look(&leases)[0].generation, 40);
        drop(other);
        assert_eq!(look(&leases), []);
        assert_eq!(files(&*disk, database), 0);
    });
}

#[test]
fn what_a_dead_reader_left_is_removed() {
    on_both(|disk, database| {
        let lease = Lease::take(&disk, database).unwrap();
        lease.pin(7, 42, ROOT).unwrap();
        let left =
            Terms { database_id: 7, process: 1, generation: 3, root: ROOT, snapshots: vec![9] }.encode();
        for bytes in [&left[..], &left[..30], b"", b"1234"] {
            let path = database.join(DIRECTORY).join(format!("{}.lease", bytes.len()));
            let file = disk.open(&path, OpenMode::Create).unwrap();
            file.write_at(bytes, 0).unwrap();
        }
        let leases = Leases::new(disk.clone(), database, 7);
        assert_eq!(look(&leases).len(), 1);
        assert_eq!(files(&*disk, database), 1);
    });
}

#[test]
fn a_lease_on_another_database_keeps_nothing_of_this_one() {
    on_both(|disk, database| {
        let lease = Lease::take(&disk, database).unwrap();
        lease.pin(8, 42, ROOT).unwrap();
        assert_eq!(look(&Leases::new(disk.clone(), database, 7)), []);
        assert_eq!(files(&*disk, database), 1);
    });
}

#[test]
fn snapshots_are_held_while_they_are_read() {
    on_both(|disk, database| {
        let leases = Leases::new(disk.clone(), database, 7);
        let lease = Lease::take(&disk, database).unwrap();
        lease.pin(7, 42, ROOT).unwrap();
        let held = || look(&leases)[0].snapshots.clone();
        drop(lease.hold(5, 50).unwrap());
        let opening = lease.hold(3, 30).unwrap();
        drop(lease.hold(4, 40).unwrap());
        assert_eq!(held(), [3, 4, 5]);
        let terms = look(&leases);
        assert_eq!(Leases::holders(&terms, 4), [holder(std::process::id())]);
        assert_eq!(Leases::holders(&terms, 6), Vec::<String>::new());
        // Whoever looked in time knows nothing of what was opened since.
        lease.let_go(2, |seq| seq == 40).unwrap();
        assert_eq!(held(), [3, 4]);
        lease.let_go(lease.clock(), |_| false).unwrap();
        assert_eq!(held(), [3], "its view is just being opened");
        drop(opening);
        lease.let_go(lease.clock(), |seq| seq == 30).unwrap();
        assert_eq!(held(), [3]);
        lease.let_go(lease.clock(), |_| false).unwrap();
        assert_eq!(held(), Vec::<u64>::new());
    });
}

#[test]
fn what_is_half_written_keeps_what_it_kept_before() {
    on_both(|disk, database| {
        let lease = Lease::take(&disk, database).unwrap();
        lease.pin(7, 42, ROOT).unwrap();
        let leases = Leases::new(disk.clone(), database, 7);
        assert_eq!(look(&leases)[0].generation, 42);
        let file = disk.open(lease.file.path(), OpenMode::Write).unwrap();
        file.write_at(&[99], 30).unwrap();
        assert_eq!(look(&leases)[0].generation, 42);
        let newcomer = Leases::new(disk.clone(), database, 7).look().unwrap();
        assert_eq!((newcomer.terms, newcomer.unread.as_deref()), (Vec::new(), Some(lease.file.path())));
        lease.pin(7, 43, ROOT).unwrap();
        assert_eq!(look(&leases)[0].generation, 43);
    });
}

/// An owner that looks all the time never takes a lease for a dead one once its reader has it.
#[test]
fn beginning_a_lease_and_looking_do_not_get_in_each_others_way() {
    on_both(|disk, database| {
        let stop = std::sync::atomic::AtomicBool::new(false);
        let leases = Leases::new(disk.clone(), database, 7);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    // Relaxed: it need not be seen at once.
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        leases.look().unwrap();
                    }
                });
            }
            for generation in 0..200 {
                let lease = Lease::take(&disk, database).unwrap();
                lease.pin(7, generation, ROOT).unwrap();
                for _ in 0..3 {
                    assert_eq!(look(&leases)[0].generation, generation);
                }
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    });
}

#[test]
fn a_lease_that_cannot_be_written_is_an_error() {
    let disk = SimDisk::new();
    disk.create_dir_all(Path::new("db")).unwrap();
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let lease = Lease::take(&shared, Path::new("db")).unwrap();
    lease.pin(7, 1, ROOT).unwrap();
    disk.fail_at(disk.operations() + 1, ErrorKind::StorageFull);
    assert!(matches!(lease.hold(1, 1), Err(Error::Io { .. })));
    assert_eq!(look(&Leases::new(shared.clone(), Path::new("db"), 7))[0].snapshots, Vec::<u64>::new());
    disk.fail_matching(|operation, _| {
        (operation == crate::io::Operation::Create).then_some(ErrorKind::PermissionDenied)
    });
    assert!(matches!(Lease::take(&shared, Path::new("db")), Err(Error::Io { .. })));
}
