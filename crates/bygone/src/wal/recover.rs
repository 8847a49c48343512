//! Reading the log back.
//!
//! Owns: the decision where the log ends, and whether that end is a torn tail or damage. Promises: costs time
//! in proportion to the log that is left; may be cut off anywhere and run again. May call: `io`, the format.
//!
//! **Where the log ends.** Records follow each other without gaps, and their commits are consecutive, also
//! from one segment to the next. Where in segment `k` at offset `p` no whole record follows and commit `n`
//! would be next, there are these cases:
//! - The next segment that has a record at its beginning has commit `n` there: the log was rolled here. Go on
//!   there.
//! - The superblock, or some record header behind `p`, in this segment or a later one, says that commit `n` was
//!   durable when it was written. Then bytes that were durable are gone: damage. A header is evidence even if
//!   its body is torn.
//! - Otherwise nothing behind `p` was ever acknowledged as durable, or `n` was never written: the tail is
//!   torn, and the log ends here.
//!
//! What cannot be told apart: a durable record at the very end, behind which nothing was ever written and no
//! superblock since, and that is damaged, looks like one that was torn. The last superblock is written when the
//! database is closed, so this is possible only after a crash.
//!
//! **Repair**, in this order, each step durable before the next; a crash anywhere leaves a
//! log on which it does the same again:
//! 1. The directory is synced: whoever gave a segment its name may have been killed before that was durable.
//! 2. Records that nothing proves durable are written again in place, the same bytes, and synced. After a
//!    sync that failed, or a process that was killed, the system may show bytes that are not on the disk and
//!    that a mere sync would not bring there; but the commits in them are visible from now on, and later ones
//!    will be durable.
//! 3. Later segments with torn records are removed, the newest first, so that names never have a gap.
//! 4. A mark is written at `p`: the end, everything before it durable. It covers the beginning of whatever
//!    was torn there.
//!
//! Then the log goes on right behind the mark if no record header is found in what is left of the segment,
//! else in a new one: nothing that was given up can come back when the space before it is filled. One empty
//! segment behind it stays its standby; of several the last is gone on in.

use std::path::Path;

use super::format::{
    ALIGNMENT, Place, RECORD_HEADER_BYTES, RECORD_MAGIC, RECORDS_OFFSET, RecordHeader, SegmentHeader,
    payloads,
};
use super::segment::{Segment, parse_name, segment_path};
use crate::error::{Error, Result};
use crate::io::{self, Disk, File, OpenMode, remove, sync_dir};

/// How much is read at once.
const WINDOW_BYTES: u64 = 1 << 20;

/// Takes a commit: its sequence number, the segment it is in, its payload.
pub(crate) type Apply<'a> = dyn FnMut(u64, u64, &[u8]) -> Result<()> + 'a;

/// What the superblock says of the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expectation {
    pub database_id: u64,
    /// The oldest segment that is needed; it exists.
    pub floor_segment: u64,
    /// Commits with smaller numbers are in the database already.
    pub next_seq: u64,
    /// Commits with smaller numbers were durable when the superblock was written.
    pub durable_end: u64,
}

/// What was found.
#[derive(Debug)]
pub(crate) struct Recovered {
    /// The number that the next commit gets.
    pub next_seq: u64,
    /// The largest superblock number that a segment's header names: if it is larger than that of the
    /// superblock in use, a newer superblock was lost.
    pub superblock_number: u64,
    /// How many commits were given to `apply`.
    pub commits: u64,
    /// Of which segment and where the log was cut because what followed was torn. `None` if it ended as it
    /// should.
    pub torn: Option<(u64, u64)>,
    /// Whether the log was only read, and not repaired.
    pub(super) read_only: bool,
    /// All that are left, oldest first.
    pub(super) segments: Vec<Segment>,
    /// Where to go on, if that is possible in an existing segment (the last of them).
    pub(super) tail: Option<(File, Segment, u64)>,
    /// An empty segment behind that one.
    pub(super) standby: Option<(Segment, File)>,
    /// Segments before the floor.
    pub(super) spares: Vec<Segment>,
}

impl Recovered {
    pub(super) fn nothing(next_seq: u64) -> Recovered {
        Recovered {
            next_seq,
            superblock_number: 0,
            commits: 0,
            torn: None,
            read_only: false,
            segments: Vec::new(),
            tail: None,
            standby: None,
            spares: Vec::new(),
        }
    }
}

/// Reads the log from the floor on and gives every commit that the database does not have yet to `apply`, in
/// order: its number, its segment, its payload. An error of `apply` ends it. Then repairs the end of the log.
///
/// # Errors
/// `Corruption`: what was durable is not there or not whole. Nothing was changed then; `apply` may have been
/// called.
pub(crate) fn recover(
    disk: &dyn Disk,
    dir: &Path,
    expectation: Expectation,
    apply: &mut Apply<'_>,
) -> Result<Recovered> {
    let Listing { needed, older, unfinished } = list(disk, dir, expectation.floor_segment)?;
    if needed.first() != Some(&expectation.floor_segment) {
        let path = segment_path(dir, expectation.floor_segment);
        return Err(Error::corruption(&path, 0, "this segment of the log is missing"));
    }
    if let Some(pair) = needed.windows(2).find(|pair| pair[1] != pair[0] + 1) {
        let path = segment_path(dir, pair[0] + 1);
        return Err(Error::corruption(
            &path,
            0,
            "this segment of the log is missing, but a later one is there",
        ));
    }
    let mut sources = Vec::with_capacity(needed.len());
    for id in needed {
        sources.push(Source::open(disk, dir, id, OpenMode::Write, expectation.database_id)?);
    }
    let mut replay = Replay::new(expectation);
    replay.run(&mut sources, apply)?;
    let mut recovered = replay.judge(&mut sources)?;
    for id in older {
        let file = File::open(disk, &segment_path(dir, id), OpenMode::Read)?;
        recovered.spares.push(Segment { id, len: file.len()? });
    }
    for name in unfinished {
        remove(disk, &dir.join(name))?;
    }
    replay.repair(disk, dir, sources, &mut recovered)?;
    Ok(recovered)
}

/// Prepares the directory for a new log: removes segments that never held a record.
pub(super) fn clear_unused(disk: &dyn Disk, dir: &Path) -> Result<()> {
    disk.create_dir_all(dir).map_err(|e| Error::io(dir, "create", e))?;
    if let Some(parent) = dir.parent() {
        let parent = if parent == Path::new("") { Path::new(".") } else { parent };
        sync_dir(disk, parent)?;
    }
    let Listing { needed, unfinished, .. } = list(disk, dir, 0)?;
    for id in needed.into_iter().rev() {
        let path = segment_path(dir, id);
        let file = File::open(disk, &path, OpenMode::Read)?;
        let mut page = vec![0; RECORDS_OFFSET.min(file.len()?) as usize];
        file.read_at(&mut page, 0)?;
        if let Some(header) = SegmentHeader::decode(&page, &path)? {
            let mut source = Source::open(disk, dir, id, OpenMode::Read, header.database_id)?;
            let mut found = None;
            source.scan(RECORDS_OFFSET, &mut |offset, _| found = Some(offset))?;
            if let Some(offset) = found {
                return Err(Error::corruption(
                    &path,
                    offset,
                    "the log holds commits of a database that is gone",
                ));
            }
        }
        remove(disk, &path)?;
    }
    for name in unfinished {
        remove(disk, &dir.join(name))?;
    }
    Ok(())
}

pub(super) struct Listing {
    /// Ids from the floor on, ascending.
    pub needed: Vec<u64>,
    older: Vec<u64>,
    /// Names of segments whose making was cut off.
    unfinished: Vec<String>,
}

pub(super) fn list(disk: &dyn Disk, dir: &Path, floor: u64) -> Result<Listing> {
    let names = io::list(disk, dir)?;
    let mut ids: Vec<u64> = names.iter().filter_map(|name| parse_name(name)).collect();
    ids.sort_unstable();
    let needed = ids.split_off(ids.partition_point(|id| *id < floor));
    let unfinished = names.into_iter().filter(|name| name.ends_with(".new")).collect();
    Ok(Listing { needed, older: ids, unfinished })
}

/// A segment that is being read, through a window.
pub(super) struct Source {
    file: File,
    segment: Segment,
    place: Place,
    /// `None`: the header is not whole, so that this is a segment only if records are found in it.
    header: Option<SegmentHeader>,
    pub window: Vec<u8>,
    window_offset: u64,
}

impl Source {
    pub fn open(disk: &dyn Disk, dir: &Path, id: u64, mode: OpenMode, database_id: u64) -> Result<Source> {
        let path = segment_path(dir, id);
        let file = File::open(disk, &path, mode)?;
        let len = file.len()?;
        let mut page = vec![0; RECORDS_OFFSET.min(len) as usize];
        file.read_at(&mut page, 0)?;
        let header = SegmentHeader::decode(&page, &path)?;
        // A whole header in the wrong place is no trace of a crash: a segment is named after its header is
        // durable.
        let wrong = header.as_ref().and_then(|header| {
            if header.database_id != database_id {
                Some("this segment belongs to another database")
            } else if header.segment_id != id {
                Some("this segment has the name of another one")
            } else if header.len > len {
                Some("this segment is shorter than it was made")
            } else {
                None
            }
        });
        if let Some(reason) = wrong {
            return Err(Error::corruption(&path, 0, reason));
        }
        Ok(Source {
            file,
            segment: Segment { id, len },
            place: Place::of_segment(database_id, id),
            header,
            window: Vec::new(),
            window_offset: 0,
        })
    }

    /// `count` bytes at `offset`; `None` if the segment ends before.
    fn bytes(&mut self, offset: u64, count: u64) -> Result<Option<&[u8]>> {
        if offset > self.segment.len || self.segment.len - offset < count {
            return Ok(None);
        }
        let covered =
            offset >= self.window_offset && offset + count <= self.window_offset + self.window.len() as u64;
        if !covered {
            // Bounded by the length that the file really has, so no damaged number makes this large.
            let len = count.max(WINDOW_BYTES).min(self.segment.len - offset);
            self.window_offset = offset;
            self.window.resize(len as usize, 0);
            self.file.read_at(&mut self.window, offset)?;
        }
        let start = (offset - self.window_offset) as usize;
        Ok(Some(&self.window[start..start + count as usize]))
    }

    fn header_at(&mut self, offset: u64) -> Result<Option<RecordHeader>> {
        let place = self.place.at(offset);
        let bytes = self.bytes(offset, RECORD_HEADER_BYTES as u64)?;
        Ok(bytes.and_then(|bytes| RecordHeader::decode(bytes, place)))
    }

    /// The record at `offset`, if it is whole: its header and its body.
    fn record_at(&mut self, offset: u64) -> Result<Option<(RecordHeader, &[u8])>> {
        let Some(header) = self.header_at(offset)? else { return Ok(None) };
        let place = self.place.at(offset);
        let body = self.bytes(offset + RECORD_HEADER_BYTES as u64, header.body_bytes)?;
        Ok(body
            .filter(|body| crc32c::crc32c_append(place, body) == header.body_checksum)
            .map(|body| (header, body)))
    }

    /// Finds all record headers from `from` on, wherever a record may begin.
    fn scan(&mut self, from: u64, found: &mut dyn FnMut(u64, RecordHeader)) -> Result<()> {
        let place = self.place;
        let mut offset = from.max(RECORDS_OFFSET);
        // Windows overlap by a header, so that one that spans two of them is seen.
        let overlap = RECORD_HEADER_BYTES as u64 - ALIGNMENT;
        while offset + RECORD_HEADER_BYTES as u64 <= self.segment.len {
            let count = WINDOW_BYTES.min(self.segment.len - offset);
            let Some(bytes) = self.bytes(offset, count)? else { break };
            for at in (0..=bytes.len() - RECORD_HEADER_BYTES).step_by(ALIGNMENT as usize) {
                if bytes[at..at + 4] == RECORD_MAGIC.to_le_bytes()
                    && let Some(header) = RecordHeader::decode(&bytes[at..], place.at(offset + at as u64))
                {
                    found(offset + at as u64, header);
                }
            }
            if count < WINDOW_BYTES {
                break;
            }
            offset += count - overlap;
        }
        Ok(())
    }
}

/// A place in the log: index of the segment among those read, and offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    pub index: usize,
    offset: u64,
}

pub(super) struct Replay {
    expectation: Expectation,
    /// The commit that must come next; before the first record nobody knows, it is at most the expected one.
    next_seq: Option<u64>,
    /// Behind the last whole record.
    pub end: Position,
    /// Whether that record is a mark that everything is durable.
    marked: bool,
    commits: u64,
    /// From here on, records are not proved to be durable.
    unproved: Position,
    /// A later beginning of `unproved`, good as soon as all commits before this number are proved.
    candidate: (u64, Position),
    /// Segments from this index on hold records that are given up, or are not whole.
    discard_from: usize,
}

impl Replay {
    pub fn new(expectation: Expectation) -> Replay {
        let start = Position { index: 0, offset: RECORDS_OFFSET };
        Replay {
            expectation,
            next_seq: None,
            end: start,
            marked: false,
            commits: 0,
            unproved: start,
            candidate: (0, start),
            discard_from: usize::MAX,
        }
    }

    /// The first commit that neither the database nor the log read so far has.
    fn wanted(&self) -> u64 {
        self.next_seq.unwrap_or(0).max(self.expectation.next_seq)
    }

    /// Whether a record that begins with `first_seq` may follow in another segment. What the database already
    /// has may be missing from the log: it may have got there, and into a durable run, without the log
    /// having been synced.
    fn continues_with(&self, first_seq: u64) -> bool {
        self.next_seq.unwrap_or(0) <= first_seq && first_seq <= self.wanted()
    }

    pub fn run(&mut self, sources: &mut [Source], apply: &mut Apply<'_>) -> Result<()> {
        loop {
            while self.read_record(sources, apply)? {}
            let mut next = None;
            for (index, source) in sources.iter_mut().enumerate().skip(self.end.index + 1) {
                if let Some((header, _)) = source.record_at(RECORDS_OFFSET)? {
                    next = Some((index, header.first_seq));
                    break;
                }
            }
            match next {
                Some((index, first_seq)) if self.continues_with(first_seq) => {
                    // One window at a time is enough, and one may be as large as the largest commit.
                    sources[self.end.index].window = Vec::new();
                    self.next_seq = Some(first_seq);
                    self.end = Position { index, offset: RECORDS_OFFSET };
                    self.marked = false;
                }
                _ => return Ok(()),
            }
        }
    }

    /// Takes the record at `end`, if there is a whole one.
    fn read_record(&mut self, sources: &mut [Source], apply: &mut Apply<'_>) -> Result<bool> {
        let Position { index, offset } = self.end;
        let source = &mut sources[index];
        let id = source.segment.id;
        let Some((header, body)) = source.record_at(offset)? else { return Ok(false) };
        let fits = match self.next_seq {
            // A mark may stand for commits that the database has and the log does not.
            Some(next) if header.commits > 0 => header.first_seq == next,
            _ => self.continues_with(header.first_seq),
        };
        if !fits {
            let reason =
                format!("commit {} stands here, but {} was expected", header.first_seq, self.wanted());
            return Err(Error::corruption(sources[index].file.path(), offset, reason));
        }
        let Some(payloads) = payloads(body, header.commits) else {
            let reason = "the commits of this record do not fill it";
            return Err(Error::corruption(sources[index].file.path(), offset, reason));
        };
        for (seq, payload) in (header.first_seq..).zip(payloads) {
            if seq >= self.expectation.next_seq {
                apply(seq, id, payload)?;
                self.commits += 1;
            }
        }
        if header.durable_end >= self.candidate.0 {
            self.unproved = self.candidate.1;
            self.candidate = (header.first_seq, self.end);
            if header.durable_end >= header.first_seq {
                self.unproved = self.end;
            }
        }
        self.next_seq = Some(header.end_seq());
        self.marked = header.commits == 0;
        self.end.offset = offset + header.record_bytes();
        Ok(true)
    }

    /// What is behind the end: torn, or damaged?
    pub fn judge(&mut self, sources: &mut [Source]) -> Result<Recovered> {
        let wanted = self.wanted();
        let mut evidence = self.expectation.durable_end > wanted;
        let mut rest_is_clean = true;
        let mut last_clean = sources.len();
        for (index, source) in sources.iter_mut().enumerate().skip(self.end.index) {
            let from = if index == self.end.index { self.end.offset } else { RECORDS_OFFSET };
            let mut clean = true;
            source.scan(from, &mut |_, header| {
                clean = false;
                evidence |= header.durable_end > wanted;
            })?;
            source.window = Vec::new();
            if index == self.end.index {
                rest_is_clean = clean;
            } else if !clean || source.header.is_none() {
                last_clean = last_clean.min(index);
            }
        }
        self.discard_from = last_clean;
        let end = &sources[self.end.index];
        if evidence {
            let reason = format!("commit {wanted} was durable, but there is no whole record of it here");
            return Err(Error::corruption(end.file.path(), self.end.offset, reason));
        }
        // A torn segment that is needed: its header was durable before it was used, and nobody removes it.
        if let Some(source) = sources[..=self.end.index].iter().find(|source| source.header.is_none()) {
            return Err(Error::corruption(source.file.path(), 0, "the header of this segment is damaged"));
        }
        let torn = !rest_is_clean || self.discard_from < sources.len();
        let mut kept = &sources[..self.discard_from];
        let mut standby = None;
        // The log goes on where it ended, and the one empty segment behind is the standby that it was: so
        // opening again and again makes no new segments.
        if rest_is_clean && kept.len() == self.end.index + 2 {
            let last = &kept[kept.len() - 1];
            standby = Some((last.segment, last.file.clone()));
            kept = &kept[..kept.len() - 1];
        }
        Ok(Recovered {
            next_seq: wanted,
            superblock_number: sources[..self.discard_from]
                .iter()
                .filter_map(|s| Some(s.header?.superblock_number))
                .max()
                .unwrap_or(0),
            commits: self.commits,
            torn: torn.then_some((end.segment.id, self.end.offset)),
            segments: kept.iter().map(|source| source.segment).collect(),
            tail: match kept.len() - 1 {
                last if last > self.end.index => {
                    Some((kept[last].file.clone(), kept[last].segment, RECORDS_OFFSET))
                }
                last if rest_is_clean => Some((kept[last].file.clone(), kept[last].segment, self.end.offset)),
                _ => None,
            },
            standby,
            ..Recovered::nothing(wanted)
        })
    }

    fn repair(
        &self,
        disk: &dyn Disk,
        dir: &Path,
        mut sources: Vec<Source>,
        recovered: &mut Recovered,
    ) -> Result<()> {
        sync_dir(disk, dir)?;
        for (index, source) in
            sources.iter_mut().enumerate().take(self.end.index + 1).skip(self.unproved.index)
        {
            let from = if index == self.unproved.index { self.unproved.offset } else { RECORDS_OFFSET };
            let to = if index == self.end.index { self.end.offset } else { source.segment.len };
            let mut offset = from;
            while offset < to {
                let count = WINDOW_BYTES.min(to - offset);
                let file = source.file.clone();
                if let Some(bytes) = source.bytes(offset, count)? {
                    file.write_at(bytes, offset)?;
                }
                offset += count;
            }
            if from < to {
                source.file.sync()?;
            }
        }
        for source in sources[self.discard_from..].iter().rev() {
            remove(disk, source.file.path())?;
            sync_dir(disk, dir)?;
        }
        let end = &sources[self.end.index];
        let room = end.segment.len - self.end.offset >= RECORD_HEADER_BYTES as u64;
        let first = self.end.offset == RECORDS_OFFSET && recovered.torn.is_none();
        if room && !first && !(self.marked && self.next_seq == Some(recovered.next_seq)) {
            let place = end.place.at(self.end.offset);
            let mark = RecordHeader {
                body_bytes: 0,
                first_seq: recovered.next_seq,
                durable_end: recovered.next_seq,
                commits: 0,
                body_checksum: place,
            };
            end.file.write_at(&mark.encode(place), self.end.offset)?;
            end.file.sync()?;
            if let Some((_, segment, offset)) = &mut recovered.tail
                && segment.id == end.segment.id
            {
                *offset += RECORD_HEADER_BYTES as u64;
            }
        }
        Ok(())
    }
}
