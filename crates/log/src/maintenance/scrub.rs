//! The scrub, which reads all stored data once per [`MaintenancePolicy::scrub`](super::MaintenancePolicy). A round
//! reads every needed frame of the full files, file by file, in pieces between which maintenance does its other work.
//!
//! The start time and the progress of a round are stored in a partition of the log itself after each file. A process
//! that lives shorter than a round, or than the time between two, therefore continues where the one before it stopped.
//! A file that is created after the current position was just written and can wait for the next round.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};

use super::LogMaintenance;
use crate::durability::Durability;
use crate::embedded::add_partitions;
use crate::error::{LogError, Result};
use crate::file::{LogFile, commit_name, parse_name, segment_name};
use crate::format::block::{self, BlockHeader};
use crate::format::footer::FileKind;
use crate::format::frame::FrameKind;
use crate::format::record::{RecordRef, records};
use crate::ids::{Micros, Offset, PartitionId};
use crate::partition::Partition;
use crate::partition_table::PartitionChange;
use crate::writer::slots::SlotAllocator;
use crate::writer::thread::LogWriter;

/// The partition that stores the progress.
pub(crate) const SCRUBBED: PartitionId = PartitionId::new(0, 2);

/// Bytes read before checking for other work.
const PIECE: usize = 1 << 20;

/// The state of a round, which persists across restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ScrubProgress {
    began: Micros,
    /// The next file; `None` when the round is finished.
    next: Option<ScrubPosition>,
}

/// The position of a file: commit files before segments, each in the order of their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ScrubPosition {
    is_segment: bool,
    number: u64,
}

impl ScrubPosition {
    const FIRST: ScrubPosition = ScrubPosition {
        is_segment: false,
        number: 0,
    };

    fn of(file: &LogFile) -> ScrubPosition {
        ScrubPosition {
            is_segment: file.kind == FileKind::Segment,
            number: file.number,
        }
    }

    fn after(self) -> ScrubPosition {
        ScrubPosition {
            number: self.number + 1,
            ..self
        }
    }

    fn name(self) -> String {
        match self.is_segment {
            true => segment_name(self.number),
            false => commit_name(self.number),
        }
    }
}

impl ScrubProgress {
    fn text(self) -> String {
        match self.next {
            Some(next) => format!("{} {}", self.began, next.name()),
            None => self.began.to_string(),
        }
    }

    fn parse(value: &[u8]) -> Option<ScrubProgress> {
        let text = std::str::from_utf8(value).ok()?;
        let (began, next) = match text.split_once(' ') {
            Some((began, name)) => {
                let (kind, number) = parse_name(name)?;
                let is_segment = kind == FileKind::Segment;
                (began, Some(ScrubPosition { is_segment, number }))
            }
            None => (text, None),
        };
        Some(ScrubProgress {
            began: began.parse().ok()?,
            next,
        })
    }
}

/// Persists the progress of a round.
pub(crate) struct ScrubProgressStore {
    pub writer: Arc<LogWriter>,
    pub partitions: Arc<RwLock<HashMap<PartitionId, Arc<Partition>>>>,
    pub slots: Arc<Mutex<SlotAllocator>>,
    pub meta: Arc<Partition>,
}

impl ScrubProgressStore {
    /// Reads the stored progress. If it is unreadable, the round starts again.
    fn read(&self) -> Option<ScrubProgress> {
        let partition = self.partitions.read().get(&SCRUBBED).cloned()?;
        let last = partition.bounds().next.checked_sub(1)?;
        let frames = partition.read(last, 1).ok()?;
        let told = frames.iter().flat_map(|frame| records(&frame.body)).last()?;
        ScrubProgress::parse(told.ok()?.value)
    }

    /// Journals the progress, which is written with the next block.
    fn write(&self, progress: ScrubProgress, now: Micros) -> Result<()> {
        let known = self.partitions.read().get(&SCRUBBED).cloned();
        let partition = match known {
            Some(partition) => partition,
            None => {
                let mut made =
                    add_partitions(&self.partitions, &self.slots, &self.writer, &[SCRUBBED], Durability::Os)?;
                // Its block precedes that of the first record, or is the same.
                self.journal_change(PartitionChange::Created(SCRUBBED, Durability::Os), now)?;
                made.pop().ok_or(LogError::NoPartition(SCRUBBED))?
            }
        };
        let before = partition.bounds().next.saturating_sub(1);
        if before > partition.bounds().first {
            self.journal_change(PartitionChange::Trimmed(SCRUBBED, before), now)?;
            partition.trim(before);
        }
        self.journal(&partition, FrameKind::State, progress.text().as_bytes(), now)
    }

    fn journal_change(&self, change: PartitionChange, now: Micros) -> Result<()> {
        let mut value = Vec::new();
        change.encode(&mut value);
        self.journal(&self.meta, FrameKind::Meta, &value, now)
    }

    fn journal(&self, partition: &Arc<Partition>, kind: FrameKind, value: &[u8], now: Micros) -> Result<()> {
        if partition.journal(kind, &mut |records| records.push(&RecordRef::of(now, value)))? {
            self.writer.journaled(partition);
        }
        Ok(())
    }
}

/// The scrubber of one process.
pub(super) struct Scrubber<'a> {
    book: &'a ScrubProgressStore,
    progress: Option<ScrubProgress>,
    /// Partitions of the current file, each with the next offset to read.
    waiting: Option<VecDeque<(Arc<Partition>, Offset)>>,
}

impl<'a> Scrubber<'a> {
    pub fn new(book: &'a ScrubProgressStore) -> Scrubber<'a> {
        Scrubber {
            book,
            progress: book.read(),
            waiting: None,
        }
    }

    /// The time until the next scrub is due; zero during a round.
    pub fn due_in(&self, maintenance: &LogMaintenance, now: Micros) -> Duration {
        let every = maintenance.policy.scrub;
        let Some(oldest) = maintenance.files().into_iter().next().filter(|_| !every.is_zero()) else {
            return super::LOOK;
        };
        let began = match self.progress {
            Some(ScrubProgress { next: Some(_), .. }) => return Duration::ZERO,
            Some(ScrubProgress { began, .. }) => began,
            // Nothing was ever scrubbed, so the age of the oldest file counts.
            None => written_at(&oldest),
        };
        // If the clock was set back, the elapsed time is unknown.
        let since = u64::try_from(now - began).map_or(every, Duration::from_micros);
        every.saturating_sub(since)
    }

    /// Reads about one more megabyte. Damage is noted, and the scrub continues.
    pub fn piece(&mut self, maintenance: &LogMaintenance, now: Micros) {
        if !self.due_in(maintenance, now).is_zero() {
            return;
        }
        let began = |progress: &ScrubProgress| progress.next.map(|next| (progress.began, next));
        let (began, place) = self
            .progress
            .as_ref()
            .and_then(began)
            .unwrap_or((now, ScrubPosition::FIRST));
        // The file is referenced for this piece only, so that it can be removed in between.
        let file = maintenance
            .files()
            .into_iter()
            .find(|file| ScrubPosition::of(file) >= place);
        let next = match &file {
            None => None,
            Some(file) => {
                let at = ScrubPosition::of(file);
                if at != place {
                    self.waiting = None;
                }
                self.progress = Some(ScrubProgress { began, next: Some(at) });
                let waiting = self.waiting.get_or_insert_with(|| maintenance.users_of(file));
                if !read_on(maintenance, file, waiting) {
                    return;
                }
                Some(at.after())
            }
        };
        self.waiting = None;
        let progress = ScrubProgress { began, next };
        self.progress = Some(progress);
        // A log that refuses writes is scrubbed all the same.
        let _ = self.book.write(progress, now);
    }
}

/// The time of the first block of a file; 0 if it cannot be read.
fn written_at(file: &LogFile) -> Micros {
    let header = file
        .read(0, block::LEN)
        .ok()
        .and_then(|bytes| BlockHeader::decode(&bytes));
    header.map_or(0, |header| header.commit_time)
}

/// Reads up to one piece of what partitions need of a file. Returns whether the file is finished.
fn read_on(
    maintenance: &LogMaintenance,
    file: &Arc<LogFile>,
    waiting: &mut VecDeque<(Arc<Partition>, Offset)>,
) -> bool {
    let mut read = 0;
    while let Some((partition, from)) = waiting.front_mut() {
        let ranges = partition.ranges_in(file);
        let Some(range) = ranges.into_iter().find(|range| range.next > *from) else {
            waiting.pop_front();
            continue;
        };
        let entries = match file.entries(partition.id, range.first.max(*from), PIECE) {
            Ok(entries) => entries,
            Err(error) => {
                // The index covers all partitions, so nothing of the file can be found.
                maintenance.note(&error);
                return true;
            }
        };
        *from = range.next;
        for entry in entries.iter().filter(|entry| entry.header.base < range.next) {
            if let Err(error) = file.body(entry) {
                maintenance.note(&error);
            }
            maintenance.pace(entry.header.body_len as usize);
            read += entry.header.body_len as usize;
            *from = entry.header.next();
            if read >= PIECE || maintenance.state.lock().closing {
                return false;
            }
        }
    }
    true
}

impl LogMaintenance {
    /// All full files in scrub order.
    fn files(&self) -> Vec<Arc<LogFile>> {
        let (mut files, mut segments) = (self.pool.sealed(), self.pool.segments());
        segments.sort_by_key(|segment| segment.number);
        files.append(&mut segments);
        files
    }

    fn users_of(&self, file: &Arc<LogFile>) -> VecDeque<(Arc<Partition>, Offset)> {
        let partitions = self.partitions.read();
        let users = partitions
            .values()
            .filter(|partition| !partition.ranges_in(file).is_empty());
        users.map(|partition| (partition.clone(), 0)).collect()
    }
}

#[cfg(test)]
mod tests;
