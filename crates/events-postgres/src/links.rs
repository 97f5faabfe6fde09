//! Connections to the database. A few are kept and lent out; one that broke, or was given back in the middle of a
//! transaction, is closed. While the database cannot be reached it is asked again after growing pauses, and everybody else is
//! told at once what the last attempt said.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use thalweg_events::{EventsError, Result};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};

use crate::clock::DatabaseClock;
use crate::database::Database;
use crate::failure::{failed, reason};

const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// How this store works with a database: it locks one row and waits for it; its reads follow an index in its order, whatever
/// is not known yet of how many rows there are.
const SESSION: &str = "SET search_path = thalweg_events, pg_catalog; SET client_min_messages = warning; SET jit = off; \
     SET enable_seqscan = off; SET enable_bitmapscan = off; SET lock_timeout = '10s'; \
     SET idle_in_transaction_session_timeout = '10s'; SET statement_timeout = 0; SET DateStyle = 'ISO'";

pub(crate) type Param<'a> = &'a (dyn ToSql + Sync);

pub(crate) struct Links {
    pub database: Database,
    pub clock: Arc<DatabaseClock>,
    idle: Mutex<Vec<Link>>,
    permits: Arc<Semaphore>,
    outage: Mutex<Option<Outage>>,
}

struct Outage {
    error: EventsError,
    pause: Duration,
    until: Instant,
}

struct Link {
    client: Client,
    statements: HashMap<String, Statement>,
}

/// Goes back when it is dropped.
pub(crate) struct Lent {
    links: Arc<Links>,
    link: Option<Link>,
    in_transaction: bool,
    _permit: OwnedSemaphorePermit,
}

impl Links {
    pub fn new(database: Database, connections: usize) -> Arc<Links> {
        Arc::new(Links {
            database,
            clock: Arc::default(),
            idle: Mutex::default(),
            permits: Arc::new(Semaphore::new(connections.max(2))),
            outage: Mutex::default(),
        })
    }

    pub fn place(&self) -> &str {
        &self.database.place
    }

    pub async fn lend(self: &Arc<Self>) -> Result<Lent> {
        let permit = self.permits.clone().acquire_owned().await;
        let permit = permit.map_err(|_| EventsError::Unavailable("the store is closed".to_owned()))?;
        let link = match self.take_idle() {
            Some(link) => link,
            None => self.connect().await?,
        };
        Ok(Lent {
            links: self.clone(),
            link: Some(link),
            in_transaction: false,
            _permit: permit,
        })
    }

    fn take_idle(&self) -> Option<Link> {
        let mut idle = self.idle.lock();
        idle.retain(|link| !link.client.is_closed());
        idle.pop()
    }

    async fn connect(&self) -> Result<Link> {
        if let Some(outage) = &*self.outage.lock()
            && Instant::now() < outage.until
        {
            return Err(outage.error.clone());
        }
        match self.try_connect().await {
            Ok(client) => {
                *self.outage.lock() = None;
                Ok(Link {
                    client,
                    statements: HashMap::new(),
                })
            }
            Err(error) => {
                // What is idle was connected to what is not there any more.
                self.idle.lock().clear();
                self.unreachable(error.clone());
                Err(error)
            }
        }
    }

    fn unreachable(&self, error: EventsError) {
        let mut outage = self.outage.lock();
        let pause = outage
            .as_ref()
            .map_or(PAUSE_FIRST, |outage| (outage.pause * 2).min(PAUSE_MAX));
        *outage = Some(Outage {
            error,
            pause,
            until: Instant::now() + pause,
        });
    }

    async fn try_connect(&self) -> Result<Client> {
        let database = &self.database;
        let cannot = |error: &tokio_postgres::Error| {
            EventsError::Unavailable(format!(
                "cannot reach the database at {}: {}",
                database.place,
                reason(error)
            ))
        };
        let connected = database.config.connect(database.tls.clone()).await;
        let (client, connection) = connected.map_err(|error| cannot(&error))?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(error = %reason(&error), "a connection to the database ended");
            }
        });
        client.batch_execute(SESSION).await.map_err(|error| cannot(&error))?;
        Ok(client)
    }
}

impl Lent {
    /// Prepared once for each connection.
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

    /// Returns how many rows it changed.
    pub async fn execute(&mut self, sql: &str, parameters: &[Param<'_>]) -> Result<u64> {
        let statement = self.prepare(sql).await?;
        let answer = self.client()?.execute(&statement, parameters).await;
        answer.map_err(|error| failed(self.links.place(), &error))
    }

    /// From here until `commit` nothing is stored; if it is dropped before, nothing is.
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

    /// Whoever uses the client itself says what he did.
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

    fn link(&mut self) -> Result<&mut Link> {
        let link = self.link.as_mut();
        link.ok_or_else(|| EventsError::Unavailable("the connection is closed".to_owned()))
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(link) = self.link.take()
            && !self.in_transaction
            && !link.client.is_closed()
        {
            self.links.idle.lock().push(link);
        }
    }
}
