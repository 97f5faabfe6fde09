//! `sleep`: delays each message. A message whose duration cannot be computed is flagged and passed on immediately. A
//! duration computed per message is at most an hour, because it may come from the sender; a fixed one is used as
//! configured.

use std::sync::Arc;
use std::time::Duration;

use thalweg_config::{ComponentNode, Fields, kind, parse_duration};
use thalweg_mapping::Interpolation;
use thalweg_record::Batch;

use crate::Processor;
use crate::component::BuildError;
use crate::context::StageContext;
use crate::parse::ParseContext;
use crate::registry::ProcessorSpec;

/// Longer pauses from message data are cut to this, and logged.
const PAUSE_MAX: Duration = Duration::from_secs(3600);

struct SleepSpec(Arc<Interpolation>);

pub(super) fn parse(node: &ComponentNode, context: &mut ParseContext<'_>) -> Option<Arc<dyn ProcessorSpec>> {
    let mut fields = Fields::new(&node.body, context.diagnostics);
    let duration = fields.required_node("duration", kind::INTERPOLATED_DURATION);
    fields.finish();
    let duration = duration?;
    let text = context.interpolation(&duration)?;
    if let Some(fixed) = text.is_static()
        && let Err(error) = parse_duration(fixed)
    {
        let message = format!("expected {error}, got {}", duration.describe());
        context.diagnostics.error(&duration, message);
        return None;
    }
    Some(Arc::new(SleepSpec(Arc::new(text))))
}

impl ProcessorSpec for SleepSpec {
    fn build(&self, context: StageContext) -> Result<Box<dyn Processor>, BuildError> {
        Ok(Box::new(SleepProcessor {
            duration: self.0.clone(),
            context,
        }))
    }
}

struct SleepProcessor {
    duration: Arc<Interpolation>,
    context: StageContext,
}

impl Processor for SleepProcessor {
    fn process(&mut self, mut batch: Batch, out: &mut Vec<Batch>) {
        let is_fixed = self.duration.is_static().is_some();
        for index in 0..batch.len() {
            let text = self
                .duration
                .render(&batch.messages, index)
                .map_err(|error| error.to_string());
            match text.and_then(|text| parse_duration(&text)) {
                Ok(pause) => {
                    let held = held_for(pause, is_fixed);
                    if held < pause {
                        self.context.component.warn_limited("pause", 1, || told(pause));
                    }
                    if !self.context.pause(held) {
                        break;
                    }
                }
                Err(error) => {
                    if let Some(message) = batch.messages.get_mut(index) {
                        self.context.flag(message, &format!("the pause was skipped: {error}"));
                    }
                }
            }
        }
        out.push(batch);
    }
}

fn held_for(pause: Duration, is_fixed: bool) -> Duration {
    match is_fixed {
        true => pause,
        false => pause.min(PAUSE_MAX),
    }
}

fn told(pause: Duration) -> String {
    format!("a message requests a pause of {pause:?} but is delayed by {PAUSE_MAX:?}, the maximum for a computed pause")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_longer_pause_that_data_asks_for_is_one_hour_and_one_of_the_file_is_what_it_says() {
        let day = Duration::from_secs(86_400);
        assert_eq!(held_for(day, false), Duration::from_secs(3600));
        assert_eq!(held_for(Duration::from_secs(3600), false), Duration::from_secs(3600));
        assert_eq!(held_for(day, true), day);
        assert_eq!(
            told(day),
            "a message requests a pause of 86400s but is delayed by 3600s, the maximum for a computed pause"
        );
    }
}
