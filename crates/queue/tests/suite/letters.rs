//! Dead letters: resent, discarded, listed page by page.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{REJECT, begin, claim, claim_http, letters, put, restarted, settle, texts, work};
use thalweg_log::Durability;
use thalweg_log::format::record::Properties;
use thalweg_queue::message::TOPIC;
use thalweg_queue::settings::{GroupMode, GroupSettings, Overflow, QueueSettings, RetentionMode};
use thalweg_queue::{
    DeadLetterFilter, DeadLetterSelection, NewMessage, PROPERTIES_BYTES_MAX, Pause, Queue, REASON_BYTES_MAX, ResendTo,
    SeekTo, SettleAction,
};

/// Messages that die at once in group g.
async fn die(queue: &Arc<Queue>, texts: &[&str]) {
    put(queue, texts).await;
    let taken = claim_http(queue, "g", 1000).await;
    assert_eq!(taken.len(), texts.len());
    settle(queue, "g", &taken, REJECT).await;
}

/// The maximum bytes of properties that producers may set, in properties of all sizes, and a reason of any length.
#[tokio::test]
async fn a_message_with_all_the_properties_that_it_may_have_becomes_a_dead_letter_with_them() {
    let of_size = |bytes: usize| -> Vec<(String, String)> {
        let named = |n| (format!("{n:04x}"), "x".repeat(bytes - 4));
        (0..PROPERTIES_BYTES_MAX / bytes).map(named).collect()
    };
    let topic = (TOPIC.to_owned(), "t".repeat(PROPERTIES_BYTES_MAX - TOPIC.len()));
    for given in [of_size(4), of_size(100), of_size(10_000), vec![topic]] {
        let (_folder, _place, queue) = begin(work(1)).await;
        let properties: Properties = given.iter().map(|(name, value)| (name, value)).collect();
        assert!(properties.as_ref().text_bytes() <= PROPERTIES_BYTES_MAX);
        let message = NewMessage {
            properties,
            ..NewMessage::of("a")
        };
        queue.produce(message).await.unwrap();
        let taken = claim_http(&queue, "g", 1).await;
        let reason = "ä".repeat(100_000);
        let reject = SettleAction::Reject {
            reason: Some(reason.as_str().into()),
        };
        settle(&queue, "g", &taken, reject).await;
        let letters = letters(&queue).await;
        let letter = letters[0].properties.as_ref();
        for (name, value) in &given {
            assert_eq!(letter.get(name), Some(value.as_str()));
        }
        assert_eq!(letter.get("x-dlq-detail"), reason.get(..REASON_BYTES_MAX));
    }
}

fn all() -> DeadLetterSelection {
    DeadLetterSelection::Filter(DeadLetterFilter::default())
}

fn ids(ids: &[&str]) -> DeadLetterSelection {
    DeadLetterSelection::Ids(ids.iter().map(|id| id.parse().unwrap()).collect())
}

#[tokio::test]
async fn a_letter_whose_group_is_gone_stays_and_its_sender_is_told() {
    let (_folder, place, queue) = begin(work(1)).await;
    die(&queue, &["a"]).await;
    place.queues.remove_group(&queue, "g").await.unwrap();
    let resent = queue.resend(&all(), ResendTo::Source, None).await.unwrap();
    assert_eq!((resent.count, resent.stopped.unwrap().code()), (0, "group_not_found"));
    assert_eq!(letters(&queue).await.len(), 1);
    // Another queue is allowed.
    let other = place.queues.create("other", work(1)).await.unwrap();
    let resent = queue
        .resend(&all(), ResendTo::Queue("other".into()), None)
        .await
        .unwrap();
    assert_eq!((resent.count, letters(&queue).await.len()), (1, 0));
    assert_eq!(texts(&claim_http(&other, "g", 1000).await), ["a"]);
}

#[tokio::test]
async fn an_id_that_is_no_letters_is_not_found_also_where_none_ever_died() {
    let (_folder, _place, queue) = begin(work(1)).await;
    let wanted = ids(&["dlq.q:0:0"]);
    let error = queue.resend(&wanted, ResendTo::Source, None).await.unwrap_err();
    assert_eq!(error.code(), "message_not_found");
    assert_eq!(queue.purge_dead(&wanted).await.unwrap_err().code(), "message_not_found");
    assert_eq!(queue.purge_dead(&all()).await.unwrap(), 0);
    die(&queue, &["a"]).await;
    let wanted = ids(&["dlq.q:0:0", "dlq.q:0:7"]);
    let error = queue.resend(&wanted, ResendTo::Source, None).await.unwrap_err();
    assert_eq!((error.code(), letters(&queue).await.len()), ("message_not_found", 1));
}

#[tokio::test]
async fn sending_again_that_stops_half_way_says_how_many_it_has_sent() {
    let (_folder, _place, queue) = begin(QueueSettings {
        max_depth: 5,
        ..work(1)
    })
    .await;
    die(&queue, &["a", "b", "c", "d", "e"]).await;
    put(&queue, &["x"; 2]).await;
    let resent = queue.resend(&all(), ResendTo::Source, None).await.unwrap();
    assert_eq!((resent.count, resent.stopped.unwrap().code()), (3, "queue_full"));
    assert_eq!(letters(&queue).await.len(), 2);
    assert_eq!(texts(&claim_http(&queue, "g", 1000).await), ["x", "x", "a", "b", "c"]);
}

#[tokio::test]
async fn a_letter_that_is_gone_is_neither_found_nor_handed_out() {
    let (_folder, place, queue) = begin(work(1)).await;
    die(&queue, &["a", "b", "c"]).await;
    let dead = place.queues.get("dlq.q").unwrap();
    for mode in [GroupMode::Work, GroupMode::Stream] {
        let group = GroupSettings::new(mode.name(), mode);
        place.queues.create_group(&dead, group).await.unwrap();
    }
    assert_eq!(queue.purge_dead(&ids(&["dlq.q:0:1"])).await.unwrap(), 1);
    assert!(dead.find(0, 1).await.unwrap().is_none());
    let browsed = dead.browse(None, None, 2).await.unwrap();
    let offsets: Vec<u64> = browsed.iter().map(|(_, message)| message.offset).collect();
    assert_eq!(offsets, [0, 2]);
    assert_eq!(texts(&claim_http(&dead, "work", 1000).await), ["a", "c"]);
    assert_eq!(texts(&claim_http(&dead, "stream", 1000).await), ["a", "c"]);
}

#[tokio::test]
async fn a_letter_that_somebody_had_before_it_went_does_not_come_again() {
    let (_folder, place, queue) = begin(work(1)).await;
    die(&queue, &["a", "b"]).await;
    let dead = place.queues.get("dlq.q").unwrap();
    let group = GroupSettings::new("g", GroupMode::Work);
    place.queues.create_group(&dead, group).await.unwrap();
    assert_eq!(claim_http(&dead, "g", 1000).await.len(), 2);
    assert_eq!(queue.purge_dead(&ids(&["dlq.q:0:1"])).await.unwrap(), 1);
    place.later(Duration::from_secs(40));
    dead.look_after_now().await;
    place.later(Duration::from_secs(40));
    assert_eq!(texts(&claim_http(&dead, "g", 1000).await), ["a"]);
}

#[tokio::test]
async fn a_page_of_large_letters_ends_at_its_bytes_and_all_are_found_page_by_page() {
    let (_folder, _place, queue) = begin(QueueSettings {
        durability: Some(Durability::Memory),
        ..work(1)
    })
    .await;
    let large = "x".repeat(1 << 20);
    die(&queue, &[large.as_str(); 30]).await;
    let filter = DeadLetterFilter::default();
    let page = queue.dead_page(&filter, None, 1000).await.unwrap();
    assert_eq!(page.letters.len(), 24);
    let rest = queue.dead_page(&filter, page.next, 1000).await.unwrap();
    assert_eq!((rest.letters.len(), rest.next), (6, None));
    let resent = queue.resend(&all(), ResendTo::Source, None).await.unwrap();
    assert_eq!(resent.count, 30);
    assert_eq!(claim_http(&queue, "g", 1000).await.len(), 30);
}

#[tokio::test]
async fn the_number_of_letters_is_right_whatever_order_they_go_in_and_after_a_restart() {
    for durability in [Durability::Fsync, Durability::Memory] {
        let (folder, mut place, mut queue) = begin(QueueSettings {
            durability: Some(durability),
            ..work(1)
        })
        .await;
        die(&queue, &["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]).await;
        let first = letters(&queue).await[0].offset;
        let some: Vec<String> = (3..8).map(|n| format!("dlq.q:0:{}", first + n)).collect();
        let some: Vec<&str> = some.iter().map(String::as_str).collect();
        assert_eq!(queue.purge_dead(&ids(&some)).await.unwrap(), 5);
        if durability == Durability::Fsync {
            (place, queue) = restarted(place, folder.path()).await;
        }
        let dead = place.queues.get("dlq.q").unwrap();
        assert_eq!(dead.stats().retained, 5, "{durability:?}");
        let mut few = dead.settings().as_ref().clone();
        few.retention.mode = RetentionMode::Policy;
        few.retention.max_messages = 3;
        place.queues.configure("dlq.q", few).await.unwrap();
        dead.look_after_now().await;
        assert_eq!(
            dead.stats().retained,
            letters(&queue).await.len() as u64,
            "{durability:?}"
        );
    }
}

#[tokio::test]
async fn what_was_said_of_a_rejected_message_goes_with_the_purge_and_with_no_later_death() {
    let mut kept = work(1);
    kept.retention.mode = RetentionMode::Policy;
    let (_folder, _place, queue) = begin(kept).await;
    put(&queue, &["a"]).await;
    let group = queue.group("g").unwrap();
    let taken = claim_http(&queue, "g", 1).await;
    let reject = SettleAction::Reject {
        reason: Some("the first time".into()),
    };
    let verdict = (queue.receipt(&taken[0]), reject);
    queue.settle(&group, vec![verdict], false).await.unwrap();
    // Before it is among the dead letters.
    queue.purge().await.unwrap();
    assert!(letters(&queue).await.is_empty());
    queue.seek(&group, SeekTo::Earliest).await.unwrap();
    let taken = claim_http(&queue, "g", 1).await;
    settle(&queue, "g", &taken, REJECT).await;
    let letters = letters(&queue).await;
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].properties.as_ref().get("x-dlq-detail"), None);
}

/// A setting on a queue of dead letters has an effect, or is refused.
#[tokio::test]
async fn what_has_no_effect_on_dead_letters_is_refused_by_its_name() {
    let (_folder, place, queue) = begin(work(1)).await;
    put(&queue, &["a"]).await;
    settle(&queue, "g", &claim(&queue, "g", 1).await, REJECT).await;
    let dead = place.queues.get("dlq.q").unwrap();
    let given = (*dead.settings()).clone();
    for (key, settings) in [
        (
            "max_depth",
            QueueSettings {
                max_depth: 10,
                ..given.clone()
            },
        ),
        (
            "max_bytes",
            QueueSettings {
                max_bytes: 1 << 20,
                ..given.clone()
            },
        ),
        (
            "overflow",
            QueueSettings {
                overflow: Overflow::Block,
                ..given.clone()
            },
        ),
    ] {
        let refused = place.queues.configure("dlq.q", settings).await.unwrap_err();
        assert_eq!(refused.code(), "invalid_config");
        assert!(
            refused
                .to_string()
                .starts_with(&format!("{key}: dead letters arrive despite")),
            "{refused}"
        );
    }
    let mut settings = given;
    settings.retention.max_messages = 100;
    place.queues.configure("dlq.q", settings).await.unwrap();
    for what in [Pause::Produce, Pause::Both] {
        let refused = place.queues.pause(&dead, what, true).await.unwrap_err();
        assert!(
            refused.to_string().contains("dead letters must still arrive"),
            "{refused}"
        );
    }
    place.queues.pause(&dead, Pause::Consume, true).await.unwrap();
    place.queues.pause(&dead, Pause::Both, false).await.unwrap();
    // A dead letter sent there would have lost where it died.
    let to = ResendTo::Queue("dlq.q".into());
    let all = DeadLetterSelection::Filter(DeadLetterFilter::default());
    let refused = queue.resend(&all, to, None).await.unwrap_err();
    assert!(refused.to_string().contains("cannot be resent from there"), "{refused}");
    assert_eq!(letters(&queue).await.len(), 1);
    place.stop().await;
}
