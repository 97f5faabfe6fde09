use opcua::types::{ByteString, Guid, Identifier, NodeId};
use proptest::prelude::*;

use super::*;
use crate::tag_path;

fn add(table: &mut NodeTable, id: &NodeId, name: &str, class: Class, parent: NodeIndex) -> NodeIndex {
    table
        .add(&Found {
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
        // What the bytes above look like as text is another node.
        NodeId::new(3, "AQID"),
    ];
    for (i, id) in ids.iter().enumerate() {
        assert_eq!(add(&mut table, id, "n", Class::Variable, NO_NODE), i as NodeIndex);
    }
    for (i, id) in ids.iter().enumerate() {
        assert_eq!(table.find(id), Some(i as NodeIndex));
        assert_eq!(&table.node_id(i as NodeIndex), id);
        assert_eq!(
            table.add(&Found {
                id,
                name: "again",
                class: Class::Object,
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
    let root = add(&mut table, &text_id("r"), "Line 1", Class::Object, NO_NODE);
    let a = add(&mut table, &text_id("a"), "Temp", Class::Variable, root);
    let b = add(&mut table, &NodeId::new(2, 100u32), "Temp", Class::Variable, root);
    let c = add(&mut table, &text_id("c"), "Temp.", Class::Variable, root);
    let child = add(&mut table, &text_id("d"), "Unit", Class::Variable, a);
    let object = add(&mut table, &text_id("o"), "Temp", Class::Object, root);
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
        add(&mut table, &NodeId::new(1, i), "v", Class::Variable, NO_NODE);
    }
    add(&mut table, &NodeId::new(1, 99u32), "o", Class::Object, NO_NODE);
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
    let root = add(&mut table, &text_id("r"), "Root", Class::Object, NO_NODE);
    let stays = add(&mut table, &text_id("stays"), "A", Class::Variable, root);
    let goes = add(&mut table, &text_id("goes"), "B", Class::Variable, root);
    table.set_state(stays, ItemState::Monitored);
    table.set_state(goes, ItemState::Monitored);

    let mut newer = NodeTable::default();
    let new_root = add(&mut newer, &text_id("r"), "Plant", Class::Object, NO_NODE);
    let folder = add(&mut newer, &text_id("folder"), "Folder", Class::Object, new_root);
    let moved = add(&mut newer, &text_id("stays"), "A", Class::Variable, folder);
    add(&mut newer, &text_id("new"), "C", Class::Variable, folder);
    newer.set_attributes(moved, Some(&NodeId::new(0, 11u32)), Some(3), Some("described"));

    let differences = table.merge(&newer);
    let new = table.find(&text_id("new")).unwrap();
    assert_eq!(
        differences,
        merge::Differences {
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
    // And back again: what was removed is added anew.
    let mut back = NodeTable::default();
    let root = add(&mut back, &text_id("r"), "Plant", Class::Object, NO_NODE);
    add(&mut back, &text_id("goes"), "B", Class::Variable, root);
    let differences = table.merge(&back);
    assert_eq!(
        differences,
        merge::Differences {
            added: vec![goes],
            removed: vec![stays, new]
        }
    );
}

#[test]
fn a_million_nodes_take_less_than_400_bytes_each() {
    let mut table = NodeTable::default();
    let root = add(&mut table, &text_id("Root"), "Root", Class::Object, NO_NODE);
    const NODES: usize = 1_000_000;
    for i in 0..NODES {
        let name = format!("Machine{:03}_Sensor{i:07}_Value", i % 1000);
        let id = NodeId::new(
            2,
            format!("Plant1.Line7.Machine{:03}.Sensor{i:07}.Value", i % 1000).as_str(),
        );
        let node = add(&mut table, &id, &name, Class::Variable, root);
        table.set_attributes(node, Some(&NodeId::new(0, 11u32)), Some(1), Some(""));
    }
    let each = table.heap_bytes() / NODES;
    assert!(each < 400, "{each} bytes per node");
    // Finding equal paths takes 16 bytes per node for the moment.
    assert_eq!(table.make_paths_unique(), 0);
}

#[test]
fn what_could_not_be_read_again_stays_known() {
    let mut table = NodeTable::default();
    let node = add(&mut table, &text_id("v"), "V", Class::Variable, NO_NODE);
    let known = (Some(NodeId::new(0, 11u32)), Some(3), Some("described"));
    let of = |table: &NodeTable| {
        let (data_type, access_level, description) = table.attributes(node);
        (data_type.cloned(), access_level, description.map(str::to_owned))
    };
    assert_eq!(of(&table), (None, None, None));
    table.set_attributes(node, known.0.as_ref(), known.1, known.2);
    let before = of(&table);
    // A newer browse that found the node but could read nothing of it.
    let mut newer = NodeTable::default();
    add(&mut newer, &text_id("v"), "V", Class::Variable, NO_NODE);
    table.merge(&newer);
    assert_eq!(of(&table), before);
    // One that could: even nothing is something to know.
    newer.set_attributes(0, None, Some(0), Some(""));
    table.merge(&newer);
    assert_eq!(of(&table), (known.0, Some(0), Some(String::new())));
}

#[test]
fn browsing_again_takes_no_more_memory() {
    let browsed = || {
        let mut table = NodeTable::default();
        let root = add(&mut table, &text_id("r"), "Root", Class::Object, NO_NODE);
        for i in 0..1000u32 {
            let node = add(
                &mut table,
                &NodeId::new(2, i),
                &format!("Tag{i}"),
                Class::Variable,
                root,
            );
            table.set_attributes(node, Some(&NodeId::new(0, 11u32)), Some(1), Some(&"long ".repeat(100)));
        }
        table
    };
    let mut table = browsed();
    table.merge(&browsed());
    let before = table.heap_bytes();
    for _ in 0..20 {
        table.merge(&browsed());
    }
    assert_eq!(table.heap_bytes(), before);
}

proptest! {
    /// However names clash: the paths of all variables are different, and only those that clash carry their NodeID.
    #[test]
    fn unique_paths_are_unique(names in prop::collection::vec("[ab .]{0,2}", 1..40), parents in prop::collection::vec(any::<prop::sample::Index>(), 40)) {
        let mut table = NodeTable::default();
        for (i, name) in names.iter().enumerate() {
            let parent = if i == 0 { NO_NODE } else { parents[i].index(i) as NodeIndex };
            add(&mut table, &NodeId::new(1, i as u32), name, Class::Variable, parent);
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
