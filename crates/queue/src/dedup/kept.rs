//! Where dedup-ids are kept over a restart: in a partition of the log beside each partition of messages, as long as their
//! window lasts. So a start knows the ids of messages that were settled and let go, and need not read those that are there.
//!
//! An id follows its message as soon as the offset is known, with the next block. A crash in between loses the ids of the
//! last blocks, but not their messages: what is let go is let go in a later block. So a start takes what is kept, and reads
//! the newest messages.

use thalweg_log::format::frame::Kind;
use thalweg_log::format::record::RecordRef;
use thalweg_log::{Micros, Offset};

use super::Place;
use crate::error::Result;
use crate::message::{DEDUP_ID, NewMessage};
use crate::queue::Queue;
use crate::recover::{damaged, each_record};
use crate::store::{Cursor, Next, Store};
use crate::times::micros;

/// An id is on disk a few blocks after its message, so messages are read that came so long before the newest: far more
/// than a task waits for its turn.
const BEHIND: Micros = 60_000_000;

impl Queue {
    pub(crate) fn keeps_ids(&self) -> bool {
        !self.is_in_memory() && !self.settings_now().dedup_window.is_zero()
    }

    /// Keeps the ids of messages of a partition that were just stored there. Nobody waits for it.
    pub(crate) fn keep_ids<'a>(
        &self,
        partition: u32,
        stored: impl Iterator<Item = (Offset, &'a NewMessage)>,
        at: Micros,
    ) {
        let ids = stored.filter_map(|(offset, message)| Some((offset, message.properties.as_ref().get(DEDUP_ID)?)));
        let mut ids = ids.peekable();
        if ids.peek().is_none() {
            return;
        }
        let kept = self.log.journal(self.ids_id(partition), Kind::State, &mut |records| {
            ids.by_ref().try_for_each(|(offset, id)| {
                let offset = offset.to_le_bytes();
                records.push(&RecordRef {
                    key: Some(id.as_bytes()),
                    ..RecordRef::of(at, &offset)
                })
            })
        });
        if let Err(error) = kept {
            tracing::warn!(queue = %self.name(), partition, %error, "dedup-ids are not kept: after a restart they count as new");
        }
    }

    /// Lets go of ids whose window has passed.
    pub(crate) fn trim_ids(&self) {
        let since = self.clock.now() - micros(self.settings_now().dedup_window);
        for partition in 0..self.partition_count() {
            let id = self.ids_id(partition);
            let trimmed = self.log.offset_at(id, since).and_then(|below| self.log.trim(id, below));
            if let Err(error) = trimmed {
                tracing::warn!(queue = %self.name(), partition, %error, "old dedup-ids cannot be let go");
            }
        }
    }

    /// The ids whose window has not passed. Blocks.
    pub(crate) fn restore_ids(&self) -> Result<()> {
        let since = self.clock.now() - micros(self.settings_now().dedup_window);
        let mut found = Vec::new();
        for (partition, store) in (0..).zip(&self.stores()) {
            self.ids_kept(partition, since, &mut found)?;
            ids_behind(partition, store, since, &mut found)?;
        }
        // As they came, over all partitions.
        found.sort_by_key(|(time, ..)| *time);
        let mut dedup = self.dedup.lock();
        for (time, id, place) in found {
            dedup.restore(time, &id, place);
        }
        Ok(())
    }

    fn ids_kept(&self, partition: u32, since: Micros, found: &mut Vec<(Micros, Box<str>, Place)>) -> Result<()> {
        let id = self.ids_id(partition);
        let from = self.log.offset_at(id, since)?.max(self.log.bounds(id)?.first);
        each_record(self.log.as_ref(), id, from, |record| {
            let (key, offset) = (std::str::from_utf8(record.key?).ok()?, record.value.try_into().ok()?);
            let offset = Offset::from_le_bytes(offset);
            found.push((record.time, key.into(), Place { partition, offset }));
            Some(())
        })?
        .ok_or_else(|| damaged(self, partition, "a dedup-id that was kept cannot be read"))
    }
}

/// Of the newest messages, whose ids may not have been kept yet.
fn ids_behind(partition: u32, store: &Store, since: Micros, found: &mut Vec<(Micros, Box<str>, Place)>) -> Result<()> {
    let (first, next) = (store.first()?, store.next()?);
    let Some(newest) = store.span_at(next.saturating_sub(1).max(first))? else {
        return Ok(());
    };
    let from = store.offset_at(since.max(newest.last_time - BEHIND))?;
    let (mut cursor, mut at) = (Cursor::default(), from.max(first));
    loop {
        match store.at(&mut cursor, at)? {
            Next::Message(message, _) => {
                let offset = message.offset;
                at = offset + 1;
                if let Some(id) = message.properties.as_ref().get(DEDUP_ID) {
                    found.push((message.time, id.into(), Place { partition, offset }));
                }
            }
            Next::Gap { to, .. } => at = to,
            Next::Load => cursor = store.load(at)?,
            Next::End => return Ok(()),
        }
    }
}
