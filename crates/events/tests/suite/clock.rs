//! Clocks that jump: leases and retention measure elapsed time, and people see what the wall clock showed.

use std::sync::Arc;

use thalweg_events::subscription::{DeliveryStrategy, Nack, SubscriptionSettings, SubscriptionSource};
use thalweg_events::{
    Append, CategoryRead, DEFAULT, DeliveredMessage, Direction, ExpectedVersion, FetchRequest, Namespace, NewEvent,
    Retention, RetentionTarget, Store as _, StoredEvent,
};
use tokio::time::Instant;

use crate::lives::machine::{DAY, Machine, Process, SECOND};

const HOUR: i64 = 3600 * SECOND;
/// A machine without a battery, shortly after power-on.
const BOOT_1970: i64 = 20 * SECOND;

async fn append(namespace: &Arc<dyn Namespace>, stream: &str) {
    let event = NewEvent {
        id: None,
        kind: "T",
        data: "{}",
        metadata: None,
    };
    let append = Append {
        stream,
        expected: ExpectedVersion::Any,
        events: vec![event],
    };
    namespace.append(&[append]).await.unwrap();
}

async fn shown(namespace: &Arc<dyn Namespace>) -> Vec<StoredEvent> {
    let read = CategoryRead {
        category: None,
        from: None,
        direction: Direction::Forward,
        max: 100,
        correlation: None,
        member: None,
        types: &[],
    };
    let events = namespace.read_category(read).await.unwrap().events;
    let counted = namespace.info().await.unwrap().messages;
    assert_eq!(counted, events.len() as u64, "what is counted is what is shown");
    events
}

async fn keep_for(namespace: &Arc<dyn Namespace>, max_age: i64) {
    let rule = Retention {
        max_age: Some(max_age),
        ..Retention::default()
    };
    namespace
        .set_retention(RetentionTarget::Category("a"), Some(rule))
        .await
        .unwrap();
}

async fn subscribe(process: &Process, namespace: &Arc<dyn Namespace>) {
    let settings = SubscriptionSettings {
        source: SubscriptionSource::All,
        from: 1,
        strategy: DeliveryStrategy::RoundRobin,
        ack_timeout: 30 * SECOND,
        max_attempts: 10,
        max_in_flight: 10,
        types: Vec::new(),
        correlation: None,
    };
    process.subscriptions.create(namespace, "s", settings).await.unwrap();
}

async fn fetch(process: &Process, namespace: &Arc<dyn Namespace>, consumer: &str) -> Vec<DeliveredMessage> {
    let ask = FetchRequest {
        consumer: consumer.into(),
        max: 10,
        held: Vec::new(),
    };
    let fetched = process.subscriptions.fetch(namespace, "s", ask, Instant::now()).await;
    fetched.unwrap().messages
}

/// Sets the wall clock by `by` and lets the process notice it.
async fn set(process: &Process, by: i64) {
    process.set(process.wall() + by);
    process.look().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_days_forward_and_back_hide_nothing_and_end_and_freeze_no_lease() {
    let process = Machine::new(1).boot().await;
    let own = process.namespace(DEFAULT).await;
    keep_for(&own, HOUR).await;
    append(&own, "a-1").await;
    subscribe(&process, &own).await;
    let first = fetch(&process, &own, "one").await;
    assert_eq!(first.len(), 1);
    for by in [8 * DAY, -8 * DAY, -400 * DAY, 400 * DAY] {
        set(&process, by).await;
        assert_eq!(shown(&own).await.len(), 1, "set by {by}");
        assert_eq!(process.store.scavenge().await.unwrap().messages, 0, "set by {by}");
        assert_eq!(
            fetch(&process, &own, "two").await.len(),
            0,
            "set by {by}: it is leased still"
        );
        process.pass(5 * SECOND);
    }
    set(&process, -8 * DAY).await;
    process.pass(11 * SECOND);
    let again = fetch(&process, &own, "two").await;
    assert_eq!(
        (again.len(), again[0].attempt),
        (1, 2),
        "half a minute is half a minute"
    );
    // Messages stamped before the clock was set back are kept until it shows that time again.
    append(&own, "a-1").await;
    process.pass(2 * HOUR);
    assert_eq!(shown(&own).await.len(), 1);
    set(&process, 8 * DAY).await;
    process.pass(2 * HOUR);
    assert_eq!(shown(&own).await.len(), 0, "an hour is over");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_boots_in_1970_and_is_set_right_hides_nothing_then_and_at_later_starts() {
    let mut machine = Machine::new(2);
    let today = std::mem::replace(&mut machine.wall, BOOT_1970);
    let mut process = machine.boot().await;
    let mut own = process.namespace(DEFAULT).await;
    keep_for(&own, HOUR).await;
    append(&own, "a-1").await;
    subscribe(&process, &own).await;
    process.pass(60 * SECOND);
    process.set(today);
    process.look().await.unwrap();
    append(&own, "a-2").await;
    assert_eq!(shown(&own).await.len(), 2);
    for boot in 0..3 {
        machine.kill();
        drop(own);
        process.gone().await;
        process = machine.boot().await;
        own = process.namespace(DEFAULT).await;
        for set_right in [false, true] {
            if set_right {
                process.set(today + boot * DAY);
                process.look().await.unwrap();
            }
            process.pass(10 * SECOND);
            assert_eq!(shown(&own).await.len(), 2, "boot {boot}, set right: {set_right}");
            assert_eq!(process.store.scavenge().await.unwrap().messages, 0, "boot {boot}");
        }
    }
    let handed = fetch(&process, &own, "one").await;
    assert_eq!(handed.len(), 2, "and what was shown can be had");
    // With a battery, the downtime is known to exceed the retention time.
    machine.wall = process.wall() + 2 * HOUR;
    drop(own);
    process.gone().await;
    let process = machine.boot().await;
    // The newest jump is within the retention time, so certainty takes one more hour.
    process.pass(HOUR);
    let own = process.namespace(DEFAULT).await;
    assert_eq!(shown(&own).await.len(), 0);
    assert_eq!(fetch(&process, &own, "two").await.len(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn times_are_shown_as_the_wall_clock_showed_them() {
    let process = Machine::new(3).boot().await;
    let own = process.namespace(DEFAULT).await;
    let before = process.wall();
    append(&own, "a-1").await;
    subscribe(&process, &own).await;
    process.pass(SECOND);
    set(&process, 8 * DAY).await;
    let after = process.wall();
    append(&own, "a-1").await;
    let times: Vec<i64> = shown(&own).await.iter().map(|stored| stored.event().time).collect();
    assert_eq!(times, [before, after]);
    assert_eq!(own.info().await.unwrap().last_activity, Some(after));
    let lease = fetch(&process, &own, "one").await[0].lease;
    let reason = "bad".to_owned();
    let parked = process
        .subscriptions
        .nack(&own, "s", vec![lease], Nack::Park { reason });
    assert_eq!(parked.await.unwrap().settled, 1);
    // A later jump does not affect earlier timestamps.
    process.pass(SECOND);
    set(&process, -8 * DAY).await;
    let parked = process.subscriptions.parked(&own, "s", 0, 10).await.unwrap();
    assert_eq!(parked[0].at, after);
    assert_eq!(process.subscriptions.info(&own, "s").await.unwrap().created_at, before);
}
