use std::collections::BTreeMap;

use arrow::array::{Array, AsArray};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use tempfile::TempDir;
use thalweg_log::disk::RamDisk;
use thalweg_log::format::record::RecordRef;
use thalweg_log::{Durability, EmbeddedLog, LogOptions, Records, WriteBatch};
use thalweg_telemetry::{Metrics, StatusSource as _};

use super::*;
use thalweg_delta::store::SyncedStore;
use thalweg_delta::{DeltaLog, SnapshotDetail};

const SOON: Duration = Duration::from_secs(20);

/// A store with messages `stream position metadata`, separated by spaces. A record that begins with `#` is no message.
#[derive(Default)]
struct Fake {
    namespaces: Mutex<Vec<EventPartition>>,
}

impl EventStore for Fake {
    fn partitions(&self) -> Vec<EventPartition> {
        self.namespaces.lock().clone()
    }

    fn let_go(&self, number: u32) {
        let mut namespaces = self.namespaces.lock();
        let is_gone = |partition: &EventPartition| partition.number == number && partition.is_deleted;
        assert!(namespaces.iter().any(is_gone), "{number} was let go");
        namespaces.retain(|partition| !is_gone(partition));
    }

    fn event<'a>(&self, value: &'a [u8]) -> Result<Option<Event<'a>>, String> {
        let text = std::str::from_utf8(value).map_err(|error| error.to_string())?;
        let mut parts = text.splitn(3, ' ');
        let (Some(stream), Some(position)) = (parts.next(), parts.next()) else {
            return Ok(None);
        };
        let position = position.parse().map_err(|_| "no position".to_owned())?;
        Ok(Some(Event {
            id: format!("{stream}@{position}").into(),
            category: stream.split('-').next().unwrap_or_default(),
            stream,
            kind: "Told",
            position,
            global: position + 1,
            data: "{\"a\":1.50}",
            metadata: parts.next(),
        }))
    }
}

struct World {
    log: Arc<EmbeddedLog>,
    lake: TempDir,
    store: Arc<Fake>,
    /// The namespace, stream and position of every appended message.
    model: BTreeMap<(String, String, i64), ()>,
}

fn options(interval_ms: u64) -> IngestOptions {
    IngestOptions {
        flush_interval: Duration::from_millis(interval_ms),
        ..IngestOptions::default()
    }
}

impl World {
    async fn new() -> World {
        let options = LogOptions {
            file_bytes: 1 << 20,
            first_file_bytes: 1 << 20,
            spare: 0,
            min_free_bytes: Some(0),
            ..LogOptions::default()
        };
        let log = EmbeddedLog::open(Arc::new(RamDisk::new(256 << 20)), 0xab, &options).unwrap();
        World {
            log: Arc::new(log),
            lake: tempfile::tempdir().unwrap(),
            store: Arc::default(),
            model: BTreeMap::new(),
        }
    }

    async fn create(&self, number: u32, namespace: &str) {
        let id = PartitionId::new(PartitionId::EVENTS + number, 0);
        self.log.create(id, Durability::Fsync).await.unwrap();
        self.store.namespaces.lock().push(EventPartition {
            number,
            id,
            namespace: namespace.to_owned(),
            is_deleted: false,
        });
    }

    /// `remove_freed` removes it after the writer has let it go.
    fn delete(&self, number: u32) {
        let mut namespaces = self.store.namespaces.lock();
        for partition in namespaces.iter_mut().filter(|partition| partition.number == number) {
            partition.is_deleted = true;
        }
    }

    async fn remove_freed(&self) {
        let needed: Vec<_> = self.store.partitions().iter().map(|partition| partition.id).collect();
        for id in self.log.partitions() {
            if id.queue > PartitionId::EVENTS && !needed.contains(&id) {
                self.log.remove(id).await.unwrap();
            }
        }
    }

    async fn append(&mut self, number: u32, stream: &str, position: i64, metadata: &str) {
        let namespaces = self.store.partitions();
        let partition = namespaces.iter().find(|partition| partition.number == number).unwrap();
        let text = format!("{stream} {position} {metadata}");
        self.append_bytes(number, text.trim_end().as_bytes()).await;
        let key = (partition.namespace.clone(), stream.to_owned(), position);
        self.model.insert(key, ());
    }

    async fn append_bytes(&self, number: u32, value: &[u8]) {
        let id = PartitionId::new(PartitionId::EVENTS + number, 0);
        let mut records = Records::new();
        records
            .push(&RecordRef::of(1_935_817_689_123_456 + i64::from(number), value))
            .unwrap();
        self.log.append(WriteBatch::of(id, records)).await.unwrap();
    }

    async fn open(&self, options: &IngestOptions) -> TableWriter {
        self.try_open(options).await.unwrap()
    }

    async fn try_open(&self, options: &IngestOptions) -> Result<TableWriter, OpenError> {
        let metrics = LakeMetrics::register(&Metrics::default());
        let site = LakeStorage::folder(self.lake.path(), SyncedStore::new());
        TableWriter::open_events(
            &site,
            self.log.clone(),
            self.store.clone(),
            AttributePromotion::default(),
            metrics,
            options,
        )
        .await
    }

    /// The namespaces whose offsets the table keeps, and those that it may forget.
    async fn numbers_of_table(&self) -> (Vec<u32>, Vec<u32>) {
        let log = DeltaLog::new(&self.lake.path().join("events"), SyncedStore::new()).unwrap();
        let table = log.load(SnapshotDetail::Counts).await.unwrap().unwrap();
        let (mut kept, mut forgettable) = (Vec::new(), Vec::new());
        for name in table.transactions.keys() {
            let number: u32 = name.rsplit('/').next().unwrap().parse().unwrap();
            match table.forgettable.contains(name) {
                true => forgettable.push(number),
                false if number > 0 => kept.push(number),
                false => {}
            }
        }
        (kept, forgettable)
    }

    /// The namespace, stream, position and attributes of each row.
    async fn rows(&self) -> Vec<((String, String, i64), BTreeMap<String, String>)> {
        let path = self.lake.path().join("events");
        let log = DeltaLog::new(&path, SyncedStore::new()).unwrap();
        let Some(table) = log.load(SnapshotDetail::Counts).await.unwrap() else {
            return Vec::new();
        };
        let mut all = Vec::new();
        for file in table.files.values() {
            let bytes = bytes::Bytes::from(std::fs::read(path.join(&*file.path)).unwrap());
            let reader = ParquetRecordBatchReaderBuilder::try_new(bytes)
                .unwrap()
                .build()
                .unwrap();
            let mut of_file = Vec::new();
            for rows in reader {
                let rows = rows.unwrap();
                let text = |name: &str, row| {
                    rows.column_by_name(name)
                        .unwrap()
                        .as_string::<i32>()
                        .value(row)
                        .to_owned()
                };
                let position = rows.column_by_name("stream_position").unwrap();
                let position = position.as_primitive::<arrow::datatypes::Int64Type>();
                for row in 0..rows.num_rows() {
                    let mut attributes = BTreeMap::new();
                    for (field, column) in rows.schema().fields().iter().zip(rows.columns()) {
                        if field.name().starts_with("attr_") && column.is_valid(row) {
                            attributes.insert(field.name().clone(), column.as_string::<i32>().value(row).to_owned());
                        }
                    }
                    assert_eq!(
                        (text("event_type", row), text("data", row)),
                        ("Told".into(), "{\"a\":1.50}".into())
                    );
                    let key = (text("namespace", row), text("stream", row), position.value(row));
                    assert_eq!(text("event_id", row), format!("{}@{}", key.1, key.2));
                    of_file.push((key, attributes));
                }
            }
            assert!(
                of_file.is_sorted_by(|a, b| a.0 <= b.0),
                "files are in the order of the table"
            );
            all.extend(of_file);
        }
        all.sort();
        all
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_become_rows_as_they_are_and_scalars_of_their_metadata_columns() {
    let mut world = World::new().await;
    world.create(1, "default").await;
    let writer = world.open(&options(3_600_000)).await;
    world.append(1, "order-1", 0, "").await;
    let metadata =
        r#"{"who":"é","n":1.50,"big":12345678901234567890123,"yes":true,"no":null,"list":[1],"deep":{"x":1}}"#;
    world.append(1, "order-1", 1, metadata).await;
    world.append_bytes(1, b"#document").await;
    world.append_bytes(1, b"order-1 x").await;
    world.create(2, "later").await;
    world.append(2, "bill", 0, "").await;
    // New names are committed early, with the rows so far.
    let seen = || {
        let table = &writer.tables()[0];
        table.rows + table.buffered_rows
    };
    while seen() < 3 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    writer.close(SOON).await;
    let rows = world.rows().await;
    assert_eq!(rows.len(), 3);
    let attributes: Vec<(&str, &str)> = rows[1]
        .1
        .iter()
        .map(|(name, text)| (name.as_str(), text.as_str()))
        .collect();
    assert_eq!(rows[1].0.2, 1);
    assert_eq!(
        attributes,
        [
            ("attr_big", "12345678901234567890123"),
            ("attr_n", "1.50"),
            ("attr_who", "é"),
            ("attr_yes", "true")
        ]
    );
    let aside = world.lake.path().join("_thalweg/quarantine/events-1-3.bin");
    assert_eq!(
        std::fs::read(aside).unwrap(),
        b"order-1 x",
        "it is set aside and the next ones are taken"
    );
    assert_eq!(writer.tables()[0].rows, 3);
}

/// Writers are dropped at any moment, namespaces come and go, and flushes run in between: each message must become a
/// row exactly once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_message_is_a_row_once_whatever_moment_the_writer_ends_at() {
    let mut world = World::new().await;
    let mut random = 7_u64;
    let mut below = |limit: u64| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % limit
    };
    let (mut numbers, mut next, mut position) = (vec![1], 2, 0);
    world.create(1, "n1").await;
    let mut writer = world.open(&options(10)).await;
    for round in 0..60 {
        for _ in 0..below(20) {
            let number = numbers[below(numbers.len() as u64) as usize];
            position += 1;
            let (stream, metadata) = (format!("s-{}", below(5)), format!("{{\"m{}\":{position}}}", below(3)));
            world.append(number, &stream, position, &metadata).await;
        }
        match below(6) {
            0 => {
                world.create(next, &format!("n{next}")).await;
                numbers.push(next);
                next += 1;
            }
            1 if numbers.len() > 1 => {
                let number = numbers.remove(below(numbers.len() as u64) as usize);
                world.delete(number);
            }
            2 => {
                drop(writer);
                // A commit in progress still ends here, unlike when a process ends.
                tokio::time::sleep(Duration::from_millis(50 + below(30))).await;
                writer = world.open(&options(10)).await;
            }
            _ => tokio::time::sleep(Duration::from_millis(below(15))).await,
        }
        if round % 20 == 19 {
            writer.hurry();
        }
        world.remove_freed().await;
    }
    writer.close(SOON).await;
    // Nothing of removed namespaces is kept for ever.
    let writer = world.open(&options(10)).await;
    world.append(numbers[0], "last", 0, "").await;
    writer.close(SOON).await;
    let rows: Vec<_> = world.rows().await.into_iter().map(|(key, _)| key).collect();
    let expected: Vec<_> = world.model.keys().cloned().collect();
    assert_eq!(rows, expected);
    let there: Vec<u32> = world
        .store
        .partitions()
        .iter()
        .map(|partition| partition.number)
        .collect();
    let (kept, forgettable) = world.numbers_of_table().await;
    assert!(kept.iter().all(|number| there.contains(number)), "{kept:?}, {there:?}");
    assert_eq!(forgettable.len(), next as usize - 1 - kept.len());
    assert!(!forgettable.is_empty());
}

/// The log is gone, and a new one of the same name has begun again.
async fn with_a_log_that_ends_early() -> World {
    let mut world = World::new().await;
    world.create(1, "default").await;
    let writer = world.open(&options(10)).await;
    for position in 0..3 {
        world.append(1, "order-1", position, "").await;
    }
    while writer.tables()[0].rows < 3 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    writer.close(SOON).await;
    let mut younger = World {
        lake: world.lake,
        model: world.model,
        ..World::new().await
    };
    younger.create(1, "default").await;
    younger.append(1, "order-2", 0, "").await;
    younger
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_ends_before_what_the_table_has_is_refused_until_that_is_accepted() {
    // Messages before the table is opened get offsets that it has already, in part or all.
    for more in 0..4 {
        let mut world = with_a_log_that_ends_early().await;
        let id = PartitionId::new(PartitionId::EVENTS + 1, 0);
        let before: BTreeMap<PartitionId, Offset> = [(id, 0)].into();
        for position in 0..more {
            world.append(1, "order-3", position, "").await;
        }
        let refused = world
            .try_open(&IngestOptions {
                log_ends: before.clone(),
                ..options(10)
            })
            .await;
        let refused = refused.err().unwrap();
        assert!(refused.is_permanent());
        let text = refused.to_string();
        for part in [
            "lake.lost: the log ends before offset 0 of events, partition default, and the table events has entries up to 2",
            "`log: {recover: skip}`",
        ] {
            assert!(text.contains(part), "{text}");
        }
        let accepted = IngestOptions {
            accept_gap: true,
            log_ends: before,
            ..options(10)
        };
        // Dropped before its first commit: the loss stays accepted.
        drop(
            world
                .open(&IngestOptions {
                    flush_interval: SOON,
                    ..accepted
                })
                .await,
        );
        let writer = world.open(&options(10)).await;
        world.append(1, "order-4", 0, "").await;
        let expected = world.model.len() as u64;
        let until = std::time::Instant::now() + SOON;
        while writer.tables()[0].rows < expected {
            assert!(std::time::Instant::now() < until, "{more} more: {:?}", writer.tables());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        writer.close(SOON).await;
        let rows: Vec<_> = world.rows().await.into_iter().map(|(key, _)| key).collect();
        assert_eq!(rows, world.model.keys().cloned().collect::<Vec<_>>(), "{more} more");
    }
}
