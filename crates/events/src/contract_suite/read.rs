//! Reads, counts, lists and change notifications.

use std::sync::Arc;

use super::{
    PATIENCE, Suite, append, category_pages, data, event, globals, of_category, of_stream, positions, soon,
    stream_pages, write,
};
use crate::names::GroupMember;
use crate::store::{CategoryRead, Direction, ExpectedVersion, Namespace, NewEvent, StreamPosition, StreamRead};

pub async fn run(suite: &Suite) {
    streams(suite).await;
    pages(suite).await;
    categories(suite).await;
    groups(suite).await;
    correlations(suite).await;
    counts(suite).await;
    changes(suite).await;
}

/// Rule 6: from a position, in both directions, filtered by type.
async fn streams(suite: &Suite) {
    let store = suite.open().await;
    let namespace = suite.namespace(&store).await;
    for n in 0..10 {
        let kind = if n % 2 == 0 { "Even" } else { "Odd" };
        write(&namespace, "s-1", kind, &format!("[{n}]")).await;
        write(&namespace, "other", kind, "{}").await;
    }
    let read = of_stream("s-1");
    let backward = StreamRead {
        direction: Direction::Backward,
        ..read
    };
    let odd = ["Odd".to_owned()];
    let cases: [(StreamRead<'_>, Vec<u64>); 9] = [
        (read, (0..10).collect()),
        (
            StreamRead {
                from: Some(StreamPosition::Position(7)),
                ..read
            },
            vec![7, 8, 9],
        ),
        (
            StreamRead {
                from: Some(StreamPosition::Position(10)),
                ..read
            },
            vec![],
        ),
        (
            StreamRead {
                from: Some(StreamPosition::Global(15)),
                ..read
            },
            vec![7, 8, 9],
        ),
        (
            StreamRead {
                from: Some(StreamPosition::Global(16)),
                ..read
            },
            vec![8, 9],
        ),
        (backward, (0..10).rev().collect()),
        (
            StreamRead {
                from: Some(StreamPosition::Position(2)),
                ..backward
            },
            vec![2, 1, 0],
        ),
        (StreamRead { types: &odd, ..read }, vec![1, 3, 5, 7, 9]),
        (
            StreamRead {
                types: &odd,
                from: Some(StreamPosition::Position(5)),
                ..backward
            },
            vec![5, 3, 1],
        ),
    ];
    for (read, wanted) in cases {
        assert_eq!(positions(&stream_pages(&namespace, read).await), wanted, "6: {read:?}");
        for max in [1, 3] {
            let found = stream_pages(&namespace, StreamRead { max, ..read }).await;
            assert_eq!(positions(&found), wanted, "6: {read:?} by {max}");
        }
    }
    assert!(stream_pages(&namespace, of_stream("unknown")).await.is_empty());
    let last = namespace.last("s-1", None).await.unwrap().unwrap();
    assert_eq!(last.event().position, 9);
    let last = namespace.last("s-1", Some("Even")).await.unwrap().unwrap();
    assert_eq!((last.event().position, last.event().data), (8, "[8]"));
    assert!(namespace.last("s-1", Some("None")).await.unwrap().is_none());
    assert!(namespace.last("unknown", None).await.unwrap().is_none());
}

/// Rule 6: many messages, and large ones.
async fn pages(suite: &Suite) {
    let store = suite.open().await;
    let namespace = suite.namespace(&store).await;
    let many = vec![event("T", "{}"); 2500];
    namespace
        .append(&[append("a-1", ExpectedVersion::Any, many)])
        .await
        .unwrap();
    let large = format!("\"{}\"", "x".repeat(1 << 20));
    for _ in 0..12 {
        write(&namespace, "a-2", "T", &large).await;
    }
    assert_eq!(
        positions(&stream_pages(&namespace, of_stream("a-1")).await),
        (0..2500).collect::<Vec<_>>(),
        "6"
    );
    assert_eq!(stream_pages(&namespace, of_stream("a-2")).await.len(), 12, "6");
    for category in [None, Some("a")] {
        let read = of_category(category);
        assert_eq!(
            globals(&category_pages(&namespace, read).await),
            (1..=2512).collect::<Vec<_>>(),
            "6"
        );
        let read = CategoryRead {
            direction: Direction::Backward,
            ..read
        };
        assert_eq!(
            globals(&category_pages(&namespace, read).await),
            (1..=2512).rev().collect::<Vec<_>>(),
            "6"
        );
    }
}

/// Rule 7.
async fn categories(suite: &Suite) {
    let store = suite.open().await;
    let namespace = suite.namespace(&store).await;
    for (n, stream) in ["a-1", "b-1", "a-2", "a", "ab-1", "-x", "a-1"].into_iter().enumerate() {
        write(&namespace, stream, if n < 3 { "One" } else { "Two" }, "{}").await;
    }
    let two = ["Two".to_owned()];
    let read = of_category(Some("a"));
    let cases: [(CategoryRead<'_>, Vec<u64>); 10] = [
        (read, vec![1, 3, 4, 7]),
        (CategoryRead { from: Some(3), ..read }, vec![3, 4, 7]),
        (CategoryRead { from: Some(8), ..read }, vec![]),
        (CategoryRead { types: &two, ..read }, vec![4, 7]),
        (
            CategoryRead {
                direction: Direction::Backward,
                from: Some(4),
                ..read
            },
            vec![4, 3, 1],
        ),
        (of_category(Some("")), vec![6]),
        (of_category(Some("a-1")), vec![]),
        (of_category(Some("unknown")), vec![]),
        (of_category(None), (1..=7).collect()),
        (
            CategoryRead {
                types: &two,
                from: Some(6),
                ..of_category(None)
            },
            vec![6, 7],
        ),
    ];
    for (read, wanted) in cases {
        assert_eq!(globals(&category_pages(&namespace, read).await), wanted, "7: {read:?}");
        let one = CategoryRead { max: 1, ..read };
        assert_eq!(
            globals(&category_pages(&namespace, one).await),
            wanted,
            "6: {read:?} one by one"
        );
    }
}

/// Rule 7: the table of the specification.
async fn groups(suite: &Suite) {
    let store = suite.open().await;
    let namespace = suite.namespace(&store).await;
    let table = [
        ("0", [1, 1, 1]),
        ("1", [0, 0, 2]),
        ("2", [1, 1, 1]),
        ("3", [0, 2, 2]),
        ("123", [1, 1, 3]),
        ("abc", [0, 2, 0]),
        ("profile-456", [1, 2, 1]),
        ("é", [0, 2, 2]),
    ];
    for (id, _) in table {
        write(&namespace, &format!("c-{id}+part"), "T", "{}").await;
    }
    for nobodys in ["c", "c-", "c-+x"] {
        write(&namespace, nobodys, "T", "{}").await;
    }
    for (column, of) in (2..5).enumerate() {
        for number in 0..of {
            let wanted: Vec<u64> = (1..)
                .zip(table)
                .filter(|(_, row)| row.1[column] == number)
                .map(|(n, _)| n)
                .collect();
            for category in [Some("c"), None] {
                let read = CategoryRead {
                    member: Some(GroupMember { number, of }),
                    ..of_category(category)
                };
                assert_eq!(
                    globals(&category_pages(&namespace, read).await),
                    wanted,
                    "7: member {number} of {of}"
                );
            }
        }
    }
    let read = CategoryRead {
        member: Some(GroupMember { number: 0, of: 1 }),
        ..of_category(Some("c"))
    };
    assert_eq!(
        category_pages(&namespace, read).await.len(),
        table.len(),
        "7: without an id nobody has it"
    );
}

/// Rule 7.
async fn correlations(suite: &Suite) {
    let store = suite.open().await;
    let namespace = suite.namespace(&store).await;
    for metadata in [
        Some(r#"{"correlationStreamName":"order-1"}"#),
        Some(r#"{"correlationStreamName":"order"}"#),
        Some(r#"{"correlationStreamName":"orders-1"}"#),
        Some(r#"{"correlationStreamName":7}"#),
        None,
        Some(r#"{"correlationStreamName":"order-2-3","x":1}"#),
    ] {
        let given = NewEvent {
            metadata,
            ..event("T", "{}")
        };
        namespace
            .append(&[append("a-1", ExpectedVersion::Any, vec![given])])
            .await
            .unwrap();
    }
    for (category, correlation, wanted) in [
        (Some("a"), "order", vec![1, 2, 6]),
        (None, "order", vec![1, 2, 6]),
        (Some("a"), "orders", vec![3]),
        (Some("a"), "order-1", vec![]),
        (Some("a"), "ord%", vec![]),
        (Some("b"), "order", vec![]),
    ] {
        let read = CategoryRead {
            correlation: Some(correlation),
            ..of_category(category)
        };
        assert_eq!(
            globals(&category_pages(&namespace, read).await),
            wanted,
            "7: {correlation}"
        );
    }
}

/// Rules 9 and 15.
async fn counts(suite: &Suite) {
    let mut store = suite.open().await;
    let mut namespace = suite.namespace(&store).await;
    let name = namespace.name().to_owned();
    let streams = ["a-2", "a-10", "A-1", "a_1", "b", "a%1", "ä-1", "a-2"];
    for stream in streams {
        write(&namespace, stream, "T", "{}").await;
    }
    for _ in 0..2 {
        let info = namespace.info().await.unwrap();
        assert_eq!(
            (info.name.as_str(), info.messages, info.streams),
            (name.as_str(), 8, 7),
            "9"
        );
        assert_eq!(info.metadata.as_deref(), Some(r#"{"b":1,"a":2}"#), "10: kept as it is");
        let last = namespace.last("a-2", None).await.unwrap().unwrap();
        assert_eq!(info.last_activity, Some(last.event().time), "9");
        let list = async |prefix, cursor, max| {
            let found = namespace.streams(prefix, cursor, max).await.unwrap();
            found
                .into_iter()
                .map(|info| (info.stream, info.version))
                .collect::<Vec<_>>()
        };
        let of = |names: &[(&str, u64)]| {
            names
                .iter()
                .map(|(name, n)| ((*name).to_owned(), *n))
                .collect::<Vec<_>>()
        };
        let in_order = [
            ("A-1", 0),
            ("a%1", 0),
            ("a-10", 0),
            ("a-2", 1),
            ("a_1", 0),
            ("b", 0),
            ("ä-1", 0),
        ];
        assert_eq!(list("", "", 100).await, of(&in_order), "9: byte order");
        assert_eq!(list("a", "", 100).await, of(&in_order[1..5]), "9: a prefix is literal");
        assert_eq!(list("a_", "", 100).await, of(&in_order[4..5]), "9: a prefix is literal");
        assert_eq!(list("a%", "", 100).await, of(&in_order[1..2]), "9: a prefix is literal");
        assert_eq!(
            list("", "a-10", 2).await,
            of(&in_order[3..5]),
            "9: a cursor is exclusive"
        );
        assert_eq!(list("a", "a_1", 2).await, of(&[]), "9");
        let found = namespace.categories().await.unwrap();
        let found: Vec<_> = found
            .iter()
            .map(|one| (one.category.as_str(), one.messages, one.streams))
            .collect();
        let wanted = [
            ("A", 1, 1),
            ("a", 3, 2),
            ("a%1", 1, 1),
            ("a_1", 1, 1),
            ("b", 1, 1),
            ("ä", 1, 1),
        ];
        assert_eq!(found, wanted, "9");
        drop(namespace);
        store = suite.again(store).await;
        namespace = store.namespace(&name).await.unwrap();
    }
}

/// Rule 14.
async fn changes(suite: &Suite) {
    let store = suite.open().await;
    let namespace = suite.namespace(&store).await;
    let mut watch = namespace.watch();
    let mut seen = *watch.borrow_and_update();
    assert_eq!((seen.last, seen.cleared), (0, 0), "14: empty at first");
    for n in 1..=5 {
        write(&namespace, "s", "T", "{}").await;
        let is_told = async {
            while watch.borrow_and_update().last < n {
                watch.changed().await.unwrap();
            }
        };
        soon("14: an append is told", is_told).await;
        let now = *watch.borrow_and_update();
        assert!(now.last == n && now.change > seen.change, "14: {now:?} after {seen:?}");
        seen = now;
    }
    assert_eq!(namespace.watch().borrow().last, 5, "14: also to who comes later");
    reader_beside_writers(&namespace).await;
}

/// Rules 1, 5 and 14: a reader that continues after each notification gets every message once.
async fn reader_beside_writers(namespace: &Arc<dyn Namespace>) {
    const EACH: u64 = 50;
    let first = namespace.watch().borrow().last + 1;
    let reader = {
        let namespace = namespace.clone();
        tokio::spawn(async move {
            let mut watch = namespace.watch();
            let (mut found, mut from) = (Vec::new(), first);
            while found.len() < 4 * EACH as usize {
                let upto = watch.borrow_and_update().last;
                if upto < from {
                    tokio::time::timeout(PATIENCE, watch.changed()).await.unwrap().unwrap();
                    continue;
                }
                let read = CategoryRead {
                    from: Some(from),
                    ..of_category(None)
                };
                found.extend(globals(&category_pages(&namespace, read).await));
                assert!(found.last() >= Some(&upto), "14: what is told can be read");
                from = found.last().unwrap() + 1;
            }
            found
        })
    };
    let mut writers = Vec::new();
    for n in 0..4 {
        let namespace = namespace.clone();
        writers.push(tokio::spawn(async move {
            for _ in 0..EACH {
                write(&namespace, &format!("w-{n}"), "T", "{}").await;
            }
        }));
    }
    for writer in writers {
        writer.await.unwrap();
    }
    let found = soon("14: all is told", reader).await.unwrap();
    assert_eq!(
        found,
        (first..first + 4 * EACH).collect::<Vec<_>>(),
        "1: each once, in order"
    );
    let page = category_pages(namespace, of_category(Some("w"))).await;
    assert_eq!(data(&page).len(), 4 * EACH as usize);
}
