//! Imports messages with their positions. Nothing is appended meanwhile, because an import can use any free position.

use std::collections::HashSet;
use std::sync::Arc;

use hashbrown::HashMap;
use thalweg_kit::blocking;
use thalweg_log::format::frame::FrameKind;
use thalweg_log::format::record::RecordRef;
use thalweg_log::{LogError, Offset, Records, WriteBatch};

use super::append::{PART_BYTES, new_id};
use super::index::{IndexEntry, IndexReadResult, Io, ListId, ListKind};
use super::namespace::{EmbeddedNamespace, or_gone};
use super::sequencer::PendingEntries;
use crate::admission::{ClaimedPart, ImportAdmission, ImportClaim};
use crate::error::{EventsError, Result};
use crate::event::{EventRef, IdRef};
use crate::id::MessageId;
use crate::limits;
use crate::store::{Direction, ImportRecord};

/// Keeps the sequencer closed until it is dropped.
pub(super) struct SequencerHold(Arc<EmbeddedNamespace>);

impl Drop for SequencerHold {
    fn drop(&mut self) {
        self.0.sequencer.lock().release();
        self.0.ended.notify_waiters();
    }
}

/// The index lookups for a message to be imported.
struct ImportKey {
    stream: Arc<str>,
    position: u64,
    global: u64,
    id: Option<MessageId>,
}

impl EmbeddedNamespace {
    /// Waits until no submission is in progress, and keeps the sequencer closed until the result is dropped.
    pub(super) async fn hold(self: &Arc<Self>) -> SequencerHold {
        #[cfg(test)]
        self.holds.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.sequencer.lock().hold();
        let held = SequencerHold(self.clone());
        loop {
            let mut ended = std::pin::pin!(self.ended.notified());
            ended.as_mut().enable();
            if self.sequencer.lock().is_settled() {
                return held;
            }
            ended.await;
        }
    }

    pub(super) async fn import_batch(self: &Arc<Self>, batch: &[ImportRecord]) -> Result<()> {
        limits::check_import(batch)?;
        if batch.is_empty() {
            return Ok(());
        }
        self.until_indexed().await?;
        let _alone = self.importing.lock().await;
        let held = self.hold().await;
        let mut names: HashMap<&str, Arc<str>> = HashMap::new();
        let asked: Vec<ImportKey> = batch
            .iter()
            .map(|import| ImportKey {
                stream: names
                    .entry(&import.stream)
                    .or_insert_with(|| import.stream.as_str().into())
                    .clone(),
                position: import.position,
                global: import.global,
                id: import.id.clone(),
            })
            .collect();
        let (mut empty, asked) = self
            .ask_owned(asked, |namespace, asked, io| namespace.all_free(asked, io))
            .await?;
        let submitted = {
            let mut sequencer = self.sequencer.lock();
            if self.is_gone() {
                return Err(EventsError::NamespaceNotFound(self.about().name.clone()));
            }
            let (mut unit, mut records, mut value) = (WriteBatch::default(), Records::new(), Vec::new());
            let mut pending = PendingEntries::default();
            let first = sequencer.next_offset;
            for ((import, asked), offset) in batch.iter().zip(&asked).zip(first..) {
                let made = match import.id {
                    Some(_) => None,
                    None => Some(new_id((self.place.clock)(), offset, &mut sequencer)?),
                };
                let event = EventRef {
                    id: match (&import.id, &made) {
                        (Some(id), _) => IdRef::from(id),
                        (None, made) => IdRef::Uuid(made.unwrap_or_default().0),
                    },
                    own_id: made.is_some_and(|(_, says_where)| says_where),
                    stream: &import.stream,
                    position: import.position,
                    global: import.global,
                    kind: &import.kind,
                    data: &import.data,
                    metadata: import.metadata.as_deref(),
                    time: import.time,
                    is_first: empty.remove(&asked.stream),
                    is_imported: true,
                };
                value.clear();
                event.encode(&mut value);
                records.push(&RecordRef::of(import.time, &value))?;
                pending
                    .entries
                    .push(IndexEntry::of(&event, asked.stream.clone(), offset));
                if records.bytes() >= PART_BYTES {
                    unit = self.with_part(unit, &mut records, first, &mut pending);
                }
            }
            if !records.is_empty() {
                unit = self.with_part(unit, &mut records, first, &mut pending);
            }
            sequencer.submitted(pending);
            self.begin(sequencer, unit, Some(held))
        };
        submitted.await.map_err(|error| match error {
            LogError::OffsetTaken { .. } => EventsError::Damaged(error.to_string()),
            other => or_gone(other, &self.about().name),
        })
    }

    fn with_part(
        &self,
        unit: WriteBatch,
        records: &mut Records,
        first: Offset,
        pending: &mut PendingEntries,
    ) -> WriteBatch {
        let part = std::mem::take(records);
        let is_first = pending.bytes == 0;
        pending.bytes += part.bytes() as u64;
        // The other parts follow the first, or none of them is stored.
        unit.and(self.partition, if is_first { part.expecting(first) } else { part })
    }

    /// Checks that all positions and ids are free, in the namespace and within the batch. Returns the streams that have
    /// no messages yet.
    fn all_free(&self, batch: &[ImportKey], io: Io) -> IndexReadResult<HashSet<Arc<str>>> {
        let mut versions: HashMap<&Arc<str>, i64> = HashMap::new();
        let last_global = self.index.read().state.last_global;
        // No stream is deleted meanwhile.
        let rules = self.rules();
        let streams = batch.iter().map(|asked| &*asked.stream);
        let mut admission = ImportAdmission::begin(streams, |stream| rules.is_tombstoned(stream))?;
        for asked in batch {
            let ImportKey {
                stream,
                position,
                global,
                id,
            } = asked;
            if !versions.contains_key(stream) {
                let version = self.version_stored(stream, io)?;
                versions.insert(stream, version);
            }
            let version = versions.get(stream).copied().unwrap_or(-1);
            let claim = ImportClaim {
                stream,
                position: *position,
                global: *global,
                id: id.as_ref(),
            };
            let is_stored = |part: ClaimedPart| -> IndexReadResult<bool> {
                Ok(match (part, id) {
                    (ClaimedPart::GlobalPosition, _) => {
                        *global <= last_global && self.has_row(&ListId::All, *global, io)?
                    }
                    (ClaimedPart::Position, _) => {
                        let list = || ListId::Of(ListKind::Stream, stream.to_string());
                        *position < rules.deleted_before(stream)
                            || *position as i64 <= version && self.has_row(&list(), *position, io)?
                    }
                    (ClaimedPart::Id, Some(id)) => self.stored_with_id(id, io)?.is_some(),
                    (ClaimedPart::Id, None) => false,
                })
            };
            admission.admit(claim, is_stored)?;
        }
        let empty = versions.into_iter().filter(|(_, version)| *version < 0);
        Ok(empty.map(|(stream, _)| stream.clone()).collect())
    }

    pub(super) fn has_row(&self, of: &ListId, ordinal: u64, io: Io) -> IndexReadResult<bool> {
        let mut found = false;
        self.walk(of, Some(ordinal), Direction::Forward, io, &mut |row| {
            found = row.ordinal == ordinal;
            Ok(false)
        })?;
        Ok(found)
    }

    /// Removes all messages. It completes even if the caller goes away.
    pub(super) async fn remove_all(self: &Arc<Self>) -> Result<()> {
        let namespace = self.clone();
        let removed = tokio::spawn(async move { namespace.remove_all_now().await });
        removed
            .await
            .unwrap_or_else(|_| Err(EventsError::Unavailable("the removal was interrupted".to_owned())))
    }

    async fn remove_all_now(self: &Arc<Self>) -> Result<()> {
        let _alone = self.importing.lock().await;
        let held = self.hold().await;
        if self.is_gone() {
            return Err(EventsError::NamespaceNotFound(self.about().name.clone()));
        }
        let documents = self.in_background(|namespace| namespace.documents_stored("", "", 1));
        let has_documents = !documents.await?.is_empty();
        let (submitted, offset) = {
            let mut sequencer = self.sequencer.lock();
            let offset = sequencer.next_offset;
            let mut records = Records::new();
            records.push(&RecordRef::of((self.place.clock)(), &super::record::cleared()))?;
            // It frees space and is accepted on a full disk.
            let unit = WriteBatch::default().and_of(FrameKind::State, self.partition, records.expecting(offset));
            sequencer.submitted(PendingEntries {
                entries: vec![IndexEntry::Cleared { offset }],
                ..PendingEntries::default()
            });
            (self.begin(sequencer, unit, Some(held)), offset)
        };
        submitted.await.map_err(|error| or_gone(error, &self.about().name))?;
        self.forget_deleted();
        // Documents are stored between the messages. If there are documents, or a backup may still read the messages,
        // scavenging frees the space later.
        if has_documents || self.place.backups.are_made() {
            return Ok(());
        }
        let namespace = self.clone();
        let trimmed = blocking::spawn(move || {
            // The log also has the removals of documents, which must be in the index before that part is trimmed.
            let place = &namespace.place;
            let is_written = || !place.table_store.is_on_disk() || namespace.index.read().is_written(offset);
            // Twice, if something is left from a failed attempt.
            for _ in 0..2 {
                if !is_written()
                    && let Err(error) = super::maintenance::flush(place, || vec![namespace.clone()], &|_| true)
                {
                    tracing::warn!(%error, "the space of cleared messages will be freed by the next scavenging only");
                    return Ok(());
                }
            }
            match is_written() {
                true => Ok(place.log.trim(namespace.partition, offset)?),
                false => Ok(()),
            }
        });
        trimmed.await.unwrap_or(Ok(()))
    }
}
