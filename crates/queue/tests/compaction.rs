//! Key compaction of queues on a real log: what a reader finds is the same as before, only less of it.

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use support::{Place, open};
use thalweg_queue::members::MemberKind;
use thalweg_queue::settings::{CompactionSettings, GroupMode, GroupSettings, QueueSettings, RetentionMode};
use thalweg_queue::{ClaimWant, Message, NewMessage, Queue, Queues};

const LAG: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 3600);

fn compacted(groups: &[&str]) -> QueueSettings {
    let mut settings = QueueSettings {
        partitions: 1,
        max_depth: 0,
        max_bytes: 0,
        ttl: Duration::ZERO,
        compaction: CompactionSettings {
            enabled: true,
            lag: LAG,
            interval: Duration::from_secs(3600),
            tombstone_age: DAY,
        },
        groups: groups
            .iter()
            .map(|name| GroupSettings::new(name, GroupMode::Work))
            .collect(),
        ..QueueSettings::default()
    };
    settings.retention.mode = RetentionMode::Policy;
    settings
}

fn keyed(key: u64, value: impl Into<Bytes>) -> NewMessage {
    NewMessage {
        key: Some(Bytes::from(format!("key-{key}"))),
        ..NewMessage::of(value)
    }
}

fn value(n: u64) -> Bytes {
    let mut value = n.to_le_bytes().to_vec();
    value.resize(40_000, n as u8);
    value.into()
}

/// Values and nothing else, so that files before it are full.
async fn fill(queue: &std::sync::Arc<Queue>) {
    for _ in 0..12 {
        queue.produce(NewMessage::of(vec![0; 900_000])).await.unwrap();
    }
}

async fn all(queue: &Arc<Queue>) -> Vec<Message> {
    let found = queue.browse(Some(0), None, usize::MAX).await.unwrap();
    found.into_iter().map(|(_, message)| message).collect()
}

/// What is on the disk: the newest messages are in memory too, as they were.
async fn reopened(place: Place, folder: &std::path::Path) -> (Place, std::sync::Arc<Queue>, Vec<Message>) {
    place.kill();
    let place = open(folder).await;
    let queue = place.queues.get("q").unwrap();
    let found = all(&queue).await;
    (place, queue, found)
}

/// By key: the newest value; deleted ones are not there.
fn newest(messages: &[Message]) -> BTreeMap<Bytes, Bytes> {
    let mut newest = BTreeMap::new();
    for message in messages {
        if let Some(key) = &message.key {
            newest.insert(key.clone(), message.payload.clone());
        }
    }
    newest.retain(|_, value| !value.is_empty());
    newest
}

fn of_key(messages: &[Message], key: u64) -> usize {
    let key = Bytes::from(format!("key-{key}"));
    messages
        .iter()
        .filter(|message| message.key.as_ref() == Some(&key))
        .count()
}

async fn create(queues: &Queues, groups: &[&str]) -> std::sync::Arc<Queue> {
    queues.create("q", compacted(groups)).await.unwrap()
}

#[tokio::test]
async fn of_each_key_the_last_record_stays_with_its_offset_over_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let place = open(folder.path()).await;
    let queue = create(&place.queues, &[]).await;
    for n in 0..300 {
        queue.produce(keyed(n % 7, value(n))).await.unwrap();
    }
    queue.produce(NewMessage::of("without a key")).await.unwrap();
    fill(&queue).await;
    let before = all(&queue).await;
    queue.compact_now().await;
    assert_eq!(all(&queue).await.len(), before.len(), "younger than the lag");
    place.later(2 * LAG);
    queue.compact_now().await;
    let (_place, _queue, after) = reopened(place, folder.path()).await;
    assert_eq!(newest(&after), newest(&before));
    for key in 0..7 {
        assert_eq!(of_key(&after, key), 1, "key {key}");
    }
    let offsets: BTreeSet<u64> = after.iter().map(|message| message.offset).collect();
    assert!(
        (293..300).all(|offset| offsets.contains(&offset)),
        "the last seven stay where they were"
    );
    assert!(after.iter().any(|message| &message.payload[..] == b"without a key"));
}

#[tokio::test]
async fn what_a_group_has_not_settled_stays_until_it_has() {
    let folder = tempfile::tempdir().unwrap();
    let place = open(folder.path()).await;
    let queue = create(&place.queues, &["g"]).await;
    for n in 0..100 {
        queue.produce(keyed(1, value(n))).await.unwrap();
    }
    fill(&queue).await;
    place.later(2 * LAG);
    let before = all(&queue).await.len();
    queue.compact_now().await;
    assert_eq!(all(&queue).await.len(), before);
    let group = queue.group("g").unwrap();
    for _ in 0..50 {
        let claimed = queue
            .claim(&group, "c", MemberKind::Pipeline, ClaimWant::default())
            .await
            .unwrap();
        let delivery = claimed.first().unwrap();
        queue
            .ack(&group, 0, delivery.message.offset, delivery.delivery)
            .unwrap();
    }
    queue.compact_now().await;
    let (_place, _queue, left) = reopened(place, folder.path()).await;
    assert_eq!(of_key(&left, 1), 50, "what comes after what is settled");
    assert_eq!(left.first().unwrap().offset, 50);
}

#[tokio::test]
async fn a_deleted_key_is_forgotten_when_nothing_of_it_can_be_left() {
    let folder = tempfile::tempdir().unwrap();
    let place = open(folder.path()).await;
    let queue = create(&place.queues, &[]).await;
    for n in 0..100 {
        queue.produce(keyed(n % 2, value(n))).await.unwrap();
    }
    queue.produce(keyed(1, Bytes::new())).await.unwrap();
    fill(&queue).await;
    place.later(2 * LAG);
    queue.compact_now().await;
    let (place, queue, left) = reopened(place, folder.path()).await;
    assert_eq!(
        (of_key(&left, 0), of_key(&left, 1)),
        (1, 1),
        "the mark of the deletion stays for now"
    );
    assert!(!newest(&left).contains_key(&Bytes::from_static(b"key-1")));
    place.later(2 * DAY);
    queue.compact_now().await;
    let (place, queue, left) = reopened(place, folder.path()).await;
    assert_eq!(
        of_key(&left, 1),
        1,
        "the first run of a process does not know what is left before it"
    );
    place.later(2 * DAY);
    queue.compact_now().await;
    place.later(2 * DAY);
    queue.compact_now().await;
    let (_place, _queue, left) = reopened(place, folder.path()).await;
    assert_eq!((of_key(&left, 0), of_key(&left, 1)), (1, 0), "nothing comes back");
}

/// The same numbers for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

#[tokio::test]
async fn whatever_comes_between_runs_the_newest_values_are_those_that_were_put() {
    for seed in 1..=6 {
        let mut random = Random(seed << 32 | 0x9e37);
        let folder = tempfile::tempdir().unwrap();
        let mut place: Place = open(folder.path()).await;
        let mut queue = create(&place.queues, &["g"]).await;
        let mut model: BTreeMap<Bytes, Bytes> = BTreeMap::new();
        for step in 0..300 {
            match random.below(20) {
                0 => queue.compact_now().await,
                1 => place.later(Duration::from_secs(random.below(40) * 3600)),
                2 => {
                    place.kill();
                    place = open(folder.path()).await;
                    queue = place.queues.get("q").unwrap();
                }
                3..=8 => {
                    let group = queue.group("g").unwrap();
                    let want = ClaimWant {
                        max: random.below(20) as u32 + 1,
                        ..ClaimWant::default()
                    };
                    for delivery in queue.claim(&group, "c", MemberKind::Pipeline, want).await.unwrap() {
                        // Some are held back for good.
                        if random.below(30) > 0 {
                            let offset = delivery.message.offset;
                            queue.ack(&group, 0, offset, delivery.delivery).unwrap();
                        }
                    }
                }
                _ => {
                    let (key, deleted) = (random.below(9), random.below(5) == 0);
                    let value = if deleted { Bytes::new() } else { value(step) };
                    let message = keyed(key, value.clone());
                    let key = message.key.clone().unwrap();
                    queue.produce(message).await.unwrap();
                    match deleted {
                        true => drop(model.remove(&key)),
                        false => drop(model.insert(key, value)),
                    }
                }
            }
            if step % 50 == 49 {
                assert_eq!(newest(&all(&queue).await), model, "seed {seed}, step {step}");
            }
        }
    }
}
