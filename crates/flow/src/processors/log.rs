//! `log`: writes one log line per message.

use std::sync::Arc;

use thalweg_config::{ComponentNode, Fields, kind};
use thalweg_mapping::Interpolation;
use thalweg_record::Batch;

use crate::Processor;
use crate::component::BuildError;
use crate::context::StageContext;
use crate::parse::ParseContext;
use crate::registry::ProcessorSpec;

struct LogSpec {
    level: &'static str,
    message: Arc<Interpolation>,
    fields: Arc<Vec<(String, Interpolation)>>,
}

const LEVELS: [&str; 6] = ["FATAL", "ERROR", "WARN", "INFO", "DEBUG", "TRACE"];

pub(super) fn parse(node: &ComponentNode, context: &mut ParseContext<'_>) -> Option<Arc<dyn ProcessorSpec>> {
    let mut fields = Fields::new(&node.body, context.diagnostics);
    let level = fields.one_of("level", &LEVELS, "INFO");
    let message = match fields.node_or("message", kind::INTERPOLATED, "") {
        Some(node) => context.interpolation(&node),
        None => Interpolation::compile("").ok(),
    };
    let extra = fields.node_or("fields", kind::INTERPOLATED_MAPPING, "{}");
    fields.finish();
    let mut named = Vec::new();
    let mut complete = true;
    if let Some(extra) = extra {
        match extra.expect_map() {
            Ok(map) => {
                for (key, value) in map.iter() {
                    match context.interpolation(value) {
                        Some(text) => named.push((key.as_str().to_owned(), text)),
                        None => complete = false,
                    }
                }
            }
            Err(error) => {
                context.diagnostics.error(&extra, error);
                complete = false;
            }
        }
    }
    let message = Arc::new(message?);
    complete.then(|| {
        Arc::new(LogSpec {
            level,
            message,
            fields: Arc::new(named),
        }) as Arc<dyn ProcessorSpec>
    })
}

impl ProcessorSpec for LogSpec {
    fn build(&self, context: StageContext) -> Result<Box<dyn Processor>, BuildError> {
        let (message, fields) = (self.message.clone(), self.fields.clone());
        Ok(Box::new(LogProcessor {
            level: self.level,
            message,
            fields,
            context,
        }))
    }
}

struct LogProcessor {
    level: &'static str,
    message: Arc<Interpolation>,
    fields: Arc<Vec<(String, Interpolation)>>,
    context: StageContext,
}

impl Processor for LogProcessor {
    fn process(&mut self, batch: Batch, out: &mut Vec<Batch>) {
        for index in 0..batch.len() {
            let render = |text: &Interpolation| match text.render(&batch.messages, index) {
                Ok(text) => text.to_string(),
                Err(error) => format!("<{error}>"),
            };
            let text = render(&self.message);
            let extra: Vec<String> = self
                .fields
                .iter()
                .map(|(name, value)| format!("{name}={:?}", render(value)))
                .collect();
            let (path, fields) = (&self.context.component.id.path, extra.join(" "));
            match self.level {
                "FATAL" | "ERROR" => tracing::error!(path, fields, "{text}"),
                "WARN" => tracing::warn!(path, fields, "{text}"),
                "INFO" => tracing::info!(path, fields, "{text}"),
                "DEBUG" => tracing::debug!(path, fields, "{text}"),
                _ => tracing::trace!(path, fields, "{text}"),
            }
        }
        out.push(batch);
    }
}
