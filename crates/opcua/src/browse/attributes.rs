//! Reads the attributes of variables for metadata and the choice of the filter: data type, access level, description.

use opcua::types::{AttributeId, NodeId, ReadValueId};
use thalweg_record::{Structured, Value};

use crate::node_id::NodeSpec;
use crate::node_table::{NodeIndex, NodeTable};
use crate::session::read_id;
use crate::value::{DataValue, ValueContent, status};

/// Attributes per variable.
pub(super) const PER_NODE: usize = 3;

pub(super) fn request(id: &NodeId) -> [ReadValueId; PER_NODE] {
    [
        AttributeId::DataType,
        AttributeId::AccessLevel,
        AttributeId::Description,
    ]
    .map(|a| read_id(id.clone(), a))
}

/// Stores what was read of each node, as [`NodeTable::set_attributes`] does.
pub(super) fn apply(table: &mut NodeTable, nodes: &[NodeIndex], values: &[DataValue], bytes_max: usize) {
    for (node, values) in nodes.iter().zip(values.chunks(PER_NODE)) {
        let value = |i: usize| {
            let value = values.get(i).filter(|value| !status::is_bad(value.stamps.status));
            value.and_then(|value| match &value.content {
                ValueContent::Value(value) => Some(value),
                _ => None,
            })
        };
        let data_type = match value(0) {
            Some(Value::NodeId(text)) => NodeSpec::parse(text).ok().and_then(|spec| spec.indexed().cloned()),
            _ => None,
        };
        let access_level = match value(1) {
            Some(Value::U8(level)) => Some(*level),
            _ => None,
        };
        let description = description(values.get(2));
        table.set_attributes(*node, data_type.as_ref(), access_level, description, bytes_max);
    }
}

/// Many nodes have no description, which servers express by a null, by an empty text, or by a status.
fn description(value: Option<&DataValue>) -> Option<&str> {
    let value = value?;
    match &value.content {
        _ if status::is_bad(value.stamps.status) => {
            let has_none = value.stamps.status == opcua::types::StatusCode::BadAttributeIdInvalid.bits();
            has_none.then_some("")
        }
        ValueContent::Value(Value::Structured(structured)) => match &**structured {
            Structured::LocalizedText { text, .. } => Some(text.as_ref().map_or("", |text| text.as_str())),
            _ => None,
        },
        ValueContent::Nothing => Some(""),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_table::{DiscoveredNode, NO_NODE, NodeKind};
    use thalweg_record::ValueQuality;

    fn read(content: ValueContent, status: u32) -> DataValue {
        DataValue {
            content,
            stamps: ValueQuality {
                status,
                ..ValueQuality::NONE
            },
            wrapped: false,
        }
    }

    #[test]
    fn a_read_that_fails_for_a_moment_forgets_nothing() {
        let mut table = NodeTable::default();
        let id = NodeId::new(1, 1u32);
        let found = DiscoveredNode {
            id: &id,
            name: "v",
            class: NodeKind::Variable,
            parent: NO_NODE,
        };
        let node = table.add(&found).unwrap();
        let text = Structured::LocalizedText {
            locale: None,
            text: Some("described".into()),
        };
        let good = [
            read(ValueContent::Value(Value::NodeId("i=11".into())), 0),
            read(ValueContent::Value(Value::U8(3)), 0),
            read(ValueContent::Value(Value::Structured(std::sync::Arc::new(text))), 0),
        ];
        apply(&mut table, &[node], &good, usize::MAX);
        let known = |table: &NodeTable| (table.data_type(node).cloned(), table.access_level(node));
        let before = known(&table);
        assert_eq!(before, (Some(NodeId::new(0, 11u32)), 3));
        let timeout = opcua::types::StatusCode::BadTimeout.bits();
        let failed = [0; PER_NODE].map(|_| read(ValueContent::Nothing, timeout));
        apply(&mut table, &[node], &failed, usize::MAX);
        assert_eq!((known(&table), table.description(node)), (before.clone(), "described"));
        // A node that lost its description has an empty one.
        let without = opcua::types::StatusCode::BadAttributeIdInvalid.bits();
        for value in [read(ValueContent::Nothing, 0), read(ValueContent::Nothing, without)] {
            apply(&mut table, &[node], &good, usize::MAX);
            let values = [good[0].clone(), good[1].clone(), value];
            apply(&mut table, &[node], &values, usize::MAX);
            assert_eq!((known(&table), table.description(node)), (before.clone(), ""));
        }
    }
}
