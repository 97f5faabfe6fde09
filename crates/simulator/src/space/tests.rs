//! The tree as a client sees it, walked reference by reference.

use std::collections::HashSet;

use opcua::types::{AttributeId, NodeClass, StatusCode};
use proptest::prelude::*;

use super::*;
use crate::ValueType;

fn options() -> SimulatorOptions {
    SimulatorOptions {
        slow_nodes: 3,
        fast_nodes: 4,
        fast_type: ValueType::Double,
        depth: 3,
        wide: 5,
        bad_nodes: 2,
        types: true,
        ..SimulatorOptions::default()
    }
}

/// Follows forward references from the Objects folder, and returns each node once per path that leads to it.
fn walk(space: &PlcAddressSpace) -> Vec<Node> {
    let objects = references::StandardNode::Objects.id();
    let mut reached = Vec::new();
    let mut frontier: Vec<NodeId> = vec![objects, references::StandardNode::Structure.id()];
    while let Some(id) = frontier.pop() {
        let links = space.links(&id).unwrap();
        for position in 0..links.len() {
            let link = links.get(position).unwrap();
            if let (true, ReferenceTarget::Own(node)) = (link.forward, link.target) {
                reached.push(node);
                frontier.push(space.id(node));
            }
        }
        assert!(links.get(links.len()).is_none());
    }
    reached
}

#[test]
fn every_node_is_reached_once_and_its_identifier_leads_back() {
    let space = PlcAddressSpace::new(&options());
    let reached = walk(&space);
    let ids: HashSet<String> = reached.iter().map(|node| space.id(*node).to_string()).collect();
    assert_eq!(ids.len(), reached.len(), "a node is linked twice");
    for node in &reached {
        assert_eq!(space.find(&space.id(*node)), Some(*node));
    }
    let count = |wanted: fn(&Node) -> bool| reached.iter().filter(|node| wanted(node)).count();
    assert_eq!(count(|node| matches!(node, Node::Item(NodeRun::Slow, _))), 3);
    assert_eq!(count(|node| matches!(node, Node::Item(NodeRun::Fast, _))), 4);
    assert_eq!(count(|node| matches!(node, Node::Item(NodeRun::Wide, _))), 5);
    assert_eq!(count(|node| matches!(node, Node::Item(NodeRun::Bad, _))), 2);
    assert_eq!(count(|node| matches!(node, Node::Level(..))), 6);
}

#[test]
fn each_forward_link_has_its_inverse() {
    let space = PlcAddressSpace::new(&options());
    for parent in walk(&space) {
        let links = space.links(&space.id(parent)).unwrap();
        for position in 0..links.len() {
            let link = links.get(position).unwrap();
            let ReferenceTarget::Own(child) = link.target else {
                continue;
            };
            let back = space.links(&space.id(child)).unwrap();
            let inverse = ReferenceEntry {
                kind: link.kind,
                forward: !link.forward,
                target: ReferenceTarget::Own(parent),
            };
            assert!(
                (0..back.len()).any(|at| back.get(at) == Some(inverse)),
                "{parent:?} -> {child:?}"
            );
        }
    }
}

#[test]
fn the_documented_identifiers_exist() {
    let space = PlcAddressSpace::new(&options());
    for name in [
        "OpcPlc",
        "Slow",
        "Fast",
        "SlowUInt1",
        "SlowUInt3",
        "FastDouble4",
        "Wide",
        "WideUInt5",
        "Types",
        "TypesCounter",
    ] {
        assert!(space.find(&NodeId::new(3, name)).is_some(), "{name}");
    }
    for name in [
        "SlowUInt4",
        "FastUInt1",
        "SlowLevel1",
        "SlowLevel4",
        "SlowLevel02",
        "TypesNothing",
        "Opcplc",
        "",
    ] {
        assert!(space.find(&NodeId::new(3, name)).is_none(), "{name}");
    }
    assert!(space.find(&NodeId::new(2, "OpcPlc")).is_none());
    let plain = PlcAddressSpace::new(&SimulatorOptions::default());
    for name in ["Wide", "Bad", "Types", "TypesCounter", "TypesPointType"] {
        assert!(plain.find(&NodeId::new(3, name)).is_none(), "{name} without its option");
    }
}

#[test]
fn a_value_holds_the_documented_type_and_the_time_of_its_change() {
    let space = PlcAddressSpace::new(&options());
    let node = space.find(&NodeId::new(3, "FastDouble2")).unwrap();
    let (before, changes) = space.value(node).unwrap();
    assert_eq!(changes, 0);
    space.clock(Group::Fast).unwrap().set_changes(3);
    let (after, changes) = space.value(node).unwrap();
    assert_eq!(changes, 3);
    let (Some(Variant::Double(before_value)), Some(Variant::Double(after_value))) = (&before.value, &after.value)
    else {
        panic!("not doubles: {before:?} {after:?}");
    };
    assert_eq!(after_value - before_value, 3.0);
    let elapsed = after.source_timestamp.unwrap().ticks() - before.source_timestamp.unwrap().ticks();
    assert_eq!(elapsed, 3 * 10_000_000);
    assert_eq!(space.changed_value(Group::Fast, 1, 3), after.value.unwrap());
}

#[test]
fn the_types_folder_agrees_with_its_data_types() {
    let space = PlcAddressSpace::new(&options());
    for node in walk(&space).into_iter().filter(|node| matches!(node, Node::Typed(_))) {
        let (value, _) = space.value(node).unwrap();
        let name = space.browse_name(node);
        let Some(value) = value.value else {
            assert_eq!(name, "BadWithoutValue");
            continue;
        };
        let rank = space.attribute(node, AttributeId::ValueRank).unwrap();
        assert_eq!(matches!(rank, Variant::Int32(1..)), value.is_array(), "{name}");
        assert_eq!(matches!(value, Variant::Empty), name == "Null");
    }
}

#[test]
fn attributes_follow_the_node_class() {
    let space = PlcAddressSpace::new(&options());
    let read = |name: &str, attribute| space.attribute(space.find(&NodeId::new(3, name)).unwrap(), attribute);
    assert_eq!(
        read("OpcPlc", AttributeId::NodeClass),
        Ok(Variant::Int32(NodeClass::Object as i32))
    );
    assert_eq!(
        read("OpcPlc", AttributeId::DataType),
        Err(StatusCode::BadAttributeIdInvalid)
    );
    assert_eq!(
        read("FastDouble1", AttributeId::DataType),
        Ok(NodeId::new(0, 11u32).into())
    );
    assert_eq!(read("FastDouble1", AttributeId::AccessLevel), Ok(Variant::Byte(1)));
    assert_eq!(
        read("TypesWritableInt32", AttributeId::AccessLevel),
        Ok(Variant::Byte(3))
    );
    assert_eq!(
        read("FastDouble1", AttributeId::EventNotifier),
        Err(StatusCode::BadAttributeIdInvalid)
    );
    assert_eq!(
        read("TypesMatrix", AttributeId::ArrayDimensions),
        Ok(Variant::from(vec![2u32, 3]))
    );
}

proptest! {
    #[test]
    fn no_text_is_found_that_is_not_the_identifier_of_what_was_found(text in "(Slow|Fast|Wide|Types|Bad)?(UInt|Level|Double)?[0-9a-zA-Z]{0,4}") {
        let space = PlcAddressSpace::new(&options());
        if let Some(node) = space.find(&NodeId::new(3, text.as_str())) {
            prop_assert_eq!(space.id(node), NodeId::new(3, text.as_str()));
        }
    }
}
