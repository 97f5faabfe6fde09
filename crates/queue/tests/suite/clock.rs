//! Clock jumps: durations follow the time that passes, and times that people set follow the wall clock.

use std::sync::Arc;
use std::time::Duration;

use thalweg_log::{Durability, Micros};
use thalweg_queue::settings::{GroupMode, QueueSettings};
use thalweg_queue::{NewMessage, Queue, SeekTo};

use crate::support::{DAY, HOUR, Machine, SECOND, TODAY, ack, claim_http, put, settings, texts, work};

fn living(ttl: Micros) -> QueueSettings {
    QueueSettings {
        ttl: Duration::from_micros(ttl as u64),
        ..work(1)
    }
}

fn depth(queue: &Arc<Queue>) -> u64 {
    queue.depth()
}

#[tokio::test]
async fn eight_days_forward_and_back_expire_nothing_and_freeze_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine::boot(folder.path(), TODAY).await;
    let visibility = Duration::from_secs(30);
    let queue = machine
        .queue(QueueSettings {
            visibility_timeout: visibility,
            ..living(HOUR)
        })
        .await;
    put(&queue, &["leased", "waiting"]).await;
    let leased = claim_http(&queue, "g", 1).await;
    for by in [8 * DAY, -8 * DAY, -400 * DAY, 400 * DAY] {
        machine.set(by).await;
        assert_eq!(depth(&queue), 2, "set by {by}");
        machine.pass(5 * SECOND).await;
    }
    assert_eq!(
        texts(&claim_http(&queue, "g", 1).await),
        ["waiting"],
        "the other one is leased still"
    );
    machine.set(-8 * DAY).await;
    machine.pass(11 * SECOND).await;
    // The backoff before a retry.
    machine.pass(10 * SECOND).await;
    let again = claim_http(&queue, "g", 1).await;
    assert_eq!((texts(&again), again[0].delivery), (vec!["leased".to_owned()], 2));
    assert_eq!(leased[0].delivery, 1);
    machine.pass(HOUR).await;
    machine.pass(SECOND).await;
    assert_eq!(depth(&queue), 0, "an hour is an hour");
    machine.place.stop().await;
}

#[tokio::test]
async fn a_gateway_that_boots_in_1970_and_is_set_right_expires_nothing_then_and_at_later_starts() {
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine::boot(folder.path(), 30 * SECOND).await;
    let queue = machine.queue(living(HOUR)).await;
    put(&queue, &["a", "b"]).await;
    machine.pass(60 * SECOND).await;
    machine.set(TODAY).await;
    assert_eq!(depth(&queue), 2);
    machine.pass(60 * SECOND).await;
    put(&queue, &["c"]).await;
    machine.place.kill();
    for (boot, clean) in [true, false, true].into_iter().enumerate() {
        let machine = Machine::boot(folder.path(), 20 * SECOND).await;
        let queue = machine.place.queue();
        machine.pass(10 * SECOND).await;
        assert_eq!(depth(&queue), 3, "boot {boot}");
        machine.set(TODAY + boot as i64 * DAY).await;
        machine.pass(10 * SECOND).await;
        assert_eq!(depth(&queue), 3, "boot {boot}");
        machine.place.end(clean).await;
    }
    // With a battery-backed clock the stop is known to have taken longer than a message lives.
    let machine = Machine::boot(folder.path(), TODAY + 2 * DAY + 20 * SECOND + 2 * HOUR).await;
    machine.look().await;
    assert_eq!(depth(&machine.place.queue()), 0);
    machine.place.stop().await;
}

/// A message with a wall-clock time of delivery.
async fn put_at(queue: &Arc<Queue>, text: &str, deliver_at: Micros) {
    let message = NewMessage {
        deliver_at: Some(deliver_at),
        ..NewMessage::of(text.to_owned())
    };
    queue.produce(message).await.unwrap();
}

/// A message with a delay.
async fn put_in(queue: &Arc<Queue>, text: &str, until: Micros) {
    let message = NewMessage {
        not_before: Some(until),
        ..NewMessage::of(text.to_owned())
    };
    queue.produce(message).await.unwrap();
}

async fn take(queue: &Arc<Queue>) -> Vec<String> {
    let taken = claim_http(queue, "g", 64).await;
    ack(queue, "g", &taken);
    let mut taken = texts(&taken);
    taken.sort_unstable();
    taken
}

#[tokio::test]
async fn what_is_to_be_delivered_at_a_time_follows_the_wall_clock_and_a_delay_does_not() {
    for (durability, again) in [
        (Durability::Fsync, false),
        (Durability::Fsync, true),
        (Durability::Memory, false),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut machine = Machine::boot(folder.path(), TODAY).await;
        let mut queue = machine
            .queue(QueueSettings {
                durability: Some(durability),
                ..living(0)
            })
            .await;
        // One with an entry, one that sleeps, and the same as delays.
        for (n, at) in [("soon", 30 * SECOND), ("late", 2 * HOUR)] {
            put_at(&queue, &format!("at {n}"), machine.wall() + at).await;
            put_in(&queue, &format!("in {n}"), machine.now() + at).await;
        }
        assert_eq!(take(&queue).await, [""; 0]);
        machine.set(-DAY).await;
        machine.pass(31 * SECOND).await;
        if again {
            let wall = machine.wall();
            machine.place.end(false).await;
            machine = Machine::boot(folder.path(), wall).await;
            queue = machine.place.queue();
            machine.look().await;
        }
        let what = format!("{durability:?}, {again}");
        assert_eq!(take(&queue).await, ["in soon"], "{what}: the clock was set back");
        machine.set(DAY).await;
        machine.pass(0).await;
        assert_eq!(take(&queue).await, ["at soon"], "{what}: it shows the time now");
        machine.set(3 * HOUR).await;
        machine.pass(0).await;
        assert_eq!(
            take(&queue).await,
            ["at late"],
            "{what}: it was set forward over the time"
        );
        machine.pass(2 * HOUR).await;
        machine.pass(SECOND).await;
        assert_eq!(take(&queue).await, ["in late"], "{what}");
        assert_eq!(depth(&queue), 0, "{what}");
        machine.place.end(true).await;
    }
}

#[tokio::test]
async fn a_stream_waits_for_a_time_of_the_wall_clock() {
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine::boot(folder.path(), TODAY).await;
    let queue = machine.queue(settings(1, &[("g", GroupMode::Stream)])).await;
    put_at(&queue, "at noon", machine.wall() + HOUR).await;
    assert_eq!(take(&queue).await, [""; 0]);
    machine.set(HOUR + SECOND).await;
    assert_eq!(take(&queue).await, ["at noon"]);
    machine.place.stop().await;
}

#[tokio::test]
async fn times_are_shown_and_sought_as_the_wall_clock_showed_them() {
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine::boot(folder.path(), TODAY).await;
    let queue = machine.queue(settings(1, &[("g", GroupMode::Stream)])).await;
    put(&queue, &["before"]).await;
    machine.pass(SECOND).await;
    machine.set(8 * DAY).await;
    machine.pass(SECOND).await;
    put(&queue, &["after"]).await;
    let shown: Vec<Micros> = claim_http(&queue, "g", 8)
        .await
        .iter()
        .map(|delivery| queue.clock().wall_at(delivery.message.time))
        .collect();
    assert_eq!(shown, [TODAY, TODAY + 8 * DAY + 2 * SECOND]);
    let group = queue.group("g").unwrap();
    queue.seek(&group, SeekTo::Time(TODAY)).await.unwrap();
    assert_eq!(texts(&claim_http(&queue, "g", 8).await), ["before", "after"]);
    queue.seek(&group, SeekTo::Time(TODAY + DAY)).await.unwrap();
    assert_eq!(texts(&claim_http(&queue, "g", 8).await), ["after"]);
    machine.place.stop().await;
}
