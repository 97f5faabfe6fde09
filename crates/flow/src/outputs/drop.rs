//! `drop`: accepts everything and stores nothing.

use std::sync::Arc;

use thalweg_config::{ComponentNode, Fields};
use thalweg_record::Message;

use crate::BoxFuture;
use crate::component::{BuildContext, BuildError};
use crate::output::{Output, WriteError};
use crate::parse::ParseContext;
use crate::registry::OutputSpec;

pub(super) fn parse(node: &ComponentNode, context: &mut ParseContext<'_>) -> Option<Arc<dyn OutputSpec>> {
    Fields::new(&node.body, context.diagnostics).finish();
    Some(Arc::new(DropOutput))
}

struct DropOutput;

impl OutputSpec for DropOutput {
    fn build(&self, _: &BuildContext) -> Result<Arc<dyn Output>, BuildError> {
        Ok(Arc::new(DropOutput))
    }
}

impl Output for DropOutput {
    fn write(&self, _: Arc<Vec<Message>>) -> BoxFuture<'static, Result<(), WriteError>> {
        Box::pin(std::future::ready(Ok(())))
    }
}
