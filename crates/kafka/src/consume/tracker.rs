//! How far each partition that this consumer holds was taken, and how far the flow has confirmed it. Batches may be settled in
//! any order; what may be committed is where the confirmed ones at the front end.
//!
//! | a batch | then, in each of its partitions |
//! |---|---|
//! | is sent | its span is open |
//! | is confirmed | its span closes; the floor rises over the closed ones at the front |
//! | is given back | its span and all behind it are forgotten and read again, so that their order stays |
//!
//! | a partition | then |
//! |---|---|
//! | is assigned | nothing of it is wanted until it is known where it begins |
//! | is placed | it is to be read from there |
//! | is revoked | it is forgotten with its spans: whatever is heard of them later commits nothing |
//! | is found in another topic of the same name | its spans are forgotten, and it is to be read from its first record |
//! | goes back behind what was read of it | it has lost records: its spans are forgotten, and it is read on from there |

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

/// Records of one partition within a batch: `to` is behind the last of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetRange {
    pub partition: TopicPartition,
    pub from: i64,
    pub to: i64,
}

#[derive(Debug, Default)]
pub struct OffsetTracker {
    held: BTreeMap<TopicPartition, PartitionState>,
    /// Of the batch that was sent last.
    number: u64,
    /// Of the assignment that came last.
    assignment: u64,
    /// Changes when a partition is taken away: what was read before may be another's by now.
    epoch: u64,
}

#[derive(Debug, Default)]
struct PartitionState {
    /// Tells it from earlier assignments of the same partition.
    assignment: u64,
    /// What is committed with its offsets; `None` until it is known where it begins.
    mark: Option<CommitMetadata>,
    /// Behind what was read, or is not wanted; `None` before the first record.
    next: Option<i64>,
    /// All below is confirmed, or not wanted; `None` while nothing is.
    floor: Option<i64>,
    committed: Option<i64>,
    open: VecDeque<InFlightRange>,
    /// It is to be read from here; until that is done, what comes of it is not wanted.
    rewind: Option<SeekPosition>,
    /// Where it was to be read and cannot; told with the first record that comes instead.
    lost: Option<i64>,
}

/// Where a partition is to be read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekPosition {
    At(i64),
    /// At the oldest record that there is.
    Oldest,
}

/// Where a partition begins that was assigned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionStart {
    pub partition: TopicPartition,
    pub assignment: u64,
    pub mark: CommitMetadata,
    pub start: SeekPosition,
    /// What is before its beginning is to be committed: the group has committed nothing, or it does not say in which topic.
    pub is_to_be_committed: bool,
}

/// Where a partition goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Jump {
    /// Behind records that are not there any more.
    From(i64),
    /// Before what was read: nobody has told of it.
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

    /// Partitions of which it is not known yet where they begin, with the numbers of their assignments.
    pub fn unplaced(&self) -> Vec<(TopicPartition, u64)> {
        let unplaced = self.held.iter().filter(|(_, held)| held.mark.is_none());
        unplaced
            .map(|(partition, held)| (partition.clone(), held.assignment))
            .collect()
    }

    pub fn is_placed(&self, partition: &TopicPartition) -> bool {
        self.held.get(partition).is_some_and(|held| held.mark.is_some())
    }

    /// It is known where a partition begins.
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

    /// The topic of this name is this one. Returns the partitions that were read in another one, and how far: they are read from
    /// their first record now, whatever was read.
    pub fn found_in(&mut self, topic: &str, id: TopicId) -> Vec<(TopicPartition, Option<i64>)> {
        let mut moved = Vec::new();
        for (partition, held) in &mut self.held {
            let Some(mark) = held.mark.as_mut().filter(|_| *partition.topic == *topic) else {
                continue;
            };
            if mark.topic.is_none() {
                // The brokers have learned to tell topics apart meanwhile.
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
                    // To be committed: brokers forget what a group has committed in a topic that is deleted.
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

    /// Partitions of which records are wanted now.
    pub fn read(&self) -> Vec<TopicPartition> {
        let read = self.held.iter().filter(|(_, held)| held.is_read());
        read.map(|(partition, _)| partition.clone()).collect()
    }

    /// Whether records of a partition are wanted now.
    pub fn wants(&self, partition: &TopicPartition) -> bool {
        self.held.get(partition).is_some_and(PartitionState::is_read)
    }

    /// A batch of these records goes to the flow; returns the number under which it is settled. Of a partition that is to be
    /// read again they come once more, so nothing is confirmed by them.
    pub fn sent(&mut self, spans: &[OffsetRange]) -> u64 {
        self.number += 1;
        for span in spans {
            let held = self.held.get_mut(&span.partition);
            let Some(held) = held.filter(|held| held.is_read()) else {
                continue;
            };
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

    /// Where a partition was to be read there is nothing; it goes on elsewhere.
    pub fn lost(&mut self, partition: &TopicPartition, at: i64) {
        if let Some(held) = self.held.get_mut(partition) {
            held.lost = Some(at);
        }
    }

    /// Whether a record of a partition comes from where it goes on after something else; told once.
    pub fn jump(&mut self, partition: &TopicPartition, offset: i64) -> Option<Jump> {
        let held = self.held.get_mut(partition)?;
        let back = held.next.filter(|next| offset < *next);
        held.lost.take().map(Jump::From).or(back.map(Jump::Back))
    }

    /// Whether of some partition a record is still to come that tells where it goes on.
    pub fn is_any_lost(&self) -> bool {
        self.held.values().any(|held| held.lost.is_some())
    }

    /// Partitions with where they are read on, if that is known.
    pub fn places(&self) -> BTreeMap<TopicPartition, Option<i64>> {
        let places = self.held.iter();
        places
            .map(|(partition, held)| (partition.clone(), held.place()))
            .collect()
    }

    /// All partitions are read again from where that ended which was passed on.
    pub fn read_on_again(&mut self) {
        for held in self.held.values_mut().filter(|held| held.is_read()) {
            held.rewind = Some(held.next.map_or(SeekPosition::Oldest, SeekPosition::At));
        }
    }

    /// Records that were read are not sent: they are read again.
    pub fn unsent(&mut self, spans: &[OffsetRange]) {
        for span in spans {
            if let Some(held) = self.held.get_mut(&span.partition) {
                held.rewind
                    .get_or_insert(SeekPosition::At(held.next.unwrap_or(span.from)));
            }
        }
    }

    /// What became of a batch. `true`: some of it is to be read again.
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

    /// What may be committed and is not yet.
    pub fn due(&self) -> Vec<(TopicPartition, i64, CommitMetadata)> {
        let due = self.held.iter().filter(|(_, held)| held.floor > held.committed);
        due.filter_map(|(partition, held)| Some((partition.clone(), held.floor?, held.mark?)))
            .collect()
    }

    /// A commit is under way.
    pub fn committing(&mut self, partition: &TopicPartition, to: i64) {
        if let Some(held) = self.held.get_mut(partition) {
            held.committed = Some(to);
        }
    }

    /// A commit failed: it is due again.
    pub fn uncommitted(&mut self, partition: &TopicPartition) {
        if let Some(held) = self.held.get_mut(partition) {
            held.committed = None;
        }
    }

    /// What was committed is due once more.
    pub fn all_uncommitted(&mut self) {
        self.held.values_mut().for_each(|held| held.committed = None);
    }

    /// Where to read again.
    pub fn rewinds(&self) -> Vec<(TopicPartition, SeekPosition)> {
        let rewinds = self.held.iter();
        rewinds
            .filter_map(|(partition, held)| Some((partition.clone(), held.rewind?)))
            .collect()
    }

    /// What comes of a partition from now on begins at this place. It may be meant to go back further by now: then it is not
    /// there yet.
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
    /// What comes of it now is wanted.
    fn is_read(&self) -> bool {
        self.mark.is_some() && self.rewind.is_none()
    }

    /// Where it is read on, if that is known.
    fn place(&self) -> Option<i64> {
        match self.rewind {
            Some(start) => start.offset(),
            None => self.next,
        }
    }

    fn confirmed(&mut self, number: u64) {
        // The numbers rise, and of each batch there is one span at most.
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

    /// `false` for a batch that was forgotten already.
    fn given_back(&mut self, number: u64) -> bool {
        let Ok(at) = self.open.binary_search_by_key(&number, |sent| sent.number) else {
            return false;
        };
        let from = self.open.get(at).map(|sent| sent.from);
        self.open.truncate(at);
        // An earlier place than the one that waits already.
        self.rewind = from.map(SeekPosition::At);
        self.next = from;
        true
    }
}

#[cfg(test)]
mod tests;
