//! Components inside a component: what a `broker` is made of.

use std::sync::Arc;

use thalweg_config::{ComponentKind, ComponentNode, Fields};
use thalweg_telemetry::ComponentId;

use crate::component::{BuildContext, Component};
use crate::parse::ParseContext;

/// One child's checked configuration and what it is called.
pub(crate) struct Child<S: ?Sized> {
    name: String,
    path: String,
    label: String,
    pub spec: Arc<S>,
}

/// Reads the list `field` of a broker (whose other fields are read already); `None` if a child has mistakes.
pub(crate) fn parse<'a, S: ?Sized>(
    node: &ComponentNode,
    mut fields: Fields<'_>,
    kind: ComponentKind,
    context: &mut ParseContext<'a>,
    read: impl Fn(&mut ParseContext<'a>, &ComponentNode) -> Option<Arc<S>>,
) -> Option<Vec<Child<S>>> {
    let diagnostics = context.diagnostics;
    let field = format!("{kind}s");
    let list = fields.required_node(&field);
    fields.finish();
    let nodes = node.children(&list?, kind, &field, diagnostics);
    if nodes.is_empty() {
        diagnostics.error_at(node.name_pos, format!("a broker needs at least one entry in {field}"));
        return None;
    }
    for child in nodes.iter().filter(|child| !child.processors.is_empty()) {
        let why = format!("{field} of a broker have no processors of their own; put them into pipeline.processors");
        diagnostics.error_at(child.pos, why);
    }
    let count = nodes.len();
    let children: Vec<Child<S>> = nodes
        .into_iter()
        .filter_map(|node| {
            let spec = read(context, &node)?;
            Some(Child {
                name: node.name,
                path: node.path,
                label: node.label.unwrap_or_default(),
                spec,
            })
        })
        .collect();
    (children.len() == count).then_some(children)
}

impl<S: ?Sized> Child<S> {
    /// The child's own identity, with its parent's flow and metrics.
    pub fn build_context(&self, parent: &BuildContext) -> BuildContext {
        let id = ComponentId {
            path: self.path.clone(),
            label: self.label.clone(),
            ..(*parent.component.id).clone()
        };
        let component = Component::new(&self.name, id, parent.component.metrics.clone());
        BuildContext {
            component,
            source: parent.source.clone(),
            data_dir: parent.data_dir.clone(),
        }
    }
}
