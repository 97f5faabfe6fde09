//! Trimming: messages that every group has settled; in mode `policy`, messages beyond the limits of age, count and
//! bytes; without groups, messages whose time to live has passed.
//!
//! The limits apply to the queue, not to its partitions. The oldest messages of all partitions are removed first, frame
//! by frame as they were stored, and never while the queue is within its limits. Messages that a work group has not
//! settled always stay.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use parking_lot::Mutex;
use thalweg_kit::blocking;
use thalweg_log::{LogError, Micros, Offset, Result as LogResult};

use crate::group::Group;
use crate::group_partition::{GroupPartition, GroupState, NEVER};
use crate::message_times::micros;
use crate::queue::Queue;
use crate::settings::{QueueSettings, RetentionMode};
use crate::store::{Cursor, MessageStore, NextMessage, StoredSpan};

/// Delay before a failed read is retried.
const TRY_AGAIN: Micros = 60_000_000;
/// Settled messages of one partition in memory are freed in pieces of this size.
const FREE_AFTER: u64 = 256;

/// Held while messages stored in the log are trimmed, which may read a disk: no async task of a durable queue takes it.
/// Taken before the lock of the admission.
#[derive(Debug, Default)]
pub(crate) struct TrimLock(Mutex<()>);

/// The result of a scan of all retained messages.
struct TrimPlan {
    /// By partition: messages before this offset may be trimmed.
    below: Vec<Offset>,
    /// When the next message must be trimmed because of its age.
    due: Micros,
}

impl Queue {
    /// Trims what every group has settled.
    fn trim(&self) {
        // The current list: a group created a moment ago needs what the others have settled.
        let groups = self.groups();
        if groups.is_empty() || self.settings_now().retention.mode == RetentionMode::Policy {
            return;
        }
        for partition in 0..self.partition_count() {
            if let Some(below) = needed(&groups, partition, |_| true) {
                self.trim_store(partition, below);
            }
        }
        self.admission.has_room();
    }

    /// Like `trim`, without blocking the caller's thread on a disk.
    pub(crate) async fn trim_beside(self: &Arc<Queue>) {
        self.beside_the_disk(|queue| queue.trim()).await;
    }

    /// Runs work that may read a disk on a blocking thread. `None` if the process is stopping; the work is then done at
    /// the next start.
    pub(crate) async fn beside_the_disk<T: Send + 'static>(
        self: &Arc<Queue>,
        work: impl FnOnce(&Arc<Queue>) -> T + Send + 'static,
    ) -> Option<T> {
        if self.is_in_memory() {
            return Some(work(self));
        }
        self.on_a_thread(work).await
    }

    /// Runs long work on a blocking thread. `None` if the process is stopping.
    pub(crate) async fn on_a_thread<T: Send + 'static>(
        self: &Arc<Queue>,
        work: impl FnOnce(&Arc<Queue>) -> T + Send + 'static,
    ) -> Option<T> {
        let queue = self.clone();
        blocking::spawn(move || work(&queue)).await.ok()
    }

    /// Blocks.
    pub(crate) fn trim_store(&self, partition: u32, below: Offset) {
        let Some(store) = self.store(partition) else { return };
        match self.trim_counted(store, below) {
            Ok(false) => return,
            Ok(true) => {}
            Err(error) => tracing::warn!(
                queue = %self.name(), %error,
                "messages that are no longer needed cannot be trimmed"
            ),
        }
        if let Some(ages) = self.expiry.index(partition) {
            ages.forget_before(below);
        }
        self.streams_begin(partition);
    }

    /// Trims messages before `below` and counts them out, except resent or discarded dead letters, which were counted
    /// out then. Returns whether anything was trimmed. Weighing may read a disk and holds only the [`TrimLock`],
    /// because producers must not wait for it; no async task may call this.
    fn trim_counted(&self, store: &MessageStore, below: Offset) -> LogResult<bool> {
        let _trimming = self.trimming.0.lock();
        let going = store.weigh(below)?;
        if going.count == 0 {
            return Ok(false);
        }
        let mut admission = self.admission.lock();
        // So that a dead letter discarded at this moment is either present and counted, or neither.
        let mut dropped = self.letters.lock();
        let (count, bytes) = store.trim(going)?;
        let before = dropped.as_mut().map_or(0, |dropped| dropped.trim(below));
        admission.trimmed(count.saturating_sub(before), bytes);
        Ok(count > 0)
    }

    /// Removes trimmed messages from the backlogs of stream groups.
    fn streams_begin(&self, partition: u32) {
        let Some(first) = self.store(partition).and_then(|store| store.first().ok()) else {
            return;
        };
        for group in self.groups.now().iter().filter(|group| !group.is_work()) {
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

    /// Recounts the bytes after compaction removed some from the middle. The queue is quiesced only while the ends are
    /// noted. What was stored by then is counted while producers proceed, and what is trimmed meanwhile is added.
    pub(crate) async fn count_bytes(self: &Arc<Queue>) {
        let (ends, counted) = {
            let _still = self.admission.still().await;
            let ends: Vec<Offset> = self.stores().iter().map(|store| store.next().unwrap_or(0)).collect();
            let admission = self.admission.lock();
            (ends, admission.counted_bytes())
        };
        self.beside_the_disk(move |queue| {
            let _trimming = queue.trimming.0.lock();
            let stores = queue.stores();
            let stored = stores.iter().zip(&ends).map(|(store, end)| store.bytes_before(*end));
            let stored: u64 = stored.filter_map(Result::ok).sum();
            queue.admission.lock().recount(counted, stored);
        })
        .await;
        self.admission.has_room();
    }

    /// Frees what all groups of a queue in memory have settled as soon as it is worth it, so that the memory is reused
    /// while it is still in the CPU cache.
    pub(crate) fn free_memory(&self, partition: u32, part: &GroupPartition) {
        let Some(store) = self.store(partition) else { return };
        let MessageStore::Memory(memory) = store.as_ref() else {
            return;
        };
        let enough = part.wants() >= memory.first_hint() + FREE_AFTER;
        if !enough || self.settings_now().retention.mode == RetentionMode::Policy {
            return;
        }
        // The list under the lock: a group created at this moment needs what the others have settled.
        let mut admission = self.admission.lock();
        let parts = admission.groups().iter().filter_map(|group| group.part(partition));
        if let Some(below) = parts.map(|part| part.wants()).min() {
            let (count, bytes) = memory.trim(below);
            let before = self.letters.lock().map_or(0, |mut dropped| dropped.trim(below));
            admission.trimmed(count.saturating_sub(before), bytes);
        }
    }

    /// Trims what is beyond the limits of the queue, and returns when the next message will be.
    pub(crate) async fn retain(self: &Arc<Queue>) -> Micros {
        let settings = self.settings();
        let by_policy = settings.retention.mode == RetentionMode::Policy;
        if !by_policy && !self.groups.now().is_empty() {
            return NEVER;
        }
        // Indexes and messages may have to be read.
        let cuts = self.beside_the_disk(move |queue| queue.cuts(&settings)).await;
        let cuts = match cuts.unwrap_or(Err(LogError::Closed)) {
            Ok(cuts) => cuts,
            Err(error) => {
                tracing::warn!(
                    queue = %self.name(), %error,
                    "messages that are too old cannot be trimmed; retrying in a minute"
                );
                return self.clock.now() + TRY_AGAIN;
            }
        };
        self.beside_the_disk(move |queue| {
            for (partition, below) in (0..).zip(cuts.below) {
                // A group may have sought back meanwhile.
                queue.trim_store(partition, below.min(queue.protected(partition)));
            }
        })
        .await;
        self.admission.has_room();
        cuts.due
    }

    /// The first offset of a partition that no limit may remove.
    fn protected(&self, partition: u32) -> Offset {
        let streams = self.settings_now().retention.protect_streams;
        let groups = self.groups.now();
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
            let stored = self.admission.lock().stored_bytes();
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
        if self.groups.now().is_empty() {
            for head in &mut heads {
                due = due.min(head.pass_expired(now));
            }
        }
        for head in &mut heads {
            if let Some(error) = head.unreadable.take() {
                tracing::warn!(
                    queue = %self.name(), partition = head.partition, from = head.at, %error,
                    "the age of messages cannot be read; they stay, and it is retried in a minute"
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

/// By how much a number exceeds its limit, if it has one.
fn beyond(number: u64, limit: u64) -> u64 {
    match limit {
        0 => 0,
        limit => number.saturating_sub(limit),
    }
}

/// The first offset of a partition that one of these groups needs; `None` without such a group.
pub(crate) fn needed(groups: &[Arc<Group>], partition: u32, which: impl Fn(&Group) -> bool) -> Option<Offset> {
    let groups = groups.iter().filter(|group| which(group));
    groups.filter_map(|group| Some(group.part(partition)?.wants())).min()
}

/// By how much the queue exceeds its limits.
struct LimitExcess {
    messages: u64,
    bytes: u64,
    /// Messages appended before this are too old.
    before: Micros,
}

impl LimitExcess {
    /// How many messages of a span must be trimmed.
    fn of(&self, span: &StoredSpan) -> u64 {
        let messages = span.next - span.first;
        if span.last_time < self.before {
            return messages;
        }
        let for_bytes = match span.bytes {
            0 => 0,
            bytes if bytes <= self.bytes => messages,
            // Assumes messages of about equal size.
            bytes => (u128::from(messages) * u128::from(self.bytes)).div_ceil(u128::from(bytes)) as u64,
        };
        self.messages.max(for_bytes).min(messages)
    }
}

/// One partition, from its oldest message on.
struct PartitionHead<'a> {
    partition: u32,
    store: &'a MessageStore,
    /// Messages before this offset are trimmed.
    at: Offset,
    /// Messages from this offset on always stay.
    limit: Offset,
    end: Offset,
    /// The span that begins at `at`.
    span: Option<StoredSpan>,
    /// Why that span is unknown. The other partitions proceed.
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
            // Messages in between were removed earlier.
            span.first = self.at;
        }
    }

    fn go_to(&mut self, offset: Offset) {
        self.at = offset.min(self.limit).min(self.end);
        self.look();
    }

    /// Advances to the first message that has not expired or cannot be read, and returns when it expires.
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

/// Passes the oldest messages of all partitions until no limit is exceeded, or everything left is protected.
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
