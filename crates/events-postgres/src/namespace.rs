//! A namespace as this server knows it: its cached state and its calls.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;
use thalweg_events::{
    Append, AppendOutcome, BoxFuture, CategoryInfo, CategoryRead, Document, EventsError, ExpectedVersion, ImportRecord,
    MessageId, Namespace, NamespaceInfo, NamespaceWatermark, Page, Result, Retention, RetentionTarget, StoredEvent,
    StreamInfo, StreamRead,
};
use thalweg_kit::clock::Clock;
use tokio::sync::{mpsc, oneshot, watch};

use crate::append::{self, QUEUE, QueuedAppend};
use crate::columns;
use crate::connection_pool::ConnectionPool;
use crate::tokens::TokenRow;

pub(crate) struct NamespaceIdentity {
    /// The id of its row; never reused.
    pub id: i64,
    pub name: String,
}

pub(crate) struct PostgresNamespace {
    pub identity: Arc<NamespaceIdentity>,
    pub links: Arc<ConnectionPool>,
    pub seen: Arc<WatermarkTracker>,
    pub tokens: Mutex<TokenCache>,
    queue: mpsc::Sender<QueuedAppend>,
}

/// The tokens of a namespace as of the last read.
#[derive(Default)]
pub(crate) struct TokenCache {
    pub tokens: Option<Arc<Vec<TokenRow>>>,
    /// Increases with each reported change of the tokens.
    pub change: u64,
}

/// How far the namespace can be read, as far as this server knows.
pub(crate) struct WatermarkTracker(Mutex<WatermarkState>);

struct WatermarkState {
    visible: NamespaceWatermark,
    /// `None` once the namespace is deleted.
    sender: Option<watch::Sender<NamespaceWatermark>>,
}

impl WatermarkTracker {
    pub fn new(last: i64, change: i64, cleared: i64) -> WatermarkTracker {
        let visible = NamespaceWatermark::default().then(
            columns::unsigned(last),
            columns::unsigned(change),
            columns::unsigned(cleared),
        );
        WatermarkTracker(Mutex::new(WatermarkState {
            visible,
            sender: Some(watch::Sender::new(visible)),
        }))
    }

    /// Reports the result of a commit. Reports may arrive in any order; the newest wins.
    pub fn tell(&self, last: i64, change: i64, cleared: i64) {
        let mut state = self.0.lock();
        let visible = state.visible.then(
            columns::unsigned(last),
            columns::unsigned(change),
            columns::unsigned(cleared),
        );
        if visible.change <= state.visible.change {
            return;
        }
        state.visible = visible;
        if let Some(sender) = &state.sender {
            sender.send_replace(visible);
        }
    }

    pub fn end(&self) {
        self.0.lock().sender = None;
    }

    pub fn is_ended(&self) -> bool {
        self.0.lock().sender.is_none()
    }

    fn subscribe(&self) -> watch::Receiver<NamespaceWatermark> {
        let state = self.0.lock();
        match &state.sender {
            Some(sender) => sender.subscribe(),
            None => watch::channel(state.visible).1,
        }
    }
}

impl PostgresNamespace {
    pub fn new(
        identity: NamespaceIdentity,
        links: &Arc<ConnectionPool>,
        seen: WatermarkTracker,
    ) -> Arc<PostgresNamespace> {
        let (queue, waiting) = mpsc::channel(QUEUE);
        let (identity, seen) = (Arc::new(identity), Arc::new(seen));
        tokio::spawn(append::commit_all(
            links.clone(),
            identity.clone(),
            seen.clone(),
            waiting,
        ));
        Arc::new(PostgresNamespace {
            identity,
            links: links.clone(),
            seen,
            tokens: Mutex::default(),
            queue,
        })
    }

    pub fn not_found(&self) -> EventsError {
        EventsError::NamespaceNotFound(self.identity.name.clone())
    }

    async fn append_all(&self, appends: &[Append<'_>]) -> Result<Vec<AppendOutcome>> {
        let appends = append::wanted(appends)?;
        let (answer, answered) = oneshot::channel();
        let closed = || EventsError::Unavailable("the store is closed".to_owned());
        let sent = self.queue.send(QueuedAppend { appends, answer }).await;
        sent.map_err(|_| closed())?;
        answered.await.unwrap_or_else(|_| Err(closed()))
    }

    /// The tokens must be read again.
    pub fn forget_tokens(&self) {
        let mut cached = self.tokens.lock();
        cached.tokens = None;
        cached.change += 1;
    }
}

impl Namespace for PostgresNamespace {
    fn clock(&self) -> Arc<dyn Clock> {
        self.links.clock.clone()
    }

    fn name(&self) -> &str {
        &self.identity.name
    }

    fn append<'a>(&'a self, appends: &'a [Append<'a>]) -> BoxFuture<'a, Result<Vec<AppendOutcome>>> {
        Box::pin(self.append_all(appends))
    }

    fn import<'a>(&'a self, batch: &'a [ImportRecord]) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.import_batch(batch))
    }

    fn still_shown<'a>(&'a self, messages: &'a [StoredEvent]) -> BoxFuture<'a, Result<HashSet<u64>>> {
        Box::pin(self.shown_of(messages))
    }

    fn clear(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.clear_all())
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

    fn last<'a>(&'a self, stream: &'a str, kind: Option<&'a str>) -> BoxFuture<'a, Result<Option<StoredEvent>>> {
        Box::pin(self.last_of(stream, kind))
    }

    fn by_id<'a>(&'a self, id: &'a MessageId) -> BoxFuture<'a, Result<Option<StoredEvent>>> {
        Box::pin(self.message(id))
    }

    fn info(&self) -> BoxFuture<'_, Result<NamespaceInfo>> {
        Box::pin(self.info_now())
    }

    fn streams<'a>(&'a self, prefix: &'a str, cursor: &'a str, max: usize) -> BoxFuture<'a, Result<Vec<StreamInfo>>> {
        Box::pin(self.list_streams(prefix, cursor, max))
    }

    fn categories(&self) -> BoxFuture<'_, Result<Vec<CategoryInfo>>> {
        Box::pin(self.list_categories())
    }

    fn delete_stream<'a>(
        &'a self,
        stream: &'a str,
        expected: ExpectedVersion,
        tombstone: bool,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.remove_stream(stream, expected, tombstone))
    }

    fn set_retention<'a>(&'a self, of: RetentionTarget<'a>, rule: Option<Retention>) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.put_rule(of, rule))
    }

    fn retention<'a>(&'a self, of: RetentionTarget<'a>) -> BoxFuture<'a, Result<Option<Retention>>> {
        Box::pin(self.rule(of))
    }

    fn document<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Document>>> {
        Box::pin(self.get_document(name))
    }

    fn put_document<'a>(
        &'a self,
        name: &'a str,
        content: Option<&'a [u8]>,
        expected: u64,
    ) -> BoxFuture<'a, Result<Option<u64>>> {
        Box::pin(self.change_document(name, content, expected))
    }

    fn documents<'a>(&'a self, prefix: &'a str, cursor: &'a str, max: usize) -> BoxFuture<'a, Result<Vec<String>>> {
        Box::pin(self.list_documents(prefix, cursor, max))
    }

    fn watch(&self) -> watch::Receiver<NamespaceWatermark> {
        self.seen.subscribe()
    }
}
