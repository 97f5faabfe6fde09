use thalweg_record::MetaMap;

use super::*;
use crate::node_table::{DiscoveredNode, NO_NODE, NodeKind};

fn table() -> NodeTable {
    let mut table = NodeTable::default();
    let mut parent = NO_NODE;
    for (id, name) in [("root", "My Plant"), ("line", "Line.1"), ("speed", "Speed (rpm)")] {
        let class = if id == "speed" {
            NodeKind::Variable
        } else {
            NodeKind::Object
        };
        parent = table
            .add(&DiscoveredNode {
                id: &NodeId::new(2, id),
                name,
                class,
                parent,
            })
            .unwrap();
    }
    table.set_attributes(
        2,
        Some(&NodeId::new(0, 10u32)),
        Some(3),
        Some("Speed of the drive"),
        usize::MAX,
    );
    table
        .add(&DiscoveredNode {
            id: &NodeId::new(2, 7u32),
            name: "Alone",
            class: NodeKind::Variable,
            parent: NO_NODE,
        })
        .unwrap();
    table
}

fn text(map: &MetaMap) -> String {
    map.iter().map(|(key, value)| format!("{key}={value}\n")).collect()
}

#[test]
fn a_tags_metadata_has_every_key_in_its_format() {
    let map = of_node(&table(), 2, TagType::Number, TagGroupMode::Clean);
    let expected = "\
opcua_attr_accesslevel=AccessLevelType(3)
opcua_attr_browsename=Speed (rpm)
opcua_attr_datatype=float32
opcua_attr_description=Speed of the drive
opcua_attr_nodeclass=NodeClassVariable
opcua_attr_nodeid=ns=2;s=speed
opcua_tag_group=My_Plant.Line_1
opcua_tag_name=Speed__rpm_
opcua_tag_path=My_Plant.Line_1
opcua_tag_type=number
";
    assert_eq!(text(&map), expected);
    assert!(map.series().is_some());
}

#[test]
fn a_tag_without_a_folder_is_its_own_group_and_has_no_path() {
    let expected = "\
opcua_attr_accesslevel=AccessLevelTypeNone
opcua_attr_browsename=Alone
opcua_attr_nodeclass=NodeClassVariable
opcua_attr_nodeid=ns=2;i=7
opcua_tag_group=Alone
opcua_tag_name=Alone
opcua_tag_type=bool
";
    assert_eq!(
        text(&of_node(&table(), 3, TagType::Bool, TagGroupMode::Clean)),
        expected
    );
}

#[test]
fn a_tag_named_by_its_id_has_the_whole_path_as_its_group() {
    let mut table = table();
    table
        .add(&DiscoveredNode {
            id: &NodeId::new(2, 100u32),
            name: "Speed (rpm)",
            class: NodeKind::Variable,
            parent: 1,
        })
        .unwrap();
    table.make_paths_unique();
    let map = of_node(&table, 4, TagType::Number, TagGroupMode::Clean);
    assert_eq!(map.get("opcua_tag_group").unwrap(), "My_Plant.Line_1.ns_2_i_100");
    assert_eq!(map.get("opcua_tag_path").unwrap(), "My_Plant.Line_1.ns_2_i_100");
    assert_eq!(map.get("opcua_tag_name").unwrap(), "Speed__rpm_");
}

#[test]
fn the_reference_mode_cuts_the_first_occurrence_of_the_raw_name() {
    for (path, raw, name, group) in [
        ("Plant.Line.Speed", "Speed", "Speed", "Plant.Line"),
        // A name that occurs earlier in the path is removed there.
        ("Speed.Line.Speed", "Speed", "Speed", ".Line.Speed"),
        // A name that was sanitized is not found.
        ("Plant.Speed__rpm_", "Speed (rpm)", "Speed__rpm_", "Plant.Speed__rpm_"),
        ("Alone", "Alone", "Alone", "Alone"),
    ] {
        assert_eq!(reference_group(path, raw, name), group);
    }
}

#[test]
fn access_levels_are_spelled() {
    for (level, text) in [
        (0, "AccessLevelTypeNone"),
        (1, "AccessLevelTypeCurrentRead"),
        (2, "AccessLevelTypeCurrentWrite"),
        (4, "AccessLevelTypeHistoryRead"),
        (64, "AccessLevelTypeTimestampWrite"),
        (3, "AccessLevelType(3)"),
        (255, "AccessLevelType(255)"),
    ] {
        assert_eq!(access_level_text(level), text);
    }
}

#[test]
fn the_heartbeat_is_a_tag_of_its_own() {
    let map = of_heartbeat(&crate::heartbeat::node());
    assert_eq!(map.get("opcua_tag_group").unwrap(), "heartbeat");
    assert_eq!(map.get("opcua_tag_name").unwrap(), "CurrentTime");
    assert_eq!(map.get("opcua_attr_nodeid").unwrap(), "i=2258");
    assert_eq!(map.get("opcua_attr_datatype").unwrap(), "time.Time");
}

#[test]
fn a_data_type_announces_the_kind_of_its_values() {
    let of = |id: u32| TagType::of_data_type(Some(&NodeId::new(0, id)));
    assert_eq!(of(1), TagType::Bool);
    // SByte to Double, Number, Enumeration, Counter, Duration.
    for id in (2..=11).chain([26, 29, 289, 290]) {
        assert_eq!(of(id), TagType::Number, "{id}");
    }
    for id in [12, 13, 15, 19, 22, 24, 294, 9999] {
        assert_eq!(of(id), TagType::String, "{id}");
    }
    assert_eq!(TagType::of_data_type(Some(&NodeId::new(2, 10u32))), TagType::String);
    assert_eq!(TagType::of_data_type(None), TagType::String);
}
