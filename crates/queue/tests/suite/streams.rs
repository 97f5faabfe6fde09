//! Stream groups: what one reads, who reads it, and what a reader that left leaves to the next.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{Place, begin, claim_http_as, put, settings, texts, up_to, waiting_for};
use thalweg_queue::members::MemberKind;
use thalweg_queue::message::{TARGET_GROUP, TOPIC};
use thalweg_queue::settings::GroupMode;
use thalweg_queue::{NewMessage, Queue, Receipt, SettleAction};

/// A queue of one partition with the stream group "s".
async fn begin_stream(filter: Option<&str>) -> (tempfile::TempDir, Place, Arc<Queue>) {
    let mut settings = settings(1, &[("s", GroupMode::Stream)]);
    settings.groups[0].filter = filter.map(Into::into);
    begin(settings).await
}

async fn read(queue: &Arc<Queue>, consumer: &str, max: u32) -> Vec<String> {
    texts(&claim_http_as(queue, "s", consumer, up_to(max)).await)
}

async fn ack_offsets(queue: &Arc<Queue>, offsets: &[u64]) {
    // From any reader and epoch: an ack of a stream counts for its position.
    let receipt = |offset: &u64| -> Receipt { format!("q:0:{offset}:1:16.1.{:x}", u64::MAX).parse().unwrap() };
    let verdicts = offsets
        .iter()
        .map(|offset| (receipt(offset), SettleAction::Ack))
        .collect();
    let settled = queue.settle(&queue.group("s").unwrap(), verdicts, true).await.unwrap();
    assert!(settled.failed.is_empty(), "{:?}", settled.failed);
}

fn committed(queue: &Queue) -> u64 {
    queue.group("s").unwrap().stats().positions[0]
}

/// Time passes, and the queue handles what is due: first who has left, then who takes over.
async fn later(place: &Place, queue: &Arc<Queue>, time: Duration) {
    for time in [time, Duration::from_secs(1)] {
        place.later(time);
        queue.look_after_now().await;
    }
}

#[tokio::test]
async fn what_a_reader_left_without_ack_comes_to_the_next_reader_and_its_late_acks_count() {
    let (_folder, place, queue) = begin_stream(None).await;
    put(&queue, &["a", "b", "c", "d"]).await;
    assert_eq!(read(&queue, "a", 3).await, ["a", "b", "c"]);
    ack_offsets(&queue, &[1]).await;
    assert!(read(&queue, "b", 10).await.is_empty(), "one reads at a time");
    later(&place, &queue, Duration::from_secs(31)).await;
    // Acked messages are done, whoever reads.
    assert_eq!(read(&queue, "b", 2).await, ["a", "c"]);
    ack_offsets(&queue, &[0, 2]).await;
    assert_eq!(committed(&queue), 3);
    assert_eq!(read(&queue, "b", 10).await, ["d"]);
}

#[tokio::test]
async fn a_reader_that_comes_back_after_its_time_reads_from_the_commit_again() {
    let (_folder, place, queue) = begin_stream(None).await;
    put(&queue, &["a", "b"]).await;
    assert_eq!(read(&queue, "a", 10).await, ["a", "b"]);
    assert!(read(&queue, "a", 10).await.is_empty());
    later(&place, &queue, Duration::from_secs(31)).await;
    assert_eq!(read(&queue, "a", 10).await, ["a", "b"]);
}

#[tokio::test]
async fn a_reader_that_has_messages_goes_on_after_them_and_commits_nothing_by_that() {
    let (_folder, place, queue) = begin_stream(None).await;
    put(&queue, &["a", "b", "c", "d", "e"]).await;
    assert_eq!(read(&queue, "a", 4).await.len(), 4);
    let group = queue.group("s").unwrap();
    let first = queue.ask(&group, "a", MemberKind::Http).unwrap();
    let second = queue.ask(&group, "a", MemberKind::Http).unwrap();
    second.read_from(0, 3).unwrap();
    // The end of an earlier request is noticed late.
    first.read_again([0].into_iter());
    assert_eq!(read(&queue, "a", 10).await, ["d", "e"]);
    assert_eq!(committed(&queue), 0);
    ack_offsets(&queue, &[0, 1, 2, 3]).await;
    assert_eq!(committed(&queue), 4);
    second.read_again([0].into_iter());
    assert_eq!(read(&queue, "a", 10).await, ["e"]);
    drop((first, second));
    drop(place);
}

#[tokio::test]
async fn a_reader_to_whom_the_partition_does_not_belong_moves_nobodys_position() {
    let (_folder, place, queue) = begin_stream(None).await;
    put(&queue, &["a", "b", "c"]).await;
    assert_eq!(read(&queue, "a", 1).await, ["a"]);
    place.later(Duration::from_millis(200));
    queue.look_after_now().await;
    let other = queue.ask(&queue.group("s").unwrap(), "b", MemberKind::Http).unwrap();
    other.read_from(0, 3).unwrap();
    assert_eq!(read(&queue, "a", 10).await, ["b", "c"]);
}

#[tokio::test]
async fn a_stream_passes_over_what_expired_or_is_not_for_it() {
    let (_folder, place, queue) = begin_stream(Some("plant/+")).await;
    let message = |text: &str, topic: &str, more: Option<(&str, &str)>| NewMessage {
        properties: [(TOPIC, topic)].into_iter().chain(more).collect(),
        ..NewMessage::of(text.as_bytes().to_vec())
    };
    queue.produce(message("a", "plant/1", None)).await.unwrap();
    queue.produce(message("b", "office/1", None)).await.unwrap();
    let others = Some((TARGET_GROUP, "other"));
    queue.produce(message("c", "plant/1", others)).await.unwrap();
    let short = NewMessage {
        ttl: Some(Duration::from_secs(5)),
        ..message("d", "plant/1", None)
    };
    queue.produce(short).await.unwrap();
    queue.produce(message("e", "plant/2", None)).await.unwrap();
    queue.produce(message("f", "office/1", None)).await.unwrap();
    place.later(Duration::from_secs(6));
    assert_eq!(read(&queue, "a", 10).await, ["a", "e"]);
    ack_offsets(&queue, &[0, 4]).await;
    assert_eq!(committed(&queue), 6, "what was passed over is done");
    assert_eq!(queue.group("s").unwrap().backlog(), 0);
}

#[tokio::test]
async fn a_stream_waits_at_a_delayed_message_until_its_time() {
    let (_folder, place, queue) = begin_stream(None).await;
    put(&queue, &["a"]).await;
    let now = place.now();
    let delayed = NewMessage {
        not_before: Some(now + 60_000_000),
        ..NewMessage::of("b")
    };
    queue.produce(delayed).await.unwrap();
    put(&queue, &["c"]).await;
    assert_eq!(read(&queue, "a", 10).await, ["a"]);
    assert!(read(&queue, "a", 10).await.is_empty());
    place.later(Duration::from_secs(61));
    assert_eq!(read(&queue, "a", 10).await, ["b", "c"]);
}

#[tokio::test]
async fn whoever_waits_for_a_delayed_message_of_a_stream_gets_it_when_its_time_comes() {
    let (_folder, place, queue) = begin_stream(None).await;
    let now = place.now();
    let delayed = NewMessage {
        not_before: Some(now + 300_000),
        ..NewMessage::of("a")
    };
    queue.produce(delayed).await.unwrap();
    let read = claim_http_as(&queue, "s", "a", waiting_for(Duration::from_secs(60))).await;
    assert_eq!(read.len(), 1);
}
