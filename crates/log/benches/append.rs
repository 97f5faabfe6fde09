//! Measures the cost of a durable append: messages per second, CPU time and allocations per message, syncs, bytes and
//! latency. Each publisher awaits one append before the next, on a real file system, while consumed records are trimmed
//! behind them and commit files are reused.
//!
//! `append [--io blocking,uring] [--seconds 3] [--runs 3] [word ...]`: runs only the rows whose name contains one of
//! the words. The folder is `THALWEG_BENCH_DIR` or one under `~/.cache`. The I/O variants alternate within each row;
//! the medians of the runs are shown.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

mod support;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use support::{Counted, Histogram};
use thalweg_log::disk::{Disk, FolderDisk};
use thalweg_log::format::record::RecordRef;
use thalweg_log::{Durability, EmbeddedLog, LogOptions, PartitionId, Records, WriteBatch};
use thalweg_telemetry::{alloc, cpu_time};

const VALUE: [u8; 256] = [0x5a; 256];
const PARTITIONS: u32 = 4;
/// Records that are kept behind the publishers in each partition.
const KEPT: u64 = 60_000;
const WARM_UP: Duration = Duration::from_millis(500);
const TIME: i64 = 1_700_000_000_000_000;

/// One row of the table.
#[derive(Clone)]
struct Load {
    mode: Durability,
    publishers: u64,
    batch: usize,
    /// Messages per second of all publishers; zero: unlimited.
    rate: u64,
    /// Whether a reader reads old frames continuously.
    reader: bool,
}

/// The result of one run.
#[derive(Clone, Copy, Default)]
struct Measured {
    messages_per_second: f64,
    cpu_us: f64,
    allocations: f64,
    syncs_per_second: f64,
    messages_per_sync: f64,
    amplification: f64,
    latency_us: [f64; 4],
    read_mb_per_second: f64,
}

/// A separate log for each I/O variant.
struct Bench {
    io: String,
    log: Arc<EmbeddedLog>,
    disk: Arc<Counted>,
    folder: PathBuf,
}

struct Args {
    io: Vec<String>,
    seconds: f64,
    runs: usize,
    words: Vec<String>,
}

fn main() {
    let args = args();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    support::print_environment();
    let benches: Vec<Bench> = args.io.iter().map(|io| Bench::open(io)).collect();
    for bench in &benches {
        runtime.block_on(bench.prepare());
    }
    println!(
        "{:<34} {:>9} {:>8} {:>7} {:>7} {:>8} {:>6} {:>8} {:>8} {:>8} {:>8}",
        "", "msg/s", "CPU us", "allocs", "syncs/s", "msg/sync", "bytes", "p50 us", "p99", "p99.9", "max"
    );
    for load in loads() {
        let name = load.name();
        if !args.words.is_empty() && !args.words.iter().any(|word| name.contains(word)) {
            continue;
        }
        let mut measured = vec![Vec::new(); benches.len()];
        for _ in 0..args.runs {
            for (bench, runs) in benches.iter().zip(&mut measured) {
                runs.push(runtime.block_on(bench.run(&load, args.seconds)));
            }
        }
        for (bench, runs) in benches.iter().zip(&measured) {
            print(&format!("{name} {}", bench.io), &Measured::median(runs));
        }
    }
    for bench in benches {
        bench.log.close();
        let _ = std::fs::remove_dir_all(&bench.folder);
    }
}

fn args() -> Args {
    let mut args = Args {
        io: vec!["blocking".to_owned()],
        seconds: 3.0,
        runs: 3,
        words: Vec::new(),
    };
    let mut given = std::env::args().skip(1);
    while let Some(arg) = given.next() {
        match arg.as_str() {
            "--io" => args.io = given.next().unwrap().split(',').map(str::to_owned).collect(),
            "--seconds" => args.seconds = given.next().unwrap().parse().unwrap(),
            "--runs" => args.runs = given.next().unwrap().parse().unwrap(),
            // An argument that cargo adds.
            "--bench" => {}
            _ => args.words.push(arg),
        }
    }
    args
}

fn loads() -> Vec<Load> {
    let mut loads = Vec::new();
    for mode in [Durability::Fsync, Durability::Interval, Durability::Os] {
        for (publishers, batch) in [(1, 1), (16, 1), (64, 1), (256, 1), (4, 10), (4, 100), (4, 1000)] {
            loads.push(Load {
                mode,
                publishers,
                batch,
                rate: 0,
                reader: false,
            });
        }
    }
    for reader in [false, true] {
        loads.push(Load {
            mode: Durability::Fsync,
            publishers: 16,
            batch: 100,
            rate: 100_000_000 / VALUE.len() as u64,
            reader,
        });
    }
    loads
}

impl Load {
    fn name(&self) -> String {
        let mut name = format!("{} {} x {}", self.mode.name(), self.publishers, self.batch);
        if self.rate > 0 {
            name += " at 100 MB/s";
        }
        if self.reader {
            name += ", reader";
        }
        name
    }
}

impl Bench {
    fn open(io: &str) -> Bench {
        let folder = support::folder().join(format!("{io}-{}", std::process::id()));
        let disk: Arc<dyn Disk> = match io {
            "blocking" => Arc::new(FolderDisk::open(&folder).unwrap()),
            other => panic!("--io {other}: there is only `blocking`"),
        };
        let disk = Arc::new(Counted::new(disk));
        let options = LogOptions {
            folder: folder.display().to_string(),
            ..LogOptions::default()
        };
        Bench {
            io: io.to_owned(),
            log: Arc::new(EmbeddedLog::open(disk.clone(), 1, &options).unwrap()),
            disk,
            folder,
        }
    }

    /// Writes until commit files are reused.
    async fn prepare(&self) {
        for mode in [Durability::Fsync, Durability::Interval, Durability::Os] {
            for n in 0..PARTITIONS {
                self.log.create(partition(mode, n), mode).await.unwrap();
            }
        }
        let load = Load {
            mode: Durability::Os,
            publishers: 4,
            batch: 1000,
            rate: 0,
            reader: false,
        };
        for _ in 0..4 {
            let renames = self.disk.renames.load(Relaxed);
            while self.disk.renames.load(Relaxed) < renames + 4 {
                self.run(&load, 0.2).await;
            }
            // Until all spare files are filled.
            let mut written = 0;
            while written != self.disk.written.load(Relaxed) {
                written = self.disk.written.load(Relaxed);
                tokio::time::sleep(WARM_UP).await;
            }
        }
        self.log.sync().await.unwrap();
    }

    async fn run(&self, load: &Load, seconds: f64) -> Measured {
        if load.reader {
            self.fill(load.mode).await;
        }
        let stop = Arc::new(AtomicBool::new(false));
        let counting = Arc::new(AtomicBool::new(false));
        let messages = Arc::new(AtomicU64::new(0));
        let tasks: Vec<_> = (0..load.publishers)
            .map(|n| {
                let publisher = Publisher {
                    log: self.log.clone(),
                    partition: partition(load.mode, n as u32 % PARTITIONS),
                    batch: load.batch,
                    pause: pause(load),
                    stop: stop.clone(),
                    counting: counting.clone(),
                    messages: messages.clone(),
                };
                tokio::spawn(publisher.run())
            })
            .collect();
        let trimmer = tokio::spawn(trim(self.log.clone(), load.mode, stop.clone(), load.reader));
        let (log, mode, ends, read) = (self.log.clone(), load.mode, stop.clone(), Arc::new(AtomicU64::new(0)));
        let (counted, folder) = (read.clone(), self.folder.clone());
        let reader = load
            .reader
            .then(|| std::thread::spawn(move || read_behind(&log, mode, &folder, &ends, &counted)));
        tokio::time::sleep(WARM_UP).await;
        let before = self.counts(&messages, &read);
        counting.store(true, Relaxed);
        tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
        counting.store(false, Relaxed);
        let after = self.counts(&messages, &read);
        stop.store(true, Relaxed);
        let mut latency = Histogram::default();
        for task in tasks {
            latency.add(&task.await.unwrap());
        }
        trimmer.await.unwrap();
        if let Some(reader) = reader {
            reader.join().unwrap();
        }
        // Unread data must not hold files while other partitions are measured.
        for n in 0..PARTITIONS {
            let id = partition(load.mode, n);
            self.log.trim(id, self.log.bounds(id).unwrap().next).unwrap();
        }
        Measured::of(&before, &after, &latency)
    }

    /// Enough data that what a reader reads is not in the log's memory.
    async fn fill(&self, mode: Durability) {
        for n in 0..PARTITIONS {
            for _ in 0..5 * KEPT / 1000 {
                let unit = WriteBatch::of(partition(mode, n), batch_of(1000));
                self.log.append(unit).await.unwrap();
            }
        }
    }

    fn counts(&self, messages: &AtomicU64, read: &AtomicU64) -> Counts {
        Counts {
            at: Instant::now(),
            cpu: cpu_time(),
            messages: messages.load(Relaxed),
            allocations: alloc::allocated().0,
            syncs: self.disk.syncs.load(Relaxed),
            written: self.disk.written.load(Relaxed),
            read: read.load(Relaxed),
        }
    }
}

fn partition(mode: Durability, n: u32) -> PartitionId {
    PartitionId::new(1 + mode as u32, n)
}

/// The time between the starts of two appends of one publisher.
fn pause(load: &Load) -> Option<Duration> {
    let each = load.publishers as f64 * load.batch as f64 / load.rate as f64;
    (load.rate > 0).then(|| Duration::from_secs_f64(each))
}

struct Publisher {
    log: Arc<EmbeddedLog>,
    partition: PartitionId,
    batch: usize,
    pause: Option<Duration>,
    stop: Arc<AtomicBool>,
    counting: Arc<AtomicBool>,
    messages: Arc<AtomicU64>,
}

impl Publisher {
    async fn run(self) -> Histogram {
        let mut latency = Histogram::default();
        let mut due = Instant::now();
        while !self.stop.load(Relaxed) {
            let began = match self.pause {
                Some(pause) => {
                    due += pause;
                    tokio::time::sleep_until(due.into()).await;
                    Instant::now()
                }
                None => Instant::now(),
            };
            let unit = WriteBatch::of(self.partition, batch_of(self.batch));
            self.log.append(unit).await.unwrap();
            if self.counting.load(Relaxed) {
                latency.record(began.elapsed());
            }
            self.messages.fetch_add(self.batch as u64, Relaxed);
        }
        latency
    }
}

fn batch_of(len: usize) -> Records {
    let mut records = Records::with_capacity(len * (VALUE.len() + 32));
    for _ in 0..len {
        records.push(&RecordRef::of(TIME, &VALUE)).unwrap();
    }
    records
}

/// Simulates consumers that are slightly behind or, with a reader, a few files behind.
async fn trim(log: Arc<EmbeddedLog>, mode: Durability, stop: Arc<AtomicBool>, reader: bool) {
    let kept = if reader { 20 * KEPT } else { KEPT };
    while !stop.load(Relaxed) {
        for n in 0..PARTITIONS {
            let id = partition(mode, n);
            let next = log.bounds(id).unwrap().next;
            log.trim(id, next.saturating_sub(kept)).unwrap();
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Reads the oldest records repeatedly from disk, after dropping them from the page cache.
fn read_behind(log: &EmbeddedLog, mode: Durability, folder: &Path, stop: &AtomicBool, read: &AtomicU64) {
    while !stop.load(Relaxed) {
        support::forget(folder);
        for n in 0..PARTITIONS {
            let id = partition(mode, n);
            let mut from = log.bounds(id).unwrap().first;
            for _ in 0..32 {
                let Ok(frames) = log.read(id, from, 1 << 20) else {
                    break;
                };
                let Some(last) = frames.last() else {
                    break;
                };
                from = last.header.next();
                read.fetch_add(frames.iter().map(|frame| frame.body.len() as u64).sum(), Relaxed);
            }
        }
    }
}

struct Counts {
    at: Instant,
    cpu: Duration,
    messages: u64,
    allocations: u64,
    syncs: u64,
    written: u64,
    read: u64,
}

impl Measured {
    fn of(before: &Counts, after: &Counts, latency: &Histogram) -> Measured {
        let seconds = (after.at - before.at).as_secs_f64();
        let messages = (after.messages - before.messages) as f64;
        let syncs = (after.syncs - before.syncs) as f64;
        Measured {
            messages_per_second: messages / seconds,
            cpu_us: (after.cpu - before.cpu).as_secs_f64() * 1e6 / messages,
            allocations: (after.allocations - before.allocations) as f64 / messages,
            syncs_per_second: syncs / seconds,
            messages_per_sync: messages / syncs,
            amplification: (after.written - before.written) as f64 / (messages * VALUE.len() as f64),
            latency_us: [0.5, 0.99, 0.999, 1.0].map(|part| latency.quantile(part).as_secs_f64() * 1e6),
            read_mb_per_second: (after.read - before.read) as f64 / seconds / 1e6,
        }
    }

    fn median(runs: &[Measured]) -> Measured {
        let of = |field: &dyn Fn(&Measured) -> f64| {
            let mut values: Vec<f64> = runs.iter().map(field).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        Measured {
            messages_per_second: of(&|one| one.messages_per_second),
            cpu_us: of(&|one| one.cpu_us),
            allocations: of(&|one| one.allocations),
            syncs_per_second: of(&|one| one.syncs_per_second),
            messages_per_sync: of(&|one| one.messages_per_sync),
            amplification: of(&|one| one.amplification),
            latency_us: [0, 1, 2, 3].map(|n: usize| of(&|one| one.latency_us[n])),
            read_mb_per_second: of(&|one| one.read_mb_per_second),
        }
    }
}

fn print(name: &str, measured: &Measured) {
    let [p50, p99, p999, max] = measured.latency_us;
    print!(
        "{name:<34} {:>9.0} {:>8.2} {:>7.2} {:>7.0} {:>8.1} {:>6.2} {p50:>8.0} {p99:>8.0} {p999:>8.0} {max:>8.0}",
        measured.messages_per_second,
        measured.cpu_us,
        measured.allocations,
        measured.syncs_per_second,
        measured.messages_per_sync,
        measured.amplification,
    );
    if measured.read_mb_per_second > 0.0 {
        print!("  {:.0} MB/s read", measured.read_mb_per_second);
    }
    println!();
}
