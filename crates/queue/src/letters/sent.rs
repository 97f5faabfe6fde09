//! Letters that were sent again to a queue on another disk. They become messages there in one commit, and are taken out of
//! their own queue in a second one: after a crash in between they are in both. So the first commit says which letters came, in
//! the state of the partition that got them, and the next start takes these out where they still are.
//!
//! A checkpoint of that partition ends this: it is written when no letters are on their way, and says once more only which
//! could not be taken out durably.

use std::collections::BTreeMap;
use std::sync::Arc;

use thalweg_log::format::frame::Kind;
use thalweg_log::format::record::RecordRef;
use thalweg_log::format::varint;
use thalweg_log::{Records, Unit};

use super::DropUnderWay;
use crate::error::{QueueError, Result};
use crate::message::NewMessage;
use crate::part::SENT;
use crate::produce::Fact;
use crate::queue::Queue;
use crate::ranges::Ranges;

/// Letters, by the number of the queue that they came from.
pub(crate) type BySource = BTreeMap<u32, Ranges>;

/// What a queue knows of the letters that were sent to it, by partition.
#[derive(Debug, Default)]
pub(crate) struct SentHere(BTreeMap<u32, SentToPartition>);

#[derive(Debug, Default)]
struct SentToPartition {
    /// Commits that are not done.
    under_way: u32,
    /// Records since the last checkpoint.
    unsaved: u32,
    /// Messages here, and perhaps letters still.
    unsure: BySource,
}

/// Letters of one queue that are becoming messages of another.
pub(crate) struct Letters {
    pub dead: u32,
    pub offsets: Ranges,
}

/// They are on their way into one partition: no checkpoint of it is written meanwhile.
pub(crate) struct Arriving {
    to: Arc<Queue>,
    partition: u32,
    letters: Letters,
}

impl SentHere {
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
        unsure.map(|(dead, letters)| sent_record(*dead, letters)).collect()
    }

    /// A checkpoint is written.
    pub fn saved(&mut self, partition: u32) {
        if let Some(sent) = self.0.get_mut(&partition) {
            sent.unsaved = 0;
        }
        self.forget_empty();
    }

    /// What the state of a partition says; `None` for bytes that say nothing.
    pub fn restore(&mut self, partition: u32, records: &[(u32, Vec<u8>)]) -> Option<()> {
        for (dead, letters) in records {
            let sent = self.0.entry(partition).or_default();
            sent.unsaved += 1;
            sent.unsure.entry(*dead).or_default().decode_into(letters)?;
        }
        Some(())
    }

    pub fn unsure(&self) -> BySource {
        let mut all = BySource::new();
        for (dead, letters) in self.0.values().flat_map(|sent| &sent.unsure) {
            all.entry(*dead).or_default().add_all(letters);
        }
        all
    }

    /// They are taken out of the queue of that number, or it is gone itself.
    pub fn are_gone(&mut self, dead: u32) {
        self.0.values_mut().for_each(|sent| drop(sent.unsure.remove(&dead)));
        self.forget_empty();
    }

    fn forget_empty(&mut self) {
        self.0
            .retain(|_, sent| sent.under_way + sent.unsaved > 0 || !sent.unsure.is_empty());
    }
}

impl Arriving {
    /// Letters as messages of one partition: what says that they came has to be where they are.
    pub fn begin(to: &Arc<Queue>, letters: Letters, placed: &[(u32, NewMessage)]) -> Result<Arriving> {
        let partition = placed.first().map_or(0, |(partition, _)| *partition);
        if placed.iter().any(|(other, _)| *other != partition) {
            return Err(QueueError::invalid(format!(
                "queue {} got more partitions while letters were sent to it; call it again for the others",
                to.name()
            )));
        }
        let mut here = to.sent_here.lock();
        let sent = here.0.entry(partition).or_default();
        sent.under_way += 1;
        sent.unsaved += 1;
        drop(here);
        Ok(Arriving {
            to: to.clone(),
            partition,
            letters,
        })
    }

    /// Goes with the messages.
    pub fn fact(&self) -> Fact {
        let state = self.to.state_id(self.partition);
        (state, sent_record(self.letters.dead, &self.letters.offsets))
    }

    /// They are stored; that they are gone from their own queue is not.
    pub fn is_half_done(&self) {
        let mut here = self.to.sent_here.lock();
        let sent = here.0.entry(self.partition).or_default();
        let unsure = sent.unsure.entry(self.letters.dead).or_default();
        unsure.add_all(&self.letters.offsets);
    }
}

impl Drop for Arriving {
    fn drop(&mut self) {
        if let Some(sent) = self.to.sent_here.lock().0.get_mut(&self.partition) {
            sent.under_way -= 1;
        }
        self.to.checkpoint_by_and_by();
    }
}

impl Queue {
    /// Letters of this queue are messages of another since before the process began. Durable when it returns.
    pub(crate) async fn were_sent(self: &Arc<Queue>, letters: &Ranges) -> Result<()> {
        let Some(first) = self.store(0).map(|store| store.first()).transpose()? else {
            return Ok(());
        };
        let mut there = Ranges::default();
        for letter in letters.iter().filter(|letter| *letter >= first) {
            if !self.is_dropped(letter) {
                there.insert(letter);
            }
        }
        let Some((state, value)) = self.dropped_fact(&there).filter(|_| !there.is_empty()) else {
            return Ok(());
        };
        tracing::info!(
            queue = %self.name(), letters = there.len(),
            "letters were sent again when the process ended; they are gone from here now"
        );
        let _under_way = DropUnderWay::begin(self);
        self.are_gone(&there);
        let mut records = Records::new();
        records.push(&RecordRef::of(self.clock.now(), &value))?;
        let unit = Unit::default().and_of(Kind::State, state, records).freeing();
        self.log.append(unit, None).await?;
        Ok(())
    }
}

fn sent_record(dead: u32, letters: &Ranges) -> Vec<u8> {
    // Of no group.
    let mut value = vec![0, SENT];
    varint::put(&mut value, dead.into());
    letters.encode(&mut value);
    value
}
