//! `resource: label`: a processor that is defined in `processor_resources`.

use std::sync::Arc;

use thalweg_config::{ComponentKind, ComponentNode};

use crate::parse::ParseContext;
use crate::registry::ProcessorSpec;

pub(super) fn parse(node: &ComponentNode, context: &mut ParseContext<'_>) -> Option<Arc<dyn ProcessorSpec>> {
    let target = context.resource(node, ComponentKind::Processor)?;
    context.processor(&target)
}
