//! Tracks how far each assigned partition was read, and how far the flow has confirmed it. Batches may be settled in
//! any order; the commit position is the end of the confirmed ones at the front.
//!
//! | a batch | then, in each of its partitions |
//! |---|---|
//! | is sent | its range is open |
//! | is confirmed | its range closes; the floor rises over the closed ranges at the front |
//! | is given back | its range and all later ones are dropped and read again, so that their order is kept |
//!
//! | a partition | then |
//! |---|---|
//! | is assigned | its records are not wanted until its starting point is known |
//! | is placed | it is to be read from its starting point |
//! | is revoked | it is dropped with its ranges: later acknowledgements commit nothing |
//! | belongs to another topic of the same name | its ranges are dropped, and it is to be read from its first record |
//! | goes back to before what was read | it has lost records: its ranges are dropped, and reading continues from there |

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use thalweg_record::AckResult;

use super::commit_metadata::CommitMetadata;
use crate::admin::TopicId;

/// A partition of a topic.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TopicPartition {
    pub topic: Arc<str>,
    pub number: i32,
}

/// Records of one partition within a batch; `to` is exclusive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetRange {
    pub partition: TopicPartition,
    pub from: i64,
    pub to: i64,
}

#[derive(Debug, Default)]
pub struct OffsetTracker {
    held: BTreeMap<TopicPartition, PartitionState>,
    /// The number of the last batch sent.
    number: u64,
    /// The number of the last assignment.
    assignment: u64,
    /// Changes when a partition is revoked: records read before may belong to another member by now.
    epoch: u64,
}

#[derive(Debug, Default)]
struct PartitionState {
    /// Distinguishes this assignment from earlier ones of the same partition.
    assignment: u64,
    /// The metadata of its commits; `None` until its starting point is known.
    mark: Option<CommitMetadata>,
    /// The offset after the last record that was sent or is not wanted; `None` before the first record.
    next: Option<i64>,
    /// All records below are confirmed or not wanted; `None` while there are none.
    floor: Option<i64>,
    committed: Option<i64>,
    open: VecDeque<InFlightRange>,
    /// The position to seek to; until that is done, records of the partition are not wanted.
    rewind: Option<SeekPosition>,
    /// Whether records were read that are not sent yet.
    is_gathered: bool,
    /// The missing offset after a reset; reported with the first record that arrives instead.
    lost: Option<i64>,
}

/// A position to seek to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekPosition {
    At(i64),
    /// The oldest available record.
    Oldest,
}

/// The starting point of an assigned partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionStart {
    pub partition: TopicPartition,
    pub assignment: u64,
    pub mark: CommitMetadata,
    pub start: SeekPosition,
    /// Whether to commit the starting point: the group has committed nothing, or without a topic id.
    pub is_to_be_committed: bool,
}

/// How far a partition was read and confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionProgress {
    /// The offset after the last record that was sent; `None` before the first one.
    pub next: Option<i64>,
    /// All records below are confirmed; `None` while there are none.
    pub confirmed: Option<i64>,
    /// Whether records were read that are not sent yet.
    pub is_gathered: bool,
}

/// A discontinuity in the offsets of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Jump {
    /// After records that do not exist any more.
    From(i64),
    /// Before records already read, without a reported reset.
    Back(i64),
}

#[derive(Debug)]
struct InFlightRange {
    number: u64,
    from: i64,
    to: i64,
    confirmed: bool,
}

impl OffsetTracker {
    pub fn assigned(&mut self, partition: TopicPartition) {
        self.assignment += 1;
        let held = PartitionState {
            assignment: self.assignment,
            ..PartitionState::default()
        };
        self.held.insert(partition, held);
    }

    /// Returns the partitions without a known starting point, with the numbers of their assignments.
    pub fn unplaced(&self) -> Vec<(TopicPartition, u64)> {
        let unplaced = self.held.iter().filter(|(_, held)| held.mark.is_none());
        unplaced
            .map(|(partition, held)| (partition.clone(), held.assignment))
            .collect()
    }

    pub fn is_placed(&self, partition: &TopicPartition) -> bool {
        self.held.get(partition).is_some_and(|held| held.mark.is_some())
    }

    /// Sets the starting point of a partition.
    pub fn placed(&mut self, placed: &PartitionStart) {
        let held = self.held.get_mut(&placed.partition);
        let Some(held) = held.filter(|held| held.assignment == placed.assignment && held.mark.is_none()) else {
            return;
        };
        held.mark = Some(placed.mark);
        held.rewind = Some(placed.start);
        if let SeekPosition::At(at) = placed.start {
            held.next = Some(at);
            held.floor = Some(at);
            held.committed = (!placed.is_to_be_committed).then_some(at);
        }
    }

    /// Records the id of the topic with this name. Returns the partitions that were read in another topic, and how far:
    /// they are now read from their first record.
    pub fn found_in(&mut self, topic: &str, id: TopicId) -> Vec<(TopicPartition, Option<i64>)> {
        let mut moved = Vec::new();
        for (partition, held) in &mut self.held {
            let Some(mark) = held.mark.as_mut().filter(|_| *partition.topic == *topic) else {
                continue;
            };
            if mark.topic.is_none() {
                // The brokers have been upgraded to topic ids.
                mark.topic = Some(id);
            } else if mark.topic != Some(id) {
                moved.push((partition.clone(), held.next));
                let mark = CommitMetadata {
                    topic: Some(id),
                    newest_below: 0,
                };
                *held = PartitionState {
                    assignment: held.assignment,
                    mark: Some(mark),
                    next: Some(0),
                    // To be committed: brokers forget the commits of a group in a topic that is deleted.
                    floor: Some(0),
                    rewind: Some(SeekPosition::At(0)),
                    ..PartitionState::default()
                };
            }
        }
        moved
    }

    pub fn has(&self, topic: &str, number: i32) -> bool {
        let mut held = self.held.keys();
        held.any(|partition| partition.number == number && *partition.topic == *topic)
    }

    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    pub fn revoked(&mut self, partition: &TopicPartition) {
        if self.held.remove(partition).is_some() {
            self.epoch += 1;
        }
    }

    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns `None` until the starting point of the partition is known.
    pub fn progress(&self, partition: &TopicPartition) -> Option<PartitionProgress> {
        let held = self.held.get(partition).filter(|held| held.mark.is_some())?;
        let first = held.open.front().map(|first| first.from);
        Some(PartitionProgress {
            next: held.next,
            confirmed: held.floor.or(first),
            is_gathered: held.is_gathered,
        })
    }

    /// A record of the partition was read, and will be sent.
    pub fn gathered(&mut self, partition: &TopicPartition) {
        if let Some(held) = self.held.get_mut(partition) {
            held.is_gathered = true;
        }
    }

    /// The number of offsets between the confirmed one and the last one that was sent.
    pub fn in_flight(&self, partition: &TopicPartition) -> usize {
        let open = self.held.get(partition).map(|held| &held.open);
        let ends = open.and_then(|open| Some((open.front()?.from, open.back()?.to)));
        ends.map_or(0, |(from, to)| usize::try_from(to - from).unwrap_or_default())
    }

    /// Returns the partitions whose records are wanted now.
    pub fn read(&self) -> Vec<TopicPartition> {
        let read = self.held.iter().filter(|(_, held)| held.is_read());
        read.map(|(partition, _)| partition.clone()).collect()
    }

    /// Whether records of a partition are wanted now.
    pub fn wants(&self, partition: &TopicPartition) -> bool {
        self.held.get(partition).is_some_and(PartitionState::is_read)
    }

    /// Records that a batch with these ranges goes to the flow; returns the number under which it is settled.
    /// Partitions that are to be read again are skipped: their records arrive once more, so this batch confirms nothing
    /// of them.
    pub fn sent(&mut self, spans: &[OffsetRange]) -> u64 {
        self.number += 1;
        for span in spans {
            let Some(held) = self.held.get_mut(&span.partition) else {
                continue;
            };
            held.is_gathered = false;
            if !held.is_read() {
                continue;
            }
            if held.next.is_some_and(|next| span.from < next) {
                *held = PartitionState {
                    assignment: held.assignment,
                    mark: held.mark,
                    ..PartitionState::default()
                };
            }
            let from = held.next.unwrap_or(span.from);
            let to = span.to;
            held.next = Some(to);
            held.open.push_back(InFlightRange {
                number: self.number,
                from,
                to,
                confirmed: false,
            });
        }
        self.number
    }

    /// Records an offset reset of a partition.
    pub fn lost(&mut self, partition: &TopicPartition, at: i64) {
        if let Some(held) = self.held.get_mut(partition) {
            held.lost = Some(at);
        }
    }

    /// Returns the discontinuity at a record, if there is one; a reset is reported once.
    pub fn jump(&mut self, partition: &TopicPartition, offset: i64) -> Option<Jump> {
        let held = self.held.get_mut(partition)?;
        let back = held.next.filter(|next| offset < *next);
        held.lost.take().map(Jump::From).or(back.map(Jump::Back))
    }

    /// Whether the first record after a reset is still missing for some partition.
    pub fn is_any_lost(&self) -> bool {
        self.held.values().any(|held| held.lost.is_some())
    }

    /// Returns the partitions with their read positions, if known.
    pub fn places(&self) -> BTreeMap<TopicPartition, Option<i64>> {
        let places = self.held.iter();
        places
            .map(|(partition, held)| (partition.clone(), held.place()))
            .collect()
    }

    /// Rewinds all partitions to the end of the last batch that was passed on.
    pub fn read_on_again(&mut self) {
        for held in self.held.values_mut().filter(|held| held.is_read()) {
            held.rewind = Some(held.next.map_or(SeekPosition::Oldest, SeekPosition::At));
        }
    }

    /// Records that were read are not sent: they are read again.
    pub fn unsent(&mut self, spans: &[OffsetRange]) {
        for span in spans {
            if let Some(held) = self.held.get_mut(&span.partition) {
                held.is_gathered = false;
                held.rewind
                    .get_or_insert(SeekPosition::At(held.next.unwrap_or(span.from)));
            }
        }
    }

    /// Settles a batch. Returns `true` if some of it is to be read again.
    pub fn settled(&mut self, number: u64, outcome: AckResult) -> bool {
        let mut again = false;
        for held in self.held.values_mut() {
            match outcome {
                AckResult::Acked => held.confirmed(number),
                AckResult::Nacked => again |= held.given_back(number),
            }
        }
        again
    }

    /// Returns the offsets that may be committed and are not committed yet.
    pub fn due(&self) -> Vec<(TopicPartition, i64, CommitMetadata)> {
        let due = self.held.iter().filter(|(_, held)| held.floor > held.committed);
        due.filter_map(|(partition, held)| Some((partition.clone(), held.floor?, held.mark?)))
            .collect()
    }

    /// A commit was sent.
    pub fn committing(&mut self, partition: &TopicPartition, to: i64) {
        if let Some(held) = self.held.get_mut(partition) {
            held.committed = Some(to);
        }
    }

    /// A commit failed: it is due again. Returns `false` if the partition was given back meanwhile.
    pub fn uncommitted(&mut self, partition: &TopicPartition) -> bool {
        let held = self.held.get_mut(partition);
        held.map(|held| held.committed = None).is_some()
    }

    /// Makes all committed offsets due again.
    pub fn all_uncommitted(&mut self) {
        self.held.values_mut().for_each(|held| held.committed = None);
    }

    /// Returns the pending seeks.
    pub fn rewinds(&self) -> Vec<(TopicPartition, SeekPosition)> {
        let rewinds = self.held.iter();
        rewinds
            .filter_map(|(partition, held)| Some((partition.clone(), held.rewind?)))
            .collect()
    }

    /// A seek to this position has succeeded. If an earlier position was requested meanwhile, the seek is still
    /// pending.
    pub fn rewound(&mut self, partition: &TopicPartition, start: SeekPosition) {
        let held = self.held.get_mut(partition);
        if let Some(held) = held.filter(|held| held.rewind == Some(start)) {
            held.rewind = None;
            held.next = start.offset();
        }
    }
}

impl SeekPosition {
    fn offset(self) -> Option<i64> {
        match self {
            SeekPosition::At(at) => Some(at),
            SeekPosition::Oldest => None,
        }
    }
}

impl PartitionState {
    /// Whether records of the partition are wanted now.
    fn is_read(&self) -> bool {
        self.mark.is_some() && self.rewind.is_none()
    }

    /// The read position, if known.
    fn place(&self) -> Option<i64> {
        match self.rewind {
            Some(start) => start.offset(),
            None => self.next,
        }
    }

    fn confirmed(&mut self, number: u64) {
        // The numbers increase, and each batch has at most one range here.
        if let Ok(at) = self.open.binary_search_by_key(&number, |sent| sent.number)
            && let Some(sent) = self.open.get_mut(at)
        {
            sent.confirmed = true;
        }
        while let Some(first) = self.open.front().filter(|first| first.confirmed) {
            self.floor = Some(first.to);
            self.open.pop_front();
        }
    }

    /// Returns `false` for a batch that was dropped already.
    fn given_back(&mut self, number: u64) -> bool {
        let Ok(at) = self.open.binary_search_by_key(&number, |sent| sent.number) else {
            return false;
        };
        let from = self.open.get(at).map(|sent| sent.from);
        self.open.truncate(at);
        // This is earlier than a pending position.
        self.rewind = from.map(SeekPosition::At);
        self.next = from;
        true
    }
}

#[cfg(test)]
mod tests;
