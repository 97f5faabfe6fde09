//! Dead letters that are resent or discarded by concurrent calls, by clients that disconnect, and into queues in
//! memory: each is processed once and stays gone. `THALWEG_SIM_SEEDS` runs more, `THALWEG_SIM_SEED` others.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::support::{
    Place, REJECT, begin, claim_http_as, kept, letters, number, reopened, restarted, settle, up_to, work,
};
use thalweg_log::disk::sim::Random;
use thalweg_log::{Durability, Log, PartitionId};
use thalweg_queue::settings::{QueueSettings, RetentionMode};
use thalweg_queue::{DeadLetterFilter, DeadLetterSelection, MessageId, NewMessage, Queue, ResendTo};

/// The state of the groups of `dlq.q`, the second queue that was created.
const LETTERS_STATE: PartitionId = PartitionId::new(17 | 1 << 31, 0);

fn all() -> DeadLetterSelection {
    DeadLetterSelection::Filter(DeadLetterFilter::default())
}

fn quick() -> QueueSettings {
    QueueSettings {
        durability: Some(Durability::Os),
        max_depth: 0,
        ..work(1)
    }
}

/// This many dead letters of queue "q", with a text each.
async fn die(queue: &Arc<Queue>, count: usize) {
    let messages: Vec<_> = (0..count).map(|n| NewMessage::of(format!("letter {n}"))).collect();
    for some in messages.chunks(1000) {
        queue.produce_all(some.to_vec()).await.unwrap();
        let taken = claim_http_as(queue, "g", "c", up_to(1000)).await;
        assert_eq!(taken.len(), some.len());
        settle(queue, "g", &taken, REJECT).await;
    }
}

async fn resend(queue: &Arc<Queue>, to: ResendTo) -> u64 {
    let resent = queue.resend(&all(), to, None).await.unwrap();
    assert!(resent.stopped.is_none(), "{:?}", resent.stopped);
    resent.count
}

/// Each of the texts once.
fn assert_once(texts: Vec<String>, count: usize) {
    let mut times: BTreeMap<String, u32> = BTreeMap::new();
    texts.into_iter().for_each(|text| *times.entry(text).or_default() += 1);
    let twice: Vec<_> = times.iter().filter(|(_, times)| **times > 1).take(5).collect();
    assert_eq!((times.len(), twice.len()), (count, 0), "{twice:?}");
}

#[tokio::test]
async fn two_that_send_all_letters_again_at_once_send_each_once() {
    let (_folder, place, queue) = begin(quick()).await;
    die(&queue, 1500).await;
    let (one, two) = tokio::join!(resend(&queue, ResendTo::Source), resend(&queue, ResendTo::Source));
    assert_eq!((one + two, letters(&queue).await.len()), (1500, 0));
    assert_eq!(queue.depth(), 1500);
    assert_once(kept(&queue).await.split_off(kept(&queue).await.len() - 1500), 1500);
    place.stop().await;
}

#[tokio::test]
async fn what_a_client_began_that_left_is_not_sent_again() {
    let (folder, place, queue) = begin(quick()).await;
    let other = place.queues.create("other", quick()).await.unwrap();
    die(&queue, 1200).await;
    for polls in 0..12 {
        let to = ResendTo::Queue("other".into());
        let (queue, to_all) = (queue.clone(), all());
        let sending = async move { queue.resend(&to_all, to, None).await };
        let leaves = async {
            for _ in 0..polls {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            biased;
            _ = sending => {}
            () = leaves => {}
        }
    }
    resend(&queue, ResendTo::Queue("other".into())).await;
    assert_eq!((other.depth(), letters(&queue).await.len()), (1200, 0));
    assert_once(kept(&other).await, 1200);
    let (place, queue) = reopened(place, folder.path()).await;
    assert!(letters(&queue).await.is_empty(), "they do not come back");
    place.kill();
}

#[tokio::test]
async fn letters_that_were_sent_into_a_queue_in_memory_do_not_come_back_after_a_restart() {
    let (folder, place, queue) = begin(quick()).await;
    let in_memory = QueueSettings {
        durability: Some(Durability::Memory),
        ..work(1)
    };
    let memory = place.queues.create("memory", in_memory).await.unwrap();
    die(&queue, 6).await;
    assert_eq!(resend(&queue, ResendTo::Queue("memory".into())).await, 6);
    assert_eq!((memory.depth(), letters(&queue).await.len()), (6, 0));
    let (place, queue) = reopened(place, folder.path()).await;
    assert!(letters(&queue).await.is_empty());
    place.kill();
}

#[tokio::test]
async fn as_many_letters_are_sent_as_there_is_room_for() {
    let (_folder, place, queue) = begin(quick()).await;
    let small = QueueSettings {
        max_depth: 70,
        ..quick()
    };
    let other = place.queues.create("other", small).await.unwrap();
    die(&queue, 100).await;
    let resent = queue
        .resend(&all(), ResendTo::Queue("other".into()), None)
        .await
        .unwrap();
    assert_eq!((resent.count, resent.stopped.unwrap().code()), (70, "queue_full"));
    assert_eq!((other.depth(), letters(&queue).await.len()), (70, 30));
    // Limited by bytes, which is found out by trying.
    let bytes = QueueSettings {
        max_bytes: 300,
        ..quick()
    };
    let other = place.queues.create("bytes", bytes).await.unwrap();
    let resent = queue
        .resend(&all(), ResendTo::Queue("bytes".into()), None)
        .await
        .unwrap();
    assert_eq!(resent.count, other.depth());
    assert!(resent.count > 3 && resent.count < 30, "{resent:?}");
    place.stop().await;
}

/// State records that a start has to read.
fn state_records(place: &Place) -> u64 {
    let from = Log::last_checkpoint(place.log.as_ref(), LETTERS_STATE)
        .unwrap()
        .unwrap_or(0);
    Log::bounds(place.log.as_ref(), LETTERS_STATE).unwrap().next - from
}

#[tokio::test]
async fn what_is_kept_of_letters_that_are_gone_does_not_grow_with_their_number() {
    let (folder, place, queue) = begin(quick()).await;
    die(&queue, 5000).await;
    assert_eq!(queue.purge_dead(&all()).await.unwrap(), 5000);
    assert!(state_records(&place) <= 10, "{}", state_records(&place));
    // One by one, each is a record until the next checkpoint.
    die(&queue, 200).await;
    for n in 5000..5200 {
        let one = DeadLetterSelection::Ids(vec![format!("dlq.q:0:{n}").parse().unwrap()]);
        assert_eq!(queue.purge_dead(&one).await.unwrap(), 1);
    }
    assert!(state_records(&place) > 100);
    let (place, queue) = restarted(place, folder.path()).await;
    assert!(state_records(&place) <= 10, "{}", state_records(&place));
    assert!(letters(&queue).await.is_empty());
    place.stop().await;
}

#[tokio::test]
async fn a_running_process_writes_a_checkpoint_of_the_letters_that_are_gone() {
    let (_folder, place, queue) = begin(quick()).await;
    die(&queue, 60).await;
    for n in 0..30 {
        let one = DeadLetterSelection::Ids(vec![format!("dlq.q:0:{}", 2 * n).parse().unwrap()]);
        queue.purge_dead(&one).await.unwrap();
    }
    place.later(Duration::from_secs(31));
    let dead = place.queues.get("dlq.q").unwrap();
    // Wakes the task of the queue.
    place
        .queues
        .configure("dlq.q", (*dead.settings()).clone())
        .await
        .unwrap();
    crate::support::until("a checkpoint", async || state_records(&place) <= 10).await;
    place.stop().await;
}

/// Concurrent calls, some of which are cancelled: afterwards each dead letter is in one place.
#[tokio::test(flavor = "multi_thread")]
async fn however_letters_are_taken_each_goes_one_way() {
    let (first, count) = (number("THALWEG_SIM_SEED", 0), number("THALWEG_SIM_SEEDS", 8));
    for seed in first..first + count {
        let mut settings = quick();
        settings.retention.mode = RetentionMode::Policy;
        let (folder, place, queue) = begin(settings).await;
        let other = place.queues.create("other", quick()).await.unwrap();
        die(&queue, 300).await;
        let takers: Vec<_> = (0..6)
            .map(|n| {
                let (queue, mut random) = (queue.clone(), Random::new(seed * 100 + n));
                tokio::spawn(async move {
                    let count = random.below(40);
                    let ids: Vec<MessageId> = (0..count)
                        .map(|_| format!("dlq.q:0:{}", random.below(300)).parse().unwrap())
                        .collect();
                    let select = if random.one_in(2) {
                        all()
                    } else {
                        DeadLetterSelection::Ids(ids)
                    };
                    let to = ResendTo::Queue("other".into());
                    let patience = random.below(40);
                    let leaves = random.one_in(2);
                    let taking = async {
                        // Ids may be gone by now.
                        let _ = match n {
                            0 => queue.purge_dead(&select).await.map(drop),
                            _ => queue.resend(&select, to, None).await.map(drop),
                        };
                    };
                    tokio::select! {
                        () = taking => {}
                        () = async {
                            for _ in 0..patience {
                                tokio::task::yield_now().await;
                            }
                            if !leaves {
                                std::future::pending::<()>().await;
                            }
                        } => {}
                    }
                })
            })
            .collect();
        for taker in takers {
            taker.await.unwrap();
        }
        resend(&queue, ResendTo::Queue("other".into())).await;
        let sent = kept(&other).await;
        assert_once(sent.clone(), sent.len());
        assert!(letters(&queue).await.is_empty());
        let (place, queue) = reopened(place, folder.path()).await;
        assert!(letters(&queue).await.is_empty(), "seed {seed}");
        assert_eq!(
            kept(&place.queues.get("other").unwrap()).await.len(),
            sent.len(),
            "seed {seed}"
        );
        place.kill();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_that_is_written_while_letters_go_does_not_bring_them_back() {
    let (folder, mut place, mut queue) = begin(QueueSettings {
        durability: Some(Durability::Fsync),
        ..quick()
    })
    .await;
    let rounds = 40;
    die(&queue, rounds).await;
    for round in 0..rounds {
        let there = letters(&queue).await;
        assert_eq!(there.len(), rounds - round, "they do not come back");
        let dead = place.queues.get("dlq.q").unwrap();
        let one = DeadLetterSelection::Ids(vec![MessageId {
            queue: dead.name().clone(),
            partition: 0,
            offset: there[0].offset,
        }]);
        let purging = tokio::spawn(async move { queue.purge_dead(&one).await });
        for _ in 0..round {
            tokio::task::yield_now().await;
        }
        // Writes checkpoints of all groups.
        place.queues.close().await;
        assert_eq!(purging.await.unwrap().unwrap(), 1);
        (place, queue) = reopened(place, folder.path()).await;
    }
    place.kill();
}
