//! The findings of `verify` when data is damaged or wrong.

use std::sync::Arc;

use super::index::{DocumentAt, IndexEntry, IndexedEvent, Io, NamespaceRemovals, RemovalSet};
use super::namespace::EmbeddedNamespace;
use super::tests::Disks;
use super::*;
use crate::id::MessageId;
use crate::store::{Append, ExpectedVersion, Fault, NewEvent};

/// Five messages in several streams, some with client ids, and a document.
async fn filled(store: &EmbeddedStore) -> Arc<EmbeddedNamespace> {
    let namespace = store.namespace(DEFAULT).await.unwrap();
    for (n, stream) in ["a-1", "a-2", "a-1", "b", "a-1"].into_iter().enumerate() {
        let event = NewEvent {
            id: (n % 2 == 0).then(|| MessageId::of(&format!("id {n}"))),
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
    namespace.put_document("kept", Some(b"x"), 0).await.unwrap();
    let engine = store.inner.opened(DEFAULT).unwrap().namespace;
    assert_eq!(faults(store).await, []);
    engine
}

async fn faults(store: &EmbeddedStore) -> Vec<Fault> {
    store.verify().await.unwrap().faults
}

async fn write_tables(store: &EmbeddedStore) {
    let inner = store.inner.clone();
    let flushed = tokio::task::spawn_blocking(move || maintenance::flush_all(&inner));
    flushed.await.unwrap().unwrap();
}

/// Simulates a bug: removes a message from lists and counts, but not from the log.
async fn leave_out(store: &EmbeddedStore, namespace: &EmbeddedNamespace, offset: u64, stream: &str) {
    let mut own = NamespaceRemovals {
        space: namespace.index.read().space(),
        offsets: vec![offset],
        ..NamespaceRemovals::default()
    };
    own.streams.insert(stream.to_owned(), 1);
    let mut gone = RemovalSet::default();
    gone.0.insert(namespace.number, own);
    let inner = store.inner.clone();
    let left_out =
        tokio::task::spawn_blocking(move || inner.place.table_store.leave_out(&gone, &|_| true, |publish| publish()));
    left_out.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_is_in_no_list_is_named_with_its_offset() {
    let disks = Disks::new();
    let store = disks.open().await;
    let namespace = filled(&store).await;
    write_tables(&store).await;
    assert_eq!(faults(&store).await, []);
    let found = store.namespace(DEFAULT).await.unwrap();
    let found = found.by_id(&MessageId::of("id 2")).await.unwrap().unwrap();
    assert_eq!((found.event().stream, found.event().position), ("a-1", 1));
    leave_out(&store, &namespace, 2, "a-1").await;
    let faults = faults(&store).await;
    let [fault] = &faults[..] else {
        panic!("{faults:?}");
    };
    assert_eq!((fault.namespace.as_str(), fault.offset), (DEFAULT, 2));
    assert!(
        fault.what.contains("position 1 of stream a-1") && fault.what.contains("the index of its stream"),
        "{fault:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_count_that_is_not_the_number_of_messages_is_told() {
    let disks = Disks::new();
    let store = disks.open().await;
    let namespace = filled(&store).await;
    namespace.index.write().state.messages += 1;
    let faults = faults(&store).await;
    let [fault] = &faults[..] else {
        panic!("{faults:?}");
    };
    assert_eq!(fault.what, "5 messages are stored, but 6 are counted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_bent_byte_of_a_table_is_told() {
    let disks = Disks::new();
    let store = disks.open().await;
    filled(&store).await;
    write_tables(&store).await;
    let mut bent = 0;
    for (name, len) in disks.tables() {
        for at in 0..len {
            disks.flip(&name, at);
            let found = faults(&store).await;
            bent += usize::from(!found.is_empty());
            assert!(!found.is_empty(), "byte {at} of {len} of {name}");
            disks.flip(&name, at);
        }
    }
    assert!(bent > 100, "{bent}");
    assert_eq!(faults(&store).await, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ids_and_documents_are_looked_for_where_the_log_has_them() {
    let disks = Disks::new();
    let store = disks.open().await;
    let namespace = filled(&store).await;
    for _ in 0..2 {
        let namespace = namespace.clone();
        let looked = tokio::task::spawn_blocking(move || {
            let stored = namespace.reading(Io::MayBlock).message(0).unwrap().unwrap();
            let IndexEntry::Event(mut event) = IndexEntry::of(&stored.event(), "a-1".into(), 0) else {
                panic!("it is no event");
            };
            assert!(event.id.is_some());
            assert_eq!(namespace.misplaced(&[&event]), Ok(Vec::new()));
            event.id = event.id.map(|id| id ^ 1);
            let what = namespace.misplaced(&[&event]).unwrap();
            let expected = "position 0 of stream a-1: the index of ids has [] instead of 0";
            assert_eq!(what, [(0, expected.to_owned())]);
            let at = namespace.document_at("kept", Io::MayBlock).unwrap().unwrap();
            assert_eq!(namespace.misplaced_document("kept", at), Ok(()));
            let later = DocumentAt {
                offset: at.offset + 1,
                ..at
            };
            assert!(namespace.misplaced_document("kept", later).is_err());
            assert!(namespace.misplaced_document("lost", at).is_err());
        });
        looked.await.unwrap();
        // The same with tables.
        write_tables(&store).await;
    }
}

/// Many messages are verified together, and exactly the missing ones are reported.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_messages_those_that_are_not_where_they_should_be_are_named() {
    let disks = Disks::new();
    let store = disks.open().await;
    let namespace = filled(&store).await;
    for is_in_tables in [false, true] {
        if is_in_tables {
            write_tables(&store).await;
        }
        let namespace = namespace.clone();
        let looked = tokio::task::spawn_blocking(move || {
            let streams = ["a-1", "a-2", "a-1", "b", "a-1"];
            let reading = |offset: u64| {
                let stored = namespace.reading(Io::MayBlock).message(offset).unwrap().unwrap();
                let IndexEntry::Event(event) = IndexEntry::of(&stored.event(), streams[offset as usize].into(), offset)
                else {
                    panic!("it is no event");
                };
                event
            };
            let right: Vec<IndexedEvent> = (0..5).map(reading).collect();
            let named = |events: &[IndexedEvent]| {
                let events: Vec<&IndexedEvent> = events.iter().collect();
                let mut wrong = namespace.misplaced(&events).unwrap();
                wrong.sort();
                wrong.into_iter().map(|(offset, _)| offset).collect::<Vec<u64>>()
            };
            assert_eq!(named(&right), [0; 0]);
            for n in 0..5 {
                // At the offset of another message, and at an unused one; each is reported once per list.
                for offset in [(n as u64 + 1) % 5, 77] {
                    let mut bent = right.clone();
                    (bent[n].offset, bent[n].id) = (offset, None);
                    assert_eq!(named(&bent), [offset; 3], "{n}");
                }
                let mut beyond = right.clone();
                (beyond[n].position, beyond[n].global) = (1000, 1000);
                assert_eq!(named(&beyond), [n as u64; 3]);
            }
        });
        looked.await.unwrap();
    }
}
