//! Fields of the OPC UA output alone: which values of a message are written to which nodes, and how a write is
//! verified.

use std::time::Duration;

use thalweg_config::{Fields, Node, kind};
use thalweg_flow::ParseContext;
use thalweg_mapping::Interpolation;

use super::ConnectionConfig;
use super::connection::legacy_without_effect;
use crate::node_id::NodeSpec;
use crate::output::{DataType, ValuePath};

/// Maximum timeout and pause of the handshake: an hour.
const HOUR_MS: i64 = 3_600_000;
const DAY_MS: i64 = 24 * HOUR_MS;

const IN_FLIGHT: i64 = 64;
const IN_FLIGHT_MAX: i64 = 1000;

#[derive(Clone, Debug)]
pub(crate) struct OutputConfig {
    pub connection: ConnectionConfig,
    /// In the order in which they are written.
    pub mappings: Vec<NodeMapping>,
    /// `None`: the server's response to a write is trusted.
    pub handshake: Option<HandshakeConfig>,
    /// Maximum concurrent writes of the flow.
    pub in_flight_max: usize,
    /// `None`: temporary failures are retried without limit.
    pub give_up_after: Option<Duration>,
}

/// One value of a message and its target node.
#[derive(Clone, Debug)]
pub(crate) struct NodeMapping {
    pub node: PerMessage<NodeSpec>,
    pub value_from: ValuePath,
    pub data_type: PerMessage<DataType>,
}

/// A setting that is the same for all messages, or rendered for each.
#[derive(Clone, Debug)]
pub(crate) enum PerMessage<T> {
    Same(T),
    Rendered(Interpolation),
}

/// Values are read back until they equal the written ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HandshakeConfig {
    pub readback_timeout: Duration,
    pub attempts_max: u32,
    pub pause: Duration,
}

impl OutputConfig {
    /// Reports every mistake; `None` if there was one.
    pub fn parse(node: &Node, context: &ParseContext<'_>) -> Option<OutputConfig> {
        let errors = context.diagnostics.error_count();
        let mut fields = Fields::new(node, context.diagnostics);
        let connection = ConnectionConfig::parse(&mut fields);
        let mappings = mappings(&mut fields, context);
        let handshake = handshake(&mut fields);
        let in_flight_max = fields.int_in("maxInFlight", IN_FLIGHT, 1..=IN_FLIGHT_MAX);
        let give_up_ms = fields.int_in("giveUpAfterMs", 0, 0..=DAY_MS).unsigned_abs();
        legacy_without_effect(&mut fields);
        fields.finish();
        let config = OutputConfig {
            connection: connection?,
            mappings,
            handshake,
            in_flight_max: usize::try_from(in_flight_max).unwrap_or(1),
            give_up_after: (give_up_ms > 0).then(|| Duration::from_millis(give_up_ms)),
        };
        (context.diagnostics.error_count() == errors).then_some(config)
    }
}

fn mappings(fields: &mut Fields<'_>, context: &ParseContext<'_>) -> Vec<NodeMapping> {
    let list = fields.list("nodeMappings");
    if list.is_empty() {
        fields.error("nodeMappings", "at least one node mapping is required");
    }
    list.iter().filter_map(|node| mapping(node, context)).collect()
}

fn mapping(node: &Node, context: &ParseContext<'_>) -> Option<NodeMapping> {
    let mut fields = Fields::new(node, context.diagnostics);
    let node = fields.required_node("nodeId", kind::INTERPOLATED);
    let data_type = fields.required_node("dataType", kind::INTERPOLATED);
    let value_from = fields.required_string("valueFrom");
    fields.finish();
    let node = node.and_then(|node| PerMessage::read(&node, context, NodeSpec::of_message));
    let data_type = data_type.and_then(|node| PerMessage::read(&node, context, DataType::parse));
    Some(NodeMapping {
        node: node?,
        value_from: ValuePath::new(value_from),
        data_type: data_type?,
    })
}

impl<T> PerMessage<T> {
    /// A static text is checked now, and its mistake reported at its position.
    fn read(node: &Node, context: &ParseContext<'_>, parse: fn(&str) -> Result<T, String>) -> Option<PerMessage<T>> {
        let text = context.interpolation(node)?;
        let Some(same) = text.is_static() else {
            return Some(PerMessage::Rendered(text));
        };
        let parsed = parse(same).map_err(|why| context.diagnostics.error(node, why));
        parsed.ok().map(PerMessage::Same)
    }
}

fn handshake(fields: &mut Fields<'_>) -> Option<HandshakeConfig> {
    let mut inner = fields.fields("handshake");
    let enabled = inner.bool("enabled", true);
    let timeout_ms = inner.int_in("readbackTimeoutMs", 2000, 0..=HOUR_MS).unsigned_abs();
    let attempts_max = inner.int_in("maxWriteAttempts", 1, 1..=1000);
    let pause_ms = inner.int_in("timeBetweenRetriesMs", 1000, 0..=HOUR_MS).unsigned_abs();
    inner.finish();
    enabled.then(|| HandshakeConfig {
        readback_timeout: Duration::from_millis(timeout_ms),
        attempts_max: u32::try_from(attempts_max).unwrap_or(1),
        pause: Duration::from_millis(pause_ms),
    })
}

#[cfg(test)]
mod tests {
    use thalweg_config::Diagnostics;
    use thalweg_flow::ComponentRegistry;

    use super::*;

    fn parsed(yaml: &str) -> Result<OutputConfig, String> {
        let diagnostics = Diagnostics::new("flow.yaml");
        let (registry, config) = (ComponentRegistry::new(), thalweg_config::Config::default());
        let context = ParseContext::new(&diagnostics, &registry, &config);
        OutputConfig::parse(&Node::parse(yaml).unwrap(), &context).ok_or_else(|| diagnostics.to_string())
    }

    const ENDPOINT: &str = "endpoint: opc.tcp://plc:4840\n";

    #[test]
    fn defaults_are_those_of_the_reference() {
        let config = parsed(&format!(
            "{ENDPOINT}nodeMappings: [{{nodeId: ns=2;s=A, valueFrom: value, dataType: Int16}}]"
        ));
        let config = config.unwrap();
        let mapping = config.mappings.first().unwrap();
        assert!(matches!(&mapping.node, PerMessage::Same(node) if node.to_string() == "ns=2;s=A"));
        assert!(matches!(mapping.data_type, PerMessage::Same(DataType::Int16)));
        assert_eq!(mapping.value_from.name(), "value");
        let expected = HandshakeConfig {
            readback_timeout: Duration::from_secs(2),
            attempts_max: 1,
            pause: Duration::from_secs(1),
        };
        assert_eq!(config.handshake, Some(expected));
        assert_eq!((config.in_flight_max, config.give_up_after), (64, None));
    }

    #[test]
    fn what_each_message_says_is_looked_at_later() {
        let config = parsed(&format!(
            "{ENDPOINT}handshake: {{enabled: false}}\nmaxInFlight: 1\ngiveUpAfterMs: 500\nnodeMappings:\n  - nodeId: 'ns=2;s=${{! @line }}'\n    valueFrom: a.b\n    dataType: '${{! json(\"type\") }}'"
        ));
        let config = config.unwrap();
        let mapping = config.mappings.first().unwrap();
        assert!(matches!(mapping.node, PerMessage::Rendered(_)));
        assert!(matches!(mapping.data_type, PerMessage::Rendered(_)));
        assert_eq!(config.handshake, None);
        let limit = Some(Duration::from_millis(500));
        assert_eq!((config.in_flight_max, config.give_up_after), (1, limit));
    }

    #[test]
    fn every_mistake_is_told_at_its_place() {
        let mapping = |fields: &str| format!("{ENDPOINT}nodeMappings:\n  - {{{fields}}}");
        for (yaml, place, error) in [
            (ENDPOINT.to_owned(), "", "at least one node mapping is required"),
            (
                format!("{ENDPOINT}nodeMappings: []"),
                "2:",
                "at least one node mapping is required",
            ),
            (
                mapping("nodeId: ns=x;i=1, valueFrom: v, dataType: Int16"),
                "3:14: ",
                "\"ns=x;i=1\" is not a NodeID: the namespace is not a number",
            ),
            (
                mapping("nodeId: '', valueFrom: v, dataType: Int16"),
                "3:14: ",
                "nodeId resolved to empty or null value",
            ),
            (
                mapping("nodeId: i=1, valueFrom: v, dataType: int"),
                "3:43: ",
                "unsupported dataType 'int'. Supported types are: Boolean, SByte,",
            ),
            (mapping("nodeId: i=1, dataType: Int16"), "3:", "valueFrom"),
            (
                mapping("nodeId: '${! nonsense( }', valueFrom: v, dataType: Int16"),
                "3:",
                "",
            ),
            (
                format!(
                    "{}\nhandshake: {{maxWriteAttempts: 0}}",
                    mapping("nodeId: i=1, valueFrom: v, dataType: Int16")
                ),
                "4:",
                "whole number from 1 to 1000",
            ),
        ] {
            let told = parsed(&yaml).unwrap_err();
            assert!(
                told.contains(&format!("flow.yaml:{place}")) && told.contains(error),
                "{yaml}\n{told}"
            );
        }
        let both = mapping("nodeId: ns=x;i=1, valueFrom: v, dataType: int");
        assert_eq!(parsed(&both).unwrap_err().trim().lines().count(), 2);
    }
}
