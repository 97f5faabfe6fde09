//! Appends messages and documents: validates them, assigns positions, submits them to the log, and publishes them when
//! they are stored.

use std::collections::HashSet;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hashbrown::HashMap;
use parking_lot::MutexGuard;
use thalweg_log::format::frame::FrameKind;
use thalweg_log::format::record::RecordRef;
use thalweg_log::{LogError, Micros, Offset, Records, WriteBatch};

use super::import::SequencerHold;
use super::index::{DocumentAt, IndexEntry, IndexReadError, IndexView, Io, KeySpace, NamespaceIndex};
use super::namespace::{EmbeddedNamespace, or_gone};
use super::record::DocumentRef;
use super::rules::OWN;
use super::sequencer::{PendingEntries, Sequencer};
use crate::admission::{self, MessageContent};
use crate::error::{EventsError, Result};
use crate::event::{EventRef, IdRef, StoredEvent};
use crate::id::{MessageId, Uuid};
use crate::limits;
use crate::store::{Append, AppendOutcome, NewEvent};

/// A part of a submission ends at this size, because a message is read together with its frame.
pub(super) const PART_BYTES: usize = 16 << 10;
/// Overhead of a record beside the client's data.
const RECORD_BYTES: usize = 64;

/// The outcome of trying to submit an append.
pub(super) enum SubmitOutcome {
    /// Submitted to the log.
    Submitted(Submission, Vec<AppendOutcome>),
    /// It depends on a submission that is in progress.
    Wait,
    /// It depends on data on disk.
    Ask,
    /// Some ids may already exist, at these offsets, so this may be a retry.
    Known(Vec<Offset>),
}

/// The in-memory index and the tables at the same moment, because in-memory entries can become a table at any time.
struct IndexLookup<'a> {
    index: &'a NamespaceIndex,
    view: IndexView,
}

/// The state of a document, and the moment of the lookup.
pub(super) struct DocumentLookup {
    at: Option<DocumentAt>,
    next: Offset,
    flushed: u64,
}

/// The outcome of trying to put a document.
pub(super) enum PutDocumentOutcome {
    /// The document must be looked up again.
    Again,
    /// The document does not have the expected revision.
    Refused,
    Submitted(Submission, u64),
}

/// The result of looking up an append on disk. It is valid until another table is written or the namespace is cleared.
#[derive(Default)]
pub(super) struct DiskLookup {
    flushed: u64,
    space: Option<KeySpace>,
    versions: HashMap<String, i64>,
    ids: HashMap<MessageId, Vec<Offset>>,
    /// Offsets of messages whose ids only looked like the requested ones.
    others: HashSet<Offset>,
}

impl EmbeddedNamespace {
    pub(super) async fn append_all(self: &Arc<Self>, appends: &[Append<'_>]) -> Result<Vec<AppendOutcome>> {
        limits::check_append(appends)?;
        self.until_indexed().await?;
        let mut asked = DiskLookup::default();
        loop {
            // Register before checking, so that no completion is missed.
            let mut ended = std::pin::pin!(self.ended.notified());
            ended.as_mut().enable();
            match self.submit(appends, &asked)? {
                SubmitOutcome::Wait => ended.await,
                SubmitOutcome::Ask => self.ask_for(appends, &mut asked).await?,
                SubmitOutcome::Known(offsets) => {
                    let found = self.messages_at(offsets.clone()).await?;
                    let wanted: HashSet<MessageId> = given_ids(appends).cloned().collect();
                    asked
                        .others
                        .extend(offsets.into_iter().zip(&found).filter_map(|(offset, found)| {
                            let is_wanted = found
                                .as_ref()
                                .is_some_and(|found| wanted.contains(&found.event().id.into()));
                            (!is_wanted).then_some(offset)
                        }));
                    let found = found
                        .into_iter()
                        .flatten()
                        .map(|found| (MessageId::from(found.event().id), found));
                    let found = found.filter(|(id, _)| wanted.contains(id)).collect();
                    if let Some(places) = repeated(appends, &found)? {
                        return Ok(places);
                    }
                }
                SubmitOutcome::Submitted(submitted, places) => match submitted.await {
                    Ok(()) => return Ok(places),
                    // It was numbered after a submission that was refused.
                    Err(LogError::OffsetTaken { .. }) => {}
                    Err(error) => return Err(or_gone(error, &self.about().name)),
                },
            }
        }
    }

    /// Waits while so much is unindexed that a start would take long. Fails while no table can be written.
    pub(super) async fn until_indexed(&self) -> Result<()> {
        let table_store = &self.place.table_store;
        while table_store.is_behind() {
            let caught_up = table_store.caught_up.notified();
            if let Some(reason) = table_store.failing() {
                return Err(EventsError::Unavailable(reason));
            }
            if table_store.is_behind() {
                caught_up.await;
            }
        }
        Ok(())
    }

    /// Assigns positions and submits the messages to the log, if their streams have the expected versions.
    pub(super) fn submit(self: &Arc<Self>, appends: &[Append<'_>], asked: &DiskLookup) -> Result<SubmitOutcome> {
        let mut sequencer = self.sequencer.lock();
        if !sequencer.is_open() {
            return match self.is_gone() {
                true => Err(EventsError::NamespaceNotFound(self.about().name.clone())),
                false => Ok(SubmitOutcome::Wait),
            };
        }
        let index = self.index.read();
        let seen = IndexLookup {
            view: index.view(),
            index: &index,
        };
        let others = &asked.others;
        let asked =
            Some(asked).filter(|asked| (asked.flushed, asked.space) == (seen.view.flushed(), Some(index.space())));
        match self.ids_of(appends, &sequencer, &seen, asked, others)? {
            None => {}
            Some(looked) => return Ok(looked),
        }
        let mut versions = Vec::with_capacity(appends.len());
        for append in appends {
            match self.version_for(append, &sequencer, &seen, asked)? {
                Ok(version) => versions.push(version),
                Err(looked) => return Ok(looked),
            }
        }
        let counts = appends.iter().zip(&versions);
        let counts = counts.map(|(append, version)| (append.stream, *version, append.events.len()));
        admission::have_positions(counts, sequencer.next_global.saturating_sub(1))?;
        let mut numbering = SubmissionBuilder::new((self.place.clock)(), &mut sequencer);
        let mut places = Vec::with_capacity(appends.len());
        for (append, version) in appends.iter().zip(versions) {
            places.push(AppendOutcome {
                count: append.events.len() as u64,
                first_position: (version + 1) as u64,
                first_global: numbering.global,
                duplicate: false,
            });
            numbering.number(append, version, &index)?;
        }
        drop(index);
        let (unit, pending) = numbering.finish(self);
        sequencer.submitted(pending);
        Ok(SubmitOutcome::Submitted(self.begin(sequencer, unit, None), places))
    }

    /// What must be known about the given ids first; `None` if they are new.
    fn ids_of(
        &self,
        appends: &[Append<'_>],
        sequencer: &Sequencer,
        seen: &IndexLookup<'_>,
        asked: Option<&DiskLookup>,
        others: &HashSet<Offset>,
    ) -> Result<Option<SubmitOutcome>> {
        let mut known = Vec::new();
        for id in given_ids(appends) {
            if sequencer.has_pending_id(id) {
                return Ok(Some(SubmitOutcome::Wait));
            }
            let older = match asked.and_then(|asked| asked.ids.get(id)) {
                Some(older) => older.clone(),
                None => match seen.view.id_in_tables(id, self.now()) {
                    Ok(found) => found,
                    Err(IndexReadError::Failed(error)) => return Err(error),
                    Err(IndexReadError::OnDisk | IndexReadError::Moved) => return Ok(Some(SubmitOutcome::Ask)),
                },
            };
            let found = seen.index.id_here(&seen.view, id).into_iter().chain(older);
            known.extend(found.filter(|offset| !others.contains(offset)));
        }
        known.sort_unstable();
        known.dedup();
        Ok((!known.is_empty()).then_some(SubmitOutcome::Known(known)))
    }

    /// The version after which the append is numbered, if it is the expected one.
    fn version_for(
        &self,
        append: &Append<'_>,
        sequencer: &Sequencer,
        seen: &IndexLookup<'_>,
        asked: Option<&DiskLookup>,
    ) -> Result<std::result::Result<i64, SubmitOutcome>> {
        admission::takes_messages(append.stream, self.rules().is_tombstoned(append.stream))?;
        let older = asked.and_then(|asked| asked.versions.get(append.stream).copied());
        let stored = match older {
            Some(older) => match seen.index.version_here(&seen.view, append.stream) {
                (here, true) => here,
                (here, false) => here.max(older),
            },
            None => match seen.index.version(&seen.view, append.stream, self.now()) {
                Ok(version) => version,
                Err(IndexReadError::Failed(error)) => return Err(error),
                Err(IndexReadError::OnDisk | IndexReadError::Moved) => return Ok(Err(SubmitOutcome::Ask)),
            },
        };
        let version = sequencer.pending_version(append.stream).unwrap_or(stored);
        if append.expected.allows(version) {
            return Ok(Ok(version));
        }
        // A conflict is not reported while it depends on messages that are not stored yet.
        let may_fit = |version| append.expected.allows(version);
        if (stored..version).any(may_fit) {
            return Ok(Err(SubmitOutcome::Wait));
        }
        admission::has_version(append.stream, append.expected, stored)?;
        Ok(Ok(stored))
    }

    pub(super) fn now(&self) -> Io {
        if self.place.in_memory {
            Io::MayBlock
        } else {
            Io::MemoryOnly
        }
    }

    /// Looks up on disk what an append depends on.
    pub(super) async fn ask_for(self: &Arc<Self>, appends: &[Append<'_>], asked: &mut DiskLookup) -> Result<()> {
        let streams: Vec<String> = appends.iter().map(|append| append.stream.to_owned()).collect();
        let ids: Vec<MessageId> = given_ids(appends).cloned().collect();
        let found = self.in_background(move |namespace| {
            // Only tables are read, which do not change.
            let (view, space) = {
                let index = namespace.index.read();
                (index.view(), index.space())
            };
            let mut found = DiskLookup {
                flushed: view.flushed(),
                space: Some(space),
                ..DiskLookup::default()
            };
            for stream in streams {
                let version = view.version_in_tables(&stream, Io::MayBlock)?;
                found.versions.insert(stream, version);
            }
            for id in ids {
                let offsets = view.id_in_tables(&id, Io::MayBlock)?;
                found.ids.insert(id, offsets);
            }
            Ok(found)
        });
        let others = std::mem::take(&mut asked.others);
        *asked = DiskLookup { others, ..found.await? };
        Ok(())
    }

    /// An id is free again once its message is hidden or cleared.
    async fn messages_at(self: &Arc<Self>, offsets: Vec<Offset>) -> Result<Vec<Option<StoredEvent>>> {
        self.ask(move |namespace, io| {
            let (mut reading, mut hidden) = (namespace.reading(io), namespace.hidden());
            let cleared_at = namespace.index.read().state.cleared_at;
            let shown = |offset: &Offset| {
                if *offset < cleared_at || namespace.is_marked(*offset) {
                    return Ok(None);
                }
                let Some(found) = reading.message(*offset)? else {
                    return Ok(None);
                };
                let hides = hidden.hides(namespace, &found.event(), io)?;
                Ok((!hides).then_some(found))
            };
            offsets.iter().map(shown).collect()
        })
        .await
    }

    /// Submits what was just numbered while the sequencer is locked, because the log must get submissions in the order
    /// of their numbers.
    pub(super) fn begin(
        self: &Arc<Self>,
        sequencer: MutexGuard<'_, Sequencer>,
        unit: WriteBatch,
        held: Option<SequencerHold>,
    ) -> Submission {
        let log = self.place.log.clone();
        let mut submitted = Submission {
            namespace: Some(self.clone()),
            held,
            stored: Box::pin(async move { log.append(unit).await.map(drop) }),
        };
        let early = submitted.begin();
        drop(sequencer);
        if let Some(early) = early {
            submitted.finish(early.is_ok());
            submitted.stored = Box::pin(std::future::ready(early));
        }
        submitted
    }

    pub(super) async fn store_document(
        self: &Arc<Self>,
        name: &str,
        content: Option<&[u8]>,
        expected: u64,
    ) -> Result<Option<u64>> {
        // The engine's own documents are small.
        if !name.starts_with(OWN) {
            self.until_indexed().await?;
        }
        loop {
            let mut ended = std::pin::pin!(self.ended.notified());
            ended.as_mut().enable();
            let seen = self.look_at_document(name).await?;
            match self.put_document_as_seen(name, content, expected, &seen)? {
                PutDocumentOutcome::Refused => return Ok(None),
                // The document has changed or is changing. If the change is already indexed, there is nothing to wait
                // for.
                PutDocumentOutcome::Again if self.has_pending_document(name) => ended.await,
                PutDocumentOutcome::Again => tokio::task::yield_now().await,
                PutDocumentOutcome::Submitted(submitted, revision) => match submitted.await {
                    Ok(()) => return Ok(Some(revision)),
                    Err(LogError::OffsetTaken { .. }) => {}
                    Err(error) => return Err(or_gone(error, &self.about().name)),
                },
            }
        }
    }

    pub(super) async fn look_at_document(self: &Arc<Self>, name: &str) -> Result<DocumentLookup> {
        let name = name.to_owned();
        self.ask(move |namespace, io| {
            let (next, flushed) = {
                let index = namespace.index.read();
                (index.state.next_offset, index.view().flushed())
            };
            Ok(DocumentLookup {
                at: namespace.document_at(&name, io)?,
                next,
                flushed,
            })
        })
        .await
    }

    pub(super) fn put_document_as_seen(
        self: &Arc<Self>,
        name: &str,
        content: Option<&[u8]>,
        expected: u64,
        seen: &DocumentLookup,
    ) -> Result<PutDocumentOutcome> {
        let mut sequencer = self.sequencer.lock();
        if self.is_gone() {
            return Err(EventsError::NamespaceNotFound(self.about().name.clone()));
        }
        if !sequencer.is_open() || sequencer.has_pending_document(name) {
            return Ok(PutDocumentOutcome::Again);
        }
        let index = self.index.read();
        // A change since then is in memory, or in a table that was written since.
        if index.view().flushed() != seen.flushed || index.document_since(name, seen.next) {
            return Ok(PutDocumentOutcome::Again);
        }
        let current = seen.at.filter(|at| !at.removed).map_or(0, |at| at.revision);
        if current != expected {
            return Ok(PutDocumentOutcome::Refused);
        }
        drop(index);
        let document = DocumentRef {
            name,
            // Larger than every earlier revision, including those of a removed and forgotten document.
            revision: sequencer.next_offset + 1,
            content,
        };
        let (unit, pending) = self.unit_of(&document, sequencer.next_offset)?;
        sequencer.submitted(pending);
        Ok(PutDocumentOutcome::Submitted(
            self.begin(sequencer, unit, None),
            document.revision,
        ))
    }

    fn has_pending_document(&self, name: &str) -> bool {
        let sequencer = self.sequencer.lock();
        !sequencer.is_open() || sequencer.has_pending_document(name)
    }

    fn unit_of(&self, document: &DocumentRef<'_>, offset: Offset) -> Result<(WriteBatch, PendingEntries)> {
        let mut value = Vec::with_capacity(document.content.map_or(0, <[u8]>::len) + document.name.len() + 16);
        document.encode(&mut value);
        let mut records = Records::with_capacity(value.len() + RECORD_BYTES);
        records.push(&RecordRef::of((self.place.clock)(), &value))?;
        let pending = PendingEntries {
            bytes: records.bytes() as u64,
            entries: vec![IndexEntry::Document {
                name: document.name.into(),
                at: DocumentAt {
                    offset,
                    revision: document.revision,
                    removed: document.content.is_none(),
                },
            }],
            ..PendingEntries::default()
        };
        // Documents that hide messages help to free space and must be accepted on a full disk.
        let kind = match document.name.starts_with(OWN) {
            true => FrameKind::State,
            false => FrameKind::Data,
        };
        Ok((
            WriteBatch::default().and_of(kind, self.partition, records.expecting(offset)),
            pending,
        ))
    }
}

/// Assigns positions to messages and groups them into parts for the log.
struct SubmissionBuilder<'a> {
    now: Micros,
    sequencer: &'a mut Sequencer,
    first_offset: Offset,
    offset: Offset,
    global: u64,
    parts: Vec<Records>,
    records: Records,
    pending: PendingEntries,
    value: Vec<u8>,
}

impl<'a> SubmissionBuilder<'a> {
    fn new(now: Micros, sequencer: &'a mut Sequencer) -> SubmissionBuilder<'a> {
        SubmissionBuilder {
            now,
            first_offset: sequencer.next_offset,
            offset: sequencer.next_offset,
            global: sequencer.next_global,
            sequencer,
            parts: Vec::new(),
            records: Records::new(),
            pending: PendingEntries::default(),
            value: Vec::new(),
        }
    }

    fn number(&mut self, append: &Append<'_>, version: i64, index: &NamespaceIndex) -> Result<()> {
        let stream = self.sequencer.name(append.stream, index);
        if self.parts.is_empty() && self.records.is_empty() {
            let content: usize = append.events.iter().map(NewEvent::content_bytes).sum();
            let bytes = content + append.events.len() * (RECORD_BYTES + append.stream.len());
            self.records = Records::with_capacity(bytes.min(PART_BYTES + (PART_BYTES >> 2)));
        }
        for (event, position) in append.events.iter().zip((version + 1) as u64..) {
            let made = match &event.id {
                Some(_) => None,
                None => Some(new_id(self.now, self.offset, self.sequencer)?),
            };
            let event = EventRef {
                id: match (&event.id, &made) {
                    (Some(id), _) => IdRef::from(id),
                    (None, made) => IdRef::Uuid(made.unwrap_or_default().0),
                },
                own_id: made.is_some_and(|(_, says_where)| says_where),
                stream: append.stream,
                position,
                global: self.global,
                kind: event.kind,
                data: event.data,
                metadata: event.metadata,
                time: self.now,
                is_first: position == 0,
                is_imported: false,
            };
            self.value.clear();
            event.encode(&mut self.value);
            self.records.push(&RecordRef::of(self.now, &self.value))?;
            self.pending
                .entries
                .push(IndexEntry::of(&event, stream.clone(), self.offset));
            self.offset += 1;
            self.global += 1;
            if self.records.bytes() >= PART_BYTES {
                self.end_part();
            }
        }
        self.pending
            .ids
            .extend(append.events.iter().filter_map(|event| event.id.clone()));
        self.pending
            .streams
            .push((stream, version + append.events.len() as i64));
        Ok(())
    }

    fn end_part(&mut self) {
        let records = std::mem::take(&mut self.records);
        self.pending.bytes += records.bytes() as u64;
        self.parts.push(records);
    }

    fn finish(mut self, namespace: &EmbeddedNamespace) -> (WriteBatch, PendingEntries) {
        if !self.records.is_empty() {
            self.end_part();
        }
        let mut unit = WriteBatch::default();
        let mut expected = self.first_offset;
        for (records, n) in self.parts.into_iter().zip(0..) {
            let next = expected + records.len() as u64;
            // The other parts follow the first, or none of them is stored.
            let records = if n == 0 { records.expecting(expected) } else { records };
            unit = unit.and(namespace.partition, records);
            expected = next;
        }
        (unit, self.pending)
    }
}

/// A new id, and whether it encodes the offset of its message.
pub(super) fn new_id(now: Micros, offset: Offset, sequencer: &mut Sequencer) -> Result<(Uuid, bool)> {
    let (unix_ms, chance) = ((now / 1000).unsigned_abs(), sequencer.chance()?);
    match Uuid::made(unix_ms, offset, chance) {
        Some(id) => Ok((id, true)),
        None => {
            let other = Uuid::made(unix_ms, offset & ((1 << 48) - 1), chance);
            Ok((other.unwrap_or_default(), false))
        }
    }
}

fn given_ids<'a>(appends: &'a [Append<'_>]) -> impl Iterator<Item = &'a MessageId> {
    appends
        .iter()
        .flat_map(|append| append.events.iter().filter_map(|event| event.id.as_ref()))
}

/// The outcome of an append whose messages are stored already.
fn repeated(appends: &[Append<'_>], stored: &HashMap<MessageId, StoredEvent>) -> Result<Option<Vec<AppendOutcome>>> {
    let appends = appends.iter();
    let appends = appends.map(|append| (append.stream, append.events.iter().map(MessageContent::from)));
    admission::repeated(appends, |id| stored.get(id).map(StoredEvent::event))
}

/// A submission to the log. If the caller drops it, it is still completed in the background.
pub(super) struct Submission {
    /// `None` once the outcome is known.
    namespace: Option<Arc<EmbeddedNamespace>>,
    /// Keeps the sequencer closed until the outcome is known.
    held: Option<SequencerHold>,
    stored: Pin<Box<dyn Future<Output = std::result::Result<(), LogError>> + Send>>,
}

impl Submission {
    /// Submits to the log. Returns the reply if it is immediately available.
    fn begin(&mut self) -> Option<std::result::Result<(), LogError>> {
        let mut context = Context::from_waker(std::task::Waker::noop());
        match self.stored.as_mut().poll(&mut context) {
            Poll::Ready(answer) => Some(answer),
            Poll::Pending => None,
        }
    }

    fn finish(&mut self, is_stored: bool) {
        if let Some(namespace) = self.namespace.take() {
            namespace.ended(is_stored);
        }
        self.held = None;
    }
}

impl Future for Submission {
    type Output = std::result::Result<(), LogError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = self.stored.as_mut().poll(context);
        if let Poll::Ready(answer) = &polled {
            self.finish(answer.is_ok());
        }
        polled
    }
}

impl Drop for Submission {
    fn drop(&mut self) {
        let Some(namespace) = self.namespace.take() else { return };
        let stored = std::mem::replace(&mut self.stored, Box::pin(std::future::ready(Ok(()))));
        let held = self.held.take();
        // Without a runtime, the process is ending.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                namespace.ended(stored.await.is_ok());
                drop(held);
            });
        }
    }
}
