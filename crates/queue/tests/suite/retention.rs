//! What a queue retains, and for how long.

use std::time::Duration;

use crate::support::{begin, claim, kept, keyed, letters, put_keyed, reason, reopened, settings, text, texts, until};
use thalweg_log::Durability;
use thalweg_queue::NewMessage;
use thalweg_queue::settings::{GroupMode, QueueSettings, RetentionMode};

const SECOND: Duration = Duration::from_secs(1);

fn policy(partitions: u32, groups: &[(&str, GroupMode)]) -> QueueSettings {
    let mut settings = settings(partitions, groups);
    settings.retention.mode = RetentionMode::Policy;
    settings
}

#[tokio::test]
async fn the_limit_of_number_is_that_of_the_queue_and_takes_the_oldest_of_all_partitions() {
    for durability in [Durability::Fsync, Durability::Memory] {
        let mut settings = policy(10, &[]);
        settings.retention.max_messages = 100;
        settings.durability = Some(durability);
        let (_folder, _place, queue) = begin(settings).await;
        for n in 0..100 {
            put_keyed(&queue, "one", &n.to_string()).await;
        }
        queue.look_after_now().await;
        assert_eq!(kept(&queue).await.len(), 100, "within its limits nothing goes");
        for n in 100..107 {
            put_keyed(&queue, &format!("key {n}"), &n.to_string()).await;
        }
        until("the limit holds", async || queue.stats().retained == 100).await;
        let mut left: Vec<u32> = kept(&queue).await.iter().map(|text| text.parse().unwrap()).collect();
        left.sort_unstable();
        assert_eq!(left, (7..107).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn the_limit_of_bytes_is_that_of_the_queue() {
    let mut settings = policy(10, &[]);
    settings.retention.max_bytes = 100_000;
    let (_folder, _place, queue) = begin(settings).await;
    let sent = |n: u8| keyed("one", vec![n; 9900]);
    for n in 0..10 {
        queue.produce(sent(n)).await.unwrap();
    }
    queue.look_after_now().await;
    assert_eq!(kept(&queue).await.len(), 10);
    queue.produce(sent(10)).await.unwrap();
    until("the limit holds", async || queue.bytes() <= 100_000).await;
    let left = queue.browse(None, None, 100).await.unwrap();
    let left: Vec<u8> = left.iter().map(|(_, message)| message.payload[0]).collect();
    assert_eq!(left, (1..=10).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_look_reads_no_more_bytes_than_it_may() {
    let (_folder, _place, queue) = begin(policy(10, &[])).await;
    for n in 0..10 {
        queue.produce(keyed("one", vec![n; 9900])).await.unwrap();
    }
    let partition = (0..queue.partition_count()).find(|n| queue.stats().partitions[*n as usize].1 > 0);
    let (mut from, mut pages) = (None, Vec::new());
    loop {
        let browsed = queue.browse_within(partition, from, 1000, 25_000).await.unwrap();
        pages.push(browsed.messages.len());
        from = browsed.messages.last().map(|(_, message)| message.offset + 1).or(from);
        if browsed.is_end {
            break;
        }
    }
    // The last message of a page may be the one that fills it.
    assert_eq!(pages, [3, 3, 3, 1]);
    let one = queue.browse_within(partition, None, 1000, 1).await.unwrap();
    assert_eq!((one.messages.len(), one.is_end), (1, false));
}

#[tokio::test]
async fn what_retention_took_is_in_no_streams_depth() {
    for durability in [Durability::Fsync, Durability::Memory] {
        let mut settings = policy(1, &[("s", GroupMode::Stream)]);
        settings.retention.max_messages = 5;
        settings.max_depth = 20;
        settings.durability = Some(durability);
        let (folder, place, queue) = begin(settings).await;
        for n in 0..20 {
            put_keyed(&queue, "k", &n.to_string()).await;
        }
        until("the limit holds", async || queue.stats().retained == 5).await;
        until("the depth follows", async || queue.depth() == 5).await;
        put_keyed(&queue, "k", "20").await;
        if durability == Durability::Fsync {
            let (_place, queue) = reopened(place, folder.path()).await;
            until("the depth is the same", async || {
                queue.depth() == queue.stats().retained
            })
            .await;
        }
    }
}

#[tokio::test]
async fn what_a_work_group_has_not_settled_stays_and_a_stream_may_be_protected_too() {
    for (mode, protect, stays) in [
        (GroupMode::Work, false, true),
        (GroupMode::Stream, false, false),
        (GroupMode::Stream, true, true),
    ] {
        let mut settings = policy(1, &[("g", mode)]);
        settings.retention.max_messages = 2;
        settings.retention.protect_streams = protect;
        let (_folder, _place, queue) = begin(settings).await;
        for n in 0..5 {
            put_keyed(&queue, "k", &n.to_string()).await;
        }
        until("retention has looked", async || {
            queue.look_after_now().await;
            queue.stats().retained == if stays { 5 } else { 2 }
        })
        .await;
        assert_eq!(
            kept(&queue).await.len(),
            if stays { 5 } else { 2 },
            "{mode:?} {protect}"
        );
    }
}

#[tokio::test]
async fn what_is_too_old_is_seen_no_more_and_goes_by_itself() {
    for groups in [&[][..], &[("s", GroupMode::Stream)][..]] {
        let mut settings = policy(2, groups);
        settings.retention.max_age = 100 * SECOND;
        let (_folder, place, queue) = begin(settings).await;
        put_keyed(&queue, "a", "old").await;
        place.later(50 * SECOND);
        put_keyed(&queue, "b", "young").await;
        assert_eq!(kept(&queue).await.len(), 2);
        // Far enough beyond the limit for a message that was stored late on a busy machine.
        place.later(90 * SECOND);
        assert_eq!(kept(&queue).await, ["young"]);
        assert_eq!((queue.stats().retained, queue.depth()), (1, 1));
    }
    let mut settings = policy(1, &[]);
    settings.retention.max_age = SECOND;
    let (_folder, _place, queue) = begin(settings).await;
    put_keyed(&queue, "a", "x").await;
    until("it goes though nobody looks", async || queue.stats().retained == 0).await;
}

#[tokio::test]
async fn without_groups_a_message_lives_as_long_as_it_says_from_when_it_is_due() {
    let mut short = settings(1, &[]);
    short.ttl = 2 * SECOND;
    let (_folder, place, queue) = begin(short).await;
    let now = place.now();
    put_keyed(&queue, "k", "now").await;
    let later = NewMessage {
        not_before: Some(now + (400 * SECOND).as_micros() as i64),
        ..NewMessage::of("later")
    };
    queue.produce(later).await.unwrap();
    place.later(330 * SECOND);
    assert_eq!(kept(&queue).await, ["later"]);
    place.later(69 * SECOND);
    assert_eq!(kept(&queue).await, ["later"]);
    place.later(4 * SECOND);
    assert!(kept(&queue).await.is_empty());
    assert_eq!((queue.depth(), queue.bytes()), (0, 0));
}

#[tokio::test]
async fn what_expires_while_nobody_claims_makes_room_and_becomes_a_dead_letter() {
    for restarted in [false, true] {
        let mut short = settings(2, &[("g", GroupMode::Work)]);
        short.ttl = SECOND;
        short.max_depth = 2;
        short.dlq.on_expire = true;
        let (folder, mut place, mut queue) = begin(short).await;
        put_keyed(&queue, "a", "1").await;
        put_keyed(&queue, "b", "2").await;
        if restarted {
            (place, queue) = reopened(place, folder.path()).await;
        }
        until("they expire though nobody looks", async || queue.depth() == 0).await;
        put_keyed(&queue, "a", "3").await;
        put_keyed(&queue, "a", "4").await;
        place.later(2 * SECOND);
        // Also before a producer is refused.
        put_keyed(&queue, "a", "5").await;
        assert_eq!(queue.depth(), 1);
        let group = queue.group("g").unwrap();
        assert_eq!(group.counters().expired.load(std::sync::atomic::Ordering::Relaxed), 4);
        let letters = letters(&queue).await;
        assert_eq!(letters.len(), 4);
        assert_eq!(reason(&letters[0]), Some("expired"));
        place.stop().await;
    }
}

#[tokio::test]
async fn what_expires_before_it_is_claimed_is_not_handed_out() {
    let mut short = settings(1, &[("g", GroupMode::Work)]);
    short.ttl = 10 * SECOND;
    short.dlq.on_expire = true;
    let (_folder, place, queue) = begin(short).await;
    put_keyed(&queue, "a", "old").await;
    place.later(11 * SECOND);
    put_keyed(&queue, "a", "new").await;
    let taken = claim(&queue, "g", 10).await;
    assert_eq!(texts(&taken), ["new"]);
    queue.look_after_now().await;
    let letters = letters(&queue).await;
    assert_eq!(letters.iter().map(text).collect::<Vec<_>>(), ["old"]);
}
