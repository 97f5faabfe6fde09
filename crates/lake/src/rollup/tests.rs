//! Compares the windows of a growing table with windows that are made of all points at once.

mod expired;
mod left_out;
mod sizes;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::AsArray;
use tempfile::TempDir;
use thalweg_log::disk::RamDisk;
use thalweg_log::format::record::RecordRef;
use thalweg_log::{Durability, EmbeddedLog, LogOptions, PartitionId, Records, WriteBatch};
use thalweg_telemetry::{Metrics, StatusSource as _};
use tokio::runtime::Handle;

use super::Resolution;
use super::input::RollupInputRows;
use super::job::{RollupBuilder, RollupOptions};
use super::windows::{self, PointKind, RollupPoint, RollupWindowBuilder};
use crate::LakeMetrics;
use crate::entry::{EntryForm, EntryHead, PayloadCompression, RejectedRecords, put_row};
use crate::ingest::tests::rows_alone;
use crate::ingest::{IngestOptions, QueueSource, TableWriter};
use crate::maintenance::{MaintenanceOptions, MaintenanceThread};
use crate::signal::Signal;
use thalweg_columns::attributes::AttributePromotion;
use thalweg_columns::compaction::{CompactionOptions, MergeInput, MergeIterator, MergeReadOptions, SortKeys};
use thalweg_columns::tables::{METRICS, METRICS_ROLLUP};
use thalweg_delta::store::{LakeStorage, SyncedStore};
use thalweg_delta::{DeltaLog, Snapshot, SnapshotDetail};

const S: i64 = 1_000_000_000;
const HOUR: i64 = 3600 * S;
/// Shortly before midnight.
const BEGIN: i64 = 1_700_006_400 * S - 2 * HOUR;
const PARTITION: PartitionId = PartitionId::new(7, 0);
const BOUNDS: [f64; 3] = [1.0, 10.0, 100.0];

/// A sent point: its series, time, and values.
#[derive(Clone, Debug)]
struct Sent {
    series: usize,
    time: i64,
    value: f64,
    counts: [i64; 4],
}

/// The kind of each series.
const SERIES: [PointKind; 6] = [
    PointKind::Value,
    PointKind::Counter,
    PointKind::Counter,
    PointKind::Delta,
    PointKind::Histogram { is_cumulative: true },
    PointKind::Histogram { is_cumulative: false },
];

struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: i64) -> i64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 16) as i64) % limit
    }
}

/// The row of a point, by column names.
fn row(sent: &Sent) -> Vec<u8> {
    let (kind, temporality) = match SERIES[sent.series] {
        PointKind::Value => ("gauge", None),
        PointKind::Counter => ("sum", Some("cumulative")),
        PointKind::Delta => ("sum", Some("delta")),
        PointKind::Histogram { is_cumulative: true } => ("histogram", Some("cumulative")),
        PointKind::Histogram { is_cumulative: false } => ("histogram", Some("delta")),
        PointKind::Exponential { .. } => unreachable!(),
    };
    let mut row = serde_json::json!({
        "metric_name": format!("metric {}", sent.series % 2),
        "unit": "1",
        "metric_type": kind,
        "temporality": temporality,
        "is_monotonic": (kind == "sum").then_some(true),
        "attr_host": format!("node {}", sent.series),
        "time_unix_nano": sent.time,
    });
    match kind {
        "histogram" => {
            row["count"] = sent.counts.iter().sum::<i64>().into();
            row["sum"] = sent.value.into();
            row["bucket_counts"] = sent.counts.to_vec().into();
            row["explicit_bounds"] = BOUNDS.to_vec().into();
        }
        _ => row["value"] = sent.value.into(),
    }
    row.to_string().into_bytes()
}

struct World {
    folder: TempDir,
    log: Arc<EmbeddedLog>,
    writer: Arc<TableWriter>,
    rows: u64,
}

impl World {
    async fn new() -> World {
        let options = LogOptions {
            file_bytes: 8 << 20,
            first_file_bytes: 1 << 20,
            spare: 0,
            min_free_bytes: Some(0),
            ..LogOptions::default()
        };
        let log = Arc::new(EmbeddedLog::open(Arc::new(RamDisk::new(1 << 30)), 0xab, &options).unwrap());
        log.create(PARTITION, Durability::Fsync).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let feed = QueueSource {
            handoffs: None,
            queue: "lake.metrics".to_owned(),
            log: log.clone(),
            partitions: vec![PARTITION],
            taken: Arc::new(|_, _| {}),
        };
        let options = IngestOptions {
            flush_interval: Duration::from_secs(3600),
            ..IngestOptions::default()
        };
        let metrics = LakeMetrics::register(&Metrics::default());
        let site = LakeStorage::folder(folder.path(), SyncedStore::new());
        let (promotion, decoder) = (AttributePromotion::default(), rows_alone(&METRICS));
        let writer = TableWriter::open(&site, &METRICS, feed, &decoder, promotion, metrics, &options);
        World {
            writer: Arc::new(writer.await.unwrap()),
            log,
            folder,
            rows: 0,
        }
    }

    /// Adds points to the table in a separate file.
    async fn send(&mut self, points: &[Sent], arrival: i64) {
        let rows: Vec<Vec<u8>> = points.iter().map(row).collect();
        self.send_rows(&rows, arrival).await;
    }

    /// The same for rows as JSON.
    async fn send_rows(&mut self, rows: &[Vec<u8>], arrival: i64) {
        let head = EntryHead {
            signal: Signal::Metrics,
            form: EntryForm::Rows,
            compression: PayloadCompression::None,
            arrival,
            records: rows.len() as u32,
            cut_values_at: None,
            rejected: RejectedRecords::NONE,
            peer: "",
        };
        let mut entry = Vec::new();
        head.encode(&mut entry);
        rows.iter().for_each(|row| put_row(&mut entry, row));
        let mut records = Records::new();
        records.push(&RecordRef::of(1, &entry)).unwrap();
        self.log.append(WriteBatch::of(PARTITION, records)).await.unwrap();
        self.rows += rows.len() as u64;
        let until = Instant::now() + Duration::from_secs(20);
        while self.writer.tables()[0].rows < self.rows {
            assert!(Instant::now() < until);
            self.writer.hurry();
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    async fn rollups(&self, memory: usize) -> RollupBuilder {
        self.rollups_with(RollupOptions {
            memory,
            late_every: Duration::ZERO,
            ..RollupOptions::default()
        })
        .await
    }

    async fn rollups_with(&self, options: RollupOptions) -> RollupBuilder {
        let metrics = LakeMetrics::register(&Metrics::default());
        let (site, source) = (self.writer.site().clone(), self.writer.log().clone());
        let runtime = Handle::current();
        let open = move || RollupBuilder::open(&site, source, &METRICS, &METRICS_ROLLUP, options, metrics, runtime);
        tokio::task::spawn_blocking(open).await.unwrap().unwrap()
    }

    async fn table(&self) -> Snapshot {
        self.table_called("metrics_rollup").await
    }

    async fn table_called(&self, name: &str) -> Snapshot {
        let log = DeltaLog::new(&self.folder.path().join(name), SyncedStore::new()).unwrap();
        log.load(SnapshotDetail::Counts).await.unwrap().unwrap()
    }

    /// Deletes unreferenced files at once, as the vacuum does later.
    async fn delete_what_was_merged(&self) {
        for name in ["metrics", "metrics_rollup"] {
            let (table, folder) = (self.table_called(name).await, self.folder.path().join(name));
            let mut folders = vec![folder.clone()];
            while let Some(of) = folders.pop() {
                for entry in std::fs::read_dir(of).unwrap().map(Result::unwrap) {
                    let path = entry.path();
                    let within = path.strip_prefix(&folder).unwrap().to_str().unwrap().to_owned();
                    if path.is_dir() && !within.starts_with('_') {
                        folders.push(path);
                    } else if within.ends_with(".parquet") && !table.files.contains_key(within.as_str()) {
                        std::fs::remove_file(path).unwrap();
                    }
                }
            }
        }
    }

    /// The newest revision of each window, by resolution, series and beginning.
    async fn windows(&self) -> BTreeMap<(String, String, i64), String> {
        let table = self.table().await;
        let mut newest: BTreeMap<_, (i64, String)> = BTreeMap::new();
        for file in table.files.values() {
            let path = self.folder.path().join("metrics_rollup").join(&*file.path);
            let reading = MergeReadOptions {
                left_out: &[],
                as_dictionaries: true,
            };
            let input = MergeInput::open(&path, 0, &METRICS_ROLLUP, &table.schema, reading).unwrap();
            let mut sorted = MergeIterator::new(vec![input], SortKeys::new(&METRICS_ROLLUP));
            while let Some(run) = sorted.next().unwrap() {
                let rows = RollupInputRows::new(run.piece.clone(), &METRICS_ROLLUP).unwrap();
                let hosts = run.piece.rows.column_by_name("attr_host").unwrap();
                let hosts = hosts.as_dictionary::<arrow::datatypes::Int32Type>();
                let texts = hosts.values().as_string::<i32>();
                let revisions = run.piece.rows.column_by_name("revision").unwrap();
                let revisions = revisions.as_primitive::<arrow::datatypes::Int64Type>();
                for row in run.begin..run.begin + run.len {
                    let host = texts.value(hosts.key(row).unwrap()).to_owned();
                    let resolution = file.partition[0].clone().unwrap().to_string();
                    let window = rows.window(row).unwrap();
                    let revision = revisions.value(row);
                    let place = newest.entry((resolution, host, window.start)).or_default();
                    if place.0 < revision {
                        *place = (revision, shown(&window));
                    }
                }
            }
        }
        newest.into_iter().map(|(key, (_, window))| (key, window)).collect()
    }
}

/// Rounded, because sums depend on the order of addition in their last digits.
fn shown(window: &windows::RollupWindow<'_>) -> String {
    let windows::RollupWindow {
        count,
        sum,
        min,
        max,
        first,
        last,
        increase,
        first_time,
        last_time,
        resets,
        explicit_bounds,
        bucket_counts,
        sketch,
        ..
    } = window;
    let round = |value: &Option<f64>| value.map(|value| format!("{value:.3}"));
    format!(
        "{count} {:?} {min:?} {max:?} {first:?} {last:?} {:?} {first_time:?} {last_time:?} {resets:?} {explicit_bounds:?} \
         {bucket_counts:?} {sketch:?}",
        round(sum),
        round(increase)
    )
}

/// The expected windows.
fn expected(sent: &[Sent]) -> BTreeMap<(String, String, i64), String> {
    let mut all = BTreeMap::new();
    for resolution in Resolution::ALL {
        for (series, kind) in SERIES.into_iter().enumerate() {
            let mut of_series: Vec<&Sent> = sent.iter().filter(|sent| sent.series == series).collect();
            of_series.sort_by_key(|sent| sent.time);
            let mut put = |window: Option<windows::RollupWindow<'_>>| {
                if let Some(window) = window {
                    let key = (resolution.seconds().to_string(), format!("node {series}"), window.start);
                    all.insert(key, shown(&window));
                }
            };
            let mut windows = RollupWindowBuilder::new(resolution);
            windows.begin(kind, i64::MIN);
            for sent in of_series {
                let data = match kind {
                    PointKind::Histogram { .. } => windows::PointData::Histogram(windows::HistogramData {
                        count: sent.counts.iter().sum(),
                        sum: Some(sent.value),
                        min: None,
                        max: None,
                        bounds: &BOUNDS,
                        counts: &sent.counts,
                    }),
                    _ => windows::PointData::Number(sent.value),
                };
                let point = RollupPoint {
                    time: sent.time,
                    start: None,
                    data,
                };
                put(windows.push(&point).unwrap());
            }
            put(windows.finish());
        }
    }
    all
}

/// Points of a few minutes, some of them late by up to hours.
fn batch(dice: &mut Dice, clock: i64, is_late: bool, totals: &mut [f64; 6]) -> Vec<Sent> {
    let mut sent = Vec::new();
    for _ in 0..20 + dice.below(40) {
        let series = dice.below(6) as usize;
        let past = if is_late {
            dice.below(3 * HOUR)
        } else {
            dice.below(150 * S)
        };
        totals[series] = match dice.below(30) {
            0 => 1.0,
            _ => totals[series] + dice.below(1000) as f64 / 8.0,
        };
        sent.push(Sent {
            series,
            time: clock - past,
            value: totals[series],
            counts: [(); 4].map(|()| dice.below(50)),
        });
    }
    sent
}

/// No two points of a series have the same time.
fn only_new(batch: Vec<Sent>, sent: &[Sent]) -> Vec<Sent> {
    let is_new = |new: &Sent| {
        !sent
            .iter()
            .any(|sent| (sent.series, sent.time) == (new.series, new.time))
    };
    batch.into_iter().filter(is_new).collect()
}

/// The points, when the last of them arrived, and the builder that has made their windows.
struct Growth {
    world: World,
    sent: Vec<Sent>,
    clock: i64,
    rollups: RollupBuilder,
}

async fn grow(seed: u64, options: RollupOptions, compacts: bool) -> Growth {
    let mut dice = Dice(seed);
    let (mut world, mut sent, mut clock) = (World::new().await, Vec::new(), BEGIN);
    let mut totals = [0.0; 6];
    let mut rollups = Some(world.rollups_with(options.clone()).await);
    for round in 0..30 {
        clock += 60 * S + dice.below(600 * S);
        let new = only_new(batch(&mut dice, clock, round % 4 == 3, &mut totals), &sent);
        world.send(&new, clock).await;
        sent.extend(new);
        let mut running = match dice.below(4) {
            0 => world.rollups_with(options.clone()).await,
            _ => rollups.take().unwrap(),
        };
        let is_over = round == 29;
        // A quiet period makes windows that are not over yet.
        let now = match is_over || dice.below(5) == 0 {
            true => clock + HOUR,
            false => clock,
        };
        let run = move || {
            running.run(now, &|| false).unwrap();
            // Late rows of the windows that were just made.
            running.run(now, &|| false).unwrap();
            running
        };
        rollups = Some(tokio::task::spawn_blocking(run).await.unwrap());
        if compacts && !is_over && round % 10 == 9 {
            drop(rollups.take());
            let late = only_new(batch(&mut dice, clock, true, &mut totals), &sent);
            world.send(&late, clock).await;
            sent.extend(late);
            compact(&world).await;
            world.delete_what_was_merged().await;
            rollups = Some(world.rollups_with(options.clone()).await);
        }
    }
    let rollups = rollups.unwrap();
    Growth {
        world,
        sent,
        clock,
        rollups,
    }
}

async fn grown(seed: u64, memory: usize, compacts: bool) {
    let options = RollupOptions {
        memory,
        late_every: Duration::ZERO,
        ..RollupOptions::default()
    };
    let grown = grow(seed, options, compacts).await;
    let (found, expected) = (grown.world.windows().await, expected(&grown.sent));
    for (key, window) in &expected {
        assert_eq!(found.get(key), Some(window), "seed {seed}: {key:?}");
    }
    assert_eq!(found.len(), expected.len(), "seed {seed}");
}

/// Merges until there is nothing left to merge.
async fn compact(world: &World) {
    let options = MaintenanceOptions {
        compaction: CompactionOptions {
            inputs: 4,
            seal_after: Duration::ZERO,
            ..CompactionOptions::default()
        },
        bytes_per_second: 0,
        look_every: Duration::from_millis(5),
        rollup: RollupOptions {
            // No window is complete.
            lateness: [Duration::from_secs(1 << 30); 5],
            quiet: Duration::from_secs(1 << 33),
            ..RollupOptions::default()
        },
        ..MaintenanceOptions::default()
    };
    let metrics = LakeMetrics::register(&Metrics::default());
    let maintenance = MaintenanceThread::start(options, metrics).unwrap();
    maintenance.keep(world.writer.clone());
    let until = Instant::now() + Duration::from_secs(30);
    while !world.table().await.files.values().all(|file| file.is_sealed) {
        assert!(Instant::now() < until);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    tokio::task::spawn_blocking(|| maintenance.stop()).await.unwrap();
}

/// This many, or those of a long run.
fn seeds(by_default: u64) -> u64 {
    let seeds = std::env::var("THALWEG_SIM_SEEDS").ok();
    seeds.and_then(|seeds| seeds.parse().ok()).unwrap_or(by_default)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_of_a_table_that_grows_are_those_of_all_of_its_points() {
    for seed in 0..seeds(3) {
        grown(seed, 1 << 20, false).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_memory_for_the_points_before_they_are_read_again() {
    grown(100, 0, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn merged_files_have_the_newest_windows() {
    grown(200, 1 << 20, true).await;
}
