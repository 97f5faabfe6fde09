//! Changing, declaring and deleting queues and groups.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::support::{
    Place, ack, begin, claim, claim_http, keyed, letters, open_later, put, restarted, settle, texts, until, work,
    work_groups,
};
use thalweg_log::Durability;
use thalweg_queue::members::MemberKind;
use thalweg_queue::settings::{DeadLetterSettings, GroupMode, GroupSettings, QueueSettings, RetentionMode};
use thalweg_queue::{ClaimRequest, Group, NewMessage, Queue, SettleAction};

/// As a consumer creates it.
async fn joined(place: &Place, queue: &Arc<Queue>, name: &str) -> Arc<Group> {
    let group = GroupSettings::new(name, GroupMode::Work);
    place.queues.join_group(queue, group).await.unwrap()
}

fn declared(queue: &Queue, name: &str) -> bool {
    queue.group(name).unwrap().is_declared()
}

#[tokio::test]
async fn a_group_that_a_consumer_made_is_declared_by_the_list_and_by_a_call_also_after_a_restart() {
    let (folder, place, queue) = begin(work_groups(&[])).await;
    for name in ["a", "b"] {
        joined(&place, &queue, name).await;
        assert!(!declared(&queue, name));
    }
    place.queues.configure("q", work_groups(&["a"])).await.unwrap();
    let group = GroupSettings::new("b", GroupMode::Work);
    place.queues.create_group(&queue, group.clone()).await.unwrap();
    let again = place.queues.create_group(&queue, group).await;
    assert_eq!(again.err().unwrap().code(), "group_exists");
    assert!(declared(&queue, "a") && declared(&queue, "b"));
    let (_place, queue) = restarted(place, folder.path()).await;
    assert!(declared(&queue, "a") && declared(&queue, "b"));
}

#[tokio::test]
async fn a_group_that_leaves_the_list_may_expire_from_then_on() {
    let (_folder, place, queue) = begin(work_groups(&["a", "b"])).await;
    place.later(Duration::from_secs(200 * 3600));
    place.queues.configure("q", work_groups(&["b"])).await.unwrap();
    queue.look_after_now().await;
    assert!(!declared(&queue, "a") && declared(&queue, "b"), "its time begins now");
    place.later(Duration::from_secs(200 * 3600));
    queue.look_after_now().await;
    assert!(queue.group("a").is_err() && queue.group("b").is_ok());
}

#[tokio::test]
async fn a_group_keeps_mode_and_filter_and_whoever_declares_others_is_told_both() {
    let (_folder, place, queue) = begin(work_groups(&[])).await;
    joined(&place, &queue, "a").await;
    let mut wanted = work_groups(&["a"]);
    wanted.groups[0].mode = GroupMode::Stream;
    let error = place
        .queues
        .configure("q", wanted.clone())
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("mode work and filter #, which cannot become mode stream"),
        "{error}"
    );
    let put = place.queues.create_group(&queue, wanted.groups[0].clone()).await;
    assert_eq!(put.err().unwrap().code(), "invalid_config");
    wanted = work_groups(&["a"]);
    wanted.groups[0].filter = Some("plant/#".into());
    let error = place.queues.configure("q", wanted).await.unwrap_err().to_string();
    assert!(
        error.contains("filter #") && error.contains("filter plant/#"),
        "{error}"
    );
    assert!(!declared(&queue, "a") && queue.settings().groups.is_empty());
}

#[tokio::test]
async fn a_declared_group_that_was_deleted_is_no_setting_any_more_so_the_same_list_makes_it_anew() {
    let (folder, place, queue) = begin(work_groups(&["a", "b"])).await;
    place.queues.remove_group(&queue, "a").await.unwrap();
    assert_eq!(*queue.settings(), work_groups(&["b"]));
    let (place, queue) = restarted(place, folder.path()).await;
    assert_eq!(*queue.settings(), work_groups(&["b"]));
    place.queues.configure("q", work_groups(&["a", "b"])).await.unwrap();
    assert!(declared(&queue, "a"));
}

#[tokio::test]
async fn two_groups_of_one_name_and_topics_are_refused() {
    let (_folder, place, _queue) = begin(work_groups(&[])).await;
    let mut wanted = work_groups(&["a", "a"]);
    wanted.groups[0].filter = Some("x/#".into());
    let error = place.queues.configure("q", wanted).await.unwrap_err().to_string();
    assert!(
        error.starts_with("groups: group \"a\" is declared with two filters"),
        "{error}"
    );
    let wanted = QueueSettings {
        topics: vec!["a/#".into()],
        ..work_groups(&[])
    };
    let error = place.queues.create("other", wanted).await.err().unwrap().to_string();
    assert!(error.starts_with("topics: "), "{error}");
}

#[tokio::test]
async fn a_name_too_long_for_dead_letters_is_refused_however_the_queue_is_made() {
    let (_folder, place, _queue) = begin(work_groups(&[])).await;
    let name = "n".repeat(126);
    assert!(place.queues.create(&name, work_groups(&[])).await.is_err());
    let mut without = work_groups(&[]);
    without.dlq.enabled = false;
    place.queues.create(&name, without).await.unwrap();
    assert!(place.queues.configure(&name, work_groups(&[])).await.is_err());
    let mut letters = work_groups(&[]);
    letters.dlq.enabled = false;
    place.queues.create("dlq.q", letters).await.unwrap();
    let error = place
        .queues
        .configure("dlq.q", work_groups(&[]))
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("dead-letter queues have no dead letters of their own"),
        "{error}"
    );
}

#[tokio::test]
async fn a_queue_is_deleted_without_force_only_if_nobody_has_use_for_what_it_holds() {
    let (_folder, place, queue) = begin(work_groups(&["work"])).await;
    let stream = GroupSettings::new("stream", GroupMode::Stream);
    place.queues.join_group(&queue, stream).await.unwrap();
    queue.produce(NewMessage::of("a")).await.unwrap();
    ack(&queue, "work", &claim_http(&queue, "work", 1).await);
    assert_eq!(queue.depth(), 0);
    let error = place.queues.remove("q", false).await.unwrap_err().to_string();
    assert!(error.contains("holds 1 messages"), "{error}");
    queue.commit(&queue.group("stream").unwrap(), 0, 1).await.unwrap();
    place.queues.remove("q", false).await.unwrap();

    let mut kept = work_groups(&["work"]);
    kept.retention.mode = RetentionMode::Policy;
    let queue = place.queues.create("kept", kept).await.unwrap();
    queue.produce(NewMessage::of("a")).await.unwrap();
    queue.purge().await.unwrap();
    assert!(place.queues.remove("kept", false).await.is_err());
    place.queues.remove("kept", true).await.unwrap();
}

/// One key is produced and consumed all the time, while the queue grows as soon as it may.
async fn key_stays_together(durability: Durability) {
    let grown = |partitions: u32| QueueSettings {
        partitions,
        durability: Some(durability),
        ..work_groups(&["g"])
    };
    let (_folder, place, queue) = begin(grown(1)).await;
    let stop = Arc::new(AtomicBool::new(false));
    let producer = tokio::spawn({
        let (queue, stop) = (queue.clone(), stop.clone());
        async move {
            while !stop.load(Ordering::Relaxed) {
                queue.produce(keyed("one", "x")).await.unwrap();
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    });
    let seen = Arc::new(Mutex::new(Vec::new()));
    let consumer = tokio::spawn({
        let (queue, seen) = (queue.clone(), seen.clone());
        let (group, want) = (
            queue.group("g").unwrap(),
            ClaimRequest {
                max: 100,
                wait: Duration::from_millis(100),
                ..ClaimRequest::default()
            },
        );
        async move {
            loop {
                let taken = queue.claim(&group, "c", MemberKind::Http, want).await.unwrap();
                for delivery in &taken {
                    let (partition, offset) = (delivery.partition, delivery.message.offset);
                    queue.ack(&group, partition, offset, delivery.delivery).unwrap();
                    seen.lock().unwrap().push(partition);
                }
            }
        }
    });
    let began = Instant::now();
    while place.queues.configure("q", grown(50)).await.is_err() {
        assert!(began.elapsed() < Duration::from_secs(60), "it was never empty");
        tokio::task::yield_now().await;
    }
    let before = seen.lock().unwrap().len();
    while seen.lock().unwrap().len() < before + 50 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    stop.store(true, Ordering::Relaxed);
    producer.await.unwrap();
    consumer.abort();
    // All earlier messages are in the old partition, all later ones in one other.
    let mut partitions = seen.lock().unwrap().clone();
    partitions.dedup();
    assert!(partitions.len() <= 2, "{partitions:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_key_is_never_in_two_partitions_at_once_while_a_queue_grows_beside_its_producer() {
    key_stays_together(Durability::Os).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_same_in_memory() {
    key_stays_together(Durability::Memory).await;
}

#[tokio::test]
async fn a_durability_that_the_queue_does_not_have_is_refused_and_none_keeps_what_it_has() {
    let with = |durability| QueueSettings {
        durability,
        ..work_groups(&["g"])
    };
    let (folder, place, queue) = begin(with(Some(Durability::Os))).await;
    for wanted in [Durability::Fsync, Durability::Interval, Durability::Memory] {
        let refused = place.queues.configure("q", with(Some(wanted))).await;
        let refused = refused.unwrap_err().to_string();
        assert!(
            refused.starts_with("durability: os cannot become") && refused.contains("create it anew"),
            "{refused}"
        );
        assert_eq!(*queue.settings(), with(Some(Durability::Os)));
    }
    for wanted in [None, Some(Durability::Os)] {
        place.queues.configure("q", with(wanted)).await.unwrap();
        assert_eq!(queue.durability(), Durability::Os);
    }
    place.queues.configure("q", with(None)).await.unwrap();
    let (_place, queue) = restarted(place, folder.path()).await;
    assert_eq!(queue.durability(), Durability::Os);
}

#[tokio::test]
async fn a_group_that_was_removed_hands_nothing_out_to_whoever_knows_it_and_ends_the_claims_that_wait() {
    let (_folder, place, queue) = begin(work_groups(&["g", "other"])).await;
    let group = queue.group("g").unwrap();
    let want = ClaimRequest {
        wait: Duration::from_secs(3600),
        ..ClaimRequest::default()
    };
    let waiting = tokio::spawn({
        let (queue, group) = (queue.clone(), group.clone());
        async move { queue.claim(&group, "c", MemberKind::Pipeline, want).await }
    });
    let mut asking = queue.ask(&group, "d", MemberKind::Pipeline).unwrap();
    until("both have their shares, and one waits", async || {
        let stats = group.stats();
        stats.consumers.len() == 2 && stats.generation > 0
    })
    .await;
    place.queues.remove_group(&queue, "g").await.unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(20), waiting).await.unwrap();
    assert_eq!(ended.unwrap().unwrap_err().code(), "group_not_found");
    queue.produce(NewMessage::of("a")).await.unwrap();
    let again = queue.claim(&group, "c", MemberKind::Pipeline, want).await;
    assert_eq!(again.unwrap_err().code(), "group_not_found");
    let now = asking.claim_now(want, &mut Vec::new());
    assert_eq!(now.unwrap_err().code(), "group_not_found");
    // A new group of that name is a different one.
    let anew = joined(&place, &queue, "g").await;
    queue.produce(NewMessage::of("b")).await.unwrap();
    let taken = queue.claim(&anew, "c", MemberKind::Pipeline, want).await.unwrap();
    assert_eq!(taken.len(), 1);
}

/// A checkpoint contains the state of all groups, and a start reads nothing before it. One that was started before a
/// group was created must not be written after what that group has settled.
#[tokio::test]
async fn what_a_new_group_has_settled_stays_so_whatever_the_queue_writes_meanwhile() {
    let (folder, mut place, mut queue) = begin(QueueSettings {
        dlq: DeadLetterSettings {
            on_expire: true,
            ..QueueSettings::default().dlq
        },
        ttl: Duration::ZERO,
        ..work(1)
    })
    .await;
    put(&queue, &["a", "b"]).await;
    for n in 0..10 {
        let lives = |seconds| NewMessage {
            ttl: Some(Duration::from_secs(seconds)),
            ..NewMessage::of("is a dead letter soon")
        };
        queue.produce(lives(20)).await.unwrap();
        claim_http(&queue, "g", 1).await;
        place.later(Duration::from_secs(31));
        // Wakes the task of the queue: it has dead letters to move, and then a checkpoint to write.
        queue.produce(lives(1)).await.unwrap();
        for _ in 0..n {
            tokio::task::yield_now().await;
        }
        let name = format!("late-{n}");
        let late = GroupSettings::new(&name, GroupMode::Work);
        place.queues.create_group(&queue, late).await.unwrap();
        let mut settled = 0;
        loop {
            let taken = claim(&queue, &name, 100).await;
            if taken.is_empty() {
                break;
            }
            settled += taken.len();
            settle(&queue, &name, &taken, SettleAction::Ack).await;
        }
        assert!(settled >= 2, "{name} begins with all that is there");
        until("the task has done what is due", async || {
            letters(&queue).await.len() > n
        })
        .await;
        place.kill();
        // Expired messages are still expired after the start.
        place = open_later(folder.path(), Duration::from_secs(31 * (n as u64 + 1))).await;
        queue = place.queue();
        let again = claim(&queue, &name, 100).await;
        assert!(again.is_empty(), "{name}: {:?}", texts(&again));
        place.queues.remove_group(&queue, &name).await.unwrap();
    }
}
