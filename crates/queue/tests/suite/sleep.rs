//! Long-delayed messages sleep in the log: they delay no other message, survive the process, and are all delivered when
//! they are due.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::support::{Place, ack, begin, claim_http, open_later, put, texts, work};
use thalweg_log::Durability;
use thalweg_queue::settings::{Overflow, QueueSettings};
use thalweg_queue::{NewMessage, Queue};

const HOUR: Duration = Duration::from_secs(3600);
/// Far more than the window is wide, and not a whole number of spans.
const DELAYED: u64 = 3000;

fn small_window() -> QueueSettings {
    QueueSettings {
        max_pending: 100,
        ..work(1)
    }
}

/// A queue with messages that are due in an hour, every third ten minutes later, and then one without a delay. The
/// clock runs on its own, so nothing is checked within three minutes of an event.
async fn begin_asleep(settings: QueueSettings) -> (tempfile::TempDir, Place, Arc<Queue>) {
    let (folder, place, queue) = begin(settings).await;
    let due = place.now() + HOUR.as_micros() as i64;
    for n in 0..DELAYED {
        let later = if n % 3 == 0 { 600_000_000 } else { 0 };
        let message = NewMessage {
            key: (n % 2 == 0).then(|| format!("key {}", n % 10).into()),
            not_before: Some(due + later),
            ..NewMessage::of(n.to_string())
        };
        queue.produce(message).await.unwrap();
    }
    put(&queue, &["now"]).await;
    (folder, place, queue)
}

/// What a consumer gets and acks without waiting.
async fn take(queue: &Arc<Queue>) -> Vec<String> {
    let mut all = Vec::new();
    loop {
        let taken = claim_http(queue, "g", 64).await;
        if taken.is_empty() {
            return all;
        }
        assert!(taken.iter().all(|delivery| delivery.delivery == 1));
        ack(queue, "g", &taken);
        all.extend(texts(&taken));
        // As its task does when the time comes: there is room for the next.
        queue.look_after_now().await;
    }
}

fn assert_are(taken: &[String], wanted: impl Fn(u64) -> bool) {
    let set: BTreeSet<u64> = taken.iter().map(|text| text.parse().unwrap()).collect();
    assert_eq!(set.len(), taken.len(), "something came twice");
    assert!(set.into_iter().eq((0..DELAYED).filter(|n| wanted(*n))));
}

fn delayed(queue: &Arc<Queue>) -> u64 {
    queue.stats().groups[0].counts.delayed
}

#[tokio::test]
async fn what_is_ready_is_not_kept_up_by_what_is_delayed_and_that_comes_in_its_time() {
    let (_folder, place, queue) = begin_asleep(small_window()).await;
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
        let (folder, place, queue) = begin_asleep(small_window()).await;
        assert_eq!(take(&queue).await, ["now"]);
        // A settlement without waiting is stored with the next block.
        put(&queue, &["0"]).await;
        place.end(clean).await;
        let place = open_later(folder.path(), HOUR + Duration::from_secs(200)).await;
        let queue = place.queue();
        assert_eq!(delayed(&queue), DELAYED);
        queue.look_after_now().await;
        let first = take(&queue).await;
        // A third of them still sleeps, among those that are done.
        place.kill();
        let place = open_later(folder.path(), HOUR + Duration::from_secs(800)).await;
        let queue = place.queue();
        queue.look_after_now().await;
        let mut all = [first, take(&queue).await].concat();
        let ready = all.iter().position(|text| text == "0").unwrap();
        all.remove(ready);
        assert_are(&all, |_| true);
        place.stop().await;
    }
}

#[tokio::test]
async fn in_memory_and_at_the_limit_of_depth_the_oldest_delayed_go_first() {
    let settings = QueueSettings {
        durability: Some(Durability::Memory),
        overflow: Overflow::DropOldest,
        max_depth: DELAYED / 2,
        ..small_window()
    };
    let (_folder, place, queue) = begin_asleep(settings).await;
    assert_eq!(take(&queue).await, ["now"]);
    place.later(HOUR + Duration::from_secs(800));
    queue.look_after_now().await;
    let dropped = DELAYED - DELAYED / 2;
    assert_are(&take(&queue).await, |n| n > dropped);
    place.stop().await;
}
