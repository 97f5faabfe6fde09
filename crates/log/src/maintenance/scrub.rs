//! The check of all that is stored, once in [`MaintenancePolicy::scrub`](super::MaintenancePolicy): a round reads every frame that is
//! needed of the full files, one file after the other, in pieces between which the upkeep does its other work.
//!
//! When a round began and how far it is stands in a partition of the log itself, written when a file is done: a process that
//! lives shorter than the time between two rounds, or than a round, goes on where the one before it was. A file that is made
//! behind the place of a round has just been written, so the next round is early enough for it.

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

/// Where the log keeps what it knows of its checks.
pub(crate) const SCRUBBED: PartitionId = PartitionId::new(0, 2);

/// Read between two looks for other work.
const PIECE: usize = 1 << 20;

/// A round of checks, over restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ScrubProgress {
    began: Micros,
    /// The file that comes next; `None` when the round is over.
    next: Option<ScrubPosition>,
}

/// Commit files come before segments, each in the order of their numbers.
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

    fn behind(self) -> ScrubPosition {
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

/// Where the upkeep of a log writes down how far a round is.
pub(crate) struct ScrubProgressStore {
    pub writer: Arc<LogWriter>,
    pub partitions: Arc<RwLock<HashMap<PartitionId, Arc<Partition>>>>,
    pub slots: Arc<Mutex<SlotAllocator>>,
    pub meta: Arc<Partition>,
}

impl ScrubProgressStore {
    /// What was written down last. What cannot be read is as good as nothing: the round begins anew.
    fn read(&self) -> Option<ScrubProgress> {
        let partition = self.partitions.read().get(&SCRUBBED).cloned()?;
        let last = partition.bounds().next.checked_sub(1)?;
        let frames = partition.read(last, 1).ok()?;
        let told = frames.iter().flat_map(|frame| records(&frame.body)).last()?;
        ScrubProgress::parse(told.ok()?.value)
    }

    /// Goes with the next block; nobody waits for it.
    fn write(&self, progress: ScrubProgress, now: Micros) -> Result<()> {
        let known = self.partitions.read().get(&SCRUBBED).cloned();
        let partition = match known {
            Some(partition) => partition,
            None => {
                let mut made =
                    add_partitions(&self.partitions, &self.slots, &self.writer, &[SCRUBBED], Durability::Os)?;
                // In a block before the first record, or in the same.
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

/// The rounds of one process.
pub(super) struct Scrubber<'a> {
    book: &'a ScrubProgressStore,
    progress: Option<ScrubProgress>,
    /// Partitions of the file that is being read, each with the offset from which on it is to be read.
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

    /// How long until there is something to check; no time at all while a round goes on.
    pub fn due_in(&self, upkeep: &LogMaintenance, now: Micros) -> Duration {
        let every = upkeep.policy.scrub;
        let Some(oldest) = upkeep.files().into_iter().next().filter(|_| !every.is_zero()) else {
            return super::LOOK;
        };
        let began = match self.progress {
            Some(ScrubProgress { next: Some(_), .. }) => return Duration::ZERO,
            Some(ScrubProgress { began, .. }) => began,
            // A log of which nothing was ever checked: what it has is at most as old as its oldest file.
            None => written_at(&oldest),
        };
        // A clock that was set back tells nothing.
        let since = u64::try_from(now - began).map_or(every, Duration::from_micros);
        every.saturating_sub(since)
    }

    /// Reads on, about a megabyte. What is damaged is noted; the rest goes on.
    pub fn piece(&mut self, upkeep: &LogMaintenance, now: Micros) {
        if !self.due_in(upkeep, now).is_zero() {
            return;
        }
        let began = |progress: &ScrubProgress| progress.next.map(|next| (progress.began, next));
        let (began, place) = self
            .progress
            .as_ref()
            .and_then(began)
            .unwrap_or((now, ScrubPosition::FIRST));
        // The file is held for this piece only: one that nobody needs can go in between.
        let file = upkeep.files().into_iter().find(|file| ScrubPosition::of(file) >= place);
        let next = match &file {
            None => None,
            Some(file) => {
                let at = ScrubPosition::of(file);
                if at != place {
                    self.waiting = None;
                }
                self.progress = Some(ScrubProgress { began, next: Some(at) });
                let waiting = self.waiting.get_or_insert_with(|| upkeep.users_of(file));
                if !read_on(upkeep, file, waiting) {
                    return;
                }
                Some(at.behind())
            }
        };
        self.waiting = None;
        let progress = ScrubProgress { began, next };
        self.progress = Some(progress);
        // A log that takes nothing any more is checked all the same.
        let _ = self.book.write(progress, now);
    }
}

/// When the first block of a file was written; long ago if it does not tell.
fn written_at(file: &LogFile) -> Micros {
    let header = file
        .read(0, block::LEN)
        .ok()
        .and_then(|bytes| BlockHeader::decode(&bytes));
    header.map_or(0, |header| header.commit_time)
}

/// Reads what partitions need of a file, up to a piece. Returns whether that was all.
fn read_on(upkeep: &LogMaintenance, file: &Arc<LogFile>, waiting: &mut VecDeque<(Arc<Partition>, Offset)>) -> bool {
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
                // The index is of all partitions.
                upkeep.note(&error);
                return true;
            }
        };
        *from = range.next;
        for entry in entries.iter().filter(|entry| entry.header.base < range.next) {
            if let Err(error) = file.body(entry) {
                upkeep.note(&error);
            }
            upkeep.pace(entry.header.body_len as usize);
            read += entry.header.body_len as usize;
            *from = entry.header.next();
            if read >= PIECE || upkeep.state.lock().closing {
                return false;
            }
        }
    }
    true
}

impl LogMaintenance {
    /// All that is full, in the order of places.
    fn files(&self) -> Vec<Arc<LogFile>> {
        let (mut files, mut segments) = (self.shelf.sealed(), self.shelf.segments());
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
