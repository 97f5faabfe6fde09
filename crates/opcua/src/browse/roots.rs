//! The configured nodes: the only ones of which class and name must be read, since no reference leads to them.

use opcua::types::{AttributeId, NodeId, StatusCode, TimestampsToReturn};
use thalweg_record::{Structured, Value};

use crate::channel::CallError;
use crate::node_table::NodeKind;
use crate::session::{Session, read_id};
use crate::value::{DataValue, StructureRegistry, ValueContent, status};

/// What a root is, or why it is of no use.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Root {
    Usable { class: NodeKind, name: String },
    Unusable { status: u32 },
}

const VARIABLE: i64 = 2;

/// One read for all, in parts of `chunk` attributes; a part that is refused as too large, or not answered in full, is halved.
pub(super) async fn read(session: &Session, ids: &[NodeId], chunk: usize) -> Result<Vec<Root>, CallError> {
    let types = StructureRegistry::default();
    let mut roots = Vec::with_capacity(ids.len());
    let mut size = (chunk / 2).max(1);
    while let Some(rest) = ids.get(roots.len()..).filter(|rest| !rest.is_empty()) {
        let some = rest.get(..size.min(rest.len())).unwrap_or(rest);
        let attributes = some.iter().flat_map(|id| {
            [AttributeId::NodeClass, AttributeId::BrowseName].map(|attribute| read_id(id.clone(), attribute))
        });
        match session
            .read(attributes.collect(), TimestampsToReturn::Neither, 0.0, &types)
            .await
        {
            Ok(values) => roots.extend(values.chunks(2).map(root)),
            Err(error) if error.is_too_large() && size > 1 => size = (size / 2).max(1),
            // The others are not to blame.
            Err(CallError::WrongCount { .. }) => roots.push(Root::Unusable {
                status: StatusCode::BadUnknownResponse.bits(),
            }),
            Err(error) => return Err(error),
        }
    }
    Ok(roots)
}

fn root(values: &[DataValue]) -> Root {
    let [class, name] = values else {
        return Root::Unusable { status: 0 };
    };
    let ValueContent::Value(class_value) = &class.content else {
        return Root::Unusable {
            status: class.stamps.status,
        };
    };
    if status::is_bad(class.stamps.status) {
        return Root::Unusable {
            status: class.stamps.status,
        };
    }
    let class = if class_value.as_i64() == Some(VARIABLE) {
        NodeKind::Variable
    } else {
        NodeKind::Object
    };
    let name = match &name.content {
        ValueContent::Value(Value::Structured(structured)) => match &**structured {
            Structured::QualifiedName { name, .. } => name.to_string(),
            _ => String::new(),
        },
        _ => String::new(),
    };
    Root::Usable { class, name }
}
