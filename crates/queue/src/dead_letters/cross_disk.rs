//! Letters that were sent again to a queue on another disk. They become messages there in one commit, and are taken out of
//! their own queue in a second one: after a crash in between they are in both. So the first commit says which letters came, in
//! the state of the partition that got them, and the next start takes these out where they still are.
//!
//! A checkpoint of that partition ends this: it is written when no letters are on their way, and says once more only which
//! could not be taken out durably.

use std::collections::BTreeMap;
use std::sync::Arc;

use thalweg_log::format::frame::FrameKind;
use thalweg_log::format::record::RecordRef;
use thalweg_log::format::varint;
use thalweg_log::{LogError, Micros, Records, WriteBatch};

use super::LetterRemovalGuard;
use crate::dead_letter_move::find;
use crate::error::{QueueError, Result};
use crate::group_partition::SENT;
use crate::message::NewMessage;
use crate::offset_ranges::OffsetRanges;
use crate::produce::AttachedRecord;
use crate::queue::Queue;

/// Letters that became messages at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ResentLetters {
    /// The number of the queue that they came from.
    pub dead: u32,
    /// A letter that is younger has got the offset of one that was lost.
    pub at: Micros,
    pub letters: OffsetRanges,
}

/// What a queue knows of the letters that were sent to it, by partition.
#[derive(Debug, Default)]
pub(crate) struct ReceivedLetters(BTreeMap<u32, PartitionReceivedLetters>);

#[derive(Debug, Default)]
struct PartitionReceivedLetters {
    /// Commits that are not done.
    under_way: u32,
    /// Records since the last checkpoint.
    unsaved: u32,
    /// Messages here, and perhaps letters still.
    unsure: Vec<ResentLetters>,
}

/// They are on their way into one partition: no checkpoint of it is written meanwhile.
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

    /// What a checkpoint has to say again.
    pub fn records(&self, partition: u32) -> Vec<Vec<u8>> {
        let unsure = self.0.get(&partition).into_iter().flat_map(|sent| &sent.unsure);
        unsure.map(ResentLetters::record).collect()
    }

    /// A checkpoint is written.
    pub fn saved(&mut self, partition: u32) {
        if let Some(sent) = self.0.get_mut(&partition) {
            sent.unsaved = 0;
        }
        self.forget_empty();
    }

    /// What the state of a partition says; `None` for bytes that say nothing.
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

    /// They are taken out of their queue, or it is gone itself.
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
    /// Letters as messages of one partition: what says that they came has to be where they are.
    pub fn begin(to: &Arc<Queue>, sent: ResentLetters, placed: &[(u32, NewMessage)]) -> Result<LetterArrival> {
        let partition = placed.first().map_or(0, |(partition, _)| *partition);
        if placed.iter().any(|(other, _)| *other != partition) {
            return Err(QueueError::invalid(format!(
                "queue {} got more partitions while letters were sent to it; call it again for the others",
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

    /// Goes with the messages.
    pub fn fact(&self) -> AttachedRecord {
        let state = self.to.state_id(self.partition);
        (state, self.sent.record())
    }

    /// They are stored, and that they are gone from their own queue is, or is not.
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
    /// Letters of this queue are messages of another since before the process began, or since its disk failed. Durable when it
    /// returns. The queue takes part already, or does not yet.
    pub(crate) async fn were_sent(self: &Arc<Queue>, sent: &ResentLetters, takes_part: bool) -> Result<()> {
        if !self.has_letters {
            return Ok(());
        }
        let (queue, sent) = (self.clone(), sent.clone());
        let found = tokio::task::spawn_blocking(move || queue.still_there(&sent)).await;
        let (gone, new) = found.unwrap_or(Err(LogError::Closed))?;
        let Some((state, value)) = self.dropped_fact(&gone).filter(|_| !gone.is_empty()) else {
            return Ok(());
        };
        let _under_way = LetterRemovalGuard::begin(self);
        if new > 0 {
            tracing::info!(
                queue = %self.name(), letters = new,
                "letters were sent again when the process ended; they are gone from here now"
            );
        }
        match takes_part {
            true => {
                self.are_gone(&gone);
                self.let_go_of_letters().await;
            }
            false => self.dropped.lock().add_all(&gone),
        }
        let mut records = Records::new();
        records.push(&RecordRef::of(self.clock.now(), &value))?;
        let unit = WriteBatch::default().and_of(FrameKind::State, state, records).freeing();
        self.log.append(unit, None).await?;
        Ok(())
    }

    /// Which of these letters there are, or were before they were taken out, and how many nobody has taken out. Blocks.
    fn still_there(&self, sent: &ResentLetters) -> thalweg_log::Result<(OffsetRanges, u64)> {
        let (mut gone, mut new) = (OffsetRanges::default(), 0);
        let Some(store) = self.store(0) else {
            return Ok((gone, new));
        };
        let there = store.first()?..store.next()?;
        for letter in sent.letters.iter().filter(|letter| there.contains(letter)) {
            // That one is gone may be known in memory alone.
            if self.is_dropped(letter) {
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
        // Of no group.
        let mut value = vec![0, SENT];
        varint::put(&mut value, self.dead.into());
        varint::put(&mut value, self.at.max(0).cast_unsigned());
        self.letters.encode(&mut value);
        value
    }

    /// What follows the mark.
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
