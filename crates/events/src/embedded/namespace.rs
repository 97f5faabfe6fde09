//! A namespace: a partition of the log and its index.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use thalweg_kit::blocking;
use thalweg_log::clock::Clock;
use thalweg_log::{Log, LogError, Micros, PartitionId};
use tokio::sync::{Notify, watch};

use super::backup::BackupTracker;
use super::catalog;
use super::counts::VisibleCounts;
use super::index::{
    DocumentAt, FrozenMemtable, IndexReadError, IndexReadResult, IndexRow, IndexView, Io, ListId, MergingIterator,
    NamespaceIndex, TableStore,
};
use super::memory_budget::{MemoryBudget, MemoryReservation};
use super::reader::RecordReader;
use super::rules::VisibilityRules;
use super::scavenge_marks::ScavengeMarks;
use super::sequencer::Sequencer;
use crate::error::{EventsError, Result};
use crate::event::StoredEvent;
use crate::id::MessageId;
use crate::limits;
use crate::store::{
    Append, AppendOutcome, BoxFuture, CategoryInfo, CategoryRead, Direction, Document, ExpectedVersion, ImportRecord,
    Namespace, NamespaceInfo, NamespaceWatermark, Page, PageWithGaps, Retention, RetentionTarget, StreamInfo,
    StreamPosition, StreamRead,
};

/// The wall clock, which provides the timestamps of messages.
pub(crate) type WallClock = Arc<dyn Fn() -> Micros + Send + Sync>;

/// What all namespaces share.
#[derive(Clone)]
pub(crate) struct StoreContext {
    pub log: Arc<dyn Log>,
    /// The log is in memory, so no call waits for a disk.
    pub in_memory: bool,
    pub clock: WallClock,
    pub table_store: Arc<TableStore>,
    pub backups: Arc<BackupTracker>,
    pub rule_memory: Arc<MemoryBudget>,
    pub namespace_memory: Arc<MemoryBudget>,
}

/// Overhead of a namespace without messages: its own allocations and its entries in the lists of the log and the
/// indexes.
const BESIDE_BYTES: usize = 1 << 10;

/// The attributes of a namespace.
#[derive(Clone, Debug)]
pub(crate) struct NamespaceAttributes {
    pub name: String,
    pub description: String,
    pub metadata: Option<String>,
    pub created_at: Micros,
}

pub(crate) struct EmbeddedNamespace {
    about: NamespaceAttributes,
    pub(super) number: u32,
    pub(super) partition: PartitionId,
    pub(super) place: StoreContext,
    pub(super) sequencer: Mutex<Sequencer>,
    /// Lock order: after the sequencer.
    pub(super) index: RwLock<NamespaceIndex>,
    /// What hides messages. Locked only to copy or change it.
    pub(super) rules: RwLock<Arc<VisibilityRules>>,
    pub(super) rule_room: MemoryReservation,
    /// The share of the attributes and tokens.
    pub(super) own_room: MemoryReservation,
    /// Scavenged messages that may still be in the log. Locked only to copy or change it.
    pub(super) marks: RwLock<Arc<ScavengeMarks>>,
    /// Locked while a rule changes, and while scavenging removes what rules hide.
    pub(super) ruling: Arc<tokio::sync::Mutex<()>>,
    /// Notified when the outcome of a submission is known.
    pub(super) ended: Notify,
    /// Locked by the single running import.
    pub(super) importing: tokio::sync::Mutex<()>,
    /// The last count of visible messages. Locked while counting.
    pub(super) counted: Arc<tokio::sync::Mutex<Option<Arc<VisibleCounts>>>>,
    #[cfg(test)]
    pub(super) holds: std::sync::atomic::AtomicU64,
    /// `None` once the namespace is deleted.
    visible: Mutex<Option<watch::Sender<NamespaceWatermark>>>,
}

/// Approximate memory of a namespace without messages and tokens.
pub(super) fn weight(name: &str, description: &str, metadata: Option<&str>) -> usize {
    // The lookup map has the name once more.
    let texts = 2 * name.len() + description.len() + metadata.map_or(0, str::len);
    size_of::<EmbeddedNamespace>() + BESIDE_BYTES + texts
}

impl NamespaceAttributes {
    pub fn weight(&self) -> usize {
        weight(&self.name, &self.description, self.metadata.as_deref())
    }
}

impl EmbeddedNamespace {
    /// A namespace whose index covers its whole partition.
    pub fn new(about: NamespaceAttributes, number: u32, place: &StoreContext, index: NamespaceIndex) -> Self {
        let visible = NamespaceWatermark {
            last: index.state.last_global,
            change: 0,
            cleared: index.state.generation(),
            hidden_at: 0,
        };
        EmbeddedNamespace {
            about,
            number,
            partition: catalog::partition(number),
            place: place.clone(),
            sequencer: Mutex::new(Sequencer::new(&index)),
            index: RwLock::new(index),
            rules: RwLock::default(),
            rule_room: MemoryReservation::of(place.rule_memory.clone()),
            own_room: MemoryReservation::of(place.namespace_memory.clone()),
            marks: RwLock::default(),
            ruling: Arc::default(),
            ended: Notify::new(),
            importing: tokio::sync::Mutex::default(),
            counted: Arc::default(),
            #[cfg(test)]
            holds: Default::default(),
            visible: Mutex::new(Some(watch::channel(visible).0)),
        }
    }

    /// Continues after what the index has now.
    pub fn settle(&self) {
        let mut sequencer = self.sequencer.lock();
        let index = self.index.write();
        *sequencer = Sequencer::new(&index);
        self.tell(&index);
    }

    pub fn about(&self) -> &NamespaceAttributes {
        &self.about
    }

    /// Ends all watches, and permanently stops appends.
    pub fn gone(&self) {
        self.sequencer.lock().hold();
        self.visible.lock().take();
        // Readers that still use the namespace must not block the creation of another.
        self.own_room.set(0);
        self.index.read().forsake();
        self.ended.notify_waiters();
    }

    pub fn is_gone(&self) -> bool {
        self.visible.lock().is_none()
    }

    pub fn freeze(&self) -> Option<Arc<FrozenMemtable>> {
        self.index.write().freeze()
    }

    /// Handles the outcome of a submission.
    pub(super) fn ended(&self, is_stored: bool) {
        let mut sequencer = self.sequencer.lock();
        let mut index = self.index.write();
        // A removed partition has no bounds.
        let next = self.place.log.bounds(self.partition);
        let next = next.map_or(index.state.next_offset, |bounds| bounds.next);
        let before = index.state.next_offset;
        sequencer.ended(is_stored, next, &mut index);
        if index.state.next_offset != before {
            self.tell(&index);
        }
        drop((index, sequencer));
        self.ended.notify_waiters();
    }

    /// Publishes the watermark. The caller holds the index lock, so changes are published in order.
    pub(super) fn tell(&self, index: &NamespaceIndex) {
        if let Some(visible) = &*self.visible.lock() {
            visible.send_modify(|visible| {
                *visible = visible.then(index.state.last_global, visible.change + 1, index.state.generation());
            });
        }
    }

    /// Runs the work at once if memory suffices, otherwise on a blocking thread.
    pub(super) async fn ask<T, W>(self: &Arc<Self>, work: W) -> Result<T>
    where
        T: Send + 'static,
        W: Fn(&EmbeddedNamespace, Io) -> IndexReadResult<T> + Send + 'static,
    {
        let (found, ()) = self.ask_owned((), move |namespace, (), io| work(namespace, io)).await?;
        Ok(found)
    }

    /// Like `ask`, for work with large owned data, which is returned with the result.
    pub(super) async fn ask_owned<T, O, W>(self: &Arc<Self>, owned: O, work: W) -> Result<(T, O)>
    where
        T: Send + 'static,
        O: Send + 'static,
        W: Fn(&EmbeddedNamespace, &O, Io) -> IndexReadResult<T> + Send + 'static,
    {
        match again_if_moved(|| work(self, &owned, self.now())) {
            Ok(found) => return Ok((found, owned)),
            Err(IndexReadError::Failed(error)) => return Err(error),
            Err(IndexReadError::OnDisk | IndexReadError::Moved) => {}
        }
        self.in_background(move |namespace| {
            let found = again_if_moved(|| work(namespace, &owned, Io::MayBlock))?;
            Ok((found, owned))
        })
        .await
    }

    pub(super) fn reading(&self, io: Io) -> RecordReader<'_> {
        RecordReader::new(self.place.log.as_ref(), self.partition, io)
    }

    /// Visits the rows of a list until `show` returns false.
    pub(super) fn walk(
        &self,
        of: &ListId,
        from: Option<u64>,
        direction: Direction,
        io: Io,
        show: &mut dyn FnMut(IndexRow) -> IndexReadResult<bool>,
    ) -> IndexReadResult<()> {
        let (view, moves) = self.view(of);
        let active = |of: &ListId, from, direction, max, out: &mut Vec<IndexRow>| {
            let index = self.index.read();
            match index.moves() == moves && !index.is_disordered(of) {
                true => index.copy(of, from, direction, max, out),
                false => return Err(IndexReadError::Moved),
            }
            Ok(())
        };
        let mut walk = MergingIterator::new(&view, of, from, direction, io, &active);
        while let Some(row) = walk.next()? {
            if !show(row)? {
                break;
            }
        }
        Ok(())
    }

    /// A view at a moment when the list is sorted.
    fn view(&self, of: &ListId) -> (IndexView, u64) {
        let index = self.index.read();
        if !index.is_disordered(of) {
            return (index.view(), index.moves());
        }
        drop(index);
        let mut index = self.index.write();
        index.sort();
        (index.view(), index.moves())
    }

    async fn document_named(self: &Arc<Self>, name: &str) -> Result<Option<Document>> {
        let name = name.to_owned();
        self.ask(move |namespace, io| {
            let at = namespace.document_at(&name, io)?;
            let Some(at) = at.filter(|at| !at.removed) else {
                return Ok(None);
            };
            let record = namespace.reading(io).record(at.offset)?;
            let content = record.and_then(|(value, _)| super::record::content(&value));
            Ok(content.map(|(content, revision)| Document { content, revision }))
        })
        .await
    }

    async fn document_names(self: &Arc<Self>, prefix: &str, cursor: &str, max: usize) -> Result<Vec<String>> {
        let (prefix, cursor) = (prefix.to_owned(), cursor.to_owned());
        self.in_background(move |namespace| namespace.documents_stored(&prefix, &cursor, max))
            .await
    }

    pub(super) fn rules(&self) -> Arc<VisibilityRules> {
        self.rules.read().clone()
    }

    /// The version of a stream; -1 without messages. Here and below, the index lock is not held while waiting for a
    /// disk.
    pub(super) fn version_stored(&self, stream: &str, io: Io) -> IndexReadResult<i64> {
        let (here, view) = {
            let index = self.index.read();
            let view = index.view();
            match index.version_here(&view, stream) {
                (here, true) => return Ok(here),
                (here, false) => (here, view),
            }
        };
        Ok(here.max(view.version_in_tables(stream, io)?))
    }

    pub(super) fn document_at(&self, name: &str, io: Io) -> IndexReadResult<Option<DocumentAt>> {
        let view = {
            let index = self.index.read();
            match index.document_here(name) {
                Some(at) => return Ok(Some(at)),
                None => index.view(),
            }
        };
        view.document_in_tables(name, io)
    }

    pub(super) fn documents_stored(&self, prefix: &str, cursor: &str, max: usize) -> IndexReadResult<Vec<String>> {
        let (found, view) = {
            let index = self.index.read();
            (index.documents_here(cursor.max(prefix), prefix), index.view())
        };
        view.documents(found, prefix, cursor, max)
    }

    pub(super) fn streams_stored(&self, prefix: &str, cursor: &str, max: usize) -> IndexReadResult<Vec<StreamInfo>> {
        let (found, view) = {
            let index = self.index.read();
            (index.streams_here(cursor.max(prefix), prefix, max + 1), index.view())
        };
        view.streams(found, prefix, cursor, max)
    }

    pub(super) fn categories_stored(&self) -> IndexReadResult<Vec<CategoryInfo>> {
        let (found, view) = {
            let index = self.index.read();
            (index.categories_here(), index.view())
        };
        view.categories(found)
    }

    /// Runs the work on a blocking thread.
    pub(super) async fn in_background<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Arc<EmbeddedNamespace>) -> IndexReadResult<T> + Send + 'static,
    ) -> Result<T> {
        let namespace = self.clone();
        let done = blocking::spawn(move || work(&namespace)).await;
        match done {
            Ok(Ok(found)) => Ok(found),
            Ok(Err(IndexReadError::Failed(error))) => Err(error),
            Ok(Err(IndexReadError::OnDisk | IndexReadError::Moved)) | Err(_) => {
                Err(EventsError::Unavailable("the index could not be read".to_owned()))
            }
        }
    }
}

/// Retries for a list that is moved while it is read.
const TRIES: usize = 100;

pub(super) fn again_if_moved<T>(work: impl Fn() -> IndexReadResult<T>) -> IndexReadResult<T> {
    for _ in 0..TRIES {
        match work() {
            Err(IndexReadError::Moved) => {}
            done => return done,
        }
    }
    Err(IndexReadError::Moved)
}

/// Maps a removed partition to a deleted namespace.
pub(super) fn or_gone(error: LogError, name: &str) -> EventsError {
    match error {
        LogError::NoPartition(_) => EventsError::NamespaceNotFound(name.to_owned()),
        other => other.into(),
    }
}

impl Namespace for Arc<EmbeddedNamespace> {
    fn clock(&self) -> Arc<dyn Clock> {
        self.place.log.clock()
    }

    fn name(&self) -> &str {
        &self.about.name
    }

    fn append<'a>(&'a self, appends: &'a [Append<'a>]) -> BoxFuture<'a, Result<Vec<AppendOutcome>>> {
        Box::pin(self.append_all(appends))
    }

    fn import<'a>(&'a self, batch: &'a [ImportRecord]) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.import_batch(batch))
    }

    fn clear(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.remove_all())
    }

    fn version<'a>(&'a self, stream: &'a str) -> BoxFuture<'a, Result<i64>> {
        Box::pin(self.version_of(stream))
    }

    fn read_stream<'a>(&'a self, read: StreamRead<'a>) -> BoxFuture<'a, Result<Page>> {
        Box::pin(self.page_of_stream(read))
    }

    fn read_category<'a>(&'a self, read: CategoryRead<'a>) -> BoxFuture<'a, Result<Page>> {
        Box::pin(self.page_of_category(read))
    }

    fn still_shown<'a>(&'a self, messages: &'a [StoredEvent]) -> BoxFuture<'a, Result<HashSet<u64>>> {
        Box::pin(self.shown_of(messages))
    }

    fn read_stream_with_gaps<'a>(&'a self, read: StreamRead<'a>) -> BoxFuture<'a, Result<PageWithGaps>> {
        Box::pin(self.stream_with_gaps(read))
    }

    fn read_category_with_gaps<'a>(&'a self, read: CategoryRead<'a>) -> BoxFuture<'a, Result<PageWithGaps>> {
        Box::pin(self.category_with_gaps(read))
    }

    fn may_lose(&self, category: &str) -> bool {
        self.rules().concern_some_of(category)
    }

    fn last<'a>(&'a self, stream: &'a str, kind: Option<&'a str>) -> BoxFuture<'a, Result<Option<StoredEvent>>> {
        Box::pin(async move {
            let types: Vec<String> = kind.map(str::to_owned).into_iter().collect();
            let mut from = None;
            // A page may end before a match was found.
            loop {
                let read = StreamRead {
                    stream,
                    from,
                    direction: Direction::Backward,
                    max: 1,
                    types: &types,
                };
                let mut page = self.page_of_stream(read).await?;
                match (page.events.pop(), page.next) {
                    (None, Some(next)) => from = Some(StreamPosition::Position(next)),
                    (found, _) => return Ok(found),
                }
            }
        })
    }

    fn by_id<'a>(&'a self, id: &'a MessageId) -> BoxFuture<'a, Result<Option<StoredEvent>>> {
        Box::pin(self.message_with_id(id))
    }

    fn info(&self) -> BoxFuture<'_, Result<NamespaceInfo>> {
        Box::pin(async {
            let (messages, streams, last_activity) = self.counts().await?;
            let about = self.about.clone();
            Ok(NamespaceInfo {
                name: about.name,
                description: about.description,
                metadata: about.metadata,
                created_at: about.created_at,
                messages,
                streams,
                last_activity,
            })
        })
    }

    fn streams<'a>(&'a self, prefix: &'a str, cursor: &'a str, max: usize) -> BoxFuture<'a, Result<Vec<StreamInfo>>> {
        Box::pin(self.visible_streams(prefix, cursor, max))
    }

    fn categories(&self) -> BoxFuture<'_, Result<Vec<CategoryInfo>>> {
        Box::pin(self.visible_categories())
    }

    fn delete_stream<'a>(
        &'a self,
        stream: &'a str,
        expected: ExpectedVersion,
        tombstone: bool,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.hide_stream(stream, expected, tombstone))
    }

    fn set_retention<'a>(&'a self, of: RetentionTarget<'a>, rule: Option<Retention>) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.set_rule(of, rule))
    }

    fn retention<'a>(&'a self, of: RetentionTarget<'a>) -> BoxFuture<'a, Result<Option<Retention>>> {
        Box::pin(std::future::ready(Ok(self.rules().of(of))))
    }

    fn document<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Document>>> {
        Box::pin(self.document_named(name))
    }

    fn put_document<'a>(
        &'a self,
        name: &'a str,
        content: Option<&'a [u8]>,
        expected: u64,
    ) -> BoxFuture<'a, Result<Option<u64>>> {
        Box::pin(async move {
            limits::check_document(name, content)?;
            self.store_document(name, content, expected).await
        })
    }

    fn documents<'a>(&'a self, prefix: &'a str, cursor: &'a str, max: usize) -> BoxFuture<'a, Result<Vec<String>>> {
        Box::pin(self.document_names(prefix, cursor, max))
    }

    fn watch(&self) -> watch::Receiver<NamespaceWatermark> {
        match &*self.visible.lock() {
            Some(visible) => visible.subscribe(),
            None => watch::channel(NamespaceWatermark::default()).1,
        }
    }
}
