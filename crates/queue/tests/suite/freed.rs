//! A process that has ended releases everything: in a test, and wherever queues are closed and opened again.

use std::sync::{Arc, Weak};

use tokio::runtime::Builder;

use crate::support::{NACK_NOW, REJECT, claim, claim_http, log_options, open_on, put, settings, settle, up_to};
use thalweg_log::disk::{Disk, RamDisk};
use thalweg_log::{Durability, EmbeddedLog};
use thalweg_queue::members::MemberKind;
use thalweg_queue::settings::{GroupMode, QueueSettings};
use thalweg_queue::{Queue, SettleAction};

struct Held {
    queues: Vec<Weak<Queue>>,
    log: Weak<EmbeddedLog>,
}

/// Uses some of everything, then ends.
async fn use_and_end(disk: Arc<dyn Disk>, clean: bool) -> Held {
    let place = open_on(
        disk,
        &log_options(1 << 20, 1 << 19),
        std::time::Duration::ZERO,
        u64::MAX,
    )
    .await;
    for (name, durability) in [("q", Durability::Fsync), ("memory", Durability::Memory)] {
        let wanted = QueueSettings {
            durability: Some(durability),
            ..settings(2, &[("g", GroupMode::Work), ("s", GroupMode::Stream)])
        };
        let queue = place.queues.create(name, wanted).await.unwrap();
        put(&queue, &["a", "b", "c", "d"]).await;
        let taken = claim(&queue, "g", 3).await;
        settle(&queue, "g", &taken[..1], SettleAction::Ack).await;
        settle(&queue, "g", &taken[1..2], REJECT).await;
        settle(&queue, "g", &taken[2..], NACK_NOW).await;
        claim_http(&queue, "s", 2).await;
        // A waiting claim still waits at the end.
        let (waiting, group) = (queue.clone(), queue.group("g").unwrap());
        let want = thalweg_queue::ClaimRequest {
            wait: std::time::Duration::from_secs(3600),
            ..up_to(1)
        };
        tokio::spawn(async move { waiting.claim(&group, "late", MemberKind::Http, want).await });
        tokio::task::yield_now().await;
    }
    let held = Held {
        queues: place.queues.all().iter().map(Arc::downgrade).collect(),
        log: Arc::downgrade(&place.log),
    };
    assert_eq!(held.queues.len(), 4, "two, and their dead letters");
    place.end(clean).await;
    held
}

#[test]
fn the_log_and_its_queues_do_not_hold_each_other() {
    for clean in [true, false] {
        let disk: Arc<dyn Disk> = Arc::new(RamDisk::new(64 << 20));
        let runtime = Builder::new_multi_thread().enable_all().build().unwrap();
        let held = runtime.block_on(use_and_end(disk.clone(), clean));
        // Ends its tasks.
        drop(runtime);
        let queues = held.queues.iter().filter(|queue| queue.strong_count() > 0).count();
        assert_eq!((queues, held.log.strong_count()), (0, 0), "clean: {clean}");
        assert_eq!(Arc::strong_count(&disk), 1, "clean: {clean}: files are open");
    }
}

/// Created, used and deleted repeatedly: nothing of it is left, neither of the queues nor of their partitions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_is_deleted_is_freed_while_the_process_runs() {
    let disk: Arc<dyn Disk> = Arc::new(RamDisk::new(64 << 20));
    let place = open_on(
        disk,
        &log_options(4 << 20, 1 << 20),
        std::time::Duration::ZERO,
        u64::MAX,
    )
    .await;
    let before = place.log.partitions().len();
    let mut made: Vec<Weak<Queue>> = Vec::new();
    for round in 0..30 {
        let wanted = QueueSettings {
            dedup_window: std::time::Duration::from_secs(3600),
            ..settings(20, &[("g", GroupMode::Work), ("s", GroupMode::Stream)])
        };
        let queue = place.queues.create("q", wanted).await.unwrap();
        put(&queue, &["a", "b", "c", "d"]).await;
        let taken = claim(&queue, "g", 2).await;
        settle(&queue, "g", &taken[..1], SettleAction::Ack).await;
        settle(&queue, "g", &taken[1..], REJECT).await;
        // A claim waits for a message that never comes.
        let (waiting, group) = (queue.clone(), queue.group("s").unwrap());
        let want = thalweg_queue::ClaimRequest {
            wait: std::time::Duration::from_secs(3600),
            ..up_to(1)
        };
        let waiting =
            tokio::spawn(async move { waiting.claim(&group, "late", MemberKind::Http, want).await.map(drop) });
        made.push(Arc::downgrade(&queue));
        let dead = place.queues.get("dlq.q").unwrap();
        made.push(Arc::downgrade(&dead));
        drop((queue, dead, taken));
        for name in ["q", "dlq.q"] {
            place.queues.remove(name, true).await.unwrap();
        }
        let told = tokio::time::timeout(std::time::Duration::from_secs(60), waiting).await;
        let _ = told.expect("who waits at a queue that is gone is told").unwrap();
        assert_eq!(place.log.partitions().len(), before, "round {round}");
    }
    let left = || made.iter().filter(|queue| queue.strong_count() > 0).count();
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while left() > 0 {
        assert!(
            std::time::Instant::now() < until,
            "{} of {} are held",
            left(),
            made.len()
        );
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    place.stop().await;
}
