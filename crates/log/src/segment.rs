//! Moves needed data out of files so that the files can be reused. Partitions with much data get segments of their own;
//! the others share one. With a filter, it also drops records for compaction or scavenging; offsets never change.
//!
//! A segment is written under a temporary name, synced and renamed before its partitions read from it. A crash before
//! the rename leaves the old file in use; a crash after it leaves both files, and the newer one takes precedence.

use std::collections::HashMap;
use std::sync::Arc;

use crate::disk::DiskFile;
use crate::error::{LogError, Result};
use crate::file::{self, LogFile, segment_name};
use crate::file_pool::{FilePool, is_full};
use crate::format::footer::{self, FileKind, PartitionExtent, TrailerFields};
use crate::format::frame::{self, FrameFlags, FrameHeader};
use crate::format::record::{self, RecordRef};
use crate::ids::{Micros, Offset, PartitionId};
use crate::index::{FileIndex, FrameEntry};
use crate::partition::{FileRange, Partition};

/// Partitions with less data than this share a segment.
pub(crate) const SHARED_BELOW: u64 = 1 << 20;

/// A segment is finished at this size.
const SEGMENT_BYTES: u64 = 64 << 20;

/// Segments are written in pieces of this size, each synced before the next, so that a concurrent commit waits for at
/// most one piece. `sync_file_range` was rejected: it does not flush the disk's write cache, so the last sync would
/// have to flush everything.
const PIECE: usize = 1 << 20;

/// After a filter, the remaining records are joined into frames of about this size.
const JOINED_BYTES: usize = 256 << 10;

/// Called with one record after the other, until it returns false.
pub type RecordVisitor<'a> = dyn FnMut(Offset, &RecordRef<'_>) -> bool + Send + 'a;

/// Returns whether a rewrite keeps a record.
pub type RecordFilter<'a> = dyn Fn(Offset, &RecordRef<'_>) -> bool + Send + Sync + 'a;

/// Called with the number of bytes that were read and written, to limit the rate.
pub(crate) type Throttle<'a> = dyn Fn(usize) + 'a;

/// The needed ranges of some files, and their distribution over segments.
pub(crate) struct MovePlan {
    from: Vec<Arc<LogFile>>,
    /// For each partition with enough data for segments of its own: its contiguous ranges.
    own: Vec<Vec<PartitionRanges>>,
    /// Shared segments: the ranges in each of them.
    shared: Vec<Vec<PartitionRanges>>,
}

/// Contiguous ranges of one partition.
type PartitionRanges = (Arc<Partition>, Vec<FileRange>);

impl MovePlan {
    pub fn of(files: &[Arc<LogFile>], partitions: &[Arc<Partition>]) -> Result<MovePlan> {
        let mut planned = MovePlan {
            from: files.to_vec(),
            own: Vec::new(),
            shared: Vec::new(),
        };
        for partition in partitions {
            let mut ranges: Vec<FileRange> = files.iter().flat_map(|file| partition.ranges_in(file)).collect();
            ranges.sort_by_key(|range| range.first);
            let is_large = ranges.iter().map(|range| range.bytes).sum::<u64>() >= SHARED_BELOW;
            let stretches = stretches(partition.id, ranges)?.into_iter();
            let sources = stretches.map(|stretch| (partition.clone(), stretch));
            if is_large {
                planned.own.push(sources.collect());
                continue;
            }
            for (n, source) in sources.enumerate() {
                if planned.shared.len() <= n {
                    planned.shared.push(Vec::new());
                }
                planned.shared[n].push(source);
            }
        }
        Ok(planned)
    }

    /// The number of segments that result, without counting those that fill up.
    pub fn segments(&self) -> usize {
        self.own.iter().map(Vec::len).sum::<usize>() + self.shared.len()
    }

    /// Writes the segments and switches the partitions to them. Returns the number of bytes written.
    pub fn run(self, pool: &FilePool, paced: &Throttle<'_>) -> Result<u64> {
        let mut moved = 0;
        // A partition must be switched once, for all of its ranges.
        for sources in self.own {
            let alone: Vec<&[PartitionRanges]> = sources.chunks(1).collect();
            let segments = write(pool, &alone, None, paced)?;
            moved += tell(pool, &self.from, segments);
        }
        let shared: Vec<&[PartitionRanges]> = self.shared.iter().map(Vec::as_slice).collect();
        let segments = write(pool, &shared, None, paced)?;
        Ok(moved + tell(pool, &self.from, segments))
    }
}

/// Groups ranges that can follow each other in one file. A footer row describes one contiguous range: with a hole, it
/// would hide the offsets that another file has there. Nor may a frame appear twice, so a frame that extends beyond its
/// range, because only a part of it was needed when the range was created, ends a group.
fn stretches(partition: PartitionId, ranges: Vec<FileRange>) -> Result<Vec<Vec<FileRange>>> {
    let mut stretches: Vec<Vec<FileRange>> = Vec::new();
    for range in ranges {
        let last = stretches
            .last_mut()
            .and_then(|stretch| Some((stretch.last()?.clone(), stretch)));
        match last {
            Some((before, stretch)) if before.next == range.first && meet(partition, &before, &range)? => {
                stretch.push(range);
            }
            _ => stretches.push(vec![range]),
        }
    }
    Ok(stretches)
}

/// Whether no frame of either range extends across their boundary.
fn meet(partition: PartitionId, before: &FileRange, range: &FileRange) -> Result<bool> {
    let last = before.file.entries(partition, before.next.saturating_sub(1), 0)?;
    let first = range.file.entries(partition, range.first, 0)?;
    let ends = last.first().is_none_or(|entry| entry.header.next() <= before.next);
    let begins = first.first().is_none_or(|entry| entry.header.base >= range.first);
    Ok(ends && begins)
}

/// Rewrites what a partition needs of a file without the records that `keep` rejects, and switches the partition to the
/// result.
pub(crate) fn rewrite(
    pool: &FilePool,
    file: &Arc<LogFile>,
    partition: &Arc<Partition>,
    keep: &RecordFilter<'_>,
    paced: &Throttle<'_>,
) -> Result<RewriteOutcome> {
    let ranges = partition.ranges_in(file);
    // Reading costs half as much as writing, and most files have nothing to drop.
    let mut leaves_out = false;
    for range in &ranges {
        leaves_out = leaves_out || drops_any(range, partition.id, keep, paced)?;
    }
    if !leaves_out {
        return Ok(RewriteOutcome::default());
    }
    let segments = write(pool, &[&[(partition.clone(), ranges)]], Some(keep), paced)?;
    Ok(RewriteOutcome {
        files: segments.iter().map(|segment| segment.file.clone()).collect(),
        bytes: tell(pool, std::slice::from_ref(file), segments),
    })
}

/// The result of rewriting one file.
#[derive(Default)]
pub(crate) struct RewriteOutcome {
    pub files: Vec<Arc<LogFile>>,
    pub bytes: u64,
}

/// Whether `keep` rejects a record of the range.
fn drops_any(range: &FileRange, partition: PartitionId, keep: &RecordFilter<'_>, paced: &Throttle<'_>) -> Result<bool> {
    let entries = range.file.entries(partition, range.first, usize::MAX)?;
    for entry in entries.iter().filter(|entry| entry.header.base < range.next) {
        let body = range.file.body(entry)?;
        paced(body.len());
        let mut offset = entry.header.base;
        for record in record::records(&body) {
            let record = record.map_err(|_| not_a_record(&range.file, entry))?;
            let own = record
                .delta
                .map_or(offset, |delta| entry.header.base + u64::from(delta));
            offset = own + 1;
            if own >= range.first && own < range.next && !keep(own, &record) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// A finished segment and the partitions that read from it.
struct WrittenSegment {
    file: Arc<LogFile>,
    ranges: Vec<(Arc<Partition>, FileRange)>,
}

fn tell(pool: &FilePool, from: &[Arc<LogFile>], segments: Vec<WrittenSegment>) -> u64 {
    let mut told: HashMap<PartitionId, PartitionRanges> = HashMap::new();
    let mut bytes = 0;
    for segment in segments {
        bytes += segment.file.size;
        pool.add_segment(segment.file);
        for (partition, range) in segment.ranges {
            let (_, ranges) = told.entry(partition.id).or_insert_with(|| (partition, Vec::new()));
            ranges.push(range);
        }
    }
    for (partition, ranges) in told.into_values() {
        partition.replace(from, &ranges);
    }
    if bytes > 0 {
        pool.wake();
    }
    bytes
}

/// Writes segments for all of `wanted`, starting a new segment for each element, or fails without leaving any. Respects
/// the space limit of the log.
fn write(
    pool: &FilePool,
    wanted: &[&[PartitionRanges]],
    keep: Option<&RecordFilter<'_>>,
    paced: &Throttle<'_>,
) -> Result<Vec<WrittenSegment>> {
    let ranges = wanted
        .iter()
        .flat_map(|sources| sources.iter())
        .flat_map(|(_, ranges)| ranges);
    let bytes = ranges.map(|range| range.bytes).sum();
    if bytes > 0 {
        pool.may_take(bytes)?;
    }
    let mut finished = Vec::new();
    let mut sources = wanted.iter();
    match sources.try_for_each(|sources| write_segments(pool, sources, keep, paced, &mut finished)) {
        Ok(()) => Ok(finished),
        Err(error) => {
            // No partition reads from them yet; one that cannot be removed is only a copy.
            for written in finished {
                let _ = written.file.remove(pool.disk.as_ref());
            }
            Err(match &error {
                LogError::Io { error: io, .. } if is_full(io) => pool.ran_out(bytes),
                _ => error,
            })
        }
    }
}

fn write_segments(
    pool: &FilePool,
    wanted: &[PartitionRanges],
    keep: Option<&RecordFilter<'_>>,
    paced: &Throttle<'_>,
    finished: &mut Vec<WrittenSegment>,
) -> Result<()> {
    let mut writer: Option<SegmentWriter<'_>> = None;
    for (partition, ranges) in wanted {
        for range in ranges {
            // A footer row describes one contiguous range: with a hole, it would hide the offsets that another file has
            // there.
            if writer
                .as_ref()
                .is_some_and(|open| !open.takes(partition.id, range.first))
            {
                finished.extend(writer.take().map(SegmentWriter::finish).transpose()?);
            }
            let mut first = range.first;
            let entries = range.file.entries(partition.id, range.first, usize::MAX)?;
            let mut frames = RangeFrames::new(range, &entries, keep);
            while let Some((header, body)) = frames.next(partition.id)? {
                paced(2 * body.len());
                let segment = match &mut writer {
                    Some(segment) => segment,
                    None => writer.insert(SegmentWriter::create(pool)?),
                };
                segment.push(&header, &body)?;
                let next = header.next().min(range.next);
                if segment.at >= SEGMENT_BYTES && next < range.next {
                    segment.holds(partition, first, next);
                    first = next;
                    finished.extend(writer.take().map(SegmentWriter::finish).transpose()?);
                }
            }
            if let Some(segment) = &mut writer {
                segment.holds(partition, first, range.next);
            }
        }
    }
    finished.extend(writer.map(SegmentWriter::finish).transpose()?);
    Ok(())
}

/// The frames of a range, unchanged or filtered.
struct RangeFrames<'a> {
    range: &'a FileRange,
    entries: std::iter::Peekable<std::slice::Iter<'a, FrameEntry>>,
    keep: Option<&'a RecordFilter<'a>>,
    /// The end of the last frame that was returned.
    at: Offset,
    /// An entry whose records did not all fit into the last frame.
    begun: Option<&'a FrameEntry>,
}

impl<'a> RangeFrames<'a> {
    fn new(range: &'a FileRange, entries: &'a [FrameEntry], keep: Option<&'a RecordFilter<'a>>) -> RangeFrames<'a> {
        RangeFrames {
            range,
            entries: entries.iter().peekable(),
            keep,
            at: range.first,
            begun: None,
        }
    }

    fn entry(&mut self) -> Option<&'a FrameEntry> {
        let next = self.range.next;
        let begun = self.begun.take();
        begun.or_else(|| self.entries.next_if(|entry| entry.header.base < next))
    }

    fn peek(&mut self) -> Option<&'a FrameEntry> {
        self.begun.or_else(|| self.entries.peek().copied())
    }

    fn next(&mut self, partition: PartitionId) -> Result<Option<(FrameHeader, Vec<u8>)>> {
        match self.keep {
            None => match self.entry() {
                Some(entry) => Ok(Some((entry.header, self.range.file.body(entry)?.into()))),
                None => Ok(None),
            },
            Some(keep) => self.left(partition, keep),
        }
    }

    /// Joins the remaining records of the next frames into one frame that covers all their offsets.
    fn left(&mut self, partition: PartitionId, keep: &RecordFilter<'_>) -> Result<Option<(FrameHeader, Vec<u8>)>> {
        let base = self.at;
        let (mut body, mut joined) = (Vec::new(), None::<FrameHeader>);
        while body.len() < JOINED_BYTES {
            let covers = |entry: &FrameEntry| u32::try_from(entry.header.next() - base).is_ok();
            // Gaps must stay separate from records, and a checkpoint from the changes after it.
            let joins = |entry: &FrameEntry| joined.is_none_or(|header| header.kind == entry.header.kind);
            if !self.peek().is_some_and(|entry| covers(entry) && joins(entry)) {
                break;
            }
            let Some(entry) = self.entry() else {
                break;
            };
            let header = joined.get_or_insert(FrameHeader {
                base,
                records: 0,
                flags: FrameFlags::NONE,
                partition,
                ..entry.header
            });
            let bytes = self.range.file.body(entry)?;
            let mut offset = entry.header.base;
            for record in record::records(&bytes) {
                let record = record.map_err(|_| not_a_record(&self.range.file, entry))?;
                let own = record
                    .delta
                    .map_or(offset, |delta| entry.header.base + u64::from(delta));
                offset = own + 1;
                // Records before the range are not needed or were already returned; those after it are in another
                // file.
                if own < self.range.first.max(base) || own >= self.range.next {
                    continue;
                }
                let moved = RecordRef {
                    delta: Some((own - base) as u32),
                    ..record
                };
                if body.len() + moved.encoded_len() > frame::BODY_MAX {
                    (self.at, self.begun) = (own, Some(entry));
                    break;
                }
                if !keep(own, &record) {
                    continue;
                }
                moved.encode(&mut body);
                header.records += 1;
                header.flags |= moved.flags();
            }
            header.base_time = header.base_time.min(entry.header.base_time);
            header.max_time = header.max_time.max(entry.header.max_time);
            if self.begun.is_some() {
                break;
            }
            self.at = entry.header.next().min(self.range.next);
        }
        Ok(joined.map(|mut header| {
            let span = (self.at - base) as u32;
            // An empty frame must still cover its offsets.
            header.last_delta = if header.records > 0 { span - 1 } else { span };
            header.flags |= FrameFlags::OFFSET_DELTAS;
            (header.body_len, header.body_crc) = (body.len() as u32, crc32c::crc32c(&body));
            (header, body)
        }))
    }
}

fn not_a_record(file: &LogFile, entry: &FrameEntry) -> LogError {
    LogError::Corrupt {
        file: file.name.clone(),
        position: entry.body_at,
        expected: None,
        found: format!(
            "a frame of partition {} contains something that is not a record",
            entry.header.partition
        ),
    }
}

struct SegmentWriter<'a> {
    pool: &'a FilePool,
    number: u64,
    /// The temporary file until the segment is finished.
    unfinished: UnfinishedFile<'a>,
    file: Arc<dyn DiskFile>,
    /// The end of the segment, including unwritten bytes.
    at: u64,
    /// Bytes that are not written yet, less than a piece.
    unwritten: Vec<u8>,
    index: FileIndex,
    holdings: Vec<(Arc<Partition>, Offset, Offset)>,
}

/// A file that is removed on drop unless it was renamed.
struct UnfinishedFile<'a> {
    pool: &'a FilePool,
    name: String,
    named: bool,
}

impl Drop for UnfinishedFile<'_> {
    fn drop(&mut self) {
        if !self.named {
            // If that fails, the next start does it.
            let _ = self.pool.disk.remove(&self.name);
        }
    }
}

impl<'a> SegmentWriter<'a> {
    fn create(pool: &'a FilePool) -> Result<SegmentWriter<'a>> {
        let number = pool.next_segment();
        let name = format!("new-segment-{number:016}");
        let file = pool.disk.create(&name);
        Ok(SegmentWriter {
            file: file.map_err(LogError::io("cannot make", &name))?,
            pool,
            number,
            unfinished: UnfinishedFile {
                pool,
                name,
                named: false,
            },
            at: 0,
            unwritten: Vec::new(),
            index: FileIndex::default(),
            holdings: Vec::new(),
        })
    }

    fn push(&mut self, header: &FrameHeader, body: &[u8]) -> Result<()> {
        let mut start = Vec::with_capacity(frame::LEN);
        header.encode(&mut start);
        self.write(&start)?;
        let body_at = self.at;
        self.write(body)?;
        self.index.push(FrameEntry {
            header: *header,
            body_at,
        });
        Ok(())
    }

    fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        while let Some((head, rest)) = bytes.split_at_checked(PIECE - self.unwritten.len()) {
            self.unwritten.extend_from_slice(head);
            let start = self.at - (PIECE - head.len()) as u64;
            let written = self.file.write_and_sync(&self.unwritten, start);
            written.map_err(LogError::fatal("cannot write", &self.unfinished.name))?;
            self.at += head.len() as u64;
            self.unwritten.clear();
            bytes = rest;
        }
        self.unwritten.extend_from_slice(bytes);
        self.at += bytes.len() as u64;
        Ok(())
    }

    /// Whether offsets from `first` on continue the partition in this segment, or the partition is not in it.
    fn takes(&self, partition: PartitionId, first: Offset) -> bool {
        let mut own = self.holdings.iter().filter(|(held, _, _)| held.id == partition);
        own.next_back().is_none_or(|(_, _, next)| *next == first)
    }

    fn holds(&mut self, partition: &Arc<Partition>, first: Offset, next: Offset) {
        match self.holdings.last_mut() {
            Some((held, _, end)) if held.id == partition.id && *end == first => *end = next,
            _ => self.holdings.push((partition.clone(), first, next)),
        }
    }

    fn finish(mut self) -> Result<WrittenSegment> {
        let mut rows = self.index.holdings();
        for row in &mut rows {
            // The filtered frames of a partition may begin later and end earlier than the range that they cover.
            let own = self
                .holdings
                .iter()
                .filter(|(partition, _, _)| partition.id == row.partition);
            row.first = own.clone().map(|(_, first, _)| *first).min().unwrap_or(row.first);
            row.next = own.map(|(_, _, next)| *next).max().unwrap_or(row.next);
        }
        let bounds = TrailerFields {
            kind: FileKind::Segment,
            file: self.number,
            first: 0,
            last: 0,
            synced: 0,
            end: self.at,
            log_id: self.pool.log_id(),
        };
        let footer = footer::encode(&self.index, &rows, &bounds);
        self.write(&footer)?;
        let (disk, name) = (self.pool.disk.as_ref(), segment_name(self.number));
        let written = self
            .file
            .write_at(&self.unwritten, self.at - self.unwritten.len() as u64);
        written.map_err(LogError::fatal("cannot write", &self.unfinished.name))?;
        let synced = self.file.sync();
        synced.map_err(LogError::fatal("cannot sync", &self.unfinished.name))?;
        file::rename(disk, &self.unfinished.name, &name)?;
        self.unfinished.named = true;
        let file = LogFile::segment(self.number, self.at, self.file, self.index, &self.pool.cache);
        let file = Arc::new(file);
        let ranges = self.holdings.into_iter().map(|(partition, first, next)| {
            let row = row_of(&rows, partition.id);
            let (bytes, counted) = row.map_or((0, true), |row| bytes_of(row, first, next));
            let range = FileRange {
                file: file.clone(),
                first,
                next,
                bytes,
                counted,
                max_time: row.map_or(Micros::MIN, |row| row.max_time),
            };
            (partition, range)
        });
        Ok(WrittenSegment {
            ranges: ranges.collect(),
            file,
        })
    }
}

/// The row of a partition. Rows are sorted by partition.
fn row_of(rows: &[PartitionExtent], partition: PartitionId) -> Option<&PartitionExtent> {
    let at = rows.binary_search_by_key(&partition, |row| row.partition).ok()?;
    rows.get(at)
}

/// The size of the frames between two offsets, and whether it is exact.
fn bytes_of(row: &PartitionExtent, first: Offset, next: Offset) -> (u64, bool) {
    let all = u128::from((row.next - row.first).max(1));
    let bytes = u128::from(row.bytes) * u128::from(next - first) / all;
    (bytes as u64, (first, next) == (row.first, row.next))
}

#[cfg(test)]
mod tests;
