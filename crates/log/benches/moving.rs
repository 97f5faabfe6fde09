//! Measures how moving files affects commits: full files are moved into segments while one publisher awaits one durable
//! append after the other, at the default rate of maintenance and unthrottled. The runs alternate and are summed up.
//!
//! `moving [--runs 3] [--mib 384]`: the number of runs, and the amount of data to move. The folder is
//! `THALWEG_BENCH_DIR` or one under `~/.cache`.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use support::{Counted, Histogram};
use thalweg_log::disk::FolderDisk;
use thalweg_log::format::record::RecordRef;
use thalweg_log::{Durability, EmbeddedLog, LogOptions, PartitionId, Records, WriteBatch};

const STORED: PartitionId = PartitionId::new(1, 0);
const BUSY: PartitionId = PartitionId::new(1, 1);
const FILE: u64 = 64 << 20;
/// The pause between appends. Without it, the appends would fill files too.
const PAUSE: Duration = Duration::from_micros(500);
const IDLE: Duration = Duration::from_secs(5);
const MIB: f64 = (1 << 20) as f64;

/// What maintenance does during the measurement.
struct Row {
    name: &'static str,
    rate: u64,
    moves: bool,
    sum: Sum,
}

/// Sums over all runs.
#[derive(Default)]
struct Sum {
    latency: Histogram,
    seconds: f64,
    moved_mib: f64,
    written_mib: f64,
    syncs: f64,
    renames: f64,
}

fn main() {
    let (mut runs, mut mib) = (3, 384);
    let mut given = std::env::args().skip(1);
    while let Some(arg) = given.next() {
        match arg.as_str() {
            "--runs" => runs = given.next().unwrap().parse().unwrap(),
            "--mib" => mib = given.next().unwrap().parse().unwrap(),
            // An argument that cargo adds.
            _ => {}
        }
    }
    support::print_environment();
    let row = |name, rate, moves| Row {
        name,
        rate,
        moves,
        sum: Sum::default(),
    };
    let mut rows = [
        row("idle", 64 << 20, false),
        row("moves at 64 MiB/s", 64 << 20, true),
        row("moves without a limit", 0, true),
    ];
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    for _ in 0..runs {
        for row in &mut rows {
            runtime.block_on(run(row, mib << 20));
        }
    }
    println!(
        "maintenance            moved MiB/s  written MiB/s  syncs/s  renames/s   p50 us   p99 us p99.9 us   max us"
    );
    for Row { name, sum, .. } in &rows {
        let per_second = |all: f64| all / sum.seconds;
        let us = |part| sum.latency.quantile(part).as_micros();
        println!(
            "{name:<22} {:>11.1} {:>14.1} {:>8.0} {:>10.1} {:>8} {:>8} {:>8} {:>8}",
            per_second(sum.moved_mib),
            per_second(sum.written_mib),
            per_second(sum.syncs),
            per_second(sum.renames),
            us(0.5),
            us(0.99),
            us(0.999),
            us(1.0)
        );
    }
}

fn open(files_max: usize, rate: u64) -> (EmbeddedLog, Arc<Counted>) {
    let folder = support::folder().join("moving");
    let options = LogOptions {
        file_bytes: FILE,
        first_file_bytes: FILE,
        spare: 2,
        files_max,
        min_free_bytes: Some(0),
        io_bytes_per_second: rate,
        ..LogOptions::default()
    };
    let disk = Arc::new(Counted::new(Arc::new(FolderDisk::open(folder).unwrap())));
    (EmbeddedLog::open(disk.clone(), 7, &options).unwrap(), disk)
}

async fn append(log: &EmbeddedLog, id: PartitionId, value: &[u8]) {
    let mut records = Records::new();
    records.push(&RecordRef::of(1, value)).unwrap();
    log.append(WriteBatch::of(id, records)).await.unwrap();
}

/// Fills a log and keeps everything.
async fn fill(bytes: u64) {
    let (log, _) = open(usize::MAX, 0);
    log.create(STORED, Durability::Os).await.unwrap();
    log.create(BUSY, Durability::Fsync).await.unwrap();
    let value = vec![0x5a; 64 << 10];
    for _ in 0..bytes / value.len() as u64 {
        append(&log, STORED, &value).await;
    }
    append(&log, BUSY, &[0]).await;
    log.close();
}

async fn run(row: &mut Row, bytes: u64) {
    let folder = support::folder().join("moving");
    let _ = std::fs::remove_dir_all(&folder);
    fill(bytes).await;
    support::forget(&folder);
    // The newest full file is not moved.
    let moved = bytes / FILE * FILE - 2 * FILE;
    let (log, disk) = open(if row.moves { 0 } else { usize::MAX }, row.rate);
    let counts = || [&*disk.syncs, &*disk.written, &disk.renames].map(|count| count.load(Relaxed) as f64);
    let (started, before, sum) = (Instant::now(), counts(), &mut row.sum);
    let mut latency = Histogram::default();
    while if row.moves {
        log.counters().moved_bytes < moved
    } else {
        started.elapsed() < IDLE
    } {
        tokio::time::sleep(PAUSE).await;
        let start = Instant::now();
        append(&log, BUSY, &[0x5a; 256]).await;
        latency.record(start.elapsed());
    }
    sum.latency.add(&latency);
    sum.seconds += started.elapsed().as_secs_f64();
    let [syncs, written, renames] = counts();
    sum.syncs += syncs - before[0];
    sum.written_mib += (written - before[1]) / MIB;
    sum.renames += renames - before[2];
    sum.moved_mib += log.counters().moved_bytes as f64 / MIB;
    log.close();
    drop(log);
    let _ = std::fs::remove_dir_all(&folder);
}
