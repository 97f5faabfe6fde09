//! The gaps that a reader gets for messages removed by retention, before and after scavenging, but not for positions
//! that an import left out.

use super::test_support::keep_newest;
use super::tests::Disks;
use super::*;
use crate::store::*;

async fn append(namespace: &Arc<dyn Namespace>, stream: &str, count: usize) {
    let events = vec![
        NewEvent {
            id: None,
            kind: "T",
            data: "{}",
            metadata: None,
        };
        count
    ];
    let expected = ExpectedVersion::Any;
    let append = Append {
        stream,
        expected,
        events,
    };
    namespace.append(&[append]).await.unwrap();
}

/// Global positions, and gaps.
type Seen = (Vec<u64>, Vec<(u64, u64)>);

/// Reads pages of `max` messages, each starting where the one before stopped.
async fn seen(namespace: &Arc<dyn Namespace>, of: &str, max: usize) -> Seen {
    let (mut globals, mut gaps, mut from) = (Vec::new(), Vec::new(), 0);
    loop {
        let found = match of.split_once(' ') {
            Some(("stream", stream)) => {
                let read = StreamRead {
                    stream,
                    from: Some(StreamPosition::Position(from)),
                    direction: Direction::Forward,
                    max,
                    types: &[],
                };
                namespace.read_stream_with_gaps(read).await
            }
            category => {
                let read = CategoryRead {
                    category: category.map(|(_, name)| name),
                    from: Some(from.max(1)),
                    direction: Direction::Forward,
                    max,
                    correlation: None,
                    member: None,
                    types: &[],
                };
                namespace.read_category_with_gaps(read).await
            }
        };
        let found = found.unwrap();
        globals.extend(found.page.events.iter().map(|stored| stored.event().global));
        gaps.extend(found.gaps.iter().map(|gap| (gap.from, gap.to)));
        match found.page.next {
            Some(_) => from = found.looked.unwrap(),
            None => return (globals, gaps),
        }
    }
}

async fn namespace(store: &EmbeddedStore) -> Arc<dyn Namespace> {
    store.namespace(DEFAULT).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retention_leaves_gaps_that_scavenging_and_a_restart_do_not_close() {
    let disks = Disks::new();
    let mut store = disks.open().await;
    let mut own = namespace(&store).await;
    // Global positions: a-1 has 1, 2, 3, 7, 8; b-1 has 4, 5, 6.
    append(&own, "a-1", 3).await;
    append(&own, "b-1", 3).await;
    append(&own, "a-1", 2).await;
    for of in ["stream a-1", "stream b-1", "category a", "all"] {
        assert_eq!(seen(&own, of, 10).await.1, [], "{of}: nothing is missing");
    }
    keep_newest(&own, RetentionTarget::Stream("a-1"), Some(1)).await;
    for (step, max) in [("hidden", 10), ("hidden", 1), ("scavenged", 10), ("restarted", 1)] {
        match step {
            "scavenged" => assert_eq!(store.scavenge().await.unwrap().messages, 4),
            "restarted" => {
                drop((store, own));
                store = disks.open().await;
                own = namespace(&store).await;
            }
            _ => {}
        }
        assert_eq!(seen(&own, "stream a-1", max).await, (vec![8], vec![(0, 3)]), "{step}");
        assert_eq!(
            seen(&own, "all", max).await,
            (vec![4, 5, 6, 8], vec![(1, 3), (7, 7)]),
            "{step}"
        );
        assert_eq!(seen(&own, "category a", max).await, (vec![8], vec![(1, 7)]), "{step}");
        assert_eq!(seen(&own, "category b", max).await, (vec![4, 5, 6], vec![]), "{step}");
        assert_eq!(seen(&own, "stream b-1", max).await.1, [], "{step}");
    }
    assert!(own.may_lose("a") && !own.may_lose("b"));
}

/// Each removed message is next to one of another category, so there are many holes but one gap.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holes_that_others_divide_are_one_gap_between_two_messages_that_are_shown() {
    let disks = Disks::new();
    let store = disks.open().await;
    let own = namespace(&store).await;
    for _ in 0..300 {
        append(&own, "a-1", 1).await;
        append(&own, "b-1", 1).await;
    }
    keep_newest(&own, RetentionTarget::Stream("a-1"), Some(2)).await;
    append(&own, "a-2", 1).await;
    keep_newest(&own, RetentionTarget::Stream("a-2"), Some(1)).await;
    for _ in 0..2 {
        let of_a = (vec![597, 599, 601], vec![(1, 595)]);
        assert_eq!(seen(&own, "category a", 10).await, of_a);
        assert_eq!(seen(&own, "category a", 1).await, of_a);
        store.scavenge().await.unwrap();
    }
    // Also between two of them.
    append(&own, "a-2", 3).await;
    for _ in 0..2 {
        let of_a = (vec![597, 599, 604], vec![(1, 595), (601, 603)]);
        assert_eq!(seen(&own, "category a", 10).await, of_a);
        store.scavenge().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_import_leaves_out_was_never_there() {
    let store = Disks::new().open().await;
    let own = namespace(&store).await;
    let import = |position, global| ImportRecord {
        id: None,
        stream: "a-1".to_owned(),
        kind: "T".to_owned(),
        position,
        global,
        data: "{}".to_owned(),
        metadata: None,
        time: 1,
    };
    own.import(&[import(5, 50), import(9, 90)]).await.unwrap();
    append(&own, "b-1", 2).await;
    for of in ["stream a-1", "category a", "category b", "all"] {
        assert_eq!(seen(&own, of, 1).await.1, [], "{of}");
    }
    // A message that a rule hides is reported, together with neighbouring positions whose history is unknown.
    keep_newest(&own, RetentionTarget::Category("a"), Some(1)).await;
    assert_eq!(seen(&own, "category b", 1).await.1, []);
    assert_eq!(seen(&own, "stream a-1", 1).await, (vec![90], vec![(0, 8)]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_resumed_after_a_global_position_hears_of_what_it_lacks_only() {
    let store = Disks::new().open().await;
    let own = namespace(&store).await;
    append(&own, "a-1", 10).await;
    let resumed = async |after: u64| {
        let read = StreamRead {
            stream: "a-1",
            from: Some(StreamPosition::Global(after + 1)),
            direction: Direction::Forward,
            max: 10,
            types: &[],
        };
        let found = own.read_stream_with_gaps(read).await.unwrap();
        found.gaps.iter().map(|gap| (gap.from, gap.to)).collect::<Vec<_>>()
    };
    assert_eq!(resumed(4).await, []);
    keep_newest(&own, RetentionTarget::Stream("a-1"), Some(3)).await;
    assert_eq!(resumed(4).await, [(4, 6)], "positions 0 to 3 were read");
    assert_eq!(resumed(8).await, []);
    own.delete_stream("a-1", ExpectedVersion::Any, false).await.unwrap();
    append(&own, "a-1", 1).await;
    assert_eq!(resumed(8).await, [(8, 9)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_generation_of_messages_is_the_same_after_indexes_are_lost() {
    let disks = Disks::new();
    let store = disks.open().await;
    let own = namespace(&store).await;
    assert_eq!(own.watch().borrow().cleared, 0);
    let mut before = 0;
    for _ in 0..3 {
        append(&own, "a-1", 2).await;
        own.clear().await.unwrap();
        let now = own.watch().borrow().cleared;
        assert!(now > before);
        before = now;
    }
    append(&own, "a-1", 1).await;
    store.scavenge().await.unwrap();
    drop((store, own));
    disks.lose_indexes();
    let store = disks.open().await;
    let own = namespace(&store).await;
    assert_eq!(own.watch().borrow().cleared, before);
    assert_eq!(own.info().await.unwrap().messages, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_hidden_is_scavenged_now_and_then_by_itself() {
    let disks = Disks::new();
    let store = disks.open().await;
    let namespace = store.namespace(DEFAULT).await.unwrap();
    append(&namespace, "a-1", 10).await;
    keep_newest(&namespace, RetentionTarget::Stream("a-1"), Some(3)).await;
    let engine = store.inner.opened(DEFAULT).unwrap().namespace;
    let stored = || engine.index.read().state.messages;
    assert_eq!(stored(), 10, "they are hidden, and stored");
    // The same task as at the start, with a shorter period.
    tokio::spawn(maintenance::scavenges(Arc::downgrade(&store.inner), 1));
    let scavenged = async {
        while stored() > 3 {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(60), scavenged)
        .await
        .unwrap();
    assert_eq!(store.verify().await.unwrap().faults, []);
}
