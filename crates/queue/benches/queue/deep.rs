//! A durable queue with a depth of ten million messages: how fast it fills, how fast two groups drain it, and how much
//! memory that takes. It runs in its own process, because otherwise memory left by earlier rows would count.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::Bytes;
use thalweg_log::Durability;
use thalweg_queue::members::MemberKind;
use thalweg_queue::settings::QueueOrdering;
use thalweg_queue::{ClaimRequest, NewMessage, Queue, SettleAction};

use crate::durable::BYTES;
use crate::harness::{Bench, Measured, Memory, OnDisk, Session, long_row, measure, percentiles};
use crate::histogram::Histogram;

const DEPTH: u64 = 10_000_000;
const BATCH: usize = 1000;
const PRODUCERS: u64 = 4;
const GROUPS: [&str; 2] = ["one", "two"];
const CONSUMERS: usize = 2;
const FILL: &str = "durable_depth_10m_fill";
const WORK_OFF: &str = "durable_depth_10m";
/// For the messages, the spare files and the state of the groups.
const DISK_BYTES: u64 = 5 << 30;

pub fn is_wanted(session: &Session) -> bool {
    !session.quick && (session.wants(FILL) || session.wants(WORK_OFF))
}

pub fn run(session: &Session) {
    if session.is_alone {
        in_own_process(session);
    } else if is_wanted(session) {
        let own = std::env::current_exe().unwrap();
        let status = Command::new(own).args(std::env::args().skip(1)).arg("--alone").status();
        if !status.is_ok_and(|status| status.success()) {
            session.refuse("the row of ten million messages failed");
        }
    }
}

fn in_own_process(session: &Session) {
    let bench = Bench::durable(session, Durability::Fsync);
    let free = bench.log.counters().free_bytes;
    if free < DISK_BYTES {
        session.refuse(&format!(
            "{WORK_OFF} needs {} MiB of the disk, {} are free: set THALWEG_BENCH_DIR to a larger one",
            DISK_BYTES >> 20,
            free >> 20
        ));
    }
    let queue = bench.queue("q", 10, QueueOrdering::Partition, &GROUPS);
    long_row(session, FILL, || on_disk(&bench, DEPTH, || fill(&bench, &queue)));
    assert_eq!(queue.depth(), DEPTH, "a queue is as deep as it was filled");
    let all = DEPTH * GROUPS.len() as u64;
    long_row(session, WORK_OFF, || on_disk(&bench, all, || work_off(&bench, &queue)));
    assert_eq!(queue.depth(), 0, "every group has seen every message");
}

/// Measures with the counters of the log and with the memory at the end.
fn on_disk(bench: &Bench, messages: u64, work: impl FnOnce() -> Histogram) -> Measured {
    let (before, mut times) = (bench.log.counters(), Histogram::default());
    Memory::begin();
    let mut measured = measure(|| {
        times = work();
        (messages, messages)
    });
    let after = bench.log.counters();
    measured.memory = Some(Memory::now());
    measured.percentiles = Some(percentiles(&times));
    measured.on_disk = Some(OnDisk {
        durability: Durability::Fsync.name(),
        syncs: after.sync_us.count() - before.sync_us.count(),
        written: after.commit_bytes.sum + after.moved_bytes - before.commit_bytes.sum - before.moved_bytes,
        payload: messages * BYTES as u64,
    });
    measured
}

/// The times are those of batches.
fn fill(bench: &Bench, queue: &Arc<Queue>) -> Histogram {
    let producers: Vec<_> = (0..PRODUCERS)
        .map(|_| {
            let queue = queue.clone();
            bench.runtime.spawn(async move {
                let (payload, mut times) = (Bytes::from(vec![7; BYTES]), Histogram::default());
                for _ in 0..DEPTH / PRODUCERS / BATCH as u64 {
                    let batch = (0..BATCH).map(|_| NewMessage::of(payload.clone())).collect();
                    let begun = Instant::now();
                    queue.produce_all(batch).await.unwrap();
                    times.record(begun.elapsed());
                }
                times
            })
        })
        .collect();
    together(bench, producers)
}

/// Each group runs its consumers; a consumer's acks are durable before it claims the next batch. The times are those of
/// a claim and its acks.
fn work_off(bench: &Bench, queue: &Arc<Queue>) -> Histogram {
    let mut consumers = Vec::new();
    for name in GROUPS {
        let settled = Arc::new(AtomicU64::new(0));
        for n in 0..CONSUMERS {
            consumers.push(bench.runtime.spawn(consumer(queue.clone(), name, n, settled.clone())));
        }
    }
    together(bench, consumers)
}

async fn consumer(queue: Arc<Queue>, group: &'static str, n: usize, settled: Arc<AtomicU64>) -> Histogram {
    let (group, name, mut times) = (queue.group(group).unwrap(), format!("c{n}"), Histogram::default());
    let want = ClaimRequest {
        max: BATCH as u32,
        wait: Duration::from_millis(100),
        ..ClaimRequest::default()
    };
    while settled.load(Relaxed) < DEPTH {
        let begun = Instant::now();
        let taken = queue.claim(&group, &name, MemberKind::Pipeline, want).await.unwrap();
        if taken.is_empty() {
            continue;
        }
        let acks: Vec<_> = taken
            .iter()
            .map(|one| (queue.receipt(one), SettleAction::Ack))
            .collect();
        let outcome = queue.settle(&group, acks, true).await.unwrap();
        times.record(begun.elapsed());
        assert!(outcome.failed.is_empty(), "an ack of a lease that holds counts");
        settled.fetch_add(u64::from(outcome.settled), Relaxed);
    }
    times
}

fn together(bench: &Bench, tasks: Vec<tokio::task::JoinHandle<Histogram>>) -> Histogram {
    let mut times = Histogram::default();
    bench.runtime.block_on(async {
        for task in tasks {
            times.add(&task.await.unwrap());
        }
    });
    times
}
