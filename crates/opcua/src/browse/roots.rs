//! Reads the configured nodes: only their class and name must be read, because no reference leads to them.

use opcua::types::{AttributeId, NodeId, StatusCode, TimestampsToReturn};
use thalweg_record::{Structured, Value};

use crate::channel::CallError;
use crate::node_table::NodeKind;
use crate::session::{Session, read_id};
use crate::value::{DataValue, StructureRegistry, ValueContent, status};

/// A usable root, or why it is unusable.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Root {
    Usable { class: NodeKind, name: String },
    Unusable { status: u32 },
}

const VARIABLE: i64 = 2;

/// Reads all roots, in calls of `chunk` attributes; a call that is refused as too large or answered incompletely is
/// halved.
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
            // The other roots are not affected.
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
