//! Kafka as an end of flows: `kafka` reads and writes any topics, `uns` the topic of the unified namespace.
//!
//! A consumer commits only what the flow has confirmed ([`consume`]); a producer keeps the order of each key through
//! its own retries ([`produce`]). The connection state comes from probing the brokers ([`link`]).
#![cfg_attr(test, allow(clippy::unwrap_used))]
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]

mod admin;
mod cluster;
mod consume;
mod header_list;
mod headers;
mod input;
mod link;
mod output;
mod produce;
mod text_bytes;
mod uns;

use thalweg_flow::ComponentRegistry;
use thalweg_telemetry::MetricGroup;

/// What the components of this crate export besides the metrics of every input and output.
pub const METRICS: &[MetricGroup] = &[
    consume::INPUT_KAFKA_METRICS,
    consume::INPUT_UNS_METRICS,
    uns::OUTPUT_UNS_METRICS,
];

/// Registers the components.
pub fn register(registry: &mut ComponentRegistry) {
    registry.input("kafka", include_str!("../reference/input-kafka.txt"), input::parse);
    registry.output("kafka", include_str!("../reference/output-kafka.txt"), output::parse);
    let franz = include_str!("../reference/input-kafka_franz.txt");
    registry.input("kafka_franz", franz, input::parse);
    let franz = include_str!("../reference/output-kafka_franz.txt");
    registry.output("kafka_franz", franz, output::parse);
    registry.input("uns", include_str!("../reference/input-uns.txt"), uns::input::parse);
    registry.output("uns", include_str!("../reference/output-uns.txt"), uns::output::parse);
}
