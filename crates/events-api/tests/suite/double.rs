//! A real store, except for what the tests observe or control: tokens, rules, the number of reads, and failures.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use parking_lot::Mutex;
use thalweg_events::{
    Append, AppendOutcome, BackupPieces, BoxFuture, CategoryInfo, CategoryRead, DEFAULT, Document, EmbeddedStore,
    EventsError, EventsOptions, ExpectedVersion, Fault, Grant, Health, ImportRecord, MessageId, Namespace,
    NamespaceInfo, NamespaceWatermark, NewNamespace, NewToken, Page, PageWithGaps, Result, Retention, RetentionTarget,
    ScavengeReport, Scopes, Store, StoredEvent, StreamInfo, StreamRead, Token, TokenDigest, TokenInfo, VerifyReport,
    time,
};
use thalweg_log::clock::{Clock, SystemClock};
use thalweg_log::disk::RamDisk;
use thalweg_log::{Durability, EmbeddedLog, LogOptions};
use tokio::sync::watch;

use crate::face::TOKEN;

pub struct Double {
    inner: EmbeddedStore,
    namespaces: Mutex<HashMap<String, Arc<Watched>>>,
    tokens: Mutex<Vec<Known>>,
    pub seen: Arc<Seen>,
}

/// The state that all namespaces of a store share.
#[derive(Default)]
pub struct Seen {
    /// Pages read.
    pub reads: AtomicU64,
    /// The next append first deletes its namespace, as another caller might.
    pub vanish: AtomicBool,
    /// The next append panics.
    pub panics: AtomicBool,
    /// Appends wait for this many milliseconds.
    pub append_ms: AtomicU64,
    pub clears: AtomicU64,
    /// Clearing only fails with an error.
    pub clear_fails: AtomicBool,
    pub clear_ms: AtomicU64,
}

struct Known {
    namespace: String,
    digest: TokenDigest,
    info: TokenInfo,
    valid: watch::Sender<()>,
}

/// A namespace whose watch channel follows the contract: it closes on deletion.
struct Watched {
    inner: Arc<dyn Namespace>,
    visible: Mutex<Option<watch::Sender<NamespaceWatermark>>>,
    ended: watch::Receiver<NamespaceWatermark>,
    rules: Mutex<HashMap<String, Retention>>,
    tombstones: Mutex<Vec<String>>,
    seen: Arc<Seen>,
}

fn in_memory() -> EmbeddedLog {
    let settings = LogOptions {
        folder: "memory".to_owned(),
        file_bytes: 64 << 20,
        first_file_bytes: 64 << 20,
        spare: 1,
        files_max: usize::MAX,
        min_free_bytes: Some(0),
        linger: Duration::ZERO,
        tail_bytes_max: 0,
        scrub: Duration::ZERO,
        ..LogOptions::default()
    };
    EmbeddedLog::open(Arc::new(RamDisk::new(1 << 30)), 1, &settings).unwrap()
}

impl Double {
    pub async fn open() -> Arc<Double> {
        let settings = EventsOptions {
            durability: Durability::Os,
            in_memory: true,
            indexes: None,
            index_memory: 64 << 20,
            keep_deleted: false,
            accept_loss: false,
        };
        let inner = EmbeddedStore::open(Arc::new(in_memory()), settings).await.unwrap();
        let double = Arc::new(Double {
            inner,
            namespaces: Mutex::default(),
            tokens: Mutex::default(),
            seen: Arc::default(),
        });
        let new = NewNamespace {
            name: DEFAULT.to_owned(),
            description: String::new(),
            metadata: None,
            digest: *Token::parse(TOKEN).unwrap().digest(),
            scopes: Scopes::ALL,
        };
        double.create(new).await.unwrap();
        double
    }

    pub fn reads(&self) -> u64 {
        self.seen.reads.load(SeqCst)
    }

    fn watched(&self, name: &str) -> Result<Arc<Watched>> {
        let found = self.namespaces.lock().get(name).cloned();
        found.ok_or_else(|| EventsError::NamespaceNotFound(name.to_owned()))
    }

    fn admit(&self, namespace: &str, new: NewToken) -> TokenInfo {
        let mut tokens = self.tokens.lock();
        let info = TokenInfo {
            id: format!("t{}", tokens.len() + 1),
            scopes: new.scopes,
            description: new.description,
            created_at: time::now(),
            expires_at: new.expires_at,
        };
        tokens.push(Known {
            namespace: namespace.to_owned(),
            digest: new.digest,
            info: info.clone(),
            valid: watch::channel(()).0,
        });
        info
    }
}

impl Watched {
    /// Publishes what can be read now, in order.
    fn tell(&self) {
        if let Some(visible) = self.visible.lock().as_ref() {
            visible.send_modify(|visible| *visible = *self.inner.watch().borrow());
        }
    }
}

impl Store for Double {
    fn backend(&self) -> &'static str {
        self.inner.backend()
    }

    fn durability(&self) -> &'static str {
        self.inner.durability()
    }

    fn health(&self) -> Health {
        self.inner.health()
    }

    fn create(&self, new: NewNamespace) -> BoxFuture<'_, Result<NamespaceInfo>> {
        Box::pin(async move {
            let (name, digest, scopes) = (new.name.clone(), new.digest, new.scopes);
            let info = self.inner.create(new).await?;
            let inner = self.inner.namespace(&name).await?;
            let (visible, ended) = watch::channel(NamespaceWatermark::default());
            let watched = Watched {
                inner,
                visible: Mutex::new(Some(visible)),
                ended,
                rules: Mutex::default(),
                tombstones: Mutex::default(),
                seen: self.seen.clone(),
            };
            self.namespaces.lock().insert(name.clone(), Arc::new(watched));
            let first = NewToken {
                digest,
                scopes,
                description: String::new(),
                expires_at: None,
            };
            self.admit(&name, first);
            Ok(info)
        })
    }

    fn delete<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<u64>> {
        Box::pin(async move {
            let deleted = self.inner.delete(name).await?;
            self.tokens.lock().retain(|known| known.namespace != name);
            if let Some(watched) = self.namespaces.lock().remove(name) {
                watched.visible.lock().take();
            }
            Ok(deleted)
        })
    }

    fn namespace<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Arc<dyn Namespace>>> {
        let found = self.watched(name).map(|watched| watched as Arc<dyn Namespace>);
        Box::pin(std::future::ready(found))
    }

    fn namespaces(&self) -> BoxFuture<'_, Result<Vec<Arc<dyn Namespace>>>> {
        let all = self.namespaces.lock();
        let all = all.values().map(|watched| watched.clone() as Arc<dyn Namespace>);
        Box::pin(std::future::ready(Ok(all.collect())))
    }

    fn authorize<'a>(&'a self, token: &'a Token) -> BoxFuture<'a, Result<Option<Grant>>> {
        let tokens = self.tokens.lock();
        let known = tokens.iter().find(|known| known.digest.matches(token.digest()));
        let grant = known.and_then(|known| {
            Some(Grant {
                namespace: self.watched(&known.namespace).ok()?,
                scopes: known.info.scopes,
                expires_at: known.info.expires_at,
                valid: known.valid.subscribe(),
            })
        });
        Box::pin(std::future::ready(Ok(grant)))
    }

    fn create_token<'a>(&'a self, namespace: &'a str, token: NewToken) -> BoxFuture<'a, Result<TokenInfo>> {
        let made = self.watched(namespace).map(|_| self.admit(namespace, token));
        Box::pin(std::future::ready(made))
    }

    fn tokens<'a>(&'a self, namespace: &'a str) -> BoxFuture<'a, Result<Vec<TokenInfo>>> {
        let of = |known: &&Known| known.namespace == namespace;
        let all = self
            .tokens
            .lock()
            .iter()
            .filter(of)
            .map(|known| known.info.clone())
            .collect();
        Box::pin(std::future::ready(self.watched(namespace).map(|_| all)))
    }

    fn revoke_token<'a>(&'a self, namespace: &'a str, id: &'a str) -> BoxFuture<'a, Result<bool>> {
        let mut tokens = self.tokens.lock();
        let before = tokens.len();
        tokens.retain(|known| known.namespace != namespace || known.info.id != id);
        Box::pin(std::future::ready(Ok(tokens.len() < before)))
    }

    fn backup(&self) -> BoxFuture<'_, Result<Box<dyn BackupPieces>>> {
        self.inner.backup()
    }

    fn scavenge(&self) -> BoxFuture<'_, Result<ScavengeReport>> {
        Box::pin(std::future::ready(Ok(ScavengeReport {
            messages: 2,
            bytes: 300,
        })))
    }

    fn verify(&self) -> BoxFuture<'_, Result<VerifyReport>> {
        let fault = Fault {
            namespace: "a\"b".to_owned(),
            offset: 7,
            what: "its checksum is wrong".to_owned(),
        };
        Box::pin(std::future::ready(Ok(VerifyReport {
            messages: 5,
            bytes: 600,
            faults: vec![fault],
        })))
    }
}

fn of(rule: RetentionTarget<'_>) -> String {
    match rule {
        RetentionTarget::Stream(name) => format!("stream {name}"),
        RetentionTarget::Category(name) => format!("category {name}"),
    }
}

impl Namespace for Watched {
    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(SystemClock)
    }

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn append<'a>(&'a self, appends: &'a [Append<'a>]) -> BoxFuture<'a, Result<Vec<AppendOutcome>>> {
        Box::pin(async move {
            let dead = |append: &&Append<'_>| self.tombstones.lock().iter().any(|name| name == append.stream);
            if let Some(dead) = appends.iter().find(dead) {
                return Err(EventsError::StreamDeleted(dead.stream.to_owned()));
            }
            assert!(!self.seen.panics.swap(false, SeqCst), "on purpose");
            let wait = self.seen.append_ms.load(SeqCst);
            if wait > 0 {
                tokio::time::sleep(Duration::from_millis(wait)).await;
            }
            if self.seen.vanish.load(SeqCst) {
                return Err(EventsError::Damaged("partition 5 does not exist".to_owned()));
            }
            let places = self.inner.append(appends).await?;
            self.tell();
            Ok(places)
        })
    }

    fn import<'a>(&'a self, batch: &'a [ImportRecord]) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            self.inner.import(batch).await?;
            self.tell();
            Ok(())
        })
    }

    fn clear(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let wait = self.seen.clear_ms.load(SeqCst);
            if wait > 0 {
                tokio::time::sleep(Duration::from_millis(wait)).await;
            }
            if self.seen.clear_fails.load(SeqCst) {
                return Err(EventsError::Unavailable("the disk is full".to_owned()));
            }
            self.inner.clear().await?;
            self.tell();
            self.seen.clears.fetch_add(1, SeqCst);
            Ok(())
        })
    }

    fn version<'a>(&'a self, stream: &'a str) -> BoxFuture<'a, Result<i64>> {
        self.inner.version(stream)
    }

    fn read_stream<'a>(&'a self, read: StreamRead<'a>) -> BoxFuture<'a, Result<Page>> {
        self.seen.reads.fetch_add(1, SeqCst);
        self.inner.read_stream(read)
    }

    fn read_category<'a>(&'a self, read: CategoryRead<'a>) -> BoxFuture<'a, Result<Page>> {
        self.seen.reads.fetch_add(1, SeqCst);
        self.inner.read_category(read)
    }

    fn read_stream_with_gaps<'a>(&'a self, read: StreamRead<'a>) -> BoxFuture<'a, Result<PageWithGaps>> {
        self.seen.reads.fetch_add(1, SeqCst);
        self.inner.read_stream_with_gaps(read)
    }

    fn read_category_with_gaps<'a>(&'a self, read: CategoryRead<'a>) -> BoxFuture<'a, Result<PageWithGaps>> {
        self.seen.reads.fetch_add(1, SeqCst);
        self.inner.read_category_with_gaps(read)
    }

    fn may_lose(&self, category: &str) -> bool {
        self.inner.may_lose(category)
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
        Box::pin(async move {
            let actual = self.inner.version(stream).await?;
            if !expected.allows(actual) {
                return Err(EventsError::VersionConflict {
                    stream: stream.to_owned(),
                    expected,
                    actual,
                });
            }
            if tombstone {
                self.tombstones.lock().push(stream.to_owned());
            }
            Ok(())
        })
    }

    fn set_retention<'a>(&'a self, target: RetentionTarget<'a>, rule: Option<Retention>) -> BoxFuture<'a, Result<()>> {
        let mut rules = self.rules.lock();
        match rule {
            Some(rule) => drop(rules.insert(of(target), rule)),
            None => drop(rules.remove(&of(target))),
        }
        Box::pin(std::future::ready(Ok(())))
    }

    fn retention<'a>(&'a self, target: RetentionTarget<'a>) -> BoxFuture<'a, Result<Option<Retention>>> {
        let rule = self.rules.lock().get(&of(target)).copied();
        Box::pin(std::future::ready(Ok(rule)))
    }

    fn document<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Document>>> {
        self.inner.document(name)
    }

    fn put_document<'a>(
        &'a self,
        name: &'a str,
        content: Option<&'a [u8]>,
        expected: u64,
    ) -> BoxFuture<'a, Result<Option<u64>>> {
        self.inner.put_document(name, content, expected)
    }

    fn documents<'a>(&'a self, prefix: &'a str, cursor: &'a str, max: usize) -> BoxFuture<'a, Result<Vec<String>>> {
        self.inner.documents(prefix, cursor, max)
    }

    fn watch(&self) -> watch::Receiver<NamespaceWatermark> {
        let visible = self.visible.lock();
        visible
            .as_ref()
            .map_or_else(|| self.ended.clone(), watch::Sender::subscribe)
    }
}
