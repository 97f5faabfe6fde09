//! On a real disk: closed-loop publishers of 256 B messages in every durability, from 1 to 256 of them, one message at
//! a time and in batches. Rows of one durability share a log, so that its files are reused as in a running process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::Bytes;
use thalweg_log::Durability;
use thalweg_queue::settings::QueueOrdering;
use thalweg_queue::{NewMessage, Queue};

use crate::harness::{Bench, Measured, OnDisk, Session, long_row, measure, percentiles};
use crate::histogram::Histogram;

pub const BYTES: usize = 256;
const PUBLISHERS: [usize; 4] = [1, 16, 64, 256];
const BATCHES: [usize; 4] = [1, 10, 100, 1000];
/// Before each row, until what the row before left is settled.
const PAUSE: Duration = Duration::from_millis(250);

struct Load {
    name: String,
    publishers: usize,
    batch: usize,
}

fn loads(durability: Durability) -> Vec<Load> {
    let mode = durability.name();
    let mut loads = Vec::new();
    for batch in BATCHES {
        for publishers in PUBLISHERS {
            let name = match (durability, batch) {
                (Durability::Fsync, 1) => format!("durable_publish_{publishers}"),
                _ => format!("{mode}_publish_{publishers}_batch_{batch}"),
            };
            loads.push(Load {
                name,
                publishers,
                batch,
            });
        }
        if durability == Durability::Fsync && batch > 1 {
            loads.push(Load {
                name: format!("durable_batch_{batch}"),
                publishers: 4,
                batch,
            });
        }
    }
    loads
}

const MODES: [Durability; 3] = [Durability::Fsync, Durability::Interval, Durability::Os];

pub fn is_wanted(session: &Session) -> bool {
    MODES.into_iter().flat_map(loads).any(|load| session.wants(&load.name))
}

pub fn run(session: &Session) {
    for durability in MODES {
        let loads = loads(durability);
        if !loads.iter().any(|load| session.wants(&load.name)) {
            continue;
        }
        let bench = Bench::durable(session, durability);
        let queue = bench.queue("q", 10, QueueOrdering::Partition, &["g"]);
        let warm_up = Load {
            name: String::new(),
            publishers: 4,
            batch: 1000,
        };
        publish(
            &bench,
            &queue,
            &warm_up,
            Duration::from_secs_f64(if session.quick { 1.0 } else { 4.0 }),
        );
        let time = Duration::from_secs_f64(if session.quick { 1.5 } else { 4.0 });
        for load in &loads {
            long_row(session, &load.name, || publish(&bench, &queue, load, time));
        }
    }
}

/// What the disk allows, against what was reached.
pub fn compare(session: &Session) {
    let rate = Measured::messages_per_second;
    session.compare(
        "durable_publish_1/disk_fdatasync",
        "durable_publish_1",
        "disk_fdatasync",
        rate,
        "messages of one publisher per fdatasync of one 4 KiB block that the disk allows in the same time",
    );
    session.compare(
        "durable_publish_1/disk_fdatasync_by_thread",
        "durable_publish_1",
        "disk_fdatasync_by_thread",
        rate,
        "the same, if a task has a thread of its own do the fdatasync",
    );
    let rate = |row: &Measured| row.on_disk.map_or(0.0, |disk| disk.payload as f64) / row.wall.as_secs_f64();
    session.compare(
        "durable_batch_1000/disk_write",
        "durable_batch_1000",
        "disk_write",
        rate,
        "payload per byte that a plain program writes and syncs in blocks of 1 MiB in the same time",
    );
}

/// Each publisher waits for its answer before it continues. Stored messages are trimmed behind them, as consumers
/// would, so that files are reused. Only answers within the time count; one op is one message, a percentile is of one
/// call.
fn publish(bench: &Bench, queue: &Arc<Queue>, load: &Load, time: Duration) -> Measured {
    let shared = Arc::new(Shared::default());
    let (runtime, batch) = (&bench.runtime, load.batch);
    let publishers: Vec<_> = (0..load.publishers)
        .map(|_| runtime.spawn(publisher(queue.clone(), batch, shared.clone())))
        .collect();
    let (emptied, ending) = (queue.clone(), shared.clone());
    let emptying = runtime.spawn(async move {
        while !ending.stop.load(Relaxed) {
            tokio::time::sleep(Duration::from_millis(100)).await;
            emptied.purge().await.unwrap();
        }
    });
    std::thread::sleep(PAUSE);
    shared.counting.store(true, Relaxed);
    let (before, done) = (bench.log.counters(), shared.messages.load(Relaxed));
    let mut measured = measure(|| {
        std::thread::sleep(time);
        let moved = shared.messages.load(Relaxed) - done;
        (moved, moved)
    });
    let after = bench.log.counters();
    shared.counting.store(false, Relaxed);
    shared.stop.store(true, Relaxed);
    let mut times = Histogram::default();
    runtime.block_on(async {
        for publisher in publishers {
            times.add(&publisher.await.unwrap());
        }
        emptying.await.unwrap();
    });
    measured.percentiles = Some(percentiles(&times));
    measured.on_disk = Some(OnDisk {
        durability: queue.durability().name(),
        syncs: after.sync_us.count() - before.sync_us.count(),
        written: after.commit_bytes.sum + after.moved_bytes - before.commit_bytes.sum - before.moved_bytes,
        payload: measured.moved * BYTES as u64,
    });
    measured
}

#[derive(Default)]
struct Shared {
    messages: AtomicU64,
    counting: AtomicBool,
    stop: AtomicBool,
}

async fn publisher(queue: Arc<Queue>, batch: usize, shared: Arc<Shared>) -> Histogram {
    let payload = Bytes::from(vec![7; BYTES]);
    let mut times = Histogram::default();
    while !shared.stop.load(Relaxed) {
        let begun = Instant::now();
        if batch == 1 {
            queue.produce(NewMessage::of(payload.clone())).await.unwrap();
        } else {
            let all = (0..batch).map(|_| NewMessage::of(payload.clone())).collect();
            queue.produce_all(all).await.unwrap();
        }
        shared.messages.fetch_add(batch as u64, Relaxed);
        if shared.counting.load(Relaxed) {
            times.record(begun.elapsed());
        }
    }
    times
}
