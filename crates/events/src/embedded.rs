//! The store on the durable log: a partition for each namespace, and one for the catalogue of them.

mod catalog;
mod import;
mod index;
mod namespace;
mod reader;
mod sequencer;

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::RwLock;
use thalweg_log::format::frame::Kind;
use thalweg_log::format::record::records;
use thalweg_log::{Durability, Log, LogStatus, PartitionId, ReadWant};

use catalog::{Admitted, Catalog, Change, Named};
use index::{Entry, Index};
use namespace::{About, EmbeddedNamespace, Place, not_yet};

use crate::error::{EventsError, Result};
use crate::event::EventRef;
use crate::store::{
    BoxFuture, Grant, Health, Namespace, NamespaceInfo, NewNamespace, NewToken, Scavenged, Scopes, Store, TokenInfo,
    Verified,
};
use crate::time;
use crate::token::Token;

/// Bytes read at once while an index is built.
const READ: usize = 4 << 20;

pub struct EmbeddedStore {
    place: Place,
    durability: Durability,
    namespaces: RwLock<HashMap<String, Opened>>,
    /// Held while namespaces change.
    catalog: tokio::sync::Mutex<Catalog>,
}

#[derive(Clone)]
struct Opened {
    number: u32,
    namespace: Arc<EmbeddedNamespace>,
    /// The same.
    shown: Arc<dyn Namespace>,
    tokens: Arc<Vec<Admitted>>,
}

pub struct EventsOptions {
    pub durability: Durability,
    /// The log is in memory.
    pub in_memory: bool,
}

impl EmbeddedStore {
    /// With all namespaces that the log has.
    pub async fn open(log: Arc<dyn Log>, options: EventsOptions) -> Result<EmbeddedStore> {
        let place = Place {
            log: log.clone(),
            in_memory: options.in_memory,
            clock: Arc::new(time::now),
        };
        let durability = options.durability;
        let (catalog, known) = Catalog::open(log.clone(), durability).await?;
        catalog.settle(&known, durability).await?;
        let mut namespaces = HashMap::new();
        for named in known {
            let (own, id) = (log.clone(), catalog::partition(named.number));
            let index = tokio::task::spawn_blocking(move || read_index(own.as_ref(), id)).await;
            let index = index.map_err(|_| EventsError::Unavailable("the index was not built".to_owned()))??;
            let opened = Opened::new(named, &place, index);
            namespaces.insert(opened.namespace.about().name.clone(), opened);
        }
        Ok(EmbeddedStore {
            place,
            durability,
            namespaces: RwLock::new(namespaces),
            catalog: tokio::sync::Mutex::new(catalog),
        })
    }

    fn opened(&self, name: &str) -> Result<Opened> {
        let found = self.namespaces.read().get(name).cloned();
        found.ok_or_else(|| EventsError::NamespaceNotFound(name.to_owned()))
    }

    async fn create_namespace(&self, new: NewNamespace) -> Result<NamespaceInfo> {
        let mut catalog = self.catalog.lock().await;
        if self.namespaces.read().contains_key(&new.name) {
            return Err(EventsError::NamespaceExists(new.name));
        }
        let now = (self.place.clock)();
        let named = Named {
            number: catalog.last + 1,
            name: new.name,
            description: new.description,
            metadata: new.metadata,
            created_at: now,
            tokens: vec![Admitted::new(&new.digest, new.scopes)],
        };
        catalog.store(&Change::Created(named.clone()), now).await?;
        self.place
            .log
            .create(catalog::partition(named.number), self.durability)
            .await?;
        let opened = Opened::new(named, &self.place, Index::default());
        let info = opened.namespace.info().await;
        let name = opened.namespace.about().name.clone();
        self.namespaces.write().insert(name, opened);
        info
    }

    async fn delete_namespace(&self, name: &str) -> Result<u64> {
        let mut catalog = self.catalog.lock().await;
        let opened = self.opened(name)?;
        if name == DEFAULT {
            return Err(EventsError::NamespaceKept);
        }
        let number = opened.number;
        catalog.store(&Change::Removed { number }, (self.place.clock)()).await?;
        self.namespaces.write().remove(name);
        let messages = opened.namespace.info().await?.messages;
        self.place.log.remove(opened.namespace.partition()).await?;
        Ok(messages)
    }

    #[allow(dead_code)]
    async fn admit_token(&self, token: &Token, scopes: Scopes) -> Result<()> {
        let mut catalog = self.catalog.lock().await;
        let opened = self.opened(token.namespace())?;
        if opened
            .tokens
            .iter()
            .any(|known| known.matches(token.digest()) && known.scopes == scopes)
        {
            return Ok(());
        }
        let admitted = Admitted::new(token.digest(), scopes);
        let change = Change::Admitted {
            number: opened.number,
            token: admitted.clone(),
        };
        catalog.store(&change, (self.place.clock)()).await?;
        if let Some(opened) = self.namespaces.write().get_mut(token.namespace()) {
            Arc::make_mut(&mut opened.tokens).push(admitted);
        }
        Ok(())
    }
}

/// The namespace that always exists.
pub const DEFAULT: &str = "default";

impl Opened {
    fn new(named: Named, place: &Place, index: Index) -> Opened {
        let about = About {
            name: named.name,
            description: named.description,
            metadata: named.metadata,
            created_at: named.created_at,
        };
        let partition = catalog::partition(named.number);
        let namespace = EmbeddedNamespace::new(about, partition, place, index);
        let namespace = Arc::new(namespace);
        Opened {
            number: named.number,
            shown: Arc::new(namespace.clone()),
            namespace,
            tokens: Arc::new(named.tokens),
        }
    }
}

/// Of all that is in a partition. Blocks.
fn read_index(log: &dyn Log, id: PartitionId) -> Result<Index> {
    let mut index = Index::default();
    let bounds = log.bounds(id)?;
    let mut from = bounds.first;
    while from < bounds.next {
        let want = ReadWant {
            bytes: READ,
            synced: false,
        };
        let frames = log.read(id, from, want)?;
        let Some(last) = frames.last() else { break };
        from = last.header.next();
        for frame in frames.iter().filter(|frame| frame.header.kind == Kind::Data) {
            for (record, n) in records(&frame.body).zip(0_u64..) {
                let damaged =
                    || EventsError::Damaged(format!("what is at offset {} is no message", frame.header.base + n));
                let record = record.map_err(|_| damaged())?;
                let event = EventRef::decode(record.value, record.time).ok_or_else(damaged)?;
                let offset = frame.header.base + record.delta.map_or(n, u64::from);
                let stream = index.name(event.stream).unwrap_or_else(|| event.stream.into());
                index.add(Entry::of(&event, stream, offset));
            }
        }
    }
    index.next_offset = bounds.next;
    Ok(index)
}

impl Store for EmbeddedStore {
    fn backend(&self) -> &'static str {
        if self.place.in_memory { "memory" } else { "log" }
    }

    fn durability(&self) -> &'static str {
        if self.place.in_memory {
            "memory"
        } else {
            self.durability.name()
        }
    }

    fn health(&self) -> Health {
        match self.place.log.status() {
            LogStatus::Healthy | LogStatus::Degraded(_) => Health::Healthy,
            LogStatus::DiskFull(why) | LogStatus::Poisoned(why) => Health::ReadOnly(why),
        }
    }

    fn create(&self, new: NewNamespace) -> BoxFuture<'_, Result<NamespaceInfo>> {
        Box::pin(self.create_namespace(new))
    }

    fn delete<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<u64>> {
        Box::pin(self.delete_namespace(name))
    }

    fn namespace<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Arc<dyn Namespace>>> {
        Box::pin(std::future::ready(self.opened(name).map(|opened| opened.shown)))
    }

    fn namespaces(&self) -> BoxFuture<'_, Result<Vec<Arc<dyn Namespace>>>> {
        let all = self
            .namespaces
            .read()
            .values()
            .map(|opened| opened.shown.clone())
            .collect();
        Box::pin(std::future::ready(Ok(all)))
    }

    fn authorize<'a>(&'a self, token: &'a Token) -> BoxFuture<'a, Result<Option<Grant>>> {
        let opened = self.opened(token.namespace()).ok();
        // Without the namespace as much is compared.
        let nobody = [Admitted::new(token.digest(), Scopes::default())];
        let tokens = opened.as_ref().map_or(&nobody[..], |opened| &opened.tokens);
        let mut scopes = Scopes::default();
        for known in tokens {
            let matches = known.matches(token.digest());
            scopes.read |= matches && known.scopes.read;
            scopes.write |= matches && known.scopes.write;
            scopes.admin |= matches && known.scopes.admin;
        }
        let valid = opened.filter(|_| scopes != Scopes::default());
        let grant = valid.map(|opened| Grant {
            namespace: opened.shown,
            scopes,
            expires_at: None,
            valid: tokio::sync::watch::channel(()).1,
        });
        Box::pin(std::future::ready(Ok(grant)))
    }

    fn create_token<'a>(&'a self, _: &'a str, _: NewToken) -> BoxFuture<'a, Result<TokenInfo>> {
        not_yet()
    }

    fn tokens<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Vec<TokenInfo>>> {
        not_yet()
    }

    fn revoke_token<'a>(&'a self, _: &'a str, _: &'a str) -> BoxFuture<'a, Result<bool>> {
        not_yet()
    }

    fn scavenge(&self) -> BoxFuture<'_, Result<Scavenged>> {
        not_yet()
    }

    fn verify(&self) -> BoxFuture<'_, Result<Verified>> {
        not_yet()
    }
}
