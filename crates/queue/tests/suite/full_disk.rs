//! A queue on a disk without room: an ack that was refused is not said to hold before it is stored.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::{Place, claim_http_as, log_options, open_on, up_to, work};
use thalweg_log::disk::Disk as _;
use thalweg_log::disk::sim::SimDisk;
use thalweg_queue::{ClaimWant, Delivery, NewMessage, Queue, Verdict};

const FILE: u64 = 256 << 10;

async fn open_sim(disk: &SimDisk) -> Place {
    let options = log_options(FILE, FILE);
    open_on(Arc::new(disk.clone()), &options, Duration::ZERO, u64::MAX).await
}

async fn claim_all(queue: &Arc<Queue>) -> Vec<Delivery> {
    let want = ClaimWant {
        max_in_flight: Some(10_000),
        ..up_to(10_000)
    };
    let mut all = Vec::new();
    // What lies on the disk comes in pieces.
    loop {
        let some = claim_http_as(queue, "g", "c", want).await;
        if some.is_empty() {
            return all;
        }
        all.extend(some);
    }
}

async fn try_ack(queue: &Arc<Queue>, delivery: &Delivery) -> bool {
    let group = queue.group("g").unwrap();
    let verdict = (queue.receipt(delivery), Verdict::Ack);
    match queue.settle(&group, vec![verdict], true).await {
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
    let place = open_sim(&disk).await;
    let queue = place.queues.create("q", work(1)).await.unwrap();
    while place.log.counters().spare_files < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let space = disk.space().unwrap();
    disk.set_capacity(space.total_bytes - space.free_bytes + 2 * FILE);
    while queue.produce(NewMessage::of(vec![7; 3000])).await.is_ok() {}
    let taken = claim_all(&queue).await;
    assert!(taken.len() > 100, "{}", taken.len());
    let mut acknowledged = Vec::new();
    // The first stays, so that no file becomes free.
    let mut rest = taken.iter().skip(1);
    let refused = loop {
        let one = rest.next().unwrap();
        if !try_ack(&queue, one).await {
            break one;
        }
        acknowledged.push(one.message.offset);
    };
    for _ in 0..3 {
        assert!(
            !try_ack(&queue, refused).await,
            "it is said to be settled, and is stored nowhere"
        );
    }
    disk.set_capacity(64 << 20);
    let until = Instant::now() + Duration::from_secs(60);
    while !try_ack(&queue, refused).await {
        assert!(Instant::now() < until, "there is room again");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    acknowledged.push(refused.message.offset);
    place.log.close();
    disk.kill();
    drop((queue, place));
    let place = open_sim(&disk).await;
    let queue = place.queue();
    // Leases end, and what was not acked is tried again.
    for seconds in [31, 600] {
        place.later(Duration::from_secs(seconds));
        queue.look_after_now().await;
    }
    let again = claim_all(&queue).await;
    assert!(!again.is_empty());
    assert!(again.iter().all(|one| !acknowledged.contains(&one.message.offset)));
}
