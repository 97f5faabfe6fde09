//! Honest variants in memory: payloads copied, each step alone, at every depth, and event-driven from end to end.

use std::time::{Duration, Instant};

use bytes::Bytes;
use thalweg_queue::NewMessage;
use thalweg_queue::settings::Ordering;

use crate::harness::{Bench, Measured, Options, long_row, measure, percentiles, row};
use crate::reference::{Consumers, message, put};

const OPS: u64 = 100_000;
const BYTES: usize = 256;

pub fn run(options: &Options) {
    for size in [BYTES, 65_536] {
        let name = if size == BYTES {
            "enqueue_copied"
        } else {
            "enqueue_copied_64k"
        };
        row(options, name, || {
            let bench = Bench::in_memory();
            let queue = bench.queue("q", 10, Ordering::Partition, &["g"]);
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
    let depths: &[(u64, &str)] = &[(10, "_depth_10"), (10_000, ""), (10_000_000, "_depth_10m")];
    for (depth, suffix) in depths {
        at_depth(options, *depth, suffix);
    }
    long_row(options, "sustained_memory", || sustained(options, false));
    long_row(options, "sustained_memory_keyed", || sustained(options, true));
}

/// Claims, acks, and all three steps, with so many messages waiting.
fn at_depth(options: &Options, depth: u64, suffix: &str) {
    let names = ["enqueue", "claim", "ack", "publish_deliver_ack"].map(|name| format!("{name}{suffix}"));
    if !names.iter().any(|name| options.wants(name)) {
        return;
    }
    let bench = Bench::in_memory();
    let queue = bench.queue("q", 1, Ordering::Partition, &["g"]);
    let message = message(BYTES, false);
    (0..depth).for_each(|_| put(&queue, &message));
    let mut consumers = Consumers::new(&bench, &queue, 1);
    let [enqueue, claim, ack, all] = &names;
    // In this order each leaves the depth as it was, but for the few in hand.
    let ops = OPS.min(depth.max(10));
    let rounds = (OPS / ops).max(1);
    let mut claims = Vec::new();
    let mut acks = Vec::new();
    let mut enqueues = Vec::new();
    for _ in 0..options.runs() {
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
    row(options, enqueue, || next(&mut enqueues));
    row(options, claim, || next(&mut claims));
    row(options, ack, || next(&mut acks));
    row(options, all, || {
        let mut one = || {
            put(&queue, &message);
            let moved = consumers.take(1);
            consumers.ack_all();
            moved
        };
        let mut measured = measure(|| (OPS, (0..OPS).map(|_| one()).sum()));
        // Apart, because asking for the time costs a tenth of what is timed.
        let mut times = Vec::with_capacity(OPS as usize);
        for _ in 0..OPS {
            let start = Instant::now();
            one();
            times.push(start.elapsed().as_nanos() as u64);
        }
        measured.percentiles = Some(percentiles(times));
        measured
    });
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

/// One thread produces, one takes a hundred at a time and acks them, as fast as both go.
fn sustained(options: &Options, keyed: bool) -> Measured {
    let bench = Bench::in_memory();
    let queue = bench.queue("q", 10, Ordering::Partition, &["g"]);
    let mut consumers = Consumers::new(&bench, &queue, 1);
    let until = Instant::now() + Duration::from_secs_f64(options.seconds());
    let keys: Vec<Bytes> = (0..10_000).map(|n| Bytes::from(format!("key-{n}"))).collect();
    measure(|| {
        let produced = std::sync::atomic::AtomicU64::new(0);
        let done = std::sync::atomic::AtomicBool::new(false);
        let mut acked = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let plain = message(BYTES, false);
                let mut n = 0u64;
                while Instant::now() < until {
                    for _ in 0..1000 {
                        let mut message = plain.clone();
                        if keyed {
                            message.key = keys.get(n as usize % keys.len()).cloned();
                        }
                        put(&queue, &message);
                        n += 1;
                    }
                    // A queue without a bound would only measure the allocator.
                    while queue.depth() > 100_000 {
                        std::thread::yield_now();
                    }
                }
                produced.store(n, std::sync::atomic::Ordering::SeqCst);
                done.store(true, std::sync::atomic::Ordering::SeqCst);
            });
            loop {
                let taken = consumers.take(100);
                consumers.ack_all();
                acked += taken;
                let finished = done.load(std::sync::atomic::Ordering::SeqCst);
                if finished && acked >= produced.load(std::sync::atomic::Ordering::SeqCst) {
                    break;
                }
                if taken == 0 {
                    std::thread::yield_now();
                }
            }
        });
        (acked, acked)
    })
}
