use std::collections::{HashMap, HashSet, VecDeque};

use opcua::types::{ExpandedNodeId, NodeClass, NodeId, QualifiedName, ReferenceDescription, ReferenceTypeId};
use proptest::prelude::*;

use super::*;
use crate::browse::references;
use crate::config::BrowseConfig;
use crate::namespace_array::NamespaceArray;
use crate::node_table::{DiscoveredNode, NO_NODE, NodeKind, NodeTable};

fn reference(to: u32) -> ReferenceDescription {
    ReferenceDescription {
        reference_type_id: ReferenceTypeId::Organizes.into(),
        is_forward: true,
        node_id: ExpandedNodeId::new(NodeId::new(1, to)),
        browse_name: QualifiedName::new(1, format!("n{to}").as_str()),
        display_name: Default::default(),
        node_class: if to.is_multiple_of(2) {
            NodeClass::Variable
        } else {
            NodeClass::Object
        },
        type_definition: Default::default(),
    }
}

fn config(depth_max: u16) -> BrowseConfig {
    BrowseConfig {
        depth_max,
        nodes_max: 0,
        include: None,
        exclude: None,
        properties: true,
    }
}

fn with_root() -> NodeTable {
    let mut table = NodeTable::default();
    let root = DiscoveredNode {
        id: &NodeId::new(1, 0u32),
        name: "n0",
        class: NodeKind::Object,
        parent: NO_NODE,
    };
    table.add(&root).unwrap();
    table
}

fn describe(table: &NodeTable) -> Vec<(NodeId, NodeIndex)> {
    (0..table.len() as NodeIndex)
        .map(|node| (table.node_id(node), table.parent(node)))
        .collect()
}

/// The reference: one node after the other, with all references at once. Every other timing must give the same result.
fn in_order(graph: &HashMap<u32, Vec<u32>>, depth_max: u16) -> Vec<(NodeId, NodeIndex)> {
    let mut table = with_root();
    let mut node = 0;
    while (node as usize) < table.len() {
        if table.depth(node) < depth_max {
            let references: Vec<_> = children(graph, &table, node).into_iter().map(reference).collect();
            references::apply(
                &mut table,
                node,
                &references,
                &config(depth_max),
                &NamespaceArray::default(),
                |_| false,
            );
        }
        node += 1;
    }
    describe(&table)
}

fn children(graph: &HashMap<u32, Vec<u32>>, table: &NodeTable, node: NodeIndex) -> Vec<u32> {
    let opcua::types::Identifier::Numeric(id) = table.node_id(node).identifier else {
        return Vec::new();
    };
    graph.get(&id).cloned().unwrap_or_default()
}

/// Delivers responses in the order of `choices`, each in pieces of `piece` references. Also returns the maximum of
/// waiting references.
fn in_any_order(
    graph: &HashMap<u32, Vec<u32>>,
    depth_max: u16,
    chunk: usize,
    piece: usize,
    waiting_max: usize,
    choices: &[u8],
) -> (Vec<(NodeId, NodeIndex)>, usize) {
    let mut table = with_root();
    let mut walk = Walk {
        waiting_max,
        ..Walk::default()
    };
    let mut open: VecDeque<(Ticket, Vec<u32>)> = VecDeque::new();
    let mut choices = choices.iter().cycle();
    let mut most = 0;
    loop {
        while let Some((parent, found)) = walk.take_turn() {
            references::apply(
                &mut table,
                parent,
                &found,
                &config(depth_max),
                &NamespaceArray::default(),
                |_| false,
            );
        }
        most = most.max(walk.waiting);
        for (ticket, node) in walk.hand_out(table.len(), chunk, |node| table.depth(node) < depth_max) {
            open.push_back((ticket, children(graph, &table, node)));
        }
        if open.is_empty() {
            if walk.is_idle() && walk.frontier(table.len()) == 0 {
                return (describe(&table), most);
            }
            continue;
        }
        let turn = usize::from(*choices.next().unwrap()) % open.len();
        open.rotate_left(turn);
        let mut allowed = walk.take_allowed(&mut open, 1, |(ticket, _)| *ticket);
        let (ticket, mut rest) = allowed.pop().expect("one can always go on");
        let some: Vec<_> = rest.drain(..piece.min(rest.len())).map(reference).collect();
        let finished = rest.is_empty();
        walk.deliver(ticket, some, finished);
        if !finished {
            open.push_back((ticket, rest));
        }
    }
}

proptest! {
    /// Cycles, several parents, wide and deep graphs: each node appears once, by its first path in breadth-first order,
    /// whatever the order and size of the responses.
    #[test]
    fn the_table_does_not_depend_on_timing(
        edges in prop::collection::vec((0u32..30, 0u32..30), 0..120),
        depth_max in 0u16..8,
        chunk in 1usize..5,
        piece in 1usize..4,
        waiting_max in 1usize..10,
        choices in prop::collection::vec(any::<u8>(), 1..50),
    ) {
        let mut graph: HashMap<u32, Vec<u32>> = HashMap::new();
        for (from, to) in edges {
            graph.entry(from).or_default().push(to);
        }
        let expected = in_order(&graph, depth_max);
        let (found, waited) = in_any_order(&graph, depth_max, chunk, piece, waiting_max, &choices);
        prop_assert_eq!(&found, &expected);
        let ids: HashSet<String> = found.iter().map(|(id, _)| id.to_string()).collect();
        prop_assert_eq!(ids.len(), found.len());
        prop_assert!(waited < waiting_max + piece, "{} waited", waited);
    }
}

#[test]
fn what_waits_for_its_turn_holds_back_further_nodes() {
    let mut walk = Walk::default();
    let handed = walk.hand_out(3, 2, |_| true);
    let (first, second) = (handed[0].0, handed[1].0);
    walk.deliver(second, (0..WAITING_MAX as u32).map(reference).collect(), true);
    assert!(walk.hand_out(3, 1, |_| true).is_empty());
    assert!(walk.take_turn().is_none());
    walk.deliver(first, Vec::new(), true);
    assert_eq!(
        walk.take_turn().map(|(node, found)| (node, found.len())),
        Some((1, WAITING_MAX))
    );
    assert_eq!(walk.hand_out(3, 1, |_| true).len(), 1);
}
