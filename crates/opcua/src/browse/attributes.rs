//! The attributes of variables that end up in metadata and choose the filter: data type, access level, description.

use opcua::types::{AttributeId, NodeId, ReadValueId};
use thalweg_record::{Structured, Value};

use crate::node_id::NodeSpec;
use crate::node_table::{NodeIndex, NodeTable};
use crate::session::read_id;
use crate::value::{Content, DataValue, status};

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

/// Takes over what was read of each node; what could not be read stays empty.
pub(super) fn apply(table: &mut NodeTable, nodes: &[NodeIndex], values: &[DataValue]) {
    for (node, values) in nodes.iter().zip(values.chunks(PER_NODE)) {
        let value = |i: usize| {
            let value = values.get(i).filter(|value| !status::is_bad(value.stamps.status));
            value.and_then(|value| match &value.content {
                Content::Value(value) => Some(value),
                _ => None,
            })
        };
        let data_type = match value(0) {
            Some(Value::NodeId(text)) => NodeSpec::parse(text).ok().and_then(|spec| spec.resolve(&[]).ok()),
            _ => None,
        };
        let access_level = match value(1) {
            Some(Value::U8(level)) => *level,
            _ => 0,
        };
        let description = match value(2) {
            Some(Value::Structured(structured)) => match &**structured {
                Structured::LocalizedText { text: Some(text), .. } => text.as_str(),
                _ => "",
            },
            _ => "",
        };
        table.set_attributes(*node, data_type.as_ref(), access_level, description);
    }
}
