//! What the writer of a disk does with the submissions it has gathered: one block, one write, one sync if somebody waits
//! for it, then all waiters. Single-threaded and without a clock of its own, so that a simulation can drive it.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::files::{Files, Place};
use super::group::{Block, BlockFrame, Group, Part, Slot, Stamp};
use crate::durability::Durability;
use crate::error::{LogError, Result};
use crate::format::frame::Kind;
use crate::ids::{Micros, Offset, Sequence};
use crate::partition::Partition;

/// Records for one or more partitions, stored together or not at all.
pub(crate) struct Submission {
    pub parts: Vec<Part>,
    /// The strongest of what its partitions promise.
    pub durability: Durability,
    pub bytes: usize,
    pub done: oneshot::Sender<Result<Vec<Offset>>>,
}

pub(crate) struct Core {
    files: Files,
    table: Vec<Row>,
    group: Group,
    log_id: u64,
    /// Of the next block.
    next: Sequence,
    synced: Sequence,
    /// When the oldest block that is not synced was written.
    unsynced_since: Option<Micros>,
    /// Rows with frames in blocks that are not synced.
    unsynced_rows: Vec<Slot>,
    block_max: usize,
    tail: Tail,
    poison: Option<Arc<str>>,
}

struct Row {
    partition: Arc<Partition>,
    next: Offset,
    /// The block, and the frame in it, that took the newest records.
    block: Sequence,
    frame: usize,
    unsynced: bool,
}

/// Submissions of the block that is being made.
struct Pending {
    durability: Durability,
    firsts: Vec<Offset>,
    done: oneshot::Sender<Result<Vec<Offset>>>,
}

/// Newest frames of all partitions, kept in memory up to a number of bytes.
struct Tail {
    frames: VecDeque<(Slot, usize)>,
    bytes: usize,
    bytes_max: usize,
}

/// Where a log goes on: behind everything that was recovered.
pub(crate) struct Resume {
    pub files: Files,
    pub log_id: u64,
    pub next: Sequence,
    pub synced: Sequence,
}

impl Core {
    pub fn new(resume: Resume, block_max: usize, tail_bytes_max: usize) -> Core {
        Core {
            files: resume.files,
            table: Vec::new(),
            group: Group::default(),
            log_id: resume.log_id,
            next: resume.next,
            synced: resume.synced,
            unsynced_since: None,
            unsynced_rows: Vec::new(),
            block_max,
            tail: Tail {
                frames: VecDeque::new(),
                bytes: 0,
                bytes_max: tail_bytes_max,
            },
            poison: None,
        }
    }

    /// The writer's row for a partition, at its slot: rows are added in the order of slots.
    pub fn add_partition(&mut self, partition: Arc<Partition>) {
        debug_assert_eq!(partition.slot, self.table.len());
        self.table.push(Row {
            next: partition.bounds().next,
            partition,
            block: Sequence::MAX,
            frame: 0,
            unsynced: false,
        });
    }

    pub fn poison(&self) -> Option<&Arc<str>> {
        self.poison.as_ref()
    }

    pub fn unsynced_since(&self) -> Option<Micros> {
        self.unsynced_since
    }

    /// Whether a block would say more about what is synced than the last one did.
    pub fn has_news(&self) -> bool {
        self.poison.is_none() && self.next > 1 && self.synced + 1 == self.next
    }

    /// Commits as many of the waiting submissions as one block takes, the first ones, and answers them. Returns how many.
    pub fn commit(&mut self, waiting: &mut VecDeque<Submission>, now: Micros) -> usize {
        let mut pending = Vec::new();
        let mut undo = Vec::new();
        while let Some(submission) = waiting.front() {
            if !self
                .group
                .has_room(submission.parts.len(), submission.bytes, self.block_max)
            {
                break;
            }
            let Some(submission) = waiting.pop_front() else {
                break;
            };
            let firsts = submission.parts.into_iter().map(|part| self.place(part, &mut undo));
            pending.push(Pending {
                firsts: firsts.collect(),
                durability: submission.durability,
                done: submission.done,
            });
        }
        let count = pending.len();
        let dated = pending.iter().any(|one| one.durability == Durability::Interval);
        let strict = pending.iter().any(|one| one.durability == Durability::Fsync);
        let result = self.write(now).and_then(|(block, place)| {
            self.release(&block, &place, |durability| durability != Durability::Fsync);
            answer(&mut pending, |durability| durability != Durability::Fsync);
            if strict {
                self.sync()?;
            } else if dated {
                self.unsynced_since.get_or_insert(now);
            }
            self.release(&block, &place, |durability| durability == Durability::Fsync);
            Ok(())
        });
        match result {
            Ok(()) => answer(&mut pending, |_| true),
            Err(error) => {
                self.undo(undo, &error);
                for one in pending {
                    let _ = one.done.send(Err(error.clone()));
                }
            }
        }
        count
    }

    fn place(&mut self, part: Part, undo: &mut Vec<(Slot, Offset)>) -> Offset {
        let (slot, records, block) = (part.slot, part.records, self.next);
        let Some(row) = self.table.get_mut(slot) else {
            debug_assert!(false, "a part for a partition that the writer does not know");
            return 0;
        };
        let newest = (row.block == block).then_some(row.frame);
        if newest.is_none() {
            undo.push((slot, row.next));
        }
        let (frame, first) = self.group.add(part, row.next, newest);
        row.next = first + u64::from(records);
        (row.block, row.frame) = (block, frame);
        first
    }

    /// Nothing of the block was stored: its offsets are free again.
    fn undo(&mut self, undo: Vec<(Slot, Offset)>, error: &LogError) {
        for (slot, next) in undo {
            if let Some(row) = self.table.get_mut(slot) {
                (row.next, row.block) = (next, Sequence::MAX);
            }
        }
        self.group = Group::default();
        let refused = matches!(error, LogError::DiskFull { .. } | LogError::TooLarge { .. });
        if !refused && self.poison.is_none() {
            self.poison = Some(error.to_string().into());
        }
    }

    fn write(&mut self, now: Micros) -> Result<(Block, Place)> {
        if let Some(cause) = &self.poison {
            return Err(LogError::Poisoned { cause: cause.clone() });
        }
        let (len, frames) = (self.group.block_len(), self.group.frames());
        let place = self.files.place(len, frames, self.next, &mut self.synced)?;
        let block = self.group.finish(Stamp {
            sequence: self.next,
            commit_time: now,
            log_id: self.log_id,
            synced: self.synced,
        });
        place.file.write(&block.bytes, place.at)?;
        self.files.written(&place, len, &block.frames);
        self.next += 1;
        Ok((block, place))
    }

    /// Readers may have what this block holds of the partitions that `which` names by their durability.
    fn release(&mut self, block: &Block, place: &Place, which: impl Fn(Durability) -> bool) {
        for frame in &block.frames {
            let Some(row) = self
                .table
                .get_mut(frame.slot)
                .filter(|row| which(row.partition.durability))
            else {
                continue;
            };
            let keep = frame.header.kind == Kind::Data;
            row.partition
                .add(&place.file, &frame.header, keep.then_some(&frame.body));
            if row.partition.durability == Durability::Fsync {
                row.partition.set_synced(frame.header.next());
            } else if !std::mem::replace(&mut row.unsynced, true) {
                self.unsynced_rows.push(frame.slot);
            }
            if keep {
                self.tail.push(frame);
            }
        }
        while let Some(slot) = self.tail.surplus() {
            if let Some(row) = self.table.get(slot) {
                row.partition.forget_oldest();
            }
        }
    }

    /// Everything written so far is on disk when this returns. After an error nothing more is taken.
    pub fn sync(&mut self) -> Result<()> {
        if let Some(cause) = &self.poison {
            return Err(LogError::Poisoned { cause: cause.clone() });
        }
        if let Err(error) = self.files.current().sync() {
            self.poison = Some(error.to_string().into());
            return Err(error);
        }
        self.synced = self.next.saturating_sub(1);
        self.unsynced_since = None;
        for slot in self.unsynced_rows.drain(..) {
            if let Some(row) = self.table.get_mut(slot) {
                row.unsynced = false;
                row.partition.set_synced(row.partition.bounds().next);
            }
        }
        Ok(())
    }

    /// A block without frames, which names the last synced sequence: so that recovery knows how far to insist.
    pub fn mark(&mut self, now: Micros) -> Result<()> {
        let written = self.write(now).map(drop);
        if let Err(error) = &written {
            self.undo(Vec::new(), error);
        }
        written
    }
}

fn answer(pending: &mut Vec<Pending>, which: impl Fn(Durability) -> bool) {
    let mut waiting = Vec::with_capacity(pending.len());
    for one in pending.drain(..) {
        if which(one.durability) {
            // Who has gone meanwhile is told nothing; what he appended stays.
            let _ = one.done.send(Ok(one.firsts));
        } else {
            waiting.push(one);
        }
    }
    *pending = waiting;
}

impl Tail {
    fn push(&mut self, frame: &BlockFrame) {
        self.frames.push_back((frame.slot, frame.body.len()));
        self.bytes += frame.body.len();
    }

    /// The partition whose oldest frame has to go, until all fits.
    fn surplus(&mut self) -> Option<Slot> {
        if self.bytes <= self.bytes_max {
            return None;
        }
        let (slot, bytes) = self.frames.pop_front()?;
        self.bytes -= bytes;
        Some(slot)
    }
}
