//! Letting go: what every group has settled; in mode `policy`, what is beyond the limits of age, number and bytes; without
//! groups, whose time to live has passed.
//!
//! The limits are those of the queue, not of its partitions: what goes is the oldest of all of them, frame by frame as
//! they were stored, and never while the queue is within its limits. What a work group has not settled stays in any case.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use thalweg_log::{LogError, Micros, Offset, Result as LogResult};

use crate::group::Group;
use crate::group_partition::{GroupPartition, GroupState, NEVER};
use crate::queue::Queue;
use crate::settings::{QueueSettings, RetentionMode};
use crate::store::{Cursor, MessageStore, NextMessage, StoredSpan};
use crate::times::micros;

/// What cannot be read is tried again so much later.
const TRY_AGAIN: Micros = 60_000_000;
/// Settled messages of one partition in memory are let go in pieces of so many.
const FREE_AFTER: u64 = 256;

/// What a look at all that is kept came to.
struct TrimPlan {
    /// By partition: what stands before it may go.
    below: Vec<Offset>,
    /// When the next has to go, by age alone.
    due: Micros,
}

impl Queue {
    /// Lets go of what every group has settled, now.
    pub(crate) fn trim(&self) {
        // As they are now: one that was made a moment ago has use for what the others have settled.
        let groups = self.groups();
        if groups.is_empty() || self.settings_now().retention.mode == RetentionMode::Policy {
            return;
        }
        for partition in 0..self.partition_count() {
            if let Some(below) = needed(&groups, partition, |_| true) {
                self.trim_store(partition, below);
            }
        }
        self.has_room();
    }

    /// The same where others must not wait for a disk.
    pub(crate) async fn trim_beside(self: &Arc<Queue>) {
        self.beside_the_disk(|queue| queue.trim()).await;
    }

    /// Does what may have to read a disk on a thread for that. `None` where the process ends; what was to be done is then done
    /// at the next start.
    pub(crate) async fn beside_the_disk<T: Send + 'static>(
        self: &Arc<Queue>,
        work: impl FnOnce(&Arc<Queue>) -> T + Send + 'static,
    ) -> Option<T> {
        if self.is_in_memory() {
            return Some(work(self));
        }
        self.on_a_thread(work).await
    }

    /// Does what may take long on a thread on which nobody else waits. `None` where the process ends.
    pub(crate) async fn on_a_thread<T: Send + 'static>(
        self: &Arc<Queue>,
        work: impl FnOnce(&Arc<Queue>) -> T + Send + 'static,
    ) -> Option<T> {
        let queue = self.clone();
        tokio::task::spawn_blocking(move || work(&queue)).await.ok()
    }

    /// Blocks.
    pub(crate) fn trim_store(&self, partition: u32, below: Offset) {
        let Some(store) = self.store(partition) else { return };
        match self.trim_counted(store, below) {
            Ok(false) => return,
            Ok(true) => {}
            Err(error) => tracing::warn!(queue = %self.name(), %error, "what is not needed cannot be let go"),
        }
        if let Some(ages) = self.ages(partition) {
            ages.forget_before(below);
        }
        self.streams_begin(partition);
    }

    /// Lets go of what stands before `below`, and counts it, but for dead letters that were sent again or thrown away: they
    /// were counted then. Returns whether anything went. What goes may have to be looked up on a disk, under the lock
    /// `trimming` alone: producers must not wait for that, and no task may.
    fn trim_counted(&self, store: &MessageStore, below: Offset) -> LogResult<bool> {
        let _trimming = self.trimming.lock();
        let going = store.weigh(below)?;
        if going.count == 0 {
            return Ok(false);
        }
        let mut admission = self.admission.lock();
        // A letter that is thrown away at this moment is there and counted, or is not there.
        let mut dropped = self.has_letters.then(|| self.dropped.lock());
        let (count, bytes) = store.trim(going)?;
        let before = dropped.as_mut().map_or(0, |dropped| dropped.trim(below));
        admission.trimmed(count.saturating_sub(before), bytes);
        Ok(count > 0)
    }

    /// What is gone is in no stream's backlog.
    fn streams_begin(&self, partition: u32) {
        let Some(first) = self.store(partition).and_then(|store| store.first().ok()) else {
            return;
        };
        for group in self.groups_now().iter().filter(|group| !group.is_work()) {
            let Some(part) = group.part(partition).filter(|part| part.wants() < first) else {
                continue;
            };
            let mut inner = part.inner.lock();
            if let GroupState::Stream(machine) = &mut inner.state {
                machine.begins_at(first);
            }
            let _ = self.after(group, partition, part, &mut inner, self.clock.now());
        }
    }

    /// Counts the bytes anew, after a compaction has taken some from the middle. The queue is held still only until it is known
    /// how far it went at one moment: what was stored by then is looked up while producers go on, and what is let go meanwhile
    /// is added.
    pub(crate) async fn count_bytes(self: &Arc<Queue>) {
        let (ends, counted, trimmed) = {
            let _still = self.still().await;
            let ends: Vec<Offset> = self.stores().iter().map(|store| store.next().unwrap_or(0)).collect();
            let admission = self.admission.lock();
            (ends, admission.bytes, admission.trimmed_bytes)
        };
        self.beside_the_disk(move |queue| {
            let _trimming = queue.trimming.lock();
            let stores = queue.stores();
            let stored = stores.iter().zip(&ends).map(|(store, end)| store.bytes_before(*end));
            let stored: u64 = stored.filter_map(Result::ok).sum();
            let mut admission = queue.admission.lock();
            let stored = stored + (admission.trimmed_bytes - trimmed);
            let bytes = (admission.bytes + stored).saturating_sub(counted);
            admission.bytes_left(bytes);
        })
        .await;
        self.has_room();
    }

    /// What all groups have settled of a queue in memory goes as soon as it is worth it, so that its memory is used again
    /// while the processor still has it at hand.
    pub(crate) fn free_memory(&self, partition: u32, part: &GroupPartition) {
        let Some(store) = self.store(partition) else { return };
        let MessageStore::Memory(memory) = store.as_ref() else {
            return;
        };
        let enough = part.wants() >= memory.first_hint() + FREE_AFTER;
        if !enough || self.settings_now().retention.mode == RetentionMode::Policy {
            return;
        }
        // As they are under the lock: one that is made at this moment has use for what the others have settled.
        let mut admission = self.admission.lock();
        let parts = admission.groups.iter().filter_map(|group| group.part(partition));
        if let Some(below) = parts.map(|part| part.wants()).min() {
            let (count, bytes) = memory.trim(below);
            let before = match self.has_letters {
                true => self.dropped.lock().trim(below),
                false => 0,
            };
            admission.trimmed(count.saturating_sub(before), bytes);
        }
    }

    /// Lets go of what is beyond the limits of the queue, and returns when the next message will be.
    pub(crate) async fn retain(self: &Arc<Queue>) -> Micros {
        let settings = self.settings();
        let by_policy = settings.retention.mode == RetentionMode::Policy;
        if !by_policy && !self.groups_now().is_empty() {
            return NEVER;
        }
        // Indexes and messages may have to be read.
        let cuts = self.beside_the_disk(move |queue| queue.cuts(&settings)).await;
        let cuts = match cuts.unwrap_or(Err(LogError::Closed)) {
            Ok(cuts) => cuts,
            Err(error) => {
                tracing::warn!(queue = %self.name(), %error, "what is too old cannot be let go; trying again in a minute");
                return self.clock.now() + TRY_AGAIN;
            }
        };
        self.beside_the_disk(move |queue| {
            for (partition, below) in (0..).zip(cuts.below) {
                // A group may have gone back meanwhile.
                queue.trim_store(partition, below.min(queue.protected(partition)));
            }
        })
        .await;
        self.has_room();
        cuts.due
    }

    /// The first offset of a partition that no limit may take.
    fn protected(&self, partition: u32) -> Offset {
        let streams = self.settings_now().retention.protect_streams;
        let groups = self.groups_now();
        needed(&groups, partition, |group| group.is_work() || streams).unwrap_or(Offset::MAX)
    }

    fn cuts(&self, settings: &QueueSettings) -> LogResult<TrimPlan> {
        let (stores, now) = (self.stores(), self.clock.now());
        let mut heads = Vec::with_capacity(stores.len());
        for (partition, store) in (0..).zip(&stores) {
            heads.push(PartitionHead::of(partition, store, self.protected(partition))?);
        }
        let mut due = NEVER;
        let retention = &settings.retention;
        if retention.mode == RetentionMode::Policy {
            let stored = {
                let admission = self.admission.lock();
                admission.bytes.saturating_sub(admission.storing_bytes)
            };
            let kept: u64 = heads.iter().map(|head| head.end - head.at).sum();
            let mut over = LimitExcess {
                messages: beyond(kept, retention.max_messages),
                bytes: beyond(stored, retention.max_bytes),
                before: match retention.max_age.is_zero() {
                    true => Micros::MIN,
                    false => now - micros(retention.max_age),
                },
            };
            take_oldest(&mut heads, &mut over);
            let oldest = heads
                .iter()
                .filter_map(|head| head.span)
                .map(|span| span.last_time)
                .min();
            if let Some(oldest) = oldest.filter(|_| !retention.max_age.is_zero()) {
                due = oldest.saturating_add(micros(retention.max_age)).saturating_add(1);
            }
        }
        if self.groups_now().is_empty() {
            for head in &mut heads {
                due = due.min(head.pass_expired(now));
            }
        }
        for head in &mut heads {
            if let Some(error) = head.unreadable.take() {
                tracing::warn!(
                    queue = %self.name(), partition = head.partition, from = head.at, %error,
                    "it cannot be told how old messages are; they stay, and it is tried again in a minute"
                );
                due = due.min(now + TRY_AGAIN);
            }
        }
        Ok(TrimPlan {
            below: heads.iter().map(|head| head.at).collect(),
            due,
        })
    }
}

/// By how much a number is over its limit, if it has one.
fn beyond(number: u64, limit: u64) -> u64 {
    match limit {
        0 => 0,
        limit => number.saturating_sub(limit),
    }
}

/// The first offset of a partition that one of these groups has use for; `None` without such a group.
pub(crate) fn needed(groups: &[Arc<Group>], partition: u32, which: impl Fn(&Group) -> bool) -> Option<Offset> {
    let groups = groups.iter().filter(|group| which(group));
    groups.filter_map(|group| Some(group.part(partition)?.wants())).min()
}

/// By how much the queue is over its limits.
struct LimitExcess {
    messages: u64,
    bytes: u64,
    /// What was appended before it is too old.
    before: Micros,
}

impl LimitExcess {
    /// How many of the messages of a span have to go.
    fn of(&self, span: &StoredSpan) -> u64 {
        let messages = span.next - span.first;
        if span.last_time < self.before {
            return messages;
        }
        let for_bytes = match span.bytes {
            0 => 0,
            bytes if bytes <= self.bytes => messages,
            // They are about equal.
            bytes => (u128::from(messages) * u128::from(self.bytes)).div_ceil(u128::from(bytes)) as u64,
        };
        self.messages.max(for_bytes).min(messages)
    }
}

/// One partition, from its oldest message on.
struct PartitionHead<'a> {
    partition: u32,
    store: &'a MessageStore,
    /// What stands before it goes.
    at: Offset,
    /// What stands from there on stays in any case.
    limit: Offset,
    end: Offset,
    /// What begins there.
    span: Option<StoredSpan>,
    /// Why it is not known what begins there. The other partitions go on.
    unreadable: Option<LogError>,
}

impl<'a> PartitionHead<'a> {
    fn of(partition: u32, store: &'a MessageStore, limit: Offset) -> LogResult<PartitionHead<'a>> {
        let mut head = PartitionHead {
            partition,
            store,
            at: store.first()?,
            limit,
            end: store.next()?,
            span: None,
            unreadable: None,
        };
        head.look();
        Ok(head)
    }

    fn look(&mut self) {
        let end = self.limit.min(self.end);
        self.span = None;
        if self.at < end {
            match self.store.span_at(self.at) {
                Ok(span) => self.span = span.filter(|span| span.first < end),
                Err(error) => self.unreadable = Some(error),
            }
        }
        if let Some(span) = &mut self.span {
            // What is missing between the two went earlier.
            span.first = self.at;
        }
    }

    fn go_to(&mut self, offset: Offset) {
        self.at = offset.min(self.limit).min(self.end);
        self.look();
    }

    /// Goes on to the first message that may live, or cannot be read, and returns until when it may.
    fn pass_expired(&mut self, now: Micros) -> Micros {
        match self.first_alive(now) {
            Ok(until) => until,
            Err(error) => {
                self.unreadable = Some(error);
                NEVER
            }
        }
    }

    fn first_alive(&mut self, now: Micros) -> LogResult<Micros> {
        let mut cursor = Cursor::default();
        while self.at < self.end {
            match self.store.at(&mut cursor, self.at)? {
                NextMessage::Message(message, _) => match message.expires_at() {
                    Some(at) if at <= now => self.at = message.offset + 1,
                    at => return Ok(at.unwrap_or(NEVER)),
                },
                NextMessage::Gap { to, .. } => self.at = to,
                NextMessage::Load => cursor = self.store.load(self.at)?,
                NextMessage::End => break,
            }
        }
        Ok(NEVER)
    }
}

/// Passes the oldest messages of all partitions until nothing is over a limit, or all that is left is protected.
fn take_oldest(heads: &mut [PartitionHead<'_>], over: &mut LimitExcess) {
    let mut oldest: BinaryHeap<_> = heads
        .iter()
        .filter_map(|head| Some(Reverse((head.span?.time, head.partition))))
        .collect();
    while let Some(Reverse((_, partition))) = oldest.pop() {
        let Some((head, span)) = heads
            .get_mut(partition as usize)
            .and_then(|head| head.span.map(|span| (head, span)))
        else {
            continue;
        };
        let gone = over.of(&span);
        if gone == 0 {
            break;
        }
        let all = span.next - span.first;
        let bytes = u128::from(span.bytes) * u128::from(gone) / u128::from(all.max(1));
        over.messages = over.messages.saturating_sub(gone);
        over.bytes = over.bytes.saturating_sub(bytes as u64);
        head.go_to(span.first + gone);
        if gone == all {
            oldest.extend(head.span.map(|span| Reverse((span.time, partition))));
        }
    }
}
