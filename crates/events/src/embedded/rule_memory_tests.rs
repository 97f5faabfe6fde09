//! Deletions and rules stay within their memory budget, and what they hide stays hidden.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::EmbeddedStore;
use super::rules::weight;
use super::test_support::{all_of, append_one, append_with, is_healthy, lives, new};
use super::tests::{Chance, Disks};
use crate::error::EventsError;
use crate::store::{ExpectedVersion, Namespace, Retention, RetentionTarget, Store as _};

/// The rule budget of a store with little index memory.
const BYTES_MAX: usize = 4 << 20;

fn bytes(store: &EmbeddedStore) -> usize {
    store.inner.place.rule_memory.bytes()
}

/// Deletes nonexistent streams with long names until the budget is exhausted.
async fn fill(namespace: &Arc<dyn Namespace>) -> usize {
    for n in 0.. {
        let stream = format!("{n:01000}");
        match namespace.delete_stream(&stream, ExpectedVersion::Any, true).await {
            Ok(()) => {}
            Err(EventsError::RulesFull { bytes_max }) => {
                assert_eq!(bytes_max, BYTES_MAX);
                return n;
            }
            Err(error) => panic!("{error}"),
        }
    }
    unreachable!()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deletions_end_where_their_memory_does_and_a_namespace_that_goes_gives_its_own_back() {
    let disks = Disks::new();
    let store = disks.open().await;
    let long = "x".repeat(1000);
    for name in ["a", "b"] {
        store.create(new(name)).await.unwrap();
    }
    let (a, b) = (store.namespace("a").await.unwrap(), store.namespace("b").await.unwrap());
    append_one(&b, &long, "{}").await;
    let deleted = fill(&a).await;
    assert!(
        deleted > 1000 && bytes(&store) <= BYTES_MAX,
        "{deleted} in {}",
        bytes(&store)
    );
    // The limit is shared by all namespaces; operations without new names still work.
    let refused = b.delete_stream(&long, ExpectedVersion::Any, true).await;
    let told = refused.unwrap_err().to_string();
    assert!(told.contains("have reached their limit of 4 MiB"), "{told}");
    append_one(&b, &long, "{}").await;
    let again = a
        .delete_stream(&format!("{:01000}", 0), ExpectedVersion::Any, true)
        .await;
    assert!(matches!(again, Err(EventsError::StreamDeleted(_))), "{again:?}");
    // A start loads everything, whatever the limit is.
    let before = bytes(&store);
    drop((store, a, b));
    let store = disks.open().await;
    assert_eq!(bytes(&store), before);
    store.delete("a").await.unwrap();
    let b = store.namespace("b").await.unwrap();
    b.delete_stream(&long, ExpectedVersion::Any, true).await.unwrap();
    assert_eq!(
        bytes(&store),
        weight(&long),
        "what a deleted namespace had is given back"
    );
}

/// The state of a stream as a client knows it.
#[derive(Clone, Debug, Default)]
struct Stream {
    messages: u64,
    deleted_before: u64,
    has_deletion: bool,
    is_tombstoned: bool,
    has_rule: bool,
}

impl Stream {
    fn shown(&self) -> u64 {
        match self.is_tombstoned {
            true => 0,
            false => self.messages - self.deleted_before,
        }
    }
}

async fn is_like(store: &EmbeddedStore, streams: &BTreeMap<String, Stream>, filler: usize, what: &str) {
    let namespace = store.namespace("b").await.unwrap();
    let mut shown: BTreeMap<String, u64> = BTreeMap::new();
    for stored in all_of(&namespace).await {
        *shown.entry(stored.event().stream.to_owned()).or_default() += 1;
    }
    for (name, stream) in streams {
        assert_eq!(
            shown.get(name).copied().unwrap_or(0),
            stream.shown(),
            "{what}: {name} {stream:?}"
        );
    }
    let of = |(name, stream): (&String, &Stream)| {
        (usize::from(stream.has_deletion) + usize::from(stream.has_rule)) * weight(name)
    };
    assert_eq!(bytes(store), filler + streams.iter().map(of).sum::<usize>(), "{what}");
}

#[test]
fn whatever_is_deleted_and_made_again_at_the_bound_is_as_a_client_knows_it() {
    lives(3, |seed| async move {
        let mut chance = Chance(seed * 7919 + 1);
        let disks = Disks::new();
        let mut store = disks.open().await;
        for name in ["a", "b"] {
            store.create(new(name)).await.unwrap();
        }
        let mut filler = 0;
        let (mut streams, mut refused, mut deleted) = (BTreeMap::<String, Stream>::new(), 0, 0);
        for step in 0..220 {
            if step == 60 {
                let a = store.namespace("a").await.unwrap();
                let before = bytes(&store);
                fill(&a).await;
                filler += bytes(&store) - before;
            }
            let name = format!("order{}-{}", chance.below(3), chance.below(25));
            let b = store.namespace("b").await.unwrap();
            let stream = streams.entry(name.clone()).or_default();
            let fits = bytes(&store) + weight(&name) <= BYTES_MAX;
            match chance.below(20) {
                0..=8 => {
                    let appended = append_with(&b, &name, "{}", None).await;
                    match stream.is_tombstoned {
                        true => assert!(matches!(appended, Err(EventsError::StreamDeleted(_))), "{appended:?}"),
                        false => {
                            assert_eq!(
                                appended.unwrap().first_position,
                                stream.messages,
                                "it goes on with its version"
                            );
                            stream.messages += 1;
                        }
                    }
                }
                9..=14 => {
                    let tombstone = chance.one_in(3);
                    let told = b.delete_stream(&name, ExpectedVersion::Any, tombstone).await;
                    if stream.is_tombstoned {
                        assert!(matches!(told, Err(EventsError::StreamDeleted(_))), "{told:?}");
                    } else if stream.messages == 0 && !tombstone {
                        told.unwrap();
                    } else if !stream.has_deletion && !fits {
                        assert!(matches!(told, Err(EventsError::RulesFull { .. })), "{told:?}");
                        refused += 1;
                    } else {
                        told.unwrap();
                        deleted += 1;
                        stream.has_deletion = true;
                        stream.is_tombstoned = tombstone;
                        stream.deleted_before = stream.messages;
                    }
                }
                15..=16 => {
                    let rule = chance.one_in(2).then(Retention::default);
                    let told = b.set_retention(RetentionTarget::Stream(&name), rule).await;
                    if rule.is_some() && !stream.has_rule && !fits {
                        // The name of its document is longer than that of the stream.
                        assert!(matches!(told, Err(EventsError::RulesFull { .. })), "{told:?}");
                    } else if told.is_ok() {
                        stream.has_rule = rule.is_some();
                    }
                }
                17 => drop(store.scavenge().await.unwrap()),
                18 => {
                    drop(b);
                    drop(store);
                    store = disks.open().await;
                }
                _ if filler > 0 && chance.one_in(4) => {
                    store.delete("a").await.unwrap();
                    store.create(new("a")).await.unwrap();
                    filler = 0;
                }
                _ => {}
            }
            if step % 20 == 0 {
                is_like(&store, &streams, filler, &format!("seed {seed}, step {step}")).await;
            }
        }
        is_like(&store, &streams, filler, &format!("seed {seed}")).await;
        is_healthy(&store, &format!("seed {seed}")).await;
        assert!(deleted > 2, "seed {seed}: {deleted} deleted, {refused} refused");
    });
}
