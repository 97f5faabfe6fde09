//! Measuring and printing: time of the clock and of the processor, allocations, and percentiles of single calls.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use thalweg_log::disk::Folder;
use thalweg_log::{Durability, EmbeddedLog, LogOptions};
use thalweg_queue::settings::{GroupMode, GroupSettings, Ordering, QueueSettings};
use thalweg_queue::{Queue, Queues, QueuesOptions, SystemClock};
use thalweg_telemetry::{alloc, cpu_time};

pub struct Options {
    pub json: bool,
    pub quick: bool,
    /// Only rows whose name contains it.
    pub only: Option<String>,
    /// Of the durable rows; on a real disk.
    pub folder: PathBuf,
}

impl Options {
    pub fn parse() -> Options {
        let mut options = Options {
            json: false,
            quick: false,
            only: None,
            folder: std::env::var_os("THALWEG_BENCH_DIR").map_or_else(default_folder, PathBuf::from),
        };
        for word in std::env::args().skip(1) {
            match word.as_str() {
                "--json" => options.json = true,
                "--quick" => options.quick = true,
                "--bench" => {}
                name => options.only = Some(name.to_owned()),
            }
        }
        options
    }

    pub fn wants(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| name.contains(only.as_str()))
    }

    /// How often a row is measured; the median is told.
    pub fn runs(&self) -> usize {
        if self.quick { 3 } else { 7 }
    }

    pub fn seconds(&self) -> f64 {
        if self.quick { 1.0 } else { 5.0 }
    }
}

fn default_folder() -> PathBuf {
    let home = std::env::var_os("HOME").map_or_else(std::env::temp_dir, PathBuf::from);
    home.join(".cache/thalweg/bench-queue")
}

/// What one run came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Measured {
    pub ops: u64,
    /// Messages that really moved.
    pub moved: u64,
    pub wall: Duration,
    pub cpu: Duration,
    pub bytes: u64,
    pub allocations: u64,
    /// Of single calls, in nanoseconds: 50, 95, 99, 99.9 percent, and the most.
    pub percentiles: Option<[f64; 5]>,
}

/// Measures `work`, which returns how many ops it did and how many messages moved.
pub fn measure(work: impl FnOnce() -> (u64, u64)) -> Measured {
    let (allocations, bytes) = alloc::allocated();
    let (cpu, start) = (cpu_time(), Instant::now());
    let (ops, moved) = work();
    let (wall, cpu) = (start.elapsed(), cpu_time() - cpu);
    let (allocations_after, bytes_after) = alloc::allocated();
    Measured {
        ops,
        moved,
        wall,
        cpu,
        bytes: bytes_after - bytes,
        allocations: allocations_after - allocations,
        percentiles: None,
    }
}

/// Sorted, as percentiles have to be.
pub fn percentiles(mut nanos: Vec<u64>) -> [f64; 5] {
    nanos.sort_unstable();
    let at = |part: f64| {
        let n = ((nanos.len() as f64 * part) as usize).min(nanos.len().saturating_sub(1));
        nanos.get(n).copied().unwrap_or_default() as f64
    };
    [at(0.5), at(0.95), at(0.99), at(0.999), at(1.0)]
}

/// Runs a row several times and prints the median by time of the clock.
pub fn row(options: &Options, name: &str, mut run: impl FnMut() -> Measured) {
    if !options.wants(name) {
        return;
    }
    let mut runs: Vec<Measured> = (0..options.runs()).map(|_| run()).collect();
    runs.sort_by(|one, other| per_op(one.wall, one.ops).total_cmp(&per_op(other.wall, other.ops)));
    let median = runs[runs.len() / 2];
    print(options, name, &median);
}

/// The same for what takes seconds: measured once.
pub fn long_row(options: &Options, name: &str, run: impl FnOnce() -> Measured) {
    if options.wants(name) {
        print(options, name, &run());
    }
}

fn per_op(time: Duration, ops: u64) -> f64 {
    time.as_nanos() as f64 / ops.max(1) as f64
}

fn print(options: &Options, name: &str, m: &Measured) {
    let (wall, cpu) = (per_op(m.wall, m.ops), per_op(m.cpu, m.ops));
    let (bytes, allocations) = (
        m.bytes as f64 / m.ops.max(1) as f64,
        m.allocations as f64 / m.ops.max(1) as f64,
    );
    let moved = m.moved as f64 / m.ops.max(1) as f64;
    let rate = m.moved as f64 / m.wall.as_secs_f64();
    if options.json {
        let mut value = serde_json::json!({
            "name": name,
            "ops_per_second": m.ops as f64 / m.wall.as_secs_f64(),
            "messages_per_second": rate,
            "wall_ns_per_op": wall,
            "cpu_ns_per_op": cpu,
            "bytes_per_op": bytes,
            "allocs_per_op": allocations,
            "messages_per_op": moved,
        });
        if let Some([p50, p95, p99, p999, most]) = m.percentiles {
            value["p50_ns"] = p50.into();
            value["p95_ns"] = p95.into();
            value["p99_ns"] = p99.into();
            value["p999_ns"] = p999.into();
            value["max_ns"] = most.into();
        }
        println!("{value}");
        return;
    }
    print!("{name:<34} {wall:>11.0} {cpu:>11.0} {bytes:>9.0} {allocations:>8.3} {moved:>9.3} {rate:>12.0}");
    if let Some([p50, p95, p99, p999, most]) = m.percentiles {
        print!("   p50 {p50:.0} p95 {p95:.0} p99 {p99:.0} p99.9 {p999:.0} max {most:.0} ns");
    }
    println!();
}

pub fn head(options: &Options) {
    if !options.json {
        println!(
            "{:<34} {:>11} {:>11} {:>9} {:>8} {:>9} {:>12}",
            "row", "wall ns/op", "CPU ns/op", "bytes", "allocs", "moved/op", "messages/s"
        );
    }
}

/// Queues on a log of their own, and the runtime that waits for it.
pub struct Bench {
    pub runtime: tokio::runtime::Runtime,
    pub queues: Queues,
    pub log: Arc<EmbeddedLog>,
    folder: PathBuf,
}

impl Bench {
    /// One thread for what waits: in memory nothing does.
    pub fn in_memory() -> Bench {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let folder = std::env::temp_dir().join(format!("thalweg-bench-{}", std::process::id()));
        Bench::open(runtime, folder, Durability::Memory)
    }

    pub fn durable(options: &Options, durability: Durability) -> Bench {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let folder = options.folder.join(format!("run-{}", std::process::id()));
        Bench::open(runtime, folder, durability)
    }

    fn open(runtime: tokio::runtime::Runtime, folder: PathBuf, durability: Durability) -> Bench {
        let _ = std::fs::remove_dir_all(&folder);
        let in_memory = durability == Durability::Memory;
        let log_options = LogOptions {
            min_free_bytes: Some(0),
            // Nothing is stored there.
            file_bytes: if in_memory { 1 << 20 } else { 128 << 20 },
            first_file_bytes: if in_memory { 1 << 20 } else { 128 << 20 },
            spare: if in_memory { 1 } else { 4 },
            ..LogOptions::default()
        };
        let disk = Arc::new(Folder::open(&folder).unwrap());
        let log = Arc::new(EmbeddedLog::open(disk, 1, &log_options).unwrap());
        let options = QueuesOptions {
            durability,
            auto_create: false,
        };
        let queues = runtime
            .block_on(Queues::open(log.clone(), Arc::new(SystemClock), options))
            .unwrap();
        Bench {
            runtime,
            queues,
            log,
            folder,
        }
    }

    pub fn queue(&self, name: &str, partitions: u32, ordering: Ordering, groups: &[&str]) -> Arc<Queue> {
        let settings = QueueSettings {
            partitions,
            ordering,
            max_depth: 0,
            max_bytes: 0,
            max_in_flight: 1_000_000,
            max_pending: 1 << 22,
            groups: groups
                .iter()
                .map(|name| GroupSettings::new(name, GroupMode::Work))
                .collect(),
            ..QueueSettings::default()
        };
        self.runtime.block_on(self.queues.create(name, settings)).unwrap()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.log.close();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
