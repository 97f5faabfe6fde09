//! The 17 benchmarks of the reference system, one to one: same names, payloads, partitions and meaning of a call.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use thalweg_log::format::record::Properties;
use thalweg_queue::members::MemberKind;
use thalweg_queue::settings::QueueOrdering;
use thalweg_queue::{ClaimRequest, ConsumerHandle, Delivery, Group, NewMessage, Queue, Receipt, SettleAction};

use crate::harness::{Bench, Measured, Session, long_row, measure, percentiles, row};
use crate::histogram::Histogram;

/// As many as the reference does in its second.
const N: u64 = 10_000;
const ENQUEUES: u64 = 200_000;
const TICKED: u64 = 1180;

pub fn run(session: &Session) {
    enqueue(session);
    dequeue(session);
    end_to_end(session);
}

fn properties() -> Properties {
    [("source", "bench")].into_iter().collect()
}

/// The same payload each time, by reference.
pub fn message(size: usize, with_property: bool) -> NewMessage {
    let payload: Vec<u8> = (0..size).map(|n| n as u8).collect();
    NewMessage {
        payload: Bytes::from(payload),
        properties: if with_property {
            properties()
        } else {
            Properties::default()
        },
        ..NewMessage::default()
    }
}

pub fn put(queue: &Arc<Queue>, message: &NewMessage) {
    let produced = queue.try_produce(message.clone());
    assert!(
        matches!(produced, Ok(Ok(_))),
        "a queue in memory without limits takes every message"
    );
}

fn fill(queue: &Arc<Queue>, message: &NewMessage, count: u64) {
    (0..count).for_each(|_| put(queue, message));
}

fn enqueue_row(session: &Session, name: &str, partitions: u32, message: &NewMessage, batch: u64) {
    row(session, name, || {
        let bench = Bench::in_memory();
        let queue = bench.queue("q", partitions, QueueOrdering::Partition, &["g"]);
        let ops = ENQUEUES / batch;
        measure(|| {
            for _ in 0..ops {
                fill(&queue, message, batch);
            }
            (ops, ops * batch)
        })
    });
}

fn enqueue(session: &Session) {
    enqueue_row(session, "Enqueue_SinglePartition", 1, &message(25, true), 1);
    // Messages without a key go to all partitions in turn, where the reference system picks a random one.
    enqueue_row(session, "Enqueue_MultiplePartitions", 10, &message(25, true), 1);
    enqueue_row(session, "Enqueue_SmallPayload", 10, &message(4, false), 1);
    enqueue_row(session, "Enqueue_LargePayload", 10, &message(65_536, true), 1);
    let keyed = NewMessage {
        key: Some(Bytes::from_static(b"user-123")),
        ..message(19, false)
    };
    enqueue_row(session, "Enqueue_WithPartitionKey", 10, &keyed, 1);
    row(session, "Enqueue_Parallel", || {
        let bench = Bench::in_memory();
        let queue = bench.queue("q", 10, QueueOrdering::Partition, &["g"]);
        let message = message(18, false);
        measure(|| {
            std::thread::scope(|scope| {
                for _ in 0..16 {
                    scope.spawn(|| fill(&queue, &message, ENQUEUES / 16));
                }
            });
            (ENQUEUES, ENQUEUES)
        })
    });
    for batch in [1, 10, 100, 1000] {
        enqueue_row(
            session,
            &format!("Enqueue_BatchSize_{batch}"),
            10,
            &message(13, false),
            batch,
        );
    }
    enqueue_row(session, "Allocs_Enqueue", 10, &message(15, false), 1);
}

/// Consumers that poll all the time.
pub struct Consumers {
    pub queue: Arc<Queue>,
    pub group: Arc<Group>,
    asking: Vec<ConsumerHandle>,
    turn: usize,
    pub taken: Vec<Delivery>,
}

impl Consumers {
    pub fn new(bench: &Bench, queue: &Arc<Queue>, count: usize) -> Consumers {
        let group = queue.group("g").unwrap();
        let asking = (0..count)
            .map(|n| queue.ask(&group, &format!("c{n}"), MemberKind::Pipeline).unwrap())
            .collect();
        // Joins within 100 ms are one change of the shares.
        bench
            .runtime
            .block_on(async { tokio::time::sleep(Duration::from_millis(150)).await });
        Consumers {
            queue: queue.clone(),
            group,
            asking,
            turn: 0,
            taken: Vec::with_capacity(1024),
        }
    }

    /// One delivery call: at most one message per partition.
    pub fn deliver(&mut self) -> u64 {
        let before = self.taken.len();
        for _ in 0..self.queue.partition_count() {
            self.turn = (self.turn + 1) % self.asking.len();
            let found = self.taken.len();
            self.asking[self.turn]
                .claim_now(ClaimRequest::default(), &mut self.taken)
                .unwrap();
            if self.taken.len() == found && self.asking.len() == 1 {
                break;
            }
        }
        (self.taken.len() - before) as u64
    }

    /// Takes this many messages at once.
    pub fn take(&mut self, max: u32) -> u64 {
        let before = self.taken.len();
        self.turn = (self.turn + 1) % self.asking.len();
        let want = ClaimRequest {
            max,
            ..ClaimRequest::default()
        };
        self.asking[self.turn].claim_now(want, &mut self.taken).unwrap();
        (self.taken.len() - before) as u64
    }

    pub fn ack_all(&mut self) {
        for delivery in self.taken.drain(..) {
            let (partition, offset) = (delivery.partition, delivery.message.offset);
            self.queue
                .ack(&self.group, partition, offset, delivery.delivery)
                .unwrap();
        }
    }

    /// Like `settle`, in one call.
    pub fn settle_all(&mut self, bench: &Bench) -> u64 {
        let acks = self
            .taken
            .drain(..)
            .map(|one| (self.queue.receipt(&one), SettleAction::Ack))
            .collect();
        self.settle(bench, acks)
    }

    /// Nacks one of `each` messages, by offset, on its first delivery. The others stay leased. Returns how many.
    pub fn nack(&mut self, bench: &Bench, each: u64, delay: Duration) -> u64 {
        let chosen = |one: &mut Delivery| one.delivery == 1 && one.message.offset.is_multiple_of(each);
        let nack = SettleAction::Nack {
            delay: Some(delay),
            reason: None,
        };
        let chosen: Vec<_> = self
            .taken
            .extract_if(.., chosen)
            .map(|one| (self.queue.receipt(&one), nack.clone()))
            .collect();
        if chosen.is_empty() {
            0
        } else {
            self.settle(bench, chosen)
        }
    }

    fn settle(&self, bench: &Bench, verdicts: Vec<(Receipt, SettleAction)>) -> u64 {
        let settling = self.queue.settle(&self.group, verdicts, false);
        u64::from(bench.runtime.block_on(settling).unwrap().settled)
    }
}

fn dequeue_row(session: &Session, name: &str, partitions: u32, consumers: usize, preloaded: u64, ack: bool) {
    row(session, name, || {
        let bench = Bench::in_memory();
        let queue = bench.queue("q", partitions, QueueOrdering::Partition, &["g"]);
        fill(&queue, &message(17, false), preloaded);
        let mut consumers = Consumers::new(&bench, &queue, consumers);
        // Once everything is delivered, the remaining calls find nothing; they are timed separately.
        let (mut moved, mut calls, mut last) = (0, 0, Instant::now());
        let mut measured = measure(|| {
            while calls < N && moved < preloaded {
                moved += consumers.deliver();
                if ack {
                    consumers.ack_all();
                }
                calls += 1;
            }
            last = Instant::now();
            (calls..N).for_each(|_| moved += consumers.deliver());
            (N, moved)
        });
        if calls < N {
            measured.empty = (N - calls, last.elapsed());
        }
        measured
    });
}

fn dequeue(session: &Session) {
    dequeue_row(session, "Dequeue_SingleConsumer", 1, 1, N, false);
    for count in [1, 2, 5, 10] {
        dequeue_row(
            session,
            &format!("Dequeue_MultipleConsumers_{count}"),
            count,
            count as usize,
            N,
            false,
        );
    }
    dequeue_row(session, "Dequeue_WithAck", 1, 1, N, true);
    for count in [1, 5, 10, 20] {
        dequeue_row(
            session,
            &format!("Dequeue_PartitionScanning_{count}"),
            count,
            1,
            1000,
            false,
        );
    }
    dequeue_row(session, "Dequeue_Throughput", 10, 5, 100_000, false);
}

fn end_to_end(session: &Session) {
    let publish_to_ack = |size: usize, timed: bool| {
        let bench = Bench::in_memory();
        let queue = bench.queue("q", 10, QueueOrdering::Partition, &["g"]);
        let message = message(size, false);
        let mut consumers = Consumers::new(&bench, &queue, 1);
        let mut times = Histogram::default();
        let mut measured = measure(|| {
            let mut moved = 0;
            for _ in 0..N {
                let start = timed.then(Instant::now);
                put(&queue, &message);
                moved += consumers.deliver();
                consumers.ack_all();
                if let Some(start) = start {
                    times.record(start.elapsed());
                }
            }
            (N, moved)
        });
        measured.percentiles = timed.then(|| percentiles(&times));
        measured
    };
    row(session, "E2E_PublishToAck", || publish_to_ack(21, false));
    row(session, "E2E_ConcurrentProducerConsumer", || {
        concurrent(18, N, Duration::from_millis(1))
    });
    row(session, "E2E_Latency", || publish_to_ack(20, true));
    long_row(session, "E2E_Sustained", || {
        concurrent(28, TICKED, Duration::from_millis(10))
    });
}

/// One thread enqueues; another delivers, acks all it has and sleeps, until all are acked.
fn concurrent(size: usize, count: u64, pause: Duration) -> Measured {
    let bench = Bench::in_memory();
    let queue = bench.queue("q", 10, QueueOrdering::Partition, &["g"]);
    let message = message(size, false);
    let mut consumers = Consumers::new(&bench, &queue, 5);
    measure(|| {
        std::thread::scope(|scope| {
            scope.spawn(|| fill(&queue, &message, count));
            let mut acked = 0;
            while acked < count {
                acked += consumers.deliver();
                consumers.ack_all();
                std::thread::sleep(pause);
            }
        });
        (count, count)
    })
}
