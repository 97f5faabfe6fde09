//! Realistic variants in memory: payloads copied, each step alone, at every depth, and event-driven from end to end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use bytes::Bytes;
use thalweg_queue::members::MemberKind;
use thalweg_queue::settings::{Overflow, QueueOrdering, QueueSettings};
use thalweg_queue::{ClaimRequest, NewMessage, Queue};

use crate::harness::{Bench, Measured, Session, long_row, measure, percentiles, row};
use crate::histogram::Histogram;
use crate::reference::{Consumers, message, put};

const OPS: u64 = 100_000;
const BYTES: usize = 256;
const BATCH: usize = 100;
/// Producers wait while this many messages are in the queue.
const DEPTH_MAX: u64 = 100_000;
const DEPTHS: [(u64, &str); 5] = [
    (10, "_depth_10"),
    (1000, "_depth_1k"),
    (10_000, ""),
    (100_000, "_depth_100k"),
    (10_000_000, "_depth_10m"),
];
/// Costs are compared between these.
const FLAT: [&str; 3] = ["_depth_1k", "_depth_100k", "_depth_10m"];
/// Leased at once, as many at every depth: only the depth may make a difference.
const IN_HAND: u64 = 1000;
/// Delay of a nacked message: long enough for the timers, short compared to the end of the row.
const NACK_DELAY: Duration = Duration::from_millis(100);

pub fn run(session: &Session) {
    for size in [BYTES, 65_536] {
        let name = if size == BYTES {
            "enqueue_copied"
        } else {
            "enqueue_copied_64k"
        };
        row(session, name, || {
            let bench = Bench::in_memory();
            let queue = bench.queue("q", 10, QueueOrdering::Partition, &["g"]);
            let payload: Vec<u8> = (0..size).map(|n| n as u8).collect();
            let ops = if size == BYTES { OPS } else { OPS / 20 };
            measure(|| {
                for _ in 0..ops {
                    put(&queue, &NewMessage::of(Bytes::copy_from_slice(&payload)));
                }
                (ops, ops)
            })
        });
    }
    for (depth, suffix) in DEPTHS {
        at_depth(session, depth, suffix);
    }
    let plain = Sustained::default();
    let nacked = Sustained {
        nacked_each: Some(100),
        ..plain
    };
    // Alternating, so that other load on the machine affects both.
    let names = ["sustained_memory", "sustained_nack_1"];
    if names.iter().any(|name| session.wants(name)) {
        let runs = (0..session.runs()).map(|_| (sustained(session, &plain), sustained(session, &nacked)));
        let (mut without, mut with): (Vec<_>, Vec<_>) = runs.unzip();
        row(session, "sustained_memory", || without.pop().unwrap_or_default());
        row(session, "sustained_nack_1", || with.pop().unwrap_or_default());
    }
    let keyed = Sustained { keyed: true, ..plain };
    long_row(session, "sustained_memory_keyed", || sustained(session, &keyed));
    long_row(session, "sustained_memory_4x4", || event_driven(session));
}

/// Compares these rows.
pub fn compare(session: &Session) {
    for step in ["claim", "ack", "claim_batch_100", "ack_batch_100"] {
        let rows: Vec<String> = FLAT.iter().map(|suffix| format!("{step}{suffix}")).collect();
        session.spread(
            &format!("{step}_flatness"),
            &rows,
            Measured::cpu_per_message,
            "CPU per message, the dearest of depths 1000, 100,000 and 10,000,000 over the cheapest",
        );
    }
    session.compare(
        "sustained_nack_1/sustained_memory",
        "sustained_nack_1",
        "sustained_memory",
        Measured::messages_per_second,
        "messages per second with 1 % nacked once, over those with none",
    );
}

/// Claims, acks, and all three steps, with this many messages waiting.
fn at_depth(session: &Session, depth: u64, suffix: &str) {
    let names = [
        "enqueue",
        "claim",
        "ack",
        "publish_deliver_ack",
        "claim_batch_100",
        "ack_batch_100",
    ]
    .map(|name| format!("{name}{suffix}"));
    if !names.iter().any(|name| session.wants(name)) {
        return;
    }
    let bench = Bench::in_memory();
    let queue = bench.queue("q", 1, QueueOrdering::Partition, &["g"]);
    let message = message(BYTES, false);
    (0..depth).for_each(|_| put(&queue, &message));
    let mut consumers = Consumers::new(&bench, &queue, 1);
    let [enqueue, claim, ack, all, claim_batch, ack_batch] = &names;
    // In this order each step leaves the depth as it was, except for the few in hand.
    let ops = IN_HAND.min(depth);
    let rounds = (OPS / ops).max(1);
    let mut claims = Vec::new();
    let mut acks = Vec::new();
    let mut enqueues = Vec::new();
    for _ in 0..session.runs() {
        let (mut claimed, mut acked, mut put_back) = (Sum::default(), Sum::default(), Sum::default());
        for _ in 0..rounds {
            claimed.add(measure(|| {
                let moved = (0..ops).map(|_| consumers.take(1)).sum();
                (ops, moved)
            }));
            acked.add(measure(|| {
                let moved = consumers.taken.len() as u64;
                consumers.ack_all();
                (moved, moved)
            }));
            put_back.add(measure(|| {
                (0..ops).for_each(|_| put(&queue, &message));
                (ops, ops)
            }));
        }
        claims.push(claimed.0);
        acks.push(acked.0);
        enqueues.push(put_back.0);
    }
    let next = |runs: &mut Vec<Measured>| runs.pop().unwrap_or_default();
    row(session, enqueue, || next(&mut enqueues));
    row(session, claim, || next(&mut claims));
    row(session, ack, || next(&mut acks));
    row(session, all, || {
        let mut one = || {
            put(&queue, &message);
            let moved = consumers.take(1);
            consumers.ack_all();
            moved
        };
        let mut measured = measure(|| (OPS, (0..OPS).map(|_| one()).sum()));
        // Separate, because reading the clock costs a tenth of what is timed.
        let mut times = Histogram::default();
        for _ in 0..OPS {
            let start = Instant::now();
            one();
            times.record(start.elapsed());
        }
        measured.percentiles = Some(percentiles(&times));
        measured
    });
    if depth < BATCH as u64 {
        return;
    }
    let (mut claims, mut acks) = (Vec::new(), Vec::new());
    for _ in 0..session.runs() {
        let (mut claimed, mut acked) = (Sum::default(), Sum::default());
        for _ in 0..OPS / BATCH as u64 {
            claimed.add(measure(|| (1, consumers.take(BATCH as u32))));
            acked.add(measure(|| (1, consumers.settle_all(&bench))));
            (0..BATCH).for_each(|_| put(&queue, &message));
        }
        claims.push(claimed.0);
        acks.push(acked.0);
    }
    row(session, claim_batch, || next(&mut claims));
    row(session, ack_batch, || next(&mut acks));
}

#[derive(Default)]
struct Sum(Measured);

impl Sum {
    fn add(&mut self, one: Measured) {
        let sum = &mut self.0;
        sum.ops += one.ops;
        sum.moved += one.moved;
        sum.wall += one.wall;
        sum.cpu += one.cpu;
        sum.bytes += one.bytes;
        sum.allocations += one.allocations;
    }
}

/// How messages go through a queue for a time.
#[derive(Clone, Copy, Default)]
struct Sustained {
    /// Each has one of ten thousand keys.
    keyed: bool,
    /// One in this many is nacked, and is redelivered after [`NACK_DELAY`].
    nacked_each: Option<u64>,
}

/// One thread produces, another claims a hundred at a time and acks them, both as fast as they can.
fn sustained(session: &Session, how: &Sustained) -> Measured {
    let bench = Bench::in_memory();
    let queue = bench.queue("q", 10, QueueOrdering::Partition, &["g"]);
    let mut consumers = Consumers::new(&bench, &queue, 1);
    let (stop, produced) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut pass = || {
        let taken = consumers.take(BATCH as u32);
        let nacked = how
            .nacked_each
            .map_or(0, |each| consumers.nack(&bench, each, NACK_DELAY));
        consumers.ack_all();
        if taken == 0 {
            std::thread::yield_now();
        }
        taken - nacked
    };
    std::thread::scope(|scope| {
        let producer = scope.spawn(|| produce(&queue, how, &stop, &produced));
        let until = Instant::now() + Duration::from_secs_f64(session.seconds());
        let mut acked = 0;
        let measured = measure(|| {
            while Instant::now() < until {
                acked += pass();
            }
            (acked, acked)
        });
        stop.store(true, SeqCst);
        // Nacked messages that are not redelivered count as lost.
        while !producer.is_finished() || acked < produced.load(SeqCst) {
            acked += pass();
        }
        assert_eq!(acked, produced.load(SeqCst), "every message is acked once");
        measured
    })
}

/// Produces as fast as it can, while there is room.
fn produce(queue: &Arc<Queue>, how: &Sustained, stop: &AtomicBool, produced: &AtomicU64) {
    let plain = message(BYTES, false);
    let keys: Vec<Bytes> = (0..10_000).map(|n| Bytes::from(format!("key-{n}"))).collect();
    let mut n = 0;
    while !stop.load(SeqCst) {
        for _ in 0..1000 {
            let mut message = plain.clone();
            if how.keyed {
                message.key = keys.get(n as usize % keys.len()).cloned();
            }
            put(queue, &message);
            n += 1;
        }
        produced.store(n, SeqCst);
        // A queue without a bound would only measure the allocator.
        while queue.depth() > DEPTH_MAX && !stop.load(SeqCst) {
            std::thread::yield_now();
        }
    }
}

/// Four producers and four consumers as tasks that wait for each other: producers while the queue is full, consumers
/// while it has nothing for them. There is no polling.
fn event_driven(session: &Session) -> Measured {
    let bench = Bench::in_memory_tasks();
    let limits = QueueSettings {
        max_depth: DEPTH_MAX,
        overflow: Overflow::Block,
        ..QueueSettings::default()
    };
    let queue = bench.queue_of("q", 10, QueueOrdering::Partition, &["g"], limits);
    let until = Instant::now() + Duration::from_secs_f64(session.seconds());
    let still_producing = Arc::new(AtomicU64::new(4));
    measure(|| {
        let producers: Vec<_> = (0..4)
            .map(|_| {
                bench
                    .runtime
                    .spawn(producer(queue.clone(), until, still_producing.clone()))
            })
            .collect();
        let consumers: Vec<_> = (0..4)
            .map(|n| bench.runtime.spawn(consumer(queue.clone(), n, still_producing.clone())))
            .collect();
        bench.runtime.block_on(async {
            let (mut produced, mut acked) = (0, 0);
            for task in producers {
                produced += task.await.unwrap();
            }
            for task in consumers {
                acked += task.await.unwrap();
            }
            assert_eq!(produced, acked, "every message is acked once");
            (acked, acked)
        })
    })
}

async fn producer(queue: Arc<Queue>, until: Instant, still_producing: Arc<AtomicU64>) -> u64 {
    let (message, mut produced) = (message(BYTES, false), 0);
    while Instant::now() < until {
        for _ in 0..BATCH {
            queue.produce(message.clone()).await.unwrap();
            produced += 1;
        }
        // In memory nothing waits; yield to the other tasks of this thread.
        tokio::task::yield_now().await;
    }
    still_producing.fetch_sub(1, SeqCst);
    produced
}

async fn consumer(queue: Arc<Queue>, n: usize, still_producing: Arc<AtomicU64>) -> u64 {
    let (group, name, mut acked) = (queue.group("g").unwrap(), format!("c{n}"), 0);
    let want = ClaimRequest {
        max: BATCH as u32,
        wait: Duration::from_millis(200),
        ..ClaimRequest::default()
    };
    while still_producing.load(SeqCst) > 0 || queue.depth() > 0 {
        let taken = queue.claim(&group, &name, MemberKind::Pipeline, want).await.unwrap();
        for delivery in &taken {
            let (partition, offset) = (delivery.partition, delivery.message.offset);
            queue.ack(&group, partition, offset, delivery.delivery).unwrap();
        }
        acked += taken.len() as u64;
        tokio::task::yield_now().await;
    }
    acked
}
