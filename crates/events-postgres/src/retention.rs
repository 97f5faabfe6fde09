//! Hides messages: by retention rules and by deleting streams. Hidden messages are removed at once, or, where that
//! would take long, detached from their stream so that nothing reads them.

use thalweg_events::{ExpectedVersion, Result, Retention, RetentionTarget, admission, limits};
use tokio_postgres::Row;

use crate::append::{LOCK, TRIM, counters, known};
use thalweg_kit::clock::Clock as _;

use crate::columns::{get, is_plain, signed, unsigned};
use crate::connection_pool::{Param, PooledConnection};
use crate::namespace::PostgresNamespace;
use crate::plan::NamespaceCounters;

/// The most streams whose messages expire in one transaction.
const EXPIRE: i64 = 1000;

/// Reports a change that is not a message.
const CHANGED: &str = "UPDATE namespaces SET change = change + 1 WHERE id = $1 \
     RETURNING pg_notify('thalweg_events', 'm ' || id || ' ' || last_global || ' ' || change || ' ' || cleared)";

impl PostgresNamespace {
    /// Begins a transaction that excludes all other writers of the namespace.
    pub(crate) async fn lock(&self, link: &mut PooledConnection) -> Result<NamespaceCounters> {
        link.begin().await?;
        match link.first(LOCK, &[&self.identity.id]).await? {
            Some(row) => counters(&row),
            None => {
                link.rollback().await?;
                self.seen.end();
                Err(self.not_found())
            }
        }
    }

    /// Commits the change and notifies all servers.
    pub(crate) async fn commit_change(&self, link: &mut PooledConnection, before: NamespaceCounters) -> Result<()> {
        link.query(CHANGED, &[&self.identity.id]).await?;
        link.commit().await?;
        self.seen.tell(before.last_global, before.change + 1, before.cleared);
        Ok(())
    }

    /// Removes expired messages.
    pub(crate) async fn expire(&self, link: &mut PooledConnection) -> Result<()> {
        let before = self.lock(link).await?;
        let sql = "SELECT trim_stream($1, old.stream, $2) FROM (SELECT stream FROM streams \
             WHERE space = $1 AND expires_at < $2 ORDER BY expires_at LIMIT $3) AS old";
        link.query(sql, &[&before.space, &self.links.clock.now(), &EXPIRE])
            .await?;
        self.commit_change(link, before).await
    }

    pub(crate) async fn remove_stream(&self, stream: &str, expected: ExpectedVersion, tombstone: bool) -> Result<()> {
        limits::check_stream(stream)?;
        let mut link = self.links.lend().await?;
        let before = self.lock(&mut link).await?;
        let category = thalweg_events::names::category(stream);
        let (streams, categories) = (vec![stream], vec![category]);
        let row = link
            .first(crate::append::STREAMS, &[&self.identity.id, &streams, &categories])
            .await?;
        let (_, known) = known(&row.ok_or_else(|| self.not_found())?)?;
        let allowed = admission::takes_messages(stream, known.is_tombstone)
            .and_then(|()| admission::has_version(stream, expected, known.version));
        if let Err(refused) = allowed {
            link.rollback().await?;
            return Err(refused);
        }
        let (space, last) = (before.space, before.last_stream + 1);
        let gone = known.messages;
        match (known.stream, known.category) {
            (Some(number), Some(category)) => {
                // Its messages keep the old number, which no stream has any more.
                let sql = "UPDATE streams SET stream = $3, floor = version + 1, messages = 0, expires_at = NULL, \
                     tombstone = $4 WHERE space = $1 AND stream = $2";
                link.execute(sql, &[&space, &number, &last, &tombstone]).await?;
                let sql = "INSERT INTO retired_streams (space, stream) VALUES ($1, $2)";
                link.execute(sql, &[&space, &number]).await?;
                let sql = "UPDATE categories SET messages = messages - $3, streams = streams - sign($3::bigint)::bigint \
                     WHERE space = $1 AND category = $2";
                link.execute(sql, &[&space, &category, &gone]).await?;
                let sql = "UPDATE namespaces SET last_stream = $2, messages = messages - $3, \
                     streams = streams - sign($3::bigint)::bigint WHERE id = $1";
                link.execute(sql, &[&self.identity.id, &last, &gone]).await?;
            }
            _ if tombstone => self.bury(&mut link, before, stream, known.category).await?,
            _ => {}
        }
        self.commit_change(&mut link, before).await
    }

    /// A stream that never had a message can be tombstoned too.
    async fn bury(
        &self,
        link: &mut PooledConnection,
        before: NamespaceCounters,
        stream: &str,
        category: Option<i64>,
    ) -> Result<()> {
        let (space, number) = (before.space, before.last_stream + 1);
        let found = category.unwrap_or(before.last_category + 1);
        if category.is_none() {
            let (numbers, names) = (vec![found], vec![thalweg_events::names::category(stream)]);
            link.execute(crate::append::INSERT_CATEGORIES, &[&space, &numbers, &names])
                .await?;
        }
        let sql = "INSERT INTO streams (space, stream, category, name, version, messages, last_time, tombstone) \
             VALUES ($1, $2, $3, $4, -1, 0, $5, true)";
        link.execute(sql, &[&space, &number, &found, &stream, &self.links.clock.now()])
            .await?;
        let sql = "UPDATE namespaces SET last_stream = $2, last_category = greatest(last_category, $3) WHERE id = $1";
        link.execute(sql, &[&self.identity.id, &number, &found]).await?;
        Ok(())
    }

    pub(crate) async fn put_rule(&self, of: RetentionTarget<'_>, rule: Option<Retention>) -> Result<()> {
        let (of_category, name) = key(of);
        limits::check_stream(name)?;
        let rule = rule.map(Retention::bounded);
        let mut link = self.links.lend().await?;
        let before = self.lock(&mut link).await?;
        match rule {
            Some(rule) => {
                let sql = "INSERT INTO retention (namespace, of_category, name, max_age, max_count, truncate_before) \
                     VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (namespace, of_category, name) \
                     DO UPDATE SET max_age = $4, max_count = $5, truncate_before = $6";
                let (max_count, truncate) = (rule.max_count.map(signed), rule.truncate_before.map(signed));
                let parameters: [Param<'_>; 6] = [
                    &self.identity.id,
                    &of_category,
                    &name,
                    &rule.max_age,
                    &max_count,
                    &truncate,
                ];
                link.execute(sql, &parameters).await?;
            }
            None => {
                let sql = "DELETE FROM retention WHERE namespace = $1 AND of_category = $2 AND name = $3";
                link.execute(sql, &[&self.identity.id, &of_category, &name]).await?;
            }
        }
        let sql = match of_category {
            true => {
                "SELECT s.stream FROM streams s JOIN categories c ON c.space = s.space AND c.category = s.category \
                 WHERE s.space = $1 AND c.name = $2 AND s.messages > 0"
            }
            false => "SELECT stream FROM streams WHERE space = $1 AND name = $2 AND messages > 0",
        };
        let rows = link.query(sql, &[&before.space, &name]).await?;
        let streams: Vec<i64> = rows.iter().map(|row| get(row, 0)).collect::<Result<_>>()?;
        if rule.is_some_and(|rule| rule.max_age.is_some()) {
            let sql = "UPDATE messages SET ages = true WHERE space = $1 AND stream = ANY($2) AND NOT ages";
            link.execute(sql, &[&before.space, &streams]).await?;
        }
        link.query(TRIM, &[&before.space, &streams, &self.links.clock.now()])
            .await?;
        self.commit_change(&mut link, before).await
    }

    pub(crate) async fn rule(&self, of: RetentionTarget<'_>) -> Result<Option<Retention>> {
        let (of_category, name) = key(of);
        if !is_plain(name) {
            return Ok(None);
        }
        let sql = "SELECT max_age, max_count, truncate_before FROM retention \
             WHERE namespace = $1 AND of_category = $2 AND name = $3";
        let rows = self.ask(sql, &[&self.identity.id, &of_category, &name]).await?;
        let rule = |row: &Row| {
            Ok(Retention {
                max_age: get(row, 0)?,
                max_count: get::<Option<i64>>(row, 1)?.map(unsigned),
                truncate_before: get::<Option<i64>>(row, 2)?.map(unsigned),
            })
        };
        rows.first().map(rule).transpose()
    }

    pub(crate) async fn change_document(
        &self,
        name: &str,
        content: Option<&[u8]>,
        expected: u64,
    ) -> Result<Option<u64>> {
        limits::check_document(name, content)?;
        let mut link = self.links.lend().await?;
        link.begin().await?;
        // The namespace cannot be deleted until this ends; appends to it continue.
        let sql = "SELECT 1 FROM namespaces WHERE id = $1 FOR KEY SHARE";
        if link.first(sql, &[&self.identity.id]).await?.is_none() {
            link.rollback().await?;
            self.seen.end();
            return Err(self.not_found());
        }
        let (id, name, revision) = (&self.identity.id, name.as_bytes(), signed(expected));
        let row = match (content, expected) {
            (Some(content), 0) => {
                let sql = "INSERT INTO documents (namespace, name, revision, content) \
                     VALUES ($1, $2, nextval('revisions'), $3) ON CONFLICT DO NOTHING RETURNING revision";
                link.first(sql, &[id, &name, &content]).await?
            }
            (Some(content), _) => {
                let sql = "UPDATE documents SET revision = nextval('revisions'), content = $4 \
                     WHERE namespace = $1 AND name = $2 AND revision = $3 RETURNING revision";
                link.first(sql, &[id, &name, &revision, &content]).await?
            }
            (None, 0) => {
                let sql =
                    "SELECT 0::bigint WHERE NOT EXISTS (SELECT FROM documents WHERE namespace = $1 AND name = $2)";
                link.first(sql, &[id, &name]).await?
            }
            (None, _) => {
                let sql =
                    "DELETE FROM documents WHERE namespace = $1 AND name = $2 AND revision = $3 RETURNING 0::bigint";
                link.first(sql, &[id, &name, &revision]).await?
            }
        };
        link.commit().await?;
        row.as_ref().map(|row| get(row, 0).map(unsigned)).transpose()
    }
}

fn key<'a>(of: RetentionTarget<'a>) -> (bool, &'a str) {
    match of {
        RetentionTarget::Stream(name) => (false, name),
        RetentionTarget::Category(name) => (true, name),
    }
}
