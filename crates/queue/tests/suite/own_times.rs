//! Messages expire at their own time, also while older ones live, and where nobody claims: expired messages do not
//! count against the limits, before or after a restart. A generator compares with a model; `THALWEG_SIM_SEEDS` runs more,
//! `THALWEG_SIM_SEED` others.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::support::{begin, claim, number, open_later, settings, texts, until};
use thalweg_log::Durability;
use thalweg_log::disk::sim::Random;
use thalweg_queue::settings::{GroupMode, QueueSettings};
use thalweg_queue::{NewMessage, Queue};

const HOUR: Duration = Duration::from_secs(3600);

fn lives(text: &str, ttl: Option<Duration>) -> NewMessage {
    NewMessage {
        ttl,
        ..NewMessage::of(text.as_bytes().to_vec())
    }
}

fn wanted(durability: Durability, partitions: u32) -> QueueSettings {
    QueueSettings {
        durability: Some(durability),
        max_depth: 1000,
        ..settings(partitions, &[("g", GroupMode::Work), ("h", GroupMode::Work)])
    }
}

async fn put(queue: &Arc<Queue>, text: &str, ttl: Option<Duration>) {
    queue.produce(lives(text, ttl)).await.unwrap();
}

#[tokio::test]
async fn the_dead_after_one_that_lives_make_room_for_others() {
    for durability in [Durability::Fsync, Durability::Memory] {
        let (_folder, place, queue) = begin(wanted(durability, 1)).await;
        put(&queue, "lives", None).await;
        let dead = (0..999).map(|n| lives(&format!("dead {n}"), Some(HOUR)));
        queue.produce_all(dead.collect()).await.unwrap();
        assert_eq!(
            queue.produce(lives("too much", None)).await.unwrap_err().code(),
            "queue_full"
        );
        place.later(HOUR + Duration::from_secs(1));
        put(&queue, "has room", None).await;
        assert_eq!(queue.depth(), 2);
        assert_eq!(texts(&claim(&queue, "g", 10).await), ["lives", "has room"]);
        place.stop().await;
    }
}

#[tokio::test]
async fn a_queue_that_nobody_uses_lets_go_of_the_dead_by_itself_also_after_a_restart() {
    let (folder, place, queue) = begin(wanted(Durability::Fsync, 1)).await;
    put(&queue, "lives", None).await;
    put(&queue, "dead in an hour", Some(HOUR)).await;
    put(&queue, "lives, too", None).await;
    put(&queue, "dead in two", Some(2 * HOUR)).await;
    until("it is kept that messages expire before others", async || {
        // One run of its maintenance.
        queue.look_after_now().await;
        queue.depth() == 4
    })
    .await;
    place.stop().await;
    for (hours, left) in [(1, 3), (2, 2)] {
        let place = open_later(folder.path(), hours * HOUR + Duration::from_secs(60)).await;
        let queue = place.queue();
        until("its time has come", async || queue.depth() == left).await;
        place.kill();
    }
    let place = open_later(folder.path(), 3 * HOUR).await;
    assert_eq!(texts(&claim(&place.queue(), "g", 10).await), ["lives", "lives, too"]);
    place.stop().await;
}

/// Nobody claims until the end; then exactly the live messages are delivered, in order.
#[tokio::test]
async fn at_every_time_the_depth_is_the_number_of_those_that_live() {
    let (first, count) = (number("THALWEG_SIM_SEED", 0), number("THALWEG_SIM_SEEDS", 12));
    for seed in first..first + count {
        let mut random = Random::new(seed);
        let durability = if random.one_in(2) {
            Durability::Memory
        } else {
            Durability::Os
        };
        let (_folder, place, queue) = begin(wanted(durability, 1)).await;
        // Expiry time in seconds, by text.
        let mut model: BTreeMap<String, u64> = BTreeMap::new();
        let mut now = 0;
        for n in 0..200 {
            if random.one_in(3) {
                let seconds = 1 + random.below(600);
                now += seconds;
                place.later(Duration::from_secs(seconds));
                queue.look_after_now().await;
                model.retain(|_, at| *at > now);
                assert_eq!(queue.depth(), model.len() as u64, "seed {seed}, step {n}");
            } else {
                let text = format!("{n:05}");
                // Lifetimes end at half seconds, so that nothing expires while the test checks.
                let own = random.one_in(2).then(|| 1 + random.below(5000));
                let ttl = own.map(|own| Duration::from_millis(own * 1000 + 500));
                put(&queue, &text, ttl).await;
                model.insert(text, own.map_or(168 * 3600, |own| now + own + 1));
            }
        }
        let expected: Vec<String> = model.into_keys().collect();
        assert_eq!(texts(&claim(&queue, "g", 1000).await), expected, "seed {seed}");
        assert_eq!(texts(&claim(&queue, "h", 1000).await), expected, "seed {seed}");
        place.kill();
    }
}
