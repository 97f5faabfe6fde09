//! `sleep`: holds each message for a time. A message whose time cannot be told is flagged and passed on at once.

use std::sync::Arc;
use std::time::Duration;

use thalweg_config::{ComponentNode, Fields, parse_duration};
use thalweg_mapping::Interpolation;
use thalweg_record::Batch;

use crate::Processor;
use crate::component::BuildError;
use crate::context::StageContext;
use crate::parse::ParseContext;
use crate::registry::ProcessorSpec;

/// Longer pauses are cut to this: the time may come from the data.
const PAUSE_MAX: Duration = Duration::from_secs(3600);

struct Spec(Arc<Interpolation>);

pub(super) fn parse(node: &ComponentNode, context: &mut ParseContext<'_>) -> Option<Arc<dyn ProcessorSpec>> {
    let mut fields = Fields::new(&node.body, context.diagnostics);
    let duration = fields.required_node("duration");
    fields.finish();
    let duration = duration?;
    let text = context.interpolation(&duration)?;
    if let Some(fixed) = text.is_static()
        && let Err(error) = parse_duration(fixed)
    {
        context.diagnostics.error(&duration, error);
        return None;
    }
    Some(Arc::new(Spec(Arc::new(text))))
}

impl ProcessorSpec for Spec {
    fn build(&self, context: StageContext) -> Result<Box<dyn Processor>, BuildError> {
        Ok(Box::new(Sleep {
            duration: self.0.clone(),
            context,
        }))
    }
}

struct Sleep {
    duration: Arc<Interpolation>,
    context: StageContext,
}

impl Processor for Sleep {
    fn process(&mut self, mut batch: Batch, out: &mut Vec<Batch>) {
        for index in 0..batch.len() {
            let text = self
                .duration
                .render(&batch.messages, index)
                .map_err(|error| error.to_string());
            match text.and_then(|text| parse_duration(&text)) {
                Ok(pause) => {
                    if !self.context.pause(pause.min(PAUSE_MAX)) {
                        break;
                    }
                }
                Err(error) => {
                    if let Some(message) = batch.messages.get_mut(index) {
                        self.context.flag(message, &format!("no pause was made: {error}"));
                    }
                }
            }
        }
        out.push(batch);
    }
}
