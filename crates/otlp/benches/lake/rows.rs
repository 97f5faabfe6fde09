//! The benchmarks of the printed table.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arrow::datatypes::{DataType, Field, Schema};
use flate2::Compression as Level;
use flate2::write::GzEncoder;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use thalweg_columns::attributes::AttributePromotion;
use thalweg_columns::compaction::{BucketWidth, FileSink, MergeError, MergeJob};
use thalweg_columns::rows::chunk::MemtableChunk;
use thalweg_columns::rows::record_limits::RecordLimits;
use thalweg_columns::rows::times::ArrivalWindow;
use thalweg_columns::tables::{LOGS, METRICS, TRACES, TableSpec};
use thalweg_delta::schema::TableColumn;
use thalweg_delta::store::{LakeStorage, SyncedStore};
use thalweg_delta::{DeltaLog, SnapshotDetail};
use thalweg_lake::LakeMetrics;
use thalweg_lake::Signal;
use thalweg_lake::entry::{EntryForm, EntryHead, InflateLimits, PayloadCompression, PayloadEncoding, RejectedRecords};
use thalweg_lake::ingest::{FileRules, IngestOptions, QueueSource, TableWriter};
use thalweg_log::disk::RamDisk;
use thalweg_log::format::record::RecordRef;
use thalweg_log::{Durability, EmbeddedLog, LogOptions, PartitionId, Records, WriteBatch};
use thalweg_otlp::decode::{DecodeContext, OtlpDecoder};
use thalweg_otlp::entry_decoder;
use thalweg_otlp::inflate::inflate;
use thalweg_otlp::validate::walk;
use thalweg_telemetry::{Metrics, StatusSource as _};

use crate::generator::{BEGIN_NANOS, Generator, Shape};
use crate::harness::Session;

/// A typical batch of an exporter.
const RECORDS_PER_REQUEST: u64 = 1000;
/// Rows in a chunk before it is emptied.
const CHUNK_ROWS: usize = 65_536;
/// As many as a queue has on two cores.
const PARTITIONS: [PartitionId; 2] = [PartitionId::new(7, 0), PartitionId::new(7, 1)];

struct Input {
    /// Part of the benchmark names.
    name: &'static str,
    signal: Signal,
    table: &'static TableSpec,
    requests: Vec<Vec<u8>>,
    records: u64,
}

impl Input {
    fn generated(name: &'static str, shape: Shape, records: u64) -> Input {
        let (signal, table) = match shape {
            Shape::Logs | Shape::WideLogs => (Signal::Logs, &LOGS),
            Shape::Metrics => (Signal::Metrics, &METRICS),
            Shape::Traces => (Signal::Traces, &TRACES),
        };
        let mut generator = Generator::new(shape, 1);
        let requests = (0..records / RECORDS_PER_REQUEST).map(|_| generator.request(RECORDS_PER_REQUEST));
        Input {
            name,
            signal,
            table,
            requests: requests.collect(),
            records,
        }
    }

    /// Repeats the requests of a file until there are enough records. The file name determines the signal.
    fn of_file(path: &Path, records: u64) -> Input {
        let mut bytes = Vec::new();
        File::open(path).unwrap().read_to_end(&mut bytes).unwrap();
        if path.extension().is_some_and(|extension| extension == "gz") {
            let mut plain = Vec::new();
            flate2::read::MultiGzDecoder::new(&bytes[..])
                .read_to_end(&mut plain)
                .unwrap();
            bytes = plain;
        }
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (name, signal, table) = match file.as_str() {
            file if file.starts_with("metrics") => ("metrics", Signal::Metrics, &METRICS),
            file if file.starts_with("traces") => ("traces", Signal::Traces, &TRACES),
            _ => ("logs", Signal::Logs, &LOGS),
        };
        let of_file = u64::from(walk(signal, &bytes, &RecordLimits::default()).unwrap().records);
        let times = records.div_ceil(of_file);
        Input {
            name,
            signal,
            table,
            requests: vec![bytes; usize::try_from(times).unwrap()],
            records: of_file * times,
        }
    }

    fn bytes(&self) -> u64 {
        self.requests.iter().map(Vec::len).sum::<usize>() as u64
    }

    fn arrival(&self) -> DecodeContext<'static> {
        DecodeContext {
            signal: self.signal,
            time: BEGIN_NANOS as i64,
            window: ArrivalWindow::default(),
            rejected: RejectedRecords::Listed(&[]),
            cut_values_at: None,
        }
    }
}

pub fn run(session: &Session) {
    let records = session.records();
    let shapes = [
        ("logs", Shape::Logs),
        ("logs_wide", Shape::WideLogs),
        ("metrics", Shape::Metrics),
        ("traces", Shape::Traces),
    ];
    match &session.input {
        Some(path) => rows_of(session, &Input::of_file(path, records)),
        None => {
            for (name, shape) in shapes {
                let few = if shape == Shape::WideLogs { 4 } else { 1 };
                rows_of(session, &Input::generated(name, shape, records / few));
            }
            scaling(session, records);
        }
    }
}

fn rows_of(session: &Session, input: &Input) {
    let name = |of: &str| format!("{of}_{}", input.name);
    let decoders = [
        ("decode", OtlpDecoder::without_ids()),
        ("decode_fingerprint", OtlpDecoder::default()),
    ];
    for (of, mut decoder) in decoders {
        let mut chunk = MemtableChunk::new(input.table);
        session.measure(&name(of), || decode(input, &mut decoder, &mut chunk));
    }
    if session.wants(&format!("{}_gz", name("decode"))) {
        let packed: Vec<Vec<u8>> = input.requests.iter().map(|request| gzip(request)).collect();
        let (mut decoder, mut chunk) = (OtlpDecoder::without_ids(), MemtableChunk::new(input.table));
        session.measure(&format!("{}_gz", name("decode")), || {
            decode_gz(input, &packed, &mut decoder, &mut chunk)
        });
    }
    let folder = tempfile::tempdir_in(&session.folder).unwrap();
    if ["full_chain", "parquet_read", "compact"]
        .iter()
        .any(|of| session.wants(&name(of)))
    {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let log = runtime.block_on(filled(input, &PARTITIONS[..1]));
        session.measure(&name("full_chain"), || {
            // Remove what the previous run left.
            let _ = std::fs::remove_dir_all(folder.path().join(input.table.name));
            runtime.block_on(full_chain(input, log.clone(), &PARTITIONS[..1], folder.path()))
        });
        if !session.wants(&name("full_chain")) {
            runtime.block_on(full_chain(input, log.clone(), &PARTITIONS[..1], folder.path()));
        }
        let files = runtime.block_on(files_of(input, folder.path()));
        if !files.is_empty() {
            session.measure(&name("parquet_read"), || read(input, &files));
            session.measure(&name("compact"), || {
                compact(input, &files, &folder.path().join("compacted"))
            });
        }
    }
}

/// Runs the full chain of two partitions with all threads on one core, then on two. The ratio shows the gain of a
/// second core.
fn scaling(session: &Session, records: u64) {
    let names = [("full_chain_logs_one_core", 1), ("full_chain_logs_two_cores", 2)];
    if !names.iter().any(|(name, _)| session.wants(name)) {
        return;
    }
    let all = sched_getaffinity(None).unwrap();
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| all.is_set(*core)).collect();
    let input = Input::generated("logs", Shape::Logs, records);
    let filling = tokio::runtime::Runtime::new().unwrap();
    let log = filling.block_on(filled(&input, &PARTITIONS));
    for (name, count) in names {
        // Threads inherit the affinity of the thread that starts them; the log writes nothing here.
        let mut some = CpuSet::new();
        cores.iter().take(count).for_each(|core| some.set(*core));
        sched_setaffinity(None, &some).unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let folder = tempfile::tempdir_in(&session.folder).unwrap();
        session.measure(name, || {
            let _ = std::fs::remove_dir_all(folder.path().join(input.table.name));
            runtime.block_on(full_chain(&input, log.clone(), &PARTITIONS, folder.path()))
        });
    }
    sched_setaffinity(None, &all).unwrap();
}

fn decode(input: &Input, decoder: &mut OtlpDecoder, chunk: &mut MemtableChunk) -> (u64, u64, ()) {
    let (arrival, mut rows) = (input.arrival(), 0);
    for request in &input.requests {
        if chunk.rows() >= CHUNK_ROWS {
            rows += chunk.rows();
            chunk.clear();
        }
        decoder.decode(request, &arrival, chunk).unwrap();
    }
    rows += chunk.rows();
    chunk.clear();
    assert_eq!(rows as u64, input.records);
    (input.records, input.bytes(), ())
}

fn gzip(request: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Level::new(6));
    encoder.write_all(request).unwrap();
    encoder.finish().unwrap()
}

fn decode_gz(
    input: &Input,
    packed: &[Vec<u8>],
    decoder: &mut OtlpDecoder,
    chunk: &mut MemtableChunk,
) -> (u64, u64, ()) {
    let (arrival, mut rows) = (input.arrival(), 0);
    let limits = InflateLimits {
        bytes: 64 << 20,
        ratio: 1000,
        window: 8 << 20,
    };
    for request in packed {
        let request = inflate(PayloadCompression::Gzip, request, &limits).unwrap();
        decoder.decode(&request, &arrival, chunk).unwrap();
        rows += chunk.rows();
        chunk.clear();
    }
    assert_eq!(rows as u64, input.records);
    (input.records, input.bytes(), ())
}

/// A log in memory that contains the requests as entries.
async fn filled(input: &Input, partitions: &[PartitionId]) -> Arc<EmbeddedLog> {
    let options = LogOptions {
        min_free_bytes: Some(0),
        spare: 0,
        ..LogOptions::default()
    };
    let disk = RamDisk::new(input.bytes() * 2 + (1 << 30));
    let log = EmbeddedLog::open(Arc::new(disk), 0xab, &options).unwrap();
    for partition in partitions {
        log.create(*partition, Durability::Fsync).await.unwrap();
    }
    for (request, partition) in input.requests.iter().zip(partitions.iter().cycle()) {
        let head = EntryHead {
            signal: input.signal,
            form: EntryForm::Request(PayloadEncoding::Proto),
            compression: PayloadCompression::None,
            arrival: BEGIN_NANOS as i64,
            records: RECORDS_PER_REQUEST as u32,
            rejected: RejectedRecords::Listed(&[]),
            cut_values_at: None,
            peer: "",
        };
        let mut entry = Vec::with_capacity(request.len() + 64);
        head.encode(&mut entry);
        entry.extend_from_slice(request);
        let mut records = Records::new();
        records.push(&RecordRef::of(1, &entry)).unwrap();
        log.append(WriteBatch::of(*partition, records)).await.unwrap();
    }
    Arc::new(log)
}

async fn full_chain(input: &Input, log: Arc<EmbeddedLog>, partitions: &[PartitionId], lake: &Path) -> (u64, u64, ()) {
    let feed = QueueSource {
        handoffs: None,
        queue: format!("lake.{}", input.table.name),
        log: log.clone(),
        partitions: partitions.to_vec(),
        taken: Arc::new(|_, _| {}),
    };
    let options = IngestOptions {
        flush_interval: Duration::from_secs(60),
        ..IngestOptions::default()
    };
    let metrics = LakeMetrics::register(&Metrics::default());
    let site = LakeStorage::folder(lake, SyncedStore::new());
    let decoder = entry_decoder(input.signal);
    let opened = TableWriter::open(
        &site,
        input.table,
        feed,
        &decoder,
        AttributePromotion::default(),
        metrics,
        &options,
    );
    let writer = opened.await.unwrap();
    loop {
        let status = writer.tables().remove(0);
        if status.rows + status.buffered_rows >= input.records {
            break;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    writer.close(Duration::from_secs(600)).await;
    drop(writer);
    assert_eq!(rows_in(input, lake).await, input.records);
    (input.records, input.bytes(), ())
}

async fn rows_in(input: &Input, lake: &Path) -> u64 {
    let log = DeltaLog::new(&lake.join(input.table.name), SyncedStore::new()).unwrap();
    let snapshot = log.load(SnapshotDetail::Counts).await.unwrap();
    snapshot.map_or(0, |snapshot| snapshot.rows)
}

async fn files_of(input: &Input, lake: &Path) -> Vec<PathBuf> {
    let table = lake.join(input.table.name);
    let log = DeltaLog::new(&table, SyncedStore::new()).unwrap();
    let snapshot = log.load(SnapshotDetail::Counts).await.unwrap();
    let files = snapshot.map(|snapshot| snapshot.files.values().map(|file| table.join(&*file.path)).collect());
    files.unwrap_or_default()
}

/// Reads time, service, and the columns that a search would read. Texts stay in their pages, as in queries.
fn read(input: &Input, files: &[PathBuf]) -> (u64, u64, ()) {
    let columns = match input.signal {
        Signal::Logs => ["time_unix_nano", "resource_service_name", "severity_number", "body"],
        Signal::Metrics => ["time_unix_nano", "resource_service_name", "metric_name", "value"],
        Signal::Traces => ["time_unix_nano", "resource_service_name", "name", "duration_ns"],
    };
    let (mut rows, mut bytes) = (0, 0);
    for path in files {
        let file = File::open(path).unwrap();
        let known = ArrowReaderMetadata::load(&file, ArrowReaderOptions::default()).unwrap();
        let options = ArrowReaderOptions::default().with_schema(Arc::new(with_views(known.schema())));
        let metadata = ArrowReaderMetadata::try_new(known.metadata().clone(), options).unwrap();
        let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(file, metadata);
        let mask = ProjectionMask::columns(builder.parquet_schema(), columns);
        bytes += path.metadata().unwrap().len();
        for batch in builder.with_projection(mask).with_batch_size(8192).build().unwrap() {
            rows += batch.unwrap().num_rows() as u64;
        }
    }
    assert_eq!(rows, input.records);
    (rows, bytes, ())
}

fn with_views(schema: &Schema) -> Schema {
    let field = |field: &Arc<Field>| match field.data_type() {
        DataType::Utf8 => Arc::new(field.as_ref().clone().with_data_type(DataType::Utf8View)),
        _ => field.clone(),
    };
    Schema::new(schema.fields().iter().map(field).collect::<Vec<_>>())
}

/// Compacts all files into one: read, merge, write, sync, and read again to check.
fn compact(input: &Input, files: &[PathBuf], folder: &Path) -> (u64, u64, ()) {
    let _ = std::fs::remove_dir_all(folder);
    std::fs::create_dir(folder).unwrap();
    let names = {
        let file = File::open(&files[0]).unwrap();
        let builder = ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
        builder
            .schema()
            .fields()
            .iter()
            .map(|field| field.name().clone())
            .collect::<Vec<String>>()
    };
    let mut table = (input.table.columns)();
    for name in names {
        if table.column(&name).is_none() {
            table.columns.push(TableColumn::attribute(name.clone(), "attr", &name));
        }
    }
    let merge = MergeJob {
        spec: input.table,
        table: &table,
        inputs: files,
        bucket: BucketWidth(i64::MAX),
        rules: FileRules::default(),
        target_bytes: 256 << 20,
        is_stopped: &|| false,
    };
    let mut made = 0;
    let merged = merge.run(&mut || {
        made += 1;
        let path = folder.join(format!("{made}.parquet"));
        let file = File::create(&path).unwrap();
        Ok(Box::new(ToDisk { file, path }))
    });
    assert_eq!(merged.unwrap().tally.rows, input.records);
    let bytes = files.iter().map(|path| path.metadata().unwrap().len()).sum();
    (input.records, bytes, ())
}

struct ToDisk {
    file: File,
    path: PathBuf,
}

impl FileSink for ToDisk {
    fn write(&mut self, bytes: Vec<u8>) -> Result<(), MergeError> {
        self.file
            .write_all(&bytes)
            .map_err(|error| MergeError::Sink(error.to_string()))
    }

    fn finish(&mut self) -> Result<(), MergeError> {
        self.file
            .sync_all()
            .map_err(|error| MergeError::Sink(error.to_string()))
    }

    fn path(&self) -> &Path {
        &self.path
    }
}
