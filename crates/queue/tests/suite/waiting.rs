//! Waiting claims are woken when there is a message for them: all messages are delivered, although no consumer polls,
//! many cancel, and each takes few.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::support::{Place, begin, waiting_for, work};
use thalweg_log::Durability;
use thalweg_log::disk::sim::Random;
use thalweg_queue::members::MemberKind;
use thalweg_queue::settings::{QueueOrdering as Order, QueueSettings};
use thalweg_queue::{ClaimRequest, Group, NewMessage, Queue};

const MESSAGES: u64 = 3000;
const CONSUMERS: u64 = 30;
/// A call that waits this long was never woken.
const FOR_EVER: Duration = Duration::from_secs(3600);
const GIVEN_UP: Duration = Duration::from_secs(100);

async fn begin_with(ordering: Order, durability: Durability) -> (tempfile::TempDir, Place, Arc<Queue>) {
    let settings = QueueSettings {
        ordering,
        durability: Some(durability),
        ..work(4)
    };
    begin(settings).await
}

/// Takes up to three at a time and acks them; cancels now and then.
async fn consume(queue: Arc<Queue>, group: Arc<Group>, number: u64, acked: Arc<AtomicU64>) {
    let mut random = Random::new(number);
    let name = format!("c{}", number % (CONSUMERS / 2));
    loop {
        let want = ClaimRequest {
            max: 1 + random.below(3) as u32,
            wait: FOR_EVER,
            max_in_flight: Some(2),
            ..ClaimRequest::default()
        };
        let claim = queue.claim(&group, &name, MemberKind::Pipeline, want);
        let patience = match random.below(4) {
            0 => Duration::from_micros(random.below(2000)),
            _ => FOR_EVER,
        };
        let Ok(taken) = tokio::time::timeout(patience, claim).await else {
            continue;
        };
        for delivery in taken.unwrap() {
            if random.below(3) == 0 {
                tokio::time::sleep(Duration::from_micros(random.below(500))).await;
            }
            queue
                .ack(&group, delivery.partition, delivery.message.offset, delivery.delivery)
                .unwrap();
            acked.fetch_add(1, Ordering::SeqCst);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_message_waits_for_a_consumer_that_waits_for_it() {
    for (ordering, durability) in [
        (Order::None, Durability::Memory),
        (Order::Partition, Durability::Memory),
        (Order::None, Durability::Os),
        (Order::Partition, Durability::Os),
        (Order::Strict, Durability::Os),
    ] {
        let (_folder, place, queue) = begin_with(ordering, durability).await;
        let (group, acked) = (queue.group("g").unwrap(), Arc::new(AtomicU64::new(0)));
        let consumers: Vec<_> = (0..CONSUMERS)
            .map(|number| tokio::spawn(consume(queue.clone(), group.clone(), number, acked.clone())))
            .collect();
        let mut random = Random::new(7);
        let mut produced = 0;
        while produced < MESSAGES {
            let burst = 1 + random.below(20).min(MESSAGES - produced - 1);
            let message = |n: u64| NewMessage {
                key: n.is_multiple_of(3).then(|| format!("key-{}", n % 17).into()),
                ..NewMessage::of(n.to_string())
            };
            queue
                .produce_all((produced..produced + burst).map(message).collect())
                .await
                .unwrap();
            produced += burst;
            if random.below(3) == 0 {
                tokio::time::sleep(Duration::from_micros(random.below(3000))).await;
            }
        }
        let all = async {
            while acked.load(Ordering::SeqCst) < MESSAGES {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let ended = tokio::time::timeout(GIVEN_UP, all).await;
        let stats = group.stats();
        assert!(
            ended.is_ok(),
            "{ordering:?} {durability:?}: {} of {MESSAGES} came; {stats:?}",
            acked.load(Ordering::SeqCst)
        );
        assert_eq!(stats.backlog, 0);
        consumers.iter().for_each(tokio::task::JoinHandle::abort);
        place.stop().await;
    }
}

fn waiting_for_one(queue: &Arc<Queue>, group: &Arc<Group>, name: &'static str) -> tokio::task::JoinHandle<usize> {
    let (queue, group) = (queue.clone(), group.clone());
    tokio::spawn(async move {
        let want = waiting_for(FOR_EVER);
        let taken = queue.claim(&group, name, MemberKind::Pipeline, want).await;
        taken.unwrap().len()
    })
}

/// Lets the other tasks run until they wait; the joins cause a rebalance.
async fn all_wait(place: &Place, queue: &Arc<Queue>) {
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        place.later(Duration::from_secs(1));
        queue.look_after_now().await;
    }
    tokio::time::sleep(Duration::from_millis(20)).await;
}

#[tokio::test]
async fn whoever_leaves_messages_calls_the_next() {
    for durability in [Durability::Memory, Durability::Os] {
        let (_folder, place, queue) = begin_with(Order::None, durability).await;
        let group = queue.group("g").unwrap();
        let names = ["a", "b", "c", "d", "e"];
        let tasks: Vec<_> = names.map(|name| waiting_for_one(&queue, &group, name)).into();
        all_wait(&place, &queue).await;
        // Without keys they are all in one partition, and come all at once.
        let messages = names.map(NewMessage::of).into();
        queue.produce_all(messages).await.unwrap();
        for task in tasks {
            assert_eq!(tokio::time::timeout(GIVEN_UP, task).await.unwrap().unwrap(), 1);
        }
        place.stop().await;
    }
}

#[tokio::test]
async fn a_claim_that_is_given_up_after_it_was_called_calls_the_next() {
    // One of two is woken; in one of the two rounds it is the one that is cancelled.
    for given_up in [0, 1] {
        let (_folder, place, queue) = begin_with(Order::None, Durability::Memory).await;
        let group = queue.group("g").unwrap();
        let mut tasks = vec![
            waiting_for_one(&queue, &group, "a"),
            waiting_for_one(&queue, &group, "b"),
        ];
        all_wait(&place, &queue).await;
        // On this one thread neither runs before the other is awaited.
        assert!(queue.try_produce(NewMessage::of("1")).is_ok());
        tasks.remove(given_up).abort();
        let other = tasks.remove(0);
        assert_eq!(tokio::time::timeout(GIVEN_UP, other).await.unwrap().unwrap(), 1);
        place.stop().await;
    }
}
