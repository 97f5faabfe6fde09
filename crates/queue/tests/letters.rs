//! Dead letters: sent again, thrown away, looked at page by page.

#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::time::Duration;

use support::{REJECT, begin, claim_http, letters, put, settle, texts, work};
use thalweg_log::Durability;
use thalweg_queue::settings::{GroupMode, GroupSettings, QueueSettings};
use thalweg_queue::{DeadFilter, DeadSelect, Queue, ResendTo};

/// Messages that die at once in group g.
async fn die(queue: &Arc<Queue>, texts: &[&str]) {
    put(queue, texts).await;
    let taken = claim_http(queue, "g", 1000).await;
    assert_eq!(taken.len(), texts.len());
    settle(queue, "g", &taken, REJECT).await;
}

fn all() -> DeadSelect {
    DeadSelect::Filter(DeadFilter::default())
}

fn ids(ids: &[&str]) -> DeadSelect {
    DeadSelect::Ids(ids.iter().map(|id| id.parse().unwrap()).collect())
}

#[tokio::test]
async fn a_letter_whose_group_is_gone_stays_and_its_sender_is_told() {
    let (_folder, place, queue) = begin(work(1)).await;
    die(&queue, &["a"]).await;
    place.queues.remove_group(&queue, "g").await.unwrap();
    let resent = queue.resend(&all(), ResendTo::Source, None).await.unwrap();
    assert_eq!((resent.count, resent.stopped.unwrap().code()), (0, "group_not_found"));
    assert_eq!(letters(&queue).await.len(), 1);
    // Elsewhere it may go.
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
    let filter = DeadFilter::default();
    let page = queue.dead_page(&filter, None, 1000).await.unwrap();
    assert_eq!(page.letters.len(), 24);
    let rest = queue.dead_page(&filter, page.next, 1000).await.unwrap();
    assert_eq!((rest.letters.len(), rest.next), (6, None));
    let resent = queue.resend(&all(), ResendTo::Source, None).await.unwrap();
    assert_eq!(resent.count, 30);
    assert_eq!(claim_http(&queue, "g", 1000).await.len(), 30);
}
