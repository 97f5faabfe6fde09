//! Everything that makes room is trimmed and wakes producers, whatever the cause.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{ack, begin, claim, reopened, until};
use thalweg_queue::message::TOPIC;
use thalweg_queue::settings::{GroupMode, GroupSettings, Overflow, QueueSettings, RetentionMode};
use thalweg_queue::{NewMessage, Queue, QueueError};

/// Far less than a producer would wait otherwise.
const SOON: Duration = Duration::from_secs(20);
const ATTEMPTS: usize = 20;

/// Group `all` gets every message, group `some` those of a topic.
fn settings() -> QueueSettings {
    let some = GroupSettings {
        filter: Some("some".into()),
        ..GroupSettings::new("some", GroupMode::Work)
    };
    QueueSettings {
        partitions: 1,
        groups: vec![GroupSettings::new("all", GroupMode::Work), some],
        overflow: Overflow::Reject,
        block_timeout: Duration::from_secs(3600),
        ..QueueSettings::default()
    }
}

fn message(topic: &str) -> NewMessage {
    NewMessage {
        properties: [(TOPIC, topic)].into_iter().collect(),
        ..NewMessage::of(vec![7; 1000])
    }
}

async fn ack_all(queue: &Arc<Queue>, group: &str) {
    ack(queue, group, &claim(queue, group, 100).await);
}

/// Waits until the effects of the acks are over, so that the next step must make room itself.
async fn quiet() {
    // The trim is due after 100 ms, and trims nothing yet, so nothing shows that it has run.
    tokio::time::sleep(Duration::from_millis(300)).await;
}

/// As many as the bytes of the queue allow.
async fn fill(queue: &Arc<Queue>, message: impl Fn() -> NewMessage) -> QueueError {
    loop {
        if let Err(full) = queue.produce(message()).await {
            return full;
        }
    }
}

async fn has_room_soon(queue: &Arc<Queue>) {
    let has_room = async || queue.produce(message("other")).await.is_ok();
    until("it has room again", has_room).await;
}

/// A producer that waits for room during this gets it.
async fn wakes<T>(queue: &Arc<Queue>, message: NewMessage, then: impl Future<Output = T>) -> T {
    let done = wakes_if_it_waits(queue, message, then).await;
    done.expect("the producer waits")
}

/// `None` if something else has made room before.
async fn wakes_if_it_waits<T>(queue: &Arc<Queue>, message: NewMessage, then: impl Future<Output = T>) -> Option<T> {
    let producer = queue.clone();
    let waiting = tokio::spawn(async move { producer.produce(message).await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    if waiting.is_finished() {
        waiting.await.unwrap().unwrap();
        return None;
    }
    let done = then.await;
    let woken = tokio::time::timeout(SOON, waiting).await;
    woken.expect("the producer is called").unwrap().unwrap();
    Some(done)
}

#[tokio::test]
async fn what_the_last_group_only_passes_over_is_let_go() {
    let mut small = settings();
    small.max_bytes = 10_000;
    let (_folder, _place, queue) = begin(small).await;
    assert_eq!(fill(&queue, || message("other")).await.code(), "queue_full");
    ack_all(&queue, "all").await;
    quiet().await;
    assert!(claim(&queue, "some", 100).await.is_empty());
    assert_eq!(queue.depth(), 0);
    has_room_soon(&queue).await;
}

#[tokio::test]
async fn what_is_passed_over_because_its_time_has_come_is_let_go() {
    let mut small = settings();
    small.max_bytes = 10_000;
    small.ttl = Duration::from_secs(2);
    let (_folder, _place, queue) = begin(small).await;
    assert_eq!(fill(&queue, || message("other")).await.code(), "queue_full");
    ack_all(&queue, "all").await;
    quiet().await;
    has_room_soon(&queue).await;
}

#[tokio::test]
async fn a_producer_that_waits_goes_on_when_a_claim_passes_messages_over() {
    for first in ["other", "some"] {
        // On a slow machine the check for expired messages may pass them first.
        let mut taken = None;
        for _ in 0..ATTEMPTS {
            let mut blocking = settings();
            blocking.max_depth = 2;
            blocking.overflow = Overflow::Block;
            let (_folder, _place, queue) = begin(blocking).await;
            // When the first is delivered, nothing before it is settled.
            queue.produce(message(first)).await.unwrap();
            queue.produce(message("other")).await.unwrap();
            ack_all(&queue, "all").await;
            taken = wakes_if_it_waits(&queue, message("other"), claim(&queue, "some", 100)).await;
            if taken.is_some() {
                break;
            }
        }
        assert_eq!(taken.map(|taken| taken.len()), Some(usize::from(first == "some")));
    }
}

#[tokio::test]
async fn what_was_settled_just_before_the_process_ended_is_let_go_after_the_start() {
    let mut small = settings();
    small.max_bytes = 10_000;
    small.groups.truncate(1);
    let (folder, place, queue) = begin(small).await;
    assert_eq!(fill(&queue, || message("other")).await.code(), "queue_full");
    ack_all(&queue, "all").await;
    // On one thread nothing is trimmed in between.
    let (_place, queue) = reopened(place, folder.path()).await;
    assert_eq!(queue.depth(), 0);
    has_room_soon(&queue).await;
}

#[tokio::test]
async fn a_producer_that_waits_goes_on_when_the_queue_is_purged() {
    for (groups, mode) in [
        (0, RetentionMode::Settled),
        (1, RetentionMode::Settled),
        (1, RetentionMode::Policy),
    ] {
        let mut blocking = settings();
        blocking.max_depth = 1;
        blocking.overflow = Overflow::Block;
        blocking.retention.mode = mode;
        blocking.groups.truncate(groups);
        let (_folder, _place, queue) = begin(blocking).await;
        queue.produce(message("other")).await.unwrap();
        let purged = wakes(&queue, message("other"), queue.purge()).await;
        assert_eq!(purged.unwrap(), 1);
        assert_eq!(queue.depth(), 1);
    }
}
