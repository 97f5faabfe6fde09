//! The store: namespaces and tokens are rows; this server caches those in use.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use thalweg_events::{
    BackupPieces, BoxFuture, EventsError, Grant, Health, Namespace, NamespaceInfo, NewNamespace, NewToken, Result,
    ScavengeReport, Store, Token, TokenInfo, VerifyReport, admission, limits, time,
};
use thalweg_kit::clock::Clock as _;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio_postgres::Row;

use crate::clock;
use crate::columns::{get, is_plain, unsigned};
use crate::connection_pool::{ConnectionPool, Param};
use crate::database::Database;
use crate::listen;
use crate::namespace::{NamespaceIdentity, PostgresNamespace, WatermarkTracker};
use crate::schema;
use crate::sweep;
use crate::tokens::{self, ActiveGrant};

/// How long cached tokens are trusted after the last contact with the database.
const TRUST: Duration = Duration::from_secs(3);

pub struct PostgresOptions {
    /// The most simultaneous connections, not counting the one that listens.
    pub connections: usize,
}

impl Default for PostgresOptions {
    fn default() -> PostgresOptions {
        PostgresOptions { connections: 10 }
    }
}

/// The event store on PostgreSQL. Several servers may share a database.
pub struct PostgresStore {
    core: Arc<StoreCore>,
    is_relaxed: bool,
    tasks: Vec<AbortHandle>,
}

pub(crate) struct StoreCore {
    pub links: Arc<ConnectionPool>,
    open: Mutex<HashMap<i64, OpenNamespace>>,
    names: Mutex<HashMap<String, i64>>,
    pub grants: Mutex<HashMap<i64, ActiveGrant>>,
    state: Mutex<DatabaseHealth>,
    /// There is something to sweep.
    pub retired: Notify,
}

struct OpenNamespace {
    namespace: Arc<PostgresNamespace>,
    tokens_change: i64,
}

#[derive(Default)]
struct DatabaseHealth {
    heard: Option<Instant>,
    lost: Option<String>,
}

impl PostgresStore {
    /// `url`: `postgres://user:password@host:port/database`, with `sslmode` and `sslrootcert` as in PostgreSQL's
    /// clients. Creates or migrates the schema `thalweg_events`. Fails if the database is unreachable; if it becomes
    /// unreachable later, requests fail until it is back.
    pub async fn open(url: &str, options: PostgresOptions) -> Result<PostgresStore> {
        let links = ConnectionPool::new(Database::parse(url)?, options.connections);
        let begun = async {
            let mut link = links.lend().await?;
            schema::migrate(&mut link).await?;
            let is_relaxed = schema::is_relaxed(&mut link).await?;
            links.clock.ask(&mut link).await?;
            Ok::<bool, EventsError>(is_relaxed)
        };
        let is_relaxed = tokio::select! {
            biased;
            begun = begun => begun?,
            // A migration may take long, and the listener, which would notice an outage, does not run yet.
            error = links.until_silent() => return Err(error),
        };
        if is_relaxed {
            tracing::warn!(
                database = links.place(),
                "synchronous_commit or fsync is off: an answered write may be lost when the database crashes"
            );
        }
        let core = Arc::new(StoreCore {
            links,
            open: Mutex::default(),
            names: Mutex::default(),
            grants: Mutex::default(),
            state: Mutex::default(),
            retired: Notify::new(),
        });
        let tasks = vec![
            tokio::spawn(listen::listen(Arc::downgrade(&core))).abort_handle(),
            tokio::spawn(sweep::sweep_on(Arc::downgrade(&core))).abort_handle(),
            tokio::spawn(clock::follow(Arc::downgrade(&core))).abort_handle(),
        ];
        Ok(PostgresStore {
            core,
            is_relaxed,
            tasks,
        })
    }
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl StoreCore {
    pub fn opened(&self, name: &str) -> Option<Arc<PostgresNamespace>> {
        let id = *self.names.lock().get(name)?;
        self.opened_by_id(id)
    }

    pub fn opened_by_id(&self, id: i64) -> Option<Arc<PostgresNamespace>> {
        let open = self.open.lock();
        let namespace = open.get(&id).map(|open| open.namespace.clone());
        namespace.filter(|namespace| !namespace.seen.is_ended())
    }

    pub fn open_ids(&self) -> Vec<i64> {
        self.open.lock().keys().copied().collect()
    }

    /// `row` has the columns `id, last_global, change, cleared`.
    pub fn open_row(&self, name: &str, row: &Row) -> Result<Arc<PostgresNamespace>> {
        let id: i64 = get(row, 0)?;
        let (last, change, cleared) = (get(row, 1)?, get(row, 2)?, get(row, 3)?);
        let mut open = self.open.lock();
        let opened = open.entry(id).or_insert_with(|| {
            let identity = NamespaceIdentity {
                id,
                name: name.to_owned(),
            };
            OpenNamespace {
                namespace: PostgresNamespace::new(identity, &self.links, WatermarkTracker::new(last, change, cleared)),
                tokens_change: 0,
            }
        });
        let namespace = opened.namespace.clone();
        drop(open);
        namespace.seen.tell(last, change, cleared);
        self.names.lock().insert(name.to_owned(), id);
        Ok(namespace)
    }

    /// Finds a namespace; queries the database if it is not open here.
    pub async fn find(&self, name: &str) -> Result<Arc<PostgresNamespace>> {
        if let Some(namespace) = self.opened(name) {
            return Ok(namespace);
        }
        let missing = || EventsError::NamespaceNotFound(name.to_owned());
        if !is_plain(name) {
            return Err(missing());
        }
        let sql = "SELECT id, last_global, change, cleared FROM namespaces WHERE name = $1";
        let row = self.links.lend().await?.first(sql, &[&name]).await?;
        self.open_row(name, &row.ok_or_else(missing)?)
    }

    /// The namespace was deleted.
    pub fn close(&self, id: i64) {
        let closed = self.open.lock().remove(&id);
        if let Some(closed) = closed {
            closed.namespace.seen.end();
            self.names.lock().retain(|_, known| *known != id);
        }
        self.grants.lock().retain(|_, granted| granted.namespace != id);
    }

    /// Applies a polled row of a namespace.
    pub fn looked(&self, id: i64, last: i64, change: i64, cleared: i64, tokens_change: i64) {
        let mut open = self.open.lock();
        let Some(known) = open.get_mut(&id) else { return };
        let namespace = known.namespace.clone();
        let tokens_changed = std::mem::replace(&mut known.tokens_change, tokens_change) != tokens_change;
        drop(open);
        namespace.seen.tell(last, change, cleared);
        if tokens_changed {
            namespace.forget_tokens();
        }
    }

    pub fn forget_all_tokens(&self) {
        let open = self.open.lock();
        open.values().for_each(|open| open.namespace.forget_tokens());
    }

    pub fn heard(&self) {
        let mut state = self.state.lock();
        state.heard = Some(thalweg_kit::clock::now());
        state.lost = None;
    }

    pub fn lost(&self, why: &str) {
        let mut state = self.state.lock();
        state.heard = None;
        state.lost = Some(why.to_owned());
    }

    pub fn hears_everything(&self) -> bool {
        self.state.lock().heard.is_some_and(|heard| heard.elapsed() < TRUST)
    }

    async fn create_namespace(&self, new: NewNamespace) -> Result<NamespaceInfo> {
        limits::check_namespace(&new.name)?;
        let mut link = self.links.lend().await?;
        link.begin().await?;
        let now = time::now();
        let sql = "INSERT INTO namespaces (name, description, metadata, created_at) VALUES ($1, $2, $3, $4) \
             ON CONFLICT DO NOTHING RETURNING id, last_global, change, cleared";
        let parameters: [Param<'_>; 4] = [&new.name, &new.description.as_bytes(), &new.metadata, &now];
        let Some(row) = link.first(sql, &parameters).await? else {
            link.rollback().await?;
            return Err(EventsError::NamespaceExists(new.name));
        };
        let id: i64 = get(&row, 0)?;
        let (token_id, token) = (tokens::new_id()?, new.first_token());
        let parameters: [Param<'_>; 9] = [
            &id,
            &token_id,
            &token.digest.as_bytes().as_slice(),
            &token.scopes.read,
            &token.scopes.write,
            &token.scopes.admin,
            &token.description.as_bytes(),
            &now,
            &token.expires_at,
        ];
        link.query(tokens::INSERT, &parameters).await?;
        link.commit().await?;
        self.open_row(&new.name, &row)?;
        Ok(NamespaceInfo {
            name: new.name,
            description: new.description,
            metadata: new.metadata,
            created_at: now,
            messages: 0,
            streams: 0,
            last_activity: None,
        })
    }

    async fn delete_namespace(&self, name: &str) -> Result<u64> {
        let namespace = self.find(name).await?;
        admission::may_be_deleted(name)?;
        let id = namespace.identity.id;
        let mut link = self.links.lend().await?;
        let before = namespace.lock(&mut link).await?;
        // Expired messages do not count.
        let sql = "SELECT trim_stream($1, stream, $2) FROM streams WHERE space = $1 AND expires_at < $2";
        link.query(sql, &[&before.space, &self.links.clock.now()]).await?;
        link.execute("INSERT INTO retired_spaces (space) VALUES ($1)", &[&before.space])
            .await?;
        let sql = "DELETE FROM namespaces WHERE id = $1 RETURNING messages, pg_notify('thalweg_events', 'd ' || id)";
        let row = link.first(sql, &[&id]).await?;
        link.commit().await?;
        drop(link);
        self.close(id);
        self.retired.notify_one();
        row.as_ref().map_or(Ok(0), |row| get(row, 0).map(unsigned))
    }

    async fn all(&self) -> Result<Vec<Arc<dyn Namespace>>> {
        let sql = "SELECT id, last_global, change, cleared, name FROM namespaces";
        let rows = self.links.lend().await?.query(sql, &[]).await?;
        let mut all = Vec::with_capacity(rows.len());
        for row in &rows {
            all.push(self.open_row(get(row, 4)?, row)? as Arc<dyn Namespace>);
        }
        Ok(all)
    }
}

impl Store for PostgresStore {
    fn backend(&self) -> &'static str {
        "postgres"
    }

    fn durability(&self) -> &'static str {
        if self.is_relaxed { "relaxed" } else { "fsync" }
    }

    fn health(&self) -> Health {
        match &self.core.state.lock().lost {
            Some(why) => Health::ReadOnly(why.clone()),
            None => Health::Healthy,
        }
    }

    fn create(&self, new: NewNamespace) -> BoxFuture<'_, Result<NamespaceInfo>> {
        Box::pin(self.core.create_namespace(new))
    }

    fn delete<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<u64>> {
        Box::pin(self.core.delete_namespace(name))
    }

    fn namespace<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Arc<dyn Namespace>>> {
        Box::pin(async move { Ok(self.core.find(name).await? as Arc<dyn Namespace>) })
    }

    fn namespaces(&self) -> BoxFuture<'_, Result<Vec<Arc<dyn Namespace>>>> {
        Box::pin(self.core.all())
    }

    fn authorize<'a>(&'a self, token: &'a Token) -> BoxFuture<'a, Result<Option<Grant>>> {
        Box::pin(self.core.grant(token))
    }

    fn create_token<'a>(&'a self, namespace: &'a str, token: NewToken) -> BoxFuture<'a, Result<TokenInfo>> {
        Box::pin(self.core.add_token(namespace, token))
    }

    fn tokens<'a>(&'a self, namespace: &'a str) -> BoxFuture<'a, Result<Vec<TokenInfo>>> {
        Box::pin(self.core.list_tokens(namespace))
    }

    fn revoke_token<'a>(&'a self, namespace: &'a str, id: &'a str) -> BoxFuture<'a, Result<bool>> {
        Box::pin(self.core.remove_token(namespace, id))
    }

    fn erase(&self) -> BoxFuture<'_, Result<ScavengeReport>> {
        let what = "PostgreSQL keeps the bytes of removed rows in its tables and its write-ahead log: after sys.scavenge, \
             VACUUM FULL thalweg_events.messages removes them from the table";
        Box::pin(std::future::ready(Err(EventsError::Unsupported(what.to_owned()))))
    }

    fn scavenge(&self) -> BoxFuture<'_, Result<ScavengeReport>> {
        Box::pin(sweep::scavenge(&self.core))
    }

    fn verify(&self) -> BoxFuture<'_, Result<VerifyReport>> {
        Box::pin(sweep::verify(&self.core))
    }

    fn backup(&self) -> BoxFuture<'_, Result<Box<dyn BackupPieces>>> {
        let what =
            "The event store is in PostgreSQL, which makes its own backups; use pg_dump with --schema=thalweg_events";
        Box::pin(std::future::ready(Err(EventsError::Unsupported(what.to_owned()))))
    }
}
