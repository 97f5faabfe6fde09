use std::sync::mpsc;
use std::time::Duration;

use opcua::types::NodeId;
use proptest::prelude::*;

use super::node_page::{NodePageCursor, page};
use super::*;
use crate::failures::NodeFailureKind;
use crate::node_table::{DiscoveredNode, FailureReason, ItemState, NO_NODE, NodeIndex, NodeKind};

fn listed(input: &str, table: NodeTable) -> Arc<DirectoryEntry> {
    Arc::new(DirectoryEntry {
        input: input.to_owned(),
        endpoint: "opc.tcp://plc:4840/".to_owned(),
        table: Arc::new(RwLock::new(table)),
        failures: Arc::default(),
    })
}

fn add(table: &mut NodeTable, id: u32, name: &str, class: NodeKind) -> Option<NodeIndex> {
    table.add(&DiscoveredNode {
        id: &NodeId::new(1, id),
        name,
        class,
        parent: NO_NODE,
    })
}

fn variables(count: u32) -> NodeTable {
    let mut table = NodeTable::default();
    for id in 0..count {
        add(&mut table, id, &format!("v{id}"), NodeKind::Variable).unwrap();
    }
    table
}

#[test]
fn what_waits_for_paths_has_a_part_of_the_memory() {
    let directory = InputDirectory::new();
    let memory = directory.memory();
    assert_eq!(memory.of_waiting_values(1), 128 << 20, "before it is told");
    directory.set_node_memory(160 << 20);
    assert_eq!(memory.of_waiting_values(1), 40 << 20);
    for input in ["a", "b"] {
        directory.add(listed(input, variables(1)));
    }
    assert_eq!(memory.of_waiting_values(1), 20 << 20);
    assert_eq!(memory.of_waiting_values(4), 5 << 20);
    directory.set_node_memory(1 << 40);
    assert_eq!(memory.of_waiting_values(16), 128 << 20);
}

#[test]
fn both_lists_are_declared() {
    let declared: Vec<String> = InputDirectory::default()
        .endpoints()
        .into_iter()
        .map(|(path, _)| path)
        .collect();
    assert_eq!(declared, ["/api/v1/opcua/nodes", "/api/v1/opcua/failures"]);
}

/// A browse may lock the table for as long as it takes to update a million nodes.
#[tokio::test]
async fn whoever_asks_for_nodes_while_their_table_is_locked_holds_up_nobody_else() {
    let directory = InputDirectory::new();
    let input = listed("a", variables(3));
    input.failures.add(NodeFailureKind::Item, 0, 0, None);
    directory.add(input.clone());
    let (locked, is_locked) = mpsc::channel();
    let (tell, told) = mpsc::channel::<()>();
    let writer = std::thread::spawn(move || {
        let _table = input.table.write();
        locked.send(()).unwrap();
        told.recv_timeout(Duration::from_secs(20)).is_ok()
    });
    is_locked.recv().unwrap();
    // One thread runs all of these.
    let (nodes, failures, ()) = tokio::join!(
        nodes(State(directory.clone()), Query(PageQuery::default())),
        failures(State(directory.clone()), Query(PageQuery::default())),
        async {
            tell.send(()).unwrap();
        }
    );
    assert!(writer.join().unwrap(), "the others waited for the table too");
    for (answer, total) in [(nodes, 3), (failures, 1)] {
        let body = axum::body::to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        let page: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(page["total"], total, "{page}");
    }
}

#[test]
fn a_page_costs_the_way_to_its_end_and_gives_the_table_to_others_on_it() {
    let input = listed("a", variables(50_000));
    let mut nodes = NodePageCursor {
        listed: &input,
        state: None,
        next: 0,
        skip: 5,
    };
    assert_eq!(nodes.piece(10, usize::MAX).unwrap().len(), 10);
    assert_eq!(nodes.next, 15, "no further than the page");
    // Even if nothing matches for long, the lock is released.
    let mut failed = NodePageCursor {
        listed: &input,
        state: Some("failed"),
        next: 0,
        skip: 0,
    };
    let mut pieces = 0;
    while let Some(found) = failed.piece(10, usize::MAX) {
        assert!(found.is_empty());
        pieces += 1;
    }
    assert_eq!(pieces, 5);
    let (total, items) = page(std::slice::from_ref(&input), None, 49_990, 100);
    assert_eq!((total, items.len()), (50_000, 10));
    assert_eq!(items[9].browse_name, "v49999");
}

#[test]
fn a_page_of_long_texts_ends_at_its_bytes_and_all_are_found_page_by_page() {
    const NODES: u32 = 100;
    const TEXT_BYTES: usize = 1 << 19;
    let mut table = variables(NODES);
    for node in 0..NODES {
        table.set_attributes(node, None, None, Some(&"d".repeat(TEXT_BYTES)), usize::MAX);
    }
    let inputs = [listed("a", table)];
    let (mut seen, mut pages) = (0, 0);
    while seen < NODES as usize {
        let (total, items) = page(&inputs, None, seen, LIMIT_MAX);
        let bytes: usize = items.iter().map(|item| item.description.len()).sum();
        assert!(bytes <= PAGE_BYTES_MAX + TEXT_BYTES, "{bytes} bytes");
        assert_eq!(
            (total, items[0].browse_name.as_str()),
            (NODES as usize, &*format!("v{seen}"))
        );
        seen += items.len();
        pages += 1;
    }
    assert_eq!(pages, 4);
}

#[test]
fn failures_with_long_texts_end_a_page_too() {
    let input = listed("a", variables(100));
    for node in 0..100 {
        input
            .failures
            .add(NodeFailureKind::Item, node, 0, Some("t".repeat(1 << 19)));
    }
    let (total, items) = failure_page(std::slice::from_ref(&input), 0, LIMIT_MAX);
    assert_eq!((total, items.len()), (100, 32));
}

const STATES: [ItemState; 6] = [
    ItemState::Pending,
    ItemState::Monitored,
    ItemState::Polled,
    ItemState::Failed(FailureReason::Other),
    ItemState::Failed(FailureReason::NodeIdUnknown),
    ItemState::NotWanted,
];

proptest! {
    /// Whatever happens to nodes, including state changes of a removed one: the counts equal those of a walk.
    #[test]
    fn totals_are_as_many_as_a_walk_finds(steps in prop::collection::vec((0..4u8, 0..12u32, 0..6usize), 0..60)) {
        let input = listed("a", NodeTable::default());
        for (what, id, state) in steps {
            let mut table = input.table.write();
            match what {
                0 | 1 => {
                    let class = if what == 0 { NodeKind::Variable } else { NodeKind::Object };
                    add(&mut table, id, "n", class);
                }
                2 => table.set_state(id, STATES[state]),
                // Another browse, which finds every node but one.
                _ => {
                    let mut newer = NodeTable::default();
                    for other in (0..12).filter(|other| *other != id && table.find(&NodeId::new(1, *other)).is_some()) {
                        let class = if other as usize % 6 == state { NodeKind::Object } else { NodeKind::Variable };
                        add(&mut newer, other, "n", class);
                    }
                    table.merge(&newer, &Default::default(), usize::MAX);
                }
            }
        }
        let inputs = [input];
        for state in [None, Some("pending"), Some("monitored"), Some("polled"), Some("failed"), Some("not_wanted"), Some("other")] {
            let (total, items) = page(&inputs, state, 0, usize::MAX);
            prop_assert_eq!(total, items.len(), "{:?}", state);
        }
    }
}
