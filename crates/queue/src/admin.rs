//! What operators do with a queue: empty it, look into it, set groups back or forward, ask how it is.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use thalweg_kit::blocking::{self, LONG_BYTES};
use thalweg_log::{LogError, Micros, Offset, PartitionId};

use crate::error::{QueueError, Result};
use crate::group::Group;
use crate::group_partition::{GroupPartitionInner, GroupState};
use crate::ids::Receipt;
use crate::message::Message;
use crate::queue::Queue;
use crate::settle::ReceiptUse;
use crate::store::{Cursor, MessageStore, NextMessage};

/// Read at once, about.
pub(crate) const LOOK_BYTES: usize = 8 << 20;

/// Where a group goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekTo {
    Earliest,
    Latest,
    /// In one partition or in all.
    Offset {
        partition: Option<u32>,
        offset: Offset,
    },
    /// At the first message that was appended then or later, by the wall clock.
    Time(Micros),
}

/// What [`Queue::browse_within`] found.
#[derive(Debug)]
pub struct BrowsePage {
    /// With their partitions.
    pub messages: Vec<(u32, Message)>,
    /// Whether nothing is behind them.
    pub is_end: bool,
}

impl Queue {
    /// Drops all messages for all work groups, those that consumers have, too; stream groups go to the end. Durable when
    /// it returns. Returns how many messages were not settled by the slowest group.
    pub async fn purge(self: &Arc<Queue>) -> Result<u64> {
        let seeking = self.seeking.lock().await;
        let dropped = self.depth();
        let groups = self.groups();
        blocking::work(LONG_BYTES, || self.purge_each(&groups))?;
        // Without groups nothing else says that they are gone.
        if groups.is_empty() {
            let ends: thalweg_log::Result<Vec<Offset>> = self.stores().iter().map(|store| store.next()).collect();
            let ends = ends?;
            self.beside_the_disk(move |queue| {
                for (partition, end) in (0..).zip(ends) {
                    queue.trim_store(partition, end);
                }
            })
            .await;
            self.counters.purged.fetch_add(dropped, Ordering::Relaxed);
        }
        drop(seeking);
        // Also if that cannot be stored yet: what is let go makes room for it.
        self.trim_beside().await;
        self.wait_freeing().await?;
        self.has_room();
        self.grown();
        Ok(dropped)
    }

    /// Of groups that may have millions of messages.
    fn purge_each(&self, groups: &[Arc<Group>]) -> Result<()> {
        for group in groups {
            let purged = self.change_each(
                group,
                |_| true,
                |inner, _, next| match &mut inner.state {
                    GroupState::Work(machine) => machine.purge(next),
                    GroupState::Stream(machine) => {
                        machine.commit(next);
                        0
                    }
                },
            )?;
            self.counters.purged.fetch_add(purged, Ordering::Relaxed);
            group.counters.dropped.fetch_add(purged, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Sets what a stream group has committed in a partition. Durable when it returns.
    pub async fn commit(&self, group: &Arc<Group>, partition: u32, offset: Offset) -> Result<()> {
        if group.is_work() {
            return Err(only_streams(group, "committed"));
        }
        self.partition(partition)?;
        self.change_each(
            group,
            |other| other == partition,
            |inner, _, next| {
                if let GroupState::Stream(machine) = &mut inner.state {
                    machine.commit(offset.min(next));
                }
                0
            },
        )?;
        self.settled(group);
        self.wait_for(&[self.state_id(partition)]).await
    }

    /// Has a group go on elsewhere. Back, a work group gets everything from there on again: what consumers have, with the
    /// next delivery number, the rest with delivery 1; what lies before stays with whoever has it, or waits, as it did.
    /// Forward, or to where it is, everything before is dropped, what consumers have and what waits, too. Durable when it
    /// returns.
    pub async fn seek(self: &Arc<Queue>, group: &Arc<Group>, to: SeekTo) -> Result<()> {
        let only = match to {
            SeekTo::Offset { partition, .. } => partition,
            _ => None,
        };
        if let Some(partition) = only {
            self.partition(partition)?;
        }
        let only = only.map(|partition| vec![partition]);
        let seeking = self.seeking.lock().await;
        let targets = self.targets(to).await?;
        // Back, delivery numbers begin anew: receipts from before must not name what is handed out then.
        let mut epoch = match self.goes_back(group, &only, &targets) {
            true => Some(self.next_epoch().await?),
            false => None,
        };
        let mut back = Vec::new();
        let mut dropped = self.seek_each(group, &only, &targets, epoch, &mut back)?;
        if !back.is_empty() {
            // Consumers have come by the target meanwhile.
            let left = Some(std::mem::take(&mut back));
            epoch = Some(self.next_epoch().await?);
            dropped += self.seek_each(group, &left, &targets, epoch, &mut back)?;
        }
        drop(seeking);
        self.counters.passed_over.fetch_add(dropped, Ordering::Relaxed);
        group.counters.dropped.fetch_add(dropped, Ordering::Relaxed);
        self.settled(group);
        match epoch {
            Some(_) => self.wait_for(&self.state_ids()).await,
            None => self.wait_freeing().await,
        }
    }

    /// By partition.
    async fn targets(&self, to: SeekTo) -> Result<Vec<Offset>> {
        let stores = self.stores();
        let mut targets = Vec::with_capacity(stores.len());
        for store in &stores {
            targets.push(match to {
                SeekTo::Earliest => store.first()?,
                // Wherever that is by then.
                SeekTo::Latest => Offset::MAX,
                SeekTo::Offset { offset, .. } => offset.clamp(store.first()?, store.next()?),
                SeekTo::Time(wall) => at_time(store.clone(), self.clock.jumps().first_at_wall(wall)).await?,
            });
        }
        Ok(targets)
    }

    fn goes_back(&self, group: &Group, meant: &PartitionSelection, targets: &[Offset]) -> bool {
        let mut parts = group
            .parts()
            .zip(targets)
            .filter(|((partition, _), _)| is_meant(meant, *partition));
        parts.any(|((_, part), target)| *target < part.inner.lock().reads_at())
    }

    /// Has the group go on at the targets, each in one step. Those partitions in which that would be back are left, and named
    /// in `back`, without an epoch for what is handed out again.
    fn seek_each(
        &self,
        group: &Group,
        meant: &PartitionSelection,
        targets: &[Offset],
        epoch: Option<u32>,
        back: &mut Vec<u32>,
    ) -> Result<u64> {
        let is_meant = |partition| is_meant(meant, partition);
        let change = |inner: &mut GroupPartitionInner, partition: u32, next: Offset| {
            let target = targets
                .get(partition as usize)
                .map_or(next, |target| *target.min(&next));
            let is_back = target < inner.reads_at();
            match (&mut inner.state, epoch) {
                (_, None) if is_back => back.push(partition),
                (GroupState::Stream(machine), epoch) => {
                    if let Some(epoch) = epoch.filter(|_| is_back) {
                        machine.set_epoch(epoch);
                    }
                    machine.seek(target);
                }
                (GroupState::Work(machine), Some(epoch)) if is_back => {
                    let is_behind = target > machine.cursor();
                    let dropped = match is_behind {
                        // Forward, but not beyond what was handed out behind the cursor after a seek back.
                        true => machine.purge(target),
                        false => {
                            machine.seek(target);
                            0
                        }
                    };
                    machine.set_epoch(epoch);
                    return dropped;
                }
                // Also at the cursor: what becomes of a lease must not depend on whether anything is left to claim.
                (GroupState::Work(machine), _) => return machine.purge(target),
            }
            0
        };
        // It may pass millions of messages.
        blocking::work(LONG_BYTES, || self.change_each(group, is_meant, change))
    }

    pub(crate) fn state_ids(&self) -> Vec<PartitionId> {
        (0..self.partition_count())
            .map(|partition| self.state_id(partition))
            .collect()
    }

    /// Returns the sum of what the changes return.
    fn change_each(
        &self,
        group: &Group,
        is_meant: impl Fn(u32) -> bool,
        mut change: impl FnMut(&mut GroupPartitionInner, u32, Offset) -> u64,
    ) -> Result<u64> {
        let (now, mut sum) = (self.clock.now(), 0);
        for ((partition, part), store) in group.parts().zip(self.stores()) {
            if !is_meant(partition) {
                continue;
            }
            let mut inner = part.inner.lock();
            let next = store.next()?;
            sum += change(&mut inner, partition, next);
            inner.cursor = Cursor::default();
            inner.forget_details();
            self.after(group, partition, part, &mut inner, now)?;
        }
        // What it meets again may have expired meanwhile.
        self.look_for_old_now();
        group.wake();
        Ok(sum)
    }

    pub(crate) fn partition(&self, partition: u32) -> Result<()> {
        let partitions = self.partition_count();
        if partition < partitions {
            return Ok(());
        }
        let name = self.name();
        Err(QueueError::invalid(format!(
            "queue {name} has partitions 0 to {}, not {partition}",
            partitions.saturating_sub(1)
        )))
    }

    /// Messages as they lie there, from `from` or the oldest on, without handing them out.
    pub async fn browse(
        self: &Arc<Queue>,
        partition: Option<u32>,
        from: Option<Offset>,
        limit: usize,
    ) -> Result<Vec<(u32, Message)>> {
        let browsed = self.browse_within(partition, from, limit, usize::MAX).await?;
        Ok(browsed.messages)
    }

    /// The same, but no more than `bytes_max` bytes, or one message that is larger: what is read is in memory.
    pub async fn browse_within(
        self: &Arc<Queue>,
        partition: Option<u32>,
        from: Option<Offset>,
        limit: usize,
        bytes_max: usize,
    ) -> Result<BrowsePage> {
        if let Some(partition) = partition {
            self.partition(partition)?;
        }
        self.shed_kept().await;
        let stores = self.stores();
        let chosen: Vec<(u32, Arc<MessageStore>)> = (0..)
            .zip(stores)
            .filter(|(n, _)| partition.is_none_or(|only| only == *n))
            .collect();
        // Of dead letters, not those that were sent again or thrown away.
        let dropped = self.dropped.lock().clone();
        let read = tokio::task::spawn_blocking(move || {
            let (mut found, mut unreadable, mut bytes) = (Vec::new(), None, 0);
            let has_room = |found: &Vec<(u32, Message)>, bytes: usize| found.len() < limit && bytes < bytes_max;
            for (partition, store) in chosen {
                let mut from = from.unwrap_or(0).max(store.first()?);
                while has_room(&found, bytes) {
                    let messages = match read_from(&store, from, limit - found.len(), bytes_max - bytes) {
                        Ok(messages) => messages,
                        // What stood before it is given, and another partition may be whole.
                        Err(error) => {
                            unreadable = Some(error);
                            break;
                        }
                    };
                    let Some(last) = messages.last() else { break };
                    from = last.offset + 1;
                    let there = messages.into_iter().filter(|message| !dropped.contains(message.offset));
                    for message in there {
                        bytes += message.bytes();
                        found.push((partition, message));
                    }
                }
            }
            match unreadable.filter(|_| found.is_empty()) {
                Some(error) => Err(error),
                None => Ok(BrowsePage {
                    is_end: has_room(&found, bytes),
                    messages: found,
                }),
            }
        });
        Ok(read.await.unwrap_or(Err(LogError::Closed))?)
    }

    /// Messages that consumers took and will not work on: ready for others at once, and as if never delivered if they have
    /// not left the process.
    pub fn give_back(&self, group: &Group, receipts: &[Receipt], unsent: bool) -> Result<()> {
        let now = self.clock.now();
        for receipt in receipts {
            let Some(part) = group.part(receipt.id.partition) else {
                continue;
            };
            let mut inner = part.inner.lock();
            if !self.is_current(group, &inner.state, receipt, ReceiptUse::Again) {
                continue;
            }
            match &mut inner.state {
                GroupState::Work(machine) => {
                    machine.release(receipt.id.offset, receipt.delivery, unsent);
                }
                // What was read and not acked is read again.
                GroupState::Stream(machine) => {
                    let _ = machine.nack(receipt.id.offset, 0, now);
                }
            }
            self.after(group, receipt.id.partition, part, &mut inner, now)?;
        }
        group.wake();
        Ok(())
    }

    /// A consumer leaves a group; what it has goes to others, unless its kind comes back for it.
    pub fn leave(&self, group: &Group, consumer: &str) {
        let now = self.clock.now();
        let left = {
            let mut members = group.members.lock();
            members.find(consumer).filter(|index| !members.leave(now, *index))
        };
        if let Some(index) = left {
            for (partition, part) in group.parts() {
                let mut inner = part.inner.lock();
                if let GroupState::Work(machine) = &mut inner.state {
                    machine.release_all(index);
                }
                if let Err(error) = self.after(group, partition, part, &mut inner, now) {
                    tracing::warn!(queue = %self.name(), %error, "what a consumer gave back cannot be stored");
                }
            }
        }
        self.look_by(group);
        group.wake();
    }

    /// Tasks of the queue end with the process; nothing else is taken from now on.
    pub fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Relaxed)
    }
}

/// Partitions, in their order; `None` are all.
type PartitionSelection = Option<Vec<u32>>;

fn is_meant(meant: &PartitionSelection, partition: u32) -> bool {
    meant
        .as_ref()
        .is_none_or(|meant| meant.binary_search(&partition).is_ok())
}

/// The first message that was appended at `time` or later.
async fn at_time(store: Arc<MessageStore>, time: Micros) -> Result<Offset> {
    let found = tokio::task::spawn_blocking(move || {
        let mut from = store.offset_at(time)?.max(store.first()?);
        // The frame that may have it begins earlier.
        loop {
            let messages = read_from(&store, from, 1000, LOOK_BYTES)?;
            let Some(last) = messages.last() else {
                return Ok(from);
            };
            if let Some(message) = messages.iter().find(|message| message.time >= time) {
                return Ok(message.offset);
            }
            from = last.offset + 1;
        }
    });
    Ok(found.await.unwrap_or(Err(LogError::Closed))?)
}

/// No more messages than that, nor, but for the last one, more bytes. Reads the disk if need be. Ends before what is damaged;
/// who begins there gets the error.
pub(crate) fn read_from(
    store: &MessageStore,
    from: Offset,
    limit: usize,
    mut bytes: usize,
) -> std::result::Result<Vec<Message>, LogError> {
    let (mut cursor, mut at, mut found) = (Cursor::default(), from, Vec::new());
    while found.len() < limit && bytes > 0 {
        match store.at(&mut cursor, at) {
            Ok(NextMessage::Message(message, _)) => {
                at = message.offset + 1;
                bytes = bytes.saturating_sub(message.bytes());
                found.push(message);
            }
            Ok(NextMessage::Gap { to, .. }) => at = to,
            Ok(NextMessage::Load) => match store.load(at) {
                Ok(loaded) => cursor = loaded,
                Err(_) if !found.is_empty() => break,
                Err(error) => return Err(error),
            },
            Ok(NextMessage::End) => break,
            Err(_) if !found.is_empty() => break,
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

fn only_streams(group: &Group, what: &str) -> QueueError {
    QueueError::invalid(format!(
        "group {} has mode work, in which messages are settled, not {what}; use mode stream",
        group.name()
    ))
}
