//! Messages that come with their places. Nothing is numbered meanwhile: a place may be any that is free.

use std::collections::HashSet;
use std::sync::Arc;

use thalweg_log::format::record::RecordRef;
use thalweg_log::{LogError, Records, Unit};

use super::index::{Entry, Index};
use super::namespace::EmbeddedNamespace;
use crate::error::{EventsError, Result};
use crate::event::{EventRef, IdRef};
use crate::id::MessageId;
use crate::store::Import;

/// Lets go of the sequencer however the import ends.
struct Held<'a>(&'a EmbeddedNamespace);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.sequencer.lock().release();
        self.0.ended.notify_waiters();
    }
}

impl EmbeddedNamespace {
    /// Returns when nothing is on its way, and sees that nothing is until it is dropped.
    async fn hold(&self) -> Held<'_> {
        self.sequencer.lock().hold();
        let held = Held(self);
        loop {
            let mut ended = std::pin::pin!(self.ended.notified());
            ended.as_mut().enable();
            if self.sequencer.lock().is_settled() {
                return held;
            }
            ended.await;
        }
    }

    pub(super) async fn import_batch(self: &Arc<Self>, batch: &[Import]) -> Result<()> {
        let _alone = self.importing.lock().await;
        let _held = self.hold().await;
        self.index.write().sort();
        let submitted = {
            let mut sequencer = self.sequencer.lock();
            let index = self.index.read();
            all_free(batch, &index)?;
            let (mut records, mut value) = (Records::new(), Vec::new());
            let mut entries = Vec::with_capacity(batch.len());
            let now_ms = ((self.clock)() / 1000).unsigned_abs();
            for (import, offset) in batch.iter().zip(sequencer.next_offset..) {
                let own = match import.id {
                    Some(_) => None,
                    None => Some(sequencer.new_id(now_ms)?),
                };
                let event = EventRef {
                    id: match (&import.id, own) {
                        (Some(id), _) => IdRef::from(id),
                        (None, own) => IdRef::Uuid(own.unwrap_or_default()),
                    },
                    own_id: own.is_some(),
                    stream: &import.stream,
                    position: import.position,
                    global: import.global,
                    kind: &import.kind,
                    data: &import.data,
                    metadata: import.metadata.as_deref(),
                    time: import.time,
                };
                value.clear();
                event.encode(&mut value);
                records.push(&RecordRef::of(import.time, &value))?;
                entries.push(Entry::of(&event, sequencer.name(&import.stream, &index), offset));
            }
            drop(index);
            let unit = Unit::of(self.partition, records.expecting(sequencer.next_offset));
            sequencer.submitted_import(entries);
            self.begin(sequencer, unit)
        };
        submitted.await.map_err(|error| match error {
            LogError::OffsetTaken { .. } => EventsError::Damaged(error.to_string()),
            other => other.into(),
        })
    }

    pub(super) async fn remove_all(self: &Arc<Self>) -> Result<()> {
        let _alone = self.importing.lock().await;
        let _held = self.hold().await;
        let next = self.log.bounds(self.partition)?.next;
        self.log.trim(self.partition, next)?;
        self.log.flush(&[self.partition]).await?;
        let mut sequencer = self.sequencer.lock();
        sequencer.cleared();
        *self.index.write() = Index::from_offset(next);
        self.visible.send_modify(|visible| {
            (visible.last, visible.change, visible.cleared) = (0, visible.change + 1, visible.cleared + 1);
        });
        Ok(())
    }
}

/// Whether nobody has the places and ids, in the namespace or in the batch.
fn all_free(batch: &[Import], index: &Index) -> Result<()> {
    let (mut globals, mut positions, mut ids) = (HashSet::new(), HashSet::new(), HashSet::<&MessageId>::new());
    for (import, record) in batch.iter().zip(0..) {
        let (stream, position, global) = (import.stream.as_str(), import.position, import.global);
        let taken = |what: String| Err(EventsError::Taken { what, record });
        if index.has_global(global) || !globals.insert(global) {
            return taken(format!("global position already exists: {global}"));
        }
        if index.has_position(stream, position) || !positions.insert((stream, position)) {
            return taken(format!("position {position} of stream {stream} already exists"));
        }
        if let Some(id) = &import.id
            && (index.id(id).is_some() || !ids.insert(id))
        {
            return taken(format!("message id already exists: {id}"));
        }
    }
    Ok(())
}
