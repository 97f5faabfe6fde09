//! Operator actions on a queue: purge it, browse it, seek its groups, and read its status.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use thalweg_kit::blocking::{self, LONG_BYTES};
use thalweg_log::{LogError, Micros, Offset};

use crate::error::{QueueError, Result};
use crate::group::Group;
use crate::group_partition::{GroupPartitionInner, GroupState};
use crate::ids::Receipt;
use crate::message::Message;
use crate::queue::Queue;
use crate::settle::ReceiptUse;
use crate::store::{Cursor, MessageStore, NextMessage};

/// Approximate size of one read.
pub(crate) const LOOK_BYTES: usize = 8 << 20;

/// Where a group continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekTo {
    Earliest,
    Latest,
    /// In one partition, or in all of them.
    Offset {
        partition: Option<u32>,
        offset: Offset,
    },
    /// The first message appended at this wall-clock time or later.
    Time(Micros),
}

/// The result of [`Queue::browse_within`].
#[derive(Debug)]
pub struct BrowsePage {
    /// Each message with its partition.
    pub messages: Vec<(u32, Message)>,
    /// Whether no messages follow these.
    pub is_end: bool,
}

impl Queue {
    /// Drops all messages for all work groups, including leased ones. Stream groups move to the end. The change is
    /// durable on return. Returns the number of messages that the slowest group had not settled.
    pub async fn purge(self: &Arc<Queue>) -> Result<u64> {
        let seeking = self.groups.seek_alone().await;
        let dropped = self.depth();
        let groups = self.groups();
        blocking::work(LONG_BYTES, || self.purge_each(&groups))?;
        // Without groups, nothing else records that the messages are gone.
        if groups.is_empty() {
            let ends: thalweg_log::Result<Vec<Offset>> = self.stores().iter().map(|store| store.next()).collect();
            let ends = ends?;
            self.beside_the_disk(move |queue| {
                for (partition, end) in (0..).zip(ends) {
                    queue.trim_store(partition, end);
                }
            })
            .await;
            self.counters().purged.fetch_add(dropped, Ordering::Relaxed);
        }
        drop(seeking);
        // Trim even if the purge cannot be stored yet: the freed space makes room for it.
        self.trim_beside().await;
        self.wait_freeing().await?;
        self.admission.has_room();
        self.groups.wake();
        Ok(dropped)
    }

    /// Runs as blocking work, because groups may have millions of messages.
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
            self.counters().purged.fetch_add(purged, Ordering::Relaxed);
            group.counters.dropped.fetch_add(purged, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Sets the committed offset of a stream group in one partition. The change is durable on return.
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
        self.wait_for(&[self.identity.state_id(partition)]).await
    }

    /// Moves a group to another position. The change is durable on return.
    ///
    /// On a seek back, a work group gets every message from the target on again: leased messages with their next
    /// delivery number, all others with delivery 1. Messages before the target stay leased or waiting as they were. On
    /// a seek forward, or to the current position, all messages before the target are dropped, including leased and
    /// waiting ones.
    pub async fn seek(self: &Arc<Queue>, group: &Arc<Group>, to: SeekTo) -> Result<()> {
        let only = match to {
            SeekTo::Offset { partition, .. } => partition,
            _ => None,
        };
        if let Some(partition) = only {
            self.partition(partition)?;
        }
        let only = only.map(|partition| vec![partition]);
        let seeking = self.groups.seek_alone().await;
        let targets = self.targets(to).await?;
        // A seek back restarts delivery numbers, so old receipts must not match the new deliveries.
        let mut epoch = match self.goes_back(group, &only, &targets) {
            true => Some(self.next_epoch().await?),
            false => None,
        };
        let mut back = Vec::new();
        let mut dropped = self.seek_each(group, &only, &targets, epoch, &mut back)?;
        if !back.is_empty() {
            // Consumers have passed the target meanwhile.
            let left = Some(std::mem::take(&mut back));
            epoch = Some(self.next_epoch().await?);
            dropped += self.seek_each(group, &left, &targets, epoch, &mut back)?;
        }
        drop(seeking);
        self.counters().passed_over.fetch_add(dropped, Ordering::Relaxed);
        group.counters.dropped.fetch_add(dropped, Ordering::Relaxed);
        self.settled(group);
        match epoch {
            Some(_) => self.wait_for(&self.identity.state_ids(0..self.partition_count())).await,
            None => self.wait_freeing().await,
        }
    }

    /// The target of each partition.
    async fn targets(&self, to: SeekTo) -> Result<Vec<Offset>> {
        let stores = self.stores();
        let mut targets = Vec::with_capacity(stores.len());
        for store in &stores {
            targets.push(match to {
                SeekTo::Earliest => store.first()?,
                // Resolved when the seek runs.
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

    /// Moves the group to the targets, one atomic step per partition. Without an epoch for redelivered messages,
    /// partitions in which this would be a seek back are left unchanged and listed in `back`.
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
                    let is_ahead = target > machine.cursor();
                    let dropped = match is_ahead {
                        // A forward seek does not go beyond what was handed out past the cursor after an earlier seek
                        // back.
                        true => machine.purge(target),
                        false => {
                            machine.seek(target);
                            0
                        }
                    };
                    machine.set_epoch(epoch);
                    return dropped;
                }
                // This also applies at the cursor: the fate of a lease must not depend on whether anything is left to
                // claim.
                (GroupState::Work(machine), _) => return machine.purge(target),
            }
            0
        };
        // The change may pass over millions of messages.
        blocking::work(LONG_BYTES, || self.change_each(group, is_meant, change))
    }

    /// Returns the sum of the results of `change`.
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
        // Messages that become visible again may have expired meanwhile.
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

    /// Reads stored messages from `from`, or from the oldest, without leasing them.
    pub async fn browse(
        self: &Arc<Queue>,
        partition: Option<u32>,
        from: Option<Offset>,
        limit: usize,
    ) -> Result<Vec<(u32, Message)>> {
        let browsed = self.browse_within(partition, from, limit, usize::MAX).await?;
        Ok(browsed.messages)
    }

    /// Like [`Queue::browse`], but reads at most `bytes_max` bytes, or one larger message, because the result is held
    /// in memory.
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
        self.remove_expired_retained().await;
        let stores = self.stores();
        let chosen: Vec<(u32, Arc<MessageStore>)> = (0..)
            .zip(stores)
            .filter(|(n, _)| partition.is_none_or(|only| only == *n))
            .collect();
        // Skip dead letters that were resent or discarded.
        let dropped = self.letters.copy();
        let read = blocking::spawn(move || {
            let (mut found, mut unreadable, mut bytes) = (Vec::new(), None, 0);
            let has_room = |found: &Vec<(u32, Message)>, bytes: usize| found.len() < limit && bytes < bytes_max;
            for (partition, store) in chosen {
                let mut from = from.unwrap_or(0).max(store.first()?);
                while has_room(&found, bytes) {
                    let messages = match read_from(&store, from, limit - found.len(), bytes_max - bytes) {
                        Ok(messages) => messages,
                        // The messages before the damage are returned, and another partition may be intact.
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

    /// Returns leased messages that their consumers will not process. They are ready for other consumers at once. If
    /// they never left the process, the delivery is not counted.
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
                // Messages that were read and not acked are read again.
                GroupState::Stream(machine) => {
                    let _ = machine.nack(receipt.id.offset, 0, now);
                }
            }
            self.after(group, receipt.id.partition, part, &mut inner, now)?;
        }
        group.wake();
        Ok(())
    }

    /// Removes a consumer from its group. Its leases go to other consumers, unless its kind comes back for them.
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
                    tracing::warn!(queue = %self.name(), %error, "a consumer's released leases cannot be stored");
                }
            }
        }
        self.wake_timers_for_members(group);
        group.wake();
    }
}

/// Sorted partition numbers; `None` means all partitions.
type PartitionSelection = Option<Vec<u32>>;

fn is_meant(meant: &PartitionSelection, partition: u32) -> bool {
    meant
        .as_ref()
        .is_none_or(|meant| meant.binary_search(&partition).is_ok())
}

/// The offset of the first message appended at `time` or later.
async fn at_time(store: Arc<MessageStore>, time: Micros) -> Result<Offset> {
    let found = blocking::spawn(move || {
        let mut from = store.offset_at(time)?.max(store.first()?);
        // The frame that may contain it begins earlier.
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

/// Reads at most `limit` messages, and at most `bytes` bytes plus the last message. Reads from disk if necessary. Stops
/// before a damaged record; a read that begins there returns the error.
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
