//! TranslateBrowsePathsToNodeIds: follows a path of browse names inside namespace 3. A step into another namespace is
//! returned by name, and its node manager decides whether it matches.

use opcua::types::{NodeId, RelativePathElement};
use opcua_nodes::TypeTree;
use opcua_server::node_manager::BrowsePathItem;

use crate::space::{Node, PlcAddressSpace, ReferenceKind, ReferenceTarget};

pub(super) fn translate(space: &PlcAddressSpace, item: &mut BrowsePathItem, tree: &dyn TypeTree, own_index: usize) {
    // Another node manager reached one of our nodes and asks whether its name matches the path.
    if let Some(expected) = item.unmatched_browse_name() {
        let matches = space
            .find(item.node_id())
            .is_some_and(|node| space.qualified_name(node) == *expected);
        if !matches {
            return;
        }
        item.set_browse_name_matched(own_index);
    }
    let mut reached = vec![item.node_id().clone()];
    for (step, element) in item.path().iter().enumerate() {
        let mut next = Vec::new();
        for from in &reached {
            for target in targets(space, from, element, tree) {
                match target {
                    ReferenceTarget::Own(node) if space.qualified_name(node) == element.target_name => {
                        let id = space.id(node);
                        item.add_element(id.clone(), step + 1, None);
                        next.push(id);
                    }
                    ReferenceTarget::Own(_) => {}
                    ReferenceTarget::Core(core) => {
                        item.add_element(core.id(), step + 1, Some(element.target_name.clone()))
                    }
                }
            }
        }
        reached = next;
    }
}

/// Returns the targets of the references that the step allows; a run of numbered children contributes only the child
/// with that name.
fn targets(
    space: &PlcAddressSpace,
    from: &NodeId,
    element: &RelativePathElement,
    tree: &dyn TypeTree,
) -> Vec<ReferenceTarget> {
    let Some(links) = space.links(from) else {
        return Vec::new();
    };
    let allowed = ReferenceKind::ALL.map(|kind| allows(element, kind, tree));
    let mut targets: Vec<ReferenceTarget> = links
        .singles()
        .iter()
        .filter(|link| link.forward != element.is_inverse && allowed[link.kind as usize])
        .map(|link| link.target)
        .collect();
    if !element.is_inverse && allowed[ReferenceKind::HasComponent as usize] {
        let name = element.target_name.name.as_ref();
        let child: Option<Node> = links.children().and_then(|run| space.child(run, name));
        targets.extend(child.map(ReferenceTarget::Own));
    }
    targets
}

fn allows(element: &RelativePathElement, kind: ReferenceKind, tree: &dyn TypeTree) -> bool {
    let wanted = &element.reference_type_id;
    if wanted.is_null() {
        return true;
    }
    let id = kind.id();
    id == *wanted || (element.include_subtypes && tree.is_subtype_of(&id, wanted))
}
