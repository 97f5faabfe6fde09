//! A queue on a disk without room: an ack that was refused is not said to hold before it is stored.

#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use support::TestClock;
use thalweg_log::disk::Disk as _;
use thalweg_log::disk::sim::SimDisk;
use thalweg_log::{Durability, EmbeddedLog, LogOptions};
use thalweg_queue::members::MemberKind;
use thalweg_queue::settings::{GroupMode, GroupSettings, QueueSettings};
use thalweg_queue::{ClaimWant, Delivery, MessageId, NewMessage, Queue, Queues, QueuesOptions, Receipt, Verdict};

const FILE: u64 = 256 << 10;

async fn open(disk: &SimDisk) -> (Arc<EmbeddedLog>, Queues, Arc<TestClock>) {
    let options = LogOptions {
        file_bytes: FILE,
        first_file_bytes: FILE,
        spare: 1,
        min_free_bytes: Some(0),
        ..LogOptions::default()
    };
    let log = Arc::new(EmbeddedLog::open(Arc::new(disk.clone()), 7, &options).unwrap());
    let clock = Arc::new(TestClock::default());
    let options = QueuesOptions {
        durability: Durability::Fsync,
        auto_create: false,
        memory_bytes: u64::MAX,
    };
    let queues = Queues::open(log.clone(), clock.clone(), options).await.unwrap();
    (log, queues, clock)
}

async fn claim(queue: &Arc<Queue>) -> Vec<Delivery> {
    let want = ClaimWant {
        max: 10_000,
        max_in_flight: Some(10_000),
        ..ClaimWant::default()
    };
    let group = queue.group("g").unwrap();
    let mut all = Vec::new();
    // What lies on the disk comes in pieces.
    loop {
        let some = queue.claim(&group, "c", MemberKind::Http, want).await.unwrap();
        if some.is_empty() {
            return all;
        }
        all.extend(some);
    }
}

async fn ack(queue: &Arc<Queue>, delivery: &Delivery) -> bool {
    let receipt = Receipt {
        id: MessageId {
            queue: queue.name().clone(),
            partition: delivery.partition,
            offset: delivery.message.offset,
        },
        delivery: delivery.delivery,
    };
    let group = queue.group("g").unwrap();
    match queue.settle(&group, vec![(receipt, Verdict::Ack)], true).await {
        Ok(settled) => settled.failed.is_empty(),
        Err(error) => {
            assert_eq!(error.code(), "disk_full", "{error}");
            false
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ack_that_a_full_disk_refused_is_refused_again_until_it_is_stored_and_then_no_crash_undoes_it() {
    let disk = SimDisk::new(1, 64 << 20);
    let (log, queues, _) = open(&disk).await;
    let settings = QueueSettings {
        partitions: 1,
        groups: vec![GroupSettings::new("g", GroupMode::Work)],
        ..QueueSettings::default()
    };
    let queue = queues.create("q", settings).await.unwrap();
    while log.counters().spare_files < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let space = disk.space().unwrap();
    disk.set_capacity(space.total_bytes - space.free_bytes + 2 * FILE);
    while queue.produce(NewMessage::of(vec![7; 3000])).await.is_ok() {}
    let taken = claim(&queue).await;
    assert!(taken.len() > 100, "{}", taken.len());
    let mut acknowledged = Vec::new();
    // The first stays, so that no file becomes free.
    let mut rest = taken.iter().skip(1);
    let refused = loop {
        let one = rest.next().unwrap();
        if !ack(&queue, one).await {
            break one;
        }
        acknowledged.push(one.message.offset);
    };
    for _ in 0..3 {
        assert!(
            !ack(&queue, refused).await,
            "it is said to be settled, and is stored nowhere"
        );
    }
    disk.set_capacity(64 << 20);
    let until = Instant::now() + Duration::from_secs(60);
    while !ack(&queue, refused).await {
        assert!(Instant::now() < until, "there is room again");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    acknowledged.push(refused.message.offset);
    log.close();
    disk.kill();
    drop((queue, queues, log));
    let (_log, queues, clock) = open(&disk).await;
    let queue = queues.get("q").unwrap();
    // Leases end, and what was not acked is tried again.
    for seconds in [31, 600] {
        clock.ahead.fetch_add(seconds * 1_000_000, Ordering::SeqCst);
        queue.look_after_now().await;
    }
    let again = claim(&queue).await;
    assert!(!again.is_empty());
    assert!(again.iter().all(|one| !acknowledged.contains(&one.message.offset)));
}
