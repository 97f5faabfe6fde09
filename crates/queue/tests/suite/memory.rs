//! Queues in memory share one limit: at the limit producers wait, are refused, or evict old messages, as each queue is
//! set to.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{ack, claim, open_small, until, work};
use thalweg_log::Durability;
use thalweg_queue::settings::{Overflow, QueueSettings};
use thalweg_queue::{NewMessage, Queue, QueueError};

const MEMORY: u64 = 8 << 20;
const MESSAGE: usize = 64 << 10;

fn in_memory(overflow: Overflow) -> QueueSettings {
    QueueSettings {
        durability: Some(Durability::Memory),
        overflow,
        block_timeout: Duration::from_secs(60),
        ..work(1)
    }
}

async fn store(queue: &Arc<Queue>) -> Result<(), QueueError> {
    queue.produce(NewMessage::of(vec![7; MESSAGE])).await.map(drop)
}

/// Until nothing more fits.
async fn fill(queue: &Arc<Queue>) -> (u64, QueueError) {
    let mut stored = 0;
    loop {
        match store(queue).await {
            Ok(()) => stored += 1,
            Err(error) => return (stored, error),
        }
        assert!(stored < 1000, "there is no bound");
    }
}

async fn take(queue: &Arc<Queue>, max: u32) -> u64 {
    let taken = claim(queue, "g", max).await;
    ack(queue, "g", &taken);
    taken.len() as u64
}

#[tokio::test]
async fn queues_in_memory_have_one_bound_together_and_its_error_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let place = open_small(folder.path(), MEMORY).await;
    let one = place.queues.create("one", in_memory(Overflow::Reject)).await.unwrap();
    let two = place.queues.create("two", in_memory(Overflow::Reject)).await.unwrap();
    store(&two).await.unwrap();
    let (stored, error) = fill(&one).await;
    assert_eq!(error.code(), "queue_full");
    assert_eq!(
        error.to_string(),
        "queue one is full: queues.memory is 8388608; let consumers catch up or raise it"
    );
    let room = MEMORY / (MESSAGE as u64 + 64);
    assert!((room - 20..=room).contains(&(stored + 1)), "{stored} of {room}");
    let (more, error) = fill(&two).await;
    assert!(more <= 16 && error.code() == "queue_full", "{more}, {error}");

    // Settled messages make room for the other queue too.
    assert_eq!(take(&one, 10_000).await, stored);
    until("what is settled goes", async || one.stats().retained == 0).await;
    let (more, _) = fill(&two).await;
    assert!(more > stored / 2, "{more}");
    place.stop().await;
}

#[tokio::test]
async fn a_queue_that_drops_the_oldest_goes_on_at_the_bound() {
    let folder = tempfile::tempdir().unwrap();
    let place = open_small(folder.path(), MEMORY).await;
    let queue = place.queues.create("q", in_memory(Overflow::DropOldest)).await.unwrap();
    for _ in 0..500 {
        store(&queue).await.unwrap();
    }
    let stats = queue.stats();
    assert!(stats.bytes <= MEMORY, "{} bytes", stats.bytes);
    assert!(stats.depth >= 60, "{}", stats.depth);
    assert_eq!(take(&queue, 10_000).await, stats.depth);
    place.stop().await;
}

#[tokio::test]
async fn a_producer_that_waits_goes_on_when_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    let place = open_small(folder.path(), MEMORY).await;
    let queue = place.queues.create("q", in_memory(Overflow::Block)).await.unwrap();
    let producer = queue.clone();
    let produced = tokio::spawn(async move {
        for _ in 0..400 {
            store(&producer).await.unwrap();
        }
    });
    let mut taken = 0;
    while taken < 400 {
        assert!(queue.stats().bytes <= MEMORY);
        taken += take(&queue, 5).await;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    produced.await.unwrap();
    place.stop().await;
}
