//! Limits: of names, ids, appends, imports, namespaces, documents, retention rules and pages.

use super::{Suite, all, append, create, event, of_category, of_stream, refused, write};
use crate::error::{EventsError, Result};
use crate::id::MessageId;
use crate::limits::{
    APPEND_BYTES_MAX, DOCUMENT_BYTES_MAX, DOCUMENT_NAME_BYTES_MAX, PAGE_BYTES_MAX, PAGE_MESSAGES_MAX, POSITION_MAX,
    RETENTION_AGE_MAX,
};
use crate::store::{ExpectedVersion, ImportRecord, NewEvent, NewNamespace, Retention, RetentionTarget, Scopes};
use crate::token::TokenDigest;

pub async fn run(suite: &Suite) {
    names(suite).await;
    ids(suite).await;
    appends(suite).await;
    positions(suite).await;
    namespaces(suite).await;
    documents(suite).await;
    rules(suite).await;
    pages(suite).await;
}

/// Rule 16: the request is refused with the text of the limit.
fn is_beyond<T: std::fmt::Debug>(done: Result<T>, told: &str) {
    let error = refused(done);
    assert_eq!(error.to_string(), told, "16");
    assert!(matches!(error, EventsError::TooLarge(_)), "16: {error:?}");
}

fn import(stream: &str, position: u64, global: u64) -> ImportRecord {
    ImportRecord {
        id: None,
        stream: stream.to_owned(),
        kind: "T".to_owned(),
        position,
        global,
        data: "{}".to_owned(),
        metadata: None,
        time: 0,
    }
}

/// Rules 2 and 16.
async fn names(suite: &Suite) {
    let store = suite.open().await;
    let namespace = suite.namespace(&store).await;
    let (long_stream, long_kind) = ("é".repeat(513), "t".repeat(256));
    for (stream, kind, told) in [
        (long_stream.as_str(), "T", "streamName exceeds 1024 bytes"),
        ("a\0", "T", "streamName must not contain U+0000"),
        ("a", long_kind.as_str(), "message.type exceeds 255 bytes"),
        ("a", "T\0", "message.type must not contain U+0000"),
    ] {
        let both = [
            append("b", ExpectedVersion::Any, vec![event("T", "{}")]),
            append(stream, ExpectedVersion::Any, vec![event(kind, "{}")]),
        ];
        is_beyond(namespace.append(&both).await, told);
        let second = ImportRecord {
            kind: kind.to_owned(),
            ..import(stream, 0, 2)
        };
        is_beyond(namespace.import(&[import("b", 0, 1), second]).await, told);
    }
    for (name, told) in [
        (long_stream.as_str(), "streamName exceeds 1024 bytes"),
        ("a\0", "streamName must not contain U+0000"),
    ] {
        let deleted = namespace.delete_stream(name, ExpectedVersion::Any, true).await;
        is_beyond(deleted, told);
        for of in [RetentionTarget::Stream(name), RetentionTarget::Category(name)] {
            is_beyond(namespace.set_retention(of, Some(Retention::default())).await, told);
        }
        assert_eq!(namespace.version(name).await.unwrap(), -1, "16: no stream has the name");
    }
    assert_eq!(namespace.info().await.unwrap().messages, 0, "2: nothing is stored");
    let (stream, kind) = ("é".repeat(512), "t".repeat(255));
    assert_eq!(write(&namespace, &stream, &kind, "{}").await.first_global, 1, "16");
    let found = namespace.last(&stream, Some(&kind)).await.unwrap().unwrap();
    assert_eq!(
        (found.event().stream, found.event().kind),
        (stream.as_str(), kind.as_str())
    );
    let of = RetentionTarget::Category(&stream);
    namespace.set_retention(of, Some(Retention::default())).await.unwrap();
    namespace
        .delete_stream(&stream, ExpectedVersion::Version(0), true)
        .await
        .unwrap();
}

/// Rule 16: an id that is no UUID may have any characters.
async fn ids(suite: &Suite) {
    let store = suite.open().await;
    let namespace = suite.namespace(&store).await;
    let long = MessageId::of(&"i".repeat(256));
    let with_id = |id: &MessageId| NewEvent {
        id: Some(id.clone()),
        ..event("T", "{}")
    };
    let record = |id: &MessageId, global| ImportRecord {
        id: Some(id.clone()),
        ..import("b", global - 1, global)
    };
    let told = "id exceeds 255 bytes";
    let appends = [append("a", ExpectedVersion::Any, vec![with_id(&long)])];
    is_beyond(namespace.append(&appends).await, told);
    is_beyond(namespace.import(&[record(&long, 1)]).await, told);
    for (id, global) in [(MessageId::of(&"i".repeat(255)), 1), (MessageId::of("\0 ' é"), 3)] {
        namespace.import(&[record(&id, global)]).await.unwrap();
        let found = namespace.by_id(&id).await.unwrap().unwrap();
        assert_eq!(found.event().global, global, "16");
        let appends = [append("a", ExpectedVersion::Any, vec![with_id(&id)])];
        assert!(
            matches!(
                refused(namespace.append(&appends).await),
                EventsError::IdConflict { .. }
            ),
            "4: {id}"
        );
    }
}

/// Rules 2 and 16.
async fn appends(suite: &Suite) {
    let store = suite.open().await;
    let namespace = suite.namespace(&store).await;
    let one = |stream| append(stream, ExpectedVersion::Any, vec![event("T", "{}")]);
    let twice = [one("a"), one("b"), one("a")];
    is_beyond(
        namespace.append(&twice).await,
        "append.stream 'a' occurs more than once",
    );
    let of_bytes = |bytes: usize| format!("\"{}\"", "x".repeat(bytes - 3));
    let (largest, beyond) = (of_bytes(APPEND_BYTES_MAX), of_bytes(APPEND_BYTES_MAX + 1));
    let alone = |data| vec![append("stream", ExpectedVersion::Any, vec![event("T", data)])];
    is_beyond(namespace.append(&alone(&beyond)).await, "append exceeds 24 MiB");
    let beside = [append(
        "stream",
        ExpectedVersion::Any,
        vec![event("T", &largest[..APPEND_BYTES_MAX - 9]), event("T", "1")],
    )];
    is_beyond(namespace.append(&beside).await, "append exceeds 24 MiB");
    assert_eq!(namespace.info().await.unwrap().messages, 0, "2: nothing is stored");
    let done = namespace.append(&alone(&largest)).await.unwrap();
    assert_eq!(done[0].first_global, 1, "16: the largest message");
    let found = namespace.last("stream", None).await.unwrap().unwrap();
    assert!(found.event().data == largest, "5");
}

/// Rules 8 and 16.
async fn positions(suite: &Suite) {
    let store = suite.open().await;
    let namespace = suite.namespace(&store).await;
    for (record, told) in [
        (
            import("a", POSITION_MAX + 1, 2),
            "position 9007199254740992 is not between 0 and 9007199254740991",
        ),
        (
            import("a", 0, 0),
            "global position 0 is not between 1 and 9007199254740991",
        ),
        (
            import("a", 0, POSITION_MAX + 1),
            "global position 9007199254740992 is not between 1 and 9007199254740991",
        ),
    ] {
        is_beyond(namespace.import(&[import("b", 0, 1), record]).await, told);
    }
    namespace.import(&[]).await.unwrap();
    assert!(
        all(&namespace).await.is_empty(),
        "8: nothing of a refused batch is stored"
    );
}

/// Rules 10 and 16.
async fn namespaces(suite: &Suite) {
    let store = suite.open().await;
    let base = suite.unused_name(&store).await;
    let (longest, long) = (format!("{base:n<255}"), format!("{base:n<256}"));
    for name in ["", ".", "..", "a/b", "a\\b", "a\0", "a\n", long.as_str()] {
        let new = NewNamespace {
            name: name.to_owned(),
            description: String::new(),
            metadata: None,
            digest: TokenDigest::from_bytes([7; 32]),
            scopes: Scopes::ALL,
        };
        is_beyond(store.create(new).await, "namespace ID contains invalid characters");
        let found = store.namespace(name).await.err();
        assert!(matches!(found, Some(EventsError::NamespaceNotFound(_))), "16: {name:?}");
    }
    create(&store, &longest).await;
    let namespace = store.namespace(&longest).await.unwrap();
    assert_eq!(write(&namespace, "a", "T", "{}").await.first_global, 1, "16");
    let tokens = store.tokens(&longest).await.unwrap();
    assert_eq!(tokens[0].description, "Made with the namespace", "11");
}

/// Rules 13 and 16.
async fn documents(suite: &Suite) {
    let store = suite.open().await;
    let namespace = suite.namespace(&store).await;
    let name = "d".repeat(DOCUMENT_NAME_BYTES_MAX);
    let beyond = vec![7_u8; DOCUMENT_BYTES_MAX + 1];
    let told = "document name exceeds 1100 bytes";
    is_beyond(namespace.put_document(&(name.clone() + "d"), Some(b"x"), 0).await, told);
    let told = format!("document exceeds {DOCUMENT_BYTES_MAX} bytes");
    is_beyond(namespace.put_document(&name, Some(&beyond[..]), 0).await, &told);
    assert_eq!(namespace.document(&name).await.unwrap(), None, "16");
    let stored = namespace.put_document(&name, Some(&beyond[1..]), 0).await.unwrap();
    assert!(stored.is_some(), "16: the largest document");
    let found = namespace.document(&name).await.unwrap().unwrap();
    assert!(found.content == beyond[1..], "13");
}

/// Rules 12 and 16: numbers beyond those of any message have no other effect than the largest.
async fn rules(suite: &Suite) {
    let store = suite.open().await;
    let namespace = suite.namespace(&store).await;
    let of = RetentionTarget::Stream("a-1");
    let weakest = Retention {
        max_age: Some(i64::MAX),
        max_count: Some(u64::MAX),
        truncate_before: None,
    };
    write(&namespace, "a-1", "T", "{}").await;
    namespace.set_retention(of, Some(weakest)).await.unwrap();
    write(&namespace, "a-1", "T", "{}").await;
    let bounded = Retention {
        max_age: Some(RETENTION_AGE_MAX),
        max_count: Some(i64::MAX.unsigned_abs()),
        truncate_before: None,
    };
    assert_eq!(namespace.retention(of).await.unwrap(), Some(bounded), "16");
    assert_eq!(all(&namespace).await.len(), 2, "12: it hides nothing");
    let strongest = Retention {
        truncate_before: Some(u64::MAX),
        ..Retention::default()
    };
    namespace.set_retention(of, Some(strongest)).await.unwrap();
    assert_eq!(namespace.retention(of).await.unwrap(), Some(strongest.bounded()), "16");
    assert!(all(&namespace).await.is_empty(), "12: it hides everything");
}

/// Rules 6 and 16: a page ends at a number of messages, and after the message that exceeds a size.
async fn pages(suite: &Suite) {
    let store = suite.open().await;
    let namespace = suite.namespace(&store).await;
    let many = vec![event("T", "{}"); PAGE_MESSAGES_MAX + 1];
    namespace
        .append(&[append("a-1", ExpectedVersion::Any, many)])
        .await
        .unwrap();
    let large = format!("\"{}\"", "x".repeat(PAGE_BYTES_MAX / 2));
    for _ in 0..3 {
        write(&namespace, "b-1", "T", &large).await;
    }
    for (stream, category, count, next_global) in [("a-1", "a", PAGE_MESSAGES_MAX, 1001), ("b-1", "b", 2, 1004)] {
        let page = namespace.read_stream(of_stream(stream)).await.unwrap();
        assert_eq!((page.events.len(), page.next), (count, Some(count as u64)), "16");
        let page = namespace.read_category(of_category(Some(category))).await.unwrap();
        assert_eq!((page.events.len(), page.next), (count, Some(next_global)), "16");
    }
}
