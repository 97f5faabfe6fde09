//! Components inside a component: the children of a `broker`.

use std::sync::Arc;

use thalweg_config::{ComponentKind, ComponentNode, Fields};
use thalweg_telemetry::ComponentId;

use crate::component::{BuildContext, Component};
use crate::named_spec::NamedSpec;
use crate::parse::ParseContext;

/// Maximum copies of each child of a broker.
const COPIES_MAX: i64 = 256;

/// Reads the list `field` of a broker, and `copies`; the other fields have already been read. `None` if a child has
/// mistakes.
pub(crate) fn parse<'a, S: ?Sized>(
    node: &ComponentNode,
    mut fields: Fields<'_>,
    kind: ComponentKind,
    context: &mut ParseContext<'a>,
    read: impl Fn(&mut ParseContext<'a>, &ComponentNode) -> Option<Arc<S>>,
) -> Option<Vec<NamedSpec<S>>> {
    let diagnostics = context.diagnostics;
    let field = format!("{kind}s");
    let list = fields.required_node(&field, &format!("list of {field}"));
    let copies = usize::try_from(fields.int_in("copies", 1, 1..=COPIES_MAX)).unwrap_or(1);
    fields.finish();
    let list = list?;
    let listed = list.as_seq().map_or(0, <[_]>::len);
    let nodes = node.children(&list, kind, &field, diagnostics);
    if list.as_seq().is_some() && listed == 0 {
        diagnostics.error_at(node.name_pos, format!("a broker needs at least one entry in {field}"));
    }
    let children: Vec<NamedSpec<S>> = nodes
        .iter()
        .filter_map(|node| Some(NamedSpec::new(node, read(context, node)?)))
        .collect();
    if listed == 0 || children.len() != listed {
        return None;
    }
    let all = std::iter::repeat_n(children, copies).flatten();
    Some(all.collect())
}

impl<S: ?Sized> NamedSpec<S> {
    /// Builds a context with the child's identity and its parent's flow and metrics.
    pub fn build_context(&self, parent: &BuildContext) -> BuildContext {
        let id = ComponentId {
            path: self.path.clone(),
            label: self.label.clone(),
            ..(*parent.component.id).clone()
        };
        BuildContext {
            component: Component::new(&self.name, id, parent.component.metrics.clone()),
            ..parent.clone()
        }
    }
}
