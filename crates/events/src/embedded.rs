//! The event store on the durable log, with one partition for each namespace and one for the catalog. Data that is
//! derived from the log is in a folder of its own.

mod append;
mod backup;
#[cfg(test)]
mod between_tests;
mod catalog;
mod counts;
#[cfg(test)]
mod damaged_tests;
#[cfg(test)]
mod deleted_tests;
#[cfg(test)]
mod gap_tests;
mod gaps;
mod import;
mod index;
mod maintenance;
mod memory_budget;
#[cfg(test)]
mod memory_budget_tests;
mod namespace;
mod namespaces;
mod pages;
mod reader;
mod record;
mod replay;
mod restore;
#[cfg(test)]
mod rule_memory_tests;
mod rules;
mod scavenge;
mod scavenge_marks;
#[cfg(test)]
mod scavenge_tests;
mod sequencer;
mod shared_map;
#[cfg(test)]
mod test_support;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod token_tests;
mod verify;
#[cfg(test)]
mod verify_tests;
mod visibility;

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use thalweg_kit::{blocking, clock};
use thalweg_log::disk::Disk;
use thalweg_log::{Durability, Log, LogStatus, Micros, PartitionId};
use tokio::sync::watch;

use backup::BackupTracker;
use catalog::{Catalog, CatalogChange, CatalogOptions, TokenEntry};
use index::{NamespaceIndex, TableStore};
use memory_budget::MemoryBudget;
use namespace::{EmbeddedNamespace, NamespaceAttributes, StoreContext};
use namespaces::Namespaces;

pub(crate) use catalog::CatalogEntry;
pub use index::IndexSizes;
pub use index::fuzz as index_fuzz;
pub(crate) use record::PartitionRecord;
pub use record::fuzz as record_fuzz;
pub use restore::{RestoreReport, restore};

use crate::error::{EventsError, Result};
use crate::event::EventRef;
use crate::store::{
    BackupPieces, BoxFuture, Grant, Health, Namespace, NamespaceInfo, NewNamespace, NewToken, ScavengeReport, Scopes,
    Store, StoreStats, TokenInfo, VerifyReport,
};
use crate::token::{Token, TokenDigest};
use crate::{admission, limits};

/// The namespace that always exists.
pub const DEFAULT: &str = "default";

pub struct EmbeddedStore {
    inner: Arc<StoreInner>,
}

pub(crate) struct StoreInner {
    place: StoreContext,
    durability: Durability,
    namespaces: RwLock<Namespaces>,
    /// Locked while namespaces change.
    catalog: tokio::sync::Mutex<Catalog>,
    keep_deleted: bool,
    /// The names of deleted namespaces whose messages are kept, by number.
    deleted: Mutex<BTreeMap<u32, String>>,
    /// The duration of the start, and the number of bytes that it indexed.
    recovery: (Duration, u64),
    /// Write-locked by the single scavenge, read-locked by all running backups, so that what they read is not removed.
    scavenging: Arc<tokio::sync::RwLock<()>>,
}

/// A token entry that no token matches.
static NOBODY: LazyLock<TokenEntry> = LazyLock::new(|| {
    let nobody = NewToken {
        digest: TokenDigest::from_bytes([0; 32]),
        scopes: Scopes::default(),
        description: String::new(),
        expires_at: None,
    };
    TokenEntry::new(nobody, 0)
});

#[derive(Clone)]
struct OpenNamespace {
    namespace: Arc<EmbeddedNamespace>,
    /// The same namespace as a trait object.
    shown: Arc<dyn Namespace>,
    tokens: Arc<Vec<LiveToken>>,
}

/// A token, and a channel that closes when it becomes invalid.
#[derive(Clone)]
struct LiveToken {
    admitted: TokenEntry,
    valid: Arc<watch::Sender<()>>,
}

pub struct EventsOptions {
    pub durability: Durability,
    /// The log is in memory.
    pub in_memory: bool,
    /// The disk for data that is derived from the log. `None`: it stays in memory.
    pub indexes: Option<Arc<dyn Disk>>,
    /// Memory for the indexes in bytes.
    pub index_memory: usize,
    /// Keep the messages of a deleted namespace in the log until [`EmbeddedStore::let_go`], also across restarts with
    /// this option. For programs that read the log themselves and may be behind.
    pub keep_deleted: bool,
    /// Give up messages that the indexes know but the log has lost. Otherwise the store does not open.
    pub accept_loss: bool,
}

/// The log partition with the messages of a namespace.
#[derive(Clone, Debug)]
pub struct LogPartition {
    /// Never reused.
    pub number: u32,
    pub id: PartitionId,
    pub namespace: String,
    /// No more messages follow; see [`EventsOptions::keep_deleted`].
    pub is_deleted: bool,
}

impl EmbeddedStore {
    /// Opens a store with all namespaces in the log. Must be called within a runtime.
    pub async fn open(log: Arc<dyn Log>, options: EventsOptions) -> Result<EmbeddedStore> {
        let began = clock::now();
        let table_store = TableStore::open(options.indexes, log.id(), options.index_memory);
        let mut table_store =
            table_store.map_err(|error| EventsError::Unavailable(format!("the folder of indexes: {error}")))?;
        let rule_memory = MemoryBudget::of_rules(options.index_memory);
        let namespace_memory = MemoryBudget::of_namespaces(options.index_memory);
        table_store.share_with(vec![rule_memory.clone(), namespace_memory.clone()]);
        let clock = log.clock();
        let place = StoreContext {
            log: log.clone(),
            in_memory: options.in_memory,
            clock: Arc::new(move || clock.wall()),
            table_store: Arc::new(table_store),
            backups: Arc::new(BackupTracker::default()),
            rule_memory,
            namespace_memory,
        };
        let (catalog, known) = {
            let now = (place.clock)();
            let of_catalog = CatalogOptions {
                durability: options.durability,
                keep_deleted: options.keep_deleted,
                indexed: place.table_store.next_offsets(),
                accept_loss: options.accept_loss,
                now,
            };
            Catalog::open(log, of_catalog).await?
        };
        let marks = known.may_have_marks();
        let deleted = known.deleted.into_values().map(|named| (named.number, named.name));
        let deleted = deleted.collect();
        let (opened, bytes) = {
            let place = place.clone();
            let there: Vec<CatalogEntry> = known.there.into_values().collect();
            let replayed = blocking::spawn(move || {
                let tidied = place.table_store.tidy();
                let forgotten =
                    tidied.and_then(|()| place.table_store.forget_unknown(there.iter().map(|named| named.number)));
                forgotten.map_err(|error| EventsError::Unavailable(format!("the folder of indexes: {error}")))?;
                replay::all(&place, there, marks)
            });
            let replayed = replayed.await;
            replayed.unwrap_or_else(|_| Err(EventsError::Unavailable("the indexes were not built".to_owned())))?
        };
        let mut namespaces = Namespaces::default();
        opened.into_iter().for_each(|opened| namespaces.insert(opened));
        place.table_store.fit();
        let inner = Arc::new(StoreInner {
            place,
            durability: options.durability,
            namespaces: RwLock::new(namespaces),
            catalog: tokio::sync::Mutex::new(catalog),
            keep_deleted: options.keep_deleted,
            deleted: Mutex::new(deleted),
            recovery: (began.elapsed(), bytes),
            scavenging: Arc::default(),
        });
        let finishing = inner.clone();
        let finished = blocking::spawn(move || {
            replay::lost_clears::say_again(&finishing);
            scavenge::finish(&finishing)
        })
        .await;
        finished.unwrap_or_else(|_| Err(EventsError::Unavailable("scavenging was interrupted".to_owned())))?;
        maintenance::start(&inner);
        Ok(EmbeddedStore { inner })
    }

    /// The partition of each namespace, for programs that read the log themselves.
    pub fn partitions(&self) -> Vec<LogPartition> {
        let partition = |number, id, namespace, is_deleted| LogPartition {
            number,
            id,
            namespace,
            is_deleted,
        };
        // In this order, so that a namespace which is being deleted is in one of the lists.
        let all = self.inner.all();
        let deleted = self.inner.deleted.lock().clone();
        let there = all.iter().filter(|namespace| !deleted.contains_key(&namespace.number));
        let there = there.map(|own| partition(own.number, own.partition, own.about().name.clone(), false));
        let gone = deleted.iter();
        let gone = gone.map(|(number, name)| partition(*number, catalog::partition(*number), name.clone(), true));
        there.chain(gone).collect()
    }

    /// Releases the messages of a deleted namespace. Their space is freed now, or when the running backups have ended.
    /// Must be called within a runtime.
    pub fn let_go(&self, number: u32) {
        if self.inner.deleted.lock().remove(&number).is_some() {
            self.inner.free(number);
        }
    }

    pub fn index_sizes(&self) -> IndexSizes {
        self.inner.place.table_store.sizes()
    }

    /// [`Store::verify`] with a progress callback every few thousand messages.
    pub async fn verify_telling(&self, tell: impl FnMut(&VerifyReport) + Send + 'static) -> Result<VerifyReport> {
        verify::verify(self.inner.clone(), Box::new(tell)).await
    }

    /// Writes the in-memory part of the indexes as tables and waits for it. This also happens automatically when there
    /// is enough of it.
    pub async fn flush_indexes(&self) -> Result<()> {
        let inner = self.inner.clone();
        let flushed = blocking::spawn(move || maintenance::flush_all(&inner)).await;
        flushed.unwrap_or_else(|_| Err(EventsError::Unavailable("it was interrupted".to_owned())))
    }
}

/// Decodes the message in a record of a namespace partition; `None` for documents and marks.
pub fn event_in(value: &[u8], time: Micros) -> Result<Option<EventRef<'_>>> {
    match PartitionRecord::decode(value, time) {
        Some(PartitionRecord::Event(event)) => Ok(Some(event)),
        Some(PartitionRecord::Document(_) | PartitionRecord::Cleared) => Ok(None),
        None => Err(EventsError::Damaged(
            "it has a form that this version does not know".to_owned(),
        )),
    }
}

impl StoreInner {
    fn opened(&self, name: &str) -> Result<OpenNamespace> {
        let found = self.namespaces.read().get(name).cloned();
        found.ok_or_else(|| EventsError::NamespaceNotFound(name.to_owned()))
    }

    fn now(&self) -> i64 {
        (self.place.clock)()
    }

    async fn create(self: Arc<Self>, new: NewNamespace) -> Result<NamespaceInfo> {
        limits::check_namespace(&new.name)?;
        let mut catalog = self.catalog.lock().await;
        if self.namespaces.read().contains(&new.name) {
            return Err(EventsError::NamespaceExists(new.name));
        }
        let now = self.now();
        let first = new.first_token();
        let mut named = CatalogEntry {
            number: 0,
            name: new.name,
            description: new.description,
            metadata: new.metadata,
            created_at: now,
            tokens: vec![TokenEntry::new(first, now)],
        };
        self.place.namespace_memory.has(weight(&named))?;
        let number = catalog.new_partition(now).await?;
        named.number = number;
        if let Err(error) = catalog.store(&CatalogChange::Created(named.clone()), now).await {
            let _ = catalog.remove_partition(number).await;
            return Err(error);
        }
        let index = NamespaceIndex::of_new(&self.place.table_store, number);
        let opened = OpenNamespace::new(named, &self.place, index);
        let info = opened.namespace.info().await;
        self.namespaces.write().insert(opened);
        self.place.table_store.fit();
        info
    }

    async fn delete(self: Arc<Self>, name: String) -> Result<u64> {
        let mut catalog = self.catalog.lock().await;
        let opened = self.opened(&name)?;
        admission::may_be_deleted(&name)?;
        // Slow counting is done before the lock, so that others do not wait for it.
        opened.namespace.info().await?;
        // Writes in progress are counted, and none follows, including imports.
        let _alone = opened.namespace.importing.lock().await;
        let held = opened.namespace.hold().await;
        let messages = opened.namespace.info().await?.messages;
        let number = opened.namespace.number;
        catalog.store(&CatalogChange::Removed { number }, self.now()).await?;
        if self.keep_deleted {
            self.deleted.lock().insert(number, name.clone());
        }
        self.namespaces.write().remove(&name);
        opened.namespace.gone();
        self.place.table_store.deleted(number);
        self.place.table_store.fit();
        drop(held);
        if !self.keep_deleted && !self.place.backups.keep(number) {
            catalog.remove_partition(number).await?;
        }
        Ok(messages)
    }

    /// Frees the space of a deleted namespace.
    fn free(self: &Arc<Self>, number: u32) {
        if self.place.backups.keep(number) {
            return;
        }
        let inner = self.clone();
        tokio::spawn(async move {
            let removed = inner.catalog.lock().await.remove_partition(number).await;
            if let Err(error) = removed {
                tracing::warn!(%error, "the space of a deleted namespace will be freed at the next start");
            }
        });
    }

    async fn create_token(self: Arc<Self>, namespace: String, token: NewToken) -> Result<TokenInfo> {
        let mut catalog = self.catalog.lock().await;
        let opened = self.opened(&namespace)?;
        let number = opened.namespace.number;
        let same = opened.tokens.iter().find(|live| live.admitted.matches(&token.digest));
        if let Some(same) =
            same.filter(|live| live.admitted.scopes == token.scopes && live.admitted.expires_at == token.expires_at)
        {
            return Ok(same.admitted.info());
        }
        let admitted = TokenEntry::new(token, self.now());
        // A token with other scopes replaces the old entry, including its memory.
        let before = opened.tokens.iter().find(|live| live.admitted.id == admitted.id);
        let more = token_weight(&admitted).saturating_sub(before.map_or(0, |live| token_weight(&live.admitted)));
        self.place.namespace_memory.has(more)?;
        let change = CatalogChange::Admitted {
            number,
            token: admitted.clone(),
        };
        catalog.store(&change, self.now()).await?;
        let info = admitted.info();
        let now = self.now();
        self.change_tokens(&namespace, |tokens| {
            tokens.retain(|live| live.admitted.id != admitted.id);
            catalog::forget_expired(tokens, now, |live| &live.admitted);
            tokens.push(LiveToken::new(admitted));
        });
        Ok(info)
    }

    async fn revoke_token(self: Arc<Self>, namespace: String, id: String) -> Result<bool> {
        let mut catalog = self.catalog.lock().await;
        let opened = self.opened(&namespace)?;
        if !opened.tokens.iter().any(|live| live.admitted.id == id) {
            return Ok(false);
        }
        let change = CatalogChange::Revoked {
            number: opened.namespace.number,
            token: id.clone(),
        };
        catalog.store(&change, self.now()).await?;
        drop(opened);
        self.change_tokens(&namespace, |tokens| tokens.retain(|live| live.admitted.id != id));
        Ok(true)
    }

    fn change_tokens(&self, namespace: &str, change: impl FnOnce(&mut Vec<LiveToken>)) {
        if let Some(opened) = self.namespaces.write().get_mut(namespace) {
            let mut tokens = Vec::clone(&opened.tokens);
            change(&mut tokens);
            opened.tokens = Arc::new(tokens);
            opened.weigh();
        }
        self.place.table_store.fit();
    }

    fn authorize(&self, token: &Token) -> Option<Grant> {
        let Ok(opened) = self.opened(token.namespace()) else {
            // Compares a dummy token, so that the timing does not reveal whether the namespace exists.
            std::hint::black_box(NOBODY.matches(token.digest()));
            return None;
        };
        let mut found = None;
        for live in opened.tokens.iter() {
            if live.admitted.matches(token.digest()) {
                found = Some(live);
            }
        }
        let live = found?;
        if live.admitted.has_expired(self.now()) {
            return None;
        }
        Some(Grant {
            namespace: opened.shown.clone(),
            scopes: live.admitted.scopes,
            expires_at: live.admitted.expires_at,
            valid: live.valid.subscribe(),
        })
    }
}

/// Approximate memory of a token, including its watchers.
fn token_weight(token: &TokenEntry) -> usize {
    const BESIDE_BYTES: usize = 256;
    size_of::<LiveToken>() + BESIDE_BYTES + token.id.len() + token.description.len()
}

/// The memory of a namespace that is about to be created.
fn weight(named: &CatalogEntry) -> usize {
    let tokens: usize = named.tokens.iter().map(token_weight).sum();
    namespace::weight(&named.name, &named.description, named.metadata.as_deref()) + tokens
}

impl LiveToken {
    fn new(admitted: TokenEntry) -> LiveToken {
        LiveToken {
            admitted,
            valid: Arc::new(watch::channel(()).0),
        }
    }
}

impl OpenNamespace {
    fn new(named: CatalogEntry, place: &StoreContext, index: NamespaceIndex) -> OpenNamespace {
        let about = NamespaceAttributes {
            name: named.name,
            description: named.description,
            metadata: named.metadata,
            created_at: named.created_at,
        };
        let namespace = Arc::new(EmbeddedNamespace::new(about, named.number, place, index));
        let opened = OpenNamespace {
            shown: Arc::new(namespace.clone()),
            namespace,
            tokens: Arc::new(named.tokens.into_iter().map(LiveToken::new).collect()),
        };
        opened.weigh();
        opened
    }

    /// Updates the namespace's share of the memory budget.
    fn weigh(&self) {
        let tokens: usize = self.tokens.iter().map(|live| token_weight(&live.admitted)).sum();
        self.namespace.own_room.set(self.namespace.about().weight() + tokens);
    }

    /// The catalog entry of the namespace.
    fn named(&self) -> CatalogEntry {
        let NamespaceAttributes {
            name,
            description,
            metadata,
            created_at,
        } = self.namespace.about().clone();
        CatalogEntry {
            number: self.namespace.number,
            name,
            description,
            metadata,
            created_at,
            tokens: self.tokens.iter().map(|live| live.admitted.clone()).collect(),
        }
    }
}

/// Runs work to completion even if the caller goes away, so that a disconnecting client leaves nothing half done.
async fn to_its_end<T: Send + 'static>(work: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
    let done = tokio::spawn(work).await;
    done.unwrap_or_else(|_| Err(EventsError::Unavailable("it was interrupted".to_owned())))
}

impl Store for EmbeddedStore {
    fn backend(&self) -> &'static str {
        if self.inner.place.in_memory { "memory" } else { "log" }
    }

    fn durability(&self) -> &'static str {
        if self.inner.place.in_memory {
            "memory"
        } else {
            self.inner.durability.name()
        }
    }

    fn health(&self) -> Health {
        match self.inner.place.log.status() {
            LogStatus::Healthy | LogStatus::Degraded(_) => Health::Healthy,
            LogStatus::DiskFull(why) | LogStatus::Poisoned(why) => Health::ReadOnly(why),
        }
    }

    fn create(&self, new: NewNamespace) -> BoxFuture<'_, Result<NamespaceInfo>> {
        Box::pin(to_its_end(self.inner.clone().create(new)))
    }

    fn delete<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<u64>> {
        Box::pin(to_its_end(self.inner.clone().delete(name.to_owned())))
    }

    fn namespace<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Arc<dyn Namespace>>> {
        let opened = self.inner.opened(name);
        Box::pin(std::future::ready(opened.map(|opened| opened.shown)))
    }

    fn namespaces(&self) -> BoxFuture<'_, Result<Vec<Arc<dyn Namespace>>>> {
        let namespaces = self.inner.namespaces.read();
        let all = namespaces.all().map(|opened| opened.shown.clone()).collect();
        Box::pin(std::future::ready(Ok(all)))
    }

    fn authorize<'a>(&'a self, token: &'a Token) -> BoxFuture<'a, Result<Option<Grant>>> {
        Box::pin(std::future::ready(Ok(self.inner.authorize(token))))
    }

    fn create_token<'a>(&'a self, namespace: &'a str, token: NewToken) -> BoxFuture<'a, Result<TokenInfo>> {
        Box::pin(to_its_end(self.inner.clone().create_token(namespace.to_owned(), token)))
    }

    fn tokens<'a>(&'a self, namespace: &'a str) -> BoxFuture<'a, Result<Vec<TokenInfo>>> {
        let now = self.inner.now();
        let tokens = self.inner.opened(namespace).map(|opened| {
            let mut tokens: Vec<TokenInfo> = opened
                .tokens
                .iter()
                .filter(|live| !live.admitted.has_expired(now))
                .map(|live| live.admitted.info())
                .collect();
            tokens.sort_by(|one, other| (one.created_at, &one.id).cmp(&(other.created_at, &other.id)));
            tokens
        });
        Box::pin(std::future::ready(tokens))
    }

    fn revoke_token<'a>(&'a self, namespace: &'a str, id: &'a str) -> BoxFuture<'a, Result<bool>> {
        Box::pin(to_its_end(
            self.inner.clone().revoke_token(namespace.to_owned(), id.to_owned()),
        ))
    }

    fn scavenge(&self) -> BoxFuture<'_, Result<ScavengeReport>> {
        Box::pin(to_its_end(scavenge::scavenge(self.inner.clone())))
    }

    fn erase(&self) -> BoxFuture<'_, Result<ScavengeReport>> {
        Box::pin(to_its_end(scavenge::erase(self.inner.clone())))
    }

    fn figures(&self) -> Option<StoreStats> {
        let sizes = self.index_sizes();
        let (recovery, recovered_bytes) = self.inner.recovery;
        Some(StoreStats {
            index_file_bytes: sizes.file_bytes,
            index_memory_bytes: sizes.memory_bytes,
            rule_bytes: self.inner.place.rule_memory.bytes() as u64,
            namespace_bytes: self.inner.place.namespace_memory.bytes() as u64,
            index_tables: sizes.tables as u64,
            index_behind_bytes: sizes.behind_bytes,
            recovery,
            recovered_bytes,
        })
    }

    fn verify(&self) -> BoxFuture<'_, Result<VerifyReport>> {
        Box::pin(verify::verify(self.inner.clone(), Box::new(|_| {})))
    }

    fn backup(&self) -> BoxFuture<'_, Result<Box<dyn BackupPieces>>> {
        Box::pin(backup::begin(self.inner.clone()))
    }
}
