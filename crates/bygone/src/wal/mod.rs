//! The write-ahead log: what makes a commit durable before it is anywhere else.
//!
//! Owns: the directory `wal` of a database, its segments and their format (`docs/format/wal.md`). Promises:
//! what was synced is found by every later [`recover`] or [`read`], in order and whole, or damage is reported; what was
//! only appended is found up to some commit, and nothing behind that commit; no write is ever shown that was
//! not appended. Knows nothing of what a commit holds. May call: `io`, `codec`, `limits`, `error`.
//!
//! One thread appends at a time; making standby segments, releasing old ones and asking for sizes go on
//! beside it. Locks, in the order in which they are taken: `syncing` (one sync at a time), `writer` (what
//! appending needs), `making` (one segment is made at a time), `files` (which segments there are; never held
//! over a call to the disk). So an append waits for background work in one case only: it needs the very
//! segment that is being made just now, and could not have made it sooner itself.

mod active;
mod beside;
mod format;
mod payload;
mod recover;
mod segment;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use self::active::{Active, Ready, Then};
use self::format::{
    ALIGNMENT, BODY_BYTES_MAX, RECORD_HEADER_BYTES, RECORDS_OFFSET, RecordHeader, SegmentHeader,
};
use self::segment::{Matter, Segment};
use crate::error::{Error, Result};
use crate::io::{Disk, File, Mapping, remove};

pub(crate) use self::beside::{bytes, read};
pub(crate) use self::format::GROUP_COMMITS_MAX;
pub(crate) use self::payload::Payload;
pub(crate) use self::recover::{Expectation, Recovered, recover};
pub(crate) use self::segment::segment_path;

/// The usual length of a segment, in bytes.
pub(crate) const SEGMENT_BYTES: u64 = 16 << 20;

/// The length of the first segment of a log, in bytes. Each next one is twice as long, up to the usual
/// length: a small database has a small log.
const FIRST_SEGMENT_BYTES: u64 = 1 << 20;

/// Records with a body up to this are assembled in one buffer and written with one call; of larger ones as much at a
/// time, and pieces that are larger are written from where they are.
const ASSEMBLED_BYTES_MAX: u64 = 64 << 10;

/// What a log is made with.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub dir: PathBuf,
    pub database_id: u64,
    /// The length that segments grow to, in bytes: at least 8 KiB and a multiple of 4096. Usually
    /// [`SEGMENT_BYTES`].
    pub segment_bytes: u64,
    /// How many released segments are kept to be used again.
    pub spares_max: usize,
    /// Whether segments may be written to in memory.
    pub mapped: bool,
}

impl Settings {
    /// How long the segment after this one is to be.
    fn len_after(&self, last: Option<&Segment>) -> u64 {
        last.map_or(FIRST_SEGMENT_BYTES, |last| last.len.saturating_mul(2)).min(self.segment_bytes)
    }
}

/// An open log.
#[derive(Debug)]
pub(crate) struct Wal {
    disk: Arc<dyn Disk>,
    settings: Settings,
    superblock_number: AtomicU64,
    syncing: Mutex<()>,
    writer: Mutex<Writer>,
    making: Mutex<()>,
    files: Mutex<Files>,
}

#[derive(Debug)]
struct Writer {
    active: Active,
    /// Earlier segments with records that are not durable yet.
    unsynced: Vec<(u64, File)>,
    /// Sequence number of the next commit.
    next_seq: u64,
    /// Every commit with a smaller sequence number is durable.
    durable_end: u64,
    /// The largest `durable_end` that a record says.
    marked_end: u64,
    /// A record is assembled here.
    buffer: Vec<u8>,
    /// Why nothing may be written any more.
    failed: Option<String>,
}

/// Which files there are.
#[derive(Debug, Default)]
struct Files {
    /// From the oldest to the active one.
    segments: Vec<Segment>,
    /// Whole and durable, the successor of the active one.
    standby: Option<Ready>,
    /// Of segments that were used up: given back off the write path.
    used_up: Vec<Mapping>,
    /// Released, still under their old names, to be made into new ones.
    spares: Vec<Segment>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Wal {
    /// Makes the log of a new database, and its directory. The first commit will have the number `next_seq`.
    ///
    /// # Errors
    /// `Corruption` if the directory holds commits of an earlier life of the database: whoever lost the rest
    /// of it may want them.
    pub fn create(disk: Arc<dyn Disk>, settings: Settings, next_seq: u64) -> Result<Wal> {
        recover::clear_unused(&*disk, &settings.dir)?;
        let nothing = Recovered::nothing(next_seq);
        Wal::start(disk, settings, nothing, 0)
    }

    /// Goes on with a log that was recovered.
    pub fn open(
        disk: Arc<dyn Disk>,
        settings: Settings,
        recovered: Recovered,
        superblock_number: u64,
    ) -> Result<Wal> {
        assert!(!recovered.read_only, "a log that was not repaired cannot be continued");
        Wal::start(disk, settings, recovered, superblock_number)
    }

    fn start(
        disk: Arc<dyn Disk>,
        settings: Settings,
        recovered: Recovered,
        superblock_number: u64,
    ) -> Result<Wal> {
        assert!(
            settings.segment_bytes >= 2 * RECORDS_OFFSET
                && settings.segment_bytes.is_multiple_of(RECORDS_OFFSET)
        );
        let Recovered { next_seq, mut segments, tail, standby, mut spares, .. } = recovered;
        let mut keep = Vec::new();
        for spare in spares.drain(..) {
            if spare.len == settings.segment_bytes && keep.len() < settings.spares_max {
                keep.push(spare);
            } else {
                remove(&*disk, &segment_path(&settings.dir, spare.id))?;
            }
        }
        let (file, segment, offset) = match tail {
            Some((file, segment, offset)) => (file, segment, offset),
            None => {
                let id = segments.last().map_or(1, |last| last.id + 1);
                let segment = Segment { id, len: settings.len_after(segments.last()) };
                let header = SegmentHeader {
                    database_id: settings.database_id,
                    segment_id: id,
                    superblock_number,
                    len: segment.len,
                };
                let spare = if segment.len == settings.segment_bytes { keep.pop() } else { None };
                let matter = spare.map_or(Matter::Zeros, Matter::Old);
                let file = segment::make(&*disk, &settings.dir, header, matter)?;
                segments.push(segment);
                (file, segment, RECORDS_OFFSET)
            }
        };
        let active = Active::new(Ready::new(segment, file, settings.mapped), offset, settings.database_id);
        let standby = standby.map(|(segment, file)| Ready::new(segment, file, settings.mapped));
        Ok(Wal {
            disk,
            settings,
            superblock_number: AtomicU64::new(superblock_number),
            syncing: Mutex::new(()),
            writer: Mutex::new(Writer {
                active,
                unsynced: Vec::new(),
                next_seq,
                durable_end: next_seq,
                marked_end: next_seq,
                buffer: Vec::new(),
                failed: None,
            }),
            making: Mutex::new(()),
            files: Mutex::new(Files { segments, standby, used_up: Vec::new(), spares: keep }),
        })
    }

    /// Appends a group of commits with consecutive sequence numbers from `first_seq`, which must be the next
    /// one. They are in the hands of the system then, and durable after [`Wal::sync`]. Answers the
    /// segment they are in. At most [`GROUP_COMMITS_MAX`] commits; together at most `COMMIT_BYTES_MAX`
    /// bytes.
    ///
    /// # Errors
    /// `TooLarge`, or whatever making a segment gave (a full disk, for one): nothing was appended, and the
    /// log still works. Any other error is final: from then on every call that writes fails with
    /// `Poisoned`.
    pub fn append(&self, first_seq: u64, payloads: &[impl Payload]) -> Result<u64> {
        self.write(first_seq, payloads, Then::GoOn)
    }

    /// Appends as [`Wal::append`] does, and makes that and everything before it durable.
    ///
    /// # Errors
    /// As both; when the log still works, nothing was appended.
    pub fn append_and_sync(&self, first_seq: u64, payloads: &[impl Payload]) -> Result<u64> {
        let segment = self.write(first_seq, payloads, Then::Sync)?;
        self.sync()?;
        Ok(segment)
    }

    fn write(&self, first_seq: u64, payloads: &[impl Payload], then: Then) -> Result<u64> {
        let mut writer = lock(&self.writer);
        writer.check()?;
        assert_eq!(first_seq, writer.next_seq, "commits are appended in order, none left out");
        assert!(!payloads.is_empty(), "a group has a commit");
        if payloads.len() > GROUP_COMMITS_MAX {
            return Err(Error::TooLarge {
                what: "group of commits (their count)",
                size: payloads.len() as u64,
                limit: GROUP_COMMITS_MAX as u64,
            });
        }
        let payload_bytes: u64 = payloads.iter().map(|payload| payload.bytes() as u64).sum();
        let body_bytes = (payload_bytes + 4 * payloads.len() as u64).next_multiple_of(ALIGNMENT);
        if payload_bytes > crate::limits::COMMIT_BYTES_MAX as u64 {
            let limit = crate::limits::COMMIT_BYTES_MAX as u64;
            return Err(Error::TooLarge { what: "group of commits", size: payload_bytes, limit });
        }
        debug_assert!(body_bytes <= BODY_BYTES_MAX);
        let record_bytes = RECORD_HEADER_BYTES as u64 + body_bytes;
        if writer.active.segment.len - writer.active.offset < record_bytes {
            self.advance(&mut writer, RECORDS_OFFSET + record_bytes)?;
        }
        let written = if body_bytes <= ASSEMBLED_BYTES_MAX {
            writer.write_assembled(payloads, body_bytes, then)
        } else {
            writer.write_in_parts(payloads, body_bytes, then)
        };
        writer.note_failure(written)?;
        writer.active.offset += record_bytes;
        writer.next_seq += payloads.len() as u64;
        writer.marked_end = writer.durable_end;
        Ok(writer.active.segment.id)
    }

    /// Makes everything durable that was appended before the call. Others may go on appending meanwhile.
    ///
    /// # Errors
    /// Any error is final, as in [`Wal::append`]: the system may have dropped what it could not write.
    pub fn sync(&self) -> Result<()> {
        let _one_at_a_time = lock(&self.syncing);
        let (files, end) = {
            let mut writer = lock(&self.writer);
            writer.check()?;
            if writer.durable_end == writer.next_seq {
                return Ok(());
            }
            let mut files: Vec<File> = writer.unsynced.drain(..).map(|(_, file)| file).collect();
            files.push(writer.active.file.clone());
            (files, writer.next_seq)
        };
        let synced = files.iter().try_for_each(File::sync);
        let mut writer = lock(&self.writer);
        writer.note_failure(synced)?;
        writer.durable_end = end;
        Ok(())
    }

    /// Commits with smaller numbers are durable.
    pub fn durable_end(&self) -> u64 {
        lock(&self.writer).durable_end
    }

    /// Goes on in a new segment, and answers its id: everything appended from now on is in that segment or a
    /// later one. An active segment without any record is as good as a new one. Does not sync.
    ///
    /// # Errors
    /// Whatever making a segment gave: the log still works, in the old segment.
    pub fn roll(&self) -> Result<u64> {
        let mut writer = lock(&self.writer);
        writer.check()?;
        if writer.active.offset > RECORDS_OFFSET {
            self.advance(&mut writer, 0)?;
        }
        Ok(writer.active.segment.id)
    }

    /// Leaves out the numbers before `next_seq`: these commits are durable elsewhere. To be called behind
    /// [`roll`](Wal::roll), before anything else is appended.
    pub fn skip_to(&self, next_seq: u64) {
        let mut writer = lock(&self.writer);
        assert!(writer.active.offset == RECORDS_OFFSET, "a segment's records have consecutive numbers");
        assert!(next_seq >= writer.next_seq, "numbers are not given twice");
        writer.next_seq = next_seq;
        writer.durable_end = next_seq;
        writer.marked_end = next_seq;
        writer.unsynced.clear();
    }

    /// Makes the next segment ahead of time, so that rolling costs nothing: to be called in the background
    /// after every roll. Answers whether there was something to do.
    pub fn prepare_standby(&self) -> Result<bool> {
        self.give_back_used_up();
        let _making = lock(&self.making);
        if lock(&self.files).standby.is_some() {
            return Ok(false);
        }
        // Nobody else changes the active segment or the standby: both need `making` as long as there is no
        // standby.
        let len = self.settings.len_after(lock(&self.files).segments.last());
        let made = self.make_next(len, false)?;
        lock(&self.files).standby = Some(made);
        Ok(true)
    }

    /// Segments before `segment_id` are not needed any more: everything in them is durable elsewhere, and a
    /// superblock that says so is durable too. They are kept as spares or removed; the active one always
    /// stays.
    ///
    /// # Errors
    /// A file that could not be removed; it is harmless, and goes at the next opening.
    pub fn release_before(&self, segment_id: u64) -> Result<()> {
        let mut removed = Vec::new();
        {
            let mut files = lock(&self.files);
            let last = files.segments.last().map_or(0, |active| active.id);
            let count = files.segments.partition_point(|segment| segment.id < segment_id.min(last));
            let Files { segments, spares, .. } = &mut *files;
            for segment in segments.drain(..count) {
                if segment.len == self.settings.segment_bytes && spares.len() < self.settings.spares_max {
                    spares.push(segment);
                } else {
                    removed.push(segment);
                }
            }
        }
        // What is durable elsewhere need not be synced here.
        lock(&self.writer).unsynced.retain(|(id, _)| *id >= segment_id);
        let mut result = Ok(());
        for segment in removed {
            result = result.and(remove(&*self.disk, &segment_path(&self.settings.dir, segment.id)));
        }
        result
    }

    /// Whether nothing can be written any more.
    pub fn is_failed(&self) -> bool {
        lock(&self.writer).failed.is_some()
    }

    /// The newest superblock there is; later segments name it, and so does [`Recovered::superblock_number`].
    pub fn set_superblock_number(&self, number: u64) {
        // Relaxed: a number that is passed on; nothing is published through it.
        self.superblock_number.store(number, Ordering::Relaxed);
    }

    /// The lengths of all files of the log, in bytes.
    pub fn bytes(&self) -> u64 {
        let files = lock(&self.files);
        let standby = files.standby.as_ref().map(|ready| &ready.segment);
        files.segments.iter().chain(&files.spares).chain(standby).map(|segment| segment.len).sum()
    }

    /// The id of the segment that is appended to.
    pub fn active_segment(&self) -> u64 {
        lock(&self.files).segments.last().map_or(0, |active| active.id)
    }

    /// Syncs, and writes down that this was the end, so that damage to the very last commits is noticed too.
    /// Nothing can be appended afterwards.
    pub fn close(&self) -> Result<()> {
        self.sync()?;
        let mut writer = lock(&self.writer);
        writer.check()?;
        let room = writer.active.segment.len - writer.active.offset >= RECORD_HEADER_BYTES as u64;
        if writer.marked_end < writer.durable_end && room {
            let mark = RecordHeader {
                body_bytes: 0,
                first_seq: writer.next_seq,
                durable_end: writer.durable_end,
                commits: 0,
                body_checksum: writer.active.place.at(writer.active.offset),
            };
            let active = &mut writer.active;
            let written = active
                .write(&mark.encode(active.place.at(active.offset)), active.offset, Then::Sync)
                .and_then(|()| active.file.sync());
            writer.note_failure(written)?;
        }
        writer.failed = Some("the log was closed".into());
        Ok(())
    }

    /// Goes on in a segment of at least `needed_bytes`. When it fails, nothing is lost and appending may be
    /// tried again.
    fn advance(&self, writer: &mut Writer, needed_bytes: u64) -> Result<()> {
        let _making = lock(&self.making);
        let standby = lock(&self.files).standby.take();
        if let Some(standby) = standby {
            let segment = standby.segment;
            self.activate(writer, standby);
            // One that is too short stays behind as an empty segment: its name is taken, and names have no
            // gaps.
            if segment.len >= needed_bytes {
                return Ok(());
            }
        }
        let usual_len = self.settings.len_after(Some(&writer.active.segment));
        let len = needed_bytes.next_multiple_of(RECORDS_OFFSET);
        // Nobody made a standby in the background, so nobody gives back either.
        self.give_back_used_up();
        let next = self.make_next(len.max(usual_len), len >= usual_len)?;
        self.activate(writer, next);
        Ok(())
    }

    fn activate(&self, writer: &mut Writer, next: Ready) {
        let segment = next.segment;
        let next = Active::new(next, RECORDS_OFFSET, self.settings.database_id);
        let mut last = std::mem::replace(&mut writer.active, next);
        {
            let mut files = lock(&self.files);
            files.segments.push(segment);
            files.used_up.extend(last.take_mapping());
        }
        if writer.durable_end < writer.next_seq && last.offset > RECORDS_OFFSET {
            writer.unsynced.push((last.segment.id, last.file));
        }
    }

    fn give_back_used_up(&self) {
        let used_up = std::mem::take(&mut lock(&self.files).used_up);
        drop(used_up);
    }

    /// Makes the successor of the active segment; `for_one` if the next record fills it. The caller holds `making`,
    /// and there is no standby.
    fn make_next(&self, len: u64, for_one: bool) -> Result<Ready> {
        let (id, matter) = {
            let mut files = lock(&self.files);
            let id = files.segments.last().map_or(1, |active| active.id + 1);
            let spare = if len == self.settings.segment_bytes { files.spares.pop() } else { None };
            let new = if for_one { Matter::Space } else { Matter::Zeros };
            (id, spare.map_or(new, Matter::Old))
        };
        let header = SegmentHeader {
            database_id: self.settings.database_id,
            segment_id: id,
            // Relaxed: see `set_superblock_number`.
            superblock_number: self.superblock_number.load(Ordering::Relaxed),
            len,
        };
        let file = segment::make(&*self.disk, &self.settings.dir, header, matter)?;
        // One large write is quicker by a call than by a mapping, which would have to be brought into memory first.
        Ok(Ready::new(Segment { id, len }, file, self.settings.mapped && !for_one))
    }
}

impl Writer {
    fn check(&self) -> Result<()> {
        match &self.failed {
            Some(cause) => Err(Error::Poisoned { cause: cause.clone() }),
            None => Ok(()),
        }
    }

    /// After a failed write or sync nobody knows what is on the disk, and trying again would only seem to
    /// work.
    fn note_failure(&mut self, result: Result<()>) -> Result<()> {
        if let Err(error) = &result
            && self.failed.is_none()
        {
            self.failed = Some(error.to_string());
        }
        result
    }

    fn header(&self, commits: usize, body_bytes: u64, body_checksum: u32) -> [u8; RECORD_HEADER_BYTES] {
        let header = RecordHeader {
            body_bytes,
            first_seq: self.next_seq,
            durable_end: self.durable_end,
            commits: commits as u32,
            body_checksum,
        };
        header.encode(self.active.place.at(self.active.offset))
    }

    fn write_assembled(&mut self, payloads: &[impl Payload], body_bytes: u64, then: Then) -> Result<()> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        buffer.resize(RECORD_HEADER_BYTES, 0);
        put_lengths(&mut buffer, payloads);
        for piece in payloads.iter().flat_map(Payload::pieces) {
            buffer.extend_from_slice(piece);
        }
        buffer.resize(RECORD_HEADER_BYTES + body_bytes as usize, 0);
        let place = self.active.place.at(self.active.offset);
        let checksum = crc32c::crc32c_append(place, &buffer[RECORD_HEADER_BYTES..]);
        let header = self.header(payloads.len(), body_bytes, checksum);
        buffer[..RECORD_HEADER_BYTES].copy_from_slice(&header);
        let written = self.active.write(&buffer, self.active.offset, then);
        self.buffer = buffer;
        written
    }

    /// For bodies that are not worth a copy as a whole. Small pieces are still gathered, so that there are few calls,
    /// and what is gathered is in the processor's cache when it is summed up and written.
    fn write_in_parts(&mut self, payloads: &[impl Payload], body_bytes: u64, then: Then) -> Result<()> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        put_lengths(&mut buffer, payloads);
        let payload_bytes: usize = payloads.iter().map(Payload::bytes).sum();
        let padding = vec![0; body_bytes as usize - buffer.len() - payload_bytes];
        let start = self.active.offset;
        let mut offset = start + RECORD_HEADER_BYTES as u64;
        let mut checksum = self.active.place.at(start);
        let active = &mut self.active;
        let mut write = |bytes: &[u8]| {
            let at = offset;
            offset += bytes.len() as u64;
            checksum = crc32c::crc32c_append(checksum, bytes);
            if bytes.is_empty() { Ok(()) } else { active.write(bytes, at, then) }
        };
        let mut pieces = payloads.iter().flat_map(Payload::pieces).chain([&padding[..]]);
        let written = pieces.try_for_each(|piece| {
            if buffer.len() + piece.len() > ASSEMBLED_BYTES_MAX as usize {
                write(&buffer)?;
                buffer.clear();
            }
            if piece.len() > ASSEMBLED_BYTES_MAX as usize {
                return write(piece);
            }
            buffer.extend_from_slice(piece);
            Ok(())
        });
        let written = written.and_then(|()| write(&buffer));
        self.buffer = buffer;
        written?;
        // The checksum is known only now. What a crash leaves of all this is in no order anyway.
        let header = self.header(payloads.len(), body_bytes, checksum);
        self.active.write(&header, start, then)
    }
}

fn put_lengths(out: &mut Vec<u8>, payloads: &[impl Payload]) {
    for payload in payloads {
        out.extend_from_slice(&(payload.bytes() as u32).to_le_bytes());
    }
}
