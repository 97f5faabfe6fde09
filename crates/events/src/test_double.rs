//! An in-memory store for tests of code above it. It is as strict as the contract where that matters, above all in
//! compare and set of documents, and implements nothing else. It can simulate conflicts with another server and
//! failures.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use thalweg_log::clock::{Clock, SystemClock};
use tokio::sync::watch;

use crate::error::{EventsError, Result};
use crate::event::{EventRef, IdRef, StoredEvent};
use crate::id::Uuid;
use crate::names::{self, category};
use crate::store::*;
use crate::token::Token;

/// A test double of a namespace.
pub struct NamespaceDouble {
    name: String,
    kept: Mutex<DoubleState>,
    visible: watch::Sender<NamespaceWatermark>,
    valid: watch::Sender<()>,
    overtaken: AtomicUsize,
    failing: AtomicUsize,
    losing: AtomicUsize,
    /// Number of stored documents.
    pub puts: AtomicUsize,
}

#[derive(Default)]
struct DoubleState {
    events: BTreeMap<u64, StoredEvent>,
    versions: BTreeMap<String, i64>,
    documents: BTreeMap<String, Document>,
    last_global: u64,
    revision: u64,
}

fn not_here<T>() -> Result<T> {
    Err(EventsError::Unavailable("not in the double".to_owned()))
}

impl NamespaceDouble {
    pub fn new(name: &str) -> NamespaceDouble {
        NamespaceDouble {
            name: name.to_owned(),
            kept: Mutex::default(),
            visible: watch::channel(NamespaceWatermark::default()).0,
            valid: watch::channel(()).0,
            overtaken: AtomicUsize::new(0),
            failing: AtomicUsize::new(0),
            losing: AtomicUsize::new(0),
            puts: AtomicUsize::new(0),
        }
    }

    /// Makes the next document changes conflict.
    pub fn overtake(&self, times: usize) {
        self.overtaken.store(times, Ordering::Relaxed);
    }

    /// Makes the next document changes fail.
    pub fn fail(&self, times: usize) {
        self.failing.store(times, Ordering::Relaxed);
    }

    /// Makes the next document changes succeed but return errors.
    pub fn lose_answers(&self, times: usize) {
        self.losing.store(times, Ordering::Relaxed);
    }

    /// Appends a simple message and returns its global position.
    pub async fn write(&self, stream: &str, kind: &str, metadata: Option<&str>) -> u64 {
        let append = Append {
            stream,
            expected: ExpectedVersion::Any,
            events: vec![NewEvent {
                id: None,
                kind,
                data: "{}",
                metadata,
            }],
        };
        let places = self.append(&[append]).await.unwrap_or_default();
        places.first().map_or(0, |place| place.first_global)
    }

    /// Hides a message as retention would.
    pub fn hide(&self, global: u64) {
        self.kept.lock().events.remove(&global);
        self.told(|_| {});
    }

    fn told(&self, change: impl Fn(&mut NamespaceWatermark)) {
        self.visible.send_modify(|visible| {
            let mut next = *visible;
            change(&mut next);
            *visible = visible.then(next.last, next.change + 1, next.cleared);
        });
    }

    fn store(&self, appends: &[Append<'_>]) -> Vec<AppendOutcome> {
        let mut kept = self.kept.lock();
        let mut out = Vec::new();
        for append in appends {
            let mut place = AppendOutcome::default();
            for event in &append.events {
                let version = kept.versions.entry(append.stream.to_owned()).or_insert(-1);
                *version += 1;
                let position = version.unsigned_abs();
                kept.last_global += 1;
                let global = kept.last_global;
                let event = EventRef {
                    id: IdRef::Uuid(Uuid::made(global, global, 0).unwrap_or_default()),
                    own_id: true,
                    stream: append.stream,
                    position,
                    global,
                    kind: event.kind,
                    data: event.data,
                    metadata: event.metadata,
                    time: 0,
                    is_first: false,
                    is_imported: false,
                };
                let mut value = Vec::new();
                event.encode(&mut value);
                if let Some(stored) = StoredEvent::new(value.into(), 0) {
                    kept.events.insert(global, stored);
                }
                if place.count == 0 {
                    (place.first_position, place.first_global) = (position, global);
                }
                place.count += 1;
            }
            out.push(place);
        }
        let last = kept.last_global;
        drop(kept);
        self.told(|visible| visible.last = last);
        out
    }

    fn set(&self, name: &str, content: Option<&[u8]>, expected: u64) -> Result<Option<u64>> {
        let take = |left: &AtomicUsize| {
            left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
                .is_ok()
        };
        if take(&self.failing) {
            return Err(EventsError::Unavailable("the disk is full".to_owned()));
        }
        let mut kept = self.kept.lock();
        let is = kept.documents.get(name).map_or(0, |document| document.revision);
        if is != expected || take(&self.overtaken) {
            return Ok(None);
        }
        self.puts.fetch_add(1, Ordering::Relaxed);
        kept.revision += 1;
        let revision = kept.revision;
        match content {
            Some(content) => {
                let content = Bytes::copy_from_slice(content);
                kept.documents.insert(name.to_owned(), Document { content, revision });
            }
            None => drop(kept.documents.remove(name)),
        }
        if take(&self.losing) {
            return Err(EventsError::Unavailable("the answer was lost".to_owned()));
        }
        Ok(Some(revision))
    }

    /// Matching messages, in pages like those of an engine with small pages.
    fn page(&self, from: u64, max: usize, passes: impl Fn(&EventRef<'_>) -> bool) -> Page {
        let kept = self.kept.lock();
        let mut found = kept.events.range(from..).filter(|(_, stored)| passes(&stored.event()));
        let events: Vec<StoredEvent> = found.by_ref().take(max).map(|(_, stored)| stored.clone()).collect();
        let last = events.last().map(|last| last.event().global + 1);
        let next = found.next().and(last);
        Page { events, next }
    }
}

fn of_types(event: &EventRef<'_>, types: &[String]) -> bool {
    types.is_empty() || types.iter().any(|kind| kind == event.kind)
}

/// Supports reading forward only.
impl Namespace for NamespaceDouble {
    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(SystemClock)
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn append<'a>(&'a self, appends: &'a [Append<'a>]) -> BoxFuture<'a, Result<Vec<AppendOutcome>>> {
        Box::pin(async move { Ok(self.store(appends)) })
    }

    fn import<'a>(&'a self, _batch: &'a [ImportRecord]) -> BoxFuture<'a, Result<()>> {
        Box::pin(async { not_here() })
    }

    fn clear(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async {
            let mut kept = self.kept.lock();
            kept.events.clear();
            kept.versions.clear();
            kept.last_global = 0;
            drop(kept);
            self.told(|visible| (visible.last, visible.cleared) = (0, visible.cleared + 1));
            Ok(())
        })
    }

    fn version<'a>(&'a self, stream: &'a str) -> BoxFuture<'a, Result<i64>> {
        Box::pin(async move { Ok(self.kept.lock().versions.get(stream).copied().unwrap_or(-1)) })
    }

    fn read_stream<'a>(&'a self, read: StreamRead<'a>) -> BoxFuture<'a, Result<Page>> {
        Box::pin(async move {
            let (global, position) = match read.from {
                Some(StreamPosition::Global(global)) => (global, 0),
                Some(StreamPosition::Position(position)) => (0, position),
                None => (0, 0),
            };
            let mut page = self.page(global, read.max, |event| {
                event.stream == read.stream && event.position >= position && of_types(event, read.types)
            });
            let after = page.events.last().map(|last| last.event().position + 1);
            page.next = page.next.and(after);
            Ok(page)
        })
    }

    fn read_category<'a>(&'a self, read: CategoryRead<'a>) -> BoxFuture<'a, Result<Page>> {
        Box::pin(async move {
            Ok(self.page(read.from.unwrap_or(0), read.max, |event| {
                read.category.is_none_or(|wanted| category(event.stream) == wanted)
                    && of_types(event, read.types)
                    && read.member.is_none_or(|member| member.owns(event.stream))
                    && read
                        .correlation
                        .is_none_or(|wanted| names::correlation(event.metadata).is_some_and(|found| found == wanted))
            }))
        })
    }

    fn last<'a>(&'a self, _stream: &'a str, _kind: Option<&'a str>) -> BoxFuture<'a, Result<Option<StoredEvent>>> {
        Box::pin(async { not_here() })
    }

    fn by_id<'a>(&'a self, _id: &'a crate::id::MessageId) -> BoxFuture<'a, Result<Option<StoredEvent>>> {
        Box::pin(async { not_here() })
    }

    fn info(&self) -> BoxFuture<'_, Result<NamespaceInfo>> {
        Box::pin(async { not_here() })
    }

    fn streams<'a>(&'a self, _: &'a str, _: &'a str, _: usize) -> BoxFuture<'a, Result<Vec<StreamInfo>>> {
        Box::pin(async { not_here() })
    }

    fn categories(&self) -> BoxFuture<'_, Result<Vec<CategoryInfo>>> {
        Box::pin(async { not_here() })
    }

    fn delete_stream<'a>(&'a self, _: &'a str, _: ExpectedVersion, _: bool) -> BoxFuture<'a, Result<()>> {
        Box::pin(async { not_here() })
    }

    fn set_retention<'a>(&'a self, _: RetentionTarget<'a>, _: Option<Retention>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async { not_here() })
    }

    fn retention<'a>(&'a self, _: RetentionTarget<'a>) -> BoxFuture<'a, Result<Option<Retention>>> {
        Box::pin(async { not_here() })
    }

    fn document<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Document>>> {
        Box::pin(async move { Ok(self.kept.lock().documents.get(name).cloned()) })
    }

    fn put_document<'a>(
        &'a self,
        name: &'a str,
        content: Option<&'a [u8]>,
        expected: u64,
    ) -> BoxFuture<'a, Result<Option<u64>>> {
        Box::pin(async move {
            // Storing takes time, in which other tasks run.
            tokio::task::yield_now().await;
            self.set(name, content, expected)
        })
    }

    fn documents<'a>(&'a self, prefix: &'a str, cursor: &'a str, max: usize) -> BoxFuture<'a, Result<Vec<String>>> {
        Box::pin(async move {
            let kept = self.kept.lock();
            let names = kept.documents.keys();
            let wanted = names.filter(|name| name.starts_with(prefix) && name.as_str() > cursor);
            Ok(wanted.take(max).cloned().collect())
        })
    }

    fn watch(&self) -> watch::Receiver<NamespaceWatermark> {
        self.visible.subscribe()
    }
}

/// A store with one namespace. Every token has full access, except for one whose digits are all zero, which can only
/// read.
pub struct StoreDouble(pub Arc<NamespaceDouble>);

impl Store for StoreDouble {
    fn backend(&self) -> &'static str {
        "memory"
    }

    fn durability(&self) -> &'static str {
        "memory"
    }

    fn health(&self) -> Health {
        Health::Healthy
    }

    fn create(&self, _: NewNamespace) -> BoxFuture<'_, Result<NamespaceInfo>> {
        Box::pin(async { not_here() })
    }

    fn delete<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<u64>> {
        Box::pin(async { not_here() })
    }

    fn namespace<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Arc<dyn Namespace>>> {
        Box::pin(async move {
            match name == self.0.name {
                true => Ok(self.0.clone() as Arc<dyn Namespace>),
                false => Err(EventsError::NamespaceNotFound(name.to_owned())),
            }
        })
    }

    fn namespaces(&self) -> BoxFuture<'_, Result<Vec<Arc<dyn Namespace>>>> {
        Box::pin(async { Ok(vec![self.0.clone() as Arc<dyn Namespace>]) })
    }

    fn authorize<'a>(&'a self, token: &'a Token) -> BoxFuture<'a, Result<Option<Grant>>> {
        Box::pin(async move {
            let zero = Token::parse(&crate::token::token_text(token.namespace(), [0; 32]));
            let reads = zero.is_ok_and(|zero| zero.digest().as_bytes() == token.digest().as_bytes());
            Ok(Some(Grant {
                namespace: self.0.clone(),
                scopes: Scopes {
                    write: !reads,
                    admin: !reads,
                    ..Scopes::ALL
                },
                expires_at: None,
                valid: self.0.valid.subscribe(),
            }))
        })
    }

    fn create_token<'a>(&'a self, _: &'a str, _: NewToken) -> BoxFuture<'a, Result<TokenInfo>> {
        Box::pin(async { not_here() })
    }

    fn tokens<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Vec<TokenInfo>>> {
        Box::pin(async { not_here() })
    }

    fn revoke_token<'a>(&'a self, _: &'a str, _: &'a str) -> BoxFuture<'a, Result<bool>> {
        Box::pin(async { not_here() })
    }

    fn scavenge(&self) -> BoxFuture<'_, Result<ScavengeReport>> {
        Box::pin(async { not_here() })
    }

    fn verify(&self) -> BoxFuture<'_, Result<VerifyReport>> {
        Box::pin(async { not_here() })
    }
}
