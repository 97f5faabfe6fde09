//! Producers of a full queue wait in a FIFO queue, whatever each wants to store. `THALWEG_SIM_SEEDS` runs more
//! histories, `THALWEG_SIM_SEED` others.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use thalweg_log::Durability;
use thalweg_log::disk::sim::Random;
use thalweg_queue::settings::{Overflow, QueueSettings};
use thalweg_queue::{NewMessage, ProduceResult, Queue, QueueError};

use crate::support::{ack, begin, claim, number, put, work};

/// Longer than any of these tests takes.
const FOR_EVER: Duration = Duration::from_secs(3600);
const PATIENCE: Duration = Duration::from_secs(60);

fn blocking(max_depth: u64, block_timeout: Duration, durability: Durability) -> QueueSettings {
    QueueSettings {
        max_depth,
        overflow: Overflow::Block,
        block_timeout,
        durability: Some(durability),
        ..work(1)
    }
}

fn batch(name: usize, count: usize) -> Vec<NewMessage> {
    vec![NewMessage::of(name.to_string()); count]
}

type Stored = tokio::task::JoinHandle<Result<Vec<ProduceResult>, QueueError>>;

/// Begins to store a batch; on one thread it is in the wait queue, if it has to wait, when this returns.
async fn begin_to_store(queue: &Arc<Queue>, name: usize, count: usize) -> Stored {
    let producer = queue.clone();
    let stored = tokio::spawn(async move { producer.produce_all(batch(name, count)).await });
    // It checks for expired messages before it waits.
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    stored
}

/// A batch that needs the whole of a full queue gets it before single messages that were sent after it; otherwise each
/// free place would go to one of them.
#[tokio::test]
async fn a_batch_gets_its_places_before_those_who_came_later() {
    for durability in [Durability::Memory, Durability::Os] {
        let (_folder, place, queue) = begin(blocking(20, FOR_EVER, durability)).await;
        queue.produce_all(batch(0, 20)).await.unwrap();
        let large = begin_to_store(&queue, 1, 20).await;
        let mut singles = Vec::new();
        for n in 0..200 {
            singles.push(begin_to_store(&queue, 2 + n, 1).await);
        }
        for _ in 0..19 {
            ack(&queue, "g", &claim(&queue, "g", 1).await);
        }
        assert!(!large.is_finished() && queue.stats().depth == 1);
        ack(&queue, "g", &claim(&queue, "g", 1).await);
        let stored = tokio::time::timeout(PATIENCE, large).await.unwrap().unwrap().unwrap();
        assert_eq!(stored[0].offset, first(&queue) + 20);
        assert!(singles.iter().all(|single| !single.is_finished()));
        for (offset, single) in (stored[19].offset + 1..).zip(singles) {
            ack(&queue, "g", &claim(&queue, "g", 1).await);
            let stored = tokio::time::timeout(PATIENCE, single).await.unwrap().unwrap().unwrap();
            assert_eq!(stored[0].offset, offset);
        }
        place.stop().await;
    }
}

/// Offset of the queue's first message; that of a queue in memory continues above those of earlier processes.
fn first(queue: &Arc<Queue>) -> u64 {
    let stats = queue.stats();
    stats.partitions[0].1 - stats.enqueued
}

#[tokio::test]
async fn what_can_never_fit_is_refused_at_once_and_holds_nobody_up() {
    for durability in [Durability::Memory, Durability::Os] {
        let mut settings = blocking(10, FOR_EVER, durability);
        settings.max_bytes = 4096;
        let (_folder, place, queue) = begin(settings).await;
        queue.produce_all(batch(0, 10)).await.unwrap();
        for refused in [
            queue.produce_all(batch(1, 11)).await.unwrap_err(),
            queue.produce(NewMessage::of(vec![7; 5000])).await.unwrap_err(),
        ] {
            assert_eq!((refused.code(), refused.retry_after()), ("message_too_large", None));
            assert!(refused.to_string().contains("never fit"), "{refused}");
        }
        // A waiting producer is refused when it cannot fit any more.
        let waiting = begin_to_store(&queue, 2, 8).await;
        let later = begin_to_store(&queue, 3, 1).await;
        let mut settings = (*queue.settings()).clone();
        settings.max_depth = 7;
        place.queues.configure("q", settings).await.unwrap();
        let refused = tokio::time::timeout(PATIENCE, waiting).await.unwrap().unwrap();
        assert_eq!(refused.unwrap_err().code(), "message_too_large");
        ack(&queue, "g", &claim(&queue, "g", 4).await);
        assert!(tokio::time::timeout(PATIENCE, later).await.unwrap().unwrap().is_ok());
        place.stop().await;
    }
}

#[tokio::test]
async fn a_large_one_at_the_front_holds_others_up_until_its_time_is_over() {
    let (_folder, _place, queue) = begin(blocking(10, Duration::from_millis(200), Durability::Memory)).await;
    queue.produce_all(batch(0, 10)).await.unwrap();
    let large = begin_to_store(&queue, 1, 10).await;
    ack(&queue, "g", &claim(&queue, "g", 5).await);
    tokio::time::sleep(Duration::from_millis(100)).await;
    let small = begin_to_store(&queue, 2, 5).await;
    assert!(
        !small.is_finished(),
        "there is room for it, but somebody stands before it"
    );
    let refused = tokio::time::timeout(PATIENCE, large).await.unwrap().unwrap();
    assert_eq!(refused.unwrap_err().code(), "queue_full");
    assert!(tokio::time::timeout(PATIENCE, small).await.unwrap().unwrap().is_ok());
}

#[tokio::test]
async fn who_waits_for_room_learns_at_once_that_the_queue_is_gone() {
    for durability in [Durability::Memory, Durability::Os] {
        let (_folder, place, queue) = begin(blocking(1, FOR_EVER, durability)).await;
        put(&queue, &["a"]).await;
        let waiting = [begin_to_store(&queue, 1, 1).await, begin_to_store(&queue, 2, 1).await];
        place.queues.remove("q", true).await.unwrap();
        for waiting in waiting {
            let gone = tokio::time::timeout(PATIENCE, waiting).await.unwrap().unwrap();
            assert_eq!(gone.unwrap_err().code(), "queue_not_found");
        }
    }
}

/// The depth is recounted when a group seeks back: then there is no room, whatever the depth was before.
#[tokio::test]
async fn a_group_that_goes_back_fills_the_queue_again() {
    let mut settings = blocking(4, Duration::ZERO, Durability::Os);
    settings.groups.push(thalweg_queue::settings::GroupSettings::new(
        "other",
        thalweg_queue::settings::GroupMode::Work,
    ));
    settings.retention.mode = thalweg_queue::settings::RetentionMode::Policy;
    let (_folder, _place, queue) = begin(settings).await;
    put(&queue, &["a", "b", "c", "d"]).await;
    assert_eq!(
        queue.produce(NewMessage::of("e")).await.unwrap_err().code(),
        "queue_full"
    );
    for group in ["g", "other"] {
        ack(&queue, group, &claim(&queue, group, 4).await);
    }
    put(&queue, &["e"]).await;
    let group = queue.group("other").unwrap();
    let back = thalweg_queue::SeekTo::Offset {
        partition: Some(0),
        offset: 0,
    };
    queue.seek(&group, back).await.unwrap();
    assert_eq!(queue.depth(), 5);
    assert_eq!(
        queue.produce(NewMessage::of("f")).await.unwrap_err().code(),
        "queue_full"
    );
}

type Call = Pin<Box<dyn Future<Output = Result<Vec<ProduceResult>, QueueError>>>>;

/// The expected wait queue.
struct Model {
    most: u64,
    depth: u64,
    line: VecDeque<(usize, u64)>,
}

impl Model {
    /// Those at the front are admitted as far as they fit.
    fn let_in(&mut self) -> Vec<usize> {
        let mut came = Vec::new();
        while let Some((name, count)) = self
            .line
            .front()
            .copied()
            .filter(|(_, count)| self.depth + count <= self.most)
        {
            self.line.pop_front();
            self.depth += count;
            came.push(name);
        }
        came
    }
}

/// Producers of all sizes come and cancel, and consumers make room, at random: at each moment exactly those are
/// admitted that FIFO order allows.
#[tokio::test]
async fn a_line_lets_in_who_came_first_and_nobody_waits_while_the_first_fits() {
    let (first, count) = (number("THALWEG_SIM_SEED", 1), number("THALWEG_SIM_SEEDS", 30));
    for seed in first..first + count {
        let mut random = Random::new(seed);
        let most = 3 + random.below(20);
        let (_folder, place, queue) = begin(blocking(most, FOR_EVER, Durability::Memory)).await;
        let mut model = Model {
            most,
            depth: 0,
            line: VecDeque::new(),
        };
        let mut calls: Vec<(usize, Call)> = Vec::new();
        for name in 0..120 {
            match random.below(8) {
                0..4 => {
                    let size = 1 + random.below(most);
                    let producer = queue.clone();
                    let all = batch(name, size as usize);
                    calls.push((name, Box::pin(async move { producer.produce_all(all).await })));
                    model.line.push_back((name, size));
                }
                // Cancelled before or after it was admitted; it did not learn the outcome.
                4 if !calls.is_empty() => {
                    let (left, call) = calls.remove(random.below(calls.len() as u64) as usize);
                    drop(call);
                    model.line.retain(|(name, _)| *name != left);
                }
                _ => {
                    let taken = claim(&queue, "g", 1 + random.below(most) as u32).await;
                    model.depth -= taken.len() as u64;
                    ack(&queue, "g", &taken);
                    if random.below(3) == 0 && !calls.is_empty() {
                        // The freed room is given to a producer that cancels before it learns of it.
                        let (left, call) = calls.remove(0);
                        drop(call);
                        model.line.retain(|(name, _)| *name != left);
                    }
                }
            }
            let mut came = model.let_in();
            calls.retain_mut(|(name, call)| {
                let is_stored = is_stored(call);
                let is_in = came.contains(name);
                assert!(is_in || !is_stored, "seed {seed}: {name} came in before its turn");
                came.retain(|other| !(is_stored && other == name));
                !is_stored
            });
            assert!(came.is_empty(), "seed {seed}: {came:?} wait although there is room");
            assert_eq!(queue.depth(), model.depth, "seed {seed}");
        }
        place.stop().await;
    }
}

/// Polls until nothing changes, because a call does some checks first.
fn is_stored(call: &mut Call) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..3 {
        if let Poll::Ready(stored) = call.as_mut().poll(&mut context) {
            stored.unwrap();
            return true;
        }
    }
    false
}
