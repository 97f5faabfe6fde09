//! Turns messages into pending writes: node and value of each mapping, in order. Values that can never be written are
//! detected here, before the server is called.

use thalweg_flow::Rejection;
use thalweg_mapping::Interpolation;
use thalweg_record::{DropReason, Message, Object, Value};

use super::value_path;
use crate::config::{NodeMapping, PerMessage};
use crate::node_id::NodeSpec;

/// One value for one node.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PreparedWrite {
    pub node: NodeSpec,
    /// Of the configured type.
    pub value: Value,
}

/// A permanent rejection of a message.
struct PermanentRejection(DropReason, String);

/// Returns the writes of each message, or its rejection.
pub(super) fn prepare(messages: &[Message], mappings: &[NodeMapping]) -> Vec<Result<Vec<PreparedWrite>, Rejection>> {
    let one = |index| {
        let wanted = wanted(messages, index, mappings);
        wanted.map_err(|PermanentRejection(reason, error)| Rejection::permanent(index, reason, error))
    };
    (0..messages.len()).map(one).collect()
}

fn wanted(
    messages: &[Message],
    index: usize,
    mappings: &[NodeMapping],
) -> Result<Vec<PreparedWrite>, PermanentRejection> {
    let content = messages
        .get(index)
        .and_then(|message| value_path::object(&message.payload));
    let no_map = || PermanentRejection(DropReason::InvalidPayload, "message content is not a map".to_owned());
    let content = content.ok_or_else(no_map)?;
    let one = |mapping: &NodeMapping| {
        Ok(PreparedWrite {
            node: node(mapping, messages, index)?,
            value: value(mapping, messages, index, &content)?,
        })
    };
    mappings.iter().map(one).collect()
}

fn node(mapping: &NodeMapping, messages: &[Message], index: usize) -> Result<NodeSpec, PermanentRejection> {
    match &mapping.node {
        PerMessage::Same(spec) => Ok(spec.clone()),
        PerMessage::Rendered(text) => rendered_as("nodeId", text, messages, index, NodeSpec::of_message),
    }
}

fn value(
    mapping: &NodeMapping,
    messages: &[Message],
    index: usize,
    content: &Object,
) -> Result<Value, PermanentRejection> {
    let data_type = match &mapping.data_type {
        PerMessage::Same(data_type) => *data_type,
        PerMessage::Rendered(text) => rendered_as("dataType", text, messages, index, super::DataType::parse)?,
    };
    let found = mapping.value_from.find(content).ok_or_else(|| {
        let name = mapping.value_from.name();
        PermanentRejection(DropReason::MissingField, format!("field {name} not found in message"))
    })?;
    let converted = data_type.convert(found);
    converted.map_err(|error| PermanentRejection(DropReason::InvalidValue, error.to_string()))
}

/// Renders and parses one of the fields for a message.
fn rendered_as<T>(
    name: &str,
    text: &Interpolation,
    messages: &[Message],
    index: usize,
    parse: fn(&str) -> Result<T, String>,
) -> Result<T, PermanentRejection> {
    let refused = |error| PermanentRejection(DropReason::OutputRejected, error);
    let text = text.render(messages, index);
    let text = text.map_err(|error| refused(format!("no {name} for the message: {error}")))?;
    if matches!(text.as_str(), "" | "null") {
        let error = format!("{name} resolved to empty or null value");
        return Err(PermanentRejection(DropReason::MissingField, error));
    }
    parse(&text).map_err(refused)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::ValuePath;

    fn mapping(node: &str, field: &str, data_type: &str) -> NodeMapping {
        NodeMapping {
            node: PerMessage::Rendered(Interpolation::compile(node).unwrap()),
            value_from: ValuePath::new(field.to_owned()),
            data_type: PerMessage::Rendered(Interpolation::compile(data_type).unwrap()),
        }
    }

    #[test]
    fn mappings_and_messages_stay_in_order() {
        let mappings = [
            mapping("nsu=urn:plant;s=${! @line }", "speed", "Int16"),
            mapping("ns=2;s=On", "on", "${! json(\"type\") }"),
        ];
        let messages = [1, 2].map(|n| {
            let mut message = Message::raw(format!(r#"{{"speed": {n}.9, "on": {n}, "type": "Boolean"}}"#));
            message.meta.set("line", format!("Line{n}"));
            message
        });
        let seen: Vec<Vec<(String, Value)>> = prepare(&messages, &mappings)
            .into_iter()
            .map(|wanted| {
                let wanted = wanted.unwrap().into_iter();
                wanted.map(|one| (one.node.to_string(), one.value)).collect()
            })
            .collect();
        let expected = [1, 2].map(|n| {
            vec![
                (format!("nsu=urn:plant;s=Line{n}"), Value::I16(n)),
                ("ns=2;s=On".to_owned(), Value::Bool(true)),
            ]
        });
        assert_eq!(seen, expected);
    }

    #[test]
    fn what_can_never_be_written_is_refused_by_message_and_with_its_reason() {
        let mappings = [
            mapping("ns=2;s=Fine", "fine", "Int16"),
            mapping("${! @node }", "a.b", "${! @type }"),
        ];
        let message = |payload: &str, node: &str, kind: &str| {
            let mut message = Message::raw(payload.to_owned());
            message.meta.set("node", node);
            message.meta.set("type", kind);
            message
        };
        let fine = r#"{"fine": 1, "a": {"b": 300}}"#;
        let cases = [
            (message(fine, "ns=2;s=X", "Int16"), None),
            (
                message("[1]", "ns=2;s=X", "Int16"),
                Some((DropReason::InvalidPayload, "message content is not a map")),
            ),
            (
                message(r#"{"fine": 1, "a": 5}"#, "ns=2;s=X", "Int16"),
                Some((DropReason::MissingField, "field a.b not found in message")),
            ),
            (
                message(fine, "", "Int16"),
                Some((DropReason::MissingField, "nodeId resolved to empty or null value")),
            ),
            (
                message(fine, "ns=2;s=X", ""),
                Some((DropReason::MissingField, "dataType resolved to empty or null value")),
            ),
            (
                message(fine, "ns=2", "Int16"),
                Some((
                    DropReason::OutputRejected,
                    "\"ns=2\" is not a NodeID: a semicolon must follow the namespace",
                )),
            ),
            (
                message(fine, "ns=2;s=X", "Int8"),
                Some((
                    DropReason::OutputRejected,
                    "unsupported dataType 'Int8'. Supported types are: ",
                )),
            ),
            (
                message(fine, "ns=2;s=X", "Byte"),
                Some((DropReason::InvalidValue, "value 300 is out of range for Byte")),
            ),
        ];
        let messages: Vec<Message> = cases.iter().map(|(message, _)| message.clone()).collect();
        for ((_, expected), wanted) in cases.iter().zip(prepare(&messages, &mappings)) {
            let Some((reason, error)) = expected else {
                assert_eq!(wanted.unwrap().len(), 2);
                continue;
            };
            // Nothing of a rejected message is written, not even its first mapping.
            let rejection = wanted.unwrap_err();
            assert_eq!(rejection.permanent, Some(*reason), "{}", rejection.error);
            assert!(rejection.error.starts_with(error), "{}", rejection.error);
        }
    }
}
