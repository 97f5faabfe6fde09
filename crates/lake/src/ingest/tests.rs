use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arrow::array::AsArray;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use tempfile::TempDir;
use thalweg_log::disk::RamDisk;
use thalweg_log::disk::sim::{Random, SimDisk};
use thalweg_log::format::record::RecordRef;
use thalweg_log::{Durability, EmbeddedLog, LogOptions, PartitionId, Records, WriteBatch};
use thalweg_telemetry::Metrics;

use super::*;
use crate::entry::{EntryForm, EntryHead, PayloadCompression, RejectedRecords, put_row};
use crate::memtable_view::MemtableView;
use crate::named_rows::RowEntryDecoder;
use crate::signal::Signal;
use thalweg_columns::tables::LOGS;
use thalweg_delta::SnapshotDetail;
use thalweg_delta::actions::CommitInfo;
use thalweg_delta::actions::{Action, Txn};
use thalweg_delta::store::SyncedStore;
use thalweg_delta::store::flaky::left_after;

/// A log with a queue of two partitions, and a lake folder.
pub(crate) struct World {
    log: Arc<EmbeddedLog>,
    pub folder: TempDir,
    /// The committed offset reported to the log, by partition.
    told: Arc<[AtomicU64; 2]>,
}

const PARTITIONS: [PartitionId; 2] = [PartitionId::new(7, 0), PartitionId::new(7, 1)];

fn log_options() -> LogOptions {
    LogOptions {
        file_bytes: 1 << 20,
        first_file_bytes: 1 << 20,
        spare: 0,
        min_free_bytes: Some(0),
        ..LogOptions::default()
    }
}

impl World {
    pub async fn new() -> World {
        let options = log_options();
        let log = EmbeddedLog::open(Arc::new(RamDisk::new(256 << 20)), 0xab, &options).unwrap();
        for id in PARTITIONS {
            log.create(id, thalweg_log::Durability::Fsync).await.unwrap();
        }
        World {
            log: Arc::new(log),
            folder: tempfile::tempdir().unwrap(),
            told: Arc::default(),
        }
    }

    /// Replaces the log by a new one of the same name.
    pub async fn with_another_log(self) -> World {
        World {
            folder: self.folder,
            ..World::new().await
        }
    }

    pub fn feed(&self) -> QueueSource {
        let told = self.told.clone();
        QueueSource {
            queue: "lake.logs".to_owned(),
            log: self.log.clone(),
            partitions: PARTITIONS.to_vec(),
            taken: Arc::new(move |partition, offset| told[partition as usize].store(offset, Ordering::SeqCst)),
            handoffs: None,
        }
    }

    /// The same with handoffs that have this budget.
    fn feed_with_room(&self, bytes: usize) -> QueueSource {
        let next = PARTITIONS.map(|id| self.log.bounds(id).unwrap().next);
        QueueSource {
            handoffs: Some(HandoffQueue::new(HandoffBudget::new(bytes), &next)),
            ..self.feed()
        }
    }

    pub async fn open(&self, options: &IngestOptions) -> TableWriter {
        let metrics = LakeMetrics::register(&Metrics::default());
        self.open_with(self.feed(), metrics, options).await
    }

    async fn open_with(&self, feed: QueueSource, metrics: LakeMetrics, options: &IngestOptions) -> TableWriter {
        self.try_open_with(feed, metrics, options).await.unwrap()
    }

    async fn try_open_with(
        &self,
        feed: QueueSource,
        metrics: LakeMetrics,
        options: &IngestOptions,
    ) -> Result<TableWriter, OpenError> {
        let site = LakeStorage::folder(self.folder.path(), SyncedStore::new());
        TableWriter::open(
            &site,
            &LOGS,
            feed,
            &rows_alone(&LOGS),
            AttributePromotion::default(),
            metrics,
            options,
        )
        .await
    }

    async fn try_open(&self, options: &IngestOptions) -> Result<TableWriter, OpenError> {
        let metrics = LakeMetrics::register(&Metrics::default());
        self.try_open_with(self.feed(), metrics, options).await
    }

    /// Appends one entry with a log row for each body.
    pub async fn append(&self, partition: usize, bodies: &[&str]) -> u64 {
        self.append_bytes(partition, &entry(bodies)).await
    }

    async fn append_bytes(&self, partition: usize, entry: &[u8]) -> u64 {
        let mut records = Records::new();
        records.push(&RecordRef::of(1, entry)).unwrap();
        let appended = self.log.append(WriteBatch::of(PARTITIONS[partition], records)).await;
        appended.unwrap().offsets[0]
    }

    /// The bodies in the table, sorted, and its committed offsets.
    pub async fn stored(&self) -> (Vec<String>, Vec<i64>) {
        bodies(&self.folder.path().join("logs"), &self.feed()).await
    }

    async fn wait_for(&self, rows: usize) -> Vec<String> {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            let (bodies, _) = self.stored().await;
            if bodies.len() >= rows {
                return bodies;
            }
            assert!(Instant::now() < until, "{bodies:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

async fn bodies(table: &Path, feed: &QueueSource) -> (Vec<String>, Vec<i64>) {
    let log = DeltaLog::new(table, SyncedStore::new()).unwrap();
    let Some(snapshot) = log.load(SnapshotDetail::Counts).await.unwrap() else {
        return Default::default();
    };
    let mut bodies = Vec::new();
    for file in snapshot.files.values() {
        let bytes = bytes::Bytes::from(std::fs::read(table.join(&*file.path)).unwrap());
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
    bodies.sort();
    let position = |partition| snapshot.transactions.get(&feed.application(partition)).copied();
    (
        bodies,
        [0, 1].map(|partition| position(partition).unwrap_or(-1)).to_vec(),
    )
}

/// Commits only on request or when it closes.
fn slow() -> IngestOptions {
    IngestOptions {
        flush_interval: Duration::from_secs(3600),
        ..IngestOptions::default()
    }
}

pub(crate) fn fast() -> IngestOptions {
    IngestOptions {
        flush_interval: Duration::from_millis(20),
        ..IngestOptions::default()
    }
}

/// A decoder for a table whose entries contain only rows.
pub(crate) fn rows_alone(spec: &'static TableSpec) -> DecoderFactory {
    Arc::new(move |limits| Box::new(RowEntryDecoder::new(spec, limits)))
}

const SOON: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_of_all_partitions_become_rows_and_the_log_is_told() {
    let world = World::new().await;
    world.append(0, &["a", "b"]).await;
    let writer = world.open(&fast()).await;
    assert_eq!(world.wait_for(2).await, ["a", "b"]);
    world.append(1, &["c"]).await;
    world.append(0, &["d"]).await;
    assert_eq!(world.wait_for(4).await, ["a", "b", "c", "d"]);
    writer.close(SOON).await;
    assert_eq!(world.stored().await.1, [2, 1]);
    assert_eq!(world.told[0].load(Ordering::SeqCst), 2);
    assert_eq!(world.told[1].load(Ordering::SeqCst), 1);
    let status = writer.tables().remove(0);
    assert_eq!(
        (status.name.as_str(), status.rows, status.buffered_rows),
        ("logs", 4, 0)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_not_committed_is_taken_again_and_what_was_is_not() {
    let world = World::new().await;
    let mut expected = Vec::new();
    for round in 0..6 {
        let writer = world.open(&slow()).await;
        let body = format!("round {round}");
        world.append(round % 2, &[&body]).await;
        expected.push(body);
        match round % 3 {
            // Dropped as it is, before or after the entry was decoded.
            0 => drop(writer),
            1 => {
                writer.hurry();
                tokio::time::sleep(Duration::from_millis(30)).await;
                drop(writer);
            }
            _ => {
                tokio::time::sleep(Duration::from_millis(30)).await;
                writer.close(SOON).await;
            }
        }
    }
    let writer = world.open(&fast()).await;
    world.wait_for(6).await;
    writer.close(SOON).await;
    assert_eq!(world.stored().await, (expected, vec![3, 3]));
}

/// A lease prevents this. Without one, rows would be in the table twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_ends_where_another_one_has_taken_a_part_of_its_rows() {
    let world = World::new().await;
    let writer = world.open(&slow()).await;
    let commit = async |bodies: [&str; 2]| {
        world.append(0, &bodies[..1]).await;
        world.append(1, &bodies[1..]).await;
        while writer.tables()[0].buffered_rows < 2 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        writer.hurry();
    };
    commit(["a", "b"]).await;
    world.wait_for(2).await;
    let log = DeltaLog::new(&world.folder.path().join("logs"), SyncedStore::new()).unwrap();
    let version = log.load(SnapshotDetail::Counts).await.unwrap().unwrap().version;
    let taken = Txn {
        app_id: world.feed().application(1),
        version: 2,
        last_updated: None,
    };
    let actions = [Action::CommitInfo(CommitInfo::of("WRITE", 1)), Action::Txn(taken)];
    log.commit(version + 1, &actions).await.unwrap();
    commit(["c", "d"]).await;
    let until = Instant::now() + SOON;
    let failed = loop {
        match writer.tables()[0].failed.clone() {
            Some(failed) => break failed,
            None => assert!(Instant::now() < until),
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    };
    assert!(
        failed.contains("another process has written rows of the same log"),
        "{failed}"
    );
    assert_eq!(world.stored().await.0, ["a", "b"]);
    // The next start continues from the committed offsets.
    drop(writer);
    let writer = world.open(&fast()).await;
    assert_eq!(world.wait_for(3).await, ["a", "b", "c"]);
    writer.close(SOON).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_that_cannot_be_decoded_is_set_aside_and_the_next_one_is_taken() {
    let world = World::new().await;
    world.append(0, &["a"]).await;
    let poison = [&entry(&["x"])[..], &[0x0a, 0x7f]].concat();
    let offset = world.append_bytes(0, &poison).await;
    world.append(0, &["b"]).await;
    let writer = world.open(&fast()).await;
    assert_eq!(world.wait_for(2).await, ["a", "b"]);
    writer.close(SOON).await;
    assert_eq!(world.stored().await.1, [3, 0]);
    let quarantine = world.folder.path().join("_thalweg/quarantine");
    let aside = quarantine.join(format!("logs-0-{offset}.bin"));
    assert_eq!(std::fs::read(aside).unwrap(), poison);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_stops_where_the_log_lacks_what_it_lacks_until_that_is_accepted() {
    let world = World::new().await;
    let writer = world.open(&fast()).await;
    world.append(0, &["a"]).await;
    world.wait_for(1).await;
    writer.close(SOON).await;
    for body in ["b", "c", "d"] {
        world.append(0, &[body]).await;
    }
    world.log.trim(PARTITIONS[0], 3).unwrap();
    let until = Instant::now() + SOON;
    while world.log.bounds(PARTITIONS[0]).unwrap().first < 3 {
        assert!(Instant::now() < until);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let writer = world.open(&fast()).await;
    let trouble = writer.not_ready();
    assert!(
        trouble[0].starts_with("lake.gap: the log does not have the entries 1 to 2 of lake.logs, partition 0"),
        "{trouble:?}"
    );
    let position = EntryPosition {
        queue: "lake.logs".to_owned(),
        partition: 0,
        offset: 3,
    };
    let late = writer
        .wait_for(&position, Duration::from_millis(10))
        .await
        .unwrap_err()
        .to_string();
    assert!(
        late.starts_with("lake.logs:0:3 was not visible within 0.01 s: lake.gap: "),
        "{late}"
    );
    writer.close(SOON).await;
    assert_eq!(world.stored().await.0, ["a"]);
    let accepted = IngestOptions {
        accept_gap: true,
        ..fast()
    };
    let writer = world.open(&accepted).await;
    assert_eq!(world.wait_for(2).await, ["a", "d"]);
    writer.close(SOON).await;
}

/// A table with two entries of partition 0, and a log of the same name with one entry of other content.
async fn with_a_log_that_ends_early(durability: Durability) -> World {
    let world = World::new().await;
    let writer = world.open(&fast()).await;
    for body in ["a", "b"] {
        world.append(0, &[body]).await;
    }
    world.wait_for(2).await;
    writer.close(SOON).await;
    let younger = world.with_another_log().await;
    younger.log.set_durability(PARTITIONS[0], durability).await.unwrap();
    younger.append(0, &["b again"]).await;
    younger
}

/// Checks that the log continues after the committed offset.
async fn goes_on(world: World, options: &IngestOptions) {
    let writer = world.open(options).await;
    assert_eq!(world.log.bounds(PARTITIONS[0]).unwrap().next, 2);
    assert_eq!(world.append(0, &["c"]).await, 2);
    world.wait_for(3).await;
    writer.close(SOON).await;
    let (bodies, positions) = world.stored().await;
    assert_eq!(
        (bodies, positions),
        (["a", "b", "c"].map(str::to_owned).to_vec(), vec![3, 0])
    );
}

/// The table consumed only synced entries, so no durability mode explains the loss.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_ends_before_what_the_table_has_is_refused_in_any_mode_until_that_is_accepted() {
    for durability in [Durability::Fsync, Durability::Interval, Durability::Os] {
        let world = with_a_log_that_ends_early(durability).await;
        for _ in 0..2 {
            let refused = world.try_open(&fast()).await.err().unwrap();
            assert!(matches!(refused, OpenError::Lost { .. }) && refused.is_permanent());
            let text = refused.to_string();
            for part in [
                "lake.lost: the log ends before offset 1 of lake.logs, partition 0, and the table logs has entries up to 1",
                "`log: {recover: skip}`",
            ] {
                assert!(text.contains(part), "{text}");
            }
            assert_eq!(world.log.bounds(PARTITIONS[0]).unwrap().next, 1, "nothing was changed");
        }
        goes_on(world, &accepting()).await;
    }
}

/// Accepts losses of the log.
pub(crate) fn accepting() -> IngestOptions {
    IngestOptions {
        accept_gap: true,
        ..fast()
    }
}

/// Because a table consumes only what survives a power cut, the durability mode may be changed at any time, even to a
/// stricter one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_power_cut_leaves_a_log_behind_its_table_whatever_modes_it_had() {
    let modes = [Durability::Os, Durability::Interval, Durability::Fsync];
    for seed in 1..=6 {
        let disk = SimDisk::new(seed, 64 << 20);
        let (mut random, folder) = (Random::new(seed), tempfile::tempdir().unwrap());
        let mut survivors = 0;
        for life in 0..6 {
            let log = EmbeddedLog::open(Arc::new(disk.clone()), 0xab, &log_options()).unwrap();
            for id in PARTITIONS {
                if log.bounds(id).is_err() {
                    log.create(id, Durability::Os).await.unwrap();
                }
                let mode = modes[random.below(3) as usize];
                log.set_durability(id, mode).await.unwrap();
            }
            let world = World {
                log: Arc::new(log),
                folder: tempfile::tempdir().unwrap(),
                told: Arc::default(),
            };
            let metrics = LakeMetrics::register(&Metrics::default());
            let site = LakeStorage::folder(folder.path(), SyncedStore::new());
            let opened = TableWriter::open(
                &site,
                &LOGS,
                world.feed(),
                &rows_alone(&LOGS),
                AttributePromotion::default(),
                metrics,
                &fast(),
            )
            .await;
            let writer = opened.unwrap_or_else(|error| panic!("seed {seed}, life {life}: {error}"));
            disk.cut_power_in(random.below(60));
            for number in 0..20 {
                let mut records = Records::new();
                let body = format!("{life}-{number}");
                records.push(&RecordRef::of(1, &entry(&[&body]))).unwrap();
                let unit = WriteBatch::of(PARTITIONS[random.below(2) as usize], records);
                if world.log.append(unit).await.is_err() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(random.below(8))).await;
            }
            disk.power_cut();
            drop(writer);
            world.log.close();
            let until = Instant::now() + SOON;
            while Arc::strong_count(&world.log) > 1 {
                assert!(Instant::now() < until);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let (rows, _) = bodies(&folder.path().join("logs"), &world.feed()).await;
            assert!(rows.len() >= survivors, "rows stay");
            survivors = rows.len();
            let mut once = rows.clone();
            once.dedup();
            assert_eq!(once, rows, "seed {seed}, life {life}: a row is there twice");
        }
        assert!(survivors > 0);
    }
}

/// Otherwise the next start would refuse again what was accepted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loss_that_was_accepted_stays_so_over_a_power_cut_in_any_mode() {
    for durability in [Durability::Os, Durability::Interval] {
        let disk = SimDisk::new(7, 64 << 20);
        for to in [10, 25] {
            let log = EmbeddedLog::open(Arc::new(disk.clone()), 0xab, &log_options()).unwrap();
            if log.bounds(PARTITIONS[0]).is_err() {
                log.create(PARTITIONS[0], durability).await.unwrap();
            }
            raise_next(&log, PARTITIONS[0], to).await.unwrap();
            disk.power_cut();
            log.close();
            drop(log);
            let log = EmbeddedLog::open(Arc::new(disk.clone()), 0xab, &log_options()).unwrap();
            assert_eq!(log.bounds(PARTITIONS[0]).unwrap().next, to);
            log.close();
        }
    }
}

/// A start waits for the store only for some seconds; this must also work where a loss is accepted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_whose_opening_or_waiting_is_left_at_any_await_is_opened_again_and_has_each_row_once() {
    // The number of waits depends on the disk.
    const WAITS: usize = 12;
    let mut left = 0;
    for options in [fast(), accepting()] {
        for waits in 0..WAITS {
            let world = match options.accept_gap {
                true => with_a_log_that_ends_early(Durability::Os).await,
                false => World::new().await,
            };
            let begun = world.stored().await.0.len();
            let opened = left_after(waits, world.try_open(&options)).await;
            left += usize::from(opened.is_none());
            drop(opened);
            let writer = world.open(&options).await;
            let offset = world.append(0, &["x"]).await;
            let position = EntryPosition {
                queue: "lake.logs".to_owned(),
                partition: 0,
                offset,
            };
            for waits in 0..4 {
                left_after(waits, writer.wait_for(&position, SOON)).await;
            }
            writer.wait_for(&position, SOON).await.unwrap();
            // The caller may run out of time; the next writer consumes the rest.
            left_after(waits, writer.close(SOON)).await;
            drop(writer);
            let writer = world.open(&options).await;
            let rows = world.wait_for(begun + 1).await;
            writer.close(SOON).await;
            let mut once = rows.clone();
            once.dedup();
            assert_eq!(
                (once.len(), rows.len()),
                (begun + 1, begun + 1),
                "left after {waits} waits: {rows:?}"
            );
        }
    }
    assert!(left > 0, "there was nothing to leave");
}

/// Entries appended before the table is opened have offsets that the table has committed for others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_came_before_the_table_was_asked_becomes_rows_once_the_loss_is_accepted() {
    for more in 0..4_u64 {
        let world = with_a_log_that_ends_early(Durability::Fsync).await;
        let mut expected = vec!["a".to_owned(), "b".to_owned()];
        for number in 0..more {
            let body = format!("new {number}");
            assert_eq!(world.append(0, &[&body]).await, 1 + number);
            expected.push(body);
        }
        let log_ends: BTreeMap<PartitionId, Offset> = [(PARTITIONS[0], 1)].into();
        let options = |options: IngestOptions| IngestOptions {
            log_ends: log_ends.clone(),
            ..options
        };
        let refused = world.try_open(&options(fast())).await.err().unwrap();
        assert!(
            matches!(refused, OpenError::Lost { .. }),
            "{more} entries more: {refused}"
        );
        let writer = world.open(&options(accepting())).await;
        world.append(0, &["last"]).await;
        expected.push("last".to_owned());
        expected.sort();
        assert_eq!(world.wait_for(expected.len()).await, expected, "{more} entries more");
        writer.close(SOON).await;
        let writer = world.open(&fast()).await;
        writer.close(SOON).await;
        assert_eq!(world.stored().await.0, expected, "nothing comes twice");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_are_seen_once_while_they_grow_are_committed_and_after() {
    let world = World::new().await;
    let writer = world.open(&fast()).await;
    let table = world.folder.path().join("logs");
    let mut sum = 0;
    for entry in 0..200 {
        world.append(entry % 2, &["x", "y", "z"]).await;
        sum += 3;
        let until = Instant::now() + SOON;
        loop {
            // Memtable rows first, then the table.
            let live: MemtableView = writer.live();
            let log = DeltaLog::new(&table, SyncedStore::new()).unwrap();
            let snapshot = log.load(SnapshotDetail::Counts).await.unwrap();
            let stored = snapshot.as_ref().map_or(0, |snapshot| snapshot.rows);
            let waiting: usize = live.beyond(snapshot.as_ref()).iter().map(|chunk| chunk.rows()).sum();
            let seen = stored + waiting as u64;
            assert!(seen <= sum, "{seen} of {sum}");
            if seen == sum {
                break;
            }
            assert!(Instant::now() < until, "{seen} of {sum}");
        }
    }
    writer.close(SOON).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flush_is_not_early_because_the_one_before_left_its_room() {
    let world = World::new().await;
    let options = IngestOptions {
        flush_bytes: 256 << 10,
        ..slow()
    };
    for entry in 0..60 {
        let bodies: Vec<String> = (0..20).map(|row| format!("{entry} {row} {:1000}", "")).collect();
        let bodies: Vec<&str> = bodies.iter().map(String::as_str).collect();
        world.append(0, &bodies).await;
    }
    let writer = world.open(&options).await;
    writer.hurry();
    let until = Instant::now() + SOON;
    while world.told[0].load(Ordering::SeqCst) < 40 {
        assert!(Instant::now() < until);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    writer.close(SOON).await;
    assert_eq!(world.stored().await.0.len(), 1200);
    // About 20 KiB per entry: a dozen in each commit, and one commit created the table.
    let commits = writer.tables()[0].version;
    assert!((4..=8).contains(&commits), "{commits} commits");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_whose_rows_cannot_be_made_of_what_was_handed_over_is_taken_from_the_log() {
    let world = World::new().await;
    let metrics = LakeMetrics::register(&Metrics::default());
    let feed = world.feed_with_room(1 << 20);
    let handoffs = feed.handoffs.clone().unwrap();
    let writer = world.open_with(feed, metrics.clone(), &fast()).await;
    for (body, broken) in [("a", false), ("b", true), ("c", false)] {
        let offset = world.append(0, &[body]).await;
        let mut handed = rows_of(&[body]);
        if broken {
            handed.extend_from_slice(&[0x0a, 0x7f]);
        }
        handoffs.report(0, offset, Handoff::of(&HEAD, handed.into()));
    }
    assert_eq!(world.wait_for(3).await, ["a", "b", "c"]);
    writer.close(SOON).await;
    assert_eq!(metrics.poison_entries.get(), 0);
    assert_eq!(world.stored().await.1, [3, 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_handed_over_and_not_synced_waits_for_its_sync() {
    let world = World::new().await;
    for id in PARTITIONS {
        world.log.set_durability(id, thalweg_log::Durability::Os).await.unwrap();
    }
    let feed = world.feed_with_room(1 << 20);
    let handoffs = feed.handoffs.clone().unwrap();
    let metrics = LakeMetrics::register(&Metrics::default());
    let writer = world.open_with(feed, metrics.clone(), &slow()).await;
    for n in 0..20 {
        let offset = world.append(0, &["a"]).await;
        handoffs.report(0, offset, Handoff::of(&HEAD, rows_of(&["a"]).into()));
        let until = Instant::now() + SOON;
        while writer.tables()[0].buffered_rows < n + 1 {
            assert!(Instant::now() < until);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(world.log.bounds(PARTITIONS[0]).unwrap().synced > offset);
    }
    writer.close(SOON).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_for_a_position_sees_its_rows() {
    let world = World::new().await;
    let writer = world.open(&slow()).await;
    let position = |partition, offset| EntryPosition {
        queue: "lake.logs".to_owned(),
        partition,
        offset,
    };
    let seen = |writer: &TableWriter| {
        writer
            .live()
            .beyond(None)
            .iter()
            .map(|chunk| chunk.rows())
            .sum::<usize>()
    };
    for n in 0..20 {
        // Rows were closed for a query just before.
        assert_eq!(seen(&writer), n);
        let offset = world.append(n % 2, &["a"]).await;
        let at = position(u32::try_from(n % 2).unwrap(), offset);
        writer.wait_for(&at, SOON).await.unwrap();
        assert_eq!(seen(&writer), n + 1);
    }
    let unknown = |at: EntryPosition| {
        let writer = &writer;
        async move {
            match writer.wait_for(&at, SOON).await {
                Err(VisibilityWaitError::Unknown(text)) => text,
                other => panic!("{at}: {other:?}"),
            }
        }
    };
    assert_eq!(
        unknown(position(1, 10)).await,
        "lake.logs:1:10: this partition ends before offset 10, so no answer has named that position"
    );
    assert_eq!(
        unknown(position(2, 0)).await,
        "lake.logs:2:0: lake.logs has 2 partitions, from 0 on"
    );
    writer.close(SOON).await;
    // It is in the table now, so a later process returns at once.
    let writer = world.open(&slow()).await;
    writer.wait_for(&position(0, 9), SOON).await.unwrap();
    writer.close(SOON).await;
}

const ARRIVAL: i64 = 1_700_000_000_000_000_000;
const HEAD: EntryHead<'static> = EntryHead {
    signal: Signal::Logs,
    form: EntryForm::Rows,
    compression: PayloadCompression::None,
    arrival: ARRIVAL,
    records: 1,
    cut_values_at: None,
    rejected: RejectedRecords::NONE,
    peer: "",
};

/// Rows with these bodies.
fn rows_of(bodies: &[&str]) -> Vec<u8> {
    let mut rows = Vec::new();
    for body in bodies {
        put_row(&mut rows, serde_json::json!({ "body": body }).to_string().as_bytes());
    }
    rows
}

/// An entry with these rows.
fn entry(bodies: &[&str]) -> Vec<u8> {
    let head = EntryHead {
        records: bodies.len() as u32,
        ..HEAD
    };
    let mut entry = Vec::new();
    head.encode(&mut entry);
    [entry, rows_of(bodies)].concat()
}
