//! Browse and BrowseNext. A continuation point is the position of the next reference, so a folder of any width is
//! served in pages without building a list. Whether a reference type is selected is decided once per request, not per
//! child.

use opcua::types::{
    BrowseDescriptionResultMask, ExpandedNodeId, LocalizedText, NodeClass, NodeId, QualifiedName, ReferenceDescription,
    StatusCode,
};
use opcua_nodes::TypeTree;
use opcua_server::node_manager::{BrowseNode, NodeMetadata};

use crate::space::{Node, PlcAddressSpace, ReferenceEntry, ReferenceKind, ReferenceTarget};

/// The position at which BrowseNext continues.
struct BrowseContinuation(usize);

/// The references that the request selects.
struct ReferenceSelection {
    kinds: [bool; ReferenceKind::ALL.len()],
    forward: bool,
    inverse: bool,
    fields: BrowseDescriptionResultMask,
}

pub(super) fn browse(space: &PlcAddressSpace, request: &mut BrowseNode, tree: &dyn TypeTree) {
    let Some(links) = space.links(request.node_id()) else {
        return;
    };
    if space.find(request.node_id()).is_some_and(|node| space.is_hidden(node)) {
        return request.set_status(StatusCode::BadNodeIdUnknown);
    }
    request.set_status(StatusCode::Good);
    let wanted = ReferenceSelection {
        kinds: ReferenceKind::ALL.map(|kind| request.allows_reference_type(&kind.id(), tree)),
        forward: request.allows_forward(),
        inverse: request.allows_inverse(),
        fields: request.result_mask(),
    };
    let first = request
        .take_continuation_point::<BrowseContinuation>()
        .map_or(0, |position| position.0);
    for position in first..links.len() {
        let Some(link) = links.get(position) else { break };
        if !wanted.takes(link) || !request.allows_node_class(class(space, link.target)) {
            continue;
        }
        if request.remaining() == 0 {
            request.set_next_continuation_point(Box::new(BrowseContinuation(position)));
            break;
        }
        let description = wanted.describe(space, link);
        request.add_unchecked(description);
    }
}

/// Our node as other node managers refer to it.
pub(super) fn metadata(space: &PlcAddressSpace, node: Node) -> NodeMetadata {
    NodeMetadata {
        node_id: space.id(node).into(),
        type_definition: definition(space, ReferenceTarget::Own(node)),
        browse_name: space.qualified_name(node),
        display_name: LocalizedText::new("en", &space.browse_name(node)),
        node_class: space.class(node),
    }
}

impl ReferenceSelection {
    fn takes(&self, link: ReferenceEntry) -> bool {
        let direction = if link.forward { self.forward } else { self.inverse };
        // `kinds` has one element per kind.
        direction && self.kinds[link.kind as usize]
    }

    fn wants(&self, field: BrowseDescriptionResultMask) -> bool {
        self.fields.contains(field)
    }

    fn describe(&self, space: &PlcAddressSpace, link: ReferenceEntry) -> ReferenceDescription {
        use BrowseDescriptionResultMask as Field;
        let target = link.target;
        let text = |wanted: bool| wanted.then(|| name(space, target));
        ReferenceDescription {
            reference_type_id: if self.wants(Field::RESULT_MASK_REFERENCE_TYPE) {
                link.kind.id()
            } else {
                NodeId::null()
            },
            is_forward: link.forward,
            node_id: id(space, target).into(),
            browse_name: match text(self.wants(Field::RESULT_MASK_BROWSE_NAME)) {
                Some(text) => QualifiedName::new(namespace(space, target), text),
                None => QualifiedName::null(),
            },
            display_name: match text(self.wants(Field::RESULT_MASK_DISPLAY_NAME)) {
                Some(text) => LocalizedText {
                    locale: "en".into(),
                    text: text.into(),
                },
                None => LocalizedText::null(),
            },
            node_class: if self.wants(Field::RESULT_MASK_NODE_CLASS) {
                class(space, target)
            } else {
                NodeClass::Unspecified
            },
            type_definition: if self.wants(Field::RESULT_MASK_TYPE_DEFINITION) {
                definition(space, target)
            } else {
                ExpandedNodeId::null()
            },
        }
    }
}

fn id(space: &PlcAddressSpace, target: ReferenceTarget) -> NodeId {
    match target {
        ReferenceTarget::Own(node) => space.id(node),
        ReferenceTarget::Core(core) => core.id(),
    }
}

fn name(space: &PlcAddressSpace, target: ReferenceTarget) -> String {
    match target {
        ReferenceTarget::Own(node) => space.browse_name(node),
        ReferenceTarget::Core(core) => core.name().to_owned(),
    }
}

fn namespace(space: &PlcAddressSpace, target: ReferenceTarget) -> u16 {
    match target {
        ReferenceTarget::Own(node) => space.browse_namespace(node),
        ReferenceTarget::Core(_) => 0,
    }
}

fn class(space: &PlcAddressSpace, target: ReferenceTarget) -> NodeClass {
    match target {
        ReferenceTarget::Own(node) => space.class(node),
        ReferenceTarget::Core(core) => core.class(),
    }
}

fn definition(space: &PlcAddressSpace, target: ReferenceTarget) -> ExpandedNodeId {
    let definition = match target {
        ReferenceTarget::Own(node) => space.definition(node).map(|core| core.id()),
        ReferenceTarget::Core(core) => core.definition(),
    };
    definition.map_or_else(ExpandedNodeId::null, ExpandedNodeId::from)
}
