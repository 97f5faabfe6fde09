//! The state of groups stays within its memory share, and is released.

use std::sync::Arc;
use std::time::Duration;

use thalweg_log::disk::RamDisk;
use thalweg_log::disk::sim::Random;
use thalweg_log::{Durability, EmbeddedLog, LogOptions};
use thalweg_queue::settings::{GroupMode, GroupSettings, QueueSettings};
use thalweg_queue::{Delivery, NewMessage, Queue, QueueError, Queues, QueuesOptions};

use crate::support::{Place, TestClock, claim, log_options, number, queues_options, settings, up_to};

const SHARE: u64 = 2 << 20;
/// The minimum of each partition of a group, plus what tables of offsets take beyond their estimate because they
/// double.
const FLOOR: u64 = 4 * (80 << 10);

/// A process with little memory for the state of groups.
async fn place_with(log_options: &LogOptions) -> Place {
    place_on(Arc::new(RamDisk::new(256 << 20)), log_options, SHARE).await
}

async fn place_on(disk: Arc<RamDisk>, log_options: &LogOptions, state_bytes: u64) -> Place {
    let log = Arc::new(EmbeddedLog::open(disk, 7, log_options).unwrap());
    let options = QueuesOptions {
        state_bytes,
        ..queues_options(u64::MAX)
    };
    let clock = Arc::new(TestClock::default());
    let queues = Queues::open(log.clone(), clock.clone(), options).await.unwrap();
    Place { queues, log, clock }
}

/// A queue in memory, so that only the state of its groups is kept beside the messages.
async fn queue_of(groups: &[(&str, GroupMode)], messages: usize) -> (Place, Arc<Queue>) {
    let place = place_with(&log_options(4 << 20, 1 << 20)).await;
    let in_memory = QueueSettings {
        durability: Some(Durability::Memory),
        max_in_flight: 1_000_000,
        max_pending: 1_000_000,
        max_depth: 0,
        ..settings(1, groups)
    };
    let queue = place.queues.create("q", in_memory).await.unwrap();
    for n in 0..messages {
        queue.produce(NewMessage::of(n.to_string())).await.unwrap();
    }
    (place, queue)
}

fn state_bytes(queue: &Queue) -> u64 {
    queue.groups().iter().map(|group| group.stats().state_bytes).sum()
}

fn ack_all(queue: &Queue, group: &str, deliveries: impl Iterator<Item = Delivery>) {
    let group = queue.group(group).unwrap();
    for delivery in deliveries {
        queue
            .ack(&group, delivery.partition, delivery.message.offset, delivery.delivery)
            .unwrap();
    }
}

#[tokio::test]
async fn groups_whose_consumers_settle_nothing_take_no_more_than_the_share_and_go_on_when_they_do() {
    let names: Vec<String> = (0..12).map(|n| format!("g{n}")).collect();
    let groups: Vec<(&str, GroupMode)> = names.iter().map(|name| (name.as_str(), GroupMode::Work)).collect();
    let (place, queue) = queue_of(&groups, 20_000).await;
    let mut in_hand = Vec::new();
    for name in &names {
        let mut own = Vec::new();
        loop {
            let more = claim(&queue, name, 1000).await;
            if more.is_empty() {
                break;
            }
            own.extend(more);
        }
        assert!(!own.is_empty(), "{name} gets nothing at all");
        in_hand.push(own);
    }
    let bytes = state_bytes(&queue);
    assert!(bytes <= SHARE + 12 * FLOOR, "{bytes} bytes");
    assert!(bytes > SHARE / 2, "the share is not used: {bytes} bytes");
    let had: usize = in_hand.iter().map(Vec::len).sum();
    assert!(had < 12 * 20_000, "nobody was stopped");
    // Each gets all the others, once.
    for (name, mut own) in names.iter().zip(in_hand) {
        let mut got = 0;
        while !own.is_empty() {
            got += own.len();
            ack_all(&queue, name, own.drain(..));
            own = claim(&queue, name, 1000).await;
        }
        assert_eq!(got, 20_000, "{name}");
    }
    let bytes = state_bytes(&queue);
    assert!(bytes <= 12 * (256 << 10), "what a burst needed is kept: {bytes} bytes");
    assert_eq!(queue.depth(), 0);
    place.kill();
}

#[tokio::test]
async fn a_stream_whose_first_message_is_not_acked_stops_where_there_is_no_room() {
    let (place, queue) = queue_of(&[("s", GroupMode::Stream)], 700_000).await;
    let group = queue.group("s").unwrap();
    let mut first = None;
    loop {
        let more = queue
            .claim(&group, "c", thalweg_queue::members::MemberKind::Pipeline, up_to(10_000))
            .await
            .unwrap();
        if more.is_empty() {
            break;
        }
        let mut more = more.into_iter();
        if first.is_none() {
            first = more.next();
        }
        ack_all(&queue, "s", more);
    }
    let bytes = state_bytes(&queue);
    assert!(bytes <= 2 * SHARE, "{bytes} bytes");
    let in_flight = group.in_flight(0);
    assert!(in_flight.end - in_flight.start < 700_000, "it was not stopped");
    ack_all(&queue, "s", first.into_iter());
    assert!(!claim(&queue, "s", 10).await.is_empty(), "it goes on");
    place.kill();
}

/// Frames that a claim has read from disk and not delivered are kept for the next claim, which may never come.
#[tokio::test]
async fn what_was_read_for_the_next_claim_stays_within_the_share_and_is_given_back_when_none_comes() {
    let names: Vec<String> = (0..20).map(|n| format!("g{n}")).collect();
    let groups: Vec<(&str, GroupMode)> = names.iter().map(|name| (name.as_str(), GroupMode::Work)).collect();
    let place = place_with(&LogOptions {
        tail_bytes_max: 0,
        ..log_options(4 << 20, 1 << 20)
    })
    .await;
    let queue = place.queues.create("q", settings(4, &groups)).await.unwrap();
    for n in 0..160u8 {
        queue.produce(NewMessage::of(vec![n; 30_000])).await.unwrap();
    }
    let mut got = 0;
    for name in &names {
        for _ in 0..4 {
            got += claim(&queue, name, 1).await.len();
        }
    }
    assert_eq!(got, 80, "each group has read some partition");
    let (bytes, floors) = (state_bytes(&queue), 20 * 4 * (64 << 10));
    assert!(bytes <= SHARE + floors, "{bytes} bytes");
    place.later(Duration::from_secs(11));
    queue.look_after_now().await;
    let left = state_bytes(&queue);
    assert!(left < bytes / 10, "{left} bytes of {bytes}");
    for name in &names {
        let mut own = 0;
        loop {
            let more = claim(&queue, name, 100).await;
            if more.is_empty() {
                break;
            }
            own += more.len();
        }
        assert_eq!(own, 156, "{name}");
    }
    place.kill();
}

/// Whatever consumers do, each message is delivered to each group until it is settled, and the state stays within the
/// share.
#[tokio::test]
async fn whatever_consumers_do_state_stays_within_the_share_and_everything_is_handed_out() {
    let (first, count) = (number("THALWEG_SIM_SEED", 0), number("THALWEG_SIM_SEEDS", 4));
    for seed in first..first + count {
        let mut random = Random::new(seed);
        let groups = [("a", GroupMode::Work), ("b", GroupMode::Work), ("c", GroupMode::Work)];
        let messages = 5_000 + random.below(25_000) as usize;
        let (place, queue) = queue_of(&groups, messages).await;
        let mut in_hand: [Vec<Delivery>; 3] = Default::default();
        let mut acked = [0; 3];
        for step in 0.. {
            let n = random.below(3) as usize;
            let (name, own) = (groups[n].0, &mut in_hand[n]);
            own.extend(claim(&queue, name, 1 + random.below(5000) as u32).await);
            let some = random.below(own.len() as u64 + 1) as usize;
            let some = if step > 60 { own.len() } else { some };
            acked[n] += some;
            ack_all(&queue, name, own.drain(..some));
            let bytes = state_bytes(&queue);
            assert!(bytes <= SHARE + 3 * FLOOR, "seed {seed}, step {step}: {bytes} bytes");
            if acked == [messages; 3] {
                break;
            }
            assert!(step < 10_000, "seed {seed}: {acked:?} of {messages}");
        }
        assert_eq!(queue.depth(), 0);
        place.kill();
    }
}

/// Minimum for one group in one partition: its timers alone are 2 KiB.
const PART_MIN: u64 = 2 << 10;

fn is_refused(error: &QueueError, limit: u64) {
    let told = error.to_string();
    assert_eq!((error.code(), error.http_status()), ("quota_exceeded", 429), "{told}");
    assert!(
        told.contains("queues.state_memory") && told.contains(&limit.to_string()),
        "{told}"
    );
}

async fn join(place: &Place, queue: &Arc<Queue>, name: &str) -> Result<(), QueueError> {
    let group = GroupSettings::new(name, GroupMode::Work);
    place.queues.join_group(queue, group).await.map(drop)
}

#[tokio::test]
async fn groups_take_of_the_share_for_each_partition_and_where_nothing_is_left_no_more_are_made() {
    let place = place_with(&log_options(4 << 20, 1 << 20)).await;
    let in_memory = |partitions, groups: &[(&str, GroupMode)]| QueueSettings {
        durability: Some(Durability::Memory),
        ..settings(partitions, groups)
    };
    let queue = place.queues.create("q", in_memory(50, &[])).await.unwrap();
    let mut made = 0;
    let refused = loop {
        match join(&place, &queue, &format!("g{made}")).await {
            Ok(()) => made += 1,
            Err(error) => break error,
        }
        assert!(made * 50 * PART_MIN <= SHARE, "{made} groups, and no bound");
    };
    is_refused(&refused, SHARE);
    assert!(made * 50 * (4 * PART_MIN) > SHARE, "{made} groups are few");
    assert_eq!(queue.groups().len() as u64, made);
    // Neither by a queue with groups, which is then not created, nor by other settings, which are then not applied.
    let other = place
        .queues
        .create("other", in_memory(100, &[("g", GroupMode::Work)]))
        .await;
    is_refused(&other.err().unwrap(), SHARE);
    assert_eq!(place.queues.get("other").err().unwrap().code(), "queue_not_found");
    for more in [in_memory(100, &[]), in_memory(50, &[("new", GroupMode::Work)])] {
        let changed = place.queues.configure("q", more).await;
        is_refused(&changed.unwrap_err(), SHARE);
        assert_eq!((queue.partition_count(), queue.groups().len() as u64), (50, made));
        assert!(queue.settings().groups.is_empty());
    }
    // Without a group it takes nothing, and a change that needs no more is accepted.
    place.queues.create("without", in_memory(100, &[])).await.unwrap();
    place.queues.configure("q", in_memory(50, &[])).await.unwrap();
    // A removed group releases its part as soon as no task refers to it.
    place.queues.remove_group(&queue, "g0").await.unwrap();
    let again = async {
        while join(&place, &queue, "again").await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), again).await.unwrap();
    is_refused(&join(&place, &queue, "more").await.unwrap_err(), SHARE);
    // Consumers of the existing groups get new messages.
    queue.produce(NewMessage::of("1")).await.unwrap();
    assert_eq!(claim(&queue, "again", 10).await.len(), 1);
    place.kill();
}

#[tokio::test]
async fn what_is_stored_is_opened_and_works_though_there_is_no_room_for_its_groups() {
    let (disk, options) = (Arc::new(RamDisk::new(256 << 20)), log_options(4 << 20, 1 << 20));
    let stored = settings(4, &[("w", GroupMode::Work), ("s", GroupMode::Stream)]);
    let place = place_on(disk.clone(), &options, SHARE).await;
    place.queues.create("q", stored.clone()).await.unwrap();
    place.stop().await;
    let place = place_on(disk, &options, 1).await;
    let queue = place.queue();
    // As the file declares it at each start.
    place.queues.configure("q", stored).await.unwrap();
    queue.produce(NewMessage::of("1")).await.unwrap();
    for group in ["w", "s"] {
        assert_eq!(claim(&queue, group, 10).await.len(), 1, "{group}");
    }
    is_refused(&join(&place, &queue, "new").await.unwrap_err(), 1);
    place.kill();
}
