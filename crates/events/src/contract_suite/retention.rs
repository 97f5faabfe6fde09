//! Retention, deletion, and documents.

use std::sync::Arc;
use std::time::Duration;

use thalweg_kit::clock;

use super::{
    Suite, all, append, category_pages, event, globals, of_category, of_stream, positions, refused, stream_pages, write,
};
use crate::error::EventsError;
use crate::id::MessageId;
use crate::store::{ExpectedVersion, ImportRecord, Namespace, NewEvent, Retention, RetentionTarget};
use crate::subscription::{DeliveryStrategy, SubscriptionSettings, SubscriptionSource};
use crate::subscriptions::{FetchRequest, Subscriptions};
use crate::time;

pub async fn retention(suite: &Suite) {
    deleted(suite).await;
    tombstones(suite).await;
    rules(suite).await;
    gaps(suite).await;
    ages(suite).await;
    read_ahead(suite).await;
}

/// Rule 12: a subscription that has read ahead does not deliver a message that was deleted since.
async fn read_ahead(suite: &Suite) {
    let store = suite.open().await;
    let namespace = suite.namespace(&store).await;
    for stream in ["a-1", "a-2", "a-3", "a-4"] {
        write(&namespace, stream, "T", "{}").await;
    }
    let stored = all(&namespace).await;
    let server = Subscriptions::default();
    let settings = SubscriptionSettings {
        source: SubscriptionSource::Category("a".into()),
        from: 1,
        strategy: DeliveryStrategy::RoundRobin,
        ack_timeout: 30_000_000,
        max_attempts: 5,
        max_in_flight: 100,
        types: Vec::new(),
        correlation: None,
    };
    server.create(&namespace, "s", settings).await.unwrap();
    let fetch = || async {
        let ask = FetchRequest {
            consumer: "c".into(),
            max: 1,
            held: Vec::new(),
        };
        let fetched = server.fetch(&namespace, "s", ask, clock::tokio_now()).await;
        let messages = fetched.unwrap().messages;
        messages
            .iter()
            .map(|message| message.stored.event().global)
            .collect::<Vec<_>>()
    };
    assert_eq!(fetch().await, [1], "12: the first");
    let hidden_at = || namespace.watch().borrow().hidden_at;
    let before = hidden_at();
    write(&namespace, "b-1", "T", "{}").await;
    assert_eq!(hidden_at(), before, "12: an append hides nothing");
    namespace
        .delete_stream("a-2", ExpectedVersion::Any, false)
        .await
        .unwrap();
    let deleted_at = hidden_at();
    assert!(
        deleted_at > before,
        "12: who has read ahead sees that something was deleted"
    );
    let newest = Retention {
        truncate_before: Some(1),
        ..Retention::default()
    };
    let of = RetentionTarget::Stream("a-3");
    namespace.set_retention(of, Some(newest)).await.unwrap();
    assert!(hidden_at() > deleted_at, "12: and that a rule was set");
    let shown = namespace.still_shown(&stored).await.unwrap();
    assert_eq!(shown, [1, 4].into(), "12: of what was read");
    assert_eq!(fetch().await, [4], "12: what is deleted is passed over");
    let info = server.info(&namespace, "s").await.unwrap();
    assert_eq!((info.in_flight, info.waiting), (2, 0), "12: and counts as done");
}

pub async fn documents(suite: &Suite) {
    revisions(suite).await;
    listed(suite).await;
    one_winner(suite).await;
}

async fn is_counted(namespace: &Arc<dyn Namespace>, messages: u64, streams: u64) {
    let info = namespace.info().await.unwrap();
    assert_eq!(
        (info.messages, info.streams),
        (messages, streams),
        "12: counts obey at once"
    );
    let shown = all(namespace).await;
    assert_eq!(shown.len() as u64, messages, "12: and reads");
    assert_eq!(
        info.last_activity,
        shown.last().map(|newest| newest.event().time),
        "12: and the time of the newest"
    );
    let found = namespace.categories().await.unwrap();
    let sums = found
        .iter()
        .fold((0, 0), |sum, one| (sum.0 + one.messages, sum.1 + one.streams));
    assert_eq!(sums, (messages, streams), "12: and categories");
    assert_eq!(
        namespace.streams("", "", 1000).await.unwrap().len() as u64,
        streams,
        "12: and lists"
    );
}

/// Rule 12: a deleted stream continues after its last position.
async fn deleted(suite: &Suite) {
    let mut store = suite.open().await;
    let mut namespace = suite.namespace(&store).await;
    let name = namespace.name().to_owned();
    let id = MessageId::of("0190b5c27a007c1fa2b3c4d5e6f70819");
    let with_id = || {
        vec![NewEvent {
            id: Some(id.clone()),
            ..event("T", "[1]")
        }]
    };
    for _ in 0..3 {
        write(&namespace, "a-1", "T", "{}").await;
    }
    write(&namespace, "a-2", "T", "{}").await;
    namespace
        .append(&[append("a-1", ExpectedVersion::Any, with_id())])
        .await
        .unwrap();
    let wrong = namespace.delete_stream("a-1", ExpectedVersion::Version(0), false).await;
    assert!(
        matches!(refused(wrong), EventsError::VersionConflict { actual: 3, .. }),
        "12"
    );
    is_counted(&namespace, 5, 2).await;
    namespace
        .delete_stream("a-1", ExpectedVersion::Version(3), false)
        .await
        .unwrap();
    for _ in 0..2 {
        is_counted(&namespace, 1, 1).await;
        assert_eq!(namespace.version("a-1").await.unwrap(), 3, "12: its version stays");
        assert!(stream_pages(&namespace, of_stream("a-1")).await.is_empty(), "12");
        assert!(namespace.last("a-1", None).await.unwrap().is_none(), "12");
        assert!(namespace.by_id(&id).await.unwrap().is_none(), "12");
        assert_eq!(
            globals(&category_pages(&namespace, of_category(Some("a"))).await),
            [4],
            "12"
        );
        drop(namespace);
        store = suite.again(store).await;
        namespace = store.namespace(&name).await.unwrap();
    }
    let done = namespace
        .append(&[append("a-1", ExpectedVersion::Version(3), with_id())])
        .await
        .unwrap()[0];
    assert_eq!(
        (done.first_position, done.first_global),
        (4, 6),
        "12: no position is used again"
    );
    assert!(!done.duplicate, "4: an id is unique while its message is there");
    is_counted(&namespace, 2, 2).await;
    assert_eq!(store.verify().await.unwrap().faults, []);
}

/// Rule 12.
async fn tombstones(suite: &Suite) {
    let mut store = suite.open().await;
    let mut namespace = suite.namespace(&store).await;
    let name = namespace.name().to_owned();
    write(&namespace, "a-1", "T", "{}").await;
    write(&namespace, "a-2", "T", "{}").await;
    namespace
        .delete_stream("a-1", ExpectedVersion::Any, true)
        .await
        .unwrap();
    for _ in 0..2 {
        assert_eq!(namespace.version("a-1").await.unwrap(), -1, "12");
        for expected in [
            ExpectedVersion::Any,
            ExpectedVersion::NoStream,
            ExpectedVersion::Version(0),
        ] {
            let both = [
                append("a-2", ExpectedVersion::Any, vec![event("T", "{}")]),
                append("a-1", expected, vec![event("T", "{}")]),
            ];
            let error = refused(namespace.append(&both).await);
            assert!(
                matches!(&error, EventsError::StreamDeleted(stream) if stream == "a-1"),
                "12: {error}"
            );
        }
        is_counted(&namespace, 1, 1).await;
        drop(namespace);
        store = suite.again(store).await;
        namespace = store.namespace(&name).await.unwrap();
    }
}

/// Rule 12: the count rule counts messages, not positions, because an import may leave gaps.
async fn gaps(suite: &Suite) {
    let mut store = suite.open().await;
    let mut namespace = suite.namespace(&store).await;
    let name = namespace.name().to_owned();
    let import = |position, global| ImportRecord {
        id: None,
        stream: "a-1".to_owned(),
        kind: "T".to_owned(),
        position,
        global,
        data: "{}".to_owned(),
        metadata: None,
        time: time::now(),
    };
    let batch = [import(0, 1), import(200, 2), import(100, 5), import(300, 4)];
    namespace.import(&batch).await.unwrap();
    let rule = |max_count| Retention {
        max_count: Some(max_count),
        ..Retention::default()
    };
    let own = RetentionTarget::Stream("a-1");
    for (max_count, kept) in [
        (5, &[0, 100, 200, 300][..]),
        (4, &[0, 100, 200, 300]),
        (3, &[100, 200, 300]),
        (2, &[200, 300]),
    ] {
        namespace.set_retention(own, Some(rule(max_count))).await.unwrap();
        for _ in 0..2 {
            let found = positions(&stream_pages(&namespace, of_stream("a-1")).await);
            assert_eq!(found, kept, "12: the newest {max_count}");
            is_counted(&namespace, kept.len() as u64, 1).await;
            store.scavenge().await.unwrap();
            drop(namespace);
            store = suite.again(store).await;
            namespace = store.namespace(&name).await.unwrap();
        }
    }
    write(&namespace, "a-1", "T", "{}").await;
    assert_eq!(
        positions(&stream_pages(&namespace, of_stream("a-1")).await),
        [300, 301],
        "12"
    );
    assert_eq!(store.verify().await.unwrap().faults, [], "12");
}

/// Rule 12: maximum count and first position; a stream's rule replaces that of its category.
async fn rules(suite: &Suite) {
    let mut store = suite.open().await;
    let mut namespace = suite.namespace(&store).await;
    let name = namespace.name().to_owned();
    for _ in 0..10 {
        for stream in ["a-1", "a-2", "b-1"] {
            write(&namespace, stream, "T", "{}").await;
        }
    }
    let count = |max_count| {
        Some(Retention {
            max_count: Some(max_count),
            ..Retention::default()
        })
    };
    let (category, stream) = (RetentionTarget::Category("a"), RetentionTarget::Stream("a-1"));
    assert_eq!(namespace.retention(stream).await.unwrap(), None);
    namespace.set_retention(stream, count(7)).await.unwrap();
    is_counted(&namespace, 27, 3).await;
    namespace.set_retention(category, count(4)).await.unwrap();
    assert_eq!(
        positions(&stream_pages(&namespace, of_stream("a-1")).await),
        (3..10).collect::<Vec<_>>(),
        "12: its own"
    );
    assert_eq!(
        positions(&stream_pages(&namespace, of_stream("a-2")).await),
        (6..10).collect::<Vec<_>>(),
        "12"
    );
    is_counted(&namespace, 21, 3).await;
    namespace
        .append(&[append("a-3", ExpectedVersion::Any, vec![event("T", "{}"); 6])])
        .await
        .unwrap();
    is_counted(&namespace, 25, 4).await;
    let done = write(&namespace, "a-2", "T", "{}").await;
    assert_eq!(
        (done.first_position, done.first_global),
        (10, 37),
        "12: no position is used again"
    );
    is_counted(&namespace, 25, 4).await;
    let before = Some(Retention {
        truncate_before: Some(9),
        max_count: Some(100),
        max_age: None,
    });
    namespace.set_retention(stream, before).await.unwrap();
    for _ in 0..2 {
        assert_eq!(positions(&stream_pages(&namespace, of_stream("a-1")).await), [9], "12");
        assert_eq!(namespace.retention(stream).await.unwrap(), before, "15");
        assert_eq!(namespace.retention(category).await.unwrap(), count(4), "15");
        is_counted(&namespace, 19, 4).await;
        drop(namespace);
        store = suite.again(store).await;
        namespace = store.namespace(&name).await.unwrap();
    }
    namespace.set_retention(stream, None).await.unwrap();
    assert_eq!(namespace.retention(stream).await.unwrap(), None, "12");
    namespace.set_retention(category, None).await.unwrap();
    for _ in 0..5 {
        write(&namespace, "a-2", "T", "{}").await;
    }
    let kept = stream_pages(&namespace, of_stream("a-2")).await;
    assert_eq!(
        positions(&kept)[kept.len() - 9..],
        (7..16).collect::<Vec<_>>(),
        "12: without a rule all is kept"
    );
    store.scavenge().await.unwrap();
    assert_eq!(namespace.version("a-1").await.unwrap(), 9, "12");
    assert_eq!(store.verify().await.unwrap().faults, []);
}

/// Rule 12: the age is that of each message.
async fn ages(suite: &Suite) {
    const HOUR: i64 = 3_600_000_000;
    let store = suite.open().await;
    let namespace = suite.namespace(&store).await;
    let now = time::now();
    let old = |position: u64, hours: i64| ImportRecord {
        id: None,
        stream: "a-1".to_owned(),
        kind: "T".to_owned(),
        position,
        global: position + 1,
        data: "{}".to_owned(),
        metadata: None,
        time: now - hours * HOUR,
    };
    namespace
        .import(&[old(0, 5), old(1, 1), old(2, 7), old(3, 0)])
        .await
        .unwrap();
    let age = |max_age| {
        Some(Retention {
            max_age: Some(max_age),
            ..Retention::default()
        })
    };
    namespace
        .set_retention(RetentionTarget::Category("a"), age(3 * HOUR))
        .await
        .unwrap();
    assert_eq!(
        positions(&stream_pages(&namespace, of_stream("a-1")).await),
        [1, 3],
        "12"
    );
    is_counted(&namespace, 2, 1).await;
    namespace.import(&[old(4, 4), old(5, 2)]).await.unwrap();
    assert_eq!(
        positions(&stream_pages(&namespace, of_stream("a-1")).await),
        [1, 3, 5],
        "12"
    );
    namespace
        .set_retention(RetentionTarget::Stream("a-1"), age(300_000))
        .await
        .unwrap();
    write(&namespace, "a-1", "T", "{}").await;
    let version = namespace.version("a-1").await.unwrap();
    // Later if the clock of the machine is being set.
    let until = clock::now() + Duration::from_secs(120);
    while namespace.last("a-1", None).await.unwrap().is_some() {
        assert!(clock::now() < until, "12: it does not become too old");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    is_counted(&namespace, 0, 0).await;
    assert_eq!(namespace.version("a-1").await.unwrap(), version, "12");
}

/// Rules 13 and 15.
async fn revisions(suite: &Suite) {
    let mut store = suite.open().await;
    let mut namespace = suite.namespace(&store).await;
    let name = namespace.name().to_owned();
    assert_eq!(namespace.document("a/1").await.unwrap(), None);
    assert_eq!(
        namespace.put_document("a/1", Some(b"x"), 3).await.unwrap(),
        None,
        "13: there is none"
    );
    let first = namespace.put_document("a/1", Some(b"\0one"), 0).await.unwrap().unwrap();
    assert!(first >= 1, "13: from 1");
    assert_eq!(
        namespace.put_document("a/1", Some(b"two"), 0).await.unwrap(),
        None,
        "13: somebody was faster"
    );
    assert_eq!(
        namespace.put_document("a/1", Some(b"two"), first + 1).await.unwrap(),
        None,
        "13"
    );
    let second = namespace
        .put_document("a/1", Some(b"two"), first)
        .await
        .unwrap()
        .unwrap();
    assert!(second > first, "13: larger with each change");
    drop(namespace);
    store = suite.again(store).await;
    namespace = store.namespace(&name).await.unwrap();
    let found = namespace.document("a/1").await.unwrap().unwrap();
    assert_eq!((found.content.as_ref(), found.revision), (&b"two"[..], second), "15");
    assert_eq!(
        namespace.info().await.unwrap().messages,
        0,
        "13: a document is no message"
    );
    assert_eq!(namespace.put_document("a/1", None, first).await.unwrap(), None, "13");
    assert!(
        namespace.put_document("a/1", None, second).await.unwrap().is_some(),
        "13"
    );
    assert_eq!(namespace.document("a/1").await.unwrap(), None, "13: it is removed");
    assert!(
        namespace.put_document("a/1", Some(b""), 0).await.unwrap().is_some(),
        "13"
    );
    assert_eq!(namespace.document("a/1").await.unwrap().unwrap().content.len(), 0);
}

/// Rules 9 and 13.
async fn listed(suite: &Suite) {
    let store = suite.open().await;
    let (namespace, other) = (suite.namespace(&store).await, suite.namespace(&store).await);
    for name in ["a/2", "a/10", "b/1", "a_1", "a/é", "A/1"] {
        namespace.put_document(name, Some(b"{}"), 0).await.unwrap().unwrap();
    }
    let list = async |prefix, cursor, max| namespace.documents(prefix, cursor, max).await.unwrap();
    assert_eq!(list("", "", 10).await, ["A/1", "a/10", "a/2", "a/é", "a_1", "b/1"], "9");
    assert_eq!(list("a/", "", 10).await, ["a/10", "a/2", "a/é"], "9");
    assert_eq!(list("a/", "a/10", 1).await, ["a/2"], "9");
    assert!(other.documents("", "", 10).await.unwrap().is_empty(), "10");
    assert_eq!(other.document("a/2").await.unwrap(), None, "10");
}

/// Rule 13.
async fn one_winner(suite: &Suite) {
    let store = suite.open().await;
    let namespace = suite.namespace(&store).await;
    let mut revision = 0;
    for round in 0..10 {
        let mut writers = Vec::new();
        for n in 0..6_u8 {
            let namespace = namespace.clone();
            writers.push(tokio::spawn(async move {
                namespace.put_document("d", Some(&[round, n]), revision).await
            }));
        }
        let mut won = Vec::new();
        for (writer, n) in writers.into_iter().zip(0..) {
            if let Some(new) = writer.await.unwrap().unwrap() {
                won.push((new, [round, n]));
            }
        }
        assert_eq!(won.len(), 1, "13: one of several succeeds");
        let found = namespace.document("d").await.unwrap().unwrap();
        assert_eq!(
            (found.revision, found.content.as_ref()),
            (won[0].0, &won[0].1[..]),
            "13"
        );
        revision = found.revision;
    }
}
