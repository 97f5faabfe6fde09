//! Appends: versions, positions, atomicity, ids.

use std::sync::Arc;

use super::{Suite, all, append, data, event, globals, of_stream, positions, refused, stream_pages, write};
use crate::error::EventsError;
use crate::id::MessageId;
use crate::limits::{APPEND_MESSAGES_MAX, APPEND_STREAMS_MAX};
use crate::store::{Append, ExpectedVersion, Namespace, NewEvent};

pub async fn run(suite: &Suite) {
    places(suite).await;
    expectations(suite).await;
    several_streams(suite).await;
    one_winner(suite).await;
    ids(suite).await;
    content(suite).await;
    limits(suite).await;
}

/// Rules 1, 5 and 15.
async fn places(suite: &Suite) {
    let mut store = suite.open().await;
    let mut namespace = suite.namespace(&store).await;
    let name = namespace.name().to_owned();
    assert_eq!(namespace.version("a-1").await.unwrap(), -1, "1: no message yet");
    for round in 0..3_u64 {
        for n in 0..10_u64 {
            let events = vec![event("T", "[1]"), event("T", "[2]")];
            let done = namespace
                .append(&[append("a-1", ExpectedVersion::Any, events)])
                .await
                .unwrap()[0];
            let before = round * 30 + n * 3;
            assert_eq!(
                (done.first_position, done.first_global),
                (before - before / 3, before + 1),
                "1"
            );
            assert_eq!((done.count, done.duplicate), (2, false), "2: what was stored is told");
            assert_eq!(done.last_global(), before + 2);
            let single = write(&namespace, "b", "T", "{}").await;
            assert_eq!(
                (single.first_position, single.first_global),
                (before / 3, before + 3),
                "1"
            );
            assert_eq!(
                namespace.version("a-1").await.unwrap(),
                done.last_position() as i64,
                "5"
            );
        }
        drop(namespace);
        store = suite.again(store).await;
        namespace = store.namespace(&name).await.unwrap();
    }
    assert_eq!(globals(&all(&namespace).await), (1..=90).collect::<Vec<_>>(), "1, 15");
    let found = stream_pages(&namespace, of_stream("a-1")).await;
    assert_eq!(positions(&found), (0..60).collect::<Vec<_>>(), "1, 15");
    assert_eq!(namespace.version("b").await.unwrap(), 29, "15");
}

/// Rules 2 and 3: each form of an expected version.
async fn expectations(suite: &Suite) {
    let store = suite.open().await;
    let namespace = suite.namespace(&store).await;
    let cases = [
        (ExpectedVersion::Exists, false),
        (ExpectedVersion::Version(0), false),
        (ExpectedVersion::Version(-2), false),
        (ExpectedVersion::Version(-1), true),
        (ExpectedVersion::Version(-1), false),
        (ExpectedVersion::NoStream, false),
        (ExpectedVersion::Version(0), true),
        (ExpectedVersion::Exists, true),
        (ExpectedVersion::Any, true),
        (ExpectedVersion::Version(2), false),
        (ExpectedVersion::Version(-2), false),
        (ExpectedVersion::Version(3), true),
    ];
    let mut version = -1;
    for (expected, is_done) in cases {
        let done = namespace.append(&[append("s", expected, vec![event("T", "{}")])]).await;
        if is_done {
            version += 1;
            assert_eq!(done.unwrap()[0].first_position as i64, version, "3: {expected}");
            continue;
        }
        let EventsError::VersionConflict {
            stream,
            expected: told,
            actual,
        } = refused(done)
        else {
            panic!("3: a wrong version is a conflict");
        };
        assert_eq!((stream.as_str(), told, actual), ("s", expected, version), "3");
    }
    let done = namespace
        .append(&[append("t", ExpectedVersion::NoStream, vec![event("T", "{}")])])
        .await;
    assert_eq!(done.unwrap()[0].first_global, 6, "2: what is refused takes no place");
}

/// Rule 2: all streams or none.
async fn several_streams(suite: &Suite) {
    let store = suite.open().await;
    let namespace = suite.namespace(&store).await;
    write(&namespace, "a-1", "T", "{}").await;
    let both = |expected| {
        vec![
            append(
                "a-2",
                ExpectedVersion::NoStream,
                vec![event("T", "[1]"), event("T", "[2]")],
            ),
            append("a-1", expected, vec![event("T", "[3]")]),
        ]
    };
    let conflict = refused(namespace.append(&both(ExpectedVersion::Version(5))).await);
    assert!(
        matches!(&conflict, EventsError::VersionConflict { stream, actual: 0, .. } if stream == "a-1"),
        "2: {conflict}"
    );
    assert_eq!(
        namespace.version("a-2").await.unwrap(),
        -1,
        "2: nothing of it is stored"
    );
    assert_eq!(
        namespace.info().await.unwrap().streams,
        1,
        "9: nothing of it is counted"
    );
    let done = namespace.append(&both(ExpectedVersion::Version(0))).await.unwrap();
    let places: Vec<_> = done
        .iter()
        .map(|one| (one.count, one.first_position, one.first_global))
        .collect();
    assert_eq!(
        places,
        [(2, 0, 2), (1, 1, 4)],
        "2: one range, in the order of the request"
    );
    assert_eq!(data(&all(&namespace).await), ["{}", "[1]", "[2]", "[3]"], "2");
}

/// Rule 3.
async fn one_winner(suite: &Suite) {
    const WRITERS: usize = 8;
    let store = suite.open().await;
    let namespace = suite.namespace(&store).await;
    for version in -1..20_i64 {
        let mut writers = Vec::new();
        for n in 0..WRITERS {
            let namespace = namespace.clone();
            writers.push(tokio::spawn(async move {
                let data = format!("[{n}]");
                let done = namespace
                    .append(&[append("s", ExpectedVersion::Version(version), vec![event("T", &data)])])
                    .await;
                done.map(|done| done[0].first_position)
            }));
        }
        let mut winners = 0;
        for writer in writers {
            match writer.await.unwrap() {
                Ok(position) => {
                    assert_eq!(position as i64, version + 1, "3");
                    winners += 1;
                }
                Err(EventsError::VersionConflict { actual, .. }) => assert_eq!(actual, version + 1, "3"),
                Err(other) => panic!("3: {other}"),
            }
        }
        assert_eq!(winners, 1, "3: one of {WRITERS} writers succeeds");
    }
    assert_eq!(globals(&all(&namespace).await), (1..=21).collect::<Vec<_>>(), "1");
}

fn with_id<'a>(id: &MessageId, data: &'a str) -> NewEvent<'a> {
    NewEvent {
        id: Some(id.clone()),
        ..event("T", data)
    }
}

/// Rule 4.
async fn ids(suite: &Suite) {
    let mut store = suite.open().await;
    let mut namespace = suite.namespace(&store).await;
    let name = namespace.name().to_owned();
    let ids: Vec<MessageId> = (0..4).map(|n| MessageId::of(&format!("{n:032x}"))).collect();
    write(&namespace, "a-1", "T", "{}").await;
    let batch = |expected| {
        vec![append(
            "a-1",
            expected,
            vec![with_id(&ids[0], "[0]"), with_id(&ids[1], "[1]")],
        )]
    };
    let first = namespace.append(&batch(ExpectedVersion::Version(0))).await.unwrap()[0];
    for _ in 0..2 {
        // The stream no longer has the expected version.
        let again = namespace.append(&batch(ExpectedVersion::Version(0))).await.unwrap()[0];
        assert!(again.duplicate, "4: it was there");
        assert_eq!(
            (again.first_position, again.first_global, again.count),
            (1, first.first_global, 2),
            "4"
        );
        drop(namespace);
        store = suite.again(store).await;
        namespace = store.namespace(&name).await.unwrap();
    }
    let other = || with_id(&ids[2], "[2]");
    let reuses: Vec<Vec<Append<'_>>> = vec![
        vec![append("a-1", ExpectedVersion::Any, vec![with_id(&ids[0], "[9]")])],
        vec![append("a-2", ExpectedVersion::Any, vec![with_id(&ids[0], "[0]")])],
        vec![append(
            "a-1",
            ExpectedVersion::Any,
            vec![with_id(&ids[0], "[0]"), other()],
        )],
        vec![append(
            "a-1",
            ExpectedVersion::Any,
            vec![NewEvent {
                kind: "U",
                ..with_id(&ids[0], "[0]")
            }],
        )],
        vec![append(
            "a-1",
            ExpectedVersion::Any,
            vec![NewEvent {
                metadata: Some("{}"),
                ..with_id(&ids[0], "[0]")
            }],
        )],
    ];
    for reuse in &reuses {
        conflicts(&namespace, reuse, &ids[0], ("a-1", 1)).await;
    }
    let swapped = [append(
        "a-1",
        ExpectedVersion::Any,
        vec![with_id(&ids[1], "[1]"), with_id(&ids[0], "[0]")],
    )];
    conflicts(&namespace, &swapped, &ids[1], ("a-1", 2)).await;
    let twice = [append("a-1", ExpectedVersion::Any, vec![other(), other()])];
    assert!(
        matches!(namespace.append(&twice).await, Err(EventsError::IdConflict { .. })),
        "4: twice in one batch"
    );
    let part = [append("a-1", ExpectedVersion::Any, vec![with_id(&ids[1], "[1]")])];
    assert_eq!(
        namespace.append(&part).await.unwrap()[0].first_position,
        2,
        "4: a part of it is a whole of its own"
    );
    assert_eq!(all(&namespace).await.len(), 3, "4: nothing was stored twice");
    let found = namespace.by_id(&ids[1]).await.unwrap().unwrap();
    assert_eq!((found.event().position, found.event().data), (2, "[1]"), "5");
    assert!(namespace.by_id(&ids[3]).await.unwrap().is_none());
    same_at_once(&namespace, &ids[3]).await;
}

async fn conflicts(namespace: &Arc<dyn Namespace>, reuse: &[Append<'_>], id: &MessageId, place: (&str, u64)) {
    let EventsError::IdConflict {
        id: told,
        stream,
        position,
    } = refused(namespace.append(reuse).await)
    else {
        panic!("4: another use of an id is a conflict");
    };
    assert_eq!(
        (told, stream.as_str(), position),
        (id.to_string(), place.0, place.1),
        "4"
    );
}

/// Rule 4: concurrent retries.
async fn same_at_once(namespace: &Arc<dyn Namespace>, id: &MessageId) {
    let mut tasks = Vec::new();
    for _ in 0..8 {
        let (namespace, id) = (namespace.clone(), id.clone());
        tasks.push(tokio::spawn(async move {
            let done = namespace
                .append(&[append("c", ExpectedVersion::NoStream, vec![with_id(&id, "[7]")])])
                .await;
            done.unwrap()[0]
        }));
    }
    let mut stored = 0;
    for task in tasks {
        let done = task.await.unwrap();
        assert_eq!(done.first_position, 0, "4");
        stored += usize::from(!done.duplicate);
    }
    assert_eq!(stored, 1, "4: one of them is stored");
}

/// Content is read back unchanged.
async fn content(suite: &Suite) {
    let store = suite.open().await;
    let namespace = suite.namespace(&store).await;
    let long = format!("{{\"t\":\"{}\"}}", "ä".repeat(100_000));
    for (stream, kind, data, metadata) in [
        (
            "é-ü+x",
            "Tüp",
            r#"{"b":1,"a":1.10,"a":9007199254740993}"#,
            Some(r#"{"x":null}"#),
        ),
        ("-x", "with ' and \"", r#"{"zero":"\u0000","slash":"\\"}"#, None),
        ("%_\\", "T", long.as_str(), Some("{}")),
    ] {
        let given = NewEvent {
            metadata,
            ..event(kind, data)
        };
        namespace
            .append(&[append(stream, ExpectedVersion::NoStream, vec![given])])
            .await
            .unwrap();
        let found = stream_pages(&namespace, of_stream(stream)).await;
        let found = found[0].event();
        assert_eq!(
            (found.stream, found.kind, found.data, found.metadata),
            (stream, kind, data, metadata),
            "5"
        );
    }
}

/// Rules 2 and 16: appends above a limit are refused and store nothing.
async fn limits(suite: &Suite) {
    let store = suite.open().await;
    let namespace = suite.namespace(&store).await;
    let many = vec![event("T", "{}"); APPEND_MESSAGES_MAX + 1];
    let names: Vec<String> = (0..=APPEND_STREAMS_MAX).map(|n| format!("s-{n}")).collect();
    let streams: Vec<_> = names
        .iter()
        .map(|name| append(name, ExpectedVersion::Any, vec![event("T", "{}")]))
        .collect();
    for (appends, told) in [
        (
            vec![append("s", ExpectedVersion::Any, many.clone())],
            "append exceeds 10000 messages",
        ),
        (streams.clone(), "append exceeds 1000 streams"),
    ] {
        let error = refused(namespace.append(&appends).await);
        assert_eq!(error.to_string(), told, "16");
        assert!(matches!(error, EventsError::TooLarge(_)), "16: {error:?}");
    }
    assert_eq!(namespace.info().await.unwrap().messages, 0, "2");
    namespace
        .append(&[append("s", ExpectedVersion::Any, many[1..].to_vec())])
        .await
        .unwrap();
    namespace.append(&streams[1..]).await.unwrap();
    assert_eq!(namespace.info().await.unwrap().messages, 11_000, "9");
    assert_eq!(
        globals(&all(&namespace).await),
        (1..=11_000).collect::<Vec<_>>(),
        "1, 6"
    );
}
