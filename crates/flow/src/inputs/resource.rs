//! `resource: label`: an input that is defined in `input_resources`.

use std::sync::Arc;

use thalweg_config::{ComponentKind, ComponentNode};

use crate::parse::ParseContext;
use crate::registry::InputSpec;

pub(super) fn parse(node: &ComponentNode, context: &mut ParseContext<'_>) -> Option<Arc<dyn InputSpec>> {
    let target = context.resource(node, ComponentKind::Input)?;
    context.input(&target)
}
