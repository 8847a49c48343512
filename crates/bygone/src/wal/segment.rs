//! Segment files: their names, and how a new one comes to be.
//!
//! Owns: names and the making of a segment. Promises: a file that bears a segment's name was whole and
//! durable before it got that name, so that a segment which is not whole is damage and not a trace of a
//! crash. May call: `io`, `format`.

use std::path::{Path, PathBuf};

use super::format::{RECORDS_OFFSET, SegmentHeader};
use crate::error::{Error, Result};
use crate::io::{Disk, File, OpenMode, exists, remove, sync_dir};

/// How much is written at once when a new segment is filled with zeros. Linux keeps together in memory what was written
/// at once, and a sync writes all of it when a part was changed through a mapping.
const FILL_BYTES: usize = 32 << 10;

/// A segment file that is, or will be, part of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub id: u64,
    /// In bytes; it does not change.
    pub len: u64,
}

pub(crate) fn segment_path(dir: &Path, id: u64) -> PathBuf {
    dir.join(format!("{id:016x}.wal"))
}

/// The name of a segment in the making.
pub(super) fn unfinished_path(dir: &Path, id: u64) -> PathBuf {
    dir.join(format!("{id:016x}.new"))
}

/// The id in a segment's name; `None` for any other name.
pub(super) fn parse_name(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".wal").filter(|digits| digits.len() == 16)?;
    // Only the very spelling that `segment_path` gives.
    let plain = digits.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    plain.then(|| u64::from_str_radix(digits, 16).ok())?
}

/// What a segment is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Matter {
    /// A file that is written full of zeros: syncing what lies within written blocks costs one flush, whereas a file
    /// that grows, or has reserved blocks, makes each sync write metadata too.
    Zeros,
    /// A file whose blocks are only reserved, where the disk has that: for one record that fills all of it. Zeros
    /// would be written and synced for nothing.
    Space,
    /// An old segment, exactly as long. It keeps what it held: none of it verifies under the new id.
    Old(Segment),
}

/// Makes a segment, and gives it its name as the last step. When this fails, nothing of the name is in the way of
/// another attempt.
pub(super) fn make(disk: &dyn Disk, dir: &Path, header: SegmentHeader, matter: Matter) -> Result<File> {
    let path = segment_path(dir, header.segment_id);
    let unnamed = match matter {
        Matter::Old(old) => segment_path(dir, old.id),
        Matter::Zeros | Matter::Space => unfinished_path(dir, header.segment_id),
    };
    let made = (|| {
        let file = match matter {
            Matter::Old(_) => File::open(disk, &unnamed, OpenMode::Write)?,
            Matter::Zeros => fill(disk, &unnamed, header.len)?,
            Matter::Space => reserve(disk, &unnamed, header.len)?,
        };
        file.write_at(&header.encode(), 0)?;
        file.sync()?;
        drop(file);
        disk.rename(&unnamed, &path).map_err(|e| Error::io(&unnamed, "rename", e))?;
        sync_dir(disk, dir)?;
        // Opened again, so that errors name the file as it is called now.
        File::open(disk, &path, OpenMode::Write)
    })();
    if made.is_err() {
        // On a full disk the space is wanted back. What cannot be removed now, the next attempt or the next
        // opening replaces.
        let _ = disk.remove(&unnamed);
        let _ = disk.remove(&path);
    }
    made
}

fn create(disk: &dyn Disk, path: &Path) -> Result<File> {
    if exists(disk, path)? {
        remove(disk, path)?;
    }
    File::open(disk, path, OpenMode::Create)
}

fn reserve(disk: &dyn Disk, path: &Path, len: u64) -> Result<File> {
    let file = create(disk, path)?;
    if file.reserve(len)? { Ok(file) } else { fill(disk, path, len) }
}

fn fill(disk: &dyn Disk, path: &Path, len: u64) -> Result<File> {
    let file = create(disk, path)?;
    let zeros = vec![0; FILL_BYTES];
    // The header's page is written by the caller.
    let mut offset = RECORDS_OFFSET;
    while offset < len {
        let count = (len - offset).min(zeros.len() as u64);
        file.write_at(&zeros[..count as usize], offset)?;
        offset += count;
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::SimDisk;

    const HEADER: SegmentHeader =
        SegmentHeader { database_id: 1, segment_id: 5, superblock_number: 2, len: 64 << 10 };

    #[test]
    fn names_come_back_and_others_are_not_taken_for_segments() {
        let name = |id| segment_path(Path::new(""), id).to_str().unwrap().to_owned();
        for id in [0, 1, 0xabc, u64::MAX] {
            assert_eq!(parse_name(&name(id)), Some(id));
        }
        for name in
            ["", ".wal", "1.wal", "000000000000000A.wal", "+000000000000001.wal", "0000000000000001.new"]
        {
            assert_eq!(parse_name(name), None, "{name}");
        }
    }

    #[test]
    fn a_segment_has_its_name_only_when_it_is_whole() {
        let dir = Path::new("");
        for matter in [Matter::Zeros, Matter::Space, Matter::Old(Segment { id: 2, len: HEADER.len })] {
            for crash in 1.. {
                let disk = SimDisk::new();
                if let Matter::Old(old) = matter {
                    make(&disk, dir, SegmentHeader { segment_id: old.id, ..HEADER }, Matter::Zeros).unwrap();
                }
                disk.crash_at(disk.operations() + crash);
                let made = make(&disk, dir, HEADER, matter);
                for seed in 0..8 {
                    let image = disk.crash_image(seed);
                    match image.read_file(&segment_path(dir, 5)) {
                        Ok(bytes) => {
                            assert_eq!(bytes.len() as u64, HEADER.len);
                            assert_eq!(bytes[..RECORDS_OFFSET as usize], HEADER.encode());
                        }
                        Err(_) => assert!(made.is_err(), "made, and lost"),
                    }
                }
                if made.is_ok() {
                    break;
                }
            }
        }
    }

    #[test]
    fn a_failed_attempt_leaves_nothing_and_the_next_works() {
        for matter in [Matter::Zeros, Matter::Space] {
            for fault in 1.. {
                let disk = SimDisk::new();
                disk.fail_at(fault, std::io::ErrorKind::Other);
                let made = make(&disk, Path::new(""), HEADER, matter);
                if made.is_ok() {
                    break;
                }
                assert_eq!(disk.snapshot_files(), []);
                make(&disk, Path::new(""), HEADER, matter).unwrap();
            }
        }
    }
}
