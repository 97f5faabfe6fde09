//! Ingests entries in every form of a request, from the log to rows.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::AsArray as _;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use tempfile::TempDir;
use thalweg_columns::attributes::AttributePromotion;
use thalweg_columns::tables::LOGS;
use thalweg_delta::store::{LakeStorage, SyncedStore};
use thalweg_delta::{DeltaLog, SnapshotDetail};
use thalweg_lake::entry::{EntryForm, EntryHead, PayloadCompression, PayloadEncoding, RejectedRecords, put_row};
use thalweg_lake::ingest::{Handoff, HandoffBudget, HandoffQueue, IngestOptions, QueueSource, TableWriter};
use thalweg_lake::{LakeMetrics, Signal};
use thalweg_log::disk::RamDisk;
use thalweg_log::format::record::RecordRef;
use thalweg_log::{Durability, EmbeddedLog, LogOptions, PartitionId, Records, WriteBatch};
use thalweg_otlp::entry_decoder;
use thalweg_otlp::json::{JsonLimits, to_proto};
use thalweg_telemetry::{Metrics, StatusSource as _};

const PARTITION: PartitionId = PartitionId::new(7, 0);
const SOON: Duration = Duration::from_secs(20);
const ARRIVAL: i64 = 1_700_000_000_000_000_000;
const HEAD: EntryHead<'static> = EntryHead {
    signal: Signal::Logs,
    form: EntryForm::Request(PayloadEncoding::Proto),
    compression: PayloadCompression::None,
    arrival: ARRIVAL,
    records: 1,
    cut_values_at: None,
    rejected: RejectedRecords::NONE,
    peer: "",
};

/// A log with a queue of one partition, and a lake folder.
struct World {
    log: Arc<EmbeddedLog>,
    folder: TempDir,
}

impl World {
    async fn new() -> World {
        let options = LogOptions {
            spare: 0,
            min_free_bytes: Some(0),
            ..LogOptions::default()
        };
        let log = Arc::new(EmbeddedLog::open(Arc::new(RamDisk::new(256 << 20)), 0xab, &options).unwrap());
        log.create(PARTITION, Durability::Fsync).await.unwrap();
        World {
            log,
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn feed(&self) -> QueueSource {
        QueueSource {
            queue: "lake.logs".to_owned(),
            log: self.log.clone(),
            partitions: vec![PARTITION],
            taken: Arc::new(|_, _| {}),
            handoffs: None,
        }
    }

    /// Like `feed`, for a queue with handoffs and this much room for them.
    fn feed_with_room(&self, bytes: usize) -> QueueSource {
        let next = [self.log.bounds(PARTITION).unwrap().next];
        QueueSource {
            handoffs: Some(HandoffQueue::new(HandoffBudget::new(bytes), &next)),
            ..self.feed()
        }
    }

    async fn open(&self, options: &IngestOptions) -> TableWriter {
        let metrics = LakeMetrics::register(&Metrics::default());
        self.open_with(self.feed(), metrics, options).await
    }

    async fn open_with(&self, feed: QueueSource, metrics: LakeMetrics, options: &IngestOptions) -> TableWriter {
        let site = LakeStorage::folder(self.folder.path(), SyncedStore::new());
        let (decoder, promotion) = (entry_decoder(Signal::Logs), AttributePromotion::default());
        TableWriter::open(&site, &LOGS, feed, &decoder, promotion, metrics, options)
            .await
            .unwrap()
    }

    async fn append(&self, entry: &[u8]) -> u64 {
        let mut records = Records::new();
        records.push(&RecordRef::of(1, entry)).unwrap();
        let appended = self.log.append(WriteBatch::of(PARTITION, records)).await;
        appended.unwrap().offsets[0]
    }

    /// Appends entries in pairs, and reports the second of each pair first: appends are not always reported in the order
    /// of the entries.
    async fn append_and_report(&self, entries: &[(Vec<u8>, Handoff)], handoffs: Option<&HandoffQueue>) {
        for pair in entries.chunks(2) {
            let mut appended = Vec::new();
            for (entry, handoff) in pair {
                appended.push((self.append(entry).await, handoff.clone()));
            }
            for (offset, handoff) in appended.into_iter().rev() {
                if let Some(handoffs) = handoffs {
                    handoffs.report(0, offset, handoff);
                }
            }
        }
    }

    fn table(&self) -> PathBuf {
        self.folder.path().join("logs")
    }

    /// The bodies in the table.
    async fn stored(&self) -> Vec<String> {
        let log = DeltaLog::new(&self.table(), SyncedStore::new()).unwrap();
        let Some(snapshot) = log.load(SnapshotDetail::Counts).await.unwrap() else {
            return Vec::new();
        };
        let mut bodies = Vec::new();
        for file in snapshot.files.values() {
            let bytes = bytes::Bytes::from(std::fs::read(self.table().join(&*file.path)).unwrap());
            let reader = ParquetRecordBatchReaderBuilder::try_new(bytes)
                .unwrap()
                .build()
                .unwrap();
            for batch in reader {
                let batch = batch.unwrap();
                let column = batch.column_by_name("body").unwrap().as_string::<i32>().clone();
                bodies.extend(column.iter().map(|body| body.unwrap_or("null").to_owned()));
            }
        }
        bodies
    }

    async fn wait_for(&self, rows: usize) -> Vec<String> {
        let until = Instant::now() + SOON;
        loop {
            let bodies = self.stored().await;
            if bodies.len() >= rows {
                return bodies;
            }
            assert!(Instant::now() < until, "{} of {rows}", bodies.len());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Commits only on request or when it closes.
fn slow() -> IngestOptions {
    IngestOptions {
        flush_interval: Duration::from_secs(3600),
        ..IngestOptions::default()
    }
}

fn fast() -> IngestOptions {
    IngestOptions {
        flush_interval: Duration::from_millis(20),
        ..IngestOptions::default()
    }
}

/// A request with log records of these bodies.
fn request(bodies: &[&str]) -> Vec<u8> {
    let field = |key: u8, inner: &[u8]| {
        let mut out = vec![key];
        let mut len = inner.len();
        while len >= 0x80 {
            out.push((len & 0x7f) as u8 | 0x80);
            len >>= 7;
        }
        out.push(len as u8);
        out.extend_from_slice(inner);
        out
    };
    let records: Vec<u8> = bodies
        .iter()
        .flat_map(|body| field(0x12, &field(0x2a, &field(0x0a, body.as_bytes()))))
        .collect();
    field(0x0a, &field(0x12, &records))
}

/// The request was acknowledged by a process with higher limits than any other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_compressed_request_that_was_taken_becomes_rows_whatever_limits_there_are_now() {
    let world = World::new().await;
    let long = "x".repeat(1 << 20);
    let bodies = vec![long.as_str(); 70];
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut encoder, &request(&bodies)).unwrap();
    let head = EntryHead {
        records: bodies.len() as u32,
        compression: PayloadCompression::Gzip,
        ..HEAD
    };
    let mut entry = Vec::new();
    head.encode(&mut entry);
    entry.extend(encoder.finish().unwrap());
    world.append(&entry).await;
    let writer = world.open(&fast()).await;
    writer.hurry();
    let stored = world.wait_for(bodies.len()).await;
    assert!(stored.iter().all(|body| *body == long));
    writer.close(SOON).await;
}

/// An entry of every form of a request, with the handoff of its receiver.
fn entries(count: usize) -> Vec<(Vec<u8>, Handoff)> {
    let of = |n: usize| {
        let bodies = [
            format!("first of {n}"),
            format!("second of {n}: {:200}", "x"),
            "third".to_owned(),
        ];
        let bodies: Vec<&str> = bodies.iter().map(String::as_str).collect();
        let (form, sent, proto) = match n % 4 {
            0 | 2 => (
                EntryForm::Request(PayloadEncoding::Proto),
                request(&bodies),
                request(&bodies),
            ),
            3 => {
                let mut rows = Vec::new();
                for body in &bodies {
                    let row = format!("{{\"message\":\"{body}\",\"n\":{n},\"attr_late\":\"named like a column\"}}");
                    put_row(&mut rows, row.as_bytes());
                }
                (EntryForm::Rows, rows.clone(), rows)
            }
            _ => {
                let record = |body: &&str| format!("{{\"body\":{{\"stringValue\":\"{body}\"}}}}");
                let records: Vec<String> = bodies.iter().map(record).collect();
                let json = format!(
                    "{{\"resourceLogs\":[{{\"scopeLogs\":[{{\"logRecords\":[{}]}}]}}]}}",
                    records.join(",")
                );
                let mut proto = Vec::new();
                let limits = JsonLimits::default();
                to_proto(Signal::Logs, json.as_bytes(), &limits, &mut proto).unwrap();
                (EntryForm::Request(PayloadEncoding::Json), json.into_bytes(), proto)
            }
        };
        let (compression, sent) = match n % 3 {
            0 => (PayloadCompression::None, sent),
            1 => (PayloadCompression::Zstd, zstd::bulk::compress(&sent, 1).unwrap()),
            _ => {
                let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
                std::io::Write::write_all(&mut gzip, &sent).unwrap();
                (PayloadCompression::Gzip, gzip.finish().unwrap())
            }
        };
        let rejected: &[u32] = if n.is_multiple_of(5) && form != EntryForm::Rows {
            &[0, 2]
        } else {
            &[]
        };
        let head = EntryHead {
            form,
            compression,
            arrival: ARRIVAL + n as i64,
            records: bodies.len() as u32,
            cut_values_at: n.is_multiple_of(7).then_some(100),
            rejected: RejectedRecords::Listed(rejected),
            ..HEAD
        };
        let mut entry = Vec::new();
        head.encode(&mut entry);
        entry.extend_from_slice(&sent);
        (entry, Handoff::of(&head, proto.into()))
    };
    (0..count).map(of).collect()
}

/// The contents of the table's files, sorted.
fn files_of(table: &Path) -> Vec<Vec<u8>> {
    let days = std::fs::read_dir(table).unwrap().flatten();
    let days = days.filter(|day| day.file_name().to_string_lossy().starts_with("date="));
    let files = days.flat_map(|day| std::fs::read_dir(day.path()).unwrap().flatten());
    let mut files: Vec<Vec<u8>> = files.map(|file| std::fs::read(file.path()).unwrap()).collect();
    files.sort();
    files
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_are_the_same_to_the_bit_whether_requests_are_handed_over_or_read_from_the_log() {
    let all = entries(120);
    let rows = all
        .iter()
        .map(|(_, handoff)| 3 - handoff.request().unwrap().rejected.len() as u64)
        .sum::<u64>();
    let (mut made, mut counts) = (Vec::new(), Vec::new());
    let room = 1 << 20;
    // With handoffs; from the log alone; with handoffs but no room for any, and with room for some.
    for room in [Some(room), None, Some(0), Some(room / 1000)] {
        let world = World::new().await;
        let metrics = LakeMetrics::register(&Metrics::default());
        let feed = room.map_or_else(|| world.feed(), |bytes| world.feed_with_room(bytes));
        let handoffs = feed.handoffs.clone();
        let (before, meanwhile) = all.split_at(60);
        world.append_and_report(before, handoffs.as_deref()).await;
        let writer = world.open_with(feed, metrics.clone(), &slow()).await;
        world.append_and_report(meanwhile, handoffs.as_deref()).await;
        let until = Instant::now() + SOON;
        while writer.tables()[0].buffered_rows < rows {
            assert!(Instant::now() < until);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        writer.close(SOON).await;
        made.push(files_of(&world.table()));
        counts.push(["handoff", "log"].map(|from| metrics.entries.with_label_values(&[from]).get()));
        assert!(
            handoffs.is_none_or(|handoffs| handoffs.room_used() == 0),
            "what is taken takes no room"
        );
    }
    for (files, counts) in made.iter().zip(&counts) {
        assert!(!files.is_empty() && *files == made[0], "{counts:?}");
        assert_eq!(counts.iter().sum::<u64>(), all.len() as u64);
    }
    let [handed, from_log, without_room, _] = counts[..] else {
        panic!("{counts:?}")
    };
    assert_eq!((from_log, without_room), ([0, 120], [0, 120]));
    // How many of the others come in time depends on the machine.
    assert!(handed[0] >= 60, "{handed:?}");
}
