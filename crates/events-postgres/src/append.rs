//! Group commit: gathers the appends of a namespace and commits them in one transaction. One batch is in flight at a
//! time; later appends form the next batch. An append is answered after its commit, never before.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use thalweg_events::limits::{self, APPEND_BYTES_MAX, APPEND_MESSAGES_MAX};
use thalweg_events::{Append, AppendOutcome, EventsError, MessageId, Result, names};
use thalweg_kit::clock::Clock as _;
use thalweg_kit::random;
use tokio::sync::{mpsc, oneshot};
use tokio_postgres::Row;

use crate::columns::{self, get};
use crate::connection_pool::{ConnectionPool, PooledConnection};
use crate::failure::{failed, unavailable};
use crate::namespace::{NamespaceIdentity, WatermarkTracker};
use crate::plan::{AppendEvent, AppendPlan, AppendRequest, ExistingMessage, NamespaceCounters, StreamRow};

/// The most appends that wait to be gathered; further callers wait to enqueue.
pub(crate) const QUEUE: usize = 256;

pub(crate) struct QueuedAppend {
    pub appends: Vec<AppendRequest>,
    pub answer: oneshot::Sender<Result<Vec<AppendOutcome>>>,
}

impl QueuedAppend {
    fn messages(&self) -> usize {
        self.appends.iter().map(|append| append.events.len()).sum()
    }

    fn bytes(&self) -> usize {
        self.appends.iter().map(AppendRequest::bytes).sum()
    }
}

/// Checks what needs no database and copies the appends: a batch is completed even if its caller has gone.
pub(crate) fn wanted(appends: &[Append<'_>]) -> Result<Vec<AppendRequest>> {
    limits::check_append(appends)?;
    for event in appends.iter().flat_map(|append| &append.events) {
        columns::storable([Some(event.data), event.metadata])?;
    }
    let copy = |append: &Append<'_>| AppendRequest {
        stream: append.stream.to_owned(),
        expected: append.expected,
        events: append
            .events
            .iter()
            .map(|event| AppendEvent {
                id: event.id.clone(),
                kind: event.kind.to_owned(),
                data: event.data.to_owned(),
                metadata: event.metadata.map(str::to_owned),
            })
            .collect(),
    };
    Ok(appends.iter().map(copy).collect())
}

/// Runs until the namespace is dropped. Beyond its first append, a transaction has the limits of one append.
pub(crate) async fn commit_all(
    links: Arc<ConnectionPool>,
    identity: Arc<NamespaceIdentity>,
    seen: Arc<WatermarkTracker>,
    mut queue: mpsc::Receiver<QueuedAppend>,
) {
    let mut kept = None;
    loop {
        let first = match kept.take() {
            Some(first) => first,
            None => match queue.recv().await {
                Some(first) => first,
                None => return,
            },
        };
        let (mut messages, mut bytes) = (first.messages(), first.bytes());
        let mut batch = vec![first];
        while let Ok(next) = queue.try_recv() {
            messages += next.messages();
            bytes += next.bytes();
            if messages > APPEND_MESSAGES_MAX || bytes > APPEND_BYTES_MAX {
                kept = Some(next);
                break;
            }
            batch.push(next);
        }
        let (asked, answers): (Vec<_>, Vec<_>) = batch.into_iter().map(|one| (one.appends, one.answer)).unzip();
        match commit(&links, &identity, &seen, &asked).await {
            Ok(done) => {
                for (answer, done) in answers.into_iter().zip(done) {
                    // The caller may have stopped waiting.
                    let _ = answer.send(done);
                }
            }
            Err(error) => {
                if matches!(error, EventsError::NamespaceNotFound(_)) {
                    seen.end();
                }
                for answer in answers {
                    let _ = answer.send(Err(error.clone()));
                }
            }
        }
    }
}

async fn commit(
    links: &Arc<ConnectionPool>,
    identity: &NamespaceIdentity,
    seen: &WatermarkTracker,
    batch: &[Vec<AppendRequest>],
) -> Result<Vec<Result<Vec<AppendOutcome>>>> {
    let streams: HashSet<&str> = batch.iter().flatten().map(|append| append.stream.as_str()).collect();
    let streams: Vec<&str> = streams.into_iter().collect();
    let events = || batch.iter().flatten().flat_map(|append| &append.events);
    let ids: HashSet<&MessageId> = events().filter_map(|event| event.id.as_ref()).collect();
    let ids: Vec<Vec<u8>> = ids.into_iter().map(columns::id_bytes).collect();
    let mut tries = 0;
    let (mut link, state) = loop {
        let mut link = links.lend().await?;
        match lock(&mut link, identity, &streams, &ids).await {
            Ok(state) => break (link, state),
            // The idle connection broke; nothing was requested yet.
            Err(_) if link.is_closed() && tries < 3 => tries += 1,
            Err(error) => return Err(error),
        }
    };
    let mut plan = AppendPlan::new(state.counters, state.streams, state.ids);
    plan.now = links.clock.now();
    plan.chance = chance(events().filter(|event| event.id.is_none()).count())?;
    let done: Vec<_> = batch.iter().map(|appends| plan.add(appends)).collect();
    if plan.rows.messages.is_empty() {
        link.rollback().await?;
        return Ok(done);
    }
    store(&mut link, identity, &plan).await?;
    let counters = plan.rows.counters;
    seen.tell(counters.last_global, counters.change + 1, counters.cleared);
    Ok(done)
}

fn chance(count: usize) -> Result<Vec<[u8; 10]>> {
    let mut bytes = vec![[0; 10]; count];
    random::fill(bytes.as_flattened_mut())
        .map_err(|error| EventsError::Unavailable(format!("no random numbers for ids: {error}")))?;
    Ok(bytes)
}

struct LockedRows {
    counters: NamespaceCounters,
    streams: HashMap<String, StreamRow>,
    ids: HashMap<MessageId, ExistingMessage>,
}

pub(crate) const LOCK: &str = "SELECT space, last_global, last_stream, last_category, change, cleared FROM namespaces \
     WHERE id = $1 FOR NO KEY UPDATE";

pub(crate) fn counters(row: &Row) -> Result<NamespaceCounters> {
    Ok(NamespaceCounters {
        space: get(row, 0)?,
        last_global: get(row, 1)?,
        last_stream: get(row, 2)?,
        last_category: get(row, 3)?,
        change: get(row, 4)?,
        cleared: get(row, 5)?,
    })
}

pub(crate) const STREAMS: &str = "SELECT u.name, s.stream, c.category, s.version, s.messages, s.tombstone, \
     rs.namespace IS NOT NULL OR rc.namespace IS NOT NULL, \
     CASE WHEN rs.namespace IS NULL THEN rc.max_age ELSE rs.max_age END IS NOT NULL, s.last_time \
     FROM namespaces n CROSS JOIN unnest($2::text[], $3::text[]) AS u (name, category_name) \
     LEFT JOIN streams s ON s.space = n.space AND s.name = u.name \
     LEFT JOIN categories c ON c.space = n.space AND c.name = u.category_name \
     LEFT JOIN retention rs ON rs.namespace = n.id AND NOT rs.of_category AND rs.name = u.name \
     LEFT JOIN retention rc ON rc.namespace = n.id AND rc.of_category AND rc.name = u.category_name \
     WHERE n.id = $1";

/// Messages that have one of the ids. A message without a stream has only its id.
const IDS: &str = "SELECT m.id, s.name, m.position, m.global, m.kind, m.data, m.metadata \
     FROM namespaces n JOIN messages m ON m.space = n.space \
     LEFT JOIN streams s ON s.space = m.space AND s.stream = m.stream \
     WHERE n.id = $1 AND m.id = ANY($2)";

pub(crate) fn known(row: &Row) -> Result<(String, StreamRow)> {
    let known = StreamRow {
        stream: get(row, 1)?,
        category: get(row, 2)?,
        version: get::<Option<i64>>(row, 3)?.unwrap_or(-1),
        messages: get::<Option<i64>>(row, 4)?.unwrap_or(0),
        is_tombstone: get::<Option<bool>>(row, 5)?.unwrap_or(false),
        has_rule: get(row, 6)?,
        ages: get(row, 7)?,
    };
    Ok((get(row, 0)?, known))
}

/// Begins the transaction. Its queries are pipelined, and each sees the state after the lock was granted.
async fn lock(
    link: &mut PooledConnection,
    identity: &NamespaceIdentity,
    streams: &[&str],
    ids: &[Vec<u8>],
) -> Result<LockedRows> {
    let categories: Vec<&str> = streams.iter().map(|stream| names::category(stream)).collect();
    let (lock, of_streams, of_ids) = (
        link.prepare(LOCK).await?,
        link.prepare(STREAMS).await?,
        link.prepare(IDS).await?,
    );
    link.set_in_transaction(true);
    let client = link.client()?;
    let ask_ids = async {
        match ids.is_empty() {
            true => Ok(Vec::new()),
            false => client.query(&of_ids, &[&identity.id, &ids]).await,
        }
    };
    let id_parameter: [crate::connection_pool::Param<'_>; 1] = [&identity.id];
    let stream_parameters: [crate::connection_pool::Param<'_>; 3] = [&identity.id, &streams, &categories];
    let (begun, locked, rows, same) = futures::join!(
        client.batch_execute("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"),
        client.query(&lock, &id_parameter),
        client.query(&of_streams, &stream_parameters),
        ask_ids,
    );
    let wrong = |error: tokio_postgres::Error| failed(link.place(), &error);
    begun.map_err(wrong)?;
    let locked = locked.map_err(wrong)?;
    let (rows, same) = (rows.map_err(wrong)?, same.map_err(wrong)?);
    let Some(locked) = locked.first() else {
        link.rollback().await?;
        return Err(EventsError::NamespaceNotFound(identity.name.clone()));
    };
    let counters = counters(locked)?;
    let mut known_ids = HashMap::new();
    let mut orphans = Vec::new();
    for row in &same {
        let bytes: &[u8] = get(row, 0)?;
        let Some(stream) = get::<Option<String>>(row, 1)? else {
            orphans.push(bytes);
            continue;
        };
        let same = ExistingMessage {
            stream,
            position: get(row, 2)?,
            global: get(row, 3)?,
            kind: get(row, 4)?,
            data: get(row, 5)?,
            metadata: get(row, 6)?,
        };
        known_ids.insert(columns::id_of(bytes)?, same);
    }
    if !orphans.is_empty() {
        let sql = "DELETE FROM messages WHERE space = $1 AND id = ANY($2)";
        link.execute(sql, &[&counters.space, &orphans]).await?;
    }
    Ok(LockedRows {
        counters,
        streams: rows.iter().map(known).collect::<Result<_>>()?,
        ids: known_ids,
    })
}

pub(crate) const INSERT_CATEGORIES: &str = "INSERT INTO categories (space, category, name, messages, streams) \
     SELECT $1, u.category, u.name, 0, 0 FROM unnest($2::bigint[], $3::text[]) AS u (category, name)";

const UPSERT_STREAMS: &str = "INSERT INTO streams (space, stream, category, name, version, messages, last_time) \
     SELECT $1, u.stream, u.category, u.name, u.version, u.messages, $7 \
     FROM unnest($2::bigint[], $3::bigint[], $4::text[], $5::bigint[], $6::bigint[]) \
     AS u (stream, category, name, version, messages) \
     ON CONFLICT (space, stream) DO UPDATE SET version = excluded.version, messages = excluded.messages, \
     last_time = excluded.last_time";

const INSERT_MESSAGES: &str = "INSERT INTO messages \
     (space, time, global, stream, position, category, group_hash, correlation, ages, id, kind, data, metadata) \
     SELECT $1, $2, u.* FROM unnest($3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[], \
     $9::boolean[], $10::bytea[], $11::text[], $12::text[], $13::text[]) AS u";

pub(crate) const COUNT_CATEGORIES: &str = "UPDATE categories c SET messages = c.messages + u.messages, \
     streams = c.streams + u.streams FROM unnest($2::bigint[], $3::bigint[], $4::bigint[]) AS u (category, messages, streams) \
     WHERE c.space = $1 AND c.category = u.category";

/// Counts new numbers and messages, and notifies every server of what can be read.
pub(crate) const COUNT_NAMESPACE: &str = "UPDATE namespaces SET last_global = $2, last_stream = $3, last_category = $4, \
     messages = messages + $5, streams = streams + $6, change = change + 1 WHERE id = $1 \
     RETURNING pg_notify('thalweg_events', 'm ' || id || ' ' || last_global || ' ' || change || ' ' || cleared)";

pub(crate) const TRIM: &str = "SELECT trim_stream($1, u.stream, $3) FROM unnest($2::bigint[]) AS u (stream)";

/// Pipelines all statements and the commit. If one fails, the commit rolls back.
async fn store(link: &mut PooledConnection, identity: &NamespaceIdentity, plan: &AppendPlan<'_>) -> Result<()> {
    let rows = &plan.rows;
    let (space, numbers) = (rows.counters.space, rows.counters);
    let (added, appeared) = (rows.messages.len() as i64, rows.appeared);
    let new: Vec<_> = rows.categories.iter().filter(|(_, counted)| counted.is_new).collect();
    let (new_numbers, new_names): (Vec<i64>, Vec<&str>) = new.iter().map(|(n, counted)| (**n, counted.name)).unzip();
    let statements = [
        INSERT_CATEGORIES,
        UPSERT_STREAMS,
        INSERT_MESSAGES,
        COUNT_CATEGORIES,
        COUNT_NAMESPACE,
        TRIM,
    ];
    let mut prepared = Vec::with_capacity(statements.len());
    for sql in statements {
        prepared.push(link.prepare(sql).await?);
    }
    let [
        insert_categories,
        upsert_streams,
        insert_messages,
        count_categories,
        count_namespace,
        trim,
    ] = prepared.as_slice()
    else {
        return Err(EventsError::Unavailable("a statement was not prepared".to_owned()));
    };
    let streams: Vec<i64> = rows.streams.keys().copied().collect();
    let of_streams: Vec<i64> = rows.streams.values().map(|changed| changed.category).collect();
    let stream_names: Vec<&str> = rows.streams.values().map(|changed| changed.name).collect();
    let versions: Vec<i64> = rows.streams.values().map(|changed| changed.version).collect();
    let stream_messages: Vec<i64> = rows.streams.values().map(|changed| changed.messages).collect();
    let ruled: Vec<i64> = rows
        .streams
        .iter()
        .filter(|(_, one)| one.has_rule)
        .map(|(n, _)| *n)
        .collect();
    let categories: Vec<i64> = rows.categories.keys().copied().collect();
    let category_messages: Vec<i64> = rows.categories.values().map(|counted| counted.messages).collect();
    let category_streams: Vec<i64> = rows.categories.values().map(|counted| counted.streams).collect();
    let columns = MessageColumns::of(plan);
    let client = link.client()?;
    let insert_new = async {
        match new_numbers.is_empty() {
            true => Ok(0),
            false => {
                client
                    .execute(insert_categories, &[&space, &new_numbers, &new_names])
                    .await
            }
        }
    };
    let trim_ruled = async {
        match ruled.is_empty() {
            true => Ok(Vec::new()),
            false => client.query(trim, &[&space, &ruled, &plan.now]).await,
        }
    };
    let stream_columns: [crate::connection_pool::Param<'_>; 7] = [
        &space,
        &streams,
        &of_streams,
        &stream_names,
        &versions,
        &stream_messages,
        &plan.now,
    ];
    let message_columns = columns.parameters(&space, &plan.now);
    let category_columns: [crate::connection_pool::Param<'_>; 4] =
        [&space, &categories, &category_messages, &category_streams];
    let namespace_columns: [crate::connection_pool::Param<'_>; 6] = [
        &identity.id,
        &numbers.last_global,
        &numbers.last_stream,
        &numbers.last_category,
        &added,
        &appeared,
    ];
    let (one, two, three, four, five, six, committed) = futures::join!(
        insert_new,
        client.execute(upsert_streams, &stream_columns),
        client.execute(insert_messages, &message_columns),
        client.execute(count_categories, &category_columns),
        client.query(count_namespace, &namespace_columns),
        trim_ruled,
        client.batch_execute("COMMIT"),
    );
    let results = [one.err(), two.err(), three.err(), four.err(), five.err(), six.err()];
    if let Some(error) = results.into_iter().flatten().next() {
        let error = failed(link.place(), &error);
        // The pipelined commit has rolled back. If even that is unknown, the connection is closed.
        link.set_in_transaction(committed.is_err());
        return Err(error);
    }
    committed.map_err(|error| match error.as_db_error() {
        Some(_) => failed(link.place(), &error),
        None => unavailable(link.place(), &error),
    })?;
    link.set_in_transaction(false);
    Ok(())
}

/// The columns of the messages as query parameters.
#[derive(Default)]
struct MessageColumns<'a> {
    globals: Vec<i64>,
    streams: Vec<i64>,
    positions: Vec<i64>,
    categories: Vec<i64>,
    groups: Vec<Option<i64>>,
    correlations: Vec<Option<i64>>,
    ages: Vec<bool>,
    ids: Vec<&'a [u8]>,
    kinds: Vec<&'a str>,
    data: Vec<&'a str>,
    metadata: Vec<Option<&'a str>>,
}

impl<'a> MessageColumns<'a> {
    fn of(plan: &'a AppendPlan<'_>) -> MessageColumns<'a> {
        let mut columns = MessageColumns::default();
        for message in &plan.rows.messages {
            let metadata = message.event.metadata.as_deref();
            columns.globals.push(message.global);
            columns.streams.push(message.stream);
            columns.positions.push(message.position);
            columns.categories.push(message.category);
            columns.groups.push(message.group);
            columns.correlations.push(columns::correlation(metadata));
            columns.ages.push(message.ages);
            columns.ids.push(&message.id);
            columns.kinds.push(&message.event.kind);
            columns.data.push(&message.event.data);
            columns.metadata.push(metadata);
        }
        columns
    }

    fn parameters<'p>(&'p self, space: &'p i64, now: &'p i64) -> [crate::connection_pool::Param<'p>; 13] {
        [
            space,
            now,
            &self.globals,
            &self.streams,
            &self.positions,
            &self.categories,
            &self.groups,
            &self.correlations,
            &self.ages,
            &self.ids,
            &self.kinds,
            &self.data,
            &self.metadata,
        ]
    }
}
