//! Queues on a real log in a folder: what a user sees, before and after a restart.

use std::time::Duration;

use crate::support::{
    NACK_NOW, Place, ack, begin, claim, claim_http, claim_http_as, letters, nack_in, open, open_later, put, put_keyed,
    reason, reopened, restarted, settings, settle, texts, until, up_to, waiting_for, work,
};
use thalweg_log::Durability;
use thalweg_queue::members::MemberKind;
use thalweg_queue::settings::{GroupMode, GroupSettings, QueueOrdering as Order, QueueSettings};
use thalweg_queue::{
    ClaimRequest, DeadLetterSelection, MessageId, NewMessage, Receipt, ResendTo, SeekTo, SettleAction,
};

#[tokio::test]
async fn every_group_sees_every_message_and_goes_on_where_it_was_after_a_restart() {
    let groups = [("alarms", GroupMode::Work), ("live", GroupMode::Stream)];
    let (folder, place, queue) = begin(settings(1, &groups)).await;
    put(&queue, &["a", "b", "c", "d"]).await;
    let first = claim_http(&queue, "alarms", 2).await;
    assert_eq!(texts(&first), ["a", "b"]);
    settle(&queue, "alarms", &first, SettleAction::Ack).await;
    let seen = claim_http(&queue, "live", 3).await;
    assert_eq!(texts(&seen), ["a", "b", "c"]);
    settle(&queue, "live", &seen[..1], SettleAction::Ack).await;
    assert_eq!(queue.depth(), 2);

    let (place, queue) = reopened(place, folder.path()).await;
    assert_eq!(queue.depth(), 2);
    let rest = claim_http(&queue, "alarms", 10).await;
    assert_eq!(texts(&rest), ["c", "d"]);
    assert!(rest.iter().all(|delivery| delivery.delivery == 1));
    settle(&queue, "alarms", &rest, SettleAction::Ack).await;
    assert_eq!(texts(&claim_http(&queue, "live", 10).await), ["b", "c", "d"]);
    assert_eq!(queue.depth(), 0);

    let (_place, queue) = restarted(place, folder.path()).await;
    assert!(claim_http(&queue, "alarms", 10).await.is_empty());
    assert_eq!(queue.stats().groups[0].backlog, 0);
}

#[tokio::test]
async fn a_lease_outlives_the_process_and_its_delivery_number_rises_when_it_ends() {
    let (folder, place, queue) = begin(work(1)).await;
    put(&queue, &["a"]).await;
    let taken = claim_http(&queue, "g", 1).await;

    let (place, queue) = restarted(place, folder.path()).await;
    let others = claim_http_as(&queue, "g", "other", up_to(1)).await;
    assert!(others.is_empty(), "it is leased still");
    // The old receipt still counts.
    settle(&queue, "g", &taken, NACK_NOW).await;
    let again = claim_http_as(&queue, "g", "other", up_to(1)).await;
    assert_eq!((again.len(), again[0].delivery), (1, 2));
    place.later(Duration::from_secs(31));
    let third = claim_http_as(&queue, "g", "other", up_to(1)).await;
    assert!(third.is_empty(), "a failed delivery waits for its backoff");
    place.later(Duration::from_secs(60));
    let third = claim_http_as(&queue, "g", "other", up_to(1)).await;
    assert_eq!(third.first().map(|delivery| delivery.delivery), Some(3));
}

#[tokio::test]
async fn a_claim_that_waits_is_woken_by_a_message_and_by_a_retry() {
    let (_folder, _place, queue) = begin(work(3)).await;
    let (waiting, want) = (queue.clone(), waiting_for(Duration::from_secs(60)));
    let claimed = tokio::spawn(async move { claim_http_as(&waiting, "g", "c", want).await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    put(&queue, &["a"]).await;
    let taken = claimed.await.unwrap();
    assert_eq!(texts(&taken), ["a"]);
    let later = nack_in(Duration::from_millis(50));
    settle(&queue, "g", &taken, later).await;
    let again = claim_http_as(&queue, "g", "c", want).await;
    assert_eq!((texts(&again), again[0].delivery), (vec!["a".to_owned()], 2));
}

#[tokio::test]
async fn a_failing_message_holds_up_its_own_key_alone() {
    let (_folder, place, queue) = begin(work(1)).await;
    for (key, text) in [("a", "a1"), ("a", "a2"), ("b", "b1"), ("b", "b2")] {
        put_keyed(&queue, key, text).await;
    }
    let taken = claim_http(&queue, "g", 10).await;
    assert_eq!(texts(&taken), ["a1", "b1"]);
    let later = nack_in(Duration::from_secs(60));
    settle(&queue, "g", &taken[..1], later).await;
    settle(&queue, "g", &taken[1..], SettleAction::Ack).await;
    assert_eq!(texts(&claim_http(&queue, "g", 10).await), ["b2"]);
    place.later(Duration::from_secs(61));
    assert_eq!(texts(&claim_http(&queue, "g", 10).await), ["a1"]);
}

#[tokio::test]
async fn why_the_last_try_failed_is_told_with_the_dead_letter_and_earlier_reasons_are_not() {
    let mut one_retry = work(1);
    one_retry.retry.max_retries = 1;
    let (_folder, _place, queue) = begin(one_retry).await;
    put(&queue, &["bad", "worse"]).await;
    for reasons in [[Some("busy"), Some("busy")], [Some("no such pump"), None]] {
        let taken = claim_http(&queue, "g", 2).await;
        assert_eq!(texts(&taken), ["bad", "worse"]);
        for (delivery, reason) in taken.iter().zip(reasons) {
            let failed = SettleAction::Nack {
                delay: Some(Duration::ZERO),
                reason: reason.map(Box::from),
            };
            settle(&queue, "g", std::slice::from_ref(delivery), failed).await;
        }
    }
    let letters = letters(&queue).await;
    let told: Vec<_> = letters
        .iter()
        .map(|letter| {
            let detail = letter.properties.as_ref().get("x-dlq-detail");
            (reason(letter), detail)
        })
        .collect();
    let died = Some("max_retries");
    assert_eq!(told, [(died, Some("no such pump")), (died, None)]);
}

#[tokio::test]
async fn a_rejected_message_is_a_dead_letter_that_can_be_sent_again() {
    let groups = [("g", GroupMode::Work), ("other", GroupMode::Work)];
    let (folder, place, queue) = begin(settings(2, &groups)).await;
    put_keyed(&queue, "k", "bad").await;
    let taken = claim_http(&queue, "g", 1).await;
    let reject = SettleAction::Reject {
        reason: Some("no such pump".into()),
    };
    settle(&queue, "g", &taken, reject).await;
    settle(
        &queue,
        "other",
        &claim_http(&queue, "other", 1).await,
        SettleAction::Ack,
    )
    .await;

    let (_place, queue) = reopened(place, folder.path()).await;
    assert!(claim_http(&queue, "g", 1).await.is_empty());
    let dead = letters(&queue).await;
    let letter = &dead[0];
    let property = |name: &str| letter.properties.as_ref().get(name).unwrap_or_default().to_owned();
    assert_eq!(property("x-dlq-reason"), "rejected");
    assert_eq!(property("x-dlq-detail"), "no such pump");
    assert_eq!(property("x-dlq-group"), "g");
    assert_eq!(property("x-dlq-deliveries"), "1");
    let id = MessageId {
        queue: "dlq.q".into(),
        partition: 0,
        offset: letter.offset,
    };
    let sent = queue
        .resend(&DeadLetterSelection::Ids(vec![id.clone()]), ResendTo::Source, None)
        .await;
    assert_eq!(sent.unwrap().count, 1);
    assert!(letters(&queue).await.is_empty());
    assert!(
        claim_http(&queue, "other", 1).await.is_empty(),
        "it is for the group in which it died"
    );
    let again = claim_http(&queue, "g", 1).await;
    assert_eq!((texts(&again), again[0].delivery), (vec!["bad".to_owned()], 1));
    assert!(
        queue
            .resend(&DeadLetterSelection::Ids(vec![id]), ResendTo::Source, None)
            .await
            .is_err()
    );
}

#[tokio::test]
async fn a_message_that_fails_too_often_dies_and_its_queue_is_empty() {
    let mut settings = work(1);
    settings.retry.max_retries = 2;
    let (_folder, _place, queue) = begin(settings).await;
    put(&queue, &["a"]).await;
    for delivery in 1..=3 {
        let taken = claim_http(&queue, "g", 1).await;
        assert_eq!(taken[0].delivery, delivery);
        settle(&queue, "g", &taken, NACK_NOW).await;
    }
    assert!(claim_http(&queue, "g", 1).await.is_empty());
    assert_eq!(letters(&queue).await.len(), 1);
    assert_eq!(queue.depth(), 0);
}

#[tokio::test]
async fn a_full_queue_refuses_until_something_is_settled() {
    let mut settings = work(1);
    settings.max_depth = 2;
    let (_folder, _place, queue) = begin(settings).await;
    put(&queue, &["a", "b"]).await;
    let refused = queue.produce(NewMessage::of("c")).await.unwrap_err();
    assert_eq!(refused.code(), "queue_full");
    settle(&queue, "g", &claim_http(&queue, "g", 1).await, SettleAction::Ack).await;
    put(&queue, &["c"]).await;
    let too_many = queue.produce_all(vec![NewMessage::of("d"), NewMessage::of("e")]).await;
    assert_eq!(too_many.unwrap_err().code(), "queue_full");
    assert_eq!(texts(&claim_http(&queue, "g", 10).await), ["b", "c"]);
}

#[tokio::test]
async fn a_repeated_dedup_id_gets_the_place_of_the_first_also_after_a_restart() {
    let mut settings = work(3);
    settings.dedup_window = Duration::from_secs(600);
    let (folder, place, queue) = begin(settings).await;
    let message = || NewMessage {
        dedup_id: Some("order-1".into()),
        ..NewMessage::of("x")
    };
    let first = queue.produce(message()).await.unwrap();
    let second = queue.produce(message()).await.unwrap();
    assert_eq!(
        (second.offset, second.partition, second.repeated),
        (first.offset, first.partition, true)
    );
    let (_place, queue) = reopened(place, folder.path()).await;
    assert!(queue.produce(message()).await.unwrap().repeated);
    assert_eq!(claim_http(&queue, "g", 10).await.len(), 1);
}

#[tokio::test]
async fn a_dedup_id_is_known_after_a_restart_whatever_became_of_its_message_until_its_window_has_passed() {
    const WINDOW: Duration = Duration::from_secs(600);
    let with_window = |window: Duration| QueueSettings {
        dedup_window: window,
        ordering: Order::None,
        ..work(3)
    };
    let message = |n: u32| NewMessage {
        dedup_id: Some(n.to_string().into()),
        key: (n.is_multiple_of(2)).then(|| n.to_string().into()),
        ..NewMessage::of("x")
    };
    let (folder, mut place, queue) = begin(with_window(WINDOW)).await;
    let batch = queue.produce_all((0..100).map(message).collect()).await.unwrap();
    let places: Vec<_> = batch.iter().map(|sent| (sent.partition, sent.offset)).collect();
    settle(&queue, "g", &claim_http(&queue, "g", 50).await, SettleAction::Ack).await;
    settle(&queue, "g", &claim_http(&queue, "g", 50).await, SettleAction::Ack).await;
    while !queue.browse(None, None, 1).await.unwrap().is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for round in 0..3 {
        place.kill();
        place = open_later(folder.path(), WINDOW / 4 * round).await;
        let queue = place.queue();
        let again = queue.produce_all((0..100).map(message).collect()).await.unwrap();
        let repeated: Vec<_> = again
            .iter()
            .filter(|sent| sent.repeated)
            .map(|sent| (sent.partition, sent.offset))
            .collect();
        assert_eq!(repeated, places, "round {round}");
    }
    let kept = |place: &Place| {
        let (log, all) = (place.log.clone(), place.log.partitions());
        let of_ids = all.into_iter().filter(|id| id.queue & 1 << 30 != 0);
        of_ids
            .map(|id| log.bounds(id).unwrap())
            .map(|at| at.next - at.first)
            .collect::<Vec<u64>>()
    };
    assert_eq!(kept(&place).iter().sum::<u64>(), 100);
    // The window has passed: they are new, and none of the old ones is kept.
    place.kill();
    let place = open_later(folder.path(), WINDOW * 2).await;
    let queue = place.queue();
    queue.look_after_now().await;
    assert_eq!((kept(&place).len(), kept(&place).iter().sum::<u64>()), (3, 0));
    assert!(!queue.produce(message(7)).await.unwrap().repeated);
    // Without a window nothing is left. A new window starts empty, also in partitions that are added then.
    place.queues.configure("q", with_window(Duration::ZERO)).await.unwrap();
    assert_eq!(kept(&place).iter().sum::<u64>(), 0);
    let more = QueueSettings {
        partitions: 4,
        ..with_window(WINDOW)
    };
    place.queues.configure("q", more).await.unwrap();
    assert_eq!(kept(&place).len(), 4);
    assert!(!queue.produce(message(7)).await.unwrap().repeated);
    assert!(!queue.produce(message(107)).await.unwrap().repeated);
    assert!(queue.produce(message(107)).await.unwrap().repeated);
}

#[tokio::test]
async fn seek_and_purge_move_a_group() {
    let mut settings = settings(1, &[("g", GroupMode::Work), ("s", GroupMode::Stream)]);
    settings.ordering = Order::None;
    let (_folder, _place, queue) = begin(settings).await;
    put(&queue, &["a", "b", "c"]).await;
    let (work, stream) = (queue.group("g").unwrap(), queue.group("s").unwrap());
    settle(&queue, "g", &claim_http(&queue, "g", 2).await, SettleAction::Ack).await;
    queue.seek(&work, SeekTo::Earliest).await.unwrap();
    assert_eq!(texts(&claim_http(&queue, "g", 10).await), ["a", "b", "c"]);
    queue.commit(&stream, 0, 2).await.unwrap();
    assert_eq!(texts(&claim_http(&queue, "s", 10).await), ["c"]);
    assert_eq!(queue.purge().await.unwrap(), 3);
    assert!(claim_http(&queue, "g", 10).await.is_empty());
    assert_eq!(queue.depth(), 0);
    put(&queue, &["d"]).await;
    assert_eq!(texts(&claim_http(&queue, "g", 10).await), ["d"]);
    assert_eq!(texts(&claim_http(&queue, "s", 10).await), ["d"]);
}

#[tokio::test]
async fn a_queue_in_memory_does_the_same_and_is_empty_after_a_restart() {
    let mut settings = work(2);
    settings.durability = Some(Durability::Memory);
    let (folder, place, queue) = begin(settings).await;
    for n in 0..600 {
        put_keyed(&queue, &format!("k{}", n % 7), &n.to_string()).await;
    }
    let mut seen = 0;
    loop {
        let taken = claim_http(&queue, "g", 100).await;
        if taken.is_empty() {
            break;
        }
        seen += taken.len();
        settle(&queue, "g", &taken, SettleAction::Ack).await;
    }
    assert_eq!((seen, queue.depth()), (600, 0));
    put(&queue, &["last"]).await;
    let (_place, queue) = restarted(place, folder.path()).await;
    assert!(claim_http(&queue, "g", 10).await.is_empty());
    put(&queue, &["new"]).await;
    assert_eq!(texts(&claim_http(&queue, "g", 10).await), ["new"]);
}

/// A claim in memory reads a clock that is a tick behind.
#[tokio::test]
async fn what_came_due_within_the_last_tick_is_found_at_once() {
    let mut settings = work(1);
    settings.durability = Some(Durability::Memory);
    let (_folder, place, queue) = begin(settings).await;
    put(&queue, &["a"]).await;
    let delay = Duration::from_millis(100);
    settle(&queue, "g", &claim_http(&queue, "g", 1).await, nack_in(delay)).await;
    place.clock.later(delay + Duration::from_millis(3));
    assert_eq!(texts(&claim_http(&queue, "g", 1).await), ["a"]);
}

#[tokio::test]
async fn what_was_settled_is_let_go() {
    let (_folder, _place, queue) = begin(work(1)).await;
    put(&queue, &["a", "b", "c"]).await;
    settle(&queue, "g", &claim_http(&queue, "g", 2).await, SettleAction::Ack).await;
    until("what was settled goes", async || queue.stats().partitions[0].0 >= 2).await;
    assert_eq!(queue.stats().retained, 1);
    assert_eq!(queue.browse(None, None, 10).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_group_that_nobody_declared_goes_when_it_has_long_had_no_member_and_what_it_held_up_with_it() {
    let mut settings = settings(1, &[("declared", GroupMode::Work)]);
    settings.group_expiry = Duration::from_secs(3600);
    let (folder, place, queue) = begin(settings).await;
    let joined = GroupSettings::new("joined", GroupMode::Work);
    let group = place.queues.join_group(&queue, joined).await.unwrap();
    claim(&queue, "joined", 1).await;
    place.later(Duration::from_secs(7200));
    queue.look_after_now().await;
    assert!(queue.group("joined").is_ok(), "it has a member");
    queue.leave(&group, "c");
    queue.look_after_now().await;
    assert!(queue.group("joined").is_ok(), "for a moment only");
    place.later(Duration::from_secs(3601));
    queue.look_after_now().await;
    assert!(queue.group("joined").is_err());
    assert!(queue.group("declared").is_ok());
    place.kill();
    let place = open(folder.path()).await;
    assert!(place.queue().group("joined").is_err());
}

#[tokio::test]
async fn a_call_that_is_given_up_stores_its_message_if_it_had_begun_to_and_leaves_nothing_counted_otherwise() {
    let mut settings = work(1);
    settings.max_depth = 2;
    settings.overflow = thalweg_queue::settings::Overflow::Block;
    settings.dedup_window = Duration::from_secs(60);
    let (_folder, _place, queue) = begin(settings).await;
    let group = queue.group("g").unwrap();
    let with_id = |id: &str| NewMessage {
        dedup_id: Some(id.into()),
        ..NewMessage::of("x")
    };
    for message in [NewMessage::of("x"), with_id("one")] {
        let mut begun = Box::pin(queue.produce(message));
        assert!(futures::poll!(begun.as_mut()).is_pending(), "it waits for the disk");
        drop(begun);
    }
    let mut claimed = Vec::new();
    for _ in 0..200 {
        let want = waiting_for(Duration::from_millis(50));
        claimed.extend(queue.claim(&group, "c", MemberKind::Pipeline, want).await.unwrap());
        if claimed.len() == 2 {
            break;
        }
    }
    assert_eq!(claimed.len(), 2);
    assert_eq!(queue.depth(), 2);
    let repeated = queue.produce(with_id("one")).await.unwrap();
    assert!(repeated.repeated, "the first call with it came to its end");
    // No room for a third: it waits, and is cancelled before it began to be stored.
    let mut waiting = Box::pin(queue.produce(with_id("two")));
    assert!(futures::poll!(waiting.as_mut()).is_pending());
    drop(waiting);
    ack(&queue, "g", &claimed);
    assert_eq!(queue.depth(), 0);
    let again = queue.produce(with_id("two")).await.unwrap();
    assert!(!again.repeated);
    assert_eq!((queue.depth(), queue.stats().enqueued), (1, 3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_is_made_while_messages_come_counts_each_once() {
    let mut settings = settings(4, &[("first", GroupMode::Work)]);
    settings.max_depth = 0;
    let (_folder, place, queue) = begin(settings).await;
    let producers: Vec<_> = (0..4)
        .map(|_| {
            let queue = queue.clone();
            tokio::spawn(async move {
                for _ in 0..300 {
                    queue.produce(NewMessage::of("x")).await.unwrap();
                }
            })
        })
        .collect();
    let mut groups = vec![queue.group("first").unwrap()];
    for n in 0..5 {
        let group = GroupSettings::new(&format!("g{n}"), GroupMode::Work);
        groups.push(place.queues.create_group(&queue, group).await.unwrap());
    }
    for producer in producers {
        producer.await.unwrap();
    }
    for group in groups {
        assert_eq!(group.backlog(), 1200, "group {}", group.name());
    }
}

#[tokio::test]
async fn a_claim_stays_within_its_bytes_but_for_a_single_message_that_is_larger() {
    let folder = tempfile::tempdir().unwrap();
    let place = open(folder.path()).await;
    for mode in [GroupMode::Work, GroupMode::Stream] {
        let name = format!("q-{mode:?}");
        let queue = place.queues.create(&name, settings(1, &[("g", mode)])).await.unwrap();
        let group = queue.group("g").unwrap();
        for size in [700, 400, 300, 2000, 10] {
            queue.produce(NewMessage::of(vec![7; size])).await.unwrap();
        }
        let want = ClaimRequest {
            max: 10,
            max_bytes: 1000,
            ..ClaimRequest::default()
        };
        let mut sizes = Vec::new();
        for _ in 0..5 {
            let claimed = queue.claim(&group, "c", MemberKind::Pipeline, want).await.unwrap();
            sizes.push(
                claimed
                    .iter()
                    .map(|delivery| delivery.message.payload.len())
                    .collect::<Vec<_>>(),
            );
        }
        assert_eq!(
            sizes,
            [vec![700], vec![400, 300], vec![2000], vec![10], vec![]],
            "{mode:?}"
        );
    }
}

#[tokio::test]
async fn a_receipt_of_a_message_that_never_was_is_not_found() {
    let (_folder, _place, queue) = begin(work(1)).await;
    let group = queue.group("g").unwrap();
    put(&queue, &["a"]).await;
    let mut receipt = queue.receipt(&claim_http(&queue, "g", 1).await[0]);
    receipt.id.offset = 77;
    let settled = queue
        .settle(&group, vec![(receipt, SettleAction::Ack)], true)
        .await
        .unwrap();
    let codes: Vec<_> = settled.failed.iter().map(|(_, error)| error.code()).collect();
    assert_eq!((settled.settled, &codes[..]), (0, &["message_not_found"][..]));
}

#[tokio::test]
async fn a_claim_that_waits_ends_when_the_queue_is_paused() {
    let (_folder, place, queue) = begin(work(1)).await;
    let group = queue.group("g").unwrap();
    let waiting = tokio::spawn({
        let (queue, group) = (queue.clone(), group.clone());
        let want = waiting_for(Duration::from_secs(60));
        async move { queue.claim(&group, "c", MemberKind::Http, want).await }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    place
        .queues
        .pause(&queue, thalweg_queue::Pause::Consume, true)
        .await
        .unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(20), waiting)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(ended.unwrap_err().code(), "paused");
}

#[tokio::test]
async fn a_claim_whose_leases_cannot_be_stored_has_taken_nothing() {
    let groups = [("g", GroupMode::Work), ("s", GroupMode::Stream)];
    let (_folder, place, queue) = begin(settings(1, &groups)).await;
    put(&queue, &["a", "b", "c"]).await;
    let state = place
        .log
        .partitions()
        .into_iter()
        .find(|id| id.queue == 16 | 1 << 31)
        .unwrap();
    place.log.remove(state).await.unwrap();
    let want = up_to(10);
    let group = queue.group("g").unwrap();
    // Twice, because a leaked lease would be counted.
    for _ in 0..2 {
        let refused = queue.claim(&group, "c", MemberKind::Pipeline, want).await;
        assert!(refused.is_err(), "{refused:?}");
    }
    let stats = group.stats();
    assert_eq!(
        (stats.counts.leased, stats.counts.ready, stats.counts.redelivered),
        (0, 3, 0)
    );
    assert_eq!(stats.consumers[0].2, 0);
    // Reads of a stream are not stored.
    assert_eq!(texts(&claim(&queue, "s", 10).await), ["a", "b", "c"]);
}

#[tokio::test]
async fn a_batch_is_acked_over_partitions_but_for_what_somebody_else_has() {
    let (_folder, place, queue) = begin(work(3)).await;
    for n in 0..30 {
        put_keyed(&queue, &n.to_string(), "x").await;
    }
    let first = claim_http(&queue, "g", 30).await;
    assert_eq!(first.len(), 30);
    let receipts: Vec<Receipt> = first.iter().map(|delivery| queue.receipt(delivery)).collect();
    let group = queue.group("g").unwrap();
    settle(&queue, "g", &first[..1], NACK_NOW).await;
    let again = claim_http(&queue, "g", 30).await;
    assert_eq!(again.len(), 1);
    queue.ack_all(&group, receipts.iter()).unwrap();
    assert_eq!((group.backlog(), group.acked()), (1, 29));
    queue.ack_all(&group, [queue.receipt(&again[0])].iter()).unwrap();
    assert_eq!(group.backlog(), 0);
    drop(place);
}

fn partitions(place: &Place) -> std::collections::BTreeSet<thalweg_log::PartitionId> {
    place.log.partitions().into_iter().collect()
}

#[tokio::test]
async fn a_dedup_window_that_was_off_for_a_while_knows_what_came_since_and_nothing_of_before() {
    let with_window = |seconds: u64| QueueSettings {
        dedup_window: Duration::from_secs(seconds),
        ..work(2)
    };
    let message = |id: &str| NewMessage {
        dedup_id: Some(id.into()),
        key: Some(id.as_bytes().to_vec().into()),
        ..NewMessage::of("x")
    };
    let (folder, place, queue) = begin(with_window(3600)).await;
    for id in ["a", "b"] {
        queue.produce(message(id)).await.unwrap();
    }
    let there = partitions(&place);
    place.queues.configure("q", with_window(0)).await.unwrap();
    assert!(!queue.produce(message("a")).await.unwrap().repeated);
    assert_eq!(partitions(&place), there, "a number of the log is never used again");
    place.kill();
    // A start also reads the newest messages; the earlier ones are not among them.
    let later = Duration::from_secs(300);
    let place = open_later(folder.path(), later).await;
    place.queues.configure("q", with_window(3600)).await.unwrap();
    let queue = place.queues.get("q").unwrap();
    for id in ["a", "b", "c"] {
        assert!(!queue.produce(message(id)).await.unwrap().repeated, "{id}");
    }
    settle(&queue, "g", &claim_http(&queue, "g", 10).await, SettleAction::Ack).await;
    place.kill();
    let place = open_later(folder.path(), later).await;
    let queue = place.queues.get("q").unwrap();
    for id in ["a", "b", "c"] {
        assert!(queue.produce(message(id)).await.unwrap().repeated, "{id}");
    }
    assert!(!queue.produce(message("d")).await.unwrap().repeated);
}

#[tokio::test]
async fn partitions_of_a_growth_that_was_refused_are_used_by_the_next_one() {
    let (folder, place, queue) = begin(work(1)).await;
    let before = partitions(&place).len();
    {
        let mut growing = Box::pin(place.queues.configure("q", work(3)));
        assert!(futures::poll!(growing.as_mut()).is_pending(), "it waits for the disk");
        put(&queue, &["a"]).await;
        let refused = growing.await.unwrap_err().to_string();
        assert!(refused.contains("only while the queue is empty"), "{refused}");
    }
    let there = partitions(&place);
    assert_eq!((queue.partition_count(), there.len()), (1, before + 4));
    let (place, queue) = reopened(place, folder.path()).await;
    assert_eq!(queue.partition_count(), 1);
    settle(&queue, "g", &claim_http(&queue, "g", 1).await, SettleAction::Ack).await;
    place.queues.configure("q", work(3)).await.unwrap();
    assert_eq!(partitions(&place), there);
    let waiting = queue.clone();
    let claimed =
        tokio::spawn(async move { claim_http_as(&waiting, "g", "c", waiting_for(Duration::from_secs(60))).await });
    until("its share has the new partitions", async || {
        let consumers = queue.group("g").unwrap().stats().consumers;
        consumers.iter().any(|(_, share, _)| *share == (0..3))
    })
    .await;
    // One of the three goes to the last partition.
    put(&queue, &["b", "c", "d"]).await;
    assert_eq!(claimed.await.unwrap().len(), 1);
    place.queues.remove("q", true).await.unwrap();
    assert!(partitions(&place).len() < before);
}

#[tokio::test]
async fn a_work_group_that_goes_to_the_end_has_nothing_of_before_whether_all_of_it_was_claimed_or_not() {
    for claimed in [2, 3] {
        let (_folder, place, queue) = begin(work(1)).await;
        put(&queue, &["a", "b", "c"]).await;
        let group = queue.group("g").unwrap();
        let taken = claim_http(&queue, "g", claimed).await;
        settle(&queue, "g", &taken[..1], nack_in(Duration::from_secs(60))).await;
        queue.seek(&group, SeekTo::Latest).await.unwrap();
        assert_eq!(queue.depth(), 0);
        place.later(Duration::from_secs(120));
        assert!(claim_http(&queue, "g", 10).await.is_empty());
        let late = vec![(queue.receipt(&taken[1]), SettleAction::Ack)];
        let settled = queue.settle(&group, late, true).await.unwrap();
        assert_eq!(settled.failed[0].1.code(), "gone");
        put(&queue, &["d"]).await;
        assert_eq!(texts(&claim_http(&queue, "g", 10).await), ["d"]);
    }
}

#[tokio::test]
async fn a_work_group_that_goes_back_leaves_what_lies_before_with_whoever_has_it() {
    let (_folder, _place, queue) = begin(work(1)).await;
    put(&queue, &["a", "b", "c"]).await;
    let taken = claim_http(&queue, "g", 3).await;
    let group = queue.group("g").unwrap();
    let back = SeekTo::Offset {
        partition: None,
        offset: 1,
    };
    queue.seek(&group, back).await.unwrap();
    let again = claim_http(&queue, "g", 10).await;
    let numbers: Vec<u32> = again.iter().map(|one| one.delivery).collect();
    assert_eq!(
        (texts(&again), numbers),
        (vec!["b".to_owned(), "c".to_owned()], vec![2, 2])
    );
    settle(&queue, "g", &taken[..1], SettleAction::Ack).await;
    settle(&queue, "g", &again, SettleAction::Ack).await;
    assert_eq!(queue.depth(), 0);
}
