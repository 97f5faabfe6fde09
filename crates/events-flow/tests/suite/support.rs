//! An in-memory store, flows that use it, and an output that records messages and fails on request.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use tempfile::TempDir;
use thalweg_config::{Fields, LoadOptions, SourceText, load};
use thalweg_events::{
    Append, AppendOutcome, BoxFuture, CategoryInfo, CategoryRead, DEFAULT, Document, EmbeddedStore, EventsOptions,
    ExpectedVersion, Grant, Health, ImportRecord, MessageId, Namespace, NamespaceInfo, NamespaceWatermark, NewEvent,
    NewNamespace, NewToken, Page, Result, Retention, RetentionTarget, ScavengeReport, Scopes, Store, StoredEvent,
    StreamInfo, StreamRead, Token, TokenInfo, VerifyReport, new_token,
};
use thalweg_events_flow::SharedStore;
use thalweg_flow::{
    BuildContext, BuildError, ComponentRegistry, Flow, FlowEnvironment, FlowSpec, Output, OutputSpec, ParseContext,
    StopReport, WriteError,
};
use thalweg_log::clock::{Clock, SystemClock};
use thalweg_log::disk::RamDisk;
use thalweg_log::{Durability, EmbeddedLog, LogOptions};
use thalweg_record::Message;
use thalweg_telemetry::Metrics;
use tokio::sync::watch;

/// Longer than any step takes; reaching it fails the test.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct World {
    pub store: Arc<dyn Store>,
    pub deleted_after_read: DeletedAfterRead,
    shared: Arc<SharedStore>,
    registry: ComponentRegistry,
    pub kept: Kept,
    pub folder: TempDir,
    pub runtime: tokio::runtime::Runtime,
}

impl World {
    pub fn new() -> World {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let deleted_after_read = DeletedAfterRead::default();
        let store = runtime.block_on(in_memory(&deleted_after_read));
        let shared = Arc::new(SharedStore::default());
        let mut registry = ComponentRegistry::new();
        thalweg_events_flow::register(&mut registry, &shared);
        let kept = Kept::default();
        let of_output = kept.clone();
        registry.output("kept", "", move |node, context| {
            Fields::new(&node.body, context.diagnostics).finish();
            Some(Arc::new(of_output.clone()))
        });
        World {
            store,
            deleted_after_read,
            shared,
            registry,
            kept,
            folder: tempfile::tempdir().unwrap(),
            runtime,
        }
    }

    pub fn namespace(&self) -> Arc<dyn Namespace> {
        self.runtime.block_on(self.store.namespace(DEFAULT)).unwrap()
    }

    /// The mistakes in a configuration, as an operator reads them.
    pub fn check(&self, text: &str) -> String {
        self.parse(text).1
    }

    fn parse(&self, text: &str) -> (Option<FlowSpec>, String) {
        let text = text.replace("DIR", &self.folder.path().display().to_string());
        let loaded = load(&SourceText::new("t.yaml", text), &|_| None, &LoadOptions::default());
        let mut context = ParseContext::new(&loaded.diagnostics, &self.registry, &loaded.config);
        let flow = loaded.config.flows.first();
        let spec = flow.and_then(|flow| FlowSpec::parse(flow, &mut context));
        (spec, loaded.diagnostics.to_string())
    }

    pub fn start(&self, text: &str) -> Flow {
        let (spec, messages) = self.parse(text);
        assert_eq!(messages, "", "for {text}");
        assert!(self.shared.is_wanted());
        self.shared.open(self.store.clone(), 1 << 20);
        let environment = FlowEnvironment {
            metrics: Arc::new(Metrics::default()),
            data_dir: self.folder.path().to_owned(),
            runtime: self.runtime.handle().clone(),
            dead_letters: None,
        };
        let _guard = self.runtime.enter();
        Flow::start(spec.unwrap(), &environment).unwrap()
    }

    pub fn stop(&self, flow: Flow) -> StopReport {
        let handle = flow.handle();
        self.runtime.block_on(flow.stop(PATIENCE));
        handle.stop_report()
    }

    /// Runs a flow over these lines to its end.
    pub fn run(&self, lines: &[&str], output: &str) -> StopReport {
        std::fs::write(self.folder.path().join("in"), lines.join("\n") + "\n").unwrap();
        let flow = self.start(&format!("input: {{file: {{paths: [DIR/in]}}}}\noutput:\n{output}\n"));
        self.runtime.block_on(async {
            let ended = tokio::time::timeout(PATIENCE, flow.ended());
            ended.await.expect("the flow ends by itself");
        });
        self.stop(flow)
    }

    pub fn append(&self, stream: &str, kinds: &[&str]) {
        let event = |kind| NewEvent {
            id: None,
            kind,
            data: r#"{"n":1}"#,
            metadata: None,
        };
        let append = Append {
            stream,
            expected: ExpectedVersion::Any,
            events: kinds.iter().copied().map(event).collect(),
        };
        let namespace = self.namespace();
        self.runtime.block_on(namespace.append(&[append])).unwrap();
    }

    /// Stream and type of each message of the namespace, in order.
    pub fn all(&self) -> Vec<(String, String)> {
        let of = |stored: &StoredEvent| {
            let event = stored.event();
            (event.stream.to_owned(), event.kind.to_owned())
        };
        self.read().iter().map(of).collect()
    }

    pub fn read(&self) -> Vec<StoredEvent> {
        let read = CategoryRead {
            category: None,
            from: None,
            direction: thalweg_events::Direction::Forward,
            max: usize::MAX,
            correlation: None,
            member: None,
            types: &[],
        };
        let namespace = self.namespace();
        self.runtime.block_on(namespace.read_category(read)).unwrap().events
    }
}

/// Waits until a state is reached.
pub fn until(what: &str, mut reached: impl FnMut() -> bool) {
    let start = Instant::now();
    while !reached() {
        assert!(start.elapsed() < PATIENCE, "never reached: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

async fn in_memory(deleted_after_read: &DeletedAfterRead) -> Arc<dyn Store> {
    const FILE: u64 = 16 << 20;
    let settings = LogOptions {
        folder: "memory".to_owned(),
        file_bytes: FILE,
        first_file_bytes: FILE,
        spare: 1,
        files_max: usize::MAX,
        min_free_bytes: Some(0),
        scrub: Duration::ZERO,
        ..LogOptions::default()
    };
    let log = Arc::new(EmbeddedLog::open(Arc::new(RamDisk::new(1 << 30)), 1, &settings).unwrap());
    let options = EventsOptions {
        durability: Durability::Os,
        in_memory: true,
        indexes: None,
        index_memory: 64 << 20,
        keep_deleted: false,
        accept_loss: false,
    };
    let store = EmbeddedStore::open(log, options).await.unwrap();
    let (token, _) = new_token(DEFAULT).unwrap();
    let new = NewNamespace {
        name: DEFAULT.to_owned(),
        description: String::new(),
        metadata: None,
        digest: *token.digest(),
        scopes: Scopes::ALL,
    };
    store.create(new).await.unwrap();
    Arc::new(WithDocuments {
        store,
        documents: Arc::default(),
        deleted_after_read: deleted_after_read.clone(),
    })
}

/// The output `kept: {}` records its messages.
#[derive(Clone, Default)]
pub struct Kept {
    pub messages: Arc<Mutex<Vec<Message>>>,
    /// Accepts this many messages; further writes fail temporarily.
    pub room: Arc<Mutex<Option<usize>>>,
}

impl Kept {
    pub fn meta(&self, name: &str) -> Vec<String> {
        let messages = self.messages.lock();
        let of = |message: &Message| message.meta.get(name).unwrap_or_default().into_owned();
        messages.iter().map(of).collect()
    }
}

impl OutputSpec for Kept {
    fn build(&self, _: &BuildContext) -> std::result::Result<Arc<dyn Output>, BuildError> {
        Ok(Arc::new(self.clone()))
    }
}

impl Output for Kept {
    fn write(
        &self,
        messages: Arc<Vec<Message>>,
    ) -> thalweg_flow::BoxFuture<'static, std::result::Result<(), WriteError>> {
        let mut kept = self.messages.lock();
        let room = self.room.lock();
        let written = match *room {
            Some(room) if kept.len() + messages.len() > room => Err(WriteError::Temporary("no room".to_owned())),
            _ => {
                kept.extend(messages.iter().cloned());
                Ok(())
            }
        };
        Box::pin(std::future::ready(written))
    }
}

type Documents = Arc<Mutex<BTreeMap<String, Document>>>;

/// A stream to delete after the next page was read and before it is delivered.
type DeletedAfterRead = Arc<Mutex<Option<String>>>;

/// The store, with documents that are kept here.
struct WithDocuments {
    store: EmbeddedStore,
    documents: Documents,
    deleted_after_read: DeletedAfterRead,
}

struct Documented {
    inner: Arc<dyn Namespace>,
    documents: Documents,
    deleted_after_read: DeletedAfterRead,
}

impl WithDocuments {
    fn wrap(&self, inner: Arc<dyn Namespace>) -> Arc<dyn Namespace> {
        Arc::new(Documented {
            inner,
            documents: self.documents.clone(),
            deleted_after_read: self.deleted_after_read.clone(),
        })
    }
}

impl Store for WithDocuments {
    fn backend(&self) -> &'static str {
        self.store.backend()
    }

    fn durability(&self) -> &'static str {
        self.store.durability()
    }

    fn health(&self) -> Health {
        self.store.health()
    }

    fn create(&self, new: NewNamespace) -> BoxFuture<'_, Result<NamespaceInfo>> {
        self.store.create(new)
    }

    fn delete<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<u64>> {
        self.store.delete(name)
    }

    fn namespace<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Arc<dyn Namespace>>> {
        Box::pin(async move { Ok(self.wrap(self.store.namespace(name).await?)) })
    }

    fn namespaces(&self) -> BoxFuture<'_, Result<Vec<Arc<dyn Namespace>>>> {
        self.store.namespaces()
    }

    fn authorize<'a>(&'a self, token: &'a Token) -> BoxFuture<'a, Result<Option<Grant>>> {
        self.store.authorize(token)
    }

    fn create_token<'a>(&'a self, namespace: &'a str, token: NewToken) -> BoxFuture<'a, Result<TokenInfo>> {
        self.store.create_token(namespace, token)
    }

    fn tokens<'a>(&'a self, namespace: &'a str) -> BoxFuture<'a, Result<Vec<TokenInfo>>> {
        self.store.tokens(namespace)
    }

    fn revoke_token<'a>(&'a self, namespace: &'a str, id: &'a str) -> BoxFuture<'a, Result<bool>> {
        self.store.revoke_token(namespace, id)
    }

    fn scavenge(&self) -> BoxFuture<'_, Result<ScavengeReport>> {
        self.store.scavenge()
    }

    fn verify(&self) -> BoxFuture<'_, Result<VerifyReport>> {
        self.store.verify()
    }
}

impl Namespace for Documented {
    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(SystemClock)
    }

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn append<'a>(&'a self, appends: &'a [Append<'a>]) -> BoxFuture<'a, Result<Vec<AppendOutcome>>> {
        self.inner.append(appends)
    }

    fn import<'a>(&'a self, batch: &'a [ImportRecord]) -> BoxFuture<'a, Result<()>> {
        self.inner.import(batch)
    }

    fn clear(&self) -> BoxFuture<'_, Result<()>> {
        self.inner.clear()
    }

    fn version<'a>(&'a self, stream: &'a str) -> BoxFuture<'a, Result<i64>> {
        self.inner.version(stream)
    }

    fn read_stream<'a>(&'a self, read: StreamRead<'a>) -> BoxFuture<'a, Result<Page>> {
        self.inner.read_stream(read)
    }

    fn read_category<'a>(&'a self, read: CategoryRead<'a>) -> BoxFuture<'a, Result<Page>> {
        Box::pin(async move {
            let page = self.inner.read_category(read).await?;
            let deleted = self.deleted_after_read.lock().take();
            if let Some(stream) = deleted {
                self.inner.delete_stream(&stream, ExpectedVersion::Any, false).await?;
            }
            Ok(page)
        })
    }

    fn still_shown<'a>(&'a self, messages: &'a [StoredEvent]) -> BoxFuture<'a, Result<std::collections::HashSet<u64>>> {
        self.inner.still_shown(messages)
    }

    fn last<'a>(&'a self, stream: &'a str, kind: Option<&'a str>) -> BoxFuture<'a, Result<Option<StoredEvent>>> {
        self.inner.last(stream, kind)
    }

    fn by_id<'a>(&'a self, id: &'a MessageId) -> BoxFuture<'a, Result<Option<StoredEvent>>> {
        self.inner.by_id(id)
    }

    fn info(&self) -> BoxFuture<'_, Result<NamespaceInfo>> {
        self.inner.info()
    }

    fn streams<'a>(&'a self, prefix: &'a str, cursor: &'a str, max: usize) -> BoxFuture<'a, Result<Vec<StreamInfo>>> {
        self.inner.streams(prefix, cursor, max)
    }

    fn categories(&self) -> BoxFuture<'_, Result<Vec<CategoryInfo>>> {
        self.inner.categories()
    }

    fn delete_stream<'a>(
        &'a self,
        stream: &'a str,
        expected: ExpectedVersion,
        tombstone: bool,
    ) -> BoxFuture<'a, Result<()>> {
        self.inner.delete_stream(stream, expected, tombstone)
    }

    fn set_retention<'a>(&'a self, of: RetentionTarget<'a>, rule: Option<Retention>) -> BoxFuture<'a, Result<()>> {
        self.inner.set_retention(of, rule)
    }

    fn retention<'a>(&'a self, of: RetentionTarget<'a>) -> BoxFuture<'a, Result<Option<Retention>>> {
        self.inner.retention(of)
    }

    fn document<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Document>>> {
        Box::pin(async move { Ok(self.documents.lock().get(name).cloned()) })
    }

    fn put_document<'a>(
        &'a self,
        name: &'a str,
        content: Option<&'a [u8]>,
        expected: u64,
    ) -> BoxFuture<'a, Result<Option<u64>>> {
        Box::pin(async move {
            let mut documents = self.documents.lock();
            let revision = documents.get(name).map_or(0, |found| found.revision);
            if revision != expected {
                return Ok(None);
            }
            match content {
                Some(content) => {
                    let content = Bytes::copy_from_slice(content);
                    let revision = revision + 1;
                    documents.insert(name.to_owned(), Document { content, revision });
                }
                None => drop(documents.remove(name)),
            }
            Ok(Some(revision + 1))
        })
    }

    fn documents<'a>(&'a self, prefix: &'a str, cursor: &'a str, max: usize) -> BoxFuture<'a, Result<Vec<String>>> {
        self.inner.documents(prefix, cursor, max)
    }

    fn watch(&self) -> watch::Receiver<NamespaceWatermark> {
        self.inner.watch()
    }
}
