//! A table of samples: a thousand tags of presses in lines, in files of 20,000 rows.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use thalweg_columns::attributes::AttributePromotion;
use thalweg_columns::tables::TAGS;
use thalweg_delta::store::{LakeStorage, SyncedStore};
use thalweg_lake::LakeMetrics;
use thalweg_lake::ingest::{IngestOptions, QueueSource, TableWriter};
use thalweg_lake::tags::TagBatchWriter;
use thalweg_log::disk::RamDisk;
use thalweg_log::format::record::RecordRef;
use thalweg_log::{Durability, EmbeddedLog, LogOptions, PartitionId, Records, WriteBatch};
use thalweg_record::{Message, MetaMap, Metadata, Payload, Text, Ticks, Value, ValueQuality};
use thalweg_telemetry::Metrics;

pub const ROWS: i64 = 500_000;
const ROWS_OF_A_FILE: i64 = 20_000;
const TAGS_OF_THE_PLANT: i64 = 1_000;
/// 2031-05-06T07:08:09Z
const START: i64 = 1_935_817_689;
const PARTITION: PartitionId = PartitionId::new(7, 0);

/// Returns when all rows are committed.
pub async fn fill(data_dir: &Path) {
    let options = LogOptions {
        spare: 0,
        min_free_bytes: Some(0),
        ..LogOptions::default()
    };
    let log = Arc::new(EmbeddedLog::open(Arc::new(RamDisk::new(512 << 20)), 0xab, &options).unwrap());
    log.create(PARTITION, Durability::Fsync).await.unwrap();
    let taken: Arc<AtomicU64> = Arc::default();
    let told = taken.clone();
    let feed = QueueSource {
        handoffs: None,
        queue: "lake.tags".to_owned(),
        log: log.clone(),
        partitions: vec![PARTITION],
        taken: Arc::new(move |_, offset| told.store(offset, Ordering::SeqCst)),
    };
    let metrics = LakeMetrics::register(&Metrics::default());
    let options = IngestOptions {
        flush_interval: Duration::from_millis(5),
        ..IngestOptions::default()
    };
    let lake = LakeStorage::folder(&thalweg_lake::folder(data_dir), SyncedStore::new());
    let promotion = AttributePromotion::new(256, vec![], &[]).unwrap();
    let writer = TableWriter::open(
        &lake,
        &TAGS,
        feed,
        &thalweg_lake::tags::entry_decoder(),
        promotion,
        metrics,
        &options,
    )
    .await;
    let _writer = writer.unwrap();
    for file in 0..ROWS / ROWS_OF_A_FILE {
        let rows = file * ROWS_OF_A_FILE..(file + 1) * ROWS_OF_A_FILE;
        let messages: Vec<Message> = rows.map(sample).collect();
        let packed = TagBatchWriter::default().pack(&"plant".into(), &messages, (START + ROWS) * 1_000_000_000);
        let mut records = Records::new();
        for entry in &packed.entries {
            records.push(&RecordRef::of(1, &entry.bytes)).unwrap();
        }
        let entries = packed.entries.len() as u64;
        let appended = log.append(WriteBatch::of(PARTITION, records)).await.unwrap();
        while taken.load(Ordering::SeqCst) < appended.offsets[0] + entries {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

fn sample(number: i64) -> Message {
    let tag = number % TAGS_OF_THE_PLANT;
    let (line, press) = (tag % 7, tag % 23);
    let topic = format!("plant/line-{line}/press-{press}/temperature-{tag}");
    let site = if tag % 3 == 0 { "north" } else { "south" };
    let entries = [("umh_topic", topic.as_str()), ("site.name", site)];
    let map = MetaMap::new(entries.map(|(name, value)| (Text::from(name), Text::from(value))), None);
    let at = Ticks((START + number / 10) * 10_000_000);
    let stamps = ValueQuality {
        source_time: at,
        server_time: at,
        status: 0,
    };
    let value = Value::I64(number.wrapping_mul(7_919) % 1_000);
    Message::new(Payload::Value(value), Metadata::stamped(Arc::new(map), stamps))
}

/// The data files of a table.
pub fn files(table: &Path) -> Vec<PathBuf> {
    let days = std::fs::read_dir(table).unwrap().flatten();
    let days = days.filter(|day| day.file_name().to_string_lossy().starts_with("date="));
    let files = days.flat_map(|day| std::fs::read_dir(day.path()).unwrap().flatten());
    let mut files: Vec<PathBuf> = files.map(|file| file.path()).collect();
    files.sort();
    files
}
