//! Reads. Each read also checks whether retention by age has expired messages; if so, they are removed and the read is
//! repeated, so neither reads nor counts include them.
//!
//! The queries find space, stream and category with subqueries and order by all columns of an index. So the database
//! walks that index from the requested position and stops when the page is full, however many messages there are.

use std::collections::HashSet;

use thalweg_events::limits::{PAGE_BYTES_MAX, PAGE_MESSAGES_MAX};
use thalweg_events::{
    CategoryInfo, CategoryRead, Direction, Document, MessageId, NamespaceInfo, Page, Result, StoredEvent, StreamInfo,
    StreamPosition, StreamRead,
};
use tokio_postgres::Row;

use thalweg_kit::clock::Clock as _;

use crate::columns::{self, get, is_plain, signed, unsigned};
use crate::connection_pool::Param;
use crate::namespace::PostgresNamespace;

const SPACE: &str = "(SELECT space FROM namespaces WHERE id = $1)";
/// Messages of a deleted stream have no stream until they are removed.
const OWNED: &str = "(SELECT true FROM streams s WHERE s.space = m.space AND s.stream = m.stream)";
const NAME: &str = "(SELECT s.name FROM streams s WHERE s.space = m.space AND s.stream = m.stream)";

const STATE: &str = "SELECT EXISTS (SELECT FROM streams s WHERE s.space = n.space AND s.expires_at < $2) \
     FROM namespaces n WHERE n.id = $1";

/// The parts of a query that depend on the request.
struct QueryFilter<'a> {
    filter: String,
    parameters: Vec<Param<'a>>,
}

impl<'a> QueryFilter<'a> {
    fn and(&mut self, condition: &str, parameter: Param<'a>) {
        self.parameters.push(parameter);
        let number = format!("${}", self.parameters.len());
        self.filter.push_str(" AND ");
        self.filter.push_str(&condition.replace('?', &number));
    }

    fn next(&mut self, parameter: Param<'a>) -> String {
        self.parameters.push(parameter);
        format!("${}", self.parameters.len())
    }
}

/// The operator, the order and the default start of a direction.
fn walk(direction: Direction) -> (&'static str, &'static str, i64) {
    match direction {
        Direction::Forward => (">=", "ASC", 0),
        Direction::Backward => ("<=", "DESC", i64::MAX),
    }
}

/// The picked messages, in order, that fit into a page; each row has the number of picked messages.
fn page_sql(picked: &str, place: &str, order: &str) -> String {
    format!(
        "SELECT name, position, global, id, kind, data, metadata, time, picked FROM (\
         SELECT {NAME} AS name, m.position, m.global, m.id, m.kind, m.data, m.metadata, m.time, \
         count(*) OVER () AS picked, \
         sum(octet_length(m.data) + coalesce(octet_length(m.metadata), 0)) OVER (ORDER BY m.{place} {order} \
         ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before \
         FROM ({picked}) p JOIN messages m ON m.space = {SPACE} AND m.global = p.global) m \
         WHERE before IS NULL OR before <= {PAGE_BYTES_MAX} ORDER BY {place} {order}"
    )
}

impl PostgresNamespace {
    /// Returns the rows as of a moment without expired messages.
    pub(crate) async fn ask(&self, sql: &str, parameters: &[Param<'_>]) -> Result<Vec<Row>> {
        let mut tries = 0;
        loop {
            let mut link = self.links.lend().await?;
            let asked = async {
                let (state, question) = (link.prepare(STATE).await?, link.prepare(sql).await?);
                let now = self.links.clock.now();
                let client = link.client()?;
                let state_parameters: [Param<'_>; 2] = [&self.identity.id, &now];
                let (state, rows) = futures::join!(
                    client.query(&state, &state_parameters),
                    client.query(&question, parameters)
                );
                let wrong = |error| crate::failure::failed(link.place(), &error);
                Ok((state.map_err(wrong)?, rows.map_err(wrong)?))
            };
            let (state, rows) = match asked.await {
                Ok(found) => found,
                // The idle connection broke.
                Err(_) if link.is_closed() && tries < 3 => {
                    tries += 1;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let Some(state) = state.first() else {
                self.seen.end();
                return Err(self.not_found());
            };
            if !get::<bool>(state, 0)? {
                return Ok(rows);
            }
            self.expire(&mut link).await?;
        }
    }

    pub(crate) async fn version_of(&self, stream: &str) -> Result<i64> {
        if !is_plain(stream) {
            return Ok(-1);
        }
        let sql = format!("SELECT version FROM streams WHERE space = {SPACE} AND name = $2 AND NOT tombstone");
        let rows = self.ask(&sql, &[&self.identity.id, &stream]).await?;
        rows.first().map_or(Ok(-1), |row| get(row, 0))
    }

    /// The global positions of those of the messages that are still visible.
    pub(crate) async fn shown_of(&self, messages: &[StoredEvent]) -> Result<HashSet<u64>> {
        let globals: Vec<i64> = messages.iter().map(|stored| signed(stored.event().global)).collect();
        let sql = format!("SELECT m.global FROM messages m WHERE m.space = {SPACE} AND m.global = ANY($2) AND {OWNED}");
        let rows = self.ask(&sql, &[&self.identity.id, &globals]).await?;
        rows.iter().map(|row| get(row, 0).map(unsigned)).collect()
    }

    pub(crate) async fn page_of_stream(&self, read: StreamRead<'_>) -> Result<Page> {
        if read.max == 0 || !is_plain(read.stream) {
            return Ok(Page::default());
        }
        let (sign, order, end) = walk(read.direction);
        let (position, global) = match read.from {
            None => (end, None),
            Some(StreamPosition::Position(position)) => (signed(position), None),
            Some(StreamPosition::Global(global)) => (end, Some(signed(global))),
        };
        let max = read.max.min(PAGE_MESSAGES_MAX);
        let limit = max as i64 + 1;
        let types: Vec<&str> = plain(read.types);
        let mut asked = QueryFilter {
            filter: String::new(),
            parameters: vec![&self.identity.id, &read.stream],
        };
        asked.and(&format!("m.position {sign} ?"), &position);
        if let Some(global) = &global {
            asked.and(&format!("m.global {sign} ?"), global);
        }
        if !read.types.is_empty() {
            asked.and("m.kind = ANY(?)", &types);
        }
        let (limit, filter) = (asked.next(&limit), &asked.filter);
        let picked = format!(
            "SELECT m.global FROM messages m WHERE m.space = {SPACE} \
             AND m.stream = (SELECT stream FROM streams WHERE space = {SPACE} AND name = $2){filter} \
             ORDER BY m.space {order}, m.stream {order}, m.position {order} LIMIT {limit}"
        );
        let rows = self
            .ask(&page_sql(&picked, "position", order), &asked.parameters)
            .await?;
        page(&rows, max, read.direction, |stored| stored.event().position)
    }

    pub(crate) async fn page_of_category(&self, read: CategoryRead<'_>) -> Result<Page> {
        if read.max == 0 || read.category.is_some_and(|category| !is_plain(category)) {
            return Ok(Page::default());
        }
        let (sign, order, end) = walk(read.direction);
        let from = read.from.map_or(end, signed);
        let max = read.max.min(PAGE_MESSAGES_MAX);
        let limit = max as i64 + 1;
        let types: Vec<&str> = plain(read.types);
        let correlation = read.correlation.map(columns::correlation_of);
        let (category, member) = (read.category, read.member);
        // A size beyond the database's largest number leaves the hash unchanged.
        let of = member.map(|member| i64::try_from(member.of).ok());
        let number = member.map_or(0, |member| member.number.cast_signed());
        let mut asked = QueryFilter {
            filter: String::new(),
            parameters: vec![&self.identity.id],
        };
        let mut index = "";
        if let Some(category) = &category {
            let of_name = format!("m.category = (SELECT category FROM categories WHERE space = {SPACE} AND name = ?)");
            asked.and(&of_name, category);
            index = "m.category";
        }
        asked.and(&format!("m.global {sign} ?"), &from);
        if let Some(correlation) = &correlation {
            asked.and("m.correlation = ?", correlation);
            index = if index.is_empty() { "m.correlation" } else { index };
        }
        match &of {
            Some(Some(of)) => {
                let of = asked.next(of);
                asked.and(&format!("abs(m.group_hash % {of}) = ?"), &number);
            }
            Some(None) => asked.and("m.group_hash = ?", &number),
            None => {}
        }
        if !read.types.is_empty() {
            asked.and("m.kind = ANY(?)", &types);
        }
        let (limit, filter) = (asked.next(&limit), &asked.filter);
        let index = if index.is_empty() {
            String::new()
        } else {
            format!("{index} {order}, ")
        };
        let picked = format!(
            "SELECT m.global FROM messages m WHERE m.space = {SPACE}{filter} AND {OWNED} \
             ORDER BY m.space {order}, {index}m.global {order} LIMIT {limit}"
        );
        let rows = self.ask(&page_sql(&picked, "global", order), &asked.parameters).await?;
        let mut page = page(&rows, max, read.direction, |stored| stored.event().global)?;
        if let Some(category) = read.correlation {
            page.events
                .retain(|stored| columns::correlates(stored.event().metadata, category));
        }
        Ok(page)
    }

    pub(crate) async fn last_of(&self, stream: &str, kind: Option<&str>) -> Result<Option<StoredEvent>> {
        let types: Vec<String> = kind.map(str::to_owned).into_iter().collect();
        let read = StreamRead {
            stream,
            from: None,
            direction: Direction::Backward,
            max: 1,
            types: &types,
        };
        Ok(self.page_of_stream(read).await?.events.pop())
    }

    pub(crate) async fn message(&self, id: &MessageId) -> Result<Option<StoredEvent>> {
        let sql = format!(
            "SELECT {NAME}, m.position, m.global, m.id, m.kind, m.data, m.metadata, m.time \
             FROM messages m WHERE m.space = {SPACE} AND m.id = $2 AND {OWNED}"
        );
        let id = columns::id_bytes(id);
        let rows = self.ask(&sql, &[&self.identity.id, &id]).await?;
        rows.first().map(columns::stored).transpose()
    }

    pub(crate) async fn info_now(&self) -> Result<NamespaceInfo> {
        let sql = format!(
            "SELECT name, description, metadata, created_at, messages, streams, \
             (SELECT m.time FROM messages m WHERE m.space = n.space AND {OWNED} \
             ORDER BY m.space DESC, m.global DESC LIMIT 1) FROM namespaces n WHERE id = $1"
        );
        let rows = self.ask(&sql, &[&self.identity.id]).await?;
        info(rows.first().ok_or_else(|| self.not_found())?)
    }

    pub(crate) async fn list_streams(&self, prefix: &str, cursor: &str, max: usize) -> Result<Vec<StreamInfo>> {
        if !is_plain(prefix) {
            return Ok(Vec::new());
        }
        // An upper bound: no name continues the prefix with this many of the last character.
        let end = format!("{prefix}{}", "\u{10ffff}".repeat(300));
        let cursor = before_null(cursor);
        let sql = format!(
            "SELECT name, version, last_time FROM streams WHERE space = {SPACE} AND name > $2 AND name >= $3 \
             AND name <= $4 AND messages > 0 ORDER BY space, name LIMIT $5"
        );
        let max = max.min(i32::MAX as usize) as i64;
        let rows = self
            .ask(&sql, &[&self.identity.id, &cursor, &prefix, &end, &max])
            .await?;
        let stream = |row: &Row| {
            Ok(StreamInfo {
                stream: get(row, 0)?,
                version: unsigned(get(row, 1)?),
                last_activity: get(row, 2)?,
            })
        };
        rows.iter().map(stream).collect()
    }

    pub(crate) async fn list_categories(&self) -> Result<Vec<CategoryInfo>> {
        let sql = format!(
            "SELECT name, messages, streams FROM categories WHERE space = {SPACE} AND messages > 0 ORDER BY space, name"
        );
        let rows = self.ask(&sql, &[&self.identity.id]).await?;
        let category = |row: &Row| {
            Ok(CategoryInfo {
                category: get(row, 0)?,
                messages: unsigned(get(row, 1)?),
                streams: unsigned(get(row, 2)?),
            })
        };
        rows.iter().map(category).collect()
    }

    pub(crate) async fn get_document(&self, name: &str) -> Result<Option<Document>> {
        let sql = "SELECT revision, content FROM documents WHERE namespace = $1 AND name = $2";
        let rows = self.ask(sql, &[&self.identity.id, &name.as_bytes()]).await?;
        let document = |row: &Row| {
            Ok(Document {
                revision: unsigned(get(row, 0)?),
                content: get::<Vec<u8>>(row, 1)?.into(),
            })
        };
        rows.first().map(document).transpose()
    }

    pub(crate) async fn list_documents(&self, prefix: &str, cursor: &str, max: usize) -> Result<Vec<String>> {
        // UTF-8 has no byte this large, so the bound is after all names with the prefix.
        let mut end = prefix.as_bytes().to_vec();
        end.push(0xff);
        let max = max.min(i32::MAX as usize) as i64;
        let sql = "SELECT name FROM documents WHERE namespace = $1 AND name > $2 AND name >= $3 AND name < $4 \
             ORDER BY namespace, name LIMIT $5";
        let parameters: [Param<'_>; 5] = [&self.identity.id, &cursor.as_bytes(), &prefix.as_bytes(), &end, &max];
        let rows = self.ask(sql, &parameters).await?;
        let name = |row: &Row| Ok(String::from_utf8_lossy(get(row, 0)?).into_owned());
        rows.iter().map(name).collect()
    }
}

/// Reads the columns `name, description, metadata, created_at, messages, streams, last activity`.
pub(crate) fn info(row: &Row) -> Result<NamespaceInfo> {
    Ok(NamespaceInfo {
        name: get(row, 0)?,
        description: String::from_utf8_lossy(get(row, 1)?).into_owned(),
        metadata: get(row, 2)?,
        created_at: get(row, 3)?,
        messages: unsigned(get(row, 4)?),
        streams: unsigned(get(row, 5)?),
        last_activity: get(row, 6)?,
    })
}

/// No message has a type with U+0000.
fn plain(types: &[String]) -> Vec<&str> {
    types.iter().map(String::as_str).filter(|kind| is_plain(kind)).collect()
}

/// A stored name sorts after a cursor with U+0000 if and only if it sorts after the text before the U+0000.
fn before_null(cursor: &str) -> &str {
    cursor.split('\0').next().unwrap_or_default()
}

/// The query picked one row more than `max`, to know whether there are more.
fn page(rows: &[Row], max: usize, direction: Direction, place: impl Fn(&StoredEvent) -> u64) -> Result<Page> {
    let events: Vec<StoredEvent> = rows.iter().take(max).map(columns::stored).collect::<Result<_>>()?;
    let picked: i64 = rows.first().map_or(Ok(0), |row| get(row, 8))?;
    let has_more = picked > events.len() as i64;
    let last = events.last().filter(|_| has_more).map(place);
    let next = last.and_then(|last| match direction {
        Direction::Forward => Some(last + 1),
        Direction::Backward => last.checked_sub(1),
    });
    Ok(Page { events, next })
}
