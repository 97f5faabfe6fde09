use opcua::types::{ByteString, Guid, Identifier, NodeId};
use proptest::prelude::*;

use super::*;
use crate::namespace_array::NamespaceArray;
use crate::tag_path;

fn add(table: &mut NodeTable, id: &NodeId, name: &str, class: NodeKind, parent: NodeIndex) -> NodeIndex {
    table
        .add(&DiscoveredNode {
            id,
            name,
            class,
            parent,
        })
        .unwrap()
}

fn text_id(text: &str) -> NodeId {
    NodeId::new(2, text)
}

#[test]
fn every_kind_of_identifier_is_found_and_comes_back() {
    let mut table = NodeTable::default();
    let ids = [
        NodeId::new(0, 85u32),
        NodeId::new(3, 85u32),
        NodeId::new(3, "85"),
        NodeId::new(3, ""),
        NodeId {
            namespace: 3,
            identifier: Identifier::Guid(Guid::from_bytes([7; 16])),
        },
        NodeId {
            namespace: 3,
            identifier: Identifier::ByteString(ByteString::from(vec![1, 2, 3])),
        },
        // The text form of the bytes above is another node.
        NodeId::new(3, "AQID"),
    ];
    for (i, id) in ids.iter().enumerate() {
        assert_eq!(add(&mut table, id, "n", NodeKind::Variable, NO_NODE), i as NodeIndex);
    }
    for (i, id) in ids.iter().enumerate() {
        assert_eq!(table.find(id), Some(i as NodeIndex));
        assert_eq!(&table.node_id(i as NodeIndex), id);
        assert_eq!(
            table.add(&DiscoveredNode {
                id,
                name: "again",
                class: NodeKind::Object,
                parent: 0
            }),
            None
        );
    }
    assert_eq!(table.find(&NodeId::new(4, 85u32)), None);
}

#[test]
fn paths_are_unique_and_every_member_of_a_clash_is_renamed() {
    let mut table = NodeTable::default();
    let root = add(&mut table, &text_id("r"), "Line 1", NodeKind::Object, NO_NODE);
    let a = add(&mut table, &text_id("a"), "Temp", NodeKind::Variable, root);
    let b = add(&mut table, &NodeId::new(2, 100u32), "Temp", NodeKind::Variable, root);
    let c = add(&mut table, &text_id("c"), "Temp.", NodeKind::Variable, root);
    let child = add(&mut table, &text_id("d"), "Unit", NodeKind::Variable, a);
    let object = add(&mut table, &text_id("o"), "Temp", NodeKind::Object, root);
    assert_eq!(table.make_paths_unique(), 2);
    assert_eq!(tag_path::unique(&table, a), "Line_1.ns_2_s_a");
    assert_eq!(tag_path::unique(&table, b), "Line_1.ns_2_i_100");
    assert_eq!(tag_path::unique(&table, c), "Line_1.Temp_");
    assert_eq!(tag_path::unique(&table, child), "Line_1.Temp.Unit");
    assert!(!table.is_named_by_id(object), "only variables are tags");
    assert_eq!(table.make_paths_unique(), 2, "asking again changes nothing");
}

#[test]
fn counts_follow_states_and_always_add_up() {
    let mut table = NodeTable::default();
    for i in 0..5u32 {
        add(&mut table, &NodeId::new(1, i), "v", NodeKind::Variable, NO_NODE);
    }
    add(&mut table, &NodeId::new(1, 99u32), "o", NodeKind::Object, NO_NODE);
    table.set_state(0, ItemState::Monitored);
    table.set_state(1, ItemState::Polled);
    table.set_state(2, ItemState::Failed(FailureReason::NodeIdUnknown));
    table.set_state(2, ItemState::Failed(FailureReason::Other));
    table.set_state(3, ItemState::NotWanted);
    let counts = table.counts();
    assert_eq!(
        (counts.wanted(), counts.pending, counts.monitored, counts.polled),
        (4, 1, 1, 1)
    );
    assert_eq!(counts.failed, [0, 0, 0, 0, 1]);
}

#[test]
fn a_newer_browse_is_taken_over_without_moving_anything() {
    let mut table = NodeTable::default();
    let root = add(&mut table, &text_id("r"), "Root", NodeKind::Object, NO_NODE);
    let stays = add(&mut table, &text_id("stays"), "A", NodeKind::Variable, root);
    let goes = add(&mut table, &text_id("goes"), "B", NodeKind::Variable, root);
    table.set_state(stays, ItemState::Monitored);
    table.set_state(goes, ItemState::Monitored);

    let mut newer = NodeTable::default();
    let new_root = add(&mut newer, &text_id("r"), "Plant", NodeKind::Object, NO_NODE);
    let folder = add(&mut newer, &text_id("folder"), "Folder", NodeKind::Object, new_root);
    let moved = add(&mut newer, &text_id("stays"), "A", NodeKind::Variable, folder);
    add(&mut newer, &text_id("new"), "C", NodeKind::Variable, folder);
    newer.set_attributes(
        moved,
        Some(&NodeId::new(0, 11u32)),
        Some(3),
        Some("described"),
        usize::MAX,
    );

    let differences = table.merge(&newer, &merge::MergeUncertainty::default(), usize::MAX);
    let new = table.find(&text_id("new")).unwrap();
    assert_eq!(
        differences,
        merge::NodeTableChanges {
            added: vec![new],
            removed: vec![goes]
        }
    );
    assert_eq!(tag_path::plain(&table, stays), "Plant.Folder.A");
    assert_eq!(tag_path::plain(&table, new), "Plant.Folder.C");
    assert_eq!((table.description(stays), table.access_level(stays)), ("described", 3));
    assert_eq!(
        (table.state(stays), table.state(goes)),
        (ItemState::Monitored, ItemState::NotWanted)
    );
    assert_eq!(table.variable_indexes().collect::<Vec<_>>(), [stays, new]);
    // And back again: a removed node is added as a new one.
    let mut back = NodeTable::default();
    let root = add(&mut back, &text_id("r"), "Plant", NodeKind::Object, NO_NODE);
    add(&mut back, &text_id("goes"), "B", NodeKind::Variable, root);
    let differences = table.merge(&back, &merge::MergeUncertainty::default(), usize::MAX);
    assert_eq!(
        differences,
        merge::NodeTableChanges {
            added: vec![goes],
            removed: vec![stays, new]
        }
    );
}

#[test]
fn what_is_below_a_folder_that_could_not_be_browsed_stays() {
    let mut table = NodeTable::default();
    let root = add(&mut table, &text_id("r"), "Root", NodeKind::Object, NO_NODE);
    let failing = add(&mut table, &text_id("f"), "Failing", NodeKind::Object, root);
    let below = add(&mut table, &text_id("b"), "Below", NodeKind::Object, failing);
    let deep = add(&mut table, &text_id("d"), "Deep", NodeKind::Variable, below);
    let working = add(&mut table, &text_id("w"), "Working", NodeKind::Object, root);
    let gone = add(&mut table, &text_id("g"), "Gone", NodeKind::Variable, working);
    let other = add(&mut table, &text_id("o"), "Other", NodeKind::Variable, NO_NODE);
    for tag in [deep, gone, other] {
        table.set_state(tag, ItemState::Monitored);
    }
    let mut newer = NodeTable::default();
    let new_root = add(&mut newer, &text_id("r"), "Root", NodeKind::Object, NO_NODE);
    // A root that could not be read: in the newer table it is a failed variable named by its NodeID.
    let unread = add(&mut newer, &text_id("o"), "ns=2;s=o", NodeKind::Variable, NO_NODE);
    newer.set_state(unread, ItemState::Failed(FailureReason::NodeIdUnknown));
    add(&mut newer, &text_id("w"), "Working", NodeKind::Object, new_root);
    let unbrowsed = add(&mut newer, &text_id("f"), "Failing", NodeKind::Object, new_root);
    let unclear = merge::MergeUncertainty {
        unbrowsed: [unread, unbrowsed].into(),
        ..Default::default()
    };
    let differences = table.merge(&newer, &unclear, usize::MAX);
    assert_eq!(differences.removed, [gone]);
    assert!(differences.added.is_empty());
    assert_eq!((table.name(other), table.state(other)), ("Other", ItemState::Monitored));
    assert_eq!(table.state(deep), ItemState::Monitored);
    assert_eq!(table.variables(), 2);
    // The next browse of the folder finds new nodes, including those that were removed before.
    assert_eq!(table.find(&text_id("g")), Some(gone));
    let again = add(&mut table, &text_id("g"), "Gone", NodeKind::Variable, failing);
    assert_ne!(again, gone);
    assert_eq!(table.find(&text_id("g")), Some(again));
    assert_eq!(
        (table.state(again), table.state(gone)),
        (ItemState::Pending, ItemState::NotWanted)
    );
    assert!(table.is_removed(gone) && !table.is_removed(again));
    assert_eq!(tag_path::plain(&table, again), "Root.Failing.Gone");
}

/// The breadth-first order of the newer browse may put other nodes first, so that it ends before the known ones.
#[test]
fn after_a_browse_that_was_cut_short_nothing_is_removed_and_what_it_found_is_taken_over() {
    let browsed = |names: &[&str]| {
        let mut table = NodeTable::default();
        let root = add(&mut table, &text_id("r"), "Root", NodeKind::Object, NO_NODE);
        for name in names {
            add(&mut table, &text_id(name), name, NodeKind::Variable, root);
        }
        table
    };
    let mut table = browsed(&["a", "b", "c"]);
    let known: Vec<NodeIndex> = table.variable_indexes().collect();
    for tag in &known {
        table.set_state(*tag, ItemState::Monitored);
    }
    let newer = browsed(&["new", "a"]);
    let cut_short = merge::MergeUncertainty {
        is_cut_short: true,
        ..Default::default()
    };
    let differences = table.merge(&newer, &cut_short, usize::MAX);
    let new = table.find(&text_id("new")).unwrap();
    assert_eq!((differences.added, differences.removed), (vec![new], vec![]));
    assert_eq!((table.variables(), table.counts().monitored), (4, 3));
    assert!(known.iter().all(|tag| table.state(*tag) == ItemState::Monitored));
    // A complete browse shows what is gone.
    let differences = table.merge(&newer, &Default::default(), usize::MAX);
    assert_eq!((differences.added, differences.removed), (vec![], known[1..].to_vec()));
}

#[test]
fn a_root_that_was_unknown_is_added_once_the_server_has_it() {
    let mut table = NodeTable::default();
    let (tag, folder) = (
        add(&mut table, &text_id("t"), "ns=2;s=t", NodeKind::Variable, NO_NODE),
        add(&mut table, &text_id("f"), "ns=2;s=f", NodeKind::Variable, NO_NODE),
    );
    let failed = ItemState::Failed(FailureReason::NodeIdUnknown);
    table.set_state(tag, failed);
    table.set_state(folder, failed);
    // One that was refused as a monitored item is not included: its retry is independent.
    let refused = add(&mut table, &text_id("x"), "X", NodeKind::Variable, NO_NODE);
    table.set_state(refused, failed);
    let mut newer = NodeTable::default();
    add(&mut newer, &text_id("t"), "Tag", NodeKind::Variable, NO_NODE);
    add(&mut newer, &text_id("f"), "Folder", NodeKind::Object, NO_NODE);
    add(&mut newer, &text_id("x"), "X", NodeKind::Variable, NO_NODE);
    let unclear = merge::MergeUncertainty {
        unknown_roots: [tag, folder].into(),
        ..Default::default()
    };
    let differences = table.merge(&newer, &unclear, usize::MAX);
    assert_eq!((differences.added, differences.removed), (vec![tag], vec![]));
    assert_eq!((table.name(tag), table.state(tag)), ("Tag", ItemState::Pending));
    assert_eq!(
        (table.state(folder), table.state(refused)),
        (ItemState::NotWanted, failed)
    );
    assert_eq!((table.counts().wanted(), table.variables()), (2, 2));
}

#[test]
fn node_ids_move_with_their_namespaces() {
    let mut table = NodeTable::default();
    assert!(!table.set_namespaces(&["ua", "server", "a", "b", "c"].into()));
    let ids = [
        NodeId::new(0, 85u32),
        NodeId::new(2, "x"),
        NodeId::new(3, "x"),
        NodeId::new(4, "x"),
        NodeId::new(9, "x"),
    ];
    for id in &ids {
        add(&mut table, id, "n", NodeKind::Variable, NO_NODE);
    }
    table.set_attributes(3, Some(&NodeId::new(3, "Type")), Some(1), Some(""), usize::MAX);
    assert!(
        !table.set_namespaces(&["ua", "server", "a", "b", "c", "d"].into()),
        "one more moves nothing"
    );
    assert!(
        !table.set_namespaces(&NamespaceArray::default()),
        "a server that cannot say has not said that it has none"
    );
    // a is gone, b and c swap places with it and each other.
    assert!(table.set_namespaces(&["ua", "server", "c", "b2", "b"].into()));
    let moved: Vec<NodeId> = (0..5).map(|index| table.node_id(index)).collect();
    let expected = [
        NodeId::new(0, 85u32),
        NodeId::new(u16::MAX - 2, "x"),
        NodeId::new(4, "x"),
        NodeId::new(2, "x"),
        NodeId::new(9, "x"),
    ];
    assert_eq!(moved, expected);
    for (index, id) in expected.iter().enumerate() {
        assert_eq!(table.find(id), Some(index as NodeIndex));
    }
    assert_eq!(table.find(&NodeId::new(3, "x")), None);
    assert_eq!(table.data_type(3), Some(&NodeId::new(4, "Type")));
}

#[test]
fn a_configured_node_without_a_namespace_is_known_by_its_text() {
    let mut table = NodeTable::default();
    let text = "nsu=urn:plant;s=Line1";
    let index = table.add_unresolved(text).unwrap();
    assert_eq!(table.add_unresolved(text), None);
    assert_eq!(
        (table.label(index).as_str(), table.find_unresolved(text)),
        (text, Some(index))
    );
    table.resolved(index);
    assert_eq!(
        (table.find_unresolved(text), table.counts().wanted(), table.variables()),
        (None, 0, 0)
    );
    assert!(table.add_unresolved(text).is_some());
}

#[test]
fn a_million_nodes_take_less_than_400_bytes_each() {
    let mut table = NodeTable::default();
    let root = add(&mut table, &text_id("Root"), "Root", NodeKind::Object, NO_NODE);
    const NODES: usize = 1_000_000;
    for i in 0..NODES {
        let name = format!("Machine{:03}_Sensor{i:07}_Value", i % 1000);
        let id = NodeId::new(
            2,
            format!("Plant1.Line7.Machine{:03}.Sensor{i:07}.Value", i % 1000).as_str(),
        );
        let node = add(&mut table, &id, &name, NodeKind::Variable, root);
        table.set_attributes(node, Some(&NodeId::new(0, 11u32)), Some(1), Some(""), usize::MAX);
    }
    let each = table.heap_bytes() / NODES;
    assert!(each < 400, "{each} bytes per node");
    // Finding equal paths temporarily takes 16 bytes per node.
    assert_eq!(table.make_paths_unique(), 0);
}

#[test]
fn what_could_not_be_read_again_stays_known() {
    let mut table = NodeTable::default();
    let node = add(&mut table, &text_id("v"), "V", NodeKind::Variable, NO_NODE);
    let known = (Some(NodeId::new(0, 11u32)), Some(3), Some("described"));
    let of = |table: &NodeTable| {
        let (data_type, access_level, description) = table.attributes(node);
        (data_type.cloned(), access_level, description.map(str::to_owned))
    };
    assert_eq!(of(&table), (None, None, None));
    table.set_attributes(node, known.0.as_ref(), known.1, known.2, usize::MAX);
    let before = of(&table);
    // A newer browse that found the node but could read none of its attributes.
    let mut newer = NodeTable::default();
    add(&mut newer, &text_id("v"), "V", NodeKind::Variable, NO_NODE);
    table.merge(&newer, &Default::default(), usize::MAX);
    assert_eq!(of(&table), before);
    // One that could read them: empty values count too.
    newer.set_attributes(0, None, Some(0), Some(""), usize::MAX);
    table.merge(&newer, &Default::default(), usize::MAX);
    assert_eq!(of(&table), (known.0, Some(0), Some(String::new())));
}

#[test]
fn browsing_again_takes_no_more_memory() {
    let browsed = || {
        let mut table = NodeTable::default();
        let root = add(&mut table, &text_id("r"), "Root", NodeKind::Object, NO_NODE);
        for i in 0..1000u32 {
            let node = add(
                &mut table,
                &NodeId::new(2, i),
                &format!("Tag{i}"),
                NodeKind::Variable,
                root,
            );
            table.set_attributes(
                node,
                Some(&NodeId::new(0, 11u32)),
                Some(1),
                Some(&"long ".repeat(100)),
                usize::MAX,
            );
        }
        table
    };
    let mut table = browsed();
    table.merge(&browsed(), &Default::default(), usize::MAX);
    let before = table.heap_bytes();
    for _ in 0..20 {
        table.merge(&browsed(), &Default::default(), usize::MAX);
    }
    assert_eq!(table.heap_bytes(), before);
}

#[test]
fn a_table_that_is_full_takes_no_new_nodes_and_no_texts_and_keeps_what_it_has() {
    let browsed = |from: u32| {
        let mut table = NodeTable::default();
        let root = add(&mut table, &text_id("r"), "Root", NodeKind::Object, NO_NODE);
        for i in from..from + 100 {
            let node = add(
                &mut table,
                &NodeId::new(2, i),
                &format!("Tag{i}"),
                NodeKind::Variable,
                root,
            );
            table.set_attributes(node, None, Some(1), Some(&"long ".repeat(100)), usize::MAX);
        }
        table
    };
    let mut table = browsed(0);
    let (nodes, full) = (table.len(), table.heap_bytes());
    // Half of the tags and all texts differ.
    let mut newer = browsed(50);
    for node in newer.variable_indexes().collect::<Vec<_>>() {
        newer.set_attributes(node, None, Some(3), Some(&"other ".repeat(100)), usize::MAX);
    }
    let differences = table.merge(&newer, &Default::default(), full);
    assert_eq!((differences.added.len(), differences.removed.len()), (0, 50));
    assert_eq!((table.len(), table.heap_bytes()), (nodes, full));
    let kept = table.find(&NodeId::new(2, 70u32)).unwrap();
    assert_eq!(table.attributes(kept).1, Some(3));
    assert_eq!(table.attributes(kept).2, Some(&*"long ".repeat(100)));
    assert_eq!(table.merge(&newer, &Default::default(), usize::MAX).added.len(), 50);
}

/// A server may give each variable its own data type, with an identifier of any length.
#[test]
fn data_types_without_an_end_fill_the_table_and_are_left_out_then() {
    const BYTES: usize = 8 << 20;
    const IDENTIFIER_BYTES: usize = 32 << 10;
    let type_of = |n: usize| NodeId::new(3, format!("{n:0>IDENTIFIER_BYTES$}").as_str());
    let mut table = NodeTable::default();
    for n in 0..1000 {
        let node = add(&mut table, &NodeId::new(2, n as u32), "v", NodeKind::Variable, NO_NODE);
        table.set_attributes(node, Some(&type_of(n)), Some(1), None, BYTES);
    }
    let bytes = table.heap_bytes();
    assert!((BYTES..BYTES + 4 * IDENTIFIER_BYTES).contains(&bytes), "{bytes} bytes");
    assert_eq!(table.data_type(7), Some(&type_of(7)));
    assert_eq!((table.data_type(999), table.access_level(999)), (None, 1));
    // A known type takes no more memory.
    table.set_attributes(999, Some(&type_of(7)), None, None, BYTES);
    assert_eq!(table.data_type(999), Some(&type_of(7)));
    // A node's type has changed to one for which there is no room: keeping the earlier one would be wrong.
    table.set_attributes(999, Some(&type_of(2000)), None, None, BYTES);
    assert_eq!((table.data_type(999), table.heap_bytes()), (None, bytes));
}

proptest! {
    /// However names clash: the paths of all variables are unique, and only clashing ones contain their NodeID.
    #[test]
    fn unique_paths_are_unique(names in prop::collection::vec("[ab .]{0,2}", 1..40), parents in prop::collection::vec(any::<prop::sample::Index>(), 40)) {
        let mut table = NodeTable::default();
        for (i, name) in names.iter().enumerate() {
            let parent = if i == 0 { NO_NODE } else { parents[i].index(i) as NodeIndex };
            add(&mut table, &NodeId::new(1, i as u32), name, NodeKind::Variable, parent);
        }
        table.make_paths_unique();
        let nodes: Vec<NodeIndex> = table.variable_indexes().collect();
        let plain: Vec<String> = nodes.iter().map(|node| tag_path::plain(&table, *node)).collect();
        let unique: std::collections::HashSet<String> = nodes.iter().map(|node| tag_path::unique(&table, *node)).collect();
        prop_assert_eq!(unique.len(), nodes.len());
        for (node, path) in nodes.iter().zip(&plain) {
            let clashes = plain.iter().filter(|other| *other == path).count() > 1;
            prop_assert_eq!(table.is_named_by_id(*node), clashes);
        }
    }
}
