//! Importing messages with their positions, and clearing.

use std::sync::Arc;
use std::time::Duration;

use thalweg_kit::clock;

use super::{Suite, all, append, event, globals, of_stream, positions, refused, soon, stream_pages, write};
use crate::error::EventsError;
use crate::id::MessageId;
use crate::limits::POSITION_MAX;
use crate::store::{ExpectedVersion, ImportRecord, Namespace};
use crate::subscription::{DeliveryStrategy, Lease, Nack, SubscriptionSettings, SubscriptionSource};
use crate::subscriptions::{FetchRequest, Subscriptions};

pub async fn run(suite: &Suite) {
    places(suite).await;
    taken(suite).await;
    gone(suite).await;
    last_position(suite).await;
    cleared(suite).await;
    subscriptions_begin_anew(suite).await;
}

fn import(stream: &str, position: u64, global: u64) -> ImportRecord {
    ImportRecord {
        id: None,
        stream: stream.to_owned(),
        kind: "Imported".to_owned(),
        position,
        global,
        data: format!("[{global}]"),
        metadata: None,
        time: 1_700_000_000_000_000 + global as i64,
    }
}

/// Rules 8, 14 and 15: any order, gaps, free positions below the end.
async fn places(suite: &Suite) {
    let mut store = suite.open().await;
    let mut namespace = suite.namespace(&store).await;
    let name = namespace.name().to_owned();
    namespace
        .import(&[import("a-1", 7, 40), import("a-2", 0, 10), import("a-1", 3, 20)])
        .await
        .unwrap();
    let mut watch = namespace.watch();
    let before = *watch.borrow_and_update();
    assert_eq!(before.last, 40, "14");
    namespace.import(&[import("a-1", 5, 30)]).await.unwrap();
    let is_told = async {
        while watch.borrow_and_update().change == before.change {
            watch.changed().await.unwrap();
        }
    };
    soon("14: what is imported below the end is told", is_told).await;
    for _ in 0..2 {
        assert_eq!(globals(&all(&namespace).await), [10, 20, 30, 40], "8: in global order");
        assert_eq!(
            positions(&stream_pages(&namespace, of_stream("a-1")).await),
            [3, 5, 7],
            "8"
        );
        assert_eq!(namespace.version("a-1").await.unwrap(), 7, "8");
        let info = namespace.info().await.unwrap();
        assert_eq!((info.messages, info.streams), (4, 2), "9");
        let last = namespace.last("a-1", None).await.unwrap().unwrap();
        assert_eq!(
            (last.event().time, last.event().kind),
            (1_700_000_000_000_040, "Imported"),
            "8"
        );
        drop(namespace);
        store = suite.again(store).await;
        namespace = store.namespace(&name).await.unwrap();
    }
    let done = write(&namespace, "a-1", "T", "{}").await;
    assert_eq!(
        (done.first_position, done.first_global),
        (8, 41),
        "8: the next follows the largest"
    );
    let done = write(&namespace, "a-3", "T", "{}").await;
    assert_eq!((done.first_position, done.first_global), (0, 42), "8");
}

/// Rule 8: one taken position refuses the batch.
async fn taken(suite: &Suite) {
    let store = suite.open().await;
    let namespace = suite.namespace(&store).await;
    let named = |id: &str, stream: &str, position, global| ImportRecord {
        id: Some(MessageId::of(id)),
        ..import(stream, position, global)
    };
    namespace.import(&[named("some id", "a-1", 0, 5)]).await.unwrap();
    let free = || import("b", 0, 1);
    for (batch, record) in [
        (vec![free(), import("a-2", 0, 5)], 1),
        (vec![free(), import("c", 0, 2), import("a-1", 0, 6)], 2),
        (vec![named("some id", "a-3", 0, 7), free()], 0),
        (vec![free(), import("c", 0, 1)], 1),
        (vec![free(), import("b", 0, 2)], 1),
        (vec![named("x", "c", 0, 8), named("x", "c", 1, 9)], 1),
    ] {
        let EventsError::Taken { record: told, what } = refused(namespace.import(&batch).await) else {
            panic!("8: a place that is taken is told");
        };
        assert_eq!(told, record, "8: {what}");
        assert!(!what.is_empty());
    }
    let error = refused(namespace.import(&[import("a-2", 0, 5)]).await);
    assert_eq!(error.to_string(), "global position already exists: 5", "8");
    assert_eq!(
        globals(&all(&namespace).await),
        [5],
        "8: nothing of a refused batch is stored"
    );
    let found = namespace.by_id(&MessageId::of("some id")).await.unwrap().unwrap();
    assert_eq!(found.event().global, 5, "8: an id may be any text");
    namespace.import(&[free()]).await.unwrap();
    assert_eq!(globals(&all(&namespace).await), [1, 5]);
}

/// Rule 12: the position of a deleted message is not reused, and nothing follows a tombstone.
async fn gone(suite: &Suite) {
    let store = suite.open().await;
    let namespace = suite.namespace(&store).await;
    for stream in ["a-1", "a-2"] {
        for _ in 0..3 {
            write(&namespace, stream, "T", "{}").await;
        }
        let tombstone = stream == "a-2";
        namespace
            .delete_stream(stream, ExpectedVersion::Any, tombstone)
            .await
            .unwrap();
    }
    for _ in 0..2 {
        let error = refused(namespace.import(&[import("b", 0, 100), import("a-1", 2, 101)]).await);
        assert!(matches!(error, EventsError::Taken { record: 1, .. }), "12: {error}");
        for position in [1, 7] {
            let error = refused(
                namespace
                    .import(&[import("b", 0, 100), import("a-2", position, 101)])
                    .await,
            );
            assert!(
                matches!(&error, EventsError::StreamDeleted(stream) if stream == "a-2"),
                "12: {error}"
            );
        }
        assert_eq!(
            all(&namespace).await.len(),
            0,
            "12: nothing of a refused batch is stored"
        );
        store.scavenge().await.unwrap();
    }
    namespace.import(&[import("a-1", 3, 100)]).await.unwrap();
    assert_eq!(positions(&stream_pages(&namespace, of_stream("a-1")).await), [3], "12");
}

/// Rule 8: nothing is stored above the largest number that every client can represent exactly.
async fn last_position(suite: &Suite) {
    let store = suite.open().await;
    let namespace = suite.namespace(&store).await;
    namespace.import(&[import("full", POSITION_MAX - 1, 5)]).await.unwrap();
    let two = [append("full", ExpectedVersion::Any, vec![event("T", "{}"); 2])];
    let error = refused(namespace.append(&two).await);
    assert_eq!(
        error.to_string(),
        "stream 'full' is full: its last message has the largest position",
        "8"
    );
    assert_eq!(
        write(&namespace, "full", "T", "{}").await.first_position,
        POSITION_MAX,
        "8"
    );
    let one = |stream| [append(stream, ExpectedVersion::Any, vec![event("T", "{}")])];
    let error = refused(namespace.append(&one("full")).await);
    assert!(matches!(error, EventsError::NoPositions { .. }), "8: {error}");
    write(&namespace, "other", "T", "{}").await;
    namespace.import(&[import("far", 0, POSITION_MAX)]).await.unwrap();
    let error = refused(namespace.append(&one("other")).await);
    assert_eq!(
        error.to_string(),
        "the namespace is full: its last message has the largest position",
        "8"
    );
    assert_eq!(all(&namespace).await.len(), 4, "8");
}

/// Clearing removes messages but no documents; positions start again.
async fn cleared(suite: &Suite) {
    let mut store = suite.open().await;
    let mut namespace = suite.namespace(&store).await;
    let name = namespace.name().to_owned();
    for _ in 0..5 {
        write(&namespace, "a-1", "T", "{}").await;
    }
    let has_documents = namespace.put_document("kept", Some(b"x"), 0).await.is_ok();
    let before = *namespace.watch().borrow();
    namespace.clear().await.unwrap();
    let after = *namespace.watch().borrow();
    assert!(
        after.last == 0 && after.cleared > before.cleared && after.change > before.change,
        "14: {after:?}"
    );
    is_empty(&namespace).await;
    drop(namespace);
    store = suite.again(store).await;
    namespace = store.namespace(&name).await.unwrap();
    is_empty(&namespace).await;
    assert_eq!(
        namespace.watch().borrow().cleared,
        after.cleared,
        "14: also after a restart"
    );
    assert!(
        !has_documents || namespace.document("kept").await.unwrap().is_some(),
        "documents stay"
    );
    let done = namespace
        .append(&[append("a-1", ExpectedVersion::NoStream, vec![event("T", "{}")])])
        .await
        .unwrap()[0];
    assert_eq!((done.first_position, done.first_global), (0, 1), "positions begin anew");
}

/// After clearing, a persistent subscription begins at the first new message; it is gone if its namespace was deleted.
async fn subscriptions_begin_anew(suite: &Suite) {
    let mut store = suite.open().await;
    let name = suite.unused_name(&store).await;
    super::create(&store, &name).await;
    let mut namespace = store.namespace(&name).await.unwrap();
    for _ in 0..20 {
        write(&namespace, "a-1", "T", "{}").await;
    }
    let server = Subscriptions::default();
    let settings = SubscriptionSettings {
        source: SubscriptionSource::Category("a".to_owned()),
        from: 11,
        strategy: DeliveryStrategy::RoundRobin,
        ack_timeout: 60_000_000,
        max_attempts: 5,
        max_in_flight: 100,
        types: Vec::new(),
        correlation: None,
    };
    server.create(&namespace, "s", settings.clone()).await.unwrap();
    let leases = fetch(&server, &namespace).await;
    assert_eq!(leases.first().map(|lease| lease.global), Some(11));
    let park = Nack::Park {
        reason: "no".to_owned(),
    };
    server.nack(&namespace, "s", vec![leases[0]], park).await.unwrap();
    server.ack(&namespace, "s", vec![leases[1]]).await.unwrap();
    namespace.clear().await.unwrap();
    for _ in 0..3 {
        write(&namespace, "a-1", "T", "{}").await;
    }
    // Another process, or this one. The task that replied releases the namespace shortly after its reply.
    drop(namespace);
    tokio::time::sleep(Duration::from_millis(50)).await;
    store = suite.again(store).await;
    namespace = store.namespace(&name).await.unwrap();
    for server in [&server, &Subscriptions::default()] {
        let info = server.info(&namespace, "s").await.unwrap();
        assert_eq!((info.position, info.in_flight, info.parked), (0, 0, 0));
    }
    let late = server.ack(&namespace, "s", vec![leases[2]]).await.unwrap();
    assert_eq!(late.stale, [leases[2]], "no lease of before holds");
    let globals: Vec<u64> = fetch(&server, &namespace)
        .await
        .iter()
        .map(|lease| lease.global)
        .collect();
    assert_eq!(globals, [1, 2, 3]);
    store.delete(&name).await.unwrap();
    super::create(&store, &name).await;
    let namespace = store.namespace(&name).await.unwrap();
    let gone = server.info(&namespace, "s").await.unwrap_err();
    assert!(matches!(gone, EventsError::SubscriptionNotFound(_)), "{gone}");
    server.create(&namespace, "s", settings).await.unwrap();
    for _ in 0..11 {
        write(&namespace, "a-1", "T", "{}").await;
    }
    assert_eq!(fetch(&server, &namespace).await.len(), 1, "as a new one begins");
}

async fn fetch(server: &Subscriptions, namespace: &Arc<dyn Namespace>) -> Vec<Lease> {
    let ask = FetchRequest {
        consumer: "c".into(),
        max: 100,
        held: Vec::new(),
    };
    let fetched = server.fetch(namespace, "s", ask, clock::tokio_now()).await.unwrap();
    fetched.messages.iter().map(|message| message.lease).collect()
}

async fn is_empty(namespace: &Arc<dyn Namespace>) {
    assert!(all(namespace).await.is_empty());
    assert_eq!(namespace.version("a-1").await.unwrap(), -1);
    let info = namespace.info().await.unwrap();
    assert_eq!((info.messages, info.streams, info.last_activity), (0, 0, None), "9");
    assert!(namespace.streams("", "", 10).await.unwrap().is_empty(), "9");
    assert!(namespace.categories().await.unwrap().is_empty(), "9");
}
