//! From messages to what is to be written: node and value of each mapping, in order. What can never be written is found
//! here, before the server is asked.

use opcua::types::NodeId;
use thalweg_flow::Rejection;
use thalweg_mapping::Interpolation;
use thalweg_record::{DropReason, Message, Object, Value};

use super::field;
use super::progress::Progress;
use crate::config::{NodeMapping, PerMessage};
use crate::node_id::NodeSpec;

/// One value for one node.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Operation {
    /// Its index in the messages of the write.
    pub message: usize,
    pub node: NodeId,
    /// Of the wanted type.
    pub value: Value,
}

/// Why a message becomes no operations.
enum Refused {
    Never(DropReason, String),
    NamespacesUnknown,
}

/// The server's namespaces, by which `nsu=` names nodes, could not be read when it was connected to.
#[derive(Debug, thiserror::Error)]
#[error("the server's namespaces, by which nsu= names nodes, cannot be read")]
pub(super) struct NamespacesUnknown;

/// What is to be written, and with what the messages of which nothing is have been refused.
pub(super) fn prepare(
    messages: &[Message],
    mappings: &[NodeMapping],
    namespaces: &[String],
) -> Result<Progress, NamespacesUnknown> {
    let mut operations = Vec::with_capacity(messages.len() * mappings.len());
    let mut rejections = Vec::new();
    for index in 0..messages.len() {
        let start = operations.len();
        match add(&mut operations, messages, index, mappings, namespaces) {
            Ok(()) => {}
            Err(Refused::Never(reason, error)) => {
                operations.truncate(start);
                rejections.push(Rejection::permanent(index, reason, error));
            }
            Err(Refused::NamespacesUnknown) => return Err(NamespacesUnknown),
        }
    }
    Ok(Progress::new(messages.len(), operations, rejections))
}

fn add(
    operations: &mut Vec<Operation>,
    messages: &[Message],
    index: usize,
    mappings: &[NodeMapping],
    namespaces: &[String],
) -> Result<(), Refused> {
    let content = messages.get(index).and_then(|message| field::object(&message.payload));
    let content =
        content.ok_or_else(|| Refused::Never(DropReason::InvalidPayload, "message content is not a map".to_owned()))?;
    for mapping in mappings {
        operations.push(Operation {
            message: index,
            node: node(mapping, messages, index, namespaces)?,
            value: value(mapping, messages, index, &content)?,
        });
    }
    Ok(())
}

fn node(mapping: &NodeMapping, messages: &[Message], index: usize, namespaces: &[String]) -> Result<NodeId, Refused> {
    let rendered;
    let spec = match &mapping.node {
        PerMessage::Same(spec) => spec,
        PerMessage::Rendered(text) => {
            rendered = rendered_as("nodeId", text, messages, index, NodeSpec::of_message)?;
            &rendered
        }
    };
    if matches!(spec, NodeSpec::ByUri { .. }) && namespaces.is_empty() {
        return Err(Refused::NamespacesUnknown);
    }
    let resolved = spec.resolve(namespaces);
    resolved.map_err(|why| Refused::Never(DropReason::OutputRejected, format!("cannot write {spec}: {why}")))
}

fn value(mapping: &NodeMapping, messages: &[Message], index: usize, content: &Object) -> Result<Value, Refused> {
    let data_type = match &mapping.data_type {
        PerMessage::Same(data_type) => *data_type,
        PerMessage::Rendered(text) => rendered_as("dataType", text, messages, index, super::DataType::parse)?,
    };
    let found = mapping.value_from.find(content).ok_or_else(|| {
        let name = mapping.value_from.name();
        Refused::Never(DropReason::MissingField, format!("field {name} not found in message"))
    })?;
    let converted = data_type.convert(found);
    converted.map_err(|error| Refused::Never(DropReason::InvalidValue, error.to_string()))
}

/// What a message says of one of the fields.
fn rendered_as<T>(
    name: &str,
    text: &Interpolation,
    messages: &[Message],
    index: usize,
    parse: fn(&str) -> Result<T, String>,
) -> Result<T, Refused> {
    let refused = |error| Refused::Never(DropReason::OutputRejected, error);
    let text = text.render(messages, index);
    let text = text.map_err(|error| refused(format!("no {name} for the message: {error}")))?;
    if matches!(text.as_str(), "" | "null") {
        let error = format!("{name} resolved to empty or null value");
        return Err(Refused::Never(DropReason::MissingField, error));
    }
    parse(&text).map_err(refused)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::{DataType, Field};

    fn mapping(node: &str, field: &str, data_type: &str) -> NodeMapping {
        NodeMapping {
            node: PerMessage::Rendered(Interpolation::compile(node).unwrap()),
            value_from: Field::new(field.to_owned()),
            data_type: PerMessage::Rendered(Interpolation::compile(data_type).unwrap()),
        }
    }

    fn namespaces() -> Vec<String> {
        ["http://opcfoundation.org/UA/", "urn:server", "urn:plant"]
            .map(str::to_owned)
            .to_vec()
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
        let progress = prepare(&messages, &mappings, &namespaces()).unwrap();
        let seen: Vec<(usize, String, Value)> = progress
            .operations()
            .iter()
            .map(|operation| (operation.message, operation.node.to_string(), operation.value.clone()))
            .collect();
        assert_eq!(
            seen,
            [
                (0, "ns=2;s=Line1".to_owned(), Value::I16(1)),
                (0, "ns=2;s=On".to_owned(), Value::Bool(true)),
                (1, "ns=2;s=Line2".to_owned(), Value::I16(2)),
                (1, "ns=2;s=On".to_owned(), Value::Bool(true)),
            ]
        );
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
                message(fine, "nsu=urn:gone;s=X", "Int16"),
                Some((
                    DropReason::OutputRejected,
                    "cannot write nsu=urn:gone;s=X: the server has no namespace \"urn:gone\"",
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
        let progress = prepare(&messages, &mappings, &namespaces()).unwrap();
        // Of a message that is refused nothing is written, its first mapping neither.
        assert!(progress.operations().iter().all(|operation| operation.message == 0));
        let rejections = progress.into_rejections("");
        for (index, (_, expected)) in cases.iter().enumerate() {
            let Some((reason, error)) = expected else { continue };
            let rejection = rejections.iter().find(|rejection| rejection.index == index).unwrap();
            assert_eq!(rejection.permanent, Some(*reason), "{}", rejection.error);
            assert!(rejection.error.starts_with(error), "{}", rejection.error);
        }
    }

    #[test]
    fn a_server_that_does_not_say_its_namespaces_is_asked_again() {
        let mappings = [NodeMapping {
            node: PerMessage::Same(NodeSpec::parse("nsu=urn:plant;s=A").unwrap()),
            value_from: Field::new("v".to_owned()),
            data_type: PerMessage::Same(DataType::Int16),
        }];
        let prepared = prepare(&[Message::raw(r#"{"v": 1}"#)], &mappings, &[]);
        assert!(matches!(prepared, Err(NamespacesUnknown)));
    }
}
