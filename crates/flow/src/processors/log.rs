//! `log`: writes one log line per message.

use std::sync::Arc;

use thalweg_config::{ComponentNode, Fields, Node, kind};
use thalweg_mapping::{Interpolation, Mapping};
use thalweg_record::{Batch, Message, Value, json};

use crate::Processor;
use crate::component::BuildError;
use crate::context::StageContext;
use crate::parse::{ParseContext, compile_error};
use crate::registry::ProcessorSpec;

#[derive(Clone)]
struct LogSpec {
    level: &'static str,
    message: Arc<Interpolation>,
    fields: Arc<Vec<(String, Interpolation)>>,
    /// Makes an object whose members are fields, too.
    fields_mapping: Option<Mapping>,
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
    let mapping = fields.node_or("fields_mapping", kind::PROGRAM, "");
    fields.finish();
    let mut named = Vec::new();
    let mut complete = true;
    let fields_mapping = match mapping.as_ref().map(|node| optional_mapping(node, context)) {
        Some(Some(mapping)) => mapping,
        Some(None) => {
            complete = false;
            None
        }
        None => None,
    };
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
            fields_mapping,
        }) as Arc<dyn ProcessorSpec>
    })
}

/// An empty text means no mapping; the outer `None` is a mistake, which is reported.
fn optional_mapping(node: &Node, context: &ParseContext<'_>) -> Option<Option<Mapping>> {
    let text = node
        .expect_text()
        .map_err(|error| context.diagnostics.error(node, error));
    match text.ok()? {
        "" => Some(None),
        text => {
            let mapping = Mapping::compile(text).map_err(|error| compile_error(node, &error, context.diagnostics));
            mapping.ok().map(Some)
        }
    }
}

impl ProcessorSpec for LogSpec {
    fn build(&self, context: StageContext) -> Result<Box<dyn Processor>, BuildError> {
        Ok(Box::new(LogProcessor {
            spec: self.clone(),
            context,
        }))
    }
}

struct LogProcessor {
    spec: LogSpec,
    context: StageContext,
}

impl LogSpec {
    /// The fields of one line. What fails is shown as its error.
    fn fields(&self, messages: &[Message], index: usize) -> String {
        let named = self.fields.iter();
        let mut fields: Vec<String> = named
            .map(|(name, value)| format!("{name}={:?}", rendered(value, messages, index)))
            .collect();
        match self
            .fields_mapping
            .as_ref()
            .map(|mapping| mapping.evaluate(messages, index))
        {
            Some(Ok(Some(Value::Object(object)))) => {
                fields.extend(object.iter().map(|(name, value)| format!("{name}={:?}", shown(value))));
            }
            Some(Ok(_)) => fields.push("fields_mapping=\"<it makes no object>\"".to_owned()),
            Some(Err(error)) => fields.push(format!("fields_mapping={:?}", format!("<{error}>"))),
            None => {}
        }
        fields.join(" ")
    }
}

fn rendered(text: &Interpolation, messages: &[Message], index: usize) -> String {
    match text.render(messages, index) {
        Ok(text) => text.to_string(),
        Err(error) => format!("<{error}>"),
    }
}

/// Texts as they are, other values as JSON.
fn shown(value: &Value) -> String {
    match value {
        Value::Text(text) => text.to_string(),
        other => json::to_string(other),
    }
}

impl Processor for LogProcessor {
    fn process(&mut self, batch: Batch, out: &mut Vec<Batch>) {
        for index in 0..batch.len() {
            let text = rendered(&self.spec.message, &batch.messages, index);
            let fields = self.spec.fields(&batch.messages, index);
            let path = &self.context.component.id.path;
            match self.spec.level {
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn fields(mapping: &str, payload: &str) -> String {
        let spec = LogSpec {
            level: "INFO",
            message: Arc::new(Interpolation::compile("").unwrap()),
            fields: Arc::new(vec![(
                "size".to_owned(),
                Interpolation::compile("${! batch_size() }").unwrap(),
            )]),
            fields_mapping: Some(Mapping::compile(mapping).unwrap()),
        };
        spec.fields(&[Message::raw(payload.to_owned())], 0)
    }

    #[test]
    fn a_mapping_makes_further_fields_and_shows_its_failure() {
        let mapping = "root.machine = this.m\nroot.at = {\"line\": 2}";
        assert_eq!(
            fields(mapping, r#"{"m":"press \"4\""}"#),
            r#"size="1" machine="press \"4\"" at="{\"line\":2}""#
        );
        assert_eq!(
            fields("root = this.m", r#"{"m":5}"#),
            r#"size="1" fields_mapping="<it makes no object>""#
        );
        let failed = fields("root.a = throw(\"why\")", "{}");
        assert!(
            failed.starts_with(r#"size="1" fields_mapping="<"#) && failed.contains("why"),
            "{failed}"
        );
    }
}
