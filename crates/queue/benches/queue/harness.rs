//! Measuring and printing: wall time, CPU time, allocations, and percentiles of single calls.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use thalweg_log::disk::FolderDisk;
use thalweg_log::{Durability, EmbeddedLog, LogOptions};
use thalweg_queue::settings::{GroupMode, GroupSettings, QueueOrdering, QueueSettings};
use thalweg_queue::{Queue, Queues, QueuesOptions};
use thalweg_telemetry::{alloc, cpu_time};

use crate::environment;
use crate::histogram::Histogram;

/// The requested options, and the results so far.
pub struct Session {
    json: bool,
    pub quick: bool,
    /// Only rows whose name contains it.
    only: Option<String>,
    /// For the durable rows; on a real disk.
    pub folder: PathBuf,
    /// The process runs only one row, for rows that need that.
    pub is_alone: bool,
    rows: RefCell<HashMap<String, Measured>>,
}

impl Session {
    pub fn parse() -> Session {
        let mut session = Session {
            json: false,
            quick: false,
            only: None,
            folder: environment::bench_folder(),
            is_alone: false,
            rows: RefCell::default(),
        };
        for word in std::env::args().skip(1) {
            match word.as_str() {
                "--json" => session.json = true,
                "--quick" => session.quick = true,
                "--alone" => session.is_alone = true,
                "--bench" => {}
                name => session.only = Some(name.to_owned()),
            }
        }
        session
    }

    pub fn wants(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| name.contains(only.as_str()))
    }

    /// How often a row is measured; the median is reported.
    pub fn runs(&self) -> usize {
        if self.quick { 3 } else { 7 }
    }

    /// Duration of a row that runs for a time.
    pub fn seconds(&self) -> f64 {
        if self.quick { 1.0 } else { 4.0 }
    }

    /// A line for people: in the table, or on stderr if the table is for machines.
    pub fn say(&self, line: &str) {
        if self.json {
            eprintln!("{line}");
        } else {
            println!("{line}");
        }
    }

    fn tell(&self, value: &Value) {
        if self.json {
            println!("{value}");
        }
    }

    pub fn head(&self) {
        let facts = environment::facts(&self.folder);
        self.say(&environment::text(&facts));
        self.say(&format!(
            "\n{:<34} {:>11} {:>11} {:>9} {:>9} {:>8} {:>8} {:>12}",
            "row", "wall ns/op", "CPU ns/op", "wall/msg", "bytes", "allocs", "msg/op", "messages/s"
        ));
        let facts: serde_json::Map<_, _> = facts
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value.into()))
            .collect();
        self.tell(&json!({"head": facts}));
    }

    /// Compares two rows; prints nothing if one of them was not measured.
    pub fn compare(&self, name: &str, of: &str, with: &str, figure: impl Fn(&Measured) -> f64, text: &str) {
        let rows = self.rows.borrow();
        let (Some(of), Some(with)) = (rows.get(of), rows.get(with)) else {
            return;
        };
        self.ratio(name, figure(of) / figure(with), text);
    }

    /// The largest figure of some rows over the smallest.
    pub fn spread(&self, name: &str, of: &[String], figure: impl Fn(&Measured) -> f64, text: &str) {
        let rows = self.rows.borrow();
        let figures: Option<Vec<f64>> = of.iter().map(|row| rows.get(row).map(&figure)).collect();
        if let Some(figures) = figures {
            let (most, least) = (
                figures.iter().copied().fold(0.0, f64::max),
                figures.iter().copied().fold(f64::MAX, f64::min),
            );
            self.ratio(name, most / least, text);
        }
    }

    fn ratio(&self, name: &str, value: f64, text: &str) {
        self.say(&format!("{name}: {value:.2} ({text})"));
        self.tell(&json!({"ratio": name, "value": value, "text": text}));
    }

    /// Ends the program.
    pub fn refuse(&self, error: &str) -> ! {
        self.tell(&json!({"error": error}));
        eprintln!("error: {error}");
        std::process::exit(1)
    }
}

/// The result of one run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Measured {
    pub ops: u64,
    /// Messages that really moved.
    pub moved: u64,
    pub wall: Duration,
    pub cpu: Duration,
    pub bytes: u64,
    pub allocations: u64,
    /// Calls among `ops` that moved nothing, and their total time.
    pub empty: (u64, Duration),
    /// Of single calls, in nanoseconds: 50, 95, 99, 99.9 percent, and the maximum.
    pub percentiles: Option<[f64; 5]>,
    pub on_disk: Option<OnDisk>,
    pub memory: Option<Memory>,
}

/// The log's counters for a row on a disk.
#[derive(Clone, Copy, Debug)]
pub struct OnDisk {
    pub durability: &'static str,
    pub syncs: u64,
    /// Written in blocks, and moved between files.
    pub written: u64,
    /// Bytes of payloads.
    pub payload: u64,
}

/// Memory of this process, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    pub resident: u64,
    /// The peak since the row began.
    pub peak: u64,
}

impl Memory {
    pub fn now() -> Memory {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let of = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let kib = line.and_then(|rest| rest.split_whitespace().nth(1)?.parse::<u64>().ok());
            kib.unwrap_or_default() * 1024
        };
        Memory {
            resident: of("VmRSS"),
            peak: of("VmHWM"),
        }
    }

    /// Resets the peak.
    pub fn begin() {
        let _ = std::fs::write("/proc/self/clear_refs", "5");
    }
}

impl Measured {
    pub fn cpu_per_message(&self) -> f64 {
        per(self.cpu, self.moved)
    }

    /// Wall time per message, without the calls that found nothing.
    pub fn wall_per_message(&self) -> f64 {
        per(self.wall.saturating_sub(self.empty.1), self.moved)
    }

    pub fn messages_per_second(&self) -> f64 {
        self.moved as f64 / self.wall.as_secs_f64()
    }

    fn per_op(&self, figure: u64) -> f64 {
        figure as f64 / self.ops.max(1) as f64
    }

    fn json(&self, name: &str) -> Value {
        let mut value = json!({
            "name": name,
            "ops_per_second": self.ops as f64 / self.wall.as_secs_f64(),
            "messages_per_second": self.messages_per_second(),
            "wall_ns_per_op": per(self.wall, self.ops),
            "cpu_ns_per_op": per(self.cpu, self.ops),
            "wall_ns_per_message": self.wall_per_message(),
            "bytes_per_op": self.per_op(self.bytes),
            "allocs_per_op": self.per_op(self.allocations),
            "messages_per_op": self.per_op(self.moved),
            "seconds": self.wall.as_secs_f64(),
            "durability": self.on_disk.map_or("memory", |disk| disk.durability),
        });
        if self.empty.0 > 0 {
            value["empty_calls"] = self.empty.0.into();
            value["ns_per_empty_call"] = per(self.empty.1, self.empty.0).into();
        }
        if let Some(all) = self.percentiles {
            for (name, nanos) in ["p50_ns", "p95_ns", "p99_ns", "p999_ns", "max_ns"].into_iter().zip(all) {
                value[name] = nanos.into();
            }
        }
        if let Some(disk) = &self.on_disk {
            value["syncs_per_second"] = (disk.syncs as f64 / self.wall.as_secs_f64()).into();
            value["messages_per_sync"] = self.per_sync(disk).into();
            value["written_per_byte"] = (disk.written as f64 / disk.payload.max(1) as f64).into();
        }
        if let Some(memory) = &self.memory {
            value["resident_bytes"] = memory.resident.into();
            value["peak_resident_bytes"] = memory.peak.into();
        }
        value
    }

    fn per_sync(&self, disk: &OnDisk) -> f64 {
        self.moved as f64 / disk.syncs.max(1) as f64
    }

    fn text(&self, name: &str) -> String {
        let mut text = format!(
            "{name:<34} {:>11.0} {:>11.0} {:>9.0} {:>9.0} {:>8.3} {:>8.3} {:>12.0}",
            per(self.wall, self.ops),
            per(self.cpu, self.ops),
            self.wall_per_message(),
            self.per_op(self.bytes),
            self.per_op(self.allocations),
            self.per_op(self.moved),
            self.messages_per_second(),
        );
        if self.empty.0 > 0 {
            text += &format!(
                "  {} empty calls of {:.0} ns",
                self.empty.0,
                per(self.empty.1, self.empty.0)
            );
        }
        if let Some(disk) = &self.on_disk {
            text += &format!(
                "  {} {:.0} syncs/s {:.1} msg/sync {:.2} B/B",
                disk.durability,
                disk.syncs as f64 / self.wall.as_secs_f64(),
                self.per_sync(disk),
                disk.written as f64 / disk.payload.max(1) as f64
            );
        }
        if let Some(all) = self.percentiles {
            let [p50, p95, p99, p999, most] = all.map(|nanos| nanos / 1e3);
            text += &format!("  p50 {p50:.1} p95 {p95:.1} p99 {p99:.1} p99.9 {p999:.1} max {most:.1} us");
        }
        if let Some(memory) = &self.memory {
            let [resident, peak] = [memory.resident, memory.peak].map(|bytes| bytes >> 20);
            text += &format!("  {resident} MiB resident, {peak} at the most");
        }
        text
    }
}

fn per(time: Duration, count: u64) -> f64 {
    if count == 0 {
        return 0.0;
    }
    time.as_nanos() as f64 / count as f64
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
        ..Measured::default()
    }
}

/// Of all calls: 50, 95, 99, 99.9 percent, and the maximum.
pub fn percentiles(times: &Histogram) -> [f64; 5] {
    [0.5, 0.95, 0.99, 0.999, 1.0].map(|part| times.quantile(part).as_nanos() as f64)
}

/// Runs a row several times and prints the median by wall time.
pub fn row(session: &Session, name: &str, mut run: impl FnMut() -> Measured) {
    if !session.wants(name) {
        return;
    }
    let mut runs: Vec<Measured> = (0..session.runs()).map(|_| run()).collect();
    runs.sort_by(|one, other| per(one.wall, one.ops).total_cmp(&per(other.wall, other.ops)));
    print(session, name, &runs[runs.len() / 2]);
}

/// Like `row`, for a row that takes seconds: measured once.
pub fn long_row(session: &Session, name: &str, run: impl FnOnce() -> Measured) {
    if session.wants(name) {
        print(session, name, &run());
    }
}

fn print(session: &Session, name: &str, measured: &Measured) {
    session.say(&measured.text(name));
    session.tell(&measured.json(name));
    session.rows.borrow_mut().insert(name.to_owned(), *measured);
}

/// Queues on their own log, and a runtime.
pub struct Bench {
    pub runtime: tokio::runtime::Runtime,
    pub queues: Queues,
    pub log: Arc<EmbeddedLog>,
    folder: PathBuf,
}

impl Bench {
    /// One thread for waiting, because the benchmark's own threads do the work.
    pub fn in_memory() -> Bench {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        Bench::open(&mut runtime, Bench::no_disk(), Durability::Memory)
    }

    /// Tasks do the work, on as many threads as there are cores.
    pub fn in_memory_tasks() -> Bench {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        Bench::open(&mut runtime, Bench::no_disk(), Durability::Memory)
    }

    pub fn durable(session: &Session, durability: Durability) -> Bench {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let folder = session.folder.join(format!("queue-{}", std::process::id()));
        Bench::open(&mut runtime, folder, durability)
    }

    fn no_disk() -> PathBuf {
        std::env::temp_dir().join(format!("thalweg-bench-{}", std::process::id()))
    }

    fn open(runtime: &mut tokio::runtime::Builder, folder: PathBuf, durability: Durability) -> Bench {
        let runtime = runtime.enable_all().build().unwrap();
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
        let disk = Arc::new(FolderDisk::open(&folder).unwrap());
        let log = Arc::new(EmbeddedLog::open(disk, 1, &log_options).unwrap());
        let options = QueuesOptions {
            durability,
            auto_create: false,
            memory_bytes: u64::MAX,
            dedup_bytes: u64::MAX,
            state_bytes: u64::MAX,
        };
        let queues = runtime
            .block_on(Queues::open(log.clone(), log.clock(), options))
            .unwrap();
        Bench {
            runtime,
            queues,
            log,
            folder,
        }
    }

    pub fn queue(&self, name: &str, partitions: u32, ordering: QueueOrdering, groups: &[&str]) -> Arc<Queue> {
        self.queue_of(
            name,
            partitions,
            ordering,
            groups,
            QueueSettings {
                max_depth: 0,
                ..QueueSettings::default()
            },
        )
    }

    /// With limits as in `rest`.
    pub fn queue_of(
        &self,
        name: &str,
        partitions: u32,
        ordering: QueueOrdering,
        groups: &[&str],
        rest: QueueSettings,
    ) -> Arc<Queue> {
        let settings = QueueSettings {
            partitions,
            ordering,
            max_bytes: 0,
            max_in_flight: 1_000_000,
            max_pending: 1 << 22,
            groups: groups
                .iter()
                .map(|name| GroupSettings::new(name, GroupMode::Work))
                .collect(),
            ..rest
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
