//! A queue on a disk without space: a refused ack is not reported as stored, a process starts there, and everything
//! that releases messages works, even when no ack is accepted any more.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::{
    Place, REJECT, claim, claim_http_as, letters, log_options, open_on, put, settle, until, up_to, work,
};
use thalweg_log::disk::Disk as _;
use thalweg_log::disk::sim::SimDisk;
use thalweg_queue::{
    ClaimRequest, DeadLetterFilter, DeadLetterSelection, Delivery, NewMessage, Queue, SeekTo, SettleAction,
};

const FILE: u64 = 256 << 10;

/// Large enough for the reserve that every file has for deletions and the like.
const LARGE: u64 = 2 << 20;

async fn open_sim(disk: &SimDisk) -> Place {
    open_with(disk, FILE).await
}

async fn open_large(disk: &SimDisk) -> Place {
    open_with(disk, LARGE).await
}

async fn open_with(disk: &SimDisk, file_bytes: u64) -> Place {
    let options = log_options(file_bytes, file_bytes);
    open_on(Arc::new(disk.clone()), &options, Duration::ZERO, u64::MAX).await
}

async fn claim_all(queue: &Arc<Queue>) -> Vec<Delivery> {
    let want = ClaimRequest {
        max_in_flight: Some(10_000),
        ..up_to(10_000)
    };
    let mut all = Vec::new();
    // Messages on disk come in pieces.
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
    let verdict = (queue.receipt(delivery), SettleAction::Ack);
    match queue.settle(&group, vec![verdict], true).await {
        Ok(settled) => settled.failed.is_empty(),
        Err(error) => {
            assert_eq!(error.code(), "disk_full", "{error}");
            false
        }
    }
}

/// Produces messages of this size: there are no spare files before a part of the first file is used.
async fn until_two_files_are_ready(place: &Place, queue: &Arc<Queue>, bytes: usize) {
    until("two files are ready", async || {
        queue.produce(NewMessage::of(vec![7; bytes])).await.unwrap();
        place.log.counters().spare_files >= 2
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ack_that_a_full_disk_refused_is_refused_again_until_it_is_stored_and_then_no_crash_undoes_it() {
    let disk = SimDisk::new(1, 64 << 20);
    let place = open_sim(&disk).await;
    let queue = place.queues.create("q", work(1)).await.unwrap();
    until_two_files_are_ready(&place, &queue, 3000).await;
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
    // Leases end, and unacked messages are retried.
    for seconds in [31, 600] {
        place.later(Duration::from_secs(seconds));
        queue.look_after_now().await;
    }
    let again = claim_all(&queue).await;
    assert!(!again.is_empty());
    assert!(again.iter().all(|one| !acknowledged.contains(&one.message.offset)));
}

/// A queue with 20 dead letters, and another one named `other`, on a disk without space even for an ack.
async fn without_a_byte() -> (SimDisk, Place) {
    let disk = SimDisk::new(1, 64 << 20);
    let place = open_large(&disk).await;
    let queue = place.queues.create("q", work(2)).await.unwrap();
    place.queues.create("other", work(1)).await.unwrap();
    put(&queue, &["bad"; 20]).await;
    let bad = claim(&queue, "g", 20).await;
    settle(&queue, "g", &bad, REJECT).await;
    until("they are dead letters", async || letters(&queue).await.len() == 20).await;
    until_two_files_are_ready(&place, &queue, 30_000).await;
    let space = disk.space().unwrap();
    disk.set_capacity(space.total_bytes - space.free_bytes + 4 * LARGE);
    while queue.produce(NewMessage::of(vec![7; 30_000])).await.is_ok() {}
    // The oldest of each partition stays, so that no file becomes free.
    let mut taken = claim_all(&queue).await;
    let oldest: Vec<Delivery> = taken.drain(..2).collect();
    for one in taken {
        if !try_ack(&queue, &one).await {
            return (disk, place);
        }
    }
    // Each extension of a lease is a record too.
    loop {
        let extended = oldest
            .iter()
            .map(|one| (queue.receipt(one), SettleAction::Extend { visibility: None }));
        let group = queue.group("g").unwrap();
        if queue.settle(&group, extended.collect(), true).await.is_err() {
            return (disk, place);
        }
    }
}

fn crashed(place: Place, disk: &SimDisk) {
    place.log.close();
    disk.kill();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_starts_on_a_full_disk_as_often_as_it_crashes_there_and_what_is_stored_can_be_read() {
    let (disk, place) = without_a_byte().await;
    crashed(place, &disk);
    for _ in 0..100 {
        let place = open_large(&disk).await;
        let stored = place.queue().browse(None, None, 10_000).await.unwrap();
        assert!(stored.len() > 10, "{}", stored.len());
        crashed(place, &disk);
    }
    let place = open_large(&disk).await;
    let queue = place.queue();
    // By now there is no space for the epoch of leases.
    let claimed = queue
        .claim(
            &queue.group("g").unwrap(),
            "c",
            thalweg_queue::members::MemberKind::Http,
            up_to(1),
        )
        .await;
    assert_eq!(claimed.err().map(|error| error.code()), Some("disk_full"));
    disk.set_capacity(64 << 20);
    until("there is room", async || place.log.counters().spare_files > 1).await;
    for seconds in [31, 600] {
        place.later(Duration::from_secs(seconds));
        queue.look_after_now().await;
    }
    assert!(!claim_http_as(&queue, "g", "c", up_to(1)).await.is_empty());
    crashed(place, &disk);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relief {
    Purge,
    SeekLatest,
    PurgeLetters,
    RemoveGroup,
    RemoveQueue,
    Pause,
}

impl Relief {
    async fn bring(self, place: &Place) -> thalweg_queue::Result<()> {
        let queue = place.queue();
        let group = queue.group("g")?;
        match self {
            Relief::Purge => queue.purge().await.map(drop),
            Relief::SeekLatest => queue.seek(&group, SeekTo::Latest).await,
            Relief::PurgeLetters => {
                let all = DeadLetterSelection::Filter(DeadLetterFilter::default());
                let purged = queue.purge_dead(&all).await?;
                assert_eq!(purged, 20);
                Ok(())
            }
            Relief::RemoveGroup => place.queues.remove_group(&queue, "g").await,
            Relief::RemoveQueue => place.queues.remove("q", true).await,
            Relief::Pause => place.queues.pause(&queue, thalweg_queue::Pause::Both, true).await,
        }
    }

    async fn holds(self, place: &Place) -> bool {
        let queue = place.queues.get("q");
        match (self, queue) {
            (Relief::RemoveQueue, queue) => queue.is_err(),
            (Relief::Purge | Relief::SeekLatest, Ok(queue)) => queue.depth() == 0,
            (Relief::PurgeLetters, Ok(queue)) => letters(&queue).await.is_empty(),
            (Relief::RemoveGroup, Ok(queue)) => queue.group("g").is_err(),
            (Relief::Pause, Ok(queue)) => queue.stats().produce_paused,
            (_, Err(_)) => false,
        }
    }

    fn makes_room(self) -> bool {
        matches!(self, Relief::Purge | Relief::SeekLatest | Relief::RemoveQueue)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_lets_go_of_messages_works_on_a_full_disk_also_after_a_start_there() {
    for relief in [
        Relief::Purge,
        Relief::SeekLatest,
        Relief::PurgeLetters,
        Relief::RemoveGroup,
        Relief::RemoveQueue,
        Relief::Pause,
    ] {
        for starts in 0..2 {
            let (disk, mut place) = without_a_byte().await;
            for _ in 0..starts {
                crashed(place, &disk);
                place = open_large(&disk).await;
            }
            relief
                .bring(&place)
                .await
                .unwrap_or_else(|error| panic!("{relief:?}, {starts}: {error}"));
            crashed(place, &disk);
            let place = open_large(&disk).await;
            assert!(relief.holds(&place).await, "{relief:?} is undone by a crash");
            if relief.makes_room() {
                let other = place.queues.get("other").unwrap();
                until("messages are taken again", async || {
                    other.produce(NewMessage::of("x")).await.is_ok()
                })
                .await;
            }
            crashed(place, &disk);
        }
    }
}
