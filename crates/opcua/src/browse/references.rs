//! Which of a server's references become nodes: forward, hierarchical, to this server, not excluded.

use opcua::types::{NodeClass, NodeId, ReferenceDescription, ReferenceTypeId};

use crate::config::BrowseConfig;
use crate::namespace_array::NamespaceArray;
use crate::node_table::{DiscoveredNode, NodeIndex, NodeKind, NodeTable};
use crate::tag_path;
use crate::text_arena::TEXT_BYTES_MAX;

/// The result of applying the references of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AppliedReferences {
    /// The number of new nodes.
    pub added: usize,
    /// Some were left out because the table was full.
    pub is_cut_short: bool,
}

/// Adds the targets of a node's references until `is_full`.
pub(super) fn apply(
    table: &mut NodeTable,
    parent: NodeIndex,
    references: &[ReferenceDescription],
    config: &BrowseConfig,
    namespaces: &NamespaceArray,
    is_full: impl Fn(&NodeTable) -> bool,
) -> AppliedReferences {
    let filtered = config.include.is_some() || config.exclude.is_some();
    let parent_path = if filtered {
        tag_path::plain(table, parent)
    } else {
        String::new()
    };
    let mut applied = AppliedReferences {
        added: 0,
        is_cut_short: false,
    };
    for reference in references {
        if is_full(table) {
            applied.is_cut_short = true;
            break;
        }
        let Some(id) = target(reference, namespaces) else {
            continue;
        };
        let Some(class) = class(reference, config) else {
            continue;
        };
        let name = reference.browse_name.name.as_ref();
        let Some(class) = filter(&parent_path, name, class, config) else {
            continue;
        };
        applied.added += usize::from(
            table
                .add(&DiscoveredNode {
                    id: &id,
                    name,
                    class,
                    parent,
                })
                .is_some(),
        );
    }
    applied
}

/// Returns the target in this server; `None` for nodes of other servers and unknown namespaces.
fn target(reference: &ReferenceDescription, namespaces: &NamespaceArray) -> Option<NodeId> {
    let expanded = &reference.node_id;
    if expanded.server_index != 0 || !reference.is_forward {
        return None;
    }
    let mut id = expanded.node_id.clone();
    if !expanded.namespace_uri.is_empty() {
        id.namespace = namespaces.index_of(expanded.namespace_uri.as_ref())?;
    }
    // The specification allows 4,096 characters; a truncated identifier would be another node.
    let fits = match &id.identifier {
        opcua::types::Identifier::String(text) => text.as_ref().len() <= TEXT_BYTES_MAX,
        opcua::types::Identifier::ByteString(bytes) => bytes.as_ref().len() <= TEXT_BYTES_MAX / 2,
        _ => true,
    };
    (fits && !id.is_null()).then_some(id)
}

fn class(reference: &ReferenceDescription, config: &BrowseConfig) -> Option<NodeKind> {
    if !config.properties && reference.reference_type_id == ReferenceTypeId::HasProperty {
        return None;
    }
    match reference.node_class {
        NodeClass::Object => Some(NodeKind::Object),
        NodeClass::Variable => Some(NodeKind::Variable),
        _ => None,
    }
}

/// Returns `None` if the path is excluded, with everything below it. A variable that is not included is walked like an
/// object.
pub(super) fn filter(parent_path: &str, name: &str, class: NodeKind, config: &BrowseConfig) -> Option<NodeKind> {
    if config.include.is_none() && config.exclude.is_none() {
        return Some(class);
    }
    let mut path = parent_path.to_owned();
    if !path.is_empty() {
        path.push('.');
    }
    tag_path::sanitize(name, &mut path);
    if config.exclude.as_ref().is_some_and(|exclude| exclude.is_match(&path)) {
        return None;
    }
    let included = config.include.as_ref().is_none_or(|include| include.is_match(&path));
    Some(if included { class } else { NodeKind::Object })
}

/// Requests all forward hierarchical references to objects and variables, with all fields.
pub(super) fn description(node_id: NodeId) -> opcua::types::BrowseDescription {
    const OBJECTS_AND_VARIABLES: u32 = 1 | 2;
    const ALL_FIELDS: u32 = 63;
    opcua::types::BrowseDescription {
        node_id,
        browse_direction: opcua::types::BrowseDirection::Forward,
        reference_type_id: ReferenceTypeId::HierarchicalReferences.into(),
        include_subtypes: true,
        node_class_mask: OBJECTS_AND_VARIABLES,
        result_mask: ALL_FIELDS,
    }
}
