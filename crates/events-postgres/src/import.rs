//! Imports messages with given positions, and clears a namespace.

use std::collections::{BTreeMap, HashMap, HashSet};

use thalweg_events::admission::{ClaimedPart, ImportAdmission, ImportClaim};
use thalweg_events::{EventsError, ImportRecord, MessageId, Result, Uuid, limits, names, time};

use thalweg_kit::clock::Clock as _;
use thalweg_kit::random;

use crate::append::{COUNT_CATEGORIES, COUNT_NAMESPACE, INSERT_CATEGORIES, STREAMS, TRIM, known};
use crate::columns::{self, get, signed};
use crate::connection_pool::{Param, PooledConnection};
use crate::namespace::PostgresNamespace;
use crate::plan::{NamespaceCounters, StreamRow};

/// The state of a stream during an import.
struct StreamImport<'a> {
    known: StreamRow,
    number: i64,
    category: i64,
    /// The version, and the time of the message there.
    last: (i64, i64),
    added: i64,
    name: &'a str,
}

const TAKEN: &str = "SELECT m.global, s.name, m.position, m.id FROM messages m \
     LEFT JOIN streams s ON s.space = m.space AND s.stream = m.stream \
     WHERE m.space = $1 AND (m.global = ANY($2) OR m.id = ANY($3))";

const TAKEN_POSITIONS: &str = "SELECT u.name, u.position, s.tombstone FROM unnest($2::text[], $3::bigint[]) AS u (name, position) \
     JOIN streams s ON s.space = $1 AND s.name = u.name \
     WHERE s.tombstone OR u.position < s.floor OR EXISTS (SELECT FROM messages m \
     WHERE m.space = s.space AND m.stream = s.stream AND m.position = u.position)";

const INSERT: &str = "INSERT INTO messages \
     (space, time, global, stream, position, category, group_hash, correlation, ages, id, kind, data, metadata) \
     SELECT $1, u.* FROM unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], \
     $8::bigint[], $9::boolean[], $10::bytea[], $11::text[], $12::text[], $13::text[]) AS u";

const STREAM: &str = "INSERT INTO streams (space, stream, category, name, version, messages, last_time) \
     VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (space, stream) DO UPDATE SET version = excluded.version, \
     messages = excluded.messages, last_time = excluded.last_time";

impl PostgresNamespace {
    pub(crate) async fn import_batch(&self, batch: &[ImportRecord]) -> Result<()> {
        limits::check_import(batch)?;
        for import in batch {
            columns::storable([Some(import.data.as_str()), import.metadata.as_deref()])?;
        }
        if batch.is_empty() {
            return Ok(());
        }
        let ids = ids(batch)?;
        let mut link = self.links.lend().await?;
        let before = self.lock(&mut link).await?;
        match self.import_locked(&mut link, batch, &ids, before).await {
            Ok(after) => {
                link.commit().await?;
                self.seen.tell(after.last_global, after.change + 1, after.cleared);
                Ok(())
            }
            Err(error) => {
                link.rollback().await?;
                Err(error)
            }
        }
    }

    async fn import_locked(
        &self,
        link: &mut PooledConnection,
        batch: &[ImportRecord],
        ids: &[Vec<u8>],
        before: NamespaceCounters,
    ) -> Result<NamespaceCounters> {
        all_free(link, batch, ids, before.space).await?;
        let mut after = before;
        let mut targets = self.targets(link, batch, &mut after).await?;
        for import in batch {
            let Some(target) = targets.get_mut(import.stream.as_str()) else {
                continue;
            };
            target.added += 1;
            target.last = target.last.max((signed(import.position), import.time));
            after.last_global = after.last_global.max(signed(import.global));
        }
        let categories = counted(&targets);
        self.insert(link, batch, ids, &targets, before.space).await?;
        for target in targets.values() {
            let (version, time) = target.last;
            let messages = target.known.messages + target.added;
            let parameters: [Param<'_>; 7] = [
                &before.space,
                &target.number,
                &target.category,
                &target.name,
                &version,
                &messages,
                &time,
            ];
            link.execute(STREAM, &parameters).await?;
        }
        let numbers: Vec<i64> = categories.keys().copied().collect();
        let messages: Vec<i64> = categories.values().map(|(messages, _)| *messages).collect();
        let streams: Vec<i64> = categories.values().map(|(_, streams)| *streams).collect();
        link.execute(COUNT_CATEGORIES, &[&before.space, &numbers, &messages, &streams])
            .await?;
        let (added, appeared) = (batch.len() as i64, streams.iter().sum::<i64>());
        let parameters: [Param<'_>; 6] = [
            &self.identity.id,
            &after.last_global,
            &after.last_stream,
            &after.last_category,
            &added,
            &appeared,
        ];
        link.query(COUNT_NAMESPACE, &parameters).await?;
        let ruled = targets.values().filter(|target| target.known.has_rule);
        let ruled: Vec<i64> = ruled.map(|target| target.number).collect();
        if !ruled.is_empty() {
            link.query(TRIM, &[&before.space, &ruled, &self.links.clock.now()])
                .await?;
        }
        Ok(after)
    }

    /// The streams of a batch; new ones get numbers.
    async fn targets<'a>(
        &self,
        link: &mut PooledConnection,
        batch: &'a [ImportRecord],
        after: &mut NamespaceCounters,
    ) -> Result<HashMap<&'a str, StreamImport<'a>>> {
        let streams: HashSet<&str> = batch.iter().map(|import| import.stream.as_str()).collect();
        let streams: Vec<&str> = streams.into_iter().collect();
        let categories: Vec<&str> = streams.iter().map(|stream| names::category(stream)).collect();
        let rows = link.query(STREAMS, &[&self.identity.id, &streams, &categories]).await?;
        let mut found = HashMap::new();
        for row in &rows {
            let (name, known) = known(row)?;
            let time: Option<i64> = get(row, 8)?;
            found.insert(name, (known, time.unwrap_or(i64::MIN)));
        }
        let mut new: BTreeMap<&str, i64> = BTreeMap::new();
        let mut targets = HashMap::new();
        for name in streams {
            let Some((known, time)) = found.remove(name) else {
                continue;
            };
            let category = known.category.unwrap_or_else(|| {
                *new.entry(names::category(name)).or_insert_with(|| {
                    after.last_category += 1;
                    after.last_category
                })
            });
            let number = known.stream.unwrap_or_else(|| {
                after.last_stream += 1;
                after.last_stream
            });
            let target = StreamImport {
                number,
                category,
                last: (known.version, time),
                added: 0,
                name,
                known,
            };
            targets.insert(name, target);
        }
        if !new.is_empty() {
            let (names, numbers): (Vec<&str>, Vec<i64>) = new.into_iter().unzip();
            link.execute(INSERT_CATEGORIES, &[&after.space, &numbers, &names])
                .await?;
        }
        Ok(targets)
    }

    async fn insert(
        &self,
        link: &mut PooledConnection,
        batch: &[ImportRecord],
        ids: &[Vec<u8>],
        targets: &HashMap<&str, StreamImport<'_>>,
        space: i64,
    ) -> Result<()> {
        let target = |import: &ImportRecord| targets.get(import.stream.as_str());
        let times: Vec<i64> = batch.iter().map(|import| import.time).collect();
        let globals: Vec<i64> = batch.iter().map(|import| signed(import.global)).collect();
        let streams: Vec<Option<i64>> = batch.iter().map(|import| Some(target(import)?.number)).collect();
        let positions: Vec<i64> = batch.iter().map(|import| signed(import.position)).collect();
        let categories: Vec<Option<i64>> = batch.iter().map(|import| Some(target(import)?.category)).collect();
        let groups: Vec<Option<i64>> = batch.iter().map(|import| columns::group(&import.stream)).collect();
        let metadata: Vec<Option<&str>> = batch.iter().map(|import| import.metadata.as_deref()).collect();
        let correlations: Vec<Option<i64>> = metadata
            .iter()
            .map(|metadata| columns::correlation(*metadata))
            .collect();
        let ages: Vec<bool> = batch
            .iter()
            .map(|import| target(import).is_some_and(|target| target.known.ages))
            .collect();
        let kinds: Vec<&str> = batch.iter().map(|import| import.kind.as_str()).collect();
        let data: Vec<&str> = batch.iter().map(|import| import.data.as_str()).collect();
        let parameters: [Param<'_>; 13] = [
            &space,
            &times,
            &globals,
            &streams,
            &positions,
            &categories,
            &groups,
            &correlations,
            &ages,
            &ids,
            &kinds,
            &data,
            &metadata,
        ];
        link.execute(INSERT, &parameters).await?;
        Ok(())
    }

    /// All messages stay where they are, in a space that no namespace uses any more.
    pub(crate) async fn clear_all(&self) -> Result<()> {
        let mut link = self.links.lend().await?;
        let before = self.lock(&mut link).await?;
        link.execute("INSERT INTO retired_spaces (space) VALUES ($1)", &[&before.space])
            .await?;
        let sql = "UPDATE namespaces SET space = nextval('spaces'), last_global = 0, last_stream = 0, last_category = 0, \
             messages = 0, streams = 0, change = change + 1, cleared = cleared + 1 WHERE id = $1 \
             RETURNING pg_notify('thalweg_events', 'm ' || id || ' 0 ' || change || ' ' || cleared)";
        link.query(sql, &[&self.identity.id]).await?;
        link.commit().await?;
        self.seen.tell(0, before.change + 1, before.cleared + 1);
        Ok(())
    }
}

fn ids(batch: &[ImportRecord]) -> Result<Vec<Vec<u8>>> {
    let now_ms = (time::now() / 1000).unsigned_abs();
    let id = |import: &ImportRecord| {
        if let Some(id) = &import.id {
            return Ok(columns::id_bytes(id));
        }
        let mut chance = [0; 10];
        random::fill(&mut chance)
            .map_err(|error| EventsError::Unavailable(format!("no random numbers for ids: {error}")))?;
        Ok(columns::id_bytes(&MessageId::Uuid(Uuid::new_at(now_ms, chance))))
    };
    batch.iter().map(id).collect()
}

/// The new messages and streams per category.
fn counted(targets: &HashMap<&str, StreamImport<'_>>) -> BTreeMap<i64, (i64, i64)> {
    let mut counted: BTreeMap<i64, (i64, i64)> = BTreeMap::new();
    for target in targets.values() {
        let (messages, streams) = counted.entry(target.category).or_default();
        *messages += target.added;
        *streams += i64::from(target.known.messages == 0);
    }
    counted
}

/// Fails if a position or an id is taken, in the namespace or in the batch.
async fn all_free(link: &mut PooledConnection, batch: &[ImportRecord], ids: &[Vec<u8>], space: i64) -> Result<()> {
    let globals: Vec<i64> = batch.iter().map(|import| signed(import.global)).collect();
    let (streams, positions): (Vec<&str>, Vec<i64>) = batch
        .iter()
        .map(|import| (import.stream.as_str(), signed(import.position)))
        .unzip();
    let (mut used, mut used_ids) = (HashSet::new(), HashSet::new());
    let mut orphans = Vec::new();
    for row in link.query(TAKEN, &[&space, &globals, &ids]).await? {
        // A message without a stream keeps its global position, but its id no longer counts.
        let (global, id): (i64, Vec<u8>) = (get(&row, 0)?, get(&row, 3)?);
        match get::<Option<String>>(&row, 1)? {
            Some(_) => _ = used_ids.insert(id),
            None => orphans.push(global),
        }
        used.insert(global);
    }
    let (mut used_positions, mut tombstones) = (HashMap::<String, HashSet<i64>>::new(), HashSet::new());
    for row in link.query(TAKEN_POSITIONS, &[&space, &streams, &positions]).await? {
        let stream: String = get(&row, 0)?;
        if get(&row, 2)? {
            tombstones.insert(stream.clone());
        }
        used_positions.entry(stream).or_default().insert(get(&row, 1)?);
    }
    let mut admission = ImportAdmission::begin(streams.iter().copied(), |stream| tombstones.contains(stream))?;
    for (import, id) in batch.iter().zip(ids) {
        let claim = ImportClaim {
            stream: &import.stream,
            position: import.position,
            global: import.global,
            id: import.id.as_ref(),
        };
        let is_stored = |part: ClaimedPart| -> Result<bool> {
            let used_positions = used_positions.get(&import.stream);
            Ok(match part {
                ClaimedPart::GlobalPosition => used.contains(&signed(import.global)),
                ClaimedPart::Position => used_positions.is_some_and(|used| used.contains(&signed(import.position))),
                ClaimedPart::Id => used_ids.contains(id),
            })
        };
        admission.admit(claim, is_stored)?;
    }
    if !orphans.is_empty() {
        let sql = "DELETE FROM messages WHERE space = $1 AND global = ANY($2)";
        link.execute(sql, &[&space, &orphans]).await?;
    }
    Ok(())
}
