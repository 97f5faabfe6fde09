//! Queues at their limits: what is refused, what waits, and what is dropped.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{
    Place, ack, begin, claim, dropped, kept, letters, open, put, put_keyed, reason, reopened, settings, text, texts,
    until,
};
use thalweg_log::Durability;
use thalweg_queue::members::MemberKind;
use thalweg_queue::settings::{GroupMode, Overflow, QueueOrdering as Order, QueueSettings, RetentionMode};
use thalweg_queue::{ClaimRequest, NewMessage, Queue, QueueError, SeekTo};

const WORK: [(&str, GroupMode); 1] = [("g", GroupMode::Work)];

fn dropping(partitions: u32, groups: &[(&str, GroupMode)]) -> QueueSettings {
    QueueSettings {
        overflow: Overflow::DropOldest,
        ..settings(partitions, groups)
    }
}

#[tokio::test]
async fn one_message_more_makes_one_dead_letter_of_the_oldest() {
    let mut settings = dropping(1, &WORK);
    settings.max_depth = 3;
    settings.dlq.on_overflow = true;
    let (folder, place, queue) = begin(settings).await;
    for n in 1..=4 {
        put(&queue, &[&n.to_string()]).await;
    }
    assert_eq!(queue.depth(), 3);
    let told = letters(&queue).await;
    let told: Vec<_> = told.iter().map(|letter| (text(letter), reason(letter))).collect();
    assert_eq!(told, [("1".to_owned(), Some("overflow"))]);

    // Messages from before the start must be read before they can become dead letters.
    let (_place, queue) = reopened(place, folder.path()).await;
    for n in 5..=6 {
        put(&queue, &[&n.to_string()]).await;
    }
    assert_eq!((queue.depth(), letters(&queue).await.len()), (3, 3));
    assert_eq!(texts(&claim(&queue, "g", 10).await), ["4", "5", "6"]);
}

#[tokio::test]
async fn as_many_go_as_have_to_for_the_bytes_of_another() {
    for durability in [Durability::Fsync, Durability::Memory] {
        let mut settings = dropping(1, &WORK);
        settings.max_bytes = 1 << 20;
        settings.durability = Some(durability);
        let (_folder, _place, queue) = begin(settings).await;
        for n in 0..11u8 {
            queue.produce(NewMessage::of(vec![n; 100_000])).await.unwrap();
        }
        let left: Vec<u8> = claim(&queue, "g", 20)
            .await
            .iter()
            .map(|of| of.message.payload[0])
            .collect();
        assert_eq!(left, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        assert_eq!(dropped(&queue, "overflow"), 1);
    }
}

#[tokio::test]
async fn nothing_goes_where_that_would_free_nothing() {
    let mut settings = dropping(1, &[("g", GroupMode::Work), ("behind", GroupMode::Stream)]);
    settings.max_bytes = 1 << 20;
    let (_folder, _place, queue) = begin(settings).await;
    let large = || NewMessage::of(vec![7; 100_000]);
    for _ in 0..10 {
        queue.produce(large()).await.unwrap();
    }
    assert_eq!(queue.produce(large()).await.unwrap_err().code(), "queue_full");
    assert_eq!((queue.depth(), dropped(&queue, "overflow")), (10, 0));
    // A message that never fits evicts nothing either.
    let larger = NewMessage::of(vec![7; 1 << 20]);
    assert_eq!(queue.produce(larger).await.unwrap_err().code(), "message_too_large");
    queue.commit(&queue.group("behind").unwrap(), 0, 10).await.unwrap();
    queue.produce(large()).await.unwrap();
    assert_eq!((queue.depth(), dropped(&queue, "overflow")), (10, 1));
}

#[tokio::test]
async fn nothing_goes_while_consumers_have_too_much_of_it() {
    let mut settings = dropping(1, &WORK);
    settings.max_depth = 3;
    let (_folder, _place, queue) = begin(settings).await;
    for n in 1..=3 {
        put(&queue, &[&n.to_string()]).await;
    }
    let taken = claim(&queue, "g", 2).await;
    let two = vec![NewMessage::of("4"), NewMessage::of("5")];
    assert_eq!(queue.produce_all(two).await.unwrap_err().code(), "queue_full");
    assert_eq!(dropped(&queue, "overflow"), 0);
    put(&queue, &["4"]).await;
    ack(&queue, "g", &taken);
    assert_eq!(texts(&claim(&queue, "g", 10).await), ["4"]);
}

#[tokio::test]
async fn the_oldest_of_all_partitions_goes_whatever_its_offset_is_also_after_a_restart() {
    let mut settings = dropping(2, &WORK);
    settings.max_depth = 4;
    let (folder, place, queue) = begin(settings).await;
    // "b" goes to one partition, "a" to the other, which has higher offsets.
    for n in 0..3 {
        put_keyed(&queue, "a", &format!("a{n}")).await;
    }
    ack(&queue, "g", &claim(&queue, "g", 1).await);
    ack(&queue, "g", &claim(&queue, "g", 1).await);
    for n in 0..2 {
        put_keyed(&queue, "b", &format!("b{n}")).await;
    }
    put_keyed(&queue, "b", "b2").await;
    put_keyed(&queue, "b", "b3").await;
    let (_place, queue) = reopened(place, folder.path()).await;
    assert_eq!(queue.depth(), 4);
    put_keyed(&queue, "a", "a3").await;
    let mut left = kept(&queue).await;
    left.retain(|text| text.starts_with('b'));
    assert_eq!((queue.depth(), dropped(&queue, "overflow")), (4, 1));
    let mut ready = Vec::new();
    for _ in 0..4 {
        let taken = claim(&queue, "g", 1).await;
        ready.extend(texts(&taken));
        ack(&queue, "g", &taken);
    }
    ready.sort();
    assert_eq!(ready, ["a3", "b1", "b2", "b3"]);
}

#[tokio::test]
async fn without_a_work_group_the_oldest_that_is_kept_goes() {
    for groups in [&[][..], &[("s", GroupMode::Stream)][..]] {
        let mut settings = dropping(1, groups);
        settings.max_depth = 3;
        let (_folder, _place, queue) = begin(settings).await;
        for n in 1..=5 {
            put(&queue, &[&n.to_string()]).await;
        }
        assert_eq!((queue.depth(), dropped(&queue, "overflow")), (3, 2));
        // What a stream group skipped is trimmed over time.
        until("what nobody needs goes", async || queue.stats().retained == 3).await;
        assert_eq!(kept(&queue).await, ["3", "4", "5"]);
        if !groups.is_empty() {
            let (group, want) = (queue.group("s").unwrap(), ClaimRequest::default());
            let told = queue.claim(&group, "c", MemberKind::Pipeline, want).await;
            assert_eq!(told.unwrap_err().code(), "offset_gap", "the stream is told, once");
            assert_eq!(texts(&claim(&queue, "s", 10).await), ["3", "4", "5"]);
        }
    }
}

#[tokio::test]
async fn bytes_are_the_same_before_and_after_a_restart_and_less_by_what_is_settled() {
    let mut settings = dropping(1, &WORK);
    settings.ordering = Order::None;
    settings.dedup_window = Duration::from_secs(60);
    let (folder, place, queue) = begin(settings).await;
    for n in 0..50u64 {
        let sent = NewMessage {
            key: (n % 2 == 0).then(|| b"key".to_vec().into()),
            ttl: (n % 3 == 0).then_some(Duration::from_secs(60)),
            properties: [("n", n.to_string())].into_iter().collect(),
            not_before: (n % 5 == 0).then_some(1),
            dedup_id: (n % 7 == 0).then(|| n.to_string().into()),
            ..NewMessage::of(vec![7; n as usize])
        };
        queue.produce(sent).await.unwrap();
    }
    let bytes = queue.bytes();
    let (place, queue) = reopened(place, folder.path()).await;
    assert_eq!(queue.bytes(), bytes);
    let taken = claim(&queue, "g", 20).await;
    ack(&queue, "g", &taken);
    until("what is settled goes", async || queue.stats().retained <= 30).await;
    let less = queue.bytes();
    assert!(0 < less && less < bytes, "{less} of {bytes}");
    place.stop().await;
    let place = open(folder.path()).await;
    assert_eq!(place.queue().bytes(), less);
}

#[tokio::test]
async fn a_queue_takes_no_byte_more_than_its_limit() {
    let mut settings = dropping(1, &WORK);
    settings.overflow = Overflow::Reject;
    let (_folder, place, queue) = begin(settings.clone()).await;
    queue.produce(NewMessage::of(vec![7; 1000])).await.unwrap();
    let one = queue.bytes();
    settings.max_bytes = 3 * one;
    place.queues.configure("q", settings.clone()).await.unwrap();
    for _ in 0..2 {
        queue.produce(NewMessage::of(vec![7; 1000])).await.unwrap();
    }
    let full = queue.produce(NewMessage::of("")).await.unwrap_err();
    assert_eq!(full.code(), "queue_full");
    assert!(full.to_string().contains("max_bytes"), "{full}");
    assert_eq!(queue.bytes(), 3 * one);
}

#[tokio::test]
async fn a_producer_of_a_durable_queue_waits_for_room_and_is_refused_when_none_comes() {
    let mut settings = dropping(1, &WORK);
    settings.overflow = Overflow::Block;
    settings.block_timeout = Duration::from_millis(300);
    settings.max_depth = 1;
    let (_folder, _place, queue) = begin(settings).await;
    put(&queue, &["1"]).await;
    assert_eq!(
        queue.produce(NewMessage::of("2")).await.unwrap_err().code(),
        "queue_full"
    );
    let producer = queue.clone();
    let waiting = tokio::spawn(async move { producer.produce(NewMessage::of("3")).await });
    tokio::time::sleep(Duration::from_millis(20)).await;
    ack(&queue, "g", &claim(&queue, "g", 1).await);
    waiting.await.unwrap().unwrap();
    assert_eq!(texts(&claim(&queue, "g", 10).await), ["3"]);
}

/// Committed messages, and after them as many as a stream may have: messages retained only by age do not count.
async fn after_a_history(streams: &[&str]) -> (tempfile::TempDir, Place, Arc<Queue>) {
    let streams: Vec<_> = streams.iter().map(|name| (*name, GroupMode::Stream)).collect();
    let mut settings = dropping(1, &streams);
    settings.max_depth = 3;
    settings.retention.mode = RetentionMode::Policy;
    settings.retention.max_age = Duration::from_secs(30 * 24 * 3600);
    let (folder, place, queue) = begin(settings).await;
    put(&queue, &["1", "2", "3"]).await;
    for (name, _) in &streams {
        queue.commit(&queue.group(name).unwrap(), 0, 3).await.unwrap();
    }
    put(&queue, &["4", "5", "6"]).await;
    (folder, place, queue)
}

#[tokio::test]
async fn a_stream_at_the_limit_passes_over_its_oldest_and_what_is_kept_by_age_stays() {
    let (folder, place, queue) = after_a_history(&["slow", "quick"]).await;
    queue.commit(&queue.group("quick").unwrap(), 0, 6).await.unwrap();
    put(&queue, &["7", "8"]).await;
    assert_eq!((queue.depth(), dropped(&queue, "overflow")), (3, 2));
    assert_eq!(kept(&queue).await, ["1", "2", "3", "4", "5", "6", "7", "8"]);
    assert_eq!(texts(&claim(&queue, "quick", 10).await), ["7", "8"]);
    let (group, want) = (queue.group("slow").unwrap(), ClaimRequest::default());
    let told = queue.claim(&group, "c", MemberKind::Pipeline, want).await;
    match told {
        Err(QueueError::OffsetGap { from, to, .. }) => assert_eq!((from, to), (3, 5)),
        told => panic!("{told:?}"),
    }
    assert_eq!(texts(&claim(&queue, "slow", 10).await), ["6", "7", "8"]);
    // Messages that it reported as lost are not read after a restart either.
    let (_place, queue) = reopened(place, folder.path()).await;
    assert_eq!(queue.depth(), 3);
    assert_eq!(texts(&claim(&queue, "slow", 10).await), ["6", "7", "8"]);
}

#[tokio::test]
async fn what_a_stream_has_in_hand_while_it_is_passed_over_may_still_be_acked() {
    let (_folder, _place, queue) = after_a_history(&["s"]).await;
    let taken = claim(&queue, "s", 2).await;
    assert_eq!(texts(&taken), ["4", "5"]);
    put(&queue, &["7"]).await;
    assert_eq!(queue.depth(), 3);
    ack(&queue, "s", &taken);
    assert_eq!(queue.depth(), 2);
    assert_eq!(texts(&claim(&queue, "s", 10).await), ["6", "7"]);
    queue.seek(&queue.group("s").unwrap(), SeekTo::Earliest).await.unwrap();
    assert_eq!(
        texts(&claim(&queue, "s", 10).await),
        ["1", "2", "3", "4", "5", "6", "7"]
    );
}
