//! The connection pool. A connection that broke, or that was returned in the middle of a transaction, is closed. While
//! the database is unreachable, one caller at a time retries after growing pauses, and all others fail at once with the
//! last error.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use thalweg_events::{EventsError, Result};
use thalweg_kit::backoff::Backoff;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};

use crate::clock::DatabaseClock;
use crate::database::{CONNECT_TIMEOUT, ConnectError, Database};
use crate::failure::{failed, reason};

pub(crate) const PAUSES: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
/// While the start waits for the database, this is how often it checks that the database still answers.
const LOOK: Duration = Duration::from_secs(10);

/// Session settings for this store's access pattern: it locks one row and waits for it, and its reads follow an index
/// in order even while table statistics are missing.
const SESSION: &str = "SET search_path = thalweg_events, pg_catalog; SET client_min_messages = warning; SET jit = off; \
     SET enable_seqscan = off; SET enable_bitmapscan = off; SET lock_timeout = '10s'; \
     SET idle_in_transaction_session_timeout = '10s'; SET statement_timeout = 0; SET DateStyle = 'ISO'";

pub(crate) type Param<'a> = &'a (dyn ToSql + Sync);

pub(crate) struct ConnectionPool {
    pub database: Database,
    pub clock: Arc<DatabaseClock>,
    idle: Mutex<Vec<DatabaseConnection>>,
    permits: Arc<Semaphore>,
    outage: Mutex<Option<Outage>>,
    /// Changes when all connections are abandoned.
    given_up: watch::Sender<()>,
}

struct Outage {
    error: EventsError,
    pauses: Backoff,
    until: Instant,
    /// One caller retries; the others get the last error.
    is_asked: bool,
}

/// The caller that retries, even if it is dropped before the attempt ends.
struct ReconnectGuard<'l>(&'l Mutex<Option<Outage>>);

impl Drop for ReconnectGuard<'_> {
    fn drop(&mut self) {
        if let Some(outage) = &mut *self.0.lock() {
            outage.is_asked = false;
        }
    }
}

struct DatabaseConnection {
    client: Client,
    statements: HashMap<String, Statement>,
}

/// Returns to the pool when it is dropped.
pub(crate) struct PooledConnection {
    links: Arc<ConnectionPool>,
    link: Option<DatabaseConnection>,
    in_transaction: bool,
    _permit: OwnedSemaphorePermit,
}

impl ConnectionPool {
    pub fn new(database: Database, connections: usize) -> Arc<ConnectionPool> {
        Arc::new(ConnectionPool {
            database,
            clock: Arc::default(),
            idle: Mutex::default(),
            permits: Arc::new(Semaphore::new(connections.max(2))),
            outage: Mutex::default(),
            given_up: watch::Sender::default(),
        })
    }

    pub fn place(&self) -> &str {
        &self.database.place
    }

    pub async fn lend(self: &Arc<Self>) -> Result<PooledConnection> {
        let permit = self.permits.clone().acquire_owned().await;
        let permit = permit.map_err(|_| EventsError::Unavailable("the store is closed".to_owned()))?;
        let link = match self.take_idle() {
            Some(link) => link,
            None => self.connect().await?,
        };
        Ok(PooledConnection {
            links: self.clone(),
            link: Some(link),
            in_transaction: false,
            _permit: permit,
        })
    }

    fn take_idle(&self) -> Option<DatabaseConnection> {
        let mut idle = self.idle.lock();
        idle.retain(|link| !link.client.is_closed());
        idle.pop()
    }

    async fn connect(&self) -> Result<DatabaseConnection> {
        let _asking = match &mut *self.outage.lock() {
            Some(outage) if outage.is_asked || thalweg_kit::clock::now() < outage.until => {
                return Err(outage.error.clone());
            }
            Some(outage) => {
                outage.is_asked = true;
                Some(ReconnectGuard(&self.outage))
            }
            None => None,
        };
        match self.try_connect().await {
            Ok(client) => {
                *self.outage.lock() = None;
                Ok(DatabaseConnection {
                    client,
                    statements: HashMap::new(),
                })
            }
            Err(error) => {
                // Idle connections belong to a server that is gone.
                self.idle.lock().clear();
                self.unreachable(error.clone());
                Err(error)
            }
        }
    }

    fn unreachable(&self, error: EventsError) {
        let mut outage = self.outage.lock();
        let mut pauses = outage.take().map_or(PAUSES, |outage| outage.pauses);
        let pause = pauses.next_pause();
        *outage = Some(Outage {
            error,
            pauses,
            until: thalweg_kit::clock::now() + pause,
            is_asked: false,
        });
    }

    /// The database answers: callers need not wait for the end of a pause.
    pub fn reached(&self) {
        *self.outage.lock() = None;
    }

    /// Returns once a new connection finds a host that does not respond: then pending queries get no answer either.
    pub async fn until_silent(&self) -> EventsError {
        loop {
            tokio::time::sleep(LOOK).await;
            if self.database.connect().await.was_silent {
                return self.silent();
            }
        }
    }

    fn silent(&self) -> EventsError {
        EventsError::Unavailable(format!("the database at {} does not answer", self.database.place))
    }

    async fn try_connect(&self) -> Result<Client> {
        let database = &self.database;
        let cannot = |why: &ConnectError| {
            EventsError::Unavailable(format!("cannot reach the database at {}: {why}", database.place))
        };
        // Before the attempt, so that connections abandoned meanwhile include this one.
        let mut given_up = self.given_up.subscribe();
        let connected = database.connect().await.connected;
        let (client, connection) = connected.map_err(|why| cannot(&why))?;
        tokio::spawn(async move {
            tokio::select! {
                ended = connection => {
                    if let Err(error) = ended {
                        tracing::debug!(error = %reason(&error), "a connection to the database ended");
                    }
                }
                _ = given_up.changed() => {}
            }
        });
        let said = tokio::time::timeout(CONNECT_TIMEOUT, client.batch_execute(SESSION)).await;
        let said = said.map_err(|_| cannot(&ConnectError::Silent(CONNECT_TIMEOUT)))?;
        said.map_err(|error| cannot(&ConnectError::Failed(error)))?;
        Ok(client)
    }

    /// Call when the database neither answers queries nor accepts logins: pending callers fail as if their connections
    /// were lost. A database that is only busy still accepts a new connection, which tells the two cases apart.
    pub fn give_up(&self) {
        self.idle.lock().clear();
        self.unreachable(self.silent());
        self.given_up.send_replace(());
    }
}

impl PooledConnection {
    /// Prepares once per connection.
    pub async fn prepare(&mut self, sql: &str) -> Result<Statement> {
        let links = self.links.clone();
        let link = self.link()?;
        if let Some(statement) = link.statements.get(sql) {
            return Ok(statement.clone());
        }
        let prepared = link.client.prepare(sql).await;
        let statement = prepared.map_err(|error| failed(links.place(), &error))?;
        link.statements.insert(sql.to_owned(), statement.clone());
        Ok(statement)
    }

    pub async fn query(&mut self, sql: &str, parameters: &[Param<'_>]) -> Result<Vec<Row>> {
        let statement = self.prepare(sql).await?;
        let answer = self.client()?.query(&statement, parameters).await;
        answer.map_err(|error| failed(self.links.place(), &error))
    }

    pub async fn first(&mut self, sql: &str, parameters: &[Param<'_>]) -> Result<Option<Row>> {
        Ok(self.query(sql, parameters).await?.into_iter().next())
    }

    /// Returns the number of changed rows.
    pub async fn execute(&mut self, sql: &str, parameters: &[Param<'_>]) -> Result<u64> {
        let statement = self.prepare(sql).await?;
        let answer = self.client()?.execute(&statement, parameters).await;
        answer.map_err(|error| failed(self.links.place(), &error))
    }

    /// Nothing is stored before `commit`; dropping the connection earlier rolls back.
    pub async fn begin(&mut self) -> Result<()> {
        self.in_transaction = true;
        self.simple("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE").await
    }

    pub async fn commit(&mut self) -> Result<()> {
        self.simple("COMMIT").await?;
        self.in_transaction = false;
        Ok(())
    }

    pub async fn rollback(&mut self) -> Result<()> {
        self.simple("ROLLBACK").await?;
        self.in_transaction = false;
        Ok(())
    }

    /// A caller that uses the client directly must report its transaction state.
    pub fn set_in_transaction(&mut self, is: bool) {
        self.in_transaction = is;
    }

    pub async fn simple(&mut self, sql: &str) -> Result<()> {
        let answer = self.client()?.batch_execute(sql).await;
        answer.map_err(|error| failed(self.links.place(), &error))
    }

    pub fn client(&self) -> Result<&Client> {
        let link = self.link.as_ref().map(|link| &link.client);
        link.ok_or_else(|| EventsError::Unavailable("the connection is closed".to_owned()))
    }

    pub fn place(&self) -> &str {
        self.links.place()
    }

    pub fn is_closed(&self) -> bool {
        self.link.as_ref().is_none_or(|link| link.client.is_closed())
    }

    fn link(&mut self) -> Result<&mut DatabaseConnection> {
        let link = self.link.as_mut();
        link.ok_or_else(|| EventsError::Unavailable("the connection is closed".to_owned()))
    }
}

impl Drop for PooledConnection {
    fn drop(&mut self) {
        if let Some(link) = self.link.take()
            && !self.in_transaction
            && !link.client.is_closed()
        {
            self.links.idle.lock().push(link);
        }
    }
}
