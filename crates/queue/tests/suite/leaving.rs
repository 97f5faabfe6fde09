//! How messages leave a queue, and how that is counted.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::{
    NACK_NOW, REJECT, begin, claim, claim_http_as, dropped, letters, open, put, reason, restarted, settings, settle,
    texts, until, up_to, waiting_for, work,
};
use thalweg_log::Durability;
use thalweg_queue::members::MemberKind;
use thalweg_queue::settings::{GroupMode, GroupSettings, QueueSettings};
use thalweg_queue::{NewMessage, SeekTo, SettleAction};

#[tokio::test]
async fn a_message_that_fails_after_its_total_time_dies_of_that() {
    let mut settings = work(1);
    settings.retry.total_timeout = Duration::from_secs(60);
    let (_folder, place, queue) = begin(settings).await;
    put(&queue, &["x"]).await;
    // A long wait before the first delivery does not count as failing.
    place.later(Duration::from_secs(600));
    settle(&queue, "g", &claim(&queue, "g", 1).await, NACK_NOW).await;
    let again = claim(&queue, "g", 1).await;
    assert_eq!(again[0].delivery, 2);
    place.later(Duration::from_secs(20));
    settle(&queue, "g", &again, NACK_NOW).await;
    let again = claim(&queue, "g", 1).await;
    place.later(Duration::from_secs(41));
    queue.look_after_now().await;
    assert!(claim(&queue, "g", 1).await.is_empty());
    drop(again);
    let letters = letters(&queue).await;
    assert_eq!(letters.iter().filter_map(reason).collect::<Vec<_>>(), ["timeout"]);
}

#[tokio::test]
async fn without_dead_letters_what_dies_is_dropped_and_counted() {
    let mut settings = work(1);
    settings.dlq.enabled = false;
    settings.dlq.on_expire = true;
    settings.ttl = Duration::from_secs(60);
    let (_folder, place, queue) = begin(settings).await;
    put(&queue, &["x"; 3]).await;
    settle(&queue, "g", &claim(&queue, "g", 2).await, REJECT).await;
    place.later(Duration::from_secs(61));
    queue.look_after_now().await;
    assert!(place.queues.get("dlq.q").is_err());
    assert_eq!((queue.depth(), dropped(&queue, "rejected")), (0, 2));
    let counters = &queue.group("g").unwrap();
    assert_eq!(counters.counters().expired.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn what_is_purged_or_passed_over_is_counted_as_dropped() {
    let (_folder, _place, queue) = begin(work(1)).await;
    put(&queue, &["x"; 5]).await;
    let group = queue.group("g").unwrap();
    let to = SeekTo::Offset {
        partition: None,
        offset: 2,
    };
    queue.seek(&group, to).await.unwrap();
    assert_eq!((dropped(&queue, "seek"), dropped(&queue, "purge")), (2, 0));
    queue.purge().await.unwrap();
    assert_eq!((dropped(&queue, "seek"), dropped(&queue, "purge")), (2, 3));
    assert_eq!(group.counters().dropped.load(Ordering::Relaxed), 5);
}

#[tokio::test]
async fn an_ack_counts_once_however_often_it_is_repeated() {
    for mode in [GroupMode::Work, GroupMode::Stream] {
        let (_folder, _place, queue) = begin(settings(1, &[("g", mode)])).await;
        put(&queue, &["x"; 2]).await;
        let (group, taken) = (queue.group("g").unwrap(), claim(&queue, "g", 2).await);
        for _ in 0..3 {
            settle(&queue, "g", &taken, SettleAction::Ack).await;
            queue
                .ack(&group, 0, taken[1].message.offset, taken[1].delivery)
                .unwrap();
        }
        assert_eq!(group.acked(), 2, "{mode:?}");
    }
}

#[tokio::test]
async fn a_receipt_of_an_earlier_process_names_no_message_of_a_queue_in_memory() {
    let mut settings = work(1);
    settings.durability = Some(Durability::Memory);
    let (folder, place, queue) = begin(settings).await;
    put(&queue, &["x"]).await;
    let before = claim(&queue, "g", 1).await.remove(0);
    assert!(before.message.offset < 1 << 53, "exact in JSON");
    let (place, queue) = restarted(place, folder.path()).await;
    put(&queue, &["x"]).await;
    let after = claim(&queue, "g", 1).await.remove(0);
    assert!(before.message.offset < after.message.offset);
    let group = queue.group("g").unwrap();
    let _ = queue.ack(&group, 0, before.message.offset, 1);
    assert_eq!(queue.depth(), 1);
    let settings = QueueSettings {
        partitions: 3,
        ..(*queue.settings()).clone()
    };
    queue.ack(&group, 0, after.message.offset, 1).unwrap();
    place.queues.configure("q", settings).await.unwrap();
    assert_eq!(queue.depth(), 0, "a new partition is empty");
}

#[tokio::test]
async fn other_settings_hold_at_once_for_the_keeper_and_for_streams() {
    let mut settings = settings(1, &[("g", GroupMode::Stream)]);
    settings.max_pending = 3;
    let (_folder, place, queue) = begin(settings.clone()).await;
    put(&queue, &["x"; 10]).await;
    assert_eq!(claim(&queue, "g", 10).await.len(), 3);
    settings.max_pending = 5;
    place.queues.configure("q", settings.clone()).await.unwrap();
    assert_eq!(claim(&queue, "g", 10).await.len(), 2);

    let joined = GroupSettings::new("joined", GroupMode::Work);
    let group = place.queues.join_group(&queue, joined).await.unwrap();
    claim(&queue, "joined", 1).await;
    queue.leave(&group, "c");
    place.later(Duration::from_secs(100));
    settings.group_expiry = Duration::from_secs(60);
    place.queues.configure("q", settings).await.unwrap();
    until("it goes", async || queue.group("joined").is_err()).await;
}

#[tokio::test]
async fn a_process_has_so_many_partitions_and_no_more_also_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let place = open(folder.path()).await;
    let settings = QueueSettings {
        partitions: 1000,
        durability: Some(Durability::Memory),
        ..QueueSettings::default()
    };
    for n in 0..100 {
        place.queues.create(&format!("q{n}"), settings.clone()).await.unwrap();
    }
    let mut one = settings;
    one.partitions = 1;
    let refused = place.queues.create("more", one).await.err().unwrap();
    assert_eq!(refused.code(), "quota_exceeded");
    assert!(refused.to_string().contains("100000"), "{refused}");
}

/// Each change of a group rewrites the entry with all groups.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_has_so_many_groups_and_no_more_and_one_that_goes_makes_room() {
    let folder = tempfile::tempdir().unwrap();
    let place = open(folder.path()).await;
    let group = |n: usize| GroupSettings::new(&format!("g{n}"), GroupMode::Work);
    let settings = QueueSettings {
        durability: Some(Durability::Memory),
        groups: (0..1000).map(group).collect(),
        ..work(1)
    };
    let queue = place.queues.create("q", settings).await.unwrap();
    for n in 1000..2000 {
        place.queues.join_group(&queue, group(n)).await.unwrap();
    }
    let refused = place.queues.join_group(&queue, group(2000)).await.err().unwrap();
    assert_eq!((refused.code(), refused.http_status()), ("quota_exceeded", 429));
    assert!(
        refused.to_string().contains("no more than 2000 groups of one queue"),
        "{refused}"
    );
    // An existing group can still be joined.
    place.queues.join_group(&queue, group(1500)).await.unwrap();
    place.queues.remove_group(&queue, "g1500").await.unwrap();
    place.queues.join_group(&queue, group(2000)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_messages_with_one_dedup_id_that_come_together_one_is_stored_and_all_know_where() {
    let mut settings = work(1);
    settings.dedup_window = Duration::from_secs(60);
    let (_folder, _place, queue) = begin(settings).await;
    let producers: Vec<_> = (0..20)
        .map(|_| {
            let queue = queue.clone();
            let sent = NewMessage {
                dedup_id: Some("one".into()),
                ..NewMessage::of("x")
            };
            tokio::spawn(async move { queue.produce(sent).await.unwrap() })
        })
        .collect();
    let mut repeated = 0;
    for producer in producers {
        let produced = producer.await.unwrap();
        assert_eq!((produced.partition, produced.offset), (0, 0));
        repeated += u32::from(produced.repeated);
    }
    assert_eq!((repeated, queue.depth()), (19, 1));
}

/// Regression: a closed long poll kept its partition until `consumer_timeout`, and nobody got the messages there.
#[tokio::test]
async fn who_closes_a_long_poll_leaves_its_partitions_to_the_others() {
    let mut settings = work(2);
    settings.ordering = thalweg_queue::settings::QueueOrdering::Strict;
    let (_folder, place, queue) = begin(settings).await;
    let group = queue.group("g").unwrap();
    let poll = |consumer: &'static str| {
        let (queue, group) = (queue.clone(), group.clone());
        tokio::spawn(async move {
            let want = waiting_for(Duration::from_secs(3600));
            queue.claim(&group, consumer, MemberKind::Http, want).await.unwrap()
        })
    };
    let (closed, other) = (poll("a"), poll("b"));
    let dealt = || async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        place.later(Duration::from_millis(200));
        queue.look_after_now().await;
    };
    dealt().await;
    let shares: Vec<u32> = group
        .stats()
        .consumers
        .iter()
        .map(|(_, own, _)| own.len() as u32)
        .collect();
    assert_eq!(shares, [1, 1]);
    // Its future is dropped, as by a server that sees the disconnect.
    closed.abort();
    assert!(closed.await.is_err());
    dealt().await;
    assert_eq!(group.stats().consumers.len(), 1, "far less than its timeout has passed");
    // Without a key they go to one partition after the other.
    for text in ["1", "2"] {
        put(&queue, &[text]).await;
    }
    assert_eq!(
        tokio::time::timeout(Duration::from_secs(60), other)
            .await
            .unwrap()
            .unwrap()
            .len(),
        1
    );
    assert_eq!(texts(&claim_http_as(&queue, "g", "b", up_to(1)).await).len(), 1);
    place.stop().await;
}
