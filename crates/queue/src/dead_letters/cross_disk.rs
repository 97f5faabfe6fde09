//! Resends dead letters to a queue on another disk. One commit appends them there, and a second one removes them from
//! their own queue, so after a crash in between they are in both. Therefore the first commit also records the dead
//! letters in the state of the receiving partition, and the next start removes those that still exist.
//!
//! A checkpoint of that partition ends this. It is written only when no dead letters are in transit, and it repeats
//! only the record of those whose removal is not durable.

use std::collections::BTreeMap;
use std::sync::Arc;

use thalweg_kit::blocking;
use thalweg_kit::varint;
use thalweg_log::format::frame::FrameKind;
use thalweg_log::format::record::RecordRef;
use thalweg_log::{LogError, Micros, Records, WriteBatch};

use super::removals::LetterRemovalGuard;
use crate::dead_letter_move::find;
use crate::error::{QueueError, Result};
use crate::group_partition::SENT;
use crate::message::NewMessage;
use crate::offset_ranges::OffsetRanges;
use crate::produce::AttachedRecord;
use crate::queue::Queue;

/// Dead letters that were resent together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ResentLetters {
    /// Number of the queue that they came from.
    pub dead: u32,
    /// A dead letter younger than this reuses the offset of one that was lost.
    pub at: Micros,
    pub letters: OffsetRanges,
}

/// What a queue knows about dead letters that were sent to it, by partition.
#[derive(Debug, Default)]
pub(crate) struct ReceivedLetters(BTreeMap<u32, PartitionReceivedLetters>);

#[derive(Debug, Default)]
struct PartitionReceivedLetters {
    /// Commits in progress.
    under_way: u32,
    /// Records since the last checkpoint.
    unsaved: u32,
    /// Stored as messages here, but perhaps still stored as dead letters.
    unsure: Vec<ResentLetters>,
}

/// Dead letters are in transit into one partition. Its checkpoints are postponed while this lives.
pub(crate) struct LetterArrival {
    to: Arc<Queue>,
    partition: u32,
    sent: ResentLetters,
}

impl ReceivedLetters {
    pub fn is_under_way(&self, partition: u32) -> bool {
        self.0.get(&partition).is_some_and(|sent| sent.under_way > 0)
    }

    pub fn unsaved(&self, partition: u32) -> u32 {
        self.0.get(&partition).map_or(0, |sent| sent.unsaved)
    }

    pub fn most_unsaved(&self) -> u32 {
        self.0.values().map(|sent| sent.unsaved).max().unwrap_or(0)
    }

    /// The records that a checkpoint must repeat.
    pub fn records(&self, partition: u32) -> Vec<Vec<u8>> {
        let unsure = self.0.get(&partition).into_iter().flat_map(|sent| &sent.unsure);
        unsure.map(ResentLetters::record).collect()
    }

    /// A checkpoint was written.
    pub fn saved(&mut self, partition: u32) {
        if let Some(sent) = self.0.get_mut(&partition) {
            sent.unsaved = 0;
        }
        self.forget_empty();
    }

    /// Restores from the records of a partition's state; `None` for invalid bytes.
    pub fn restore(&mut self, partition: u32, records: &[Vec<u8>]) -> Option<()> {
        for record in records {
            let sent = self.0.entry(partition).or_default();
            sent.unsaved += 1;
            sent.unsure.push(ResentLetters::decode(record)?);
        }
        Some(())
    }

    pub fn unsure(&self) -> Vec<ResentLetters> {
        self.0.values().flat_map(|sent| &sent.unsure).cloned().collect()
    }

    /// The dead letters were removed, or their queue was.
    pub fn are_gone(&mut self, gone: &ResentLetters) {
        for here in self.0.values_mut() {
            here.unsure.retain(|sent| sent != gone);
        }
        self.forget_empty();
    }

    fn forget_empty(&mut self) {
        self.0
            .retain(|_, sent| sent.under_way + sent.unsaved > 0 || !sent.unsure.is_empty());
    }
}

impl LetterArrival {
    /// Begins to store dead letters as messages. All must go to one partition, which is where their record is stored.
    pub fn begin(to: &Arc<Queue>, sent: ResentLetters, placed: &[(u32, NewMessage)]) -> Result<LetterArrival> {
        let partition = placed.first().map_or(0, |(partition, _)| *partition);
        if placed.iter().any(|(other, _)| *other != partition) {
            return Err(QueueError::invalid(format!(
                "queue {} got more partitions while dead letters were sent to it; repeat the call for the others",
                to.name()
            )));
        }
        to.sent_here.lock().0.entry(partition).or_default().under_way += 1;
        Ok(LetterArrival {
            to: to.clone(),
            partition,
            sent,
        })
    }

    /// The record to append together with the messages.
    pub fn fact(&self) -> AttachedRecord {
        let state = self.to.identity.state_id(self.partition);
        (state, self.sent.record())
    }

    /// The messages are stored; `are_gone` says whether the removal of the dead letters is stored too.
    pub fn came(&self, are_gone: bool) {
        let mut here = self.to.sent_here.lock();
        let here = here.0.entry(self.partition).or_default();
        here.unsaved += 1;
        if !are_gone {
            here.unsure.push(self.sent.clone());
        }
        self.to.checkpoint_by_and_by();
    }
}

impl Drop for LetterArrival {
    fn drop(&mut self) {
        if let Some(here) = self.to.sent_here.lock().0.get_mut(&self.partition) {
            here.under_way -= 1;
        }
    }
}

impl Queue {
    /// Removes dead letters of this queue that became messages elsewhere before the process started, or before its disk
    /// failed. The change is durable on return. `takes_part` says whether the queue is in service already.
    pub(crate) async fn were_sent(self: &Arc<Queue>, sent: &ResentLetters, takes_part: bool) -> Result<()> {
        if !self.letters.has_letters() {
            return Ok(());
        }
        let (queue, sent) = (self.clone(), sent.clone());
        let found = blocking::spawn(move || queue.still_there(&sent)).await;
        let (gone, new) = found.unwrap_or(Err(LogError::Closed))?;
        let Some((state, value)) = self.dropped_fact(&gone).filter(|_| !gone.is_empty()) else {
            return Ok(());
        };
        let _under_way = LetterRemovalGuard::begin(self);
        if new > 0 {
            tracing::info!(
                queue = %self.name(), letters = new,
                "dead letters that were resent before the process ended are removed now"
            );
        }
        match takes_part {
            true => {
                self.are_gone(&gone);
                self.let_go_of_letters().await;
            }
            false => self.letters.add_all(&gone),
        }
        let mut records = Records::new();
        records.push(&RecordRef::of(self.clock.now(), &value))?;
        let unit = WriteBatch::default().and_of(FrameKind::State, state, records).freeing();
        self.log.append(unit).await?;
        Ok(())
    }

    /// Returns the dead letters that exist or existed before they were removed, and how many of them are not removed
    /// yet. Blocks.
    fn still_there(&self, sent: &ResentLetters) -> thalweg_log::Result<(OffsetRanges, u64)> {
        let (mut gone, mut new) = (OffsetRanges::default(), 0);
        let Some(store) = self.store(0) else {
            return Ok((gone, new));
        };
        let there = store.first()?..store.next()?;
        for letter in sent.letters.iter().filter(|letter| there.contains(letter)) {
            // A removal may be known only in memory.
            if self.letters.contains(letter) {
                gone.insert(letter);
            } else if find(store, letter)?.is_some_and(|letter| letter.time <= sent.at) {
                gone.insert(letter);
                new += 1;
            }
        }
        Ok((gone, new))
    }
}

impl ResentLetters {
    fn record(&self) -> Vec<u8> {
        // Belongs to no group.
        let mut value = vec![0, SENT];
        varint::put(&mut value, self.dead.into());
        varint::put(&mut value, self.at.max(0).cast_unsigned());
        self.letters.encode(&mut value);
        value
    }

    /// Decodes the bytes after the mark.
    fn decode(bytes: &[u8]) -> Option<ResentLetters> {
        let (dead, rest) = varint::take(bytes)?;
        let (at, rest) = varint::take(rest)?;
        let mut letters = OffsetRanges::default();
        letters.decode_into(rest)?;
        Some(ResentLetters {
            dead: dead.try_into().ok()?,
            at: at.try_into().ok()?,
            letters,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_was_sent_is_read_as_it_was_written(dead: u32, at in 0..Micros::MAX, offsets in prop::collection::vec(0..60u64, 0..80)) {
            let mut letters = OffsetRanges::default();
            for offset in offsets {
                letters.insert(offset);
            }
            let sent = ResentLetters { dead, at, letters };
            let again = ResentLetters::decode(&sent.record()[2..]).unwrap();
            prop_assert_eq!((again.dead, again.at, again.letters), (sent.dead, sent.at, sent.letters));
        }

        #[test]
        fn any_bytes_were_sent_or_not(bytes: Vec<u8>) {
            let _ = ResentLetters::decode(&bytes);
        }
    }
}
