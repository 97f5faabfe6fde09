//! Persistence of dedup-ids across restarts: each partition of messages has a partition of ids in the log, kept as long
//! as their window lasts. So a start knows the ids of messages that were settled and trimmed, without reading the
//! stored messages.
//!
//! An id is written with the next block after its message, as soon as the offset is known. A crash in between loses the
//! ids of the last blocks, but not their messages, because trims are in later blocks. So a start reads the stored ids
//! and the newest messages, and stores the ids that are missing, because those messages may be trimmed before the next
//! crash.
//!
//! A resent dead letter still shows its id to consumers, but does not count for the window: its producer knows when the
//! message was first stored, and may reuse the id when the window since then has passed.

use std::collections::HashSet;

use thalweg_log::format::frame::FrameKind;
use thalweg_log::format::record::{Properties, RecordRef};
use thalweg_log::{Log, Micros, Offset};

use super::{ENTRY_BYTES, ID_BYTES_MAX, IDS_MAX, MessagePosition};
use crate::error::Result;
use crate::identity::QueueIdentity;
use crate::message::{DEDUP_ID, NewMessage, RESENT};
use crate::message_times::micros;
use crate::queue::Queue;
use crate::recover::each_record;
use crate::store::{Cursor, MessageStore, NextMessage};

/// An id is on disk a few blocks after its message. A start therefore reads messages from this long before the newest;
/// that is far more than the delay of any task.
const ID_LAG: Micros = 60_000_000;

/// The log partitions with the dedup-ids of one queue.
struct StoredIds<'a> {
    identity: &'a QueueIdentity,
    log: &'a dyn Log,
}

impl StoredIds<'_> {
    /// Nothing waits for the write.
    fn journal<'i>(&self, partition: u32, ids: impl Iterator<Item = (Micros, Offset, &'i str)> + Clone) {
        if ids.clone().next().is_none() {
            return;
        }
        let kept = self
            .log
            .journal(self.identity.ids_id(partition), FrameKind::State, &mut |records| {
                ids.clone().try_for_each(|(at, offset, id)| {
                    let offset = offset.to_le_bytes();
                    records.push(&RecordRef {
                        key: Some(id.as_bytes()),
                        ..RecordRef::of(at, &offset)
                    })
                })
            });
        if let Err(error) = kept {
            tracing::warn!(
                queue = %self.identity.name, partition, %error,
                "dedup-ids cannot be stored: after a restart they count as new"
            );
        }
    }

    /// The first id that a start must load, given when the window began.
    fn first(&self, partition: u32, window_began: Micros) -> Result<Offset> {
        let id = self.identity.ids_id(partition);
        let bounds = self.log.bounds(id)?;
        let in_window = self.log.offset_at(id, window_began)?;
        Ok(in_window
            .max(bounds.next.saturating_sub(IDS_MAX as u64))
            .max(bounds.first))
    }

    /// Trims ids that no start must load.
    fn trim(&self, partition: u32, window_began: Micros) -> Result<()> {
        let below = self.first(partition, window_began)?;
        Ok(self.log.trim(self.identity.ids_id(partition), below)?)
    }

    fn trim_all(&self, partition: u32) -> Result<()> {
        let id = self.identity.ids_id(partition);
        Ok(self.log.trim(id, self.log.bounds(id)?.next)?)
    }

    /// Reads the ids of a partition. Returns the offsets of those whose messages are at `from_offset` or later.
    fn read(
        &self,
        partition: u32,
        window_began: Micros,
        from_offset: Offset,
        newest: &mut NewestIds,
    ) -> Result<HashSet<Offset>> {
        let (id, from) = (self.identity.ids_id(partition), self.first(partition, window_began)?);
        let mut kept = HashSet::new();
        each_record(self.log, id, from, |record| {
            let (key, offset) = (std::str::from_utf8(record.key?).ok()?, record.value.try_into().ok()?);
            let offset = Offset::from_le_bytes(offset);
            newest.add(record.time, key, MessagePosition { partition, offset });
            if offset >= from_offset {
                kept.insert(offset);
            }
            Some(())
        })?
        .ok_or_else(|| self.identity.damaged(partition, "a stored dedup-id cannot be read"))?;
        Ok(kept)
    }
}

impl Queue {
    pub(crate) fn keeps_ids(&self) -> bool {
        !self.is_in_memory() && !self.settings_now().dedup_window.is_zero()
    }

    fn stored_ids(&self) -> StoredIds<'_> {
        StoredIds {
            identity: &self.identity,
            log: self.log.as_ref(),
        }
    }

    fn window_began(&self) -> Micros {
        self.clock.now() - micros(self.settings_now().dedup_window)
    }

    /// Stores the ids of messages that were just stored. Nothing waits for the write.
    pub(crate) fn keep_ids<'a>(
        &self,
        partition: u32,
        stored: impl Iterator<Item = (Offset, &'a NewMessage)> + Clone,
        at: Micros,
    ) {
        self.stored_ids().journal(
            partition,
            stored.filter_map(|(offset, message)| Some((at, offset, id_of(&message.properties)?))),
        );
    }

    /// Forgets ids whose window has passed, and stored ids beyond what a start can load. This also covers queues
    /// without producers, because all queues share the memory for ids.
    pub(crate) fn trim_ids(&self) {
        self.dedup.forget(self.clock.now());
        if !self.keeps_ids() {
            return;
        }
        for partition in 0..self.partition_count() {
            if let Err(error) = self.stored_ids().trim(partition, self.window_began()) {
                tracing::warn!(queue = %self.name(), partition, %error, "old dedup-ids cannot be trimmed");
            }
        }
    }

    /// Forgets all ids because there is no window any more. The partitions stay for a later window.
    pub(crate) fn forget_ids(&self) {
        for partition in 0..self.partition_count() {
            if let Err(error) = self.stored_ids().trim_all(partition) {
                tracing::warn!(
                    queue = %self.name(), partition, %error,
                    "dedup-ids cannot be trimmed: a new window may still contain them"
                );
            }
        }
    }

    /// Restores the ids whose window has not passed. Blocks.
    pub(crate) fn restore_ids(&self) -> Result<()> {
        let mut newest = NewestIds::up_to(self.dedup.bytes_max());
        let stored = self.stored_ids();
        for (partition, store) in (0..).zip(&self.stores()) {
            let from = first_after(store, self.window_began())?;
            let mut kept = stored.read(partition, self.window_began(), from, &mut newest)?;
            let unkept: Vec<_> = ids_after(partition, store, from, &mut newest)?
                .into_iter()
                .filter(|(_, offset, _)| !kept.remove(offset))
                .collect();
            stored.journal(partition, unkept.iter().map(|(at, offset, id)| (*at, *offset, &**id)));
        }
        self.dedup.restore(newest);
        Ok(())
    }
}

/// The id that counts for deduplication.
fn id_of(properties: &Properties) -> Option<&str> {
    let properties = properties.as_ref();
    properties.get(DEDUP_ID).filter(|_| properties.get(RESENT).is_none())
}

/// The newest ids of all partitions, slightly more than can be kept at most.
pub(super) struct NewestIds {
    found: Vec<(Micros, Box<str>, MessagePosition)>,
    bytes: usize,
    ids_max: usize,
    bytes_max: usize,
}

impl NewestIds {
    /// As many ids as fit into this much memory.
    fn up_to(bytes: u64) -> NewestIds {
        let most = |limit: usize| usize::try_from(bytes).unwrap_or(usize::MAX).min(limit);
        NewestIds {
            found: Vec::new(),
            bytes: 0,
            ids_max: most(IDS_MAX * ENTRY_BYTES as usize) / ENTRY_BYTES as usize,
            bytes_max: most(ID_BYTES_MAX),
        }
    }

    /// Over all partitions.
    pub fn in_time_order(mut self) -> Vec<(Micros, Box<str>, MessagePosition)> {
        self.found.sort_by_key(|(time, ..)| *time);
        self.found
    }

    fn add(&mut self, time: Micros, id: &str, place: MessagePosition) {
        self.found.push((time, id.into(), place));
        self.bytes += id.len();
        if self.found.len() > 2 * self.ids_max || self.bytes > 2 * self.bytes_max {
            let older = self.found.len() / 2;
            self.found.select_nth_unstable_by_key(older, |(time, ..)| *time);
            self.found.drain(..older);
            self.bytes = self.found.iter().map(|(_, id, _)| id.len()).sum();
        }
    }
}

/// The first message whose id may not be stored yet.
fn first_after(store: &MessageStore, since: Micros) -> Result<Offset> {
    let (first, next) = (store.first()?, store.next()?);
    let last = store.span_at(next.saturating_sub(1).max(first))?;
    match last {
        Some(last) => Ok(store.offset_at(since.max(last.last_time - ID_LAG))?.max(first)),
        None => Ok(next),
    }
}

/// The ids of the newest messages, with their times and offsets.
fn ids_after(
    partition: u32,
    store: &MessageStore,
    from: Offset,
    newest: &mut NewestIds,
) -> Result<Vec<(Micros, Offset, Box<str>)>> {
    let (mut cursor, mut at, mut found) = (Cursor::default(), from, Vec::new());
    loop {
        match store.at(&mut cursor, at)? {
            NextMessage::Message(message, _) => {
                let offset = message.offset;
                at = offset + 1;
                if let Some(id) = id_of(&message.properties) {
                    newest.add(message.time, id, MessagePosition { partition, offset });
                    found.push((message.time, offset, id.into()));
                }
            }
            NextMessage::Gap { to, .. } => at = to,
            NextMessage::Load => cursor = store.load(at)?,
            NextMessage::End => return Ok(found),
        }
    }
}
