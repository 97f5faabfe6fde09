//! Messages that are delayed for long sleep in the log: they hold up nobody, survive the process, and are all there when they
//! are due.

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use support::{Place, open, open_later};
use thalweg_log::Durability;
use thalweg_queue::members::MemberKind;
use thalweg_queue::settings::{GroupMode, GroupSettings, Overflow, QueueSettings};
use thalweg_queue::{ClaimWant, NewMessage, Queue};

const HOUR: Duration = Duration::from_secs(3600);
/// Far more than the window is wide, and not a whole number of spans.
const DELAYED: u64 = 3000;

fn settings() -> QueueSettings {
    QueueSettings {
        partitions: 1,
        max_pending: 100,
        groups: vec![GroupSettings::new("g", GroupMode::Work)],
        ..QueueSettings::default()
    }
}

/// A queue with messages that are due an hour from now, every third ten minutes later, and then one that is not delayed.
/// The clock goes on by itself, so nothing is looked at within three minutes of what happens.
async fn begin(folder: &Path, settings: QueueSettings) -> (Place, Arc<Queue>) {
    let place = open(folder).await;
    let queue = place.queues.create("q", settings).await.unwrap();
    put(&place, &queue).await;
    (place, queue)
}

async fn put(place: &Place, queue: &Arc<Queue>) {
    let due = thalweg_queue::Clock::now(place.clock.as_ref()) + HOUR.as_micros() as i64;
    for n in 0..DELAYED {
        let later = if n % 3 == 0 { 600_000_000 } else { 0 };
        let message = NewMessage {
            key: (n % 2 == 0).then(|| format!("key {}", n % 10).into()),
            not_before: Some(due + later),
            ..NewMessage::of(n.to_string())
        };
        queue.produce(message).await.unwrap();
    }
    queue.produce(NewMessage::of("now")).await.unwrap();
}

/// What a consumer gets and acks without waiting.
async fn take(queue: &Arc<Queue>) -> Vec<String> {
    let group = queue.group("g").unwrap();
    let mut all = Vec::new();
    loop {
        let want = ClaimWant {
            max: 64,
            ..ClaimWant::default()
        };
        let taken = queue.claim(&group, "c", MemberKind::Http, want).await.unwrap();
        if taken.is_empty() {
            return all;
        }
        for delivery in taken {
            let (offset, number) = (delivery.message.offset, delivery.delivery);
            assert_eq!(number, 1);
            queue.ack(&group, delivery.partition, offset, number).unwrap();
            all.push(String::from_utf8(delivery.message.payload.to_vec()).unwrap());
        }
        // As its task does when the time comes: there is room for the next.
        queue.look_after_now().await;
    }
}

fn assert_are(taken: &[String], wanted: impl Fn(u64) -> bool) {
    let set: BTreeSet<u64> = taken.iter().map(|text| text.parse().unwrap()).collect();
    assert_eq!(set.len(), taken.len(), "something came twice");
    assert!(set.into_iter().eq((0..DELAYED).filter(|n| wanted(*n))));
}

fn delayed(queue: &Queue) -> u64 {
    queue.stats().groups[0].counts.delayed
}

#[tokio::test]
async fn what_is_ready_is_not_kept_up_by_what_is_delayed_and_that_comes_in_its_time() {
    let folder = tempfile::tempdir().unwrap();
    let (place, queue) = begin(folder.path(), settings()).await;
    assert_eq!(take(&queue).await, ["now"]);
    assert_eq!(delayed(&queue), DELAYED);
    place.later(HOUR - Duration::from_secs(200));
    queue.look_after_now().await;
    assert_eq!(take(&queue).await.len(), 0);
    place.later(Duration::from_secs(400));
    queue.look_after_now().await;
    assert_are(&take(&queue).await, |n| n % 3 != 0);
    place.later(Duration::from_secs(600));
    queue.look_after_now().await;
    assert_are(&take(&queue).await, |n| n % 3 == 0);
    assert_eq!(delayed(&queue), 0);
    place.stop().await;
}

#[tokio::test]
async fn after_the_end_of_the_process_they_sleep_on_and_none_comes_twice() {
    for clean in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let (place, queue) = begin(folder.path(), settings()).await;
        assert_eq!(take(&queue).await, ["now"]);
        // A settle nobody waits for is stored with the next block.
        queue.produce(NewMessage::of("0")).await.unwrap();
        match clean {
            true => place.stop().await,
            false => place.kill(),
        }
        let place = open_later(folder.path(), HOUR + Duration::from_secs(200)).await;
        let queue = place.queues.get("q").unwrap();
        assert_eq!(delayed(&queue), DELAYED);
        queue.look_after_now().await;
        let first = take(&queue).await;
        // A third of them still sleeps, among those that are done.
        place.kill();
        let place = open_later(folder.path(), HOUR + Duration::from_secs(800)).await;
        let queue = place.queues.get("q").unwrap();
        queue.look_after_now().await;
        let mut all = [first, take(&queue).await].concat();
        let ready = all.iter().position(|text| text == "0").unwrap();
        all.remove(ready);
        assert_are(&all, |_| true);
        place.stop().await;
    }
}

#[tokio::test]
async fn in_memory_and_at_the_limit_of_depth_the_oldest_sleepers_go_first() {
    let folder = tempfile::tempdir().unwrap();
    let settings = QueueSettings {
        durability: Some(Durability::Memory),
        overflow: Overflow::DropOldest,
        max_depth: DELAYED / 2,
        ..settings()
    };
    let (place, queue) = begin(folder.path(), settings).await;
    assert_eq!(take(&queue).await, ["now"]);
    place.later(HOUR + Duration::from_secs(800));
    queue.look_after_now().await;
    let dropped = DELAYED - DELAYED / 2;
    assert_are(&take(&queue).await, |n| n > dropped);
    place.stop().await;
}
