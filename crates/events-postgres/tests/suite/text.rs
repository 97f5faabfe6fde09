//! Text that the database cannot store is refused, or stored in another form.

use thalweg_events::{
    Append, CategoryRead, Direction, EventsError, ExpectedVersion, ImportRecord, MessageId, NewEvent, NewNamespace,
    Scopes, Store, new_token,
};

use crate::server::Server;
use crate::servers::{create, open, read, write};

fn import(id: &str) -> ImportRecord {
    ImportRecord {
        id: Some(MessageId::of(id)),
        stream: "a-1".to_owned(),
        kind: "T".to_owned(),
        position: 0,
        global: 1,
        data: r#"{"null":"\u0000"}"#.to_owned(),
        metadata: None,
        time: 0,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn null_characters_are_kept_in_ids_and_descriptions_and_refused_in_names_before_anything_is_stored() {
    let server = Server::start();
    let store = open(&server).await;
    let (token, _) = new_token("null").unwrap();
    let new = NewNamespace {
        name: "null".to_owned(),
        description: "with \0 in it".to_owned(),
        metadata: None,
        digest: *token.digest(),
        scopes: Scopes::ALL,
    };
    store.create(new.clone()).await.unwrap();
    let namespace = store.namespace("null").await.unwrap();
    assert_eq!(namespace.info().await.unwrap().description, "with \0 in it");
    namespace.import(&[import("id \0")]).await.unwrap();
    assert!(namespace.by_id(&MessageId::of("id \0")).await.unwrap().is_some());
    namespace.put_document("d\0", Some(b"\0"), 0).await.unwrap().unwrap();
    assert_eq!(namespace.documents("d", "", 9).await.unwrap(), ["d\0"]);
    for (stream, kind) in [("a\0", "T"), ("a", "T\0")] {
        let events = vec![NewEvent {
            id: None,
            kind,
            data: "{}",
            metadata: None,
        }];
        let append = Append {
            stream,
            expected: ExpectedVersion::Any,
            events,
        };
        // Beside other appends, which are committed with it.
        let appends = [append];
        let (refused, others) = tokio::join!(namespace.append(&appends), write(&namespace, "b", "[]"));
        let error = refused.unwrap_err();
        assert!(error.to_string().contains("must not contain U+0000"), "{error}");
        others.unwrap();
    }
    assert_eq!(read(&namespace, 1).await.len(), 3);
    assert_eq!(namespace.version("a\0").await.unwrap(), -1);
    assert!(namespace.streams("a\0", "", 9).await.unwrap().is_empty());
    let gone = store.namespace("no\0").await;
    assert!(matches!(gone, Err(EventsError::NamespaceNotFound(_))));
    let named = NewNamespace {
        name: "no\0".to_owned(),
        ..new
    };
    assert!(store.create(named).await.is_err());
}

/// The index contains a hash of the category, and hashes may collide.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_another_correlation_with_the_same_number_are_left_out() {
    let server = Server::start();
    let store = open(&server).await;
    create(&store, "same").await;
    let namespace = store.namespace("same").await.unwrap();
    for (n, of) in ["order", "other", "order", "other"].into_iter().enumerate() {
        let metadata = format!("{{\"correlationStreamName\":\"{of}-{n}\"}}");
        let event = NewEvent {
            id: None,
            kind: "T",
            data: "{}",
            metadata: Some(&metadata),
        };
        let append = Append {
            stream: "a-1",
            expected: ExpectedVersion::Any,
            events: vec![event],
        };
        namespace.append(&[append]).await.unwrap();
    }
    let number = i64::from_ne_bytes(xxhash_rust::xxh3::xxh3_64(b"order").to_ne_bytes());
    server.sql(&format!("UPDATE thalweg_events.messages SET correlation = {number}"));
    let (mut found, mut from) = (Vec::new(), Some(1));
    while let Some(at) = from {
        let read = CategoryRead {
            category: Some("a"),
            from: Some(at),
            direction: Direction::Forward,
            max: 2,
            correlation: Some("order"),
            member: None,
            types: &[],
        };
        let page = namespace.read_category(read).await.unwrap();
        found.extend(page.events.iter().map(|stored| stored.event().global));
        from = page.next;
    }
    assert_eq!(found, [1, 3]);
}
