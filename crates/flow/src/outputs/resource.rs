//! `resource: label`: an output that is defined in `output_resources`.

use std::sync::Arc;

use thalweg_config::{ComponentKind, ComponentNode};

use crate::parse::ParseContext;
use crate::registry::OutputSpec;

pub(super) fn parse(node: &ComponentNode, context: &mut ParseContext<'_>) -> Option<Arc<dyn OutputSpec>> {
    let target = context.resource(node, ComponentKind::Output)?;
    context.output(&target)
}
