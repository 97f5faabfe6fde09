//! Concurrent batches with common dedup-ids: there is no deadlock, a cancelled batch blocks nobody, and within the
//! window each id is stored once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::support::{
    REJECT, begin, claim, kept, log_options, number, open_later, open_on, reopened, settings, settle, texts,
};
use thalweg_log::Durability;
use thalweg_log::disk::sim::{Random, SimDisk};
use thalweg_queue::settings::{GroupMode, Overflow, QueueSettings};
use thalweg_queue::{DeadLetterFilter, DeadLetterSelection, NewMessage, ProduceResult, Queue, ResendTo, SettleAction};

const PATIENCE: Duration = Duration::from_secs(20);

fn with_ids() -> QueueSettings {
    QueueSettings {
        dedup_window: Duration::from_secs(3600),
        ..settings(2, &[("g", GroupMode::Work)])
    }
}

fn message(id: &str, text: &str) -> NewMessage {
    NewMessage {
        dedup_id: Some(id.into()),
        ..NewMessage::of(text.as_bytes().to_vec())
    }
}

fn batch(ids: &[&str], from: &str) -> Vec<NewMessage> {
    ids.iter().map(|id| message(id, &format!("{id} of {from}"))).collect()
}

/// Lets every task run once.
async fn breath() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

/// Full after one message: the next producer waits for room.
fn full_after_one() -> QueueSettings {
    QueueSettings {
        max_depth: 2,
        overflow: Overflow::Block,
        block_timeout: Duration::from_secs(3600),
        ..with_ids()
    }
}

#[tokio::test]
async fn batches_with_the_same_ids_in_another_order_do_not_wait_for_each_other() {
    let (_folder, place, queue) = begin(full_after_one()).await;
    queue.produce_all(batch(&["x", "y"], "an earlier one")).await.unwrap();
    // Both come while there is no room: the first has its ids reserved, the second must have none.
    let produce = |ids: &'static [&'static str], from: &'static str| {
        let queue = queue.clone();
        tokio::spawn(async move { queue.produce_all(batch(ids, from)).await })
    };
    let first = produce(&["a", "b"], "the first");
    breath().await;
    let second = produce(&["b", "a"], "the second");
    breath().await;
    let third = produce(&["c", "b"], "the third");
    breath().await;
    // A cancelled batch gives up its reservations.
    first.abort();
    third.abort();
    let taken = claim(&queue, "g", 10).await;
    settle(&queue, "g", &taken, SettleAction::Ack).await;
    let second = tokio::time::timeout(PATIENCE, second)
        .await
        .expect("they wait for each other");
    assert!(second.unwrap().unwrap().iter().all(|produced| !produced.repeated));
    let again = queue.produce_all(batch(&["a", "b"], "a repetition")).await.unwrap();
    assert!(again.iter().all(|produced| produced.repeated));
    let mut texts = kept(&queue).await;
    texts.retain(|text| !text.ends_with("earlier one"));
    texts.sort();
    assert_eq!(texts, ["a of the second", "b of the second"]);
    place.stop().await;
}

#[tokio::test]
async fn a_message_that_waited_for_room_longer_than_the_window_is_stored_once() {
    let (_folder, place, queue) = begin(full_after_one()).await;
    queue.produce_all(batch(&["x", "y"], "an earlier one")).await.unwrap();
    let slow = {
        let queue = queue.clone();
        tokio::spawn(async move { queue.produce(message("a", "slow")).await })
    };
    breath().await;
    place.later(Duration::from_secs(3601));
    let retried = {
        let queue = queue.clone();
        tokio::spawn(async move { queue.produce(message("a", "retried")).await })
    };
    breath().await;
    let taken = claim(&queue, "g", 10).await;
    settle(&queue, "g", &taken, SettleAction::Ack).await;
    let slow = tokio::time::timeout(PATIENCE, slow).await.unwrap().unwrap().unwrap();
    let retried = tokio::time::timeout(PATIENCE, retried).await.unwrap().unwrap().unwrap();
    assert!(!slow.repeated && retried.repeated);
    assert_eq!((slow.partition, slow.offset), (retried.partition, retried.offset));
    place.stop().await;
}

/// What a producer was told: id and position.
type Told = Vec<(String, (u32, u64))>;

/// One producer with a few ids, which may be cancelled.
async fn produce_some(queue: Arc<Queue>, seed: u64) -> Told {
    let mut random = Random::new(seed);
    let count = 1 + random.below(5);
    let ids: Vec<String> = (0..count).map(|_| format!("id-{}", random.below(7))).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let producing = queue.produce_all(batch(&ids, &seed.to_string()));
    let leaves = async {
        if random.one_in(3) {
            for _ in 0..random.below(30) {
                tokio::task::yield_now().await;
            }
        } else {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        produced = producing => {
            let places = produced.unwrap().into_iter().map(|produced| (produced.partition, produced.offset));
            ids.iter().map(|id| (*id).to_owned()).zip(places).collect()
        }
        () = leaves => Told::new(),
    }
}

/// `THALWEG_SIM_SEEDS` runs more of them, `THALWEG_SIM_SEED` others.
#[tokio::test(flavor = "multi_thread")]
async fn however_batches_meet_and_leave_no_id_is_stored_twice_and_nobody_waits_for_ever() {
    let (first, count) = (number("THALWEG_SIM_SEED", 0), number("THALWEG_SIM_SEEDS", 20));
    for seed in first..first + count {
        let durability = if seed % 4 == 0 {
            Durability::Memory
        } else {
            Durability::Os
        };
        let (folder, place, queue) = begin(QueueSettings {
            durability: Some(durability),
            ..with_ids()
        })
        .await;
        let producers: Vec<_> = (0..24)
            .map(|n| tokio::spawn(produce_some(queue.clone(), seed * 1000 + n)))
            .collect();
        let mut told: BTreeMap<String, BTreeSet<(u32, u64)>> = BTreeMap::new();
        for producer in producers {
            let some = tokio::time::timeout(PATIENCE, producer)
                .await
                .expect("it waits for ever");
            for (id, place) in some.unwrap() {
                told.entry(id).or_default().insert(place);
            }
        }
        // Later producers get the position that others were told.
        let all: Vec<String> = (0..7).map(|n| format!("id-{n}")).collect();
        let ids: Vec<&str> = all.iter().map(String::as_str).collect();
        let check = async |queue: &Arc<Queue>, told: &mut BTreeMap<String, BTreeSet<(u32, u64)>>| {
            let late = tokio::time::timeout(PATIENCE, queue.produce_all(batch(&ids, "late"))).await;
            for (id, produced) in all.iter().zip(late.expect("it waits for ever").unwrap()) {
                let places = told.entry(id.clone()).or_default();
                places.insert((produced.partition, produced.offset));
                assert_eq!(places.len(), 1, "seed {seed}: {id} is at {places:?}");
            }
            let kept: Vec<String> = kept(queue).await;
            let ids: BTreeSet<&str> = kept.iter().filter_map(|text| text.split(' ').next()).collect();
            assert_eq!(kept.len(), ids.len(), "seed {seed}: {kept:?}");
        };
        check(&queue, &mut told).await;
        if durability != Durability::Memory {
            queue.purge().await.unwrap();
            let (place, queue) = reopened(place, folder.path()).await;
            let again = queue
                .produce_all(batch(&ids, "a repetition after the start"))
                .await
                .unwrap();
            assert!(again.iter().all(|produced| produced.repeated), "seed {seed}");
            place.kill();
        }
    }
}

/// The id of a message follows in a later block, which a crash may destroy. Until the message is trimmed, it takes the
/// place of the id.
#[tokio::test]
async fn an_id_is_known_after_a_second_crash_though_its_message_is_gone_by_then() {
    let disk = SimDisk::new(1, 64 << 20);
    let start = async || {
        open_on(
            Arc::new(disk.clone()),
            &log_options(1 << 20, 1 << 19),
            Duration::ZERO,
            u64::MAX,
        )
        .await
    };
    let place = start().await;
    let queue = place.queues.create("q", with_ids()).await.unwrap();
    let first = queue.produce(message("a", "first")).await.unwrap();
    disk.kill();
    place.kill();

    let place = start().await;
    let queue = place.queue();
    queue.purge().await.unwrap();
    disk.kill();
    place.kill();

    let place = start().await;
    let again = place.queue().produce(message("a", "again")).await.unwrap();
    assert_eq!(
        again,
        ProduceResult {
            repeated: true,
            ..first
        }
    );
    place.stop().await;
}

/// The window is counted from the producer's message, not from the end of its time as a dead letter.
#[tokio::test]
async fn a_letter_that_is_sent_again_begins_no_window_also_after_a_start() {
    for restarts in [false, true] {
        let (folder, place, queue) = begin(with_ids()).await;
        queue.produce(message("a", "first")).await.unwrap();
        settle(&queue, "g", &claim(&queue, "g", 1).await, REJECT).await;
        let window = Duration::from_secs(3601);
        place.later(window);
        let all = DeadLetterSelection::Filter(DeadLetterFilter::default());
        assert_eq!(queue.resend(&all, ResendTo::Source, None).await.unwrap().count, 1);
        let (_place, queue) = match restarts {
            true => {
                place.kill();
                let place = open_later(folder.path(), window).await;
                let queue = place.queue();
                (place, queue)
            }
            false => (place, queue),
        };
        let other = queue.produce(message("a", "another one")).await.unwrap();
        assert!(!other.repeated, "after a start: {restarts}");
        // Messages read from disk come in pieces.
        let mut taken = texts(&claim(&queue, "g", 10).await);
        taken.extend(texts(&claim(&queue, "g", 10).await));
        taken.sort();
        assert_eq!(taken, ["another one", "first"]);
    }
}
