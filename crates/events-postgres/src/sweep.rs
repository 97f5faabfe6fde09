//! Removes detached messages, a few thousand rows at a time, and verifies counts against the stored messages.

use std::sync::{Arc, Weak};
use std::time::Duration;

use thalweg_events::{Fault, Namespace as _, Result, ScavengeReport, VerifyReport};
use tokio_postgres::Row;

use thalweg_kit::clock::Clock as _;

use crate::columns::{get, unsigned};
use crate::connection_pool::PooledConnection;
use crate::store::StoreCore;

/// Messages per transaction.
const ROWS: i64 = 5000;
const PAUSE: Duration = Duration::from_secs(60);

const SWEEP: &str = "WITH gone AS (DELETE FROM messages WHERE space = $1 AND ($2::bigint IS NULL OR stream = $2) \
     AND global = ANY(ARRAY(SELECT global FROM messages WHERE space = $1 AND ($2::bigint IS NULL OR stream = $2) LIMIT $3)) \
     RETURNING octet_length(data) + coalesce(octet_length(metadata), 0) + octet_length(kind) AS bytes) \
     SELECT count(*), coalesce(sum(bytes), 0)::bigint FROM gone";

/// Runs until the store is dropped.
pub(crate) async fn sweep_on(core: Weak<StoreCore>) {
    loop {
        let Some(strong) = core.upgrade() else { return };
        if let Err(error) = sweep(&strong).await {
            tracing::debug!(%error, "deleted messages could not be removed; retrying later");
        }
        let _ = tokio::time::timeout(PAUSE, strong.retired.notified()).await;
    }
}

pub(crate) async fn scavenge(core: &Arc<StoreCore>) -> Result<ScavengeReport> {
    let mut old = 0;
    let mut link = core.links.lend().await?;
    // Usually the next read removes expired messages; here there may be none.
    let sql = "SELECT DISTINCT n.name, n.messages FROM namespaces n JOIN streams s ON s.space = n.space \
         WHERE s.expires_at < $1";
    let rows = link.query(sql, &[&core.links.clock.now()]).await?;
    drop(link);
    for row in &rows {
        let namespace = core.find(get(row, 0)?).await?;
        let before = unsigned(get(row, 1)?);
        old += before.saturating_sub(namespace.info().await?.messages);
    }
    let swept = sweep(core).await?;
    Ok(ScavengeReport {
        messages: swept.messages + old,
        bytes: swept.bytes,
    })
}

async fn sweep(core: &StoreCore) -> Result<ScavengeReport> {
    let mut swept = ScavengeReport::default();
    let mut link = core.links.lend().await?;
    let streams = link.query("SELECT space, stream FROM retired_streams", &[]).await?;
    for row in &streams {
        let (space, stream): (i64, i64) = (get(row, 0)?, get(row, 1)?);
        remove(&mut link, space, Some(stream), &mut swept).await?;
        let sql = "DELETE FROM retired_streams WHERE space = $1 AND stream = $2";
        link.execute(sql, &[&space, &stream]).await?;
    }
    let spaces = link.query("SELECT space FROM retired_spaces", &[]).await?;
    for row in &spaces {
        let space: i64 = get(row, 0)?;
        remove(&mut link, space, None, &mut swept).await?;
        link.execute("DELETE FROM streams WHERE space = $1", &[&space]).await?;
        link.execute("DELETE FROM categories WHERE space = $1", &[&space])
            .await?;
        link.execute("DELETE FROM retired_spaces WHERE space = $1", &[&space])
            .await?;
    }
    Ok(swept)
}

async fn remove(
    link: &mut PooledConnection,
    space: i64,
    stream: Option<i64>,
    swept: &mut ScavengeReport,
) -> Result<()> {
    loop {
        let row = link.first(SWEEP, &[&space, &stream, &ROWS]).await?;
        let (count, bytes) = match &row {
            Some(row) => (unsigned(get(row, 0)?), unsigned(get(row, 1)?)),
            None => (0, 0),
        };
        swept.messages += count;
        swept.bytes += bytes;
        if count == 0 {
            return Ok(());
        }
    }
}

/// A consistent snapshot per namespace. `length` reads the text itself, even if it is stored out of line.
const TOTALS: &str = "SELECT count(*), coalesce(sum(octet_length(m.data) + coalesce(octet_length(m.metadata), 0)), 0)::bigint, \
     coalesce(sum(length(m.data) + coalesce(length(m.metadata), 0)), 0)::bigint \
     FROM messages m JOIN streams s ON s.space = m.space AND s.stream = m.stream WHERE m.space = $1";

/// Each returns the place and the description of the first fault.
const CHECKS: [&str; 4] = [
    "SELECT coalesce(max(m.global), 0), 'stream ' || s.name || ' has ' || count(m.global) || ' messages and says ' || s.messages \
     FROM streams s LEFT JOIN messages m ON m.space = s.space AND m.stream = s.stream \
     WHERE s.space = $1 GROUP BY s.stream, s.name, s.messages HAVING count(m.global) <> s.messages LIMIT 1",
    "SELECT m.global, 'stream ' || s.name || ' has position ' || m.position || ' beyond its version ' || s.version \
     FROM streams s JOIN messages m ON m.space = s.space AND m.stream = s.stream \
     WHERE s.space = $1 AND m.position > s.version LIMIT 1",
    "SELECT m.global, 'a message lies beyond the last global position ' || n.last_global \
     FROM namespaces n JOIN messages m ON m.space = n.space WHERE n.space = $1 AND m.global > n.last_global LIMIT 1",
    "SELECT 0::bigint, 'category ' || c.name || ' says ' || c.messages || ' messages in ' || c.streams || ' streams, and has ' \
     || coalesce(sum(s.messages), 0) || ' in ' || count(s.stream) FROM categories c \
     LEFT JOIN streams s ON s.space = c.space AND s.category = c.category AND s.messages > 0 \
     WHERE c.space = $1 GROUP BY c.category, c.name, c.messages, c.streams \
     HAVING coalesce(sum(s.messages), 0) <> c.messages OR count(s.stream) <> c.streams LIMIT 1",
];

pub(crate) async fn verify(core: &StoreCore) -> Result<VerifyReport> {
    let mut verified = VerifyReport::default();
    let mut link = core.links.lend().await?;
    let namespaces = link.query("SELECT id, name FROM namespaces ORDER BY id", &[]).await?;
    for row in &namespaces {
        let (id, name): (i64, String) = (get(row, 0)?, get(row, 1)?);
        link.set_in_transaction(true);
        link.simple("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
        let counters = link
            .first("SELECT space, messages FROM namespaces WHERE id = $1", &[&id])
            .await?;
        if let Some(counters) = counters {
            verify_one(&mut link, &name, &counters, &mut verified).await?;
        }
        link.rollback().await?;
    }
    Ok(verified)
}

async fn verify_one(
    link: &mut PooledConnection,
    name: &str,
    counters: &Row,
    verified: &mut VerifyReport,
) -> Result<()> {
    let (space, counted): (i64, i64) = (get(counters, 0)?, get(counters, 1)?);
    let mut found = |offset: i64, what: String| {
        verified.faults.push(Fault {
            namespace: name.to_owned(),
            offset: unsigned(offset),
            what,
        });
    };
    for check in CHECKS {
        if let Some(row) = link.first(check, &[&space]).await? {
            found(get(&row, 0)?, get(&row, 1)?);
        }
    }
    let Some(totals) = link.first(TOTALS, &[&space]).await? else {
        return Ok(());
    };
    let messages: i64 = get(&totals, 0)?;
    if messages != counted {
        found(0, format!("there are {messages} messages, but {counted} are counted"));
    }
    verified.messages += unsigned(messages);
    verified.bytes += unsigned(get(&totals, 1)?);
    Ok(())
}
