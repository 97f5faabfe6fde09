//! The database schema, which this store owns: it creates the schema and migrates an older version. Servers that start
//! at the same time migrate one after the other.

use thalweg_events::{EventsError, Result};

use crate::columns::get;
use crate::connection_pool::PooledConnection;

/// Each migrates the schema to the next version. A published migration is never changed.
const MIGRATIONS: [&str; 1] = [include_str!("schema.sql")];

/// The key of the advisory lock: the first letters of the schema's name.
const LOCK: i64 = 0x7468_616c_7765_6700;

pub(crate) async fn migrate(link: &mut PooledConnection) -> Result<()> {
    let encoding = link.first("SELECT current_setting('server_encoding')", &[]).await?;
    let encoding: String = encoding.as_ref().map_or(Ok(String::new()), |row| get(row, 0))?;
    if encoding != "UTF8" {
        return Err(EventsError::Damaged(format!(
            "the database at {} has the encoding {encoding}; create one with ENCODING 'UTF8'",
            link.place()
        )));
    }
    link.begin().await?;
    link.simple("SET LOCAL lock_timeout = '60s'").await?;
    link.simple(&format!("SELECT pg_advisory_xact_lock({LOCK})")).await?;
    let exists = link
        .first("SELECT to_regclass('thalweg_events.version') IS NOT NULL", &[])
        .await?;
    let exists: bool = exists.as_ref().map_or(Ok(false), |row| get(row, 0))?;
    if !exists {
        link.simple(
            "CREATE SCHEMA IF NOT EXISTS thalweg_events; \
             CREATE TABLE thalweg_events.version (version integer NOT NULL); \
             INSERT INTO thalweg_events.version VALUES (0)",
        )
        .await?;
    }
    let version = link.first("SELECT version FROM thalweg_events.version", &[]).await?;
    let version: i32 = version.as_ref().map_or(Ok(0), |row| get(row, 0))?;
    let known = MIGRATIONS.len();
    let found = usize::try_from(version).unwrap_or(0);
    let Some(missing) = MIGRATIONS.get(found..) else {
        return Err(EventsError::Damaged(format!(
            "the schema thalweg_events at {} has version {version}, and this program knows versions up to {known}; \
             start a newer one",
            link.place()
        )));
    };
    for migration in missing {
        link.simple(migration).await?;
    }
    link.simple(&format!("UPDATE thalweg_events.version SET version = {known}"))
        .await?;
    link.commit().await
}

/// Whether an answered commit may be lost when the database's machine loses power.
pub(crate) async fn is_relaxed(link: &mut PooledConnection) -> Result<bool> {
    let sql = "SELECT current_setting('synchronous_commit') = 'off' OR current_setting('fsync') = 'off'";
    let row = link.first(sql, &[]).await?;
    row.as_ref().map_or(Ok(false), |row| get(row, 0))
}
