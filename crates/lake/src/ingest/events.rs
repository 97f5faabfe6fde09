//! Feeds the table `events` from the event store: one thread consumes the synced messages of all namespaces in turn.
//! Nothing is appended to the log for this.
//!
//! Namespaces come and go meanwhile. The messages of a deleted namespace stay in the log until they are committed.
//! Other messages that are removed before they are consumed do not become rows; rows stay when their messages are
//! removed later.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use parking_lot::Mutex;
use thalweg_kit::{clock, threads};
use thalweg_log::format::frame::FrameKind;
use thalweg_log::format::record::records;
use thalweg_log::{Frame, Log, LogError, Offset, PartitionId, ReadOptions};
use thalweg_record::{Value, json};
use tokio::runtime::Handle;

use super::event_offsets::EventOffsets;
use super::flush::OffsetTracking;
use super::log_ends::{LogEnds, drop_ends, kept};
use super::table_buffer::{Memtable, TableBuffer, TableGaugeSource};
use super::{IngestOptions, QueueSource, TableWriter, ends_error};
use crate::codes::LakeCode;
use crate::commit::HealthComponent;
use crate::error::OpenError;
use crate::metrics::{GaugeSource, LakeMetrics};
use crate::opening;
use thalweg_columns::attributes::AttributePromotion;
use thalweg_columns::rows::attribute_columns::{AttributeColumnHint, AttributeSource};
use thalweg_columns::rows::chunk::MemtableChunk;
use thalweg_columns::tables::{EVENTS, events as table};
use thalweg_delta::Snapshot;
use thalweg_delta::store::{LakeStorage, fault_text};

/// Bytes per read.
const READ: usize = 1 << 20;
/// How often namespaces are polled when there is nothing new.
const LOOK: Duration = Duration::from_millis(50);
const RETRY: Duration = Duration::from_secs(1);
/// The name of the event store's partitions in application names.
const QUEUE: &str = "events";

/// A namespace of the event store.
#[derive(Clone, Debug)]
pub struct EventPartition {
    /// Never reused.
    pub number: u32,
    pub id: PartitionId,
    pub namespace: String,
    /// It gets no more messages, and is removed after [`EventStore::let_go`].
    pub is_deleted: bool,
}

/// A message of the event store.
#[derive(Clone, Debug)]
pub struct Event<'a> {
    pub id: Cow<'a, str>,
    pub category: &'a str,
    pub stream: &'a str,
    pub kind: &'a str,
    pub position: u64,
    pub global: u64,
    pub data: &'a str,
    pub metadata: Option<&'a str>,
}

/// The event store, for a reader of its partitions.
pub trait EventStore: Send + Sync {
    /// All namespaces, including deleted ones that were not let go yet.
    fn partitions(&self) -> Vec<EventPartition>;

    /// Tells that the table durably has all of a deleted namespace. Called on a runtime.
    fn let_go(&self, number: u32);

    /// Decodes a record of a partition; `None` if it is no message. The error says why it cannot be decoded.
    fn event<'a>(&self, value: &'a [u8]) -> Result<Option<Event<'a>>, String>;
}

impl TableWriter {
    /// Like [`TableWriter::open`], for the table `events`, which the event store feeds.
    pub async fn open_events(
        site: &LakeStorage,
        log: Arc<dyn Log>,
        events: Arc<dyn EventStore>,
        promotion: AttributePromotion,
        metrics: LakeMetrics,
        options: &IngestOptions,
    ) -> Result<TableWriter, OpenError> {
        let columns = (EVENTS.columns)();
        let (table_log, mut snapshot) = opening::open(site, EVENTS.name, EVENTS.partitions, &columns).await?;
        opening::check_types(&table_log, snapshot.as_ref(), &promotion)?;
        let feed = QueueSource {
            queue: QUEUE.to_owned(),
            log,
            partitions: Vec::new(),
            taken: Arc::new(|_, _| {}),
            handoffs: None,
        };
        let ends = kept(site, &EVENTS).map_err(|source| ends_error(site, &EVENTS, source))?;
        if let Some(table) = &mut snapshot {
            let back = lost(&feed, events.as_ref(), table, options, &ends)?;
            opening::set_positions(&table_log, table, &back).await?;
        }
        drop_ends(site, &EVENTS).map_err(|source| ends_error(site, &EVENTS, source))?;
        let before = application_prefix(feed.log.as_ref());
        let (journal, count) = EventOffsets::of(before, snapshot.as_ref());
        let journal = Arc::new(journal);
        let (flush_bytes, interval) = (options.flush_bytes, options.flush_interval);
        let table = Arc::new(TableBuffer::new(
            &EVENTS,
            &[count],
            flush_bytes,
            interval,
            metrics.clone(),
        ));
        let feed = Arc::new(feed);
        let watched: Arc<dyn GaugeSource> = Arc::new(TableGaugeSource {
            table: table.clone(),
            feed: feed.clone(),
        });
        metrics.watch(Arc::downgrade(&watched));
        let writer = TableWriter {
            table: table.clone(),
            feed: feed.clone(),
            site: site.clone(),
            log: table_log,
            flush_interval: interval,
            threads: Mutex::default(),
            events: Some((events.clone(), journal.clone())),
            _watched: watched,
        };
        writer.spawn_flush(snapshot, promotion, options, OffsetTracking::Counted(journal.clone()))?;
        let consumer = EventConsumer {
            table,
            log: feed.log.clone(),
            events,
            journal,
            guess: AttributeColumnHint::default(),
            site: site.clone(),
            runtime: Handle::current(),
        };
        writer.thread(&site.path().join(EVENTS.name), "lake-rows", move || consumer.run())?;
        Ok(writer)
    }
}

/// The application name of a namespace's partition.
pub(super) fn application(log: &dyn Log, number: u32) -> String {
    format!("{}{number}", application_prefix(log))
}

fn application_prefix(log: &dyn Log) -> String {
    format!("thalweg/{:016x}/{QUEUE}/", log.id())
}

/// The offsets to which the table must go back because the log has lost messages that the table has. This is an error
/// unless gaps are accepted. After the loss the event store assigns the same offsets again, so the messages there are
/// new. The rows of lost messages stay.
fn lost(
    feed: &QueueSource,
    events: &dyn EventStore,
    table: &Snapshot,
    options: &IngestOptions,
    ends: &LogEnds,
) -> Result<Vec<(String, Offset)>, OpenError> {
    let mut back = Vec::new();
    for partition in events.partitions() {
        let name = application(feed.log.as_ref(), partition.number);
        let known = table.transactions.get(&name).and_then(|at| Offset::try_from(*at).ok());
        let (Some(table_has), Ok(bounds)) = (known, feed.log.bounds(partition.id)) else {
            continue;
        };
        let before = [ends.get(&name), options.log_ends.get(&partition.id)];
        let log_end = before.into_iter().flatten().copied().fold(bounds.next, Offset::min);
        if log_end >= table_has {
            continue;
        }
        if !options.accept_gap {
            return Err(OpenError::Lost {
                table: EVENTS.name,
                queue: QUEUE.to_owned(),
                partition: partition.namespace,
                log_end,
                table_has,
            });
        }
        tracing::error!(
            namespace = partition.namespace,
            log_end,
            table_has,
            "the log ends before the committed offset of the namespace: messages are lost, and the table continues without \
             them, as configured"
        );
        back.push((name, log_end));
    }
    Ok(back)
}

/// Whether everything in the log has been consumed, into the table or its memtable.
pub(super) fn is_taken(log: &dyn Log, events: &dyn EventStore, journal: &EventOffsets) -> bool {
    events.partitions().iter().all(|partition| {
        let next = log.bounds(partition.id).map_or(0, |bounds| bounds.next);
        journal.position(partition.number).unwrap_or(0) >= next
    })
}

struct EventConsumer {
    table: Arc<TableBuffer>,
    log: Arc<dyn Log>,
    events: Arc<dyn EventStore>,
    journal: Arc<EventOffsets>,
    guess: AttributeColumnHint,
    site: LakeStorage,
    runtime: Handle,
}

impl EventConsumer {
    /// Runs until the table ends.
    fn run(mut self) {
        let _end = EventEndGuard(self.table.clone());
        while self.table.wait_for_room() {
            let mut partitions = self.events.partitions();
            // Deleted namespaces first: they are finite, and finishing them frees space.
            partitions.sort_by_key(|partition| !partition.is_deleted);
            self.journal
                .keep_only(&|number| partitions.iter().any(|partition| partition.number == number));
            let (mut has_more, mut are_read) = (false, true);
            for partition in &partitions {
                match self.take(partition) {
                    Ok(more) => has_more |= more,
                    Err(error) if partition.is_deleted => self.pass_over(partition, &error),
                    Err(error) => {
                        let namespace = &partition.namespace;
                        let text =
                            format!("messages of the namespace {namespace} cannot be read from the log: {error}");
                        if self.table.health.set_trouble(HealthComponent::Log, &text) {
                            tracing::error!(table = EVENTS.name, "{text}");
                        }
                        are_read = false;
                        self.sleep(RETRY);
                    }
                }
                if !self.table.has_room() {
                    are_read = false;
                    break;
                }
            }
            if are_read && self.table.health.clear_trouble(HealthComponent::Log) {
                tracing::info!(table = EVENTS.name, "the log can be read again");
            }
            self.let_go(&partitions);
            if !has_more {
                self.sleep(LOOK);
            }
        }
    }

    /// Lets go of the deleted namespaces that are completely consumed and committed.
    fn let_go(&self, partitions: &[EventPartition]) {
        let _runtime = self.runtime.enter();
        for partition in partitions.iter().filter(|partition| partition.is_deleted) {
            let is_needed = self.log.bounds(partition.id).is_ok_and(|bounds| {
                let committed = self.journal.committed_position(partition.number);
                committed.unwrap_or(0).max(bounds.first) < bounds.next
            });
            if !is_needed {
                self.events.let_go(partition.number);
            }
        }
    }

    /// Consumes the next messages of a namespace. Returns whether there were any.
    fn take(&mut self, partition: &EventPartition) -> Result<bool, LogError> {
        // The partition may be gone by now.
        let Ok(bounds) = self.log.bounds(partition.id) else {
            return Ok(false);
        };
        let from = self.journal.position(partition.number);
        let from = from.unwrap_or(bounds.first).max(bounds.first);
        if from >= bounds.next {
            return Ok(false);
        }
        let want = ReadOptions {
            bytes: READ,
            synced: true,
        };
        let frames = match self.log.read(partition.id, from, want) {
            // Messages that the store has removed do not become rows.
            Err(LogError::Gap { to, .. }) => {
                self.passed(partition, to.max(from + 1));
                return Ok(true);
            }
            Err(LogError::NoPartition(_)) => return Ok(false),
            frames => frames?,
        };
        for frame in &frames {
            self.take_frame(partition, from, frame);
        }
        Ok(!frames.is_empty())
    }

    /// Skips unreadable messages of a deleted namespace: nobody will repair them, and their space must be freed.
    fn pass_over(&self, partition: &EventPartition, error: &LogError) {
        let Ok(bounds) = self.log.bounds(partition.id) else {
            return;
        };
        let from = self.journal.position(partition.number).unwrap_or(0).max(bounds.first);
        let frame = self.log.frame_at(partition.id, from).ok().flatten();
        let to = frame.map_or(bounds.next, |frame| frame.next()).max(from + 1);
        let namespace = &partition.namespace;
        tracing::error!(
            table = EVENTS.name,
            "messages at offsets {from} to {} of the deleted namespace {namespace} are skipped because they cannot be read: {error}",
            to - 1
        );
        self.passed(partition, to);
    }

    fn passed(&self, partition: &EventPartition, to: Offset) {
        if let Some(mut memtable) = self.table.memtable(0) {
            memtable.next += 1;
            self.journal.took(memtable.first, memtable.next, partition.number, to);
            self.table.publish(0, &mut memtable);
        }
    }

    fn take_frame(&mut self, partition: &EventPartition, from: Offset, frame: &Frame) {
        let table = self.table.clone();
        let Some(mut memtable) = table.memtable(0) else { return };
        let base = frame.header.base;
        let mut newest = None;
        if matches!(frame.header.kind, FrameKind::Data | FrameKind::State) {
            for (index, record) in (0..).zip(records(&frame.body)) {
                let Ok(record) = record else {
                    self.set_aside(partition, base, &frame.body, "it is not a list of records");
                    break;
                };
                let offset = base + record.delta.map_or(index, u64::from);
                if offset < from {
                    continue;
                }
                match self.events.event(record.value) {
                    Ok(Some(event)) => {
                        self.push(&mut memtable, &partition.namespace, &event, record.time);
                        newest = newest.max(Some(record.time));
                    }
                    Ok(None) => {}
                    Err(why) => self.set_aside(partition, offset, record.value, &why),
                }
            }
        }
        memtable.next += 1;
        let next = frame.header.next().max(from);
        self.journal.took(memtable.first, memtable.next, partition.number, next);
        table.publish(0, &mut memtable);
        drop(memtable);
        if let Some(newest) = newest {
            self.visible(newest);
        }
    }

    fn push(&mut self, memtable: &mut Memtable, namespace: &str, event: &Event<'_>, time_us: i64) {
        let chunk = self.table.chunk(memtable);
        let row = chunk.begin_row();
        let nanos = time_us.saturating_mul(1000);
        for (column, number) in [(table::TIME_NANOS, nanos), (table::ARRIVAL, nanos)] {
            chunk.longs(column).push(row, number);
        }
        for (column, number) in [(table::POSITION, event.position), (table::GLOBAL, event.global)] {
            chunk.longs(column).push(row, i64::try_from(number).unwrap_or(i64::MAX));
        }
        for (column, text) in [
            (table::NAMESPACE, namespace),
            (table::CATEGORY, event.category),
            (table::STREAM, event.stream),
            (table::ID, &*event.id),
            (table::KIND, event.kind),
            (table::DATA, event.data),
        ] {
            chunk.texts(column).push(row, text.as_bytes());
        }
        if let Some(metadata) = event.metadata {
            chunk.texts(table::METADATA).push(row, metadata.as_bytes());
            put_attributes(chunk, row, metadata, &mut self.guess);
        }
    }

    /// Observes the delay until the messages are visible to queries.
    fn visible(&self, time_us: i64) {
        let now = clock::wall().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = i64::try_from(now.as_micros()).unwrap_or(i64::MAX);
        let seconds = self.table.metrics.visibility_seconds.with_label_values(&[EVENTS.name]);
        seconds.observe(now.saturating_sub(time_us).max(0) as f64 / 1e6);
    }

    fn set_aside(&self, partition: &EventPartition, offset: Offset, bytes: &[u8], why: &str) {
        let metrics = &self.table.metrics;
        metrics.poison_entries.inc();
        metrics.quarantined.with_label_values(&["log"]).inc();
        let name = format!("events-{}-{offset}.bin", partition.number);
        let bytes = bytes::Bytes::copy_from_slice(bytes);
        let kept = match threads::block_on(&self.runtime, self.site.set_aside(&name, bytes)) {
            Ok(path) => format!("it is now in {}", path.display()),
            Err(error) => format!("and cannot be quarantined as {name}: {}", fault_text(&error)),
        };
        let (code, namespace) = (LakeCode::Poison, &partition.namespace);
        tracing::error!(
            table = EVENTS.name,
            "{code}: the record at offset {offset} of the namespace {namespace} cannot be decoded ({why}); {kept}"
        );
    }

    fn sleep(&self, pause: Duration) {
        let mut ending = self.table.ending();
        let over = ending.wait_for(|is_ending| *is_ending);
        let _ = threads::block_on(&self.runtime, async {
            tokio::time::timeout(pause, over).await.map(drop)
        });
    }
}

/// Adds the members of the metadata that are strings, numbers or booleans as attributes.
fn put_attributes(chunk: &mut MemtableChunk, row: usize, metadata: &str, guess: &mut AttributeColumnHint) {
    guess.begin();
    let Ok(Value::Object(members)) = json::parse(metadata.as_bytes()) else {
        return;
    };
    for (name, value) in members.iter() {
        let text = match value {
            Value::Null | Value::Array(_) | Value::Object(_) => continue,
            Value::Text(text) => Cow::Borrowed(text.as_str()),
            number => Cow::Owned(json::to_string(number)),
        };
        match chunk.slots.next(AttributeSource::Attr, name, guess) {
            Some(column) => {
                column.push(row, text.as_bytes());
            }
            None => chunk.push_extra(row, AttributeSource::Attr, name, &text),
        }
    }
}

/// Fails the table however the thread ends, so that nobody waits for it.
struct EventEndGuard(Arc<TableBuffer>);

impl Drop for EventEndGuard {
    fn drop(&mut self) {
        // After an orderly end this changes nothing.
        if !self.0.is_ending() {
            self.0.fail(crate::AppendError::Stopped);
        }
    }
}

#[cfg(test)]
mod tests;
