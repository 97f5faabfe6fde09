//! Deterministic tests of operations that run between two steps of another operation.

use std::sync::Arc;

use thalweg_log::Durability;

use super::append::{DiskLookup, PutDocumentOutcome, SubmitOutcome};
use super::namespace::EmbeddedNamespace;
use super::test_support::{closed, new};
use super::tests::{Chance, Disks, Model, append, check};
use super::*;
use crate::id::MessageId;
use crate::store::{Append, ExpectedVersion, NewEvent, Retention, RetentionTarget};

pub fn events(id: Option<MessageId>, count: usize) -> Vec<NewEvent<'static>> {
    let event = NewEvent {
        id,
        kind: "T",
        data: "{}",
        metadata: None,
    };
    vec![event; count]
}

pub fn to<'a>(stream: &'a str, events: Vec<NewEvent<'static>>) -> [Append<'a>; 1] {
    [Append {
        stream,
        expected: ExpectedVersion::Any,
        events,
    }]
}

fn engine(store: &EmbeddedStore, name: &str) -> Arc<EmbeddedNamespace> {
    store.inner.opened(name).unwrap().namespace
}

/// Like a flush that fails after everything was frozen.
async fn freeze_in_vain(store: &EmbeddedStore) {
    let inner = store.inner.clone();
    let frozen = tokio::task::spawn_blocking(move || {
        let freeze = || {
            inner.all().iter().for_each(|namespace| drop(namespace.freeze()));
            Vec::new()
        };
        inner.place.table_store.flush(freeze, &|_| true)
    });
    frozen.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_since_a_failed_attempt_is_in_no_table_before_it_is_written() {
    let disks = Disks::new();
    let store = disks.open().await;
    store.create(new("a")).await.unwrap();
    let (own, other) = (
        store.namespace(DEFAULT).await.unwrap(),
        store.namespace("a").await.unwrap(),
    );
    let mut model = Model::default();
    for seed in 1..=10 {
        append(&own, &mut model, &mut Chance(seed)).await;
    }
    other.append(&to("s", events(None, 3))).await.unwrap();
    freeze_in_vain(&store).await;
    // Writes only the frozen part of this namespace.
    other.clear().await.unwrap();
    check(&store, &own, &model, &mut Chance(1)).await;
    append(&own, &mut model, &mut Chance(11)).await;
    store.flush_indexes().await.unwrap();
    check(&store, &own, &model, &mut Chance(1)).await;
    drop((store, own, other));
    let store = disks.open().await;
    let own = store.namespace(DEFAULT).await.unwrap();
    check(&store, &own, &model, &mut Chance(1)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_document_that_was_removed_after_a_failed_attempt_stays_removed() {
    let disks = Disks::new();
    let store = disks.open().await;
    let own = store.namespace(DEFAULT).await.unwrap();
    let revision = own.put_document("thing/x", Some(b"1"), 0).await.unwrap().unwrap();
    store.flush_indexes().await.unwrap();
    own.append(&to("s", events(None, 3))).await.unwrap();
    freeze_in_vain(&store).await;
    assert!(own.put_document("thing/x", None, revision).await.unwrap().is_some());
    own.clear().await.unwrap();
    drop((store, own));
    let store = disks.open().await;
    let own = store.namespace(DEFAULT).await.unwrap();
    assert!(own.document("thing/x").await.unwrap().is_none());
    assert!(own.documents("thing/", "", 10).await.unwrap().is_empty());
    assert!(own.put_document("thing/x", Some(b"2"), 0).await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_number_of_a_namespace_is_given_once_also_after_its_changes_were_left_out() {
    let disks = Disks::new();
    let store = disks.open().await;
    store.create(new("a")).await.unwrap();
    let number = engine(&store, "a").number;
    let own = store.namespace("a").await.unwrap();
    own.append(&to("a-1", events(None, 3))).await.unwrap();
    store.flush_indexes().await.unwrap();
    drop(own);
    for n in 0..40 {
        let token = NewToken {
            digest: TokenDigest::from_bytes([n; 32]),
            scopes: Scopes::ALL,
            description: String::new(),
            expires_at: None,
        };
        let made = store.create_token(DEFAULT, token).await.unwrap();
        assert!(store.revoke_token(DEFAULT, &made.id).await.unwrap());
    }
    store.delete("a").await.unwrap();
    closed(store).await;
    // The first start drops obsolete changes; the second one sees the result.
    closed(disks.open().await).await;
    let store = disks.open().await;
    store.create(new("b")).await.unwrap();
    assert!(engine(&store, "b").number > number);
    let own = store.namespace("b").await.unwrap();
    assert_eq!(own.info().await.unwrap().messages, 0);
    assert_eq!(own.version("a-1").await.unwrap(), -1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_id_of_a_message_that_was_cleared_is_free() {
    let disks = Disks::new();
    let store = disks.open().await;
    let own = store.namespace(DEFAULT).await.unwrap();
    // With a document, clearing does not trim the log.
    own.put_document("thing/x", Some(b"1"), 0).await.unwrap();
    own.append(&to("s", events(None, 1))).await.unwrap();
    let stored = own.last("s", None).await.unwrap().unwrap();
    let id = MessageId::from(stored.event().id);
    own.clear().await.unwrap();
    let places = own.append(&to("s", events(Some(id.clone()), 1))).await.unwrap();
    assert_eq!((places[0].duplicate, places[0].first_position), (false, 0));
    assert!(own.by_id(&id).await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_disk_said_before_a_clearing_is_not_believed_after_it() {
    let disks = Disks::new();
    let store = disks.open().await;
    let own = store.namespace(DEFAULT).await.unwrap();
    own.put_document("thing/x", Some(b"1"), 0).await.unwrap();
    own.append(&to("s", events(None, 6))).await.unwrap();
    store.flush_indexes().await.unwrap();
    let engine = engine(&store, DEFAULT);
    let appends = to("s", events(None, 1));
    let mut asked = DiskLookup::default();
    engine.ask_for(&appends, &mut asked).await.unwrap();
    engine.remove_all().await.unwrap();
    match engine.submit(&appends, &asked).unwrap() {
        SubmitOutcome::Submitted(submitted, places) => {
            submitted.await.unwrap();
            assert_eq!(places[0].first_position, 0);
        }
        SubmitOutcome::Ask => {}
        SubmitOutcome::Wait | SubmitOutcome::Known(_) => panic!("nothing is on its way, and nothing has an id"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_document_that_changed_and_went_to_a_table_since_it_was_looked_at_is_looked_at_again() {
    let disks = Disks::new();
    let store = disks.open().await;
    let engine = engine(&store, DEFAULT);
    let first = engine.store_document("thing/x", Some(b"1"), 0).await.unwrap().unwrap();
    store.flush_indexes().await.unwrap();
    let seen = engine.look_at_document("thing/x").await.unwrap();
    assert!(
        engine
            .store_document("thing/x", Some(b"2"), first)
            .await
            .unwrap()
            .is_some()
    );
    store.flush_indexes().await.unwrap();
    let put = engine
        .put_document_as_seen("thing/x", Some(b"3"), first, &seen)
        .unwrap();
    assert!(matches!(put, PutDocumentOutcome::Again));
    assert_eq!(engine.store_document("thing/x", Some(b"3"), first).await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_leaves_because_of_what_a_power_cut_may_take() {
    let disks = Disks::new();
    let store = disks.open_with(Durability::Os).await;
    let own = store.namespace(DEFAULT).await.unwrap();
    let engine = engine(&store, DEFAULT);
    let synced = || {
        let bounds = store.inner.place.log.bounds(engine.partition).unwrap();
        (bounds.synced, bounds.next)
    };
    let newest = Retention {
        max_count: Some(5),
        ..Retention::default()
    };
    own.set_retention(RetentionTarget::Stream("s"), Some(newest))
        .await
        .unwrap();
    own.append(&to("s", events(None, 10))).await.unwrap();
    store.flush_indexes().await.unwrap();
    own.append(&to("s", events(None, 10))).await.unwrap();
    assert_ne!(synced().0, synced().1, "what is to be shown needs something unsynced");
    let looked = {
        let inner = store.inner.clone();
        tokio::task::spawn_blocking(move || scavenge::look(&inner, 100))
    };
    let (gone, ..) = looked.await.unwrap().unwrap();
    assert_eq!(gone.0.len(), 1);
    assert_eq!(synced().0, synced().1);

    let before = engine.index.read().space();
    own.clear().await.unwrap();
    assert_ne!(synced().0, synced().1);
    assert!(store.inner.lives(before), "the clearing may be taken back");
    own.append(&to("s", events(None, 1))).await.unwrap();
    store.flush_indexes().await.unwrap();
    assert!(!store.inner.lives(before));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clearing_in_the_middle_of_a_scavenging_leaves_counts_right() {
    let disks = Disks::new();
    let store = disks.open().await;
    let own = store.namespace(DEFAULT).await.unwrap();
    let newest = Retention {
        max_count: Some(1),
        ..Retention::default()
    };
    own.set_retention(RetentionTarget::Stream("s"), Some(newest))
        .await
        .unwrap();
    own.append(&to("s", events(None, 10))).await.unwrap();
    let inner = store.inner.clone();
    let looked = tokio::task::spawn_blocking(move || scavenge::look(&inner, 100).unwrap());
    let (gone, looked, _) = looked.await.unwrap();
    own.clear().await.unwrap();
    own.append(&to("other", events(None, 10))).await.unwrap();
    store.flush_indexes().await.unwrap();
    let inner = store.inner.clone();
    let forgot = tokio::task::spawn_blocking(move || scavenge::forget(&inner, &gone, &looked));
    forgot.await.unwrap().unwrap();
    assert_eq!(own.info().await.unwrap().messages, 10);
    assert_eq!(own.categories().await.unwrap()[0].messages, 10);
    assert_eq!(store.verify().await.unwrap().faults, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scavenging_in_rounds_frees_all() {
    let disks = Disks::new();
    let store = disks.open().await;
    store.create(new("a")).await.unwrap();
    let newest = Retention {
        max_count: Some(3),
        ..Retention::default()
    };
    for name in [DEFAULT, "a"] {
        let own = store.namespace(name).await.unwrap();
        own.set_retention(RetentionTarget::Stream("s"), Some(newest))
            .await
            .unwrap();
        own.append(&to("s", events(None, 50))).await.unwrap();
    }
    let inner = store.inner.clone();
    let rounds = tokio::task::spawn_blocking(move || {
        let (mut rounds, mut messages) = (0, 0);
        loop {
            let (some, is_all) = scavenge::some(&inner, 20).unwrap();
            (rounds, messages) = (rounds + 1, messages + some.messages);
            if is_all {
                return (rounds, messages);
            }
        }
    });
    assert_eq!(rounds.await.unwrap(), (5, 94));
    for name in [DEFAULT, "a"] {
        assert_eq!(store.namespace(name).await.unwrap().info().await.unwrap().messages, 3);
    }
    assert_eq!(store.verify().await.unwrap().faults, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_changes_while_everything_is_verified_is_no_fault() {
    let disks = Disks::new();
    let store = Arc::new(disks.open().await);
    let own = store.namespace(DEFAULT).await.unwrap();
    let newest = Retention {
        max_count: Some(1),
        ..Retention::default()
    };
    own.set_retention(RetentionTarget::Category("s"), Some(newest))
        .await
        .unwrap();
    let verifies = {
        let store = store.clone();
        tokio::spawn(async move {
            for _ in 0..60 {
                assert_eq!(store.verify().await.unwrap().faults, []);
            }
        })
    };
    let mut turn = 0_u32;
    while !verifies.is_finished() {
        turn += 1;
        own.append(&to(&format!("s-{}", turn % 5), events(None, 40)))
            .await
            .unwrap();
        if turn.is_multiple_of(7) {
            store.scavenge().await.unwrap();
        }
        if turn.is_multiple_of(11) {
            own.clear().await.unwrap();
        }
        if turn.is_multiple_of(5) {
            store.create(new("a")).await.unwrap();
            let other = store.namespace("a").await.unwrap();
            other.append(&to("s", events(None, 40))).await.unwrap();
            store.delete("a").await.unwrap();
        }
    }
    verifies.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_namespace_is_not_waited_for_though_somebody_still_has_it() {
    let disks = Disks::new();
    let store = disks.open().await;
    let before = store.index_sizes().behind_bytes;
    store.create(new("a")).await.unwrap();
    let own = store.namespace("a").await.unwrap();
    own.append(&to("s", events(None, 40))).await.unwrap();
    assert!(store.index_sizes().behind_bytes > before);
    store.delete("a").await.unwrap();
    assert_eq!(store.index_sizes().behind_bytes, before);
    drop(own);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_no_table_can_be_written_whoever_waits_for_one_is_told_why() {
    let disks = Disks::new();
    let store = disks.open().await;
    let own = store.namespace(DEFAULT).await.unwrap();
    let table_store = &store.inner.place.table_store;
    let mut share = index::MemtableReservation::new(table_store);
    disks.fail_indexes(true);
    own.append(&to("s", events(None, 1))).await.unwrap();
    share.grow(0, 1 << 30);
    let failed = own.append(&to("s", events(None, 1))).await;
    assert!(
        matches!(&failed, Err(EventsError::Unavailable(why)) if why.contains("the folder of indexes")),
        "{failed:?}"
    );
    disks.fail_indexes(false);
    share.give_back();
    own.append(&to("s", events(None, 1))).await.unwrap();
    assert_eq!(own.version("s").await.unwrap(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_stores_more_waits_while_too_much_is_in_no_table_and_is_refused_when_none_can_be_written() {
    const MUCH: u64 = 300 << 20;
    let disks = Disks::new();
    let store = disks.open().await;
    let own = store.namespace(DEFAULT).await.unwrap();
    let table_store = &store.inner.place.table_store;
    own.append(&to("s", events(None, 1))).await.unwrap();
    // Simulates this many bytes of unindexed messages.
    table_store.grown(0, MUCH);
    let waiting = tokio::spawn({
        let own = own.clone();
        async move { own.append(&to("s", events(None, 1))).await.map(drop) }
    });
    // Without the wait it would have stored by now.
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    assert!(!waiting.is_finished());
    assert_eq!(own.version("s").await.unwrap(), 0, "readers do not wait");
    table_store.shrunk(0, MUCH);
    waiting.await.unwrap().unwrap();
    assert_eq!(own.version("s").await.unwrap(), 1);
    disks.fail_indexes(true);
    table_store.grown(0, MUCH);
    let refused = own.append(&to("s", events(None, 1))).await.unwrap_err();
    assert!(
        matches!(&refused, EventsError::Unavailable(why) if why.contains("no file can be made")),
        "{refused}"
    );
    disks.fail_indexes(false);
    table_store.shrunk(0, MUCH);
    own.append(&to("s", events(None, 1))).await.unwrap();
}
