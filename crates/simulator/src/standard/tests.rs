//! The whole table: every line is a node, and the nodes form the trees that clients and the server library rely on.

use std::collections::{HashMap, HashSet};

use opcua::types::{DataEncoding, NodeId, NumericRange, QualifiedName, ReferenceTypeId};
use opcua_nodes::{DefaultTypeTree, NodeType, TypeTree};

use super::live::reported_limit;
use super::table::{NodeRow, RowClass, RowReference, RowValue, rows};
use super::*;
use crate::SimulatorOptions;
use crate::space::{PlcAddressSpace, ReferenceTarget};

/// No standard node has a larger id.
const IDS: u32 = 40_000;
const HAS_TYPE_DEFINITION: u32 = ReferenceTypeId::HasTypeDefinition as u32;
const HAS_SUBTYPE: u32 = ReferenceTypeId::HasSubtype as u32;
const HAS_ENCODING: u32 = ReferenceTypeId::HasEncoding as u32;
const HAS_PROPERTY: u32 = ReferenceTypeId::HasProperty as u32;
const ROOT_FOLDER: u32 = 84;
/// The types without a supertype: BaseDataType, References, BaseObjectType, BaseVariableType.
const TYPE_ROOTS: [u32; 4] = [24, 31, 58, 62];

fn table() -> HashMap<u32, NodeRow> {
    rows().map(|row| (row.id, row)).collect()
}

/// The node at the other end of the only reference of this type and direction, if there is one.
fn only(row: &NodeRow, kind: u32, is_forward: bool) -> Option<u32> {
    let mut found = row
        .references()
        .filter(|reference| (reference.kind, reference.is_forward) == (kind, is_forward));
    let first = found.next().map(|reference| reference.other);
    assert_eq!(found.next(), None, "{row:?}");
    first
}

#[test]
fn ids_ascend_and_each_reference_leads_to_another_node() {
    let table = table();
    let mut last = 0;
    for row in rows() {
        assert!(row.id > last, "{} after {last}", row.id);
        last = row.id;
        let mut seen = HashSet::new();
        for reference in row.references() {
            assert_ne!(reference.other, row.id, "{row:?}");
            assert!(seen.insert((reference.kind, reference.other)), "{row:?}");
            assert!(table.contains_key(&reference.other), "{reference:?} of {row:?}");
            let kind = table.get(&reference.kind).map(|kind| kind.class);
            assert_eq!(kind, Some(RowClass::ReferenceType), "{reference:?} of {row:?}");
        }
    }
    assert!(last < IDS);
}

#[test]
fn every_type_descends_from_the_root_of_its_class() {
    let table = table();
    for row in rows() {
        let is_type = !matches!(row.class, RowClass::Object | RowClass::Variable | RowClass::Method);
        let parent = only(&row, HAS_SUBTYPE, false);
        assert_eq!(parent.is_some(), is_type && !TYPE_ROOTS.contains(&row.id), "{row:?}");
        let mut at = &row;
        for _ in 0..table.len() {
            let Some(parent) = only(at, HAS_SUBTYPE, false) else {
                break;
            };
            at = &table[&parent];
            assert_eq!(at.class, row.class, "{row:?}");
        }
        assert!(!is_type || TYPE_ROOTS.contains(&at.id), "{row:?}");
    }
    let known = (0..IDS).filter(|id| ReferenceTypeId::try_from(*id).is_ok());
    for id in known {
        assert_eq!(
            table.get(&id).map(|row| row.class),
            Some(RowClass::ReferenceType),
            "{id}"
        );
    }
}

#[test]
fn every_instance_has_a_type_and_every_node_a_parent() {
    let table = table();
    for row in rows() {
        let definition = only(&row, HAS_TYPE_DEFINITION, true).map(|id| table[&id].class);
        let expected = match row.class {
            RowClass::Object => Some(RowClass::ObjectType),
            RowClass::Variable => Some(RowClass::VariableType),
            _ => None,
        };
        assert_eq!(definition, expected, "{row:?}");
        let data_type = row.data.map(|id| table[&id].class);
        let has_value = matches!(row.class, RowClass::Variable | RowClass::VariableType);
        assert_eq!(data_type, has_value.then_some(RowClass::DataType), "{row:?}");
        // A modelling rule is found through the nodes that follow it.
        let is_rule = only(&row, HAS_TYPE_DEFINITION, true) == Some(77);
        let has_parent = row.references().any(|reference| !reference.is_forward);
        assert!(has_parent || is_rule || row.id == ROOT_FOLDER, "{row:?}");
    }
}

#[test]
fn enumerations_and_arguments_are_complete() {
    let table = table();
    let mut described = 0;
    for row in rows() {
        let elements = match (row.name.as_str(), &row.value) {
            ("EnumStrings", Some(RowValue::LocalizedTexts(texts))) => texts.len(),
            ("EnumValues", Some(RowValue::EnumValues(members))) => members.len(),
            ("InputArguments" | "OutputArguments", Some(RowValue::Arguments(arguments))) => {
                assert!(arguments.iter().all(|one| table[&one.data].class == RowClass::DataType));
                arguments.len()
            }
            ("EnumStrings" | "EnumValues", value) => {
                // Those of a type that a server defines itself, as a pattern.
                let of = table.get(&only(&row, HAS_PROPERTY, false).unwrap()).unwrap();
                assert!(value.is_none() && of.class == RowClass::VariableType, "{row:?}");
                continue;
            }
            _ => continue,
        };
        assert!(elements > 0, "{row:?}");
        assert_eq!(
            (row.rank, row.dims.as_deref()),
            (1, Some(&[elements as u32][..])),
            "{row:?}"
        );
        described += 1;
    }
    assert!(described > 75, "{described}");
}

#[test]
fn a_definition_names_its_encoding_and_existing_types() {
    let table = table();
    let (mut structures, mut enumerations) = (0, 0);
    for row in rows().filter(|row| row.class == RowClass::DataType) {
        if let Some(structure) = &row.structure {
            structures += 1;
            assert!(
                structure
                    .fields
                    .iter()
                    .all(|one| table[&one.data].class == RowClass::DataType)
            );
            // The abstract Enumeration has a definition, but nothing is encoded as it.
            if structure.encoding != 0 {
                let encoding = &table[&structure.encoding];
                assert_eq!(encoding.name, "Default Binary", "{row:?}");
                assert_eq!(only(encoding, HAS_ENCODING, false), Some(row.id), "{row:?}");
            }
        }
        if let Some(members) = &row.enumeration {
            enumerations += 1;
            assert!(!members.is_empty(), "{row:?}");
        }
    }
    assert!(structures > 150 && enumerations > 50, "{structures} {enumerations}");
}

#[test]
fn computed_variables_exist_and_have_no_other_value() {
    let table = table();
    let mut count = 0;
    for id in 0..IDS {
        if LiveVariable::of(&NodeId::new(0, id)).is_some() {
            count += 1;
            let row = table.get(&id).unwrap();
            assert!(row.class == RowClass::Variable && row.value.is_none(), "{row:?}");
        }
    }
    assert_eq!(count, 34);
    assert!(LiveVariable::of(&NodeId::new(1, 2_258u32)).is_none());
    assert!(LiveVariable::of(&NodeId::new(0, "CurrentTime")).is_none());
}

#[test]
fn a_limit_that_clients_cannot_read_is_reported_as_none() {
    assert_eq!(reported_limit(500), 500);
    assert_eq!(reported_limit(u32::MAX as usize), u32::MAX);
    assert_eq!(reported_limit(1 << 32), 0);
}

#[test]
fn the_nodes_that_the_plant_refers_to_are_as_it_describes_them() {
    let table: HashMap<NodeId, NodeRow> = rows().map(|row| (NodeId::new(0, row.id), row)).collect();
    let space = PlcAddressSpace::new(&SimulatorOptions {
        types: true,
        ..SimulatorOptions::default()
    });
    let mut frontier = vec![NodeId::new(0, 85u32), NodeId::new(0, 22u32)];
    let (mut seen, mut referred) = (HashSet::new(), 0);
    while let Some(id) = frontier.pop() {
        if !seen.insert(id.clone()) {
            continue;
        }
        let links = space.links(&id).unwrap();
        for position in 0..links.len() {
            match links.get(position).unwrap().target {
                ReferenceTarget::Own(node) => frontier.push(space.id(node)),
                ReferenceTarget::Core(core) => {
                    let row = &table[&core.id()];
                    assert_eq!((row.name.as_str(), row.class.node_class()), (core.name(), core.class()));
                    let definition = only(row, HAS_TYPE_DEFINITION, true).map(|id| NodeId::new(0, id));
                    assert_eq!(definition, core.definition(), "{row:?}");
                    referred += 1;
                }
            }
        }
    }
    assert!(referred > 100, "{referred}");
}

#[test]
fn the_address_space_has_every_line_and_the_type_tree_every_type() {
    let mut space = AddressSpace::new();
    fill(&mut space);
    let mut tree = DefaultTypeTree::new();
    space.load_into_type_tree(&mut tree);
    for row in rows() {
        let id = NodeId::new(0, row.id);
        let node = space.find(&id).unwrap();
        assert_eq!(node.node_class(), row.class.node_class());
        assert_eq!(node.as_node().browse_name().name.as_ref(), row.name);
        for reference in row.references() {
            let other = NodeId::new(0, reference.other);
            let (from, to) = match reference.is_forward {
                true => (&id, &other),
                false => (&other, &id),
            };
            assert!(
                space.has_reference(from, to, &NodeId::new(0, reference.kind)),
                "{row:?}"
            );
        }
        let is_type = !matches!(row.class, RowClass::Object | RowClass::Variable | RowClass::Method);
        assert!(!is_type || tree.get(&id) == Some(row.class.node_class()), "{row:?}");
    }
    let state = space.find(&NodeId::new(0, 7_612u32)).unwrap();
    let NodeType::Variable(strings) = state else {
        panic!("the EnumStrings of ServerState")
    };
    let read = strings.value(
        TimestampsToReturn::Both,
        &NumericRange::None,
        &DataEncoding::Binary,
        0.0,
    );
    let Some(Variant::Array(strings)) = read.value else {
        panic!("not an array")
    };
    assert_eq!(strings.values.len(), 8);
    let event = [QualifiedName::new(0, "Severity")];
    assert!(
        tree.find_type_prop_by_browse_path(&NodeId::new(0, 2_041u32), &event)
            .is_some()
    );
}

#[test]
fn references_are_a_letter_or_a_sign_with_a_type() {
    let reference = |kind, is_forward, other| {
        Some(RowReference {
            kind,
            is_forward,
            other,
        })
    };
    assert_eq!(RowReference::parse("t62"), reference(40, true, 62));
    assert_eq!(RowReference::parse("c2253"), reference(47, false, 2_253));
    assert_eq!(RowReference::parse("+3065:2052"), reference(3_065, true, 2_052));
    assert_eq!(RowReference::parse("-49:17"), reference(49, false, 17));
    for wrong in ["", "t", "x1", "1", "+46", "-46:", "+a:1", "t1x", "ä1"] {
        assert_eq!(RowReference::parse(wrong), None, "{wrong}");
    }
}
