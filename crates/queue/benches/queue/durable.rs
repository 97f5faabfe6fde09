//! On a real disk: closed-loop publishers of 256 B messages, one at a time and in batches, in every durability.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use thalweg_log::Durability;
use thalweg_queue::NewMessage;
use thalweg_queue::settings::Ordering as Order;

use crate::harness::{Bench, Measured, Options, long_row, measure, percentiles};

const BYTES: usize = 256;

pub fn run(options: &Options) {
    for publishers in [1, 16, 64, 256] {
        long_row(options, &format!("durable_publish_{publishers}"), || {
            publish(options, Durability::Fsync, publishers, 1)
        });
    }
    for batch in [10, 100, 1000] {
        long_row(options, &format!("durable_batch_{batch}"), || {
            publish(options, Durability::Fsync, 4, batch)
        });
    }
    for durability in [Durability::Interval, Durability::Os] {
        for (publishers, batch) in [(64, 1), (4, 1000)] {
            let name = format!("{}_publish_{publishers}_batch_{batch}", durability.name());
            long_row(options, &name, || publish(options, durability, publishers, batch));
        }
    }
}

/// Each waits for its answer before it goes on. What was stored is let go behind them, as consumers would, so that files
/// are used again.
fn publish(options: &Options, durability: Durability, publishers: usize, batch: usize) -> Measured {
    let bench = Bench::durable(options, durability);
    let queue = bench.queue("q", 10, Order::Partition, &["g"]);
    let payload = Bytes::from(vec![7; BYTES]);
    let (messages, times) = (Arc::new(AtomicU64::new(0)), Arc::new(Mutex::new(Vec::new())));
    let warm_up = Duration::from_secs_f64(if options.quick { 1.5 } else { 4.0 });
    let runtime = &bench.runtime;
    let start = Instant::now();
    let (from, until) = (
        start + warm_up,
        start + warm_up + Duration::from_secs_f64(options.seconds()),
    );
    let tasks: Vec<_> = (0..publishers)
        .map(|_| {
            let (queue, payload) = (queue.clone(), payload.clone());
            let (messages, times) = (messages.clone(), times.clone());
            runtime.spawn(async move {
                let mut own = Vec::new();
                loop {
                    let begun = Instant::now();
                    if begun >= until {
                        break;
                    }
                    if batch == 1 {
                        queue.produce(NewMessage::of(payload.clone())).await.unwrap();
                    } else {
                        let all = (0..batch).map(|_| NewMessage::of(payload.clone())).collect();
                        queue.produce_all(all).await.unwrap();
                    }
                    if begun >= from {
                        messages.fetch_add(batch as u64, Ordering::Relaxed);
                        own.push(begun.elapsed().as_nanos() as u64);
                    }
                }
                times.lock().extend(own);
            })
        })
        .collect();
    let emptied = queue.clone();
    let emptying = runtime.spawn(async move {
        while Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(200)).await;
            emptied.purge().await.unwrap();
        }
    });
    std::thread::sleep(warm_up);
    let mut measured = measure(|| {
        runtime.block_on(async {
            for task in tasks {
                task.await.unwrap();
            }
        });
        let moved = messages.load(Ordering::Relaxed);
        (moved, moved)
    });
    runtime.block_on(emptying).unwrap();
    let times = std::mem::take(&mut *times.lock());
    measured.percentiles = Some(percentiles(times));
    measured
}
