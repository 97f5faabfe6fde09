//! A log with input for every table of a lake, the writers of these tables, and maintenance on request.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tempfile::TempDir;
use thalweg_columns::attribute_types::AttributeType;
use thalweg_columns::attributes::AttributePromotion;
use thalweg_columns::compaction::CompactionOptions;
use thalweg_columns::tables::{LOGS, METRICS, TAGS, TRACES, TableSpec};
use thalweg_delta::actions::{Action, Txn};
use thalweg_delta::store::{LakeStorage, SyncedStore};
use thalweg_delta::{CommitOutcome, DeltaLog, SnapshotDetail};
use thalweg_lake::LakeMetrics;
use thalweg_lake::Signal;
use thalweg_lake::entry::{EntryForm, EntryHead, PayloadCompression, PayloadEncoding, RejectedRecords};
use thalweg_lake::ingest::{
    DecoderFactory, Event, EventPartition, EventStore, IngestOptions, QueueSource, TableWriter,
};
use thalweg_lake::maintenance::{
    MaintenanceOptions, MaintenanceReport, MaintenanceRequest, MaintenanceTask, MaintenanceThread, by_hand_alone,
};
use thalweg_lake::rollup::job::RollupOptions;
use thalweg_lake::tags::TagBatchWriter;
use thalweg_log::disk::RamDisk;
use thalweg_log::format::record::RecordRef;
use thalweg_log::{Durability, EmbeddedLog, LogOptions, PartitionId, Records, WriteBatch};
use thalweg_record::{Message, MetaMap, Metadata, Payload, Text, Ticks, Value as Sample, ValueQuality};
use thalweg_telemetry::{Metrics, StatusSource as _};

use crate::engines::Engines;

const SECOND: i64 = 1_000_000_000;
const DAY: i64 = 86_400 * SECOND;
/// Older rows expire.
const KEPT_DAYS: u32 = 30;
const OLD: i64 = 40 * DAY;
/// Rows of each table in each round.
const ROWS: i64 = 60;
const SOON: Duration = Duration::from_secs(60);
const EVENTS: PartitionId = PartitionId::new(PartitionId::EVENTS + 1, 0);
/// In the order of the tables.
const FED: [(&TableSpec, PartitionId); 4] = [
    (&LOGS, PartitionId::new(7, 0)),
    (&METRICS, PartitionId::new(8, 0)),
    (&TRACES, PartitionId::new(9, 0)),
    (&TAGS, PartitionId::new(10, 0)),
];
/// Points of the metric `temperature`, and numeric tags, in each round.
const TEMPERATURES: i64 = 20;
const NUMBERS: i64 = 54;

/// Entries of signals are requests or rows; those of tags are messages.
fn decoder_of(spec: &TableSpec) -> DecoderFactory {
    let signal = Signal::ALL.into_iter().find(|signal| signal.name() == spec.name);
    signal.map_or_else(thalweg_lake::tags::entry_decoder, thalweg_otlp::entry_decoder)
}

/// Some attribute columns have a type, which not all of their values fit. Those of `traces` have texts.
fn promotion_of(spec: &TableSpec) -> AttributePromotion {
    let types = [
        ("attr_http_status_code", "long"),
        ("attr_ratio", "double"),
        ("resource_host_0", "boolean"),
    ];
    let types = types.map(|(column, kind)| (column.to_owned(), AttributeType::declared(kind).unwrap()));
    match spec.name {
        "traces" => AttributePromotion::default(),
        _ => AttributePromotion::default().with_types(types.into()),
    }
}

pub struct Plant {
    folder: TempDir,
    log: Arc<EmbeddedLog>,
    writers: Vec<Arc<TableWriter>>,
    maintenance: MaintenanceThread,
    /// All rounds, and the old ones among them.
    rounds: (usize, usize),
    /// The old rounds have expired.
    is_shortened: bool,
}

impl Plant {
    pub async fn new() -> Plant {
        let options = LogOptions {
            file_bytes: 1 << 20,
            first_file_bytes: 1 << 20,
            spare: 0,
            min_free_bytes: Some(0),
            ..LogOptions::default()
        };
        let log = Arc::new(EmbeddedLog::open(Arc::new(RamDisk::new(256 << 20)), 0xab, &options).unwrap());
        let folder = tempfile::tempdir().unwrap();
        let site = LakeStorage::folder(&thalweg_lake::folder(folder.path()), SyncedStore::new());
        let metrics = LakeMetrics::register(&Metrics::default());
        let options = IngestOptions {
            flush_interval: Duration::from_millis(20),
            ..IngestOptions::default()
        };
        let mut writers = Vec::new();
        for (spec, partition) in FED {
            log.create(partition, Durability::Fsync).await.unwrap();
            let feed = QueueSource {
                queue: format!("lake.{}", spec.name),
                log: log.clone(),
                partitions: vec![partition],
                taken: Arc::new(|_, _| {}),
                handoffs: None,
            };
            let decoder = decoder_of(spec);
            let opened = TableWriter::open(
                &site,
                spec,
                feed,
                &decoder,
                promotion_of(spec),
                metrics.clone(),
                &options,
            );
            writers.push(Arc::new(opened.await.unwrap()));
        }
        log.create(EVENTS, Durability::Fsync).await.unwrap();
        let (store, none) = (Arc::new(Store), AttributePromotion::default());
        let events = TableWriter::open_events(&site, log.clone(), store, none, metrics.clone(), &options);
        writers.push(Arc::new(events.await.unwrap()));
        let maintenance = MaintenanceThread::start(only_by_hand(), metrics).unwrap();
        writers.iter().for_each(|writer| maintenance.keep(writer.clone()));
        Plant {
            folder,
            log,
            writers,
            maintenance,
            rounds: (0, 0),
            is_shortened: false,
        }
    }

    pub fn data_dir(&self) -> &Path {
        self.folder.path()
    }

    /// Adds rows of one moment to each table, with new attribute names.
    pub async fn round(&mut self, number: i64, is_old: bool) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
        let arrival = i64::try_from(now).unwrap() - if is_old { OLD - number * DAY / 3 } else { 0 };
        let round = Round { number, arrival };
        let requests = [
            (Signal::Logs, round.logs()),
            (Signal::Metrics, round.metrics()),
            (Signal::Traces, round.traces()),
        ];
        for ((signal, request), (_, partition)) in requests.into_iter().zip(FED) {
            let head = EntryHead {
                signal,
                form: EntryForm::Request(PayloadEncoding::Json),
                compression: PayloadCompression::None,
                arrival,
                records: ROWS as u32,
                cut_values_at: None,
                rejected: RejectedRecords::NONE,
                peer: "",
            };
            let mut entry = Vec::new();
            head.encode(&mut entry);
            entry.extend_from_slice(request.to_string().as_bytes());
            self.append(partition, arrival, &[&entry]).await;
        }
        let packed = TagBatchWriter::default().pack(&"plant".into(), &round.tags(), arrival);
        assert_eq!(packed.refused.len(), 0, "{:?}", packed.refused);
        let entries: Vec<&[u8]> = packed.entries.iter().map(|entry| &entry.bytes[..]).collect();
        self.append(FED[3].1, arrival, &entries).await;
        let events = round.events();
        self.append(
            EVENTS,
            arrival,
            &events.iter().map(String::as_bytes).collect::<Vec<_>>(),
        )
        .await;
        self.rounds.0 += 1;
        self.rounds.1 += usize::from(is_old);
        let expected = self.rows();
        eventually("rows are in their tables", async || {
            let mut committed = self.writers.iter().map(|writer| writer.tables()[0].rows as usize);
            committed.all(|rows| rows == expected)
        })
        .await;
    }

    /// Adds points of a gauge with these values, as JSON texts, of a monotonic sum, and of a gauge that has the same values as
    /// an attribute, in a file of their own.
    pub async fn numbers(&self, values: &[&str]) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
        let arrival = i64::try_from(now).unwrap();
        let point = |value: &&str| json!({"timeUnixNano": arrival.to_string(), "asDouble": value});
        let points: Vec<Value> = values.iter().map(point).collect();
        let labelled = |value: &&str| {
            let mut point = point(value);
            point["attributes"] = json!([{"key": "ratio", "value": {"doubleValue": value}}]);
            point
        };
        let labelled = json!({"dataPoints": values.iter().map(labelled).collect::<Vec<Value>>()});
        let sum = json!({"dataPoints": points, "aggregationTemporality": 2, "isMonotonic": true});
        let metrics = json!([
            {"name": "odd", "gauge": {"dataPoints": points}},
            {"name": "rising", "sum": sum},
            {"name": "labelled", "gauge": labelled},
        ]);
        let request = json!({"resourceMetrics": [{"scopeMetrics": [{"metrics": metrics}]}]});
        let head = EntryHead {
            signal: Signal::Metrics,
            form: EntryForm::Request(PayloadEncoding::Json),
            compression: PayloadCompression::None,
            arrival,
            records: 3 * values.len() as u32,
            cut_values_at: None,
            rejected: RejectedRecords::NONE,
            peer: "",
        };
        let mut entry = Vec::new();
        head.encode(&mut entry);
        entry.extend_from_slice(request.to_string().as_bytes());
        let (_, partition) = FED[1];
        let writer = &self.writers[1];
        let rows = writer.tables()[0].rows + 3 * values.len() as u64;
        self.append(partition, arrival, &[&entry]).await;
        eventually("rows are in their table", async || writer.tables()[0].rows == rows).await;
    }

    /// Rows of each table that the log feeds.
    pub fn rows(&self) -> usize {
        let (all, old) = self.rounds;
        (all - if self.is_shortened { old } else { 0 }) * ROWS as usize
    }

    /// Returns when windows of every length contain all rows and no window is being recomputed.
    pub async fn roll_up(&mut self, engines: &Engines) {
        let rounds = (self.rows() / ROWS as usize) as i64;
        let expected = |rows: i64| [10, 60, 300, 1200, 3600].map(|s| json!({"s": s, "n": rows * rounds}));
        for (table, rows) in [
            ("metrics_rollup where metric_name = 'temperature'", TEMPERATURES),
            ("tags_rollup", NUMBERS),
        ] {
            let sql = format!("select resolution_s as s, sum(count) as n from {table} group by 1 order by 1");
            let mut found = None;
            let until = Instant::now() + SOON;
            // The table is created with its first windows.
            while found.as_ref().is_none_or(|found| *found != expected(rows)) {
                assert!(
                    Instant::now() < until,
                    "it takes too long until all is in {table}: {found:?} and not {:?}",
                    expected(rows)
                );
                tokio::time::sleep(Duration::from_millis(10)).await;
                found = engines.try_ask(&sql).await;
            }
        }
        // A request queues behind the running work, which ends with the recomputed windows.
        let mut told = self.maintenance.ask(MaintenanceRequest {
            task: MaintenanceTask::Compact,
            table: None,
            date: None,
            dry_run: true,
        });
        while told.recv().await.is_some() {}
    }

    /// Runs a task on all tables, and returns those that it changed.
    pub async fn maintain(&mut self, task: MaintenanceTask) -> Vec<String> {
        let mut told = self.maintenance.ask(MaintenanceRequest {
            task,
            table: None,
            date: None,
            dry_run: false,
        });
        let mut changed = BTreeSet::new();
        while let Some(MaintenanceReport {
            table, files, error, ..
        }) = told.recv().await
        {
            assert_eq!(error, None, "{table}");
            if files > 0 {
                changed.insert(table);
            }
        }
        self.is_shortened |= task == MaintenanceTask::Retain;
        changed.into_iter().collect()
    }

    /// The number of files of each table in its newest version.
    pub async fn files(&self) -> Vec<usize> {
        let mut counts = Vec::new();
        for table in super::TABLES {
            let path = thalweg_lake::folder(self.data_dir()).join(table);
            let log = DeltaLog::new(&path, SyncedStore::new()).unwrap();
            counts.push(log.load(SnapshotDetail::Counts).await.unwrap().unwrap().files.len());
        }
        counts
    }

    /// Files of tables that another program has written.
    pub async fn foreign_files(data_dir: &Path) -> usize {
        let mut count = 0;
        for table in super::TABLES {
            let log = DeltaLog::new(&thalweg_lake::folder(data_dir).join(table), SyncedStore::new()).unwrap();
            let table = log.load(SnapshotDetail::Counts).await.unwrap().unwrap();
            count += table.files.values().filter(|file| file.is_foreign).count();
        }
        count
    }

    /// The committed offsets of applications, by table.
    pub async fn transactions(data_dir: &Path) -> Vec<HashMap<String, i64>> {
        let mut all = Vec::new();
        for table in super::TABLES {
            let log = DeltaLog::new(&thalweg_lake::folder(data_dir).join(table), SyncedStore::new()).unwrap();
            all.push(log.load(SnapshotDetail::Counts).await.unwrap().unwrap().transactions);
        }
        all
    }

    /// Makes tables forget the transactions of applications after one second, and returns when those of now are
    /// forgotten.
    pub async fn forget_soon(data_dir: &Path, application: &str) {
        for table in super::TABLES {
            let log = DeltaLog::new(&thalweg_lake::folder(data_dir).join(table), SyncedStore::new()).unwrap();
            let snapshot = log.load(SnapshotDetail::Counts).await.unwrap().unwrap();
            let mut metadata = snapshot.metadata.clone();
            let setting = "delta.setTransactionRetentionDuration".to_owned();
            let before = metadata.configuration.insert(setting, "interval 1 second".to_owned());
            assert_eq!(before.as_deref(), Some("interval 7 days"), "{table}");
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            let written = Txn {
                app_id: application.to_owned(),
                version: 1,
                last_updated: Some(now.as_millis().try_into().unwrap()),
            };
            let actions = [Action::Metadata(metadata), Action::Txn(written)];
            let committed = log.commit(snapshot.version + 1, &actions).await.unwrap();
            assert_eq!(committed, CommitOutcome::Committed);
        }
        // A second has passed then, also for programs that count whole seconds.
        tokio::time::sleep(Duration::from_millis(2100)).await;
    }

    /// Returns when Thalweg has rewritten the files of all other programs.
    pub async fn is_own_again(&self) {
        eventually("files of another writer are rewritten", async || {
            Plant::foreign_files(self.data_dir()).await == 0
        })
        .await;
    }

    pub fn files_on_disk(&self) -> usize {
        let mut count = 0;
        for table in super::TABLES {
            let table = thalweg_lake::folder(self.data_dir()).join(table);
            for folder in std::fs::read_dir(table).unwrap().flatten() {
                let is_of_rows = !folder.file_name().to_string_lossy().starts_with('_');
                if is_of_rows && folder.path().is_dir() {
                    count += parquet_files(&folder.path());
                }
            }
        }
        count
    }

    /// Stops all writers.
    pub async fn close(self) -> TempDir {
        let maintenance = self.maintenance;
        tokio::task::spawn_blocking(|| maintenance.stop()).await.unwrap();
        for writer in self.writers {
            writer.close(SOON).await;
        }
        self.folder
    }

    async fn append(&self, partition: PartitionId, arrival: i64, values: &[&[u8]]) {
        let mut records = Records::new();
        for value in values {
            records.push(&RecordRef::of(arrival / 1000, value)).unwrap();
        }
        self.log.append(WriteBatch::of(partition, records)).await.unwrap();
    }
}

/// Merges all small files of a lake without writers.
pub async fn compact_alone(data_dir: &Path) {
    let site = LakeStorage::folder(&thalweg_lake::folder(data_dir), SyncedStore::new());
    let asked = MaintenanceRequest {
        task: MaintenanceTask::Compact,
        table: None,
        date: None,
        dry_run: false,
    };
    let (runtime, metrics) = (
        tokio::runtime::Handle::current(),
        LakeMetrics::register(&Metrics::default()),
    );
    let compacting = tokio::task::spawn_blocking(move || {
        let mut told = |did: MaintenanceReport| {
            assert_eq!(did.error, None, "{}", did.table);
            true
        };
        by_hand_alone(&site, &asked, &[], only_by_hand(), metrics, &runtime, &mut told).unwrap();
    });
    compacting.await.unwrap();
}

async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let until = Instant::now() + SOON;
    while !is_so().await {
        assert!(Instant::now() < until, "it takes too long until {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn parquet_files(folder: &Path) -> usize {
    let entries = std::fs::read_dir(folder).unwrap().flatten();
    let count = |path: &Path| match path.is_dir() {
        true => parquet_files(path),
        false => usize::from(path.extension().is_some_and(|extension| extension == "parquet")),
    };
    entries.map(|entry| count(&entry.path())).sum()
}

/// Nothing is merged automatically; retention runs once, when there is nothing yet.
fn only_by_hand() -> MaintenanceOptions {
    MaintenanceOptions {
        compaction: CompactionOptions {
            inputs: 64,
            seal_after: Duration::from_secs(100 * 86_400),
            ..CompactionOptions::default()
        },
        bytes_per_second: 0,
        retention: FED
            .map(|(spec, _)| (spec.name, KEPT_DAYS))
            .into_iter()
            .chain([("events", KEPT_DAYS)])
            .collect(),
        rollup_retention: ["metrics_rollup", "tags_rollup"]
            .map(|table| (table, [KEPT_DAYS; 5]))
            .to_vec(),
        rollup: RollupOptions {
            lateness: [Duration::ZERO; 5],
            late_every: Duration::ZERO,
            quiet: Duration::ZERO,
            ..RollupOptions::default()
        },
        vacuum_retain: Duration::ZERO,
        look_every: Duration::from_millis(5),
        clean_every: None,
    }
}

/// The input of one moment.
struct Round {
    number: i64,
    arrival: i64,
}

impl Round {
    fn time(&self, index: i64) -> String {
        (self.arrival - index * SECOND - self.number).to_string()
    }

    /// Attributes of a record: some that all records have, and one that is new in this round.
    fn attributes(&self, index: i64) -> Value {
        let status = match index % 13 {
            7 => json!({"stringValue": "timeout"}),
            8 => json!({"doubleValue": 200.5}),
            _ => json!({"intValue": (200 + index % 5).to_string()}),
        };
        let ratio = match index % 17 {
            3 => json!({"intValue": ((1_i64 << 53) + 1).to_string()}),
            4 => json!({"intValue": "12"}),
            5 => json!({"stringValue": "none"}),
            _ => json!({"doubleValue": index as f64 / 3.0}),
        };
        json!([
            {"key": "http.status_code", "value": status},
            {"key": "ratio", "value": ratio},
            {"key": format!("round.{}", self.number), "value": {"stringValue": format!("é{index}")}},
        ])
    }

    fn resource(&self) -> Value {
        json!({"attributes": [
            {"key": "service.name", "value": {"stringValue": "checkout"}},
            {"key": format!("host.{}", self.number), "value": {"boolValue": true}},
        ]})
    }

    fn logs(&self) -> Value {
        let record = |index: i64| {
            json!({
                "timeUnixNano": self.time(index), "severityNumber": 9 + index % 3, "severityText": "INFO", "flags": 1,
                "body": if index % 4 == 0 { json!({"kvlistValue": {"values": [{"key": "n", "value": {"intValue": index.to_string()}}]}}) }
                    else { json!({"stringValue": format!("order {index} was taken")}) },
                "traceId": format!("{:032x}", index + 1), "spanId": format!("{:016x}", index + 1),
                "attributes": self.attributes(index),
            })
        };
        let records: Vec<Value> = (0..ROWS).map(record).collect();
        json!({"resourceLogs": [{"resource": self.resource(), "scopeLogs": [{"scope": {"name": "s"}, "logRecords": records}]}]})
    }

    fn metrics(&self) -> Value {
        let at = |index: i64, rest: Value| {
            let mut point = json!({"timeUnixNano": self.time(index), "startTimeUnixNano": self.time(1000)});
            point.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
            point
        };
        let temperature = |index: i64| {
            let value = if index % 2 == 0 {
                json!({"asInt": index.to_string()})
            } else {
                json!({"asDouble": index as f64 / 7.0})
            };
            let mut point = at(index, value);
            point["attributes"] = self.attributes(0);
            point
        };
        let sum = |index| at(index, json!({"asInt": ((1_i64 << 60) + index).to_string()}));
        let exemplar = json!({"timeUnixNano": self.time(0), "asDouble": 0.25, "traceId": format!("{:032x}", 5), "spanId": format!("{:016x}", 6),
            "filteredAttributes": [{"key": "k", "value": {"stringValue": "v"}}]});
        let histogram = |index: i64| {
            at(
                index,
                json!({"count": "6", "sum": 1.5, "min": 0.1, "max": 0.9, "explicitBounds": [0.5, 1.0], "bucketCounts": ["1", "2", "3"],
                "exemplars": [exemplar]}),
            )
        };
        let exponential = |index: i64| {
            at(
                index,
                json!({"count": "4", "sum": 3.5, "scale": 2, "zeroCount": "1", "zeroThreshold": 1e-9,
                "positive": {"offset": 3, "bucketCounts": ["1", "1"]}, "negative": {"offset": -2, "bucketCounts": ["1"]}}),
            )
        };
        let summary = |index: i64| {
            at(
                index,
                json!({"count": "9", "sum": 4.5, "quantileValues": [{"quantile": 0.5, "value": 0.4}]}),
            )
        };
        let points = |count: i64, of: &dyn Fn(i64) -> Value| (0..count).map(of).collect::<Vec<_>>();
        let metrics = json!([
            {"name": "temperature", "unit": "Cel", "gauge": {"dataPoints": points(TEMPERATURES, &temperature)}},
            {"name": "orders", "sum": {"aggregationTemporality": 2, "isMonotonic": true, "dataPoints": points(20, &sum)}},
            {"name": "took", "histogram": {"aggregationTemporality": 1, "dataPoints": points(10, &histogram)}},
            {"name": "size", "exponentialHistogram": {"aggregationTemporality": 1, "dataPoints": points(5, &exponential)}},
            {"name": "rank", "summary": {"dataPoints": points(5, &summary)}},
        ]);
        json!({"resourceMetrics": [{"resource": self.resource(), "scopeMetrics": [{"scope": {"name": "s"}, "metrics": metrics}]}]})
    }

    fn traces(&self) -> Value {
        let span = |index: i64| {
            json!({
                "traceId": format!("{:032x}", index + 1), "spanId": format!("{:016x}", index + 1), "name": "GET /", "kind": 2,
                "startTimeUnixNano": self.time(index), "endTimeUnixNano": self.time(index - 1), "status": {"code": 2, "message": "no"},
                "attributes": self.attributes(index),
                "events": [{"timeUnixNano": self.time(index), "name": "retry", "attributes": self.attributes(index)}],
                "links": [{"traceId": format!("{:032x}", 77), "spanId": format!("{:016x}", 88), "attributes": self.attributes(1)}],
            })
        };
        let spans: Vec<Value> = (0..ROWS).map(span).collect();
        json!({"resourceSpans": [{"resource": self.resource(), "scopeSpans": [{"scope": {"name": "s"}, "spans": spans}]}]})
    }

    fn tags(&self) -> Vec<Message> {
        let sample = |index: i64| {
            let (tag, round) = (format!("line.t{}", index % 6), format!("round.{}", self.number));
            let entries = [("umh_topic", tag.as_str()), ("unit", "Cel"), (round.as_str(), "x")];
            let map = MetaMap::new(entries.map(|(name, text)| (Text::from(name), Text::from(text))), None);
            let at = Ticks((self.arrival - index * SECOND) / 100);
            let stamps = ValueQuality {
                source_time: at,
                server_time: at,
                status: 0,
            };
            let value = match index % 10 {
                9 => Sample::from("stopped"),
                5 => Sample::F64(index as f64 / 3.0),
                _ => Sample::I64(index),
            };
            Message::new(Payload::Value(value), Metadata::stamped(Arc::new(map), stamps))
        };
        (0..ROWS).map(sample).collect()
    }

    /// Stream, position and metadata, separated by spaces.
    fn events(&self) -> Vec<String> {
        let position = |index: i64| self.number * ROWS + index;
        let event = |index| {
            format!(
                "order-{} {} {{\"round{}\":{index}}}",
                index % 7,
                position(index),
                self.number
            )
        };
        (0..ROWS).map(event).collect()
    }
}

/// An event store with one namespace.
struct Store;

impl EventStore for Store {
    fn partitions(&self) -> Vec<EventPartition> {
        vec![EventPartition {
            number: 1,
            id: EVENTS,
            namespace: "default".to_owned(),
            is_deleted: false,
        }]
    }

    fn let_go(&self, _number: u32) {}

    fn event<'a>(&self, value: &'a [u8]) -> Result<Option<Event<'a>>, String> {
        let text = std::str::from_utf8(value).unwrap();
        let mut parts = text.splitn(3, ' ');
        let (stream, position, metadata) = (parts.next().unwrap(), parts.next().unwrap(), parts.next());
        let position = position.parse().unwrap();
        Ok(Some(Event {
            id: format!("{stream}@{position}").into(),
            category: "order",
            stream,
            kind: "Taken",
            position,
            global: position + 1,
            data: "{\"a\":1.50}",
            metadata,
        }))
    }
}
