//! The table `tags` from the log to its files: each appended message is in it exactly once, whatever happens to disk
//! and process.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{Array, AsArray};
use arrow::datatypes::Int64Type;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use tempfile::TempDir;
use thalweg_log::disk::RamDisk;
use thalweg_log::format::record::RecordRef;
use thalweg_log::{EmbeddedLog, LogOptions, PartitionId, Records, WriteBatch};
use thalweg_record::{Message, MetaMap, Metadata, Payload, SourceName, Text, Value};
use thalweg_telemetry::{Metrics, StatusSource as _};

use super::{TagBatchWriter, tag_id};
use crate::LakeMetrics;
use crate::error::OpenError;
use crate::ingest::{IngestOptions, QueueSource, TableWriter};
use crate::maintenance::{MaintenanceOptions, MaintenanceThread};
use thalweg_columns::attributes::AttributePromotion;
use thalweg_columns::compaction::CompactionOptions;
use thalweg_columns::tables::TAGS;
use thalweg_delta::actions::CommitInfo;
use thalweg_delta::actions::{Action, Metadata as TableMetadata};
use thalweg_delta::schema::TableColumn;
use thalweg_delta::store::simulated::{SimulatedDisk, StepKind};
use thalweg_delta::store::{LakeStorage, SyncedStore};
use thalweg_delta::{DeltaLog, SnapshotDetail};

const PARTITION: PartitionId = PartitionId::new(7, 0);
/// The arrival of all messages.
pub(super) const ARRIVAL: i64 = 1_935_817_689_123_456_700;
const SOON: Duration = Duration::from_secs(20);

/// A log with a queue, which outlives its readers, and a lake folder.
pub(super) struct World {
    log: Arc<EmbeddedLog>,
    pub lake: TempDir,
    /// The columns of writers that are opened.
    pub promotion: AttributePromotion,
    pub metrics: LakeMetrics,
}

fn fast() -> IngestOptions {
    IngestOptions {
        flush_interval: Duration::from_millis(20),
        ..IngestOptions::default()
    }
}

/// Commits only when the test hurries or closes.
pub(super) fn slow() -> IngestOptions {
    IngestOptions {
        flush_interval: Duration::from_secs(3600),
        ..IngestOptions::default()
    }
}

impl World {
    pub async fn new() -> World {
        let options = LogOptions {
            file_bytes: 16 << 20,
            first_file_bytes: 1 << 20,
            spare: 0,
            min_free_bytes: Some(0),
            ..LogOptions::default()
        };
        let log = EmbeddedLog::open(Arc::new(RamDisk::new(256 << 20)), 0xab, &options).unwrap();
        log.create(PARTITION, thalweg_log::Durability::Fsync).await.unwrap();
        World {
            log: Arc::new(log),
            lake: tempfile::tempdir().unwrap(),
            promotion: AttributePromotion::default(),
            metrics: LakeMetrics::register(&Metrics::default()),
        }
    }

    pub fn table(&self) -> std::path::PathBuf {
        self.lake.path().join("tags")
    }

    async fn open_at(
        &self,
        lake: &Path,
        store: SyncedStore,
        options: &IngestOptions,
    ) -> Result<TableWriter, OpenError> {
        let feed = QueueSource {
            handoffs: None,
            queue: "lake.tags".to_owned(),
            log: self.log.clone(),
            partitions: vec![PARTITION],
            taken: Arc::new(|_, _| {}),
        };
        let (promotion, metrics) = (self.promotion.clone(), self.metrics.clone());
        let site = LakeStorage::folder(lake, store);
        let decoder = crate::tags::entry_decoder();
        TableWriter::open(&site, &TAGS, feed, &decoder, promotion, metrics, options).await
    }

    pub async fn open_with(&self, store: SyncedStore, options: &IngestOptions) -> Result<TableWriter, OpenError> {
        self.open_at(self.lake.path(), store, options).await
    }

    pub async fn open(&self, options: &IngestOptions) -> TableWriter {
        self.open_with(SyncedStore::new(), options).await.unwrap()
    }

    /// Returns when the messages are in the log.
    pub async fn append(&self, messages: Vec<Message>) {
        let packed = TagBatchWriter::default().pack(&"plant".into(), &messages, ARRIVAL);
        assert_eq!(packed.refused, []);
        for entry in packed.entries {
            let mut records = Records::new();
            records.push(&RecordRef::of(1, &entry.bytes)).unwrap();
            self.log.append(WriteBatch::of(PARTITION, records)).await.unwrap();
        }
    }

    /// Returns when they are in the table.
    async fn store(&self, writer: &TableWriter, messages: Vec<Message>) {
        self.append(messages).await;
        self.stored(writer).await;
    }

    /// The end of the log.
    pub fn end(&self) -> i64 {
        self.log.bounds(PARTITION).unwrap().next as i64
    }

    /// The committed offset of the table.
    pub async fn taken(&self) -> Option<i64> {
        let log = DeltaLog::new(&self.table(), SyncedStore::new()).unwrap();
        let table = log.load(SnapshotDetail::Counts).await.unwrap()?;
        table.transactions.values().next().copied()
    }

    async fn stored(&self, writer: &TableWriter) {
        for _ in 0..4000 {
            if self.taken().await == Some(self.end()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("not stored: {:?}", writer.not_ready());
    }

    /// All rows of the table, file by file in the order of commits.
    pub async fn rows(&self) -> Vec<Row> {
        let log = DeltaLog::new(&self.table(), SyncedStore::new()).unwrap();
        let Some(snapshot) = log.load(SnapshotDetail::Stats).await.unwrap() else {
            return Vec::new();
        };
        let mut files = Vec::new();
        for file in snapshot.files.values() {
            let rows = read(&self.table().join(&*file.path));
            assert_eq!(
                file.stats.rows,
                Some(rows.len() as u64),
                "the log knows the rows of each file"
            );
            files.push((file.modified_unix_ms, rows));
        }
        files.sort_by_key(|(modified, _)| *modified);
        files.into_iter().flat_map(|(_, rows)| rows).collect()
    }

    async fn values(&self) -> Vec<i64> {
        let rows = self.rows().await;
        let mut values: Vec<i64> = rows.iter().map(|row| row["value_int"].parse().unwrap()).collect();
        values.sort_unstable();
        values
    }
}

/// A row as text by column, for the columns that tests check.
pub(super) type Row = BTreeMap<String, String>;

fn read(file: &Path) -> Vec<Row> {
    let bytes = bytes::Bytes::from(std::fs::read(file).unwrap());
    let mut rows = Vec::new();
    for batch in ParquetRecordBatchReaderBuilder::try_new(bytes)
        .unwrap()
        .build()
        .unwrap()
    {
        let batch = batch.unwrap();
        for row in 0..batch.num_rows() {
            let mut cells = Row::new();
            for (field, column) in batch.schema().fields().iter().zip(batch.columns()) {
                let text = column.as_string_opt::<i32>().filter(|c| c.is_valid(row));
                let long = column.as_primitive_opt::<Int64Type>().filter(|c| c.is_valid(row));
                let text = text.map(|c| c.value(row).to_owned());
                if let Some(value) = text.or(long.map(|c| c.value(row).to_string())) {
                    cells.insert(field.name().clone(), value);
                }
            }
            rows.push(cells);
        }
    }
    rows
}

pub(super) fn message(tag: &str, value: i64, extra: &[(&str, &str)]) -> Message {
    let entries = [("umh_topic", tag)].into_iter().chain(extra.iter().copied());
    let map = MetaMap::new(entries.map(|(k, v)| (Text::from(k), Text::from(v))), None);
    Message::new(Payload::Value(Value::I64(value)), Metadata::shared(Arc::new(map)))
}

fn batch(values: impl IntoIterator<Item = i64>) -> Vec<Message> {
    values.into_iter().map(|value| message("t", value, &[])).collect()
}

async fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    loop {
        match look() {
            Some(found) => return found,
            None => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_appended_is_seen_at_once_and_is_in_the_table_when_it_closes() {
    let world = World::new().await;
    let writer = world.open(&slow()).await;
    world.append(batch(0..10)).await;
    let seen = || {
        writer
            .live()
            .beyond(None)
            .iter()
            .map(|chunk| chunk.rows())
            .sum::<usize>()
    };
    until(|| (seen() == 10).then_some(())).await;
    world.append(batch(10..20)).await;
    // Right after an append, before anything was consumed.
    writer.close(SOON).await;
    assert_eq!(world.values().await, (0..20).collect::<Vec<_>>());
    let status = writer.tables().remove(0);
    assert_eq!(
        (status.name.as_str(), status.rows, status.buffered_rows),
        ("tags", 20, 0)
    );
    assert!(status.failed.is_none() && status.last_commit_unix_ms.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_nothing_comes_for_forgets_its_tags_and_goes_on() {
    let world = World::new().await;
    let writer = world.open(&slow()).await;
    for from in [0, 10, 20] {
        world.append(batch(from..from + 10)).await;
    }
    let seen = || {
        let live = writer.live().beyond(None);
        live.iter().map(|chunk| chunk.rows()).sum::<usize>()
    };
    until(|| (seen() == 30).then_some(())).await;
    let forgotten = until(|| (writer.remembered_bytes() == 0).then_some(()));
    let forgotten = tokio::time::timeout(SOON, forgotten).await;
    forgotten.expect("what it knows of tags stays");
    world.append(batch(30..40)).await;
    writer.close(SOON).await;
    assert_eq!(world.values().await, (0..40).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_keep_the_order_of_appends_across_files_and_within_equal_times() {
    let world = World::new().await;
    let options = IngestOptions {
        flush_bytes: 16 << 10,
        ..slow()
    };
    let writer = world.open(&options).await;
    for i in 0..50 {
        world.append(batch(i * 100..i * 100 + 100)).await;
    }
    writer.close(SOON).await;
    let rows = world.rows().await;
    let in_files: Vec<i64> = rows.iter().map(|row| row["value_int"].parse().unwrap()).collect();
    // Files of the same millisecond have no order among each other, but each is sorted.
    assert!(
        in_files.windows(2).filter(|pair| pair[0] + 1 != pair[1]).count() < 20,
        "{in_files:?}"
    );
    let mut sorted = in_files;
    sorted.sort_unstable();
    assert_eq!(sorted, (0..5000).collect::<Vec<_>>());
    assert!(writer.tables()[0].files > 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tag_of_two_sources_is_two_series() {
    let world = World::new().await;
    let writer = world.open(&slow()).await;
    let from = |source: SourceName| Message {
        source,
        ..message("t", 1, &[])
    };
    let sources = [
        SourceName::new("north"),
        SourceName::new("south"),
        SourceName::default(),
    ];
    world.append(sources.map(from).to_vec()).await;
    writer.close(SOON).await;
    let rows = world.rows().await;
    let mut found: Vec<(String, String)> = rows
        .iter()
        .map(|row| (row["source"].clone(), row["tag_id"].clone()))
        .collect();
    found.sort();
    let expected = ["north", "plant", "south"].map(|source| (source.to_owned(), tag_id(source, Some("t")).to_string()));
    assert_eq!(found, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ten_megabyte_text_is_stored_whole() {
    let world = World::new().await;
    let writer = world.open(&slow()).await;
    let text = "0123456789".repeat(1 << 20);
    let mut large = message("t", 0, &[]);
    large.payload = Payload::Value(Value::text(text.as_str()));
    world.append(vec![large]).await;
    writer.close(SOON).await;
    assert_eq!(world.rows().await[0]["value_text"], text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn columns_keep_their_names_over_a_restart() {
    let world = World::new().await;
    let writer = world.open(&slow()).await;
    world.append(vec![message("t", 1, &[("a.b", "first")])]).await;
    writer.close(SOON).await;
    let writer = world.open(&slow()).await;
    let both = vec![
        message("t", 2, &[("a_b", "second"), ("a.b", "first")]),
        message("t", 3, &[("c", "x")]),
    ];
    world.append(both).await;
    writer.close(SOON).await;
    let mut rows = world.rows().await;
    rows.sort_by_key(|row| row["value_int"].clone());
    assert_eq!(rows[0]["attr_a_b"], "first");
    assert_eq!(rows[1]["attr_a_b"], "first");
    let (suffixed, value) = rows[1].iter().find(|(name, _)| name.starts_with("attr_a_b__")).unwrap();
    assert_eq!((suffixed.len(), value.as_str()), ("attr_a_b__".len() + 8, "second"));
    assert_eq!(rows[2]["attr_c"], "x");
    let log = DeltaLog::new(&world.table(), SyncedStore::new()).unwrap();
    let schema = log.load(SnapshotDetail::Counts).await.unwrap().unwrap().schema;
    assert_eq!(schema.column("attr_a_b").unwrap().binding(), Some(("attr", "a.b")));
    assert_eq!(schema.column(suffixed).unwrap().binding(), Some(("attr", "a_b")));
}

/// A table of an earlier version has its overflow map among the other columns, and no committed offset.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_of_an_earlier_version_goes_on() {
    let world = World::new().await;
    let writer = world.open(&slow()).await;
    writer.close(SOON).await;
    let log = DeltaLog::new(&world.table(), SyncedStore::new()).unwrap();
    let mut columns = (TAGS.columns)();
    let overflow = columns.columns.pop().unwrap();
    columns.columns.insert(7, overflow);
    let metadata = thalweg_delta::new_metadata(&columns, &["date"], &[], 1);
    let mut actions = vec![Action::CommitInfo(CommitInfo::of("CREATE TABLE", 1))];
    actions.extend(thalweg_delta::creation(metadata));
    log.commit(0, &actions).await.unwrap();
    let writer = world.open(&slow()).await;
    let mut odd = message("t", 1, &[("a", "x")]);
    odd.meta.set("b", "y");
    world.append(vec![odd]).await;
    writer.close(SOON).await;
    let rows = world.rows().await;
    assert_eq!((rows[0]["attr_a"].as_str(), rows[0]["attr_b"].as_str()), ("x", "y"));
    let table = log.load(SnapshotDetail::Counts).await.unwrap().unwrap();
    assert_eq!(table.schema.columns[7].name, "overflow");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_holds_rows_back_and_loses_none() {
    let world = World::new().await;
    let disk = SimulatedDisk::default();
    let store = SyncedStore::with_disk(Arc::new(disk.clone()));
    let writer = world.open_with(store, &fast()).await.unwrap();
    world.store(&writer, batch([0])).await;
    disk.fail(StepKind::Write, io::ErrorKind::StorageFull);
    world.append(batch(1..4)).await;
    let trouble = until(|| writer.tables().remove(0).failed).await;
    assert!(
        trouble.contains("is full") && trouble.contains("free some space"),
        "{trouble}"
    );
    world.append(batch(4..6)).await;
    until(|| (writer.tables()[0].buffered_rows == 5).then_some(())).await;
    disk.heal();
    world.stored(&writer).await;
    assert_eq!(world.values().await, [0, 1, 2, 3, 4, 5]);
    until(|| writer.tables()[0].failed.is_none().then_some(())).await;
    writer.close(SOON).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_sync_makes_the_table_read_only_until_it_is_opened_again() {
    for kind in [StepKind::SyncFile, StepKind::SyncDirectory] {
        let world = World::new().await;
        let disk = SimulatedDisk::default();
        let store = SyncedStore::with_disk(Arc::new(disk.clone()));
        let writer = world.open_with(store, &fast()).await.unwrap();
        world.store(&writer, batch([0])).await;
        disk.fail(kind, io::ErrorKind::Other);
        world.append(batch([1])).await;
        let trouble = until(|| writer.not_ready().pop()).await;
        assert!(trouble.contains("lake.sync_failed"), "{trouble}");
        disk.heal();
        world.append(batch([2])).await;
        tokio::time::sleep(Duration::from_millis(60)).await;
        assert_eq!(writer.not_ready().len(), 1, "it does not recover by itself");
        writer.close(SOON).await;
        drop(writer);
        let writer = world.open(&fast()).await;
        world.stored(&writer).await;
        assert_eq!(world.values().await, [0, 1, 2], "what the log has for it is not lost");
        writer.close(SOON).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_writer_in_between_is_respected() {
    let world = World::new().await;
    let writer = world.open(&fast()).await;
    world.store(&writer, vec![message("t", 1, &[("a", "1")])]).await;

    // A commit without new columns: ours follows it.
    let log = DeltaLog::new(&world.table(), SyncedStore::new()).unwrap();
    let mut snapshot = log.load(SnapshotDetail::Counts).await.unwrap().unwrap();
    let info = || Action::CommitInfo(CommitInfo::of("WRITE", 1));
    log.commit(snapshot.version + 1, &[info()]).await.unwrap();
    world.store(&writer, vec![message("t", 2, &[("b", "2")])]).await;

    // A commit that binds the name c.d to the column that our c_d would take.
    log.refresh(&mut snapshot).await.unwrap();
    let mut schema = (*snapshot.schema).clone();
    schema
        .columns
        .push(TableColumn::attribute("attr_c_d".into(), "attr", "c.d"));
    let metadata = TableMetadata {
        schema_string: schema.to_delta(),
        ..snapshot.metadata.clone()
    };
    let actions = [info(), Action::Metadata(metadata)];
    log.commit(snapshot.version + 1, &actions).await.unwrap();
    let both = [("c_d", "ours"), ("c.d", "theirs")];
    world.store(&writer, vec![message("t", 3, &both)]).await;
    writer.close(SOON).await;

    let mut rows = world.rows().await;
    rows.sort_by_key(|row| row["value_int"].clone());
    assert_eq!(
        (rows[1]["attr_b"].as_str(), rows[2]["attr_c_d"].as_str()),
        ("2", "theirs")
    );
    let is_ours = |(name, value): (&String, &String)| name.starts_with("attr_c_d__") && value == "ours";
    assert!(rows[2].iter().any(is_ours));
    let files = std::fs::read_dir(world.table()).unwrap().flatten();
    let data: usize = files
        .filter(|entry| entry.file_name() != "_delta_log")
        .map(|entry| std::fs::read_dir(entry.path()).unwrap().count())
        .sum();
    assert_eq!(data, 3, "the files that were encoded for the old columns are gone");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_comes_after_every_so_many_commits() {
    let world = World::new().await;
    let options = IngestOptions {
        checkpoint_interval: 5,
        ..fast()
    };
    let writer = world.open(&options).await;
    for i in 0..12 {
        world.store(&writer, batch([i])).await;
    }
    let log = world.table().join("_delta_log");
    until(|| log.join("_last_checkpoint").exists().then_some(())).await;
    writer.close(SOON).await;
    assert_eq!(world.values().await, (0..12).collect::<Vec<_>>());
    assert!(log.join(format!("{:020}.checkpoint.parquet", 5)).exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_that_cannot_be_used_is_one_clear_sentence() {
    let world = World::new().await;
    let lake = world.lake.path().join("lake");
    std::fs::write(&lake, "a file").unwrap();
    let error = world.open_at(&lake, SyncedStore::new(), &fast()).await.err().unwrap();
    let error = error.to_string();
    assert!(
        error.starts_with("the lake folder ") && error.contains("set another data_dir"),
        "{error}"
    );
}

/// The process dies, or the machine loses power, before any single step of the store: after a restart every entry of
/// the log is in the table exactly once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn death_between_any_two_steps_loses_nothing_and_doubles_nothing() {
    const ROWS: i64 = 3;
    let mut step = 1;
    let mut is_through = false;
    while !is_through {
        for power_loss in [None, Some(1), Some(2)] {
            let world = World::new().await;
            let disk = SimulatedDisk::dies_at(step);
            let store = SyncedStore::with_disk(Arc::new(disk.clone()));
            let options = IngestOptions {
                checkpoint_interval: 2,
                ..slow()
            };
            let mut appended = 0;
            if let Ok(writer) = world.open_with(store, &options).await {
                while appended < 4 && !disk.is_dead() {
                    world.append(batch(appended * ROWS..(appended + 1) * ROWS)).await;
                    appended += 1;
                    let is_committed = || {
                        let status = writer.tables().remove(0);
                        status.rows == (appended * ROWS) as u64
                    };
                    until(|| {
                        writer.hurry();
                        (disk.is_dead() || is_committed()).then_some(())
                    })
                    .await;
                }
                drop(writer);
            }
            is_through = appended == 4 && !disk.is_dead();
            if let Some(seed) = power_loss {
                let mut random = step.wrapping_mul(31).wrapping_add(seed);
                disk.lose_power(world.lake.path(), || {
                    random = random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    random >> 33
                });
            }
            let writer = world.open(&slow()).await;
            world.append(batch([100])).await;
            writer.close(SOON).await;
            let expected: Vec<i64> = (0..appended * ROWS).chain([100]).collect();
            assert_eq!(world.values().await, expected, "step {step}, {power_loss:?}");
        }
        step += 1;
    }
    assert!(step > 20, "the steps of {step} operations were tried");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_files_become_one_and_rows_stay_as_they_are() {
    let world = World::new().await;
    let writer = Arc::new(world.open(&fast()).await);
    for file in 0..12 {
        let mut messages = batch(file * 10..file * 10 + 10);
        messages.push(message("u", -file, &[("file", &format!("f{file}")), ("only", "x")]));
        messages[3].payload = Payload::Raw(vec![0xff, file as u8].into());
        world.store(&writer, messages).await;
    }
    let before = world.rows().await;
    let options = MaintenanceOptions {
        compaction: CompactionOptions {
            inputs: 4,
            seal_after: Duration::ZERO,
            ..CompactionOptions::default()
        },
        bytes_per_second: 0,
        look_every: Duration::from_millis(5),
        ..MaintenanceOptions::default()
    };
    let metrics = LakeMetrics::register(&Metrics::default());
    let maintenance = MaintenanceThread::start(options, metrics).unwrap();
    maintenance.keep(writer.clone());
    until(|| (writer.tables()[0].files <= 3).then_some(())).await;
    tokio::task::spawn_blocking(|| maintenance.stop()).await.unwrap();
    let sorted = |mut rows: Vec<Row>| {
        rows.sort();
        rows
    };
    let after = world.rows().await;
    assert_eq!(after.len(), 12 * 11);
    assert_eq!(sorted(after), sorted(before));
    writer.close(SOON).await;
}
