//! Rollup windows of tags: they have only samples of good quality, and are made again for late samples.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{Array, AsArray};
use arrow::datatypes::{Float64Type, Int64Type};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use thalweg_record::{Message, MetaMap, Metadata, Payload, Text, Ticks, Value, ValueQuality};
use thalweg_telemetry::Metrics;
use tokio::runtime::Handle;

use super::table_tests::{ARRIVAL, World, slow};
use crate::LakeMetrics;
use crate::ingest::TableWriter;
use crate::rollup::Resolution;
use crate::rollup::job::{RollupBuilder, RollupOptions};
use thalweg_columns::tables::{TAGS, TAGS_ROLLUP};
use thalweg_delta::store::SyncedStore;
use thalweg_delta::{DeltaLog, SnapshotDetail};

const S: i64 = 1_000_000_000;
const BAD: u32 = 0x8034_0000;
const UNCERTAIN: u32 = 0x4000_0000;

/// A sample of a tag: nanoseconds before the arrival, value, status.
type Sample<'a> = (&'a str, i64, Value, u32);

fn message((tag, before, value, status): &Sample<'_>) -> Message {
    let entries = [("umh_topic", *tag), ("unit", "bar"), ("site", "north")];
    let map = MetaMap::new(entries.map(|(k, v)| (Text::from(k), Text::from(v))), None);
    let at = Ticks((ARRIVAL - before) / 100);
    let stamps = ValueQuality {
        source_time: at,
        server_time: at,
        status: *status,
    };
    Message::new(Payload::Value(value.clone()), Metadata::stamped(Arc::new(map), stamps))
}

/// Count, sum, minimum, maximum, first, last.
#[derive(Clone, Debug, PartialEq)]
struct Window(i64, f64, f64, f64, f64, f64);

type Windows = BTreeMap<(i32, String, i64), Window>;

fn expected(samples: &[Sample<'_>]) -> Windows {
    let mut all = Windows::new();
    let mut sorted: Vec<&Sample<'_>> = samples.iter().collect();
    sorted.sort_by_key(|(_, before, ..)| -before);
    for (tag, before, value, status) in sorted {
        let value = match value {
            Value::Bool(truth) => Some(f64::from(u8::from(*truth))),
            value => value.as_f64(),
        };
        let Some(value) = value.filter(|_| *status != BAD) else {
            continue;
        };
        for resolution in Resolution::ALL {
            let time = (ARRIVAL - before) / 100 * 100;
            let key = (resolution.seconds(), (*tag).to_owned(), resolution.window_of(time));
            let window = all.entry(key).or_insert(Window(0, 0.0, value, value, value, value));
            *window = Window(
                window.0 + 1,
                window.1 + value,
                window.2.min(value),
                window.3.max(value),
                window.4,
                value,
            );
        }
    }
    all
}

/// The newest revision of each window.
async fn windows(world: &World) -> Windows {
    let path = world.lake.path().join("tags_rollup");
    let log = DeltaLog::new(&path, SyncedStore::new()).unwrap();
    let table = log.load(SnapshotDetail::Counts).await.unwrap().unwrap();
    let mut newest: BTreeMap<_, (i64, Window)> = BTreeMap::new();
    for file in table.files.values() {
        let resolution: i32 = file.partition[0].as_deref().unwrap().parse().unwrap();
        let bytes = bytes::Bytes::from(std::fs::read(path.join(&*file.path)).unwrap());
        let reader = ParquetRecordBatchReaderBuilder::try_new(bytes)
            .unwrap()
            .build()
            .unwrap();
        for rows in reader {
            let rows = rows.unwrap();
            let column = |name: &str| rows.column_by_name(name).unwrap();
            let long = |name: &str, row| column(name).as_primitive::<Int64Type>().value(row);
            let double = |name: &str, row| column(name).as_primitive::<Float64Type>().value(row);
            let text = |name: &str, row| column(name).as_string::<i32>().value(row).to_owned();
            for row in 0..rows.num_rows() {
                assert_eq!(
                    (text("unit", row), text("attr_site", row)),
                    ("bar".into(), "north".into())
                );
                assert_eq!(long("tag_id", row), super::tag_id("plant", Some(&text("tag", row))));
                assert!(column("sketch").is_valid(row) && column("increase").is_null(row));
                let window = Window(
                    long("count", row),
                    double("sum", row),
                    double("min", row),
                    double("max", row),
                    double("first", row),
                    double("last", row),
                );
                let key = (resolution, text("tag", row), long("time_unix_nano", row));
                let revision = long("revision", row);
                let known = newest.entry(key).or_insert((i64::MIN, window.clone()));
                if known.0 < revision {
                    *known = (revision, window);
                }
            }
        }
    }
    newest.into_iter().map(|(key, (_, window))| (key, window)).collect()
}

pub(super) async fn roll(world: &World, writer: &TableWriter) {
    let options = RollupOptions {
        late_every: Duration::ZERO,
        ..RollupOptions::default()
    };
    let metrics = LakeMetrics::register(&Metrics::default());
    let (site, source, runtime) = (writer.site().clone(), writer.log().clone(), Handle::current());
    let run = move || {
        let opened = RollupBuilder::open(&site, source, &TAGS, &TAGS_ROLLUP, options, metrics, runtime);
        let mut rollups = opened.unwrap();
        for _ in 0..2 {
            rollups.run(ARRIVAL + 3600 * S, &|| false).unwrap();
        }
    };
    tokio::task::spawn_blocking(run).await.unwrap();
    assert!(world.lake.path().join("tags_rollup").exists());
}

async fn store(world: &World, writer: &TableWriter, samples: &[Sample<'_>]) {
    world.append(samples.iter().map(message).collect()).await;
    let end = world.end();
    while world.taken().await != Some(end) {
        writer.hurry();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_have_good_samples_alone_and_late_ones_too() {
    let world = World::new().await;
    let writer = world.open(&slow()).await;
    let mut samples: Vec<Sample<'_>> = Vec::new();
    for second in 0..4000_i64 {
        let status = match (second % 7, second % 11) {
            (0, _) => BAD,
            (_, 0) => UNCERTAIN,
            _ => 0,
        };
        let before = 4100 * S - second * S;
        samples.push(("a", before, Value::F64((second % 100) as f64 / 8.0), status));
        samples.push(("b", before + 300_000_000, Value::Bool(second % 3 == 0), 0));
        samples.push(("words", before, Value::text("no number"), 0));
        samples.push(("bad", before, Value::I64(1), BAD));
    }
    store(&world, &writer, &samples).await;
    roll(&world, &writer).await;
    let all = expected(&samples);
    assert!(all.len() > 2 * 400 && all.keys().all(|(_, tag, _)| tag == "a" || tag == "b"));
    assert_eq!(windows(&world).await, all);

    let late: [Sample<'_>; 3] = [
        ("a", 2000 * S + 500_000_000, Value::F64(1e6), 0),
        ("a", 3000 * S + 500_000_000, Value::F64(1e6), BAD),
        ("c", 2500 * S, Value::I64(-5), 0),
    ];
    store(&world, &writer, &late).await;
    roll(&world, &writer).await;
    samples.extend(late);
    assert_eq!(windows(&world).await, expected(&samples));
    writer.close(Duration::from_secs(20)).await;
}
