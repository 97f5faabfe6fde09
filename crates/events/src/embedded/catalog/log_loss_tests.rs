//! A log that has lost what the indexes know is refused. If the loss is accepted, nothing is assigned twice.

use std::collections::BTreeMap;

use super::super::test_support::{all_of, append_one, closed, is_healthy, lives, new};
use super::super::tests::{Chance, Disks};
use super::super::*;

async fn refusal(disks: &Disks) -> EventsError {
    let opened = disks.try_open(Durability::Fsync, false).await;
    opened.err().unwrap()
}

/// Global position and data by stream and position.
async fn streams_of(store: &EmbeddedStore, name: &str) -> BTreeMap<(String, u64), (u64, String)> {
    let namespace = store.namespace(name).await.unwrap();
    let all = all_of(&namespace).await.into_iter().map(|stored| {
        let event = stored.event();
        let place = (event.stream.to_owned(), event.position);
        (place, (event.global, event.data.to_owned()))
    });
    all.collect()
}

async fn append(store: &EmbeddedStore, name: &str, data: &str) {
    append_one(&store.namespace(name).await.unwrap(), "a-1", data).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_ends_before_its_indexes_is_refused_and_left_as_it_is() {
    for durability in [Durability::Fsync, Durability::Interval, Durability::Os] {
        let mut disks = Disks::new();
        let store = disks.open_with(durability).await;
        append(&store, DEFAULT, "{\"n\":0}").await;
        closed(store).await;
        let older = disks.copied();
        let store = disks.open_with(durability).await;
        append(&store, DEFAULT, "{\"n\":1}").await;
        store.flush_indexes().await.unwrap();
        closed(store).await;
        let whole = disks.copied();
        disks.put_back_log_of(&older);
        for _ in 0..2 {
            let error = refusal(&disks).await;
            assert!(matches!(error, EventsError::Damaged(_)), "{error}");
            let text = error.to_string();
            for part in [
                "in namespace 'default' (partition ",
                "the indexes have offsets up to 1, but the log ends before offset 1",
                "--recover=skip",
                "log: {recover: skip}",
            ] {
                assert!(text.contains(part), "{text}");
            }
        }
        // With the missing files restored, nothing is lost.
        disks.put_back_log_of(&whole);
        let store = disks.open_with(durability).await;
        assert_eq!(streams_of(&store, DEFAULT).await.len(), 2);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_that_only_the_indexes_know_is_refused_and_its_number_is_not_given_again() {
    let mut disks = Disks::new();
    closed(disks.open().await).await;
    let older = disks.copied();
    let store = disks.open().await;
    store.create(new("a")).await.unwrap();
    append(&store, "a", "{\"n\":1}").await;
    store.flush_indexes().await.unwrap();
    let number = store.inner.opened("a").unwrap().namespace.number;
    closed(store).await;
    disks.put_back_log_of(&older);
    let text = refusal(&disks).await.to_string();
    assert!(text.contains(&format!("in namespace number {number}")), "{text}");
    disks.recover_skip();
    closed(disks.open().await).await;
    let store = disks.open().await;
    store.create(new("b")).await.unwrap();
    assert!(store.inner.opened("b").unwrap().namespace.number > number);
    assert_eq!(streams_of(&store, "b").await.len(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loss_that_was_accepted_is_no_fault_to_verify_then_and_at_later_starts() {
    let mut disks = Disks::new();
    let store = disks.open().await;
    append(&store, DEFAULT, "{\"n\":0}").await;
    closed(store).await;
    let older = disks.copied();
    let store = disks.open().await;
    for n in 1..4 {
        append(&store, DEFAULT, &format!("{{\"n\":{n}}}")).await;
    }
    store.flush_indexes().await.unwrap();
    closed(store).await;
    disks.put_back_log_of(&older);
    disks.recover_skip();
    let store = disks.open().await;
    is_healthy(&store, "accepted").await;
    append(&store, DEFAULT, "{\"n\":4}").await;
    is_healthy(&store, "goes on").await;
    closed(store).await;
    // The loss need not be accepted again.
    let disks = disks.copied();
    let store = disks.open().await;
    is_healthy(&store, "started").await;
    let positions: Vec<u64> = streams_of(&store, DEFAULT)
        .await
        .keys()
        .map(|(_, position)| *position)
        .collect();
    assert_eq!(positions, [0, 4]);
}

/// A random life in which the log is sometimes replaced by an older copy.
async fn life(seed: u64) {
    let mut chance = Chance(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut disks = Disks::with_small_files();
    disks.recover_skip();
    let mut store = disks.open().await;
    // Everything that was acknowledged and in a table, by position.
    let mut ever: BTreeMap<(String, u64), (u64, String)> = BTreeMap::new();
    let mut older: Option<Disks> = None;
    for step in 0..40 {
        let what = format!("seed {seed}, step {step}");
        match chance.below(8) {
            0..4 => {
                let namespace = store.namespace(DEFAULT).await.unwrap();
                for _ in 0..1 + chance.below(4) {
                    let stream = format!("a-{}", chance.below(3));
                    let data = format!("{{\"step\":{step},\"n\":{}}}", chance.below(1 << 40));
                    let at = append_one(&namespace, &stream, &data).await;
                    let before = ever.insert((stream, at.first_position), (at.first_global, data));
                    assert_eq!(before, None, "{what}: a position was given twice");
                }
                let globals: std::collections::BTreeSet<u64> = ever.values().map(|(global, _)| *global).collect();
                assert_eq!(globals.len(), ever.len(), "{what}: a global position was given twice");
            }
            4 => {
                closed(store).await;
                older = Some(disks.copied());
                store = disks.open().await;
            }
            5 if older.is_some() => {
                // Loses nothing that was never in a table.
                store.flush_indexes().await.unwrap();
                closed(store).await;
                disks.put_back_log_of(older.as_ref().unwrap());
                store = disks.open().await;
            }
            6 => store.flush_indexes().await.unwrap(),
            _ => {
                closed(store).await;
                store = disks.open().await;
            }
        }
        is_healthy(&store, &what).await;
        let found = streams_of(&store, DEFAULT).await;
        for (place, stored) in &found {
            assert_eq!(ever.get(place), Some(stored), "{what}: {place:?} has another message");
        }
    }
}

#[test]
fn no_position_is_given_twice_whatever_a_log_has_lost() {
    lives(10, life);
}
